//! Commands that are asked and do not answer: those that are stopped (Ctrl-Z), and those whose threads hang.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::UNIX_EPOCH;

use rustix::net::sockopt;
use serde::{Deserialize, Serialize};

/// Why a process that lives does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Silence {
    /// A signal has stopped it; it goes on with SIGCONT.
    Stopped,
    /// It runs, and has not answered in time.
    Late,
}

impl Silence {
    /// What it is instead of answering.
    pub fn state(self) -> &'static str {
        match self {
            Self::Stopped => "stopped, does not answer",
            Self::Late => "does not answer",
        }
    }

    /// What can be done about it.
    pub fn remedy(self, process: u32) -> String {
        match self {
            // A stopped process handles SIGTERM when it goes on, and not before.
            Self::Stopped => format!(
                "`kill -CONT {process}` continues it; `kill -KILL {process}` ends it as it is"
            ),
            Self::Late => format!("`kill {process}` ends it"),
        }
    }
}

/// Whether a signal has stopped a process.
pub(crate) fn is_stopped(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name before it is in brackets, and may contain any.
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with('T'))
}

/// The process that listens at the other end; `None` where it is one of another host's or container's.
pub(crate) fn listening(stream: &UnixStream) -> Option<u32> {
    let peer = sockopt::socket_peercred(stream).ok()?;
    u32::try_from(peer.pid.as_raw_pid())
        .ok()
        .filter(|process| *process > 0)
}

/// The name of the socket of what a process carries out: without an id, before it has one.
pub(crate) fn socket_name(id: Option<&str>, process: u32) -> String {
    match id {
        Some(id) => format!("{id}.{process}.sock"),
        None => format!("{process}.sock"),
    }
}

/// What is known of a process that does not answer.
pub(crate) struct Silent {
    /// Its number on this host.
    pub process: u32,
    /// Id of what it carries out, once it has one.
    pub transfer: Option<String>,
    /// When it made its socket, in seconds since 1970.
    pub started_seconds: u64,
    /// Why there is no answer.
    pub silence: Silence,
}

/// What the socket of a process says of it; `None` where no such process of the socket's user lives.
///
/// * `listening`: the process, where it is known better than by the socket's name.
pub(crate) fn look(socket: &Path, listening: Option<u32>) -> Option<Silent> {
    let name = socket.file_stem()?.to_str()?;
    let (id, named) = match name.rsplit_once('.') {
        Some((id, process)) => (Some(id), process),
        None => (None, name),
    };
    let process = listening.or_else(|| named.parse().ok())?;
    let found = fs::symlink_metadata(socket).ok()?;
    let lives = fs::metadata(format!("/proc/{process}")).ok()?;
    if lives.uid() != found.uid() {
        return None;
    }
    let made = found.modified().ok()?.duration_since(UNIX_EPOCH);
    Some(Silent {
        process,
        transfer: id.map(str::to_owned),
        started_seconds: made.map_or(0, |made| made.as_secs()),
        silence: match is_stopped(process) {
            true => Silence::Stopped,
            false => Silence::Late,
        },
    })
}
