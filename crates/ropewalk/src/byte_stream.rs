//! Byte streams over all the rails between two hosts: what a TCP connection is to a program.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use ropewalk_message::{MessageError, PolledByteStream};

use crate::{Error, MessageOptions};

/// Waits for byte streams on the addresses of one or more interfaces, from any number of peers. It has a descriptor that `poll` and
/// `select` understand: readable when a stream can be accepted.
#[derive(Debug)]
pub struct ByteStreamListener(ropewalk_message::ByteStreamListener);

/// One connection over all rails to a [`ByteStreamListener`] or to another program's, with any number of byte streams; either end
/// opens them, the listening one with [`ByteStream::open_beside`]. It has a descriptor that `poll` and `select` understand: readable when a stream
/// of the peer can be accepted.
#[derive(Debug)]
pub struct ByteStreams(ropewalk_message::ByteStreams);

/// Bytes in order, both ways, over all rails; each way ends by itself. Reading and writing are those of the standard library,
/// and so are their errors.
///
/// A rail that fails takes nothing with it. A reader that reads nothing makes the writer wait. It has a descriptor that `poll`
/// and `select` understand, readable and writable as a socket's, for [`try_read`](Self::try_read) and [`try_write`](Self::try_write).
///
/// ```
/// use std::io::{Read, Write};
/// use ropewalk::{ByteStream, ByteStreamListener, MessageOptions};
///
/// let options = MessageOptions::default();
/// let listener = ByteStreamListener::bind(&["127.0.0.1:0".parse()?, "127.0.0.2:0".parse()?], &options)?;
/// let mut near = ByteStream::connect(&listener.addresses(), &options)?;
/// let mut far = listener.accept()?;
/// near.write_all(b"around")?;
/// near.shutdown()?;
/// let mut text = String::new();
/// far.read_to_string(&mut text)?;
/// assert_eq!(text, "around");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ByteStream(PolledByteStream);

impl AsFd for ByteStreamListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for ByteStreams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for ByteStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A deadline that passes is no error where the caller chose it.
fn unless_late<T>(result: Result<T, MessageError>) -> Result<Option<T>, Error> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(MessageError::Deadline) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn in_time(
    result: Result<ropewalk_message::ByteStream, MessageError>,
) -> Result<Option<ByteStream>, Error> {
    unless_late(result)?.map(ByteStream::new).transpose()
}

impl ByteStreamListener {
    /// Listens on every address; port 0 lets the system choose.
    ///
    /// # Errors
    /// [`Error::Host`] for an address that cannot be listened on, [`Error::Input`] for options that cannot be meant.
    pub fn bind(addresses: &[SocketAddr], options: &MessageOptions) -> Result<Self, Error> {
        crate::process::enter()?;
        let listener = ropewalk_message::ByteStreamListener::bind(addresses, options)?;
        Ok(Self(listener))
    }

    /// Addresses that are listened on.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.0.addresses()
    }

    /// Waits for a stream, at most as long as the options say.
    ///
    /// # Errors
    /// [`Error::Network`] when the deadline passed.
    pub fn accept(&self) -> Result<ByteStream, Error> {
        ByteStream::new(self.0.accept()?)
    }

    /// As [`accept`](Self::accept), at most so long; `None`: no stream was there.
    ///
    /// # Errors
    /// [`Error::Host`] for a descriptor that the system does not give.
    pub fn accept_for(&self, most: Duration) -> Result<Option<ByteStream>, Error> {
        in_time(self.0.accept_until(Instant::now().checked_add(most)))
    }
}

impl ByteStreams {
    /// Connects to a listener, one rail for each address.
    ///
    /// # Errors
    /// [`Error::Network`] when the peer is not reached or does not prove the token, [`Error::Input`] for options that
    /// cannot be meant.
    pub fn connect(addresses: &[SocketAddr], options: &MessageOptions) -> Result<Self, Error> {
        crate::process::enter()?;
        let streams = ropewalk_message::ByteStreams::connect(addresses, options)?;
        Ok(Self(streams))
    }

    /// Opens a stream with a greeting, up to 1 KiB, that says what it is for. Does not wait for the acceptor.
    ///
    /// # Errors
    /// [`Error::Input`] for a greeting that is too long or more than 1024 streams, [`Error::Network`] and [`Error::Peer`] for
    /// what ended the connection.
    pub fn open(&self, greeting: &[u8]) -> Result<ByteStream, Error> {
        ByteStream::new(self.0.open(greeting)?)
    }

    /// Waits for a stream that the peer opens, at most so long; `None`: there was none.
    ///
    /// # Errors
    /// [`Error::Network`] and [`Error::Peer`] for what ended the connection.
    pub fn accept_for(&self, most: Duration) -> Result<Option<ByteStream>, Error> {
        in_time(self.0.accept_until(Instant::now().checked_add(most)))
    }
}

impl ByteStream {
    fn new(stream: ropewalk_message::ByteStream) -> Result<Self, Error> {
        Ok(Self(PolledByteStream::new(stream)?))
    }

    /// Connects to a listener with a single stream, one rail for each address.
    ///
    /// # Errors
    /// As [`ByteStreams::connect`].
    pub fn connect(addresses: &[SocketAddr], options: &MessageOptions) -> Result<Self, Error> {
        crate::process::enter()?;
        Self::new(ropewalk_message::ByteStream::connect(addresses, options)?)
    }

    /// Opens another stream to the same peer over the same connection, from either end: the peer has it from [`ByteStreams::accept_for`], or from
    /// its listener. A peer that accepts none resets it.
    ///
    /// # Errors
    /// As of [`ByteStreams::open`].
    pub fn open_beside(&self, greeting: &[u8]) -> Result<Self, Error> {
        Self::new(self.0.stream().open_beside(greeting)?)
    }

    /// What the opener said that the stream is for.
    #[must_use]
    pub fn greeting(&self) -> &[u8] {
        self.0.stream().greeting()
    }

    /// Sets how long each later call that reads may take; `None` for no limit.
    pub fn set_read_timeout(&self, most: Option<Duration>) {
        self.0.stream().set_read_timeout(most);
    }

    /// Sets how long each later call that writes, ends or closes may take; `None` for no limit.
    pub fn set_write_timeout(&self, most: Option<Duration>) {
        self.0.stream().set_write_timeout(most);
    }

    /// As reading, at most so long; `None`: nothing was there. Without any time it does not wait, and the descriptor is then as after
    /// [`try_read`](Self::try_read).
    ///
    /// # Errors
    /// [`Error::Peer`] when the peer gave the stream up or closed its socket, [`Error::Network`] when no rail works any more.
    pub fn read_for(&self, space: &mut [u8], most: Duration) -> Result<Option<usize>, Error> {
        if most.is_zero() {
            return Ok(self.0.read_now(space)?);
        }
        let until = Instant::now().checked_add(most);
        unless_late(self.0.stream().read_until(space, until))
    }

    /// As writing, at most so long; `None`: nothing could be written. Without any time it does not wait, and the descriptor is then as
    /// after [`try_write`](Self::try_write).
    ///
    /// # Errors
    /// As [`read_for`](Self::read_for), [`Error::Peer`] also when the peer reads nothing more, and [`Error::Input`] after
    /// [`shutdown`](Self::shutdown).
    pub fn write_for(&self, bytes: &[u8], most: Duration) -> Result<Option<usize>, Error> {
        if most.is_zero() {
            return Ok(self.0.write_now(bytes)?);
        }
        let until = Instant::now().checked_add(most);
        unless_late(self.0.stream().write_until(bytes, until))
    }

    /// As [`shutdown`](Self::shutdown), at most so long: whether it is done, for which no other thread may be writing.
    ///
    /// # Errors
    /// As [`read_for`](Self::read_for).
    pub fn shutdown_for(&self, most: Duration) -> Result<bool, Error> {
        let until = Instant::now().checked_add(most);
        let ended = unless_late(self.0.stream().shutdown_until(until))?;
        Ok(ended.is_some())
    }

    /// As [`close`](Self::close), at most so long, and reading goes on: whether the peer's host has everything.
    ///
    /// # Errors
    /// As [`read_for`](Self::read_for).
    pub fn finish_for(&self, most: Duration) -> Result<bool, Error> {
        let until = Instant::now().checked_add(most);
        let finished = unless_late(self.0.stream().finish_until(until))?;
        Ok(finished.is_some())
    }

    /// Ends writing: the peer reads to the end. Reading goes on.
    ///
    /// # Errors
    /// `TimedOut`, `ConnectionReset` when the peer gave it up, `ConnectionAborted` when no rail works any more. That the peer reads
    /// nothing more is none.
    pub fn shutdown(&self) -> io::Result<()> {
        self.0.stream().shutdown()
    }

    /// Ends writing, and waits until the peer's host has all that was written.
    ///
    /// # Errors
    /// As [`shutdown`](Self::shutdown).
    pub fn close(self) -> io::Result<()> {
        self.0.into_stream().close()
    }

    /// Gives the stream up, both ways: the peer's calls fail with this code and text.
    pub fn reset(&self, code: u32, text: &str) {
        self.0.stream().reset(code, text);
    }

    /// Reads what is there, and does not wait.
    ///
    /// # Errors
    /// `WouldBlock`: the descriptor is not readable until there is news. Else as reading does.
    pub fn try_read(&self, space: &mut [u8]) -> io::Result<usize> {
        self.0.read(space)
    }

    /// Writes some of the bytes, and does not wait.
    ///
    /// # Errors
    /// `WouldBlock`: the descriptor is not writable until there is news. Else as writing does.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    /// Reads in a task, of any runtime, which is woken when there is something to read.
    ///
    /// # Errors
    /// As reading does.
    pub fn poll_read(
        &self,
        space: &mut [u8],
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.0.as_async().poll_read(space, context)
    }

    /// Writes in a task, of any runtime, which is woken when something may be written.
    ///
    /// # Errors
    /// As writing does.
    pub fn poll_write(&self, bytes: &[u8], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.0.as_async().poll_write(bytes, context)
    }
}

impl Read for &ByteStream {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        self.0.stream().read(space)
    }
}

impl Write for &ByteStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.stream().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for ByteStream {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        self.0.stream().read(space)
    }
}

impl Write for ByteStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.stream().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
