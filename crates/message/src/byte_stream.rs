//! Byte streams over all rails, for programs that know sockets.
//!
//! ```text
//!   program: write ──▶ frame = message ──▶ rails ═══▶ one thread receives ──▶ inbox of its stream ──▶ program: read
//!            waits for credit ◀────────── CREDIT ◀─────────────────────────── as it reads
//! ```
//!
//! What may be sent when is decided in [`ropewalk_proto::byte_stream`].

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_proto::byte_stream::frame::GREETING_MAX;
use ropewalk_proto::byte_stream::{CODE_PROGRAM, Side};

use crate::{CutOff, MessageError, MessageSocket, Options, RailReport};

mod arrivals;
mod asynchronous;
mod inbox;
mod join;
mod listen;
mod polled;
mod readiness;
mod shared;
#[cfg(test)]
mod tests;

use arrivals::Arrivals;
pub use asynchronous::AsyncByteStream;
pub use join::Passed;
pub use listen::ByteStreamListener;
pub use polled::PolledByteStream;
use shared::{Hold, Shared, Slot};

/// Bytes that are on their way at once from which on all rails carry them, where the options leave that to measurements:
/// what is on its way says more than the length of one write. As long as a message of the paper's Gigabit rails had to be.
const CUT_OFF: u64 = 32 << 10;

/// Longest time that a busy path has to take what was sent before the news that the socket is closed. A peer that does not hear it waits for
/// rails to work again.
const FAREWELL_TIME: Duration = Duration::from_secs(1);

/// Part of the socket's window that one stream may use: one that is not read leaves space for others.
const WINDOW_PART: u64 = 4;

/// Any number of byte streams over one message socket.
///
/// Both ends may open streams ([`ByteStream::open_beside`] at the listening one); the other end accepts them in order.
///
/// ```
/// use std::io::{Read, Write};
/// use ropewalk_message::{ByteStreams, ByteStreamListener, Options};
///
/// let options = Options::default();
/// let listener = ByteStreamListener::bind(&["127.0.0.1:0".parse()?, "127.0.0.2:0".parse()?], &options)?;
/// let streams = ByteStreams::connect(&listener.addresses(), &options)?;
/// let mut near = streams.open(b"upper case")?;
/// let mut far = listener.accept()?;
/// assert_eq!(far.greeting(), b"upper case");
/// let server = std::thread::spawn(move || -> std::io::Result<()> {
///     let mut text = String::new();
///     far.read_to_string(&mut text)?;
///     far.write_all(text.to_uppercase().as_bytes())?;
///     far.close()
/// });
/// near.write_all(b"around and back")?;
/// near.shutdown()?;
/// let mut answer = String::new();
/// near.read_to_string(&mut answer)?;
/// assert_eq!(answer, "AROUND AND BACK");
/// server.join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ByteStreams {
    hold: Arc<Hold>,
    arrivals: Arc<Arrivals>,
}

/// A connection that reads and writes bytes in order, as a TCP connection does, over all rails between two hosts.
///
/// * Each way ends by itself: [`shutdown`](Self::shutdown) ends writing, and the peer reads to the end.
/// * A reader that reads nothing makes the writer wait: 64 KiB are on their way at first, and up to a quarter of
///   [`Options::window`] on a path that is longer than that. [`MessageError::Stopped`] says that the peer has dropped its end.
/// * A rail that fails takes nothing with it: its bytes are sent again over the others. Only when no rail
///   works for [`Options::peer_timeout`] does reading fail, with what has arrived read first.
///
/// Any number of threads may use it through a reference or [`Arc`]: reads and writes of several threads do not mix within a
/// call of at most 256 KiB. [`Read`] and [`Write`] are there for references, too; what is written leaves at once, and
/// flushing does nothing.
///
/// Dropping it ends writing, what was written is still delivered while the process lives, and the peer's writes fail.
pub struct ByteStream {
    hold: Arc<Hold>,
    slot: Arc<Slot>,
    greeting: Vec<u8>,
    limits: Mutex<Limits>,
}

/// Longest times that calls may take.
#[derive(Clone, Copy, Debug, Default)]
struct Limits {
    read: Option<Duration>,
    write: Option<Duration>,
}

fn until(most: Option<Duration>) -> Option<Instant> {
    // A time that the clock cannot count to is no limit.
    most.and_then(|most| Instant::now().checked_add(most))
}

/// As the socket of byte streams has to be: their own rule spreads messages, and their calls have deadlines.
fn socket_options(options: &Options) -> Options {
    let cut_off = match options.cut_off {
        CutOff::Measured(_) => CutOff::Fixed(CUT_OFF),
        fixed @ CutOff::Fixed(_) => fixed,
    };
    Options {
        cut_off,
        cut_offs: None,
        ..options.clone()
    }
}

fn open(hold: &Arc<Hold>, greeting: &[u8]) -> Result<ByteStream, MessageError> {
    if greeting.len() > GREETING_MAX {
        return Err(MessageError::Misuse(format!(
            "a greeting of {} bytes is longer than the {GREETING_MAX} it may have",
            greeting.len()
        )));
    }
    let slot = hold.shared().open(greeting)?;
    Ok(ByteStream::new(hold.clone(), slot, greeting.to_vec()))
}

impl ByteStreams {
    /// Connects to a [`ByteStreamListener`], as [`MessageSocket::connect`] does.
    ///
    /// # Errors
    /// As there.
    pub fn connect(addresses: &[SocketAddr], options: &Options) -> Result<Self, MessageError> {
        let socket = MessageSocket::connect(addresses, &socket_options(options))?;
        let arrivals = Arc::new(Arrivals::new()?);
        let hold = Shared::start(socket, Side::Connecting, options, &arrivals)?;
        Ok(Self { hold, arrivals })
    }

    /// Opens a stream. The greeting, up to 1 KiB, says what it is for; the acceptor has it before anything else.
    ///
    /// Does not wait for the acceptor: one that is refused fails when it is used.
    ///
    /// # Errors
    /// [`MessageError::TooManyStreams`], [`MessageError::Misuse`] for a greeting that is too long, [`MessageError::Deadline`] when the peer
    /// acknowledges nothing of what is on its way for the [deadline](Options::deadline) of the socket, and what ends the socket.
    pub fn open(&self, greeting: &[u8]) -> Result<ByteStream, MessageError> {
        open(&self.hold, greeting)
    }

    /// Waits for a stream that the peer opens.
    ///
    /// # Errors
    /// What ended the socket.
    pub fn accept(&self) -> Result<ByteStream, MessageError> {
        self.accept_until(None)
    }

    /// As [`accept`](Self::accept), at most until then; `None` for no limit.
    ///
    /// # Errors
    /// [`MessageError::Deadline`], and as [`accept`](Self::accept).
    pub fn accept_until(&self, deadline: Option<Instant>) -> Result<ByteStream, MessageError> {
        let shared = self.hold.shared();
        shared.here()?;
        let arrival = self.arrivals.take(deadline, || shared.failure())?;
        Ok(arrival.stream)
    }

    /// What each rail did, in the order of the addresses.
    #[must_use]
    pub fn rails(&self) -> Vec<RailReport> {
        self.hold.shared().socket.rails()
    }

    /// As [`MessageSocket::warnings`].
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.hold.shared().socket.warnings()
    }

    /// Why the socket is over; `None` while it works.
    #[must_use]
    pub fn failure(&self) -> Option<MessageError> {
        self.hold.shared().failure()
    }

    /// Closes the socket: all its streams fail at once, and the peer learns of it, for which a busy path may need up to a second.
    pub fn close(&self) {
        self.hold.shared().socket.close_within(FAREWELL_TIME);
    }

    /// Closes the connection of a rail, as if the network had. The connecting end makes another one.
    pub fn break_rail(&self, rail: usize) {
        self.hold.shared().socket.break_rail(rail);
    }
}

impl ByteStream {
    fn new(hold: Arc<Hold>, slot: Arc<Slot>, greeting: Vec<u8>) -> Self {
        Self {
            hold,
            slot,
            greeting,
            limits: Mutex::default(),
        }
    }

    /// Connects to a [`ByteStreamListener`]: a socket with this stream alone. For more than one use [`ByteStreams`].
    ///
    /// # Errors
    /// As [`MessageSocket::connect`].
    pub fn connect(addresses: &[SocketAddr], options: &Options) -> Result<Self, MessageError> {
        ByteStreams::connect(addresses, options)?.open(&[])
    }

    /// Opens another stream to the same peer, over the same socket, as [`ByteStreams::open`] does: the way in which a listening end opens
    /// streams. The peer accepts it with [`ByteStreams::accept`], or at its listener; one that accepts none resets it.
    ///
    /// # Errors
    /// As of [`ByteStreams::open`].
    pub fn open_beside(&self, greeting: &[u8]) -> Result<ByteStream, MessageError> {
        open(&self.hold, greeting)
    }

    /// What the opener said that the stream is for.
    #[must_use]
    pub fn greeting(&self) -> &[u8] {
        &self.greeting
    }

    /// Sets how long each later call of [`read`](Self::read) may take; `None` for no limit.
    pub fn set_read_timeout(&self, most: Option<Duration>) {
        self.limits.lock().read = most;
    }

    /// Sets how long each later call that writes, ends or closes may take; `None` for no limit.
    pub fn set_write_timeout(&self, most: Option<Duration>) {
        self.limits.lock().write = most;
    }

    /// Reads what is there, at least one byte; 0 at the end, or for no space.
    ///
    /// # Errors
    /// Of these kinds, each with a [`MessageError`] inside: `TimedOut` (nothing is lost), `ConnectionReset` when the peer gave
    /// the stream up or closed its socket, `ConnectionAborted` when no rail works any more.
    pub fn read(&self, space: &mut [u8]) -> io::Result<usize> {
        let until = until(self.limits.lock().read);
        self.read_until(space, until).map_err(MessageError::into_io)
    }

    /// As [`read`](Self::read), at most until then; `None` for no limit.
    ///
    /// # Errors
    /// [`MessageError::Deadline`] (nothing is lost), and as there.
    pub fn read_until(
        &self,
        space: &mut [u8],
        deadline: Option<Instant>,
    ) -> Result<usize, MessageError> {
        self.hold.shared().read(&self.slot, space, deadline)
    }

    /// Writes some of the bytes, at least one, and says how many: they are on their way. Waits while the peer has
    /// too much to read.
    ///
    /// # Errors
    /// As [`read`](Self::read); `BrokenPipe` when the peer reads nothing more, `NotConnected` after
    /// [`shutdown`](Self::shutdown).
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let until = until(self.limits.lock().write);
        self.write_until(bytes, until)
            .map_err(MessageError::into_io)
    }

    /// As [`write`](Self::write), at most until then; `None` for no limit.
    ///
    /// # Errors
    /// [`MessageError::Deadline`] (nothing was written), and as there.
    pub fn write_until(
        &self,
        bytes: &[u8],
        deadline: Option<Instant>,
    ) -> Result<usize, MessageError> {
        self.hold.shared().write(&self.slot, bytes, deadline)
    }

    /// Ends writing: the peer reads to the end of what was written. Reading goes on. Further calls do nothing.
    ///
    /// # Errors
    /// As [`read`](Self::read). That the peer reads nothing more is none, as with TCP: there is nothing left to say to it.
    pub fn shutdown(&self) -> io::Result<()> {
        let until = until(self.limits.lock().write);
        self.shutdown_until(until).map_err(MessageError::into_io)
    }

    /// As [`shutdown`](Self::shutdown); waits for another thread that writes at most until then, `None` for no limit.
    ///
    /// # Errors
    /// [`MessageError::Deadline`], and as there.
    pub fn shutdown_until(&self, deadline: Option<Instant>) -> Result<(), MessageError> {
        self.hold.shared().end(&self.slot, deadline)
    }

    /// Ends writing, and waits until the peer's host has all that was written. For programs that are about to exit: what
    /// is on its way is lost with them. Whether the program there has read it only an answer of that program can say.
    ///
    /// # Errors
    /// As [`shutdown`](Self::shutdown).
    pub fn close(self) -> io::Result<()> {
        let until = until(self.limits.lock().write);
        self.finish_until(until).map_err(MessageError::into_io)
    }

    /// Ends writing, and waits until the peer's host has all that was written, at most until then; `None` for no limit. Reading goes on.
    ///
    /// # Errors
    /// [`MessageError::Deadline`]: it may be called again. Else as [`shutdown`](Self::shutdown).
    pub fn finish_until(&self, deadline: Option<Instant>) -> Result<(), MessageError> {
        self.shutdown_until(deadline)?;
        let shared = self.hold.shared();
        shared.wait_delivered(&self.slot, deadline)
    }

    /// Gives the stream up, both ways: what is on its way is thrown away, and the peer's calls fail with
    /// [`MessageError::Reset`].
    ///
    /// * `code`: its meaning is the programs' own; it is sent as 256 more, since lower ones are this library's.
    /// * `text`: why; cut after 512 bytes.
    pub fn reset(&self, code: u32, text: &str) {
        let code = CODE_PROGRAM + u64::from(code);
        self.hold.shared().reset(&self.slot, code, text);
    }

    /// Whether nothing can be written any more.
    fn is_over(&self) -> bool {
        self.hold.shared().is_over(&self.slot)
    }

    /// Whether its socket is over.
    fn is_lost(&self) -> bool {
        self.hold.shared().failure().is_some()
    }

    /// What each rail of the socket did, in the order of the addresses; other streams' bytes count, too.
    #[must_use]
    pub fn rails(&self) -> Vec<RailReport> {
        self.hold.shared().socket.rails()
    }
}

/// Readable while streams of the peer wait to be accepted, as far as accepting has not found that none does; and when the socket is over.
impl AsFd for ByteStreams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.arrivals.as_fd()
    }
}

impl Drop for ByteStreams {
    fn drop(&mut self) {
        if self.hold.shared().is_of_this_process() {
            self.hold.shared().take_no_more();
            self.arrivals.drain();
        }
    }
}

impl Drop for ByteStream {
    fn drop(&mut self) {
        if self.hold.shared().is_of_this_process() {
            self.hold.shared().release(&self.slot);
        }
    }
}

impl Read for &ByteStream {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        ByteStream::read(self, space)
    }
}

impl Write for &ByteStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        ByteStream::write(self, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for ByteStream {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        ByteStream::read(self, space)
    }
}

impl Write for ByteStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        ByteStream::write(self, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl std::fmt::Debug for ByteStreams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ByteStreams")
            .field("rails", &self.rails())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ByteStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ByteStream")
            .field("number", &self.slot.number)
            .finish_non_exhaustive()
    }
}
