//! Pipes, sockets and devices of archives: mirrored, listed, compared and left out; never opened, as a pipe without a writer would not end.

mod common;

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use common::processes::{assert_gone, family, kill_at_once, temporary};
use common::{Moving, Place, Ran, bytes};
use rustix::fs::{CWD, FileType};

fn make(path: &Path, kind: FileType) {
    rustix::fs::mknodat(CWD, path, kind, 0o640.into(), 0).unwrap();
}

fn is_pipe(path: &Path) -> bool {
    path.symlink_metadata()
        .is_ok_and(|stat| stat.file_type().is_fifo())
}

/// A pipe of two names, a socket, and a file that is long enough for chunks.
fn make_set(place: &Place) {
    std::fs::create_dir_all(place.path("set/sub")).unwrap();
    std::fs::write(place.path("set/file"), bytes(3 << 20, 1)).unwrap();
    make(&place.path("set/pipe"), FileType::Fifo);
    make(&place.path("set/sub/socket"), FileType::Socket);
    std::fs::hard_link(place.path("set/pipe"), place.path("set/sub/pipe too")).unwrap();
}

/// Without -a they are counted, and neither compared nor removed; with -a a mirror has them and no others, and lists them before.
#[test]
fn mirrors_have_special_files() {
    let place = Place::new();
    make_set(&place);
    place
        .run(&["copy", "set", "copy"])
        .assert_status(0)
        .assert_says(
            "left out: 3 special files (sockets, pipes, devices) in the sources; -a copies them",
        );
    place.run(&["check", "set", "copy"]).assert_status(0);
    make(&place.path("copy/other"), FileType::Fifo);
    place
        .run(&["copy", "--delete", "set", "copy"])
        .assert_status(0);
    assert!(is_pipe(&place.path("copy/other")));

    let mirror = |options: &[&str]| {
        let ran = place.run(&[&["copy", "-aH", "--delete"], options, &["set", "copy"]].concat());
        ran.assert_status(0)
    };
    let listed = mirror(&["-n"]).out();
    let other = place.text("copy/other");
    assert_eq!(
        listed.lines().collect::<Vec<_>>(),
        [
            // Its time changed with what was put into it.
            "metadata    set",
            &*format!("remove      0 B  {other}"),
            "send        0 B  set/pipe",
            "send        0 B  set/sub/pipe too",
            "send        0 B  set/sub/socket",
        ]
    );
    let differing = place.run(&["check", "-a", "set", "copy"]).assert_status(3);
    for line in [
        &*format!("extra       {other}"),
        "missing     set/sub/socket",
    ] {
        assert!(differing.out().contains(line), "{}", differing.out());
    }
    let made = mirror(&["--json"]).report();
    assert_eq!(made["landing"]["merged"][0]["added_files"], 3);
    assert_eq!(made["landing"]["removed_files"], 1);
    let equal = place.run(&["check", "-a", "set", "copy"]).assert_status(0);
    assert_eq!(equal.out(), "");
    assert!(!place.path("copy/other").exists());
    let inode = |name: &str| place.path(name).symlink_metadata().unwrap().ino();
    assert_eq!(inode("copy/pipe"), inode("copy/sub/pipe too"));
    let socket = place.path("copy/sub/socket").symlink_metadata().unwrap();
    assert!(socket.file_type().is_socket());

    // They have no contents to compare.
    let file = std::fs::File::options()
        .write(true)
        .open(place.path("set/file"));
    std::os::unix::fs::FileExt::write_all_at(&file.unwrap(), b"changed", 1 << 20).unwrap();
    for options in [
        &["--check", "hash"][..],
        &["--delta"],
        &["--files-from", "-"],
    ] {
        let before = [inode("copy/pipe"), inode("copy/sub/socket")];
        let mut command = place.command();
        command.args(["copy", "-aH", "--json"]).args(options);
        if options[0] == "--files-from" {
            std::fs::write(place.path("list"), "pipe\nsub/socket\n").unwrap();
            let list = std::fs::File::open(place.path("list")).unwrap();
            command.stdin(list);
        }
        let ran = Ran(command.args(["set/", "copy"]).output().unwrap()).assert_status(0);
        assert_eq!(
            ran.report()["landing"]["replaced_files"].as_u64().unwrap(),
            u64::from(options[0] == "--check")
        );
        assert_eq!(before, [inode("copy/pipe"), inode("copy/sub/socket")]);
    }
}

/// A pipe without a writer, or a link to one, is no source without -a; it is named at once, with what can be done.
#[test]
fn a_pipe_is_no_source() {
    let place = Place::new();
    make_set(&place);
    let ran = place.run(&["copy", "set/pipe", "copy"]).assert_status(4);
    ran.assert_says("is a pipe, which has no contents to copy")
        .assert_says("-a");
    assert!(!place.path("copy").exists());
}

/// With -a a special file that is named itself is copied: under its own name into a folder, or as the copy; to several hosts, and beside
/// others. The same one stays where it is, and another one, or a file, is replaced.
#[test]
fn a_special_file_is_copied_by_itself() {
    let place = Place::new();
    make_set(&place);
    std::fs::create_dir(place.path("to")).unwrap();
    let copy = |paths: &[&str]| {
        let words = [&["copy", "-a", "--json"], paths].concat();
        place.run(&words).assert_status(0).report()
    };
    let stat = |name: &str| place.path(name).symlink_metadata().unwrap();
    copy(&["set/pipe", "to/"]);
    copy(&["set/sub/socket", "to/name", "--also-to", "to/other"]);
    assert!(is_pipe(&place.path("to/pipe")));
    for name in ["to/name", "to/other"] {
        assert!(stat(name).file_type().is_socket());
        let times = [stat(name), stat("set/sub/socket")].map(|stat| (stat.mtime(), stat.mode()));
        assert_eq!(times[0], times[1]);
    }
    let before = stat("to/pipe").ino();
    let again = copy(&["set/pipe", "to/pipe"]);
    assert_eq!(
        (stat("to/pipe").ino(), &again["landing"]["unchanged_files"]),
        (before, &1.into())
    );
    place
        .run(&["check", "-a", "set/pipe", "to/pipe"])
        .assert_status(0);
    place
        .run(&["check", "-a", "set/pipe", "to/name"])
        .assert_status(3);
    // It takes the place of another kind, and a file that of a special file.
    copy(&["set/pipe", "to/name"]);
    assert!(is_pipe(&place.path("to/name")));
    copy(&["set/file", "to/other"]);
    assert!(stat("to/other").is_file());
    copy(&["set/pipe", "to/other"]);
    assert!(is_pipe(&place.path("to/other")));
    copy(&["set/sub/socket", "set/pipe", "set/file", "to/"]);
    assert!(stat("to/socket").file_type().is_socket() && stat("to/file").is_file());
    // Not in the place of a folder.
    let refused = place.run(&["copy", "-a", "set/pipe", "set/sub"]);
    assert_ne!(refused.status(), 0);
    assert!(stat("set/sub").is_dir());
    let listed = place
        .run(&["copy", "-an", "set/pipe", "to/new"])
        .assert_status(0);
    assert!(listed.out().contains("send"), "{}", listed.out());
    assert_eq!(temporary(&place.path("to")), [""; 0]);
}

/// A device that is named itself has its number; where this process may not make it, it is counted, what stood there stays, and
/// nothing temporary is left.
#[test]
fn a_device_is_copied_by_itself() {
    let place = Place::new();
    let null = rustix::fs::makedev(1, 3);
    let kind = FileType::CharacterDevice;
    let made = rustix::fs::mknodat(CWD, place.path("null"), kind, 0o666.into(), null);
    if made.is_err() {
        eprintln!("SKIPPED: no devices may be made here; run as root");
        return;
    }
    std::fs::create_dir(place.path("to")).unwrap();
    place.run(&["copy", "-a", "null", "to/"]).assert_status(0);
    let made = place.path("to/null").symlink_metadata().unwrap();
    assert!(made.file_type().is_char_device());
    assert_eq!(made.rdev(), null);
    let Some(mut command) = place.command_without("-mknod") else {
        return;
    };
    std::fs::write(place.path("to/other"), "what stood there").unwrap();
    command.args(["copy", "-a", "null", "to/other"]);
    let ran = Ran(command.output().unwrap()).assert_status(0);
    ran.assert_says("not kept: 1 special file");
    assert_eq!(
        std::fs::read(place.path("to/other")).unwrap(),
        b"what stood there"
    );
    assert_eq!(temporary(&place.path("to")), [""; 0]);
}

/// A device that this process may not make is counted, and said once, whatever the number of copies; all else is there.
#[test]
fn devices_without_rights_are_counted() {
    let place = Place::new();
    make_set(&place);
    let null = rustix::fs::makedev(1, 3);
    let kind = FileType::CharacterDevice;
    let made = rustix::fs::mknodat(CWD, place.path("set/null"), kind, 0o666.into(), null);
    if made.is_err() {
        eprintln!("SKIPPED: no devices may be made here; run as root");
        return;
    }
    place
        .run(&["copy", "-aH", "set", "by root"])
        .assert_status(0);
    place
        .run(&["check", "-a", "set", "by root"])
        .assert_status(0);
    let Some(mut command) = place.command_without("-mknod") else {
        return;
    };
    std::fs::create_dir(place.path("two")).unwrap();
    std::fs::write(place.path("two/null"), "what stood there").unwrap();
    command.args(["copy", "-aH", "set", "one", "--also-to", "two"]);
    let ran = Ran(command.output().unwrap()).assert_status(0);
    let said = "not kept: 1 special file (pipes, sockets, devices): only root makes devices, and some file systems have none";
    assert_eq!(ran.err().matches(said).count(), 1, "{}", ran.err());
    assert!(!place.path("one/null").exists());
    let stood = std::fs::read(place.path("two/null")).unwrap();
    assert_eq!(stood, b"what stood there");
    for copy in ["one", "two"] {
        assert!(is_pipe(&place.path(copy).join("sub/pipe too")));
        let differing = place.run(&["check", "-a", "set", copy]).assert_status(3);
        let line = match copy {
            "one" => "missing     set/null",
            _ => "kind        set/null",
        };
        assert!(differing.out().contains(line), "{}", differing.out());
    }
}

/// A copy that was killed goes on, and has its special files then.
#[test]
fn a_killed_copy_has_special_files_after_the_next_run() {
    let place = Place::new();
    make_set(&place);
    std::fs::write(place.path("set/large"), bytes(96 << 20, 2)).unwrap();
    let args = ["copy", "-aH", "set", "copy"];
    let mut moving = Moving::start(&place, &[&args[..], &["--limit", "200Mbit"]].concat());
    moving.until_delivered(16 << 20);
    let all = family(moving.child.id() as i32);
    kill_at_once(&all);
    moving.child.wait().unwrap();
    assert_gone(&all);
    place.run(&args).assert_status(0);
    place.run(&["check", "-a", "set", "copy"]).assert_status(0);
    assert!(is_pipe(&place.path("copy/sub/pipe too")));
    assert_eq!(temporary(place.dir.path()), [""; 0]);
    assert_eq!(temporary(&place.path("copy")), [""; 0]);
}
