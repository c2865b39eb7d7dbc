//! Drives one stream of a lane: asks the state machine what to grant, lands what comes, and opens the stream again when
//! it breaks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use ropewalk_lane::{Grant, LaneError, ReceiveHalf, Received, missing};
use ropewalk_model::Range;
use ropewalk_proto::participant::{Take, UNITS_PER_TAKE_MAX, Writer};
use ropewalk_proto::wire::SPACE_DATA;

use super::rails::Way;
use super::{Fetch, RETRIES, State};
use crate::connect;
use crate::landing::SinkLanding;

/// An idle stream looks this often for work to steal; other wake-ups come by notice. One whose
/// node has finished waits as well: the master may bring more.
const IDLE: Duration = Duration::from_millis(50);

/// Longest a stream waits for the peer before it looks for cancels and the end.
const POLL: Duration = Duration::from_millis(200);

/// Units asked for on one stream and not come, whatever their bytes: a small file is a unit. The grants have to fit into
/// the buffers of the connection (40 bytes each), as neither end reads while it waits for room to write ...
const UNITS_OUTSTANDING_MAX: usize = 2048;

/// ... but beside datagrams, where both do. A round trip brings no more than this.
const UNITS_OUTSTANDING_DATAGRAMS: usize = 8192;

const _: () =
    assert!(UNITS_OUTSTANDING_DATAGRAMS + UNITS_PER_TAKE_MAX <= ropewalk_lane::OUTSTANDING_MAX);

/// A stream that owes units and brings nothing for so long is given up while another rail to the same host works.
const RAIL_SILENCE: Duration = Duration::from_millis(1500);

/// How one open stream ended.
#[derive(Debug, Default)]
struct Moved {
    units: u64,
    reopen: bool,
    // Not at once, if another rail to the same host works.
    gives_up: bool,
    // Not at all: nothing ever came this way.
    hopeless: bool,
    // Fewer streams are wanted.
    is_surplus: bool,
    // Another way does the work of this one.
    is_left: bool,
    reason: String,
}

impl Fetch {
    /// Runs one stream, opening it again when it breaks, until nothing is left to do.
    pub(super) fn run_stream(self: &Arc<Self>, lane: usize, way: &Way, index: u32) {
        let began = Instant::now();
        let mut retries = RETRIES.iter();
        loop {
            {
                let mut state = self.state.lock();
                if state.is_left(lane, self.transfer.now_ns()) {
                    return self.leave(state, lane);
                }
                let streams = state.streams;
                let info = &mut state.lanes[lane];
                if info.live > streams {
                    info.live -= 1;
                    return;
                }
            }
            let (reason, gives_up) = match way.connected.join(&self.transfer, &way.via, index) {
                Ok((half, kind)) => {
                    {
                        let mut state = self.state.lock();
                        let info = &mut state.lanes[lane];
                        info.kind = kind;
                        info.open += 1;
                        info.streams = info.streams.max(info.open);
                    }
                    let driven = self.drive(lane, half);
                    match driven {
                        Ok(moved) => {
                            if moved.is_surplus {
                                return;
                            }
                            let mut state = self.state.lock();
                            state.lanes[lane].open -= 1;
                            if moved.is_left {
                                return self.leave(state, lane);
                            }
                            drop(state);
                            if !moved.reopen {
                                return;
                            }
                            // It worked for a while: a new series of attempts.
                            if moved.units > 0 {
                                retries = RETRIES.iter();
                            }
                            if moved.hopeless {
                                retries = [].iter();
                            }
                            (moved.reason, moved.gives_up)
                        }
                        Err(text) => return self.fail(text),
                    }
                }
                Err(error) => (error.to_string(), false),
            };
            let mut state = self.state.lock();
            // While another rail does the work this one is tried again at leisure. The last one goes on trying.
            let gives_up = gives_up && state.node.fetch().has_other_rail(lane);
            if let Some(&pause) = retries.next().filter(|_| !gives_up) {
                drop(state);
                if self.pause(pause) {
                    return;
                }
                continue;
            }
            state.lanes[lane].live -= 1;
            let was_last = state.lanes[lane].live == 0;
            if was_last {
                // Where more is to be fetched from there later, the pair is connected again; not while other rails work, whose
                // keys a second handshake would end.
                if !state.node.fetch().has_other_rail(lane) {
                    connect::forget(&self.transfer, &way.connected);
                }
                state.node.fetch_mut().handle_lane_down(lane, &reason);
            }
            self.drain(state);
            if was_last {
                self.regain(lane, way, began.elapsed());
            }
            return;
        }
    }

    /// Drives one open stream.
    ///
    /// # Errors
    /// A failure of this node, in words; failures of the peer end the stream only.
    fn drive(
        self: &Arc<Self>,
        lane: usize,
        mut half: Box<dyn ReceiveHalf>,
    ) -> Result<Moved, String> {
        let Some(sinks) = self.sinks() else {
            return Ok(Moved::default());
        };
        let key = self.transfer.remember(half.stopper());
        let datagrams_before = {
            let mut state = self.state.lock();
            let info = &mut state.lanes[lane];
            info.meter.add(key, half.stopper());
            info.datagrams
        };
        let writer = Writer { lane, stream: key };
        let mut landing = SinkLanding::new(self.clone(), sinks.clone(), writer);
        let mut granted: HashMap<u32, Range> = HashMap::new();
        let mut outstanding = 0u64;
        let mut next_id = 0u32;
        let mut moved = Moved::default();
        // Bytes that had come when the stream was last seen to bring some.
        let mut seen = (0, Instant::now());
        let unit_at = |offset| sinks.unit_at(offset);
        let units_max = match self.of_datagrams {
            true => UNITS_OUTSTANDING_DATAGRAMS,
            false => UNITS_OUTSTANDING_MAX,
        };
        let result: Result<(), LaneError> = loop {
            if self.stopped() {
                break Ok(());
            }
            if granted.is_empty() {
                seen.1 = Instant::now();
            }
            let now = self.transfer.now_ns();
            let (take, cancel) = {
                let mut state = self.state.lock();
                moved.is_left = state.is_left(lane, now);
                let streams = state.streams;
                let info = &mut state.lanes[lane];
                // Those that only try to connect leave by themselves.
                if !moved.is_left && !moved.is_surplus && info.open > streams {
                    // It brings what it was asked for, then it ends.
                    info.live -= 1;
                    info.open -= 1;
                    moved.is_surplus = true;
                }
                // With so many units it is as full as with all its bytes.
                let outstanding = match granted.len() + UNITS_PER_TAKE_MAX > units_max {
                    true => u64::MAX,
                    false => outstanding,
                };
                let take = match moved.is_surplus || moved.is_left {
                    true => Take::Closed,
                    false => state
                        .node
                        .fetch_mut()
                        .take(lane, outstanding, now, &unit_at),
                };
                let mine: Vec<Range> = if granted.is_empty() || state.lanes[lane].cancel.is_empty()
                {
                    Vec::new()
                } else {
                    let list = &mut state.lanes[lane].cancel;
                    let mine = list
                        .iter()
                        .copied()
                        .filter(|r| granted.values().any(|g| g == r))
                        .collect();
                    list.retain(|r| !granted.values().any(|g| g == r));
                    mine
                };
                if state.node.fetch().has_events() {
                    self.drain(state);
                }
                (take, mine)
            };
            if !cancel.is_empty() {
                let ids: Vec<u32> = granted
                    .iter()
                    .filter(|(_, r)| cancel.contains(r))
                    .map(|(&id, _)| id)
                    .collect();
                if let Err(error) = half.cancel(&ids) {
                    break Err(error);
                }
            }
            match take {
                Take::Units(units) => {
                    let grants: Vec<Grant> = units
                        .iter()
                        .map(|unit| {
                            let id = next_id;
                            next_id = next_id.wrapping_add(1);
                            granted.insert(id, unit.range);
                            outstanding += unit.range.len();
                            Grant {
                                id,
                                space: SPACE_DATA,
                                range: unit.range,
                                hash: self.hash,
                                digest: false,
                            }
                        })
                        .collect();
                    if let Err(error) = half.grant(&grants) {
                        break Err(error);
                    }
                }
                Take::Wait(until) if granted.is_empty() => {
                    let pause = until.map_or(IDLE, |at| {
                        Duration::from_nanos(at.saturating_sub(now)).min(IDLE)
                    });
                    let mut state = self.state.lock();
                    if !self.stopped() {
                        self.changed.wait_for(&mut state, pause);
                    }
                    continue;
                }
                Take::Closed if granted.is_empty() => break Ok(()),
                Take::Wait(_) | Take::Closed => {}
            }
            match half.receive(&mut landing, Instant::now() + POLL) {
                Ok(Received::Unit { grant, digest }) => {
                    granted.remove(&grant.id);
                    outstanding -= grant.range.len();
                    moved.units += 1;
                    let now = self.transfer.now_ns();
                    let mut state = self.state.lock();
                    if self.of_datagrams {
                        state.lanes[lane].datagrams = datagrams_before.and(&half.observe());
                    }
                    state.lanes[lane]
                        .cancel
                        .retain(|range| *range != grant.range);
                    let (_, rereads) = state.node.fetch_mut().handle_written_unit(
                        writer,
                        grant.range,
                        digest,
                        now,
                    );
                    if state.node.fetch().is_finished()
                        || !state.lanes.iter().all(|l| l.cancel.is_empty())
                    {
                        self.drain(state);
                    } else {
                        self.drain_quietly(state);
                    }
                    if let (true, Some(digest)) = (rereads, digest) {
                        self.reread(writer, grant.range, &digest);
                    }
                }
                Ok(Received::Corrupt { grant, reason }) => {
                    granted.remove(&grant.id);
                    outstanding -= grant.range.len();
                    let mut state = self.state.lock();
                    state.node.fetch_mut().handle_corrupt(
                        lane,
                        grant.range,
                        &reason,
                        self.transfer.now_ns(),
                    );
                    self.drain(state);
                }
                Ok(Received::Missing {
                    grant,
                    code,
                    reason,
                }) => {
                    granted.remove(&grant.id);
                    outstanding -= grant.range.len();
                    let now = self.transfer.now_ns();
                    let mut state = self.state.lock();
                    state.lanes[lane]
                        .cancel
                        .retain(|range| *range != grant.range);
                    if code == missing::CANCELLED {
                        state
                            .node
                            .fetch_mut()
                            .handle_returned(lane, grant.range, now);
                    } else {
                        state
                            .node
                            .fetch_mut()
                            .handle_refused(lane, grant.range, &reason, now);
                    }
                    self.drain(state);
                }
                Ok(Received::Digest { .. }) => {
                    let text = "a hash where bytes were due";
                    break Err(LaneError::Unexpected(text.into()));
                }
                Ok(Received::Idle) => {
                    let come = half.observe().bytes_in;
                    if come != seen.0 {
                        seen = (come, Instant::now());
                    } else if seen.1.elapsed() > RAIL_SILENCE && self.other_rail_moves(lane) {
                        moved.reason = "silent while another rail to the same host moves".into();
                        moved.gives_up = true;
                        break Ok(());
                    }
                }
                Err(error) => break Err(error),
            }
        };
        self.transfer.forget(key);
        let now = self.transfer.now_ns();
        let mut state = self.state.lock();
        state.lanes[lane].waited += half.observe().waited;
        state.lanes[lane].meter.remove(key);
        // The connection goes before its units become ready again, so that no late byte of this
        // stream can reach the sink after another copy.
        drop(half);
        for (_, range) in granted {
            state.lanes[lane]
                .cancel
                .retain(|cancelled| *cancelled != range);
            state.node.fetch_mut().handle_returned(lane, range, now);
        }
        self.drain(state);
        match result {
            Ok(()) => Ok(Moved {
                reopen: !moved.reason.is_empty(),
                ..moved
            }),
            Err(LaneError::Stopped) if self.stopped() => Ok(moved),
            Err(LaneError::Stopped) => Ok(Moved {
                reopen: true,
                gives_up: true,
                reason: "this host's interface lost its link or its address".into(),
                ..moved
            }),
            // Trying again would fail in the same way, after the same wait.
            Err(error @ (LaneError::Blocked { .. } | LaneError::TooLong { .. })) => Ok(Moved {
                reopen: true,
                hopeless: moved.units == 0,
                reason: error.to_string(),
                ..moved
            }),
            Err(LaneError::Landing { source, .. }) => Err(source.to_string()),
            Err(LaneError::Misuse(text)) => Err(text),
            Err(error) => Ok(Moved {
                reopen: true,
                reason: error.to_string(),
                ..moved
            }),
        }
    }

    /// As `drain` when the only events can be ones that concern nobody who waits.
    pub(super) fn drain_quietly(self: &Arc<Self>, state: MutexGuard<'_, State>) {
        if state.node.fetch().has_events() {
            self.drain(state);
        }
    }
}
