//! How fast nodes turned out to be, from what receivers report while bytes move.
//!
//! A receiver's status says what it had from each sender, and how long each lane was at work. That gives rates
//! of pairs. What a node *could* carry is not seen so directly: a lane is as fast as the slower of its ends. The
//! estimate of a node starts at what was declared (or nothing), rises to whatever the node is seen to carry,
//! and falls towards it only while lanes of the node want more and might be held up by it.

use std::collections::BTreeMap;

use super::Coordinator;
use crate::control::Status;

/// Bounds of the smoothing's time constant, which is the time observed so far: at first every status
/// counts alike, since bytes come in units and single ones say little; later old ones fade.
const SMOOTHING_SECONDS: (f64, f64) = (1.0, 10.0);

/// Time constant of the short memory that the long one is compared with.
const RECENT_SECONDS: f64 = 1.0;

/// The speed has changed, and the long memory is dropped, when the short one differs by this part ...
const CHANGE: f64 = 0.4;

/// ... for so many statuses in a row.
const CHANGE_STATUSES: u32 = 3;

/// A pair that carries less than this part of what its receiver gets does not matter to it.
const PAIR_PART: f64 = 0.1;

/// Relative error of an observed speed: this for ever, and [`ERROR_SECONDS`] over the time observed.
const ERROR_MIN: f64 = 0.03;

/// See [`ERROR_MIN`]: after one second, a third.
const ERROR_SECONDS: f64 = 0.3;

/// Statuses closer together than this are taken as one.
const SAMPLE_NS_MIN: u64 = 100_000_000;

/// A lane at work for more than this part of the time wants more than it gets.
const WANTING: f64 = 0.7;

/// A lane slower than this part of another lane of the same node is held up at its other end.
const CLEARLY_SLOWER: f64 = 0.5;

/// A node has this long to show the speed that is hoped for.
const HOPE_NS: u64 = 1_500_000_000;

/// Time constant of a rising estimate.
const RISE_SECONDS: f64 = 1.0;

/// A node that carries this many times what another does.
const CLEARLY_MORE: f64 = 1.3;

/// A node that carries this part of what it can is at its limit.
const FULL: f64 = 0.9;

/// Time constant of a falling estimate when the node is what holds lanes up.
const FALL_SECONDS: f64 = 0.7;

/// The same when it might be the other end.
const FALL_SECONDS_PERHAPS: f64 = 15.0;

/// Where nobody told speeds all holders take part by then (see the participant's spares).
const UNTIL_ALL_TAKE_NS: u64 = 500_000_000;

/// A node that brought nothing for so long can be expected to bring nothing.
const MUTE_NS: u64 = 2_000_000_000;

/// What a receiver has from one sender.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    // When the receiver began to be observed, and at the last status.
    first: u64,
    bytes: u64,
    busy_ns: u64,
    // Bytes per second, long and short memory.
    rate: f64,
    recent: f64,
    // Part of the time in which something was on its way.
    at_work: f64,
    // Statuses in a row at which the memories differed.
    changed: u32,
}

impl Pair {
    /// Whether the speed has become another one. The long memory is dropped then.
    fn is_changed(&mut self) -> bool {
        let most = self.rate.max(self.recent);
        let differs = (self.recent - self.rate).abs() > CHANGE * most;
        self.changed = if differs { self.changed + 1 } else { 0 };
        if self.changed < CHANGE_STATUSES {
            return false;
        }
        (self.rate, self.changed) = (self.recent, 0);
        true
    }
}

/// What a receiver has shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    // When its lanes were last made others, and the first status after that.
    anew_ns: u64,
    began_ns: Option<u64>,
    // Time of the status that the next one is compared with; `None` while it had nothing to do.
    since_ns: Option<u64>,
    come: u64,
    // Time observed.
    seconds: f64,
    // Bytes per second while it had work, long and short memory.
    rate: Option<f64>,
    recent: f64,
    changed: u32,
    pairs: BTreeMap<u32, Pair>,
}

/// Bytes that came over all lanes.
fn come(status: &Status) -> u64 {
    let pairs = status.pairs.iter().map(|pair| pair.come);
    pairs.fold(0, u64::saturating_add)
}

impl Observed {
    /// A status while the node has work.
    pub fn working(&mut self, status: &Status, now_ns: u64) {
        let Some(since) = self.since_ns else {
            // Connecting is over when the first byte is there.
            if come(status) > self.come || self.rate.is_some() {
                self.start(status, now_ns);
            }
            return;
        };
        let passed = now_ns.saturating_sub(since);
        if passed < SAMPLE_NS_MIN {
            return;
        }
        let seconds = passed as f64 / 1e9;
        self.seconds += seconds;
        let constant = self.seconds.clamp(SMOOTHING_SECONDS.0, SMOOTHING_SECONDS.1);
        let keep = (-seconds / constant).exp();
        let keep_recent = (-seconds / RECENT_SECONDS).exp();
        let first = self.rate.is_none();
        let smooth = |old: f64, rate: f64, keep: f64| match first {
            true => rate,
            false => old * keep + rate * (1.0 - keep),
        };
        let come = come(status);
        let now = come.saturating_sub(self.come) as f64 / seconds;
        let rate = smooth(self.rate.unwrap_or(now), now, keep);
        self.rate = Some(rate);
        self.recent = smooth(self.recent, now, keep_recent);
        for pair in &status.pairs {
            let known = self.pairs.entry(pair.sender).or_default();
            let now = pair.come.saturating_sub(known.bytes) as f64 / seconds;
            let busy = pair.busy.saturating_sub(known.busy_ns) as f64 / passed as f64;
            *known = Pair {
                first: known.first,
                bytes: pair.come,
                busy_ns: pair.busy,
                rate: smooth(known.rate, now, keep),
                recent: smooth(known.recent, now, keep_recent),
                at_work: busy.min(1.0),
                changed: known.changed,
            };
            // A pair that matters to the whole takes the whole with it.
            if known.is_changed() && known.rate.max(known.recent) > rate * PAIR_PART {
                self.rate = Some(self.recent);
            }
        }
        let differs = (self.recent - rate).abs() > CHANGE * rate;
        self.changed = if differs { self.changed + 1 } else { 0 };
        if self.changed >= CHANGE_STATUSES {
            self.forget_old();
        }
        self.since_ns = Some(now_ns);
        self.come = come;
    }

    /// The speed is another one now.
    fn forget_old(&mut self) {
        self.changed = 0;
        self.seconds = RECENT_SECONDS;
        self.rate = Some(self.recent);
        for pair in self.pairs.values_mut() {
            pair.rate = pair.recent;
        }
    }

    fn start(&mut self, status: &Status, now_ns: u64) {
        self.since_ns = Some(now_ns);
        self.come = come(status);
        let begins = self.began_ns.is_none();
        self.began_ns.get_or_insert(now_ns);
        for pair in &status.pairs {
            let known = self.pairs.entry(pair.sender).or_default();
            (known.bytes, known.busy_ns) = (pair.come, pair.busy);
            if begins {
                known.first = pair.come;
            }
        }
    }

    /// It works over other lanes from now on: its speed is to be seen again.
    pub fn start_anew(&mut self, now_ns: u64) {
        self.anew_ns = now_ns;
        self.began_ns = None;
        self.seconds = 0.0;
        self.rate = None;
        self.pairs.clear();
        self.since_ns = None;
        self.changed = 0;
    }

    /// It has nothing to do: time does not count against it until it has again.
    pub fn resting(&mut self) {
        self.since_ns = None;
    }

    /// It has all it was to have, `moving_ns` after the start: its mean speed, if nothing better is known.
    pub fn finished(&mut self, bytes: u64, moving_ns: u64) {
        if self.rate.is_none() {
            self.seconds = moving_ns.max(1) as f64 / 1e9;
            self.rate = Some(bytes as f64 / self.seconds);
        }
        self.resting();
    }

    /// The senders it has had bytes from, and the bytes per second of each.
    pub fn pairs(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.pairs.iter().map(|(&sender, pair)| (sender, pair.rate))
    }

    /// The same by the short memory.
    pub fn recent_pairs(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.pairs
            .iter()
            .map(|(&sender, pair)| (sender, pair.recent))
    }

    /// Bytes per second that a pair carried since the receiver began to be observed: units come in bursts,
    /// which short memories take for speed.
    fn mean(&self, pair: &Pair) -> f64 {
        let (Some(since), Some(began)) = (self.since_ns, self.began_ns) else {
            return pair.rate;
        };
        let seconds = since.saturating_sub(began) as f64 / 1e9;
        match seconds < 0.5 {
            true => pair.rate,
            false => pair.bytes.saturating_sub(pair.first) as f64 / seconds,
        }
    }

    /// How far the observed speed may be from the truth, relatively.
    pub fn error(&self) -> f64 {
        ERROR_MIN + ERROR_SECONDS / self.seconds.max(0.1)
    }

    /// Bytes per second while it had work; `None` until that is known.
    pub fn rate(&self) -> Option<f64> {
        self.rate
    }

    /// The same by the short memory.
    pub fn recent(&self) -> f64 {
        self.recent
    }

    /// Seconds in which it had work and told.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    fn is_working(&self) -> bool {
        self.since_ns.is_some() && self.rate.is_some()
    }
}

/// What a node can send, or receive, at most: bytes per second as far as anybody knows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Estimate {
    rate: Option<f64>,
    updated_ns: u64,
    told: Option<f64>,
    // It was what held lanes up.
    is_certain: bool,
    // Hoped for, not seen; doubted from this time on.
    hope_until_ns: Option<u64>,
}

impl Estimate {
    /// What was told before the start.
    pub fn told(rate: Option<u64>) -> Self {
        let told = rate.map(|rate| rate as f64);
        Self {
            rate: told,
            updated_ns: 0,
            told,
            is_certain: told.is_some(),
            hope_until_ns: None,
        }
    }

    /// Bytes per second; `None` while nobody knows.
    pub fn rate(self) -> Option<f64> {
        self.rate
    }

    /// Whether it was told before the start.
    pub fn is_told(self) -> bool {
        self.told.is_some()
    }

    /// Unless it is known to be slower, the node is taken to be as fast as the fastest until it is asked for that: what
    /// is hoped in vain costs little, since all stay busy until it shows.
    fn hope(&mut self, fastest: f64, now_ns: u64) {
        if !self.is_certain && self.rate.is_some_and(|rate| rate < fastest) {
            self.rate = Some(fastest);
            self.hope_until_ns = Some(now_ns + HOPE_NS);
        }
    }

    /// Until it is seen to be otherwise; nothing where more is known.
    fn guess(&mut self, rate: Option<f64>, now_ns: u64) {
        if self.rate.is_none() {
            self.rate = rate;
            self.hope_until_ns = Some(now_ns + HOPE_NS);
        }
    }

    /// A peer joins that could exchange so much more with it. Until now it may have been seen at the others' limit, not at its
    /// own, so it is taken to have room for that as well until it shows that it has none; of one that was told a speed,
    /// that is hoped for.
    fn hope_for_more(&mut self, more: f64, now_ns: u64) {
        let Some(rate) = self.rate else {
            return;
        };
        let hoped = self.told.unwrap_or(rate + more);
        if hoped > rate {
            self.rate = Some(hoped);
            self.hope_until_ns = Some(now_ns + HOPE_NS);
        }
    }

    /// What is not told is to be seen anew.
    fn forget_seen(&mut self) {
        if !self.is_told() {
            self.rate = None;
            self.is_certain = false;
        }
    }

    /// What the node carries, over lanes that may want more than they get.
    ///
    /// Where work goes from one lane to another, what is remembered of both adds up to more than the node ever
    /// carried, or to less, and to less or more in the short memory than in the long one: only what both say is believed.
    fn see(&mut self, side: &Side, now_ns: u64) {
        let Side {
            wants, is_likely, ..
        } = *side;
        let passed = now_ns.saturating_sub(self.updated_ns) as f64 / 1e9;
        self.updated_ns = now_ns;
        self.is_certain |= wants == Wants::More || is_likely;
        let known = self.rate.unwrap_or(side.total);
        let (least, most) = (side.total.min(side.recent), side.total.max(side.recent));
        let total = known.clamp(least, most);
        let constant = match wants {
            _ if total >= known => match self.rate {
                Some(_) => RISE_SECONDS,
                // Asked, and mute: it can do next to nothing.
                None if total > 0.0 || wants > Wants::Nothing => {
                    self.rate = Some(total.max(1.0));
                    return;
                }
                None => return,
            },
            Wants::Nothing => return,
            _ if self.hope_until_ns.is_some_and(|until| now_ns < until) => return,
            Wants::Perhaps if self.hope_until_ns.is_none() => FALL_SECONDS_PERHAPS,
            _ => FALL_SECONDS,
        };
        let keep = (-passed.min(1.0) / constant).exp();
        self.rate = Some(known * keep + total * (1.0 - keep));
    }
}

/// Whether lanes of a node would carry more if the node could.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wants {
    Nothing,
    /// They want more, and either end may be what holds them up.
    Perhaps,
    /// They want more, and are slower than others at their other end.
    More,
}

/// Sums over the lanes of one node.
#[derive(Clone, Copy, Debug)]
struct Side {
    total: f64,
    // The same by the short memory.
    recent: f64,
    // The fastest lane that wants more.
    fastest: f64,
    wants: Wants,
    // It is at least as likely to hold a lane up as the other end.
    is_likely: bool,
}

const IDLE: Side = Side {
    total: 0.0,
    recent: 0.0,
    fastest: 0.0,
    wants: Wants::Nothing,
    is_likely: false,
};

impl Coordinator {
    /// Takes a receiver's status into account. Cost O(its pairs).
    pub(super) fn observe(&mut self, node: u32, status: &Status, now_ns: u64) {
        if self.setup.options.fixed {
            return;
        }
        // Until other holders are called the planned lanes are alone; that says little of what comes after.
        let moving = now_ns.saturating_sub(self.moving_ns.unwrap_or(now_ns));
        if self.exploring && moving < UNTIL_ALL_TAKE_NS {
            return;
        }
        let mut status = status.clone();
        status
            .pairs
            .retain(|pair| (pair.sender as usize) < self.nodes.len());
        let state = &mut self.nodes[node as usize];
        let left = status.pairs.iter().map(|pair| (pair.sender, pair.left));
        state.left_by_pair = left.collect();
        // What it still does when everything has come (syncing, reading back) says nothing of its speed.
        if state.done.is_some() || status.checked >= state.assigned_bytes() {
            state.observed.resting();
        } else {
            state.observed.working(&status, now_ns);
        }
    }

    /// Bytes per second a receiver has had of late while it had work: 0 when nothing came for so long that
    /// nothing can be expected of it.
    pub(super) fn receiving_rate(&self, node: u32, now_ns: u64) -> Option<f64> {
        let rate = self.nodes[node as usize].observed.rate();
        let since = self.moving_ns.unwrap_or(now_ns);
        let since = since.max(self.nodes[node as usize].observed.anew_ns);
        let moving = now_ns.saturating_sub(since);
        rate.or((moving > MUTE_NS).then_some(0.0))
    }

    /// Nodes that were not seen at their limit may be as fast as the fastest of their side.
    pub(super) fn hope(&mut self, now_ns: u64) {
        let fastest = |side: &dyn Fn(&super::Node) -> Estimate| {
            let rates = self.nodes.iter().filter_map(|node| side(node).rate());
            rates.fold(0.0, f64::max)
        };
        let (up, down) = (fastest(&|node| node.up), fastest(&|node| node.down));
        for node in &mut self.nodes {
            node.up.hope(up, now_ns);
            node.down.hope(down, now_ns);
        }
    }

    /// A node has joined. It is taken to be as fast as the fastest of its side until it shows; and what the others of the
    /// other side were seen to carry was what those before it could exchange with them.
    pub(super) fn hope_for_room(&mut self, node: u32, now_ns: u64) {
        let at = node as usize;
        let interface = self.nodes[at].opened.as_deref().map(|o| o.interface_rate);
        let interface = interface.filter(|rate| *rate > 0).map(|rate| rate as f64);
        let guess = |side: &dyn Fn(&super::Node) -> Estimate| {
            let known = self.nodes.iter().filter_map(|node| side(node).rate());
            let fastest = known.fold(0.0, f64::max);
            (fastest > 0.0).then(|| fastest.min(interface.unwrap_or(fastest)))
        };
        let guesses = (guess(&|node| node.up), guess(&|node| node.down));
        let new = &mut self.nodes[at];
        new.up.guess(guesses.0, now_ns);
        new.down.guess(guesses.1, now_ns);
        let (sends, receives) = (new.is_sender(), new.is_receiver());
        let (up, down) = (new.up.rate(), new.down.rate());
        for (_, other) in (0..).zip(&mut self.nodes).filter(|(other, _)| *other != at) {
            if sends && other.is_receiver() {
                other.down.hope_for_more(up.unwrap_or(0.0), now_ns);
            }
            if receives && other.is_sender() {
                other.up.hope_for_more(down.unwrap_or(0.0), now_ns);
            }
        }
    }

    /// Brings the estimates of all nodes up to date. Cost O(nodes + pairs observed).
    pub(super) fn estimate(&mut self, now_ns: u64) {
        let mut senders = vec![IDLE; self.nodes.len()];
        let mut receivers = vec![IDLE; self.nodes.len()];
        let working = |node: &super::Node| node.observed.is_working() && node.alive();
        let lanes = || {
            let nodes = self.nodes.iter().enumerate();
            nodes
                .filter(|(_, node)| working(node))
                .flat_map(|(at, node)| node.observed.pairs.iter().map(move |pair| (at, pair)))
                .filter(|(_, (sender, _))| (**sender as usize) < self.nodes.len())
        };
        for (receiver, (&sender, pair)) in lanes() {
            let observed = &self.nodes[receiver].observed;
            let (rate, recent) = match self.exploring {
                true => (observed.mean(pair), observed.mean(pair)),
                false => (pair.rate, pair.recent),
            };
            for side in [&mut senders[sender as usize], &mut receivers[receiver]] {
                side.total += rate;
                side.recent += recent;
                if pair.at_work > WANTING {
                    side.fastest = side.fastest.max(pair.recent);
                }
            }
        }
        // A lane is held up where it is among the fastest, relatively: there all have the same share. Where only one
        // end can be the cause, that explains the other lanes that it may hold up, too.
        // Who is held back gets less than it could of everybody.
        let is_free = |receiver: usize| self.nodes[receiver].held == 0.0;
        let wanting = || lanes().filter(|&(at, (_, pair))| pair.at_work > WANTING && is_free(at));
        let may = |pair: &Pair, from: &Side, to: &Side| {
            let by_sender = pair.recent / from.fastest.max(1.0);
            let by_receiver = pair.recent / to.fastest.max(1.0);
            (
                by_sender >= by_receiver * CLEARLY_SLOWER,
                by_receiver >= by_sender * CLEARLY_SLOWER,
            )
        };
        // An end that carries all it is known to can is the cause where the other does not.
        let is_full = |side: &Side, known: Estimate| {
            let known = known.rate.filter(|_| known.is_told());
            known.is_some_and(|known| side.total >= known * FULL)
        };
        for (receiver, (&sender, pair)) in wanting() {
            let (from, to) = (&mut senders[sender as usize], &mut receivers[receiver]);
            match may(pair, from, to) {
                (true, false) => from.wants = Wants::More,
                // TCP may give some of a busy sender's lanes next to nothing for long: they are no proof.
                (false, true) => {
                    let is_full = is_full(from, self.nodes[sender as usize].up);
                    to.wants = to.wants.max(match is_full {
                        true => Wants::Perhaps,
                        false => Wants::More,
                    });
                }
                _ => {}
            }
        }
        for (receiver, (&sender, pair)) in wanting() {
            let (from, to) = (&mut senders[sender as usize], &mut receivers[receiver]);
            let (by_sender, by_receiver) = may(pair, from, to);
            let explained = (by_sender && from.wants == Wants::More)
                || (by_receiver && to.wants == Wants::More);
            if !explained {
                let full_from = is_full(from, self.nodes[sender as usize].up);
                let full_to = is_full(to, self.nodes[receiver].down);
                // Who carries much more besides is the likelier one.
                if full_from || !full_to {
                    from.is_likely |= to.total < from.total * CLEARLY_MORE;
                    from.wants = from.wants.max(Wants::Perhaps);
                }
                if full_to || !full_from {
                    to.is_likely |= from.total < to.total * CLEARLY_MORE;
                    to.wants = to.wants.max(Wants::Perhaps);
                }
            }
        }
        let exploring = self.exploring;
        for ((node, sent), received) in self.nodes.iter_mut().zip(senders).zip(receivers) {
            // The first estimate is what was seen in all; only later the most counts.
            if exploring {
                node.up.forget_seen();
                node.down.forget_seen();
            }
            node.up.see(&sent, now_ns);
            node.down.see(&received, now_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a told node is taken to carry after ten seconds of this.
    fn seen(total: f64, recent: f64, wants: Wants) -> f64 {
        let mut estimate = Estimate::told(Some(100));
        let side = Side {
            total,
            recent,
            wants,
            ..IDLE
        };
        (0..50).for_each(|look| estimate.see(&side, look * 200_000_000));
        estimate.rate().unwrap().round()
    }

    /// Work that goes from one lane to another makes sums of memories wrong, and no node faster or slower.
    #[test]
    fn only_what_both_memories_say_is_believed() {
        assert_eq!(seen(130.0, 95.0, Wants::More), 100.0);
        assert_eq!(seen(95.0, 130.0, Wants::More), 100.0);
        assert_eq!(seen(150.0, 130.0, Wants::Nothing), 130.0);
        assert_eq!(seen(60.0, 70.0, Wants::More), 70.0);
        assert_eq!(seen(60.0, 70.0, Wants::Nothing), 100.0);
    }
}
