//! The command is killed while its agents live: they finish what they were granted, for a while, and the next command is in nobody's way.

mod common;

use common::processes::{assert_gone, family, kill, temporary};
use common::{Moving, Place, RunningAgent, assert_same_tree, bytes, make_ssh, wait_for};
use serde_json::Value;

const LARGE: usize = 20 << 20;
const TOTAL: u64 = LARGE as u64 + 5000;

/// A copy of which this is left is complete within the grace.
const LIMIT: &str = "80Mbit";

struct Scene {
    place: Place,
    sender: RunningAgent,
    receiver: RunningAgent,
}

impl Scene {
    fn new() -> Self {
        let place = Place::new();
        place.make_token();
        std::fs::create_dir(place.path("set")).unwrap();
        std::fs::write(place.path("set/small"), bytes(5000, 1)).unwrap();
        std::fs::write(place.path("set/large"), bytes(LARGE, 2)).unwrap();
        let [sender, receiver] = [(); 2].map(|()| place.agent(place.dir.path()));
        Self {
            place,
            sender,
            receiver,
        }
    }

    fn ends(&self) -> [String; 2] {
        let (from, to) = (self.place.path("set"), self.place.path("copy"));
        [self.sender.at(from), self.receiver.at(to)]
    }

    /// A copy of which so much is safe, and whose command is killed.
    fn orphan(&self, limit: &str, bytes: u64) -> u64 {
        let [from, to] = self.ends();
        let mut moving = Moving::start(&self.place, &["copy", "--limit", limit, &from, &to]);
        let safe = loop {
            let safe = moving.event("progress")["delivered_bytes"]
                .as_u64()
                .unwrap();
            if safe >= bytes {
                break safe;
            }
        };
        moving.child.kill().unwrap();
        moving.child.wait().unwrap();
        safe
    }

    fn run_again(&self) -> Value {
        let [from, to] = self.ends();
        let words = ["copy", "--json", &from, &to];
        self.place.run(&words).assert_status(0).report()
    }

    #[track_caller]
    fn assert_whole(&self) {
        assert_same_tree(&self.place.path("set"), &self.place.path("copy"));
        assert_eq!(temporary(self.place.dir.path()), [""; 0]);
        assert_eq!(temporary(&self.place.path("copy")), [""; 0]);
    }
}

fn there(report: &Value) -> u64 {
    let landing = &report["landing"];
    let bytes = |key: &str| landing[key].as_u64().unwrap();
    bytes("resumed_bytes") + bytes("unchanged_bytes")
}

/// What is left of a copy when its command is killed arrives all the same, and has its name.
#[test]
fn a_copy_is_finished_without_its_command() {
    let scene = Scene::new();
    scene.orphan(LIMIT, 8 << 20);
    wait_for("the copy to be complete", || {
        scene.place.path("copy/large").exists().then_some(())
    });
    wait_for("its temporary files to be gone", || {
        temporary(scene.place.dir.path()).is_empty().then_some(())
    });
    let report = scene.run_again();
    assert_eq!(
        (there(&report), &report["delivered_bytes"]),
        (TOTAL, &0.into())
    );
    scene.assert_whole();
}

/// A transfer that has not ended, as one whose agent does not get on, is waited for until it has.
#[test]
fn an_end_is_waited_for() {
    let scene = Scene::new();
    let safe = scene.orphan("24Mbit", 4 << 20);
    let pid = scene.receiver.child.id().to_string();
    let signal = |name: &str| {
        let mut command = std::process::Command::new("kill");
        assert!(command.args([name, &pid]).status().unwrap().success());
    };
    // The last record of its journal, without the checksum.
    let says_so = || {
        let names = temporary(scene.place.dir.path());
        let journal = names.iter().find(|name| name.ends_with(".journal"))?;
        let bytes = std::fs::read(scene.place.path(journal)).ok()?;
        let last = bytes.get(bytes.len().checked_sub(17)?..)?;
        (last[..9] == [5, 0, 0, 0, 5, 0, 0, 0, 0]).then_some(())
    };
    wait_for("the agent to say that it is about to end", || {
        signal("-STOP");
        let said = says_so();
        if said.is_none() {
            signal("-CONT");
        }
        said
    });
    let other = scene.place.agent(scene.place.dir.path());
    let [from, to] = [
        scene.sender.at(scene.place.path("set")),
        other.at(scene.place.path("copy")),
    ];
    let words = ["copy", "--wait", "forever", &from, &to];
    let mut moving = Moving::start(&scene.place, &words);
    let waits = moving.event("awaiting_end");
    assert_eq!(waits["path"], scene.place.text("copy"), "{waits}");
    let listed = scene.place.run(&["status"]).assert_status(0);
    assert!(
        listed.out().contains("waiting for an earlier transfer to"),
        "{}",
        listed.out()
    );
    signal("-CONT");
    let (status, report) = moving.end();
    assert_eq!(status, 0, "{report:#}");
    assert!(
        report["awaited_end_seconds"].as_f64() > Some(0.0),
        "{report:#}"
    );
    assert!(there(&report) >= safe, "{safe}: {report:#}");
    scene.assert_whole();
}

/// The next command takes over from an agent that still goes on: it need not wait for it, and nothing that was safe is sent again.
#[test]
fn the_next_command_takes_over() {
    let scene = Scene::new();
    let safe = scene.orphan("24Mbit", 4 << 20);
    let report = scene.run_again();
    assert!(there(&report) >= safe, "{safe}: {report:#}");
    // The rest at that limit takes longer than this.
    let sent = report["delivered_bytes"].as_u64().unwrap();
    assert!(sent > 0, "{report:#}");
    assert_eq!(sent, TOTAL - there(&report), "{report:#}");
    scene.assert_whole();
}

/// A copy from a host that is reached over ssh, so that the command starts agents as processes: its words, with these before.
fn started<'w>(place: &Place, ssh: &'w str, from: &'w str, options: &[&'w str]) -> Vec<&'w str> {
    std::fs::create_dir(place.path("set")).unwrap();
    std::fs::write(place.path("set/large"), bytes(LARGE, 2)).unwrap();
    let program = env!("CARGO_BIN_EXE_ropewalk");
    let reach = ["--ssh", ssh, "--remote-path", program, from, "copy"];
    [&["copy"], options, &reach].concat()
}

/// Agents that the command has started go on as well, then end; the next command waits for what they finish.
#[test]
fn started_agents_finish_and_end() {
    let place = Place::new();
    let (ssh, from) = (make_ssh(&place, ""), format!("host:{}", place.text("set")));
    let words = started(&place, &ssh, &from, &["--limit", LIMIT]);
    let mut moving = Moving::start(&place, &words);
    moving.until_delivered(8 << 20);
    let all = family(moving.child.id() as i32);
    kill(all[0]);
    moving.child.wait().unwrap();
    let words = [&words[..], &["--json"]].concat();
    let report = place.run(&words).assert_status(0).report();
    assert_eq!(report["delivered_bytes"], 0, "{report:#}");
    assert_eq!(report["landing"]["unchanged_bytes"], LARGE, "{report:#}");
    assert_same_tree(&place.path("set"), &place.path("copy"));
    assert_eq!(temporary(place.dir.path()), [""; 0]);
    assert_gone(&all[1..]);
}

/// Nothing shows the next command that agents go on with what has no journal: these end with their command, and give nothing a name
/// after that.
#[test]
fn what_has_no_journal_ends_with_its_command() {
    let place = Place::new();
    let (ssh, from) = (make_ssh(&place, ""), format!("host:{}", place.text("set")));
    let words = started(&place, &ssh, &from, &["--check", "none", "--limit", LIMIT]);
    let mut moving = Moving::start(&place, &words);
    moving.until_delivered(8 << 20);
    let all = family(moving.child.id() as i32);
    kill(all[0]);
    moving.child.wait().unwrap();
    assert_gone(&all[1..]);
    assert!(!place.path("copy").exists());
    assert_eq!(temporary(place.dir.path()), [""; 0]);
}

/// The agents of a local copy are in the command's process and end with it; what was safe is not sent again.
#[test]
fn a_killed_local_copy_is_continued() {
    let place = Place::new();
    std::fs::create_dir(place.path("set")).unwrap();
    std::fs::write(place.path("set/large"), bytes(LARGE, 2)).unwrap();
    let mut moving = Moving::start(&place, &["copy", "--limit", LIMIT, "set", "copy"]);
    moving.until_delivered(8 << 20);
    let all = family(moving.child.id() as i32);
    assert_eq!(all.len(), 1);
    kill(all[0]);
    moving.child.wait().unwrap();
    let report = place
        .run(&["copy", "--json", "set", "copy"])
        .assert_status(0)
        .report();
    assert!(there(&report) >= 8 << 20, "{report:#}");
    let sent = report["delivered_bytes"].as_u64().unwrap();
    assert_eq!(sent, LARGE as u64 - there(&report), "{report:#}");
    assert_same_tree(&place.path("set"), &place.path("copy"));
    assert_eq!(temporary(place.dir.path()), [""; 0]);
}

/// Ctrl-C is an order: nothing goes on.
#[test]
fn an_interrupted_copy_does_not_go_on() {
    let scene = Scene::new();
    let [from, to] = scene.ends();
    let mut moving = Moving::start(&scene.place, &["copy", "--limit", LIMIT, &from, &to]);
    moving.until_delivered(6 << 20);
    let pid = moving.child.id().to_string();
    let sent = std::process::Command::new("kill")
        .args(["-INT", &pid])
        .status();
    assert!(sent.unwrap().success());
    assert_eq!(moving.end().0, 130);
    assert!(!scene.place.path("copy/large").exists());
    let shown = scene.place.run(&[
        "status",
        "--agent",
        &format!("127.0.0.1:{}", scene.receiver.port),
    ]);
    let shown = shown.assert_status(0).out();
    assert!(!shown.contains("moving"), "{shown}");
}

/// The end of the terminal ends a local copy in order, as Ctrl-C does: its agents cannot outlive the command.
#[test]
fn a_local_copy_ends_in_order_with_its_terminal() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    if u64::from_str_radix(ignored.unwrap().trim(), 16).unwrap() & 1 == 1 {
        eprintln!("skipped: SIGHUP is ignored here, as under nohup");
        return;
    }
    let place = Place::new();
    std::fs::create_dir(place.path("set")).unwrap();
    std::fs::write(place.path("set/large"), bytes(LARGE, 2)).unwrap();
    let args = ["copy", "--check", "none", "--limit", LIMIT, "set", "copy"];
    let mut moving = Moving::start(&place, &args);
    moving.until_delivered(8 << 20);
    let pid = moving.child.id().to_string();
    // Shells pass on what the system sends.
    for _ in 0..2 {
        let sent = std::process::Command::new("kill")
            .args(["-HUP", &pid])
            .status();
        assert!(sent.unwrap().success());
    }
    assert_eq!(moving.end().0, 130);
    assert!(!place.path("copy/large").exists());
    assert_eq!(temporary(place.dir.path()), [""; 0]);
}
