//! A transfer from the first attempt to reach its nodes to its report: one round; more where nodes are lost that it cannot go on
//! without, and return. How long they are waited for is [`ropewalk_proto::patience`]'s. And once another one where sources changed while
//! they were read.
//!
//! ```text
//!  reach ─▶ round ──complete, stopped, or failed for good──▶ report of all rounds
//!            ▲▲ │
//!            ││ ├─nodes are gone─▶ wait: reach them again ──too long, or stopped──▶ report of all rounds
//!            │└─│─────all are back─────────┘
//!            └──┴─sources changed, the first time
//! ```
//!
//! A round is a transfer with a coordinator and an id of its own: after its end no node knows of it. What it made safe is in the
//! journals at the destinations, where the next one finds it, as another command would. So there is no state of a pause, and whatever a
//! node has forgotten does no harm.

mod repeat;
mod sum;
mod wait;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ropewalk_model::time;
use ropewalk_proto::coordinator::{Earlier, Gone, with_all_files};
use ropewalk_proto::patience::{Patience, Settings};
use ropewalk_proto::report::{
    ControlReport, ErrorKind, Event, InterruptionReport, Outcome, Report, SourcesReport,
};
use tokio::sync::mpsc::UnboundedSender;
use uuid::Uuid;

use crate::absent;
use crate::drive::{After, Cancel, Round, drive};
use crate::expand::Agents;
use crate::lessons;
use crate::members::{Asked, Members, MembersError};
use crate::reach::{Answers, Failure, Ranks, Reached, reach_each};
use crate::report;
use crate::request::{
    LaneKind, Mapping, NodeRequest, Object, ObjectRequest, Reach, Request, Sources,
};
use crate::setup::{Before, check, links_note};
use crate::speeds;

/// Answers of nodes that were reached before, by their positions.
type Known = BTreeMap<usize, Result<Reached, Failure>>;

/// Carries out a transfer. Never fails by itself: refusals and errors are in the report.
///
/// Events go to `events` while it runs; the report is the return value only. Nodes join and leave by `members`.
pub async fn run(
    request: Request,
    events: UnboundedSender<Event>,
    cancel: Cancel,
    members: Members,
) -> Report {
    run_with(Agents::default(), request, events, cancel, members).await
}

/// As [`run`], with agents that were asked before ([`expand`](crate::expand)).
pub async fn run_with(
    agents: Agents,
    mut request: Request,
    events: UnboundedSender<Event>,
    cancel: Cancel,
    members: Members,
) -> Report {
    let (first, began) = (Uuid::now_v7(), Instant::now());
    let asked = members.take();
    // The result must not depend on the order in which hosts were named.
    request.nodes.sort_by(|a, b| a.name.cmp(&b.name));
    let ranks = match prepare(&request).await {
        Ok(ranks) => ranks,
        Err(text) => {
            agents.leave().await;
            return report::refused(&request, &first.to_string(), ErrorKind::Refused, text);
        }
    };
    let wait = request.options.wait;
    let transfer = Transfer {
        first,
        name: first.to_string(),
        began,
        events,
        cancel,
        asked,
        ranks: ranks.as_ref(),
        earlier: Earlier::default(),
        patience: Patience::new(Settings {
            most: wait.most.map(Into::into),
            at_start: wait.at_start,
        }),
        rounds: Vec::new(),
        complete_bytes: 0,
        interruptions: Vec::new(),
        repeated_at: None,
    };
    let report = transfer.run(agents, request).await;
    if let Some(ranks) = ranks {
        ranks.end().await;
    }
    report
}

/// Checks a request, and looks for the MPI that its agents are ranks of, where they are.
async fn prepare(request: &Request) -> Result<Option<Ranks>, String> {
    check(request).map_err(|error| error.to_string())?;
    let options = &request.options;
    if options.lane != LaneKind::Mpi {
        return Ok(None);
    }
    let (cache, program) = (options.cache.as_deref(), &options.local_program);
    let ranks = Ranks::find(cache, program, request.nodes.len()).await?;
    Ok(Some(ranks))
}

/// Whether a further round finds what an earlier one made safe: trees and files with journals, in which nothing is recorded without
/// syncs.
fn is_resumable(request: &Request) -> bool {
    let options = &request.options;
    let is_rows = request.mapping == Mapping::Rows;
    let nodes = request.nodes.iter();
    let has_journals = !is_rows || are_seen_whole(&request.nodes);
    let mut objects = nodes.flat_map(|node| node.sources.iter().chain(&node.sinks));
    let is_file = |object: &Object| matches!(object, Object::Path(_) | Object::Bundle(_));
    has_journals
        && options.same.keeps()
        && options.sync
        && options.lane != LaneKind::Mpi
        && !options.dry_run
        && objects.all(|object| is_file(&object.object))
}

/// Whether of each destination that readers of rows share one can look what is there: else it has no journal.
fn are_seen_whole(nodes: &[NodeRequest]) -> bool {
    let mut destinations: BTreeMap<&str, Vec<BTreeSet<&[u8]>>> = BTreeMap::new();
    for node in nodes {
        let shared = node
            .sinks
            .first()
            .and_then(|sink| sink.destination.as_deref());
        let Some(name) = shared else { continue };
        let files = node.sinks.iter().filter_map(|sink| match &sink.object {
            Object::Path(path) => Some(path.as_slice()),
            _ => None,
        });
        let members = destinations.entry(name).or_default();
        members.push(files.collect());
    }
    let mut members = destinations.values();
    members.all(|members| !with_all_files(members).is_empty())
}

/// Where all sources were found to hold the same, each replaces the others in further rounds, too.
fn know_replicas(request: &mut Request, found: SourcesReport) {
    let all: usize = request.nodes.iter().map(|node| node.sources.len()).sum();
    if let Mapping::Trees { sources, .. } = &mut request.mapping
        && *sources == Sources::Auto
        && found.parts == 1
        && found.holders as usize == all
    {
        *sources = Sources::Replicas;
    }
}

/// The nodes of the next round. An agent that joined again is one node with what it was before, under the first of its names; `after` calls
/// it so from now on.
///
/// * `asked`: those of the last one; of these some may have been left out, and may be back.
/// * `after`: what it has left.
fn next_nodes(asked: &[NodeRequest], after: &mut After) -> Vec<NodeRequest> {
    let is_here = |node: &&NodeRequest| !after.departed.contains(&node.name);
    let mut nodes: Vec<NodeRequest> = asked.iter().filter(is_here).cloned().collect();
    let mut first_names: BTreeMap<String, String> = BTreeMap::new();
    for node in after.nodes.iter().filter(is_here) {
        if nodes.iter().any(|known| known.name == node.name) {
            continue;
        }
        let is_agent = matches!(node.reach, Reach::Attached { .. });
        let known = nodes.iter_mut();
        let mut known = known.filter(|known| is_agent && known.reach == node.reach);
        match known.next() {
            Some(known) => {
                first_names.insert(node.name.clone(), known.name.clone());
                add_objects(&mut known.sources, &node.sources);
                add_objects(&mut known.sinks, &node.sinks);
            }
            None => nodes.push(node.clone()),
        }
    }
    let first = |name: &String| first_names.get(name).unwrap_or(name).clone();
    // What it was to get under all of its names has to be there.
    let sinks_of = |name: &str| {
        let mut visits = asked.iter().chain(&after.nodes);
        let visit = visits.find(|visit| visit.name == name);
        visit.map_or(&[][..], |visit| &visit.sinks)
    };
    let mut there: BTreeMap<String, Vec<ObjectRequest>> = BTreeMap::new();
    for one in &after.complete {
        let there = there.entry(first(&one.node)).or_default();
        there.extend_from_slice(sinks_of(&one.node));
    }
    after.complete.retain_mut(|one| {
        one.node = first(&one.node);
        let node = nodes.iter().find(|node| node.name == one.node);
        node.is_none_or(|node| {
            node.sinks
                .iter()
                .all(|sink| there[&one.node].contains(sink))
        })
    });
    let mut met = BTreeSet::new();
    after.gone.retain_mut(|gone| {
        gone.node = first(&gone.node);
        met.insert(gone.node.clone())
    });
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    nodes
}

/// Adds what a node has, or wants, when it joins again.
fn add_objects(known: &mut Vec<ObjectRequest>, more: &[ObjectRequest]) {
    for one in more {
        let is_it = |known: &&mut ObjectRequest| {
            known.object == one.object && known.destination == one.destination
        };
        match known.iter_mut().find(is_it) {
            Some(known) => {
                for row in &one.rows {
                    if !known.rows.contains(row) {
                        known.rows.push(*row);
                    }
                }
            }
            None => known.push(one.clone()),
        }
    }
}

/// Leaves out receivers that are complete, as receivers: those of rows, since nothing tells a file of rows that is complete from another
/// one, and it would be sent again; of trees those that were lost after that, which need not be back. How many bytes they have.
fn leave_out_complete(request: &mut Request, after: &After) -> u64 {
    let is_of_rows = request.mapping == Mapping::Rows;
    let complete = after.complete.iter();
    let complete: Vec<_> = complete.filter(|one| is_of_rows || one.is_lost).collect();
    let nodes = &mut request.nodes;
    let is_complete = |node: &NodeRequest| complete.iter().any(|one| one.node == node.name);
    for node in nodes.iter_mut().filter(|node| is_complete(node)) {
        node.sinks.clear();
    }
    nodes.retain(|node| !node.sources.is_empty() || !node.sinks.is_empty());
    let bytes = complete.iter().map(|one| one.bytes);
    bytes.fold(0, u64::saturating_add)
}

/// How a round has ended.
struct Ended {
    report: Report,
    after: After,
}

impl Ended {
    fn with(report: Report, gone: Vec<Gone>) -> Self {
        let after = After {
            gone,
            ..After::default()
        };
        Self { report, after }
    }
}

/// A transfer that is carried out.
struct Transfer<'r> {
    first: Uuid,
    // Its id for people.
    name: String,
    began: Instant,
    events: UnboundedSender<Event>,
    cancel: Cancel,
    asked: Asked,
    ranks: Option<&'r Ranks>,
    patience: Patience,
    // What the nodes had in a round that moved bytes, and which ones were waited for.
    earlier: Earlier,
    // Rounds that have ended, and were followed by another one.
    rounds: Vec<Report>,
    // What receivers have that were left out of later rounds.
    complete_bytes: u64,
    interruptions: Vec<InterruptionReport>,
    // How many rounds there were before sources were read again.
    repeated_at: Option<usize>,
}

impl Transfer<'_> {
    fn now(&self) -> time::Instant {
        time::Instant::after(self.began.elapsed())
    }

    fn tell(&self, event: Event) {
        let _ = self.events.send(event);
    }

    async fn run(mut self, mut agents: Agents, mut request: Request) -> Report {
        let mut known = agents.take(&request.nodes);
        let mut before = (agents.control, agents.asking);
        loop {
            let ended = self.round(known, request.clone(), before).await;
            before = (ControlReport::default(), Duration::ZERO);
            let Ended {
                mut report,
                mut after,
            } = ended;
            request.options.lists &= !after.has_listed;
            request.options.tokens.append(&mut after.tokens);
            if after.has_moved {
                if let Some(found) = report.sources {
                    know_replicas(&mut request, found);
                }
                self.earlier.add(std::mem::take(&mut after.earlier));
            }
            let has_repeated = self.repeated_at.is_some();
            let repeats = repeat::is_due(&request, &report, &after, has_repeated);
            // Ranks start together.
            let is_over = after.gone.is_empty() && !repeats
                || self.cancel.is_cancelled()
                || self.ranks.is_some();
            if is_over || after.has_moved && !is_resumable(&request) {
                return self.sum(report);
            }
            let between = MembersError::between_rounds(&after.gone);
            after.unanswered.put_off(&between);
            if !after.nodes.is_empty() {
                request.nodes = next_nodes(&request.nodes, &mut after);
            }
            let complete_bytes = leave_out_complete(&mut request, &after);
            let next = match repeats {
                true => {
                    request.options.as_scanned = repeat::takes_as_scanned(&request);
                    Some(self.repeat(&report).await)
                }
                false => self.wait_for(&after, &mut request, &mut report).await,
            };
            match next {
                Some(returned) => {
                    self.rounds.push(report);
                    self.complete_bytes = self.complete_bytes.saturating_add(complete_bytes);
                    known = returned;
                }
                None => return self.sum(report),
            }
        }
    }

    /// Sources are to be read again, once, after a pause: what is written now may be whole then. All nodes are reached again for that: the
    /// connections of a round end with it.
    async fn repeat(&mut self, report: &Report) -> Known {
        self.repeated_at = Some(self.rounds.len() + 1);
        let files = repeat::files(report);
        self.tell(Event::Repeating { files });
        tokio::select! {
            () = tokio::time::sleep(repeat::PAUSE) => {}
            () = self.cancel.cancelled() => {}
        }
        Known::new()
    }

    /// The report of all rounds.
    fn sum(mut self, last: Report) -> Report {
        if self.rounds.is_empty() && self.interruptions.is_empty() {
            return last;
        }
        self.rounds.push(last);
        if let Some(at) = self.repeated_at {
            sum::leave_out_refused(&mut self.rounds, at);
        }
        let seconds = self.began.elapsed().as_secs_f64();
        sum::of_rounds(
            &self.rounds,
            self.complete_bytes,
            self.interruptions,
            seconds,
        )
    }

    /// The id of a round. All rounds of a transfer have ids that differ in the last two bytes only, by which a receiver knows what an
    /// earlier one writes (`crates/store/src/endings.rs`).
    fn round_id(&self) -> Uuid {
        let mut bytes = *self.first.as_bytes();
        let last = u16::from_be_bytes([bytes[14], bytes[15]]);
        let last = last.wrapping_add(self.rounds.len() as u16);
        bytes[14..].copy_from_slice(&last.to_be_bytes());
        Uuid::from_bytes(bytes)
    }

    /// * `known`: nodes that are reached already.
    /// * `before`: what asking them has cost, and how long it took.
    async fn round(
        &mut self,
        known: Known,
        mut request: Request,
        before: (ControlReport, Duration),
    ) -> Ended {
        let started = Instant::now();
        // Another one that is asked for from now on is given to the round.
        if let Some(limit) = self.asked.limit.get() {
            request.options.limit = limit.map(|rate| rate.0);
        }
        let name = &self.name;
        let events = self.events.clone();
        let notice = |event: Event| {
            let _ = events.send(event);
        };
        let loopback = request.nodes.iter().all(|n| n.reach == Reach::Local);
        let reaching = reach_each(
            &request.nodes,
            &request.options,
            loopback,
            self.ranks,
            known,
            notice,
        );
        let answers = tokio::select! {
            answers = reaching => answers,
            () = self.cancel.cancelled() => {
                let report = report::ended_early(&request, name, Outcome::Cancelled, "interrupted".into());
                return Ended::with(report, Vec::new());
            }
        };
        let unreached = unreached(&request.nodes, &answers);
        let absent::Present {
            reached: links,
            absent,
            notes: left_out,
        } = match absent::leave_out(&mut request, answers).await {
            Ok(present) => present,
            Err((kind, text)) => {
                let gone = match kind {
                    ErrorKind::Unreachable => unreached,
                    _ => Vec::new(),
                };
                return Ended::with(report::refused(&request, name, kind, text), gone);
            }
        };
        let note = |message: &String| {
            let message = message.clone();
            self.tell(Event::Note {
                seconds: 0.0,
                message,
            });
        };
        left_out.iter().for_each(note);
        let speeds::Recalled {
            hints,
            basis,
            failure,
        } = tokio::select! {
            recalled = speeds::recall(&request) => recalled,
            () = self.cancel.cancelled() => Default::default(),
        };
        failure.iter().for_each(note);
        let recalled = tokio::select! {
            recalled = lessons::recall(&request.options) => recalled,
            () = self.cancel.cancelled() => Ok(Vec::new()),
        };
        let (lessons, lessons_note) = match recalled {
            Ok(lessons) => (lessons, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let known = Before {
            hints,
            basis: basis.clone(),
            lessons,
            absent,
            earlier: self.earlier.clone(),
        };
        let reaching = started.elapsed();
        let round = Round {
            id: self.round_id(),
            transfer: name,
            wanted: self.rounds.iter().map(|round| round.wanted_bytes).max(),
        };
        let (mut report, request, mut after) = drive(
            request,
            round,
            (links, self.ranks),
            known,
            (self.events.clone(), &self.cancel),
            &mut self.asked,
        )
        .await;
        let (control, asking) = before;
        report.control.plan_messages += control.plan_messages;
        report.control.plan_bytes += control.plan_bytes;
        report::count_reaching(&mut report, asking + reaching);
        let links_note = links_note(&request);
        let notes = left_out
            .into_iter()
            .chain(failure)
            .chain(basis.filter(|_| report.wanted_bytes > 0))
            .chain(lessons_note)
            .chain(links_note);
        report.notes.splice(0..0, notes);
        let observations = std::mem::take(&mut after.observations);
        let speeds = speeds::remember(&request, report.outcome, observations).await;
        let lessons = lessons::remember(&request.options, after.lessons.take()).await;
        report.notes.extend(speeds.into_iter().chain(lessons));
        Ended { report, after }
    }
}

/// Nodes that were not reached. None where ssh has a question that no person has answered: that does not pass.
fn unreached(nodes: &[NodeRequest], answers: &Answers) -> Vec<Gone> {
    let failed = nodes.iter().zip(answers);
    let failed = failed.filter_map(|(node, answer)| Some((node, answer.as_ref().err()?)));
    let failed: Vec<_> = failed.collect();
    if failed.iter().any(|(_, failure)| failure.is_question) {
        return Vec::new();
    }
    let gone = |(node, failure): (&NodeRequest, &Failure)| Gone {
        node: node.name.clone(),
        reason: failure.text.clone(),
    };
    failed.into_iter().map(gone).collect()
}

#[cfg(test)]
mod tests {
    use ropewalk_proto::coordinator::Complete;

    use super::*;
    use crate::request::{Destinations, ObjectRequest, Options, Same};

    pub(super) fn node(name: &str, port: u16, object: Object) -> NodeRequest {
        NodeRequest {
            name: name.into(),
            reach: Reach::Attached {
                host: name.into(),
                port,
            },
            sources: vec![ObjectRequest {
                object,
                rows: Vec::new(),
                destination: None,
                make_folder: false,
            }],
            sinks: Vec::new(),
            up: None,
            down: None,
            interfaces: Vec::new(),
        }
    }

    pub(super) fn path() -> Object {
        Object::Path(b"/x".to_vec())
    }

    /// Receivers of rows that are complete take no part in further rounds, nor do those of trees that are lost; one that sends, too, does.
    #[test]
    fn complete_receivers_are_left_out() {
        let reader = |name: &str, port| {
            let node = node(name, port, path());
            NodeRequest {
                sinks: node.sources.clone(),
                sources: Vec::new(),
                ..node
            }
        };
        let mut both = reader("both", 3);
        both.sources = node("both", 3, path()).sources;
        let nodes = vec![node("a", 1, path()), reader("b", 2), both, reader("c", 4)];
        let complete = |name: &str, bytes, is_lost| Complete {
            node: name.into(),
            bytes,
            is_lost,
        };
        let after = After {
            complete: vec![complete("b", 100, true), complete("both", 20, false)],
            ..After::default()
        };
        let trees = Mapping::Trees {
            sources: Sources::Auto,
            destinations: Destinations::Copies,
        };
        for (mapping, bytes, sinks) in [(Mapping::Rows, 120, 0), (trees, 100, 1)] {
            let mut request = Request {
                label: None,
                nodes: nodes.clone(),
                mapping,
                links: Vec::new(),
                options: Options::default(),
            };
            assert_eq!(leave_out_complete(&mut request, &after), bytes);
            let left = request.nodes.iter().map(|n| (&*n.name, n.sinks.len()));
            let expected = [("a", 0), ("both", sinks), ("c", 1)];
            assert_eq!(left.collect::<Vec<_>>(), expected);
        }
    }

    /// Only what has journals is tried again after bytes have moved.
    #[test]
    fn what_has_journals_is_resumable() {
        let request = |objects: Vec<Object>, mapping, same, sync| Request {
            label: None,
            nodes: objects
                .into_iter()
                .map(|object| node("a", 1, object))
                .collect(),
            mapping,
            links: Vec::new(),
            options: Options {
                same,
                sync,
                ..Options::default()
            },
        };
        let trees = Mapping::Trees {
            sources: Sources::Auto,
            destinations: Destinations::Copies,
        };
        assert!(is_resumable(&request(
            vec![path(), path()],
            trees,
            Same::Kept,
            true
        )));
        let rows = request(vec![path(), path()], Mapping::Rows, Same::Kept, true);
        assert!(is_resumable(&rows));
        let mut shared = rows.clone();
        shared.nodes[1].sinks = shared.nodes[1].sources.clone();
        assert!(is_resumable(&shared));
        shared.nodes[1].sinks[0].destination = Some("one".into());
        assert!(is_resumable(&shared));
        // No reader has all files of the destination.
        shared.nodes[0].sinks = shared.nodes[1].sinks.clone();
        shared.nodes[0].sinks[0].object = Object::Path(b"/y".to_vec());
        for request in [
            shared,
            request(vec![path(), Object::Null], Mapping::Rows, Same::Kept, true),
            request(vec![path()], trees, Same::Sent, true),
            request(vec![path()], trees, Same::Kept, false),
            request(vec![path(), Object::Memory(5)], trees, Same::Kept, true),
            request(vec![path(), Object::Null], trees, Same::Kept, true),
        ] {
            assert!(!is_resumable(&request), "{request:?}");
        }
    }

    /// Nodes that joined stay, those that left do not, those that were left out may be back, and no agent is there twice.
    #[test]
    fn members_stay_members() {
        let asked = [node("a", 1, path()), node("b", 2, path())];
        let again = NodeRequest {
            name: "b (2)".into(),
            ..node("b", 2, Object::Path(b"/y".to_vec()))
        };
        let after = || After {
            nodes: vec![node("b", 2, path()), node("c", 3, path()), again.clone()],
            gone: vec![Gone {
                node: "b (2)".into(),
                reason: "gone".into(),
            }],
            ..After::default()
        };
        let names = |nodes: &[NodeRequest]| -> Vec<String> {
            nodes.iter().map(|node| node.name.clone()).collect()
        };
        // One that left, and joined again under another name.
        let mut left = After {
            departed: vec!["b".into()],
            ..after()
        };
        let nodes = next_nodes(&asked, &mut left);
        assert_eq!(names(&nodes), ["a", "b (2)", "c"]);
        assert_eq!(left.gone[0].node, "b (2)");
        // One that was lost, and joined again: it is still to have, or get, what it was to before.
        let mut lost = after();
        let nodes = next_nodes(&asked, &mut lost);
        assert_eq!(names(&nodes), ["a", "b", "c"]);
        let objects: Vec<&Object> = nodes[1].sources.iter().map(|one| &one.object).collect();
        assert_eq!(objects, [&path(), &Object::Path(b"/y".to_vec())]);
        assert_eq!(lost.gone[0].node, "b");
        // What it has under one name does not make it complete.
        let reader = |name: &str, path: &[u8]| {
            let node = node("b", 2, Object::Path(path.to_vec()));
            NodeRequest {
                name: name.into(),
                sinks: node.sources.clone(),
                sources: Vec::new(),
                ..node
            }
        };
        for (again, is_complete) in [(&b"/x"[..], true), (b"/y", false)] {
            let complete = Complete {
                node: "b (2)".into(),
                bytes: 9,
                is_lost: false,
            };
            let mut after = After {
                nodes: vec![reader("b (2)", again)],
                complete: vec![complete],
                ..After::default()
            };
            next_nodes(&[reader("b", b"/x")], &mut after);
            let complete: Vec<&str> = after.complete.iter().map(|one| &*one.node).collect();
            assert_eq!(complete, if is_complete { vec!["b"] } else { vec![] });
        }
        // Nothing is there twice where it joined as it was.
        let mut same = After {
            nodes: vec![NodeRequest {
                name: "b (2)".into(),
                ..node("b", 2, path())
            }],
            ..After::default()
        };
        assert_eq!(next_nodes(&asked, &mut same)[1].sources.len(), 1);
    }
}
