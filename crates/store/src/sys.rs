//! The system calls that the standard library lacks: opening without following links, setting
//! metadata through a descriptor, reserving space, home folders, and mapping memory. All `unsafe` of the crate is here.

pub(crate) mod names;

#[cfg(test)]
use std::ffi::CStr;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{
    self, AtFlags, FallocateFlags, FileType, MemfdFlags, Mode, OFlags, RenameFlags, ResolveFlags,
    SealFlags, Stat, Timestamps, XattrFlags,
};
use rustix::io::Errno;

/// How long an open waits for another program (often a file server) to give up its lease on the file. The kernel tells
/// that program at once and takes the lease away after 45 s. A program that is well needs milliseconds; one that is not
/// must not hold up a thread that serves other files, too.
pub(crate) const LEASE_WAIT: Duration = Duration::from_secs(2);

/// Between two tries meanwhile, so that waiting takes no processor.
const LEASE_PAUSE: Duration = Duration::from_millis(5);

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

/// As [`open_beneath`] for a name of a folder, and not into what is mounted there: EXDEV.
pub(crate) fn open_on_mount(
    folder: BorrowedFd<'_>,
    name: &[u8],
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let name = OsStr::from_bytes(name);
    let opened = open_resolved(folder, name, flags, Mode::empty(), resolve)?;
    // Where the kernel lacks the call the flags count for nothing.
    let is_on_device = fs::fstat(&opened)?.st_dev == fs::fstat(folder)?.st_dev;
    match is_on_device && is_on_mount(opened.as_fd(), folder) {
        true => Ok(opened),
        false => Err(Errno::XDEV),
    }
}

/// Whether two descriptors lead into one mount; true where /proc does not say.
fn is_on_mount(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> bool {
    let mount = |fd: BorrowedFd<'_>| -> Option<String> {
        let path = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
        let text = std::fs::read_to_string(path).ok()?;
        let line = text.lines().find(|line| line.starts_with("mnt_id:"))?;
        Some(line.to_owned())
    };
    mount(a) == mount(b)
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
    // Not NOFOLLOW, which would open a link at the end itself (O_PATH) or call it no directory.
    let flags = flags | OFlags::CLOEXEC;
    // A mode without something to make is an error here, unlike in `openat`.
    let mode = if flags.contains(OFlags::CREATE) {
        mode
    } else {
        Mode::empty()
    };
    outwait(LEASE_WAIT, || {
        match fs::openat2(dir, path, flags, mode, resolve) {
            // Kernels before 5.6 lack the call and some containers forbid it: walk instead.
            Err(Errno::NOSYS | Errno::PERM) => walk(dir, path, flags, mode),
            result => result,
        }
    })
}

/// Tries to open again while the file is under another program's lease, or folders on the way were just being moved;
/// EAGAIN once that took longer than `wait`.
fn outwait<T>(wait: Duration, mut open: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    let mut began: Option<Instant> = None;
    loop {
        match open() {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if began.get_or_insert_with(Instant::now).elapsed() < wait => {
                std::thread::sleep(LEASE_PAUSE);
            }
            result => return result,
        }
    }
}

/// Opens component by component, refusing links and `..`.
fn walk(dir: BorrowedFd<'_>, path: &OsStr, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW;
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
            let opened = fs::openat(&at, name, flags, mode)?;
            // With O_PATH the kernel gives a link itself instead of refusing it.
            let is_link = flags.contains(OFlags::PATH)
                && FileType::from_raw_mode(fs::fstat(&opened)?.st_mode) == FileType::Symlink;
            return if is_link {
                Err(Errno::LOOP)
            } else {
                Ok(opened)
            };
        }
        at = fs::openat(&at, name, step, Mode::empty())?;
    }
    fs::openat(&at, ".", flags, mode)
}

/// Kind, mode, length and times of an entry of `dir`, itself and not what it may link to.
pub(crate) fn stat_entry(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Stat, Errno> {
    fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// Gives what has a name in one folder the same name in another one.
pub(crate) fn rename_to(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    name: &[u8],
) -> Result<(), Errno> {
    #[cfg(test)]
    if failing::is_due(name) {
        return Err(Errno::IO);
    }
    rustix::fs::renameat(from, name, to, name)
}

/// Gives what has a name another one, which nothing must have: EEXIST.
pub(crate) fn rename_new(
    (from, name): (BorrowedFd<'_>, &[u8]),
    (to, new): (BorrowedFd<'_>, &[u8]),
) -> Result<(), Errno> {
    match fs::renameat_with(from, name, to, new, RenameFlags::NOREPLACE) {
        // Some network file systems know no flags.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => match stat_entry(to, new) {
            Err(Errno::NOENT) => fs::renameat(from, name, to, new),
            Err(errno) => Err(errno),
            Ok(_) => Err(Errno::EXIST),
        },
        other => other,
    }
}

/// Disks that fail, or lack something, in tests.
#[cfg(test)]
pub(crate) mod failing {
    use std::cell::{Cell, RefCell};

    use rustix::io::Errno;

    thread_local! {
        static NAME: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
        static LACKS_NAMELESS: Cell<bool> = const { Cell::new(false) };
    }

    /// File systems have no files without a name on this thread, or have them again.
    pub(crate) fn lack_nameless(lacks: bool) {
        LACKS_NAMELESS.set(lacks);
    }

    pub(super) fn check_nameless() -> Result<(), Errno> {
        match LACKS_NAMELESS.get() {
            true => Err(Errno::OPNOTSUPP),
            false => Ok(()),
        }
    }

    /// Renames of this name fail on this thread, or none do.
    pub(crate) fn set(name: Option<&[u8]>) {
        NAME.set(name.map(<[u8]>::to_vec));
    }

    pub(super) fn is_due(name: &[u8]) -> bool {
        NAME.with_borrow(|failing| failing.as_deref() == Some(name))
    }
}

/// Makes the names in a folder safe. Some file systems have no such call for folders (EINVAL): of these the whole is synced, where that is
/// possible, and nothing otherwise.
pub(crate) fn sync_folder(folder: impl AsFd) -> Result<(), Errno> {
    match fs::fsync(&folder) {
        Err(Errno::INVAL) => match fs::syncfs(&folder) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(()),
            synced => synced,
        },
        synced => synced,
    }
}

/// An empty file in a folder that has no name; fails where [`link`] could not give it one later.
pub(crate) fn nameless(folder: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    #[cfg(test)]
    failing::check_nameless()?;
    fs::stat("/proc/self/fd")?;
    let mode = Mode::RUSR | Mode::WUSR;
    open_beneath(folder, b"", OFlags::WRONLY | OFlags::TMPFILE, mode)
}

/// Gives what a descriptor names, an `O_PATH` one as well, a further name in `dir`, which must be on the same file system. Nothing that has
/// the name already is replaced, and no link is followed.
pub(crate) fn link(file: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    let old = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::linkat(fs::CWD, old, dir, name, AtFlags::SYMLINK_FOLLOW)
}

/// Gives a file the attributes of users and the ACL of another one, as far as both file systems have them.
pub(crate) fn copy_attributes(from: &OwnedFd, to: &OwnedFd) {
    // As much as the kernel has of either.
    let mut names = vec![0; 1 << 16];
    let mut value = vec![0; 1 << 16];
    let len = fs::flistxattr(from, &mut names).unwrap_or(0);
    let is_kept = |name: &&[u8]| name.starts_with(b"user.") || *name == b"system.posix_acl_access";
    for name in names[..len].split(|byte| *byte == 0).filter(is_kept) {
        if let Ok(len) = fs::fgetxattr(from, name, &mut value) {
            let _ = fs::fsetxattr(to, name, &value[..len], XattrFlags::empty());
        }
    }
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
    set_times(file, times)
}

/// Sets the modification time of what an `O_PATH` descriptor names, in the same way.
pub(crate) fn set_times(file: BorrowedFd<'_>, times: &Timestamps) -> Result<(), Errno> {
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::utimensat(fs::CWD, &name, times, AtFlags::empty())
}

/// Sets permissions of what an `O_PATH` descriptor names, and leaves its times alone.
pub(crate) fn set_mode(file: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::chmod(name, Mode::from_raw_mode(mode))
}

/// The permissions that this process gives to nothing it makes. Read, not set and set back, which other threads would
/// see; all but the owner's where the kernel does not tell (before 4.7).
pub(crate) fn umask() -> u32 {
    const UNKNOWN: u32 = 0o077;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|text| u32::from_str_radix(text.trim(), 8).ok())
        .unwrap_or(UNKNOWN)
}

/// Lets the owner list and change a folder of which an `O_PATH` descriptor is given.
pub(crate) fn open_up(folder: BorrowedFd<'_>) -> Result<(), Errno> {
    let mode = fs::fstat(folder)?.st_mode & 0o7777;
    fs::chmod(
        format!("/proc/self/fd/{}", folder.as_raw_fd()),
        Mode::from_raw_mode(opened_up(mode)),
    )
}

/// The mode that [`open_up`] gives to a folder of this one.
pub(crate) fn opened_up(mode: u32) -> u32 {
    mode | 0o700
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

/// Bytes that this user could still write to the file system; `u64::MAX` when it does not say.
pub(crate) fn available(file: impl AsFd) -> u64 {
    match fs::fstatvfs(file) {
        Ok(space) if space.f_blocks > 0 => space.f_bavail.saturating_mul(space.f_frsize),
        _ => u64::MAX,
    }
}

/// Whether the file system has no room for the name of one more file, however many bytes are free.
pub(crate) fn lacks_inodes(file: impl AsFd) -> bool {
    // Those that make inodes as they are needed tell no number at all.
    fs::fstatvfs(file).is_ok_and(|space| space.f_files > 0 && space.f_favail == 0)
}

/// Whether the process that has locked a file (`flock`) was killed and has not ended yet. False where the kernel does not say which
/// one it is.
pub(crate) fn is_lock_of_dying(file: impl AsFd) -> bool {
    let Ok(stat) = fs::fstat(file) else {
        return false;
    };
    // `1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF`
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let inode = format!(":{}", stat.st_ino);
    let mut holders = locks.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let is_whole = words.next() == Some("FLOCK");
        let process: u32 = words.nth(2)?.parse().ok()?;
        (is_whole && words.next()?.ends_with(&inode)).then_some(process)
    });
    holders.next().is_some_and(is_dying)
}

/// Whether a process is on its way to its end, or has just reached it.
fn is_dying(process: u32) -> bool {
    const EXITING: u64 = 4;
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{process}/stat")) else {
        return true;
    };
    // State, and after five other numbers the flags.
    let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let mut words = rest.split(' ');
    let is_zombie = matches!(words.next(), Some("Z" | "X"));
    let flags: u64 = words
        .nth(5)
        .and_then(|flags| flags.parse().ok())
        .unwrap_or(0);
    is_zombie || flags & EXITING != 0
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

/// Whether a name matches a pattern, as the system has it.
#[cfg(test)]
pub(crate) fn fnmatch(pattern: &CStr, name: &CStr) -> bool {
    // SAFETY: both texts end with a zero.
    unsafe { libc::fnmatch(pattern.as_ptr(), name.as_ptr(), libc::FNM_PERIOD) == 0 }
}

/// How often a memory file is tried to be sealed.
const SEAL_TRIES: u32 = 25;

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
        let mut tries = 1..SEAL_TRIES;
        loop {
            match fs::fcntl_add_seals(&file, seals) {
                // Another part of the kernel holds a page for the moment; each try waits 0.2 s for that by itself.
                Err(Errno::BUSY) if tries.next().is_some() => {}
                sealed => break sealed?,
            }
        }
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
        let (read, none) = (OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        for path in [
            "a/b/file",
            "a",
            ".",
            "link",
            "link/b/file",
            "a/last",
            "a/none",
            "none/file",
            "a/b/file/x",
        ] {
            for flags in [
                read,
                read | OFlags::DIRECTORY,
                OFlags::PATH | OFlags::CLOEXEC,
                OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY,
            ] {
                let walked = walk(dir.as_fd(), OsStr::new(path), flags, none).map(|_| ());
                let opened = open_beneath(dir.as_fd(), path.as_bytes(), flags, none).map(|_| ());
                // A link where a directory should be is no directory to one and a link to the other.
                let same =
                    walked == opened || (walked, opened) == (Err(Errno::NOTDIR), Err(Errno::LOOP));
                assert!(same, "{path}: walked {walked:?}, opened {opened:?}");
            }
        }
        assert!(walk(dir.as_fd(), OsStr::new("a/../a/b/file"), read, none).is_err());
        assert!(walk(fs::CWD, base.join("a/b/file").as_os_str(), read, none).is_ok());
        assert!(walk(fs::CWD, base.join("link/b/file").as_os_str(), read, none).is_err());
    }

    /// This process is well, and one that was killed and is not reaped is not.
    #[test]
    fn processes_that_die_are_known() {
        let file = tempfile::tempfile().unwrap();
        fs::flock(&file, fs::FlockOperation::LockExclusive).unwrap();
        assert!(!is_lock_of_dying(&file));
        assert!(!is_dying(std::process::id()));
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        assert!(!is_dying(child.id()));
        child.kill().unwrap();
        while !is_dying(child.id()) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(is_dying(child.id()));
    }

    /// A lease that nobody gives up ends the wait, which is spent asleep; one that is given up costs a few tries.
    #[test]
    fn a_lease_is_not_waited_for_for_ever() {
        let mut tries = 0;
        let opened: Result<(), Errno> = outwait(LEASE_PAUSE * 10, || {
            tries += 1;
            Err(Errno::AGAIN)
        });
        assert_eq!(opened, Err(Errno::AGAIN));
        // Ten pauses fill the time.
        assert!((2..=11).contains(&tries), "{tries} tries");
        let mut answers = [Err(Errno::INTR), Err(Errno::AGAIN), Ok("open")].into_iter();
        assert_eq!(outwait(LEASE_WAIT, || answers.next().unwrap()), Ok("open"));
    }

    /// A file under a lease is opened once its holder, whom the kernel tells of the open, has let go.
    #[test]
    fn a_lease_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("file");
        std::fs::write(&path, "x").unwrap();
        let held = File::open(&path).unwrap();
        let lease = |command: libc::c_int, argument: libc::c_int| {
            // SAFETY: the three commands used here take a number and touch no memory of ours.
            unsafe { libc::fcntl(held.as_raw_fd(), command, argument) }
        };
        if lease(libc::F_SETLEASE, libc::F_WRLCK) != 0 {
            eprintln!("SKIPPED: this file system has no leases");
            return;
        }
        // The kernel's word is a signal that would end the test: let nobody have it.
        lease(libc::F_SETOWN, 0);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        std::thread::scope(|scope| {
            let opening = scope.spawn(|| open_resolved_path(&path, flags, Mode::empty()));
            while !opening.is_finished() && lease(libc::F_GETLEASE, 0) == libc::F_WRLCK {
                std::thread::yield_now();
            }
            lease(libc::F_SETLEASE, libc::F_UNLCK);
            assert!(opening.join().unwrap().is_ok());
        });
    }
}
