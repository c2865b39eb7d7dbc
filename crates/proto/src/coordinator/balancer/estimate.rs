//! What nodes could carry at most, estimated from what lanes do.
//!
//! What a node *could* carry is not seen directly: a lane is as fast as the slower of its ends. The estimate of a node
//! starts at what was declared (or nothing), rises to whatever the node is seen to carry, and falls towards it only
//! while lanes of the node want more and might be held up by it.

use ropewalk_model::{ByteRate, Instant, Nanos};

use super::observe::Pair;
use super::{Balancer, Track, View};

/// A lane at work for more than this part of the time wants more than it gets.
const WANTING: f64 = 0.7;

/// A lane slower than this part of another lane of the same node is held up at its other end.
const CLEARLY_SLOWER: f64 = 0.5;

/// A node has this long to show the speed that is hoped for.
const HOPE_TIME: Nanos = Nanos(1_500_000_000);

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

/// What a node can send, or receive, at most: bytes per second as far as anybody knows.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::coordinator) struct Estimate {
    rate: Option<f64>,
    updated_at: Instant,
    told: Option<f64>,
    // It was what held lanes up.
    is_certain: bool,
    // Hoped for, not seen; doubted from this time on.
    hope_until: Option<Instant>,
}

impl Estimate {
    /// What was declared before the start.
    pub fn told(rate: Option<ByteRate>) -> Self {
        let told = rate.map(|rate| rate.0 as f64);
        Self {
            rate: told,
            updated_at: Instant::ZERO,
            told,
            is_certain: told.is_some(),
            hope_until: None,
        }
    }

    /// Asserts that it is a speed.
    pub fn check(self, name: &str) {
        let is_speed = |rate: Option<f64>| rate.is_none_or(|rate| rate > 0.0 && rate.is_finite());
        debug_assert!(is_speed(self.rate), "{name}: speed {:?}", self.rate);
        debug_assert!(is_speed(self.told), "{name}: declared {:?}", self.told);
        debug_assert!(
            self.told.is_none() || self.rate.is_some(),
            "{name}: a declared speed is forgotten"
        );
    }

    /// Bytes per second; `None` while unknown.
    pub fn rate(self) -> Option<f64> {
        self.rate
    }

    /// Whether it was declared before the start.
    pub fn is_told(self) -> bool {
        self.told.is_some()
    }

    /// Unless it is known to be slower, the node is taken to be as fast as the fastest until it is asked for that: what
    /// is hoped in vain costs little, since all stay busy until it shows.
    fn hope(&mut self, fastest: f64, now: Instant) {
        if !self.is_certain && self.rate.is_some_and(|rate| rate < fastest) {
            self.rate = Some(fastest);
            self.hope_until = Some(now + HOPE_TIME);
        }
    }

    /// Until it is seen to be otherwise; nothing where more is known.
    fn guess(&mut self, rate: Option<f64>, now: Instant) {
        if self.rate.is_none() {
            self.rate = rate;
            self.hope_until = Some(now + HOPE_TIME);
        }
    }

    /// A peer joins that could exchange so much more with it. Until now it may have been seen at the others' limit, not at its
    /// own, so it is taken to have room for that as well until it shows that it has none; of one that was told a speed,
    /// that is hoped for.
    fn hope_for_more(&mut self, more: f64, now: Instant) {
        let Some(rate) = self.rate else {
            return;
        };
        let hoped = self.told.unwrap_or(rate + more);
        if hoped > rate {
            self.rate = Some(hoped);
            self.hope_until = Some(now + HOPE_TIME);
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
    fn see(&mut self, side: &Side, now: Instant) {
        let Side {
            wants, is_likely, ..
        } = *side;
        let passed = now.since(self.updated_at).as_seconds();
        self.updated_at = now;
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
            _ if self.hope_until.is_some_and(|until| now < until) => return,
            Wants::Perhaps if self.hope_until.is_none() => FALL_SECONDS_PERHAPS,
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

impl Balancer {
    /// Nodes that were not seen at their limit may be as fast as the fastest of their side.
    pub(super) fn hope(&mut self, now: Instant) {
        let fastest = |side: &dyn Fn(&Track) -> Estimate| {
            let rates = self.tracks.iter().filter_map(|node| side(node).rate());
            rates.fold(0.0, f64::max)
        };
        let (up, down) = (fastest(&|node| node.up), fastest(&|node| node.down));
        for node in &mut self.tracks {
            node.up.hope(up, now);
            node.down.hope(down, now);
        }
    }

    /// A node has joined. It is taken to be as fast as the fastest of its side until it shows; and what the others of the
    /// other side were seen to carry was what those before it could exchange with them.
    pub(in crate::coordinator) fn hope_for_room(
        &mut self,
        view: View<'_>,
        node: u32,
        now: Instant,
    ) {
        let opened = view.node(node).opened.as_deref();
        let interface = opened.map(|opened| opened.interface_rate);
        let interface = interface.filter(|rate| *rate > 0).map(|rate| rate as f64);
        let guess = |side: &dyn Fn(&Track) -> Estimate| {
            let known = self.tracks.iter().filter_map(|node| side(node).rate());
            let fastest = known.fold(0.0, f64::max);
            (fastest > 0.0).then(|| fastest.min(interface.unwrap_or(fastest)))
        };
        let guesses = (guess(&|node| node.up), guess(&|node| node.down));
        let new = &mut self.tracks[node as usize];
        new.up.guess(guesses.0, now);
        new.down.guess(guesses.1, now);
        let (up, down) = (new.up.rate(), new.down.rate());
        let (sends, receives) = (view.node(node).is_sender(), view.node(node).is_receiver());
        let others = (0..).zip(view.nodes).zip(&mut self.tracks);
        for ((_, other), track) in others.filter(|((other, _), _)| *other != node) {
            if sends && other.is_receiver() {
                track.down.hope_for_more(up.unwrap_or(0.0), now);
            }
            if receives && other.is_sender() {
                track.up.hope_for_more(down.unwrap_or(0.0), now);
            }
        }
    }

    /// Brings the estimates of all nodes up to date. Cost O(nodes + pairs observed).
    pub(super) fn estimate(&mut self, view: View<'_>, now: Instant) {
        let (mut senders, mut receivers) = self.add_up(view);
        self.find_causes(view, &mut senders, &mut receivers);
        self.suspect_both_ends(view, &mut senders, &mut receivers);
        let exploring = self.exploring;
        for ((node, sent), received) in self.tracks.iter_mut().zip(senders).zip(receivers) {
            // The first estimate is what was seen in all; only later the most counts.
            if exploring {
                node.up.forget_seen();
                node.down.forget_seen();
            }
            node.up.see(&sent, now);
            node.down.see(&received, now);
        }
    }

    /// Lanes of receivers at work, by receiver.
    fn working_lanes<'a>(
        &'a self,
        view: View<'a>,
    ) -> impl Iterator<Item = (usize, (&'a u32, &'a Pair))> {
        let nodes = self.tracks.iter().zip(view.nodes).enumerate();
        nodes
            .filter(|(_, (track, node))| track.observed.is_working() && node.alive())
            .flat_map(|(at, (track, _))| track.observed.lanes().map(move |pair| (at, pair)))
            .filter(|(_, (sender, _))| (**sender as usize) < self.tracks.len())
    }

    /// Those that want more. A receiver that is held back gets less than it could of every sender.
    fn wanting_lanes<'a>(
        &'a self,
        view: View<'a>,
    ) -> impl Iterator<Item = (usize, (&'a u32, &'a Pair))> {
        let is_free = |receiver: usize| self.tracks[receiver].held.is_none();
        self.working_lanes(view)
            .filter(move |&(at, (_, pair))| pair.at_work > WANTING && is_free(at))
    }

    /// What each node sends and receives now.
    fn add_up(&self, view: View<'_>) -> (Vec<Side>, Vec<Side>) {
        let mut senders = vec![IDLE; self.tracks.len()];
        let mut receivers = vec![IDLE; self.tracks.len()];
        for (receiver, (&sender, pair)) in self.working_lanes(view) {
            let observed = &self.tracks[receiver].observed;
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
        (senders, receivers)
    }

    /// A lane is held up where it is among the fastest, relatively: there all have the same share. Where only one
    /// end can be the cause, that explains the other lanes that it may hold up, too.
    fn find_causes(&self, view: View<'_>, senders: &mut [Side], receivers: &mut [Side]) {
        for (receiver, (&sender, pair)) in self.wanting_lanes(view) {
            let (from, to) = (&mut senders[sender as usize], &mut receivers[receiver]);
            match may_hold_up(pair, from, to) {
                (true, false) => from.wants = Wants::More,
                // TCP may give some of a busy sender's lanes next to nothing for long: they are no proof.
                (false, true) => {
                    let is_full = is_full(from, self.tracks[sender as usize].up);
                    to.wants = to.wants.max(match is_full {
                        true => Wants::Perhaps,
                        false => Wants::More,
                    });
                }
                _ => {}
            }
        }
    }

    /// Lanes that no known cause explains: either end may be what holds them up.
    fn suspect_both_ends(&self, view: View<'_>, senders: &mut [Side], receivers: &mut [Side]) {
        for (receiver, (&sender, pair)) in self.wanting_lanes(view) {
            let (from, to) = (&mut senders[sender as usize], &mut receivers[receiver]);
            let (by_sender, by_receiver) = may_hold_up(pair, from, to);
            let explained = (by_sender && from.wants == Wants::More)
                || (by_receiver && to.wants == Wants::More);
            if explained {
                continue;
            }
            let full_from = is_full(from, self.tracks[sender as usize].up);
            let full_to = is_full(to, self.tracks[receiver].down);
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
}

/// Whether the sender, and whether the receiver, may be what holds a lane up.
fn may_hold_up(pair: &Pair, from: &Side, to: &Side) -> (bool, bool) {
    let by_sender = pair.recent / from.fastest.max(1.0);
    let by_receiver = pair.recent / to.fastest.max(1.0);
    (
        by_sender >= by_receiver * CLEARLY_SLOWER,
        by_receiver >= by_sender * CLEARLY_SLOWER,
    )
}

/// Whether it carries all it is known to: then it is the cause where the other end does not.
fn is_full(side: &Side, known: Estimate) -> bool {
    let known = known.rate.filter(|_| known.is_told());
    known.is_some_and(|known| side.total >= known * FULL)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a told node is taken to carry after ten seconds of this.
    fn seen(total: f64, recent: f64, wants: Wants) -> f64 {
        let mut estimate = Estimate::told(Some(ByteRate(100)));
        let side = Side {
            total,
            recent,
            wants,
            ..IDLE
        };
        (0..50).for_each(|look| estimate.see(&side, Instant(look * 200_000_000)));
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
