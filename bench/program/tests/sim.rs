//! `ropewalk-bench sim` from outside: its keys, its files, its refusals.

use std::process::{Command, Output};

fn sim(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ropewalk-bench"));
    command.arg("sim").args(arguments).output().unwrap()
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let output = sim(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The whole command line with every key of one run; the same again gives the same.
#[test]
fn one_run() {
    let line = "--nodes 8 --stripes 10 --bandwidth 100Mbit --latency 80ms --queue 50 --access-bandwidth 100Mbit \
                --access-latency 0.1ms --access-queue 50 --flavour reno --profile ns-2.1b8 --bytes-per-node 8000000 \
                --packet 1000 --window 64 --jitter 1ms --seed 3 --limit 100s";
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut first = json(&words);
    let mut second = json(&words);
    for key in [
        "time_seconds",
        "first_done_seconds",
        "median_done_seconds",
        "sent_packets",
        "retransmitted_packets",
        "timeouts",
        "drops_access",
        "drops_trunk",
        "drops_egress",
        "acknowledged_packets",
    ] {
        assert!(first[key].is_number(), "{key}: {}", first[key]);
    }
    assert_eq!(first["completed"], true);
    assert_eq!(first["acknowledged_packets"], 64_000);
    // The wall time is all that differs.
    for run in [&mut first, &mut second] {
        run["speed"] = serde_json::Value::Null;
    }
    assert_eq!(first, second);
}

/// A sweep has a run for each combination, in JSON and as lines.
#[test]
fn sweeps() {
    let line = [
        "--stripes",
        "1..3",
        "--latency",
        "10ms,20ms",
        "--bytes-per-node",
        "100kB",
    ];
    let all = json(&line);
    assert_eq!(all["runs"].as_array().map(Vec::len), Some(6));
    assert_eq!(all["runs"][5]["parameters"]["stripes"], 3);
    let csv = sim(&[&line[..], &["--csv"]].concat());
    assert_eq!(String::from_utf8_lossy(&csv.stdout).lines().count(), 7);
}

/// A trace is the reference's file, byte for byte; plots of a run and of a sweep are drawn; a network from a file runs.
#[test]
fn files() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let done = sim(&[
        "--stripes",
        "2",
        "--trace",
        &path("t.csv"),
        "--plot",
        &path("t.svg"),
    ]);
    assert!(done.status.success(), "{done:?}");
    let trace = std::fs::read_to_string(path("t.csv")).unwrap();
    assert_eq!(
        trace,
        include_str!("../../../cases/tcp-traces/ns21b8_s2_lat20.csv")
    );
    let svg = std::fs::read_to_string(path("t.svg")).unwrap();
    assert!(
        svg.contains("sent again: 1 node, 2 stripes, 100 Mbit/s, 20 ms one way, reno"),
        "{svg}"
    );
    let sweep = |limit: &str| {
        let line = [
            "--stripes",
            "1..4",
            "--limit",
            limit,
            "--plot",
            &path("s.svg"),
        ];
        assert!(sim(&line).status.success());
        let svg = std::fs::read_to_string(path("s.svg")).unwrap();
        // What is varied stands at the axis.
        assert!(svg.contains("transfer: 1 node, 100 Mbit/s, 20 ms one way, reno"));
        svg.contains("stopped before its end")
    };
    // Four stripes take 3.8 s, one 5.3.
    assert!(!sweep("100s") && sweep("4s"));

    let net = "link a r 100Mbit 0.1ms\nlink r z 10Mbit 20ms loss=0.001\nflow a z bytes=1MB streams=4 flavour=cubic\n";
    std::fs::write(path("net"), net).unwrap();
    let run = json(&["--topology", &path("net")]);
    assert_eq!(run["acknowledged_packets"], 1000);
    assert!(run["parameters"].get("nodes").is_none());

    // A long way back alone makes the transfer slower.
    std::fs::write(path("net"), net.replace("20ms", "20ms back-latency=500ms")).unwrap();
    let slow = json(&["--topology", &path("net")]);
    let seconds = |run: &serde_json::Value| run["time_seconds"].as_f64().unwrap();
    assert!(seconds(&slow) > 2.0 * seconds(&run), "{slow} {run}");
}

/// Every parameter of TCP changes a run that it has a part in, and stands among the parameters.
#[test]
fn parameters_of_tcp() {
    // 60 SYNs for a queue of 50, then losses and timeouts.
    let line = [
        "--stripes",
        "60",
        "--profile",
        "ns-2.35",
        "--initial-window",
        "4",
    ];
    let run = |more: &[&str]| {
        let mut run = json(&[&line[..], more].concat());
        run["speed"] = serde_json::Value::Null;
        let parameters = run["parameters"].take();
        (run, parameters)
    };
    let plain = run(&[]);
    for (key, option, value) in [
        ("ack_bytes", "--ack", "60"),
        (
            "initial_window_after_loss_packets",
            "--initial-window-after-loss",
            "3",
        ),
        ("duplicate_acks", "--duplicate-acks", "5"),
        ("go_back_n", "--go-back-n", "off"),
        ("delayed_ack_seconds", "--delayed-ack", "100ms"),
        ("limited_transmit", "--limited-transmit", "off"),
    ] {
        let other = run(&[option, value]);
        assert_ne!(other.1[key], plain.1[key], "{key}");
        assert_ne!(other.0, plain.0, "{key}");
        assert_eq!(other.0["acknowledged_packets"], 8000, "{key}");
    }
    assert_eq!(run(&["--delayed-ack"]).1["delayed_ack_seconds"], 0.1);
}

/// What cannot be meant is refused with status 2 and a word on what to write.
#[test]
fn refusals() {
    for (line, word) in [
        ("--stripes 0", "at least one stripe"),
        ("--stripes 9000", "more stripes than packets"),
        ("--stripes 4..1", "range"),
        ("--flavour bbr", "cubic"),
        ("--flavour reno:4 --stripes 5", "give one of them"),
        ("--latency 20", "20ms"),
        ("--loss 1", "below 1"),
        ("--queue 0", "queue"),
        ("--duplicate-acks 0", "more than 0"),
        ("--initial-window-after-loss 0", "more than 0"),
        ("--go-back-n never", "on or off"),
        ("--ack 5GiB", "at most 4294967295 bytes"),
        ("--stripes 1..2 --trace x.csv", "one run"),
        ("--topology /nonexistent/net", "/nonexistent/net"),
        ("--stripes 1..1000 --nodes 1..1000", "more than"),
        ("--packet 4294967295 --header 2", "4294967295 bytes and 2"),
        ("--packet 5GiB", "at most 4294967295 bytes"),
        ("--rto-min 90s --rto-max 1s", "above the greatest"),
        ("--trace-every 1ns --trace x.csv", "sample less often"),
        ("--nodes 10000000", "connections"),
        ("--nodes 1000 --stripes 2000", "connections"),
        ("--trace /nonexistent/x.csv", "/nonexistent/x.csv"),
        (
            "--stripes 1..2 --plot /nonexistent/x.svg",
            "/nonexistent/x.svg",
        ),
        ("--stripes 1..2 --plot /", "cannot write /"),
        (
            "--flavour reno --flavour tahoe --plot x.svg",
            "nothing to draw",
        ),
        ("--seed 1..15 --stripes 1..16 --plot x.svg", "15 lines"),
        // One run of the sweep is enough.
        ("--stripes 1,9000", "more stripes than packets"),
    ] {
        let words: Vec<&str> = line.split_whitespace().collect();
        let output = sim(&words);
        assert_eq!(output.status.code(), Some(2), "{line}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(word), "{line}: {said}");
        assert!(output.stdout.is_empty(), "{line}");
    }
    assert!(!std::path::Path::new("x.csv").exists() && !std::path::Path::new("x.svg").exists());
}

/// A file that cannot be written after all costs the results nothing, nor does it cost the other file; what was there
/// before is not touched until there is something to write.
#[test]
fn results_come_first() {
    let dir = tempfile::tempdir().unwrap();
    let plot = dir.path().join("p.svg");
    let plot = plot.to_str().unwrap();
    let line = [
        "--bytes-per-node",
        "100kB",
        "--json",
        "--trace",
        "/dev/full",
        "--plot",
        plot,
    ];
    let output = sim(&line);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("cannot write /dev/full"), "{said}");
    let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(run["completed"], true);
    let drawn = std::fs::read(plot).unwrap();
    assert!(!drawn.is_empty());

    let refused = sim(&["--stripes", "9000", "--plot", plot]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert_eq!(std::fs::read(plot).unwrap(), drawn);
}

/// Results that nobody can take are an error, not a panic; a reader that has gone does not cost the files.
#[test]
fn output_that_is_full_or_closed() {
    let command = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ropewalk-bench"));
        command.args(["sim", "--bytes-per-node", "100kB"]);
        command
    };
    let full = std::fs::File::options().write(true).open("/dev/full");
    let output = command().stdout(full.unwrap()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("cannot print the results"), "{said}");

    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("t.csv");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut closed = command();
    closed.arg("--trace").arg(&trace).stdout(writer);
    assert!(closed.status().unwrap().success());
    assert!(trace.exists());
}

/// Losses that differ are shown to differ.
#[test]
fn small_losses_stay_apart() {
    let shown = sim(&["--loss", "0.00001,0.00002", "--bytes-per-node", "100kB"]);
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(
        text.contains("0.00001 ") && text.contains("0.00002 "),
        "{text}"
    );
}
