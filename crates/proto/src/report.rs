//! What a transfer reports while it runs ([`Event`]) and when it has ended ([`Report`]).
//!
//! Both serialise to JSON with units in the keys. Rates for people are bits per second; ranges are
//! half open.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

mod cause;
mod event;
mod landing;
mod listing;
mod node;

pub use cause::{BottleneckCause, BottleneckReport, PointReport, TimelineReport};
pub use event::{Event, NodeProgress};
pub use landing::{LandingReport, MergedReport, NotPlacedReport, NotRemovedReport, WrongReport};
pub use listing::{Change, CheckReport, DryRunReport};
pub use node::{BlastReport, ControlReport, GapReport, NetworkReport, NodeReport, PairReport};

/// Version of the events and the report as JSON. A field or event that is added leaves it as it is; one that changes its
/// meaning, or goes, raises it.
pub const FORMAT_VERSION: u32 = 1;

/// How a transfer ended. The exit status of a command follows from it ([`codes`](crate::codes)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Every wanted byte is safe in its sink.
    Done,
    /// Some ranges had no holder left; everything else is safe.
    Partial,
    /// Ended by an error; what is safe is reported.
    Failed,
    /// Refused before anything moved.
    Refused,
    /// Ended by the user.
    Cancelled,
}

/// Where the error of a report lies, and so what can be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The command line: nothing was tried.
    Usage,
    /// The specification file: nothing was tried.
    Specification,
    /// A host that could not be reached, or no agent there.
    Unreachable,
    /// Something that was asked for may or can not be done: a missing source, a destination that would not be replaced,
    /// sources that differ.
    Refused,
    /// A node whose connection ended, or that was silent, while it was needed.
    Lost,
    /// A node that stopped for a reason of its own, most often its disk.
    Node,
    /// Parts of sources that changed, vanished or cannot be read, or whose holders are gone.
    Missing,
    /// Replicas whose contents differ.
    Differing,
    /// The user ended it.
    Interrupted,
    /// None of these.
    Other,
}

/// The result of a transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Unique id of the transfer.
    pub transfer: String,
    /// Label from the specification file.
    pub label: Option<String>,
    /// How it ended.
    pub outcome: Outcome,
    /// The error that ended it, if any.
    pub error: Option<String>,
    /// What kind of error it is; absent without one.
    #[serde(default)]
    pub error_kind: Option<ErrorKind>,
    /// Bytes that had to cross, each destination counted.
    pub wanted_bytes: u64,
    /// Bytes safe in their sinks.
    pub delivered_bytes: u64,
    /// Files and links, when the sources are trees.
    pub files: u64,
    /// How several sources of a copy were found to relate; absent for one source, and for rows.
    #[serde(default)]
    pub sources: Option<SourcesReport>,
    /// From the start of the command to the last safe byte.
    pub seconds: f64,
    /// Part of it before all nodes were reached.
    #[serde(default)]
    pub reach_seconds: f64,
    /// Part of it between that and the first grant: opening, planning.
    pub start_seconds: f64,
    /// Longest time, part of it, in which a receiver waited for earlier transfers to its destinations to end.
    #[serde(default)]
    pub awaited_end_seconds: f64,
    /// Part of it after the last byte arrived: syncing, renaming, removing.
    pub finish_seconds: f64,
    /// Longest time, part of it, in which a node removed what no source has.
    #[serde(default)]
    pub removing_seconds: f64,
    /// `delivered_bytes` over `seconds`.
    pub bits_per_second: f64,
    /// `delivered_bytes` over the time between first grant and last safe byte.
    pub moving_bits_per_second: f64,
    /// Scheduler used.
    pub scheduler: String,
    /// Time predicted from the speeds known before the start.
    pub predicted_seconds: Option<f64>,
    /// The bound and how close the transfer was; absent when nothing is known about speeds.
    pub bound: Option<BoundReport>,
    /// What the bound follows from: `declared`, `interface` or `limit`; without a bound `observed` where the best second
    /// is known, else `none`.
    #[serde(default)]
    pub bound_basis: String,
    /// Most bytes that all receivers together received in a second, where that is not too short a time of the whole, and
    /// no bound is known. It is no bound: the network may carry more.
    #[serde(default)]
    pub own_best_second_bits_per_second: Option<f64>,
    /// What held the transfer back, the largest share first; empty where it was too short to see.
    #[serde(default)]
    pub bottlenecks: Vec<BottleneckReport>,
    /// What happened when; absent where no byte moved. Of several rounds it is that of the last one.
    #[serde(default)]
    pub timeline: Option<TimelineReport>,
    /// What was checked: `none`, `fragment`, `tree` or `sink`.
    pub verify: String,
    /// Whether data was sealed on its way: not where it left no process.
    pub encrypted: bool,
    /// Hash over all delivered units per receiver; equal for receivers of equal ranges.
    pub roots: BTreeMap<String, String>,
    /// Every node.
    pub nodes: Vec<NodeReport>,
    /// Every pair that moved bytes.
    pub pairs: Vec<PairReport>,
    /// Per receiver, the ranges that are missing, half open.
    pub missing: BTreeMap<String, Vec<(u64, u64)>>,
    /// The same as files, each with the reason, as far as receivers reported them.
    #[serde(default)]
    pub missing_files: Vec<MissingFile>,
    /// Further files that are missing, beyond those listed.
    #[serde(default)]
    pub missing_files_more: u64,
    /// Files and folders that no source could read when the transfer began: the copies are without them.
    #[serde(default)]
    pub left_out: Vec<LeftOutReport>,
    /// Further ones, beyond those listed.
    #[serde(default)]
    pub left_out_more: u64,
    /// Files that grew while they were copied, of which the copies have what they were when they were scanned.
    #[serde(default)]
    pub grown: Vec<GrownReport>,
    /// Further ones, beyond those listed.
    #[serde(default)]
    pub grown_more: u64,
    /// Each copy, or place that rows write to.
    #[serde(default)]
    pub destinations: Vec<DestinationReport>,
    /// What stays under temporary names.
    #[serde(default)]
    pub left: Vec<LeftReport>,
    /// What was compared of the contents of replicas; absent where no byte had two holders.
    #[serde(default)]
    pub replicas: Option<ReplicasReport>,
    /// Of the delivered bytes, zeros, which are not sent.
    #[serde(default)]
    pub zero_bytes: u64,
    /// Of the received bytes, those that receivers had from one another.
    #[serde(default)]
    pub handed_on_bytes: u64,
    /// Bytes received twice.
    pub duplicate_bytes: u64,
    /// How often work was planned again while bytes moved.
    #[serde(default)]
    pub replans: u64,
    /// What became of the number of streams over a long path; absent where it was not tuned.
    #[serde(default)]
    pub streams: Option<StreamsReport>,
    /// Units received damaged and were fetched again.
    pub corrupt_units: u64,
    /// Longest time a receiver that had work saw no byte.
    pub longest_stall_seconds: f64,
    /// Times in which nodes were waited for without which the transfer could not go on.
    #[serde(default)]
    pub interruptions: Vec<InterruptionReport>,
    /// Control traffic.
    pub control: ControlReport,
    /// What stood at destinations, and what copies leave out or could not keep.
    #[serde(default)]
    pub landing: LandingReport,
    /// What a copy would do; absent where it was done.
    #[serde(default)]
    pub dry_run: Option<DryRunReport>,
    /// What a comparison found; absent of anything else.
    #[serde(default)]
    pub check: Option<CheckReport>,
    /// What happened on the way, in words.
    pub notes: Vec<String>,
    /// Of the notes, those that say what was lost.
    #[serde(skip)]
    pub losses: Vec<String>,
    /// Of the notes, those that say what holders refused, and no other one has.
    #[serde(skip)]
    pub refusals: Vec<String>,
}

/// The lane of two nodes of one process.
pub const LANE_LOCAL: &str = "local";

impl Report {
    /// Whether all data stayed within one process.
    #[must_use]
    pub fn is_within_a_process(&self) -> bool {
        let is_local = |pair: &PairReport| pair.lane == LANE_LOCAL;
        !self.pairs.is_empty() && self.pairs.iter().all(is_local)
    }

    /// Bytes that it found at its destinations.
    #[must_use]
    pub fn found_bytes(&self) -> u64 {
        let landing = &self.landing;
        let found = [
            landing.unchanged_bytes,
            landing.kept_bytes,
            landing.resumed_bytes,
            landing.taken_bytes,
        ];
        found.into_iter().fold(0, u64::saturating_add)
    }

    /// Bytes that are at its destinations: those, and what it has moved.
    #[must_use]
    pub fn safe_bytes(&self) -> u64 {
        self.delivered_bytes.saturating_add(self.found_bytes())
    }

    /// The report of a transfer of which nothing is known but how it ended.
    pub fn ended(outcome: Outcome) -> Self {
        Self {
            transfer: String::new(),
            label: None,
            outcome,
            error: None,
            error_kind: None,
            wanted_bytes: 0,
            delivered_bytes: 0,
            files: 0,
            sources: None,
            seconds: 0.0,
            reach_seconds: 0.0,
            start_seconds: 0.0,
            awaited_end_seconds: 0.0,
            finish_seconds: 0.0,
            removing_seconds: 0.0,
            bits_per_second: 0.0,
            moving_bits_per_second: 0.0,
            scheduler: String::new(),
            predicted_seconds: None,
            bound: None,
            bound_basis: "none".into(),
            own_best_second_bits_per_second: None,
            bottlenecks: Vec::new(),
            timeline: None,
            verify: String::new(),
            encrypted: true,
            roots: BTreeMap::new(),
            nodes: Vec::new(),
            pairs: Vec::new(),
            missing: BTreeMap::new(),
            missing_files: Vec::new(),
            missing_files_more: 0,
            left_out: Vec::new(),
            left_out_more: 0,
            grown: Vec::new(),
            grown_more: 0,
            destinations: Vec::new(),
            left: Vec::new(),
            replicas: None,
            zero_bytes: 0,
            handed_on_bytes: 0,
            duplicate_bytes: 0,
            replans: 0,
            streams: None,
            corrupt_units: 0,
            longest_stall_seconds: 0.0,
            interruptions: Vec::new(),
            control: ControlReport::default(),
            landing: LandingReport::default(),
            dry_run: None,
            check: None,
            notes: Vec::new(),
            losses: Vec::new(),
            refusals: Vec::new(),
        }
    }
}

/// A time in which nodes were waited for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InterruptionReport {
    /// Names of the nodes.
    pub awaited: Vec<String>,
    /// Why they were gone.
    pub reason: String,
    /// How long they were waited for.
    pub seconds: f64,
    /// Whether all of them were reached again.
    pub returned: bool,
}

/// How the sources of a copy relate, as their paths, sizes and times show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourcesReport {
    /// Pieces with files of their own; 1 when all sources hold the same.
    pub parts: u32,
    /// Sources that hold them; more than `parts` where some are replicas of each other.
    pub holders: u32,
    /// The pieces are separate items, each under its own name in the destination.
    #[serde(default)]
    pub separate: bool,
}

/// In words: `3 replicas`, `2 parts`, `2 parts in 5 sources`; separate items are `2 items`.
impl fmt::Display for SourcesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.parts, self.holders) {
            (1, 1) => f.write_str("1 source"),
            (1, holders) => write!(f, "{holders} replicas"),
            (parts, holders) if parts == holders => write!(f, "{parts} {}", self.pieces()),
            (parts, holders) => write!(f, "{parts} {} in {holders} sources", self.pieces()),
        }
    }
}

impl SourcesReport {
    fn pieces(&self) -> &'static str {
        match self.separate {
            true => "items",
            false => "parts",
        }
    }
}

/// A file that a receiver has not got all of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingFile {
    /// Name of the receiver.
    pub node: String,
    /// The file: below the tree's folder and with its name, or as the row names it.
    pub file: String,
    /// Bytes of it that are missing.
    pub bytes: u64,
    /// Why, in words.
    pub reason: String,
}

/// A file or folder that could not be read when the transfer began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOutReport {
    /// Name of a sender that could not read it.
    pub node: String,
    /// The file or folder, below the tree's folder and with its name.
    pub file: String,
    /// Why, in words.
    pub reason: String,
}

impl LeftOutReport {
    /// What the note begins with that names the first ones at the start.
    pub const NOTE: &str = "left out of the copy: ";
}

/// A file that grew while it was copied, and of which the copies have what it was when it was scanned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrownReport {
    /// Name of a sender that read it.
    pub node: String,
    /// The file, below the tree's folder and with its name.
    pub file: String,
}

/// One copy, or the place that rows write to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DestinationReport {
    /// The nodes that write it: one, or those that share it.
    pub nodes: Vec<String>,
    /// All of its bytes are safe, its files have their names, and no file was left out.
    pub complete: bool,
    /// Files and links that have their names: of a copy that is not complete, those that lack no byte.
    pub files: u64,
    /// Why it is not, where a node said or showed it.
    pub error: Option<String>,
}

/// Something under a temporary name that the transfer has left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftReport {
    /// Name of the node on whose file system it is.
    pub node: String,
    /// Where.
    pub path: String,
    /// How large it is; of a lost node, what it had received at its last report.
    pub bytes: u64,
    /// False where the node is lost, so that no process could look: its agent may have removed it.
    pub certain: bool,
    /// It was to be kept.
    #[serde(default)]
    pub kept: bool,
    /// The same command goes on with these bytes, which are safe. If it is neither this nor kept, nothing uses it.
    #[serde(default)]
    pub resumable: bool,
    /// How many of its bytes are those of the sources and safe, where that is known. The others are not, whatever its size.
    #[serde(default)]
    pub valid_bytes: Option<u64>,
}

/// What was compared of the contents of replicas. Sizes and times always are, before the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicasReport {
    /// `no` (units were not hashed), `sample` or `whole`.
    pub compared: String,
    /// Units received and hashed, all receivers together.
    pub units: u64,
    /// Of them, those that a second holder has the same of.
    pub compared_units: u64,
    /// Their bytes.
    pub compared_bytes: u64,
}

/// Streams that were tuned while bytes moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamsReport {
    /// `model`, `simulate` or `database`.
    pub policy: String,
    /// How often receivers got another number.
    pub changes: u32,
    /// Receivers that had work when the number was last chosen.
    pub receivers: u32,
    /// Streams of each of them then.
    pub streams: u32,
    /// Other transfers over the same path that were tuned, too, at the end.
    pub others: u32,
}

/// The least possible time and what sets it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BoundReport {
    /// `declared`, `interface` or `limit` (what the user allowed).
    pub basis: String,
    /// Least time for these bytes at these speeds.
    pub seconds: f64,
    /// The same as a rate.
    pub bits_per_second: f64,
    /// `seconds` over the time taken while moving, 1 is perfect; absent when not everything was moved, or when it was
    /// moved in less.
    pub share: Option<f64>,
    /// Everything was moved in less time: a declared speed is too low.
    #[serde(default)]
    pub exceeded: bool,
    /// Least time if receivers did not hand on what they have, where that is longer; absent where they did not.
    #[serde(default)]
    pub without_handing_on_seconds: Option<f64>,
    /// Nodes whose speed sets the bound.
    pub binding: Vec<String>,
    /// False when it is a lower one only: a speed is not known, or caps of pairs and trunks were left out.
    pub is_exact: bool,
}
