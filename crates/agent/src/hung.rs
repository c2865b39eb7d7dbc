//! Calls to a disk that do not return. The node reports them: for others a disk that does not answer looks like a silent network.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::holdings::Holdings;

/// A call that takes longer is reported. Slow disks take seconds, and syncs of much that other programs wrote a minute; a server of
/// files that has gone takes for ever.
pub(crate) const CALL_TIME_MAX: Duration = Duration::from_secs(60);

/// What a thread does that reads a source.
pub(crate) const READS: &str = "reads of";

/// Calls that have not returned.
#[derive(Debug, Default)]
pub(crate) struct Calls(Arc<Mutex<Open>>);

/// Those of this process, for its end.
static ALL: Mutex<Vec<Weak<Mutex<Open>>>> = Mutex::new(Vec::new());

#[derive(Debug, Default)]
struct Open {
    next: u64,
    calls: BTreeMap<u64, Begun>,
}

/// A call that was begun.
#[derive(Clone, Debug)]
struct Begun {
    at: Instant,
    what: &'static str,
    place: Option<Place>,
}

/// What a call reads: bytes of a source.
#[derive(Clone)]
pub(crate) struct Place {
    pub holdings: Arc<Holdings>,
    /// In the data space.
    pub offset: u64,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({})", self.offset)
    }
}

impl Begun {
    /// What it does, and to what, where that is known.
    fn words(&self, unknown: impl FnOnce() -> String) -> String {
        let place = self.place.as_ref();
        let path = place.and_then(|place| place.holdings.path(place.offset));
        match path {
            Some(path) => format!("{} {path:?}", self.what),
            None => format!("{} {}", self.what, unknown()),
        }
    }
}

/// A call; ends when dropped.
struct Call<'c>(&'c Calls, u64);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let begun = self.0.0.lock().calls.remove(&self.1);
        // It may close files, of a disk that does not answer.
        drop(begun);
    }
}

impl Calls {
    /// Those of one node, which are calls of this process.
    pub fn new() -> Self {
        let calls = Self::default();
        let mut all = ALL.lock();
        all.retain(|open| open.strong_count() > 0);
        all.push(Arc::downgrade(&calls.0));
        calls
    }

    /// Calls a disk.
    ///
    /// * `what`: does that, in the plural: `writes to`.
    pub fn carry_out<T>(
        &self,
        what: &'static str,
        place: Option<Place>,
        call: impl FnOnce() -> T,
    ) -> T {
        let number = {
            let mut open = self.0.lock();
            open.next += 1;
            let number = open.next;
            let at = Instant::now();
            open.calls.insert(number, Begun { at, what, place });
            number
        };
        let _ends = Call(self, number);
        call()
    }

    /// What the call does that has not returned for longest, if that is too long, and to what.
    ///
    /// * `unknown`: for a place that has no path.
    pub fn hung(&self, now: Instant, unknown: impl FnOnce() -> String) -> Option<String> {
        // Numbers grow with time.
        let begun = self.0.lock().calls.values().next()?.clone();
        let is_hung = now.saturating_duration_since(begun.at) >= CALL_TIME_MAX;
        is_hung.then(|| begun.words(unknown))
    }
}

/// Calls of the agents of this process that have not returned, in words, the oldest first: a process that has some does not end before they return,
/// if the system cannot interrupt them.
///
/// * `most`: no more than so many.
#[must_use]
pub fn open_calls(most: usize) -> Vec<String> {
    let all: Vec<_> = ALL.lock().iter().filter_map(Weak::upgrade).collect();
    let mut begun: Vec<Begun> = Vec::new();
    for open in all {
        begun.extend(open.lock().calls.values().cloned());
    }
    begun.sort_by_key(|begun| begun.at);
    let words = begun
        .iter()
        .map(|begun| begun.words(|| "a destination".into()));
    words.take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call that does not return is named once it takes too long, and the oldest of several; one that has returned is not.
    #[test]
    fn hung_calls_are_named() {
        let calls = Calls::default();
        let later = || Instant::now() + CALL_TIME_MAX;
        let hung = |now| calls.hung(now, || "it".into());
        assert_eq!(hung(later()), None);
        let seen = calls.carry_out("syncs of", None, || {
            assert_eq!(hung(Instant::now()), None);
            calls.carry_out("writes to", None, || hung(later()))
        });
        assert_eq!(seen.as_deref(), Some("syncs of it"));
        assert_eq!(hung(later()), None);
    }
}
