//! One report of several rounds. Pure.
//!
//! What earlier rounds made safe, the last one found at the destinations, among what was there before the first one. So the bytes that
//! were moved are those that the last round moved, and those that it found and the first one did not.

use std::collections::BTreeMap;

use ropewalk_proto::report::{
    ControlReport, DestinationReport, InterruptionReport, LandingReport, MergedReport, NodeReport,
    Outcome, PairReport, Report,
};

use crate::landing::existed;

/// Whether a round got as far as to know what is wanted, which may be nothing.
fn is_known(report: &Report) -> bool {
    let has_ended = matches!(report.outcome, Outcome::Done | Outcome::Partial);
    has_ended || report.wanted_bytes > 0 || report.found_bytes() > 0
}

/// Where sources were to be read again, and no round since then has begun: how the transfer ended before that is how it ended.
///
/// * `at`: how many rounds there were before, at least one.
pub(super) fn leave_out_refused(rounds: &mut Vec<Report>, at: usize) {
    let later = rounds.get(at..).unwrap_or_default();
    if later.iter().any(|round| round.outcome != Outcome::Refused) {
        return;
    }
    let error = later.last().and_then(|round| round.error.clone());
    rounds.truncate(at);
    if let (Some(last), Some(error)) = (rounds.last_mut(), error) {
        let note = format!("sources that changed were not read again: {error}");
        last.notes.push(note);
    }
}

/// The report of a transfer.
///
/// * `rounds`: at least one, in order.
/// * `complete_bytes`: what receivers have that were left out of later rounds, since their rows were complete.
/// * `seconds`: from the start of the command.
pub(super) fn of_rounds(
    rounds: &[Report],
    complete_bytes: u64,
    interruptions: Vec<InterruptionReport>,
    seconds: f64,
) -> Report {
    let last = rounds.last().expect("at least one round");
    let known: Vec<&Report> = rounds.iter().filter(|round| is_known(round)).collect();
    let (first, end) = match (known.first(), known.last()) {
        (Some(first), Some(end)) => (*first, *end),
        _ => (last, last),
    };
    let found = end.found_bytes().saturating_add(complete_bytes);
    let moved_before = found.saturating_sub(first.found_bytes());
    let has_moved = moved_before.max(end.delivered_bytes) > 0;
    let mut report = Report {
        // A round that was refused follows others that were not.
        outcome: match last.outcome {
            Outcome::Refused if has_moved => Outcome::Failed,
            outcome => outcome,
        },
        error: last.error.clone(),
        error_kind: last.error_kind,
        wanted_bytes: end.wanted_bytes.saturating_add(moved_before),
        delivered_bytes: end.delivered_bytes.saturating_add(moved_before),
        seconds,
        reach_seconds: rounds[0].reach_seconds,
        start_seconds: first.start_seconds,
        // They are of one round, and of what it was given.
        predicted_seconds: None,
        bound: None,
        bound_basis: "none".into(),
        own_best_second_bits_per_second: None,
        bottlenecks: Vec::new(),
        landing: landing(&known, first, end),
        nodes: nodes(rounds),
        pairs: pairs(rounds),
        interruptions,
        control: control(rounds),
        ..end.clone()
    };
    let is_any_sealed = rounds.iter().any(|round| round.encrypted);
    report.encrypted = is_any_sealed && !report.is_within_a_process();
    let per_second = |seconds: f64| match seconds > 0.0 {
        true => report.delivered_bytes as f64 * 8.0 / seconds,
        false => 0.0,
    };
    let moving = |round: &Report| match round.moving_bits_per_second > 0.0 {
        true => round.delivered_bytes as f64 * 8.0 / round.moving_bits_per_second,
        false => 0.0,
    };
    let rates = (
        per_second(seconds),
        per_second(rounds.iter().map(moving).sum()),
    );
    (report.bits_per_second, report.moving_bits_per_second) = rates;
    let sum = |of: fn(&Report) -> u64| rounds.iter().map(of).fold(0, u64::saturating_add);
    report.zero_bytes = sum(|round| round.zero_bytes);
    report.handed_on_bytes = sum(|round| round.handed_on_bytes);
    report.duplicate_bytes = sum(|round| round.duplicate_bytes);
    report.corrupt_units = sum(|round| round.corrupt_units);
    report.replans = sum(|round| round.replans);
    let stalls = rounds.iter().map(|round| round.longest_stall_seconds);
    report.longest_stall_seconds = stalls.fold(0.0, f64::max);
    let mut notes: Vec<String> = Vec::new();
    let is_mended = report.outcome == Outcome::Done;
    let end_at = rounds.iter().position(|round| std::ptr::eq(round, end));
    for (at, round) in rounds.iter().enumerate() {
        let is_last = at + 1 == rounds.len();
        for note in &round.notes {
            // What was lost has returned; the report's interruptions say so.
            let is_back = is_mended && !is_last && round.losses.contains(note);
            // What is refused still is said again.
            let is_read_again = Some(at) < end_at && round.refusals.contains(note);
            let is_over = is_back || is_read_again;
            let is_made = round.landing.merged.iter().any(|folder| {
                note.starts_with(&existed(folder)) && !is_listed(&report.landing, folder)
            });
            if !is_over && !is_made && !notes.contains(note) {
                notes.push(note.clone());
            }
        }
    }
    report.notes = notes;
    for destination in &mut report.destinations {
        let others = known.iter().filter(|round| !std::ptr::eq(**round, end));
        let named = others.flat_map(|round| &round.destinations);
        let same = named.filter(|other| other.nodes == destination.nodes);
        let files = same.map(|other| other.files);
        destination.files = files.fold(destination.files, u64::saturating_add);
    }
    let others = known.iter().flat_map(|round| &round.destinations);
    for complete in others.filter(|other| other.complete) {
        let is_same = |known: &DestinationReport| known.nodes == complete.nodes;
        if !report.destinations.iter().any(is_same) {
            report.destinations.push(complete.clone());
        }
    }
    report
}

/// What was there counts as it was before the first round, and what was done as all did it.
fn landing(known: &[&Report], first: &Report, end: &Report) -> LandingReport {
    let sum = |of: fn(&LandingReport) -> u64| -> u64 {
        let counts = known.iter().map(|round| of(&round.landing));
        counts.fold(0, u64::saturating_add)
    };
    LandingReport {
        merged: merged(known),
        replaced_files: sum(|landing| landing.replaced_files),
        unchanged_files: first.landing.unchanged_files,
        unchanged_bytes: first.landing.unchanged_bytes,
        kept_files: first.landing.kept_files,
        kept_bytes: first.landing.kept_bytes,
        resumed_bytes: first.landing.resumed_bytes,
        taken_bytes: first.landing.taken_bytes,
        wrong: known
            .iter()
            .flat_map(|round| round.landing.wrong.clone())
            .collect(),
        wrong_more: sum(|landing| landing.wrong_more),
        removed_files: sum(|landing| landing.removed_files),
        removed_folders: sum(|landing| landing.removed_folders),
        bits_not_kept: sum(|landing| landing.bits_not_kept),
        owners_not_kept: sum(|landing| landing.owners_not_kept),
        attributes_not_kept: sum(|landing| landing.attributes_not_kept),
        links_not_kept: sum(|landing| landing.links_not_kept),
        special_files_not_kept: sum(|landing| landing.special_files_not_kept),
        ..end.landing.clone()
    }
}

/// Whether a folder is one that was there before the first round.
fn is_listed(landing: &LandingReport, folder: &MergedReport) -> bool {
    let mut listed = landing.merged.iter();
    listed.any(|other| other.node == folder.node && other.path == folder.path)
}

/// Folders that were there before the first round: one that a round has made is there for the next.
fn merged(known: &[&Report]) -> Vec<MergedReport> {
    let mut merged: Vec<MergedReport> = Vec::new();
    let mut made: Vec<&str> = Vec::new();
    for round in known {
        for folder in &round.landing.merged {
            let is_same =
                |other: &&mut MergedReport| other.node == folder.node && other.path == folder.path;
            match merged.iter_mut().find(is_same) {
                Some(before) => {
                    before.added_files = before.added_files.saturating_add(folder.added_files);
                    before.replaced_files =
                        before.replaced_files.saturating_add(folder.replaced_files);
                }
                None if made.contains(&folder.node.as_str()) => {}
                None => merged.push(folder.clone()),
            }
        }
        let named = round.destinations.iter().filter(|one| one.files > 0);
        made.extend(named.flat_map(|one| &one.nodes).map(String::as_str));
    }
    merged
}

/// What each node did in all rounds.
fn nodes(rounds: &[Report]) -> Vec<NodeReport> {
    let mut all: BTreeMap<&str, NodeReport> = BTreeMap::new();
    for line in rounds.iter().flat_map(|round| &round.nodes) {
        let sum = all.entry(&line.node).or_insert_with(|| NodeReport {
            node: line.node.clone(),
            ..NodeReport::default()
        });
        sum.sent_bytes = sum.sent_bytes.saturating_add(line.sent_bytes);
        sum.received_bytes = sum.received_bytes.saturating_add(line.received_bytes);
        sum.processor_seconds += line.processor_seconds;
        sum.resident_max_bytes = sum.resident_max_bytes.max(line.resident_max_bytes);
        sum.best_bits_per_second = sum.best_bits_per_second.max(line.best_bits_per_second);
        sum.error.clone_from(&line.error);
        sum.network = line.network.clone().or(sum.network.take());
    }
    all.into_values().collect()
}

/// What each pair moved in all rounds, over each of its ways.
fn pairs(rounds: &[Report]) -> Vec<PairReport> {
    let mut all: Vec<PairReport> = Vec::new();
    for pair in rounds.iter().flat_map(|round| &round.pairs) {
        let is_same = |other: &&mut PairReport| {
            let key = |pair: &PairReport| {
                let PairReport {
                    sender,
                    receiver,
                    lane,
                    way,
                    rail,
                    ..
                } = pair.clone();
                (sender, receiver, lane, way, rail)
            };
            key(other) == key(pair)
        };
        match all.iter_mut().find(is_same) {
            Some(sum) => {
                *sum = PairReport {
                    bytes: sum.bytes.saturating_add(pair.bytes),
                    corrupt_units: sum.corrupt_units.saturating_add(pair.corrupt_units),
                    waiting_seconds: sum.waiting_seconds + pair.waiting_seconds,
                    datagrams: sum.datagrams.saturating_add(pair.datagrams),
                    datagrams_again: sum.datagrams_again.saturating_add(pair.datagrams_again),
                    ..pair.clone()
                };
            }
            None => all.push(pair.clone()),
        }
    }
    all
}

fn control(rounds: &[Report]) -> ControlReport {
    let mut sum = ControlReport::default();
    for ControlReport {
        nodes,
        plan_messages,
        plan_bytes,
        handshake_bytes,
        status_messages,
        status_bytes,
        pipe_bytes,
        bridged_bytes,
        wire_sent_bytes,
        wire_received_bytes,
        wire_packets,
    } in rounds.iter().map(|round| round.control)
    {
        sum.nodes = sum.nodes.max(nodes);
        sum.plan_messages += plan_messages;
        sum.plan_bytes += plan_bytes;
        sum.handshake_bytes += handshake_bytes;
        sum.status_messages += status_messages;
        sum.status_bytes += status_bytes;
        sum.pipe_bytes += pipe_bytes;
        sum.bridged_bytes += bridged_bytes;
        sum.wire_sent_bytes += wire_sent_bytes;
        sum.wire_received_bytes += wire_received_bytes;
        sum.wire_packets += wire_packets;
    }
    sum
}

#[cfg(test)]
mod tests {
    use ropewalk_proto::report::{ErrorKind, MissingFile};

    use super::*;

    /// A round over 1000 bytes of which so many were there, unchanged and from an earlier run, and so many were moved.
    fn round(outcome: Outcome, unchanged: u64, resumed: u64, delivered: u64) -> Report {
        let mut report = Report {
            wanted_bytes: 1000 - unchanged - resumed,
            delivered_bytes: delivered,
            moving_bits_per_second: 80.0,
            longest_stall_seconds: 1.0,
            duplicate_bytes: 3,
            ..Report::ended(outcome)
        };
        report.landing.unchanged_bytes = unchanged;
        report.landing.resumed_bytes = resumed;
        report.control.plan_messages = 5;
        report.nodes.push(NodeReport {
            node: "b".into(),
            received_bytes: delivered,
            ..NodeReport::default()
        });
        report
    }

    fn interruption() -> Vec<InterruptionReport> {
        vec![InterruptionReport {
            awaited: vec!["b".into()],
            reason: "gone".into(),
            seconds: 2.0,
            returned: true,
        }]
    }

    /// Each byte counts once: what a round moved and the next one found is moved, what was there before the first one is not.
    #[test]
    fn bytes_are_counted_once() {
        let rounds = [
            round(Outcome::Failed, 100, 50, 300),
            // It found 10 more than the one before had reported.
            round(Outcome::Partial, 200, 260, 140),
            round(Outcome::Done, 200, 400, 400),
        ];
        let sum = of_rounds(&rounds, 0, interruption(), 100.0);
        assert_eq!(sum.outcome, Outcome::Done);
        assert_eq!((sum.wanted_bytes, sum.delivered_bytes), (850, 850));
        let landing = &sum.landing;
        assert_eq!((landing.unchanged_bytes, landing.resumed_bytes), (100, 50));
        assert_eq!(sum.bits_per_second, 850.0 * 8.0 / 100.0);
        assert_eq!(sum.moving_bits_per_second, 850.0 * 8.0 / 84.0);
        assert_eq!((sum.duplicate_bytes, sum.longest_stall_seconds), (9, 1.0));
        assert_eq!(sum.control.plan_messages, 15);
        assert_eq!((sum.nodes.len(), sum.nodes[0].received_bytes), (1, 840));
        assert_eq!(sum.interruptions, interruption());
    }

    /// What a receiver has that was left out of the last round, since it was complete, is counted once, and named.
    #[test]
    fn complete_receivers_count() {
        let copy = |node: &str, complete| DestinationReport {
            nodes: vec![node.into()],
            complete,
            files: u64::from(complete),
            error: None,
        };
        // Of 1000 bytes 400 are of a receiver that had 50 of them from an earlier run.
        let mut first = round(Outcome::Failed, 0, 50, 500);
        first.destinations = vec![copy("a", true), copy("b", false)];
        let mut last = round(Outcome::Done, 0, 150, 450);
        last.wanted_bytes = 450;
        last.destinations = vec![copy("b", true)];
        let sum = of_rounds(&[first, last], 400, interruption(), 9.0);
        assert_eq!((sum.wanted_bytes, sum.delivered_bytes), (950, 950));
        assert_eq!(sum.landing.resumed_bytes, 50);
        assert_eq!(sum.destinations, [copy("b", true), copy("a", true)]);
    }

    /// A round that ended before it knew what was wanted says how it ended, and nothing about bytes.
    #[test]
    fn the_last_round_may_know_nothing() {
        let mut last = Report::ended(Outcome::Refused);
        last.error = Some("b: no such file".into());
        last.error_kind = Some(ErrorKind::Refused);
        let sum = of_rounds(
            &[round(Outcome::Failed, 0, 0, 300), last.clone()],
            0,
            interruption(),
            9.0,
        );
        assert_eq!(sum.outcome, Outcome::Failed);
        assert_eq!(sum.error.as_deref(), Some("b: no such file"));
        assert_eq!((sum.wanted_bytes, sum.delivered_bytes), (1000, 300));
        let none = of_rounds(&[last.clone(), last], 0, interruption(), 9.0);
        assert_eq!(none.outcome, Outcome::Refused);
    }

    /// A folder that an earlier round made was not there; one that was there is named once, with what all rounds put into it.
    #[test]
    fn folders_of_earlier_rounds_were_not_there() {
        let merged = |node: &str, added_files| MergedReport {
            node: node.into(),
            path: "/set".into(),
            added_files,
            ..MergedReport::default()
        };
        let copy = |node: &str, files| DestinationReport {
            nodes: vec![node.into()],
            complete: false,
            files,
            error: None,
        };
        let mut first = round(Outcome::Partial, 0, 0, 300);
        first.landing.merged = vec![merged("old", 2)];
        first.destinations = vec![copy("new", 3), copy("old", 2)];
        let mut last = round(Outcome::Done, 0, 300, 700);
        last.landing.merged = vec![merged("new", 4), merged("old", 5)];
        last.destinations = vec![copy("new", 4), copy("old", 5)];
        let sum = of_rounds(&[first, last], 0, interruption(), 9.0);
        assert_eq!(sum.landing.merged, [merged("old", 7)]);
        assert_eq!(sum.destinations, [copy("new", 7), copy("old", 7)]);
    }

    /// When all has ended well, no note reads like a failure, and none says that a folder existed which this command made.
    #[test]
    fn what_was_mended_is_not_noted() {
        let merged = |node: &str| MergedReport {
            node: node.into(),
            path: "/set".into(),
            added_files: 3,
            ..MergedReport::default()
        };
        let mut first = round(Outcome::Failed, 0, 0, 300);
        first.notes = vec![
            "s is lost: the connection closed".into(),
            "new: no remaining node holds the missing data".into(),
            "new cannot reach s, and no other node holds what it was to get there".into(),
            "not kept: 1 set-id bit".into(),
            "s: what it says of itself is lost: nothing".into(),
        ];
        first.losses = first.notes[..3].to_vec();
        first.destinations = vec![DestinationReport {
            nodes: vec!["new".into()],
            complete: false,
            files: 3,
            error: None,
        }];
        let mut last = round(Outcome::Done, 0, 300, 700);
        last.landing.merged = vec![merged("new"), merged("old")];
        last.notes = vec![
            "new: /set existed: merged, 3 files added, 0 replaced".into(),
            "old: /set existed: merged, 3 files added, 0 replaced".into(),
            "t is lost: the connection closed".into(),
        ];
        last.losses = last.notes[2..].to_vec();
        let sum = of_rounds(&[first.clone(), last.clone()], 0, interruption(), 9.0);
        let kept = [&first.notes[3..], &last.notes[1..]].concat();
        assert_eq!(sum.notes, kept);
        last.outcome = Outcome::Failed;
        let sum = of_rounds(&[first, last], 0, interruption(), 9.0);
        assert_eq!(sum.notes.len(), 7);
    }

    /// A round that reads sources again is no other transfer: what it completed is not missing, and what was refused before is over.
    #[test]
    fn sources_that_were_read_again_are_one_transfer() {
        let missing = |file: &str| MissingFile {
            node: "new".into(),
            file: file.into(),
            bytes: 5,
            reason: "it changed since it was scanned".into(),
        };
        let copy = |complete, files| DestinationReport {
            nodes: vec!["new".into()],
            complete,
            files,
            error: None,
        };
        let mut first = round(Outcome::Partial, 0, 0, 700);
        first.error = Some("f was not copied: it changed; nor was 1 more file".into());
        first.notes = vec![
            "new was refused by s, and no other node holds it: \"/f\" changed".into(),
            "not kept: 1 set-id bit".into(),
        ];
        first.refusals = first.notes[..1].to_vec();
        first.missing_files = vec![missing("f"), missing("g")];
        first.missing = [("new".to_owned(), vec![(700, 1000)])].into();
        first.destinations = vec![copy(false, 3)];
        let mut last = round(Outcome::Done, 0, 700, 300);
        last.notes = vec!["new: /set existed: merged, 2 files added, 0 replaced".into()];
        last.landing.merged = vec![MergedReport {
            node: "new".into(),
            path: "/set".into(),
            added_files: 2,
            ..MergedReport::default()
        }];
        last.destinations = vec![copy(true, 2)];
        let sum = of_rounds(&[first.clone(), last.clone()], 0, Vec::new(), 9.0);
        assert_eq!((sum.outcome, &sum.error), (Outcome::Done, &None));
        assert_eq!((sum.wanted_bytes, sum.delivered_bytes), (1000, 1000));
        assert!(sum.missing.is_empty() && sum.missing_files.is_empty());
        assert_eq!(sum.notes, ["not kept: 1 set-id bit"]);
        assert_eq!(sum.landing.merged, []);
        assert_eq!(sum.destinations, [copy(true, 5)]);
        // One file has changed again.
        last.outcome = Outcome::Partial;
        last.missing_files = vec![missing("g")];
        let sum = of_rounds(&[first.clone(), last.clone()], 0, Vec::new(), 9.0);
        assert_eq!(sum.missing_files, [missing("g")]);
        assert_eq!(sum.notes, ["not kept: 1 set-id bit"]);
        // All that had changed is empty now: nothing is wanted, and nothing was found.
        let mut empty = round(Outcome::Done, 0, 0, 0);
        empty.wanted_bytes = 0;
        let sum = of_rounds(&[first, empty], 0, Vec::new(), 9.0);
        assert!(sum.missing.is_empty() && sum.missing_files.is_empty());
        assert_eq!(sum.outcome, Outcome::Done);
    }

    /// Where sources cannot be read again the transfer ends as it did before, and says why.
    #[test]
    fn a_repetition_that_is_refused_changes_nothing() {
        let first = round(Outcome::Partial, 0, 0, 300);
        let mut refused = Report::ended(Outcome::Refused);
        refused.error = Some("s: no route to host".into());
        let mut rounds = vec![first.clone(), refused.clone()];
        leave_out_refused(&mut rounds, 1);
        assert_eq!((rounds.len(), rounds[0].outcome), (1, Outcome::Partial));
        assert_eq!(
            rounds[0].notes,
            ["sources that changed were not read again: s: no route to host"]
        );
        for outcome in [Outcome::Done, Outcome::Failed, Outcome::Cancelled] {
            let mut rounds = vec![first.clone(), round(outcome, 0, 0, 0), refused.clone()];
            leave_out_refused(&mut rounds, 1);
            assert_eq!(rounds.len(), 3);
        }
    }
}
