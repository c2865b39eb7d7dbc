//! `copy -a` and `copy -a -H` against `rsync -aAXS` and `rsync -aHAXS`, compared by programs that neither uses.

mod common;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    FileExt as _, MetadataExt as _, PermissionsExt as _, chown, lchown, symlink,
};
use std::path::Path;
use std::process::Command;

use common::{Place, Ran, bytes};
use serde_json::Value;

/// What a program prints, run in a folder.
fn print_of(folder: &Path, program: &[&str]) -> String {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).current_dir(folder);
    Ran(command.output().unwrap()).assert_status(0).out()
}

/// All that programs see of a tree. Names of one file are told by the first.
fn seen(tree: &Path) -> String {
    let format = "%P|%y|%l|%U|%G|%m|%s|%b|%T@|%n|%i\\0";
    let names = print_of(tree, &["find", ".", "-printf", format]);
    let mut names: Vec<&str> = names.split_terminator('\0').collect();
    names.sort_unstable();
    let mut first: HashMap<&str, &str> = HashMap::new();
    let names: Vec<String> = names
        .into_iter()
        .map(|line| {
            let (rest, inode) = line.rsplit_once('|').unwrap();
            let name = rest.split('|').next().unwrap();
            format!("{rest}|{:?}", first.entry(inode).or_insert(name))
        })
        .collect();
    let of_all = |find: &str, program: &str| {
        let script = format!("find . {find} -print0 | sort -z | xargs -0 -r {program}");
        print_of(tree, &["sh", "-c", &script])
    };
    [
        &names.join("\n"),
        &of_all("-type f", "cksum"),
        &of_all("", "getfattr -h -d -m -"),
        &of_all("! -type l", "getfacl -n -p"),
        &of_all("\\( -type b -o -type c \\)", "stat -c '%n %t %T'"),
    ]
    .map(String::as_str)
    .join("\n---\n")
}

/// False, and a line that says so, where a program is missing or this is not root.
fn is_possible() -> bool {
    for program in [
        "rsync", "setfattr", "setfacl", "getfattr", "getfacl", "find",
    ] {
        if Command::new(program).arg("--version").output().is_err() {
            eprintln!("SKIPPED: {program} is missing; run scripts/install-test-tools");
            return false;
        }
    }
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("SKIPPED: only root gives files to other users; run as root");
    }
    is_root
}

/// The times of all folders are old, and the group of a folder with an ACL has other rights than the ACL's mask: rsync 3.5.0
/// does not copy a folder's time that is less than a second old, and drops the rights of such a group.
fn make_tree(set: &Path) {
    std::fs::create_dir_all(set.join("open/deep")).unwrap();
    for (at, name) in ["plain", "given", "run", "open/x", "open/deep/y z"]
        .iter()
        .enumerate()
    {
        std::fs::write(set.join(name), bytes(3000 * at, at as u64)).unwrap();
    }
    // 8 MiB, of them two of data, and a hole at the end.
    let sparse = std::fs::File::create(set.join("sparse")).unwrap();
    sparse.write_all_at(&bytes(1 << 20, 9), 0).unwrap();
    sparse.write_all_at(&bytes(1 << 20, 10), 5 << 20).unwrap();
    sparse.set_len(8 << 20).unwrap();
    symlink("no/where", set.join("link")).unwrap();
    lchown(set.join("link"), Some(65534), Some(65534)).unwrap();
    chown(set.join("given"), Some(12345), Some(54321)).unwrap();
    chown(set.join("open"), Some(65534), Some(2)).unwrap();
    let script = "chmod 6755 run; chmod 2771 open; chmod 1777 open/deep; chmod 400 given
        setfattr -n user.colour -v blue plain; setfattr -n user.note -v x open
        setfattr -n trusted.mark -v 0x00ff10 given; setfattr -h -n trusted.link -v l link
        setfacl -m u:12345:rw,g:7:r plain; setfacl -d -m u:12345:rx open; setfacl -m g::r,g:9:rwx open/deep
        touch -d 2020-02-02 sparse; touch -h -d '2001-02-03 04:05:06.789' link plain open/x; touch -d '1999-09-09' open/deep open .";
    let status = Command::new("sh")
        .args(["-c", script])
        .current_dir(set)
        .status();
    assert!(status.unwrap().success());
}

/// Owners, groups, set-id bits, attributes and ACLs are those that rsync copies; a second copy sends nothing and repairs what
/// was changed at the destination.
#[test]
fn archives_are_those_of_rsync() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let set = place.path("set");
    make_tree(&set);
    print_of(place.dir.path(), &["rsync", "-aAXS", "set/", "by-rsync"]);
    let ran = place
        .run(&["copy", "-a", "--json", "set", "copy"])
        .assert_status(0);
    let [copied, by_rsync] = ["copy", "by-rsync"].map(|name| seen(&place.path(name)));
    assert_eq!(copied, by_rsync);
    assert_eq!(copied, seen(&set));
    let landing = &ran.report()["landing"];
    for field in ["bits_not_kept", "owners_not_kept", "attributes_not_kept"] {
        assert_eq!(landing[field], 0, "{field}");
    }
    chown(place.path("copy/given"), Some(1), Some(1)).unwrap();
    let is_changed = |name: &str| seen(&place.path(name)) != copied;
    assert!(is_changed("copy"));
    place.run(&["copy", "-a", "set", "copy"]).assert_status(0);
    assert!(!is_changed("copy"));
    // Without -a all belongs to the one that copies.
    place.run(&["copy", "set", "plain"]).assert_status(0);
    let given = place.path("plain/given").metadata().unwrap();
    assert_eq!(given.uid(), rustix::process::geteuid().as_raw());
}

/// Names that programs get wrong, empty folders, files of several names, holes everywhere, times to the nanosecond and before 1970,
/// pipes, sockets and, where that is permitted, devices; what [`make_tree`] has, too. rsync does not copy a device's time that is less than a
/// second old.
fn make_every_kind(set: &Path) {
    make_tree(set);
    for folder in ["empty", "open/deep/empty too", "-dash", "new\nline"] {
        std::fs::create_dir(set.join(folder)).unwrap();
    }
    for (at, name) in [
        &b"-dash/--help"[..],
        b"new\nline/tab\tand space ",
        b"not \xff\xfe utf-8",
        b"back\\slash 'and' \"quotes\" $(x) *?[]",
        b"plain.sorts before what is in plain",
        b"none",
    ]
    .iter()
    .enumerate()
    {
        let contents = bytes(700 * at, at as u64);
        std::fs::write(set.join(OsStr::from_bytes(name)), contents).unwrap();
    }
    let all_hole = std::fs::File::create(set.join("all hole")).unwrap();
    all_hole.set_len(3 << 20).unwrap();
    for (file, name) in [
        ("plain", "open/second name of plain"),
        ("plain", "Third"),
        ("run", "open/deep/run"),
        ("sparse", "-dash/sparse"),
        ("none", "empty/none"),
    ] {
        std::fs::hard_link(set.join(file), set.join(name)).unwrap();
    }
    drop(std::os::unix::net::UnixListener::bind(set.join("socket")).unwrap());
    let script = "mkfifo -m 640 pipe; ln pipe 'pipe too'; chown 12:34 pipe; setfacl -m u:9:r pipe; chmod 4711 socket; touch -h -d '2005-05-05 05:05:05.5' pipe socket
        mknod -m 666 null c 1 3 && mknod -m 660 'open/block 7' b 7 99 && setfattr -n trusted.note -v d null && touch -h -d 2005-05-05 null 'open/block 7'; chmod 000 none; chown 7:8 run; chmod 6755 run; chmod 500 empty
        touch -d '1955-05-05 05:05:05.987654321' none; touch -d '2020-02-02 02:02:02.000000001' plain 'all hole'
        touch -h -d '2011-11-11 11:11:11.111111111' link; find . -depth -type d -exec touch -d '1999-09-09 09:09:09.999999999' {} +";
    let status = Command::new("sh")
        .args(["-c", script])
        .current_dir(set)
        .status();
    assert!(status.unwrap().success());
}

/// A tree of every kind of entry is what rsync makes of it and what it was; names of one file are sent once. A copy whose names are
/// files of their own gets links, and no bytes.
#[test]
fn every_kind_is_kept() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let set = place.path("set");
    make_every_kind(&set);
    print_of(place.dir.path(), &["rsync", "-aHAXS", "set/", "by-rsync"]);
    let report = |options: &[&str]| {
        let ran = place.run(&[&["copy", "--json"], options, &["set", "copy"]].concat());
        ran.assert_status(0).report()
    };
    let parted = report(&["-a"]);
    let [of_set, of_parts] = ["set", "copy"].map(|name| seen(&place.path(name)));
    assert_ne!(of_parts, of_set);
    std::fs::rename(place.path("copy"), place.path("parts")).unwrap();
    let linked = report(&["-a", "-H"]);
    let [copied, by_rsync] = ["copy", "by-rsync"].map(|name| seen(&place.path(name)));
    assert_eq!(copied, of_set);
    assert_eq!(copied, by_rsync);
    let bytes = |report: &Value| report["wanted_bytes"].as_u64().unwrap();
    let extra: u64 = ["plain", "plain", "run", "sparse", "none"]
        .map(|name| set.join(name).metadata().unwrap().len())
        .iter()
        .sum();
    assert_eq!(bytes(&parted) - bytes(&linked), extra);
    let landing = &linked["landing"];
    for field in [
        "special_files_left_out",
        "special_files_not_kept",
        "owners_not_kept",
        "attributes_not_kept",
        "links_not_kept",
    ] {
        assert_eq!(landing[field], 0, "{field}");
    }
    // A second run, and one over files of their own.
    assert_eq!(bytes(&report(&["-a", "-H"])), 0);
    assert_eq!(seen(&place.path("copy")), copied);
    std::fs::remove_dir_all(place.path("copy")).unwrap();
    std::fs::rename(place.path("parts"), place.path("copy")).unwrap();
    assert_eq!(bytes(&report(&["-a", "-H"])), 0);
    assert_eq!(seen(&place.path("copy")), copied);
}

/// Owners are kept by a process that may give files away, and may change none that it does not own.
#[test]
fn owners_are_kept_without_further_rights() {
    let place = Place::new();
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can give files away");
        return;
    }
    let Some(mut command) = place.command_without("-fowner") else {
        return;
    };
    let set = place.path("set");
    std::fs::create_dir(&set).unwrap();
    std::fs::write(set.join("file"), "contents").unwrap();
    for (path, mode) in [(set.join("file"), 0o640), (set.clone(), 0o750)] {
        std::os::unix::fs::chown(&path, Some(1234), Some(4321)).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let ran = command
        .args(["copy", "-a", "set", "copy"])
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
    for (path, mode) in [("copy/file", 0o640), ("copy", 0o750)] {
        let found = place.path(path).metadata().unwrap();
        assert_eq!((found.uid(), found.gid()), (1234, 4321), "{path}");
        assert_eq!(found.mode() & 0o7777, mode, "{path}");
    }
}
