//! What of an earlier transfer's files a later one adopts, in which order they are moved, and what a transfer leaves for a later one.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;

use super::record::{Recorded, Version};
use crate::RangeSet;

/// What is kept for a later transfer has at least so many bytes that are safe, unless [`KEPT_MIN_FAILED`] holds; fewer are sent
/// again in little time.
pub const KEPT_MIN: u64 = 64 << 20;

/// The same where no user asked for the end, and where there was something before: a path that fails again and again must not begin
/// again each time.
pub const KEPT_MIN_FAILED: u64 = 1 << 20;

/// Whether a transfer that ends before it is complete leaves what is safe for a later one.
///
/// * `safe`: bytes.
/// * `has_failed`: no user asked for the end.
/// * `went_on`: an earlier transfer had left something.
#[must_use]
pub fn is_worth_keeping(safe: u64, has_failed: bool, went_on: bool) -> bool {
    let least = match has_failed || went_on {
        true => KEPT_MIN_FAILED,
        false => KEPT_MIN,
    };
    safe >= least
}

/// What of an earlier transfer's bytes is taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adopt {
    /// All that is safe.
    All,
    /// Only what that transfer knew the hashes of: the sink is to be read back.
    Hashed,
}

/// What has the name where a file was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// It is a regular file.
    pub is_file: bool,
    /// It has no other name.
    pub has_one_name: bool,
    /// Its length in bytes.
    pub len: u64,
    /// Its inode.
    pub inode: u64,
}

impl Recorded {
    /// Whether another record is about the same file.
    #[must_use]
    pub fn is_same_file(&self, other: &Self) -> bool {
        (self.version, self.inode) == (other.version, other.inode)
    }

    /// Bytes of the file that a transfer of this version of it can adopt; empty where it is of another one.
    #[must_use]
    pub fn adoptable(&self, version: Version, adopt: Adopt) -> RangeSet {
        match adopt {
            _ if self.version != version => RangeSet::new(),
            Adopt::All => self.safe.clone(),
            Adopt::Hashed => RangeSet::from_ranges(self.units.iter().map(|unit| unit.range)),
        }
    }

    /// Whether what has its name is the file that was recorded, has these bytes, and no other name: what is written into it must
    /// appear nowhere else.
    #[must_use]
    pub fn is_seen(&self, seen: &Seen, safe: &RangeSet) -> bool {
        let end = safe.last().map_or(0, |range| range.end);
        let is_inode = [0, seen.inode].contains(&self.inode);
        seen.is_file && seen.has_one_name && seen.len >= end && is_inode
    }
}

/// What several journals of one copy say of a file is said of it together; of two files under one path the first one counts. Sources
/// of rows are one where name, version and shift are the same.
#[must_use]
pub fn joined(recorded: impl IntoIterator<Item = Recorded>) -> Vec<Recorded> {
    type Key = (Vec<u8>, Option<(u64, Version)>);
    let mut all: BTreeMap<Key, Recorded> = BTreeMap::new();
    for file in recorded {
        let of_rows = file.shift.map(|shift| (shift.by, file.version));
        match all.entry((file.path.clone(), of_rows)) {
            Slot::Vacant(place) => drop(place.insert(file)),
            Slot::Occupied(mut known) => {
                let known = known.get_mut();
                if known.is_same_file(&file) {
                    known.safe = known.safe.union(&file.safe);
                    known.units.extend(file.units);
                }
            }
        }
    }
    all.into_values().collect()
}

/// Where several leftovers have the same file, each has its own version of it: only the one of which most is safe is of use, of
/// equals the last.
///
/// * `leftovers`: of each the files that it has.
/// * `of`: a file's number, and how many bytes of it are safe.
pub fn keep_largest<'a, File: 'a>(
    leftovers: impl IntoIterator<Item = &'a mut Vec<File>>,
    of: impl Fn(&File) -> (u32, u64),
) {
    let mut leftovers: Vec<&mut Vec<File>> = leftovers.into_iter().collect();
    let mut best: BTreeMap<u32, (u64, usize)> = BTreeMap::new();
    for (at, files) in leftovers.iter().enumerate() {
        for file in files.iter() {
            let (number, safe) = of(file);
            let known = best.entry(number).or_insert((safe, at));
            *known = (safe, at).max(*known);
        }
    }
    for (at, files) in leftovers.iter_mut().enumerate() {
        files.retain(|file| best[&of(file).0].1 == at);
    }
}

/// What is to be done next with what an earlier transfer left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Record in this transfer's own journal what of all its files is safe, and sync that with the journal's name.
    Record,
    /// Give the file of this position a name of this transfer.
    Move(usize),
    /// Record that nothing of these files is safe, and sync that: they could not be moved, and are made again.
    Forget(Vec<usize>),
    /// Remove this transfer's own journal: it says what is not true, and cannot be corrected.
    RemoveOwn,
    /// Sync the new names of the files.
    SyncNames,
    /// Remove the old journals and what is left beside them.
    Remove,
    /// Nothing more.
    End,
}

/// Takes over what an earlier transfer left. Whenever that ends, one journal or both vouch for a file, and it is in one of the places
/// where these look for it:
///
/// ```text
///  Record --> Move, one file after another --> SyncNames --> Remove --> End
///    |            | some fail                      | fails               |
///    |            +--> Forget --> (RemoveOwn) -----+---------------------+
///    +--- fails ---------------------------------------------------------+
/// ```
///
/// What is not superseded, as files that this transfer does not write, stays with its journal: then `Move` is followed by `End`.
#[derive(Clone, Debug)]
pub struct Takeover {
    count: usize,
    is_superseded: bool,
    step: Step,
    failed: Vec<usize>,
}

impl Takeover {
    /// * `count`: files that this transfer wants.
    /// * `is_superseded`: all that was left is of files that this transfer writes.
    #[must_use]
    pub fn new(count: usize, is_superseded: bool) -> Self {
        let step = match (count, is_superseded) {
            (0, true) => Step::Remove,
            (0, false) => Step::End,
            _ => Step::Record,
        };
        Self {
            count,
            is_superseded,
            step,
            failed: Vec::new(),
        }
    }

    /// What is to be done now.
    #[must_use]
    pub fn step(&self) -> Step {
        self.step.clone()
    }

    /// The step was done, or could not be.
    pub fn handle(&mut self, is_done: bool) {
        self.step = match std::mem::replace(&mut self.step, Step::End) {
            Step::Record if is_done => Step::Move(0),
            Step::Record => {
                // Where it cannot be recorded it stays for a transfer that can.
                self.count = 0;
                Step::End
            }
            Step::Move(at) => {
                if !is_done {
                    self.failed.push(at);
                }
                match at + 1 < self.count {
                    true => Step::Move(at + 1),
                    false if !self.failed.is_empty() => Step::Forget(self.failed.clone()),
                    false if self.is_superseded => Step::SyncNames,
                    false => Step::End,
                }
            }
            Step::Forget(_) if !is_done => Step::RemoveOwn,
            Step::SyncNames if is_done => Step::Remove,
            Step::Forget(_) | Step::RemoveOwn | Step::SyncNames | Step::Remove | Step::End => {
                Step::End
            }
        };
    }

    /// Positions of the files that have a name of this transfer; once it has ended.
    pub fn moved(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.count).filter(|at| !self.failed.contains(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Range;
    use crate::journal::{Shift, Unit};

    fn recorded(path: &[u8], inode: u64, safe: Range) -> Recorded {
        Recorded {
            path: path.to_vec(),
            version: Version {
                len: 100,
                mtime_seconds: 1,
                mtime_nanoseconds: 2,
            },
            shift: None,
            inode,
            safe: RangeSet::from(safe),
            units: Vec::new(),
        }
    }

    /// The steps of a takeover, where those at these places fail, and the files that were moved.
    fn steps(count: usize, is_superseded: bool, failing: &[usize]) -> (Vec<Step>, Vec<usize>) {
        let mut takeover = Takeover::new(count, is_superseded);
        let mut steps = Vec::new();
        while takeover.step() != Step::End {
            steps.push(takeover.step());
            takeover.handle(!failing.contains(&(steps.len() - 1)));
        }
        (steps, takeover.moved().collect())
    }

    /// Nothing is moved before it is recorded, and nothing removed before the new names are safe.
    #[test]
    fn order_of_a_takeover() {
        use Step::*;
        let moves = || vec![Record, Move(0), Move(1)];
        let with = |more: &[Step]| [&moves()[..], more].concat();
        for (superseded, failing, expected, moved) in [
            (true, &[][..], with(&[SyncNames, Remove]), vec![0, 1]),
            (false, &[], moves(), vec![0, 1]),
            (true, &[0], vec![Record], vec![]),
            (true, &[1], with(&[Forget(vec![0])]), vec![1]),
            (true, &[2, 3], with(&[Forget(vec![1]), RemoveOwn]), vec![0]),
            (true, &[3], with(&[SyncNames]), vec![0, 1]),
        ] {
            assert_eq!(
                steps(2, superseded, failing),
                (expected, moved),
                "{failing:?}"
            );
        }
        assert_eq!(steps(0, true, &[]), (vec![Remove], vec![]));
        assert_eq!(steps(0, false, &[]), (vec![], vec![]));
    }

    /// Another version is not adopted, and of a sink that is read back only what has hashes.
    #[test]
    fn what_is_adoptable() {
        let mut file = recorded(b"a", 0, Range::new(0, 50));
        file.units.push(Unit {
            range: Range::new(10, 20),
            digest: [0; 32],
        });
        assert_eq!(file.adoptable(file.version, Adopt::All), file.safe);
        let hashed = RangeSet::from(Range::new(10, 20));
        assert_eq!(file.adoptable(file.version, Adopt::Hashed), hashed);
        for other in [
            Version {
                len: 99,
                ..file.version
            },
            Version {
                mtime_seconds: 2,
                ..file.version
            },
            Version {
                mtime_nanoseconds: 3,
                ..file.version
            },
        ] {
            assert!(file.adoptable(other, Adopt::All).is_empty(), "{other:?}");
        }
    }

    /// Only the file that was recorded, of one name, that has these bytes.
    #[test]
    fn what_is_seen_as_recorded() {
        let seen = Seen {
            is_file: true,
            has_one_name: true,
            len: 50,
            inode: 7,
        };
        let file = recorded(b"a", 7, Range::new(0, 50));
        assert!(file.is_seen(&seen, &file.safe));
        let any_inode = recorded(b"a", 0, Range::new(0, 50));
        assert!(any_inode.is_seen(&seen, &file.safe));
        for other in [
            Seen {
                is_file: false,
                ..seen
            },
            Seen {
                has_one_name: false,
                ..seen
            },
            Seen { len: 49, ..seen },
            Seen { inode: 8, ..seen },
        ] {
            assert!(!file.is_seen(&other, &file.safe), "{other:?}");
        }
    }

    /// Journals of one file are joined; another file under the same path adds nothing.
    #[test]
    fn journals_of_one_file_are_joined() {
        let files = joined([
            recorded(b"a", 1, Range::new(0, 10)),
            recorded(b"b", 2, Range::new(0, 10)),
            recorded(b"a", 1, Range::new(20, 30)),
            recorded(b"a", 9, Range::new(40, 50)),
        ]);
        let safe = RangeSet::from_ranges([Range::new(0, 10), Range::new(20, 30)]);
        assert_eq!((files.len(), &files[0].safe), (2, &safe));
    }

    /// Of rows each source is one of its own: another shift, or another version, is another source. How much of it is wanted differs
    /// from node to node.
    #[test]
    fn journals_of_one_source_are_joined() {
        let row = |by, mtime_seconds, wanted, safe| {
            let file = recorded(b"half", 1, safe);
            Recorded {
                shift: Some(Shift { by, wanted }),
                version: Version {
                    mtime_seconds,
                    ..file.version
                },
                ..file
            }
        };
        let files = joined([
            row(0, 1, 10, Range::new(0, 10)),
            row(5, 1, 10, Range::new(10, 20)),
            row(0, 2, 10, Range::new(20, 30)),
            row(0, 1, 30, Range::new(30, 40)),
        ]);
        let safe = RangeSet::from_ranges([Range::new(0, 10), Range::new(30, 40)]);
        assert_eq!((files.len(), &files[0].safe), (3, &safe));
    }

    /// Of two leftovers of a file one is of use.
    #[test]
    fn the_largest_leftover_of_a_file_is_kept() {
        let mut leftovers = [vec![(1, 10), (2, 5)], vec![(1, 3), (2, 5)], vec![(3, 1)]];
        keep_largest(&mut leftovers, |file| *file);
        assert_eq!(leftovers, [vec![(1, 10)], vec![(2, 5)], vec![(3, 1)]]);
    }

    /// Little is not kept where the user asked for the end.
    #[test]
    fn what_is_worth_keeping() {
        for (safe, failed, went_on, is) in [
            (KEPT_MIN, false, false, true),
            (KEPT_MIN - 1, false, false, false),
            (KEPT_MIN_FAILED, true, false, true),
            (KEPT_MIN_FAILED, false, true, true),
            (KEPT_MIN_FAILED - 1, true, true, false),
        ] {
            assert_eq!(is_worth_keeping(safe, failed, went_on), is, "{safe}");
        }
    }
}
