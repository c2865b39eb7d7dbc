//! Agents within the command's own process, for transfers whose nodes are all on this host.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use ropewalk_master::{AgentHere, NotStarted};

use super::roots::read_roots;
use super::{bind_one, read_input, ready_line, tell};
use crate::Unusable;

/// Threads of an agent's control side: its data has threads of its own.
const WORKERS: usize = 2;

/// What runs them.
pub(crate) fn agents() -> AgentHere {
    AgentHere(Arc::new(|input, output| {
        serve(input, output).map_err(|error| NotStarted {
            is_final: error.is::<Unusable>(),
            text: format!("{error:#}"),
        })
    }))
}

/// Reads secret and roots, says that it is ready, and serves until the input closes.
fn serve(input: OwnedFd, output: OwnedFd) -> Result<()> {
    let (secret, lines) = read_input(&input)?;
    let served = read_roots(lines)?;
    let agent = bind_one(true, None, secret, &served)?;
    // Before it is ready: the command can say why it is not.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .context("cannot start threads; raise the limit of processes (ulimit -u)")?;
    let mut output = File::from(output);
    tell(&mut output, &ready_line(&agent))?;
    // Signals are the command's.
    let shutdown = std::future::pending();
    let served = runtime.block_on(agent.serve_pipe((input, output.into()), None, shutdown));
    runtime.shutdown_background();
    served.context("the agent stopped")
}
