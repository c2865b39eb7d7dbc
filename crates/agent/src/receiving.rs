//! Drives the receiving side: one thread per stream asks the state machine what to grant, one
//! thread per lane connects, one thread makes bytes safe.
//!
//! The state machine sits behind one short lock, taken per batch of units, never per frame.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use ropewalk_lane::{BlastSeen, Observation};
use ropewalk_model::{Range, RangeSet};
use ropewalk_proto::control::{self, Peer, Verify, from_agent};
use ropewalk_proto::coordinator;
use ropewalk_proto::node::{Duties, End, Failure, Node};
use ropewalk_proto::participant::{Event, Receiving, Writer};
use ropewalk_proto::route;

use crate::landing::SinkSet;
use crate::open::OpenSink;
use crate::rails::Rail;
use crate::streams::{self, STACK_LEN};
use crate::transfer::Transfer;
use rails::Way;

mod compare;
mod finish;
mod manifests;
mod meter;
mod rails;
mod stream;
#[cfg(test)]
mod tests;

/// Pauses before each new attempt to open a stream that broke. Refused at once (the process is
/// gone) or silent, a peer is given up after the last.
const RETRIES: [Duration; 3] = [
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(1000),
];

/// A search for a way that takes longer has waited for answers.
const PATIENCE: Duration = Duration::from_secs(3);

/// Streams of a pair when nobody said: enough to fill a path that one stream does not.
const STREAMS_PER_PAIR: u32 = 4;

/// Where a node has many pairs, the pairs make the streams: about this many in all, one a pair at least.
const STREAMS_PER_NODE: u32 = 32;

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
    // Those of them that are open.
    open: u32,
    // Numbers of streams given so far.
    numbered: u32,
    // How more of them connect, once the first has; another way has been opened since.
    opens: Option<Way>,
    is_moved: bool,
    waited: Duration,
    // What its streams of datagrams saw.
    datagrams: Datagrams,
    cancel: Vec<Range>,
    // The interfaces it uses, in words; empty within a host.
    rail: String,
    // The same for lanes that were found as further rails.
    way: Option<Rail>,
    // Which of the two connected.
    connected: route::Way,
    meter: meter::Meter,
}

struct State {
    node: Node,
    // Streams that each lane keeps.
    streams: u32,
    // What they are while round trips are short, and the least round trip seen.
    streams_near: u32,
    trip_min: Option<Duration>,
    // The master has said how many there should be.
    is_told: bool,
    // Somebody follows the links of this host; how often they changed.
    watches_links: bool,
    links_changed: u64,
    lanes: Vec<LaneInfo>,
    temporary_told: bool,
}

/// The receiving side of one transfer on one node.
pub(crate) struct Fetch {
    transfer: Arc<Transfer>,
    state: Mutex<State>,
    changed: Condvar,
    sinks: Mutex<Option<Arc<SinkSet>>>,
    // Final paths that other nodes write, too, where sinks could not be made: something temporary may be there.
    unmade: Mutex<Vec<PathBuf>>,
    // Folders that were made to hold copies.
    made_folders: Mutex<Vec<PathBuf>>,
    // What was read back from the sink and found right.
    read_back: Mutex<RangeSet>,
    // Peers with whom the handshake is done, or being done.
    pairs: compare::Pairs,
    of_datagrams: bool,
    // Lanes over each rail among which its work is dealt out.
    stripes: u32,
    // Receivers that share a long path; 0 where the number of streams is not tuned.
    sharers: u32,
    // Transfers that are on it, too.
    other_transfers: u32,
    // Streams of a lane at most, where nobody gave their number.
    lane_streams_max: u32,
    hash: bool,
}

impl Fetch {
    pub fn new(transfer: Arc<Transfer>, plan: &control::Plan) -> Arc<Self> {
        let options = transfer.options;
        let senders: HashSet<u32> = plan.runs.iter().map(|run| run.sender).collect();
        let blast = streams::blast(&options, senders.len());
        let lane_streams_max = match plan.lane_streams_max {
            0 => rails::STREAMS_PER_LANE_MAX,
            most => most.min(rails::STREAMS_PER_LANE_MAX),
        };
        let streams = match options.streams {
            // A lane of datagrams is one flow with one rate.
            _ if blast.is_some() => 1,
            0 => (STREAMS_PER_NODE / senders.len().max(1) as u32)
                .clamp(1, STREAMS_PER_PAIR)
                .min(lane_streams_max),
            count => count,
        };
        // Streams with parts of their own are lanes of one stream each.
        let (stripes, streams) = match options.equal && blast.is_none() {
            true => (streams, 1),
            false => (1, streams),
        };
        let mut receiving = Receiving::new(options.prefetch, streams, transfer.now_ns());
        if options.fixed {
            receiving.fix_plan();
        }
        if let Some(bytes) = blast {
            receiving.fix_window(bytes);
        }
        receiving.compare(
            coordinator::compare(options.verify()),
            compare::seed(&transfer.id, transfer.node),
        );
        let duties = Duties {
            renames: plan.commit,
            reads_back: options.verify() == Verify::Sink,
            ..Duties::default()
        };
        let state = State {
            node: Node::new(receiving, plan.revision, duties, transfer.now_ns()),
            streams,
            streams_near: streams,
            trip_min: None,
            is_told: false,
            watches_links: false,
            links_changed: 0,
            lanes: Vec::new(),
            temporary_told: false,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            sinks: Mutex::new(None),
            unmade: Mutex::default(),
            made_folders: Mutex::default(),
            read_back: Mutex::default(),
            pairs: compare::Pairs::default(),
            of_datagrams: blast.is_some(),
            stripes,
            sharers: plan.sharers,
            other_transfers: plan.other_transfers,
            lane_streams_max,
            hash: options.verify() >= Verify::Tree,
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
        // Nothing is made that the agent would not stay to remove.
        let Ok(at_work) = self.transfer.work.clone().try_read_owned() else {
            return self.fail("the agent is about to end".into());
        };
        self.spawn("fetch", move |fetch| {
            let _at_work = at_work;
            match fetch.prepare(&plan, sinks) {
                Ok(sinks) => {
                    let sinks = Arc::new(sinks);
                    *fetch.sinks.lock() = Some(sinks.clone());
                    if fetch.stopped() {
                        // It ended while files were being made.
                        let end = fetch.end();
                        if end.discards {
                            sinks.discard(end.discards_shared);
                            fetch.remove_made_folders();
                        }
                        return;
                    }
                    let mut state = fetch.state.lock();
                    let now = fetch.transfer.now_ns();
                    let unit_at = |offset| sinks.unit_at(offset);
                    state.node.handle_prepared(&plan, now, &unit_at);
                    fetch.drain(state);
                    fetch.keep_safe();
                }
                Err(reason) => {
                    // The transfer may have ended while they were being made.
                    let end = fetch.end();
                    if end.discards && end.discards_shared {
                        fetch.remove_unmade();
                    }
                    fetch.fail_by(reason);
                }
            }
        });
    }

    /// How the master ended the transfer; nothing is to be removed while it did not.
    fn end(&self) -> End {
        self.state.lock().node.end().unwrap_or_default()
    }

    /// The transfer's id as it is in temporary names. A copy of this node's own has its number, too: another node may see
    /// the same file system without being told that they share a copy.
    fn temporary_id(&self, shared: bool) -> String {
        let digits = self.transfer.id.iter().map(|byte| format!("{byte:02x}"));
        let id: String = digits.collect();
        match shared {
            true => id,
            false => format!("{id}-{}", self.transfer.node),
        }
    }

    /// Removes what is temporary where sinks could not be made and other nodes write, too.
    fn remove_unmade(&self) {
        let id = self.temporary_id(true);
        let unmade = std::mem::take(&mut *self.unmade.lock());
        for path in unmade {
            ropewalk_store::remove_temporary(&path, &id);
        }
    }

    pub fn revise(self: &Arc<Self>, revision: &control::Revision) {
        let mut state = self.state.lock();
        let now = self.transfer.now_ns();
        state.node.handle_revision(revision, now);
        self.drain(state);
    }

    pub fn limit(&self, rate: u64) {
        let now = self.transfer.now_ns();
        self.state.lock().node.fetch_mut().set_limit(rate, now);
        self.changed.notify_all();
    }

    pub fn release(self: &Arc<Self>, bytes: u64) -> Vec<control::Stretch> {
        let Some(sinks) = self.sinks() else {
            return Vec::new();
        };
        let mut state = self.state.lock();
        let unit_at = |offset| sinks.unit_at(offset);
        let released = state.node.fetch_mut().release(bytes, &unit_at);
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
        let mut compare = Vec::new();
        let had_failed = state.node.failure().is_some();
        let now = self.transfer.now_ns();
        while let Some(event) = state.node.poll_event(now) {
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
                Event::Compare(lane, peer) => compare.push((lane, peer)),
                Event::Differ(difference) => {
                    let place = self.place(&difference);
                    state.node.handle_difference(&difference, &place);
                }
                // Threads that wait are woken below; the rest is the node's own.
                Event::Wake | Event::Note(_) | Event::Complete | Event::Failed(_) => {}
            }
        }
        let fails = !had_failed && state.node.failure().is_some();
        drop(state);
        self.changed.notify_all();
        for (lane, peer) in connect {
            self.spawn("connect", move |fetch| fetch.run_lane(lane, &peer));
        }
        for (lane, peer) in compare {
            self.spawn("compare", move |fetch| fetch.run_compare(lane, &peer));
        }
        // Without sinks no thread asks for the node's tasks.
        if fails && self.sinks.lock().is_none() {
            self.send_done();
        }
    }

    /// Connects a lane and starts its streams; the first one runs on this thread.
    fn run_lane(self: &Arc<Self>, lane: usize, peer: &Peer) {
        let mut last = String::new();
        for pause in std::iter::once(Duration::ZERO).chain(RETRIES) {
            if self.pause(pause) {
                return;
            }
            let began = Instant::now();
            match self.pairs.connect(&self.transfer, peer) {
                Ok(connected) => return self.run_first_rail(lane, connected),
                Err(error) => last = error.to_string(),
            }
            // Silence is not tried again: every way has been waited for.
            if began.elapsed() > PATIENCE {
                break;
            }
        }
        let mut state = self.state.lock();
        state.node.fetch_mut().handle_lane_down(lane, &last);
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

    /// All bytes this node is to fetch.
    pub fn wanted(&self) -> u64 {
        self.state.lock().node.fetch().ledger().wanted_bytes()
    }

    /// Safe bytes.
    pub fn delivered(&self) -> u64 {
        self.state.lock().node.safe_bytes()
    }

    /// Bytes that were received and checked, safe or not yet.
    pub fn checked(&self) -> u64 {
        let state = self.state.lock();
        let checked = state.node.fetch().ledger().delivered_bytes();
        checked.max(state.node.safe_bytes())
    }

    /// Another node began to give the files their names, and is gone.
    pub fn take_over(&self) {
        if let Some(sinks) = self.sinks() {
            sinks.take_over();
        }
    }

    /// Progress for the master.
    pub fn status(&self) -> control::Status {
        let temporary = self.told_temporary();
        let mut state = self.state.lock();
        let State { node, lanes, .. } = &mut *state;
        for (lane, info) in lanes.iter_mut().enumerate() {
            node.fetch_mut().handle_bytes(lane, info.meter.fresh());
        }
        control::Status {
            temporary,
            ..node.status(self.transfer.now_ns())
        }
    }

    /// Stops the fetch for a reason that lies on this node.
    pub fn fail(&self, reason: String) {
        self.fail_by(Failure::Other(reason));
    }

    fn fail_by(&self, failure: Failure) {
        self.state.lock().node.handle_failed(failure);
        self.changed.notify_all();
        // Before the sinks exist nobody else can tell the master.
        if self.sinks.lock().is_none() {
            self.send_done();
        }
    }

    /// Why this node's part failed, if it did.
    pub fn failure(&self) -> Option<String> {
        let state = self.state.lock();
        let failure = state.node.failure()?;
        Some(failure.text().to_owned())
    }

    /// Ends everything; with `discard`, temporary files are removed.
    ///
    /// Files that other nodes write too are removed only when `shared` says that nobody goes on.
    pub fn stop(&self, discard: bool, shared: bool) {
        let mut state = self.state.lock();
        state.node.handle_end(End {
            discards: discard,
            discards_shared: shared,
        });
        self.changed.notify_all();
        if discard && !state.node.is_renamed() {
            drop(state);
            if let Some(sinks) = self.sinks() {
                sinks.discard(shared);
            }
            if shared {
                self.remove_unmade();
            }
            self.remove_made_folders();
        }
    }

    /// A stream is about to write; false when it must not.
    pub fn begin_write(&self, writer: Writer, range: Range) -> bool {
        let mut state = self.state.lock();
        state.node.fetch_mut().begin_write(writer, range)
    }

    /// It has written.
    pub fn end_write(&self, writer: Writer, range: Range) {
        let mut state = self.state.lock();
        let is_awaited = state.node.fetch_mut().end_write(writer, range);
        drop(state);
        if is_awaited {
            self.changed.notify_all();
        }
    }

    /// Renames what was written. In words when it fails.
    pub fn commit(&self) -> Result<(), String> {
        let renamed = match self.sinks() {
            Some(sinks) => sinks.commit().map_err(|error| error.to_string()),
            None => Ok(()),
        };
        self.state.lock().node.handle_renamed(renamed.clone());
        renamed
    }

    /// What stood where files got their names; nothing where there are no sinks.
    pub fn landed(&self) -> Option<control::Landed> {
        self.sinks().map(|sinks| sinks.landed())
    }
}
