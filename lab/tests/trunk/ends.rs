//! What is left of a trunk once its lab is gone: nothing.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};

use ropewalk_lab::Topology;
use ropewalk_lab::trunk::{ClusterSpec, TrunkSpec};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::PROGRAM;
use crate::common::{skip, wait_until};
use crate::nets::{clusters, delay, sockets};

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
