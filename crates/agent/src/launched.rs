//! An agent that a launcher of a job (`srun`, `mpirun`) started, for one master. It listens as a standing agent does, under a
//! secret that it read from its standard input, and ends when that closes, when it is asked to, or when no master is connected.

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::piped::transfers_ended;
use crate::shared::Shared;
use crate::{Agent, AgentError};

/// The master connects at once when all agents listen, which may take a minute; later a connection that is lost is opened again
/// only after the agent has been started again.
const MASTER_TIMEOUT: Duration = Duration::from_secs(90);

impl Agent {
    /// Serves its master until `closed` (its standard input) or `shutdown` completes. Transfers whose master is gone may end in
    /// order first, unless it is `shutdown`.
    ///
    /// # Errors
    /// [`AgentError::NoMaster`] when none has been connected for long; otherwise as [`Agent::serve`].
    pub async fn serve_launched(
        self,
        closed: impl Future<Output = ()>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), AgentError> {
        let shared = self.shared().clone();
        let mut is_forgotten = false;
        let until = async {
            let outlasted = async {
                closed.await;
                transfers_ended(&shared).await;
            };
            tokio::select! {
                () = shutdown => {}
                () = outlasted => {}
                () = forgotten(shared.clone()) => is_forgotten = true,
            }
        };
        self.serve(until).await?;
        match is_forgotten {
            true => Err(AgentError::NoMaster {
                seconds: MASTER_TIMEOUT.as_secs(),
            }),
            false => Ok(()),
        }
    }
}

/// Returns when no master has been connected for long, and no transfer runs.
async fn forgotten(shared: Arc<Shared>) {
    let mut masters = shared.masters.subscribe();
    loop {
        let connected = tokio::time::timeout(MASTER_TIMEOUT, masters.wait_for(|count| *count > 0));
        if connected.await.is_err() && shared.transfers.lock().is_empty() {
            return;
        }
        // The sender lives as long as the agent.
        let _ = masters.wait_for(|count| *count == 0).await;
    }
}

/// Addresses of this host's interfaces that other hosts may reach.
#[must_use]
pub fn host_addresses() -> Vec<IpAddr> {
    let interfaces = ropewalk_lane::interfaces::usable(&[]);
    let networks = interfaces.iter().flat_map(|found| &found.networks);
    networks.map(|(address, _)| *address).collect()
}
