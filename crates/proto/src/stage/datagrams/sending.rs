//! The sending end: which lengths are probed, which datagrams leave next and when.

use ropewalk_model::{ByteRate, Instant, Nanos};

use super::{range_of, shortest, unit_length};
use crate::rapid::{
    BitmapError, Blast, DATAGRAM_HEADER_LEN, Feedback, Follow, Order, Pacer, Piece, Wanted,
};

/// Probes are sent again after this ...
const PROBE_TIME: Nanos = Nanos::from_millis(200);

/// ... so often; then datagrams do not come through.
const PROBES_MAX: u32 = 50;

/// Lengths of packets that networks are known to stop at, below the interface's own.
const LADDER: [u32; 5] = [9000, 4096, 1500, 1400, 1280];

/// Where an edge is before its first block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probing {
    /// Nothing is to be sent now.
    Later,
    /// Datagrams of these lengths, longest first.
    Send(Vec<u32>),
    /// None passed.
    Blocked,
}

/// What to send on an edge now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// These datagrams.
    Piece(Piece),
    /// Nothing before this time.
    Wait(Instant),
    /// Nothing.
    Nothing,
}

/// The rate of an edge that a monitor steers, or of all edges of a process together.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pacer: Pacer,
    follow: Option<Follow>,
}

impl Pace {
    /// A fixed rate.
    #[must_use]
    pub fn fixed(rate: ByteRate, now: Instant) -> Self {
        Self {
            pacer: Pacer::new(rate, now),
            follow: None,
        }
    }

    /// What a monitor says; `first` before it has spoken.
    #[must_use]
    pub fn followed(first: ByteRate, now: Instant) -> Self {
        Self {
            pacer: Pacer::new(first, now),
            follow: Some(Follow::new(None, first, true, now)),
        }
    }

    /// Bytes that may leave now in datagrams of this length, or when some may: a batch, or the rest of one.
    fn allowance(
        &mut self,
        is_begun: bool,
        rtt: Nanos,
        datagram: u64,
        now: Instant,
    ) -> Result<u64, Instant> {
        if let Some(follow) = &self.follow {
            if let Some(until) = follow.suspended_until(now) {
                self.pacer.restart(until);
                return Err(until);
            }
            self.pacer.set_rate(follow.rate(rtt, now));
        }
        let allowance = self.pacer.allowance(now, datagram);
        let least = match is_begun {
            true => datagram,
            false => self.pacer.batch(datagram),
        };
        match allowance < least {
            true => Err(self.pacer.wake_at(datagram)),
            false => Ok(allowance),
        }
    }

    /// Nothing is to be sent now; but for a moment of it that is not made up for.
    pub fn rest(&mut self, now: Instant) {
        self.pacer.rest(now);
    }

    /// Bytes that left.
    pub fn spend(&mut self, bytes: u64) {
        self.pacer.spend(bytes);
    }
}

struct Ladder {
    lengths: Vec<u32>,
    next_at: Instant,
    sent: u32,
}

/// The sending end of one edge.
pub struct Sending {
    longest: u32,
    packet: u32,
    trailer: u32,
    order: Order,
    ladder: Option<Ladder>,
    // Once a length has come through: it, and the rounds.
    open: Option<(u32, Blast)>,
    pub(super) pace: Option<Pace>,
    next_unit: u32,
}

impl Sending {
    /// An edge that is not open.
    ///
    /// * `longest`: datagram that the interface takes; `packet`: bytes around a datagram in a packet; `trailer`: bytes behind a payload.
    /// * `pace`: of this edge; `None` where only the process has one.
    #[must_use]
    pub fn new(longest: u32, packet: u32, trailer: u32, order: Order, pace: Option<Pace>) -> Self {
        Self {
            longest,
            packet,
            trailer,
            order,
            ladder: None,
            open: None,
            pace,
            next_unit: 0,
        }
    }

    /// The receiver has a socket, whose interface takes datagrams of at most this length.
    pub fn ready(&mut self, longest: u32, now: Instant) {
        let longest = longest.min(self.longest);
        let shorter = LADDER.iter().map(|mtu| mtu.saturating_sub(self.packet));
        let mut lengths = vec![longest];
        lengths.extend(shorter.filter(|length| *length < longest));
        lengths.retain(|length| *length >= shortest(self.trailer));
        self.ladder.get_or_insert(Ladder {
            lengths,
            next_at: now,
            sent: 0,
        });
    }

    /// The edge has ended, maybe before a length was found: nothing more is sent on it.
    pub fn finish(&mut self) {
        self.ladder = None;
    }

    /// What the search for a length needs now.
    pub fn probe(&mut self, now: Instant) -> Probing {
        let Some(ladder) = self.ladder.as_mut().filter(|_| self.open.is_none()) else {
            return Probing::Later;
        };
        if now < ladder.next_at {
            return Probing::Later;
        }
        if ladder.sent >= PROBES_MAX || ladder.lengths.is_empty() {
            return Probing::Blocked;
        }
        ladder.sent += 1;
        ladder.next_at = now + PROBE_TIME;
        Probing::Send(ladder.lengths.clone())
    }

    /// When [`Sending::probe`] is to be called again.
    #[must_use]
    pub fn probe_at(&self) -> Option<Instant> {
        let ladder = self.ladder.as_ref().filter(|_| self.open.is_none())?;
        Some(ladder.next_at)
    }

    /// A datagram of this length passed; false where none of it was sent.
    pub fn probed(&mut self, datagram: u32) -> bool {
        let is_known = self
            .ladder
            .as_ref()
            .is_some_and(|ladder| ladder.lengths.contains(&datagram));
        if is_known && self.open.is_none() {
            let payload = datagram - DATAGRAM_HEADER_LEN as u32 - self.trailer;
            self.open = Some((datagram, Blast::new(payload, self.order)));
        }
        is_known
    }

    /// Whether blocks can be taken.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Bytes of a whole datagram; 0 before a length is found.
    #[must_use]
    pub fn datagram(&self) -> u32 {
        self.open.as_ref().map_or(0, |(datagram, _)| *datagram)
    }

    /// Bytes of content in a datagram.
    #[must_use]
    pub fn payload(&self) -> u32 {
        self.datagram()
            .saturating_sub(DATAGRAM_HEADER_LEN as u32 + self.trailer)
    }

    /// Takes a block of this length, for which there is credit; gives its number. Only once [`Sending::is_open`].
    pub fn push(&mut self, length: u32) -> u32 {
        let length = unit_length(length);
        let unit = self.next_unit;
        self.next_unit = unit.wrapping_add(1);
        if let Some((_, blast)) = &mut self.open {
            let is_new = blast.grant(Wanted {
                id: unit,
                space: 0,
                range: range_of(length),
                hash: false,
            });
            debug_assert!(is_new);
        }
        unit
    }

    /// Whether datagrams wait to be sent.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.open
            .as_ref()
            .is_some_and(|(_, blast)| blast.has_work())
    }

    /// The newest stamp of the monitor, to be echoed.
    #[must_use]
    pub fn echo(&self) -> u32 {
        let follow = self.pace.as_ref().and_then(|pace| pace.follow.as_ref());
        follow.map_or(0, Follow::echo)
    }

    /// What to send now, `count_max` datagrams at most; `all` is the pace of the process. [`Sending::spend`] follows.
    ///
    /// * `is_begun`: others of the batch have just left; `rtt`: of the edge, as far as known.
    pub fn next(
        &mut self,
        count_max: u32,
        is_begun: bool,
        all: Option<&mut Pace>,
        rtt: Nanos,
        now: Instant,
    ) -> Next {
        let Some((datagram, blast)) = &mut self.open else {
            return Next::Nothing;
        };
        if !blast.has_work() {
            if let Some(pace) = &mut self.pace {
                pace.rest(now);
            }
            return Next::Nothing;
        }
        let length = u64::from(*datagram);
        let mut bytes = length * u64::from(count_max.max(1));
        for pace in self.pace.as_mut().into_iter().chain(all) {
            match pace.allowance(is_begun, rtt, length, now) {
                Ok(allowance) => bytes = bytes.min(allowance),
                Err(until) => return Next::Wait(until),
            }
        }
        let count = (bytes / length).max(1) as u32;
        blast.next(count).map_or(Next::Nothing, Next::Piece)
    }

    /// Bytes that left on this edge.
    pub fn spend(&mut self, bytes: u64) {
        if let Some(pace) = &mut self.pace {
            pace.spend(bytes);
        }
    }

    /// What the receiver lacks of a unit after a round; whether the unit is whole now, and was not before.
    ///
    /// # Errors
    /// [`BitmapError`] when the bitmap is not as long as the unit.
    pub fn lacking(&mut self, unit: u32, round: u32, bits: &[u8]) -> Result<bool, BitmapError> {
        let Some((_, blast)) = &mut self.open else {
            return Ok(false);
        };
        let before = blast.outstanding();
        blast.lacking(unit, round, bits)?;
        Ok(blast.outstanding() < before)
    }

    /// A monitor's message.
    pub fn follow(&mut self, feedback: &Feedback, now: Instant) {
        if let Some(follow) = self.pace.as_mut().and_then(|pace| pace.follow.as_mut()) {
            follow.handle(feedback, now);
        }
    }
}
