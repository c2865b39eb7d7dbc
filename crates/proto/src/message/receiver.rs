//! The receiving side: what arrived, what may be handed out, what is reported to the peer.

use std::collections::VecDeque;

use ropewalk_model::{Range, RangeSet};

use super::frame::{DISCARD, ENTRIES_MAX, Entry, FRAGMENT_MAX, Header, Kind, WHOLE, fragments};
use super::{FRAGMENT_MIN, MESSAGE_COST, MESSAGE_MAX, RAILS_MAX, RailId};

/// Credit is announced when it grew by this part of the window.
const CREDIT_PART: u64 = 4;

/// Longest message that only measures and may be longer than the window: bounds the status vector.
const DISCARD_MAX: u64 = 1 << 20;

/// What to do with a fragment that begins to arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landing {
    /// Its bytes belong here.
    Place {
        /// Bytes of the message.
        range: Range,
        /// Another link was bringing the same fragment: from now on this one alone may write it.
        taken_over: bool,
    },
    /// Its bytes were received before, or belong to a message that is over or only measures.
    Nowhere,
}

/// How a frame ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Something that belongs to the message is still missing.
    Partial,
    /// The message is whole now.
    Whole,
    /// It counts for nothing.
    Nothing,
}

/// The message that is to be handed out next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// Nothing of it was received.
    Unknown,
    /// Some of it was received.
    Partial {
        /// Number of the message.
        message: u64,
        /// Bytes of the message.
        length: u64,
    },
    /// All of it was received.
    Whole {
        /// Number of the message.
        message: u64,
        /// Bytes of the message.
        length: u64,
    },
    /// The peer sends nothing more.
    End,
}

/// Why a frame cannot be right. Its link is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// It begins beyond the credit.
    #[error("message {message} goes beyond the credit of {credit} bytes")]
    Credit {
        /// Number of the message.
        message: u64,
        /// Credit given.
        credit: u64,
    },
    /// The message is longer than any may be.
    #[error("message {message} has {length} bytes, more than the {MESSAGE_MAX} a message may have")]
    TooLong {
        /// Number of the message.
        message: u64,
        /// Its length.
        length: u64,
    },
    /// More was received than all that begins within the credit.
    #[error("message {message} is more than the credit of {credit} bytes allows to be kept")]
    Window {
        /// Number of the message.
        message: u64,
        /// Credit given.
        credit: u64,
    },
    /// The message is cut into fragments that are too short.
    #[error(
        "message {message} is cut into fragments of {fragment_len} bytes, less than {FRAGMENT_MIN}"
    )]
    TooFine {
        /// Number of the message.
        message: u64,
        /// Bytes of its fragments.
        fragment_len: u32,
    },
    /// Fragments of one message disagree.
    #[error("fragments of message {0} disagree about its length")]
    Disagree(u64),
}

/// An acknowledgement to be sent on a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// Frames received over the link, modulo 2^32.
    pub frames: u32,
    /// Fragments that arrived.
    pub entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unknown,
    Bytes,
    Discard,
    Cancelled,
    End,
}

#[derive(Debug)]
struct Incoming {
    state: State,
    length: u64,
    fragment_len: u32,
    arrived: RangeSet,
    /// Fragments whose bytes are on their way into memory, and the link that may write them.
    landing: Vec<(u32, u64)>,
    /// Bytes of fragments that arrived or are landing.
    held: u64,
    whole: bool,
}

impl Incoming {
    fn unknown() -> Self {
        Self {
            state: State::Unknown,
            length: 0,
            fragment_len: 1,
            arrived: RangeSet::new(),
            landing: Vec::new(),
            held: 0,
            whole: false,
        }
    }
}

#[derive(Debug, Default)]
struct Pending {
    /// Link that the counts are of.
    link: u64,
    frames: u32,
    frames_told: u32,
    /// A frame brought nothing that could be told: its count alone gives the fragment back to the sender.
    in_vain: bool,
    entries: Vec<Entry>,
}

/// What was received of the peer's messages. Memory is O(runs + what lands at this moment), messages apart.
///
/// Links are distinguished by numbers that are never used again, since a late copy of a failed link may
/// still be on its way into memory when the rail has a new one.
#[derive(Debug)]
pub struct Receiver {
    /// Number of the next message to hand out, that of `incoming[0]`.
    next: u64,
    incoming: VecDeque<Incoming>,
    /// Messages below are whole.
    done_below: u64,
    done_told: u64,
    /// Bytes and costs of messages handed out.
    base: u64,
    /// Bytes of the message that somebody is receiving into memory of his own.
    claimed: u64,
    /// Sum of what the messages hold: at most the credit from `base` on, and the rest of the fragment that crosses it.
    held: u64,
    window: u64,
    credit_told: u64,
    pending: Vec<Pending>,
}

impl Receiver {
    /// A receiver over `rails` rails that keeps at most `window` bytes that the application has not asked for, and the rest of a fragment
    /// that begins within them.
    #[must_use]
    pub fn new(rails: usize, window: u64) -> Self {
        Self {
            next: 0,
            incoming: VecDeque::new(),
            done_below: 0,
            done_told: 0,
            base: 0,
            claimed: 0,
            held: 0,
            window,
            credit_told: window,
            pending: (0..rails).map(|_| Pending::default()).collect(),
        }
    }

    /// Position up to which the peer may send.
    #[must_use]
    pub fn credit(&self) -> u64 {
        self.base.saturating_add(self.ahead())
    }

    /// Bytes and costs that may come from `base` on: a first message that only measures needs no room, and nobody claims it.
    fn ahead(&self) -> u64 {
        let measures = |m: &&Incoming| m.state == State::Discard;
        let first = self.incoming.front().filter(measures);
        let discarded = first.map_or(0, |m| m.length.min(DISCARD_MAX));
        self.room().saturating_add(discarded)
    }

    /// Bytes and costs of messages that may be received from number `base` on and are kept.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.claimed.saturating_add(self.window)
    }

    /// The rail has a fresh link with this number. What the old one owed in acknowledgements is kept.
    pub fn link_up(&mut self, rail: RailId, link: u64) {
        (self.done_told, self.credit_told) = (0, 0);
        if let Some(pending) = self.pending.get_mut(rail) {
            pending.link = link;
            (pending.frames, pending.frames_told) = (0, 0);
            pending.in_vain = false;
        }
    }

    /// A fragment begins to arrive on a link.
    ///
    /// # Errors
    /// [`Broken`] when it cannot be part of what the peer may send.
    pub fn begin(&mut self, link: u64, header: &Header) -> Result<Landing, Broken> {
        let number = header.message;
        if number < self.next {
            return Ok(Landing::Nowhere);
        }
        let length = header.message_len;
        if length > MESSAGE_MAX {
            return Err(Broken::TooLong {
                message: number,
                length,
            });
        }
        let many = fragments(length, header.fragment_len) > RAILS_MAX as u64;
        if many && header.fragment_len < FRAGMENT_MIN {
            return Err(Broken::TooFine {
                message: number,
                fragment_len: header.fragment_len,
            });
        }
        let at = self.slot(number, header.range().start)?;
        let (held, most) = (self.held, self.room().saturating_add(FRAGMENT_MAX.into()));
        let credit = self.credit();
        let m = &mut self.incoming[at];
        match m.state {
            State::Unknown => {
                m.state = if header.flags & DISCARD == 0 {
                    State::Bytes
                } else {
                    State::Discard
                };
                m.length = length;
                m.fragment_len = header.fragment_len;
            }
            State::Bytes | State::Discard => {
                if m.length != length || m.fragment_len != header.fragment_len {
                    return Err(Broken::Disagree(number));
                }
            }
            State::Cancelled => return Ok(Landing::Nowhere),
            State::End => return Err(Broken::Disagree(number)),
        }
        if m.state == State::Discard || m.arrived.contains(u64::from(header.fragment)) {
            return Ok(Landing::Nowhere);
        }
        let bytes = header.range().len();
        let before = m.landing.len();
        m.landing
            .retain(|&(fragment, _)| fragment != header.fragment);
        let taken_over = m.landing.len() < before;
        if !taken_over {
            if held.saturating_add(bytes) > most {
                return Err(Broken::Window {
                    message: number,
                    credit,
                });
            }
            m.held += bytes;
            self.held += bytes;
        }
        m.landing.push((header.fragment, link));
        Ok(Landing::Place {
            range: header.range(),
            taken_over,
        })
    }

    /// The place of a message, of which bytes from `start` on have come.
    fn slot(&mut self, number: u64, start: u64) -> Result<usize, Broken> {
        let (ahead, room) = (number - self.next, self.ahead());
        // Lengths that are not known yet count as nothing: the bound is on the number of messages then.
        let known = self
            .incoming
            .iter()
            .take(usize::try_from(ahead).unwrap_or(usize::MAX));
        let before = known.fold(0_u64, |sum, m| sum.saturating_add(m.length));
        let costs = ahead.saturating_add(1).saturating_mul(MESSAGE_COST);
        if costs.saturating_add(before).saturating_add(start) > room {
            return Err(Broken::Credit {
                message: number,
                credit: self.credit(),
            });
        }
        let at = ahead as usize;
        while self.incoming.len() <= at {
            self.incoming.push_back(Incoming::unknown());
        }
        Ok(at)
    }

    /// A DATA frame has ended; `good` unless its bytes were taken back. Bytes of a frame that failed its
    /// checksum end the link instead.
    pub fn data(&mut self, rail: RailId, link: u64, header: &Header, good: bool) -> Arrival {
        self.count(rail, link);
        let report = |receiver: &mut Self| receiver.report(rail, header.message, header.fragment);
        if header.message < self.next {
            report(self);
            return Arrival::Nothing;
        }
        let at = usize::try_from(header.message - self.next).unwrap_or(usize::MAX);
        let Some(m) = self.incoming.get_mut(at) else {
            self.in_vain(rail, link);
            return Arrival::Nothing;
        };
        let owned = m
            .landing
            .iter()
            .any(|&(fragment, by)| (fragment, by) == (header.fragment, link));
        m.landing
            .retain(|&(fragment, by)| (fragment, by) != (header.fragment, link));
        let number = u64::from(header.fragment);
        let fresh = match m.state {
            State::Bytes => owned && good,
            State::Discard => good,
            State::Unknown | State::Cancelled | State::End => false,
        } && !m.arrived.contains(number);
        if fresh {
            m.arrived.insert(Range::new(number, number + 1));
            m.whole = m.arrived.len_bytes() == fragments(m.length, m.fragment_len);
            if m.whole {
                // Entries of copies that ended in vain.
                m.landing = Vec::new();
            }
        } else if owned {
            m.held -= header.range().len();
            self.held -= header.range().len();
        }
        let whole = m.whole;
        if m.arrived.contains(number) {
            report(self);
        } else {
            self.in_vain(rail, link);
        }
        match (fresh, whole) {
            (false, _) => Arrival::Nothing,
            (true, false) => Arrival::Partial,
            (true, true) => {
                self.advance();
                Arrival::Whole
            }
        }
    }

    /// A CANCEL or END frame arrived. A message that was whole before stays as it is, and is [`Arrival::Nothing`].
    ///
    /// # Errors
    /// [`Broken`] when it names a message that may not be cancelled or ended.
    pub fn whole(&mut self, rail: RailId, link: u64, header: &Header) -> Result<Arrival, Broken> {
        self.count(rail, link);
        self.report(rail, header.message, WHOLE);
        if header.message < self.next {
            return Ok(Arrival::Nothing);
        }
        if header.message_len > MESSAGE_MAX {
            return Err(Broken::TooLong {
                message: header.message,
                length: header.message_len,
            });
        }
        let end = header.kind == Kind::End;
        let at = self.slot(header.message, 0)?;
        let m = &mut self.incoming[at];
        if m.whole {
            return Ok(Arrival::Nothing);
        }
        if m.state != State::Unknown && (end || m.length != header.message_len) {
            return Err(Broken::Disagree(header.message));
        }
        m.state = if end { State::End } else { State::Cancelled };
        m.length = header.message_len;
        m.whole = true;
        m.landing.clear();
        self.held -= std::mem::take(&mut m.held);
        self.advance();
        Ok(Arrival::Whole)
    }

    /// A frame of the link brought nothing that could be told.
    fn in_vain(&mut self, rail: RailId, link: u64) {
        if let Some(pending) = self.pending.get_mut(rail) {
            pending.in_vain |= pending.link == link;
        }
    }

    fn count(&mut self, rail: RailId, link: u64) {
        if let Some(pending) = self.pending.get_mut(rail)
            && pending.link == link
        {
            pending.frames = pending.frames.wrapping_add(1);
        }
    }

    fn report(&mut self, rail: RailId, message: u64, fragment: u32) {
        let Some(pending) = self.pending.get_mut(rail) else {
            return;
        };
        let is_it = |entry: &Entry| (entry.message, entry.first) == (message, WHOLE);
        if fragment == WHOLE && pending.entries.iter().any(is_it) {
            return;
        }
        match pending.entries.last_mut() {
            Some(last)
                if last.message == message
                    && fragment != WHOLE
                    && last.first.checked_add(last.count) == Some(fragment) =>
            {
                last.count += 1;
            }
            _ => pending.entries.push(Entry {
                message,
                first: fragment,
                count: 1,
            }),
        }
    }

    /// Moves over what is whole, and over what nobody waits for.
    fn advance(&mut self) {
        while let Some(m) = self.incoming.get((self.done_below - self.next) as usize)
            && m.whole
        {
            self.done_below += 1;
        }
        while let Some(m) = self.incoming.front()
            && m.whole
            && matches!(m.state, State::Discard | State::Cancelled)
        {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some(m) = self.incoming.pop_front() {
            self.next += 1;
            self.held -= m.held;
            self.base = self.base.saturating_add(MESSAGE_COST + m.length);
            self.claimed = 0;
            self.done_below = self.done_below.max(self.next);
        }
    }

    /// The message to hand out next.
    #[must_use]
    pub fn front(&self) -> Front {
        let message = self.next;
        match self.incoming.front() {
            Some(m) if m.state == State::End => Front::End,
            Some(m) if m.whole => Front::Whole {
                message,
                length: m.length,
            },
            Some(m) if m.state == State::Bytes => Front::Partial {
                message,
                length: m.length,
            },
            _ => Front::Unknown,
        }
    }

    /// Whether this message is the next to hand out.
    #[must_use]
    pub fn is_front(&self, message: u64) -> bool {
        self.next == message
    }

    /// Fragments of the first message that are in its memory, as ranges of its bytes.
    #[must_use]
    pub fn front_bytes(&self) -> RangeSet {
        let Some(m) = self.incoming.front() else {
            return RangeSet::new();
        };
        let at = |fragment: u64| (fragment * u64::from(m.fragment_len)).min(m.length);
        RangeSet::from_ranges(
            m.arrived
                .iter()
                .map(|run| Range::new(at(run.start), at(run.end))),
        )
    }

    /// A caller receives the first message into its own memory: it needs no window.
    pub fn claim(&mut self) {
        if let Some(m) = self.incoming.front()
            && m.state == State::Bytes
        {
            self.claimed = m.length;
        }
    }

    /// Hands the first message out; nothing happens unless it is whole.
    pub fn deliver(&mut self) {
        if matches!(self.front(), Front::Whole { .. }) {
            self.pop();
            self.advance();
        }
    }

    /// What every frame carries: messages below have arrived, and the credit. Counts as reported.
    pub fn tell(&mut self) -> (u64, u64) {
        let below = self.done_below;
        for pending in &mut self.pending {
            pending.entries.retain(|entry| entry.message >= below);
        }
        self.done_told = below;
        self.credit_told = self.credit();
        (self.done_told, self.credit_told)
    }

    /// Whether the peer waits for an acknowledgement on this rail.
    #[must_use]
    pub fn owes(&self, rail: RailId) -> bool {
        let news = self.done_told < self.done_below || self.owes_credit();
        news || self.waiting_entries(rail) > 0 || self.pending.get(rail).is_some_and(|p| p.in_vain)
    }

    /// Whether so much credit became free that the peer may be waiting for it.
    #[must_use]
    pub fn owes_credit(&self) -> bool {
        self.credit() - self.credit_told >= (self.window / CREDIT_PART).max(1)
    }

    /// Entries that wait to be reported on a rail.
    #[must_use]
    pub fn waiting_entries(&self, rail: RailId) -> usize {
        self.pending.get(rail).map_or(0, |p| p.entries.len())
    }

    /// Takes the acknowledgement to be sent on a rail's link; `None` when the link is another by now.
    pub fn ack(&mut self, rail: RailId, link: u64) -> Option<Ack> {
        let pending = self.pending.get_mut(rail).filter(|p| p.link == link)?;
        let count = pending.entries.len().min(ENTRIES_MAX);
        let entries = pending.entries.drain(..count).collect();
        // A count must not get ahead of its entries: the peer would take the fragments for lost.
        if pending.entries.is_empty() {
            pending.frames_told = pending.frames;
            pending.in_vain = false;
        }
        Some(Ack {
            frames: pending.frames_told,
            entries,
        })
    }

    /// A rail's link is over: what it owed is reported on another rail.
    pub fn link_failed(&mut self, rail: RailId, heir: Option<RailId>) {
        // What was told on it last may be lost with it.
        (self.done_told, self.credit_told) = (0, 0);
        let Some(heir) = heir.filter(|&heir| heir != rail && heir < self.pending.len()) else {
            return;
        };
        if let Some(pending) = self.pending.get_mut(rail) {
            let entries = std::mem::take(&mut pending.entries);
            self.pending[heir].entries.extend(entries);
        }
    }
}
