//! A random process of a transfer is killed at a random moment, and the same command is run again, until the copy is complete: a new
//! one, and one over an older tree, whose files get their names while it runs.
//!
//! Prints what was sent twice. A longer run, of 2 GiB and 100,000 files with 300 kills; the last run has no limit:
//!
//! ```text
//! ROPEWALK_KILLS=300,2048,100000,40Mbit,3500 cargo test -p ropewalk-cli --test kills -- --nocapture
//! ```

mod common;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::processes::temporary;
use common::{Place, RunningAgent, assert_same_tree, bytes, wait_for};
use serde_json::Value;

/// What is kept of partial files where a transfer fails has at least so many bytes.
const KEPT_MIN_FAILED: u64 = 1 << 20;

struct Size {
    kills: u64,
    large_mib: usize,
    files: usize,
    limit: String,
    /// Longest time from the start of a command to the kill: a sync is due each second.
    span: Duration,
}

impl Size {
    fn chosen() -> Self {
        let text = std::env::var("ROPEWALK_KILLS");
        let text = text.unwrap_or_else(|_| "6,48,300,80Mbit,1800".into());
        let parts: Vec<&str> = text.split(',').collect();
        Self {
            kills: parts[0].parse().unwrap(),
            large_mib: parts[1].parse().unwrap(),
            files: parts[2].parse().unwrap(),
            limit: parts[3].into(),
            span: Duration::from_millis(parts[4].parse().unwrap()),
        }
    }
}

/// Small numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

fn folders(size: &Size) -> impl Iterator<Item = String> {
    (0..size.files.div_ceil(100)).map(|folder| format!("d{folder}"))
}

/// A tree of large and small files; how many bytes.
fn make_tree(place: &Place, size: &Size) -> u64 {
    let mut total = 0;
    let mut write = |path: String, len: usize, seed: u64| {
        std::fs::write(place.path(&path), bytes(len, seed)).unwrap();
        total += len as u64;
    };
    for folder in folders(size) {
        std::fs::create_dir_all(place.path("set").join(folder)).unwrap();
    }
    for file in 0..size.files {
        let path = format!("set/d{}/f{file}", file / 100);
        write(path, file * 7919 % 6000, file as u64);
    }
    for large in 0..4 {
        write(
            format!("set/large{large}"),
            (size.large_mib / 4) << 20,
            large as u64 + 7,
        );
    }
    total
}

/// What a command has said so far.
#[derive(Clone, Debug, Default)]
struct Said {
    safe: u64,
    received: u64,
    /// Of all runs before; `None` before any byte was received.
    there: Option<u64>,
    report: Option<Value>,
}

struct Run {
    child: Child,
    said: Arc<Mutex<Said>>,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Run {
    fn start(place: &Place, args: &[&str], total: u64) -> Self {
        let mut command = place.command();
        command
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = Arc::new(Mutex::new(Said::default()));
        let shared = said.clone();
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let Ok(event) = serde_json::from_str::<Value>(&line) else {
                    continue;
                };
                let number = |key: &str| event[key].as_u64().unwrap_or(0);
                let mut said = shared.lock().unwrap();
                if event["event"] == "progress" && number("received_bytes") > 0 {
                    said.safe = number("delivered_bytes");
                    said.received = number("received_bytes");
                    said.there = Some(total - number("total_bytes"));
                } else if event["event"] == "ended" {
                    let report = event["report"].clone();
                    let landing = &report["landing"];
                    let bytes = |value: &Value| value.as_u64().unwrap_or(0);
                    let there =
                        ["resumed_bytes", "unchanged_bytes"].map(|key| bytes(&landing[key]));
                    let there = there.iter().sum::<u64>();
                    // A run that ended before its receiver looked knows of nothing.
                    said.there = said.there.or((there > 0).then_some(there));
                    said.safe = said.safe.max(bytes(&report["delivered_bytes"]));
                    said.received = said.received.max(said.safe);
                    said.report = Some(report);
                }
            }
        });
        Self {
            child,
            said,
            reader: Some(reader),
        }
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// All that it said, once it has ended.
    fn end(mut self) -> (Said, i32) {
        wait_for("the command to end", || self.has_ended().then_some(()));
        let status = self.child.wait().unwrap().code().unwrap_or(-1);
        self.reader.take().unwrap().join().unwrap();
        (self.said.lock().unwrap().clone(), status)
    }
}

/// What was sent in all runs.
#[derive(Debug, Default)]
struct Account {
    sent: u64,
    /// Bytes that a run called safe and a later one received again.
    lost: u64,
    expected: u64,
    /// All that was received, safe or not, as far as it was seen.
    seen: u64,
}

impl Account {
    fn add(&mut self, said: &Said) {
        self.sent += said.received;
        if let Some(there) = said.there {
            // What was received after the last report of a run shows when the next one has it.
            self.sent += there.saturating_sub(self.seen);
            self.lost += self.expected.saturating_sub(there);
            self.expected = there + said.safe;
            self.seen = there + said.received;
        }
    }
}

/// An older copy of the tree: other contents of other lengths, in folders that are there.
fn make_older(place: &Place, size: &Size) {
    for folder in folders(size) {
        std::fs::create_dir_all(place.path("copy").join(folder)).unwrap();
    }
    for file in 0..size.files {
        let path = place.path(&format!("copy/d{}/f{file}", file / 100));
        std::fs::write(path, bytes(file * 7919 % 6000 + 1, file as u64 + 1)).unwrap();
    }
    for large in 0..4 {
        std::fs::write(place.path(&format!("copy/large{large}")), b"older").unwrap();
    }
}

#[test]
fn a_copy_outlives_kills_at_random_moments() {
    outlive_kills(false);
}

#[test]
fn a_refresh_outlives_kills_at_random_moments() {
    outlive_kills(true);
}

/// * `is_refresh`: the copy is made over an older one.
fn outlive_kills(is_refresh: bool) {
    let size = Size::chosen();
    let place = Place::new();
    place.make_token();
    let total = make_tree(&place, &size);
    if is_refresh {
        make_older(&place, &size);
    }
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let agent = || -> RunningAgent { place.agent(place.dir.path()) };
    let (mut sender, mut receiver) = (agent(), agent());
    let mut account = Account::default();
    let mut killed = [0_u64; 3];
    let (mut runs, mut before) = (0, None);
    let report = loop {
        runs += 1;
        assert!(runs <= size.kills * 3 + 10, "{account:?}");
        let (from, to) = (
            sender.at(place.path("set")),
            receiver.at(place.path("copy")),
        );
        let is_killed = killed.iter().sum::<u64>() < size.kills;
        let mut args = vec!["copy", "--json", "--wait", "0"];
        if is_killed {
            args.extend(["--limit", &size.limit]);
        }
        args.extend([from.as_str(), to.as_str()]);
        let mut run = Run::start(&place, &args, total);
        let until = Instant::now() + size.span.mul_f64(random.below(1000) as f64 / 1000.0);
        while is_killed && Instant::now() < until && !run.has_ended() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let victim = (is_killed && !run.has_ended()).then(|| random.below(3) as usize);
        if let Some(victim) = victim {
            killed[victim] += 1;
            match victim {
                0 => run.child.kill().unwrap(),
                1 => sender.child.kill().unwrap(),
                _ => receiver.child.kill().unwrap(),
            }
        }
        let (said, status) = run.end();
        let lost = account.lost;
        account.add(&said);
        if account.lost > lost + KEPT_MIN_FAILED {
            let lost = account.lost - lost;
            println!(
                "run {runs}: {lost} safe bytes were lost by the run before, which lost {before:?}"
            );
        }
        before = victim;
        match victim {
            Some(1) => sender = agent(),
            Some(2) => receiver = agent(),
            _ => {}
        }
        if status == 0 {
            break said.report.unwrap();
        }
    };
    let landing = &report["landing"];
    let there = ["resumed_bytes", "unchanged_bytes"].map(|key| landing[key].as_u64().unwrap());
    let last = report["delivered_bytes"].as_u64().unwrap();
    assert_eq!(there.iter().sum::<u64>() + last, total);
    let percent = |bytes: u64| bytes as f64 * 100.0 / total as f64;
    println!(
        "{} kills (command {}, sender {}, receiver {}) in {runs} runs of {total} bytes: {} bytes received, {:.2} % twice; \
         {} bytes ({:.3} %) were safe before",
        killed.iter().sum::<u64>(),
        killed[0],
        killed[1],
        killed[2],
        account.sent,
        percent(account.sent.saturating_sub(total)),
        account.lost,
        percent(account.lost),
    );
    assert!(killed.iter().sum::<u64>() > 0);
    // Folders that are there keep their times, and a run that was killed has changed them.
    for folder in std::iter::once(String::new()).chain(folders(&size)) {
        let time = place
            .path("set")
            .join(&folder)
            .metadata()
            .unwrap()
            .modified();
        let copy = std::fs::File::open(place.path("copy").join(&folder)).unwrap();
        copy.set_modified(time.unwrap()).unwrap();
    }
    assert_same_tree(&place.path("set"), &place.path("copy"));
    assert_eq!(temporary(place.dir.path()), [""; 0]);
    assert_eq!(temporary(&place.path("copy")), [""; 0]);
    assert!(account.lost <= runs * KEPT_MIN_FAILED, "{account:?}");
}
