//! `--delete` removes what no source has, as rsync does, when all has arrived.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use common::{Moving, Place, bytes, make_tree};

fn names(root: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut pending = vec![root.to_owned()];
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap();
            found.insert(name.to_owned());
            if path.symlink_metadata().unwrap().is_dir() {
                pending.push(path);
            }
        }
    }
    found
}

/// Folders that stood there keep their times.
#[track_caller]
fn assert_same(a: &Path, b: &Path) {
    let ran = Command::new("diff")
        .args(["-r", "--no-dereference"])
        .args([a, b])
        .output();
    let ran = ran.unwrap();
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stdout)
    );
}

/// A set, and a copy of it that has more.
fn set_and_more(place: &Place) {
    make_tree(&place.path("set"));
    place.run(&["copy", "-q", "set", "copy"]).assert_status(0);
    for path in ["gone", "sub/gone.o", "sub/old/gone", "sub/old/kept.o"] {
        let path = place.path("copy").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "gone").unwrap();
    }
}

/// A dry run lists what a copy then removes; the copy counts it, and is what rsync makes. Excluded names stay.
#[test]
fn what_no_source_has_is_removed() {
    let place = Place::new();
    set_and_more(&place);
    let (ours, theirs) = (place.path("copy"), place.path("theirs"));
    let cloned = Command::new("cp").arg("-a").args([&ours, &theirs]).status();
    assert!(cloned.unwrap().success());
    let options = ["--delete", "--exclude", "*.o"];
    let copy = |more: &[&'static str]| {
        let mut args = vec!["copy"];
        args.extend(options);
        args.extend(more);
        args.extend(["set", "copy"]);
        place.run(&args)
    };
    let before = names(&ours);
    let dry = copy(&["-n"]).assert_status(0);
    assert_eq!(
        dry.out(),
        format!(
            "remove      4 B  {0}/gone\nremove      4 B  {0}/sub/old/gone\n",
            place.text("copy")
        )
    );
    dry.assert_says("dry run: would send 0 B in 0 files, remove 2 files (8 B); 53 files");
    assert_eq!(before, names(&ours));
    copy(&[])
        .assert_status(0)
        .assert_says("done: nothing to send, 53 files")
        .assert_says("\nremoved    2 files in ");
    let source = format!("{}/", place.text("set"));
    let ran = Command::new("rsync")
        .arg("-a")
        .args(options)
        .arg(&source)
        .arg(&theirs)
        .status();
    assert!(ran.unwrap().success());
    assert_eq!(names(&ours), names(&theirs));
    assert!(ours.join("sub/gone.o").exists());

    let all = place.run(&["copy", "--json", "--delete", "set", "copy"]);
    let report = all.assert_status(0).report();
    let landing = &report["landing"];
    assert_eq!(
        (&landing["removed_files"], &landing["removed_folders"]),
        (&2.into(), &1.into())
    );
    assert_eq!(landing["not_removed"].as_array().unwrap().len(), 0);
    assert_same(&place.path("set"), &ours);
    // Without it all stays.
    std::fs::write(ours.join("more"), "more").unwrap();
    place.run(&["copy", "set", "copy"]).assert_status(0);
    assert!(ours.join("more").exists());
}

/// Of a shared destination one node removes, once; of several copies each its own; over agents.
#[test]
fn nodes_remove_what_is_extra() {
    let place = Place::new();
    place.make_token();
    set_and_more(&place);
    let cloned = Command::new("cp")
        .arg("-a")
        .args([place.path("copy"), place.path("second")])
        .status();
    assert!(cloned.unwrap().success());
    std::fs::write(place.path("set/new"), bytes(3 << 20, 9)).unwrap();
    let agents: Vec<_> = (0..2).map(|_| place.agent(place.dir.path())).collect();
    let at = |agent: usize, path: &str| agents[agent].at(place.path(path));
    let (one, two) = (at(0, "copy"), at(1, "copy"));
    let shared = [
        "copy",
        "--json",
        "--delete",
        "--destinations",
        "shared",
        "set",
        &one,
        "--also-to",
        &two,
    ];
    let dry: Vec<&str> = shared.iter().copied().chain(["-n"]).collect();
    let found = place.run(&dry).assert_status(0).report();
    assert_eq!(found["dry_run"]["remove_files"], 4);
    assert_eq!(found["dry_run"]["remove_folders"], 1);
    assert!(place.path("copy/gone").exists());
    let report = place.run(&shared).assert_status(0).report();
    assert_eq!(report["landing"]["removed_files"], 4);
    assert_eq!(report["landing"]["removed_folders"], 1);
    assert_same(&place.path("set"), &place.path("copy"));

    std::fs::write(place.path("copy/sub/gone"), "gone").unwrap();
    let second = at(1, "second");
    let copies = [
        "copy",
        "--json",
        "--delete",
        "set",
        &one,
        "--also-to",
        &second,
    ];
    let report = place.run(&copies).assert_status(0).report();
    assert_eq!(report["landing"]["removed_files"], 1 + 4);
    for copy in ["copy", "second"] {
        assert_same(&place.path("set"), &place.path(copy));
    }
}

/// Things in a folder: each loses what is extra, their folder nothing.
#[test]
fn several_sources_are_mirrored_side_by_side() {
    let place = Place::new();
    for path in [
        "a/f",
        "b/f",
        "to/a/f",
        "to/a/gone",
        "to/b/gone",
        "to/c/stays",
        "to/stays",
    ] {
        let path = place.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "f").unwrap();
    }
    place
        .run(&["copy", "--delete", "a", "b", "to/"])
        .assert_status(0);
    let expected = ["a", "a/f", "b", "b/f", "c", "c/stays", "stays"];
    assert_eq!(names(&place.path("to")), expected.map(str::to_owned).into());
}

/// Nothing is removed, and it is said, where something of a source cannot be read, or a source has nothing; nor where the copy would hold
/// its source, and not from a copy that is not complete.
#[test]
fn nothing_is_removed_where_sources_are_in_doubt() {
    let place = Place::new();
    set_and_more(&place);
    let before = names(&place.path("copy"));
    if let Some(mut command) = place.command_without_rights() {
        std::fs::create_dir(place.path("set/closed")).unwrap();
        let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(place.path("set/closed"), mode(0o000)).unwrap();
        command.args(["copy", "--delete", "set", "copy"]);
        common::Ran(command.output().unwrap())
            .assert_status(3)
            .assert_says("nothing is removed at the destinations");
        assert_eq!(before, names(&place.path("copy")));
        std::fs::remove_dir(place.path("set/closed")).unwrap();
    }
    std::fs::create_dir(place.path("empty")).unwrap();
    for options in [
        &["--delete"][..],
        &["--delete", "-n"],
        &["--delete", "--destinations=shared"],
    ] {
        let copy = [&["copy"], options, &["empty", "copy"]].concat();
        place
            .run(&copy)
            .assert_status(4)
            .assert_says("has nothing in it");
    }
    place
        .run(&["copy", "--delete", "copy/sub", "copy"])
        .assert_status(4)
        .assert_says("hold its own source");
    assert_eq!(before, names(&place.path("copy")));
    assert!(place.path("copy/gone").exists());
}

/// A command that is stopped while bytes move has removed nothing; the next run removes.
#[test]
fn an_interrupted_copy_removes_nothing() {
    for signal in ["-INT", "-KILL"] {
        let place = Place::new();
        set_and_more(&place);
        std::fs::write(place.path("set/new"), bytes(20 << 20, 9)).unwrap();
        let args = ["copy", "--delete", "--limit", "80Mbit", "set", "copy"];
        let mut moving = Moving::start(&place, &args);
        moving.until_delivered(2 << 20);
        let pid = moving.child.id().to_string();
        let kill = Command::new("kill").args([signal, &pid]).status();
        assert!(kill.unwrap().success());
        moving.child.wait().unwrap();
        assert!(place.path("copy/gone").exists(), "{signal}");
        place
            .run(&["copy", "--delete", "set", "copy"])
            .assert_status(0);
        assert_same(&place.path("set"), &place.path("copy"));
    }
}

/// A source that lies in what another source's copy would lose, and a destination inside another one, are refused before anything is
/// removed.
#[test]
fn sources_and_destinations_inside_a_destination_are_refused() {
    let place = Place::new();
    let write = |path: &str, text: &str| {
        let path = place.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("d/a/src/f", "precious");
    write("d/a/list", "precious");
    write("x/a/y", "y");
    for args in [
        &["--exclude", "/src/f", "d/a/src", "x/a", "d/"][..],
        &["d/a/list", "x/a", "d/"],
    ] {
        place
            .run(&[&["copy", "--delete"], args].concat())
            .assert_status(4)
            .assert_says("its own source");
    }
    write("d/sub/old", "old");
    place
        .run(&["copy", "--delete", "x/", "d", "--also-to", "d/sub"])
        .assert_status(4)
        .assert_says("--delete would remove it there");
    for path in ["d/a/src/f", "d/a/list", "d/sub/old"] {
        assert!(place.path(path).exists(), "{path}");
    }
}

/// A mirror replaces folders by files and the reverse, also where several nodes write it; without `--delete` it is refused.
#[test]
fn other_kinds_of_things_make_way() {
    let place = Place::new();
    place.make_token();
    make_tree(&place.path("set"));
    for name in ["one", "two"] {
        let path = |below: &str| place.path(name).join(below);
        std::fs::create_dir_all(path("sub.is.file/deep")).unwrap();
        std::fs::write(path("sub.is.file/deep/x"), "old").unwrap();
        std::fs::write(path("folder"), "old").unwrap();
    }
    std::fs::write(place.path("set/sub.is.file"), bytes(3 << 20, 9)).unwrap();
    std::fs::create_dir(place.path("set/folder")).unwrap();
    std::fs::write(place.path("set/folder/new"), "new").unwrap();
    let refused = place.run(&["copy", "set", "one"]).assert_status(4);
    refused.assert_says("copy with --delete");
    let report = place.run(&["copy", "--json", "--delete", "-n", "set", "one"]);
    let report = report.assert_status(0).report();
    assert_eq!(report["dry_run"]["remove_files"], 2);
    assert_eq!(report["dry_run"]["remove_folders"], 2);
    let report = place.run(&["copy", "--json", "--delete", "set", "one"]);
    let report = report.assert_status(0).report();
    assert_eq!(report["landing"]["removed_files"], 2);
    assert_eq!(report["landing"]["removed_folders"], 2);
    assert_same(&place.path("set"), &place.path("one"));
    let agents: Vec<_> = (0..2).map(|_| place.agent(place.dir.path())).collect();
    let at = |agent: usize| agents[agent].at(place.path("two"));
    let shared = [
        "copy",
        "--delete",
        "--destinations",
        "shared",
        "set",
        &at(0),
        "--also-to",
        &at(1),
    ];
    place.run(&shared).assert_status(0);
    assert_same(&place.path("set"), &place.path("two"));
}

/// A name that cannot be given costs the copy that name: all others are there, it is named, and the next run goes on with it.
#[test]
fn a_name_that_cannot_be_given_is_named() {
    let place = Place::new();
    make_tree(&place.path("set"));
    std::fs::create_dir(place.path("set/closed")).unwrap();
    std::fs::write(place.path("set/closed/big"), bytes(3 << 20, 9)).unwrap();
    std::fs::create_dir_all(place.path("copy/closed")).unwrap();
    std::fs::write(place.path("copy/closed/big"), "old").unwrap();
    let fix = |flag: &str| {
        let file = place.path("copy/closed/big");
        let ran = Command::new("chattr").arg(flag).arg(file).status();
        ran.is_ok_and(|status| status.success())
    };
    if !fix("+i") {
        eprintln!("SKIPPED: this user or file system cannot make a file immutable");
        return;
    }
    let ran = place.run(&["copy", "--json", "--delete", "set", "copy"]);
    let report = ran.assert_status(3).report();
    assert_eq!(report["outcome"], "partial", "{report:#}");
    let unplaced = &report["landing"]["not_placed"];
    let file = unplaced[0]["file"].as_str().unwrap();
    assert!(file.ends_with("copy/closed/big"), "{report:#}");
    assert_eq!(unplaced[0]["reason"], "permission denied");
    assert_eq!(report["destinations"][0]["complete"], false);
    assert_eq!(
        std::fs::read(place.path("copy/closed/big")).unwrap(),
        b"old"
    );
    assert!(fix("-i"));
    let ran = place.run(&["copy", "--json", "--delete", "set", "copy"]);
    let report = ran.assert_status(0).report();
    assert_eq!(report["wanted_bytes"], 0, "{report:#}");
    assert_eq!(report["landing"]["resumed_bytes"], 3 << 20);
    assert_same(&place.path("set"), &place.path("copy"));
}

/// A file that vanishes while it is copied is no sign of a source that is not mounted: the sources are read again, and the copy is their mirror.
#[test]
fn a_source_that_loses_a_file_is_mirrored() {
    let place = Place::new();
    let set = place.path("set");
    std::fs::create_dir(&set).unwrap();
    for name in ["a", "b", "z"] {
        std::fs::write(set.join(name), bytes(8 << 20, 3)).unwrap();
    }
    std::fs::create_dir(place.path("copy")).unwrap();
    for name in ["a", "extra"] {
        std::fs::write(place.path("copy").join(name), name).unwrap();
    }
    let args = ["copy", "--delete", "--limit", "100Mbit", "set/.", "copy/"];
    let mut moving = Moving::start(&place, &args);
    moving.until_delivered(1 << 20);
    std::fs::remove_file(set.join("z")).unwrap();
    let (status, report) = moving.end();
    assert_eq!(status, 0, "{report:#}");
    assert_same(&set, &place.path("copy"));
    assert_eq!(report["landing"]["removed_files"], 1);
}
