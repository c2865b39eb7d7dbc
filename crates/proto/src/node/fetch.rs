//! The receiving agent's logic for one transfer: which units to ask of which peer, when to ask the
//! master for help, when the node's part is complete.
//!
//! A state machine without I/O. The driver (threads over sockets and a sink) calls [`Receiving::take`]
//! to learn what to grant on a stream, reports each end of a grant with one of the `handle_*`
//! methods, and drains [`Receiving::poll_event`]. Sending needs no state machine: a sender serves grants inside what it opened.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ropewalk_model::{ByteRate, CHUNK_LEN, Instant, Nanos, Range, RangeSet, Table};

use crate::control::{self, Peer};
use crate::ledger::{Delivery, LaneId, Ledger, ReadyRun, Unit};

mod align;
mod copies;
mod need;
mod pace;
mod plan;
mod rails;
mod relay;
#[cfg(test)]
mod relay_tests;
mod replicas;
#[cfg(test)]
mod replicas_tests;
mod spares;
#[cfg(test)]
mod tests;
mod watch;
mod window;

use copies::Copies;
pub use copies::Writer;
pub use need::Refusal;
pub use pace::Pace;
use replicas::Replicas;
pub use replicas::{Ask, Compare, Compared, Difference, has_several_holders};
use spares::Spares;
pub use watch::Watch;
pub use window::UNITS_PER_TAKE_MAX;

/// How often a unit may come damaged, from any peer, before the node gives up on it.
const CORRUPT_MAX: u32 = 8;

/// Notes a node keeps for the report; a disk that fails on every unit would fill it otherwise.
const NOTES_MAX: usize = 50;

/// What the driver must do or report.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Open a lane to this peer.
    Connect(LaneId, Peer),
    /// Notify the streams of this lane that a copy they carry is useless.
    Cancel(LaneId, Range),
    /// No known holder is left for these ranges: ask the master. The peers that are lost or refused them, and what one of
    /// those said that refused, empty when none did.
    Need(RangeSet, Vec<u32>, String),
    /// Something happened that belongs in the report.
    Note(String),
    /// Every byte that can be received was received and checked. Sync, then report.
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
    Wait(Option<Instant>),
    /// Nothing more will arrive on this lane.
    Closed,
}

/// Totals of one pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairTotals {
    /// Node number of the sender.
    pub sender: u32,
    /// Fresh bytes it delivered.
    pub delivered: u64,
    /// Units received damaged.
    pub corrupt: u64,
    // All bytes that came, parts of units and later copies, too.
    come: u64,
    // Time at work that the master knows of.
    told_busy: Nanos,
}

/// The receiving side of one transfer on one node. See the module documentation.
#[derive(Debug)]
pub struct Receiving {
    ledger: Ledger,
    // Lanes to one node are rails.
    peers: Table<LaneId, Peer>,
    lane_of: BTreeMap<u32, LaneId>,
    pairs: Table<LaneId, PairTotals>,
    spares: Spares,
    prefetch: u64,
    // Of lanes whose rate is set: what they are granted ahead.
    fixed_window: Option<u64>,
    streams: u32,
    streams_to_joined: u32,
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
    // What the destination has already: no plan can ask for it.
    present: RangeSet,
    // Of that, what others may have from this node.
    kept: RangeSet,
    // What it writes is its own copy: what it gives up comes back.
    is_own: bool,
    lent: RangeSet,
    // Units that came damaged and how often; empty in a healthy transfer.
    damaged: BTreeMap<u64, u32>,
    digests: Vec<(Range, [u8; 32])>,
    // Of these, how many were given out for a journal.
    recorded_digests: usize,
    copies: Copies,
    replicas: Replicas,
    relays: relay::Relays,
    corrupt: u64,
    // Bytes that were zeros and were not sent.
    zeros: u64,
    // Time that each sender was at work, as told to the master.
    busy: BTreeMap<u32, Nanos>,
    finished: bool,
    // When the driver last came.
    now: Instant,
}

impl Receiving {
    /// A receiver that keeps at most `prefetch` bytes in transit per lane over `streams` streams.
    pub fn new(prefetch: u64, streams: u32, now: Instant) -> Self {
        Self {
            ledger: Ledger::new(0),
            peers: Table::new(),
            lane_of: BTreeMap::new(),
            pairs: Table::new(),
            spares: Spares::new(now),
            prefetch: prefetch.max(1),
            fixed_window: None,
            streams: streams.max(1),
            streams_to_joined: u32::MAX,
            unit_len: CHUNK_LEN,
            pace: Pace::unlimited(),
            watch: Watch::new(now),
            events: VecDeque::new(),
            lost: BTreeSet::new(),
            refused: BTreeMap::new(),
            troubles: need::Troubles::default(),
            notes: 0,
            asked: RangeSet::new(),
            present: RangeSet::new(),
            kept: RangeSet::new(),
            is_own: false,
            lent: RangeSet::new(),
            damaged: BTreeMap::new(),
            digests: Vec::new(),
            recorded_digests: 0,
            copies: Copies::default(),
            replicas: Replicas::default(),
            relays: relay::Relays::default(),
            corrupt: 0,
            zeros: 0,
            busy: BTreeMap::new(),
            finished: false,
            now,
        }
    }

    /// From now on each lane has so many streams.
    pub fn set_streams(&mut self, streams: u32) {
        self.streams = streams.max(1);
    }

    /// Lanes to receivers that joined have at most so many.
    pub fn set_streams_to_joined(&mut self, streams: u32) {
        self.streams_to_joined = streams.max(1);
    }

    /// Keeps every lane to the work that plans give it.
    pub fn fix_plan(&mut self) {
        self.spares.fix();
    }

    /// Grants every lane so many bytes ahead, however fast it turns out to be: the blast of lanes with a set rate.
    pub fn fix_window(&mut self, bytes: u64) {
        self.fixed_window = Some(bytes.max(1));
    }

    /// Changes the receiving rate at most allowed; `None` means no limit.
    pub fn set_limit(&mut self, rate: Option<ByteRate>, now: Instant) {
        self.pace.set(rate, now);
    }

    /// The receiving rate at most allowed.
    #[must_use]
    pub fn limit(&self) -> Option<ByteRate> {
        self.pace.rate()
    }

    /// So many more bytes arrived on the lane: its speed shows before a unit is whole.
    pub fn handle_bytes(&mut self, lane: LaneId, bytes: u64) {
        self.pairs[lane].come += bytes;
    }

    /// So many bytes of the unit that is received next were zeros that were not sent: the limit is for those that are.
    pub fn handle_zeros(&mut self, bytes: u64) {
        self.pace.refund(bytes);
        self.zeros = self.zeros.saturating_add(bytes);
    }

    /// Zeros that were not sent.
    pub fn zeros(&self) -> u64 {
        self.zeros
    }

    /// A unit was received whole and checked. Returns whether it was the first copy.
    pub fn handle_unit(
        &mut self,
        lane: LaneId,
        range: Range,
        digest: Option<[u8; 32]>,
        now: Instant,
    ) -> bool {
        match self.ledger.delivered(lane, range, now) {
            Delivery::Fresh { cancel } => {
                self.watch.arrived(range.len(), now);
                self.pairs[lane].delivered += range.len();
                self.first_copy(lane, range, digest, cancel.len());
                let origin = self.origin_of(lane, range);
                if let Some(digest) = digest {
                    self.digests.push((range, digest));
                    self.compare_unit(origin, range, digest);
                }
                self.relays.delivered(range, origin, digest);
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

    /// Whether a unit has been delivered by any lane: later copies need not be stored.
    pub fn is_delivered(&self, range: Range) -> bool {
        self.ledger.delivered_ranges().contains_range(range)
    }

    /// A granted unit was damaged: it is fetched again, from another holder if there is one.
    pub fn handle_corrupt(&mut self, lane: LaneId, range: Range, reason: &str, now: Instant) {
        self.now = now;
        self.corrupt += 1;
        self.pairs[lane].corrupt += 1;
        let name = self.peer_name(lane);
        self.note(format!(
            "bytes {}-{} from {name} are damaged ({reason}); fetching them again",
            range.start,
            range.end - 1
        ));
        let times = self.damaged.entry(range.start).or_insert(0);
        *times += 1;
        let give_up = *times > CORRUPT_MAX;
        self.no_copy(range);
        self.ledger.failed(lane, range, now);
        self.call_needed();
        if give_up && !self.finished {
            self.finished = true;
            self.events.push_back(Event::Failed(format!(
                "bytes {}-{} were damaged {CORRUPT_MAX} times, last from {name} ({reason}); check that host's memory and disk, or leave it out",
                range.start,
                range.end - 1
            )));
        }
    }

    /// A granted unit will not arrive on this stream: it was cancelled.
    pub fn handle_returned(&mut self, lane: LaneId, range: Range, now: Instant) {
        self.handle_closed(lane, &[range], now);
    }

    /// A stream of the lane is closed: these granted units will not arrive on it.
    pub fn handle_closed(&mut self, lane: LaneId, ranges: &[Range], now: Instant) {
        self.now = now;
        for range in ranges {
            self.no_copy(*range);
            self.ledger.failed(lane, *range, now);
        }
        self.call_needed();
        self.check_progress();
    }

    /// The peer cannot serve a unit it was said to hold: it is not asked for these bytes again.
    pub fn handle_refused(&mut self, lane: LaneId, range: Range, reason: &str, now: Instant) {
        self.now = now;
        self.no_copy(range);
        self.ledger.refused(lane, range, now);
        // The bytes were never sent: the limit is for those that are.
        self.pace.refund(range.len());
        // What a fellow receiver has not is not missing.
        if !self.is_relayed(lane) {
            let sender = self.pairs[lane].sender;
            self.refused.entry(sender).or_default().insert(range);
            let name = self.peer_name(lane);
            self.troubles.refused(sender, name, reason, range);
        }
        self.call_needed();
        self.check_progress();
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
        // What lanes that failed still carry is asked for with the rest.
        if open.is_empty() || self.ledger.awaits_failed() {
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

    /// Of these, what holders refused: their files changed, or cannot be read.
    pub fn missing_refused(&self) -> RangeSet {
        let refused = self.refused.values();
        let all = refused.fold(RangeSet::new(), |all, one| all.union(one));
        all.intersection(&self.missing())
    }

    /// Bytes that are checked, and that no stream is writing again: others may have them from this node.
    #[must_use]
    pub fn held(&self) -> RangeSet {
        let delivered = self.ledger.delivered_ranges();
        delivered.union(&self.kept).difference(&self.unsettled())
    }

    /// Whether others may have all of a range from this node.
    #[must_use]
    pub fn holds(&self, range: Range) -> bool {
        let delivered = self.ledger.delivered_ranges().clipped(range);
        let held = delivered.union(&self.kept.clipped(range));
        held.contains_range(range) && self.unsettled().clipped(range).is_empty()
    }

    /// The ledger, for reports.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Totals per pair, in lane order.
    pub fn pairs(&self) -> &Table<LaneId, PairTotals> {
        &self.pairs
    }

    /// What the master gets from time to time of each sender that has delivered anything, tries to, or is to. A sender is
    /// at work while any of its rails is.
    pub fn pair_statuses(&mut self, now: Instant) -> Vec<control::PairStatus> {
        let mut statuses: BTreeMap<u32, control::PairStatus> = BTreeMap::new();
        let mut more: BTreeMap<u32, Nanos> = BTreeMap::new();
        for (lane, pair) in self.pairs.iter_mut() {
            // A lane that fails while it is at work forgets for how long it was.
            let busy = self.ledger.busy_time(lane, now).max(pair.told_busy);
            let left = self.ledger.ready_bytes(lane) + self.ledger.in_transit_bytes(lane);
            if busy == Nanos::ZERO && left == 0 {
                continue;
            }
            let longest = more.entry(pair.sender).or_default();
            *longest = (*longest).max(busy - pair.told_busy);
            pair.told_busy = busy;
            let status = statuses.entry(pair.sender).or_default();
            status.sender = pair.sender;
            status.delivered += pair.delivered;
            status.come += pair.come.max(pair.delivered);
            status.left += left;
        }
        for (sender, more) in more {
            let busy = self.busy.entry(sender).or_default();
            *busy += more;
            if let Some(status) = statuses.get_mut(&sender) {
                status.busy = busy.0;
            }
        }
        statuses.into_values().collect()
    }

    /// Best second and longest stall so far.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Units received damaged.
    pub fn corrupt(&self) -> u64 {
        self.corrupt
    }

    /// Whether nothing more will be taken.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Hashes of units that were delivered since the last call.
    pub(in crate::node) fn fresh_digests(&mut self) -> &[(Range, [u8; 32])] {
        let from = std::mem::replace(&mut self.recorded_digests, self.digests.len());
        &self.digests[from..]
    }

    /// Hashes of the delivered units by range, sorted; for read-back and the root.
    pub fn sorted_digests(&mut self) -> &[(Range, [u8; 32])] {
        // Which ones were recorded is not known any more; the others may be recorded again.
        self.recorded_digests = 0;
        match self.replicas.deliverers() {
            // They are those of these units, in this order.
            Some(deliverers) if deliverers.len() == self.digests.len() => {
                let units = self.digests.drain(..).zip(deliverers.drain(..));
                let mut units: Vec<_> = units.collect();
                units.sort_unstable_by_key(|((range, _), _)| range.start);
                (self.digests, *deliverers) = units.into_iter().unzip();
            }
            _ => self.digests.sort_unstable_by_key(|(range, _)| range.start),
        }
        &self.digests
    }
}
