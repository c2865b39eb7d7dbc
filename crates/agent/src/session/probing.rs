//! A look at places and sources, beside the connection: a disk may not answer. The node says meanwhile that it is there, and can be ended.

use std::collections::VecDeque;
use std::sync::Arc;

use ropewalk_proto::control::{Probe, Probed, ToAgent, to_agent};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::host::Work;
use crate::transfer::Transfer;

/// Messages that wait for the end of a look: a master sends a few, which belong to the next step.
const LATER_MAX: usize = 16;

/// See the module documentation. Where it is dropped the look goes on, and leaves no mark of a transfer that has ended.
pub(super) struct Probing {
    /// The master wants an answer.
    pub asks: bool,
    /// What it has said since, in this order.
    pub later: VecDeque<ToAgent>,
    work: JoinHandle<Probed>,
}

impl Probing {
    pub fn begin(transfer: Arc<Transfer>, probe: Probe, work: &Work) -> Self {
        let asks = probe != Probe::default();
        // The agent does not end before its marks are removed.
        let at_work = work.clone().try_read_owned().ok();
        let look = move || {
            let _at_work = at_work;
            transfer.probe(&probe)
        };
        Self {
            asks,
            later: VecDeque::new(),
            work: spawn_blocking(look),
        }
    }

    /// Keeps a message for later; gives it back where its answer does not depend on the look.
    pub fn keep(&mut self, message: ToAgent) -> Option<ToAgent> {
        let is_urgent = matches!(
            message.body,
            Some(
                to_agent::Body::Finish(_)
                    | to_agent::Body::StatusQuery(_)
                    | to_agent::Body::CancelQuery(_)
            )
        );
        if is_urgent {
            return Some(message);
        }
        self.later.push_back(message);
        None
    }

    /// Whether more messages may be kept.
    pub fn has_space(&self) -> bool {
        self.later.len() < LATER_MAX
    }
}

/// What a look has found, once it has; never where there is none.
pub(super) async fn ended(probing: &mut Option<Probing>) -> Probed {
    match probing {
        Some(probing) => (&mut probing.work).await.unwrap_or_default(),
        None => std::future::pending().await,
    }
}
