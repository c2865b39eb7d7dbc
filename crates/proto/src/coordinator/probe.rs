//! What nodes have to find out together before anything moves: whether places are one ([`super::places`]), whether
//! files that are said to hold the same bytes at different offsets do ([`super::overlaps`]), and which nodes that may hand on lie near
//! each other ([`super::sites`]).
//!
//! One message to each node that is concerned and one answer; none where nothing is odd and no receiver hands on.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::{Instant, Nanos};

use super::overlaps::Overlap;
use super::own_sources::Owns;
use super::phase::{Phase, Step};
use super::{Coordinator, OPEN_TIME_MAX};
use crate::control::{Mark, Probe, Probed, Stretch, to_agent};

/// Round trips that are not known by then are not waited for: an agent takes a second at most.
const TRIPS_TIME_MAX: Nanos = Nanos::from_secs(5);

/// A round of probes.
#[derive(Debug, Default)]
pub(super) struct Probing {
    began_at: Instant,
    asked: BTreeSet<u32>,
    awaited: BTreeSet<u32>,
    // Of these, those that only measure.
    measuring: BTreeSet<u32>,
    marks: Vec<(u32, Mark)>,
    overlaps: Vec<Overlap>,
    // What senders look for once the marks are made, and what they were asked to look for.
    owns: Owns,
    looked: Owns,
    // By node and position in what it was asked for.
    hashes: BTreeMap<(u32, u32), Vec<u8>>,
}

impl Probing {
    /// When nodes were asked last.
    pub fn began_at(&mut self) -> &mut Instant {
        &mut self.began_at
    }

    pub fn is_late(&self, now: Instant) -> bool {
        now.since(self.began_at) > OPEN_TIME_MAX
    }

    /// Only round trips are awaited, for too long.
    fn may_end(&self, now: Instant) -> bool {
        now.since(self.began_at) > TRIPS_TIME_MAX && self.awaited.is_subset(&self.measuring)
    }

    /// Asserts that answers are awaited while there is a round, and that they were asked for.
    pub fn check(&self, phase: Phase) {
        debug_assert!(
            phase != Phase::Probing || !self.awaited.is_empty(),
            "no answer is awaited"
        );
        debug_assert!(
            self.awaited.is_subset(&self.asked),
            "an answer is awaited that was not asked for"
        );
    }

    /// Nodes that have not reported what they found.
    pub fn awaited(&self) -> impl Iterator<Item = u32> + '_ {
        self.awaited.iter().copied()
    }
}

impl Coordinator {
    /// The sources are laid out: asks what has to be asked, else goes on. Next states: Probing, Looking,
    /// Planning.
    pub(super) fn probe(&mut self) {
        let mut probes: BTreeMap<u32, Probe> = BTreeMap::new();
        let mut suspects = self.suspects();
        let mut owns = self.own_sources();
        if self.is_dry_run() && !(suspects.is_empty() && owns.is_empty()) {
            // Marks are files.
            if !self.setup.options.compares {
                let what = match owns.is_empty() {
                    true => "two nodes write to one place",
                    false => "a node writes to what another one sends or writes to",
                };
                self.note(format!("a dry run does not look whether {what}"));
            }
            (suspects, owns) = Default::default();
        }
        let spots = owns.values().flatten().flat_map(|meeting| &meeting.spots);
        for &(node, place) in spots {
            let places = suspects.entry(node).or_default();
            if !places.contains(&place) {
                places.push(place);
            }
        }
        for (node, places) in suspects {
            probes.entry(node).or_default().places = places;
        }
        let mut overlaps = self.overlaps();
        for overlap in &mut overlaps {
            for side in &mut overlap.sides {
                let probe = probes.entry(side.node).or_default();
                side.sample = probe.samples.len() as u32;
                for range in &overlap.samples {
                    probe.samples.push(Stretch {
                        start: range.start,
                        length: range.len(),
                    });
                    probe.sources.push(side.source);
                }
            }
        }
        // What these answer is awaited.
        let others: BTreeSet<u32> = probes.keys().chain(owns.keys()).copied().collect();
        self.ask_trips(&mut probes);
        if probes.is_empty() {
            return self.look();
        }
        self.enter(Step::Odd);
        self.probing = Probing {
            began_at: self.clock.now,
            asked: probes.keys().copied().collect(),
            awaited: probes.keys().copied().collect(),
            measuring: probes
                .keys()
                .copied()
                .filter(|node| !others.contains(node))
                .collect(),
            overlaps,
            owns,
            ..Probing::default()
        };
        for (node, probe) in probes {
            self.send(node, to_agent::Body::Probe(probe));
        }
    }

    /// A node has left its marks, or found those of others, and read its samples.
    pub(super) fn handle_probed(&mut self, node: u32, probed: Probed) {
        if self.phase != Phase::Probing || !self.probing.awaited.remove(&node) {
            return;
        }
        self.sites.note(node, &probed.trips);
        let marks = probed.marks.into_iter().map(|mark| (node, mark));
        self.probing.marks.extend(marks);
        let hashes = probed.hashes.into_iter().enumerate();
        let hashes = hashes.map(|(at, hash)| ((node, at as u32), hash));
        self.probing.hashes.extend(hashes);
        let looked = self.probing.looked.get(&node);
        let mut found = probed
            .found
            .iter()
            .filter_map(|at| looked?.get(*at as usize));
        if let Some(meeting) = found.next() {
            let text = self.own_refusal(node, meeting);
            return self.refuse(text);
        }
        if self.probing.awaited.is_empty() {
            self.end_probing();
        }
    }

    /// The marks are made: asks senders whether some are in what they send. False where there is nothing to ask.
    fn ask_owns(&mut self) -> bool {
        let owns = std::mem::take(&mut self.probing.owns);
        self.probing.began_at = self.clock.now;
        for (node, owns) in &owns {
            self.probing.asked.insert(*node);
            self.probing.awaited.insert(*node);
            self.probing.measuring.remove(node);
            let probe = Probe {
                owns: owns.iter().map(|meeting| meeting.own.clone()).collect(),
                ..Probe::default()
            };
            self.send(*node, to_agent::Body::Probe(probe));
        }
        self.probing.looked = owns;
        !self.probing.awaited.is_empty()
    }

    /// Goes on without the round trips of nodes that have not measured them in time.
    pub(super) fn end_measuring(&mut self) {
        if self.probing.may_end(self.clock.now) {
            self.probing.awaited.clear();
            self.end_probing();
        }
    }

    fn end_probing(&mut self) {
        if self.ask_owns() {
            return;
        }
        let probing = std::mem::take(&mut self.probing);
        if let Some(text) = self.marks_clash(&probing.marks) {
            return self.refuse(text);
        }
        let differing = probing.overlaps.iter();
        let mut differing = differing.filter_map(|o| Some((o, o.difference(&probing.hashes)?)));
        if let Some((overlap, range)) = differing.next() {
            let text = self.overlap_refusal(overlap, range);
            return self.refuse(text);
        }
        self.find_sites();
        // The marks have done their work.
        for node in probing.asked {
            self.send(node, to_agent::Body::Probe(Probe::default()));
        }
        self.look();
    }
}
