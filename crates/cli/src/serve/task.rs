//! What a job does, and how its last run ended: what is kept of a job beside its place in the queue.

use ropewalk_proto::report::Report;
use serde::{Deserialize, Serialize};

/// What a job does: a command line, and where and with what it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Task {
    /// Arguments behind the program's name, as bytes: paths need not be UTF-8.
    pub arguments: Vec<Vec<u8>>,
    /// The folder.
    pub folder: Vec<u8>,
    /// Variables of the environment.
    pub environment: Vec<(String, Vec<u8>)>,
    /// The specification, or the list of --files-from.
    pub input: Option<Vec<u8>>,
    /// As given.
    pub label: Option<String>,
    /// Sources as people write them.
    pub from: Vec<String>,
    /// Destinations; jobs with a common one run one after the other.
    pub places: Vec<String>,
}

/// How a run ended, for `ropewalk queue`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// Id of the transfer.
    pub transfer: String,
    /// As in the report.
    pub outcome: String,
    /// Bytes that are safe at destinations.
    pub delivered_bytes: u64,
    /// How long it took.
    pub seconds: f64,
}

impl Summary {
    /// What is kept of a report.
    pub(super) fn of(report: &Report) -> Self {
        let outcome = serde_json::to_value(report.outcome).unwrap_or_default();
        Self {
            transfer: report.transfer.clone(),
            outcome: outcome.as_str().unwrap_or_default().to_owned(),
            delivered_bytes: report.delivered_bytes,
            seconds: report.seconds,
        }
    }
}
