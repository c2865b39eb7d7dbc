//! A transfer that is being opened, beside the connection: large trees are read in it. Others of the agent see it, and can end it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use ropewalk_proto::control::{self, FromAgent, Waits, from_agent};
use ropewalk_store::Scanning;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::AgentError;
use crate::shared::Shared;
use crate::transfer::Transfer;

/// What opening has led to.
pub(super) type Opened = Result<(Arc<Transfer>, control::Opened), AgentError>;

/// How opening has ended.
pub(super) enum Ended {
    Opened(Opened),
    /// Its thread has panicked.
    Failed,
    /// On request at this node.
    Cancelled,
}

/// A transfer that is being opened, to all connections of the agent.
pub(crate) struct Visible {
    /// As its master gave it.
    pub id: Vec<u8>,
    sends: bool,
    receives: bool,
    began: Instant,
    scanning: Scanning,
    cancelled: watch::Sender<bool>,
}

impl Visible {
    fn of(open: &control::Open) -> Self {
        Self {
            id: open.transfer.clone(),
            sends: !open.sources.is_empty(),
            receives: !open.sinks.is_empty(),
            began: Instant::now(),
            scanning: Scanning::default(),
            cancelled: watch::Sender::new(false),
        }
    }

    /// One line for `status`.
    pub fn status_line(&self) -> control::TransferStatus {
        control::TransferStatus {
            transfer: self.id.clone(),
            age: u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX),
            phase: "opening".into(),
            cancelled: *self.cancelled.borrow(),
            sending: self.sends.then(Waits::default),
            receiving: self.receives.then(Waits::default),
            ..control::TransferStatus::default()
        }
    }

    /// Ends it on request at this node; its connection reports that to the master.
    pub fn cancel(&self) {
        self.scanning.stop();
        self.cancelled.send_replace(true);
    }
}

/// See the module documentation. Dropping it stops the scan, and does not wait for that: a disk may not answer.
pub(super) struct Opening {
    visible: Arc<Visible>,
    shared: Arc<Shared>,
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
        let visible = Arc::new(Visible::of(&open));
        shared.openings.lock().push(visible.clone());
        let (counted, agent) = (visible.clone(), shared.clone());
        let work = spawn_blocking(move || {
            let (host, scanning) = (&agent.host, &counted.scanning);
            Transfer::open(&open, &credentials, host, outbox, reached_as, scanning)
        });
        Self {
            visible,
            shared,
            work,
        }
    }

    /// How far it is, for the master.
    pub fn status(&self) -> from_agent::Body {
        let entries = self.visible.scanning.entries();
        from_agent::Body::SenderStatus(control::SenderStatus {
            scanning: Some(control::Scanning { entries }),
            ..control::SenderStatus::default()
        })
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.visible.scanning.stop();
        let mut openings = self.shared.openings.lock();
        openings.retain(|other| !Arc::ptr_eq(other, &self.visible));
    }
}

/// Its end, once it is there; never where nothing is being opened.
pub(super) async fn ended(opening: &mut Option<Opening>) -> Ended {
    let Some(opening) = opening else {
        return std::future::pending().await;
    };
    let mut cancelled = opening.visible.cancelled.subscribe();
    tokio::select! {
        biased;
        _ = cancelled.wait_for(|cancelled| *cancelled) => Ended::Cancelled,
        opened = &mut opening.work => opened.map_or(Ended::Failed, Ended::Opened),
    }
}
