//! One node's part in one transfer: what it holds open, which nodes may pull from it, what it fetches.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ropewalk_lane::Served;
use ropewalk_lane::seal::PairSecret;
use ropewalk_model::{Layout, Range, RangeSet};
use ropewalk_proto::control::{self, FromAgent, from_agent, to_agent};
use ropewalk_proto::report::ErrorKind;
use ropewalk_store::{BufferSource, Growth, PatternSource, Scanning, Source, StoreError};
use tokio::sync::mpsc::UnboundedSender;

use crate::AgentError;
use crate::beside;
use crate::counts::{Counts, Moved};
use crate::handing::{Handing, Holder};
use crate::holdings::{Holdings, manifest_space};
use crate::host::Host;
use crate::interfaces::{self, Interface};
use crate::joined::Entered;
use crate::log::Log;
use crate::member::Member;
use crate::open::{self, OpenSink, OpenSource};
use crate::receiving::Fetch;
use crate::sending::Serving;
use crate::streams::{self, DataSocket, HASH_STREAM, STACK_LEN};
use crate::waits::Side;

mod looking;
mod orphan;
mod probe;

pub(crate) use looking::{Looked, present_messages};

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
    host: &Host,
) -> control::Opened {
    let candidates = interfaces::candidates(usable, is_restricted, reached_as, host.port);
    let (addresses, numbers) = candidates
        .iter()
        .map(|(address, number)| (address.to_string(), *number))
        .unzip();
    control::Opened {
        instance: host.instance.clone(),
        addresses,
        interfaces: numbers,
        interface_rate: interfaces::rate(usable),
        ..control::Opened::default()
    }
}

/// One node's part in one transfer.
pub(crate) struct Transfer {
    pub member: Arc<Member>,
    sources: Mutex<Vec<OpenSource>>,
    sinks: Mutex<Vec<OpenSink>>,
    // Where its files will stand, and at which of these it has left marks.
    places: Vec<ropewalk_store::Place>,
    marked: Mutex<Vec<u32>>,
    serving: Arc<Serving>,
    // What of a shared copy is there.
    looked: Mutex<Looked>,
    // By the master's word what several nodes write is removed, too.
    discards_shared: AtomicBool,
    fetch: Mutex<Option<Arc<Fetch>>>,
    log: Log,
    counts: Counts,
    // Its end is logged once, and only if its beginning was.
    is_logged: AtomicBool,
    // Final paths of what it writes.
    paths: Vec<PathBuf>,
    has_plan: AtomicBool,
    // Another transfer to its destination waits for it, where its master is gone.
    is_awaited: AtomicBool,
}

/// A sending thread looks whether it should stop at least this often while nothing is asked of it.
const IDLE: Duration = Duration::from_secs(5);

impl Transfer {
    /// Opens sources, checks sinks. Nothing is created on disk.
    ///
    /// * `scanning`: counts what is found of trees, and can stop that.
    pub fn open(
        open: &control::Open,
        credentials: &control::Credentials,
        host: &Host,
        outbox: UnboundedSender<FromAgent>,
        reached_as: Option<IpAddr>,
        scanning: &Scanning,
    ) -> Result<(Arc<Self>, control::Opened), AgentError> {
        let is_restricted = !open.rails.is_empty();
        let usable = usable(&open.rails)?;
        let mut opened = reachable(&usable, is_restricted, reached_as, host);
        let mut sources = Vec::new();
        let keep = open::keep(&open.options.unwrap_or_default());
        let filter = open::filter(&open.filter)?;
        for request in &open.sources {
            let files = open.files.as_ref();
            let (source, seen) = open::source(request, keep, &filter, files, host, scanning)?;
            sources.push(source);
            opened.sources.push(seen);
        }
        let options = open.options.unwrap_or_default();
        options
            .check()
            .map_err(|error| AgentError::Refused(error.to_string()))?;
        let sinks = open::sinks(&open.sinks, &options, host)?;
        opened.hands_on = !sinks.is_empty() && sinks.iter().all(OpenSink::is_kept);
        let paths = sinks
            .iter()
            .flat_map(|sink| sink.paths().to_vec())
            .collect();
        let (places, told) = probe::places(&open.sinks, &sinks);
        opened.places = told;
        let member = Member::new(open, credentials, usable, host, outbox)?;
        let transfer = Self {
            member: Arc::new(member),
            sources: Mutex::new(sources),
            sinks: Mutex::new(sinks),
            places,
            marked: Mutex::default(),
            serving: Arc::new(Serving::new()),
            looked: Mutex::default(),
            discards_shared: AtomicBool::new(false),
            fetch: Mutex::new(None),
            log: host.log.clone(),
            counts: host.counts.clone(),
            is_logged: AtomicBool::new(false),
            paths,
            has_plan: AtomicBool::new(false),
            is_awaited: AtomicBool::new(false),
        };
        beside::enter(&host.instance, &transfer.member, &transfer.serving);
        Ok((Arc::new(transfer), opened))
    }

    /// The manifest of a source, for comparing differing sources.
    pub fn manifest(&self, source: usize) -> Option<Vec<u8>> {
        match self.sources.lock().get(source)? {
            OpenSource::Tree { encoded, .. } => Some(encoded.to_vec()),
            _ => None,
        }
    }

    /// Starts moving as planned. Returns at once.
    pub fn start(self: Arc<Self>, plan: control::Plan) {
        self.has_plan.store(true, Ordering::Release);
        let sinks = std::mem::take(&mut *self.sinks.lock());
        if sinks.is_empty() {
            return self.serve(&plan.source_bases, &plan.parts);
        }
        let fetch = Fetch::new(self.member.clone(), &plan);
        *self.fetch.lock() = Some(fetch.clone());
        match plan.hands_on {
            true => self.hand_on(&plan, fetch.clone()),
            false => self.serve(&plan.source_bases, &plan.parts),
        }
        let looked = std::mem::take(&mut *self.looked.lock());
        fetch.start(plan, sinks, looked);
    }

    /// Serves what this node holds, unless it does already.
    fn serve(&self, source_bases: &[u64], parts: &[control::Part]) {
        if self.serving.started() {
            return;
        }
        match self.holdings(source_bases, parts) {
            Ok(holdings) => self.serving.start(holdings),
            Err(error) => self.serving.fail(error.to_string()),
        }
    }

    /// Serves what this node receives; it has nothing else.
    fn hand_on(&self, plan: &control::Plan, holder: Arc<dyn Holder>) {
        let handing = Handing::of(&holder);
        let all = RangeSet::from(Range::new(0, plan.length));
        self.serving.hand_on(handing.clone());
        self.serving.start(Holdings {
            sources: vec![(all, Arc::new(handing))],
            ..Holdings::default()
        });
    }

    fn holdings(
        &self,
        source_bases: &[u64],
        parts: &[control::Part],
    ) -> Result<Holdings, AgentError> {
        let mut holdings = Holdings::default();
        let growth = match self.member.options.as_scanned {
            true => Growth::LeftOut,
            false => Growth::Refused,
        };
        for (at, source) in self.sources.lock().iter().enumerate() {
            let base = source_bases.get(at).copied().unwrap_or(0);
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
                    let source: Arc<dyn Source> = Arc::new(root.open(scan, base, growth)?);
                    holdings.sources.push((RangeSet::from(range), source));
                    for (part, _) in parts
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
                OpenSource::Buffer { name, buffer } => {
                    let range = Range {
                        start: base,
                        end: base.saturating_add(buffer.len()),
                    };
                    let layout = Layout::single(range);
                    let source = BufferSource::new(name, buffer.clone(), layout);
                    let source: Arc<dyn Source> = Arc::new(source.map_err(StoreError::from)?);
                    holdings.sources.push((RangeSet::from(range), source));
                }
                OpenSource::Rows { ranges, source } => {
                    holdings.sources.push((ranges.clone(), source.clone()))
                }
            }
        }
        Ok(holdings)
    }

    /// Serves the joined stream of this receiver and number on a thread of its own until the peer closes it or the transfer ends.
    ///
    /// * `entered`: counts it as open.
    pub fn serve_stream(
        self: Arc<Self>,
        socket: DataSocket,
        (receiver, index): (u32, u32),
        (secret, nonce): (&PairSecret, [u8; 32]),
        entered: Entered,
    ) {
        let over = socket.over(receiver);
        let options = streams::of_stream(&self.member.options, index);
        let Ok(half) = socket.send_half(&options, secret, nonce) else {
            return;
        };
        let builder = std::thread::Builder::new()
            .name("send".into())
            .stack_size(STACK_LEN);
        // Without a thread the stream is dropped, which the peer sees as closed and tries elsewhere.
        let _ = builder.spawn(move || {
            // It counts until the connection is closed.
            let (entered, mut half) = (entered, half);
            entered.opened(half.stopper());
            let key = self.member.remember(half.stopper());
            let Some(holdings) = self.serving.wait() else {
                return self.member.forget(key);
            };
            let _here = self.member.waits.enter(Side::Sends);
            // Those beside the data are not counted among its streams.
            let is_of_data = index < HASH_STREAM;
            let meter = self.serving.meter(holdings, is_of_data);
            if is_of_data {
                self.serving.open_stream(key, over, half.stopper());
            }
            while let Ok(Served::Idle) = half.serve(&meter, IDLE) {
                if self.member.has_ended() {
                    break;
                }
            }
            self.serving.close_stream(key);
            self.member.forget(key);
        });
    }

    /// Takes a message of the master about what this node receives; returns the answer.
    pub fn handle(&self, message: &to_agent::Body) -> Option<from_agent::Body> {
        let fetch = self.fetch.lock().clone();
        fetch.and_then(|fetch| fetch.handle(message))
    }

    /// What to report to the master now.
    pub fn status(&self) -> from_agent::Body {
        let (sending, receiving) = self.member.waits.read();
        let (tcp, rails) = self.serving.tcp_status();
        match self.fetch.lock().as_ref() {
            Some(fetch) => from_agent::Body::Status(control::Status {
                tcp,
                rails,
                sending: Some(sending),
                receiving: Some(receiving),
                ..fetch.status()
            }),
            None => from_agent::Body::SenderStatus(control::SenderStatus {
                sent: self.serving.sent(),
                tcp,
                rails,
                sending: Some(sending),
                comparing: self.member.comparing.report(std::time::Instant::now()),
                awaited_end: self.member.awaited_ends.report(std::time::Instant::now()),
                ..control::SenderStatus::default()
            }),
        }
    }

    /// What it has moved, from the moment its beginning is logged until its end is.
    pub fn counted(&self) -> Option<Moved> {
        if !self.is_logged.load(Ordering::Acquire) {
            return None;
        }
        let fetch = self.fetch.lock().clone();
        Some(Moved {
            sent: self.serving.sent(),
            received: fetch.as_ref().map_or(0, |fetch| fetch.checked()),
            delivered: fetch.as_ref().map_or(0, |fetch| fetch.delivered()),
        })
    }

    /// One line for `status`.
    pub fn status_line(&self) -> control::TransferStatus {
        const PATHS_MAX: usize = 4;
        let fetch = self.fetch.lock().clone();
        let (sending, receiving) = self.member.waits.read();
        let sends = !self.sources.lock().is_empty();
        let paths = self.paths.iter().take(PATHS_MAX);
        control::TransferStatus {
            sending: sends.then_some(sending),
            receiving: (!self.paths.is_empty() || fetch.is_some()).then_some(receiving),
            paths: paths.map(|path| path.display().to_string()).collect(),
            transfer: self.member.id.to_vec(),
            wanted: fetch.as_ref().map_or(0, |f| f.wanted()),
            delivered: fetch.as_ref().map_or(0, |f| f.delivered()),
            checked: fetch.as_ref().map_or(0, |f| f.checked()),
            limit: fetch.as_ref().map_or(0, |f| f.limit()),
            sent: self.serving.sent(),
            age: self.member.now().0,
            phase: if fetch.is_some() || self.serving.started() {
                "moving"
            } else {
                "opening"
            }
            .into(),
            cancelled: self.member.has_ended(),
            ..control::TransferStatus::default()
        }
    }

    /// Logs that a master at `caller` has opened it.
    pub fn log_begin(&self, caller: &str) {
        self.counts.change(|totals| {
            totals.begun += 1;
            self.is_logged.store(true, Ordering::Release);
        });
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
        let ended = self.counts.change(|totals| {
            let moved = self.counted()?;
            self.is_logged.store(false, Ordering::Release);
            totals.moved.add(moved);
            Some(moved)
        });
        let Some(Moved {
            sent, delivered, ..
        }) = ended
        else {
            return;
        };
        // Zeros are counted with the others, and did not leave.
        let fetch = self.fetch.lock().clone();
        let (sent_zeros, zeros) = (
            self.serving.skipped(),
            fetch.map_or(0, |fetch| fetch.zeros()),
        );
        let zeros_of = |zeros| match zeros {
            0 => String::new(),
            zeros => format!(", of them {zeros} zeros that did not cross"),
        };
        let (sent_zeros, zeros) = (zeros_of(sent_zeros), zeros_of(zeros));
        self.log.say(|| {
            let seconds = self.member.now().0 as f64 / 1e9;
            format!(
                "transfer {} ends after {seconds:.1} s: {outcome}, sent {sent} bytes{sent_zeros}, received {delivered} bytes{zeros}",
                self.name()
            )
        });
    }

    /// Its id as people see it.
    fn name(&self) -> String {
        let digits: String = self
            .member
            .id
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
        parts.join("-")
    }

    /// Stops every stream and thread of the transfer. With `discard`, temporary files go too. `outcome` is for the log.
    pub fn stop(&self, discard: bool, outcome: &str) {
        self.end(discard, false, outcome);
    }

    /// Ends the transfer where no order of its master will be received: complete files of an own copy get their names. The
    /// first of several calls does that, the others wait for it.
    ///
    /// * `ended`: why, for the log.
    pub fn stop_without_master(&self, ended: &str) {
        let fetch = self.fetch.lock().clone();
        if let Some(fetch) = &fetch {
            fetch.keep_more();
        }
        let outcome = match fetch.map(|fetch| fetch.commit_without_master()) {
            None | Some(Ok(false)) => ended.to_owned(),
            Some(Ok(true)) => format!("{ended}; complete files were renamed into place"),
            Some(Err(error)) => format!("{ended}; no file was renamed: {error}"),
        };
        self.stop(true, &outcome);
    }

    /// As [`Transfer::stop`]; with `shared`, files that other nodes write too are removed as well.
    /// The receiving side is let go, so that nothing of the transfer stays in memory.
    fn end(&self, discard: bool, shared: bool, outcome: &str) {
        self.log_end(outcome);
        self.discards_shared
            .fetch_or(discard && shared, Ordering::AcqRel);
        self.member.end();
        self.serving.stop();
        self.remove_marks();
        let fetch = self.fetch.lock().take();
        if let Some(fetch) = fetch {
            fetch.stop(discard, shared);
        }
        let looked = std::mem::take(&mut *self.looked.lock());
        looked.end(discard && shared);
        self.sources.lock().clear();
    }

    /// Ends the node's part on request at this node, and reports the reason to the master.
    pub fn cancel(&self, reason: &str, caller: &str) {
        let fetch = self.fetch.lock().clone();
        if let Some(fetch) = fetch {
            fetch.fail(reason.to_owned());
            fetch.send_done();
        }
        // Also when it has said that it is done: it could be given more, and it may send to others.
        self.member
            .send(from_agent::Body::Refused(control::Refused {
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
        if let Some(fetch) = &fetch {
            fetch.conclude();
        }
        if let Some(fetch) = fetch.as_ref().filter(|_| !word.interrupted) {
            fetch.keep_more();
        }
        if word.commit {
            if let Some(fetch) = fetch.as_ref().filter(|_| word.again) {
                fetch.take_over();
            }
            let seen = fetch
                .as_ref()
                .map_or(Ok(()), |f| f.see_samples(&word.samples));
            // What nobody else sees is no part of a whole; what only could not be renamed is kept.
            discard |= seen.is_err();
            let renamed = |fetch: &Arc<Fetch>| match word.whole_files {
                true => fetch.commit_whole_files(),
                false => fetch.commit().map(|()| true),
            };
            match fetch.as_ref().map(|f| seen.and_then(|()| renamed(f))) {
                Some(Ok(renamed)) => finished.committed = renamed,
                Some(Err(error)) => finished.error = error,
                // Where bytes are missing it need not have begun.
                None if word.whole_files => {}
                None => {
                    finished.error =
                        "its part was ended before it could give the files their names".into();
                }
            }
            // Also where a commit has failed after some of it.
            finished.landed = fetch.as_ref().and_then(|f| f.landed());
        }
        if finished.error.is_empty() {
            let late = fetch.as_ref().and_then(|fetch| fetch.late_failure());
            finished.error = late.unwrap_or_default();
        }
        let failed = fetch.as_ref().and_then(|fetch| fetch.failure());
        let failed = failed.or_else(|| Some(&finished.error).filter(|e| !e.is_empty()).cloned());
        let outcome = match (failed, discard) {
            (Some(reason), _) => format!("failed, {reason}"),
            (None, true) if fetch.is_none() => "it wrote nothing".into(),
            (None, true) => "incomplete; what a later copy cannot go on with is removed".into(),
            (None, false) => "done".into(),
        };
        let grown = self.serving.grown();
        self.end(discard, true, &outcome);
        if let Some(fetch) = &fetch {
            fetch.await_made();
        }
        finished.safe = fetch.as_ref().map_or(0, |fetch| fetch.safe());
        finished.left = fetch.map(|fetch| fetch.left()).unwrap_or_default();
        (finished.grown, finished.grown_more) = grown;
        finished.sent = self.serving.sent();
        finished.best_second = self.serving.best_second();
        finished.usage = Some(self.member.usage());
        let (sending, receiving) = self.member.waits.read();
        finished.sending = Some(sending);
        finished.receiving = Some(receiving);
        finished
    }
}

#[cfg(test)]
impl Transfer {
    /// A node that neither has nor wants anything and knows no peer, and what it tells its master.
    pub(crate) fn alone() -> (Arc<Self>, tokio::sync::mpsc::UnboundedReceiver<FromAgent>) {
        let (member, said) = Member::alone();
        let transfer = Self {
            member,
            sources: Mutex::default(),
            sinks: Mutex::default(),
            places: Vec::new(),
            marked: Mutex::default(),
            serving: Arc::new(Serving::new()),
            looked: Mutex::default(),
            discards_shared: AtomicBool::new(false),
            fetch: Mutex::new(None),
            log: Log::default(),
            counts: Counts::default(),
            is_logged: AtomicBool::new(false),
            paths: Vec::new(),
            has_plan: AtomicBool::new(false),
            is_awaited: AtomicBool::new(false),
        };
        (Arc::new(transfer), said)
    }
}
