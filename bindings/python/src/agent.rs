//! An agent in the interpreter's process, and memory that it is lent.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use ropewalk::{AgentOptions, Buffer};

use crate::error::{misuse, raise};
use crate::memory::Memory;
use crate::own::Own;
use crate::transfer::lock;

/// An agent of this process.
///
/// The lock is held for moments only, and never while code of Python may run or another thread is waited for: that would stop the interpreter.
#[pyclass(frozen)]
pub(crate) struct Agent(Own<Mutex<Option<Arc<ropewalk::Agent>>>>);

impl Agent {
    fn get(&self) -> PyResult<Arc<ropewalk::Agent>> {
        let agent = lock(self.0.used()?).clone();
        agent.ok_or_else(|| misuse("this agent was stopped"))
    }
}

#[pymethods]
impl Agent {
    #[new]
    fn new(
        py: Python<'_>,
        listen: Vec<String>,
        token: [u8; 32],
        roots: Vec<(PathBuf, bool)>,
    ) -> PyResult<Self> {
        let address = |text: &String| {
            text.parse().map_err(|_| {
                misuse(format!(
                    "\"{text}\" is no address; write one as 10.0.0.1:7420, with port 0 for any"
                ))
            })
        };
        let listen = listen.iter().map(address).collect::<PyResult<_>>()?;
        let options = AgentOptions {
            listen,
            token,
            roots,
        };
        let agent = py
            .detach(|| ropewalk::Agent::start(options))
            .map_err(raise)?;
        Ok(Self(Own::new(Mutex::new(Some(Arc::new(agent))))))
    }

    fn addresses(&self) -> Vec<String> {
        let agent = self.get().ok();
        let addresses = agent.iter().flat_map(|agent| agent.addresses());
        addresses.map(ToString::to_string).collect()
    }

    fn lend(&self, name: &str, memory: &Bound<'_, PyAny>, writable: bool) -> PyResult<Lent> {
        let lent = Lent::new(memory, writable)?;
        let agent = self.get()?;
        agent.lend(name, lent.buffer()?.clone()).map_err(raise)?;
        Ok(lent)
    }

    fn withdraw(&self, name: &str) -> bool {
        self.get().is_ok_and(|agent| agent.withdraw(name).is_some())
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let agent = self.0.get().and_then(|agent| lock(agent).take());
        // A call of another thread that has it still ends it, too.
        let agent = agent.and_then(Arc::into_inner);
        let stop = || agent.map_or(Ok(()), ropewalk::Agent::stop);
        py.detach(stop).map_err(raise)
    }
}

/// Memory of an object of Python, in use by an agent.
#[pyclass(frozen)]
pub(crate) struct Lent {
    buffer: Own<Buffer>,
    // Keeps the object, and where its memory is, until no thread of the agent touches it.
    view: Mutex<Option<Memory>>,
}

impl Lent {
    pub(crate) fn buffer(&self) -> PyResult<&Buffer> {
        self.buffer.used()
    }

    /// In a child of the process no thread touches the memory.
    fn take_back(&self) {
        if let Some(buffer) = self.buffer.get() {
            drop(buffer.take_back());
        }
    }

    pub(crate) fn new(memory: &Bound<'_, PyAny>, writable: bool) -> PyResult<Self> {
        let view = match writable {
            true => Memory::writable(memory)?,
            false => Memory::readable(memory)?,
        };
        let (start, len) = (view.start(), view.len());
        let buffer = match writable {
            // SAFETY: the view keeps the object and its memory where they are, as the protocols demand. It is released after
            // `take_back` has returned, in `end` and in `drop`. That nothing else writes meanwhile is the caller's duty, as the documents
            // of `lend` say; the interpreter's own rules give no more.
            true => unsafe { Buffer::lent_writable(start, len) },
            // SAFETY: as above.
            false => unsafe { Buffer::lent(start, len) },
        };
        Ok(Self {
            buffer: Own::new(buffer),
            view: Mutex::new(Some(view)),
        })
    }
}

#[pymethods]
impl Lent {
    /// Ranges that transfers have delivered.
    fn written(&self) -> PyResult<Vec<(u64, u64)>> {
        let written = self.buffer()?.written();
        Ok(written
            .iter()
            .map(|range| (range.start, range.end))
            .collect())
    }

    fn is_busy(&self) -> PyResult<bool> {
        Ok(self.buffer()?.is_busy())
    }

    /// No thread touches the memory after this.
    fn end(&self, py: Python<'_>) {
        py.detach(|| self.take_back());
        // Not with the lock held: what is released here may run code of Python, also such as comes back here.
        let view = lock(&self.view).take();
        drop(view);
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // Before the view is released.
        self.take_back();
    }
}
