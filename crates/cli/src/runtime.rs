//! The threads that commands wait on.

use std::io;

use anyhow::{Error, Result, anyhow};
use rustix::io::Errno;

/// The runtime that drives control connections; data has threads of its own in the agents.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    runtime.map_err(not_started)
}

/// Why threads could not be started: each needs a process, and what wakes them a descriptor.
pub(crate) fn not_started(error: io::Error) -> Error {
    let is_open_files = error.raw_os_error() == Some(Errno::MFILE.raw_os_error());
    let advice = match is_open_files {
        true => "raise the limit of open files (ulimit -n)",
        false => "raise the limit of processes (ulimit -u)",
    };
    anyhow!("cannot start threads: {error}; {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The advice is for the limit that was met.
    #[test]
    fn the_limit_is_named() {
        for (errno, limit) in [(Errno::MFILE, "ulimit -n"), (Errno::AGAIN, "ulimit -u")] {
            let text = not_started(errno.into()).to_string();
            assert!(text.contains(limit), "{text}");
        }
    }
}
