//! The bytes below a stream: what a connection must be able to do, and patience around it.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::doing::{Doing, during};
use crate::half::Handle;
use crate::{LaneError, Observation, Stopper};

/// How long a peer may be silent before its stream is given up, unless set otherwise. Longer than
/// a TCP retransmission back-off of five steps, short against any transfer worth repairing.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What a wait is for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Interest {
    /// Bytes that are certain to come, so that fewer need not wake anyone; 0 when none are waited for.
    pub(crate) read: usize,
    pub(crate) write: bool,
}

/// An ordered, reliable pipe of bytes both ways. No call but `wait` waits;
/// [`io::ErrorKind::WouldBlock`] says that it would have to.
pub(crate) trait Wire: Send + 'static {
    /// Fills the slices in order, as far as bytes are there; `Ok(0)` when the peer has closed.
    fn receive(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// Sends a prefix of the slices. `more` promises that more follows at once.
    fn send(&mut self, slices: &[IoSlice<'_>], more: bool) -> io::Result<usize>;

    /// Sends a prefix of the file's bytes without bringing them here; `Ok(0)` at the end of the file.
    fn send_file(&mut self, _file: &File, _offset: u64, _length: usize) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Whether [`send_file`](Self::send_file) exists and saves something. To a peer on this host it does not: the receiving side copies a file's
    /// pages in any case, and each costs work. From cold pages it is 10 to 30 % slower than a buffer that the sender has just filled, and with four streams
    /// half as fast as sending from memory.
    fn sends_files(&self) -> bool {
        false
    }

    /// Returns once what `interest` names is possible, or the connection broke, or at `deadline`.
    fn wait(&mut self, interest: Interest, deadline: Instant) -> io::Result<()>;

    /// What other threads need of it.
    fn handle(&self) -> io::Result<Arc<dyn Handle>>;
}

/// A wire with counters, patience and a stopper.
pub(crate) struct Link<W> {
    pub(crate) wire: W,
    pub(crate) seen: Observation,
    pub(crate) patience: Duration,
    /// When a byte last moved, or began to be owed.
    pub(crate) moved: Instant,
    stopper: Stopper,
}

impl<W: Wire> Link<W> {
    pub(crate) fn new(wire: W) -> Result<Self, LaneError> {
        let handle = wire.handle().map_err(|source| LaneError::Socket {
            doing: "copying the stream's handle",
            source,
        })?;
        Ok(Self {
            wire,
            seen: Observation::default(),
            patience: PATIENCE,
            moved: Instant::now(),
            stopper: Stopper {
                stopped: Arc::new(AtomicBool::new(false)),
                handle,
            },
        })
    }

    pub(crate) fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stopper.stopped.load(Ordering::Acquire)
    }

    /// Receives what is there: `None` when nothing is. A closed peer is an error here.
    pub(crate) fn receive(
        &mut self,
        slices: &mut [IoSliceMut<'_>],
    ) -> Result<Option<usize>, LaneError> {
        match self.wire.receive(slices) {
            Ok(0) => Err(self.closed()),
            Ok(count) => {
                self.seen.bytes_in += count as u64;
                self.moved = Instant::now();
                Ok(Some(count))
            }
            Err(error) => self.harmless("receiving", error),
        }
    }

    /// Sends what fits now: `None` when nothing does.
    pub(crate) fn send_some(
        &mut self,
        slices: &[IoSlice<'_>],
        more: bool,
    ) -> Result<Option<usize>, LaneError> {
        match self.wire.send(slices, more) {
            Ok(count) => Ok(Some(self.sent(count))),
            Err(error) => self.harmless("sending", error),
        }
    }

    fn sent(&mut self, count: usize) -> usize {
        self.seen.bytes_out += count as u64;
        self.moved = Instant::now();
        count
    }

    /// Sends `head` and then `body`, waiting as long as the peer keeps taking bytes.
    pub(crate) fn send_all(
        &mut self,
        mut head: &[u8],
        mut body: &[u8],
        more: bool,
    ) -> Result<(), LaneError> {
        while !(head.is_empty() && body.is_empty()) {
            let sent = if head.is_empty() {
                self.send_some(&[IoSlice::new(body)], more)?
            } else if body.is_empty() {
                self.send_some(&[IoSlice::new(head)], more)?
            } else {
                self.send_some(&[IoSlice::new(head), IoSlice::new(body)], more)?
            };
            match sent {
                Some(count) => {
                    let of_head = count.min(head.len());
                    head = &head[of_head..];
                    body = &body[count - of_head..];
                }
                None => self.wait_to_send()?,
            }
        }
        Ok(())
    }

    /// Sends bytes of a file from its place; gives how many there were, short at the file's end.
    pub(crate) fn send_file(
        &mut self,
        file: &File,
        offset: u64,
        length: usize,
    ) -> Result<usize, LaneError> {
        let mut done = 0;
        while done < length {
            match self
                .wire
                .send_file(file, offset + done as u64, length - done)
            {
                Ok(0) => break,
                Ok(count) => done += self.sent(count),
                Err(error) => {
                    if self.harmless("sending from a file", error)?.is_none() {
                        self.wait_to_send()?;
                    }
                }
            }
        }
        Ok(done)
    }

    fn wait_to_send(&mut self) -> Result<(), LaneError> {
        self.moved = Instant::now();
        let until = self.moved + self.patience;
        self.wait(
            Interest {
                read: 0,
                write: true,
            },
            until,
        )?;
        if Instant::now() >= until {
            return Err(self.silent("it was to take bytes"));
        }
        Ok(())
    }

    /// Waits for the wire; time spent is counted as waiting for the peer.
    pub(crate) fn wait(&mut self, interest: Interest, deadline: Instant) -> Result<(), LaneError> {
        let begun = Instant::now();
        let doing = match interest.read {
            0 => Doing::Path,
            _ => Doing::Peer,
        };
        let result = during(doing, || self.wire.wait(interest, deadline));
        self.seen.waited += begun.elapsed();
        if self.stopped() {
            return Err(LaneError::Stopped);
        }
        result.map_err(|source| LaneError::Socket {
            doing: "waiting for the peer",
            source,
        })
    }

    pub(crate) fn silent(&self, doing: &'static str) -> LaneError {
        LaneError::Silent {
            seconds: self.patience.as_secs(),
            doing,
        }
    }

    fn closed(&self) -> LaneError {
        if self.stopped() {
            LaneError::Stopped
        } else {
            LaneError::Closed { outstanding: 0 }
        }
    }

    fn harmless(&self, doing: &'static str, source: io::Error) -> Result<Option<usize>, LaneError> {
        use io::ErrorKind as Kind;
        match source.kind() {
            Kind::WouldBlock | Kind::Interrupted => Ok(None),
            Kind::BrokenPipe
            | Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::UnexpectedEof => Err(self.closed()),
            _ if self.stopped() => Err(LaneError::Stopped),
            _ => Err(LaneError::Socket { doing, source }),
        }
    }
}
