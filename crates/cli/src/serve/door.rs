//! The socket of `serve`, in a folder that only the user may enter: one question and one answer a connection, each a line of JSON.

use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use ropewalk_proto::queue::Entry;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use super::task::Task;
use crate::deadline::write_line;
use crate::options::remembering_file;
use crate::runtime_folder;
use crate::silence::{self, Silence};

/// A visitor that says nothing for this long is left.
const PATIENCE: Duration = Duration::from_secs(2);

/// An answer is read within this time: megabytes, on a host that has much to do.
const WRITE_TIME: Duration = Duration::from_secs(10);

/// How long an answer that is not awaited may take: the queue writes to its disk.
const ANSWER_TIME: Duration = Duration::from_secs(60);

/// Longest question or answer: a job with its list of files, or some ten thousand jobs.
const LINE_MAX: u64 = 64 << 20;

/// Answers that are not read yet hold up the end of `serve` no longer.
pub(super) const LAST_TIME: Duration = Duration::from_secs(2);

/// After a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// What a visitor asks.
#[derive(Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub(crate) enum Question {
    /// Take this job.
    Submit {
        /// What it does.
        task: Box<Task>,
        /// Where it writes; jobs that meet in one of these run one after the other.
        places: Vec<String>,
        /// Higher ones run first.
        priority: i32,
    },
    /// All jobs.
    List,
    /// Take a job out, or stop it.
    Cancel {
        /// Its number.
        job: u64,
    },
    /// Answer when this job has ended.
    Wait {
        /// Its number.
        job: u64,
    },
    /// Change the limit of all together.
    Limit {
        /// Bytes per second.
        rate: Option<u64>,
    },
}

/// What `serve` says.
#[derive(Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The job is in the queue, safely.
    Submitted {
        /// Its number.
        job: u64,
    },
    /// It is so.
    Done,
    /// It is not.
    Refused {
        /// Why.
        error: String,
    },
    /// What is in the queue.
    Jobs {
        /// Of all together, bytes per second.
        limit: Option<u64>,
        /// By number.
        jobs: Vec<Entry>,
    },
}

/// Beside the default place of the queue: a runtime folder ends with the login.
fn path() -> Result<PathBuf> {
    let folder = remembering_file("auto".as_ref(), "queue");
    let folder = folder.context("there is no home folder for the socket of `ropewalk serve`")?;
    runtime_folder::private_folder(&folder)?;
    Ok(folder.join("serve.socket"))
}

/// A visitor that has asked. Its own thread writes the answer: one that reads slowly holds up no other, and not the loop.
pub(super) struct Visitor {
    stream: Arc<UnixStream>,
    answer: mpsc::Sender<(Answer, mpsc::Sender<()>)>,
}

impl Visitor {
    /// Whether it has closed its connection.
    pub fn has_gone(&self) -> bool {
        let mut fds = [PollFd::new(&*self.stream, PollFlags::RDHUP)];
        let polled = poll(&mut fds, Some(&Timespec::default()));
        polled.is_ok_and(|count| count > 0)
    }

    /// Answers it; one that has gone concerns no other.
    ///
    /// * `writing`: dropped when the answer is written.
    pub fn answer(self, answer: Answer, writing: &mpsc::Sender<()>) {
        let _ = self.answer.send((answer, writing.clone()));
    }
}

/// Hears a visitor and answers it.
fn attend(stream: UnixStream, asked: impl Fn(Question, Visitor)) {
    let stream = Arc::new(stream);
    let question = match hear(&stream) {
        Ok(question) => question,
        Err(error) => {
            let error = format!(
                "`ropewalk serve` does not understand this: {error:#}; is it another version?"
            );
            let _ = write_line(&stream, &Answer::Refused { error }, WRITE_TIME);
            return;
        }
    };
    let (answer, answered) = mpsc::channel();
    let visitor = Visitor {
        stream: stream.clone(),
        answer,
    };
    asked(question, visitor);
    // None where it has gone, or `serve` ends.
    if let Ok((answer, _writing)) = answered.recv() {
        let _ = write_line(&stream, &answer, WRITE_TIME);
    }
}

/// The listening side; removes its socket when dropped.
pub(super) struct Door {
    path: PathBuf,
}

impl Door {
    /// Listens; questions go to `asked`, with the visitor that waits for the answer.
    ///
    /// # Errors
    /// When another `serve` of this user answers.
    pub fn open(asked: impl Fn(Question, Visitor) + Send + Sync + 'static) -> Result<Self> {
        let path = path()?;
        let shown = path.display().to_string();
        if UnixStream::connect(&path).is_ok() {
            bail!(
                "a `ropewalk serve` of yours listens at {shown} already; `ropewalk queue` shows its jobs"
            );
        }
        let hidden = path.with_extension(std::process::id().to_string());
        let _ = fs::remove_file(&hidden);
        let listener =
            UnixListener::bind(&hidden).with_context(|| format!("cannot listen at {shown}"))?;
        fs::rename(&hidden, &path).with_context(|| format!("cannot listen at {shown}"))?;
        let asked = Arc::new(asked);
        let listen = move || {
            for visitor in listener.incoming() {
                let Ok(visitor) = visitor else {
                    // No descriptor is free.
                    std::thread::sleep(PAUSE);
                    continue;
                };
                let asked = asked.clone();
                // One that says nothing holds up no other.
                let heard = std::thread::Builder::new().spawn(move || attend(visitor, &*asked));
                drop(heard);
            }
        };
        std::thread::Builder::new()
            .name("door".into())
            .spawn(listen)
            .context("cannot start a thread")?;
        Ok(Self { path })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn hear(visitor: &UnixStream) -> Result<Question> {
    visitor.set_read_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(visitor.take(LINE_MAX)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Asks the running `serve`; what it refuses is an error.
///
/// # Errors
/// As [`ask_for`], and what it refuses.
pub(super) fn ask(question: &Question) -> Result<Answer> {
    match ask_for(question)? {
        Answer::Refused { error } => bail!("{error}"),
        answer => Ok(answer),
    }
}

const ENDED: &str = "`ropewalk serve` ended before it answered; the next one goes on with its jobs";

/// No `serve` runs, or it has just ended; another one may begin.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Away(&'static str);

/// Why no `serve` is reached. Without its socket, or where no process listens at it, none runs, which needs no cause.
fn not_reached(error: &std::io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => Away(
            "no `ropewalk serve` of yours runs on this host; start it, for example with: nohup ropewalk serve &",
        )
        .into(),
        _ => anyhow::anyhow!("cannot reach the `ropewalk serve` of this host: {error}"),
    }
}

/// Between looks at a `serve` that does not answer.
const LOOK_TIME: Duration = Duration::from_secs(2);

const UNKNOWN: &str =
    "whether it has done what was asked is not known: `ropewalk queue` shows its jobs";

/// # Errors
/// When a signal has stopped it.
fn check_running(process: Option<u32>) -> Result<()> {
    match process.filter(|process| silence::is_stopped(*process)) {
        None => Ok(()),
        Some(process) => {
            let remedy = Silence::Stopped.remedy(process);
            bail!("a signal has stopped `ropewalk serve` (process {process}): {remedy}")
        }
    }
}

/// Asks the running `serve`.
///
/// # Errors
/// When none runs, it does not answer, or the question is too long.
pub(super) fn ask_for(question: &Question) -> Result<Answer> {
    let line = format!("{}\n", serde_json::to_string(question)?);
    if line.len() as u64 > LINE_MAX {
        bail!(
            "with what this command has read (lists of files, patterns, a specification) its job takes {} MiB, and `ropewalk serve` \
             keeps at most {} MiB of one; split it, or run it without --detach",
            (line.len() as u64).div_ceil(1 << 20),
            LINE_MAX >> 20
        );
    }
    let path = path()?;
    let mut stream = UnixStream::connect(&path).map_err(|error| not_reached(&error))?;
    let process = silence::listening(&stream);
    check_running(process)?;
    stream.write_all(line.as_bytes())?;
    let waits = matches!(question, Question::Wait { .. });
    stream.set_read_timeout((!waits).then_some(LOOK_TIME))?;
    let until = Instant::now() + ANSWER_TIME;
    let mut reader = BufReader::new(stream.take(LINE_MAX));
    let mut line = Vec::new();
    while let Err(error) = reader.read_until(b'\n', &mut line) {
        if error.kind() != ErrorKind::WouldBlock {
            return Err(error).context("`ropewalk serve` does not answer");
        }
        check_running(process).context(UNKNOWN)?;
        if Instant::now() >= until {
            let seconds = ANSWER_TIME.as_secs();
            bail!("`ropewalk serve` has not answered for {seconds} s; {UNKNOWN}");
        }
    }
    if line.is_empty() {
        return Err(Away(ENDED).into());
    }
    serde_json::from_slice(&line).context("`ropewalk serve` gave no answer; is it another version?")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loop that answers does not wait for visitors that read nothing; what is not written yet is known until it is.
    #[test]
    fn answers_are_not_awaited() {
        let (visitor, mut peer) = UnixStream::pair().unwrap();
        peer.write_all(b"{\"request\":\"list\"}\n").unwrap();
        let (asked, questions) = mpsc::channel();
        let attending = std::thread::spawn(move || {
            attend(visitor, |question, visitor| {
                asked.send((question, visitor)).unwrap();
            });
        });
        let (question, visitor) = questions.recv().unwrap();
        assert!(matches!(question, Question::List) && !visitor.has_gone());
        // More than a socket takes.
        let error = "x".repeat(4 << 20);
        let (writing, written) = mpsc::channel();
        visitor.answer(Answer::Refused { error }, &writing);
        drop(writing);
        assert_eq!(written.try_recv(), Err(mpsc::TryRecvError::Empty));
        let mut line = String::new();
        peer.read_to_string(&mut line).unwrap();
        assert!(line.len() > 4 << 20 && line.ends_with('\n'));
        assert!(written.recv().is_err());
        attending.join().unwrap();
    }

    /// One without an answer is left when its question is dropped.
    #[test]
    fn unanswered_visitors_are_left() {
        let (visitor, mut peer) = UnixStream::pair().unwrap();
        peer.write_all(b"{\"request\":\"wait\",\"job\":1}\n")
            .unwrap();
        attend(visitor, |_, visitor| drop(visitor));
        assert_eq!(peer.read_to_end(&mut Vec::new()).unwrap(), 0);
    }

    /// Where none runs, the advice stands alone; other errors keep their cause.
    #[test]
    fn advice_has_no_cause_behind_it() {
        for kind in [ErrorKind::NotFound, ErrorKind::ConnectionRefused] {
            let text = not_reached(&kind.into()).to_string();
            assert!(text.ends_with("nohup ropewalk serve &"), "{text}");
        }
        let text = not_reached(&ErrorKind::PermissionDenied.into()).to_string();
        assert!(text.ends_with("permission denied"), "{text}");
    }
}
