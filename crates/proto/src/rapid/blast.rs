//! What the sender sends next: units asked for, and rounds of what was lacking.
//!
//! ```text
//!   GRANT ─▶ waiting ── all its datagrams sent ─▶ reported ── LACKING(none) ─▶ forgotten
//!                ▲                                 │
//!                └──────── LACKING(some) ──────────┘   the next round: those only
//! ```

use std::collections::{BTreeMap, VecDeque};

use ropewalk_model::Range;

use super::{Bitmap, BitmapError, datagrams};

/// A unit as it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Chosen by the receiver.
    pub id: u32,
    /// Space the range counts in.
    pub space: u16,
    /// Wanted bytes; may be empty.
    pub range: Range,
    /// Whether its BLAKE3 is sent with the first round.
    pub hash: bool,
}

/// Which are first, units that were not sent yet or repairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As RBUDP was published: the whole blast, then what was lacking. What is asked for is the blast.
    BlastFirst,
    /// Repairs first: units are whole sooner, and the receiver holds less.
    RepairsFirst,
}

/// Datagrams to send now: `count` of them from number `first` of their unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Whose bytes.
    pub unit: Wanted,
    /// 0 at first, one more each time that the unit was found lacking.
    pub round: u32,
    /// Number of the first datagram within the unit.
    pub first: u32,
    /// How many in a row; 0 for an empty unit.
    pub count: u32,
    /// Whether they end the round: the receiver is to be notified.
    pub ends_round: bool,
}

struct Outgoing {
    unit: Wanted,
    round: u32,
    // Still to be sent in this round.
    left: Bitmap,
    // Everything of this round has been sent, and the receiver told.
    told: bool,
}

/// The sender's side of the rounds.
pub struct Blast {
    payload: u32,
    order: Order,
    units: BTreeMap<u32, Outgoing>,
    fresh: VecDeque<u32>,
    repairs: VecDeque<u32>,
    repeated: u64,
}

impl Blast {
    /// Units are cut into datagrams with `payload` bytes, the last one of each may be shorter.
    #[must_use]
    pub fn new(payload: u32, order: Order) -> Self {
        Self {
            payload,
            order,
            units: BTreeMap::new(),
            fresh: VecDeque::new(),
            repairs: VecDeque::new(),
            repeated: 0,
        }
    }

    /// Units asked for and not reported whole.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.units.len()
    }

    /// Datagrams that were sent again so far.
    #[must_use]
    pub fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Whether something could be sent now.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.fresh.is_empty() || !self.repairs.is_empty()
    }

    /// Takes a request; `false` when its number is in use.
    pub fn grant(&mut self, unit: Wanted) -> bool {
        if self.units.contains_key(&unit.id) {
            return false;
        }
        let left = Bitmap::full(datagrams(unit.range.len(), self.payload));
        let outgoing = Outgoing {
            unit,
            round: 0,
            left,
            told: false,
        };
        self.units.insert(unit.id, outgoing);
        self.fresh.push_back(unit.id);
        true
    }

    /// Forgets a unit, because the receiver no longer wants it or it cannot be sent; `false` when it is not known.
    pub fn forget(&mut self, id: u32) -> bool {
        self.fresh.retain(|other| *other != id);
        self.repairs.retain(|other| *other != id);
        self.units.remove(&id).is_some()
    }

    /// Takes the receiver's report on a round that it was notified of; bits are what is missing. A report on another round is
    /// ignored.
    ///
    /// # Errors
    /// [`BitmapError`] when the bitmap is not as long as the unit.
    pub fn lacking(&mut self, id: u32, round: u32, bits: &[u8]) -> Result<(), BitmapError> {
        let Some(outgoing) = self.units.get_mut(&id) else {
            return Ok(());
        };
        if outgoing.round != round || !outgoing.told {
            return Ok(());
        }
        if bits.is_empty() {
            self.units.remove(&id);
            return Ok(());
        }
        let lacking = Bitmap::decode(bits, outgoing.left.len())?;
        if lacking.ones() == 0 {
            self.units.remove(&id);
            return Ok(());
        }
        self.repeated += u64::from(lacking.ones());
        outgoing.left = lacking;
        outgoing.round += 1;
        outgoing.told = false;
        self.repairs.push_back(id);
        Ok(())
    }

    /// The next datagrams, at most `max` (at least one) of one unit in a row; `None` when there is nothing to send.
    pub fn next(&mut self, max: u32) -> Option<Piece> {
        let repairs = match self.order {
            Order::BlastFirst => self.fresh.is_empty(),
            Order::RepairsFirst => !self.repairs.is_empty(),
        };
        let queue = if repairs {
            &mut self.repairs
        } else {
            &mut self.fresh
        };
        let id = *queue.front()?;
        let outgoing = self.units.get_mut(&id)?;
        let (first, count) = outgoing.left.run_from(0, max.max(1)).unwrap_or((0, 0));
        outgoing.left.clear(first, first + count);
        let ends_round = outgoing.left.ones() == 0;
        if ends_round {
            outgoing.told = true;
            queue.pop_front();
        }
        Some(Piece {
            unit: outgoing.unit,
            round: outgoing.round,
            first,
            count,
            ends_round,
        })
    }
}
