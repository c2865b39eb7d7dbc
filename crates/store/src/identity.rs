//! Which version of a file is there, and whether it is one that can be a source.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, Stat};

use crate::error::{Operation, StoreError};
use crate::file_systems::FileSystem;
use crate::sys;

/// What distinguishes one version of a file from another without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Bytes in the file.
    pub len: u64,
    /// Modification time, whole seconds since 1970.
    pub mtime_seconds: i64,
    /// Nanoseconds after `mtime_seconds`.
    pub mtime_nanoseconds: u32,
}

impl Identity {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            len: stat.st_size as u64,
            mtime_seconds: stat.st_mtime,
            mtime_nanoseconds: stat.st_mtime_nsec as u32,
        }
    }
}

/// Reads the identity and the permission bits of a file that is to be a source.
///
/// The path must be resolved (as [`crate::Roots`] returns it): a link on it is taken for an attack.
///
/// # Errors
/// [`StoreError::NoSize`] when the system makes its contents, else [`StoreError`] when it cannot be inspected or is no
/// regular file.
pub fn identity(path: &Path) -> Result<(Identity, u32), StoreError> {
    let failed = |errno| StoreError::from_errno(Operation::Inspect, path, errno);
    let file = sys::open_resolved_path(path, OFlags::PATH, Mode::empty()).map_err(failed)?;
    let stat = rustix::fs::fstat(&file).map_err(failed)?;
    check_kind(path, &stat)?;
    if FileSystem::of(&file).is_some_and(FileSystem::makes_contents) {
        return Err(StoreError::NoSize {
            path: path.to_owned(),
        });
    }
    Ok((Identity::of(&stat), stat.st_mode & 0o7777))
}

/// The number of a file on its file system, and which version of it is there; `None` for what is no file.
#[must_use]
pub fn file_number(path: &Path) -> Option<(u64, Identity)> {
    let stat = rustix::fs::lstat(path).ok()?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    is_file.then(|| (stat.st_ino, Identity::of(&stat)))
}

/// By what other processes know an open file or folder, whatever path leads them to it; empty where nothing is sure.
///
/// On this host: by its file system and number. On file systems that several hosts see: by its number, length and times, which no two
/// files of different servers share.
#[must_use]
pub fn known_as(file: impl AsFd) -> Vec<u8> {
    let Ok(stat) = rustix::fs::fstat(&file) else {
        return Vec::new();
    };
    if FileSystem::of(&file).is_some_and(FileSystem::may_be_shared) {
        let modified = (stat.st_mtime, stat.st_mtime_nsec);
        let changed = (stat.st_ctime, stat.st_ctime_nsec);
        let (inode, len) = (stat.st_ino, stat.st_size);
        return format!("shared {inode} {len} {modified:?} {changed:?}").into_bytes();
    }
    // The same in all containers of the host.
    match std::fs::read_to_string("/proc/sys/kernel/random/boot_id") {
        Ok(host) => format!("{} {} {}", host.trim(), stat.st_dev, stat.st_ino).into_bytes(),
        Err(_) => Vec::new(),
    }
}

/// Opens a file that is to be read from its begin to its end; also gives its length. Never waits for a writer.
///
/// * `path`: resolved (as [`crate::Roots`] returns it): a link on it is taken for an attack.
///
/// # Errors
/// [`StoreError::SpecialFile`] for a pipe, a device and the like, [`StoreError::NoFile`] for a folder, else what the system reported.
pub fn open_whole(path: &Path) -> Result<(File, u64), StoreError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = sys::open_resolved_path(path, flags, Mode::empty())
        .map_err(|errno| StoreError::from_errno(Operation::Open, path, errno))?;
    let stat = rustix::fs::fstat(&file)
        .map_err(|errno| StoreError::from_errno(Operation::Inspect, path, errno))?;
    check_kind(path, &stat)?;
    Ok((file.into(), stat.st_size as u64))
}

/// Refuses what is no regular file; a folder with other advice than a device.
pub(crate) fn check_kind(path: &Path, stat: &Stat) -> Result<(), StoreError> {
    let path = || path.to_owned();
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(StoreError::NoFile {
            path: path(),
            kind: sys::kind_in_words(FileType::Directory),
        }),
        kind => Err(StoreError::SpecialFile {
            path: path(),
            kind: sys::kind_in_words(kind),
        }),
    }
}
