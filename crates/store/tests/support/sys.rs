//! Small and read-only disks for one test: a memory file system in a mount namespace of its own.

use std::path::Path;

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, mount_remount, unmount,
};

/// Runs `body` on a thread that alone sees a memory file system of `len` bytes at a fresh folder.
///
/// Prints a line and does nothing where that is not permitted. The kernel removes the mount with the thread.
pub fn on_small_disk(len: u64, body: impl FnOnce(&Path) + Send) {
    on_disk(&format!("size={len}"), body);
}

/// As [`on_small_disk`], with the mount options of a memory file system.
pub fn on_disk(options: &str, body: impl FnOnce(&Path) + Send) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    alone(|| {
        mount_memory(&path, options);
        body(&path);
    });
}

/// Runs `body` on a thread without the superuser's rights, where this process has them.
pub fn as_nobody<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    const NOBODY: u32 = 65534;
    let run = || {
        if rustix::process::geteuid().is_root() {
            let (user, group) = (
                rustix::process::Uid::from_raw(NOBODY),
                rustix::process::Gid::from_raw(NOBODY),
            );
            // The plain calls change one thread, unlike the C library's: rights go with the last of them.
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(group, group, group).unwrap();
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        }
        body()
    };
    std::thread::scope(|scope| match scope.spawn(run).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Runs `body` on a thread whose mounts nobody else sees, or prints a line where that is not permitted.
pub fn alone(body: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let run = scope.spawn(|| match leave_namespace() {
            Ok(()) => body(),
            Err(error) => eprintln!("SKIPPED: no mount namespace here ({error}); run as root"),
        });
        if let Err(panic) = run.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Puts a memory file system of `len` bytes over a folder. Only inside [`alone`].
pub fn mount_small(path: &Path, len: u64) {
    mount_memory(path, &format!("size={len}"));
}

fn mount_memory(path: &Path, options: &str) {
    let options = std::ffi::CString::new(options).unwrap();
    mount(
        "tmpfs",
        path,
        "tmpfs",
        MountFlags::empty(),
        options.as_c_str(),
    )
    .unwrap();
}

/// Makes a folder appear at a second path. Only inside [`alone`].
pub fn bind(folder: &Path, second: &Path) {
    rustix::mount::mount_bind(folder, second).unwrap();
}

/// Takes the memory file system of [`mount_small`] away.
pub fn unmount_small(path: &Path) {
    unmount(path, UnmountFlags::DETACH).unwrap();
}

/// Makes the file system of [`on_small_disk`] read-only.
pub fn make_read_only(disk: &Path) {
    mount_remount(disk, MountFlags::RDONLY, c"").unwrap();
}

fn leave_namespace() -> rustix::io::Result<()> {
    // SAFETY: only the mount namespace and the working folder of this thread part from the others'; no
    // file descriptor changes hands.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS)? };
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
}

/// Runs `body` on a thread that can give no file a further name, as on a file system without hard links. False, and a line that
/// says so, where the kernel cannot forbid a call.
pub fn without_links(body: impl FnOnce() + Send) -> bool {
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            let is_forbidden = forbid(libc::SYS_linkat);
            match is_forbidden {
                true => body(),
                false => eprintln!("SKIPPED: no filter of system calls here"),
            }
            is_forbidden
        });
        match run.join() {
            Ok(is_forbidden) => is_forbidden,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Lets a system call of this thread, and of threads that it starts, fail with EPERM.
fn forbid(call: libc::c_long) -> bool {
    const LOAD_NUMBER: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, k| libc::sock_filter { code, jt, jf: 0, k };
    let mut program = [
        step(LOAD_NUMBER, 0, 0),
        step(IF_EQUAL, 1, call as u32),
        step(RETURN, 0, libc::SECCOMP_RET_ALLOW),
        step(RETURN, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    ];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the kernel copies the program, which lives through the call; both calls change this thread alone.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter) == 0
    }
}
