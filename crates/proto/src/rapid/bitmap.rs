//! Which datagrams of a unit are there: a bit each, and the same bits on the wire.

/// A fixed number of bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bitmap {
    // Bits beyond `length` are zero.
    words: Box<[u64]>,
    length: u32,
    ones: u32,
}

/// Why bytes are no bitmap of the expected length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a bitmap of {found} bytes for {expected} datagrams")]
pub struct BitmapError {
    /// Bits it should have.
    pub expected: u32,
    /// Bytes received.
    pub found: usize,
}

impl Bitmap {
    /// `length` bits, all zero.
    #[must_use]
    pub fn new(length: u32) -> Self {
        Self {
            words: vec![0; length.div_ceil(64) as usize].into(),
            length,
            ones: 0,
        }
    }

    /// `length` bits, all one.
    #[must_use]
    pub fn full(length: u32) -> Self {
        let mut bits = Self::new(length);
        bits.words.fill(u64::MAX);
        bits.trim();
        bits
    }

    /// Bits there are.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.length
    }

    /// Whether there is no bit at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Bits that are one.
    #[must_use]
    pub fn ones(&self) -> u32 {
        self.ones
    }

    /// Whether no bit is zero.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.ones == self.length
    }

    /// One bit; those beyond the end are zero.
    #[must_use]
    pub fn get(&self, index: u32) -> bool {
        index < self.length && self.words[index as usize / 64] >> (index % 64) & 1 == 1
    }

    /// Sets a bit; whether it was zero before. Beyond the end nothing is set.
    pub fn set(&mut self, index: u32) -> bool {
        if index >= self.length || self.get(index) {
            return false;
        }
        self.words[index as usize / 64] |= 1 << (index % 64);
        self.ones += 1;
        true
    }

    /// Clears the bits `from..to`.
    pub fn clear(&mut self, from: u32, to: u32) {
        for index in from..to.min(self.length) {
            let word = &mut self.words[index as usize / 64];
            self.ones -= u32::from(*word >> (index % 64) & 1 == 1);
            *word &= !(1 << (index % 64));
        }
    }

    /// The first run of ones at or after `from`, at most `max` long: where it begins, and its length.
    #[must_use]
    pub fn run_from(&self, from: u32, max: u32) -> Option<(u32, u32)> {
        let mut at = from as usize / 64;
        let mut word = *self.words.get(at)? & (u64::MAX << (from % 64));
        while word == 0 {
            at += 1;
            word = *self.words.get(at)?;
        }
        let start = at as u32 * 64 + word.trailing_zeros();
        let mut end = start;
        while end - start < max && self.get(end) {
            end += 1;
        }
        Some((start, end - start))
    }

    /// The same bits turned round.
    #[must_use]
    pub fn inverted(&self) -> Self {
        let mut bits = self.clone();
        bits.words.iter_mut().for_each(|word| *word = !*word);
        bits.trim();
        bits
    }

    fn trim(&mut self) {
        if let (Some(last), rest @ 1..) = (self.words.last_mut(), self.length % 64) {
            *last &= (1 << rest) - 1;
        }
        self.ones = self.words.iter().map(|word| word.count_ones()).sum();
    }

    /// Eight bits a byte, the first in the lowest place.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let bytes = self.words.iter().flat_map(|word| word.to_le_bytes());
        bytes.take(self.length.div_ceil(8) as usize).collect()
    }

    /// Reads `length` bits.
    ///
    /// # Errors
    /// [`BitmapError`] when the bytes are not as many as that, or bits beyond the end are set.
    pub fn decode(bytes: &[u8], length: u32) -> Result<Self, BitmapError> {
        let error = BitmapError {
            expected: length,
            found: bytes.len(),
        };
        if bytes.len() != length.div_ceil(8) as usize {
            return Err(error);
        }
        let mut bits = Self::new(length);
        for (word, part) in bits.words.iter_mut().zip(bytes.chunks(8)) {
            let mut raw = [0; 8];
            raw[..part.len()].copy_from_slice(part);
            *word = u64::from_le_bytes(raw);
        }
        let before = bits.words.last().copied();
        bits.trim();
        (bits.words.last().copied() == before)
            .then_some(bits)
            .ok_or(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a plain list of booleans: set, clear, count, invert, runs and the wire.
        #[test]
        fn behaves_as_a_list(length in 0u32..300, sets in proptest::collection::vec((0u32..320, any::<bool>()), 0..400), from in 0u32..320, max in 1u32..80) {
            let mut bits = Bitmap::new(length);
            let mut list = vec![false; length as usize];
            for (index, on) in sets {
                let old = list.get(index as usize).copied();
                if on {
                    prop_assert_eq!(bits.set(index), old == Some(false));
                } else {
                    bits.clear(index, index + 1);
                }
                if let Some(place) = list.get_mut(index as usize) { *place = on; }
            }
            prop_assert_eq!(bits.ones() as usize, list.iter().filter(|bit| **bit).count());
            for index in 0..320 {
                prop_assert_eq!(bits.get(index), list.get(index as usize).copied().unwrap_or(false));
                prop_assert_eq!(bits.inverted().get(index), list.get(index as usize).is_some_and(|bit| !bit));
            }
            let start = (from as usize..list.len()).find(|&at| list[at]);
            let run = start.map(|start| (start as u32, list[start..].iter().take(max as usize).take_while(|bit| **bit).count() as u32));
            prop_assert_eq!(bits.run_from(from, max), run);
            prop_assert_eq!(Bitmap::decode(&bits.encode(), length), Ok(bits));
        }

        /// Bytes of a stranger are a bitmap of the right length or none.
        #[test]
        fn any_bytes_are_read_safely(bytes in proptest::collection::vec(any::<u8>(), 0..40), length in 0u32..400) {
            if let Ok(bits) = Bitmap::decode(&bytes, length) {
                prop_assert_eq!(bits.len(), length);
                prop_assert_eq!(bits.encode(), bytes);
            }
        }
    }

    /// A full one has all bits and no more.
    #[test]
    fn full_is_full() {
        for length in [0, 1, 63, 64, 65, 731] {
            let bits = Bitmap::full(length);
            assert!(bits.is_full());
            assert_eq!(bits.ones(), length);
            assert_eq!(bits.inverted(), Bitmap::new(length));
        }
    }
}
