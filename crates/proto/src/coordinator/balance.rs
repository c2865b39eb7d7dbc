//! Moves work between receivers that write one destination together.
//!
//! The first plan shares by the speeds known then, which may be guesses. A receiver that has finished
//! its share asks, through the master, the one that would finish last to give up part of what it has
//! not asked for yet, in proportion to both speeds (CEP section 3.2: weights are soft). Every step at
//! least halves what is out of balance, so the messages stay few.

use std::collections::BTreeSet;

use ropewalk_model::RangeSet;

use super::{Action, Coordinator, Phase};
use crate::control::{self, Run, to_agent};

/// What would be moved must be worth its messages and its last unit: less stays where it is.
const RELEASE_SECONDS_MIN: f64 = 0.5;

/// And at least this much (4 chunks).
const RELEASE_MIN: u64 = 4 << 20;

impl Coordinator {
    /// `idle` has nothing left: finds it work among the others of its destination.
    pub(super) fn balance(&mut self, idle: u32, now_ns: u64) {
        if self.phase != Phase::Moving
            || !self.nodes[idle as usize]
                .done
                .as_ref()
                .is_some_and(|d| d.error.is_empty())
        {
            return;
        }
        let Some(destination) = self.destination(idle) else {
            return;
        };
        let own = self.mean_rate(idle, now_ns);
        let mut best: Option<(f64, u32, u64)> = None;
        for other in self.receivers() {
            let state = &self.nodes[other as usize];
            let busy = other != idle && state.alive() && state.done.is_none();
            if !busy
                || state.releasing_for.is_some()
                || state.has_nothing_to_give
                || self.destination(other).as_ref() != Some(&destination)
            {
                continue;
            }
            let left = state.assigned().len_bytes().saturating_sub(state.checked);
            let rate = self.mean_rate(other, now_ns);
            let seconds = left as f64 / rate.max(1.0);
            let give = (left as f64 * own / (own + rate).max(1.0)) as u64;
            if give >= RELEASE_MIN
                && seconds > RELEASE_SECONDS_MIN
                && best.is_none_or(|(most, _, _)| seconds > most)
            {
                best = Some((seconds, other, give));
            }
        }
        if let Some((_, other, bytes)) = best {
            self.nodes[other as usize].releasing_for = Some(idle);
            self.send(other, to_agent::Body::Release(control::Release { bytes }));
        }
    }

    /// Bytes per second a receiver has had on average while it was moving.
    fn mean_rate(&self, node: u32, now_ns: u64) -> f64 {
        let state = &self.nodes[node as usize];
        let start = self.moving_ns.unwrap_or(now_ns);
        let end = if state.done.is_some() {
            state.last_seen.0.max(state.heard_ns)
        } else {
            now_ns
        };
        let seconds = (end.saturating_sub(start) as f64 / 1e9).max(1e-3);
        state.checked as f64 / seconds
    }

    pub(super) fn handle_released(&mut self, node: u32, released: &RangeSet) {
        let Some(idle) = self.nodes[node as usize].releasing_for.take() else {
            return;
        };
        if released.is_empty() {
            self.nodes[node as usize].has_nothing_to_give = true;
            self.check_done();
            return;
        }
        self.forget(node, released);
        let able = |state: &super::Node| {
            state.alive() && state.done.as_ref().is_none_or(|d| d.error.is_empty())
        };
        // If the idle one went away meanwhile, the ranges go back to where they came from.
        let heir = if able(&self.nodes[idle as usize]) {
            idle
        } else {
            node
        };
        let takes = self.nodes[heir as usize].wants.intersection(released);
        let mut heirs = vec![(heir, takes.clone())];
        let rest = released.difference(&takes);
        if !rest.is_empty() {
            heirs.push((node, rest));
        }
        heirs.retain(|(_, ranges)| !ranges.is_empty());
        for (heir, _) in &heirs {
            self.nodes[*heir as usize].done = None;
        }
        self.ask_plan(false, heirs, &BTreeSet::new());
        debug_assert!(matches!(self.actions.back(), Some(Action::Plan(..))));
    }

    /// Takes ranges out of what the plan asks of a node.
    fn forget(&mut self, node: u32, ranges: &RangeSet) {
        let runs = std::mem::take(&mut self.nodes[node as usize].runs);
        for run in runs {
            let kept = RangeSet::from(control::range(run.start, run.length)).difference(ranges);
            for part in kept.iter() {
                self.nodes[node as usize].runs.push(Run {
                    start: part.start,
                    length: part.len(),
                    ..run.clone()
                });
            }
        }
    }
}
