//! Regions: memory and files of other processes, read and written one-sidedly.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ropewalk::{Exposed, RegionGet, RegionOptions, Rule};

use crate::agent::Lent;
use crate::error::{misuse, raise};
use crate::memory::Memory;
use crate::message::addresses;
use crate::transfer::lock;
use crate::waiting::{connected, waited};

fn options(token: Option<[u8; 32]>, plain: bool, timeout: Option<f64>) -> PyResult<RegionOptions> {
    Ok(RegionOptions {
        token,
        plain,
        deadline: crate::transfer::duration(timeout)?,
        ..RegionOptions::default()
    })
}

/// A range that a node holds: start, end, what has it, first byte in the file, whether it is owned.
type Held<'py> = (u64, u64, Bound<'py, PyAny>, u64, bool);

#[pyclass(frozen)]
pub(crate) struct RegionServer {
    /// The locks are held for moments only, as that of an agent.
    server: Mutex<Option<Arc<ropewalk::RegionServer>>>,
    /// Memory by name of the region.
    lent: Mutex<Vec<(String, Lent)>>,
}

impl Drop for RegionServer {
    fn drop(&mut self) {
        // Before the memory is released.
        drop(lock(&self.server).take());
    }
}

impl RegionServer {
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
        let options = options(token, plain, None)?;
        let server = ropewalk::RegionServer::bind(&addresses(&listen)?, &options);
        Ok(Self {
            server: Mutex::new(Some(Arc::new(server.map_err(raise)?))),
            lent: Mutex::default(),
        })
    }

    fn addresses(&self) -> Vec<String> {
        let server = lock(&self.server).clone();
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
                    if start.checked_add(memory.buffer().len()) != Some(end) {
                        return Err(misuse(format!(
                            "the memory for {start} to {end} has {} bytes",
                            memory.buffer().len()
                        )));
                    }
                    let exposed = Exposed::memory(start, memory.buffer().clone());
                    lent.push((name.to_owned(), memory));
                    exposed
                }
            };
            exposed.push(if is_owned { one.owned() } else { one });
        }
        let server = lock(&self.server).clone();
        let server = server.ok_or_else(|| misuse("this server was closed"))?;
        py.detach(|| server.serve(name, size, rule, exposed))
            .map_err(raise)?;
        lock(&self.lent).extend(lent);
        // Closed meanwhile, it has no memory to keep.
        if lock(&self.server).is_none() {
            py.detach(|| drop(server));
            self.release(|_| true);
        }
        Ok(())
    }

    fn withdraw(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let server = lock(&self.server).clone();
        let withdrawn = py.detach(|| server.map_or(Ok(false), |server| server.withdraw(name)));
        self.release(|of| of == name);
        withdrawn.map_err(raise)
    }

    fn close(&self, py: Python<'_>) {
        let server = lock(&self.server).take();
        py.detach(|| drop(server));
        self.release(|_| true);
    }
}

#[pyclass(frozen)]
pub(crate) struct Region(ropewalk::Region);

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
        let options = options(token, plain, timeout)?;
        let nodes = nodes.iter().map(|node| addresses(node));
        let nodes: Vec<Vec<SocketAddr>> = nodes.collect::<PyResult<_>>()?;
        let name = name.to_owned();
        connected(py, move || {
            ropewalk::Region::connect(&name, &nodes, &options)
        })
        .map(Self)
    }

    fn size(&self) -> u64 {
        self.0.size()
    }

    fn lost(&self) -> Vec<(Vec<String>, String)> {
        let text = |all: Vec<SocketAddr>| all.iter().map(ToString::to_string).collect();
        self.0
            .lost()
            .into_iter()
            .map(|(node, cause)| (text(node), cause))
            .collect()
    }

    fn get<'py>(&self, py: Python<'py>, start: u64, end: u64) -> PyResult<Bound<'py, PyBytes>> {
        let ranges = std::slice::from_ref(&(start..end)).to_vec();
        let mut get = py.detach(|| self.0.get_start(&ranges)).map_err(raise)?;
        let bytes = waited(py, None, |most| get.wait_for(most).transpose())?;
        Ok(PyBytes::new(py, &bytes.unwrap_or_default()))
    }

    fn get_into(&self, py: Python<'_>, offset: u64, into: &Bound<'_, PyAny>) -> PyResult<()> {
        let into = Memory::writable(into)?;
        if into.len() == 0 {
            return Ok(());
        }
        // SAFETY: `into` keeps the memory where it is until this returns, and it is contiguous and writable. That nothing else touches it meanwhile is the
        // caller's duty, as with any call that fills memory without the interpreter's lock.
        let bytes = unsafe { std::slice::from_raw_parts_mut(into.start(), into.len()) };
        py.detach(|| self.0.get_into(offset, bytes)).map_err(raise)
    }

    fn get_start(&self, py: Python<'_>, ranges: Vec<(u64, u64)>) -> PyResult<Get> {
        let ranges: Vec<_> = ranges.into_iter().map(|(start, end)| start..end).collect();
        let get = py.detach(|| self.0.get_start(&ranges)).map_err(raise)?;
        Ok(Get(Mutex::new(get)))
    }

    fn put(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        // Threads of Python may write the memory while it is sent.
        let data = Memory::readable(data)?.copy(py, 0, usize::MAX);
        let mut put = py
            .detach(|| self.0.put_start(offset, data))
            .map_err(raise)?;
        waited(py, None, |most| match put.wait_for(most) {
            Ok(false) => None,
            ended => Some(ended),
        })?;
        Ok(())
    }

    fn put_start(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let data = Memory::readable(data)?.copy(py, 0, usize::MAX);
        py.detach(|| self.0.put_start(offset, data).map(drop))
            .map_err(raise)
    }

    fn fence(&self) {
        self.0.fence();
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.flush()).map_err(raise)
    }

    fn notify(&self, py: Python<'_>, start: u64, end: u64, value: u64) -> PyResult<()> {
        py.detach(|| self.0.notify(start..end, value))
            .map_err(raise)
    }

    fn wait(
        &self,
        py: Python<'_>,
        start: u64,
        end: u64,
        at_least: u64,
        seconds: Option<f64>,
    ) -> PyResult<Option<u64>> {
        waited(py, seconds, |most: Duration| {
            self.0.wait(start..end, at_least, most).transpose()
        })
    }
}

#[pyclass(frozen)]
pub(crate) struct Get(Mutex<RegionGet>);

#[pymethods]
impl Get {
    fn wait<'py>(
        &self,
        py: Python<'py>,
        seconds: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let bytes = waited(py, seconds, |most| lock(&self.0).wait_for(most).transpose())?;
        Ok(bytes.map(|bytes| PyBytes::new(py, &bytes)))
    }

    fn test(&self, py: Python<'_>) -> bool {
        py.detach(|| lock(&self.0).test())
    }
}
