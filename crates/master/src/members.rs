//! Nodes that join and leave a transfer while it runs: what callers ask, and what the driver makes of it.
//!
//! Reaching a node takes up to a minute and happens beside the driver's loop. Until it has opened what it has,
//! a node changes nothing for the others; the requester waits for that, too.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use ropewalk_model::ByteRate;
use ropewalk_proto::coordinator::{Coordinator, Gone, JoinError, LeaveError};
use tokio::sync::{mpsc, oneshot, watch};

use crate::connections::{Connections, Input};
use crate::reach::reach_all;
use crate::request::{LaneKind, Mapping, NodeRequest, Options, Reach, Request};

/// Questions that wait for the driver: it takes them one by one, between two messages of nodes.
const COMMANDS_MAX: usize = 16;

/// Nodes that one question may bring; more come with the next one.
const NODES_MAX: usize = 256;

/// How often one agent may come.
const VISITS_MAX: usize = 99;

/// Why no node joins, or a node is not released.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MembersError {
    /// Too many requests wait.
    #[error("{COMMANDS_MAX} others wait already; try again in a moment")]
    Busy,
    /// The transfer is over.
    #[error("the transfer has ended")]
    Ended,
    /// Nothing moves until these nodes are back.
    #[error("the transfer waits for {0}; try again when it goes on")]
    Waiting(String),
    /// Too many nodes at once, or none.
    #[error("1 to {NODES_MAX} nodes can join at once, not {0}")]
    Count(usize),
    /// The transfer moves ranges, and the nodes name whole objects.
    #[error("this transfer moves ranges: say in rows which of them the nodes have or want")]
    NeedsRows,
    /// The transfer copies whole trees, and the nodes name ranges.
    #[error("this transfer copies whole trees: nodes with rows cannot join it")]
    HasRows,
    /// The agent at this address takes part.
    #[error("the agent at {0} takes part already")]
    AgentPresent(String),
    /// The node is on another host, and the agents of the transfer listen on loopback only.
    #[error("the agents of this transfer serve this host only; {0} could not reach them")]
    LoopbackOnly(String),
    /// The agents of the transfer are ranks of MPI.
    #[error(
        "the ranks of a transfer over MPI start together, so no node can join it; start another transfer"
    )]
    Ranks,
    /// Nodes that were not reached, and why.
    #[error("{0}")]
    Unreached(String),
    /// No certificate could be made for a node.
    #[error("{0}")]
    Certificate(String),
    /// The transfer does not admit a node.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The transfer does not release a node.
    #[error(transparent)]
    Leave(#[from] LeaveError),
}

/// Adds nodes to a running transfer and releases others. Clones speak to the same transfer, the one whose
/// [`run`](crate::run) was given a clone.
#[derive(Clone, Debug)]
pub struct Members(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    commands: mpsc::Sender<Command>,
    limit: watch::Sender<Wish>,
    // Until the transfer takes it; dropped with the transfer, which tells callers that it has ended.
    asked: Mutex<Option<Asked>>,
}

/// The limit that was asked for last, where one was: a state, so that the last one counts whenever the transfer looks.
type Wish = Option<Option<ByteRate>>;

/// What is asked, as the transfer receives it.
#[derive(Debug)]
pub(crate) struct Asked {
    pub commands: mpsc::Receiver<Command>,
    pub limit: WishedLimit,
}

/// The limit that is asked for.
#[derive(Debug)]
pub(crate) struct WishedLimit(watch::Receiver<Wish>);

impl WishedLimit {
    /// The last one, where one was asked for.
    pub fn get(&mut self) -> Wish {
        *self.0.borrow_and_update()
    }

    /// Returns once there is one that [`WishedLimit::get`] has not given.
    pub async fn changed(&mut self) {
        // Without a handle there is none that could ask.
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// Nodes that are to join together.
#[derive(Clone, Debug)]
pub struct Joining {
    /// The nodes; names are those of their hosts, and get the port when another node is on that host.
    pub nodes: Vec<NodeRequest>,
    /// Token of agents that already run; `None` for the one the transfer was started with.
    pub token: Option<[u8; 32]>,
}

/// What became of a node that was to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Its name in the transfer.
    pub node: String,
    /// Why it takes no part; `None` when it does.
    pub error: Option<MembersError>,
}

#[derive(Debug)]
pub(crate) enum Command {
    Join(Joining, oneshot::Sender<Result<Vec<Joined>, MembersError>>),
    Leave(String, oneshot::Sender<Result<(), MembersError>>),
}

impl MembersError {
    /// A round has ended, and another one follows: where nodes are awaited, when these are back.
    pub(crate) fn between_rounds(awaited: &[Gone]) -> Self {
        if awaited.is_empty() {
            return JoinError::NotMoving.into();
        }
        let names: Vec<&str> = awaited.iter().map(|gone| gone.node.as_str()).collect();
        Self::Waiting(names.join(", "))
    }
}

impl Default for Members {
    fn default() -> Self {
        Self::new()
    }
}

impl Members {
    /// A handle for a transfer that is about to run.
    pub fn new() -> Self {
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let (limit, wish) = watch::channel(None);
        let asked = Asked {
            commands: received,
            limit: WishedLimit(wish),
        };
        Self(Arc::new(Shared {
            commands,
            limit,
            asked: Mutex::new(Some(asked)),
        }))
    }

    /// Reaches nodes and adds them to the transfer; returns when each has been admitted or rejected.
    /// Blocks for as long as that takes: call it from a thread, not from a task.
    ///
    /// # Errors
    /// When none of them joins: one cannot be reached, takes part already, or nothing moves (yet or any more).
    pub fn join(&self, joining: Joining) -> Result<Vec<Joined>, MembersError> {
        self.ask(|reply| Command::Join(joining, reply))
    }

    /// Releases a node; returns when the others have been notified.
    /// Blocks as [`Members::join`] does.
    ///
    /// # Errors
    /// [`MembersError::Leave`] when the node is not there or the others cannot do without it.
    pub fn leave(&self, node: &str) -> Result<(), MembersError> {
        self.ask(|reply| Command::Leave(node.to_owned(), reply))
    }

    /// Changes the limit of all receivers together, or removes it; at the start of the transfer, if that has not begun. Of several the
    /// last one counts. Does not block.
    ///
    /// # Errors
    /// When the transfer has ended.
    pub fn limit(&self, limit: Option<ByteRate>) -> Result<(), MembersError> {
        let sent = self.0.limit.send(Some(limit));
        sent.map_err(|_| MembersError::Ended)
    }

    fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, MembersError>>) -> Command,
    ) -> Result<T, MembersError> {
        let (reply, answer) = oneshot::channel();
        self.0
            .commands
            .try_send(command(reply))
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => MembersError::Busy,
                mpsc::error::TrySendError::Closed(_) => MembersError::Ended,
            })?;
        // A driver that ends drops what waits.
        answer.blocking_recv().unwrap_or(Err(MembersError::Ended))
    }

    /// The other end; a second transfer with the same handle hears nothing.
    pub(crate) fn take(&self) -> Asked {
        let mut asked = self.0.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.take().unwrap_or_else(|| Asked {
            commands: mpsc::channel(1).1,
            limit: WishedLimit(watch::channel(None).1),
        })
    }
}

/// Where the answer to a request goes. Dropped, it says that the transfer has ended.
type Reply = oneshot::Sender<Result<Vec<Joined>, MembersError>>;

/// Requests that have no answer when a round ends.
#[derive(Debug, Default)]
pub(crate) struct Unanswered(Vec<Reply>);

impl Unanswered {
    /// The transfer goes on: what was asked can be asked again.
    pub fn put_off(&mut self, reason: &MembersError) {
        for reply in self.0.drain(..) {
            let _ = reply.send(Err(reason.clone()));
        }
    }
}

/// Nodes that join together.
pub(crate) struct Party {
    pub nodes: Vec<NodeRequest>,
    /// Of their agents, if they have another one than the transfer's.
    pub token: Option<[u8; 32]>,
    // Of the request.
    ticket: u64,
    // Number of each node, or why it has none, once they have been reached.
    numbers: Vec<Result<u32, MembersError>>,
}

/// The driver's part in nodes that join.
pub(crate) struct Doorman {
    options: Options,
    mapping: Mapping,
    // How each node is reached, by number.
    reaches: Vec<Reach>,
    // Agents of this transfer listen for this host only.
    pub loopback: bool,
    waiting: Vec<Party>,
    // By ticket: also of nodes that are being reached, which ends with the round.
    replies: BTreeMap<u64, Reply>,
    tickets: u64,
}

impl Doorman {
    pub fn new(request: &Request) -> Self {
        Self {
            options: request.options.clone(),
            mapping: request.mapping,
            reaches: request
                .nodes
                .iter()
                .map(|node| node.reach.clone())
                .collect(),
            loopback: request.nodes.iter().all(|node| node.reach == Reach::Local),
            waiting: Vec::new(),
            replies: BTreeMap::new(),
            tickets: 0,
        }
    }

    /// Keeps a reply; gives its ticket.
    fn take(&mut self, reply: Reply) -> u64 {
        self.tickets += 1;
        self.replies.insert(self.tickets, reply);
        self.tickets
    }

    /// Checks what can be checked at once, and goes to reach the nodes.
    pub fn handle_join(
        &mut self,
        mut joining: Joining,
        reply: Reply,
        coordinator: &Coordinator,
        connections: &mut Connections,
    ) {
        if let Err(reason) = self.check(&mut joining.nodes, coordinator) {
            let _ = reply.send(Err(reason));
            return;
        }
        let mut options = self.options.clone();
        if joining.token.is_some() {
            options.token = joining.token;
            options.tokens.clear();
        }
        // The bars of the running transfer are on the terminal.
        options.ask = false;
        let loopback = self.loopback;
        let party = Party {
            nodes: joining.nodes,
            token: joining.token,
            ticket: self.take(reply),
            numbers: Vec::new(),
        };
        connections.spawn(async move {
            let reached = reach_all(&party.nodes, &options, loopback).await;
            Input::Reached(party, reached.map_err(MembersError::Unreached))
        });
    }

    fn check(
        &self,
        nodes: &mut [NodeRequest],
        coordinator: &Coordinator,
    ) -> Result<(), MembersError> {
        if coordinator.moving_at().is_none() {
            return Err(JoinError::NotMoving.into());
        }
        if self.options.lane == LaneKind::Mpi {
            return Err(MembersError::Ranks);
        }
        if nodes.is_empty() || nodes.len() > NODES_MAX {
            return Err(MembersError::Count(nodes.len()));
        }
        let objects = nodes
            .iter()
            .flat_map(|node| node.sources.iter().chain(&node.sinks));
        let has_rows = objects.clone().any(|object| !object.rows.is_empty());
        let lacks_rows = objects.clone().any(|object| object.rows.is_empty());
        match self.mapping {
            Mapping::Rows if lacks_rows => return Err(MembersError::NeedsRows),
            Mapping::Trees { .. } if has_rows => return Err(MembersError::HasRows),
            _ => {}
        }
        let summary = coordinator.summary();
        let mut names: Vec<String> = summary.iter().map(|node| node.name.to_owned()).collect();
        for node in nodes {
            if let Reach::Attached { host, port } = &node.reach {
                let mut there = self.reaches.iter().zip(&summary);
                // One that was lost or has left may come back, under another name.
                let is_there =
                    |(reach, seen): (&Reach, &_)| *reach == node.reach && is_present(seen);
                if there.any(is_there) {
                    return Err(MembersError::AgentPresent(format!("{host}:{port}")));
                }
                // Names say which host; where several agents are on one, which agent, too.
                let on_its_host = |reach: &Reach| matches!(reach, Reach::Attached { host: other, .. } if other == host);
                if self.reaches.iter().any(on_its_host) || names.contains(&node.name) {
                    node.name = format!("{host}:{port}");
                }
                // An agent that was turned away, lost or let go may come again; its rows in the report are its own.
                let again = (2..=VISITS_MAX).map(|visit| format!("{host}:{port} ({visit})"));
                if let Some(name) = again.into_iter().find(|name| !names.contains(name))
                    && names.contains(&node.name)
                {
                    node.name = name;
                }
            }
            if self.loopback && matches!(node.reach, Reach::Ssh(_)) {
                return Err(MembersError::LoopbackOnly(node.name.clone()));
            }
            if names.contains(&node.name) {
                return Err(JoinError::Present(node.name.clone()).into());
            }
            names.push(node.name.clone());
        }
        Ok(())
    }

    /// The name in the transfer of a node that a command calls by its name, by Host:Port or, where one agent of the host
    /// takes part, by Host. What fits none stays as it is.
    pub fn name_of(&self, called: &str, coordinator: &Coordinator) -> String {
        let summary = coordinator.summary();
        let nodes: Vec<(&Reach, &str)> = self
            .reaches
            .iter()
            .zip(&summary)
            .filter(|(_, seen)| is_present(seen))
            .map(|(reach, seen)| (reach, seen.name))
            .collect();
        named(called, &nodes).to_owned()
    }

    /// A join request reached a node that is one of the transfer from now on.
    pub fn admit(&mut self, node: &NodeRequest) {
        self.reaches.push(node.reach.clone());
    }

    /// Answers the requester that no node joins.
    pub fn refuse(&mut self, party: &Party, reason: MembersError) {
        if let Some(reply) = self.replies.remove(&party.ticket) {
            let _ = reply.send(Err(reason));
        }
    }

    /// Keeps the asker until it is clear what becomes of each node.
    pub fn wait(&mut self, mut party: Party, numbers: Vec<Result<u32, MembersError>>) {
        party.numbers = numbers;
        self.waiting.push(party);
    }

    /// The round ends: what has no answer yet.
    pub fn leave(self) -> Unanswered {
        Unanswered(self.replies.into_values().collect())
    }

    /// Answers the requests whose nodes have all been admitted or rejected.
    pub fn answer(&mut self, coordinator: &Coordinator) {
        let mut at = 0;
        while at < self.waiting.len() {
            let party = &self.waiting[at];
            let outcomes = party.numbers.iter().map(|number| match number {
                Ok(number) => {
                    let outcome = coordinator.join_outcome(*number)?;
                    Some(outcome.map_err(MembersError::Join))
                }
                Err(reason) => Some(Err(reason.clone())),
            });
            let Some(outcomes) = outcomes.collect::<Option<Vec<_>>>() else {
                at += 1;
                continue;
            };
            let party = self.waiting.swap_remove(at);
            let joined = party.nodes.into_iter().zip(outcomes);
            let joined = joined.map(|(node, outcome)| Joined {
                node: node.name,
                error: outcome.err(),
            });
            if let Some(reply) = self.replies.remove(&party.ticket) {
                let _ = reply.send(Ok(joined.collect()));
            }
        }
    }
}

/// The name of the node that is called so; see [`Doorman::name_of`].
fn named<'n>(called: &'n str, nodes: &[(&Reach, &'n str)]) -> &'n str {
    if nodes.iter().any(|(_, name)| *name == called) {
        return called;
    }
    let is_meant = |reach: &Reach| match reach {
        Reach::Attached { host, port } => {
            called == host
                || called == format!("{host}:{port}")
                || called == format!("[{host}]:{port}")
        }
        Reach::Ssh(_) | Reach::Launched(_) | Reach::Local => false,
    };
    let mut meant = nodes.iter().filter(|(reach, _)| is_meant(reach));
    match (meant.next(), meant.next()) {
        (Some((_, name)), None) => name,
        _ => called,
    }
}

/// Neither lost nor dismissed.
fn is_present(node: &ropewalk_proto::coordinator::NodeSummary<'_>) -> bool {
    node.lost.is_none() && node.finished.is_none()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Limits that are asked for before the transfer looks are not lost, however many: the last one counts. Each is given once, and none is
    /// taken after the end.
    #[tokio::test]
    async fn the_last_limit_counts() {
        let members = Members::new();
        for rate in 1..=3 * COMMANDS_MAX as u64 {
            members.limit(Some(ByteRate(rate))).unwrap();
        }
        members.limit(None).unwrap();
        let mut asked = members.take();
        assert_eq!(asked.limit.get(), Some(None));
        let again = tokio::time::timeout(Duration::ZERO, asked.limit.changed());
        assert!(again.await.is_err());
        members.limit(Some(ByteRate(5))).unwrap();
        asked.limit.changed().await;
        assert_eq!(asked.limit.get(), Some(Some(ByteRate(5))));
        drop(asked);
        assert_eq!(members.limit(None), Err(MembersError::Ended));
    }

    /// Nodes that were about to join when a round ended, also those that were being reached, can ask again; they do not hear that all has
    /// ended before it has.
    #[test]
    fn joins_are_put_off_with_a_round() {
        let request = Request {
            label: None,
            nodes: Vec::new(),
            mapping: Mapping::Rows,
            links: Vec::new(),
            options: Options::default(),
        };
        let gone = Gone {
            node: "a".into(),
            reason: "gone".into(),
        };
        let waiting = MembersError::between_rounds(&[gone]);
        assert_eq!(waiting, MembersError::Waiting("a".into()));
        let again = MembersError::between_rounds(&[]);
        assert_eq!(again, JoinError::NotMoving.into());
        for (next, reason) in [
            (Some(&waiting), &waiting),
            (Some(&again), &again),
            (None, &MembersError::Ended),
        ] {
            let mut doorman = Doorman::new(&request);
            let mut ask = || {
                let (reply, answer) = oneshot::channel();
                let party = Party {
                    nodes: Vec::new(),
                    token: None,
                    ticket: doorman.take(reply),
                    numbers: Vec::new(),
                };
                (party, answer)
            };
            let ((opening, first), (reaching, second), (refused, third)) = (ask(), ask(), ask());
            doorman.wait(opening, vec![Ok(3)]);
            doorman.refuse(&refused, MembersError::Ranks);
            // What reaches its nodes ends with the round.
            drop(reaching);
            let mut unanswered = doorman.leave();
            if let Some(next) = next {
                unanswered.put_off(next);
            }
            drop(unanswered);
            for answer in [first, second] {
                let answer = answer.blocking_recv().unwrap_or(Err(MembersError::Ended));
                assert_eq!(answer.as_ref().err(), Some(reason));
            }
            assert_eq!(third.blocking_recv().unwrap(), Err(MembersError::Ranks));
        }
    }

    /// Nodes are called as reports show them or as rows write them; what may be two is neither.
    #[test]
    fn nodes_are_called_by_both_forms() {
        let at = |host: &str, port| Reach::Attached {
            host: host.into(),
            port,
        };
        let (a, b1, b2, c) = (at("a", 7420), at("b", 1), at("b", 2), at("fd00::1", 7));
        let nodes = [(&a, "a"), (&b1, "b:1"), (&b2, "b:2"), (&c, "fd00::1")];
        for (called, name) in [
            ("a", "a"),
            ("a:7420", "a"),
            ("a:7421", "a:7421"),
            ("b:2", "b:2"),
            ("b", "b"),
            ("[fd00::1]:7", "fd00::1"),
            ("x", "x"),
        ] {
            assert_eq!(named(called, &nodes), name, "{called}");
        }
        assert_eq!(named("b", &nodes[1..2]), "b:1");
    }
}
