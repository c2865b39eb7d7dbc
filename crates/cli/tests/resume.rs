//! The next run of a command goes on where the last one ended, whatever ended it.

mod common;

use std::os::unix::fs::FileExt as _;

use common::processes::{assert_gone, family, kill_at_once, temporary};
use common::{Moving, Place, assert_same_tree, bytes};
use serde_json::Value;

/// Much of a file that is not complete has to be safe before it is kept.
const LARGE: usize = 256 << 20;

fn number(report: &Value, key: &str) -> u64 {
    report["landing"][key].as_u64().unwrap()
}

fn signal(pid: u32, name: &str) {
    let status = std::process::Command::new("kill")
        .args([name, &pid.to_string()])
        .status();
    assert!(status.unwrap().success());
}

/// Sends nothing again that was safe, and everything else; nothing temporary stays.
#[track_caller]
fn assert_goes_on(place: &Place, args: &[&str], safe: u64, total: u64) {
    let all = [&["copy", "--json"], args].concat();
    let report = place.run(&all).assert_status(0).report();
    let there = number(&report, "resumed_bytes") + number(&report, "unchanged_bytes");
    assert!(there >= safe, "{there} of {safe}: {}", report["landing"]);
    assert_eq!(report["delivered_bytes"].as_u64().unwrap(), total - there);
    assert_same_tree(&place.path("set"), &place.path("copy"));
    assert_eq!(temporary(place.dir.path()), [""; 0]);
    assert_eq!(temporary(&place.path("copy")), [""; 0]);
}

/// Ctrl-C in a large file: the report says where its bytes are, and the next run goes on; small files that were complete have their
/// names, unless no file of an incomplete copy is to have one.
#[test]
fn an_interrupted_large_file_goes_on() {
    let options: [&[&str]; 3] = [&[], &["--atomic"], &["--verify", "sink"]];
    for options in options {
        let place = Place::new();
        std::fs::create_dir(place.path("set")).unwrap();
        std::fs::write(place.path("set/a"), bytes(5000, 1)).unwrap();
        std::fs::write(place.path("set/large"), bytes(LARGE, 2)).unwrap();
        let args = [options, &["set", "copy"]].concat();
        let safe = interrupt(&place, &args);
        assert_eq!(place.path("copy/a").exists(), options.is_empty());
        assert_goes_on(&place, &args, safe, LARGE as u64 + 5000);
    }
}

/// Ends a copy of a large file with Ctrl-C; how many of its bytes are safe.
fn interrupt(place: &Place, args: &[&str]) -> u64 {
    let all = [&["copy", "--limit", "400Mbit"], args].concat();
    let mut moving = Moving::start(place, &all);
    moving.until_delivered(72 << 20);
    signal(moving.child.id(), "-INT");
    let (status, report) = moving.end();
    assert_eq!(status, 130);
    let left = &report["left"][0];
    assert_eq!(
        (&left["resumable"], &left["certain"]),
        (&true.into(), &true.into()),
        "{report:#}"
    );
    let safe = left["bytes"].as_u64().unwrap();
    assert!(safe >= 64 << 20);
    assert!(std::path::Path::new(left["path"].as_str().unwrap()).exists());
    safe
}

/// What an earlier run wrote is read back with the rest: where the disk has other bytes no file gets its name, and the next run sends
/// all of it.
#[test]
fn what_an_earlier_run_wrote_is_read_back() {
    let place = Place::new();
    std::fs::write(place.path("large"), bytes(LARGE, 2)).unwrap();
    let args = ["--verify", "sink", "large", "copy"];
    interrupt(&place, &args);
    let left = temporary(place.dir.path());
    let staged = left.iter().find(|name| !name.ends_with(".journal"));
    let staged = place.path(staged.unwrap());
    let file = std::fs::File::options().write(true).open(staged).unwrap();
    file.write_all_at(b"damaged", 1000).unwrap();
    drop(file);
    let all = [&["copy", "--json"], &args[..]].concat();
    let report = place.run(&all).assert_status(1).report();
    let error = report["error"].as_str().unwrap();
    assert!(error.contains("read back from the sink differ"), "{error}");
    assert!(!place.path("copy").exists());
    let report = place.run(&all).assert_status(0).report();
    assert_eq!(report["delivered_bytes"].as_u64().unwrap(), LARGE as u64);
    assert!(std::fs::read(place.path("copy")).unwrap() == bytes(LARGE, 2));
    assert_eq!(temporary(place.dir.path()), [""; 0]);
}

/// A bit that changes on the sink's disk before the file has its name is noticed where the sink is read back; the next run sends the
/// file again.
#[test]
fn a_bit_that_flips_on_the_sink_is_noticed() {
    let place = Place::new();
    let all = bytes(24 << 20, 5);
    std::fs::write(place.path("file"), &all).unwrap();
    let args = ["--verify", "sink", "file", "copy"];
    let mut moving = Moving::start(
        &place,
        &[&["copy", "--limit", "100Mbit"], &args[..]].concat(),
    );
    moving.until_delivered(8 << 20);
    let staged = temporary(place.dir.path());
    let staged = staged.iter().find(|name| !name.ends_with(".journal"));
    let staged = place.path(staged.unwrap());
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(staged)
        .unwrap();
    // The first bytes are written by then.
    let mut byte = [0];
    file.read_exact_at(&mut byte, 100_000).unwrap();
    assert_eq!(byte[0], all[100_000]);
    file.write_all_at(&[byte[0] ^ 0x10], 100_000).unwrap();
    drop(file);
    let (status, report) = moving.end();
    assert_eq!(status, 1, "{report:#}");
    let error = report["error"].as_str().unwrap();
    assert!(error.contains("read back from the sink differ"), "{error}");
    assert!(!place.path("copy").exists());
    place.run(&[&["copy"], &args[..]].concat()).assert_status(0);
    assert!(std::fs::read(place.path("copy")).unwrap() == all);
}

/// All processes of a copy are killed at once, as by a power switch: what the progress had called safe is not sent again.
#[test]
fn a_killed_copy_goes_on() {
    let place = Place::new();
    std::fs::create_dir(place.path("set")).unwrap();
    for at in 0..60 {
        std::fs::write(place.path(&format!("set/f{at}")), bytes(1 << 20, at)).unwrap();
    }
    let mut moving = Moving::start(&place, &["copy", "--limit", "100Mbit", "set", "copy"]);
    let safe = loop {
        let safe = moving.event("progress")["delivered_bytes"]
            .as_u64()
            .unwrap();
        if safe >= 20 << 20 {
            break safe;
        }
    };
    let all = family(moving.child.id() as i32);
    kill_at_once(&all);
    moving.child.wait().unwrap();
    assert_gone(&all[1..]);
    assert_eq!(temporary(place.dir.path()).len(), 2, "files and journal");
    assert_goes_on(&place, &["set", "copy"], safe, 60 << 20);
}

/// What a killed copy left is shown while nothing runs, and removed; a running copy's is not.
#[test]
fn what_a_killed_copy_left_is_shown_and_removed() {
    let place = Place::new();
    std::fs::create_dir(place.path("set")).unwrap();
    std::fs::write(place.path("set/large"), bytes(30 << 20, 1)).unwrap();
    let mut moving = Moving::start(&place, &["copy", "--limit", "80Mbit", "set", "copy"]);
    moving.until_delivered(8 << 20);
    let clean = |status: i32| place.run(&["clean", "copy"]).assert_status(status).out();
    assert!(clean(0).contains(": a transfer is writing it"));
    assert_eq!(temporary(place.dir.path()).len(), 2, "files and journal");
    let all = family(moving.child.id() as i32);
    kill_at_once(&all);
    moving.child.wait().unwrap();
    assert_gone(&all[1..]);
    let shown = place.run(&["status", "copy"]).assert_status(0).out();
    assert!(shown.contains(" of 31.5 MB safe, 1 file, "), "{shown}");
    let json = place.run(&["status", "--json", "copy"]).assert_status(0);
    let shown: Value = serde_json::from_str(&json.out()).unwrap();
    assert_eq!(shown[0]["state"], "resumable");
    assert_eq!(shown[0]["total_bytes"], 30 << 20);
    assert!(shown[0]["safe_bytes"].as_u64().unwrap() >= 8 << 20);
    assert!(clean(0).starts_with("removed "));
    assert_eq!(temporary(place.dir.path()), [""; 0]);
    assert!(clean(0).starts_with("nothing is left"));
    place.run(&["clean", "missing/copy"]).assert_status(1);
}

/// A receiving agent is killed again and again; the copy needs each byte once, but for those that were not safe.
#[test]
fn a_receiver_that_is_killed_again_and_again_goes_on() {
    let place = Place::new();
    place.make_token();
    std::fs::create_dir(place.path("set")).unwrap();
    std::fs::write(place.path("set/large"), bytes(40 << 20, 3)).unwrap();
    let sender = place.agent(place.dir.path());
    let from = sender.at(place.path("set"));
    let mut last = 0;
    for round in 1..=3_u64 {
        let mut receiver = place.agent(place.dir.path());
        let to = receiver.at(place.path("copy"));
        let mut moving = Moving::start(
            &place,
            &["copy", "--wait", "0", "--limit", "80Mbit", &from, &to],
        );
        let fresh = loop {
            let fresh = moving.event("progress")["delivered_bytes"]
                .as_u64()
                .unwrap();
            if fresh >= 6 << 20 {
                break fresh;
            }
        };
        receiver.child.kill().unwrap();
        let (status, report) = moving.end();
        assert_eq!(status, 1, "{report:#}");
        let resumed = number(&report, "resumed_bytes");
        assert!(resumed >= last, "{resumed} of {last} in round {round}");
        let left = &report["left"][0];
        assert_eq!(
            (&left["resumable"], &left["certain"]),
            (&true.into(), &false.into())
        );
        last = resumed + fresh;
    }
    let receiver = place.agent(place.dir.path());
    let to = receiver.at(place.path("copy"));
    assert_goes_on(&place, &[&from, &to], last, 40 << 20);
}

/// An agent that is asked to end gives complete files their names; the next run sends the rest.
#[test]
fn an_agent_that_is_asked_to_end_keeps_complete_files() {
    let place = Place::new();
    place.make_token();
    std::fs::create_dir(place.path("set")).unwrap();
    for at in 0..40 {
        std::fs::write(place.path(&format!("set/f{at}")), bytes(500_000, at)).unwrap();
    }
    let sender = place.agent(place.dir.path());
    let from = sender.at(place.path("set"));
    let mut receiver = place.agent(place.dir.path());
    let to = receiver.at(place.path("copy"));
    let mut moving = Moving::start(
        &place,
        &["copy", "--wait", "0", "--limit", "80Mbit", &from, &to],
    );
    moving.until_delivered(8_000_000);
    signal(receiver.child.id(), "-TERM");
    assert_eq!(moving.end().0, 1);
    receiver.child.wait().unwrap();
    let there = std::fs::read_dir(place.path("copy")).unwrap().count() as u64;
    assert!((10..40).contains(&there), "{there}");
    let receiver = place.agent(place.dir.path());
    let to = receiver.at(place.path("copy"));
    assert_goes_on(&place, &[&from, &to], there * 500_000, 40 * 500_000);
}
