//! Byte streams for programs whose tasks must not block. Needs no runtime.

use std::future::{Future, poll_fn};
use std::io;
use std::task::{Context, Poll};

use super::ByteStream;
use crate::MessageError;

/// A [`ByteStream`] whose calls are futures, for any runtime.
///
/// There are no deadlines here: a future that is dropped has done nothing, so a runtime's own timeout does it.
/// Connecting and accepting block; do them on a thread that may, then convert.
///
/// ```
/// use ropewalk_message::{AsyncByteStream, ByteStream, ByteStreamListener, Options};
///
/// # fn block_on<F: std::future::Future>(future: F) -> F::Output {
/// #     struct Unpark(std::thread::Thread);
/// #     impl std::task::Wake for Unpark {
/// #         fn wake(self: std::sync::Arc<Self>) { self.0.unpark() }
/// #     }
/// #     let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
/// #     let mut future = std::pin::pin!(future);
/// #     loop {
/// #         match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
/// #             std::task::Poll::Ready(output) => return output,
/// #             std::task::Poll::Pending => std::thread::park(),
/// #         }
/// #     }
/// # }
/// let options = Options::default();
/// let listener = ByteStreamListener::bind(&["127.0.0.1:0".parse()?], &options)?;
/// let near = AsyncByteStream::from(ByteStream::connect(&listener.addresses(), &options)?);
/// let far = AsyncByteStream::from(listener.accept()?);
/// block_on(async {
///     assert_eq!(near.write(b"hello").await?, 5);
///     near.shutdown()?;
///     let mut space = [0; 100];
///     assert_eq!(far.read(&mut space).await?, 5);
///     assert_eq!(far.read(&mut space).await?, 0);
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AsyncByteStream {
    stream: ByteStream,
}

impl From<ByteStream> for AsyncByteStream {
    fn from(stream: ByteStream) -> Self {
        Self { stream }
    }
}

impl AsyncByteStream {
    /// The stream itself, for what does not wait.
    #[must_use]
    pub fn stream(&self) -> &ByteStream {
        &self.stream
    }

    /// The blocking stream again.
    #[must_use]
    pub fn into_stream(self) -> ByteStream {
        self.stream
    }

    /// As [`ByteStream::read`].
    ///
    /// # Errors
    /// As there.
    pub fn read(&self, space: &mut [u8]) -> impl Future<Output = io::Result<usize>> + Send {
        poll_fn(|context| self.poll_read(space, context))
    }

    /// As [`ByteStream::write`].
    ///
    /// # Errors
    /// As there.
    pub fn write(&self, bytes: &[u8]) -> impl Future<Output = io::Result<usize>> + Send {
        poll_fn(|context| self.poll_write(bytes, context))
    }

    /// What [`read`](Self::read) does; pending: the task is woken by news.
    ///
    /// # Errors
    /// As [`ByteStream::read`].
    pub fn poll_read(
        &self,
        space: &mut [u8],
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let (shared, slot) = (self.stream.hold.shared(), &self.stream.slot);
        let read = shared.poll_read(slot, space, context);
        read.map_err(MessageError::into_io)
    }

    /// What [`write`](Self::write) does; pending: the task is woken by news.
    ///
    /// # Errors
    /// As [`ByteStream::write`].
    pub fn poll_write(&self, bytes: &[u8], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let (shared, slot) = (self.stream.hold.shared(), &self.stream.slot);
        let written = shared.poll_write(slot, bytes, context);
        written.map_err(MessageError::into_io)
    }

    /// Ends writing, as [`ByteStream::shutdown`]; waits only while the socket has more than a thousand messages on their
    /// way, or while a call of another thread that blocks is writing.
    ///
    /// # Errors
    /// As there.
    pub fn shutdown(&self) -> io::Result<()> {
        self.stream.shutdown()
    }
}
