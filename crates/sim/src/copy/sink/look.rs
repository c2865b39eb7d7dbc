//! What is there before anything is written: files that are the same, and what earlier transfers left.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::journal::{
    Adopt, Header, Recorded, Seen, Step, Takeover, Unit, decode, joined, keep_largest, pieces,
};

use super::{Left, Leftover, Place, Sink, id_of};
use crate::disk::Disk;

impl Sink {
    /// Finds files that are the same, and what earlier transfers left.
    pub(super) fn look(&mut self, disk: &Disk, adopt: Adopt) {
        let mut unchanged = BTreeSet::new();
        for object in 0..self.files.len() as u32 {
            let file = &self.files[object as usize];
            // A file that has its name is whole; its time says which version it is.
            let named = disk.inode(&self.final_name(object));
            let is_same = named.is_some_and(|inode| !disk.marked(inode, file.mark(0)).is_empty());
            if is_same {
                unchanged.insert(object);
                self.unchanged.insert(self.space(object));
            }
        }
        let mut journals: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for name in disk.names().filter(|name| name.ends_with(".journal")) {
            let id = id_of(name).unwrap_or_default();
            let id = id.split('.').next().unwrap_or_default();
            let temporary = format!(".to.{id}");
            journals.entry(temporary).or_default().push(name.to_owned());
        }
        for (temporary, journals) in journals {
            let is_in_place = temporary == self.temporary;
            let inodes = journals.iter().filter_map(|name| disk.inode(name));
            let inodes: Vec<u64> = inodes.collect();
            if !is_in_place && inodes.iter().any(|inode| disk.is_locked(*inode)) {
                continue;
            }
            let read = |inode: &u64| match Header::decode(disk.log(*inode)) {
                Ok((_, records)) => Some(decode(records)),
                Err(_) => None,
            };
            let Some(recorded) = inodes.iter().map(read).collect::<Option<Vec<_>>>() else {
                continue;
            };
            let base = temporary.trim_end_matches("-kept").to_owned();
            let places = vec![base.clone(), format!("{base}-kept")];
            let recorded = joined(recorded.into_iter().flatten());
            let leftover = self.found(
                disk,
                &recorded,
                &unchanged,
                journals,
                places,
                adopt,
                is_in_place,
            );
            self.leftovers.push(leftover);
        }
        let files = self
            .leftovers
            .iter_mut()
            .map(|leftover| &mut leftover.files);
        keep_largest(files, |file| (file.object, file.safe.len_bytes()));
        for leftover in &mut self.leftovers {
            let is_superseded = leftover.takeover.step() != Step::End;
            leftover.takeover = Takeover::new(leftover.files.len(), is_superseded);
        }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "what a look at one leftover needs"
    )]
    fn found(
        &self,
        disk: &Disk,
        recorded: &[Recorded],
        unchanged: &BTreeSet<u32>,
        journals: Vec<String>,
        places: Vec<String>,
        adopt: Adopt,
        is_in_place: bool,
    ) -> Leftover {
        let mut is_superseded = !is_in_place;
        let mut files = Vec::new();
        for file in recorded {
            let Some(object) = self.object(&file.path) else {
                is_superseded = false;
                continue;
            };
            let version = self.files[object as usize].version();
            let safe = file.adoptable(version, adopt);
            if unchanged.contains(&object) || safe.is_empty() {
                continue;
            }
            let path = &self.files[object as usize].path;
            let seen = places.iter().find_map(|place| {
                let name = format!("{place}/{path}");
                let inode = disk.inode(&name)?;
                let seen = Seen {
                    is_file: true,
                    has_one_name: true,
                    len: disk.len(inode),
                    inode,
                };
                file.is_seen(&seen, &safe).then_some((name, inode))
            });
            if let Some((name, inode)) = seen {
                let units = file.units.clone();
                files.push(Left {
                    object,
                    name,
                    inode,
                    safe,
                    units,
                });
            }
        }
        Leftover {
            journals,
            places,
            takeover: Takeover::new(0, is_superseded),
            files,
        }
    }

    /// Does one step of taking over what was left; false when there is none.
    pub fn prepare(&mut self, disk: &mut Disk) -> bool {
        let is_open = |leftover: &Leftover| leftover.takeover.step() != Step::End;
        let Some(at) = self.leftovers.iter().position(is_open) else {
            self.note_adopted();
            return false;
        };
        let mut leftovers = std::mem::take(&mut self.leftovers);
        let is_done = self.take(disk, &leftovers[at]);
        leftovers[at].takeover.handle(is_done);
        self.leftovers = leftovers;
        true
    }

    fn take(&mut self, disk: &mut Disk, leftover: &Leftover) -> bool {
        match leftover.takeover.step() {
            Step::Record => {
                self.write_safe(disk, &Self::records_of(leftover));
                self.sync_journal(disk);
                disk.sync_names();
                true
            }
            Step::Move(at) => {
                let found = &leftover.files[at];
                let to = self.staged_name(found.object);
                found.name == to || disk.rename(&found.name, &to)
            }
            Step::Forget(failed) => {
                let numbers: Vec<u32> =
                    failed.iter().map(|at| leftover.files[*at].object).collect();
                self.write_records(disk, |journal| journal.gone(numbers));
                self.sync_journal(disk);
                true
            }
            Step::RemoveOwn => {
                disk.remove(&self.journal_name);
                true
            }
            Step::SyncNames => {
                disk.sync_names();
                true
            }
            Step::Remove => {
                let below = |name: &&str| {
                    let is_of = |place: &String| name.starts_with(&format!("{place}/"));
                    leftover.places.iter().any(is_of)
                };
                let names: Vec<String> = disk.names().filter(below).map(str::to_owned).collect();
                for name in names.iter().chain(&leftover.journals) {
                    disk.remove(name);
                }
                true
            }
            Step::End => true,
        }
    }

    fn records_of(leftover: &Leftover) -> Vec<Place> {
        let mut records = Vec::new();
        for found in &leftover.files {
            for (range, digest) in pieces(&found.safe, &found.units) {
                records.push((found.object, found.inode, range, digest));
            }
        }
        records
    }

    fn note_adopted(&mut self) {
        for leftover in std::mem::take(&mut self.leftovers) {
            let moved: BTreeSet<usize> = leftover.takeover.moved().collect();
            for (at, found) in leftover.files.into_iter().enumerate() {
                if !moved.contains(&at) {
                    continue;
                }
                for range in found.safe.iter() {
                    self.adopted.insert(self.in_space(found.object, range));
                }
                let units = found.units.into_iter().map(|unit| Unit {
                    range: self.in_space(found.object, unit.range),
                    ..unit
                });
                self.units.extend(units.collect::<Vec<_>>());
            }
        }
        self.recorded = self.recorded.union(&self.adopted);
    }
}
