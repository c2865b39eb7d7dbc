//! The transfers, streams and tunnels of an agent, one by one.

use std::sync::Arc;

use ropewalk_proto::control;

use crate::forward::Forward;
use crate::session::opening::Visible;
use crate::shared::Shared;
use crate::stages::Stream;
use crate::transfer::Transfer;

/// What masters are given as the reason of a cancel.
pub(crate) const CANCELLED: &str = "cancelled at the agent";

/// What an agent takes part in.
pub(crate) enum Running {
    Opening(Arc<Visible>),
    Transfer(Arc<Transfer>),
    Stream(Arc<Stream>),
    Tunnel(Arc<Forward>),
}

impl Running {
    pub fn status_line(&self) -> control::TransferStatus {
        match self {
            Self::Opening(opening) => opening.status_line(),
            Self::Transfer(transfer) => transfer.status_line(),
            Self::Stream(stream) => stream.status_line(),
            Self::Tunnel(forward) => forward.status_line(),
        }
    }

    pub fn cancel(&self, shared: &Shared, caller: &str) {
        match self {
            Self::Opening(opening) => opening.cancel(),
            Self::Transfer(transfer) => transfer.cancel(CANCELLED, caller),
            Self::Stream(stream) => stream.cancel(),
            Self::Tunnel(forward) => forward.end(shared),
        }
    }
}

/// What has this id, or all.
pub(crate) fn select(shared: &Shared, id: &[u8]) -> Vec<Running> {
    let is_meant = |own: &[u8; 16]| id.is_empty() || own == id;
    let mut found = Vec::new();
    for opening in &*shared.openings.lock() {
        let own = opening.id.as_slice().try_into();
        // Another one is refused.
        let is_shown = own.is_ok_and(is_meant);
        found.extend(is_shown.then(|| Running::Opening(opening.clone())));
    }
    for (own, transfer) in &*shared.transfers.lock() {
        found.extend(is_meant(own).then(|| Running::Transfer(transfer.clone())));
    }
    for (own, stream) in &*shared.streams.lock() {
        found.extend(is_meant(own).then(|| Running::Stream(stream.clone())));
    }
    for (own, forward) in &*shared.forwards.lock() {
        found.extend(is_meant(own).then(|| Running::Tunnel(forward.clone())));
    }
    found
}
