//! What a destination has already is not sent.

mod common;

use common::{Moving, Place, assert_same_tree, bytes, make_ssh, make_tree};
use serde_json::Value;

fn landing(report: &Value, key: &str) -> u64 {
    report["landing"][key].as_u64().unwrap()
}

/// A second copy of a tree sends nothing, says so and changes nothing; then only what changed is sent; with `--check none`
/// everything is.
#[test]
fn only_what_changed_is_sent() {
    let place = Place::new();
    make_tree(&place.path("set"));
    let copy = ["copy", "--json", "set", "copy"];
    let first = place.run(&copy).assert_status(0).report();
    let (bytes, files) = (
        &first["delivered_bytes"],
        landing(&first, "unchanged_files"),
    );
    assert_eq!(files, 0);

    let again = place.run(&copy).assert_status(0).report();
    assert_eq!(
        (&again["outcome"], &again["wanted_bytes"]),
        (&"done".into(), &0.into())
    );
    assert_eq!(again["delivered_bytes"], 0);
    assert_eq!(again["pairs"].as_array().unwrap().len(), 0);
    // 52 files and a link.
    assert_eq!(landing(&again, "unchanged_files"), 53);
    assert_eq!(&again["landing"]["unchanged_bytes"], bytes);
    assert_eq!(again["predicted_seconds"], Value::Null);
    assert_eq!(
        again["notes"].as_array().unwrap().len(),
        0,
        "{}",
        again["notes"]
    );

    std::fs::write(place.path("set/sub/f3"), "changed").unwrap();
    std::fs::remove_file(place.path("copy/none")).unwrap();
    place
        .run(&["copy", "set", "copy"])
        .assert_status(0)
        .assert_says("done: 7 B, ")
        .assert_says("51 files (3.19 MB) unchanged")
        .assert_says("merged, 1 file added, 1 replaced, 51 unchanged");
    std::fs::remove_dir_all(place.path("set/sub/empty")).unwrap();
    std::fs::remove_dir_all(place.path("copy/sub/empty")).unwrap();
    let all = place.run(&["copy", "--json", "--check", "none", "set", "copy"]);
    let all = all.assert_status(0).report();
    assert_eq!(landing(&all, "unchanged_files"), 0);
    assert!(all["delivered_bytes"].as_u64().unwrap() > 3 << 20);
    let read = |root: &str| std::fs::read(place.path(root).join("sub/f3")).unwrap();
    assert_eq!(read("set"), read("copy"));
}

/// Of two copies each gets what it lacks, from replicas, over agents.
#[test]
fn each_copy_gets_what_it_lacks() {
    let place = Place::new();
    place.make_token();
    make_tree(&place.path("a"));
    common::clone_tree(&place.path("a"), &place.path("b"));
    for folder in ["one", "two"] {
        std::fs::create_dir(place.path(folder)).unwrap();
    }
    place.run(&["copy", "a", "one/set"]).assert_status(0);
    std::fs::remove_file(place.path("one/set/big")).unwrap();
    place
        .run(&["copy", "a/sub", "two/set/sub"])
        .assert_status(4);
    std::fs::create_dir(place.path("two/set")).unwrap();
    place
        .run(&["copy", "a/sub", "two/set/sub"])
        .assert_status(0);
    std::fs::remove_file(place.path("two/set/sub/f7")).unwrap();
    let agents: Vec<_> = ["a", "b", "one", "two"]
        .iter()
        .map(|name| place.agent(&place.path(name)))
        .collect();
    let at = |agent: usize, path: &str| agents[agent].at(place.path(path));
    let (a, b, one, two) = (at(0, "a"), at(1, "b"), at(2, "one/set"), at(3, "two/set"));
    let copy = [
        "copy",
        "--json",
        "--sources",
        "replicas",
        &a,
        &b,
        &one,
        "--also-to",
        &two,
    ];
    let report = place.run(&copy).assert_status(0).report();
    let wanted = 2 * (3 << 20) + 7 * 37;
    assert_eq!(report["wanted_bytes"], wanted);
    assert_eq!(report["delivered_bytes"], wanted);
    let read = |root: &str, file: &str| std::fs::read(place.path(root).join(file)).unwrap();
    assert!(read("a", "big") == read("one/set", "big"));
    assert!(read("a", "big") == read("two/set", "big"));
    assert_eq!(read("a", "sub/f7"), read("two/set", "sub/f7"));
    assert_eq!(landing(&report, "unchanged_files"), (53 - 1) + (50 - 1));
}

/// The command that was interrupted sends, when it is run again, no file that was complete, however it ended: by a signal, with agents in
/// its process, or killed, with agents that it has started.
#[test]
fn the_next_run_sends_the_rest() {
    for signal in ["-INT", "-KILL"] {
        let place = Place::new();
        std::fs::create_dir(place.path("set")).unwrap();
        for at in 0..40 {
            std::fs::write(place.path(&format!("set/f{at}")), bytes(500_000, at)).unwrap();
        }
        let (ssh, far) = (make_ssh(&place, ""), format!("host:{}", place.text("set")));
        let from = if signal == "-KILL" { &far } else { "set" };
        let program = env!("CARGO_BIN_EXE_ropewalk");
        let reach = ["--ssh", &ssh, "--remote-path", program, from, "copy"];
        let words = [&["copy", "--limit", "80Mbit"][..], &reach].concat();
        let mut moving = Moving::start(&place, &words);
        moving.until_delivered(8_000_000);
        let pid = moving.child.id().to_string();
        let kill = std::process::Command::new("kill")
            .args([signal, &pid])
            .status();
        assert!(kill.unwrap().success());
        moving.child.wait().unwrap();
        // Agents that a killed command has started end by themselves, after they have renamed complete files.
        common::wait_for("the agents to end", || {
            let names = std::fs::read_dir(place.dir.path()).unwrap();
            let mut names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let is_clean = !names.any(|name| name.starts_with('.'));
            (is_clean && place.path("copy").exists()).then_some(())
        });
        let there = std::fs::read_dir(place.path("copy")).unwrap().count() as u64;
        // Agents of a killed command finish what they were granted.
        let is_some = match signal {
            "-KILL" => (10..=40).contains(&there),
            _ => (10..40).contains(&there),
        };
        assert!(is_some, "{there} after {signal}");
        let report = place.run(&["copy", "--json", "set", "copy"]);
        let report = report.assert_status(0).report();
        assert_eq!(report["delivered_bytes"], (40 - there) * 500_000);
        assert_eq!(landing(&report, "unchanged_files"), there);
        assert_same_tree(&place.path("set"), &place.path("copy"));
    }
}

/// The bound is that of the bytes that had to be sent, not of the whole copy.
#[test]
fn the_bound_is_of_the_rest() {
    let place = Place::new();
    std::fs::create_dir(place.path("set")).unwrap();
    for at in 0..5 {
        std::fs::write(place.path(&format!("set/f{at}")), bytes(2_000_000, at)).unwrap();
    }
    place.run(&["copy", "set", "copy"]).assert_status(0);
    std::fs::write(place.path("set/f0"), bytes(2_000_000, 9)).unwrap();
    let copy = [
        "copy",
        "--json",
        "--node-rate",
        "local=1Gbit",
        "set",
        "copy",
    ];
    let report = place.run(&copy).assert_status(0).report();
    let seconds = report["bound"]["seconds"].as_f64().unwrap();
    assert!((seconds - 0.016).abs() < 1e-6, "{}", report["bound"]);
}

/// A file that was the same and is changed while the others are written: the others get their names unless the copy is to be
/// whole, the report names the file, and the next run mends it.
#[test]
fn a_file_that_changes_meanwhile_fails_the_copy() {
    for atomic in [false, true] {
        let place = Place::new();
        std::fs::create_dir(place.path("set")).unwrap();
        for at in 0..10 {
            std::fs::write(place.path(&format!("set/f{at}")), bytes(1_000_000, at)).unwrap();
        }
        place.run(&["copy", "set", "copy"]).assert_status(0);
        for at in 5..10 {
            std::fs::write(place.path(&format!("set/f{at}")), bytes(1_000_000, at + 10)).unwrap();
        }
        let mut args = vec!["copy", "--limit", "20Mbit", "set", "copy"];
        args.extend(atomic.then_some("--atomic"));
        let mut moving = Moving::start(&place, &args);
        moving.until_delivered(1_000_000);
        std::fs::write(place.path("copy/f2"), "mine").unwrap();
        let (status, report) = moving.end();
        assert_eq!(status, 1, "{report:#}");
        assert!(
            report["error"].as_str().unwrap().contains("copy/f2"),
            "{}",
            report["error"]
        );
        assert_eq!(std::fs::read(place.path("copy/f2")).unwrap(), b"mine");
        let is_new = |at: u64| {
            std::fs::read(place.path(&format!("copy/f{at}"))).unwrap() == bytes(1_000_000, at + 10)
        };
        assert_eq!(
            (5..10).filter(|at| is_new(*at)).count(),
            if atomic { 0 } else { 5 }
        );
        place.run(&["copy", "set", "copy"]).assert_status(0);
        assert_same_tree(&place.path("set"), &place.path("copy"));
    }
}
