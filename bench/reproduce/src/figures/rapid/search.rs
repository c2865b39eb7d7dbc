//! Golden-section search for the least value of something that is measured.

use anyhow::Result;

/// The part of an interval that stays in each step: 1 / golden ratio.
const STAYS: f64 = 0.618_033_988_749_894_9;

/// Where something is least, as far as the measurements tell.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Found {
    /// The place of the least value measured.
    pub at: f64,
    /// Every place tried and its value, in the order tried.
    pub tried: Vec<(f64, f64)>,
}

/// Looks between `low` and `high` with so many measurements (at least 2). Of something that falls, then rises, it finds the
/// least place to within `0.618^(measurements - 1)` of the interval; of anything else, the least place that it tried.
///
/// # Errors
/// The first error of `measure`.
pub(super) fn golden_section(
    mut low: f64,
    mut high: f64,
    measurements: usize,
    mut measure: impl FnMut(f64) -> Result<f64>,
) -> Result<Found> {
    let mut tried = Vec::new();
    let mut look = |at: f64, tried: &mut Vec<(f64, f64)>| -> Result<(f64, f64)> {
        let value = measure(at)?;
        tried.push((at, value));
        Ok((at, value))
    };
    let mut left = look(high - (high - low) * STAYS, &mut tried)?;
    let mut right = look(low + (high - low) * STAYS, &mut tried)?;
    while tried.len() < measurements {
        if left.1 <= right.1 {
            high = right.0;
            right = left;
            left = look(high - (high - low) * STAYS, &mut tried)?;
        } else {
            low = left.0;
            left = right;
            right = look(low + (high - low) * STAYS, &mut tried)?;
        }
    }
    let least = tried.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1));
    Ok(Found {
        at: least.map_or(low, |least| least.0),
        tried,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    /// A valley anywhere in the interval is found as closely as promised, each measurement but the first two narrowing it.
    #[test]
    fn valleys() {
        for lowest in [0.0, 1.0, 3.3, 7.77, 10.0] {
            for measurements in [2, 6, 12] {
                let found = golden_section(0.0, 10.0, measurements, |at| Ok((at - lowest).abs()));
                let found = found.unwrap();
                assert_eq!(found.tried.len(), measurements);
                let within = 10.0 * STAYS.powi(measurements as i32 - 1);
                let miss = (found.at - lowest).abs();
                assert!(miss <= within, "{lowest}: {miss} of {within} allowed");
            }
        }
    }

    /// Time falls as 1 / rate up to a limit and rises slowly beyond it: the limit is found, whether it rises or stays level.
    #[test]
    fn transfer_times() {
        for rise in [0.0, 0.1] {
            let time = |rate: f64| 1.0 / rate.min(3.0) + rise * (rate - 3.0).max(0.0);
            let found = golden_section(0.5, 6.0, 12, |rate| Ok(time(rate))).unwrap();
            assert!(time(found.at) < time(3.0) * 1.02, "{found:?}");
        }
    }

    /// A measurement that fails ends the search.
    #[test]
    fn errors_end_it() {
        let mut calls = 0;
        let result = golden_section(0.0, 1.0, 9, |_| {
            calls += 1;
            if calls == 3 {
                bail!("no");
            }
            Ok(1.0)
        });
        assert!(result.is_err());
        assert_eq!(calls, 3);
    }
}
