//! What all connections of an agent have in common.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use ropewalk_lane::preface::MacKey;
use ropewalk_proto::tunnel::Permitted;
use tokio::sync::watch;

use crate::door::Doors;
use crate::forward::Forward;
use crate::host::Host;
use crate::session::opening::Visible;
use crate::stages::{StageConfig, Stream};
use crate::transfer::Transfer;

/// What commands and agents of this user on this host do, as masters get it that started the agent.
pub type Around = Box<dyn Fn() -> Vec<u8> + Send + Sync>;

/// The agent, to what is connected to it.
pub(crate) struct Shared {
    pub host: Host,
    pub token: [u8; 32],
    pub token_id: [u8; 16],
    pub token_key: MacKey,
    pub control: Arc<rustls::ServerConfig>,
    pub transfers: Mutex<HashMap<[u8; 16], Arc<Transfer>>>,
    /// Those that are being opened.
    pub openings: Mutex<Vec<Arc<Visible>>>,
    pub streams: Mutex<HashMap<[u8; 16], Arc<Stream>>>,
    pub stages: Option<StageConfig>,
    /// What tunnels may do, and those there are, by the ids of their keys.
    pub permitted: Permitted,
    pub forwards: Mutex<HashMap<[u8; 16], Arc<Forward>>>,
    /// Masters that are connected by a port and have proved the token.
    pub masters: watch::Sender<usize>,
    pub shutdown: watch::Receiver<bool>,
    /// For connections within this host, and for those through the master.
    pub local_doors: Arc<Doors>,
    /// Of an agent that its master started.
    pub around: OnceLock<Around>,
}
