//! `--plot`: the time over what was varied most, or one run over time.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};
use ropewalk_plot::{self as plot, Series, Style, Titles};
use serde_json::Value;

use super::output::Done;

/// Lines that can be told apart.
const LINES_MAX: usize = 14;

/// Draws what was run.
pub(super) fn draw(path: &Path, done: &[Done]) -> Result<()> {
    match done {
        [one] => over_time(path, one),
        all => over_parameter(path, all),
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
        title: "Data sent and sent again",
        x: "seconds",
        y: "MB",
    };
    let lines = [
        line("sent", |sum| sum.1),
        line("of it sent again", |sum| sum.2),
    ];
    plot::lines(path, titles, &[], &lines)
}

fn over_parameter(path: &Path, done: &[Done]) -> Result<()> {
    let parameters: Vec<_> = done.iter().map(|run| run.point.parameters()).collect();
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
    let mut lines: Vec<Series> = Vec::new();
    for (run, of) in done.iter().zip(&parameters) {
        let others = names.iter().filter(|name| name != &x);
        let label: Vec<String> = others
            .map(|name| format!("{} {}", name.replace('_', " "), of[*name]))
            .collect();
        let label = if label.is_empty() {
            "time".to_owned()
        } else {
            label.join(", ")
        };
        let point = (of[*x].as_f64().unwrap_or_default(), run.outcome.seconds);
        match lines.iter_mut().find(|line| line.name == label) {
            Some(line) => line.points.push(point),
            None => lines.push(Series::with(label, Style::Marks, vec![point])),
        }
    }
    if lines.len() > LINES_MAX {
        bail!(
            "{} lines cannot be told apart; --csv gives all the numbers",
            lines.len()
        );
    }
    let label = x.replace('_', " ");
    let titles = Titles {
        title: "Time of the transfer",
        x: &label,
        y: "seconds",
    };
    plot::lines(path, titles, &[], &lines)
}
