use super::*;

const GIGA: u64 = 1_000_000_000;

fn agent(id: &str, process: u32) -> Sample {
    Sample {
        speaker: Speaker::Agent,
        process,
        transfer: Some(id.into()),
        kind: "transfer".into(),
        seconds: 5.0,
        ..Sample::default()
    }
}

fn seen(place: &str, samples: &[Sample]) -> Seen {
    Seen {
        place: place.into(),
        answer: Ok(samples.to_vec()),
    }
}

fn at(second: u64) -> Instant {
    Instant(second * GIGA)
}

/// Rates are those of the last seconds, also after a pause, and of a counter that began again; the first look has none.
#[test]
fn rates_are_those_of_the_last_seconds() {
    let mut watch = Watch::default();
    let mut rate = |second: u64, received: u64| {
        let sample = Sample {
            seconds: second as f64,
            received,
            total: Some(1000),
            ..agent("a", 7)
        };
        let report = watch.observe(at(second), &[seen("n", &[sample])], 0);
        (report.transfers[0].bits_per_second, watch.needs_more())
    };
    assert_eq!(rate(0, 0), (0.0, true));
    assert_eq!(rate(1, 100), (800.0, false));
    assert_eq!(rate(2, 200), (800.0, false));
    assert_eq!(rate(3, 200), (200.0 * 8.0 / 3.0, false));
    assert_eq!(rate(4, 200), (100.0 * 8.0 / 3.0, false));
    assert_eq!(rate(5, 200).0, 0.0);
    assert_eq!(rate(6, 100).0, 0.0, "it began again");
    assert_eq!(rate(7, 150).0, 400.0);
    assert_eq!(rate(7, 150).0, 400.0, "the same answer, seen once more");
}

/// What ended is forgotten: when its place answers again, it begins again.
#[test]
fn what_ended_is_forgotten() {
    let mut watch = Watch::default();
    let sample = |received| Sample {
        received,
        ..agent("a", 7)
    };
    watch.observe(at(0), &[seen("n", &[sample(0)])], 0);
    assert_eq!(watch.0.len(), 1);
    watch.observe(at(1), &[seen("n", &[])], 0);
    assert!(watch.0.is_empty());
    let report = watch.observe(at(2), &[seen("n", &[sample(500)])], 0);
    assert_eq!(report.transfers[0].bits_per_second, 0.0);
}

/// A transfer that its command and its agents know of is one row, and the command's; two without an id are two.
#[test]
fn a_transfer_is_one_row() {
    let command = Sample {
        process: 3,
        transfer: Some("a".into()),
        kind: "copy".into(),
        received: 40,
        total: Some(80),
        bits_per_second: Some(77.0),
        nodes: vec![NodeRow::default(); NODES_MAX + 2],
        nodes_more: 3,
        ..Sample::default()
    };
    let unnamed = Sample {
        kind: "copy".into(),
        seconds: 9.0,
        ..Sample::default()
    };
    let here = [agent("a", 7), command, unnamed.clone(), unnamed];
    let report =
        Watch::default().observe(at(0), &[seen("x", &here), seen("b", &[agent("a", 8)])], 5);
    let of: Vec<_> = report
        .transfers
        .iter()
        .map(|row| (row.transfer.as_deref(), row.process))
        .collect();
    assert_eq!(of, [(None, Some(0)), (None, Some(0)), (Some("a"), Some(3))]);
    let row = &report.transfers[2];
    assert_eq!(row.places, ["b", "x"]);
    assert_eq!((row.bits_per_second, row.kind.as_str()), (77.0, "copy"));
    assert_eq!((row.nodes.len(), row.nodes_more), (NODES_MAX, 5));
    assert_eq!(report.at_seconds, 5);
}

/// A place that does not answer is there with its reason; the others' transfers are shown.
#[test]
fn places_that_do_not_answer_hide_no_others() {
    let places = [
        Seen {
            place: "away".into(),
            answer: Err("start it".into()),
        },
        seen("b", &[agent("a", 8)]),
    ];
    let report = Watch::default().observe(at(0), &places, 0);
    assert_eq!(report.places[0].error.as_deref(), Some("start it"));
    assert_eq!(
        (report.places[1].error.as_deref(), report.transfers.len()),
        (None, 1)
    );
}

/// An agent that is named by its port, and whose host is asked too, is one node; two agents of one place are two.
#[test]
fn an_agent_that_is_asked_twice_is_one_node() {
    let mut watch = Watch::default();
    let sample = |process, name: &str, second: u64| Sample {
        agent: Some(name.into()),
        seconds: second as f64,
        received: second * 100,
        safe: second * 50,
        total: Some(1000),
        receiving: Some(Spent {
            disk: second,
            ..Spent::default()
        }),
        ..agent("a", process)
    };
    let mut look = |second| {
        let here = [sample(7, "first", second), sample(8, "other", second)];
        let places = [
            seen("n", &here),
            seen("n:7420", &[sample(0, "first", second)]),
        ];
        watch.observe(at(second), &places, 0)
    };
    look(1);
    let report = look(2);
    let row = &report.transfers[0];
    let nodes: Vec<&str> = row.nodes.iter().map(|node| node.node.as_str()).collect();
    assert_eq!(nodes, ["n, process 7", "n, process 8"]);
    assert_eq!(row.places, ["n", "n:7420"]);
    assert_eq!((row.received_bytes, row.delivered_bytes), (400, 200));
    assert_eq!((row.total_bytes, row.bits_per_second), (Some(2000), 1600.0));
    assert_eq!(row.bottlenecks.len(), 2);
    // Of agents that do not say it each counts.
    let old = || Sample {
        total: Some(10),
        ..agent("a", 7)
    };
    let old = [old(), old()];
    let report = Watch::default().observe(at(0), &[seen("n", &old)], 0);
    assert_eq!(report.transfers[0].nodes.len(), 2);
}

/// Two agents of one transfer: bytes are counted where they are received, and what a receiver waits for is its sender's cause.
#[test]
fn agents_together_name_the_cause() {
    let mut watch = Watch::default();
    let mut look = |second: u64, write: u64, wait: u64, read: u64, both: bool| {
        let receiver = Sample {
            seconds: second as f64,
            received: second * 100,
            safe: second * 50,
            total: Some(1000),
            receiving: Some(Spent {
                disk: write,
                peer: wait,
                ..Spent::default()
            }),
            ..agent("a", 1)
        };
        let sender = Sample {
            seconds: second as f64,
            sent: second * 110,
            total: Some(0),
            sending: Some(Spent {
                disk: read,
                ..Spent::default()
            }),
            ..agent("a", 2)
        };
        let mut places = vec![seen("to", &[receiver])];
        if both {
            places.push(seen("from", &[sender]));
        }
        watch.observe(at(second), &places, 0).transfers.remove(0)
    };
    look(0, 0, 0, 0, true);
    let row = look(1, 2, 6, 5, true);
    assert_eq!(
        (row.received_bytes, row.delivered_bytes, row.total_bytes),
        (100, 50, Some(1000))
    );
    assert_eq!((row.bits_per_second, row.eta_seconds), (800.0, Some(9.0)));
    let of = |row: &TransferRow| -> Vec<(BottleneckCause, String, f64)> {
        let causes = row.bottlenecks.iter();
        causes
            .map(|one| (one.cause, one.node.clone().unwrap(), one.share))
            .collect()
    };
    use BottleneckCause as Of;
    assert_eq!(
        of(&row),
        [
            (Of::SourceDisk, "from".into(), 0.75),
            (Of::SinkDisk, "to".into(), 0.25)
        ]
    );
    let nodes: Vec<_> = row
        .nodes
        .iter()
        .map(|node| (node.node.as_str(), node.sends, node.bytes))
        .collect();
    assert_eq!(nodes, [("to", false, 100), ("from", true, 110)]);
    let row = look(2, 2, 6, 5, false);
    assert_eq!(
        of(&row),
        [
            (Of::Peers, "to".into(), 0.75),
            (Of::SinkDisk, "to".into(), 0.25)
        ]
    );
}

/// A sender alone: what it sent counts, and when nearly all its threads wait for requests it waits for others.
#[test]
fn a_sender_alone_is_shown() {
    let look = |processor: u64, peer: u64| {
        let mut watch = Watch::default();
        let sample = |sent: u64, spent| Sample {
            seconds: sent as f64 / 10.0,
            sent,
            total: Some(0),
            sending: Some(spent),
            ..agent("a", 2)
        };
        watch.observe(at(0), &[seen("n", &[sample(0, Spent::default())])], 0);
        let spent = Spent {
            processor,
            peer,
            ..Spent::default()
        };
        watch
            .observe(at(1), &[seen("n", &[sample(10, spent)])], 0)
            .transfers
            .remove(0)
    };
    let row = look(20, 100);
    assert_eq!(
        (row.received_bytes, row.total_bytes, row.bits_per_second),
        (10, None, 80.0)
    );
    assert_eq!(row.bottlenecks[0].cause, BottleneckCause::SenderProcessor);
    assert_eq!(look(5, 100).bottlenecks[0].cause, BottleneckCause::Peers);
}

/// A receiver that gets what its limit allows is held back by that, whatever its threads do.
#[test]
fn a_limit_that_is_reached_is_named() {
    let cause = |limit| {
        let mut watch = Watch::default();
        let sample = |second: u64| Sample {
            seconds: second as f64,
            received: second * 100,
            limit,
            receiving: Some(Spent {
                processor: second,
                ..Spent::default()
            }),
            ..agent("a", 2)
        };
        watch.observe(at(0), &[seen("n", &[sample(0)])], 0);
        let mut report = watch.observe(at(1), &[seen("n", &[sample(1)])], 0);
        let row = report.transfers.remove(0);
        row.bottlenecks[0].cause
    };
    assert_eq!(cause(Some(105)), BottleneckCause::Limit);
    for limit in [None, Some(200)] {
        assert_eq!(cause(limit), BottleneckCause::ReceiverProcessor);
    }
}

/// After the last byte a receiver makes it safe.
#[test]
fn the_end_is_syncing() {
    let spent = Spent {
        sync: 5,
        ..Spent::default()
    };
    assert_eq!(of_receiver(&spent, "n")[0].cause, BottleneckCause::Syncing);
    assert_eq!(of_receiver(&Spent::default(), "n"), []);
}

/// Rates go by the ages that an agent says, and not by when its answers are looked at; those of a command by when it was asked.
#[test]
fn rates_go_by_the_clock_of_the_answer() {
    let rate = |speaker| {
        let mut watch = Watch::default();
        let mut report = TopReport::default();
        for (second, seconds, received) in [(0, 0.0, 0), (1, 0.5, 100)] {
            let sample = Sample {
                speaker,
                seconds,
                received,
                total: Some(1000),
                ..agent("a", 7)
            };
            report = watch.observe(at(second), &[seen("n", &[sample])], 0);
        }
        report.transfers[0].bits_per_second
    };
    assert_eq!(
        (rate(Speaker::Agent), rate(Speaker::Command)),
        (1600.0, 800.0)
    );
}

/// Two agents of one place are named by their processes.
#[test]
fn agents_of_one_place_have_names_of_their_own() {
    let agents = [agent("a", 1), agent("a", 2)];
    let report = Watch::default().observe(at(0), &[seen("n", &agents), seen("m", &agents[..1])], 0);
    let nodes = report.transfers[0].nodes.iter();
    let names: Vec<&str> = nodes.map(|node| node.node.as_str()).collect();
    assert_eq!(names[..3], ["n, process 1", "n, process 2", "m"]);
}

/// The same answer of an agent, looked at twice, gives no rate: another one is needed.
#[test]
fn an_answer_that_is_seen_twice_is_one() {
    let mut watch = Watch::default();
    for second in [0, 1] {
        watch.observe(at(second), &[seen("n", &[agent("a", 7)])], 0);
    }
    assert!(watch.needs_more());
}

/// Agents may say any numbers.
#[test]
fn absurd_numbers_are_numbers() {
    let mut watch = Watch::default();
    let sample = |process| Sample {
        received: u64::MAX,
        total: Some(u64::MAX),
        nodes_more: usize::MAX,
        ..agent("a", process)
    };
    let samples: Vec<Sample> = (0..200).map(sample).collect();
    let report = watch.observe(at(1), &[seen("n", &samples)], 0);
    assert_eq!(report.transfers[0].total_bytes, Some(u64::MAX));
    let mut command = sample(7);
    command.speaker = Speaker::Command;
    command.nodes = vec![NodeRow::default(); 100];
    let report = watch.observe(at(2), &[seen("n", &[command])], 0);
    assert_eq!(report.transfers[0].nodes_more, usize::MAX);
}
