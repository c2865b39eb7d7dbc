//! The sending side of a transfer: waits for the plan, serves what it holds, counts what left.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use ropewalk_lane::{Absent, Extent, Provider, missing};
use ropewalk_model::Range;

use crate::landing::Holdings;

enum State {
    // Peers may connect a moment before this node's own plan arrives.
    Waiting,
    Ready(Arc<Holdings>),
    Failed(String),
    Stopped,
}

/// What one node serves in one transfer.
pub(crate) struct Serving {
    state: Mutex<State>,
    changed: Condvar,
    sent: AtomicU64,
    second: Mutex<Second>,
}

struct Second {
    since: Instant,
    at: u64,
    bytes: u64,
    best: u64,
}

impl Serving {
    pub fn new() -> Self {
        Self {
            state: Mutex::new(State::Waiting),
            changed: Condvar::new(),
            sent: AtomicU64::new(0),
            second: Mutex::new(Second {
                since: Instant::now(),
                at: 0,
                bytes: 0,
                best: 0,
            }),
        }
    }

    fn set(&self, state: State) {
        *self.state.lock() = state;
        self.changed.notify_all();
    }

    pub fn start(&self, holdings: Holdings) {
        self.second.lock().since = Instant::now();
        self.set(State::Ready(Arc::new(holdings)));
    }

    pub fn fail(&self, reason: String) {
        self.set(State::Failed(reason));
    }

    pub fn stop(&self) {
        self.set(State::Stopped);
    }

    pub fn started(&self) -> bool {
        matches!(*self.state.lock(), State::Ready(_))
    }

    /// Blocks until there is something to serve; `None` when there never will be.
    pub fn wait(&self) -> Option<Result<Arc<Holdings>, String>> {
        let mut state = self.state.lock();
        loop {
            match &*state {
                State::Waiting => self.changed.wait(&mut state),
                State::Ready(holdings) => return Some(Ok(holdings.clone())),
                State::Failed(reason) => return Some(Err(reason.clone())),
                State::Stopped => return None,
            }
        }
    }

    pub fn meter(&self, holdings: Result<Arc<Holdings>, String>) -> Metered<'_> {
        Metered {
            holdings,
            serving: self,
        }
    }

    fn count(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
        let mut second = self.second.lock();
        let at = second.since.elapsed().as_secs();
        if at != second.at {
            second.best = second.best.max(second.bytes);
            second.at = at;
            second.bytes = 0;
        }
        second.bytes += bytes;
    }

    /// Bytes handed to streams.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Most bytes in one second; for less than that, the mean rate.
    pub fn best_second(&self) -> u64 {
        let second = self.second.lock();
        if second.best > 0 {
            return second.best;
        }
        let seconds = second.since.elapsed().as_secs_f64().max(1e-9);
        (second.bytes as f64 / seconds) as u64
    }
}

/// The holdings, counting what is asked of them.
pub(crate) struct Metered<'a> {
    holdings: Result<Arc<Holdings>, String>,
    serving: &'a Serving,
}

impl Metered<'_> {
    fn holdings(&self) -> Result<&Holdings, Absent> {
        match &self.holdings {
            Ok(holdings) => Ok(holdings),
            Err(reason) => Err(Absent {
                code: missing::UNREADABLE,
                reason: reason.clone(),
            }),
        }
    }
}

impl Provider for Metered<'_> {
    fn extent(&self, space: u16, range: Range) -> Result<Extent<'_>, Absent> {
        let extent = self.holdings()?.extent(space, range)?;
        let length = match &extent {
            Extent::Memory(bytes) => (bytes.len() as u64).min(range.len()),
            Extent::File { length, .. } => (*length).min(range.len()),
        };
        self.serving.count(length);
        Ok(extent)
    }

    fn read(&self, space: u16, offset: u64, out: &mut [u8]) -> Result<(), Absent> {
        self.holdings()?.read(space, offset, out)
    }
}
