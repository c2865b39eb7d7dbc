//! One stream of a lane: where it is in its life, and what it was asked for.
//!
//! ```text
//!  Finding <----> FindingLater        (a way to the peer; the first stream of a lane only)
//!     |
//!     v     opened
//!  Opening --------> Open --------> Leaving   fewer are wanted ------------------+
//!    ^ |              | \ <-------> Moving    another way does its work --------+|
//!    | | failed       | broken                                                  ||
//!    | v              v                                                         vv
//!  OpeningLater <-----+       no attempts left --> Ended        closed --> Ended
//!                                |
//!                                | the lane's last one, and another rail works:    Down <--> Probing --> Opening
//!                                | and the lane was the only way, and worked:      Finding
//! ```

use std::collections::BTreeMap;

use ropewalk_model::{Instant, Nanos, Range};

use super::announce::Heard;
use super::rail_health::Silence;
use crate::ledger::LaneId;

/// Pauses before each new attempt to find a way to a peer, or to open a stream that broke. Refused at once (the process is
/// gone) or silent, it is given up after the last.
pub const RETRY_PAUSES: [Nanos; 3] = [
    Nanos::from_millis(50),
    Nanos::from_millis(200),
    Nanos::from_secs(1),
];

/// A stream of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    /// The lane.
    pub lane: LaneId,
    /// Counted from 0 on each lane; no number is given twice.
    pub number: u32,
}

/// Where a stream is in its life. See the drawing above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// A way to the peer is being found.
    Finding,
    /// As none was found, it waits.
    FindingLater,
    /// It is being connected.
    Opening,
    /// As it did not connect, or broke, it waits.
    OpeningLater,
    /// It carries units.
    Open,
    /// It carries what it was asked for: fewer streams are wanted.
    Leaving,
    /// It carries what it was asked for: another way does its work.
    Moving,
    /// The lane has failed; it waits until the rail is tried again.
    Down,
    /// Whether the rail works is being tried.
    Probing,
    /// It is over.
    Ended,
}

impl Phase {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Finding,
        Self::FindingLater,
        Self::Opening,
        Self::OpeningLater,
        Self::Open,
        Self::Leaving,
        Self::Moving,
        Self::Down,
        Self::Probing,
        Self::Ended,
    ];

    /// The table of transitions.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        use Phase::{
            Down, Ended, Finding, FindingLater, Leaving, Moving, Open, Opening, OpeningLater,
            Probing,
        };
        match next {
            Finding => !matches!(self, Down | Probing | Ended | Leaving),
            FindingLater => self == Finding,
            Opening => matches!(self, Finding | OpeningLater | Moving | Probing),
            OpeningLater => matches!(self, Opening | Open),
            Open => matches!(self, Opening | Moving),
            Leaving => self == Open,
            Moving => self == Open,
            Down => matches!(self, Opening | Open | Probing),
            Probing => self == Down,
            Ended => self != Ended,
        }
    }

    /// Whether there is a connection.
    #[must_use]
    pub fn is_open(self) -> bool {
        matches!(self, Self::Open | Self::Leaving | Self::Moving)
    }

    /// Whether it counts among the streams that the lane is to have.
    pub(super) fn counts(self) -> bool {
        !matches!(
            self,
            Self::Leaving | Self::Down | Self::Probing | Self::Ended
        )
    }
}

/// What is to be done with a stream now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Find a way to the peer of the lane and do the pair's handshake; a way that the lane had before does not work any more.
    /// Then [`Node::handle_found`](super::Node::handle_found) or [`Node::handle_not_found`](super::Node::handle_not_found).
    Find,
    /// Connect it over the lane's way; then [`Node::handle_opened`](super::Node::handle_opened) or
    /// [`Node::handle_not_opened`](super::Node::handle_not_opened).
    Open,
    /// Say that these grants, by number, are not needed any more.
    Cancel(Vec<u32>),
    /// Ask for these ranges under these numbers, then receive.
    Grant(Vec<(u32, Range)>),
    /// Receive what was asked for, and what a fellow receiver says that it has; at this time more may be asked for.
    Receive(Option<Instant>),
    /// Nothing before this time, unless something changes; `None`: not at any time.
    Wait(Option<Instant>),
    /// Close the connection; then [`Node::handle_closed`](super::Node::handle_closed).
    Close,
    /// See whether the peer answers over the lane's way; then [`Node::handle_probed`](super::Node::handle_probed).
    Probe,
    /// Nothing more, for good.
    End,
}

/// Why a connection is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Break {
    /// It was to be closed, or the transfer has ended.
    Asked,
    /// It broke, in words.
    Broken(String),
    /// This host lost the interface or address it went by: while another rail works it is not opened again at once.
    RailLost(String),
    /// What connects does not carry, in words: if nothing was received, it will not later, and is not tried again.
    Blocked(String),
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Stream {
    phase: Phase,
    /// When a pause ends.
    pub until: Instant,
    /// When what it is doing began.
    pub began_at: Instant,
    /// Failed attempts in a row.
    tries: usize,
    granted: BTreeMap<u32, Range>,
    outstanding: u64,
    next_grant: u32,
    /// Grants to be taken back.
    pub cancels: Vec<u32>,
    /// How long it has received nothing of what it was asked for.
    pub silence: Silence,
    /// Units received over it since it was opened.
    pub units: u64,
    /// What its peer announced on it since it was opened.
    pub heard: Heard,
    /// It is to be closed for this reason.
    pub verdict: Option<Break>,
}

impl Stream {
    pub fn new(phase: Phase, now: Instant) -> Self {
        Self {
            phase,
            until: now,
            began_at: now,
            tries: 0,
            granted: BTreeMap::new(),
            outstanding: 0,
            next_grant: 0,
            cancels: Vec::new(),
            silence: Silence::since(now),
            units: 0,
            heard: Heard::new(now),
            verdict: None,
        }
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    pub fn enter(&mut self, phase: Phase) {
        debug_assert!(
            self.phase.may_become(phase),
            "{:?} to {phase:?}",
            self.phase
        );
        self.phase = phase;
    }

    /// The connection is there.
    pub fn opened(&mut self, now: Instant) {
        self.enter(Phase::Open);
        self.silence = Silence::since(now);
        self.units = 0;
        self.heard = Heard::new(now);
        self.next_grant = 0;
    }

    /// Ranges asked for and not received.
    pub fn ranges(&self) -> impl Iterator<Item = Range> {
        self.granted.values().copied()
    }

    /// Bytes asked for and not received.
    pub fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// Units asked for and not received.
    pub fn granted(&self) -> usize {
        self.granted.len()
    }

    /// Numbers ranges that are asked for now.
    pub fn grant(
        &mut self,
        ranges: impl Iterator<Item = Range>,
        now: Instant,
    ) -> Vec<(u32, Range)> {
        if self.granted.is_empty() {
            self.silence.restart(now);
        }
        let numbered = ranges.map(|range| {
            let number = self.next_grant;
            self.next_grant = self.next_grant.wrapping_add(1);
            self.granted.insert(number, range);
            self.outstanding += range.len();
            (number, range)
        });
        numbered.collect()
    }

    /// A grant has ended, in whatever way: its range, unless it is unknown.
    pub fn ended(&mut self, grant: u32) -> Option<Range> {
        let range = self.granted.remove(&grant)?;
        self.outstanding -= range.len();
        self.cancels.retain(|cancelled| *cancelled != grant);
        Some(range)
    }

    /// A copy is useless: takes back one grant of the range, unless there is none.
    pub fn cancel(&mut self, range: Range) -> bool {
        let mut grants = self.granted.iter();
        let found = grants.find(|(grant, own)| **own == range && !self.cancels.contains(grant));
        let Some((&grant, _)) = found else {
            return false;
        };
        self.cancels.push(grant);
        true
    }

    /// The connection is closed: what will not be received.
    pub fn closed(&mut self) -> Vec<Range> {
        self.outstanding = 0;
        self.cancels.clear();
        std::mem::take(&mut self.granted).into_values().collect()
    }

    /// Works: a new series of attempts.
    pub fn begin_series(&mut self) {
        self.tries = 0;
    }

    /// No attempt is left.
    pub fn end_series(&mut self) {
        self.tries = RETRY_PAUSES.len();
    }

    /// An attempt has failed: waits in `phase` for the next one; `false` when none is left.
    pub fn retries(&mut self, phase: Phase, now: Instant) -> bool {
        let Some(pause) = RETRY_PAUSES.get(self.tries) else {
            return false;
        };
        self.tries += 1;
        self.until = now + *pause;
        self.enter(phase);
        true
    }
}
