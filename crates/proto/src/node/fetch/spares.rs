//! When lanes to spare holders open, and when they take work.
//!
//! A plan names, beside the sender of each run, others that hold it too. Their lanes stay closed while
//! the planned ones do what the plan expects: each would cost a handshake, threads and buffers on
//! both sides, and take sending speed that the plan gave to others. They open when work falls to
//! them (a sender is lost or refuses), and when the node falls behind its plan; then they take work
//! until it has caught up. Where no speed was known there is no plan to fall behind: then they open
//! early and take what they can, which shows the master which nodes are fast, until it settles a plan.

use std::collections::VecDeque;

use ropewalk_model::{Instant, Nanos, Table};

use super::{Event, LaneId, Receiving};

/// The planned lanes have this long to get going before anybody judges them.
const PATIENCE_TIME: Nanos = Nanos::from_secs(1);

/// Where nobody knows speeds, spare holders are called after this time: what is over by then needs none.
const EXPLORE_TIME: Nanos = Nanos::from_millis(250);

/// And this long when a plan makes other lanes carry the work.
const SETTLE_TIME: Nanos = Nanos::from_secs(3);

/// Until then speeds are rough.
const START_TIME: Nanos = Nanos::from_secs(3);

/// With less time left than this, a new lane would come too late to help.
const WORTHWHILE_TIME: Nanos = Nanos::from_millis(300);

/// A lane that should bring something and does not for this long is not trusted any more.
const STALL_TIME: Nanos = Nanos::from_secs(1);

/// Behind the plan means that what is left takes longer than is planned for it by this factor.
const LATE: f64 = 2.0;

/// And by this much.
const LATE_TIME: Nanos = Nanos::from_millis(500);

/// The end is near when the plan has this much time left (1 s), or this part of its time.
const END_TIME_MAX: Nanos = Nanos::from_secs(1);

/// A node with this much more left than its pace allows lets lanes that are done take what others own.
const PACE_SLACK: f64 = 1.03;

/// And this much: lanes that become others lose some time.
const PACE_SLACK_TIME: Nanos = Nanos::from_millis(500);

/// See [`END_TIME_MAX`].
const END_PART: u64 = 10;

/// Time between two looks.
const LOOK_TIME: Nanos = Nanos::from_millis(100);

/// The end is near when what is left comes in this time.
const NEAR_END_SECONDS: f64 = 3.0;

/// What came in this many looks is the present speed (2 s).
const LOOKS: usize = 20;

/// What a receiver knows about its plan and its spare lanes.
#[derive(Debug)]
pub(super) struct Spares {
    // When the driver was told to connect, by lane.
    called: Table<LaneId, Option<Instant>>,
    // Time from its start after which the plan has this node done; `None` where no speed is known.
    expected: Option<Nanos>,
    // Nothing but the loss of a sender moves work.
    fixed: bool,
    behind: bool,
    // Nobody knows any speed: all holders take what they can.
    exploring: bool,
    // Nobody judges before: lanes have just become others.
    patient_until: Instant,
    // Time and bytes come at the latest looks.
    looks: VecDeque<(Instant, f64)>,
    // Bytes per nanosecond that the plan has for this node.
    pace: f64,
    // With less than this left the end is near.
    near_end_bytes: u64,
    looked_at: Instant,
}

impl Spares {
    pub fn new(now: Instant) -> Self {
        Self {
            called: Table::new(),
            expected: None,
            fixed: false,
            behind: false,
            exploring: false,
            patient_until: Instant::ZERO,
            looks: VecDeque::with_capacity(LOOKS + 1),
            pace: 0.0,
            near_end_bytes: 0,
            looked_at: now,
        }
    }

    /// One more lane, not called yet.
    pub fn add(&mut self) {
        self.called.push(None);
    }

    /// The lane is connected already.
    pub fn is_called(&mut self, lane: LaneId, now: Instant) {
        self.called[lane] = Some(now);
    }

    /// Whether the driver was asked to connect the lane.
    pub fn has_called(&self, lane: LaneId) -> bool {
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

    /// Lanes become others now: what is under way on the old ones is first.
    pub fn settle(&mut self, now: Instant) {
        self.exploring = false;
        self.patient_until = now + SETTLE_TIME;
    }

    /// The node should be done this long after the start; `None` when unknown.
    pub fn expect_after(&mut self, expected: Option<Nanos>) {
        self.expected = expected;
    }

    /// Time that the plan has left after so much; none where no speed is known.
    fn left_after(&self, passed: Nanos) -> Nanos {
        self.expected.map_or(Nanos::ZERO, |time| time - passed)
    }
}

impl Receiving {
    /// Time passes. Call at least once a second; [`Receiving::take`] does, too.
    pub fn handle_timer(&mut self, now: Instant) {
        self.now = now;
        if self.finished || now.since(self.spares.looked_at) < LOOK_TIME {
            return;
        }
        self.spares.looked_at = now;
        self.end_patience(now);
        self.ask_elsewhere(now);
        self.spares.behind = !self.spares.fixed && self.is_behind(now);
        let passed = now.since(self.watch.start_at());
        if self.spares.behind || (self.spares.exploring && passed > EXPLORE_TIME) {
            self.call_all();
        }
    }

    /// Bytes that have come: units come whole, and of those under way half has, on average.
    fn come(&self) -> f64 {
        let lanes = self.spares.called.numbers();
        let under_way: u64 = lanes
            .map(|lane| self.ledger.in_transit_bytes(lane).min(self.unit_len))
            .sum();
        self.ledger.delivered_bytes() as f64 + under_way as f64 / 2.0
    }

    /// What a unit may take on a lane that has so many bytes left, if the plan is to be kept.
    fn unit_time(&self, left: u64, now: Instant) -> Nanos {
        let time = u128::from(self.plan_left(now).0);
        let unit = u128::from(self.unit_len.min(left)) * time / u128::from(left.max(1));
        Nanos(u64::try_from(unit).unwrap_or(u64::MAX))
    }

    /// A lane that should bring something and has not for long. Others take its work until it does.
    fn has_mute_lane(&self, now: Instant) -> bool {
        // A limit makes lanes wait that are well.
        let stall = match self.pace.is_limited() {
            true => STALL_TIME * 10,
            false => STALL_TIME,
        };
        self.spares.called.iter().any(|(lane, called)| {
            let Some(called) = *called else {
                return false;
            };
            let since = called.max(self.ledger.moved_at(lane).unwrap_or_default());
            let units = self.ledger.latency(lane).unwrap_or_default() * 4;
            let left = self.ledger.ready_bytes(lane) + self.ledger.in_transit_bytes(lane);
            let planned = self.unit_time(left, now) * 3;
            left > 0 && now.since(since) > stall.max(units).max(planned)
        })
    }

    /// Bytes per second that have come of late; `None` until enough looks were taken.
    fn present_rate(&mut self, now: Instant) -> Option<f64> {
        let come = self.come();
        let looks = &mut self.spares.looks;
        looks.push_back((now, come));
        if looks.len() <= LOOKS {
            return None;
        }
        let (then, before) = looks.pop_front()?;
        let passed = now.since(then).max(Nanos(1)).as_seconds();
        let rate = (come - before).max(0.0) / passed;
        self.spares.near_end_bytes = (rate * NEAR_END_SECONDS) as u64;
        Some(rate)
    }

    fn is_behind(&mut self, now: Instant) -> bool {
        let present = self.present_rate(now);
        let passed = now.since(self.watch.start_at());
        let (delivered, wanted) = (self.ledger.delivered_bytes(), self.ledger.wanted_bytes());
        if passed < PATIENCE_TIME || now < self.spares.patient_until || delivered >= wanted {
            return false;
        }
        if self.has_mute_lane(now) {
            return true;
        }
        if delivered == 0 {
            return false;
        }
        // Bytes per nanosecond.
        let mean = self.come() / passed.0 as f64;
        // At first by the mean speed or the present one, whichever is kinder: a slow start is no slow sender.
        let speed = match present {
            Some(present) if passed < START_TIME => mean.max(present / 1e9),
            Some(present) => (present / 1e9).max(mean / 100.0),
            None => mean,
        };
        let left = (wanted as f64 - self.come()).max(0.0) / speed;
        let due = self.spares.left_after(passed).0 as f64 * LATE + LATE_TIME.0 as f64;
        left > WORTHWHILE_TIME.0 as f64 && self.spares.expected.is_some() && left > due
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
    pub(super) fn holds_back(&self, lane: LaneId, now: Instant) -> bool {
        if self.ledger.ready_bytes(lane) > 0 {
            return false;
        }
        if self.spares.fixed {
            return true;
        }
        if self.spares.behind || self.spares.exploring || !self.ledger.has_ready() {
            return false;
        }
        let left = self.plan_left(now);
        let end = self.spares.expected.unwrap_or_default() / END_PART;
        let is_beside = self.ledger.is_relay(lane) || self.ledger.is_all_relayed();
        let is_spare = !self.ledger.is_planned(lane) && !is_beside;
        is_spare || (left > END_TIME_MAX.min(end) && self.keeps_pace(left))
    }

    /// Time that the plan has left; none where no speed is known.
    fn plan_left(&self, now: Instant) -> Nanos {
        self.spares.left_after(now.since(self.watch.start_at()))
    }

    /// A plan begins, or is another one: the node should go on as fast as it says.
    pub(super) fn set_pace(&mut self, now: Instant) {
        let left = self
            .ledger
            .wanted_bytes()
            .saturating_sub(self.ledger.delivered_bytes());
        let time = self.plan_left(now).max(Nanos(1));
        self.spares.pace = left as f64 / time.0 as f64;
    }

    /// Whether the node is as far with its work as it should be with so much time left.
    fn keeps_pace(&self, time_left: Nanos) -> bool {
        let left = self.ledger.wanted_bytes() as f64 - self.come();
        left < self.spares.pace * (time_left.0 as f64 * PACE_SLACK + PACE_SLACK_TIME.0 as f64)
    }

    fn call_all(&mut self) {
        for lane in self.spares.called.numbers() {
            if self.ledger.stands_by(lane) {
                self.call(lane);
            }
        }
    }

    /// Opens the lanes that have work of their own, and those to fellow receivers, which may get what others were planned to send.
    pub(super) fn call_needed(&mut self) {
        let is_relayed = self.ledger.is_all_relayed();
        for lane in self.spares.called.numbers() {
            let is_needed = self.ledger.ready_bytes(lane) > 0
                || (self.listens(lane) && !self.finished)
                || (is_relayed && self.ledger.stands_by(lane));
            if self.spares.called[lane].is_none() && is_needed {
                self.call(lane);
            }
        }
    }

    fn call(&mut self, lane: LaneId) {
        if self.spares.called[lane].is_none() && self.ledger.is_alive(lane) {
            self.spares.called[lane] = Some(self.now);
            self.events
                .push_back(Event::Connect(lane, self.peers[lane].clone()));
        }
    }
}
