//! The second line: how near to the least possible time it was, where that is known. What the run itself shows is no bound.

use ropewalk_model::format_seconds;
use ropewalk_proto::report::{BottleneckCause, Report};

use super::bottleneck;
use super::full::listed;
use crate::progress::rate;

/// The line without a newline, with what held the transfer back; `None` where nothing can be said.
pub(super) fn line(report: &Report) -> Option<String> {
    let parts: Vec<String> = match &report.bound {
        // That is what held it back.
        Some(bound) if bound.basis == "limit" && is_limited(report) => [known(report), None],
        Some(_) => [known(report), bottleneck::words(report)],
        None => [bottleneck::words(report), known(report)],
    }
    .into_iter()
    .flatten()
    .collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Whether the limit held it back most, as far as causes were seen.
fn is_limited(report: &Report) -> bool {
    let first = report.bottlenecks.first();
    first.is_none_or(|first| first.cause == BottleneckCause::Limit)
}

/// The bound alone.
pub(super) fn known(report: &Report) -> Option<String> {
    let Some(bound) = &report.bound else {
        let best = rate(report.own_best_second_bits_per_second?);
        let hint = match report.is_within_a_process() {
            // No network bounds it.
            true => "",
            false => " (no bound is known: --node-rate HOST=RATE declares speeds)",
        };
        return Some(format!("own best second: {best}{hint}"));
    };
    let basis = match bound.basis.as_str() {
        "declared" => "declared speeds",
        "interface" => "speeds of the interfaces",
        "limit" => "as given",
        other => other,
    };
    let exact = if bound.is_exact {
        ""
    } else {
        ", a lower one only"
    };
    let without = bound.without_handing_on_seconds;
    let without = without.map_or_else(String::new, |seconds| {
        let seconds = format_seconds(seconds);
        format!(", {seconds} if receivers did not hand on")
    });
    let mut out = format!(
        "bound      {} = {} ({basis}{exact}{without})",
        format_seconds(bound.seconds),
        rate(bound.bits_per_second)
    );
    if let Some(share) = bound.share {
        out += &format!("; reached {:.1} % while data moved", share * 100.0);
    }
    if bound.exceeded {
        let what = match bound.basis.as_str() {
            "interface" => "the speeds of the interfaces",
            "limit" => "the limit",
            _ => "the declared speeds",
        };
        out += &format!("; faster than {what}");
    }
    if !bound.binding.is_empty() {
        out += &format!("; set by {}", listed(&bound.binding));
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use ropewalk_proto::report::{BottleneckReport, BoundReport};

    use super::super::sample::report;
    use super::*;

    /// A share only of what is a bound, and none above 100 %.
    #[test]
    fn what_is_no_bound_is_not_printed_as_one() {
        let mut report = report();
        let mut bound = report.bound.clone().unwrap();
        bound.share = None;
        bound.exceeded = true;
        report.bound = Some(bound.clone());
        assert_eq!(
            line(&report).unwrap(),
            "bound      1 s = 65.5 kbit/s (declared speeds); faster than the declared speeds; set by b"
        );
        bound.exceeded = false;
        bound.is_exact = false;
        report.bound = Some(bound.clone());
        assert_eq!(
            line(&report).unwrap(),
            "bound      1 s = 65.5 kbit/s (declared speeds, a lower one only); set by b"
        );
        let relayed = BoundReport {
            without_handing_on_seconds: Some(4.0),
            ..bound.clone()
        };
        report.bound = Some(relayed);
        assert_eq!(
            line(&report).unwrap(),
            "bound      1 s = 65.5 kbit/s (declared speeds, a lower one only, 4 s if receivers did not hand on); set by b"
        );
        // A limit hides nothing that was slower than it.
        let limited = BoundReport {
            basis: "limit".into(),
            binding: vec!["--limit".into()],
            share: Some(0.1),
            is_exact: true,
            ..bound
        };
        report.bound = Some(limited);
        for (cause, is_named) in [
            (BottleneckCause::SinkDisk, true),
            (BottleneckCause::Limit, false),
        ] {
            report.bottlenecks = vec![BottleneckReport {
                cause,
                node: Some("b".into()),
                share: 0.9,
                ..BottleneckReport::default()
            }];
            let line = line(&report).unwrap();
            assert!(line.contains("set by --limit"), "{line}");
            assert_eq!(line.contains("writing at b 90 %"), is_named, "{line}");
        }
        report.bottlenecks.clear();
        report.bound = None;
        assert_eq!(line(&report), None, "nothing is known");
        report.own_best_second_bits_per_second = Some(191e6);
        assert_eq!(
            line(&report).unwrap(),
            "own best second: 191 Mbit/s (no bound is known: --node-rate HOST=RATE declares speeds)"
        );
        // Within a host no rate of a node is declared.
        for pair in &mut report.pairs {
            pair.lane = ropewalk_proto::report::LANE_LOCAL.into();
        }
        assert_eq!(line(&report).unwrap(), "own best second: 191 Mbit/s");
    }
}
