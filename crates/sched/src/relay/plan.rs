//! Which receiver fetches what first and hands it on.

use std::collections::HashMap;
use std::sync::Arc;

use ropewalk_model::class::OpenPairs;
use ropewalk_model::problem::{Destination, Problem};
use ropewalk_model::range::Range;
use ropewalk_model::schedule::RelaySchedule;
use ropewalk_model::segments;

use super::copies::{own_relays, relay, senders, stretches};
use super::groups::{Clusters, LANES_PER_NODE_MAX, Stretch};
use super::layout::{Layout, Taker};
use crate::layout::{Scratch, lay};
use crate::newton::{Amounts, levelled, levelled_within};
use crate::side::{Layer, Side};
use crate::sides::{Takers, takers};

/// Runs of a plan, estimated, up to which one is made: some seconds and 100 bytes each.
const RUNS_MAX: usize = 6_000_000;

/// Wanters of a stretch up to which all are first planned as one group.
const UNGROUPED_MAX: usize = 1_000;

/// Runs and stretches up to which what does not set the time is levelled, too: some tenths of a second.
const LEVELS_WORK_MAX: usize = 50_000;

/// A plan with relays; `None` where it would be too large, or where a cap of 0 closes pairs. Everything wanted can be had.
///
/// * `slower`: senders are planned as if they had their speed divided by 2 so many times. Receivers then hand on more,
///   which is what a narrow link behind the senders needs; links themselves are not regarded.
///
/// Source: Li, Chou and Zhang 2004 (Mutualcast); for several sets of wanters Chen and others 2008. Differs: the
/// shares come from one flow over all stretches, so senders and receivers that have much to do with one of them do less
/// for the others.
pub(super) fn with_relays(problem: &Problem, slower: u32) -> Option<RelaySchedule> {
    if !OpenPairs::new(problem).all_open() {
        return None;
    }
    let destinations = problem.destinations();
    let relays = own_relays(problem, &destinations);
    let wanted = wanted(problem, &destinations)?;
    let takers = cuts(problem, &destinations);
    let planned = |clusters: &Clusters| {
        let split = wanted
            .iter()
            .map(|stretch| clusters.split(&stretch.wanters));
        let split: Vec<Vec<(u32, Vec<usize>)>> = split.collect();
        let shares = Shares::new(problem, &relays, &wanted, &split, slower);
        let small = shares.runs(clusters, &split) <= RUNS_MAX;
        small.then(|| {
            let layout = Layout::new(problem, &takers, &relays);
            laid(layout, clusters, &wanted, &split, &shares)
        })
    };
    // Often few of the receivers that share bytes hand any on, and all keep to their lanes.
    let widest = wanted.iter().map(|stretch| stretch.wanters.len()).max();
    let whole = match widest.unwrap_or(0) <= UNGROUPED_MAX {
        true => planned(&Clusters::one(destinations.len())),
        false => None,
    };
    let whole = whole.filter(|plan| plan.peers_max() <= LANES_PER_NODE_MAX);
    whole.or_else(|| planned(&Clusters::new(problem, &destinations, &relays)))
}

/// The runs of a plan in which shares are known.
fn laid(
    mut layout: Layout<'_>,
    clusters: &Clusters,
    wanted: &[Stretch],
    split: &[Vec<(u32, Vec<usize>)>],
    shares: &Shares,
) -> RelaySchedule {
    for (at, (stretch, parts)) in wanted.iter().zip(split).enumerate() {
        let mut carried: HashMap<usize, u128> = HashMap::new();
        shares.senders(at, &mut carried);
        for (cluster, wanters) in parts {
            let mut made: HashMap<usize, u128> = HashMap::new();
            let mut from_senders: HashMap<usize, u128> = HashMap::new();
            if let Some(&atom) = shares.atoms.get(&(at, *cluster)) {
                shares.senders(atom, &mut from_senders);
                shares.receivers(atom, &mut made);
            }
            match &clusters.groups[*cluster as usize] {
                groups if groups.len() > 1 => {
                    let bytes = from_senders.values().sum();
                    layout.groups(stretch.range, groups, &made, bytes);
                }
                _ => layout.group(stretch.range, wanters, &made),
            }
            for (sender, bytes) in from_senders {
                *carried.entry(sender).or_default() += bytes;
            }
        }
        let mut carried: Vec<(usize, u128)> = carried.into_iter().collect();
        carried.sort_unstable();
        layout.serve(&carried);
    }
    layout.finish()
}

/// The wanted stretches with their wanters; `None` where the lists would be too long.
fn wanted(problem: &Problem, destinations: &[Destination]) -> Option<Vec<Stretch>> {
    let cuts = stretches(problem, destinations);
    let listed = cuts.iter().map(|(_, copies)| *copies as usize);
    if listed.sum::<usize>() > RUNS_MAX {
        return None;
    }
    let segments = segments(destinations.iter().map(|d| &d.wanted).enumerate());
    let mut segments = segments.iter().peekable();
    let mut wanted = Vec::with_capacity(cuts.len());
    for (range, _) in cuts {
        while segments.next_if(|s| s.range.end <= range.start).is_some() {}
        let wanters = Arc::clone(&segments.peek()?.members);
        wanted.push(Stretch { range, wanters });
    }
    Some(wanted)
}

/// Who carries how much of what.
struct Shares {
    amounts: Amounts,
    /// For stretch and cluster, the atom of the further copies there. The first copies are those of the
    /// stretch's own number: one for each cluster.
    atoms: HashMap<(usize, u32), usize>,
    senders: usize,
}

impl Shares {
    fn new(
        problem: &Problem,
        relays: &[Option<usize>],
        wanted: &[Stretch],
        split: &[Vec<(u32, Vec<usize>)>],
        slower: u32,
    ) -> Self {
        let first = wanted.iter().zip(split);
        let first = first.map(|(stretch, parts)| (stretch.range, parts.len() as u64));
        let mut layers = vec![Layer {
            nodes: Vec::new(),
            demand: first.collect(),
        }];
        // For each layer of further copies, its cluster, stretches with copies, and members.
        let mut further: HashMap<u32, usize> = HashMap::new();
        let mut places: Vec<Vec<(usize, u32)>> = vec![Vec::new()];
        let mut members: Vec<Vec<usize>> = vec![Vec::new()];
        for (at, parts) in split.iter().enumerate() {
            for (cluster, wanters) in parts.iter().filter(|part| part.1.len() > 1) {
                let layer = *further.entry(*cluster).or_insert_with(|| {
                    layers.push(Layer::default());
                    places.push(Vec::new());
                    members.push(Vec::new());
                    layers.len() - 1
                });
                let range: Range = wanted[at].range;
                layers[layer].demand.push((range, wanters.len() as u64 - 1));
                places[layer].push((at, *cluster));
                members[layer].extend(wanters.iter().filter_map(|&d| relays[d]));
            }
        }
        for (layer, mut members) in layers.iter_mut().zip(members) {
            members.sort_unstable();
            members.dedup();
            layer.nodes = members.into_iter().map(|r| relay(problem, r)).collect();
        }
        let mut senders = senders(problem);
        for (_, speed, _) in &mut senders {
            *speed = (*speed >> slower).max(1);
        }
        let side = Side::layered(&senders, &layers);
        let (amounts, _) = levelled_within(&side, LEVELS_WORK_MAX);
        let places = places.into_iter().flatten();
        let atoms = places.zip(wanted.len()..);
        Self {
            amounts,
            atoms: atoms.collect(),
            senders: problem.senders.len(),
        }
    }

    /// About how many runs from receiver to receiver there will be.
    fn runs(&self, clusters: &Clusters, split: &[Vec<(u32, Vec<usize>)>]) -> usize {
        let of = |(&(at, cluster), &atom): (&(usize, u32), &usize)| {
            let relays = self.amounts[atom].iter();
            let relays = relays
                .filter(|(node, _)| *node as usize >= self.senders)
                .count();
            let parts = &split[at];
            let own = parts.binary_search_by_key(&cluster, |part| part.0);
            let wanters = own.map_or(0, |own| parts[own].1.len());
            relays * wanters.div_ceil(clusters.groups[cluster as usize].len())
        };
        self.atoms.iter().map(of).sum()
    }

    /// Adds the bytes of an atom that senders carry.
    fn senders(&self, atom: usize, to: &mut HashMap<usize, u128>) {
        for &(node, bytes) in &self.amounts[atom] {
            if (node as usize) < self.senders && bytes > 0 {
                *to.entry(node as usize).or_default() += bytes;
            }
        }
    }

    /// Adds the bytes of an atom that receivers hand on.
    fn receivers(&self, atom: usize, to: &mut HashMap<usize, u128>) {
        for &(node, bytes) in &self.amounts[atom] {
            if let Some(receiver) = (node as usize).checked_sub(self.senders)
                && bytes > 0
            {
                *to.entry(receiver).or_default() += bytes;
            }
        }
    }
}

/// Which receivers take what of each destination.
fn cuts(problem: &Problem, destinations: &[Destination]) -> Vec<Taker> {
    let nodes = problem.senders.len().max(problem.receivers.len());
    let mut scratch = Scratch::new(nodes);
    let of = |destination: &Destination| match takers(problem, destination) {
        Takers::One(only) => match only {
            Some(receiver) => Taker::Own(receiver),
            None => Taker::Shared(Vec::new()),
        },
        Takers::Shared(side) => {
            let (amounts, _) = levelled(&side);
            Taker::Shared(lay(&side, amounts, &[&destination.wanted], &mut scratch).swap_remove(0))
        }
    };
    destinations.iter().map(of).collect()
}
