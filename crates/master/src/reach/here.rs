//! An agent within this process, at the other end of two pipes, as a child's would be.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use ropewalk_pipe::Pipe;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::oneshot;

use super::greet::{Greeting, greet};
use super::hosts_errors::show;
use super::ssh::Failure;
use super::start::{LAST_WORDS as REASON_TIMEOUT, START_TIMEOUT, failed, open_pipe};
use super::{LAST_WORDS, Reached, Started};
use crate::here::{AgentHere, NotStarted};
use crate::request::Options;

/// Files are put in order within this time once everything ends. The process would cut that off.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// An agent that runs.
pub(crate) struct Running {
    ended: oneshot::Receiver<Result<(), NotStarted>>,
    pipe: Pipe,
}

impl Running {
    /// Closes the agent's input, which ends it.
    pub async fn leave(self) {
        // A child says so on standard error, which is passed on.
        if let Some(text) = self.leave_within(LEAVE_TIMEOUT).await {
            show(format!("ropewalk: {text}").as_bytes());
        }
    }

    /// The same; what is to be said of its end.
    async fn leave_within(self, most: Duration) -> Option<String> {
        self.pipe.close(LAST_WORDS).await;
        match tokio::time::timeout(most, self.ended).await {
            Ok(Ok(Err(NotStarted { text, .. }))) => Some(text),
            Ok(_) => None,
            Err(_) => Some(format!(
                "files of this copy were still put in order {} s after its end, and may be left under temporary names: \
                 `ropewalk status DEST` lists them, `ropewalk clean DEST` removes them",
                most.as_secs()
            )),
        }
    }
}

/// An agent that has panicked. That passes where the host had no thread left for it: runtimes panic then. A bug would fail again, as often as
/// a transfer is tried.
fn panicked(panic: &(dyn Any + Send)) -> NotStarted {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    let text = text.unwrap_or("standard error says where");
    NotStarted {
        text: format!(
            "an agent in this process failed: {text}; where it is no want of threads (ulimit -u) or files (ulimit -n) this is a bug"
        ),
        is_final: false,
    }
}

/// Starts an agent and opens its control stream.
///
/// * `lines`: say what it may touch.
pub(super) async fn start(options: &Options, lines: &[String]) -> Result<Reached, Failure> {
    let Some(AgentHere(run)) = options.agent_here.clone() else {
        return Err(failed("this program runs no agents".into()));
    };
    let pipes = || -> std::io::Result<_> {
        let (agent_input, input) = pipe_with(PipeFlags::CLOEXEC)?;
        let (output, agent_output) = pipe_with(PipeFlags::CLOEXEC)?;
        let input = ChildStdin::from_std(input.into())?;
        let output = ChildStdout::from_std(output.into())?;
        Ok(((agent_input, agent_output), (input, output)))
    };
    let no_pipe = |error| failed(format!("no pipe to an agent in this process: {error}"));
    let ((agent_input, agent_output), (input, output)) = pipes().map_err(no_pipe)?;
    let (end, mut ended) = oneshot::channel();
    let serve = move || {
        let ended = catch_unwind(AssertUnwindSafe(|| run(agent_input, agent_output)));
        // Nothing waits for it where the agent was given up.
        let _ = end.send(ended.unwrap_or_else(|panic| Err(panicked(&*panic))));
    };
    let thread = std::thread::Builder::new().name("agent".into());
    thread.spawn(serve).map_err(|error| {
        failed(format!(
            "no thread can be started: {error}; raise the limit of processes (ulimit -u)"
        ))
    })?;
    let own = &options.local_program;
    match greet(input, output, (lines, None), own, START_TIMEOUT).await {
        Greeting::Ready(ready) => {
            let started = |pipe| Started::Here(Running { ended, pipe });
            open_pipe(*ready, started, true).await
        }
        Greeting::Refused(reason) => Err(failed(reason)),
        Greeting::Ended => match tokio::time::timeout(REASON_TIMEOUT, &mut ended).await {
            Ok(Ok(Err(NotStarted { text, is_final }))) => Err(Failure {
                text,
                is_question: false,
                is_final,
            }),
            _ => Err(failed("its agent ended without a message".into())),
        },
        Greeting::Silent => Err(failed(format!(
            "no agent within {} s",
            START_TIMEOUT.as_secs()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::panic::resume_unwind;
    use std::sync::Arc;
    use std::time::Duration;

    use ropewalk_pipe::{Pipe, Side};
    use rustix::pipe::{PipeFlags, pipe_with};
    use tokio::sync::oneshot;

    use super::{AgentHere, NotStarted, Options, Running, start};

    /// A panic may be a shortage of the host, which passes: trying again is no error of the request.
    #[tokio::test]
    async fn agents_that_panic_may_be_started_later() {
        let text = "OS can't spawn worker thread: Resource temporarily unavailable";
        // As a panic, without its message in the output of the tests.
        let panics = move |_, _| resume_unwind(Box::new(text.to_owned()));
        let options = Options {
            agent_here: Some(AgentHere(Arc::new(panics))),
            ..Options::default()
        };
        let failure = start(&options, &[]).await.err().unwrap();
        assert!(
            !failure.is_final && failure.text.contains(text),
            "{}",
            failure.text
        );
    }

    /// An agent that has not put its files in order in time is said to have left some; one that has is not.
    #[tokio::test]
    async fn agents_that_are_cut_off_are_named() {
        let agent = || {
            let pipe = || pipe_with(PipeFlags::CLOEXEC).unwrap();
            let ((input, _), (_, output)) = (pipe(), pipe());
            let (pipe, _) = Pipe::over(input, output, Side::Started).unwrap();
            let (end, ended) = oneshot::channel::<Result<(), NotStarted>>();
            (Running { ended, pipe }, end)
        };
        let (running, _end) = agent();
        let text = running.leave_within(Duration::ZERO).await.unwrap();
        assert!(
            text.contains("`ropewalk clean DEST` removes them"),
            "{text}"
        );
        let (running, end) = agent();
        end.send(Ok(())).unwrap();
        let text = running.leave_within(Duration::from_secs(60)).await;
        assert_eq!(text, None);
    }
}
