//! A wire that damages what it receives, and a socket that loses, repeats and reorders datagrams, for tests.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use crate::half::Handle;
use crate::receive::Receiver;
use crate::udp::Inbox;
use crate::udp::shared::{Carrier, Queued, Sent};
use crate::wire::{Interest, Wire};
use crate::{LaneError, Protection, ReceiveHalf, tcp};

/// What happens to the byte at an absolute position of the received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its lowest bit is flipped.
    Flip(u64),
    /// The connection ends before it.
    Cut(u64),
    /// It and all after it never arrive.
    Silence(u64),
}

/// A receiving end over TCP whose connection has a fault.
///
/// # Errors
/// As [`tcp::receive_half`].
pub fn receive_half(
    stream: TcpStream,
    protection: Protection,
    fault: Fault,
) -> Result<Box<dyn ReceiveHalf>, LaneError> {
    Ok(Box::new(Receiver::new(
        Faulty::new(tcp::prepare(stream)?, fault),
        protection,
    )?))
}

pub(crate) struct Faulty<W> {
    inner: W,
    fault: Fault,
    received: u64,
}

impl<W> Faulty<W> {
    pub(crate) fn new(inner: W, fault: Fault) -> Self {
        Self {
            inner,
            fault,
            received: 0,
        }
    }

    fn silent(&self) -> bool {
        matches!(self.fault, Fault::Silence(at) if self.received >= at)
    }
}

impl<W: Wire> Wire for Faulty<W> {
    fn receive(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut one = [0];
        let edge = match self.fault {
            Fault::Flip(at) | Fault::Cut(at) | Fault::Silence(at) => at,
        };
        if edge < self.received {
            return self.inner.receive(slices);
        }
        if edge > self.received {
            // Up to the edge, the first slice alone keeps the arithmetic simple.
            let Some(first) = slices.iter_mut().find(|slice| !slice.is_empty()) else {
                return Ok(0);
            };
            let room = first
                .len()
                .min(usize::try_from(edge - self.received).unwrap_or(usize::MAX));
            let count = self
                .inner
                .receive(&mut [IoSliceMut::new(&mut first[..room])])?;
            self.received += count as u64;
            return Ok(count);
        }
        match self.fault {
            Fault::Cut(_) => Ok(0),
            Fault::Silence(_) => Err(io::ErrorKind::WouldBlock.into()),
            Fault::Flip(_) => {
                let count = self.inner.receive(&mut [IoSliceMut::new(&mut one)])?;
                self.received += count as u64;
                if count == 1
                    && let Some(first) = slices.iter_mut().find(|slice| !slice.is_empty())
                {
                    first[0] = one[0] ^ 1;
                }
                Ok(count)
            }
        }
    }

    fn send(&mut self, slices: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
        self.inner.send(slices, more)
    }

    fn send_file(&mut self, file: &File, offset: u64, length: usize) -> io::Result<usize> {
        self.inner.send_file(file, offset, length)
    }

    fn sends_files(&self) -> bool {
        self.inner.sends_files()
    }

    fn wait(&mut self, interest: Interest, deadline: Instant) -> io::Result<()> {
        // Bytes that never arrive must not wake anyone.
        let interest = if self.silent() {
            Interest {
                read: 0,
                ..interest
            }
        } else {
            interest
        };
        self.inner.wait(interest, deadline)
    }

    fn handle(&self) -> io::Result<Arc<dyn Handle>> {
        self.inner.handle()
    }
}

/// What becomes of a datagram of data: by its number, and as it was sent. What is returned leaves in its place.
pub type Fate = Box<dyn FnMut(u64, Vec<u8>) -> Vec<Vec<u8>> + Send>;

/// A socket whose datagrams of data meet a fate; others leave as they are.
pub fn carrier(inner: Box<dyn Carrier>, fate: Fate) -> Box<dyn Carrier> {
    Box::new(Fated {
        inner,
        fate,
        count: 0,
    })
}

struct Fated {
    inner: Box<dyn Carrier>,
    fate: Fate,
    count: u64,
}

impl Carrier for Fated {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }

    fn send(&mut self, to: &SocketAddr, bytes: &[u8], segment: u16) -> io::Result<Sent> {
        for datagram in bytes.chunks(segment.max(1).into()) {
            let leaves = match datagram.first() {
                Some(1) => {
                    self.count += 1;
                    (self.fate)(self.count - 1, datagram.to_vec())
                }
                _ => vec![datagram.to_vec()],
            };
            for datagram in leaves {
                // A socket without room loses it.
                self.inner.send(to, &datagram, datagram.len() as u16)?;
            }
        }
        Ok(Sent::All)
    }

    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
        self.inner.receive(inbox)
    }

    fn queued(&self) -> Queued {
        self.inner.queued()
    }

    fn port(&self) -> u16 {
        self.inner.port()
    }
}
