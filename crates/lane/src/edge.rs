//! The first bytes of an edge between two processes of a stream.
//!
//! ```text
//!   connecting process                          agent of the other
//!   preface: stream, both nodes, group, key ──▶ MAC right, this node, group waits for the other?
//!   proof right under what was asked?  ◀─────── key, proof
//!   proof of all that was sent         ───────▶ right: the connection is the process's
//! ```
//!
//! The proofs use the stream's secret, which the master sent both nodes over their control connections, and the secret of the two
//! X25519 keys: what was recorded is of no use, neither at another time nor with the stream's secret. The keys of
//! the records are derived from the same.

use std::time::Duration;

use crate::exchange::{EXCHANGE_LEN, Exchange, is_equal, transcript};
use crate::preface::{Kind, MacKey, PREFACE_LEN, Preface};
use crate::seal::{StreamKeys, derive, wipe};

/// Flag of a preface: records are sealed.
const SEALED: u8 = 1;

/// Bytes of a proof.
pub const PROOF_LEN: usize = 32;

/// Bytes of an answer.
pub const ANSWER_LEN: usize = EXCHANGE_LEN + PROOF_LEN;

/// Longest pause before what is lost on an edge over TCP is retransmitted, at both ends: above any round trip that blocks are sent over,
/// and several attempts before a peer gives the handshake up.
pub const RETRANSMIT_PAUSE_MAX: Duration = Duration::from_secs(2);

/// What the nodes of one stream know each other by.
#[derive(Clone)]
pub struct EdgeSecret([u8; 32]);

impl Drop for EdgeSecret {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

impl std::fmt::Debug for EdgeSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EdgeSecret(hidden)")
    }
}

/// Which edge a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Node of the connecting process, which sends blocks.
    pub from: u32,
    /// Node of the process that receives them.
    pub to: u32,
    /// Its group.
    pub group: u32,
    /// Whether records are sealed.
    pub is_sealed: bool,
}

/// A connecting process that waits for the answer.
#[derive(Debug)]
pub struct Asked {
    secret: EdgeSecret,
    exchange: Exchange,
    preface: [u8; PREFACE_LEN],
}

/// An agent that waits for the proof.
pub struct Answered {
    /// To be sent.
    pub bytes: [u8; ANSWER_LEN],
    proof: [u8; PROOF_LEN],
    keys: StreamKeys,
}

impl std::fmt::Debug for Answered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Answered(hidden)")
    }
}

struct Proofs {
    answer: [u8; PROOF_LEN],
    last: [u8; PROOF_LEN],
    keys: StreamKeys,
}

impl EdgeSecret {
    /// Of the stream's secret; `None` when that is not 32 bytes.
    #[must_use]
    pub fn new(secret: &[u8]) -> Option<Self> {
        Some(Self(secret.try_into().ok()?))
    }

    fn key(&self) -> MacKey {
        MacKey::new(&derive(&self.0, "ropewalk edge preface", &[]))
    }

    /// Asks for an edge of a stream, as the connecting process.
    #[must_use]
    pub fn ask(&self, stream: [u8; 16], edge: Edge) -> (Asked, [u8; PREFACE_LEN]) {
        let exchange = Exchange::new();
        let mut extra = [0; 16];
        extra[..4].copy_from_slice(&edge.from.to_le_bytes());
        extra[4..8].copy_from_slice(&edge.group.to_le_bytes());
        extra[8..12].copy_from_slice(&edge.to.to_le_bytes());
        let head = Preface {
            kind: Kind::Edge,
            flags: if edge.is_sealed { SEALED } else { 0 },
            key_id: [0; 16],
            transfer_id: stream,
            nonce: exchange.public(),
            extra,
        };
        let preface = head.encode(&self.key());
        let asked = Asked {
            secret: self.clone(),
            exchange,
            preface,
        };
        (asked, preface)
    }

    /// Which edge a preface asks for; `None` where it was not made with the stream's secret.
    #[must_use]
    pub fn read(&self, preface: &[u8; PREFACE_LEN]) -> Option<Edge> {
        let head = Preface::parse(preface).ok()?;
        let is_ours = head.kind == Kind::Edge && head.flags & !SEALED == 0;
        if !is_ours || !Preface::verify(preface, &self.key()) {
            return None;
        }
        let four = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| head.extra[at + i]));
        Some(Edge {
            from: four(0),
            group: four(4),
            to: four(8),
            is_sealed: head.flags & SEALED != 0,
        })
    }

    /// Answers a preface that was read; `None` when its key is none.
    #[must_use]
    pub fn answer(&self, preface: &[u8; PREFACE_LEN]) -> Option<Answered> {
        let exchange = Exchange::new();
        let peer = Preface::parse(preface).ok()?.nonce;
        let proofs = self.proofs(&exchange, &peer, preface, &exchange.public())?;
        let mut bytes = [0; ANSWER_LEN];
        bytes[..EXCHANGE_LEN].copy_from_slice(&exchange.public());
        bytes[EXCHANGE_LEN..].copy_from_slice(&proofs.answer);
        Some(Answered {
            bytes,
            proof: proofs.last,
            keys: proofs.keys,
        })
    }

    fn proofs(
        &self,
        own: &Exchange,
        peer: &[u8; EXCHANGE_LEN],
        preface: &[u8; PREFACE_LEN],
        answer: &[u8; EXCHANGE_LEN],
    ) -> Option<Proofs> {
        let mut agreed = own.agree(peer)?;
        let mut secret = [0; 64];
        secret[..32].copy_from_slice(&agreed);
        secret[32..].copy_from_slice(&self.0);
        let context = transcript(&[preface, answer]);
        let of = |label| derive(&secret, label, &context);
        let proofs = Proofs {
            answer: of("ropewalk edge answer"),
            last: of("ropewalk edge proof"),
            keys: StreamKeys {
                toward_receiver: of("ropewalk edge toward receiver"),
                toward_sender: of("ropewalk edge toward sender"),
            },
        };
        wipe(&mut agreed);
        wipe(&mut secret);
        Some(proofs)
    }
}

impl Asked {
    /// Verifies the answer; gives the proof to be sent and the keys. `None` when the other end does not have the stream's secret.
    #[must_use]
    pub fn verify(self, answer: &[u8; ANSWER_LEN]) -> Option<([u8; PROOF_LEN], StreamKeys)> {
        let (key, proof) = answer.split_at(EXCHANGE_LEN);
        let key: [u8; EXCHANGE_LEN] = key.try_into().ok()?;
        let proofs = self
            .secret
            .proofs(&self.exchange, &key, &self.preface, &key)?;
        is_equal(&proofs.answer, proof).then_some((proofs.last, proofs.keys))
    }
}

impl Answered {
    /// The keys of the records, when the proof is right.
    #[must_use]
    pub fn verify(self, proof: &[u8; PROOF_LEN]) -> Option<StreamKeys> {
        is_equal(&self.proof, proof).then_some(self.keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGE: Edge = Edge {
        from: 3,
        to: 5,
        group: 2,
        is_sealed: true,
    };

    /// Both ends that have the secret get the same keys; each other edge has others.
    #[test]
    fn ends_agree() {
        let secret = EdgeSecret::new(&[7; 32]).unwrap();
        let mut first = None;
        for _ in 0..2 {
            let (asked, preface) = secret.ask([1; 16], EDGE);
            assert_eq!(secret.read(&preface), Some(EDGE));
            let answered = secret.answer(&preface).unwrap();
            let (proof, keys) = asked.verify(&answered.bytes).unwrap();
            let other = answered.verify(&proof).unwrap();
            assert_eq!(keys.toward_receiver, other.toward_receiver);
            assert_eq!(keys.toward_sender, other.toward_sender);
            assert_ne!(keys.toward_sender, keys.toward_receiver);
            assert_ne!(first.replace(keys.toward_sender), Some(keys.toward_sender));
        }
    }

    /// Strangers, recorded prefaces and changed bytes get no edge.
    #[test]
    fn strangers_get_nothing() {
        let (secret, stranger) = (
            EdgeSecret::new(&[7; 32]).unwrap(),
            EdgeSecret::new(&[8; 32]).unwrap(),
        );
        assert!(EdgeSecret::new(&[7; 31]).is_none());
        let (asked, preface) = secret.ask([1; 16], EDGE);
        assert_eq!(stranger.read(&preface), None);
        assert!(
            asked
                .verify(&stranger.answer(&preface).unwrap().bytes)
                .is_none()
        );
        let (asked, preface) = secret.ask([1; 16], EDGE);
        let (first, second) = (
            secret.answer(&preface).unwrap(),
            secret.answer(&preface).unwrap(),
        );
        let (proof, _) = asked.verify(&first.bytes).unwrap();
        // The proof of one connection is none for another with the same preface.
        assert!(second.verify(&proof).is_none());
        for bit in [0, 71 * 8, 8 * ANSWER_LEN - 1] {
            let (asked, preface) = secret.ask([1; 16], EDGE);
            let mut answer = secret.answer(&preface).unwrap().bytes;
            answer[bit / 8 % ANSWER_LEN] ^= 1;
            assert!(asked.verify(&answer).is_none(), "bit {bit}");
        }
    }
}
