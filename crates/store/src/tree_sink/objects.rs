//! A set of entries of a copy, by number: a bit each. Of many files most are in it or most are not, and it is asked for each of them
//! many times.

/// Numbers of entries. Memory is a bit for each number below the greatest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Objects {
    words: Vec<u64>,
}

fn place(object: u32) -> (usize, u64) {
    (object as usize / 64, 1 << (object % 64))
}

impl Objects {
    pub fn contains(&self, object: u32) -> bool {
        let (at, bit) = place(object);
        self.words.get(at).is_some_and(|word| word & bit != 0)
    }

    pub fn insert(&mut self, object: u32) {
        let (at, bit) = place(object);
        if at >= self.words.len() {
            self.words.resize(at + 1, 0);
        }
        self.words[at] |= bit;
    }

    pub fn remove(&mut self, object: u32) {
        let (at, bit) = place(object);
        if let Some(word) = self.words.get_mut(at) {
            *word &= !bit;
        }
    }

    pub fn clear(&mut self) {
        self.words.clear();
    }

    pub fn retain(&mut self, mut stays: impl FnMut(u32) -> bool) {
        for at in 0..self.words.len() {
            for object in bits(at, self.words[at]) {
                if !stays(object) {
                    self.remove(object);
                }
            }
        }
    }

    pub fn len(&self) -> usize {
        let ones = self.words.iter().map(|word| word.count_ones() as usize);
        ones.sum()
    }

    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let words = self.words.iter().enumerate();
        words.flat_map(|(at, word)| bits(at, *word))
    }

    /// Those that are in another set, too.
    pub fn intersection(&self, other: &Self) -> Self {
        let words = self.words.iter().zip(&other.words);
        Self {
            words: words.map(|(one, other)| one & other).collect(),
        }
    }
}

/// The numbers of a word.
fn bits(at: usize, mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(at as u32 * 64 + bit)
    })
}

impl Extend<u32> for Objects {
    fn extend<T: IntoIterator<Item = u32>>(&mut self, objects: T) {
        objects.into_iter().for_each(|object| self.insert(object));
    }
}

impl FromIterator<u32> for Objects {
    fn from_iter<T: IntoIterator<Item = u32>>(objects: T) -> Self {
        let mut all = Self::default();
        all.extend(objects);
        all
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// It has what a set of numbers has.
        #[test]
        fn it_is_a_set(
            one in proptest::collection::vec((any::<bool>(), 0..300_u32), 0..200),
            other in proptest::collection::btree_set(0..300_u32, 0..200),
            modulus in 1..9_u32,
        ) {
            let (mut set, mut known) = (Objects::default(), BTreeSet::new());
            for (is_in, object) in one {
                match is_in {
                    true => {
                        set.insert(object);
                        known.insert(object);
                    }
                    false => {
                        set.remove(object);
                        known.remove(&object);
                    }
                }
            }
            let both: Vec<u32> = known.intersection(&other).copied().collect();
            let found = set.intersection(&other.into_iter().collect());
            prop_assert_eq!(found.iter().collect::<Vec<_>>(), both);
            prop_assert_eq!((set.len(), set.is_empty()), (known.len(), known.is_empty()));
            prop_assert!((0..400).all(|object| set.contains(object) == known.contains(&object)));
            set.retain(|object| object % modulus == 0);
            known.retain(|object| object % modulus == 0);
            prop_assert!(set.iter().eq(known));
        }
    }
}
