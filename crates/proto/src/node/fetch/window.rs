//! How much is asked of a lane at once, and what.

use ropewalk_model::{Instant, Nanos, Range};

use super::{LaneId, Receiving, Take};

/// Bytes in transit are at most what the lane carries in this time, or in two round trips where
/// that is longer: windows are time, so that little is under way on a slow lane when the end comes.
const WINDOW_TIME: Nanos = Nanos::from_millis(200);

/// A lane may always have this many units in transit: the next one is asked for while one comes. Near the end it
/// is one: what waits on many lanes of a slow node is the tail of the transfer.
pub(super) const WINDOW_UNITS: u64 = 2;

/// And this many before its speed is known, at most [`WINDOW_UNMEASURED_MAX`] bytes.
const WINDOW_UNITS_UNMEASURED: u64 = 8;

/// Beyond this many streams of a lane each of them may always have so many units in transit: on a path that takes many
/// streams each is slow, and one that waits for the lane's window is none.
const STREAMS_PLAIN: u32 = 4;

/// A unit that takes this long on one of few streams may be on one that is dead: an idle one asks for it as well.
const DEAD_STREAM_AFTER: Nanos = Nanos(2_000_000_000);

/// Most bytes in transit on a lane of unknown speed: what waits behind a slow sender cannot be
/// taken back quickly.
pub(super) const WINDOW_UNMEASURED_MAX: u64 = 2 << 20;

/// Units handed out at once: bounds the time the lock is held and the size of one write of grants.
pub const UNITS_PER_TAKE_MAX: usize = 64;

impl Receiving {
    /// What to grant next on a stream of `lane` that has `outstanding` bytes granted and not received.
    ///
    /// Hands out nothing while the stream has more than half its share of the window, so that
    /// small units are granted in batches.
    pub fn take(
        &mut self,
        lane: LaneId,
        outstanding: u64,
        now: Instant,
        unit_at: &dyn Fn(u64) -> Range,
    ) -> Take {
        self.now = now;
        self.handle_timer(now);
        if !self.ledger.is_alive(lane) {
            return Take::Closed;
        }
        // The master may still bring more: a receiver of a shared destination inherits work.
        if self.finished {
            return Take::Wait(None);
        }
        let window = self.window(lane);
        let streams = self.streams_of(lane);
        let share = (window / u64::from(streams)).max(1);
        if outstanding > share / 2 {
            return Take::Wait(None);
        }
        if self.is_relayed(lane) {
            self.ask_ahead(lane, unit_at);
        }
        let mut units = Vec::new();
        let mut taken = 0;
        while units.len() < UNITS_PER_TAKE_MAX && (taken == 0 || outstanding + taken < share) {
            let is_idle = outstanding + taken == 0;
            let mut in_transit = self.ledger.in_transit_bytes(lane);
            if in_transit >= window && is_idle && (2..=STREAMS_PLAIN).contains(&streams) {
                // What a dead stream owes fills no window of the others.
                in_transit = self.ledger.timely_bytes(lane, DEAD_STREAM_AFTER, now);
            }
            if in_transit > 0 && in_transit >= window {
                break;
            }
            // Its own may come to an end in the middle.
            let free = !self.holds_back(lane, now);
            if let Some(until) = self.pace.wait_until(now) {
                if units.is_empty() {
                    return Take::Wait(Some(until));
                }
                break;
            }
            // Only for a stream that has nothing: it would double what it carries itself.
            let slow_after = match streams {
                0 | 1 => None,
                2..=STREAMS_PLAIN => Some(DEAD_STREAM_AFTER),
                _ => Some(Nanos(0)),
            };
            self.ledger.set_slow_streams(slow_after.filter(|_| is_idle));
            let Some(unit) = self.ledger.take(lane, free, now, unit_at) else {
                break;
            };
            taken += unit.range.len();
            self.pace.spend(unit.range.len());
            match unit.duplicate {
                true => self.copies.doubled(unit.range),
                false => self.sample(lane, unit.range),
            }
            units.push(unit);
        }
        if units.is_empty() {
            Take::Wait(None)
        } else {
            Take::Units(units)
        }
    }

    /// Most bytes the lane may have in transit now.
    pub fn window(&self, lane: LaneId) -> u64 {
        if let Some(window) = self.fixed_window {
            return window;
        }
        let window = match self.ledger.bytes_per_second(lane) {
            Some(rate) => {
                let trips = self.ledger.latency(lane).unwrap_or_default() * 2;
                let timed = rate * WINDOW_TIME.max(trips).0 as f64 / 1e9;
                let units = match self.is_near_end() {
                    true => 1,
                    false => WINDOW_UNITS,
                };
                (timed as u64).max(units * self.unit_len)
            }
            // What all holders send at once while it is found out who is fast may be the wrong bytes.
            None if self.spares.is_exploring() => WINDOW_UNITS * self.unit_len,
            None => (WINDOW_UNITS_UNMEASURED * self.unit_len).min(WINDOW_UNMEASURED_MAX),
        };
        // At the end, too: one that asked only when it had brought the last one would pause for a round trip each time.
        let streams = self.streams_of(lane);
        let units = match streams > STREAMS_PLAIN {
            true => WINDOW_UNITS,
            false => 0,
        };
        let for_streams = units * self.unit_len * u64::from(streams);
        window.min(self.prefetch).max(for_streams)
    }
}
