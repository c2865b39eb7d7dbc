//! Copies and transfers of rows, and those that run.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use ropewalk::{ByteRate, Report, Row, RowTransfer, Transfer};

use crate::error::{misuse, raise};
use crate::own::Own;

/// A rate as people write it.
pub(crate) fn rate(text: &str) -> PyResult<ByteRate> {
    text.parse().map_err(|error| misuse(format!("{error}")))
}

pub(crate) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn json(report: &Report) -> String {
    serde_json::to_string(report).unwrap_or_default()
}

/// A time without end: of so many seconds the clock does not see the end.
const ENDLESS: f64 = 1e15;

/// A time that a caller gives; infinite ones are as long as there are.
pub(crate) fn duration(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let bad = |_| misuse("a time is a number of seconds, and not negative; None is without end");
    seconds
        .map(|seconds| match seconds >= ENDLESS {
            true => Ok(Duration::MAX),
            false => Duration::try_from_secs_f64(seconds).map_err(bad),
        })
        .transpose()
}

fn begun() -> PyErr {
    misuse("this copy was started before, or an option of it was refused")
}

/// One end of a copy.
#[pyclass(frozen)]
pub(crate) struct Place(ropewalk::Place);

#[pymethods]
impl Place {
    #[staticmethod]
    fn here(path: PathBuf) -> Self {
        Self(ropewalk::Place::here(path))
    }

    #[staticmethod]
    fn over_ssh(target: String, path: PathBuf) -> Self {
        Self(ropewalk::Place::over_ssh(target, path))
    }

    #[staticmethod]
    fn at_agent(host: String, port: u16, path: PathBuf) -> Self {
        Self(ropewalk::Place::at_agent(host, port, path))
    }

    #[staticmethod]
    fn buffer(host: String, port: u16, name: String) -> Self {
        Self(ropewalk::Place::buffer(host, port, name))
    }
}

/// A copy that is described and not begun.
#[pyclass(frozen)]
pub(crate) struct Copy(Mutex<Option<Transfer>>);

impl Copy {
    fn change(
        &self,
        change: impl FnOnce(Transfer) -> Result<Transfer, ropewalk::Error>,
    ) -> PyResult<()> {
        let mut state = lock(&self.0);
        let transfer = state.take().ok_or_else(begun)?;
        *state = Some(change(transfer).map_err(raise)?);
        Ok(())
    }
}

#[pymethods]
impl Copy {
    #[new]
    fn new() -> Self {
        Self(Mutex::new(Some(Transfer::new())))
    }

    fn source(&self, place: &Place) -> PyResult<()> {
        self.change(|transfer| Ok(transfer.from(place.0.clone())))
    }

    fn destination(&self, place: &Place) -> PyResult<()> {
        self.change(|transfer| Ok(transfer.to(place.0.clone())))
    }

    fn token(&self, token: [u8; 32]) -> PyResult<()> {
        self.change(|transfer| Ok(transfer.token(token)))
    }

    fn option(&self, name: &str, value: &str) -> PyResult<()> {
        self.change(|transfer| transfer.option(name, value))
    }

    fn local_program(&self, program: PathBuf) -> PyResult<()> {
        self.change(|transfer| Ok(transfer.local_program(program)))
    }

    fn start(&self, py: Python<'_>) -> PyResult<Running> {
        let transfer = lock(&self.0).take().ok_or_else(begun)?;
        let running = py.detach(|| transfer.start()).map_err(raise)?;
        Ok(Running {
            running: Own::new(Mutex::new(Some(running))),
            sent: AtomicU64::new(0),
        })
    }
}

/// A copy that runs, until it is closed.
#[pyclass(frozen)]
pub(crate) struct Running {
    running: Own<Mutex<Option<ropewalk::Running>>>,
    /// What it had sent when it was closed.
    sent: AtomicU64,
}

impl Running {
    /// None where it was closed.
    fn with<T>(&self, call: impl FnOnce(&mut ropewalk::Running) -> T) -> Option<T> {
        lock(self.running.get()?).as_mut().map(call)
    }
}

#[pymethods]
impl Running {
    /// The report once it has ended.
    fn wait_for(&self, py: Python<'_>, seconds: f64) -> PyResult<Option<String>> {
        self.running.used()?;
        let most = duration(Some(seconds))?.unwrap_or_default();
        let ended = py.detach(|| self.with(|running| running.wait_for(most)));
        let ended = ended.ok_or_else(|| misuse("this copy was closed"))?;
        Ok(ended.map_err(raise)?.as_ref().map(json))
    }

    fn data_sent(&self, py: Python<'_>) -> u64 {
        let sent = py.detach(|| self.with(|running| running.data_sent()));
        sent.unwrap_or_else(|| self.sent.load(Ordering::Relaxed))
    }

    /// What has happened, each as JSON.
    fn events(&self, py: Python<'_>) -> Vec<String> {
        let events = py.detach(|| self.with(ropewalk::Running::events));
        events
            .iter()
            .flatten()
            .filter_map(|event| serde_json::to_string(event).ok())
            .collect()
    }

    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.with(|running| running.cancel()));
    }

    /// -1 where it was closed.
    fn fileno(&self, py: Python<'_>) -> i32 {
        let descriptor = py.detach(|| self.with(|running| running.as_fd().as_raw_fd()));
        descriptor.unwrap_or(-1)
    }

    /// Ends it where it runs, and waits for that.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            let running = self.running.get().and_then(|held| lock(held).take());
            if let Some(mut running) = running {
                running.cancel();
                // How it ended concerns nothing that is still there.
                drop(running.wait_for(Duration::MAX));
                self.sent.store(running.data_sent(), Ordering::Relaxed);
            }
        });
    }
}

/// A transfer that is described row by row.
#[pyclass(frozen)]
pub(crate) struct Rows(Own<Mutex<RowTransfer>>);

impl Rows {
    fn with<T>(&self, call: impl FnOnce(&mut RowTransfer) -> T) -> PyResult<T> {
        let mut rows = lock(self.0.used()?);
        Ok(call(&mut rows))
    }
}

#[pymethods]
impl Rows {
    #[new]
    fn new() -> Self {
        Self(Own::new(Mutex::new(RowTransfer::new())))
    }

    fn token(&self, token: [u8; 32]) -> PyResult<()> {
        self.with(|rows| {
            rows.token(token);
        })
    }

    fn master(&self, at: &str) -> PyResult<()> {
        self.with(|rows| rows.master(at).map(|_| ()))?
            .map_err(raise)
    }

    fn over_ssh(&self) -> PyResult<()> {
        self.with(|rows| {
            rows.over_ssh();
        })
    }

    fn option(&self, name: &str, value: &str) -> PyResult<()> {
        self.with(|rows| rows.option(name, value).map(|_| ()))?
            .map_err(raise)
    }

    fn schedule(&self, row: &str) -> PyResult<()> {
        let row: Row = row.parse().map_err(raise)?;
        self.with(|rows| rows.schedule(row))
    }

    /// The report once it has ended.
    fn wait_for(&self, py: Python<'_>, seconds: f64) -> PyResult<Option<String>> {
        let most = duration(Some(seconds))?.unwrap_or_default();
        let ended = py.detach(|| self.with(|rows| rows.wait_for(most)))?;
        Ok(ended.map_err(raise)?.as_ref().map(json))
    }

    fn data_sent(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.with(|rows| rows.data_sent()))
    }

    fn events(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let events = py.detach(|| self.with(RowTransfer::events))?;
        Ok(events
            .iter()
            .filter_map(|event| serde_json::to_string(event).ok())
            .collect())
    }

    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.with(|rows| rows.cancel()))
    }

    fn fileno(&self, py: Python<'_>) -> PyResult<Option<i32>> {
        py.detach(|| self.with(|rows| rows.descriptor().map(|fd| fd.as_raw_fd())))
    }
}
