//! The cut-off in use, the rails that it was found over, and what is known of other sets of rails.
//!
//! A cut-off belongs to a set of rails: with one of three gone it is another. So what a socket knows of a set is kept
//! when a rail fails, and taken up again when the same set works again. What measurements or real messages have shown is worth
//! remembering when the socket closes.

use core::net::IpAddr;

use ropewalk_model::Instant;

use super::{Choice, CutOff, FoundBy, Sample};
use crate::message::RailId;

/// Sets of rails of which a socket knows at once: rails that come and go make few sets again and again.
const KNOWN_MAX: usize = 16;

/// A rail that works: its addresses are those of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RailEnds {
    /// Its place.
    pub rail: RailId,
    /// This end.
    pub local: IpAddr,
    /// The other.
    pub peer: IpAddr,
}

/// What is known of a set of rails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// In the order of the rails; two at least.
    pub rails: Vec<RailEnds>,
    /// Bytes from which on all of them are used.
    pub value: u64,
    /// The best of them, where that was measured.
    pub best: Option<RailId>,
    /// What the value began with.
    pub found_by: FoundBy,
    /// When measurements or messages of this socket last showed it, on the clock of the calls; `None` for what the peer
    /// reported.
    pub shown_at: Option<Instant>,
}

/// Where the value in use comes from.
#[derive(Clone, Copy, Debug)]
struct Source {
    best: Option<RailId>,
    found_by: FoundBy,
    shown_at: Option<Instant>,
}

/// The cut-off in use.
#[derive(Clone, Debug)]
pub struct Standing {
    cut_off: CutOff,
    /// Whether it follows measurements and the peer's messages.
    follows: bool,
    rails: Vec<RailEnds>,
    /// `None` for a value that nobody found over these rails.
    source: Option<Source>,
    /// The peer's last word, until something newer is known: it may have come before all rails of which it speaks.
    word: Option<(u64, RailId)>,
    /// Other sets of rails, the one that was left last behind.
    before: Vec<Known>,
}

impl Standing {
    /// A cut-off that is fixed, or that is as good as any until one is found.
    #[must_use]
    pub fn new(value: u64, follows: bool) -> Self {
        Self {
            cut_off: CutOff::new(value),
            follows,
            rails: Vec::new(),
            source: None,
            word: None,
            before: Vec::new(),
        }
    }

    /// Bytes from which on all rails are used.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.cut_off.value()
    }

    /// Whether it follows measurements and the peer's messages.
    #[must_use]
    pub fn follows(&self) -> bool {
        self.follows
    }

    /// The rails that work.
    #[must_use]
    pub fn rails(&self) -> &[RailEnds] {
        &self.rails
    }

    /// As [`CutOff::choose`].
    pub fn choose(&mut self, size: u64) -> Choice {
        self.cut_off.choose(size)
    }

    /// As [`CutOff::observe`].
    pub fn observe(&mut self, sample: Sample, now: Instant) {
        if !self.follows || !self.cut_off.observe(sample) {
            return;
        }
        let messages = Source {
            best: None,
            found_by: FoundBy::Messages,
            shown_at: None,
        };
        self.source.get_or_insert(messages).shown_at = Some(now);
        self.word = None;
    }

    /// A measurement over these rails found it; it follows from now on.
    pub fn found(&mut self, found: Known) {
        self.begin(found.value);
        // Rails that came or went during the measurement make it one of nothing in particular.
        if found.rails == self.rails {
            self.source = Some(Source::of(&found));
        }
    }

    /// An earlier socket found it over the rails that work; it follows from now on.
    pub fn recalled(&mut self, value: u64, best: Option<RailId>, found_by: FoundBy) {
        self.begin(value);
        self.source = Some(Source {
            best,
            found_by,
            shown_at: None,
        });
    }

    /// The peer says so. Nothing happens when it does not follow.
    pub fn told(&mut self, value: u64, best: RailId) {
        if self.follows {
            self.begin(value);
            self.word = Some((value, best));
            self.source = Some(Source {
                best: Some(best),
                found_by: FoundBy::Messages,
                shown_at: None,
            });
        }
    }

    fn begin(&mut self, value: u64) {
        self.cut_off = CutOff::new(value);
        self.follows = true;
        self.source = None;
        self.word = None;
    }

    /// Fixes it: it follows nothing any more. What was known stays known.
    pub fn fix(&mut self, value: u64) {
        self.put_aside();
        self.begin(value);
        self.follows = false;
    }

    /// Other rails work than before; `rails` in their order. `unknown` is for sets of which nothing is known where
    /// several rails never were faster before.
    pub fn rails_changed(&mut self, rails: Vec<RailEnds>, unknown: u64) {
        if rails == self.rails {
            return;
        }
        self.put_aside();
        let only_more = self.rails.iter().all(|own| rails.contains(own));
        self.rails = rails;
        if !self.follows {
            return;
        }
        let known = self.before.iter().find(|known| known.rails == self.rails);
        match (known.cloned(), self.word) {
            (_, Some((value, best))) if only_more => self.told(value, best),
            (Some(known), _) => {
                self.begin(known.value);
                self.source = Some(Source::of(&known));
            }
            (None, _) => {
                self.cut_off.rails_changed(unknown);
                (self.source, self.word) = (None, None);
            }
        }
    }

    /// What is known of the rails that work.
    fn known(&self) -> Option<Known> {
        let source = self.source.filter(|_| self.rails.len() > 1)?;
        Some(Known {
            rails: self.rails.clone(),
            value: self.value(),
            best: source.best,
            found_by: source.found_by,
            shown_at: source.shown_at,
        })
    }

    fn put_aside(&mut self) {
        let Some(known) = self.known() else {
            return;
        };
        self.before.retain(|other| other.rails != known.rails);
        if self.before.len() >= KNOWN_MAX {
            self.before.remove(0);
        }
        self.before.push(known);
    }

    /// What measurements or messages of this socket have shown, each set of rails once.
    #[must_use]
    pub fn shown(&self) -> Vec<Known> {
        let now = self.known();
        let is_old = |other: &&Known| now.as_ref().is_none_or(|now| other.rails != now.rails);
        let all = self.before.iter().filter(is_old).cloned();
        all.chain(now.clone())
            .filter(|known| known.shown_at.is_some())
            .collect()
    }
}

impl Source {
    fn of(known: &Known) -> Self {
        Self {
            best: known.best,
            found_by: known.found_by,
            shown_at: known.shown_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use ropewalk_model::Nanos;

    use super::super::{Method, NEVER};
    use super::*;

    const UNKNOWN: u64 = 32 << 10;

    fn rails(rails: &[RailId]) -> Vec<RailEnds> {
        let address = |network, host| IpAddr::V4(Ipv4Addr::new(10, 0, network, host));
        let ends = |&rail: &RailId| RailEnds {
            rail,
            local: address(rail as u8, 1),
            peer: address(rail as u8, 2),
        };
        rails.iter().map(ends).collect()
    }

    fn measured(over: &[RailId], value: u64) -> Known {
        Known {
            rails: rails(over),
            value,
            best: Some(over[0]),
            found_by: Method::Search.into(),
            shown_at: Some(Instant(7)),
        }
    }

    /// Messages of one size for which several rails are faster, or slower.
    fn messages(standing: &mut Standing, size: u64, several_gain: bool, now: u64) {
        for sample in 0..40 {
            let several = sample % 2 == 0;
            let fast = several == several_gain;
            let sample = Sample {
                size,
                several,
                round_trip: Nanos(if fast { 100_000 } else { 200_000 }),
            };
            standing.observe(sample, Instant(now));
        }
    }

    /// What was measured and what messages made of it is worth remembering; what was recalled, told or fixed is not.
    #[test]
    fn what_was_shown_is_kept() {
        let mut standing = Standing::new(UNKNOWN, true);
        standing.rails_changed(rails(&[0]), UNKNOWN);
        standing.rails_changed(rails(&[0, 1]), UNKNOWN);
        assert!(standing.shown().is_empty(), "nobody found anything");
        standing.told(9000, 1);
        assert_eq!((standing.value(), standing.shown().len()), (9000, 0));
        standing.recalled(8000, Some(1), FoundBy::Fit);
        assert_eq!((standing.value(), standing.shown().len()), (8000, 0));
        messages(&mut standing, 4000, true, 50);
        let shown = standing.shown();
        assert!(standing.value() <= 4000, "refined");
        assert_eq!(shown[0].value, standing.value());
        let rest = (shown[0].best, shown[0].found_by, shown[0].shown_at);
        assert_eq!(rest, (Some(1), FoundBy::Fit, Some(Instant(50))));
        let found = measured(&[0, 1], 5000);
        standing.found(found.clone());
        assert_eq!(standing.shown(), std::slice::from_ref(&found));
        standing.fix(77);
        assert_eq!((standing.value(), standing.follows()), (77, false));
        messages(&mut standing, 70, true, 90);
        standing.told(5, 0);
        standing.rails_changed(Vec::new(), UNKNOWN);
        assert_eq!(standing.value(), 77);
        assert_eq!(standing.shown(), [found], "fixing forgets nothing");
    }

    /// Messages alone show something, too.
    #[test]
    fn messages_find_a_cut_off() {
        let mut standing = Standing::new(UNKNOWN, true);
        standing.rails_changed(rails(&[0, 1]), UNKNOWN);
        messages(&mut standing, 4000, true, 50);
        let [known] = &standing.shown()[..] else {
            panic!("one set of rails")
        };
        assert_eq!(
            (known.best, known.found_by, known.shown_at),
            (None, FoundBy::Messages, Some(Instant(50)))
        );
    }

    /// Each set of rails has a cut-off of its own, which it gets back; a single rail has none.
    #[test]
    fn rails_that_come_back_find_theirs() {
        let mut standing = Standing::new(UNKNOWN, true);
        standing.rails_changed(rails(&[0, 1, 2]), UNKNOWN);
        standing.found(measured(&[0, 1, 2], NEVER));
        standing.rails_changed(rails(&[0, 2]), UNKNOWN);
        assert_eq!(standing.value(), UNKNOWN, "never is not known of others");
        assert_eq!(standing.shown(), [measured(&[0, 1, 2], NEVER)]);
        messages(&mut standing, 1000, true, 60);
        let refined = standing.value();
        assert!(refined <= 1000);
        standing.rails_changed(rails(&[2]), UNKNOWN);
        messages(&mut standing, 10, true, 70);
        standing.rails_changed(rails(&[0, 1, 2]), UNKNOWN);
        assert_eq!(standing.value(), NEVER);
        standing.rails_changed(rails(&[0, 2]), UNKNOWN);
        assert_eq!(standing.value(), refined);
        let shown = standing.shown();
        let sets: Vec<_> = shown.iter().map(|known| known.rails.len()).collect();
        assert_eq!(sets, [3, 2]);
        // The same rails from another address are others.
        let mut moved = rails(&[0, 2]);
        moved[0].local = IpAddr::V4(Ipv4Addr::new(10, 9, 9, 9));
        standing.rails_changed(moved, UNKNOWN);
        assert_eq!(standing.shown().len(), 2);
        assert!(standing.source.is_none());
    }

    /// The peer's word may come before the rails of which it speaks; with some of them gone it means nothing.
    #[test]
    fn a_word_waits_for_its_rails() {
        let mut standing = Standing::new(UNKNOWN, true);
        standing.rails_changed(rails(&[1]), UNKNOWN);
        standing.told(NEVER, 1);
        for more in [&[0, 1][..], &[0, 1, 2]] {
            standing.rails_changed(rails(more), UNKNOWN);
            assert_eq!(standing.value(), NEVER);
        }
        standing.rails_changed(rails(&[0, 2]), UNKNOWN);
        assert_eq!(standing.value(), UNKNOWN);
        standing.rails_changed(rails(&[0, 1, 2]), UNKNOWN);
        assert_eq!(standing.value(), NEVER);
        standing.told(9000, 1);
        messages(&mut standing, 4000, true, 50);
        let refined = standing.value();
        standing.rails_changed(rails(&[0, 1, 2, 3]), UNKNOWN);
        assert_eq!(standing.value(), refined, "messages have the last word");
    }

    /// What was measured while rails came or went is used, and remembered of nobody.
    #[test]
    fn measurements_belong_to_their_rails() {
        let mut standing = Standing::new(UNKNOWN, true);
        standing.rails_changed(rails(&[0, 1]), UNKNOWN);
        standing.rails_changed(rails(&[0, 1, 2]), UNKNOWN);
        standing.found(measured(&[0, 1], 5000));
        assert_eq!((standing.value(), standing.shown().len()), (5000, 0));
    }

    /// However rails come and go, few sets are kept, those used last.
    #[test]
    fn what_is_kept_is_bounded() {
        let mut standing = Standing::new(UNKNOWN, true);
        for rail in 1..100 {
            standing.rails_changed(rails(&[0, rail]), UNKNOWN);
            standing.found(measured(&[0, rail], rail as u64));
        }
        let shown = standing.shown();
        assert_eq!(shown.len(), KNOWN_MAX + 1);
        assert_eq!(shown.last(), Some(&measured(&[0, 99], 99)));
    }
}
