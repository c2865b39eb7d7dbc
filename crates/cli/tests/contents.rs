//! Contents of the destination compared with those of the sources: `--check hash`, `--delta`, `--resume verify` and `ropewalk check`.

mod common;

use std::collections::BTreeSet;
use std::fs::{File, FileTimes};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use common::processes::{family, kill, kill_at_once, temporary};
use common::{Moving, Place, assert_same_tree, bytes, clone_tree, make_ssh, make_tree, wait_for};
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
    age_folders(place);
}

/// A copy keeps the times of folders that are there.
fn age_folders(place: &Place) {
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

/// Two copies are compared with one source, at the same time: it is read once for both.
#[test]
fn a_source_is_hashed_once_for_all_copies() {
    const LEN: u64 = 32 << 20;
    let place = Place::new();
    std::fs::write(place.path("image"), bytes(LEN as usize, 1)).unwrap();
    for copy in ["one", "two"] {
        std::fs::copy(place.path("image"), place.path(copy)).unwrap();
        overwrite(&place.path(copy), 5 * MIB, b"changed");
        touch(&place.path(copy), 1_000_000);
    }
    // What a process has read counts for the shell that waited for it.
    let mut shell = place.command_of("sh");
    let script = r#""$@" && grep rchar: /proc/$$/io"#;
    let program = env!("CARGO_BIN_EXE_ropewalk");
    shell.args(["-c", script, "sh", program]);
    let output = shell
        .args(["copy", "--delta", "image", "one", "--also-to", "two"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let read = said.trim().strip_prefix("rchar: ").map(str::parse::<u64>);
    let read = read.unwrap_or_else(|| panic!("{said}")).unwrap();
    // Both copies, the source, and what is sent.
    assert!((3 * LEN..3 * LEN + LEN / 2).contains(&read), "{read}");
    for copy in ["one", "two"] {
        assert!(std::fs::read(place.path(copy)).unwrap() == bytes(LEN as usize, 1));
    }
}

/// Over agents that ssh starts, of two replicas: what is sent is what differs.
#[test]
fn contents_are_compared_over_ssh() {
    let place = Place::new();
    touched(&place);
    for folder in ["set", "copy"] {
        std::fs::write(place.path(folder).join("image"), bytes(9 << 20, 1)).unwrap();
    }
    touch_as(&place.path("copy/image"), &place.path("set/image"));
    overwrite(&place.path("copy/image"), 5 * MIB, b"changed");
    touch_as(&place.path("copy/image"), &place.path("set/image"));
    age_folders(&place);
    let ssh = make_ssh(&place, "");
    let set = place.text("set");
    let (one, two) = (format!("h1:{set}"), format!("h[1-2]:{set}"));
    let to = format!("h3:{}", place.text("copy"));
    let program = env!("CARGO_BIN_EXE_ropewalk");
    let words = ["--json", "--ssh", &ssh, "--remote-path", program];
    let run = |command: &str, options: &[&str], status: i32| {
        let from = if command == "check" { &one } else { &two };
        let ran = place.run(&[&[command][..], &words, options, &[from, &to]].concat());
        ran.assert_status(status).report()
    };
    assert_eq!(run("check", &[], 3)["check"]["contents"], 2);
    let report = run("copy", &["--check", "hash", "--delta"], 0);
    let whole = ["set/sub/f7", "set/sub/f8"].map(|name| place.path(name).metadata().unwrap().len());
    assert_eq!(
        report["delivered_bytes"],
        MIB + whole.iter().sum::<u64>(),
        "{report:#}"
    );
    assert_eq!(landing(&report, "unchanged_files"), 51);
    assert_eq!(landing(&report, "taken_bytes"), 8 * MIB);
    assert_same_tree(&place.path("copy"), &place.path("set"));
    assert_eq!(run("check", &["-a"], 0)["check"]["contents"], 0);
}

/// Waits until a process has a file open.
fn until_open(pid: u32, path: &Path) {
    wait_for("a file to be read", || {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        let mut open = open.flatten();
        open.any(|entry| std::fs::read_link(entry.path()).is_ok_and(|open| open == path))
            .then_some(())
    });
}

/// A holder that is killed while it hashes is replaced by another one: nothing that is the same is sent.
#[test]
fn a_holder_that_is_gone_is_replaced_while_contents_are_compared() {
    // Zeros take no space, and two hosts some time.
    const LEN: u64 = 1 << 30;
    let place = Place::new();
    place.make_token();
    for folder in ["set", "copy"] {
        std::fs::create_dir(place.path(folder)).unwrap();
        let file = File::create(place.path(folder).join("zeros")).unwrap();
        file.set_len(LEN).unwrap();
        std::fs::write(place.path(folder).join("small"), folder.repeat(1000)).unwrap();
    }
    std::fs::write(place.path("copy/small"), "other".repeat(600)).unwrap();
    let mut holders = [(); 2].map(|()| place.agent(place.dir.path()));
    let from = [0, 1].map(|at: usize| holders[at].at(place.path("set")));
    let args = ["copy", "--check", "hash", &from[0], &from[1], "copy"];
    let moving = Moving::start(&place, &args);
    let zeros = place.path("set/zeros").canonicalize().unwrap();
    until_open(holders[0].child.id(), &zeros);
    holders[0].kill();
    let (status, report) = moving.end();
    assert_eq!(status, 0, "{report:#}");
    assert_eq!(landing(&report, "unchanged_bytes"), LEN, "{report:#}");
    assert_eq!(report["delivered_bytes"], 3000, "{report:#}");
    let small = std::fs::read(place.path("copy/small")).unwrap();
    assert_eq!(small, b"set".repeat(1000));
}

/// When a run with `--delta` is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Killed {
    /// The receiver, while it takes chunks over.
    ReceiverThatCopies,
    /// The receiver, while bytes are sent.
    Receiver,
    /// The command and all that it started, while bytes are sent.
    All,
    /// The command alone: the agents that it has started go on.
    Command,
}

/// After a kill at any time files of the destination are old or new, each as a whole, and further names of old ones keep the old bytes; the
/// next run completes the copy, and sends no chunk that is there.
#[test]
fn a_killed_delta_is_gone_on_with() {
    use Killed::{All, Command, Receiver, ReceiverThatCopies};
    const LEN: usize = 24 << 20;
    for killed in [ReceiverThatCopies, Receiver, All, Command] {
        let place = Place::new();
        for folder in ["set", "copy", "backup"] {
            std::fs::create_dir(place.path(folder)).unwrap();
        }
        let (older, mut newer) = (bytes(LEN, 1), bytes(LEN, 1));
        newer[(12 << 20)..].copy_from_slice(&bytes(12 << 20, 2));
        let images = ["a", "b"];
        for name in images {
            std::fs::write(place.path("set").join(name), &newer).unwrap();
            let copy = place.path("copy").join(name);
            std::fs::write(&copy, &older).unwrap();
            touch(&copy, 1_000_000);
            std::fs::hard_link(&copy, place.path("backup").join(name)).unwrap();
        }
        place.make_token();
        let mut agent = place.agent(place.dir.path());
        let to = match killed {
            All | Command => place.text("copy"),
            ReceiverThatCopies | Receiver => agent.at(place.path("copy")),
        };
        let limit = if killed == Command {
            "80Mbit"
        } else {
            "40Mbit"
        };
        let (ssh, far) = (make_ssh(&place, ""), format!("host:{}", place.text("set")));
        let from = if killed == Command { &far } else { "set" };
        let program = env!("CARGO_BIN_EXE_ropewalk");
        let reach = ["--ssh", &ssh, "--remote-path", program, from, &to];
        let words = ["copy", "--delta", "--wait", "0", "--limit", limit];
        let mut moving = Moving::start(&place, &[&words[..], &reach].concat());
        match killed {
            ReceiverThatCopies => {
                wait_for("a temporary file", || {
                    let copy = place.path("copy");
                    let staged = temporary(&copy).into_iter().map(|name| copy.join(name));
                    let staged = staged.filter_map(|path| std::fs::read_dir(path).ok());
                    staged.flatten().next().map(|_| ())
                });
                agent.kill();
                assert_ne!(moving.end().0, 0);
            }
            Receiver => {
                moving.until_delivered(3 * MIB);
                agent.kill();
                assert_ne!(moving.end().0, 0);
            }
            All => {
                moving.until_delivered(3 * MIB);
                kill_at_once(&family(moving.child.id() as i32));
            }
            Command => {
                moving.until_delivered(3 * MIB);
                kill(moving.child.id() as i32);
            }
        }
        let is_old_or_new = |name: &str| {
            let found = std::fs::read(place.path("copy").join(name)).unwrap();
            found == older || found == newer
        };
        assert!(images.into_iter().all(is_old_or_new), "{killed:?}");
        let report = place.run(&["copy", "--json", "--delta", "set", "copy"]);
        let report = report.assert_status(0).report();
        let delivered = report["delivered_bytes"].as_u64().unwrap();
        let most = match killed {
            ReceiverThatCopies => 24 * MIB,
            Receiver | All => 21 * MIB,
            Command => 0,
        };
        assert!(delivered <= most, "{killed:?}: {report:#}");
        for name in images {
            let read = |folder: &str| std::fs::read(place.path(folder).join(name)).unwrap();
            assert!(read("copy") == newer, "{killed:?}");
            assert!(read("backup") == older, "{killed:?}");
        }
        assert_eq!(temporary(&place.path("copy")), [""; 0], "{killed:?}");
    }
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
    let wrong = report["landing"]["wrong"].as_array().unwrap();
    assert_eq!((wrong.len(), &wrong[0]["file"]), (1, &"image".into()));
    let not_taken = wrong[0]["bytes"].as_u64().unwrap();
    assert!((1..=MIB).contains(&not_taken), "{report:#}");
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
    let extra = format!("extra       {}", place.text("copy/more"));
    assert_eq!(
        lines,
        [
            &*extra,
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
        inner
            .out()
            .contains(&format!("extra       {}\n", place.text("copy/kept"))),
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
