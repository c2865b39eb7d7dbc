//! A trunk between two rails: what crosses it, what is lost and counted, what is left of it.

mod common;

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{output, skip, wait_until};
use ropewalk_lab::trunk::{
    self, ClusterSpec, Direction, DirectionCounters, LinkSpec, Loss, Offload, QueueLimit, Tally,
    TrunkSpec,
};
use ropewalk_lab::{HostSpec, Lab, LabBuilder, NicSpec, Topology};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ropewalk-lab");
/// IPv4 and UDP headers.
const HEADERS: u64 = 28;
/// Far longer than any answer takes; a test that waits for it fails.
const PATIENCE: Duration = Duration::from_secs(20);

fn pair(trunk: TrunkSpec) -> Lab {
    LabBuilder::from(Topology::pair_over(trunk))
        .build()
        .expect("a lab of two hosts and a trunk")
}

fn clusters(hosts: usize, trunk: TrunkSpec) -> Lab {
    let spec = ClusterSpec {
        hosts: [hosts; 2],
        access_bits_per_second: Some(100_000_000),
        trunk,
    };
    LabBuilder::from(Topology::clusters(&spec))
        .build()
        .expect("a lab of two clusters")
}

fn delay(milliseconds: u64) -> LinkSpec {
    LinkSpec::unlimited().delay(Duration::from_millis(milliseconds))
}

/// A UDP socket in a host, on its address of the family of `like`.
fn socket(lab: &Lab, host: &str, like: IpAddr) -> UdpSocket {
    let mut own = lab.addresses(host).into_iter();
    let own = own
        .find(|ip| ip.is_ipv4() == like.is_ipv4())
        .expect("an address");
    let bind = || UdpSocket::bind((own, 0));
    let socket = lab.in_network(host, bind).expect("enter").expect("bind");
    socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
    socket
}

fn v4(lab: &Lab, host: &str) -> IpAddr {
    lab.address(host)
}

/// Sockets of two hosts over IPv4, and the second one's address.
fn sockets(lab: &Lab, from: &str, to: &str) -> (UdpSocket, UdpSocket, SocketAddr) {
    let sender = socket(lab, from, v4(lab, from));
    let receiver = socket(lab, to, v4(lab, to));
    let address = receiver.local_addr().expect("bound");
    (sender, receiver, address)
}

/// The time a datagram takes there and back.
fn round_trip(a: &UdpSocket, b: &UdpSocket) -> Duration {
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
fn sums(c: &DirectionCounters) -> (u64, u64) {
    let sum = |tallies: &[Tally]| tallies.iter().map(|tally| tally.packets).sum();
    let out = [
        c.delivered,
        c.dropped_queue,
        c.dropped_loss,
        c.dropped_blackhole,
        c.held,
    ];
    (sum(&[c.offered, c.carried_over]), sum(&out))
}

/// Waits until the trunk holds nothing any more, and returns what crossed from A to B.
fn settled(lab: &Lab, offered: u64) -> DirectionCounters {
    let counters = || lab.trunk(0).counters().expect("counters").a_to_b;
    wait_until(
        "all that was sent has crossed the trunk or was dropped",
        || {
            let now = counters();
            now.offered.packets + now.dropped_kernel_packets >= offered && now.held.packets == 0
        },
    );
    counters()
}

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
    assert_eq!(counters.a_to_b.delivered.packets, expected);
    assert_eq!(counters.b_to_a.delivered.packets, expected);
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
    assert_eq!(counters.a_to_b.delivered.packets, 1);
    assert_eq!(counters.b_to_a.delivered.packets, 1);
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
        let crossed = lab.trunk(0).counters().expect("counters").a_to_b.delivered;
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
        settled(&lab, 1).delivered,
        Tally {
            packets: 1,
            bytes: 9000
        }
    );
    a.send_to(&buffer[..8973], target).expect("cut in two");
    assert_eq!(b.recv_from(&mut buffer).expect("it arrives").0, 8973);
    assert_eq!(settled(&lab, 3).delivered.packets, 3);
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
    assert_eq!(counters.queue_packets_max, 10);
    assert_eq!(counters.queue_bytes_max, 10_000);
    assert!(
        counters.delivered.packets >= 10 && counters.dropped_queue.packets > 0,
        "{counters:?}"
    );
    assert_eq!(
        counters.delivered.bytes,
        counters.delivered.packets * (972 + HEADERS)
    );
    let mut buffer = [0; 1500];
    for _ in 0..counters.delivered.packets {
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
            let delivered = settled(&lab, sent).delivered.packets;
            wait_until("what was delivered has arrived", || {
                received += u64::from(b.recv_from(&mut buffer).is_ok());
                received == delivered
            });
        }
    }
    let counters = settled(&lab, count);
    assert_eq!(counters.offered.packets, count, "{counters:?}");
    assert_eq!(sums(&counters), (count, count));
    assert_eq!(counters.delivered.packets, received);
    let lost = counters.dropped_loss.packets as f64;
    let (mean, sigma) = (
        count as f64 * share,
        (count as f64 * share * (1.0 - share)).sqrt(),
    );
    assert!((lost - mean).abs() < 5.0 * sigma, "{lost} of {count}");
}

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
    assert_eq!(settled(&lab, 5).dropped_blackhole.packets, 5);
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
        (counters.offered.packets, counters.lateness.packets),
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

/// A relay whose memory is full says so, and the run does not count.
#[test]
fn validity() {
    if skip("validity") {
        return;
    }
    let lab = pair(TrunkSpec {
        a_to_b: delay(60_000),
        buffer_bytes: 1 << 20,
        ..TrunkSpec::default()
    });
    let trunk = lab.trunk(0);
    let is_full = || {
        let validity = trunk.validity().expect("validity");
        let full = |reason: &String| reason.contains("memory full");
        (validity.reasons.iter().any(full), validity.is_valid())
    };
    assert!(!is_full().0, "nothing has been sent");
    let (a, _b, target) = sockets(&lab, "sender", "receiver");
    for _ in 0..1000 {
        a.send_to(&[0; 20], target).expect("send");
    }
    wait_until("the relay's memory is full", || {
        let now = trunk.counters().expect("counters").a_to_b;
        now.offered.packets + now.dropped_buffer.packets >= 1000
    });
    assert_eq!(is_full(), (true, false));
}

/// What the kernel drops because the relay does not read in time is no loss of the link: it makes the run invalid.
#[test]
fn drops_beside_the_relay() {
    if skip("drops_beside_the_relay") {
        return;
    }
    let lab = pair(TrunkSpec {
        tick_microseconds: 100_000,
        ..TrunkSpec::default()
    });
    let device = ["link", "set", "trunk0", "txqueuelen", "10"];
    output(lab.command("sender", "ip").args(device));
    let (a, _b, target) = sockets(&lab, "sender", "receiver");
    let mut sent = 0;
    wait_until("a burst comes between two ticks", || {
        for _ in 0..100 {
            a.send_to(&[0; 20], target).expect("send");
        }
        sent += 100;
        let now = lab.trunk(0).counters().expect("counters").a_to_b;
        now.dropped_kernel_packets > 0
    });
    let counters = settled(&lab, sent);
    assert_eq!(
        counters.offered.packets + counters.dropped_kernel_packets,
        sent
    );
    assert_eq!(counters.delivered, counters.offered);
    let reasons = lab.trunk(0).validity().expect("validity").reasons;
    assert!(
        reasons
            .iter()
            .any(|reason| reason.contains("dropped by the kernel")),
        "{reasons:?}"
    );
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

fn alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Closing removes the trunk's devices even from networks that somebody else keeps alive: the relay has let them go.
#[test]
fn nothing_is_left_after_close() {
    if skip("nothing_is_left_after_close") {
        return;
    }
    let lab = clusters(1, TrunkSpec::symmetric(delay(50)));
    let (a, _b, target) = sockets(&lab, "a1", "b1");
    a.send_to(b"still on the way", target).expect("send");
    let routers = ["trunk0-a", "trunk0-b"].map(|host| lab.pid(host));
    let networks =
        routers.map(|pid| File::open(format!("/proc/{pid}/ns/net")).expect("its network"));
    for network in &networks {
        assert!(devices(network).contains("trunk0:"));
    }
    let holders = ["a1", "b1"].map(|host| lab.pid(host));
    lab.close().expect("a clean end");
    assert!(!holders.into_iter().chain(routers).any(alive));
    for network in &networks {
        wait_until("the device is gone", || {
            !devices(network).contains("trunk0:")
        });
    }
}

/// What `net/dev` lists in a network.
fn devices(network: &File) -> String {
    std::thread::scope(|scope| {
        let look = || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(network.as_fd(), kind).expect("enter");
            fs::read_to_string("/proc/thread-self/net/dev").expect("devices")
        };
        scope.spawn(look).join().expect("a look")
    })
}

/// Starts `ropewalk-lab up` with two clusters and a trunk, and reads their holders' process numbers.
fn up() -> (Child, Vec<i32>) {
    let topology = Topology::clusters(&ClusterSpec {
        hosts: [1, 1],
        access_bits_per_second: None,
        trunk: TrunkSpec::symmetric(delay(1)),
    });
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), serde_json::to_string(&topology).expect("JSON")).expect("written");
    let mut owner = Command::new(PROGRAM)
        .arg("up")
        .arg(file.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("ropewalk-lab starts");
    let lines = BufReader::new(owner.stdout.take().expect("piped"))
        .lines()
        .take(2);
    let pids = lines.map(|line| {
        let line = line.expect("text");
        line.split_whitespace()
            .nth(1)
            .expect("pid")
            .parse()
            .expect("number")
    });
    let pids = pids.collect();
    (owner, pids)
}

/// After kill -9 of the owner, the networks of its hosts and routers are gone with their devices.
#[test]
fn nothing_is_left_after_kill_9() {
    if skip("nothing_is_left_after_kill_9") {
        return;
    }
    let (mut owner, holders) = up();
    let device = |pid: i32| fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap_or_default();
    let routers: Vec<i32> = fs::read_dir("/proc")
        .expect("proc")
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&pid| {
            let parent = |pid: i32| {
                let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
                status
                    .lines()
                    .find_map(|line| line.strip_prefix("PPid:\t").map(str::to_owned))
            };
            device(pid).contains("trunk0:") && parent(pid) == parent(holders[0])
        })
        .collect();
    assert_eq!(routers.len(), 2, "a router on each side");
    let network = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let networks: Vec<_> = routers.iter().filter_map(|&pid| network(pid)).collect();
    owner.kill().expect("kill -9");
    owner.wait().expect("reaped");
    wait_until("all processes of the lab are gone", || {
        !holders.iter().chain(&routers).any(|&pid| alive(pid))
    });
    wait_until("their networks are gone", || {
        let processes = fs::read_dir("/proc").expect("proc").flatten();
        let links = processes.filter_map(|entry| fs::read_link(entry.path().join("ns/net")).ok());
        !links.into_iter().any(|link| networks.contains(&link))
    });
}
