//! A stream within one process: the thread that receives reads the source itself.
//!
//! ```text
//!  grant(units) ──▶ queue          no peer, no thread of a sender, no frames
//!  receive(landing): source ── read ──▶ one piece in the cache ── hash ──▶ landing
//! ```
//!
//! There is no way on which bytes could be damaged, so nothing is sealed or summed; the hash of a unit is that of what was read. Each
//! piece is read, hashed and written while it is in the processor's cache. Cost: one copy in and one out.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ropewalk_model::{Digester, Range, ZEROS, digest_of_zeros};

use crate::LaneError;
use crate::half::{
    Absent, Extent, Grant, Handle, Landing, Observation, Provider, ReceiveHalf, Received, Stopper,
    announce, check_grants, is_hole, missing, place, write,
};
use crate::receive::PIECE_LEN;

/// The receiving end of a stream whose sender's bytes this process can read.
#[must_use]
pub fn receive_half(provider: Arc<dyn Provider + Send + Sync>, ends: Ends) -> Box<dyn ReceiveHalf> {
    Box::new(Local {
        provider,
        outstanding: VecDeque::new(),
        cancelled: VecDeque::new(),
        highest: None,
        piece: Box::default(),
        seen: Observation::default(),
        ends,
    })
}

/// How the two sides of a stream end it.
#[derive(Default)]
pub struct Ends {
    stopped: Arc<AtomicBool>,
    closed: Arc<AtomicBool>,
    bell: Arc<Bell>,
}

impl std::fmt::Debug for Ends {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ends")
            .field("stopped", &self.stopped)
            .field("closed", &self.closed)
            .finish_non_exhaustive()
    }
}

impl Ends {
    /// For the sender, which ends the stream with this as it would close a connection: nothing that is read after that is landed.
    #[must_use]
    pub fn of_sender(&self) -> Stopper {
        Stopper {
            stopped: self.closed.clone(),
            handle: self.bell.clone(),
        }
    }

    /// Whether the stream goes on.
    ///
    /// * `owed`: units without an answer.
    fn check(&self, owed: usize) -> Result<(), LaneError> {
        if self.stopped.load(Ordering::Acquire) {
            return Err(LaneError::Stopped);
        }
        match self.closed.load(Ordering::Acquire) {
            true => Err(LaneError::Closed { outstanding: owed }),
            false => Ok(()),
        }
    }
}

struct Local {
    provider: Arc<dyn Provider + Send + Sync>,
    outstanding: VecDeque<Grant>,
    cancelled: VecDeque<Grant>,
    highest: Option<u32>,
    // Made when first needed.
    piece: Box<[u8]>,
    seen: Observation,
    ends: Ends,
}

/// Wakes a stream that has nothing to do when it is stopped.
#[derive(Default)]
struct Bell {
    has_rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn wait(&self, until: Instant) {
        let has_rung = self.has_rung.lock().unwrap_or_else(PoisonError::into_inner);
        let left = until.saturating_duration_since(Instant::now());
        let waits = |has_rung: &mut bool| !*has_rung;
        drop(self.changed.wait_timeout_while(has_rung, left, waits));
    }
}

impl Handle for Bell {
    fn close(&self) {
        *self.has_rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    fn received(&self) -> Option<u64> {
        None
    }
}

/// Why a unit ends without its bytes.
enum Failed {
    Absent(Absent),
    Lane(LaneError),
}

impl From<Absent> for Failed {
    fn from(absent: Absent) -> Self {
        Self::Absent(absent)
    }
}

impl From<LaneError> for Failed {
    fn from(error: LaneError) -> Self {
        Self::Lane(error)
    }
}

impl Local {
    /// One unit, from the source to the landing; its hash, where that is wanted, and how many of its bytes are in a hole.
    fn unit(
        &mut self,
        grant: &Grant,
        landing: &mut dyn Landing,
    ) -> Result<(Option<[u8; 32]>, u64), Failed> {
        if grant.digest {
            return self.digest(grant).map(|hash| (Some(hash), 0));
        }
        let len = grant.range.len() as usize;
        if is_hole(&*self.provider, grant.space, grant.range) {
            self.ends.check(self.owed() + 1)?;
            match place(landing, grant.space, grant.range.start, len) {
                Some(place) => place.fill(0),
                None => write(landing, grant.space, grant.range.start, &ZEROS[..len])?,
            }
            self.provider.skipped(grant.space, grant.range);
            let hash = grant.hash.then(|| digest_of_zeros(len));
            return Ok((hash, len as u64));
        }
        let mut hasher = grant.hash.then(Digester::default);
        let mut at = grant.range.start;
        while at < grant.range.end {
            let asked = self.piece_at(grant, at)?;
            let left = grant.range.end - at;
            let hash = |bytes: &[u8]| {
                if let Some(hasher) = &mut hasher {
                    hasher.part(bytes, bytes.len() as u64 == left);
                }
            };
            at += self.carry(grant.space, asked, landing, hash)? as u64;
        }
        let hash = hasher.map(|mut hasher| hasher.get());
        if let Some(hash) = &hash {
            self.provider.hashed(grant.space, grant.range, hash);
        }
        Ok((hash, 0))
    }

    /// The next piece of a unit, if it is still wanted.
    fn piece_at(&self, grant: &Grant, at: u64) -> Result<Range, LaneError> {
        self.ends.check(self.owed() + 1)?;
        let left = usize::try_from(grant.range.end - at).unwrap_or(usize::MAX);
        Ok(Range {
            start: at,
            end: at + left.min(PIECE_LEN) as u64,
        })
    }

    /// The hash of a unit, of which nothing else is wanted.
    fn digest(&mut self, grant: &Grant) -> Result<[u8; 32], Failed> {
        let provider = self.provider.clone();
        let mut broken = None;
        let mut read = || {
            self.hash(grant).map_err(|failed| match failed {
                Failed::Absent(absent) => absent,
                Failed::Lane(error) => {
                    broken = Some(error);
                    Absent {
                        code: missing::CANCELLED,
                        reason: "the stream has ended".into(),
                    }
                }
            })
        };
        let hash = provider.hash(grant.space, grant.range, &mut read);
        match broken {
            Some(error) => Err(Failed::Lane(error)),
            None => hash.map_err(Failed::Absent),
        }
    }

    /// Reads a unit for its hash.
    fn hash(&mut self, grant: &Grant) -> Result<[u8; 32], Failed> {
        let mut hasher = Digester::default();
        let mut at = grant.range.start;
        while at < grant.range.end {
            let asked = self.piece_at(grant, at)?;
            let left = grant.range.end - at;
            let hash = |bytes: &[u8]| hasher.part(bytes, bytes.len() as u64 == left);
            at += self.look(grant.space, asked, hash)? as u64;
        }
        Ok(hasher.get())
    }

    /// Moves a piece; how many of its bytes that were.
    fn carry(
        &mut self,
        space: u16,
        asked: Range,
        landing: &mut dyn Landing,
        hash: impl FnOnce(&[u8]),
    ) -> Result<usize, Failed> {
        let len = asked.len() as usize;
        let extent = self.provider.in_memory(space, asked)?;
        let lent = match &extent {
            Some(Extent::Memory(bytes))
            | Some(Extent::File {
                mapped: Some(bytes),
                ..
            }) if !bytes.is_empty() => Some(&bytes[..bytes.len().min(len)]),
            _ => None,
        };
        if let Some(bytes) = lent {
            hash(bytes);
            match place(landing, space, asked.start, bytes.len()) {
                Some(place) => place.copy_from_slice(bytes),
                None => write(landing, space, asked.start, bytes)?,
            }
            return Ok(bytes.len());
        }
        if let Some(place) = place(landing, space, asked.start, len) {
            self.provider.read(space, asked.start, place)?;
            hash(place);
            return Ok(len);
        }
        let owed = self.owed() + 1;
        let piece = &mut piece(&mut self.piece)[..len];
        self.provider.read(space, asked.start, piece)?;
        // A disk may have taken its time.
        self.ends.check(owed)?;
        hash(piece);
        write(landing, space, asked.start, piece)?;
        Ok(len)
    }

    /// Units that wait for their turn.
    fn owed(&self) -> usize {
        self.outstanding.len() + self.cancelled.len()
    }

    /// Reads a piece of which only the hash is wanted; its length.
    fn look(
        &mut self,
        space: u16,
        asked: Range,
        hash: impl FnOnce(&[u8]),
    ) -> Result<usize, Failed> {
        let len = asked.len() as usize;
        let piece = &mut piece(&mut self.piece)[..len];
        self.provider.look(space, asked.start, piece)?;
        hash(piece);
        Ok(len)
    }
}

fn piece(place: &mut Box<[u8]>) -> &mut [u8] {
    if place.is_empty() {
        *place = vec![0; PIECE_LEN].into();
    }
    place
}

impl ReceiveHalf for Local {
    fn grant(&mut self, grants: &[Grant]) -> Result<(), LaneError> {
        check_grants(&self.outstanding, self.highest, grants)?;
        self.outstanding.extend(grants);
        self.highest = grants.iter().map(|grant| grant.id).max().max(self.highest);
        Ok(())
    }

    fn cancel(&mut self, ids: &[u32]) -> Result<(), LaneError> {
        for id in ids {
            let index = self.outstanding.iter().position(|grant| grant.id == *id);
            self.cancelled
                .extend(index.and_then(|index| self.outstanding.remove(index)));
        }
        Ok(())
    }

    fn receive(
        &mut self,
        landing: &mut dyn Landing,
        deadline: Instant,
    ) -> Result<Received, LaneError> {
        if self.owed() == 0 {
            // What was got ready for units that were taken back is not needed.
            self.provider.granted(&mut std::iter::empty());
            self.ends.bell.wait(deadline);
        }
        self.ends.check(self.owed())?;
        if let Some(grant) = self.cancelled.pop_front() {
            return Ok(Received::Missing {
                grant,
                code: missing::CANCELLED,
                reason: "the receiver cancelled it".into(),
            });
        }
        let Some(grant) = self.outstanding.pop_front() else {
            return Ok(Received::Idle);
        };
        announce(self.provider.as_ref(), &grant, &self.outstanding);
        match self.unit(&grant, landing) {
            Ok((digest, zeros)) => {
                self.seen.units += 1;
                if let (true, Some(digest)) = (grant.digest, digest) {
                    return Ok(Received::Digest { grant, digest });
                }
                self.seen.payload += grant.range.len() - zeros;
                self.seen.bytes_in += grant.range.len();
                Ok(Received::Unit {
                    grant,
                    digest,
                    zeros,
                })
            }
            Err(Failed::Absent(Absent { code, reason })) => {
                // A stream that has ended lacks nothing.
                self.ends.check(self.owed() + 1)?;
                Ok(Received::Missing {
                    grant,
                    code,
                    reason,
                })
            }
            Err(Failed::Lane(error)) => Err(error),
        }
    }

    fn outstanding(&self) -> Vec<Grant> {
        let cancelled = self.cancelled.iter();
        cancelled.chain(&self.outstanding).copied().collect()
    }

    fn is_idle(&self) -> bool {
        self.cancelled.is_empty() && self.outstanding.is_empty()
    }

    fn observe(&self) -> Observation {
        self.seen
    }

    fn stopper(&self) -> Stopper {
        Stopper {
            stopped: self.ends.stopped.clone(),
            handle: self.ends.bell.clone(),
        }
    }

    /// There is no peer that could be silent.
    fn set_patience(&mut self, _patience: Duration) {}

    /// There are no frames.
    fn set_fragment_max(&mut self, _bytes: usize) {}
}
