//! Which process of the next group gets a block.

use crate::mix::mix;

/// How blocks are dealt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deal {
    /// At random, each process with the same chance, whatever it can take: the slowest process slows all.
    #[default]
    Random,
    /// Blocks with the same key go to the same process.
    Keyed,
    /// The key is a number: the block goes to the process with the remainder of a division by the number of processes.
    Numbered,
}

/// A small generator that can be replayed (xorshift64*): the same seed gives the same numbers on every machine.
#[derive(Clone, Copy, Debug)]
pub struct Chance(u64);

impl Chance {
    /// A generator for one process. Processes of one stream have its seed and different positions.
    #[must_use]
    pub fn new(seed: u64, node: u32, group: u32) -> Self {
        let place = u64::from(group) << 32 | u64::from(node);
        // Zero would stay zero.
        Self(mix(mix(seed).wrapping_add(place)) | 1)
    }

    /// A number from 0 to `bound` - 1; `bound` must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        debug_assert!(bound > 0);
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        // Scaled, not the remainder: no number is preferred by more than one in 2^32.
        ((high * bound as u64) >> 32) as usize
    }
}

impl Deal {
    /// The output of a block, of so many.
    pub fn output(self, outputs: usize, key: u64, chance: &mut Chance) -> usize {
        match self {
            Self::Random => chance.below(outputs),
            Self::Keyed => ((u128::from(mix(key)) * outputs as u128) >> 64) as usize,
            Self::Numbered => (key % outputs as u64) as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random deals spread evenly, and processes of one stream do not deal alike.
    #[test]
    fn random_deals_spread() {
        let mut counts = [0_u32; 7];
        let mut chance = Chance::new(1, 0, 0);
        for _ in 0..70_000 {
            counts[Deal::Random.output(7, 0, &mut chance)] += 1;
        }
        // Four standard deviations of a binomial count.
        assert!(
            counts.iter().all(|count| count.abs_diff(10_000) < 371),
            "{counts:?}"
        );
        let row = |node, group| {
            let mut chance = Chance::new(1, node, group);
            (0..16).map(|_| chance.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(row(0, 1), row(0, 1));
        assert_ne!(row(0, 1), row(1, 0));
        assert_ne!(row(0, 0), row(0, 1));
    }

    /// A key has one output; keys spread.
    #[test]
    fn keyed_deals_follow_the_key() {
        let mut chance = Chance::new(3, 0, 0);
        let mut counts = [0_u32; 3];
        for key in 0..30_000 {
            let output = Deal::Keyed.output(3, key, &mut chance);
            assert_eq!(output, Deal::Keyed.output(3, key, &mut chance));
            counts[output] += 1;
        }
        assert!(
            counts.iter().all(|count| count.abs_diff(10_000) < 400),
            "{counts:?}"
        );
    }

    /// Numbers go round the processes, one after the other.
    #[test]
    fn numbered_deals_go_round() {
        let mut chance = Chance::new(3, 0, 0);
        let outputs: Vec<usize> = (0..7)
            .map(|number| Deal::Numbered.output(3, number, &mut chance))
            .collect();
        assert_eq!(outputs, [0, 1, 2, 0, 1, 2, 0]);
    }
}
