//! The threads that commands wait on.

use anyhow::{Context as _, Result};

/// The runtime that drives control connections; data has threads of its own in the agents.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    runtime.context("cannot start threads; raise the limit of processes (ulimit -u)")
}
