//! The checksum of plain frames: CRC-64/NVME, 49 GB/s from cache and mergeable.

use crc_fast::{CrcAlgorithm, Digest};

/// How plain frames are checked on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Trailers are zero and mean nothing, except all ones: the sender could not read what it had announced.
    None,
    /// CRC-64/NVME over header, payload and hash.
    Fragment,
}

/// Flipped into the trailer by a sender that could not read the bytes it had announced, so that the
/// frame fails under either [`Check`] and the framing stays whole.
pub(crate) const POISON: u64 = u64::MAX;

/// The running checksum of one frame; costs nothing under [`Check::None`].
pub(crate) struct Sum(Option<Digest>);

impl Sum {
    pub(crate) fn new(check: Check) -> Self {
        Self((check == Check::Fragment).then(|| Digest::new(CrcAlgorithm::Crc64Nvme)))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        if let Some(digest) = &mut self.0 {
            digest.update(bytes);
        }
    }

    /// The trailer; zero when nothing is checked.
    pub(crate) fn trailer(&self) -> u64 {
        self.0.as_ref().map_or(0, Digest::finalize)
    }
}

/// CRC-64/NVME over several pieces, as plain frames have it.
#[must_use]
pub fn crc64(pieces: &[&[u8]]) -> u64 {
    let mut sum = Crc64::default();
    for piece in pieces {
        sum.update(piece);
    }
    sum.value()
}

/// CRC-64/NVME over pieces that arrive one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Crc64(Digest);

impl Default for Crc64 {
    fn default() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc64Nvme))
    }
}

impl Crc64 {
    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all pieces so far.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.finalize()
    }
}
