//! What several sources of `copy` mean, and copies that go into folders.

mod common;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use common::{Place, assert_same_tree, bytes, make_tree};

/// All files get one time, as unpacked archives and the output of parallel jobs have.
fn age(path: &Path) {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_714_910_400);
    let file = std::fs::File::open(path).unwrap();
    file.set_times(std::fs::FileTimes::new().set_modified(time))
        .unwrap();
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Two different files of one size and time are two files: without a folder to go into they are refused, with one both
/// arrive. The same for folders.
#[test]
fn equal_sizes_and_times_make_no_replicas() {
    let place = Place::new();
    for (name, seed) in [("rank0.dat", 1), ("rank1.dat", 2)] {
        std::fs::write(place.path(name), bytes(100_000, seed)).unwrap();
        age(&place.path(name));
    }
    for (name, text) in [("x", "AAAA"), ("y", "BBBB")] {
        std::fs::create_dir(place.path(name)).unwrap();
        std::fs::write(place.path(name).join("f"), text).unwrap();
        age(&place.path(name).join("f"));
    }
    for [one, two] in [["rank0.dat", "rank1.dat"], ["x", "y"]] {
        place
            .run(&["copy", one, two, "backup"])
            .assert_status(2)
            .assert_says("have different names")
            .assert_says("backup/ to copy each under its own name")
            .assert_says("--sources parts");
        assert!(!place.path("backup").exists());
    }
    place
        .run(&["copy", "-q", "rank0.dat", "rank1.dat", "x", "y", "backup/"])
        .assert_status(0);
    assert_eq!(
        names(&place.path("backup")),
        ["rank0.dat", "rank1.dat", "x", "y"]
    );
    for name in ["rank0.dat", "rank1.dat", "x", "y"] {
        assert_same_tree(&place.path(name), &place.path("backup").join(name));
    }
}

/// `copy *.h5 dest/` and `copy f dir dest/`: what stands in dest stays, as do its mode and time; what has the name of a
/// source is replaced.
#[test]
fn things_go_into_a_folder_that_is_there() {
    let place = Place::new();
    make_tree(&place.path("tree"));
    for (name, seed) in [("a.h5", 1), ("b.h5", 2), ("c.h5", 3)] {
        std::fs::write(place.path(name), bytes(1 << 20, seed)).unwrap();
    }
    let dest = place.path("dest");
    std::fs::create_dir(&dest).unwrap();
    std::fs::write(dest.join("stranger"), "stays").unwrap();
    std::fs::write(dest.join("a.h5"), "old").unwrap();
    std::fs::set_permissions(&dest, std::fs::Permissions::from_mode(0o1777)).unwrap();
    place
        .run(&["copy", "-q", "tree", "a.h5", "b.h5", "c.h5", "dest/"])
        .assert_status(0);
    assert_eq!(names(&dest), ["a.h5", "b.h5", "c.h5", "stranger", "tree"]);
    for name in ["a.h5", "b.h5", "c.h5", "tree"] {
        assert_same_tree(&place.path(name), &dest.join(name));
    }
    assert_eq!(std::fs::read(dest.join("stranger")).unwrap(), b"stays");
    assert_eq!(dest.metadata().unwrap().mode() & 0o7777, 0o1777);
}

/// Hosts that hold the same things are replicas of each; what one alone holds comes from there.
#[test]
fn things_of_several_hosts_come_together() {
    let place = Place::new();
    place.make_token();
    for host in ["h1", "h2", "h3"] {
        std::fs::create_dir(place.path(host)).unwrap();
        let a = place.path(host).join("a");
        std::fs::write(&a, bytes(2 << 20, 1)).unwrap();
        age(&a);
    }
    std::fs::write(place.path("h1/b"), bytes(1 << 20, 2)).unwrap();
    let agents = ["h1", "h2", "h3"].map(|host| place.agent(&place.path(host)));
    let at = |agent: usize, path: &str| agents[agent].at(place.path(path));
    let report = place
        .run(&[
            "copy",
            "--json",
            &at(0, "h1/a"),
            &at(1, "h2/a"),
            &at(2, "h3/a"),
            &at(0, "h1/b"),
            "dest/",
        ])
        .assert_status(0)
        .report();
    assert_eq!(names(&place.path("dest")), ["a", "b"]);
    assert_same_tree(&place.path("h1/a"), &place.path("dest/a"));
    assert_same_tree(&place.path("h1/b"), &place.path("dest/b"));
    assert_eq!(report["sources"]["parts"], 2, "{report:#}");
    assert_eq!(report["sources"]["holders"], 4, "{report:#}");

    let ran = place.run(&[
        "copy",
        "--progress",
        "always",
        &at(0, "h1/a"),
        &at(1, "h2/a"),
        &at(2, "h3/a"),
        "copy",
    ]);
    let ran = ran.assert_status(0);
    let first = ran
        .err()
        .lines()
        .find(|line| line.contains("planned"))
        .map(str::to_owned);
    assert!(
        first.is_some_and(|line| line.contains("sources: 3 replicas")),
        "{}",
        ran.err()
    );
    ran.assert_says("done: 2.1 MB in 1 file, sources: 3 replicas");

    std::fs::write(place.path("h2/a"), bytes(2 << 20, 7)).unwrap();
    place
        .run(&["copy", &at(0, "h1/a"), &at(1, "h2/a"), "copy2"])
        .assert_status(4)
        .assert_says("are not the same")
        .assert_says(&format!("2024-05-05 12:00:00 UTC in {}", at(0, "h1/a")));
    assert!(!place.path("copy2").exists());
}

/// Two things of one name cannot go into one folder; both are named.
#[test]
fn two_things_of_one_name_are_refused() {
    let place = Place::new();
    for folder in ["one", "two"] {
        std::fs::create_dir(place.path(folder)).unwrap();
        std::fs::write(place.path(folder).join("f"), folder).unwrap();
    }
    place
        .run(&["copy", "one/f", "two/f", "dest/"])
        .assert_status(2)
        .assert_says("one/f and ")
        .assert_says("would both be named f");
    place
        .run(&["copy", "one/f", "two/f", "dest"])
        .assert_status(2)
        .assert_says("are on one host");
    assert!(!place.path("dest").exists());
}

/// Of DEST/ the last folder is made, for one source, too; more are not, and a copy that fails leaves none.
#[test]
fn the_last_folder_is_made() {
    let place = Place::new();
    make_tree(&place.path("set"));
    std::fs::write(place.path("f"), b"data").unwrap();
    for (sources, dest, made) in [
        (&["set"][..], "new1/", "new1/set"),
        (&["f"], "new2/", "new2/f"),
        (&["f", "set"], "new3/", "new3/set"),
        (&["mem:5"], "new4", "new4"),
    ] {
        place
            .run(&[&["copy", "-q"][..], sources, &[dest]].concat())
            .assert_status(0);
        assert!(place.path(made).exists(), "{made}");
    }
    let made = place.path("made");
    std::fs::create_dir(&made).unwrap();
    assert_eq!(
        place.path("new3").metadata().unwrap().mode(),
        made.metadata().unwrap().mode(),
        "as any folder that this user makes"
    );
    for sources in [&["f"][..], &["f", "set"]] {
        place
            .run(&[&["copy"][..], sources, &["no/such/"]].concat())
            .assert_status(4)
            .assert_says("make it first");
        place
            .run(&[&["copy"][..], sources, &["new1/set/"]].concat())
            .assert_status(0);
    }
    std::fs::write(place.path("file"), b"data").unwrap();
    for sources in [&["f"][..], &["f", "set"]] {
        place
            .run(&[&["copy"][..], sources, &["file/"]].concat())
            .assert_says("file");
    }
    assert_eq!(std::fs::read(place.path("file")).unwrap(), b"data");
    assert!(!place.path("no").exists());
}

/// A link to a folder is that folder, for things that go into it.
#[test]
fn a_linked_folder_takes_things() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("far/away")).unwrap();
    std::os::unix::fs::symlink("far/away", place.path("near")).unwrap();
    for name in ["a", "b"] {
        std::fs::write(place.path(name), name).unwrap();
    }
    place.run(&["copy", "-q", "a", "near/"]).assert_status(0);
    place
        .run(&["copy", "-q", "a", "b", "near/"])
        .assert_status(0);
    assert_eq!(names(&place.path("far/away")), ["a", "b"]);
    assert!(place.path("near").is_symlink());
}

/// A folder is not copied into itself, whatever links or agents hide it, and nothing is made.
#[test]
fn a_folder_is_not_copied_into_itself() {
    let place = Place::new();
    place.make_token();
    make_tree(&place.path("A"));
    std::os::unix::fs::symlink("A", place.path("link")).unwrap();
    let before = names(&place.path("A"));
    for (source, destination, status) in [
        ("A", "A/inside", 2),
        ("A", "A/", 2),
        ("A", "link/inside", 4),
        ("A", "link/", 4),
        ("link", "A/inside", 4),
        ("A", "link", 4),
    ] {
        place
            .run(&["copy", source, destination])
            .assert_status(status)
            .assert_says("its own source");
    }
    // The same of a file and a link to it.
    std::fs::write(place.path("file"), "data").unwrap();
    std::os::unix::fs::symlink("file", place.path("to file")).unwrap();
    place
        .run(&["copy", "file", "to file"])
        .assert_status(4)
        .assert_says("its own source");
    assert_eq!(std::fs::read(place.path("file")).unwrap(), b"data");
    let agents = [0; 2].map(|_| place.agent(place.dir.path()));
    for [from, to] in [[0, 1], [0, 0]] {
        place
            .run(&[
                "copy",
                &agents[from].at(place.path("A")),
                &agents[to].at(place.path("link/inside")),
            ])
            .assert_status(4)
            .assert_says("its own source");
    }
    assert_eq!(names(&place.path("A")), before);
}
