//! Calls that wait: without the interpreter's lock, and no longer than until one of Python's signals.

use std::sync::mpsc::{RecvTimeoutError, SendError, sync_channel};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::error::raise;
use crate::transfer::duration;

/// Python's signals are looked at so often while a call waits.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Calls something that asks from time to time whether it goes on; Python's signals end it.
pub(crate) fn interruptible(
    py: Python<'_>,
    call: impl FnOnce(&mut dyn FnMut() -> bool) -> Result<(), ropewalk::Error> + Send,
) -> PyResult<()> {
    let mut raised = None;
    let ended = py.detach(|| {
        call(&mut || {
            let signals = Python::attach(|py| py.check_signals());
            raised = signals.err();
            raised.is_none()
        })
    });
    match raised {
        Some(raised) => Err(raised),
        None => ended.map_err(raise),
    }
}

/// Calls until there is something, or the time is over; Python's signals end it.
pub(crate) fn waited<T: Send>(
    py: Python<'_>,
    seconds: Option<f64>,
    call: impl FnMut(Duration) -> Option<Result<T, ropewalk::Error>> + Send,
) -> PyResult<Option<T>> {
    let most = duration(seconds)?;
    let until = most.and_then(|most| Instant::now().checked_add(most));
    waited_until(py, until, call)
}

/// As [`waited`], until a time; `None` for no bound.
pub(crate) fn waited_until<T: Send>(
    py: Python<'_>,
    until: Option<Instant>,
    mut call: impl FnMut(Duration) -> Option<Result<T, ropewalk::Error>> + Send,
) -> PyResult<Option<T>> {
    loop {
        py.check_signals()?;
        let left = until.map_or(LOOK_EVERY, |until| {
            until.saturating_duration_since(Instant::now())
        });
        match py.detach(|| call(left.min(LOOK_EVERY))) {
            Some(done) => return done.map(Some).map_err(raise),
            None if until.is_some_and(|until| Instant::now() >= until) => return Ok(None),
            None => {}
        }
    }
}

/// Connects as [`aside`]: what was connected for a call that a signal has ended is closed.
pub(crate) fn connected<T: Send + 'static>(
    py: Python<'_>,
    connect: impl FnOnce() -> Result<T, ropewalk::Error> + Send + 'static,
) -> PyResult<T> {
    aside(py, connect, drop)
}

/// Calls, in a thread, what does not wait in parts. Python's signals leave it behind: it ends by itself, and how it ended goes to `left`.
pub(crate) fn aside<T: Send + 'static>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, ropewalk::Error> + Send + 'static,
    left: impl FnOnce(Result<T, ropewalk::Error>) + Send + 'static,
) -> PyResult<T> {
    // Without space: what is given is taken, or comes back.
    let (give, mut ended) = sync_channel(0);
    let thread = std::thread::Builder::new().name("ropewalk-call".into());
    thread.spawn(move || {
        if let Err(SendError(unheard)) = give.send(call()) {
            left(unheard);
        }
    })?;
    loop {
        py.check_signals()?;
        let end;
        (end, ended) = py.detach(move || (ended.recv_timeout(LOOK_EVERY), ended));
        match end {
            Ok(end) => return end.map_err(raise),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("a thread of ropewalk panicked"));
            }
        }
    }
}
