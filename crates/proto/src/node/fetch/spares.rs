//! When lanes to spare holders open, and when they take work.
//!
//! A plan names, beside the sender of each run, others that hold it too. Their lanes stay closed while
//! the planned ones do what the plan expects: each would cost a handshake, threads and buffers on
//! both sides, and take sending speed that the plan gave to others. They open when work falls to
//! them (a sender is lost or refuses), and when the node falls behind its plan; then they take work
//! until it has caught up. Where no speed was known there is no plan to fall behind: then they open
//! early and take what they can, which shows the master who is fast, until it settles a plan.

use std::collections::VecDeque;

use super::{Event, Receiving};

/// The planned lanes have this long to get going before anybody judges them.
const PATIENCE_NS: u64 = 1_000_000_000;

/// Where nobody knows speeds, spare holders are called after this time: what is over by then needs none.
const EXPLORE_NS: u64 = 250_000_000;

/// And this long when a plan makes other lanes carry the work.
const SETTLE_NS: u64 = 3_000_000_000;

/// Until then speeds are rough.
const START_NS: u64 = 3_000_000_000;

/// With less time left than this, a new lane would come too late to help.
const WORTHWHILE_NS: u64 = 300_000_000;

/// A lane that should bring something and does not for this long is not trusted any more.
const STALL_NS: u64 = 1_000_000_000;

/// Behind the plan means that what is left takes longer than is planned for it by this factor.
const LATE: f64 = 2.0;

/// And by this much.
const LATE_NS: u64 = 500_000_000;

/// The end is near when the plan has this much time left (1 s), or this part of its time.
const END_NS_MAX: u64 = 1_000_000_000;

/// A node with this much more left than its pace allows lets lanes that are done take what others own.
const PACE_SLACK: f64 = 1.03;

/// And this much: lanes that become others lose some time.
const PACE_SLACK_NS: f64 = 0.5e9;

/// See [`END_NS_MAX`].
const END_PART: u64 = 10;

/// Time between two looks.
const LOOK_NS: u64 = 100_000_000;

/// The end is near when what is left comes in this time.
const NEAR_END_SECONDS: f64 = 3.0;

/// What came in this many looks is the present speed (2 s).
const LOOKS: usize = 20;

/// What a receiver knows about its plan and its spare lanes.
#[derive(Debug)]
pub(super) struct Spares {
    // When the driver was told to connect, by lane.
    called: Vec<Option<u64>>,
    // When the plan has this node done, from its start; 0 = nobody knows.
    expected_ns: u64,
    // Nothing but the loss of a sender moves work.
    fixed: bool,
    behind: bool,
    // Nobody knows any speed: all holders take what they can.
    exploring: bool,
    // Nobody judges before: lanes have just become others.
    patient_until_ns: u64,
    // Time and bytes come at the latest looks.
    looks: VecDeque<(u64, f64)>,
    // Bytes per nanosecond that the plan has for this node.
    pace: f64,
    // With less than this left the end is near.
    near_end_bytes: u64,
    looked_ns: u64,
}

impl Spares {
    pub fn new(now_ns: u64) -> Self {
        Self {
            called: Vec::new(),
            expected_ns: 0,
            fixed: false,
            behind: false,
            exploring: false,
            patient_until_ns: 0,
            looks: VecDeque::with_capacity(LOOKS + 1),
            pace: 0.0,
            near_end_bytes: 0,
            looked_ns: now_ns,
        }
    }

    /// One more lane, not called yet.
    pub fn add(&mut self) {
        self.called.push(None);
    }

    /// The lane is connected already.
    pub fn is_called(&mut self, lane: usize, now_ns: u64) {
        self.called[lane] = Some(now_ns);
    }

    /// Whether the driver was asked to connect the lane.
    pub fn has_called(&self, lane: usize) -> bool {
        self.called.get(lane).is_some_and(Option::is_some)
    }

    /// Only the loss of a sender moves work.
    pub fn fix(&mut self) {
        self.fixed = true;
    }

    /// All holders take what they can, or no longer.
    pub fn explore(&mut self, exploring: bool) {
        self.exploring = exploring && !self.fixed;
    }

    /// Whether all holders take what they can.
    pub fn is_exploring(&self) -> bool {
        self.exploring
    }

    /// Lanes become others now: what is under way on the old ones comes first.
    pub fn settle(&mut self, now_ns: u64) {
        self.exploring = false;
        self.patient_until_ns = now_ns.saturating_add(SETTLE_NS);
    }

    /// The node should be done this long after the start; 0 when unknown.
    pub fn expect_at(&mut self, expected_ns: u64) {
        self.expected_ns = expected_ns;
    }
}

impl Receiving {
    /// Time passes. Call at least once a second; [`Receiving::take`] does, too.
    pub fn handle_timer(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        if self.finished || now_ns.saturating_sub(self.spares.looked_ns) < LOOK_NS {
            return;
        }
        self.spares.looked_ns = now_ns;
        self.end_patience(now_ns);
        self.spares.behind = !self.spares.fixed && self.is_behind(now_ns);
        let passed = now_ns.saturating_sub(self.watch.start_ns());
        if self.spares.behind || (self.spares.exploring && passed > EXPLORE_NS) {
            self.call_all();
        }
    }

    /// Bytes that have come: units come whole, and of those under way half has, on average.
    fn come(&self) -> f64 {
        let under_way: u64 = (0..self.spares.called.len())
            .map(|lane| self.ledger.in_transit_bytes(lane).min(self.unit_len))
            .sum();
        self.ledger.delivered_bytes() as f64 + under_way as f64 / 2.0
    }

    /// What a unit may take on a lane that has so many bytes left, if the plan is to be kept.
    fn unit_ns(&self, left: u64, now_ns: u64) -> u64 {
        let passed = now_ns.saturating_sub(self.watch.start_ns());
        let time = self.spares.expected_ns.saturating_sub(passed);
        let unit = u128::from(self.unit_len.min(left)) * u128::from(time) / u128::from(left.max(1));
        u64::try_from(unit).unwrap_or(u64::MAX)
    }

    /// A lane that should bring something and has not for long. Others take its work until it does.
    fn has_mute_lane(&self, now_ns: u64) -> bool {
        // A limit makes lanes wait that are well.
        let stall = if self.pace.is_limited() {
            10 * STALL_NS
        } else {
            STALL_NS
        };
        (0..self.spares.called.len()).any(|lane| {
            let Some(called) = self.spares.called[lane] else {
                return false;
            };
            let since = called.max(self.ledger.moved_at(lane).unwrap_or_default().0);
            let units = (self.ledger.latency(lane).unwrap_or_default() * 4).0;
            let left = self.ledger.ready_bytes(lane) + self.ledger.in_transit_bytes(lane);
            let planned = self.unit_ns(left, now_ns).saturating_mul(3);
            left > 0 && now_ns.saturating_sub(since) > stall.max(units).max(planned)
        })
    }

    /// Bytes per second that have come of late; `None` until enough looks were taken.
    fn present_rate(&mut self, now_ns: u64) -> Option<f64> {
        let come = self.come();
        let looks = &mut self.spares.looks;
        looks.push_back((now_ns, come));
        if looks.len() <= LOOKS {
            return None;
        }
        let (then, before) = looks.pop_front()?;
        let passed = now_ns.saturating_sub(then).max(1) as f64 / 1e9;
        let rate = (come - before).max(0.0) / passed;
        self.spares.near_end_bytes = (rate * NEAR_END_SECONDS) as u64;
        Some(rate)
    }

    fn is_behind(&mut self, now_ns: u64) -> bool {
        let present = self.present_rate(now_ns);
        let passed = now_ns.saturating_sub(self.watch.start_ns());
        let (delivered, wanted) = (self.ledger.delivered_bytes(), self.ledger.wanted_bytes());
        if passed < PATIENCE_NS || now_ns < self.spares.patient_until_ns || delivered >= wanted {
            return false;
        }
        if self.has_mute_lane(now_ns) {
            return true;
        }
        if delivered == 0 {
            return false;
        }
        let mean = self.come() / passed as f64;
        // At first by the mean speed or the present one, whichever is kinder: a slow start is no slow sender.
        let speed = match present {
            Some(present) if passed < START_NS => mean.max(present / 1e9),
            Some(present) => (present / 1e9).max(mean / 100.0),
            None => mean,
        };
        let left = (wanted as f64 - self.come()).max(0.0) / speed;
        let due = self.spares.expected_ns.saturating_sub(passed) as f64 * LATE + LATE_NS as f64;
        left > WORTHWHILE_NS as f64 && self.spares.expected_ns > 0 && left > due
    }

    /// Whether what is left comes within a few seconds.
    pub(super) fn is_near_end(&self) -> bool {
        let left = self
            .ledger
            .wanted_bytes()
            .saturating_sub(self.ledger.delivered_bytes());
        left < self.spares.near_end_bytes
    }

    /// Whether the lane leaves what others own alone: every lane of a fixed plan; while a plan is kept, a spare,
    /// and a planned lane that is done early until the end is near (its sender is meant for others now).
    pub(super) fn holds_back(&self, lane: usize, now_ns: u64) -> bool {
        if self.ledger.ready_bytes(lane) > 0 {
            return false;
        }
        if self.spares.fixed {
            return true;
        }
        if self.spares.behind || self.spares.exploring || !self.ledger.has_ready() {
            return false;
        }
        let left = self.plan_left_ns(now_ns);
        !self.ledger.is_planned(lane)
            || (left > END_NS_MAX.min(self.spares.expected_ns / END_PART) && self.keeps_pace(left))
    }

    /// Time that the plan has left, nanoseconds.
    fn plan_left_ns(&self, now_ns: u64) -> u64 {
        let passed = now_ns.saturating_sub(self.watch.start_ns());
        self.spares.expected_ns.saturating_sub(passed)
    }

    /// A plan begins, or is another one: the node should go on as fast as it says.
    pub(super) fn set_pace(&mut self, now_ns: u64) {
        let left = self
            .ledger
            .wanted_bytes()
            .saturating_sub(self.ledger.delivered_bytes());
        let time = self.plan_left_ns(now_ns).max(1);
        self.spares.pace = left as f64 / time as f64;
    }

    /// Whether the node is as far with its work as it should be with so much time left.
    fn keeps_pace(&self, left_ns: u64) -> bool {
        let left = self.ledger.wanted_bytes() as f64 - self.come();
        left < self.spares.pace * (left_ns as f64 * PACE_SLACK + PACE_SLACK_NS)
    }

    fn call_all(&mut self) {
        for lane in 0..self.spares.called.len() {
            if self.ledger.stands_by(lane) {
                self.call(lane);
            }
        }
    }

    /// Opens the lanes that have work of their own.
    pub(super) fn call_needed(&mut self) {
        for lane in 0..self.spares.called.len() {
            if self.spares.called[lane].is_none() && self.ledger.ready_bytes(lane) > 0 {
                self.call(lane);
            }
        }
    }

    fn call(&mut self, lane: usize) {
        if self.spares.called[lane].is_none() && self.ledger.is_alive(lane) {
            self.spares.called[lane] = Some(self.now_ns);
            self.events
                .push_back(Event::Connect(lane, self.peers[lane].clone()));
        }
    }
}
