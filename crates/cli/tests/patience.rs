//! Nodes without which a copy cannot go on are lost and return: the same command completes, and what was safe is not sent again.

mod common;

use common::processes::{kill_at_once, processes, temporary};
use common::{Moving, Place, RunningAgent, assert_same_tree, bytes, make_ssh};
use serde_json::Value;

const LARGE: usize = 40 << 20;
const SMALL: usize = 500_000;
const TOTAL: u64 = (LARGE + 8 * SMALL) as u64;

/// Bytes that are safe when a node is lost.
const BEFORE: u64 = 12 << 20;

/// A tree and two agents.
struct Scene {
    place: Place,
    sender: RunningAgent,
    receiver: RunningAgent,
}

fn make_set(place: &Place) {
    std::fs::create_dir_all(place.path("set/sub")).unwrap();
    std::fs::write(place.path("set/sub/large"), bytes(LARGE, 3)).unwrap();
    for at in 0..8 {
        std::fs::write(place.path(&format!("set/f{at}")), bytes(SMALL, at)).unwrap();
    }
}

impl Scene {
    fn new() -> Self {
        let place = Place::new();
        place.make_token();
        make_set(&place);
        let (sender, receiver) = (place.agent(place.dir.path()), place.agent(place.dir.path()));
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

    /// A copy of which some is safe.
    fn moving(&self, options: &[&str]) -> Moving {
        let [from, to] = self.ends();
        let args = [
            &["copy", "--limit", "80Mbit"][..],
            options,
            &[from.as_str(), to.as_str()],
        ]
        .concat();
        let mut moving = Moving::start(&self.place, &args);
        moving.until_delivered(BEFORE);
        moving
    }

    /// The agent at this port again.
    fn again(&self, port: u16) -> RunningAgent {
        self.place.agent_at(self.place.dir.path(), port)
    }
}

/// All is there, and counted once.
#[track_caller]
fn assert_whole(place: &Place, (status, report): (i32, Value)) -> Value {
    assert_eq!(status, 0, "{report:#}");
    assert_same_tree(&place.path("set"), &place.path("copy"));
    assert_eq!(temporary(place.dir.path()), [""; 0]);
    assert_eq!(temporary(&place.path("copy")), [""; 0]);
    assert_eq!(report["wanted_bytes"], TOTAL, "{report:#}");
    assert_eq!(report["delivered_bytes"], TOTAL, "{report:#}");
    assert_eq!(report["landing"]["resumed_bytes"], 0, "{report:#}");
    assert_eq!(report["landing"]["unchanged_bytes"], 0, "{report:#}");
    report
}

fn waiting(moving: &mut Moving, port: u16) {
    let event = moving.event("waiting");
    let name = event["awaited"][0].as_str().unwrap();
    assert!(name.ends_with(&port.to_string()), "{event:#}");
    assert_eq!(event["most_seconds"], 300.0, "{event:#}");
}

/// What all pairs have moved.
fn moved(report: &Value) -> u64 {
    let pairs = report["pairs"].as_array().unwrap().iter();
    pairs.map(|pair| pair["bytes"].as_u64().unwrap()).sum()
}

/// The only receiver is killed and started again: the next round sends what was not safe.
#[test]
fn a_receiver_that_returns_goes_on() {
    let mut scene = Scene::new();
    let mut moving = scene.moving(&[]);
    let port = scene.receiver.port;
    scene.receiver.kill();
    waiting(&mut moving, port);
    scene.receiver = scene.again(port);
    moving.event("returned");
    // Progress goes on where it was.
    let progress = moving.event("progress");
    assert_eq!(progress["total_bytes"], TOTAL, "{progress:#}");
    let report = assert_whole(&scene.place, moving.end());
    // Of the first round nothing is known but what the second one found.
    assert!(moved(&report) <= TOTAL - BEFORE, "{report:#}");
    let interruption = &report["interruptions"][0];
    assert_eq!(interruption["returned"], true, "{report:#}");
    assert_eq!(report["interruptions"].as_array().unwrap().len(), 1);
}

/// The only sender is killed twice and started again.
#[test]
fn a_sender_that_returns_goes_on() {
    let mut scene = Scene::new();
    let mut moving = scene.moving(&[]);
    let port = scene.sender.port;
    for more in [8 << 20, 0] {
        scene.sender.kill();
        waiting(&mut moving, port);
        scene.sender = scene.again(port);
        moving.event("returned");
        if more > 0 {
            moving.until_delivered(BEFORE + more);
        }
    }
    let report = assert_whole(&scene.place, moving.end());
    // What was received and not synced when its sender was lost is synced at the end of the round.
    assert!(moved(&report) < TOTAL + (TOTAL - BEFORE) / 2, "{report:#}");
    assert_eq!(report["interruptions"].as_array().unwrap().len(), 2);
}

/// A host is back before its file systems are mounted: a source that is missing, or has nothing in it, is waited for on, and the copy is
/// not called complete without it.
#[test]
fn a_source_that_is_not_mounted_yet_is_waited_for() {
    for is_empty in [false, true] {
        let mut scene = Scene::new();
        let mut moving = scene.moving(&[]);
        let port = scene.sender.port;
        scene.sender.kill();
        waiting(&mut moving, port);
        let (set, away) = (scene.place.path("set"), scene.place.path("away"));
        std::fs::rename(&set, &away).unwrap();
        if is_empty {
            std::fs::create_dir(&set).unwrap();
        }
        scene.sender = scene.again(port);
        moving.event("returned");
        waiting(&mut moving, port);
        if is_empty {
            std::fs::remove_dir(&set).unwrap();
        }
        std::fs::rename(&away, &set).unwrap();
        moving.event("returned");
        assert_whole(&scene.place, moving.end());
    }
}

/// So is a destination: nothing is written into the folder that its disk is mounted on.
#[test]
fn a_destination_that_is_not_mounted_yet_is_waited_for() {
    let mut scene = Scene::new();
    let [disk, away] = ["disk", "away"].map(|name| scene.place.path(name));
    std::fs::create_dir(&disk).unwrap();
    let copy = disk.join("copy");
    let [from, _] = scene.ends();
    let to = scene.receiver.at(&copy);
    let mut moving = Moving::start(&scene.place, &["copy", "--limit", "80Mbit", &from, &to]);
    moving.until_delivered(BEFORE);
    let port = scene.receiver.port;
    scene.receiver.kill();
    waiting(&mut moving, port);
    std::fs::rename(&disk, &away).unwrap();
    std::fs::create_dir(&disk).unwrap();
    scene.receiver = scene.again(port);
    moving.event("returned");
    waiting(&mut moving, port);
    // Fails where something is in it.
    std::fs::remove_dir(&disk).unwrap();
    std::fs::rename(&away, &disk).unwrap();
    moving.event("returned");
    let (status, report) = moving.end();
    assert_eq!(status, 0, "{report:#}");
    assert_same_tree(&scene.place.path("set"), &copy);
}

/// A replica that is gone is waited for neither when the receiver is lost, too, nor before the next round: the other one was seen to hold
/// the same.
#[test]
fn a_replica_that_is_gone_is_not_waited_for() {
    let mut scene = Scene::new();
    let mut replica = scene.place.agent(scene.place.dir.path());
    let [from, to] = scene.ends();
    let other = replica.at(scene.place.path("set"));
    let args = ["copy", "--limit", "80Mbit", &from, &other, &to];
    let mut moving = Moving::start(&scene.place, &args);
    moving.until_delivered(BEFORE);
    replica.kill();
    moving.until_delivered(BEFORE + (4 << 20));
    let port = scene.receiver.port;
    scene.receiver.kill();
    let event = moving.event("waiting");
    assert_eq!(event["awaited"].as_array().unwrap().len(), 1, "{event:#}");
    scene.receiver = scene.again(port);
    moving.event("returned");
    let report = assert_whole(&scene.place, moving.end());
    let notes = report["notes"].to_string();
    assert!(notes.contains("was not reached and is left out"), "{notes}");
}

/// Agents that the command has started, here and over ssh, are killed: it starts them again.
#[test]
fn started_agents_are_started_again() {
    let place = Place::new();
    make_set(&place);
    let ssh = make_ssh(&place, "");
    let from = format!("host:{}", place.text("set"));
    let program = env!("CARGO_BIN_EXE_ropewalk");
    let reach = ["--ssh", &ssh, "--remote-path", program];
    let args = [
        &["copy", "--limit", "80Mbit"][..],
        &reach,
        &[from.as_str(), "copy"],
    ]
    .concat();
    let mut moving = Moving::start(&place, &args);
    moving.until_delivered(BEFORE);
    // What ssh has started is no child of the command.
    let folder = place.dir.path().canonicalize().unwrap();
    let is_own = |pid: &i32| {
        let at = std::fs::read_link(format!("/proc/{pid}/cwd"));
        at.is_ok_and(|at| at == folder)
    };
    let mut agents = processes(&["agent", "--one-shot"]);
    agents.retain(is_own);
    assert!(agents.len() >= 2, "{agents:?}");
    kill_at_once(&agents);
    moving.event("waiting");
    moving.event("returned");
    assert_whole(&place, moving.end());
}

/// When the time is over the command fails as it would have at once, and says how long it waited for which node; what is safe stays.
#[test]
fn a_wait_ends() {
    let mut scene = Scene::new();
    let moving = scene.moving(&["--wait", "2s"]);
    scene.receiver.kill();
    let (status, report) = moving.end();
    assert_eq!(status, 1, "{report:#}");
    assert_eq!(report["error_kind"], "lost");
    let error = report["error"].as_str().unwrap();
    let port = scene.receiver.port.to_string();
    assert!(
        error.contains("; waited ") && error.contains(&port),
        "{error}"
    );
    assert!(error.contains("refused"), "{error}");
    assert_eq!(report["left"][0]["resumable"], true, "{report:#}");
    let interruption = &report["interruptions"][0];
    assert_eq!(interruption["returned"], false, "{report:#}");
    assert!(interruption["seconds"].as_f64().unwrap() >= 2.0);
}

/// Ctrl-C ends a wait as it ends a transfer: what is safe stays.
#[test]
fn a_wait_is_interrupted() {
    let mut scene = Scene::new();
    let mut moving = scene.moving(&["--wait", "forever"]);
    scene.receiver.kill();
    let event = moving.event("waiting");
    assert!(event["most_seconds"].is_null(), "{event:#}");
    let pid = moving.child.id().to_string();
    let sent = std::process::Command::new("kill")
        .args(["-INT", &pid])
        .status();
    assert!(sent.unwrap().success());
    let (status, report) = moving.end();
    assert_eq!((status, &report["outcome"]), (130, &"cancelled".into()));
    assert_eq!(report["left"][0]["resumable"], true, "{report:#}");
    assert!(report["delivered_bytes"].as_u64().unwrap() >= BEFORE);
}

/// Where that is asked for a host is waited for at the start; else it is refused at once.
#[test]
fn the_start_is_waited_for_on_request() {
    let mut scene = Scene::new();
    let port = scene.receiver.port;
    scene.receiver.kill();
    let [from, to] = scene.ends();
    for options in [&[][..], &["--wait", "0"]] {
        let args = [
            &["copy", "--json"][..],
            options,
            &[from.as_str(), to.as_str()],
        ]
        .concat();
        let report = scene.place.run(&args).assert_status(4).report();
        assert_eq!(report["error_kind"], "unreachable", "{report:#}");
        assert_eq!(report["interruptions"].as_array().unwrap().len(), 0);
    }
    let args = ["copy", "--wait", "5min", &from, &to];
    let mut moving = Moving::start(&scene.place, &args);
    waiting(&mut moving, port);
    scene.receiver = scene.again(port);
    assert_whole(&scene.place, moving.end());
}

/// What could not go on where it was fails at once: nothing is sent twice.
#[test]
fn what_has_no_journal_is_not_waited_for() {
    let mut scene = Scene::new();
    let moving = scene.moving(&["--check", "none"]);
    scene.receiver.kill();
    let (status, report) = moving.end();
    assert_eq!(status, 1, "{report:#}");
    assert_eq!(report["interruptions"].as_array().unwrap().len(), 0);
    assert!(!scene.place.path("copy").exists());
}
