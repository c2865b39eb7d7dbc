//! `region` with its four nodes.

mod common;

use common::Place;

/// Each way of reading has a point for each size, and the nodes end with it.
#[test]
fn a_region_is_measured() {
    let place = Place::new();
    let args = ["region", "--json", "--time", "1", "--sizes", "64,300KiB"];
    let ran = place.run(&args).assert_status(0);
    let text = String::from_utf8(ran.0.stdout).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["nodes"], 4);
    let points = report["points"].as_array().unwrap();
    let ways: Vec<_> = points
        .iter()
        .map(|point| point["way"].as_str().unwrap())
        .collect();
    let each = [
        "region",
        "message, question",
        "message, ping-pong",
        "message, ping-pong, 1 node",
    ];
    assert_eq!(ways, [each, each].concat());
    assert!(
        points
            .iter()
            .all(|point| point["median_seconds"].as_f64().unwrap() > 0.0)
    );
}

/// Sizes that no part has are refused before anything is started.
#[test]
fn sizes_are_bounded() {
    let place = Place::new();
    place
        .run(&["region", "--sizes", "17MiB"])
        .assert_status(1)
        .assert_says("16 MiB");
}
