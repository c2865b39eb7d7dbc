//! Plots of a report's page, as SVG.

use std::collections::BTreeMap;
use std::fmt::{Result, Write as _};

use ropewalk_model::format_seconds;
use ropewalk_proto::report::{BottleneckReport, PointReport, Report, TimelineReport};

use crate::html::{COLOURS, colour, fill, text};
use crate::progress::rate;
use crate::report::bottleneck;

/// Width of a plot, and of what is left of its axis.
const WIDTH: f64 = 900.0;
const LEFT: f64 = 92.0;

/// Height of the part with lines, and of that with causes.
const RATES: f64 = 240.0;
const CAUSES: f64 = 70.0;

/// A row of a key: a sample and a name.
fn key(out: &mut String, sample: &str, name: &str) -> Result {
    writeln!(
        out,
        "<li><svg viewBox=\"0 0 26 12\">{sample}</svg>{}</li>",
        text(name)
    )
}

/// A number of ticks that people read: 1, 2 or 5 times a power of ten.
fn step(most: f64, ticks: f64) -> f64 {
    let raw = (most / ticks).max(1e-9);
    let power = 10_f64.powf(raw.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0].into_iter();
    factors
        .map(|factor| factor * power)
        .find(|step| *step >= raw * 0.999)
        .unwrap_or(10.0 * power)
}

/// Where seconds are on a plot.
struct Axis {
    seconds: f64,
}

impl Axis {
    fn of(timeline: &TimelineReport) -> Self {
        let end = timeline.points.last().map_or(0.0, |point| point.seconds);
        Self {
            seconds: end.max(1e-3),
        }
    }

    fn x(&self, seconds: f64) -> f64 {
        LEFT + (WIDTH - LEFT - 10.0) * seconds / self.seconds
    }

    /// The axis with its ticks, at a height.
    fn draw(&self, out: &mut String, y: f64) -> Result {
        let step = step(self.seconds, 8.0);
        let mut at = 0.0;
        while at <= self.seconds * 1.001 {
            let x = self.x(at);
            writeln!(
                out,
                "<path d=\"M{x:.1} {y}v5\" stroke=\"#666\"/><text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{} s</text>",
                y + 18.0,
                (at * 1000.0).round() / 1000.0
            )?;
            at += step;
        }
        writeln!(
            out,
            "<path d=\"M{:.1} {y}H{:.1}\" stroke=\"#666\"/>",
            self.x(0.0),
            self.x(self.seconds)
        )
    }
}

/// A node's line: its number, whether it sends, its rates.
type Line<'l> = (usize, bool, Vec<f64>, &'l str);

fn lines(timeline: &TimelineReport) -> Vec<Line<'_>> {
    let of = |number: usize, sends: bool| -> Vec<f64> {
        let rates = |point: &PointReport| {
            let rates = match sends {
                true => &point.sent_bits_per_second,
                false => &point.received_bits_per_second,
            };
            rates.get(number).copied().unwrap_or(0.0)
        };
        timeline.points.iter().map(rates).collect()
    };
    let names: Vec<&str> = match timeline.nodes.is_empty() {
        true => vec!["all nodes"],
        false => timeline.nodes.iter().map(String::as_str).collect(),
    };
    let mut lines = Vec::new();
    for (number, name) in names.into_iter().enumerate() {
        for sends in [true, false] {
            let rates = of(number, sends);
            if rates.iter().any(|rate| *rate > 0.0) {
                lines.push((number, sends, rates, name));
            }
        }
    }
    lines
}

/// The rate of each node over time: solid where it sends, dashed where it receives.
pub(super) fn rates(out: &mut String, report: &Report) -> Result {
    let Some(timeline) = &report.timeline else {
        return Ok(());
    };
    let lines = lines(timeline);
    let most = lines
        .iter()
        .flat_map(|line| &line.2)
        .fold(0.0, |a: f64, b| a.max(*b));
    if most <= 0.0 {
        return Ok(());
    }
    let axis = Axis::of(timeline);
    let tick = step(most, 5.0);
    let top = (most / tick).ceil() * tick;
    let y = |rate: f64| 10.0 + RATES * (1.0 - rate / top);
    writeln!(
        out,
        "<h2>Rate of each node</h2>\n<svg viewBox=\"0 0 {WIDTH} {}\">",
        RATES + 36.0
    )?;
    let mut at = 0.0;
    while at <= top * 1.001 {
        writeln!(
            out,
            "<path d=\"M{LEFT} {0:.1}H{1}\" stroke=\"#dde2e7\"/><text x=\"{2}\" y=\"{3:.1}\" text-anchor=\"end\">{4}</text>",
            y(at),
            WIDTH - 10.0,
            LEFT - 8.0,
            y(at) + 4.0,
            text(&rate(at))
        )?;
        at += tick;
    }
    axis.draw(out, RATES + 10.0)?;
    for (number, sends, rates, name) in &lines {
        let mut path = String::new();
        for (point, rate) in timeline.points.iter().zip(rates) {
            let begin = axis.x(point.seconds - point.length_seconds);
            let way = if path.is_empty() { "M" } else { "L" };
            write!(
                path,
                "{way}{begin:.1} {:.1}H{:.1}",
                y(*rate),
                axis.x(point.seconds)
            )?;
        }
        let what = if *sends { "sends" } else { "receives" };
        writeln!(
            out,
            "<path d=\"{path}\" fill=\"none\" {}><title>{} {what}</title></path>",
            stroke(*number, *sends),
            text(name)
        )?;
    }
    out.push_str("</svg>\n<ul class=\"key\">\n");
    for (number, sends, _, name) in &lines {
        let sample = format!("<path d=\"M0 6H26\" {}/>", stroke(*number, *sends));
        let what = if *sends { "sends" } else { "receives" };
        key(out, &sample, &format!("{name} {what}"))?;
    }
    out.push_str("</ul>\n");
    Ok(())
}

fn stroke(number: usize, sends: bool) -> String {
    let dashes = if sends {
        ""
    } else {
        " stroke-dasharray=\"6 3\""
    };
    let width = if number < COLOURS.len() { 2.0 } else { 1.2 };
    format!(
        "stroke=\"{}\" stroke-width=\"{width}\"{dashes}",
        colour(number)
    )
}

/// What a cause is called, with its place.
fn name(one: &BottleneckReport) -> String {
    bottleneck::name(one)
}

/// What held the transfer back when: of each second the shares, one above the other.
pub(super) fn causes(out: &mut String, report: &Report) -> Result {
    if report.bottlenecks.is_empty() && report.timeline.is_none() {
        return Ok(());
    }
    // Those of the whole time first, with their shares; then what only some seconds have.
    let mut known: Vec<(String, Option<f64>)> = Vec::new();
    let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
    let whole = report
        .bottlenecks
        .iter()
        .map(|one| (name(one), Some(one.share)));
    let points = report.timeline.iter().flat_map(|timeline| &timeline.points);
    let parts = points.flat_map(|point| point.bottlenecks.iter().map(|one| (name(one), None)));
    for (name, share) in whole.chain(parts) {
        if !numbers.contains_key(&name) {
            numbers.insert(name.clone(), known.len());
            known.push((name, share));
        }
    }
    if known.is_empty() {
        return Ok(());
    }
    out.push_str("<h2>What held it back</h2>\n");
    if let Some(timeline) = &report.timeline {
        let axis = Axis::of(timeline);
        writeln!(out, "<svg viewBox=\"0 0 {WIDTH} {}\">", CAUSES + 36.0)?;
        for point in &timeline.points {
            let x = axis.x(point.seconds - point.length_seconds);
            let width = axis.x(point.seconds) - x;
            let mut y = 10.0;
            for one in &point.bottlenecks {
                let name = name(one);
                let height = CAUSES * one.share.clamp(0.0, 1.0);
                let number = numbers.get(&name).copied().unwrap_or(0);
                writeln!(
                    out,
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" {}><title>{}, {:.0} %</title></rect>",
                    fill(number),
                    text(&name),
                    one.share * 100.0
                )?;
                y += height;
            }
        }
        axis.draw(out, CAUSES + 10.0)?;
        out.push_str("</svg>\n");
    }
    out.push_str("<ul class=\"key\">\n");
    for (number, (name, share)) in known.iter().enumerate() {
        let sample = format!("<rect width=\"26\" height=\"12\" {}/>", fill(number));
        let of_all = share.map(|share| format!(", {:.0} % of the whole time", share * 100.0));
        key(
            out,
            &sample,
            &format!("{name}{}", of_all.unwrap_or_default()),
        )?;
    }
    out.push_str("</ul>\n");
    Ok(())
}

/// The times that were known before, beside those that it took.
pub(super) fn plan(out: &mut String, report: &Report) -> Result {
    let moving = report.seconds - report.reach_seconds - report.start_seconds;
    let bars = [
        (
            "least possible",
            report.bound.as_ref().map(|bound| bound.seconds),
        ),
        ("planned", report.predicted_seconds),
        ("moving", Some(moving)),
        ("whole", Some(report.seconds)),
    ];
    let bars: Vec<(&str, f64)> = bars
        .into_iter()
        .filter_map(|(name, seconds)| Some((name, seconds.filter(|seconds| *seconds > 0.0)?)))
        .collect();
    let most = bars.iter().fold(0.0, |most: f64, bar| most.max(bar.1));
    if most <= 0.0 {
        return Ok(());
    }
    writeln!(
        out,
        "<h2>Plan and outcome</h2>\n<svg viewBox=\"0 0 {WIDTH} {}\">",
        26 * bars.len() + 6
    )?;
    let longest = WIDTH - LEFT - 110.0;
    for (at, (name, seconds)) in bars.iter().enumerate() {
        let y = 26 * at + 4;
        let width = longest * seconds / most;
        writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text><rect x=\"{LEFT}\" y=\"{y}\" width=\"{width:.1}\" height=\"18\" {}/><text x=\"{:.1}\" y=\"{}\">{}</text>",
            LEFT - 8.0,
            y + 14,
            fill(if at + 2 < bars.len() { 2 } else { 0 }),
            LEFT + width + 8.0,
            y + 14,
            text(&format_seconds(*seconds))
        )?;
    }
    out.push_str("</svg>\n");
    Ok(())
}
