//! Rates from received bytes, as means over a window: right from the first status on, and not above what a limit allows.
//!
//! Bytes are noted when a status reports them, so a mean runs from one status to another: between them it is unknown how
//! many were received.

use std::collections::VecDeque;

use ropewalk_model::{Instant, Nanos};

/// Rates that people see are means over so long, once so much time has passed.
pub const WINDOW_TIME: Nanos = Nanos(2_000_000_000);

/// What was received within so long is a best second.
pub const SECOND_TIME: Nanos = Nanos(1_000_000_000);

/// Notes closer together count as one: what one node sends is the sum of what several receivers report one after the other, and a
/// window that began among their reports would hold more of them than it is long. A window holds a dozen of notes at most.
const APART_TIME: Nanos = Nanos(180_000_000);

/// A node that has not spoken for so long gets nothing: agents speak twice a second.
const QUIET_TIME: Nanos = Nanos(1_200_000_000);

/// What was received in all at some time.
#[derive(Clone, Copy, Debug)]
struct Note {
    // When the first of the reports was received that count as one, and the last.
    since: Instant,
    at: Instant,
    total: u64,
}

/// What came to one node, or from it, of late.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrivals {
    // The oldest first; the first one is not younger than the window, if there is such a one.
    notes: VecDeque<Note>,
}

impl Arrivals {
    /// Nothing was received; from now on something may be.
    pub fn start(&mut self, now: Instant) {
        self.notes.clear();
        self.notes.push_back(Note {
            since: now,
            at: now,
            total: 0,
        });
    }

    /// So many bytes were received in all. Ignored before the start.
    pub fn note(&mut self, total: u64, now: Instant) {
        // The start stays as it is.
        let is_first = self.notes.len() < 2;
        let Some(last) = self.notes.back_mut() else {
            return;
        };
        let mut note = Note {
            since: now,
            at: now,
            total: total.max(last.total),
        };
        match !is_first && now.since(last.since) < APART_TIME {
            true => {
                note.since = last.since;
                *last = note;
            }
            false => self.notes.push_back(note),
        }
        let is_old = |note: &Note| now.since(note.at) >= WINDOW_TIME;
        while self.notes.get(1).is_some_and(is_old) {
            self.notes.pop_front();
        }
    }

    /// Bytes in all.
    pub fn total(&self) -> u64 {
        self.notes.back().map_or(0, |note| note.total)
    }

    /// Bytes per second over the window that ends now; of one that is `done` until now, of another until it last spoke.
    pub fn rate(&self, window: Nanos, is_done: bool, now: Instant) -> f64 {
        let Some(last) = self.notes.back() else {
            return 0.0;
        };
        let is_quiet = is_done || now.since(last.at) > QUIET_TIME;
        let end_at = if is_quiet { now } else { last.at };
        let is_within = |note: &&Note| end_at.since(note.at) >= window;
        let oldest = self.notes.iter().rev().find(is_within);
        let Some(first) = oldest.or(self.notes.front()) else {
            return 0.0;
        };
        match end_at.since(first.at) {
            Nanos::ZERO => 0.0,
            passed => (last.total - first.total) as f64 * 1e9 / passed.0 as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A steady stream has its rate from the first note on, whenever it is told of.
    #[test]
    fn a_steady_rate_is_right_at_once() {
        let mut arrivals = Arrivals::default();
        arrivals.note(99, Instant::ZERO);
        assert_eq!(
            arrivals.rate(WINDOW_TIME, false, Instant::ZERO),
            0.0,
            "not started"
        );
        arrivals.start(Instant(1000 * MS));
        for at in [
            130, 500, 620, 1000, 1017, 1500, 2000, 2500, 3100, 3600, 9000,
        ] {
            arrivals.note(at * 1000, Instant((1000 + at) * MS));
            let rate = arrivals.rate(WINDOW_TIME, false, Instant((1000 + at + 90) * MS));
            assert!((rate - 1e6).abs() < 1.0, "{at} ms: {rate}");
        }
        assert!(arrivals.notes.len() < 14);
    }

    /// What one node sends to four receivers that report one after the other has the rate that it has, at whichever report.
    #[test]
    fn reports_of_several_receivers_are_one() {
        let mut arrivals = Arrivals::default();
        arrivals.start(Instant::ZERO);
        let mut total = 0;
        for half in 1..40u64 {
            for receiver in 0..4u64 {
                total += 500;
                // Timers are late now and then.
                let late = half % 3 * 5 + receiver * 10;
                let now = Instant((half * 500 + late) * MS);
                arrivals.note(total, now);
                if half > 4 && receiver == 3 {
                    let rate = arrivals.rate(WINDOW_TIME, false, now);
                    assert!((rate - 4000.0).abs() < 30.0, "{half}: {rate}");
                }
            }
        }
    }

    /// What comes in bursts is shown as its mean, what stopped fades away, and the best second is one.
    #[test]
    fn bursts_are_means_and_silence_fades() {
        let mut arrivals = Arrivals::default();
        arrivals.start(Instant::ZERO);
        for half in 1..=20 {
            arrivals.note(half / 2 * 1000, Instant(half * 500 * MS));
        }
        assert_eq!(
            arrivals.rate(WINDOW_TIME, false, Instant(10_000 * MS)),
            1000.0
        );
        let quiet = arrivals.rate(WINDOW_TIME, false, Instant(11_500 * MS));
        assert!(quiet < 600.0, "{quiet}");
        assert_eq!(arrivals.rate(WINDOW_TIME, true, Instant(14_000 * MS)), 0.0);
        arrivals.note(19_000, Instant(11_000 * MS));
        assert_eq!(
            arrivals.rate(SECOND_TIME, false, Instant(11_000 * MS)),
            9000.0
        );
        assert_eq!(
            arrivals.rate(WINDOW_TIME, false, Instant(11_000 * MS)),
            5000.0
        );
    }
}
