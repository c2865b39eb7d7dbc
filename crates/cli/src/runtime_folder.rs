//! The folder of the sockets at which this user's commands and agents on this host can be asked.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::sys;

/// The folders of processes that were started without `XDG_RUNTIME_DIR`, and the one that logins have most often.
fn others() -> [PathBuf; 2] {
    let user = sys::user_id();
    [
        format!("/tmp/ropewalk-{user}").into(),
        format!("/run/user/{user}/ropewalk").into(),
    ]
}

/// `$XDG_RUNTIME_DIR/ropewalk`, else `/tmp/ropewalk-UID`: a folder that only this user may enter.
pub(crate) fn folder() -> Result<PathBuf> {
    let given = std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty());
    let folder = match given {
        Some(given) => Path::new(&given).join("ropewalk"),
        None => {
            let [none_given, _] = others();
            none_given
        }
    };
    private_folder(&folder)?;
    Ok(folder)
}

/// Makes a folder that only this user may enter, or makes sure that it is one.
pub(crate) fn private_folder(folder: &Path) -> Result<()> {
    let shown = folder.display();
    let made = fs::DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(folder);
    made.with_context(|| format!("cannot make the folder {shown}"))?;
    let found = fs::symlink_metadata(folder).with_context(|| format!("cannot look at {shown}"))?;
    // In /tmp, another user may have made it first.
    if !is_private(&found) {
        bail!(
            "{shown} is not a folder of yours alone, with mode 0700; remove it or name another (the runtime folder is in XDG_RUNTIME_DIR)"
        );
    }
    Ok(())
}

fn is_private(found: &fs::Metadata) -> bool {
    found.is_dir() && found.uid() == sys::user_id() && found.mode() & 0o077 == 0
}

/// All folders in which processes of this user may have their sockets, whatever environment they were started with, each once; none is
/// made. Those that others may enter are left out.
pub(crate) fn all() -> Vec<PathBuf> {
    let mut found: Vec<(PathBuf, (u64, u64))> = Vec::new();
    for path in folder().into_iter().chain(others()) {
        let Ok(seen) = fs::symlink_metadata(&path) else {
            continue;
        };
        let id = (seen.dev(), seen.ino());
        if is_private(&seen) && found.iter().all(|(_, other)| *other != id) {
            found.push((path, id));
        }
    }
    found.into_iter().map(|(path, _)| path).collect()
}

/// A listener that accepts no connection for so long is given up: its process may be stopped, and its queue full.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// Connects to a process's socket.
///
/// # Errors
/// [`std::io::ErrorKind::WouldBlock`] where the connection is not accepted in time; `ConnectionRefused` where no process listens.
pub(crate) fn connect(path: &Path) -> std::io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // A connection waits for a place in the queue for as long as the socket's writes wait.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(PATIENCE))?;
    rustix::net::connect(&socket, &address)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, None)?;
    Ok(UnixStream::from(socket))
}

/// Whether the other end is a process of this user, or of root. The folder keeps others out as long as its mode is what it was.
pub(crate) fn is_own(visitor: &UnixStream) -> bool {
    let peer = sockopt::socket_peercred(visitor);
    peer.is_ok_and(|peer| peer.uid.is_root() || peer.uid.as_raw() == sys::user_id())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that others may enter is not used.
    #[test]
    fn open_folders_are_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("ropewalk");
        private_folder(&folder).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o750)).unwrap();
        assert!(
            private_folder(&folder)
                .unwrap_err()
                .to_string()
                .contains("mode 0700")
        );
    }

    /// A listener whose queue stays full is given up in time.
    #[test]
    fn full_queues_are_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.agent");
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        let mut waiting = Vec::new();
        let error = loop {
            match connect(&path) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        assert_eq!(waiting.len(), 1);
        assert!(path.exists());
    }

    /// A process of one's own is let in, and each folder is looked at once.
    #[test]
    fn own_processes_are_let_in() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(is_own(&one));
        let folders = all();
        for (at, folder) in folders.iter().enumerate() {
            assert!(is_private(&fs::symlink_metadata(folder).unwrap()));
            assert!(!folders[..at].contains(folder));
        }
    }
}
