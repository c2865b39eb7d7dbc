//! Units from fellow receivers: kept aside until they are known to be what an original holder has, and what this node gives to others.

use std::error::Error;
use std::sync::Arc;

use ropewalk_lane::{Landing, LaneError, Received};
use ropewalk_model::{CHUNK_LEN, Range, time};
use ropewalk_proto::node::{Held, StreamId, with_origins};
use ropewalk_proto::wire::{HeldRange, SPACE_DATA};
use ropewalk_store::StoreError;

use super::Fetch;
use crate::handing::Holder;
use crate::landing::SinkLanding;

/// The unit that a stream receives; at most one chunk.
#[derive(Debug, Default)]
pub(super) struct Aside {
    start: u64,
    bytes: Vec<u8>,
}

impl Aside {
    /// The unit ended without being whole and right: the next one, which may follow it, begins anew.
    fn forget(&mut self) {
        self.bytes.clear();
    }
}

impl Landing for Aside {
    fn write(
        &mut self,
        space: u16,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        if offset != self.start + self.bytes.len() as u64 || self.bytes.is_empty() {
            self.bytes.clear();
            self.start = offset;
        }
        if space != SPACE_DATA || (self.bytes.len() + bytes.len()) as u64 > CHUNK_LEN {
            return Err("bytes that belong to no unit".into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
}

impl Fetch {
    /// What came over a stream of a fellow receiver: what it announced is noted, and a unit that an original holder has is written.
    /// Returns what is left to be dealt with as on any stream.
    pub(super) fn take_aside(
        self: &Arc<Self>,
        id: StreamId,
        aside: &mut Aside,
        landing: &mut SinkLanding,
        received: Received,
    ) -> Result<Option<Received>, LaneError> {
        let (grant, digest, zeros) = match received {
            Received::Unit {
                grant,
                digest,
                zeros,
            } => (grant, digest, zeros),
            Received::Held(ranges) => {
                let unit_at = self.units();
                let mut state = self.state.lock();
                let now = self.member.now();
                state.node.handle_announced(id, &ranges, now, &unit_at);
                self.drain_quietly(state);
                return Ok(None);
            }
            other => {
                if !matches!(other, Received::Idle) {
                    aside.forget();
                }
                return Ok(Some(other));
            }
        };
        let bytes = std::mem::take(&mut aside.bytes);
        let is_all = aside.start == grant.range.start && bytes.len() as u64 == grant.range.len();
        let mut state = self.state.lock();
        let now = self.member.now();
        if !is_all || !state.node.fetch().is_true(id.lane, grant.range, digest) {
            state.node.handle_untrue(id, grant.id, now);
            self.drain(state);
            return Ok(None);
        }
        drop(state);
        let written = landing.write(SPACE_DATA, grant.range.start, &bytes);
        aside.bytes = bytes;
        aside.bytes.clear();
        written.map_err(|source| LaneError::Landing {
            space: SPACE_DATA,
            range: grant.range,
            source,
        })?;
        Ok(Some(Received::Unit {
            grant,
            digest,
            zeros,
        }))
    }
}

impl Holder for Fetch {
    fn held(&self) -> (Held, time::Instant) {
        let held = self.state.lock().node.held();
        (held, self.member.now())
    }

    fn with_origins(&self, ranges: &[Range]) -> Vec<HeldRange> {
        with_origins(ranges, self.state.lock().node.fetch().origins())
    }

    fn read_held(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        let range = Range::new(offset, offset + buf.len() as u64);
        let holds = self.state.lock().node.holds(range);
        match self.sinks().filter(|_| holds) {
            Some(sinks) => sinks.look(offset, buf),
            None => Err(StoreError::NotHeld { range }),
        }
    }

    /// Where it is not what was received, it is read once more: what fails may be the memory in which it was.
    fn check_read(&self, range: Range, digest: &[u8; 32]) {
        if self.state.lock().node.fetch().is_as_received(range, digest) {
            return;
        }
        let Some(sinks) = self.sinks() else { return };
        let mut bytes = vec![0; range.len() as usize];
        if sinks.look(range.start, &mut bytes).is_err() {
            return;
        }
        let digest = ropewalk_model::digest(&bytes);
        let mut state = self.state.lock();
        if !state.node.fetch().is_as_received(range, &digest) {
            state.node.handle_rotten(&sinks.place(range));
            drop(state);
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A whole unit that was damaged is not the begin of the one behind it, which would be too long then: that failed this node.
    #[test]
    fn a_damaged_unit_is_not_the_begin_of_the_next() {
        let unit = vec![7; CHUNK_LEN as usize / 2];
        let mut aside = Aside::default();
        let write = |aside: &mut Aside, number: u64| {
            let start = number * CHUNK_LEN;
            for half in [0, CHUNK_LEN / 2] {
                aside.write(SPACE_DATA, start + half, &unit).unwrap();
            }
            assert_eq!((aside.start, aside.bytes.len() as u64), (start, CHUNK_LEN));
        };
        write(&mut aside, 3);
        aside.forget();
        write(&mut aside, 4);
    }
}
