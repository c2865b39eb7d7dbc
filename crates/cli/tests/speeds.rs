//! Speeds of earlier transfers, kept and used by real processes.

mod common;

use common::{Place, Ran, RunningAgent, bytes};
use serde_json::{Value, json};

/// An agent's key in the file.
fn key(agent: &RunningAgent) -> String {
    format!("127.0.0.1:{}", agent.port)
}

/// Where speeds are kept when nothing else is said.
fn default_file(place: &Place) -> std::path::PathBuf {
    place.path("state/ropewalk/speeds.json")
}

fn now_unix() -> u64 {
    let passed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    passed.unwrap().as_secs()
}

/// Writes a file that remembers how fast agents sent, some hours ago.
fn remember(place: &Place, hours: u64, speeds: &[(&RunningAgent, u64)]) {
    let seen = now_unix() - hours * 3600 - 5;
    let node = |&(agent, speed): &(&RunningAgent, u64)| {
        let sending = json!({"bytes_per_second": speed, "seen_unix_seconds": seen, "transfers": 1});
        (key(agent), json!({ "sending": sending }))
    };
    let nodes: serde_json::Map<String, Value> = speeds.iter().map(node).collect();
    let file = default_file(place);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let text = json!({"version": 1, "nodes": nodes}).to_string();
    std::fs::write(file, text).unwrap();
}

fn notes(report: &Value) -> String {
    report["notes"].to_string()
}

/// Two agents with the same file, and one that wants it.
struct Scene {
    place: Place,
    sources: [RunningAgent; 2],
    sink: RunningAgent,
}

impl Scene {
    fn new() -> Self {
        let place = Place::new();
        place.make_token();
        std::fs::write(place.path("set"), bytes(8 << 20, 3)).unwrap();
        let agent = || place.agent(place.dir.path());
        let (sources, sink) = ([agent(), agent()], agent());
        Self {
            place,
            sources,
            sink,
        }
    }

    fn copy(&self, more: &[&str]) -> Ran {
        let set = self.place.path("set");
        let [a, b] = &self.sources;
        let ends = [
            a.at(&set),
            b.at(&set),
            self.sink.at(self.place.path("copy")),
        ];
        // Slow enough for a progress event, which tells the plan; nothing else moves work.
        let mut args = vec!["copy", "--json", "--limit", "160Mbit", "--replan", "off"];
        // Also what an earlier copy has sent.
        args.extend(["--check", "none"]);
        args.extend(more);
        args.extend(ends.iter().map(String::as_str));
        self.place.run(&args).assert_status(0)
    }

    /// Bytes that each source was planned to send.
    fn planned(&self, ran: &Ran) -> [u64; 2] {
        let events = ran.events();
        let progress = events.iter().find(|event| event["event"] == "progress");
        let senders = progress.unwrap()["senders"].as_array().unwrap().clone();
        self.sources.each_ref().map(|agent| {
            let sender = senders.iter().find(|sender| sender["node"] == *key(agent));
            sender.unwrap()["total_bytes"].as_u64().unwrap()
        })
    }
}

/// Who was three times as fast is planned to send three times as much, and the report says by what.
#[test]
fn remembered_speeds_shape_the_plan() {
    let scene = Scene::new();
    let [a, b] = &scene.sources;
    remember(&scene.place, 3, &[(a, 30_000_000), (b, 10_000_000)]);
    let ran = scene.copy(&[]);
    let [fast, slow] = scene.planned(&ran);
    let ratio = fast as f64 / slow as f64;
    assert!((2.5..3.5).contains(&ratio), "{fast} {slow}");
    let report = ran.report();
    let said = notes(&report);
    assert!(
        said.contains("planned by speeds remembered from 3 h ago for 2 of 3 nodes"),
        "{said}"
    );
    // Nobody declared anything, whatever is remembered.
    assert_ne!(report["bound"]["basis"], "declared");
    assert_ne!(report["bound"]["basis"], "interface");
}

/// Off means neither used nor kept; speeds of another season are not used either.
#[test]
fn forgotten_speeds_shape_nothing() {
    let scene = Scene::new();
    let [a, b] = &scene.sources;
    for (hours, more) in [(3, &["--speeds", "off"][..]), (31 * 24, &[])] {
        remember(&scene.place, hours, &[(a, 30_000_000), (b, 10_000_000)]);
        let ran = scene.copy(more);
        let [first, second] = scene.planned(&ran);
        assert_eq!(first, second);
        assert!(!notes(&ran.report()).contains("remembered"));
    }
}

/// What is declared is never replaced by what is remembered.
#[test]
fn declared_speeds_come_first() {
    let scene = Scene::new();
    let [a, b] = &scene.sources;
    remember(&scene.place, 3, &[(a, 30_000_000), (b, 10_000_000)]);
    let rates: Vec<String> = [(a, "8Mbit"), (b, "24Mbit"), (&scene.sink, "1Gbit")]
        .iter()
        .map(|(agent, rate)| format!("--node-rate={}={rate}", key(agent)))
        .collect();
    let rates: Vec<&str> = rates.iter().map(String::as_str).collect();
    let ran = scene.copy(&rates);
    let [first, second] = scene.planned(&ran);
    assert!(second > 2 * first, "{first} {second}");
    assert_eq!(ran.report()["bound"]["basis"], "declared");
    assert!(!notes(&ran.report()).contains("remembered"));
}

/// `plan` on a specification foresees what `transfer` would do, says by what, and can do without.
#[test]
fn plan_uses_what_is_remembered() {
    let place = Place::new();
    let seen = now_unix() - 2 * 86_400;
    let sending = |speed: u64| json!({"sending": {"bytes_per_second": speed, "seen_unix_seconds": seen, "transfers": 1}});
    let nodes = json!({"a:1": sending(1_000_000), "b:1": sending(1_000_000)});
    let file = default_file(&place);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, json!({"version": 1, "nodes": nodes}).to_string()).unwrap();
    let rows =
        "writer a:1 /x 0 0-999999 up=24Mbit\nwriter b:1 /x 0 0-999999\nreader c:2 /y 0 0-999999\n";
    std::fs::write(place.path("s"), rows).unwrap();
    let ran = place.run(&["plan", "s"]).assert_status(0);
    // 3 MB/s declared and 1 MB/s remembered.
    ran.assert_says("bound      250 ms, set by a:1, b:1")
        .assert_says("speeds     remembered from 2 d ago for 1 of 2 nodes")
        .assert_says("1 of 3 nodes assumed to have 1 Gbit/s");
    let ran = place
        .run(&["plan", "--speeds", "off", "s"])
        .assert_status(0);
    assert!(!ran.out().contains("remembered"));
    ran.assert_says("2 of 3 nodes assumed");
    for (text, said) in [
        ("{\"nodes\": [", "is damaged"),
        ("my notes", "is left alone"),
    ] {
        std::fs::write(&file, text).unwrap();
        place.run(&["plan", "s"]).assert_status(0).assert_says(said);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    }
}

/// A file that is damaged, or cannot be one, costs a note and nothing else.
#[test]
fn odd_files_cost_a_note() {
    let scene = Scene::new();
    let file = scene.place.path("odd.json");
    std::fs::write(&file, "{\"version\": 1, \"nodes\": [").unwrap();
    let report = scene.copy(&["--speeds", file.to_str().unwrap()]).report();
    assert_eq!(report["outcome"], "done");
    assert!(
        notes(&report).contains("odd.json is damaged"),
        "{}",
        notes(&report)
    );
    let folder = scene.place.path("home");
    let report = scene.copy(&["--speeds", folder.to_str().unwrap()]).report();
    assert!(notes(&report).contains("cannot read"), "{}", notes(&report));
}

/// The second transfer between two agents uses what the first has shown, without anybody saying a speed.
#[test]
fn the_second_transfer_knows_the_first() {
    let scene = Scene::new();
    let (from, to) = (&scene.sources[0], &scene.sink);
    // Only a transfer of two seconds says something; how much that is depends on the machine.
    for gib in [1, 4, 16, 64] {
        let args = [
            "copy".to_owned(),
            "--json".into(),
            from.at(format!("mem:{gib}GiB")),
            to.at("null:"),
        ];
        let report = scene.place.run(&args).assert_status(0).report();
        assert!(!notes(&report).contains("remembered"), "{}", notes(&report));
        let bits = report["delivered_bytes"].as_f64().unwrap() * 8.0;
        let rate = report["moving_bits_per_second"].as_f64().unwrap();
        let exists = default_file(&scene.place).exists();
        assert_eq!(exists, bits / rate >= 2.0, "{bits} bits at {rate}");
        if exists {
            break;
        }
    }
    let text = std::fs::read_to_string(default_file(&scene.place)).unwrap();
    let kept: Value = serde_json::from_str(&text).unwrap();
    for (agent, direction) in [(from, "sending"), (to, "receiving")] {
        let speed = &kept["nodes"][key(agent)][direction];
        assert!(
            speed["bytes_per_second"].as_u64().unwrap() > 10_000_000,
            "{text}"
        );
        assert!(
            now_unix() - speed["seen_unix_seconds"].as_u64().unwrap() < 60,
            "{text}"
        );
    }
    let pair = format!("{} -> {}", key(from), key(to));
    assert!(
        kept["pairs"][pair]["bytes_per_second"].as_u64().unwrap() > 0,
        "{text}"
    );
    let args = [
        "copy".to_owned(),
        "--json".into(),
        from.at("mem:1MiB"),
        to.at("null:"),
    ];
    // One sender and one receiver leave a plan no choice: nothing is said.
    let report = scene.place.run(&args).assert_status(0).report();
    assert!(!notes(&report).contains("planned by"), "{}", notes(&report));
    let args = [
        "copy".to_owned(),
        "--json".into(),
        from.at("mem:1MiB"),
        scene.sources[1].at("mem:1MiB"),
        to.at("null:"),
    ];
    let report = scene.place.run(&args).assert_status(0).report();
    assert!(
        notes(&report).contains("planned by speeds remembered from "),
        "{}",
        notes(&report)
    );
    // A transfer as small as that says nothing, so nothing changed.
    assert_eq!(
        std::fs::read_to_string(default_file(&scene.place)).unwrap(),
        text
    );
}
