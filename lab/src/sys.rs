//! Processes and namespaces: everything here that needs `unsafe`.
//!
//! ```text
//! owner (test, program) ──fork──▶ keeper ──fork──▶ holder per host, in new namespaces, asleep
//!        └── write end of the life pipe ──▶ keeper reads: end of file means the owner is gone
//! ```
//!
//! The keeper and the holders are forks of a process that may have many threads, so they only make system
//! calls: no allocation, no locks, no panics. All they need is prepared before the fork.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{AtFlags, Mode, OFlags, RawDir};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};
use rustix::thread::ThreadNameSpaceType;

use crate::step::Step;

/// Where a keeper keeps the read end of its life pipe, and all children the write end of the report pipe.
const LIFE_FD: RawFd = 3;
const REPORT_FD: RawFd = 4;
/// Killed processes must be gone in this time; one that frees gigabytes needs a good part of a second.
const KILL_MILLISECONDS_MAX: i64 = 5_000;
/// Killed processes that are watched at once; more are waited for one at a time.
const DYING_MAX: usize = 256;
/// A step number that means "all done".
const DONE: i32 = -1;
/// A step number that means the namespaces themselves were refused.
pub(crate) const UNSHARE: i32 = -2;

fn last_errno() -> Errno {
    // SAFETY: returns the calling thread's errno location, always valid.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// What one holder is to become.
#[derive(Debug)]
pub(crate) struct Blueprint {
    /// Shown by `ps`; the kernel keeps 15 bytes.
    pub process_name: CString,
    pub steps: Vec<Step>,
}

/// A holder that is ready.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub pid: i32,
    /// Refers to the process even after its number is reused.
    pidfd: Arc<OwnedFd>,
}

/// Why a fleet of holders did not come up.
#[derive(Debug)]
pub(crate) enum StartError {
    /// A call of the owner failed.
    Owner(&'static str, io::Error),
    /// Holder `index` failed at `step` ([`UNSHARE`] or an index into its steps).
    Step {
        index: usize,
        step: i32,
        cause: io::Error,
    },
    /// The keeper died before all holders reported.
    Died,
}

/// The keeper process; dropping it takes the lab down and waits for that.
#[derive(Debug)]
pub(crate) struct Keeper {
    pid: Option<Pid>,
    life: Option<OwnedFd>,
}

/// One record of the report pipe; shorter than `PIPE_BUF`, so records never mix.
const RECORD: usize = 16;

/// Forks a keeper and one holder per blueprint, and waits until every holder has set itself up.
///
/// # Errors
/// On any failure everything started is gone again when this returns.
pub(crate) fn start(blueprints: &[Blueprint]) -> Result<(Keeper, Vec<Holder>), StartError> {
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
    let (life_read, life_write) =
        pipe().map_err(|e| StartError::Owner("create a pipe", e.into()))?;
    let (report_read, report_write) =
        pipe().map_err(|e| StartError::Owner("create a pipe", e.into()))?;
    let mut room = KeeperRoom {
        holders: vec![0; blueprints.len()],
        networks: vec![(0, 0); blueprints.len()],
        dying: Vec::with_capacity(DYING_MAX),
    };

    // SAFETY: the child runs only `keeper`, which makes system calls on memory prepared above and never returns.
    let pid = match unsafe { libc::fork() } {
        -1 => return Err(StartError::Owner("fork", io::Error::last_os_error())),
        0 => keeper(
            blueprints,
            &mut room,
            life_read.as_fd(),
            report_write.as_fd(),
        ),
        pid => pid,
    };
    drop((life_read, report_write));
    let mut keeper = Keeper {
        pid: Pid::from_raw(pid),
        life: Some(life_write),
    };

    let mut holders: Vec<Option<Holder>> = vec![None; blueprints.len()];
    while holders.iter().any(Option::is_none) {
        let Some([index, pid, step, errno]) = read_record(report_read.as_fd()) else {
            return Err(StartError::Died);
        };
        let index = index as usize;
        if step != DONE {
            let cause = io::Error::from_raw_os_error(errno);
            let _ = keeper.close();
            return Err(StartError::Step { index, step, cause });
        }
        let open = Pid::from_raw(pid)
            .ok_or(Errno::SRCH)
            .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()));
        let pidfd = Arc::new(open.map_err(|e| StartError::Owner("open a holder", e.into()))?);
        holders[index] = Some(Holder { pid, pidfd });
    }
    if let Some(life) = &keeper.life {
        rustix::io::write(life, &[1])
            .map_err(|e| StartError::Owner("reach the keeper", e.into()))?;
    }
    Ok((keeper, holders.into_iter().flatten().collect()))
}

fn read_record(pipe: BorrowedFd<'_>) -> Option<[i32; 4]> {
    let mut bytes = [0; RECORD];
    let mut filled = 0;
    while filled < RECORD {
        match rustix::io::read(pipe, &mut bytes[filled..]) {
            Ok(0) => return None,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    Some(std::array::from_fn(|field| {
        i32::from_ne_bytes([
            bytes[4 * field],
            bytes[4 * field + 1],
            bytes[4 * field + 2],
            bytes[4 * field + 3],
        ])
    }))
}

impl Keeper {
    /// Kills everything in the lab and waits until it is gone. Idempotent.
    ///
    /// # Errors
    /// When a process inside the lab did not die within five seconds.
    pub(crate) fn close(&mut self) -> io::Result<()> {
        self.life = None;
        let Some(pid) = self.pid.take() else {
            return Ok(());
        };
        loop {
            match rustix::process::waitpid(Some(pid), WaitOptions::empty()) {
                Err(Errno::INTR) => {}
                // Somebody else waited for all children, or ignores them; the keeper has still finished.
                Err(Errno::CHILD) => return Ok(()),
                Err(errno) => return Err(errno.into()),
                Ok(Some((_, status))) if status.exit_status() == Some(0) => return Ok(()),
                Ok(Some((_, status))) => {
                    return Err(io::Error::other(format!(
                        "its keeper ended with {status:?}"
                    )));
                }
                Ok(None) => {}
            }
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.close();
    }
}

impl Holder {
    /// Makes `command` run inside this holder's namespaces; its directory stays if it exists there, else `/`.
    pub(crate) fn adopt(&self, command: &mut Command, whole_host: bool) {
        let pidfd = Arc::clone(&self.pidfd);
        let mut spaces = ThreadNameSpaceType::NETWORK;
        if whole_host {
            spaces |=
                ThreadNameSpaceType::MOUNT | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME;
        }
        let enter = move || {
            let mut directory = [0_u8; libc::PATH_MAX as usize];
            // SAFETY: the buffer is as long as is said; getcwd fills it with a C string or fails.
            let known =
                unsafe { !libc::getcwd(directory.as_mut_ptr().cast(), directory.len()).is_null() };
            rustix::thread::move_into_thread_name_spaces(pidfd.as_fd(), spaces)?;
            if whole_host
                && known
                && let Ok(directory) = CStr::from_bytes_until_nul(&directory)
            {
                // Entering a mount namespace leaves the process at its root.
                let _ = rustix::process::chdir(directory);
            }
            Ok(())
        };
        // SAFETY: the closure makes system calls only, on its own stack and an open descriptor.
        unsafe { command.pre_exec(enter) };
    }

    /// Moves the calling thread into this holder's network, for good.
    pub(crate) fn enter_network(&self) -> io::Result<()> {
        Ok(rustix::thread::move_into_thread_name_spaces(
            self.pidfd.as_fd(),
            ThreadNameSpaceType::NETWORK,
        )?)
    }
}

/// Runs `command` in fresh namespaces, to find out whether that is allowed.
pub(crate) fn unshare_before_exec(command: &mut Command) {
    // SAFETY: the closure makes one system call.
    unsafe { command.pre_exec(|| unshare().map_err(io::Error::from)) };
}

fn unshare() -> Result<(), Errno> {
    let flags = libc::CLONE_NEWNET | libc::CLONE_NEWNS | libc::CLONE_NEWUTS;
    // SAFETY: the caller is a single-threaded child, so nothing shares what is given up.
    if unsafe { libc::unshare(flags) } == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

/// Memory that the keeper writes to after the fork.
struct KeeperRoom {
    holders: Vec<i32>,
    /// Device and inode of each network namespace.
    networks: Vec<(u64, u64)>,
    /// Killed, but maybe not dead yet. Never grows past its capacity: growing would allocate.
    dying: Vec<OwnedFd>,
}

/// The keeper's whole life. Runs between fork and exit: system calls only.
fn keeper(
    blueprints: &[Blueprint],
    room: &mut KeeperRoom,
    life: BorrowedFd<'_>,
    report: BorrowedFd<'_>,
) -> ! {
    let _guard = ExitOnUnwind;
    if settle_keeper(life, report).is_err() {
        exit(1);
    }
    // SAFETY: takes over descriptors that `settle_keeper` put there and nothing else owns.
    let (life, report) = unsafe {
        (
            OwnedFd::from_raw_fd(LIFE_FD),
            OwnedFd::from_raw_fd(REPORT_FD),
        )
    };
    let me = rustix::process::getpid();
    for (index, blueprint) in blueprints.iter().enumerate() {
        // SAFETY: the child runs only `holder`, which makes system calls and never returns.
        match unsafe { libc::fork() } {
            -1 => {
                send_record(report.as_fd(), index, UNSHARE, last_errno().raw_os_error());
                break;
            }
            0 => holder(blueprint, index, me, report.as_fd()),
            pid => room.holders[index] = pid,
        }
    }
    drop(report);

    // One byte says that all holders are ready; the end of file, that the last write end was closed: by the
    // owner or by its death.
    let mut byte = [0_u8; 1];
    loop {
        match rustix::io::read(&life, &mut byte) {
            Ok(1..) => note_networks(room),
            Err(Errno::INTR) => {}
            Ok(0) | Err(_) => break,
        }
    }
    exit(if take_down(room) { 0 } else { 2 });
}

fn settle_keeper(life: BorrowedFd<'_>, report: BorrowedFd<'_>) -> Result<(), Errno> {
    // Own session: a signal to the owner's terminal or process group must not hit the one who cleans up.
    rustix::process::setsid()?;
    for signal in [
        libc::SIGINT,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGQUIT,
        libc::SIGPIPE,
    ] {
        // SAFETY: sets a disposition, no handler runs.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    rename(c"lab-keeper");
    let null = rustix::fs::open(c"/dev/null", OFlags::RDWR, Mode::empty())?;
    let above = REPORT_FD + 1;
    let life = rustix::io::fcntl_dupfd_cloexec(life, above)?;
    let report = rustix::io::fcntl_dupfd_cloexec(report, above)?;
    let null = rustix::io::fcntl_dupfd_cloexec(null, above)?;
    for (from, to) in [
        (&null, 0),
        (&null, 1),
        (&null, 2),
        (&life, LIFE_FD),
        (&report, REPORT_FD),
    ] {
        // SAFETY: plain numbers; what is closed at `to` belongs to the owner's copy, unused here.
        if unsafe { libc::dup2(from.as_raw_fd(), to) } < 0 {
            return Err(last_errno());
        }
    }
    std::mem::forget((life, report, null));
    // The owner's pipes, sockets and locks must not stay open because of us.
    close_from(above)
}

fn close_from(first: RawFd) -> Result<(), Errno> {
    // SAFETY: this child uses no descriptor from `first` up any more.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) };
    if result == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

/// Sets the host name of the calling process's namespace.
pub(crate) fn set_host_name(name: &CStr) -> Result<(), Errno> {
    // SAFETY: the pointer and length are those of a live C string.
    let result = unsafe { libc::sethostname(name.as_ptr(), name.count_bytes()) };
    if result == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

fn rename(name: &CStr) {
    // SAFETY: PR_SET_NAME reads a C string of at most 16 bytes, truncating longer ones.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

fn exit(status: i32) -> ! {
    // SAFETY: ends the process without running the owner's exit handlers.
    unsafe { libc::_exit(status) }
}

/// Ends the child where a panic would otherwise run on into the owner's code.
struct ExitOnUnwind;

impl Drop for ExitOnUnwind {
    fn drop(&mut self) {
        exit(101)
    }
}

fn send_record(report: BorrowedFd<'_>, index: usize, step: i32, errno: i32) {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let mut bytes = [0; RECORD];
    for (field, value) in [index as i32, pid, step, errno].into_iter().enumerate() {
        bytes[4 * field..4 * field + 4].copy_from_slice(&value.to_ne_bytes());
    }
    let _ = rustix::io::write(report, &bytes);
}

/// A holder's whole life: new namespaces, the steps, a report, sleep.
fn holder(blueprint: &Blueprint, index: usize, keeper: Pid, report: BorrowedFd<'_>) -> ! {
    let _guard = ExitOnUnwind;
    rename(&blueprint.process_name);
    let mortal = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    if mortal.is_err() || rustix::process::getppid() != Some(keeper) {
        exit(1);
    }
    let fail = |step: i32, errno: Errno| -> ! {
        send_record(report, index, step, errno.raw_os_error());
        exit(1)
    };
    if let Err(errno) = unshare() {
        fail(UNSHARE, errno);
    }
    for (number, step) in blueprint.steps.iter().enumerate() {
        if let Err(errno) = step.run() {
            fail(number as i32, errno);
        }
    }
    send_record(report, index, DONE, 0);
    let _ = close_from(LIFE_FD);
    loop {
        // SAFETY: sleeps until a signal ends the process.
        unsafe { libc::pause() };
    }
}

/// Remembers the networks by number, so that what runs in them is found even when its holder has died.
///
/// A holder that has not yet left the machine's network (the build failed early, or the owner died during it)
/// must not be noted: all processes of the machine would be killed with the lab.
fn note_networks(room: &mut KeeperRoom) {
    let machine = network_of(rustix::process::getpid().as_raw_nonzero().get());
    let Some(machine) = machine else { return };
    for (network, &pid) in room.networks.iter_mut().zip(&room.holders) {
        *network = network_of(pid)
            .filter(|&found| found != machine)
            .unwrap_or(*network);
    }
}

/// Kills the holders, then whatever else runs in their networks, until nothing does.
fn take_down(room: &mut KeeperRoom) -> bool {
    note_networks(room);
    // First the holders: from then on no new process can enter through them.
    for &pid in &room.holders {
        if let Some(pid) = Pid::from_raw(pid) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
    while rustix::process::wait(WaitOptions::empty()).is_ok() {}
    let deadline = milliseconds() + KILL_MILLISECONDS_MAX;
    let mut quiet = 0;
    // Twice: a process may fork between being listed and being killed.
    while quiet < 2 {
        quiet = if kill_inside(room, deadline) {
            0
        } else {
            quiet + 1
        };
        for process in room.dying.drain(..) {
            await_death(&process, deadline);
        }
        if milliseconds() > deadline {
            return false;
        }
    }
    true
}

fn milliseconds() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000 + now.tv_nsec / 1_000_000
}

/// Waits until a killed process has ended: it leaves its namespaces a little before that.
fn await_death(process: &OwnedFd, deadline: i64) {
    let left = (deadline - milliseconds()).max(0);
    let timeout = rustix::time::Timespec {
        tv_sec: left / 1_000,
        tv_nsec: left % 1_000 * 1_000_000,
    };
    let _ = rustix::event::poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout));
}

/// Kills every process whose network is one of ours. Returns whether there was any.
fn kill_inside(room: &mut KeeperRoom, deadline: i64) -> bool {
    let Ok(proc) = rustix::fs::open(
        c"/proc",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    ) else {
        return false;
    };
    let mut found = false;
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut entries = RawDir::new(&proc, &mut buffer);
    while let Some(entry) = entries.next() {
        let Ok(entry) = entry else { break };
        let mut number: i32 = 0;
        let digits = entry.file_name().to_bytes();
        if !digits.iter().all(u8::is_ascii_digit) {
            continue;
        }
        for digit in digits {
            number = number
                .wrapping_mul(10)
                .wrapping_add(i32::from(digit - b'0'));
        }
        let Some(pid) = Pid::from_raw(number) else {
            continue;
        };
        // The descriptor pins the process, so that a reused number is never killed.
        let Ok(process) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
            continue;
        };
        let inside = network_of(number).is_some_and(|network| room.networks.contains(&network));
        if inside && rustix::process::pidfd_send_signal(&process, Signal::KILL).is_ok() {
            found = true;
            if room.dying.len() < DYING_MAX {
                room.dying.push(process);
            } else {
                await_death(&process, deadline);
            }
        }
    }
    found
}

/// Device and inode of a process's network namespace; `None` once it is a zombie or gone.
fn network_of(pid: i32) -> Option<(u64, u64)> {
    // "/proc/" + 10 digits + "/ns/net" + NUL, composed by hand: no allocation here.
    let mut path = [0_u8; 32];
    path[..6].copy_from_slice(b"/proc/");
    let mut digits = [0_u8; 10];
    let mut start = digits.len();
    let mut rest = u32::try_from(pid).ok()?;
    while rest > 0 {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let end = 6 + digits.len() - start;
    path[6..end].copy_from_slice(&digits[start..]);
    path[end..end + 7].copy_from_slice(b"/ns/net");
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    let stat = rustix::fs::statat(rustix::fs::CWD, path, AtFlags::empty()).ok()?;
    Some((stat.st_dev, stat.st_ino))
}
