//! One node's part in one transfer: what it holds open, who may pull from it, what it fetches.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use ropewalk_lane::preface::{MacKey, PREFACE_LEN, Preface};
use ropewalk_lane::seal::{PairSecret, derive};
use ropewalk_lane::{Stopper, tls};
use ropewalk_model::{Range, RangeSet, time};
use ropewalk_proto::control::{self, FromAgent, from_agent, to_agent};
use ropewalk_proto::report::ErrorKind;
use ropewalk_store::{PatternSource, Source};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use crate::connect::Connected;
use crate::find::Carried;
use crate::interfaces::{self, Interface};
use crate::landing::Holdings;
use crate::listen::{Shared, Work};
use crate::log::Log;
use crate::open::{self, OpenSink, OpenSource};
use crate::receiving::Fetch;
use crate::reversed::{CARRIERS_MAX, Pool, READY_MAX};
use crate::sending::Serving;
use crate::tunnel::Tunnel;
use crate::{AgentError, usage};

/// Streams one peer may join over the life of a transfer; bounds the memory of used nonces (32 bytes each).
const JOINS_MAX: usize = 1 << 16;

/// A peer that has done the pair handshake.
struct Pair {
    secret: PairSecret,
    join_key: MacKey,
    used: HashSet<[u8; 32]>,
}

/// The interfaces of this host that may carry data, of those that were named, if any were.
fn usable(rails: &[String]) -> Result<Vec<Interface>, AgentError> {
    let usable = interfaces::usable(rails);
    if rails.is_empty() || !usable.is_empty() {
        return Ok(usable);
    }
    let all = interfaces::usable(&[]).into_iter().map(|own| own.name);
    let all: Vec<String> = all.collect();
    Err(AgentError::Refused(format!(
        "no interface of this host is among the rails {}; it has {}",
        rails.join(", "),
        match all.is_empty() {
            true => "none that other hosts could reach".into(),
            false => all.join(", "),
        }
    )))
}

/// Where this node is reached, for its master.
fn reachable(
    usable: &[Interface],
    is_restricted: bool,
    reached_as: Option<IpAddr>,
    shared: &Shared,
) -> control::Opened {
    let candidates = interfaces::candidates(usable, is_restricted, reached_as, shared.port);
    let (addresses, numbers) = candidates
        .iter()
        .map(|(address, number)| (address.to_string(), *number))
        .unzip();
    control::Opened {
        instance: shared.instance.clone(),
        addresses,
        interfaces: numbers,
        interface_rate: interfaces::rate(usable),
        ..control::Opened::default()
    }
}

/// One node's part in one transfer.
pub(crate) struct Transfer {
    pub id: [u8; 16],
    pub node: u32,
    /// Of the node, for what is said of it.
    pub name: String,
    pub options: control::Options,
    /// Interfaces of this host that carry data; whether others must not; whether more than one rail to a peer may be used.
    pub interfaces: Vec<Interface>,
    pub is_restricted: bool,
    pub one_rail: bool,
    pub preface_key: MacKey,
    pub pair_server: Arc<rustls::ServerConfig>,
    pub pair_client: Arc<rustls::ClientConfig>,
    pub began: Instant,
    began_usage: control::Usage,
    pairs: Mutex<HashMap<u32, Pair>>,
    sources: Mutex<Vec<OpenSource>>,
    sinks: Mutex<Vec<OpenSink>>,
    // Where its files will stand, and at which of these it has left marks.
    places: Vec<ropewalk_store::Place>,
    marked: Mutex<Vec<u32>>,
    pub serving: Serving,
    fetch: Mutex<Option<Arc<Fetch>>>,
    stoppers: Mutex<HashMap<u64, Stopper>>,
    next_stopper: std::sync::atomic::AtomicU64,
    pub stopped: AtomicBool,
    /// The same, for tasks that wait for it.
    pub ended: watch::Sender<bool>,
    /// Peers that this node is connected to: how, for all that follows.
    pub ways: Mutex<HashMap<u32, Arc<Connected>>>,
    pub carried: Carried,
    /// Connections that senders have made to this node, and receivers that this node keeps one ready for.
    pub pool: Pool,
    pub dialled: Mutex<HashSet<u32>>,
    pub work: Work,
    /// Through the master, where this agent has a pipe to it; whether that is on this host; connections that it made.
    pub tunnel: Option<Arc<Tunnel>>,
    pub is_near_master: bool,
    pub carriers: Pool,
    log: Log,
    // Its end is logged once, and only if its beginning was.
    is_logged: AtomicBool,
    outbox: UnboundedSender<FromAgent>,
}

impl Transfer {
    /// Opens sources, checks sinks. Nothing is created on disk.
    pub fn open(
        open: &control::Open,
        credentials: &control::Credentials,
        shared: &Shared,
        outbox: UnboundedSender<FromAgent>,
        reached_as: Option<IpAddr>,
    ) -> Result<(Arc<Self>, control::Opened), AgentError> {
        let id = <[u8; 16]>::try_from(open.transfer.as_slice()).map_err(|_| {
            AgentError::Refused(
                "the transfer's id is not 16 bytes; this is a fault of the master".into(),
            )
        })?;
        let identity = tls::Identity {
            certificate: credentials.certificate.clone(),
            seed: credentials.seed.clone(),
        };
        let is_restricted = !open.rails.is_empty();
        let usable = usable(&open.rails)?;
        let mut opened = reachable(&usable, is_restricted, reached_as, shared);
        let mut sources = Vec::new();
        for request in &open.sources {
            let (source, seen) = open::source(request, &shared.roots)?;
            sources.push(source);
            opened.sources.push(seen);
        }
        let options = open.options.unwrap_or_default();
        options
            .check()
            .map_err(|error| AgentError::Refused(error.to_string()))?;
        let sinks = open::sinks(&open.sinks, options.existing(), &shared.roots)?;
        let (places, told) = probe::places(&open.sinks, &sinks);
        opened.places = told;
        let transfer = Self {
            id,
            node: open.node,
            name: open.name.clone(),
            options,
            interfaces: usable,
            is_restricted,
            one_rail: open.one_rail,
            preface_key: tls::transfer_key(&credentials.secret),
            pair_server: tls::pair_server(&identity, &credentials.authority)?,
            pair_client: tls::pair_client(&identity, &credentials.authority)?,
            began: Instant::now(),
            began_usage: usage::now(),
            pairs: Mutex::default(),
            sources: Mutex::new(sources),
            sinks: Mutex::new(sinks),
            places,
            marked: Mutex::default(),
            serving: Serving::new(),
            fetch: Mutex::new(None),
            stoppers: Mutex::default(),
            next_stopper: std::sync::atomic::AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            ended: watch::Sender::new(false),
            ways: Mutex::default(),
            carried: Carried::default(),
            pool: Pool::of(READY_MAX),
            dialled: Mutex::default(),
            work: shared.work.clone(),
            tunnel: shared.tunnel.get().cloned(),
            is_near_master: open.is_near_master,
            carriers: Pool::of(CARRIERS_MAX),
            log: shared.log.clone(),
            is_logged: AtomicBool::new(false),
            outbox,
        };
        Ok((Arc::new(transfer), opened))
    }

    /// Time since the transfer was opened, the zero of all its clocks.
    pub fn now(&self) -> time::Instant {
        time::Instant::after(self.began.elapsed())
    }

    /// Whether it has been stopped, at whatever end.
    pub fn has_ended(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub fn send(&self, body: from_agent::Body) {
        let _ = self.outbox.send(FromAgent { body: Some(body) });
    }

    /// The manifest of a source, for comparing differing sources.
    pub fn manifest(&self, source: usize) -> Option<Vec<u8>> {
        match self.sources.lock().get(source)? {
            OpenSource::Tree { encoded, .. } => Some(encoded.to_vec()),
            _ => None,
        }
    }

    /// A peer finished its handshake: streams sealed with `secret` may join.
    pub fn add_pair(&self, node: u32, secret: PairSecret) {
        let join_key = MacKey::new(&derive(&secret.0, "join", b""));
        self.pairs.lock().insert(
            node,
            Pair {
                secret,
                join_key,
                used: HashSet::new(),
            },
        );
    }

    /// Checks a join preface; a nonce is good once, so a replayed preface gets nothing.
    pub fn admit(
        &self,
        node: u32,
        bytes: &[u8; PREFACE_LEN],
        head: &Preface,
    ) -> Option<PairSecret> {
        let mut pairs = self.pairs.lock();
        let pair = pairs.get_mut(&node)?;
        if !Preface::verify(bytes, &pair.join_key)
            || pair.used.len() >= JOINS_MAX
            || !pair.used.insert(head.nonce)
        {
            return None;
        }
        Some(pair.secret.clone())
    }

    /// Keeps a stream's stopper until the stream ends; see [`Transfer::forget`].
    pub fn remember(&self, stopper: Stopper) -> u64 {
        let key = self.next_stopper.fetch_add(1, Ordering::Relaxed);
        self.stoppers.lock().insert(key, stopper.clone());
        // Stopping may have happened in between.
        if self.stopped.load(Ordering::Acquire) {
            stopper.stop();
        }
        key
    }

    pub fn forget(&self, key: u64) {
        self.stoppers.lock().remove(&key);
    }

    /// Starts moving as planned. Returns at once.
    pub fn start(self: Arc<Self>, plan: control::Plan) {
        match self.holdings(&plan) {
            Ok(holdings) => self.serving.start(holdings),
            Err(error) => self.serving.fail(error.to_string()),
        }
        let sinks = std::mem::take(&mut *self.sinks.lock());
        if sinks.is_empty() {
            return;
        }
        let fetch = Fetch::new(self.clone(), &plan);
        *self.fetch.lock() = Some(fetch.clone());
        fetch.start(plan, sinks);
    }

    fn holdings(&self, plan: &control::Plan) -> Result<Holdings, AgentError> {
        let mut holdings = Holdings::default();
        for (at, source) in self.sources.lock().iter().enumerate() {
            let base = plan.source_bases.get(at).copied().unwrap_or(0);
            match source {
                OpenSource::Tree {
                    root,
                    scan,
                    encoded,
                    hash,
                } => {
                    let range = Range {
                        start: base,
                        end: base.saturating_add(scan.manifest.data_len()),
                    };
                    let source: Arc<dyn Source> = Arc::new(root.open(scan, base)?);
                    holdings.sources.push((RangeSet::from(range), source));
                    for (part, _) in plan
                        .parts
                        .iter()
                        .enumerate()
                        .filter(|(_, p)| p.manifest_root == hash)
                    {
                        holdings
                            .manifests
                            .push((manifest_space(part), encoded.clone()));
                    }
                }
                OpenSource::Memory(size) => {
                    let ranges = RangeSet::from(Range {
                        start: base,
                        end: base.saturating_add(*size),
                    });
                    holdings
                        .sources
                        .push((ranges.clone(), Arc::new(PatternSource::new(ranges)?)));
                }
                OpenSource::Rows { ranges, source } => {
                    holdings.sources.push((ranges.clone(), source.clone()))
                }
            }
        }
        Ok(holdings)
    }

    /// Takes a message of the master about what this node receives; returns the answer.
    pub fn handle(&self, message: &to_agent::Body) -> Option<from_agent::Body> {
        let fetch = self.fetch.lock().clone();
        fetch.and_then(|fetch| fetch.handle(message))
    }

    /// A better way to a peer works: what is opened from now on goes there, and what is open moves.
    pub fn move_way(&self, from: &Arc<Connected>, to: Arc<Connected>) {
        let node = to.peer.node;
        {
            let mut ways = self.ways.lock();
            // It was given up meanwhile.
            if !ways
                .get(&node)
                .is_some_and(|known| Arc::ptr_eq(known, from))
            {
                return;
            }
            ways.insert(node, to.clone());
        }
        let fetch = self.fetch.lock().clone();
        if let Some(fetch) = fetch {
            fetch.move_way(from, to);
        }
    }

    /// What to report to the master now.
    pub fn status(&self) -> from_agent::Body {
        match self.fetch.lock().as_ref() {
            Some(fetch) => from_agent::Body::Status(control::Status {
                tcp: self.serving.tcp_status(),
                ..fetch.status()
            }),
            None => from_agent::Body::SenderStatus(control::SenderStatus {
                sent: self.serving.sent(),
                tcp: self.serving.tcp_status(),
            }),
        }
    }

    /// One line for `status`.
    pub fn status_line(&self) -> control::TransferStatus {
        let fetch = self.fetch.lock().clone();
        control::TransferStatus {
            transfer: self.id.to_vec(),
            wanted: fetch.as_ref().map_or(0, |f| f.wanted()),
            delivered: fetch.as_ref().map_or(0, |f| f.delivered()),
            checked: fetch.as_ref().map_or(0, |f| f.checked()),
            sent: self.serving.sent(),
            age: self.now().0,
            phase: if fetch.is_some() || self.serving.started() {
                "moving"
            } else {
                "opening"
            }
            .into(),
            cancelled: self.stopped.load(Ordering::Acquire),
        }
    }

    /// Logs that a master at `caller` has opened it.
    pub fn log_begin(&self, caller: &str) {
        self.is_logged.store(true, Ordering::Release);
        self.log.say(|| {
            let role = match (self.sources.lock().is_empty(), self.sinks.lock().is_empty()) {
                (false, true) => "sends",
                (true, false) => "receives",
                (false, false) => "sends and receives",
                (true, true) => "has no part",
            };
            format!(
                "{caller}: transfer {} begins, this node {role}",
                self.name()
            )
        });
    }

    fn log_end(&self, outcome: &str) {
        if !self.is_logged.swap(false, Ordering::AcqRel) {
            return;
        }
        self.log.say(|| {
            let fetch = self.fetch.lock().clone();
            let received = fetch.map_or(0, |fetch| fetch.delivered());
            let seconds = self.began.elapsed().as_secs_f64();
            format!(
                "transfer {} ends after {seconds:.1} s: {outcome}, sent {} bytes, received {received} bytes",
                self.name(),
                self.serving.sent()
            )
        });
    }

    /// Its id as people see it.
    fn name(&self) -> String {
        let digits: String = self.id.iter().map(|byte| format!("{byte:02x}")).collect();
        let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
        parts.join("-")
    }

    /// Stops every stream and thread of the transfer. With `discard`, temporary files go too. `outcome` is for the log.
    pub fn stop(&self, discard: bool, outcome: &str) {
        self.end(discard, false, outcome);
    }

    /// As [`Transfer::stop`]; with `shared`, files that other nodes write too are removed as well.
    /// The receiving side is let go, so that nothing of the transfer stays in memory.
    fn end(&self, discard: bool, shared: bool, outcome: &str) {
        self.log_end(outcome);
        self.stopped.store(true, Ordering::Release);
        self.ended.send_replace(true);
        for (_, stopper) in self.stoppers.lock().drain() {
            stopper.stop();
        }
        self.serving.stop();
        self.remove_marks();
        let fetch = self.fetch.lock().take();
        if let Some(fetch) = fetch {
            fetch.stop(discard, shared);
        }
        self.sources.lock().clear();
        self.pairs.lock().clear();
        self.ways.lock().clear();
    }

    /// Ends the node's part on request at this node, and reports the reason to the master.
    pub fn cancel(&self, reason: &str, caller: &str) {
        let fetch = self.fetch.lock().clone();
        if let Some(fetch) = fetch {
            fetch.fail(reason.to_owned());
            fetch.send_done();
        }
        // Also when it has said that it is done: it could be given more, and it may send to others.
        self.send(from_agent::Body::Refused(control::Refused {
            code: ErrorKind::Interrupted.wire(),
            message: reason.to_owned(),
        }));
        self.stop(true, &format!("{reason} by {caller}"));
    }

    /// The master's final message: rename or remove what is temporary, and account.
    pub fn finish(&self, word: &control::Finish) -> control::Finished {
        let mut discard = word.discard;
        let fetch = self.fetch.lock().clone();
        let mut finished = control::Finished::default();
        if word.commit {
            if let Some(fetch) = fetch.as_ref().filter(|_| word.again) {
                fetch.take_over();
            }
            let seen = fetch
                .as_ref()
                .map_or(Ok(()), |f| f.see_samples(&word.samples));
            // What nobody else sees is no part of a whole; what only could not be renamed is kept.
            discard |= seen.is_err();
            match fetch.as_ref().map(|f| seen.and_then(|()| f.commit())) {
                Some(Ok(())) => {
                    finished.committed = true;
                    finished.landed = fetch.as_ref().and_then(|f| f.landed());
                }
                Some(Err(error)) => finished.error = error,
                None => {
                    finished.error =
                        "its part was ended before it could give the files their names".into();
                }
            }
        }
        let failed = fetch.as_ref().and_then(|fetch| fetch.failure());
        let failed = failed.or_else(|| Some(&finished.error).filter(|e| !e.is_empty()).cloned());
        let outcome = match (failed, discard) {
            (Some(reason), _) => format!("failed, {reason}"),
            (None, true) => "what it wrote is discarded".into(),
            (None, false) => "done".into(),
        };
        self.end(discard, true, &outcome);
        finished.left = fetch.map(|fetch| fetch.left()).unwrap_or_default();
        finished.sent = self.serving.sent();
        finished.best_second = self.serving.best_second();
        finished.usage = Some(self.usage());
        finished
    }

    /// Processor time since the transfer was opened, and the largest memory of the process.
    pub fn usage(&self) -> control::Usage {
        let now = usage::now();
        control::Usage {
            processor: now.processor.saturating_sub(self.began_usage.processor),
            ..now
        }
    }
}

#[cfg(test)]
impl Transfer {
    /// A node that neither has nor wants anything and knows no peer, and what it tells its master.
    pub(crate) fn alone() -> (Arc<Self>, tokio::sync::mpsc::UnboundedReceiver<FromAgent>) {
        let authority = tls::Authority::new().unwrap();
        let identity = authority.issue(0).unwrap();
        let (outbox, said) = tokio::sync::mpsc::unbounded_channel();
        let transfer = Self {
            id: [7; 16],
            node: 0,
            name: "alone".into(),
            options: control::Options::default(),
            interfaces: Vec::new(),
            is_restricted: false,
            one_rail: false,
            preface_key: tls::transfer_key(&[0; 32]),
            pair_server: tls::pair_server(&identity, authority.public_key()).unwrap(),
            pair_client: tls::pair_client(&identity, authority.public_key()).unwrap(),
            began: Instant::now(),
            began_usage: usage::now(),
            pairs: Mutex::default(),
            sources: Mutex::default(),
            sinks: Mutex::default(),
            places: Vec::new(),
            marked: Mutex::default(),
            serving: Serving::new(),
            fetch: Mutex::new(None),
            stoppers: Mutex::default(),
            next_stopper: std::sync::atomic::AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            ended: watch::Sender::new(false),
            ways: Mutex::default(),
            carried: Carried::default(),
            pool: Pool::of(READY_MAX),
            is_near_master: false,
            carriers: Pool::of(CARRIERS_MAX),
            dialled: Mutex::default(),
            work: Work::default(),
            tunnel: None,
            log: Log::default(),
            is_logged: AtomicBool::new(false),
            outbox,
        };
        (Arc::new(transfer), said)
    }
}

mod probe;

/// Space number of a part's manifest.
pub(crate) fn manifest_space(part: usize) -> u16 {
    u16::try_from(part + 1).unwrap_or(u16::MAX)
}
