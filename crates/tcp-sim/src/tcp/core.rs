//! What all senders share: sequence numbers, window, timer, counters.

use super::super::profile::Profile;
use super::super::rto::Rto;

/// What last made the window smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduced {
    Never,
    ByDuplicates,
    /// By duplicates, and new data was acknowledged since.
    Recovered,
    ByTimeout,
}

/// State of a sender that does not depend on its congestion control.
#[derive(Debug)]
pub(crate) struct Core {
    /// Congestion window in packets; it may grow beyond the limit.
    pub cwnd: f64,
    /// Above it the window grows by one packet a round trip.
    pub ssthresh: i64,
    /// Greatest window.
    pub limit: u32,
    /// Packets that left the network for duplicates while recovering: the window is that much larger.
    pub inflation: u32,
    /// Highest packet acknowledged with all before it; the SYN is 0.
    pub acked: i64,
    /// Next packet to send; falls back when the timer expires.
    pub next: i64,
    /// Highest packet sent.
    pub sent_max: i64,
    /// Last packet there is.
    pub last: i64,
    /// Acknowledgements that repeated the last one.
    pub duplicates: u32,
    /// Highest packet sent when the last loss was noticed: losses below it are not news.
    pub recover: i64,
    pub reduced: Reduced,
    pub rto: Rto,
    /// Last measured round trip, not in ticks.
    pub round_trip: f64,
    /// When the retransmission timer expires.
    pub timer: Option<f64>,
    /// The timer was set or stopped since the caller looked.
    pub is_timer_new: bool,
    /// Packets to send, in order; the caller takes them.
    pub outbox: Vec<i64>,
    /// Duplicates that mean a loss.
    pub duplicate_acks: u32,
    initial_window: u32,
    initial_window_after_loss: u32,
    go_back_n: bool,
    limited_transmit: bool,
    whole_windows: bool,
    pub sent: u64,
    pub retransmitted: u64,
    pub timeouts: u64,
    // A packet in transit that was sent once, and when; -1: none.
    timed: (i64, f64),
}

impl Core {
    pub fn new(profile: &Profile, packets: u32, limit: u32, ssthresh: u32, phase: f64) -> Self {
        Self {
            cwnd: 1.0,
            ssthresh: i64::from(ssthresh),
            limit,
            inflation: 0,
            acked: -1,
            next: 0,
            sent_max: -1,
            last: i64::from(packets),
            duplicates: 0,
            recover: 0,
            reduced: Reduced::Never,
            rto: Rto::new(profile, phase),
            round_trip: 0.0,
            timer: None,
            is_timer_new: false,
            outbox: Vec::new(),
            duplicate_acks: profile.duplicate_acks,
            initial_window: profile.initial_window,
            initial_window_after_loss: profile.initial_window_after_loss,
            go_back_n: profile.go_back_n,
            limited_transmit: profile.limited_transmit,
            whole_windows: profile.whole_windows,
            sent: 0,
            retransmitted: 0,
            timeouts: 0,
            timed: (-1, 0.0),
        }
    }

    /// Whether everything is acknowledged.
    pub fn is_done(&self) -> bool {
        self.acked >= self.last
    }

    /// Packets that may be outstanding.
    pub fn window(&self) -> i64 {
        (self.cwnd as i64 + i64::from(self.inflation)).min(i64::from(self.limit))
    }

    /// The same with its fraction.
    pub fn window_exact(&self) -> f64 {
        (self.cwnd + f64::from(self.inflation)).min(f64::from(self.limit))
    }

    /// Sends what the window allows.
    pub fn send_window(&mut self, now: f64) {
        self.send_some(usize::MAX, now);
    }

    /// Sends what the window allows, at most `most` packets.
    pub fn send_some(&mut self, most: usize, now: f64) {
        let until = (self.acked + self.window()).min(self.last);
        for _ in 0..most {
            if self.next > until {
                break;
            }
            self.send(self.next, now);
            self.next += 1;
        }
    }

    /// A duplicate too few for a loss: one packet more than the window, if limited transmit is on.
    pub fn send_beyond(&mut self, now: f64) {
        let beyond = self.acked as f64 + self.cwnd + f64::from(self.duplicates);
        if self.limited_transmit
            && self.next <= self.acked + i64::from(self.limit)
            && self.next <= self.last
            && self.next as f64 <= beyond
        {
            self.send(self.next, now);
            self.next += 1;
        }
    }

    /// Sends one packet. The timer runs while anything is outstanding.
    pub fn send(&mut self, seq: i64, now: f64) {
        let is_first_outstanding = self.acked == self.sent_max;
        self.sent += 1;
        self.outbox.push(seq);
        if seq > self.sent_max {
            self.sent_max = seq;
            self.rto.sent(seq, now);
            if self.acked >= self.timed.0 {
                self.timed = (seq, now);
            }
        } else {
            self.retransmitted += 1;
            if seq <= self.timed.0 {
                // Sent twice, so its round trip says nothing: none until a newer packet is timed.
                self.timed.0 = -1;
            }
        }
        if self.timer.is_none() || is_first_outstanding {
            self.set_timer(now);
        }
    }

    pub fn set_timer(&mut self, now: f64) {
        self.timer = Some(now + self.rto.seconds());
        self.is_timer_new = true;
    }

    /// Notes that everything up to `ack` has arrived: round trip, timer, numbers. The window is left alone.
    pub fn advance(&mut self, ack: i64, now: f64) {
        if self.timed.0 >= 0 && ack >= self.timed.0 {
            self.round_trip = now - self.timed.1;
            self.timed.0 = -1;
        }
        self.duplicates = 0;
        self.acked = ack;
        self.next = self.next.max(ack + 1);
        if self.rto.acknowledged(ack) {
            self.rto.sample(now);
        }
        self.set_timer(now);
        if !self.go_back_n && self.reduced == Reduced::ByTimeout && ack < self.recover {
            self.send(ack + 1, now);
        }
    }

    /// New data outside of recovery: numbers, then the window. The SYN's acknowledgement opens the initial window.
    pub fn advance_and_open(&mut self, ack: i64, now: f64) {
        self.advance(ack, now);
        if ack == 0 {
            self.open_first();
        } else {
            self.open();
        }
    }

    /// The initial window, smaller when the SYN was lost (RFC 3390).
    pub fn open_first(&mut self) {
        let packets = if self.timeouts > 0 {
            self.initial_window.min(self.initial_window_after_loss)
        } else {
            self.initial_window
        };
        self.cwnd = f64::from(packets);
    }

    /// Slow start, or additive increase.
    pub fn open(&mut self) {
        if self.cwnd < self.ssthresh as f64 {
            self.cwnd += 1.0;
        } else {
            self.cwnd += 1.0 / self.cwnd;
        }
    }

    /// Half of the window in use is the new threshold, at least 2.
    pub fn halve_threshold(&mut self) -> f64 {
        let half = match self.whole_windows {
            true => (self.window() / 2) as f64,
            false => self.window_exact() / 2.0,
        };
        self.ssthresh = (half as i64).max(2);
        half
    }

    /// Whether duplicates are news: not of a loss that was dealt with already, as after a timeout, when packets that
    /// had arrived are sent again. The first data packet's loss always is.
    pub fn is_news(&self) -> bool {
        self.acked > self.recover || self.acked == 0
    }

    /// Counts a duplicate; true for the one that means a loss.
    pub fn count_duplicate(&mut self) -> bool {
        self.duplicates += 1;
        self.duplicates == self.duplicate_acks
    }

    /// A loss was noticed and dealt with by `how`; what is under way now will not be timed.
    pub fn note_loss(&mut self, how: Reduced, now: f64) {
        self.recover = self.sent_max;
        self.reduced = how;
        self.set_timer(now);
        self.rto.stop_timing();
    }

    /// The timer expired: the first packet not acknowledged is sent again, and what follows it where the profile goes back
    /// N, with a window of `window`.
    pub fn go_back(&mut self, window: f64, now: f64) {
        self.inflation = 0;
        self.duplicates = 0;
        self.timeouts += 1;
        self.halve_threshold();
        self.cwnd = window;
        self.rto.back_off();
        self.note_loss(Reduced::ByTimeout, now);
        self.timed.0 = -1;
        if self.go_back_n {
            self.next = self.acked + 1;
            self.send_window(now);
        } else {
            self.send(self.acked + 1, now);
        }
    }

    /// The timer expired with nothing outstanding.
    pub fn idle_timeout(&mut self, now: f64) {
        self.inflation = 0;
        self.duplicates = 0;
        self.cwnd = 1.0;
        if !self.is_done() {
            self.note_loss(Reduced::ByTimeout, now);
            self.next = self.acked + 1;
            self.send_window(now);
        }
    }
}
