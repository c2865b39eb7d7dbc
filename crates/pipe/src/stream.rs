//! One stream of a pipe: its account, and the task that moves its bytes to and from the local socket.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::frame::{self, DATA_MAX, Kind, WINDOW};
use crate::{GRANT, Shared};

/// What the pipe brings for a stream.
pub(crate) enum Inbound {
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

    /// The other end took the stream; `None` when nobody asked.
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

    /// Bytes came; `None` when they are more than were granted.
    pub fn arrived(&mut self, payload: Vec<u8>) -> Option<()> {
        if self.is_ended {
            return None;
        }
        self.window = self.window.checked_sub(payload.len() as u32)?;
        let _ = self.inbound.send(Inbound::Data(payload));
        Some(())
    }

    /// No more bytes come; `None` when that was said before.
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

/// Moves the bytes of one stream.
pub(crate) struct Runner {
    pub shared: Arc<Shared>,
    pub number: u32,
}

impl Runner {
    /// Until both directions have ended, the local socket breaks, or the entry is dropped.
    pub async fn run(self, socket: UnixStream, start: Start) {
        let Start {
            inbound,
            mut dropped,
            credit,
        } = start;
        let (reader, writer) = socket.into_split();
        let both =
            async { tokio::try_join!(self.send(reader, &credit), self.receive(writer, inbound)) };
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
    async fn send(&self, reader: OwnedReadHalf, credit: &Credit) -> io::Result<()> {
        let closed = |_| io::Error::from(io::ErrorKind::ConnectionReset);
        loop {
            let most = credit.available().await;
            // Nothing is allocated while nothing is there.
            reader.readable().await?;
            let mut payload = vec![0; most];
            match reader.try_read(&mut payload) {
                Ok(0) => {
                    let end = frame::encode(Kind::End, self.number, &[]);
                    return self.shared.bulk.send(end).await.map_err(closed);
                }
                Ok(read) => {
                    credit.spend(read);
                    let frame = frame::encode(Kind::Data, self.number, &payload[..read]);
                    self.shared.bulk.send(frame).await.map_err(closed)?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// From the pipe into the local socket.
    async fn receive(
        &self,
        mut writer: OwnedWriteHalf,
        mut inbound: mpsc::UnboundedReceiver<Inbound>,
    ) -> io::Result<()> {
        let mut taken = 0;
        loop {
            match inbound.recv().await {
                Some(Inbound::Data(payload)) => {
                    writer.write_all(&payload).await?;
                    taken += payload.len() as u32;
                    if taken >= GRANT {
                        self.grant(taken).await;
                        taken = 0;
                    }
                }
                // The pipe is closed, which ends this task in a moment.
                None => return Err(io::ErrorKind::ConnectionReset.into()),
                Some(Inbound::End) => {
                    // The user of the stream may have closed it already.
                    let _ = writer.shutdown().await;
                    return Ok(());
                }
            }
        }
    }

    async fn grant(&self, taken: u32) {
        if let Some(entry) = self.shared.streams.lock().get_mut(&self.number) {
            entry.window += taken;
        }
        let frame = frame::encode(Kind::Credit, self.number, &taken.to_le_bytes());
        // A closed pipe shows elsewhere.
        let _ = self.shared.urgent.send(frame).await;
    }
}
