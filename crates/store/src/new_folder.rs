//! A folder that appears with all of its files: the last process of a shuffle writes partitions into it.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Operation, StoreError};
use crate::leftovers::Staged;
use crate::staging::{open_parent, remove_entry};
use crate::sys;

/// In temporary names.
const KIND: &str = "folder";

/// A folder under a temporary name. Dropped without [`NewFolder::commit`] it is removed with all below it; what a writer has left
/// that was killed with its agent goes when the name is written again.
#[derive(Debug)]
pub struct NewFolder {
    path: PathBuf,
    parent: OwnedFd,
    name: Vec<u8>,
    temporary: Vec<u8>,
    folder: OwnedFd,
    has_name: bool,
}

impl NewFolder {
    /// Makes the folder; also gives it opened, to make files below it.
    ///
    /// * `path`: the final name, resolved (as [`crate::Roots`] returns it); nothing may be there.
    /// * `id`: makes the temporary name unique; letters, digits and dashes.
    ///
    /// # Errors
    /// [`StoreError::NotNew`] when something is at the path, [`StoreError::ParentMissing`], or what the system reported.
    pub fn create(path: &Path, id: &str) -> Result<(Self, File), StoreError> {
        let (parent, _, name) = open_parent(path)?;
        check_new(&parent, &name, path)?;
        let staged = Staged::new(&name, id, KIND)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        staged.sweep(&parent, flags);
        let folder = staged.make(&parent, || {
            rustix::fs::mkdirat(&parent, &*staged.name, Mode::RWXU)?;
            match sys::open_beneath(parent.as_fd(), &staged.name, flags, Mode::empty()) {
                // Another writer took it for a leftover.
                Err(Errno::NOENT) => Ok(None),
                Err(errno) => {
                    remove_entry(&parent, &staged.name);
                    Err(errno)
                }
                Ok(folder) => Ok(Some(folder)),
            }
        });
        let folder = folder.map_err(|errno| StoreError::from_create(path, &parent, errno))?;
        let sink = Self {
            path: path.to_owned(),
            parent,
            name,
            temporary: staged.name,
            folder,
            has_name: false,
        };
        let folder = sink.folder.try_clone();
        let folder = folder.map_err(|error| StoreError::from_io(Operation::Open, path, &error))?;
        Ok((sink, folder.into()))
    }

    /// Whether nothing has the name by now.
    ///
    /// # Errors
    /// [`StoreError::NotNew`], or what the system reported.
    pub fn check(&self) -> Result<(), StoreError> {
        check_new(&self.parent, &self.name, &self.path)
    }

    /// Gives it its name and the mode of a new folder. Its files must be synced.
    ///
    /// # Errors
    /// [`StoreError::NotNew`] when something has the name by now, or what the system reported; then the folder is removed.
    pub fn commit(mut self) -> Result<(), StoreError> {
        let path = self.path.clone();
        let failed = |operation| move |errno| StoreError::from_errno(operation, path, errno);
        rustix::fs::fchmod(&self.folder, Mode::from_raw_mode(0o777 & !sys::umask()))
            .and_then(|()| sys::sync_folder(&self.folder))
            .map_err(failed.clone()(Operation::SetMetadata))?;
        let parent = self.parent.as_fd();
        match sys::rename_new((parent, &self.temporary), (parent, &self.name)) {
            Ok(()) => {}
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {
                return Err(StoreError::NotNew {
                    path: self.path.clone(),
                });
            }
            Err(errno) => return Err(failed(Operation::Rename)(errno)),
        }
        self.has_name = true;
        sys::sync_folder(&self.parent).map_err(failed(Operation::Sync))
    }
}

fn check_new(parent: &OwnedFd, name: &[u8], path: &Path) -> Result<(), StoreError> {
    match sys::stat_entry(parent.as_fd(), name) {
        Err(Errno::NOENT) => Ok(()),
        Ok(_) => Err(StoreError::NotNew {
            path: path.to_owned(),
        }),
        Err(errno) => Err(StoreError::from_errno(Operation::Inspect, path, errno)),
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        if !self.has_name {
            remove_entry(&self.parent, &self.temporary);
        }
    }
}

/// Opens a folder whose files are to be read.
///
/// * `path`: resolved (as [`crate::Roots`] returns it): a link on it is taken for an attack.
///
/// # Errors
/// [`StoreError::NotADirectory`], or what the system reported.
pub fn open_folder(path: &Path) -> Result<File, StoreError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    sys::open_resolved_path(path, flags, Mode::empty())
        .map(File::from)
        .map_err(|errno| StoreError::from_errno(Operation::Open, path, errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::PermissionsExt as _;

    const ID: &str = "0123456789abcdef0123456789abcdef-0";

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        (folder, path)
    }

    fn count(folder: &Path) -> usize {
        std::fs::read_dir(folder).unwrap().count()
    }

    fn write(folder: &File, name: &str) {
        let flags = OFlags::WRONLY | OFlags::CREATE;
        rustix::fs::openat(folder, name, flags, Mode::RUSR).unwrap();
    }

    /// The folder appears with its files and the mode of a new one; without a commit nothing is left.
    #[test]
    fn it_appears_whole_or_not_at_all() {
        let (_keep, folder) = folder();
        let path = folder.join("out");
        let (sink, opened) = NewFolder::create(&path, ID).unwrap();
        write(&opened, "part");
        assert!(!path.exists());
        drop(sink);
        assert_eq!(count(&folder), 0);
        let (sink, opened) = NewFolder::create(&path, ID).unwrap();
        write(&opened, "part");
        sink.commit().unwrap();
        assert!(path.join("part").exists());
        assert_eq!(count(&folder), 1);
        let mode = path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o777 & !sys::umask());
    }

    /// What is there is refused at the begin, and what appears meanwhile at the end; neither is changed.
    #[test]
    fn nothing_is_replaced() {
        let (_keep, folder) = folder();
        let path = folder.join("out");
        let (sink, _) = NewFolder::create(&path, ID).unwrap();
        std::fs::create_dir(&path).unwrap();
        let taken = sink.commit().unwrap_err();
        assert!(matches!(taken, StoreError::NotNew { .. }), "{taken}");
        let exists = NewFolder::create(&path, ID).unwrap_err();
        assert!(matches!(exists, StoreError::NotNew { .. }), "{exists}");
        assert_eq!((count(&folder), count(&path)), (1, 0));
        let error = NewFolder::create(&folder.join("no/out"), ID).unwrap_err();
        assert!(matches!(error, StoreError::ParentMissing { .. }), "{error}");
    }

    /// What a killed writer has left goes when the name is written again; what is being written stays.
    #[test]
    fn what_killed_writers_left_is_removed() {
        let (_keep, folder) = folder();
        let path = folder.join("out");
        let left = Staged::new(b"out", ID, KIND).unwrap().name;
        let left = folder.join(OsStr::from_bytes(&left));
        std::fs::create_dir_all(left.join("below")).unwrap();
        let standing = NewFolder::create(&path, "id-1").unwrap();
        assert!(!left.exists());
        let other = NewFolder::create(&path, "id-2").unwrap();
        assert_eq!(count(&folder), 2);
        drop((standing, other));
        assert_eq!(count(&folder), 0);
    }
}
