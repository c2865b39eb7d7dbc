//! Vegas (Brakmo and Peterson 1995): compares the rate it sees with the rate an empty path would give, once a round
//! trip, and keeps one to three packets in the queue; looks at send times of single packets to notice losses early.

use super::Flavour;
use super::core::{Core, Reduced};

/// Packets in the queue: fewer, and the window grows; more, and it shrinks.
const ALPHA: i64 = 1;
const BETA: i64 = 3;
/// Packets in the queue that end slow start.
const GAMMA: i64 = 1;
/// Window after a timeout.
const RESTART_WINDOW: f64 = 2.0;
/// Acknowledgements after a loss that are looked at for a further one.
const WATCHED: i64 = 2;

/// When a packet was sent last, and how often since it became outstanding.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    at: f64,
    times: u32,
}

/// Its state; times are seconds since the SYN was sent.
#[derive(Debug)]
pub(super) struct Vegas {
    started: Option<f64>,
    has_sample: bool,
    base: f64,
    // Fine-grained estimate: eight and four times mean and deviation, and the timeout they give.
    mean8: f64,
    deviation4: f64,
    timeout: f64,
    // Of the round trip under way: where and when it began, samples and their sum.
    round_end: i64,
    round_began: f64,
    samples: u32,
    sum: f64,
    // What each acknowledgement adds.
    increment: f64,
    // Slow start grows every other round trip.
    grows_now: bool,
    // Window without the inflation of recovery; when it was last reduced.
    reduced_window: f64,
    reduced_at: f64,
    watched: i64,
    // By number modulo length.
    sent: Vec<Sent>,
}

impl Vegas {
    /// For windows of at most `window` packets.
    pub fn new(window: u32) -> Self {
        Self {
            started: None,
            has_sample: false,
            base: f64::INFINITY,
            mean8: 0.0,
            deviation4: 0.0,
            timeout: f64::INFINITY,
            round_end: 0,
            round_began: 0.0,
            samples: 0,
            sum: 0.0,
            increment: 0.0,
            grows_now: true,
            reduced_window: 0.0,
            reduced_at: 0.0,
            watched: 0,
            sent: vec![Sent::default(); window.max(1) as usize],
        }
    }

    fn elapsed(&self, now: f64) -> f64 {
        now - self.started.unwrap_or(now)
    }

    fn slot(&self, seq: i64) -> usize {
        seq.max(0) as usize % self.sent.len()
    }

    // The first outstanding packet, when its own timeout is over.
    fn expired(&self, core: &Core, now: f64) -> Option<i64> {
        let first = core.acked + 1;
        let waits = self.elapsed(now) - self.sent[self.slot(first)].at;
        (first <= core.sent_max && waits >= self.timeout).then_some(first)
    }

    // Once a round trip: how many packets wait in queues, and what follows from it.
    fn plan(&mut self, core: &mut Core, now: f64) {
        let round_trip = match self.samples {
            0 => self.elapsed(now) - self.round_began,
            samples => self.sum / f64::from(samples),
        };
        self.sum = 0.0;
        self.samples = 0;
        let sent = core.next - self.round_end;
        if round_trip > 0.0 {
            if round_trip < self.base || sent <= 1 {
                self.base = round_trip;
            }
            let actual = sent as f64 / round_trip;
            let expected = (core.next - core.acked) as f64 / self.base;
            let queued = ((expected - actual) * self.base + 0.5) as i64;
            self.adjust(core, queued);
        }
        self.round_end = core.next;
        self.round_began = self.elapsed(now);
    }

    fn adjust(&mut self, core: &mut Core, queued: i64) {
        self.increment = 0.0;
        if core.cwnd < core.ssthresh as f64 {
            self.grows_now = !self.grows_now;
            if self.grows_now && queued > GAMMA {
                core.ssthresh = 2;
                core.cwnd = (core.cwnd - core.cwnd / 8.0).max(2.0);
            } else if self.grows_now {
                self.increment = 1.0;
            }
        } else if queued > BETA {
            core.cwnd = (core.cwnd - 1.0).max(2.0);
        } else if queued < ALPHA {
            self.increment = 1.0 / core.cwnd;
        }
    }

    fn sample(&mut self, round_trip: f64) {
        self.sum += round_trip;
        self.samples += 1;
        if round_trip > 0.0 {
            self.base = self.base.min(round_trip);
            let error = round_trip - self.mean8 / 8.0;
            self.mean8 += error;
            self.deviation4 += error.abs() - self.deviation4 / 4.0;
            self.timeout = (self.mean8 / 4.0 + self.deviation4) / 2.0 * (17.0 / 16.0);
        }
    }

    // Reduces the window, unless it was since the lost packet was sent.
    fn reduce(&mut self, core: &mut Core, lost: Sent, now: f64) {
        if self.reduced_at >= lost.at {
            return;
        }
        let window = core.window();
        let kept = match window {
            ..=3 => 2,
            _ if lost.times > 1 => window / 2,
            _ => window - window / 4,
        };
        self.reduced_window = kept as f64;
        core.cwnd = self.reduced_window + f64::from(core.duplicates);
        self.reduced_at = self.elapsed(now);
    }
}

impl Flavour for Vegas {
    fn acknowledged(&mut self, core: &mut Core, ack: i64, now: f64) {
        if ack == 0 {
            // The SYN is smaller than what is timed from now on: where packets take long to send, its round trip would be
            // one that no data packet reaches.
            core.advance_and_open(ack, now);
            self.round_end = core.next;
            self.round_began = self.elapsed(now);
            core.send_window(now);
            return;
        }
        let elapsed = self.elapsed(now);
        let newest = self.sent[self.slot(ack)];
        if !self.has_sample {
            self.has_sample = true;
            self.base = elapsed - newest.at;
            self.mean8 = self.base * 8.0;
            self.deviation4 = self.base;
            self.timeout = (self.mean8 / 4.0 + self.deviation4) / 2.0;
        }
        if core.duplicates > core.duplicate_acks && core.cwnd > self.reduced_window {
            core.cwnd = self.reduced_window;
            core.ssthresh = 2;
        }
        let before = core.acked;
        core.advance(ack, now);
        if ack >= self.round_end {
            self.plan(core, now);
        }
        if core.cwnd >= core.ssthresh as f64 && self.increment >= 1.0 {
            self.increment = 0.0;
        }
        // A window that is not used does not grow.
        if self.increment > 0.0 && core.cwnd - (core.next - core.acked) as f64 <= 2.0 {
            core.cwnd += self.increment;
        }
        for seq in before + 1..=ack {
            let slot = self.slot(seq);
            self.sent[slot] = Sent::default();
        }
        if newest.times == 1 {
            self.sample(elapsed - newest.at);
        }
        if self.watched > 0 {
            self.watched -= 1;
            match self.expired(core, now) {
                Some(seq) => {
                    core.duplicates = core.duplicate_acks;
                    core.send(seq, now);
                }
                None => self.watched = 0,
            }
        }
        if core.duplicates == 0 || core.duplicates >= core.duplicate_acks {
            core.send_window(now);
        }
    }

    fn repeated(&mut self, core: &mut Core, now: f64) {
        core.duplicates += 1;
        let expired = self.expired(core, now);
        if expired.is_some() || core.duplicates == core.duplicate_acks {
            if core.acked > core.recover || core.reduced != Reduced::ByTimeout {
                let first = core.acked + 1;
                let lost = self.sent[self.slot(first)];
                self.watched = WATCHED.min(core.next - core.acked);
                self.timeout *= if lost.times > 1 { 2.0 } else { 1.125 };
                self.reduce(core, lost, now);
                core.rto.back_off();
                core.note_loss(Reduced::ByDuplicates, now);
                core.send(first, now);
                if lost.times == 1 {
                    core.duplicates = core.duplicate_acks;
                }
            }
        } else if core.duplicates > core.duplicate_acks {
            core.cwnd += 1.0;
        }
        if core.duplicates >= core.duplicate_acks {
            core.send_window(now);
        }
    }

    fn timed_out(&mut self, core: &mut Core, now: f64) {
        // A SYN goes alone.
        let window = if core.acked < 0 { 1.0 } else { RESTART_WINDOW };
        core.go_back(window, now);
        self.reduced_window = 0.0;
        self.reduced_at = self.elapsed(now);
    }

    fn sent(&mut self, packets: &[i64], now: f64) {
        let started = *self.started.get_or_insert(now);
        for &seq in packets {
            let slot = self.slot(seq);
            self.sent[slot].at = now - started;
            self.sent[slot].times += 1;
        }
    }
}
