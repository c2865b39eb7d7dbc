//! `--plot`: the time over what was varied most, or one run over time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, bail};
use ropewalk_plot::{self as plot, Series, Style, Titles};
use serde_json::{Map, Value};

use super::grid::Point;
use super::output::Done;

/// Lines that can be told apart.
const LINES_MAX: usize = 14;

/// What runs are drawn over.
pub(super) enum Layout {
    /// One run over time.
    Time,
    /// Several over a parameter: its name, and each run's line and place.
    Parameter(String, Vec<(String, f64)>),
}

/// How runs of these points are drawn.
///
/// # Errors
/// Where there is nothing to draw, or too much for one picture.
pub(super) fn layout(points: &[&Point]) -> Result<Layout> {
    match points {
        [_] => Ok(Layout::Time),
        all => over_parameter(all),
    }
}

/// Draws what was run.
pub(super) fn draw(path: &Path, layout: &Layout, done: &[Done]) -> Result<()> {
    match (layout, done) {
        (Layout::Parameter(x, places), runs) => draw_over_parameter(path, x, places, runs),
        (Layout::Time, [one]) => over_time(path, one),
        (Layout::Time, _) => bail!("several runs are not drawn over time"),
    }
}

fn over_time(path: &Path, done: &Done) -> Result<()> {
    // Packets sent and sent again, of all connections together.
    let mut sums: BTreeMap<u64, (f64, u64, u64)> = BTreeMap::new();
    for sample in &done.outcome.trace {
        let sum = sums
            .entry(sample.seconds.to_bits())
            .or_insert((sample.seconds, 0, 0));
        sum.1 += sample.sent;
        sum.2 += sample.retransmitted;
    }
    let megabytes = |packets: u64| (packets * done.payload_bytes) as f64 / 1e6;
    let line = |name: &str, of: fn(&(f64, u64, u64)) -> u64| {
        let points = sums.values().map(|sum| (sum.0, megabytes(of(sum))));
        Series::with(name, Style::Dashed, points.collect())
    };
    let titles = Titles {
        title: &titled("Data sent and sent again", std::slice::from_ref(done)),
        x: "seconds",
        y: "MB",
    };
    let lines = [
        line("sent", |sum| sum.1),
        line("of it sent again", |sum| sum.2),
    ];
    plot::lines(path, titles, &[], &lines)
}

/// What is drawn, and the network and flavour as far as all runs have the same.
fn titled(what: &str, runs: &[Done]) -> String {
    let all: Vec<_> = runs.iter().map(|run| run.point.parameters()).collect();
    let same = |name: &str| -> Option<&Value> {
        let value = all.first()?.get(name)?;
        let is_same = all.iter().all(|of| of.get(name) == Some(value));
        is_same.then_some(value)
    };
    let number = |name: &str| same(name).and_then(Value::as_f64);
    let shown = |number: f64| (number * 1e6).round() / 1e6;
    let counted = |name: &str, noun: &str| match number(name)? {
        1.0 => Some(format!("1 {noun}")),
        many => Some(format!("{many} {noun}s")),
    };
    let parts = [
        counted("nodes", "node"),
        counted("stripes", "stripe"),
        number("bandwidth_bits_per_second").map(|rate| format!("{} Mbit/s", shown(rate / 1e6))),
        number("latency_seconds").map(|time| format!("{} ms one way", shown(time * 1e3))),
        number("loss")
            .filter(|loss| *loss > 0.0)
            .map(|loss| format!("{} % lost", shown(loss * 100.0))),
        same("flavour").and_then(|name| name.as_str().map(str::to_owned)),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    match parts.is_empty() {
        true => what.to_owned(),
        false => format!("{what}: {}", parts.join(", ")),
    }
}

fn over_parameter(points: &[&Point]) -> Result<Layout> {
    let parameters: Vec<_> = points.iter().map(|point| point.parameters()).collect();
    let values = |name: &str| {
        let mut seen: Vec<&Value> = Vec::new();
        for of in &parameters {
            if let Some(value) = of.get(name)
                && !seen.contains(&value)
            {
                seen.push(value);
            }
        }
        seen.len()
    };
    let names: Vec<&String> = parameters[0]
        .keys()
        .filter(|name| values(name) > 1)
        .collect();
    let numeric = names
        .iter()
        .filter(|name| parameters[0][**name].is_number());
    let Some(x) = numeric.max_by_key(|name| values(name)) else {
        bail!("nothing to draw: no parameter that is a number has several values");
    };
    let place = |of: &Map<String, Value>| {
        let others = names.iter().filter(|name| name != &x);
        let label: Vec<String> = others
            .map(|name| format!("{} {}", name.replace('_', " "), of[*name]))
            .collect();
        let label = if label.is_empty() {
            "time".to_owned()
        } else {
            label.join(", ")
        };
        (label, of[*x].as_f64().unwrap_or_default())
    };
    let places: Vec<(String, f64)> = parameters.iter().map(place).collect();
    let lines: BTreeSet<&String> = places.iter().map(|(label, _)| label).collect();
    if lines.len() > LINES_MAX {
        bail!(
            "{} lines cannot be distinguished, at most {LINES_MAX} can; --csv gives all the numbers",
            lines.len()
        );
    }
    Ok(Layout::Parameter((*x).clone(), places))
}

fn draw_over_parameter(
    path: &Path,
    x: &str,
    places: &[(String, f64)],
    done: &[Done],
) -> Result<()> {
    let mut lines: Vec<Series> = Vec::new();
    for (run, (label, at)) in done.iter().zip(places) {
        let point = (*at, run.outcome.seconds);
        let known = lines.iter().position(|line| line.name == *label);
        let line = known.unwrap_or_else(|| {
            lines.push(Series::new(label.clone(), Style::Marks));
            lines.len() - 1
        });
        match run.outcome.is_completed {
            true => lines[line].points.push(point),
            false => lines[line].stopped.push(point),
        }
    }
    let titles = Titles {
        title: &titled("Time of the transfer", done),
        x: &x.replace('_', " "),
        y: "seconds",
    };
    plot::lines(path, titles, &[], &lines)
}
