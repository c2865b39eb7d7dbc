//! Places for connections that have proved nothing yet, one set for each stage and kind of socket.
//!
//! ```text
//!  accept -> silent --right preface--> proving --token or certificate--> a session, or a pair
//!               \-- 5 s, or gives way     \-- 10 s, or gives way
//! ```
//!
//! Which connection gives way is decided in [`ropewalk_proto::admission`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use ropewalk_model::time;
use ropewalk_proto::admission::{Admission, Source, Ticket};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Connections of one kind of socket that may be silent at once, a quarter of them from one address: a descriptor and
/// about 2 KiB each. So many that a peer's preface arrives before as many newer connections do: with 256 places, a
/// stranger that opened 2000 connections in a row locked out peers of its own host.
const SILENT_MAX: usize = 4096;

/// One kind of socket may use up one in so many of the process's descriptors; transfers need the others.
const DESCRIPTORS_DIVISOR: usize = 8;

/// Connections that may be in their handshake after a right preface, a quarter of them from one address: a TLS state
/// of some 20 KiB each. Strangers come this far only with a preface that they saw go by.
const PROVING_MAX: usize = 1024;

/// Both stages of one kind of socket: strangers on the network take no place from this host's processes.
pub(crate) struct Doors {
    silent: Arc<Door>,
    proving: Arc<Door>,
    // Those told to give way and not yet gone count, too: accepting waits for them, never for a stranger.
    room: Arc<Semaphore>,
}

impl Doors {
    /// For a process that may open so many descriptors.
    pub fn new(descriptors: usize) -> Self {
        let silent = (descriptors / DESCRIPTORS_DIVISOR).clamp(1, SILENT_MAX);
        Self {
            silent: Door::new(silent),
            proving: Door::new(PROVING_MAX),
            room: Arc::new(Semaphore::new(2 * silent)),
        }
    }

    /// A place for a connection just accepted.
    pub async fn enter(&self, source: Source) -> Option<Place> {
        let room = self.room.clone().acquire_owned().await.ok()?;
        Some(self.silent.enter(source, Some(room)))
    }

    /// A place for one that has sent a right preface.
    pub fn prove(&self, source: Source) -> Place {
        self.proving.enter(source, None)
    }
}

struct Door {
    // The zero of its clock.
    began: Instant,
    inside: Mutex<Inside>,
}

struct Inside {
    admission: Admission,
    told: HashMap<Ticket, Arc<Notify>>,
}

impl Door {
    fn new(places: usize) -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            inside: Mutex::new(Inside {
                admission: Admission::new(places),
                told: HashMap::new(),
            }),
        })
    }

    fn enter(self: &Arc<Self>, source: Source, room: Option<OwnedSemaphorePermit>) -> Place {
        let mut inside = self.inside.lock();
        let now = time::Instant::after(self.began.elapsed());
        let ticket = inside.admission.enter(source, now);
        let told = Arc::new(Notify::new());
        inside.told.insert(ticket, told.clone());
        while let Some(oldest) = inside.admission.gives_way(now) {
            inside.leave(oldest);
        }
        drop(inside);
        Place {
            door: self.clone(),
            ticket,
            told,
            _room: room,
        }
    }
}

impl Inside {
    fn leave(&mut self, ticket: Ticket) {
        self.admission.leave(ticket);
        if let Some(told) = self.told.remove(&ticket) {
            told.notify_one();
        }
    }
}

/// A connection's place; freed when dropped.
pub(crate) struct Place {
    door: Arc<Door>,
    ticket: Ticket,
    told: Arc<Notify>,
    _room: Option<OwnedSemaphorePermit>,
}

impl Place {
    /// Completes once another connection has this place.
    pub async fn taken(&self) {
        self.told.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.door.inside.lock().leave(self.ticket);
    }
}
