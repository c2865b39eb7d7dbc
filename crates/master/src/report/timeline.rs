//! What happened when, as the report has it.

use ropewalk_proto::coordinator::{Cause, Coordinator, Point, TIMELINE_NODES_MAX};
use ropewalk_proto::report::{BottleneckCause, BottleneckReport, PointReport, TimelineReport};

use super::named;

/// Each second, the time after the last byte as that of syncing; `None` where no byte moved.
///
/// * `moving`: from the first grant to the last receiver's end, in seconds.
/// * `finish`: part of it after the last byte.
pub(super) fn timeline(
    coordinator: &Coordinator,
    moving: f64,
    finish: f64,
) -> Option<TimelineReport> {
    let summary = coordinator.summary();
    let names: Vec<&str> = summary.iter().map(|node| node.name).collect();
    let (_, syncs_last) = coordinator.finishing();
    let syncs_last = syncs_last.and_then(|node| summary.get(node as usize));
    let syncing = BottleneckReport {
        cause: BottleneckCause::Syncing,
        node: syncs_last.map(|node| node.name.to_owned()),
        share: 1.0,
        ..BottleneckReport::default()
    };
    let received_at = (moving - finish).max(0.0);
    let points = coordinator.timeline().iter().map(|point| {
        let mut report = of_point(point, &names);
        if report.bottlenecks.is_empty() && report.seconds > received_at && finish > 0.0 {
            report.bottlenecks.push(syncing.clone());
        }
        report
    });
    let points: Vec<PointReport> = points.collect();
    let named = names.iter().map(|name| (*name).to_owned());
    let nodes = match names.len() <= TIMELINE_NODES_MAX {
        true => named.collect(),
        false => Vec::new(),
    };
    (!points.is_empty()).then_some(TimelineReport { nodes, points })
}

fn of_point(point: &Point, names: &[&str]) -> PointReport {
    // Whole bits, and thousandths: that is what can be seen.
    let rates = |rates: &[f64]| rates.iter().map(|rate| (rate * 8.0).round()).collect();
    PointReport {
        seconds: thousandths(point.end.as_seconds()),
        length_seconds: thousandths(point.length.as_seconds()),
        sent_bits_per_second: rates(&point.sent),
        received_bits_per_second: rates(&point.received),
        bottlenecks: causes_of(&point.causes, names),
    }
}

fn thousandths(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Causes with the names of their nodes.
pub(super) fn causes_of(causes: &[(Cause, f64)], names: &[&str]) -> Vec<BottleneckReport> {
    let name = |node: u32| names.get(node as usize).map(|name| (*name).to_owned());
    let causes = causes
        .iter()
        .map(|(cause, share)| named(cause.clone(), *share, name));
    let mut causes: Vec<BottleneckReport> = causes.collect();
    super::kinds::join_small(&mut causes);
    for one in &mut causes {
        one.share = thousandths(one.share);
    }
    causes.retain(|one| one.share > 0.0);
    causes.sort_by(|a, b| b.share.total_cmp(&a.share));
    causes
}
