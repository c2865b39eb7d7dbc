//! Changes of a small transfer with every kind of link.

use ropewalk_model::problem::case::Case;
use ropewalk_model::{Range, RangeSet};

use super::*;
use crate::plan::change::parse;

/// Three writers, two readers that share a destination, a capped pair and a trunk.
fn problem() -> Problem {
    let text = r#"{
        "writers": [
            {"name": "w0", "up": 100, "ranges": [[0, 10]]},
            {"name": "w1", "up": 200, "ranges": [[0, 20]]},
            {"name": "w2", "up": 300, "ranges": [[20, 30]]}
        ],
        "readers": [
            {"name": "r0", "down": 50, "ranges": [[0, 30]], "dest": "d"},
            {"name": "r1", "down": 60, "ranges": [[0, 30]], "dest": "d"}
        ],
        "pair_caps": [{"writer": "w1", "reader": "r1", "cap": 7}],
        "trunks": [{"writers": ["w0", "w2"], "readers": ["r1"], "cap": 40}]
    }"#;
    Case::parse(text).unwrap().problem
}

fn changed(changes: &[&str]) -> Result<Problem, ChangeError> {
    let mut problem = problem();
    for text in changes {
        apply(&mut problem, &parse(text).unwrap())?;
    }
    Ok(problem)
}

fn refusal(change: &str) -> String {
    changed(&[change]).expect_err(change).to_string()
}

/// Speeds change where they are named, on one node or on all of a side, in order.
#[test]
fn speeds_change() {
    let after = changed(&["w0 up=8kbit", "all up=x0.5 down=x3", "receiver r1 down=0"]).unwrap();
    let ups: Vec<u64> = after.senders.iter().map(|s| s.up).collect();
    let downs: Vec<u64> = after.receivers.iter().map(|r| r.down).collect();
    assert_eq!(ups, [500, 100, 150]);
    assert_eq!(downs, [150, 0]);
}

/// Links follow their nodes when others leave, and go with their own.
#[test]
fn links_survive_removals() {
    let after = changed(&["remove w0"]).unwrap();
    let pair = after.pair_caps[0];
    assert_eq!((pair.sender, pair.receiver, pair.cap), (0, 1, 7));
    assert_eq!(after.trunks[0].senders, [1]);
    let after = changed(&["remove reader r1"]).unwrap();
    assert!(after.pair_caps.is_empty());
    assert!(after.trunks[0].receivers.is_empty());
    let after = changed(&["remove r0"]).unwrap();
    assert_eq!(after.pair_caps[0].receiver, 0);
    assert_eq!(after.trunks[0].receivers, [0]);
}

/// A node like another has its ranges, speed, destination and links, save what is said.
#[test]
fn a_node_like_another_stands_beside_it() {
    let after = changed(&["add writer w9 like w1 up=8kbit 25-29"]).unwrap();
    let new = &after.senders[3];
    let ranges: RangeSet = [Range::new(0, 20), Range::new(25, 30)]
        .into_iter()
        .collect();
    assert_eq!((new.up, &new.ranges), (1000, &ranges));
    let pair = after.pair_caps[1];
    assert_eq!((pair.sender, pair.receiver, pair.cap), (3, 1, 7));
    assert_eq!(after.trunks[0].senders, [0, 2]);
    let after = changed(&["add reader r9 like r1"]).unwrap();
    let new = &after.receivers[2];
    assert_eq!((new.down, new.destination.as_deref()), (60, Some("d")));
    assert_eq!(after.trunks[0].receivers, [1, 2]);
    // What a writer holds can be wanted; its speed says nothing of a reader's.
    let after = changed(&["add reader r9 down=16bit like w2 dest=e"]).unwrap();
    let new = &after.receivers[2];
    assert_eq!((new.down, new.destination.as_deref()), (2, Some("e")));
    assert_eq!(new.ranges, RangeSet::from(Range::new(20, 30)));
    assert_eq!(after.trunks[0].receivers, [1]);
}

/// Caps of pairs are set, multiplied and taken away; trunks are changed and added.
#[test]
fn links_change() {
    let caps = |changes: &[&str]| -> Vec<(usize, usize, u64)> {
        let after = changed(changes).unwrap();
        let caps = after.pair_caps.iter();
        caps.map(|pair| (pair.sender, pair.receiver, pair.cap))
            .collect()
    };
    assert_eq!(caps(&["pair w0 r0 cap=80bit"]), [(1, 1, 7), (0, 0, 10)]);
    assert_eq!(caps(&["pair w1 r1 cap=x2"]), [(1, 1, 14)]);
    assert_eq!(caps(&["pair w1 r1 cap=none"]), []);
    let after = changed(&["trunk 0 cap=x2", "add trunk w0,w1 r0 cap=8bit"]).unwrap();
    assert_eq!(after.trunks[0].cap, 80);
    let new = Trunk {
        name: String::new(),
        senders: vec![0, 1],
        receivers: vec![0],
        cap: 1,
        ..Trunk::default()
    };
    assert_eq!(after.trunks[1], new);
}

/// What does not fit is named, with what could be meant; nothing is half done.
#[test]
fn what_does_not_fit_is_named() {
    for (change, part) in [
        (
            "w3 up=1Gbit",
            "there is no writer \"w3\"; did you mean w0 or w1 or w2?",
        ),
        (
            "remove node7",
            "there is no node \"node7\"; there are w0, w1, w2, r0, r1",
        ),
        (
            "r0 up=1Gbit",
            "\"r0\" is a reader, not a writer; the speed of a reader is down=RATE",
        ),
        (
            "w0 down=1Gbit",
            "\"w0\" is a writer, not a reader; the speed of a writer is up=RATE",
        ),
        ("add writer w0 like w1", "there is a writer \"w0\" already"),
        ("add writer w9 like x", "there is no node \"x\""),
        (
            "add writer w9 like r0",
            "no rate for w9: r0 is a reader and has none to copy; add up=RATE",
        ),
        ("pair w0 r0 cap=x2", "the pair w0 r0 has no cap to multiply"),
        ("pair r0 w0 cap=0", "there is no writer \"r0\""),
        (
            "trunk 1 cap=x2",
            "there is no trunk 1; the transfer has trunk 0",
        ),
        ("add trunk w0 r7 cap=0", "there is no reader \"r7\""),
    ] {
        let error = refusal(change);
        assert!(error.contains(part), "{change}: {error}");
    }
    let mut problem = problem();
    let half = parse("w0 up=x2 down=x2").unwrap();
    assert!(apply(&mut problem, &half).is_err());
    assert_eq!(problem, self::problem());
}

/// In a specification nodes are `HOST:PORT`; the host is enough where it is alone.
#[test]
fn hosts_are_enough_where_they_are_alone() {
    let sender = |name: &str| Sender {
        name: name.to_owned(),
        up: 1,
        ranges: RangeSet::new(),
    };
    let mut problem = Problem {
        senders: vec![sender("a:1"), sender("b:1"), sender("b:2")],
        receivers: vec![Receiver {
            name: "a:9".into(),
            down: 1,
            ..Receiver::default()
        }],
        ..Problem::default()
    };
    apply(&mut problem, &parse("a up=x5").unwrap()).unwrap();
    assert_eq!(problem.senders[0].up, 5);
    let mut error = |text| {
        apply(&mut problem, &parse(text).unwrap())
            .unwrap_err()
            .to_string()
    };
    assert!(error("b up=x2").contains("could be writer b:1 or writer b:2"));
    assert!(error("remove a").contains("could be writer a:1 or reader a:9"));
    assert!(error("remove c").contains("did you mean a:1 or a:9 or b:1?"));
}
