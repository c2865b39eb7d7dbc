//! What guards datagrams: AES-128-GCM with the sequence number as nonce, or a checksum on plain lanes.
//!
//! Unlike the records of a stream, datagrams are lost and reordered: the nonce is in the header, and the receiver keeps the keys of
//! the generation before and after. A replayed datagram opens, and then has no place: its bytes are there already.

use ropewalk_proto::rapid::DATAGRAM_HEADER_LEN;
use ropewalk_proto::wire::{CHECKSUM_LEN, TAG_LEN};

use crate::checksum::Sum;
use crate::cipher::{Cipher, NONCE_LEN};
use crate::seal::{cipher, derive, wipe};
use crate::{Check, Protection};

/// Datagrams under one key, half of QUIC's limit for AES-GCM (2^23, RFC 9001 section 6.6).
const PER_KEY: u64 = 1 << 22;

/// One direction's secrets: generation `g` gives its key and the secret of the next.
struct Chain {
    secret: [u8; 32],
}

impl Chain {
    fn advance(&mut self) -> Cipher {
        let key = cipher(&self.secret, "ropewalk datagram key");
        let mut next = derive(&self.secret, "ropewalk next datagram secret", &[]);
        std::mem::swap(&mut self.secret, &mut next);
        wipe(&mut next);
        key
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        wipe(&mut self.secret);
    }
}

fn nonce(sequence: u64) -> [u8; NONCE_LEN] {
    let mut bytes = [0; NONCE_LEN];
    bytes[4..].copy_from_slice(&sequence.to_be_bytes());
    bytes
}

/// Which direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Data and probes.
    TowardReceiver,
    /// Feedback.
    TowardSender,
}

fn chain(protection: &Protection, direction: Direction) -> Option<Chain> {
    let Protection::Sealed(keys) = protection else {
        return None;
    };
    // Not the secrets of the stream beside: those number records from 0, too.
    let secret = match direction {
        Direction::TowardReceiver => derive(&keys.toward_receiver, "ropewalk datagrams", &[]),
        Direction::TowardSender => derive(&keys.toward_sender, "ropewalk datagrams", &[]),
    };
    Some(Chain { secret })
}

/// Bytes after the payload.
#[must_use]
pub fn trailer_len(protection: &Protection) -> usize {
    match protection {
        Protection::Plain(_) => CHECKSUM_LEN,
        Protection::Sealed(_) => TAG_LEN,
    }
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_LEN] {
    let mut sum = Sum::new(Check::Fragment);
    sum.update(bytes);
    sum.trailer().to_le_bytes()
}

/// Protects what one end sends.
pub struct Sealer {
    keys: Option<(Chain, Cipher)>,
    next: u64,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sealer({})", self.next)
    }
}

impl Sealer {
    /// From the first datagram on.
    #[must_use]
    pub fn new(protection: &Protection, direction: Direction) -> Self {
        let keys = chain(protection, direction).map(|mut chain| {
            let key = chain.advance();
            (chain, key)
        });
        Self { keys, next: 0 }
    }

    /// The number of the next datagram.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.next
    }

    /// Finishes a datagram: header with [`Sealer::next_sequence`], payload, space for the trailer.
    ///
    /// # Panics
    /// When it is shorter than header and trailer.
    pub fn seal(&mut self, datagram: &mut [u8]) {
        let sequence = self.next;
        self.next += 1;
        match &mut self.keys {
            None => {
                let (front, trailer) = datagram.split_at_mut(datagram.len() - CHECKSUM_LEN);
                trailer.copy_from_slice(&checksum(front));
            }
            Some((chain, key)) => {
                if sequence > 0 && sequence.is_multiple_of(PER_KEY) {
                    *key = chain.advance();
                }
                let (front, trailer) = datagram.split_at_mut(datagram.len() - TAG_LEN);
                let (head, body) = front.split_at_mut(DATAGRAM_HEADER_LEN);
                trailer.copy_from_slice(&key.seal(nonce(sequence), head, body));
            }
        }
    }
}

struct Keys {
    chain: Chain,
    generation: u64,
    before: Option<Cipher>,
    now: Cipher,
    after: Cipher,
}

/// Checks what the other end sent.
pub struct Opener {
    keys: Option<Box<Keys>>,
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Opener(hidden)")
    }
}

impl Opener {
    /// From the first datagram on.
    #[must_use]
    pub fn new(protection: &Protection, direction: Direction) -> Self {
        let keys = chain(protection, direction).map(|mut chain| {
            let now = chain.advance();
            let after = chain.advance();
            Box::new(Keys {
                chain,
                generation: 0,
                before: None,
                now,
                after,
            })
        });
        Self { keys }
    }

    /// Checks a whole datagram and puts its payload into `out`, which is as long. Says whether it is authentic; `out` holds nothing of use
    /// otherwise.
    pub fn open(&mut self, sequence: u64, datagram: &[u8], out: &mut [u8]) -> bool {
        let Some(keys) = &mut self.keys else {
            let (front, trailer) = datagram.split_at(datagram.len() - CHECKSUM_LEN);
            let intact = trailer == checksum(front);
            if intact {
                out.copy_from_slice(&front[DATAGRAM_HEADER_LEN..]);
            }
            return intact;
        };
        let generation = sequence / PER_KEY;
        let ahead = generation == keys.generation + 1;
        let key = if generation == keys.generation {
            &keys.now
        } else if ahead {
            &keys.after
        } else if generation + 1 == keys.generation {
            match &keys.before {
                Some(key) => key,
                None => return false,
            }
        } else {
            return false;
        };
        let (head, rest) = datagram.split_at(DATAGRAM_HEADER_LEN);
        let (sealed, tag) = rest.split_at(rest.len() - TAG_LEN);
        let opened = key
            .open_into(nonce(sequence), head, sealed, tag, out)
            .is_ok();
        if opened && ahead {
            keys.generation = generation;
            let after = keys.chain.advance();
            let now = std::mem::replace(&mut keys.after, after);
            keys.before = Some(std::mem::replace(&mut keys.now, now));
        }
        opened
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seal::{PairSecret, stream_keys};

    fn sealed() -> Protection {
        Protection::Sealed(stream_keys(&PairSecret([3; 32]), [4; 32]))
    }

    fn datagram(sealer: &mut Sealer, trailer: usize) -> (u64, Vec<u8>) {
        let sequence = sealer.next_sequence();
        let mut bytes = vec![9; DATAGRAM_HEADER_LEN];
        bytes.extend_from_slice(b"payload of it");
        bytes.resize(bytes.len() + trailer, 0);
        sealer.seal(&mut bytes);
        (sequence, bytes)
    }

    /// What was sealed opens, out of order and across a change of keys; two changes back it does not.
    #[test]
    fn keys_change_and_order_does_not_matter() {
        let mut sealer = Sealer::new(&sealed(), Direction::TowardReceiver);
        let mut opener = Opener::new(&sealed(), Direction::TowardReceiver);
        let mut out = [0; 13];
        let (oldest, first) = datagram(&mut sealer, 16);
        sealer.next = PER_KEY - 1;
        let (early, last_of_key) = datagram(&mut sealer, 16);
        let (late, first_of_key) = datagram(&mut sealer, 16);
        assert!(opener.open(late, &first_of_key, &mut out));
        assert_eq!(&out, b"payload of it");
        assert!(opener.open(early, &last_of_key, &mut out), "the key before");
        assert!(opener.open(oldest, &first, &mut out));
        sealer.next = 2 * PER_KEY;
        let (later, bytes) = datagram(&mut sealer, 16);
        assert!(opener.open(later, &bytes, &mut out));
        assert!(!opener.open(oldest, &first, &mut out), "that key is gone");
    }

    /// No changed bit passes, in header, payload or trailer, sealed or plain; nor does another number or direction.
    #[test]
    fn every_bit_is_covered() {
        for (protection, trailer) in [(sealed(), 16), (Protection::Plain(Check::Fragment), 8)] {
            let mut sealer = Sealer::new(&protection, Direction::TowardReceiver);
            let mut opener = Opener::new(&protection, Direction::TowardReceiver);
            let (sequence, good) = datagram(&mut sealer, trailer);
            let mut out = [0; 13];
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(!opener.open(sequence, &bad, &mut out), "bit {bit}");
            }
            assert!(opener.open(sequence, &good, &mut out));
            if trailer == 16 {
                assert!(!opener.open(sequence + 1, &good, &mut out));
                let mut other = Opener::new(&protection, Direction::TowardSender);
                assert!(!other.open(sequence, &good, &mut out));
            }
        }
    }
}
