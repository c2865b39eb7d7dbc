//! Drives the receiving side: a thread for each stream, and one that makes bytes safe. What they do is decided by
//! [`Node`].
//!
//! The machine sits behind one short lock, taken per batch of units, never per frame.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use ropewalk_lane::{BlastSeen, Observation};
use ropewalk_model::{Range, RangeSet, Table};
use ropewalk_proto::control::{self, Verify, from_agent, to_agent};
use ropewalk_proto::coordinator;
use ropewalk_proto::ledger::LaneId;
use ropewalk_proto::node::fetch::{Receiving, Writer};
use ropewalk_proto::node::{
    self, Close, Duties, End, Event, Failure, Life, Node, RETRY_PAUSES, Streams, Waiting, Wish,
};

use ropewalk_store::{Present, StoreError};

use crate::find::{Better, Ways};
use crate::landing::{Gate, SinkSet};
use crate::member::Member;
use crate::open::OpenSink;
use crate::streams::{self, STACK_LEN};
use crate::transfer::{Looked, present_messages};
use rails::Way;

mod compare;
mod finish;
use finish::LOOK_EVERY;
mod manifests;
mod meter;
mod rails;
mod relayed;
mod stream_thread;
#[cfg(test)]
mod tests;

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

/// What the machine does not know of a lane.
#[derive(Clone, Debug, Default)]
struct LaneInfo {
    kind: &'static str,
    // How its streams connect, once that is known.
    way: Option<Way>,
    waited: Duration,
    // What its streams of datagrams saw.
    datagrams: Datagrams,
    meter: meter::Meter,
}

struct State {
    node: Node,
    lanes: Table<LaneId, LaneInfo>,
    // What tells rails from each other; the machine knows them by their places here.
    rails: Vec<String>,
    // A thread follows the links of this host.
    watches_links: bool,
    temporary_told: bool,
    // Bytes that the last sync before an early end has made safe.
    safe: u64,
    // Final paths that a thread makes sinks of now, and whether other nodes write them, too.
    making: Option<Vec<(PathBuf, bool)>>,
}

impl State {
    fn lane(&mut self, lane: LaneId) -> &mut LaneInfo {
        self.lanes.grown(lane)
    }
}

/// Pauses before each new attempt to open a stream that broke.
fn retries() -> impl Iterator<Item = Duration> {
    RETRY_PAUSES.into_iter().map(Duration::from)
}

/// Moves the streams of a fetch that is there to a better way.
fn moves(fetch: Weak<Fetch>) -> Better {
    Box::new(move |from, to| {
        if let Some(fetch) = fetch.upgrade() {
            fetch.move_way(from, to);
        }
    })
}

/// Longest wait, when the transfer ends, for sinks that are being made. Disks take less; a user who stops a transfer does not wait for
/// earlier transfers that the sinks wait for. What may be left is named then.
const MAKING_TIME_MAX: Duration = Duration::from_secs(1);

/// Sinks are being made until this is dropped.
struct Making<'f>(&'f Fetch);

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.0.state.lock().making = None;
        self.0.changed.notify_all();
    }
}

/// The receiving side of one transfer on one node.
pub(crate) struct Fetch {
    member: Arc<Member>,
    // Peers that are connected.
    ways: Arc<Ways>,
    state: Mutex<State>,
    changed: Condvar,
    sinks: Mutex<Option<Arc<SinkSet>>>,
    // Final paths that other nodes write, too, where sinks could not be made: something temporary may be there.
    unmade: Mutex<Vec<PathBuf>>,
    // Folders that were made to hold copies.
    made_folders: Mutex<Vec<PathBuf>>,
    // What was read back from the sink and found right.
    read_back: Mutex<RangeSet>,
    hash: bool,
    // Its copy is its own, and files of it that lack no byte get their names however the transfer ends.
    names_whole_files: bool,
}

/// Why a node does not make or end what others write, too.
const NO_PERMIT: &str =
    "its master was not heard of for a while: another node may have ended the shared copy";

impl Fetch {
    pub fn new(member: Arc<Member>, plan: &control::Plan) -> Arc<Self> {
        let options = member.options;
        let senders = plan.source_count();
        let blast = streams::blast(&options, senders);
        let streams = Streams::new(&Wish {
            given: control::given(options.streams),
            is_equal: options.equal,
            of_datagrams: blast.is_some(),
            senders,
            lane_max: control::given(plan.lane_streams_max),
            sharers: control::given(plan.sharers),
            other_transfers: plan.other_transfers,
            // The kernel sends unchecked files by itself, and more streams have it do more at once.
            processors: (!options.plain || options.verify() > Verify::None)
                .then(std::thread::available_parallelism)
                .and_then(Result::ok)
                .map(|count| count.get() as u32),
            file_bytes: plan.mean_file_bytes(),
        });
        let mut receiving = Receiving::new(options.prefetch, streams.each(), member.now());
        if options.fixed {
            receiving.fix_plan();
        }
        if let Some(bytes) = blast {
            receiving.fix_window(bytes);
        }
        receiving.set_number(member.node);
        receiving.compare(
            coordinator::compare(options.verify()),
            compare::seed(&member.id, member.node),
        );
        let reads_back = options.verify() == Verify::Sink;
        let duties = Duties {
            renames: plan.commit,
            names_early: node::gives_names_early(
                plan,
                coordinator::compare(options.verify()),
                reads_back,
            ),
            reads_back,
            ..Duties::default()
        };
        let state = State {
            node: Node::new(receiving, streams, plan, duties, member.now()),
            lanes: Table::new(),
            rails: Vec::new(),
            watches_links: false,
            temporary_told: false,
            safe: 0,
            making: None,
        };
        Arc::new_cyclic(|own: &Weak<Self>| Self {
            ways: Arc::new(Ways::new(moves(own.clone()))),
            state: Mutex::new(state),
            changed: Condvar::new(),
            sinks: Mutex::new(None),
            unmade: Mutex::default(),
            made_folders: Mutex::default(),
            read_back: Mutex::default(),
            hash: options.verify() >= Verify::Tree,
            names_whole_files: plan.commit && plan.whole_files,
            member,
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
    ///
    /// * `looked`: what of a shared copy is there.
    pub fn start(self: &Arc<Self>, plan: control::Plan, sinks: Vec<OpenSink>, looked: Looked) {
        // Nothing is made that the agent would not stay to remove.
        let Ok(at_work) = self.member.work.clone().try_read_owned() else {
            return self.fail("the agent is about to end".into());
        };
        let paths = |sink: &OpenSink| {
            let is_shared = !sink.shared_paths().is_empty();
            let paths = sink.paths().iter();
            paths.map(move |path| (path.clone(), is_shared)).collect()
        };
        let making: Vec<Vec<_>> = sinks.iter().map(paths).collect();
        self.state.lock().making = Some(making.concat());
        self.spawn("fetch", move |fetch| {
            let _at_work = at_work;
            // Until all is made, or removed.
            let making = Making(&fetch);
            let there = looked.there.all();
            // It may have been stopped since it was sent the plan.
            let is_shared = sinks.iter().any(|sink| !sink.shared_paths().is_empty());
            if is_shared && !fetch.gets_permit() {
                drop(making);
                return fetch.fail(NO_PERMIT.into());
            }
            match fetch.prepare(&plan, sinks, looked) {
                Ok(sinks) => {
                    let sinks = Arc::new(sinks);
                    *fetch.sinks.lock() = Some(sinks.clone());
                    if fetch.stopped() {
                        // It ended while files were being made.
                        let end = fetch.end();
                        if end.discards {
                            sinks.set_aside(end.discards_shared);
                            fetch.remove_made_folders();
                        }
                        return;
                    }
                    drop(making);
                    let present = sinks.present();
                    if !sinks.is_shared() {
                        fetch.tell_present(&present);
                    }
                    let mut state = fetch.state.lock();
                    let kept = present.adopted.clone();
                    let present = present.all().union(&there);
                    state.node.fetch_mut().handle_present(present);
                    if plan.hands_on {
                        sinks.keep_open();
                        state.node.fetch_mut().handle_kept(kept);
                    }
                    let now = fetch.member.now();
                    let unit_at = sinks.clone().units();
                    if !sinks.names_early() {
                        state.node.keep_names_for_the_end();
                    }
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
                    drop(making);
                    fetch.fail_by(reason);
                }
            }
        });
    }

    /// Waits while files are given their names, which ends with their sink at the latest, and reports it to the master: it may have ordered
    /// the end when they were complete.
    pub fn conclude(&self) {
        let mut state = self.state.lock();
        let is_naming = |node: &Node| node.life() == Life::Renaming && node.failure().is_none();
        while is_naming(&state.node) && !self.stopped() {
            self.changed.wait_for(&mut state, LOOK_EVERY);
        }
        let is_renamed = state.node.is_renamed();
        drop(state);
        if is_renamed {
            self.send_done();
        }
    }

    /// Waits until sinks that are being made when the transfer ends are made, or removed: what is reported to be left is so then.
    pub fn await_made(&self) {
        let until = Instant::now() + MAKING_TIME_MAX;
        let mut state = self.state.lock();
        while state.making.is_some() && Instant::now() < until {
            self.changed.wait_until(&mut state, until);
        }
    }

    /// Reports to the master what is there already.
    fn tell_present(&self, present: &Present) {
        for message in present_messages(present) {
            self.member.send(from_agent::Body::Present(message));
        }
    }

    /// How the master ended the transfer; nothing is to be removed while it did not.
    fn end(&self) -> End {
        self.state.lock().node.end().unwrap_or_default()
    }

    /// The transfer's id as it is in temporary names. A copy of this node's own has its number, too: another node may see
    /// the same file system without being told that they share a copy.
    fn temporary_id(&self, shared: bool) -> String {
        let digits = self.member.id.iter().map(|byte| format!("{byte:02x}"));
        let id: String = digits.collect();
        match shared {
            true => id,
            false => format!("{id}-{}", self.member.node),
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

    /// Takes a message of the master; returns the answer.
    pub fn handle(self: &Arc<Self>, message: &to_agent::Body) -> Option<from_agent::Body> {
        let unit_at = self.units();
        let mut state = self.state.lock();
        let now = self.member.now();
        let answer = state.node.handle_message(message, now, &unit_at);
        self.drain(state);
        answer
    }

    /// The unit at an offset; an empty one while there are no sinks.
    fn units(&self) -> impl Fn(u64) -> Range + use<> {
        let units = self.sinks().map(SinkSet::units);
        move |offset| match &units {
            Some(unit_at) => unit_at(offset),
            None => Range::new(offset, offset),
        }
    }

    fn stopped(&self) -> bool {
        self.member.has_ended()
    }

    fn sinks(&self) -> Option<Arc<SinkSet>> {
        self.sinks.lock().clone()
    }

    /// Carries out what the state machine asks for, then wakes whoever waits.
    fn drain(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let (mut start, mut compare) = (Vec::new(), Vec::new());
        let had_failed = state.node.failure().is_some();
        let now = self.member.now();
        while let Some(event) = state.node.poll_event(now) {
            match event {
                Event::Start(stream) => start.push(stream),
                Event::SameWay(lane, like) => {
                    let way = state.lane(like).way.clone();
                    state.lane(lane).way = way;
                }
                Event::Need(ranges, lost, reason) => {
                    let ranges = control::stretches(&ranges);
                    self.member.send(from_agent::Body::Need(control::Need {
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
                // Threads that wait are woken below.
                Event::Wake => {}
            }
        }
        let fails = !had_failed && state.node.failure().is_some();
        drop(state);
        self.changed.notify_all();
        for stream in start {
            self.spawn("receive", move |fetch| fetch.run_stream(stream));
        }
        for (lane, peer) in compare {
            self.spawn("compare", move |fetch| fetch.run_compare(lane, &peer));
        }
        // Without sinks no thread asks for the node's tasks.
        if fails && self.sinks.lock().is_none() {
            self.send_done();
        }
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

    /// Bytes that were received as zeros, which were not sent.
    pub fn zeros(&self) -> u64 {
        self.state.lock().node.fetch().zeros()
    }

    /// Its share of the transfer's limit, bytes per second; 0: there is none.
    pub fn limit(&self) -> u64 {
        let limit = self.state.lock().node.fetch().limit();
        limit.map_or(0, |rate| rate.0)
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
        let sinks = self.sinks();
        let hung = sinks.as_ref().and_then(|sinks| sinks.hung(Instant::now()));
        let hung = hung.or_else(|| self.member.hung(Instant::now()));
        let removing = sinks.and_then(|sinks| sinks.removing());
        let mut state = self.state.lock();
        let State { node, lanes, .. } = &mut *state;
        for (lane, info) in lanes.iter_mut() {
            node.fetch_mut().handle_bytes(lane, info.meter.fresh());
        }
        control::Status {
            temporary,
            hung: hung.unwrap_or_default(),
            comparing: self.member.comparing.report(Instant::now()),
            awaited_end: self.member.awaited_ends.report(Instant::now()),
            removing: removing.map(|(done, total)| control::Removing { done, total }),
            ..node.status(self.member.now())
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

    /// Why its part failed after it was reported to be complete.
    pub fn late_failure(&self) -> Option<String> {
        let state = self.state.lock();
        let failure = state.node.late_failure()?;
        Some(failure.text().to_owned())
    }

    /// Ends everything; with `discard`, temporary files are removed, but for those that a later transfer can go on with.
    ///
    /// Files that other nodes write too are removed only when `shared` states that no node continues.
    pub fn stop(&self, discard: bool, shared: bool) {
        let mut state = self.state.lock();
        let close = state.node.close(End {
            discards: discard,
            discards_shared: shared,
        });
        drop(state);
        self.changed.notify_all();
        self.ways.clear();
        if close != Close::Leave {
            match (self.sinks(), close) {
                (Some(sinks), Close::Discard) => sinks.discard(shared),
                (Some(sinks), Close::SetAside(unfinished)) => {
                    self.record_last(&sinks, unfinished.settled);
                    sinks.give_up(&unfinished.refused);
                    sinks.set_aside(shared);
                }
                (Some(sinks), Close::Keep(settled)) if !sinks.is_shared() => {
                    self.record_last(&sinks, Some(settled));
                }
                _ => {}
            }
            if shared {
                self.remove_unmade();
            }
            self.remove_made_folders();
        }
    }

    /// The master is gone: what this node was granted is finished, and transfers to its destination wait for that.
    pub fn handle_master_gone(&self) {
        let now = self.member.now();
        let is_over = {
            let mut state = self.state.lock();
            state.node.handle_master_gone(now);
            state.node.grace_over_at().is_none_or(|at| at <= now)
        };
        let sinks = self.sinks().filter(|_| !is_over);
        if sinks.is_some_and(|sinks| !sinks.note_ending()) {
            self.state.lock().node.handle_unseen();
        }
    }

    /// When its part ends, once the master is gone.
    pub fn grace_over_at(&self) -> Option<ropewalk_model::Instant> {
        self.state.lock().node.grace_over_at()
    }

    /// The transfer has failed, and no user asked for its end: less is worth keeping for a later one.
    pub fn keep_more(&self) {
        if let Some(sinks) = self.sinks() {
            sinks.keep_more();
        }
    }

    /// Whether this node may change what other nodes write, too; waits for a while, as it may have been stopped until now.
    pub(super) fn gets_permit(&self) -> bool {
        self.gets_permit_within(coordinator::SILENCE_TIME_MAX.into())
    }

    fn gets_permit_within(&self, most: Duration) -> bool {
        let begun = Instant::now();
        let mut state = self.state.lock();
        while !state.node.may_change_shared(self.member.now()) {
            if self.stopped() || begun.elapsed() >= most {
                return false;
            }
            self.changed.wait_for(&mut state, LOOK_EVERY);
        }
        true
    }

    /// Renames what was written. In words when it fails.
    pub fn commit(&self) -> Result<(), String> {
        if !self.gets_permit() {
            return Err(NO_PERMIT.to_owned());
        }
        let renamed = self.sinks().map_or(Ok(()), |sinks| sinks.commit());
        let renamed = renamed.map_err(|error| match error {
            // The sink is as it was written: the other files can have their names.
            StoreError::ChangedAtDestination { .. } => Failure::Other(error.to_string()),
            error => Failure::Sink(error.to_string()),
        });
        self.state.lock().node.handle_renamed(renamed.clone());
        self.changed.notify_all();
        renamed.map_err(|failure| failure.text().to_owned())
    }

    /// Renames the files of an own copy that lack no byte, when the transfer ends and others do; what was written of those is
    /// removed. Whether any file was renamed. In words when it fails.
    pub fn commit_whole_files(&self) -> Result<bool, String> {
        let mut state = self.state.lock();
        let (missing, unfinished) = state.node.close_whole_files();
        drop(state);
        self.changed.notify_all();
        let sinks = self.sinks().filter(|sinks| !sinks.is_shared());
        let (Some(sinks), Some(missing)) = (sinks, missing) else {
            return Ok(false);
        };
        self.record_last(&sinks, unfinished.settled);
        sinks.give_up(&unfinished.refused);
        let renamed = sinks.commit_whole_files(&missing);
        let renamed = renamed.map_err(|error| error.to_string())?;
        if renamed {
            self.state.lock().node.handle_renamed(Ok(()));
        }
        Ok(renamed)
    }

    /// As [`Fetch::commit_whole_files`] where the master is gone and no order will be received.
    pub fn commit_without_master(&self) -> Result<bool, String> {
        match self.names_whole_files {
            true => self.commit_whole_files(),
            false => Ok(false),
        }
    }

    /// What stood where files got their names; nothing where there are no sinks.
    pub fn landed(&self) -> Option<control::Landed> {
        self.sinks().map(|sinks| sinks.landed())
    }
}

impl Gate for Fetch {
    fn await_permit(&self) -> bool {
        !self.stopped() && self.gets_permit_within(Duration::MAX)
    }

    fn begin_write(&self, writer: Writer, range: Range) -> bool {
        let mut state = self.state.lock();
        state.node.fetch_mut().begin_write(writer, range)
    }

    fn end_write(&self, writer: Writer, range: Range) {
        let mut state = self.state.lock();
        let is_awaited = state.node.fetch_mut().end_write(writer, range);
        drop(state);
        if is_awaited {
            self.changed.notify_all();
        }
    }

    fn await_space(&self, writer: Writer, range: Range, waited: &mut Option<Waiting>) -> bool {
        let mut state = self.state.lock();
        let Some(waiting) = state.node.handle_full(writer, range, *waited) else {
            return false;
        };
        *waited = Some(waiting);
        // The thread that syncs.
        self.changed.notify_all();
        while !self.stopped() {
            if state.node.is_space_seen(writer, &waiting) {
                return true;
            }
            self.changed.wait_for(&mut state, LOOK_EVERY);
        }
        false
    }
}
