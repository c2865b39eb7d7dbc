//! One agent: what it does on each control message.
//!
//! What it receives is driven by the machine of the agents' own, in [`Receiver`].

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::journal::Adopt;
use ropewalk_model::{Instant, Nanos, Range, RangeMap, RangeSet};
use ropewalk_proto::control::{
    self, Opened, OpenedSource, Plan, ToAgent, Verify, from_agent, to_agent,
};
use ropewalk_proto::coordinator::{Destinations, Relay};
use ropewalk_proto::node::{End, Failure, Held, Life};

use crate::copy::{Found, Sink, sent_mark};
use crate::disk::{Disk, Mark};

use crate::ended::Mended;
use crate::mail::Mail;
use crate::network::Network;
use crate::receiver::{Carried, Receiver};
use crate::scenario::Scenario;
use crate::ways::Ways;

mod ending;

use ending::{Closing, Order};

/// What an agent acts upon.
pub(crate) struct Around<'a> {
    pub now: Instant,
    pub scenario: &'a Scenario,
    pub network: &'a mut Network,
    pub mail: &'a mut Mail,
    pub ways: &'a Ways,
    pub dead: &'a [bool],
    /// Nodes that send and take nothing, and until when.
    pub paused: &'a BTreeMap<u32, Instant>,
    /// Disks by number, and that of this agent.
    pub disks: &'a mut BTreeMap<u32, Disk>,
    pub disk_of: u32,
    /// Where the trees of senders begin in the data space.
    pub bases: &'a BTreeMap<u32, u64>,
    /// What receivers that hand on have, and the holders that this is from.
    pub held: &'a BTreeMap<u32, (Held, RangeMap<u32>)>,
    /// Those of them that hand on wrong bytes.
    pub lying: &'a BTreeSet<u32>,
}

impl Around<'_> {
    /// The disk that this agent writes to.
    pub fn disk(&mut self) -> &mut Disk {
        self.disks.entry(self.disk_of).or_default()
    }

    /// What a sender sends of these bytes; a receiver that hands on has what a holder sent it, or lies.
    pub fn sent_mark(&self, sink: &Sink, sender: u32, range: Range) -> Mark {
        let Some(trees) = self.scenario.trees.as_ref() else {
            return 0;
        };
        let of = |holder: u32| {
            let base = self.bases.get(&holder).copied().unwrap_or(0);
            sent_mark(trees, holder, base, sink, range)
        };
        let found = match trees.held.contains_key(&sender) {
            true => of(sender),
            false => trees.held.keys().find_map(|holder| of(*holder)),
        };
        let mark = found.unwrap_or_else(|| {
            panic!("node {sender} is asked for {range}, which it does not have")
        });
        mark ^ u64::from(self.lying.contains(&sender))
    }
}

/// One agent. See the module documentation.
pub(crate) struct Agent {
    node: u32,
    receiver: Option<Box<Receiver>>,
    disk_full: bool,
    // What it has looked at, before there is a plan; whether the answer was sent.
    looked: Option<(Sink, bool)>,
    // What another node of a shared copy has found.
    there: Option<RangeSet>,
    // Its plan says that it names whole files when the master is gone.
    names_whole_files: bool,
    closing: Option<Closing>,
    // It had its last message: no status any more.
    over: bool,
    /// When it last said that it was done without error.
    pub done_at: Option<Instant>,
}

impl Agent {
    pub fn new(node: u32) -> Self {
        Self {
            node,
            receiver: None,
            disk_full: false,
            looked: None,
            there: None,
            names_whole_files: false,
            closing: None,
            over: false,
            done_at: None,
        }
    }

    /// Asserts what must be true between two steps.
    pub fn check(&self, scenario: &Scenario) {
        if let Some(receiver) = &self.receiver {
            receiver.machine.check();
            receiver.check_in_transit(scenario);
        }
    }

    fn tell(&self, body: from_agent::Body, around: &mut Around<'_>) {
        around.mail.send_to_master(self.node, body, around.now);
    }

    /// Takes a message of the master. Call [`Agent::progress`] after it.
    pub fn hear(&mut self, message: ToAgent, around: &mut Around<'_>) {
        let Some(body) = message.body else { return };
        match body {
            to_agent::Body::Open(_) => {
                let opened = self.opened(around.scenario);
                self.tell(from_agent::Body::Opened(opened), around);
            }
            to_agent::Body::Probe(probe) if probe != control::Probe::default() => {
                let trips = probe
                    .landmarks
                    .iter()
                    .map(|peer| around.scenario.trip(self.node, peer.node));
                let probed = control::Probed {
                    trips: trips.collect(),
                    ..control::Probed::default()
                };
                self.tell(from_agent::Body::Probed(probed), around);
            }
            to_agent::Body::Plan(plan) => self.take_plan(&plan, around),
            to_agent::Body::ManifestQuery(query) => {
                let trees = around.scenario.trees.as_ref();
                let held = trees.and_then(|trees| trees.list_of(self.node));
                let reply = control::ManifestReply {
                    manifest: held.unwrap_or_default(),
                    source: query.source,
                };
                self.tell(from_agent::Body::ManifestReply(reply), around);
            }
            to_agent::Body::Look(look) => self.look(&look, around),
            to_agent::Body::There(there) => {
                let known = self.there.get_or_insert_default();
                *known = known.union(&control::range_set(&there.ranges));
                *known = known.union(&control::range_set(&there.adopted));
            }
            to_agent::Body::Finish(finish) if around.scenario.trees.is_some() => {
                let order = Order {
                    commits: finish.commit,
                    whole_files: finish.whole_files,
                    keeps_more: !finish.interrupted,
                    end: End {
                        discards: finish.discard,
                        discards_shared: true,
                    },
                    answers: true,
                };
                self.close(order, around);
            }
            to_agent::Body::Finish(finish) => {
                self.over = true;
                if let Some(receiver) = self.receiver.as_deref_mut() {
                    receiver.machine.handle_end(End {
                        discards: finish.discard,
                        discards_shared: finish.discard,
                    });
                }
                self.hang_up(around.network);
                let finished = control::Finished {
                    committed: finish.commit,
                    usage: Some(usage()),
                    ..control::Finished::default()
                };
                self.tell(from_agent::Body::Finished(finished), around);
            }
            // Manifests and queries are not simulated; a newer master may say more than is known here.
            body => self.hear_on(&body, around),
        }
    }

    /// As a real agent's answer in length.
    fn opened(&self, scenario: &Scenario) -> Opened {
        let [_, a, b, c] = self.node.to_be_bytes();
        let identity = control::Identity {
            length: 1 << 40,
            ..control::Identity::default()
        };
        let sources = scenario.nodes[self.node as usize].sources.iter();
        Opened {
            instance: format!("{:016x}", self.node),
            addresses: vec![format!("10.{a}.{b}.{c}:7420")],
            sources: sources
                .map(|source| {
                    scenario
                        .trees
                        .as_ref()
                        .and_then(|t| t.opened(self.node))
                        .unwrap_or_else(|| OpenedSource {
                            identities: vec![identity; source.source.rows.len()],
                            ..OpenedSource::default()
                        })
                })
                .collect(),
            hands_on: scenario.relay == Relay::Auto
                && !scenario.nodes[self.node as usize].sinks.is_empty(),
            ..Opened::default()
        }
    }

    fn take_plan(&mut self, plan: &Plan, around: &mut Around<'_>) {
        let scenario = around.scenario;
        if scenario.nodes[self.node as usize].sinks.is_empty() {
            return;
        }
        let looked = self.looked.take().map(|(sink, _)| sink);
        let sink = looked.or_else(|| {
            let trees = scenario.trees.as_ref()?;
            let leads = self.there.is_none().then(|| adopt(scenario));
            let leads = leads.filter(|_| trees.destinations == Destinations::Copies);
            Some(Sink::new(
                self.node,
                trees,
                &plan.parts,
                leads,
                around.disk(),
            ))
        });
        self.names_whole_files = plan.commit && plan.whole_files;
        let receiver = Receiver::new(self.node, plan, sink, scenario, around.now);
        self.receiver = Some(Box::new(receiver));
        if self.disk_full {
            self.fail(around);
        }
    }

    /// Looks what of a shared copy is there; the answer follows when what was left is taken over.
    fn look(&mut self, look: &control::Look, around: &mut Around<'_>) {
        if let Some(trees) = around.scenario.trees.as_ref().filter(|_| look.decides) {
            let adopt = Some(adopt(around.scenario));
            let sink = Sink::new(self.node, trees, &look.parts, adopt, around.disk());
            self.looked = Some((sink, false));
        }
    }

    /// Does what is under way at the beginning and at the end. Returns when to be called again, if it does something.
    fn attend(&mut self, around: &mut Around<'_>) -> Option<Instant> {
        let next_at = around.now + around.scenario.step_time;
        if let Some(closing) = &self.closing {
            if closing.until > around.now {
                return Some(closing.until);
            }
            self.end_closing(around);
            return None;
        }
        if let Some((sink, is_told)) = self.looked.as_mut().filter(|(_, is_told)| !is_told) {
            if sink.prepare(around.disk()) {
                return Some(next_at);
            }
            *is_told = true;
            let present = present(&sink.found_there(), true);
            self.tell(from_agent::Body::Present(present), around);
        }
        let receiver = self.receiver.as_deref_mut();
        if let Some(receiver) = receiver.filter(|receiver| receiver.is_preparing()) {
            let there = self.there.clone().unwrap_or_default();
            let Some(found) = receiver.prepare(&there, around) else {
                return Some(next_at);
            };
            if self.there.is_none() {
                self.tell(from_agent::Body::Present(present(&found, false)), around);
            }
        }
        None
    }

    fn hear_on(&mut self, body: &to_agent::Body, around: &mut Around<'_>) {
        let Some(receiver) = self.receiver.as_deref_mut() else {
            return;
        };
        let answer = receiver.hear(body, around.now);
        if receiver.machine.life() == Life::Fetching {
            self.done_at = None;
        }
        if let Some(answer) = answer {
            self.tell(answer, around);
        }
        if self.disk_full {
            self.fail(around);
        }
    }

    /// Time between its statuses, when it is not what all have.
    pub fn beat(&self) -> Option<Nanos> {
        self.receiver.as_deref()?.machine.beat()
    }

    /// Connections from a sender break, over one rail or all. Call [`Agent::progress`] after it.
    pub fn break_streams(&mut self, sender: u32, rail: Option<u32>, around: &mut Around<'_>) {
        if let Some(receiver) = self.receiver.as_deref_mut() {
            receiver.break_streams(sender, rail, around);
        }
    }

    /// The disk is full: the node says so, unless it was done, and fetches nothing more.
    pub fn stop(&mut self, around: &mut Around<'_>) {
        self.disk_full = true;
        self.fail(around);
    }

    fn fail(&mut self, around: &mut Around<'_>) {
        self.hang_up(around.network);
        let Some(receiver) = self.receiver.as_deref_mut() else {
            return;
        };
        let text = "no space is left".to_owned();
        receiver.machine.handle_failed(Failure::Other(text));
        self.report(around);
    }

    /// Sends the report, if there is one to send.
    fn report(&mut self, around: &mut Around<'_>) {
        let machine = self.receiver.as_deref_mut().map(|r| &mut r.machine);
        if let Some(done) = machine.and_then(|machine| machine.take_done(around.now)) {
            if done.error.is_empty() {
                self.done_at = Some(around.now);
            }
            let done = with_details(done);
            self.tell(from_agent::Body::Done(done), around);
        }
    }

    /// Closes all lanes for good.
    pub fn hang_up(&mut self, network: &mut Network) {
        let Some(receiver) = self.receiver.as_deref_mut() else {
            return;
        };
        receiver.hang_up(network);
    }

    /// The periodic message; `None` when it is past that.
    pub fn status(&mut self, now: Instant) -> Option<from_agent::Body> {
        if self.over {
            return None;
        }
        let Some(receiver) = self.receiver.as_deref_mut() else {
            let status = control::SenderStatus::default();
            return Some(from_agent::Body::SenderStatus(status));
        };
        Some(from_agent::Body::Status(receiver.machine.status(now)))
    }

    /// What others may have from it, and the holders that this is from.
    pub fn held(&self) -> (Held, RangeMap<u32>) {
        let machine = self.receiver.as_deref().map(|receiver| &receiver.machine);
        machine.map_or_else(Default::default, |machine| {
            (machine.held(), machine.fetch().origins().clone())
        })
    }

    /// What it has that others can rely on: nothing after it failed.
    pub fn delivered(&self) -> RangeSet {
        let receiver = self.receiver.as_deref();
        let is_done = self.is_done();
        let receiver = receiver.filter(|r| is_done || r.machine.failure().is_none());
        receiver.map_or_else(RangeSet::new, |r| r.delivered.clone())
    }

    /// Of trees: what it received, by path.
    pub fn received(&self) -> BTreeMap<String, RangeSet> {
        let receiver = self.receiver.as_deref();
        let sink = receiver.and_then(|receiver| Some((receiver.sink.as_ref()?, receiver)));
        sink.map_or_else(BTreeMap::new, |(sink, receiver)| {
            sink.by_path(&receiver.delivered)
        })
    }

    /// The rate of a connection is another one now. Returns when the agent has to be woken for it.
    pub fn set_rate(&mut self, owner: u32, rate: f64, now: Instant) -> Option<Instant> {
        let receiver = self.receiver.as_deref_mut()?;
        receiver.set_rate(owner, rate, now)
    }

    /// What crossed to it.
    pub fn carried(&self) -> Carried {
        let receiver = self.receiver.as_deref();
        receiver.map_or_else(Carried::default, |receiver| receiver.carried.clone())
    }

    /// What became of its ways that failed.
    pub fn mended(&self) -> Mended {
        let receiver = self.receiver.as_deref();
        receiver.map_or_else(Mended::default, |receiver| receiver.mended)
    }

    /// Takes in what was received, asks for more, and says what there is to say. Returns when it has to be called
    /// again, if nothing else happens.
    pub fn progress(&mut self, around: &mut Around<'_>) -> Option<Instant> {
        if let Some(next_at) = self.attend(around) {
            return Some(next_at);
        }
        if self.over || self.disk_full {
            return None;
        }
        let (next_at, needs) = self.receiver.as_deref_mut()?.progress(around);
        for need in needs {
            self.tell(from_agent::Body::Need(need), around);
        }
        loop {
            let (task_at, reports) = self.receiver.as_deref_mut()?.keep_safe(around);
            match reports {
                true => self.report(around),
                false => return next_at.into_iter().chain(task_at).min(),
            }
        }
    }

    /// Whether it has reported that it is done, without error.
    pub fn is_done(&self) -> bool {
        self.done_at.is_some()
    }
}

/// What is adopted where the sink is read back, and where not.
fn adopt(scenario: &Scenario) -> Adopt {
    match scenario.options.verify() {
        Verify::Sink => Adopt::Hashed,
        _ => Adopt::All,
    }
}

fn present(found: &Found, last: bool) -> control::Present {
    control::Present {
        ranges: control::stretches(&found.unchanged),
        adopted: control::stretches(&found.adopted),
        last,
        ..control::Present::default()
    }
}

/// As a real agent's report in length.
fn with_details(done: control::Done) -> control::Done {
    let pairs = done.pairs.into_iter().filter(|pair| pair.delivered > 0);
    control::Done {
        pairs: pairs
            .map(|pair| control::PairDone {
                streams: 1,
                lane: "tcp".into(),
                waiting: 1_000_000_000,
                ..pair
            })
            .collect(),
        root: vec![0; 32],
        usage: Some(usage()),
        ..done
    }
}

/// As long as a real one.
fn usage() -> control::Usage {
    control::Usage {
        processor: 1_000_000_000,
        resident_max: 32 << 20,
    }
}
