//! Byte streams: what a TCP connection is to a program, over all interfaces.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::{misuse, raise};
use crate::memory::Memory;
use crate::message::{addresses, options};
use crate::open::Open;
use crate::transfer::duration;
use crate::waiting::connected;

/// Bytes that one call copies at once: as much as the library sends as one.
const PIECE: usize = 256 << 10;

#[pyclass(frozen)]
pub(crate) struct ByteStreamListener(Open<ropewalk::ByteStreamListener>);

#[pymethods]
impl ByteStreamListener {
    #[new]
    fn new(listen: Vec<String>, token: Option<[u8; 32]>, plain: bool) -> PyResult<Self> {
        let options = options(token, plain, &[])?;
        let listener = ropewalk::ByteStreamListener::bind(&addresses(&listen)?, &options);
        Ok(Self(Open::new("listener", listener.map_err(raise)?)))
    }

    fn addresses(&self) -> PyResult<Vec<String>> {
        let all = self.0.get()?.addresses();
        Ok(all.iter().map(ToString::to_string).collect())
    }

    fn accept(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<ByteStream>> {
        let accepted = self
            .0
            .wait(py, seconds, |listener, most| listener.accept_for(most))?;
        Ok(accepted.map(ByteStream::of))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }

    fn fileno(&self) -> i32 {
        let listener = self.0.get();
        listener.map_or(-1, |listener| listener.as_fd().as_raw_fd())
    }
}

#[pyclass(frozen)]
pub(crate) struct ByteStreams(Open<ropewalk::ByteStreams>);

#[pymethods]
impl ByteStreams {
    #[staticmethod]
    fn connect(
        py: Python<'_>,
        to: Vec<String>,
        token: Option<[u8; 32]>,
        plain: bool,
        local: Vec<String>,
    ) -> PyResult<Self> {
        let (to, options) = (addresses(&to)?, options(token, plain, &local)?);
        let streams = connected(py, move || ropewalk::ByteStreams::connect(&to, &options))?;
        Ok(Self(Open::new("connection", streams)))
    }

    fn open(&self, py: Python<'_>, greeting: Vec<u8>) -> PyResult<ByteStream> {
        let streams = self.0.get()?;
        // Where too much is on its way it waits, and not in parts.
        connected(py, move || streams.open(&greeting)).map(ByteStream::of)
    }

    fn accept(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<ByteStream>> {
        let accepted = self
            .0
            .wait(py, seconds, |streams, most| streams.accept_for(most))?;
        Ok(accepted.map(ByteStream::of))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }

    fn fileno(&self) -> i32 {
        let streams = self.0.get();
        streams.map_or(-1, |streams| streams.as_fd().as_raw_fd())
    }
}

#[pyclass(frozen)]
pub(crate) struct ByteStream(Open<ropewalk::ByteStream>);

impl ByteStream {
    fn of(stream: ropewalk::ByteStream) -> Self {
        Self(Open::new("byte stream", stream))
    }
}

#[pymethods]
impl ByteStream {
    #[staticmethod]
    fn connect(
        py: Python<'_>,
        to: Vec<String>,
        token: Option<[u8; 32]>,
        plain: bool,
        local: Vec<String>,
    ) -> PyResult<Self> {
        let (to, options) = (addresses(&to)?, options(token, plain, &local)?);
        connected(py, move || ropewalk::ByteStream::connect(&to, &options)).map(Self::of)
    }

    fn open_beside(&self, py: Python<'_>, greeting: Vec<u8>) -> PyResult<Self> {
        let stream = self.0.get()?;
        connected(py, move || stream.open_beside(&greeting)).map(Self::of)
    }

    fn greeting<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, self.0.get()?.greeting()))
    }

    /// What was read, nothing at the end; none where nothing was there.
    fn recv<'py>(
        &self,
        py: Python<'py>,
        most: usize,
        seconds: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let mut space = vec![0; most.min(PIECE)];
        let count = self.0.wait(py, seconds, |stream, most| {
            stream.read_for(&mut space, most)
        })?;
        Ok(count.map(|count| PyBytes::new(py, &space[..count])))
    }

    /// How many bytes of memory were filled, at most so many; 0: as many as it has.
    fn recv_into(
        &self,
        py: Python<'_>,
        into: &Bound<'_, PyAny>,
        most: usize,
        seconds: Option<f64>,
    ) -> PyResult<Option<usize>> {
        let memory = Memory::writable(into)?;
        let len = match most {
            0 => memory.len(),
            most if most <= memory.len() => most,
            _ => {
                return Err(misuse(format!(
                    "the memory has {} bytes, {most} were to be read",
                    memory.len()
                )));
            }
        };
        if len == 0 {
            return Ok(Some(0));
        }
        // SAFETY: `memory` keeps these bytes where they are until this returns; they are contiguous and writable. That nothing else touches them meanwhile is
        // the caller's duty, as with any call that fills memory without the interpreter's lock.
        let space = unsafe { std::slice::from_raw_parts_mut(memory.start(), len) };
        self.0
            .wait(py, seconds, |stream, most| stream.read_for(space, most))
    }

    /// How many of the bytes are on their way; none where none could be.
    fn send(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        seconds: Option<f64>,
    ) -> PyResult<Option<usize>> {
        let piece = Memory::readable(data)?.copy(py, 0, PIECE);
        self.0
            .wait(py, seconds, |stream, most| stream.write_for(&piece, most))
    }

    /// Sends the bytes from `start` on: up to which byte they are on their way, and whether that is all.
    fn sendall(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        start: usize,
        seconds: Option<f64>,
    ) -> PyResult<(usize, bool)> {
        let memory = Memory::readable(data)?;
        let until = duration(seconds)?.and_then(|most| Instant::now().checked_add(most));
        let mut sent = start;
        while sent < memory.len() {
            let piece = memory.copy(py, sent, PIECE);
            let mut rest = &piece[..];
            while !rest.is_empty() {
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                let left = left.map(|left| left.as_secs_f64());
                let written = self
                    .0
                    .wait(py, left, |stream, most| stream.write_for(rest, most))?;
                let Some(written) = written else {
                    return Ok((sent, false));
                };
                rest = &rest[written..];
                sent += written;
            }
        }
        Ok((sent, true))
    }

    fn shutdown(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<bool> {
        let ended = self.0.wait(py, seconds, |stream, most| {
            Ok(stream.shutdown_for(most)?.then_some(()))
        })?;
        Ok(ended.is_some())
    }

    fn finish(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<bool> {
        let finished = self.0.wait(py, seconds, |stream, most| {
            Ok(stream.finish_for(most)?.then_some(()))
        })?;
        Ok(finished.is_some())
    }

    fn reset(&self, py: Python<'_>, text: &str) -> PyResult<()> {
        let stream = self.0.get()?;
        py.detach(|| stream.reset(0, text));
        Ok(())
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }

    fn fileno(&self) -> i32 {
        let stream = self.0.get();
        stream.map_or(-1, |stream| stream.as_fd().as_raw_fd())
    }
}
