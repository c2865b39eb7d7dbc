//! The formula of the paper's section 5.3, extended and corrected.

use super::{Policy, PolicyName};
use crate::Situation;
use crate::formula::pftk;

/// Windows smaller than this many segments lose more to timeouts than they carry: three duplicates must be able to come
/// back, and half of the window with them.
const WINDOW_MIN: f64 = 6.0;

/// A window that was halved should be what it was after this time; it grows by one segment a round trip.
const RECOVERY_SECONDS: f64 = 0.5;

/// Least retransmission timeout of Linux.
const RTO_SECONDS_MIN: f64 = 0.2;

/// Streams that average out: with one, every loss is the whole transfer's.
const TOTAL_MIN: f64 = 8.0;

/// The formula RTT × bandwidth / window counts full windows. Corrections: what a stream carries at the observed loss
/// (PFTK); how long halved windows leave a path idle whose queue is shorter than the path; and at the other end, windows
/// so small that losses become timeouts, which is the collapse of the paper's Figures 7, 11 and 13.
#[derive(Clone, Copy, Debug, Default)]
pub struct Model;

impl Policy for Model {
    fn name(&self) -> PolicyName {
        PolicyName::Model
    }

    fn best(&mut self, situation: &Situation) -> Option<f64> {
        let rtt = situation.rtt_seconds;
        let segments = situation.rate / situation.segment_bytes;
        let rto = RTO_SECONDS_MIN.max(2.0 * rtt);
        let each = pftk(situation.loss.max(1e-9), rtt, rto, 1.0, situation.window);
        let fill = segments / each;
        let pipe = situation.pipe();
        // Part of the path that is idle when all windows are halved at once.
        let idle = (1.0 - situation.queue / pipe).clamp(0.0, 1.0);
        let recover = idle * pipe / 2.0 * rtt / RECOVERY_SECONDS;
        let most = ((pipe + situation.queue) / WINDOW_MIN).max(1.0);
        Some(fill.max(recover).max(TOTAL_MIN).min(most))
    }
}
