//! What patterns of sources mean on their hosts, asked over the connections that the transfer then goes on with.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ropewalk_proto::control::{self, ToAgent, from_agent, to_agent};
use ropewalk_proto::report::{ControlReport, ErrorKind, Event, Outcome, Report};
use ropewalk_store::may_match;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;

use crate::drive::Cancel;
use crate::link::{count_received, count_sent};
use crate::reach::{self, Answers, Failure, Reached};
use crate::request::{NodeRequest, Object, Options, Reach};
use crate::setup::check_ranks;

/// Longest time in which an agent lists the folders of its patterns: as long as it may take to open what it holds.
const EXPAND_TIMEOUT: Duration = Duration::from_secs(300);

/// Failures that are named.
const FAILURES_SHOWN: usize = 5;

/// Agents that were reached before the transfer was asked for, and those that were not.
#[derive(Default)]
pub struct Agents {
    answers: Vec<(Reach, Result<Reached, Failure>)>,
    /// What asking them took.
    pub(crate) control: ControlReport,
    /// And how long, reaching them included.
    pub(crate) asking: Duration,
}

impl std::fmt::Debug for Agents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agents")
            .field("count", &self.answers.len())
            .finish_non_exhaustive()
    }
}

impl Agents {
    /// The answers of the nodes that were asked already, by their positions; each is for the node that sends.
    pub(crate) fn take(
        &mut self,
        nodes: &[NodeRequest],
    ) -> BTreeMap<usize, Result<Reached, Failure>> {
        let mut known = BTreeMap::new();
        for (reach, answer) in self.answers.drain(..) {
            let is_asked = |node: &NodeRequest| node.reach == reach && !node.sources.is_empty();
            if let Some(at) = nodes.iter().position(is_asked) {
                known.insert(at, answer);
            }
        }
        known
    }

    /// Closes all connections; for a transfer that is not asked for after all.
    pub async fn leave(self) {
        let reached = self
            .answers
            .into_iter()
            .filter_map(|(_, answer)| answer.ok());
        reach::send_away(reached.collect()).await;
    }
}

/// The patterns of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expansion {
    /// Each pattern and the paths that it means there, in order.
    pub paths: BTreeMap<Vec<u8>, Vec<Vec<u8>>>,
    /// False for a node that was not reached: the paths are those of another node with the same pattern.
    pub is_reached: bool,
}

/// Reaches nodes that only send, and asks what their [`Object::Pattern`]s mean.
///
/// The agents stay connected and are for [`run_with`](crate::run_with). A node that is not reached is no error while
/// others answer for all of its patterns: whether the transfer can do without it is decided there.
///
/// # Errors
/// The report of a transfer that ended before it began: a pattern that nothing matches, nodes that were not reached, or
/// `cancel`.
pub async fn expand(
    nodes: &[NodeRequest],
    options: &Options,
    events: &UnboundedSender<Event>,
    cancel: &Cancel,
) -> Result<(Agents, Vec<Expansion>), Box<Report>> {
    let notice = |event: Event| {
        let _ = events.send(event);
    };
    if let Err(error) = check_ranks(nodes, options.lane) {
        return Err(ended(
            Outcome::Refused,
            ErrorKind::Refused,
            error.to_string(),
        ));
    }
    let began = Instant::now();
    let asking = async {
        let answers = reach::reach_each(nodes, options, false, None, BTreeMap::new(), notice).await;
        ask_all(nodes, answers).await
    };
    tokio::select! {
        asked = asking => asked.map(|(mut agents, expansions)| {
            agents.asking = began.elapsed();
            (agents, expansions)
        }),
        () = cancel.cancelled() => Err(ended(Outcome::Cancelled, ErrorKind::Interrupted, "interrupted".into())),
    }
}

fn ended(outcome: Outcome, kind: ErrorKind, error: String) -> Box<Report> {
    Box::new(Report {
        error: Some(error),
        error_kind: Some(kind),
        ..Report::ended(outcome)
    })
}

/// What one agent said.
struct Asked {
    reached: Reached,
    found: Result<Vec<control::Matches>, String>,
    control: ControlReport,
}

async fn ask_all(
    nodes: &[NodeRequest],
    answers: Answers,
) -> Result<(Agents, Vec<Expansion>), Box<Report>> {
    let (asked, mut unreached) = ask_reached(nodes, answers).await;
    let mut failures = Vec::new();
    let known = meanings(nodes, &asked, &mut failures);
    let mut agents = Agents::default();
    for (number, one) in asked {
        agents.control.plan_messages += one.control.plan_messages;
        agents.control.plan_bytes += one.control.plan_bytes;
        agents
            .answers
            .push((nodes[number].reach.clone(), Ok(one.reached)));
    }
    let mut kind = ErrorKind::Refused;
    let mut expansions = Vec::new();
    for (number, node) in nodes.iter().enumerate() {
        if let Some(paths) = known.get(&number) {
            expansions.push(Expansion {
                paths: paths.clone(),
                is_reached: true,
            });
            continue;
        }
        let of_others = |pattern: Vec<u8>| {
            let paths = known
                .values()
                .find_map(|paths| paths.get(&pattern).cloned());
            paths.map(|paths| (pattern, paths))
        };
        let paths: Option<BTreeMap<_, _>> = patterns(node).into_iter().map(of_others).collect();
        match (paths, unreached.remove(&number)) {
            (Some(paths), Some(failure)) => {
                agents.answers.push((node.reach.clone(), Err(failure)));
                expansions.push(Expansion {
                    paths,
                    is_reached: false,
                });
            }
            (_, failure) => {
                kind = ErrorKind::Unreachable;
                let lost = || format!("{}: asking it failed; this is a bug", node.name);
                failures.push(failure.map_or_else(lost, |failure| failure.text));
            }
        }
    }
    if failures.is_empty() {
        return Ok((agents, expansions));
    }
    agents.leave().await;
    Err(ended(Outcome::Refused, kind, shown(failures)))
}

/// Asks the agents that were reached. What they said, and why others were not reached, by position among the nodes.
async fn ask_reached(
    nodes: &[NodeRequest],
    answers: Answers,
) -> (BTreeMap<usize, Asked>, BTreeMap<usize, Failure>) {
    let mut tasks = JoinSet::new();
    let mut unreached: BTreeMap<usize, Failure> = BTreeMap::new();
    for (number, answer) in answers.into_iter().enumerate() {
        match answer {
            Ok(reached) => {
                let patterns = patterns(&nodes[number]);
                tasks.spawn(async move { (number, ask(reached, patterns).await) });
            }
            Err(failure) => {
                unreached.insert(number, failure);
            }
        }
    }
    let mut asked: BTreeMap<usize, Asked> = BTreeMap::new();
    while let Some(joined) = tasks.join_next().await {
        if let Ok((number, one)) = joined {
            asked.insert(number, one);
        }
    }
    (asked, unreached)
}

/// Each pattern of a node, and the paths that it means there.
type Meanings = BTreeMap<Vec<u8>, Vec<Vec<u8>>>;

/// What patterns mean, by position of the node; adds what failed to `failures`.
fn meanings(
    nodes: &[NodeRequest],
    asked: &BTreeMap<usize, Asked>,
    failures: &mut Vec<String>,
) -> BTreeMap<usize, Meanings> {
    let mut known: BTreeMap<usize, Meanings> = BTreeMap::new();
    for (number, one) in asked {
        let name = &nodes[*number].name;
        let paths = known.entry(*number).or_default();
        match &one.found {
            Ok(matches) => {
                for (pattern, found) in patterns(&nodes[*number]).into_iter().zip(matches) {
                    if !found.error.is_empty() {
                        failures.push(format!("{name}: {}", found.error));
                    }
                    let mut paths_found = found.paths.iter();
                    if let Some(path) = paths_found.find(|path| !may_match(&pattern, path)) {
                        let (path, pattern) = (path.escape_ascii(), pattern.escape_ascii());
                        failures.push(format!(
                            "{name}: its agent has \"{path}\" for {pattern}, which that does not match"
                        ));
                    }
                    paths.insert(pattern, found.paths.clone());
                }
            }
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    }
    known
}

/// The first of many failures, one a line.
fn shown(mut failures: Vec<String>) -> String {
    let more = failures.len().saturating_sub(FAILURES_SHOWN);
    failures.truncate(FAILURES_SHOWN);
    if more > 0 {
        failures.push(format!("and {more} more nodes"));
    }
    failures.join("\n")
}

/// The patterns of a node, each once.
fn patterns(node: &NodeRequest) -> Vec<Vec<u8>> {
    let mut patterns = Vec::new();
    for source in &node.sources {
        if let Object::Pattern(pattern) = &source.object
            && !patterns.contains(pattern)
        {
            patterns.push(pattern.clone());
        }
    }
    patterns
}

async fn ask(mut reached: Reached, patterns: Vec<Vec<u8>>) -> Asked {
    let mut control = ControlReport::default();
    let count = patterns.len();
    let asking = tokio::time::timeout(EXPAND_TIMEOUT, async {
        let message = ToAgent {
            body: Some(to_agent::Body::Expand(control::Expand { patterns })),
        };
        let bytes = control::encode(&message);
        count_sent(&mut control, &message, bytes.len());
        let sent = reached.link.writer.write(&bytes).await;
        sent.map_err(|error| error.to_string())?;
        loop {
            let read = reached.link.reader.read().await;
            let (message, bytes) = read.map_err(|error| error.to_string())?;
            count_received(&mut control, &message, bytes);
            match message.body {
                Some(from_agent::Body::Expanded(expanded)) if expanded.matches.len() == count => {
                    return Ok(expanded.matches);
                }
                Some(from_agent::Body::Expanded(_)) => {
                    return Err("its agent failed while it expanded patterns; see its log".into());
                }
                Some(from_agent::Body::Refused(refused)) => return Err(refused.message),
                _ => {}
            }
        }
    });
    let found = asking.await.unwrap_or_else(|_| {
        let seconds = EXPAND_TIMEOUT.as_secs();
        Err(format!(
            "patterns were not expanded within {seconds} s; name files or folders instead"
        ))
    });
    Asked {
        reached,
        found,
        control,
    }
}
