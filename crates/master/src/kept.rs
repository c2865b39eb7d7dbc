//! Files that are kept from one transfer to the next: a convenience, which must not hold one up.

use std::time::Duration;

use ropewalk_statefile::StateError;

/// A file on a disk that hangs (a home over NFS) is not waited for longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why a kept file could not be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeptError {
    /// The file itself.
    #[error(transparent)]
    State(#[from] StateError),
    /// What worked on it ended early.
    #[error("the file of {0} could not be used; this is a bug")]
    Ended(&'static str),
    /// Its disk does not answer.
    #[error("the file of {what} does not answer within {} s; {without} does without it", PATIENCE.as_secs())]
    Slow {
        /// What is kept in it.
        what: &'static str,
        /// The options that do without.
        without: &'static str,
    },
}

/// Does something with a file, which must not take long. `what` names the file and `without` says how to do without it
/// where it does.
///
/// # Errors
/// [`KeptError`] names the file and what to do.
pub(crate) async fn at_the_file<T: Send + 'static>(
    what: &'static str,
    without: &'static str,
    work: impl FnOnce() -> Result<T, StateError> + Send + 'static,
) -> Result<T, KeptError> {
    let work = tokio::task::spawn_blocking(work);
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(Ok(done)) => Ok(done?),
        Ok(Err(_)) => Err(KeptError::Ended(what)),
        Err(_) => Err(KeptError::Slow { what, without }),
    }
}
