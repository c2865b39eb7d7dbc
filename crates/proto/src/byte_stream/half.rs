//! The two ways of one stream.

use super::{Broken, WINDOW_FIRST};

/// Credit is announced when it grew by this part of the window: a reader of single bytes does not send a frame for each.
const CREDIT_PART: u64 = 4;

/// What may be sent on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sendable {
    /// So many bytes; 0: the reader has to read first.
    Bytes(u64),
    /// This end has ended it.
    Ended,
    /// The peer reads nothing more.
    Stopped,
    /// The stream is over.
    Reset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutState {
    Open,
    Ended,
    Stopped,
}

/// What is sent.
#[derive(Debug)]
pub(super) struct Outgoing {
    state: OutState,
    sent: u64,
    allowed: u64,
}

impl Outgoing {
    pub fn new() -> Self {
        Self {
            state: OutState::Open,
            sent: 0,
            allowed: WINDOW_FIRST,
        }
    }

    pub fn sendable(&self) -> Sendable {
        match self.state {
            OutState::Open => Sendable::Bytes(self.allowed - self.sent),
            OutState::Ended => Sendable::Ended,
            OutState::Stopped => Sendable::Stopped,
        }
    }

    /// Position of the first of these bytes; `None` when they may not be sent.
    pub fn send(&mut self, length: u64) -> Option<u64> {
        let is_allowed = matches!(self.sendable(), Sendable::Bytes(most) if length <= most);
        let offset = self.sent;
        is_allowed.then(|| self.sent += length)?;
        Some(offset)
    }

    /// Length of the whole; `None` when it was ended, or cannot be any more.
    pub fn end(&mut self) -> Option<u64> {
        let is_open = self.state == OutState::Open;
        is_open.then(|| self.state = OutState::Ended)?;
        Some(self.sent)
    }

    /// Whether more may be sent than before.
    pub fn allow(&mut self, position: u64) -> bool {
        let more = position > self.allowed;
        self.allowed = self.allowed.max(position);
        more && self.state == OutState::Open
    }

    pub fn stop(&mut self) {
        if self.state == OutState::Open {
            self.state = OutState::Stopped;
        }
    }

    pub fn is_over(&self) -> bool {
        self.state != OutState::Open
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InState {
    Open,
    Ended,
    /// No program reads it.
    Abandoned,
}

/// What is received.
#[derive(Debug)]
pub(super) struct Incoming {
    state: InState,
    received: u64,
    read: u64,
    /// The peer may send up to here.
    granted: u64,
    window: u64,
    /// The peer has said that it used up its credit, since the window grew last.
    limited: bool,
}

impl Incoming {
    pub fn new() -> Self {
        Self {
            state: InState::Open,
            received: 0,
            read: 0,
            granted: WINDOW_FIRST,
            window: WINDOW_FIRST,
            limited: false,
        }
    }

    /// Takes bytes; `false`: no program reads them.
    pub fn data(
        &mut self,
        stream: u32,
        offset: u64,
        length: u64,
        uses_up: bool,
    ) -> Result<bool, Broken> {
        if self.state == InState::Ended {
            return Err(Broken::AfterEnd { stream });
        }
        if length == 0 {
            // To a program that reads it would be the end.
            return Err(Broken::Empty { stream });
        }
        if offset != self.received {
            let expected = self.received;
            return Err(Broken::Offset {
                stream,
                offset,
                expected,
            });
        }
        if length > self.granted - self.received {
            let credit = self.granted;
            return Err(Broken::Credit { stream, credit });
        }
        self.received += length;
        self.limited |= uses_up;
        Ok(self.state == InState::Open)
    }

    /// Takes the end; `false`: no program reads it.
    pub fn end(&mut self, stream: u32, length: u64) -> Result<bool, Broken> {
        if self.state == InState::Ended {
            return Err(Broken::AfterEnd { stream });
        }
        if length != self.received {
            let expected = self.received;
            return Err(Broken::Offset {
                stream,
                offset: length,
                expected,
            });
        }
        let is_read = self.state == InState::Open;
        self.state = InState::Ended;
        Ok(is_read)
    }

    /// No program reads any more; whether the peer has to hear it.
    pub fn abandon(&mut self) -> bool {
        let is_open = self.state == InState::Open;
        if is_open {
            self.state = InState::Abandoned;
        }
        is_open
    }

    pub fn is_over(&self) -> bool {
        self.state != InState::Open
    }

    /// The program has read bytes: the position up to which the peer may send, when it has to hear it.
    pub fn consume(
        &mut self,
        bytes: u64,
        drained: bool,
        window_max: u64,
        budget: &mut u64,
    ) -> Option<u64> {
        self.read = self.read.saturating_add(bytes).min(self.received);
        if self.state != InState::Open {
            return None;
        }
        let growth = self.window.min(window_max.saturating_sub(self.window));
        if drained && self.limited && growth > 0 && growth <= *budget {
            *budget -= growth;
            self.window += growth;
            self.limited = false;
        }
        let position = self.read + self.window;
        if position < self.granted + self.window / CREDIT_PART {
            return None;
        }
        self.granted = position;
        Some(position)
    }

    /// What the window has taken of the budget.
    pub fn growth(&self) -> u64 {
        self.window - WINDOW_FIRST
    }
}
