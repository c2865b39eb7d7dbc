//! Stretches of zeros: they have no contents that would have to be sent.

use std::sync::OnceLock;

use crate::digest::{HASH_LEN, digest};
use crate::layout::CHUNK_LEN;

/// As many zeros as the longest unit has bytes.
pub static ZEROS: [u8; CHUNK_LEN as usize] = [0; CHUNK_LEN as usize];

/// Bytes that are looked at before it is decided whether to go on: one cache line, then a page at a time.
const HEAD_LEN: usize = 64;
const PAGE_LEN: usize = 4096;

/// Whether all bytes are zero. Of other data rarely more than the first bytes are looked at.
#[must_use]
pub fn are_zeros(bytes: &[u8]) -> bool {
    let (head, rest) = bytes.split_at(bytes.len().min(HEAD_LEN));
    let is_zero = |part: &[u8]| part.iter().fold(0, |all, byte| all | byte) == 0;
    is_zero(head) && rest.chunks(PAGE_LEN).all(is_zero)
}

/// [`digest`] of so many zeros, at most [`CHUNK_LEN`]. That of a whole chunk is computed once.
#[must_use]
pub fn digest_of_zeros(len: usize) -> [u8; HASH_LEN] {
    static OF_A_CHUNK: OnceLock<[u8; HASH_LEN]> = OnceLock::new();
    match len == ZEROS.len() {
        true => *OF_A_CHUNK.get_or_init(|| digest(&ZEROS)),
        false => digest(&ZEROS[..len]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A single bit anywhere is seen, at lengths around those that are looked at together.
    #[test]
    fn one_bit_is_seen() {
        for len in [
            1,
            HEAD_LEN,
            HEAD_LEN + 1,
            PAGE_LEN + HEAD_LEN,
            3 * PAGE_LEN + 5,
        ] {
            let mut bytes = vec![0; len];
            assert!(are_zeros(&bytes));
            for at in [0, len / 2, len - 1] {
                bytes[at] = 0x80;
                assert!(!are_zeros(&bytes), "byte {at} of {len}");
                bytes[at] = 0;
            }
        }
        assert!(are_zeros(&[]));
    }

    /// It is the hash of the bytes, asked for once or again.
    #[test]
    fn their_hash_is_that_of_bytes() {
        for len in [0, 1, 70_000, ZEROS.len(), ZEROS.len()] {
            assert_eq!(digest_of_zeros(len), digest(&vec![0; len]));
        }
    }
}
