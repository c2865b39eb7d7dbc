//! Calls to a disk that do not return. The node reports them: for others a disk that does not answer looks like a silent network.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A call that takes longer is reported. Slow disks take seconds, and syncs of much that other programs wrote a minute; a server of
/// files that has gone takes for ever.
pub(crate) const CALL_TIME_MAX: Duration = Duration::from_secs(60);

/// Calls that have not returned, each with what it does.
#[derive(Debug, Default)]
pub(crate) struct Calls(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    next: u64,
    calls: BTreeMap<u64, (Instant, &'static str)>,
}

/// A call; ends when dropped.
struct Call<'c>(&'c Calls, u64);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.0.lock().calls.remove(&self.1);
    }
}

impl Calls {
    /// Calls a disk.
    ///
    /// * `what`: does that, in the plural: `writes to`.
    pub fn carry_out<T>(&self, what: &'static str, call: impl FnOnce() -> T) -> T {
        let number = {
            let mut open = self.0.lock();
            open.next += 1;
            let number = open.next;
            open.calls.insert(number, (Instant::now(), what));
            number
        };
        let _ends = Call(self, number);
        call()
    }

    /// What the call does that has not returned for longest, if that is too long.
    pub fn hung(&self, now: Instant) -> Option<&'static str> {
        // Numbers grow with time.
        let (began, what) = *self.0.lock().calls.values().next()?;
        (now.saturating_duration_since(began) >= CALL_TIME_MAX).then_some(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call that does not return is named once it takes too long, and the oldest of several; one that has returned is not.
    #[test]
    fn hung_calls_are_named() {
        let calls = Calls::default();
        let later = || Instant::now() + CALL_TIME_MAX;
        assert_eq!(calls.hung(later()), None);
        let seen = calls.carry_out("syncs of", || {
            assert_eq!(calls.hung(Instant::now()), None);
            calls.carry_out("writes to", || calls.hung(later()))
        });
        assert_eq!(seen, Some("syncs of"));
        assert_eq!(calls.hung(later()), None);
    }
}
