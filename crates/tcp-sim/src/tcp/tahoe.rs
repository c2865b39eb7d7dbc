//! Tahoe (Jacobson 1988): a loss, however noticed, means slow start from one packet.

use super::Flavour;
use super::core::{Core, Reduced};

/// Has no state of its own.
#[derive(Debug)]
pub(super) struct Tahoe;

impl Flavour for Tahoe {
    fn acknowledged(&mut self, core: &mut Core, ack: i64, now: f64) {
        core.advance_and_open(ack, now);
        core.send_window(now);
    }

    fn repeated(&mut self, core: &mut Core, now: f64) {
        if core.count_duplicate() {
            if core.is_news() {
                core.halve_threshold();
                core.cwnd = 1.0;
                core.note_loss(Reduced::ByDuplicates, now);
                core.next = core.acked + 1;
            }
        } else if core.duplicates < core.duplicate_acks {
            core.send_beyond(now);
        }
        core.send_window(now);
    }

    fn timed_out(&mut self, core: &mut Core, now: f64) {
        let duplicates = core.duplicates;
        core.go_back(1.0, now);
        // Only fast recovery forgets them.
        core.duplicates = duplicates;
    }
}
