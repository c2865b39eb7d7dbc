//! A copy from a seed, and the transfers that it takes.

use std::collections::BTreeMap;

use ropewalk_model::Nanos;
use ropewalk_proto::control::{Sink, Source, Verify, sink, source};
use ropewalk_proto::coordinator::{Destinations, NodeSetup, SinkSetup, SourceSetup};
use ropewalk_proto::node::Syncs;
use ropewalk_sim::{Chance, Change, MS, Scenario, Speed, TreeFile, Trees, node};

/// Transfers of one copy at most; in the last one nothing fails.
const TRANSFERS_MAX: u64 = 4;

/// Faults of a transfer at most.
const FAULTS_MAX: u64 = 6;

/// One copy: what is copied from where to where.
pub struct Job {
    chance: Chance,
    seed: u64,
    pub transfers: u64,
    done: u32,
    trees: Vec<Vec<TreeFile>>,
    senders: u32,
    receivers: u32,
    destinations: Destinations,
    verify: Verify,
    // From the start to when most of a transfer is over.
    span: Nanos,
    speeds: Vec<Speed>,
}

impl Job {
    pub fn new(seed: u64) -> Self {
        let mut chance = Chance::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        // Numbers near zero begin alike.
        for _ in 0..4 {
            chance.below(2);
        }
        let parts = 1 + chance.below(2) as usize;
        let magnitude = 12 + chance.below(12);
        let tree = |part: usize, chance: &mut Chance| {
            let files = 0..1 + chance.below(5);
            let file = |at| {
                let below = magnitude - chance.below(6);
                TreeFile {
                    path: format!("{part}/f{at}"),
                    len: 1 + chance.below(1 << below),
                    number: 0,
                }
            };
            files.map(file).collect::<Vec<_>>()
        };
        let trees: Vec<Vec<TreeFile>> = (0..parts).map(|part| tree(part, &mut chance)).collect();
        let senders = parts as u32 + chance.below(3) as u32;
        let receivers = 1 + chance.below(3) as u32;
        let destinations = match chance.below(2) {
            0 => Destinations::Copies,
            _ => Destinations::Shared,
        };
        let verify = [Verify::Fragment, Verify::Tree, Verify::Sink][chance.below(3) as usize];
        let count = senders + receivers;
        let speeds: Vec<Speed> = (0..count)
            .map(|_| Speed::both((1 + chance.below(20)) as f64 * 2e5))
            .collect();
        let bytes: u64 = trees.iter().flatten().map(|file| file.len).sum();
        let slowest = speeds
            .iter()
            .map(|speed| speed.up)
            .fold(f64::INFINITY, f64::min);
        let span = MS * 500 + Nanos::from_seconds(bytes as f64 / slowest);
        Self {
            transfers: 2 + chance.below(TRANSFERS_MAX - 1),
            done: 0,
            chance,
            seed,
            trees,
            senders,
            receivers,
            destinations,
            verify,
            span,
            speeds,
        }
    }

    /// All files as they are now.
    pub fn files(&self) -> Vec<TreeFile> {
        self.trees.iter().flatten().cloned().collect()
    }

    pub fn is_read_back(&self) -> bool {
        self.verify == Verify::Sink
    }

    fn receiver_numbers(&self) -> std::ops::Range<u32> {
        self.senders..self.senders + self.receivers
    }

    /// Disks that the copy is written to.
    pub fn disks(&self) -> impl Iterator<Item = u32> + use<> {
        match self.destinations {
            Destinations::Shared => 0..1,
            Destinations::Copies => self.receiver_numbers(),
        }
    }

    /// Nodes that write to a disk.
    pub fn receivers_of(&self, disk: u32) -> impl Iterator<Item = u32> + use<> {
        match self.destinations {
            Destinations::Shared => self.receiver_numbers(),
            Destinations::Copies => disk..disk + 1,
        }
    }

    /// Its next transfer. Between two of them a file may change.
    pub fn next(&mut self, is_last: bool) -> Scenario {
        if self.done > 0 && self.chance.below(4) == 0 {
            self.change_a_file();
        }
        self.done += 1;
        let nodes = (0..self.senders + self.receivers).map(|number| self.node(number));
        let mut scenario = Scenario::new(nodes.collect(), self.speeds.clone());
        let count = scenario.nodes.len() as u64;
        let chance = &mut self.chance;
        scenario.scheduler = "greedy".into();
        scenario.options.verify = self.verify.into();
        scenario.options.streams = 1 + chance.below(3) as u32;
        scenario.options.prefetch = 1 << (18 + chance.below(4));
        scenario.rails = 1 + chance.below(2) as u32;
        scenario.has_tunnel = chance.below(3) == 0;
        scenario.latencies = (0..count).map(|_| chance.below(100) * MS).collect();
        scenario.jitter = chance.below(100) * MS;
        scenario.sync_time = chance.below(100) * MS;
        scenario.syncs = Syncs {
            every: (20 + chance.below(500)) * MS,
            bytes: 1 << (18 + chance.below(8)),
        };
        scenario.seed = self.seed ^ u64::from(self.done) << 48;
        if chance.below(2) > 0 {
            scenario = scenario.declared();
        }
        let held = (0..self.senders).map(|at| (at, at as usize % self.trees.len()));
        scenario.trees = Some(Trees {
            trees: self.trees.clone(),
            held: held.collect::<BTreeMap<_, _>>(),
            destinations: self.destinations,
            transfer: self.done,
        });
        // Receivers that hand on are chosen apart from what else is drawn.
        if self.seed.is_multiple_of(3) {
            scenario = scenario.relayed();
            scenario.scheduler = "auto".into();
        }
        if !is_last {
            for _ in 0..self.chance.below(FAULTS_MAX + 1) {
                scenario = self.fault(scenario);
            }
        }
        scenario
    }

    fn node(&self, number: u32) -> NodeSetup {
        let mut setup = node(format!("n{number}"), &[], &[], None);
        if number < self.senders {
            setup.sources.push(SourceSetup {
                source: Source {
                    kind: Some(source::Kind::Tree(b"/from".to_vec())),
                    rows: Vec::new(),
                },
                base: 0,
            });
        } else {
            setup.sinks.push(SinkSetup {
                sink: Sink {
                    kind: Some(sink::Kind::Tree(b"/to".to_vec())),
                    shared: self.destinations == Destinations::Shared,
                    ..Sink::default()
                },
                destination: None,
            });
        }
        setup
    }

    fn change_a_file(&mut self) {
        let tree = self.chance.below(self.trees.len() as u64) as usize;
        let files = &mut self.trees[tree];
        let at = self.chance.below(files.len() as u64) as usize;
        match self.chance.below(4) {
            // One that is gone shifts the others.
            0 if files.len() > 1 => drop(files.remove(at)),
            1 => files[at].len = 1 + self.chance.below(files[at].len * 2),
            _ => {}
        }
        if let Some(file) = files.get_mut(at) {
            file.number += 1;
        }
    }

    /// With one fault more.
    fn fault(&mut self, scenario: Scenario) -> Scenario {
        let chance = &mut self.chance;
        let after = Nanos(chance.below(self.span.0));
        let until = after + chance.below(6000) * MS;
        let sender = chance.below(self.senders.into()) as u32;
        let receiver = self.senders + chance.below(self.receivers.into()) as u32;
        let any = chance.below(u64::from(self.senders + self.receivers)) as u32;
        let (node, change) = match chance.below(14) {
            0 => (any, Change::Dies),
            1 => (receiver, Change::Dies),
            2 | 3 => (receiver, Change::LosesPower),
            4 => (any, Change::PausedUntil(until)),
            5 => (any, Change::SleepsUntil(until)),
            6 => (0, Change::MasterSleepsUntil(until)),
            7 | 8 => (0, Change::MasterDies),
            9 => (receiver, Change::Stops),
            10 => (receiver, Change::ConnectRefused { sender, until }),
            11 => {
                let is_silent = chance.below(2) > 0;
                let rail = chance.below(scenario.rails.into()) as u32;
                let fails = Change::RailFails {
                    sender,
                    rail,
                    until,
                    is_silent,
                };
                (receiver, fails)
            }
            12 => {
                let speed = Speed::both((1 + chance.below(20)) as f64 * 2e5);
                (any, Change::Speed(speed))
            }
            _ => (receiver, Change::StreamsBreak { sender }),
        };
        scenario.then(after, node, change)
    }
}
