//! What a host is: its own network, names, files; and what hosts have in common.

mod common;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};

use common::{output, skip};
use ropewalk_lab::{Address, Burst, HostSpec, Lab, LabBuilder, LabError, NicSpec, Topology};

fn pair() -> Lab {
    LabBuilder::from(Topology::uniform(2, Some(100_000_000)))
        .build()
        .expect("a lab of two hosts")
}

/// Sends `bytes` from one host to an address of another, over TCP, from a chosen source address.
fn transfer(lab: &Lab, from: &str, source: IpAddr, to: &str, target: IpAddr, bytes: usize) {
    let listener = lab
        .in_network(to, || TcpListener::bind((target, 0)))
        .expect("enter")
        .expect("bind");
    let address = listener.local_addr().expect("bound");
    let receiver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accept");
        std::io::copy(&mut stream, &mut std::io::sink()).expect("receive")
    });
    // The standard library cannot bind before it connects: let the host's routing choose, and check.
    let mut stream = lab
        .in_network(from, || TcpStream::connect(address))
        .expect("enter")
        .expect("connect");
    assert_eq!(stream.local_addr().expect("connected").ip(), source);
    stream.write_all(&vec![7; bytes]).expect("send");
    drop(stream);
    assert_eq!(receiver.join().expect("receiver"), bytes as u64);
}

/// Name, private directories and host table of a host; the machine's are untouched.
#[test]
fn a_host_has_its_own_names_and_files() {
    if skip("a_host_has_its_own_names_and_files") {
        return;
    }
    let lab = pair();
    assert_eq!(output(lab.command("h1", "hostname").arg("-s")).trim(), "h1");
    for directory in ["/tmp", "/data", "/run", "/dev/shm", "/root/.ssh"] {
        let path = format!("{directory}/ropewalk-lab-test-{}", std::process::id());
        output(lab.command("h1", "touch").arg(&path));
        assert!(
            lab.path_in("h1", &path).exists(),
            "{path} is where path_in says"
        );
        assert!(!lab.path_in("h2", &path).exists(), "{path} is private");
        assert!(
            !std::path::Path::new(&path).exists(),
            "{path} is not on the machine"
        );
    }
    let found = output(lab.command("h1", "getent").args(["ahostsv4", "h2"]));
    assert!(found.starts_with(&lab.address("h2").to_string()), "{found}");
    let unknown = lab
        .command("h1", "getent")
        .args(["hosts", "elsewhere.example"])
        .status()
        .expect("getent");
    assert!(
        !unknown.success(),
        "the machine's name servers are out of reach"
    );
    assert_eq!(
        output(lab.command("h1", "ls").arg("/sys/class/net"))
            .split_whitespace()
            .collect::<Vec<_>>(),
        ["eth0", "lo"]
    );
}

/// A program and its directory are found at the caller's path; directories that a host lacks become `/`.
#[test]
fn a_command_keeps_its_directory_where_it_can() {
    if skip("a_command_keeps_its_directory_where_it_can") {
        return;
    }
    let lab = pair();
    assert_eq!(
        output(lab.command("h1", "pwd").current_dir("/usr")).trim(),
        "/usr"
    );
    let private = tempfile::tempdir().expect("a directory below /tmp");
    assert_eq!(
        output(
            lab.command("h1", "pwd")
                .current_dir(private.path())
                .env_remove("PWD")
        )
        .trim(),
        "/"
    );
    let own = std::env::current_exe().expect("a path");
    assert!(
        lab.path_in("h1", &own).exists(),
        "this program is visible wherever it was built"
    );
}

/// The writers and readers of the CEP paper's Figure 2 resolve, and each reaches each, IPv4 and IPv6.
#[test]
fn hosts_of_figure_2_reach_each_other() {
    if skip("hosts_of_figure_2_reach_each_other") {
        return;
    }
    let names = [
        "node1",
        "node2",
        "192.168.3.4",
        "192.168.3.5",
        "node5",
        "node6",
        "node7",
    ];
    let lab = LabBuilder::new()
        .hosts(names.map(HostSpec::new))
        .build()
        .expect("seven hosts");
    assert_eq!(lab.address("192.168.3.4").to_string(), "192.168.3.4");
    for to in names {
        let listeners: Vec<TcpListener> = lab
            .in_network(to, || {
                lab.addresses(to)
                    .into_iter()
                    .map(|address| TcpListener::bind((address, 0)).expect("bind"))
                    .collect()
            })
            .expect("enter");
        for from in names {
            for listener in &listeners {
                let address = listener.local_addr().expect("bound");
                let mut stream = lab
                    .in_network(from, || TcpStream::connect(address))
                    .expect("enter")
                    .expect("connect");
                stream.write_all(b"x").expect("send");
                let mut byte = [0];
                listener
                    .accept()
                    .expect("accept")
                    .0
                    .read_exact(&mut byte)
                    .expect("receive");
            }
            let resolved = output(lab.command(from, "getent").args(["ahostsv4", to]));
            assert!(
                resolved.starts_with(&lab.address(to).to_string()),
                "{from} resolves {to}: {resolved}"
            );
        }
        assert!(
            output(lab.command(to, "getent").args(["ahostsv4", "localhost"]))
                .starts_with("127.0.0.1")
        );
    }
}

/// Each interface has its own cap, and the source address decides which one a connection uses.
#[test]
fn several_interfaces_carry_their_own_traffic() {
    if skip("several_interfaces_carry_their_own_traffic") {
        return;
    }
    let host = |name| {
        HostSpec::new(name)
            .nic(NicSpec::rate_bits(100_000_000))
            .nic(NicSpec::rate_bits(200_000_000))
    };
    // The third interface shares the first one's rail: only source rules tell the two apart.
    let lab = LabBuilder::new()
        .host(host("a").nic(NicSpec::rate_bits(50_000_000).rail(0)))
        .host(host("b"))
        .build()
        .expect("two hosts");
    const BYTES: usize = 200_000;
    let (a, b) = (lab.nics("a"), lab.nics("b"));
    transfer(&lab, "a", a[1].ipv4.into(), "b", b[1].ipv4.into(), BYTES);
    let carried = |nic| lab.counters("a", nic).expect("counters").tx_bytes;
    assert!(carried(1) > BYTES as u64);
    assert!(
        carried(0) < 10_000 && carried(2) < 10_000,
        "{} {}",
        carried(0),
        carried(2)
    );
    for (nic, info) in a.iter().enumerate() {
        let target = b[usize::from(info.rail)].ipv4;
        let route = output(lab.command("a", "ip").args([
            "route",
            "get",
            &target.to_string(),
            "from",
            &info.ipv4.to_string(),
        ]));
        assert!(route.contains(&format!("dev eth{nic} ")), "{route}");
    }
    // From its own address the third interface sends by itself, though the first is on the same rail.
    let listener = lab
        .in_network("b", || TcpListener::bind((b[0].ipv4, 0)))
        .expect("enter")
        .expect("bind");
    let target = listener.local_addr().expect("bound");
    let mut stream = lab
        .in_network("a", || connect_from(a[2].ipv4.into(), target))
        .expect("enter");
    let (mut accepted, _) = listener.accept().expect("accept");
    stream.write_all(&[1; 50_000]).expect("send");
    accepted.read_exact(&mut [0; 50_000]).expect("receive");
    assert!(
        carried(2) > 50_000 && carried(0) < 10_000,
        "{} {}",
        carried(0),
        carried(2)
    );
}

fn connect_from(source: IpAddr, target: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("socket");
    bind(&socket, &SocketAddr::new(source, 0)).expect("bind");
    connect(&socket, &target).expect("connect");
    socket.into()
}

/// A cap cannot be passed by: no socket but an IP socket reaches another host, no loopback is shared, the only
/// way out is the capped interface, and both directions of it have the bucket.
#[test]
fn caps_cannot_be_bypassed() {
    if skip("caps_cannot_be_bypassed") {
        return;
    }
    let lab = pair();
    let name = UnixAddr::from_abstract_name(b"ropewalk-lab-test").expect("a name");
    let _listener = lab
        .in_network("h2", || UnixListener::bind_addr(&name))
        .expect("enter")
        .expect("bind");
    lab.in_network("h2", || UnixStream::connect_addr(&name))
        .expect("enter")
        .expect("the same host connects");
    let across = lab
        .in_network("h1", || UnixStream::connect_addr(&name))
        .expect("enter");
    assert!(across.is_err(), "an abstract socket crossed hosts");
    assert!(
        UnixStream::connect_addr(&name).is_err(),
        "an abstract socket crossed to the machine"
    );

    let loopback = lab
        .in_network("h2", || TcpListener::bind("127.0.0.1:0"))
        .expect("enter")
        .expect("bind");
    let loopback = loopback.local_addr().expect("bound");
    let across = lab
        .in_network("h1", || TcpStream::connect(loopback))
        .expect("enter");
    assert!(across.is_err(), "a loopback is shared");

    for (from, to) in [("h1", "h2"), ("h2", "h1")] {
        for address in lab.addresses(to) {
            let route =
                output(
                    lab.command(from, "ip")
                        .args(["route", "get", &address.to_string()]),
                );
            assert!(route.contains(" dev eth0 "), "{route}");
        }
        let links = output(lab.command(from, "ip").args(["-o", "link", "show", "up"]));
        assert_eq!(links.lines().count(), 2, "only lo and eth0 are up: {links}");
        let buckets = output(
            lab.command(from, "tc")
                .args(["qdisc", "show", "dev", "eth0"]),
        );
        assert!(
            buckets.contains("tbf") && buckets.contains("rate 100Mbit"),
            "{buckets}"
        );
    }
    let outside = lab
        .in_network("h1", || TcpStream::connect("192.0.2.1:9"))
        .expect("enter");
    assert_eq!(
        outside.expect_err("no route").kind(),
        std::io::ErrorKind::NetworkUnreachable
    );
}

/// Bytes over a capped interface are held back by its bucket and all of them pass the counted interfaces.
#[test]
fn a_capped_transfer_is_shaped_and_counted() {
    if skip("a_capped_transfer_is_shaped_and_counted") {
        return;
    }
    let lab = pair();
    const BYTES: usize = 4_000_000;
    transfer(
        &lab,
        "h1",
        lab.address("h1"),
        "h2",
        lab.address("h2"),
        BYTES,
    );
    let (sent, received) = (
        lab.counters("h1", 0).expect("counters").tx_bytes,
        lab.counters("h2", 0).expect("counters").rx_bytes,
    );
    // Headers are 66 bytes of 1514.
    let most = (BYTES as f64 * 1.1) as u64;
    assert!((BYTES as u64..most).contains(&sent), "{sent}");
    assert!((BYTES as u64..most).contains(&received), "{received}");
    let bucket = output(
        lab.command("h1", "tc")
            .args(["-s", "-j", "qdisc", "show", "dev", "eth0"]),
    );
    let bucket: serde_json::Value = serde_json::from_str(&bucket).expect("JSON of tc");
    assert!(
        bucket[0]["overlimits"].as_u64() > Some(100),
        "the bucket never held a packet back: {bucket}"
    );
}

/// A directory of the machine is one file system for the hosts that mount it, and absent on the others.
#[test]
fn a_shared_directory_is_shared() {
    if skip("a_shared_directory_is_shared") {
        return;
    }
    let machine = tempfile::tempdir().expect("a directory");
    let lab = LabBuilder::from(Topology::uniform(3, None))
        .shared_dir(machine.path(), "/pool", &["h1", "h2"])
        .build()
        .expect("three hosts");
    output(
        lab.command("h1", "sh")
            .args(["-c", "echo hello > /pool/note"]),
    );
    assert_eq!(
        output(lab.command("h2", "cat").arg("/pool/note")).trim(),
        "hello"
    );
    assert!(machine.path().join("note").exists());
    assert!(!lab.path_in("h3", "/pool").exists());
    assert!(
        !std::path::Path::new("/pool").exists(),
        "no mount point was made on the machine"
    );
}

/// A host's small private directory fills up; its neighbour's does not.
#[test]
fn a_size_limit_is_per_host() {
    if skip("a_size_limit_is_per_host") {
        return;
    }
    let lab = LabBuilder::new()
        .host(HostSpec::new("small").tmpfs_size("data", 64 * 1024))
        .host(HostSpec::new("big"))
        .build()
        .expect("two hosts");
    let full =
        std::fs::write(lab.path_in("small", "/data/x"), vec![0; 1 << 20]).expect_err("no space");
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    std::fs::write(lab.path_in("big", "/data/x"), vec![0; 1 << 20]).expect("space");
}

/// Settings reach every host's kernel, and one that the kernel refuses names the host and the value.
#[test]
fn network_settings() {
    if skip("network_settings") {
        return;
    }
    let two = || LabBuilder::from(Topology::uniform(2, None));
    let lab = two()
        .congestion_control("reno")
        .sysctl("net.ipv4.tcp_wmem", "4096 65536 33554432")
        .build()
        .expect("a lab");
    for host in lab.hosts() {
        let read = |name: &str| {
            output(
                lab.command(host, "cat")
                    .arg(format!("/proc/sys/net/ipv4/{name}")),
            )
        };
        assert_eq!(read("tcp_congestion_control").trim(), "reno");
        assert_eq!(read("tcp_wmem").split_whitespace().last(), Some("33554432"));
        assert_eq!(read("tcp_no_metrics_save").trim(), "1");
    }
    let error = two()
        .congestion_control("no-such-control")
        .build()
        .expect_err("refused");
    assert!(
        matches!(&error, LabError::Setup { host, .. } if host.starts_with('h')),
        "{error}"
    );
    assert!(error.to_string().contains("no-such-control"), "{error}");
}

/// Explicit bucket depth and addresses arrive in the kernel as written.
#[test]
fn explicit_interface_settings() {
    if skip("explicit_interface_settings") {
        return;
    }
    let address: Address = "172.20.1.9/20".parse().expect("an address");
    let nic = NicSpec::rate_bits(20_000_000)
        .burst(Burst::Whole)
        .address(address);
    let lab = LabBuilder::new()
        .host(HostSpec::new("a").nic(nic))
        .host(HostSpec::new("b"))
        .build()
        .expect("two hosts");
    let bucket = output(
        lab.command("a", "tc")
            .args(["qdisc", "show", "dev", "eth0"]),
    );
    assert!(
        bucket.contains("rate 20Mbit") && bucket.contains("burst 70000b"),
        "{bucket}"
    );
    assert!(output(lab.command("a", "ip").args(["-o", "addr"])).contains("172.20.1.9/20"));
}
