//! Medians with their spread.

use serde::{Deserialize, Serialize};

/// The middle of some measurements and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// How many there were.
    pub count: usize,
    /// The least.
    pub min: f64,
    /// The middle one; the mean of the middle two when their number is even.
    pub median: f64,
    /// The greatest.
    pub max: f64,
}

/// Summarises measurements; `None` without any. Values that are no numbers are left out.
pub(crate) fn summary(values: impl IntoIterator<Item = f64>) -> Option<Summary> {
    let mut values: Vec<f64> = values.into_iter().filter(|value| !value.is_nan()).collect();
    values.sort_by(f64::total_cmp);
    let (min, max) = (*values.first()?, *values.last()?);
    let count = values.len();
    let median = (values[(count - 1) / 2] + values[count / 2]) / 2.0;
    Some(Summary {
        count,
        min,
        median,
        max,
    })
}

/// Several values as people write them: `97.3 to 99.4`, or one number where all print alike; `-` without any.
pub(crate) fn span(values: impl IntoIterator<Item = f64>, decimals: usize) -> String {
    let Some(all) = summary(values) else {
        return "-".into();
    };
    let print = |value: f64| format!("{value:.decimals$}");
    let (least, greatest) = (print(all.min), print(all.max));
    match least == greatest {
        true => least,
        false => format!("{least} to {greatest}"),
    }
}

/// A median with its spread: `1.52 (1.48 to 1.60)`; `-` without any value.
pub(crate) fn spread(values: impl IntoIterator<Item = f64>, decimals: usize) -> String {
    let Some(all) = summary(values) else {
        return "-".into();
    };
    match all.count {
        1 => format!("{:.decimals$}", all.median),
        _ => format!(
            "{:.decimals$} ({:.decimals$} to {:.decimals$})",
            all.median, all.min, all.max
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What people read: spans, and medians with their spread.
    #[test]
    fn printed() {
        assert_eq!(span([99.44, 97.3], 1), "97.3 to 99.4");
        assert_eq!(span([1.01, 1.02], 1), "1.0");
        assert_eq!(span([], 1), "-");
        assert_eq!(spread([3.0, 1.0, 2.0], 0), "2 (1 to 3)");
        assert_eq!(spread([3.0], 1), "3.0");
    }

    /// Odd and even numbers of measurements have their textbook medians, in whatever order they come.
    #[test]
    fn medians() {
        assert_eq!(summary([]), None);
        assert_eq!(summary([f64::NAN]), None);
        let of = |values: &[f64]| summary(values.iter().copied()).unwrap();
        assert_eq!(of(&[5.0]).median, 5.0);
        assert_eq!(of(&[9.0, 1.0, 5.0]).median, 5.0);
        let even = of(&[4.0, 1.0, 3.0, 2.0]);
        assert_eq!(
            (even.median, even.min, even.max, even.count),
            (2.5, 1.0, 4.0, 4)
        );
    }
}
