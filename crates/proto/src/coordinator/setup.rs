//! What the coordinator gets at the start, free of how agents are reached.

use ropewalk_model::{ByteRate, Link, Range};

use crate::control;

/// One transfer.
#[derive(Clone, Debug)]
pub struct Setup {
    /// 16 bytes, unique.
    pub transfer: Vec<u8>,
    /// Nodes in any order; their position is their number.
    pub nodes: Vec<NodeSetup>,
    /// How objects relate to the data space.
    pub mapping: Mapping,
    /// Limit over all receivers.
    pub limit: Option<ByteRate>,
    /// What every agent gets.
    pub options: control::Options,
    /// Which interfaces carry data.
    pub rails: Rails,
    /// What chooses the number of streams while bytes flow; `None`: nothing does.
    pub tune: Option<ropewalk_tuner::PolicyName>,
    /// What earlier transfers taught the policy, one line each.
    pub lessons: Vec<String>,
    /// What becomes of a copy that is not complete at the end.
    pub incomplete: Incomplete,
    /// What pairs and trunks are declared to carry; their nodes by name.
    pub links: Vec<Link>,
    /// Which entries of trees are part of the copy: the first rule that matches decides.
    pub filter: Vec<control::FilterRule>,
    /// All that is copied of trees, where not all of them is.
    pub files: Option<control::FileList>,
    /// The name of the sources' folder or file, when all have one; files of reports are named below it.
    pub source_name: String,
    /// Whether receivers hand bytes on.
    pub relay: Relay,
}

/// Whether receivers hand on what they have to others that want it, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Relay {
    /// Original holders send all copies.
    #[default]
    Off,
    /// Where the plan gains enough by it.
    Auto,
}

impl Relay {
    /// As options write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Auto => "auto",
        }
    }
}

/// What becomes of a copy that is not complete at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Incomplete {
    /// Files that lack no byte get their names; what was written of the others is removed.
    #[default]
    WholeFiles,
    /// All of it is removed.
    Removed,
    /// All of it stays under its temporary name.
    Kept,
}

/// Which interfaces carry data between two hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Rails {
    /// All that reach each other.
    #[default]
    All,
    /// The first that does.
    One,
    /// On every host those with one of these names or addresses, or in one of these networks (`10.0.0.0/8`).
    Only(Vec<String>),
}

impl Rails {
    /// The names, addresses and networks; empty where all are meant.
    #[must_use]
    pub fn only(&self) -> &[String] {
        match self {
            Self::Only(only) => only,
            Self::All | Self::One => &[],
        }
    }
}

/// One node.
#[derive(Clone, Debug)]
pub struct NodeSetup {
    /// Name in reports.
    pub name: String,
    /// What it holds.
    pub sources: Vec<SourceSetup>,
    /// What it wants.
    pub sinks: Vec<SinkSetup>,
    /// Declared sending speed.
    pub up: Option<ByteRate>,
    /// Declared receiving speed.
    pub down: Option<ByteRate>,
    /// Sending speed seen in earlier transfers: a hint where none is declared, never a
    /// base of the bound.
    pub remembered_up: Option<ByteRate>,
    /// The same for receiving.
    pub remembered_down: Option<ByteRate>,
    /// Interfaces that it may use, as in [`Rails::Only`]; those of all nodes when empty.
    pub interfaces: Vec<String>,
    /// It is a process on the host of the command: its paths need no name of a host.
    pub is_here: bool,
    /// Where the command reaches it: an address, which need not be one of its interfaces', and a port where that is its
    /// agent's.
    pub reached_at: Option<(core::net::IpAddr, Option<u16>)>,
}

impl NodeSetup {
    /// Sending speed to plan with at first; `None` when nobody knows.
    pub(super) fn told_up(&self) -> Option<ByteRate> {
        self.up.or(self.remembered_up).filter(|rate| rate.0 > 0)
    }

    /// The same for receiving.
    pub(super) fn told_down(&self) -> Option<ByteRate> {
        self.down.or(self.remembered_down).filter(|rate| rate.0 > 0)
    }
}

/// Something a node holds.
#[derive(Clone, Debug)]
pub struct SourceSetup {
    /// What the agent gets.
    pub source: control::Source,
    /// Where a tree or pattern begins in the data space; set when it is laid out.
    pub base: u64,
}

/// Something a node wants.
#[derive(Clone, Debug)]
pub struct SinkSetup {
    /// What the agent gets.
    pub sink: control::Sink,
    /// Shared destination, if any.
    pub destination: Option<String>,
}

/// How objects relate to the data space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// Every object is a whole tree, file or pattern; the coordinator lays them out (`copy`).
    Trees {
        /// How several sources relate.
        sources: Sources,
        /// How several destinations relate.
        destinations: Destinations,
    },
    /// Every object has explicit rows (`transfer`).
    Rows,
}

/// How several sources relate to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sources {
    /// Same paths, sizes and times: replicas; disjoint paths: parts; anything else is refused. The `copy` command asks for
    /// it only where different hosts name their source alike; callers of the library judge for themselves.
    #[default]
    Auto,
    /// All hold the same data; refused when they differ.
    Replicas,
    /// Each holds a part; refused when two hold the same path.
    Parts,
}

impl Sources {
    /// As options write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Replicas => "replicas",
            Self::Parts => "parts",
        }
    }
}

/// How several destinations relate to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Destinations {
    /// Each gets a whole copy.
    #[default]
    Copies,
    /// They share one file system: together they write one copy.
    Shared,
}

impl Destinations {
    /// As options write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Copies => "copies",
            Self::Shared => "shared",
        }
    }
}

pub(super) fn open_message(setup: &Setup, state: &NodeSetup, node: u32) -> control::Open {
    control::Open {
        transfer: setup.transfer.clone(),
        node,
        sources: state.sources.iter().map(|s| s.source.clone()).collect(),
        sinks: state.sinks.iter().map(|s| s.sink.clone()).collect(),
        options: Some(setup.options),
        rails: match state.interfaces.is_empty() {
            true => setup.rails.only().to_vec(),
            false => state.interfaces.clone(),
        },
        one_rail: setup.rails == Rails::One,
        name: state.name.clone(),
        is_near_master: state.is_here,
        filter: setup.filter.clone(),
        files: setup.files.clone().filter(|_| !state.sources.is_empty()),
    }
}

/// Data-space ranges of rows.
pub(super) fn row_ranges(rows: &[control::Row]) -> impl Iterator<Item = Range> + '_ {
    rows.iter().map(|row| control::range(row.start, row.length))
}
