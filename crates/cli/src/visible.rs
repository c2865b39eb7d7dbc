//! The socket at which an agent process can be asked what it does, by other processes of its user on its host: for `ropewalk top`.
//!
//! `PID.agent` in the user's runtime folder. A connection gets one message, a [`StatusReply`], and is closed. Those of killed agents
//! are removed by the next agent, and by `top` and `status`.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ropewalk_agent::Meter;
use ropewalk_proto::control::{self, FromAgent, LENGTH_LEN, StatusReply, from_agent};

use crate::runtime_folder::{self, PATIENCE, folder, is_own};

/// Pause where no visitor can be let in, since the process may open no more files.
const REST: Duration = Duration::from_millis(100);

/// The end of the sockets' names.
const END: &str = "agent";

/// The listening side; removes its socket when dropped.
pub(crate) struct Visible(PathBuf);

impl Visible {
    /// Listens for this process. `None` where that fails: the agent serves, and is not seen by `top`.
    pub fn open(meter: Meter) -> Option<Self> {
        let folder = folder().ok()?;
        remove_dead(&folder);
        Self::open_in(&folder, meter).ok()
    }

    fn open_in(folder: &Path, meter: Meter) -> std::io::Result<Self> {
        let process = std::process::id();
        // Under another name until it listens, so that it is not taken for a dead one.
        let hidden = folder.join(format!(".{process}.{END}"));
        let _ = fs::remove_file(&hidden);
        let listener = UnixListener::bind(&hidden)?;
        let path = folder.join(format!("{process}.{END}"));
        fs::rename(&hidden, &path)?;
        let visible = Self(path);
        let serve = move || {
            for visitor in listener.incoming() {
                let Ok(visitor) = visitor else {
                    // No descriptor is free: asked again at once it would be the same.
                    std::thread::sleep(REST);
                    continue;
                };
                if is_own(&visitor) {
                    // One that breaks off concerns no other.
                    let _ = answer(&visitor, &meter);
                }
            }
        };
        let thread = std::thread::Builder::new().name("visible".into());
        thread.spawn(serve)?;
        Ok(visible)
    }
}

impl Drop for Visible {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn answer(mut visitor: &UnixStream, meter: &Meter) -> std::io::Result<()> {
    let body = Some(from_agent::Body::StatusReply(meter.report(&[])));
    visitor.set_write_timeout(Some(PATIENCE))?;
    visitor.write_all(&control::encode(&FromAgent { body }))
}

/// The agents' sockets in a folder, each with its process, in the order of these.
fn sockets(folder: &Path) -> Vec<(u32, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let mut found: Vec<(u32, PathBuf)> = paths
        .filter(|path| path.extension().is_some_and(|end| end == END))
        .filter_map(|path| Some((path.file_stem()?.to_str()?.parse().ok()?, path)))
        .collect();
    found.sort();
    found
}

/// Removes the sockets of agents that were killed. Where there is such a process, its agent is not asked: it need not answer twice.
pub(crate) fn remove_dead(folder: &Path) {
    for (process, path) in sockets(folder) {
        if !Path::new(&format!("/proc/{process}")).exists() {
            let _ = connect(&path);
        }
    }
}

/// Connects to an agent. A socket on which no process listens is removed.
fn connect(path: &Path) -> std::io::Result<UnixStream> {
    runtime_folder::connect(path).inspect_err(|error| {
        if error.kind() == ErrorKind::ConnectionRefused {
            let _ = fs::remove_file(path);
        }
    })
}

/// Asks each agent whose socket is in a folder; gives its process and its answer.
pub(crate) fn ask_all(folder: &Path) -> Vec<(u32, StatusReply)> {
    let asked = sockets(folder).into_iter();
    // One that ended just now is not worth a message.
    asked
        .filter_map(|(process, path)| Some((process, ask(&path).ok()??)))
        .collect()
}

fn ask(path: &Path) -> std::io::Result<Option<StatusReply>> {
    let mut stream = connect(path)?;
    if !is_own(&stream) {
        return Ok(None);
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut length = [0; LENGTH_LEN];
    stream.read_exact(&mut length)?;
    let Ok(length) = control::decode_length(length) else {
        return Ok(None);
    };
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    let message = control::decode::<FromAgent>(&bytes);
    Ok(match message.ok().and_then(|message| message.body) {
        Some(from_agent::Body::StatusReply(reply)) => Some(reply),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use ropewalk_agent::{Agent, AgentConfig};
    use ropewalk_proto::tunnel::Permitted;

    use super::*;

    fn agent() -> Agent {
        Agent::bind(AgentConfig {
            listen: Vec::new(),
            token: [7; 32],
            roots: Vec::new(),
            expanded: Vec::new(),
            log: None,
            stages: None,
            forwards: Permitted::nothing(),
        })
        .unwrap()
    }

    /// An agent answers as often as it is asked, and leaves nothing; a socket that a killed one left is removed by either side.
    #[test]
    fn agents_answer_and_dead_ones_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let agent = agent();
        let visible = Visible::open_in(folder.path(), agent.meter()).unwrap();
        // No process has such a number.
        let dead = folder.path().join("4294967295.agent");
        for by_asking in [true, false] {
            drop(UnixListener::bind(&dead).unwrap());
            match by_asking {
                true => drop(ask_all(folder.path())),
                false => remove_dead(folder.path()),
            }
            assert!(!dead.exists(), "{by_asking}");
        }
        for _ in 0..2 {
            let answers = ask_all(folder.path());
            assert_eq!(answers[0].0, std::process::id());
            assert!(answers[0].1.agent.is_some());
            assert_eq!(answers.len(), 1);
        }
        drop(visible);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    /// What is no agent's answer is left out: another message, bytes that are none, one that is too long, and half of one.
    #[test]
    fn what_answers_nonsense_is_left_out() {
        let body = Some(from_agent::Body::StatusReply(StatusReply::default()));
        let right = control::encode(&FromAgent { body });
        let answers = [
            (control::encode(&FromAgent { body: None }), 0),
            (
                [&right[..LENGTH_LEN], &vec![255; right.len() - LENGTH_LEN]].concat(),
                0,
            ),
            (vec![255; 100], 0),
            (right[..right.len() - 1].to_vec(), 0),
            (Vec::new(), 0),
            (right, 1),
        ];
        for (answer, count) in answers {
            let folder = tempfile::tempdir().unwrap();
            let listener = UnixListener::bind(folder.path().join("1.agent")).unwrap();
            let serving = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(&answer).unwrap();
            });
            assert_eq!(ask_all(folder.path()).len(), count);
            serving.join().unwrap();
        }
    }
}
