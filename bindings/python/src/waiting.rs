//! Calls that wait: without the interpreter's lock, and no longer than until one of Python's signals.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
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
    mut call: impl FnMut(Duration) -> Option<Result<T, ropewalk::Error>> + Send,
) -> PyResult<Option<T>> {
    let most = duration(seconds)?;
    let until = most.and_then(|most| Instant::now().checked_add(most));
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

/// Connects in a thread. Python's signals leave it behind: it ends with its own deadline, and what it has connected is closed.
pub(crate) fn connected<T: Send + 'static>(
    py: Python<'_>,
    connect: impl FnOnce() -> Result<T, ropewalk::Error> + Send + 'static,
) -> PyResult<T> {
    let (give, mut made) = sync_channel(1);
    let thread = std::thread::Builder::new().name("ropewalk-connect".into());
    thread.spawn(move || {
        // A signal ends the other side.
        let _ = give.send(connect());
    })?;
    loop {
        py.check_signals()?;
        let connected;
        (connected, made) = py.detach(move || (made.recv_timeout(LOOK_EVERY), made));
        match connected {
            Ok(connected) => return connected.map_err(raise),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("a thread that connects panicked"));
            }
        }
    }
}
