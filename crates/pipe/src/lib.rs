//! Several byte streams over one pair of pipes: what ssh gives a program as its standard input and output.
//!
//! ```text
//!  master ──[ssh]── agent A          open(header) ─▶ Requests::next() ─▶ Request::accept()
//!     │                                   │                                   │
//!     └────[ssh]── agent B            UnixStream  ◀═══ bytes, both ways ═══▶  UnixStream
//! ```
//!
//! Either end opens streams with a short header that says what for; the other takes or refuses them in words. At both ends
//! a stream is one half of a pair of Unix sockets, so that blocking threads and tasks use it as any other socket.
//! Each direction of a stream has a credit of its own: one that is not read blocks no other, and memory is at most
//! [`WINDOW`] times the open streams. Bytes wait for at most a few data frames of other streams; frames
//! without data go first.
//!
//! A stream is opened from a thread by `handle.block_on(pipe.open(header))` and [`blocking`].
//!
//! Not done here: encryption and proofs. The pipe is as safe as what it runs through.

#![forbid(unsafe_code)]

pub mod frame;
mod purpose;
mod stream;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use frame::{HEADER_LEN, Header, Kind, STREAMS_MAX, WINDOW};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot, watch};

use bytes::BufMut as _;
pub use purpose::Purpose;
pub use stream::Socket;
use stream::{End, Entry, Start};

/// The other end takes or refuses a stream within this time.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(20);

/// Data frames that wait for the pipe; more wait in their streams.
const BULK_QUEUE: usize = 4;

/// Bytes that a pipe of the system holds: a few frames. Control messages wait behind them.
const PIPE_LEN: usize = 256 << 10;

/// Frames without data that wait for the pipe. Two ends that keep to their credits never have as many: two credits, an
/// answer and an end for each stream.
const URGENT_QUEUE: usize = 4 * STREAMS_MAX;

/// What is queued when the pipe is closed is written within this time, frame by frame.
const LAST_FRAMES: Duration = Duration::from_millis(100);

/// Which end of the pipe this is; each numbers its own streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Started the other one.
    Starter,
    /// Was started.
    Started,
}

/// Why there is no stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PipeError {
    /// The other end refused it, in its own words.
    #[error("{0}")]
    Refused(String),
    /// The pipe is closed.
    #[error("the connection to the other end is closed")]
    Closed,
    /// No answer in time.
    #[error("no answer within {} s", OPEN_TIMEOUT.as_secs())]
    Timeout,
    /// No descriptor or buffer is left here.
    #[error("no socket for it: {0}")]
    System(String),
}

/// One end of a pipe. Clones are the same end; it stays open until [`Pipe::close`], or until the other end closes.
#[derive(Clone)]
pub struct Pipe {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Pipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipe")
            .field("is_closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

/// Streams that the other end wants.
#[derive(Debug)]
pub struct Requests(mpsc::Receiver<Request>);

/// A stream that the other end wants; refused when dropped.
pub struct Request {
    /// What it is for.
    pub header: Vec<u8>,
    number: u32,
    shared: Arc<Shared>,
    is_answered: bool,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request")
            .field("number", &self.number)
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}

struct Shared {
    side: Side,
    streams: Mutex<HashMap<u32, Entry>>,
    // Told whenever a stream goes.
    count: watch::Sender<usize>,
    next: AtomicU32,
    urgent: mpsc::Sender<Vec<u8>>,
    bulk: mpsc::Sender<Vec<u8>>,
    closed: watch::Sender<bool>,
    read: AtomicU64,
    written: AtomicU64,
}

impl Pipe {
    /// Takes over both directions. Runs on the current runtime until [`Pipe::close`], or the other end closes.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start<R, W>(reader: R, writer: W, side: Side) -> (Self, Requests)
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let (urgent, urgent_frames) = mpsc::channel(URGENT_QUEUE);
        let (bulk, bulk_frames) = mpsc::channel(BULK_QUEUE);
        let (requests, requested) = mpsc::channel(STREAMS_MAX);
        let shared = Arc::new(Shared {
            side,
            streams: Mutex::default(),
            count: watch::Sender::new(0),
            next: AtomicU32::new(match side {
                Side::Starter => 1,
                Side::Started => 2,
            }),
            urgent,
            bulk,
            closed: watch::Sender::new(false),
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
        });
        tokio::spawn(write_all(
            shared.clone(),
            writer,
            urgent_frames,
            bulk_frames,
        ));
        let reading = shared.clone();
        tokio::spawn(async move {
            let mut closed = reading.closed.subscribe();
            tokio::select! {
                _ = read_all(&reading, reader, requests) => {}
                _ = closed.wait_for(|closed| *closed) => {}
            }
            reading.close();
        });
        (Self { shared }, Requests(requested))
    }

    /// As [`Pipe::start`], over descriptors of this process: pipes, sockets or terminals. They become non-blocking.
    ///
    /// # Errors
    /// As the system says: files on a disk cannot be waited for.
    pub fn over(input: OwnedFd, output: OwnedFd, side: Side) -> io::Result<(Self, Requests)> {
        use tokio::net::unix::pipe;
        rustix::io::ioctl_fionbio(&input, true)?;
        rustix::io::ioctl_fionbio(&output, true)?;
        widen(&input);
        widen(&output);
        let reader = pipe::Receiver::from_owned_fd_unchecked(input)?;
        let writer = pipe::Sender::from_owned_fd_unchecked(output)?;
        Ok(Self::start(reader, writer, side))
    }

    /// Opens a stream; returns once the other end has taken it.
    ///
    /// # Errors
    /// [`PipeError`] says whether it was refused, and why.
    pub async fn open(&self, header: &[u8]) -> Result<UnixStream, PipeError> {
        let (shared, number) = (&self.shared, self.ask(header).await?);
        shared
            .connect(number)
            .map_err(|error| shared.give_up(number, &error))
    }

    /// Opens a stream whose bytes are written to and read from a socket; returns once the other end has taken it. Bytes of
    /// both directions are added to `tally`.
    ///
    /// # Errors
    /// As [`Pipe::open`].
    pub async fn open_onto(
        &self,
        header: &[u8],
        socket: impl Socket,
        tally: Arc<AtomicU64>,
    ) -> Result<(), PipeError> {
        let (shared, number) = (&self.shared, self.ask(header).await?);
        shared
            .run(number, socket, Some(tally))
            .map_err(|error| shared.give_up(number, &error))
    }

    /// Asks for a stream; its number, once the other end has taken it.
    async fn ask(&self, header: &[u8]) -> Result<u32, PipeError> {
        let shared = &self.shared;
        let number = shared.next.fetch_add(2, Ordering::Relaxed);
        let (taken, answer) = oneshot::channel();
        shared.insert(number, Entry::new(Some(taken)))?;
        let mut waiting = Waiting {
            shared,
            number: Some(number),
        };
        let sent = shared
            .urgent
            .send(frame::encode(Kind::Open, number, header));
        if sent.await.is_err() {
            return Err(PipeError::Closed);
        }
        let answer = tokio::time::timeout(OPEN_TIMEOUT, answer).await;
        let answer = answer.map_err(|_| PipeError::Timeout)?;
        // The other end has answered: the place is the stream's, or free.
        waiting.number = None;
        match answer {
            Ok(Ok(())) => Ok(number),
            Ok(Err(reason)) => Err(PipeError::Refused(reason)),
            Err(_) => Err(PipeError::Closed),
        }
    }

    /// Bytes that passed through the pipe so far, frames and all.
    #[must_use]
    pub fn carried(&self) -> (u64, u64) {
        (
            self.shared.read.load(Ordering::Relaxed),
            self.shared.written.load(Ordering::Relaxed),
        )
    }

    /// Whether nothing passes any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        *self.shared.closed.borrow()
    }

    /// Returns when nothing passes any more.
    pub async fn closed(&self) {
        let mut closed = self.shared.closed.subscribe();
        // The sender lives as long as `self`.
        let _ = closed.wait_for(|closed| *closed).await;
    }

    /// Closes the pipe once its streams have ended, or after `patience`. What is written to the pipe then ends, which
    /// the other end sees.
    pub async fn close(&self, patience: Duration) {
        let mut count = self.shared.count.subscribe();
        let _ = tokio::time::timeout(patience, count.wait_for(|count| *count == 0)).await;
        self.shared.close();
    }
}

/// Lets a pipe hold more, so that its ends wait for each other less often. Best effort: it may be no pipe, and an ordinary
/// user's pipes hold so much together and no more.
pub fn widen(end: impl AsFd) {
    let _ = rustix::pipe::fcntl_setpipe_size(end, PIPE_LEN);
}

/// The same socket for a thread that waits on it.
///
/// # Errors
/// As the system says.
pub fn blocking(stream: UnixStream) -> io::Result<std::os::unix::net::UnixStream> {
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

impl Requests {
    /// The next one; `None` when the pipe is closed.
    pub async fn next(&mut self) -> Option<Request> {
        self.0.recv().await
    }
}

impl Request {
    /// Takes the stream.
    ///
    /// # Errors
    /// [`PipeError`] when the pipe is closed, or no socket is left; the other end is notified.
    pub async fn accept(mut self) -> Result<UnixStream, PipeError> {
        self.is_answered = true;
        let (shared, number) = (&self.shared, self.number);
        let stream = shared
            .connect(number)
            .map_err(|error| shared.give_up(number, &error))?;
        let accepted = shared.urgent.send(frame::encode(Kind::Accept, number, &[]));
        accepted.await.map_err(|_| PipeError::Closed)?;
        Ok(stream)
    }

    /// Takes the stream; its bytes are written to and read from a socket. Those of both directions are added to `tally`.
    ///
    /// # Errors
    /// [`PipeError`] when the pipe is closed.
    pub async fn accept_onto(
        mut self,
        socket: impl Socket,
        tally: Arc<AtomicU64>,
    ) -> Result<(), PipeError> {
        self.is_answered = true;
        let (shared, number) = (&self.shared, self.number);
        shared
            .run(number, socket, Some(tally))
            .map_err(|error| shared.give_up(number, &error))?;
        let accepted = shared.urgent.send(frame::encode(Kind::Accept, number, &[]));
        accepted.await.map_err(|_| PipeError::Closed)
    }

    /// Opens a stream in another pipe and joins both, frame by frame, until they end. When it is not taken there, this
    /// one is refused in the same words. Bytes of both directions are added to `tally`.
    pub async fn join(mut self, far: &Pipe, header: &[u8], tally: &AtomicU64) {
        let far_number = match far.ask(header).await {
            Ok(number) => number,
            Err(error) => return self.refuse(&error.to_string()),
        };
        self.is_answered = true;
        let near = End {
            shared: self.shared.clone(),
            number: self.number,
        };
        let far = End {
            shared: far.shared.clone(),
            number: far_number,
        };
        let starts = (near.shared.begin(near.number), far.shared.begin(far.number));
        let (Ok(start), Ok(far_start)) = starts else {
            for end in [near, far] {
                end.shared
                    .reset(end.number, "the other node's end is closed");
            }
            return;
        };
        let accept = frame::encode(Kind::Accept, near.number, &[]);
        if near.shared.urgent.send(accept).await.is_err() {
            return far
                .shared
                .reset(far.number, "the other node's end is closed");
        }
        near.join(start, &far, far_start, tally).await;
    }

    /// Refuses the stream in words.
    pub fn refuse(mut self, reason: &str) {
        self.is_answered = true;
        self.shared.reset(self.number, reason);
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.is_answered {
            self.shared.reset(self.number, "no connection accepts it");
        }
    }
}

/// Gives the place of a stream back where the other end does not answer in time, or the caller is dropped before.
struct Waiting<'a> {
    shared: &'a Shared,
    number: Option<u32>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.shared
                .reset(number, "its caller does not wait any more");
        }
    }
}

impl Shared {
    fn is_own(&self, number: u32) -> bool {
        (number % 2 == 1) == (self.side == Side::Starter)
    }

    /// Adds a stream, unless its side has too many or the pipe is closed.
    fn insert(&self, number: u32, entry: Entry) -> Result<(), PipeError> {
        let is_own = self.is_own(number);
        let mut streams = self.streams.lock();
        if *self.closed.borrow() {
            return Err(PipeError::Closed);
        }
        let same_side = streams.keys().filter(|key| self.is_own(**key) == is_own);
        if same_side.count() >= STREAMS_MAX {
            return Err(PipeError::Refused(format!(
                "{STREAMS_MAX} streams are open already"
            )));
        }
        streams.insert(number, entry);
        self.count.send_replace(streams.len());
        Ok(())
    }

    /// Forgets a stream, which ends its tasks.
    fn remove(&self, number: u32) -> Option<Entry> {
        let mut streams = self.streams.lock();
        let entry = streams.remove(&number);
        self.count.send_replace(streams.len());
        entry
    }

    /// Forgets a stream and tells the other end.
    fn reset(&self, number: u32, reason: &str) {
        if self.remove(number).is_some() {
            // A queue that is full belongs to an end that reads nothing: it will see the pipe close.
            let _ = self
                .urgent
                .try_send(frame::encode(Kind::Reset, number, reason.as_bytes()));
        }
    }

    fn give_up(&self, number: u32, error: &io::Error) -> PipeError {
        self.reset(number, &error.to_string());
        PipeError::System(error.to_string())
    }

    /// Makes the pair of sockets and starts what moves bytes between it and the pipe.
    fn connect(self: &Arc<Self>, number: u32) -> io::Result<UnixStream> {
        let (theirs, ours) = UnixStream::pair()?;
        self.run(number, ours, None)?;
        Ok(theirs)
    }

    /// Starts what moves bytes between a socket and the pipe.
    fn run(
        self: &Arc<Self>,
        number: u32,
        socket: impl Socket,
        tally: Option<Arc<AtomicU64>>,
    ) -> io::Result<()> {
        let start = self.begin(number)?;
        let end = End {
            shared: self.clone(),
            number,
        };
        tokio::spawn(end.run(socket, start, tally));
        Ok(())
    }

    /// What the task of a stream needs, unless the stream is gone.
    fn begin(&self, number: u32) -> io::Result<Start> {
        let start = self.streams.lock().get_mut(&number).and_then(Entry::begin);
        start.ok_or(io::ErrorKind::ConnectionReset.into())
    }

    /// Ends everything.
    fn close(&self) {
        let streams = {
            let mut streams = self.streams.lock();
            self.closed.send_replace(true);
            std::mem::take(&mut *streams)
        };
        drop(streams);
        self.count.send_replace(0);
    }
}

/// Writes frames until the pipe is closed; those without data first.
async fn write_all<W: AsyncWrite + Unpin>(
    shared: Arc<Shared>,
    mut writer: W,
    mut urgent: mpsc::Receiver<Vec<u8>>,
    mut bulk: mpsc::Receiver<Vec<u8>>,
) {
    let mut closed = shared.closed.subscribe();
    loop {
        let frame = tokio::select! {
            biased;
            frame = urgent.recv() => frame,
            frame = bulk.recv() => frame,
            _ = closed.wait_for(|closed| *closed) => None,
        };
        let Some(frame) = frame else { break };
        let mut closing = shared.closed.subscribe();
        let hopeless = async {
            let _ = closing.wait_for(|closed| *closed).await;
            tokio::time::sleep(LAST_FRAMES).await;
        };
        let written = tokio::select! {
            written = async {
                writer.write_all(&frame).await?;
                writer.flush().await
            } => written.is_ok(),
            () = hopeless => false,
        };
        if !written {
            break;
        }
        shared
            .written
            .fetch_add(frame.len() as u64, Ordering::Relaxed);
    }
    shared.close();
    let _ = writer.shutdown().await;
}

/// Reads frames until the other end closes, or says what makes no sense.
async fn read_all<R: AsyncRead + Unpin>(
    shared: &Arc<Shared>,
    mut reader: R,
    requests: mpsc::Sender<Request>,
) -> Option<()> {
    loop {
        let mut bytes = [0; HEADER_LEN];
        reader.read_exact(&mut bytes).await.ok()?;
        let header = Header::decode(&bytes)?;
        let len = HEADER_LEN + header.len;
        let mut frame = Vec::with_capacity(len);
        frame.extend(bytes);
        while frame.len() < len {
            let rest = len - frame.len();
            let read = reader.read_buf(&mut (&mut frame).limit(rest)).await;
            read.ok().filter(|read| *read > 0)?;
        }
        shared.read.fetch_add(len as u64, Ordering::Relaxed);
        handle(shared, header, frame, &requests).await?;
    }
}

/// Does what one frame says; `None` ends the pipe.
async fn handle(
    shared: &Arc<Shared>,
    header: Header,
    frame: Vec<u8>,
    requests: &mpsc::Sender<Request>,
) -> Option<()> {
    let number = header.stream;
    let payload = &frame[HEADER_LEN..];
    match header.kind {
        Kind::Open => {
            if shared.is_own(number) || shared.streams.lock().contains_key(&number) {
                return None;
            }
            let refused = |error: PipeError| error.to_string();
            let added = shared.insert(number, Entry::new(None)).map_err(refused);
            let request = Request {
                header: payload.to_vec(),
                number,
                shared: shared.clone(),
                // Not before it has a place.
                is_answered: added.is_err(),
            };
            if let Err(reason) = added {
                let frame = frame::encode(Kind::Reset, number, reason.as_bytes());
                shared.urgent.send(frame).await.ok()?;
            } else {
                // There are as many places as streams; a receiver that is gone refuses by dropping it.
                let _ = requests.try_send(request);
            }
        }
        Kind::Accept => {
            let mut streams = shared.streams.lock();
            if let Some(entry) = streams.get_mut(&number) {
                entry.accepted()?;
            }
        }
        Kind::Data => {
            let mut streams = shared.streams.lock();
            // Without one, it was reset here while this was on its way.
            if let Some(entry) = streams.get_mut(&number) {
                entry.arrived(frame)?;
            }
        }
        Kind::Credit => {
            let more = u32::from_le_bytes(payload.try_into().ok()?);
            let streams = shared.streams.lock();
            if let Some(entry) = streams.get(&number) {
                entry.grant(more)?;
            }
        }
        Kind::End => {
            let mut streams = shared.streams.lock();
            if let Some(entry) = streams.get_mut(&number) {
                entry.ended()?;
            }
        }
        Kind::Reset => {
            if let Some(entry) = shared.remove(number) {
                entry.refused(&String::from_utf8_lossy(payload));
            }
        }
    }
    Some(())
}

/// Bytes that an end has taken before it grants so many more: half a window, so that credits are few.
const GRANT: u32 = WINDOW / 2;
