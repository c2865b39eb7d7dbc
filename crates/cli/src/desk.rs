//! The socket at which a running transfer can be asked how far it is, and told to stop.
//!
//! Each command that carries out a transfer listens in the user's runtime folder, which only the
//! user may enter: `PID.sock` until the transfer has its id, `ID.sock` then. A question is one line
//! of JSON, so is the answer. Sockets that nobody listens on are removed by whoever finds them.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use ropewalk::{Cancel, Event};
use serde::{Deserialize, Serialize};

use crate::sys;

/// A visitor or desk that says nothing for this long is left.
const PATIENCE: Duration = Duration::from_secs(2);

/// Longest question or answer that is read: a progress event of some ten thousand nodes.
const LINE_MAX: u64 = 4 << 20;

/// What a visitor asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub(crate) enum Question {
    /// How far are you?
    Status,
    /// Stop.
    Cancel,
}

/// What a running transfer says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// Id, once it is known.
    pub transfer: Option<String>,
    /// Label of the specification.
    pub label: Option<String>,
    /// Process that carries it out.
    pub process: u32,
    /// The last progress event.
    pub progress: Option<Event>,
    /// Whether it has been told to stop.
    pub cancelled: bool,
}

/// The listening side; removes its socket when dropped.
pub(crate) struct Desk {
    state: Arc<Mutex<Answer>>,
    path: Mutex<PathBuf>,
}

/// `$XDG_RUNTIME_DIR/ropewalk`, else `/tmp/ropewalk-UID`: a folder of this user that nobody else may enter.
pub(crate) fn folder() -> Result<PathBuf> {
    let given = std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty());
    let folder = match given {
        Some(given) => Path::new(&given).join("ropewalk"),
        None => PathBuf::from(format!("/tmp/ropewalk-{}", sys::user_id())),
    };
    private_folder(&folder)?;
    Ok(folder)
}

fn private_folder(folder: &Path) -> Result<()> {
    let shown = folder.display();
    let made = fs::DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(folder);
    made.with_context(|| format!("cannot make the folder {shown}"))?;
    let found = fs::symlink_metadata(folder).with_context(|| format!("cannot look at {shown}"))?;
    // In /tmp, somebody else could have been there first.
    if !found.is_dir() || found.uid() != sys::user_id() || found.mode() & 0o077 != 0 {
        bail!(
            "{shown} is not a folder of yours alone; remove it, or set XDG_RUNTIME_DIR to a folder of yours with mode 0700"
        );
    }
    Ok(())
}

impl Desk {
    /// Opens the desk of this process.
    ///
    /// # Errors
    /// When the runtime folder is not safe or no socket can be made there; the transfer can do without.
    pub(crate) fn open(label: Option<String>, cancel: Cancel) -> Result<Self> {
        Self::open_in(&folder()?, label, cancel)
    }

    fn open_in(folder: &Path, label: Option<String>, cancel: Cancel) -> Result<Self> {
        let process = std::process::id();
        let path = folder.join(format!("{process}.sock"));
        // Not visible to visitors before it listens, so that nobody takes it for a stale one.
        let hidden = folder.join(format!(".{process}"));
        let _ = fs::remove_file(&hidden);
        let listener = UnixListener::bind(&hidden)
            .with_context(|| format!("cannot listen on {}", hidden.display()))?;
        fs::rename(&hidden, &path).with_context(|| format!("cannot make {}", path.display()))?;
        let state = Arc::new(Mutex::new(Answer {
            label,
            process,
            ..Answer::default()
        }));
        let desk = Self {
            state: state.clone(),
            path: Mutex::new(path),
        };
        let serve = move || {
            for visitor in listener.incoming().flatten() {
                // A visitor that breaks off concerns nobody else.
                let _ = answer(&visitor, &state, &cancel);
            }
        };
        std::thread::Builder::new()
            .name("desk".into())
            .spawn(serve)
            .context("cannot start a thread")?;
        Ok(desk)
    }

    /// Remembers what visitors ask for.
    pub(crate) fn handle(&self, event: &Event) {
        match event {
            Event::Planned { transfer, .. } => {
                self.state
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .transfer = Some(transfer.clone());
                let mut path = self.path.lock().unwrap_or_else(PoisonError::into_inner);
                let named = path.with_file_name(format!("{transfer}.sock"));
                if fs::rename(&*path, &named).is_ok() {
                    *path = named;
                }
            }
            Event::Progress { .. } => {
                self.state
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .progress = Some(event.clone());
            }
            Event::Reached { .. } | Event::Note { .. } | Event::Ended { .. } => {}
        }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = fs::remove_file(&*self.path.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

fn answer(visitor: &UnixStream, state: &Mutex<Answer>, cancel: &Cancel) -> Result<()> {
    let question: Question = serde_json::from_str(&read_line(visitor)?)?;
    if question == Question::Cancel {
        cancel.cancel();
    }
    let mut answer = state.lock().unwrap_or_else(PoisonError::into_inner).clone();
    answer.cancelled = cancel.is_cancelled();
    write_line(visitor, &serde_json::to_string(&answer)?)
}

fn read_line(stream: &UnixStream) -> Result<String> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE_MAX)).read_line(&mut line)?;
    Ok(line)
}

fn write_line(mut stream: &UnixStream, line: &str) -> Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream.write_all(format!("{line}\n").as_bytes())?)
}

/// Asks every desk in a folder; gives path and answer of each, in order of path.
pub(crate) fn ask_all(folder: &Path, question: Question) -> Result<Vec<(PathBuf, Answer)>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot look into {}", folder.display()));
        }
    };
    let is_socket = |path: &PathBuf| path.extension().is_some_and(|e| e == "sock");
    let mut paths: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(is_socket)
        .collect();
    paths.sort();
    let mut answers = Vec::new();
    for path in paths {
        match ask(&path, question) {
            Ok(answer) => answers.push((path, answer)),
            // Nobody listens any more: the process was killed.
            Err(error)
                if error
                    .downcast_ref::<std::io::Error>()
                    .is_some_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused) =>
            {
                let _ = fs::remove_file(&path);
            }
            // It ended just now, or got a new name: not worth a word.
            Err(_) => {}
        }
    }
    Ok(answers)
}

/// Asks one desk.
pub(crate) fn ask(path: &Path, question: Question) -> Result<Answer> {
    let stream = UnixStream::connect(path)?;
    write_line(&stream, &serde_json::to_string(&question)?)?;
    Ok(serde_json::from_str(&read_line(&stream)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(transfer: &str) -> Event {
        Event::Planned {
            transfer: transfer.into(),
            bytes: 1,
            files: 0,
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
        let desk = Desk::open_in(dir.path(), Some("label".into()), cancel.clone()).unwrap();
        let answers = ask_all(dir.path(), Question::Status).unwrap();
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
            total_bytes: 9,
            bits_per_second: 0.0,
            eta_seconds: None,
            receivers: Vec::new(),
            senders: Vec::new(),
        };
        desk.handle(&progress);
        let answers = ask_all(dir.path(), Question::Status).unwrap();
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0].0, dir.path().join("id-1.sock"));
        assert_eq!(
            (
                answers[0].1.transfer.as_deref(),
                answers[0].1.progress.as_ref()
            ),
            (Some("id-1"), Some(&progress))
        );
        assert!(!cancel.is_cancelled());
        assert!(ask(&answers[0].0, Question::Cancel).unwrap().cancelled);
        assert!(cancel.is_cancelled());
        drop(desk);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    /// A socket whose process is gone is removed, and a visitor that talks nonsense does no harm.
    #[test]
    fn stale_sockets_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let desk = Desk::open_in(dir.path(), None, Cancel::new()).unwrap();
        drop(UnixListener::bind(dir.path().join("stale.sock")).unwrap());
        let stream = UnixStream::connect(desk.path.lock().unwrap().as_path()).unwrap();
        write_line(&stream, "nonsense").unwrap();
        assert_eq!(ask_all(dir.path(), Question::Status).unwrap().len(), 1);
        assert!(!dir.path().join("stale.sock").exists());
    }

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
}
