//! A recall under way: what was asked back, what was returned, and what becomes of it.

use std::collections::BTreeSet;

use ropewalk_model::{Instant, Nanos, Range, RangeSet};

use super::{Balancer, View, Work};
use crate::control::parts_of;
use crate::control::{self, Run};
use crate::coordinator::Planned;

/// A round does not wait longer for an answer.
const ANSWER_TIME_MAX: Nanos = Nanos(1_500_000_000);

/// What a round that has its plan means for the nodes.
#[derive(Debug, Default)]
pub(in crate::coordinator) struct Settled {
    /// In what time receivers should be done; `None`: as before.
    pub expected: Option<Nanos>,
    /// Lanes without work are in reserve from now on.
    pub settle: bool,
    /// Those that gave something up.
    pub givers: BTreeSet<u32>,
    /// What goes to receivers over lanes they have.
    pub kept_lanes: Vec<(u32, Vec<Run>)>,
}

impl Settled {
    /// Whether a node has to know although it gets nothing.
    pub fn tells(&self, node: u32) -> bool {
        self.settle || self.givers.contains(&node)
    }
}

/// What became of released ranges.
#[derive(Debug, Default)]
pub(in crate::coordinator) enum Shared {
    /// Answers are awaited, or there is no round.
    #[default]
    Waits,
    /// Nothing was released: the round is over.
    Nothing,
    /// This is to be planned.
    Work(Work),
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Recall {
    asked_at: Instant,
    // Seconds from then: until the last would be done without, and least time.
    last: f64,
    pub seconds: f64,
    // Lanes without work stand by afterwards.
    pub settle: bool,
    released: Vec<(u32, RangeSet)>,
    // The same with its senders; and of what is being planned.
    gave: Vec<(u32, Vec<Run>)>,
    dealt: Vec<(u32, Vec<Run>)>,
    givers: BTreeSet<u32>,
    // What goes to receivers over lanes they have, beside what is planned.
    pub kept_lanes: Vec<(u32, Vec<Run>)>,
    is_planned: bool,
}

impl Recall {
    /// * `last`, `seconds`: until the last receiver would be done, and the least time.
    pub fn new(now: Instant, (last, seconds): (f64, f64), settle: bool) -> Self {
        Self {
            asked_at: now,
            last,
            seconds,
            settle,
            ..Self::default()
        }
    }

    /// Asserts what must be true between two calls. Cost O(ranges given up).
    pub fn check(&self, view: View<'_>) {
        debug_assert!(
            self.last >= 0.0 && self.seconds >= 0.0,
            "a round of {} s instead of {} s",
            self.seconds,
            self.last
        );
        debug_assert_eq!(
            self.released.len(),
            self.gave.len(),
            "what was given up, with and without senders"
        );
        for ((node, ranges), (giver, runs)) in self.released.iter().zip(&self.gave) {
            debug_assert_eq!(node, giver, "what was given up is of one node");
            debug_assert!(
                self.givers.contains(node),
                "node {node} gave and is no giver"
            );
            let bytes: u64 = runs.iter().map(|run| run.length).sum();
            debug_assert_eq!(
                ranges.len_bytes(),
                bytes,
                "node {node} gave what it was not asked for"
            );
        }
        let count = view.nodes.len() as u32;
        let mut givers = self.givers.iter();
        debug_assert!(
            givers.all(|&node| node < count && view.node(node).is_receiver()),
            "a giver is no receiver"
        );
        debug_assert!(
            self.is_planned || self.dealt.is_empty(),
            "dealt, and not planned"
        );
    }

    /// Its answers are not waited for any more.
    pub fn is_overdue(&self, now: Instant) -> bool {
        !self.is_planned && now.since(self.asked_at) > ANSWER_TIME_MAX
    }

    /// All that nodes gave but for these ranges goes back to them.
    fn give_back(&mut self, except: &RangeSet) {
        for (node, runs) in std::mem::take(&mut self.dealt) {
            let back = runs.iter().flat_map(|run| {
                let own = RangeSet::from(control::range(run.start, run.length));
                parts_of(run, &own.difference(except))
            });
            self.kept_lanes.push((node, back.collect()));
        }
    }

    /// Of what a node gave, these ranges go back to it.
    pub fn give_back_to(&mut self, node: u32, ranges: &RangeSet) {
        let own = self.dealt.iter().filter(|(giver, _)| *giver == node);
        let back = own.flat_map(|(_, runs)| runs).flat_map(|run| {
            let own = RangeSet::from(control::range(run.start, run.length));
            parts_of(run, &own.intersection(ranges))
        });
        let back = back.collect();
        self.kept_lanes.push((node, back));
    }
}

impl Balancer {
    fn open_recall(&mut self, now: Instant) -> &mut Recall {
        let recall = || Recall::new(now, (0.0, 0.0), false);
        self.recall.get_or_insert_with(recall)
    }

    /// A receiver is asked for ranges outside of a look: its answer belongs to a round.
    pub(in crate::coordinator) fn expect_released(&mut self, now: Instant) {
        self.open_recall(now);
    }

    /// A receiver gave up ranges; an answer that comes late makes a round of its own.
    ///
    /// * `runs`: the same with their senders.
    pub(in crate::coordinator) fn take_released(
        &mut self,
        node: u32,
        ranges: RangeSet,
        runs: Vec<Run>,
        now: Instant,
    ) {
        let recall = self.open_recall(now);
        recall.released.push((node, ranges));
        recall.gave.push((node, runs));
        recall.givers.insert(node);
    }

    /// What has been given up and is not planned yet.
    pub(in crate::coordinator) fn released(&self) -> impl Iterator<Item = &RangeSet> {
        let released = self.recall.iter().flat_map(|recall| &recall.released);
        released.map(|(_, ranges)| ranges)
    }

    /// Shares out what a round released, once every giver has answered or is gone, or when it is `due` all the same.
    pub(in crate::coordinator) fn share(
        &mut self,
        view: View<'_>,
        now: Instant,
        due: bool,
    ) -> Shared {
        let waits = !due && view.nodes.iter().any(|node| node.life().is_recalled());
        let Some(recall) = self
            .recall
            .as_mut()
            .filter(|recall| !recall.is_planned && !waits)
        else {
            return Shared::Waits;
        };
        let released = std::mem::take(&mut recall.released);
        recall.dealt = std::mem::take(&mut recall.gave);
        recall.is_planned = true;
        if released.is_empty() {
            self.recall = None;
            return Shared::Nothing;
        }
        Shared::Work(self.deal(view, released, now))
    }

    /// What a round recalled, and where its plan would take longer than without it, goes back to those that gave it, over
    /// the lanes that they have. True then.
    pub(in crate::coordinator) fn is_in_vain(&mut self, view: View<'_>, planned: &Planned) -> bool {
        let Some(recall) = &mut self.recall else {
            return false;
        };
        let is_gone = |(node, _): &(u32, Vec<Run>)| {
            !view.is_able(*node) || view.node(*node).life().is_leaving()
        };
        if recall.settle
            || !planned.is_near_bound
            || recall.last == 0.0
            || planned.predicted_seconds <= recall.last
            || recall.dealt.iter().any(is_gone)
        {
            return false;
        }
        let kept = recall.kept_lanes.iter().flat_map(|(_, runs)| runs);
        let kept: Vec<Range> = kept
            .map(|run| control::range(run.start, run.length))
            .collect();
        recall.give_back(&RangeSet::from_ranges(kept));
        true
    }

    /// A round has its plan, which takes so many seconds.
    pub(in crate::coordinator) fn end_round(&mut self, predicted: f64) -> Settled {
        let Some(mut recall) = self.recall.take() else {
            return Settled::default();
        };
        // Of the room that is left little is known, and of what takes longer than without a round nothing.
        let expected = predicted
            .max(recall.seconds)
            .min(recall.last.max(recall.seconds));
        let settled = Settled {
            // Nothing planned: all is as before.
            expected: (predicted > 0.0).then(|| Nanos::from_seconds(expected)),
            settle: recall.settle,
            givers: std::mem::take(&mut recall.givers),
            kept_lanes: std::mem::take(&mut recall.kept_lanes),
        };
        // Answers that came while it was planned make the next round.
        if !recall.released.is_empty() {
            self.recall = Some(Recall {
                settle: false,
                is_planned: false,
                dealt: Vec::new(),
                ..recall
            });
        }
        settled
    }
}
