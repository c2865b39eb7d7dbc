//! Rows of specifications, and ranges, go on where the last run ended, whatever ended it.

mod common;

use std::os::unix::fs::FileExt as _;

use common::processes::{assert_gone, family, kill_at_once, temporary};
use common::{Moving, Place, RunningAgent, bytes};
use serde_json::Value;

const MIB: usize = 1 << 20;

/// Bytes of each half.
const HALF: usize = 20 * MIB;

/// Slow enough that every transfer is still moving when the test acts on it.
const LIMIT: &str = "80Mbit";

fn number(report: &Value, key: &str) -> u64 {
    report["landing"][key].as_u64().unwrap()
}

/// Until so much is safe; how much is.
fn until_safe(moving: &mut Moving, bytes: u64) -> u64 {
    loop {
        let safe = moving.event("progress")["delivered_bytes"]
            .as_u64()
            .unwrap();
        if safe >= bytes {
            return safe;
        }
    }
}

fn kill_all(mut moving: Moving) {
    let all = family(moving.child.id() as i32);
    kill_at_once(&all);
    moving.child.wait().unwrap();
    assert_gone(&all[1..]);
}

/// Two halves, which rows join to one file, and the first of which another reader gets.
struct Scene {
    place: Place,
}

impl Scene {
    fn new() -> Self {
        let place = Place::new();
        std::fs::create_dir(place.path("to")).unwrap();
        for (name, seed) in [("half1", 1), ("half2", 2)] {
            std::fs::write(place.path(name), bytes(HALF, seed)).unwrap();
        }
        Self { place }
    }

    fn row(&self, kind: &str, host: &str, file: &str, rest: &str) -> String {
        format!("{kind} {host} {} {rest}\n", self.place.text(file))
    }

    fn write(&self, rows: &[String]) {
        std::fs::write(self.place.path("spec"), rows.concat()).unwrap();
    }

    /// As CEP's Figure 2, smaller.
    fn rows(&self) -> Vec<String> {
        let (half, whole) = (HALF, 2 * HALF);
        vec![
            self.row("writer", "a:1", "half1", &format!("0 0+{half}")),
            self.row("writer", "b:1", "half2", &format!("0 {half}+{half}")),
            self.row("reader", "c:1", "to/whole", &format!("0 0+{whole}")),
        ]
    }

    fn start(&self, more: &[&str]) -> Moving {
        let words = ["transfer", "--start", "local", "--limit", LIMIT, "spec"];
        Moving::start(&self.place, &[&words[..], more].concat())
    }

    fn finish(&self) -> Value {
        let words = ["transfer", "--json", "--start", "local", "spec"];
        let report = self.place.run(&words).assert_status(0).report();
        assert_eq!(temporary(&self.place.path("to")), [""; 0]);
        report
    }

    fn whole(&self) -> Vec<u8> {
        let halves = ["half1", "half2"].map(|name| std::fs::read(self.place.path(name)).unwrap());
        halves.concat()
    }
}

/// All processes are killed at once: the next run of the same specification, or of one whose rows lie in another order of the data and
/// come from another writer, sends only what was not safe.
#[test]
fn a_killed_transfer_of_rows_goes_on() {
    for is_changed in [false, true] {
        let scene = Scene::new();
        scene.write(&scene.rows());
        let mut moving = scene.start(&[]);
        let safe = until_safe(&mut moving, 8 << 20);
        kill_all(moving);
        assert_eq!(
            temporary(&scene.place.path("to")).len(),
            2,
            "file and journal"
        );
        if is_changed {
            let rest = |offset: usize, start: usize| format!("{offset} {start}+{HALF}");
            scene.write(&[
                scene.row("writer", "z:1", "half2", &rest(0, 0)),
                scene.row("writer", "z:1", "half1", &rest(0, HALF)),
                scene.row("reader", "y:1", "to/whole", &rest(0, HALF)),
                scene.row("reader", "y:1", "to/whole", &rest(HALF, 0)),
            ]);
        }
        let report = scene.finish();
        let resumed = number(&report, "resumed_bytes");
        assert!(resumed >= safe, "{resumed} of {safe}: {report:#}");
        let sent = report["delivered_bytes"].as_u64().unwrap();
        assert_eq!(sent, 2 * HALF as u64 - resumed, "{report:#}");
        assert!(std::fs::read(scene.place.path("to/whole")).unwrap() == scene.whole());
        println!("safe {safe}, resumed {resumed}, sent {sent}");
    }
}

/// A writer's file that changed is sent as a whole, the other one's is not. What the killed run left is shown before.
#[test]
fn rows_of_a_file_that_changed_are_sent_again() {
    let scene = Scene::new();
    scene.write(&scene.rows());
    let mut moving = scene.start(&[]);
    let safe = until_safe(&mut moving, 12 << 20);
    kill_all(moving);
    let shown = scene.place.run(&["status", "--json", "to/whole"]);
    let shown: Value = serde_json::from_str(&shown.assert_status(0).out()).unwrap();
    assert_eq!(shown[0]["state"], "resumable", "{shown:#}");
    assert_eq!(shown[0]["total_bytes"], 2 * HALF, "{shown:#}");
    assert!(
        shown[0]["safe_bytes"].as_u64().unwrap() >= safe,
        "{shown:#}"
    );
    let half = scene.place.path("half2");
    let file = std::fs::File::options().write(true).open(half).unwrap();
    file.write_all_at(b"changed", 1000).unwrap();
    drop(file);
    let report = scene.finish();
    let resumed = number(&report, "resumed_bytes");
    assert!(resumed > 0 && resumed <= HALF as u64, "{report:#}");
    let sent = report["delivered_bytes"].as_u64().unwrap();
    assert_eq!(sent, 2 * HALF as u64 - resumed);
    assert!(std::fs::read(scene.place.path("to/whole")).unwrap() == scene.whole());
}

/// A range that is written into a file goes on; the file's other bytes are those that it has at the end.
#[test]
fn a_range_into_a_file_goes_on() {
    let place = Place::new();
    place.make_token();
    std::fs::create_dir(place.path("to")).unwrap();
    std::fs::write(place.path("part"), bytes(HALF + 5000, 1)).unwrap();
    std::fs::write(place.path("to/image"), bytes(2 * HALF, 2)).unwrap();
    let agent = place.agent(&place.path("to"));
    let to = agent.at(place.path("to/image"));
    let range = format!("5000+{HALF}");
    let words = ["put", "--range", &range, "--into", "7000", "part", &to];
    let mut moving = Moving::start(&place, &[&words[..], &["--limit", LIMIT]].concat());
    let safe = until_safe(&mut moving, 8 << 20);
    let mut all = family(moving.child.id() as i32);
    all.push(agent.child.id() as i32);
    kill_at_once(&all);
    drop((moving, agent));
    // Its first and last bytes are others now.
    let mut expected = bytes(2 * HALF, 2);
    for at in [100, 2 * HALF - 100] {
        expected[at] ^= 1;
    }
    std::fs::write(place.path("to/image"), &expected).unwrap();
    let agent = place.agent(&place.path("to"));
    let to = agent.at(place.path("to/image"));
    let words = [
        "put", "--range", &range, "--into", "7000", "part", &to, "--json",
    ];
    let report = place.run(&words).assert_status(0).report();
    let resumed = number(&report, "resumed_bytes");
    assert!(resumed >= safe, "{resumed} of {safe}: {report:#}");
    assert_eq!(report["delivered_bytes"], HALF as u64 - resumed);
    expected[7000..7000 + HALF].copy_from_slice(&bytes(HALF + 5000, 1)[5000..]);
    assert!(std::fs::read(place.path("to/image")).unwrap() == expected);
    assert_eq!(temporary(&place.path("to")), [""; 0]);
}

/// A reader that is lost and returns goes on in the same command; one that was complete before is left alone, and counted once.
#[test]
fn a_reader_that_returns_goes_on() {
    let scene = Scene::new();
    scene.place.make_token();
    let place = &scene.place;
    let agent = || -> RunningAgent { place.agent(place.dir.path()) };
    let [writer, first, mut second] = [(); 3].map(|()| agent());
    let at = |agent: &RunningAgent| format!("127.0.0.1:{}", agent.port);
    let (small, half) = (2 * MIB, HALF);
    scene.write(&[
        scene.row("writer", &at(&writer), "half1", &format!("0 0+{half}")),
        scene.row("writer", &at(&writer), "half2", &format!("0 {half}+{half}")),
        scene.row("reader", &at(&first), "to/small", &format!("0 0+{small}")),
        scene.row(
            "reader",
            &at(&second),
            "to/half",
            &format!("0 {half}+{half}"),
        ),
    ]);
    let mut moving = Moving::start(place, &["transfer", "--limit", "40Mbit", "spec"]);
    let safe = until_safe(&mut moving, (small + 2 * MIB) as u64);
    second.kill();
    // The first reader goes on until it is complete.
    let waiting = moving.event("waiting");
    let name = waiting["awaited"][0].as_str().unwrap();
    assert!(name.ends_with(&second.port.to_string()), "{waiting:#}");
    let written = std::fs::metadata(place.path("to/small")).unwrap();
    second = place.agent_at(place.dir.path(), second.port);
    moving.event("returned");
    let (status, report) = moving.end();
    assert_eq!(status, 0, "{report:#}");
    let total = (small + half) as u64;
    assert_eq!(report["wanted_bytes"], total, "{report:#}");
    assert_eq!(report["delivered_bytes"], total, "{report:#}");
    // Of the first round only what the first reader had is known.
    let pairs = report["pairs"].as_array().unwrap().iter();
    let moved: u64 = pairs.map(|pair| pair["bytes"].as_u64().unwrap()).sum();
    assert!(moved <= total - (safe - small as u64), "{report:#}");
    let is_same = |path: &str, all: Vec<u8>| std::fs::read(place.path(path)).unwrap() == all;
    assert!(is_same("to/small", bytes(HALF, 1)[..small].to_vec()));
    assert!(is_same("to/half", bytes(HALF, 2)));
    let now = std::fs::metadata(place.path("to/small")).unwrap();
    let changed = |file: &std::fs::Metadata| file.modified().unwrap();
    assert_eq!(changed(&written), changed(&now), "it is not sent again");
    assert_eq!(temporary(&place.path("to")), [""; 0]);
    drop(second);
}
