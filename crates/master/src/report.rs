//! Turns what the coordinator knows into events and the final report.

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_model::{Instant, Problem};
use ropewalk_proto::control::{self, Blast, Done, Gaps, Listed, PairDone, TcpStatus};
use ropewalk_proto::coordinator::{Basis, Busy, Cause, Coordinator, NodeSummary, change};
use ropewalk_proto::report::{
    BlastReport, BottleneckCause, BottleneckReport, BoundReport, ControlReport, ErrorKind, Event,
    GapReport, NetworkReport, NodeProgress, NodeReport, Outcome, PairReport, Report, SourcesReport,
    StreamsReport,
};
use ropewalk_proto::route::Way;

use crate::landing;
use crate::request::Request;

mod ends;
mod kinds;
mod timeline;

/// Of less time the best second says nothing.
const BEST_SECOND_OF_MIN: f64 = 3.0;

/// A share so little above 1 is one of digits, not of speeds.
const SHARE_ROUNDING: f64 = 1.005;

/// Causes of less of the time are not reported, nor more than so many: those of many nodes are small.
const BOTTLENECK_SHARE_MIN: f64 = 0.005;
const BOTTLENECKS_MAX: usize = 32;

/// A shorter time is no bound: what binds is not known.
const BOUND_SECONDS_MIN: f64 = 1e-6;

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
pub(crate) fn seconds_moving(coordinator: &Coordinator, now: Instant) -> f64 {
    coordinator
        .moving_at()
        .map_or(0.0, |start| now.since(start).as_seconds())
}

/// Seconds from the first grant to the last receiver's end; 0 when nothing moved or somebody never ended.
pub(crate) fn seconds_moved(coordinator: &Coordinator) -> f64 {
    match (coordinator.moving_at(), coordinator.last_done_at()) {
        (Some(start), Some(end)) => end.since(start).as_seconds(),
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
        separate: found.separate,
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

/// What a node would do in its destination.
pub(crate) fn listed<'a>(
    coordinator: &'a Coordinator,
    node: u32,
    entries: &'a [Listed],
) -> impl Iterator<Item = Event> + 'a {
    let name = coordinator.node_name(node).to_owned();
    entries.iter().map(move |entry| Event::Listed {
        node: name.clone(),
        change: change(entry.change()),
        file: {
            let file = String::from_utf8_lossy(&entry.path);
            match entry.change() {
                // It is at the destination only.
                control::Change::Remove
                | control::Change::RemoveFolder
                | control::Change::Extra => coordinator.name_at_destination(node, &file),
                _ => coordinator.file_name(&file),
            }
        },
        bytes: entry.length,
    })
}

/// What is done while nothing moves.
pub(crate) fn busy(coordinator: &Coordinator) -> Option<Event> {
    let (node, busy) = coordinator.busy()?;
    let node = coordinator.node_name(node).to_owned();
    Some(match busy {
        Busy::Scanning { entries } => Event::Scanning {
            node,
            entries: *entries,
        },
        Busy::AwaitingEnd { path, waited } => Event::AwaitingEnd {
            node,
            path: path.clone(),
            seconds: waited.as_seconds(),
        },
        Busy::Removing { done, total } => Event::Removing {
            node,
            removed: *done,
            total: *total,
        },
    })
}

/// How far it is, now and then.
pub(crate) struct ProgressMeter {
    // Most bytes per second over a second so far.
    best: f64,
    // What an earlier round of the transfer wanted.
    wanted: Option<u64>,
}

impl ProgressMeter {
    /// * `wanted`: bytes that an earlier round of the transfer wanted; what it made safe is part of the progress.
    pub fn new(wanted: Option<u64>) -> Self {
        Self { best: 0.0, wanted }
    }

    /// Bytes per second that all received in the best second.
    pub fn best_second(&self) -> f64 {
        self.best
    }

    pub fn progress(&mut self, coordinator: &Coordinator, now: Instant) -> Event {
        let moving = seconds_moving(coordinator, now);
        if moving >= 1.0 {
            self.best = self.best.max(coordinator.second_rate());
        }
        let total_bytes = coordinator.wanted_bytes();
        let received_bytes = coordinator.received_bytes();
        let mut rate = 0.0;
        let mut receivers = Vec::new();
        let mut senders = Vec::new();
        let summary = coordinator.summary();
        let names: Vec<&str> = summary.iter().map(|node| node.name).collect();
        for node in &summary {
            if node.is_receiver {
                rate += node.receiving_rate;
                receivers.push(NodeProgress {
                    node: node.name.into(),
                    bytes: node.received,
                    safe_bytes: node.delivered,
                    total_bytes: node.wanted,
                    bits_per_second: node.receiving_rate * 8.0,
                });
            }
            if node.is_sender {
                senders.push(NodeProgress {
                    node: node.name.into(),
                    bytes: node.sent,
                    safe_bytes: 0,
                    total_bytes: node.planned,
                    bits_per_second: node.sending_rate * 8.0,
                });
            }
        }
        let rate = coordinator.within_limit(rate);
        let left = total_bytes.saturating_sub(received_bytes);
        let before = self.wanted.unwrap_or(0).saturating_sub(total_bytes);
        Event::Progress {
            seconds: moving,
            delivered_bytes: before.saturating_add(coordinator.delivered_bytes()),
            received_bytes: before.saturating_add(received_bytes),
            total_bytes: before.saturating_add(total_bytes),
            bits_per_second: rate * 8.0,
            eta_seconds: (rate > 0.0).then(|| left as f64 / rate),
            receivers,
            senders,
            bottlenecks: latest_causes(coordinator, &names),
        }
    }
}

/// What held the transfer back in the last seconds. With all bytes received it is making them safe.
fn latest_causes(coordinator: &Coordinator, names: &[&str]) -> Vec<BottleneckReport> {
    let (wanted, received) = (coordinator.wanted_bytes(), coordinator.received_bytes());
    let has_all = wanted > 0 && received >= wanted;
    if has_all && coordinator.delivered_bytes() < wanted {
        return vec![BottleneckReport {
            cause: BottleneckCause::Syncing,
            share: 1.0,
            ..BottleneckReport::default()
        }];
    }
    timeline::causes_of(&coordinator.latest_causes(), names)
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
        error_kind: (outcome == Outcome::Cancelled).then_some(ErrorKind::Interrupted),
        scheduler: request.options.scheduler.clone(),
        verify: request.options.verify.name().into(),
        encrypted: !request.options.plain,
        ..Report::ended(outcome)
    }
}

/// As [`ended_early`], refused.
pub(crate) fn refused(request: &Request, transfer: &str, kind: ErrorKind, error: String) -> Report {
    Report {
        error_kind: Some(kind),
        ..ended_early(request, transfer, Outcome::Refused, error)
    }
}

/// Counts the time of a report from the start of the command, not from when all nodes were reached.
pub(crate) fn count_reaching(report: &mut Report, reaching: Duration) {
    report.reach_seconds = reaching.as_secs_f64();
    let before = report.seconds;
    report.seconds += report.reach_seconds;
    let found = &mut report.bottlenecks;
    for one in found.iter_mut() {
        let reaching = match one.cause {
            BottleneckCause::Starting => report.reach_seconds,
            _ => 0.0,
        };
        one.share = (one.share * before + reaching) / report.seconds.max(1e-9);
    }
    kinds::join_small(found);
    found.retain(|one| one.share >= BOTTLENECK_SHARE_MIN);
    found.sort_by(|a, b| b.share.total_cmp(&a.share));
    found.truncate(BOTTLENECKS_MAX);
    report.bits_per_second = bits_per_second(report.delivered_bytes, report.seconds);
}

/// The report of a transfer that was opened.
pub(crate) fn final_report(
    request: &Request,
    transfer: &str,
    coordinator: &Coordinator,
    control: ControlReport,
    (outcome, error): (Outcome, Option<String>),
    best_second: f64,
    now: Instant,
) -> Report {
    let mut report = ended_early(request, transfer, outcome, String::new());
    report.error_kind = error_kind(coordinator, outcome);
    report.error = error;
    report.control = control;
    report.notes = coordinator.notes().to_vec();
    report.losses = coordinator.losses().to_vec();
    report.refusals = coordinator.refusals().to_vec();
    report.files = coordinator.files();
    report.sources = sources(coordinator);
    if outcome == Outcome::Refused {
        return report;
    }
    report.wanted_bytes = coordinator.wanted_bytes();
    report.delivered_bytes = coordinator.delivered_bytes();
    report.zero_bytes = coordinator.zero_bytes();
    let moving = tell_times(&mut report, coordinator, now);
    tell_plan(&mut report, coordinator);
    report.bound = bound(coordinator, outcome, moving);
    let best = Some(best_second * 8.0).filter(|best| *best > 0.0 && coordinator.is_sent());
    if let Some(bound) = &report.bound {
        report.bound_basis.clone_from(&bound.basis);
    } else if let Some(best) = best.filter(|_| moving >= BEST_SECOND_OF_MIN) {
        report.bound_basis = "observed".into();
        report.own_best_second_bits_per_second = Some(best);
    }
    let summary = coordinator.summary();
    landing::tell(&mut report, &summary);
    for node in &summary {
        let removing = seconds(node.landed.map_or(0, |landed| landed.removing));
        report.removing_seconds = report.removing_seconds.max(removing);
        if let Some(done) = node.done {
            tell_done(&mut report, &summary, node.name, done);
            let handed_on = done
                .pairs
                .iter()
                .filter(|pair| coordinator.hands_on(pair.sender));
            let handed_on = handed_on.map(|pair| pair.delivered);
            report.handed_on_bytes = handed_on.fold(report.handed_on_bytes, u64::saturating_add);
        }
        report.nodes.push(node_report(node));
    }
    report.encrypted &= !report.is_within_a_process();
    report.bottlenecks = bottlenecks(&report, coordinator, moving);
    report.timeline = timeline::timeline(coordinator, moving, report.finish_seconds);
    tell_missing(&mut report, coordinator, outcome);
    (report.left_out, report.left_out_more) = coordinator.left_out();
    (report.grown, report.grown_more) = coordinator.grown();
    let landing = &mut report.landing;
    (landing.not_removed, landing.not_removed_more) = coordinator.not_removed();
    (landing.not_placed, landing.not_placed_more) = coordinator.not_placed();
    (landing.wrong, landing.wrong_more) = coordinator.wrong();
    report.dry_run = coordinator.dry_run();
    report.check = coordinator.check_report();
    if !coordinator.is_dry_run() {
        report.destinations = coordinator.destinations();
    }
    report.left = coordinator.left();
    report
}

fn error_kind(coordinator: &Coordinator, outcome: Outcome) -> Option<ErrorKind> {
    match outcome {
        Outcome::Done => None,
        Outcome::Refused => Some(coordinator.refusal_kind()),
        Outcome::Cancelled => Some(ErrorKind::Interrupted),
        Outcome::Partial | Outcome::Failed => {
            Some(coordinator.failure_kind().unwrap_or(ErrorKind::Other))
        }
    }
}

/// Times and rates, from the bytes already in the report. Returns for how many seconds bytes flowed.
fn tell_times(report: &mut Report, coordinator: &Coordinator, now: Instant) -> f64 {
    let moving_start = coordinator.moving_at().unwrap_or_default();
    let end = coordinator.last_done_at().unwrap_or(now);
    let moving = end.since(moving_start).as_seconds();
    report.seconds = end.since(Instant::ZERO).as_seconds();
    report.start_seconds = moving_start.since(Instant::ZERO).as_seconds();
    report.bits_per_second = bits_per_second(report.delivered_bytes, report.seconds);
    report.moving_bits_per_second = bits_per_second(report.delivered_bytes, moving);
    report.finish_seconds = coordinator.finishing().0.as_seconds();
    moving
}

/// What held the transfer back, of the time since all nodes were reached.
///
/// * `moving`: from the first grant to the last receiver's end, in seconds.
fn bottlenecks(report: &Report, coordinator: &Coordinator, moving: f64) -> Vec<BottleneckReport> {
    let summary = coordinator.summary();
    let name = |node: u32| summary.get(node as usize).map(|node| node.name.to_owned());
    let share = |seconds: f64| (seconds / report.seconds.max(1e-9)).clamp(0.0, 1.0);
    let received = (moving - report.finish_seconds).max(0.0);
    let mut found: Vec<BottleneckReport> = coordinator
        .causes()
        .into_iter()
        .map(|(cause, part)| {
            let share = part * share(received);
            named(cause, share, name)
        })
        .collect();
    let (_, last) = coordinator.finishing();
    let syncs = last.and_then(name);
    let times = (report.seconds, report.start_seconds, report.finish_seconds);
    found.extend(ends::of(times, syncs, !found.is_empty()));
    found
}

/// A cause in the words of the report.
///
/// * `name`: of the node of a number.
fn named(cause: Cause, share: f64, name: impl Fn(u32) -> Option<String>) -> BottleneckReport {
    use BottleneckCause as Of;
    let mut rail = None;
    // A node by number, or the name of a trunk; the peer.
    let (cause, node, peer) = match cause {
        Cause::SourceDisk(node) => (Of::SourceDisk, Ok(node), None),
        Cause::SenderProcessor(node) => (Of::SenderProcessor, Ok(node), None),
        Cause::SenderRate(node) => (Of::SenderRate, Ok(node), None),
        Cause::Path(from, to) => (Of::Path, Ok(from), Some(to)),
        Cause::Window(from, to) => (Of::Window, Ok(from), Some(to)),
        Cause::Loss(from, to, over) => {
            rail = over;
            (Of::Loss, Ok(from), Some(to))
        }
        Cause::Trunk(trunk) => (Of::Trunk, Err(Some(trunk)), None),
        Cause::Requests(from, to) => (Of::RoundTrips, Ok(from), Some(to)),
        Cause::ReceiverRate(node) => (Of::ReceiverRate, Ok(node), None),
        Cause::ReceiverProcessor(node) => (Of::ReceiverProcessor, Ok(node), None),
        Cause::SinkDisk(node) => (Of::SinkDisk, Ok(node), None),
        Cause::Space(node) => (Of::Space, Ok(node), None),
        Cause::Opening(node) => (Of::Opening, Ok(node), None),
        Cause::EarlierTransfer(node) => (Of::EarlierTransfer, Ok(node), None),
        Cause::Comparing(node) => (Of::Comparing, Ok(node), None),
        Cause::Limit => (Of::Limit, Err(None), None),
        Cause::Silence(node) => (Of::Silence, Ok(node), None),
        Cause::Absence => (Of::Absence, Err(None), None),
    };
    BottleneckReport {
        cause,
        node: match node {
            Ok(node) => name(node),
            Err(trunk) => trunk,
        },
        peer: peer.and_then(name),
        rail,
        share,
    }
}

/// How the work was planned and tuned.
fn tell_plan(report: &mut Report, coordinator: &Coordinator) {
    let planned = coordinator.planned();
    if !planned.scheduler.is_empty() {
        report.scheduler.clone_from(&planned.scheduler);
    }
    let known = coordinator.basis() != Basis::None;
    // What was there already was found after the plan.
    let is_of_all = known && !coordinator.is_update() && coordinator.is_sent();
    report.predicted_seconds = is_of_all.then_some(planned.predicted_seconds);
    report.replicas = coordinator.replicas();
    report.replans = u64::from(coordinator.replans());
    report.streams = coordinator.tuned().map(|tuned| StreamsReport {
        policy: tuned.policy.name().into(),
        changes: tuned.changes,
        receivers: tuned.setting.nodes,
        streams: tuned.setting.streams,
        others: tuned.others,
    });
}

/// What a receiver reported at the end of its part, among the figures of all.
fn tell_done(report: &mut Report, summary: &[NodeSummary<'_>], receiver: &str, done: &Done) {
    report.duplicate_bytes = report.duplicate_bytes.saturating_add(done.duplicate);
    report.corrupt_units = report.corrupt_units.saturating_add(done.corrupt);
    let awaited = seconds(done.awaited_ends);
    report.awaited_end_seconds = report.awaited_end_seconds.max(awaited);
    report.longest_stall_seconds = report
        .longest_stall_seconds
        .max(seconds(done.longest_stall));
    if !done.root.is_empty() {
        let hex = done.root.iter().map(|b| format!("{b:02x}")).collect();
        report.roots.insert(receiver.into(), hex);
    }
    let used = |pair: &&PairDone| pair.delivered > 0 || pair.corrupt > 0;
    for pair in done.pairs.iter().filter(used) {
        let sender = summary.get(pair.sender as usize);
        let sender = sender.map_or("?", |node| node.name);
        report.pairs.push(pair_report(sender, receiver, pair));
    }
}

fn pair_report(sender: &str, receiver: &str, pair: &PairDone) -> PairReport {
    PairReport {
        sender: sender.into(),
        receiver: receiver.into(),
        lane: pair.lane.clone(),
        way: Way::of(pair.way).name().into(),
        rail: Some(pair.rail.clone()).filter(|rail| !rail.is_empty()),
        streams: pair.streams,
        bytes: pair.delivered,
        corrupt_units: pair.corrupt,
        waiting_seconds: seconds(pair.waiting),
        datagrams: pair.datagrams,
        datagrams_again: pair.datagrams_again,
        blast: pair.blast.as_ref().map(blast),
    }
}

fn network(tcp: &TcpStatus) -> NetworkReport {
    let seconds = |microseconds: u32| f64::from(microseconds) / 1e6;
    NetworkReport {
        streams: tcp.streams,
        round_trip_seconds: seconds(tcp.rtt_microseconds),
        least_round_trip_seconds: seconds(tcp.rtt_microseconds_min),
        segment_bytes: tcp.segment,
        segments: tcp.segments,
        repeated_segments: tcp.repeated,
        window_bytes: tcp.window,
    }
}

/// One node's line: its last report counts, and what made it fail.
fn node_report(node: &NodeSummary<'_>) -> NodeReport {
    let mut line = NodeReport {
        node: node.name.into(),
        sent_bytes: node.sent,
        received_bytes: node.delivered,
        ..NodeReport::default()
    };
    let own_error = node.done.map(|done| done.error.as_str());
    let own_error = own_error.filter(|error| !error.is_empty());
    line.error = own_error.or(node.lost).map(str::to_owned);
    let last_usage = node.finished.and_then(|finished| finished.usage);
    if let Some(usage) = last_usage.or(node.done.and_then(|done| done.usage)) {
        line.processor_seconds = seconds(usage.processor);
        line.resident_max_bytes = usage.resident_max;
    }
    line.network = node.tcp.as_ref().map(network);
    let best = [
        node.done.map_or(0, |done| done.best_second),
        node.finished.map_or(0, |finished| finished.best_second),
    ];
    line.best_bits_per_second = best[0].max(best[1]) as f64 * 8.0;
    line
}

/// Ranges and files that have not arrived.
fn tell_missing(report: &mut Report, coordinator: &Coordinator, outcome: Outcome) {
    // What an interrupted receiver lacks is not asked for any more.
    let missing = match outcome {
        Outcome::Cancelled => BTreeMap::new(),
        _ => coordinator.missing(),
    };
    for (name, ranges) in missing {
        let ranges = ranges.iter().map(|range| (range.start, range.end));
        report.missing.insert(name, ranges.collect());
    }
    if !report.missing.is_empty() {
        (report.missing_files, report.missing_files_more) = coordinator.missing_files();
    }
}

/// The least time if receivers handed nothing on; `None` where they did not.
fn without_handing_on(coordinator: &Coordinator, mut problem: Problem) -> Option<f64> {
    let mut receivers = (0..).zip(coordinator.summary());
    if !receivers.any(|(node, _)| coordinator.hands_on(node)) {
        return None;
    }
    for receiver in &mut problem.receivers {
        receiver.relay_up = None;
    }
    let bound = ropewalk_sched::relay_bound(&problem).ok()?;
    Some(bound.seconds)
}

/// The least time in which all could have been moved, as far as speeds are known: of the nodes as they came and went when
/// it was done, else of those at the start. What the run itself shows is none.
fn bound(coordinator: &Coordinator, outcome: Outcome, moving: f64) -> Option<BoundReport> {
    if !coordinator.is_sent() {
        return None;
    }
    let is_done = outcome == Outcome::Done;
    let known = coordinator.basis() != Basis::None;
    let wanted = |problem: &Problem| problem.wanted_bytes() as f64;
    let first = coordinator.declared_problem();
    let bytes = match is_done {
        true => coordinator.wanted_bytes() as f64,
        false => wanted(&first),
    };
    let is_of_all = known && !coordinator.is_update();
    let planned = coordinator.planned().bound.clone().filter(|_| is_of_all);
    let of_first = || match planned {
        Some(planned) => Some(planned),
        None if known || coordinator.has_declared() => {
            let bound = ropewalk_sched::relay_bound(&first).ok()?;
            Some((bound.seconds, bound.binding, bound.is_exact))
        }
        None => None,
    };
    let found = match is_done && coordinator.is_changed() {
        true if known || coordinator.has_declared() => {
            let carried = |seconds: f64| coordinator.carried_problem(seconds);
            ropewalk_sched::changing_bound(carried)
                .map(|(seconds, bound)| (seconds, bound.binding, bound.is_exact))
        }
        _ => of_first(),
    };
    // Where speeds are missing, the others set a lower bound, or none.
    let found = found.filter(|(seconds, _, _)| *seconds > BOUND_SECONDS_MIN);
    let limited = coordinator.limited_seconds(bytes).unwrap_or(0.0);
    let (basis, least, binding, is_exact) = match found {
        Some((least, binding, is_exact)) if least >= limited => {
            let basis = match coordinator.basis() {
                Basis::Interface => "interface",
                Basis::Declared | Basis::None => "declared",
            };
            (basis, least, binding, is_exact && known)
        }
        _ if limited > 0.0 => ("limit", limited, vec!["--limit".into()], true),
        _ => return None,
    };
    if bytes <= 0.0 || (is_done && moving <= 0.0) {
        return None;
    }
    let share = least / moving.max(1e-9);
    let without = (basis != "limit").then(|| without_handing_on(coordinator, first));
    Some(BoundReport {
        without_handing_on_seconds: without.flatten().filter(|seconds| *seconds > least),
        basis: basis.into(),
        seconds: least,
        bits_per_second: bytes * 8.0 / least,
        share: (is_done && share <= SHARE_ROUNDING).then_some(share.min(1.0)),
        exceeded: is_done && share > SHARE_ROUNDING,
        binding,
        is_exact,
    })
}
