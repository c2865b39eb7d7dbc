//! Parts of a transfer in which no bytes move: before the first and after the last.

use ropewalk_proto::report::{BottleneckCause, BottleneckReport};

/// An end that took so long (seconds) held a transfer back, whether or not anything was seen of the time between.
const LONG: f64 = 0.25;

/// What the start and the sync at the end were of all. Nothing of a transfer that is too short to see what held it back, unless the sync was long: a few
/// megabytes move in no time, and a disk may need seconds for them.
///
/// * `seconds`, `start`, `finish`: of all, before the first byte and after the last.
/// * `syncs`: the node that synced longest.
/// * `is_seen`: something was seen of the time between.
pub(super) fn of(
    (seconds, start, finish): (f64, f64, f64),
    syncs: Option<String>,
    is_seen: bool,
) -> Vec<BottleneckReport> {
    if !is_seen && finish < LONG {
        return Vec::new();
    }
    let share = |part: f64| (part / seconds.max(1e-9)).clamp(0.0, 1.0);
    let start = BottleneckReport {
        share: share(start),
        ..BottleneckReport::default()
    };
    let sync = BottleneckReport {
        cause: BottleneckCause::Syncing,
        node: syncs,
        share: share(finish),
        ..BottleneckReport::default()
    };
    vec![start, sync]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sync of seconds is named though the bytes moved too fast for anything else to be seen; one of milliseconds is not.
    #[test]
    fn a_long_sync_is_named_though_no_byte_was_seen_to_move() {
        let of = |seconds, finish, is_seen| of((seconds, 0.01, finish), Some("b".into()), is_seen);
        assert!(of(0.02, 0.01, false).is_empty());
        for (seconds, finish, is_seen) in [(5.0, 4.9, false), (0.02, 0.01, true)] {
            let found = of(seconds, finish, is_seen);
            let sync = found
                .iter()
                .find(|one| one.cause == BottleneckCause::Syncing);
            let sync = sync.expect("the sync");
            assert_eq!(sync.node.as_deref(), Some("b"));
            assert!((sync.share - finish / seconds).abs() < 1e-9);
            assert_eq!(found.len(), 2);
        }
    }
}
