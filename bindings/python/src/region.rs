//! Regions: memory and files of other processes, read and written one-sidedly.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ropewalk::{Exposed, RegionGet, RegionOptions, Rule};

use crate::agent::Lent;
use crate::error::{late, misuse, raise};
use crate::memory::Memory;
use crate::message::addresses;
use crate::open::Open;
use crate::own::Own;
use crate::transfer::{duration, lock};
use crate::waiting::{aside, connected, waited, waited_until};

/// Longest time of a call, where none is given.
const DEADLINE: Duration = Duration::from_secs(60);
/// Memory of Python is filled in parts of so many bytes, so that a signal finds none that is lent; while one is copied the next is under way.
const PART: usize = 16 << 20;
const PARTS: usize = 2;
/// From so many operations under way on the next one may have to wait: a little less than an origin may have.
const MANY: usize = 4096 - 256;

fn options(token: Option<[u8; 32]>, plain: bool, deadline: Option<Duration>) -> RegionOptions {
    RegionOptions {
        token,
        plain,
        deadline,
        ..RegionOptions::default()
    }
}

/// A range that a node holds: start, end, what has it, first byte in the file, whether it is owned.
type Held<'py> = (u64, u64, Bound<'py, PyAny>, u64, bool);

#[pyclass(frozen)]
pub(crate) struct RegionServer {
    /// The locks are held for moments only, as that of an agent.
    server: Own<Mutex<Option<Arc<ropewalk::RegionServer>>>>,
    /// Memory by name of the region.
    lent: Mutex<Vec<(String, Lent)>>,
}

impl Drop for RegionServer {
    fn drop(&mut self) {
        // Before the memory is released.
        drop(self.take());
    }
}

impl RegionServer {
    fn held(&self) -> Option<Arc<ropewalk::RegionServer>> {
        lock(self.server.get()?).clone()
    }

    fn take(&self) -> Option<Arc<ropewalk::RegionServer>> {
        lock(self.server.get()?).take()
    }

    /// Releases memory of regions; what is released may run code of Python, so no lock is held then.
    fn release(&self, is_over: impl Fn(&str) -> bool) {
        let mut lent = lock(&self.lent);
        let (over, rest) = std::mem::take(&mut *lent)
            .into_iter()
            .partition(|(of, _)| is_over(of));
        *lent = rest;
        drop(lent);
        let over: Vec<(String, Lent)> = over;
        drop(over);
    }
}

#[pymethods]
impl RegionServer {
    #[new]
    fn new(listen: Vec<String>, token: Option<[u8; 32]>, plain: bool) -> PyResult<Self> {
        let options = options(token, plain, None);
        let server = ropewalk::RegionServer::bind(&addresses(&listen)?, &options);
        Ok(Self {
            server: Own::new(Mutex::new(Some(Arc::new(server.map_err(raise)?)))),
            lent: Mutex::default(),
        })
    }

    fn addresses(&self) -> Vec<String> {
        let server = self.held();
        let all = server.iter().flat_map(|server| server.addresses());
        all.map(|address| address.to_string()).collect()
    }

    fn serve(
        &self,
        py: Python<'_>,
        name: &str,
        size: u64,
        rule: &str,
        held: Vec<Held<'_>>,
    ) -> PyResult<()> {
        let rule = match rule {
            "read-only" => Rule::ReadOnly,
            "all" => Rule::All,
            "owner" => Rule::Owner,
            _ => {
                return Err(misuse(format!(
                    "\"{rule}\" is no rule; write read-only, all or owner"
                )));
            }
        };
        let (mut exposed, mut lent) = (Vec::new(), Vec::new());
        for (start, end, what, file_offset, is_owned) in held {
            let one = match what.extract::<PathBuf>() {
                Ok(path) => Exposed::file(start..end, path, file_offset),
                Err(_) => {
                    let is_written = rule == Rule::All || (rule == Rule::Owner && is_owned);
                    let memory = Lent::new(&what, is_written)?;
                    let buffer = memory.buffer()?.clone();
                    if start.checked_add(buffer.len()) != Some(end) {
                        return Err(misuse(format!(
                            "the memory for {start} to {end} has {} bytes",
                            buffer.len()
                        )));
                    }
                    let exposed = Exposed::memory(start, buffer);
                    lent.push((name.to_owned(), memory));
                    exposed
                }
            };
            exposed.push(if is_owned { one.owned() } else { one });
        }
        self.server.used()?;
        let server = self.held();
        let server = server.ok_or_else(|| misuse("this server was closed"))?;
        py.detach(|| server.serve(name, size, rule, exposed))
            .map_err(raise)?;
        lock(&self.lent).extend(lent);
        // Closed meanwhile, it has no memory to keep.
        if self.held().is_none() {
            py.detach(|| drop(server));
            self.release(|_| true);
        }
        Ok(())
    }

    fn withdraw(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let server = self.held();
        let withdrawn = py.detach(|| server.map_or(Ok(false), |server| server.withdraw(name)));
        self.release(|of| of == name);
        withdrawn.map_err(raise)
    }

    fn close(&self, py: Python<'_>) {
        let server = self.take();
        py.detach(|| drop(server));
        self.release(|_| true);
    }
}

#[pyclass(frozen)]
pub(crate) struct Region {
    region: Open<ropewalk::Region>,
    /// Longest time of a call.
    deadline: Duration,
    /// Has one more owner for each get that was begun and not taken.
    gets: Arc<()>,
    /// Puts that were begun and left to a flush, and those of them that one has waited for.
    puts: AtomicUsize,
    flushed: AtomicUsize,
    /// The error of a put that was given to a flush which a signal had ended.
    failed: Arc<Mutex<Option<ropewalk::Error>>>,
}

impl Region {
    fn until(&self) -> Option<Instant> {
        Instant::now().checked_add(self.deadline)
    }

    /// Begins an operation. Where so many are under way that this waits, signals are looked at.
    fn begin<T: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&ropewalk::Region) -> Result<T, ropewalk::Error> + Send + 'static,
    ) -> PyResult<T> {
        let gets = Arc::strong_count(&self.gets) - 1;
        let flushed = self.flushed.load(Ordering::Relaxed);
        let puts = self.puts.load(Ordering::Relaxed).saturating_sub(flushed);
        if puts > 0 && gets + puts >= MANY {
            self.complete(py)?;
        }
        if gets < MANY {
            let region = self.region.get()?;
            // The last one of it closes connections, which may take a while.
            return py.detach(move || call(&region)).map_err(raise);
        }
        let region = self.region.get()?;
        aside(py, move || call(&region), drop)
    }

    /// Waits until the puts that were begun are complete, and raises the error of one. When a signal ends this, the next call has that.
    fn complete(&self, py: Python<'_>) -> PyResult<()> {
        let puts = self.puts.load(Ordering::Relaxed);
        let region = self.region.get()?;
        let (failed, until) = (self.failed.clone(), self.until());
        let left = move |ended: Result<(), ropewalk::Error>| {
            // That the time was over says nothing of a put.
            let is_late = until.is_some_and(|until| Instant::now() >= until);
            if let Err(error) = ended
                && !is_late
            {
                lock(&failed).get_or_insert(error);
            }
        };
        aside(py, move || region.flush(), left)?;
        self.flushed.fetch_max(puts, Ordering::Relaxed);
        let failed = lock(&self.failed).take();
        failed.map_or(Ok(()), |error| Err(raise(error)))
    }

    fn bytes(
        &self,
        py: Python<'_>,
        mut get: RegionGet,
        until: Option<Instant>,
    ) -> PyResult<Vec<u8>> {
        let bytes = waited_until(py, until, |most| get.wait_for(most).transpose())?;
        bytes.ok_or_else(|| late(self.deadline))
    }
}

#[pymethods]
impl Region {
    #[staticmethod]
    fn connect(
        py: Python<'_>,
        name: &str,
        nodes: Vec<Vec<String>>,
        token: Option<[u8; 32]>,
        plain: bool,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let deadline = duration(timeout)?.unwrap_or(DEADLINE);
        let options = options(token, plain, Some(deadline));
        let nodes = nodes.iter().map(|node| addresses(node));
        let nodes: Vec<Vec<SocketAddr>> = nodes.collect::<PyResult<_>>()?;
        let name = name.to_owned();
        let region = connected(py, move || {
            ropewalk::Region::connect(&name, &nodes, &options)
        })?;
        Ok(Self {
            region: Open::new("region", region),
            deadline,
            gets: Arc::default(),
            puts: AtomicUsize::new(0),
            flushed: AtomicUsize::new(0),
            failed: Arc::default(),
        })
    }

    fn size(&self) -> PyResult<u64> {
        Ok(self.region.get()?.size())
    }

    fn lost(&self) -> PyResult<Vec<(Vec<String>, String)>> {
        let text = |all: Vec<SocketAddr>| all.iter().map(ToString::to_string).collect();
        let lost = self.region.get()?.lost().into_iter();
        Ok(lost.map(|(node, cause)| (text(node), cause)).collect())
    }

    fn get<'py>(&self, py: Python<'py>, start: u64, end: u64) -> PyResult<Bound<'py, PyBytes>> {
        let until = self.until();
        let get = self.begin(py, move |region| {
            region.get_start(std::slice::from_ref(&(start..end)))
        })?;
        let bytes = self.bytes(py, get, until)?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn get_into(&self, py: Python<'_>, offset: u64, into: &Bound<'_, PyAny>) -> PyResult<()> {
        let into = Memory::writable(into)?;
        let len = into.len();
        if len == 0 {
            return Ok(());
        }
        if offset.checked_add(len as u64).is_none() {
            let text = format!("{len} bytes from {offset} on end beyond 2^64");
            return Err(misuse(text));
        }
        // SAFETY: `into` keeps the memory where it is until this returns, and it is contiguous and writable. That nothing else touches it meanwhile is the
        // caller's duty, as with any call that fills memory without the interpreter's lock.
        let memory = unsafe { std::slice::from_raw_parts_mut(into.start(), len) };
        let (until, mut start) = (self.until(), offset);
        let (mut parts, mut under_way) = (memory.chunks_mut(PART), VecDeque::new());
        loop {
            while under_way.len() < PARTS
                && let Some(part) = parts.next()
            {
                let range = start..start + part.len() as u64;
                start = range.end;
                let get = self.begin(py, move |region| {
                    region.get_start(std::slice::from_ref(&range))
                })?;
                under_way.push_back((get, part));
            }
            let Some((get, part)) = under_way.pop_front() else {
                return Ok(());
            };
            let bytes = self.bytes(py, get, until)?;
            py.detach(|| part.copy_from_slice(&bytes));
        }
    }

    fn get_start(&self, py: Python<'_>, ranges: Vec<(u64, u64)>) -> PyResult<Get> {
        let ranges: Vec<_> = ranges.into_iter().map(|(start, end)| start..end).collect();
        let get = self.begin(py, move |region| region.get_start(&ranges))?;
        Ok(Get {
            get: Own::new(Mutex::new(get)),
            counted: Mutex::new(Some(self.gets.clone())),
        })
    }

    fn put(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        // Threads of Python may write the memory while it is sent.
        let data = Memory::readable(data)?.copy(py, 0, usize::MAX);
        let until = self.until();
        let mut put = self.begin(py, move |region| region.put_start(offset, data))?;
        let ended = waited_until(py, until, |most| match put.wait_for(most) {
            Ok(false) => None,
            ended => Some(ended),
        })?;
        ended.map(|_| ()).ok_or_else(|| late(self.deadline))
    }

    fn put_start(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let data = Memory::readable(data)?.copy(py, 0, usize::MAX);
        self.begin(py, move |region| region.put_start(offset, data).map(drop))?;
        self.puts.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn fence(&self) -> PyResult<()> {
        self.region.get()?.fence();
        Ok(())
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.complete(py)
    }

    fn notify(&self, py: Python<'_>, start: u64, end: u64, value: u64) -> PyResult<()> {
        let region = self.region.get()?;
        aside(py, move || region.notify(start..end, value), drop)
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.region.close());
    }

    fn wait(
        &self,
        py: Python<'_>,
        start: u64,
        end: u64,
        at_least: u64,
        seconds: Option<f64>,
    ) -> PyResult<Option<u64>> {
        self.region.wait(py, seconds, |region, most| {
            region.wait(start..end, at_least, most)
        })
    }
}

#[pyclass(frozen)]
pub(crate) struct Get {
    get: Own<Mutex<RegionGet>>,
    /// Until it was taken.
    counted: Mutex<Option<Arc<()>>>,
}

#[pymethods]
impl Get {
    fn wait<'py>(
        &self,
        py: Python<'py>,
        seconds: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let get = self.get.used()?;
        let bytes = waited(py, seconds, |most| lock(get).wait_for(most).transpose())?;
        if bytes.is_some() {
            drop(lock(&self.counted).take());
        }
        Ok(bytes.map(|bytes| PyBytes::new(py, &bytes)))
    }

    fn test(&self, py: Python<'_>) -> PyResult<bool> {
        let get = self.get.used()?;
        Ok(py.detach(|| lock(get).test()))
    }
}
