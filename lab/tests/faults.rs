//! Rates change and links fail on command, and come back.

mod common;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::Duration;

use common::{output, skip, wait_until};
use ropewalk_lab::{HostSpec, Lab, LabBuilder, LabError, NicSpec, Topology};

fn pair() -> Lab {
    LabBuilder::from(Topology::uniform(2, Some(100_000_000)))
        .build()
        .expect("a lab of two hosts")
}

/// Whether a connection from `h1` to this address comes about and carries a byte.
fn reaches(lab: &Lab, address: IpAddr, patience: Duration) -> bool {
    let Ok(listener) = lab
        .in_network("h2", || TcpListener::bind((address, 0)))
        .expect("enter")
    else {
        return false;
    };
    let target = listener.local_addr().expect("bound");
    let Ok(mut stream) = lab
        .in_network("h1", || TcpStream::connect_timeout(&target, patience))
        .expect("enter")
    else {
        return false;
    };
    stream.write_all(b"x").is_ok()
        && listener
            .accept()
            .is_ok_and(|(mut accepted, _)| accepted.read_exact(&mut [0]).is_ok())
}

/// How long to wait for a connection that must not come about.
const BRIEF: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(20);

/// A black hole swallows everything without either end seeing a change, until it is lifted.
#[test]
fn blackhole() {
    if skip("blackhole") {
        return;
    }
    let lab = pair();
    let address = lab.address("h2");
    assert!(reaches(&lab, address, LONG));
    lab.blackhole("h2", 0, true).expect("on");
    assert!(!reaches(&lab, address, BRIEF));
    for host in ["h1", "h2"] {
        assert!(
            output(
                lab.command(host, "ip")
                    .args(["-br", "link", "show", "eth0"])
            )
            .contains(" UP ")
        );
    }
    lab.blackhole("h2", 0, false).expect("off");
    assert!(reaches(&lab, address, LONG));
}

/// An interface that goes down takes its addresses' routes with it; bringing it up restores all of them.
#[test]
fn link_down_and_up() {
    if skip("link_down_and_up") {
        return;
    }
    let two = |name| {
        HostSpec::new(name)
            .nic(NicSpec::rate_bits(100_000_000))
            .nic(NicSpec::rate_bits(100_000_000))
    };
    let lab = LabBuilder::new()
        .host(two("h1"))
        .host(two("h2"))
        .host(HostSpec::new("192.168.3.4"))
        .build()
        .expect("a lab");
    let routes = || {
        let all = output(
            lab.command("h1", "ip")
                .args(["route", "show", "table", "all"]),
        );
        let all6 = output(
            lab.command("h1", "ip")
                .args(["-6", "route", "show", "table", "all"]),
        );
        let mut lines: Vec<String> = all
            .lines()
            .chain(all6.lines())
            .filter(|line| !line.contains("fe80") && !line.contains("multicast"))
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines
    };
    let (before, address) = (routes(), lab.addresses("h2")[0]);
    lab.link_down("h1", 0).expect("down");
    assert!(!reaches(&lab, address, BRIEF));
    lab.link_up("h1", 0).expect("up");
    wait_until("the routes are back", || routes() == before);
    for address in lab.addresses("h2") {
        assert!(reaches(&lab, address, LONG), "{address}");
    }
}

/// A pulled cable shows as lost carrier at the host itself.
#[test]
fn unplugged() {
    if skip("unplugged") {
        return;
    }
    let lab = pair();
    let carrier = || {
        output(lab.command("h1", "cat").arg("/sys/class/net/eth0/carrier"))
            .trim()
            .to_owned()
    };
    wait_until("there is carrier", || carrier() == "1");
    lab.plug("h1", 0, false).expect("out");
    wait_until("carrier is lost", || carrier() == "0");
    lab.plug("h1", 0, true).expect("in");
    wait_until("there is carrier again", || carrier() == "1");
    assert!(reaches(&lab, lab.address("h2"), LONG));
}

/// A deleted address is unreachable and gets its own routes back when it is added again.
#[test]
fn address_deleted_and_added() {
    if skip("address_deleted_and_added") {
        return;
    }
    let lab = pair();
    for address in lab.addresses("h2") {
        lab.delete_address("h2", 0, address).expect("deleted");
        assert!(!reaches(&lab, address, BRIEF), "{address}");
        let again = lab
            .delete_address("h2", 0, address)
            .expect_err("it is gone");
        assert!(again.to_string().contains(&address.to_string()), "{again}");
        lab.add_address("h2", 0, address).expect("added");
        assert!(reaches(&lab, address, LONG), "{address}");
    }
}

/// A new rate replaces the old one on both ends, and caps an interface that had none.
#[test]
fn rate_changes() {
    if skip("rate_changes") {
        return;
    }
    let lab = LabBuilder::new()
        .host(HostSpec::new("a").nic(NicSpec::rate_bits(100_000_000)))
        .host(HostSpec::new("b"))
        .build()
        .expect("a lab");
    for host in ["a", "b"] {
        lab.set_rate(host, 0, 20_000_000).expect("a new rate");
        let buckets = output(
            lab.command(host, "tc")
                .args(["qdisc", "show", "dev", "eth0"]),
        );
        assert!(
            buckets.contains("rate 20Mbit") && !buckets.contains("100Mbit"),
            "{buckets}"
        );
    }
}

/// A busy link goes on at its new rate: nothing that was queued under the old one blocks it.
#[test]
fn a_busy_link_slows() {
    if skip("a_busy_link_slows") {
        return;
    }
    let lab = LabBuilder::new()
        .host(HostSpec::new("a").nic(NicSpec::rate_bits(200_000_000)))
        .host(HostSpec::new("b"))
        .build()
        .expect("a lab");
    let listen = || TcpListener::bind((lab.address("b"), 0));
    let listener = lab.in_network("b", listen).expect("enter").expect("bound");
    let target = listener.local_addr().expect("bound");
    let connect = || TcpStream::connect(target);
    let mut sending = lab
        .in_network("a", connect)
        .expect("enter")
        .expect("through");
    let (mut receiving, _) = listener.accept().expect("accepted");
    // Ends when the other side is closed.
    let sender = std::thread::spawn(move || while sending.write_all(&[0; 1 << 16]).is_ok() {});
    receiving.set_read_timeout(Some(LONG)).expect("set");
    let mut read = |bytes: usize| receiving.read_exact(&mut vec![0; bytes]);
    read(5_000_000).expect("at 200 Mbit/s");
    for rate in [20_000_000, 5_000_000, 100_000_000] {
        lab.set_rate("a", 0, rate).expect("a new rate");
        // More than buffers hold, which were just emptied.
        read(2_000_000).unwrap_or_else(|error| panic!("at {rate} bit/s: {error}"));
    }
    drop(receiving);
    sender.join().expect("the sender ends");
}

/// Naming what is not there says what there is.
#[test]
fn unknown_names() {
    if skip("unknown_names") {
        return;
    }
    let lab = pair();
    let host = lab.set_rate("h9", 0, 1_000_000).expect_err("no such host");
    assert!(
        matches!(host, LabError::UnknownHost { .. }) && host.to_string().contains("h1, h2"),
        "{host}"
    );
    let nic = lab.counters("h1", 3).expect_err("no such interface");
    assert!(
        matches!(
            nic,
            LabError::UnknownNic {
                nic: 3,
                count: 1,
                ..
            }
        ),
        "{nic}"
    );
}
