//! Several rails to one peer: found once it is connected, given up and regained one by one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Fetch, LaneInfo};
use crate::connect::Connected;
use crate::interfaces;
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

/// How often the watch over links looks whether it is still needed.
const LINKS_POLL: Duration = Duration::from_millis(250);

/// One that worked for so long did not flap: its pause begins anew.
const STEADY: Duration = Duration::from_secs(20);

/// How the streams of a lane connect.
#[derive(Clone)]
pub(super) struct Way {
    pub connected: Arc<Connected>,
    /// `None`: as the pair was connected.
    pub rail: Option<Rail>,
    // Before it is tried again once it fails: longer for one that flaps.
    pause: Duration,
}

impl Way {
    fn name(&self) -> String {
        match &self.rail {
            Some(rail) => rail.to_string(),
            None => self.connected.first_rail(),
        }
    }
}

impl Fetch {
    /// The streams of a peer that has just been connected, the first one on this thread; further rails beside.
    pub(super) fn run_first_rail(self: &Arc<Self>, lane: usize, connected: Connected) {
        let search = connected.search(&self.transfer);
        let first = search.and_then(|mut search| Some((search.next()?, search)));
        let way = Way {
            // Where there are others it keeps to its own interface, too.
            rail: first
                .as_ref()
                .and_then(|(_, search)| search.first().cloned()),
            connected: Arc::new(connected),
            pause: REGAIN_MIN,
        };
        {
            let mut state = self.state.lock();
            state.lanes[lane].rail = way.name();
            state.lanes[lane].way = way.rail.clone();
        }
        if let Some((first, search)) = first {
            let way = way.clone();
            self.spawn("rails", move |fetch| {
                fetch.find_rails(lane, &way, first, search)
            });
        }
        self.spawn_streams(lane, &way, 1);
        self.run_stream(lane, &way, 0);
    }

    fn spawn_streams(self: &Arc<Self>, lane: usize, way: &Way, first: u32) {
        for index in first..self.streams {
            let way = way.clone();
            self.spawn("receive", move |fetch| fetch.run_stream(lane, &way, index));
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
            if way.connected.is_answered(&self.transfer, Some(&rail)) {
                search.works(pair);
                self.open_rail(
                    lane,
                    Way {
                        rail: Some(rail),
                        ..way.clone()
                    },
                );
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

    /// Streams over rails that this host has no address for any more end at once; others may work again.
    fn links_changed(&self) {
        let here = interfaces::usable(&[]);
        let mut state = self.state.lock();
        state.links_changed += 1;
        for info in &state.lanes {
            if info.way.as_ref().is_some_and(|rail| !rail.is_there(&here)) {
                info.meter.stop();
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// One more lane to the peer of `lane`.
    fn open_rail(self: &Arc<Self>, lane: usize, way: Way) {
        let mut state = self.state.lock();
        // Who has been given up by all rails is the master's to replace.
        if !state.receiving.is_reachable(lane) {
            return;
        }
        let rail = state.receiving.add_rail(lane, self.transfer.now_ns());
        if state.lanes.len() <= rail {
            state.lanes.resize_with(rail + 1, LaneInfo::default);
        }
        state.lanes[rail].live = self.streams;
        state.lanes[rail].way = way.rail.clone();
        let watches = std::mem::replace(&mut state.watches_links, true);
        if let Some(warning) = way.rail.as_ref().and_then(Rail::warning)
            && !state.notes.contains(&warning)
        {
            state.notes.push(warning);
        }
        state.lanes[rail].rail = way.name();
        self.drain(state);
        if !watches {
            self.spawn("links", |fetch| fetch.watch_links());
        }
        self.spawn_streams(rail, &way, 0);
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
        while self.state.lock().receiving.is_reachable(lane) {
            if way.connected.is_answered(&self.transfer, way.rail.as_ref()) {
                return self.open_rail(lane, way);
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
        self.state.lock().receiving.other_rail_moves(lane, now)
    }
}
