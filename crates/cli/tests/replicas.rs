//! Contents of replicas: what is compared, and what a difference does.

mod common;

use std::path::Path;
use std::time::{Duration, SystemTime};

use common::{Place, RunningAgent, bytes};
use serde_json::Value;

const LEN: usize = 20_000_000;

/// Replicas on two agents, and a third that takes the copy.
struct Hosts {
    place: Place,
    agents: Vec<RunningAgent>,
}

fn put(path: &Path, contents: &[u8]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, contents).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let times = std::fs::FileTimes::new().set_modified(time);
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_times(times).unwrap();
}

impl Hosts {
    fn new(replicas: &[&[u8]]) -> Self {
        let place = Place::new();
        place.make_token();
        let mut agents = Vec::new();
        for (at, contents) in replicas.iter().enumerate() {
            put(&place.path(&format!("r{at}/set/file")), contents);
            agents.push(place.agent(&place.path(&format!("r{at}"))));
        }
        std::fs::create_dir(place.path("dst")).unwrap();
        agents.push(place.agent(&place.path("dst")));
        Self { place, agents }
    }

    fn source(&self, at: usize) -> String {
        self.agents[at].at(self.place.path(&format!("r{at}/set")))
    }

    /// Copies from the replicas in this order.
    fn copy(&self, order: &[usize], options: &[&str]) -> common::Ran {
        let mut args: Vec<String> = ["copy", "--json", "--sources", "replicas"]
            .map(str::to_owned)
            .into();
        args.extend(options.iter().map(|option| (*option).to_owned()));
        args.extend(order.iter().map(|&at| self.source(at)));
        let destination = self.agents.last().unwrap();
        args.push(destination.at(self.place.path("dst/out")));
        self.place.run(&args)
    }

    /// The copy failed because replicas differ; nothing is left at the destination.
    fn assert_differs(&self, order: &[usize], options: &[&str]) -> String {
        let report = self.copy(order, options).assert_status(1).report();
        let error = report["error"].as_str().unwrap().to_owned();
        assert!(error.starts_with("replicas differ: file bytes "), "{error}");
        for agent in &self.agents[..self.agents.len() - 1] {
            let at = agent.at("");
            let host = at.trim_end_matches(':');
            assert!(error.contains(host), "{host} is not named: {error}");
        }
        // No file is missing for a reason of its own.
        assert_eq!(report["missing_files"], Value::Array(Vec::new()));
        let left = std::fs::read_dir(self.place.path("dst")).unwrap().count();
        assert_eq!(left, 0, "something is left under a temporary or final name");
        error
    }
}

/// Replicas of equal size and time and other contents are no mixture: the copy fails, in either order of the sources, with
/// the sink read back or not.
#[test]
fn other_contents_end_the_copy() {
    let hosts = Hosts::new(&[&[b'A'; LEN], &[b'B'; LEN]]);
    for order in [[0, 1], [1, 0]] {
        for options in [&[][..], &["--verify", "sink"], &["--verify", "replicas"]] {
            hosts.assert_differs(&order, options);
        }
    }
}

/// A few bytes at the end, where an interrupted copy would have stopped, are noticed by the sample; a single byte anywhere by
/// comparing the whole. Where they are told.
#[test]
fn single_bytes_are_found() {
    let right = bytes(LEN, 7);
    let mut end = right.clone();
    for byte in end.iter_mut().rev().take(3) {
        *byte ^= 1;
    }
    let hosts = Hosts::new(&[&right, &end]);
    for order in [[0, 1], [1, 0]] {
        let error = hosts.assert_differs(&order, &[]);
        assert!(error.contains(&format!("-{}:", LEN - 1)), "{error}");
    }
    let mut middle = right.clone();
    middle[LEN / 3] ^= 1;
    let hosts = Hosts::new(&[&right, &middle]);
    for order in [[0, 1], [1, 0]] {
        let error = hosts.assert_differs(&order, &["--verify", "replicas"]);
        let (_, range) = error.split_once("file bytes ").unwrap();
        let (range, _) = range.split_once(':').unwrap();
        let (first, last) = range.split_once('-').unwrap();
        let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
        assert!((first..=last).contains(&(LEN / 3)), "{error}");
    }
}

/// Where the replicas are files, not trees, the file is named, too.
#[test]
fn a_single_file_is_named() {
    let hosts = Hosts::new(&[&[b'A'; LEN], &[b'B'; LEN]]);
    let sources = [0, 1].map(|at| format!("{}/file", hosts.source(at)));
    let to = hosts.agents[2].at(hosts.place.path("dst/image"));
    let ran = hosts
        .place
        .run(&["copy", "--json", &sources[0], &sources[1], &to]);
    let error = ran.assert_status(1).error();
    assert!(
        error.starts_with("replicas differ: image bytes "),
        "{error}"
    );
}

/// Of three replicas the one that differs from the other two is told.
#[test]
fn the_odd_one_is_told() {
    let right = bytes(3_000_000, 7);
    let mut odd = right.clone();
    odd[2_000_000] ^= 1;
    let hosts = Hosts::new(&[&right, &odd, &right]);
    let report = hosts.copy(&[0, 1, 2], &["--verify", "replicas"]);
    let error = report.assert_status(1).error();
    assert!(error.contains("hold the same)"), "{error}");
    let (_, same) = error.split_once("equal (").unwrap();
    let odd = hosts.agents[1].at("");
    assert!(!same.contains(odd.trim_end_matches(':')), "{error}");
}

fn compared(report: &Value) -> (u64, u64) {
    let replicas = &report["replicas"];
    let number = |key: &str| replicas[key].as_u64().unwrap();
    (number("compared_units"), number("units"))
}

/// Equal replicas are compared by sample, wholly, or not at all, as the report says; one source alone is none.
#[test]
fn the_report_says_what_was_compared() {
    let right = bytes(LEN, 7);
    let hosts = Hosts::new(&[&right, &right]);
    let out = hosts.place.path("dst/out");
    for (options, how) in [
        (&[][..], "sample"),
        (&["--verify", "replicas"], "whole"),
        (&["--verify", "none", "--plain"], "no"),
        (&["--verify", "fragment"], "no"),
        (&["--lane", "rbudp", "--rate", "1Gbit"], "sample"),
    ] {
        let report = hosts.copy(&[0, 1], options).assert_status(0).report();
        assert!(std::fs::read(out.join("file")).unwrap() == right);
        std::fs::remove_dir_all(&out).unwrap();
        let (equal, units) = compared(&report);
        assert_eq!(report["replicas"]["compared"], how, "{report:#}");
        match how {
            "no" => assert_eq!(equal, 0),
            "whole" => assert_eq!(equal, units),
            _ => assert!((3..units / 2).contains(&equal), "{equal} of {units}"),
        }
        assert_eq!(report["notes"], Value::Array(Vec::new()), "{report:#}");
    }
    let report = hosts.copy(&[0], &[]).assert_status(0).report();
    assert_eq!(report["replicas"], Value::Null);
}

/// A shared destination does not pass the work of the node that found the difference on to the others.
#[test]
fn a_shared_destination_fails_as_a_whole() {
    let hosts = Hosts::new(&[&[b'A'; LEN], &[b'B'; LEN]]);
    let (one, other) = (hosts.source(0), hosts.source(1));
    let second = hosts.place.agent(&hosts.place.path("dst"));
    let out = hosts.place.path("dst/out");
    let ran = hosts.place.run(&[
        "copy",
        "--json",
        "--sources",
        "replicas",
        "--destinations",
        "shared",
        &one,
        &other,
        &hosts.agents[2].at(&out),
        "--also-to",
        &second.at(&out),
    ]);
    let error = ran.assert_status(1).error();
    assert!(error.starts_with("replicas differ: file bytes "), "{error}");
    let left = std::fs::read_dir(hosts.place.path("dst")).unwrap().count();
    assert_eq!(left, 0);
}
