//! What the receiver has of the units it asked for, and when it says what it lacks.
//!
//! A datagram counts once, whenever and however often it arrives, and only for a unit that is asked for and not whole: copies,
//! late ones and replayed ones change nothing.

use std::collections::BTreeMap;

use ropewalk_model::{Instant, Nanos, Range};

use super::{Bitmap, Datagram, datagrams};

/// After the end of a round is known and the socket is empty, this much time is left for datagrams that the reliable
/// stream overtook.
const GRACE_TIME: Nanos = Nanos::from_millis(1);

/// Where the payload of a datagram belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which grant.
    pub id: u32,
    /// Number of the datagram within its unit.
    pub index: u32,
    /// First byte within the unit.
    pub at: usize,
    /// Bytes.
    pub length: usize,
}

/// Why a datagram is not needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stray {
    /// It was received before.
    Duplicate,
    /// Its unit is whole, or was not asked for.
    Late,
    /// It lies across the unit's borders or the cuts between datagrams. No sender of ours makes such.
    Misplaced,
}

/// What to report to the sender of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The grant.
    pub id: u32,
    /// The round it speaks of.
    pub round: u32,
    /// Bits that are lacking; empty when the unit is whole.
    pub lacking: Vec<u8>,
    /// Datagrams that are lacking.
    pub missing: u32,
}

struct Incoming {
    range: Range,
    have: Bitmap,
    // The round that the sender says is out and nothing was said to: its number, the last sequence number, and since when.
    ended: Option<(u32, u64, Instant)>,
}

/// The receiver's side of the rounds.
pub struct Collect {
    payload: u32,
    units: BTreeMap<u32, Incoming>,
    // Ended rounds that wait for a word.
    ended: Vec<u32>,
    // Every sequence number below came or is lost, but for what was reordered.
    next_sequence: u64,
}

impl Collect {
    /// Units are cut into datagrams with `payload` bytes.
    #[must_use]
    pub fn new(payload: u32) -> Self {
        Self {
            payload: payload.max(1),
            units: BTreeMap::new(),
            ended: Vec::new(),
            next_sequence: 0,
        }
    }

    /// Bytes of a datagram's payload.
    #[must_use]
    pub fn payload(&self) -> u32 {
        self.payload
    }

    /// Expects a unit.
    pub fn expect(&mut self, id: u32, range: Range) {
        let have = Bitmap::new(datagrams(range.len(), self.payload));
        self.units.insert(
            id,
            Incoming {
                range,
                have,
                ended: None,
            },
        );
    }

    /// Expects a unit no more.
    pub fn forget(&mut self, id: u32) {
        self.units.remove(&id);
        self.ended.retain(|other| *other != id);
    }

    /// Units whose round is not out, as far as is known: their datagrams should be arriving.
    #[must_use]
    pub fn open(&self) -> usize {
        self.units.len() - self.ended.len()
    }

    /// Received datagrams of the unit.
    #[must_use]
    pub fn have(&self, id: u32) -> u32 {
        self.units.get(&id).map_or(0, |unit| unit.have.ones())
    }

    /// Whether all datagrams of an expected unit are there.
    #[must_use]
    pub fn is_whole(&self, id: u32) -> bool {
        self.units.get(&id).is_some_and(|unit| unit.have.is_full())
    }

    /// One more than the highest sequence number seen.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Where a datagram belongs. Changes nothing, so that it can be asked before the datagram is authentic.
    ///
    /// # Errors
    /// [`Stray`] when it is not needed.
    pub fn place(&self, head: &Datagram) -> Result<Place, Stray> {
        let unit = self.units.get(&head.grant).ok_or(Stray::Late)?;
        let place = self.place_in(unit.range, head)?;
        match unit.have.get(place.index) {
            true => Err(Stray::Duplicate),
            false => Ok(place),
        }
    }

    /// Where a datagram belongs in a unit of this range, expected or not.
    ///
    /// # Errors
    /// [`Stray::Misplaced`] when it lies across the borders or cuts.
    pub fn place_in(&self, range: Range, head: &Datagram) -> Result<Place, Stray> {
        let at = head
            .offset
            .checked_sub(range.start)
            .ok_or(Stray::Misplaced)?;
        let payload = u64::from(self.payload);
        let rest = range.len().saturating_sub(at);
        let length = u64::from(head.length);
        if at % payload != 0 || length == 0 || length != rest.min(payload) {
            return Err(Stray::Misplaced);
        }
        Ok(Place {
            id: head.grant,
            index: (at / payload) as u32,
            at: at as usize,
            length: length as usize,
        })
    }

    /// An authentic datagram was seen, needed or not.
    pub fn seen(&mut self, sequence: u64) {
        self.next_sequence = self.next_sequence.max(sequence.saturating_add(1));
    }

    /// A datagram is in its place.
    pub fn placed(&mut self, place: &Place) {
        if let Some(unit) = self.units.get_mut(&place.id) {
            unit.have.set(place.index);
        }
    }

    /// The sender says that a round is out; `sequence` is one more than its last datagram's number.
    pub fn round_ended(&mut self, id: u32, round: u32, sequence: u64, now: Instant) {
        if let Some(unit) = self.units.get_mut(&id) {
            unit.ended = Some((round, sequence, now));
            if !self.ended.contains(&id) {
                self.ended.push(id);
            }
        }
    }

    /// When a round that has ended is to be looked at again, if nothing arrives.
    #[must_use]
    pub fn due_at(&self) -> Option<Instant> {
        let ended = self.ended.iter().filter_map(|id| self.units.get(id)?.ended);
        ended.map(|(_, _, since)| since + GRACE_TIME).min()
    }

    /// What to say about a round that is out: at once when the unit is whole or its last datagram, or a later one, has arrived;
    /// else when the socket was empty at `empty_at`, a moment after the report arrived.
    ///
    /// A unit reported whole is forgotten here.
    pub fn report(&mut self, empty_at: Option<Instant>) -> Option<Report> {
        let at = self.ended.iter().position(|id| {
            let Some(unit) = self.units.get(id) else {
                return true;
            };
            unit.ended.is_some_and(|(_, sequence, since)| {
                let quiet = empty_at.is_some_and(|empty| empty >= since + GRACE_TIME);
                unit.have.is_full() || self.next_sequence >= sequence || quiet
            })
        })?;
        let id = self.ended.remove(at);
        let unit = self.units.get_mut(&id)?;
        let (round, ..) = unit.ended.take()?;
        if unit.have.is_full() {
            self.units.remove(&id);
            return Some(Report {
                id,
                round,
                lacking: Vec::new(),
                missing: 0,
            });
        }
        let lacking = unit.have.inverted();
        Some(Report {
            id,
            round,
            lacking: lacking.encode(),
            missing: lacking.ones(),
        })
    }
}
