//! `plan`, on every worked case and on specification files.

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;

use common::{Place, assert_golden};
use serde_json::Value;

fn cases() -> Vec<(PathBuf, Value)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../cases/schedule");
    let mut cases: Vec<(PathBuf, Value)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .map(|path| {
            let value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
            (path, value)
        })
        .collect();
    cases.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(cases.len() >= 25, "the cases are not where they should be");
    cases
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * a.abs().max(b.abs())
}

/// Slack of a plan in whole bytes: 4 bytes over the slowest node's speed.
fn slack(case: &Value) -> f64 {
    let speeds = |side: &str, key: &str| -> Vec<f64> {
        case[side]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|node| node[key].as_f64())
            .filter(|speed| *speed > 0.0)
            .collect()
    };
    let slowest = speeds("writers", "up")
        .into_iter()
        .chain(speeds("readers", "down"))
        .fold(f64::INFINITY, f64::min);
    4.0 / slowest
}

/// The printed object has the bytes, times and refusals that each case expects, for both schedulers.
#[test]
fn every_case_prints_what_it_expects() {
    let place = Place::new();
    for (path, case) in cases() {
        let expected = &case["expected"];
        for (scheduler, key) in [("greedy", "greedy_T"), ("uniform", "uniform_T")] {
            let ran = place.run(&[
                "plan",
                "--json",
                "--scheduler",
                scheduler,
                path.to_str().unwrap(),
            ]);
            let printed: Value = serde_json::from_str(&ran.out()).unwrap();
            if expected["error"].is_string() {
                assert_eq!(ran.status(), 4);
                assert_eq!(printed["missing"], expected["missing"], "{path:?}");
                assert!(
                    printed["error"]
                        .as_str()
                        .unwrap()
                        .contains("nobody can send")
                );
                assert!(printed.get("transfers").is_none());
                continue;
            }
            assert_eq!(ran.status(), 0, "{path:?}: {}", ran.err());
            assert_eq!(printed["scheduler"], scheduler);
            let transfers = printed["transfers"].as_array().unwrap();
            let bytes: u64 = transfers
                .iter()
                .map(|t| t["end"].as_u64().unwrap() - t["start"].as_u64().unwrap())
                .sum();
            assert_eq!(Some(bytes), expected["bytes"].as_u64(), "{path:?}");
            let predicted = printed["predicted_seconds"].as_f64().unwrap();
            let fluid = expected[key].as_f64().unwrap();
            assert!(
                close(predicted, fluid) || (predicted - fluid).abs() <= slack(&case),
                "{path:?} {scheduler}: {predicted} is not {fluid}"
            );
            assert!(
                close(
                    printed["bound_seconds"].as_f64().unwrap(),
                    expected["optimal_T"].as_f64().unwrap()
                ),
                "{path:?}"
            );
            assert_eq!(printed["bound_is_exact"], true);
            assert_eq!(
                printed["binding"].as_array().unwrap().is_empty(),
                bytes == 0,
                "{path:?}"
            );
        }
    }
}

/// Each case's plan for people names its times and every node's load.
#[test]
fn every_case_prints_for_people() {
    let place = Place::new();
    for (path, case) in cases() {
        let ran = place.run(&["plan", path.to_str().unwrap()]);
        if case["expected"]["error"].is_string() {
            ran.assert_status(4).assert_says("misses");
            continue;
        }
        let out = ran.assert_status(0).out();
        for part in [
            "plan  ",
            "predicted  ",
            "bound  ",
            "\nsender",
            "\nreceiver",
            "\nbytes\n",
        ] {
            assert!(out.contains(part), "{path:?}: {part} is missing in\n{out}");
        }
        for node in case["writers"]
            .as_array()
            .unwrap()
            .iter()
            .chain(case["readers"].as_array().unwrap())
        {
            assert!(
                out.contains(node["name"].as_str().unwrap()),
                "{path:?}: {out}"
            );
        }
    }
}

const FIGURE_2: &str = r#"id "My Data File"
# Node Type  Host:Port          Data URI              Offset in file        Start-End Range
master       localhost:55555     #(Local namespace)   (Global namespace)
writer      node1:55553        "file:///data/half1" 0                      0-1023
writer      node2:55554        "file:///data/half1" 1024                   1024-2047
writer      192.168.3.4:55555 "file:///data/half2" 0                      2048-3071
writer      192.168.3.5:55555 "file:///data/half2" 1024                   3072-4095
reader      node5:55557        "file:///tmp/copy1"  0                      0-2047
reader      node7:55559        "file:///tmp/copy1"  2048                   2048-4095
reader      node6:55558        "file:///tmp/copy2"  0                      0-4095
"#;

/// The paper's own file is planned; its speeds are assumed, and that is said.
#[test]
fn figure_2_is_planned() {
    let place = Place::new();
    std::fs::write(place.path("figure2.spec"), FIGURE_2).unwrap();
    let out = place.run(&["plan", "figure2.spec"]).assert_status(0).out();
    assert_golden("plan-figure-2.txt", &out);
    let out = place
        .run(&["plan", "--assume-rate", "8kbit", "figure2.spec"])
        .out();
    assert!(
        out.contains("predicted  4.1 s\n") && out.contains("assumed to have 8 kbit/s"),
        "{out}"
    );
    let printed: Value =
        serde_json::from_str(&place.run(&["plan", "--json", "figure2.spec"]).out()).unwrap();
    let mut received: BTreeMap<String, u64> = BTreeMap::new();
    for run in printed["transfers"].as_array().unwrap() {
        *received
            .entry(run["reader"].as_str().unwrap().to_owned())
            .or_default() += run["end"].as_u64().unwrap() - run["start"].as_u64().unwrap();
    }
    assert_eq!(
        received.into_values().collect::<Vec<_>>(),
        [2048, 4096, 2048]
    );
}

/// Declared speeds are used, and only the silent nodes are counted as assumed.
#[test]
fn declared_speeds_are_used() {
    let place = Place::new();
    std::fs::write(
        place.path("s"),
        "writer a:1 /x 0 0-999 up=8kbit\nreader b:2 /y 0 0-999\n",
    )
    .unwrap();
    let ran = place.run(&["plan", "s"]).assert_status(0);
    ran.assert_says("bound      1 s, set by a:1")
        .assert_says("1 of 2 nodes assumed");
}

/// A malformed file is refused with a picture of the place, and as an object for programs.
#[test]
fn malformed_files_are_pictured() {
    let place = Place::new();
    std::fs::write(
        place.path("bad"),
        "writer a:1 /x 0 0-9\nwirter b:1 /x 0 0-9\nreader b:2 /b 0 0-9\n",
    )
    .unwrap();
    let err = place.run(&["plan", "bad"]).assert_status(4).err();
    assert_golden("plan-malformed.txt", &err);
    let ran = place.run(&["plan", "--json", "bad"]).assert_status(4);
    let printed: Value = serde_json::from_str(&ran.out()).unwrap();
    assert!(
        printed["error"].as_str().unwrap().contains("wirter")
            && printed["missing"].as_object().unwrap().is_empty()
    );
    std::fs::write(place.path("bad.json"), "{\"writers\": [], \"readers\": [").unwrap();
    place
        .run(&["plan", "bad.json"])
        .assert_status(4)
        .assert_says("not a scheduling case");
    place
        .run(&["plan", "absent"])
        .assert_status(1)
        .assert_says("cannot read absent");
    std::fs::write(place.path("latin1"), b"writer a:1 /\xe9 0 0-9\n").unwrap();
    place
        .run(&["plan", "latin1"])
        .assert_status(4)
        .assert_says("byte 12 is not UTF-8");
}
