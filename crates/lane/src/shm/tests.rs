use std::time::Duration;

use super::*;

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
        (MEMORY_LEN, SealFlags::GROW),
        (MEMORY_LEN / 2, SEALS),
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
