//! Unsigned integers of 256 bits, as little of them as the bound needs.
//!
//! Speeds and sizes have 64 bits, sums over nodes some 20 more; the flow compares bytes × speed sums, which
//! is beyond 128 bits at the extremes.

/// `high × 2^128 + low`; the order of the fields makes the derived order the numeric one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Wide {
    high: u128,
    low: u128,
}

/// A quantity that flows: never negative, and no sum that the flow forms overflows it.
pub(crate) trait Amount: Copy + Ord + Default {
    /// `self + other`.
    fn plus(self, other: Self) -> Self;
    /// `self - other`, where `other` is not the larger.
    fn minus(self, other: Self) -> Self;
    /// `a × b`.
    fn product(a: u128, b: u128) -> Self;
    /// The same number; only asked of amounts that are whole bytes.
    fn to_u128(self) -> u128;
}

/// For whole bytes whose sum has fewer than 63 bits.
impl Amount for u64 {
    fn plus(self, other: Self) -> Self {
        self + other
    }

    fn minus(self, other: Self) -> Self {
        self - other
    }

    fn product(a: u128, b: u128) -> Self {
        (a * b) as u64
    }

    fn to_u128(self) -> u128 {
        u128::from(self)
    }
}

impl Amount for u128 {
    fn to_u128(self) -> u128 {
        self
    }

    fn plus(self, other: Self) -> Self {
        self + other
    }

    fn minus(self, other: Self) -> Self {
        self - other
    }

    fn product(a: u128, b: u128) -> Self {
        a * b
    }
}

impl Amount for Wide {
    fn to_u128(self) -> u128 {
        debug_assert_eq!(self.high, 0);
        self.low
    }

    fn plus(self, other: Self) -> Self {
        let (low, carry) = self.low.overflowing_add(other.low);
        Self {
            high: self.high + other.high + u128::from(carry),
            low,
        }
    }

    fn minus(self, other: Self) -> Self {
        let (low, borrow) = self.low.overflowing_sub(other.low);
        Self {
            high: self.high - other.high - u128::from(borrow),
            low,
        }
    }

    fn product(a: u128, b: u128) -> Self {
        const HALF: u128 = u64::MAX as u128;
        let (a_high, a_low) = (a >> 64, a & HALF);
        let (b_high, b_low) = (b >> 64, b & HALF);
        let low = a_low * b_low;
        let (middle, carry) = (a_low * b_high).overflowing_add(a_high * b_low);
        let (low, low_carry) = low.overflowing_add(middle << 64);
        let high = a_high * b_high + (middle >> 64) + (u128::from(carry) << 64);
        Self {
            high: high + u128::from(low_carry),
            low,
        }
    }
}

/// Whether `a.0 / a.1` is more than, equal to or less than `b.0 / b.1`, exactly. Denominators are above 0.
pub(crate) fn compare_fractions(a: (u128, u128), b: (u128, u128)) -> std::cmp::Ordering {
    Wide::product(a.0, b.1).cmp(&Wide::product(b.0, a.1))
}

/// The fraction in lowest terms; 0/1 for nothing.
pub(crate) fn reduced((numerator, denominator): (u128, u128)) -> (u128, u128) {
    let (mut a, mut b) = (numerator, denominator);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    (numerator / a.max(1), denominator / a.max(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// (a + b)(c + d) multiplied out gives the same 256 bits, and subtraction undoes addition.
        #[test]
        fn products_distribute(a in 0..u128::MAX / 4, b in 0..u128::MAX / 4, c in 0..u128::MAX / 4, d in 0..u128::MAX / 4) {
            let whole = Wide::product(a + b, c + d);
            let parts = [(a, c), (a, d), (b, c), (b, d)].map(|(x, y)| Wide::product(x, y));
            let sum = parts[0].plus(parts[1]).plus(parts[2]).plus(parts[3]);
            prop_assert_eq!(whole, sum);
            prop_assert_eq!(sum.minus(parts[3]).minus(parts[0]), parts[1].plus(parts[2]));
            let small = Wide::product(a >> 64, b >> 64);
            prop_assert_eq!(small, Wide { high: 0, low: (a >> 64) * (b >> 64) });
        }
    }

    /// Fractions whose cross products need more than 128 bits compare exactly.
    #[test]
    fn fractions_compare_exactly() {
        use std::cmp::Ordering::{Equal, Greater, Less};
        let big = 1_u128 << 100;
        assert_eq!(compare_fractions((big, big + 1), (big - 1, big)), Greater);
        assert_eq!(compare_fractions((big - 1, big), (big, big + 1)), Less);
        assert_eq!(compare_fractions((2 * big, 6 * big), (1, 3)), Equal);
        assert_eq!(reduced((2 * big, 6 * big)), (1, 3));
        assert_eq!(reduced((0, 17)), (0, 1));
    }
}
