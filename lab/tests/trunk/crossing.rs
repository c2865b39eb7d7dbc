//! What crosses a trunk: how late, how much, how long, and what is dropped or lost.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use ropewalk_lab::trunk::{Direction, LinkSpec, Loss, Offload, QueueLimit, Tally, TrunkSpec};

use crate::common::{skip, wait_until};
use crate::nets::{HEADERS, clusters, delay, pair, round_trip, settled, socket, sockets, sums, v4};

/// Every host of one side reaches every host of the other, by IPv4 and IPv6, and a round trip takes at least the two
/// delays.
#[test]
fn clusters_reach_each_other() {
    if skip("clusters_reach_each_other") {
        return;
    }
    let lab = clusters(2, TrunkSpec::symmetric(delay(5)));
    assert_eq!(lab.hosts().collect::<Vec<_>>(), ["a1", "a2", "b1", "b2"]);
    for (a, b) in [("a1", "b1"), ("a1", "b2"), ("b2", "a2")] {
        for family in 0..lab.addresses(a).len() {
            let like = lab.addresses(a)[family];
            let took = round_trip(&socket(&lab, a, like), &socket(&lab, b, like));
            assert!(
                took >= Duration::from_millis(10),
                "{a} {b} {like}: {took:?}"
            );
        }
    }
    let near = round_trip(
        &socket(&lab, "a1", v4(&lab, "a1")),
        &socket(&lab, "a2", v4(&lab, "a2")),
    );
    assert!(near > Duration::ZERO);
    // Neighbours do not use the trunk, and it carries nothing of its own: three round trips, each family.
    let counters = lab.trunk(0).counters().expect("counters");
    let expected = 3 * lab.addresses("a1").len() as u64;
    assert_eq!(counters.a_to_b.link.delivered.packets, expected);
    assert_eq!(counters.b_to_a.link.delivered.packets, expected);
}

/// The delay of each direction is its own: all of it may be on the way back.
#[test]
fn delay_of_one_direction() {
    if skip("delay_of_one_direction") {
        return;
    }
    let lab = pair(TrunkSpec {
        b_to_a: delay(30),
        ..TrunkSpec::default()
    });
    let (a, b, _) = sockets(&lab, "sender", "receiver");
    assert!(round_trip(&a, &b) >= Duration::from_millis(30));
    let counters = lab.trunk(0).counters().expect("counters");
    assert_eq!(counters.a_to_b.link.delivered.packets, 1);
    assert_eq!(counters.b_to_a.link.delivered.packets, 1);
    assert_eq!(lab.trunk(0).link(Direction::AToB), LinkSpec::unlimited());
}

/// TCP moves bytes unchanged over a slow trunk, at every MTU and with every offload; packets have the trunk's size.
#[test]
fn bytes_cross_unchanged() {
    if skip("bytes_cross_unchanged") {
        return;
    }
    for (mtu, offload) in [
        (1500, Offload::None),
        (9000, Offload::None),
        (1500, Offload::Checksum),
        (1500, Offload::Segments),
    ] {
        let link = LinkSpec::rate_bits(400_000_000).queue(QueueLimit::Packets(1000));
        let lab = pair(TrunkSpec {
            mtu,
            offload,
            ..TrunkSpec::symmetric(link)
        });
        let target = v4(&lab, "receiver");
        let listen = || TcpListener::bind((target, 0));
        let listener = lab
            .in_network("receiver", listen)
            .expect("enter")
            .expect("bind");
        let address = listener.local_addr().expect("bound");
        let receiver = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accept");
            let mut received = Vec::new();
            stream.read_to_end(&mut received).expect("receive");
            received
        });
        let connect = || TcpStream::connect(address);
        let mut stream = lab
            .in_network("sender", connect)
            .expect("enter")
            .expect("connect");
        let sent: Vec<u8> = (0..2_000_000_u32)
            .flat_map(|n| (n.wrapping_mul(2_654_435_761)).to_le_bytes())
            .take(2_000_000)
            .collect();
        stream.write_all(&sent).expect("send");
        drop(stream);
        assert!(
            receiver.join().expect("receiver") == sent,
            "{mtu} {offload:?}"
        );
        let crossed = lab
            .trunk(0)
            .counters()
            .expect("counters")
            .a_to_b
            .link
            .delivered;
        assert!(crossed.bytes > 2_000_000, "{crossed:?}");
        let packets_min = 2_000_000 / u64::from(mtu);
        match offload {
            Offload::None | Offload::Checksum => {
                assert!(
                    crossed.packets > packets_min,
                    "{mtu} {offload:?}: {crossed:?}"
                );
            }
            Offload::Segments => assert!(crossed.packets < packets_min, "{crossed:?}"),
        }
    }
}

/// A packet larger than the trunk's MTU does not cross in one piece: the kernel refuses it where it may not be cut.
#[test]
fn the_mtu_holds() {
    if skip("the_mtu_holds") {
        return;
    }
    let lab = pair(TrunkSpec::default().mtu(9000));
    let (a, b, target) = sockets(&lab, "sender", "receiver");
    let mut buffer = vec![0; 20_000];
    a.send_to(&buffer[..8972], target).expect("exactly an MTU");
    assert_eq!(b.recv_from(&mut buffer).expect("it arrives").0, 8972);
    assert_eq!(
        settled(&lab, 1).link.delivered,
        Tally {
            packets: 1,
            bytes: 9000
        }
    );
    a.send_to(&buffer[..8973], target).expect("cut in two");
    assert_eq!(b.recv_from(&mut buffer).expect("it arrives").0, 8973);
    assert_eq!(settled(&lab, 3).link.delivered.packets, 3);
}

/// A burst into a slow link with room for 10 packets: at least 10 cross, the rest is dropped and counted, and the
/// queue was never longer.
#[test]
fn drop_tail() {
    if skip("drop_tail") {
        return;
    }
    // A packet takes 80 ms: the burst is over long before the second has left.
    let link = LinkSpec::rate_bits(100_000).queue(QueueLimit::Packets(10));
    let lab = pair(TrunkSpec {
        a_to_b: link,
        ..TrunkSpec::default()
    });
    let (a, b, target) = sockets(&lab, "sender", "receiver");
    for _ in 0..200 {
        a.send_to(&[0; 972], target).expect("send");
    }
    let counters = settled(&lab, 200);
    let (into, out) = sums(&counters);
    assert_eq!((into, out), (200, 200), "{counters:?}");
    assert_eq!(counters.link.queue_packets_max, 10);
    assert_eq!(counters.link.queue_bytes_max, 10_000);
    assert!(
        counters.link.delivered.packets >= 10 && counters.link.dropped_queue.packets > 0,
        "{counters:?}"
    );
    assert_eq!(
        counters.link.delivered.bytes,
        counters.link.delivered.packets * (972 + HEADERS)
    );
    let mut buffer = [0; 1500];
    for _ in 0..counters.link.delivered.packets {
        assert_eq!(
            b.recv_from(&mut buffer)
                .expect("what was delivered arrives")
                .0,
            972
        );
    }
}

/// Of 20000 datagrams 5 % are lost, within five standard errors, and those that are not arrive.
#[test]
fn random_loss() {
    if skip("random_loss") {
        return;
    }
    let share = 0.05;
    let lab = pair(TrunkSpec {
        a_to_b: LinkSpec::unlimited().loss(Loss::independent(share)),
        ..TrunkSpec::default()
    });
    let (a, b, target) = sockets(&lab, "sender", "receiver");
    let count = 20_000;
    let mut received = 0;
    let mut buffer = [0; 64];
    b.set_nonblocking(true).expect("non-blocking");
    for sent in 1..=count {
        a.send_to(&[0; 20], target).expect("send");
        // The receiver's socket, which has room for a few hundred, must not overflow: that would be another loss.
        if sent % 200 == 0 {
            let delivered = settled(&lab, sent).link.delivered.packets;
            wait_until("what was delivered has arrived", || {
                received += u64::from(b.recv_from(&mut buffer).is_ok());
                received == delivered
            });
        }
    }
    let counters = settled(&lab, count);
    assert_eq!(counters.link.offered.packets, count, "{counters:?}");
    assert_eq!(sums(&counters), (count, count));
    assert_eq!(counters.link.delivered.packets, received);
    let lost = counters.link.dropped_loss.packets as f64;
    let (mean, sigma) = (
        count as f64 * share,
        (count as f64 * share * (1.0 - share)).sqrt(),
    );
    assert!((lost - mean).abs() < 5.0 * sigma, "{lost} of {count}");
}
