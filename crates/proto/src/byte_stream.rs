//! Byte streams over one message socket: numbers, credit, half close.
//!
//! A **byte stream** is what a TCP connection is to a program: bytes in order, both ways, each way ended by itself. Many of
//! them share one message socket, which delivers each message once and in order over all rails; so a stream needs
//! neither acknowledgements nor repeats of its own, and what is left to decide is:
//!
//! ```text
//!   opener                                             acceptor
//!   OPEN  number, greeting ───────────────────────────▶ may be refused: RESET
//!   DATA  offset, bytes, up to the credit ────────────▶ kept until the program reads them
//!   DATA  wait ◀─────────────── CREDIT up to a position    when a quarter of the window was read
//!   END   length ─────────────────────────────────────▶ the program reads the end; the other way goes on
//!         writing fails ◀───────────────────────── STOP    no program reads any more
//!   RESET code, text ─────────────────────────────────▶ both ways are over, at once
//! ```
//!
//! * Numbers of the connecting end are even, those of the listening end odd; each is used once, in order.
//! * A slow reader slows its own writer and no other: what is not read is bounded by the stream's **window**, so that
//!   the thread that receives messages never waits for a program.
//! * A window begins at [`WINDOW_FIRST`]. It doubles when the sender has used up its credit and the reader has nothing
//!   left to read: then the path is longer than the window, or several rails are waiting for bytes. All that is beyond the first windows of a socket is one budget.
//!
//! Left out on purpose: bytes, sockets, threads, clocks; the `message` crate has them.

use std::collections::BTreeMap;

pub mod frame;
mod half;
#[cfg(test)]
mod tests;

use frame::{Header, Kind};
use half::{Incoming, Outgoing};

pub use half::Sendable;

/// Bytes of a stream that may be on their way or unread, each way, until its window grows: many streams at once take little memory.
pub const WINDOW_FIRST: u64 = 64 << 10;

/// Bytes by which the windows of all streams of a socket may grow together.
pub const WINDOW_BUDGET: u64 = 64 << 20;

/// Streams of a socket that may be open at once, of both ends together: with their first windows as much as the budget.
pub const STREAMS_MAX: usize = 1024;

/// A stream that the acceptor has no space for.
pub const CODE_TOO_MANY: u64 = 1;

/// The program gave the stream up.
pub const CODE_GIVEN_UP: u64 = 2;

/// Codes from here on mean what the programs of both ends agree on.
pub const CODE_PROGRAM: u64 = 256;

/// Which end of the message socket this is: it decides the numbers of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It connected.
    Connecting,
    /// It accepted.
    Listening,
}

/// What a frame of the peer means to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A new stream, with the greeting of the frame.
    Opened(u32),
    /// There is no space for that stream: this frame says so.
    Refused(Header),
    /// Bytes to be read.
    Data(u32),
    /// All bytes were received.
    Ended(u32),
    /// More may be sent.
    Credit(u32),
    /// The peer reads nothing more.
    Stopped(u32),
    /// The stream is over; code and text are the frame's.
    Reset(u32),
    /// It is late: the stream is over here.
    Nothing,
}

/// Why a frame cannot be right. The socket is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// A stream out of order, or of the other end.
    #[error("byte stream {stream} is opened out of order")]
    Number {
        /// Its number.
        stream: u32,
    },
    /// A frame of a stream that was never opened.
    #[error("byte stream {stream} was never opened")]
    Unopened {
        /// Its number.
        stream: u32,
    },
    /// Bytes that do not follow those before.
    #[error("byte stream {stream} goes on at {offset} instead of {expected}")]
    Offset {
        /// Its number.
        stream: u32,
        /// Where the bytes are said to belong.
        offset: u64,
        /// Where they have to.
        expected: u64,
    },
    /// More bytes than allowed.
    #[error("byte stream {stream} goes beyond its credit of {credit} bytes")]
    Credit {
        /// Its number.
        stream: u32,
        /// Position up to which it may go.
        credit: u64,
    },
    /// A frame of data without a byte.
    #[error("byte stream {stream} has data without bytes")]
    Empty {
        /// Its number.
        stream: u32,
    },
    /// Something after the end.
    #[error("byte stream {stream} goes on after its end")]
    AfterEnd {
        /// Its number.
        stream: u32,
    },
}

#[derive(Debug)]
struct Stream {
    out: Outgoing,
    incoming: Incoming,
    /// No program holds it any more.
    released: bool,
}

/// All byte streams of one message socket. Memory is O(open streams), bytes apart.
#[derive(Debug)]
pub struct Streams {
    /// Number of the next stream that this end opens, and that the peer does.
    own_next: u64,
    peer_next: u64,
    streams: BTreeMap<u32, Stream>,
    window_max: u64,
    /// By how much windows may still grow.
    budget: u64,
}

impl Streams {
    /// No stream yet. A window of one grows to `window_max` at most.
    #[must_use]
    pub fn new(side: Side, window_max: u64) -> Self {
        let (own_next, peer_next) = match side {
            Side::Connecting => (0, 1),
            Side::Listening => (1, 0),
        };
        Self {
            own_next,
            peer_next,
            streams: BTreeMap::new(),
            window_max: window_max.max(WINDOW_FIRST),
            budget: WINDOW_BUDGET,
        }
    }

    /// Streams that are open, or of which something is still to be read.
    #[must_use]
    pub fn count(&self) -> usize {
        self.streams.len()
    }

    /// Opens a stream; `None` when too many are open, or all numbers are used.
    pub fn open(&mut self) -> Option<Header> {
        if self.streams.len() >= STREAMS_MAX {
            return None;
        }
        let number = u32::try_from(self.own_next).ok()?;
        self.own_next += 2;
        self.insert(number);
        Some(Header::new(Kind::Open, number, 0))
    }

    fn insert(&mut self, number: u32) {
        let stream = Stream {
            out: Outgoing::new(),
            incoming: Incoming::new(),
            released: false,
        };
        self.streams.insert(number, stream);
    }

    /// How many bytes may be sent now.
    #[must_use]
    pub fn sendable(&self, stream: u32) -> Sendable {
        match self.streams.get(&stream) {
            Some(known) => known.out.sendable(),
            None => Sendable::Reset,
        }
    }

    /// The frame for so many bytes, which [`sendable`](Self::sendable) allows.
    ///
    /// # Panics
    /// When it does not.
    pub fn send(&mut self, stream: u32, length: u64) -> Header {
        let known = self.streams.get_mut(&stream);
        let sent = known.and_then(|known| {
            let offset = known.out.send(length)?;
            Some((offset, known.out.sendable() == Sendable::Bytes(0)))
        });
        let (offset, uses_up) = sent.expect("more than may be sent");
        Header {
            uses_up,
            ..Header::new(Kind::Data, stream, offset)
        }
    }

    /// Ends this way of a stream; `None` when it is ended, or over.
    pub fn end(&mut self, stream: u32) -> Option<Header> {
        let length = self.streams.get_mut(&stream)?.out.end()?;
        self.forget_if_over(stream);
        Some(Header::new(Kind::End, stream, length))
    }

    /// Gives a stream up, both ways; `None` when it is over.
    pub fn reset(&mut self, stream: u32, code: u64) -> Option<Header> {
        let is_over = self.streams.get(&stream)?.is_over();
        self.forget(stream);
        (!is_over).then(|| Header::new(Kind::Reset, stream, code))
    }

    /// No program holds the stream any more: frames that say so, in the order to be sent.
    pub fn release(&mut self, stream: u32) -> [Option<Header>; 2] {
        let Some(known) = self.streams.get_mut(&stream) else {
            return [None; 2];
        };
        known.released = true;
        let end = known.out.end();
        let stop = known.incoming.abandon();
        self.forget_if_over(stream);
        [
            end.map(|length| Header::new(Kind::End, stream, length)),
            stop.then(|| Header::new(Kind::Stop, stream, 0)),
        ]
    }

    /// The program has read so many bytes; with `drained` nothing is left to read. The frame with more credit, where
    /// that is due.
    pub fn consume(&mut self, stream: u32, bytes: u64, drained: bool) -> Option<Header> {
        let known = self.streams.get_mut(&stream)?;
        let most = self.window_max;
        let credit = known
            .incoming
            .consume(bytes, drained, most, &mut self.budget)?;
        Some(Header::new(Kind::Credit, stream, credit))
    }

    /// Takes a frame of the peer that has `length` bytes of payload.
    ///
    /// # Errors
    /// [`Broken`]: nothing that the peer sends can be trusted any more.
    pub fn handle(&mut self, header: Header, length: u64) -> Result<Event, Broken> {
        let stream = header.stream;
        if header.kind == Kind::Open {
            return self.opened(stream);
        }
        let Some(known) = self.streams.get_mut(&stream) else {
            return match self.was_opened(stream) {
                true => Ok(Event::Nothing),
                false => Err(Broken::Unopened { stream }),
            };
        };
        let event = match header.kind {
            Kind::Open => Event::Nothing,
            Kind::Data => match known
                .incoming
                .data(stream, header.value, length, header.uses_up)?
            {
                true => Event::Data(stream),
                false => Event::Nothing,
            },
            Kind::End => match known.incoming.end(stream, header.value)? {
                true => Event::Ended(stream),
                false => Event::Nothing,
            },
            Kind::Credit => match known.out.allow(header.value) {
                true => Event::Credit(stream),
                false => Event::Nothing,
            },
            Kind::Stop => {
                known.out.stop();
                Event::Stopped(stream)
            }
            Kind::Reset => {
                self.forget(stream);
                return Ok(Event::Reset(stream));
            }
        };
        self.forget_if_over(stream);
        Ok(event)
    }

    fn opened(&mut self, stream: u32) -> Result<Event, Broken> {
        if u64::from(stream) != self.peer_next {
            return Err(Broken::Number { stream });
        }
        self.peer_next += 2;
        if self.streams.len() >= STREAMS_MAX {
            let refusal = Header::new(Kind::Reset, stream, CODE_TOO_MANY);
            return Ok(Event::Refused(refusal));
        }
        self.insert(stream);
        Ok(Event::Opened(stream))
    }

    /// Whether a stream of this number was there before.
    fn was_opened(&self, stream: u32) -> bool {
        let number = u64::from(stream);
        let next = match number % 2 == self.own_next % 2 {
            true => self.own_next,
            false => self.peer_next,
        };
        number < next
    }

    fn forget_if_over(&mut self, stream: u32) {
        let is_over = |known: &Stream| known.released && known.is_over();
        if self.streams.get(&stream).is_some_and(is_over) {
            self.forget(stream);
        }
    }

    fn forget(&mut self, stream: u32) {
        if let Some(known) = self.streams.remove(&stream) {
            self.budget += known.incoming.growth();
        }
    }
}

impl Stream {
    /// Nothing more will be sent or received.
    fn is_over(&self) -> bool {
        self.out.is_over() && self.incoming.is_over()
    }
}
