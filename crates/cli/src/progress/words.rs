//! What progress says of events, in words.

use ropewalk_model::{ByteRate, format_bytes, format_seconds};
use ropewalk_proto::report::{BottleneckReport, Event};

use crate::escape;
use crate::numbers::thousands;
use crate::report::shares;

/// A rate for people, from bits per second.
pub(crate) fn rate(bits_per_second: f64) -> String {
    ByteRate((bits_per_second.max(0.0) / 8.0) as u64).to_string()
}

pub(super) fn rate_and_eta(bits_per_second: f64, eta_seconds: Option<f64>) -> String {
    match eta_seconds {
        Some(eta) => format!("{}, {} left", rate(bits_per_second), format_seconds(eta)),
        None => rate(bits_per_second),
    }
}

/// As [`rate_and_eta`]; where nothing moves, with what holds the transfer back.
pub(super) fn moving(
    bits_per_second: f64,
    eta_seconds: Option<f64>,
    causes: &[BottleneckReport],
) -> String {
    let moves = rate_and_eta(bits_per_second, eta_seconds);
    match shares(causes).filter(|_| bits_per_second == 0.0) {
        Some(causes) => format!("{moves}, {causes}"),
        None => moves,
    }
}

pub(super) fn planned_words(event: &Event) -> String {
    let Event::Planned {
        bytes,
        sources,
        scheduler,
        predicted_seconds,
        bound_seconds,
        bound_basis,
        ..
    } = event
    else {
        return String::new();
    };
    let mut words = format!("planned {} by {scheduler}", format_bytes(*bytes));
    if let Some(sources) = sources {
        words.push_str(&format!(", sources: {sources}"));
    }
    if let Some(seconds) = predicted_seconds {
        words.push_str(&format!(", predicted {}", format_seconds(*seconds)));
    }
    if let Some(seconds) = bound_seconds {
        words.push_str(&format!(
            ", bound {} ({bound_basis})",
            format_seconds(*seconds)
        ));
    }
    words
}

/// Nodes that have not answered; of many a few.
pub(super) fn awaited_words(event: &Event) -> String {
    let Event::Awaiting {
        awaited,
        reached,
        nodes,
    } = event
    else {
        return String::new();
    };
    let awaited = few(awaited);
    format!("waiting for {awaited} (reached {reached} of {nodes})")
}

/// The first of some names, and how many more there are.
fn few(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let shown = names.iter().take(SHOWN).map(|name| escape::line(name));
    let shown = shown.collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Nodes that were lost and are waited for, or are back; sources that are read again.
pub(crate) fn waiting_words(event: &Event) -> String {
    match event {
        Event::Waiting {
            awaited,
            reason,
            seconds,
            most_seconds,
        } => {
            let most = most_seconds.map(|most| format!(" of {}", format_seconds(most)));
            format!(
                "waiting for {}, {}{} ({})",
                few(awaited),
                format_seconds(seconds.floor()),
                most.unwrap_or_default(),
                escape::line(reason)
            )
        }
        Event::Repeating { files: 1 } => {
            "1 file changed, or could not be read, while it was copied: its sources are read again"
                .to_owned()
        }
        Event::Repeating { files } => format!(
            "{} files changed, or could not be read, while they were copied: their sources are read again",
            thousands(*files)
        ),
        Event::Returned { returned, seconds } => format!(
            "reached {} again after {}",
            few(returned),
            format_seconds(*seconds)
        ),
        _ => String::new(),
    }
}

/// What a node does that moves nothing, and how far it is.
pub(crate) fn busy_words(event: &Event) -> String {
    match event {
        Event::Scanning { node, entries } => format!(
            "{}: reading the names of files, {} so far",
            escape::line(node),
            thousands(*entries)
        ),
        Event::AwaitingEnd {
            node,
            path,
            seconds,
        } => format!(
            "{}: waiting for an earlier transfer to {} to end, {}",
            escape::line(node),
            escape::line(path),
            format_seconds(seconds.floor())
        ),
        Event::Removing {
            node,
            removed,
            total,
        } => format!(
            "{}: removing {} of {} names",
            escape::line(node),
            removed,
            total
        ),
        Event::Comparing {
            node,
            done_bytes,
            total_bytes,
        } => format!(
            "{}: {} of {} compared by content",
            escape::line(node),
            format_bytes(*done_bytes),
            format_bytes(*total_bytes)
        ),
        _ => String::new(),
    }
}

/// What a transfer does at this moment, and how far it is. `None` for what has happened.
pub(crate) fn now_words(event: &Event) -> Option<String> {
    match event {
        Event::Reached {
            node,
            reached,
            nodes,
        } => Some(format!(
            "reached {} ({reached} of {nodes})",
            escape::line(node)
        )),
        Event::Awaiting { .. } => Some(awaited_words(event)),
        Event::Waiting { .. } | Event::Returned { .. } | Event::Repeating { .. } => {
            Some(waiting_words(event))
        }
        Event::Progress {
            delivered_bytes,
            received_bytes,
            total_bytes,
            bits_per_second,
            eta_seconds,
            bottlenecks,
            ..
        } => Some(format!(
            "{} of {}, {} safe, {}",
            format_bytes(*received_bytes),
            format_bytes(*total_bytes),
            format_bytes(*delivered_bytes),
            moving(*bits_per_second, *eta_seconds, bottlenecks)
        )),
        Event::Scanning { .. }
        | Event::Comparing { .. }
        | Event::AwaitingEnd { .. }
        | Event::Removing { .. } => Some(busy_words(event)),
        Event::HandedOver { .. }
        | Event::Asking { .. }
        | Event::Uploaded { .. }
        | Event::Planned { .. }
        | Event::Note { .. }
        | Event::Listed { .. }
        | Event::Ended { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_proto::report::BottleneckCause;

    use super::*;

    /// Where nothing moves the line says why, as far as that is known.
    #[test]
    fn what_stands_still_has_a_reason() {
        let causes = [BottleneckReport {
            cause: BottleneckCause::SinkDisk,
            node: Some("b".into()),
            share: 1.0,
            ..BottleneckReport::default()
        }];
        let still = moving(0.0, None, &causes);
        assert!(
            still.ends_with(", held back by writing at b 100 %"),
            "{still}"
        );
        assert_eq!(moving(0.0, None, &[]), rate_and_eta(0.0, None));
        assert_eq!(
            moving(8e6, Some(2.0), &causes),
            rate_and_eta(8e6, Some(2.0))
        );
    }

    /// What is done while nothing moves.
    #[test]
    fn what_keeps_a_node_busy_is_said() {
        let node = "b\u{1b}".to_owned();
        let awaiting = Event::AwaitingEnd {
            node: node.clone(),
            path: "/x".into(),
            seconds: 6.9,
        };
        let removing = Event::Removing {
            node: node.clone(),
            removed: 5000,
            total: 20_001,
        };
        let scanning = Event::Scanning {
            node: node.clone(),
            entries: 1_204_000,
        };
        for (event, words) in [
            (
                scanning,
                "b\\u{1b}: reading the names of files, 1,204,000 so far",
            ),
            (
                awaiting,
                "b\\u{1b}: waiting for an earlier transfer to /x to end, 6 s",
            ),
            (removing, "b\\u{1b}: removing 5000 of 20001 names"),
        ] {
            assert_eq!(busy_words(&event), words);
        }
    }
}
