//! What happens to interfaces of this host, in a network namespace of the test's own. Needs the right to make one.

use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_lane::links::Links;
use ropewalk_message::{CutOff, Listener, MessageSocket, Options};

/// Longest time that anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.unwrap().success(), "ip {arguments}");
}

/// Whether this thread, and those it starts, has a network of its own now, with two interfaces.
fn enter_network() -> bool {
    // SAFETY: the flag concerns the network namespace of this thread only; no memory or descriptor is unshared.
    let own = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) };
    if own.is_err() || Command::new("ip").arg("-V").output().is_err() {
        eprintln!("skipped: no right to make network namespaces, or no `ip`");
        return false;
    }
    ip("link set lo up");
    for (name, address) in [("rail-a", "10.9.0.1/24"), ("rail-b", "10.9.1.1/24")] {
        // An interface has a link only with somebody at the other end.
        ip(&format!("link add {name} type veth peer name {name}-far"));
        ip(&format!("address add {address} dev {name}"));
        ip(&format!("link set {name}-far up"));
        ip(&format!("link set {name} up"));
    }
    true
}

fn options() -> Options {
    Options {
        token: Some([1; 32]),
        cut_off: CutOff::Fixed(0),
        deadline: Some(PATIENCE),
        ..Options::default()
    }
}

/// Looks again at every change that the kernel tells of, and soon after: what a socket makes of it comes later.
fn wait_for(links: &Links, what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what} takes too long");
        links.changed(Duration::from_millis(5)).unwrap();
    }
}

/// A rail whose interface goes down is left, says why, and is taken back.
#[test]
fn interfaces_that_go_down_are_left() {
    let run = || {
        if !enter_network() {
            return;
        }
        let links = Links::open().unwrap();
        let addresses = ["10.9.0.1:0", "10.9.1.1:0"].map(|text| text.parse().unwrap());
        let listener = Listener::bind(&addresses, &options()).unwrap();
        let addresses: Vec<SocketAddr> = listener.addresses();
        let local = Options {
            local: addresses.iter().map(SocketAddr::ip).collect(),
            ..options()
        };
        let near = MessageSocket::connect(&addresses, &local).unwrap();
        let far = listener.accept().unwrap();
        wait_for(&links, "both rails", || {
            near.rails().iter().all(|rail| rail.is_up)
        });
        // Packets of a host to itself would not show it: nothing goes silent here.
        ip("link set rail-b down");
        wait_for(&links, "the event", || {
            // Both ends are on this host: the one that looks first tells the other by closing.
            [&near, &far].iter().any(|end| {
                let rails = end.rails();
                let cause = rails[1].cause.as_deref().unwrap_or_default();
                rails[0].is_up && cause.contains("this host has lost the address 10.9.1.1")
            })
        });
        near.send(b"by the other").unwrap();
        assert_eq!(far.receive_vec(100).unwrap().unwrap(), b"by the other");
        ip("link set rail-b up");
        wait_for(&links, "the way back", || {
            near.rails().iter().all(|rail| rail.is_up)
        });
    };
    thread::spawn(run).join().unwrap();
}
