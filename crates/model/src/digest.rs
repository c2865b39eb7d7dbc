//! The hash of a unit: BLAKE3, as of [`blake3::hash`], and faster where a unit does not fill the processor's vectors.
//!
//! BLAKE3 cuts its input into chunks of 1 KiB, and hashes as many at once as the vectors have places: 16 with AVX-512. Of 15 chunks the
//! library hashes 8, then 4, 2 and 1, and each of these takes about as long as all 16. Here what is left is filled up with chunks whose
//! hashes are dropped. Files of 4 to 64 KiB take 0.78 of the time with AVX-512.

use std::array;

use blake3::platform::Platform;
use blake3::{Hasher, IncrementCounter};

use crate::zeros::{ZEROS, digest_of_zeros};

/// Bytes of a hash.
pub(crate) const HASH_LEN: usize = 32;

/// BLAKE3's own numbers (sections 2.1 to 2.4 of its paper): the length of a chunk, of a block, the first chaining value, and flags.
const CHUNK: usize = blake3::CHUNK_LEN;
const BLOCK: usize = blake3::BLOCK_LEN;
const IV: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];
const CHUNK_START: u8 = 1;
const CHUNK_END: u8 = 2;
const PARENT: u8 = 4;
const ROOT: u8 = 8;

/// Longer inputs are the library's: what their last chunks cost is little beside the rest.
const CHUNKS_MAX: usize = 64;

/// Most places of a vector, in any processor.
const PLACES_MAX: usize = 16;

static FILL: [u8; CHUNK] = [0; CHUNK];

/// The hash of these bytes.
#[must_use]
pub fn digest(bytes: &[u8]) -> [u8; HASH_LEN] {
    match bytes.len() <= CHUNK || bytes.len() > CHUNKS_MAX * CHUNK {
        true => *blake3::hash(bytes).as_bytes(),
        false => of_chunks(bytes, Platform::detect()),
    }
}

/// Chaining values of nodes of the tree that are neighbours.
type Values = [[u8; HASH_LEN]; CHUNKS_MAX];

/// The chaining values of neighbours of one level: of chunks, or of parents, whose blocks are two values.
///
/// * `values`: where they go; those of places that were filled up follow.
fn of_level<'b, const N: usize>(
    mut inputs: impl ExactSizeIterator<Item = &'b [u8; N]>,
    values: &mut Values,
    platform: Platform,
) {
    let fill: &[u8; N] = FILL.first_chunk().expect("no input is longer than a chunk");
    let places = platform.simd_degree().min(PLACES_MAX);
    let mut at = 0;
    while inputs.len() > 0 {
        let count = inputs.len().min(places);
        let width = count.next_power_of_two().min(places);
        let batch: [&[u8; N]; PLACES_MAX] = array::from_fn(|place| match place < count {
            true => inputs.next().unwrap_or(fill),
            false => fill,
        });
        let (batch, out) = (&batch[..width], values[at..at + width].as_flattened_mut());
        match N == CHUNK {
            true => platform.hash_many(
                batch,
                &IV,
                at as u64,
                IncrementCounter::Yes,
                0,
                CHUNK_START,
                CHUNK_END,
                out,
            ),
            false => {
                platform.hash_many(batch, &IV, 0, IncrementCounter::No, PARENT, 0, 0, out);
            }
        }
        at += count;
    }
}

/// The chaining value of a chunk that is not whole.
fn of_part(bytes: &[u8], number: usize, platform: Platform) -> [u8; HASH_LEN] {
    let mut value = IV;
    let blocks = bytes.len().div_ceil(BLOCK);
    for (at, bytes) in bytes.chunks(BLOCK).enumerate() {
        let mut block = [0; BLOCK];
        block[..bytes.len()].copy_from_slice(bytes);
        let mut flags = 0;
        if at == 0 {
            flags |= CHUNK_START;
        }
        if at + 1 == blocks {
            flags |= CHUNK_END;
        }
        platform.compress_in_place(&mut value, &block, bytes.len() as u8, number as u64, flags);
    }
    encode(value)
}

fn encode(value: [u32; 8]) -> [u8; HASH_LEN] {
    let mut bytes = [0; HASH_LEN];
    for (place, word) in bytes.chunks_mut(4).zip(value) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The hash of 2 to [`CHUNKS_MAX`] chunks, of which the last one may be a part.
fn of_chunks(bytes: &[u8], platform: Platform) -> [u8; HASH_LEN] {
    let (chunks, part) = bytes.as_chunks::<CHUNK>();
    let mut values: Values = [[0; HASH_LEN]; CHUNKS_MAX];
    of_level(chunks.iter(), &mut values, platform);
    let mut count = chunks.len();
    if !part.is_empty() {
        values[count] = of_part(part, count, platform);
        count += 1;
    }
    // Level by level; one without a neighbour goes up as it is.
    while count > 2 {
        let (below, pairs) = (values, count / 2);
        let (blocks, _) = below.as_flattened().as_chunks::<BLOCK>();
        of_level(blocks[..pairs].iter(), &mut values, platform);
        if count % 2 == 1 {
            values[pairs] = below[count - 1];
        }
        count = count.div_ceil(2);
    }
    let mut root = IV;
    let (blocks, _) = values.as_flattened().as_chunks::<BLOCK>();
    platform.compress_in_place(&mut root, &blocks[0], BLOCK as u8, 0, PARENT | ROOT);
    encode(root)
}

/// The hash of a unit that may arrive in several parts.
#[derive(Clone, Debug, Default)]
pub struct Digester(State);

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Empty,
    Parts(Box<Hasher>),
    Done([u8; HASH_LEN]),
}

impl Digester {
    /// The next part. Where it is the last one and the only one, its hash is [`digest`].
    pub fn part(&mut self, bytes: &[u8], is_last: bool) {
        if let State::Empty = self.0 {
            if is_last {
                self.0 = State::Done(digest(bytes));
                return;
            }
            self.0 = State::Parts(Box::default());
        }
        match &mut self.0 {
            State::Parts(hasher) => drop(hasher.update(bytes)),
            State::Empty | State::Done(_) => debug_assert!(false, "a part after the last one"),
        }
    }

    /// As [`Digester::part`], for so many zeros; at most a chunk.
    pub fn zeros(&mut self, len: usize, is_last: bool) {
        match self.0 {
            State::Empty if is_last => self.0 = State::Done(digest_of_zeros(len)),
            _ => self.part(&ZEROS[..len], is_last),
        }
    }

    /// The hash of all parts; more cannot follow.
    pub fn get(&mut self) -> [u8; HASH_LEN] {
        let hash = match &self.0 {
            State::Empty => digest(&[]),
            State::Parts(hasher) => *hasher.finalize().as_bytes(),
            State::Done(hash) => *hash,
        };
        self.0 = State::Done(hash);
        hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kinds of vectors that this processor has.
    fn platforms() -> Vec<Platform> {
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        let some = [Platform::sse2(), Platform::sse41(), Platform::avx2()];
        #[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
        let some = [None; 0];
        let some = some.into_iter().flatten();
        some.chain([Platform::portable(), Platform::detect()])
            .collect()
    }

    fn bytes(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 31 % 251) as u8).collect()
    }

    /// It is BLAKE3, for each length around the borders of blocks, chunks and vectors, and many in between, with any vectors.
    #[test]
    fn it_is_blake3() {
        let bytes = bytes(CHUNK * (CHUNKS_MAX + 2));
        let around = |of: usize| (0..=bytes.len() / of).flat_map(move |at| [at * of, at * of + 1]);
        let lengths = around(CHUNK)
            .chain(around(CHUNK).map(|length| length.saturating_sub(2)))
            .chain((0..bytes.len()).step_by(97))
            .chain(around(BLOCK).take(200));
        for length in lengths.filter(|length| *length <= bytes.len()) {
            let bytes = &bytes[..length];
            let right = *blake3::hash(bytes).as_bytes();
            assert_eq!(digest(bytes), right, "{length}");
            if (CHUNK + 1..=CHUNK * CHUNKS_MAX).contains(&length) {
                for platform in platforms() {
                    let hash = of_chunks(bytes, platform);
                    assert_eq!(hash, right, "{length} {platform:?}");
                }
            }
        }
    }

    /// In whatever parts a unit arrives, its hash is the same, and asking for it twice changes nothing.
    #[test]
    fn parts_make_the_whole() {
        let bytes = bytes(5000);
        let right = digest(&bytes);
        for cut in [0, 1, 1024, 4999, 5000] {
            let (one, other) = bytes.split_at(cut);
            let mut parts = Digester::default();
            parts.part(one, false);
            parts.part(other, true);
            assert_eq!([parts.get(), parts.get()], [right; 2], "{cut}");
            let mut parts = Digester::default();
            parts.part(one, false);
            parts.part(other, false);
            assert_eq!([parts.get(), parts.get()], [right; 2], "{cut}");
        }
        let mut whole = Digester::default();
        whole.part(&bytes, true);
        assert_eq!([whole.get(), whole.get()], [right; 2]);
        assert_eq!(Digester::default().get(), digest(&[]));
    }
}
