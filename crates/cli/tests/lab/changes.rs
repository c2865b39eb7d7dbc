//! Senders that fall silent, nodes that join.

use std::process::Child;

use serde_json::Value;

use crate::hosts::{agent, begin, bytes, close, has_moved, lab, program};

/// A sender whose interface goes silent (no error anywhere) is replaced by its replica.
#[test]
fn a_silent_sender_is_replaced() {
    if ropewalk_lab::skip("a_silent_sender_is_replaced") {
        return;
    }
    let lab = lab(&["a", "b", "c", "m"], 100_000_000);
    let data = bytes(30 << 20);
    for host in ["a", "b"] {
        let path = lab.path_in(host, "/data/set");
        std::fs::write(&path, &data).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        std::fs::File::open(&path)
            .unwrap()
            .set_modified(time)
            .unwrap();
    }
    let agents: Vec<Child> = ["a", "b", "c"]
        .iter()
        .map(|host| agent(&lab, host, 7420, &["/data:rw"]))
        .collect();
    let args = [
        "copy",
        "a:7420:/data/set",
        "b:7420:/data/set",
        "c:7420:/data/copy",
    ];
    let (mut child, mut events) = begin(&lab, "m", &args);
    assert!(
        events.by_ref().any(|event| has_moved(&event, 5 << 20)),
        "it moves before the failure"
    );
    lab.blackhole("a", 0, true).unwrap();
    let report = events.last().unwrap()["report"].clone();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{report:#}");
    assert!(std::fs::read(lab.path_in("c", "/data/copy")).unwrap() == data);
    close(lab, agents);
}

/// A sender and a reader of the shared destination that join get work: with each, twice as much fits through.
#[test]
fn nodes_that_join_have_work() {
    if ropewalk_lab::skip("nodes_that_join_have_work") {
        return;
    }
    const LEN: u64 = 48 << 20;
    let hosts = ["w1", "w2", "r1", "r2"];
    let lab = lab(&hosts, 40_000_000);
    let agents: Vec<Child> = hosts
        .iter()
        .map(|host| agent(&lab, host, 7420, &["/tmp:rw"]))
        .collect();
    let rows = |sender: &str, reader: &str| {
        format!(
            "writer {sender}:7420 mem:{LEN} 0 0+{LEN}\nreader {reader}:7420 null: 0 0+{LEN} dest=one\n"
        )
    };
    std::fs::write(lab.path_in("w1", "/run/first"), rows("w1", "r1")).unwrap();
    std::fs::write(lab.path_in("w1", "/run/more"), rows("w2", "r2")).unwrap();
    let (mut moving, events) = begin(&lab, "w1", &["transfer", "/run/first"]);
    let mut joined = false;
    let mut report = Value::Null;
    for event in events {
        if event["event"] == "planned" && !joined {
            joined = true;
            let id = event["transfer"].as_str().unwrap();
            let mut join = program(&lab, "w1");
            let output = join.args(["join", id, "/run/more"]).output().unwrap();
            let (said, errors) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{errors}");
            assert_eq!(String::from_utf8_lossy(said), "w2 joined\nr2 joined\n");
        }
        report = event["report"].clone();
    }
    assert!(moving.wait().unwrap().success(), "{report:#}");
    let bytes = |name: &str, key: &str| {
        let rows = report["nodes"].as_array().unwrap();
        rows.iter().find(|row| row["node"] == name).unwrap()[key]
            .as_u64()
            .unwrap()
    };
    // Half each, if they had been there from the start and nothing had to be found out.
    assert!(bytes("w2", "sent_bytes") > LEN / 8, "{report:#}");
    assert!(bytes("r2", "received_bytes") > LEN / 8, "{report:#}");
    assert_eq!(
        bytes("r1", "received_bytes") + bytes("r2", "received_bytes"),
        LEN
    );
    close(lab, agents);
}
