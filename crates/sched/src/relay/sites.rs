//! Where receivers lie: those that the same trunks are before and behind exchange bytes freely.

use std::collections::HashMap;

use ropewalk_model::problem::Problem;

/// For each trunk whether a node is on the side of its senders, and whether it is behind it.
type Place = Vec<(bool, bool)>;

/// Receivers by their place among the trunks.
#[derive(Debug)]
pub(super) struct Sites {
    /// For each receiver, its site.
    pub of: Vec<usize>,
    places: Vec<Place>,
}

impl Sites {
    /// Sites in the order of their first receivers. Cost O(receivers × trunks + members of trunks).
    pub(super) fn new(problem: &Problem) -> Self {
        let trunks = problem.trunks.len();
        let mut places: Vec<Place> = vec![vec![(false, false); trunks]; problem.receivers.len()];
        for (at, trunk) in problem.trunks.iter().enumerate() {
            for &relay in &trunk.relays {
                places[relay][at].0 = true;
            }
            for &receiver in &trunk.receivers {
                places[receiver][at].1 = true;
            }
        }
        let mut known: HashMap<Place, usize> = HashMap::new();
        let mut sites = Self {
            of: Vec::with_capacity(places.len()),
            places: Vec::new(),
        };
        for place in places {
            let next = sites.places.len();
            let site = *known.entry(place.clone()).or_insert(next);
            if site == next {
                sites.places.push(place);
            }
            sites.of.push(site);
        }
        sites
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.places.len()
    }

    /// Whether a site is behind a trunk.
    pub(super) fn is_behind(&self, trunk: usize, site: usize) -> bool {
        self.places[site][trunk].1
    }

    /// Trunks that lie between a site and a receiver.
    pub(super) fn crossed(&self, site: usize, receiver: usize) -> impl Iterator<Item = usize> + '_ {
        let (from, to) = (&self.places[site], &self.places[self.of[receiver]]);
        let crosses = |(from, to): (&(bool, bool), &(bool, bool))| from.0 && to.1;
        let both = from.iter().zip(to).enumerate();
        both.filter(move |(_, pair)| crosses(*pair))
            .map(|(trunk, _)| trunk)
    }

    /// Trunks that lie between a sender and a site.
    pub(super) fn crossed_by_sender<'a>(
        &'a self,
        problem: &'a Problem,
        sender: usize,
        site: usize,
    ) -> impl Iterator<Item = usize> + 'a {
        let place = self.places[site].iter().enumerate();
        let behind = place.filter(|(_, place)| place.1).map(|(trunk, _)| trunk);
        behind.filter(move |&trunk| problem.trunks[trunk].senders.contains(&sender))
    }
}
