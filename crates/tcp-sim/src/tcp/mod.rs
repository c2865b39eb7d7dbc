//! TCP senders: what all share, and one file for each congestion control.
//!
//! Packets are whole and numbered, the SYN is packet 0, there is no FIN. A sender's input is an
//! acknowledgement or an expired timer; its output is a list of packets to send and the timer it wants.

mod core;
mod cubic;
mod newreno;
mod reno;
mod tahoe;
mod vegas;

pub(crate) use core::Core;

use super::profile::Profile;

/// Which congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlavourName {
    /// Fast retransmit, then slow start.
    Tahoe,
    /// Fast recovery, ended by the first new acknowledgement.
    Reno,
    /// Fast recovery that repairs all losses of a window.
    NewReno,
    /// Windows that follow the queueing delay.
    Vegas,
    /// NewReno's recovery with a window that is a cubic function of time (RFC 9438).
    Cubic,
}

impl FlavourName {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Tahoe,
        Self::Reno,
        Self::NewReno,
        Self::Vegas,
        Self::Cubic,
    ];

    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tahoe => "tahoe",
            Self::Reno => "reno",
            Self::NewReno => "newreno",
            Self::Vegas => "vegas",
            Self::Cubic => "cubic",
        }
    }

    /// The flavour of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|flavour| flavour.name() == name)
    }
}

/// How a sender answers; `Core` does the bookkeeping.
pub(crate) trait Flavour: std::fmt::Debug {
    /// New data is acknowledged.
    fn acknowledged(&mut self, core: &mut Core, ack: i64, now: f64);

    /// The same acknowledgement came once more.
    fn repeated(&mut self, core: &mut Core, now: f64);

    /// The retransmission timer expired.
    fn timed_out(&mut self, core: &mut Core, now: f64);

    /// These packets were sent.
    fn sent(&mut self, _packets: &[i64], _now: f64) {}
}

/// One sending end.
#[derive(Debug)]
pub(crate) struct Sender {
    pub core: Core,
    flavour: Box<dyn Flavour>,
}

impl Sender {
    /// A sender of `packets` data packets, numbered from 1; the SYN is 0. `phase` is its clock's.
    pub fn new(
        flavour: FlavourName,
        profile: &Profile,
        packets: u32,
        window: u32,
        ssthresh: u32,
        phase: f64,
    ) -> Self {
        Self {
            core: Core::new(profile, packets, window, ssthresh, phase),
            flavour: match flavour {
                FlavourName::Tahoe => Box::new(tahoe::Tahoe),
                FlavourName::Reno => Box::new(reno::Reno),
                FlavourName::NewReno => Box::new(newreno::NewReno::new(newreno::Additive)),
                FlavourName::Vegas => Box::new(vegas::Vegas::new(window.min(packets + 1))),
                FlavourName::Cubic => Box::new(newreno::NewReno::new(cubic::Cubic::default())),
            },
        }
    }

    /// Sends the SYN.
    pub fn start(&mut self, now: f64) {
        self.core.send_window(now);
        self.flavour.sent(&self.core.outbox, now);
    }

    /// Takes an acknowledgement of everything up to `ack`.
    pub fn handle_ack(&mut self, ack: i64, now: f64) {
        if ack > self.core.acked {
            self.flavour.acknowledged(&mut self.core, ack, now);
        } else if ack == self.core.acked {
            self.flavour.repeated(&mut self.core, now);
        }
        // Older ones say nothing.
        self.flavour.sent(&self.core.outbox, now);
    }

    /// The timer that was asked for has expired.
    pub fn handle_timeout(&mut self, now: f64) {
        self.core.timer = None;
        if self.core.acked == self.core.sent_max {
            // Nothing is outstanding: an idle connection begins again with one packet.
            self.core.idle_timeout(now);
        } else {
            self.flavour.timed_out(&mut self.core, now);
        }
        self.flavour.sent(&self.core.outbox, now);
    }
}
