//! Labs with a trunk, sockets on both sides of it, and what it counted.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use ropewalk_lab::trunk::{ClusterSpec, DirectionCounters, LinkSpec, Tally, TrunkSpec};
use ropewalk_lab::{Lab, LabBuilder, Topology};

use crate::common::wait_until;

/// IPv4 and UDP headers.
pub const HEADERS: u64 = 28;
/// Far longer than any answer takes; a test that waits for it fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn pair(trunk: TrunkSpec) -> Lab {
    LabBuilder::from(Topology::pair_over(trunk))
        .build()
        .expect("a lab of two hosts and a trunk")
}

pub fn clusters(hosts: usize, trunk: TrunkSpec) -> Lab {
    let spec = ClusterSpec {
        hosts: [hosts; 2],
        access_bits_per_second: Some(100_000_000),
        trunk,
    };
    LabBuilder::from(Topology::clusters(&spec))
        .build()
        .expect("a lab of two clusters")
}

pub fn delay(milliseconds: u64) -> LinkSpec {
    LinkSpec::unlimited().delay(Duration::from_millis(milliseconds))
}

/// A UDP socket in a host, on its address of the family of `like`.
pub fn socket(lab: &Lab, host: &str, like: IpAddr) -> UdpSocket {
    let mut own = lab.addresses(host).into_iter();
    let own = own
        .find(|ip| ip.is_ipv4() == like.is_ipv4())
        .expect("an address");
    let bind = || UdpSocket::bind((own, 0));
    let socket = lab.in_network(host, bind).expect("enter").expect("bind");
    socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
    socket
}

pub fn v4(lab: &Lab, host: &str) -> IpAddr {
    lab.address(host)
}

/// Sockets of two hosts over IPv4, and the second one's address.
pub fn sockets(lab: &Lab, from: &str, to: &str) -> (UdpSocket, UdpSocket, SocketAddr) {
    let sender = socket(lab, from, v4(lab, from));
    let receiver = socket(lab, to, v4(lab, to));
    let address = receiver.local_addr().expect("bound");
    (sender, receiver, address)
}

/// The time a datagram takes there and back.
pub fn round_trip(a: &UdpSocket, b: &UdpSocket) -> Duration {
    let mut buffer = [0; 64];
    let began = Instant::now();
    a.send_to(b"ping", b.local_addr().expect("bound"))
        .expect("send");
    let (len, from) = b.recv_from(&mut buffer).expect("it arrives");
    b.send_to(&buffer[..len], from).expect("send");
    let (len, _) = a.recv_from(&mut buffer).expect("the answer arrives");
    assert_eq!(&buffer[..len], b"ping");
    began.elapsed()
}

/// Packets in, and packets accounted for.
pub fn sums(c: &DirectionCounters) -> (u64, u64) {
    let sum = |tallies: &[Tally]| tallies.iter().map(|tally| tally.packets).sum();
    let out = [
        c.link.delivered,
        c.link.dropped_queue,
        c.link.dropped_loss,
        c.link.dropped_blackhole,
        c.link.held,
    ];
    (sum(&[c.link.offered, c.link.carried_over]), sum(&out))
}

/// Waits until the trunk holds nothing any more, and returns what crossed from A to B.
pub fn settled(lab: &Lab, offered: u64) -> DirectionCounters {
    let counters = || lab.trunk(0).counters().expect("counters").a_to_b;
    wait_until(
        "all that was sent has crossed the trunk or was dropped",
        || {
            let now = counters();
            now.link.offered.packets + now.dropped_kernel_packets >= offered
                && now.link.held.packets == 0
        },
    );
    counters()
}
