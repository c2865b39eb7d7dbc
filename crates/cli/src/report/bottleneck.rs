//! What held a transfer back: the second line, and under `-v` what would be next and what to do.

use ropewalk_proto::report::{BottleneckCause, BottleneckReport, Report};

use crate::escape;

/// Shares below this are not printed on the second line.
const SHARE_MIN: f64 = 0.1;

/// Of a shorter transfer nothing is printed: any cause of it passes unnoticed.
const SECONDS_MIN: f64 = 1.0;

/// Causes on the second line.
const CAUSES_MAX: usize = 3;

/// `held back by writing at b 71 %, syncing at b 20 %`; `None` where nothing can be said.
pub(super) fn words(report: &Report) -> Option<String> {
    if report.seconds < SECONDS_MIN {
        return None;
    }
    shares(&report.bottlenecks)
}

/// The first causes with their shares; `None` where none is large enough to name.
pub(crate) fn shares(causes: &[BottleneckReport]) -> Option<String> {
    let named = causes.iter().filter(|one| one.share >= SHARE_MIN);
    let parts: Vec<String> = named.take(CAUSES_MAX).map(part).collect();
    (!parts.is_empty()).then(|| format!("held back by {}", parts.join(", ")))
}

fn part(one: &BottleneckReport) -> String {
    format!("{} {:.0} %", name(one), one.share * 100.0)
}

/// What it is, with its place.
pub(crate) fn name(one: &BottleneckReport) -> String {
    use BottleneckCause as Of;
    let at = |what: &str| match &one.node {
        Some(node) => format!("{what} {}", escape::line(node)),
        None => format!("{what} several nodes"),
    };
    // * `all`: of several pairs together.
    let between = |what: &str, and: &str, all: &str| {
        let ends = [&one.node, &one.peer].map(|end| end.as_deref().map(escape::line));
        match ends {
            [Some(from), Some(to)] => format!("{what} {from} {and} {to}"),
            [Some(from), None] => format!("{all} from {from} to several nodes"),
            [None, Some(to)] => format!("{all} from several nodes to {to}"),
            [None, None] => format!("{all} between several nodes"),
        }
    };
    match one.cause {
        Of::Starting => "starting".into(),
        Of::Comparing => at("comparing contents at"),
        Of::Opening => at("connecting at"),
        Of::EarlierTransfer => at("an earlier transfer at"),
        Of::SourceDisk => at("reading at"),
        Of::SenderProcessor | Of::ReceiverProcessor => at("the processor of"),
        Of::SenderRate | Of::ReceiverRate => at("the network speed of"),
        Of::Path => between("the path from", "to", "the paths"),
        Of::Window => between("TCP windows between", "and", "TCP windows"),
        Of::Loss => {
            let rail = one.rail.as_deref().map(escape::line);
            let over = rail.map(|rail| format!(" over {rail}"));
            between("packet loss from", "to", "packet loss") + &over.unwrap_or_default()
        }
        Of::Trunk if one.node.is_none() => "several trunks".into(),
        Of::Trunk => at("trunk"),
        Of::RoundTrips => between("round trips between", "and", "round trips"),
        Of::SinkDisk => at("writing at"),
        Of::Space => at("a full disk at"),
        Of::Syncing if one.node.is_none() => "syncing".into(),
        Of::Syncing => at("syncing at"),
        Of::Limit => "--limit".into(),
        Of::Silence => at("the silence of"),
        Of::Absence => "this command, which did not run,".into(),
        Of::Peers => at("other nodes than"),
    }
}

/// What helps against it.
pub(crate) fn advice(one: &BottleneckReport, encrypted: bool) -> &'static str {
    use BottleneckCause as Of;
    match one.cause {
        Of::Starting => "start agents before (`ropewalk agent`), or send more at once",
        Of::Comparing => {
            "compare by size and time (leave out --check and --delta), or use faster disks"
        }
        Of::Opening => {
            "check names, routes and firewalls of the nodes (-v shows how each pair is connected)"
        }
        Of::EarlierTransfer => {
            "wait until it has ended, or end it, before you begin (`ropewalk status`)"
        }
        Of::SourceDisk => "add sources with the same files, or a faster disk",
        Of::SenderProcessor | Of::ReceiverProcessor if encrypted => {
            "add nodes; on a network that you trust --plain saves the encryption"
        }
        Of::SenderProcessor | Of::ReceiverProcessor => "add nodes, or faster processors",
        Of::SenderRate => "add sources, or interfaces to this one",
        Of::ReceiverRate => {
            "add interfaces, or share the destination among hosts (--destinations shared)"
        }
        Of::Path => "see what lies between them: its speed, other traffic, a second route",
        Of::Window => {
            "raise net.core.rmem_max, net.core.wmem_max and the third value of net.ipv4.tcp_rmem and tcp_wmem on both hosts"
        }
        Of::Loss => {
            "find where packets are dropped (`ip -s link`, switches); --streams or bbr helps meanwhile"
        }
        Of::Trunk => "nothing but a faster trunk",
        Of::RoundTrips => "use more streams (--streams)",
        Of::SinkDisk => {
            "use a faster disk, or share the destination among hosts (--destinations shared)"
        }
        Of::Space => "free space there",
        Of::Syncing => {
            "use a disk that syncs faster; --no-sync leaves it to the system, and a power cut may lose the copy"
        }
        Of::Peers => "name the hosts of the other nodes, too: `ropewalk top HOST...`",
        Of::Silence => "see why its host, agent or network did not answer",
        Of::Absence => "see what stopped it: Ctrl-Z, a signal, a host that slept",
        Of::Limit => "raise it: `ropewalk limit ID RATE` while it runs",
    }
}

/// What held it back, what would be next, and what to do: lines without newlines.
pub(super) fn lines(report: &Report) -> Vec<String> {
    let Some(first) = report.bottlenecks.first() else {
        return Vec::new();
    };
    let parts: Vec<String> = report.bottlenecks.iter().map(part).collect();
    let saved = first.share / 2.0;
    let next = report.bottlenecks.get(1);
    let after = (first.share / 2.0) / (1.0 - saved);
    let next = match next.filter(|next| next.share / (1.0 - saved) > after) {
        Some(next) => format!("then {} is first", name(next)),
        None => "and it stays first".into(),
    };
    vec![
        format!("held back  {}", parts.join(", ")),
        format!(
            "next       twice as fast there: {:.0} % less time, {next}",
            saved * 100.0
        ),
        format!("to do      {}", advice(first, report.encrypted)),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::sample::report;
    use super::*;

    fn one(cause: BottleneckCause, node: &str, peer: Option<&str>, share: f64) -> BottleneckReport {
        BottleneckReport {
            cause,
            node: Some(node.into()),
            peer: peer.map(str::to_owned),
            rail: None,
            share,
        }
    }

    /// The largest causes with their places, and nothing of transfers that are over at once.
    #[test]
    fn the_second_line_names_what_held_it_back() {
        let mut report = report();
        assert_eq!(words(&report), None);
        report.bottlenecks = vec![
            one(BottleneckCause::Path, "a", Some("b"), 0.61),
            one(BottleneckCause::Syncing, "b", None, 0.25),
            one(BottleneckCause::SinkDisk, "b", None, 0.04),
        ];
        assert_eq!(
            words(&report).unwrap(),
            "held back by the path from a to b 61 %, syncing at b 25 %"
        );
        // Of several nodes together; what is small is no answer.
        report.bottlenecks = vec![
            BottleneckReport {
                share: 0.8,
                cause: BottleneckCause::Path,
                ..BottleneckReport::default()
            },
            BottleneckReport {
                share: 0.1,
                cause: BottleneckCause::SinkDisk,
                ..BottleneckReport::default()
            },
        ];
        assert_eq!(
            words(&report).unwrap(),
            "held back by the paths between several nodes 80 %, writing at several nodes 10 %"
        );
        report.bottlenecks = vec![one(BottleneckCause::Path, "a", None, 0.9)];
        assert_eq!(
            words(&report).unwrap(),
            "held back by the paths from a to several nodes 90 %"
        );
        report.bottlenecks = vec![one(BottleneckCause::Path, "a", Some("b"), 0.009)];
        assert_eq!(words(&report), None);
        report.bottlenecks[0].share = 0.9;
        report.seconds = 0.5;
        assert_eq!(words(&report), None);
    }

    /// Losses of one of several rails name that one, whose name is text from elsewhere.
    #[test]
    fn the_rail_of_losses_is_named() {
        let mut loss = one(BottleneckCause::Loss, "a", Some("b"), 0.5);
        assert_eq!(name(&loss), "packet loss from a to b");
        loss.rail = Some("eth1 10.1.0.1 - 10.1.0.2\u{1b}".into());
        let said = name(&loss);
        assert!(said.starts_with("packet loss from a to b over eth1 10.1.0.1 - 10.1.0.2"));
        assert!(!said.contains('\u{1b}'));
    }

    /// What would be first if the first cause were halved.
    #[test]
    fn what_comes_next_is_said() {
        let mut report = report();
        report.bottlenecks = vec![
            one(BottleneckCause::SinkDisk, "b", None, 0.5),
            one(BottleneckCause::SourceDisk, "a", None, 0.3),
        ];
        assert_eq!(
            lines(&report),
            [
                "held back  writing at b 50 %, reading at a 30 %",
                "next       twice as fast there: 25 % less time, then reading at a is first",
                "to do      use a faster disk, or share the destination among hosts (--destinations shared)",
            ]
        );
        report.bottlenecks[1].share = 0.2;
        assert!(lines(&report)[1].ends_with("and it stays first"));
    }
}
