//! What file and tree sinks share: positioned writes over a layout, knowing what is not yet safe, and
//! staying failed.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use ropewalk_model::{Layout, Piece};
use rustix::fs::{Advice, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Operation, StoreError};
use crate::file_systems::FileSystem;
use crate::open_files::{ADVISED_MIN, OpenFiles, lock};
use crate::retry::persist;
use crate::sink::SinkExtent;
use crate::source::locate;
use crate::{holes, manifest, parallel, sys};

/// Up to this many files are synced one by one; above, the whole file system is synced at once where that is as good
/// ([`crate::file_systems`]). One `fdatasync` is one wait for the disk's cache, `syncfs` is about two however many files
/// there are, but also writes what other programs have pending.
pub(crate) const SYNC_EACH_MAX: usize = 64;

/// How often a folder is removed to which something is added meanwhile.
const REMOVE_ATTEMPTS_MAX: usize = 8;

/// Longest identification that a temporary name takes.
const ID_LEN_MAX: usize = 64;

/// What follows a temporary name at most: of files that are kept, and of their journal.
const ENDING_LEN_MAX: usize = b"-kept.journal".len();

const MARK: &[u8] = b".ropewalk-";

/// Hexadecimal digits of a name's BLAKE3 that stand for what was cut off: 64 bits, more than all long names of a folder
/// need to differ.
const CUT_HASH_LEN: usize = 16;

/// The temporary names of a sink: how to open them and make them durable.
pub(crate) trait Target: Send + Sync {
    /// Opens an object's temporary file for reading and writing, makes it where it is missing, never
    /// shortens it.
    fn open(&self, object: u32) -> Result<File, StoreError>;
    /// Opens an object for others to read from, where it is now; never makes it.
    fn open_made(&self, object: u32) -> Result<File, StoreError>;
    /// Where the object's temporary file is.
    fn path(&self, object: u32) -> PathBuf;
    /// Whether so many bytes are all of an object.
    fn is_whole(&self, _object: u32, _len: u64) -> bool {
        false
    }
    /// One write has made an object whole, whose file this is. What this does is tried again at the end.
    fn written_whole(&self, _object: u32, _file: &File) {}
    /// Makes new directory entries durable.
    fn sync_names(&self) -> Result<(), StoreError>;
    /// Whether names were changed that [`Target::sync_names`] would make durable, beside those of new objects.
    fn has_unsynced_names(&self) -> bool {
        false
    }
    /// Syncs an object with its metadata, where that counts; `None` where only its bytes do.
    fn sync_with_metadata(&self, _object: u32) -> Option<Result<(), StoreError>> {
        None
    }
    /// The file system that holds all objects, if it is known to be one and to be made safe by one call.
    fn filesystem(&self) -> Option<&OwnedFd>;
}

/// Objects under temporary names.
#[derive(Debug)]
pub(crate) struct Staging<T> {
    pub(crate) layout: Layout,
    pub(crate) target: T,
    files: OpenFiles,
    /// Objects with writes that no sync has covered. Marked after the write, before it is reported.
    dirty: Mutex<BTreeSet<u32>>,
    /// Held during a sync: a second one must not return before the first, which took the marks.
    syncing: Mutex<()>,
    failure: OnceLock<StoreError>,
    /// A disk that is full may have space again while the transfer runs: a write that failed for that reason fails nothing else.
    endures_full_disk: bool,
    /// A sync has failed: what it was to cover is not safe, whatever failed before it.
    sync_failure: OnceLock<StoreError>,
    /// No file is opened any more: that would make again what was renamed or removed. Held for reading while a file is
    /// opened, so that closing waits for it: a file made in a folder that is being removed would keep the folder, and all
    /// that would have been removed after it.
    closed: RwLock<bool>,
    keeps_open: AtomicBool,
    /// Whether commit or discard ended this sink; held during either.
    pub(crate) ended: Mutex<bool>,
}

impl<T: Target> Staging<T> {
    pub(crate) fn new(layout: Layout, target: T, endures_full_disk: bool) -> Self {
        Self {
            layout,
            target,
            files: OpenFiles::new(),
            dirty: Mutex::default(),
            syncing: Mutex::default(),
            failure: OnceLock::new(),
            endures_full_disk,
            sync_failure: OnceLock::new(),
            closed: RwLock::new(false),
            keeps_open: AtomicBool::new(false),
            ended: Mutex::new(false),
        }
    }

    /// The first error of the sink, if it failed.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        self.failure.get().cloned().map_or(Ok(()), Err)
    }

    /// Keeps an error as the sink's first and gives the first one back.
    fn fail(&self, error: StoreError) -> StoreError {
        self.failure.get_or_init(|| error).clone()
    }

    /// As [`Staging::fail`], of a write.
    fn fail_write(&self, error: StoreError) -> StoreError {
        match self.endures_full_disk && error.is_full_disk() {
            true => error,
            false => self.fail(error),
        }
    }

    fn file(&self, object: u32) -> Result<Arc<File>, StoreError> {
        self.open(|| self.files.get(object, || self.target.open(object)))
    }

    /// A small file that is written at once is not kept open, as another one would be closed for it; but it is where the next sync is
    /// one of each file, since what a disk says of a file that nobody has open may be lost.
    fn file_for(&self, piece: &Piece, is_whole: bool) -> Result<Arc<File>, StoreError> {
        let is_small = is_whole && piece.range.len() <= ADVISED_MIN;
        let are_many =
            || self.target.filesystem().is_some() && lock(&self.dirty).len() >= SYNC_EACH_MAX;
        match is_small && are_many() {
            true => self.open(|| self.target.open(piece.object).map(Arc::new)),
            false => self.file(piece.object),
        }
    }

    fn open(
        &self,
        open: impl FnOnce() -> Result<Arc<File>, StoreError>,
    ) -> Result<Arc<File>, StoreError> {
        let closed = self.closed.read().unwrap_or_else(PoisonError::into_inner);
        if *closed {
            return Err(StoreError::Ended);
        }
        open().map_err(|error| {
            // Short of open files now does not mean short of them later.
            match error.is_retryable() {
                true => error,
                false => self.fail_write(error),
            }
        })
    }

    pub(crate) fn write_at(&self, mut offset: u64, mut bytes: &[u8]) -> Result<(), StoreError> {
        self.check()?;
        self.check_held(offset, bytes.len() as u64)?;
        while !bytes.is_empty() {
            let piece = locate(&self.layout, offset, bytes.len() as u64)?;
            let (head, rest) = bytes.split_at(piece.range.len() as usize);
            let is_whole =
                piece.object_offset == 0 && self.target.is_whole(piece.object, piece.range.len());
            let file = self.file_for(&piece, is_whole)?;
            holes::write(&file, head, piece.object_offset).map_err(|error| {
                let error =
                    StoreError::from_io(Operation::Write, self.target.path(piece.object), &error);
                self.fail_write(error.with_missing(head.len() as u64))
            })?;
            if is_whole {
                self.target.written_whole(piece.object, &file);
            }
            lock(&self.dirty).insert(piece.object);
            offset = piece.range.end;
            bytes = rest;
        }
        Ok(())
    }

    /// Refuses a range that the layout lacks a part of, so that no write is done by half.
    fn check_held(&self, offset: u64, len: u64) -> Result<(), StoreError> {
        let end = offset.saturating_add(len);
        let mut at = offset;
        while at < end {
            at = locate(&self.layout, at, end - at)?.range.end;
        }
        Ok(())
    }

    pub(crate) fn read_back(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        let open = |object| self.file(object);
        self.read(offset, buf, open, |file, piece| {
            // Clean pages are dropped, so that what is read comes from the disk. Only advice.
            let len = std::num::NonZeroU64::new(piece.range.len());
            let _ = rustix::fs::fadvise(file, piece.object_offset, len, Advice::DontNeed);
        })
    }

    /// As [`Staging::read_back`], from the page cache where it is there; also after [`Staging::close`], of files that are kept open.
    pub(crate) fn look(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        self.read(offset, buf, |object| self.file_of_others(object), |_, _| {})
    }

    /// A file that other nodes read from: what keeps it from being opened is no failure of this sink, and it is not made, as it may
    /// just get its name.
    fn file_of_others(&self, object: u32) -> Result<Arc<File>, StoreError> {
        if let Some(file) = self.files.find(object) {
            return Ok(file);
        }
        let closed = self.closed.read().unwrap_or_else(PoisonError::into_inner);
        if *closed {
            return Err(StoreError::Ended);
        }
        // Not kept: it may not be writable.
        self.target.open_made(object).map(Arc::new)
    }

    /// * `open`: the file of an object.
    /// * `prepare`: what is done with a file before it is read.
    fn read(
        &self,
        mut offset: u64,
        mut buf: &mut [u8],
        open: impl Fn(u32) -> Result<Arc<File>, StoreError>,
        prepare: impl Fn(&File, &Piece),
    ) -> Result<(), StoreError> {
        self.check()?;
        while !buf.is_empty() {
            let piece = locate(&self.layout, offset, buf.len() as u64)?;
            let (head, rest) = buf.split_at_mut(piece.range.len() as usize);
            let file = open(piece.object)?;
            prepare(&file, &piece);
            file.read_exact_at(head, piece.object_offset)
                .map_err(|error| match error.kind() {
                    ErrorKind::UnexpectedEof => StoreError::NotKept { range: piece.range },
                    _ => {
                        StoreError::from_io(Operation::Read, self.target.path(piece.object), &error)
                    }
                })?;
            offset = piece.range.end;
            buf = rest;
        }
        Ok(())
    }

    pub(crate) fn extent(&self, offset: u64, len: u64) -> Result<Option<SinkExtent>, StoreError> {
        self.check()?;
        let piece = locate(&self.layout, offset, len)?;
        let file = self.file(piece.object)?;
        Ok(Some(SinkExtent {
            file,
            offset: piece.object_offset,
            len: piece.range.len(),
        }))
    }

    pub(crate) fn written(&self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.check()?;
        let end = offset.saturating_add(len);
        let mut at = offset;
        while at < end {
            let piece = locate(&self.layout, at, end - at)?;
            lock(&self.dirty).insert(piece.object);
            at = piece.range.end;
        }
        Ok(())
    }

    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        let _one_at_a_time = lock(&self.syncing);
        self.check()?;
        let dirty = std::mem::take(&mut *lock(&self.dirty));
        if dirty.is_empty() && !self.target.has_unsynced_names() {
            return Ok(());
        }
        self.sync_objects(&dirty).map_err(|error| {
            let error = self.sync_failure.get_or_init(|| error).clone();
            self.fail(error)
        })
    }

    /// As [`Staging::sync`] for what was written before a write failed because the disk was full: that takes nothing back.
    pub(crate) fn sync_written(&self) -> Result<(), StoreError> {
        if !self.failure.get().is_some_and(StoreError::is_full_disk) {
            return self.sync();
        }
        let _one_at_a_time = lock(&self.syncing);
        if let Some(error) = self.sync_failure.get() {
            return Err(error.clone());
        }
        let dirty = std::mem::take(&mut *lock(&self.dirty));
        match dirty.is_empty() {
            true => Ok(()),
            false => self
                .sync_objects(&dirty)
                .map_err(|error| self.sync_failure.get_or_init(|| error).clone()),
        }
    }

    fn sync_objects(&self, dirty: &BTreeSet<u32>) -> Result<(), StoreError> {
        if let Some(filesystem) = self
            .target
            .filesystem()
            .filter(|_| dirty.len() > SYNC_EACH_MAX)
        {
            let path = dirty
                .first()
                .map(|object| self.target.path(*object))
                .unwrap_or_default();
            return rustix::fs::syncfs(filesystem)
                .map_err(|errno| StoreError::from_errno(Operation::Sync, path, errno));
        }
        let objects: Vec<u32> = dirty.iter().copied().collect();
        parallel::for_each(&objects, |object| {
            if let Some(synced) = self.target.sync_with_metadata(*object) {
                return synced;
            }
            // What the sync itself reports it does not report again.
            let file = persist(|| self.file(*object))?;
            rustix::fs::fdatasync(&*file).map_err(|errno| {
                StoreError::from_errno(Operation::Sync, self.target.path(*object), errno)
            })
        })?;
        self.target.sync_names()
    }

    /// The next sync is to cover these objects, too: their metadata were changed.
    pub(crate) fn note_changed(&self, objects: impl IntoIterator<Item = u32>) {
        lock(&self.dirty).extend(objects);
    }

    /// Lets go of open files: what is asked for next is opened anew.
    pub(crate) fn forget_files(&self) {
        self.files.clear();
    }

    /// Ends all use of the files, so that nothing keeps them once they are renamed or removed. Waits for those that are
    /// being opened.
    pub(crate) fn close(&self) {
        *self.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
        self.files.clear();
    }

    /// Closes the file of an object that gets no more bytes.
    pub(crate) fn close_file(&self, object: u32) {
        self.files.close(object);
    }

    /// As [`Staging::close`] where files have their names: with [`Staging::keep_open`], those that are open stay so, for readers.
    pub(crate) fn close_named(&self) {
        match self.keeps_open.load(Ordering::Acquire) {
            true => *self.closed.write().unwrap_or_else(PoisonError::into_inner) = true,
            false => self.close(),
        }
    }

    /// What was written is read by others until the sink is gone.
    pub(crate) fn keep_open(&self) {
        self.keeps_open.store(true, Ordering::Release);
    }
}

/// `.{name}.ropewalk-{id}`: the temporary name beside a final one, the same on every host that is given this id. A name too
/// long for that is cut and ends in digits of its hash: the id is that of the whole transfer, so names that begin alike would share a file.
pub(crate) fn temporary_name(name: &[u8], id: &str) -> Result<Vec<u8>, StoreError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if id.is_empty() || id.len() > ID_LEN_MAX || !id.bytes().all(plain) {
        return Err(StoreError::BadId { id: id.to_owned() });
    }
    Ok([&temporary_begin(name)[..], id.as_bytes()].concat())
}

/// What all temporary names beside a final one begin with: each is this and the id of its transfer.
pub(crate) fn temporary_begin(name: &[u8]) -> Vec<u8> {
    let room = manifest::COMPONENT_LEN_MAX - 1 - MARK.len() - ID_LEN_MAX - ENDING_LEN_MAX;
    if name.len() <= room {
        return [&b"."[..], name, MARK].concat();
    }
    let hash = blake3::hash(name).to_hex();
    let mark = format!("-{}", &hash.as_str()[..CUT_HASH_LEN]);
    let kept = &name[..room - mark.len()];
    [&b"."[..], kept, mark.as_bytes(), MARK].concat()
}

/// Whether a name is one that [`temporary_name`] gives with the id of a transfer, which is 32 hexadecimal digits and
/// sometimes more.
pub(crate) fn is_temporary(name: &[u8]) -> bool {
    let mut marks = name.windows(MARK.len()).enumerate().skip(1);
    name.first() == Some(&b'.')
        && marks.any(|(at, window)| window == MARK && begins_as_id(&name[at + MARK.len()..]))
}

/// Whether it begins as the id of a transfer does.
pub(crate) fn begins_as_id(id: &[u8]) -> bool {
    const DIGITS: usize = 32;
    id.len() >= DIGITS && id[..DIGITS].iter().all(u8::is_ascii_hexdigit)
}

/// Removes what a transfer has left under the temporary name beside a final one, and in a folder of that name, as far
/// as possible. For sinks that could not be made; those that were have [`crate::Sink::discard`].
///
/// * `path`: the final name, resolved (as [`crate::Roots`] returns it).
/// * `id`: of the transfer, as the sink was given it.
pub fn remove_temporary(path: &Path, id: &str) {
    let Ok((parent, _, name)) = open_parent(path) else {
        return;
    };
    let Ok(temporary) = temporary_name(&name, id) else {
        return;
    };
    remove_entry(&parent, &temporary);
    // A tree that is merged into a folder is staged inside it.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    if let Ok(dest) = sys::open_beneath(parent.as_fd(), &name, flags, Mode::empty()) {
        remove_entry(&dest, &temporary);
    }
}

/// Where a transfer may have something under the temporary name of a final one: beside it, and in a folder of that name.
///
/// * `path`, `id`: as of [`remove_temporary`].
#[must_use]
pub fn temporary_paths(path: &Path, id: &str) -> Vec<PathBuf> {
    let name = path.file_name().map(OsStr::as_bytes).unwrap_or_default();
    let Ok(temporary) = temporary_name(name, id) else {
        return Vec::new();
    };
    let folders = [path.parent(), Some(path)].into_iter().flatten();
    let temporary = OsStr::from_bytes(&temporary);
    folders.map(|folder| folder.join(temporary)).collect()
}

/// Makes the last folder of a path; whether it was missing. Its mode is what the user's mask leaves.
///
/// * `path`: resolved (as [`crate::Roots`] returns it). The folder above it must exist.
///
/// # Errors
/// [`StoreError::ParentMissing`], [`StoreError::Exists`] when something else is there, else what the system reported.
pub fn make_folder(path: &Path) -> Result<bool, StoreError> {
    let failed = |operation, errno| StoreError::from_errno(operation, path, errno);
    // The root is always there and has no name.
    if path.file_name().is_none() {
        return Ok(false);
    }
    let (parent, _, name) = open_parent(path)?;
    let mode = Mode::RWXU | Mode::RWXG | Mode::RWXO;
    match rustix::fs::mkdirat(&parent, &*name, mode) {
        Ok(()) => {
            sys::sync_folder(&parent).map_err(|errno| failed(Operation::Sync, errno))?;
            return Ok(true);
        }
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(failed(Operation::Create, errno)),
    }
    let found = sys::stat_entry(parent.as_fd(), &name);
    let found = found.map_err(|errno| failed(Operation::Inspect, errno))?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => Ok(false),
        other => Err(StoreError::Exists {
            path: path.to_owned(),
            found: sys::kind_in_words(other),
            wanted: "directory",
        }),
    }
}

/// Removes a folder that [`make_folder`] made, unless something was put into it.
pub fn remove_empty_folder(path: &Path) {
    if let Ok((parent, _, name)) = open_parent(path) {
        let _ = rustix::fs::unlinkat(&parent, &*name, rustix::fs::AtFlags::REMOVEDIR);
    }
}

/// Removes a file, or a folder and all below it, as far as possible.
pub(crate) fn remove_entry(folder: &OwnedFd, name: &[u8]) {
    let _ = try_remove_entry(folder, name);
}

/// Removes a file, or a folder and all below it.
pub(crate) fn try_remove_entry(folder: &OwnedFd, name: &[u8]) -> std::io::Result<()> {
    match rustix::fs::unlinkat(folder, name, rustix::fs::AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        removed => return Ok(removed?),
    }
    // By the descriptor, so that no link can lead elsewhere; links below are never followed.
    let folder = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
    let path = folder.join(OsStr::from_bytes(name));
    let mut removed = std::fs::remove_dir_all(&path);
    // One entry that another process makes meanwhile ends an attempt, with all that would have come after it.
    let is_left = |error: &std::io::Error| error.kind() == ErrorKind::DirectoryNotEmpty;
    for _ in 1..REMOVE_ATTEMPTS_MAX {
        if !removed.as_ref().is_err_and(is_left) {
            break;
        }
        removed = std::fs::remove_dir_all(&path);
    }
    removed
}

/// The folder of a destination, opened, and the destination's name in it.
pub(crate) fn open_parent(path: &Path) -> Result<(OwnedFd, PathBuf, Vec<u8>), StoreError> {
    let name = path.file_name().ok_or_else(|| StoreError::NoName {
        path: path.to_owned(),
    })?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // Not O_PATH: the folder is synced through this descriptor.
    let opened = sys::open_resolved_path(parent, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
    let opened =
        opened.map_err(
            |errno| match StoreError::from_errno(Operation::Open, parent, errno) {
                StoreError::Vanished { .. } => StoreError::ParentMissing {
                    path: path.to_owned(),
                    parent: parent.to_owned(),
                },
                other => other,
            },
        )?;
    Ok((opened, parent.to_owned(), name.as_bytes().to_vec()))
}

/// Reserves a range of a file, or says how many bytes are missing. A file system that cannot reserve is left alone.
pub(crate) fn reserve(file: &File, path: &Path, offset: u64, len: u64) -> Result<(), StoreError> {
    // What an earlier attempt reserved counts as there, so that the bytes missing are never too many.
    let held =
        rustix::fs::fstat(file).map_or(0, |stat| (stat.st_blocks as u64).saturating_mul(512));
    let available = sys::available(file).saturating_add(held);
    // Memory would be cleared page by page on this one thread now, and filled by all of them
    // later: reserving 2 GiB took as long as a third of the whole transfer.
    let reserved = match FileSystem::of(file).is_some_and(FileSystem::is_memory) {
        true if len > available => Err(Errno::NOSPC),
        true => Ok(true),
        false => sys::reserve(file, offset, len),
    };
    let failed = |errno| {
        StoreError::from_errno(Operation::Allocate, path, errno)
            .with_missing(len.saturating_sub(available))
    };
    reserved.map(|_| ()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Opens files as a test says.
    struct Opening<F>(F);

    impl<F: Fn() -> Result<File, StoreError> + Send + Sync> Target for Opening<F> {
        fn open(&self, _: u32) -> Result<File, StoreError> {
            (self.0)()
        }

        fn open_made(&self, object: u32) -> Result<File, StoreError> {
            self.open(object)
        }

        fn path(&self, _: u32) -> PathBuf {
            PathBuf::new()
        }

        fn sync_names(&self) -> Result<(), StoreError> {
            Ok(())
        }

        fn filesystem(&self) -> Option<&OwnedFd> {
            None
        }
    }

    /// A sink is closed once the files that are being opened are open, and opens none after that: what is removed next
    /// gets no new file while it is removed.
    #[test]
    fn closing_waits_for_files_that_are_being_opened() {
        let (opening, opened) = channel();
        let opening: Mutex<Sender<()>> = Mutex::new(opening);
        let [closed, too_late] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let [is_closed, is_late] = [closed.clone(), too_late.clone()];
        let target = Opening(move || {
            lock(&opening).send(()).unwrap();
            // Time for another thread to close the sink, if it can.
            for _ in 0..100_000 {
                std::thread::yield_now();
                if is_closed.load(Ordering::Acquire) {
                    is_late.store(true, Ordering::Release);
                }
            }
            Ok(tempfile::tempfile().unwrap())
        });
        let staging = Staging::new(Layout::back_to_back(0, [(0, 100)]).unwrap(), target, false);
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| staging.write_at(0, b"late"));
            opened.recv().unwrap();
            staging.close();
            closed.store(true, Ordering::Release);
            writing.join().unwrap().unwrap();
        });
        assert!(!too_late.load(Ordering::Acquire));
        assert!(matches!(
            staging.write_at(0, b"more"),
            Err(StoreError::Ended)
        ));
    }

    /// A file that has to be opened for a sync, and cannot be for a moment, is opened again.
    #[test]
    fn a_sync_waits_for_descriptors() {
        let is_short = AtomicBool::new(true);
        let target = Opening(|| match is_short.swap(false, Ordering::AcqRel) {
            true => Err(StoreError::from_errno(Operation::Open, "f", Errno::MFILE)),
            false => Ok(tempfile::tempfile().unwrap()),
        });
        let staging = Staging::new(Layout::back_to_back(0, [(0, 100)]).unwrap(), target, false);
        staging.note_changed([0]);
        staging.sync().unwrap();
        staging.write_at(0, b"more").unwrap();
    }

    /// Temporary names of transfers are known, whatever they were made of; other names are not taken for them.
    #[test]
    fn temporary_names_are_known() {
        let id = "0198f2a4c0de4afe9b7d3c2b1a09f8e7";
        for (name, id) in [
            (b"name".to_vec(), id.to_owned()),
            (b".ropewalk-".to_vec(), format!("{id}-12")),
            (vec![0xff; manifest::COMPONENT_LEN_MAX], format!("{id}-0")),
        ] {
            assert!(is_temporary(&temporary_name(&name, &id).unwrap()));
        }
        for name in [
            format!("name.ropewalk-{id}"),
            format!(".ropewalk-{id}"),
            format!(".name.ropewalk-{}", &id[1..]),
            format!(".name.ropewalk-{}g", &id[1..]),
            ".name".to_owned(),
            String::new(),
        ] {
            assert!(!is_temporary(name.as_bytes()), "{name}");
        }
    }

    /// A name that fits stays as it is; long ones that differ at their ends get temporary names that differ, of the
    /// documented form, all of them with space for the names of what is kept, whatever the id.
    #[test]
    fn temporary_names_of_long_names_differ() {
        assert_eq!(temporary_name(b"name", "id").unwrap(), b".name.ropewalk-id");
        let room = manifest::COMPONENT_LEN_MAX - 1 - MARK.len() - ID_LEN_MAX - ENDING_LEN_MAX;
        for id in ["i".to_owned(), "i".repeat(ID_LEN_MAX)] {
            let suffix = format!(".ropewalk-{id}");
            assert_eq!(
                temporary_name(&vec![b'n'; room], &id).unwrap(),
                [&b"."[..], &vec![b'n'; room], suffix.as_bytes()].concat()
            );
            let temporary = |end: u8| {
                let mut name = vec![b'n'; manifest::COMPONENT_LEN_MAX];
                name[manifest::COMPONENT_LEN_MAX - 1] = end;
                temporary_name(&name, &id).unwrap()
            };
            let (one, two) = (temporary(b'1'), temporary(b'2'));
            assert_ne!(one, two);
            for name in [&one, &two] {
                let longest = name.len() - id.len() + ID_LEN_MAX + ENDING_LEN_MAX;
                assert_eq!(longest, manifest::COMPONENT_LEN_MAX);
                assert!(name.starts_with(b".nnn") && name.ends_with(suffix.as_bytes()));
            }
        }
    }
}
