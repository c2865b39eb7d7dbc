//! A transfer that runs on threads of its own while its caller does something else.

use std::collections::VecDeque;
use std::fmt;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ropewalk_master::request::Request;
use ropewalk_master::{Cancel, Members};
use ropewalk_proto::report::{Event, Outcome, Report};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

use crate::Error;
use crate::agent::{no_thread, runtime};
use crate::error::Fault;
use crate::handed::Job;

/// Events that are kept for a caller that takes none; of more, the oldest go.
const EVENTS_MAX: usize = 1000;

/// A transfer under way. It has a descriptor that `poll` and `select` understand: readable when there are new events, or the end.
///
/// One that is dropped is cancelled, and awaited; but the job of a standing master goes on.
pub struct Running {
    shared: Arc<Shared>,
    cancel: Cancel,
    members: Members,
    thread: Option<JoinHandle<()>>,
    // Of a job of a standing master, which goes on when this is dropped.
    leave: Option<oneshot::Sender<()>>,
    // Has a byte while there is something that the caller has not taken.
    bell: UnixStream,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    bell: UnixStream,
}

#[derive(Default)]
struct State {
    events: VecDeque<Event>,
    sent: u64,
    is_planned: bool,
    is_rung: bool,
    has_ended: bool,
    // `None` after the end: it was taken, or the thread panicked.
    result: Option<Result<Report, Error>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the descriptor readable. One byte at a time is in it, so the write does not block.
    fn ring(&self, state: &mut State) {
        if !std::mem::replace(&mut state.is_rung, true) {
            drop((&self.bell).write_all(&[1]));
        }
        self.changed.notify_all();
    }

    fn handle_event(&self, event: Event) {
        let mut state = self.lock();
        let says_all = |event: &Event| {
            matches!(
                event,
                Event::Progress { .. }
                    | Event::Scanning { .. }
                    | Event::AwaitingEnd { .. }
                    | Event::Removing { .. }
            )
        };
        // The newest does.
        if says_all(&event) && state.events.back().is_some_and(says_all) {
            state.events.pop_back();
        }
        match &event {
            Event::Progress {
                delivered_bytes, ..
            } => state.sent = *delivered_bytes,
            Event::Planned { .. } => state.is_planned = true,
            Event::Ended { report } => state.sent = report.delivered_bytes,
            _ => {}
        }
        if state.events.len() == EVENTS_MAX {
            state.events.pop_front();
        }
        state.events.push_back(event);
        self.ring(&mut state);
    }
}

/// Says that the transfer has ended, however its thread ends.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.has_ended = true;
        self.0.ring(&mut state);
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        f.debug_struct("Running")
            .field("data_sent", &state.sent)
            .field("has_ended", &state.has_ended)
            .finish_non_exhaustive()
    }
}

impl AsFd for Running {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Running {
    pub(crate) fn start(
        request: Request,
        cancel: Cancel,
        mut on_event: impl FnMut(Event) + Send + 'static,
    ) -> Result<Self, Error> {
        let members = Members::new();
        let (switch, handle) = (cancel.clone(), members.clone());
        Self::spawn(cancel, members, None, move |runtime, shared| {
            runtime.block_on(carry_out(request, switch, handle, |event| {
                on_event(event.clone());
                shared.handle_event(event);
            }))
        })
    }

    /// Hands a job over, and follows it.
    pub(crate) fn follow(job: Job, cancel: Cancel) -> Result<Self, Error> {
        let (leave, left) = oneshot::channel();
        let switch = cancel.clone();
        let run = move |runtime: &Runtime, shared: &Shared| {
            let followed = job.follow(switch, |event| shared.handle_event(event));
            runtime.block_on(async {
                tokio::select! {
                    ended = followed => ended,
                    // The one that left takes no result.
                    _ = left => Err(Error::Input(Fault::new("the job is not followed to its end"))),
                }
            })
        };
        Self::spawn(cancel, Members::new(), Some(leave), run)
    }

    fn spawn(
        cancel: Cancel,
        members: Members,
        leave: Option<oneshot::Sender<()>>,
        run: impl FnOnce(&Runtime, &Shared) -> Result<Report, Error> + Send + 'static,
    ) -> Result<Self, Error> {
        let runtime = runtime()?;
        let (bell, ringer) = UnixStream::pair().map_err(no_descriptor)?;
        bell.set_nonblocking(true).map_err(no_descriptor)?;
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            bell: ringer,
        });
        let ending = Ending(shared.clone());
        let run = move || {
            let ending = ending;
            let result = run(&runtime, &ending.0);
            // Calls that do not return, as of a name server or a dead file system, hold up nothing.
            runtime.shutdown_background();
            let report = match &result {
                Ok(report) => Some(Box::new(report.clone())),
                Err(error) => error.fault().report.clone(),
            };
            if let Some(report) = report {
                ending.0.handle_event(Event::Ended { report });
            }
            ending.0.lock().result = Some(result);
        };
        let thread = std::thread::Builder::new().name("ropewalk-transfer".into());
        Ok(Self {
            thread: Some(thread.spawn(run).map_err(no_thread)?),
            shared,
            cancel,
            members,
            leave,
            bell,
        })
    }

    /// Bytes that are in the destinations, checked and on stable storage.
    #[must_use]
    pub fn data_sent(&self) -> u64 {
        self.shared.lock().sent
    }

    /// What has happened since the last call, oldest first; of progress the newest only. The descriptor is not readable after it
    /// until something happens.
    pub fn events(&mut self) -> Vec<Event> {
        let mut state = self.shared.lock();
        if std::mem::take(&mut state.is_rung) {
            let mut byte = [0];
            drop((&self.bell).read(&mut byte));
        }
        // The end stays to be taken.
        if state.result.is_some() {
            self.shared.ring(&mut state);
        }
        state.events.drain(..).collect()
    }

    /// How it ended; `None` while it runs, and after the end was taken once.
    ///
    /// # Errors
    /// As [`Transfer::run`](crate::Transfer::run).
    pub fn poll(&mut self) -> Result<Option<Report>, Error> {
        self.wait_for(Duration::ZERO)
    }

    /// As [`Running::poll`], once it has ended or so much time has passed.
    ///
    /// # Errors
    /// As [`Running::poll`].
    pub fn wait_for(&mut self, most: Duration) -> Result<Option<Report>, Error> {
        if !self.wait_end(most) {
            return Ok(None);
        }
        let result = self.shared.lock().result.take();
        match (result, self.thread.take()) {
            (Some(result), thread) => {
                drop(thread.map(JoinHandle::join));
                result.map(Some)
            }
            // The end was taken before.
            (None, None) => Ok(None),
            (None, Some(thread)) => {
                drop(thread.join());
                Err(Error::Bug(Fault::new(
                    "the thread of the transfer panicked",
                )))
            }
        }
    }

    /// Waits for the end, at most so long; whether it has come.
    pub(crate) fn wait_end(&self, most: Duration) -> bool {
        let end = Instant::now().checked_add(most);
        let mut state = self.shared.lock();
        while !state.has_ended {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return false;
            }
            let changed = &self.shared.changed;
            state = match left {
                Some(left) => changed
                    .wait_timeout(state, left)
                    .map(|(state, _)| state)
                    .unwrap_or_else(|poisoned| poisoned.into_inner().0),
                None => changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        true
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// As [`Running::poll`].
    pub fn wait(mut self) -> Result<Report, Error> {
        match self.wait_for(Duration::MAX)? {
            Some(report) => Ok(report),
            None => Err(Error::Input(Fault::new(
                "the end of this transfer was taken before",
            ))),
        }
    }

    /// Ends the transfer within a second; the end is to be awaited.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Whether it has ended well, and that was not taken yet.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.shared.lock().result, Some(Ok(_)))
    }

    /// Whether bytes move, so that nodes can join.
    pub(crate) fn is_planned(&self) -> bool {
        self.shared.lock().is_planned
    }

    pub(crate) fn members(&self) -> &Members {
        &self.members
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            match self.leave.take() {
                Some(leave) => drop(leave.send(())),
                None => self.cancel.cancel(),
            }
            drop(thread.join());
        }
    }
}

/// Carries a request out, with its events as they happen.
pub(crate) async fn carry_out(
    request: Request,
    cancel: Cancel,
    members: Members,
    mut on_event: impl FnMut(Event),
) -> Result<Report, Error> {
    let (events, mut seen) = mpsc::unbounded_channel();
    let watch = async {
        while let Some(event) = seen.recv().await {
            on_event(event);
        }
    };
    let run = ropewalk_master::run(request, events, cancel, members);
    let (report, ()) = tokio::join!(run, watch);
    match report.outcome {
        Outcome::Done => Ok(report),
        _ => Err(Error::of_report(report)),
    }
}

fn no_descriptor(error: std::io::Error) -> Error {
    Error::Host(Fault::new(format!(
        "cannot make a socket: {error}; raise the limit of open files (ulimit -n)"
    )))
}
