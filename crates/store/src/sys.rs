//! The system calls that the standard library lacks: opening without following links, setting
//! metadata through a descriptor, reserving space, and mapping memory. All `unsafe` of the crate is here.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{
    self, AtFlags, FallocateFlags, FileType, MemfdFlags, Mode, OFlags, ResolveFlags, SealFlags,
    Stat, Timestamps,
};
use rustix::io::Errno;

/// Opens a path below `dir` without following any symbolic link and without leaving `dir`.
///
/// An empty path is `dir` itself. Links give ELOOP.
pub(crate) fn open_beneath(
    dir: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() {
        OsStr::new(".")
    } else {
        OsStr::from_bytes(path)
    };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    open_resolved(dir, path, flags, mode, resolve)
}

/// Opens an absolute path that has been resolved, so that a symbolic link on it is one that was put
/// there since; links give ELOOP.
pub(crate) fn open_resolved_path(path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    open_resolved(fs::CWD, path.as_os_str(), flags, mode, resolve)
}

fn open_resolved(
    dir: BorrowedFd<'_>,
    path: &OsStr,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // A mode without something to make is an error here, unlike in `openat`.
    let mode = if flags.contains(OFlags::CREATE) {
        mode
    } else {
        Mode::empty()
    };
    loop {
        match fs::openat2(dir, path, flags, mode, resolve) {
            Err(Errno::INTR | Errno::AGAIN) => {}
            // Kernels before 5.6 lack the call and some containers forbid it: walk instead.
            Err(Errno::NOSYS | Errno::PERM) => return walk(dir, path, flags, mode),
            result => return result,
        }
    }
}

/// Opens component by component, refusing links and `..`.
fn walk(dir: BorrowedFd<'_>, path: &OsStr, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let start: &[u8] = if path.as_bytes().starts_with(b"/") {
        b"/"
    } else {
        b"."
    };
    let mut at = fs::openat(dir, start, step, Mode::empty())?;
    let mut components = path
        .as_bytes()
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
        .peekable();
    while let Some(name) = components.next() {
        if name == b".." {
            return Err(Errno::XDEV);
        }
        if components.peek().is_none() {
            return fs::openat(&at, name, flags, mode);
        }
        at = fs::openat(&at, name, step, Mode::empty())?;
    }
    fs::openat(&at, ".", flags, mode)
}

/// Kind, mode, length and times of an entry of `dir`, itself and not what it may link to.
pub(crate) fn stat_entry(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Stat, Errno> {
    fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// Sets permissions and modification time of what an `O_PATH` descriptor names.
///
/// Goes through `/proc/self/fd`, because neither the descriptor's own calls nor the calls by name
/// work on something that may not be read and might be swapped for a link meanwhile.
pub(crate) fn set_metadata(
    file: BorrowedFd<'_>,
    mode: u32,
    times: &Timestamps,
) -> Result<(), Errno> {
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::chmod(&name, Mode::from_raw_mode(mode))?;
    fs::utimensat(fs::CWD, &name, times, AtFlags::empty())
}

/// Lets the owner list and change a folder of which an `O_PATH` descriptor is given.
pub(crate) fn open_up(folder: BorrowedFd<'_>) -> Result<(), Errno> {
    let mode = fs::fstat(folder)?.st_mode & 0o7777;
    fs::chmod(
        format!("/proc/self/fd/{}", folder.as_raw_fd()),
        Mode::from_raw_mode(mode | 0o700),
    )
}

/// Reserves space for a range of a file and grows the file to its end.
///
/// `Ok(false)` when the file system cannot reserve; the file is then left as it was.
pub(crate) fn reserve(file: &File, offset: u64, len: u64) -> Result<bool, Errno> {
    if len == 0 {
        return Ok(true);
    }
    loop {
        match fs::fallocate(file, FallocateFlags::empty(), offset, len) {
            Ok(()) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NODEV) => return Ok(false),
            Err(errno) => return Err(errno),
        }
    }
}

/// Whether the file lies in memory (tmpfs).
pub(crate) fn in_memory(file: impl AsFd) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    fs::fstatfs(file).is_ok_and(|system| system.f_type as u64 == TMPFS_MAGIC)
}

/// Bytes that this user could still write to the file system; `u64::MAX` when it does not say.
pub(crate) fn available(file: impl AsFd) -> u64 {
    match fs::fstatvfs(file) {
        Ok(space) if space.f_blocks > 0 => space.f_bavail.saturating_mul(space.f_frsize),
        _ => u64::MAX,
    }
}

/// What an entry is, in words for people.
pub(crate) fn kind_in_words(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        FileType::CharacterDevice | FileType::BlockDevice => "device",
        FileType::Unknown => "thing of unknown kind",
    }
}

/// An anonymous memory file whose contents and length can no longer change, and a view of it.
#[derive(Debug)]
pub(crate) struct SealedMemory {
    file: std::sync::Arc<File>,
    address: *const u8,
    len: usize,
}

// SAFETY: the mapping is private, read-only, of a file sealed against writing and resizing, and
// stays mapped until drop: reading it from any thread at any time is sound.
unsafe impl Send for SealedMemory {}
// SAFETY: as above; nothing behind a shared reference ever changes.
unsafe impl Sync for SealedMemory {}

impl SealedMemory {
    /// Makes a memory file that holds `bytes`, which must not be empty, seals and maps it.
    pub(crate) fn new(name: &str, bytes: &[u8]) -> io::Result<Self> {
        let mut file = File::from(fs::memfd_create(
            name,
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?);
        file.write_all(bytes)?;
        let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        fs::fcntl_add_seals(&file, seals)?;
        let (protection, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::PRIVATE);
        // SAFETY: a fresh mapping at an address the kernel chooses overlaps nothing of ours; the file
        // is as long as the mapping and sealed, so no page of it can vanish.
        let address = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes.len(),
                protection,
                flags,
                &file,
                0,
            )?
        };
        Ok(Self {
            file: std::sync::Arc::new(file),
            address: address.cast::<u8>().cast_const(),
            len: bytes.len(),
        })
    }

    /// The contents.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `address` is a live readable mapping of `len` bytes that nothing changes (see `Send`).
        unsafe { std::slice::from_raw_parts(self.address, self.len) }
    }

    /// The memory file, for `sendfile`.
    pub(crate) fn shared_file(&self) -> std::sync::Arc<File> {
        std::sync::Arc::clone(&self.file)
    }
}

impl Drop for SealedMemory {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`, and no slice of it outlives `self`. Unmapping what
        // was mapped with the same address and length cannot fail, so the result carries no news.
        let _ = unsafe { rustix::mm::munmap(self.address.cast_mut().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The way round a kernel without `openat2` opens the same things and refuses the same links.
    #[test]
    fn walking_refuses_what_openat2_refuses() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(base.join("a/b")).unwrap();
        std::fs::write(base.join("a/b/file"), "x").unwrap();
        std::os::unix::fs::symlink("a", base.join("link")).unwrap();
        std::os::unix::fs::symlink("b/file", base.join("a/last")).unwrap();
        let dir = File::open(&base).unwrap();
        let (read, none) = (
            OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW,
            Mode::empty(),
        );
        for path in [
            "a/b/file",
            "a",
            ".",
            "link/b/file",
            "a/last",
            "a/none",
            "none/file",
            "a/b/file/x",
        ] {
            let walked = walk(dir.as_fd(), OsStr::new(path), read, none).map(|_| ());
            let opened = open_beneath(dir.as_fd(), path.as_bytes(), read, none).map(|_| ());
            // Half way down, a link is no directory to one and a link to the other.
            let same =
                walked == opened || (walked, opened) == (Err(Errno::NOTDIR), Err(Errno::LOOP));
            assert!(same, "{path}: walked {walked:?}, opened {opened:?}");
        }
        assert!(walk(dir.as_fd(), OsStr::new("a/../a/b/file"), read, none).is_err());
        assert!(walk(fs::CWD, base.join("a/b/file").as_os_str(), read, none).is_ok());
        assert!(walk(fs::CWD, base.join("link/b/file").as_os_str(), read, none).is_err());
    }
}
