//! Pair caps and trunks: which of them make the problem harder, and what they are called.

use ropewalk_model::class::{DemandTable, OpenPairs};
use ropewalk_model::problem::Problem;
use ropewalk_model::range::RangeSet;
use ropewalk_model::schedule::{PairIndex, TrunkIndex};

/// What has to be solved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The sides part. A trunk that every pair crosses, the narrowest if any, only bounds the whole.
    Sides {
        /// Position in [`Problem::trunks`].
        trunk: Option<usize>,
    },
    /// Pair caps and destinations of single receivers: one flow.
    Pairs,
    /// A linear program.
    General,
}

impl Kind {
    pub(crate) fn of(problem: &Problem) -> Self {
        let alive = |sender: bool| -> Vec<usize> {
            let speeds: Vec<u64> = match sender {
                true => problem.senders.iter().map(|s| s.up).collect(),
                false => problem.receivers.iter().map(|r| r.down).collect(),
            };
            (0..speeds.len()).filter(|&node| speeds[node] > 0).collect()
        };
        let (senders, receivers) = (alive(true), alive(false));
        let covers = |members: &[usize], all: &[usize]| {
            let members: std::collections::HashSet<usize> = members.iter().copied().collect();
            all.iter().all(|node| members.contains(node))
        };
        // One without senders concerns only what receivers hand on.
        let trunks = problem.trunks.iter().enumerate();
        let mut trunks = trunks.filter(|(_, trunk)| !trunk.senders.is_empty());
        let all_wide = trunks
            .clone()
            .all(|(_, t)| covers(&t.senders, &senders) && covers(&t.receivers, &receivers));
        if !all_wide {
            return Self::General;
        }
        let narrowest = trunks.by_ref().min_by_key(|(_, trunk)| trunk.cap);
        let narrowest = narrowest.map(|(at, _)| at);
        if problem.pair_caps.is_empty() {
            return Self::Sides { trunk: narrowest };
        }
        let shared = problem.destinations().iter().any(|d| d.receivers.len() > 1);
        match narrowest.is_some() || shared {
            true => Self::General,
            false => Self::Pairs,
        }
    }
}

/// Everything that limits: senders, then receivers, pair caps and trunks, in the problem's order.
#[derive(Debug)]
pub(crate) struct Limits {
    /// Bytes per second.
    pub speeds: Vec<u64>,
    senders: usize,
    receivers: usize,
    pairs: PairIndex,
    pair_caps: usize,
    trunks: TrunkIndex,
}

impl Limits {
    pub(crate) fn new(problem: &Problem) -> Self {
        let speeds = problem.senders.iter().map(|s| s.up);
        let speeds = speeds.chain(problem.receivers.iter().map(|r| r.down));
        let speeds = speeds.chain(problem.pair_caps.iter().map(|p| p.cap));
        let speeds = speeds.chain(problem.trunks.iter().map(|t| t.cap));
        Self {
            speeds: speeds.collect(),
            senders: problem.senders.len(),
            receivers: problem.receivers.len(),
            pairs: PairIndex::new(problem),
            pair_caps: problem.pair_caps.len(),
            trunks: TrunkIndex::new(problem),
        }
    }

    /// What limits bytes from this sender to this receiver, as positions in `speeds`.
    pub(crate) fn of(&self, sender: usize, receiver: usize) -> Vec<u32> {
        let nodes = self.senders + self.receivers;
        let mut limits = vec![sender as u32, (self.senders + receiver) as u32];
        let pairs = self.pairs.of(sender, receiver).iter();
        limits.extend(pairs.map(|&pair| (nodes + pair) as u32));
        let trunks = self.trunks.of(sender, receiver);
        limits.extend(trunks.map(|trunk| (nodes + self.pair_caps + trunk) as u32));
        limits
    }

    /// A node's name, "w0 -> r0" for a pair, [`Trunk::label`](ropewalk_model::Trunk::label) of a trunk.
    pub(crate) fn name(&self, problem: &Problem, limit: usize) -> String {
        let pairs_from = self.senders + self.receivers;
        if limit < self.senders {
            problem.senders[limit].name.clone()
        } else if limit < pairs_from {
            problem.receivers[limit - self.senders].name.clone()
        } else if limit < pairs_from + self.pair_caps {
            let pair = problem.pair_caps[limit - pairs_from];
            let (from, to) = (
                &problem.senders[pair.sender],
                &problem.receivers[pair.receiver],
            );
            format!("{} -> {}", from.name, to.name)
        } else {
            let position = limit - pairs_from - self.pair_caps;
            problem.trunks[position].label(position)
        }
    }
}

/// Bytes of one class from one sender to one receiver: a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Way {
    pub class: usize,
    pub sender: usize,
    pub receiver: usize,
    /// Positions in [`Limits::speeds`].
    pub limits: Vec<u32>,
}

/// All open ways, class by class, receiver by receiver; `None` when there are more than `ways_max`.
pub(crate) fn ways(table: &DemandTable, limits: &Limits, ways_max: usize) -> Option<Vec<Way>> {
    let open: &OpenPairs = &table.open;
    let mut ways = Vec::new();
    for (class, of) in table.classes.iter().enumerate() {
        if ways.len() + of.senders.len() * of.receivers.len() > ways_max {
            return None;
        }
        for &receiver in of.receivers.iter() {
            let senders = of.senders.iter().copied();
            for sender in senders.filter(|&s| open.all_open() || open.is_open(s, receiver)) {
                ways.push(Way {
                    class,
                    sender,
                    receiver,
                    limits: limits.of(sender, receiver),
                });
            }
        }
    }
    Some(ways)
}

/// How many ways there are, closed ones counted, without building the classes where there are more runs than
/// the limit.
pub(crate) fn ways_len_up_to(problem: &Problem, limit: usize) -> usize {
    let senders = problem.senders.iter().filter(|s| s.up > 0);
    let receivers = problem.receivers.iter().filter(|r| r.down > 0);
    let runs = |ranges: &RangeSet| ranges.as_slice().len();
    let held: usize = senders.map(|s| runs(&s.ranges)).sum();
    let listed: usize = receivers.map(|r| runs(&r.ranges)).sum();
    // Ways are at least that many where anything overlaps, and classes are cut by all runs of a side.
    if held.max(listed) > limit {
        return held.max(listed);
    }
    let table = DemandTable::new(problem);
    let sizes = table.classes.iter();
    sizes
        .map(|class| class.senders.len() * class.receivers.len())
        .sum()
}
