//! `plan`, on every worked case and on specification files.

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;

use common::{Place, assert_golden};
use serde_json::{Value, json};

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

/// Slack of a plan in whole bytes: 4 bytes over the slowest speed or cap.
fn slack(case: &Value) -> f64 {
    let speeds = |side: &str, key: &str| -> Vec<f64> {
        let list = case[side].as_array().into_iter().flatten();
        list.filter_map(|node| node[key].as_f64())
            .filter(|speed| *speed > 0.0)
            .collect()
    };
    let slowest = speeds("writers", "up")
        .into_iter()
        .chain(speeds("readers", "down"))
        .chain(speeds("pair_caps", "cap"))
        .chain(speeds("trunks", "cap"))
        .fold(f64::INFINITY, f64::min);
    4.0 / slowest
}

/// The printed object has the bytes, times and refusals that each case expects, for every scheduler with a rule.
#[test]
fn every_case_prints_what_it_expects() {
    let place = Place::new();
    for (path, case) in cases() {
        let expected = &case["expected"];
        for (scheduler, key) in [
            ("optimal", "optimal_T"),
            ("greedy", "greedy_T"),
            ("uniform", "uniform_T"),
        ] {
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
                        .contains("no sender can send")
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

/// Whatever scheduler is chosen, every one is listed with the time its own plan would take.
#[test]
fn every_scheduler_is_listed() {
    let place = Place::new();
    for (path, case) in cases() {
        let expected = &case["expected"];
        if expected["error"].is_string() {
            continue;
        }
        let ran = place.run(&["plan", "--json", path.to_str().unwrap()]);
        let printed: Value = serde_json::from_str(&ran.assert_status(0).out()).unwrap();
        let lines = printed["schedulers"].as_array().unwrap();
        let line = |name: &str| lines.iter().find(|line| line["scheduler"] == name);
        for (name, key) in [
            ("optimal", "optimal_T"),
            ("greedy", "greedy_T"),
            ("uniform", "uniform_T"),
        ] {
            let line = line(name).unwrap_or_else(|| panic!("{name} is not in {lines:?}"));
            let predicted = line["predicted_seconds"].as_f64().unwrap();
            let fluid = expected[key].as_f64().unwrap();
            assert!(
                close(predicted, fluid) || (predicted - fluid).abs() <= slack(&case),
                "{path:?} {name}: {predicted} is not {fluid}"
            );
            assert!(line["planning_seconds"].as_f64().unwrap() > 0.0);
        }
        let used = line(printed["scheduler"].as_str().unwrap()).unwrap();
        assert_eq!(used["predicted_seconds"], printed["predicted_seconds"]);
        let runs = printed["transfers"].as_array().unwrap().len();
        assert_eq!(used["runs"], runs);
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

/// The text with the times that planning took, which differ from run to run, replaced.
fn without_planning_times(text: &str) -> String {
    let mut inside = false;
    let mask = |line: &str| {
        inside = line.starts_with("scheduler ") || (inside && !line.is_empty());
        if !inside || line.starts_with("scheduler ") {
            return format!("{line}\n");
        }
        // Name, predicted, share of the bound, time, runs: parted by two spaces or more.
        let words: Vec<&str> = line.split("  ").filter(|word| !word.is_empty()).collect();
        let words: Vec<&str> = words.iter().map(|word| word.trim()).collect();
        match words.as_slice() {
            [name, predicted, share, _, rest @ ..] => {
                format!(
                    "{name} | {predicted} | {share} | TIME | {}\n",
                    rest.join(" | ")
                )
            }
            _ => format!("{line}\n"),
        }
    };
    text.lines().map(mask).collect()
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
    assert_golden("plan-figure-2.txt", &without_planning_times(&out));
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
        .assert_status(2)
        .assert_says("cannot read absent");
    std::fs::write(place.path("latin1"), b"writer a:1 /\xe9 0 0-9\n").unwrap();
    place
        .run(&["plan", "latin1"])
        .assert_status(4)
        .assert_says("latin1: line 1, column 13: byte 0xe9 is not UTF-8");
    std::fs::write(place.path("late"), "# \u{e9}\nwriter a:1 /x".as_bytes()).unwrap();
    let mut bytes = std::fs::read(place.path("late")).unwrap();
    bytes.push(0xff);
    std::fs::write(place.path("late"), bytes).unwrap();
    place
        .run(&["plan", "late"])
        .assert_status(4)
        .assert_says("line 2, column 14: byte 0xff");
}

/// Caps and trunks of the file set plan and bound, are named, and can be changed; rules that do not follow them say so.
#[test]
fn links_of_the_file_are_planned_with() {
    let place = Place::new();
    let text = "writer a1:1 /x 0 0-999999 up=80Mbit\nwriter a2:1 /x 0 0-999999 up=80Mbit\n\
                writer c:1 /x 0 0-999999 up=8Mbit\nreader b:2 /y 0 0-999999 down=80Mbit\n\
                trunk wan 8Mbit from a[1-2] to b\ncap c:1 b:2 4Mbit\n";
    std::fs::write(place.path("s"), text).unwrap();
    let plan = |args: &[&str]| -> Value {
        let args = [&["plan", "--json", "s"], args].concat();
        serde_json::from_str(&place.run(&args).assert_status(0).out()).unwrap()
    };
    // 8 Mbit in 8 + 4 Mbit/s.
    let found = plan(&[]);
    let near =
        |value: &Value, seconds: f64| (value.as_f64().unwrap() - seconds).abs() < 1e-5 * seconds;
    assert!(near(&found["bound_seconds"], 2.0 / 3.0), "{found:#}");
    assert!(near(&found["predicted_seconds"], 2.0 / 3.0), "{found:#}");
    assert_eq!(found["binding"], json!(["c:1 -> b:2", "trunk wan"]));
    assert!(found.get("notes").is_none(), "{found:#}");
    let wider = plan(&["--what-if", "trunk wan cap=x2"]);
    assert!(near(&wider["what_if"]["bound_seconds"], 0.4), "{wider:#}");
    let uniform = plan(&["--scheduler", "uniform"]);
    assert!(near(&uniform["bound_seconds"], 2.0 / 3.0), "{uniform:#}");
    let notes = uniform["notes"].to_string();
    assert!(
        notes.contains("uniform plans without caps and trunks"),
        "{notes}"
    );
    place
        .run(&["plan", "s"])
        .assert_status(0)
        .assert_says("bound      667 ms, set by c:1 -> b:2, trunk wan");
    std::fs::write(place.path("bad"), text.replace("a[1-2]", "a[1-3]")).unwrap();
    place
        .run(&["plan", "bad"])
        .assert_status(4)
        .assert_says("bad:5:22")
        .assert_says("no row has a node a3");
}

/// Two writers of the same bytes, one of them slow, and a fast reader.
fn two_to_one(place: &Place) {
    let text = "writer a:1 /x 0 0-999999 up=8Mbit\nwriter b:1 /x 0 0-999999 up=8Mbit\n\
                reader c:2 /y 0 0-999999 down=32Mbit\n";
    std::fs::write(place.path("s"), text).unwrap();
}

fn what_if(place: &Place, changes: &[&str]) -> common::Ran {
    let mut args = vec!["plan", "--json", "s"];
    args.extend(changes.iter().flat_map(|change| ["--what-if", change]));
    place.run(&args)
}

/// Changes apply in order; each one's times and limits are told, the last one's with its plan.
#[test]
fn what_if_tells_before_and_after() {
    let place = Place::new();
    two_to_one(&place);
    let changes = ["a up=x5", "add writer d like b", "remove a", "c down=8Mbit"];
    let ran = what_if(&place, &changes).assert_status(0);
    let printed: Value = serde_json::from_str(&ran.out()).unwrap();
    assert_eq!(printed["bound_seconds"], 0.5);
    assert_eq!(printed["binding"], json!(["a:1", "b:1"]));
    let what_if = &printed["what_if"];
    let steps = what_if["changes"].as_array().unwrap();
    let told: Vec<_> = steps
        .iter()
        .map(|step| {
            assert!(close(
                step["predicted_seconds"].as_f64().unwrap(),
                step["bound_seconds"].as_f64().unwrap()
            ));
            (&step["change"], &step["bound_seconds"], &step["binding"])
        })
        .collect();
    let values = [
        (json!("a up=x5"), json!(0.25), json!(["c:2"])),
        (json!("add writer d like b"), json!(0.25), json!(["c:2"])),
        (json!("remove a"), json!(0.5), json!(["b:1", "d"])),
        (json!("c down=8Mbit"), json!(1.0), json!(["c:2"])),
    ];
    let expected: Vec<_> = values.iter().map(|v| (&v.0, &v.1, &v.2)).collect();
    assert_eq!(told, expected);
    assert_eq!(what_if["bound_seconds"], 1.0);
    assert_eq!(what_if["binding"], json!(["c:2"]));
    let senders = |plan: &Value| {
        let runs = plan["transfers"].as_array().unwrap().iter();
        let names = runs.map(|run| run["writer"].as_str().unwrap().to_owned());
        names.collect::<std::collections::BTreeSet<String>>()
    };
    assert_eq!(senders(&printed), ["a:1".into(), "b:1".into()].into());
    assert_eq!(senders(what_if), ["b:1".into(), "d".into()].into());
}

/// People see a line for each change, and then the plan after all of them.
#[test]
fn what_if_is_shown_to_people() {
    let place = Place::new();
    two_to_one(&place);
    // A closed pair leaves the planner no choice, so that the text depends on no tie.
    let args = [
        "plan",
        "s",
        "--what-if",
        "all writers up=x4",
        "--what-if",
        "pair b c cap=0",
    ];
    let out = place.run(&args).assert_status(0).out();
    assert_golden("plan-what-if.txt", &without_planning_times(&out));
    let ran = place.run(&["plan", "s", "--what-if", "all up=x1"]);
    ran.assert_status(0)
        .assert_says("together    neither faster nor slower");
    // A removal that a later change makes good is no reason to refuse.
    let args = [
        "plan",
        "s",
        "--what-if",
        "remove a",
        "--what-if",
        "remove b",
        "--what-if",
        "add writer z up=8Mbit 0-999999",
    ];
    let ran = place.run(&args).assert_status(0);
    ran.assert_says("remove b                        no plan: some bytes have no holder")
        .assert_says("together    2.00 times as long");
}

/// A JSON case is changed as a specification is, links included.
#[test]
fn what_if_works_on_cases() {
    let place = Place::new();
    let (path, _) = cases()
        .into_iter()
        .find(|(path, _)| path.ends_with("18-trunk.json"))
        .unwrap();
    let changed = |change: &str| {
        let args = [
            "plan",
            "--json",
            path.to_str().unwrap(),
            "--what-if",
            change,
        ];
        let ran = place.run(&args).assert_status(0);
        serde_json::from_str::<Value>(&ran.out()).unwrap()
    };
    let halved = changed("trunk 0 cap=x0.5");
    // Near writers bring 137.5 MB/s, the trunk 75 and then 37.5.
    let bound = |printed: &Value| printed["bound_seconds"].as_f64().unwrap();
    assert!(close(bound(&halved), 1500.0 / 212.5), "{halved}");
    assert!(close(bound(&halved["what_if"]), 1500.0 / 175.0), "{halved}");
    assert_eq!(
        halved["what_if"]["binding"],
        json!(["near0", "near1", "trunk 0"])
    );
}

/// A change that leaves bytes without holder is refused with the ranges, as a plan without holder is.
#[test]
fn what_if_without_holder_is_refused() {
    let place = Place::new();
    std::fs::write(
        place.path("s"),
        "writer a:1 /x 0 0-99\nwriter b:1 /x 50 50-199\nreader c:2 /y 0 0-199\n",
    )
    .unwrap();
    let ran = what_if(&place, &["remove b"]).assert_status(4);
    let printed: Value = serde_json::from_str(&ran.out()).unwrap();
    assert_eq!(printed["missing"], json!({"c:2": [[100, 200]]}));
    let error = printed["error"].as_str().unwrap();
    assert!(
        error.starts_with("after the changes, no sender can send bytes 100-199"),
        "{error}"
    );
    assert!(printed.get("transfers").is_none());
    place
        .run(&["plan", "s", "--what-if", "pair b c cap=0"])
        .assert_status(4)
        .assert_says("refused: after the changes, no sender can send")
        .assert_says("c:2 misses 100 B: 100-199");
}

/// Changes that cannot be read, or that name what is not there, are slips: status 2 and what to write.
#[test]
fn what_if_slips_are_explained() {
    let place = Place::new();
    two_to_one(&place);
    for (change, part) in [
        (
            "aa up=1Gbit",
            "--what-if 'aa up=1Gbit': there is no writer \"aa\"; did you mean a:1?",
        ),
        (
            "remove nobody",
            "there is no node \"nobody\"; there are a:1, b:1, c:2",
        ),
        ("c up=1Gbit", "\"c\" is a reader"),
        ("a up=1G", "--what-if <CHANGE>"),
        (
            "a faster",
            "\"faster\" is not a speed; write for instance 'w0 up=10Gbit'",
        ),
        ("add writer a:1 like b", "already"),
        (
            "trunk 0 cap=x2",
            "there is no trunk 0; the transfer has none",
        ),
    ] {
        what_if(&place, &[change])
            .assert_status(2)
            .assert_says(part);
    }
}

/// Without changes, one line says what would limit next.
#[test]
fn the_next_limit_is_named() {
    let place = Place::new();
    two_to_one(&place);
    place.run(&["plan", "s"]).assert_status(0).assert_says(
        "next       with these 2 twice as fast: bound 250 ms (2.00 times as fast), then set by a:1, b:1, c:2\n",
    );
    let ran = place.run(&["plan", "--json", "s"]).assert_status(0);
    let printed: Value = serde_json::from_str(&ran.out()).unwrap();
    assert_eq!(printed["advice"]["twice_as_fast"], json!(["a:1", "b:1"]));
    assert_eq!(printed["advice"]["bound_seconds"], 0.25);
    assert!(printed.get("what_if").is_none());
}

/// Where several readers want the same bytes, both bounds are printed, and a plan in which readers hand bytes on.
#[test]
fn relays_are_planned_beside() {
    let place = Place::new();
    for (path, case) in cases() {
        if case["expected"]["error"].is_string() {
            continue;
        }
        let path = path.to_str().unwrap();
        let run = |relay: &str| -> Value {
            let ran = place.run(&["plan", "--json", "--relay", relay, path]);
            serde_json::from_str(&ran.assert_status(0).out()).unwrap()
        };
        assert!(run("off").get("relay").is_none());
        let printed = run("auto");
        let Some(least) = case["expected"]["relay_T"].as_f64() else {
            assert!(
                printed.get("relay").is_none(),
                "{path}: {}",
                printed["relay"]
            );
            continue;
        };
        let relay = &printed["relay"];
        assert!(close(relay["bound_seconds"].as_f64().unwrap(), least));
        assert!(close(relay["predicted_seconds"].as_f64().unwrap(), least));
        assert_eq!(
            (&relay["hops"], &relay["bound_is_exact"]),
            (&json!(2), &json!(true))
        );
        let runs = relay["transfers"].as_array().unwrap();
        let relayed = runs.iter().filter(|run| run["relayed"] == true);
        assert!(relayed.count() > 0 && runs.iter().any(|run| run["relayed"] == false));
    }
}

/// A reader's uplink is its `up`, else its `down`, else the assumed rate; one on a writer's address could use that of the writer.
#[test]
fn readers_hand_on_with_their_uplinks() {
    let place = Place::new();
    let bound = |rows: &str| -> Value {
        let file = place.path("rows.cep");
        std::fs::write(&file, rows).unwrap();
        let file = file.to_str().unwrap();
        let ran = place.run(&[
            "plan",
            "--json",
            "--speeds",
            "off",
            "--assume-rate",
            "80MB/s",
            file,
        ]);
        let printed: Value = serde_json::from_str(&ran.assert_status(0).out()).unwrap();
        printed["relay"]["bound_seconds"].clone()
    };
    let writer = "writer w:1 /a 0 0-239999999 up=80MB/s\n";
    let reader = |at: &str, words: &str| format!("reader {at} /b 0 0-239999999 {words}\n");
    // Two copies of 240 MB over 80 MB/s of the writer and what the readers add.
    for (words, seconds) in [
        ("down=80MB/s up=10MB/s", 4.8),
        ("down=80MB/s", 3.0),
        ("", 3.0),
    ] {
        let rows = format!("{writer}{}{}", reader("r:1", words), reader("r:2", words));
        let found = bound(&rows).as_f64().unwrap();
        assert!(close(found, seconds), "{words}: {found}");
    }
    let rows = format!(
        "{writer}{}{}",
        reader("w:1", ""),
        reader("r:2", "up=10MB/s")
    );
    // What the slowest downlink allows: all uplinks together would take 480 MB in 2.8 s.
    let found = bound(&rows).as_f64().unwrap();
    assert!(close(found, 3.0), "{found}");
}
