//! Nodes that join while bytes move get work: who adds resources gets a faster transfer (CEP section 5.2.3).

use ropewalk_model::Range;
use ropewalk_proto::coordinator::NodeSetup;
use ropewalk_proto::report::Outcome;
use ropewalk_sim::{Change, MS, SECOND, Scenario, Speed, changed_bound, node};

/// 100 Mbit/s.
const LINK: f64 = 12.5e6;

const BYTES: u64 = 100_000_000;

const ALL: Range = Range {
    start: 0,
    end: BYTES,
};

/// What finding out, planning anew, connecting and syncing may take in all, seconds.
const OVERHEAD: f64 = 0.8;

/// The same where the node joins before the speeds of the others have shown.
const OVERHEAD_EARLY: f64 = 2.5;

fn writer(name: &str) -> NodeSetup {
    node(name, &[ALL], &[], None)
}

fn reader(name: &str, destination: Option<&str>) -> NodeSetup {
    node(name, &[], &[ALL], destination)
}

/// These nodes, their speeds in links; from number `first_new` on they join after so many milliseconds.
fn joins(
    nodes: &[NodeSetup],
    links: &[f64],
    first_new: u32,
    after: u64,
    declared: bool,
) -> Scenario {
    let speeds = links.iter().map(|&links| Speed::both(links * LINK));
    let scenario = Scenario::new(nodes.to_vec(), speeds.collect());
    let scenario = match declared {
        true => scenario.declared(),
        false => scenario,
    };
    (first_new..nodes.len() as u32).fold(scenario, |scenario, node| {
        scenario.then(after * MS, node, Change::Joins)
    })
}

/// It takes hardly longer than the network allows that it has become; seconds.
#[track_caller]
fn assert_helps(what: &str, scenario: &Scenario) -> f64 {
    assert_helps_within(what, scenario, OVERHEAD)
}

#[track_caller]
fn assert_helps_within(what: &str, scenario: &Scenario, overhead: f64) -> f64 {
    let bound = changed_bound(scenario).unwrap();
    let ended = scenario.run();
    assert_eq!(ended.outcome, Some(Outcome::Done), "{:#?}", ended.notes);
    assert!(
        ended.seconds < bound + overhead,
        "{what}: {:.2} s of {bound:.2} s",
        ended.seconds
    );
    ended.seconds
}

/// One writer, one reader with room for two, and a second writer after two seconds: 5 s are possible.
#[test]
fn a_second_writer_gets_half_of_what_is_left() {
    for declared in [true, false] {
        for destination in [None, Some("out")] {
            let nodes = [writer("a"), reader("r", destination), writer("b")];
            let scenario = joins(&nodes, &[1.0, 2.0, 1.0], 2, 2000, declared);
            let what = format!("declared {declared}, {destination:?}");
            let seconds = assert_helps(&what, &scenario);
            assert!(seconds < 5.5, "{what}: {seconds:.2} s");
        }
    }
}

/// Whatever it can, and whether the reader has room for it or not, and before speeds have shown, too.
#[test]
fn a_second_writer_of_any_speed_helps_or_does_no_harm() {
    let links = [
        ("a slower one", [1.0, 2.0, 0.5]),
        ("a much slower one", [1.0, 2.0, 0.02]),
        ("a faster one", [0.5, 2.0, 1.0]),
        ("a much faster one", [1.0, 10.0, 5.0]),
        ("no room", [1.0, 1.0, 1.0]),
    ];
    for (what, links) in links {
        for (declared, after) in [(true, 2000), (false, 2000), (true, 300), (false, 300)] {
            for destination in [None, Some("out")] {
                let nodes = [writer("a"), reader("r", destination), writer("b")];
                let scenario = joins(&nodes, &links, 2, after, declared);
                let what = format!("{what}, declared {declared}, {after} ms, {destination:?}");
                let overhead = match after {
                    300 => OVERHEAD_EARLY,
                    _ => OVERHEAD,
                };
                assert_helps_within(&what, &scenario, overhead);
            }
        }
    }
}

/// With two readers: copies, halves of one, and one that they share.
#[test]
fn a_second_writer_helps_two_readers() {
    let (low, high) = (Range::new(0, BYTES / 2), Range::new(BYTES / 2, BYTES));
    let readers = [
        ("copies", ALL, ALL, None),
        ("halves", low, high, None),
        ("shared", ALL, ALL, Some("out")),
    ];
    for (what, one, two, destination) in readers {
        for declared in [true, false] {
            let nodes = [
                writer("a"),
                node("r", &[], &[one], destination),
                node("q", &[], &[two], destination),
                writer("b"),
            ];
            let scenario = joins(&nodes, &[1.0; 4], 3, 2000, declared);
            assert_helps(&format!("{what}, declared {declared}"), &scenario);
        }
    }
}

/// A third writer helps two.
#[test]
fn a_third_writer_helps_two() {
    for declared in [true, false] {
        let nodes = [writer("a"), writer("b"), reader("r", None), writer("c")];
        let scenario = joins(&nodes, &[1.0, 1.0, 3.0, 1.0], 3, 2000, declared);
        assert_helps(&format!("declared {declared}"), &scenario);
        let [a, b, r, c] = nodes;
        let nodes = [a, b, r, reader("q", None), c];
        let scenario = joins(&nodes, &[1.0, 1.0, 3.0, 3.0, 1.0], 4, 2000, declared);
        assert_helps(&format!("two copies, declared {declared}"), &scenario);
    }
}

/// The same on the other side: a second reader of a destination takes half of what is left; and both at once.
#[test]
fn a_second_reader_of_a_destination_gets_work() {
    for declared in [true, false] {
        let shared = |name| reader(name, Some("out"));
        let nodes = [writer("a"), shared("r"), shared("q")];
        let scenario = joins(&nodes, &[2.0, 1.0, 1.0], 2, 2000, declared);
        assert_helps(&format!("declared {declared}"), &scenario);
        let nodes = [writer("a"), shared("r"), writer("b"), shared("q")];
        let scenario = joins(&nodes, &[1.0; 4], 2, 2000, declared);
        assert_helps(&format!("both, declared {declared}"), &scenario);
    }
}

/// One that joins, and dies a second later, leaves no hole; and the transfer takes no longer than without it.
#[test]
fn a_writer_that_joins_and_dies_does_no_harm() {
    for declared in [true, false] {
        let nodes = [writer("a"), reader("r", None), writer("b")];
        let scenario = joins(&nodes, &[1.0, 2.0, 1.0], 2, 2000, declared);
        assert_helps("dies", &scenario.then(3 * SECOND, 2, Change::Dies));
    }
}
