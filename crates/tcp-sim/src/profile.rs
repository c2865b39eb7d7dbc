//! What differs between generations of TCP models; all of it can be set one by one.

/// How the retransmission timeout follows from the estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RtoRule {
    /// The minimum holds for the timeout as it is set, back-off included.
    Older,
    /// RFC 2988: the minimum holds before back-off.
    Rfc2988,
}

impl RtoRule {
    /// The rule's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Older => "older",
            Self::Rfc2988 => "rfc2988",
        }
    }
}

/// Parameters of senders and receivers that are the same for all connections of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Packets sent when the SYN is acknowledged.
    pub initial_window: u32,
    /// First window of a connection whose SYN was lost (RFC 3390 section 1).
    pub initial_window_after_loss: u32,
    /// Least retransmission timeout.
    pub rto_min_seconds: f64,
    /// Greatest retransmission timeout.
    pub rto_max_seconds: f64,
    /// Round trips are measured in whole ticks of this.
    pub tick_seconds: f64,
    /// Timeout before the first sample, the SYN's.
    pub rto_initial_seconds: f64,
    /// Bytes added to each data packet.
    pub header_bytes: u32,
    /// Duplicate acknowledgements that mean a loss.
    pub duplicate_acks: u32,
    /// After a timeout everything is sent again from the first packet not acknowledged; else only what acknowledgements
    /// show to be missing, a packet a round trip.
    pub go_back_n: bool,
    /// Duplicate acknowledgements too few for a loss let a new packet out each (RFC 3042).
    pub limited_transmit: bool,
    /// Halving a window drops the fraction of a packet.
    pub whole_windows: bool,
    /// How the timeout is made.
    pub rto_rule: RtoRule,
    /// Longest wait of an acknowledgement for a second packet; `None`: none waits.
    pub delayed_ack_seconds: Option<f64>,
    /// Size of SYN and acknowledgements.
    pub ack_bytes: u32,
}

impl Profile {
    /// Names of the profiles, the default first.
    pub const NAMES: [&'static str; 3] = ["ns-2.1b8", "ns-2.1b8-iw1", "ns-2.35"];

    /// The profile of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let older = Self {
            initial_window: 2,
            initial_window_after_loss: 1,
            rto_min_seconds: 1.0,
            rto_max_seconds: 60.0,
            tick_seconds: 0.1,
            rto_initial_seconds: 6.0,
            header_bytes: 0,
            duplicate_acks: 3,
            go_back_n: true,
            limited_transmit: false,
            whole_windows: false,
            rto_rule: RtoRule::Older,
            delayed_ack_seconds: None,
            ack_bytes: 40,
        };
        match name {
            "ns-2.1b8" => Some(older),
            "ns-2.1b8-iw1" => Some(Self {
                initial_window: 1,
                rto_min_seconds: 0.0,
                ..older
            }),
            "ns-2.35" => Some(Self {
                rto_min_seconds: 0.2,
                tick_seconds: 0.01,
                rto_initial_seconds: 3.0,
                header_bytes: 40,
                limited_transmit: true,
                rto_rule: RtoRule::Rfc2988,
                ..older
            }),
            _ => None,
        }
    }
}

impl Default for Profile {
    /// The generation that the paper used.
    fn default() -> Self {
        Self::named(Self::NAMES[0]).expect("the first name is known")
    }
}
