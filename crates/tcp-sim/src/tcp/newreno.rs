//! NewReno (RFC 2582): recovery lasts until everything is acknowledged that was sent when the loss was noticed; each
//! partial acknowledgement repairs one loss more and deflates the window by what it covers.

use super::Flavour;
use super::core::{Core, Reduced};

/// New packets that a duplicate may let out while recovering.
const BURST_MAX: usize = 2;

/// How the window grows outside of recovery, and what a loss leaves of it.
pub(super) trait Growth: std::fmt::Debug {
    /// New data was acknowledged.
    fn open(&mut self, core: &mut Core, now: f64);

    /// Sets the threshold after a loss; gives the window to go on with.
    fn reduce(&mut self, core: &mut Core) -> f64;

    /// The timer expired: gives the threshold of the slow start that follows.
    fn restart(&mut self, core: &mut Core) -> i64;
}

/// One packet a round trip, and half of the window.
#[derive(Debug)]
pub(super) struct Additive;

impl Growth for Additive {
    fn open(&mut self, core: &mut Core, _now: f64) {
        core.open();
    }

    fn reduce(&mut self, core: &mut Core) -> f64 {
        core.halve_threshold()
    }

    fn restart(&mut self, core: &mut Core) -> i64 {
        core.inflation = 0;
        core.halve_threshold();
        core.ssthresh
    }
}

/// NewReno's recovery around some way to grow.
#[derive(Debug)]
pub(super) struct NewReno<G> {
    growth: G,
    has_partial: bool,
}

impl<G> NewReno<G> {
    pub fn new(growth: G) -> Self {
        Self {
            growth,
            has_partial: false,
        }
    }
}

impl<G: Growth> NewReno<G> {
    // A loss of the same window: repair it, stay in recovery.
    fn partial(&mut self, core: &mut Core, ack: i64, now: f64) {
        let covered = ack - core.acked;
        if i64::from(core.inflation) > covered {
            core.inflation -= (covered - 1) as u32;
        } else {
            core.cwnd = (core.cwnd - (covered - i64::from(core.inflation)) as f64).max(1.0);
            // Not 0: that would look like the end of recovery.
            core.inflation = 1;
        }
        // Only the first one sets the timer (RFC 2582, Impatient variant): many losses end in a timeout, not in as many
        // round trips.
        if !std::mem::replace(&mut self.has_partial, true) {
            core.set_timer(now);
        }
        core.acked = ack;
        core.next = core.next.max(ack + 1);
        core.rto.acknowledged(ack);
        core.send(ack + 1, now);
    }
}

impl<G: Growth> Flavour for NewReno<G> {
    fn acknowledged(&mut self, core: &mut Core, ack: i64, now: f64) {
        if ack < core.recover && core.reduced == Reduced::ByDuplicates {
            self.partial(core, ack, now);
        } else {
            if core.inflation > 0 {
                core.inflation = 0;
                if core.reduced == Reduced::ByDuplicates {
                    core.reduced = Reduced::Recovered;
                }
            }
            self.has_partial = false;
            core.advance(ack, now);
            if ack == 0 {
                core.open_first();
            } else {
                self.growth.open(core, now);
            }
        }
        match core.duplicates {
            0 => core.send_window(now),
            _ => core.send_some(BURST_MAX, now),
        }
    }

    fn repeated(&mut self, core: &mut Core, now: f64) {
        if core.count_duplicate() {
            if core.is_news() {
                core.note_loss(Reduced::ByDuplicates, now);
                core.cwnd = self.growth.reduce(core).max(1.0);
                core.send(core.acked + 1, now);
                core.inflation = core.duplicate_acks;
            }
        } else if core.duplicates < core.duplicate_acks {
            core.send_beyond(now);
        } else if core.reduced == Reduced::ByDuplicates {
            core.inflation += 1;
        }
        if core.duplicates >= core.duplicate_acks {
            core.send_some(BURST_MAX, now);
        }
    }

    fn timed_out(&mut self, core: &mut Core, now: f64) {
        let threshold = self.growth.restart(core);
        self.has_partial = false;
        core.go_back(1.0, now);
        core.ssthresh = threshold;
    }
}
