//! Starts an agent as a child process, and opens the pipe to it.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ropewalk_pipe::{Pipe, Side};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{ChildStderr, Command};
use tokio::sync::mpsc;

use super::greet::{Greeting, Ready, greet};
use super::hosts_errors::show;
use super::ranks::Seat;
use super::ssh::{self, Failure, Questions};
use super::terminal::Terminal;
use super::{Reached, Started};
use crate::link::Link;
use crate::tunnels::Way;

/// Longest time for an agent to be ready, ssh login included; while it is sent the program, longest time without progress.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The same where a person answers questions.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);

/// What is kept of standard error until the agent is up.
const SAID_MAX: usize = 8 << 10;

/// Lines of standard error that may wait for the one that listens to them.
const LINES_MAX: usize = 64;

/// An agent that ended without being up: time for its last words to come.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(2);

/// Starts an agent and opens its control stream.
///
/// * `words`: the command.
/// * `is_local`: it runs on this host.
/// * `lines`: say what it may touch, and which rank of MPI it becomes, where it does.
/// * `own`: this program's file, for a host that lacks it.
pub(super) async fn start(
    words: &[OsString],
    is_local: bool,
    questions: Questions,
    (lines, seat): (&[String], Option<&Seat>),
    own: &Path,
) -> Result<Reached, Failure> {
    let Some((program, rest)) = words.split_first() else {
        return Err(failed("no command to start an agent".into()));
    };
    let mut command = prepare(program, rest, is_local, questions);
    let program = program.to_string_lossy().into_owned();
    // Dropped after the child, which is killed first.
    let _terminal = match questions {
        Questions::AtTerminal => Terminal::keep(),
        Questions::Never => None,
    };
    let mut child = command
        .spawn()
        .map_err(|error| failed(not_started(&program, is_local, &error)))?;
    let said = Said::listen(child.stderr.take(), questions == Questions::AtTerminal);
    let patience = match questions {
        Questions::Never => START_TIMEOUT,
        Questions::AtTerminal => ANSWER_TIMEOUT,
    };
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(failed("its input and output are closed".into()));
    };
    match greet(input, output, (lines, seat), own, patience).await {
        Greeting::Ready(ready) => {
            said.pass_on();
            let started = |pipe| Started::Child { child, pipe };
            open_pipe(*ready, started, is_local).await
        }
        Greeting::Refused(reason) => Err(failed(reason)),
        Greeting::Ended => {
            let ended = tokio::time::timeout(LAST_WORDS, child.wait()).await;
            let status = ended.ok().and_then(Result::ok).and_then(|s| s.code());
            let said = said.all().await;
            Err(ssh::explain(&program, status, &said, questions))
        }
        Greeting::Silent => {
            let said = said.so_far();
            let words = match said.trim() {
                "" => String::new(),
                said => format!("; it said: {said}"),
            };
            Err(failed(format!(
                "no agent within {} s of starting `{program}`{words}",
                patience.as_secs()
            )))
        }
    }
}

/// Why a program was not started, and what to do.
fn not_started(program: &str, is_local: bool, error: &std::io::Error) -> String {
    let place = match program.contains('/') {
        true => "",
        false => " in PATH",
    };
    match (error.kind(), is_local) {
        (std::io::ErrorKind::NotFound, true) => format!(
            "there is no program `{program}`{place}; install it, for example with `cargo install --path crates/cli`, or give its path \
             as the local program"
        ),
        (std::io::ErrorKind::NotFound, false) => format!(
            "there is no program `{program}`{place}; install it, or name the one that reaches hosts with --ssh"
        ),
        _ => format!("{program}: {error}"),
    }
}

pub(super) fn failed(text: String) -> Failure {
    Failure {
        text,
        is_question: false,
        is_final: false,
    }
}

fn prepare(
    program: &OsString,
    arguments: &[OsString],
    is_local: bool,
    questions: Questions,
) -> Command {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    if questions == Questions::Never {
        // A Ctrl-C at the terminal goes to the master alone, which then ends its agents in order.
        command.process_group(0);
    }
    if is_local {
        // What this process was reached by is no address that its agents should tell.
        command.env_remove("SSH_CONNECTION");
    }
    command
}

/// The pipe to an agent that is ready, and its control stream.
///
/// * `started`: what ends it, made of the pipe.
pub(super) async fn open_pipe(
    ready: Ready,
    started: impl FnOnce(Pipe) -> Started,
    is_local: bool,
) -> Result<Reached, Failure> {
    let instance = ready.instance;
    ropewalk_pipe::widen(&ready.input);
    ropewalk_pipe::widen(ready.output.get_ref());
    // Frames are longer than its buffer.
    let read_already = std::io::Cursor::new(ready.output.buffer().to_vec());
    let output = read_already.chain(ready.output.into_inner());
    let (pipe, requests) = Pipe::start(output, ready.input, Side::Starter);
    let link = Link::over(&pipe)
        .await
        .map_err(|error| failed(format!("its agent does not answer: {error}")))?;
    Ok(Reached {
        link,
        at: None,
        way: match is_local {
            true => Way::Local(pipe.clone(), instance),
            false => Way::Pipe(pipe.clone()),
        },
        started: Some(started(pipe)),
        requests: Some(requests),
        uploaded: ready.uploaded,
    })
}

/// What a child says on standard error: kept until its agent is up, then passed on.
pub(super) struct Said {
    shared: Arc<Mutex<Kept>>,
    task: tokio::task::JoinHandle<()>,
}

struct Kept {
    text: Vec<u8>,
    is_passed_on: bool,
}

impl Kept {
    fn add(&mut self, line: &[u8]) {
        if self.is_passed_on {
            show(line);
        }
        let room = SAID_MAX.saturating_sub(self.text.len());
        self.text.extend(&line[..line.len().min(room)]);
    }
}

impl Said {
    /// * `at_once`: passed on from the beginning, too: a person needs to see it.
    pub fn listen(stderr: Option<ChildStderr>, at_once: bool) -> Self {
        Self::keep(stderr, at_once, None)
    }

    /// The same, and each line also goes to one that listens; it is kept before.
    pub fn listen_along(stderr: Option<ChildStderr>) -> (Self, mpsc::Receiver<String>) {
        let (lines, heard) = mpsc::channel(LINES_MAX);
        (Self::keep(stderr, false, Some(lines)), heard)
    }

    fn keep(
        stderr: Option<ChildStderr>,
        at_once: bool,
        lines: Option<mpsc::Sender<String>>,
    ) -> Self {
        let kept = Kept {
            text: Vec::new(),
            is_passed_on: at_once,
        };
        let shared = Arc::new(Mutex::new(kept));
        let kept = shared.clone();
        let task = tokio::spawn(async move {
            let Some(stderr) = stderr else { return };
            let mut reader = BufReader::new(stderr);
            loop {
                let mut line = Vec::new();
                let read = (&mut reader).take(SAID_MAX as u64);
                let read = { read }.read_until(b'\n', &mut line).await;
                if !matches!(read, Ok(1..)) {
                    return;
                }
                kept.lock().add(&line);
                if let Some(lines) = &lines {
                    // It may have stopped listening.
                    let _ = lines
                        .send(String::from_utf8_lossy(&line).into_owned())
                        .await;
                }
            }
        });
        Self { shared, task }
    }

    /// From now on everything is shown at once, after what was kept before.
    pub fn pass_on(self) {
        let mut kept = self.shared.lock();
        if !kept.is_passed_on {
            show(&kept.text);
        }
        kept.is_passed_on = true;
    }

    pub fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.shared.lock().text).into_owned()
    }

    /// All of it, once the child has ended.
    pub async fn all(self) -> String {
        let _ = tokio::time::timeout(LAST_WORDS, self.task).await;
        let text = self.shared.lock();
        String::from_utf8_lossy(&text.text).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    /// A program that is missing is named with what to do; other errors are as the system has them.
    #[test]
    fn missing_programs_are_named() {
        let missing = Error::from(ErrorKind::NotFound);
        let text = not_started("ropewalk", true, &missing);
        assert!(
            text.starts_with("there is no program `ropewalk` in PATH; install it"),
            "{text}"
        );
        let text = not_started("/opt/bin/ropewalk", true, &missing);
        assert!(
            text.starts_with("there is no program `/opt/bin/ropewalk`; install"),
            "{text}"
        );
        let text = not_started("nosuchssh", false, &missing);
        assert!(
            text.contains("in PATH") && text.ends_with("with --ssh"),
            "{text}"
        );
        let denied = Error::from(ErrorKind::PermissionDenied);
        assert_eq!(not_started("x", true, &denied), "x: permission denied");
    }
}
