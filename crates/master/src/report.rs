//! Turns what the coordinator knows into events and the final report.

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_proto::control::{Blast, Gaps};
use ropewalk_proto::coordinator::{Basis, Coordinator};
use ropewalk_proto::report::{
    BlastReport, BoundReport, ControlReport, Event, GapReport, NodeProgress, NodeReport, Outcome,
    PairReport, Report, SourcesReport, StreamsReport,
};

use crate::request::{Request, Verify};

/// Rates shown while moving are means over about this long.
const RATE_SECONDS: f64 = 2.0;

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn bits_per_second(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        bytes as f64 * 8.0 / seconds
    } else {
        0.0
    }
}

/// What the receiving end of a lane of datagrams told.
fn blast(told: &Blast) -> BlastReport {
    let gaps = |gaps: Option<Gaps>| {
        let gaps = gaps.unwrap_or_default();
        GapReport {
            median_seconds: seconds(gaps.median),
            p99_seconds: seconds(gaps.p99),
            longest_seconds: seconds(gaps.longest),
        }
    };
    BlastReport {
        lost_datagrams: told.lost,
        dropped_datagrams: told.dropped,
        stray_datagrams: told.strays,
        suspensions: told.suspensions,
        monitor_processor_seconds: seconds(told.monitor),
        arrival_gaps: gaps(told.arrivals),
        delivery_gaps: gaps(told.deliveries),
    }
}

/// Seconds since bytes started to flow.
pub(crate) fn seconds_moving(coordinator: &Coordinator, now_ns: u64) -> f64 {
    coordinator
        .moving_ns()
        .map_or(0.0, |start| seconds(now_ns.saturating_sub(start)))
}

/// Seconds from the first grant to the last receiver's end; 0 when nothing moved or somebody never ended.
pub(crate) fn seconds_moved(coordinator: &Coordinator) -> f64 {
    match (coordinator.moving_ns(), coordinator.last_done_ns()) {
        (Some(start), Some(end)) => seconds(end.saturating_sub(start)),
        _ => 0.0,
    }
}

fn basis(coordinator: &Coordinator) -> &'static str {
    match coordinator.basis() {
        Basis::Declared => "declared",
        Basis::Interface => "interface",
        Basis::None => "none",
    }
}

/// How several sources of a copy relate.
fn sources(coordinator: &Coordinator) -> Option<SourcesReport> {
    let found = coordinator.found().filter(|found| found.holders > 1)?;
    Some(SourcesReport {
        parts: found.parts,
        holders: found.holders,
    })
}

/// The event that opens the moving phase.
pub(crate) fn planned(coordinator: &Coordinator, transfer: &str) -> Event {
    let planned = coordinator.planned();
    let known = coordinator.basis() != Basis::None;
    Event::Planned {
        transfer: transfer.to_owned(),
        bytes: coordinator.wanted_bytes(),
        files: coordinator.files(),
        sources: sources(coordinator),
        scheduler: planned.scheduler.clone(),
        predicted_seconds: known.then_some(planned.predicted_seconds),
        bound_seconds: planned.bound.as_ref().filter(|_| known).map(|b| b.0),
        bound_basis: basis(coordinator).into(),
    }
}

/// Remembers enough of the past to show rates.
pub(crate) struct ProgressMeter {
    // Smoothed bytes per second by name, and the totals they were last updated from.
    rates: BTreeMap<String, (f64, u64)>,
    last_seconds: f64,
}

impl ProgressMeter {
    pub fn new() -> Self {
        Self {
            rates: BTreeMap::new(),
            last_seconds: 0.0,
        }
    }

    fn rate(&mut self, name: String, bytes: u64, passed: f64) -> f64 {
        let entry = self.rates.entry(name).or_insert((0.0, 0));
        if passed > 0.0 {
            let sample = bytes.saturating_sub(entry.1) as f64 / passed;
            let keep = (-passed / RATE_SECONDS).exp();
            entry.0 = if entry.1 == 0 {
                sample
            } else {
                entry.0 * keep + sample * (1.0 - keep)
            };
            entry.1 = bytes;
        }
        entry.0 * 8.0
    }

    pub fn progress(&mut self, coordinator: &Coordinator, now_ns: u64) -> Event {
        let moving = seconds_moving(coordinator, now_ns);
        let passed = moving - self.last_seconds;
        self.last_seconds = moving;
        let delivered_bytes = coordinator.delivered_bytes();
        let total_bytes = coordinator.wanted_bytes();
        let bits_per_second = self.rate(String::new(), delivered_bytes, passed);
        let mut receivers = Vec::new();
        let mut senders = Vec::new();
        for node in coordinator.summary() {
            if node.is_receiver {
                let rate = self.rate(format!("r {}", node.name), node.delivered, passed);
                receivers.push(NodeProgress {
                    node: node.name.into(),
                    bytes: node.delivered,
                    total_bytes: node.wanted,
                    bits_per_second: rate,
                });
            }
            if node.is_sender {
                let rate = self.rate(format!("s {}", node.name), node.sent, passed);
                senders.push(NodeProgress {
                    node: node.name.into(),
                    bytes: node.sent,
                    total_bytes: node.planned,
                    bits_per_second: rate,
                });
            }
        }
        let left = total_bytes.saturating_sub(delivered_bytes);
        let eta_seconds = (bits_per_second > 0.0).then(|| left as f64 * 8.0 / bits_per_second);
        Event::Progress {
            seconds: moving,
            delivered_bytes,
            total_bytes,
            bits_per_second,
            eta_seconds,
            receivers,
            senders,
        }
    }
}

fn verify_name(verify: Verify) -> &'static str {
    match verify {
        Verify::None => "none",
        Verify::Fragment => "fragment",
        Verify::Tree => "tree",
        Verify::Sink => "sink",
        Verify::Replicas => "replicas",
    }
}

/// The report of a transfer that never opened.
pub(crate) fn ended_early(
    request: &Request,
    transfer: &str,
    outcome: Outcome,
    error: String,
) -> Report {
    Report {
        transfer: transfer.into(),
        label: request.label.clone(),
        error: Some(error),
        scheduler: request.options.scheduler.clone(),
        verify: verify_name(request.options.verify).into(),
        encrypted: !request.options.plain,
        ..Report::ended(outcome)
    }
}

/// As [`ended_early`], refused.
pub(crate) fn refused(request: &Request, transfer: &str, error: String) -> Report {
    ended_early(request, transfer, Outcome::Refused, error)
}

/// Counts the time of a report from the start of the command, not from when all nodes were reached.
pub(crate) fn count_reaching(report: &mut Report, reaching: Duration) {
    report.reach_seconds = reaching.as_secs_f64();
    report.seconds += report.reach_seconds;
    report.bits_per_second = bits_per_second(report.delivered_bytes, report.seconds);
}

/// The report of a transfer that was opened.
pub(crate) fn final_report(
    request: &Request,
    transfer: &str,
    coordinator: &Coordinator,
    control: ControlReport,
    outcome: Outcome,
    error: Option<String>,
    now_ns: u64,
) -> Report {
    let mut report = ended_early(request, transfer, outcome, String::new());
    report.error = error;
    report.control = control;
    report.notes = coordinator.notes().to_vec();
    report.files = coordinator.files();
    report.sources = sources(coordinator);
    if outcome == Outcome::Refused {
        return report;
    }
    report.wanted_bytes = coordinator.wanted_bytes();
    report.delivered_bytes = coordinator.delivered_bytes();
    let moving_start = coordinator.moving_ns().unwrap_or(0);
    let end = coordinator.last_done_ns().unwrap_or(now_ns);
    let moving = seconds(end.saturating_sub(moving_start));
    report.seconds = seconds(end);
    report.start_seconds = seconds(moving_start);
    report.bits_per_second = bits_per_second(report.delivered_bytes, report.seconds);
    report.moving_bits_per_second = bits_per_second(report.delivered_bytes, moving);
    let planned = coordinator.planned();
    if !planned.scheduler.is_empty() {
        report.scheduler.clone_from(&planned.scheduler);
    }
    let known = coordinator.basis() != Basis::None;
    report.predicted_seconds = known.then_some(planned.predicted_seconds);
    // A share of the bound means something only when all of it was moved.
    if outcome == Outcome::Done {
        report.bound = bound(coordinator, known, report.wanted_bytes, moving);
    }
    report.replicas = coordinator.replicas();
    report.replans = u64::from(coordinator.replans());
    report.streams = coordinator.tuned().map(|tuned| StreamsReport {
        policy: tuned.policy.name().into(),
        changes: tuned.changes,
        receivers: tuned.setting.nodes,
        streams: tuned.setting.streams,
        others: tuned.others,
    });
    let summary = coordinator.summary();
    for node in &summary {
        let mut line = NodeReport {
            node: node.name.into(),
            sent_bytes: node.sent,
            received_bytes: node.delivered,
            ..NodeReport::default()
        };
        let mut best = 0;
        let mut usage = None;
        if let Some(done) = node.done {
            best = best.max(done.best_second);
            usage = done.usage;
            if !done.error.is_empty() {
                line.error = Some(done.error.clone());
            }
            report.duplicate_bytes += done.duplicate;
            report.corrupt_units += done.corrupt;
            report.finish_seconds = report.finish_seconds.max(seconds(done.syncing));
            report.longest_stall_seconds = report
                .longest_stall_seconds
                .max(seconds(done.longest_stall));
            if !done.root.is_empty() {
                let hex = done.root.iter().map(|b| format!("{b:02x}")).collect();
                report.roots.insert(node.name.into(), hex);
            }
            for pair in &done.pairs {
                if pair.delivered == 0 && pair.corrupt == 0 {
                    continue;
                }
                report.pairs.push(PairReport {
                    sender: summary
                        .get(pair.sender as usize)
                        .map_or("?", |n| n.name)
                        .into(),
                    receiver: node.name.into(),
                    lane: pair.lane.clone(),
                    rail: Some(pair.rail.clone()).filter(|rail| !rail.is_empty()),
                    streams: pair.streams,
                    bytes: pair.delivered,
                    corrupt_units: pair.corrupt,
                    waiting_seconds: seconds(pair.waiting),
                    datagrams: pair.datagrams,
                    datagrams_again: pair.datagrams_again,
                    blast: pair.blast.as_ref().map(blast),
                });
            }
        }
        if let Some(finished) = node.finished {
            best = best.max(finished.best_second);
            usage = finished.usage.or(usage);
        }
        if let Some(lost) = node.lost {
            line.error.get_or_insert_with(|| lost.to_owned());
        }
        if let Some(usage) = usage {
            line.processor_seconds = seconds(usage.processor);
            line.resident_max_bytes = usage.resident_max;
        }
        line.best_bits_per_second = best as f64 * 8.0;
        report.nodes.push(line);
    }
    // What an interrupted receiver lacks is not asked for any more.
    let missing = if outcome == Outcome::Cancelled {
        BTreeMap::new()
    } else {
        coordinator.missing()
    };
    for (name, ranges) in missing {
        report
            .missing
            .insert(name, ranges.iter().map(|r| (r.start, r.end)).collect());
    }
    report
}

fn bound(coordinator: &Coordinator, known: bool, bytes: u64, moving: f64) -> Option<BoundReport> {
    let (basis, least, binding, is_exact) = if known {
        let (least, binding, is_exact) = coordinator.planned().bound.clone()?;
        (basis(coordinator), least, binding, is_exact)
    } else {
        // Nobody knew the speeds: the best second of each node stands in, which makes it an estimate.
        let bound = ropewalk_sched::bound(&coordinator.observed_problem()).ok()?;
        ("observed", bound.seconds, bound.binding, bound.is_exact)
    };
    let limited = coordinator.limit().map_or(0.0, |rate| bytes as f64 / rate);
    let (basis, least, binding, is_exact) = match limited > least {
        true => ("limit", limited, vec!["--limit".into()], true),
        false => (basis, least, binding, is_exact),
    };
    if least <= 0.0 || moving <= 0.0 {
        return None;
    }
    Some(BoundReport {
        basis: basis.into(),
        seconds: least,
        bits_per_second: bits_per_second(bytes, least),
        share: least / moving,
        binding,
        is_exact,
    })
}
