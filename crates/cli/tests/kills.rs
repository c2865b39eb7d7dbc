//! A random process of a transfer is killed at a random moment, and the same command is run again, until the copy is complete: a new
//! one, one over an older tree, whose files get their names while it runs, and one file that two receivers write together by rows.
//!
//! Prints what was sent twice. A longer run, of 2 GiB and 100,000 files with 300 kills; the last run has no limit:
//!
//! ```text
//! ROPEWALK_KILLS=300,2048,100000,40Mbit,3500 cargo test -p ropewalk-cli --test kills -- --nocapture
//! ```
//!
//! Where a receiver, or a sender, is killed without which the others could go on, the command is killed some time later.

mod common;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
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
fn make_set(place: &Place, size: &Size) -> u64 {
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
    fn start(place: &Place, args: &[String], total: u64) -> Self {
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

/// Parts of one file; how many bytes together.
fn make_parts(place: &Place, size: &Size) -> u64 {
    for folder in ["from", "fs"] {
        std::fs::create_dir(place.path(folder)).unwrap();
    }
    let len = (size.large_mib / PARTS) << 20;
    for part in 0..PARTS {
        std::fs::write(part_path(place, part), bytes(len, part as u64 + 7)).unwrap();
    }
    (len * PARTS) as u64
}

fn part_path(place: &Place, part: usize) -> PathBuf {
    place.path(&format!("from/part{part}"))
}

/// Senders of one file, with a part each.
const PARTS: usize = 3;

/// Receivers of one file.
const SHARERS: usize = 2;

/// What is made again and again until it is complete.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// A new copy of a tree.
    Copy,
    /// The copy of a tree over an older one.
    Refresh,
    /// A file that several receivers write together: each wants all of it, or a part, from one run to the next.
    SharedRows,
}

/// A transfer, and its agents.
struct Scene {
    place: Place,
    kind: Kind,
    total: u64,
    senders: Vec<RunningAgent>,
    receivers: Vec<RunningAgent>,
}

impl Scene {
    fn new(kind: Kind, size: &Size) -> Self {
        let place = Place::new();
        place.make_token();
        let total = match kind {
            Kind::Copy | Kind::Refresh => make_set(&place, size),
            Kind::SharedRows => make_parts(&place, size),
        };
        if kind == Kind::Refresh {
            make_older(&place, size);
        }
        let (senders, receivers) = match kind {
            Kind::Copy | Kind::Refresh => (1, 1),
            Kind::SharedRows => (PARTS, SHARERS),
        };
        let agents = |count| (0..count).map(|_| place.agent(place.dir.path())).collect();
        Self {
            senders: agents(senders),
            receivers: agents(receivers),
            kind,
            total,
            place,
        }
    }

    /// What a run copies, as the command has it.
    fn objects(&self, random: &mut Random) -> Vec<String> {
        if self.kind == Kind::SharedRows {
            self.write_rows(random.below(2) == 0);
            return vec!["transfer".into(), "spec".into()];
        }
        let from = self.senders[0].at(self.place.path("set"));
        let to = self.receivers[0].at(self.place.path("copy"));
        vec!["copy".into(), from, to]
    }

    /// * `together`: each receiver wants all bytes.
    fn write_rows(&self, together: bool) {
        let row =
            |kind: &str, agent: &RunningAgent, file: &Path, start: u64, end: u64, rest: &str| {
                let (port, file, len) = (agent.port, file.display(), end - start);
                format!("{kind} 127.0.0.1:{port} {file} {rest} {start}+{len}")
            };
        let mut rows = Vec::new();
        let cut = |at: usize, of: usize| self.total / of as u64 * at as u64;
        for (part, sender) in self.senders.iter().enumerate() {
            let (start, end) = (cut(part, PARTS), cut(part + 1, PARTS));
            rows.push(row(
                "writer",
                sender,
                &part_path(&self.place, part),
                start,
                end,
                "0",
            ));
        }
        for (at, receiver) in self.receivers.iter().enumerate() {
            let (start, end) = match together {
                true => (0, self.total),
                false => (cut(at, SHARERS), cut(at + 1, SHARERS)),
            };
            let whole = self.place.path("fs/whole");
            let offset = start.to_string();
            rows.push(row("reader", receiver, &whole, start, end, &offset) + " dest=one");
        }
        std::fs::write(self.place.path("spec"), rows.join("\n")).unwrap();
    }

    /// Kills one of the agents of a side, and starts another one in its place.
    fn replace(&mut self, is_sender: bool, random: &mut Random) {
        let agents = match is_sender {
            true => &mut self.senders,
            false => &mut self.receivers,
        };
        let at = random.below(agents.len() as u64) as usize;
        agents[at].kill();
        agents[at] = self.place.agent(self.place.dir.path());
    }

    #[track_caller]
    fn assert_complete(&self, size: &Size) {
        let path = |name: &str| self.place.path(name);
        assert_eq!(temporary(self.place.dir.path()), [""; 0]);
        if self.kind == Kind::SharedRows {
            let parts = (0..PARTS).map(|part| std::fs::read(part_path(&self.place, part)).unwrap());
            let parts = parts.collect::<Vec<_>>().concat();
            assert!(std::fs::read(path("fs/whole")).unwrap() == parts);
            assert_eq!(temporary(&path("fs")), [""; 0]);
            return;
        }
        // Folders that are there keep their times, and a run that was killed has changed them.
        for folder in std::iter::once(String::new()).chain(folders(size)) {
            let time = path("set").join(&folder).metadata().unwrap().modified();
            let copy = std::fs::File::open(path("copy").join(&folder)).unwrap();
            copy.set_modified(time.unwrap()).unwrap();
        }
        assert_same_tree(&path("set"), &path("copy"));
        assert_eq!(temporary(&path("copy")), [""; 0]);
    }
}

#[test]
fn a_copy_outlives_kills_at_random_moments() {
    outlive_kills(Kind::Copy);
}

#[test]
fn a_refresh_outlives_kills_at_random_moments() {
    outlive_kills(Kind::Refresh);
}

#[test]
fn shared_rows_outlive_kills_at_random_moments() {
    outlive_kills(Kind::SharedRows);
}

/// Processes that were killed: commands, senders, receivers.
#[derive(Debug, Default)]
struct Killed([u64; 3]);

impl Killed {
    fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Any of the kinds of which least were killed.
    fn next_kind(&self, random: &mut Random) -> usize {
        let least = self.0.iter().min().copied().unwrap_or(0);
        let kinds: Vec<usize> = (0..3).filter(|kind| self.0[*kind] == least).collect();
        kinds[random.below(kinds.len() as u64) as usize]
    }
}

/// Waits for a random time, at most until a command has ended. Whether it runs.
fn runs_on(run: &mut Run, size: &Size, random: &mut Random) -> bool {
    let until = Instant::now() + size.span.mul_f64(random.below(1000) as f64 / 1000.0);
    while Instant::now() < until && !run.has_ended() {
        std::thread::sleep(Duration::from_millis(5));
    }
    !run.has_ended()
}

/// Runs the command once, and kills one of its processes, or two. Which it killed first.
fn run_once(
    scene: &mut Scene,
    size: &Size,
    random: &mut Random,
    killed: &mut Killed,
) -> (Said, i32, Option<usize>) {
    let is_killed = killed.count() < size.kills;
    let mut args = scene.objects(random);
    args.extend(["--json", "--wait", "0"].map(String::from));
    if is_killed {
        args.extend(["--limit".into(), size.limit.clone()]);
    }
    let mut run = Run::start(&scene.place, &args, scene.total);
    let is_killed = is_killed && runs_on(&mut run, size, random);
    let victim = is_killed.then(|| killed.next_kind(random));
    if let Some(victim) = victim {
        killed.0[victim] += 1;
        match victim {
            0 => run.child.kill().unwrap(),
            _ => scene.replace(victim == 1, random),
        }
        // The others may go on.
        if victim > 0 && killed.count() < size.kills && runs_on(&mut run, size, random) {
            killed.0[0] += 1;
            run.child.kill().unwrap();
        }
    }
    let (said, status) = run.end();
    (said, status, victim)
}

fn outlive_kills(kind: Kind) {
    let size = Size::chosen();
    let mut scene = Scene::new(kind, &size);
    let total = scene.total;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut account, mut killed) = (Account::default(), Killed::default());
    let (mut runs, mut before) = (0, None);
    let report = loop {
        runs += 1;
        assert!(runs <= size.kills * 3 + 10, "{account:?}");
        let lost = account.lost;
        let (said, status, victim) = run_once(&mut scene, &size, &mut random, &mut killed);
        account.add(&said);
        if account.lost > lost + KEPT_MIN_FAILED {
            let lost = account.lost - lost;
            println!(
                "run {runs}: {lost} safe bytes were lost by the run before, which lost {before:?}"
            );
        }
        before = victim;
        if status == 0 {
            break said.report.unwrap();
        }
    };
    let landing = &report["landing"];
    let there = ["resumed_bytes", "unchanged_bytes"].map(|key| landing[key].as_u64().unwrap());
    let last = report["delivered_bytes"].as_u64().unwrap();
    assert_eq!(there.iter().sum::<u64>() + last, total);
    let percent = |bytes: u64| bytes as f64 * 100.0 / total as f64;
    let [commands, senders, receivers] = killed.0;
    println!(
        "{kind:?}: {} kills (command {commands}, sender {senders}, receiver {receivers}) in {runs} runs of {total} bytes: {} bytes \
         received, {:.2} % twice; {} bytes ({:.3} %) were safe before",
        killed.count(),
        account.sent,
        percent(account.sent.saturating_sub(total)),
        account.lost,
        percent(account.lost),
    );
    assert!(killed.count() > 0);
    scene.assert_complete(&size);
    assert!(account.lost <= runs * KEPT_MIN_FAILED, "{account:?}");
}
