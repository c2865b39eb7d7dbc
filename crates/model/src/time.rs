//! Time as state machines see it: nanoseconds, from an arbitrary zero that their driver chooses.
//!
//! Arithmetic saturates: no clock, and no number from the network, makes it wrap around.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub};
use std::time::Duration;

/// A moment, in nanoseconds since the driver's zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(pub u64);

/// A length of time in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

impl Instant {
    /// The driver's zero.
    pub const ZERO: Self = Self(0);

    /// So long after the driver's zero.
    #[must_use]
    pub fn after(time: Duration) -> Self {
        Self::ZERO + time.into()
    }

    /// So long before this, the zero at the earliest.
    #[must_use]
    pub const fn before(self, time: Nanos) -> Self {
        Self(self.0.saturating_sub(time.0))
    }

    /// Time from `earlier` to this; none when it is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Nanos {
    /// No time.
    pub const ZERO: Self = Self(0);

    /// So many seconds.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000))
    }

    /// So many microseconds.
    #[must_use]
    pub const fn from_micros(microseconds: u64) -> Self {
        Self(microseconds.saturating_mul(1000))
    }

    /// So many milliseconds.
    #[must_use]
    pub const fn from_millis(milliseconds: u64) -> Self {
        Self(milliseconds.saturating_mul(1_000_000))
    }

    /// The nearest length below; none for what is negative or no number.
    #[must_use]
    pub fn from_seconds(seconds: f64) -> Self {
        Self((seconds * 1e9) as u64)
    }

    /// In seconds, as estimates want it.
    #[must_use]
    pub fn as_seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Whole seconds, rounded down.
    #[must_use]
    pub const fn whole_seconds(self) -> u64 {
        self.0 / 1_000_000_000
    }

    /// So many times as long, rounded down.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self((self.0 as f64 * factor) as u64)
    }
}

impl Add<Nanos> for Instant {
    type Output = Self;

    fn add(self, time: Nanos) -> Self {
        Self(self.0.saturating_add(time.0))
    }
}

impl Add for Nanos {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl AddAssign<Nanos> for Instant {
    fn add_assign(&mut self, time: Nanos) {
        *self = *self + time;
    }
}

impl Sub for Nanos {
    type Output = Self;

    /// None when `other` is longer.
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Sum for Nanos {
    fn sum<I: Iterator<Item = Self>>(times: I) -> Self {
        times.fold(Self::ZERO, Add::add)
    }
}

impl Mul<u64> for Nanos {
    type Output = Self;

    fn mul(self, times: u64) -> Self {
        Self(self.0.saturating_mul(times))
    }
}

impl Mul<Nanos> for u64 {
    type Output = Nanos;

    fn mul(self, time: Nanos) -> Nanos {
        time * self
    }
}

impl Div<u64> for Nanos {
    type Output = Self;

    fn div(self, parts: u64) -> Self {
        Self(self.0 / parts)
    }
}

impl From<Duration> for Nanos {
    /// At most what 64 bits hold, 584 years.
    fn from(time: Duration) -> Self {
        Self(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for Duration {
    fn from(time: Nanos) -> Self {
        Self::from_nanos(time.0)
    }
}

/// In seconds, as people read them.
impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&crate::format_seconds(self.as_seconds()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing wraps around, and seconds come back.
    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Instant(5).since(Instant(9)), Nanos::ZERO);
        assert_eq!(Instant(5).before(Nanos(9)), Instant::ZERO);
        assert_eq!(Instant(u64::MAX) + Nanos(1), Instant(u64::MAX));
        assert_eq!(Nanos(u64::MAX) * 2, Nanos(u64::MAX));
        assert_eq!(Nanos(3) - Nanos(5), Nanos::ZERO);
        assert_eq!(Nanos::from(Duration::MAX), Nanos(u64::MAX));
        assert_eq!(Duration::from(Nanos(7)), Duration::from_nanos(7));
        assert_eq!(Instant::after(Duration::from_nanos(7)), Instant(7));
        assert_eq!(Nanos::from_seconds(-1.0), Nanos::ZERO);
        assert_eq!(Nanos::from_seconds(f64::NAN), Nanos::ZERO);
        assert_eq!(Nanos::from_seconds(1.5), Nanos::from_millis(1500));
        assert_eq!(Nanos::from_secs(3).as_seconds(), 3.0);
        assert_eq!(Nanos::from_millis(2500).whole_seconds(), 2);
        assert_eq!(Nanos(10).times(1.5) / 3, Nanos(5));
        assert_eq!(Nanos::from_millis(350).to_string(), "350 ms");
    }
}
