//! When lanes to spare holders open, and when they take work.
//!
//! A plan names, beside the sender of each run, others that hold it too. Their lanes stay closed while
//! the planned ones do what the plan expects: each would cost a handshake, threads and buffers on
//! both sides, and take sending speed that the plan gave to others. They open when work falls to
//! them (a sender is lost or refuses), and when the node falls behind its plan; then they take work
//! until it has caught up. Where nobody knew any speed, the master asks nodes that turn out slower
//! than others to try: a node that gets no faster by its spares is not held up by its senders, and
//! they step back.

use super::{Event, Receiving};

/// The planned lanes have this long to get going before anybody judges them.
const PATIENCE_NS: u64 = 1_000_000_000;

/// With less time left than this, a new lane would come too late to help.
const WORTHWHILE_NS: u64 = 300_000_000;

/// Nothing came for this long: the planned lanes are not trusted any more.
const STALL_NS: u64 = 1_000_000_000;

/// Behind the plan means later than it by this factor, and by the patience.
const LATE: f64 = 1.1;

/// Time between two looks.
const LOOK_NS: u64 = 100_000_000;

/// A trial counts for this long, or for [`TRIAL_TRIPS`] units' times where that is longer.
const TRIAL_NS: u64 = 700_000_000;

/// And begins to count after this (handshakes, slow start), or as many units' times.
const TRIAL_START_NS: u64 = 300_000_000;

/// See [`TRIAL_NS`].
const TRIAL_TRIPS: u64 = 8;

/// Spares that make the node faster by this factor stay.
const TRIAL_GAIN: f64 = 1.3;

/// What a receiver knows about its plan and its spare lanes.
#[derive(Debug)]
pub(super) struct Spares {
    // Whether the driver was told to connect, by lane.
    called: Vec<bool>,
    // When the plan has this node done, from its start; 0 = nobody knows.
    expected_ns: u64,
    // Nothing but the loss of a sender moves work.
    fixed: bool,
    behind: bool,
    looked_ns: u64,
    trial: Option<Trial>,
    // The trial goes on, or showed that the spares help.
    explores: bool,
}

/// How fast the node was without its spares, and where it stood when the trial began to count.
#[derive(Clone, Copy, Debug)]
struct Trial {
    before: f64,
    counts_from_ns: u64,
    length_ns: u64,
    bytes: Option<u64>,
}

impl Spares {
    pub fn new(now_ns: u64) -> Self {
        Self {
            called: Vec::new(),
            expected_ns: 0,
            fixed: false,
            behind: false,
            looked_ns: now_ns,
            trial: None,
            explores: false,
        }
    }

    /// One more lane, not called yet.
    pub fn add(&mut self) {
        self.called.push(false);
    }

    /// Only the loss of a sender moves work.
    pub fn fix(&mut self) {
        self.fixed = true;
    }

    /// The node should be done this long after the start; 0 when nobody knows.
    pub fn expect_at(&mut self, expected_ns: u64) {
        self.expected_ns = expected_ns;
    }
}

impl Receiving {
    /// Time passes. Call at least once a second; [`Receiving::take`] does, too.
    pub fn handle_timer(&mut self, now_ns: u64) {
        if self.finished || now_ns.saturating_sub(self.spares.looked_ns) < LOOK_NS {
            return;
        }
        self.spares.looked_ns = now_ns;
        self.end_trial(now_ns);
        self.spares.behind = !self.spares.fixed && self.is_behind(now_ns);
        if self.spares.behind {
            self.call_all();
        }
    }

    /// Tries the spares; see the module documentation.
    pub(super) fn explore(&mut self, now_ns: u64) {
        if self.finished || self.spares.fixed || self.spares.trial.is_some() {
            return;
        }
        let passed = now_ns.saturating_sub(self.watch.start_ns());
        let lanes = 0..self.spares.called.len();
        let trip = lanes.filter_map(|lane| self.ledger.latency_ns(lane)).min();
        let trips = trip.unwrap_or(0).saturating_mul(TRIAL_TRIPS);
        let mean = self.come() * 1e9 / passed.max(1) as f64;
        self.spares.trial = Some(Trial {
            before: self.planned_rate().max(mean),
            counts_from_ns: now_ns + TRIAL_START_NS.max(trips),
            length_ns: TRIAL_NS.max(trips),
            bytes: None,
        });
        self.spares.explores = true;
        self.call_all();
    }

    /// Bytes that have come: units come whole, and of those under way half has, on average.
    fn come(&self) -> f64 {
        let under_way: u64 = (0..self.spares.called.len())
            .map(|lane| self.ledger.in_transit_bytes(lane).min(self.unit_len))
            .sum();
        self.ledger.delivered_bytes() as f64 + under_way as f64 / 2.0
    }

    /// Bytes per second that the planned lanes carry at present.
    fn planned_rate(&self) -> f64 {
        let lanes = (0..self.spares.called.len())
            .filter(|&lane| self.ledger.is_planned(lane) && self.ledger.in_transit_bytes(lane) > 0);
        lanes
            .filter_map(|lane| self.ledger.bytes_per_second(lane))
            .sum()
    }

    fn end_trial(&mut self, now_ns: u64) {
        let bytes = self.ledger.delivered_bytes();
        let Some(trial) = &mut self.spares.trial else {
            return;
        };
        let counted = now_ns.saturating_sub(trial.counts_from_ns);
        match trial.bytes {
            None if counted > 0 => trial.bytes = Some(bytes),
            Some(from) if counted >= trial.length_ns => {
                let rate = bytes.saturating_sub(from) as f64 * 1e9 / counted as f64;
                if rate < trial.before * TRIAL_GAIN {
                    let left = self.ledger.wanted_bytes().saturating_sub(bytes) as f64;
                    let passed = now_ns.saturating_sub(self.watch.start_ns());
                    let more = left * 1e9 / rate.max(1.0);
                    self.spares.expected_ns = passed.saturating_add(more as u64);
                    self.spares.explores = false;
                }
                self.spares.trial = None;
            }
            _ => {}
        }
    }

    fn is_behind(&self, now_ns: u64) -> bool {
        let passed = now_ns.saturating_sub(self.watch.start_ns());
        let (delivered, wanted) = (self.ledger.delivered_bytes(), self.ledger.wanted_bytes());
        if passed < PATIENCE_NS || delivered >= wanted {
            return false;
        }
        let still = now_ns.saturating_sub(self.watch.last_ns());
        if still > STALL_NS || delivered == 0 {
            return still > STALL_NS;
        }
        // By the mean speed or the present one, whichever is kinder: a slow start is no slow sender.
        let mean = self.come() / passed as f64;
        let speed = mean.max(self.planned_rate() / 1e9);
        let left = (wanted as f64 - self.come()).max(0.0) / speed;
        let due = self.spares.expected_ns as f64 * LATE + PATIENCE_NS as f64;
        let is_late = self.spares.expected_ns > 0 && passed as f64 + left > due;
        left > WORTHWHILE_NS as f64 && is_late
    }

    /// Whether the lane leaves what others own alone: a spare while the plan is kept, and every lane of
    /// a fixed plan.
    pub(super) fn holds_back(&self, lane: usize) -> bool {
        if self.ledger.ready_bytes(lane) > 0 {
            return false;
        }
        let spare = !self.ledger.is_planned(lane) && self.ledger.has_ready();
        let idle = !self.spares.behind && !self.spares.explores;
        self.spares.fixed || (spare && idle)
    }

    fn call_all(&mut self) {
        for lane in 0..self.spares.called.len() {
            self.call(lane);
        }
    }

    /// Opens the lanes that have work of their own.
    pub(super) fn call_needed(&mut self) {
        for lane in 0..self.spares.called.len() {
            if !self.spares.called[lane] && self.ledger.ready_bytes(lane) > 0 {
                self.call(lane);
            }
        }
    }

    fn call(&mut self, lane: usize) {
        if !self.spares.called[lane] && self.ledger.is_alive(lane) {
            self.spares.called[lane] = true;
            self.events
                .push_back(Event::Connect(lane, self.peers[lane].clone()));
        }
    }
}
