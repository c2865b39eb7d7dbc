//! Chance that can be replayed.

/// A small generator: the same seed gives the same numbers on every machine.
#[derive(Clone, Copy, Debug)]
pub struct Chance(u64);

impl Chance {
    /// A generator that starts from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number from 0 to `bound` - 1; `bound` must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // A linear congruential generator (Knuth's MMIX constants); its upper half is good enough here.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}
