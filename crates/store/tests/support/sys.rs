//! Small and read-only disks for one test: a memory file system in a mount namespace of its own.

use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change, mount_remount};

/// Runs `body` on a thread that alone sees a memory file system of `len` bytes at a fresh folder.
///
/// Prints a line and does nothing where that is not permitted. The kernel removes the mount with the thread.
pub fn on_small_disk(len: u64, body: impl FnOnce(&Path) + Send) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| match mount_here(&path, len) {
            Ok(()) => body(&path),
            Err(error) => eprintln!("SKIPPED: no mount namespace here ({error}); run as root"),
        });
        if let Err(panic) = run.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Makes the file system of [`on_small_disk`] read-only.
pub fn make_read_only(disk: &Path) {
    mount_remount(disk, MountFlags::RDONLY, c"").unwrap();
}

fn mount_here(path: &PathBuf, len: u64) -> rustix::io::Result<()> {
    // SAFETY: only the mount namespace and the working folder of this thread part from the others'; no
    // file descriptor changes hands.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS)? };
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let options = std::ffi::CString::new(format!("size={len}")).unwrap_or_default();
    mount("tmpfs", path, "tmpfs", MountFlags::empty(), options.as_c_str())
}
