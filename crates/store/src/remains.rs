//! What transfers that ended have left at a destination under temporary names: found and removed without a transfer.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ropewalk_model::RangeSet;
use ropewalk_model::journal::Version;
use rustix::fs::{Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::claims::{TAKEN, is_ours};
use crate::error::{Operation, StoreError};
use crate::file_systems::FileSystem;
use crate::journal::{self, Found, Left};
use crate::staging::{is_temporary, open_parent, temporary_begin, try_remove_entry};
use crate::sys;

/// Why a leftover may, or may not, be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemainState {
    /// Its journal states which bytes are on stable storage: the next copy to the destination sends the others only.
    Resumable,
    /// A process holds its lock: a transfer runs.
    InUse,
    /// Made by a process of another host: locks are of no use there.
    OtherHost,
    /// Its file system has no locks, so whether a transfer runs is not known.
    NoLocks,
    /// Made by another user.
    OtherUser,
    /// Its journal is another version's of this program, which knows what is safe.
    OtherVersion,
    /// It has no journal, so neither what is safe nor whether a transfer runs is known.
    Unrecorded,
}

/// What a transfer has left under one temporary name.
#[derive(Debug)]
pub struct Remain {
    /// The temporary file or folder, or its journal where only that is left.
    pub path: PathBuf,
    /// See [`RemainState`].
    pub state: RemainState,
    /// Bytes of the journal's files that are on stable storage.
    pub safe: u64,
    /// Lengths of these files.
    pub total: u64,
    /// How many they are.
    pub files: u64,
    /// When it was last written.
    pub modified: SystemTime,
    folder: OwnedFd,
    // Journals are the last of them.
    names: Vec<Vec<u8>>,
    // Hold the locks, so that no transfer takes over what is removed.
    _left: Vec<Left>,
}

/// What was left for a destination, and for destinations directly below it: sorted by path. Folders of it that cannot be listed are passed over.
///
/// Cost: one pass over the folder of the destination, the destination and each folder in it, and a read of each journal.
///
/// # Errors
/// [`StoreError::Vanished`] for a missing folder of the destination, or what the system reported when the folder was opened or read.
pub fn remains(dest: &Path) -> Result<Vec<Remain>, StoreError> {
    let mut found = Vec::new();
    // The root, or a path that ends in `..`, has nothing beside it that is found by name.
    let resolved = resolve(dest);
    if resolved.file_name().is_some() {
        let (folder, path, name) = open_parent(&resolved).map_err(nothing_there)?;
        find(&folder, &path, &temporary_begin(&name), &mut found)?;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    match sys::open_resolved_path(&resolved, flags, Mode::empty()) {
        Ok(folder) => {
            find(&folder, &resolved, b".", &mut found)?;
            find_in_folders(&folder, &resolved, &mut found)?;
        }
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
        Err(errno) => return Err(StoreError::from_errno(Operation::Open, &resolved, errno)),
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Nothing is to be written: a folder that is missing needs not be made.
fn nothing_there(error: StoreError) -> StoreError {
    match error {
        StoreError::ParentMissing { parent, .. } => StoreError::Vanished {
            path: parent,
            operation: Operation::List,
        },
        other => other,
    }
}

/// A path without links; its last name need not exist.
fn resolve(path: &Path) -> PathBuf {
    if let Ok(path) = path.canonicalize() {
        return path;
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => match Path::new(".").join(parent).canonicalize() {
            Ok(parent) => parent.join(name),
            Err(_) => path.to_owned(),
        },
        _ => path.to_owned(),
    }
}

/// What was left for destinations that are folders of this one: copies that are merged into one have their temporary names in it.
fn find_in_folders(dest: &OwnedFd, path: &Path, found: &mut Vec<Remain>) -> Result<(), StoreError> {
    let failed = |errno| StoreError::from_errno(Operation::List, path, errno);
    for entry in Dir::read_from(dest).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_bytes();
        let may_be_folder = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
        if !may_be_folder || matches!(name, b"." | b"..") || is_temporary(name) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let Ok(folder) = sys::open_beneath(dest.as_fd(), name, flags, Mode::empty()) else {
            continue;
        };
        let path = path.join(OsStr::from_bytes(name));
        // A dead mount, or a damaged folder.
        let _ = find(&folder, &path, &temporary_begin(name), found);
    }
    Ok(())
}

/// * `begin`: what the names begin with.
fn find(
    folder: &OwnedFd,
    path: &Path,
    begin: &[u8],
    found: &mut Vec<Remain>,
) -> Result<(), StoreError> {
    let failed = |operation, errno| StoreError::from_errno(operation, path, errno);
    // By temporary name: what there is of it.
    let mut names: BTreeMap<Vec<u8>, Names> = BTreeMap::new();
    for entry in Dir::read_from(folder).map_err(|errno| failed(Operation::List, errno))? {
        let entry = entry.map_err(|errno| failed(Operation::List, errno))?;
        let name = entry.file_name().to_bytes();
        if !name.starts_with(begin) || !is_temporary(name) {
            continue;
        }
        let temporary = journal::temporary_of(name);
        // A transfer that was taking it over was killed.
        let whole = || name.strip_suffix(TAKEN).unwrap_or(name);
        let names = names.entry(temporary.unwrap_or_else(whole).to_vec());
        let names = names.or_default();
        match temporary {
            Some(_) => names.journals.push(name.to_vec()),
            None => names.contents.push(name.to_vec()),
        }
    }
    for names in names.into_values() {
        let mut all = names.contents.iter().chain(&names.journals);
        // What is gone by now needs no line.
        let Some(first) = all.next().cloned() else {
            continue;
        };
        let Ok(stat) = sys::stat_entry(folder.as_fd(), &first) else {
            continue;
        };
        let journals = names.journals.iter();
        let states = journals.map(|journal| state_of(folder, journal, &stat));
        let (states, left): (Vec<RemainState>, Vec<Option<Left>>) = states.unzip();
        // Several nodes wrote it: one of them that lives uses it, whatever is known of the others.
        let state = states.into_iter().max_by_key(|state| match state {
            RemainState::InUse => 2,
            RemainState::Resumable => 0,
            RemainState::OtherHost
            | RemainState::NoLocks
            | RemainState::OtherUser
            | RemainState::OtherVersion
            | RemainState::Unrecorded => 1,
        });
        let state = state.unwrap_or_else(|| without_journal(folder, &first, &stat));
        let left: Vec<Left> = left.into_iter().flatten().collect();
        let times = names.journals.iter();
        let times = times.filter_map(|name| sys::stat_entry(folder.as_fd(), name).ok());
        let written = times.max_by_key(|stat| stat.st_mtime);
        // What has got its name is not left.
        let is_there = |path: &[u8]| {
            let file = [&first[..], b"/", path].concat();
            let is_gone = matches!(sys::stat_entry(folder.as_fd(), &file), Err(Errno::NOENT));
            path.is_empty() || !is_gone
        };
        let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let (safe, total, files) = recorded(&left, |path| !is_folder || is_there(path));
        let folder = folder.try_clone();
        found.push(Remain {
            path: path.join(OsStr::from_bytes(&first)),
            state,
            safe,
            total,
            files,
            modified: modified(&written.unwrap_or(stat)),
            folder: folder.map_err(|error| StoreError::from_io(Operation::Open, path, &error))?,
            names: [names.contents, names.journals].concat(),
            _left: left,
        });
    }
    Ok(())
}

/// Bytes that are safe, and all, of the files of journals, and how many these are. Sources of rows are written into one file.
///
/// * `is_there`: whether a file of a tree is still under the temporary name.
fn recorded(left: &[Left], is_there: impl Fn(&[u8]) -> bool) -> (u64, u64, u64) {
    let mut trees: BTreeMap<&[u8], (u64, u64)> = BTreeMap::new();
    // Several nodes may have recorded the same bytes, and each describes what it was to write.
    let mut rows: BTreeMap<(&[u8], Version, u64), (RangeSet, u64)> = BTreeMap::new();
    let (mut safe, mut total, mut files) = (0_u64, 0_u64, 0);
    for file in left.iter().flat_map(|left| &left.files) {
        if let Some(shift) = file.shift {
            let source = (&*file.path, file.version, shift.by);
            let (of_source, wanted) = rows.entry(source).or_default();
            *of_source = of_source.union(&file.safe);
            *wanted = shift.wanted.max(*wanted);
            files = 1;
            continue;
        }
        let known = trees.entry(&file.path).or_default();
        *known = (known.0 + file.safe.len_bytes(), file.version.len);
    }
    for (of_source, wanted) in rows.values() {
        safe = safe.saturating_add(of_source.len_bytes());
        total = total.saturating_add(*wanted);
    }
    for (_, (of_file, len)) in trees.iter().filter(|(path, _)| is_there(path)) {
        safe = safe.saturating_add(*of_file.min(len));
        total = total.saturating_add(*len);
        files += 1;
    }
    (safe, total, files)
}

/// What there is of one temporary name.
#[derive(Clone, Debug, Default)]
struct Names {
    contents: Vec<Vec<u8>>,
    journals: Vec<Vec<u8>>,
}

fn state_of(folder: &OwnedFd, journal: &[u8], stat: &Stat) -> (RemainState, Option<Left>) {
    let has_one_owner = FileSystem::of(folder).is_some_and(FileSystem::has_one_owner);
    let is_own = stat.st_uid == rustix::process::geteuid().as_raw() || has_one_owner;
    if !is_own || is_ours(folder, journal) != Some(true) {
        return (RemainState::OtherUser, None);
    }
    match journal::find(folder, journal) {
        Found::Left(left) => (RemainState::Resumable, Some(left)),
        Found::Locked => (RemainState::InUse, None),
        Found::OfOtherHost => (RemainState::OtherHost, None),
        Found::WithoutLocks => (RemainState::NoLocks, None),
        Found::OfOtherVersion => (RemainState::OtherVersion, None),
        Found::Unreadable => (RemainState::Unrecorded, None),
    }
}

/// Output of streams is locked itself.
fn without_journal(folder: &OwnedFd, name: &[u8], stat: &Stat) -> RemainState {
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return RemainState::OtherUser;
    }
    let flags = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile | FileType::Directory => OFlags::RDONLY | OFlags::NONBLOCK,
        _ => return RemainState::Unrecorded,
    };
    let opened = sys::open_beneath(folder.as_fd(), name, flags, Mode::empty());
    match opened.and_then(journal::try_lock) {
        Ok(false) => RemainState::InUse,
        _ => RemainState::Unrecorded,
    }
}

fn modified(stat: &Stat) -> SystemTime {
    let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

impl Remain {
    /// Removes the temporary file or folder, then its journal.
    ///
    /// # Errors
    /// What the system reported for [`Operation::Remove`]; some of it may be gone by then.
    pub fn remove(self) -> Result<(), StoreError> {
        for name in &self.names {
            match try_remove_entry(&self.folder, name) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    let path = self.path.with_file_name(OsStr::from_bytes(name));
                    return Err(StoreError::from_io(Operation::Remove, path, &error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
