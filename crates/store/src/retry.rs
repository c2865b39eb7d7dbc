//! Trying again what fails for a passing reason.

use std::time::Duration;

use crate::error::StoreError;

/// Pauses before what failed for a passing reason (no open file or memory left, a network file system that stumbled) is
/// tried again. Together well below the 1.5 s of silence after which a rail is given up.
pub const RETRIES: [Duration; 4] = [
    Duration::from_millis(5),
    Duration::from_millis(25),
    Duration::from_millis(100),
    Duration::from_millis(500),
];

/// Does `work` again while it fails for a passing reason; the last error once the pauses are used up.
///
/// # Errors
/// Those of `work`.
pub fn persist<T>(mut work: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    for pause in RETRIES {
        match work() {
            Err(error) if error.is_retryable() => std::thread::sleep(pause),
            result => return result,
        }
    }
    work()
}
