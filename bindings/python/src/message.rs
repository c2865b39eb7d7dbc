//! The message socket.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::task::Poll;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ropewalk::MessageOptions;

use crate::error::{misuse, raise};
use crate::memory::Memory;
use crate::open::Open;
use crate::own::Own;
use crate::waiting::{connected, interruptible, waited};

pub(crate) fn addresses(texts: &[String]) -> PyResult<Vec<SocketAddr>> {
    let parse = |text: &String| {
        text.parse().map_err(|_| {
            misuse(format!(
                "\"{text}\" is no address; write one as 10.0.0.1:7421"
            ))
        })
    };
    texts.iter().map(parse).collect()
}

pub(crate) fn options(
    token: Option<[u8; 32]>,
    plain: bool,
    local: &[String],
) -> PyResult<MessageOptions> {
    let parse = |text: &String| {
        text.parse::<IpAddr>()
            .map_err(|_| misuse(format!("\"{text}\" is no address of an interface")))
    };
    Ok(MessageOptions {
        token,
        plain,
        local: local.iter().map(parse).collect::<PyResult<_>>()?,
        ..MessageOptions::default()
    })
}

#[pyclass(frozen)]
pub(crate) struct MessageListener(Open<ropewalk::MessageListener>);

#[pymethods]
impl MessageListener {
    #[new]
    fn new(listen: Vec<String>, token: Option<[u8; 32]>, plain: bool) -> PyResult<Self> {
        let options = options(token, plain, &[])?;
        let listener = ropewalk::MessageListener::bind(&addresses(&listen)?, &options);
        Ok(Self(Open::new("listener", listener.map_err(raise)?)))
    }

    fn addresses(&self) -> PyResult<Vec<String>> {
        let all = self.0.get()?.addresses();
        Ok(all.iter().map(ToString::to_string).collect())
    }

    fn accept(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<MessageSocket>> {
        let accepted = self
            .0
            .wait(py, seconds, |listener, most| listener.accept_for(most))?;
        Ok(accepted.map(|socket| MessageSocket(Own::new(socket))))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }

    fn fileno(&self) -> i32 {
        let listener = self.0.get();
        listener.map_or(-1, |listener| listener.as_fd().as_raw_fd())
    }
}

/// A copy of the memory of a message. Bytes with gaps between them are taken, too: they are copied anyway.
fn bytes_of(py: Python<'_>, message: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    match Memory::readable(message) {
        Ok(memory) => Ok(memory.copy(py, 0, usize::MAX)),
        Err(error) => match PyBuffer::<u8>::get(message) {
            Ok(buffer) => buffer.to_vec(py),
            Err(_) => Err(error),
        },
    }
}

#[pyclass(frozen)]
pub(crate) struct MessageSocket(Own<ropewalk::MessageSocket>);

#[pymethods]
impl MessageSocket {
    #[staticmethod]
    fn connect(
        py: Python<'_>,
        to: Vec<String>,
        token: Option<[u8; 32]>,
        plain: bool,
        local: Vec<String>,
    ) -> PyResult<Self> {
        let (to, options) = (addresses(&to)?, options(token, plain, &local)?);
        let socket = connected(py, move || ropewalk::MessageSocket::connect(&to, &options))?;
        Ok(Self(Own::new(socket)))
    }

    fn send(&self, py: Python<'_>, message: &Bound<'_, PyAny>) -> PyResult<()> {
        // Threads of Python may write the memory while it is sent; a copy of a short message costs little.
        let socket = self.0.used()?;
        let message = bytes_of(py, message)?;
        interruptible(py, |goes_on| socket.send_while(&message, goes_on))
    }

    fn send_start(&self, py: Python<'_>, message: &Bound<'_, PyAny>) -> PyResult<u64> {
        let socket = self.0.used()?;
        let message = bytes_of(py, message)?;
        let mut number = 0;
        interruptible(py, |goes_on| {
            number = socket.send_start_while(message, goes_on)?;
            Ok(())
        })?;
        Ok(number)
    }

    fn is_sent(&self, number: u64) -> PyResult<bool> {
        Ok(self.0.used()?.is_sent(number))
    }

    /// (whether there is one, the message or none at the end).
    fn receive<'py>(
        &self,
        py: Python<'py>,
        most: usize,
        seconds: Option<f64>,
    ) -> PyResult<(bool, Option<Bound<'py, PyBytes>>)> {
        // Into memory of the socket's own: what arrived of a message stays there from one part of the wait to the next.
        let socket = self.0.used()?;
        let received = waited(py, seconds, |wait| match socket.receive_for(most, wait) {
            Ok(Poll::Ready(message)) => Some(Ok(message)),
            Ok(Poll::Pending) => None,
            Err(error) => Some(Err(error)),
        })?;
        Ok(match received {
            Some(message) => (true, message.map(|bytes| PyBytes::new(py, &bytes))),
            None => (false, None),
        })
    }

    fn finish_sending(&self, py: Python<'_>) -> PyResult<()> {
        let socket = self.0.used()?;
        interruptible(py, |goes_on| socket.finish_sending_while(goes_on))
    }

    fn close(&self, py: Python<'_>) {
        if let Some(socket) = self.0.get() {
            py.detach(|| socket.close());
        }
    }

    fn fileno(&self) -> i32 {
        self.0.get().map_or(-1, |held| held.as_fd().as_raw_fd())
    }
}
