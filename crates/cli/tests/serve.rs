//! The queue of `ropewalk serve`: jobs, crashes, retries, limits, with real processes.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use common::serving::{Serving, hand_over, job, jobs, listed, state};
use common::{Place, assert_same_tree, bytes, make_tree, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Copies and specifications are handed over, done with the folder and the specification they were handed over with, and listed;
/// what is wrong with a command shows at once and puts nothing into the queue.
#[test]
fn jobs_are_handed_over_and_done() {
    let place = Place::new();
    make_tree(&place.path("tree"));
    std::fs::write(place.path("data"), bytes(100_000, 1)).unwrap();
    place
        .run(&["copy", "--detach", "tree", "copy"])
        .assert_status(1)
        .assert_says("no `ropewalk serve` of yours runs");
    let serving = Serving::start(&place, &[]);
    place
        .run(&["copy", "--detach", "tree", "tree"])
        .assert_status(2)
        .assert_says("is both source and destination");
    place
        .run(&["copy", "--priority", "3", "tree", "copy"])
        .assert_status(2);
    let tree = hand_over(&place, &["--label", "nightly", "tree", "copy"]);
    let spec = format!(
        "id \"one file\"\nwriter a:1 \"{}\" 0 0+100000\nreader b:1 \"{}\" 0 0+100000\n",
        place.text("data"),
        place.text("file")
    );
    std::fs::write(place.path("spec"), spec).unwrap();
    place
        .run(&["transfer", "--detach", "--start", "local", "spec"])
        .assert_status(0)
        .assert_says("job 2");
    std::fs::remove_file(place.path("spec")).unwrap();
    std::fs::write(place.path("list"), "none\n# no name\nsub/f1\n").unwrap();
    hand_over(&place, &["--files-from", "list", "tree", "part"]);
    std::fs::remove_file(place.path("list")).unwrap();
    place
        .run(&["copy", "--detach", "--dry-run", "tree", "copy"])
        .assert_status(2)
        .assert_says("--dry-run answers at once");
    let ran = place.run(&["queue", "--wait", "--json", "1", "2", "3"]);
    let ended = listed(&ran.assert_status(0));
    assert!(ended.iter().all(|job| state(job) == "done"), "{ended:#?}");
    assert_same_tree(&place.path("tree"), &place.path("copy"));
    assert_eq!(
        std::fs::read(place.path("file")).unwrap(),
        bytes(100_000, 1)
    );
    assert!(place.path("part/sub/f1").exists() && place.path("part/none").exists());
    assert!(!place.path("part/big").exists());
    let text = place.run(&["queue"]).assert_status(0).out();
    let ends = format!(
        "{} -> {}  (nightly)",
        place.text("tree"),
        place.text("copy")
    );
    assert!(text.contains(&ends), "{text}");
    assert!(text.contains("(one file)"), "{text}");
    assert_eq!(tree, 1);
    // Nothing is left but the database.
    let left = std::fs::read_dir(place.path("state/ropewalk/queue")).unwrap();
    let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["queue.redb", "serve.socket"]);
    place
        .run(&["serve"])
        .assert_status(1)
        .assert_says("another `ropewalk serve` has");
    place
        .run(&["serve", "--state", &place.text("other")])
        .assert_status(1)
        .assert_says("of yours listens at");
    place.run(&["queue", "77"]).assert_status(1);
    drop(serving);
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

/// One of the copies that are handed over while masters are killed: a folder of a few files.
struct Small {
    from: String,
    to: String,
    files: Vec<Vec<u8>>,
}

impl Small {
    /// Of each nine, one goes into a folder that all such share, and one has the source and the destination of the one before it.
    fn all(count: u64) -> Vec<Self> {
        let number = |job: u64| if job % 9 == 8 { job - 1 } else { job };
        let small = |job: u64| {
            let number = number(job);
            let lengths = [
                10 + number * 777 % 60_000,
                0,
                5_000 + number % 100,
                number * 7_919 % 2_000_000,
            ];
            let files = lengths
                .iter()
                .zip(0..)
                .map(|(len, at)| bytes(*len as usize, number * 4 + at));
            Self {
                from: format!("from/{number}"),
                to: match job % 9 {
                    4 => "to/shared/".into(),
                    _ => format!("to/{number}"),
                },
                files: files.collect(),
            }
        };
        (1..=count).map(small).collect()
    }

    /// Its copy.
    fn copy(&self) -> String {
        let name = self.from.trim_start_matches("from/");
        match self.to.ends_with('/') {
            true => format!("{}{name}", self.to),
            false => self.to.clone(),
        }
    }
}

/// Jobs are done once each, whenever the master is killed: as many as `ROPEWALK_QUEUE=JOBS,KILLS` says.
///
/// ```text
/// ROPEWALK_QUEUE=1000,20 cargo test -p ropewalk-cli --test serve killed_masters -- --nocapture
/// ```
#[test]
fn killed_masters_lose_no_job() {
    let form = std::env::var("ROPEWALK_QUEUE").unwrap_or_else(|_| "60,5".into());
    let (count, kills) = form.split_once(',').unwrap();
    let (count, kills): (u64, u64) = (count.parse().unwrap(), kills.parse().unwrap());
    let place = Place::new();
    for folder in ["from", "to", "to/shared"] {
        std::fs::create_dir(place.path(folder)).unwrap();
    }
    let all = Small::all(count);
    // Nearly all wait when the last one is handed over.
    let slow = Serving::start(&place, &["--at-once", "2", "--limit", "1kB/s"]);
    for (id, job) in (1..).zip(&all) {
        let _ = std::fs::create_dir(place.path(&job.from));
        for (at, file) in job.files.iter().enumerate() {
            let path = place.path(&format!("{}/f{at}", job.from));
            if !path.exists() {
                std::fs::write(path, file).unwrap();
            }
        }
        assert_eq!(hand_over(&place, &[&job.from, &job.to]), id);
    }
    slow.kill();
    let began = Instant::now();
    let mut serving = Serving::start(&place, &["--at-once", "2"]);
    // The inodes of each job's copy when the job was first said to be done.
    let mut done: BTreeMap<u64, Vec<(u64, i64)>> = BTreeMap::new();
    let seen = |done: &mut BTreeMap<u64, Vec<(u64, i64)>>| {
        let jobs = jobs(&place);
        assert_eq!(jobs.len() as u64, count, "a job is lost, or there twice");
        for job in jobs.iter().filter(|job| state(job) == "done") {
            let id = job["id"].as_u64().unwrap();
            let copy = place.path(&all[id as usize - 1].copy());
            let inode = |at: usize| {
                let file = std::fs::metadata(copy.join(format!("f{at}"))).unwrap();
                (file.ino(), file.ctime_nsec())
            };
            let now: Vec<(u64, i64)> = (0..4).map(inode).collect();
            let first = done.entry(id).or_insert_with(|| now.clone());
            assert_eq!(*first, now, "job {id} ran again after it was done");
        }
        let running = jobs.iter().filter(|job| state(job) == "running");
        running.count()
    };
    let mut random = Random(7);
    let mut stopped = 0;
    for kill in 1..=kills {
        let target = count * kill / (kills + 1);
        wait_for("further jobs", || {
            seen(&mut done);
            (done.len() as u64 >= target).then_some(())
        });
        // In the middle of whatever it does then.
        let moment = Instant::now() + Duration::from_millis(random.below(300));
        wait_for("the moment", || (Instant::now() >= moment).then_some(()));
        stopped += seen(&mut done);
        serving.kill();
        serving = Serving::start(&place, &["--at-once", "2"]);
    }
    wait_for("all jobs", || {
        seen(&mut done);
        (done.len() as u64 == count).then_some(())
    });
    let seconds = began.elapsed().as_secs_f64();
    for job in &all {
        for (at, file) in job.files.iter().enumerate() {
            let copy = std::fs::read(place.path(&job.copy()).join(format!("f{at}"))).unwrap();
            assert!(copy == *file, "{}/f{at} differs", job.copy());
        }
    }
    let copies: BTreeSet<String> = all.iter().map(Small::copy).collect();
    let names = |folder: &str| std::fs::read_dir(place.path(folder)).unwrap().count();
    assert_eq!(
        names("to") - 1 + names("to/shared"),
        copies.len(),
        "nothing else is left"
    );
    let jobs = jobs(&place);
    let failures = jobs.iter().map(|job| job["failures"].as_u64().unwrap());
    assert_eq!(failures.sum::<u64>(), 0);
    eprintln!(
        "{count} jobs, {kills} kills with {stopped} running, {seconds:.1} s from the last job handed over"
    );
    serving.signal(Signal::TERM);
    assert_eq!(serving.0.wait().unwrap().code(), Some(0));
}

/// A job whose host does not answer is tried again until it does; one that is refused is not.
#[test]
fn failed_jobs_are_tried_again() {
    let place = Place::new();
    let token = place.make_token();
    std::fs::write(place.path("data"), bytes(50_000, 3)).unwrap();
    let mut agent = place.agent(place.dir.path());
    let source = agent.at(place.path("data"));
    let port = agent.port;
    agent.kill();
    let _serving = Serving::start(&place, &[]);
    let token = token.to_str().unwrap();
    let id = hand_over(&place, &["--token-file", token, &source, "copy"]);
    let refused = hand_over(&place, &["missing", "other"]);
    wait_for("a failed run", || {
        (job(&place, id)["failures"] == 1).then_some(())
    });
    let waiting = job(&place, id);
    assert_eq!(state(&waiting), "waiting", "{waiting:#}");
    let reason = waiting["reason"].as_str().unwrap();
    assert!(reason.contains("127.0.0.1"), "{reason}");
    let ran = place.run(&["queue", "--wait", "--json", &refused.to_string()]);
    let ended = listed(&ran.assert_status(1)).remove(0);
    assert_eq!(
        (state(&ended), &ended["failures"]),
        ("failed", &1.into()),
        "{ended:#}"
    );
    let mut command = place.command();
    let root = format!("{}:rw", place.dir.path().display());
    let listen = format!("127.0.0.1:{port}");
    command.args([
        "agent",
        "--while-stdin",
        "--listen",
        &listen,
        "--root",
        &root,
    ]);
    let _agent = common::start_agent(command);
    place
        .run(&["queue", "--wait", &id.to_string()])
        .assert_status(0);
    assert_eq!(std::fs::read(place.path("copy")).unwrap(), bytes(50_000, 3));
}

/// The common limit holds up a job that would take minutes under it, until it is removed; waiting and running jobs are cancelled, and
/// a signal stops what runs, which the next master ends.
#[test]
fn jobs_are_limited_and_cancelled() {
    let place = Place::new();
    std::fs::write(place.path("data"), bytes(20 << 20, 5)).unwrap();
    let serving = Serving::start(&place, &["--at-once", "2", "--limit", "128kB/s"]);
    for to in ["a", "b", "c"] {
        hand_over(&place, &["data", to]);
    }
    let urgent = hand_over(&place, &["--priority", "7", "data", "d"]);
    let is_running = |id: u64| {
        let job = job(&place, id);
        job["process"].is_u64().then_some(())
    };
    wait_for("two runs", || is_running(1).and(is_running(2)));
    assert_eq!(state(&job(&place, 3)), "waiting");
    place.run(&["queue", "--cancel", "1", "3"]).assert_status(0);
    wait_for("the urgent job", || is_running(urgent));
    wait_for("the end of the first", || {
        (state(&job(&place, 1)) == "cancelled").then_some(())
    });
    assert_eq!(state(&job(&place, 3)), "cancelled");
    // Each is tried, whatever became of those before.
    let other = hand_over(&place, &["data", "e"]).to_string();
    place
        .run(&["queue", "--cancel", "1", "77", &other])
        .assert_status(1)
        .assert_says("job 1 has ended")
        .assert_says("the queue has no job 77")
        .assert_says(&format!("job {other} cancelled"));
    serving.signal(Signal::INT);
    let mut serving = serving;
    assert_eq!(serving.0.wait().unwrap().code(), Some(0));
    let _serving = Serving::start(&place, &["--limit", "256kB/s"]);
    wait_for("the same two runs", || {
        is_running(2).and(is_running(urgent))
    });
    place.run(&["queue", "--limit", "none"]).assert_status(0);
    // With it they would take longer than anything is waited for.
    wait_for("the end of both", || {
        let has_ended = |id: &u64| state(&job(&place, *id)) == "done";
        [2, urgent].iter().all(has_ended).then_some(())
    });
    for copy in ["b", "d"] {
        assert!(std::fs::read(place.path(copy)).unwrap() == bytes(20 << 20, 5));
    }
    assert!(!place.path("c").exists());
}

/// A signal that reaches a run before the master, or a Ctrl-C for both, cancels no job; `ropewalk cancel` does. A run that does not read
/// holds up neither the master nor, when that was killed, the lock of its job.
#[test]
fn stopped_runs_go_on() {
    let place = Place::new();
    std::fs::write(place.path("data"), bytes(20 << 20, 5)).unwrap();
    let serving = Serving::start(&place, &["--limit", "128kB/s"]);
    for to in ["a", "b"] {
        hand_over(&place, &["--label", to, "data", to]);
    }
    let process = |id: u64| {
        let process = job(&place, id)["process"].as_u64()?;
        Pid::from_raw(process as i32)
    };
    let first = wait_for("two runs", || process(1).zip(process(2))).0;
    kill_process(first, Signal::TERM).unwrap();
    let again = wait_for("the first job's next run", || {
        process(1).filter(|process| *process != first)
    });
    assert_eq!(job(&place, 1)["failures"], 0);
    let cancelled = || place.run(&["cancel", "b"]).status() == 0;
    wait_for("a transfer to cancel", || cancelled().then_some(()));
    wait_for("the second job's end", || {
        (state(&job(&place, 2)) == "cancelled").then_some(())
    });
    // It neither ends nor reads.
    kill_process(again, Signal::STOP).unwrap();
    serving.kill();
    let serving = Serving::start(&place, &[]);
    let waiting = wait_for("a run that waits", || process(1));
    assert_ne!(waiting, again);
    serving.signal(Signal::TERM);
    let mut serving = serving;
    assert_eq!(serving.0.wait().unwrap().code(), Some(0));
    let _serving = Serving::start(&place, &[]);
    wait_for("a run that waits", || process(1));
    assert!(!place.path("a").exists(), "the run before has not ended");
    kill_process(again, Signal::KILL).unwrap();
    place.run(&["queue", "--wait", "1"]).assert_status(0);
    assert!(std::fs::read(place.path("a")).unwrap() == bytes(20 << 20, 5));
}

/// A limit that was set while `serve` ran holds after a crash, until `serve` is started with another one.
#[test]
fn a_limit_that_was_set_is_kept() {
    let place = Place::new();
    let serving = Serving::start(&place, &["--limit", "8Mbit"]);
    place.run(&["queue", "--limit", "2Mbit"]).assert_status(0);
    serving.kill();
    let serving = Serving::start(&place, &["--limit", "8Mbit"]);
    place.run(&["queue"]).assert_says("at most 2 Mbit/s");
    serving.kill();
    let _serving = Serving::start(&place, &["--limit", "5Mbit"]);
    place.run(&["queue"]).assert_says("at most 5 Mbit/s");
}

/// What a run has made safe when its master is killed, or ended by a signal, is there for the next run: the job will be done. What a job had that
/// is cancelled is removed as at Ctrl-C.
#[test]
fn what_stopped_runs_made_safe_is_kept() {
    for end in [Some(Signal::KILL), Some(Signal::TERM), None] {
        let place = Place::new();
        std::fs::write(place.path("data"), bytes(30 << 20, 5)).unwrap();
        let mut serving = Serving::start(&place, &["--limit", "4MB/s"]);
        let id = hand_over(&place, &["data", "copy"]);
        wait_for("bytes that are safe", || {
            let status = place.run(&["status", "--json"]).out();
            let running: Value = serde_json::from_str(&status).ok()?;
            let safe = running[0]["progress"]["delivered_bytes"].as_u64()?;
            (safe > 3 << 20).then_some(())
        });
        let left = || {
            let names = std::fs::read_dir(place.path(".")).unwrap();
            let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names
                .filter(|name| name.starts_with(".copy.ropewalk-"))
                .count()
        };
        let process = job(&place, id)["process"].as_u64().unwrap();
        match end {
            Some(signal) => {
                serving.signal(signal);
                serving.0.wait().unwrap();
            }
            None => {
                place
                    .run(&["queue", "--cancel", &id.to_string()])
                    .assert_status(0);
            }
        }
        wait_for("the end of the run", || {
            let is_over = !std::path::Path::new(&format!("/proc/{process}")).exists();
            is_over.then_some(())
        });
        if end.is_none() {
            assert_eq!(left(), 0);
            continue;
        }
        assert!(left() > 0, "{end:?}");
        let _serving = Serving::start(&place, &[]);
        place
            .run(&["queue", "--wait", &id.to_string()])
            .assert_status(0);
        assert!(std::fs::read(place.path("copy")).unwrap() == bytes(30 << 20, 5));
        assert_eq!(left(), 0);
    }
}
