//! Which nodes lie near each other, by round trips: what is wanted at a site crosses the path to it once, and spreads there.
//!
//! Only where receivers may hand on, and where nothing is declared of the links. Before the first plan each node that sends or may hand on measures
//! the round trip to a few of them, the landmarks. A site is the nodes that are near a landmark, and landmarks that are not far from each
//! other are at one site. A node that is near none, as one whose packets waited in a queue, is at no site.

use std::collections::BTreeMap;

use ropewalk_model::RangeSet;
use ropewalk_model::problem::Site;

use super::Coordinator;
use crate::control::{self, Probe};

/// Nodes to which round trips are measured: each costs every node two connections.
const LANDMARKS_MAX: usize = 8;

/// With more sites than this none is regarded: plans take long then, and few copies are saved.
const SITES_MAX: usize = 8;

/// A node is near a landmark within this round trip ...
const NEAR_MICROSECONDS: u32 = 2_000;

/// ... and two landmarks are far from each other from this one on. A packet that waited in a queue for so long may part a node from its site:
/// each measures twice.
const FAR_MICROSECONDS: u32 = 2 * NEAR_MICROSECONDS;

/// With more nodes than this none measure.
const NODES_MAX: usize = 512;

/// Shorter copies gain less than a node that does not answer could cost, a second (bytes of one).
const COPY_BYTES_MIN: u64 = 64 << 20;

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

    /// Finds the sites of these nodes. Cost O(nodes × landmarks + landmarks²).
    fn find(&mut self, nodes: &[u32]) {
        let mut places: Vec<Vec<u32>> = Vec::new();
        for &landmark in &self.landmarks {
            let is_here =
                |place: &Vec<u32>| place.iter().any(|other| !self.are_far(*other, landmark));
            match places.iter_mut().find(|place| is_here(place)) {
                Some(place) => place.push(landmark),
                None => places.push(vec![landmark]),
            }
        }
        let mut found = vec![Vec::new(); places.len()];
        for &node in nodes {
            let near = |landmark: &u32| {
                self.trip(node, *landmark)
                    .is_some_and(|trip| trip <= NEAR_MICROSECONDS)
            };
            let own = places.iter().position(|place| place.contains(&node));
            let at = own.or_else(|| places.iter().position(|place| place.iter().any(near)));
            if let Some(at) = at {
                found[at].push(node);
            }
        }
        // A single node gains nothing by being a site, but others are apart from it.
        if (2..=SITES_MAX).contains(&found.len()) {
            self.found = found;
        }
    }

    fn trip(&self, node: u32, landmark: u32) -> Option<u32> {
        self.trips.get(&node)?.get(&landmark).copied()
    }

    /// Of two landmarks, by the shorter of what both measured; not where neither knows.
    fn are_far(&self, one: u32, other: u32) -> bool {
        let trips = [self.trip(one, other), self.trip(other, one)];
        let least = trips.into_iter().flatten().min();
        least.is_some_and(|trip| trip >= FAR_MICROSECONDS)
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
            // One at no site is not known to be near.
            (Some(one), other) => other != Some(one),
            (None, _) => between((one, other)) || between((other, one)),
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
        let wants = || {
            receivers
                .iter()
                .map(|node| &self.nodes[*node as usize].wants)
        };
        let together = wants().fold(RangeSet::new(), |all, wants| all.union(wants));
        let is_common = wants()
            .map(|wants| u128::from(wants.len_bytes()))
            .sum::<u128>()
            > u128::from(together.len_bytes());
        if !is_common || self.nodes.len() > NODES_MAX {
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
    }

    /// Of a plan in which receivers hand on.
    pub(super) fn note_sites(&mut self) {
        if self.sites.found.is_empty() || self.relays.is_empty() {
            return;
        }
        let names = |site: &Vec<u32>| {
            let names: Vec<&str> = site.iter().map(|node| self.name(*node)).collect();
            match names.as_slice() {
                [] => "nodes".to_owned(),
                [first] => (*first).to_owned(),
                [first, others @ ..] => format!("{first} and {} more", others.len()),
            }
        };
        let names: Vec<String> = self.sites.found.iter().map(names).collect();
        let text = format!(
            "round trips show {} sites: {}",
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
    fn nodes_near_a_landmark_are_at_its_site() {
        let sites = sites_of(&[
            &[0, 150, 10_000],
            &[200, 0, 10_100],
            &[9_900, 10_300, 0],
            &[10_000, 11_000, 400],
            &[90, 1_900, 10_000],
            // One whose packets waited, and one that reached none.
            &[9_000, 9_000, 9_000],
            &[0, 0, 0],
        ]);
        assert_eq!(sites, [vec![0, 1, 4], vec![2, 3]]);
    }

    #[test]
    fn nodes_that_are_not_near_a_landmark_are_at_no_site() {
        // Ten branches, of which every second has a landmark.
        let row = |node: usize| -> Vec<u32> {
            let to = |landmark| if landmark == node { 0 } else { 20_000 };
            (0..5).map(to).collect()
        };
        let rows: Vec<Vec<u32>> = (0..10).map(row).collect();
        let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
        assert_eq!(sites_of(&rows), [[0], [1], [2], [3], [4]]);
    }

    #[test]
    fn nodes_that_are_not_told_apart_are_no_sites() {
        // Of one network, in which the packets of one waited in one direction.
        assert!(
            sites_of(&[
                &[0, 100, 90],
                &[9_000, 0, 3_900],
                &[50, 1_900, 0],
                &[400, 900, 90]
            ])
            .is_empty()
        );
        // Nothing is known.
        assert!(sites_of(&[&[0, 0], &[0, 0]]).is_empty());
        // Nine sites.
        let row = |node: usize| -> Vec<u32> {
            (0..9)
                .map(|at| if at == node { 0 } else { 9_000 })
                .collect()
        };
        let rows: Vec<Vec<u32>> = (0..9).map(row).collect();
        let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
        assert!(sites_of(&rows).is_empty());
    }
}
