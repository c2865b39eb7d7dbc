//! Which unauthenticated connections keep their place, and what is logged about the others.
//!
//! A listener that refuses newcomers while its places are full is locked by an unauthenticated peer that holds them all. So
//! everything is accepted, and where there are too many the oldest gives way: a peer that means to speak does so
//! within a round trip, and a newcomer is likelier to be one. A source that holds most gives way first, so one address
//! cannot crowd out the others; beyond its share it keeps a place no longer than a peer needs to speak. The driver looks
//! once more at what a connection has sent before it closes it: only silent ones give way.
//!
//! Left out on purpose: time limits (the driver has the clock and the sockets), and lists of forbidden addresses.

use core::net::{IpAddr, Ipv6Addr};
use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::{Instant, Nanos};

/// A source may hold one in so many of the places.
const SHARE_DIVISOR: usize = 4;

/// A place is kept for so long, share or not, while any is free: time for a peer on a busy host to send its first
/// packet. Without it, a stranger that opens a thousand connections in a row drives out a peer that connects meanwhile.
const KEPT_TIME: Nanos = Nanos::from_millis(500);

/// Bits of an IPv6 address that name a network: one host has all addresses below.
const HOST_BITS: u32 = 64;

/// Lines a second about unauthenticated connections; the rest is counted.
pub const STRANGER_LINES_PER_SECOND: u32 = 5;

/// Origin of connections that have one share together: an address, or a user of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// A host. All addresses of an IPv6 network of 64 bits are one.
    Host(IpAddr),
    /// A user of this host.
    User(u32),
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        Self::Host(match address.to_canonical() {
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> HOST_BITS << HOST_BITS).into(),
            v4 => v4,
        })
    }
}

/// One connection's place; tickets rise with each connection.
pub type Ticket = u64;

/// The places of connections that have proved nothing yet.
///
/// Calls: [`Admission::enter`] for each connection accepted, then [`Admission::gives_way`] until it names none, each
/// time with [`Admission::leave`] for the one named; [`Admission::leave`] for each that proved itself or closed.
#[derive(Debug)]
pub struct Admission {
    places: usize,
    share: usize,
    next: Ticket,
    /// Exactly the tickets in `held`, each with its source.
    waiting: BTreeMap<Ticket, Waiting>,
    /// Never an empty set.
    held: BTreeMap<Source, BTreeSet<Ticket>>,
}

#[derive(Debug)]
struct Waiting {
    source: Source,
    since: Instant,
}

impl Admission {
    /// So many places, a quarter of them for one source.
    #[must_use]
    pub fn new(places: usize) -> Self {
        Self {
            places,
            share: (places / SHARE_DIVISOR).max(1),
            next: 0,
            waiting: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    /// Takes a place, whether one is free or not.
    pub fn enter(&mut self, source: Source, now: Instant) -> Ticket {
        let ticket = self.next;
        self.next += 1;
        let since = now;
        self.waiting.insert(ticket, Waiting { source, since });
        self.held.entry(source).or_default().insert(ticket);
        ticket
    }

    /// The connection that must give way now; `None` while there are places for all. Cost O(sources).
    #[must_use]
    pub fn gives_way(&self, now: Instant) -> Option<Ticket> {
        let most = self.held.values().max_by_key(|held| {
            // Of sources that hold as many, the one that has waited longest.
            (held.len(), std::cmp::Reverse(held.first().copied()))
        })?;
        let oldest = *most.first()?;
        let age = now.since(self.waiting.get(&oldest)?.since);
        let over_share = most.len() > self.share && age >= KEPT_TIME;
        (over_share || self.waiting.len() > self.places).then_some(oldest)
    }

    /// Frees a place. Tickets that left before are ignored.
    pub fn leave(&mut self, ticket: Ticket) {
        let Some(Waiting { source, .. }) = self.waiting.remove(&ticket) else {
            return;
        };
        if let Some(held) = self.held.get_mut(&source) {
            held.remove(&ticket);
            if held.is_empty() {
                self.held.remove(&source);
            }
        }
    }

    /// Places taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no place is taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// Bounds the lines a second about one kind of event; the others are counted.
#[derive(Debug)]
pub struct Quota {
    per_second: u32,
    second: u64,
    said: u32,
    held: u64,
}

impl Quota {
    /// So many lines a second.
    #[must_use]
    pub fn new(per_second: u32) -> Self {
        Self {
            per_second,
            second: 0,
            said: 0,
            held: 0,
        }
    }

    /// Whether an event of this second (of any clock) gets its line; if not, it is counted.
    pub fn admit(&mut self, second: u64) -> bool {
        if second != self.second {
            (self.second, self.said) = (second, 0);
        }
        let admitted = self.said < self.per_second;
        match admitted {
            true => self.said += 1,
            false => self.held += 1,
        }
        admitted
    }

    /// Counts events that never reached [`Quota::admit`].
    pub fn count(&mut self, events: u64) {
        self.held += events;
    }

    /// How many events got no line, once their second is over; counted from zero after that.
    pub fn take_held(&mut self, second: u64) -> Option<u64> {
        (self.held > 0 && second != self.second).then(|| std::mem::take(&mut self.held))
    }

    /// Whether there is a count to report.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.held > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn host(number: u8) -> Source {
        IpAddr::from([10, 0, 0, number]).into()
    }

    /// Enters and lets those go that must, as drivers do.
    fn arrive(admission: &mut Admission, source: Source, now: Instant) -> (Ticket, Vec<Ticket>) {
        let ticket = admission.enter(source, now);
        let mut gone = Vec::new();
        while let Some(one) = admission.gives_way(now) {
            admission.leave(one);
            gone.push(one);
        }
        (ticket, gone)
    }

    /// A steady flood from one address turns over its own quarter, the oldest first, and nobody else's place.
    #[test]
    fn one_source_keeps_to_its_share() {
        let mut admission = Admission::new(8);
        let (honest, _) = arrive(&mut admission, host(1), Instant::ZERO);
        let steady = |number| arrive(&mut admission, host(2), Instant(number * KEPT_TIME.0));
        let flood: Vec<(Ticket, Vec<Ticket>)> = (0..100).map(steady).collect();
        assert_eq!(admission.len(), 1 + 2);
        for pair in flood.windows(3) {
            assert_eq!(pair[2].1, [pair[0].0], "the oldest of that source");
        }
        assert!(admission.waiting.contains_key(&honest));
    }

    /// A burst from one address takes the free places, not those of others nor its own newest; once it has had its time it
    /// shrinks to its share.
    #[test]
    fn a_burst_is_kept_for_a_while() {
        let mut admission = Admission::new(8);
        let (honest, _) = arrive(&mut admission, host(1), Instant::ZERO);
        for number in 0..100 {
            let (_, gone) = arrive(&mut admission, host(2), Instant(number));
            assert_eq!(gone.len(), usize::from(number >= 7), "{number}");
        }
        assert!(admission.waiting.contains_key(&honest));
        let (_, gone) = arrive(&mut admission, host(3), Instant(KEPT_TIME.0 + 99));
        assert_eq!(gone.len(), 7 - 2);
    }

    /// Where many addresses flood, the newest gets in, and those with one place keep it while others have two.
    #[test]
    fn many_sources_share_all_places() {
        let mut admission = Admission::new(8);
        let (honest, _) = arrive(&mut admission, host(200), Instant::ZERO);
        for number in 0..100 {
            let (ticket, _) = arrive(&mut admission, host(number % 4), Instant(number.into()));
            assert!(admission.waiting.contains_key(&ticket));
            assert!(admission.len() <= 8);
            assert!(admission.waiting.contains_key(&honest), "{number}");
        }
    }

    /// With one connection each, the oldest gives way.
    #[test]
    fn the_oldest_of_equals_gives_way() {
        let mut admission = Admission::new(4);
        for number in 0..4 {
            assert!(
                arrive(&mut admission, host(number), Instant::ZERO)
                    .1
                    .is_empty()
            );
        }
        assert_eq!(arrive(&mut admission, host(9), Instant::ZERO).1, [0]);
        admission.leave(1);
        admission.leave(1);
        assert!(arrive(&mut admission, host(10), Instant::ZERO).1.is_empty());
    }

    /// One host of an IPv6 network is all of its addresses; mapped addresses are IPv4.
    #[test]
    fn sources_are_hosts() {
        let source = |text: &str| Source::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:10.0.0.1"), host(1));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
    }

    /// So many lines a second; the count of the others comes once their second is over, once.
    #[test]
    fn lines_are_bounded() {
        let mut quota = Quota::new(2);
        let said: Vec<bool> = (0..5).map(|_| quota.admit(7)).collect();
        assert_eq!(said, [true, true, false, false, false]);
        assert!(quota.holds());
        assert_eq!(quota.take_held(7), None);
        assert_eq!(quota.take_held(8), Some(3));
        assert_eq!(quota.take_held(9), None);
        assert!(quota.admit(8) && !quota.holds());
    }

    proptest! {
        /// Whatever comes and goes: never more than the places, the newest always has one, and a source that does not
        /// hurry never has more than its share.
        #[test]
        fn bounds_hold(places in 1usize..20, steps in prop::collection::vec((0u8..6, 0u64..KEPT_TIME.0, prop::option::of(0u64..50)), 0..100)) {
            let mut admission = Admission::new(places);
            let mut now = Instant::ZERO;
            for (number, passed, leaves) in steps {
                if let Some(ticket) = leaves {
                    admission.leave(ticket);
                }
                now += Nanos(passed);
                let (ticket, _) = arrive(&mut admission, host(number), now);
                prop_assert!(admission.waiting.contains_key(&ticket));
                prop_assert!(admission.len() <= places);
                let old = |one: &Ticket| now.since(admission.waiting[one].since) >= KEPT_TIME;
                let most = admission.held.values().max_by_key(|held| held.len()).unwrap();
                prop_assert!(most.len() <= admission.share || !most.first().is_some_and(old) || places < 4);
                prop_assert_eq!(admission.held.values().map(BTreeSet::len).sum::<usize>(), admission.len());
            }
        }
    }
}
