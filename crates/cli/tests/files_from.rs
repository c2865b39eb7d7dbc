//! `--files-from` copies what a list names.

mod common;

use std::io::Write as _;
use std::process::{Command, Stdio};

use common::{Place, Ran, make_tree};

/// Files of a list arrive with the folders above them, also from standard input and with names that end with a zero, and are what rsync
/// makes; names that do not exist are named, with status 3.
#[test]
fn a_list_is_copied() {
    let place = Place::new();
    make_tree(&place.path("set"));
    std::fs::write(place.path("list"), "# some\nsub/f3\n\n/none\nsub/empty/\n").unwrap();
    place
        .run(&["copy", "--files-from", "list", "set", "copy"])
        .assert_status(0)
        .assert_says("in 2 files");
    let source = format!("{}/", place.text("set"));
    let rsync = |list: &str, to: &str| {
        Command::new("rsync")
            .args(["-a", "--files-from", list, &source, to])
            .current_dir(place.dir.path())
            .output()
            .unwrap()
    };
    assert!(rsync("list", "theirs").status.success());
    let differ = Command::new("diff")
        .args(["-r", "theirs", "copy"])
        .current_dir(place.dir.path())
        .output();
    let differ = differ.unwrap();
    assert!(differ.status.success(), "{differ:?}");

    let mut child = place
        .command()
        .args([
            "copy",
            "--from0",
            "--files-from",
            "-",
            "-r",
            "set",
            "second",
        ])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"sub\0link\0../../absent\0").unwrap();
    drop(input);
    let ran = Ran(child.wait_with_output().unwrap());
    ran.assert_status(3)
        .assert_says("set/absent")
        .assert_says("does not exist");
    assert!(place.path("second/sub/f49").exists());
    assert!(place.path("second/link").symlink_metadata().is_ok());
    assert!(!place.path("second/big").exists());
    place
        .run(&["copy", "-n", "--files-from", "list", "set", "third"])
        .assert_status(0)
        .assert_says("would send 111 B in 2 files");
    assert!(!place.path("third").exists());
}

/// What does not go with a list.
#[test]
fn slips_with_lists_are_explained() {
    let place = Place::new();
    for name in ["a", "b", "list"] {
        std::fs::write(place.path(name), "x").unwrap();
    }
    let slips: [(&[&str], i32, &str); 5] = [
        (&["--files-from", "absent", "a", "c"], 2, "absent"),
        (&["--files-from", "list", "a", "b", "c/"], 2, "one source"),
        (
            &["--files-from", "list", "--delete", "a", "c"],
            2,
            "leave out --delete",
        ),
        (&["--from0", "a", "c"], 2, "--files-from"),
        (&["--files-from", "list", "a", "c"], 4, "not a directory"),
    ];
    for (args, status, part) in slips {
        let args = [&["copy"], args].concat();
        place.run(&args).assert_status(status).assert_says(part);
    }
}
