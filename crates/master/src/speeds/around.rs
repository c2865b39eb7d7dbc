//! The file of speeds before and after a transfer: whatever is wrong with it becomes a note.

use std::path::Path;

use ropewalk_proto::report::{Event, Outcome};
use ropewalk_statefile::{StateError, now_unix};
use tokio::sync::mpsc::UnboundedSender;

use super::file::{load, record};
use super::{Hints, Observations};
use crate::kept::{KeptError, at_the_file};
use crate::request::{NodeRequest, Request};

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

/// What earlier transfers have shown, and what to say of it.
pub(crate) async fn recall(
    request: &Request,
    events: &UnboundedSender<Event>,
) -> (Hints, Vec<String>) {
    let Some(path) = request.options.speeds.clone() else {
        return Default::default();
    };
    let nodes = request.nodes.clone();
    let recalled = at_speeds(move || Ok(load(&path)?.hints(&nodes, now_unix()))).await;
    let (hints, note) = match recalled {
        Ok(hints) => (hints.clone(), hints.note()),
        Err(error) => (Hints::default(), Some(error.to_string())),
    };
    if let Some(message) = &note {
        let _ = events.send(Event::Note {
            seconds: 0.0,
            message: message.clone(),
        });
    }
    (hints, note.into_iter().collect())
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
