//! What stands at a destination, what a copy there may be read by, and sources that cannot be copied as they are.

mod common;

use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use common::{Moving, Place, bytes};

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o7777
}

/// A tree that is copied into a folder leaves the folder's mode and time alone, and the report says that it was merged, what
/// is new and what was replaced, and which bits are not kept.
#[test]
fn a_folder_that_stands_there_is_merged_into() {
    let place = Place::new();
    for (folder, bits) in [
        ("set", 0o750),
        ("all", 0o1777),
        ("share", 0o2775),
        ("private", 0o700),
    ] {
        std::fs::create_dir(place.path(folder)).unwrap();
        set_mode(&place.path(folder), bits);
    }
    std::fs::write(place.path("set/a"), "a").unwrap();
    std::fs::write(place.path("set/b"), "b").unwrap();
    set_mode(&place.path("set/b"), 0o4755);
    for (folder, bits) in [("all", 0o1777), ("share", 0o2775), ("private", 0o700)] {
        std::fs::write(place.path(folder).join("a"), "old").unwrap();
        let before = place.path(folder).metadata().unwrap();
        let ran = place
            .run(&["copy", "--json", "set", folder])
            .assert_status(0);
        let after = place.path(folder).metadata().unwrap();
        assert_eq!(mode(&place.path(folder)), bits, "{folder}");
        assert_eq!(
            (after.mtime(), after.mtime_nsec()),
            (before.mtime(), before.mtime_nsec())
        );
        let landing = &ran.report()["landing"];
        let merged = &landing["merged"][0];
        assert_eq!(
            (&merged["added_files"], &merged["replaced_files"]),
            (&1.into(), &1.into())
        );
        assert_eq!(landing["bits_not_kept"], 1);
    }
    place
        .run(&["copy", "set", "all"])
        .assert_status(0)
        .assert_says("done: nothing to send, 2 files (2 B) unchanged")
        .assert_says("not kept: 1 set-id bit");
    place
        .run(&["copy", "--check", "none", "set", "all"])
        .assert_status(0)
        .assert_says("all existed: merged, 0 files added, 2 replaced");
    let ran = place.run(&["copy", "set", "new"]).assert_status(0);
    assert!(!ran.err().contains("merged"), "{}", ran.err());
    assert_eq!(mode(&place.path("new")), 0o750);
}

/// A link to a file is followed, wherever the file is, and stays a link; one without a target is no destination, and stays
/// what it is.
#[test]
fn links_are_destinations_where_they_lead_somewhere() {
    let place = Place::new();
    std::fs::create_dir(place.path("far")).unwrap();
    std::fs::write(place.path("far/old"), "old").unwrap();
    std::fs::write(place.path("new"), "new").unwrap();
    for (link, target) in [("link", "far/old"), ("lost", "/proc/self/fd/none")] {
        std::os::unix::fs::symlink(target, place.path(link)).unwrap();
    }
    place.run(&["copy", "new", "link"]).assert_status(0);
    assert!(place.path("link").is_symlink());
    assert_eq!(std::fs::read(place.path("far/old")).unwrap(), b"new");
    for args in [&["copy", "new", "lost"], &["copy", "far", "lost"]] {
        place
            .run(args)
            .assert_status(4)
            .assert_says("is a symbolic link to \"/proc/self/fd/none\", which does not exist");
        let target = std::fs::read_link(place.path("lost")).unwrap();
        assert_eq!(target, Path::new("/proc/self/fd/none"));
    }
}

/// A part of a private file is private, also over a file that was; a longer file is not replaced by a part but may have it
/// written into.
#[test]
fn parts_of_files_are_as_private_as_the_files() {
    let place = Place::new();
    place.make_token();
    std::fs::create_dir(place.path("far")).unwrap();
    let data = bytes(100_000, 5);
    std::fs::write(place.path("far/secret"), &data).unwrap();
    set_mode(&place.path("far/secret"), 0o600);
    let agent = place.agent(&place.path("far"));
    let far = |name: &str| agent.at(place.path("far").join(name));
    let get = |args: &[&str]| place.run(&[&["get", "-q"], args].concat());
    for _ in 0..2 {
        get(&["--range", "0-4", &far("secret"), "part"]).assert_status(0);
        assert_eq!(mode(&place.path("part")), 0o600);
        set_mode(&place.path("far/secret"), 0o644);
    }
    // A generated source has no mode: that of a new file, whatever the process withholds from those.
    std::fs::write(place.path("plain"), "").unwrap();
    place
        .run(&["copy", "-q", "mem:10kB", "generated"])
        .assert_status(0);
    assert_eq!(mode(&place.path("generated")), mode(&place.path("plain")));

    std::fs::write(place.path("existing"), vec![7; 50]).unwrap();
    get(&["--range", "0-9", &far("secret"), "existing"])
        .assert_status(4)
        .assert_says("has 50 bytes, more than the 10 that would replace it")
        .assert_says("--into OFFSET");
    assert_eq!(std::fs::read(place.path("existing")).unwrap(), [7; 50]);
    get(&[
        "--range",
        "100-109",
        "--into",
        "20",
        &far("secret"),
        "existing",
    ])
    .assert_status(0);
    let mut expected = vec![7; 50];
    expected[20..30].copy_from_slice(&data[100..110]);
    assert_eq!(std::fs::read(place.path("existing")).unwrap(), expected);
    get(&["--range", "0-99", &far("secret"), "existing"]).assert_status(0);
    assert_eq!(std::fs::read(place.path("existing")).unwrap(), data[..100]);

    get(&["--range", "5-100000", &far("secret"), "beyond"])
        .assert_status(4)
        .assert_says("has 100000 bytes, but its bytes up to 100001 are asked for");
    get(&["--range", "0-9", &far(""), "folder"])
        .assert_status(4)
        .assert_says("is a directory, and only a file has ranges of bytes");
    place
        .run(&["get", "--into", "5", &far("secret"), "x"])
        .assert_status(2);
}

/// Files without a size are refused with another way, and the standard streams with the way to name a file `-`.
#[test]
fn what_is_no_file_of_bytes_is_refused() {
    let place = Place::new();
    place
        .run(&["copy", "/proc/version", "version"])
        .assert_status(4)
        .assert_says("/proc/version")
        .assert_says("use cat");
    std::fs::write(place.path("f"), "f").unwrap();
    for args in [
        ["copy", "-", "f"],
        ["copy", "f", "-"],
        ["get", "h:/f", "-"],
        ["put", "-", "h:/f"],
    ] {
        place.run(&args).assert_status(2).assert_says("write ./-");
    }
    assert!(!place.path("version").exists() && !place.path("-").exists());
    place.run(&["copy", "-q", "f", "./-"]).assert_status(0);
    assert_eq!(std::fs::read(place.path("-")).unwrap(), b"f");
    let long = "d/".repeat(3000);
    let ran = place.run(&["copy", "f", &long]).assert_status(2);
    assert!(ran.err().len() < 500, "{}", ran.err());
    let ran = place.run(&["copy", "a\u{1b}[31mb", "c"]).assert_status(4);
    assert!(!ran.err().contains('\u{1b}'), "{:?}", ran.err());
}

/// A file that is written to while it is copied, and has its time set back, is not taken for the one that was scanned: it is read again, or
/// missing where nothing is read again.
#[test]
fn a_time_set_back_is_noticed() {
    for option in [None, Some("--check=none")] {
        let place = Place::new();
        let path = place.path("data");
        std::fs::write(&path, bytes(40 << 20, 3)).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        let args = ["copy", "--limit", "8MB/s", "data", "copy"];
        let args: Vec<&str> = args.into_iter().chain(option).collect();
        let mut moving = Moving::start(&place, &args);
        moving.until_delivered(1);
        file.write_all_at(&[0xaa; 4096], (40 << 20) - 4096).unwrap();
        file.set_modified(modified).unwrap();
        let (status, report) = moving.end();
        if option.is_none() {
            assert_eq!(status, 0, "{report:#}");
            let copy = std::fs::read(place.path("copy")).unwrap();
            assert!(copy == std::fs::read(&path).unwrap());
            continue;
        }
        assert_eq!(status, 3, "{report:#}");
        assert!(!place.path("copy").exists());
        let text = report.to_string();
        assert!(text.contains("its inode changed"), "{report:#}");
    }
}

/// What other transfers left under temporary names is no data: it is left out of a tree and said.
#[test]
fn temporary_names_are_no_data() {
    let place = Place::new();
    let stage = "set/.set.ropewalk-0198f2a4c0de4afe9b7d3c2b1a09f8e7-0";
    std::fs::create_dir_all(place.path(stage)).unwrap();
    std::fs::write(place.path(stage).join("half"), "half").unwrap();
    std::fs::write(place.path("set/whole"), "whole").unwrap();
    place
        .run(&["copy", "set", "copy"])
        .assert_status(0)
        .assert_says("left out: 1 temporary name of other transfers");
    let names = std::fs::read_dir(place.path("copy")).unwrap();
    let names: Vec<_> = names.map(|name| name.unwrap().file_name()).collect();
    assert_eq!(names, ["whole"]);
}

/// A set with a file and a folder that may not be read without root's rights.
fn make_partly_unreadable(set: &Path) {
    std::fs::create_dir_all(set.join("closed")).unwrap();
    for (name, bits) in [("fine", 0o644), ("shut", 0), ("void", 0o644)] {
        std::fs::write(set.join(name), name.repeat(100)).unwrap();
        set_mode(&set.join(name), bits);
    }
    std::fs::write(set.join("closed/x"), "x").unwrap();
    set_mode(&set.join("closed"), 0o300);
}

/// Files and folders that may not be read are left out and named, everything else is copied, and what the destination has in
/// their place stays. With --atomic nothing is created; a source that may not be read itself is an error.
#[test]
fn unreadable_files_are_left_out_and_named() {
    let place = Place::new();
    make_partly_unreadable(&place.path("set"));
    std::fs::create_dir(place.path("there")).unwrap();
    std::fs::write(place.path("there/shut"), "old").unwrap();
    let run = |args: &[&str]| {
        let command = place.command_without_rights();
        command.map(|mut command| common::Ran(command.args(args).output().unwrap()))
    };
    let Some(ran) = run(&["copy", "set", "copy"]) else {
        return;
    };
    let ran = ran
        .assert_status(3)
        .assert_says("PARTIAL: 800 B in 2 files")
        .assert_says("; 2 files or folders left out")
        .assert_says("set/closed: permission denied")
        .assert_says("set/shut: permission denied")
        .assert_says("set/closed was not copied: permission denied; nor was 1 more file or folder");
    assert!(!ran.err().contains("set/fine"), "{}", ran.err());
    let names = std::fs::read_dir(place.path("copy")).unwrap();
    let mut names: Vec<_> = names.map(|name| name.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["fine", "void"]);

    let report = run(&["copy", "--json", "set", "there"]).unwrap();
    assert_eq!(report.status(), 3);
    let report = report.report();
    assert_eq!(report["outcome"], "partial");
    assert_eq!(report["error_kind"], "missing");
    assert_eq!(report["left_out"][1]["file"], "set/shut");
    assert_eq!(report["left_out"][1]["reason"], "permission denied");
    assert_eq!(report["left_out_more"], 0);
    assert_eq!(report["destinations"][0]["complete"], false);
    assert_eq!(report["destinations"][0]["files"], 2);
    assert_eq!(report["wanted_bytes"], report["delivered_bytes"]);
    let kept = std::fs::read_to_string(place.path("there/shut")).unwrap();
    assert_eq!(kept, "old");

    run(&["copy", "--atomic", "set", "whole"])
        .unwrap()
        .assert_status(4)
        .assert_says("set/closed was not copied: permission denied")
        .assert_says("leave out --atomic");
    assert!(!place.path("whole").exists());
    for root in ["set/closed", "set/shut"] {
        run(&["copy", root, "root"])
            .unwrap()
            .assert_status(4)
            .assert_says("permission denied: make it readable");
    }
    set_mode(&place.path("set/closed"), 0o700);
}

/// What one replica cannot read comes from the other; where none can read a file, it is left out.
#[test]
fn unreadable_files_come_from_a_replica() {
    let place = Place::new();
    place.make_token();
    let Some(command) = place.command_without_rights() else {
        return;
    };
    for replica in ["a/set", "b/set"] {
        make_partly_unreadable(&place.path(replica));
        set_mode(&place.path(replica).join("closed"), 0o700);
    }
    let status = Command::new("cp")
        .args(["-a", "a/set", "b/"])
        .current_dir(place.dir.path())
        .status();
    assert!(status.unwrap().success());
    set_mode(&place.path("b/set/shut"), 0o600);
    set_mode(&place.path("b/set/void"), 0);
    let blind = place.agent_as(command, &place.path(""));
    let other = place.command_without_rights().unwrap();
    let other = place.agent_as(other, &place.path(""));
    let sources = [blind.at(place.path("a/set")), other.at(place.path("b/set"))];
    let copy = |to: &str| place.run(&["copy", "--json", &sources[0], &sources[1], to]);
    let ran = copy("copy");
    assert_eq!(ran.status(), 0, "{}", ran.err());
    for name in ["shut", "void"] {
        let copied = std::fs::read_to_string(place.path("copy").join(name)).unwrap();
        assert_eq!(copied, name.repeat(100));
    }
    set_mode(&place.path("b/set/shut"), 0);
    let ran = copy("second");
    assert_eq!(ran.status(), 3, "{}", ran.err());
    let report = ran.report();
    let left_out = report["left_out"].as_array().unwrap();
    assert_eq!(left_out.len(), 1, "{report:#}");
    assert_eq!(left_out[0]["file"], "set/shut");
    assert!(!place.path("second/shut").exists());
    assert!(place.path("second/void").exists());
}

/// Rows that reach one file by two paths are refused: it would be named twice.
#[test]
fn one_file_by_two_paths_is_refused() {
    let place = Place::new();
    place.make_token();
    std::fs::create_dir(place.path("d")).unwrap();
    std::os::unix::fs::symlink(".", place.path("d/self")).unwrap();
    std::fs::write(place.path("data"), "01234567").unwrap();
    let agent = place.agent(&place.path(""));
    let node = format!("127.0.0.1:{}", agent.port);
    let dir = place.text("");
    std::fs::write(
        place.path("spec"),
        format!(
            "writer {node} \"file://{dir}data\" 0 0-7\n\
             reader {node} \"file://{dir}d/c4\" 0 0-3\n\
             reader {node} \"file://{dir}d/self/c4\" 4 4-7\n"
        ),
    )
    .unwrap();
    place
        .run(&["transfer", "spec"])
        .assert_status(4)
        .assert_says("two paths of this node lead to one file");
    assert!(!place.path("d/c4").exists());
}
