//! What a monitor sees of its receiver, and what it says. One file for each family of signals.
//!
//! A driver (a thread of its own in the `agent`, the simulator in virtual time) polls the monitor at a fixed interval with a
//! [`Sample`] and sends what it says to the sender.

use ropewalk_model::{ByteRate, Instant, Nanos};

mod linux26;
mod native;
mod sleep;
mod ule;

pub use linux26::Linux26;
pub use native::{Native, receive_buffer};
pub use sleep::{BONUS_MAX, SleepAverage};
pub use ule::{History as UleHistory, Score, THRESHOLD, Ule};

/// How often a monitor looks (`POLLING_TIME` of Figure 4). Long against the 3 to 7 microseconds that a look costs, short
/// against the 4 ms time slices of today.
pub const POLL_TIME: Nanos = Nanos::from_millis(2);

/// A step of the priority, as measured in section 3.4.
const STEP_TIME: Nanos = Nanos::from_millis(100);

/// What the receiving thread looks like at one moment. Counters only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Now.
    pub now: Instant,
    /// Time the receiving thread has run.
    pub run: Nanos,
    /// Time it could have run and waited for a processor.
    pub wait: Nanos,
    /// Whether it has taken a packet since the last look: the flag of section 3.2.
    pub received: bool,
    /// Bytes it has taken from the socket.
    pub bytes: u64,
    /// Datagrams it has taken, of any length.
    pub datagrams: u64,
    /// Datagrams that were sent up to the last one taken, as its sequence number shows.
    pub sent: u64,
    /// What the socket's queue takes of its buffer now, and the buffer's size, in the kernel's count.
    pub queued: u64,
    /// See [`Sample::queued`].
    pub buffer: u64,
    /// What the socket's own counter of drops says. It counts packets as the kernel merged them, not datagrams.
    pub drops: u64,
    /// Whether datagrams should be arriving: units are owed, and this is neither before a blast nor between two rounds.
    pub blasting: bool,
    /// The round trip is this long at least, as far as is known.
    pub rtt: Nanos,
}

impl Sample {
    /// Whether nothing waits in the socket: a receiver that took nothing then missed nothing. A queue that cannot be
    /// read (`buffer` is 0) is taken for one that holds something.
    #[must_use]
    pub fn queue_is_empty(&self) -> bool {
        self.buffer > 0 && self.queued == 0
    }

    /// Whether a pause asked for now has to begin before the queue can show a need for it: the round trip is longer than
    /// a step of the priority takes (section 3.4).
    fn is_far(&self) -> bool {
        self.rtt > STEP_TIME
    }
}

/// What a monitor wants. Nothing, most of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Advice {
    /// A new rate at most.
    pub ceiling: Option<ByteRate>,
    /// Send nothing for so long.
    pub suspend: Option<Nanos>,
}

/// Predicts when the receiver will not be able to take packets.
pub trait Monitor: Send {
    /// Looks; called every [`POLL_TIME`], or later when the driver could not run.
    fn poll(&mut self, sample: &Sample) -> Advice;

    /// A figure for traces: dynamic bonus, interactivity score, share of the processor.
    fn level(&self) -> f64;
}

/// Which monitor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// What today's kernels report.
    #[default]
    Native,
    /// The dynamic priority of Linux 2.6, section 3.3.
    Linux26,
    /// The interactivity score of FreeBSD's ULE, as section 3.2 prints it.
    Ule,
}

impl Kind {
    /// Makes one.
    #[must_use]
    pub fn monitor(self) -> Box<dyn Monitor> {
        match self {
            Self::Native => Box::new(Native::new()),
            Self::Linux26 => Box::new(Linux26::new()),
            Self::Ule => Box::new(Ule::new(Score::Printed)),
        }
    }
}

/// Keeps still after a suspension was asked for: packets go on coming for a round trip, and then none do. Neither may be
/// taken for an error, and asking again would only prolong the pause.
#[derive(Clone, Copy, Debug, Default)]
struct Quiet {
    until: Instant,
    // Nothing has come since.
    empty: bool,
}

impl Quiet {
    fn suspend(&mut self, sample: &Sample, interval: Nanos) {
        // Half a round trip there, half of one back, and a poll.
        self.until = sample.now + sample.rtt + interval + POLL_TIME;
        self.empty = true;
    }

    /// Whether the monitor is to look on only. After the time the first packet ends it.
    fn holds(&mut self, sample: &Sample) -> bool {
        if sample.now < self.until {
            return true;
        }
        self.empty &= !sample.received;
        // A sender that lost the last word, or had nothing to send, is not waited for without end.
        self.empty && sample.now < self.until + POLL_TIME.max(sample.rtt) * 4
    }
}
