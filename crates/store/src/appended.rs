//! A file whose length is not known before it is written: the last process of a stream appends blocks to it.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, Stat};

use crate::error::{Operation, StoreError};
use crate::file_sink::{is_file, standing};
use crate::leftovers::Staged;
use crate::staging::open_parent;
use crate::sys;

/// In temporary names.
const KIND: &str = "stream";

/// A file without a name, or, where the file system has none such, under a temporary one. Dropped without
/// [`AppendedFile::commit`] it is removed; one without a name goes with the last process that has it open, however that ends.
#[derive(Debug)]
pub struct AppendedFile {
    path: PathBuf,
    parent: OwnedFd,
    name: Vec<u8>,
    temporary: Vec<u8>,
    file: File,
    // Something stands under the temporary name.
    is_staged: bool,
    // What stood under the final name.
    before: Option<Standing>,
}

/// A file and its contents, as far as attributes show; its mode, owner and number of names may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    device: u64,
    inode: u64,
    len: i64,
    modified: (i64, u32),
}

impl Standing {
    fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            len: stat.st_size,
            modified: (stat.st_mtime, stat.st_mtime_nsec as u32),
        }
    }
}

impl AppendedFile {
    /// Makes the file; also gives it opened for writing.
    ///
    /// * `path`: the final name, resolved (as [`crate::Roots`] returns it).
    /// * `id`: makes the temporary name unique; letters, digits and dashes.
    ///
    /// # Errors
    /// [`StoreError::Exists`] when what is at the path is no file, [`StoreError::ParentMissing`], or what the system reported.
    pub fn create(path: &Path, id: &str) -> Result<(Self, File), StoreError> {
        let (parent, parent_path, name) = open_parent(path)?;
        let before = standing(&parent, &name, path)?;
        let staged = Staged::new(&name, id, KIND)?;
        staged.sweep(&parent, OFlags::WRONLY | OFlags::NONBLOCK);
        let failed = |errno| StoreError::from_create(parent_path.join(path), &parent, errno);
        let (file, is_staged) = match sys::nameless(parent.as_fd()) {
            Ok(file) => {
                // It gets the temporary name for a moment when it is committed; best effort.
                let _ = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
                (file, false)
            }
            Err(_) => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
                let mode = Mode::RUSR | Mode::WUSR;
                let file = staged.make(&parent, || {
                    sys::open_beneath(parent.as_fd(), &staged.name, flags, mode).map(Some)
                });
                (file.map_err(failed)?, true)
            }
        };
        let sink = Self {
            path: path.to_owned(),
            before: before.map(|stat| Standing::of(&stat)),
            parent,
            name,
            temporary: staged.name,
            file: file.into(),
            is_staged,
        };
        let file = sink.file.try_clone();
        let file = file.map_err(|error| StoreError::from_io(Operation::Open, path, &error))?;
        Ok((sink, file))
    }

    /// Whether [`AppendedFile::commit`] would find the path as it was.
    ///
    /// # Errors
    /// [`StoreError::ReplacedMeanwhile`] when something else is at the path than before, or what the system reported.
    pub fn check(&self) -> Result<(), StoreError> {
        self.replaced().map(drop)
    }

    /// What the file replaces; an error where that is something else than before.
    fn replaced(&self) -> Result<Option<Stat>, StoreError> {
        let replaced = standing(&self.parent, &self.name, &self.path)?;
        match replaced.as_ref().map(Standing::of) == self.before {
            true => Ok(replaced),
            false => Err(StoreError::ReplacedMeanwhile {
                path: self.path.clone(),
            }),
        }
    }

    /// Gives it its name and the mode of the file that it replaces, else that of a new file. Its bytes must be synced.
    ///
    /// # Errors
    /// [`StoreError::ReplacedMeanwhile`] when something else is at the path than before, or what the system reported; then the
    /// file is removed.
    pub fn commit(mut self) -> Result<(), StoreError> {
        let path = self.path.clone();
        let failed = |operation| move |errno| StoreError::from_errno(operation, path, errno);
        let replaced = self.replaced()?.filter(is_file);
        let mode = replaced.map_or_else(|| 0o666 & !sys::umask(), |stat| stat.st_mode & 0o777);
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode))
            .and_then(|()| rustix::fs::fsync(&self.file))
            .map_err(failed.clone()(Operation::SetMetadata))?;
        if !self.is_staged {
            sys::link(self.file.as_fd(), self.parent.as_fd(), &self.temporary)
                .map_err(failed.clone()(Operation::Create))?;
            self.is_staged = true;
        }
        rustix::fs::renameat(&self.parent, &*self.temporary, &self.parent, &*self.name)
            .map_err(failed.clone()(Operation::Rename))?;
        self.is_staged = false;
        sys::sync_folder(&self.parent).map_err(failed(Operation::Sync))
    }
}

impl Drop for AppendedFile {
    fn drop(&mut self) {
        if self.is_staged {
            // What cannot be removed is left to the user, under a name that says whose it is.
            let _ = rustix::fs::unlinkat(&self.parent, &*self.temporary, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::failing;
    use std::ffi::OsStr;
    use std::io::Write as _;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::PermissionsExt as _;

    const ID: &str = "0123456789abcdef0123456789abcdef-0";

    /// Under a temporary name, as where a file system has no files without one.
    fn create_named(path: &Path, id: &str) -> Result<(AppendedFile, File), StoreError> {
        failing::lack_nameless(true);
        let made = AppendedFile::create(path, id);
        failing::lack_nameless(false);
        made
    }

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        (folder, path)
    }

    /// The name appears with the last byte and the mode of what was there; before, and without it, nothing has changed.
    #[test]
    fn it_appears_whole_or_not_at_all() {
        for create in [AppendedFile::create, create_named] {
            let (_keep, folder) = folder();
            let path = folder.join("out");
            std::fs::write(&path, "old").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
            let count = || std::fs::read_dir(&folder).unwrap().count();
            let create = |path: &Path| create(path, ID);
            let (sink, mut file) = create(&path).unwrap();
            file.write_all(b"lost").unwrap();
            assert_eq!(count(), 1 + usize::from(sink.is_staged));
            drop(sink);
            assert_eq!(
                (count(), std::fs::read(&path).unwrap()),
                (1, b"old".to_vec())
            );
            let (sink, mut file) = create(&path).unwrap();
            file.write_all(b"new").unwrap();
            sink.commit().unwrap();
            assert_eq!(
                (count(), std::fs::read(&path).unwrap()),
                (1, b"new".to_vec())
            );
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
            assert!(create(&folder.join("no/out")).is_err());
            assert!(matches!(create(&folder), Err(StoreError::Exists { .. })));
        }
    }

    /// What a killed writer has left goes when the name is written again, with or without a temporary name; what is being written, and what
    /// transfers have left, stays.
    #[test]
    fn what_killed_writers_left_is_removed() {
        let (_keep, folder) = folder();
        let path = folder.join("out");
        let create = |id: &str| create_named(&path, id).unwrap();
        let digits = "0123456789abcdef0123456789abcdef";
        let left = Staged::new(b"out", &format!("{digits}-0"), KIND)
            .unwrap()
            .name;
        let left = folder.join(OsStr::from_bytes(&left));
        let transfer = folder.join(format!(".out.ropewalk-{digits}-0"));
        for path in [&left, &transfer] {
            std::fs::write(path, "left").unwrap();
        }
        let standing = create(&format!("{digits}-1"));
        assert!(!left.exists() && transfer.exists());
        let other = create(&format!("{digits}-2"));
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 3);
        drop((standing, other));
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        std::fs::write(&left, "left").unwrap();
        let nameless = AppendedFile::create(&path, &format!("{digits}-1")).unwrap();
        assert!(!left.exists() && transfer.exists());
        // While it is committed it has a temporary name.
        let named = folder.join(OsStr::from_bytes(&nameless.0.temporary));
        let (file, parent) = (nameless.0.file.as_fd(), nameless.0.parent.as_fd());
        sys::link(file, parent, &nameless.0.temporary).unwrap();
        drop(create(&format!("{digits}-2")));
        assert!(named.exists());
    }

    /// Of two writers of one name the second to commit is refused, and the file of the first stays.
    #[test]
    fn a_second_writer_is_refused() {
        for before in [None, Some("old")] {
            let (_keep, folder) = folder();
            let path = folder.join("out");
            if let Some(text) = before {
                std::fs::write(&path, text).unwrap();
            }
            let create = |text: &[u8], id: &str| {
                let (sink, mut file) = AppendedFile::create(&path, id).unwrap();
                file.write_all(text).unwrap();
                sink
            };
            let (one, other) = (create(b"one", "1"), create(b"other", "2"));
            other.check().unwrap();
            one.commit().unwrap();
            let foreseen = other.check().unwrap_err();
            assert!(
                matches!(foreseen, StoreError::ReplacedMeanwhile { .. }),
                "{foreseen}"
            );
            let refused = other.commit().unwrap_err();
            assert!(
                matches!(refused, StoreError::ReplacedMeanwhile { .. }),
                "{refused}"
            );
            assert_eq!(std::fs::read(&path).unwrap(), b"one");
            assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        }
    }

    /// Another mode or name of the file that it replaces is no other file.
    #[test]
    fn attributes_of_what_was_there_may_change() {
        let (_keep, folder) = folder();
        let path = folder.join("out");
        std::fs::write(&path, "old").unwrap();
        let (sink, mut file) = AppendedFile::create(&path, ID).unwrap();
        file.write_all(b"new").unwrap();
        std::fs::hard_link(&path, folder.join("backup")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        sink.commit().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}
