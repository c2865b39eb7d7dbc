//! Merging, age and the file, with dates made up.

use super::file::{load, record};
use super::*;
use crate::request::{Object, ObjectRequest};

const NOW: u64 = 1_800_000_000;
const HOUR: u64 = 3600;
const DAY: u64 = 86_400;

fn seen(speed: u64, is_all: bool) -> Seen {
    Seen {
        bytes_per_second: speed,
        is_all,
    }
}

fn sending(node: &str, speed: u64, is_all: bool) -> Observations {
    Observations {
        sending: [(node.to_owned(), seen(speed, is_all))].into(),
        ..Observations::default()
    }
}

fn speed(memory: &Memory, node: &str) -> (u64, u64) {
    let speed = memory.nodes[node].sending.unwrap();
    (speed.bytes_per_second, speed.seen_unix_seconds)
}

/// A node that only sends, or only receives.
fn node(name: &str, sends: bool) -> NodeRequest {
    let object = ObjectRequest {
        object: Object::Null,
        rows: Vec::new(),
        destination: None,
        make_folder: false,
    };
    let objects = |yes: bool| yes.then(|| object.clone()).into_iter().collect();
    NodeRequest {
        name: name.into(),
        reach: Reach::Ssh(name.into()),
        sources: objects(sends),
        sinks: objects(!sends),
        up: None,
        down: None,
        interfaces: Vec::new(),
    }
}

/// Higher counts at once; lower counts at once only from a node that showed all it had.
#[test]
fn the_best_is_kept_and_lower_ones_count_slowly() {
    let mut memory = Memory::default();
    memory.learn(&sending("a", 800, false), NOW);
    assert_eq!(speed(&memory, "a"), (800, NOW));
    memory.learn(&sending("a", 1600, false), NOW + 1);
    assert_eq!(speed(&memory, "a"), (1600, NOW + 1));
    // It had little to do: an eighth of the way, still of the same date.
    memory.learn(&sending("a", 800, false), NOW + 2);
    assert_eq!(speed(&memory, "a"), (1500, NOW + 1));
    memory.learn(&sending("a", 800, true), NOW + 3);
    assert_eq!(speed(&memory, "a"), (800, NOW + 3));
    assert_eq!(memory.nodes["a"].sending.unwrap().transfers, 4);
    assert!(memory.nodes["a"].receiving.is_none());
}

/// A clock that goes back makes nothing older than now, and one that was ahead leaves nothing young for ever.
#[test]
fn clocks_may_jump() {
    let mut memory = Memory::default();
    memory.learn(&sending("a", 800, false), NOW + 1000 * DAY);
    let hints = memory.hints(&[node("a", true), node("r", false)], NOW);
    assert_eq!(hints.up[0], Some(800));
    assert!(hints.note().unwrap().contains("from 0 s ago"));
    memory.learn(&sending("b", 1, false), NOW);
    assert_eq!(speed(&memory, "a").1, NOW);
}

/// Hints go to nodes that declare nothing, each for what it does; the note says how old they are.
#[test]
fn hints_fill_what_is_not_declared() {
    let mut memory = Memory::default();
    memory.learn(&sending("a", 800, false), NOW - 3 * HOUR);
    memory.learn(&sending("r", 700, false), NOW - 3 * HOUR);
    let mut declared = node("b", true);
    declared.up = Some(5);
    memory.learn(&sending("b", 900, false), NOW - 3 * HOUR);
    let hints = memory.hints(&[node("a", true), declared, node("r", false)], NOW);
    // Hours are little of a half-life of days, and the middle is the node itself.
    assert_eq!(hints.up, [Some(800), None, None]);
    assert_eq!(hints.down, [None, None, None]);
    let note = hints.note().unwrap();
    assert!(
        note.starts_with("planned by speeds remembered from 3 h ago for 1 of 2 nodes;"),
        "{note}"
    );
    let nobody = memory.hints(&[node("x", true), node("y", false)], NOW);
    assert_eq!((nobody.note(), &nobody.up[..]), (None, &[None, None][..]));
}

/// Old speeds come nearer to the middle one, unknown nodes get it, and after 30 days nothing is left.
#[test]
fn age_takes_weight_away() {
    let nodes = [
        node("slow", true),
        node("middle", true),
        node("fast", true),
        node("new", true),
        node("r", false),
    ];
    let at = |age: u64| {
        let mut memory = Memory::default();
        for (name, speed) in [("slow", 100), ("middle", 1000), ("fast", 10_000)] {
            memory.learn(&sending(name, speed, false), NOW - age);
        }
        let up = memory.hints(&nodes, NOW).up;
        up.into_iter().flatten().collect::<Vec<u64>>()
    };
    assert_eq!(at(0), [100, 1000, 10_000, 1000]);
    // At the half-life, half the way on a logarithmic scale.
    assert_eq!(at(10 * DAY), [316, 1000, 3162, 1000]);
    let old = at(30 * DAY);
    assert!(old[0] > 700 && old[2] < 1400, "{old:?}");
    assert_eq!(at(30 * DAY + 1), [0_u64; 0]);
}

/// Nodes that a key does not tell apart are neither learnt of nor given hints.
#[test]
fn keys_tell_nodes_apart() {
    let mut first = node("n1", true);
    let mut second = node("n2", true);
    first.reach = Reach::Ssh("same".into());
    second.reach = Reach::Ssh("same".into());
    let mut third = node("n3", false);
    third.reach = Reach::Ssh("same".into());
    let nodes = [first, second, third];
    assert_eq!(keys(&nodes, sends), [None, None, None]);
    assert_eq!(keys(&nodes, receives), [None, None, Some("same".into())]);
    let mut local = [node("a", true), node("b", false)];
    local[0].reach = Reach::Local;
    assert_eq!(keys(&local, sends)[0].as_deref(), Some("local"));
    local[1].reach = Reach::Local;
    assert_eq!(keys(&local, sends), [None, None]);
}

/// What was not seen for longest goes first.
#[test]
fn memory_is_bounded() {
    let mut memory = Memory::default();
    for at in 0..ENTRIES_MAX as u64 {
        memory.learn(&sending(&format!("n{at}"), 1, false), NOW + at);
    }
    memory.learn(&sending("n0", 1, false), NOW + ENTRIES_MAX as u64);
    memory.learn(&sending("new", 1, false), NOW + ENTRIES_MAX as u64);
    assert_eq!(memory.nodes.len(), ENTRIES_MAX);
    assert!(memory.nodes.contains_key("n0") && memory.nodes.contains_key("new"));
    assert!(!memory.nodes.contains_key("n1"));
}

/// What is written reads back, and people can read it.
#[test]
fn the_file_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/ropewalk/speeds.json");
    assert_eq!(load(&path).unwrap(), Memory::default());
    record(&path, &sending("a:7420", 800, false), NOW).unwrap();
    record(&path, &sending("b", 900, false), NOW + 1).unwrap();
    let memory = load(&path).unwrap();
    assert_eq!(speed(&memory, "a:7420"), (800, NOW));
    assert_eq!(speed(&memory, "b"), (900, NOW + 1));
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(
        text.contains("may be deleted") && text.contains("\"bytes_per_second\": 800"),
        "{text}"
    );
}

/// Damage costs what was remembered and nothing else; a later format is left alone.
#[test]
fn damaged_files_are_learnt_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("speeds.json");
    for text in [
        "",
        "{\"version\": 1, \"nodes\": {",
        "{\"version\": 1, \"nodes\": 5}",
        "\u{0}\u{0}\u{0}",
        "{\"version\": 1, \"nodes\": {\"a\": {\"sending\": {\"bytes_per_second\": -1}}}}",
    ] {
        std::fs::write(&path, text).unwrap();
        let error = load(&path).unwrap_err().to_string();
        assert!(
            error.contains("is damaged") && error.contains("measured again"),
            "{text:?}: {error}"
        );
        record(&path, &sending("a", 800, false), NOW).unwrap();
        assert_eq!(speed(&load(&path).unwrap(), "a"), (800, NOW), "{text:?}");
    }
    let newer = "{\"version\": 2, \"all\": \"else\"}";
    std::fs::write(&path, newer).unwrap();
    assert!(load(&path).unwrap_err().to_string().contains("left alone"));
    assert!(record(&path, &sending("a", 1, false), NOW).is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), newer);
}
