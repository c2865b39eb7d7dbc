//! One master's connection: proves the token, opens a transfer, reports while it moves.

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use ropewalk_lane::control::Sealed;
use ropewalk_proto::control::{self, FromAgent, LENGTH_LEN, ToAgent, from_agent, to_agent};
use ropewalk_proto::report::ErrorKind;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedRwLockReadGuard, mpsc, watch};
use tokio::task::JoinHandle;

use crate::door::Place;
use crate::examine::Examining;
use crate::forward::{self, FORWARDS_MAX, Forward};
use crate::incoming::{Caller, Refusal};
use crate::masters::Connected;
use crate::meter::Meter;
use crate::reversed;
use crate::running::{self, CANCELLED};
use crate::shared::Shared;
use crate::stages::Stream;
use crate::transfer::Transfer;

pub(crate) mod opening;
mod probing;
#[cfg(test)]
mod tests;

use opening::Opening;
use probing::Probing;

/// A master that does not prove the token by then is gone.
const PROOF_TIMEOUT: Duration = Duration::from_secs(10);

/// Where one that ends a transfer panics.
const FAILED_THREAD: &str =
    "a thread of the agent failed; this is a bug, its standard error says where";

/// Status is sent at least this often, so that the master can tell a dead host from a busy one.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Time between statuses of a node that only sends while the number of streams is tuned.
const STATUS_TUNING: Duration = Duration::from_millis(200);

/// Longest list of files that is sent for comparing: one message carries it, with a few bytes around it.
const MANIFEST_SENT_MAX: usize = control::MESSAGE_MAX - 64;

/// Messages that are due at once are joined up to so many bytes.
const TOGETHER_MAX: usize = 64 << 10;

/// Time between statuses of a stream, which show at a terminal.
const STREAM_STATUS: Duration = Duration::from_millis(500);

/// Shortest time between two status messages, whatever the master asks for.
const STATUS_MIN: Duration = Duration::from_millis(100);

/// Runs until the connection ends, then stops what the master started; where that was not ordered, after a time of grace.
pub(crate) async fn run<S>(
    mut stream: Sealed<S>,
    caller: Caller,
    shared: Arc<Shared>,
    place: Place,
) -> Result<(), Refusal>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    prove(&mut stream, &place).await?;
    // Until here anybody can get who has seen a master's preface go by.
    drop(place);
    let reached_as = caller.reached_as.map(|address| address.ip().to_canonical());
    // Its host answers for it, or the connection breaks.
    let heard = watch::Sender::new(());
    let _connected = Connected::new(&shared.masters);
    converse(stream, reached_as, caller.name, shared, heard).await;
    Ok(())
}

/// Waits until the peer has proved that it knows the token.
pub(crate) async fn prove<S>(stream: &mut Sealed<S>, place: &Place) -> Result<(), Refusal>
where
    S: AsyncRead + Unpin,
{
    let proven = tokio::select! {
        biased;
        proven = stream.proven() => proven,
        () = place.taken() => return Err(Refusal::GaveWay),
        () = tokio::time::sleep(PROOF_TIMEOUT) => return Err(Refusal::Handshake),
    };
    proven.map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => Refusal::WrongToken,
        _ => Refusal::Handshake,
    })
}

/// As [`run`], with a master that needs no proof.
pub(crate) async fn converse<S>(
    stream: S,
    reached_as: Option<IpAddr>,
    caller: String,
    shared: Arc<Shared>,
    heard: watch::Sender<()>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut reader, mut writer) = tokio::io::split(stream);
    let (inbox_sender, mut inbox) = mpsc::channel::<ToAgent>(16);
    let reading = tokio::spawn(async move { read_on(&mut reader, &inbox_sender, &heard).await });
    let (outbox, mut outgoing) = mpsc::unbounded_channel::<FromAgent>();
    let mut session = Session {
        status_every: HEARTBEAT,
        shared: shared.clone(),
        reached_as,
        caller,
        credentials: None,
        opening: None,
        transfer: None,
        finishing: None,
        stream: None,
        ending: None,
        forward: None,
        probing: None,
        at_work: None,
        examining: Arc::default(),
        outbox,
        ended: false,
    };
    let mut beat = every(HEARTBEAT);
    // The master says nothing more.
    let mut is_silent = false;
    let mut shutdown = shared.shutdown.clone();
    loop {
        let message = tokio::select! {
            biased;
            changed = shutdown.changed() => if changed.is_err() || *shutdown.borrow() { break } else { continue },
            message = outgoing.recv() => message,
            ended = opening::ended(&mut session.opening) => {
                session.opening = None;
                session.handle_opened(ended);
                continue;
            }
            finished = finished(&mut session.finishing) => {
                session.finishing = None;
                session.send(from_agent::Body::Finished(finished));
                session.ended = true;
                continue;
            }
            finished = stream_finished(&mut session.ending) => {
                session.ending = None;
                session.end_stream();
                session.send(from_agent::Body::StreamFinished(finished));
                session.ended = true;
                continue;
            }
            probed = probing::ended(&mut session.probing) => {
                session.handle_probed(probed, &mut beat).await;
                continue;
            }
            message = inbox.recv(), if session.hears() && (session.finishing.is_none() || !is_silent) => {
                let is_ending = session.finishing.is_some();
                match message {
                    Some(message) if is_ending => session.handle_at_the_end(&message),
                    Some(message) => session.handle(message, &mut beat).await,
                    None if is_ending => is_silent = true,
                    None => break,
                }
                continue;
            }
            _ = beat.tick() => session.status(),
        };
        // What one input has caused leaves together.
        let mut bytes = message.as_ref().map(control::encode).unwrap_or_default();
        while bytes.len() < TOGETHER_MAX
            && let Ok(more) = outgoing.try_recv()
        {
            bytes.extend_from_slice(&control::encode(&more));
        }
        if writer.write_all(&bytes).await.is_err() {
            break;
        }
        // The last answer leaves with the end of the connection.
        if session.ended && outgoing.is_empty() {
            break;
        }
        if writer.flush().await.is_err() {
            break;
        }
    }
    // Before the connection ends: the master waits for that, and its files are gone then.
    if session.examining.is_used() {
        let examining = session.examining.clone();
        let _ = tokio::task::spawn_blocking(move || examining.end()).await;
    }
    let _ = writer.shutdown().await;
    reading.abort();
    session.close(shutdown).await;
}

/// Hands on what the master says until the connection ends.
async fn read_on<R: AsyncRead + Unpin>(
    reader: &mut R,
    inbox: &mpsc::Sender<ToAgent>,
    heard: &watch::Sender<()>,
) {
    while let Some(message) = read_message(reader).await {
        // A question before the transfer: the master may reach other hosts for long before it says more.
        if !matches!(message.body, Some(to_agent::Body::Expand(_))) {
            heard.send_replace(());
        }
        // Nothing to say but that it is there.
        if message.body.is_none() {
            continue;
        }
        if inbox.send(message).await.is_err() {
            return;
        }
    }
}

async fn read_message<R: AsyncRead + Unpin>(reader: &mut R) -> Option<ToAgent> {
    let mut length = [0; LENGTH_LEN];
    reader.read_exact(&mut length).await.ok()?;
    let mut bytes = vec![0; control::decode_length(length).ok()?];
    reader.read_exact(&mut bytes).await.ok()?;
    control::decode(&bytes).ok()
}

/// Why a list of files of so many bytes cannot be sent.
fn too_long(bytes: usize) -> String {
    const MIB: usize = 1 << 20;
    format!(
        "its list of files takes {} MiB, more than the {} MiB that can be compared; make the sources equal, or copy subfolders one by one",
        bytes.div_ceil(MIB),
        MANIFEST_SENT_MAX / MIB
    )
}

/// Ends a transfer. Where that panics all that it holds is let go: its journals are the next transfer's.
fn stopped_on_panic<T>(transfer: &Transfer, end: impl FnOnce(&Transfer) -> T) -> T {
    catch_unwind(AssertUnwindSafe(|| end(transfer))).unwrap_or_else(|panic| {
        transfer.stop(false, FAILED_THREAD);
        resume_unwind(panic)
    })
}

/// How a transfer has ended, when it has; never where none is ending.
async fn finished(
    finishing: &mut Option<(Arc<Transfer>, JoinHandle<control::Finished>)>,
) -> control::Finished {
    match finishing {
        Some((_, work)) => work.await.unwrap_or_else(|error| match error.is_panic() {
            false => control::Finished::default(),
            true => control::Finished {
                error: FAILED_THREAD.into(),
                ..control::Finished::default()
            },
        }),
        None => std::future::pending().await,
    }
}

/// As [`finished`], of a stream.
async fn stream_finished(
    ending: &mut Option<JoinHandle<control::StreamFinished>>,
) -> control::StreamFinished {
    let Some(work) = ending else {
        return std::future::pending().await;
    };
    // Whether its file has its name is not known then.
    work.await.unwrap_or_else(|_| control::StreamFinished {
        error: FAILED_THREAD.into(),
    })
}

/// Statuses with this pause, the first one after it: until then there is nothing to tell.
fn every(pause: Duration) -> tokio::time::Interval {
    let mut beat = tokio::time::interval_at(tokio::time::Instant::now() + pause, pause);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    beat
}

struct Session {
    status_every: Duration,
    shared: Arc<Shared>,
    reached_as: Option<IpAddr>,
    // At the other end, for the log.
    caller: String,
    credentials: Option<control::Credentials>,
    // Before there is a transfer.
    opening: Option<Opening>,
    transfer: Option<Arc<Transfer>>,
    // Instead of it, while it ends.
    finishing: Option<(Arc<Transfer>, JoinHandle<control::Finished>)>,
    // Instead of a transfer.
    stream: Option<Arc<Stream>>,
    // Of the stream that there is.
    ending: Option<JoinHandle<control::StreamFinished>>,
    forward: Option<Arc<Forward>>,
    outbox: mpsc::UnboundedSender<FromAgent>,
    examining: Arc<Examining>,
    // Of the transfer that there is.
    probing: Option<Probing>,
    // From when there is a transfer until its files are in order.
    at_work: Option<OwnedRwLockReadGuard<()>>,
    // The last answer is on its way; the connection closes once it is written.
    ended: bool,
}

impl Drop for Session {
    /// A transfer that is still there when the session has ended, as its task has failed, is stopped, and so are its threads.
    fn drop(&mut self) {
        if let Some(transfer) = self.transfer.take() {
            self.shared.transfers.lock().remove(&transfer.member.id);
            let stopping = std::thread::Builder::new().name("stop".into());
            let stop = move || transfer.stop(false, FAILED_THREAD);
            let _ = stopping.spawn(stop);
        }
    }
}

impl Session {
    fn send(&self, body: from_agent::Body) {
        let _ = self.outbox.send(FromAgent { body: Some(body) });
    }

    fn refuse(&self, message: impl Into<String>) {
        self.refuse_as(ErrorKind::Refused, message.into());
    }

    fn refuse_as(&self, kind: ErrorKind, message: String) {
        let (caller, host) = (&self.caller, &self.shared.host);
        host.counts.change(|totals| totals.refused += 1);
        host.log.warn(|| format!("{caller}: refused, {message}"));
        self.send(from_agent::Body::Refused(control::Refused {
            code: kind.wire(),
            message,
        }));
    }

    /// Whether it takes another message.
    fn hears(&self) -> bool {
        self.probing.as_ref().is_none_or(Probing::has_space)
    }

    /// To what receives. False where there was no answer.
    fn pass_on(&self, message: &to_agent::Body) -> bool {
        let answer = self
            .transfer
            .as_ref()
            .and_then(|transfer| transfer.handle(message));
        let is_answered = answer.is_some();
        if let Some(answer) = answer {
            self.send(answer);
        }
        is_answered
    }

    /// Sends what a look has found, and does what was asked for meanwhile.
    async fn handle_probed(&mut self, probed: control::Probed, beat: &mut tokio::time::Interval) {
        let Some(mut ended) = self.probing.take() else {
            return;
        };
        if ended.asks {
            self.send(from_agent::Body::Probed(probed));
        }
        while let Some(message) = ended.later.pop_front() {
            self.handle(message, beat).await;
            if let Some(next) = &mut self.probing {
                next.later = ended.later;
                break;
            }
        }
    }

    async fn handle(&mut self, message: ToAgent, beat: &mut tokio::time::Interval) {
        let message = match &mut self.probing {
            Some(probing) => probing.keep(message),
            None => Some(message),
        };
        let Some(message) = message else {
            return;
        };
        match message.body {
            Some(to_agent::Body::Credentials(credentials)) => self.credentials = Some(credentials),
            Some(to_agent::Body::Open(open)) => {
                if !self.has_work() {
                    self.beat_for(&open, beat);
                    self.open(open);
                }
            }
            Some(to_agent::Body::ManifestQuery(query)) => self.send_manifest(query.source),
            Some(to_agent::Body::Look(look)) => match &self.transfer {
                Some(transfer) => transfer.clone().look(look),
                None => self.refuse("a look was asked for before the transfer was opened"),
            },
            Some(to_agent::Body::There(there)) => {
                if let Some(transfer) = &self.transfer {
                    transfer.take_there(&there);
                }
            }
            Some(to_agent::Body::Plan(plan)) => match &self.transfer {
                Some(transfer) => {
                    if plan.beat_milliseconds > 0 {
                        let pause = Duration::from_millis(plan.beat_milliseconds.into());
                        *beat = every(pause.clamp(STATUS_MIN, self.status_every));
                    }
                    transfer.clone().start(plan);
                }
                None => self.refuse("a plan arrived before the transfer was opened"),
            },
            Some(to_agent::Body::Revision(revision)) => {
                if revision.settle && beat.period() < self.status_every {
                    *beat = every(self.status_every);
                }
                self.pass_on(&to_agent::Body::Revision(revision));
            }
            Some(
                body @ (to_agent::Body::Limit(_)
                | to_agent::Body::Streams(_)
                | to_agent::Body::Permit(_)),
            ) => {
                self.pass_on(&body);
            }
            Some(to_agent::Body::Probe(probe)) => {
                if let Some(transfer) = self.transfer.clone() {
                    self.probing = Some(Probing::begin(transfer, probe, &self.shared.host.work));
                }
            }
            Some(to_agent::Body::Examine(asked)) => self.examine(asked),
            Some(to_agent::Body::Expand(expand)) => {
                let shared = self.shared.clone();
                let expanding = tokio::task::spawn_blocking(move || shared.host.expand(&expand.patterns));
                self.send(from_agent::Body::Expanded(expanding.await.unwrap_or_default()));
            }
            Some(to_agent::Body::Route(route)) => {
                if let Some(transfer) = &self.transfer {
                    reversed::handle(&self.shared, &transfer.member, route);
                }
            }
            Some(body @ to_agent::Body::Release(_)) => {
                if !self.pass_on(&body) {
                    self.send(from_agent::Body::Released(control::Released::default()));
                }
            }
            Some(to_agent::Body::Finish(finish)) => self.finish(finish),
            Some(to_agent::Body::StatusQuery(query)) => self.say_status(&query).await,
            Some(to_agent::Body::CancelQuery(query)) => self.cancel(&query).await,
            Some(to_agent::Body::StreamOpen(open)) => {
                if !self.has_work() {
                    *beat = every(STREAM_STATUS);
                    self.open_stream(open).await;
                }
            }
            Some(to_agent::Body::StreamStart(start)) => {
                if let (Some(stream), None) = (&self.stream, &self.ending) {
                    stream.start(&start);
                }
            }
            Some(to_agent::Body::StreamFinish(finish)) => {
                self.finish_stream(finish.commit);
                self.ended |= self.ending.is_none();
            }
            Some(to_agent::Body::ForwardOpen(open)) => {
                if !self.has_work() {
                    self.open_forward(open).await;
                }
            }
            None => self.refuse("the message has no body that this version knows; install the same Ropewalk on all hosts"),
        }
    }

    /// While a transfer ends only that matters which its end waits for.
    fn handle_at_the_end(&self, message: &ToAgent) {
        if let Some(body @ to_agent::Body::Permit(_)) = &message.body
            && let Some((transfer, _)) = &self.finishing
        {
            transfer.handle(body);
        }
    }

    /// How often it says how it gets on.
    fn beat_for(&mut self, open: &control::Open, beat: &mut tokio::time::Interval) {
        if let Some(milliseconds) = open
            .options
            .as_ref()
            .map(|o| o.status_milliseconds)
            .filter(|&m| m > 0)
        {
            self.status_every =
                Duration::from_millis(milliseconds.into()).clamp(STATUS_MIN, HEARTBEAT);
            // What senders say of their streams is what tuning goes by.
            if open.sinks.is_empty() && open.options.is_some_and(|o| o.streams == 0) {
                self.status_every = self.status_every.min(STATUS_TUNING);
            }
            *beat = every(self.status_every);
        }
    }

    fn send_manifest(&self, source: u32) {
        let manifest = self
            .transfer
            .as_ref()
            .and_then(|t| t.manifest(source as usize));
        match manifest {
            Some(manifest) if manifest.len() > MANIFEST_SENT_MAX => {
                self.refuse(too_long(manifest.len()))
            }
            Some(manifest) => self.send(from_agent::Body::ManifestReply(control::ManifestReply {
                manifest,
                source,
            })),
            None => self.refuse("no such source is open"),
        }
    }

    /// Begins to end the transfer; it says meanwhile how far it is.
    fn finish(&mut self, finish: control::Finish) {
        // What has not opened yet has made nothing.
        self.opening = None;
        self.probing = None;
        let Some(transfer) = self.transfer.take() else {
            self.send(from_agent::Body::Finished(control::Finished::default()));
            self.ended = true;
            return;
        };
        self.shared.transfers.lock().remove(&transfer.member.id);
        let ending = transfer.clone();
        let work =
            tokio::task::spawn_blocking(move || stopped_on_panic(&ending, |e| e.finish(&finish)));
        self.finishing = Some((transfer, work));
    }

    async fn cancel(&mut self, query: &control::CancelQuery) {
        let mut lines = Vec::new();
        let _at_work = self.shared.host.work.clone().try_read_owned();
        for running in running::select(&self.shared, &query.transfer) {
            let mut line = running.status_line();
            let (shared, caller) = (self.shared.clone(), self.caller.clone());
            let work = tokio::task::spawn_blocking(move || running.cancel(&shared, &caller));
            let _ = work.await;
            line.cancelled = true;
            lines.push(line);
        }
        self.send(from_agent::Body::StatusReply(control::StatusReply {
            transfers: lines,
            ..control::StatusReply::default()
        }));
    }

    async fn say_status(&self, query: &control::StatusQuery) {
        let mut reply = Meter::new(self.shared.clone()).report(&query.transfer);
        if query.around {
            let shared = self.shared.clone();
            // It asks other processes, one after the other.
            let looking =
                tokio::task::spawn_blocking(move || shared.around.get().map(|look| look()));
            let found = looking.await.ok().flatten().unwrap_or_default();
            // Beside it in the message there is little.
            reply.around = match found.len() <= control::MESSAGE_MAX / 2 {
                true => found,
                false => Vec::new(),
            };
        }
        self.send(from_agent::Body::StatusReply(reply));
    }

    /// Examines the host beside the connection, whose end stops that.
    fn examine(&mut self, asked: control::Examine) {
        let Ok(at_work) = self.shared.host.work.clone().try_read_owned() else {
            return self.refuse("the agent is about to end");
        };
        // Until its files are removed, too.
        self.at_work = self.shared.host.work.clone().try_read_owned().ok();
        if !self.examining.begin() {
            return self.refuse("this host is being examined; wait for the answer");
        }
        let log = &self.shared.host.log;
        log.say(|| format!("{}: examines this host", self.caller));
        let (shared, examining) = (self.shared.clone(), self.examining.clone());
        let outbox = self.outbox.clone();
        tokio::task::spawn_blocking(move || {
            let examined = examining.answer(&asked, &shared.host);
            let body = Some(from_agent::Body::Examined(examined));
            let _ = outbox.send(FromAgent { body });
            drop(at_work);
        });
    }

    /// A connection has one transfer, one stream or one tunnel: a second one is refused.
    fn has_work(&self) -> bool {
        let is_used = self.transfer.is_some()
            || self.opening.is_some()
            || self.stream.is_some()
            || self.forward.is_some();
        if is_used {
            self.refuse(
                "this connection has a transfer, a stream or a tunnel already; connect once for each",
            );
        }
        is_used
    }

    /// Begins to open what the node has; it says meanwhile how far it is.
    fn open(&mut self, open: control::Open) {
        let Some(credentials) = self.credentials.take() else {
            return self.refuse("credentials must arrive before the transfer is opened");
        };
        let (shared, outbox) = (self.shared.clone(), self.outbox.clone());
        let opening = Opening::begin(open, credentials, shared, outbox, self.reached_as);
        self.opening = Some(opening);
    }

    fn handle_opened(&mut self, ended: opening::Ended) {
        match ended {
            opening::Ended::Opened(Ok((transfer, opened))) => {
                let Ok(at_work) = self.shared.host.work.clone().try_read_owned() else {
                    return self.refuse("the agent is about to end");
                };
                let mut transfers = self.shared.transfers.lock();
                if transfers.contains_key(&transfer.member.id) {
                    drop(transfers);
                    return self.refuse(
                        "this node already takes part in that transfer; name each host once",
                    );
                }
                let orphans = transfers.values().filter(|other| other.meets(&transfer));
                orphans.for_each(|orphan| orphan.end_grace());
                transfers.insert(transfer.member.id, transfer.clone());
                drop(transfers);
                transfer.log_begin(&self.caller);
                self.transfer = Some(transfer);
                self.at_work = Some(at_work);
                self.send(from_agent::Body::Opened(opened));
            }
            opening::Ended::Opened(Err(error)) => self.refuse_as(error.kind(), error.to_string()),
            opening::Ended::Failed => self.refuse("the agent failed while opening; see its log"),
            opening::Ended::Cancelled => {
                let caller = &self.caller;
                let text = || format!("{caller}: transfer {CANCELLED} while it was opened");
                self.shared.host.log.say(text);
                self.send(from_agent::Body::Refused(control::Refused {
                    code: ErrorKind::Interrupted.wire(),
                    message: CANCELLED.into(),
                }));
            }
        }
    }

    async fn open_stream(&mut self, open: control::StreamOpen) {
        let Ok(at_work) = self.shared.host.work.clone().try_read_owned() else {
            return self.refuse("the agent is about to end");
        };
        let (shared, outbox, reached_as) =
            (self.shared.clone(), self.outbox.clone(), self.reached_as);
        let opening = tokio::task::spawn_blocking(move || {
            let config = shared.stages.as_ref();
            Stream::open(open, config, &shared.host, outbox, reached_as)
        });
        match opening.await {
            Ok(Ok((stream, opened))) => {
                let known = self.shared.streams.lock().insert(stream.id, stream.clone());
                if let Some(known) = known {
                    // Both are this master's, which names a host twice.
                    let id = known.id;
                    self.shared.streams.lock().insert(id, known);
                    let ending = tokio::task::spawn_blocking(move || stream.finish(false));
                    drop(ending.await);
                    return self.refuse(
                        "this agent already takes part in that stream; name each host once",
                    );
                }
                self.shared
                    .host
                    .log
                    .say(|| format!("{}: stream begins", self.caller));
                self.stream = Some(stream);
                self.at_work = Some(at_work);
                self.send(from_agent::Body::StreamOpened(opened));
            }
            Ok(Err(error)) => self.refuse(error.to_string()),
            Err(_) => self.refuse("the agent failed while opening; see its log"),
        }
    }

    async fn open_forward(&mut self, open: control::ForwardOpen) {
        let (shared, reached_as) = (self.shared.clone(), self.reached_as);
        let opening = tokio::task::spawn_blocking(move || {
            if shared.forwards.lock().len() >= FORWARDS_MAX {
                let text = format!("this agent has {FORWARDS_MAX} tunnels already; end one first");
                return Err(crate::AgentError::Refused(text));
            }
            let (permitted, host) = (&shared.permitted, &shared.host);
            let made = Forward::open(&open, permitted, host, reached_as);
            made.inspect(|(forward, _)| {
                let forward = forward.clone();
                shared.forwards.lock().insert(forward.key_id, forward);
            })
        });
        match opening.await {
            Ok(Ok((forward, opened))) => {
                let log = &self.shared.host.log;
                log.say(|| format!("{}: tunnel begins, to {}", self.caller, forward.targets()));
                let (watched, shared) = (forward.clone(), self.shared.clone());
                tokio::spawn(forward::watch(watched, shared, self.caller.clone()));
                self.forward = Some(forward);
                self.send(from_agent::Body::ForwardOpened(opened));
            }
            Ok(Err(error)) => self.refuse(error.to_string()),
            Err(_) => self.refuse("the agent failed while opening; see its log"),
        }
    }

    /// Begins to end the stream, if there is one; the first order counts.
    fn finish_stream(&mut self, commit: bool) {
        let (Some(stream), None) = (&self.stream, &self.ending) else {
            return;
        };
        let (log, ending) = (&self.shared.host.log, stream.clone());
        log.say(|| format!("{}: stream ends", self.caller));
        self.ending = Some(tokio::task::spawn_blocking(move || ending.finish(commit)));
    }

    /// The stream has ended.
    fn end_stream(&mut self) {
        let Some(stream) = self.stream.take() else {
            return;
        };
        let shared = &self.shared;
        shared.host.counts.change(|totals| {
            if shared.streams.lock().remove(&stream.id).is_some() {
                totals.moved.add(stream.moved());
            }
        });
    }

    fn status(&self) -> Option<FromAgent> {
        if self.forward.is_some() {
            // Nothing to say: what is not acknowledged shows that the master's host is gone.
            return Some(FromAgent { body: None });
        }
        let of_stream = self.stream.as_ref().map(|stream| stream.status());
        let ending = self.finishing.as_ref().map(|(transfer, _)| transfer);
        let transfer = self.transfer.as_ref().or(ending);
        let of_opening = self.opening.as_ref().map(Opening::status);
        let body = of_stream.or(of_opening);
        let body = body.or_else(|| transfer.map(|t| t.status()))?;
        Some(FromAgent { body: Some(body) })
    }

    async fn close(&mut self, shutdown: watch::Receiver<bool>) {
        self.opening = None;
        if let Some((_, work)) = self.finishing.take() {
            let _ = work.await;
        }
        self.finish_stream(false);
        if self.ending.is_some() {
            stream_finished(&mut self.ending).await;
            self.ending = None;
            self.end_stream();
        }
        if let Some(forward) = self.forward.take() {
            let (shared, caller) = (self.shared.clone(), self.caller.clone());
            tokio::spawn(forward::outlast(forward, shared, caller));
        }
        if let Some(transfer) = self.transfer.take() {
            transfer.outlast_master(shutdown).await;
            self.shared.transfers.lock().remove(&transfer.member.id);
            let ended = "the connection to its master ended";
            let stop = move || stopped_on_panic(&transfer, |t| t.stop_without_master(ended));
            let _ = tokio::task::spawn_blocking(stop).await;
        }
    }
}
