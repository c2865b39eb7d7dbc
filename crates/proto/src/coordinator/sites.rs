//! Which nodes lie near each other, by round trips: what is wanted at a site crosses the path to it once, and spreads there.
//!
//! Only where receivers may hand on, and where nothing is declared of the links. Before the first plan each node that sends or may hand on measures
//! the round trip to a few of them, the landmarks. Two nodes lie apart where one is much nearer to a landmark than the other one. Two landmarks at
//! one site do no harm; a site without a landmark is found where it is nearer to one than others are.

use std::collections::BTreeMap;

use ropewalk_model::problem::Site;

use super::Coordinator;
use crate::control::{self, Probe};

/// Nodes to which round trips are measured: each costs every node a connection.
const LANDMARKS_MAX: usize = 8;

/// With more sites than this none is regarded: plans take long then, and few copies are saved.
const SITES_MAX: usize = 8;

/// Of two nodes one is apart from the other if its round trip to a landmark is so many times as long ...
const APART_TIMES: u32 = 2;

/// ... and longer by this (microseconds): a busy processor or switch delays packets by less.
const APART_MICROSECONDS: u32 = 2_000;

/// Shorter copies end before a plan with sites would have been of use (bytes of one).
const COPY_BYTES_MIN: u64 = 16 << 20;

/// Round trips of a node, in microseconds, by landmark.
type Trips = BTreeMap<u32, u32>;

/// What round trips show.
#[derive(Debug, Default)]
pub(super) struct Sites {
    // To which round trips are measured, in the order of the message.
    landmarks: Vec<u32>,
    trips: BTreeMap<u32, Trips>,
    /// Nodes by site; empty where no two are told apart.
    found: Vec<Vec<u32>>,
}

impl Sites {
    /// Notes what a node measured: microseconds to each landmark, 0 where it is not known.
    pub fn note(&mut self, node: u32, trips: &[u32]) {
        let measured = self.landmarks.iter().copied().zip(trips.iter().copied());
        let mut known: Trips = measured.filter(|(_, trip)| *trip > 0).collect();
        known.remove(&node);
        if !known.is_empty() {
            self.trips.insert(node, known);
        }
    }

    /// Finds the sites of these nodes. Cost O(nodes × sites × landmarks).
    fn find(&mut self, nodes: &[u32]) {
        let mut found: Vec<Vec<u32>> = Vec::new();
        for &node in nodes {
            let Some(trips) = self.trips_of(node) else {
                return;
            };
            let near = found.iter_mut().find(|site| {
                let first = self.trips_of(site[0]);
                first.is_some_and(|first| !are_apart(&first, &trips))
            });
            match near {
                Some(site) => site.push(node),
                None => found.push(vec![node]),
            }
        }
        if (2..=SITES_MAX).contains(&found.len()) {
            self.found = found;
        }
    }

    /// With that to itself, if it is a landmark.
    fn trips_of(&self, node: u32) -> Option<Trips> {
        let mut trips = self.trips.get(&node)?.clone();
        if self.landmarks.contains(&node) {
            trips.insert(node, 0);
        }
        Some(trips)
    }

    /// As positions among those that a plan is for.
    pub fn positions(&self, senders: &[u32], receivers: &[u32]) -> Vec<Site> {
        let positions = |site: &Vec<u32>, all: &[u32]| {
            let numbered = all.iter().enumerate();
            let own = numbered.filter(|(_, node)| site.contains(node));
            own.map(|(at, _)| at).collect()
        };
        let sites = self.found.iter().map(|site| Site {
            senders: positions(site, senders),
            receivers: positions(site, receivers),
        });
        sites.collect()
    }
}

/// Whether one of two nodes is much nearer to some landmark.
fn are_apart(one: &Trips, other: &Trips) -> bool {
    let both = one.iter().filter_map(|(landmark, trip)| {
        let other = other.get(landmark)?;
        Some((*trip.min(other), *trip.max(other)))
    });
    both.into_iter().any(|(near, far)| {
        far > near.saturating_mul(APART_TIMES) && far > near.saturating_add(APART_MICROSECONDS)
    })
}

impl Coordinator {
    /// Whether a declared trunk lies between two nodes, or round trips show that they are at two sites.
    pub(super) fn are_far(&self, one: u32, other: u32) -> bool {
        let site = |node| {
            self.sites
                .found
                .iter()
                .position(|site| site.contains(&node))
        };
        let between = |(from, to)| {
            let trunks = self.setup.links.iter().filter(|link| link.trunk.is_some());
            let (from, to) = (self.name(from), self.name(to));
            trunks.into_iter().any(|trunk| trunk.limits(from, to))
        };
        match (site(one), site(other)) {
            (Some(one), Some(other)) => one != other,
            _ => between((one, other)) || between((other, one)),
        }
    }

    /// Nodes that measure: those that may send bytes of a plan with relays, if there can be one.
    fn measuring(&self) -> Vec<u32> {
        let long = |node: &u32| self.nodes[*node as usize].wants.len_bytes() >= COPY_BYTES_MIN;
        if !self.may_relay() || !self.setup.links.is_empty() {
            return Vec::new();
        }
        let receivers = self.receivers().filter(long);
        let receivers: Vec<u32> = receivers.filter(|node| self.may_hand_on(*node)).collect();
        if receivers.len() < 2 {
            return Vec::new();
        }
        self.view().able_senders().chain(receivers).collect()
    }

    /// Adds the landmarks to what nodes are asked.
    pub(super) fn ask_trips(&mut self, probes: &mut BTreeMap<u32, Probe>) {
        let nodes = self.measuring();
        let step = nodes.len().div_ceil(LANDMARKS_MAX).max(1);
        self.sites.landmarks = nodes.iter().copied().step_by(step).collect();
        let landmarks: Vec<control::Peer> = self
            .sites
            .landmarks
            .iter()
            .map(|node| self.peer(*node))
            .collect();
        for node in nodes {
            probes.entry(node).or_default().landmarks = landmarks.clone();
        }
    }

    /// All have measured.
    pub(super) fn find_sites(&mut self) {
        let nodes = self.measuring();
        self.sites.find(&nodes);
        if self.sites.found.is_empty() {
            return;
        }
        let names = |site: &Vec<u32>| {
            let names: Vec<&str> = site.iter().map(|node| self.name(*node)).collect();
            match names.as_slice() {
                [one] => (*one).to_owned(),
                [first, .., last] => format!("{first} to {last} ({} nodes)", names.len()),
                [] => String::new(),
            }
        };
        let names: Vec<String> = self.sites.found.iter().map(names).collect();
        let text = format!(
            "by round trips there are {} sites, each of which gets what it wants once where that is no slower: {}",
            names.len(),
            names.join("; ")
        );
        self.note(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Round trips of nodes to the landmarks, which are the first of them.
    fn sites_of(trips: &[&[u32]]) -> Vec<Vec<u32>> {
        let landmarks = trips.iter().map(|trips| trips.len()).max().unwrap_or(0);
        let mut sites = Sites {
            landmarks: (0..landmarks as u32).collect(),
            ..Sites::default()
        };
        for (node, trips) in trips.iter().enumerate() {
            sites.note(node as u32, trips);
        }
        let nodes: Vec<u32> = (0..trips.len() as u32).collect();
        sites.find(&nodes);
        sites.found
    }

    #[test]
    fn nodes_that_are_far_from_a_landmark_are_another_site() {
        let sites = sites_of(&[
            &[0, 150, 10_000],
            &[200, 0, 10_100],
            &[9_900, 10_300, 0],
            &[10_000, 11_000, 400],
            &[90, 1_900, 10_000],
        ]);
        assert_eq!(sites, [vec![0, 1, 4], vec![2, 3]]);
        // No landmark is at the second site.
        let sites = sites_of(&[&[0, 100], &[100, 0], &[5_000, 5_100], &[5_100, 5_000]]);
        assert_eq!(sites, [vec![0, 1], vec![2, 3]]);
    }

    #[test]
    fn nodes_that_are_not_told_apart_are_no_sites() {
        // Of one network, some of which are busy.
        assert!(sites_of(&[&[0, 100], &[2_000, 0], &[50, 1_900], &[400, 900]]).is_empty());
        // Of a long path whose queues differ.
        assert!(sites_of(&[&[0, 30_000], &[31_000, 0]]).len() == 2);
        let apart = are_apart(&Trips::from([(9, 30_000)]), &Trips::from([(9, 55_000)]));
        assert!(!apart);
        // One that reached none of them could be anywhere.
        assert!(sites_of(&[&[0, 9_000], &[9_000, 0], &[0, 0]]).is_empty());
        // Nine sites.
        let all: Vec<Vec<u32>> = (0..9)
            .map(|node| {
                (0..9)
                    .map(|at| if at == node { 0 } else { 9_000 })
                    .collect()
            })
            .collect();
        let all: Vec<&[u32]> = all.iter().map(Vec::as_slice).collect();
        assert!(sites_of(&all).is_empty());
    }
}
