//! Lanes of datagrams from the command line: what arrives, what is refused, and what becomes of them when an end dies.

mod common;

use common::{Moving, Place, assert_same_tree, bytes, make_tree};

/// Length of the file that is moved slowly.
const LENGTH: usize = 12 << 20;

/// Each lane, monitor and protection moves the same tree, and the report tells the lane and its datagrams.
#[test]
fn a_tree_arrives_whole() {
    let place = Place::new();
    make_tree(&place.path("set"));
    let ways: [&[&str]; 6] = [
        &["--lane", "rbudp", "--rate", "400Mbit"],
        &[
            "--lane", "rbudp", "--rate", "400Mbit", "--plain", "--mtu", "1500",
        ],
        &["--lane", "rapid"],
        &[
            "--lane", "rapid", "--rate", "800Mbit", "--verify", "sink", "--mtu", "1500",
        ],
        &[
            "--lane",
            "rapid",
            "--rate",
            "200Mbit",
            "--monitor",
            "linux26",
            "--plain",
            "--verify",
            "none",
        ],
        &[
            "--lane",
            "rapid",
            "--rate",
            "200Mbit",
            "--monitor",
            "ule",
            "--receive-buffer",
            "1MiB",
        ],
    ];
    for (at, args) in ways.iter().enumerate() {
        let copy = format!("copy{at}");
        let ran = place
            .run(&[&["copy", "--json", "set", &copy][..], args].concat())
            .assert_status(0);
        assert_same_tree(&place.path("set"), &place.path(&copy));
        let report = ran.report();
        let pair = &report["pairs"][0];
        assert_eq!(pair["lane"], args[1], "{report:#}");
        assert_eq!(pair["streams"], 1);
        assert!(pair["datagrams"].as_u64().unwrap() > 300, "{report:#}");
        let blast = &pair["blast"];
        let number = |key: &str| blast[key].as_f64().unwrap_or(f64::NAN);
        assert_eq!(
            number("monitor_processor_seconds") > 0.0,
            args[1] == "rapid",
            "{report:#}"
        );
        // What is lost is asked for again, unless it was the last of its round and came late.
        let again = pair["datagrams_again"].as_f64().unwrap();
        assert!(
            again <= number("lost_datagrams") + number("stray_datagrams"),
            "{report:#}"
        );
        let gaps = |of: &str| blast[of]["longest_seconds"].as_f64().unwrap_or(0.0);
        assert!(
            gaps("arrival_gaps") > 0.0 && gaps("delivery_gaps") > 0.0,
            "{report:#}"
        );
        assert_eq!(report["duplicate_bytes"], 0);
    }
}

/// A tree of more small files than a lane may have outstanding at once arrives, by datagrams and over one stream.
#[test]
fn many_small_files_arrive() {
    let place = Place::new();
    let set = place.path("set");
    for folder in 0..20 {
        let folder = set.join(folder.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        for file in 0..1000 {
            std::fs::write(folder.join(file.to_string()), [b'x'; 20]).unwrap();
        }
    }
    let ways: [&[&str]; 2] = [&["--lane", "rapid"], &["--lane", "tcp", "--streams", "1"]];
    for (at, args) in ways.iter().enumerate() {
        let copy = format!("copy{at}");
        let ran = place.run(&[&["copy", "--json", "set", &copy][..], args].concat());
        assert_eq!(ran.assert_status(0).report()["files"], 20_000);
        assert_same_tree(&set, &place.path(&copy));
    }
}

/// What cannot work is refused before anything is made.
#[test]
fn what_cannot_work_is_refused() {
    let place = Place::new();
    std::fs::write(place.path("file"), b"bytes").unwrap();
    for (args, words) in [
        (&["--lane", "rbudp"][..], "--rate 1.6Gbit"),
        (&["--rate", "1Gbit"], "--lane rbudp"),
        (
            &["--lane", "rbudp", "--rate", "1Gbit", "--rate", "2Gbit"],
            "cannot be used multiple times",
        ),
        (&["--lane", "rapid", "--mtu", "500"], "1280"),
        (&["--lane", "rapid", "--monitor", "windows"], "linux26"),
        (
            &["--lane", "rapid", "--receive-buffer", "5"],
            "--receive-buffer",
        ),
        (&["--mtu", "1500"], "rbudp and rapid lanes"),
        (&["--receive-buffer", "1MiB"], "--lane rapid"),
        (
            &["--lane", "rbudp", "--rate", "1Gbit", "--monitor", "ule"],
            "rapid lanes",
        ),
    ] {
        let ran = place.run(&[&["copy", "file", "copy"][..], args].concat());
        assert_ne!(ran.status(), 0);
        ran.assert_says(words);
        assert!(!place.path("copy").exists());
    }
}

/// The rate is kept: no more arrives while bytes move, whatever the machine.
#[test]
fn the_rate_is_a_bound() {
    let place = Place::new();
    let report = place
        .run(&[
            "copy",
            "--lane",
            "rbudp",
            "--rate",
            "40Mbit",
            "mem:12MiB",
            "null:",
            "--json",
        ])
        .assert_status(0)
        .report();
    // Whole datagrams are 40 Mbit/s; the first burst may come before its time is counted.
    let rate = report["moving_bits_per_second"].as_f64().unwrap();
    assert!(rate < 41e6, "{rate}");
}

/// A sender that is killed leaves the rest missing, named, and no file takes the name; a receiver that is killed fails the command.
#[test]
fn ends_that_die_are_told() {
    for lane in [["--lane", "rbudp"], ["--lane", "rapid"]] {
        for kills_sender in [true, false] {
            let place = Place::new();
            place.make_token();
            std::fs::create_dir(place.path("a")).unwrap();
            std::fs::create_dir(place.path("c")).unwrap();
            std::fs::write(place.path("a/set"), bytes(LENGTH, 5)).unwrap();
            let mut a = place.agent(&place.path("a"));
            let mut c = place.agent(&place.path("c"));
            let (from, to) = (a.at(place.path("a/set")), c.at(place.path("c/copy")));
            let rate = ["--rate", "60Mbit", "--wait", "0", &from, &to];
            let args = [&["copy", lane[0], lane[1]][..], &rate].concat();
            let mut moving = Moving::start(&place, &args);
            moving.until_delivered(LENGTH as u64 / 4);
            if kills_sender {
                a.kill()
            } else {
                c.kill()
            }
            let (status, report) = moving.end();
            assert_eq!(status, if kills_sender { 3 } else { 1 }, "{report:#}");
            assert!(!place.path("c/copy").exists());
        }
    }
}
