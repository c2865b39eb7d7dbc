//! The second line: how near to the least possible time it came, where that is known.

use ropewalk::model::format_seconds;
use ropewalk::report::Report;

use super::full::listed;
use crate::progress::rate;

/// The bound's line without a newline; `None` where nothing can be said.
pub(super) fn line(report: &Report) -> Option<String> {
    let bound = report.bound.as_ref()?;
    let basis = match bound.basis.as_str() {
        "declared" => "declared speeds",
        "interface" => "speeds of the interfaces",
        "limit" => "as it was told",
        "observed" => "an estimate from the best second of each node",
        other => other,
    };
    let exact = if bound.is_exact {
        ""
    } else {
        ", a lower one only"
    };
    let mut out = format!(
        "bound      {} = {} ({basis}{exact}); reached {:.1} %",
        format_seconds(bound.seconds),
        rate(bound.bits_per_second),
        bound.share * 100.0
    );
    if !bound.binding.is_empty() {
        out += &format!("; set by {}", listed(&bound.binding));
    }
    Some(out)
}
