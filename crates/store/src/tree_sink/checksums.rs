//! A list of the checksums of a copy, as `b3sum --check` reads it: BLAKE3 of each whole file, read back under its final name.
//!
//! ```text
//!  <64 hexadecimal digits>  set/sub/file          below the folder that holds DEST
//!  \<64 hexadecimal digits>  set/new\nline        where a name has a line break or a backslash
//! ```
//!
//! Names that are not UTF-8 are written with U+FFFD, as b3sum does, which then refuses to check them.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::fs::{FileType, Mode, OFlags};

use super::{Tree, TreeSink};
use crate::appended::AppendedFile;
use crate::error::{Operation, StoreError};
use crate::manifest::{Entry, EntryKind};
use crate::open_files::lock;
use crate::parallel;
use crate::sys;

/// Reasons that are given for files that the list lacks.
const NOT_LISTED_MAX: usize = 100;

impl TreeSink {
    /// Has the commit of the complete copy write the checksums of its files, those that were there before among them, to a file.
    ///
    /// * `path`: resolved (as [`crate::Roots`] returns it), not in DEST. A file there is replaced.
    ///
    /// What cannot be read, is no regular file, or keeps the list from being written does not fail the commit:
    /// [`Landed::not_listed`](crate::Landed::not_listed) has it.
    ///
    /// Cost: every file of the copy is read once more, eight at a time.
    pub fn write_checksums(&self, path: PathBuf) {
        let _ = self.staging.target.checksums.set(path);
    }
}

impl Tree {
    /// Writes the list, if one was asked for, and notes what it lacks. All files have their names.
    pub(super) fn list_checksums(&self) {
        let Some(path) = self.checksums.get() else {
            return;
        };
        let is_file = |entry: &&Entry| {
            matches!(
                entry.kind,
                EntryKind::File { .. } | EntryKind::HardLink { .. }
            )
        };
        let files: Vec<&Entry> = self
            .named()
            .filter(|(object, _)| self.special_of(*object).is_none())
            .map(|(_, entry)| entry)
            .filter(is_file)
            .collect();
        let lines = Mutex::new(Vec::with_capacity(files.len()));
        let lacking = Mutex::new(Vec::new());
        let listed = parallel::for_each(&files, |entry| {
            match self.checksum(entry) {
                Ok(hash) => {
                    let line = line(&self.below_parent(entry), &hash);
                    lock(&lines).push((&entry.path, line));
                }
                Err(reason) => lock(&lacking).push((&entry.path, reason)),
            }
            Ok(())
        });
        let mut lines = std::mem::take(&mut *lock(&lines));
        lines.sort_unstable();
        let text: String = lines.into_iter().map(|(_, line)| line).collect();
        let written = listed.and_then(|()| self.write_list(path, &text));
        let mut lacking = std::mem::take(&mut *lock(&lacking));
        lacking.sort_unstable();
        let lacking = lacking.into_iter();
        let lacking = lacking.map(|(_, reason)| format!("not in the list of checksums: {reason}"));
        let unwritten = written.err();
        let unwritten = unwritten.map(|error| format!("no list of checksums: {error}"));
        let mut reasons: Vec<String> = unwritten.into_iter().chain(lacking).collect();
        let mut landed = lock(&self.landed);
        landed.not_listed_more = reasons.len().saturating_sub(NOT_LISTED_MAX) as u64;
        reasons.truncate(NOT_LISTED_MAX);
        landed.not_listed = reasons;
    }

    fn write_list(&self, path: &Path, text: &str) -> Result<(), StoreError> {
        let (list, mut file) = AppendedFile::create(path, &self.id)?;
        file.write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .map_err(|error| StoreError::from_io(Operation::Write, path, &error))?;
        list.commit()
    }

    /// The path of an entry below the folder that holds DEST.
    fn below_parent(&self, entry: &Entry) -> Vec<u8> {
        match entry.path.is_empty() {
            true => self.name.clone(),
            false => [&self.name[..], b"/", &entry.path].concat(),
        }
    }

    /// In words when there is none.
    fn checksum(&self, entry: &Entry) -> Result<blake3::Hash, String> {
        let path = self.final_path(entry);
        let failed = |errno| StoreError::from_errno(Operation::Open, &path, errno).to_string();
        // A pipe without a writer does not hold the open up, nor does a device become this process's terminal.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let below = self.below_parent(entry);
        let opened = sys::open_beneath(self.parent.as_fd(), &below, flags, Mode::empty());
        let opened = opened.map_err(failed)?;
        let stat = rustix::fs::fstat(&opened).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(format!("{path:?} is no regular file"));
        }
        let mut hasher = blake3::Hasher::new();
        hasher
            .update_reader(File::from(opened))
            .map_err(|error| StoreError::from_io(Operation::Read, &path, &error).to_string())?;
        Ok(hasher.finalize())
    }
}

fn line(path: &[u8], hash: &blake3::Hash) -> String {
    let path = String::from_utf8_lossy(path);
    let hash = hash.to_hex();
    if !path.contains(['\\', '\n']) {
        return format!("{hash}  {path}\n");
    }
    let path = path.replace('\\', "\\\\").replace('\n', "\\n");
    format!("\\{hash}  {path}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names with line breaks and backslashes are escaped, and the line says so.
    #[test]
    fn odd_names_are_escaped() {
        let hash = blake3::hash(b"");
        let hex = hash.to_hex();
        let lines = [
            (&b"a b"[..], format!("{hex}  a b\n")),
            (b"a\nb\\c", format!("\\{hex}  a\\nb\\\\c\n")),
            (b"\xff", format!("{hex}  \u{fffd}\n")),
        ];
        for (path, expected) in lines {
            assert_eq!(line(path, &hash), expected);
        }
    }
}
