//! The file of speeds before and after a transfer: whatever is wrong with it becomes a note.

use std::collections::BTreeSet;
use std::path::Path;

use ropewalk_proto::report::Outcome;
use ropewalk_statefile::{StateError, now_unix};

use super::file::{load, record};
use super::{Hints, Observations};
use crate::kept::{KeptError, at_the_file};
use crate::request::{Destinations, Mapping, NodeRequest, Request};

async fn at_speeds<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StateError> + Send + 'static,
) -> Result<T, KeptError> {
    at_the_file("speeds", "--speeds off", work).await
}

/// What earlier transfers have shown of these nodes, for planning without moving.
///
/// # Errors
/// The file is damaged or cannot be read; a plan can do without.
pub fn remembered_speeds(path: &Path, nodes: &[NodeRequest]) -> Result<Hints, StateError> {
    let memory = load(path)?;
    Ok(memory.hints(nodes, now_unix()))
}

/// What is said of what earlier transfers have shown.
#[derive(Debug, Default)]
pub(crate) struct Recalled {
    pub hints: Hints,
    /// That the plan rests on it; `None` where no plan has a choice. For a transfer that is planned.
    pub basis: Option<String>,
    /// Why nothing could be read.
    pub failure: Option<String>,
}

/// Whether more than one node can send, or receive, the same bytes: without that, speeds change no plan.
fn has_choice(request: &Request) -> bool {
    let senders = request.nodes.iter().filter(|node| !node.sources.is_empty());
    let sinks = request.nodes.iter().flat_map(|node| &node.sinks);
    let mut shared = BTreeSet::new();
    let mut named = sinks.clone().filter_map(|sink| sink.destination.as_deref());
    let all_share = matches!(
        request.mapping,
        Mapping::Trees {
            destinations: Destinations::Shared,
            ..
        }
    );
    senders.count() > 1
        || (all_share && sinks.count() > 1)
        || named.any(|name| !shared.insert(name))
}

/// What earlier transfers have shown, and what to say of it.
pub(crate) async fn recall(request: &Request) -> Recalled {
    let Some(path) = request.options.speeds.clone() else {
        return Default::default();
    };
    let nodes = request.nodes.clone();
    let recalled = at_speeds(move || Ok(load(&path)?.hints(&nodes, now_unix()))).await;
    match recalled {
        Ok(hints) => Recalled {
            basis: hints.note().filter(|_| has_choice(request)),
            hints,
            failure: None,
        },
        Err(error) => Recalled {
            failure: Some(error.to_string()),
            ..Recalled::default()
        },
    }
}

/// Keeps what this transfer has shown; what to say when that cannot be.
pub(crate) async fn remember(
    request: &Request,
    outcome: Outcome,
    observations: Observations,
) -> Option<String> {
    let path = request.options.speeds.clone()?;
    if observations.is_empty() || !matches!(outcome, Outcome::Done | Outcome::Partial) {
        return None;
    }
    let kept = at_speeds(move || record(&path, &observations, now_unix())).await;
    kept.err().map(|error| error.to_string())
}
