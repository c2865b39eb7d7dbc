//! A report for tests.

use ropewalk_proto::report::{
    BoundReport, ControlReport, NodeReport, Outcome, PairReport, Report, SourcesReport,
    StreamsReport,
};

pub(super) fn report() -> Report {
    Report {
        transfer: "0190-id".into(),
        label: Some("My Data File".into()),
        wanted_bytes: 8192,
        delivered_bytes: 4096,
        files: 2,
        sources: Some(SourcesReport {
            parts: 1,
            holders: 3,
            separate: false,
        }),
        seconds: 2.0,
        reach_seconds: 0.5,
        start_seconds: 0.25,
        finish_seconds: 0.125,
        bits_per_second: 16384.0,
        moving_bits_per_second: 18000.0,
        scheduler: "greedy".into(),
        predicted_seconds: Some(1.5),
        bound: Some(BoundReport {
            basis: "declared".into(),
            seconds: 1.0,
            bits_per_second: 65536.0,
            share: Some(0.571),
            exceeded: false,
            without_handing_on_seconds: None,
            binding: vec!["b".into()],
            is_exact: true,
        }),
        verify: "tree".into(),
        nodes: vec![
            NodeReport {
                node: "a".into(),
                sent_bytes: 4096,
                ..NodeReport::default()
            },
            NodeReport {
                node: "b".into(),
                received_bytes: 4096,
                error: Some("killed".into()),
                ..NodeReport::default()
            },
        ],
        pairs: vec![PairReport {
            sender: "a".into(),
            receiver: "b".into(),
            lane: "tcp".into(),
            way: "reversed".into(),
            rail: None,
            streams: 4,
            bytes: 4096,
            corrupt_units: 0,
            waiting_seconds: 0.0,
            datagrams: 0,
            datagrams_again: 0,
            blast: None,
        }],
        missing: [("b".to_owned(), vec![(0, 1024), (2048, 2049)])].into(),
        streams: Some(StreamsReport {
            policy: "model".into(),
            changes: 3,
            receivers: 2,
            streams: 16,
            others: 1,
        }),
        corrupt_units: 3,
        control: ControlReport {
            nodes: 2,
            plan_messages: 8,
            plan_bytes: 2000,
            ..ControlReport::default()
        },
        notes: vec!["a was lost".into()],
        ..Report::ended(Outcome::Partial)
    }
}
