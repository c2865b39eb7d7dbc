//! The sending side: every fragment of every message in exactly one state.

use std::collections::VecDeque;

use ropewalk_model::{Instant, Range, RangeSet};

use super::frame::{Entry, FRAGMENT_MAX, WHOLE, fragment_range, fragments};
use super::{MESSAGE_COST, MESSAGE_MAX, MESSAGES_MAX, RailId};

mod cancelled;
mod end_game;
mod outgoing;
mod rail;
mod share;

pub use cancelled::CANCELLED_MAX;
use cancelled::Cancelled;
use outgoing::Outgoing;
pub use outgoing::{Body, Fragment, Spread};
use rail::{Rail, Transit};

/// Longest fragment of a message that one rail carries: acknowledgements and news of cancelled messages wait for the one before them,
/// 0.8 s at 10 Mbit/s.
const SINGLE_MAX: u64 = 1 << 20;

/// The status vectors of all messages on their way. Memory is O(runs + in transit).
///
/// The caller starts messages, lets rails [`take`](Self::take), and passes on what the peer says. Frames must be
/// sent on a link in the order in which they were taken for its rail.
#[derive(Debug)]
pub struct Sender {
    rails: Vec<Rail>,
    best: RailId,
    messages: VecDeque<Outgoing>,
    /// Number of the first of `messages`.
    first: u64,
    /// Bytes and costs of all messages started.
    started_bytes: u64,
    /// Of them, bytes that are ready.
    ready_bytes: u64,
    credit: u64,
    ended: bool,
    /// The newest time anybody told.
    now: Instant,
    /// A rail left work to others.
    declined: bool,
    /// Messages that were given up.
    cancelled: Cancelled,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The peer does not have it yet.
    OnItsWay,
    /// The peer has the whole of it.
    Arrived,
    /// It was given up before it was known to be whole.
    Cancelled,
    /// It was over long ago, and [`CANCELLED_MAX`] runs of others were given up since: which of the two it was is not
    /// remembered.
    Forgotten,
}

impl Sender {
    /// A sender over `rails` rails, all down, that may send what begins within `credit` bytes before the peer says more.
    #[must_use]
    pub fn new(rails: usize, credit: u64) -> Self {
        Self {
            rails: (0..rails).map(|_| Rail::default()).collect(),
            best: 0,
            messages: VecDeque::new(),
            first: 0,
            started_bytes: 0,
            ready_bytes: 0,
            credit,
            ended: false,
            now: Instant::ZERO,
            declined: false,
            cancelled: Cancelled::default(),
        }
    }

    /// Begins a message and gives its number; `None` when [`MESSAGES_MAX`] are on their way, the end was
    /// announced, or it is longer than [`MESSAGE_MAX`]. `flags` are those of its DATA frames.
    pub fn start(&mut self, length: u64, spread: Spread, flags: u8) -> Option<u64> {
        let room = self.messages.len() < MESSAGES_MAX && length <= MESSAGE_MAX;
        if self.ended || !room {
            return None;
        }
        let up: Vec<RailId> = (0..self.rails.len())
            .filter(|&r| self.rails[r].up)
            .collect();
        let ways = (up.len() as u64).max(1);
        let fragment_len = match spread {
            Spread::Single | Spread::On(_) => length.min(SINGLE_MAX),
            Spread::Equal => length.div_ceil(ways),
            Spread::Balanced => self.balanced_len(length, ways),
        };
        let fragment_len = fragment_len.clamp(1, u64::from(FRAGMENT_MAX)) as u32;
        let owners = match spread {
            Spread::Equal => up,
            Spread::Single | Spread::On(_) | Spread::Balanced => Vec::new(),
        };
        self.messages.push_back(Outgoing {
            body: Body::Bytes,
            base: self.started_bytes,
            length,
            fragment_len,
            spread,
            owners,
            flags,
            ready: RangeSet::from_ranges([Range::new(0, fragments(length, fragment_len))]),
            acknowledged: RangeSet::new(),
            finished: false,
        });
        self.started_bytes += MESSAGE_COST + length;
        self.ready_bytes += length;
        Some(self.first + self.messages.len() as u64 - 1)
    }

    /// Whether so many messages could begin now.
    #[must_use]
    pub fn takes(&self, count: usize) -> bool {
        !self.ended && self.messages.len() + count <= MESSAGES_MAX
    }

    /// All messages below this number are finished: the peer has them, or they were cancelled.
    #[must_use]
    pub fn finished_below(&self) -> u64 {
        self.first
    }

    /// Announces the end behind the last message; later calls do nothing more.
    pub fn end(&mut self) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.messages.push_back(Outgoing {
            body: Body::End,
            base: self.started_bytes,
            length: 0,
            fragment_len: 1,
            spread: Spread::Single,
            owners: Vec::new(),
            flags: 0,
            ready: RangeSet::from_ranges([Range::new(0, 1)]),
            acknowledged: RangeSet::new(),
            finished: false,
        });
    }

    /// Gives a message up: nothing of it is sent any more but the news. Nothing happens when it is finished.
    pub fn cancel(&mut self, message: u64) {
        let Some(at) = self.index(message) else {
            return;
        };
        let m = &mut self.messages[at];
        if m.finished || m.body != Body::Bytes {
            return;
        }
        self.ready_bytes -= m.ready_bytes();
        self.cancelled.insert(message);
        m.body = Body::Cancelled;
        m.ready = RangeSet::from_ranges([Range::new(0, 1)]);
        m.acknowledged = RangeSet::new();
    }

    fn index(&self, message: u64) -> Option<usize> {
        let at = usize::try_from(message.checked_sub(self.first)?).ok()?;
        (at < self.messages.len()).then_some(at)
    }

    /// The next fragment for a rail that has space, or `None` when it can do nothing useful now: ask again after
    /// any news.
    ///
    /// A slow rail leaves the last fragments to faster ones that will have them there before it would.
    /// Cost O(messages on their way + rails).
    pub fn take(&mut self, rail: RailId, now: Instant) -> Option<Fragment> {
        self.now = now;
        if !self.rails.get(rail)?.up {
            return None;
        }
        let best = self.best();
        for at in 0..self.messages.len() {
            let m = &self.messages[at];
            let Some(number) = self.first_for(m, rail, best) else {
                continue;
            };
            let bytes = match m.body {
                Body::Bytes => m.bytes(Range::new(number, number + 1)),
                Body::Cancelled | Body::End => 0,
            };
            if m.base + MESSAGE_COST + number * u64::from(m.fragment_len) > self.credit {
                break;
            }
            if m.spread == Spread::Balanced && m.body == Body::Bytes {
                let carried = self.rails[rail].in_transit_bytes;
                if carried > 0 && carried + bytes > self.room(rail, m, carried) {
                    return None;
                }
                if self.declines(rail, bytes, now) {
                    self.declined = true;
                    break;
                }
            }
            let m = &mut self.messages[at];
            m.ready.remove(Range::new(number, number + 1));
            self.ready_bytes -= bytes;
            return Some(self.put_in_transit(rail, at, number, false, now));
        }
        self.end_game(rail, now)
    }

    /// The first ready fragment of a message that the rail may carry.
    fn first_for(&self, m: &Outgoing, rail: RailId, best: Option<RailId>) -> Option<u64> {
        let lowest = m.ready.first()?.start;
        if m.body != Body::Bytes {
            return Some(lowest);
        }
        match m.spread {
            Spread::Balanced => Some(lowest),
            Spread::Single => (best == Some(rail)).then_some(lowest),
            Spread::On(only) => (only == rail || !self.is_up(only)).then_some(lowest),
            Spread::Equal => m.ready.iter().flat_map(|run| run.start..run.end).find(|f| {
                let ways = m.owners.len().max(1) as u64;
                let owner = m.owners.get((f % ways) as usize);
                owner.is_none_or(|&owner| owner == rail || !self.is_up(owner))
            }),
        }
    }

    fn put_in_transit(
        &mut self,
        rail: RailId,
        at: usize,
        number: u64,
        duplicate: bool,
        now: Instant,
    ) -> Fragment {
        let m = &self.messages[at];
        let message = self.first + at as u64;
        // Numbers of a message with bytes stay below WHOLE: its length is bounded by `start`.
        let (fragment, range) = match m.body {
            Body::Bytes => {
                let fragment = u32::try_from(number).unwrap_or(WHOLE);
                (fragment, fragment_range(m.length, m.fragment_len, fragment))
            }
            Body::Cancelled | Body::End => (WHOLE, Range::new(0, 0)),
        };
        let r = &mut self.rails[rail];
        r.in_transit_bytes += range.len();
        r.transit.push_back(Transit {
            frame: r.frames,
            message,
            fragment,
            bytes: range.len(),
            taken_at: now,
            duplicate,
            has_twin: duplicate,
        });
        r.frames = r.frames.wrapping_add(1);
        Fragment {
            message,
            body: m.body,
            message_len: m.length,
            fragment,
            fragment_len: m.fragment_len,
            range,
            flags: m.flags,
            duplicate,
        }
    }

    fn carriers(&self, message: u64, fragment: u32) -> usize {
        let transits = self.rails.iter().flat_map(|r| &r.transit);
        transits
            .filter(|t| t.message == message && t.fragment == fragment)
            .count()
    }

    /// The peer has these fragments.
    pub fn arrived(&mut self, entry: Entry) {
        let Some(at) = self.index(entry.message) else {
            return;
        };
        let m = &mut self.messages[at];
        if m.finished || (m.body == Body::Bytes) == (entry.first == WHOLE) {
            return;
        }
        if entry.first == WHOLE {
            self.finish(at);
            return;
        }
        let count = fragments(m.length, m.fragment_len);
        let first = u64::from(entry.first);
        let range = Range::new(
            first.min(count),
            (first + u64::from(entry.count)).min(count),
        );
        let early: u64 = m.ready.clipped(range).iter().map(|run| m.bytes(run)).sum();
        self.ready_bytes -= early;
        m.ready.remove(range);
        m.acknowledged.insert(range);
        if m.acknowledged.len_bytes() == count {
            self.finish(at);
        }
    }

    fn finish(&mut self, at: usize) {
        let m = &mut self.messages[at];
        if m.body == Body::Bytes {
            self.ready_bytes -= m.ready_bytes();
        }
        m.ready = RangeSet::new();
        m.finished = true;
    }

    /// All messages below `number` have arrived. `false` when the peer speaks of messages that never were.
    #[must_use]
    pub fn done_below(&mut self, number: u64, now: Instant) -> bool {
        if number > self.first + self.messages.len() as u64 {
            return false;
        }
        let count = number.saturating_sub(self.first) as usize;
        for at in 0..count {
            if !self.messages[at].finished {
                self.finish(at);
            }
        }
        while self.messages.front().is_some_and(|m| m.finished) {
            self.messages.pop_front();
            self.first += 1;
        }
        if count > 0 {
            self.forget_finished(now);
        }
        true
    }

    /// Drops transits of finished messages as far as they stand in front. A second copy may still be on its way where
    /// the first one has come: its link says when it is through.
    fn forget_finished(&mut self, now: Instant) {
        for rail in 0..self.rails.len() {
            while let Some(transit) = self.rails[rail].transit.front()
                && self.is_finished(transit.message)
                && !transit.has_twin
            {
                self.rails[rail].pop(now);
            }
        }
    }

    /// The peer has received the first `frames` frames over the rail's link, modulo 2^32. Fragments among them that did
    /// not arrive become ready.
    pub fn processed(&mut self, rail: RailId, frames: u32, now: Instant) {
        while let Some(r) = self.rails.get_mut(rail)
            && let Some(front) = r.transit.front()
            && (front.frame.wrapping_sub(frames) as i32) < 0
        {
            if let Some(transit) = r.pop(now) {
                self.back_to_ready(&transit);
            }
        }
    }

    fn back_to_ready(&mut self, transit: &Transit) {
        let Some(at) = self.index(transit.message) else {
            return;
        };
        let whole = transit.fragment == WHOLE;
        let m = &self.messages[at];
        let open = !m.finished
            && (m.body == Body::Bytes) != whole
            && !m.acknowledged.contains(u64::from(transit.fragment));
        if !open || self.carriers(transit.message, transit.fragment) > 0 {
            return;
        }
        let number = if whole {
            0
        } else {
            u64::from(transit.fragment)
        };
        let m = &mut self.messages[at];
        if !m.ready.contains(number) {
            m.ready.insert(Range::new(number, number + 1));
            self.ready_bytes += transit.bytes;
        }
    }

    /// The peer may be sent bytes up to this position; credit never shrinks. `true` when it grew.
    pub fn allow(&mut self, credit: u64) -> bool {
        let grew = credit > self.credit;
        self.credit = self.credit.max(credit);
        grew
    }

    /// The rail has a fresh link.
    pub fn rail_up(&mut self, rail: RailId) {
        self.rail_failed(rail);
        if let Some(r) = self.rails.get_mut(rail) {
            *r = Rail {
                up: true,
                ..Rail::default()
            };
        }
    }

    /// The rail's link is over: what it carried alone becomes ready.
    pub fn rail_failed(&mut self, rail: RailId) {
        let Some(r) = self.rails.get_mut(rail) else {
            return;
        };
        r.up = false;
        r.in_transit_bytes = 0;
        let lost = std::mem::take(&mut r.transit);
        for transit in &lost {
            self.back_to_ready(transit);
        }
    }

    /// Whether a rail left work to others since this was last asked: every rail has to be asked again after news of any.
    pub fn has_declined(&mut self) -> bool {
        std::mem::take(&mut self.declined)
    }

    /// Names the rail that messages below the cut-off take.
    pub fn set_best(&mut self, rail: RailId) {
        self.best = rail;
    }

    /// The rail for messages below the cut-off: the one named while it is up, else the first that is.
    #[must_use]
    pub fn best(&self) -> Option<RailId> {
        if self.is_up(self.best) {
            return Some(self.best);
        }
        (0..self.rails.len()).find(|&rail| self.rails[rail].up)
    }

    fn is_up(&self, rail: RailId) -> bool {
        self.rails.get(rail).is_some_and(|r| r.up)
    }

    /// Whether the peer has the whole message, or knows that it was cancelled.
    #[must_use]
    pub fn is_finished(&self, message: u64) -> bool {
        message < self.first
            || self
                .index(message)
                .is_some_and(|at| self.messages[at].finished)
    }

    /// What became of a message that was begun.
    #[must_use]
    pub fn fate(&self, message: u64) -> Fate {
        if self.cancelled.contains(message) {
            Fate::Cancelled
        } else if self.cancelled.is_forgotten(message) {
            Fate::Forgotten
        } else if self.is_finished(message) {
            Fate::Arrived
        } else {
            Fate::OnItsWay
        }
    }

    /// Whether the end was announced.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// Messages, announced ends included, that the peer does not have yet.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.messages.iter().filter(|m| !m.finished).count()
    }

    /// Bytes that a rail carries.
    #[must_use]
    pub fn in_transit_bytes(&self, rail: RailId) -> u64 {
        self.rails.get(rail).map_or(0, |r| r.in_transit_bytes)
    }

    /// Whether a rail has anything in transit, empty messages and ends included.
    #[must_use]
    pub fn is_busy(&self, rail: RailId) -> bool {
        self.rails.get(rail).is_some_and(|r| !r.transit.is_empty())
    }

    /// Speed of a rail while it had work, bytes per second; `None` before it delivered anything.
    #[must_use]
    pub fn bytes_per_second(&self, rail: RailId) -> Option<f64> {
        self.rails.get(rail)?.pace.bytes_per_second()
    }
}
