//! When to look, how far to step, when to go back.

use crate::path::{Interval, Path};
use crate::policy::{Database, Lesson};
use crate::{Answer, Limits, NodeCounters, Others, Policy, Question, Setting};

/// Streams of a node at the beginning.
const STREAMS_FIRST: u32 = 4;

/// Streams in all where the round trip is long, at once, for each second of it: with few of them slow start's burst costs
/// seconds, while too many cost a percent. In the neighbourhood windows grow at once, and every stream costs a thread.
const TOTAL_FIRST_PER_SECOND: f64 = 800.0;

/// Within these bounds: one in which a loss is not all, and what the longest paths of the lab wanted.
const TOTAL_FIRST: (f64, f64) = (16.0, 64.0);

/// Streams of each node there, at least: for each second of the round trip, within these bounds.
const STREAMS_FAR_PER_SECOND: f64 = 100.0;

/// See [`STREAMS_FAR_PER_SECOND`].
const STREAMS_FAR: (f64, f64) = (4.0, 8.0);

/// Round trip from which on it is long. Below, the first streams stay: hosts and disks are the limit there, which more
/// streams do not move.
const FAR_SECONDS: f64 = 0.005;

/// After a step windows have to find their size: this, and so many round trips, pass before it is measured.
const SETTLE_SECONDS: f64 = 0.3;

/// See [`SETTLE_SECONDS`].
const SETTLE_TRIPS: f64 = 3.0;

/// Shortest interval while the path is not full, and so many round trips.
const MEASURE_SECONDS: f64 = 0.5;

/// See [`MEASURE_SECONDS`].
const MEASURE_TRIPS: f64 = 4.0;

/// Shortest interval once it is full: windows that rise and fall take longer to tell apart.
const MEASURE_SECONDS_FULL: f64 = 2.0;

/// Longest interval and settling together, whatever the round trip.
const MEASURE_SECONDS_MAX: f64 = 5.0;

/// Streams grow by this factor at most, or shrink.
const STEP: f64 = 2.0;

/// And by this while the path is not full and less than this part of the segments is sent again.
const STEP_FREE: f64 = 4.0;

/// See [`STEP_FREE`].
const LOSS_FEW: f64 = 0.02;

/// No more streams where more than this part of the segments is sent again: the queue is too short for those there are.
const LOSS_MANY: f64 = 0.10;

/// And fewer above this, twice in a row: streams that begin make a burst of losses, which passes.
const LOSS_TOO_MANY: f64 = 0.25;

/// A target above by less than this factor is where we are ...
const NEAR_ABOVE: f64 = 1.35;

/// ... and one below by less than this: too many cost little, and whoever closes streams gives up their windows.
const NEAR_BELOW: f64 = 4.0;

/// A step is taken back when it cost more than this part of the rate.
const COST_MAX: f64 = 0.06;

/// A step that was taken back is not tried again for this long, twice as long each time.
const PATIENCE_SECONDS: f64 = 8.0;

/// Parts of transfers that differ by less than this are even.
const UNEVEN: f64 = 0.2;

/// The trunk has changed when the rate falls below this part of what it was, twice in a row without a step.
const FALL: f64 = 0.7;

/// The same for a rise.
const RISE: f64 = 1.3;

/// Streams of each of so many nodes at the beginning, by the round trip; `None` where it is short. Of what they would have
/// alone they open their part only where other transfers share the path: those give up theirs when this one begins.
#[must_use]
pub fn far_streams(nodes: u32, others: u32, rtt_seconds: f64) -> Option<u32> {
    let total = (TOTAL_FIRST_PER_SECOND * rtt_seconds).clamp(TOTAL_FIRST.0, TOTAL_FIRST.1);
    let least = (STREAMS_FAR_PER_SECOND * rtt_seconds).clamp(STREAMS_FAR.0, STREAMS_FAR.1);
    let alone = (total / f64::from(nodes.max(1))).max(least);
    let each = (alone / f64::from(1 + others)).ceil() as u32;
    (rtt_seconds >= FAR_SECONDS).then_some(each)
}

/// A step that is being judged.
#[derive(Clone, Copy, Debug)]
struct Trial {
    from: Setting,
    rate: f64,
    // It has been slower already.
    is_doubtful: bool,
}

/// Chooses, step by step. See the crate's documentation.
#[derive(Debug)]
pub struct Tuner {
    policy: Box<dyn Policy + Send>,
    limits: Limits,
    setting: Setting,
    path: Path,
    // When the present interval may begin to be measured, and counters at its beginning.
    settled_ns: u64,
    began: Option<(u64, Vec<NodeCounters>)>,
    trial: Option<Trial>,
    // Not beyond these totals until then.
    floor: (u32, u64),
    ceiling: (u32, u64),
    patience_seconds: f64,
    // Rate of the setting as it was kept, and how often in a row it was missed.
    kept_rate: Option<f64>,
    missed: u32,
    // Whether the last interval of this setting lost too many.
    was_burst: bool,
    others: Others,
    // What there is has changed by what others do: it is to be told.
    is_news: bool,
    // What this transfer saw and simulated, whoever decides.
    taught: Database,
}

impl Tuner {
    /// Begins with few streams: nothing is known yet.
    #[must_use]
    pub fn new(policy: Box<dyn Policy + Send>, limits: Limits) -> Self {
        Self::from(policy, limits, STREAMS_FIRST)
    }

    /// Begins where every node has opened so many streams.
    #[must_use]
    pub fn from(policy: Box<dyn Policy + Send>, limits: Limits, streams: u32) -> Self {
        let nodes = limits.nodes.max(1);
        Self {
            policy,
            limits,
            setting: Setting {
                nodes,
                streams: streams.min(limits.streams.max(1)),
            },
            path: Path::default(),
            settled_ns: 0,
            began: None,
            trial: None,
            floor: (0, 0),
            ceiling: (u32::MAX, 0),
            patience_seconds: PATIENCE_SECONDS,
            kept_rate: None,
            missed: 0,
            was_burst: false,
            others: Others::default(),
            is_news: false,
            taught: Database::default(),
        }
    }

    /// What is to be open now.
    #[must_use]
    pub fn setting(&self) -> Setting {
        self.setting
    }

    /// Whether the path is long, as far as was seen.
    #[must_use]
    pub fn is_far(&self) -> bool {
        let least = self.path.rtt_seconds_min();
        least.is_finite() && least >= FAR_SECONDS
    }

    /// Whether a round trip was ever as long as that of a long path, by a queue perhaps.
    #[must_use]
    pub fn seemed_far(&self) -> bool {
        self.path.rtt_seconds_max() >= FAR_SECONDS
    }

    /// A simulation that the policy wants.
    pub fn poll_question(&mut self) -> Option<Question> {
        self.policy.poll_question()
    }

    /// Takes the outcome of one.
    pub fn handle_answer(&mut self, answer: &Answer) {
        self.taught.add(Lesson::simulated(answer));
        self.policy.handle_answer(answer);
    }

    /// What was seen and simulated so far, one line each, for the database of later transfers. Without what was recalled:
    /// that is kept already, and reported once more it would outweigh what others measured since.
    #[must_use]
    pub fn lessons(&self) -> Vec<String> {
        self.taught.kept()
    }

    /// Nodes join, end or leave. The streams of each stay what they are until the next look.
    pub fn set_nodes(&mut self, nodes: u32) {
        if nodes != self.limits.nodes && nodes > 0 {
            let total = f64::from(self.setting.total());
            self.limits.nodes = nodes;
            self.setting = self.limits.split(total);
            (self.began, self.trial, self.kept_rate) = (None, None, None);
        }
    }

    /// Other transfers begin or end on the path: all streams of the path are shared by all, in equal parts.
    pub fn set_others(&mut self, others: Others) {
        let (before, now) = (1 + self.others.transfers, 1 + others.transfers);
        self.others = others;
        if before == now {
            return;
        }
        // Nodes that share the path begin with their part, so before the first look there is nothing to change.
        if self.settled_ns > 0 && self.is_far() {
            let total = f64::from(self.setting.total() * before) / f64::from(now);
            self.setting = self.limits.split(total);
            self.is_news = true;
        }
        self.path.forget();
        (self.began, self.trial, self.kept_rate) = (None, None, None);
        (self.floor, self.ceiling) = ((0, 0), (u32::MAX, 0));
    }

    /// Looks at the counters of all nodes, in the same order each time. Call it two to ten times a second.
    /// Returns the setting when it changes.
    pub fn observe(&mut self, nodes: &[NodeCounters], now_ns: u64) -> Option<Setting> {
        self.path.glance(nodes);
        if self.settled_ns == 0 {
            let rtt = Self::rtt_seconds(nodes);
            if rtt <= 0.0 {
                return None;
            }
            // Connected: slow start is on.
            self.settle(nodes, now_ns);
            // By the least of all: a queue makes round trips long, too, but not those of the first packets.
            let (nodes, others) = (self.limits.nodes, self.others.transfers);
            let each = far_streams(nodes, others, self.path.rtt_seconds_min())?;
            let first = self.limits.split(f64::from(each * self.limits.nodes));
            if first.total() <= self.setting.total() {
                return None;
            }
            self.setting = first;
            return Some(first);
        }
        if std::mem::take(&mut self.is_news) {
            self.settle(nodes, now_ns);
            return Some(self.setting);
        }
        if now_ns < self.settled_ns {
            return None;
        }
        let Some((since_ns, before)) = &self.began else {
            self.began = Some((now_ns, nodes.to_vec()));
            return None;
        };
        let seconds = now_ns.saturating_sub(*since_ns) as f64 / 1e9;
        if seconds < self.measure_seconds(nodes) {
            return None;
        }
        if !self.is_far() {
            return None;
        }
        let interval = Interval::between(before, nodes, seconds);
        self.began = Some((now_ns, nodes.to_vec()));
        let is_full = self.path.take(interval, &self.limits);
        let next = self.decide(interval, is_full, now_ns)?;
        if next == self.setting {
            return None;
        }
        self.setting = next;
        self.settle(nodes, now_ns);
        Some(next)
    }

    fn rtt_seconds(nodes: &[NodeCounters]) -> f64 {
        // What a node without streams told last is not of now.
        let open = nodes.iter().filter(|node| node.streams > 0);
        open.map(|node| node.rtt_seconds).fold(0.0, f64::max)
    }

    fn settle(&mut self, nodes: &[NodeCounters], now_ns: u64) {
        let trips = SETTLE_TRIPS * Self::rtt_seconds(nodes);
        let seconds = SETTLE_SECONDS.max(trips).min(MEASURE_SECONDS_MAX);
        self.settled_ns = now_ns + (seconds * 1e9) as u64;
        self.began = None;
        self.was_burst = false;
    }

    fn measure_seconds(&self, nodes: &[NodeCounters]) -> f64 {
        let least = match self.path.is_full() {
            true => MEASURE_SECONDS_FULL,
            false => MEASURE_SECONDS,
        };
        let trips = MEASURE_TRIPS * Self::rtt_seconds(nodes);
        least.max(trips).min(MEASURE_SECONDS_MAX)
    }

    fn decide(&mut self, seen: Interval, is_full: bool, now_ns: u64) -> Option<Setting> {
        if let Some(trial) = self.trial.take() {
            let has_grown = self.setting.total() > trial.from.total();
            if seen.rate < trial.rate * (1.0 - COST_MAX) {
                // New streams' slow start makes a burst of losses that passes.
                if has_grown && !trial.is_doubtful {
                    self.trial = Some(Trial {
                        is_doubtful: true,
                        ..trial
                    });
                    return None;
                }
                return Some(self.take_back(trial, has_grown, now_ns));
            }
            self.kept_rate = Some(seen.rate);
            self.missed = 0;
        } else if self.has_changed(seen.rate) {
            self.path.forget();
            (self.floor, self.ceiling) = ((0, 0), (u32::MAX, 0));
            self.patience_seconds = PATIENCE_SECONDS;
            self.kept_rate = Some(seen.rate);
            return None;
        }
        let is_burst = seen.loss > LOSS_TOO_MANY;
        let was_burst = std::mem::replace(&mut self.was_burst, is_burst);
        if self.others.transfers > 0 {
            return self.even_out(is_burst && was_burst);
        }
        let situation = self.path.situation(&self.limits)?;
        if is_full {
            let share = (seen.rate / situation.rate).min(1.0);
            let total = self.setting.total();
            self.taught.learn(&situation, total, share);
            self.policy.learn(&situation, total, share);
        }
        let present = f64::from(self.setting.total());
        let wanted = self.policy.best(&situation);
        let target = match (is_full, wanted) {
            // What each stream brings says how many fill the rest of a known bound; of an unknown one, more.
            (false, wanted) => {
                let fill = match situation.rate > 1.2 * seen.rate && seen.rate > 0.0 {
                    true => present * situation.rate / seen.rate,
                    false => present * STEP_FREE,
                };
                fill.max(wanted.unwrap_or(0.0))
            }
            (true, Some(wanted)) => wanted.max(self.path.too_few() * NEAR_ABOVE),
            (true, None) => present,
        };
        let lost = seen.loss;
        let most = match !is_full && lost < LOSS_FEW {
            true => STEP_FREE,
            false => STEP,
        };
        let target = match lost {
            _ if is_burst && was_burst => present / STEP,
            _ if lost > LOSS_MANY => target.min(present),
            // Too many that lose nothing do no harm.
            _ if target < present && lost < LOSS_FEW => present,
            _ if target > present / NEAR_BELOW && target < present * NEAR_ABOVE => present,
            _ => target,
        };
        let target = self.within(target.clamp(present / STEP, present * most), now_ns);
        if (target / present - 1.0).abs() < 0.1 {
            return None;
        }
        let next = self.limits.split(target);
        if next != self.setting {
            self.trial = Some(Trial {
                from: self.setting,
                rate: seen.rate,
                is_doubtful: false,
            });
        }
        Some(next)
    }

    // What this one gains by more streams others lose: each has its part of all that there are, whatever a policy would
    // want alone, and nobody goes back because others carry more for it.
    fn even_out(&self, is_burst: bool) -> Option<Setting> {
        let present = f64::from(self.setting.total());
        let part = match self.others.streams {
            0 => present,
            others => (present + f64::from(others)) / f64::from(1 + self.others.transfers),
        };
        let part = match is_burst {
            true => part.min(present / STEP),
            false => part.clamp(present / STEP, present * STEP),
        };
        ((part / present - 1.0).abs() > UNEVEN).then(|| self.limits.split(part))
    }

    // Keeps a target out of what was tried in vain.
    fn within(&self, target: f64, now_ns: u64) -> f64 {
        let (floor, ceiling) = (self.floor, self.ceiling);
        let target = match now_ns < floor.1 {
            true => target.max(f64::from(floor.0)),
            false => target,
        };
        match now_ns < ceiling.1 {
            true => target.min(f64::from(ceiling.0)),
            false => target,
        }
    }

    fn take_back(&mut self, trial: Trial, has_grown: bool, now_ns: u64) -> Setting {
        let until = now_ns + (self.patience_seconds * 1e9) as u64;
        self.patience_seconds *= 2.0;
        match has_grown {
            true => self.ceiling = (trial.from.total(), until),
            false => self.floor = (trial.from.total(), until),
        }
        self.kept_rate = None;
        trial.from
    }

    // Whether the trunk carries another rate than it did with the same setting.
    fn has_changed(&mut self, rate: f64) -> bool {
        let Some(kept) = self.kept_rate else {
            self.kept_rate = Some(rate);
            return false;
        };
        if (kept * FALL..kept * RISE).contains(&rate) {
            self.missed = 0;
            self.kept_rate = Some(0.7 * kept + 0.3 * rate);
            return false;
        }
        self.missed += 1;
        if self.missed < 2 {
            return false;
        }
        self.missed = 0;
        true
    }
}
