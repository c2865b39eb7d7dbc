//! Nodes that differ: a receiver with a tenth of the uplink, two senders with different halves, windows that three want. Times over the bound
//! that `plan` states of the same rows.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use ropewalk_lab::Burst;
use ropewalk_model::{ByteRate, Range, TransferSpec};

use crate::bench::Bench;
use crate::network::{MASTER, hint};
use crate::ropewalk::{PORT, Place, words};
use crate::scenario::deadline;
use crate::table::{Table, number};

use super::{COPY, NAME, Rig, SOURCE, Sample, sent_bytes};

/// Cap of a host that is not odd.
const LINK: u64 = 100_000_000;

/// Parts of the data that windows are made of.
const PARTS: u64 = 8;

/// What is odd about a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Odd {
    Uplink,
    Halves,
    Windows,
}

const ALL: [Odd; 3] = [Odd::Uplink, Odd::Halves, Odd::Windows];

/// A network, and whether speeds are declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    odd: Odd,
    has_hints: bool,
}

/// A host: caps of what it sends and receives, and what it holds or wants.
#[derive(Clone, Copy, Debug)]
struct Node {
    up: u64,
    down: u64,
    range: Range,
}

pub(super) fn points() -> impl Iterator<Item = Point> {
    let both = |odd| [true, false].map(|has_hints| Point { odd, has_hints });
    ALL.into_iter().flat_map(both)
}

impl Odd {
    fn name(self) -> &'static str {
        match self {
            Self::Uplink => "one of 8 receivers with a tenth of the uplink",
            Self::Halves => "two senders with different halves, 6 receivers",
            Self::Windows => "8 senders, windows of 8 receivers, each part wanted by three",
        }
    }

    /// Senders and receivers.
    fn nodes(self, bytes: u64) -> [Vec<Node>; 2] {
        let node = |start, end| Node {
            up: LINK,
            down: LINK,
            range: Range::new(start, end),
        };
        let all = node(0, bytes);
        match self {
            Self::Uplink => {
                let slow = Node {
                    up: LINK / 10,
                    ..all
                };
                [vec![all], [vec![all; 7], vec![slow]].concat()]
            }
            Self::Halves => [
                vec![node(0, bytes / 2), node(bytes / 2, bytes)],
                vec![all; 6],
            ],
            Self::Windows => {
                let part = |at: u64| at.min(PARTS) * bytes / PARTS;
                let windows = |parts| (0..PARTS).map(move |at| node(part(at), part(at + parts)));
                let quick = windows(3).map(|node| Node {
                    down: 4 * LINK,
                    ..node
                });
                [windows(2).collect(), quick.collect()]
            }
        }
    }

    fn specification(self, bytes: u64, has_hints: bool) -> String {
        let mut text = String::new();
        let sides = self.nodes(bytes);
        let places = [
            ('a', "writer", format!("{SOURCE}/{NAME}")),
            ('b', "reader", COPY.to_owned()),
        ];
        for (nodes, (letter, kind, path)) in sides.into_iter().zip(places) {
            for (at, node) in (1..).zip(nodes) {
                let (start, len) = (node.range.start, node.range.len());
                let speeds = match (has_hints, kind) {
                    (false, _) => String::new(),
                    (true, "writer") => format!(" up={}", hint(node.up)),
                    (true, _) => format!(" down={} up={}", hint(node.down), hint(node.up)),
                };
                // Writing to a string cannot fail.
                let _ = writeln!(
                    text,
                    "{kind} {letter}{at}:{PORT} {path} {start} {start}+{len}{speeds}"
                );
            }
        }
        text
    }
}

impl Point {
    pub(super) fn name(self) -> String {
        let hints = if self.has_hints { "hints" } else { "no hints" };
        format!("{}, {hints}", self.odd.name())
    }

    pub(super) fn has_windows(self) -> bool {
        self.odd == Odd::Windows
    }

    /// As `plan` states it, with all speeds declared.
    pub(super) fn least_seconds(self, bytes: u64) -> Result<f64> {
        let text = self.odd.specification(bytes, true);
        let spec = TransferSpec::parse(&text).context("the rows of the figure")?;
        let bound = ropewalk_sched::relay_bound(&spec.to_problem(ByteRate(1)))?;
        Ok(bound.seconds)
    }
}

pub(super) fn measure(rig: &Rig<'_>, point: Point) -> Result<Sample> {
    let sides = point.odd.nodes(rig.bytes);
    let caps = sides
        .each_ref()
        .map(|nodes| nodes.iter().map(|node| node.down).collect::<Vec<u64>>());
    let lab = rig.flat(&caps[0], &caps[1], Burst::Auto)?;
    for (nodes, letter) in sides.iter().zip(['a', 'b']) {
        let odd = (1..).zip(nodes).filter(|(_, node)| node.up != node.down);
        for (at, node) in odd {
            lab.set_uplink(&format!("{letter}{at}"), 0, node.up)?;
        }
    }
    let senders = sides[0].len();
    let agents = rig.agents(&lab, senders, sides[1].len())?;
    let spec = agents.spec(&point.odd.specification(rig.bytes, point.has_hints))?;
    let arguments = words(&format!("transfer {spec} --relay auto"));
    let limit = deadline(point.least_seconds(rig.bytes)?);
    let moved = agents.run_once(Place::Host(&lab, MASTER), &arguments, limit)?;
    Ok(Sample {
        seconds: moved.report.seconds,
        sent_bytes: sent_bytes(&lab, senders)?,
        trunk_bytes: None,
        read_bytes: None,
        happened: None,
        moved: Some(moved),
    })
}

const COLUMNS: [(&str, &str); 7] = [
    ("case", "case"),
    ("megabytes", "MB"),
    ("speeds", "speeds"),
    ("seconds", "s"),
    ("bound_seconds", "bound s"),
    ("over_bound", "over bound"),
    ("sent_over_size", "sent/size"),
];

pub(super) fn table(
    bench: &mut Bench,
    samples: &[(super::Point, Sample)],
    sizes: super::Sizes,
) -> Result<Table> {
    let title = "Nodes that differ, one file, links of 100 Mbit/s".to_owned();
    let mut table = Table::new(title, &COLUMNS);
    for (point, sample) in samples {
        let bytes = point.bytes(sizes);
        let super::Point::Uneven(point) = *point else {
            continue;
        };
        let least = point.least_seconds(bytes)?;
        let over = sample.seconds / least;
        table.row(vec![
            point.odd.name().into(),
            number(bytes as f64 / 1e6, 0),
            if point.has_hints {
                "declared"
            } else {
                "unknown"
            }
            .into(),
            number(sample.seconds, 2),
            number(least, 2),
            number(over, 3),
            number(sample.sent_bytes as f64 / bytes as f64, 2),
        ]);
        bench.headline(
            format!("{}: time over the bound with relays", point.name()),
            format!("{over:.2}"),
        );
    }
    table.note("bound: that of `plan` for the same rows with all speeds declared. Receivers of windows receive at 400 Mbit/s and hand on at 100.");
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bounds by hand, in the time that a link takes for the data: all uplinks, or the sender's; for each part of a window two copies
    /// less those that the uplinks of receivers carry.
    #[test]
    fn bounds() {
        let bytes = 120_000_000;
        let link = bytes as f64 / (crate::network::tcp_rate(LINK) / 8.0);
        let of = |odd| {
            let point = Point {
                odd,
                has_hints: false,
            };
            point.least_seconds(bytes).unwrap() / link
        };
        // 8 copies over 1 + 7 + 0.1 uplinks; the downlinks take as long.
        assert!((of(Odd::Uplink) - 1.0).abs() < 1e-3, "{}", of(Odd::Uplink));
        assert!((of(Odd::Halves) - 1.0).abs() < 1e-3, "{}", of(Odd::Halves));
        // 21 parts of an eighth over 16 uplinks, and no window takes longer.
        assert!(
            (of(Odd::Windows) - 21.0 / 8.0 / 16.0).abs() < 0.05,
            "{}",
            of(Odd::Windows)
        );
    }

    /// Every row parses, with as many nodes as there are.
    #[test]
    fn rows_parse() {
        for point in points() {
            let text = point.odd.specification(800, point.has_hints);
            let spec = TransferSpec::parse(&text).unwrap();
            let [senders, receivers] = point.odd.nodes(800);
            assert_eq!(spec.rows.len(), senders.len() + receivers.len());
        }
    }
}
