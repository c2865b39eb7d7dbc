//! One origin against nodes that are modelled byte by byte.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use ropewalk_model::{Range, RangeSet};

use super::frame::{Frame, PARTS_MAX, PIECE_MAX, Part, Status, VERSION};
use super::*;

fn set(ranges: &[(u64, u64)]) -> RangeSet {
    RangeSet::from_ranges(ranges.iter().map(|(start, end)| Range::new(*start, *end)))
}

fn view(size: u64, rule: Rule, held: &[(u64, u64)], owned: &[(u64, u64)]) -> Option<View> {
    Some(View {
        size,
        rule,
        held: set(held),
        owned: set(owned),
    })
}

fn slice(start: u64, end: u64) -> Slice {
    Slice {
        range: Range::new(start, end),
        local: 0,
    }
}

fn origin(views: Vec<Option<View>>) -> Origin {
    Origin::new(Map::new(views).unwrap())
}

fn all(origin: &mut Origin) -> Vec<Request> {
    std::iter::from_fn(|| origin.poll()).collect()
}

/// The bytes of every kind of message, as version 1 has them.
#[test]
fn golden_bytes() {
    let hex = |frame: &Frame<'_>| -> String {
        let bytes = frame.encode();
        assert_eq!(Frame::decode(&bytes).as_ref(), Ok(frame));
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let part = Part {
        offset: 0x0102,
        len: 3,
    };
    let range = Range::new(5, 6);
    let head = |kind, code, parts, length, id, value| {
        format!("{kind:02x}{code:02x}{parts:02x}00{length:02x}000000{id:02x}00000000000000{value}")
    };
    let value = |value: u8| format!("{value:02x}00000000000000");
    let part_hex = "020100000000000003000000";
    let range_hex = "05000000000000000600000000000000";
    let cases = [
        (
            Frame::Hello {
                version: VERSION,
                name: "ab",
            },
            head(1, 0, 0, 2, 0, "0100000047525752".into()) + "6162",
        ),
        (
            Frame::Welcome {
                size: 9,
                rule: Rule::Owner,
                held: vec![range],
                owned: vec![range],
            },
            head(2, 2, 0, 32, 1, value(9)) + range_hex + range_hex,
        ),
        (
            Frame::Get {
                id: 7,
                parts: vec![part],
            },
            head(3, 0, 1, 0, 7, value(0)) + part_hex,
        ),
        (
            Frame::Data {
                id: 7,
                bytes: &[1, 2, 3],
            },
            head(4, 0, 0, 3, 7, value(0)) + "010203",
        ),
        (
            Frame::Put {
                id: 7,
                parts: vec![part],
                bytes: &[1, 2, 3],
            },
            head(5, 0, 1, 3, 7, value(0)) + part_hex + "010203",
        ),
        (Frame::Done { id: 7 }, head(6, 0, 0, 0, 7, value(0))),
        (
            Frame::Notify {
                id: 7,
                range,
                value: 4,
            },
            head(7, 0, 0, 16, 7, value(4)) + range_hex,
        ),
        (
            Frame::Wait {
                id: 7,
                range,
                at_least: 4,
            },
            head(8, 0, 0, 16, 7, value(4)) + range_hex,
        ),
        (
            Frame::Signal { id: 7, value: 4 },
            head(9, 0, 0, 0, 7, value(4)),
        ),
        (Frame::Forget { id: 7 }, head(10, 0, 0, 0, 7, value(0))),
        (
            Frame::Refused {
                id: 7,
                status: Status::Full,
                text: "no",
            },
            head(11, 6, 0, 2, 7, value(0)) + "6e6f",
        ),
    ];
    for (frame, bytes) in &cases {
        assert_eq!(hex(frame), *bytes, "{frame:?}");
    }
    assert_eq!(VERSION, 1);
}

/// What an honest peer never sends is refused.
#[test]
fn bad_messages_are_refused() {
    let get = |parts: Vec<Part>| Frame::Get { id: 1, parts }.encode();
    let part = |offset, len| Part { offset, len };
    let long = PIECE_MAX as u32;
    for (name, bytes) in [
        ("nothing", Vec::new()),
        ("no parts", get(Vec::new())),
        ("an empty part", get(vec![part(0, 0)])),
        ("beyond 2^64", get(vec![part(u64::MAX - 3, 4)])),
        ("too long", get(vec![part(0, long), part(0, 1)])),
        ("too many", get(vec![part(0, 1); PARTS_MAX + 1])),
        (
            "too few bytes",
            Frame::Put {
                id: 1,
                parts: vec![part(0, 3)],
                bytes: &[1],
            }
            .encode(),
        ),
        (
            "beyond the region",
            Frame::Welcome {
                size: 5,
                rule: Rule::All,
                held: vec![Range::new(0, 6)],
                owned: Vec::new(),
            }
            .encode(),
        ),
        (
            "empty range",
            Frame::Notify {
                id: 1,
                range: Range::new(4, 4),
                value: 1,
            }
            .encode(),
        ),
    ] {
        assert!(Frame::decode(&bytes).is_err(), "{name}");
    }
    let most = get(vec![part(u64::MAX - 4, 4)]);
    assert!(Frame::decode(&most).is_ok());
    let many = get(vec![part(0, 512); PARTS_MAX]);
    assert!(Frame::decode(&many).is_ok());
}

/// Nodes that state different regions are named.
#[test]
fn nodes_agree_on_the_region() {
    let one = view(10, Rule::All, &[(0, 5)], &[]);
    let differ = |other, expected: &str| {
        let error = Map::new(vec![None, one.clone(), other]).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    };
    differ(
        view(11, Rule::All, &[], &[]),
        "node 1 and node 2 differ in the size",
    );
    differ(view(10, Rule::Owner, &[], &[]), "differ in the rule");
    let own = |range| view(10, Rule::Owner, &[range], &[range]);
    let error = Map::new(vec![own((0, 5)), own((5, 7)), own((6, 8))]).unwrap_err();
    let expected = MapError::TwoOwners {
        first: 1,
        second: 2,
        range: Range::new(6, 7),
    };
    assert_eq!(error, expected);
    assert_eq!(Map::new(vec![None]).unwrap_err(), MapError::NoNode);
}

/// Ranges that no node holds, beyond the end, and near 2^64 are refused before anything is sent.
#[test]
fn bad_ranges_are_named() {
    let views = vec![view(u64::MAX, Rule::All, &[(0, 5), (8, 10)], &[])];
    let mut origin = origin(views);
    let failed = |origin: &mut Origin, kind, from, to| {
        origin.begin(kind, vec![slice(from, to)]).unwrap_err()
    };
    let range = Range::new(5, 9);
    assert_eq!(
        failed(&mut origin, Kind::Get, 4, 9),
        Failure::NotHeld { range }
    );
    assert_eq!(
        failed(&mut origin, Kind::Put, 4, 9),
        Failure::NotHeld { range }
    );
    let range = Range::new(10, u64::MAX);
    assert_eq!(
        failed(&mut origin, Kind::Get, 9, u64::MAX),
        Failure::NotHeld { range }
    );
    assert!(origin.poll().is_none());
    let mut small = Origin::new(Map::new(vec![view(10, Rule::ReadOnly, &[(0, 10)], &[])]).unwrap());
    let range = Range::new(9, 11);
    assert_eq!(
        failed(&mut small, Kind::Get, 9, 11),
        Failure::OutOfRange { range, size: 10 }
    );
    assert_eq!(failed(&mut small, Kind::Put, 0, 1), Failure::ReadOnly);
    assert_eq!(
        failed(&mut small, Kind::Wait(1), 0, 11),
        Failure::OutOfRange {
            range: Range::new(0, 11),
            size: 10
        }
    );
}

/// A get goes to the holder with the least bytes outstanding, equals take turns.
#[test]
fn the_free_holder_serves() {
    let whole: &[(u64, u64)] = &[(0, 1 << 30)];
    let mut origin = origin(vec![view(1 << 30, Rule::ReadOnly, whole, &[]); 3]);
    origin
        .begin(Kind::Get, vec![slice(0, 3 * PIECE_MAX)])
        .unwrap();
    let mut holders: Vec<_> = all(&mut origin)
        .iter()
        .map(|request| request.holder)
        .collect();
    holders.sort_unstable();
    assert_eq!(holders, [0, 1, 2]);
    let small = origin.begin(Kind::Get, vec![slice(0, 1)]).unwrap();
    let request = origin.poll().unwrap();
    assert!(origin.answer(request.holder, request.id, &Answered::Data));
    assert_eq!(origin.take(small), Some(Ok(0)));
    origin.begin(Kind::Get, vec![slice(0, 1)]).unwrap();
    assert_ne!(
        origin.poll().unwrap().holder,
        request.holder,
        "it has served a byte more"
    );
}

/// A put to all is complete when all that are left have it; if none has, it fails.
#[test]
fn puts_survive_holders() {
    let whole: &[(u64, u64)] = &[(0, 100)];
    let two = || origin(vec![view(100, Rule::All, whole, &[]); 2]);
    let mut origin = two();
    let put = origin.begin(Kind::Put, vec![slice(0, 10)]).unwrap();
    let sent = all(&mut origin);
    assert_eq!(sent.len(), 2);
    assert!(origin.answer(0, sent[0].id, &Answered::Done));
    assert_eq!(origin.take(put), None);
    assert!(origin.lose(1) && !origin.lose(1));
    assert_eq!(origin.take(put), Some(Ok(0)));
    let mut origin = two();
    let put = origin.begin(Kind::Put, vec![slice(0, 10)]).unwrap();
    let sent = all(&mut origin);
    origin.lose(0);
    assert_eq!(origin.take(put), None);
    // The other acknowledges.
    assert!(origin.answer(1, sent[1].id, &Answered::Done));
    assert_eq!(origin.take(put), Some(Ok(0)));
    let put = origin.begin(Kind::Put, vec![slice(0, 10)]).unwrap();
    all(&mut origin);
    origin.lose(1);
    let failure = Failure::NoHolder {
        range: Range::new(0, 10),
        holders: vec![0, 1],
    };
    assert_eq!(origin.take(put), Some(Err(failure)));
    let get = origin.begin(Kind::Get, vec![slice(0, 10)]).unwrap();
    assert!(origin.poll().is_none());
    assert!(matches!(
        origin.take(get),
        Some(Err(Failure::NoHolder { .. }))
    ));
}

/// After a fence nothing leaves before the puts are complete; without one it does.
#[test]
fn fences_hold_back() {
    let mut origin = origin(vec![view(100, Rule::All, &[(0, 100)], &[])]);
    let put = origin.begin(Kind::Put, vec![slice(0, 10)]).unwrap();
    let first = origin.poll().unwrap();
    origin.begin(Kind::Get, vec![slice(0, 10)]).unwrap();
    assert!(origin.poll().is_some(), "no fence");
    origin.fence();
    let get = origin.begin(Kind::Get, vec![slice(0, 10)]).unwrap();
    let mark = origin.mark();
    assert!(origin.poll().is_none() && !origin.is_flushed(mark));
    assert!(origin.answer(0, first.id, &Answered::Done));
    assert!(origin.is_flushed(mark));
    assert_eq!(origin.poll().unwrap().operation, get);
    assert_eq!(origin.take(put), Some(Ok(0)));
    // A notification is a fence by itself.
    origin.begin(Kind::Put, vec![slice(0, 10)]).unwrap();
    let put = origin.poll().unwrap();
    let notice = origin.begin(Kind::Notify(3), vec![slice(0, 10)]).unwrap();
    assert!(origin.poll().is_none());
    assert!(origin.answer(0, put.id, &Answered::Done));
    let sent = origin.poll().unwrap();
    assert_eq!(sent.what, What::Notify(Range::new(0, 10), 3));
    // What is given up holds nothing back.
    origin.fence();
    let get = origin.begin(Kind::Get, vec![slice(0, 1)]).unwrap();
    assert!(origin.poll().is_none());
    origin.forget(notice);
    assert_eq!(origin.poll().unwrap().operation, get);
}

/// Under the owner's rule puts go to it, and gets of what was written or announced, too; of other bytes any holder serves.
#[test]
fn owners_have_what_was_written() {
    let views = vec![
        view(100, Rule::Owner, &[(0, 100)], &[]),
        view(100, Rule::Owner, &[(0, 100)], &[(0, 50)]),
    ];
    let mut origin = origin(views);
    let range = Range::new(50, 60);
    assert_eq!(
        origin.begin(Kind::Put, vec![slice(40, 60)]),
        Err(Failure::NoOwner { range })
    );
    let put = origin.begin(Kind::Put, vec![slice(10, 20)]).unwrap();
    let sent = all(&mut origin);
    assert_eq!((sent.len(), sent[0].holder), (1, 1));
    assert!(origin.answer(1, sent[0].id, &Answered::Done));
    assert_eq!(origin.take(put), Some(Ok(0)));
    for _ in 0..4 {
        origin.begin(Kind::Get, vec![slice(12, 15)]).unwrap();
        assert_eq!(origin.poll().unwrap().holder, 1);
    }
    origin.begin(Kind::Get, vec![slice(0, 30)]).unwrap();
    let parts: Vec<_> = all(&mut origin)
        .iter()
        .map(|request| (request.holder, request.what.parts()))
        .collect();
    assert!(parts.iter().any(|(holder, _)| *holder == 0), "{parts:?}");
    let wait = origin.begin(Kind::Wait(5), vec![slice(30, 40)]).unwrap();
    let sent = origin.poll().unwrap();
    assert_eq!(sent.holder, 1);
    assert!(
        !origin.answer(1, sent.id, &Answered::Signal(4)),
        "less than was waited for"
    );
    assert!(origin.answer(1, sent.id, &Answered::Signal(6)));
    assert_eq!(origin.take(wait), Some(Ok(6)));
    origin.begin(Kind::Get, vec![slice(30, 31)]).unwrap();
    assert_eq!(origin.poll().unwrap().holder, 1);
    origin.lose(1);
    let get = origin.begin(Kind::Get, vec![slice(30, 31)]).unwrap();
    all(&mut origin);
    assert!(
        matches!(origin.take(get), Some(Err(Failure::NoHolder { .. }))),
        "no old bytes"
    );
}

/// A wait that is given up is withdrawn; its late answer changes nothing.
#[test]
fn waits_are_withdrawn() {
    let mut origin = origin(vec![
        view(100, Rule::All, &[(0, 50)], &[]),
        view(100, Rule::All, &[(50, 100)], &[]),
    ]);
    let range = Range::new(40, 60);
    let split = origin.begin(Kind::Wait(1), vec![slice(40, 60)]).unwrap();
    assert!(origin.poll().is_none());
    assert_eq!(origin.take(split), Some(Err(Failure::Split { range })));
    let wait = origin.begin(Kind::Wait(1), vec![slice(60, 70)]).unwrap();
    let sent = origin.poll().unwrap();
    origin.forget(wait);
    let withdrawn = origin.poll().unwrap();
    assert_eq!((withdrawn.what, withdrawn.id), (What::Forget, sent.id));
    assert!(origin.answer(1, sent.id, &Answered::Signal(1)));
    assert!(
        !origin.answer(1, sent.id + 100, &Answered::Done),
        "never asked"
    );
}

/// A node without a connection is left out, and what it owes goes elsewhere; when it works again it serves again.
#[test]
fn nodes_go_and_return() {
    let mut origin = origin(vec![
        view(100, Rule::All, &[(0, 100)], &[]),
        view(100, Rule::All, &[(0, 50)], &[]),
    ]);
    let both = origin.begin(Kind::Get, vec![slice(0, 10)]).unwrap();
    let first = origin.poll().unwrap();
    origin.set_away(first.holder, true);
    let second = origin.poll().unwrap();
    assert_ne!(first.holder, second.holder);
    assert!(
        origin.answer(first.holder, first.id, &Answered::Data),
        "a late answer is ignored"
    );
    assert_eq!(origin.take(both), None);
    assert!(origin.answer(second.holder, second.id, &Answered::Data));
    assert_eq!(origin.take(both), Some(Ok(0)));
    origin.set_away(0, true);
    let only = origin.begin(Kind::Get, vec![slice(60, 70)]).unwrap();
    assert!(origin.poll().is_none());
    origin.set_away(0, false);
    let request = origin.poll().unwrap();
    assert!(origin.answer(0, request.id, &Answered::Data));
    assert_eq!(origin.take(only), Some(Ok(0)));
}

/// Signals keep the greatest value of each byte, as a model does; waits end when they may, and not before.
#[test]
fn signals_are_bounded() {
    let mut signals = Signals::default();
    for at in 0..SIGNALS_MAX as u64 {
        assert!(signals.notify(Range::new(2 * at, 2 * at + 1), 1).is_some());
    }
    assert!(
        signals
            .notify(Range::new(1 << 40, (1 << 40) + 1), 1)
            .is_none()
    );
    // One that joins them makes space.
    assert!(
        signals
            .notify(Range::new(0, 4 * SIGNALS_MAX as u64), 1)
            .is_some()
    );
    assert!(
        signals
            .notify(Range::new(1 << 40, (1 << 40) + 1), 1)
            .is_some()
    );
    for wait in 0..WAITERS_MAX as u64 {
        assert_eq!(signals.wait(Range::new(0, 1), 2, wait, |_| true), Ok(None));
    }
    assert_eq!(signals.wait(Range::new(0, 1), 2, 999, |_| true), Err(999));
    assert_eq!(
        signals.wait(Range::new(0, 1), 1, 999, |_| true),
        Ok(Some(1))
    );
    signals.forget(|wait| *wait < 100);
    assert_eq!(signals.waiting(), WAITERS_MAX - 100);
    assert_eq!(
        signals.notify(Range::new(0, 9), 2).unwrap().len(),
        WAITERS_MAX - 100
    );
}

proptest! {
    #[test]
    fn signals_are_those_of_a_model(
        steps in prop::collection::vec((0_u64..40, 1_u64..20, 0_u64..6, any::<bool>()), 1..60)
    ) {
        let mut signals = Signals::default();
        let mut model = [0_u64; 64];
        let mut waits: Vec<(Range, u64, usize)> = Vec::new();
        for (number, (start, len, value, is_wait)) in steps.into_iter().enumerate() {
            let range = Range::new(start, start + len);
            let bytes = start as usize..(start + len) as usize;
            let greatest = |model: &[u64; 64]| model[bytes.clone()].iter().copied().max().unwrap();
            if is_wait {
                let found = signals.wait(range, value, number, |_| false).unwrap();
                let there = greatest(&model);
                prop_assert_eq!(found, (there >= value).then_some(there));
                if found.is_none() {
                    waits.push((range, value, number));
                }
                continue;
            }
            model[bytes.clone()].iter_mut().for_each(|old| *old = value.max(*old));
            let mut ended: Vec<usize> =
                signals.notify(range, value).unwrap().into_iter().map(|(wait, _)| wait).collect();
            ended.sort_unstable();
            let (over, still): (Vec<_>, Vec<_>) = waits
                .into_iter()
                .partition(|(own, least, _)| own.overlaps(range) && *least <= value);
            waits = still;
            let mut expected: Vec<usize> = over.into_iter().map(|(_, _, number)| number).collect();
            expected.sort_unstable();
            prop_assert_eq!(ended, expected);
            prop_assert_eq!(signals.value(range), greatest(&model));
        }
        for at in 0..64 {
            prop_assert_eq!(signals.value(Range::new(at, at + 1)), model[at as usize]);
        }
    }

    /// Nodes answer in any order, and are lost at any time: gets return what a holder has, puts reach all that are left, and each operation ends.
    #[test]
    fn operations_end_as_they_should(
        parts in prop::collection::vec(prop::collection::vec((0_u64..900, 1_u64..400), 0..4), 1..5),
        steps in prop::collection::vec((0_u8..8, 0_u64..1000, 1_u64..600, any::<u16>()), 1..80),
    ) {
        const SIZE: u64 = 1300;
        let held: Vec<RangeSet> = parts
            .iter()
            .map(|own| set(&own.iter().map(|(start, len)| (*start, start + len)).collect::<Vec<_>>()))
            .collect();
        let views = held.iter().map(|held| Some(View {
            size: SIZE,
            rule: Rule::All,
            held: held.clone(),
            owned: RangeSet::new(),
        }));
        let mut origin = origin(views.collect());
        let mut nodes: Vec<[u32; SIZE as usize]> = vec![[0; SIZE as usize]; held.len()];
        let mut lost = vec![false; held.len()];
        let mut inbox: VecDeque<Request> = VecDeque::new();
        // Gets under way: what has arrived of each; puts: their number, which is what they write.
        let mut gets: BTreeMap<u64, (Range, Vec<Option<u32>>)> = BTreeMap::new();
        let mut puts: BTreeMap<u64, Range> = BTreeMap::new();
        let is_held = |lost: &[bool], range: Range| (range.start..range.end).all(|at| {
            held.iter().zip(lost).any(|(held, lost)| !lost && held.contains(at))
        });
        let answer = |origin: &mut Origin, nodes: &mut Vec<[u32; SIZE as usize]>, gets: &mut BTreeMap<u64, (Range, Vec<Option<u32>>)>, request: Request| {
            let own = &mut nodes[request.holder];
            match &request.what {
                What::Get(slices) => {
                    if origin.wanted(request.holder, request.id).is_some()
                        && let Some((whole, bytes)) = gets.get_mut(&request.operation)
                    {
                        for slice in slices.iter() {
                            assert!(held[request.holder].contains_range(slice.range));
                            assert_eq!(slice.local, slice.range.start - whole.start);
                            for at in slice.range.start..slice.range.end {
                                let old = bytes[(at - whole.start) as usize].replace(own[at as usize]);
                                assert_eq!(old, None, "a byte arrived twice");
                            }
                        }
                    }
                    assert!(origin.answer(request.holder, request.id, &Answered::Data));
                }
                What::Put(slices) => {
                    for slice in slices.iter() {
                        assert!(held[request.holder].contains_range(slice.range));
                        for at in slice.range.start..slice.range.end {
                            own[at as usize] = request.operation as u32 + 1;
                        }
                    }
                    assert!(origin.answer(request.holder, request.id, &Answered::Done));
                }
                _ => unreachable!(),
            }
        };
        for (step, start, len, chance) in steps {
            let range = Range::new(start, (start + len).min(SIZE));
            match step {
                0..=2 => {
                    let begun = origin.begin(Kind::Get, vec![slice(range.start, range.end)]);
                    prop_assert_eq!(begun.is_ok(), is_held(&vec![false; held.len()], range));
                    if let Ok(number) = begun {
                        gets.insert(number, (range, vec![None; range.len() as usize]));
                    }
                }
                3 => {
                    if let Ok(number) = origin.begin(Kind::Put, vec![slice(range.start, range.end)]) {
                        puts.insert(number, range);
                    }
                }
                4 => origin.fence(),
                5 if chance % 5 == 0 => {
                    let node = usize::from(chance) % held.len();
                    lost[node] = true;
                    origin.lose(node);
                    inbox.retain(|request| request.holder != node);
                }
                6 => {
                    let node = usize::from(chance) % held.len();
                    origin.set_away(node, chance & 64 == 0);
                }
                _ => {
                    inbox.extend(std::iter::from_fn(|| origin.poll()));
                    if !inbox.is_empty() {
                        let request = inbox.remove(usize::from(chance) % inbox.len()).unwrap();
                        answer(&mut origin, &mut nodes, &mut gets, request);
                    }
                }
            }
        }
        for (node, lost) in lost.iter().enumerate() {
            if !lost {
                origin.set_away(node, false);
            }
        }
        loop {
            inbox.extend(std::iter::from_fn(|| origin.poll()));
            let Some(request) = inbox.pop_front() else {
                break;
            };
            answer(&mut origin, &mut nodes, &mut gets, request);
        }
        for (number, (range, bytes)) in gets {
            let result = origin.take(number);
            match result.expect("a get that never ends") {
                Ok(_) => prop_assert!(bytes.iter().all(Option::is_some), "{} {:?}", range, bytes),
                Err(Failure::NoHolder { .. }) => prop_assert!(!is_held(&lost, range)),
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
        for (number, range) in &puts {
            match origin.take(*number).expect("a put that never ends") {
                // Unless a later one wrote it, too.
                Ok(_) => for (node, held) in held.iter().enumerate().filter(|(node, _)| !lost[*node]) {
                    for at in held.clipped(*range).iter().flat_map(|run| run.start..run.end) {
                        let value = nodes[node][at as usize];
                        let other = puts.get(&(u64::from(value).wrapping_sub(1)));
                        prop_assert!(other.is_some_and(|other| other.contains(at)), "{} at {}", value, at);
                    }
                },
                Err(Failure::NoHolder { .. }) => prop_assert!(!is_held(&lost, *range)),
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
        prop_assert!(origin.is_flushed(u64::MAX) && origin.waits_for(None).is_none());
    }
}
