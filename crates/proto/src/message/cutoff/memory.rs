//! Cut-offs remembered from one socket to the next, so that the next one need not measure.
//!
//! A cut-off is remembered of what it was found over: this host, the addresses of every rail that works, and how
//! records are protected, which costs the rails' threads time. Whatever of this differs is measured by itself. A rail goes to an
//! address with its port: behind one address there may be several hosts.
//!
//! What is remembered is used as it is, and corrected by real messages from then on. After [`AGE_SECONDS_MAX`] it is found
//! again. Dates are Unix time from the caller; one from the future counts as now.
//!
//! Left out on purpose: which host is at an address. A host that takes over the address of another is given its cut-off until
//! messages show a better one, or the age does.

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use super::{Method, NEVER};
use crate::message::RailId;

/// Format of what is kept.
pub const VERSION: u32 = 1;

/// First words of the file, for whoever finds it.
const ABOUT: &str = "cut-offs of message sockets: from how many bytes on a message takes all rails between two hosts \
                     (null: never); may be deleted";

/// Pairs that are remembered; those not seen for longest go first. With 64 rails of IPv6 each, 4 MB of text.
const PAIRS_MAX: usize = 512;

/// A cut-off that was not confirmed for 7 days is measured again. It depends on cables, interfaces, drivers and processors
/// of two hosts, which change when these are maintained; and to measure takes 0.2 to 3 s, which is little once a week.
pub const AGE_SECONDS_MAX: u64 = 7 * 86_400;

/// What a cut-off began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FoundBy {
    /// Curves through measured round trips.
    Fit,
    /// Binary search.
    Search,
    /// Real messages alone.
    Messages,
}

impl From<Method> for FoundBy {
    fn from(method: Method) -> Self {
        match method {
            Method::Fit => Self::Fit,
            Method::Search => Self::Search,
        }
    }
}

/// How records are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Encrypted and proved.
    Sealed,
    /// Checked against damage.
    Checked,
    /// Not at all.
    Unchecked,
}

/// Which sockets share a cut-off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    key: String,
    rails: Vec<(RailId, String)>,
}

impl Pair {
    /// A socket of this host (by name) over these rails: from where to where. The order of the rails does not matter.
    #[must_use]
    pub fn new(host: &str, guard: Guard, rails: &[(RailId, IpAddr, SocketAddr)]) -> Self {
        let name = |&(rail, local, peer): &(RailId, IpAddr, SocketAddr)| {
            (rail, format!("{local} -> {peer}"))
        };
        let rails: Vec<_> = rails.iter().map(name).collect();
        let mut names: Vec<&str> = rails.iter().map(|(_, name)| &**name).collect();
        names.sort_unstable();
        let guard = match guard {
            Guard::Sealed => "sealed",
            Guard::Checked => "checked",
            Guard::Unchecked => "unchecked",
        };
        Self {
            key: format!("{host}, {guard}: {}", names.join(", ")),
            rails,
        }
    }

    fn name(&self, rail: RailId) -> Option<&str> {
        let own = self.rails.iter().find(|(own, _)| *own == rail);
        own.map(|(_, name)| &**name)
    }

    fn rail(&self, name: &str) -> Option<RailId> {
        let own = self.rails.iter().find(|(_, own)| own == name);
        own.map(|(rail, _)| *rail)
    }
}

/// Everything that is remembered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    #[serde(default)]
    about: String,
    version: u32,
    #[serde(default)]
    pairs: BTreeMap<String, Remembered>,
}

/// One cut-off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Remembered {
    /// `None` for [`NEVER`].
    #[serde(deserialize_with = "present")]
    cut_off_bytes: Option<u64>,
    /// The best rail, as the key has it.
    #[serde(deserialize_with = "present")]
    best: Option<String>,
    found_by: FoundBy,
    /// When it was last seen to be so, in seconds of Unix time.
    seen_unix_seconds: u64,
}

/// A word that may be null, but not be missing.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    Option::deserialize(from)
}

/// What a socket may begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recalled {
    /// Bytes from which on all rails are used.
    pub value: u64,
    /// The best rail, where that was measured.
    pub best: Option<RailId>,
    /// What it began with.
    pub found_by: FoundBy,
    /// Seconds since it was last seen to be so.
    pub age_seconds: u64,
}

/// What a socket has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lesson {
    /// Bytes from which on all rails are used.
    pub value: u64,
    /// The best rail, where that was measured.
    pub best: Option<RailId>,
    /// What it began with.
    pub found_by: FoundBy,
    /// When that was, in seconds of Unix time.
    pub seen_unix: u64,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            about: ABOUT.to_owned(),
            version: VERSION,
            pairs: BTreeMap::new(),
        }
    }
}

impl Memory {
    /// What is remembered of a pair, unless it is too old.
    #[must_use]
    pub fn recall(&self, pair: &Pair, now_unix: u64) -> Option<Recalled> {
        let own = self.pairs.get(&pair.key)?;
        let age_seconds = now_unix.saturating_sub(own.seen_unix_seconds);
        if age_seconds > AGE_SECONDS_MAX {
            return None;
        }
        let best = match &own.best {
            // One that is none of these rails is a sign of damage.
            Some(name) => Some(pair.rail(name)?),
            None => None,
        };
        Some(Recalled {
            value: own.cut_off_bytes.unwrap_or(NEVER),
            best,
            found_by: own.found_by,
            age_seconds,
        })
    }

    /// Takes in what a socket has shown, unless another has seen more since, and forgets what is of no use any more.
    pub fn learn(&mut self, pair: &Pair, lesson: Lesson, now_unix: u64) {
        self.about = ABOUT.to_owned();
        // A clock that was ahead must not keep its entries young for ever.
        for own in self.pairs.values_mut() {
            own.seen_unix_seconds = own.seen_unix_seconds.min(now_unix);
        }
        self.pairs
            .retain(|_, own| now_unix - own.seen_unix_seconds <= AGE_SECONDS_MAX);
        let seen_unix_seconds = lesson.seen_unix.min(now_unix);
        let old = self.pairs.get(&pair.key);
        if old.is_some_and(|old| old.seen_unix_seconds > seen_unix_seconds) {
            return;
        }
        // Messages do not show which rail is best; what was measured stays.
        let best = lesson.best.and_then(|rail| pair.name(rail));
        let best = best.or_else(|| {
            let old = old?.best.as_deref()?;
            pair.rail(old).is_some().then_some(old)
        });
        let fresh = Remembered {
            cut_off_bytes: (lesson.value != NEVER).then_some(lesson.value),
            best: best.map(str::to_owned),
            found_by: lesson.found_by,
            seen_unix_seconds,
        };
        self.pairs.insert(pair.key.clone(), fresh);
        while self.pairs.len() > PAIRS_MAX {
            let oldest = self
                .pairs
                .iter()
                .filter(|(key, _)| **key != pair.key)
                .min_by_key(|(_, own)| own.seen_unix_seconds)
                .map(|(key, _)| key.clone());
            let Some(oldest) = oldest else { break };
            self.pairs.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn rail(rail: RailId, local: &str, peer: &str) -> (RailId, IpAddr, SocketAddr) {
        (rail, local.parse().unwrap(), peer.parse().unwrap())
    }

    fn two() -> Vec<(RailId, IpAddr, SocketAddr)> {
        vec![
            rail(0, "10.0.0.4", "10.0.0.5:7430"),
            rail(1, "10.0.1.4", "10.0.1.5:7430"),
        ]
    }

    fn pair() -> Pair {
        Pair::new("node4", Guard::Checked, &two())
    }

    fn lesson(value: u64, seen_unix: u64) -> Lesson {
        Lesson {
            value,
            best: Some(1),
            found_by: FoundBy::Search,
            seen_unix,
        }
    }

    /// What is learnt is recalled with its age, by whoever has the same rails in whatever order.
    #[test]
    fn lessons_are_recalled() {
        let mut memory = Memory::default();
        assert_eq!(memory.recall(&pair(), NOW), None);
        for value in [0, 20_000, NEVER] {
            memory.learn(&pair(), lesson(value, NOW - 60), NOW);
            let recalled = Recalled {
                value,
                best: Some(1),
                found_by: FoundBy::Search,
                age_seconds: 70,
            };
            assert_eq!(memory.recall(&pair(), NOW + 10), Some(recalled));
            let mut turned = two();
            turned.reverse();
            (turned[0].0, turned[1].0) = (0, 1);
            let turned = Pair::new("node4", Guard::Checked, &turned);
            let best = Some(0);
            let recalled = Some(Recalled { best, ..recalled });
            assert_eq!(memory.recall(&turned, NOW + 10), recalled);
        }
    }

    /// Other hosts, rails, addresses, ports and protection are told apart.
    #[test]
    fn nobody_shares_what_is_not_the_same() {
        let mut memory = Memory::default();
        memory.learn(&pair(), lesson(20_000, NOW), NOW);
        let changed = |at: usize, other| {
            let mut rails = two();
            rails[at] = other;
            rails
        };
        let others = [
            Pair::new("node5", Guard::Checked, &two()),
            Pair::new("node4", Guard::Sealed, &two()),
            Pair::new("node4", Guard::Unchecked, &two()),
            Pair::new("node4", Guard::Checked, &two()[..1]),
            Pair::new("node4", Guard::Checked, &[two(), two()].concat()),
            Pair::new(
                "node4",
                Guard::Checked,
                &changed(1, rail(1, "10.0.1.4", "10.0.1.6:7430")),
            ),
            Pair::new(
                "node4",
                Guard::Checked,
                &changed(1, rail(1, "10.0.1.4", "10.0.1.5:7431")),
            ),
            Pair::new(
                "node4",
                Guard::Checked,
                &changed(0, rail(0, "10.0.0.9", "10.0.0.5:7430")),
            ),
        ];
        for other in &others {
            assert_eq!(memory.recall(other, NOW), None, "{other:?}");
            memory.learn(other, lesson(7, NOW), NOW);
        }
        assert_eq!(memory.pairs.len(), 1 + others.len());
        assert_eq!(memory.recall(&pair(), NOW).unwrap().value, 20_000);
    }

    /// After seven days nothing is recalled, and what is learnt next clears it away; clocks may jump.
    #[test]
    fn age_ends_it() {
        let mut memory = Memory::default();
        memory.learn(&pair(), lesson(20_000, NOW), NOW);
        let age = |memory: &Memory, now| memory.recall(&pair(), now).map(|own| own.age_seconds);
        assert_eq!(age(&memory, NOW + AGE_SECONDS_MAX), Some(AGE_SECONDS_MAX));
        assert_eq!(age(&memory, NOW + AGE_SECONDS_MAX + 1), None);
        assert_eq!(age(&memory, NOW - 1000), Some(0));
        let other = Pair::new("node5", Guard::Checked, &two());
        memory.learn(&other, lesson(7, 1), NOW - 1000);
        assert_eq!(age(&memory, NOW), Some(1000), "its clock was ahead");
        memory.learn(&other, lesson(7, NOW * 2), NOW + AGE_SECONDS_MAX);
        assert_eq!(memory.pairs.len(), 1, "cleared away");
        let kept = memory.recall(&other, NOW + AGE_SECONDS_MAX).unwrap();
        assert_eq!(kept.age_seconds, 0);
    }

    /// Of two sockets to the same peer the one that saw it last has the last word, whichever closes last.
    #[test]
    fn the_newest_sight_counts() {
        let mut memory = Memory::default();
        memory.learn(&pair(), lesson(20_000, NOW), NOW);
        memory.learn(&pair(), lesson(10_000, NOW - 5), NOW + 1);
        assert_eq!(memory.recall(&pair(), NOW).unwrap().value, 20_000);
        memory.learn(&pair(), lesson(30_000, NOW + 1), NOW + 1);
        assert_eq!(memory.recall(&pair(), NOW).unwrap().value, 30_000);
    }

    /// Who only saw messages leaves the best rail as it was; one that is none of the rails is damage, and nothing is made
    /// of it.
    #[test]
    fn the_best_rail_is_one_of_them() {
        let mut memory = Memory::default();
        memory.learn(&pair(), lesson(20_000, NOW), NOW);
        let messages = Lesson {
            best: None,
            found_by: FoundBy::Messages,
            ..lesson(9, NOW)
        };
        memory.learn(&pair(), messages, NOW);
        let recalled = memory.recall(&pair(), NOW).unwrap();
        assert_eq!((recalled.value, recalled.best), (9, Some(1)));
        let own = memory.pairs.values_mut().next().unwrap();
        own.best = Some("10.0.7.4 -> 10.0.7.5:7430".to_owned());
        assert_eq!(memory.recall(&pair(), NOW), None);
        memory.learn(&pair(), messages, NOW);
        assert_eq!(memory.recall(&pair(), NOW).unwrap().best, None);
    }

    /// What was not seen for longest goes first.
    #[test]
    fn memory_is_bounded() {
        let mut memory = Memory::default();
        let host = |at: u64| Pair::new(&format!("n{at}"), Guard::Checked, &two());
        for at in 0..PAIRS_MAX as u64 {
            memory.learn(&host(at), lesson(at, NOW + at), NOW + at);
        }
        let later = NOW + PAIRS_MAX as u64;
        memory.learn(&host(0), lesson(0, later), later);
        memory.learn(&host(9999), lesson(1, NOW), later);
        assert_eq!(memory.pairs.len(), PAIRS_MAX);
        let knows = |at| memory.recall(&host(at), later).is_some();
        assert!(knows(0) && knows(9999) && !knows(1) && knows(2));
    }
}
