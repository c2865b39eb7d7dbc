//! A child process that never outlives its value, with what it used and what it printed.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::sys;

/// How often a running child is looked at; the error of wall times of foreign programs.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What a child that was asked to end may take before it is killed.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A running child. Its standard output comes line by line, its standard error is kept.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    name: String,
    began: Instant,
    lines: Receiver<String>,
    errors: Option<JoinHandle<String>>,
    is_reaped: bool,
}

/// How a child ended.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// From its start to its end.
    pub seconds: f64,
    /// User and system time of it and the descendants it waited for.
    pub processor_seconds: f64,
    /// Lines of standard output that were not taken yet.
    pub output: Vec<String>,
    /// Standard error.
    pub errors: String,
}

impl Ended {
    /// The child itself when it succeeded.
    ///
    /// # Errors
    /// Its exit status and last words.
    pub fn success(self, what: &str) -> Result<Self> {
        if !self.status.success() {
            let words = if self.errors.trim().is_empty() {
                self.output.join("\n")
            } else {
                self.errors
            };
            bail!("{what} ended with {}: {}", self.status, words.trim());
        }
        Ok(self)
    }
}

impl Process {
    /// Starts the command with standard output and error read by threads, so that it never blocks on them.
    pub fn start(mut command: Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        sys::die_with_parent(&mut command);
        let began = Instant::now();
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let (send, lines) = channel();
        let output = child.stdout.take();
        let errors = child.stderr.take();
        // Ends with the pipe; nobody need join it.
        std::thread::spawn(move || {
            let Some(output) = output else { return };
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { return };
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        let errors = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut errors) = errors {
                // What was read before an error is still worth showing.
                let _ = errors.read_to_end(&mut bytes);
            }
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Ok(Self {
            child,
            name,
            began,
            lines,
            errors: Some(errors),
            is_reaped: false,
        })
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line of standard output; `None` when it has closed that.
    ///
    /// # Errors
    /// Nothing arrived in time.
    pub fn line(&self, wait: Duration) -> Result<Option<String>> {
        match self.lines.recv_timeout(wait) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                bail!("{} printed nothing for {wait:?}", self.name)
            }
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It did not end in time; it is killed then.
    pub fn finish(mut self, deadline: Duration) -> Result<Ended> {
        let until = Instant::now() + deadline;
        loop {
            if let Some(ended) = self.try_reap()? {
                return Ok(ended);
            }
            if Instant::now() > until {
                bail!("{} did not end within {deadline:?}", self.name);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Asks it to end (SIGTERM), kills it if it does not, and says what it used.
    pub fn stop(mut self) -> Result<Ended> {
        sys::signal(self.pid(), libc::SIGTERM);
        let until = Instant::now() + LAST_WORDS;
        while Instant::now() < until {
            if let Some(ended) = self.try_reap()? {
                return Ok(ended);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        self.kill()
    }

    /// Kills it (SIGKILL) and says what it used.
    pub fn kill(mut self) -> Result<Ended> {
        sys::signal(self.pid(), libc::SIGKILL);
        match self.reap(true)? {
            Some(ended) => Ok(ended),
            None => bail!("{} cannot be waited for", self.name),
        }
    }

    fn try_reap(&mut self) -> Result<Option<Ended>> {
        self.reap(false)
    }

    fn reap(&mut self, block: bool) -> Result<Option<Ended>> {
        let Some((status, used)) = sys::wait(self.pid(), block)
            .with_context(|| format!("cannot wait for {}", self.name))?
        else {
            return Ok(None);
        };
        let seconds = self.began.elapsed().as_secs_f64();
        self.is_reaped = true;
        // A daemon's own children may hold the pipes: take what is there.
        let mut output = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(Duration::from_millis(200)) {
            output.push(line);
        }
        let errors = self.errors.take().and_then(|thread| {
            let until = Instant::now() + Duration::from_millis(200);
            while !thread.is_finished() && Instant::now() < until {
                std::thread::sleep(LOOK_EVERY);
            }
            let is_finished = thread.is_finished();
            is_finished.then(|| thread.join().ok())?
        });
        Ok(Some(Ended {
            status,
            seconds,
            processor_seconds: used.processor_seconds,
            output,
            errors: errors.unwrap_or_default(),
        }))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.is_reaped {
            sys::signal(self.pid(), libc::SIGKILL);
            let _ = sys::wait(self.pid(), true);
        }
    }
}

/// Runs a command to its end.
///
/// # Errors
/// It cannot start, fails, or takes longer than `deadline`.
pub(crate) fn run(command: Command, deadline: Duration) -> Result<Ended> {
    let process = Process::start(command)?;
    let name = process.name.clone();
    process.finish(deadline)?.success(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    /// Output, errors, status and the time used by a child's own children are all seen.
    #[test]
    fn a_child_is_accounted_for() {
        let script = "echo one; echo two; echo bad >&2; sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; exit 3";
        let ended = Process::start(shell(script))
            .and_then(|process| process.finish(Duration::from_secs(30)))
            .unwrap();
        assert_eq!(ended.status.code(), Some(3));
        assert_eq!(ended.output, ["one", "two"]);
        assert!(ended.processor_seconds > 0.0);
        let error = ended.success("the shell").unwrap_err().to_string();
        assert!(error.contains("bad"), "{error}");
    }

    /// A child that does not end in time is an error, and gone.
    #[test]
    fn a_deadline_ends_the_child() {
        let process = Process::start(shell("exec cat /dev/zero > /dev/null")).unwrap();
        let pid = process.pid();
        assert!(process.finish(Duration::from_millis(20)).is_err());
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}
