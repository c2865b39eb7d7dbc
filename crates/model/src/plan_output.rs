//! What `plan --json` prints. The keys keep the paper's words writer and reader.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::problem::Problem;
use crate::range::RangeSet;
use crate::schedule::Schedule;

/// A plan for people's programs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanOutput {
    /// Name of the scheduler used.
    pub scheduler: String,
    /// The plan in whole bytes.
    pub transfers: Vec<PlannedTransfer>,
    /// Time of this plan's loads, in seconds.
    pub predicted_seconds: f64,
    /// Least possible time, in seconds.
    pub bound_seconds: f64,
    /// False when pair caps or trunks make too large a program: the bound is then a lower one only.
    pub bound_is_exact: bool,
    /// Names of the nodes, pairs ("w0 -> r0") and trunks ("trunk 0") that set the bound.
    pub binding: Vec<String>,
}

/// One run of bytes, half-open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedTransfer {
    /// Name of the node that sends.
    pub writer: String,
    /// Name of the node that receives.
    pub reader: String,
    /// First byte.
    pub start: u64,
    /// First byte after the run.
    pub end: u64,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRefusal {
    /// A sentence.
    pub error: String,
    /// For each destination, what no usable sender can get to it.
    pub missing: BTreeMap<String, RangeSet>,
}

impl PlannedTransfer {
    /// The schedule with names in the place of positions; unknown positions are left out.
    #[must_use]
    pub fn list(problem: &Problem, schedule: &Schedule) -> Vec<Self> {
        let named = schedule.assignments.iter().filter_map(|assignment| {
            Some(Self {
                writer: problem.senders.get(assignment.sender)?.name.clone(),
                reader: problem.receivers.get(assignment.receiver)?.name.clone(),
                start: assignment.range.start,
                end: assignment.range.end,
            })
        });
        named.collect()
    }
}
