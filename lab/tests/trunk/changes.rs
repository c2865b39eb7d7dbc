//! What trunks and hosts are told, before and while they run.

use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use ropewalk_lab::trunk::{self, Direction, LinkSpec, Loss, TrunkSpec};
use ropewalk_lab::{HostSpec, LabBuilder, NicSpec, Topology};

use crate::PROGRAM;
use crate::common::{output, skip};
use crate::nets::{delay, pair, round_trip, settled, sockets, sums};

/// In a black hole everything vanishes, and a datagram sent after it arrives; nobody hears of either.
#[test]
fn blackhole_and_return() {
    if skip("blackhole_and_return") {
        return;
    }
    let lab = pair(TrunkSpec::symmetric(delay(1)));
    let (a, b, target) = sockets(&lab, "sender", "receiver");
    lab.trunk(0)
        .change(&[Direction::AToB], "blackhole=on")
        .expect("change");
    for _ in 0..5 {
        a.send_to(b"lost", target).expect("nothing is noticed");
    }
    assert_eq!(settled(&lab, 5).link.dropped_blackhole.packets, 5);
    lab.trunk(0)
        .change(&[Direction::AToB], "blackhole=off")
        .expect("change");
    a.send_to(b"back", target).expect("send");
    let mut buffer = [0; 64];
    let (len, _) = b.recv_from(&mut buffer).expect("it arrives");
    assert_eq!(&buffer[..len], b"back", "the first thing to arrive");
    assert_eq!(sums(&settled(&lab, 6)), (6, 6));
}

/// A live change holds for what is sent after it, and a wrong one is refused in words and changes nothing.
#[test]
fn live_changes() {
    if skip("live_changes") {
        return;
    }
    let lab = pair(TrunkSpec::default());
    let trunk = lab.trunk(0);
    let (a, b, _) = sockets(&lab, "sender", "receiver");
    round_trip(&a, &b);
    trunk
        .change(&Direction::BOTH, "delay=25ms rate=10Mbit")
        .expect("change");
    assert!(round_trip(&a, &b) >= Duration::from_millis(50));
    let before = trunk.link(Direction::BToA);
    assert_eq!(before.bits_per_second, Some(10_000_000));
    let error = trunk
        .change(&Direction::BOTH, "delay=1ms rate=fast")
        .expect_err("refused");
    assert!(error.to_string().contains("rate=50Mbit"), "{error}");
    assert_eq!(trunk.link(Direction::BToA), before);
    trunk.reset_counters().expect("reset");
    let counters = trunk.counters().expect("counters").a_to_b;
    assert_eq!(
        (counters.link.offered.packets, counters.lateness.packets),
        (0, 0)
    );
}

/// Other programs change and read the trunk through its socket; nonsense is answered with what would be understood.
#[test]
fn control_socket() {
    if skip("control_socket") {
        return;
    }
    let name = format!("ropewalk-trunk-test-{}", std::process::id());
    let lab = pair(TrunkSpec::default().control(&name));
    trunk::ask(&name, "set a-to-b delay=40ms loss=1%/8").expect("change");
    let link = lab.trunk(0).link(Direction::AToB);
    assert_eq!(
        (link.delay_microseconds, link.loss),
        (40_000, Loss::bursts(0.01, 8.0))
    );
    assert_eq!(lab.trunk(0).link(Direction::BToA), LinkSpec::unlimited());
    let counters = trunk::ask(&name, "counters").expect("counters");
    assert!(counters.contains("\"dropped_queue\":{"), "{counters}");
    for (request, word) in [
        ("fly", "counters"),
        ("set north rate=1Mbit", "a-to-b"),
        ("set both rate=x", "rate=50Mbit"),
    ] {
        let error = trunk::ask(&name, request).expect_err("refused").to_string();
        assert!(error.contains(word), "{error}");
    }
    let shown = output(Command::new(PROGRAM).args(["trunk", &name, "show"]));
    assert!(shown.contains("\"delay_microseconds\":40000"), "{shown}");
    drop(lab);
    assert!(!trunk::serves(&name), "the socket goes with the trunk");
}

/// A contradiction is refused before anything is made, and names the trunk.
#[test]
fn contradictions() {
    if skip("contradictions") {
        return;
    }
    let build = |trunk| {
        LabBuilder::new()
            .host(HostSpec::new("a").nic(NicSpec::uncapped()))
            .trunk(trunk)
            .build()
            .expect_err("refused")
            .to_string()
    };
    let error = build(TrunkSpec::default().mtu(100));
    assert!(error.contains("trunk0") && error.contains("100"), "{error}");
    let error = build(TrunkSpec::symmetric(
        LinkSpec::unlimited().loss(Loss::independent(2.0)),
    ));
    assert!(error.contains("trunk0: a_to_b"), "{error}");
}

/// Hosts have the congestion control and windows that they were given.
#[test]
fn settings_of_hosts() {
    if skip("settings_of_hosts") {
        return;
    }
    let mut topology = Topology::pair_over(TrunkSpec::default());
    topology.congestion_control = Some("cubic".into());
    topology.hosts[0] = topology.hosts[0].clone().congestion_control("reno");
    let lab = LabBuilder::from(topology).build().expect("a lab");
    let read = |host: &str, name: &str| {
        output(
            lab.command(host, "cat")
                .arg(format!("/proc/sys/net/ipv4/{name}")),
        )
        .trim()
        .to_owned()
    };
    for (host, other, control) in [
        ("sender", "receiver", "reno"),
        ("receiver", "sender", "cubic"),
    ] {
        for like in lab.addresses(other) {
            let listen = || TcpListener::bind((like, 0));
            let listener = lab.in_network(other, listen).expect("enter").expect("bind");
            let address = listener.local_addr().expect("bound");
            let connect = || TcpStream::connect(address);
            let stream = lab
                .in_network(host, connect)
                .expect("enter")
                .expect("connect");
            assert_eq!(control_of(&stream), control, "{host} to {like}");
        }
    }
    assert_eq!(read("sender", "tcp_no_metrics_save"), "1");
    assert!(read("sender", "tcp_wmem").ends_with("67108864"));
}

/// The congestion control of a connection, as its socket says.
fn control_of(stream: &TcpStream) -> String {
    rustix::net::sockopt::tcp_congestion(stream).expect("a TCP socket")
}
