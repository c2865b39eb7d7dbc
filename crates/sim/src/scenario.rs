//! What is simulated: nodes, their true speeds, and what happens to them.

use std::collections::BTreeMap;

use ropewalk_model::{ByteRate, Nanos, Range};
use ropewalk_proto::control::{Options, Row, Sink, Source, Verify};
use ropewalk_proto::coordinator::{NodeSetup, Relay, SinkSetup, SourceSetup};
use ropewalk_proto::node::Syncs;

use crate::copy::Trees;
use crate::disk::Disk;
use crate::ended::Ended;
use crate::world::World;
use crate::{MS, SECOND};

/// True speed of a node in bytes per second; both directions at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Sending.
    pub up: f64,
    /// Receiving.
    pub down: f64,
}

impl Speed {
    /// The same both ways.
    #[must_use]
    pub fn both(bytes_per_second: f64) -> Self {
        Self {
            up: bytes_per_second,
            down: bytes_per_second,
        }
    }
}

/// What happens to a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// Its true speed is this from now on.
    Speed(Speed),
    /// It neither sends nor receives data until so long after the start; control messages go on.
    PausedUntil(Nanos),
    /// Its process is gone, and its control connection closes. What it wrote is in its host's memory and reaches the disk.
    Dies,
    /// As [`Change::Dies`], with its host: any part of what it has not synced is lost.
    LosesPower,
    /// It does nothing until so long after the start, as a process that is stopped, or a host that sleeps: its clock jumps.
    SleepsUntil(Nanos),
    /// The same of the master, whatever the node.
    MasterSleepsUntil(Nanos),
    /// The master is gone, whatever the node: the nodes end.
    MasterDies,
    /// Its connections from this sender break. Others can be made at once.
    StreamsBreak {
        /// Number of the sender.
        sender: u32,
    },
    /// A rail from this sender to it carries nothing, and connects nothing, until then.
    RailFails {
        /// Number of the sender.
        sender: u32,
        /// Number of the rail; see [`Scenario::rails`].
        rail: u32,
        /// Time from the start.
        until: Nanos,
        /// Nobody says so: connections over it stay. Else they break at once.
        is_silent: bool,
    },
    /// This sender accepts no new connections from it until then.
    ConnectRefused {
        /// Number of the sender.
        sender: u32,
        /// Time from the start.
        until: Nanos,
    },
    /// Its disk is full: as receiver it stops and says so; what it holds is served on.
    Stops,
    /// It answers from now on; before, it does not exist for the master. Nodes join in the order of their numbers.
    Joins,
    /// The master is asked to let it go.
    Leaves,
    /// It hands on wrong bytes from now on.
    Lies,
}

/// One line of the script.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// So long after the start of the transfer.
    pub after: Nanos,
    /// Number of the node.
    pub node: u32,
    /// What.
    pub change: Change,
}

/// One transfer to simulate. Fields may be set before [`Scenario::run`].
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The nodes as the master gets them; nodes that join later are last.
    pub nodes: Vec<NodeSetup>,
    /// True speed of each node at the start.
    pub speeds: Vec<Speed>,
    /// True limits between a sender and a receiver (node numbers), bytes per second.
    pub pair_caps: BTreeMap<(u32, u32), f64>,
    /// A trunk: the first node behind it, as all after that, and its bytes per second each way.
    pub trunk: Option<(u32, f64)>,
    /// Whether the trunk is declared to the master, by its name "wan", in the direction of the nodes behind it.
    pub declares_trunk: bool,
    /// Round trip of a packet over the trunk, in microseconds; 0: as short as others. Nodes measure it.
    pub trunk_trip_microseconds: u32,
    /// Rails between any two nodes, numbered from 0. They share the nodes' speeds.
    pub rails: u32,
    /// Where no rail connects, data goes through the command's host; its way counts as a rail after the others.
    pub has_tunnel: bool,
    /// Name of the scheduler, as `ropewalk_sched::by_name` knows it.
    pub scheduler: String,
    /// What every agent gets; `fixed` keeps the first plan.
    pub options: Options,
    /// Limit over all receivers.
    pub limit: Option<ByteRate>,
    /// What happens, in any order.
    pub script: Vec<Event>,
    /// One way for a control message, by node.
    pub latencies: Vec<Nanos>,
    /// From a call to the first grant on a lane.
    pub connect_time: Nanos,
    /// What a receiver takes to make everything safe at its end.
    pub sync_time: Nanos,
    /// Length of a step of virtual time. Agents learn of things, and rates change, at steps only.
    pub step_time: Nanos,
    /// How often the coordinator sees time pass (the master's driver does so each 100 ms).
    pub tick_time: Nanos,
    /// A transfer that has not ended after so long hangs.
    pub time_max: Nanos,
    /// Trees that are copied to disks, instead of rows to nowhere; see [`Scenario::run_on`].
    pub trees: Option<Trees>,
    /// When received bytes of trees are synced.
    pub syncs: Syncs,
    /// A control message takes up to so much longer. Those of one connection keep their order.
    pub jitter: Nanos,
    /// What of unsynced writes a power cut leaves, and how much longer messages take.
    pub seed: u64,
    /// Whether receivers hand on what they have.
    pub relay: Relay,
    /// How long what a receiver announces is on its way to another.
    pub announcement_time: Nanos,
    /// Lanes that share a link get parts of it that are up to so many times as large, or as small, as an equal one, and others each
    /// second; 1 where all are equal.
    pub share_spread: f64,
}

impl Scenario {
    /// A transfer between nodes of these speeds, with the defaults of a local network: 5 ms for a control message,
    /// 20 ms to connect a lane, 30 ms to sync, steps of 10 ms, and an end after 2000 s. The scheduler is `auto`.
    ///
    /// # Panics
    /// When there is not one speed for each node.
    #[must_use]
    pub fn new(nodes: Vec<NodeSetup>, speeds: Vec<Speed>) -> Self {
        assert_eq!(nodes.len(), speeds.len(), "one speed for each node");
        let latencies = vec![5 * MS; nodes.len()];
        Self {
            nodes,
            speeds,
            pair_caps: BTreeMap::new(),
            trunk: None,
            declares_trunk: false,
            trunk_trip_microseconds: 0,
            rails: 1,
            has_tunnel: false,
            scheduler: "auto".into(),
            options: Options {
                prefetch: 4 << 20,
                streams: 1,
                verify: Verify::Fragment.into(),
                status_milliseconds: 500,
                ..Options::default()
            },
            limit: None,
            script: Vec::new(),
            latencies,
            connect_time: 20 * MS,
            sync_time: 30 * MS,
            step_time: 10 * MS,
            tick_time: 100 * MS,
            time_max: 2000 * SECOND,
            trees: None,
            syncs: Syncs::default(),
            jitter: Nanos::ZERO,
            seed: 0,
            relay: Relay::Off,
            announcement_time: Nanos::ZERO,
            share_spread: 1.0,
        }
    }

    /// Declares the true speeds to the master.
    #[must_use]
    pub fn declared(mut self) -> Self {
        for (node, speed) in self.nodes.iter_mut().zip(&self.speeds) {
            node.up = Some(ByteRate(speed.up as u64));
            node.down = Some(ByteRate(speed.down as u64));
        }
        self
    }

    /// Receivers hand on what they have, where that gains; units have hashes.
    #[must_use]
    pub fn relayed(mut self) -> Self {
        self.relay = Relay::Auto;
        self.options.set_verify(Verify::Tree);
        self
    }

    /// What a node measures as the round trip to another one, in microseconds.
    pub(crate) fn trip(&self, from: u32, to: u32) -> u32 {
        const NEAR: u32 = 100;
        let behind = self.trunk.map_or(u32::MAX, |(behind, _)| behind);
        match (from >= behind) == (to >= behind) {
            true => NEAR,
            false => NEAR + self.trunk_trip_microseconds,
        }
    }

    /// As a network of real connections: what they get of a link differs by up to so many times, and announcements take 20 ms.
    #[must_use]
    pub fn uneven(mut self, spread: f64, seed: u64) -> Self {
        (self.share_spread, self.seed) = (spread, seed);
        self.announcement_time = 20 * MS;
        self
    }

    /// Adds a line to the script: so long after the start.
    #[must_use]
    pub fn then(mut self, after: Nanos, node: u32, change: Change) -> Self {
        self.script.push(Event {
            after,
            node,
            change,
        });
        self
    }

    /// Runs it. Cost O(units moved × log nodes) plus what the coordinator costs.
    ///
    /// # Panics
    /// When a scheduler gives a wrong plan, a re-plan fails, or a byte is delivered twice to one node: faults of
    /// the code under test.
    #[must_use]
    pub fn run(&self) -> Ended {
        self.run_on(&mut BTreeMap::new())
    }

    /// As [`Scenario::run`], of trees: writes to disks that have what earlier transfers left.
    ///
    /// * `disks`: by the number of their node; number 0 is that of a shared destination.
    ///
    /// # Panics
    /// As [`Scenario::run`], and where a byte counts as safe that is not on stable storage, or is wrong.
    #[must_use]
    pub fn run_on(&self, disks: &mut BTreeMap<u32, Disk>) -> Ended {
        World::new(self, disks).run()
    }
}

/// A node with rows of one file: what it holds, and what it wants with the name of the destination that it
/// shares, if it does. No speed is declared.
#[must_use]
pub fn node(
    name: impl Into<String>,
    holds: &[Range],
    wants: &[Range],
    destination: Option<&str>,
) -> NodeSetup {
    let rows = |ranges: &[Range]| {
        let row = |range: &Range| Row {
            object: b"/f".to_vec(),
            object_offset: range.start,
            start: range.start,
            length: range.len(),
        };
        ranges.iter().map(row).collect::<Vec<_>>()
    };
    let source = |ranges: &[Range]| SourceSetup {
        source: Source {
            kind: None,
            rows: rows(ranges),
        },
        base: 0,
    };
    let sink = |ranges: &[Range]| SinkSetup {
        sink: Sink {
            kind: None,
            rows: rows(ranges),
            shared: destination.is_some(),
            ..Sink::default()
        },
        destination: destination.map(str::to_owned),
    };
    NodeSetup {
        name: name.into(),
        sources: (!holds.is_empty())
            .then(|| source(holds))
            .into_iter()
            .collect(),
        sinks: (!wants.is_empty())
            .then(|| sink(wants))
            .into_iter()
            .collect(),
        up: None,
        down: None,
        remembered_up: None,
        remembered_down: None,
        interfaces: Vec::new(),
        is_here: false,
        reached_at: None,
    }
}
