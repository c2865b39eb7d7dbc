//! Streams over real processes and sockets, on this host.

mod common;

use common::processes::temporary;
use common::{Moving, Place, blocks, bytes, start_agent};
use serde_json::Value;

/// Two nodes and three groups: the files of both come out at both, every block once, whatever connects the processes.
#[test]
fn every_block_arrives_once() {
    for options in [
        &["--lane", "unix"][..],
        &["--lane", "shm"],
        &["--lane", "shm", "--block", "4MiB", "--memory", "16MiB"],
        &["--lane", "tcp"],
        &["--lane", "tcp", "--plain"],
        &["--lane", "rbudp", "--rate", "2Gbit"],
        &[
            "--lane", "rbudp", "--rate", "2Gbit", "--plain", "--block", "4KiB",
        ],
        &["--lane", "rapid"],
        &["--lane", "rapid", "--rate", "1Gbit", "--plain"],
        &["--lane", "rapid", "--memory", "128KiB", "--groups", "5"],
        &["--lane", "rapid", "--block", "4MiB", "--memory", "16MiB"],
        &["--deal", "keyed"],
        &["--local", "B-C"],
        &["--memory", "128KiB", "--groups", "5"],
    ] {
        let place = Place::new();
        for (name, seed, len) in [("in1", 1, 3_000_017), ("in2", 2, 5_000_000)] {
            std::fs::write(place.path(name), bytes(len, seed)).unwrap();
        }
        let words = [
            "stream",
            "localhost",
            "localhost",
            "--json",
            "--from",
            "in{node}",
            "--to",
            "out{node}",
        ];
        let ran = place.run(&[&words[..], options].concat()).assert_status(0);
        let report = ran.report();
        assert_eq!(report["outcome"], "done");
        assert_eq!(report["accounted"], true);
        assert_eq!(report["bytes"], 8_000_017, "{options:?}");
        let (from, to) = (
            ["in1", "in2"].map(|name| place.path(name)),
            ["out1", "out2"].map(|name| place.path(name)),
        );
        // A short last block moves the bounds of those behind it, unless it is the last of its file.
        let lens = |paths: &[std::path::PathBuf]| {
            paths
                .iter()
                .map(|path| path.metadata().unwrap().len())
                .sum::<u64>()
        };
        assert_eq!(lens(&from), lens(&to));
        assert!(
            to.iter()
                .all(|path| path.metadata().unwrap().len() > 1_000_000),
            "{options:?}"
        );
        assert_eq!(temporary(place.dir.path()), Vec::<String>::new());
    }
}

/// Datagrams go where TCP would: within this host, too, sealed unless it is not wanted; the report counts what was sent again.
#[test]
fn datagrams_are_reported() {
    let place = Place::new();
    for (options, is_encrypted) in [
        (&["--lane", "rapid"][..], true),
        (&["--lane", "rbudp", "--rate", "1Gbit", "--plain"], false),
    ] {
        let words = [
            "stream",
            "localhost",
            "localhost",
            "--size",
            "8MiB",
            "--json",
        ];
        let report = place
            .run(&[&words[..], options].concat())
            .assert_status(0)
            .report();
        assert_eq!(report["encrypted"], is_encrypted);
        let again = |value: &Value| value["retransmitted_bytes"].as_u64().unwrap();
        let of = |name: &str| {
            report[name]
                .as_array()
                .unwrap()
                .iter()
                .map(again)
                .sum::<u64>()
        };
        assert_eq!(again(&report), of("stages"));
        assert_eq!(again(&report), of("processes"));
    }
}

/// A process never sends more than its rate: what its datagrams carry in a time is bounded from above.
#[test]
fn rates_bound_processes() {
    let place = Place::new();
    for options in [&["--lane", "rbudp"][..], &["--lane", "rapid"]] {
        let words = [
            "stream",
            "localhost",
            "--size",
            "8MiB",
            "--rate",
            "80Mbit",
            "--json",
        ];
        let report = place
            .run(&[&words[..], options].concat())
            .assert_status(0)
            .report();
        for process in &report["processes"].as_array().unwrap()[..2] {
            let bits = process["sent_bytes"].as_f64().unwrap() * 8.0;
            let rate = bits / process["seconds"].as_f64().unwrap();
            assert!(rate < 84e6, "{options:?}: {rate}");
        }
    }
}

/// Files of whole blocks come out as the same multiset of blocks, for long and short blocks.
#[test]
fn files_are_equal_as_multisets_of_blocks() {
    for (block, len) in [("64KiB", 64 << 10), ("1MiB", 1 << 20), ("4KiB", 4 << 10)] {
        let place = Place::new();
        for (name, seed) in [("in1", 1), ("in2", 2)] {
            std::fs::write(place.path(name), bytes(4 << 20, seed)).unwrap();
        }
        let words = [
            "stream",
            "localhost",
            "localhost",
            "--from",
            "in{node}",
            "--to",
            "out{node}",
            "--block",
            block,
        ];
        place
            .run(&words)
            .assert_status(0)
            .assert_says("every block once");
        let of = |names: [&str; 2]| blocks(&names.map(|name| place.path(name)), len);
        assert_eq!(of(["in1", "in2"]), of(["out1", "out2"]));
    }
}

/// Zeros are made and dropped; the report has every process, in every unit that its fields name.
#[test]
fn zeros_are_reported() {
    let place = Place::new();
    let words = [
        "stream",
        "localhost",
        "localhost",
        "--groups",
        "4",
        "--size",
        "8MiB",
        "--json",
    ];
    let report = place.run(&words).assert_status(0).report();
    assert_eq!(report["blocks"], 256);
    let stages = report["stages"].as_array().unwrap();
    let names: Vec<&str> = stages
        .iter()
        .map(|stage| stage["stage"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["A", "B", "C", "D"]);
    assert_eq!(stages[1]["received_bytes"], 16 << 20);
    assert_eq!(stages[3]["sent_bytes"], 0);
    assert!(stages[0]["resident_max_bytes"].as_u64().unwrap() > 0);
    assert_eq!(report["processes"].as_array().unwrap().len(), 8);
    let is_named = names.contains(&report["bound_by"].as_str().unwrap());
    assert!(is_named);
}

/// Programs of a stage change blocks, lines keep whole; what they gave comes out.
#[test]
fn programs_are_stages() {
    let place = Place::new();
    let lines: String = (0..200_000)
        .map(|number| format!("line {number}\n"))
        .collect();
    std::fs::write(place.path("in"), &lines).unwrap();
    let words = [
        "stream",
        "localhost",
        "--json",
        "--groups",
        "4",
        "--from",
        "in",
        "--to",
        "out",
        "--local",
        "A-B",
        "--exec",
        "B=tr a-z A-Z",
        "--lines",
    ];
    let report = place.run(&words).assert_status(0).report();
    assert_eq!(report["bytes"], lines.len());
    let out = std::fs::read_to_string(place.path("out")).unwrap();
    let mut sorted: Vec<&str> = out.lines().collect();
    sorted.sort_unstable();
    let lines = lines.to_uppercase();
    let mut expected: Vec<&str> = lines.lines().collect();
    expected.sort_unstable();
    assert_eq!(sorted, expected);
    // Framed blocks pass through a program that copies bytes.
    let words = [
        "stream",
        "localhost",
        "localhost",
        "--size",
        "20MB",
        "--exec",
        "B=cat",
        "--json",
    ];
    let report = place.run(&words).assert_status(0).report();
    assert_eq!(report["bytes"], 40_000_000);
}

/// Programs at both ends take the place of files; they know their node and group.
#[test]
fn programs_are_ends() {
    let place = Place::new();
    let words = [
        "stream",
        "localhost",
        "localhost",
        "--lines",
        "--exec",
        "A=seq $((ROPEWALK_NODE * 1000)) $((ROPEWALK_NODE * 1000 + 99))",
        "--exec",
        "C=cat > $ROPEWALK_STAGE$ROPEWALK_NODE",
        "--block",
        "64B",
        "--json",
    ];
    let report = place.run(&words).assert_status(0).report();
    assert_eq!(report["accounted"], true);
    let mut numbers: Vec<u32> = ["C1", "C2"]
        .iter()
        .flat_map(|name| {
            let text = std::fs::read_to_string(place.path(name)).unwrap();
            assert!(!text.is_empty());
            text.lines()
                .map(|line| line.parse().unwrap())
                .collect::<Vec<u32>>()
        })
        .collect();
    numbers.sort_unstable();
    let expected: Vec<u32> = (1000..1100).chain(2000..2100).collect();
    assert_eq!(numbers, expected);
}

/// A last process that takes nothing stops all before it within their buffers; when it goes on, so does the stream.
#[test]
fn a_last_process_that_stops_stops_the_first() {
    let place = Place::new();
    let words = [
        "stream",
        "localhost",
        "localhost",
        "--size",
        "64MiB",
        "--exec",
        "C=if [ $ROPEWALK_NODE = 1 ]; then until [ -e go ]; do sleep 0.05; done; fi; cat >/dev/null",
    ];
    let mut moving = Moving::start(&place, &words);
    let mut before = 0;
    loop {
        let sent = moving.event("progress")["stages"][0]["sent_bytes"]
            .as_u64()
            .unwrap();
        assert!(sent < 128 << 20, "the first processes went on");
        if sent > 0 && sent == before {
            break;
        }
        before = sent;
    }
    std::fs::write(place.path("go"), "").unwrap();
    let (status, report) = moving.end();
    assert_eq!((status, report["bytes"].as_u64()), (0, Some(128 << 20)));
    for process in report["processes"].as_array().unwrap() {
        assert!(process["resident_max_bytes"].as_u64().unwrap() < 64 << 20);
    }
}

/// Running agents take part; programs only where they were started for it, and files only below their roots.
#[test]
fn running_agents_take_part() {
    let place = Place::new();
    place.make_token();
    std::fs::create_dir(place.path("data")).unwrap();
    for (name, seed) in [("data/in1", 1), ("data/in2", 2)] {
        std::fs::write(place.path(name), bytes(1 << 20, seed)).unwrap();
    }
    std::fs::write(place.path("secret"), "x").unwrap();
    let agent = place.agent(&place.path("data"));
    let host = format!("127.0.0.1:{}", agent.port);
    let stream = |words: &[&str]| {
        place.run(&[&["stream", "--json", host.as_str(), "localhost"], words].concat())
    };
    let (from, to) = (place.text("data/in{node}"), place.text("data/out{node}"));
    let report = stream(&["--from", &from, "--to", &to])
        .assert_status(0)
        .report();
    assert_eq!(report["bytes"], 2 << 20);
    let refused = |words: &[&str]| -> String {
        let report: Value = stream(words).assert_status(4).report();
        report["error"].as_str().unwrap().to_owned()
    };
    let error = refused(&["--exec", "B=cat"]);
    assert!(
        error.contains(&host) && error.contains("--run-programs"),
        "{error}"
    );
    let secret = place.text("secret");
    let error = refused(&["--from", &secret]);
    assert!(error.contains("outside"), "{error}");
    let mut command = place.command();
    let root = format!("{}:rw", place.text("data"));
    command.args([
        "agent",
        "--listen",
        "127.0.0.1:0",
        "--while-stdin",
        "--run-programs",
        "--root",
        &root,
    ]);
    let willing = start_agent(command);
    let host = format!("127.0.0.1:{}", willing.port);
    place
        .run(&["stream", &host, "--size", "1MiB", "--exec", "B=cat"])
        .assert_status(0);
}

/// Whole lines go from node to node, whatever their lengths; a last line without its end gets one.
#[test]
fn lines_stay_whole_between_nodes() {
    let place = Place::new();
    let mut expected = Vec::new();
    for node in 1..3 {
        let lines: Vec<String> = (0..5000)
            .map(|number| format!("{node} {number} {}", "x".repeat(number * 7 % 301)))
            .collect();
        std::fs::write(place.path(&format!("in{node}")), lines.join("\n")).unwrap();
        expected.extend(lines);
    }
    let words = [
        "stream",
        "localhost",
        "localhost",
        "--lines",
        "--exec",
        "B=cat",
        "--block",
        "1000B",
        "--from",
        "in{node}",
        "--to",
        "out{node}",
        "--json",
    ];
    place.run(&words).assert_status(0);
    let texts = ["out1", "out2"].map(|name| std::fs::read_to_string(place.path(name)).unwrap());
    let mut found: Vec<&str> = texts.iter().flat_map(|text| text.lines()).collect();
    found.sort_unstable();
    expected.sort_unstable();
    let wrong = found
        .iter()
        .zip(&expected)
        .find(|(one, other)| one != other);
    assert_eq!(wrong, None);
    assert_eq!(found.len(), expected.len());
    let long = format!("short\n{}\n", "x".repeat(1000));
    std::fs::write(place.path("in2"), long).unwrap();
    let error = place.run(&words).assert_status(1).error();
    assert!(
        error.starts_with("A on localhost 2")
            && error.contains("at byte 6")
            && error.contains("--block"),
        "{error}"
    );
}

/// Whether blocks were sealed is reported as it was: not within a host and user, nor where the user gave it up.
#[test]
fn sealing_is_reported() {
    for (options, expected) in [
        (&["--lane", "unix"][..], false),
        (&["--lane", "shm"], false),
        (&["--lane", "tcp"], true),
        (&["--lane", "tcp", "--plain"], false),
    ] {
        let place = Place::new();
        let words = [
            "stream",
            "localhost",
            "localhost",
            "--size",
            "1MiB",
            "--json",
        ];
        let ran = place.run(&[&words[..], options].concat()).assert_status(0);
        assert_eq!(ran.report()["encrypted"], expected, "{options:?}");
    }
}

/// A running stream is listed with what it has carried, here and at its agents, counted by these, and ends when it is cancelled here or
/// there.
#[test]
fn a_running_stream_is_listed_and_cancelled() {
    let place = Place::new();
    place.make_token();
    let agent = place.agent(&place.path("home"));
    let at = format!("127.0.0.1:{}", agent.port);
    let read = |words: &[&str]| -> Value {
        let ran = place.run(words).assert_status(0);
        serde_json::from_str(&ran.out()).unwrap()
    };
    // Without end, for this test.
    let words = ["stream", &at, "--size", "900000GB"];
    let mut moving = Moving::start(&place, &words);
    moving.until_received(2);
    let running = read(&["status", "--json"]);
    let (one, carried) = (&running[0], &running[0]["carried"]);
    assert_eq!(one["kind"], "stream", "{running:#}");
    assert!(carried["blocks"].as_u64() > Some(0), "{running:#}");
    let text = place.run(&["status"]).assert_status(0).out();
    assert!(
        text.contains("  stream, ") && text.contains(" blocks out of it, for "),
        "{text}"
    );
    let own = read(&["status", "--json", "--agent", &at]);
    assert_eq!(
        (&own[0]["kind"], &own[0]["transfer"]),
        (&"stream".into(), &one["transfer"])
    );
    assert!(own[0]["blocks"].as_u64() > Some(0), "{own:#}");
    let agents = read(&["agents", "--json", &at]);
    assert_eq!([&agents[0]["streams"], &agents[0]["transfers"]], [1, 0]);
    let received = agents[0]["received_bytes"].as_u64().unwrap();
    assert!(received > 0, "{agents:#}");
    place
        .run(&["cancel", one["transfer"].as_str().unwrap()])
        .assert_status(0);
    let (status, report) = moving.end();
    assert_eq!((status, &report["outcome"]), (130, &"cancelled".into()));
    let after = read(&["agents", "--json", &at]);
    assert_eq!(after[0]["streams"], 0, "{after:#}");
    assert!(
        after[0]["received_bytes"].as_u64() >= Some(received),
        "{after:#}"
    );

    let mut moving = Moving::start(&place, &words);
    moving.until_received(2);
    place
        .run(&["cancel", "--all", "--agent", &at])
        .assert_status(0);
    let (status, report) = moving.end();
    let error = report["error"].as_str().unwrap();
    assert!(
        status == 1 && error.contains("cancelled at the agent"),
        "{error}"
    );
}
