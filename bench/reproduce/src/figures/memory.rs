//! Peak resident memory of agents: by lanes, by prefetch, and per node while 16 pairs move.
//!
//! The paper (CEP section 5.2.2) had about 4 MB a node, in proportion to flows and to the data fetched ahead. A
//! process has its code and libraries resident, too; so the table gives the agent before the transfer as well.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;

use crate::bench::{Bench, Settings, Site};
use crate::figures::composition;
use crate::ropewalk::{AgentUse, Agents, Moved, Place, words};
use crate::stats::{span, summary};
use crate::table::{Table, number};
use ropewalk_plot::{self as plot, Series, Style, Titles};

/// Lanes into one receiver: one for each sender.
const LANES: [usize; 3] = [1, 8, 64];

/// What `--prefetch` is set to.
const PREFETCH: [&str; 3] = ["1MiB", "4MiB", "16MiB"];

const MIB: f64 = 1_048_576.0;

/// Pairs of the lab's run, as in Figure 4.
const PAIRS: usize = 16;

const COLUMNS: [(&str, &str); 8] = [
    ("case", "case"),
    ("prefetch", "prefetch"),
    ("receiver_peak_mebibytes", "receiver MiB"),
    ("receiver_idle_mebibytes", "before"),
    ("receiver_growth_mebibytes", "growth"),
    ("sender_peak_mebibytes", "sender MiB"),
    ("sender_growth_mebibytes", "growth"),
    ("gigabits_per_second", "Gbit/s"),
];

/// `lanes` senders on loopback, each with its part, to one receiver.
fn measure(site: &Site, lanes: usize, bytes: u64, prefetch: &str) -> Result<Moved> {
    let mut agents = Agents::new(site)?;
    agents.start_local("r", &[])?;
    let part = bytes / lanes as u64;
    let mut spec = String::new();
    for lane in 0..lanes {
        let name = format!("s{lane}");
        agents.start_local(&name, &[])?;
        let range = format!("{}+{part}", lane as u64 * part);
        // Writing to a string cannot fail.
        let _ = writeln!(
            spec,
            "writer {} \"mem:{part}\" 0 {range}",
            agents.address(&name)
        );
    }
    let all = part * lanes as u64;
    let _ = writeln!(spec, "reader {} \"null:\" 0 0+{all}", agents.address("r"));
    let spec = agents.spec(&spec)?;
    let arguments = words(&format!("transfer {spec} --lane tcp --prefetch {prefetch}"));
    agents.run_once(Place::Machine, &arguments, Duration::from_secs(180))
}

fn growth(agent: &AgentUse) -> f64 {
    agent
        .resident_bytes_max
        .saturating_sub(agent.idle_resident_bytes) as f64
        / MIB
}

/// Makes the table of memory.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "memory")?;
    let site = bench.site();
    let bytes: u64 = if settings.quick { 1 << 30 } else { 4 << 30 };
    let pair_bytes: u64 = if settings.quick {
        25_000_000
    } else {
        125_000_000
    };
    let key =
        |lanes: usize, prefetch: &str| format!("{lanes} lanes, {bytes} bytes, prefetch {prefetch}");
    let pairs_key = |prefetch: &str| {
        format!("{PAIRS} pairs in the lab, {pair_bytes} bytes each, prefetch {prefetch}")
    };
    let has_lab = ropewalk_lab::available();
    for prefetch in PREFETCH {
        bench.expect(
            LANES
                .iter()
                .map(|&lanes| (key(lanes, prefetch), bytes as f64 / 0.6e9)),
        );
        if has_lab.is_ok() {
            bench.expect([(pairs_key(prefetch), pair_bytes as f64 * 8.0 / 95e6 + 2.0)]);
        }
    }

    let mut table = Table::new("Peak resident memory of one agent", &COLUMNS);
    let mut series = Vec::new();
    for prefetch in PREFETCH {
        let mut curve = Series::new(format!("receiver, prefetch {prefetch}"), Style::Marks);
        let mut row = |case: String, moved: &Moved, receivers: &[&AgentUse]| {
            let senders: Vec<&AgentUse> = moved
                .agents
                .iter()
                .filter(|agent| agent.name.starts_with('s'))
                .collect();
            let most = |agents: &[&AgentUse], of: fn(&AgentUse) -> f64| {
                summary(agents.iter().map(|a| of(a))).map(|all| all.max)
            };
            let peak = |agent: &AgentUse| agent.resident_bytes_max as f64 / MIB;
            table.row(vec![
                case.into(),
                prefetch.into(),
                number(most(receivers, peak), 1),
                number(
                    most(receivers, |agent| agent.idle_resident_bytes as f64 / MIB),
                    1,
                ),
                number(most(receivers, growth), 1),
                number(most(&senders, peak), 1),
                number(most(&senders, growth), 1),
                number(moved.report.bits_per_second / 1e9, 2),
            ]);
        };
        let receivers = |moved: &Moved| -> Vec<AgentUse> {
            moved
                .agents
                .iter()
                .filter(|agent| agent.name.starts_with('r'))
                .cloned()
                .collect()
        };
        for lanes in LANES {
            let Some(moved) = bench.point(&key(lanes, prefetch), || {
                measure(&site, lanes, bytes, prefetch)
            }) else {
                continue;
            };
            let receivers = receivers(&moved);
            for receiver in &receivers {
                curve
                    .points
                    .push((lanes as f64, receiver.resident_bytes_max as f64 / MIB));
            }
            row(
                format!("{lanes} senders to one"),
                &moved,
                &receivers.iter().collect::<Vec<_>>(),
            );
        }
        series.push(curve);
        if has_lab.is_err() {
            continue;
        }
        let options = format!("--prefetch {prefetch}");
        let moved = bench.point(&pairs_key(prefetch), || {
            composition::measure(&site, PAIRS, pair_bytes, true, &options)
        });
        if let Some(moved) = moved {
            let receivers = receivers(&moved);
            row(
                format!("{PAIRS} pairs at 100 Mbit/s"),
                &moved,
                &receivers.iter().collect::<Vec<_>>(),
            );
        }
    }
    for curve in &series {
        let peaks = curve.points.iter().map(|point| point.1);
        bench.headline(
            format!(
                "peak memory, {}, 1 to 64 senders (paper: about 4 MB a node)",
                curve.name
            ),
            format!("{} MiB", span(peaks, 1)),
        );
    }
    if let Err(reason) = has_lab {
        table.note(format!(
            "no lab here ({reason}): the {PAIRS} pairs are missing"
        ));
    }
    table.note("peaks are VmHWM of the largest agent, code and libraries included; growth is beyond what it had before the transfer.");
    table.note("the paper had about 4 MB a node.");
    let places = Series::with(
        "paper: 4 MB a node",
        Style::Dashed,
        vec![(1.0, 4e6 / MIB), (64.0, 4e6 / MIB)],
    );
    series.push(places);
    let titles = Titles {
        title: "Peak memory of a receiving agent",
        x: "lanes (senders)",
        y: "MiB resident",
    };
    plot::lines(&bench.plot_path("memory"), titles, &[], &series)?;
    bench.finish(&[table])
}
