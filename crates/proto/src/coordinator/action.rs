//! What the coordinator wants done, and the plans that are returned.

use std::collections::VecDeque;

use ropewalk_model::problem::Site;
use ropewalk_model::{Problem, Range, ReceiverRun};

use super::Coordinator;
use crate::control::{Listed, ToAgent, to_agent};
use crate::report::Outcome;

/// Actions for which room is kept while there are none.
const ACTIONS_KEPT: usize = 16;

/// The origin of the plan's speeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The user said.
    Declared,
    /// The interfaces say.
    Interface,
    /// None is known: equal guesses; the bound is observed afterwards.
    None,
}

/// Why planning is asked for, and which nodes the positions of the problem mean.
#[derive(Clone, Debug, PartialEq)]
pub struct Purpose {
    /// The first plan of the transfer; otherwise new owners for some ranges.
    pub first: bool,
    /// It plans work that receivers gave up, over the speed that what they kept leaves free.
    pub in_round: bool,
    /// Speeds are being found out: those of the problem are guesses.
    pub is_guess: bool,
    /// Other holders to name for each run.
    pub spares: usize,
    /// Node number of each sender of the problem.
    pub senders: Vec<u32>,
    /// Node number of each receiver of the problem.
    pub receivers: Vec<u32>,
    /// Of a first plan: nodes that lie near each other, as far as round trips show it; none where all do.
    pub sites: Vec<Site>,
}

/// What the driver must do.
#[derive(Debug)]
pub enum Action {
    /// Send a message to a node.
    Send(u32, ToAgent),
    /// Make a schedule for the problem and answer with [`Coordinator::handle_planned`].
    Plan(Purpose, Problem),
    /// Say which of these manifests (node, its source, bytes) are replicas of each other, in the answer
    /// [`Coordinator::handle_compared`].
    Compare(Vec<(u32, u32, Vec<u8>)>),
    /// Connect to both nodes and pass on what they say; [`Coordinator::handle_uncarried`] when that fails.
    Carry {
        /// It waits for a connection at its port.
        receiver: u32,
        /// It takes one as from any peer.
        sender: u32,
    },
    /// Report to the user.
    Note(String),
    /// Simulate this beside the transfer and answer with [`Coordinator::handle_simulated`]; a wish, not a need.
    Simulate(ropewalk_tuner::Question),
    /// Show what a node would do in its destination.
    Listed(u32, Vec<Listed>),
    /// Show how far a node is that compares contents: bytes that are compared, and all.
    Comparing(u32, u64, u64),
    /// Bytes start to flow.
    Moving,
    /// Progress changed.
    Progress,
    /// It is over; collect the summary and close the connections.
    End(Outcome, Option<String>),
}

/// A schedule turned into runs, as the driver hands it back.
#[derive(Clone, Debug, Default)]
pub struct Planned {
    /// Per receiver of the problem: its runs; senders and spares are positions in the problem.
    pub runs: Vec<Vec<PlannedRun>>,
    /// Name of the scheduler.
    pub scheduler: String,
    /// Predicted time.
    pub predicted_seconds: f64,
    /// No plan takes much less.
    pub is_near_bound: bool,
    /// Least time and the nodes that set it.
    pub bound: Option<(f64, Vec<String>, bool)>,
}

/// One stretch for one receiver.
#[derive(Clone, Debug)]
pub struct PlannedRun {
    /// The bytes.
    pub range: Range,
    /// Position of the sender in the problem.
    pub sender: usize,
    /// Positions of other holders.
    pub spares: Vec<usize>,
    /// Position, among the receivers of the problem, of the one that hands the bytes on.
    pub relay: Option<usize>,
}

impl From<ReceiverRun> for PlannedRun {
    fn from(run: ReceiverRun) -> Self {
        Self {
            range: run.range,
            sender: run.sender,
            spares: run.spares,
            relay: run.relay,
        }
    }
}

/// Actions that the driver has not taken yet, and what the user was shown.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    actions: VecDeque<Action>,
    notes: Vec<String>,
    // Of these, those about a loss.
    losses: Vec<String>,
    // And those about what holders refused.
    refusals: Vec<String>,
}

impl Outbox {
    pub fn push(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// Shows a text to the user and keeps it for the report.
    pub fn note(&mut self, text: String) {
        self.notes.push(text.clone());
        self.push(Action::Note(text));
    }

    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// As [`Self::note`], of a loss: when what is lost has been waited for, and all is complete, it describes nothing any more.
    pub fn note_loss(&mut self, text: String) {
        self.losses.push(text.clone());
        self.note(text);
    }

    pub fn losses(&self) -> &[String] {
        &self.losses
    }

    /// As [`Self::note`], of what holders refused: when their sources were read again, it describes nothing any more.
    pub fn note_refusal(&mut self, text: String) {
        self.refusals.push(text.clone());
        self.note(text);
    }

    pub fn refusals(&self) -> &[String] {
        &self.refusals
    }

    /// Whether a plan is to be asked for.
    pub fn has_plan(&self) -> bool {
        let is_plan = |action: &Action| matches!(action, Action::Plan(..));
        self.actions.iter().any(is_plan)
    }

    fn poll(&mut self) -> Option<Action> {
        let action = self.actions.pop_front();
        // Of thousands of nodes there are that many at the start only.
        if action.is_none() {
            self.actions.shrink_to(ACTIONS_KEPT);
        }
        action
    }
}

impl Coordinator {
    /// Next thing for the driver to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.out.poll()
    }

    pub(super) fn send(&mut self, node: u32, body: to_agent::Body) {
        self.out
            .push(Action::Send(node, ToAgent { body: Some(body) }));
    }

    pub(super) fn note(&mut self, text: String) {
        self.out.note(text);
    }

    /// Shows that something is lost.
    pub(super) fn note_loss(&mut self, text: String) {
        self.out.note_loss(text);
    }
}
