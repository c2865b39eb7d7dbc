//! Notifications of ranges at a target, and those that wait for them.
//!
//! Each byte of the region has a value, 0 at first. A notification raises the values of its range; one that is lower changes nothing, so
//! that the order of notifications does not matter, and replicas agree. A wait ends when some byte of its range has the value.

use std::collections::BTreeMap;

use ropewalk_model::Range;

/// Stretches of equal values that a target keeps; a program that notifies more has too fine ranges.
pub const SIGNALS_MAX: usize = 4096;

/// Waits that a target keeps of one origin; other waits of it are refused.
pub const WAITERS_MAX: usize = 256;

/// Waits that a target keeps of all origins.
const WAITERS_OF_ALL_MAX: usize = 1 << 14;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    end: u64,
    value: u64,
}

struct Waiter<W> {
    range: Range,
    at_least: u64,
    by: W,
}

/// Values of ranges, and waits. `W` says which wait it is.
pub struct Signals<W> {
    /// By start; runs do not overlap, and their values are above 0.
    runs: BTreeMap<u64, Run>,
    waiters: Vec<Waiter<W>>,
}

impl<W> Default for Signals<W> {
    fn default() -> Self {
        Self {
            runs: BTreeMap::new(),
            waiters: Vec::new(),
        }
    }
}

impl<W> Signals<W> {
    /// Raises the values of a range. Gives the waits that end, with the values that they have found; `None` where [`SIGNALS_MAX`] are kept:
    /// nothing has changed then.
    pub fn notify(&mut self, range: Range, value: u64) -> Option<Vec<(W, u64)>> {
        // A notification adds two runs at most to each that it cuts, and joins equal neighbours.
        let before = self.runs.len();
        let touched: Vec<(u64, Run)> = self.touching(range).collect();
        let mut fresh: Vec<(Range, u64)> = Vec::new();
        let mut at = range.start;
        for (start, run) in &touched {
            let own = Range::new(*start, run.end);
            if own.start < range.start {
                fresh.push((Range::new(own.start, range.start.min(own.end)), run.value));
            }
            let both = Range::new(own.start.max(range.start), own.end.min(range.end));
            fresh.push((Range::new(at, both.start), value));
            fresh.push((both, run.value.max(value)));
            at = at.max(both.end);
            if own.end > range.end {
                fresh.push((Range::new(range.end, own.end), run.value));
            }
        }
        let rest = (Range::new(at, range.end), value);
        let at_rest = fresh.partition_point(|(own, _)| own.start < rest.0.start);
        fresh.insert(at_rest, rest);
        let mut joined: Vec<(Range, u64)> = Vec::new();
        for (own, value) in fresh {
            match joined.last_mut() {
                _ if own.is_empty() || value == 0 => {}
                Some((last, same)) if last.end == own.start && *same == value => last.end = own.end,
                _ => joined.push((own, value)),
            }
        }
        if before - touched.len() + joined.len() > SIGNALS_MAX {
            return None;
        }
        for (start, _) in touched {
            self.runs.remove(&start);
        }
        for (own, value) in joined {
            self.runs.insert(
                own.start,
                Run {
                    end: own.end,
                    value,
                },
            );
        }
        let mut ended = Vec::new();
        let mut at = 0;
        while at < self.waiters.len() {
            let waiter = &self.waiters[at];
            match waiter.range.overlaps(range) && waiter.at_least <= value {
                true => ended.push((self.waiters.swap_remove(at).by, value)),
                false => at += 1,
            }
        }
        Some(ended)
    }

    /// Runs that share a byte with a range, in order.
    fn touching(&self, range: Range) -> impl Iterator<Item = (u64, Run)> + '_ {
        let before = self.runs.range(..range.start).next_back();
        let before = before.filter(move |(_, run)| run.end > range.start);
        let within = self.runs.range(range.start..range.end.max(range.start));
        before
            .into_iter()
            .chain(within)
            .map(|(start, run)| (*start, *run))
    }

    /// The greatest value in a range.
    #[must_use]
    pub fn value(&self, range: Range) -> u64 {
        self.touching(range)
            .map(|(_, run)| run.value)
            .max()
            .unwrap_or(0)
    }

    /// Waits for a value of at least so much. `Ok(Some)`: it is there already; `Err` where as many waits as permitted are kept, of all or, as
    /// `is_same` counts them, of this origin.
    ///
    /// # Errors
    /// Gives `by` back.
    pub fn wait(
        &mut self,
        range: Range,
        at_least: u64,
        by: W,
        is_same: impl Fn(&W) -> bool,
    ) -> Result<Option<u64>, W> {
        let value = self.value(range);
        if value >= at_least {
            return Ok(Some(value));
        }
        let own = self
            .waiters
            .iter()
            .filter(|other| is_same(&other.by))
            .count();
        if own >= WAITERS_MAX || self.waiters.len() >= WAITERS_OF_ALL_MAX {
            return Err(by);
        }
        self.waiters.push(Waiter {
            range,
            at_least,
            by,
        });
        Ok(None)
    }

    /// Withdraws waits.
    pub fn forget(&mut self, is_it: impl Fn(&W) -> bool) {
        self.waiters.retain(|waiter| !is_it(&waiter.by));
    }

    /// How many waits there are.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }
}
