//! What reports say held a transfer back.

use std::time::Duration;

use ropewalk_lab::trunk::{ClusterSpec, LinkSpec, Loss, QueueLimit, TrunkSpec};
use ropewalk_lab::{HostSpec, Lab, LabBuilder, NicSpec, Topology};
use serde_json::{Value, json};

use crate::doctor::doctor;
use crate::hosts::{agent, close, master};

/// The largest cause of a copy of memory to nothing; it has at least half of the time.
fn cause(lab: &Lab, host: &str, args: &[&str]) -> Value {
    let (status, report) = master(lab, host, &[&["copy", "--speeds", "off"], args].concat());
    assert_eq!(status, Some(0), "{report:#}");
    let first = &report["bottlenecks"][0];
    let all = &report["bottlenecks"];
    assert!(first["share"].as_f64() > Some(0.5), "{all:#}");
    let shares = all.as_array().unwrap().iter();
    let sum: f64 = shares.map(|one| one["share"].as_f64().unwrap()).sum();
    assert!(sum < 1.001, "{all:#}");
    json!([first["cause"], first["node"], first["peer"]])
}

/// A slow interface is the path between two nodes, or the node's speed where that is known; of two receivers the slow one is named; a limit
/// comes before all.
#[test]
fn what_held_it_back_is_named() {
    let _alone = crate::alone();
    if ropewalk_lab::skip("what_held_it_back_is_named") {
        return;
    }
    // Slow enough that processors which other tests load are not what holds it back.
    let host = |name: &str, rate| HostSpec::new(name).nic(NicSpec::rate_bits(rate));
    let lab = LabBuilder::new()
        .host(host("a", 20_000_000))
        .host(host("b", 200_000_000))
        .host(host("c", 4_000_000))
        .build()
        .unwrap();
    let agents = ["a", "b", "c"].map(|host| agent(&lab, host, 7420, &["/data"]));
    let (from, to) = ("a:7420:mem:8MiB", "b:7420:null:");
    let (a, b, c) = ("a", "b", "c");
    let b_is = |args: &[&str], expected: Value| {
        assert_eq!(cause(&lab, "b", &[args, &[from, to]].concat()), expected);
    };
    b_is(&[], json!(["path", a, b]));
    b_is(
        &["--node-rate", "a=20Mbit"],
        json!(["sender_rate", a, null]),
    );
    b_is(&["--limit", "5Mbit"], json!(["limit", null, null]));
    let slow = ["a:7420:mem:2MiB", to, "--also-to", "c:7420:null:"];
    assert_eq!(cause(&lab, "b", &slow), json!(["path", a, c]));
    let slow = ["--node-rate", "c=4Mbit", "a:7420:mem:4MiB", "c:7420:null:"];
    assert_eq!(cause(&lab, "b", &slow), json!(["receiver_rate", c, null]));
    close(lab, agents);
}

/// Of two interfaces, the one whose packets are lost is named by the report, with its addresses, and by `doctor` before.
#[test]
fn the_lossy_one_of_two_interfaces_is_named() {
    let _alone = crate::alone();
    if ropewalk_lab::skip("the_lossy_one_of_two_interfaces_is_named") {
        return;
    }
    // What 32 streams carry over the lossy one is less.
    let link = LinkSpec::rate_bits(100_000_000)
        .delay(Duration::from_millis(40))
        .queue(QueueLimit::Packets(2000));
    let lossy = link.clone().loss(Loss::independent(0.02));
    let trunks = [link, lossy].map(TrunkSpec::symmetric).to_vec();
    let lab = LabBuilder::from(Topology::pair_over_rails(Some(1_000_000_000), trunks))
        .congestion_control("cubic")
        .build()
        .unwrap();
    let agents = ["a", "b"].map(|host| agent(&lab, host, 7420, &["/data"]));
    let second = |host| {
        let own = lab.addresses(host).into_iter();
        let mut own = own.filter(std::net::IpAddr::is_ipv4);
        own.nth(1).unwrap()
    };
    let nic = &lab.nics("a")[1].name;
    let rail = format!("{nic} {} - {}", second("a"), second("b"));
    let is_it = |found: &Value| {
        let named = json!([found["cause"], found["node"], found["peer"], found["rail"]]);
        assert_eq!(named, json!(["loss", "a", "b", rail]), "{found:#}");
    };
    let args = ["copy", "--speeds", "off", "--streams", "2"];
    // The first packet of a connection over the lossy one may be lost, which takes a second.
    let (status, report) = master(
        &lab,
        "b",
        &[&args[..], &["a:7420:mem:48MiB", "b:7420:null:"]].concat(),
    );
    assert_eq!(status, Some(0), "{report:#}");
    assert_eq!(report["pairs"].as_array().unwrap().len(), 2, "{report:#}");
    is_it(&report["bottlenecks"][0]);
    let report = doctor(&lab, "b", &["a:7420", "b:7420"]);
    is_it(&report["pairs"][0]["bound_by"]);
    close(lab, agents);
}

/// Packets that are lost on a long path are named.
#[test]
fn losses_are_named() {
    let _alone = crate::alone();
    if ropewalk_lab::skip("losses_are_named") {
        return;
    }
    let link = LinkSpec::rate_bits(100_000_000)
        .delay(Duration::from_millis(20))
        .loss(Loss::independent(0.02))
        .queue(QueueLimit::Packets(1000));
    let clusters = ClusterSpec {
        hosts: [1, 1],
        access_bits_per_second: Some(1_000_000_000),
        trunk: TrunkSpec::symmetric(link),
    };
    let lab = LabBuilder::from(Topology::clusters(&clusters))
        .congestion_control("cubic")
        .build()
        .unwrap();
    let agents = ["a1", "b1"].map(|host| agent(&lab, host, 7100, &["/data"]));
    let args = ["--streams", "2", "a1:7100:mem:4MiB", "b1:7100:null:"];
    let expected = json!(["loss", "a1", "b1"]);
    assert_eq!(cause(&lab, "b1", &args), expected);
    close(lab, agents);
}
