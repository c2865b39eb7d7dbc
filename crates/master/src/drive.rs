//! Runs one round of a transfer: sockets and clock around the coordinator.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_lane::tls::TlsError;
use ropewalk_model::{
    ByteRate, Problem, ReceiverRun, VerifyError, receiver_runs, relay_runs, time,
};
use ropewalk_proto::control::ToAgent;
use ropewalk_proto::coordinator::{
    Action, Complete, Coordinator, Earlier, Gone, NodeSetup, Planned, PlannedRun, Purpose,
};
use ropewalk_proto::report::{ControlReport, ErrorKind, Event, Outcome, Report};
use ropewalk_sched::{AUTO, Bound, RelayPlan};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;

use crate::adviser::Adviser;
use crate::compare;
use crate::connections::{Connections, Input, Issuer};
use crate::link::{count_received, count_sent};
use crate::members::{Asked, Command, Doorman, MembersError, Party, Unanswered};
use crate::reach::{self, Ranks, Reached};
use crate::report::{self, ProgressMeter};
use crate::request::{NodeRequest, Reach, Request, Sources, Tokens};
use crate::setup::{Before, node_setup, setup};
use crate::sharing::Sharing;
use crate::speeds::{self, Observations};

/// How often the coordinator sees time pass.
const TICK: Duration = Duration::from_millis(100);

/// Time between two progress events.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// Time after which there is one although no node has reported: the rate of nodes that have stopped falls to 0.
const PROGRESS_WITHIN: Duration = Duration::from_secs(1);

/// Ends a transfer from outside. Clones share one switch.
#[derive(Clone, Debug)]
pub struct Cancel(Arc<watch::Sender<Wish>>);

/// How a transfer is to end before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    None,
    Cancel,
    /// It will be asked for again.
    Later,
}

impl Default for Cancel {
    fn default() -> Self {
        Self::new()
    }
}

impl Cancel {
    /// A switch that is not thrown.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Wish::None)))
    }

    /// Throws the switch: the transfer ends within a second.
    pub fn cancel(&self) {
        self.0.send_replace(Wish::Cancel);
    }

    /// As [`cancel`](Self::cancel), of a transfer that will be asked for again: as where one has failed, less of what is safe is removed
    /// (`KEPT_MIN_FAILED` of the journals). After [`cancel`](Self::cancel) nothing changes.
    pub fn put_off(&self) {
        self.0.send_if_modified(|wish| {
            let is_first = *wish == Wish::None;
            if is_first {
                *wish = Wish::Later;
            }
            is_first
        });
    }

    /// Whether it was thrown.
    pub fn is_cancelled(&self) -> bool {
        *self.0.borrow() != Wish::None
    }

    /// Completes once it is cancelled.
    pub async fn cancelled(&self) {
        let mut seen = self.0.subscribe();
        // The sender lives as long as `self`.
        let _ = seen.wait_for(|wish| *wish != Wish::None).await;
    }
}

struct Driver {
    coordinator: Coordinator,
    connections: Connections,
    doorman: Doorman,
    issuer: Issuer,
    adviser: Adviser,
    sharing: Sharing,
    // Grows with the nodes that join, in order of their numbers.
    request: Request,
    control: ControlReport,
    events: UnboundedSender<Event>,
    began: Instant,
    sources: Sources,
    meter: ProgressMeter,
    progress_due: bool,
    end: Option<(Outcome, Option<String>)>,
    // Names of nodes that were released.
    departed: Vec<String>,
    transfer: String,
    // Said when bytes begin to flow.
    basis: Option<String>,
}

/// What this one leaves.
#[derive(Debug, Default)]
pub(crate) struct After {
    pub observations: Observations,
    pub lessons: Option<Vec<String>>,
    /// Bytes have begun to move.
    pub has_moved: bool,
    /// Nodes that are gone and would be needed.
    pub gone: Vec<Gone>,
    /// Something is missing that holders refused, which are there.
    pub has_refused: bool,
    /// What its nodes had.
    pub earlier: Earlier,
    /// Receivers whose own copies are complete.
    pub complete: Vec<Complete>,
    /// Nodes that took part, and names of those that have left.
    pub nodes: Vec<NodeRequest>,
    pub departed: Vec<String>,
    /// Tokens of agents that joined with others than the transfer's.
    pub tokens: Tokens,
    /// What the copy does was listed.
    pub has_listed: bool,
    /// Requests to join that have no answer.
    pub unanswered: Unanswered,
}

/// One round of a transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round<'t> {
    /// Its own id, for agents.
    pub id: uuid::Uuid,
    /// Id of the transfer, for people.
    pub transfer: &'t str,
    /// Bytes that an earlier round wanted, of which the rest is wanted now.
    pub wanted: Option<u64>,
}

/// Carries out a round of a transfer whose nodes are reached.
pub(crate) async fn drive(
    request: Request,
    round: Round<'_>,
    (reached, ranks): (Vec<Reached>, Option<&Ranks>),
    before: Before,
    (events, cancel): (UnboundedSender<Event>, &Cancel),
    asked: &mut Asked,
) -> (Report, Request, After) {
    let began = Instant::now();
    let (id, transfer) = (round.id, round.transfer);
    let (mut setup, sources) = setup(&request, id, &before);
    for (node, reached) in setup.nodes.iter_mut().zip(&reached) {
        node.reached_at = reached.at;
    }
    let issuer = match Issuer::new(*id.as_bytes()) {
        Ok(issuer) => issuer,
        Err(error) => {
            reach::send_away(reached).await;
            let text = error.to_string();
            let refused = report::refused(&request, transfer, ErrorKind::Other, text);
            return (refused, request, After::default());
        }
    };
    let (mut connections, mut inputs) = Connections::new();
    for reached in reached {
        connections.add(reached);
    }
    let mut driver = Driver {
        coordinator: Coordinator::new(setup, time::Instant::ZERO),
        connections,
        doorman: Doorman::new(&request),
        issuer,
        adviser: Adviser::default(),
        sharing: Sharing::new(request.options.sharing.as_deref(), transfer),
        control: ControlReport {
            nodes: request.nodes.len() as u64,
            ..ControlReport::default()
        },
        request,
        events,
        began,
        sources,
        meter: ProgressMeter::new(round.wanted),
        progress_due: false,
        end: None,
        departed: Vec::new(),
        transfer: transfer.to_owned(),
        basis: before.basis,
    };
    // What is absent lists when it is there.
    let lists_all = before.absent.is_empty();
    driver.coordinator.leave_out(before.absent);
    driver.coordinator.go_on(before.earlier);
    let sent = (0..driver.connections.count()).try_for_each(|node| driver.send_credentials(node));
    match sent {
        Ok(()) => {
            let now = driver.now();
            driver.coordinator.start(now);
        }
        Err(error) => driver.coordinator.handle_refusal(error.to_string()),
    }
    driver.act().await;
    driver.run(&mut inputs, asked, cancel, ranks).await;
    let (outcome, error) = driver.end.take().unwrap_or((
        Outcome::Failed,
        Some("the transfer ended without a result".into()),
    ));
    let now = driver.now();
    driver.connections.account(&mut driver.control);
    let nodes = driver.admitted();
    let carried = driver.connections.close().await;
    driver.control.wire_sent_bytes = carried.sent;
    driver.control.wire_received_bytes = carried.received;
    driver.control.wire_packets = carried.packets;
    let report = report::final_report(
        &driver.request,
        &driver.transfer,
        &driver.coordinator,
        driver.control,
        (outcome, error),
        driver.meter.best_second(),
        now,
    );
    let after = After {
        observations: speeds::observe(&driver.request, &driver.coordinator),
        lessons: driver.coordinator.lessons(),
        has_moved: driver.coordinator.moving_at().is_some(),
        gone: driver.coordinator.gone(),
        has_refused: driver.coordinator.has_refused(),
        earlier: driver.coordinator.for_next(),
        complete: driver.coordinator.complete(),
        nodes,
        departed: std::mem::take(&mut driver.departed),
        tokens: std::mem::take(&mut driver.request.options.tokens),
        has_listed: driver.coordinator.has_listed() && lists_all,
        unanswered: driver.doorman.leave(),
    };
    (report, driver.request, after)
}

impl Driver {
    fn now(&self) -> time::Instant {
        time::Instant::after(self.began.elapsed())
    }

    /// The nodes that took part: those of the request, and those that joined and were not rejected.
    fn admitted(&self) -> Vec<NodeRequest> {
        let seen = self.coordinator.summary();
        let nodes = self.request.nodes.iter().zip(&seen);
        let admitted = nodes.filter(|(_, seen)| seen.is_sender || seen.is_receiver);
        admitted.map(|(node, _)| node.clone()).collect()
    }

    /// A source as people call it: host and path.
    fn source_name(&self, node: u32, source: u32) -> String {
        let node = &self.request.nodes[node as usize];
        let Some(source) = node.sources.get(source as usize) else {
            return node.name.clone();
        };
        let path = source.object.to_string();
        match &node.reach {
            Reach::Local => path,
            Reach::Ssh(_) | Reach::Launched(_) | Reach::Attached { .. } => {
                format!("{}:{path}", node.name)
            }
        }
    }

    fn send_credentials(&mut self, node: u32) -> Result<(), TlsError> {
        let credentials = self.issuer.credentials(node)?;
        self.send(node, &credentials);
        Ok(())
    }

    fn send(&mut self, node: u32, message: &ToAgent) {
        let bytes = self.connections.send(node, message);
        count_sent(&mut self.control, message, bytes);
    }

    async fn run(
        &mut self,
        inputs: &mut UnboundedReceiver<Input>,
        asked: &mut Asked,
        cancel: &Cancel,
        ranks: Option<&Ranks>,
    ) {
        let lost = lost(ranks);
        tokio::pin!(lost);
        let mut are_lost = false;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut last_progress = Instant::now();
        let mut is_cancelled = false;
        while self.end.is_none() {
            tokio::select! {
                () = cancel.cancelled(), if !is_cancelled => {
                    is_cancelled = true;
                    match *cancel.0.borrow() {
                        Wish::Later => self.coordinator.handle_put_off(),
                        Wish::None | Wish::Cancel => self.coordinator.handle_cancel(),
                    }
                }
                text = &mut lost, if !are_lost => {
                    are_lost = true;
                    self.lose_all(&text);
                }
                Some(input) = inputs.recv() => self.handle(input).await,
                Some(command) = asked.commands.recv() => self.command(command),
                () = asked.limit.changed() => {
                    if let Some(limit) = asked.limit.get() {
                        self.limit(limit);
                    }
                }
                _ = tick.tick() => {
                    // What came while a plan was made was said in time: nobody is silent for that.
                    while let Ok(input) = inputs.try_recv() {
                        self.handle(input).await;
                        self.act().await;
                    }
                    match self.adviser.answer() {
                        Some(Ok(answer)) => self.coordinator.handle_simulated(&answer),
                        Some(Err(why)) => self.coordinator.handle_not_simulated(&why.to_string()),
                        None => {}
                    }
                    if self.sharing.is_due() {
                        self.share();
                    }
                    let now = self.now();
                    self.coordinator.handle_timer(now);
                }
            }
            self.act().await;
            self.doorman.answer(&self.coordinator);
            let wait = match self.progress_due {
                false if self.coordinator.moving_at().is_some() => Some(PROGRESS_WITHIN),
                is_due => is_due.then_some(PROGRESS_EVERY),
            };
            if wait.is_some_and(|wait| last_progress.elapsed() >= wait) {
                last_progress = Instant::now();
                self.progress_due = false;
                let now = self.now();
                let progress = self.meter.progress(&self.coordinator, now);
                // Before the plan only what nodes do meanwhile is known.
                let progress = self.coordinator.moving_at().map(|_| progress);
                if let Some(event) = report::busy(&self.coordinator).or(progress) {
                    let _ = self.events.send(event);
                }
            }
        }
    }

    /// No node can send or receive any more.
    fn lose_all(&mut self, reason: &str) {
        let now = self.now();
        for node in 0..self.connections.count() {
            self.coordinator.handle_lost(node, reason, now);
        }
    }

    /// Learns of other transfers over the same path, and tells them of this one.
    fn share(&mut self) {
        if self.request.options.sharing.is_some() && self.request.options.tuned_by().is_some() {
            let ends = self.coordinator.ends();
            let streams = self.coordinator.tuned_streams();
            let others = self.sharing.look(&ends, streams);
            self.coordinator.handle_others(others);
        }
    }

    async fn handle(&mut self, input: Input) {
        match input {
            Input::Message(node, message, bytes, place) => {
                count_received(&mut self.control, &message, bytes);
                let now = self.now();
                self.coordinator.handle_message(node, *message, now);
                drop(place);
            }
            Input::Lost(node, reason) => {
                let now = self.now();
                self.coordinator.handle_lost(node, &reason, now);
            }
            Input::Uncarried {
                receiver,
                sender,
                why,
            } => self.coordinator.handle_uncarried(receiver, sender, why),
            Input::Reached(party, Ok(links)) => self.take_in(party, links).await,
            Input::Reached(party, Err(reason)) => self.doorman.refuse(&party, reason),
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Join(joining, reply) => {
                let connections = &mut self.connections;
                self.doorman
                    .handle_join(joining, reply, &self.coordinator, connections);
            }
            Command::Leave(node, reply) => {
                let now = self.now();
                let node = self.doorman.name_of(&node, &self.coordinator);
                let left = self.coordinator.handle_leave(&node, now);
                if left.is_ok() {
                    self.departed.push(node);
                }
                let _ = reply.send(left.map_err(MembersError::Leave));
            }
        }
    }

    fn limit(&mut self, limit: Option<ByteRate>) {
        let now = self.now();
        self.request.options.limit = limit.map(|rate| rate.0);
        self.coordinator.handle_limit(limit, now);
    }

    /// Nodes that want to join have been reached: each gets its number and opens what it has.
    async fn take_in(&mut self, party: Party, links: Vec<Reached>) {
        let mut numbers = Vec::new();
        let mut away = Vec::new();
        for (node, reached) in party.nodes.iter().zip(links) {
            let next = self.connections.count();
            let now = self.now();
            let taken = match self.issuer.credentials(next) {
                Ok(credentials) => {
                    let setup = NodeSetup {
                        reached_at: reached.at,
                        ..node_setup(node, &self.request.nodes, self.request.mapping)
                    };
                    let taken = self.coordinator.handle_join(setup, now);
                    taken
                        .map(|number| (number, credentials))
                        .map_err(MembersError::Join)
                }
                Err(error) => Err(MembersError::Certificate(error.to_string())),
            };
            match taken {
                Ok((number, credentials)) => {
                    assert_eq!(number, next, "nodes and connections are numbered alike");
                    self.connections.add(reached);
                    self.doorman.admit(node);
                    if let (Some(token), Reach::Attached { host, port }) =
                        (party.token, &node.reach)
                    {
                        let at = (host.clone(), *port);
                        self.request.options.tokens.insert(at, token);
                    }
                    self.request.nodes.push(node.clone());
                    self.control.nodes += 1;
                    self.send(number, &credentials);
                    numbers.push(Ok(number));
                }
                Err(reason) => {
                    away.push(reached);
                    numbers.push(Err(reason));
                }
            }
        }
        self.doorman.wait(party, numbers);
        tokio::spawn(reach::send_away(away));
    }

    /// Carries out everything the coordinator wants.
    async fn act(&mut self) {
        while let Some(action) = self.coordinator.poll_action() {
            match action {
                Action::Send(node, message) => self.send(node, &message),
                Action::Plan(purpose, problem) => {
                    // The plan says how many streams there are at first; looks before it may not have seen all ends.
                    if purpose.first {
                        self.share();
                    }
                    let scheduler = self.request.options.scheduler.clone();
                    let asked = purpose.clone();
                    self.connections.flush();
                    let result =
                        tokio::task::spawn_blocking(move || plan(&problem, &scheduler, &asked))
                            .await;
                    let result = result
                        .unwrap_or_else(|_| Err("the scheduler failed; this is a bug".into()));
                    let now = self.now();
                    self.coordinator.handle_planned(&purpose, result, now);
                }
                Action::Compare(manifests) => {
                    let named: Vec<(String, Vec<u8>)> = manifests
                        .into_iter()
                        .map(|(node, source, bytes)| (self.source_name(node, source), bytes))
                        .collect();
                    self.connections.flush();
                    let result = compare::beside(self.sources, named).await;
                    self.coordinator.handle_compared(result);
                }
                Action::Carry { receiver, sender } => {
                    let pass = self.issuer.pass();
                    self.connections.carry(receiver, sender, pass);
                }
                Action::Simulate(question) => self.adviser.ask(question),
                Action::Note(message) => {
                    let seconds = report::seconds_moving(&self.coordinator, self.now());
                    let _ = self.events.send(Event::Note { seconds, message });
                }
                Action::Listed(node, entries) => {
                    for event in report::listed(&self.coordinator, node, &entries) {
                        let _ = self.events.send(event);
                    }
                }
                Action::Comparing(node, done_bytes, total_bytes) => {
                    let _ = self.events.send(Event::Comparing {
                        node: self.coordinator.node_name(node).to_owned(),
                        done_bytes,
                        total_bytes,
                    });
                }
                Action::Moving => {
                    if let Some(message) = self.basis.take() {
                        let seconds = 0.0;
                        let _ = self.events.send(Event::Note { seconds, message });
                    }
                    let _ = self
                        .events
                        .send(report::planned(&self.coordinator, &self.transfer));
                    self.progress_due = true;
                }
                Action::Progress => self.progress_due = true,
                Action::End(outcome, error) => self.end = Some((outcome, error)),
            }
        }
        self.connections.flush();
    }
}

/// Returns when the ranks of the nodes, if they are ranks, have no `mpirun` any more; why, in words.
async fn lost(ranks: Option<&Ranks>) -> String {
    match ranks {
        Some(ranks) => ranks.failed().await,
        None => std::future::pending().await,
    }
}

/// Makes a schedule and checks it before anybody acts on it.
fn plan(problem: &Problem, scheduler: &str, purpose: &Purpose) -> Result<Planned, String> {
    let is_auto = scheduler == AUTO;
    let scheduler = ropewalk_sched::by_name(scheduler).map_err(|e| e.to_string())?;
    let (schedule, name) = scheduler.plan_named(problem).map_err(|e| e.to_string())?;
    ropewalk_model::verify(problem, &schedule).map_err(|e| wrong(&e))?;
    let seconds = schedule.predicted_seconds(problem);
    if purpose.first
        && is_auto
        && let Some(gaining) =
            ropewalk_sched::gaining_relays(problem, seconds, purpose.is_guess, &purpose.sites)
                .map_err(|e| e.to_string())?
    {
        return planned_with_relays(problem, gaining, purpose.spares);
    }
    // The bound of the report is that of the whole transfer.
    let bound = match purpose.first {
        true => Some(ropewalk_sched::bound(problem).map_err(|e| e.to_string())?),
        false => None,
    };
    Ok(Planned {
        runs: planned_runs(receiver_runs(problem, &schedule, purpose.spares)),
        scheduler: name.into(),
        is_near_bound: scheduler.is_near_bound(),
        predicted_seconds: seconds,
        bound: bound.map(|bound| (bound.seconds, bound.binding, bound.is_exact)),
    })
}

/// As [`plan`], where receivers hand on.
fn planned_with_relays(
    problem: &Problem,
    (plan, bound): (RelayPlan, Bound),
    spares: usize,
) -> Result<Planned, String> {
    ropewalk_model::verify_relays(problem, &plan.schedule).map_err(|e| wrong(&e))?;
    Ok(Planned {
        runs: planned_runs(relay_runs(problem, &plan.schedule, spares)),
        scheduler: AUTO.into(),
        is_near_bound: true,
        predicted_seconds: plan.seconds,
        bound: Some((bound.seconds, bound.binding, bound.is_exact)),
    })
}

fn wrong(error: &VerifyError) -> String {
    format!("the schedule is wrong, nothing was started: {error}")
}

fn planned_runs(runs: Vec<Vec<ReceiverRun>>) -> Vec<Vec<PlannedRun>> {
    let of_receiver = |runs: Vec<ReceiverRun>| runs.into_iter().map(PlannedRun::from).collect();
    runs.into_iter().map(of_receiver).collect()
}
