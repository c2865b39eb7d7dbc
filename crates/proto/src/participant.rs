//! The receiving agent's logic for one transfer: which units to ask of which peer, when to ask the
//! master for help, when the node's part is complete.
//!
//! A state machine without I/O. The driver (threads over sockets and a sink) calls [`Receiving::take`]
//! to learn what to grant on a stream, reports each end of a grant with one of the `handle_*`
//! methods, and drains [`Receiving::poll_event`]. Every method takes the time in nanoseconds from
//! an arbitrary zero. Sending needs no state machine: a sender serves grants inside what it opened.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ropewalk_model::{CHUNK_LEN, Range, RangeSet};

use crate::control::{self, Peer, Plan, Revision, Run};
use crate::ledger::{Delivery, LaneId, Ledger, ReadyRun, Unit};

mod align;
mod copies;
mod need;
mod pace;
mod replicas;
#[cfg(test)]
mod replicas_tests;
mod spares;
#[cfg(test)]
mod tests;
mod watch;

use align::align;
use copies::Copies;
pub use copies::Writer;
pub use need::Refusal;
pub use pace::Pace;
use replicas::Replicas;
pub use replicas::{Ask, Compare, Compared, Difference};
pub use ropewalk_tuner::far_streams;
use spares::Spares;
pub use watch::Watch;

/// Bytes in transit are at most what the lane carries in this time, or in two round trips where
/// that is longer: windows are time, so that little is under way on a slow lane when the end comes.
const WINDOW_NS: u64 = 200_000_000;

/// A lane may always have this many units in transit: the next one is asked for while one comes. Near the end it
/// is one: what waits on many lanes of a slow node is the tail of the transfer.
const WINDOW_UNITS: u64 = 2;

/// And this many before its speed is known, at most [`WINDOW_UNMEASURED_MAX`] bytes.
const WINDOW_UNITS_UNMEASURED: u64 = 8;

/// Beyond this many streams of a lane each of them may always have so many units in transit: on a path that takes many
/// streams each is slow, and one that waits for the lane's window is none.
const STREAMS_PLAIN: u32 = 4;

/// Most bytes in transit on a lane of unknown speed: what waits behind a slow sender cannot be
/// taken back quickly.
const WINDOW_UNMEASURED_MAX: u64 = 2 << 20;

/// Units handed out at once: bounds the time the lock is held and the size of one write of grants.
pub const UNITS_PER_TAKE_MAX: usize = 64;

/// A rail that brought a unit so recently works.
const RAIL_MOVES_NS: u64 = 1_000_000_000;

/// How often a unit may come damaged, from any peer, before the node gives up on it.
const CORRUPT_MAX: u32 = 8;

/// Notes a node keeps for the report; a disk that fails on every unit would fill it otherwise.
const NOTES_MAX: usize = 50;

/// What the driver must do or tell.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Open a lane to this peer.
    Connect(LaneId, Peer),
    /// Tell the streams of this lane that a copy they carry is useless.
    Cancel(LaneId, Range),
    /// No known holder is left for these ranges: ask the master. The peers that are lost or refused them, and what one of
    /// those said that refused, empty when none did.
    Need(RangeSet, Vec<u32>, String),
    /// Something happened that belongs in the report.
    Note(String),
    /// Every byte that can come has come and was checked. Sync, then report.
    Complete,
    /// A unit cannot be had intact; the node's part has failed.
    Failed(String),
    /// Open a stream to this peer over which it is asked for hashes; see [`Receiving::next_digests`].
    Compare(LaneId, Peer),
    /// A stream that asks for hashes has something to ask for.
    Wake,
    /// Holders gave different contents for the same bytes; the transfer has failed.
    Differ(Difference),
}

/// Answer to [`Receiving::take`].
#[derive(Clone, Debug, PartialEq)]
pub enum Take {
    /// Grant these.
    Units(Vec<Unit>),
    /// Nothing now; ask again when something changes or at this time.
    Wait(Option<u64>),
    /// Nothing will come on this lane any more.
    Closed,
}

/// Totals of one pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairTotals {
    /// Node number of the sender.
    pub sender: u32,
    /// Fresh bytes it delivered.
    pub delivered: u64,
    /// Units that came damaged.
    pub corrupt: u64,
    // All bytes that came, parts of units and later copies, too.
    come: u64,
    // Time at work that the master knows of.
    told_busy_ns: u64,
}

/// The receiving side of one transfer on one node. See the module documentation.
#[derive(Debug)]
pub struct Receiving {
    ledger: Ledger,
    // By lane; lanes to one node are rails.
    peers: Vec<Peer>,
    lane_of: BTreeMap<u32, LaneId>,
    pairs: Vec<PairTotals>,
    spares: Spares,
    prefetch: u64,
    // Of lanes whose rate is set: what they are granted ahead.
    fixed_window: Option<u64>,
    streams: u32,
    unit_len: u64,
    pace: Pace,
    watch: Watch,
    events: VecDeque<Event>,
    lost: BTreeSet<u32>,
    // What peers could not serve although they were said to hold it.
    refused: BTreeMap<u32, RangeSet>,
    troubles: need::Troubles,
    notes: usize,
    asked: RangeSet,
    // What it writes is its own copy: what it gives up comes back.
    is_own: bool,
    lent: RangeSet,
    // Units that came damaged and how often; empty in a healthy transfer.
    damaged: BTreeMap<u64, u32>,
    digests: Vec<(Range, [u8; 32])>,
    copies: Copies,
    replicas: Replicas,
    corrupt: u64,
    // Time that each sender was at work, as told to the master.
    busy_ns: BTreeMap<u32, u64>,
    finished: bool,
    // When the driver last came.
    now_ns: u64,
}

impl Receiving {
    /// A receiver that keeps at most `prefetch` bytes in transit per lane over `streams` streams.
    pub fn new(prefetch: u64, streams: u32, now_ns: u64) -> Self {
        Self {
            ledger: Ledger::new(0),
            peers: Vec::new(),
            lane_of: BTreeMap::new(),
            pairs: Vec::new(),
            spares: Spares::new(now_ns),
            prefetch: prefetch.max(1),
            fixed_window: None,
            streams: streams.max(1),
            unit_len: CHUNK_LEN,
            pace: Pace::unlimited(),
            watch: Watch::new(now_ns),
            events: VecDeque::new(),
            lost: BTreeSet::new(),
            refused: BTreeMap::new(),
            troubles: need::Troubles::default(),
            notes: 0,
            asked: RangeSet::new(),
            is_own: false,
            lent: RangeSet::new(),
            damaged: BTreeMap::new(),
            digests: Vec::new(),
            copies: Copies::default(),
            replicas: Replicas::default(),
            corrupt: 0,
            busy_ns: BTreeMap::new(),
            finished: false,
            now_ns,
        }
    }

    /// From now on each lane has so many streams.
    pub fn set_streams(&mut self, streams: u32) {
        self.streams = streams.max(1);
    }

    /// Keeps every lane to the work that plans give it.
    pub fn fix_plan(&mut self) {
        self.spares.fix();
    }

    /// Grants every lane so many bytes ahead, however fast it turns out to be: the blast of lanes with a set rate.
    pub fn fix_window(&mut self, bytes: u64) {
        self.fixed_window = Some(bytes.max(1));
    }

    /// Takes the master's plan: peers to connect to and runs to fetch.
    ///
    /// Cuts between two senders move to the border of the unit around them where one of the two
    /// holds all of it: a unit has one sender, and receivers of equal ranges hash equal units.
    pub fn handle_plan(&mut self, plan: &Plan, now_ns: u64, unit_at: &dyn Fn(u64) -> Range) {
        self.now_ns = now_ns;
        self.watch = Watch::new(now_ns);
        self.set_limit(plan.limit, now_ns);
        self.spares.expect_at(plan.expected);
        self.spares.explore(plan.explore);
        self.unit_len = plan.unit_len();
        self.is_own = plan.commit;
        for peer in &plan.peers {
            self.add_peer(peer);
        }
        let mut runs = align(&plan.runs, unit_at);
        runs.sort_by_key(|run| run.choices);
        for run in &runs {
            self.want(run);
        }
        self.aim(&runs, true);
        self.take_holdings(&plan.holdings);
        self.set_pace(now_ns);
        self.call_needed();
        self.check_progress();
    }

    /// Takes changed owners, new runs, peers that are gone and ranges to give up.
    pub fn handle_revision(&mut self, revision: &Revision, now_ns: u64) {
        self.now_ns = now_ns;
        if revision.settle {
            self.ledger.settle();
            self.spares.settle(now_ns);
        }
        if revision.expected > 0 {
            let passed = now_ns.saturating_sub(self.watch.start_ns());
            self.spares
                .expect_at(passed.saturating_add(revision.expected));
        }
        for peer in &revision.peers {
            self.add_peer(peer);
        }
        for &node in &revision.lost {
            if let Some(&lane) = self.lane_of.get(&node) {
                for rail in self.ledger.rails(lane).collect::<Vec<_>>() {
                    self.lane_down(rail, "its connection to the master ended");
                }
            }
        }
        let mut runs: Vec<&Run> = revision.runs.iter().collect();
        runs.sort_by_key(|run| run.choices);
        let mut new = Vec::new();
        for run in runs {
            let range = control::range(run.start, run.length);
            // Somebody can be asked for it after all.
            self.ledger.forget_given_up(range);
            let known = self.ledger.known(range);
            let holders = self.lanes_of(run);
            self.ledger.reassign([ReadyRun {
                range,
                holders,
                choices: run.choices,
            }]);
            for fresh in RangeSet::from(range).difference(&known).iter() {
                let holders = self.lanes_of(run);
                new.push(Run {
                    start: fresh.start,
                    length: fresh.len(),
                    ..run.clone()
                });
                let run = ReadyRun {
                    range: fresh,
                    holders,
                    choices: run.choices,
                };
                match revision.settle {
                    true => self.ledger.want(run),
                    false => self.ledger.inherit(run),
                }
                self.finished = false;
            }
            self.asked.remove(range);
            self.lent.remove(range);
        }
        self.aim(&new, false);
        self.take_holdings(&revision.holdings);
        if revision.expected > 0 {
            self.set_pace(now_ns);
        }
        for stretch in &revision.unavailable {
            let range = control::range(stretch.start, stretch.length);
            self.ledger.give_up(range);
            for part in self.lent.clipped(range).iter() {
                self.lent.remove(part);
                self.ledger.lose(part);
            }
        }
        self.call_needed();
        self.check_progress();
    }

    /// Gives up to `bytes` that are not on their way yet back to the master. A receiver with a copy of its own
    /// is not complete before it knows what becomes of them.
    pub fn release(&mut self, bytes: u64, unit_at: &dyn Fn(u64) -> Range) -> RangeSet {
        let released = self.ledger.release(bytes, unit_at);
        if self.is_own {
            self.lent = self.lent.union(&released);
        }
        self.check_progress();
        released
    }

    /// Changes the receiving rate at most allowed, bytes per second; 0 means no limit.
    pub fn set_limit(&mut self, rate: u64, now_ns: u64) {
        self.pace.set(rate, now_ns);
    }

    fn add_peer(&mut self, peer: &Peer) {
        if self.lane_of.contains_key(&peer.node) {
            return;
        }
        let lane = self.ledger.add_lane();
        self.lane_of.insert(peer.node, lane);
        self.enter(peer.clone());
    }

    fn enter(&mut self, peer: Peer) {
        self.pairs.push(PairTotals {
            sender: peer.node,
            ..PairTotals::default()
        });
        self.peers.push(peer);
        self.spares.add();
    }

    /// The peer of `lane` is connected over another rail, too. Returns the number of the new lane: it does part of all
    /// that the others to this peer have to do, and their work when they fail.
    pub fn add_rail(&mut self, lane: LaneId, now_ns: u64) -> LaneId {
        self.now_ns = now_ns;
        let rail = self.ledger.add_rail(lane);
        self.enter(self.peers[lane].clone());
        self.spares.is_called(rail, now_ns);
        rail
    }

    /// As many more lanes to the peer of `lane`, and its work dealt out to all of them in equal parts.
    pub fn deal(
        &mut self,
        lane: LaneId,
        more: u32,
        now_ns: u64,
        unit_at: &dyn Fn(u64) -> Range,
    ) -> Vec<LaneId> {
        let added = (0..more).map(|_| self.add_rail(lane, now_ns)).collect();
        self.ledger.deal(lane, unit_at);
        added
    }

    /// Whether the peer of `lane` can still be reached over any rail.
    pub fn is_reachable(&self, lane: LaneId) -> bool {
        self.ledger.rails(lane).next().is_some()
    }

    /// The other rails over which the peer of `lane` can be reached.
    pub fn other_rails(&self, lane: LaneId) -> impl Iterator<Item = LaneId> {
        self.ledger.rails(lane).filter(move |&rail| rail != lane)
    }

    /// Whether the peer of `lane` can be reached over another rail.
    pub fn has_other_rail(&self, lane: LaneId) -> bool {
        self.other_rails(lane).next().is_some()
    }

    /// Whether another rail to the same peer has brought a unit within the last second: silence on this one is its own then.
    pub fn other_rail_moves(&self, lane: LaneId, now_ns: u64) -> bool {
        let moves = |rail: LaneId| {
            let brought = self.ledger.brought_ns(rail);
            brought.is_some_and(|brought| now_ns.saturating_sub(brought) < RAIL_MOVES_NS)
        };
        self.ledger
            .rails(lane)
            .any(|rail| rail != lane && moves(rail))
    }

    fn lanes_of(&self, run: &Run) -> Vec<LaneId> {
        let mut holders = Vec::with_capacity(1 + run.spares.len());
        for node in std::iter::once(&run.sender).chain(&run.spares) {
            if let Some(&lane) = self
                .lane_of
                .get(node)
                .filter(|lane| !holders.contains(*lane))
            {
                holders.push(lane);
                holders.extend(self.ledger.rails(lane).filter(|&rail| rail != lane));
            }
        }
        holders
    }

    fn want(&mut self, run: &Run) {
        let holders = self.lanes_of(run);
        self.ledger.want(ReadyRun {
            range: control::range(run.start, run.length),
            holders,
            choices: run.choices,
        });
    }

    /// What to grant next on a stream of `lane` that has `outstanding` bytes granted and not come.
    ///
    /// Hands out nothing while the stream has more than half its share of the window, so that
    /// small units are granted in batches.
    pub fn take(
        &mut self,
        lane: LaneId,
        outstanding: u64,
        now_ns: u64,
        unit_at: &dyn Fn(u64) -> Range,
    ) -> Take {
        self.now_ns = now_ns;
        self.handle_timer(now_ns);
        if !self.ledger.is_alive(lane) {
            return Take::Closed;
        }
        // The master may still bring more: a receiver of a shared destination inherits work.
        if self.finished {
            return Take::Wait(None);
        }
        let window = self.window(lane);
        let share = (window / u64::from(self.streams)).max(1);
        if outstanding > share / 2 {
            return Take::Wait(None);
        }
        let mut units = Vec::new();
        let mut taken = 0;
        while units.len() < UNITS_PER_TAKE_MAX && (taken == 0 || outstanding + taken < share) {
            let in_transit = self.ledger.in_transit_bytes(lane);
            if in_transit > 0 && in_transit >= window {
                break;
            }
            // Its own may come to an end in the middle.
            let free = !self.holds_back(lane, now_ns);
            if let Some(until) = self.pace.wait_until(now_ns) {
                if units.is_empty() {
                    return Take::Wait(Some(until));
                }
                break;
            }
            // Only for a stream that has nothing: it would double what it carries itself.
            let is_idle = outstanding + taken == 0;
            self.ledger
                .set_slow_streams(is_idle && self.streams > STREAMS_PLAIN);
            let Some(unit) = self.ledger.take(lane, free, now_ns, unit_at) else {
                break;
            };
            taken += unit.range.len();
            self.pace.spend(unit.range.len());
            match unit.duplicate {
                true => self.copies.doubled(unit.range),
                false => self.sample(lane, unit.range),
            }
            units.push(unit);
        }
        if units.is_empty() {
            Take::Wait(None)
        } else {
            Take::Units(units)
        }
    }

    /// Most bytes the lane may have in transit now.
    pub fn window(&self, lane: LaneId) -> u64 {
        if let Some(window) = self.fixed_window {
            return window;
        }
        let window = match self.ledger.bytes_per_second(lane) {
            Some(rate) => {
                let trips = self.ledger.latency_ns(lane).unwrap_or(0).saturating_mul(2);
                let timed = rate * WINDOW_NS.max(trips) as f64 / 1e9;
                let units = match self.is_near_end() {
                    true => 1,
                    false => WINDOW_UNITS,
                };
                (timed as u64).max(units * self.unit_len)
            }
            // What all holders send at once while it is found out who is fast may be the wrong bytes.
            None if self.spares.is_exploring() => WINDOW_UNITS * self.unit_len,
            None => (WINDOW_UNITS_UNMEASURED * self.unit_len).min(WINDOW_UNMEASURED_MAX),
        };
        // At the end, too: one that asked only when it had brought the last one would pause for a round trip each time.
        let units = match self.streams > STREAMS_PLAIN {
            true => WINDOW_UNITS,
            false => 0,
        };
        let for_streams = units * self.unit_len * u64::from(self.streams);
        window.min(self.prefetch).max(for_streams)
    }

    /// So many more bytes came on the lane, of whatever: its speed shows before a unit is whole.
    pub fn handle_bytes(&mut self, lane: LaneId, bytes: u64) {
        self.pairs[lane].come += bytes;
    }

    /// A unit came whole and was checked. Returns whether it was the first copy.
    pub fn handle_unit(
        &mut self,
        lane: LaneId,
        range: Range,
        digest: Option<[u8; 32]>,
        now_ns: u64,
    ) -> bool {
        match self.ledger.delivered(lane, range, now_ns) {
            Delivery::Fresh { cancel } => {
                self.watch.arrived(range.len(), now_ns);
                self.pairs[lane].delivered += range.len();
                self.first_copy(lane, range, digest, cancel.len());
                if let Some(digest) = digest {
                    self.digests.push((range, digest));
                    self.compare_unit(self.node_of(lane), range, digest);
                }
                for lane in cancel {
                    self.events.push_back(Event::Cancel(lane, range));
                }
                self.check_progress();
                true
            }
            Delivery::Duplicate => {
                self.later_copy(lane, range, digest);
                false
            }
        }
    }

    /// Whether a unit has been delivered by somebody: later copies need not be stored.
    pub fn is_delivered(&self, range: Range) -> bool {
        self.ledger.delivered_ranges().contains_range(range)
    }

    /// A granted unit came damaged: it is fetched again, from another holder if there is one.
    pub fn handle_corrupt(&mut self, lane: LaneId, range: Range, reason: &str, now_ns: u64) {
        self.now_ns = now_ns;
        self.corrupt += 1;
        self.pairs[lane].corrupt += 1;
        let name = self.peer_name(lane);
        self.note(format!(
            "bytes {}-{} from {name} came damaged ({reason}); fetching them again",
            range.start,
            range.end - 1
        ));
        let times = self.damaged.entry(range.start).or_insert(0);
        *times += 1;
        let give_up = *times > CORRUPT_MAX;
        self.no_copy(range);
        self.ledger.failed(lane, range, now_ns);
        self.call_needed();
        if give_up && !self.finished {
            self.finished = true;
            self.events.push_back(Event::Failed(format!(
                "bytes {}-{} came damaged {CORRUPT_MAX} times, last from {name} ({reason}); check that host's memory and disk, or leave it out",
                range.start,
                range.end - 1
            )));
        }
    }

    /// A granted unit will not come on this stream (cancelled, or the stream broke).
    pub fn handle_returned(&mut self, lane: LaneId, range: Range, now_ns: u64) {
        self.now_ns = now_ns;
        self.no_copy(range);
        self.ledger.failed(lane, range, now_ns);
        self.call_needed();
        self.check_progress();
    }

    /// The peer cannot serve a unit it was said to hold: it is not asked for these bytes again.
    pub fn handle_refused(&mut self, lane: LaneId, range: Range, reason: &str, now_ns: u64) {
        self.now_ns = now_ns;
        self.no_copy(range);
        self.ledger.refused(lane, range, now_ns);
        let sender = self.pairs[lane].sender;
        self.refused.entry(sender).or_default().insert(range);
        let name = self.peer_name(lane);
        self.troubles.refused(sender, name, reason, range);
        self.call_needed();
        self.check_progress();
    }

    /// No stream of the lane works and none can be opened.
    pub fn handle_lane_down(&mut self, lane: LaneId, reason: &str) {
        self.lane_down(lane, reason);
        self.call_needed();
        self.check_progress();
    }

    /// The lane carries nothing more, since another one to the same peer does its work. Where that one has failed
    /// meanwhile, the peer is gone.
    pub fn handle_lane_left(&mut self, lane: LaneId) {
        if self.has_other_rail(lane) && self.ledger.is_alive(lane) {
            self.ledger.lane_failed(lane);
        } else {
            self.lane_down(lane, "the way that took its place failed");
        }
        self.call_needed();
        self.check_progress();
    }

    fn lane_down(&mut self, lane: LaneId, reason: &str) {
        if !self.ledger.is_alive(lane) {
            return;
        }
        self.ledger.lane_failed(lane);
        let is_gone = self.ledger.rails(lane).next().is_none();
        if is_gone {
            let sender = self.pairs[lane].sender;
            self.lost.insert(sender);
            let text = format!("{} is gone ({reason})", self.peer_name(lane));
            self.troubles.gone(sender, text);
        }
        let name = self.peer_name(lane);
        if !self.finished {
            self.note(match is_gone {
                true => format!("sender {name} is gone: {reason}"),
                false => format!("one rail to {name} is gone: {reason}"),
            });
        }
    }

    fn note(&mut self, text: String) {
        self.notes += 1;
        match self.notes.cmp(&NOTES_MAX) {
            std::cmp::Ordering::Less => self.events.push_back(Event::Note(text)),
            std::cmp::Ordering::Equal => self
                .events
                .push_back(Event::Note("more of this kind is left out".into())),
            std::cmp::Ordering::Greater => {}
        }
    }

    fn peer_name(&self, lane: LaneId) -> String {
        self.peers
            .get(lane)
            .map_or_else(|| format!("peer {lane}"), |peer| peer.name.clone())
    }

    fn check_progress(&mut self) {
        if self.finished {
            return;
        }
        if self.ledger.is_complete() && self.lent.is_empty() {
            // Nothing is complete before what is to be compared was, and the sink is as it was counted.
            if !self.copies.is_settled() || !self.is_compared() {
                return;
            }
            self.finished = true;
            self.events.push_back(Event::Complete);
            return;
        }
        let open = self.ledger.orphans().difference(&self.asked);
        if open.is_empty() {
            return;
        }
        for range in open.iter() {
            self.asked.insert(range);
        }
        self.ask_for_holders(&open);
    }

    /// Whether the driver has something to do.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Next thing for the driver to do.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Wanted and not delivered, what is lent included.
    pub fn missing(&self) -> RangeSet {
        self.ledger.missing().union(&self.lent)
    }

    /// The ledger, for reports.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Totals per pair, in lane order.
    pub fn pairs(&self) -> &[PairTotals] {
        &self.pairs
    }

    /// What the master is told from time to time of each sender that has brought anything, tries to, or is to. A sender is
    /// at work while any of its rails is.
    pub fn pair_statuses(&mut self, now_ns: u64) -> Vec<control::PairStatus> {
        let mut statuses: BTreeMap<u32, control::PairStatus> = BTreeMap::new();
        let mut more: BTreeMap<u32, u64> = BTreeMap::new();
        for (lane, pair) in self.pairs.iter_mut().enumerate() {
            // A lane that fails while it is at work forgets for how long it was.
            let busy = self.ledger.busy_ns(lane, now_ns).max(pair.told_busy_ns);
            let left = self.ledger.ready_bytes(lane) + self.ledger.in_transit_bytes(lane);
            if busy == 0 && left == 0 {
                continue;
            }
            let longest = more.entry(pair.sender).or_default();
            *longest = (*longest).max(busy.saturating_sub(pair.told_busy_ns));
            pair.told_busy_ns = busy;
            let status = statuses.entry(pair.sender).or_default();
            status.sender = pair.sender;
            status.delivered += pair.delivered;
            status.come += pair.come.max(pair.delivered);
            status.left += left;
        }
        for (sender, more) in more {
            let busy = self.busy_ns.entry(sender).or_default();
            *busy += more;
            if let Some(status) = statuses.get_mut(&sender) {
                status.busy = *busy;
            }
        }
        statuses.into_values().collect()
    }

    /// Best second and longest stall so far.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Units that came damaged.
    pub fn corrupt(&self) -> u64 {
        self.corrupt
    }

    /// Whether nothing more will be taken.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Hashes of the delivered units by range, sorted; for read-back and the root.
    pub fn sorted_digests(&mut self) -> &[(Range, [u8; 32])] {
        self.digests.sort_unstable_by_key(|(range, _)| range.start);
        &self.digests
    }
}
