//! Contents of the destination compared with those of the sources: `--check hash`, `--delta`, `--resume verify` and `ropewalk check`.

mod common;

use std::collections::BTreeSet;
use std::fs::{File, FileTimes};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use common::{Moving, Place, assert_same_tree, bytes, clone_tree, make_tree};
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// Gives a file another time.
fn touch(path: &Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let file = File::options().append(true).open(path).unwrap();
    file.set_times(FileTimes::new().set_modified(time)).unwrap();
}

/// Gives it the time of another one.
fn touch_as(path: &Path, other: &Path) {
    let time = other.metadata().unwrap().modified().unwrap();
    let file = File::options().append(true).open(path).unwrap();
    file.set_times(FileTimes::new().set_modified(time)).unwrap();
}

fn landing(report: &Value, key: &str) -> u64 {
    report["landing"][key].as_u64().unwrap()
}

/// A tree, and a copy of it with other times, with contents that only reading shows to be others, and with files of other sizes.
fn touched(place: &Place) {
    make_tree(&place.path("set"));
    clone_tree(&place.path("set"), &place.path("copy"));
    for at in 0..50 {
        touch(&place.path(&format!("copy/sub/f{at}")), 1_000_000 + at);
    }
    let hidden = place.path("copy/sub/f7");
    let len = hidden.metadata().unwrap().len() as usize;
    std::fs::write(&hidden, vec![b'x'; len]).unwrap();
    touch_as(&hidden, &place.path("set/sub/f7"));
    std::fs::write(place.path("copy/sub/f8"), "of another size").unwrap();
    // rsync sets times of folders that are not of this second.
    for folder in ["set/sub", "set", "copy/sub", "copy"] {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let folder = File::open(place.path(folder)).unwrap();
        folder
            .set_times(FileTimes::new().set_modified(time))
            .unwrap();
    }
}

/// What is sent, and the result, are those of `rsync -c`; over agents, and where two of them write one copy, too.
#[test]
fn a_check_by_hash_is_that_of_rsync() {
    for writers in 0..3 {
        let place = Place::new();
        touched(&place);
        clone_tree(&place.path("copy"), &place.path("by-rsync"));
        let rsync = |options: &[&str]| {
            let mut rsync = Command::new("rsync");
            let rsync = rsync.args(["-rlptc"]).args(options);
            let ran = rsync
                .args(["set/", "by-rsync"])
                .current_dir(place.dir.path());
            let ran = ran.output().unwrap();
            assert!(ran.status.success(), "{ran:?}");
            String::from_utf8(ran.stdout).unwrap()
        };
        let would = rsync(&["-n", "--out-format=%i %n"]);
        let would: BTreeSet<String> = would
            .lines()
            .filter_map(|line| line.strip_prefix(">fc").or(line.strip_prefix("<fc")))
            .filter_map(|line| Some(format!("set/{}", line.split_once(' ')?.1)))
            .collect();
        rsync(&[]);

        if writers > 0 {
            place.make_token();
        }
        let agents: Vec<_> = (0..writers)
            .map(|_| place.agent(place.dir.path()))
            .collect();
        let places: Vec<String> = agents.iter().map(|a| a.at(place.path("copy"))).collect();
        let mut to: Vec<&str> = match places.as_slice() {
            [] => vec!["copy"],
            [one] => vec![one],
            [one, two, ..] => vec![one, "--also-to", two, "--destinations", "shared"],
        };
        to.insert(0, "set");
        let run = |options: &[&str]| {
            let mut args = vec!["copy", "--json", "--check", "hash"];
            args.extend(options);
            args.extend(&to);
            place.run(&args).assert_status(0)
        };
        let listed = run(&["-n"]).events();
        let listed = listed.iter().filter(|event| event["change"] == "send");
        let listed: BTreeSet<String> = listed
            .map(|event| event["file"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(listed, would, "{writers}");
        assert_eq!(listed.len(), 2);

        let before = place.path("copy/big").metadata().unwrap().ino();
        let report = run(&[]).report();
        assert_eq!(landing(&report, "unchanged_files"), 51);
        let sent =
            ["set/sub/f7", "set/sub/f8"].map(|name| place.path(name).metadata().unwrap().len());
        assert_eq!(report["delivered_bytes"], sent.iter().sum::<u64>());
        assert_same_tree(&place.path("copy"), &place.path("by-rsync"));
        assert_same_tree(&place.path("copy"), &place.path("set"));
        assert_eq!(place.path("copy/big").metadata().unwrap().ino(), before);
        assert_eq!(run(&[]).report()["wanted_bytes"], 0);
    }
}

/// Many small files of two sources that are parts of a set: those that differ are sent, from the source that has them.
#[test]
fn small_files_of_parts_are_compared() {
    let place = Place::new();
    for part in ["a", "b"] {
        std::fs::create_dir_all(place.path(&format!("{part}/set/{part}"))).unwrap();
        for at in 0..300 {
            let path = place.path(&format!("{part}/set/{part}/{at}"));
            std::fs::write(path, bytes(100 + at, at as u64)).unwrap();
        }
    }
    place.make_token();
    let agents = [place.agent(place.dir.path()), place.agent(place.dir.path())];
    let from = [
        agents[0].at(place.path("a/set")),
        agents[1].at(place.path("b/set")),
    ];
    let run = || {
        let args = [
            "copy",
            "--json",
            "--check",
            "hash",
            "--sources",
            "parts",
            &from[0],
            &from[1],
            "copy",
        ];
        place.run(&args).assert_status(0).report()
    };
    run();
    for part in ["a", "b"] {
        for at in 0..300 {
            touch(&place.path(&format!("copy/{part}/{at}")), 1_000_000);
        }
    }
    assert_eq!(run()["delivered_bytes"], 0);
    overwrite(&place.path("copy/a/299"), 7, b"!");
    overwrite(&place.path("copy/b/0"), 7, b"!");
    let report = run();
    assert_eq!(report["delivered_bytes"], 100 + 299 + 100);
    assert_eq!(landing(&report, "unchanged_files"), 598);
    for part in ["a", "b"] {
        let (from, to) = (format!("{part}/set/{part}"), format!("copy/{part}"));
        assert_same_tree(&place.path(&from), &place.path(&to));
    }
}

/// Of a file with a few other bytes the chunks around these are sent; of a shared copy, too; the report says what was not.
#[test]
fn a_delta_sends_chunks() {
    for writers in [0, 2] {
        let place = Place::new();
        std::fs::create_dir(place.path("set")).unwrap();
        std::fs::write(place.path("set/image"), bytes(9 << 20, 1)).unwrap();
        std::fs::write(place.path("set/small"), bytes(1000, 2)).unwrap();
        if writers > 0 {
            place.make_token();
        }
        let agents: Vec<_> = (0..writers)
            .map(|_| place.agent(place.dir.path()))
            .collect();
        let places: Vec<String> = agents.iter().map(|a| a.at(place.path("copy"))).collect();
        let to: Vec<&str> = match places.as_slice() {
            [one, two] => vec!["set", one, "--also-to", two, "--destinations", "shared"],
            _ => vec!["set", "copy"],
        };
        let run = |options: &[&str]| place.run(&[&["copy"], options, &to].concat());
        run(&["--delta"]).assert_status(0);
        overwrite(&place.path("set/image"), 5 * MIB, b"changed");
        std::fs::write(place.path("set/small"), bytes(1000, 3)).unwrap();
        let report = run(&["--json", "--delta"]).assert_status(0).report();
        assert_eq!(report["delivered_bytes"], MIB + 1000);
        assert_eq!(landing(&report, "taken_bytes"), 8 * MIB);
        assert_eq!(landing(&report, "resumed_bytes"), 0);
        assert_same_tree(&place.path("copy"), &place.path("set"));
        // Longer by less than a chunk, and read back at the end.
        let mut longer = std::fs::read(place.path("set/image")).unwrap();
        longer.extend([7; 77]);
        std::fs::write(place.path("set/image"), &longer).unwrap();
        run(&["--delta", "--verify", "sink"])
            .assert_status(0)
            .assert_says("done: 77 B, ")
            .assert_says("; 9.44 MB from the files replaced");
        assert_same_tree(&place.path("copy"), &place.path("set"));
    }
    let place = Place::new();
    std::fs::create_dir(place.path("set")).unwrap();
    place
        .run(&["copy", "--delta", "--check", "none", "set", "copy"])
        .assert_status(2)
        .assert_says("--check none sends every file whole");
}

/// What a killed run left is hashed before the next one goes on with it: bytes that changed on the disk are sent again.
#[test]
fn what_a_killed_run_left_is_verified() {
    let place = Place::new();
    place.make_token();
    std::fs::create_dir(place.path("there")).unwrap();
    std::fs::write(place.path("image"), bytes(24 << 20, 1)).unwrap();
    let mut agent = place.agent(&place.path("there"));
    let to = agent.at(place.path("there/image"));
    let mut moving = Moving::start(
        &place,
        &["copy", "--wait", "0", "--limit", "40Mbit", "image", &to],
    );
    moving.until_delivered(6 * MIB);
    agent.kill();
    moving.end();
    let left = std::fs::read_dir(place.path("there")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().path()).collect();
    let staged = left
        .iter()
        .find(|path| path.extension().is_none_or(|end| end != "journal"));
    overwrite(staged.unwrap(), 3, b"rot");
    let report = place
        .run(&[
            "copy",
            "--json",
            "--resume",
            "verify",
            "image",
            "there/image",
        ])
        .assert_status(0)
        .report();
    let resumed = landing(&report, "resumed_bytes");
    assert!(resumed > 0, "{report:#}");
    assert_eq!(report["delivered_bytes"], (24 << 20) - resumed);
    let read = |name: &str| std::fs::read(place.path(name)).unwrap();
    assert!(read("image") == read("there/image"));
}

/// Trees are compared without a change, in folders that are only to be read; several copies with one. What differs is listed and
/// counted.
#[test]
fn trees_are_checked() {
    let place = Place::new();
    touched(&place);
    clone_tree(&place.path("set"), &place.path("equal"));
    let sizes = |root: &str| {
        std::fs::metadata(place.path(root).join("sub"))
            .unwrap()
            .ctime()
    };
    let before = (sizes("set"), sizes("copy"));
    place
        .run(&["check", "set", "equal"])
        .assert_status(0)
        .assert_says("equal: 53 files (3.19 MB), ");
    place.run(&["check", "-a", "set", "equal"]).assert_status(0);
    place
        .run(&["check", "--quick", "set", "equal"])
        .assert_status(0);
    std::fs::remove_file(place.path("copy/sub/f9")).unwrap();
    std::fs::write(place.path("copy/more"), "more").unwrap();
    let ran = place.run(&["check", "set", "copy"]).assert_status(3);
    let lines = ran.out();
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(
        lines,
        [
            "extra       set/more",
            "contents    set/sub/f7",
            "size        set/sub/f8",
            "missing     set/sub/f9",
        ]
    );
    ran.assert_says("differ: 1 missing, 1 extra, 1 size, 1 contents; 50 files (3.19 MB) equal, ");
    let all = place
        .run(&["check", "-a", "--json", "set", "copy"])
        .assert_status(3);
    let report = all.report();
    assert_eq!(report["check"]["contents"], 1);
    assert!(
        report["check"]["metadata"].as_u64().unwrap() >= 47,
        "{report:#}"
    );
    assert_eq!(report["error_kind"], "differing");
    assert_eq!(
        (&report["dry_run"], &report["destinations"]),
        (&Value::Null, &Value::Array(vec![]))
    );
    let quick = place
        .run(&["check", "--quick", "set", "copy"])
        .assert_status(3);
    assert!(!quick.out().contains("sub/f7") && quick.out().contains("metadata    set/sub/f6"));
    place
        .run(&[
            "check",
            "--exclude",
            "f?",
            "--exclude",
            "more",
            "set",
            "copy",
        ])
        .assert_status(0);
    assert_eq!(before.0, sizes("set"));

    // One may hold the other, and neither agent may write.
    clone_tree(&place.path("equal"), &place.path("copy/kept"));
    let inner = place.run(&["check", "copy/kept", "copy"]).assert_status(3);
    assert!(
        inner.out().contains("extra       kept/kept\n"),
        "{}",
        inner.out()
    );
    place.make_token();
    let agents = [place.agent(place.dir.path()), place.agent(place.dir.path())];
    let at = |agent: usize, path: &str| agents[agent].at(place.path(path));
    let ran = place.run(&["check", &at(0, "set"), &at(1, "equal"), "copy"]);
    let out = ran.assert_status(3).out();
    assert!(out.contains("missing     this host: set/sub/f9\n"), "{out}");
    assert!(
        out.lines().all(|line| line.contains("this host: ")),
        "{out}"
    );
}

/// What is not there is refused, and what cannot be compared by its name.
#[test]
fn checks_that_cannot_be_made_are_refused() {
    let place = Place::new();
    std::fs::write(place.path("file"), "file").unwrap();
    std::fs::create_dir(place.path("folder")).unwrap();
    for (args, status, text) in [
        (&["file", "nothing"][..], 4, "nothing"),
        (&["nothing", "file"], 4, "nothing"),
        (&["folder", "file"], 4, "file"),
        (&["file"], 2, "PATH"),
        (&["mem:5", "file"], 2, "only files and folders"),
        (&["host:fi*", "file"], 2, "patterns are not expanded"),
    ] {
        let ran = place.run(&[&["check"], args].concat());
        ran.assert_status(status).assert_says(text);
    }
    // As a destination of copy, B/ is the name of A in B.
    place.run(&["copy", "file", "folder/"]).assert_status(0);
    place.run(&["check", "file", "folder/"]).assert_status(0);
    assert_eq!(std::fs::read_dir(place.path("folder")).unwrap().count(), 1);
}
