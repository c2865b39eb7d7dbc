//! Which units are compared, what a difference means, and copies that come or are written late.

use ropewalk_model::CHUNK_LEN;

use super::replicas::SECONDS_MANY;
use super::*;
use crate::control::{Holding, Plan, Run, Stretch};
use crate::node::tests::unit_at;

const START: Instant = Instant::ZERO;
const SECOND: Nanos = Nanos::from_secs(1);
const RIGHT: [u8; 32] = [1; 32];
const WRONG: [u8; 32] = [2; 32];

fn peer(node: u32) -> Peer {
    Peer {
        node,
        name: format!("h{node}"),
        ..Peer::default()
    }
}

/// Equal parts from each of so many replicas, the others being spare holders.
fn plan(nodes: u32, units: u64) -> Plan {
    let part = units / u64::from(nodes) * CHUNK_LEN;
    let run = |sender: u32| Run {
        start: u64::from(sender) * part,
        length: part,
        sender,
        spares: (0..nodes).filter(|other| *other != sender).collect(),
        choices: 0,
        relay: None,
    };
    Plan {
        peers: (0..nodes).map(peer).collect(),
        runs: (0..nodes).map(run).collect(),
        length: part * u64::from(nodes),
        ..Plan::default()
    }
}

fn receiving(mode: Compare, seed: u64, plan: &Plan) -> Receiving {
    let mut receiving = Receiving::new(64 << 20, 1, START);
    receiving.compare(mode, seed);
    receiving.handle_plan(plan, START, &unit_at);
    receiving
}

/// What became of a transfer.
#[derive(Debug, Default, PartialEq)]
struct End {
    complete: bool,
    differs: Option<Difference>,
    // Holders that a stream was opened to.
    called: Vec<u32>,
    asked: Vec<(u32, Range)>,
    notes: Vec<String>,
}

impl End {
    fn take(&mut self, receiving: &mut Receiving) {
        while let Some(event) = receiving.poll_event() {
            match event {
                Event::Complete => self.complete = true,
                Event::Differ(difference) => self.differs = Some(difference),
                Event::Compare(_, peer) => self.called.push(peer.node),
                Event::Note(text) => self.notes.push(text),
                Event::Failed(text) => panic!("{text}"),
                _ => {}
            }
        }
    }
}

/// Brings every unit from the lane that takes it, and answers all questions. `contents` tells what a holder has; `None`: it
/// does not answer.
fn run(
    receiving: &mut Receiving,
    nodes: u32,
    contents: &dyn Fn(u32, Range) -> Option<[u8; 32]>,
) -> End {
    let mut end = End::default();
    let mut now = START;
    for _ in 0..100_000 {
        now += SECOND / 1000;
        end.take(receiving);
        if receiving.is_finished() {
            break;
        }
        for node in 0..nodes {
            let Take::Units(units) = receiving.take(LaneId(node), 0, now, &unit_at) else {
                continue;
            };
            for unit in units {
                let digest = contents(node, unit.range).unwrap_or(RIGHT);
                receiving.handle_unit(LaneId(node), unit.range, Some(digest), now);
            }
        }
        end.take(receiving);
        for node in end.called.clone() {
            let Ask::Units(units) = receiving.next_digests(node) else {
                continue;
            };
            for range in units {
                end.asked.push((node, range));
                if let Some(digest) = contents(node, range) {
                    receiving.handle_digest(node, range, digest, now);
                }
            }
        }
    }
    end.take(receiving);
    end
}

/// A sample has the first and the last unit, is of bounded size, the same for the same seed and another one for another.
#[test]
fn samples_are_bounded_and_chosen_by_the_seed() {
    let same = |_, _| Some(RIGHT);
    let mut choices = Vec::new();
    for seed in [1, 1, 2, 3] {
        let plan = plan(2, 1024);
        let mut receiving = receiving(Compare::Sample, seed, &plan);
        let end = run(&mut receiving, 2, &same);
        assert!(end.complete, "{end:?}");
        let mut units: Vec<u64> = end.asked.iter().map(|(_, range)| range.start).collect();
        units.sort_unstable();
        assert_eq!(units.first(), Some(&0));
        assert_eq!(units.last(), Some(&(1023 * CHUNK_LEN)));
        assert!((4..=8).contains(&units.len()), "{units:?}");
        let compared = receiving.compared();
        assert_eq!(compared.units, units.len() as u64);
        assert_eq!(compared.bytes, compared.units * CHUNK_LEN);
        // Each was asked of the holder that did not bring it: the first half came from the first.
        for (node, range) in &end.asked {
            assert_eq!(*node, u32::from(range.start < 512 * CHUNK_LEN), "{range}");
        }
        choices.push(units);
    }
    assert_eq!(choices[0], choices[1]);
    assert_ne!(choices[0], choices[2]);
    assert_ne!(choices[2], choices[3]);
}

/// Of many replicas few are asked, and one holder alone costs nothing.
#[test]
fn few_holders_are_asked() {
    let same = |_, _| Some(RIGHT);
    let mut many = receiving(Compare::Sample, 7, &plan(32, 1024));
    let end = run(&mut many, 32, &same);
    assert!(
        end.complete && !end.called.is_empty() && end.called.len() <= 4,
        "{end:?}"
    );
    assert!(many.compared().units >= 4);
    let mut single = receiving(Compare::Sample, 7, &plan(1, 64));
    let end = run(&mut single, 1, &same);
    assert!(end.complete && end.called.is_empty(), "{end:?}");
}

/// Replicas of which all, or the last unit only, differ are found by the sample, whichever comes first.
#[test]
fn a_sample_finds_other_contents() {
    let last = unit_at(63 * CHUNK_LEN);
    for odd in 0..2 {
        for only_last in [false, true] {
            let contents = |node: u32, range: Range| {
                let differs = node == odd && (range == last || !only_last);
                Some(if differs { WRONG } else { RIGHT })
            };
            let mut receiving = receiving(Compare::Sample, 5, &plan(2, 64));
            let end = run(&mut receiving, 2, &contents);
            assert!(!end.complete, "{end:?}");
            let found = end.differs.unwrap();
            let mut names = found.groups.concat();
            names.sort();
            assert_eq!(names, ["h0", "h1"]);
            assert!(!only_last || found.range == last);
        }
    }
}

/// Holders that are asked about what receivers hand on leave room for the sample.
#[test]
fn relays_leave_room_for_the_sample() {
    let contents = |node: u32, _| Some(if node == 1 { WRONG } else { RIGHT });
    let mut receiving = receiving(Compare::Sample, 5, &plan(2, 64));
    let others = 2..2 + SECONDS_MANY as u32;
    for node in others.clone() {
        receiving.add_peer(&peer(node));
        let asked = receiving.ask_origin(unit_at(0), &[node], &BTreeSet::new());
        assert_eq!(asked, Some(node));
    }
    let end = run(&mut receiving, 2, &contents);
    assert!(end.differs.is_some(), "{end:?}");
}

/// With a third holder the one that differs from the others is told.
#[test]
fn a_third_opinion_is_heard() {
    let contents = |node, _| Some(if node == 1 { WRONG } else { RIGHT });
    for mode in [Compare::Sample, Compare::Whole] {
        let mut receiving = receiving(mode, 5, &with_holdings(plan(3, 66)));
        let end = run(&mut receiving, 3, &contents);
        let found = end.differs.unwrap_or_else(|| panic!("{mode:?}"));
        let mut groups = found.groups.clone();
        groups.iter_mut().for_each(|group| group.sort());
        groups.sort();
        assert_eq!(groups, [vec!["h0", "h2"], vec!["h1"]], "{mode:?}");
        let text = found.describe("set/f bytes 0-9");
        assert!(
            text.starts_with("replicas differ: set/f bytes 0-9: "),
            "{text}"
        );
        assert!(text.contains("hold the same"), "{text}");
    }
}

fn with_holdings(mut plan: Plan) -> Plan {
    let holding = |peer: &Peer| Holding {
        node: peer.node,
        ranges: vec![Stretch {
            start: 0,
            length: plan.length,
        }],
    };
    plan.holdings = plan.peers.iter().map(holding).collect();
    plan
}

/// Every unit is compared with every other holder, also with one that sends nothing; one odd unit is found.
#[test]
fn the_whole_is_compared() {
    let mut plan = with_holdings(plan(2, 64));
    plan.peers.push(peer(2));
    plan.holdings.push(Holding {
        node: 2,
        ranges: plan.holdings[0].ranges.clone(),
    });
    let mut receiving = receiving(Compare::Whole, 0, &plan);
    let end = run(&mut receiving, 2, &|_, _| Some(RIGHT));
    assert!(end.complete, "{end:?}");
    assert_eq!(end.asked.len(), 64 * 2);
    assert_eq!(receiving.compared().units, 64);
    for odd in 0..3 {
        let contents = |node, range| {
            let differs = node == odd && range == unit_at(40 * CHUNK_LEN);
            Some(if differs { WRONG } else { RIGHT })
        };
        let mut receiving = super::replicas_tests::receiving(Compare::Whole, 0, &plan);
        let end = run(&mut receiving, 2, &contents);
        let found = end.differs.unwrap_or_else(|| panic!("h{odd}"));
        assert_eq!(found.range, unit_at(40 * CHUNK_LEN));
    }
}

/// A holder that does not answer, or cannot be reached, fails nothing; the report says so.
#[test]
fn silence_fails_nothing() {
    let mut silent = receiving(Compare::Sample, 5, &plan(2, 64));
    let end = run(&mut silent, 2, &|node, _| (node == 0).then_some(RIGHT));
    assert!(end.complete && end.differs.is_none(), "{end:?}");
    assert!(end.notes.concat().contains("no answer from h1"), "{end:?}");
    for mode in [Compare::Sample, Compare::Whole] {
        let mut dead = receiving(mode, 5, &with_holdings(plan(2, 64)));
        dead.handle_second_down(1, "no route", Instant(1));
        let end = run(&mut dead, 2, &|_, _| Some(RIGHT));
        assert!(end.complete && end.differs.is_none(), "{mode:?} {end:?}");
        if mode == Compare::Whole {
            assert!(
                end.notes.concat().contains("h1 was not compared"),
                "{end:?}"
            );
        }
    }
}

/// A sample does not wait for a holder that is lost, and not for long for one that is silent, where others can be asked.
#[test]
fn others_are_compared_instead() {
    const SILENT: u32 = 1;
    let at = |seconds: u64| START + SECOND * seconds;
    let cases = [(true, 3), (true, 2), (false, 3)];
    let mut asked = BTreeSet::new();
    for ((is_lost, nodes), seed) in cases
        .into_iter()
        .flat_map(|case| (0..8).map(move |seed| (case, seed)))
    {
        let mut receiving = receiving(Compare::Sample, seed, &plan(nodes, 63));
        let mut end = End::default();
        let mut questions = 0;
        let mut answer = |receiving: &mut Receiving, end: &mut End, now| {
            end.take(receiving);
            for node in end.called.clone() {
                let Ask::Units(units) = receiving.next_digests(node) else {
                    continue;
                };
                if node == SILENT {
                    questions += units.len();
                    continue;
                }
                for range in units {
                    receiving.handle_digest(node, range, RIGHT, now);
                }
            }
            end.take(receiving);
        };
        // All is received a while after the start; the wait for answers is in proportion.
        for lane in (0..nodes).map(LaneId) {
            while let Take::Units(units) = receiving.take(lane, 0, at(20), &unit_at) {
                for unit in units {
                    answer(&mut receiving, &mut end, at(20));
                    receiving.handle_unit(lane, unit.range, Some(RIGHT), at(20));
                }
            }
        }
        answer(&mut receiving, &mut end, at(20));
        if end.complete {
            // Others were asked about all.
            continue;
        }
        asked.insert((is_lost, nodes));
        let until = match is_lost {
            true => {
                receiving.handle_lane_down(LaneId(SILENT), "silent");
                at(20)
            }
            false => {
                receiving.handle_timer(at(21));
                answer(&mut receiving, &mut end, at(21));
                assert!(!end.complete);
                receiving.handle_timer(at(22));
                at(22)
            }
        };
        answer(&mut receiving, &mut end, until);
        assert!(end.complete && questions > 0, "{is_lost} {nodes} {end:?}");
        assert!(!end.notes.concat().contains("no answer"), "{end:?}");
        assert_eq!(receiving.compared().units > 0, nodes > 2);
    }
    assert_eq!(asked, cases.into());
}

/// What a late holder answers counts, though another one was compared in its place.
#[test]
fn a_late_answer_that_differs_is_reported() {
    const LATE: u32 = 1;
    let at = |seconds: u64| START + SECOND * seconds;
    let mut found = 0;
    for seed in 0..8 {
        let mut receiving = receiving(Compare::Sample, seed, &plan(3, 63));
        let mut end = End::default();
        let mut unanswered = Vec::new();
        let mut answer = |receiving: &mut Receiving, end: &mut End, now| {
            end.take(receiving);
            for node in end.called.clone() {
                while let Ask::Units(units) = receiving.next_digests(node) {
                    for range in units {
                        match node == LATE {
                            true => unanswered.push(range),
                            false => receiving.handle_digest(node, range, RIGHT, now),
                        }
                    }
                }
            }
            end.take(receiving);
        };
        // One unit is not received: the transfer is not over when the late answer arrives.
        let mut last: Option<(LaneId, Range)> = None;
        for lane in (0..3).map(LaneId) {
            while let Take::Units(units) = receiving.take(lane, 0, at(20), &unit_at) {
                for unit in units {
                    answer(&mut receiving, &mut end, at(20));
                    if let Some((lane, range)) = last.replace((lane, unit.range)) {
                        receiving.handle_unit(lane, range, Some(RIGHT), at(20));
                    }
                }
            }
        }
        let last = last.map(|(_, range)| range);
        for now in [at(23), at(24)] {
            receiving.handle_timer(now);
            answer(&mut receiving, &mut end, now);
        }
        assert!(last.is_some() && !end.complete);
        let Some(late) = unanswered.into_iter().find(|unit| Some(*unit) != last) else {
            continue;
        };
        found += 1;
        receiving.handle_digest(LATE, late, WRONG, at(25));
        end.take(&mut receiving);
        assert_eq!(end.differs.map(|found| found.range), Some(late), "{seed}");
    }
    assert!(found > 0);
}

/// A holder that the master says is lost, or is released, has the master's note: this node has none to add.
#[test]
fn what_the_master_notes_is_noted_once() {
    let mut receiving = receiving(Compare::Whole, 5, &with_holdings(plan(2, 64)));
    let revision = crate::control::Revision {
        lost: vec![1],
        ..Default::default()
    };
    receiving.handle_revision(&revision, Instant(1));
    receiving.handle_second_down(1, "connection refused", Instant(2));
    while let Some(event) = receiving.poll_event() {
        assert!(!matches!(event, Event::Note(_)), "{event:?}");
    }
}

/// A unit that is asked of a second lane when the first is late.
fn doubled() -> (Receiving, Range) {
    let mut plan = plan(2, 2);
    plan.expected = SECOND.0;
    let mut receiving = receiving(Compare::Nothing, 0, &plan);
    let mut late = Vec::new();
    for lane in [0, 1].map(LaneId) {
        if let Take::Units(units) = receiving.take(lane, 0, START, &unit_at) {
            late.extend(units);
        }
    }
    receiving.handle_unit(LaneId(1), late[1].range, Some(RIGHT), START + SECOND);
    // The first lane has brought nothing for long: the second carries its unit, too.
    for second in 2..30 {
        if let Take::Units(units) = receiving.take(LaneId(1), 0, START + SECOND * second, &unit_at)
        {
            assert!(units[0].duplicate);
            assert_eq!(units[0].range, late[0].range);
            return (receiving, late[0].range);
        }
    }
    panic!("no unit is carried twice");
}

fn writer(lane: u32) -> Writer {
    Writer {
        lane: LaneId(lane),
        stream: lane.into(),
    }
}

/// The hash of a copy that comes second is compared with that of the first.
#[test]
fn later_copies_are_compared() {
    for (digest, differs) in [(RIGHT, false), (WRONG, true)] {
        let (mut receiving, range) = doubled();
        assert!(receiving.handle_unit(LaneId(1), range, Some(RIGHT), START + SECOND * 31));
        assert!(!receiving.handle_unit(LaneId(0), range, Some(digest), START + SECOND * 32));
        let mut end = End::default();
        end.take(&mut receiving);
        assert_eq!(end.differs.is_some(), differs, "{end:?}");
        assert_eq!(receiving.compared().units, u64::from(!differs));
    }
}

/// A copy whose writing began before another was counted keeps the node from being complete until the sink was read again.
#[test]
fn a_copy_written_late_is_noticed() {
    for is_right in [true, false] {
        let (mut receiving, range) = doubled();
        assert!(receiving.begin_write(writer(0), range));
        assert!(receiving.begin_write(writer(1), range));
        assert!(!receiving.end_write(writer(1), range));
        let counted =
            receiving.handle_written_unit(writer(1), range, Some(RIGHT), START + SECOND * 31);
        assert_eq!(
            counted,
            (true, true),
            "it is the first, and to be read again"
        );
        let mut end = End::default();
        end.take(&mut receiving);
        assert!(!end.complete, "another stream still writes");
        assert!(receiving.is_written_by_others(writer(1), range));
        assert!(receiving.end_write(writer(0), range), "somebody waits");
        assert!(!receiving.is_written_by_others(writer(1), range));
        receiving.handle_reread(range, is_right);
        end.take(&mut receiving);
        assert_eq!((end.complete, end.differs.is_some()), (is_right, !is_right));
        // What is delivered is not written again.
        assert!(!receiving.begin_write(writer(0), range));
    }
}

/// One that wrote and then was cancelled may have written after the one that counts.
#[test]
fn a_copy_written_in_part_is_noticed() {
    let (mut receiving, range) = doubled();
    let part = Range {
        end: range.start + 100,
        ..range
    };
    assert!(receiving.begin_write(writer(1), range));
    receiving.end_write(writer(1), range);
    assert!(receiving.begin_write(writer(0), part));
    receiving.end_write(writer(0), part);
    let counted = receiving.handle_written_unit(writer(1), range, Some(RIGHT), START + SECOND * 31);
    assert_eq!(counted, (true, true));
    // Where nobody else wrote, nothing is read again.
    let (mut receiving, range) = doubled();
    assert!(receiving.begin_write(writer(1), range));
    receiving.end_write(writer(1), range);
    let counted = receiving.handle_written_unit(writer(1), range, Some(RIGHT), START + SECOND * 31);
    assert_eq!(counted, (true, false));
    assert!(receiving.is_finished());
}

/// What the words say.
#[test]
fn differences_in_words() {
    let difference = |groups: &[&[&str]]| Difference {
        range: unit_at(0),
        groups: groups
            .iter()
            .map(|names| names.iter().map(|name| (*name).to_owned()).collect())
            .collect(),
    };
    let text = difference(&[&["a"], &["b"]]).describe("f bytes 0-9");
    assert!(text.starts_with("replicas differ: f bytes 0-9: a and b hold different contents"));
    assert!(!text.contains("hold the same"));
    let text = difference(&[&["a", "c"], &["b"]]).describe("f bytes 0-9");
    assert!(text.contains("a and b hold") && text.contains("(a and c hold the same)"));
    let text = difference(&[&["a"], &["a"]]).describe("f bytes 0-9");
    assert!(text.starts_with("a gave different contents of f bytes 0-9 at two times"));
}
