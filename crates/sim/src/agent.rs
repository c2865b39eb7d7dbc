//! One agent: what it does on each control message.
//!
//! What it receives is driven by the machine of the agents' own, in [`Receiver`].

use ropewalk_model::{Instant, Nanos, RangeSet};
use ropewalk_proto::control::{self, Opened, OpenedSource, Plan, ToAgent, from_agent, to_agent};
use ropewalk_proto::node::{End, Failure, Life};

use crate::ended::Mended;
use crate::mail::Mail;
use crate::network::Network;
use crate::receiver::{Carried, Receiver};
use crate::scenario::Scenario;
use crate::ways::Ways;

/// What an agent acts upon.
pub(crate) struct Around<'a> {
    pub now: Instant,
    pub scenario: &'a Scenario,
    pub network: &'a mut Network,
    pub mail: &'a mut Mail,
    pub ways: &'a Ways,
    pub dead: &'a [bool],
}

/// One agent. See the module documentation.
pub(crate) struct Agent {
    node: u32,
    receiver: Option<Box<Receiver>>,
    disk_full: bool,
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
            over: false,
            done_at: None,
        }
    }

    /// Asserts what must be true between two steps.
    pub fn check(&self) {
        if let Some(receiver) = &self.receiver {
            receiver.machine.check();
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
            to_agent::Body::Plan(plan) => self.take_plan(&plan, around),
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
                .map(|source| OpenedSource {
                    identities: vec![identity; source.source.rows.len()],
                    ..OpenedSource::default()
                })
                .collect(),
            ..Opened::default()
        }
    }

    fn take_plan(&mut self, plan: &Plan, around: &mut Around<'_>) {
        let scenario = around.scenario;
        if scenario.nodes[self.node as usize].sinks.is_empty() {
            return;
        }
        let receiver = Receiver::new(self.node, plan, scenario, around.now);
        self.receiver = Some(Box::new(receiver));
        if self.disk_full {
            self.fail(around);
        }
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

    /// What it has that others can rely on: nothing after it failed.
    pub fn delivered(&self) -> RangeSet {
        let receiver = self.receiver.as_deref();
        let is_done = self.is_done();
        let receiver = receiver.filter(|r| is_done || r.machine.failure().is_none());
        receiver.map_or_else(RangeSet::new, |r| r.delivered.clone())
    }

    /// The rate of a connection is another one now. Returns when the agent has to be woken for it.
    pub fn set_rate(&mut self, owner: u32, rate: f64, now: Instant) -> Option<Instant> {
        let receiver = self.receiver.as_deref_mut()?;
        receiver.set_rate(owner, rate, now)
    }

    /// What crossed to it.
    pub fn carried(&self) -> Carried {
        let receiver = self.receiver.as_deref();
        receiver.map_or_else(Carried::default, |receiver| receiver.carried)
    }

    /// What became of its ways that failed.
    pub fn mended(&self) -> Mended {
        let receiver = self.receiver.as_deref();
        receiver.map_or_else(Mended::default, |receiver| receiver.mended)
    }

    /// Takes in what was received, asks for more, and says what there is to say. Returns when it has to be called
    /// again, if nothing else happens.
    pub fn progress(&mut self, around: &mut Around<'_>) -> Option<Instant> {
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
