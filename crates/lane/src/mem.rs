//! A pair of stream ends in one process, for tests of what drives them.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::half::Handle;
use crate::receive::Receiver;
use crate::send::Sender;
use crate::wire::{Interest, Wire};
use crate::{LaneError, Protection, ReceiveHalf, SendHalf};

/// Bytes each direction holds; less than a fragment, so that tests meet partial sends.
const PIPE_LEN: usize = 96 << 10;

/// A connected pair, receiving end first.
///
/// # Errors
/// None today; streams are made the same way everywhere.
#[expect(
    clippy::type_complexity,
    reason = "both ends, as every other constructor gives one"
)]
pub fn pair(
    receiver: Protection,
    sender: Protection,
) -> Result<(Box<dyn ReceiveHalf>, Box<dyn SendHalf>), LaneError> {
    let (left, right) = wires();
    Ok((
        Box::new(Receiver::new(left, receiver)?),
        Box::new(Sender::new(right, sender)?),
    ))
}

pub(crate) fn wires() -> (MemoryWire, MemoryWire) {
    let shared = Arc::new(Shared {
        state: Mutex::default(),
        changed: Condvar::new(),
    });
    (
        MemoryWire {
            shared: shared.clone(),
            side: 0,
        },
        MemoryWire { shared, side: 1 },
    )
}

#[derive(Default)]
struct State {
    /// Bytes on their way to each side.
    inbound: [VecDeque<u8>; 2],
    closed: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}

pub(crate) struct MemoryWire {
    shared: Arc<Shared>,
    side: usize,
}

impl Wire for MemoryWire {
    fn receive(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut state = self.shared.lock();
        let mut count = 0;
        for slice in slices {
            // The ring gives at most what lies in one piece, so it may have to be asked twice.
            let mut filled = 0;
            while filled < slice.len() {
                match io::Read::read(&mut state.inbound[self.side], &mut slice[filled..])? {
                    0 => break,
                    part => filled += part,
                }
            }
            count += filled;
        }
        if count == 0 && !state.closed {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.shared.changed.notify_all();
        Ok(count)
    }

    fn send(&mut self, slices: &[IoSlice<'_>], _more: bool) -> io::Result<usize> {
        let mut state = self.shared.lock();
        if state.closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let pipe = &mut state.inbound[1 - self.side];
        let mut count = 0;
        for slice in slices {
            let part = slice.len().min(PIPE_LEN - pipe.len());
            pipe.extend(&slice[..part]);
            count += part;
        }
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.shared.changed.notify_all();
        Ok(count)
    }

    fn wait(&mut self, interest: Interest, deadline: Instant) -> io::Result<()> {
        let mut state = self.shared.lock();
        loop {
            let readable = interest.read > 0 && !state.inbound[self.side].is_empty();
            let writable = interest.write && state.inbound[1 - self.side].len() < PIPE_LEN;
            let left = deadline.saturating_duration_since(Instant::now());
            if readable || writable || state.closed || left.is_zero() {
                return Ok(());
            }
            state = self
                .shared
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn handle(&self) -> io::Result<Arc<dyn Handle>> {
        Ok(self.shared.clone())
    }
}

impl Handle for Shared {
    fn close(&self) {
        self.close();
    }

    fn received(&self) -> Option<u64> {
        None
    }
}

impl Drop for MemoryWire {
    fn drop(&mut self) {
        self.shared.close();
    }
}
