//! Streams that peers have opened to this node: how many of each are open now, over all of its handshakes.
//!
//! Each is a thread, a descriptor and up to 1 MiB, so that one peer must not open as many as it likes. Nodes that keep the rules never get
//! to the bound with streams that are alive. What broke without a notice may still count: a stream that nothing is asked of has no bytes
//! that a lost peer would leave unacknowledged. So the oldest streams give way.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use ropewalk_lane::Stopper;
use ropewalk_proto::control::Options;
use ropewalk_proto::node::STREAMS_PER_LANE_MAX;

use crate::pool::RAILS_MAX;
use crate::streams::HASH_STREAMS_MAX;

/// A stream that broke, and the one that is opened instead of it.
const COPIES: usize = 2;

/// Streams that end once they are open, beside those of lanes: one that fetches a list of files, trials of rails.
const SHORT_MAX: usize = 2 + RAILS_MAX as usize;

/// Streams that one peer may have open at once.
///
/// * `one_rail`: no more than one rail to a peer may be used.
/// * `sources`: of this node; at most so many parts of the copy have their hashes asked of it.
pub(crate) fn each_max(options: &Options, one_rail: bool, sources: usize) -> usize {
    let rails = match one_rail {
        true => 1,
        false => 1 + RAILS_MAX as usize,
    };
    // Streams that keep parts of their own are as many.
    let of_lane = options.streams.max(STREAMS_PER_LANE_MAX) as usize;
    let of_hashes = sources.max(HASH_STREAMS_MAX);
    let data = rails.saturating_mul(of_lane);
    let all = data.saturating_add(of_hashes + SHORT_MAX);
    all.saturating_mul(COPIES)
}

#[derive(Default)]
struct Open {
    next: u64,
    // By age; those that have not been asked to end. `None`: not open yet.
    streams: BTreeMap<u64, Option<Stopper>>,
    // These, and those that have not ended yet.
    count: usize,
}

/// See the module documentation.
pub(crate) struct Joined {
    each_max: usize,
    peers: Mutex<HashMap<u32, Open>>,
}

impl Joined {
    /// None yet.
    pub fn at_most(each_max: usize) -> Arc<Self> {
        Arc::new(Self {
            each_max,
            peers: Mutex::default(),
        })
    }

    /// Counts one more stream of a peer, until what is returned is dropped. `None` where it has too many: its oldest one is ended then, so
    /// that there is space when it tries again.
    pub fn enter(self: &Arc<Self>, peer: u32) -> Option<Entered> {
        let mut peers = self.peers.lock();
        let open = peers.entry(peer).or_default();
        if open.count >= self.each_max {
            let mut streams = open.streams.iter();
            let oldest = streams.find_map(|(key, stopper)| Some((*key, stopper.clone()?)));
            if let Some((key, _)) = &oldest {
                open.streams.remove(key);
            }
            drop(peers);
            if let Some((_, stopper)) = oldest {
                stopper.stop();
            }
            return None;
        }
        let key = open.next;
        open.next += 1;
        open.count += 1;
        open.streams.insert(key, None);
        Some(Entered {
            joined: self.clone(),
            peer,
            key,
        })
    }
}

/// A stream that is counted.
pub(crate) struct Entered {
    joined: Arc<Joined>,
    peer: u32,
    key: u64,
}

impl Entered {
    /// The stream is open, and this ends it.
    pub fn opened(&self, stopper: Stopper) {
        let mut peers = self.joined.peers.lock();
        let open = peers.get_mut(&self.peer);
        if let Some(stream) = open.and_then(|open| open.streams.get_mut(&self.key)) {
            *stream = Some(stopper);
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut peers = self.joined.peers.lock();
        let Some(open) = peers.get_mut(&self.peer) else {
            return;
        };
        let ended = open.streams.remove(&self.key);
        open.count -= 1;
        if open.count == 0 {
            peers.remove(&self.peer);
        }
        drop(peers);
        drop(ended);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use ropewalk_lane::{Check, Protection, ReceiveHalf, Received, mem};

    use super::*;
    use crate::landing::BufferLanding;

    /// What nodes open that keep the rules, twice.
    #[test]
    fn the_bound_is_above_what_is_needed() {
        let mut options = Options::default();
        let lanes = STREAMS_PER_LANE_MAX as usize;
        assert!(each_max(&options, true, 1) >= 2 * (lanes + HASH_STREAMS_MAX + 1));
        assert!(each_max(&options, true, 1) < 3 * lanes);
        assert!(each_max(&options, false, 1) >= 2 * 17 * lanes);
        assert!(each_max(&options, true, 1000) >= 2 * (lanes + 1000));
        options.streams = 500;
        assert!(each_max(&options, true, 1) >= 2 * 500);
        options.streams = u32::MAX;
        assert!(each_max(&options, false, 1) >= u32::MAX as usize);
    }

    /// Each peer has so many streams and no more; what ends makes space, and the oldest one is ended where none does.
    #[test]
    fn open_streams_are_bounded_for_each_peer() {
        let joined = Joined::at_most(2);
        let plain = || Protection::Plain(Check::Fragment);
        let pair = || mem::pair(plain(), plain()).unwrap();
        let ((mut first_far, first), (mut second_far, second)) = (pair(), pair());
        let [one, two] = [(); 2].map(|()| joined.enter(7).unwrap());
        // Not open yet: nothing can be ended.
        assert!(joined.enter(7).is_none());
        two.opened(second.stopper());
        one.opened(first.stopper());
        assert!(joined.enter(8).is_some());
        assert!(joined.enter(7).is_none());
        // The oldest one has been ended, and counts until its thread has seen that.
        let mut landing = BufferLanding { bytes: Vec::new() };
        let mut receive = |far: &mut dyn ReceiveHalf| far.receive(&mut landing, Instant::now());
        assert!(receive(first_far.as_mut()).is_err());
        assert_eq!(receive(second_far.as_mut()).unwrap(), Received::Idle);
        assert_eq!(joined.peers.lock()[&7].count, 2);
        drop(one);
        let third = joined.enter(7).unwrap();
        drop((two, third));
        assert!(joined.peers.lock().is_empty());
    }
}
