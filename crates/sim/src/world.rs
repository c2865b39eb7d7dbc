//! The loop of virtual time around coordinator, agents and network.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::{
    ByteRate, Instant, Link, Nanos, NodeSet, Problem, RangeMap, RangeSet, ReceiverRun,
    receiver_runs, relay_runs, verify_relays,
};
use ropewalk_proto::control::{Options, Same, ToAgent, to_agent};
use ropewalk_proto::coordinator::{
    Action, Coordinator, Destinations, Incomplete, Mapping, NodeSetup, Planned, PlannedRun,
    Purpose, Rails, Relay, Setup, Sources,
};
use ropewalk_proto::node::Held;
use ropewalk_proto::report::Outcome;
use ropewalk_sched::{AUTO, PlanError, Scheduler};

use crate::SECOND;
use crate::agent::{Agent, Around};
use crate::chance::Chance;
use crate::disk::Disk;
use crate::ended::Ended;
use crate::mail::Mail;
use crate::network::Network;
use crate::scenario::{Change, Event, Scenario, Speed};
use crate::ways::Ways;

mod over;

/// Shortest time between two status messages of an agent, as the agents have it.
const STATUS_TIME_MIN: Nanos = Nanos::from_millis(100);

/// All machines are checked once in so many steps, and as much rarer as there are more nodes than
/// [`NODES_CHECKED`]; after each call they check themselves.
const STEPS_BETWEEN: usize = 32;

/// Control messages of a node that are under way at most: statuses, and what each of its peers changes.
const MAIL_MAX: usize = 200;

/// See [`STEPS_BETWEEN`].
const NODES_CHECKED: usize = 16;

pub(crate) struct World<'a> {
    now: Instant,
    scenario: &'a Scenario,
    scheduler: Box<dyn Scheduler>,
    coordinator: Coordinator,
    agents: Vec<Agent>,
    dead: Vec<bool>,
    network: Network,
    mail: Mail,
    ways: Ways,
    // The script in order of time, and how much of it is past.
    script: Vec<Event>,
    played: usize,
    // True speeds, and until when nodes are paused.
    speeds: Vec<Speed>,
    paused: BTreeMap<u32, Instant>,
    // Agents to wake by step; `wake_at` holds the earliest one of each, others are stale.
    wakes: BTreeMap<Instant, Vec<u32>>,
    wake_at: Vec<Option<Instant>>,
    // Agents by when they send their next status.
    statuses: BTreeMap<Instant, Vec<u32>>,
    left_behind: Vec<(u32, RangeSet)>,
    next_tick_at: Instant,
    ignored: u64,
    notes: Vec<String>,
    end: Option<(Outcome, Option<String>)>,
    disks: &'a mut BTreeMap<u32, Disk>,
    bases: BTreeMap<u32, u64>,
    // What receivers have that hand on, and which of them lie.
    held: BTreeMap<u32, (Held, RangeMap<u32>)>,
    lying: BTreeSet<u32>,
    chance: Chance,
    // Nodes that sleep, with the messages that they find when they wake; the master, too.
    asleep: BTreeMap<u32, (Instant, Vec<ToAgent>)>,
    master_sleeps_until: Instant,
    is_master_dead: bool,
}

impl<'a> World<'a> {
    pub fn new(scenario: &'a Scenario, disks: &'a mut BTreeMap<u32, Disk>) -> Self {
        let count = scenario.nodes.len();
        let joining = scenario
            .script
            .iter()
            .filter(|event| event.change == Change::Joins)
            .map(|event| event.node as usize);
        let present = joining.min().unwrap_or(count);
        let setup = Setup {
            transfer: vec![1; 16],
            nodes: scenario.nodes[..present].to_vec(),
            mapping: match &scenario.trees {
                None => Mapping::Rows,
                Some(trees) => Mapping::Trees {
                    sources: Sources::Auto,
                    destinations: trees.destinations,
                },
            },
            limit: scenario.limit,
            options: options(scenario),
            rails: Rails::default(),
            tune: None,
            lessons: Vec::new(),
            incomplete: match scenario.trees {
                None => Incomplete::Removed,
                Some(_) => Incomplete::WholeFiles,
            },
            filter: Vec::new(),
            files: None,
            links: links(scenario),
            source_name: String::new(),
            relay: scenario.relay,
        };
        let mut script = scenario.script.clone();
        script.sort_by_key(|event| event.after);
        let scheduler = ropewalk_sched::by_name(&scenario.scheduler);
        Self {
            now: Instant::ZERO,
            scheduler: scheduler.unwrap_or_else(|error| panic!("{error}")),
            coordinator: Coordinator::new(setup, Instant::ZERO),
            agents: (0..count as u32).map(Agent::new).collect(),
            dead: vec![false; count],
            network: network(scenario),
            mail: Mail::new(
                scenario.latencies.clone(),
                scenario.jitter,
                Chance::new(scenario.seed ^ 0x6d61_696c),
            ),
            ways: Ways::new(scenario.rails, scenario.has_tunnel),
            script,
            played: 0,
            speeds: scenario.speeds.clone(),
            paused: BTreeMap::new(),
            wakes: BTreeMap::new(),
            wake_at: vec![None; count],
            statuses: BTreeMap::new(),
            left_behind: Vec::new(),
            next_tick_at: Instant::ZERO,
            ignored: 0,
            notes: Vec::new(),
            end: None,
            disks,
            bases: BTreeMap::new(),
            held: BTreeMap::new(),
            lying: BTreeSet::new(),
            chance: Chance::new(scenario.seed ^ 0x6469_736b),
            asleep: BTreeMap::new(),
            master_sleeps_until: Instant::ZERO,
            is_master_dead: false,
            scenario,
        }
    }

    pub fn run(mut self) -> Ended {
        self.coordinator.start(Instant::ZERO);
        self.act();
        let end_at = Instant::ZERO + self.scenario.time_max;
        while self.end.is_none() && !self.is_master_dead && self.now < end_at {
            self.step();
        }
        if self.scenario.trees.is_some() {
            self.close();
        }
        self.ended()
    }

    fn step(&mut self) {
        let second = self.now.0 / SECOND.0;
        self.now += self.scenario.step_time;
        if self.now.0 / SECOND.0 > second {
            self.network.vary();
        }
        self.play();
        self.deliver();
        self.wake_due();
        self.share();
        self.send_statuses();
        if self.now >= self.master_sleeps_until && !self.is_master_dead {
            for (node, message) in self.mail.for_master(self.now) {
                if !self.dead[node as usize] && self.end.is_none() {
                    self.mail.count_received(node, &message, self.now);
                    self.coordinator.handle_message(node, message, self.now);
                    self.act();
                }
            }
            if self.now >= self.next_tick_at && self.end.is_none() {
                self.next_tick_at = self.now + self.scenario.tick_time;
                self.coordinator.handle_timer(self.now);
                self.act();
            }
        }
        self.check();
    }

    /// Messages arrive at agents.
    fn deliver(&mut self) {
        let woken = self
            .asleep
            .iter()
            .filter(|(_, (until, _))| *until <= self.now);
        let woken: Vec<u32> = woken.map(|(&node, _)| node).collect();
        let mut arrived = Vec::new();
        for node in woken {
            self.network.set_speed(node, self.speeds[node as usize]);
            let held = self.asleep.remove(&node).map(|(_, held)| held);
            arrived.extend(
                held.unwrap_or_default()
                    .into_iter()
                    .map(|held| (node, held)),
            );
            self.wake_no_later(node, self.now);
        }
        arrived.extend(self.mail.for_agents(self.now));
        for (node, message) in arrived {
            if self.dead[node as usize] {
                continue;
            }
            if let Some((_, held)) = self.asleep.get_mut(&node) {
                held.push(message);
                continue;
            }
            if matches!(message.body, Some(to_agent::Body::Open(_))) {
                self.begin_statuses(node);
            }
            let (agents, mut around) = self.split(node);
            agents[node as usize].hear(message, &mut around);
            self.wake(node);
        }
    }

    /// Asserts what must be true of all machines after a step, now and then.
    fn check(&self) {
        let steps = self.now.0 / self.scenario.step_time.0;
        let between = STEPS_BETWEEN * (self.agents.len() / NODES_CHECKED).max(1);
        if cfg!(debug_assertions) && steps.is_multiple_of(between as u64) {
            self.coordinator.check();
            self.agents
                .iter()
                .for_each(|agent| agent.check(self.scenario));
            let most = MAIL_MAX * self.agents.len();
            assert!(
                self.mail.len() <= most,
                "{} messages under way",
                self.mail.len()
            );
        }
    }

    /// The number of the disk that a node writes to.
    fn disk_of(&self, node: u32) -> u32 {
        let trees = self.scenario.trees.as_ref();
        trees.map_or(node, |trees| trees.disk_of(node))
    }

    fn split(&mut self, node: u32) -> (&mut Vec<Agent>, Around<'_>) {
        let disk_of = self.disk_of(node);
        let around = Around {
            now: self.now,
            scenario: self.scenario,
            network: &mut self.network,
            mail: &mut self.mail,
            ways: &self.ways,
            dead: &self.dead,
            paused: &self.paused,
            disks: &mut *self.disks,
            disk_of,
            bases: &self.bases,
            held: &self.held,
            lying: &self.lying,
        };
        (&mut self.agents, around)
    }

    /// Plays what the script has for this time.
    fn play(&mut self) {
        let resumed = self.paused.iter().filter(|(_, until)| **until <= self.now);
        let resumed: Vec<u32> = resumed.map(|(&node, _)| node).collect();
        for node in resumed {
            self.paused.remove(&node);
            self.network.set_speed(node, self.speeds[node as usize]);
        }
        while let Some(&event) = self.script.get(self.played) {
            if Instant::ZERO + event.after > self.now {
                break;
            }
            self.played += 1;
            let node = event.node;
            if self.dead[node as usize] {
                continue;
            }
            match event.change {
                Change::Joins | Change::Leaves if self.has_no_master() => {}
                Change::Speed(speed) => {
                    self.speeds[node as usize] = speed;
                    if !self.paused.contains_key(&node) {
                        self.network.set_speed(node, speed);
                    }
                }
                Change::PausedUntil(until) => {
                    let until = Instant::ZERO + until;
                    let end = self.paused.entry(node).or_insert(until);
                    *end = until.max(*end);
                    self.network.set_speed(node, Speed::both(0.0));
                }
                Change::Dies => self.die(node, false),
                Change::LosesPower => self.die(node, true),
                Change::SleepsUntil(until) => {
                    let until = Instant::ZERO + until;
                    let sleep = self.asleep.entry(node).or_insert((until, Vec::new()));
                    sleep.0 = until.max(sleep.0);
                    self.network.set_speed(node, Speed::both(0.0));
                }
                Change::MasterSleepsUntil(until) => {
                    self.master_sleeps_until = Instant::ZERO + until;
                }
                Change::MasterDies => self.is_master_dead = true,
                Change::Lies => drop(self.lying.insert(node)),
                Change::Stops => {
                    let (agents, mut around) = self.split(node);
                    agents[node as usize].stop(&mut around);
                }
                Change::StreamsBreak { sender } => self.break_streams(node, sender, None),
                Change::RailFails {
                    sender,
                    rail,
                    until,
                    is_silent,
                } => {
                    self.ways.fail((node, sender, rail), Instant::ZERO + until);
                    match is_silent {
                        true => self.wake(node),
                        false => self.break_streams(node, sender, Some(rail)),
                    }
                }
                Change::ConnectRefused { sender, until } => {
                    self.ways.refuse(node, sender, Instant::ZERO + until);
                }
                Change::Joins => {
                    let setup = self.scenario.nodes[node as usize].clone();
                    match self.coordinator.handle_join(setup, self.now) {
                        Ok(number) => assert_eq!(number, node, "nodes join in their order"),
                        Err(_) => self.ignored += 1,
                    }
                    self.act();
                }
                Change::Leaves => {
                    let name = &self.scenario.nodes[node as usize].name;
                    let refused = self.coordinator.handle_leave(name, self.now);
                    self.ignored += u64::from(refused.is_err());
                    self.act();
                }
            }
        }
    }

    fn has_no_master(&self) -> bool {
        self.end.is_some() || self.is_master_dead
    }

    fn break_streams(&mut self, node: u32, sender: u32, rail: Option<u32>) {
        let (agents, mut around) = self.split(node);
        agents[node as usize].break_streams(sender, rail, &mut around);
        self.wake(node);
    }

    fn die(&mut self, node: u32, loses_power: bool) {
        self.dead[node as usize] = true;
        self.asleep.remove(&node);
        if self.scenario.trees.is_some() {
            let number = self.disk_of(node);
            let disk = self.disks.entry(number).or_default();
            let trees = self.scenario.trees.as_ref();
            let is_own = trees.is_none_or(|trees| trees.destinations == Destinations::Copies);
            match loses_power {
                true => disk.lose_power(node, is_own, &mut self.chance),
                false => disk.release(node),
            }
        }
        // What was on its way from it is gone at once; its receivers notice at the next step.
        self.network.set_speed(node, Speed::both(0.0));
        for receiver in self.network.served_by(node).collect::<Vec<_>>() {
            self.wake_no_later(receiver, self.now);
        }
        let agent = &mut self.agents[node as usize];
        agent.hang_up(&mut self.network);
        // What it told the master is safe stays safe; the rest of its files is nobody's.
        if agent.is_done() {
            self.left_behind.push((node, agent.delivered()));
        }
        if !self.has_no_master() {
            self.coordinator.handle_lost(node, "killed", self.now);
            self.act();
        }
    }

    /// Carries out what the coordinator wants.
    fn act(&mut self) {
        while let Some(action) = self.coordinator.poll_action() {
            match action {
                Action::Send(node, message) => {
                    self.learn_base(node, &message);
                    self.mail.send_to_agent(node, message, self.now);
                }
                Action::Plan(purpose, problem) => {
                    let planned = plan(&problem, self.scheduler.as_ref(), &purpose);
                    assert!(
                        purpose.first || planned.is_ok(),
                        "a re-plan failed: {planned:?}"
                    );
                    let planned = planned.map_err(|error| error.to_string());
                    self.coordinator.handle_planned(&purpose, planned, self.now);
                }
                Action::Note(text) => self.notes.push(text),
                Action::Compare(manifests) => {
                    // No two trees have a path in common.
                    let numbers = manifests.iter().map(|(_, _, list)| list[0].into());
                    self.coordinator.handle_compared(Ok(numbers.collect()));
                }
                Action::End(outcome, error) => self.end = Some((outcome, error)),
                _ => {}
            }
        }
    }

    /// Where a sender's tree begins. It serves nothing before it knows that, which is not simulated.
    fn learn_base(&mut self, node: u32, message: &ToAgent) {
        let bases = match &message.body {
            Some(to_agent::Body::Plan(plan)) => &plan.source_bases,
            Some(to_agent::Body::Look(look)) => &look.source_bases,
            _ => return,
        };
        if let Some(base) = bases.first() {
            self.bases.insert(node, *base);
        }
    }

    fn wake(&mut self, node: u32) {
        let (agents, mut around) = self.split(node);
        let next_at = agents[node as usize].progress(&mut around);
        if self.scenario.relay == Relay::Auto {
            let held = self.agents[node as usize].held();
            self.held.insert(node, held);
        }
        if let Some(next_at) = next_at {
            self.wake_no_later(node, next_at);
        }
    }

    /// Sees to it that the agent is woken at the first step not before `at`; never in this step again.
    fn wake_no_later(&mut self, node: u32, at: Instant) {
        let at = at.max(self.now + Nanos(1));
        let step = self.scenario.step_time;
        let at = Instant::ZERO + step * at.0.div_ceil(step.0);
        let wake_at = &mut self.wake_at[node as usize];
        if wake_at.is_none_or(|before| at < before) {
            *wake_at = Some(at);
            self.wakes.entry(at).or_default().push(node);
        }
    }

    fn wake_due(&mut self) {
        while let Some(first) = self.wakes.first_entry().filter(|e| *e.key() <= self.now) {
            let (at, nodes) = first.remove_entry();
            for node in nodes {
                if self.wake_at[node as usize] != Some(at) {
                    continue;
                }
                self.wake_at[node as usize] = None;
                match self.asleep.get(&node) {
                    _ if self.dead[node as usize] => {}
                    Some((until, _)) => self.wake_no_later(node, *until),
                    None => self.wake(node),
                }
            }
        }
    }

    /// Shares the speeds among the lanes that are busy now.
    fn share(&mut self) {
        for ((node, lane), rate) in self.network.settle() {
            let next_at = self.agents[node as usize].set_rate(lane, rate, self.now);
            if let Some(next_at) = next_at {
                self.wake_no_later(node, next_at);
            }
        }
    }

    /// Time between two statuses of an agent.
    fn status_time(&self) -> Nanos {
        let milliseconds = self.scenario.options.status_milliseconds;
        Nanos::from_millis(milliseconds.into()).max(STATUS_TIME_MIN)
    }

    /// Agents start at different times, so that their messages do not come all at once.
    fn begin_statuses(&mut self, node: u32) {
        let spread = u64::from(node).wrapping_mul(7919) % 100;
        let first_at = self.now + self.status_time() * (spread + 1) / 100;
        self.statuses.entry(first_at).or_default().push(node);
    }

    fn send_statuses(&mut self) {
        while let Some(first) = self.statuses.first_entry().filter(|e| *e.key() <= self.now) {
            let (at, nodes) = first.remove_entry();
            for node in nodes {
                if let Some((until, _)) = self.asleep.get(&node) {
                    self.statuses.entry(*until).or_default().push(node);
                    continue;
                }
                let beat = self.agents[node as usize].beat();
                let next_at = at + beat.unwrap_or(self.status_time());
                let body = self.agents[node as usize].status(self.now);
                let Some(body) = body.filter(|_| !self.dead[node as usize]) else {
                    continue;
                };
                // Without a master it is not sent, and what was observed for it is what lanes go by.
                if !self.is_master_dead {
                    self.mail.send_to_master(node, body, self.now);
                }
                self.statuses.entry(next_at).or_default().push(node);
            }
        }
    }
}

fn network(scenario: &Scenario) -> Network {
    let chance = Chance::new(scenario.seed ^ 0x6c61_6e65);
    let network = Network::new(&scenario.speeds).unequal(scenario.share_spread, chance);
    match scenario.trunk {
        Some((behind, rate)) => network.trunk(behind, rate),
        None => network,
    }
}

/// The trunk, where it is declared.
fn links(scenario: &Scenario) -> Vec<Link> {
    let declared = scenario.trunk.filter(|_| scenario.declares_trunk);
    let link = declared.map(|(behind, rate)| {
        let (near, far) = scenario.nodes.split_at(behind as usize);
        let named = |nodes: &[NodeSetup]| NodeSet {
            nodes: nodes.iter().map(|node| node.name.clone()).collect(),
            ..NodeSet::default()
        };
        Link {
            trunk: Some("wan".to_owned()),
            rate: ByteRate(rate as u64),
            from: named(near),
            to: named(far),
        }
    });
    link.into_iter().collect()
}

/// Files of rows have no disk here, which could have something of an earlier transfer.
fn options(scenario: &Scenario) -> Options {
    let mut options = scenario.options;
    if scenario.trees.is_none() {
        options.set_same(Same::Sent);
    }
    options
}

/// As the master's driver plans, without the bound.
fn plan(
    problem: &Problem,
    scheduler: &dyn Scheduler,
    purpose: &Purpose,
) -> Result<Planned, PlanError> {
    let schedule = scheduler.plan(problem)?;
    ropewalk_model::verify(problem, &schedule)
        .unwrap_or_else(|error| panic!("the schedule is wrong: {error}"));
    let seconds = schedule.predicted_seconds(problem);
    if scheduler.name() == AUTO
        && let Some((plan, _)) =
            ropewalk_sched::gaining_relays(problem, seconds, purpose.is_guess, &purpose.sites)?
    {
        verify_relays(problem, &plan.schedule)
            .unwrap_or_else(|error| panic!("the schedule with relays is wrong: {error}"));
        return Ok(Planned {
            runs: planned_runs(relay_runs(problem, &plan.schedule, purpose.spares)),
            scheduler: scheduler.name().into(),
            is_near_bound: true,
            predicted_seconds: plan.seconds,
            ..Planned::default()
        });
    }
    Ok(Planned {
        runs: planned_runs(receiver_runs(problem, &schedule, purpose.spares)),
        scheduler: scheduler.name().into(),
        is_near_bound: scheduler.is_near_bound(),
        predicted_seconds: seconds,
        ..Planned::default()
    })
}

fn planned_runs(runs: Vec<Vec<ReceiverRun>>) -> Vec<Vec<PlannedRun>> {
    let of_receiver = |runs: Vec<ReceiverRun>| runs.into_iter().map(PlannedRun::from).collect();
    runs.into_iter().map(of_receiver).collect()
}
