use std::time::Duration;

use super::*;
use crate::Crc64;

fn pair() -> (Rings, Rings) {
    let (near, far) = UnixStream::pair().unwrap();
    let receiver = Rings::offer(near).unwrap();
    let mut sender = Rings::accept(far).unwrap();
    sender.parts().unwrap();
    (receiver, sender)
}

fn data(wire: &Rings) -> &Ring {
    &wire.mapped.as_ref().unwrap().inbound
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

/// Bytes cross in order, around the end of the ring and across slices, in pieces of any length.
#[test]
fn bytes_cross_around_the_end() {
    let (mut receiver, mut sender) = pair();
    let sent: Vec<u8> = (0..3 * DATA_LEN + 77).map(|at| (at % 251) as u8).collect();
    let (mut at, mut got) = (0, Vec::<u8>::new());
    for piece in (1..).map(|step| step * 7919 % (DATA_LEN + 1)) {
        let rest = &sent[at..(at + piece).min(sent.len())];
        let (left, right) = rest.split_at(rest.len() / 3);
        at += match sender.send(&[IoSlice::new(left), IoSlice::new(right)], false) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => panic!("{error}"),
        };
        let (mut a, mut b) = (vec![0; piece / 2], vec![0; piece / 2 + 1]);
        let mut slices = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
        if let Ok(count) = receiver.receive(&mut slices) {
            a.extend(b);
            got.extend(&a[..count]);
        }
        if got.len() == sent.len() {
            break;
        }
    }
    assert!(got == sent);
}

/// What was written before the end is read before the end shows.
#[test]
fn the_end_follows_the_bytes() {
    let (mut receiver, mut sender) = pair();
    sender.send(&[IoSlice::new(b"last")], false).unwrap();
    drop(sender);
    let interest = Interest {
        read: 4,
        write: false,
    };
    receiver.wait(interest, soon()).unwrap();
    let mut bytes = [0; 9];
    let mut read = || receiver.receive(&mut [IoSliceMut::new(&mut bytes)]);
    assert_eq!(read().unwrap(), 4);
    assert_eq!(read().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    receiver.wait(interest, soon()).unwrap();
    let mut bytes = [0; 9];
    assert_eq!(
        receiver
            .receive(&mut [IoSliceMut::new(&mut bytes)])
            .unwrap(),
        0
    );
    let refused = receiver.send(&[IoSlice::new(b"x")], false).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::BrokenPipe);
}

/// The end shows although the ring never makes this side wait, whether the peer or the stopper made it, and a peer that rings
/// without end holds nothing up.
#[test]
fn the_end_is_seen_beside_a_busy_ring() {
    let (mut receiver, mut sender) = pair();
    sender.send(&[IoSlice::new(&[1; 4096])], false).unwrap();
    let stopper = receiver.handle().unwrap();
    stopper.close();
    let mut read = 0;
    while let Ok(1) = receiver.receive(&mut [IoSliceMut::new(&mut [0])]) {
        read += 1;
        if receiver.has_ended {
            break;
        }
    }
    assert!(read < 4096 && receiver.has_ended);
    let mut sent = 0;
    while sender.send(&[IoSlice::new(&[1])], false).is_ok() {
        sent += 1;
        assert!(sent < 1000, "the peer has ended");
    }

    let (mut receiver, sender) = pair();
    while send(&sender.bell, &[1; 64], SendFlags::DONTWAIT).is_ok() {}
    receiver.hear().unwrap();
    assert!(recv(&receiver.bell, &mut [0], RecvFlags::DONTWAIT).is_ok());
}

/// A side that waits is woken by bytes and by room, and by no more rings of the bell than it asked for.
#[test]
fn waiting_sides_are_woken() {
    let (mut receiver, mut sender) = pair();
    let interest = Interest {
        read: 100,
        write: false,
    };
    assert!(!receiver.is_ready(interest).unwrap());
    sender.send(&[IoSlice::new(&[1; 99])], false).unwrap();
    assert_eq!(
        recv(&receiver.bell, &mut [0; 9], RecvFlags::DONTWAIT),
        Err(rustix::io::Errno::AGAIN)
    );
    sender.send(&[IoSlice::new(&[1; 99])], false).unwrap();
    sender.send(&[IoSlice::new(&[1; 99])], false).unwrap();
    assert_eq!(
        recv(&receiver.bell, &mut [0; 9], RecvFlags::DONTWAIT)
            .unwrap()
            .0,
        1
    );
    assert!(receiver.is_ready(interest).unwrap());

    while sender.send(&[IoSlice::new(&[1; 1 << 16])], false).is_ok() {}
    let interest = Interest {
        read: 0,
        write: true,
    };
    assert!(!sender.is_ready(interest).unwrap());
    let mut bytes = vec![0; DATA_LEN / 2];
    receiver
        .receive(&mut [IoSliceMut::new(&mut bytes)])
        .unwrap();
    sender.wait(interest, soon()).unwrap();
    assert!(sender.is_ready(interest).unwrap());
}

/// Positions that do not fit are an error, in either direction; no byte outside the ring is touched.
#[test]
fn a_peer_that_writes_nonsense_ends_the_stream() {
    let (mut receiver, sender) = pair();
    for head in [DATA_LEN as u64 + 1, u64::MAX] {
        data(&receiver).head().store(head, Ordering::Release);
        let error = receiver
            .receive(&mut [IoSliceMut::new(&mut [0; 8])])
            .unwrap_err();
        assert!(error.to_string().contains("positions"), "{error}");
    }
    drop(sender);
}

/// Memory that the peer could cut, or of another size, is refused.
#[test]
fn memory_that_can_change_its_size_is_refused() {
    for (len, seals) in [
        (BESIDE_LEN + DATA_LEN, SealFlags::GROW),
        (BESIDE_LEN + DATA_LEN / 2, SEALS),
        (BESIDE_LEN + 3 * DATA_LEN, SEALS),
        (BESIDE_LEN + 2 * DATA_MAX, SEALS),
        (4096, SEALS),
    ] {
        let (near, far) = UnixStream::pair().unwrap();
        let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, len as u64).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        assert!(rights.push(SendAncillaryMessage::ScmRights(&files)));
        sendmsg(
            &near,
            &[IoSlice::new(&[0])],
            &mut rights,
            SendFlags::NOSIGNAL,
        )
        .unwrap();
        let mut sender = Rings::accept(far).unwrap();
        let error = sender
            .receive(&mut [IoSliceMut::new(&mut [0; 8])])
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{len}");
    }
    let (mut near, far) = UnixStream::pair().unwrap();
    io::Write::write_all(&mut near, b"x").unwrap();
    let mut sender = Rings::accept(far).unwrap();
    let error = sender
        .receive(&mut [IoSliceMut::new(&mut [0; 8])])
        .unwrap_err();
    assert!(error.to_string().contains("no shared memory"), "{error}");
}

/// Bytes go from ring to ring around the ends of both, with their checksum; the other side sees them once they are published, and
/// they stay until they are consumed.
#[test]
fn bytes_go_from_ring_to_ring() {
    const HEAD: usize = 5;
    let (mut near, mut source) = pair();
    let (mut sink, mut far) = pair();
    let mut number = 0_usize;
    // Several times around.
    for round in 0..200 {
        let len = round * 7919 % 100_000;
        let bytes: Vec<u8> = (number..number + HEAD + len)
            .map(|n| (n % 251) as u8)
            .collect();
        number += HEAD + len;
        assert_eq!(source.put(&[IoSlice::new(&bytes)]).unwrap(), bytes.len());
        let mut head = [0; HEAD];
        assert!(near.look(&mut head).unwrap());
        assert_eq!(head, bytes[..HEAD]);
        let mut sum = Crc64::default();
        assert!(
            near.copy_to(HEAD, len, &mut sum, &mut far, b"head")
                .unwrap()
        );
        assert_eq!(sum.value(), crate::crc64(&[&bytes[HEAD..]]));
        let mut again = Crc64::default();
        near.sum(HEAD, len, &mut again).unwrap();
        assert_eq!(again.value(), sum.value());
        assert!(!sink.has_bytes(), "not published");
        far.publish(4 + len).unwrap();
        near.consume(bytes.len()).unwrap();
        assert!(!near.has_bytes());
        let mut got = vec![0; 4 + len];
        assert_eq!(
            sink.take(&mut [IoSliceMut::new(&mut got)]).unwrap(),
            got.len()
        );
        assert!(got[..4] == *b"head" && got[4..] == bytes[HEAD..]);
    }
}

/// What does not fit is not copied; what is not there is neither used nor published.
#[test]
fn only_what_is_there_goes_on() {
    let (mut near, mut source) = pair();
    let (mut sink, mut far) = pair();
    let kind = |result: io::Result<()>| result.unwrap_err().kind();
    assert_eq!(
        near.look(&mut [0]).unwrap_err().kind(),
        io::ErrorKind::WouldBlock
    );
    source.put(&[IoSlice::new(&[1; 100])]).unwrap();
    assert!(!near.look(&mut [0; 101]).unwrap());
    let sum = &mut Crc64::default();
    assert_eq!(kind(near.sum(1, 100, sum)), io::ErrorKind::InvalidInput);
    assert_eq!(kind(near.consume(101)), io::ErrorKind::InvalidInput);
    assert_eq!(kind(far.publish(DATA_LEN + 1)), io::ErrorKind::InvalidInput);
    far.put(&[IoSlice::new(&vec![2; DATA_LEN - 99])]).unwrap();
    assert!(!near.copy_to(0, 100, sum, &mut far, &[]).unwrap());
    sink.take(&mut [IoSliceMut::new(&mut [0])]).unwrap();
    assert!(near.copy_to(0, 100, sum, &mut far, &[]).unwrap());
    drop(sink);
    far.wake().unwrap();
    let error = near.copy_to(0, 100, sum, &mut far, &[]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    drop(source);
    near.wake().unwrap();
    assert_eq!(near.filled(100).unwrap(), 100);
    assert_eq!(
        near.filled(101).unwrap_err().kind(),
        io::ErrorKind::UnexpectedEof
    );
}

/// A side that waits for a batch is woken by the batch, or by less once the peer goes to sleep; never missed, whichever was first.
#[test]
fn a_batch_is_waited_for_while_the_peer_works() {
    let wanted = Wanted {
        bytes: 10,
        batch: 1000,
        room: None,
    };
    let rings = |receiver: &Rings| recv(&receiver.bell, &mut [0; 9], RecvFlags::DONTWAIT).is_ok();
    let (mut receiver, mut sender) = pair();
    assert!(!receiver.arm_for(wanted).unwrap());
    sender.put(&[IoSlice::new(&[1; 999])]).unwrap();
    assert!(!rings(&receiver));
    sender.put(&[IoSlice::new(&[1])]).unwrap();
    assert!(rings(&receiver));
    assert!(receiver.arm_for(wanted).unwrap());

    let (mut receiver, mut sender) = pair();
    assert!(!receiver.arm_for(wanted).unwrap());
    sender.put(&[IoSlice::new(&[1; 20])]).unwrap();
    assert!(!rings(&receiver));
    assert!(!sender.arm_for(Wanted::NONE).unwrap());
    assert!(rings(&receiver), "the peer sleeps");

    // Less than the batch was there before: it counts, and a part is waited for to its end.
    let (mut receiver, mut sender) = pair();
    sender.put(&[IoSlice::new(&[1; 9])]).unwrap();
    assert!(!sender.arm_for(Wanted::NONE).unwrap());
    assert!(!receiver.arm_for(wanted).unwrap());
    sender.put(&[IoSlice::new(&[1])]).unwrap();
    assert!(rings(&receiver));
    assert!(receiver.arm_for(wanted).unwrap());
}

/// A ring holds a piece that it was made for, whole, and both ends see the same length.
#[test]
fn rings_are_made_for_long_pieces() {
    for (piece, holds) in [
        (100, true),
        (2 << 20, true),
        (3 << 20, true),
        ((4 << 20) + 1, false),
    ] {
        assert_eq!(Rings::holds(piece), holds);
        let (near, far) = UnixStream::pair().unwrap();
        let mut receiver = Rings::offer_for(near, piece).unwrap();
        let mut sender = Rings::accept(far).unwrap();
        let sent = sender.put(&[IoSlice::new(&vec![1; piece])]).unwrap();
        assert_eq!(sent == piece, holds);
        assert_eq!(receiver.filled(1).unwrap(), sent);
    }
}
