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

mod next;
mod repeat;
mod sum;
mod wait;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ropewalk_model::time;
use ropewalk_proto::coordinator::{Earlier, Gone};
use ropewalk_proto::patience::{Patience, Settings};
use ropewalk_proto::report::{
    ControlReport, ErrorKind, Event, InterruptionReport, Outcome, Report,
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
use crate::request::{LaneKind, NodeRequest, Reach, Request};
use crate::setup::{Before, check, links_note};
use crate::speeds;

use next::{is_resumable, know_replicas, leave_out_complete, next_nodes};

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
