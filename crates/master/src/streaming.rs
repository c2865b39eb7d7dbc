//! Runs one stream: sockets and clock around [`ropewalk_proto::stage::run`].

use std::time::{Duration, Instant};

use ropewalk_lane::preface;
use ropewalk_model::{Nanos, time};
use ropewalk_proto::control::{
    self, DealKind, FromAgent, Peer, StageAccount, StageCause, StageStatus, StreamFinish,
    StreamOpen, StreamOpened, StreamStart, ToAgent, from_agent, to_agent,
};
use ropewalk_proto::report::{ErrorKind, Event, Outcome};
use ropewalk_proto::stage::account::Account;
use ropewalk_proto::stage::group_name;
use ropewalk_proto::stage::report::{StageReport, StreamReport, bound_by};
use ropewalk_proto::stage::run::{Action, Cause, Failure, Progress, Run};
use ropewalk_proto::stage::shuffle::Shuffle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::connections::{Connections, Input};
use crate::drive::Cancel;
use crate::reach::{Reached, describe, reach_each, send_away};
use crate::request::{NodeRequest, Object, Options, Reach};

/// Time between two events with the state of all stages.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// A stream to be carried out.
#[derive(Clone, Debug)]
pub struct StreamRequest {
    /// Nodes, each with a process of each group. What the first process reads is the only source of a node, what the last one
    /// writes its only sink; with neither zeros are made and dropped.
    pub nodes: Vec<NodeRequest>,
    /// How nodes are reached.
    pub options: Options,
    /// Groups, 2 at least.
    pub groups: u32,
    /// Longest block in bytes.
    pub block: u64,
    /// Bytes that each first process makes, where it reads no file.
    pub length: u64,
    /// Buffers of a process.
    pub buffers: u64,
    /// Of random deals.
    pub seed: u64,
    /// How blocks are dealt.
    pub deal: DealKind,
    /// Groups whose blocks stay on their node.
    pub local: Vec<u32>,
    /// Groups with programs.
    pub programs: Vec<StageProgram>,
    /// Records into partitions: two groups, and the sources and sinks are folders.
    pub shuffle: Option<Shuffle>,
    /// A stream in which nothing happens for so long fails: no block moves, no file is synced.
    pub stall: Duration,
}

/// What a group gives its blocks to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageProgram {
    /// Which group.
    pub group: u32,
    /// For the shell.
    pub command: Vec<u8>,
    /// Lines, not frames.
    pub lines: bool,
}

/// What happens while a stream runs.
#[derive(Clone, Debug)]
pub enum StreamEvent {
    /// A node is reached, or awaited; or a note.
    Reaching(Event),
    /// Blocks begin to move.
    Started {
        /// The stream's id.
        stream: String,
    },
    /// What all stages have done so far.
    Progress {
        /// Since blocks began to move.
        seconds: f64,
        /// Groups in order.
        stages: Vec<StageReport>,
    },
}

struct Driver {
    request: StreamRequest,
    id: uuid::Uuid,
    run: Run,
    connections: Connections,
    opened: Vec<Option<StreamOpened>>,
    events: UnboundedSender<StreamEvent>,
    began: Instant,
    moving: Option<Instant>,
}

/// Carries out a stream. Never fails by itself: refusals and errors are in the report.
pub async fn stream(
    request: StreamRequest,
    events: UnboundedSender<StreamEvent>,
    cancel: Cancel,
) -> StreamReport {
    let id = uuid::Uuid::now_v7();
    let began = Instant::now();
    let loopback = request.nodes.iter().all(|node| node.reach == Reach::Local);
    let notice = |event: Event| {
        let _ = events.send(StreamEvent::Reaching(event));
    };
    let reaching = reach_each(
        &request.nodes,
        &request.options,
        loopback,
        None,
        Default::default(),
        notice,
    );
    let answers = tokio::select! {
        answers = reaching => answers,
        () = cancel.cancelled() => {
            let error = (Outcome::Cancelled, ErrorKind::Interrupted, "interrupted".to_owned());
            return ended(&request, error, began);
        }
    };
    if answers.iter().any(Result::is_err) {
        let text = describe(answers.iter().filter_map(|answer| answer.as_ref().err()));
        send_away(answers.into_iter().flatten().collect()).await;
        return ended(
            &request,
            (Outcome::Refused, ErrorKind::Unreachable, text),
            began,
        );
    }
    let (connections, inputs) = Connections::new();
    let nodes = request.nodes.len() as u32;
    let programs = request.programs.iter().map(|program| program.group);
    // How many bytes A of a shuffle deals is known when its files are read; records are counted.
    let programs = programs.chain(request.shuffle.map(|_| 0)).collect();
    let mut driver = Driver {
        run: Run::new(
            nodes,
            request.groups,
            programs,
            Nanos(request.stall.as_nanos() as u64),
            time::Instant(began.elapsed().as_nanos() as u64),
        ),
        opened: vec![None; request.nodes.len()],
        request,
        id,
        connections,
        events,
        began,
        moving: None,
    };
    driver.open(answers.into_iter().flatten());
    driver.drive(inputs, &cancel).await;
    driver.connections.close().await;
    report(&driver.request, &driver.run, id, driver.moving, began)
}

/// A stream that ended before its nodes were opened.
fn ended(
    request: &StreamRequest,
    (outcome, kind, error): (Outcome, ErrorKind, String),
    began: Instant,
) -> StreamReport {
    let seconds = began.elapsed().as_secs_f64();
    StreamReport {
        outcome,
        seconds,
        start_seconds: seconds,
        ..StreamReport::refused(request.block, kind, &error)
    }
}

impl Driver {
    fn now(&self) -> time::Instant {
        time::Instant(self.began.elapsed().as_nanos() as u64)
    }

    fn send(&mut self, node: u32, body: to_agent::Body) {
        self.connections.send(node, &ToAgent { body: Some(body) });
    }

    fn count(&self) -> u32 {
        self.request.nodes.len() as u32
    }

    fn open(&mut self, reached: impl Iterator<Item = Reached>) {
        let secret: [u8; 32] = preface::random_bytes();
        for (node, reached) in reached.enumerate() {
            self.connections.add(reached);
            let part = &self.request.nodes[node];
            let file = |objects: &[crate::request::ObjectRequest]| match objects {
                [one] => match &one.object {
                    Object::Path(path) => path.clone(),
                    _ => Vec::new(),
                },
                _ => Vec::new(),
            };
            let programs = self
                .request
                .programs
                .iter()
                .map(|program| control::StageProgram {
                    group: program.group,
                    command: program.command.clone(),
                    lines: program.lines,
                });
            let open = StreamOpen {
                stream: self.id.as_bytes().to_vec(),
                secret: secret.to_vec(),
                node: node as u32,
                nodes: self.count(),
                groups: self.request.groups,
                block: self.request.block,
                length: self.request.length,
                buffers: self.request.buffers,
                seed: self.request.seed,
                deal: self.request.deal.into(),
                local: self.request.local.clone(),
                from: file(&part.sources),
                to: file(&part.sinks),
                programs: programs.collect(),
                lane: self.request.options.lane.into(),
                plain: self.request.options.plain,
                rate: self.request.options.datagrams.rate.unwrap_or(0),
                shuffle: self.request.shuffle.as_ref().map(Shuffle::message),
            };
            self.send(node as u32, to_agent::Body::StreamOpen(open));
        }
        self.connections.flush();
    }

    async fn drive(&mut self, mut inputs: UnboundedReceiver<Input>, cancel: &Cancel) {
        let mut tick = tokio::time::interval(PROGRESS_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut is_cancelled = false;
        loop {
            while let Some(action) = self.run.poll(self.now()) {
                match action {
                    Action::Start => self.start(),
                    Action::Finish { commit } => {
                        for node in 0..self.count() {
                            self.send(node, to_agent::Body::StreamFinish(StreamFinish { commit }));
                        }
                    }
                    Action::Note { group, node } => self.note(group, node),
                    Action::End => return,
                }
            }
            self.connections.flush();
            let due = self
                .run
                .deadline()
                .map(|at| self.began + Duration::from_nanos(at.0));
            let due = tokio::time::sleep_until(due.unwrap_or_else(far).into());
            tokio::select! {
                input = inputs.recv() => match input {
                    Some(input) => self.handle(input),
                    None => return,
                },
                _ = tick.tick() => self.tick(),
                () = due => {}
                () = cancel.cancelled(), if !is_cancelled => {
                    is_cancelled = true;
                    self.fail(Cause::Interrupted, None, None, "interrupted".into());
                }
            }
        }
    }

    fn start(&mut self) {
        let opened = self.opened.iter().enumerate();
        let peers: Vec<Peer> = opened
            .map(|(node, opened)| {
                let opened = opened.clone().unwrap_or_default();
                Peer {
                    node: node as u32,
                    name: self.request.nodes[node].name.clone(),
                    instance: opened.instance,
                    addresses: opened.addresses,
                    ..Peer::default()
                }
            })
            .collect();
        for node in 0..self.count() {
            let peers = peers.clone();
            self.send(node, to_agent::Body::StreamStart(StreamStart { peers }));
        }
        self.moving = Some(Instant::now());
        let _ = self.events.send(StreamEvent::Started {
            stream: self.id.to_string(),
        });
    }

    /// Says what a stream waits for that does not fail.
    fn note(&self, group: u32, node: u32) {
        let (group, name) = (group_name(group), &self.request.nodes[node as usize].name);
        let message = format!(
            "{group} on {name}: no block has moved for a minute while it makes what it wrote durable, or sorts it; the stream waits for its disk without a limit"
        );
        let seconds = self
            .moving
            .map_or(0.0, |moving| moving.elapsed().as_secs_f64());
        let note = Event::Note { seconds, message };
        let _ = self.events.send(StreamEvent::Reaching(note));
    }

    fn fail(&mut self, cause: Cause, node: Option<u32>, group: Option<u32>, message: String) {
        let failure = Failure {
            cause,
            node,
            group,
            message,
        };
        self.run.handle_failure(self.now(), failure);
    }

    fn handle(&mut self, input: Input) {
        match input {
            Input::Message(node, message, _, _) => self.hear(node, *message),
            Input::Lost(node, reason) => {
                let message = format!("the connection to its agent ended: {reason}");
                self.fail(Cause::Node, Some(node), None, message);
            }
            // Streams have no tunnels, and no node joins.
            Input::Uncarried { .. } | Input::Reached(..) => {}
        }
    }

    fn hear(&mut self, node: u32, message: FromAgent) {
        match message.body {
            Some(from_agent::Body::StreamOpened(opened)) => {
                let length = opened.length;
                let other = read_twice(&self.opened, &opened);
                self.opened[node as usize] = Some(opened);
                if let Some(other) = other {
                    let message = twice([other, node].map(|at| &self.request.nodes[at as usize]));
                    self.fail(Cause::Refused, None, None, message);
                }
                self.run.handle_opened(self.now(), node, length);
            }
            Some(from_agent::Body::StreamStatus(status)) => {
                let now = self.now();
                for one in status.stages {
                    self.run
                        .handle_progress(now, node, one.group, progress(&one));
                }
            }
            Some(from_agent::Body::StreamFailed(failed)) => {
                let cause = match failed.cause() {
                    StageCause::Peer => Cause::Peer,
                    StageCause::Violation => Cause::Violation,
                    StageCause::Process => Cause::Process,
                };
                self.fail(cause, Some(node), Some(failed.group), failed.message);
            }
            Some(from_agent::Body::StreamFinished(finished)) => {
                let error = Some(finished.error).filter(|error| !error.is_empty());
                self.run.handle_finished(self.now(), node, error);
            }
            Some(from_agent::Body::Refused(refused)) => {
                self.fail(Cause::Refused, Some(node), None, refused.message);
            }
            _ => {}
        }
    }

    /// Shows how far all are.
    fn tick(&mut self) {
        let Some(moving) = self.moving else { return };
        let stages = self.run.stages(self.request.groups);
        let seconds = moving.elapsed().as_secs_f64();
        let _ = self.events.send(StreamEvent::Progress { seconds, stages });
    }
}

/// A node that reads what another one opens now.
fn read_twice(opened: &[Option<StreamOpened>], now: &StreamOpened) -> Option<u32> {
    let is_same = |other: &StreamOpened| !now.source.is_empty() && other.source == now.source;
    let mut opened = (0u32..).zip(opened);
    opened
        .find(|(_, other)| other.as_ref().is_some_and(is_same))
        .map(|(node, _)| node)
}

/// Why two nodes do not read one thing.
fn twice(nodes: [&NodeRequest; 2]) -> String {
    let [one, other] = nodes.map(|node| {
        let object = node.sources.first().map(|source| &source.object);
        let path = match object {
            Some(Object::Path(path)) => String::from_utf8_lossy(path),
            _ => "what it reads".into(),
        };
        format!("{path} on {}", node.name)
    });
    format!(
        "{one} is the same as {other}, and all of it would be sent twice; name one of the two hosts, or put {{node}} into --from, which is the node's number"
    )
}

/// Of a stream that failed while files got their names: which have theirs.
fn named(run: &Run, nodes: &[NodeRequest]) -> String {
    let committed = run.committed().into_iter();
    let committed = committed.filter_map(|node| nodes.get(node as usize));
    let names = committed.filter(|node| !node.sinks.is_empty());
    let names: Vec<&str> = names.map(|node| node.name.as_str()).collect();
    match names.as_slice() {
        [] => String::new(),
        names => format!(
            "; what was written has its name already on {}",
            names.join(", ")
        ),
    }
}

/// Long after any stream.
fn far() -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 86_400);
    Instant::now() + YEAR
}

fn account(account: Option<&StageAccount>) -> Account {
    account.map_or_else(Account::default, |account| Account {
        blocks: account.blocks,
        bytes: account.bytes,
        sum: account
            .sum
            .as_slice()
            .try_into()
            .map_or(0, u128::from_le_bytes),
    })
}

fn progress(status: &StageStatus) -> Progress {
    Progress {
        received: account(status.received.as_ref()),
        dealt: account(status.dealt.as_ref()),
        elapsed: Nanos(status.elapsed),
        waited_input: Nanos(status.waited_input),
        waited_output: Nanos(status.waited_output),
        processor: Nanos(status.processor),
        resident_max: status.resident_max,
        is_syncing: status.syncing,
        sealed: status.sealed,
        retransmitted: status.retransmitted,
        records: account(status.records.as_ref()),
        records_of_one: (status.records_least, status.records_most),
        has_ended: status.ended,
    }
}

/// A failure in words, with its place.
fn sentence(failure: &Failure, names: &[String]) -> String {
    let node = failure.node.and_then(|node| names.get(node as usize));
    let message = &failure.message;
    match (failure.group.map(group_name), node) {
        (Some(group), Some(node)) => format!("{group} on {node}: {message}"),
        (Some(group), None) => format!("{group}: {message}"),
        (None, Some(node)) => format!("{node}: {message}"),
        (None, None) => message.clone(),
    }
}

fn report(
    request: &StreamRequest,
    run: &Run,
    id: uuid::Uuid,
    moving: Option<Instant>,
    began: Instant,
) -> StreamReport {
    let names: Vec<String> = request.nodes.iter().map(|node| node.name.clone()).collect();
    let stages = run.stages(request.groups);
    let last = run.group(request.groups - 1);
    let sum = |of: fn(&Account) -> u64| {
        let received = last.iter().map(|one| of(&one.received));
        received.fold(0, u64::saturating_add)
    };
    let again = stages.iter().map(|stage| stage.retransmitted_bytes);
    let (outcome, kind) = match run.failure().map(|failure| failure.cause) {
        None => (Outcome::Done, None),
        Some(Cause::Interrupted) => (Outcome::Cancelled, Some(ErrorKind::Interrupted)),
        Some(Cause::Refused) => (Outcome::Refused, Some(ErrorKind::Refused)),
        Some(Cause::Node) => (Outcome::Failed, Some(ErrorKind::Lost)),
        Some(Cause::Account) => (Outcome::Failed, Some(ErrorKind::Other)),
        Some(Cause::Peer | Cause::Violation | Cause::Process) => {
            (Outcome::Failed, Some(ErrorKind::Node))
        }
    };
    let bound = bound_by(&stages).filter(|_| moving.is_some());
    StreamReport {
        stream: Some(id.to_string()),
        outcome,
        error: run
            .failure()
            .map(|failure| sentence(failure, &names) + &named(run, &request.nodes)),
        error_kind: kind,
        seconds: began.elapsed().as_secs_f64(),
        start_seconds: moving
            .unwrap_or_else(Instant::now)
            .duration_since(began)
            .as_secs_f64(),
        bytes: sum(|account| account.bytes),
        blocks: sum(|account| account.blocks),
        bits_per_second: stages.last().map_or(0.0, |stage| stage.bits_per_second),
        block_bytes: request.block,
        encrypted: (0..request.groups)
            .any(|group| run.group(group).iter().any(|one| one.sealed > 0)),
        retransmitted_bytes: again.fold(0, u64::saturating_add),
        accounted: outcome == Outcome::Done,
        bound_by: bound.map(|stage| stage.stage.clone()),
        processes: run.processes(request.groups, &names),
        shuffle: request
            .shuffle
            .map(|shuffle| run.shuffled(shuffle.partitions)),
        stages,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::ObjectRequest;

    fn node(name: &str) -> NodeRequest {
        let objects = |path: String| {
            vec![ObjectRequest {
                object: Object::Path(path.into_bytes()),
                rows: Vec::new(),
                destination: None,
                make_folder: false,
            }]
        };
        NodeRequest {
            sources: objects(format!("/in/{name}")),
            sinks: objects("/out".into()),
            ..NodeRequest::without_part(name, Reach::Local)
        }
    }

    /// Two nodes that read one thing are found and both named; what is not known is no such thing.
    #[test]
    fn sources_are_read_once() {
        let opened = |source: &str| StreamOpened {
            source: source.into(),
            ..StreamOpened::default()
        };
        let before = [None, Some(opened("a")), Some(opened("")), None];
        assert_eq!(read_twice(&before, &opened("a")), Some(1));
        assert_eq!(read_twice(&before, &opened("b")), None);
        assert_eq!(read_twice(&before, &opened("")), None);
        let text = twice([&node("n1"), &node("n2")]);
        assert!(
            text.contains("/in/n1 on n1") && text.contains("/in/n2 on n2"),
            "{text}"
        );
    }

    /// An error while files get their names says which have theirs.
    #[test]
    fn names_that_were_given_are_said() {
        let (now, nodes) = (time::Instant::ZERO, ["n1", "n2", "n3"].map(node));
        let mut run = Run::new(3, 2, vec![0], Nanos::from_secs(60), now);
        for node in 0..3 {
            run.handle_opened(now, node, 0);
        }
        for (node, group) in (0..3).flat_map(|node| [(node, 0), (node, 1)]) {
            let ended = Progress {
                has_ended: true,
                ..Progress::default()
            };
            run.handle_progress(now, node, group, ended);
        }
        assert_eq!(run.poll(now), Some(Action::Finish { commit: true }));
        for (node, error) in [(0, None), (1, Some("in the way".to_owned())), (2, None)] {
            run.handle_finished(now, node, error);
        }
        let text = named(&run, &nodes);
        assert!(text.ends_with("already on n1, n3"), "{text}");
    }
}
