//! One stream of a lane: a thread that does what the node's machine says, and hands in what happened.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_lane::doing::{Doing, during};
use ropewalk_lane::{Grant, Landing, LaneError, ReceiveHalf, Received, missing};
use ropewalk_model::{Range, time};
use ropewalk_proto::ledger::LaneId;
use ropewalk_proto::node::fetch::UNITS_PER_TAKE_MAX;
use ropewalk_proto::node::{Break, Node, Step, StreamId, UNITS_OUTSTANDING_DATAGRAMS};
use ropewalk_proto::wire::SPACE_DATA;

use super::rails::Way;
use super::relayed::Aside;
use super::{Datagrams, Fetch};
use crate::AgentError;
use crate::connect::Via;
use crate::landing::SinkLanding;
use crate::waits::Side;

/// An idle stream looks this often for work to steal; other wake-ups come by notice. One whose
/// node has finished waits as well: the master may bring more.
const IDLE: Duration = Duration::from_millis(50);

/// Longest a stream waits for the peer before it looks for cancels and the end.
const POLL: Duration = Duration::from_millis(200);

const _: () =
    assert!(UNITS_OUTSTANDING_DATAGRAMS + UNITS_PER_TAKE_MAX <= ropewalk_lane::OUTSTANDING_MAX);

/// How long a stream waits for the peer.
///
/// * `is_idle`: it was asked for nothing. What a fellow receiver may be asked for shows elsewhere, too.
/// * `left`: until it may be asked for more, where a limit says so.
fn pause(is_idle: bool, left: Option<Duration>) -> Duration {
    let longest = match is_idle {
        true => IDLE,
        false => POLL,
    };
    left.map_or(longest, |left| left.min(longest))
}

/// A stream that is connected.
struct Connection {
    half: Box<dyn ReceiveHalf>,
    landing: SinkLanding,
    // From a fellow receiver: units wait there until they are known to be right.
    aside: Option<Aside>,
    // With the transfer and the lane's meter.
    key: u64,
    // What the lane's datagrams were before.
    before: Datagrams,
}

impl Fetch {
    /// Drives one stream until nothing is left to do for it, or the transfer ends.
    pub(super) fn run_stream(self: &Arc<Self>, first: StreamId) {
        let mut id = first;
        let mut connection = None;
        let waits = self.member.waits.clone();
        let _here = waits.enter(Side::Receives);
        while !self.stopped() {
            let carried = match (self.next_step(id), &mut connection) {
                (Step::End, _) => return self.forget_lost(id.lane),
                (Step::Wait(_), _) => Ok(()),
                (Step::Find, _) => {
                    id = during(Doing::Connect, || self.find(id));
                    Ok(())
                }
                (Step::Open, _) => {
                    connection = during(Doing::Connect, || self.open(id));
                    Ok(())
                }
                (Step::Probe, _) => {
                    during(Doing::Connect, || self.probe(id));
                    Ok(())
                }
                (Step::Cancel(grants), Some(open)) => open.half.cancel(&grants),
                (Step::Grant(grants), Some(open)) => {
                    let granted = self.grant(open, &grants);
                    granted.and_then(|()| self.receive(id, open, None))
                }
                (Step::Receive(until), Some(open)) => self.receive(id, open, until),
                (_, open) => {
                    self.close(id, open.take(), Ok(()));
                    Ok(())
                }
            };
            if let Err(error) = carried {
                self.close(id, connection.take(), Err(error));
            }
        }
        self.close(id, connection, Ok(()));
    }

    /// A stream of the lane has ended for good. Where its peer was given up, the way there is no way any more: hashes may still be
    /// asked for, over another one.
    fn forget_lost(&self, lane: LaneId) {
        let mut state = self.state.lock();
        if state.node.fetch().is_reachable(lane) {
            return;
        }
        let way = state.lane(lane).way.clone();
        drop(state);
        if let Some(way) = way {
            self.ways.forget(&way.connected);
        }
    }

    /// What to do with the stream; waits while that is nothing.
    fn next_step(self: &Arc<Self>, id: StreamId) -> Step {
        let unit_at = self.units();
        let mut state = self.state.lock();
        let now = self.member.now();
        let step = state.node.next_step(id, now, &unit_at);
        if state.node.has_events() {
            self.drain(state);
            state = self.state.lock();
        }
        if let Step::Wait(until) = &step
            && !self.stopped()
        {
            let pause = until.map_or(IDLE, |at| Duration::from(at.since(now)).min(IDLE));
            during(Doing::Idle, || self.changed.wait_for(&mut state, pause));
        }
        step
    }

    /// Finds a way to the peer; the stream to go on with.
    fn find(self: &Arc<Self>, id: StreamId) -> StreamId {
        let (peer, old) = {
            let mut state = self.state.lock();
            let old = state.lane(id.lane).way.clone();
            (state.node.peer(id.lane).clone(), old)
        };
        // It does not work any more.
        if let Some(old) = old {
            self.ways.forget(&old.connected);
        }
        match self.ways.connect(&self.member, &peer) {
            Ok(connected) => self.found(id, connected),
            Err(error) => {
                let mut state = self.state.lock();
                let now = self.member.now();
                state.node.handle_not_found(id, &error.to_string(), now);
                self.drain(state);
                id
            }
        }
    }

    /// How streams of the lane are opened. A rail is one after another handshake with its peer, too, which ends the first one's right to
    /// open streams.
    fn way(&self, lane: LaneId) -> Option<Way> {
        let mut state = self.state.lock();
        let way = state.lane(lane).way.as_mut()?;
        if let (Via::Rail(_), Some(newest)) = (&way.via, self.ways.newest(way.connected.peer.node))
        {
            way.connected = newest;
        }
        Some(way.clone())
    }

    /// Connects the stream.
    fn open(self: &Arc<Self>, id: StreamId) -> Option<Connection> {
        let way = self.way(id.lane);
        let joined = match way {
            Some(way) => way.connected.join(&self.member, &way.via, id.number),
            None => Err(AgentError::Unconnected("no way is known".into())),
        };
        match joined.map(|joined| self.sinks().zip(Some(joined))) {
            Ok(None) => None,
            Ok(Some((sinks, (half, kind)))) => {
                let key = self.member.remember(half.stopper());
                let mut state = self.state.lock();
                state.node.handle_opened(id, self.member.now());
                let info = state.lane(id.lane);
                info.kind = kind;
                info.meter.add(key, half.stopper());
                let before = info.datagrams;
                let is_relayed = state.node.fetch().is_relayed(id.lane);
                Some(Connection {
                    landing: SinkLanding::new(self.clone(), sinks, Node::writer(id)),
                    aside: is_relayed.then(Aside::default),
                    before,
                    half,
                    key,
                })
            }
            Err(error) => {
                let mut state = self.state.lock();
                let now = self.member.now();
                state.node.handle_not_opened(id, &error.to_string(), now);
                self.drain(state);
                None
            }
        }
    }

    /// Whether the peer answers over the rail of a lane that failed.
    fn probe(self: &Arc<Self>, id: StreamId) {
        let answers = self.way(id.lane).is_some_and(|way| {
            let newest = self.ways.newest(way.connected.peer.node);
            // The peer takes no streams of an earlier handshake.
            let is_newest = newest.is_none_or(|newest| Arc::ptr_eq(&newest, &way.connected));
            is_newest && way.connected.is_answered(&self.member, &way.via)
        });
        let mut state = self.state.lock();
        let now = self.member.now();
        state.node.handle_probed(id, answers, now);
        self.drain(state);
    }

    fn grant(&self, open: &mut Connection, grants: &[(u32, Range)]) -> Result<(), LaneError> {
        let grant = |&(id, range): &(u32, Range)| Grant {
            id,
            space: SPACE_DATA,
            range,
            hash: self.hash,
            digest: false,
        };
        let grants: Vec<Grant> = grants.iter().map(grant).collect();
        open.half.grant(&grants)
    }

    /// Takes what is received next.
    ///
    /// * `until`: when more may be asked for, at the latest.
    fn receive(
        self: &Arc<Self>,
        id: StreamId,
        open: &mut Connection,
        until: Option<time::Instant>,
    ) -> Result<(), LaneError> {
        let landing: &mut dyn Landing = match &mut open.aside {
            Some(aside) => aside,
            None => &mut open.landing,
        };
        let left = until.map(|until| until.since(self.member.now()).into());
        let pause = pause(open.half.is_idle(), left);
        let mut received = open.half.receive(landing, Instant::now() + pause)?;
        if let Some(aside) = &mut open.aside {
            let Some(passed) = self.take_aside(id, aside, &mut open.landing, received)? else {
                return Ok(());
            };
            received = passed;
        }
        let mut state = self.state.lock();
        let now = self.member.now();
        let node = &mut state.node;
        match received {
            Received::Unit {
                grant,
                digest,
                zeros,
            } => {
                node.handle_zeros(zeros);
                let arrival = node.handle_unit(id, grant.id, digest, now);
                if node.streams().of_datagrams() {
                    state.lane(id.lane).datagrams = open.before.and(&open.half.observe());
                }
                self.drain_quietly(state);
                if let (true, Some(digest)) = (arrival.rereads, digest) {
                    self.reread(Node::writer(id), grant.range, &digest);
                }
                return Ok(());
            }
            Received::Corrupt { grant, reason } => node.handle_corrupt(id, grant.id, &reason, now),
            Received::Missing { grant, code, .. } if code == missing::CANCELLED => {
                node.handle_cancelled(id, grant.id, now);
            }
            Received::Missing { grant, reason, .. } => {
                node.handle_refused(id, grant.id, &reason, now);
            }
            Received::Digest { .. } | Received::Held(_) => {
                let text = "something else where bytes were due";
                return Err(LaneError::Unexpected(text.into()));
            }
            Received::Idle => {
                node.handle_idle(id, open.half.observe().bytes_in, now);
                return Ok(());
            }
        }
        self.drain(state);
        Ok(())
    }

    /// Closes the stream, which ended so. Failures of the peer end the stream only, those of this node all of its part.
    fn close(
        self: &Arc<Self>,
        id: StreamId,
        open: Option<Connection>,
        ended: Result<(), LaneError>,
    ) {
        let cause = match ended {
            Ok(()) => Break::Asked,
            Err(LaneError::Stopped) if self.stopped() => Break::Asked,
            Err(LaneError::Stopped) => {
                Break::RailLost("this host's interface lost its link or its address".into())
            }
            // Trying again would fail in the same way, after the same wait.
            Err(error @ (LaneError::Blocked { .. } | LaneError::TooLong { .. })) => {
                Break::Blocked(error.to_string())
            }
            Err(LaneError::Landing { source, .. }) => {
                self.fail(source.to_string());
                Break::Asked
            }
            Err(LaneError::Misuse(text)) => {
                self.fail(text);
                Break::Asked
            }
            Err(error) => Break::Broken(error.to_string()),
        };
        // The connection goes before its units become ready again, so that no late byte of it can reach the sink after
        // another copy.
        if let Some(open) = open {
            self.member.forget(open.key);
            let mut state = self.state.lock();
            let info = state.lane(id.lane);
            info.waited += open.half.observe().waited;
            info.meter.remove(open.key);
        }
        let mut state = self.state.lock();
        state.node.handle_closed(id, cause, self.member.now());
        self.drain(state);
    }

    /// As `drain` when there may be nothing that concerns anybody who waits.
    pub(super) fn drain_quietly(
        self: &Arc<Self>,
        state: parking_lot::MutexGuard<'_, super::State>,
    ) {
        if state.node.has_events() || state.node.fetch().is_finished() {
            self.drain(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Under a limit a stream asks again when it may, whether it waits for announcements or for bytes.
    #[test]
    fn streams_ask_again_when_a_limit_lets_them() {
        let soon = Duration::from_millis(3);
        assert_eq!(pause(true, Some(soon)), soon);
        assert_eq!(pause(false, Some(soon)), soon);
        assert_eq!(pause(true, None), IDLE);
        assert_eq!(pause(false, Some(Duration::from_secs(9))), POLL);
    }
}
