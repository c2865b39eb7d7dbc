//! Random numbers: L'Ecuyer's combined multiple recursive generator MRG32k3a (Operations Research 47, 1999).

const M1: i64 = 4_294_967_087;
const M2: i64 = 4_294_944_443;
const NORM: f64 = 1.0 / 4_294_967_088.0;

/// A stream of numbers in (0, 1).
#[derive(Clone, Debug)]
pub struct Stream {
    first: [i64; 3],
    second: [i64; 3],
}

impl Stream {
    /// The generator with all six words of its state set to `seed`, as the reference simulator does.
    #[must_use]
    pub fn plain(seed: u64) -> Self {
        Self::of([seed; 6])
    }

    /// A stream of its own for one of several uses of a seed.
    #[must_use]
    pub fn mixed(seed: u64, number: u64) -> Self {
        // SplitMix64 (Steele, Lea, Flood 2014): neighbouring seeds share no bits.
        let mut state = seed ^ number.wrapping_mul(0xD1B5_4A32_D192_ED03);
        let mut next = || {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut word = state;
            word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            word ^ (word >> 31)
        };
        Self::of(std::array::from_fn(|_| next()))
    }

    fn of(words: [u64; 6]) -> Self {
        // States lie below the moduli and are not zero.
        let word =
            |word: u64, modulus: i64| (word.wrapping_sub(1) % (modulus as u64 - 1)) as i64 + 1;
        let [a, b, c, d, e, f] = words;
        Self {
            first: [a, b, c].map(|a| word(a, M1)),
            second: [d, e, f].map(|a| word(a, M2)),
        }
    }

    /// The next number, between 0 and 1 exclusively.
    pub fn next_unit(&mut self) -> f64 {
        let [a, b, c] = self.first;
        let one = (1_403_580 * b - 810_728 * a).rem_euclid(M1);
        self.first = [b, c, one];
        let [a, b, c] = self.second;
        let two = (527_612 * c - 1_370_589 * a).rem_euclid(M2);
        self.second = [b, c, two];
        let difference = if one > two { one - two } else { one - two + M1 };
        difference as f64 * NORM
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The generator's published first number for the usual seed, and the reference simulator's first ones for its own.
    #[test]
    fn known_first_numbers() {
        let first = Stream::plain(12345).next_unit();
        assert!((first - 0.127_011_122_046_577).abs() < 1e-12, "{first}");
        let mut reference = Stream::plain(1);
        let seen: Vec<f64> = (0..4).map(|_| reference.next_unit()).collect();
        for (ours, theirs) in seen.iter().zip([0.0003, 0.5559, 0.0142, 0.0881]) {
            assert!((ours - theirs).abs() < 0.00005, "{seen:?}");
        }
    }

    /// Seeds and uses give different streams, the same ones the same.
    #[test]
    fn seeds_differ() {
        let take = |seed, number| Stream::mixed(seed, number).next_unit();
        assert!(take(1, 1) != take(2, 1) && take(1, 1) != take(1, 2));
        assert!((take(7, 3) - take(7, 3)).abs() < f64::EPSILON);
    }

    /// The mean of many numbers is a half.
    #[test]
    fn evenly_spread() {
        let mut stream = Stream::mixed(5, 1);
        let sum: f64 = (0..100_000).map(|_| stream.next_unit()).sum();
        assert!((sum / 100_000.0 - 0.5).abs() < 0.005, "{sum}");
    }
}
