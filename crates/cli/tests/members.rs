//! Nodes that join and leave while bytes move, with real agents on this host.

mod common;

use std::process::Stdio;

use common::{Moving, Place, Ran, RunningAgent, bytes, wait_for};
use serde_json::Value;

/// At 8 MB/s this moves for four seconds: time to come and go.
const LEN: usize = 32 << 20;

/// A folder with a file, and agents that serve it.
struct Stage {
    place: Place,
    agents: Vec<RunningAgent>,
}

impl Stage {
    fn new(agents: usize) -> Self {
        let place = Place::new();
        place.make_token();
        std::fs::write(place.path("data"), bytes(LEN, 7)).unwrap();
        std::fs::create_dir(place.path("to")).unwrap();
        let agents = (0..agents).map(|_| place.agent(place.dir.path())).collect();
        Self { place, agents }
    }

    /// The name of an agent's node: hosts are shared, so it has its port.
    fn name(&self, agent: usize) -> String {
        format!("127.0.0.1:{}", self.agents[agent].port)
    }

    fn row(&self, kind: &str, agent: usize, file: &str, words: &str) -> String {
        let (at, path) = (self.name(agent), self.place.text(file));
        format!("{kind} {at} \"{path}\" 0 0+{LEN} {words}\n")
    }

    fn start(&self, rows: &str) -> Moving {
        std::fs::write(self.place.path("spec"), rows).unwrap();
        let spec = self.place.text("spec");
        let args = ["transfer", &spec, "--limit", "8MB/s", "--speeds", "off"];
        let mut moving = Moving::start(&self.place, &args);
        moving.until_delivered(1);
        moving
    }

    fn join(&self, transfer: &str, rows: &str, more: &[&str]) -> Ran {
        std::fs::write(self.place.path("more"), rows).unwrap();
        let file = self.place.text("more");
        let args = [&["join", transfer, &file], more].concat();
        self.place.run(&args)
    }

    fn leave(&self, transfer: &str, agent: usize) -> Ran {
        self.place.run(&["leave", transfer, &self.name(agent)])
    }

    #[track_caller]
    fn assert_copied(&self, copy: &str) {
        let same = std::fs::read(self.place.path(copy)).unwrap() == bytes(LEN, 7);
        assert!(same, "{copy} differs from the data");
    }
}

fn sent(report: &Value, node: &str) -> u64 {
    row(report, node)["sent_bytes"].as_u64().unwrap()
}

#[track_caller]
fn row<'r>(report: &'r Value, node: &str) -> &'r Value {
    let rows = report["nodes"].as_array().unwrap();
    let found = rows.iter().find(|row| row["node"] == node);
    found.unwrap_or_else(|| panic!("no node {node}: {report:#}"))
}

/// A second holder joins, is counted, and does the rest of the work when the first one leaves.
#[test]
fn a_sender_joins_and_the_first_one_leaves() {
    let stage = Stage::new(3);
    let rows = "id \"two holders\"\n".to_owned()
        + &stage.row("writer", 0, "data", "")
        + &stage.row("reader", 1, "to/copy", "");
    let moving = stage.start(&rows);
    stage
        .leave("two holders", 0)
        .assert_status(4)
        .assert_says("only");
    stage
        .join("two holders", &stage.row("writer", 2, "data", ""), &[])
        .assert_status(0)
        .assert_says(&format!("{} joined", stage.name(2)));
    stage
        .leave("two holders", 0)
        .assert_status(0)
        .assert_says(&format!("{} leaves", stage.name(0)));
    stage
        .leave("two holders", 0)
        .assert_status(4)
        .assert_says(&format!("no node {}; it has", stage.name(0)))
        .assert_says(&stage.name(2));
    let (status, report) = moving.end();
    assert_eq!(
        (status, &report["outcome"]),
        (0, &"done".into()),
        "{report:#}"
    );
    stage.assert_copied("to/copy");
    let (first, second) = (sent(&report, &stage.name(0)), sent(&report, &stage.name(2)));
    assert!(first > 0 && second > 0, "{report:#}");
    assert_eq!(first + second, LEN as u64, "{report:#}");
    assert_eq!(report["control"]["nodes"], 3);
    assert!(
        row(&report, &stage.name(0))["error"].is_null(),
        "{report:#}"
    );
}

/// One that leaves is not missed when another holder was there from the start.
#[test]
fn a_sender_leaves() {
    let stage = Stage::new(3);
    let rows = stage.row("writer", 0, "data", "")
        + &stage.row("writer", 1, "data", "")
        + &stage.row("reader", 2, "to/copy", "");
    let mut moving = stage.start(&rows);
    moving.until_delivered(4 << 20);
    let process = moving.child.id().to_string();
    stage.leave(&process, 1).assert_status(0);
    let (status, report) = moving.end();
    assert_eq!(
        (status, &report["outcome"]),
        (0, &"done".into()),
        "{report:#}"
    );
    stage.assert_copied("to/copy");
    assert!(sent(&report, &stage.name(0)) > LEN as u64 / 2, "{report:#}");
}

/// A sender and a reader of the shared destination join with one file, and do all that is left when the others leave.
#[test]
fn both_sides_join_a_shared_destination() {
    let stage = Stage::new(4);
    let rows = stage.row("writer", 0, "data", "up=16Mbit")
        + &stage.row("reader", 1, "to/copy", "down=64Mbit dest=one");
    let mut moving = stage.start(&rows);
    let id = moving.child.id().to_string();
    let more = stage.row("writer", 2, "data", "up=64Mbit")
        + &stage.row("reader", 3, "to/copy", "down=64Mbit dest=one");
    let ran = stage.join(&id, &more, &["--json"]).assert_status(0);
    let said: Value = serde_json::from_str(&ran.out()).unwrap();
    let nodes: Vec<&Value> = said["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| &n["node"])
        .collect();
    assert_eq!(nodes, [&stage.name(2), &stage.name(3)]);
    assert!(
        said["error"].is_null() && said["transfer"].is_string(),
        "{said}"
    );
    wait_for("progress of the one that joined", || {
        let progress = moving.event("progress");
        let receivers = progress["receivers"].as_array().unwrap().clone();
        receivers
            .iter()
            .any(|r| r["node"] == stage.name(3))
            .then_some(())
    });
    stage.leave(&id, 0).assert_status(0);
    stage.leave(&id, 1).assert_status(0);
    let (status, report) = moving.end();
    assert_eq!(
        (status, &report["outcome"]),
        (0, &"done".into()),
        "{report:#}"
    );
    stage.assert_copied("to/copy");
    let received = row(&report, &stage.name(3))["received_bytes"]
        .as_u64()
        .unwrap();
    assert!(
        received > 0 && sent(&report, &stage.name(2)) > 0,
        "{report:#}"
    );
    assert_eq!(report["delivered_bytes"], LEN);
}

/// Who does not fit is turned away, and neither the transfer nor the next one to join suffers from it.
#[test]
fn misfits_are_turned_away() {
    let stage = Stage::new(3);
    std::fs::write(stage.place.path("other"), bytes(LEN + 1, 7)).unwrap();
    let rows = stage.row("writer", 0, "data", "") + &stage.row("reader", 1, "to/copy", "");
    let moving = stage.start(&rows);
    let id = moving.child.id().to_string();
    let cases = [
        // Another size than the file that is moved.
        (stage.row("writer", 2, "other", ""), "cannot join"),
        (stage.row("writer", 2, "none", ""), "cannot join"),
        // Takes part already.
        (stage.row("writer", 0, "data", ""), "takes part already"),
        ("writer 127.0.0.1:1 /data 0 0-9".into(), "cannot reach"),
    ];
    for (rows, part) in &cases {
        stage
            .join(&id, rows, &[])
            .assert_status(4)
            .assert_says(part);
    }
    let other_token = stage.place.text("other-token");
    stage
        .place
        .run(&["agent", "--new-token", &other_token])
        .assert_status(0);
    let good = stage.row("writer", 2, "data", "");
    stage
        .join(&id, &good, &["--token-file", &other_token])
        .assert_status(4)
        .assert_says("token");
    stage.join(&id, &good, &[]).assert_status(0);
    let (status, report) = moving.end();
    assert_eq!(
        (status, &report["outcome"]),
        (0, &"done".into()),
        "{report:#}"
    );
    stage.assert_copied("to/copy");
}

/// Slips on the command line and files that are none.
#[test]
fn slips_are_told() {
    let stage = Stage::new(2);
    let good = stage.row("writer", 0, "data", "");
    stage
        .join("0199", &good, &[])
        .assert_status(1)
        .assert_says("no transfer is called 0199");
    stage
        .leave("0199", 0)
        .assert_status(1)
        .assert_says("no transfer");
    stage
        .join("0199", "id \"x\"\nwriter a:1 /x 0 0-9\n", &[])
        .assert_status(4)
        .assert_says("already has an id");
    stage
        .join("0199", &good, &["--token-file", "/nowhere"])
        .assert_status(2)
        .assert_says("/nowhere");
    stage
        .place
        .run(&["join", "0199", "/nowhere"])
        .assert_status(2)
        .assert_says("/nowhere");
}

/// Nobody joins a transfer that has ended, and one that ends does not keep who waits to join.
#[test]
fn an_end_is_told() {
    let stage = Stage::new(2);
    let rows = stage.row("writer", 0, "data", "") + &stage.row("reader", 1, "to/copy", "");
    let mut moving = stage.start(&rows);
    let id = moving.child.id().to_string();
    // It takes the connection and says nothing: reaching it lasts.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let row = format!("writer {} /x 0 0-9\n", silent.local_addr().unwrap());
    std::fs::write(stage.place.path("more"), row).unwrap();
    let file = stage.place.text("more");
    let mut command = stage.place.command();
    command
        .args(["join", &id, &file])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let waiting = command.spawn().unwrap();
    let _reached = silent.accept().unwrap();
    // The transfer goes on in the meantime, and answers others.
    moving.until_delivered(2 << 20);
    stage.place.run(&["cancel", &id]).assert_status(0);
    assert_eq!(moving.end().0, 130);
    let ran = Ran(waiting.wait_with_output().unwrap());
    assert!([1, 4].contains(&ran.status()), "{}", ran.err());
    ran.assert_says("ended");
    stage
        .join(&id, &stage.row("writer", 1, "data", ""), &[])
        .assert_status(1);
}

/// A transfer that would take minutes under its limit ends when the limit is removed, and its report does not call the limit what
/// bounded it. A transfer that is not there has no limit.
#[test]
fn a_limit_changes_while_bytes_move() {
    let stage = Stage::new(2);
    let rows = stage.row("writer", 0, "data", "") + &stage.row("reader", 1, "to/copy", "");
    std::fs::write(stage.place.path("spec"), rows).unwrap();
    let spec = stage.place.text("spec");
    let args = ["transfer", &spec, "--limit", "64kB/s", "--speeds", "off"];
    let mut moving = Moving::start(&stage.place, &args);
    moving.until_delivered(1);
    let process = moving.child.id().to_string();
    let limit = |rate: &str| stage.place.run(&["limit", &process, rate]);
    limit("96kB/s")
        .assert_status(0)
        .assert_says("at most 768 kbit/s");
    limit("fast").assert_status(2);
    limit("none").assert_status(0).assert_says("no limit");
    let (status, report) = moving.end();
    assert_eq!(status, 0, "{report:#}");
    assert_ne!(report["bound"]["basis"], "limit", "{report:#}");
    stage.assert_copied("to/copy");
    limit("none")
        .assert_status(1)
        .assert_says("no transfer is called");
}
