//! Agents that a program runs within its own process, as the master knows them.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Why an agent ended by itself.
#[derive(Clone, Debug)]
pub struct NotStarted {
    /// In words.
    pub text: String,
    /// Trying again would fail in the same way.
    pub is_final: bool,
}

/// Runs agents within this process: reads secret and roots from the first pipe, and serves over both until the first one closes. Called on
/// threads of their own.
#[derive(Clone)]
pub struct AgentHere(pub Arc<dyn Fn(OwnedFd, OwnedFd) -> Result<(), NotStarted> + Send + Sync>);

impl fmt::Debug for AgentHere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgentHere")
    }
}
