//! `copy -a` against `rsync -aAXS`, compared by programs that neither uses.

mod common;

use std::os::unix::fs::{FileExt as _, MetadataExt as _, chown, lchown, symlink};
use std::path::Path;
use std::process::Command;

use common::{Place, Ran, bytes};

/// What a program prints, run in a folder.
fn print_of(folder: &Path, program: &[&str]) -> String {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).current_dir(folder);
    Ran(command.output().unwrap()).assert_status(0).out()
}

/// All that programs see of a tree.
fn seen(tree: &Path) -> String {
    let names = print_of(
        tree,
        &["find", ".", "-printf", "%P|%y|%l|%U|%G|%m|%s|%b|%T@\\n"],
    );
    let mut names: Vec<&str> = names.lines().collect();
    names.sort_unstable();
    let sums = print_of(
        tree,
        &["sh", "-c", "find . -type f | sort | xargs -d '\\n' cksum"],
    );
    let attributes = print_of(
        tree,
        &[
            "sh",
            "-c",
            "find . | sort | xargs -d '\\n' getfattr -h -d -m -",
        ],
    );
    let acls = print_of(
        tree,
        &[
            "sh",
            "-c",
            "find . ! -type l | sort | xargs -d '\\n' getfacl -n -p",
        ],
    );
    [&names.join("\n"), &sums, &attributes, &acls]
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
