//! One copy that several receivers write together goes on where it ended, with as many receivers, or fewer, or more.

mod common;

use common::processes::{kill_at_once, temporary};
use common::{Moving, Place, RunningAgent, assert_same_tree, bytes, wait_for};
use serde_json::Value;

const TOTAL: u64 = 36 << 20;

/// Slow enough that every transfer is still moving when the test acts on it.
const LIMIT: &str = "80Mbit";

struct Scene {
    place: Place,
    sender: RunningAgent,
}

impl Scene {
    fn new() -> Self {
        let place = Place::new();
        place.make_token();
        for folder in ["from/set", "fs"] {
            std::fs::create_dir_all(place.path(folder)).unwrap();
        }
        std::fs::write(place.path("from/set/large"), bytes(20 << 20, 1)).unwrap();
        for at in 0..16 {
            let path = place.path(&format!("from/set/f{at}"));
            std::fs::write(path, bytes(1 << 20, at + 2)).unwrap();
        }
        let sender = place.agent(&place.path("from"));
        Self { place, sender }
    }

    /// Receivers that see one folder; one alone has a copy of its own unless said otherwise.
    fn receivers(&self, count: usize) -> Vec<RunningAgent> {
        (0..count)
            .map(|_| self.place.agent(&self.place.path("fs")))
            .collect()
    }

    fn args(&self, receivers: &[RunningAgent], is_shared: bool) -> Vec<String> {
        let mut args = vec!["copy".to_owned(), "--json".into()];
        if is_shared {
            args.extend(["--destinations".into(), "shared".into()]);
        }
        args.push(self.sender.at(self.place.path("from/set")));
        let copy = self.place.path("fs/copy");
        args.push(receivers[0].at(&copy));
        for other in &receivers[1..] {
            args.extend(["--also-to".into(), other.at(&copy)]);
        }
        args
    }

    fn start(&self, receivers: &[RunningAgent], is_shared: bool) -> Moving {
        let mut args = self.args(receivers, is_shared);
        args.retain(|one| one != "--json");
        args.extend(["--limit".into(), LIMIT.into()]);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Moving::start(&self.place, &args)
    }

    /// Sends nothing again that was safe, and everything else; nothing temporary stays.
    #[track_caller]
    fn assert_goes_on(&self, receivers: &[RunningAgent], is_shared: bool, safe: u64) {
        let args = self.args(receivers, is_shared);
        let report = self.place.run(&args).assert_status(0).report();
        let resumed = resumed(&report);
        assert!(resumed >= safe, "{resumed} of {safe}: {report:#}");
        let sent = report["delivered_bytes"].as_u64().unwrap();
        assert_eq!(sent, TOTAL - resumed, "{report:#}");
        println!(
            "{} receivers: safe {safe}, resumed {resumed}, sent {sent}",
            receivers.len()
        );
        assert_same_tree(&self.place.path("from/set"), &self.place.path("fs/copy"));
        assert_eq!(temporary(&self.place.path("fs")), [""; 0]);
    }
}

fn resumed(report: &Value) -> u64 {
    report["landing"]["resumed_bytes"].as_u64().unwrap()
}

/// Until so much more is safe; how much is.
fn until_safe(moving: &mut Moving, bytes: u64) -> u64 {
    loop {
        let event = moving.event("progress");
        let safe = event["delivered_bytes"].as_u64().unwrap();
        if safe >= bytes {
            return safe;
        }
    }
}

/// All receivers are killed at once, with the command: the next run sends only what was not safe, whether as many receivers share
/// the destination, or fewer, or more, or one has it for itself; and the other way round.
#[test]
fn killed_receivers_go_on_in_any_number() {
    for (before, was_shared, after, is_shared) in [
        (2, true, 2, true),
        (3, true, 1, true),
        (2, true, 3, true),
        (2, true, 1, false),
        (1, false, 2, true),
    ] {
        let scene = Scene::new();
        let receivers = scene.receivers(before);
        let mut moving = scene.start(&receivers, was_shared);
        let safe = until_safe(&mut moving, 8 << 20);
        let pids = receivers.iter().map(|agent| agent.child.id() as i32);
        let pids: Vec<i32> = pids.chain([moving.child.id() as i32]).collect();
        kill_at_once(&pids);
        drop(moving);
        drop(receivers);
        let receivers = scene.receivers(after);
        scene.assert_goes_on(&receivers, is_shared, safe);
    }
}

/// Receivers are killed again and again, the first of them among them: each byte is sent once, but for those that were not safe.
#[test]
fn receivers_that_are_killed_again_and_again_go_on() {
    let scene = Scene::new();
    let mut safe = 0;
    for round in 0..3 {
        let receivers = scene.receivers(2 + round % 2);
        let mut moving = scene.start(&receivers, true);
        let fresh = until_safe(&mut moving, 6 << 20);
        let pids = receivers.iter().map(|agent| agent.child.id() as i32);
        let pids: Vec<i32> = pids.chain([moving.child.id() as i32]).collect();
        kill_at_once(&pids);
        safe += fresh;
    }
    scene.assert_goes_on(&scene.receivers(2), true, safe);
}

/// The command alone is killed: its agents end, and the next run goes on. `status` shows what is there, and `clean` leaves a running
/// copy alone.
#[test]
fn a_killed_command_goes_on() {
    let scene = Scene::new();
    let receivers = scene.receivers(2);
    let mut moving = scene.start(&receivers, true);
    let safe = until_safe(&mut moving, 6 << 20);
    let copy = scene.place.text("fs/copy");
    let clean = scene.place.run(&["clean", &copy]).assert_status(0).out();
    assert!(clean.contains(": a transfer is writing it"), "{clean}");
    moving.child.kill().unwrap();
    drop(moving);
    wait_for("the agents to end", || {
        let shown = scene.place.run(&["status", "--json", &copy]);
        let shown: Value = serde_json::from_str(&shown.assert_status(0).out()).unwrap();
        (shown[0]["state"] == "resumable").then_some(())
    });
    scene.assert_goes_on(&receivers, true, safe);
}

/// Little is kept of a copy that its user stops, unless an earlier run has left something: all receivers judge that alike, those that
/// did not take it over, too.
#[test]
fn what_was_left_outlives_a_user_that_stops() {
    let scene = Scene::new();
    let receivers = scene.receivers(2);
    let mut moving = scene.start(&receivers, true);
    let safe = until_safe(&mut moving, 8 << 20);
    let pids = receivers.iter().map(|agent| agent.child.id() as i32);
    let pids: Vec<i32> = pids.chain([moving.child.id() as i32]).collect();
    kill_at_once(&pids);
    drop(moving);
    drop(receivers);
    let receivers = scene.receivers(2);
    let mut moving = scene.start(&receivers, true);
    moving.event("progress");
    let pid = moving.child.id().to_string();
    let sent = std::process::Command::new("kill")
        .args(["-INT", &pid])
        .status();
    assert!(sent.unwrap().success());
    let (status, report) = moving.end();
    assert_eq!(status, 130, "{report:#}");
    scene.assert_goes_on(&receivers, true, safe);
}
