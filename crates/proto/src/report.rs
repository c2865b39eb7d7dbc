//! What a transfer reports while it runs ([`Event`]) and when it has ended ([`Report`]).
//!
//! Both serialise to JSON with units in the keys. Rates for people are bits per second; ranges are
//! half open.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

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

/// A note while the transfer runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A standing master carries the transfer out, and what follows is what it says.
    HandedOver {
        /// Number of the job there.
        job: u64,
        /// Its address.
        at: String,
    },
    /// A node answered.
    Reached {
        /// Name of the node.
        node: String,
        /// Nodes that answered so far.
        reached: usize,
        /// Nodes of the transfer.
        nodes: usize,
    },
    /// Nodes have not answered for a second or more.
    Awaiting {
        /// Their names.
        awaited: Vec<String>,
        /// Nodes that answered so far.
        reached: usize,
        /// Nodes of the transfer.
        nodes: usize,
    },
    /// Nodes are gone that the transfer cannot go on without; it waits for them. At once, and then each second.
    Waiting {
        /// Their names.
        awaited: Vec<String>,
        /// Why they are gone, or were not reached again.
        reason: String,
        /// How long they have been waited for.
        seconds: f64,
        /// Longest time; absent where there is none.
        most_seconds: Option<f64>,
    },
    /// All nodes that were waited for are back: the transfer goes on with what is missing.
    Returned {
        /// Their names.
        returned: Vec<String>,
        /// How long they were waited for.
        seconds: f64,
    },
    /// Nothing moves for a moment: files changed, or could not be read, while they were copied, and their sources are read again. As with
    /// [`Event::Returned`] all nodes are reached again for that.
    Repeating {
        /// How many, each counted once.
        files: u64,
    },
    /// ssh may ask something at the terminal, until the next event.
    Asking {
        /// Name of the node.
        node: String,
    },
    /// This program was put on a host that lacks it.
    Uploaded {
        /// Name of the node.
        node: String,
        /// Which file of the host it is, or how else it is kept.
        message: String,
    },
    /// Before the plan: a node reads the trees that are its sources; a few times a second where that takes longer than a second.
    Scanning {
        /// Name of the node.
        node: String,
        /// Names that it has looked at so far, also those that are no part of the copy.
        entries: u64,
    },
    /// The schedule is made; bytes start to flow.
    Planned {
        /// Transfer id.
        transfer: String,
        /// Bytes that will cross, each destination counted.
        bytes: u64,
        /// Files, when the sources are trees.
        files: u64,
        /// How several sources of a copy relate; absent for one source, and for rows.
        #[serde(default)]
        sources: Option<SourcesReport>,
        /// Scheduler used.
        scheduler: String,
        /// Predicted time; absent when no speed is known.
        predicted_seconds: Option<f64>,
        /// Least possible time; absent when no speed is known.
        bound_seconds: Option<f64>,
        /// Where the speeds come from.
        bound_basis: String,
    },
    /// How far it is; at most a few times a second.
    Progress {
        /// Seconds since bytes started to flow.
        seconds: f64,
        /// Safe bytes.
        delivered_bytes: u64,
        /// Bytes that came and were checked, safe or not yet; rate and time left follow them.
        #[serde(default)]
        received_bytes: u64,
        /// All wanted bytes.
        total_bytes: u64,
        /// Received bytes over the last two seconds.
        bits_per_second: f64,
        /// Expected time left; absent when nothing moves.
        eta_seconds: Option<f64>,
        /// Per receiver.
        receivers: Vec<NodeProgress>,
        /// Per sender: bytes delivered from it so far.
        senders: Vec<NodeProgress>,
        /// What held the transfer back in the last seconds, the largest share first; empty where nothing was seen.
        #[serde(default)]
        bottlenecks: Vec<BottleneckReport>,
    },
    /// A receiver compares contents of what it has with those of the sources, by hashes; about twice a second.
    Comparing {
        /// Name of the node.
        node: String,
        /// Bytes that are compared, or need not be.
        done_bytes: u64,
        /// All that are to be compared.
        total_bytes: u64,
    },
    /// Nothing moves, as a receiver waits for an earlier transfer to its destination to end, whose command was killed or lost; a few times
    /// a second.
    AwaitingEnd {
        /// Name of the node.
        node: String,
        /// The destination.
        path: String,
        /// How long it has waited.
        seconds: f64,
    },
    /// Nothing moves, as a node removes what no source has; a few times a second.
    Removing {
        /// Name of the node.
        node: String,
        /// Names that are gone.
        removed: u64,
        /// All that are to be removed.
        total: u64,
    },
    /// Something went wrong and was dealt with, or is worth knowing.
    Note {
        /// Seconds since bytes started to flow.
        seconds: f64,
        /// Plain words: node, lane, range, cause.
        message: String,
    },
    /// Of a dry run, something that a copy would do; with `--list`, something that it is about to do. Of a comparison: something that differs.
    Listed {
        /// Name of the node at whose destination it would be done; of a shared one, of the node that looked.
        node: String,
        /// What.
        change: Change,
        /// The file, link or folder, with the name of the source's folder.
        file: String,
        /// Length of a file, 0 of others.
        bytes: u64,
    },
    /// The end.
    Ended {
        /// The final report.
        report: Box<Report>,
    },
}

/// What a copy does to a name of its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A file or link is written.
    Send,
    /// A folder is made.
    Make,
    /// A file or link that no source has is removed.
    Remove,
    /// The same of a folder.
    RemoveFolder,
    /// Only the first one of a comparison has it.
    Missing,
    /// Only this one has it.
    Extra,
    /// It is a file, a folder or a link in one, and something else in the other.
    Kind,
    /// Files of different lengths.
    Size,
    /// Files of different contents, links of different targets.
    Contents,
    /// The contents are the same, and the time, the mode, the owner or other attributes are not.
    Metadata,
    /// It cannot be read.
    Unreadable,
}

/// What a comparison found, all copies together: names that differ from the first one's, by how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// Names that a copy lacks.
    pub missing: u64,
    /// Names that only a copy has.
    pub extra: u64,
    /// Names of a file, a folder or a link that are something else.
    pub kind: u64,
    /// Files of another length.
    pub size: u64,
    /// Files of other contents, and links of other targets.
    pub contents: u64,
    /// Names of other metadata and the same contents.
    pub metadata: u64,
    /// Names that cannot be read.
    pub unreadable: u64,
}

impl CheckReport {
    /// How many names differ.
    #[must_use]
    pub fn differing(&self) -> u64 {
        let all = [
            self.missing,
            self.extra,
            self.kind,
            self.size,
            self.contents,
            self.metadata,
            self.unreadable,
        ];
        all.into_iter().fold(0, u64::saturating_add)
    }
}

/// What a dry run found, all destinations together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DryRunReport {
    /// Files and links that a copy would write.
    pub send_files: u64,
    /// Lengths of these files.
    pub send_bytes: u64,
    /// Folders that it would make.
    pub make_folders: u64,
    /// Files and links that no source has, which it would remove.
    #[serde(default)]
    pub remove_files: u64,
    /// Lengths of these files.
    #[serde(default)]
    pub remove_bytes: u64,
    /// Folders that it would remove.
    #[serde(default)]
    pub remove_folders: u64,
    /// Files, links and folders that stay and that it would give another mode, time, owner or other attributes.
    #[serde(default)]
    pub set_metadata: u64,
}

/// Progress of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeProgress {
    /// Name of the node.
    pub node: String,
    /// Bytes received by it, or from it.
    pub bytes: u64,
    /// Of those that it received, the safe ones; 0 for a sender.
    #[serde(default)]
    pub safe_bytes: u64,
    /// Bytes it wants (receivers) or is planned to send (senders).
    pub total_bytes: u64,
    /// Received bytes over the last two seconds.
    pub bits_per_second: f64,
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

/// What stood where copies got their names, and what they leave out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LandingReport {
    /// Folders that stood there and that trees were merged into.
    pub merged: Vec<MergedReport>,
    /// Files and links of all destinations that took the place of others.
    pub replaced_files: u64,
    /// Files and links of all destinations that were there before, the same, and were not sent.
    #[serde(default)]
    pub unchanged_files: u64,
    /// Their bytes, which `wanted_bytes` does not count.
    #[serde(default)]
    pub unchanged_bytes: u64,
    /// Files and links of all destinations that were there before, not the same, and stay: newer ones, or all.
    #[serde(default)]
    pub kept_files: u64,
    /// Their bytes in the sources, which `wanted_bytes` does not count.
    #[serde(default)]
    pub kept_bytes: u64,
    /// Bytes of files that an earlier transfer had begun to write, which were not sent and `wanted_bytes` does not count either.
    #[serde(default)]
    pub resumed_bytes: u64,
    /// Files that an earlier transfer had begun to write, and that were not what it recorded when they were read again.
    #[serde(default)]
    pub wrong: Vec<WrongReport>,
    /// Further ones, beyond those listed.
    #[serde(default)]
    pub wrong_more: u64,
    /// Bytes of chunks that replaced files had at the same place, which were not sent and `wanted_bytes` does not count either.
    #[serde(default)]
    pub taken_bytes: u64,
    /// Files and links of all destinations that no source has, and that were removed.
    #[serde(default)]
    pub removed_files: u64,
    /// The same of folders.
    #[serde(default)]
    pub removed_folders: u64,
    /// Names that were to be removed and are still there.
    #[serde(default)]
    pub not_removed: Vec<NotRemovedReport>,
    /// Further ones, beyond those listed.
    #[serde(default)]
    pub not_removed_more: u64,
    /// Names that are complete and could not be renamed into their places, as permissions do not allow it; of a folder all in it lacks its place, too.
    #[serde(default)]
    pub not_placed: Vec<NotPlacedReport>,
    /// Further ones, beyond those listed.
    #[serde(default)]
    pub not_placed_more: u64,
    /// Set-user and set-group bits of a copy that it does not have, since it does not have the owner either.
    pub bits_not_kept: u64,
    /// Files, folders and links that were to have owner and group of the source, and have others.
    #[serde(default)]
    pub owners_not_kept: u64,
    /// Extended attributes, ACLs among them, that were to be kept, and could not be read or set.
    #[serde(default)]
    pub attributes_not_kept: u64,
    /// Names of files that were to be hard links, and are files of their own: the destination's file system cannot link.
    #[serde(default)]
    pub links_not_kept: u64,
    /// Pipes, sockets and devices that were to be kept, and could not be made.
    #[serde(default)]
    pub special_files_not_kept: u64,
    /// Temporary names of other transfers in source trees, left out.
    pub temporary_names_left_out: u64,
    /// Sockets, pipes and devices in a source tree, left out.
    pub special_files_left_out: u64,
}

/// A file that an earlier transfer left, and that is not what it recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrongReport {
    /// Name of the node.
    pub node: String,
    /// With the name of the source's folder.
    pub file: String,
    /// How many bytes were not taken over for that: `wanted_bytes` counts them.
    pub bytes: u64,
}

/// Something that no source has and could not be removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotRemovedReport {
    /// Name of the node.
    pub node: String,
    /// With the name of the source's folder.
    pub file: String,
    /// Why, in words.
    pub reason: String,
}

/// Something that is complete and could not be renamed into its place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotPlacedReport {
    /// Name of the node.
    pub node: String,
    /// Its path at the destination.
    pub file: String,
    /// Why, in words.
    pub reason: String,
}

/// A folder that stood at a destination.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergedReport {
    /// Name of the node.
    pub node: String,
    /// The folder.
    pub path: String,
    /// Files and links that are new there.
    pub added_files: u64,
    /// Files and links that took the place of others.
    pub replaced_files: u64,
    /// Files and links that were there, the same, and stay.
    #[serde(default)]
    pub unchanged_files: u64,
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
    /// Nodes whose speed sets the bound.
    pub binding: Vec<String>,
    /// False when it is a lower one only: a speed is not known, or caps of pairs and trunks were left out.
    pub is_exact: bool,
}

/// What held a transfer back for a part of its time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BottleneckReport {
    /// What it was.
    pub cause: BottleneckCause,
    /// The node, of a pair the sender, or the name of a trunk; absent for what is of no node.
    pub node: Option<String>,
    /// Of a pair, the receiver.
    pub peer: Option<String>,
    /// Of losses over one of several rails of a pair, that one: the sender's interface and address, and the receiver's address.
    #[serde(default)]
    pub rail: Option<String>,
    /// Of the whole time, 0 to 1.
    pub share: f64,
}

/// Rates and causes over time, from the first grant on: at most 240 points of one or more seconds, the last one shorter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimelineReport {
    /// Names of the nodes whose rates the points have, in their order; empty where there are more than 64: then a point has the sum.
    pub nodes: Vec<String>,
    /// What happened, in order.
    pub points: Vec<PointReport>,
}

/// A second, or several.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PointReport {
    /// Its end.
    pub seconds: f64,
    /// Its length.
    pub length_seconds: f64,
    /// What others received from each node.
    pub sent_bits_per_second: Vec<f64>,
    /// What each node received.
    pub received_bits_per_second: Vec<f64>,
    /// What held the transfer back in it, the largest share of it first.
    pub bottlenecks: Vec<BottleneckReport>,
}

/// What can hold a transfer back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BottleneckCause {
    /// Reaching nodes, opening and planning.
    #[default]
    Starting,
    /// Comparing contents at a receiver.
    Comparing,
    /// Finding peers and opening streams.
    Opening,
    /// Reading a source.
    SourceDisk,
    /// Hashing, encrypting and copying at a sender.
    SenderProcessor,
    /// The declared or measured speed of a sender.
    SenderRate,
    /// What lies between two nodes.
    Path,
    /// Buffers or windows of two hosts.
    Window,
    /// Losses between two nodes.
    Loss,
    /// A declared trunk or cap of a pair.
    Trunk,
    /// Round trips: a sender was not asked for enough ahead.
    RoundTrips,
    /// The declared or measured speed of a receiver.
    ReceiverRate,
    /// Checking, decrypting, hashing and copying at a receiver.
    ReceiverProcessor,
    /// Writing a sink.
    SinkDisk,
    /// A full disk of a receiver.
    Space,
    /// Making bytes safe, and giving files their names, after the last byte was received.
    Syncing,
    /// The limit of the transfer.
    Limit,
    /// A node that did not answer for 2 s or more: its host, agent or network.
    Silence,
    /// The process of the command did not run for 2 s or more: it was stopped, or its host was.
    Absence,
    /// Other nodes, whose agents were not asked: only of what one agent knows of a transfer, in `top`.
    Peers,
}

/// One node's part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Name of the node.
    pub node: String,
    /// Bytes others received from it.
    pub sent_bytes: u64,
    /// Bytes safe in its sinks.
    pub received_bytes: u64,
    /// Processor time of the agent for this transfer (all its threads; an agent that serves several
    /// transfers counts them all).
    pub processor_seconds: f64,
    /// Largest resident memory of the agent.
    pub resident_max_bytes: u64,
    /// Most bytes in one second, as a rate.
    pub best_bits_per_second: f64,
    /// What ended the node's part early.
    pub error: Option<String>,
    /// What the kernel said last of the TCP connections on which it sends; absent where there were none.
    #[serde(default)]
    pub network: Option<NetworkReport>,
}

/// What the kernel said of the TCP connections on which a node sends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NetworkReport {
    /// Connections that were open then.
    pub streams: u32,
    /// Mean round trip over them.
    pub round_trip_seconds: f64,
    /// The least one seen, that of an empty path.
    pub least_round_trip_seconds: f64,
    /// Payload of a full segment.
    pub segment_bytes: u32,
    /// Data segments sent, those sent again included.
    pub segments: u64,
    /// Of these, those sent again.
    pub repeated_segments: u64,
    /// Bytes on their way that windows or buffers of the hosts allow a stream; 0 where they were not the limit.
    pub window_bytes: u32,
}

/// One sender-receiver pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairReport {
    /// Name of the sender.
    pub sender: String,
    /// Name of the receiver.
    pub receiver: String,
    /// Lane kind.
    pub lane: String,
    /// Which of the two connected: `direct` (the receiver), `reversed` (the sender), or `through this host`.
    #[serde(default)]
    pub way: String,
    /// The receiver's interface and both ends' addresses; a pair has one row for each. `None` within a host.
    pub rail: Option<String>,
    /// Streams in the lane.
    pub streams: u32,
    /// Delivered bytes.
    pub bytes: u64,
    /// Damaged units.
    pub corrupt_units: u64,
    /// Mean over its streams of the time spent blocked on the peer or the network.
    pub waiting_seconds: f64,
    /// Datagrams received and needed; 0 on other lanes.
    #[serde(default)]
    pub datagrams: u64,
    /// Datagrams that were lacking after a round, and asked for again.
    #[serde(default)]
    pub datagrams_again: u64,
    /// What else a lane of datagrams saw; `None` on other lanes.
    #[serde(default)]
    pub blast: Option<BlastReport>,
}

/// What the receiving end of a lane of datagrams saw.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BlastReport {
    /// Datagrams sent, repeated ones among them, that are missing.
    pub lost_datagrams: u64,
    /// Of these, those that the receiving socket had no space for: sequence numbers that went missing while its counter of
    /// drops moved, which counts merged packets.
    pub dropped_datagrams: u64,
    /// Datagrams received twice, late or damaged, or were not the peer's.
    pub stray_datagrams: u64,
    /// How often the monitor asked the sender to suspend.
    pub suspensions: u32,
    /// Processor time of the monitor's threads.
    pub monitor_processor_seconds: f64,
    /// Times between datagrams while any were due.
    pub arrival_gaps: GapReport,
    /// Times between units that became whole: when there was data to use.
    pub delivery_gaps: GapReport,
}

/// Gaps between events: the middle one, one in a hundred, and the longest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GapReport {
    /// Half of all gaps are no longer; up to a quarter too long.
    pub median_seconds: f64,
    /// 99 % are no longer; up to a quarter too long.
    pub p99_seconds: f64,
    /// Exactly.
    pub longest_seconds: f64,
}

/// Control messages of a transfer. Plan messages are what CEP section 4.2 counts (four, about 1 KB a node).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlReport {
    /// Nodes.
    pub nodes: u64,
    /// Open, opened, plan, revision, done, finish, finished.
    pub plan_messages: u64,
    /// Their bytes before encryption, length prefixes included.
    pub plan_bytes: u64,
    /// Credentials.
    pub handshake_bytes: u64,
    /// Periodic status.
    pub status_messages: u64,
    /// Their bytes.
    pub status_bytes: u64,
    /// All bytes through the pipes to agents that the command started (ssh's standard input and output), both ways: control
    /// messages, bytes of nodes that cannot connect to each other, and what frames them.
    pub pipe_bytes: u64,
    /// Bytes of nodes that cannot connect to each other, which went through the command's host, each counted once.
    pub bridged_bytes: u64,
    /// All that control connections sent, from the first to the last packet, as the master's interface counts it:
    /// handshakes, TLS, and the headers of packets. Pipes are counted apart.
    #[serde(default)]
    pub wire_sent_bytes: u64,
    /// The same, received.
    #[serde(default)]
    pub wire_received_bytes: u64,
    /// Packets of control connections, both ways; none for pipes.
    #[serde(default)]
    pub wire_packets: u64,
}
