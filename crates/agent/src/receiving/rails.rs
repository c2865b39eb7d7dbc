//! Ways to a peer, and what the machine cannot see of them: further rails are found once it is connected, and this host's
//! links are followed.

use std::sync::Arc;
use std::time::Duration;

use ropewalk_proto::ledger::LaneId;
use ropewalk_proto::node::{Link, StreamId};
use ropewalk_proto::route;

use super::{Fetch, State};
use crate::connect::{Connected, Via};
use crate::interfaces::{self, Interface};
use crate::links::Links;
use crate::rails::{Rail, Search};

/// How often the watch over links looks whether it is still needed.
const LINKS_POLL: Duration = Duration::from_millis(250);

/// A further rail, its place in the search, and the search.
type Further = (((usize, usize), Rail), Search);

/// How the streams of a lane connect.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub connected: Arc<Connected>,
    pub via: Via,
}

impl Way {
    pub fn name(&self) -> String {
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

    /// What tells its rail from others of the same kind to the same peer.
    fn key(&self) -> String {
        match &self.via {
            Via::Rail(rail) => rail.to_string(),
            Via::Ready(number, _) => number.to_string(),
            Via::Pair => self.connected.first_rail(),
        }
    }
}

impl State {
    fn link(&mut self, way: &Way) -> Link {
        let key = way.key();
        let known = self.rails.iter().position(|rail| *rail == key);
        let rail = known.unwrap_or_else(|| {
            self.rails.push(key);
            self.rails.len() - 1
        });
        Link {
            way: way.connected.way(),
            rail: rail as u32,
            trip: way.connected.trip.into(),
            shares_processors: way.connected.shares_processors(),
        }
    }

    /// Lanes whose rail this host has no address for any more.
    pub(super) fn gone(&self, here: &[Interface]) -> Vec<LaneId> {
        let is_there = |lane: &LaneId| {
            let rail = self.lanes[*lane].way.as_ref().and_then(Way::rail);
            rail.is_none_or(|rail| rail.is_there(here))
        };
        self.lanes
            .numbers()
            .filter(|lane| !is_there(lane))
            .collect()
    }
}

impl Fetch {
    /// The peer of a stream's lane has just been connected. Further rails are looked for beside; returns the stream to go on
    /// with.
    pub(super) fn found(self: &Arc<Self>, id: StreamId, connected: Arc<Connected>) -> StreamId {
        let Some(sinks) = self.sinks() else { return id };
        let (way, first) = self.first_way(connected);
        let mut state = self.state.lock();
        let now = self.member.now();
        let unit_at = sinks.units();
        let link = state.link(&way);
        let found = state.node.handle_found(id, link, now, &unit_at);
        if let Some(stream) = found {
            state.lane(stream.lane).way = Some(way.clone());
        }
        self.drain(state);
        let Some(stream) = found else { return id };
        self.find_more(stream.lane, &way, first);
        let node = way.connected.peer.node;
        let newest = self.ways.newest(node);
        if let Some(newest) = newest.filter(|newest| !Arc::ptr_eq(newest, &way.connected)) {
            // A better way was found meanwhile.
            self.move_way(&way.connected, newest);
        }
        stream
    }

    /// The first way to a peer, and the first of further rails.
    fn first_way(&self, connected: Arc<Connected>) -> (Way, Option<Further>) {
        // Parts that are dealt out once are no work for lanes that are found later.
        let search = match self.member.options.equal {
            true => None,
            false => connected.search(&self.member),
        };
        let first = search.and_then(|mut search| Some((search.next()?, search)));
        let way = Way {
            // Where there are others it keeps to its own interface, too.
            via: first
                .as_ref()
                .and_then(|(_, search)| search.first().cloned())
                .map_or(Via::Pair, Via::Rail),
            connected,
        };
        (way, first)
    }

    /// The streams over one way to a peer move to another, with all rails that it has.
    pub fn move_way(self: &Arc<Self>, from: &Arc<Connected>, to: Arc<Connected>) {
        let (way, first) = self.first_way(to);
        let mut state = self.state.lock();
        let is_from = |lane: &LaneId| {
            let own = state.lanes[*lane].way.as_ref();
            let is_same = own.is_some_and(|own| Arc::ptr_eq(&own.connected, from));
            is_same && state.node.is_at_work(*lane)
        };
        // Otherwise it is found when the lane is opened, or does nothing any more.
        let Some(lane) = state.lanes.numbers().find(is_from) else {
            return;
        };
        let now = self.member.now();
        let link = state.link(&way);
        let Some(rail) = state.node.handle_better_way(lane, link, now) else {
            return;
        };
        state.lane(rail).way = Some(way.clone());
        self.drain(state);
        self.find_more(rail, &way, first);
    }

    /// Looks for further rails beside the first one.
    fn find_more(self: &Arc<Self>, lane: LaneId, way: &Way, first: Option<Further>) {
        let way = way.clone();
        if let Some((first, search)) = first {
            self.spawn("rails", move |fetch| {
                fetch.find_rails(lane, &way, first, search)
            });
        } else if way.connected.way() == route::Way::Reversed && !self.member.options.equal {
            self.spawn("rails", move |fetch| fetch.take_rails(lane, &way));
        }
    }

    /// Takes rails that the peer connects over, as they come.
    fn take_rails(self: &Arc<Self>, lane: LaneId, way: &Way) {
        let mut known = 1;
        let (member, node) = (&self.member, way.connected.peer.node);
        while let Some(name) = member.pool.next_rail(&member.stopped, node, known) {
            let via = Via::Ready(known, name);
            self.open_rail(lane, Way { via, ..way.clone() });
            known += 1;
        }
    }

    fn find_rails(
        self: &Arc<Self>,
        lane: LaneId,
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
            if way.connected.is_answered(&self.member, &via) {
                search.works(pair);
                self.open_rail(lane, Way { via, ..way.clone() });
            }
            next = search.next();
        }
    }

    /// One more lane to the peer of `lane`.
    fn open_rail(self: &Arc<Self>, lane: LaneId, way: Way) {
        let mut state = self.state.lock();
        let now = self.member.now();
        let link = state.link(&way);
        let Some(rail) = state.node.handle_rail(lane, link, now) else {
            return;
        };
        if let Some(warning) = way.rail().and_then(Rail::warning) {
            state.node.add_note(warning);
        }
        state.lane(rail).way = Some(way);
        let watches = std::mem::replace(&mut state.watches_links, true);
        self.drain(state);
        if !watches {
            self.spawn("links", |fetch| fetch.watch_links());
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
        let gone = state.gone(&here);
        let now = self.member.now();
        for lane in state.node.handle_links_changed(&gone, now) {
            state.lanes[lane].meter.stop();
        }
        drop(state);
        self.changed.notify_all();
    }
}
