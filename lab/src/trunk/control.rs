//! The control socket: live changes and counters for other programs.
//!
//! Abstract, so nothing of it can be left behind; only its owner and root are let in. A request is a line, the answer
//! is a line of JSON: what was asked for, or `{"error": "..."}`.
//!
//! | request | answer |
//! | --- | --- |
//! | `counters` | [`TrunkCounters`](super::TrunkCounters) |
//! | `validity` | [`Validity`](super::Validity) |
//! | `reset` | `{}`; counting begins again |
//! | `show` | both links as they are now |
//! | `set both rate=50Mbit delay=20ms` | `{}`; or `a-to-b`, `b-to-a`; words as [`Trunk`](super::Trunk) has them |

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use serde_json::{Value, json};

use super::{Direction, Shared};
use crate::LabError;

/// More programs at once than anybody has reason to run.
const CONNECTIONS_MAX: usize = 16;
/// The longest request is a change of every word.
const REQUEST_BYTES_MAX: usize = 1_024;
/// A client that does not read must not hold the others up.
const WRITE_WAIT_MAX: Duration = Duration::from_secs(1);
/// The relay itself may take ten seconds to answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(30);

/// The thread that serves the socket; dropping it ends it.
#[derive(Debug)]
pub(super) struct Control {
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    pub(super) fn start(name: &str, shared: Arc<Shared>) -> Result<Control, LabError> {
        let failed = |cause| LabError::System {
            action: format!("open the trunk's control socket {name:?}"),
            cause,
        };
        let address = SocketAddr::from_abstract_name(name).map_err(failed)?;
        let listener = UnixListener::bind_addr(&address).map_err(failed)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
        let bell = Arc::new(bell);
        let own = Arc::clone(&bell);
        let thread = std::thread::Builder::new()
            .name("trunk control".into())
            .spawn(move || serve(&listener, &own, &shared))
            .map_err(failed)?;
        Ok(Control {
            bell,
            thread: Some(thread),
        })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Client {
    stream: UnixStream,
    text: Vec<u8>,
}

fn serve(listener: &UnixListener, bell: &OwnedFd, shared: &Shared) {
    let mut clients: Vec<Client> = Vec::new();
    loop {
        let mut events = vec![
            PollFd::new(bell, PollFlags::IN),
            PollFd::new(listener, PollFlags::IN),
        ];
        let streams = clients
            .iter()
            .map(|client| PollFd::from_borrowed_fd(client.stream.as_fd(), PollFlags::IN));
        events.extend(streams);
        if poll(&mut events, None).is_err() {
            continue;
        }
        let ready: Vec<bool> = events
            .iter()
            .map(|event| !event.revents().is_empty())
            .collect();
        drop(events);
        if ready[0] {
            return;
        }
        let mut awaits = ready[2..].iter();
        clients
            .retain_mut(|client| !awaits.next().is_some_and(|&ready| ready) || client.hear(shared));
        if ready[1]
            && let Ok((stream, _)) = listener.accept()
            && clients.len() < CONNECTIONS_MAX
            && is_let_in(&stream)
            && stream.set_write_timeout(Some(WRITE_WAIT_MAX)).is_ok()
        {
            let text = Vec::new();
            clients.push(Client { stream, text });
        }
    }
}

fn is_let_in(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| peer.uid == own || peer.uid.is_root())
}

impl Client {
    /// Reads what there is and answers whole lines; false when the client is gone, or talks nonsense.
    fn hear(&mut self, shared: &Shared) -> bool {
        let mut bytes = [0; REQUEST_BYTES_MAX];
        match self.stream.read(&mut bytes) {
            Ok(0) | Err(_) => return false,
            Ok(count) => self.text.extend_from_slice(&bytes[..count]),
        }
        while let Some(end) = self.text.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.text.drain(..=end).collect();
            let answer = answer(&String::from_utf8_lossy(&line), shared)
                .unwrap_or_else(|error| json!({"error": error.to_string()}));
            if self
                .stream
                .write_all(format!("{answer}\n").as_bytes())
                .is_err()
            {
                return false;
            }
        }
        self.text.len() < REQUEST_BYTES_MAX
    }
}

fn answer(line: &str, shared: &Shared) -> Result<Value, LabError> {
    let mut words = line.split_whitespace();
    let verb = words.next().unwrap_or_default();
    let rest: Vec<&str> = words.collect();
    let value = match (verb, &rest[..]) {
        ("counters", []) => serde_json::to_value(shared.counters()?),
        ("validity", []) => serde_json::to_value(shared.validity()?),
        ("reset", []) => {
            shared.reset_counters()?;
            Ok(json!({}))
        }
        ("show", []) => {
            let links = shared.links();
            Ok(json!({"a_to_b": links[0], "b_to_a": links[1]}))
        }
        ("set", [side, words @ ..]) if !words.is_empty() => {
            let directions = match *side {
                "a-to-b" => &Direction::BOTH[..1],
                "b-to-a" => &Direction::BOTH[1..],
                "both" => &Direction::BOTH[..],
                _ => {
                    return Err(LabError::description(format!(
                        "{side:?}: a-to-b, b-to-a or both"
                    )));
                }
            };
            shared.change(directions, &words.join(" "))?;
            Ok(json!({}))
        }
        _ => {
            let known = "counters, validity, reset, show, or set a-to-b|b-to-a|both key=value ...";
            return Err(LabError::description(format!(
                "{:?}: ask {known}",
                line.trim()
            )));
        }
    };
    value.map_err(|error| LabError::system("write the answer")(error.into()))
}

/// Whether a trunk listens under this name.
#[must_use]
pub fn serves(name: &str) -> bool {
    connect(name).is_ok()
}

fn connect(name: &str) -> io::Result<UnixStream> {
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Asks the trunk with the control socket `name` one thing: `counters`, `validity`, `reset`, `show`, or
/// `set both rate=50Mbit`. Returns its answer, one line of JSON.
///
/// # Errors
/// [`LabError::System`] when nothing answers there, [`LabError::BadDescription`] with the trunk's own words when it
/// refuses.
pub fn ask(name: &str, request: &str) -> Result<String, LabError> {
    let failed = |cause| LabError::System {
        action: format!("reach a trunk's control socket {name:?}"),
        cause,
    };
    let mut stream = connect(name).map_err(failed)?;
    stream
        .set_read_timeout(Some(ANSWER_WAIT_MAX))
        .map_err(failed)?;
    let request = request.replace('\n', " ");
    stream
        .write_all(format!("{request}\n").as_bytes())
        .map_err(failed)?;
    let mut line = String::new();
    BufReader::new(stream)
        .read_line(&mut line)
        .map_err(failed)?;
    if line.is_empty() {
        return Err(failed(io::Error::other("it hung up without an answer")));
    }
    let line = line.trim().to_owned();
    let value: Value = serde_json::from_str(&line).unwrap_or_default();
    match value["error"].as_str() {
        Some(error) => {
            let error = error.strip_prefix("lab description: ").unwrap_or(error);
            Err(LabError::description(error))
        }
        None => Ok(line),
    }
}
