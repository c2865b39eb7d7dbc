//! A tree is copied over an older one: its files take the place of the older ones while it runs.

mod common;

use common::processes::{assert_gone, family, kill_at_once, temporary};
use common::{Moving, Place, assert_same_tree, bytes, wait_for};

/// A tree of a small and some larger files, and an older copy of it.
fn make_trees(place: &Place) {
    for (root, seed) in [("set", 1), ("copy", 100)] {
        std::fs::create_dir_all(place.path(root).join("sub")).unwrap();
        for at in 0..8 {
            let path = place.path(root).join(format!("sub/f{at}"));
            std::fs::write(path, bytes(3 << 20, seed + at)).unwrap();
        }
        std::fs::write(place.path(root).join("a"), bytes(5000, seed + 50)).unwrap();
    }
    // What the end is recognised by: it comes with the last names.
    std::os::unix::fs::symlink("a", place.path("set/z")).unwrap();
}

/// Whole files have their names while the others move. All processes are killed then: the files stay, the next run finds them
/// unchanged and sends nothing again that was safe.
#[test]
fn files_have_their_names_before_the_end() {
    let place = Place::new();
    make_trees(&place);
    let mut moving = Moving::start(&place, &["copy", "--limit", "40Mbit", "set", "copy"]);
    let is_new = |file: &str| {
        let [new, there] = ["set", "copy"].map(|root| std::fs::read(place.path(root).join(file)));
        new.unwrap() == there.unwrap()
    };
    wait_for("a file to have its name", || is_new("a").then_some(()));
    moving.until_delivered(8 << 20);
    wait_for("more files", || is_new("sub/f0").then_some(()));
    assert!(!place.path("copy/z").is_symlink() && !is_new("sub/f7"));
    let all = family(moving.child.id() as i32);
    kill_at_once(&all);
    moving.child.wait().unwrap();
    assert_gone(&all[1..]);
    let report = place.run(&["copy", "--json", "set", "copy"]);
    let report = report.assert_status(0).report();
    let number = |key: &str| report["landing"][key].as_u64().unwrap();
    let there = number("resumed_bytes") + number("unchanged_bytes");
    assert!(
        there >= 8 << 20 && number("unchanged_files") >= 2,
        "{}",
        report["landing"]
    );
    assert_eq!(
        report["delivered_bytes"].as_u64().unwrap(),
        (24 << 20) + 5000 - there
    );
    // Folders that are there keep their times.
    for folder in ["", "sub"] {
        let time = place
            .path("set")
            .join(folder)
            .metadata()
            .unwrap()
            .modified();
        let copy = std::fs::File::open(place.path("copy").join(folder)).unwrap();
        copy.set_modified(time.unwrap()).unwrap();
    }
    assert_same_tree(&place.path("set"), &place.path("copy"));
    assert_eq!(temporary(&place.path("copy")), [""; 0]);
}

/// After Ctrl-C the report counts what has its name, before the end or after.
#[test]
fn an_interrupted_refresh_counts_its_files() {
    for (option, is_named) in [(None, true), (Some("--atomic"), false)] {
        let place = Place::new();
        make_trees(&place);
        let mut args = vec!["copy", "--limit", "40Mbit", "set", "copy"];
        args.extend(option);
        let mut moving = Moving::start(&place, &args);
        moving.until_delivered(8 << 20);
        let pid = moving.child.id().to_string();
        let sent = std::process::Command::new("kill")
            .args(["-INT", &pid])
            .status();
        assert!(sent.unwrap().success());
        let (status, report) = moving.end();
        assert_eq!(status, 130);
        let files = report["destinations"][0]["files"].as_u64().unwrap();
        let is_new = std::fs::read(place.path("copy/a")).unwrap() == bytes(5000, 51);
        assert_eq!((files > 1, is_new), (is_named, is_named), "{report:#}");
    }
}

/// A tree of 60 % of a disk is refreshed in place; not where all of it is to appear at once, which is said before anything moves.
#[test]
fn a_disk_needs_no_space_for_two_copies() {
    let place = Place::new();
    make_trees(&place);
    std::fs::create_dir(place.path("disk")).unwrap();
    let on_disk = |command: &str| {
        let script = format!(
            "mount -t tmpfs -o size=40m none disk && cp -a copy disk/copy || exit 99
             {command}
             status=$?
             diff -r set disk/copy >&2 && echo same
             ls -A disk/copy disk
             exit $status"
        );
        let mut shell = place.command_of("unshare");
        shell.args(["-m", "sh", "-c", &script]);
        let ran = shell
            .env("ROPEWALK", env!("CARGO_BIN_EXE_ropewalk"))
            .output();
        let ran = ran.ok().filter(|ran| ran.status.code() != Some(99))?;
        let [out, err] = [ran.stdout, ran.stderr].map(|text| String::from_utf8(text).unwrap());
        (ran.status.code() != Some(1) || !err.contains("unshare")).then_some((ran.status, out, err))
    };
    for option in ["", "--check none"] {
        let command = format!("\"$ROPEWALK\" copy {option} set disk/copy");
        let Some((status, out, err)) = on_disk(&command) else {
            eprintln!("SKIPPED: no mount namespace here; run as root");
            return;
        };
        assert!(status.success(), "{err}");
        assert!(
            out.starts_with("same\n") && !out.contains("ropewalk"),
            "{out}{err}"
        );
    }
    let (status, out, err) = on_disk("\"$ROPEWALK\" copy --atomic set disk/copy").unwrap();
    assert_eq!(status.code(), Some(4), "{err}");
    assert!(err.contains("the disk is full, at least "), "{err}");
    assert!(
        err.contains("without them each file takes the place of the older one"),
        "{err}"
    );
    assert!(!out.contains("same") && !out.contains("ropewalk"), "{out}");
}
