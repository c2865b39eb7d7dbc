//! The receiving end: which datagrams have a place, which blocks are whole, what is lacking.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ropewalk_model::{Instant, Nanos};

use super::{BLOCKED_TIME, Flow, length_at, range_of, shortest, unit_length};
use crate::rapid::{Bitmap, Collect, DATAGRAM_HEADER_LEN, Datagram, Place, Stray, datagrams};
use crate::stage::process::Violation;

/// Once a probe has arrived, longer ones are waited for this much longer.
const LONGER_TIME: Nanos = Nanos::from_millis(20);

/// Units are numbered on the wire with 32 bits: what is further ahead is behind.
const AHEAD_MAX: u32 = 1 << 31;

/// Rounds of which nothing arrived before datagrams count as blocked.
const BLOCKED_ROUNDS: u32 = 3;

/// What is to be sent to the sender of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reported {
    /// Which unit.
    pub unit: u32,
    /// After which round.
    pub round: u32,
    /// What is lacking; empty when the unit is whole.
    pub lacking: Vec<u8>,
    /// Its bytes, where it is whole and was not reported so before.
    pub whole: Option<u32>,
}

/// A unit with a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    length: u32,
    // The round that the sender is in, as far as is known.
    round: u32,
}

/// The receiving end of one edge.
pub struct Receiving {
    longest: u32,
    // Longest unit.
    unit: u32,
    trailer: u32,
    flow: Flow,
    // The longest probe, until when longer ones are waited for, and whether it was reported.
    found: u32,
    answer_at: Option<Instant>,
    collect: Option<Collect>,
    // Units below are whole.
    below: u64,
    // Buffers that were ever granted, and used.
    granted: u64,
    used: u64,
    // Whole ones above `below`.
    whole: BTreeSet<u64>,
    pub(super) begun: BTreeMap<u64, Begun>,
    // Those of `begun` that have become whole, and were not reported.
    ready: VecDeque<u64>,
    // Rounds that are answered without a look: of whole units, and of those without a buffer.
    answers: VecDeque<Reported>,
    lacking_since: Option<Instant>,
    rounds: u32,
}

impl Receiving {
    /// An edge for blocks of at most `block` bytes.
    ///
    /// * `longest`: datagram that the interface takes; `trailer`: bytes behind a payload.
    #[must_use]
    pub fn new(longest: u32, block: u32, trailer: u32, flow: Flow) -> Self {
        Self {
            longest,
            unit: unit_length(block),
            trailer,
            flow,
            found: 0,
            answer_at: None,
            collect: None,
            below: 0,
            granted: 0,
            used: 0,
            whole: BTreeSet::new(),
            begun: BTreeMap::new(),
            ready: VecDeque::new(),
            answers: VecDeque::new(),
            lacking_since: None,
            rounds: 0,
        }
    }

    /// The sender's interface takes datagrams of at most this length.
    pub fn hello(&mut self, longest: u32) {
        self.longest = self.longest.min(longest);
    }

    /// An authentic probe of this length arrived.
    pub fn probe(&mut self, datagram: u32, now: Instant) {
        if self.collect.is_some() || datagram < shortest(self.trailer) {
            return;
        }
        self.found = self.found.max(datagram);
        self.answer_at.get_or_insert(now + LONGER_TIME);
    }

    /// The length to report, once.
    pub fn poll_probed(&mut self, now: Instant) -> Option<u32> {
        let answer_at = self.answer_at?;
        if self.found < self.longest && now < answer_at {
            return None;
        }
        self.answer_at = None;
        let payload = self.found - DATAGRAM_HEADER_LEN as u32 - self.trailer;
        self.collect = Some(Collect::new(payload));
        Some(self.found)
    }

    /// Whether a length was found and reported.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.collect.is_some()
    }

    /// So many buffers were ever granted.
    pub fn grant(&mut self, buffers: u64) {
        self.granted = self.granted.max(buffers);
    }

    /// The number of a unit on the wire, in full; `None` for one that is whole.
    fn number(&self, unit: u32) -> Option<u64> {
        let ahead = unit.wrapping_sub(self.below as u32);
        let number = self.below + u64::from(ahead);
        (ahead < AHEAD_MAX && !self.whole.contains(&number)).then_some(number)
    }

    /// Whether there is a buffer for a unit that is not begun.
    fn has_room(&self, number: u64) -> bool {
        match self.flow {
            Flow::Credit => number < self.granted,
            Flow::None => self.used < self.granted,
        }
    }

    fn is_unit(&self, length: u32) -> bool {
        (unit_length(0)..=self.unit).contains(&length)
    }

    /// Where a datagram belongs. Changes nothing, so that it can be asked before the datagram is authentic.
    ///
    /// # Errors
    /// [`Stray`] when it is not needed.
    pub fn place(&self, head: &Datagram) -> Result<Place, Stray> {
        let collect = self.collect.as_ref().ok_or(Stray::Late)?;
        let number = self.number(head.grant).ok_or(Stray::Late)?;
        let length = length_at(head.offset);
        match self.begun.get(&number) {
            Some(begun) if begun.length != length => Err(Stray::Misplaced),
            Some(_) => collect.place(head),
            None if !self.is_unit(length) => Err(Stray::Misplaced),
            None if !self.has_room(number) => Err(Stray::Late),
            None => collect.place_in(range_of(length), head),
        }
    }

    /// Whether something of a unit is there, or its buffer.
    #[must_use]
    pub fn is_begun(&self, unit: u32) -> bool {
        let number = self.number(unit);
        number.is_some_and(|number| self.begun.contains_key(&number))
    }

    fn begin(&mut self, number: u64, length: u32) {
        if let Some(collect) = &mut self.collect
            && !self.begun.contains_key(&number)
        {
            self.begun.insert(number, Begun { length, round: 0 });
            self.used += 1;
            collect.expect(number as u32, range_of(length));
        }
    }

    /// An authentic datagram was seen, needed or not.
    pub fn seen(&mut self, sequence: u64) {
        (self.lacking_since, self.rounds) = (None, 0);
        if let Some(collect) = &mut self.collect {
            collect.seen(sequence);
        }
    }

    /// One more than the highest number of a datagram seen.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.collect.as_ref().map_or(0, Collect::next_sequence)
    }

    /// An authentic datagram is in its place.
    pub fn placed(&mut self, head: &Datagram, place: &Place) {
        let Some(number) = self.number(place.id) else {
            return;
        };
        self.begin(number, length_at(head.offset));
        if let Some(collect) = &mut self.collect {
            collect.placed(place);
            if collect.is_whole(place.id) {
                self.ready.push_back(number);
            }
        }
    }

    /// A round of a unit of `length` bytes is out; `sequence` is one more than its last datagram's number.
    ///
    /// # Errors
    /// [`Violation::Credit`] when there is no buffer for it, [`Violation::Datagrams`] when it is no unit.
    pub fn round_ended(
        &mut self,
        unit: u32,
        round: u32,
        length: u32,
        sequence: u64,
        now: Instant,
    ) -> Result<(), Violation> {
        let Some(number) = self.number(unit) else {
            // The report that it is whole may have met another round.
            self.answer(unit, round, Vec::new());
            return Ok(());
        };
        let begun = self.begun.get(&number).map(|begun| begun.length);
        if !self.is_unit(length) || begun.is_some_and(|begun| begun != length) {
            return Err(Violation::Datagrams);
        }
        let has_room = begun.is_some() || self.has_room(number);
        if !has_room && self.flow == Flow::Credit {
            return Err(Violation::Credit);
        }
        let Some(payload) = self.collect.as_ref().map(Collect::payload) else {
            return Err(Violation::Datagrams);
        };
        if !has_room {
            let all = Bitmap::full(datagrams(length.into(), payload));
            self.answer(unit, round, all.encode());
            return Ok(());
        }
        self.begin(number, length);
        if let Some(begun) = self.begun.get_mut(&number) {
            // Should it become whole before this is answered, that is the answer.
            begun.round = round;
        }
        if let Some(collect) = &mut self.collect {
            collect.round_ended(unit, round, sequence, now);
        }
        Ok(())
    }

    fn answer(&mut self, unit: u32, round: u32, lacking: Vec<u8>) {
        self.answers.push_back(Reported {
            unit,
            round,
            lacking,
            whole: None,
        });
    }

    /// When a round that is out is to be looked at again, or a length reported, if nothing arrives.
    #[must_use]
    pub fn due_at(&self) -> Option<Instant> {
        let round = self.collect.as_ref().and_then(Collect::due_at);
        self.answer_at.into_iter().chain(round).min()
    }

    /// Whether datagrams should be arriving, as far as is known.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let collect = self.collect.as_ref();
        collect.is_some_and(|collect| collect.open() > 0)
    }

    /// What to say about a unit that is whole, or a round that is out; `empty_at`: when the socket was last found empty.
    pub fn report(&mut self, empty_at: Option<Instant>, now: Instant) -> Option<Reported> {
        if let Some(number) = self.ready.pop_front() {
            let begun = self.begun.remove(&number)?;
            self.collect.as_mut()?.forget(number as u32);
            self.whole.insert(number);
            while self.whole.remove(&self.below) {
                self.below += 1;
            }
            return Some(Reported {
                unit: number as u32,
                round: begun.round,
                lacking: Vec::new(),
                whole: Some(begun.length),
            });
        }
        if let Some(answer) = self.answers.pop_front() {
            return Some(answer);
        }
        let report = self.collect.as_mut()?.report(empty_at)?;
        // Whole ones are reported above.
        debug_assert!(report.missing > 0);
        let number = self.number(report.id)?;
        if let Some(begun) = self.begun.get_mut(&number) {
            begun.round = report.round.saturating_add(1);
        }
        self.rounds = self.rounds.saturating_add(1);
        self.lacking_since.get_or_insert(now);
        Some(Reported {
            unit: report.id,
            round: report.round,
            lacking: report.lacking,
            whole: None,
        })
    }

    /// Whether rounds go by and no datagram arrives: a firewall, or a path, has closed.
    #[must_use]
    pub fn is_blocked(&self, now: Instant) -> bool {
        let since = self.lacking_since.filter(|_| self.rounds >= BLOCKED_ROUNDS);
        since.is_some_and(|since| now.since(since) > BLOCKED_TIME)
    }
}
