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
use std::path::PathBuf;
use std::sync::Mutex;

use rustix::fs::{Mode, OFlags};

use super::{Tree, TreeSink};
use crate::appended::AppendedFile;
use crate::durable;
use crate::error::{Operation, StoreError};
use crate::manifest::{Entry, EntryKind};
use crate::open_files::lock;
use crate::sys;

impl TreeSink {
    /// Has the commit of the complete copy write the checksums of its files, those that were there before among them, to a file.
    ///
    /// * `path`: resolved (as [`crate::Roots`] returns it), not in DEST. A file there is replaced.
    ///
    /// Cost: every file of the copy is read once more, eight at a time.
    pub fn write_checksums(&self, path: PathBuf) {
        let _ = self.staging.target.checksums.set(path);
    }
}

impl Tree {
    /// Writes the list, if one was asked for. All files have their names.
    pub(super) fn list_checksums(&self) -> Result<(), StoreError> {
        let Some(path) = self.checksums.get() else {
            return Ok(());
        };
        let is_file = |entry: &&Entry| {
            matches!(
                entry.kind,
                EntryKind::File { .. } | EntryKind::HardLink { .. }
            )
        };
        let files: Vec<&Entry> = self
            .named()
            .map(|(_, entry)| entry)
            .filter(is_file)
            .collect();
        let lines = Mutex::new(Vec::with_capacity(files.len()));
        durable::for_each(&files, |entry| {
            let line = line(&self.below_parent(entry), &self.checksum(entry)?);
            lock(&lines).push((&entry.path, line));
            Ok(())
        })?;
        let mut lines = std::mem::take(&mut *lock(&lines));
        lines.sort_unstable();
        let text: String = lines.into_iter().map(|(_, line)| line).collect();
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

    fn checksum(&self, entry: &Entry) -> Result<blake3::Hash, StoreError> {
        let path = self.final_path(entry);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let below = self.below_parent(entry);
        let opened = sys::open_beneath(self.parent.as_fd(), &below, flags, Mode::empty())
            .map_err(|errno| StoreError::from_errno(Operation::Open, &path, errno))?;
        let mut hasher = blake3::Hasher::new();
        hasher
            .update_reader(File::from(opened))
            .map_err(|error| StoreError::from_io(Operation::Read, &path, &error))?;
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
