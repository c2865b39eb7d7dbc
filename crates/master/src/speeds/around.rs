//! The file of speeds before and after a transfer: whatever is wrong with it becomes a note.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ropewalk_proto::report::{Event, Outcome};
use ropewalk_statefile::StateError;
use tokio::sync::mpsc::UnboundedSender;

use super::file::{load, record};
use super::{Hints, Observations};
use crate::request::{NodeRequest, Request};

/// A file of speeds on a disk that hangs (a home over NFS) must not hold the transfer.
const SPEEDS_PATIENCE: Duration = Duration::from_secs(2);

/// Seconds of Unix time; 0 for a clock before that.
fn now_unix() -> u64 {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH);
    passed.map_or(0, |passed| passed.as_secs())
}

/// Does something with the file of speeds, which must not take long.
async fn at_the_file<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StateError> + Send + 'static,
) -> Result<T, String> {
    let work = tokio::task::spawn_blocking(work);
    match tokio::time::timeout(SPEEDS_PATIENCE, work).await {
        Ok(Ok(done)) => done.map_err(|error| error.to_string()),
        Ok(Err(_)) => Err("the file of speeds could not be used; this is a bug".into()),
        Err(_) => Err(format!(
            "the file of speeds does not answer within {} s; --speeds off does without it",
            SPEEDS_PATIENCE.as_secs()
        )),
    }
}

/// What earlier transfers have shown of these nodes, for planning without moving.
///
/// # Errors
/// A sentence when the file is damaged or cannot be read; a plan can do without.
pub fn remembered_speeds(path: &Path, nodes: &[NodeRequest]) -> Result<Hints, String> {
    let memory = load(path).map_err(|error| error.to_string())?;
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
    let recalled = at_the_file(move || Ok(load(&path)?.hints(&nodes, now_unix()))).await;
    let (hints, note) = match recalled {
        Ok(hints) => (hints.clone(), hints.note()),
        Err(text) => (Hints::default(), Some(text)),
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
    let kept = at_the_file(move || record(&path, &observations, now_unix())).await;
    kept.err()
}
