//! Pair caps where every receiver has a destination of its own: one flow from senders over pairs to classes.
//!
//! A receiver's bytes all go to it, so its speed bounds the time but changes nothing; what is left is
//! source, sender, pair where it is capped, class, sink. Newton on minimum cuts as for a side, then one
//! flow in whole bytes.

use ropewalk_model::class::DemandTable;
use ropewalk_model::problem::Problem;
use ropewalk_model::schedule::{Assignment, Schedule};

use crate::flow::{Network, SINK, SOURCE};
use crate::links::{Limits, Way, ways};
use crate::side::{Tightest, ceil_share};
use crate::whole::Cursor;
use crate::wide::{Amount, Wide, reduced};

/// Ways up to which the flow is built: some 100 bytes each.
const WAYS_MAX: usize = 1_000_000;

/// The least time of the senders and pairs.
pub(crate) struct Solved {
    /// Bytes over speed, as in [`Tightest`].
    pub time: (u128, u128),
    /// What sets it, as positions in [`Limits::speeds`].
    pub binding: Vec<usize>,
    ways: Vec<Way>,
}

/// One capped pair: its sender, its position among the limits, and its speed.
struct Pair {
    sender: usize,
    limit: usize,
    speed: u64,
}

struct Graph<A> {
    network: Network<A>,
    /// The edge of each way.
    ways: Vec<usize>,
    pairs: Vec<Pair>,
    /// Where the nodes of pairs and of classes begin.
    pair_nodes: usize,
    class_nodes: usize,
}

/// Solves it; `None` when there are too many ways.
///
/// * `start`: the tightest set of senders without pair caps, a bound to start from.
pub(crate) fn solve(problem: &Problem, table: &DemandTable, start: &Tightest) -> Option<Solved> {
    let limits = Limits::new(problem);
    let ways = ways(table, &limits, WAYS_MAX)?;
    let mut solved = Solved {
        time: start.time(),
        binding: start.members.clone(),
        ways,
    };
    let bits = |value: u128| u128::BITS - value.leading_zeros();
    let speeds: u128 = limits.speeds.iter().map(|&s| u128::from(s)).sum();
    let all = table.bytes();
    while solved.time.0 > 0 {
        let (bytes, speed) = reduced(solved.time);
        let narrow = bits(speeds) + bits(bytes) < 126 && bits(all) + bits(speed) < 126;
        let cut = match narrow {
            true => cut::<u128>(problem, table, &solved.ways, &limits, (bytes, speed)),
            false => cut::<Wide>(problem, table, &solved.ways, &limits, (bytes, speed)),
        };
        // Each quotient is larger than the last and belongs to some cut, so this ends.
        let Some((time, binding)) = cut else { break };
        (solved.time, solved.binding) = (time, binding);
    }
    Some(solved)
}

/// The minimum cut where the time is too short: its bytes over its speed, and its limits.
fn cut<A: Amount>(
    problem: &Problem,
    table: &DemandTable,
    ways: &[Way],
    limits: &Limits,
    (bytes, speed): (u128, u128),
) -> Option<((u128, u128), Vec<usize>)> {
    let room = |speed: u64| A::product(u128::from(speed), bytes);
    let demand = |bytes: u64| A::product(u128::from(bytes), speed);
    let all = A::product(table.bytes(), speed);
    let mut graph = Graph::new(problem, table, ways, limits, room, demand, all);
    if graph.network.maximum_flow() == all {
        return None;
    }
    let short = |class: &usize| !graph.network.reached(graph.class_nodes + class);
    let classes = (0..table.classes.len()).filter(short);
    let bytes: u128 = classes.map(|c| u128::from(table.classes[c].bytes)).sum();
    let full = |sender: &usize| !graph.network.reached(2 + sender);
    let mut binding: Vec<usize> = (0..problem.senders.len())
        .filter(|sender| problem.senders[*sender].up > 0)
        .filter(full)
        .collect();
    for (at, pair) in graph.pairs.iter().enumerate() {
        if !full(&pair.sender) && !graph.network.reached(graph.pair_nodes + at) {
            binding.push(pair.limit);
        }
    }
    let speed = binding
        .iter()
        .map(|&limit| u128::from(limits.speeds[limit]));
    Some(((bytes, speed.sum()), binding))
}

impl<A: Amount> Graph<A> {
    fn new(
        problem: &Problem,
        table: &DemandTable,
        ways: &[Way],
        limits: &Limits,
        room: impl Fn(u64) -> A,
        demand: impl Fn(u64) -> A,
        total: A,
    ) -> Self {
        let nodes = problem.senders.len() + problem.receivers.len();
        let mut pairs: Vec<Pair> = Vec::new();
        let mut known = std::collections::HashMap::new();
        // A way has its sender, its receiver and then its pair's caps; of several the narrowest counts.
        let capped = |way: &Way| {
            let caps = way
                .limits
                .iter()
                .map(|&l| l as usize)
                .filter(|&l| l >= nodes);
            caps.min_by_key(|&limit| (limits.speeds[limit], limit))
        };
        let through: Vec<Option<usize>> = ways
            .iter()
            .map(|way| {
                let limit = capped(way)?;
                Some(*known.entry(limit).or_insert_with(|| {
                    pairs.push(Pair {
                        sender: way.sender,
                        limit,
                        speed: limits.speeds[limit],
                    });
                    pairs.len() - 1
                }))
            })
            .collect();
        let pair_nodes = 2 + problem.senders.len();
        let class_nodes = pair_nodes + pairs.len();
        let mut network = Network::new(class_nodes + table.classes.len());
        for (index, sender) in problem.senders.iter().enumerate() {
            network.edge(SOURCE, 2 + index, room(sender.up));
        }
        for (at, pair) in pairs.iter().enumerate() {
            network.edge(2 + pair.sender, pair_nodes + at, room(pair.speed));
        }
        let unlimited = total.plus(total);
        let edges = ways.iter().zip(through).map(|(way, through)| {
            let from = through.map_or(2 + way.sender, |pair| pair_nodes + pair);
            // More than everything, so that no cut goes through it.
            network.edge(from, class_nodes + way.class, unlimited)
        });
        let ways = edges.collect();
        for (class, of) in table.classes.iter().enumerate() {
            network.edge(class_nodes + class, SINK, demand(of.bytes));
        }
        Self {
            network,
            ways,
            pairs,
            pair_nodes,
            class_nodes,
        }
    }
}

impl Solved {
    /// The plan in whole bytes, at most a byte a node or pair over.
    pub(crate) fn plan(&self, problem: &Problem, table: &DemandTable) -> Schedule {
        let limits = Limits::new(problem);
        let all = table.bytes();
        let time = reduced(self.time);
        let room = |speed: u64| ceil_share(speed, time).min(all);
        let mut graph = Graph::new(problem, table, &self.ways, &limits, room, u128::from, all);
        let moved = graph.network.maximum_flow();
        debug_assert_eq!(moved, all, "the time is enough for whole bytes too");
        let mut assignments = Vec::new();
        let mut at = 0;
        for group in self.ways.chunk_by(|a, b| a.class == b.class) {
            let mut cursor = Cursor::new(&table.classes[group[0].class]);
            for way in group {
                // At most what the class wants, hence 64 bits.
                let bytes = graph.network.flow(graph.ways[at]) as u64;
                at += 1;
                cursor.take(bytes, |range| {
                    assignments.push(Assignment {
                        range,
                        sender: way.sender,
                        receiver: way.receiver,
                    });
                });
            }
        }
        Schedule::from_assignments(assignments)
    }
}
