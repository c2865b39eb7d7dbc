//! CUBIC (RFC 9438): the window is a cubic function of the time since the last loss, flat around the window where
//! that loss occurred, and never less than an additive increase would give.

use super::core::Core;
use super::newreno::Growth;

/// Packets per second cubed (section 5).
const C: f64 = 0.4;
/// What a loss leaves (section 4.6).
const BETA: f64 = 0.7;

/// What the window has been.
#[derive(Debug, Default)]
pub(super) struct Cubic {
    // Window before the last loss, less where it had not reached the one before (fast convergence, section 4.7).
    max: f64,
    // Since when it grows; none after a loss or in slow start.
    epoch: Option<Epoch>,
    before_loss: f64,
}

#[derive(Debug)]
struct Epoch {
    began: f64,
    // Seconds to the flat part, and the window there.
    k: f64,
    origin: f64,
    // What additive increase would have reached.
    reno: f64,
}

impl Cubic {
    fn after_loss(&mut self, core: &mut Core) -> i64 {
        let window = core.window_exact();
        self.max = if window < self.max {
            window * f64::midpoint(1.0, BETA)
        } else {
            window
        };
        self.before_loss = window;
        self.epoch = None;
        core.ssthresh = ((window * BETA) as i64).max(2);
        core.ssthresh
    }
}

impl Growth for Cubic {
    fn open(&mut self, core: &mut Core, now: f64) {
        if core.cwnd >= f64::from(core.limit) {
            // Not limited by the network: growing would only store up a burst (section 5.8).
            return;
        }
        if core.cwnd < core.ssthresh as f64 {
            core.cwnd += 1.0;
            return;
        }
        let max = self.max;
        let epoch = self.epoch.get_or_insert_with(|| Epoch {
            began: now,
            k: ((max - core.cwnd).max(0.0) / C).cbrt(),
            origin: max.max(core.cwnd),
            reno: core.cwnd,
        });
        let cubic = |t: f64| epoch.origin + C * (t - epoch.k).powi(3);
        let since = now - epoch.began;
        let target = cubic(since + core.round_trip).clamp(core.cwnd, 1.5 * core.cwnd);
        let alpha = if epoch.reno < self.before_loss {
            3.0 * (1.0 - BETA) / (1.0 + BETA)
        } else {
            1.0
        };
        let reno = epoch.reno + alpha / core.cwnd;
        core.cwnd = if cubic(since) < reno {
            reno.max(core.cwnd)
        } else {
            core.cwnd + (target - core.cwnd) / core.cwnd
        };
        epoch.reno = reno;
    }

    fn reduce(&mut self, core: &mut Core) -> f64 {
        self.after_loss(core) as f64
    }

    fn restart(&mut self, core: &mut Core) -> i64 {
        core.inflation = 0;
        self.after_loss(core)
    }
}
