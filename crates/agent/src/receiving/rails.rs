//! Several rails to one peer: found once it is connected, given up and regained one by one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use ropewalk_proto::participant::far_streams;
use ropewalk_proto::route;

use super::{Fetch, LaneInfo, State};
use crate::connect::{Connected, Via};
use crate::interfaces::{self, Interface};
use crate::links::Links;
use crate::rails::{Rail, Search};

/// A rail that failed is tried again after this time; twice as long each time that it fails again soon ...
const REGAIN_MIN: Duration = Duration::from_millis(500);

/// ... up to this.
const REGAIN_MAX: Duration = Duration::from_secs(60);

/// Pauses between attempts while it does not answer grow from this, by half each time ...
const PROBE_MIN: Duration = Duration::from_millis(500);

/// ... to this.
const PROBE_MAX: Duration = Duration::from_secs(10);

/// Most streams of a lane: each is a thread here and one at the sender.
pub(super) const STREAMS_PER_LANE_MAX: u32 = 64;

/// How often the watch over links looks whether it is still needed.
const LINKS_POLL: Duration = Duration::from_millis(250);

/// One that worked for so long did not flap: its pause begins anew.
const STEADY: Duration = Duration::from_secs(20);

/// A further rail, its place in the search, and the search.
type Further = (((usize, usize), Rail), Search);

/// How the streams of a lane connect.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub connected: Arc<Connected>,
    pub via: Via,
    // Before it is tried again once it fails: longer for one that flaps.
    pause: Duration,
}

impl Way {
    fn name(&self) -> String {
        match &self.via {
            Via::Rail(rail) => rail.to_string(),
            Via::Ready(_, name) => name.clone(),
            Via::Pair => self.connected.first_rail(),
        }
    }

    /// The interface here that it keeps to, where it does.
    fn rail(&self) -> Option<&Rail> {
        match &self.via {
            Via::Rail(rail) => Some(rail),
            Via::Ready(..) | Via::Pair => None,
        }
    }
}

impl State {
    /// Whether streams of the lane bring what they were asked for and end: they go through the command's host, and others
    /// to the same peer bring units that do not. A way that connects and carries nothing is none.
    pub(super) fn is_left(&self, lane: usize, now_ns: u64) -> bool {
        let is_carried = |lane: usize| self.lanes[lane].connected == route::Way::Through;
        let mut others = self.node.fetch().other_rails(lane);
        is_carried(lane)
            && others.any(|other| self.lanes[other].open > 0 && !is_carried(other))
            && self.node.fetch().other_rail_moves(lane, now_ns)
    }

    /// Lanes whose rail is gone while another one to the same peer is there. Where all are gone at once TCP may outlast
    /// that, as it does where there is one.
    pub(super) fn dispensable(&self, here: &[Interface]) -> Vec<usize> {
        let is_there = |lane: usize| {
            let rail = self.lanes[lane].way.as_ref();
            rail.is_none_or(|rail| rail.is_there(here))
        };
        let is_done_by_another = |lane: &usize| {
            let mut others = self.node.fetch().other_rails(*lane);
            others.any(|other| self.lanes[other].open > 0 && is_there(other))
        };
        let gone = (0..self.lanes.len()).filter(|&lane| !is_there(lane));
        gone.filter(is_done_by_another).collect()
    }
}

impl Fetch {
    /// The streams of a peer that has just been connected, the first one on this thread; further rails beside.
    pub(super) fn run_first_rail(self: &Arc<Self>, lane: usize, connected: Arc<Connected>) {
        let (way, first) = self.first_way(connected);
        {
            let mut state = self.state.lock();
            state.lanes[lane].rail = way.name();
            state.lanes[lane].way = way.rail().cloned();
            state.lanes[lane].connected = way.connected.way();
        }
        let index = self.is_open(lane, &way);
        self.take_trip(way.connected.trip);
        if self.transfer.options.equal {
            self.deal(lane, &way);
        }
        self.find_more(lane, &way, first);
        self.add_streams(lane);
        let node = way.connected.peer.node;
        let newest = self.transfer.ways.lock().get(&node).cloned();
        if let Some(newest) = newest.filter(|newest| !Arc::ptr_eq(newest, &way.connected)) {
            // A better way was found meanwhile.
            self.move_way(&way.connected, newest);
        }
        self.run_stream(lane, &way, index);
    }

    /// The first way to a peer, and the first of further rails.
    fn first_way(&self, connected: Arc<Connected>) -> (Way, Option<Further>) {
        // Parts that are dealt out once are no work for lanes that are found later.
        let search = match self.transfer.options.equal {
            true => None,
            false => connected.search(&self.transfer),
        };
        let first = search.and_then(|mut search| Some((search.next()?, search)));
        let way = Way {
            // Where there are others it keeps to its own interface, too.
            via: first
                .as_ref()
                .and_then(|(_, search)| search.first().cloned())
                .map_or(Via::Pair, Via::Rail),
            connected,
            pause: REGAIN_MIN,
        };
        (way, first)
    }

    /// The streams over one way to a peer move to another, with all rails that it has.
    pub fn move_way(self: &Arc<Self>, from: &Arc<Connected>, to: Arc<Connected>) {
        let mut state = self.state.lock();
        let is_there = |info: &LaneInfo| {
            let way = info.opens.as_ref().filter(|_| info.live > 0);
            way.is_some_and(|way| Arc::ptr_eq(&way.connected, from))
        };
        // Otherwise it is found when the lane is opened, or does nothing any more.
        let Some(lane) = state.lanes.iter().position(is_there) else {
            return;
        };
        // Once.
        let is_moved = std::mem::replace(&mut state.lanes[lane].is_moved, true);
        drop(state);
        if is_moved {
            return;
        }
        let (way, first) = self.first_way(to);
        let Some(lane) = self.open_rail(lane, way.clone()) else {
            return;
        };
        self.take_trip(way.connected.trip);
        self.find_more(lane, &way, first);
    }

    /// Looks for further rails beside the first one.
    fn find_more(self: &Arc<Self>, lane: usize, way: &Way, first: Option<Further>) {
        let way = way.clone();
        if let Some((first, search)) = first {
            self.spawn("rails", move |fetch| {
                fetch.find_rails(lane, &way, first, search)
            });
        } else if way.connected.way() == route::Way::Reversed && !self.transfer.options.equal {
            self.spawn("rails", move |fetch| fetch.take_rails(lane, &way));
        }
    }

    /// Takes rails that the peer connects over, as they come.
    fn take_rails(self: &Arc<Self>, lane: usize, way: &Way) {
        let mut known = 1;
        let (transfer, node) = (&self.transfer, way.connected.peer.node);
        while let Some(name) = transfer.pool.next_rail(transfer, node, known) {
            let via = Via::Ready(known, name);
            self.open_rail(lane, Way { via, ..way.clone() });
            known += 1;
        }
    }

    /// A stream that goes nowhere any more has ended, with all it was asked for.
    pub(super) fn leave(self: &Arc<Self>, mut state: MutexGuard<'_, State>, lane: usize) {
        state.lanes[lane].live -= 1;
        if state.lanes[lane].live == 0 {
            state.node.fetch_mut().handle_lane_left(lane);
        }
        self.drain(state);
    }

    /// Deals the lane's work out to as many lanes over the same way as there are stripes, this one among them.
    fn deal(self: &Arc<Self>, lane: usize, way: &Way) {
        let Some(sinks) = self.sinks() else { return };
        let mut state = self.state.lock();
        let now = self.transfer.now_ns();
        let unit_at = |offset| sinks.unit_at(offset);
        let more = self.stripes - 1;
        let added = state.node.fetch_mut().deal(lane, more, now, &unit_at);
        let count = added.last().map_or(0, |last| last + 1);
        if state.lanes.len() < count {
            state.lanes.resize_with(count, LaneInfo::default);
        }
        for &stripe in &added {
            state.lanes[stripe].live = 1;
            state.lanes[stripe].rail = way.name();
            state.lanes[stripe].way = way.rail().cloned();
            state.lanes[stripe].connected = way.connected.way();
        }
        self.drain(state);
        for stripe in added {
            let index = self.is_open(stripe, way);
            let way = way.clone();
            self.spawn("receive", move |fetch| {
                fetch.run_stream(stripe, &way, index)
            });
        }
    }

    // More streams of the lane can connect; returns the number of the first.
    fn is_open(&self, lane: usize, way: &Way) -> u32 {
        let mut state = self.state.lock();
        let info = &mut state.lanes[lane];
        info.opens = Some(way.clone());
        info.numbered += 1;
        info.numbered - 1
    }

    /// Opens streams of the lane until it has as many as are wanted.
    fn add_streams(self: &Arc<Self>, lane: usize) {
        let mut state = self.state.lock();
        let wanted = state.streams;
        let info = &mut state.lanes[lane];
        // A lane without a stream is down, or has not connected yet.
        let Some(way) = info.opens.clone().filter(|_| info.live > 0) else {
            return;
        };
        let first = info.numbered;
        let more = wanted.saturating_sub(info.live);
        info.live += more;
        info.numbered += more;
        drop(state);
        for index in first..first + more {
            let way = way.clone();
            self.spawn("receive", move |fetch| fetch.run_stream(lane, &way, index));
        }
    }

    /// The number of streams that goes with the round trips seen so far. The least of them counts: those of lanes that
    /// open while others fill the link have its queue in them.
    fn take_trip(self: &Arc<Self>, trip: Duration) {
        let mut state = self.state.lock();
        let least = state.trip_min.map_or(trip, |known| known.min(trip));
        state.trip_min = Some(least);
        if self.sharers == 0 || state.is_told || self.of_datagrams {
            return;
        }
        match far_streams(self.sharers, self.other_transfers, least.as_secs_f64()) {
            // While it is found out which lanes are worth it, none has fewer than over a short path.
            Some(far) => {
                let least = state.streams_near;
                self.share_streams(state, far, least);
            }
            None => {
                let each = state.streams_near;
                self.keep_streams(state, each);
            }
        }
    }

    /// Keeps so many streams open from now on, all lanes that work together; each keeps one at least. With 0, those of a
    /// short path. Those that are too many bring what they were asked for first.
    pub fn set_streams(self: &Arc<Self>, count: u32) {
        // A lane of datagrams is one flow with one rate.
        if self.of_datagrams {
            return;
        }
        let mut state = self.state.lock();
        state.is_told = true;
        match count {
            0 => {
                let each = state.streams_near;
                self.keep_streams(state, each);
            }
            _ => self.share_streams(state, count, 1),
        }
    }

    fn share_streams(self: &Arc<Self>, state: MutexGuard<'_, State>, count: u32, least: u32) {
        let works = |info: &&LaneInfo| info.live > 0;
        let lanes = state.lanes.iter().filter(works).count() as u32;
        let each = (count / lanes.max(1)).max(least).min(self.lane_streams_max);
        self.keep_streams(state, each);
    }

    fn keep_streams(self: &Arc<Self>, mut state: MutexGuard<'_, State>, each: u32) {
        if each == state.streams {
            return;
        }
        state.streams = each;
        state.node.fetch_mut().set_streams(each);
        let lanes = state.lanes.len();
        drop(state);
        self.changed.notify_all();
        for lane in 0..lanes {
            self.add_streams(lane);
        }
    }

    fn find_rails(
        self: &Arc<Self>,
        lane: usize,
        way: &Way,
        first: ((usize, usize), Rail),
        mut search: Search,
    ) {
        let mut next = Some(first);
        while let Some((pair, rail)) = next {
            if self.stopped() {
                return;
            }
            let via = Via::Rail(rail);
            if way.connected.is_answered(&self.transfer, &via) {
                search.works(pair);
                self.open_rail(lane, Way { via, ..way.clone() });
            }
            next = search.next();
        }
    }

    /// Follows what the kernel says of this host's links, from the first rail on.
    fn watch_links(self: &Arc<Self>) {
        // Without it silence tells, later.
        let Ok(links) = Links::open() else { return };
        while !self.stopped() {
            match links.changed(LINKS_POLL) {
                Ok(false) => {}
                Ok(true) => self.links_changed(),
                Err(_) => return,
            }
        }
    }

    /// Streams over rails that this host has no address for any more end at once where another rail does their work; others
    /// may work again.
    fn links_changed(&self) {
        let here = interfaces::usable(&[]);
        let mut state = self.state.lock();
        state.links_changed += 1;
        for lane in state.dispensable(&here) {
            state.lanes[lane].meter.stop();
        }
        drop(state);
        self.changed.notify_all();
    }

    /// One more lane to the peer of `lane`; its number.
    fn open_rail(self: &Arc<Self>, lane: usize, way: Way) -> Option<usize> {
        let mut state = self.state.lock();
        // Who has been given up by all rails is the master's to replace.
        if !state.node.fetch().is_reachable(lane) {
            return None;
        }
        let rail = state
            .node
            .fetch_mut()
            .add_rail(lane, self.transfer.now_ns());
        if state.lanes.len() <= rail {
            state.lanes.resize_with(rail + 1, LaneInfo::default);
        }
        state.lanes[rail].live = 1;
        state.lanes[rail].way = way.rail().cloned();
        let watches = std::mem::replace(&mut state.watches_links, true);
        if let Some(warning) = way.rail().and_then(Rail::warning) {
            state.node.add_note(warning);
        }
        state.lanes[rail].rail = way.name();
        state.lanes[rail].connected = way.connected.way();
        self.drain(state);
        if !watches {
            self.spawn("links", |fetch| fetch.watch_links());
        }
        let index = self.is_open(rail, &way);
        self.add_streams(rail);
        self.spawn("receive", move |fetch| fetch.run_stream(rail, &way, index));
        Some(rail)
    }

    /// Tries a rail that failed again as long as the peer can be reached over another one.
    pub(super) fn regain(self: &Arc<Self>, lane: usize, way: &Way, worked: Duration) {
        let first = match worked > STEADY {
            true => REGAIN_MIN,
            false => way.pause,
        };
        let way = Way {
            pause: (first * 2).min(REGAIN_MAX),
            ..way.clone()
        };
        let mut next = PROBE_MIN;
        // However much the links change.
        if self.pause(first) {
            return;
        }
        while self.state.lock().node.fetch().is_reachable(lane) {
            if way.connected.is_answered(&self.transfer, &way.via) {
                self.open_rail(lane, way);
                return;
            }
            if self.pause_for_links(next) {
                return;
            }
            next = (next * 3 / 2).min(PROBE_MAX);
        }
    }

    /// Waits, until links change at most; true when there is no reason to go on.
    fn pause_for_links(&self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        let mut state = self.state.lock();
        let before = state.links_changed;
        while !self.stopped() && Instant::now() < until && state.links_changed == before {
            self.changed.wait_until(&mut state, until);
        }
        drop(state);
        self.stopped()
    }

    /// Whether silence of the lane is its own and not the peer's.
    pub(super) fn other_rail_moves(&self, lane: usize) -> bool {
        let now = self.transfer.now_ns();
        self.state.lock().node.fetch().other_rail_moves(lane, now)
    }
}
