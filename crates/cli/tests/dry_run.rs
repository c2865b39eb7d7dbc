//! `--dry-run` lists what a copy would do, and does nothing.

mod common;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use common::{Place, make_tree};
use serde_json::Value;

/// Every name below a folder, with what shows that something was done to it.
fn state(root: &Path) -> BTreeMap<String, (u64, i64, i64, i64, u32)> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let data = path.symlink_metadata().unwrap();
        if data.is_dir() {
            let names = std::fs::read_dir(&path).unwrap();
            pending.extend(names.map(|name| name.unwrap().path()));
        }
        let times = (data.mtime(), data.mtime_nsec(), data.ctime_nsec());
        let seen = (data.ino(), times.0, times.1, times.2, data.mode());
        found.insert(path.to_str().unwrap().to_owned(), seen);
    }
    found
}

fn listed(events: &[Value]) -> Vec<(String, String, u64)> {
    let events = events.iter().filter(|event| event["event"] == "listed");
    let text = |event: &Value, key: &str| event[key].as_str().unwrap().to_owned();
    events
        .map(|event| {
            let bytes = event["bytes"].as_u64().unwrap();
            (text(event, "change"), text(event, "file"), bytes)
        })
        .collect()
}

/// Before a copy all is listed, after it nothing, and later what changed; no host's files change, whatever is listed.
#[test]
fn what_would_be_sent_is_listed() {
    let place = Place::new();
    make_tree(&place.path("set"));
    std::fs::create_dir(place.path("into")).unwrap();
    let before = state(&place.path("set"));
    let ran = place.run(&["copy", "-n", "--json", "set", "into/copy"]);
    let events = ran.assert_status(0).events();
    let report = &events.last().unwrap()["report"];
    let all = listed(&events);
    let sent: Vec<_> = all.iter().filter(|one| one.0 == "send").collect();
    assert_eq!(sent.len(), 53);
    assert!(sent.contains(&&("send".into(), "set/big".into(), 3 << 20)));
    assert!(all.contains(&("make".into(), "set/sub/empty".into(), 0)));
    let bytes: u64 = sent.iter().map(|one| one.2).sum();
    assert_eq!(report["dry_run"]["send_bytes"], bytes);
    assert_eq!(report["dry_run"]["send_files"], 53);
    assert_eq!(
        (&report["delivered_bytes"], &report["outcome"]),
        (&0.into(), &"done".into())
    );
    assert_eq!(report["destinations"].as_array().unwrap().len(), 0);
    assert!(
        std::fs::read_dir(place.path("into"))
            .unwrap()
            .next()
            .is_none()
    );
    assert_eq!(before, state(&place.path("set")));

    place.run(&["copy", "set", "into/copy"]).assert_status(0);
    std::fs::write(place.path("set/sub/f3"), "changed").unwrap();
    std::fs::remove_file(place.path("into/copy/sub/f4")).unwrap();
    std::fs::remove_dir(place.path("into/copy/sub/empty")).unwrap();
    let before = state(&place.path("into"));
    for options in [&["--dry-run"][..], &["-n", "--destinations", "shared"]] {
        let mut args = vec!["copy"];
        args.extend(options);
        args.extend(["set", "into/copy"]);
        let ran = place.run(&args).assert_status(0);
        let lines: Vec<String> = ran.out().lines().map(str::to_owned).collect();
        assert_eq!(
            lines,
            [
                "make             set/sub/empty/",
                "send        7 B  set/sub/f3",
                "send      148 B  set/sub/f4",
            ]
        );
        ran.assert_says(
            "dry run: would send 155 B in 2 files, make 1 folder; 51 files (3.19 MB) unchanged",
        );
        assert_eq!(before, state(&place.path("into")));
    }
    // The copy does what was listed.
    place
        .run(&["copy", "set", "into/copy"])
        .assert_status(0)
        .assert_says("done: 155 B, ");
}

/// Several copies over agents: each is listed under its node; what a copy would be refused for is refused, and an unreadable file is
/// named as in a copy.
#[test]
fn copies_are_listed_under_their_nodes() {
    let place = Place::new();
    place.make_token();
    std::fs::create_dir(place.path("set")).unwrap();
    std::fs::write(place.path("set/f"), "four").unwrap();
    for folder in ["one", "two"] {
        std::fs::create_dir(place.path(folder)).unwrap();
    }
    place.run(&["copy", "set", "one/set"]).assert_status(0);
    let agents = ["one", "two"].map(|name| place.agent(&place.path(name)));
    let one = agents[0].at(place.path("one/set"));
    let two = agents[1].at(place.path("two/set"));
    let before = (state(&place.path("one")), state(&place.path("two")));
    let ran = place.run(&["copy", "-n", "set", &one, "--also-to", &two]);
    let out = ran.assert_status(0).out();
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 2, "{out}");
    assert!(
        lines[0].starts_with("make") && lines[0].ends_with(": set/"),
        "{out}"
    );
    assert!(
        lines[1].starts_with("send") && lines[1].ends_with(": set/f"),
        "{out}"
    );
    let after = (state(&place.path("one")), state(&place.path("two")));
    assert_eq!(before, after);

    std::fs::create_dir(place.path("one/set/x")).unwrap();
    std::fs::write(place.path("set/x"), "a file").unwrap();
    place
        .run(&["copy", "-n", "set", &one])
        .assert_status(4)
        .assert_says("refused");
    place
        .run(&["copy", "-n", "mem:1MB", "two/x"])
        .assert_status(2)
        .assert_says("mem: has none");
}

/// `--list` prints what `-n` does, and the copy follows: of own copies, of a shared one, removals and all.
#[test]
fn a_copy_lists_what_it_does() {
    let place = Place::new();
    place.make_token();
    make_tree(&place.path("set"));
    let agents = ["one", "two"].map(|name| {
        std::fs::create_dir(place.path(name)).unwrap();
        place.agent(&place.path(name))
    });
    let one = agents[0].at(place.path("one/set"));
    let two = agents[1].at(place.path("two/set"));
    place.run(&["copy", "set", "one/set"]).assert_status(0);
    std::fs::write(place.path("one/set/extra"), "no source has it").unwrap();
    std::fs::write(place.path("set/sub/f3"), "changed").unwrap();
    let args = ["copy", "--delete", "set", &one, "--also-to", &two];
    let run = |option: &str| {
        let ran = place.run(&[&args[..], &[option]].concat()).assert_status(0);
        let mut lines: Vec<String> = ran.out().lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    let foreseen = run("-n");
    let is_removal = |line: &&String| line.starts_with("remove");
    assert_eq!(foreseen.iter().filter(is_removal).count(), 1);
    assert!(!place.path("two/set").exists());
    assert_eq!(run("--list"), foreseen);
    common::assert_same_tree(&place.path("set"), &place.path("two/set"));
    // Its folder was there, and keeps its time.
    common::assert_same_tree(&place.path("set/sub"), &place.path("one/set/sub"));
    assert!(!place.path("one/set/extra").exists());
    assert_eq!(run("--list"), Vec::<String>::new());
    std::fs::write(place.path("set/sub/f3"), "again").unwrap();
    let shared = [
        "copy",
        "--list",
        "--destinations",
        "shared",
        "set",
        "one/set",
    ];
    let ran = place.run(&shared).assert_status(0);
    assert_eq!(ran.out(), "send        5 B  set/sub/f3\n");
    ran.assert_says("done: 5 B");
    place
        .run(&["copy", "--list", "--detach", "set", "one/set"])
        .assert_status(2)
        .assert_says("a job has no terminal");
}
