//! Between two rounds: nodes are reached again, and the user sees why nothing moves.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ropewalk_model::{Nanos, format_seconds};
use ropewalk_proto::coordinator::Gone;
use ropewalk_proto::report::{ErrorKind, Event, InterruptionReport, Outcome, Report};

use super::{Known, Transfer};
use crate::drive::After;
use crate::members::{Command, MembersError};
use crate::reach::{self, Answers, reach_each};
use crate::request::{NodeRequest, Options, Reach, Request};

/// How often the user sees how long it has been.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// An attempt that has begun may take so long, whatever the time is: ssh logs in within it.
const ATTEMPT_TIME_MIN: Duration = Duration::from_secs(5);

/// Nodes that are named in a sentence.
const NAMED_MAX: usize = 4;

/// How a time of waiting has ended.
enum Waited {
    /// All nodes are reached.
    Returned(Answers),
    /// Not all of them.
    NotReached(String),
    /// The user has stopped it.
    Cancelled,
}

impl Transfer<'_> {
    /// Waits until the nodes without which the last round ended are reached. `None` where that takes too long, where the transfer does
    /// not wait, and where the user stops it: then the report says so.
    pub(super) async fn wait_for(
        &mut self,
        after: &After,
        request: &mut Request,
        report: &mut Report,
    ) -> Option<Known> {
        let began = Instant::now();
        let mut awaiting = Awaiting::of(&after.gone, began);
        let mut safe_bytes = report.safe_bytes().saturating_add(self.complete_bytes);
        let mut has_waited = false;
        let waited = loop {
            let (has_moved, now) = (after.has_moved, self.now());
            let Some(at) = self.patience.handle_gone(has_moved, safe_bytes, now) else {
                break None;
            };
            safe_bytes = 0;
            has_waited = true;
            match self.attempt(at, &awaiting, request).await {
                Waited::Returned(answers) => break Some(answers),
                Waited::NotReached(reason) => awaiting.reason = reason,
                Waited::Cancelled => {
                    cancel(report);
                    break None;
                }
            }
        };
        if !has_waited {
            return None;
        }
        let seconds = began.elapsed().as_secs_f64();
        self.interruptions.push(InterruptionReport {
            awaited: awaiting.names.clone(),
            reason: reason(&after.gone),
            seconds,
            returned: waited.is_some(),
        });
        let Some(answers) = waited else {
            if report.outcome != Outcome::Cancelled {
                awaiting.give_up(report, seconds);
            }
            return None;
        };
        self.tell(Event::Returned {
            returned: awaiting.names.clone(),
            seconds,
        });
        self.earlier.returned.extend(awaiting.names.iter().cloned());
        // Positions are those of the whole request.
        let all = request.nodes.iter().enumerate();
        let numbers = all.filter(|(_, node)| awaiting.names.contains(&node.name));
        Some(numbers.map(|(number, _)| number).zip(answers).collect())
    }

    /// Pauses until `at` and tries to reach the nodes.
    async fn attempt(
        &mut self,
        at: ropewalk_model::Instant,
        awaiting: &Awaiting,
        request: &mut Request,
    ) -> Waited {
        let pause = Duration::from_nanos(at.since(self.now()).0);
        let over = self.patience.over_at().map(|over| {
            let left = Duration::from_nanos(over.since(self.now()).0);
            left.max(pause + ATTEMPT_TIME_MIN)
        });
        let loopback = request.nodes.iter().all(|node| node.reach == Reach::Local);
        let is_awaited = |node: &&NodeRequest| awaiting.names.contains(&node.name);
        let nodes: Vec<NodeRequest> = request.nodes.iter().filter(is_awaited).cloned().collect();
        let events = self.events.clone();
        let trying = reach_after(
            &nodes,
            request.options.clone(),
            loopback,
            pause,
            move |event| {
                // A person may be asked for a password again; that nodes are awaited is said here.
                if matches!(event, Event::Asking { .. } | Event::Uploaded { .. }) {
                    let _ = events.send(event);
                }
            },
        );
        tokio::pin!(trying);
        let too_long = async {
            match over {
                Some(over) => tokio::time::sleep(over).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(too_long);
        let mut tick = tokio::time::interval(TELL_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                answers = &mut trying => {
                    if answers.iter().all(Result::is_ok) {
                        return Waited::Returned(answers);
                    }
                    let failures = answers.iter().filter_map(|answer| answer.as_ref().err());
                    let text = reach::describe(failures);
                    reach::send_away(answers.into_iter().flatten().collect()).await;
                    return Waited::NotReached(in_one_line(&text));
                }
                () = &mut too_long => return Waited::NotReached("no answer".into()),
                () = self.cancel.cancelled() => return Waited::Cancelled,
                _ = tick.tick() => self.tell(awaiting.event(self.patience.most())),
                Some(command) = self.asked.commands.recv() => answer(command, awaiting),
            }
        }
    }
}

/// Reaches nodes after a pause.
async fn reach_after(
    nodes: &[NodeRequest],
    options: Options,
    loopback: bool,
    pause: Duration,
    notice: impl Fn(Event),
) -> Answers {
    tokio::time::sleep(pause).await;
    reach_each(nodes, &options, loopback, None, BTreeMap::new(), notice).await
}

/// Nothing moves: nodes cannot join or leave.
fn answer(command: Command, awaiting: &Awaiting) {
    let waiting = || MembersError::Waiting(awaiting.named());
    match command {
        Command::Join(_, reply) => drop(reply.send(Err(waiting()))),
        Command::Leave(_, reply) => drop(reply.send(Err(waiting()))),
    }
}

/// The user has stopped the transfer while it waited.
fn cancel(report: &mut Report) {
    report.outcome = Outcome::Cancelled;
    report.error = Some("interrupted".into());
    report.error_kind = Some(ErrorKind::Interrupted);
    // What is missing is not asked for any more.
    report.missing.clear();
    report.missing_files.clear();
    report.missing_files_more = 0;
}

/// Nodes that are waited for.
struct Awaiting {
    names: Vec<String>,
    reason: String,
    since: Instant,
}

impl Awaiting {
    fn of(gone: &[Gone], since: Instant) -> Self {
        Self {
            names: gone.iter().map(|gone| gone.node.clone()).collect(),
            reason: reason(gone),
            since,
        }
    }

    fn event(&self, most: Option<Nanos>) -> Event {
        Event::Waiting {
            awaited: self.names.clone(),
            reason: self.reason.clone(),
            seconds: self.since.elapsed().as_secs_f64(),
            most_seconds: most.map(Nanos::as_seconds),
        }
    }

    fn named(&self) -> String {
        let mut named = self
            .names
            .iter()
            .take(NAMED_MAX)
            .cloned()
            .collect::<Vec<_>>();
        let more = self.names.len().saturating_sub(NAMED_MAX);
        if more > 0 {
            named.push(format!("{more} more"));
        }
        named.join(", ")
    }

    /// They were waited for long enough.
    fn give_up(&self, report: &mut Report, seconds: f64) {
        let waited = format!(
            "waited {} for {} ({})",
            format_seconds(seconds),
            self.named(),
            self.reason
        );
        let error = report.error.take().map(|error| match self.reason.as_str() {
            reason if !reason.is_empty() && in_one_line(&error).contains(reason) => {
                let (time, names) = (format_seconds(seconds), self.named());
                format!("{error}; waited {time} for {names}")
            }
            _ => format!("{error}; {waited}"),
        });
        report.error = Some(error.unwrap_or(waited));
    }
}

/// Why nodes are gone, each reason once.
fn reason(gone: &[Gone]) -> String {
    let mut reasons: Vec<String> = Vec::new();
    for one in gone {
        let reason = in_one_line(&one.reason);
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    reasons.truncate(NAMED_MAX);
    reasons.join("; ")
}

fn in_one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    let mut out = String::new();
    for line in lines {
        // What follows a colon is what it announces.
        let between = match out.as_str() {
            "" => "",
            out if out.ends_with(':') => " ",
            _ => "; ",
        };
        out += between;
        out += line;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone(node: &str, reason: &str) -> Gone {
        Gone {
            node: node.into(),
            reason: reason.into(),
        }
    }

    /// The error says what was lost, which nodes were waited for, how long and what keeps them away.
    #[test]
    fn giving_up_is_explained() {
        let lost = [
            gone("a", "the connection closed"),
            gone("b", "the connection closed"),
        ];
        let mut awaiting = Awaiting::of(&lost, Instant::now());
        assert_eq!(awaiting.reason, "the connection closed");
        awaiting.reason = in_one_line("ssh: no route\n\n  Check the name\n");
        let mut report = Report {
            error: Some("a: the connection closed".into()),
            ..Report::ended(Outcome::Failed)
        };
        awaiting.give_up(&mut report, 60.0);
        assert_eq!(
            report.error.take().unwrap(),
            "a: the connection closed; waited 1 min 00 s for a, b (ssh: no route; Check the name)"
        );
        // A cause that is in the error already is not repeated; ssh's words follow the name of the host on its line.
        let awaiting = Awaiting::of(&[gone("a", "a:\nssh: no route")], Instant::now());
        assert_eq!(awaiting.reason, "a: ssh: no route");
        report.error = Some("a:\nssh: no route".into());
        awaiting.give_up(&mut report, 60.0);
        assert_eq!(
            report.error.take().unwrap(),
            "a:\nssh: no route; waited 1 min 00 s for a"
        );
        let many: Vec<Gone> = (0..7).map(|at| gone(&format!("n{at}"), "gone")).collect();
        let named = Awaiting::of(&many, Instant::now()).named();
        assert_eq!(named, "n0, n1, n2, n3, 3 more");
    }
}
