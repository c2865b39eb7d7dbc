//! The steps that set a host up inside its new namespaces.
//!
//! Built before the fork, run after it: running a step makes system calls only and allocates nothing.

use std::ffi::{CStr, CString};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use crate::sys;

/// One system call, or two, of a host's set-up. Paths are resolved inside the new mount namespace.
#[derive(Debug)]
pub(crate) enum Step {
    /// Stops mount events between the host and the machine.
    DetachPropagation,
    HostName(CString),
    MakeDir {
        path: CString,
        mode: u32,
    },
    Symlink {
        target: CString,
        path: CString,
    },
    /// Creates or truncates the file.
    WriteFile {
        path: CString,
        contents: Vec<u8>,
        mode: u32,
    },
    /// Writes to a file that must exist.
    SetFile {
        path: CString,
        contents: Vec<u8>,
    },
    Mount {
        kind: CString,
        path: CString,
        options: CString,
    },
    /// Recursive bind. `if_there`: a source that vanished meanwhile is no error.
    Bind {
        from: CString,
        to: CString,
        if_there: bool,
    },
    /// Makes `new_root` the root and puts the old one below it.
    Pivot {
        new_root: CString,
        old_root: CString,
    },
    Unmount {
        path: CString,
    },
}

impl Step {
    /// Runs it. Only system calls: called between fork and exit.
    pub(crate) fn run(&self) -> Result<(), Errno> {
        match self {
            Step::DetachPropagation => rustix::mount::mount_change(
                c"/",
                MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
            ),
            Step::HostName(name) => sys::set_host_name(name),
            Step::MakeDir { path, mode } => {
                match rustix::fs::mkdir(path.as_c_str(), Mode::from_raw_mode(*mode)) {
                    Err(Errno::EXIST) => Ok(()),
                    // The creation mask must not decide who may use the directory.
                    other => other.and_then(|()| {
                        rustix::fs::chmod(path.as_c_str(), Mode::from_raw_mode(*mode))
                    }),
                }
            }
            Step::Symlink { target, path } => {
                rustix::fs::symlink(target.as_c_str(), path.as_c_str())
            }
            Step::WriteFile {
                path,
                contents,
                mode,
            } => write(
                path,
                OFlags::CREATE | OFlags::TRUNC,
                Mode::from_raw_mode(*mode),
                contents,
            ),
            Step::SetFile { path, contents } => {
                write(path, OFlags::empty(), Mode::empty(), contents)
            }
            Step::Mount {
                kind,
                path,
                options,
            } => {
                let flags = MountFlags::NOSUID | MountFlags::NODEV;
                rustix::mount::mount(
                    kind.as_c_str(),
                    path.as_c_str(),
                    kind.as_c_str(),
                    flags,
                    options.as_c_str(),
                )
            }
            Step::Bind { from, to, if_there } => {
                match rustix::mount::mount_bind_recursive(from.as_c_str(), to.as_c_str()) {
                    Err(Errno::NOENT) if *if_there => Ok(()),
                    other => other,
                }
            }
            Step::Pivot { new_root, old_root } => {
                rustix::process::pivot_root(new_root.as_c_str(), old_root.as_c_str())?;
                rustix::process::chdir(c"/")
            }
            Step::Unmount { path } => rustix::mount::unmount(path.as_c_str(), UnmountFlags::DETACH),
        }
    }

    /// The step in words, for "cannot ...".
    pub(crate) fn describe(&self) -> String {
        let show = |path: &CString| path.to_string_lossy().into_owned();
        match self {
            Step::DetachPropagation => "make its mounts private".into(),
            Step::HostName(name) => format!("set the host name {}", show(name)),
            Step::MakeDir { path, .. } => format!("create directory {}", show(path)),
            Step::Symlink { path, .. } => format!("create link {}", show(path)),
            Step::WriteFile { path, .. } => format!("write {}", show(path)),
            Step::SetFile { path, contents } => {
                format!(
                    "set {} to {}",
                    show(path),
                    String::from_utf8_lossy(contents).trim()
                )
            }
            Step::Mount {
                kind,
                path,
                options,
            } => format!("mount {} ({}) on {}", show(kind), show(options), show(path)),
            Step::Bind { from, to, .. } => format!("bind {} to {}", show(from), show(to)),
            Step::Pivot { new_root, .. } => format!("make {} its root", show(new_root)),
            Step::Unmount { path } => format!("unmount {}", show(path)),
        }
    }
}

fn write(path: &CStr, flags: OFlags, mode: Mode, contents: &[u8]) -> Result<(), Errno> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC | flags, mode)?;
    let mut rest = contents;
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(&file, rest)?..];
    }
    Ok(())
}
