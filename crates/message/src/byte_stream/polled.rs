//! Byte streams for programs with an event loop of their own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::readiness::{Readiness, Reads, Writes};
use super::{AsyncByteStream, ByteStream};
use crate::MessageError;

/// A [`ByteStream`] with a descriptor for `poll` and its like: readable and writable as a socket's, with calls that do not wait.
///
/// The descriptor says no more than that: nothing can be read from it or written to it. It is readable, and writable, at first, and
/// again whenever there is news; a call that finds nothing to do makes it quiet.
#[derive(Debug)]
pub struct PolledByteStream {
    stream: AsyncByteStream,
    readiness: Pair,
    reads: Waker,
    writes: Waker,
}

struct Pair(Arc<Readiness>);

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("descriptor")
    }
}

impl AsFd for PolledByteStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readiness.0.as_fd()
    }
}

impl PolledByteStream {
    /// The stream with a descriptor.
    ///
    /// # Errors
    /// [`MessageError::System`] where there is no descriptor.
    pub fn new(stream: ByteStream) -> Result<Self, MessageError> {
        let readiness = Readiness::new()?;
        Ok(Self {
            stream: stream.into(),
            reads: Arc::new(Reads(readiness.clone())).into(),
            writes: Arc::new(Writes(readiness.clone())).into(),
            readiness: Pair(readiness),
        })
    }

    /// The stream itself.
    #[must_use]
    pub fn stream(&self) -> &ByteStream {
        self.stream.stream()
    }

    /// The stream for tasks.
    #[must_use]
    pub fn as_async(&self) -> &AsyncByteStream {
        &self.stream
    }

    /// The blocking stream again.
    #[must_use]
    pub fn into_stream(self) -> ByteStream {
        self.stream.into_stream()
    }

    /// Reads what is there; `WouldBlock` for nothing: then the descriptor is not readable until there is news.
    ///
    /// # Errors
    /// `WouldBlock`, and as [`ByteStream::read`].
    pub fn read(&self, space: &mut [u8]) -> io::Result<usize> {
        as_io(self.read_now(space))
    }

    /// As [`read`](Self::read); `None` where that would block.
    ///
    /// # Errors
    /// As [`ByteStream::read_until`].
    pub fn read_now(&self, space: &mut [u8]) -> Result<Option<usize>, MessageError> {
        self.readiness.0.set_readable(false);
        let stream = self.stream();
        let context = Context::from_waker(&self.reads);
        match stream
            .hold
            .shared()
            .poll_read(&stream.slot, space, &context)
        {
            Poll::Ready(read) => {
                // There may be more.
                self.readiness.0.set_readable(true);
                read.map(Some)
            }
            Poll::Pending => Ok(None),
        }
    }

    /// Writes some of the bytes; `WouldBlock` for none: then the descriptor is not writable until there is news.
    ///
    /// # Errors
    /// `WouldBlock`, and as [`ByteStream::write`].
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        as_io(self.write_now(bytes))
    }

    /// As [`write`](Self::write); `None` where that would block.
    ///
    /// # Errors
    /// As [`ByteStream::write_until`].
    pub fn write_now(&self, bytes: &[u8]) -> Result<Option<usize>, MessageError> {
        self.readiness.0.set_writable(false);
        let stream = self.stream();
        let context = Context::from_waker(&self.writes);
        match stream
            .hold
            .shared()
            .poll_write(&stream.slot, bytes, &context)
        {
            Poll::Ready(written) => {
                self.readiness.0.set_writable(true);
                written.map(Some)
            }
            Poll::Pending => Ok(None),
        }
    }
}

fn as_io(done: Result<Option<usize>, MessageError>) -> io::Result<usize> {
    let count = done.map_err(MessageError::into_io)?;
    count.ok_or_else(|| io::ErrorKind::WouldBlock.into())
}
