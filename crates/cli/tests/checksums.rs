//! `copy --manifest`: checksums of a copy as `b3sum --check` reads them.

mod common;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Place, bytes};

/// Checks a list as b3sum does, in a folder; the files that it names.
#[track_caller]
fn check(list: &Path, folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(list).unwrap();
    let mut names = Vec::new();
    for line in text.lines() {
        let (line, is_escaped) = match line.strip_prefix('\\') {
            Some(line) => (line, true),
            None => (line, false),
        };
        let (hash, name) = line.split_once("  ").unwrap();
        let name = match is_escaped {
            true => name.replace("\\n", "\n").replace("\\\\", "\\"),
            false => name.to_owned(),
        };
        let contents = std::fs::read(folder.join(&name)).unwrap();
        assert_eq!(blake3::hash(&contents).to_hex().as_str(), hash, "{name}");
        names.push(name);
    }
    if let Ok(ran) = Command::new("b3sum")
        .arg("--check")
        .arg(list)
        .current_dir(folder)
        .output()
    {
        assert!(ran.status.success(), "{ran:?}");
    }
    names
}

/// What is in the place's own folder, but for what programs need.
fn there(place: &Place) -> BTreeMap<PathBuf, u64> {
    let all = std::fs::read_dir(place.dir.path()).unwrap();
    let all = all.map(|entry| entry.unwrap());
    let all = all.map(|entry| (entry.path(), entry.metadata().unwrap().len()));
    let is_own = |path: &Path| {
        !["home", "runtime", "state"]
            .iter()
            .any(|name| path.ends_with(name))
    };
    all.filter(|(path, _)| is_own(path)).collect()
}

fn make_set(set: &Path) {
    std::fs::create_dir_all(set.join("sub")).unwrap();
    for (at, name) in [
        "a",
        "empty",
        "sub/with space",
        "sub/new\nline",
        "sub/back\\slash",
        "zeros",
    ]
    .iter()
    .enumerate()
    {
        std::fs::write(set.join(name), bytes(70_000 * at, at as u64)).unwrap();
    }
    std::fs::write(set.join("empty"), "").unwrap();
    std::fs::write(set.join("zeros"), vec![0; 3 << 20]).unwrap();
    std::fs::hard_link(set.join("a"), set.join("sub/b")).unwrap();
    std::os::unix::fs::symlink("a", set.join("link")).unwrap();
}

/// The list has every file of the copy, sent or not, with the hash of what is there; a run that changes something renews it.
#[test]
fn copies_are_listed() {
    let place = Place::new();
    make_set(&place.path("set"));
    let list = place.path("sums");
    let copy = || {
        let args = ["copy", "--json", "-H", "--manifest", "sums", "set", "copy"];
        place.run(&args).assert_status(0).report()
    };
    copy();
    let names = check(&list, place.dir.path());
    let expected = [
        "a",
        "empty",
        "sub/b",
        "sub/back\\slash",
        "sub/new\nline",
        "sub/with space",
        "zeros",
    ];
    assert_eq!(names, expected.map(|name| format!("copy/{name}")));
    let before = std::fs::read(&list).unwrap();
    std::fs::remove_file(&list).unwrap();
    assert_eq!(copy()["wanted_bytes"], 0);
    assert_eq!(std::fs::read(&list).unwrap(), before);
    std::fs::write(place.path("set/zeros"), "changed").unwrap();
    copy();
    assert_eq!(check(&list, place.dir.path()).len(), 7);
    assert_ne!(std::fs::read(&list).unwrap(), before);
    // A list elsewhere.
    std::fs::create_dir_all(place.path("lists/of")).unwrap();
    place
        .run(&["copy", "--manifest", "lists/of/sums", "set", "copy"])
        .assert_status(0);
    assert_eq!(
        check(&place.path("lists/of/sums"), place.dir.path()).len(),
        7
    );
    // A copy of one file, and a name that is no UTF-8, which b3sum refuses to check.
    place
        .run(&["copy", "--manifest", "one sum", "set/a", "single"])
        .assert_status(0);
    assert_eq!(check(&place.path("one sum"), place.dir.path()), ["single"]);
    std::fs::create_dir(place.path("odd")).unwrap();
    std::fs::write(place.path("odd").join(OsStr::from_bytes(b"\xff")), "x").unwrap();
    place
        .run(&["copy", "--manifest", "odd sums", "odd", "odd copy"])
        .assert_status(0);
    let text = std::fs::read_to_string(place.path("odd sums")).unwrap();
    assert!(text.ends_with("  odd copy/\u{fffd}\n"), "{text}");
}

/// Of a shared copy the receiver that gives the names writes the list; without a dry run having done so.
#[test]
fn shared_copies_are_listed() {
    let place = Place::new();
    place.make_token();
    for folder in ["from", "fs"] {
        std::fs::create_dir(place.path(folder)).unwrap();
    }
    make_set(&place.path("from/set"));
    let sender = place.agent(&place.path("from"));
    let receivers = [0, 1].map(|_| place.agent(&place.path("fs")));
    let to = place.path("fs/copy");
    let list = place.path("fs/sums");
    let copy = |more: &[&str]| {
        let mut args: Vec<String> = ["copy", "--destinations", "shared", "--manifest"]
            .map(String::from)
            .to_vec();
        args.push(list.to_str().unwrap().to_owned());
        args.extend(more.iter().map(|one| (*one).to_owned()));
        args.extend([sender.at(place.path("from/set")), receivers[0].at(&to)]);
        args.extend(["--also-to".to_owned(), receivers[1].at(&to)]);
        place.run(&args).assert_status(0);
    };
    copy(&["--dry-run"]);
    assert!(!list.exists());
    copy(&[]);
    assert_eq!(check(&list, &place.path("fs")).len(), 7);
}

/// A list that would change a source or the copy, or that no folder holds, is refused before anything is made; so is one that
/// has no files to list, and one for two copies.
#[test]
fn lists_in_wrong_places_are_refused() {
    let place = Place::new();
    make_set(&place.path("set"));
    let before = there(&place);
    for (status, list, source, part) in [
        (4, "copy/sums", "set", "would lie in the copy"),
        (4, "copy", "set", "would lie in the copy"),
        (4, "set/sums", "set", "would lie in a source"),
        (4, "set/a", "set/a", "would lie in a source"),
        (4, "none/sums", "set", "no folder that exists"),
        (4, "/none/sums", "set", "lies in no folder that exists"),
        (4, "home", "set", "is no file"),
        (2, "-", "set", "standard output"),
        (2, "sums", "mem:1MiB", "lists files"),
    ] {
        let ran = place.run(&["copy", "--manifest", list, source, "copy"]);
        let ran = ran.assert_status(status);
        assert!(ran.err().contains(part), "{list}: {}", ran.err());
        assert_eq!(there(&place), before, "{list}");
    }
    let two = [
        "copy",
        "--manifest",
        "sums",
        "set",
        "copy",
        "--also-to",
        "other",
    ];
    let ran = place.run(&two).assert_status(2);
    assert!(
        ran.err().contains("two copies on one host"),
        "{}",
        ran.err()
    );
    assert_eq!(there(&place), before);
}

/// Files that cannot be listed are left out of the list and named, and the copy is complete: what is no regular file there, what cannot be
/// read, what is not there.
#[test]
fn what_cannot_be_listed_is_left_out_and_named() {
    let place = Place::new();
    std::fs::create_dir(place.path("set")).unwrap();
    for name in ["closed", "folder", "fresh", "link", "pipe"] {
        std::fs::write(place.path("set").join(name), name).unwrap();
    }
    let copy = place.path("copy");
    std::fs::create_dir_all(copy.join("folder")).unwrap();
    std::os::unix::fs::symlink("fresh", copy.join("link")).unwrap();
    let made = Command::new("mkfifo").arg(copy.join("pipe")).status();
    assert!(made.unwrap().success());
    std::fs::write(copy.join("closed"), "of another").unwrap();
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o000);
    std::fs::set_permissions(copy.join("closed"), closed).unwrap();
    let Some(mut command) = place.command_without_rights() else {
        return;
    };
    let args = ["--ignore-existing", "--manifest", "sums", "set", "copy"];
    command.args(["copy", "--json"]).args(args);
    let report = common::Ran(command.output().unwrap())
        .assert_status(3)
        .report();
    // Reading a pipe would not end.
    let sums = std::fs::read_to_string(place.path("sums")).unwrap();
    assert!(!sums.contains("pipe"), "{sums}");
    assert_eq!(check(&place.path("sums"), place.dir.path()), ["copy/fresh"]);
    assert_eq!(report["destinations"][0]["complete"], true, "{report}");
    let error = report["error"].as_str().unwrap();
    assert!(error.starts_with("the copy is complete, but "), "{error}");
    assert!(error.ends_with(" (and 3 more, see the notes)"), "{error}");
    let notes = report["notes"].as_array().unwrap();
    let notes: Vec<&str> = notes.iter().filter_map(|note| note.as_str()).collect();
    for name in ["closed", "folder", "link", "pipe"] {
        let path = copy.join(name);
        let path = path.to_str().unwrap();
        let is_named =
            |note: &&&str| note.contains("not in the list of checksums") && note.contains(path);
        assert_eq!(
            notes.iter().filter(is_named).count(),
            1,
            "{name}: {notes:?}"
        );
    }
}

/// A copy is complete though its list cannot be written.
#[test]
fn a_list_that_cannot_be_written_leaves_the_copy_complete() {
    let place = Place::new();
    make_set(&place.path("set"));
    let lists = place.path("lists");
    std::fs::create_dir(&lists).unwrap();
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o555);
    std::fs::set_permissions(&lists, closed).unwrap();
    let Some(mut command) = place.command_without_rights() else {
        return;
    };
    command.args(["copy", "--manifest", "lists/sums", "set", "copy"]);
    let ran = common::Ran(command.output().unwrap())
        .assert_status(3)
        .assert_says("the copy is complete, but ")
        .assert_says("no list of checksums: cannot create ");
    assert!(!ran.err().contains("removed"), "{}", ran.err());
    assert!(!lists.join("sums").exists());
    assert_eq!(
        std::fs::read(place.path("copy/zeros")).unwrap().len(),
        3 << 20
    );
}
