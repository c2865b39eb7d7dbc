//! The ranks of a transfer over MPI: one for each node, under one `mpirun` that the command starts.
//!
//! ```text
//!  agent (a child of the command) ── "it waits" ─▶ command ── all wait: starts ──▶ mpirun ── starts ──▶ ranks
//!  rank ── its place ──▶ agent of its node ── MPI_Init ──▶ "it is ready"
//! ```
//!
//! `mpirun` starts when all agents wait, so that one which cannot start, for want of its source for instance, leaves none of
//! the others waiting in `MPI_Init`. What ends one before all are ready ends all.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use ropewalk_lane::mpi::join::RankKey;
use ropewalk_lane::mpi::launch::{Failed, Mpirun};
use ropewalk_lane::preface;
use tokio::sync::watch;

/// The ranks of all nodes of one transfer.
pub(crate) struct Ranks(Arc<Shared>);

/// The rank of one node.
#[derive(Clone)]
pub(super) struct Seat {
    shared: Arc<Shared>,
    node: usize,
}

struct Shared {
    id: [u8; 16],
    key: RankKey,
    nodes: usize,
    state: Mutex<State>,
    // The first failure.
    failure: Arc<watch::Sender<Option<String>>>,
}

struct State {
    // `None` once it has been ended.
    mpirun: Option<Mpirun>,
    // Nodes whose agents wait for their ranks.
    waiting: BTreeSet<usize>,
}

fn fail(failure: &watch::Sender<Option<String>>, text: String) {
    failure.send_if_modified(|first| {
        let is_first = first.is_none();
        first.get_or_insert(text);
        is_first
    });
}

impl Ranks {
    /// Looks for the MPI of this host, for so many nodes. In words when there is none.
    ///
    /// * `cache`: a folder of this user for what is compiled for it.
    /// * `program`: this program.
    pub async fn find(cache: Option<&Path>, program: &Path, nodes: usize) -> Result<Self, String> {
        let (cache, program) = (cache.map(Path::to_owned), program.to_owned());
        let finding = move || Mpirun::find(cache.as_deref(), program);
        let found = tokio::task::spawn_blocking(finding).await;
        let mpirun = match found {
            Ok(found) => found.map_err(|error| format!("--lane mpi: {error}"))?,
            Err(_) => return Err("looking for MPI failed; this is a bug".into()),
        };
        Ok(Self(Arc::new(Shared {
            id: preface::random_bytes(),
            key: RankKey::of(&preface::random_bytes::<32>()),
            nodes,
            state: Mutex::new(State {
                mpirun: Some(mpirun),
                waiting: BTreeSet::new(),
            }),
            failure: Arc::default(),
        })))
    }

    /// The one of the node at this position.
    pub(super) fn seat(&self, node: usize) -> Seat {
        Seat {
            shared: self.0.clone(),
            node,
        }
    }

    /// Waits until a rank has not joined or `mpirun` has ended; why, in words.
    pub async fn failed(&self) -> String {
        self.0.failed().await
    }

    /// After all agents have ended: waits for `mpirun`, which removes its files.
    pub async fn end(self) {
        let mpirun = self.0.state.lock().mpirun.take();
        if let Some(mpirun) = mpirun {
            let _ = tokio::task::spawn_blocking(|| mpirun.end()).await;
        }
    }
}

impl Shared {
    async fn failed(&self) -> String {
        let mut seen = self.failure.subscribe();
        let text = seen.wait_for(Option::is_some).await;
        // The sender lives as long as `self`.
        text.ok().and_then(|text| text.clone()).unwrap_or_default()
    }

    /// Under which its agent listens for the rank of a node.
    fn name(&self, node: usize) -> String {
        format!("{:032x}-{node}", u128::from_be_bytes(self.id))
    }
}

impl Seat {
    /// What its agent is given of it, a line of its input.
    pub fn line(&self) -> String {
        let Self { shared, node } = self;
        format!("rank {} {}", shared.key.text(), shared.name(*node))
    }

    /// Its agent waits for the rank. The last one has `mpirun` started.
    pub fn wait(&self) {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        let is_last = state.waiting.insert(self.node) && state.waiting.len() == shared.nodes;
        let Some(mpirun) = state.mpirun.as_mut().filter(|_| is_last) else {
            return;
        };
        let agents: Vec<String> = (0..shared.nodes).map(|node| shared.name(node)).collect();
        let failure = shared.failure.clone();
        let failed = move |failed| match failed {
            Failed::Rank(text) | Failed::Ended(text) => fail(&failure, text),
        };
        if let Err(error) = mpirun.start((&shared.id, &shared.key), 1, &agents, failed) {
            fail(
                &shared.failure,
                format!("mpirun cannot be started: {error}"),
            );
        }
    }

    /// Its agent has no rank, and none of the others begins.
    pub fn fail(&self, text: &str) {
        fail(&self.shared.failure, text.to_owned());
    }

    /// As [`Ranks::failed`].
    pub async fn failed(&self) -> String {
        self.shared.failed().await
    }
}
