//! A file whose length is not known before it is written: the last process of a stream appends blocks to it.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};

use crate::error::{Operation, StoreError};
use crate::file_sink::{is_file, standing};
use crate::staging::{open_parent, temporary_name};
use crate::sys;

/// A file under a temporary name. Dropped without [`AppendedFile::commit`] it is removed.
#[derive(Debug)]
pub struct AppendedFile {
    path: PathBuf,
    parent: OwnedFd,
    name: Vec<u8>,
    temporary: Vec<u8>,
    is_named: bool,
}

impl AppendedFile {
    /// Makes the temporary file; also gives it opened for writing.
    ///
    /// * `path`: the final name, resolved (as [`crate::Roots`] returns it).
    /// * `id`: makes the temporary name unique; letters, digits and dashes.
    ///
    /// # Errors
    /// [`StoreError::Exists`] when what stands at the path is no file, [`StoreError::ParentMissing`], or what the system reported.
    pub fn create(path: &Path, id: &str) -> Result<(Self, File), StoreError> {
        let (parent, parent_path, name) = open_parent(path)?;
        standing(&parent, &name, path)?;
        let temporary = temporary_name(&name, id)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = sys::open_beneath(parent.as_fd(), &temporary, flags, mode)
            .map_err(|errno| StoreError::from_create(parent_path.join(path), &parent, errno))?;
        let sink = Self {
            path: path.to_owned(),
            parent,
            name,
            temporary,
            is_named: false,
        };
        Ok((sink, file.into()))
    }

    /// Gives it its name and the mode of the file that it replaces, else that of a new file. Its bytes must be synced.
    ///
    /// # Errors
    /// What the system reported; then the temporary file is removed.
    pub fn commit(mut self) -> Result<(), StoreError> {
        let failed = |operation, errno| StoreError::from_errno(operation, &self.path, errno);
        let replaced = standing(&self.parent, &self.name, &self.path)?.filter(is_file);
        let mode = replaced.map_or_else(|| 0o666 & !sys::umask(), |stat| stat.st_mode & 0o777);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = sys::open_beneath(self.parent.as_fd(), &self.temporary, flags, Mode::empty())
            .map_err(|errno| failed(Operation::Open, errno))?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))
            .and_then(|()| rustix::fs::fsync(&file))
            .map_err(|errno| failed(Operation::SetMetadata, errno))?;
        rustix::fs::renameat(&self.parent, &*self.temporary, &self.parent, &*self.name)
            .map_err(|errno| failed(Operation::Rename, errno))?;
        self.is_named = true;
        rustix::fs::fsync(&self.parent).map_err(|errno| failed(Operation::Sync, errno))
    }
}

impl Drop for AppendedFile {
    fn drop(&mut self) {
        if !self.is_named {
            // What cannot be removed is left to the user, under a name that says whose it is.
            let _ = rustix::fs::unlinkat(&self.parent, &*self.temporary, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    const ID: &str = "0123456789abcdef0123456789abcdef-0";

    /// The name appears with the last byte and the mode of what was there; before, and without it, nothing has changed.
    #[test]
    fn it_appears_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let path = folder.join("out");
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let count = || std::fs::read_dir(&folder).unwrap().count();
        let (sink, mut file) = AppendedFile::create(&path, ID).unwrap();
        file.write_all(b"lost").unwrap();
        assert_eq!(count(), 2);
        drop(sink);
        assert_eq!(
            (count(), std::fs::read(&path).unwrap()),
            (1, b"old".to_vec())
        );
        let (sink, mut file) = AppendedFile::create(&path, ID).unwrap();
        assert!(
            AppendedFile::create(&path, ID).is_err(),
            "one process a file"
        );
        file.write_all(b"new").unwrap();
        sink.commit().unwrap();
        assert_eq!(
            (count(), std::fs::read(&path).unwrap()),
            (1, b"new".to_vec())
        );
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        let missing = folder.join("no/out");
        assert!(AppendedFile::create(&missing, ID).is_err());
        assert!(matches!(
            AppendedFile::create(&folder, ID),
            Err(StoreError::Exists { .. })
        ));
    }
}
