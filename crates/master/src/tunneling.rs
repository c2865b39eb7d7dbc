//! Runs one tunnel: listens, has the node's agent connect to the targets, and passes connections on over all rails. Of remote forwards
//! the agent listens, and this end connects.
//!
//! Bytes of a tunnel do not depend on its control connection, which may run over an interface that has failed while others work: once
//! the rails are connected, the message socket alone says when the tunnel is over.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ropewalk_lane::preface;
use ropewalk_message::{ByteStreams, MessageError, Options as RailOptions, RailReport};
use ropewalk_proto::control::{
    self, ForwardListening, ForwardOpen, ForwardOpened, ToAgent, from_agent, to_agent,
};
use ropewalk_proto::coordinator::Rails;
use ropewalk_proto::report::{ErrorKind, Event, Outcome};
use ropewalk_proto::tunnel::listening::Bind;
use ropewalk_proto::tunnel::report::{TunnelCarried, TunnelForward, TunnelRail, TunnelReport};
use ropewalk_proto::tunnel::watch::{NOTES_MAX, Seen, Watch};
use ropewalk_proto::tunnel::{LOST_SECONDS, Target};
use ropewalk_tunnel::{Bound, Counts, Served, accept_all, bind, serve};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::connections::{Connections, Input};
use crate::drive::Cancel;
use crate::reach::{Reached, describe, reach_each, send_away};
use crate::request::{NodeRequest, Options, Reach};

mod rails;

use rails::{Rail, rails, unused};

/// Time between two events with the state of the tunnel.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// Time in which the agent opens its end.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// Threads of connections reset these within this time; what is left then ends with the process.
const RESET_TIMEOUT: Duration = Duration::from_millis(500);

/// Time between two looks whether they have.
const RESET_LOOK: Duration = Duration::from_millis(5);

/// Stack of the thread that takes streams of the node.
const STACK_LEN: usize = 256 << 10;

/// A tunnel to be run.
#[derive(Clone, Debug)]
pub struct TunnelRequest {
    /// The node whose agent connects to the targets.
    pub node: NodeRequest,
    /// How it is reached; `plain` and `rails` are of the tunnel, too.
    pub options: Options,
    /// What is forwarded from this host; with those below at most [`TARGETS_MAX`](ropewalk_proto::tunnel::TARGETS_MAX).
    pub forwards: Vec<ForwardRequest>,
    /// What is forwarded from the node's host to targets that this host finds.
    pub remotes: Vec<RemoteRequest>,
}

/// One forward from the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteRequest {
    /// Where the node's agent listens.
    pub bind: Bind,
    /// Where connections go on to from this host.
    pub target: Target,
}

/// One forward from this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardRequest {
    /// Addresses to listen on; with port 0 the system chooses one for all of them. The first must be there, others may be missing.
    pub listen: Vec<SocketAddr>,
    /// Where connections go on to.
    pub target: Target,
}

/// What happens while a tunnel runs.
#[derive(Clone, Debug)]
pub enum TunnelEvent {
    /// The node is reached, or awaited.
    Reaching(Event),
    /// Connections are taken from now on.
    Started {
        /// What is forwarded, with the ports that were chosen.
        forwards: Vec<TunnelForward>,
        /// All rails, whether they work or not.
        rails: Vec<TunnelRail>,
    },
    /// What the tunnel has carried so far.
    Progress {
        /// Since it started.
        seconds: f64,
        /// Connections and their bytes.
        carried: TunnelCarried,
        /// All rails.
        rails: Vec<TunnelRail>,
    },
    /// A rail is lost or works again, the control connection is lost, or a target refuses.
    Note {
        /// Since the tunnel started.
        seconds: f64,
        /// In words.
        message: String,
    },
}

/// Runs a tunnel until it is cancelled or its last rail is lost. Never fails by itself: refusals and errors are in the report.
pub async fn tunnel(
    request: TunnelRequest,
    events: UnboundedSender<TunnelEvent>,
    cancel: Cancel,
) -> TunnelReport {
    let began = Instant::now();
    let node = request.node.name.clone();
    let refused = |kind, text: &str| TunnelReport {
        seconds: began.elapsed().as_secs_f64(),
        ..TunnelReport::refused(&node, kind, text)
    };
    let bound = request.forwards.iter().map(|one| bind(&one.listen));
    let bound: Vec<Bound> = match bound.collect() {
        Ok(bound) => bound,
        Err(text) => return refused(ErrorKind::Refused, &text),
    };
    let opening = open(&request, &events);
    let opened = tokio::select! {
        opened = opening => opened,
        () = cancel.cancelled() => Err(Unopened {
            outcome: Outcome::Cancelled,
            ..Unopened::new(ErrorKind::Interrupted, "interrupted")
        }),
    };
    let opened = match opened {
        Ok(opened) => opened,
        Err(unopened) => {
            let report = refused(unopened.kind, &unopened.text);
            return TunnelReport {
                outcome: unopened.outcome,
                ..report
            };
        }
    };
    let Opened {
        connections,
        inputs,
        rails,
        streams,
        listening,
    } = opened;
    let forwards = named(&request, &bound, listening);
    let unused = unused(&request.options.rails, &rails);
    let running = Running::new(&request, forwards, rails, streams, events);
    unused.into_iter().for_each(|note| running.note(note));
    let (kind, text) = running.run(bound, inputs, &cancel).await;
    let report = TunnelReport {
        outcome: match kind {
            ErrorKind::Interrupted => Outcome::Cancelled,
            _ => Outcome::Failed,
        },
        error: Some(text),
        error_kind: Some(kind),
        seconds: began.elapsed().as_secs_f64(),
        ..running.report()
    };
    // Connections are reset, and the agent learns that it has no reason to stay.
    running.streams.close();
    running.closed().await;
    connections.close().await;
    report
}

/// All forwards, with the ports that were chosen.
fn named(
    request: &TunnelRequest,
    bound: &[Bound],
    listening: Vec<ForwardListening>,
) -> Vec<TunnelForward> {
    let forward = |remote, listen, target: &Target| TunnelForward {
        remote,
        listen,
        target: target.to_string(),
    };
    let own = request.forwards.iter().zip(bound);
    let own = own.map(|(asked, bound)| forward(false, bound.names(), &asked.target));
    let remote = request.remotes.iter().zip(listening);
    let remote = remote.map(|(asked, there)| forward(true, there.addresses, &asked.target));
    own.chain(remote).collect()
}

/// Why a tunnel did not begin.
struct Unopened {
    outcome: Outcome,
    kind: ErrorKind,
    text: String,
}

impl Unopened {
    fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self {
            outcome: Outcome::Refused,
            kind,
            text: text.into(),
        }
    }
}

/// The agent's end is open, and rails connect to it.
struct Opened {
    connections: Connections,
    inputs: UnboundedReceiver<Input>,
    rails: Vec<Rail>,
    streams: Arc<ByteStreams>,
    /// Where it listens.
    listening: Vec<ForwardListening>,
}

async fn open(
    request: &TunnelRequest,
    events: &UnboundedSender<TunnelEvent>,
) -> Result<Opened, Unopened> {
    let loopback = request.node.reach == Reach::Local;
    let notice = |event: Event| {
        let _ = events.send(TunnelEvent::Reaching(event));
    };
    let nodes = std::slice::from_ref(&request.node);
    let none = Default::default();
    let answers = reach_each(nodes, &request.options, loopback, None, none, notice).await;
    if answers.iter().any(Result::is_err) {
        let text = describe(answers.iter().filter_map(|answer| answer.as_ref().err()));
        send_away(answers.into_iter().flatten().collect()).await;
        return Err(Unopened::new(ErrorKind::Unreachable, text));
    }
    let (mut connections, mut inputs) = Connections::new();
    let mut at = None;
    for reached in answers.into_iter().flatten() {
        let reached: Reached = reached;
        at = match loopback {
            // Its agent listens there alone.
            true => Some(([127, 0, 0, 1].into(), None)),
            false => reached.at,
        };
        connections.add(reached);
    }
    let secret: [u8; 32] = preface::random_bytes();
    let body = to_agent::Body::ForwardOpen(asked(request, &secret));
    connections.send(0, &ToAgent { body: Some(body) });
    connections.flush();
    let answered = tokio::time::timeout(OPEN_TIMEOUT, answer(&request.node.name, &mut inputs));
    let opened = answered.await.unwrap_or_else(|_| {
        let name = &request.node.name;
        let text = format!("{name}: no answer within {} s", OPEN_TIMEOUT.as_secs());
        Err(Unopened::new(ErrorKind::Unreachable, text))
    });
    let connected = match opened {
        Ok(opened) => (connect(request, at, &opened, secret).await)
            .map(|(rails, streams)| (rails, streams, opened.listening)),
        Err(unopened) => Err(unopened),
    };
    match connected {
        Ok((rails, streams, listening)) => Ok(Opened {
            connections,
            inputs,
            rails,
            streams: Arc::new(streams),
            listening,
        }),
        Err(unopened) => {
            connections.close().await;
            Err(unopened)
        }
    }
}

/// What the agent is to open.
fn asked(request: &TunnelRequest, secret: &[u8; 32]) -> ForwardOpen {
    let targets = request
        .forwards
        .iter()
        .map(|forward| control::ForwardTarget {
            host: forward.target.host.clone(),
            port: forward.target.port.into(),
        });
    let listens = request.remotes.iter().map(|remote| control::ForwardListen {
        host: remote.bind.host.clone(),
        port: remote.bind.port.into(),
    });
    let rails = match &request.options.rails {
        Rails::Only(names) => names.clone(),
        Rails::All | Rails::One => Vec::new(),
    };
    ForwardOpen {
        secret: secret.to_vec(),
        plain: request.options.plain,
        targets: targets.collect(),
        rails,
        listens: listens.collect(),
    }
}

async fn answer(
    name: &str,
    inputs: &mut UnboundedReceiver<Input>,
) -> Result<ForwardOpened, Unopened> {
    while let Some(input) = inputs.recv().await {
        match input {
            Input::Message(_, message, _, _) => match message.body {
                Some(from_agent::Body::ForwardOpened(opened)) => return Ok(opened),
                Some(from_agent::Body::Refused(refused)) => {
                    let text = format!("{name}: {}", refused.message);
                    return Err(Unopened::new(ErrorKind::Refused, text));
                }
                _ => {}
            },
            Input::Lost(_, reason) => {
                let text = format!("{name}: the connection to its agent ended: {reason}");
                return Err(Unopened::new(ErrorKind::Unreachable, text));
            }
            // A tunnel carries nothing between nodes, and none joins.
            Input::Uncarried { .. } | Input::Reached(..) => {}
        }
    }
    Err(Unopened::new(ErrorKind::Other, "no control connection"))
}

/// Connects the rails.
async fn connect(
    request: &TunnelRequest,
    at: Option<(IpAddr, Option<u16>)>,
    opened: &ForwardOpened,
    secret: [u8; 32],
) -> Result<(Vec<Rail>, ByteStreams), Unopened> {
    let name = &request.node.name;
    if opened.listening.len() != request.remotes.len() {
        let text =
            format!("{name}: its Ropewalk is older and does not listen for tunnels; update it");
        return Err(Unopened::new(ErrorKind::Refused, text));
    }
    let rails = rails(&request.options.rails, at, opened)
        .map_err(|text| Unopened::new(ErrorKind::Refused, format!("{name}: {text}")))?;
    let options = RailOptions {
        token: Some(secret),
        plain: request.options.plain,
        local: rails.iter().map(|rail| rail.local).collect(),
        peer_timeout: Duration::from_secs(LOST_SECONDS),
        ..RailOptions::default()
    };
    let addresses: Vec<SocketAddr> = rails.iter().map(|rail| rail.remote).collect();
    let connecting =
        tokio::task::spawn_blocking(move || ByteStreams::connect(&addresses, &options));
    match connecting.await {
        Ok(Ok(streams)) => Ok((rails, streams)),
        Ok(Err(error)) => {
            let text = format!(
                "{name}: its agent answers, but no interface leads to its port: {error}; a tunnel needs a TCP port of the \
                 node that this host reaches: open one in its firewall and name it with --ports, or with --listen of a \
                 standing agent"
            );
            Err(Unopened::new(ErrorKind::Unreachable, text))
        }
        Err(_) => Err(Unopened::new(
            ErrorKind::Other,
            "connecting failed; this is a bug",
        )),
    }
}

fn carried(counts: &Counts) -> TunnelCarried {
    TunnelCarried {
        connections: counts.accepted.load(Ordering::Relaxed),
        open_connections: counts.open.load(Ordering::Relaxed),
        reset_connections: counts.reset.load(Ordering::Relaxed),
        sent_bytes: counts.passed.to_stream.load(Ordering::Relaxed),
        received_bytes: counts.passed.from_stream.load(Ordering::Relaxed),
    }
}

/// Why a tunnel is over.
///
/// * `was_up`: a rail worked at the last look before.
fn over(node: &str, error: &MessageError, was_up: bool) -> String {
    match error {
        MessageError::PeerClosed if was_up => format!("{node}: its agent has ended the tunnel"),
        // It is reached again, and has given this host up meanwhile.
        MessageError::PeerClosed => {
            format!(
                "{node} was lost: no rail worked for so long that its agent has ended the tunnel"
            )
        }
        error => format!("{node} is lost: {error}"),
    }
}

/// A tunnel while it runs.
struct Running {
    node: String,
    encrypted: bool,
    forwards: Vec<TunnelForward>,
    /// Of remote forwards.
    targets: Vec<Target>,
    names: Vec<String>,
    streams: Arc<ByteStreams>,
    counts: Arc<Counts>,
    events: UnboundedSender<TunnelEvent>,
    started: Instant,
    notes: parking_lot::Mutex<Vec<String>>,
}

impl Running {
    fn new(
        request: &TunnelRequest,
        forwards: Vec<TunnelForward>,
        rails: Vec<Rail>,
        streams: Arc<ByteStreams>,
        events: UnboundedSender<TunnelEvent>,
    ) -> Self {
        Self {
            node: request.node.name.clone(),
            encrypted: !request.options.plain,
            forwards,
            targets: request
                .remotes
                .iter()
                .map(|one| one.target.clone())
                .collect(),
            names: rails.iter().map(Rail::to_string).collect(),
            streams,
            counts: Arc::default(),
            events,
            started: Instant::now(),
            notes: parking_lot::Mutex::default(),
        }
    }

    /// Until it is over: of which kind the reason is, and in words.
    async fn run(
        &self,
        bound: Vec<Bound>,
        mut inputs: UnboundedReceiver<Input>,
        cancel: &Cancel,
    ) -> (ErrorKind, String) {
        let (failed, mut failures) = unbounded_channel();
        let mut accepting = JoinSet::new();
        let say = move |text: String| drop(failed.send(text));
        for (target, bound) in (0..).zip(bound) {
            for listener in bound.into_listeners() {
                let (streams, counts) = (self.streams.clone(), self.counts.clone());
                let taking = accept_all(listener, target, streams, counts, say.clone());
                accepting.spawn(taking);
            }
        }
        if let Err(text) = self.serve(say) {
            return (ErrorKind::Other, text);
        }
        let mut watch = Watch::new(self.names.clone());
        let seen = self.look();
        watch.handle_rails(&seen);
        for warning in self.streams.warnings() {
            self.note(warning);
        }
        let _ = self.events.send(TunnelEvent::Started {
            forwards: self.forwards.clone(),
            rails: self.rails(),
        });
        let mut was_up = seen.iter().any(|rail| rail.is_up);
        let mut tick = tokio::time::interval(PROGRESS_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut is_controlled = true;
        loop {
            tokio::select! {
                () = cancel.cancelled() => return (ErrorKind::Interrupted, "interrupted".into()),
                _ = tick.tick() => {
                    let seen = self.look();
                    for note in watch.handle_rails(&seen) {
                        self.note(note);
                    }
                    if let Some(error) = self.streams.failure() {
                        return (ErrorKind::Lost, over(&self.node, &error, was_up));
                    }
                    was_up = seen.iter().any(|rail| rail.is_up);
                    self.progress();
                }
                input = inputs.recv(), if is_controlled => match input {
                    Some(Input::Lost(_, reason)) => {
                        is_controlled = false;
                        self.note(Watch::control_lost(&self.node, &reason));
                    }
                    Some(_) => {}
                    None => is_controlled = false,
                },
                Some(failure) = failures.recv() => self.note(failure),
            }
        }
    }

    /// Connects streams that the node opens to the targets of this host, and to no others. Without such targets none is taken.
    fn serve(&self, say: impl Fn(String) + Send + Sync + 'static) -> Result<(), String> {
        if self.targets.is_empty() {
            return Ok(());
        }
        let served = Arc::new(Served {
            targets: self.targets.clone(),
            counts: self.counts.clone(),
            say: Box::new(say),
        });
        let streams = self.streams.clone();
        let thread = std::thread::Builder::new().name("tunnel".into());
        let taking = move || serve(&served, || streams.accept());
        let started = thread.stack_size(STACK_LEN).spawn(taking);
        started
            .map(drop)
            .map_err(|error| format!("cannot start a thread: {error}"))
    }

    /// Returns when no connection is open.
    async fn closed(&self) {
        let ended = async {
            while self.counts.open.load(Ordering::Relaxed) > 0 {
                tokio::time::sleep(RESET_LOOK).await;
            }
        };
        let _ = tokio::time::timeout(RESET_TIMEOUT, ended).await;
    }

    fn look(&self) -> Vec<Seen> {
        let rails = self.streams.rails().into_iter();
        rails
            .map(|rail| Seen {
                is_up: rail.is_up,
                cause: rail.cause,
            })
            .collect()
    }

    fn rails(&self) -> Vec<TunnelRail> {
        let rails = self.names.iter().zip(self.streams.rails());
        let rail = |(name, rail): (&String, RailReport)| TunnelRail {
            rail: name.clone(),
            up: rail.is_up,
            cause: rail.cause,
            sent_bytes: rail.bytes_sent,
            received_bytes: rail.bytes_received,
        };
        rails.map(rail).collect()
    }

    fn note(&self, message: String) {
        let mut notes = self.notes.lock();
        notes.push(message.clone());
        let more = notes.len().saturating_sub(NOTES_MAX);
        notes.drain(..more);
        drop(notes);
        let _ = self.events.send(TunnelEvent::Note {
            seconds: self.started.elapsed().as_secs_f64(),
            message,
        });
    }

    fn progress(&self) {
        let _ = self.events.send(TunnelEvent::Progress {
            seconds: self.started.elapsed().as_secs_f64(),
            carried: carried(&self.counts),
            rails: self.rails(),
        });
    }

    fn report(&self) -> TunnelReport {
        TunnelReport {
            encrypted: self.encrypted,
            forwards: self.forwards.clone(),
            carried: carried(&self.counts),
            rails: self.rails(),
            notes: self.notes.lock().clone(),
            ..TunnelReport::refused(&self.node, ErrorKind::Other, "")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An agent that gave this host up while no rail worked has not ended the tunnel by itself.
    #[test]
    fn an_agent_that_was_away_was_lost() {
        let ended = over("a", &MessageError::PeerClosed, true);
        assert_eq!(ended, "a: its agent has ended the tunnel");
        let lost = over("a", &MessageError::PeerClosed, false);
        assert!(lost.starts_with("a was lost: no rail worked"), "{lost}");
    }
}
