//! Strangers at a standing agent, and what it logs.

mod common;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use common::{DEADLINE, Place, RunningAgent, start_agent, wait_for};
use rustix::process::{Pid, Signal, kill_process};

/// More silent connections than an agent of [`DESCRIPTORS`] has places, for a test process of 1024 descriptors.
const CROWD: usize = 800;

/// Descriptors of the agents here.
const DESCRIPTORS: usize = 1024;

/// An agent that serves the whole place; its log goes to the file `log` in it.
fn logged(place: &Place) -> RunningAgent {
    let own = place.command();
    let mut command = Command::new("sh");
    let script = format!("ulimit -n {DESCRIPTORS}; exec \"$0\" \"$@\"");
    command.args(["-c", &script]).arg(own.get_program());
    for (name, value) in own.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
        .args(["agent", "--listen", "127.0.0.1:0", "--root"])
        .arg(place.dir.path())
        .stderr(File::create(place.path("log")).unwrap());
    start_agent(command)
}

fn log(place: &Place) -> String {
    std::fs::read_to_string(place.path("log")).unwrap()
}

/// Waits until the log has a line with all parts, and returns it.
#[track_caller]
fn wait_for_line(place: &Place, parts: &[&str]) -> String {
    wait_for(&format!("{parts:?} in the log"), || {
        let has_all = |line: &&str| parts.iter().all(|part| line.contains(part));
        log(place).lines().find(has_all).map(str::to_owned)
    })
}

/// However many silent connections strangers hold, a copy, `status` and `cancel` get through.
#[test]
fn silent_strangers_lock_nobody_out() {
    let place = Place::new();
    place.make_token();
    let agent = logged(&place);
    std::fs::write(place.path("file"), b"text").unwrap();
    let at = format!("127.0.0.1:{}", agent.port);
    let crowd: Vec<TcpStream> = (0..CROWD)
        .map(|_| TcpStream::connect(&at).unwrap())
        .collect();
    place
        .run(&["status", "--agent", &at])
        .assert_status(0)
        .assert_says("no transfers");
    let copy = place.text("copy");
    place
        .run(&["copy", &agent.at(place.path("file")), &copy])
        .assert_status(0);
    place
        .run(&["cancel", "--all", "--agent", &at])
        .assert_status(1)
        .assert_says("cancelled 0");
    // The crowd was not all let go: the newest had places.
    wait_for_line(&place, &["closed, silent while too many others connect"]);
    wait_for_line(&place, &[" and ", " more lines like these"]);
    let lines = log(&place).lines().count();
    assert!(lines < CROWD / 2, "{lines} lines");
    drop(crowd);
}

/// A stranger that sends nothing, or something else, is closed and logged with its address.
#[test]
fn strangers_are_closed_and_logged() {
    let place = Place::new();
    place.make_token();
    let agent = logged(&place);
    for (sent, said) in [
        (&[][..], "closed, no preface within 5 s"),
        (&[b'x'; 128], "is no preface of this version"),
    ] {
        let mut stranger = TcpStream::connect(("127.0.0.1", agent.port)).unwrap();
        stranger.set_read_timeout(Some(DEADLINE)).unwrap();
        stranger.write_all(sent).unwrap();
        let mut answer = Vec::new();
        stranger.read_to_end(&mut answer).unwrap();
        assert!(answer.is_empty());
        let from = stranger.local_addr().unwrap().to_string();
        wait_for_line(&place, &[&from, said]);
    }
}

/// The log says of each transfer when it began and ended, for whom, and what moved; who had a wrong token; what was
/// refused. The end of a login does not end the agent.
#[test]
fn an_agent_logs_and_survives_a_hangup() {
    let place = Place::new();
    place.make_token();
    let mut agent = logged(&place);
    let hangup = Command::new("kill")
        .args(["-s", "HUP", &agent.child.id().to_string()])
        .status();
    assert!(hangup.unwrap().success());
    std::fs::write(place.path("file"), [1; 1000]).unwrap();
    let ran = place.run(&[
        "copy",
        "--json",
        &agent.at(place.path("file")),
        &place.text("copy"),
    ]);
    let report = ran.assert_status(0).report();
    let id = report["transfer"].as_str().unwrap();
    wait_for_line(
        &place,
        &[id, "127.0.0.1:", ": transfer ", "begins, this node sends"],
    );
    let line = wait_for_line(&place, &[id, "ends after"]);
    assert!(
        line.contains(": done, sent ") && line.ends_with("received 0 bytes"),
        "{line}"
    );
    let date: Vec<&str> = line.splitn(2, "Z ").collect();
    assert_eq!(date[0].len(), "2026-11-22T22:42:01".len(), "{line}");
    let other = place.text("other");
    place
        .run(&["agent", "--new-token", &other])
        .assert_status(0);
    let at = format!("127.0.0.1:{}", agent.port);
    place
        .run(&["status", "--agent", &at, "--token-file", &other])
        .assert_status(1);
    wait_for_line(&place, &["127.0.0.1:", "its token is wrong"]);
    place
        .run(&["copy", &agent.at("/etc/hostname"), &place.text("copy2")])
        .assert_status(4);
    wait_for_line(&place, &["127.0.0.1:", "refused, ", "/etc/hostname"]);
    let term = Command::new("kill")
        .args(["-s", "TERM", &agent.child.id().to_string()])
        .status();
    assert!(term.unwrap().success());
    let status = wait_for("the agent to end", || agent.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
}

/// From the line on that names its port, signals do what they should.
#[test]
fn signals_are_caught_once_it_listens() {
    let place = Place::new();
    place.make_token();
    for _ in 0..20 {
        let mut agent = logged(&place);
        for signal in [Signal::HUP, Signal::TERM] {
            kill_process(Pid::from_child(&agent.child), signal).unwrap();
        }
        let status = wait_for("the agent to end", || agent.child.try_wait().unwrap());
        assert_eq!(status.code(), Some(0), "{status}");
    }
}
