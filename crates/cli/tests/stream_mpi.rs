//! Streams whose processes are ranks of MPI, on this host, with each MPI that is installed.

mod common;

use std::path::Path;
use std::process::Command;

use common::mpi::{Mpi, folder_of, installed, mpirun_of, write_program};
use common::processes::{family, kill, processes, stages};
use common::{Moving, Place, blocks, bytes};

const WORDS: [&str; 5] = ["stream", "localhost", "localhost", "--lane", "mpi"];

/// Starts a stream without end, and waits until blocks have arrived.
fn start(mpi: &Mpi, words: &[&str]) -> Moving {
    let words = [&WORDS[..], &["--size", "1TiB", "--to", "out{node}"], words].concat();
    let mut moving = Moving::start_as(mpi.command(), &words);
    moving.until_received(2);
    moving
}

/// After a stream that failed: no process, no file, and nothing of MPI.
fn assert_clean(mpi: &Mpi, all: &[i32], folder: &Path) {
    mpi.assert_clean(all, folder);
    assert!(!mpi.place.path("out1").exists());
}

/// Two nodes and three groups: the files of both come out at both, every block once, with each MPI, for short and long blocks.
/// One program serves both.
#[test]
fn every_block_arrives_once() {
    for mpi in installed() {
        for (block, len) in [("4KiB", 4 << 10), ("64KiB", 64 << 10), ("1MiB", 1 << 20)] {
            let place = &mpi.place;
            for (name, seed) in [("in1", 1), ("in2", 2)] {
                std::fs::write(place.path(name), bytes(6 << 20, seed)).unwrap();
            }
            let files = ["--from", "in{node}", "--to", "out{node}", "--json"];
            let mut command = mpi.command();
            let ran = command.args(WORDS).args(files).args(["--block", block]);
            let ran = common::Ran(ran.output().unwrap()).assert_status(0);
            let report = ran.report();
            assert_eq!(report["accounted"], true);
            assert_eq!(report["encrypted"], false);
            assert_eq!(report["bytes"], 12 << 20, "{} {block}", mpi.name);
            let paths = |names: [&str; 2]| names.map(|name| place.path(name));
            let (from, to) = (paths(["in1", "in2"]), paths(["out1", "out2"]));
            assert!(
                blocks(&from, len) == blocks(&to, len),
                "{} {block}",
                mpi.name
            );
        }
        // What was compiled is kept.
        let cache = mpi.place.path("home/.cache/ropewalk");
        assert_eq!(std::fs::read_dir(cache).unwrap().count(), 1);
    }
}

/// Programs are stages beside ranks, and are none: they see nothing of MPI.
#[test]
fn programs_are_stages() {
    for mpi in installed() {
        let program = "B=test -z \"$ROPEWALK_RANK_KEY$OMPI_COMM_WORLD_SIZE$PMI_SIZE\" && cat";
        let words = ["--json", "--size", "32MiB", "--exec", program];
        let ran = mpi.command().args(WORDS).args(words).output().unwrap();
        let report = common::Ran(ran).assert_status(0).report();
        assert_eq!(report["bytes"], 64 << 20, "{}", mpi.name);
    }
}

/// A rank that is killed is named, whatever it did, and nothing stays.
#[test]
fn a_killed_rank_is_named() {
    for mpi in installed() {
        for number in [0, 1, 2] {
            let moving = start(&mpi, &["--exec", "B=cat"]);
            let all = family(moving.child.id() as i32);
            let folder = folder_of(&all);
            let stages = stages(moving.child.id() as i32);
            assert_eq!(stages.len(), 6, "{all:?}");
            kill(stages[number]);
            let (status, report) = moving.end();
            assert_eq!(status, 1);
            let error = report["error"].as_str().unwrap();
            let name = ["A", "B", "C"][number];
            let place = format!("{name} on localhost ");
            let text = "its process was killed by signal 9";
            assert!(
                error.starts_with(&place) && error.contains(text),
                "{} {number}: {error}",
                mpi.name
            );
            assert_clean(&mpi, &all, &folder);
        }
    }
}

/// An agent that is killed takes its ranks with it, the one that started mpirun, too.
#[test]
fn a_killed_agent_leaves_nothing() {
    for mpi in installed() {
        for number in [0, 1] {
            let moving = start(&mpi, &["--exec", "B=cat"]);
            let all = family(moving.child.id() as i32);
            let folder = folder_of(&all);
            let agents = processes(&["agent", "--one-shot"]);
            let mut agents = all.iter().filter(|pid| agents.contains(pid));
            kill(*agents.nth(number).unwrap());
            let (status, report) = moving.end();
            assert_eq!(status, 1);
            let error = report["error"].as_str().unwrap();
            assert!(error.contains("localhost"), "{error}");
            common::wait_for("files of MPI to go", || (!folder.exists()).then_some(()));
            assert_clean(&mpi, &all, &folder);
        }
    }
}

/// Without mpirun its ranks end or are ended, and it is named, or the first rank that ended with it.
#[test]
fn a_killed_mpirun_ends_the_stream() {
    for mpi in installed() {
        let moving = start(&mpi, &[]);
        let all = family(moving.child.id() as i32);
        let folder = folder_of(&all);
        kill(mpirun_of(&all, 6));
        let (status, report) = moving.end();
        assert_eq!(status, 1);
        let error = report["error"].as_str().unwrap();
        assert!(error.contains("mpirun"), "{}: {error}", mpi.name);
        assert_clean(&mpi, &all, &folder);
    }
}

/// Ctrl-C ends everything: status 130, no process, no file.
#[test]
fn an_interrupted_stream_leaves_nothing() {
    for mpi in installed() {
        let moving = start(&mpi, &[]);
        let command = moving.child.id() as i32;
        let all = family(command);
        let folder = folder_of(&all);
        let status = Command::new("kill")
            .args(["-INT", &command.to_string()])
            .status();
        assert!(status.unwrap().success());
        assert_eq!(moving.end().0, 130);
        assert_clean(&mpi, &all, &folder);
    }
}

/// Without an MPI, or without its compiler, the stream is refused before anything is made, with what to install.
#[test]
fn a_missing_mpi_is_named() {
    let place = Place::new();
    let run = || {
        let mut command = place.command();
        command.env("PATH", place.text("bin"));
        let words = ["--json", "--size", "1MiB", "--to", "out{node}"];
        let ran = command.args(WORDS).args(words).output().unwrap();
        let report = common::Ran(ran).assert_status(4).report();
        assert!(!place.path("out1").exists());
        report["error"].as_str().unwrap().to_owned()
    };
    let error = run();
    for part in ["no mpirun is on this host", "openmpi-bin", "libmpich-dev"] {
        assert!(error.contains(part), "{error}");
    }
    write_program(&place, "mpirun", "echo 'mpirun (Open MPI) 4.1.4'");
    let error = run();
    for part in ["no mpicc of it works", "libopenmpi-dev"] {
        assert!(error.contains(part), "{error}");
    }
    write_program(&place, "mpirun", "echo 'Another MPI 7'");
    let error = run();
    assert!(error.contains("it says `Another MPI 7`"), "{error}");
}

/// An mpirun that fails is quoted.
#[test]
fn what_mpirun_says_is_reported() {
    for mpi in installed() {
        let real = format!("/usr/bin/mpirun.{}", mpi.name);
        let script = format!(
            "[ \"$1\" = --version ] && exec {real} --version\necho 'no slots here' >&2\nexit 7"
        );
        write_program(&mpi.place, "mpirun", &script);
        let mut command = mpi.command();
        let ran = command.args(WORDS).args(["--json", "--size", "1MiB"]);
        let error = common::Ran(ran.output().unwrap()).assert_status(1).error();
        assert!(
            error.contains("mpirun ended with status 7: no slots here"),
            "{error}"
        );
    }
}
