//! Receivers that hand on what they have.

use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::Child;

use ropewalk_lab::Lab;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::wait_for;
use crate::hosts::{agent, begin, bytes, close, has_moved, lab, master, program};

/// Bytes that a node of the report has sent.
fn sent(report: &Value, node: &str) -> u64 {
    let rows = report["nodes"].as_array().unwrap();
    let row = rows.iter().find(|row| row["node"] == node).unwrap();
    row["sent_bytes"].as_u64().unwrap()
}

pub fn copies(lab: &Lab, hosts: &[&str]) -> Vec<Child> {
    let agent = |host: &&str| agent(lab, host, 7420, &["/data:rw"]);
    hosts.iter().map(agent).collect()
}

pub fn has_note(report: &Value, words: &[&str]) -> bool {
    let notes = report["notes"].as_array().unwrap();
    let mut notes = notes.iter().filter_map(Value::as_str);
    notes.any(|note| words.iter().all(|word| note.contains(word)))
}

/// The temporary file of a copy that is under way; waits for it, and until it has so many bytes on the disk or in memory.
fn under_way(lab: &Lab, host: &str, least: u64) -> PathBuf {
    use std::os::unix::fs::MetadataExt as _;
    let folder = lab.path_in(host, "/data");
    wait_for("bytes of a copy", || {
        let files = std::fs::read_dir(&folder).unwrap().filter_map(Result::ok);
        let mut files = files.filter(|file| {
            let name = file.file_name();
            let is_temporary = name.to_string_lossy().starts_with(".copy.ropewalk");
            let blocks = file.metadata().map_or(0, |data| data.blocks());
            is_temporary && blocks * 512 >= least
        });
        files.next().map(|file| file.path())
    })
}

/// Bytes that a process has read of files.
fn read_by(process: &Child) -> u64 {
    let counters = std::fs::read_to_string(format!("/proc/{}/io", process.id())).unwrap();
    let read = counters
        .lines()
        .find_map(|line| line.strip_prefix("rchar: "));
    read.unwrap().parse().unwrap()
}

/// One sender, four receivers: the copies are right, and the sender has sent little more than one of them, and read at most one more for
/// hashes. Without relays it sends four.
#[test]
fn receivers_feed_one_another() {
    if ropewalk_lab::skip("receivers_feed_one_another") {
        return;
    }
    // So much that they measure round trips first.
    const LEN: u64 = 64 << 20;
    let lab = lab(&["a", "b1", "b2", "b3", "b4", "m"], 100_000_000);
    let data = bytes(LEN as usize);
    std::fs::write(lab.path_in("a", "/data/set"), &data).unwrap();
    let receivers = ["b1", "b2", "b3", "b4"];
    let agents = copies(&lab, &["a", "b1", "b2", "b3", "b4"]);
    for (relay, most) in [("auto", LEN * 2), ("off", LEN * 5)] {
        let to = format!("b[1-4]:7420:/data/{relay}");
        let args = ["copy", "--relay", relay, "a:7420:/data/set", &to];
        let before = read_by(&agents[0]);
        let (status, report) = master(&lab, "m", &args);
        assert_eq!(status, Some(0), "{report:#}");
        for host in receivers {
            let copy = std::fs::read(lab.path_in(host, format!("/data/{relay}"))).unwrap();
            assert!(copy == data, "{host}");
        }
        assert!(sent(&report, "a") <= most, "{relay}: {report:#}");
        let handed_on: u64 = receivers.iter().map(|host| sent(&report, host)).sum();
        assert_eq!(handed_on > 0, relay == "auto", "{report:#}");
        // Fresh bytes only, and the two bounds.
        let fresh = report["handed_on_bytes"].as_u64().unwrap();
        assert!(fresh <= handed_on && fresh * 2 >= handed_on, "{report:#}");
        let bound = &report["bound"];
        let without = bound["without_handing_on_seconds"].as_f64();
        assert_eq!(
            without.is_some_and(|seconds| seconds > 2.0 * bound["seconds"].as_f64().unwrap()),
            relay == "auto" && !bound.is_null(),
            "{report:#}"
        );
        let read = read_by(&agents[0]) - before;
        assert!(
            (LEN..sent(&report, "a") + LEN * 9 / 8).contains(&read),
            "{read} bytes were read: {report:#}"
        );
        // What two brought, and what came too late to be compared, was sent twice.
        let all = sent(&report, "a") + handed_on;
        assert!((4 * LEN..5 * LEN).contains(&all), "{report:#}");
        eprintln!(
            "relay {relay}: {} s, a sent {}, read {read}, bound {}",
            report["seconds"],
            sent(&report, "a"),
            report["bound"]
        );
    }
    close(lab, agents);
}

/// Two receivers join two others while bytes move: they have their copies, and have handed some of it on to one another.
#[test]
fn receivers_that_join_hand_on() {
    if ropewalk_lab::skip("receivers_that_join_hand_on") {
        return;
    }
    const LEN: u64 = 48 << 20;
    let hosts = ["a", "b1", "b2", "c1", "c2"];
    let lab = lab(&["a", "b1", "b2", "c1", "c2", "m"], 50_000_000);
    let data = bytes(LEN as usize);
    std::fs::write(lab.path_in("a", "/data/set"), &data).unwrap();
    let agents = copies(&lab, &hosts);
    let row = |kind: &str, host: &str, file: &str| {
        format!("{kind} {host}:7420 \"/data/{file}\" 0 0+{LEN}\n")
    };
    let readers =
        |one: &str, other: &str| row("reader", one, "copy") + &row("reader", other, "copy");
    let first = row("writer", "a", "set") + &readers("b1", "b2");
    std::fs::write(lab.path_in("m", "/run/first"), first).unwrap();
    std::fs::write(lab.path_in("m", "/run/more"), readers("c1", "c2")).unwrap();
    let args = ["transfer", "--relay", "auto", "/run/first"];
    let (mut moving, events) = begin(&lab, "m", &args);
    let (mut id, mut joined) = (String::new(), false);
    let mut report = Value::Null;
    for event in events {
        if event["event"] == "planned" && id.is_empty() {
            id = event["transfer"].as_str().unwrap().to_owned();
        }
        if has_moved(&event, LEN / 2) && !joined {
            joined = true;
            let mut join = program(&lab, "m");
            let output = join.args(["join", &id, "/run/more"]).output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{errors}");
        }
        report = event["report"].clone();
    }
    assert!(moving.wait().unwrap().success(), "{report:#}");
    for host in &hosts[1..] {
        let copy = std::fs::read(lab.path_in(host, "/data/copy")).unwrap();
        assert!(copy == data, "{host}");
    }
    eprintln!("{} s", report["seconds"]);
    for host in hosts {
        eprintln!("{host} sent {}", sent(&report, host));
    }
    assert!(sent(&report, "a") < LEN * 2, "{report:#}");
    assert!(sent(&report, "c1") + sent(&report, "c2") > 0, "{report:#}");
    close(lab, agents);
}

/// A receiver that hands on dies in the middle: it was only a holder more, and the others have their copies.
#[test]
fn a_relay_that_dies_was_a_holder_more() {
    if ropewalk_lab::skip("a_relay_that_dies_was_a_holder_more") {
        return;
    }
    let lab = lab(&["a", "b1", "b2", "b3", "m"], 100_000_000);
    let data = bytes(48 << 20);
    std::fs::write(lab.path_in("a", "/data/set"), &data).unwrap();
    let mut agents = copies(&lab, &["a", "b1", "b2", "b3"]);
    let args = [
        "copy",
        "--wait",
        "0",
        "--relay",
        "auto",
        "a:7420:/data/set",
        "b[1-3]:7420:/data/copy",
    ];
    let (mut child, events) = begin(&lab, "m", &args);
    under_way(&lab, "b1", 8 << 20);
    agents[1].kill().unwrap();
    let report = events.last().unwrap()["report"].clone();
    assert!(!child.wait().unwrap().success(), "{report:#}");
    for host in ["b2", "b3"] {
        let copy = std::fs::read(lab.path_in(host, "/data/copy")).unwrap();
        assert!(copy == data, "{host}");
        assert!(sent(&report, host) > 0, "{report:#}");
    }
    assert!(sent(&report, "b1") > 0, "{report:#}");
    assert!(has_note(&report, &["b1 is lost"]), "{report:#}");
    assert!(report["missing"].get("b1").is_some(), "{report:#}");
    close(lab, agents);
}

/// Bytes of a receiver are changed on its disk before it has handed them on: nothing of it reaches another copy, its own is not called
/// complete, and nothing of it is kept for the next run.
#[test]
fn wrong_bytes_of_a_relay_are_not_taken() {
    if ropewalk_lab::skip("wrong_bytes_of_a_relay_are_not_taken") {
        return;
    }
    const LEN: usize = 48 << 20;
    let lab = lab(&["a", "b1", "b2", "m"], 100_000_000);
    let data = bytes(LEN);
    std::fs::write(lab.path_in("a", "/data/set"), &data).unwrap();
    let agents = copies(&lab, &["a", "b1", "b2"]);
    let args = [
        "copy",
        "--relay",
        "auto",
        "a:7420:/data/set",
        "b[1-2]:7420:/data/copy",
    ];
    let (mut child, events) = begin(&lab, "m", &args);
    // It has asked for little when it is stopped, and the other one gets half of the data for it.
    under_way(&lab, "b2", 1 << 20);
    let stopped = Pid::from_child(&agents[2]);
    kill_process(stopped, Signal::STOP).unwrap();
    let written = under_way(&lab, "b1", 12 << 20);
    let file = std::fs::File::options().write(true).open(written).unwrap();
    file.write_all_at(&vec![0xaa; LEN], 0).unwrap();
    kill_process(stopped, Signal::CONT).unwrap();
    let report = events.last().unwrap()["report"].clone();
    // Its own copy is not complete.
    assert_eq!(child.wait().unwrap().code(), Some(1), "{report:#}");
    let error = report["error"].as_str().unwrap();
    assert!(
        error.starts_with("b1: ") && error.contains("is not what was received"),
        "{error}"
    );
    assert!(!lab.path_in("b1", "/data/copy").exists());
    assert!(std::fs::read(lab.path_in("b2", "/data/copy")).unwrap() == data);
    let (status, report) = master(&lab, "m", &args);
    assert_eq!(status, Some(0), "{report:#}");
    assert_eq!(
        report["resumed_bytes"].as_u64().unwrap_or(0),
        0,
        "{report:#}"
    );
    for host in ["b1", "b2"] {
        assert!(std::fs::read(lab.path_in(host, "/data/copy")).unwrap() == data);
    }
    close(lab, agents);
}

/// Bytes of the data that are safe, of all receivers together, once there are so many.
fn until_safe(events: &mut impl Iterator<Item = Value>, least: u64) -> u64 {
    let mut safe = events.filter_map(|event| match event["event"] == "progress" {
        true => event["delivered_bytes"].as_u64(),
        false => None,
    });
    safe.find(|safe| *safe >= least).expect("progress")
}

/// A receiver that hands on, the sender, or the command is killed in the middle: the next run of the same command completes all copies,
/// and nothing is sent again that was safe.
#[test]
fn the_next_run_goes_on_whatever_was_killed() {
    if ropewalk_lab::skip("the_next_run_goes_on_whatever_was_killed") {
        return;
    }
    const LEN: u64 = 48 << 20;
    let lab = lab(&["a", "b1", "b2", "b3", "m"], 100_000_000);
    let data = bytes(LEN as usize);
    std::fs::write(lab.path_in("a", "/data/set"), &data).unwrap();
    let hosts = ["a", "b1", "b2", "b3"];
    let mut agents = copies(&lab, &hosts);
    for victim in ["b1", "a", "m"] {
        let to = format!("b[1-3]:7420:/data/{victim}");
        let args = ["copy", "--wait", "0", "a:7420:/data/set", &to];
        let (mut child, mut events) = begin(&lab, "m", &args);
        let safe = until_safe(&mut events, 24 << 20);
        match hosts.iter().position(|host| *host == victim) {
            Some(at) => {
                agents[at].kill().unwrap();
                agents[at].wait().unwrap();
                let report = events.last().unwrap()["report"].clone();
                assert!(!child.wait().unwrap().success(), "{victim}: {report:#}");
                agents[at] = agent(&lab, victim, 7420, &["/data:rw"]);
            }
            None => {
                child.kill().unwrap();
                child.wait().unwrap();
            }
        }
        let (status, report) = master(&lab, "m", &args);
        assert_eq!(status, Some(0), "{victim}: {report:#}");
        let fresh = report["delivered_bytes"].as_u64().unwrap();
        assert!(fresh + safe <= 3 * LEN, "{victim}: {safe} of {report:#}");
        for host in &hosts[1..] {
            let copy = std::fs::read(lab.path_in(host, format!("/data/{victim}"))).unwrap();
            assert!(copy == data, "{victim}: {host}");
        }
        eprintln!(
            "{victim} killed when {safe} bytes were safe: {fresh} bytes received in the next run"
        );
    }
    close(lab, agents);
}

/// Whether a receiver has received so many bytes, as the command shows it.
fn has_received(event: &Value, host: &str, least: u64) -> bool {
    let receivers = event["receivers"].as_array();
    let mut receivers = receivers.into_iter().flatten();
    receivers.any(|row| row["node"] == host && row["bytes"].as_u64() >= Some(least))
}

/// A receiver that hands on is stopped in the middle and goes on only when the others have everything: it holds nobody, and all
/// copies are right.
#[test]
fn a_relay_that_pauses_holds_nobody() {
    if ropewalk_lab::skip("a_relay_that_pauses_holds_nobody") {
        return;
    }
    const LEN: u64 = 32 << 20;
    let lab = lab(&["a", "b1", "b2", "b3", "m"], 100_000_000);
    let data = bytes(LEN as usize);
    std::fs::write(lab.path_in("a", "/data/set"), &data).unwrap();
    let agents = copies(&lab, &["a", "b1", "b2", "b3"]);
    let args = ["copy", "a:7420:/data/set", "b[1-3]:7420:/data/copy"];
    let (mut child, mut events) = begin(&lab, "m", &args);
    under_way(&lab, "b1", 6 << 20);
    let stopped = Pid::from_child(&agents[1]);
    kill_process(stopped, Signal::STOP).unwrap();
    for host in ["b2", "b3"] {
        let has_all = events.by_ref().any(|event| has_received(&event, host, LEN));
        assert!(has_all, "{host} has everything while b1 is stopped");
    }
    kill_process(stopped, Signal::CONT).unwrap();
    let report = events.last().unwrap()["report"].clone();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{report:#}");
    for host in ["b1", "b2", "b3"] {
        let copy = std::fs::read(lab.path_in(host, "/data/copy")).unwrap();
        assert!(copy == data, "{host}");
        assert!(sent(&report, host) > 0, "{report:#}");
    }
    close(lab, agents);
}

/// A receiver that joins in the middle has its copy, and the others go on handing bytes on to one another.
#[test]
fn a_receiver_that_joins_is_fed() {
    if ropewalk_lab::skip("a_receiver_that_joins_is_fed") {
        return;
    }
    const LEN: u64 = 48 << 20;
    let hosts = ["a", "b1", "b2", "b3", "b4"];
    let lab = lab(&[&hosts[..], &["m"]].concat(), 100_000_000);
    let data = bytes(LEN as usize);
    std::fs::write(lab.path_in("a", "/data/set"), &data).unwrap();
    let agents = copies(&lab, &hosts);
    let row = |host: &str| format!("reader {host}:7420 /data/copy 0 0+{LEN}\n");
    let first = hosts[1..4].iter().map(|host| row(host));
    let first = format!(
        "writer a:7420 /data/set 0 0+{LEN}\n{}",
        first.collect::<String>()
    );
    std::fs::write(lab.path_in("m", "/run/first"), first).unwrap();
    std::fs::write(lab.path_in("m", "/run/more"), row("b4")).unwrap();
    let (mut child, mut events) = begin(&lab, "m", &["transfer", "/run/first"]);
    let planned = events.find(|event| event["event"] == "planned").unwrap();
    assert!(
        events.by_ref().any(|event| has_moved(&event, 8 << 20)),
        "it moves before the other one joins"
    );
    let id = planned["transfer"].as_str().unwrap();
    let joined = program(&lab, "m")
        .args(["join", id, "/run/more"])
        .output()
        .unwrap();
    assert!(joined.status.success(), "{joined:?}");
    let report = events.last().unwrap()["report"].clone();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{report:#}");
    for host in &hosts[1..] {
        let copy = std::fs::read(lab.path_in(host, "/data/copy")).unwrap();
        assert!(copy == data, "{host}");
        // The one that joined may be too late to have what the others lack.
        let is_late = *host == "b4";
        assert!(is_late || sent(&report, host) > 0, "{host}: {report:#}");
    }
    // The copy of the one that joined, one of what the others share, and what they lacked.
    assert!(sent(&report, "a") < 4 * LEN, "{report:#}");
    close(lab, agents);
}
