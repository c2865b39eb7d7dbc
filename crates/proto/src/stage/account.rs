//! Whether every block arrived once: counts, bytes, and a sum of hashes that does not depend on order.

use std::ops::AddAssign;

/// Blocks that passed a point. Two points saw the same blocks, in whatever order, when their accounts are equal: each block adds
/// a keyed hash of its identity and content, so that lost and repeated blocks cannot balance each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// How many.
    pub blocks: u64,
    /// Their contents together.
    pub bytes: u64,
    /// Sum of their fingerprints, which wraps.
    pub sum: u128,
}

impl Account {
    /// Adds a block.
    pub fn add(&mut self, length: u32, fingerprint: u128) {
        self.blocks += 1;
        self.bytes += u64::from(length);
        self.sum = self.sum.wrapping_add(fingerprint);
    }
}

impl AddAssign for Account {
    fn add_assign(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.bytes += other.bytes;
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn account(blocks: &[(u32, u128)]) -> Account {
        let mut account = Account::default();
        for &(length, fingerprint) in blocks {
            account.add(length, fingerprint);
        }
        account
    }

    proptest! {
        /// Order does not matter, a block more or less does, and parts add up.
        #[test]
        fn order_does_not_matter(blocks in prop::collection::vec((any::<u32>(), 1..u128::MAX), 1..20), at in any::<prop::sample::Index>()) {
            let mut turned = blocks.clone();
            turned.reverse();
            prop_assert_eq!(account(&blocks), account(&turned));
            let removed = turned.remove(at.index(turned.len()));
            prop_assert_ne!(account(&blocks), account(&turned));
            let mut sum = account(&turned);
            sum += account(&[removed]);
            prop_assert_eq!(sum, account(&blocks));
        }
    }
}
