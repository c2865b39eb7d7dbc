//! What hosts can do, and what a transfer between them would take, from what was measured on them.
//!
//! ```text
//!  Examined of each host ─────────────────────────┐
//!  runs: memory to memory over one stream,        ├─ forecast ─▶ rate, what binds, settings to change
//!        over as many as a copy takes,            │
//!        a file to a file where folders are named ┘
//! ```
//!
//! The runs are transfers of the shipping code, so what they show is what a copy meets: the time between first and last byte, with the
//! causes that its report names. What differs for more bytes than a run moved is added by the rule in `forecast`.

use serde::Serialize;
use std::collections::BTreeMap;

use crate::control::Examined;
use crate::report::{BottleneckReport, NetworkReport, Report};

mod forecast;
mod pace;

pub use forecast::{Runs, forecast};
pub use pace::{Pace, Paces};

/// What was found out about some hosts and the paths between them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DoctorReport {
    /// Each host, in the order in which they were named.
    pub hosts: Vec<HostReport>,
    /// From each host to each later one.
    pub pairs: Vec<Forecast>,
    /// What ended it early.
    pub error: Option<String>,
}

/// What a host can do.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostReport {
    /// Its name.
    pub node: String,
    /// Why it was not examined; all else is empty then.
    pub error: Option<String>,
    /// Processors that the agent may use.
    pub processors: u32,
    /// What one of them hashes.
    pub hash_bytes_per_second: u64,
    /// What one of them encrypts.
    pub seal_bytes_per_second: u64,
    /// What one of them copies in memory.
    pub copy_bytes_per_second: u64,
    /// Interfaces that carry data.
    pub interfaces: Vec<InterfaceReport>,
    /// Settings of its kernel, by name.
    pub settings: BTreeMap<String, String>,
    /// Most files and sockets that its agent may have open.
    pub open_files: u64,
    /// The disk of the folder that was named; absent where none was, or it could not be measured.
    pub disk: Option<DiskReport>,
    /// Why it could not.
    pub disk_error: Option<String>,
}

/// An interface of a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct InterfaceReport {
    /// Its name.
    pub name: String,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// Longest packet; absent where it is not known.
    pub mtu_bytes: Option<u32>,
    /// Speed that it claims; absent where it claims none.
    pub bits_per_second: Option<f64>,
}

/// The disk of a folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DiskReport {
    /// Bytes of one large file, its sync included.
    pub write_bytes_per_second: u64,
    /// Bytes of the same file, read from the disk.
    pub read_bytes_per_second: u64,
    /// A sync of one small write.
    pub sync_seconds: f64,
    /// Small files that are created, written and renamed.
    pub files_per_second: u64,
    /// Free space.
    pub free_bytes: u64,
}

/// A transfer that was tried.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunReport {
    /// Bytes that it moved.
    pub bytes: u64,
    /// Its rate once it was up to speed.
    pub bits_per_second: f64,
    /// From the start of the command to the first byte.
    pub start_seconds: f64,
    /// What getting up to speed cost: the time that its bytes took longer than at that rate.
    pub ramp_seconds: f64,
    /// From the last byte to the end: syncing, renaming.
    pub finish_seconds: f64,
    /// What the sender's kernel said of its streams; absent where no TCP was used.
    pub network: Option<NetworkReport>,
    /// What held it back, as in the report of a copy.
    pub bottlenecks: Vec<BottleneckReport>,
}

impl RunReport {
    /// What a transfer's report says of it.
    ///
    /// * `last`: its last rate, where it took long enough for that.
    #[must_use]
    pub fn of(report: &Report, sender: &str, last: Option<Pace>) -> Self {
        let last = last.filter(|last| last.bits_per_second > 0.0);
        let start = report.reach_seconds + report.start_seconds;
        let moving = (report.seconds - start - report.finish_seconds).max(1e-9);
        let mean = report.delivered_bytes as f64 * 8.0 / moving;
        let mut nodes = report.nodes.iter();
        Self {
            bytes: report.delivered_bytes,
            bits_per_second: last.map_or(mean, |last| last.bits_per_second),
            start_seconds: start,
            ramp_seconds: last.map_or(0.0, |last| last.ramp_seconds()),
            finish_seconds: report.finish_seconds,
            network: nodes
                .find(|node| node.node == sender)
                .and_then(|node| node.network.clone()),
            bottlenecks: report.bottlenecks.clone(),
        }
    }
}

/// What a transfer from one host to another would take.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Forecast {
    /// The host that has the bytes.
    pub sender: String,
    /// The host that gets them.
    pub receiver: String,
    /// Why there is no forecast.
    pub error: Option<String>,
    /// Memory to memory over one stream.
    pub one_stream: Option<RunReport>,
    /// The same over as many as a copy takes.
    pub streams: Option<RunReport>,
    /// From the sender's folder to the receiver's, where either is named.
    pub files: Option<RunReport>,
    /// The predicted rate of a long copy.
    pub bits_per_second: Option<f64>,
    /// What its beginning costs beside the bytes at that rate: the time before the first one, and getting up to speed.
    pub start_seconds: Option<f64>,
    /// What will bind it, with the share of the run in which that was seen to.
    pub bound_by: Option<BottleneckReport>,
    /// What to change, in the order of the causes.
    pub settings: Vec<SettingAdvice>,
}

/// A setting to change.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SettingAdvice {
    /// The host.
    pub node: String,
    /// What it is there now.
    pub now: String,
    /// The command that changes it until the next boot.
    pub command: String,
    /// What for, in words.
    pub reason: String,
}

impl HostReport {
    /// What an agent said of its host.
    #[must_use]
    pub fn of(node: &str, examined: &Examined) -> Self {
        let interfaces = examined.interfaces.iter().map(|one| InterfaceReport {
            name: one.name.clone(),
            addresses: one.addresses.clone(),
            mtu_bytes: Some(one.mtu).filter(|mtu| *mtu > 0),
            bits_per_second: (one.rate > 0).then_some(one.rate as f64 * 8.0),
        });
        let settings = examined.settings.iter();
        Self {
            node: node.to_owned(),
            error: None,
            processors: examined.processors,
            hash_bytes_per_second: examined.hash,
            seal_bytes_per_second: examined.seal,
            copy_bytes_per_second: examined.copy,
            interfaces: interfaces.collect(),
            settings: settings
                .map(|one| (one.name.clone(), one.value.clone()))
                .collect(),
            open_files: examined.open_files,
            disk: examined.disk.map(|disk| DiskReport {
                write_bytes_per_second: disk.write,
                read_bytes_per_second: disk.read,
                sync_seconds: disk.sync as f64 / 1e9,
                files_per_second: disk.files,
                free_bytes: disk.free,
            }),
            disk_error: Some(examined.error.clone()).filter(|error| !error.is_empty()),
        }
    }

    /// A host that was not examined.
    #[must_use]
    pub fn failed(node: &str, error: String) -> Self {
        Self {
            node: node.to_owned(),
            error: Some(error),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests;
