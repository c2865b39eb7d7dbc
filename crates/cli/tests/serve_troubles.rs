//! What happens to `ropewalk serve` while it runs: its program is replaced, its disk is full; what jobs keep of their commands.

mod common;

use std::fs::File;
use std::path::Path;
use std::process::Stdio;

use common::serving::{Serving, hand_over, job, state};
use common::{Place, Ran, bytes, make_tree, wait_for};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ropewalk");

/// A package manager puts another program in the place of the one that serves: jobs run all the same.
#[test]
fn a_replaced_program_runs_jobs() {
    let place = Place::new();
    std::fs::write(place.path("data"), bytes(50_000, 3)).unwrap();
    let program = place.path("ropewalk");
    if std::fs::hard_link(PROGRAM, &program).is_err() {
        std::fs::copy(PROGRAM, &program).unwrap();
    }
    let mut command = place.command_of(&program);
    command.arg("serve");
    let _serving = Serving::of(command);
    std::fs::write(place.path("new"), "no program").unwrap();
    std::fs::rename(place.path("new"), &program).unwrap();
    // An agent of this host is started, too.
    let id = hand_over(&place, &["data", "copy"]);
    wait_for("the job to end", || {
        let job = job(&place, id);
        assert_eq!(job["failures"], 0, "{job:#}");
        (state(&job) == "done").then_some(())
    });
    assert_eq!(std::fs::read(place.path("copy")).unwrap(), bytes(50_000, 3));
}

/// No file of a process can be written beyond its first page, or all can.
fn fill_disk(serving: &Serving, is_full: bool) {
    let limit = Rlimit {
        current: is_full.then_some(4096),
        maximum: None,
    };
    prlimit(Some(Pid::from_child(&serving.0)), Resource::Fsize, limit).unwrap();
}

/// While the queue cannot be written, what runs ends well, no job is taken and `serve` stays; then it goes on.
#[test]
fn a_full_disk_under_the_queue_holds_it_up() {
    let place = Place::new();
    std::fs::write(place.path("data"), bytes(4 << 20, 3)).unwrap();
    let mut command = place.command_of("sh");
    command
        // A write that is refused ends no process.
        .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\"", PROGRAM])
        .args(["serve", "--limit", "256kB/s"])
        .stderr(File::create(place.path("errors")).unwrap());
    let serving = Serving::of(command);
    let said = |part: &str| {
        let said = std::fs::read_to_string(place.path("errors")).unwrap();
        said.contains(part).then_some(())
    };
    let id = hand_over(&place, &["data", "a"]);
    wait_for("the job to run", || {
        job(&place, id)["process"].is_u64().then_some(())
    });
    fill_disk(&serving, true);
    place
        .run(&["copy", "--detach", "data", "b"])
        .assert_status(1)
        .assert_says("the job cannot be kept and is not taken");
    place.run(&["queue", "--limit", "none"]).assert_status(0);
    wait_for("the copy", || place.path("a").exists().then_some(()));
    wait_for("its report", || {
        said("running transfers go on, nothing else starts")
    });
    place.run(&["queue"]).assert_status(0);
    fill_disk(&serving, false);
    let id = id.to_string();
    place.run(&["queue", "--wait", &id]).assert_status(0);
    wait_for("its report", || said("the queue is written again"));
    let next = hand_over(&place, &["data", "c"]).to_string();
    place.run(&["queue", "--wait", &next]).assert_status(0);
    assert!(std::fs::read(place.path("c")).unwrap() == bytes(4 << 20, 3));
    assert!(!place.path("b").exists(), "a job that was refused ran");
}

/// Hands a copy over with a file as its standard input.
fn hand_over_with(place: &Place, input: &Path, args: &[&str]) -> Ran {
    let mut command = place.command();
    command
        .args(["copy", "--detach"])
        .args(args)
        .stdin(Stdio::from(File::open(input).unwrap()));
    Ran(command.output().unwrap())
}

/// Patterns are kept with a job as they were, also those of standard input; a token is not, and what no job could have is refused.
#[test]
fn what_a_command_read_is_kept() {
    let place = Place::new();
    let token = place.make_token();
    make_tree(&place.path("tree"));
    let _serving = Serving::start(&place, &[]);
    std::fs::write(place.path("patterns"), "big\nf2*\n").unwrap();
    let patterns = place.path("patterns");
    let args = ["--exclude-from", "-", "tree", "a"];
    hand_over_with(&place, &patterns, &args).assert_status(0);
    hand_over(&place, &["--exclude-from", "patterns", "tree", "b"]);
    std::fs::remove_file(patterns).unwrap();
    place.run(&["queue", "--wait"]).assert_status(0);
    for copy in ["a", "b"] {
        let has = |name: &str| place.path(copy).join(name).exists();
        assert!(has("sub/f1") && has("none"), "{copy}");
        assert!(!has("big") && !has("sub/f2") && !has("sub/f20"), "{copy}");
    }
    let args = ["--token-file", "/dev/stdin", "h:7420:/x", "c"];
    hand_over_with(&place, &token, &args)
        .assert_status(2)
        .assert_says("only this command has it");
    // Names that are no text take four letters a byte.
    std::fs::write(place.path("list"), vec![0xff; 20 << 20]).unwrap();
    place
        .run(&["copy", "--detach", "--files-from", "list", "tree", "d"])
        .assert_status(1)
        .assert_says("split it, or run it without --detach");
}

/// The folder of the queue may be named from the folder that `serve` was started in; runs have the folders of their commands.
#[test]
fn the_queue_may_be_in_a_relative_folder() {
    let place = Place::new();
    let elsewhere = place.path("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::write(elsewhere.join("data"), bytes(5000, 3)).unwrap();
    let _serving = Serving::start(&place, &["--state", "state"]);
    let mut command = place.command();
    let handed = command
        .current_dir(&elsewhere)
        .args(["copy", "--detach", "data", "copy"]);
    assert!(handed.status().unwrap().success());
    place.run(&["queue", "--wait", "1"]).assert_status(0);
    assert_eq!(
        std::fs::read(elsewhere.join("copy")).unwrap(),
        bytes(5000, 3)
    );
}

/// A `serve` that a signal has stopped is named with what continues it, at once.
#[test]
fn a_stopped_serve_is_named() {
    let place = Place::new();
    let serving = Serving::start(&place, &[]);
    serving.signal(Signal::STOP);
    let process = serving.0.id();
    place
        .run(&["queue"])
        .assert_status(1)
        .assert_says(&format!("kill -CONT {process}"));
    serving.signal(Signal::CONT);
    place.run(&["queue"]).assert_status(0);
}
