//! One body of tests over every kind of stream and every protection.

mod datagrams;
mod ends;
mod faults;
mod local;
mod mpi;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ends::{Kind, Memory, Refusing, contents, grant, kinds, pair, protections, receive};
use ropewalk_lane::*;
use ropewalk_model::Range;

/// Serves on a thread, hands the receiving end to `body`, closes, and expects a clean end.
fn served(
    provider: impl Provider + Send + 'static,
    receiver: Box<dyn ReceiveHalf>,
    mut sender: Box<dyn SendHalf>,
    body: impl FnOnce(&mut dyn ReceiveHalf),
) -> Observation {
    let mut receiver = receiver;
    let serving = thread::spawn(move || {
        let end = sender.serve(&provider, ends::LONG);
        (end, sender.observe())
    });
    body(&mut *receiver);
    drop(receiver);
    let (end, seen) = serving.join().unwrap();
    assert_eq!(end.unwrap(), Served::Closed);
    seen
}

/// Units of every awkward length and place arrive as they are, in order, with the right hash.
#[test]
fn units_of_all_sizes_arrive() {
    let ranges = [
        (0, 0),
        (0, 1),
        (5, 5),
        (3, 40_000),
        (70_001, 70_001 + (256 << 10)),
        (1 << 20, 2 << 20),
        (1 << 60, (1 << 60) + (1 << 20)),
        (u64::MAX - 1000, u64::MAX),
        ((1 << 60) + 7, (1 << 60) + 7 + (512 << 10) + 13),
        (9, 10),
    ];
    for &kind in kinds() {
        for (name, protect) in protections() {
            for hash in [false, true] {
                for (buffered, mode) in ends::MODES {
                    let (receiver, sender) = pair(kind, &protect);
                    let what = format!("{kind:?} {name} hash={hash} buffered={buffered} {mode:?}");
                    served(ends::Generated::new(mode), receiver, sender, |receiver| {
                        let mut landing = Memory::new(buffered);
                        let grants: Vec<_> = ranges
                            .iter()
                            .zip(1..)
                            .map(|((start, end), id)| grant(id, *start, *end, hash))
                            .collect();
                        receiver.grant(&grants).unwrap();
                        for expected in &grants {
                            let Received::Unit { grant, digest, .. } =
                                receive(receiver, &mut landing)
                            else {
                                panic!("{what}: no unit")
                            };
                            assert_eq!(grant, *expected, "{what}");
                            let wanted = contents(grant.range);
                            assert!(landing.read(grant.range) == wanted, "{what}: {grant:?}");
                            let wanted_hash = hash.then(|| *blake3::hash(&wanted).as_bytes());
                            assert_eq!(digest, wanted_hash, "{what}: {grant:?}");
                        }
                        assert!(receiver.outstanding().is_empty());
                        assert_eq!(receiver.observe().units, ranges.len() as u64);
                    });
                }
            }
        }
    }
}

/// Holes, which are not read, and zeros among other bytes are not sent; they arrive, with the hash of the whole unit, in whatever pieces.
#[test]
fn zeros_are_not_sent() {
    const KIB: u64 = 1 << 10;
    // The hole of the provider, zeros that it reads, both with other bytes around them, a few zeros.
    let ranges = [
        (
            ends::Sparse::HOLE.start,
            ends::Sparse::HOLE.start + (1 << 20),
        ),
        (ends::Sparse::HOLE.end - 300 * KIB, ends::Sparse::HOLE.end),
        (ends::Sparse::ZEROS.start, ends::Sparse::ZEROS.end),
        (ends::Sparse::ZEROS.start - 5, ends::Sparse::ZEROS.start + 9),
        (
            ends::Sparse::HOLE.start - 100 * KIB,
            ends::Sparse::HOLE.start + 500 * KIB,
        ),
    ];
    for &kind in ends::streams() {
        for (name, protect) in protections() {
            for (hash, buffered, fragment) in [
                (false, false, 1 << 20),
                (true, false, 1 << 20),
                (true, true, 1 << 20),
                (true, false, 64 << 10),
            ] {
                let what = format!("{kind:?} {name} {hash} {buffered} {fragment}");
                let (mut receiver, mut sender) = pair(kind, &protect);
                receiver.set_fragment_max(fragment);
                sender.set_fragment_max(fragment);
                let sparse = ends::Sparse::default();
                let skipped = sparse.skipped.clone();
                let seen = served(sparse, receiver, sender, |receiver| {
                    let mut landing = Memory::new(buffered);
                    for ((start, end), id) in ranges.into_iter().zip(1..) {
                        receiver.grant(&[grant(id, start, end, hash)]).unwrap();
                        let received = receive(receiver, &mut landing);
                        let Received::Unit {
                            grant,
                            digest,
                            zeros,
                        } = received
                        else {
                            panic!("{what}: {received:?}")
                        };
                        let wanted = ends::Sparse::contents(grant.range);
                        assert!(landing.read(grant.range) == wanted, "{what}: {grant:?}");
                        let wanted_hash = hash.then(|| *blake3::hash(&wanted).as_bytes());
                        assert_eq!(digest, wanted_hash, "{what}: {grant:?}");
                        if id <= 3 {
                            assert_eq!(zeros, end - start, "{what}: {grant:?}");
                        }
                        if id == 4 {
                            assert_eq!(zeros, 0, "{what}: {grant:?}");
                        }
                    }
                });
                let skipped = skipped.lock().unwrap();
                let all: u64 = skipped.iter().map(|range| range.len()).sum();
                let asked: u64 = ranges.iter().map(|(start, end)| end - start).sum();
                assert_eq!(seen.payload, asked - all, "{what}");
                assert!(seen.bytes_out < asked - all + 10_000, "{what}: {seen:?}");
            }
        }
    }
}

/// Hashes alone may be asked for between units: they are those of the sender's bytes, and nothing reaches the landing.
#[test]
fn hashes_come_without_bytes() {
    let ranges = [(7, 7), (3, 40_000), (1 << 60, (1 << 60) + (1 << 20))];
    for &kind in ends::streams() {
        for (name, protect) in protections() {
            let (receiver, sender) = pair(kind, &protect);
            let provider = ends::Generated::new(ends::Mode::File);
            let seen = served(provider, receiver, sender, |receiver| {
                let mut landing = Memory::new(false);
                let grants: Vec<_> = (0..6)
                    .map(|at| {
                        let (start, end) = ranges[at / 2];
                        let digest = at % 2 == 1;
                        Grant {
                            digest,
                            ..grant(at as u32, start, end, !digest)
                        }
                    })
                    .collect();
                receiver.grant(&grants).unwrap();
                for expected in &grants {
                    let wanted = *blake3::hash(&contents(expected.range)).as_bytes();
                    match receive(receiver, &mut landing) {
                        Received::Digest { grant, digest } => {
                            assert!(expected.digest, "{kind:?} {name}");
                            assert_eq!((grant, digest), (*expected, wanted));
                        }
                        Received::Unit { grant, digest, .. } => {
                            assert_eq!((grant, digest), (*expected, Some(wanted)));
                        }
                        other => panic!("{kind:?} {name}: {other:?}"),
                    }
                }
                assert!(receiver.outstanding().is_empty());
            });
            assert_eq!(seen.units, ranges.len() as u64, "{kind:?} {name}");
        }
    }
}

/// A provider is given the hash of each unit that is sent with one. For a hash alone it is asked first: where it knows the hash, the unit is
/// not read.
#[test]
fn known_hashes_are_not_computed() {
    let asked = |id, range: Range, digest| Grant {
        digest,
        ..grant(id, range.start, range.end, !digest)
    };
    let [known, other] = [Range::new(0, 40_000), Range::new(40_000, 100_000)];
    let read = [(other, false), (known, true)];
    let grants = [
        asked(0, known, true),
        asked(1, other, true),
        asked(2, known, false),
        asked(3, known, true),
    ];
    let check = |what: &str, receiver: &mut dyn ReceiveHalf| {
        receiver.grant(&grants).unwrap();
        for expected in &grants {
            let of_bytes = *blake3::hash(&contents(expected.range)).as_bytes();
            let wanted = match (expected.digest, expected.range == known) {
                (true, true) => ends::Known::HASH,
                _ => of_bytes,
            };
            match receive(receiver, &mut Memory::new(false)) {
                Received::Digest { grant, digest } => {
                    assert_eq!((grant, digest), (*expected, wanted), "{what}");
                }
                Received::Unit { grant, digest, .. } => {
                    assert_eq!((grant, digest), (*expected, Some(wanted)), "{what}");
                }
                received => panic!("{what}: {received:?}"),
            }
        }
    };
    let provider = || {
        let hashed = Arc::<Mutex<Vec<(Range, bool)>>>::default();
        let provider = ends::Known {
            contents: ends::Generated::new(ends::Mode::File),
            unit: known,
            hashed: hashed.clone(),
        };
        (provider, hashed)
    };
    for &kind in ends::streams() {
        for (name, protect) in protections() {
            let (receiver, sender) = pair(kind, &protect);
            let (provider, hashed) = provider();
            let what = format!("{kind:?} {name}");
            served(provider, receiver, sender, |receiver| {
                check(&what, receiver)
            });
            assert_eq!(*hashed.lock().unwrap(), read, "{what}");
        }
    }
    let (provider, hashed) = provider();
    check("within one process", &mut *local::stream(provider));
    assert_eq!(*hashed.lock().unwrap(), read);
}

/// A hash that the sender cannot compute is reported as missing, and the stream goes on. Lanes of datagrams refuse to ask.
#[test]
fn hashes_of_absent_bytes_are_missing() {
    for kind in [Kind::Blast4, Kind::Watched6] {
        let (mut receiver, _sender) = pair(kind, &protections().remove(0).1);
        let asked = Grant {
            digest: true,
            ..grant(1, 0, 5000, false)
        };
        assert!(matches!(
            receiver.grant(&[asked]),
            Err(LaneError::Misuse(_))
        ));
    }
    for &kind in ends::streams() {
        for (_, protect) in protections() {
            let (receiver, sender) = pair(kind, &protect);
            let refusing = Refusing { from: 100, to: 200 };
            served(refusing, receiver, sender, |receiver| {
                let asked = |id| Grant {
                    digest: true,
                    ..grant(id, 0, 5000, false)
                };
                receiver.grant(&[asked(1), asked(2)]).unwrap();
                for id in 1..=2 {
                    match receive(receiver, &mut Memory::new(false)) {
                        Received::Missing { grant, .. } => assert_eq!(grant.id, id),
                        other => panic!("{kind:?}: {other:?}"),
                    }
                }
            });
        }
    }
}

/// Thousands of small units, granted in windows, all arrive, and few system calls' worth of framing is added.
#[test]
fn many_small_units_arrive() {
    for &kind in kinds() {
        for (name, protect) in protections() {
            let (receiver, sender) = pair(kind, &protect);
            let seen = served(
                ends::Generated::new(ends::Mode::File),
                receiver,
                sender,
                |receiver| {
                    let mut landing = Memory::new(false);
                    let mut next = 0_u32;
                    let mut done = BTreeMap::new();
                    while done.len() < 3000 {
                        let window: Vec<_> = (next..(next + 400).min(3000))
                            .map(|id| {
                                let start = u64::from(id) * 5000;
                                grant(id, start, start + u64::from(id % 4999), id % 3 == 0)
                            })
                            .collect();
                        next += window.len() as u32;
                        receiver.grant(&window).unwrap();
                        while receiver.outstanding().len() > 200
                            || (next == 3000 && done.len() < 3000)
                        {
                            match receive(receiver, &mut landing) {
                                Received::Unit { grant, .. } => {
                                    assert!(landing.read(grant.range) == contents(grant.range));
                                    assert!(done.insert(grant.id, ()).is_none(), "{name} twice");
                                }
                                other => panic!("{kind:?} {name}: {other:?}"),
                            }
                        }
                    }
                },
            );
            assert_eq!(seen.units, 3000);
        }
    }
}

/// Before each unit its provider is given it and those that follow, in their order.
#[test]
fn units_are_announced_to_their_provider() {
    let grants: Vec<_> = (0..50)
        .map(|id| {
            grant(
                id,
                u64::from(id) * 50_000,
                u64::from(id) * 50_000 + 40_000,
                id % 2 == 0,
            )
        })
        .collect();
    let take = |receiver: &mut dyn ReceiveHalf| {
        let mut landing = Memory::new(false);
        receiver.grant(&grants).unwrap();
        for expected in &grants {
            match receive(receiver, &mut landing) {
                Received::Unit { grant, .. } => assert_eq!(grant, *expected),
                other => panic!("{other:?}"),
            }
        }
    };
    for &kind in ends::streams() {
        for (name, protect) in protections() {
            let (receiver, sender) = pair(kind, &protect);
            let provider = ends::Announced::new();
            let (most, last) = (provider.most.clone(), provider.last.clone());
            served(provider, receiver, sender, |receiver| take(receiver));
            assert!(most.load(Ordering::Relaxed) > 1, "{kind:?} {name}");
            assert_eq!(last.load(Ordering::Relaxed), 0, "{kind:?} {name}");
        }
    }
    let provider = ends::Announced::new();
    let (most, last) = (provider.most.clone(), provider.last.clone());
    let ends = ropewalk_lane::local::Ends::default();
    let mut receiver = ropewalk_lane::local::receive_half(Arc::new(provider), ends);
    take(&mut *receiver);
    assert_eq!(most.load(Ordering::Relaxed), grants.len());
    let none = receiver.receive(&mut Memory::new(false), std::time::Instant::now());
    assert!(matches!(none, Ok(Received::Idle)), "{none:?}");
    assert_eq!(last.load(Ordering::Relaxed), 0);
}

/// A unit the sender cannot serve is answered with its reason, and the units around it arrive.
#[test]
fn absent_units_are_reported_and_the_stream_goes_on() {
    for &kind in kinds() {
        for (name, protect) in protections() {
            let (receiver, sender) = pair(kind, &protect);
            let refusing = Refusing {
                from: 2 << 20,
                to: (2 << 20) + 1,
            };
            served(refusing, receiver, sender, |receiver| {
                let mut landing = Memory::new(false);
                let megabyte = |id: u32| {
                    let start = u64::from(id) << 20;
                    grant(id, start, start + (1 << 20), true)
                };
                // Unit 1 straddles the hole, so that it fails in the middle.
                let straddling = grant(1, (1 << 20) + 5000, (2 << 20) + 5000, true);
                receiver
                    .grant(&[megabyte(0), straddling, megabyte(2), megabyte(3)])
                    .unwrap();
                let mut answered = Vec::new();
                for _ in 0..4 {
                    match receive(receiver, &mut landing) {
                        Received::Unit { grant, .. } => {
                            assert!(grant.id == 0 || grant.id == 3, "{kind:?} {name}");
                            answered.push(grant.id);
                        }
                        Received::Missing {
                            grant,
                            code,
                            reason,
                        } => {
                            assert!(grant.id == 1 || grant.id == 2, "{kind:?} {name}");
                            assert_eq!(code, missing::UNREADABLE);
                            assert!(reason.starts_with("a hole"), "{reason}");
                            assert!(reason.len() <= 512 && reason.len() > 500);
                            answered.push(grant.id);
                        }
                        other => panic!("{kind:?} {name}: {other:?}"),
                    }
                }
                // Refusals do not go by datagrams.
                if matches!(kind, ends::Kind::Blast4 | ends::Kind::Watched6) {
                    answered.sort_unstable();
                }
                assert_eq!(answered, [0, 1, 2, 3], "{kind:?} {name}");
            });
        }
    }
}

/// Cancelled units end as units or as missing, each once, and most bytes are not sent.
#[test]
fn cancelled_units_are_answered_once() {
    for &kind in kinds() {
        for (name, protect) in protections() {
            let (receiver, sender) = pair(kind, &protect);
            let seen = served(
                ends::Generated::new(ends::Mode::Memory),
                receiver,
                sender,
                |receiver| {
                    let mut landing = Memory::new(false);
                    let grants: Vec<_> = (0..64)
                        .map(|id| grant(id, u64::from(id) << 20, (u64::from(id) + 1) << 20, false))
                        .collect();
                    receiver.grant(&grants).unwrap();
                    let mut open: Vec<u32> = (0..64).collect();
                    receiver.cancel(&(1..64).collect::<Vec<_>>()).unwrap();
                    receiver.cancel(&[1000]).unwrap();
                    while !open.is_empty() {
                        let grant = match receive(receiver, &mut landing) {
                            Received::Unit { grant, .. } => {
                                assert!(landing.read(grant.range) == contents(grant.range));
                                grant
                            }
                            Received::Missing {
                                grant,
                                code: missing::CANCELLED,
                                ..
                            } => grant,
                            other => panic!("{kind:?} {name}: {other:?}"),
                        };
                        let index = open
                            .iter()
                            .position(|id| *id == grant.id)
                            .expect("answered once");
                        open.remove(index);
                    }
                    // The stream serves on after a cancellation.
                    receiver.grant(&[grant(100, 77, 99, true)]).unwrap();
                    assert!(matches!(
                        receive(receiver, &mut landing),
                        Received::Unit { .. }
                    ));
                },
            );
            assert!(
                seen.units < 64,
                "{kind:?} {name}: nothing was cancelled in time"
            );
        }
    }
}

/// A grant no stream can serve is refused before anything is sent, and the stream stays usable.
#[test]
fn misuse_is_refused_here() {
    let (_, protect) = protections().remove(1);
    let (receiver, sender) = pair(ends::Kind::Mem, &protect);
    served(
        ends::Generated::new(ends::Mode::Memory),
        receiver,
        sender,
        |receiver| {
            let too_long = receiver.grant(&[grant(1, 0, (1 << 20) + 1, false)]);
            assert!(
                matches!(too_long, Err(LaneError::Misuse(_))),
                "{too_long:?}"
            );
            receiver.grant(&[grant(7, 0, 10, false)]).unwrap();
            let twice = receiver.grant(&[grant(7, 0, 10, false)]);
            assert!(matches!(twice, Err(LaneError::Misuse(_))), "{twice:?}");
            let mut landing = Memory::new(true);
            assert!(matches!(
                receive(receiver, &mut landing),
                Received::Unit { .. }
            ));
            assert_eq!(landing.read(Range::new(0, 10)), contents(Range::new(0, 10)));
        },
    );
}

/// A deadline ends the wait in the middle of a unit, and the next call goes on where it stopped.
#[test]
fn idle_is_resumed() {
    for (name, protect) in protections() {
        let (mut receiver, mut sender) = pair(ends::Kind::Tcp4, &protect);
        let gate = ends::Gate::default();
        let provider = ends::Gated { gate: gate.clone() };
        let serving = thread::spawn(move || sender.serve(&provider, ends::LONG));
        let mut landing = Memory::new(false);
        receiver.grant(&[grant(1, 0, 1 << 20, true)]).unwrap();
        let mut idle = 0;
        let received = loop {
            let soon = std::time::Instant::now() + Duration::from_millis(5);
            match receiver.receive(&mut landing, soon).unwrap() {
                Received::Idle => {
                    idle += 1;
                    gate.open_after_waiting();
                }
                other => break other,
            }
            assert!(idle < 10_000);
        };
        assert!(idle > 0, "{name}: the gate held nothing back");
        assert!(
            matches!(received, Received::Unit { .. }),
            "{name}: {received:?}"
        );
        assert!(landing.read(Range::new(0, 1 << 20)) == contents(Range::new(0, 1 << 20)));
        drop(receiver);
        assert_eq!(serving.join().unwrap().unwrap(), Served::Closed);
    }
}

/// What has come of a unit can be told, from any thread, while the unit is not whole. Only TCP counts so;
/// units that go by datagrams are read in one go.
#[test]
fn what_came_is_counted_before_a_unit_is_whole() {
    for &kind in kinds() {
        let (mut receiver, mut sender) = pair(kind, &protections()[0].1);
        let meter = receiver.stopper();
        let gate = ends::Gate::default();
        let provider = ends::Gated { gate: gate.clone() };
        let serving = thread::spawn(move || sender.serve(&provider, ends::LONG));
        let mut landing = Memory::new(false);
        receiver.grant(&[grant(1, 0, 1 << 20, false)]).unwrap();
        let of_datagrams = matches!(kind, ends::Kind::Blast4 | ends::Kind::Watched6);
        let counts = matches!(
            kind,
            ends::Kind::Tcp4 | ends::Kind::Tcp6 | ends::Kind::TcpApart
        );
        assert_eq!(
            meter.received().is_some(),
            counts || of_datagrams,
            "{kind:?}"
        );
        // The sender waits at the gate with the unit half sent.
        while counts && meter.received() < Some(400 << 10) {
            let soon = std::time::Instant::now() + Duration::from_millis(5);
            let received = receiver.receive(&mut landing, soon).unwrap();
            assert!(matches!(received, Received::Idle), "{received:?}");
        }
        gate.open_after_waiting();
        let received = receive(&mut *receiver, &mut landing);
        assert!(matches!(received, Received::Unit { .. }), "{received:?}");
        assert!(!(counts || of_datagrams) || meter.received() >= Some(1 << 20));
        // A stopper keeps the connection.
        drop((receiver, meter));
        assert_eq!(serving.join().unwrap().unwrap(), Served::Closed);
    }
}
