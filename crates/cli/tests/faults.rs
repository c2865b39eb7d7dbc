//! Real processes killed while they move: what completes, what is reported, what is left behind.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

/// Slow enough that every transfer is still moving when the test acts on it.
const LIMIT: &str = "100Mbit";
const LENGTH: usize = 48 << 20;

/// A standing agent with a folder of its own; killed when dropped.
struct Agent {
    child: Child,
    port: u16,
    root: PathBuf,
}

impl Agent {
    fn start(dir: &Path, name: &str) -> Self {
        let root = dir.join(name);
        std::fs::create_dir_all(&root).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_ropewalk"))
            .args(["agent", "--listen", "127.0.0.1:0", "--token-file"])
            .arg(dir.join("token"))
            .arg("--root")
            .arg(format!("{}:rw", root.display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let port = line
            .trim()
            .rsplit(':')
            .next()
            .and_then(|p| p.parse().ok())
            .unwrap_or_else(|| panic!("no port in {line:?}"));
        Self { child, port, root }
    }

    fn at(&self, name: &str) -> String {
        format!("127.0.0.1:{}:{}", self.port, self.root.join(name).display())
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn names(&self) -> Vec<String> {
        names(&self.root)
    }

    /// The one temporary name beside its journal.
    fn temporary(&self) -> PathBuf {
        let names = self.names();
        let mut others = names.iter().filter(|name| !name.ends_with(".journal"));
        self.root.join(others.next().unwrap())
    }
}

fn names(folder: &Path) -> Vec<String> {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .collect()
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Scene {
    dir: tempfile::TempDir,
    data: Vec<u8>,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let made = Command::new(env!("CARGO_BIN_EXE_ropewalk"))
            .args(["agent", "--new-token"])
            .arg(dir.path().join("token"))
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let mut state = 1u64;
        let data = (0..LENGTH)
            .map(|_| {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                (state >> 56) as u8
            })
            .collect();
        Self { dir, data }
    }

    /// An agent that holds the file; all replicas carry the same time.
    fn replica(&self, name: &str) -> Agent {
        let agent = Agent::start(self.dir.path(), name);
        let path = agent.root.join("set");
        std::fs::write(&path, &self.data).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        std::fs::File::open(&path)
            .unwrap()
            .set_modified(time)
            .unwrap();
        agent
    }

    fn receiver(&self, name: &str) -> Agent {
        Agent::start(self.dir.path(), name)
    }

    /// An agent that holds a tree of three files, the last of which is overtaken by events.
    fn tree(&self, name: &str) -> Agent {
        let agent = Agent::start(self.dir.path(), name);
        std::fs::create_dir(agent.root.join("big")).unwrap();
        for (at, part) in self.data.chunks(LENGTH / 3).enumerate() {
            let path = agent.root.join("big").join(format!("f{at}"));
            std::fs::write(path, part).unwrap();
        }
        agent
    }

    fn copy(&self, ends: &[String]) -> Copy {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ropewalk"))
            .args(["copy", "--json", "--wait", "0", "--limit", LIMIT])
            .arg("--token-file")
            .arg(self.dir.path().join("token"))
            .args(ends)
            .env("XDG_RUNTIME_DIR", self.dir.path())
            .env("XDG_STATE_HOME", self.dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let events = BufReader::new(child.stdout.take().unwrap());
        Copy { child, events }
    }
}

struct Copy {
    child: Child,
    events: BufReader<ChildStdout>,
}

impl Copy {
    fn event(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.events.read_line(&mut line).unwrap();
        (!line.is_empty())
            .then(|| serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e} in {line:?}")))
    }

    /// Reads events until so many bytes are delivered.
    fn until_delivered(&mut self, bytes: u64) {
        loop {
            let event = self.event().expect("the transfer still runs");
            assert_ne!(event["event"], "ended", "it ended too early: {event}");
            if event["event"] == "progress" && event["delivered_bytes"].as_u64() >= Some(bytes) {
                return;
            }
        }
    }

    /// Exit status and report.
    fn end(mut self) -> (Option<i32>, Value) {
        let mut report = Value::Null;
        while let Some(event) = self.event() {
            if event["event"] == "ended" {
                report = event["report"].clone();
            }
        }
        let status = self.child.wait().unwrap().code();
        let mut said = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert!(!report.is_null(), "no report; {said}");
        (status, report)
    }
}

fn missing(report: &Value) -> u64 {
    let all = report["missing"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|r| r.as_array().unwrap());
    all.map(|r| r[1].as_u64().unwrap() - r[0].as_u64().unwrap())
        .sum()
}

/// One of two replicas is killed at half way: the other carries on, and every byte arrives.
#[test]
fn a_killed_replica_is_replaced() {
    let scene = Scene::new();
    let (mut a, b, c) = (scene.replica("a"), scene.replica("b"), scene.receiver("c"));
    let mut copy = scene.copy(&[a.at("set"), b.at("set"), c.at("copy")]);
    copy.until_delivered(LENGTH as u64 / 2);
    a.kill();
    let (status, report) = copy.end();
    assert_eq!(status, Some(0), "{report:#}");
    assert!(std::fs::read(c.root.join("copy")).unwrap() == scene.data);
    assert!(
        report["notes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|n| n.as_str().unwrap().contains("lost")),
        "{report:#}"
    );
}

/// The only holder is killed: the report names exactly what is missing, and no file takes the name.
#[test]
fn a_killed_sole_holder_makes_it_partial() {
    let scene = Scene::new();
    let (mut a, c) = (scene.replica("a"), scene.receiver("c"));
    let mut copy = scene.copy(&[a.at("set"), c.at("copy")]);
    copy.until_delivered(LENGTH as u64 / 4);
    a.kill();
    let (status, report) = copy.end();
    assert_eq!(status, Some(3), "{report:#}");
    let delivered = report["delivered_bytes"].as_u64().unwrap();
    assert!(delivered >= LENGTH as u64 / 4 && delivered < LENGTH as u64);
    assert_eq!(delivered + missing(&report), LENGTH as u64, "{report:#}");
    // What is safe waits for the next run, with its journal.
    assert_eq!(c.names().len(), 2, "{report:#}");
    assert_eq!(report["left"].as_array().map(Vec::len), Some(1));
    assert_eq!(report["left"][0]["resumable"], true);
    assert_eq!(report["left"][0]["bytes"], delivered, "{report:#}");
    let file = &report["missing_files"][0];
    assert_eq!(file["file"], "set", "{report:#}");
    assert_eq!(file["bytes"].as_u64(), Some(missing(&report)));
}

/// One of two receivers is killed: the other gets its copy, the command fails and says who.
#[test]
fn a_killed_receiver_costs_only_its_own_copy() {
    let scene = Scene::new();
    let (a, mut c, d) = (scene.replica("a"), scene.receiver("c"), scene.receiver("d"));
    // Two destinations of one command differ in their port here, so they are given as two hosts.
    let spec = scene.dir.path().join("two.cep");
    let row = |role: &str, agent: &Agent, name: &str| {
        format!(
            "{role} 127.0.0.1:{} \"file://{}\" 0 0-{}\n",
            agent.port,
            agent.root.join(name).display(),
            LENGTH - 1
        )
    };
    std::fs::write(
        &spec,
        [
            row("writer", &a, "set"),
            row("reader", &c, "copy"),
            row("reader", &d, "copy"),
        ]
        .concat(),
    )
    .unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_ropewalk"))
        .args(["transfer", "--json", "--wait", "0"])
        .args(["--limit", "200Mbit", "--token-file"])
        .arg(scene.dir.path().join("token"))
        .arg(&spec)
        .env("XDG_RUNTIME_DIR", scene.dir.path())
        .env("XDG_STATE_HOME", scene.dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let events = BufReader::new(child.stdout.take().unwrap());
    let mut transfer = Copy { child, events };
    transfer.until_delivered(LENGTH as u64 / 2);
    c.kill();
    let (status, report) = transfer.end();
    assert_eq!(status, Some(1), "{report:#}");
    assert!(std::fs::read(d.root.join("copy")).unwrap() == scene.data);
    assert!(
        report["error"]
            .as_str()
            .unwrap()
            .contains(&c.port.to_string()),
        "{report:#}"
    );
    // What the dead one has left is named, and the other copy is called complete.
    let left = report["left"][0]["path"].as_str().unwrap();
    assert_eq!(left, c.temporary().to_str().unwrap());
    assert_eq!(report["left"][0]["certain"], false);
    let complete = report["destinations"].as_array().unwrap().iter();
    assert_eq!(complete.filter(|one| one["complete"] == true).count(), 1);
    assert_eq!(report["error_kind"], "lost");
}

/// An interrupted command ends, leaves nothing behind, and the agents serve the next one.
#[test]
fn interrupting_leaves_nothing_behind() {
    let scene = Scene::new();
    let (a, c) = (scene.replica("a"), scene.receiver("c"));
    let mut copy = scene.copy(&[a.at("set"), c.at("copy")]);
    copy.until_delivered(LENGTH as u64 / 4);
    assert!(
        Command::new("kill")
            .args(["-INT", &copy.child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    let (status, report) = copy.end();
    assert_eq!(status, Some(130), "{report:#}");
    // The agent removes its temporary file as soon as the word reaches it.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !c.names().is_empty() {
        assert!(
            std::time::Instant::now() < deadline,
            "left behind: {:?}",
            c.names()
        );
        std::thread::yield_now();
    }
    let (status, report) = scene.copy(&[a.at("set"), c.at("copy")]).end();
    assert_eq!(status, Some(0), "{report:#}");
}

/// A master that is killed takes its agents' part of the transfer with it, and only that: the next run waits for its end and goes on.
#[test]
fn a_killed_master_stops_its_agents_work() {
    let scene = Scene::new();
    let (a, c) = (scene.replica("a"), scene.receiver("c"));
    let mut copy = scene.copy(&[a.at("set"), c.at("copy")]);
    copy.until_delivered(LENGTH as u64 / 4);
    copy.child.kill().unwrap();
    copy.child.wait().unwrap();
    let (status, report) = scene.copy(&[a.at("set"), c.at("copy")]).end();
    assert_eq!(status, Some(0), "{report:#}");
    let resumed = report["landing"]["resumed_bytes"].as_u64().unwrap();
    assert!(resumed >= LENGTH as u64 / 4, "{report:#}");
    assert!(std::fs::read(c.root.join("copy")).unwrap() == scene.data);
    assert_eq!(c.names(), ["copy"]);
}

/// Of two receivers that write one copy together, one is killed: the other writes the rest too.
#[test]
fn a_killed_receiver_of_a_shared_destination_is_inherited() {
    let scene = Scene::new();
    let (a, mut c, d) = (
        scene.replica("a"),
        scene.receiver("fs"),
        scene.receiver("fs"),
    );
    let mut copy = scene.copy(&[
        "--destinations=shared".into(),
        a.at("set"),
        format!("--also-to={}", c.at("copy")),
        d.at("copy"),
    ]);
    copy.until_delivered(LENGTH as u64 / 2);
    c.kill();
    let (status, report) = copy.end();
    assert_eq!(status, Some(0), "{report:#}");
    assert!(std::fs::read(d.root.join("copy")).unwrap() == scene.data);
    assert_eq!(report["delivered_bytes"], LENGTH, "{report:#}");
}

/// A source that is written to while it is read is read again, and copied as it is then. Where a further round would find nothing of the
/// first one there is no copy at all, and the report names it, not once for each unit.
#[test]
fn a_source_that_changes_is_read_again() {
    for option in [None, Some("--check=none")] {
        let scene = Scene::new();
        let (a, c) = (scene.replica("a"), scene.receiver("c"));
        let mut ends = vec![a.at("set"), c.at("copy")];
        ends.extend(option.map(str::to_owned));
        let mut copy = scene.copy(&ends);
        copy.until_delivered(LENGTH as u64 / 4);
        std::fs::write(a.root.join("set"), vec![7; LENGTH]).unwrap();
        let (status, report) = copy.end();
        let notes = report["notes"].as_array().unwrap().iter();
        let refused: Vec<String> = notes
            .map(ToString::to_string)
            .filter(|note| note.contains("copy again when nothing"))
            .collect();
        if option.is_none() {
            assert_eq!(status, Some(0), "{report:#}");
            assert!(std::fs::read(c.root.join("copy")).unwrap() == vec![7; LENGTH]);
            assert_eq!(refused, [""; 0]);
            continue;
        }
        assert_eq!(status, Some(3), "{report:#}");
        assert_eq!(c.names(), [""; 0], "{report:#}");
        // Both of what a node may see: a file that was cut off, and one that is written to.
        assert!((1..=2).contains(&refused.len()), "{refused:?}");
    }
}

/// Changes a file again and again, until it is dropped.
struct Toucher(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl Toucher {
    /// Gives it another time.
    fn of(path: PathBuf) -> Self {
        Self::with(path, |file| {
            file.set_modified(std::time::SystemTime::now()).unwrap();
        })
    }

    /// Appends to it.
    fn appending(path: PathBuf) -> Self {
        Self::with(path, |mut file| file.write_all(b"line\n").unwrap())
    }

    fn with(path: PathBuf, change: fn(&File)) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = is_over.clone();
        let file = File::options().append(true).open(path).unwrap();
        let work = move || {
            while !seen.load(Ordering::Relaxed) {
                change(&file);
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        Self(is_over, Some(std::thread::spawn(work)))
    }
}

impl Drop for Toucher {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        if let Some(thread) = self.1.take() {
            let _ = thread.join();
        }
    }
}

/// One file of a tree that keeps changing is named with the reason, once, in notes, error and missing files; its holder answered,
/// so that nothing says it could not be reached. The other files have their names; all is removed, or kept, on request, and
/// then the place is told.
#[test]
fn a_file_that_changes_is_named() {
    for option in [None, Some("--atomic"), Some("--keep-partial")] {
        let scene = Scene::new();
        let (a, c) = (scene.tree("a"), scene.receiver("c"));
        let mut ends = vec![a.at("big"), c.at("copy")];
        ends.extend(option.map(str::to_owned));
        let mut copy = scene.copy(&ends);
        copy.until_delivered(LENGTH as u64 / 8);
        let toucher = Toucher::of(a.root.join("big/f2"));
        let (status, report) = copy.end();
        drop(toucher);
        assert_eq!(status, Some(3), "{report:#}");
        let files = report["missing_files"].as_array().unwrap();
        assert_eq!(files.len(), 1, "{report:#}");
        assert_eq!(files[0]["file"], "big/f2");
        let reason = files[0]["reason"].as_str().unwrap();
        assert!(reason.starts_with("it changed"), "{reason}");
        let error = report["error"].as_str().unwrap();
        assert!(
            error.starts_with("big/f2 was not copied: it changed"),
            "{error}"
        );
        assert_eq!(report["error_kind"], "missing");
        let notes = report["notes"].as_array().unwrap();
        assert_eq!(notes.len(), 1, "{notes:#?}");
        let note = notes[0].as_str().unwrap();
        assert!(
            note.contains("refused by") && note.contains("big/f2"),
            "{note}"
        );
        let left = report["left"].as_array().unwrap();
        assert_eq!(report["destinations"][0]["complete"], false);
        match option {
            None => {
                assert_eq!(
                    (left.len(), c.names()),
                    (0, vec!["copy".to_owned()]),
                    "{report:#}"
                );
                let (mut from, mut to) = (names(&a.root.join("big")), names(&c.root.join("copy")));
                from.sort();
                to.sort();
                from.retain(|name| name != "f2");
                assert_eq!(from, to);
                for name in &to {
                    let read = |root: &Path| std::fs::read(root.join(name)).unwrap();
                    assert!(
                        read(&a.root.join("big")) == read(&c.root.join("copy")),
                        "{name}"
                    );
                }
                assert_eq!(report["destinations"][0]["files"], to.len());
            }
            // The other files, with their journal.
            Some("--atomic") => {
                assert_eq!((left.len(), c.names().len()), (1, 2), "{report:#}");
                assert_eq!(left[0]["resumable"], true);
            }
            Some(_) => {
                let place = c.temporary();
                assert_eq!(left[0]["path"].as_str(), place.to_str());
                assert_eq!(left[0]["certain"], true);
            }
        }
    }
}

/// A file that a program appends to all the time is copied as it was when it was scanned, the second time, and named; where the copy is to be
/// whole or not at all it is missing. Alone, and among others.
#[test]
fn a_file_that_grows_is_copied_as_it_was() {
    for (of, option) in [("big", None), ("big/f2", None), ("big", Some("--atomic"))] {
        let scene = Scene::new();
        let (a, c) = (scene.tree("a"), scene.receiver("c"));
        let grown = a.root.join("big/f2");
        let before = std::fs::read(&grown).unwrap();
        let appending = Toucher::appending(grown.clone());
        let mut ends = vec![a.at(of), c.at("copy")];
        ends.extend(option.map(str::to_owned));
        let (status, report) = scene.copy(&ends).end();
        drop(appending);
        if option.is_some() {
            assert_eq!(status, Some(3), "{report:#}");
            assert_eq!(report["missing_files"][0]["file"], "big/f2");
            assert_eq!(report["grown"].as_array().unwrap().len(), 0);
            continue;
        }
        assert_eq!(status, Some(0), "{report:#}");
        let name = Path::new(of).file_name().unwrap().to_str().unwrap();
        let (file, copied) = match name {
            "big" => ("big/f2", c.root.join("copy/f2")),
            _ => ("f2", c.root.join("copy")),
        };
        let copied = std::fs::read(copied).unwrap();
        let now = std::fs::read(&grown).unwrap();
        assert!(copied.len() >= before.len() && now.starts_with(&copied));
        let named = report["grown"].as_array().unwrap();
        assert_eq!(named.len(), 1, "{report:#}");
        assert_eq!(named[0]["file"], file, "{report:#}");
        let notes = report["notes"].as_array().unwrap();
        assert_eq!(notes.len(), 1, "{notes:#?}");
        let note = notes[0].as_str().unwrap();
        assert!(
            note.starts_with("grew while") && note.ends_with(file),
            "{note}"
        );
        assert_eq!(report["destinations"][0]["complete"], true);
    }
}

/// An agent that has served many transfers holds no more open files than one that served few.
#[test]
fn transfers_leave_no_open_files() {
    let scene = Scene::new();
    let (a, c) = (scene.receiver("a"), scene.receiver("c"));
    std::fs::write(a.root.join("small"), "x").unwrap();
    let open = |agent: &Agent| {
        std::fs::read_dir(format!("/proc/{}/fd", agent.child.id()))
            .unwrap()
            .count()
    };
    let mut counts = Vec::new();
    for round in 0..12 {
        let (status, report) = scene
            .copy(&[a.at("small"), c.at(&format!("copy{round}"))])
            .end();
        assert_eq!(status, Some(0), "{report:#}");
        counts.push(open(&a) + open(&c));
    }
    // The last transfer's connections may still be closing.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while open(&a) + open(&c) > counts[1] {
        assert!(std::time::Instant::now() < deadline, "{counts:?}");
        std::thread::yield_now();
    }
}
