//! Control messages and bytes per node, 2 to 64 nodes on loopback.
//!
//! The paper (CEP section 4.2) counts four messages and 1 KB a node for a plain transfer. Handshakes and status are
//! reported beside them.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;
use ropewalk_proto::report::ControlReport;

use crate::bench::{Bench, Settings, Site};
use crate::ropewalk::{Agents, Moved, Place, words};
use crate::stats::span;
use crate::table::{Table, number};
use ropewalk_plot::{self as plot, Series, Style, Titles};

const NODES: [usize; 6] = [2, 4, 8, 16, 32, 64];

/// Bytes for each receiver: enough to be planned like any transfer.
const PART: u64 = 4 << 20;

/// What the paper counts (section 4.2).
const PAPER_MESSAGES: f64 = 4.0;
const PAPER_BYTES: f64 = 1024.0;

const COLUMNS: [(&str, &str); 8] = [
    ("nodes", "nodes"),
    ("layout", "layout"),
    ("plan_messages_per_node", "messages/node"),
    ("plan_bytes_per_node", "bytes/node"),
    ("handshake_bytes_per_node", "handshake/node"),
    ("status_messages_per_node", "status/node"),
    ("status_bytes_per_node", "status bytes/node"),
    ("seconds", "s"),
];

/// Who has and wants what.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    /// Sender i has part i, which receiver i wants.
    Parts,
    /// Every sender has everything, which every receiver wants.
    Copies,
}

impl Layout {
    fn name(self) -> &'static str {
        match self {
            Self::Parts => "own part each",
            Self::Copies => "all have all",
        }
    }
}

fn measure(site: &Site, nodes: usize, layout: Layout) -> Result<Moved> {
    let mut agents = Agents::new(site)?;
    let mut spec = String::new();
    for pair in 0..nodes / 2 {
        let (sender, receiver) = (format!("s{pair}"), format!("r{pair}"));
        agents.start_local(&sender, &[])?;
        agents.start_local(&receiver, &[])?;
        let start = match layout {
            Layout::Parts => pair as u64 * PART,
            Layout::Copies => 0,
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            spec,
            "writer {} \"mem:{PART}\" 0 {start}+{PART}",
            agents.address(&sender)
        );
        let _ = writeln!(
            spec,
            "reader {} \"null:\" 0 {start}+{PART}",
            agents.address(&receiver)
        );
    }
    let spec = agents.spec(&spec)?;
    let arguments = words(&format!("transfer {spec} --plain"));
    agents.run_once(Place::Machine, &arguments, Duration::from_secs(120))
}

/// Makes the table of control traffic.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "control")?;
    let site = bench.site();
    let key = |nodes: usize, layout: Layout| format!("{nodes} nodes, {}", layout.name());
    let points = NODES
        .into_iter()
        .flat_map(|nodes| [(nodes, Layout::Parts), (nodes, Layout::Copies)]);
    let points: Vec<(usize, Layout)> = points.collect();
    bench.expect(
        points
            .iter()
            .map(|&(nodes, layout)| (key(nodes, layout), 0.5 + nodes as f64 * 0.03)),
    );

    let mut table = Table::new("Control traffic of a plain transfer, per node", &COLUMNS);
    let mut curves =
        [Layout::Parts, Layout::Copies].map(|layout| Series::new(layout.name(), Style::Marks));
    for (nodes, layout) in points {
        let Some(moved) = bench.point(&key(nodes, layout), || measure(&site, nodes, layout)) else {
            continue;
        };
        let control: &ControlReport = &moved.report.control;
        let each = |count: u64| count as f64 / nodes as f64;
        curves[usize::from(layout == Layout::Copies)]
            .points
            .push((nodes as f64, each(control.plan_bytes)));
        table.row(vec![
            number(nodes as f64, 0),
            layout.name().into(),
            number(each(control.plan_messages), 2),
            number(each(control.plan_bytes), 0),
            number(each(control.handshake_bytes), 0),
            number(each(control.status_messages), 2),
            number(each(control.status_bytes), 0),
            number(moved.report.seconds, 2),
        ]);
    }
    for curve in &curves {
        let bytes = curve.points.iter().map(|point| point.1);
        bench.headline(
            format!(
                "plan messages, 2 to 64 nodes, {}: bytes a node (paper: about {PAPER_BYTES})",
                curve.name
            ),
            span(bytes, 0),
        );
    }
    table.note(format!(
        "the paper: {PAPER_MESSAGES} messages, about {PAPER_BYTES} bytes a node (plan messages)."
    ));
    table.note("status depends on time, not on nodes; handshakes once a transfer.");
    let mut series = curves.to_vec();
    series.push(Series::with(
        "paper: 1 KB",
        Style::Dashed,
        vec![(2.0, PAPER_BYTES), (64.0, PAPER_BYTES)],
    ));
    let titles = Titles {
        title: "Plan messages of a plain transfer",
        x: "nodes",
        y: "bytes a node",
    };
    plot::lines(&bench.plot_path("control"), titles, &[], &series)?;
    bench.finish(&[table])
}
