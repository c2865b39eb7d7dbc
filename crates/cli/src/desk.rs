//! The socket at which a running transfer can be asked for its progress, and to stop, to admit nodes, to release one, or to change
//! its limit. A stream, shuffle or tunnel can be asked for its progress, and to stop.
//!
//! Each command that carries out one of them listens in the user's runtime folder, which only the
//! user may enter: `PID.sock` until the transfer has its id, `ID.PID.sock` then. A question is one line
//! of JSON, so is the answer. Sockets on which no process listens are removed by the process that finds them.

use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use ropewalk_master::request::{Mapping, NodeRequest, ObjectRequest, Reach};
use ropewalk_master::{Cancel, Members, Request};
use ropewalk_master::{Joining, clear_paths};
use ropewalk_model::ByteRate;
use ropewalk_proto::report::Event;
use serde::{Deserialize, Serialize};

use crate::deadline::{Until, write_line};
use crate::runtime_folder::{self, folder, is_own};
use crate::silence::{self, Silence};
use crate::transfer::StartArg;
use crate::{escape, token, transfer};

/// Pause where no visitor can be let in, since the process may open no more files.
const REST: Duration = Duration::from_millis(100);

/// A visitor or desk that has not said, or taken, all of it by then is left.
const PATIENCE: Duration = Duration::from_secs(2);

/// Longest question or answer that is read: a progress event of some ten thousand nodes.
const LINE_MAX: u64 = 4 << 20;

/// How long a visitor waits for nodes to be reached and to open what they have: the ssh login and the walk over a
/// large tree that the transfer itself grants them.
const JOIN_PATIENCE: Duration = Duration::from_secs(60 + 300 + 10);

/// Visitors that may wait for nodes to join or leave; each has a thread.
const WAITING_MAX: usize = 16;

/// Sources and destinations that are reported.
const PLACES_MAX: usize = 16;

/// What a visitor asks. No `Debug`: it may hold a token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub(crate) enum Question {
    /// How far are you?
    Status,
    /// Stop.
    Cancel,
    /// Take these nodes in. The answer is a [`Verdict`].
    Join {
        /// Rows as in a specification file, without id and master.
        rows: String,
        /// How their agents are started; `None` when they run.
        start: Option<StartArg>,
        /// Token of agents that run, in hexadecimal digits; `None` for the transfer's own.
        token: Option<String>,
    },
    /// Let this node go. The answer is a [`Verdict`].
    Leave {
        /// Its name in the transfer.
        node: String,
    },
    /// Move so many bytes per second in all at most; `None`: no limit. The answer is a [`Verdict`].
    Limit {
        /// Bytes per second.
        rate: Option<u64>,
    },
}

/// What a running transfer says to [`Question::Join`], [`Question::Leave`] and [`Question::Limit`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// Each node, when a report of each is possible.
    pub nodes: Vec<NodeVerdict>,
    /// Why nothing happened.
    pub error: Option<String>,
}

/// What became of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeVerdict {
    /// Its name in the transfer.
    pub node: String,
    /// Why it was rejected; `None` when all is well.
    pub error: Option<String>,
}

/// What a command carries out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    #[default]
    Transfer,
    Stream,
    Shuffle,
    Tunnel,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Transfer => "transfer",
            Self::Stream => "stream",
            Self::Shuffle => "shuffle",
            Self::Tunnel => "tunnel",
        }
    }
}

/// What a stream or a tunnel has carried so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Carried {
    /// Bytes that the first group of a stream gave on, or that programs sent to targets.
    pub sent_bytes: u64,
    /// Bytes that the last group received, or that targets sent back.
    pub received_bytes: u64,
    /// Of a stream: blocks that the last group received.
    pub blocks: Option<u64>,
    /// Of a tunnel.
    pub connections: Option<u64>,
    /// Of these, open now.
    pub open_connections: Option<u64>,
}

/// What a running transfer, stream or tunnel says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Answer {
    #[serde(default)]
    pub kind: Kind,
    /// Of a transfer: `copy`, `check`, `dry run` or `transfer` (by rows).
    #[serde(default)]
    pub does: String,
    /// Id, once it is known.
    pub transfer: Option<String>,
    /// Label of the specification, or as given.
    pub label: Option<String>,
    /// Sources as people write them; of many the first.
    #[serde(default)]
    pub from: Vec<String>,
    /// Destinations.
    #[serde(default)]
    pub to: Vec<String>,
    /// When the command started, in seconds since 1970.
    #[serde(default)]
    pub started_seconds: u64,
    /// Process that carries it out.
    pub process: u32,
    /// The last event of progress, or of what was done while nothing moved.
    pub progress: Option<Event>,
    /// Of a stream or a tunnel, once it has begun.
    #[serde(default)]
    pub carried: Option<Carried>,
    /// Whether a stop was requested.
    pub cancelled: bool,
    /// Why there is no answer: of that what its socket says is known, the rest is not.
    #[serde(default)]
    pub silence: Option<Silence>,
}

/// The listening side; removes its socket when dropped.
pub(crate) struct Desk {
    state: Arc<Mutex<Answer>>,
    path: Mutex<PathBuf>,
}

/// The sources or the destinations of nodes, the first of many.
pub(crate) fn places(
    nodes: &[NodeRequest],
    of: impl Fn(&NodeRequest) -> &[ObjectRequest],
) -> Vec<String> {
    let objects = nodes
        .iter()
        .flat_map(|node| of(node).iter().map(move |object| (node, object)));
    let place = |(node, object): (&NodeRequest, &ObjectRequest)| match node.reach {
        Reach::Local => object.object.to_string(),
        Reach::Ssh(_) | Reach::Launched(_) | Reach::Attached { .. } => {
            format!("{}:{}", node.name, object.object)
        }
    };
    objects.map(place).take(PLACES_MAX).collect()
}

impl Desk {
    /// Opens the desk of this process.
    ///
    /// # Errors
    /// When the runtime folder is not safe or no socket can be made there; the transfer can do without.
    pub(crate) fn open(request: &Request, cancel: Cancel, members: Members) -> Result<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let does = match (&request.mapping, request.options.dry_run) {
            _ if request.options.compares => "check",
            (_, true) => "dry run",
            (Mapping::Rows, false) => "transfer",
            (Mapping::Trees { .. }, false) => "copy",
        };
        let subject = Answer {
            does: does.to_owned(),
            label: request.label.clone(),
            from: places(&request.nodes, |node| &node.sources),
            to: places(&request.nodes, |node| &node.sinks),
            started_seconds: since.map_or(0, |since| since.as_secs()),
            ..Answer::default()
        };
        Self::open_in(&folder()?, subject, cancel, Some(members))
    }

    /// The same for a stream or a tunnel, which no nodes join or leave. `None`, and it is said, where that fails.
    ///
    /// * `subject`: what it is, from where to where.
    pub(crate) fn of_other(subject: Answer, cancel: Cancel, is_quiet: bool) -> Option<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let kind = subject.kind.name();
        let subject = Answer {
            started_seconds: since.map_or(0, |since| since.as_secs()),
            ..subject
        };
        let opened = folder().and_then(|folder| Self::open_in(&folder, subject, cancel, None));
        let failed = |error: &anyhow::Error| {
            if !is_quiet {
                let text = escape::line(&format!("{error:#}"));
                eprintln!("ropewalk: `ropewalk status` will not see this {kind}: {text}");
            }
        };
        opened.inspect_err(failed).ok()
    }

    fn open_in(
        folder: &Path,
        subject: Answer,
        cancel: Cancel,
        members: Option<Members>,
    ) -> Result<Self> {
        let process = std::process::id();
        let path = folder.join(silence::socket_name(None, process));
        // Not visible to visitors before it listens, so that none takes it for a stale one.
        let hidden = folder.join(format!(".{process}"));
        let _ = fs::remove_file(&hidden);
        let listener = UnixListener::bind(&hidden)
            .with_context(|| format!("cannot listen on {}", hidden.display()))?;
        fs::rename(&hidden, &path).with_context(|| format!("cannot make {}", path.display()))?;
        let state = Arc::new(Mutex::new(Answer { process, ..subject }));
        let desk = Self {
            state: state.clone(),
            path: Mutex::new(path),
        };
        let serve = move || {
            let waiting = Arc::new(());
            for visitor in listener.incoming() {
                let Ok(visitor) = visitor else {
                    // No descriptor is free: asked again at once it would be the same.
                    std::thread::sleep(REST);
                    continue;
                };
                // A visitor that breaks off concerns no other.
                let _ = answer(visitor, &state, &cancel, members.as_ref(), &waiting);
            }
        };
        std::thread::Builder::new()
            .name("desk".into())
            .spawn(serve)
            .context("cannot start a thread")?;
        Ok(desk)
    }

    /// Changes what is said.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Answer)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// What is carried out has its id now.
    pub(crate) fn name(&self, id: &str) {
        self.change(|state| state.transfer = Some(id.to_owned()));
        let mut path = self.path.lock().unwrap_or_else(PoisonError::into_inner);
        let named = path.with_file_name(silence::socket_name(Some(id), std::process::id()));
        if fs::rename(&*path, &named).is_ok() {
            *path = named;
        }
    }

    /// Remembers what visitors ask for.
    pub(crate) fn handle(&self, event: &Event) {
        match event {
            Event::Planned { transfer, .. } => self.name(transfer),
            Event::Progress { .. }
            | Event::Waiting { .. }
            | Event::Scanning { .. }
            | Event::AwaitingEnd { .. }
            | Event::Removing { .. } => {
                self.change(|state| state.progress = Some(event.clone()));
            }
            Event::HandedOver { .. }
            | Event::Reached { .. }
            | Event::Awaiting { .. }
            | Event::Returned { .. }
            | Event::Repeating { .. }
            | Event::Asking { .. }
            | Event::Uploaded { .. }
            | Event::Comparing { .. }
            | Event::Note { .. }
            | Event::Listed { .. }
            | Event::Ended { .. } => {}
        }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = fs::remove_file(&*self.path.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Answers one visitor; `waiting` is held once more by each that waits.
fn answer(
    visitor: UnixStream,
    state: &Mutex<Answer>,
    cancel: &Cancel,
    members: Option<&Members>,
    waiting: &Arc<()>,
) -> Result<()> {
    if !is_own(&visitor) {
        return Ok(());
    }
    let question: Question = serde_json::from_str(&read_line(&visitor, PATIENCE)?)?;
    match question {
        Question::Status => {}
        Question::Cancel => cancel.cancel(),
        Question::Join { .. } | Question::Leave { .. } | Question::Limit { .. } => {
            let Some(members) = members else {
                let kind = state.lock().unwrap_or_else(PoisonError::into_inner).kind;
                let error = format!("it is a {}; only transfers can be changed", kind.name());
                return write_line(&visitor, &Verdict::no(error), PATIENCE);
            };
            if Arc::strong_count(waiting) > WAITING_MAX {
                let error = format!("{WAITING_MAX} others wait already; try again in a moment");
                return write_line(&visitor, &Verdict::no(error), PATIENCE);
            }
            let (members, held) = (members.clone(), waiting.clone());
            let decide = move || {
                let verdict = decide(&question, &members);
                drop(held);
                write_line(&visitor, &verdict, PATIENCE)
            };
            std::thread::Builder::new().spawn(decide)?;
            return Ok(());
        }
    }
    let mut answer = state.lock().unwrap_or_else(PoisonError::into_inner).clone();
    answer.cancelled = cancel.is_cancelled();
    write_line(&visitor, &answer, PATIENCE)
}

/// Asks the transfer and waits for its word.
fn decide(question: &Question, members: &Members) -> Verdict {
    let verdict = match question {
        Question::Join { rows, start, token } => join(rows, *start, token.as_deref(), members),
        Question::Leave { node } => match members.leave(node) {
            Ok(()) => Ok(vec![NodeVerdict {
                node: node.clone(),
                error: None,
            }]),
            Err(error) => Err(error.to_string()),
        },
        Question::Limit { rate } => {
            let changed = members.limit(rate.map(ByteRate));
            changed
                .map(|()| Vec::new())
                .map_err(|error| error.to_string())
        }
        Question::Status | Question::Cancel => Ok(Vec::new()),
    };
    match verdict {
        Ok(nodes) => Verdict { nodes, error: None },
        Err(error) => Verdict::no(error),
    }
}

fn join(
    rows: &str,
    start: Option<StartArg>,
    token: Option<&str>,
    members: &Members,
) -> Result<Vec<NodeVerdict>, String> {
    let nodes = transfer::added_nodes(rows, start).map_err(|errors| errors.to_string())?;
    let token = match token {
        Some(digits) => Some(token::parse(digits).ok_or("the token is not 64 hexadecimal digits")?),
        None => None,
    };
    let verdict = |joined: ropewalk_master::Joined| NodeVerdict {
        node: joined.node,
        error: joined.error.map(|error| error.to_string()),
    };
    let joined = members.join(Joining { nodes, token });
    let joined = joined.map_err(|error| error.to_string())?;
    Ok(joined.into_iter().map(verdict).collect())
}

impl Verdict {
    fn no(error: String) -> Self {
        Self {
            error: Some(error),
            ..Self::default()
        }
    }
}

fn read_line(stream: &UnixStream, patience: Duration) -> Result<String> {
    let mut line = String::new();
    BufReader::new(Until::new(stream, patience).take(LINE_MAX)).read_line(&mut line)?;
    Ok(line)
}

/// Asks every desk in a folder; gives path and answer of each, in order of path.
pub(crate) fn ask_all(folder: &Path, question: &Question) -> Result<Vec<(PathBuf, Answer)>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot look into {}", folder.display()));
        }
    };
    // Where transfers tell each other which paths they cross, killed ones leave files.
    clear_paths(folder);
    let is_socket = |path: &PathBuf| path.extension().is_some_and(|e| e == "sock");
    let mut paths: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(is_socket)
        .collect();
    paths.sort();
    let mut answers = Vec::new();
    for path in paths {
        // None: it ended just now, or got a new name, and needs no message.
        if let Some(answer) = ask_or_look(&path, question) {
            answers.push((path, answer));
        }
    }
    Ok(answers)
}

/// Asks one desk. Of a process that lives and does not answer, what can be seen from here.
fn ask_or_look(path: &Path, question: &Question) -> Option<Answer> {
    let stream = match runtime_folder::connect(path) {
        Ok(stream) => stream,
        // Nothing listens any more: the process was killed.
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            let _ = fs::remove_file(path);
            return None;
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            return silent(path, None);
        }
        Err(_) => return None,
    };
    let process = silence::listening(&stream);
    // It need not be waited for.
    if process.is_some_and(silence::is_stopped) {
        return silent(path, process);
    }
    let is_late = |error: &anyhow::Error| {
        let error = error.downcast_ref::<std::io::Error>();
        error.is_some_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    match ask_on(&stream, question) {
        Ok(answer) => Some(answer),
        Err(error) if is_late(&error) => silent(path, process),
        Err(_) => None,
    }
}

/// What is shown in place of the answer of a process that gives none.
fn silent(path: &Path, listening: Option<u32>) -> Option<Answer> {
    silence::look(path, listening).map(|silent| Answer {
        transfer: silent.transfer,
        started_seconds: silent.started_seconds,
        process: silent.process,
        silence: Some(silent.silence),
        ..Answer::default()
    })
}

/// Asks one desk.
pub(crate) fn ask(path: &Path, question: &Question) -> Result<Answer> {
    ask_on(&runtime_folder::connect(path)?, question)
}

fn ask_on(stream: &UnixStream, question: &Question) -> Result<Answer> {
    write_line(stream, question, PATIENCE)?;
    Ok(serde_json::from_str(&read_line(stream, PATIENCE)?)?)
}

/// Asks one desk to take nodes in, to let one go, or to change the limit.
///
/// # Errors
/// When the transfer does not answer; a refusal is a [`Verdict`].
pub(crate) fn ask_members(path: &Path, question: &Question) -> Result<Verdict> {
    let ended = "the transfer ended before it answered";
    let stream = runtime_folder::connect(path).context(ended)?;
    write_line(&stream, question, PATIENCE).context(ended)?;
    let line = read_line(&stream, JOIN_PATIENCE).with_context(|| {
        format!(
            "no answer within {} s; `ropewalk status` shows whether it runs",
            JOIN_PATIENCE.as_secs()
        )
    })?;
    serde_json::from_str(&line).context(ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(transfer: &str) -> Event {
        Event::Planned {
            transfer: transfer.into(),
            bytes: 1,
            files: 0,
            sources: None,
            scheduler: "greedy".into(),
            predicted_seconds: None,
            bound_seconds: None,
            bound_basis: "none".into(),
        }
    }

    /// A desk answers under its process's and then its transfer's name, takes a cancel, and leaves nothing.
    #[test]
    fn a_desk_answers_and_cancels() {
        let dir = tempfile::tempdir().unwrap();
        let cancel = Cancel::new();
        let desk = Desk::open_in(
            dir.path(),
            Answer {
                label: Some("label".into()),
                ..Answer::default()
            },
            cancel.clone(),
            Some(Members::new()),
        )
        .unwrap();
        let answers = ask_all(dir.path(), &Question::Status).unwrap();
        assert_eq!(
            answers[0].0,
            dir.path().join(format!("{}.sock", std::process::id()))
        );
        assert_eq!(
            (
                answers[0].1.transfer.as_deref(),
                answers[0].1.label.as_deref()
            ),
            (None, Some("label"))
        );
        desk.handle(&planned("id-1"));
        let progress = Event::Progress {
            seconds: 1.0,
            delivered_bytes: 5,
            received_bytes: 7,
            total_bytes: 9,
            bits_per_second: 0.0,
            eta_seconds: None,
            receivers: Vec::new(),
            senders: Vec::new(),
            bottlenecks: Vec::new(),
        };
        desk.handle(&progress);
        let answers = ask_all(dir.path(), &Question::Status).unwrap();
        assert_eq!(answers.len(), 1);
        let name = format!("id-1.{}.sock", std::process::id());
        assert_eq!(answers[0].0, dir.path().join(name));
        assert_eq!(
            (
                answers[0].1.transfer.as_deref(),
                answers[0].1.progress.as_ref()
            ),
            (Some("id-1"), Some(&progress))
        );
        assert!(!cancel.is_cancelled());
        assert!(ask(&answers[0].0, &Question::Cancel).unwrap().cancelled);
        assert!(cancel.is_cancelled());
        drop(desk);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    /// Nodes join and leave by the desk; without a transfer behind it the answer is that it has ended.
    #[test]
    fn a_desk_takes_members() {
        let dir = tempfile::tempdir().unwrap();
        let desk = Desk::open_in(
            dir.path(),
            Answer::default(),
            Cancel::new(),
            Some(Members::new()),
        )
        .unwrap();
        let path = desk.path.lock().unwrap().clone();
        let join = |rows: &str, token: Option<&str>| Question::Join {
            rows: rows.into(),
            start: Some(StartArg::Ssh),
            token: token.map(Into::into),
        };
        let good = "writer a:1 /x 0 0-9";
        for (question, part) in [
            (join("nonsense", None), "not a kind of row"),
            (join(good, Some("12")), "64 hexadecimal"),
        ] {
            let verdict = ask_members(&path, &question).unwrap();
            let error = verdict.error.unwrap_or_default();
            assert!(error.contains(part), "{error}");
        }
        // The questions are not taken out: so many wait, and a status is answered meanwhile.
        let wait = |_| {
            let stream = UnixStream::connect(&path).unwrap();
            write_line(&stream, &join(good, None), PATIENCE).unwrap();
            stream
        };
        let waiting: Vec<UnixStream> = (0..WAITING_MAX).map(wait).collect();
        assert_eq!(ask_all(dir.path(), &Question::Status).unwrap().len(), 1);
        let leave = Question::Leave { node: "a".into() };
        let error = ask_members(&path, &leave)
            .unwrap()
            .error
            .unwrap_or_default();
        assert!(error.contains("others wait already"), "{error}");
        drop(waiting);
    }

    /// A process that lives and does not answer is named, by its id where its socket has it, also when its queue is full.
    #[test]
    fn silent_processes_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let process = std::process::id();
        let path = dir.path().join(silence::socket_name(Some("id-1"), process));
        let _listener = UnixListener::bind(&path).unwrap();
        let mut waiting = Vec::new();
        for is_full in [false, true] {
            while is_full && let Ok(visitor) = runtime_folder::connect(&path) {
                waiting.push(visitor);
            }
            let (_, answer) = ask_all(dir.path(), &Question::Status).unwrap().remove(0);
            assert_eq!(
                (answer.process, answer.silence),
                (process, Some(Silence::Late)),
                "{is_full}"
            );
            assert_eq!(answer.transfer.as_deref(), Some("id-1"));
            assert!(answer.started_seconds > 0);
        }
        assert!(path.exists());
    }

    /// A socket whose process is gone is removed, and a visitor that talks nonsense does no harm.
    #[test]
    fn stale_sockets_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let desk = Desk::open_in(
            dir.path(),
            Answer::default(),
            Cancel::new(),
            Some(Members::new()),
        )
        .unwrap();
        drop(UnixListener::bind(dir.path().join("stale.sock")).unwrap());
        let stream = UnixStream::connect(desk.path.lock().unwrap().as_path()).unwrap();
        write_line(&stream, &"nonsense", PATIENCE).unwrap();
        assert_eq!(ask_all(dir.path(), &Question::Status).unwrap().len(), 1);
        assert!(!dir.path().join("stale.sock").exists());
    }
}
