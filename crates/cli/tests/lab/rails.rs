//! Several interfaces between two hosts: side by side, and failing in all ways.

use std::net::IpAddr;
use std::process::Child;

use ropewalk_lab::{HostSpec, Lab, LabBuilder, NicSpec};
use serde_json::Value;

use crate::hosts::{agent, begin, bytes, close, has_moved, master, rules};

/// A sender `a`, a receiver `b` with as many interfaces, each on a network of its own, and the master `m`.
fn railed_lab(rates: &[u64]) -> (Lab, Vec<Child>) {
    let railed = |name| {
        let host = HostSpec::new(name);
        let nics = rates.iter().map(|rate| NicSpec::rate_bits(*rate));
        nics.fold(host, HostSpec::nic)
    };
    let master = HostSpec::new("m").nic(NicSpec::rate_bits(100_000_000));
    let builder = LabBuilder::new().host(railed("a")).host(railed("b"));
    let lab = builder.host(master).build().unwrap();
    let agents = ["a", "b"].map(|host| agent(&lab, host, 7420, &["/data:rw"]));
    (lab, agents.into())
}

/// Rails of the only pair by name, and the bytes they carried.
fn rails(report: &Value) -> Vec<(String, u64)> {
    let rail = |pair: &Value| {
        let name = pair["rail"].as_str().unwrap_or_default();
        (name.to_owned(), pair["bytes"].as_u64().unwrap())
    };
    report["pairs"]
        .as_array()
        .unwrap()
        .iter()
        .map(rail)
        .collect()
}

/// Two interfaces carry what they can, a slow one less, and `--rails` says which.
#[test]
fn interfaces_work_side_by_side() {
    if ropewalk_lab::skip("interfaces_work_side_by_side") {
        return;
    }
    let (lab, agents) = railed_lab(&[100_000_000, 50_000_000]);
    let data = bytes(24 << 20);
    std::fs::write(lab.path_in("a", "/data/set"), &data).unwrap();
    let copy = |rails: &str, name: &str| {
        let to = format!("b:7420:/data/{name}");
        master(
            &lab,
            "m",
            &["copy", "--rails", rails, "a:7420:/data/set", &to],
        )
    };
    let (status, report) = copy("auto", "both");
    assert_eq!(status, Some(0), "{report:#}");
    assert!(std::fs::read(lab.path_in("b", "/data/both")).unwrap() == data);
    let both = rails(&report);
    assert_eq!(both.len(), 2, "{both:?}");
    assert_ne!(both[0].0, both[1].0);
    let (fast, slow) = (both[0].1.max(both[1].1), both[0].1.min(both[1].1));
    assert!(slow > 4 << 20 && fast > slow, "{both:?}");
    // The second interface alone, by its name; and one of them.
    let nic = &lab.nics("b")[1];
    let other = format!("{},{}", nic.name, lab.nics("a")[1].name);
    let (status, report) = copy(&other, "second");
    assert_eq!(status, Some(0), "{report:#}");
    let second = rails(&report);
    let address = lab.addresses("b")[1].to_string();
    assert!(
        second.len() == 1 && second[0].0.contains(&nic.name),
        "{second:?} {address}"
    );
    let (status, report) = copy("one", "one");
    assert_eq!((status, rails(&report).len()), (Some(0), 1), "{report:#}");
    // A list that no interface is in is refused by name, before anything is made.
    let (status, report) = copy("10.99.0.0/16", "none");
    assert_eq!(status, Some(4), "{report:#}");
    let error = report["error"].as_str().unwrap();
    assert!(
        error.contains("10.99.0.0/16") && error.contains(&lab.nics("a")[0].name),
        "{error}"
    );
    assert!(!lab.path_in("b", "/data/none").exists());
    close(lab, agents);
}

/// Puts a rail of `host` out of work while bytes flow and in again; returns the report of a copy that must be whole.
fn with_a_break(
    host: &str,
    fails: impl Fn(&Lab, &str, bool) -> Result<(), ropewalk_lab::LabError>,
) -> Value {
    let (lab, agents) = railed_lab(&[50_000_000, 50_000_000]);
    let data = bytes(64 << 20);
    std::fs::write(lab.path_in("a", "/data/set"), &data).unwrap();
    let (mut child, mut events) = begin(
        &lab,
        "m",
        &["copy", "a:7420:/data/set", "b:7420:/data/copy"],
    );
    assert!(events.by_ref().any(|event| has_moved(&event, 6 << 20)));
    fails(&lab, host, true).unwrap();
    // The other rail alone brings this after the failure has been noticed.
    assert!(events.by_ref().any(|event| has_moved(&event, 32 << 20)));
    fails(&lab, host, false).unwrap();
    let report = events.last().unwrap()["report"].clone();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{report:#}");
    assert!(std::fs::read(lab.path_in("b", "/data/copy")).unwrap() == data);
    close(lab, agents);
    report
}

/// Rails that fail in all ways, at either end, cost their capacity and nothing else, and work again once they can.
#[test]
fn rails_that_fail_are_given_up_and_taken_back() {
    if ropewalk_lab::skip("rails_that_fail_are_given_up_and_taken_back") {
        return;
    }
    type Fails = fn(&Lab, &str, bool) -> Result<(), ropewalk_lab::LabError>;
    let failures: [(&str, Fails); 5] = [
        ("silence", |lab, host, on| lab.blackhole(host, 1, on)),
        ("silence of the first", |lab, host, on| {
            lab.blackhole(host, 0, on)
        }),
        ("carrier", |lab, host, on| lab.plug(host, 1, !on)),
        ("link", |lab, host, on| match on {
            true => lab.link_down(host, 1),
            false => lab.link_up(host, 1),
        }),
        ("address", |lab, host, on| {
            let own = IpAddr::from([10, 1, 0, if host == "a" { 1 } else { 2 }]);
            match on {
                true => lab.delete_address(host, 1, own),
                false => lab.add_address(host, 1, own),
            }
        }),
    ];
    for (name, fails) in failures {
        for host in ["a", "b"] {
            // The master talks to b over its first interface, and would hear of no progress.
            if (name, host) == ("silence of the first", "b") {
                continue;
            }
            let report = with_a_break(host, fails);
            let carried = rails(&report);
            assert_eq!(carried.len(), 2, "{name} at {host}: {carried:?}");
            assert!(
                carried.iter().all(|(_, bytes)| *bytes > 0),
                "{name} at {host}: {carried:?}"
            );
            let notes = report["notes"].to_string();
            // What happens at the receiver's own end the kernel tells; everything else shows by silence.
            let reason = match (name, host) {
                ("carrier" | "link" | "address", "b") => "lost its link or its address",
                _ => "silent while another rail",
            };
            assert!(
                notes.contains("one rail to a is lost") && notes.contains(reason),
                "{name} at {host}: {notes}"
            );
            assert!(
                notes.contains("one rail to a works again"),
                "{name} at {host}: {notes}"
            );
        }
    }
}

/// Where UDP does not pass on one of two rails, that one is given up once, for its reason, and the other brings everything.
#[test]
fn a_rail_without_udp_is_tried_once() {
    if ropewalk_lab::skip("a_rail_without_udp_is_tried_once") {
        return;
    }
    if !std::path::Path::new("/usr/sbin/nft").exists() {
        return eprintln!(
            "SKIPPED a_rail_without_udp_is_tried_once: no nft; run scripts/install-test-tools"
        );
    }
    let (lab, agents) = railed_lab(&[50_000_000, 50_000_000]);
    let nic = &lab.nics("b")[1].name;
    let drop = format!(
        "table inet f {{\nchain in {{\ntype filter hook input priority 0\niifname {nic} meta l4proto udp drop\n}}\n}}\n"
    );
    rules(&lab, "b", &drop);
    let data = bytes(64 << 20);
    std::fs::write(lab.path_in("a", "/data/set"), &data).unwrap();
    let (status, report) = master(
        &lab,
        "m",
        &[
            "copy",
            "--lane",
            "rbudp",
            "--rate",
            "45Mbit",
            "a:7420:/data/set",
            "b:7420:/data/copy",
        ],
    );
    assert_eq!(status, Some(0), "{report:#}");
    assert!(std::fs::read(lab.path_in("b", "/data/copy")).unwrap() == data);
    let notes = report["notes"].to_string();
    assert_eq!(notes.matches("one rail to a is lost").count(), 1, "{notes}");
    assert!(notes.contains("let UDP pass"), "{notes}");
    close(lab, agents);
}
