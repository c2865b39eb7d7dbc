//! The file in which speeds are kept.

use std::path::Path;

use ropewalk_statefile::{LOCK_PATIENCE, StateError, StateFile};

use super::{Memory, Observations, VERSION};

const FILE: StateFile = StateFile {
    version: VERSION,
    key: "nodes",
    // Four times what [`super::ENTRIES_MAX`] nodes and pairs take.
    len_max: 8 << 20,
    lock_patience: LOCK_PATIENCE,
    anew: "rates are measured again",
    instead: "--speeds PATH uses another file",
    lost: "speeds of this transfer are not remembered",
};

/// Reads what is remembered; nothing when there is no file.
pub(crate) fn load(path: &Path) -> Result<Memory, StateError> {
    FILE.load(path)
}

/// Adds what a transfer has shown to the file.
pub(crate) fn record(
    path: &Path,
    observations: &Observations,
    now_unix: u64,
) -> Result<(), StateError> {
    FILE.update(path, |memory: &mut Memory| {
        memory.learn(observations, now_unix);
    })
}
