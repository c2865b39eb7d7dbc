//! How many streams would be best in a situation: three ways behind one trait.

use crate::{Setting, Situation};

mod database;
mod model;
mod simulate;

pub use database::{Database, Lesson};
pub use model::Model;
pub use simulate::Simulate;

/// Totals that are simulated and kept: powers of two.
pub const TOTALS: [u32; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// Fewer streams that bring this part of what the best bring are as good, and kinder to others.
const GOOD: f64 = 0.98;

/// A policy.
pub trait Policy: std::fmt::Debug {
    /// Which one.
    fn name(&self) -> PolicyName;

    /// Streams in all that it thinks best; `None` while it does not know.
    fn best(&mut self, situation: &Situation) -> Option<f64>;

    /// A simulation that it wants.
    fn poll_question(&mut self) -> Option<Question> {
        None
    }

    /// The outcome of one.
    fn handle_answer(&mut self, _answer: &Answer) {}

    /// So many streams brought this part of the path's rate.
    fn learn(&mut self, _situation: &Situation, _total: u32, _share: f64) {}

    /// Takes a line that [`Tuner::lessons`](crate::Tuner::lessons) gave in an earlier transfer; says whether it made sense.
    fn recall(&mut self, _line: &str) -> bool {
        true
    }
}

/// Which policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyName {
    /// A formula.
    #[default]
    Model,
    /// Simulations run beside the transfer.
    Simulate,
    /// Nearest situations of a database.
    Database,
}

impl PolicyName {
    /// All of them, the default first.
    pub const ALL: [Self; 3] = [Self::Model, Self::Simulate, Self::Database];

    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Simulate => "simulate",
            Self::Database => "database",
        }
    }

    /// The policy of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }

    /// A policy that knows what is shipped.
    #[must_use]
    pub fn make(self) -> Box<dyn Policy + Send> {
        match self {
            Self::Model => Box::new(Model),
            Self::Simulate => Box::new(Simulate::default()),
            Self::Database => Box::new(Database::shipped()),
        }
    }
}

/// Simulate this situation with each of these settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The situation.
    pub situation: Situation,
    /// The settings, by total.
    pub settings: Vec<Setting>,
}

/// Its result.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// What was asked.
    pub question: Question,
    /// Part of the path's rate that each setting reached, in the question's order; those that were not simulated
    /// are missing.
    pub shares: Vec<f64>,
}

/// The fewest streams that bring nearly the most, among (total, share) in growing order of totals.
pub(crate) fn fewest(curve: impl Iterator<Item = (u32, f64)> + Clone) -> Option<f64> {
    // No path carries more than all: that is where a measurement began and ended.
    let curve = curve.map(|(total, share)| (total, share.min(1.0)));
    let most = curve.clone().map(|(_, share)| share).fold(0.0, f64::max);
    let mut good = curve.filter(|(_, share)| *share >= GOOD * most);
    good.next().map(|(total, _)| f64::from(total))
}
