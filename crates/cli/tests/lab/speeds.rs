//! What is found out about hosts and paths while bytes move.

use std::process::Stdio;

use ropewalk_lab::trunk::{ClusterSpec, LinkSpec, QueueLimit, TrunkSpec};
use ropewalk_lab::{HostSpec, LabBuilder, NicSpec, Topology};
use serde_json::Value;

use crate::hosts::{PROGRAM, agent, all_events, bytes, close, give_token, lab, master};

/// Nobody says a speed: the first transfer finds out that one replica's link is a fifth of the other's, and
/// the second is planned so from the start.
#[test]
fn a_second_transfer_is_planned_by_the_first() {
    if ropewalk_lab::skip("a_second_transfer_is_planned_by_the_first") {
        return;
    }
    let host = |name: &str, rate| HostSpec::new(name).nic(NicSpec::rate_bits(rate));
    let lab = LabBuilder::new()
        .host(host("slow", 20_000_000))
        .host(host("fast", 100_000_000))
        .host(host("r", 1_000_000_000))
        .build()
        .unwrap();
    let agents = ["slow", "fast", "r"].map(|host| agent(&lab, host, 7420, &["/data"]));
    let copy = |size: &str| -> Vec<Value> {
        let [slow, fast] = ["slow", "fast"].map(|host| format!("{host}:7420:mem:{size}"));
        let (status, events) = all_events(&lab, "r", &["copy", &slow, &fast, "r:7420:null:"]);
        assert_eq!(status, Some(0), "{events:?}");
        events
    };
    // Bytes that the slow and the fast one were planned to send, at the first look.
    let planned = |events: &[Value]| -> [f64; 2] {
        let first = events.iter().find(|event| event["event"] == "progress");
        let senders = first.unwrap()["senders"].as_array().unwrap();
        ["slow", "fast"].map(|name| {
            let sender = senders.iter().find(|sender| sender["node"] == name);
            sender.unwrap()["total_bytes"].as_f64().unwrap()
        })
    };
    let first = copy("72MiB");
    let [slow, fast] = planned(&first);
    assert!((0.9..1.1).contains(&(fast / slow)), "{slow} {fast}");
    let text = std::fs::read_to_string(lab.path_in("r", "/run/ropewalk/speeds.json")).unwrap();
    let kept: Value = serde_json::from_str(&text).unwrap();
    for (name, bits) in [("slow", 20e6), ("fast", 100e6)] {
        let speed = &kept["nodes"][format!("{name}:7420")]["sending"]["bytes_per_second"];
        let share = speed.as_f64().unwrap() * 8.0 / bits;
        // The best second counts whole units, and the cap lets a burst through.
        assert!(
            (0.75..1.15).contains(&share),
            "{name}: {share} of its link\n{text}"
        );
    }
    let second = copy("16MiB");
    let [slow, fast] = planned(&second);
    assert!((4.0..6.0).contains(&(fast / slow)), "{slow} {fast}");
    let report = &second.last().unwrap()["report"];
    let notes = report["notes"].to_string();
    assert!(
        notes.contains("planned by speeds remembered from "),
        "{notes}"
    );
    // What the run itself shows is no bound.
    assert!(report["bound"].is_null(), "{}", report["bound"]);
    close(lab, agents);
}

/// Over a long path streams are opened and closed while bytes flow, and every byte is what and where it was.
#[test]
fn streams_are_tuned_over_a_trunk() {
    if ropewalk_lab::skip("streams_are_tuned_over_a_trunk") {
        return;
    }
    // 100 Mbit/s, 80 ms there and back, a queue of one bandwidth-delay product.
    let link = LinkSpec::rate_bits(100_000_000).delay(std::time::Duration::from_millis(40));
    let trunk = TrunkSpec {
        a_to_b: link.clone().queue(QueueLimit::Packets(666)),
        b_to_a: link.queue(QueueLimit::Packets(100_000)),
        ..TrunkSpec::default()
    };
    let clusters = ClusterSpec {
        hosts: [1, 1],
        access_bits_per_second: Some(1_000_000_000),
        trunk,
    };
    let lab = LabBuilder::from(Topology::clusters(&clusters))
        .congestion_control("cubic")
        .build()
        .unwrap();
    let data = bytes(60_000_000);
    std::fs::write(lab.path_in("a1", "/data/file"), &data).unwrap();
    let _agents = [
        agent(&lab, "a1", 7100, &["/data"]),
        agent(&lab, "b1", 7100, &["/tmp:rw"]),
    ];
    for (policy, streams) in [
        ("model", "auto"),
        ("simulate", "auto"),
        ("database", "auto"),
        ("off", "auto"),
        ("model", "2"),
    ] {
        let to = format!("/tmp/{policy}{streams}");
        let (status, report) = master(
            &lab,
            "b1",
            &[
                "copy",
                "--streams",
                streams,
                "--streams-policy",
                policy,
                "a1:7100:/data/file",
                &format!("b1:7100:{to}"),
            ],
        );
        assert_eq!(status, Some(0), "{report:#}");
        assert!(
            std::fs::read(lab.path_in("b1", &to)).unwrap() == data,
            "{policy}: other bytes"
        );
        let most = report["pairs"][0]["streams"].as_u64().unwrap();
        println!(
            "{policy} {streams}: {most} streams at most, {} s",
            report["seconds"]
        );
        match (policy, streams) {
            ("off", _) => assert_eq!(most, 4, "{report:#}"),
            (_, "auto") => assert!(most > 4, "{policy}: only {most} streams\n{report:#}"),
            _ => assert_eq!(most, 2, "{report:#}"),
        }
    }
}

/// The queue before a slow link makes round trips as long as an ocean does; it is no long path.
#[test]
fn slow_links_keep_their_streams() {
    if ropewalk_lab::skip("slow_links_keep_their_streams") {
        return;
    }
    let lab = lab(&["a", "b"], 20_000_000);
    std::fs::write(lab.path_in("a", "/data/file"), bytes(5_000_000)).unwrap();
    let _agents = [
        agent(&lab, "a", 7100, &["/data"]),
        agent(&lab, "b", 7100, &["/tmp:rw"]),
    ];
    let copy = ["copy", "a:7100:/data/file", "b:7100:/tmp/file"];
    let (status, report) = master(&lab, "b", &copy);
    assert_eq!(status, Some(0), "{report:#}");
    assert_eq!(report["pairs"][0]["streams"], 4, "{report:#}");
}

/// Two masters of one user on one host, two transfers over one trunk: each says that the path is shared.
#[test]
fn transfers_share_a_trunk() {
    if ropewalk_lab::skip("transfers_share_a_trunk") {
        return;
    }
    let link = LinkSpec::rate_bits(50_000_000).delay(std::time::Duration::from_millis(20));
    let trunk = TrunkSpec::symmetric(link.queue(QueueLimit::Packets(200)));
    let clusters = ClusterSpec {
        hosts: [1, 1],
        access_bits_per_second: Some(1_000_000_000),
        trunk,
    };
    let builder = LabBuilder::from(Topology::clusters(&clusters));
    let lab = builder.congestion_control("cubic").build().unwrap();
    std::fs::write(lab.path_in("a1", "/data/file"), bytes(20_000_000)).unwrap();
    let _agents = [
        agent(&lab, "a1", 7100, &["/data"]),
        agent(&lab, "b1", 7100, &["/tmp:rw"]),
    ];
    give_token(&lab, "b1");
    let start = |name: &str| {
        let mut command = lab.command("b1", PROGRAM);
        command
            .args(["copy", "--json", "--speeds", "off"])
            .args(["--token-file", "/run/token", "a1:7100:/data/file"])
            .arg(format!("b1:7100:/tmp/{name}"))
            .env("XDG_RUNTIME_DIR", "/run")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let both = [start("one"), start("other")];
    let texts = both.map(|child| {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        text
    });
    // Who saw the other one when it planned has fewer streams from the start, and nothing to say.
    let is_told = texts
        .iter()
        .any(|text| text.contains("shared by 2 transfers"));
    assert!(is_told, "{texts:#?}");
    // Nothing is left of them.
    let left = std::fs::read_dir(lab.path_in("b1", "/run/ropewalk")).unwrap();
    assert_eq!(left.count(), 0);
}

/// A trunk that the file declares is the bound of what crosses it, by its name, and the transfer comes near it.
#[test]
fn a_declared_trunk_is_the_bound() {
    if ropewalk_lab::skip("a_declared_trunk_is_the_bound") {
        return;
    }
    let link = LinkSpec::rate_bits(100_000_000).delay(std::time::Duration::from_millis(2));
    let clusters = ClusterSpec {
        hosts: [2, 2],
        access_bits_per_second: Some(80_000_000),
        trunk: TrunkSpec::symmetric(link.queue(QueueLimit::Packets(200))),
    };
    let builder = LabBuilder::from(Topology::clusters(&clusters));
    let lab = builder.congestion_control("cubic").build().unwrap();
    let _agents = ["a1", "a2", "b1", "b2"].map(|host| agent(&lab, host, 7100, &["/tmp:rw"]));
    let spec = "writer a1:7100 mem:20MB 0 0-19999999 up=80Mbit\n\
                writer a2:7100 mem:20MB 0 0-19999999 up=80Mbit\n\
                reader b1:7100 null: 0 0-19999999 down=80Mbit\n\
                reader b2:7100 null: 0 0-19999999 down=80Mbit\n\
                trunk wan 100Mbit from a[1-2] to b[1-2]\n";
    std::fs::write(lab.path_in("b1", "/run/spec"), spec).unwrap();
    let (status, report) = master(&lab, "b1", &["transfer", "/run/spec"]);
    assert_eq!(status, Some(0), "{report:#}");
    let bound = &report["bound"];
    assert_eq!(
        bound["binding"],
        serde_json::json!(["trunk wan"]),
        "{bound}"
    );
    // 320 Mbit over 100 Mbit/s; the nodes alone would need 2 s.
    assert!(
        (bound["seconds"].as_f64().unwrap() - 3.2).abs() < 1e-9,
        "{bound}"
    );
    assert_eq!(bound["is_exact"], true, "{bound}");
    assert_eq!(bound["exceeded"], false, "{bound}");
    println!("share of the bound {}", bound["share"]);
}
