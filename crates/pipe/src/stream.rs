//! One stream of a pipe: its account, and the task that moves its bytes to and from a socket, or another pipe.

use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::BufMut;
use parking_lot::Mutex;
use tokio::io::{Interest, Ready};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::frame::{self, DATA_MAX, HEADER_LEN, Kind, WINDOW};
use crate::{GRANT, Shared};

/// What the pipe brings for a stream.
pub(crate) enum Inbound {
    /// A frame with its header.
    Data(Vec<u8>),
    End,
}

/// Bytes that may be sent.
pub(crate) struct Credit {
    bytes: Mutex<u32>,
    more: Notify,
}

impl Default for Credit {
    fn default() -> Self {
        Self {
            bytes: Mutex::new(WINDOW),
            more: Notify::new(),
        }
    }
}

impl Credit {
    /// More may be sent; `None` when it is more than a window, which no end grants.
    fn grant(&self, more: u32) -> Option<()> {
        let mut bytes = self.bytes.lock();
        *bytes = bytes.checked_add(more).filter(|sum| *sum <= WINDOW)?;
        drop(bytes);
        self.more.notify_one();
        Some(())
    }

    /// How many bytes the next frame may have, once it is any.
    async fn available(&self) -> usize {
        loop {
            let bytes = *self.bytes.lock();
            if bytes > 0 {
                return (bytes as usize).min(DATA_MAX);
            }
            self.more.notified().await;
        }
    }

    fn spend(&self, sent: usize) {
        *self.bytes.lock() -= sent as u32;
    }
}

type Answer = oneshot::Sender<Result<(), String>>;

/// What the pipe knows of a stream. Dropping it ends the stream's task.
pub(crate) struct Entry {
    /// The opener waits for an answer.
    asked: Option<Answer>,
    inbound: mpsc::UnboundedSender<Inbound>,
    credit: Arc<Credit>,
    /// Bytes that the other end may still send.
    window: u32,
    /// The other end sends nothing more.
    is_ended: bool,
    /// Until the task begins.
    start: Option<Start>,
    _end: oneshot::Sender<()>,
}

/// What the task of a stream begins with.
pub(crate) struct Start {
    inbound: mpsc::UnboundedReceiver<Inbound>,
    dropped: oneshot::Receiver<()>,
    credit: Arc<Credit>,
}

impl Entry {
    /// A stream that this end asks for, which waits for the answer, or that the other end asked for.
    pub fn new(asked: Option<Answer>) -> Self {
        // Bounded by the window.
        let (inbound, received) = mpsc::unbounded_channel();
        let (_end, dropped) = oneshot::channel();
        let credit = Arc::new(Credit::default());
        Self {
            asked,
            inbound,
            credit: credit.clone(),
            window: WINDOW,
            is_ended: false,
            start: Some(Start {
                inbound: received,
                dropped,
                credit,
            }),
            _end,
        }
    }

    /// What the task needs, once.
    pub fn begin(&mut self) -> Option<Start> {
        self.start.take()
    }

    /// The other end took the stream; `None` when nothing was asked.
    pub fn accepted(&mut self) -> Option<()> {
        // An opener that waits no more resets it.
        let _ = self.asked.take()?.send(Ok(()));
        Some(())
    }

    /// The other end refused the stream, or broke it off.
    pub fn refused(mut self, reason: &str) {
        if let Some(asked) = self.asked.take() {
            let _ = asked.send(Err(reason.to_owned()));
        }
    }

    /// A frame of bytes arrived; `None` when they are more than were granted.
    pub fn arrived(&mut self, frame: Vec<u8>) -> Option<()> {
        if self.is_ended {
            return None;
        }
        let len = frame.len() - HEADER_LEN;
        self.window = self.window.checked_sub(len as u32)?;
        let _ = self.inbound.send(Inbound::Data(frame));
        Some(())
    }

    /// No more bytes follow; `None` when that was sent before.
    pub fn ended(&mut self) -> Option<()> {
        if self.is_ended {
            return None;
        }
        self.is_ended = true;
        let _ = self.inbound.send(Inbound::End);
        Some(())
    }

    /// The other end takes more; `None` when that makes no sense.
    pub fn grant(&self, more: u32) -> Option<()> {
        self.credit.grant(more)
    }
}

/// Sockets that streams are made of.
pub trait Socket: AsFd + Send + Sync + 'static {
    /// Waits until it can be read or written.
    fn ready(&self, interest: Interest) -> impl Future<Output = io::Result<Ready>> + Send;
    /// Reads what is there.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is; else as the system says.
    fn try_read<B: BufMut>(&self, buffer: &mut B) -> io::Result<usize>;
    /// Writes what there is room for.
    ///
    /// # Errors
    /// `WouldBlock` when there is none; else as the system says.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;
}

macro_rules! socket {
    ($stream:ty) => {
        impl Socket for $stream {
            async fn ready(&self, interest: Interest) -> io::Result<Ready> {
                self.ready(interest).await
            }

            fn try_read<B: BufMut>(&self, buffer: &mut B) -> io::Result<usize> {
                self.try_read_buf(buffer)
            }

            fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
                self.try_write(bytes)
            }
        }
    };
}

socket!(UnixStream);
socket!(TcpStream);

async fn write_all(socket: &impl Socket, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match socket.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                socket.ready(Interest::WRITABLE).await?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn closed() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

/// One stream at this end.
#[derive(Clone)]
pub(crate) struct End {
    pub shared: Arc<Shared>,
    pub number: u32,
}

impl End {
    /// Moves the bytes between the pipe and a socket until both directions have ended, the socket breaks, or the entry is
    /// dropped. Both directions are added to `tally`.
    pub async fn run(self, socket: impl Socket, start: Start, tally: Option<Arc<AtomicU64>>) {
        let Start {
            inbound,
            mut dropped,
            credit,
        } = start;
        let both = async {
            tokio::try_join!(
                self.send(&socket, &credit, tally.as_deref()),
                self.receive(&socket, inbound, tally.as_deref())
            )
        };
        let ended = tokio::select! {
            ended = both => ended,
            _ = &mut dropped => return,
        };
        match ended {
            Ok(_) => drop(self.shared.remove(self.number)),
            Err(error) => self.shared.reset(self.number, &error.to_string()),
        }
    }

    /// From the local socket into the pipe.
    async fn send(
        &self,
        socket: &impl Socket,
        credit: &Credit,
        tally: Option<&AtomicU64>,
    ) -> io::Result<()> {
        loop {
            let most = credit.available().await;
            // Nothing is allocated while nothing is there.
            socket.ready(Interest::READABLE).await?;
            let mut frame = Vec::with_capacity(HEADER_LEN + most);
            frame.extend([0; HEADER_LEN]);
            match socket.try_read(&mut (&mut frame).limit(most)) {
                Ok(0) => return self.end().await,
                Ok(read) => {
                    credit.spend(read);
                    count(tally, read);
                    frame::put_header(&mut frame, Kind::Data, self.number);
                    self.shared.bulk.send(frame).await.map_err(|_| closed())?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn end(&self) -> io::Result<()> {
        let end = frame::encode(Kind::End, self.number, &[]);
        self.shared.bulk.send(end).await.map_err(|_| closed())
    }

    /// From the pipe into the local socket.
    async fn receive(
        &self,
        socket: &impl Socket,
        mut inbound: mpsc::UnboundedReceiver<Inbound>,
        tally: Option<&AtomicU64>,
    ) -> io::Result<()> {
        let mut taken = 0;
        loop {
            match inbound.recv().await {
                Some(Inbound::Data(frame)) => {
                    let payload = &frame[HEADER_LEN..];
                    write_all(socket, payload).await?;
                    count(tally, payload.len());
                    self.took(&mut taken, payload.len()).await;
                }
                // The pipe is closed, which ends this task in a moment.
                None => return Err(closed()),
                Some(Inbound::End) => {
                    // The user of the stream may have closed it already.
                    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
                    return Ok(());
                }
            }
        }
    }

    /// Grants as much again once half a window has been taken.
    async fn took(&self, taken: &mut u32, more: usize) {
        *taken += more as u32;
        if *taken < GRANT {
            return;
        }
        let granted = std::mem::take(taken);
        if let Some(entry) = self.shared.streams.lock().get_mut(&self.number) {
            entry.window += granted;
        }
        let frame = frame::encode(Kind::Credit, self.number, &granted.to_le_bytes());
        // A closed pipe shows elsewhere.
        let _ = self.shared.urgent.send(frame).await;
    }

    /// Frames of this stream become frames of another one.
    async fn flow(
        &self,
        mut inbound: mpsc::UnboundedReceiver<Inbound>,
        to: &Self,
        credit: &Credit,
        tally: &AtomicU64,
    ) -> io::Result<()> {
        let mut taken = 0;
        loop {
            match inbound.recv().await {
                Some(Inbound::Data(mut frame)) => {
                    let len = frame.len() - HEADER_LEN;
                    let mut sent = 0;
                    while sent < len {
                        let most = credit.available().await;
                        let part = match (sent, most >= len) {
                            (0, true) => {
                                frame::put_header(&mut frame, Kind::Data, to.number);
                                std::mem::take(&mut frame)
                            }
                            _ => {
                                let rest = &frame[HEADER_LEN + sent..];
                                let rest = &rest[..rest.len().min(most)];
                                frame::encode(Kind::Data, to.number, rest)
                            }
                        };
                        let carried = part.len() - HEADER_LEN;
                        credit.spend(carried);
                        sent += carried;
                        to.shared.bulk.send(part).await.map_err(|_| closed())?;
                    }
                    count(Some(tally), len);
                    self.took(&mut taken, len).await;
                }
                None => return Err(closed()),
                Some(Inbound::End) => return to.end().await,
            }
        }
    }

    /// Joins two streams, of two pipes, until both directions have ended or either stream is gone.
    pub async fn join(&self, start: Start, far: &Self, far_start: Start, tally: &AtomicU64) {
        let (mut dropped, mut far_dropped) = (start.dropped, far_start.dropped);
        let both = async {
            tokio::try_join!(
                self.flow(start.inbound, far, &far_start.credit, tally),
                far.flow(far_start.inbound, self, &start.credit, tally)
            )
        };
        let is_whole = tokio::select! {
            ended = both => ended.is_ok(),
            _ = &mut dropped => false,
            _ = &mut far_dropped => false,
        };
        for end in [self, far] {
            match is_whole {
                true => drop(end.shared.remove(end.number)),
                false => end
                    .shared
                    .reset(end.number, "the other node's end is closed"),
            }
        }
    }
}

fn count(tally: Option<&AtomicU64>, bytes: usize) {
    if let Some(tally) = tally {
        tally.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
