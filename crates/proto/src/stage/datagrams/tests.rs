//! Both ends of an edge over a path that loses, repeats and reorders datagrams, in virtual time.

use std::collections::BTreeMap;

use proptest::prelude::*;
use ropewalk_model::{ByteRate, Instant, Nanos};

use super::*;
use crate::rapid::{Datagram, DatagramKind, Order, Stray};
use crate::stage::process::Violation;

const BLOCK: u32 = 5000;
const TRAILER: u32 = 16;
const MS: Nanos = Nanos::from_millis(1);

fn at(ms: u64) -> Instant {
    Instant::ZERO + Nanos::from_millis(ms)
}

/// Both ends after they have found datagrams of this length.
fn open(datagram: u32, order: Order, flow: Flow) -> (Sending, Receiving) {
    let mut sending = Sending::new(datagram, 28, TRAILER, order, None);
    let mut receiving = Receiving::new(datagram, BLOCK, TRAILER, flow);
    receiving.hello(datagram);
    sending.ready(datagram, Instant::ZERO);
    let Probing::Send(lengths) = sending.probe(Instant::ZERO) else {
        panic!("probes are due");
    };
    for length in lengths {
        receiving.probe(length, Instant::ZERO);
    }
    let found = receiving.poll_probed(Instant::ZERO).unwrap();
    assert!(sending.probed(found));
    assert_eq!(found, datagram);
    (sending, receiving)
}

fn take(receiving: &mut Receiving, head: &Datagram) -> Result<usize, Stray> {
    let place = receiving.place(head)?;
    receiving.seen(head.sequence);
    receiving.placed(head, &place);
    Ok(place.length)
}

/// An edge in use: what the driver keeps.
struct Run {
    sending: Sending,
    receiving: Receiving,
    blocks: Vec<u32>,
    pushed: usize,
    sequence: u64,
    datagrams: u64,
    late: Vec<Datagram>,
    // Units that are whole at the receiver and still in its buffers, and their lengths.
    whole: Vec<(u32, u32)>,
    // Rounds that are out, and not reported.
    rounds: Vec<(u32, u32, u32, u64)>,
    // At the sender.
    acknowledged: usize,
    now: Instant,
}

impl Run {
    fn new(flow: Flow, order: Order, blocks: Vec<u32>) -> Self {
        let (sending, receiving) = open(1000, order, flow);
        Self {
            sending,
            receiving,
            blocks,
            pushed: 0,
            sequence: 0,
            datagrams: 0,
            late: Vec::new(),
            whole: Vec::new(),
            rounds: Vec::new(),
            acknowledged: 0,
            now: Instant::ZERO,
        }
    }

    /// Sends one piece; `fate` says whether a datagram is lost, repeated, late.
    fn send(&mut self, mut fate: impl FnMut(u64) -> (bool, bool, bool)) -> bool {
        let piece = match self.sending.next(3, false, None, Nanos::ZERO, self.now) {
            Next::Piece(piece) => piece,
            Next::Nothing => return false,
            Next::Wait(_) => panic!("there is no rate"),
        };
        let payload = self.sending.payload();
        for index in piece.first..piece.first + piece.count {
            let at = u64::from(index * payload);
            let head = Datagram {
                kind: DatagramKind::Data,
                round: piece.round as u8,
                length: (piece.unit.range.len() - at).min(payload.into()) as u16,
                lane: 1,
                sequence: self.sequence,
                offset: piece.unit.range.start + at,
                grant: piece.unit.id,
                echo: 0,
            };
            let (lost, twice, late) = fate(self.sequence);
            self.sequence += 1;
            self.datagrams += 1;
            match (lost, late) {
                (true, _) => {}
                (_, true) => self.late.push(head),
                _ => {
                    let first = take(&mut self.receiving, &head);
                    if twice && first.is_ok() {
                        assert!(take(&mut self.receiving, &head).is_err());
                    }
                }
            }
        }
        if piece.ends_round {
            let length = piece.unit.range.len() as u32;
            let round = (piece.unit.id, piece.round, length, self.sequence);
            self.rounds.push(round);
        }
        true
    }

    /// What is whole is reported, then late datagrams come, and rounds that are out by then are answered.
    fn answer(&mut self) {
        self.report();
        for head in std::mem::take(&mut self.late) {
            let _ = take(&mut self.receiving, &head);
        }
        // What was reported whole meanwhile needs no notice; it does no harm.
        self.give_notice();
        self.now += MS * 5;
        self.report();
    }

    fn give_notice(&mut self) {
        for (unit, round, length, sequence) in std::mem::take(&mut self.rounds) {
            let ended = self
                .receiving
                .round_ended(unit, round, length, sequence, self.now);
            assert_eq!(ended, Ok(()));
        }
    }

    fn report(&mut self) {
        while let Some(reported) = self.receiving.report(Some(self.now), self.now) {
            let bits = &reported.lacking;
            let sent = self
                .sending
                .lacking(reported.unit, reported.round, bits)
                .unwrap();
            assert!(!sent || bits.is_empty());
            self.acknowledged += usize::from(sent);
            self.whole
                .extend(reported.whole.map(|length| (reported.unit, length)));
        }
    }
}

proptest! {
    /// Whatever is lost (a quarter), repeated or late, every block is whole once, and never are more begun than there are buffers.
    #[test]
    fn every_block_is_whole_once(blocks in prop::collection::vec(0..BLOCK, 1..40), buffers in 1u64..9, first: bool, seed in prop::collection::vec(any::<u8>(), 64)) {
        let order = if first { Order::BlastFirst } else { Order::RepairsFirst };
        let mut run = Run::new(Flow::Credit, order, blocks);
        let fate = |sequence: u64| {
            let chance = seed[(sequence % 64) as usize].wrapping_add((sequence / 64 * 31) as u8);
            (chance < 64, chance.is_multiple_of(7), chance.is_multiple_of(5))
        };
        let mut ended: BTreeMap<u32, u32> = BTreeMap::new();
        let mut granted = buffers;
        for _ in 0..100_000 {
            run.receiving.grant(granted);
            while run.pushed < run.blocks.len() && (run.pushed as u64) < granted {
                run.sending.push(run.blocks[run.pushed]);
                run.pushed += 1;
            }
            if run.send(fate) { continue; }
            run.answer();
            prop_assert!(run.receiving.begun.len() + run.whole.len() <= buffers as usize);
            // What is whole leaves.
            for (unit, length) in run.whole.drain(..) {
                granted += 1;
                prop_assert!(ended.insert(unit, length).is_none());
            }
            if run.acknowledged == run.blocks.len() { break; }
        }
        let units: Vec<u32> = run.blocks.iter().map(|&block| unit_length(block)).collect();
        prop_assert_eq!(ended.into_values().collect::<Vec<_>>(), units);
        prop_assert!(!run.sending.has_work());
        prop_assert_eq!(run.acknowledged, run.pushed);
    }

    /// Whatever a datagram's header says, its place lies within its block, and it begins no block without a buffer.
    #[test]
    fn only_proper_places(offset: u64, length: u16, grant in 0u32..6, granted in 0u64..4) {
        let (_, mut receiving) = open(1000, Order::BlastFirst, Flow::Credit);
        receiving.grant(granted);
        let head = Datagram { kind: DatagramKind::Data, round: 0, length, lane: 1, sequence: 0, offset, grant, echo: 0 };
        if let Ok(place) = receiving.place(&head) {
            prop_assert!(u64::from(grant) < granted);
            prop_assert!(place.at + place.length <= unit_length(BLOCK) as usize);
            receiving.placed(&head, &place);
            prop_assert_eq!(receiving.place(&head), Err(Stray::Duplicate));
        }
    }
}

/// Without flow control, a receiver that has no buffers drops all: it is sent again for as long as that lasts, and ends when it ends.
#[test]
fn without_flow_control_all_is_sent_again() {
    let mut run = Run::new(Flow::None, Order::BlastFirst, vec![BLOCK; 10]);
    run.receiving.grant(2);
    for &length in &run.blocks.clone() {
        run.sending.push(length);
    }
    let each = u64::from(unit_length(BLOCK).div_ceil(run.sending.payload()));
    for _ in 0..20 {
        while run.send(|_| (false, false, false)) {}
        run.answer();
    }
    assert_eq!(run.whole.len(), 2);
    assert_eq!(run.datagrams, each * (2 + 8 * 20));
    run.receiving.grant(10);
    while run.send(|_| (false, false, false)) {}
    run.answer();
    assert_eq!(run.whole.len(), 10);
    assert!(!run.sending.has_work());
}

/// The notice of a round may overtake its datagrams: a unit that they make whole is reported with that round, which the sender waits for.
#[test]
fn notices_may_overtake_datagrams() {
    let mut run = Run::new(Flow::None, Order::BlastFirst, vec![BLOCK]);
    run.sending.push(BLOCK);
    for _ in 0..3 {
        while run.send(|_| (false, false, false)) {}
        run.answer();
    }
    run.receiving.grant(1);
    while run.send(|_| (false, false, true)) {}
    run.give_notice();
    for head in std::mem::take(&mut run.late) {
        take(&mut run.receiving, &head).unwrap();
    }
    run.report();
    assert_eq!((run.acknowledged, run.whole.len()), (1, 1));
}

/// Rounds of units without credit, of units of other lengths, and of what is no unit, are violations.
#[test]
fn rounds_without_credit_are_violations() {
    let (_, mut receiving) = open(1000, Order::BlastFirst, Flow::Credit);
    receiving.grant(1);
    let mut ended = |unit, length| receiving.round_ended(unit, 0, length, 1, at(0));
    assert_eq!(ended(1, 100), Err(Violation::Credit));
    assert_eq!(ended(0, unit_length(BLOCK) + 1), Err(Violation::Datagrams));
    assert_eq!(ended(0, unit_length(0) - 1), Err(Violation::Datagrams));
    assert_eq!(ended(0, 100), Ok(()));
    assert_eq!(ended(0, 101), Err(Violation::Datagrams));
    // One that was whole before the first.
    assert_eq!(ended(u32::MAX, 100), Ok(()));
    let reported = receiving.report(None, at(0)).unwrap();
    assert_eq!((reported.unit, reported.lacking.len()), (u32::MAX, 0));
    assert_eq!(reported.whole, None);
}

/// The longest probe that passes is used: at once when it is the longest there is, else after those that were sent with it.
#[test]
fn the_longest_probe_counts() {
    let mut sending = Sending::new(8972, 28, TRAILER, Order::BlastFirst, None);
    assert_eq!(
        sending.probe(at(0)),
        Probing::Later,
        "there is no socket yet"
    );
    sending.ready(4000, at(0));
    let lengths = vec![4000, 1472, 1372, 1252];
    assert_eq!(sending.probe(at(0)), Probing::Send(lengths.clone()));
    assert_eq!(sending.probe(at(1)), Probing::Later);
    assert_eq!(sending.probe_at(), Some(at(200)));
    assert_eq!(sending.probe(at(200)), Probing::Send(lengths));
    let mut receiving = Receiving::new(8972, BLOCK, TRAILER, Flow::Credit);
    receiving.hello(4000);
    receiving.probe(1372, at(0));
    receiving.probe(1472, at(1));
    receiving.probe(30, at(1));
    assert_eq!(receiving.poll_probed(at(19)), None);
    assert_eq!(receiving.due_at(), Some(at(20)));
    assert_eq!(receiving.poll_probed(at(20)), Some(1472));
    assert_eq!(receiving.poll_probed(at(21)), None);
    assert!(!sending.probed(1400), "that was not sent");
    assert!(!sending.is_open());
    assert!(sending.probed(1472));
    assert_eq!((sending.payload(), sending.probe_at()), (1424, None));
}

/// Where no probe passes, or later no datagram, that is found; a datagram that comes ends the second.
#[test]
fn blocked_paths_are_found() {
    let mut sending = Sending::new(1472, 28, TRAILER, Order::BlastFirst, None);
    sending.ready(1472, at(0));
    let mut ms = 0;
    while sending.probe(at(ms)) != Probing::Blocked {
        ms += 200;
        assert!(ms < 60_000);
    }
    let (_, mut receiving) = open(1000, Order::BlastFirst, Flow::Credit);
    receiving.grant(9);
    let lost = |receiving: &mut Receiving, round: u32| {
        let now = at(u64::from(round) * 2000);
        receiving
            .round_ended(0, round, 100, 1 + u64::from(round), now)
            .unwrap();
        let reported = receiving.report(Some(now + MS), now + MS).unwrap();
        assert_eq!(reported.lacking, [1]);
        receiving.is_blocked(now + MS)
    };
    assert_eq!(
        [0, 1, 2].map(|round| lost(&mut receiving, round)),
        [false; 3]
    );
    assert!(lost(&mut receiving, 3));
    receiving.seen(3);
    assert!(!receiving.is_blocked(at(60_000)));
}

/// A monitor's word bounds an edge, the process's rate all of them; what was not sent is not made up for.
#[test]
fn rates_are_kept() {
    const RATE: u64 = 10_000_000;
    let mut all = Pace::fixed(ByteRate(RATE), at(0));
    let pace = Pace::followed(ByteRate(RATE * 100), at(0));
    let (mut sending, _) = open(1000, Order::BlastFirst, Flow::Credit);
    sending.pace = Some(pace);
    for _ in 0..10_000 {
        sending.push(BLOCK);
    }
    let mut send = |all: Option<&mut Pace>, from: u64, to: u64| {
        let (mut now, mut bytes, mut is_begun, mut all) = (at(from), 0, false, all);
        while now < at(to) {
            match sending.next(40, is_begun, all.as_deref_mut(), Nanos::ZERO, now) {
                Next::Piece(piece) => {
                    let sent = u64::from(piece.count * sending.datagram());
                    sending.spend(sent);
                    if let Some(all) = &mut all {
                        all.spend(sent);
                    }
                    bytes += sent;
                    is_begun = true;
                }
                Next::Wait(until) => {
                    is_begun = false;
                    now = until.max(now + Nanos(1));
                }
                Next::Nothing => panic!("there are blocks"),
            }
        }
        bytes
    };
    let bytes = send(None, 0, 10);
    assert!(
        bytes.abs_diff(RATE) < RATE / 50,
        "{bytes}: a hundred times the rate"
    );
    let bytes = send(Some(&mut all), 10, 1010);
    assert!(bytes.abs_diff(RATE) < RATE / 50, "{bytes}");
}
