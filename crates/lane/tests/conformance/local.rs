//! Streams within one process keep the same promises; they have no sender's end.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_lane::*;
use ropewalk_model::Range;

use super::ends::{self, Generated, Memory, Refusing, contents, grant, receive};

pub fn stream(provider: impl Provider + Send + 'static) -> Box<dyn ReceiveHalf> {
    local::receive_half(Arc::new(provider), local::Ends::default())
}

/// Units of every awkward length and place arrive as they are, in order, with the right hash, wherever source and sink have them.
#[test]
fn units_of_all_sizes_arrive() {
    let ranges = [
        (0, 0),
        (0, 1),
        (3, 40_000),
        (70_001, 70_001 + (256 << 10)),
        (1 << 60, (1 << 60) + (1 << 20)),
        (u64::MAX - 1000, u64::MAX),
        ((1 << 60) + 7, (1 << 60) + 7 + (512 << 10) + 13),
    ];
    for hash in [false, true] {
        for (buffered, mode) in ends::MODES {
            let mut receiver = stream(Generated::new(mode));
            let mut landing = Memory::new(buffered);
            let grants: Vec<_> = ranges
                .iter()
                .zip(1..)
                .map(|((start, end), id)| grant(id, *start, *end, hash))
                .collect();
            receiver.grant(&grants).unwrap();
            assert_eq!(receiver.outstanding(), grants);
            for expected in &grants {
                let wanted = contents(expected.range);
                let digest = hash.then(|| *blake3::hash(&wanted).as_bytes());
                let received = receive(&mut *receiver, &mut landing);
                let unit = Received::Unit {
                    zeros: 0,
                    grant: *expected,
                    digest,
                };
                assert_eq!(received, unit, "{buffered} {mode:?}");
                assert!(landing.read(expected.range) == wanted, "{expected:?}");
            }
            assert!(receiver.outstanding().is_empty());
            let bytes: u64 = grants.iter().map(|grant| grant.range.len()).sum();
            let seen = receiver.observe();
            assert_eq!((seen.units, seen.payload), (ranges.len() as u64, bytes));
        }
    }
}

/// Where only the hash is wanted nothing reaches the landing; what cannot be read is missing, and the stream goes on.
#[test]
fn hashes_and_absent_units_are_answered() {
    let mut receiver = stream(Refusing {
        from: 2 << 20,
        to: (2 << 20) + 1,
    });
    let mut landing = Memory::new(false);
    let digest = |grant| Grant {
        digest: true,
        ..grant
    };
    let grants = [
        digest(grant(0, 5, 70_000, false)),
        grant(1, (1 << 20) + 5000, (2 << 20) + 5000, true),
        digest(grant(2, 2 << 20, (2 << 20) + 9, false)),
        grant(3, 3 << 20, 4 << 20, true),
    ];
    receiver.grant(&grants).unwrap();
    let wanted = *blake3::hash(&contents(grants[0].range)).as_bytes();
    assert_eq!(
        receive(&mut *receiver, &mut landing),
        Received::Digest {
            grant: grants[0],
            digest: wanted
        }
    );
    for expected in &grants[1..3] {
        match receive(&mut *receiver, &mut landing) {
            Received::Missing { grant, code, .. } => {
                assert_eq!((grant, code), (*expected, missing::UNREADABLE));
            }
            other => panic!("{other:?}"),
        }
    }
    let last = receive(&mut *receiver, &mut landing);
    assert!(matches!(last, Received::Unit { grant, .. } if grant == grants[3]));
    assert!(landing.read(grants[3].range) == contents(grants[3].range));
}

/// Cancelled units end as missing, each once; what no stream can do is refused, and the stream stays usable.
#[test]
fn cancelled_units_are_answered_once() {
    let mut receiver = stream(Generated::new(ends::Mode::Memory));
    let mut landing = Memory::new(true);
    let too_long = receiver.grant(&[grant(1, 0, (1 << 20) + 1, false)]);
    assert!(matches!(too_long, Err(LaneError::Misuse(_))));
    let grants: Vec<_> = (0..4).map(|id| grant(id, 0, 10, false)).collect();
    receiver.grant(&grants).unwrap();
    // Nothing of a call that is refused is granted.
    let twice = receiver.grant(&[grant(9, 0, 10, false), grant(3, 0, 10, false)]);
    assert!(matches!(twice, Err(LaneError::Misuse(_))));
    receiver.cancel(&[1, 2, 1000]).unwrap();
    assert_eq!(receiver.outstanding().len(), 4);
    let mut answered: Vec<(u32, bool)> = (0..4)
        .map(|_| match receive(&mut *receiver, &mut landing) {
            Received::Unit { grant, .. } => (grant.id, true),
            Received::Missing {
                grant,
                code: missing::CANCELLED,
                ..
            } => (grant.id, false),
            other => panic!("{other:?}"),
        })
        .collect();
    answered.sort_unstable();
    assert_eq!(answered, [(0, true), (1, false), (2, false), (3, true)]);
}

/// What the landing refuses ends the stream with its words.
#[test]
fn a_landing_that_refuses_ends_the_stream() {
    struct Full;
    impl Landing for Full {
        fn write(
            &mut self,
            _space: u16,
            _offset: u64,
            _bytes: &[u8],
        ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            Err("no space left".into())
        }
    }
    for mode in [ends::Mode::Memory, ends::Mode::File] {
        let mut receiver = stream(Generated::new(mode));
        receiver.grant(&[grant(1, 10, 90, true)]).unwrap();
        match receiver.receive(&mut Full, Instant::now() + ends::LONG) {
            Err(LaneError::Landing { range, source, .. }) => {
                assert_eq!(range, Range::new(10, 90));
                assert_eq!(source.to_string(), "no space left");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// With nothing granted it waits for its deadline, or until it is stopped from another thread.
#[test]
fn an_idle_stream_can_be_stopped() {
    let mut receiver = stream(Generated::new(ends::Mode::Memory));
    let mut landing = Memory::new(false);
    let soon = Instant::now() + Duration::from_millis(5);
    let idle = receiver.receive(&mut landing, soon).unwrap();
    assert_eq!(idle, Received::Idle);
    assert!(Instant::now() >= soon);
    let stopper = receiver.stopper();
    let waiting =
        thread::spawn(move || receiver.receive(&mut landing, Instant::now() + ends::LONG));
    stopper.stop();
    assert!(matches!(waiting.join().unwrap(), Err(LaneError::Stopped)));
}

/// A sender that ends while it is read from closes the stream: what it gave last is not landed, what it did not give is not missing, and one
/// that is idle wakes.
#[test]
fn a_sender_that_ends_closes_the_stream() {
    struct Ending(Stopper, Option<Absent>);
    impl Provider for Ending {
        fn extent(&self, _space: u16, _range: Range) -> Result<Extent<'_>, Absent> {
            panic!("its bytes have no place in memory");
        }

        fn in_memory(&self, _space: u16, _range: Range) -> Result<Option<Extent<'_>>, Absent> {
            Ok(None)
        }

        fn read(&self, _space: u16, _offset: u64, _out: &mut [u8]) -> Result<(), Absent> {
            self.0.stop();
            self.1.clone().map_or(Ok(()), Err)
        }
    }
    struct Nothing;
    impl Landing for Nothing {
        fn write(
            &mut self,
            _space: u16,
            _offset: u64,
            _bytes: &[u8],
        ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            panic!("bytes of a stream that has ended are landed");
        }
    }
    let until = Instant::now() + ends::LONG;
    let absent = Absent {
        code: missing::CANCELLED,
        reason: "the transfer has ended".into(),
    };
    for absent in [None, Some(absent)] {
        let sides = local::Ends::default();
        let ending = Ending(sides.of_sender(), absent);
        let mut receiver = local::receive_half(Arc::new(ending), sides);
        receiver
            .grant(&[grant(1, 0, 90, true), grant(2, 90, 95, true)])
            .unwrap();
        let ended = receiver.receive(&mut Nothing, until);
        assert!(
            matches!(ended, Err(LaneError::Closed { outstanding: 2 })),
            "{ended:?}"
        );
    }
    let sides = local::Ends::default();
    let sender = sides.of_sender();
    let generated = Generated::new(ends::Mode::Memory);
    let mut receiver = local::receive_half(Arc::new(generated), sides);
    let waiting = thread::spawn(move || receiver.receive(&mut Nothing, until));
    sender.stop();
    let ended = waiting.join().unwrap();
    assert!(
        matches!(ended, Err(LaneError::Closed { outstanding: 0 })),
        "{ended:?}"
    );
}
