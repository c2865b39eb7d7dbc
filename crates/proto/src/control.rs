//! Control messages and their framing. The schema is `schema/control.proto`; a test of `bench/tidy` writes its Rust code and checks it.

use std::collections::BTreeSet;

use crate::rapid::monitor::Kind;
use prost::Message;
use ropewalk_model::{ByteRate, CHUNK_LEN, Nanos, Range, RangeSet, UNIT_LEN_MIN};

/// The generated messages.
#[allow(
    missing_docs,
    clippy::all,
    reason = "generated from the schema, which documents each field"
)]
#[rustfmt::skip]
mod generated;

pub use generated::*;

/// Longest control message a peer may announce (64 MiB: the plan of a receiver with a million runs).
/// Only authenticated peers are read at all.
pub const MESSAGE_MAX: usize = 64 << 20;

/// Bytes of the length that precedes each message.
pub const LENGTH_LEN: usize = 4;

/// Why a control message was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The announced length is above [`MESSAGE_MAX`].
    #[error("the peer announces a control message of {0} bytes, more than {MESSAGE_MAX}")]
    TooLong(usize),
    /// The bytes are not a message of this protocol.
    #[error("a control message cannot be read: {0}")]
    Malformed(#[from] prost::DecodeError),
    /// An option has a value that this version does not know.
    #[error("{option} {number} is not known to this version; is the other side newer?")]
    Option {
        /// Which.
        option: &'static str,
        /// Its number.
        number: i32,
    },
    /// The message has no body known to this version.
    #[error("a control message has no body that this version knows; is the other side newer?")]
    Empty,
}

impl Verify {
    /// All, from the least to the most.
    pub const ALL: [Self; 5] = [
        Self::None,
        Self::Fragment,
        Self::Tree,
        Self::Sink,
        Self::Replicas,
    ];

    /// As options and reports write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Fragment => "fragment",
            Self::Tree => "tree",
            Self::Sink => "sink",
            Self::Replicas => "replicas",
        }
    }
}

impl LaneKind {
    /// All.
    pub const ALL: [Self; 7] = [
        Self::Auto,
        Self::Tcp,
        Self::Unix,
        Self::Shm,
        Self::Mpi,
        Self::Rbudp,
        Self::Rapid,
    ];

    /// As options and reports write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Tcp => "tcp",
            Self::Unix => "unix",
            Self::Shm => "shm",
            Self::Mpi => "mpi",
            Self::Rbudp => "rbudp",
            Self::Rapid => "rapid",
        }
    }

    /// Whether data goes by datagrams.
    #[must_use]
    pub fn is_of_datagrams(self) -> bool {
        matches!(self, Self::Rbudp | Self::Rapid)
    }
}

impl Same {
    /// As options write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kept => "time",
            Self::Sent => "none",
            Self::Contents => "hash",
        }
    }

    /// Whether files that are the same stay, and journals are kept.
    #[must_use]
    pub fn keeps(self) -> bool {
        self != Self::Sent
    }
}

impl MonitorKind {
    /// As options write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Linux26 => "linux26",
            Self::Ule => "ule",
        }
    }

    /// The monitor.
    #[must_use]
    pub fn kind(self) -> Kind {
        match self {
            Self::Native => Kind::Native,
            Self::Linux26 => Kind::Linux26,
            Self::Ule => Kind::Ule,
        }
    }
}

impl Options {
    /// Refuses values that this version does not know: it must not check less, or move otherwise, than it was asked to.
    ///
    /// # Errors
    /// [`ControlError::Option`] names the first.
    pub fn check(&self) -> Result<(), ControlError> {
        for (option, number, is_known) in [
            ("verify", self.verify, Verify::try_from(self.verify).is_ok()),
            ("lane", self.lane, LaneKind::try_from(self.lane).is_ok()),
            (
                "monitor",
                self.monitor,
                MonitorKind::try_from(self.monitor).is_ok(),
            ),
            (
                "existing",
                self.existing,
                Existing::try_from(self.existing).is_ok(),
            ),
            ("same", self.same, Same::try_from(self.same).is_ok()),
        ] {
            if !is_known {
                return Err(ControlError::Option { option, number });
            }
        }
        Ok(())
    }
}

/// The rate of a [`Limit`] that lifts the one before.
pub const NO_LIMIT: u64 = 0;

/// A rate from a message, where 0 means [`NO_LIMIT`].
pub fn limit(bytes_per_second: u64) -> Option<ByteRate> {
    given(ByteRate(bytes_per_second))
}

/// A value from a message, where 0 means none.
pub fn given<T: Default + PartialEq>(value: T) -> Option<T> {
    (value != T::default()).then_some(value)
}

/// A time from a message, in nanoseconds, where 0 means none.
pub fn time(nanoseconds: u64) -> Option<Nanos> {
    given(Nanos(nanoseconds))
}

/// A time as messages carry it, in nanoseconds; 0 where there is none.
pub fn or_zero(time: Option<Nanos>) -> u64 {
    time.map_or(0, |time| time.0)
}

/// Length prefix and message, ready to be written.
pub fn encode<M: Message>(message: &M) -> Vec<u8> {
    let mut out = Vec::new();
    encode_into(&mut out, message);
    out
}

/// Adds length prefix and message to what is to be written.
pub fn encode_into<M: Message>(out: &mut Vec<u8>, message: &M) {
    let length = message.encoded_len();
    out.reserve_exact(LENGTH_LEN + length);
    out.extend_from_slice(&(length as u32).to_le_bytes());
    message.encode_raw(out);
}

/// Checks an announced length.
///
/// # Errors
/// [`ControlError::TooLong`].
pub fn decode_length(bytes: [u8; LENGTH_LEN]) -> Result<usize, ControlError> {
    let length = u32::from_le_bytes(bytes) as usize;
    if length > MESSAGE_MAX {
        Err(ControlError::TooLong(length))
    } else {
        Ok(length)
    }
}

/// Reads a message.
///
/// # Errors
/// [`ControlError::Malformed`].
pub fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, ControlError> {
    Ok(M::decode(bytes)?)
}

impl From<Range> for Stretch {
    fn from(range: Range) -> Self {
        Self {
            start: range.start,
            length: range.len(),
        }
    }
}

impl Plan {
    /// Length of a unit of integrity. Whatever the master says, no unit outgrows a buffer or is nothing.
    pub fn unit_len(&self) -> u64 {
        match self.unit {
            0 => CHUNK_LEN,
            length => length.clamp(UNIT_LEN_MIN, CHUNK_LEN),
        }
    }

    /// Peers that the node fetches from: those that are planned to send it something, and all that hand on.
    #[must_use]
    pub fn source_count(&self) -> usize {
        let planned = self.runs.iter().map(Run::source);
        let handing = self.peers.iter().filter(|peer| peer.relays);
        let all: BTreeSet<u32> = planned.chain(handing.map(|peer| peer.node)).collect();
        all.len()
    }

    /// Mean length of the files of all trees; `None` where there are not several.
    #[must_use]
    pub fn mean_file_bytes(&self) -> Option<u64> {
        let sum = |of: fn(&Part) -> u64| self.parts.iter().map(of).fold(0, u64::saturating_add);
        let files = sum(|part| part.file_count);
        (files > 1).then(|| sum(|part| part.length) / files)
    }
}

impl StreamStart {
    /// Its peers in order, divided so that each part makes a [`ToStage`] that has at most `most` bytes, length prefix included. A
    /// peer whose addresses are longer is a part of its own.
    #[must_use]
    pub fn parts(&self, most: usize) -> Vec<&[Peer]> {
        // The length prefix; the tag of the body and its length.
        const HEAD_LEN: usize = LENGTH_LEN + 1 + 5;
        let (mut parts, mut begin, mut sum) = (Vec::new(), 0, HEAD_LEN);
        for (at, peer) in self.peers.iter().enumerate() {
            let len = peer.encoded_len();
            let own = 1 + prost::length_delimiter_len(len) + len;
            if at > begin && sum + own > most {
                parts.push(&self.peers[begin..at]);
                (begin, sum) = (at, HEAD_LEN);
            }
            sum += own;
        }
        if begin < self.peers.len() {
            parts.push(&self.peers[begin..]);
        }
        parts
    }
}

impl Run {
    /// The node that is to send it: the receiver that hands it on, or the planned holder.
    #[must_use]
    pub fn source(&self) -> u32 {
        self.relay.unwrap_or(self.sender)
    }
}

/// The half-open range from a start and a length from the wire; clipped at 2^64.
pub fn range(start: u64, length: u64) -> Range {
    Range {
        start,
        end: start.saturating_add(length),
    }
}

/// A run for each of the ranges, with the senders of `run`.
pub(crate) fn parts_of(run: &Run, ranges: &RangeSet) -> Vec<Run> {
    let part = |range: Range| Run {
        start: range.start,
        length: range.len(),
        ..run.clone()
    };
    ranges.iter().map(part).collect()
}

/// A set from stretches from the wire.
pub fn range_set(stretches: &[Stretch]) -> RangeSet {
    RangeSet::from_ranges(stretches.iter().map(|s| range(s.start, s.length)))
}

/// Stretches of a set.
pub fn stretches(set: &RangeSet) -> Vec<Stretch> {
    set.iter().map(Stretch::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each peer counts once, whether it is planned to send something, hands on, or both; one that only holds the same does not.
    #[test]
    fn sources_of_a_plan_are_counted() {
        let run = |sender, relay| Run {
            sender,
            relay,
            spares: vec![9],
            ..Run::default()
        };
        let peer = |node, relays| Peer {
            node,
            relays,
            ..Peer::default()
        };
        let plan = Plan {
            runs: vec![run(0, None), run(0, Some(2)), run(1, Some(2))],
            peers: vec![peer(0, false), peer(2, true), peer(3, true), peer(9, false)],
            ..Plan::default()
        };
        assert_eq!(plan.source_count(), 3);
    }

    /// Several files have a mean length, one file and none have not, whatever the master says.
    #[test]
    fn files_have_a_mean_length() {
        let mean = |parts: &[(u64, u64)]| {
            let part = |&(length, file_count)| Part {
                length,
                file_count,
                ..Part::default()
            };
            let parts = parts.iter().map(part).collect();
            Plan {
                parts,
                ..Plan::default()
            }
            .mean_file_bytes()
        };
        assert_eq!(mean(&[]), None);
        assert_eq!(mean(&[(1000, 1)]), None);
        assert_eq!(mean(&[(1000, 0)]), None);
        assert_eq!(mean(&[(1000, 4)]), Some(250));
        assert_eq!(mean(&[(1000, 1), (500, 2)]), Some(500));
        assert_eq!(mean(&[(0, 7)]), Some(0));
        assert_eq!(mean(&[(u64::MAX, u64::MAX), (5, 5)]), Some(1));
    }

    /// Peers with few and many addresses: no part is above the limit unless it is one peer, and none could take the next peer.
    #[test]
    fn peers_are_divided_by_their_length() {
        const MOST: usize = 10_000;
        for lens in [
            &[][..],
            &[1],
            &[8000; 7],
            &[100; 300],
            &[9_978, 9_980, 9_981, 9_990, 1],
            &[20_000, 1, 1, 30_000, 30_000, 5000, 4000, 2000],
        ] {
            let peer = |(node, len): (usize, &usize)| Peer {
                node: node as u32,
                addresses: vec!["x".repeat(*len)],
                ..Peer::default()
            };
            let start = StreamStart {
                peers: lens.iter().enumerate().map(peer).collect(),
            };
            let len = |peers: &[Peer]| {
                let peers = peers.to_vec();
                let body = Some(to_stage::Body::Start(StreamStart { peers }));
                encode(&ToStage { body }).len()
            };
            let parts = start.parts(MOST);
            assert_eq!(parts.concat(), start.peers, "{lens:?}");
            for (at, part) in parts.iter().enumerate() {
                assert!(len(part) <= MOST || part.len() == 1, "{lens:?}, part {at}");
                if let Some(next) = parts.get(at + 1) {
                    // The length of the body is counted with its longest form.
                    let together = [part, &next[..1]].concat();
                    assert!(len(&together) > MOST - 5, "{lens:?}, part {at}");
                }
            }
        }
    }

    /// Values of a newer version are refused by name, not taken for the least.
    #[test]
    fn unknown_options_are_refused() {
        let mut options = Options::default();
        options.set_verify(Verify::Replicas);
        options.set_lane(LaneKind::Rapid);
        options.set_monitor(MonitorKind::Ule);
        options.set_existing(Existing::Kept);
        assert!(options.check().is_ok());
        type Change = fn(&mut Options);
        let changes: [(&str, Change); 4] = [
            ("verify", |options| options.verify = 5),
            ("lane", |options| options.lane = -1),
            ("monitor", |options| options.monitor = 3),
            ("existing", |options| options.existing = 3),
        ];
        for (name, change) in changes {
            let mut newer = options;
            change(&mut newer);
            let error = newer.check().unwrap_err();
            assert!(
                matches!(error, ControlError::Option { option, .. } if option == name),
                "{error}"
            );
        }
    }
}
