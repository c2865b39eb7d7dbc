//! What a sender says of its rails: over which of them packets are lost.

use std::collections::BTreeMap;

use super::{LOSS, Segments};
use crate::control::RailStatus;

/// Rails of one node that are kept; it reports fewer. Those that were reported longest ago are forgotten first.
pub(super) const RAILS_MAX: usize = 64;

/// The longest name of a rail that is taken; longer ones are cut.
pub(super) const RAIL_NAME_MAX: usize = 160;

/// A receiver, and a rail to it: by its number, or by its name where the node has no numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    receiver: u32,
    number: u32,
    name: String,
}

#[derive(Clone, Debug)]
struct Rail {
    name: String,
    segments: Segments,
    // The report that named it last.
    report: u64,
}

/// The rails of one node.
#[derive(Clone, Debug, Default)]
pub(super) struct Rails {
    all: BTreeMap<Key, Rail>,
    reports: u64,
}

impl Rails {
    /// Takes a report. Cost O(rails kept) for each rail beyond those.
    pub fn note(&mut self, rails: &[RailStatus]) {
        self.reports += 1;
        // What is not reported has lost nothing more.
        for rail in self.all.values_mut() {
            rail.segments.loss = 0.0;
        }
        for rail in rails.iter().take(RAILS_MAX) {
            let name: String = rail.rail.chars().take(RAIL_NAME_MAX).collect();
            let key = Key {
                receiver: rail.receiver,
                number: rail.number,
                name: match rail.number {
                    0 => name.clone(),
                    _ => String::new(),
                },
            };
            let trip = (rail.rtt_microseconds, rail.rtt_microseconds_min);
            let known = self.all.entry(key).or_insert_with(|| Rail {
                name,
                segments: Segments::default(),
                report: 0,
            });
            known.segments.note(rail.segments, rail.repeated, trip);
            known.report = self.reports;
        }
        while self.all.len() > RAILS_MAX {
            let oldest = self.all.iter().min_by_key(|(_, rail)| rail.report);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
                return;
            };
            self.all.remove(&oldest);
        }
    }

    /// The rail to a receiver that loses most, where one loses more than it may.
    pub fn lossy(&self, receiver: u32) -> Option<&str> {
        let own = self.all.iter().filter(|(key, _)| key.receiver == receiver);
        let rails = own.map(|(_, rail)| rail);
        let lossy = rails.filter(|rail| rail.segments.loss > LOSS);
        let worst = lossy.max_by(|a, b| a.segments.loss.total_cmp(&b.segments.loss))?;
        Some(&worst.name)
    }

    /// How many are kept.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.all.len()
    }
}
