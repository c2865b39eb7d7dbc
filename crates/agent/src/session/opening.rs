//! A transfer that is being opened, beside the connection: large trees are read in it.

use std::net::IpAddr;
use std::sync::Arc;

use ropewalk_proto::control::{self, FromAgent, from_agent};
use ropewalk_store::Scanning;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::AgentError;
use crate::shared::Shared;
use crate::transfer::Transfer;

/// What opening has led to.
pub(super) type Opened = Result<(Arc<Transfer>, control::Opened), AgentError>;

/// See the module documentation. Dropping it stops the scan, and does not wait for that: a disk may not answer.
pub(super) struct Opening {
    scanning: Arc<Scanning>,
    work: JoinHandle<Opened>,
}

impl Opening {
    pub fn begin(
        open: control::Open,
        credentials: control::Credentials,
        shared: Arc<Shared>,
        outbox: UnboundedSender<FromAgent>,
        reached_as: Option<IpAddr>,
    ) -> Self {
        let scanning = Arc::new(Scanning::default());
        let counted = scanning.clone();
        let work = spawn_blocking(move || {
            let host = &shared.host;
            Transfer::open(&open, &credentials, host, outbox, reached_as, &counted)
        });
        Self { scanning, work }
    }

    /// How far it is, for the master.
    pub fn status(&self) -> from_agent::Body {
        let entries = self.scanning.entries();
        from_agent::Body::SenderStatus(control::SenderStatus {
            scanning: Some(control::Scanning { entries }),
            ..control::SenderStatus::default()
        })
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.scanning.stop();
    }
}

/// Its end, once it is there; never where nothing is being opened. `None`: the agent failed.
pub(super) async fn ended(opening: &mut Option<Opening>) -> Option<Opened> {
    match opening {
        Some(opening) => (&mut opening.work).await.ok(),
        None => std::future::pending().await,
    }
}
