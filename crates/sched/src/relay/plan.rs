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
use super::sites::Sites;
use crate::layout::{Scratch, lay};
use crate::newton::{Amounts, levelled, levelled_within};
use crate::side::{Carrier, Layer, Side};
use crate::sides::{Takers, takers};

/// Runs of a plan, estimated, up to which one is made: some seconds and 100 bytes each.
const RUNS_MAX: usize = 6_000_000;

/// Wanters of a stretch up to which all are first planned as one group.
const UNGROUPED_MAX: usize = 1_000;

/// Runs and stretches up to which what does not set the time is levelled, too: some tenths of a second.
const LEVELS_WORK_MAX: usize = 50_000;

/// How trunks are regarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spread {
    /// Not at all: all receivers exchange bytes.
    Everywhere,
    /// Receivers exchange bytes within their site. Bytes that a site wants get there once, from senders or from receivers of the site
    /// that is nearest to their holders; more copies from senders where these have the capacity.
    Sites,
    /// The same, where senders beyond a trunk send no more than the one copy.
    OnceOverTrunks,
}

/// A plan with relays; `None` where it would be too large, or where a cap of 0 closes pairs. Everything wanted can be had.
///
/// * `slower`: senders are planned as if they had their speed divided by 2 so many times. Receivers then hand on more,
///   which is what a narrow link behind the senders needs; what links can carry is not regarded.
///
/// Source: Li, Chou and Zhang 2004 (Mutualcast); for several sets of wanters Chen and others 2008. Differs: the
/// shares come from one flow over all stretches, so senders and receivers that have much to do with one of them do less
/// for the others.
pub(super) fn with_relays(problem: &Problem, slower: u32, spread: Spread) -> Option<RelaySchedule> {
    if !OpenPairs::new(problem).all_open() {
        return None;
    }
    let destinations = problem.destinations();
    let relays = own_relays(problem, &destinations);
    let wanted = wanted(problem, &destinations)?;
    let takers = cuts(problem, &destinations);
    let sites = Sites::new(problem);
    let site_of: Vec<usize> = match spread {
        Spread::Everywhere => vec![0; destinations.len()],
        _ => {
            let first = destinations.iter().map(|d| d.receivers[0]);
            first.map(|receiver| sites.of[receiver]).collect()
        }
    };
    let planned = |clusters: &Clusters| {
        let split = wanted
            .iter()
            .map(|stretch| clusters.split(&stretch.wanters));
        let split: Vec<Vec<(u32, Vec<usize>)>> = split.collect();
        let entry = Entry::new(problem, &sites, &site_of, spread, &wanted, &split);
        let shares = Shares::new(problem, &relays, &wanted, &split, &entry, slower);
        let small = shares.runs(clusters, &split) <= RUNS_MAX;
        small.then(|| {
            let layout = Layout::new(problem, &takers, &relays);
            laid(layout, clusters, &wanted, &split, &entry, &shares)
        })
    };
    // Often few of the receivers that share bytes hand any on, and all keep to their lanes.
    let widest = wanted.iter().map(|stretch| stretch.wanters.len()).max();
    let whole = match widest.unwrap_or(0) <= UNGROUPED_MAX {
        true => planned(&Clusters::one(&site_of)),
        false => None,
    };
    let whole = whole.filter(|plan| plan.peers_max() <= LANES_PER_NODE_MAX);
    whole.or_else(|| planned(&Clusters::new(problem, &destinations, &relays, &site_of)))
}

/// Where bytes get to first, and which senders may send more of them.
struct Entry {
    /// For each stretch, the position of the cluster that has its bytes from senders and feeds the others; `None` where each
    /// cluster has them from senders.
    roots: Option<Vec<usize>>,
    /// For each cluster, the senders that send no more than the first copy there; all may where the list is short.
    barred: HashMap<u32, Vec<bool>>,
}

impl Entry {
    /// * `site_of`: for each destination its site.
    fn new(
        problem: &Problem,
        sites: &Sites,
        site_of: &[usize],
        spread: Spread,
        wanted: &[Stretch],
        split: &[Vec<(u32, Vec<usize>)>],
    ) -> Self {
        let mut entry = Self {
            roots: None,
            barred: HashMap::new(),
        };
        if spread == Spread::Everywhere {
            return entry;
        }
        let crossed =
            |sender: usize, site: usize| sites.crossed_by_sender(problem, sender, site).count();
        let root = |(stretch, parts): (&Stretch, &Vec<(u32, Vec<usize>)>)| {
            let holders = || {
                let senders = problem.senders.iter().enumerate();
                let alive = senders.filter(|(_, sender)| sender.up > 0);
                let holds = alive.filter(|(_, s)| s.ranges.contains_range(stretch.range));
                holds.map(|(at, _)| at)
            };
            let far = |(_, part): &(usize, &(u32, Vec<usize>))| {
                let site = site_of[part.1[0]];
                let nearest = holders().map(|sender| crossed(sender, site)).min();
                (nearest, std::cmp::Reverse(part.1.len()))
            };
            let nearest = parts.iter().enumerate().min_by_key(far);
            nearest.map_or(0, |(at, _)| at)
        };
        entry.roots = Some(wanted.iter().zip(split).map(root).collect());
        if spread == Spread::OnceOverTrunks {
            for (cluster, wanters) in split.iter().flatten() {
                let site = site_of[wanters[0]];
                entry.barred.entry(*cluster).or_insert_with(|| {
                    let senders = 0..problem.senders.len();
                    senders.map(|sender| crossed(sender, site) > 0).collect()
                });
            }
        }
        entry
    }

    fn is_barred(&self, cluster: u32, sender: usize) -> bool {
        let barred = self.barred.get(&cluster);
        barred.and_then(|barred| barred.get(sender)) == Some(&true)
    }
}

/// The runs of a plan in which shares are known.
fn laid(
    mut layout: Layout<'_>,
    clusters: &Clusters,
    wanted: &[Stretch],
    split: &[Vec<(u32, Vec<usize>)>],
    entry: &Entry,
    shares: &Shares<'_>,
) -> RelaySchedule {
    for (at, (stretch, parts)) in wanted.iter().zip(split).enumerate() {
        let mut carried: HashMap<usize, u128> = HashMap::new();
        shares.senders(at, &mut carried);
        // The cluster that has its bytes from senders is first, and feeds the others.
        let root = entry.roots.as_ref().map(|roots| roots[at]);
        let order = root.into_iter();
        let order = order.chain((0..parts.len()).filter(|&part| Some(part) != root));
        let mut fed_from = None;
        for (rank, part) in order.enumerate() {
            if rank == 1 && root.is_some() {
                fed_from = Some(layout.asked_len());
            }
            let (cluster, wanters) = &parts[part];
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
        if let (Some(root), Some(from)) = (root, fed_from)
            && let Some(&atom) = shares.entries.get(&at)
        {
            shares.senders(atom, &mut carried);
            let mut feeding: HashMap<usize, u128> = HashMap::new();
            shares.receivers(atom, &mut feeding);
            let of = |&destination: &usize| {
                let bytes = feeding.get(&shares.relays[destination]?)?;
                Some((destination, *bytes))
            };
            let feeding: Vec<(usize, u128)> = parts[root].1.iter().filter_map(of).collect();
            layout.enter(from, &feeding);
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
struct Shares<'p> {
    amounts: Amounts,
    /// For stretch and cluster, the atom of the further copies there. The first copies are those of the
    /// stretch's own number: one for each cluster that none feeds.
    atoms: HashMap<(usize, u32), usize>,
    /// For each stretch that one cluster feeds others, the atom of what gets to these first.
    entries: HashMap<usize, usize>,
    /// For each destination the receiver that hands on.
    relays: &'p [Option<usize>],
    senders: usize,
}

/// Layers of copies, with who may carry them.
#[derive(Default)]
struct Layers<'p> {
    layers: Vec<Layer<'p>>,
    /// For each layer its stretches, and its cluster where it is not one of what gets to clusters first.
    places: Vec<Vec<(usize, Option<u32>)>>,
    /// Receivers of each layer.
    members: Vec<Vec<usize>>,
    /// By cluster of further copies, or by the cluster that feeds others.
    known: HashMap<(bool, u32), usize>,
}

impl Layers<'_> {
    /// Adds copies of a stretch.
    ///
    /// * `key`: whether they get to other clusters first, and the cluster of those that hand on.
    fn add(
        &mut self,
        key: (bool, u32),
        (at, range): (usize, Range),
        copies: u64,
        members: impl Iterator<Item = usize>,
    ) {
        let layer = *self.known.entry(key).or_insert_with(|| {
            self.layers.push(Layer::default());
            self.places.push(Vec::new());
            self.members.push(Vec::new());
            self.layers.len() - 1
        });
        self.layers[layer].demand.push((range, copies));
        self.places[layer].push((at, (!key.0).then_some(key.1)));
        self.members[layer].extend(members);
    }
}

impl<'p> Shares<'p> {
    fn new(
        problem: &Problem,
        relays: &'p [Option<usize>],
        wanted: &[Stretch],
        split: &[Vec<(u32, Vec<usize>)>],
        entry: &Entry,
        slower: u32,
    ) -> Self {
        let mut layers = Layers::default();
        let first = wanted.iter().zip(split);
        let first = first.map(|(stretch, parts)| match entry.roots {
            Some(_) => (stretch.range, 1),
            None => (stretch.range, parts.len() as u64),
        });
        layers.layers.push(Layer {
            nodes: Vec::new(),
            demand: first.collect(),
        });
        layers.places.push(Vec::new());
        layers.members.push(Vec::new());
        let handing_on = |wanters: &[usize]| -> Vec<usize> {
            wanters.iter().filter_map(|&d| relays[d]).collect()
        };
        // Clusters where nobody could make the further copies of some stretch but senders.
        let mut lacking: Vec<u32> = Vec::new();
        for (at, parts) in split.iter().enumerate() {
            let place = (at, wanted[at].range);
            for (cluster, wanters) in parts.iter().filter(|part| part.1.len() > 1) {
                let members = handing_on(wanters);
                if members.is_empty() {
                    lacking.push(*cluster);
                }
                let copies = wanters.len() as u64 - 1;
                layers.add((false, *cluster), place, copies, members.into_iter());
            }
            if let Some(roots) = entry.roots.as_ref().filter(|_| parts.len() > 1) {
                let (root, wanters) = &parts[roots[at]];
                let members = handing_on(wanters).into_iter();
                layers.add((true, *root), place, parts.len() as u64 - 1, members);
            }
        }
        let Layers {
            layers,
            places,
            members,
            known,
        } = layers;
        let mut cluster_of = vec![None; layers.len()];
        for (&(feeds, cluster), &layer) in &known {
            cluster_of[layer] = (!feeds && !lacking.contains(&cluster)).then_some(cluster);
        }
        let may = |sender: usize, layer: &usize| {
            let cluster = cluster_of[*layer];
            !cluster.is_some_and(|cluster| entry.is_barred(cluster, sender))
        };
        let mut carriers: Vec<(Carrier<'_>, Vec<usize>)> = Vec::new();
        for mut sender in senders(problem) {
            sender.1 = (sender.1 >> slower).max(1);
            let own = (0..layers.len()).filter(|layer| may(sender.0, layer));
            carriers.push((sender, own.collect()));
        }
        let mut carrier_of: HashMap<usize, usize> = HashMap::new();
        for (layer, mut members) in members.into_iter().enumerate() {
            members.sort_unstable();
            members.dedup();
            for receiver in members {
                let at = *carrier_of.entry(receiver).or_insert_with(|| {
                    carriers.push((relay(problem, receiver), Vec::new()));
                    carriers.len() - 1
                });
                carriers[at].1.push(layer);
            }
        }
        let side = Side::placed(&carriers, &layers);
        let (amounts, _) = levelled_within(&side, LEVELS_WORK_MAX);
        let mut shares = Self {
            amounts,
            atoms: HashMap::new(),
            entries: HashMap::new(),
            relays,
            senders: problem.senders.len(),
        };
        for ((at, cluster), atom) in places.into_iter().flatten().zip(wanted.len()..) {
            match cluster {
                Some(cluster) => shares.atoms.insert((at, cluster), atom),
                None => shares.entries.insert(at, atom),
            };
        }
        shares
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
