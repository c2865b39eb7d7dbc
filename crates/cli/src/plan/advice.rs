//! What would limit a transfer next, and before and after the changes of `--what-if`.

use std::collections::HashSet;
use std::fmt::Write as _;

use ropewalk_model::{PlannedTransfer, Problem, format_seconds};
use ropewalk_sched::{Bound, PlanError};
use serde::Serialize;

use crate::report::listed;

/// The bound when everything that sets it is twice as fast.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Advice {
    /// What sets the bound now.
    pub twice_as_fast: Vec<String>,
    /// Least possible time then.
    pub bound_seconds: f64,
    /// What sets it then.
    pub binding: Vec<String>,
}

/// One more bound, with what sets the first one twice as fast; `None` when nothing sets it.
pub(crate) fn advice(problem: &Problem, bound: &Bound) -> Result<Option<Advice>, PlanError> {
    if bound.binding.is_empty() || bound.seconds <= 0.0 {
        return Ok(None);
    }
    let mut faster = problem.clone();
    double(&mut faster, bound);
    let then = ropewalk_sched::bound(&faster)?;
    Ok(Some(Advice {
        twice_as_fast: bound.binding.clone(),
        bound_seconds: then.seconds,
        binding: then.binding,
    }))
}

/// Doubles the speeds of everything that the bound names: nodes, pairs as `w0 -> r0`, trunks by their labels.
fn double(problem: &mut Problem, bound: &Bound) {
    let names: HashSet<&str> = bound.binding.iter().map(String::as_str).collect();
    let binds = |name: &str| names.contains(name);
    for (number, trunk) in problem.trunks.iter_mut().enumerate() {
        if binds(&trunk.label(number)) {
            trunk.cap = trunk.cap.saturating_mul(2);
        }
    }
    for pair in &mut problem.pair_caps {
        let sender = problem.senders.get(pair.sender).map(|s| s.name.as_str());
        let receiver = problem
            .receivers
            .get(pair.receiver)
            .map(|r| r.name.as_str());
        if let (Some(sender), Some(receiver)) = (sender, receiver)
            && binds(&format!("{sender} -> {receiver}"))
        {
            pair.cap = pair.cap.saturating_mul(2);
        }
    }
    // Writers and readers may share a name: without links, only the slower side binds.
    let links = problem.has_links();
    let sending = links || bound.sender_seconds >= bound.receiver_seconds;
    let receiving = links || bound.receiver_seconds >= bound.sender_seconds;
    for sender in problem.senders.iter_mut().filter(|_| sending) {
        if binds(&sender.name) {
            sender.up = sender.up.saturating_mul(2);
        }
    }
    for receiver in problem.receivers.iter_mut().filter(|_| receiving) {
        if binds(&receiver.name) {
            receiver.down = receiver.down.saturating_mul(2);
        }
    }
}

/// The line for people.
pub(crate) fn advice_text(advice: &Advice, now_seconds: f64) -> String {
    let who = match advice.twice_as_fast.as_slice() {
        [one] => one.clone(),
        many => format!("these {}", many.len()),
    };
    let gain = now_seconds / advice.bound_seconds;
    if gain < 1.000_001 {
        return format!(
            "doubling {who} would not help: {} then {} the same bound",
            listed(&advice.binding),
            if advice.binding.len() == 1 {
                "sets"
            } else {
                "set"
            }
        );
    }
    let next = match advice.binding == advice.twice_as_fast {
        true => "still set by the same".to_owned(),
        false => format!("then set by {}", listed(&advice.binding)),
    };
    format!(
        "with {who} twice as fast: bound {} ({gain:.2} times as fast), {next}",
        format_seconds(advice.bound_seconds)
    )
}

/// Times of one state of the transfer; all absent when it has no plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Times {
    /// Time of the plan.
    pub predicted_seconds: Option<f64>,
    /// Least possible time.
    pub bound_seconds: Option<f64>,
    /// What sets it.
    pub binding: Vec<String>,
}

/// The transfer after one more change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Step {
    /// The change, as it was typed.
    pub change: String,
    /// With it and all before it.
    #[serde(flatten)]
    pub times: Times,
}

/// The transfer after all changes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct WhatIf {
    /// Each change, in order.
    pub changes: Vec<Step>,
    /// After the last one.
    #[serde(flatten)]
    pub times: Times,
    /// The plan then.
    pub transfers: Vec<PlannedTransfer>,
}

/// Before and after each change, for people.
pub(crate) fn what_if_text(before: &Times, what_if: &WhatIf) -> String {
    let rows = std::iter::once(("as it is", before)).chain(
        what_if
            .changes
            .iter()
            .map(|s| (s.change.as_str(), &s.times)),
    );
    let width = rows.clone().map(|(name, _)| name.chars().count()).max();
    let width = width.unwrap_or(0).max("what if".len());
    // Writing to a string cannot fail.
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:width$}  {:>10}  {:>10}  set by",
        "what if", "predicted", "bound"
    );
    for (name, times) in rows {
        let _ = match (times.predicted_seconds, times.bound_seconds) {
            (Some(predicted), Some(bound)) => writeln!(
                out,
                "{name:width$}  {:>10}  {:>10}  {}",
                format_seconds(predicted),
                format_seconds(bound),
                match times.binding.is_empty() {
                    true => "-".to_owned(),
                    false => listed(&times.binding),
                }
            ),
            _ => writeln!(out, "{name:width$}  no plan: some bytes have no holder"),
        };
    }
    let _ = match (before.predicted_seconds, what_if.times.predicted_seconds) {
        (Some(old), Some(new)) if (old - new).abs() < 0.005 * old => {
            writeln!(out, "together    neither faster nor slower")
        }
        (Some(old), Some(new)) if old > 0.0 && new > 0.0 => {
            let (factor, word) = match new <= old {
                true => (old / new, "fast"),
                false => (new / old, "long"),
            };
            writeln!(out, "together    {factor:.2} times as {word}")
        }
        _ => Ok(()),
    };
    out
}

#[cfg(test)]
mod tests {
    use ropewalk_model::problem::case::Case;

    use super::*;

    fn advised(text: &str) -> (f64, Option<Advice>) {
        let problem = Case::parse(text).unwrap().problem;
        let bound = ropewalk_sched::bound(&problem).unwrap();
        let advice = advice(&problem, &bound).unwrap();
        (bound.seconds, advice)
    }

    /// The next limit is that of the other side, and the gain ends there.
    #[test]
    fn the_next_limit_is_named() {
        let (now, advice) = advised(
            r#"{"writers": [{"name": "w", "up": 10, "ranges": [[0, 120]]}],
                "readers": [{"name": "r", "down": 15, "ranges": [[0, 120]]}]}"#,
        );
        let advice = advice.unwrap();
        assert_eq!(advice.twice_as_fast, ["w"]);
        assert_eq!(
            (advice.bound_seconds, &advice.binding[..]),
            (8.0, &["r".to_owned()][..])
        );
        assert_eq!(
            advice_text(&advice, now),
            "with w twice as fast: bound 8 s (1.50 times as fast), then set by r"
        );
    }

    /// Only the side that binds is doubled where both have a node of one name.
    #[test]
    fn names_of_both_sides_are_kept_apart() {
        let (_, advice) = advised(
            r#"{"writers": [{"name": "n", "up": 10, "ranges": [[0, 120]]}],
                "readers": [{"name": "n", "down": 15, "ranges": [[0, 120]]}]}"#,
        );
        assert_eq!(advice.unwrap().bound_seconds, 8.0);
    }

    /// Pairs and trunks that bind are doubled too, by the names that the bound gives them.
    #[test]
    fn links_are_doubled() {
        let nodes = r#""writers": [{"name": "a", "up": 100, "ranges": [[0, 120]]},
                                   {"name": "b", "up": 100, "ranges": [[120, 240]]}],
                       "readers": [{"name": "r", "down": 100, "ranges": [[0, 240]]}]"#;
        let pair = r#""pair_caps": [{"writer": "a", "reader": "r", "cap": 10}]"#;
        let (now, advice) = advised(&format!("{{{nodes}, {pair}}}"));
        let advice = advice.unwrap();
        assert_eq!(advice.twice_as_fast, ["a -> r"]);
        assert!((now - 12.0).abs() < 1e-5 && (advice.bound_seconds - 6.0).abs() < 1e-5);
        let trunk = r#""trunks": [{"writers": ["a", "b"], "readers": ["r"], "cap": 60}]"#;
        let (now, advice) = advised(&format!("{{{nodes}, {trunk}}}"));
        let advice = advice.unwrap();
        assert_eq!(advice.twice_as_fast, ["trunk 0"]);
        assert!((now - 4.0).abs() < 1e-5 && (advice.bound_seconds - 2.4).abs() < 1e-5);
        assert_eq!(advice.binding, ["r"]);
    }

    /// Where all bind alike, they still do when all are faster; where nothing is wanted, nothing is said.
    #[test]
    fn edges() {
        let (now, advice) = advised(
            r#"{"writers": [{"name": "w", "up": 10, "ranges": [[0, 120]]}],
                "readers": [{"name": "r", "down": 10, "ranges": [[0, 120]]}]}"#,
        );
        let text = advice_text(&advice.unwrap(), now);
        assert_eq!(
            text,
            "with these 2 twice as fast: bound 6 s (2.00 times as fast), still set by the same"
        );
        let (_, nothing) = advised(r#"{"writers": [], "readers": []}"#);
        assert_eq!(nothing, None);
    }
}
