//! Runs one transfer: sockets and clock around the coordinator.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_lane::preface;
use ropewalk_lane::tls::Authority;
use ropewalk_model::{Problem, receiver_runs};
use ropewalk_proto::control::{self, FromAgent, ToAgent, to_agent};
use ropewalk_proto::coordinator::{
    self, Action, Coordinator, NodeSetup, Planned, PlannedRun, Setup, SinkSetup, SourceSetup,
};
use ropewalk_proto::report::{ControlReport, Event, Outcome, Report};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::compare;
use crate::link::{Link, LinkWriter, count_received, count_sent};
use crate::reach::{Started, reach};
use crate::report::{self, ProgressMeter};
use crate::request::{
    Destinations, LaneKind, Mapping, NodeRequest, Object, ObjectRequest, Reach, Request, Sources,
    Verify,
};
use crate::speeds::{self, Hints, Observations};

/// How often the coordinator sees time pass.
const TICK: Duration = Duration::from_millis(100);

/// Time between two progress events.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// What last messages may take to leave when everything ends.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// Agents reached at once; more wait, so that a thousand ssh logins do not start together.
const REACH_AT_ONCE: usize = 64;

/// Ends a transfer from outside. Clones share one switch.
#[derive(Clone, Debug)]
pub struct Cancel(Arc<watch::Sender<bool>>);

impl Default for Cancel {
    fn default() -> Self {
        Self::new()
    }
}

impl Cancel {
    /// A switch that is not thrown.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Throws the switch: the transfer ends within a second.
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }

    /// Whether it was thrown.
    pub fn is_cancelled(&self) -> bool {
        *self.0.borrow()
    }

    async fn cancelled(&self) {
        let mut seen = self.0.subscribe();
        // The sender lives as long as `self`.
        let _ = seen.wait_for(|thrown| *thrown).await;
    }
}

enum Input {
    Message(u32, Box<FromAgent>, usize),
    Lost(u32, String),
}

struct Driver {
    coordinator: Coordinator,
    outboxes: Vec<UnboundedSender<Vec<u8>>>,
    control: ControlReport,
    events: UnboundedSender<Event>,
    began: Instant,
    names: Vec<String>,
    scheduler: String,
    sources: Sources,
    meter: ProgressMeter,
    progress_due: bool,
    end: Option<(Outcome, Option<String>)>,
    transfer: String,
}

/// Carries out a transfer. Never fails by itself: refusals and errors are in the report.
///
/// Events go to `events` while it runs; the report is the return value only.
pub async fn run(request: Request, events: UnboundedSender<Event>, cancel: Cancel) -> Report {
    let id = uuid::Uuid::now_v7();
    let mut request = request;
    // The result must not depend on the order in which hosts were named.
    request.nodes.sort_by(|a, b| a.name.cmp(&b.name));
    if let Err(text) = check(&request) {
        return report::refused(&request, &id.to_string(), text);
    }
    let reached = tokio::select! {
        reached = reach_all(&request, &events) => reached,
        () = cancel.cancelled() => return report::ended_early(&request, &id.to_string(), Outcome::Cancelled, "interrupted".into()),
    };
    let links = match reached {
        Ok(links) => links,
        Err(text) => return report::refused(&request, &id.to_string(), text),
    };
    let (hints, hint_notes) = tokio::select! {
        recalled = speeds::recall(&request, &events) => recalled,
        () = cancel.cancelled() => Default::default(),
    };
    let (mut report, observations) = drive(&request, id, links, hints, events, cancel).await;
    report.notes.splice(0..0, hint_notes);
    report
        .notes
        .extend(speeds::remember(&request, report.outcome, observations).await);
    report
}

fn check(request: &Request) -> Result<(), String> {
    if let Some(pair) = request.nodes.windows(2).find(|w| w[0].name == w[1].name) {
        return Err(format!(
            "two nodes are named {}; name each once",
            pair[0].name
        ));
    }
    if !request.nodes.iter().any(|n| !n.sources.is_empty()) {
        return Err("nobody sends: name at least one source".into());
    }
    if !request.nodes.iter().any(|n| !n.sinks.is_empty()) {
        return Err("nobody receives: name at least one destination".into());
    }
    ropewalk_sched::by_name(&request.options.scheduler)
        .map(|_| ())
        .map_err(|e| e.to_string())
}

async fn reach_all(
    request: &Request,
    events: &UnboundedSender<Event>,
) -> Result<Vec<(Link, Option<Started>)>, String> {
    let loopback = request.nodes.iter().all(|n| n.reach == Reach::Local);
    let gate = Arc::new(tokio::sync::Semaphore::new(REACH_AT_ONCE));
    let mut tasks = JoinSet::new();
    for (number, node) in request.nodes.iter().enumerate() {
        let (node, options, gate) = (node.clone(), request.options.clone(), gate.clone());
        tasks.spawn(async move {
            let _permit = gate.acquire_owned().await;
            (number, reach(&node, &options, loopback).await)
        });
    }
    let mut links = BTreeMap::new();
    let mut errors = BTreeMap::new();
    while let Some(joined) = tasks.join_next().await {
        match joined {
            Ok((number, Ok(link))) => {
                links.insert(number, link);
                let node = request.nodes[number].name.clone();
                let _ = events.send(Event::Reached {
                    node,
                    reached: links.len(),
                    nodes: request.nodes.len(),
                });
            }
            Ok((number, Err(error))) => {
                errors.insert(number, error.to_string());
            }
            Err(error) => {
                errors.insert(usize::MAX, error.to_string());
            }
        }
    }
    if errors.is_empty() {
        return Ok(links.into_values().collect());
    }
    for (_, (link, started)) in links {
        drop(link);
        if let Some(started) = started {
            started.leave().await;
        }
    }
    const SHOWN: usize = 5;
    let more = errors.len().saturating_sub(SHOWN);
    let mut text: Vec<String> = errors.into_values().take(SHOWN).collect();
    if more > 0 {
        text.push(format!("and {more} more nodes"));
    }
    Err(text.join("\n"))
}

fn object_bytes(object: &Object) -> Vec<u8> {
    match object {
        Object::Path(path) => path.clone(),
        Object::Memory(size) => format!("mem:{size}").into_bytes(),
        Object::Null => b"null:".to_vec(),
    }
}

fn rows(object: &ObjectRequest) -> Vec<control::Row> {
    let to_row = |row: &crate::request::RowRequest| control::Row {
        object: object_bytes(&object.object),
        object_offset: row.object_offset,
        start: row.range.start,
        length: row.range.len(),
    };
    object.rows.iter().map(to_row).collect()
}

fn node_setup(node: &NodeRequest, mapping: Mapping) -> NodeSetup {
    let trees = matches!(mapping, Mapping::Trees { .. });
    let all_shared = matches!(
        mapping,
        Mapping::Trees {
            destinations: Destinations::Shared,
            ..
        }
    );
    let source = |object: &ObjectRequest| {
        let kind = match &object.object {
            Object::Path(path) if trees => Some(control::source::Kind::Tree(path.clone())),
            Object::Memory(size) if trees => Some(control::source::Kind::Memory(*size)),
            _ => None,
        };
        SourceSetup {
            source: control::Source {
                kind,
                rows: rows(object),
            },
            base: 0,
        }
    };
    let sink = |object: &ObjectRequest| {
        let kind = match &object.object {
            Object::Path(path) if trees => Some(control::sink::Kind::Tree(path.clone())),
            Object::Memory(_) if trees => Some(control::sink::Kind::Memory(true)),
            Object::Null if trees => Some(control::sink::Kind::Null(true)),
            _ => None,
        };
        let shared = all_shared || object.destination.is_some();
        SinkSetup {
            sink: control::Sink {
                kind,
                rows: rows(object),
                shared,
            },
            destination: object.destination.clone(),
        }
    };
    NodeSetup {
        name: node.name.clone(),
        sources: node.sources.iter().map(source).collect(),
        sinks: node.sinks.iter().map(sink).collect(),
        up: node.up,
        down: node.down,
        remembered_up: None,
        remembered_down: None,
    }
}

fn setup(request: &Request, id: uuid::Uuid, hints: &Hints) -> (Setup, Sources) {
    let options = &request.options;
    let (mapping, sources) = match request.mapping {
        Mapping::Rows => (coordinator::Mapping::Rows, Sources::Auto),
        Mapping::Trees {
            sources,
            destinations,
        } => {
            let to_sources = match sources {
                Sources::Auto => coordinator::Sources::Auto,
                Sources::Replicas => coordinator::Sources::Replicas,
                Sources::Parts => coordinator::Sources::Parts,
            };
            let to_destinations = match destinations {
                Destinations::Copies => coordinator::Destinations::Copies,
                Destinations::Shared => coordinator::Destinations::Shared,
            };
            (
                coordinator::Mapping::Trees {
                    sources: to_sources,
                    destinations: to_destinations,
                },
                sources,
            )
        }
    };
    let options_message = control::Options {
        streams: options.streams.unwrap_or(0),
        prefetch: options.prefetch,
        plain: options.plain,
        verify: match options.verify {
            Verify::None => 0,
            Verify::Fragment => 1,
            Verify::Tree => 2,
            Verify::Sink => 3,
        },
        lane: match options.lane {
            LaneKind::Auto => 0,
            LaneKind::Tcp => 1,
            LaneKind::Unix => 2,
        },
        no_sync: !options.sync,
        status_milliseconds: 500,
        fixed: !options.replan,
    };
    let nodes = request
        .nodes
        .iter()
        .enumerate()
        .map(|(at, node)| NodeSetup {
            remembered_up: hints.up.get(at).copied().flatten(),
            remembered_down: hints.down.get(at).copied().flatten(),
            ..node_setup(node, request.mapping)
        })
        .collect();
    let setup = Setup {
        transfer: id.as_bytes().to_vec(),
        nodes,
        mapping,
        limit: options.limit,
        options: options_message,
    };
    (setup, sources)
}

async fn drive(
    request: &Request,
    id: uuid::Uuid,
    links: Vec<(Link, Option<Started>)>,
    hints: Hints,
    events: UnboundedSender<Event>,
    cancel: Cancel,
) -> (Report, Observations) {
    let began = Instant::now();
    let (setup, sources) = setup(request, id, &hints);
    let (input_sender, mut inputs) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    let mut writers = JoinSet::new();
    let mut outboxes = Vec::new();
    let mut started = Vec::new();
    for (number, (link, child)) in links.into_iter().enumerate() {
        let number = number as u32;
        let (outbox, outgoing) = mpsc::unbounded_channel();
        outboxes.push(outbox);
        started.extend(child);
        let (Link { mut reader, writer }, inputs) = (link, input_sender.clone());
        writers.spawn(write_all(writer, outgoing));
        tasks.spawn(async move {
            loop {
                match reader.read().await {
                    Ok((message, bytes)) => {
                        if inputs
                            .send(Input::Message(number, Box::new(message), bytes))
                            .is_err()
                        {
                            return;
                        }
                    }
                    Err(reason) => {
                        let _ = inputs.send(Input::Lost(number, reason));
                        return;
                    }
                }
            }
        });
    }
    let names: Vec<String> = request.nodes.iter().map(|n| n.name.clone()).collect();
    let mut driver = Driver {
        coordinator: Coordinator::new(setup, 0),
        outboxes,
        control: ControlReport {
            nodes: names.len() as u64,
            ..ControlReport::default()
        },
        events,
        began,
        names,
        scheduler: request.options.scheduler.clone(),
        sources,
        meter: ProgressMeter::new(),
        progress_due: false,
        end: None,
        transfer: id.to_string(),
    };
    match driver.send_credentials() {
        Ok(()) => {
            let now = driver.now_ns();
            driver.coordinator.start(now);
            driver.act().await;
        }
        Err(error) => driver.coordinator.handle_refusal(error.to_string()),
    }
    driver.run(&mut inputs, &cancel).await;
    let (outcome, error) = driver.end.take().unwrap_or((
        Outcome::Failed,
        Some("the transfer ended without a word".into()),
    ));
    let now = driver.now_ns();
    let report = report::final_report(
        request,
        &driver.transfer,
        &driver.coordinator,
        driver.control,
        outcome,
        error,
        now,
    );
    let observations = speeds::observe(request, &driver.coordinator);
    // Last words leave, connections close, started agents go.
    driver.outboxes.clear();
    let _ = tokio::time::timeout(LAST_WORDS, async {
        while writers.join_next().await.is_some() {}
    })
    .await;
    tasks.abort_all();
    let mut leaving = JoinSet::new();
    for child in started {
        leaving.spawn(child.leave());
    }
    while leaving.join_next().await.is_some() {}
    (report, observations)
}

async fn write_all(mut writer: LinkWriter, mut outgoing: UnboundedReceiver<Vec<u8>>) {
    while let Some(bytes) = outgoing.recv().await {
        if writer.write(&bytes).await.is_err() {
            return;
        }
    }
    writer.close().await;
}

impl Driver {
    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn send_credentials(&mut self) -> Result<(), ropewalk_lane::tls::TlsError> {
        let authority = Authority::new()?;
        let secret: [u8; 32] = preface::random_bytes();
        for node in 0..self.outboxes.len() as u32 {
            let identity = authority.issue(node)?;
            let credentials = control::Credentials {
                certificate: identity.certificate,
                private_key: identity.private_key,
                authority: authority.certificate().to_vec(),
                secret: secret.to_vec(),
            };
            self.send(
                node,
                &ToAgent {
                    body: Some(to_agent::Body::Credentials(credentials)),
                },
            );
        }
        Ok(())
    }

    fn send(&mut self, node: u32, message: &ToAgent) {
        let bytes = control::encode(message);
        count_sent(&mut self.control, message, bytes.len());
        // A closed outbox means a lost node, which its reader reports.
        let _ = self.outboxes[node as usize].send(bytes);
    }

    async fn run(&mut self, inputs: &mut UnboundedReceiver<Input>, cancel: &Cancel) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut last_progress = Instant::now();
        while self.end.is_none() {
            tokio::select! {
                () = cancel.cancelled() => self.coordinator.handle_cancel(),
                input = inputs.recv() => match input {
                    Some(Input::Message(node, message, bytes)) => {
                        count_received(&mut self.control, &message, bytes);
                        let now = self.now_ns();
                        self.coordinator.handle_message(node, *message, now);
                    }
                    Some(Input::Lost(node, reason)) => {
                        let now = self.now_ns();
                        self.coordinator.handle_lost(node, &reason, now);
                    }
                    None => return,
                },
                _ = tick.tick() => {
                    let now = self.now_ns();
                    self.coordinator.handle_timer(now);
                }
            }
            self.act().await;
            if self.progress_due && last_progress.elapsed() >= PROGRESS_EVERY {
                last_progress = Instant::now();
                self.progress_due = false;
                let now = self.now_ns();
                let _ = self
                    .events
                    .send(self.meter.progress(&self.coordinator, now));
            }
        }
    }

    /// Carries out everything the coordinator wants.
    async fn act(&mut self) {
        while let Some(action) = self.coordinator.poll_action() {
            match action {
                Action::Send(node, message) => self.send(node, &message),
                Action::Plan(purpose, problem) => {
                    let scheduler = self.scheduler.clone();
                    let (first, spares) = (purpose.first, purpose.spares);
                    let result = tokio::task::spawn_blocking(move || {
                        plan(&problem, &scheduler, first, spares)
                    })
                    .await;
                    let result = result
                        .unwrap_or_else(|_| Err("the scheduler failed; this is a bug".into()));
                    let now = self.now_ns();
                    self.coordinator.handle_planned(&purpose, result, now);
                }
                Action::Compare(manifests) => {
                    let named: Vec<(String, Vec<u8>)> = manifests
                        .into_iter()
                        .map(|(node, bytes)| (self.names[node as usize].clone(), bytes))
                        .collect();
                    let result = compare::compare(self.sources, &named);
                    self.coordinator.handle_compared(result);
                }
                Action::Note(message) => {
                    let seconds = report::seconds_moving(&self.coordinator, self.now_ns());
                    let _ = self.events.send(Event::Note { seconds, message });
                }
                Action::Moving => {
                    let _ = self
                        .events
                        .send(report::planned(&self.coordinator, &self.transfer));
                    self.progress_due = true;
                }
                Action::Progress => self.progress_due = true,
                Action::End(outcome, error) => self.end = Some((outcome, error)),
            }
        }
    }
}

/// Makes a schedule and checks it before anybody acts on it.
fn plan(problem: &Problem, scheduler: &str, first: bool, spares: usize) -> Result<Planned, String> {
    let scheduler = ropewalk_sched::by_name(scheduler).map_err(|e| e.to_string())?;
    let (schedule, name) = scheduler.plan_named(problem).map_err(|e| e.to_string())?;
    ropewalk_model::verify(problem, &schedule)
        .map_err(|e| format!("the schedule is wrong, nothing was started: {e}"))?;
    // The bound of the report is that of the whole transfer.
    let bound = match first {
        true => Some(ropewalk_sched::bound(problem).map_err(|e| e.to_string())?),
        false => None,
    };
    let runs = receiver_runs(problem, &schedule, spares)
        .into_iter()
        .map(|runs| {
            let to_run = |r: ropewalk_model::ReceiverRun| PlannedRun {
                range: r.range,
                sender: r.sender,
                spares: r.spares,
            };
            runs.into_iter().map(to_run).collect()
        })
        .collect();
    Ok(Planned {
        runs,
        scheduler: name.into(),
        predicted_seconds: schedule.predicted_seconds(problem),
        bound: bound.map(|bound| (bound.seconds, bound.binding, bound.is_exact)),
    })
}
