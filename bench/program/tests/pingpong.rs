//! `pingpong` between two processes.

mod common;

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use common::{Place, Ran, Running};

/// A serving end on two rails, and where it listens. Ends when dropped.
fn serve(place: &Place) -> (Running, [String; 2]) {
    let mut serve = place.command();
    serve.args(["pingpong", "--serve", "127.0.0.1:0", "127.0.0.2:0"]);
    let child = serve.stdout(Stdio::piped()).spawn().unwrap();
    let mut serving = Running(child);
    let mut lines = BufReader::new(serving.0.stdout.take().unwrap()).lines();
    let addresses = std::array::from_fn(|_| {
        let line = lines.next().unwrap().unwrap();
        line.strip_prefix("listening on ").unwrap().to_owned()
    });
    (serving, addresses)
}

/// A small measurement.
fn measure(place: &Place, hosts: &[String], more: &[&str]) -> Ran {
    let mut args = vec!["pingpong", "--json", "--mode", "enhanced"];
    if !more.contains(&"--stream") {
        args.extend(["--sizes", "1", "--rounds", "3"]);
    }
    args.extend(more);
    args.extend(hosts.iter().map(String::as_str));
    place.run(&args).assert_status(0)
}

/// Both ends agree on every point, and the report holds what the options asked for.
#[test]
fn round_trips_are_measured() {
    let place = Place::new();
    let (_serving, [first, second]) = serve(&place);
    let measure = [
        "pingpong",
        "--json",
        "--sizes",
        "1..64KiB",
        "--rounds",
        "3",
        "--quick",
        "--rails",
        "127.0.0.1",
        &first,
        &second,
    ];
    let ran = place.run(&measure).assert_status(0);
    let report: serde_json::Value = serde_json::from_str(&ran.out()).unwrap();
    assert_eq!(report["rails"], 2);
    let points = report["points"].as_array().unwrap();
    assert_eq!(
        points.len(),
        17 * 4,
        "17 sizes: TCP, TCP in parts, basic, enhanced"
    );
    for point in points {
        assert_eq!(point["rounds"], 3, "{point}");
        assert!(
            point["round_trip_seconds"].as_f64().unwrap() > 0.0,
            "{point}"
        );
        let efficiency = &point["efficiency_percent"];
        assert_eq!(point["method"] == "tcp", efficiency.is_null(), "{point}");
    }

    let found = [
        "pingpong", "--json", "--sizes", "1", "--rounds", "3", &first, &second,
    ];
    let ran = place.run(&found).assert_status(0);
    let report: serde_json::Value = serde_json::from_str(&ran.out()).unwrap();
    assert!(report["cut_off"].is_object(), "{report}");

    let stream = [
        "pingpong",
        "--json",
        "--stream",
        "4MiB",
        "--sizes",
        "64KiB..128KiB",
        "--rails",
        "127.0.0.1",
        &first,
        &second,
    ];
    let ran = place.run(&stream).assert_status(0);
    let report: serde_json::Value = serde_json::from_str(&ran.out()).unwrap();
    let streams = report["streams"].as_array().unwrap();
    assert_eq!(
        streams.len(),
        8,
        "2 sizes: TCP, TCP in parts, basic, enhanced"
    );
    for stream in streams {
        let many = (4 << 20) / stream["bytes"].as_u64().unwrap();
        assert_eq!(stream["messages"], many, "{stream}");
        let seen = &stream["seen"];
        let plain = stream["method"].as_str().unwrap().starts_with("tcp");
        assert_eq!(seen.is_null(), plain, "{stream}");
        if !plain {
            assert_eq!(
                (&seen["messages"], &seen["bytes"]),
                (&many.into(), &(4 << 20).into())
            );
            for fault in ["lost", "doubled", "out_of_order", "damaged"] {
                assert_eq!(seen[fault], 0, "{seen}");
            }
            let last = seen["samples"].as_array().unwrap().last().unwrap();
            assert_eq!(last["delivered_bytes"], 4 << 20, "{seen}");
        }
    }
}

/// What cannot be measured to its end is refused before anything is.
#[test]
fn what_cannot_be_meant_is_usage() {
    let place = Place::new();
    // Nobody serves: it is not even asked for.
    for (args, why) in [
        (&["--stream", "1MiB", "--sizes", "8"][..], "is no stream"),
        (
            &["--stream", "10MiB", "--sizes", "1MiB..16MiB"],
            "is no stream",
        ),
        (&["--stream", "1GiB"], "is no stream"),
        (&["--mode", "enhanced", "--mode", "tcp-split"], "two rails"),
    ] {
        let args = [&["pingpong"], args, &["127.0.0.1:1"]].concat();
        place.run(&args).assert_status(2).assert_says(why);
    }
}

/// What a measurement finds, the next quick one uses; `off` neither uses nor keeps it.
#[test]
fn cut_offs_are_remembered() {
    let place = Place::new();
    let (_serving, hosts) = serve(&place);
    let used = |more: &[&str]| {
        let ran = measure(&place, &hosts, more);
        let report: serde_json::Value = serde_json::from_str(&ran.out()).unwrap();
        (ran, report["cut_off_used"].clone())
    };
    let default = serde_json::json!({"bytes": 32 << 10, "source": "default", "age_seconds": null});
    let file = place.path("state/ropewalk/cut-offs.json");
    assert_eq!(used(&["--quick"]).1, default);
    used(&["--cut-offs", "off"]);
    assert!(!file.exists());
    // On a busy machine the search may take longer than it may.
    let found = (0..20).find_map(|_| {
        let found = used(&[]).1;
        (found["source"] == "measured").then_some(found)
    });
    let found = found.unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    for more in [&["--quick"][..], &["--stream", "64KiB", "--sizes", "64"]] {
        let recalled = used(more).1;
        assert_eq!(recalled["source"], "remembered", "{text}");
        assert_eq!(recalled["bytes"], found["bytes"]);
        assert!(recalled["age_seconds"].as_u64().unwrap() < 600);
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    assert_eq!(used(&["--quick", "--cut-offs", "off"]).1, default);
    std::fs::write(&file, "{\"pairs\": ").unwrap();
    let (ran, used) = used(&["--quick"]);
    assert_eq!(used, default);
    ran.assert_says("cut-offs.json is damaged");
}

/// The serving end's addresses may be named in any order, or some of them; one that it does not serve is told.
#[test]
fn addresses_are_named_in_any_order() {
    let place = Place::new();
    let (_serving, [first, second]) = serve(&place);
    let swapped = [second.clone(), first.clone()];
    let ran = measure(&place, &swapped, &["--quick", "--mode", "tcp-split"]);
    let report: serde_json::Value = serde_json::from_str(&ran.out()).unwrap();
    let points = report["points"].as_array().unwrap();
    let methods: Vec<_> = points.iter().map(|point| point["method"].clone()).collect();
    assert_eq!(methods, ["enhanced", "tcp-split", "tcp"]);

    let ran = measure(&place, std::slice::from_ref(&second), &[]);
    let report: serde_json::Value = serde_json::from_str(&ran.out()).unwrap();
    assert_eq!(report["rails"], 1);

    let (_, port) = second.split_once(':').unwrap();
    let other = format!("127.0.0.3:{port}");
    place
        .run(&["pingpong", "--sizes", "1", "--rounds", "3", &first, &other])
        .assert_status(1)
        .assert_says("the peer serves 127.0.0.1 and 127.0.0.2, not 127.0.0.3");
}

/// Nobody need read what was measured.
#[test]
fn results_that_nobody_takes_are_no_failure() {
    let place = Place::new();
    let (_serving, [first, _]) = serve(&place);
    for form in [&["--json"][..], &[]] {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let mut command = place.command();
        command.args(["pingpong", "--sizes", "1", "--rounds", "3"]);
        command.args(form).arg(&first).stdout(full.unwrap());
        Ran(command.output().unwrap()).assert_status(0);
    }
}

/// Addresses of other hosts need the word that data is not encrypted.
#[test]
fn clear_text_is_asked_for() {
    let place = Place::new();
    place
        .run(&["pingpong", "192.0.2.1"])
        .assert_status(1)
        .assert_says("or `plain` for a network you trust");
}
