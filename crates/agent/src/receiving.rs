//! Drives the receiving side: one thread per stream asks the state machine what to grant, one
//! thread per lane connects, one thread makes bytes safe.
//!
//! The state machine sits behind one short lock, taken per batch of units, never per frame.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use ropewalk_lane::{BlastSeen, Grant, LaneError, Observation, ReceiveHalf, Received, missing};
use ropewalk_model::{Range, RangeSet};
use ropewalk_proto::control::{self, Peer, from_agent};
use ropewalk_proto::participant::{Event, Receiving, Take};
use ropewalk_proto::wire::SPACE_DATA;

use crate::connect;
use crate::landing::{SinkLanding, SinkSet};
use crate::open::OpenSink;
use crate::rails::Rail;
use crate::streams::{self, STACK_LEN, verify};
use crate::transfer::Transfer;
use rails::Way;

mod finish;
mod manifests;
mod meter;
mod rails;

/// An idle stream looks this often for work to steal; other wake-ups come by notice. One whose
/// node has finished waits as well: the master may bring more.
const IDLE: Duration = Duration::from_millis(50);

/// Longest a stream waits for the peer before it looks for cancels and the end.
const POLL: Duration = Duration::from_millis(200);

/// Pauses before each new attempt to open a stream that broke. Refused at once (the process is
/// gone) or silent, a peer is given up after the last.
const RETRIES: [Duration; 3] = [
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(1000),
];

/// Streams of a pair when nobody said: enough to fill a path that one stream does not.
const STREAMS_PER_PAIR: u32 = 4;

/// Where a node has many pairs, the pairs make the streams: about this many in all, one a pair at least.
const STREAMS_PER_NODE: u32 = 32;

/// A stream that owes units and brings nothing for so long is given up while another rail to the same host works.
const RAIL_SILENCE: Duration = Duration::from_millis(1500);

/// Unsynced bytes that start a sync before its second is over (256 MiB).
const SYNC_BYTES: u64 = 256 << 20;

/// Time between syncs.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// What the streams of one lane of datagrams saw.
#[derive(Clone, Copy, Debug, Default)]
struct Datagrams {
    // That came and were needed.
    needed: u64,
    // That were lacking and asked for again.
    again: u64,
    strays: u64,
    blast: BlastSeen,
}

impl Datagrams {
    /// With what one more stream has seen.
    fn and(mut self, seen: &Observation) -> Self {
        self.needed += seen.frames;
        self.again += seen.again;
        self.strays += seen.strays;
        self.blast.merge(&seen.blast);
        self
    }
}

#[derive(Clone, Debug, Default)]
struct LaneInfo {
    kind: &'static str,
    streams: u32,
    // Streams whose threads run, without those that end because fewer are wanted; the lane is down when the last one
    // gives up.
    live: u32,
    // Streams that are open.
    open: u32,
    // Numbers of streams given so far.
    numbered: u32,
    // How more of them connect, once the first has.
    opens: Option<Way>,
    waited: Duration,
    // What its streams of datagrams saw.
    datagrams: Datagrams,
    cancel: Vec<Range>,
    // The interfaces it uses, in words; empty within a host.
    rail: String,
    // The same for lanes that were found as further rails.
    way: Option<Rail>,
    meter: meter::Meter,
}

struct State {
    receiving: Receiving,
    // Streams that each lane keeps.
    streams: u32,
    // Somebody follows the links of this host; how often they changed.
    watches_links: bool,
    links_changed: u64,
    lanes: Vec<LaneInfo>,
    notes: Vec<String>,
    error: Option<String>,
    done_sent: bool,
    committed: bool,
    last_arrival_ns: u64,
    complete_ns: Option<u64>,
    // Number of the newest plan or revision; the final word names it.
    revision: u32,
    // Revisions that came while sinks were being made; `None` once the plan is taken.
    early: Option<Vec<control::Revision>>,
    discard: bool,
}

impl State {
    fn take_revision(&mut self, revision: &control::Revision, now_ns: u64) {
        self.revision = self.revision.max(revision.number);
        if !revision.runs.is_empty() {
            self.done_sent = false;
            self.complete_ns = None;
        }
        self.receiving.handle_revision(revision, now_ns);
    }
}

/// The receiving side of one transfer on one node.
pub(crate) struct Fetch {
    transfer: Arc<Transfer>,
    state: Mutex<State>,
    changed: Condvar,
    sinks: Mutex<Option<Arc<SinkSet>>>,
    // What was read back from the sink and found right.
    read_back: Mutex<RangeSet>,
    // Bytes on stable storage (or checked, where there is no storage).
    safe: AtomicU64,
    commits: bool,
    of_datagrams: bool,
    hash: bool,
}

impl Fetch {
    pub fn new(transfer: Arc<Transfer>, plan: &control::Plan) -> Arc<Self> {
        let options = transfer.options;
        let senders: HashSet<u32> = plan.runs.iter().map(|run| run.sender).collect();
        let blast = streams::blast(&options);
        let streams = match options.streams {
            // A lane of datagrams is one flow with one rate.
            _ if blast.is_some() => 1,
            0 => (STREAMS_PER_NODE / senders.len().max(1) as u32).clamp(1, STREAMS_PER_PAIR),
            count => count,
        };
        let mut receiving = Receiving::new(options.prefetch, streams, transfer.now_ns());
        if options.fixed {
            receiving.fix_plan();
        }
        if let Some(bytes) = blast {
            receiving.fix_window(bytes);
        }
        let state = State {
            receiving,
            streams,
            watches_links: false,
            links_changed: 0,
            lanes: Vec::new(),
            notes: Vec::new(),
            error: None,
            done_sent: false,
            committed: false,
            last_arrival_ns: 0,
            complete_ns: None,
            revision: plan.revision,
            early: Some(Vec::new()),
            discard: false,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            sinks: Mutex::new(None),
            read_back: Mutex::default(),
            safe: AtomicU64::new(0),
            commits: plan.commit,
            of_datagrams: blast.is_some(),
            hash: options.verify >= verify::TREE,
            transfer,
        })
    }

    fn spawn(self: &Arc<Self>, name: &str, work: impl FnOnce(Arc<Self>) + Send + 'static) {
        let fetch = self.clone();
        let thread = std::thread::Builder::new()
            .name(name.into())
            .stack_size(STACK_LEN * 2);
        let guarded = move || {
            let kept = fetch.clone();
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(fetch))).is_err() {
                kept.fail(
                    "a thread of the agent failed; this is a bug, its standard error says where"
                        .into(),
                );
                kept.send_done();
            }
        };
        if let Err(error) = thread.spawn(guarded) {
            self.fail(format!(
                "no thread can be started: {error}; raise the limit of processes (ulimit -u)"
            ));
        }
    }

    /// Prepares the sinks and starts to fetch. Returns at once.
    pub fn start(self: &Arc<Self>, plan: control::Plan, sinks: Vec<OpenSink>) {
        self.spawn("fetch", move |fetch| match fetch.prepare(&plan, sinks) {
            Ok(sinks) => {
                let sinks = Arc::new(sinks);
                *fetch.sinks.lock() = Some(sinks.clone());
                if fetch.stopped() {
                    // It ended while files were being made.
                    if fetch.state.lock().discard {
                        sinks.discard(false);
                    }
                    return;
                }
                let mut state = fetch.state.lock();
                let now = fetch.transfer.now_ns();
                state
                    .receiving
                    .handle_plan(&plan, now, &|offset| sinks.unit_at(offset));
                for revision in state.early.take().unwrap_or_default() {
                    state.take_revision(&revision, now);
                }
                fetch.drain(state);
                fetch.keep_safe();
            }
            Err(reason) => fetch.fail(reason),
        });
    }

    pub fn revise(self: &Arc<Self>, revision: &control::Revision) {
        let mut state = self.state.lock();
        match &mut state.early {
            Some(early) => early.push(revision.clone()),
            None => state.take_revision(revision, self.transfer.now_ns()),
        }
        self.drain(state);
    }

    pub fn limit(&self, rate: u64) {
        self.state
            .lock()
            .receiving
            .set_limit(rate, self.transfer.now_ns());
        self.changed.notify_all();
    }

    pub fn release(self: &Arc<Self>, bytes: u64) -> Vec<control::Stretch> {
        let Some(sinks) = self.sinks() else {
            return Vec::new();
        };
        let mut state = self.state.lock();
        let released = state
            .receiving
            .release(bytes, &|offset| sinks.unit_at(offset));
        self.drain(state);
        control::stretches(&released)
    }

    fn stopped(&self) -> bool {
        self.transfer.stopped.load(Ordering::Acquire)
    }

    fn sinks(&self) -> Option<Arc<SinkSet>> {
        self.sinks.lock().clone()
    }

    /// Carries out what the state machine asks for, then wakes whoever waits.
    fn drain(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let mut connect = Vec::new();
        let mut failed = None;
        while let Some(event) = state.receiving.poll_event() {
            match event {
                Event::Connect(lane, peer) => {
                    if state.lanes.len() <= lane {
                        state.lanes.resize_with(lane + 1, LaneInfo::default);
                    }
                    state.lanes[lane].live = 1;
                    connect.push((lane, peer));
                }
                Event::Cancel(lane, range) => state.lanes[lane].cancel.push(range),
                Event::Need(ranges, lost, reason) => {
                    let ranges = control::stretches(&ranges);
                    self.transfer.send(from_agent::Body::Need(control::Need {
                        ranges,
                        lost,
                        reason,
                    }));
                }
                Event::Note(text) => state.notes.push(text),
                Event::Failed(text) => {
                    // Under the lock: nobody may take the machine's end for success.
                    state.error.get_or_insert_with(|| text.clone());
                    failed = Some(text);
                }
                // The thread that makes bytes safe sees it.
                Event::Complete => state.complete_ns = Some(self.transfer.now_ns()),
            }
        }
        drop(state);
        self.changed.notify_all();
        for (lane, peer) in connect {
            self.spawn("connect", move |fetch| fetch.run_lane(lane, &peer));
        }
        if let Some(text) = failed {
            self.fail(text);
        }
    }

    /// Connects a lane and starts its streams; the first one runs on this thread.
    fn run_lane(self: &Arc<Self>, lane: usize, peer: &Peer) {
        let mut last = String::new();
        for pause in std::iter::once(Duration::ZERO).chain(RETRIES) {
            if self.pause(pause) {
                return;
            }
            match connect::pair(&self.transfer, peer) {
                Ok(connected) => return self.run_first_rail(lane, connected),
                Err(error) => last = error.to_string(),
            }
        }
        let mut state = self.state.lock();
        state.receiving.handle_lane_down(lane, &last);
        self.drain(state);
    }

    /// Waits; true when there is no reason to go on.
    fn pause(&self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        let mut state = self.state.lock();
        while !self.stopped() && Instant::now() < until {
            self.changed.wait_until(&mut state, until);
        }
        drop(state);
        self.stopped()
    }

    /// Runs one stream, opening it again when it breaks, until nothing is left to do.
    fn run_stream(self: &Arc<Self>, lane: usize, way: &Way, index: u32) {
        let began = Instant::now();
        let mut retries = RETRIES.iter();
        loop {
            let rail = way.rail.as_ref();
            let (reason, gives_up) = match way.connected.join(&self.transfer, rail, index) {
                Ok((half, kind)) => {
                    {
                        let mut state = self.state.lock();
                        let info = &mut state.lanes[lane];
                        info.kind = kind;
                        info.open += 1;
                        info.streams = info.streams.max(info.open);
                    }
                    let driven = self.drive(lane, half);
                    self.state.lock().lanes[lane].open -= 1;
                    match driven {
                        Ok(moved) => {
                            if !moved.reopen || moved.is_surplus {
                                return;
                            }
                            // It worked for a while: a new series of attempts.
                            if moved.units > 0 {
                                retries = RETRIES.iter();
                            }
                            if moved.hopeless {
                                retries = [].iter();
                            }
                            (moved.reason, moved.gives_up)
                        }
                        Err(text) => return self.fail(text),
                    }
                }
                Err(error) => (error.to_string(), false),
            };
            let mut state = self.state.lock();
            // While another rail does the work this one is tried again at leisure. The last one goes on trying.
            let gives_up = gives_up && state.receiving.has_other_rail(lane);
            if let Some(&pause) = retries.next().filter(|_| !gives_up) {
                drop(state);
                if self.pause(pause) {
                    return;
                }
                continue;
            }
            state.lanes[lane].live -= 1;
            let was_last = state.lanes[lane].live == 0;
            if was_last {
                state.receiving.handle_lane_down(lane, &reason);
            }
            self.drain(state);
            if was_last {
                self.regain(lane, way, began.elapsed());
            }
            return;
        }
    }

    /// Drives one open stream.
    ///
    /// # Errors
    /// A failure of this node, in words; failures of the peer end the stream only.
    fn drive(
        self: &Arc<Self>,
        lane: usize,
        mut half: Box<dyn ReceiveHalf>,
    ) -> Result<Moved, String> {
        let Some(sinks) = self.sinks() else {
            return Ok(Moved::default());
        };
        let key = self.transfer.remember(half.stopper());
        let datagrams_before = {
            let mut state = self.state.lock();
            let info = &mut state.lanes[lane];
            info.meter.add(key, half.stopper());
            info.datagrams
        };
        let mut landing = SinkLanding::new(self.clone(), sinks.clone());
        let mut granted: HashMap<u32, Range> = HashMap::new();
        let mut outstanding = 0u64;
        let mut next_id = 0u32;
        let mut moved = Moved::default();
        // Bytes that had come when the stream was last seen to bring some.
        let mut seen = (0, Instant::now());
        let unit_at = |offset| sinks.unit_at(offset);
        let result: Result<(), LaneError> = loop {
            if self.stopped() {
                break Ok(());
            }
            if granted.is_empty() {
                seen.1 = Instant::now();
            }
            let now = self.transfer.now_ns();
            let (take, cancel) = {
                let mut state = self.state.lock();
                if !moved.is_surplus && state.lanes[lane].live > state.streams {
                    // It brings what it was asked for, then it ends.
                    state.lanes[lane].live -= 1;
                    moved.is_surplus = true;
                }
                let take = match moved.is_surplus {
                    true => Take::Closed,
                    false => state.receiving.take(lane, outstanding, now, &unit_at),
                };
                let mine: Vec<Range> = if granted.is_empty() || state.lanes[lane].cancel.is_empty()
                {
                    Vec::new()
                } else {
                    let list = &mut state.lanes[lane].cancel;
                    let mine = list
                        .iter()
                        .copied()
                        .filter(|r| granted.values().any(|g| g == r))
                        .collect();
                    list.retain(|r| !granted.values().any(|g| g == r));
                    mine
                };
                if state.receiving.has_events() {
                    self.drain(state);
                }
                (take, mine)
            };
            if !cancel.is_empty() {
                let ids: Vec<u32> = granted
                    .iter()
                    .filter(|(_, r)| cancel.contains(r))
                    .map(|(&id, _)| id)
                    .collect();
                if let Err(error) = half.cancel(&ids) {
                    break Err(error);
                }
            }
            match take {
                Take::Units(units) => {
                    let grants: Vec<Grant> = units
                        .iter()
                        .map(|unit| {
                            let id = next_id;
                            next_id = next_id.wrapping_add(1);
                            granted.insert(id, unit.range);
                            outstanding += unit.range.len();
                            Grant {
                                id,
                                space: SPACE_DATA,
                                range: unit.range,
                                hash: self.hash,
                            }
                        })
                        .collect();
                    if let Err(error) = half.grant(&grants) {
                        break Err(error);
                    }
                }
                Take::Wait(until) if granted.is_empty() => {
                    let pause = until.map_or(IDLE, |at| {
                        Duration::from_nanos(at.saturating_sub(now)).min(IDLE)
                    });
                    let mut state = self.state.lock();
                    if !self.stopped() {
                        self.changed.wait_for(&mut state, pause);
                    }
                    continue;
                }
                Take::Closed if granted.is_empty() => break Ok(()),
                Take::Wait(_) | Take::Closed => {}
            }
            match half.receive(&mut landing, Instant::now() + POLL) {
                Ok(Received::Unit { grant, digest }) => {
                    granted.remove(&grant.id);
                    outstanding -= grant.range.len();
                    moved.units += 1;
                    let now = self.transfer.now_ns();
                    let mut state = self.state.lock();
                    state.last_arrival_ns = now;
                    if self.of_datagrams {
                        state.lanes[lane].datagrams = datagrams_before.and(&half.observe());
                    }
                    state.lanes[lane]
                        .cancel
                        .retain(|range| *range != grant.range);
                    state.receiving.handle_unit(lane, grant.range, digest, now);
                    if state.receiving.is_finished()
                        || !state.lanes.iter().all(|l| l.cancel.is_empty())
                    {
                        self.drain(state);
                    } else {
                        self.drain_quietly(state);
                    }
                }
                Ok(Received::Corrupt { grant, reason }) => {
                    granted.remove(&grant.id);
                    outstanding -= grant.range.len();
                    let mut state = self.state.lock();
                    state.receiving.handle_corrupt(
                        lane,
                        grant.range,
                        &reason,
                        self.transfer.now_ns(),
                    );
                    self.drain(state);
                }
                Ok(Received::Missing {
                    grant,
                    code,
                    reason,
                }) => {
                    granted.remove(&grant.id);
                    outstanding -= grant.range.len();
                    let now = self.transfer.now_ns();
                    let mut state = self.state.lock();
                    state.lanes[lane]
                        .cancel
                        .retain(|range| *range != grant.range);
                    if code == missing::CANCELLED {
                        state.receiving.handle_returned(lane, grant.range, now);
                    } else {
                        state
                            .receiving
                            .handle_refused(lane, grant.range, &reason, now);
                    }
                    self.drain(state);
                }
                Ok(Received::Idle) => {
                    let come = half.observe().bytes_in;
                    if come != seen.0 {
                        seen = (come, Instant::now());
                    } else if seen.1.elapsed() > RAIL_SILENCE && self.other_rail_moves(lane) {
                        moved.reason = "silent while another rail to the same host moves".into();
                        moved.gives_up = true;
                        break Ok(());
                    }
                }
                Err(error) => break Err(error),
            }
        };
        self.transfer.forget(key);
        let now = self.transfer.now_ns();
        let mut state = self.state.lock();
        state.lanes[lane].waited += half.observe().waited;
        state.lanes[lane].meter.remove(key);
        // The connection goes before its units become ready again, so that no late byte of this
        // stream can reach the sink after another copy.
        drop(half);
        for (_, range) in granted {
            state.lanes[lane]
                .cancel
                .retain(|cancelled| *cancelled != range);
            state.receiving.handle_returned(lane, range, now);
        }
        self.drain(state);
        match result {
            Ok(()) => Ok(Moved {
                reopen: !moved.reason.is_empty(),
                ..moved
            }),
            Err(LaneError::Stopped) if self.stopped() => Ok(moved),
            Err(LaneError::Stopped) => Ok(Moved {
                reopen: true,
                gives_up: true,
                reason: "this host's interface lost its link or its address".into(),
                ..moved
            }),
            // Trying again would fail in the same way, after the same wait.
            Err(error @ (LaneError::Blocked { .. } | LaneError::TooLong { .. })) => Ok(Moved {
                reopen: true,
                hopeless: moved.units == 0,
                reason: error.to_string(),
                ..moved
            }),
            Err(LaneError::Landing { source, .. }) => Err(source.to_string()),
            Err(LaneError::Misuse(text)) => Err(text),
            Err(error) => Ok(Moved {
                reopen: true,
                reason: error.to_string(),
                ..moved
            }),
        }
    }

    /// As `drain` when the only events can be ones that concern nobody who waits.
    fn drain_quietly(self: &Arc<Self>, state: MutexGuard<'_, State>) {
        if state.receiving.has_events() {
            self.drain(state);
        }
    }

    /// All bytes this node is to fetch.
    pub fn wanted(&self) -> u64 {
        self.state.lock().receiving.ledger().wanted_bytes()
    }

    /// Progress for the master.
    pub fn status(&self) -> control::Status {
        let mut state = self.state.lock();
        let State {
            receiving, lanes, ..
        } = &mut *state;
        for (lane, info) in lanes.iter_mut().enumerate() {
            receiving.handle_bytes(lane, info.meter.fresh());
        }
        control::Status {
            delivered: self.safe.load(Ordering::Acquire),
            checked: state.receiving.ledger().delivered_bytes(),
            pairs: state.receiving.pair_statuses(self.transfer.now_ns()),
            tcp: None,
        }
    }

    /// Stops the fetch for a reason that lies on this node.
    pub fn fail(&self, reason: String) {
        let mut state = self.state.lock();
        state.error.get_or_insert(reason);
        drop(state);
        self.changed.notify_all();
        // Before the sinks exist nobody else can tell the master.
        if self.sinks.lock().is_none() {
            self.send_done();
        }
    }

    /// Ends everything; with `discard`, temporary files are removed.
    ///
    /// Files that other nodes write too are removed only when `shared` says that nobody goes on.
    pub fn stop(&self, discard: bool, shared: bool) {
        self.changed.notify_all();
        let mut state = self.state.lock();
        state.discard = discard;
        if discard && !state.committed {
            drop(state);
            if let Some(sinks) = self.sinks() {
                sinks.discard(shared);
            }
        }
    }

    /// Whether the bytes have been delivered already.
    pub fn is_delivered(&self, range: Range) -> bool {
        self.state.lock().receiving.is_delivered(range)
    }

    /// Renames what was written. In words when it fails.
    pub fn commit(&self) -> Result<(), String> {
        let Some(sinks) = self.sinks() else {
            return Ok(());
        };
        sinks.commit().map_err(|error| error.to_string())?;
        self.state.lock().committed = true;
        Ok(())
    }

    fn missing(state: &State) -> RangeSet {
        state.receiving.missing()
    }
}

/// How one open stream ended.
#[derive(Debug, Default)]
struct Moved {
    units: u64,
    reopen: bool,
    // Not at once, if another rail to the same host works.
    gives_up: bool,
    // Not at all: nothing ever came this way.
    hopeless: bool,
    // Fewer streams are wanted.
    is_surplus: bool,
    reason: String,
}
