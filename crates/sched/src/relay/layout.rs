//! From bytes that each node carries of each stretch to runs between nodes.
//!
//! A stretch of L bytes that m receivers of one group want, of which receiver r makes y copies, is cut into parts:
//! r fetches y / (m - 1) bytes from holders and hands each on to the m - 1 others; what is left goes from holders
//! to all m. Where receivers form several groups, each group cuts the stretch alike among its members. The first groups
//! fetch their parts from holders, every other from the group before it in a tree, member from member; within a group
//! each part is handed on as before.

use std::collections::HashMap;

use ropewalk_model::problem::{Problem, Receiver};
use ropewalk_model::range::Range;
use ropewalk_model::schedule::{Assignment, RelaySchedule, Relayed};

use crate::layout::Piece;
use crate::whole::split;

/// Groups that fetch from one group. Each costs its members 1 part of the data in uplink; more of them
/// make fewer hops.
const FAN_OUT: usize = 3;

/// Senders up to which every receiver gets its part from all of them alike, which are the rates that networks
/// give by themselves; see [`Auto`](crate::Auto).
const SPREAD_SENDERS_MAX: usize = 8;

/// Parts of a stretch up to which the same holds.
const SPREAD_PARTS_MAX: usize = 64;

/// Who takes the bytes of a destination.
#[derive(Debug)]
pub(crate) enum Taker {
    /// One receiver all.
    Own(usize),
    /// Each receiver its pieces, in offset order.
    Shared(Vec<Piece>),
}

/// A part of a stretch and the destination that has it first.
type Part = (Range, usize);

/// Gathers the runs of a plan.
pub(crate) struct Layout<'p> {
    takers: &'p [Taker],
    relays: &'p [Option<usize>],
    receivers: &'p [Receiver],
    direct: Vec<Assignment>,
    relayed: Vec<Relayed>,
    /// Parts of this stretch that senders give.
    asked: Vec<Part>,
    /// Fluid less whole bytes so far of every receiver's parts, and last of what senders give to all.
    part_carry: Vec<f64>,
    /// The same of senders.
    sender_carry: Vec<f64>,
}

impl<'p> Layout<'p> {
    pub(crate) fn new(
        problem: &'p Problem,
        takers: &'p [Taker],
        relays: &'p [Option<usize>],
    ) -> Self {
        Self {
            takers,
            relays,
            receivers: &problem.receivers,
            direct: Vec::new(),
            relayed: Vec::new(),
            asked: Vec::new(),
            part_carry: vec![0.0; problem.receivers.len() + 1],
            sender_carry: vec![0.0; problem.senders.len()],
        }
    }

    /// All wanters of a stretch in one group; alone, a wanter gets all from senders.
    ///
    /// * `made`: bytes that each receiver hands on.
    pub(crate) fn group(&mut self, range: Range, wanters: &[usize], made: &HashMap<usize, u128>) {
        let peers = wanters.len().saturating_sub(1).max(1) as f64;
        let mut owners: Vec<Option<usize>> = Vec::new();
        let (mut nodes, mut wanted) = (Vec::new(), Vec::new());
        for &destination in wanters {
            if let Some(receiver) = self.relays[destination]
                && let Some(&bytes) = made.get(&receiver)
            {
                owners.push(Some(destination));
                nodes.push(receiver);
                wanted.push(bytes as f64 / peers);
            }
        }
        let left = range.len() as f64 - wanted.iter().sum::<f64>();
        owners.push(None);
        nodes.push(self.part_carry.len() - 1);
        // Less than half a byte is what rounding left of nothing.
        wanted.push(if left < 0.5 && nodes.len() > 1 {
            0.0
        } else {
            left
        });
        let parts = split(range.len().into(), &wanted, &nodes, &mut self.part_carry);
        for (part, owner) in cut(range, &parts).zip(owners) {
            match owner {
                _ if part.is_empty() => {}
                Some(owner) => {
                    self.asked.push((part, owner));
                    self.hand_on((part, owner), wanters);
                }
                None => self
                    .asked
                    .extend(wanters.iter().map(|&wanter| (part, wanter))),
            }
        }
    }

    /// The wanters of a stretch in several groups of the same order.
    ///
    /// * `from_senders`: bytes that senders give beside the first copy.
    pub(crate) fn groups(
        &mut self,
        range: Range,
        groups: &[Vec<usize>],
        made: &HashMap<usize, u128>,
        from_senders: u128,
    ) {
        // All that members hand on they hand on to each other, so speeds are shares; equal groups are cut alike.
        let (relays, receivers) = (self.relays, self.receivers);
        let share = |destination: &usize| {
            let receiver = relays[*destination].filter(|receiver| made.contains_key(receiver));
            receiver.map_or(0.0, |receiver| {
                receivers[receiver].relay_up.unwrap_or(0) as f64
            })
        };
        let mut cuts: Vec<Vec<Part>> = Vec::new();
        for group in groups {
            let shares: Vec<f64> = group.iter().map(share).collect();
            let sum: f64 = shares.iter().sum();
            if sum <= 0.0 {
                // A group in which nothing is handed on.
                self.asked
                    .extend(group.iter().map(|&wanter| (range, wanter)));
                continue;
            }
            let wanted: Vec<f64> = shares
                .iter()
                .map(|s| s / sum * range.len() as f64)
                .collect();
            let nodes: Vec<usize> = (0..group.len()).collect();
            // Nothing is carried over: groups that are alike are cut alike.
            let parts = split(
                range.len().into(),
                &wanted,
                &nodes,
                &mut vec![0.0; group.len()],
            );
            let parts = cut(range, &parts).zip(group.iter().copied());
            let parts: Vec<Part> = parts.filter(|(part, _)| !part.is_empty()).collect();
            for &part in &parts {
                self.hand_on(part, group);
            }
            cuts.push(parts);
        }
        let roots = 1 + usize::try_from(from_senders / u128::from(range.len().max(1))).unwrap_or(0);
        for at in 0..cuts.len() {
            if at < roots {
                let parts = cuts[at].iter().copied();
                self.asked.extend(parts);
                continue;
            }
            let before = &cuts[(at - roots) / FAN_OUT];
            let (mut have, mut want) = (0, 0);
            while let (Some(&(had, from)), Some(&(part, to))) =
                (before.get(have), cuts[at].get(want))
            {
                if let Some(both) = had.intersect(part) {
                    relay(
                        self.takers,
                        self.relays,
                        &mut self.relayed,
                        (both, from),
                        to,
                    );
                }
                if had.end < part.end {
                    have += 1;
                } else {
                    want += 1;
                }
            }
        }
    }

    /// How many parts of this stretch senders are to give so far.
    pub(crate) fn asked_len(&self) -> usize {
        self.asked.len()
    }

    /// Has relays elsewhere give parts of this stretch in place of senders.
    ///
    /// * `from`: the first of these parts.
    /// * `carried`: destination and bytes of each relay.
    pub(crate) fn enter(&mut self, from: usize, carried: &[(usize, u128)]) {
        let parts = self.asked.split_off(from);
        let mut relays = carried.iter().copied();
        let mut current = relays.next();
        for (mut part, wanter) in parts {
            while let Some((owner, left)) = current.filter(|_| !part.is_empty()) {
                let bytes = u128::from(part.len()).min(left) as u64;
                let end = part.start + bytes;
                let piece = Range::new(part.start, end);
                relay(
                    self.takers,
                    self.relays,
                    &mut self.relayed,
                    (piece, owner),
                    wanter,
                );
                part.start = end;
                current = match left - u128::from(bytes) {
                    0 => relays.next(),
                    rest => Some((owner, rest)),
                };
            }
            if !part.is_empty() {
                self.asked.push((part, wanter));
            }
        }
    }

    fn hand_on(&mut self, part: Part, wanters: &[usize]) {
        for &wanter in wanters.iter().filter(|&&wanter| wanter != part.1) {
            relay(self.takers, self.relays, &mut self.relayed, part, wanter);
        }
    }

    /// Shares what senders were asked for in this stretch among them.
    ///
    /// * `carried`: position and bytes of each sender; about as much as was asked for.
    pub(crate) fn serve(&mut self, carried: &[(usize, u128)]) {
        let asked = std::mem::take(&mut self.asked);
        let nodes: Vec<usize> = carried.iter().map(|sender| sender.0).collect();
        let all: f64 = carried.iter().map(|sender| sender.1 as f64).sum();
        let fluid = |bytes: f64| -> Vec<f64> {
            let shares = carried.iter().map(|sender| sender.1 as f64 / all);
            shares.map(|share| share * bytes).collect()
        };
        if nodes.len() <= SPREAD_SENDERS_MAX && asked.len() <= SPREAD_PARTS_MAX {
            for (part, wanter) in asked {
                let bytes = part.len();
                let parts = split(
                    bytes.into(),
                    &fluid(bytes as f64),
                    &nodes,
                    &mut self.sender_carry,
                );
                for (piece, &sender) in cut(part, &parts).zip(&nodes) {
                    self.send(piece, sender, wanter);
                }
            }
            return;
        }
        let bytes: u128 = asked.iter().map(|(part, _)| u128::from(part.len())).sum();
        let parts = split(bytes, &fluid(bytes as f64), &nodes, &mut self.sender_carry);
        let mut senders = nodes.into_iter().zip(parts);
        let mut current = senders.next();
        for (mut part, wanter) in asked {
            while let Some((sender, left)) = current.filter(|_| !part.is_empty()) {
                let bytes = u128::from(part.len()).min(left) as u64;
                let end = part.start + bytes;
                self.send(Range::new(part.start, end), sender, wanter);
                part.start = end;
                current = match left - u128::from(bytes) {
                    0 => senders.next(),
                    rest => Some((sender, rest)),
                };
            }
        }
    }

    fn send(&mut self, range: Range, sender: usize, wanter: usize) {
        let direct = &mut self.direct;
        taken(&self.takers[wanter], range, |range, receiver| {
            direct.push(Assignment {
                range,
                sender,
                receiver,
            });
        });
    }

    pub(crate) fn finish(self) -> RelaySchedule {
        RelaySchedule::from_runs(self.direct, self.relayed)
    }
}

/// Adds runs of a part from the one that has it first to another destination.
fn relay(
    takers: &[Taker],
    relays: &[Option<usize>],
    relayed: &mut Vec<Relayed>,
    (part, owner): Part,
    wanter: usize,
) {
    let Some(from) = relays[owner] else {
        debug_assert!(false, "only receivers that hand on have parts");
        return;
    };
    taken(&takers[wanter], part, |range, to| {
        relayed.push(Relayed { range, from, to });
    });
}

/// The receivers of a range, and what each takes of it.
fn taken(taker: &Taker, range: Range, mut each: impl FnMut(Range, usize)) {
    match taker {
        Taker::Own(receiver) => each(range, *receiver),
        Taker::Shared(pieces) => {
            let first = pieces.partition_point(|piece| piece.range.end <= range.start);
            let inside = pieces[first..].iter();
            let inside = inside.take_while(|piece| piece.range.start < range.end);
            for piece in inside {
                if let Some(both) = piece.range.intersect(range) {
                    each(both, piece.node as usize);
                }
            }
        }
    }
}

/// Consecutive pieces of a range with these lengths, which sum to its own.
fn cut(range: Range, parts: &[u128]) -> impl Iterator<Item = Range> + '_ {
    let mut start = range.start;
    parts.iter().map(move |&bytes| {
        let piece = Range::new(start, start + bytes as u64);
        start = piece.end;
        piece
    })
}
