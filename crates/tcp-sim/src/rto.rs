//! Retransmission timeout: smoothed round trip and its variation in fixed point, in whole ticks (Jacobson 1988), with
//! one packet timed at a time and none that was sent twice (Karn).

use super::profile::{Profile, RtoRule};

/// Binary digits behind the point of the smoothed round trip, and of its variation: gains 1/8 and 1/4.
const ROUND_TRIP_BITS: u32 = 3;
const VARIATION_BITS: u32 = 2;

/// Back-off above which the old round trip is no longer believed.
const BACKOFF_DOUBTED: u64 = 8;

/// Back-off at which the older rule stops doubling.
const BACKOFF_OLDER_MAX: u64 = 64;

/// A timer's clock may be off by a tick on either side of what it measures.
const TICKS_MIN: f64 = 2.0;

/// The estimate of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Rto {
    tick: f64,
    min: f64,
    max: f64,
    rule: RtoRule,
    /// Phase of this host's clock.
    phase: f64,
    // Ticks << ROUND_TRIP_BITS; 0 while there is no sample.
    round_trip: i64,
    // Ticks << VARIATION_BITS.
    variation: i64,
    base_seconds: f64,
    backoff: u64,
    is_timing: bool,
    timed_seq: i64,
    timed_at: f64,
}

impl Rto {
    pub fn new(profile: &Profile, phase: f64) -> Self {
        Self {
            tick: profile.tick_seconds,
            min: profile.rto_min_seconds,
            max: profile.rto_max_seconds,
            rule: profile.rto_rule,
            phase,
            round_trip: 0,
            // Twelve seconds, the classic start; it counts only where the first samples are lost to back-off.
            variation: ((12.0 / profile.tick_seconds) as i64) << VARIATION_BITS,
            base_seconds: profile.rto_initial_seconds,
            backoff: 1,
            is_timing: false,
            timed_seq: -1,
            timed_at: 0.0,
        }
    }

    /// What the timer is set to.
    pub fn seconds(&self) -> f64 {
        let backoff = self.backoff as f64;
        let timeout = match self.rule {
            RtoRule::Rfc2988 if self.base_seconds < self.min => self.min * backoff,
            RtoRule::Rfc2988 => self.base_seconds * backoff,
            RtoRule::Older => (self.base_seconds * backoff).max(self.min),
        };
        timeout.min(self.max).max(TICKS_MIN * self.tick)
    }

    /// A new packet goes out: time it, unless another one is being timed.
    pub fn sent(&mut self, seq: i64, now: f64) {
        if !self.is_timing {
            self.is_timing = true;
            if seq > self.timed_seq {
                self.timed_seq = seq;
                self.timed_at = now;
            }
        }
    }

    /// Packets may have been lost: what is being timed may be sent twice.
    pub fn stop_timing(&mut self) {
        self.is_timing = false;
    }

    /// New data is acknowledged. When the timed packet is among it, the timer is no longer backed off; that is said.
    pub fn acknowledged(&mut self, ack: i64) -> bool {
        let is_timed = self.is_timing && ack >= self.timed_seq;
        if is_timed {
            self.backoff = 1;
            self.is_timing = false;
        }
        is_timed
    }

    /// Takes the timed packet's round trip as a sample.
    pub fn sample(&mut self, now: f64) {
        let measured = now - self.timed_at;
        // The round trip as a clock sees it that ticks at its own phase.
        let sent = now - measured + self.phase;
        let since_tick = sent % self.tick;
        let ticks = (((measured + since_tick) / self.tick) as i64).max(1);
        if self.round_trip == 0 {
            self.round_trip = ticks << ROUND_TRIP_BITS;
            self.variation = ticks << (VARIATION_BITS - 1);
        } else {
            let error = ticks - (self.round_trip >> ROUND_TRIP_BITS);
            self.round_trip = (self.round_trip + error).max(1);
            let error = error.abs() - (self.variation >> VARIATION_BITS);
            self.variation = (self.variation + error).max(1);
        }
        // Four variations: the fixed points differ by one digit.
        let four = self.variation << (2 + ROUND_TRIP_BITS - VARIATION_BITS);
        self.base_seconds = ((four + self.round_trip) >> ROUND_TRIP_BITS) as f64 * self.tick;
    }

    /// Doubles the timeout.
    pub fn back_off(&mut self) {
        let doubles = match self.rule {
            RtoRule::Older => self.backoff < BACKOFF_OLDER_MAX,
            RtoRule::Rfc2988 => self.backoff < BACKOFF_OLDER_MAX || self.seconds() < self.max,
        };
        if doubles {
            self.backoff *= 2;
        }
        if self.backoff > BACKOFF_DOUBTED {
            self.variation += self.round_trip >> ROUND_TRIP_BITS;
            self.round_trip = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rto(name: &str) -> Rto {
        Rto::new(&Profile::named(name).unwrap(), 0.0)
    }

    /// A SYN's timeouts: 6, 12, 24, 48 s, and 60 s from then on; 3 s at first in the newer profile.
    #[test]
    fn syn_back_off() {
        let mut timer = rto("ns-2.1b8");
        let mut seen = Vec::new();
        for _ in 0..6 {
            seen.push(timer.seconds());
            timer.back_off();
        }
        assert_eq!(seen, [6.0, 12.0, 24.0, 48.0, 60.0, 60.0]);
        assert_eq!(rto("ns-2.35").seconds(), 3.0);
    }

    fn sample(timer: &mut Rto, seq: i64, sent: f64, acknowledged: f64) {
        timer.sent(seq, sent);
        assert!(timer.acknowledged(seq));
        timer.sample(acknowledged);
    }

    /// The first sample sets timeout = 3 round trips, the next ones smooth: 25 ticks of 10 ms, then by hand.
    #[test]
    fn samples_in_ticks() {
        let mut timer = rto("ns-2.35");
        sample(&mut timer, 0, 0.0, 0.255);
        // srtt 25 ticks, rttvar 12.5: 25 + 4 x 12.5 = 75 ticks.
        assert!((timer.seconds() - 0.75).abs() < 1e-9, "{}", timer.seconds());
        // Error 10: srtt (200 + 10) / 8 = 26.25; rttvar (50 + (10 - 12)) / 4 = 12: 26 + 48 = 74.
        sample(&mut timer, 1, 1.003, 1.358);
        assert!((timer.seconds() - 0.74).abs() < 1e-9, "{}", timer.seconds());
    }

    /// The minimum: below back-off in RFC 2988, above it in the older rule; never below two ticks.
    #[test]
    fn minimum() {
        let mut newer = rto("ns-2.35");
        let mut older = rto("ns-2.1b8");
        let mut none = rto("ns-2.1b8-iw1");
        for timer in [&mut newer, &mut older, &mut none] {
            sample(timer, 0, 0.0, 0.004);
        }
        assert_eq!(newer.seconds(), 0.2);
        assert_eq!(older.seconds(), 1.0);
        // One tick, and twice that: 3 ticks.
        assert!((none.seconds() - 0.3).abs() < 1e-9);
        newer.back_off();
        older.back_off();
        assert_eq!(newer.seconds(), 0.4);
        assert_eq!(older.seconds(), 1.0);
    }

    /// A packet that may have been sent twice is not timed, and back-off stays until one is.
    #[test]
    fn karn() {
        let mut timer = rto("ns-2.1b8");
        timer.sent(4, 1.0);
        timer.back_off();
        timer.stop_timing();
        assert!(!timer.acknowledged(4));
        assert_eq!(timer.seconds(), 12.0);
        timer.sent(5, 3.0);
        assert!(timer.acknowledged(5));
    }
}
