//! Transfers whose agents are ranks of MPI, on this host, with each MPI that is installed.

mod common;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::mpi::{Mpi, folder_of, installed, mpirun_of, write_program};
use common::processes::{assert_gone, family, kill, processes};
use common::{Moving, Place, assert_same_tree, bytes, make_tree, wait_for};

/// Slow enough that every transfer is still moving when the test acts on it.
const LIMIT: &str = "100Mbit";
const LENGTH: usize = 32 << 20;

/// What each MPI needs beside the words of a transfer of rows.
const LOCAL: [&str; 5] = ["transfer", "--start", "local", "--lane", "mpi"];

fn run(mpi: &Mpi, words: &[&str]) -> common::Ran {
    common::Ran(mpi.command().args(words).output().unwrap())
}

/// A transfer of two replicas to one receiver, or to two, that moves slowly.
struct Slow {
    moving: Moving,
    // All processes of it, and its agents.
    all: Vec<i32>,
    agents: Vec<i32>,
    folder: PathBuf,
}

impl Slow {
    fn start(mpi: &Mpi, receivers: usize) -> Self {
        let place = &mpi.place;
        std::fs::write(place.path("set"), bytes(LENGTH, 5)).unwrap();
        let row = |kind: &str, host: &str, file: &str| {
            let path = place.text(file);
            format!("{kind} {host}:1 {path} 0 0+{LENGTH}\n")
        };
        let mut spec = row("writer", "a", "set") + &row("writer", "b", "set");
        for number in 1..=receivers {
            spec += &row("reader", &format!("r{number}"), &format!("copy{number}"));
        }
        std::fs::write(place.path("spec"), spec).unwrap();
        let words = [&LOCAL[..], &["--limit", LIMIT, "spec"]].concat();
        let mut moving = Moving::start_as(mpi.command(), &words);
        moving.until_delivered(1);
        let all = family(moving.child.id() as i32);
        let started = processes(&["agent", "--one-shot"]);
        let agents: Vec<i32> = all
            .iter()
            .copied()
            .filter(|p| started.contains(p))
            .collect();
        assert_eq!(agents.len(), 2 + receivers);
        Self {
            folder: folder_of(&all),
            moving,
            all,
            agents,
        }
    }

    /// The first agent that writes a copy, or that writes none, once all that have to have begun to.
    fn agent(&self, receives: bool) -> i32 {
        let writes = |pid: &&i32| {
            let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
            let links = files.flatten().map(|file| std::fs::read_link(file.path()));
            let mut names = links.flatten().map(|path| path.display().to_string());
            names.any(|name| name.contains(".ropewalk-"))
        };
        // Two of them send.
        let receivers = self.agents.len() - 2;
        let (writers, others) = wait_for("the receivers to write", || {
            let found: (Vec<i32>, Vec<i32>) = self.agents.iter().partition(|pid| writes(pid));
            (found.0.len() == receivers).then_some(found)
        });
        if receives { writers[0] } else { others[0] }
    }
}

/// A tree arrives as it was, sealed or not, over one stream and over several; one program serves both MPIs.
#[test]
fn a_copy_arrives() {
    for mpi in installed() {
        let place = &mpi.place;
        make_tree(&place.path("set"));
        for (at, words) in [&["--streams", "1"][..], &["--streams", "4", "--plain"], &[]]
            .into_iter()
            .enumerate()
        {
            let to = format!("copy{at}");
            let words = [&["copy", "--lane", "mpi", "--json", "set", &to], words].concat();
            let report = run(&mpi, &words).assert_status(0).report();
            assert_same_tree(&place.path("set"), &place.path(&to));
            let pairs = report["pairs"].as_array().unwrap();
            assert_eq!(pairs.len(), 1, "{report:#}");
            assert_eq!(pairs[0]["lane"], "mpi", "{report:#}");
            let is_plain = words.contains(&"--plain");
            assert_eq!(report["encrypted"], !is_plain, "{report:#}");
        }
        // What was compiled is kept.
        let cache = place.path("home/.cache/ropewalk");
        assert_eq!(std::fs::read_dir(cache).unwrap().count(), 1);
    }
}

/// Several receivers have several senders: every pair is one of ranks.
#[test]
fn all_pairs_are_of_ranks() {
    for mpi in installed() {
        let place = &mpi.place;
        let data = bytes(12 << 20, 3);
        let part = data.len() / 3;
        let mut spec = String::new();
        for (at, bytes) in data.chunks(part).enumerate() {
            std::fs::write(place.path(&format!("part{at}")), bytes).unwrap();
            let path = place.text(&format!("part{at}"));
            spec += &format!("writer s{at}:1 {path} 0 {}+{part}\n", at * part);
        }
        for at in 0..2 {
            let path = place.text(&format!("copy{at}"));
            spec += &format!("reader r{at}:1 {path} 0 0+{}\n", data.len());
        }
        std::fs::write(place.path("spec"), spec).unwrap();
        let words = [&LOCAL[..], &["--json", "spec"]].concat();
        let report = run(&mpi, &words).assert_status(0).report();
        for at in 0..2 {
            assert!(std::fs::read(place.path(&format!("copy{at}"))).unwrap() == data);
        }
        let pairs = report["pairs"].as_array().unwrap();
        assert_eq!(pairs.len(), 6, "{report:#}");
        assert!(pairs.iter().all(|pair| pair["lane"] == "mpi"), "{report:#}");
    }
}

/// A replica takes the place of a sender that is killed; ranks that are left go on.
#[test]
fn a_killed_sender_is_replaced() {
    for mpi in installed() {
        let slow = Slow::start(&mpi, 1);
        kill(slow.agent(false));
        let (status, report) = slow.moving.end();
        assert_eq!(status, 0, "{}: {report:#}", mpi.name);
        let copy = std::fs::read(mpi.place.path("copy1")).unwrap();
        assert!(copy == bytes(LENGTH, 5), "{}", mpi.name);
        let notes = report["notes"].to_string();
        assert!(notes.contains("is lost"), "{}: {notes}", mpi.name);
        mpi.assert_clean(&slow.all, &slow.folder);
    }
}

/// A receiver that is killed is named, and the other one gets its copy.
#[test]
fn a_killed_receiver_is_named() {
    for mpi in installed() {
        let slow = Slow::start(&mpi, 2);
        kill(slow.agent(true));
        let (status, report) = slow.moving.end();
        assert_eq!(status, 1, "{}: {report:#}", mpi.name);
        let error = report["error"].as_str().unwrap();
        let (lost, other) = match error.contains("r1") {
            true => ("r1", "copy2"),
            false => ("r2", "copy1"),
        };
        assert!(error.contains(lost), "{}: {error}", mpi.name);
        let copy = std::fs::read(mpi.place.path(other)).unwrap();
        assert!(copy == bytes(LENGTH, 5), "{}", mpi.name);
        assert_gone(&slow.all);
        assert!(!slow.folder.exists());
    }
}

/// Without mpirun the transfer ends with an error that names it, and nothing stays but what the next run goes on with.
#[test]
fn a_killed_mpirun_ends_the_transfer() {
    for mpi in installed() {
        let slow = Slow::start(&mpi, 1);
        kill(mpirun_of(&slow.all, 3));
        let (status, report) = slow.moving.end();
        assert_eq!(status, 1, "{}: {report:#}", mpi.name);
        let error = report["error"].as_str().unwrap();
        assert!(error.contains("mpirun ended"), "{}: {error}", mpi.name);
        mpi.assert_ended(&slow.all, &slow.folder);
        assert!(!mpi.place.path("copy1").exists());
    }
}

/// What mpirun has started for an agent is killed. The agent has its place already, so whether a node is lost is up to the MPI: the
/// copy is right, or there is none and the error says why. Nothing hangs, and nothing stays but what the next run goes on with.
#[test]
fn a_killed_rank_leaves_no_wrong_copy() {
    for mpi in installed() {
        let slow = Slow::start(&mpi, 1);
        let ranks = processes(&["ropewalk rank "]);
        let is_rank = |pid: &&i32| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            ranks.contains(pid) && name.is_ok_and(|name| name == "ropewalk\n")
        };
        kill(*slow.all.iter().find(is_rank).expect("a rank"));
        let (status, report) = slow.moving.end();
        let copy = std::fs::read(mpi.place.path("copy1")).ok();
        match status {
            0 => assert!(copy == Some(bytes(LENGTH, 5)), "{}", mpi.name),
            1 => {
                let error = report["error"].as_str().unwrap();
                let is_named = error.contains("is lost") || error.contains("mpirun ended");
                assert!(is_named && copy.is_none(), "{}: {error}", mpi.name);
            }
            other => panic!("{}: {other}: {report:#}", mpi.name),
        }
        mpi.assert_ended(&slow.all, &slow.folder);
    }
}

/// A command that is killed takes agents, ranks and mpirun with it.
#[test]
fn a_killed_command_leaves_no_process() {
    for mpi in installed() {
        let slow = Slow::start(&mpi, 1);
        kill(slow.moving.child.id() as i32);
        let folder = &slow.folder;
        wait_for("files of MPI to go", || (!folder.exists()).then_some(()));
        drop(slow.moving);
        mpi.assert_ended(&slow.all, folder);
    }
}

/// Ctrl-C ends everything: status 130, no process, no file.
#[test]
fn an_interrupted_transfer_leaves_nothing() {
    for mpi in installed() {
        let slow = Slow::start(&mpi, 1);
        let command = slow.moving.child.id() as i32;
        let status = Command::new("kill")
            .args(["-INT", &command.to_string()])
            .status();
        assert!(status.unwrap().success());
        assert_eq!(slow.moving.end().0, 130);
        mpi.assert_clean(&slow.all, &slow.folder);
        assert!(!mpi.place.path("copy1").exists());
    }
}

/// Without an MPI, or with nodes that can be no ranks, a copy is refused before anything is made, with what to do.
#[test]
fn what_cannot_be_ranks_is_refused() {
    let place = Place::new();
    std::fs::write(place.path("set"), b"x").unwrap();
    let mut command = place.command();
    command.env("PATH", place.text("bin"));
    let words = ["copy", "--json", "--lane", "mpi"];
    let ran = command.args(words).args(["set", "copy"]).output().unwrap();
    let error = common::Ran(ran).assert_status(4).error();
    for part in ["--lane mpi", "no mpirun is on this host", "openmpi-bin"] {
        assert!(error.contains(part), "{error}");
    }
    place.make_token();
    for other in ["host:set", "host:7420:/set", "host:*.h5"] {
        let ran = place.command().args(words).args([other, "copy"]).output();
        let error = common::Ran(ran.unwrap()).assert_status(4).error();
        for part in ["host", "this command starts on this host", "without a host"] {
            assert!(error.contains(part), "{other}: {error}");
        }
    }
    assert!(!place.path("copy").exists());
}

/// An agent that cannot start ends the others before mpirun is started, and is what the error is about.
#[test]
fn a_missing_source_is_named() {
    for mpi in installed() {
        let place = &mpi.place;
        let real = format!("/usr/bin/mpirun.{}", mpi.name);
        let mark = place.text("mark");
        let script = format!("[ \"$1\" = --version ] || touch {mark}\nexec {real} \"$@\"");
        write_program(place, "mpirun", &script);
        let words = ["copy", "--json", "--lane", "mpi", "nothing", "copy"];
        let error = run(&mpi, &words).assert_status(4).error();
        assert!(error.contains("nothing"), "{}: {error}", mpi.name);
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(!place.path("mark").exists());
        assert!(!place.path("copy").exists());
    }
}

/// An mpirun that fails is quoted, and no agent waits for its ranks.
#[test]
fn what_mpirun_says_is_reported() {
    for mpi in installed() {
        let place = &mpi.place;
        let real = format!("/usr/bin/mpirun.{}", mpi.name);
        let script = format!(
            "[ \"$1\" = --version ] && exec {real} --version\necho 'no slots here' >&2\nexit 7"
        );
        write_program(place, "mpirun", &script);
        std::fs::write(place.path("set"), b"x").unwrap();
        let words = ["copy", "--json", "--lane", "mpi", "set", "copy"];
        let error = run(&mpi, &words).assert_status(4).error();
        let text = "mpirun ended with status 7: no slots here";
        assert!(error.contains(text), "{}: {error}", mpi.name);
        assert!(!place.path("copy").exists());
    }
}

/// A command that ends while its agents wait for each other in MPI_Init leaves none of them there.
#[test]
fn a_command_that_ends_at_the_start_leaves_nothing() {
    for mpi in installed() {
        for signal in ["-KILL", "-INT"] {
            let place = &mpi.place;
            // The second rank starts once a file is there.
            let late = "[ \"$OMPI_COMM_WORLD_RANK$PMI_RANK\" = 0 ] || until [ -e go ]; do sleep 0.02; done\nexec \"$@\"";
            write_program(place, "late", late);
            let script = format!(
                "left=$#\nwhile [ $left -gt 0 ]; do\n\
                   case $1 in */ropewalk) set -- \"$@\" {late} ;; esac\n\
                   set -- \"$@\" \"$1\"; shift; left=$((left-1))\n\
                 done\nexec /usr/bin/mpirun.{name} \"$@\"",
                late = place.text("bin/late"),
                name = mpi.name,
            );
            write_program(place, "mpirun", &script);
            std::fs::write(place.path("set"), b"x").unwrap();
            let words = ["copy", "--lane", "mpi", "--json", "set", "copy"];
            let mut command = mpi.command();
            let mut command = command.args(words).stdout(Stdio::null()).spawn().unwrap();
            let waits = |pid: &i32| {
                let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"));
                maps.is_ok_and(|maps| maps.contains("libmpi"))
            };
            let agents = || {
                let started = processes(&["agent", "--one-shot"]);
                let all = family(command.id() as i32);
                all.into_iter().filter(move |pid| started.contains(pid))
            };
            wait_for("an agent to be in MPI_Init", || agents().find(waits));
            let (all, agents) = (family(command.id() as i32), agents().collect::<Vec<i32>>());
            let folder = folder_of(&all);
            let sent = Command::new("kill")
                .args([signal, &command.id().to_string()])
                .status();
            assert!(sent.unwrap().success());
            // Its agents end without the other rank.
            let status = command.wait().unwrap();
            assert_gone(&agents);
            std::fs::write(place.path("go"), b"").unwrap();
            assert_gone(&all);
            wait_for("files of MPI to go", || (!folder.exists()).then_some(()));
            let expected = (signal == "-INT").then_some(130);
            assert_eq!(status.code(), expected, "{} {signal}", mpi.name);
            std::fs::remove_file(place.path("go")).unwrap();
        }
    }
}

/// An `mpirun` that stays when its ranks have ended, as one may that hangs in its own handling of signals, is killed with what it has
/// started after a command that was killed.
#[test]
fn an_mpirun_that_hangs_is_killed() {
    for mpi in installed() {
        let place = &mpi.place;
        let script = format!(
            "trap '' TERM\n\
             [ \"$1\" = --version ] || while :; do sleep 0.1; done &\n\
             /usr/bin/mpirun.{} \"$@\"\n\
             wait",
            mpi.name
        );
        write_program(place, "mpirun", &script);
        let slow = Slow::start(&mpi, 1);
        kill(slow.moving.child.id() as i32);
        assert_gone(&slow.all);
        assert!(!slow.folder.exists());
    }
}

/// Ranks start together: no node joins them.
#[test]
fn no_node_joins() {
    for mpi in installed() {
        let slow = Slow::start(&mpi, 1);
        let path = mpi.place.text("copy9");
        let row = format!("reader r9:1 {path} 0 0+{LENGTH}\n");
        std::fs::write(mpi.place.path("more"), row).unwrap();
        let id = slow.moving.child.id().to_string();
        let words = ["join", "--start", "local", &id, "more"];
        let ran = run(&mpi, &words);
        assert_ne!(ran.status(), 0);
        ran.assert_says("ranks of a transfer over MPI start together");
    }
}
