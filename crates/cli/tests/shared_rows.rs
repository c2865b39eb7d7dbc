//! Files that several readers of a specification write together (`dest=NAME`) go on where the last run ended, with as many readers, or
//! fewer, or more.

mod common;

use common::processes::{kill_at_once, temporary};
use common::{Moving, Place, RunningAgent, bytes};
use serde_json::Value;

const MIB: usize = 1 << 20;

/// Bytes of each half.
const HALF: usize = 18 * MIB;

/// Slow enough that every transfer is still moving when the test acts on it.
const LIMIT: &str = "80Mbit";

/// Which bytes of the file each reader wants.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Share {
    /// All of them, together.
    All,
    /// A part that no other one has.
    Part,
    /// All of them, and no other one writes the file.
    Alone,
}

/// Two writers with a half each of one file, and a folder that all readers see.
struct Scene {
    place: Place,
    writers: Vec<RunningAgent>,
}

impl Scene {
    fn new() -> Self {
        let place = Place::new();
        place.make_token();
        for folder in ["from", "fs"] {
            std::fs::create_dir_all(place.path(folder)).unwrap();
        }
        for (name, seed) in [("from/half1", 1), ("from/half2", 2)] {
            std::fs::write(place.path(name), bytes(HALF, seed)).unwrap();
        }
        let agents = (0..2).map(|_| place.agent(&place.path("from")));
        let writers = agents.collect();
        Self { place, writers }
    }

    fn readers(&self, count: usize) -> Vec<RunningAgent> {
        let folder = self.place.path("fs");
        (0..count).map(|_| self.place.agent(&folder)).collect()
    }

    fn row(&self, kind: &str, agent: &RunningAgent, file: &str, rest: &str) -> String {
        let (port, file) = (agent.port, self.place.text(file));
        format!("{kind} 127.0.0.1:{port} {file} {rest}\n")
    }

    fn write(&self, readers: &[RunningAgent], share: Share) {
        let (half, whole) = (HALF, 2 * HALF);
        let mut rows = vec![
            self.row(
                "writer",
                &self.writers[0],
                "from/half1",
                &format!("0 0+{half}"),
            ),
            self.row(
                "writer",
                &self.writers[1],
                "from/half2",
                &format!("0 {half}+{half}"),
            ),
        ];
        for (at, reader) in readers.iter().enumerate() {
            let (start, end) = match share {
                Share::Part => (whole / readers.len() * at, whole / readers.len() * (at + 1)),
                Share::All | Share::Alone => (0, whole),
            };
            let shared = if share == Share::Alone {
                ""
            } else {
                " dest=one"
            };
            let rest = format!("{start} {start}+{}{shared}", end - start);
            rows.push(self.row("reader", reader, "fs/whole", &rest));
        }
        std::fs::write(self.place.path("spec"), rows.concat()).unwrap();
    }

    fn start(&self, more: &[&str]) -> Moving {
        let words = ["transfer", "--limit", LIMIT, "spec"];
        Moving::start(&self.place, &[&words[..], more].concat())
    }

    /// Sends nothing again that was safe, and everything else; nothing temporary stays.
    #[track_caller]
    fn assert_goes_on(&self, safe: u64) {
        let ran = self.place.run(&["transfer", "--json", "spec"]);
        let report = ran.assert_status(0).report();
        let resumed = number(&report, "resumed_bytes");
        assert!(resumed >= safe, "{resumed} of {safe}: {report:#}");
        let sent = report["delivered_bytes"].as_u64().unwrap();
        assert_eq!(sent, 2 * HALF as u64 - resumed, "{report:#}");
        println!("safe {safe}, resumed {resumed}, sent {sent}");
        self.assert_whole();
    }

    #[track_caller]
    fn assert_whole(&self) {
        let halves = ["from/half1", "from/half2"];
        let halves = halves.map(|name| std::fs::read(self.place.path(name)).unwrap());
        assert!(std::fs::read(self.place.path("fs/whole")).unwrap() == halves.concat());
        assert_eq!(temporary(&self.place.path("fs")), [""; 0]);
    }
}

fn number(report: &Value, key: &str) -> u64 {
    report["landing"][key].as_u64().unwrap()
}

/// Until so much more is safe; how much is.
fn until_safe(moving: &mut Moving, bytes: u64) -> u64 {
    loop {
        let event = moving.event("progress");
        let safe = event["delivered_bytes"].as_u64().unwrap();
        if safe >= bytes {
            return safe;
        }
    }
}

fn kill_all(moving: Moving, readers: Vec<RunningAgent>) {
    let pids = readers.iter().map(|agent| agent.child.id() as i32);
    let pids: Vec<i32> = pids.chain([moving.child.id() as i32]).collect();
    kill_at_once(&pids);
}

/// All readers are killed at once, with the command: the next run sends only what was not safe, whether as many readers write the file,
/// or fewer, or more, or one for itself; and the other way round.
#[test]
fn killed_readers_go_on_in_any_number() {
    for (before, first, after, second) in [
        (2, Share::All, 2, Share::All),
        (3, Share::Part, 2, Share::Part),
        (2, Share::Part, 3, Share::All),
        (2, Share::All, 1, Share::Alone),
        (1, Share::Alone, 2, Share::Part),
    ] {
        let scene = Scene::new();
        let readers = scene.readers(before);
        scene.write(&readers, first);
        let mut moving = scene.start(&[]);
        let safe = until_safe(&mut moving, 8 << 20);
        kill_all(moving, readers);
        let shown = scene.place.text("fs/whole");
        let shown = scene.place.run(&["status", "--json", &shown]);
        let shown: Value = serde_json::from_str(&shown.assert_status(0).out()).unwrap();
        assert_eq!(shown[0]["state"], "resumable", "{shown:#}");
        assert_eq!(shown[0]["total_bytes"], 2 * HALF, "{shown:#}");
        assert!(
            shown[0]["safe_bytes"].as_u64().unwrap() >= safe,
            "{shown:#}"
        );
        let readers = scene.readers(after);
        scene.write(&readers, second);
        println!("{before} {first:?}, {after} {second:?}:");
        scene.assert_goes_on(safe);
    }
}

/// Readers are killed again and again: each byte is sent once, but for those that were not safe.
#[test]
fn readers_that_are_killed_again_and_again_go_on() {
    let scene = Scene::new();
    let mut safe = 0;
    for round in 0..3 {
        let readers = scene.readers(2 + round % 2);
        scene.write(&readers, Share::All);
        let mut moving = scene.start(&[]);
        safe += until_safe(&mut moving, 6 << 20);
        kill_all(moving, readers);
    }
    let readers = scene.readers(2);
    scene.write(&readers, Share::All);
    scene.assert_goes_on(safe);
}

/// The command alone is killed: its agents end, and the next run goes on.
#[test]
fn a_killed_command_goes_on() {
    let scene = Scene::new();
    let readers = scene.readers(2);
    scene.write(&readers, Share::All);
    let mut moving = scene.start(&[]);
    let safe = until_safe(&mut moving, 6 << 20);
    moving.child.kill().unwrap();
    drop(moving);
    scene.assert_goes_on(safe);
}

/// A reader with a part of its own is lost and returns: the same command goes on, and what was safe is not sent again.
#[test]
fn a_reader_that_returns_goes_on() {
    let scene = Scene::new();
    let mut readers = scene.readers(2);
    scene.write(&readers, Share::Part);
    let mut moving = scene.start(&[]);
    let safe = until_safe(&mut moving, 8 << 20);
    readers[1].kill();
    moving.event("waiting");
    let folder = scene.place.path("fs");
    readers[1] = scene.place.agent_at(&folder, readers[1].port);
    moving.event("returned");
    let (status, report) = moving.end();
    assert_eq!(status, 0, "{report:#}");
    assert_eq!(report["delivered_bytes"], 2 * HALF, "{report:#}");
    // Of the first round only what was safe when it ended is known.
    let pairs = report["pairs"].as_array().unwrap().iter();
    let moved: u64 = pairs.map(|pair| pair["bytes"].as_u64().unwrap()).sum();
    assert!(moved <= 2 * HALF as u64, "{moved}, safe {safe}: {report:#}");
    scene.assert_whole();
}

/// Readers of one destination that write different files: each of these gets its name.
#[test]
fn all_files_of_a_destination_get_their_names() {
    let scene = Scene::new();
    let readers = scene.readers(2);
    let rows = [
        scene.row(
            "writer",
            &scene.writers[0],
            "from/half1",
            &format!("0 0+{HALF}"),
        ),
        scene.row(
            "writer",
            &scene.writers[1],
            "from/half2",
            &format!("0 {HALF}+{HALF}"),
        ),
        scene.row(
            "reader",
            &readers[0],
            "fs/x",
            &format!("0 0+{HALF} dest=one"),
        ),
        scene.row(
            "reader",
            &readers[1],
            "fs/y",
            &format!("0 {HALF}+{HALF} dest=one"),
        ),
    ];
    std::fs::write(scene.place.path("spec"), rows.concat()).unwrap();
    let report = scene.place.run(&["transfer", "--json", "spec"]);
    let report = report.assert_status(0).report();
    for (name, half) in [("fs/x", "from/half1"), ("fs/y", "from/half2")] {
        let [made, wanted] = [name, half].map(|name| std::fs::read(scene.place.path(name)).ok());
        assert!(made == wanted, "{name}: {report:#}");
    }
    assert_eq!(temporary(&scene.place.path("fs")), [""; 0]);
}
