//! Whole streams of machines, with frames that are delayed at will: they end, within their memory, with every block once.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::account::Account;
use super::deal::{Chance, Deal};
use super::frame::{Frame, Header};
use super::process::{Process, Role, Settings, Violation, Wait};
use super::{GROUPS_MAX, group_name, group_of};
use crate::mix::mix;

const BLOCK: usize = 100;

#[derive(Clone, Debug)]
struct Case {
    nodes: usize,
    groups: usize,
    buffers: usize,
    blocks: u64,
    local: Vec<bool>,
    deal: Deal,
    // Of the order in which things happen.
    order: u64,
    // Groups that make two blocks of one, but for the first and last.
    programs: Vec<bool>,
}

struct Edge {
    from: usize,
    output: usize,
    to: usize,
    input: usize,
    forward: VecDeque<Frame>,
    back: VecDeque<(u64, bool)>,
}

struct World {
    case: Case,
    processes: Vec<Process<()>>,
    made: Vec<u64>,
    edges: Vec<Edge>,
    ended: Account,
    chance: Chance,
}

fn fingerprint(header: &Header) -> u128 {
    let identity = header.identity;
    let low =
        mix(identity.number ^ mix(u64::from(identity.node) << 16 | u64::from(identity.group)));
    u128::from(low) << 64 | u128::from(mix(low ^ u64::from(header.length)))
}

impl World {
    fn new(case: Case) -> Self {
        let (nodes, groups) = (case.nodes, case.groups);
        let count = |at: usize| if case.local[at] { 1 } else { nodes };
        let mut processes = Vec::new();
        for group in 0..groups {
            for node in 0..nodes {
                processes.push(Process::new(Settings {
                    role: match group {
                        0 => Role::Source,
                        _ if group + 1 == groups => Role::Sink,
                        _ if case.programs[group] => Role::Program,
                        _ => Role::Relay,
                    },
                    node: node as u32,
                    group: group as u32,
                    inputs: if group == 0 { 0 } else { count(group - 1) },
                    outputs: if group + 1 == groups { 0 } else { count(group) },
                    block: BLOCK,
                    buffers: case.buffers,
                    deal: case.deal,
                    seed: 5,
                }));
            }
        }
        let mut edges = Vec::new();
        for group in 0..groups - 1 {
            for from in 0..nodes {
                for to in 0..nodes {
                    if case.local[group] && from != to {
                        continue;
                    }
                    let place = |own: usize| if case.local[group] { 0 } else { own };
                    edges.push(Edge {
                        from: group * nodes + from,
                        output: place(to),
                        to: (group + 1) * nodes + to,
                        input: place(from),
                        forward: VecDeque::new(),
                        back: VecDeque::new(),
                    });
                }
            }
        }
        Self {
            made: vec![0; processes.len()],
            processes,
            edges,
            ended: Account::default(),
            chance: Chance::new(case.order, 0, 0),
            case,
        }
    }

    fn make(&mut self, number: usize) {
        let process = &mut self.processes[number];
        let identity = process.next_identity();
        let header = Header {
            identity,
            length: 1 + (identity.number % BLOCK as u64) as u32,
            check: 0,
        };
        process.make(header, fingerprint(&header), identity.number, ());
    }

    /// One thing that a process can do; false where there is none.
    fn work(&mut self, number: usize) -> bool {
        let last = (self.case.groups - 1) * self.case.nodes;
        let process = &mut self.processes[number];
        match process.role() {
            Role::Source if process.may_make() && self.made[number] < self.case.blocks => {
                self.made[number] += 1;
                let is_last = self.made[number] == self.case.blocks;
                self.make(number);
                if is_last {
                    self.processes[number].close();
                }
                true
            }
            Role::Source => false,
            Role::Relay => process.relay() > 0,
            Role::Sink => match process.take() {
                Some(held) => {
                    assert!(number >= last);
                    self.ended.add(held.header.length, held.fingerprint);
                    process.release(held);
                    true
                }
                None => false,
            },
            Role::Program => {
                // Takes a block, owes two; `made` counts what it owes.
                if self.made[number] > 0 && process.may_make() {
                    self.made[number] -= 1;
                    self.make(number);
                    return true;
                }
                if self.made[number] == 0
                    && let Some(held) = process.take()
                {
                    process.release(held);
                    self.made[number] = 2;
                    return true;
                }
                if self.made[number] == 0 && process.has_drained() {
                    process.close();
                }
                false
            }
        }
    }

    /// Lets one edge carry one frame each way, as far as there is one; false where there is none.
    fn carry(&mut self, at: usize) -> bool {
        let edge = &mut self.edges[at];
        let from = &mut self.processes[edge.from];
        let mut has_moved = false;
        if let Some(held) = from.next_send(edge.output) {
            edge.forward.push_back(Frame::Block(held.header));
            from.sent(edge.output, held);
            has_moved = true;
        }
        if from.poll_want(edge.output, false) {
            edge.forward.push_back(Frame::Want);
            has_moved = true;
        }
        if let Some((blocks, bytes)) = from.poll_end(edge.output) {
            edge.forward.push_back(Frame::End { blocks, bytes });
            has_moved = true;
        }
        if let Some((granted, on_demand)) = edge.back.pop_front() {
            from.credit(edge.output, granted, on_demand).unwrap();
            has_moved = true;
        }
        let to = &mut self.processes[edge.to];
        has_moved |= !edge.forward.is_empty();
        match edge.forward.pop_front() {
            Some(Frame::Block(header)) => {
                let key = header.identity.number;
                to.arrive(edge.input, header, fingerprint(&header), key, ())
                    .unwrap();
            }
            Some(Frame::Want) => to.want(edge.input),
            Some(Frame::End { blocks, bytes }) => to.end(edge.input, blocks, bytes).unwrap(),
            _ => {}
        }
        if let Some(credit) = to.poll_credit(edge.input) {
            edge.back.push_back(credit);
            has_moved = true;
        }
        has_moved
    }

    /// Runs to the end: things happen in random order, some more often than others. Panics when nothing can happen before.
    fn run(mut self) -> Self {
        let (processes, edges) = (self.processes.len(), self.edges.len());
        while !self.processes.iter().all(Process::is_done) {
            let at = self.chance.below(processes + edges);
            let moved = if at < processes {
                self.work(at)
            } else {
                self.carry(at - processes)
            };
            for process in &self.processes {
                assert!(
                    process.held() <= self.case.buffers,
                    "a process holds {} buffers",
                    process.held()
                );
            }
            if !moved {
                let mut can_move = false;
                for process in 0..processes {
                    can_move |= self.work(process);
                }
                for edge in 0..edges {
                    can_move |= self.carry(edge);
                }
                let is_done = self.processes.iter().all(Process::is_done);
                let waits: Vec<Wait> = self.processes.iter().map(Process::wait).collect();
                assert!(can_move || is_done, "nothing moves: {waits:?}");
            }
        }
        self
    }

    fn sum(&self, group: usize, of: impl Fn(&Process<()>) -> Account) -> Account {
        let mut sum = Account::default();
        for process in &self.processes[group * self.case.nodes..][..self.case.nodes] {
            sum += of(process);
        }
        sum
    }
}

fn cases() -> impl Strategy<Value = Case> {
    (1..5_usize, 2..6_usize, 2..12_usize, 1..60_u64).prop_flat_map(
        |(nodes, groups, buffers, blocks)| {
            let flags = || prop::collection::vec(any::<bool>(), groups);
            let deal = prop_oneof![Just(Deal::Random), Just(Deal::Keyed), Just(Deal::Numbered)];
            (flags(), flags(), deal, any::<u64>()).prop_map(
                move |(local, programs, deal, order)| Case {
                    nodes,
                    groups,
                    buffers,
                    blocks,
                    local,
                    deal,
                    order,
                    programs,
                },
            )
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// However frames are delayed, and with fewer buffers than edges too, every stream ends; each group receives what the one
    /// before dealt, and no process holds more than its buffers.
    #[test]
    fn streams_end(case in cases()) {
        let world = World::new(case.clone()).run();
        let mut expected = case.blocks * case.nodes as u64;
        for group in 0..case.groups {
            if group > 0 {
                prop_assert_eq!(world.sum(group - 1, Process::dealt), world.sum(group, Process::received));
            }
            let is_between = group > 0 && group + 1 < case.groups;
            if is_between && case.programs[group] {
                expected *= 2;
            }
            if group + 1 < case.groups {
                prop_assert_eq!(world.sum(group, Process::dealt).blocks, expected);
            }
        }
        prop_assert_eq!(world.ended.blocks, expected);
        prop_assert_eq!(world.ended, world.sum(case.groups - 1, Process::received));
    }
}

/// The same seeds deal as many blocks to the same processes of every group, whatever the order of arrival.
#[test]
fn seeds_replay() {
    let case = |order| Case {
        nodes: 3,
        groups: 4,
        buffers: 9,
        blocks: 50,
        local: vec![false; 4],
        deal: Deal::Random,
        order,
        programs: vec![false; 4],
    };
    let received = |order| {
        let world = World::new(case(order)).run();
        world.processes[3..]
            .iter()
            .map(|process| process.received().blocks)
            .collect::<Vec<_>>()
    };
    for order in 2..5 {
        assert_eq!(received(1), received(order));
    }
}

/// What a process with a program deals, by output, when it takes so many blocks before it makes the same number.
fn dealt_after_taking(together: usize) -> Vec<Vec<u64>> {
    let mut process: Process<()> = Process::new(Settings {
        role: Role::Program,
        node: 1,
        group: 1,
        inputs: 2,
        outputs: 3,
        block: BLOCK,
        buffers: 64,
        deal: Deal::Random,
        seed: 5,
    });
    for input in 0..2 {
        let _ = process.poll_credit(input);
    }
    for output in 0..3 {
        process.credit(output, u64::MAX, false).unwrap();
    }
    let mut dealt = vec![Vec::new(); 3];
    let (_, header) = pair();
    for _ in 0..12 / together {
        for input in 0..together {
            process.arrive(input % 2, header, 1, 0, ()).unwrap();
            if let Some(credit) = process.poll_credit(input % 2) {
                assert!(credit.0 > 0);
            }
        }
        for _ in 0..together {
            let held = process.take().unwrap();
            process.release(held);
        }
        for _ in 0..together {
            let identity = process.next_identity();
            process.make(Header { identity, ..header }, 1, 0, ());
            for (output, numbers) in dealt.iter_mut().enumerate() {
                while let Some(held) = process.next_send(output) {
                    numbers.push(held.header.identity.number);
                    process.sent(output, held);
                }
            }
        }
    }
    dealt
}

/// When blocks arrive and are merged does not change where those go that are made of them.
#[test]
fn merges_do_not_change_deals() {
    let one = dealt_after_taking(1);
    assert_eq!(one.iter().map(Vec::len).sum::<usize>(), 12);
    for together in [2, 3, 4, 6] {
        assert_eq!(one, dealt_after_taking(together), "{together}");
    }
}

fn pair() -> (Process<()>, Header) {
    let process = Process::new(Settings {
        role: Role::Sink,
        node: 0,
        group: 1,
        inputs: 1,
        outputs: 0,
        block: BLOCK,
        buffers: 2,
        deal: Deal::Random,
        seed: 0,
    });
    let header = Header {
        identity: super::frame::Identity {
            node: 0,
            group: 0,
            number: 0,
        },
        length: 7,
        check: 0,
    };
    (process, header)
}

/// A process receives no more while it cannot pass on what it has: blocks wait before it, not in its buffers. It does again as soon as
/// one has gone on.
#[test]
fn a_process_that_cannot_pass_on_takes_no_more() {
    let (_, header) = pair();
    let mut relay = Process::new(Settings {
        role: Role::Relay,
        node: 0,
        group: 1,
        inputs: 1,
        outputs: 1,
        block: 1 << 20,
        buffers: 8,
        deal: Deal::Random,
        seed: 0,
    });
    assert!(relay.poll_credit(0).is_some());
    let arrive = |relay: &mut Process<()>| {
        relay.arrive(0, header, 1, 0, ()).unwrap();
        relay.relay();
    };
    assert!(relay.wants_more() && !relay.can_pass(0), "no credit");
    arrive(&mut relay);
    assert!(!relay.wants_more());
    relay.credit(0, 2 << 20, false).unwrap();
    assert!(!relay.can_pass(0), "behind another one");
    let held = relay.next_send(0).unwrap();
    assert!(relay.wants_more() && relay.can_pass(0));
    relay.sent(0, held);
    arrive(&mut relay);
    assert!(relay.next_send(0).is_some());
    assert!(!relay.can_pass(0), "no credit");
    // Where it waits for more than credit, it asks only where that is needed.
    assert!(!relay.poll_want(0, true));
    relay.credit(0, 2 << 20, true).unwrap();
    assert!(!relay.poll_want(0, false));
    assert!(relay.poll_want(0, true) && !relay.poll_want(0, true));
    let (mut sink, header) = pair();
    assert!(sink.poll_credit(0).is_some());
    sink.arrive(0, header, 1, 0, ()).unwrap();
    assert!(!sink.wants_more());
    let held = sink.take().unwrap();
    assert!(sink.wants_more());
    sink.release(held);
}

/// Peers that send without credit, after the end, or count wrongly are named as such.
#[test]
fn violations_are_found() {
    let (mut process, header) = pair();
    assert_eq!(process.arrive(0, header, 1, 0, ()), Err(Violation::Credit));
    assert_eq!(process.poll_credit(0), Some((2 * BLOCK as u64, false)));
    process.arrive(0, header, 1, 0, ()).unwrap();
    let count = Violation::Count {
        blocks: 2,
        bytes: 7,
        received: 1,
        received_bytes: 7,
    };
    assert_eq!(process.end(0, 2, 7), Err(count));
    process.end(0, 1, 7).unwrap();
    assert_eq!(process.end(0, 1, 7), Err(Violation::AfterEnd));
    assert_eq!(
        process.arrive(0, header, 1, 0, ()),
        Err(Violation::AfterEnd)
    );
}

/// A slow process of the second group stops the first one, though the other one has credit: its blocks wait in order.
#[test]
fn a_slow_process_slows_the_first() {
    let mut source: Process<()> = Process::new(Settings {
        role: Role::Source,
        node: 0,
        group: 0,
        inputs: 0,
        outputs: 2,
        block: 128 << 10,
        buffers: 64,
        deal: Deal::Random,
        seed: 3,
    });
    source.credit(0, u64::MAX, false).unwrap();
    let mut sent = 0;
    let mut made = 0;
    while source.may_make() {
        let header = Header {
            identity: source.next_identity(),
            length: 1,
            check: 0,
        };
        source.make(header, 1, 0, ());
        made += 1;
        if let Some(held) = source.next_send(0) {
            source.sent(0, held);
            sent += 1;
        }
    }
    // Eight blocks wait for the second process, and about as many went to the first.
    assert_eq!(made - sent, 8);
    assert!(made < 40, "{made}");
    assert_eq!(source.wait(), Wait::Output);
}

/// A source that has made all it has waits for the next group alone, until the ends are written.
#[test]
fn a_source_that_has_ended_waits_for_its_output() {
    let mut source: Process<()> = Process::new(Settings {
        role: Role::Source,
        node: 0,
        group: 0,
        inputs: 0,
        outputs: 1,
        block: 4096,
        buffers: 4,
        deal: Deal::Random,
        seed: 3,
    });
    assert_eq!(source.wait(), Wait::Work);
    source.close();
    assert_eq!(source.wait(), Wait::Output);
}

/// Names go on after Z, and each names one group.
#[test]
fn groups_have_names() {
    let names: Vec<String> = [0, 1, 25, 26, 27, 51, 52].map(group_name).into();
    assert_eq!(names, ["A", "B", "Z", "AA", "AB", "AZ", "BA"]);
    for group in 0..GROUPS_MAX {
        assert_eq!(group_of(&group_name(group)), Some(group));
    }
    for name in ["", "a", "A1", "ZZZ"] {
        assert_eq!(group_of(name), None, "{name}");
    }
}
