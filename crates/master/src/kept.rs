//! Files that are kept from one transfer to the next: a convenience, which must not hold one up.

use std::time::Duration;

use ropewalk_statefile::StateError;

/// A file on a disk that hangs (a home over NFS) is not waited for longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Does something with a file, which must not take long. `what` names the file and `without` says how to do without it
/// where it does.
///
/// # Errors
/// A sentence for people.
pub(crate) async fn at_the_file<T: Send + 'static>(
    what: &str,
    without: &str,
    work: impl FnOnce() -> Result<T, StateError> + Send + 'static,
) -> Result<T, String> {
    let work = tokio::task::spawn_blocking(work);
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(Ok(done)) => done.map_err(|error| error.to_string()),
        Ok(Err(_)) => Err(format!(
            "the file of {what} could not be used; this is a bug"
        )),
        Err(_) => Err(format!(
            "the file of {what} does not answer within {} s; {without} does without it",
            PATIENCE.as_secs()
        )),
    }
}
