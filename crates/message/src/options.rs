//! How a message socket works.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

pub use ropewalk_proto::message::cutoff::Method;

use crate::MessageError;

/// How messages use the rails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The best rail carries everything.
    Single,
    /// One equal part of every message for each rail (MuniSocket section 2.1); for comparison.
    Basic,
    /// One rail below the cut-off, above it small fragments that rails pull (sections 3 and 4).
    #[default]
    Enhanced,
}

/// The origin of the cut-off of [`Mode::Enhanced`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutOff {
    /// Measured by the connecting end at the start, unless it is [remembered](Options::cut_offs), then refined by both
    /// while messages flow.
    Measured(Method),
    /// Messages of this many bytes and more take all rails.
    Fixed(u64),
}

/// Options of a socket or a listener.
#[derive(Clone, Debug)]
pub struct Options {
    /// A secret of both ends, proved by both at the start of every connection. Records are sealed then, unless `plain`.
    pub token: Option<[u8; 32]>,
    /// Data may cross a network in the clear, for trusted networks; with a token both ends still prove it. A
    /// listener that has this set takes sealed connections, too; one that has not takes no others where it has a token.
    pub plain: bool,
    /// Local addresses of the rails: rail i is bound to the i-th, from the start again where there are fewer than
    /// peer addresses. Empty: the system chooses. Only for [`connect`](crate::MessageSocket::connect).
    pub local: Vec<IpAddr>,
    /// How messages use the rails.
    pub mode: Mode,
    /// The origin of the cut-off.
    pub cut_off: CutOff,
    /// File in which the connecting end remembers cut-offs, so that the next socket between the same hosts and rails need
    /// not measure; made with its folder where it is missing. `None`, as by default, writes and uses none: a
    /// library keeps nothing on disk that was not asked for. What was not confirmed for 7 days is measured again, and so is
    /// what was found over other rails, addresses, ports or protection.
    /// [`find_cut_off`](crate::MessageSocket::find_cut_off) measures in any case. See [`remember_cut_off`](crate::MessageSocket::remember_cut_off).
    pub cut_offs: Option<PathBuf>,
    /// Whether frames are checked with CRC-64 on the way; sealed ones always are, by the cipher. The connecting end
    /// decides for both.
    pub check: bool,
    /// Bytes of messages that are kept until the application receives them, at least 64 KiB; the sender waits beyond.
    pub window: u64,
    /// How long no rail may work before the peer counts as lost. A rail on which a peer says nothing for as long, 3 s at
    /// least, does not work, though its kernel may still answer.
    pub peer_timeout: Duration,
    /// Longest time that a call may take; `None` for no limit but `peer_timeout`.
    pub deadline: Option<Duration>,
}

/// Least window: a fragment and some small messages.
const WINDOW_MIN: u64 = 64 << 10;

/// Window unless set: a long message of the usual measurements needs no credit from a receiver that is late.
const WINDOW: u64 = 16 << 20;

/// Time without a rail unless set. Longer than three attempts to connect again.
const PEER_TIMEOUT: Duration = Duration::from_secs(10);

impl Default for Options {
    /// For this host only: enhanced, checked, the cut-off by search. Both ways agree where rails differ little from straight
    /// lines; the search needs no such curve.
    fn default() -> Self {
        Self {
            token: None,
            plain: false,
            local: Vec::new(),
            mode: Mode::Enhanced,
            cut_off: CutOff::Measured(Method::Search),
            cut_offs: None,
            check: true,
            window: WINDOW,
            peer_timeout: PEER_TIMEOUT,
            deadline: None,
        }
    }
}

impl Options {
    /// Whether records are sealed.
    pub(crate) fn is_sealed(&self) -> bool {
        self.token.is_some() && !self.plain
    }

    /// Refuses what cannot be meant or would be unsafe.
    pub(crate) fn verify(&self, addresses: &[SocketAddr]) -> Result<(), MessageError> {
        if addresses.is_empty() {
            return Err(MessageError::Misuse("no address was given".to_owned()));
        }
        if self.window < WINDOW_MIN {
            return Err(MessageError::Misuse(format!(
                "a window of {} bytes is less than the {WINDOW_MIN} that are needed",
                self.window
            )));
        }
        match addresses.iter().find(|address| !address.ip().is_loopback()) {
            Some(&address) if !self.plain && !self.is_sealed() => {
                Err(MessageError::NotSealed { address })
            }
            _ => Ok(()),
        }
    }
}
