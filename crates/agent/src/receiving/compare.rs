//! Asks holders for hashes of what they hold, so that contents of replicas are compared, and reads the sink again where two
//! streams wrote to a unit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_lane::{Grant, ReceiveHalf, Received};
use ropewalk_model::Range;
use ropewalk_proto::control::Peer;
use ropewalk_proto::ledger::LaneId;
use ropewalk_proto::node::fetch::{Ask, Difference, Writer};
use ropewalk_proto::wire::SPACE_DATA;
use ropewalk_store::StoreError;

use super::Fetch;
use super::rails::Way;
use crate::connect::Via;
use crate::landing::BufferLanding;
use crate::streams::HASH_STREAM;

/// A stream that has nothing to ask for looks this often whether it should end; what there is to ask for wakes it.
const IDLE: Duration = Duration::from_millis(200);

/// The choice of units is another one in each transfer and on each node.
pub(super) fn seed(transfer: &[u8; 16], node: u32) -> u64 {
    let [high, low] = [0, 8].map(|at| {
        let half: [u8; 8] = std::array::from_fn(|i| transfer[at + i]);
        u64::from_le_bytes(half)
    });
    high ^ low.rotate_left(32) ^ u64::from(node)
}

impl Fetch {
    /// Asks a peer for hashes until nothing is left to compare.
    pub(super) fn run_compare(self: &Arc<Self>, lane: LaneId, peer: &Peer) {
        let mut reason = String::new();
        for pause in std::iter::once(Duration::ZERO).chain(super::retries()) {
            if self.pause(pause) {
                return;
            }
            match self.compare_over(lane, peer) {
                Ok(()) => return,
                Err(text) => reason = text,
            }
            let mut state = self.state.lock();
            state.node.fetch_mut().handle_second_broken(peer.node);
            if state.node.failure().is_some() || state.node.fetch().is_finished() {
                return;
            }
        }
        let mut state = self.state.lock();
        let now = self.member.now();
        state
            .node
            .fetch_mut()
            .handle_second_down(peer.node, &reason, now);
        self.drain(state);
    }

    /// Opens a stream and asks over it; in words when it breaks.
    fn compare_over(self: &Arc<Self>, lane: LaneId, peer: &Peer) -> Result<(), String> {
        let way = self.way_of(lane);
        let (connected, via) = match &way {
            Some(way) => (way.connected.clone(), &way.via),
            None => {
                let connected = self.ways.connect(&self.member, peer);
                (connected.map_err(|e| e.to_string())?, &Via::Pair)
            }
        };
        let (mut half, _) = connected
            .join(&self.member, via, HASH_STREAM)
            .map_err(|e| e.to_string())?;
        let key = self.member.remember(half.stopper());
        let result = self.ask_hashes(peer.node, half.as_mut());
        self.member.forget(key);
        result
    }

    /// How the streams of the lane connect, unless another handshake has been done since.
    fn way_of(&self, lane: LaneId) -> Option<Way> {
        let state = self.state.lock();
        let way = state.lanes.get(lane)?.way.clone()?;
        drop(state);
        let newest = self.ways.newest(way.connected.peer.node)?;
        newest.has_keys_of(&way.connected).then_some(way)
    }

    fn ask_hashes(self: &Arc<Self>, node: u32, half: &mut dyn ReceiveHalf) -> Result<(), String> {
        // Nothing lands: hashes only are asked for.
        let mut landing = BufferLanding { bytes: Vec::new() };
        let (mut next_id, mut outstanding) = (0u32, 0usize);
        while !self.stopped() {
            let mut state = self.state.lock();
            let ask = state.node.fetch_mut().next_digests(node);
            if state.node.has_events() {
                self.drain(state);
                state = self.state.lock();
            }
            match ask {
                Ask::Closed => return Ok(()),
                Ask::Wait if outstanding == 0 => {
                    if state.node.failure().is_some() {
                        return Ok(());
                    }
                    self.changed.wait_for(&mut state, IDLE);
                    continue;
                }
                Ask::Wait => drop(state),
                Ask::Units(units) => {
                    drop(state);
                    outstanding += units.len();
                    let grant = |range: Range| {
                        next_id = next_id.wrapping_add(1);
                        Grant {
                            id: next_id,
                            space: SPACE_DATA,
                            range,
                            hash: false,
                            digest: true,
                        }
                    };
                    let grants: Vec<Grant> = units.into_iter().map(grant).collect();
                    half.grant(&grants).map_err(|e| e.to_string())?;
                }
            }
            let received = half.receive(&mut landing, Instant::now() + IDLE);
            let now = self.member.now();
            match received.map_err(|e| e.to_string())? {
                Received::Digest { grant, digest } => {
                    outstanding -= 1;
                    let mut state = self.state.lock();
                    state
                        .node
                        .fetch_mut()
                        .handle_digest(node, grant.range, digest, now);
                    self.drain_quietly(state);
                }
                Received::Missing { grant, reason, .. } => {
                    outstanding -= 1;
                    let mut state = self.state.lock();
                    state
                        .node
                        .fetch_mut()
                        .handle_no_digest(node, grant.range, &reason, now);
                    self.drain_quietly(state);
                }
                Received::Idle => {}
                Received::Unit { .. } | Received::Corrupt { .. } | Received::Held(_) => {
                    return Err("it sent something else where hashes were due".into());
                }
            }
        }
        Ok(())
    }

    /// Another stream wrote to a unit that was just counted: what lies in the sink now must be what was counted.
    pub(super) fn reread(self: &Arc<Self>, writer: Writer, range: Range, digest: &[u8; 32]) {
        let Some(sinks) = self.sinks() else { return };
        let mut state = self.state.lock();
        while state.node.fetch_mut().is_written_by_others(writer, range) && !self.stopped() {
            self.changed.wait_for(&mut state, IDLE);
        }
        drop(state);
        let mut bytes = vec![0; range.len() as usize];
        let is_right = match sinks.read_back(range.start, &mut bytes) {
            Ok(()) => ropewalk_model::digest(&bytes) == *digest,
            // Nothing lies there that could be wrong.
            Err(StoreError::NotKept { .. }) => true,
            Err(error) => return self.fail(error.to_string()),
        };
        let mut state = self.state.lock();
        state.node.fetch_mut().handle_reread(range, is_right);
        self.drain(state);
    }

    /// The bytes of a difference as users know them.
    pub(super) fn place(&self, difference: &Difference) -> String {
        match self.sinks() {
            Some(sinks) => sinks.place(difference.range),
            None => "the data".into(),
        }
    }
}
