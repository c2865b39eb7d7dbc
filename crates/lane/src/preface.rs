//! The first 128 bytes of every connection, sent by the side that connects.
//!
//! Nothing else is read from a peer before its preface is verified under the agent's token or the
//! transfer's secret. A replayed preface buys one TLS attempt, or a stream whose keys the
//! replayer does not hold, and nothing more.
//!
//! ```text
//!   0       4       6     7      8        24            40      72      88        96    128
//!   +-------+-------+-----+------+--------+-------------+-------+-------+---------+-----+
//!   | RPWK  |version| kind| flags| key id | transfer id | nonce | extra | 0 ... 0 | MAC |
//!   +-------+-------+-----+------+--------+-------------+-------+-------+---------+-----+
//! ```

use aws_lc_rs::{digest, hmac, rand};

/// Bytes of a preface.
pub const PREFACE_LEN: usize = 128;
/// Version of preface and frames this build speaks.
pub const VERSION: u16 = 2;
const MAGIC: [u8; 4] = *b"RPWK";
const MAC_AT: usize = PREFACE_LEN - 32;

/// What the connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A master's control connection.
    Control = 1,
    /// The TLS handshake of a pair of nodes.
    Pair = 2,
    /// A data stream of an existing pair.
    Join = 3,
    /// A link of a message socket, from either side; see the `message` crate.
    Message = 4,
    /// A sender's connection to a receiver that cannot connect to it, and the answer: the receiver goes on as if it had
    /// connected.
    Reversed = 5,
    /// An edge between two processes of a stream; see [`edge`](crate::edge).
    Edge = 6,
    /// A rank of `mpirun` that becomes a process of a stream; see [`mpi::join`](crate::mpi::join).
    Rank = 7,
    /// A command's connection to a standing master, under [`master_secret`](crate::control::master_secret).
    Master = 8,
    /// Made to measure the round trip between two nodes of a transfer, then closed.
    Trip = 9,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preface {
    /// What the connection is for.
    pub kind: Kind,
    /// Meaning depends on `kind`; unknown bits are to be refused by the reader.
    pub flags: u8,
    /// Which key made the MAC; see [`key_id`].
    pub key_id: [u8; 16],
    /// The transfer; zero for control.
    pub transfer_id: [u8; 16],
    /// Fresh chance; keys of a joined stream are derived from it.
    pub nonce: [u8; 32],
    /// Depends on `kind`, such as node and stream index.
    pub extra: [u8; 16],
}

/// Why 128 bytes are no preface. The connection is to be closed without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PrefaceError {
    /// The bytes are of another protocol.
    #[error("the connection does not speak Ropewalk")]
    Magic,
    /// The peer speaks another version.
    #[error("the peer speaks version {0}, this side {VERSION}; install the same Ropewalk on both")]
    Version(u16),
    /// The kind of connection is unknown.
    #[error("the peer asks for unknown connection kind {0}")]
    Kind(u8),
}

/// Key of the MAC.
pub struct MacKey(hmac::Key);

impl MacKey {
    /// The key for prefaces under a token or a transfer's secret.
    #[must_use]
    pub fn new(secret: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }
}

impl std::fmt::Debug for MacKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MacKey(hidden)")
    }
}

impl Preface {
    /// The 128 bytes, with the MAC under `key`.
    #[must_use]
    pub fn encode(&self, key: &MacKey) -> [u8; PREFACE_LEN] {
        let mut out = [0; PREFACE_LEN];
        out[..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&VERSION.to_le_bytes());
        out[6] = self.kind as u8;
        out[7] = self.flags;
        out[8..24].copy_from_slice(&self.key_id);
        out[24..40].copy_from_slice(&self.transfer_id);
        out[40..72].copy_from_slice(&self.nonce);
        out[72..88].copy_from_slice(&self.extra);
        let mac = hmac::sign(&key.0, &out[..MAC_AT]);
        out[MAC_AT..].copy_from_slice(mac.as_ref());
        out
    }

    /// Reads the fields. Nothing is authentic before [`Preface::verify`] says so.
    ///
    /// # Errors
    /// [`PrefaceError`] when magic, version or kind is not ours.
    pub fn parse(bytes: &[u8; PREFACE_LEN]) -> Result<Self, PrefaceError> {
        if bytes[..4] != MAGIC {
            return Err(PrefaceError::Magic);
        }
        let version = u16::from_le_bytes([bytes[4], bytes[5]]);
        if version != VERSION {
            return Err(PrefaceError::Version(version));
        }
        let kind = match bytes[6] {
            1 => Kind::Control,
            2 => Kind::Pair,
            3 => Kind::Join,
            4 => Kind::Message,
            5 => Kind::Reversed,
            6 => Kind::Edge,
            7 => Kind::Rank,
            8 => Kind::Master,
            9 => Kind::Trip,
            other => return Err(PrefaceError::Kind(other)),
        };
        Ok(Self {
            kind,
            flags: bytes[7],
            key_id: cut(bytes, 8),
            transfer_id: cut(bytes, 24),
            nonce: cut(bytes, 40),
            extra: cut(bytes, 72),
        })
    }

    /// Whether the MAC was made under `key`. Takes the same time either way.
    #[must_use]
    pub fn verify(bytes: &[u8; PREFACE_LEN], key: &MacKey) -> bool {
        hmac::verify(&key.0, &bytes[..MAC_AT], &bytes[MAC_AT..]).is_ok()
    }
}

fn cut<const N: usize>(bytes: &[u8; PREFACE_LEN], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// [`Preface::flags`] of kind [`Kind::Reversed`]: the master connects and passes on what a sender and a receiver say.
pub const CARRIED: u8 = 1;

/// The public name of a token: the first 16 bytes of its SHA-256.
#[must_use]
pub fn key_id(token: &[u8]) -> [u8; 16] {
    let hash = digest::digest(&digest::SHA256, token);
    let mut out = [0; 16];
    out.copy_from_slice(&hash.as_ref()[..16]);
    out
}

/// `N` unpredictable bytes.
///
/// # Panics
/// When the operating system has no random numbers, in which case nothing can be kept secret.
#[must_use]
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut out = [0; N];
    rand::fill(&mut out).expect("the operating system gives random numbers");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Preface {
        Preface {
            kind: Kind::Join,
            flags: 1,
            key_id: key_id(b"token"),
            transfer_id: [2; 16],
            nonce: random_bytes(),
            extra: [9; 16],
        }
    }

    /// What was encoded reads back and verifies under its key only.
    #[test]
    fn round_trip_under_the_right_key() {
        let key = MacKey::new(b"token");
        let bytes = sample_bytes(&key);
        assert!(Preface::verify(&bytes.1, &key));
        assert!(!Preface::verify(&bytes.1, &MacKey::new(b"other")));
        assert_eq!(Preface::parse(&bytes.1), Ok(bytes.0));
    }

    fn sample_bytes(key: &MacKey) -> (Preface, [u8; PREFACE_LEN]) {
        let preface = sample();
        (preface, preface.encode(key))
    }

    /// Each single bit counts: no changed preface verifies.
    #[test]
    fn every_bit_is_covered() {
        let key = MacKey::new(b"token");
        let (_, bytes) = sample_bytes(&key);
        for bit in 0..PREFACE_LEN * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!Preface::verify(&changed, &key), "bit {bit} is not covered");
        }
    }

    /// Bytes of other protocols are told apart from other versions.
    #[test]
    fn strangers_are_named() {
        let (_, mut bytes) = sample_bytes(&MacKey::new(b"token"));
        assert_eq!(
            Preface::parse(&[b'G'; PREFACE_LEN]),
            Err(PrefaceError::Magic)
        );
        bytes[6] = 0;
        assert_eq!(Preface::parse(&bytes), Err(PrefaceError::Kind(0)));
        bytes[4] = 9;
        assert_eq!(Preface::parse(&bytes), Err(PrefaceError::Version(9)));
    }
}
