//! Agents within the command's own process, for transfers whose nodes are all on this host.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use ropewalk_master::{AgentHere, NotStarted};
use tokio::runtime::Runtime;

use super::roots::read_roots;
use super::{bind_one, read_input, ready_line, tell};
use crate::Unusable;
use crate::runtime::not_started;

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
        .map_err(not_started)?;
    let mut output = File::from(output);
    tell(&mut output, &ready_line(&agent))?;
    // Signals are the command's.
    let shutdown = std::future::pending();
    let runtime = Background(Some(runtime));
    let served = runtime.block_on(agent.serve_pipe((input, output.into()), None, shutdown));
    served.context("the agent stopped")
}

/// A runtime whose end waits for nothing, also where a thread panics: a disk that does not answer may hold what it has begun.
struct Background(Option<Runtime>);

impl Background {
    fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        let Some(runtime) = &self.0 else {
            unreachable!("it is there until this is dropped");
        };
        runtime.block_on(work)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
