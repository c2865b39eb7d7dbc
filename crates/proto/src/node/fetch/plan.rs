//! What the master says: plans, revisions, and what is to be given back.

use ropewalk_model::{Instant, Nanos, Range, RangeSet};

use super::align::align;
use super::{LaneId, ReadyRun, Receiving, Watch};
use crate::control::{self, Peer, Plan, Revision, Run, parts_of};

fn bytes_of(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.length).sum()
}

impl Receiving {
    /// The destination has these bytes already; before the plan is received.
    pub fn handle_present(&mut self, ranges: RangeSet) {
        self.present = ranges;
    }

    /// The node gives to others what it receives, and of what its destination has already these bytes: they were checked, and lie where
    /// received ones do.
    pub fn handle_kept(&mut self, ranges: RangeSet) {
        self.kept = ranges;
        self.relays.hand_on();
    }

    /// What the destination has already.
    #[must_use]
    pub fn present(&self) -> &RangeSet {
        &self.present
    }

    /// The runs, without what the destination has already.
    fn absent(&self, runs: Vec<Run>) -> Vec<Run> {
        if self.present.is_empty() {
            return runs;
        }
        let absent = |run: &Run| {
            let range = control::range(run.start, run.length);
            RangeSet::from(range).difference(&self.present.clipped(range))
        };
        runs.iter()
            .flat_map(|run| parts_of(run, &absent(run)))
            .collect()
    }

    /// Takes the master's plan: peers to connect to and runs to fetch.
    ///
    /// Cuts between two senders move to the border of the unit around them where one of the two
    /// holds all of it: a unit has one sender, and receivers of equal ranges hash equal units.
    pub fn handle_plan(&mut self, plan: &Plan, now: Instant, unit_at: &dyn Fn(u64) -> Range) {
        self.now = now;
        self.watch = Watch::new(now);
        // Not the plan's limit, which a later one may have replaced while sinks were made.
        self.pace.begin(now);
        self.spares.explore(plan.explore);
        self.unit_len = plan.unit_len();
        self.is_own = plan.commit;
        for peer in &plan.peers {
            self.add_peer(peer);
        }
        self.note_holders(&plan.runs, &plan.holdings);
        let aligned = align(&plan.runs, unit_at);
        let planned = bytes_of(&aligned);
        let mut runs = self.absent(aligned);
        // The plan's time is that of all its bytes.
        let rest = bytes_of(&runs) as f64 / planned.max(1) as f64;
        let expected = control::time(plan.expected);
        let expected = expected.map(|time| Nanos::from_seconds(time.as_seconds() * rest));
        self.spares.expect_after(expected);
        runs.sort_by_key(|run| run.choices);
        for run in &runs {
            self.want(run);
        }
        self.aim(&runs, true);
        self.take_holdings(&plan.holdings);
        self.set_pace(now);
        self.call_needed();
        for peer in plan.peers.iter().filter(|peer| peer.relays) {
            if let Some(&lane) = self.lane_of.get(&peer.node) {
                self.ask_ahead(lane, unit_at);
            }
        }
        self.check_progress();
    }

    /// Takes changed owners, new runs, peers that are gone and ranges to give up.
    pub fn handle_revision(&mut self, revision: &Revision, now: Instant) {
        self.now = now;
        if revision.settle {
            self.ledger.settle();
            self.spares.settle(now);
        }
        let expected = control::time(revision.expected);
        if let Some(expected) = expected {
            let passed = now.since(self.watch.start_at());
            self.spares.expect_after(Some(passed + expected));
        }
        for peer in &revision.peers {
            if peer.relays && !self.lane_of.contains_key(&peer.node) {
                self.relays.join(peer.node);
            }
            self.add_peer(peer);
        }
        for &node in &revision.lost {
            if let Some(&lane) = self.lane_of.get(&node) {
                for rail in self.ledger.rails(lane).collect::<Vec<_>>() {
                    // The master has noted its loss or departure.
                    self.lane_ends(rail, "its connection to the master ended, or it left");
                }
            }
        }
        self.note_holders(&revision.runs, &revision.holdings);
        let mut runs = self.absent(revision.runs.clone());
        runs.sort_by_key(|run| run.choices);
        let mut new = Vec::new();
        for run in &runs {
            let range = control::range(run.start, run.length);
            // Somebody can be asked for it after all.
            self.ledger.forget_given_up(range);
            let known = self.ledger.known(range);
            let holders = self.lanes_of(run);
            self.ledger.reassign([ReadyRun {
                range,
                holders,
                choices: run.choices,
            }]);
            for fresh in RangeSet::from(range).difference(&known).iter() {
                let holders = self.lanes_of(run);
                new.push(Run {
                    start: fresh.start,
                    length: fresh.len(),
                    ..run.clone()
                });
                let run = ReadyRun {
                    range: fresh,
                    holders,
                    choices: run.choices,
                };
                match revision.settle {
                    true => self.ledger.want(run),
                    false => self.ledger.inherit(run),
                }
                self.finished = false;
            }
            self.asked.remove(range);
            self.lent.remove(range);
        }
        self.aim(&new, false);
        self.take_holdings(&revision.holdings);
        if expected.is_some() {
            self.set_pace(now);
        }
        for stretch in &revision.unavailable {
            let range = control::range(stretch.start, stretch.length);
            self.ledger.give_up(range);
            for part in self.lent.clipped(range).iter() {
                self.lent.remove(part);
                self.ledger.lose(part);
            }
        }
        self.call_needed();
        self.check_progress();
    }

    /// Gives up to `bytes` that are not on their way yet back to the master. A receiver with a copy of its own
    /// is not complete before it knows what becomes of them.
    pub fn release(&mut self, bytes: u64, unit_at: &dyn Fn(u64) -> Range) -> RangeSet {
        let released = self.ledger.release(bytes, unit_at);
        if self.is_own {
            self.lent = self.lent.union(&released);
        }
        self.check_progress();
        released
    }

    pub(super) fn add_peer(&mut self, peer: &Peer) {
        if self.lane_of.contains_key(&peer.node) {
            return;
        }
        let lane = self.ledger.add_lane();
        self.lane_of.insert(peer.node, lane);
        self.enter(peer.clone());
        if peer.far {
            self.ledger.set_far(lane);
        }
        if peer.relays {
            self.enter_relay(peer, lane);
        }
    }

    fn lanes_of(&self, run: &Run) -> Vec<LaneId> {
        let mut holders = Vec::with_capacity(2 + run.spares.len());
        let nodes = run.relay.iter().chain(std::iter::once(&run.sender));
        for node in nodes.chain(&run.spares) {
            if let Some(&lane) = self
                .lane_of
                .get(node)
                .filter(|lane| !holders.contains(*lane))
            {
                holders.push(lane);
                holders.extend(self.ledger.rails(lane).filter(|&rail| rail != lane));
            }
        }
        holders
    }

    fn want(&mut self, run: &Run) {
        let holders = self.lanes_of(run);
        self.ledger.want(ReadyRun {
            range: control::range(run.start, run.length),
            holders,
            choices: run.choices,
        });
    }
}
