//! Reno (RFC 2001): fast retransmit and fast recovery, which the first acknowledgement of new data ends.

use super::Flavour;
use super::core::{Core, Reduced};

/// Has no state of its own.
#[derive(Debug)]
pub(super) struct Reno;

impl Flavour for Reno {
    fn acknowledged(&mut self, core: &mut Core, ack: i64, now: f64) {
        if core.reduced == Reduced::ByDuplicates {
            core.reduced = Reduced::Recovered;
        }
        core.inflation = 0;
        core.advance_and_open(ack, now);
        core.send_window(now);
    }

    fn repeated(&mut self, core: &mut Core, now: f64) {
        if core.count_duplicate() {
            if core.is_news() || core.reduced == Reduced::ByDuplicates {
                core.cwnd = core.halve_threshold().max(1.0);
                core.note_loss(Reduced::ByDuplicates, now);
                core.send(core.acked + 1, now);
                core.inflation = core.duplicate_acks;
            }
        } else if core.duplicates < core.duplicate_acks {
            core.send_beyond(now);
        } else if core.reduced == Reduced::ByDuplicates {
            core.inflation += 1;
        }
        if core.duplicates >= core.duplicate_acks {
            core.send_window(now);
        }
    }

    fn timed_out(&mut self, core: &mut Core, now: f64) {
        core.go_back(1.0, now);
    }
}
