//! Formulas that runs are compared with.

pub use ropewalk_tuner::formula::{formula_stripes, mathis, pftk};

/// Jain's index of shares: 1 when all are equal, 1/n when one has everything.
#[must_use]
pub fn fairness(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}
