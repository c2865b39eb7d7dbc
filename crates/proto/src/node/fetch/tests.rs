//! The receiving state machine in virtual time: lanes of different speed, damage, deaths, limits.

use ropewalk_model::{CHUNK_LEN, Instant, Nanos, Number, Range, RangeSet};

use super::window::{WINDOW_UNITS, WINDOW_UNMEASURED_MAX};
use super::*;
use crate::control::{Plan, Revision, Run, Stretch, range};
use crate::node::tests::unit_at;

const START: Instant = Instant::ZERO;
const SECOND: Nanos = Nanos::from_secs(1);

/// How long bytes take at so many per second.
fn time(bytes: u64, speed: u64) -> Nanos {
    Nanos(bytes * SECOND.0 / speed)
}

fn peer(node: u32) -> Peer {
    Peer {
        node,
        name: format!("s{node}"),
        ..Peer::default()
    }
}

fn plan(peers: &[u32], runs: Vec<Run>) -> Plan {
    Plan {
        peers: peers.iter().map(|&n| peer(n)).collect(),
        runs,
        ..Plan::default()
    }
}

fn run(start: u64, length: u64, sender: u32, spares: &[u32]) -> Run {
    Run {
        start,
        length,
        sender,
        spares: spares.to_vec(),
        choices: 0,
        relay: None,
    }
}

/// A small generator, so that a failing seed can be replayed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

/// What the simulated senders do: each lane carries its units one after the other at its speed.
struct Network {
    speeds: Vec<u64>,
    queues: Vec<VecDeque<Range>>,
    busy_until: Vec<Instant>,
    now: Instant,
}

impl Network {
    fn new(speeds: &[u64]) -> Self {
        Self {
            speeds: speeds.to_vec(),
            queues: vec![VecDeque::new(); speeds.len()],
            busy_until: vec![START; speeds.len()],
            now: START,
        }
    }

    /// Grants whatever the machine gives, then completes the next unit in time. `None` when idle.
    fn step(&mut self, receiving: &mut Receiving, dead: &[bool]) -> Option<(LaneId, Range)> {
        let mut wake = None;
        for (lane, _) in dead.iter().enumerate().filter(|(_, dead)| !**dead) {
            let outstanding = self.queues[lane].iter().map(|r| r.len()).sum();
            match receiving.take(LaneId::of(lane), outstanding, self.now, &unit_at) {
                Take::Units(units) => {
                    for unit in units {
                        if self.queues[lane].is_empty() {
                            self.busy_until[lane] =
                                self.now + time(unit.range.len(), self.speeds[lane]);
                        }
                        self.queues[lane].push_back(unit.range);
                    }
                }
                Take::Wait(Some(until)) => {
                    wake = Some(wake.map_or(until, |w: Instant| w.min(until)))
                }
                Take::Wait(None) | Take::Closed => {}
            }
        }
        let next = (0..self.speeds.len())
            .filter(|&l| !dead[l] && !self.queues[l].is_empty())
            .min_by_key(|&l| self.busy_until[l]);
        let Some(lane) = next else {
            self.now = wake?;
            return self.step(receiving, dead);
        };
        if let Some(wake) = wake.filter(|&w| w < self.busy_until[lane] && w > self.now) {
            self.now = wake;
            return self.step(receiving, dead);
        }
        self.now = self.busy_until[lane];
        let unit = self.queues[lane].pop_front()?;
        if let Some(following) = self.queues[lane].front() {
            self.busy_until[lane] = self.now + time(following.len(), self.speeds[lane]);
        }
        Some((LaneId::of(lane), unit))
    }
}

fn drain(receiving: &mut Receiving) -> Vec<Event> {
    std::iter::from_fn(|| receiving.poll_event()).collect()
}

/// With no hints at all, two replicas of which one is ten times as fast end within a few units of
/// the least possible time, though the plan gave them equal halves.
#[test]
fn equal_halves_end_near_the_bound() {
    let length = 200 * CHUNK_LEN;
    let mut receiving = Receiving::new(4 << 20, 4, START);
    receiving.handle_plan(
        &plan(
            &[0, 1],
            vec![
                run(0, length / 2, 0, &[1]),
                run(length / 2, length / 2, 1, &[0]),
            ],
        ),
        START,
        &unit_at,
    );
    let mut network = Network::new(&[10_000_000, 100_000_000]);
    while let Some((lane, unit)) = network.step(&mut receiving, &[false, false]) {
        receiving.handle_unit(lane, unit, None, network.now);
        if receiving.is_finished() {
            break;
        }
    }
    assert!(receiving.is_finished());
    let bound = time(length, 110_000_000) * 110 / 100;
    assert!(
        network.now.since(START) < bound,
        "{:?} against {bound:?}",
        network.now
    );
    assert!(receiving.ledger().duplicate_bytes() <= 4 * CHUNK_LEN);
}

/// The limit holds over the whole transfer.
#[test]
fn a_limit_is_kept() {
    let length = 50 * CHUNK_LEN;
    let mut receiving = Receiving::new(4 << 20, 4, START);
    receiving.set_limit(Some(ByteRate(10_000_000)), START);
    receiving.handle_plan(&plan(&[0], vec![run(0, length, 0, &[])]), START, &unit_at);
    let mut network = Network::new(&[1_000_000_000]);
    while let Some((lane, unit)) = network.step(&mut receiving, &[false]) {
        receiving.handle_unit(lane, unit, None, network.now);
    }
    assert!(receiving.is_finished());
    // The last unit may be spent in advance.
    let least = START + time(length - 2 * CHUNK_LEN, 10_000_000);
    assert!(network.now >= least, "{:?} against {least:?}", network.now);
}

/// Bytes without a holder are asked for once; the master's word ends or mends it.
#[test]
fn orphans_are_asked_for_once() {
    let mut receiving = Receiving::new(4 << 20, 1, START);
    receiving.handle_plan(&plan(&[0], vec![run(0, 100, 0, &[])]), START, &unit_at);
    receiving.handle_lane_down(LaneId(0), "gone");
    let needs = |events: Vec<Event>| {
        events
            .into_iter()
            .filter(|e| matches!(e, Event::Need(..)))
            .count()
    };
    assert_eq!(needs(drain(&mut receiving)), 1);
    receiving.handle_lane_down(LaneId(0), "gone again");
    assert_eq!(needs(drain(&mut receiving)), 0);
    let revision = Revision {
        peers: vec![peer(1)],
        runs: vec![run(0, 60, 1, &[])],
        unavailable: vec![Stretch {
            start: 60,
            length: 40,
        }],
        ..Revision::default()
    };
    receiving.handle_revision(&revision, START);
    assert!(
        matches!(receiving.take(LaneId(1), 0, START, &unit_at), Take::Units(units) if units[0].range == range(0, 60))
    );
    receiving.handle_unit(LaneId(1), range(0, 60), None, Instant(1));
    assert!(receiving.is_finished());
    assert_eq!(receiving.ledger().missing().as_slice(), [range(60, 40)]);
}

/// What was given up is fetched after all when somebody turns up who can be asked for it.
#[test]
fn what_was_given_up_may_come_back() {
    let mut receiving = Receiving::new(1 << 20, 1, START);
    receiving.handle_plan(&plan(&[0], vec![run(0, 100, 0, &[])]), START, &unit_at);
    receiving.handle_lane_down(LaneId(0), "gone");
    let nobody = Revision {
        unavailable: vec![Stretch {
            start: 0,
            length: 100,
        }],
        ..Revision::default()
    };
    receiving.handle_revision(&nobody, START);
    assert!(receiving.is_finished());
    let other = Revision {
        peers: vec![peer(1)],
        runs: vec![run(40, 60, 1, &[])],
        ..Revision::default()
    };
    receiving.handle_revision(&other, START);
    assert!(!receiving.is_finished());
    assert!(
        matches!(receiving.take(LaneId(1), 0, START, &unit_at), Take::Units(units) if units[0].range == range(40, 60))
    );
    receiving.handle_unit(LaneId(1), range(40, 60), None, Instant(1));
    assert!(receiving.is_finished());
    assert_eq!(receiving.missing().as_slice(), [range(0, 40)]);
}

/// A peer that cannot read one unit keeps serving the others; only that unit is asked for elsewhere.
#[test]
fn one_unreadable_unit_does_not_cost_the_peer() {
    let mut receiving = Receiving::new(4 << 20, 1, START);
    receiving.handle_plan(
        &plan(&[0], vec![run(0, 3 * CHUNK_LEN, 0, &[])]),
        START,
        &unit_at,
    );
    let Take::Units(units) = receiving.take(LaneId(0), 0, START, &unit_at) else {
        panic!("nothing to take")
    };
    receiving.handle_refused(LaneId(0), units[0].range, "the disk says no", Instant(1));
    for unit in &units[1..] {
        receiving.handle_unit(LaneId(0), unit.range, None, Instant(2));
    }
    while let Take::Units(units) = receiving.take(LaneId(0), 0, Instant(3), &unit_at) {
        for unit in units {
            assert!(unit.range.start > 0);
            receiving.handle_unit(LaneId(0), unit.range, None, Instant(4));
        }
    }
    let asked = drain(&mut receiving).into_iter().find_map(|e| {
        if let Event::Need(r, lost, _) = e {
            Some((r, lost))
        } else {
            None
        }
    });
    assert_eq!(asked, Some((RangeSet::from(units[0].range), vec![0])));
    receiving.handle_revision(
        &Revision {
            unavailable: vec![Stretch::from(units[0].range)],
            ..Revision::default()
        },
        START,
    );
    assert!(receiving.is_finished());
}

/// The limit is for bytes that are sent: units that a peer refuses take nothing from it, so that the end of the last source
/// shows at once and not when all its bytes would have been sent.
#[test]
fn refused_units_take_nothing_from_the_limit() {
    let mut receiving = Receiving::new(4 << 20, 1, START);
    let units = 1000;
    // Each unit takes a second.
    let plan = plan(&[0], vec![run(0, units * CHUNK_LEN, 0, &[])]);
    receiving.set_limit(Some(ByteRate(CHUNK_LEN)), START);
    receiving.handle_plan(&plan, START, &unit_at);
    let mut refused = 0;
    loop {
        match receiving.take(LaneId(0), 0, START, &unit_at) {
            Take::Units(granted) => {
                for unit in granted {
                    refused += 1;
                    receiving.handle_refused(LaneId(0), unit.range, "it has changed", START);
                }
            }
            Take::Wait(None) | Take::Closed => break,
            Take::Wait(Some(until)) => panic!("waits until {until:?} after {refused} refusals"),
        }
    }
    assert_eq!(refused, units);
}

/// However many reasons a peer has: what it refused is missing for a reason of its own, and not since the peer is gone.
#[test]
fn what_is_refused_has_a_reason() {
    let mut receiving = Receiving::new(4 << 20, 1, START);
    let units = 300;
    let plan = plan(&[0], vec![run(0, units * CHUNK_LEN, 0, &[])]);
    receiving.handle_plan(&plan, START, &unit_at);
    while let Take::Units(granted) = receiving.take(LaneId(0), 0, START, &unit_at) {
        for unit in granted {
            let reason = format!("{} has changed", unit.range.start / CHUNK_LEN);
            receiving.handle_refused(LaneId(0), unit.range, &reason, START);
        }
    }
    for unit in 0..units {
        let why = receiving.why_missing(range(unit * CHUNK_LEN, CHUNK_LEN));
        let expected = match unit {
            0..256 => format!("{unit} has changed"),
            _ => "refused for further reasons".to_owned(),
        };
        assert_eq!(why, expected);
    }
}

/// Nor do zeros, which peers do not send.
#[test]
fn zeros_take_nothing_from_the_limit() {
    let mut receiving = Receiving::new(4 << 20, 1, START);
    let units = 1000;
    let plan = plan(&[0], vec![run(0, units * CHUNK_LEN, 0, &[])]);
    receiving.set_limit(Some(ByteRate(CHUNK_LEN)), START);
    receiving.handle_plan(&plan, START, &unit_at);
    while let Take::Units(granted) = receiving.take(LaneId(0), 0, START, &unit_at) {
        for unit in granted {
            receiving.handle_zeros(unit.range.len());
            receiving.handle_unit(LaneId(0), unit.range, None, START);
        }
    }
    assert!(receiving.is_finished());
    assert_eq!(receiving.zeros(), units * CHUNK_LEN);
}

/// Who could not serve one unit is named where that unit is asked for, and not where others are.
#[test]
fn one_unreadable_unit_does_not_cost_the_peer_later() {
    let mut receiving = Receiving::new(4 << 20, 1, START);
    let all = 40 * CHUNK_LEN;
    let first = run(0, CHUNK_LEN, 0, &[1]);
    let rest = run(CHUNK_LEN, all - CHUNK_LEN, 1, &[]);
    receiving.handle_plan(&plan(&[0, 1], vec![first, rest]), START, &unit_at);
    let Take::Units(units) = receiving.take(LaneId(0), 0, START, &unit_at) else {
        panic!("nothing to take")
    };
    assert_eq!(units[0].range, range(0, CHUNK_LEN));
    receiving.handle_refused(LaneId(0), units[0].range, "it has changed", Instant(1));
    assert!(
        !drain(&mut receiving)
            .iter()
            .any(|e| matches!(e, Event::Need(..)))
    );
    receiving.handle_lane_down(LaneId(1), "its rack has no power");
    let asked: Vec<(RangeSet, Vec<u32>)> = drain(&mut receiving)
        .into_iter()
        .filter_map(|e| match e {
            Event::Need(ranges, lost, _) => Some((ranges, lost)),
            _ => None,
        })
        .collect();
    let refused = RangeSet::from(range(0, CHUNK_LEN));
    let others = RangeSet::from(range(CHUNK_LEN, all - CHUNK_LEN));
    assert_eq!(asked, [(others, vec![1]), (refused, vec![0, 1])]);
}

/// A unit that never comes whole ends the node's part with a reason that names peer and range.
#[test]
fn damage_without_end_is_given_up() {
    let mut receiving = Receiving::new(4 << 20, 1, START);
    receiving.handle_plan(&plan(&[0], vec![run(0, 100, 0, &[])]), START, &unit_at);
    for _ in 0..100 {
        let Take::Units(units) = receiving.take(LaneId(0), 0, START, &unit_at) else {
            break;
        };
        receiving.handle_corrupt(LaneId(0), units[0].range, "checksum", START);
    }
    let failed = drain(&mut receiving).into_iter().find_map(|e| {
        if let Event::Failed(text) = e {
            Some(text)
        } else {
            None
        }
    });
    assert!(failed.is_some_and(|text| text.contains("0-99") && text.contains("s0")));
}

/// A thousand seeds of speeds, damage and deaths: always every byte that somebody living holds,
/// each once, and always an end.
#[test]
fn swarm() {
    for seed in 0..1000 {
        let mut chance = Chance(seed);
        let lanes = 1 + chance.below(4) as usize;
        let speeds: Vec<u64> = (0..lanes).map(|_| 1_000_000 << chance.below(8)).collect();
        let mut receiving = Receiving::new(
            CHUNK_LEN << chance.below(4),
            1 + chance.below(4) as u32,
            START,
        );
        let mut runs = Vec::new();
        let mut start = 0;
        let mut holders: Vec<(Range, Vec<u32>)> = Vec::new();
        for _ in 0..1 + chance.below(6) {
            let length = 1 + chance.below(20 * CHUNK_LEN);
            let sender = chance.below(lanes as u64) as u32;
            let spares: Vec<u32> = (0..lanes as u32)
                .filter(|&l| l != sender && chance.below(2) == 0)
                .collect();
            holders.push((
                range(start, length),
                std::iter::once(sender)
                    .chain(spares.iter().copied())
                    .collect(),
            ));
            runs.push(run(start, length, sender, &spares));
            start += length + chance.below(3) * 1000;
        }
        let peers: Vec<u32> = (0..lanes as u32).collect();
        receiving.handle_plan(&plan(&peers, runs), START, &unit_at);
        let mut network = Network::new(&speeds);
        let mut dead = vec![false; lanes];
        let mut delivered = RangeSet::new();
        let mut events = drain(&mut receiving);
        for _ in 0..100_000 {
            for event in std::mem::take(&mut events) {
                let Event::Need(ranges, ..) = event else {
                    continue;
                };
                // As the master does: another living holder, or the word that there is none.
                let mut revision = Revision::default();
                for (held, lanes) in &holders {
                    for part in ranges.clipped(*held).iter() {
                        match lanes.iter().find(|&&l| !dead[l as usize]) {
                            Some(&lane) => {
                                revision.runs.push(run(part.start, part.len(), lane, &[]))
                            }
                            None => revision.unavailable.push(Stretch::from(part)),
                        }
                    }
                }
                receiving.handle_revision(&revision, START);
            }
            events.extend(drain(&mut receiving));
            if receiving.is_finished() {
                break;
            }
            let Some((lane, unit)) = network.step(&mut receiving, &dead) else {
                break;
            };
            match chance.below(100) {
                0 => {
                    dead[lane.position()] = true;
                    receiving.handle_lane_down(lane, "killed");
                    let queue = std::mem::take(&mut network.queues[lane.position()]);
                    let units: Vec<Range> = std::iter::once(unit).chain(queue).collect();
                    receiving.handle_closed(lane, &units, network.now);
                }
                1..=3 => receiving.handle_corrupt(lane, unit, "flipped", network.now),
                4..=5 => receiving.handle_returned(lane, unit, network.now),
                _ => {
                    if receiving.handle_unit(lane, unit, None, network.now) {
                        assert!(
                            delivered.clipped(unit).is_empty(),
                            "seed {seed}: {unit:?} counted twice"
                        );
                        delivered.insert(unit);
                    }
                }
            }
            events = drain(&mut receiving);
            if receiving.is_finished() {
                break;
            }
        }
        assert!(receiving.is_finished(), "seed {seed} does not end");
        for (range, holders) in holders {
            let whole = delivered.contains_range(range);
            assert!(
                whole || holders.iter().all(|&l| dead[l as usize]),
                "seed {seed}: {range:?} is incomplete"
            );
        }
    }
}

fn calls(receiving: &mut Receiving) -> Vec<LaneId> {
    let events = drain(receiving).into_iter();
    events
        .filter_map(|event| match event {
            Event::Connect(lane, _) => Some(lane),
            _ => None,
        })
        .collect()
}

/// A spare holder is not bothered while the planned sender keeps to the plan; it is when the node falls
/// behind, when nothing comes, and at once when the sender is lost.
#[test]
fn spares_are_called_when_needed() {
    const MB: u64 = 1 << 20;
    let expecting = |seconds: u64| {
        let mut receiving = Receiving::new(4 << 20, 1, START);
        let plan = Plan {
            expected: (SECOND * seconds).0,
            ..plan(&[0, 1], vec![run(0, 100 * MB, 0, &[1])])
        };
        receiving.handle_plan(&plan, START, &unit_at);
        assert_eq!(calls(&mut receiving), [LaneId(0)]);
        receiving
    };
    // Carries at 10 MB/s until the time given: when was the spare called?
    let carry = |receiving: &mut Receiving, until: Nanos| {
        let mut now = START;
        while now < START + until {
            let Take::Units(units) = receiving.take(LaneId(0), 0, now, &unit_at) else {
                panic!("nothing to carry at {now:?}")
            };
            for unit in units {
                now += SECOND / 10;
                receiving.handle_unit(LaneId(0), unit.range, None, now);
            }
            if calls(receiving) == [LaneId(1)] {
                return Some(now);
            }
        }
        None
    };
    assert_eq!(carry(&mut expecting(10), SECOND * 9), None);
    let late = carry(&mut expecting(5), SECOND * 9).unwrap();
    assert!(late < START + SECOND * 2, "{late:?}");
    assert_eq!(carry(&mut expecting(0), SECOND * 9), None);

    let mut stalled = expecting(10);
    stalled.handle_timer(START + SECOND / 2);
    assert!(calls(&mut stalled).is_empty());
    stalled.handle_timer(START + SECOND * 2);
    assert_eq!(calls(&mut stalled), [LaneId(1)]);

    // The planned sender accepts and stays silent: the spare brings everything, without pauses.
    let mut mute = expecting(10);
    mute.take(LaneId(0), 0, START, &unit_at);
    let mut now = START + SECOND * 3 / 2;
    mute.handle_timer(now);
    assert_eq!(calls(&mut mute), [LaneId(1)]);
    while !mute.is_finished() {
        let Take::Units(units) = mute.take(LaneId(1), 0, now, &unit_at) else {
            panic!("the spare waits at {now:?}")
        };
        for unit in units {
            now += SECOND / 10;
            mute.handle_unit(LaneId(1), unit.range, None, now);
        }
    }

    let mut orphaned = expecting(10);
    orphaned.handle_lane_down(LaneId(0), "killed");
    assert_eq!(calls(&mut orphaned), [LaneId(1)]);
}

/// The window follows the round trip: a long path is not held to what 200 ms carry, and a slow one
/// never has more than that under way.
#[test]
fn windows_are_time() {
    const MB: u64 = 1 << 20;
    let windows = |latency: Nanos, speed: u64| {
        let mut receiving = Receiving::new(64 << 20, 1, START);
        receiving.handle_plan(&plan(&[0], vec![run(0, 1 << 40, 0, &[])]), START, &unit_at);
        let first = receiving.window(LaneId(0));
        let (mut now, mut last) = (START, first);
        let mut line: VecDeque<(Instant, Range)> = VecDeque::new();
        let mut free = START;
        for _ in 0..2000 {
            let outstanding = line.iter().map(|(_, r)| r.len()).sum();
            if let Take::Units(units) = receiving.take(LaneId(0), outstanding, now, &unit_at) {
                for unit in units {
                    free = free.max(now) + time(unit.range.len(), speed);
                    line.push_back((free + latency, unit.range));
                }
            }
            let Some((at, range)) = line.pop_front() else {
                break;
            };
            now = now.max(at);
            receiving.handle_unit(LaneId(0), range, None, now);
            last = receiving.window(LaneId(0));
        }
        (first, last)
    };
    // 100 MB/s at a round trip of 300 ms needs 30 MB.
    let (first, last) = windows(SECOND * 3 / 10, 100 * MB);
    assert_eq!(first, WINDOW_UNMEASURED_MAX);
    assert!(last > 30 * MB, "{last}");
    let (_, last) = windows(Nanos::ZERO, 2 * MB);
    assert_eq!(last, WINDOW_UNITS * MB);
}

/// A lane of many streams may have units in transit for each of them.
#[test]
fn many_streams_have_room() {
    let window = |streams: u32| {
        let mut receiving = Receiving::new(4 << 20, 4, START);
        let runs = vec![run(0, 1 << 30, 0, &[])];
        receiving.handle_plan(&plan(&[0], runs), START, &unit_at);
        receiving.set_streams(streams);
        receiving.window(LaneId(0))
    };
    assert_eq!(window(4), 2 << 20);
    assert_eq!(window(32), 64 << 20);
    assert_eq!(window(2), 2 << 20);
}

/// A lane to a receiver that joined has fewer streams than others: each has a larger part of its window.
#[test]
fn lanes_to_those_that_joined_have_their_own_streams() {
    let mut receiving = Receiving::new(4 << 20, 4, START);
    let runs = vec![run(0, 1 << 30, 0, &[])];
    receiving.handle_plan(&plan(&[0], runs), START, &unit_at);
    let joined = Peer {
        node: 7,
        relays: true,
        ..Peer::default()
    };
    let revision = Revision {
        peers: vec![joined],
        ..Revision::default()
    };
    receiving.handle_revision(&revision, START);
    receiving.set_streams(16);
    receiving.set_streams_to_joined(4);
    let streams = |lane| (receiving.streams_of(lane), receiving.window(lane));
    assert_eq!(streams(LaneId(0)), (16, 32 << 20));
    assert_eq!(streams(LaneId(1)), (4, 2 << 20));
}

/// The master is told what each lane has left: of planned lanes before they bring anything, and of one that is lost, in
/// the middle of its work, that it has nothing left any more.
#[test]
fn statuses_tell_what_lanes_have_left() {
    const LEN: u64 = 16 * CHUNK_LEN;
    let mut receiving = Receiving::new(4 * CHUNK_LEN, 1, START);
    let runs = vec![run(0, LEN, 1, &[2]), run(LEN, LEN, 2, &[1])];
    receiving.handle_plan(&plan(&[1, 2], runs), START, &unit_at);
    let left = |receiving: &mut Receiving, now| -> Vec<(u32, u64)> {
        let statuses = receiving.pair_statuses(now);
        statuses
            .iter()
            .map(|pair| (pair.sender, pair.left))
            .collect()
    };
    assert_eq!(left(&mut receiving, START), [(1, LEN), (2, LEN)]);
    let Take::Units(units) = receiving.take(LaneId(0), 0, Instant(1), &unit_at) else {
        panic!("nothing to take")
    };
    assert!(receiving.handle_unit(LaneId(0), units[0].range, None, START + SECOND));
    assert_eq!(
        left(&mut receiving, START + SECOND),
        [(1, LEN - CHUNK_LEN), (2, LEN)]
    );
    receiving.handle_lane_down(LaneId(0), "unplugged");
    for unit in &units[1..] {
        receiving.handle_returned(LaneId(0), unit.range, START + SECOND);
    }
    let told = left(&mut receiving, START + SECOND + Nanos(1));
    assert_eq!(told, [(1, 0), (2, 2 * LEN - CHUNK_LEN)]);
}

/// What the destination has is never asked for: not by the first plan, not by a revision; the node is complete without it.
#[test]
fn what_is_present_is_not_asked_for() {
    let unit = CHUNK_LEN;
    let mut receiving = Receiving::new(64 << 20, 1, START);
    receiving.handle_present(RangeSet::from_ranges([
        Range::new(unit, 2 * unit),
        Range::new(3 * unit + 10, 5 * unit),
    ]));
    let first = plan(&[0, 1], vec![run(0, 4 * unit, 0, &[1])]);
    receiving.handle_plan(&first, START, &unit_at);
    let revision = Revision {
        runs: vec![run(4 * unit, 2 * unit, 1, &[])],
        number: 1,
        ..Revision::default()
    };
    receiving.handle_revision(&revision, START);
    let mut network = Network::new(&[1 << 20, 1 << 20]);
    let mut received = RangeSet::new();
    while let Some((lane, range)) = network.step(&mut receiving, &[false; 2]) {
        // The last units are fetched twice.
        receiving.handle_unit(lane, range, None, network.now);
        received.insert(range);
    }
    let expected = RangeSet::from_ranges([
        Range::new(0, unit),
        Range::new(2 * unit, 3 * unit + 10),
        Range::new(5 * unit, 6 * unit),
    ]);
    assert_eq!(received, expected);
    assert!(receiving.is_finished());
    assert_eq!(receiving.ledger().wanted_bytes(), expected.len_bytes());
}

/// A node whose destination has everything is complete at once and asks no peer for anything.
#[test]
fn a_node_that_has_everything_is_complete() {
    let mut receiving = Receiving::new(1 << 20, 1, START);
    receiving.handle_present(RangeSet::from(Range::new(0, 10 * CHUNK_LEN)));
    let first = plan(&[0], vec![run(0, 10 * CHUNK_LEN, 0, &[])]);
    receiving.handle_plan(&first, START, &unit_at);
    assert!(receiving.is_finished());
    assert_eq!(receiving.poll_event(), Some(Event::Complete));
    assert_eq!(receiving.poll_event(), None);
}
