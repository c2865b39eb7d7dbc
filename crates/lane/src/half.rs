//! What the two ends of a stream promise, whatever carries it.
//!
//! The receiver pulls: it grants units, and the sender answers each grant with the unit's bytes or
//! with a reason. One thread drives each end. Nothing here knows sockets, file descriptors of the
//! lane or how many threads there are, so that shared memory, MPI or datagrams fit behind it.

use std::collections::VecDeque;
use std::error::Error;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ropewalk_model::Range;
use ropewalk_proto::rapid::Gaps;
use ropewalk_proto::wire::{HASH_LEN, HeldRange, PAYLOAD_MAX};

use crate::LaneError;
use crate::tcp_info::TcpInfo;

/// Units that may be granted and not yet completed on one stream. Bounds the memory a receiver can
/// make its sender hold (40 bytes each), far above any window of 4 KiB units in 64 MiB.
pub const OUTSTANDING_MAX: usize = 1 << 14;

/// Codes a MISSING frame carries. Stable, append only.
pub mod missing {
    /// The receiver cancelled the grant.
    pub const CANCELLED: u32 = 1;
    /// The sender does not hold the bytes.
    pub const NOT_HELD: u32 = 2;
    /// The sender holds the bytes but cannot read them; another holder may.
    pub const UNREADABLE: u32 = 3;
    /// The object changed since it was described.
    pub const CHANGED: u32 = 4;
}

/// "Send me this unit": credit with an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Chosen by the receiver, unique among the outstanding grants of the stream.
    pub id: u32,
    /// Space the range counts in.
    pub space: u16,
    /// Wanted bytes, at most [`PAYLOAD_MAX`](ropewalk_proto::wire::PAYLOAD_MAX) of them; may be empty.
    pub range: Range,
    /// Whether the unit's BLAKE3 is computed and compared at both ends.
    pub hash: bool,
    /// Only the BLAKE3 of the sender's bytes is wanted, not the bytes. Lanes of datagrams refuse it.
    pub digest: bool,
}

impl Grant {
    /// Bytes of payload that its answer has.
    pub(crate) fn owed(&self) -> u64 {
        match self.digest {
            true => HASH_LEN as u64,
            false => self.range.len(),
        }
    }
}

/// Payload bytes that a grant asks for.
///
/// # Errors
/// [`LaneError::Misuse`] where these are too many.
pub(crate) fn payload_len(grant: &Grant) -> Result<u32, LaneError> {
    let len = u32::try_from(grant.range.len()).ok();
    len.filter(|len| *len <= PAYLOAD_MAX).ok_or_else(|| {
        LaneError::Misuse(format!(
            "a unit of {} bytes was granted, the longest is {PAYLOAD_MAX}",
            grant.range.len()
        ))
    })
}

/// Whether a stream may be granted these beside what is outstanding.
///
/// * `highest`: id of all grants so far.
///
/// # Errors
/// [`LaneError::Misuse`], as [`ReceiveHalf::grant`] says.
pub(crate) fn check_grants(
    outstanding: &VecDeque<Grant>,
    highest: Option<u32>,
    grants: &[Grant],
) -> Result<(), LaneError> {
    if outstanding.len() + grants.len() > OUTSTANDING_MAX {
        return Err(LaneError::Misuse(format!(
            "more than {OUTSTANDING_MAX} units would be outstanding on one stream"
        )));
    }
    for grant in grants {
        payload_len(grant)?;
        let is_taken = highest.is_some_and(|highest| grant.id <= highest)
            && outstanding.iter().any(|other| other.id == grant.id);
        if is_taken {
            return Err(LaneError::Misuse(format!(
                "grant {} is outstanding already",
                grant.id
            )));
        }
    }
    Ok(())
}

/// The landing's own memory for all of `length` bytes, if it offers any.
pub(crate) fn place(
    landing: &mut dyn Landing,
    space: u16,
    offset: u64,
    length: usize,
) -> Option<&mut [u8]> {
    if length == 0 {
        return None;
    }
    landing
        .buffer(space, offset, length)
        .filter(|place| place.len() == length)
}

/// Gives bytes to a landing that has no memory for them.
pub(crate) fn write(
    landing: &mut dyn Landing,
    space: u16,
    offset: u64,
    bytes: &[u8],
) -> Result<(), LaneError> {
    landing
        .write(space, offset, bytes)
        .map_err(|source| LaneError::Landing {
            space,
            range: Range::new(offset, offset + bytes.len() as u64),
            source,
        })
}

/// How one wait of [`ReceiveHalf::receive`] ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// All bytes of the unit were checked and handed to the landing.
    Unit {
        /// The grant it answers.
        grant: Grant,
        /// BLAKE3 over the bytes handed to the landing, equal to the sender's, when the grant asked for it.
        digest: Option<[u8; 32]>,
        /// How many of its bytes were zeros that were not sent.
        zeros: u64,
    },
    /// What the sender computed over its bytes of the unit, which stay there.
    Digest {
        /// The grant it answers.
        grant: Grant,
        /// BLAKE3.
        digest: [u8; 32],
    },
    /// The unit arrived damaged; grant it again. The stream goes on. Frames that failed their own
    /// checksum were not handed to [`Landing::write`]; without checksums, and in memory the landing
    /// offered, wrong bytes may lie.
    Corrupt {
        /// The grant to repeat.
        grant: Grant,
        /// Which check failed, for people.
        reason: String,
    },
    /// The sender cannot serve the unit, or it was cancelled.
    Missing {
        /// The grant that stays unanswered.
        grant: Grant,
        /// One of [`missing`], or a newer peer's code.
        code: u32,
        /// The sender's words.
        reason: String,
    },
    /// The sender said that it can serve these ranges from now on, beside those before; see [`Provider::news`].
    Held(Vec<HeldRange>),
    /// The deadline passed with nothing complete. Call again to go on where this stopped.
    Idle,
}

/// How one call of [`SendHalf::serve`] ended without error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// Nothing was asked for during the idle time given; the stream is whole and may be served again.
    Idle,
    /// The receiver closed and nothing was owed.
    Closed,
    /// A [`Stopper`] ended the stream from this side.
    Stopped,
}

impl Served {
    /// How a sender's loop ended: a peer that closes while the stream is at rest is no error.
    pub(crate) fn at_the_end(
        result: Result<Self, LaneError>,
        at_rest: bool,
        outstanding: usize,
    ) -> Result<Self, LaneError> {
        match result {
            Err(LaneError::Stopped) => Ok(Self::Stopped),
            Err(LaneError::Closed { .. }) if at_rest => Ok(Self::Closed),
            other => other.map_err(|error| error.owing(outstanding)),
        }
    }
}

/// What one end of a stream has seen since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Bytes received, framing included.
    pub bytes_in: u64,
    /// Bytes sent, framing included.
    pub bytes_out: u64,
    /// Payload bytes of data frames, received or sent; not those of zeros.
    pub payload: u64,
    /// Data frames received or sent.
    pub frames: u64,
    /// Units completed.
    pub units: u64,
    /// Units that failed a check.
    pub corrupt: u64,
    /// Datagrams asked for, or sent, again.
    pub again: u64,
    /// Datagrams that were dropped because they were duplicates, late or damaged, or were not the peer's.
    pub strays: u64,
    /// Time spent waiting until the peer, or the network, would take or give bytes.
    pub waited: Duration,
    /// What a receiving lane of datagrams sees besides; zero on others.
    pub blast: BlastSeen,
}

/// What the receiving end of a lane of datagrams has seen since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlastSeen {
    /// Datagrams that were sent, as sequence numbers show, and did not arrive.
    pub lost: u64,
    /// Datagrams that this host's socket had no space for; they are among the lost.
    pub dropped: u64,
    /// How often the monitor asked the sender to suspend.
    pub suspensions: u32,
    /// Processor time of the monitor's thread.
    pub monitor: Duration,
    /// Times between received datagrams, while any were due.
    pub arrivals: Gaps,
    /// Times between whole units, which is when data is there to be used.
    pub deliveries: Gaps,
}

impl BlastSeen {
    /// Adds what another stream has seen.
    pub fn merge(&mut self, other: &Self) {
        self.lost += other.lost;
        self.dropped += other.dropped;
        self.suspensions = self.suspensions.wrapping_add(other.suspensions);
        self.monitor += other.monitor;
        self.arrivals.merge(&other.arrivals);
        self.deliveries.merge(&other.deliveries);
    }
}

/// Ends a stream from any thread: both ends return at once, in-flight units are lost. It can also see how much has
/// arrived.
#[derive(Clone)]
pub struct Stopper {
    pub(crate) stopped: Arc<AtomicBool>,
    pub(crate) handle: Arc<dyn Handle>,
}

/// A connection as any thread may touch it.
pub(crate) trait Handle: Send + Sync {
    /// Closes both directions and wakes both ends.
    fn close(&self);

    /// Bytes that have come, framing and what nobody read yet included; `None` where nobody counts.
    fn received(&self) -> Option<u64>;

    /// What the kernel knows of the connection; `None` where it is not TCP.
    fn tcp_info(&self) -> Option<TcpInfo> {
        None
    }
}

impl Stopper {
    /// Ends the stream. The local end reports [`LaneError::Stopped`] or [`Served::Stopped`], the
    /// peer sees it closed. Calling twice does nothing more.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.handle.close();
    }

    /// Bytes received on the stream's connection, framing and what was not read yet included: exact to the packet
    /// while units are not. `None` where the system does not count (Unix sockets). Costs a system call.
    #[must_use]
    pub fn received(&self) -> Option<u64> {
        self.handle.received()
    }

    /// What the kernel knows of the stream's connection; `None` where it is not TCP. Costs a system call.
    #[must_use]
    pub fn tcp_info(&self) -> Option<TcpInfo> {
        self.handle.tcp_info()
    }
}

impl std::fmt::Debug for Stopper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stopper")
            .field("stopped", &self.stopped)
            .finish_non_exhaustive()
    }
}

/// The receiving end of one stream.
pub trait ReceiveHalf: Send {
    /// Asks for units, in the order they shall arrive. Does not wait for the peer; what the
    /// connection does not take at once leaves during [`receive`](Self::receive).
    ///
    /// # Errors
    /// [`LaneError::Misuse`] when a unit is too long, an id is outstanding already or more than
    /// [`OUTSTANDING_MAX`] would be; the stream stays usable. Otherwise the stream is over.
    fn grant(&mut self, grants: &[Grant]) -> Result<(), LaneError>;

    /// Takes grants back, best effort: each still ends in a `Received`, as a unit that was already
    /// on its way or as `Missing` with [`missing::CANCELLED`]. Unknown ids are ignored.
    ///
    /// # Errors
    /// Any [`LaneError`] ends the stream.
    fn cancel(&mut self, ids: &[u32]) -> Result<(), LaneError>;

    /// Drives the stream until one unit completes or `deadline` passes.
    ///
    /// # Errors
    /// Any [`LaneError`] ends the stream; every outstanding grant is to be asked for elsewhere.
    fn receive(
        &mut self,
        landing: &mut dyn Landing,
        deadline: Instant,
    ) -> Result<Received, LaneError>;

    /// Grants without answer, in the order given.
    fn outstanding(&self) -> Vec<Grant>;

    /// Whether no grant is outstanding.
    fn is_idle(&self) -> bool;

    /// Counters so far.
    fn observe(&self) -> Observation;

    /// A handle that ends the stream from another thread.
    fn stopper(&self) -> Stopper;

    /// Sets how long the peer may be silent while units are owed; [`PATIENCE`](crate::PATIENCE) at first.
    fn set_patience(&mut self, patience: Duration);

    /// Sets the longest payload of a frame, 16 KiB to 1 MiB (1 MiB at first). Frames
    /// that are checked or opened before they are landed wait in a buffer of at most this much
    /// memory. Both ends must be given the same, before the first unit.
    fn set_fragment_max(&mut self, bytes: usize);
}

/// The sending end of one stream.
pub trait SendHalf: Send {
    /// Answers grants until the receiver closes, or asks nothing for `idle`.
    ///
    /// # Errors
    /// Any [`LaneError`] ends the stream. Bytes the provider cannot give do not: the receiver is told.
    fn serve(&mut self, provider: &dyn Provider, idle: Duration) -> Result<Served, LaneError>;

    /// Counters so far.
    fn observe(&self) -> Observation;

    /// A handle that ends the stream from another thread.
    fn stopper(&self) -> Stopper;

    /// Sets how long the peer may refuse bytes; [`PATIENCE`](crate::PATIENCE) at first.
    fn set_patience(&mut self, patience: Duration);

    /// Sets the longest payload of a frame, 16 KiB to 1 MiB (1 MiB at first). What
    /// does not leave from its place is put together in a buffer of at most this much
    /// memory. Both ends must be given the same, before the first unit.
    fn set_fragment_max(&mut self, bytes: usize);
}

/// Where bytes to be sent lie.
pub enum Extent<'a> {
    /// In memory, from the first byte asked for. May be longer than asked.
    Memory(&'a [u8]),
    /// In a file that can be read at any offset.
    File {
        /// The open file.
        file: Arc<File>,
        /// Where in it the first byte asked for lies.
        offset: u64,
        /// Contiguous bytes from there.
        length: u64,
        /// The same bytes in memory, when they are mapped and cannot vanish (a pattern source). The
        /// checksum is then computed there, and the payload leaves by `sendfile` to another host where it is
        /// plain, else from memory.
        mapped: Option<&'a [u8]>,
    },
}

/// Why a provider has no bytes; sent to the receiver as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason} (code {code})")]
pub struct Absent {
    /// One of [`missing`].
    pub code: u32,
    /// For people; cut after 512 bytes.
    pub reason: String,
}

/// Units after the first that a provider is given: it reads fewer early.
const AHEAD_MAX: usize = 256;

/// The units whose turn it is and that follow, as [`Provider::granted`] wants them.
pub(crate) fn announce<'g>(
    provider: &dyn Provider,
    turn: &'g Grant,
    next: impl IntoIterator<Item = &'g Grant>,
) {
    let is_to_be_read =
        |grant: &&Grant| !(grant.digest && provider.is_hashed(grant.space, grant.range));
    let next = next.into_iter().take(AHEAD_MAX).filter(is_to_be_read);
    let units = std::iter::once(turn).chain(next);
    provider.granted(&mut units.map(|grant| (grant.space, grant.range)));
}

/// Shorter units are read: most are small files, and looking for a hole costs as much.
const HOLE_MIN: u64 = 64 << 10;

/// As [`Provider::is_hole`], which costs a look at the file.
pub(crate) fn is_hole(provider: &dyn Provider, space: u16, range: Range) -> bool {
    range.len() >= HOLE_MIN && provider.is_hole(space, range)
}

/// Bytes a sender may be asked for. Shared by the streams of all lanes.
pub trait Provider: Sync {
    /// Where the bytes of `range` lie, or a prefix of them that is not empty. `range` is not empty.
    ///
    /// # Errors
    /// [`Absent`] when its first byte cannot be given.
    fn extent(&self, space: u16, range: Range) -> Result<Extent<'_>, Absent>;

    /// As [`extent`](Self::extent) where something is computed from the bytes, so that they have to be in memory; `None` where they
    /// have to be read for it, and no file is opened.
    ///
    /// # Errors
    /// As [`extent`](Self::extent).
    fn in_memory(&self, space: u16, range: Range) -> Result<Option<Extent<'_>>, Absent> {
        self.extent(space, range).map(Some)
    }

    /// Fills `out` with the bytes from `offset`, across file boundaries.
    ///
    /// # Errors
    /// [`Absent`] when not all can be given.
    fn read(&self, space: u16, offset: u64, out: &mut [u8]) -> Result<(), Absent>;

    /// Whether all bytes of `range`, which is not empty, are known to be zero, as of a hole of a file: they are not read. `false` is always a
    /// right answer. Lanes of datagrams do not ask.
    fn is_hole(&self, space: u16, range: Range) -> bool {
        let _ = (space, range);
        false
    }

    /// These bytes, read or not, are zeros, and were not sent. Lanes of datagrams send them.
    fn skipped(&self, space: u16, range: Range) {
        let _ = (space, range);
    }

    /// As [`read`](Self::read), for bytes that are looked at and not sent.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn look(&self, space: u16, offset: u64, out: &mut [u8]) -> Result<(), Absent> {
        self.read(space, offset, out)
    }

    /// The first of these units is asked for next, and the others, by space and range, after it in this order, unless the receiver takes
    /// them back: a provider whose bytes need time may get them ready. None: nothing is asked for, and what was got ready is not needed. Lanes
    /// of datagrams do not say.
    fn granted(&self, units: &mut dyn Iterator<Item = (u16, Range)>) {
        let _ = units;
    }

    /// Whether the bytes of `range` were read already, or are being read, so that [`read`](Self::read) copies them once they are there: no file
    /// is to be opened for them.
    fn is_begun(&self, space: u16, range: Range) -> bool {
        let _ = (space, range);
        false
    }

    /// Of a provider that gets its bytes while it serves: ranges of the data that it has beside those it told before, at most
    /// [`HELD_RANGES_MAX`](ropewalk_proto::wire::HELD_RANGES_MAX) of them, and when to ask it again. `None`: it never has any. Lanes of
    /// datagrams never ask.
    fn news(&self) -> Option<(Vec<HeldRange>, Duration)> {
        None
    }

    /// All bytes of a unit were read to be sent, and have this hash (BLAKE3), which the receiver asked for. Lanes of datagrams do not say.
    fn hashed(&self, space: u16, range: Range, digest: &[u8; HASH_LEN]) {
        let _ = (space, range, digest);
    }

    /// The hash of a unit's bytes for a receiver that asks for that alone: what `read` gives, or gave before, on whichever stream.
    ///
    /// # Errors
    /// What `read` reported.
    fn hash(
        &self,
        space: u16,
        range: Range,
        read: &mut dyn FnMut() -> Result<[u8; HASH_LEN], Absent>,
    ) -> Result<[u8; HASH_LEN], Absent> {
        let _ = (space, range);
        read()
    }

    /// Whether the unit is not read when its hash is asked for.
    fn is_hashed(&self, space: u16, range: Range) -> bool {
        let _ = (space, range);
        false
    }
}

/// Where received bytes belong. One per receiving thread.
pub trait Landing {
    /// Memory the bytes `offset..offset + length` belong to, when they have such a place. Asked
    /// again for the same bytes, the same memory must come back; bytes in it count as written when
    /// their unit completes. Bytes may arrive there before they are checked: offer only memory
    /// where nothing of worth lies yet.
    fn buffer(&mut self, space: u16, offset: u64, length: usize) -> Option<&mut [u8]> {
        let _ = (space, offset, length);
        None
    }

    /// Takes bytes that had no buffer.
    ///
    /// # Errors
    /// Whatever the store says; it ends the stream.
    fn write(
        &mut self,
        space: u16,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>>;
}
