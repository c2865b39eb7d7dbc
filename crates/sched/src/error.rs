//! Why there is no plan.

use std::collections::BTreeMap;

use ropewalk_model::plan_output::PlanRefusal;
use ropewalk_model::range::{Range, RangeSet};

/// Why a problem has no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No usable node can send some of the wanted bytes.
    #[error("no sender can send {}; add a sender that holds these bytes and can reach the reader, or ask for less", describe(.missing))]
    Uncovered {
        /// For each destination (its shared name, or the receiver's): all such bytes. Never empty.
        missing: BTreeMap<String, RangeSet>,
    },
}

impl PlanError {
    /// The form that `plan --json` prints.
    #[must_use]
    pub fn refusal(&self) -> PlanRefusal {
        let Self::Uncovered { missing } = self;
        PlanRefusal {
            error: self.to_string(),
            missing: missing.clone(),
        }
    }
}

/// Why an option does not name a scheduler.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnknownScheduler {
    /// No scheduler has this name.
    #[error("there is no scheduler \"{0}\"; use {names}", names = crate::NAMES.join(", "))]
    Unknown(String),
}

/// Runs and destinations written out in a message; the rest is counted.
const SHOWN_MAX: usize = 3;

/// "bytes 1000-1999 for r0", inclusive as people type ranges.
fn describe(missing: &BTreeMap<String, RangeSet>) -> String {
    let shown = missing.iter().take(SHOWN_MAX).map(|(name, ranges)| {
        let runs = ranges.iter().take(SHOWN_MAX).map(inclusive);
        let mut text = runs.collect::<Vec<_>>().join(", ");
        if ranges.as_slice().len() > SHOWN_MAX {
            let more = ranges.as_slice().len() - SHOWN_MAX;
            text.push_str(&format!(" and {more} more ranges"));
        }
        format!("bytes {text} for {name}")
    });
    let mut text = shown.collect::<Vec<_>>().join("; ");
    if missing.len() > SHOWN_MAX {
        let more = missing.len() - SHOWN_MAX;
        text.push_str(&format!(" and more for {more} other destinations"));
    }
    text
}

fn inclusive(range: Range) -> String {
    format!("{}-{}", range.start, range.end.saturating_sub(1))
}
