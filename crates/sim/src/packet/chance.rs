//! Random numbers: L'Ecuyer's combined multiple recursive generator MRG32k3a (Operations Research 47, 1999).

const M1: i64 = 4_294_967_087;
const M2: i64 = 4_294_944_443;
const NORM: f64 = 1.0 / 4_294_967_088.0;

/// The usual first state of the generator's six words; seed 1 gives it.
const FIRST: u64 = 12345;

/// A stream of numbers in (0, 1).
#[derive(Clone, Debug)]
pub struct Stream {
    first: [i64; 3],
    second: [i64; 3],
}

impl Stream {
    /// The stream of a seed; different uses of one seed are told apart by `number`.
    ///
    /// Seed 1, number 0 starts from 12345 everywhere, the published example and the reference simulator's default.
    #[must_use]
    pub fn new(seed: u64, number: u64) -> Self {
        let words = seed
            .wrapping_sub(1)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .wrapping_add(number.wrapping_mul(0xD1B5_4A32_D192_ED03))
            .wrapping_add(FIRST - 1);
        // States must lie below the moduli and must not be all zero.
        let word = |modulus: i64| (words % (modulus as u64 - 1)) as i64 + 1;
        Self {
            first: [word(M1); 3],
            second: [word(M2); 3],
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

    /// The generator's published first number for the usual seed.
    #[test]
    fn known_first_number() {
        let first = Stream::new(1, 0).next_unit();
        assert!((first - 0.127_011_122_046_577).abs() < 1e-12, "{first}");
    }

    /// Seeds and numbers give different streams, the same ones the same.
    #[test]
    fn seeds_differ() {
        let take = |seed, number| Stream::new(seed, number).next_unit();
        assert!(take(1, 0) != take(2, 0) && take(1, 0) != take(1, 1));
        assert!((take(7, 3) - take(7, 3)).abs() < f64::EPSILON);
    }

    /// The mean of many numbers is a half.
    #[test]
    fn evenly_spread() {
        let mut stream = Stream::new(5, 1);
        let sum: f64 = (0..100_000).map(|_| stream.next_unit()).sum();
        assert!((sum / 100_000.0 - 0.5).abs() < 0.005, "{sum}");
    }
}
