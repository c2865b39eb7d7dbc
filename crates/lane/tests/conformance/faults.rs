//! What a stream does when its connection, or its peer, misbehaves.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_lane::faulty::Fault;
use ropewalk_lane::*;

use super::ends::{
    self, Generated, LONG, Memory, Mode, contents, grant, kinds, pair, protections, receive,
    streams, tcp_pair,
};

/// A receiving end with a fault, and its sender's thread.
fn faulty_pair(
    protect: &ends::Protect,
    fault: Fault,
) -> (
    Box<dyn ReceiveHalf>,
    thread::JoinHandle<Result<Served, LaneError>>,
) {
    let (near, far) = tcp_pair("127.0.0.1:0");
    let mut sender = tcp::send_half(far, protect()).unwrap();
    let serving = thread::spawn(move || sender.serve(&Generated::new(Mode::Memory), LONG));
    (
        faulty::receive_half(near, protect(), fault).unwrap(),
        serving,
    )
}

/// A flipped payload bit makes one unit corrupt under a checksum or a hash; it is fetched again and all others arrive.
#[test]
fn a_flipped_bit_is_found_and_mended() {
    let all = protections();
    for (name, protect, hash) in [
        (all[1].0, &all[1].1, false),
        (all[0].0, &all[0].1, true),
        (all[1].0, &all[1].1, true),
    ] {
        for at in [100, 500_000, (1 << 20) - 10, (1 << 20) + 200_000] {
            let (mut receiver, serving) = faulty_pair(protect, Fault::Flip(at));
            let mut landing = Memory::new(false);
            let units: Vec<_> = (0..3)
                .map(|id| grant(id, u64::from(id) << 20, (u64::from(id) + 1) << 20, hash))
                .collect();
            receiver.grant(&units).unwrap();
            let mut corrupt = Vec::new();
            let mut whole = 0;
            while whole < 3 {
                match receive(&mut *receiver, &mut landing) {
                    Received::Unit { grant, .. } => {
                        whole += 1;
                        assert!(
                            landing.read(grant.range) == contents(grant.range),
                            "{name}: wrong bytes passed"
                        );
                    }
                    Received::Corrupt { grant, reason } => {
                        corrupt.push((grant.id, reason));
                        receiver.grant(&[grant]).unwrap();
                    }
                    other => panic!("{name}: {other:?}"),
                }
            }
            assert_eq!(corrupt.len(), 1, "{name} flip at {at}: {corrupt:?}");
            assert_eq!(receiver.observe().corrupt, 1);
            drop(receiver);
            assert_eq!(serving.join().unwrap().unwrap(), Served::Closed);
        }
    }
}

/// Takes right bytes only.
struct Strict;

impl Landing for Strict {
    fn write(
        &mut self,
        _space: u16,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let range = ropewalk_model::Range::new(offset, offset + bytes.len() as u64);
        assert!(bytes == contents(range), "wrong bytes written at {offset}");
        Ok(())
    }
}

/// Whatever bit is flipped, under a checksum or a seal no wrong byte is handed to the landing,
/// where a good copy from another stream may lie.
#[test]
fn damaged_bytes_are_never_written() {
    // Large units are received alone, small ones many at a time.
    for unit in [1 << 20, 5000] {
        for (name, protect) in &protections()[1..] {
            for at in [
                3, 24, 100, 4321, 5024, 5031, 5040, 262_167, 262_168, 262_176, 700_001,
            ] {
                let (mut receiver, serving) = faulty_pair(protect, Fault::Flip(at));
                let units: Vec<_> = (0..(4 << 20) / unit)
                    .map(|id| grant(id as u32, id * unit, (id + 1) * unit, id % 2 == 1))
                    .collect();
                receiver.grant(&units).unwrap();
                let mut left = units.len();
                let damaged = loop {
                    match receiver.receive(&mut Strict, Instant::now() + LONG) {
                        Ok(Received::Unit { .. }) if left > 1 => left -= 1,
                        Ok(Received::Corrupt { .. }) | Err(_) => break true,
                        _ => break false,
                    }
                };
                assert!(damaged, "{name}: the flip at {at} went unnoticed");
                drop(receiver);
                let _ = serving.join().unwrap();
            }
        }
    }
}

/// A flipped bit anywhere in a sealed stream ends it, and nothing wrong is called a unit.
#[test]
fn a_sealed_stream_ends_at_a_flipped_bit() {
    let (_, protect) = protections().remove(2);
    for at in [9, 60, 300_000, (256 << 10) + 24 + 5] {
        let (mut receiver, serving) = faulty_pair(&protect, Fault::Flip(at));
        receiver.grant(&[grant(0, 0, 1 << 20, true)]).unwrap();
        let end = receiver.receive(&mut Memory::new(false), Instant::now() + LONG);
        assert!(
            matches!(
                end,
                Err(LaneError::Forged { .. } | LaneError::Unexpected(_) | LaneError::Frame(_))
            ),
            "flip at {at}: {end:?}"
        );
        drop(receiver);
        // The sender had answered in full or was cut off; both are an end.
        let _ = serving.join().unwrap();
    }
}

/// A connection cut inside a unit is reported with what was owed.
#[test]
fn a_cut_names_what_was_owed() {
    for (name, protect) in protections() {
        let (mut receiver, serving) = faulty_pair(&protect, Fault::Cut(1_500_000));
        let units: Vec<_> = (0..3)
            .map(|id| grant(id, u64::from(id) << 20, (u64::from(id) + 1) << 20, false))
            .collect();
        receiver.grant(&units).unwrap();
        let mut landing = Memory::new(false);
        assert!(
            matches!(receive(&mut *receiver, &mut landing), Received::Unit { .. }),
            "{name}"
        );
        let end = receiver
            .receive(&mut landing, Instant::now() + LONG)
            .unwrap_err();
        assert!(
            matches!(end, LaneError::Closed { outstanding: 2 }),
            "{name}: {end:?}"
        );
        assert!(end.is_retryable());
        assert_eq!(receiver.outstanding(), units[1..]);
        drop(receiver);
        let _ = serving.join().unwrap();
    }
}

/// A peer that says nothing is given up after the patience, and not when nothing is owed.
#[test]
fn silence_ends_after_patience() {
    let patience = Duration::from_millis(1100);
    for (name, protect) in protections() {
        let (mut receiver, serving) = faulty_pair(&protect, Fault::Silence(1_500_000));
        receiver.set_patience(patience);
        let mut landing = Memory::new(true);
        let begun = Instant::now();
        assert_eq!(
            receiver
                .receive(&mut landing, begun + Duration::from_millis(20))
                .unwrap(),
            Received::Idle
        );
        receiver
            .grant(&[
                grant(0, 0, 1 << 20, false),
                grant(1, 1 << 20, 2 << 20, false),
            ])
            .unwrap();
        assert!(
            matches!(receive(&mut *receiver, &mut landing), Received::Unit { .. }),
            "{name}"
        );
        let end = receiver
            .receive(&mut landing, Instant::now() + LONG)
            .unwrap_err();
        assert!(
            matches!(end, LaneError::Silent { seconds: 1, .. }),
            "{name}: {end:?}"
        );
        drop(receiver);
        let _ = serving.join().unwrap();
    }
}

/// A receiver that asks and never reads is given up by the sender.
#[test]
fn a_receiver_that_does_not_read_is_given_up() {
    // Each end of a lane of datagrams waits 10 s for the other to be there: all at the same time.
    thread::scope(|scope| {
        for &kind in kinds() {
            for (name, protect) in protections() {
                let (mut receiver, mut sender) = pair(kind, &protect);
                scope.spawn(move || {
                    sender.set_patience(Duration::from_millis(50));
                    let units: Vec<_> = (0..64)
                        .map(|id| {
                            let start = u64::from(id) << 20;
                            grant(id, start, start + (1 << 20), false)
                        })
                        .collect();
                    receiver.grant(&units).unwrap();
                    let end = sender
                        .serve(&Generated::new(Mode::Memory), LONG)
                        .unwrap_err();
                    assert!(
                        matches!(end, LaneError::Silent { .. }),
                        "{kind:?} {name}: {end:?}"
                    );
                });
            }
        }
    });
}

/// A sender that is asked nothing says so, and serves when asked later.
#[test]
fn an_idle_sender_can_be_served_again() {
    // Both ends of a lane of datagrams have to be there before it can be idle; see `datagrams`.
    for &kind in streams() {
        let (_, protect) = protections().remove(2);
        let (mut receiver, mut sender) = pair(kind, &protect);
        let provider = Generated::new(Mode::Memory);
        assert_eq!(
            sender.serve(&provider, Duration::from_millis(5)).unwrap(),
            Served::Idle
        );
        receiver.grant(&[grant(0, 0, 100, false)]).unwrap();
        assert_eq!(
            sender.serve(&provider, Duration::from_millis(5)).unwrap(),
            Served::Idle
        );
        assert!(matches!(
            receive(&mut *receiver, &mut Memory::new(false)),
            Received::Unit { .. }
        ));
    }
}

/// A stopper wakes an end that waits, from another thread: it does not wait until it would be idle.
#[test]
fn a_stopper_wakes_both_ends() {
    for &kind in kinds() {
        for of_receiver in [true, false] {
            let (_, protect) = protections().remove(1);
            let (mut receiver, mut sender) = pair(kind, &protect);
            let stopper = if of_receiver {
                receiver.stopper()
            } else {
                sender.stopper()
            };
            let serving = thread::spawn(move || sender.serve(&Generated::new(Mode::Memory), LONG));
            let receiving = thread::spawn(move || {
                receiver.receive(&mut Memory::new(false), Instant::now() + LONG)
            });
            stopper.stop();
            stopper.stop();
            let (sent, received) = (serving.join().unwrap(), receiving.join().unwrap());
            if of_receiver {
                assert!(
                    matches!(received, Err(LaneError::Stopped)),
                    "{kind:?}: {received:?}"
                );
                assert_eq!(sent.unwrap(), Served::Closed);
            } else {
                assert!(
                    matches!(received, Err(LaneError::Closed { .. })),
                    "{kind:?}: {received:?}"
                );
                assert_eq!(sent.unwrap(), Served::Stopped);
            }
        }
    }
}

/// Bytes of a stranger end either side's stream with an error that says what was wrong; nothing panics.
#[test]
fn bytes_of_strangers_end_the_stream() {
    for (name, protect) in protections() {
        let (near, mut far) = tcp_pair("127.0.0.1:0");
        let mut sender = tcp::send_half(near, protect()).unwrap();
        far.write_all(b"GET / HTTP/1.1\r\nHost: someone\r\n\r\n and some more bytes")
            .unwrap();
        far.shutdown(Shutdown::Write).unwrap();
        let end = sender
            .serve(&Generated::new(Mode::Memory), LONG)
            .unwrap_err();
        assert!(matches!(end, LaneError::Frame(_)), "{name}: {end:?}");

        let (near, mut far) = tcp_pair("127.0.0.1:0");
        let mut receiver = tcp::receive_half(near, protect()).unwrap();
        receiver.grant(&[grant(1, 0, 100, false)]).unwrap();
        // A well-formed data frame for a grant nobody gave.
        far.write_all(&[
            2, 1, 2, 0, 100, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0,
        ])
        .unwrap();
        let end = receiver
            .receive(&mut Memory::new(false), Instant::now() + LONG)
            .unwrap_err();
        assert!(matches!(end, LaneError::Unexpected(_)), "{name}: {end:?}");
    }
}

/// Grants without the key buy nothing: the sender stops at the first.
#[test]
fn a_sealed_sender_answers_nobody_without_the_key() {
    let (near, far) = tcp_pair("127.0.0.1:0");
    let keys = |byte| Protection::Sealed(seal::stream_keys(&seal::PairSecret([byte; 32]), [0; 32]));
    let mut receiver = tcp::receive_half(near, keys(1)).unwrap();
    let mut sender = tcp::send_half(far.try_clone().unwrap(), keys(2)).unwrap();
    receiver.grant(&[grant(1, 0, 100, false)]).unwrap();
    let end = sender
        .serve(&Generated::new(Mode::Memory), LONG)
        .unwrap_err();
    assert!(matches!(end, LaneError::Forged { record: 0 }), "{end:?}");
}

/// What a sealed stream carries is not the plain bytes.
#[test]
fn sealed_bytes_are_not_readable() {
    let (near, mut far) = tcp_pair("127.0.0.1:0");
    let keys = || Protection::Sealed(seal::stream_keys(&seal::PairSecret([1; 32]), [0; 32]));
    let mut tapped = far.try_clone().unwrap();
    let mut sender = tcp::send_half(near, keys()).unwrap();
    let (mut receiver, mut relay) = {
        let (near, far) = tcp_pair("127.0.0.1:0");
        (tcp::receive_half(near, keys()).unwrap(), far)
    };
    receiver.grant(&[grant(1, 0, 5000, true)]).unwrap();
    let mut request = [0; 24 + 16];
    relay.read_exact(&mut request).unwrap();
    tapped.write_all(&request).unwrap();
    let serving = thread::spawn(move || sender.serve(&Generated::new(Mode::Memory), LONG));
    let mut record = vec![0; 24 + 5000 + 32 + 16];
    far.read_exact(&mut record).unwrap();
    let plain = contents(ropewalk_model::Range::new(0, 5000));
    assert!(
        !record
            .windows(16)
            .any(|window| plain.windows(16).any(|bytes| bytes == window))
    );
    relay.write_all(&record).unwrap();
    assert!(matches!(
        receive(&mut *receiver, &mut Memory::new(false)),
        Received::Unit { .. }
    ));
    far.shutdown(Shutdown::Both).unwrap();
    assert_eq!(serving.join().unwrap().unwrap(), Served::Closed);
}

/// To a peer on this host, mapped bytes are sent from memory, whatever becomes of their file.
#[test]
fn mapped_bytes_leave_from_memory_within_a_host() {
    for (name, protect) in protections() {
        for kind in [ends::Kind::Tcp4, ends::Kind::Unix, ends::Kind::Shm] {
            let (mut receiver, mut sender) = pair(kind, &protect);
            let serving = thread::spawn(move || sender.serve(&Generated::shrunk(0), LONG));
            let unit = grant(0, 5, 400_000, true);
            receiver.grant(&[unit]).unwrap();
            let mut landing = Memory::new(false);
            let received = receive(&mut *receiver, &mut landing);
            let is_whole = matches!(received, Received::Unit { grant, .. } if grant == unit);
            assert!(is_whole, "{kind:?} {name}: {received:?}");
            assert!(
                landing.read(unit.range) == contents(unit.range),
                "{kind:?} {name}"
            );
            drop(receiver);
            assert_eq!(serving.join().unwrap().unwrap(), Served::Closed);
        }
    }
}

/// A file that became shorter after its bytes were promised costs its units, not the stream, under either check. The kernel sends it to other
/// hosts only.
#[test]
fn a_file_that_shrank_makes_its_units_corrupt() {
    for (name, protect) in protections().drain(..2) {
        let (mut receiver, mut sender) = pair(ends::Kind::TcpApart, &protect);
        let serving = thread::spawn(move || sender.serve(&Generated::shrunk(100_000), LONG));
        // From offset 0 on, 100,000 bytes are left of the file; the second unit asks for none of them.
        let units = [
            grant(0, 0, 200_000, false),
            grant(1, 0, 90_000, false),
            grant(2, 0, 300_000, true),
        ];
        receiver.grant(&units).unwrap();
        let mut landing = Memory::new(false);
        for unit in units {
            let received = receive(&mut *receiver, &mut landing);
            match received {
                Received::Corrupt { grant, .. } if unit.id != 1 => assert_eq!(grant, unit),
                Received::Unit { grant, .. } if unit.id == 1 => assert_eq!(grant, unit),
                other => panic!("{name}: {other:?}"),
            }
        }
        drop(receiver);
        assert_eq!(serving.join().unwrap().unwrap(), Served::Closed);
    }
}

/// Fragments no longer than was set carry a unit in pieces; longer ones than agreed are refused.
#[test]
fn the_longest_fragment_can_be_set() {
    for (name, protect) in protections() {
        let (mut receiver, mut sender) = pair(ends::Kind::Tcp4, &protect);
        receiver.set_fragment_max(64 << 10);
        sender.set_fragment_max(64 << 10);
        let serving = thread::spawn(move || {
            let served = sender.serve(&Generated::new(Mode::File), LONG);
            (served, sender.observe())
        });
        receiver.grant(&[grant(0, 5, (1 << 20) + 5, true)]).unwrap();
        let mut landing = Memory::new(false);
        assert!(matches!(
            receive(&mut *receiver, &mut landing),
            Received::Unit { .. }
        ));
        let range = ropewalk_model::Range::new(5, (1 << 20) + 5);
        assert!(landing.read(range) == contents(range), "{name}");
        drop(receiver);
        let (served, seen) = serving.join().unwrap();
        assert_eq!(served.unwrap(), Served::Closed);
        assert_eq!(seen.frames, 16, "{name}");
    }
    let (_, protect) = protections().remove(1);
    let (mut receiver, mut sender) = pair(ends::Kind::Tcp4, &protect);
    receiver.set_fragment_max(64 << 10);
    let serving = thread::spawn(move || sender.serve(&Generated::new(Mode::File), LONG));
    receiver.grant(&[grant(0, 0, 1 << 20, false)]).unwrap();
    let end = receiver.receive(&mut Memory::new(false), Instant::now() + LONG);
    assert!(matches!(end, Err(LaneError::Unexpected(_))), "{end:?}");
    drop(receiver);
    let _ = serving.join().unwrap();
}
