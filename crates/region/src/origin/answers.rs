//! Answers: which thread receives them, and into which memory.
//!
//! A node answers requests in their order, so that the origin knows which bytes are next. Long ones are received straight into the memory of their
//! operation, which is **pinned** meanwhile: the machine counts them as in flight to this node, and no thread gives the memory back, gives it
//! to another, or loses the node until the pin is gone. Where it is another message, its bytes are taken out of there: those that are owed
//! replace them later.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use ropewalk_message::{MessageError, MessageSocket, SplitTimes};
use ropewalk_proto::region::frame::{Frame, HEAD_LEN, MESSAGE_MAX, Status, is_data_of};
use ropewalk_proto::region::{Answered, HolderId, Slice};

use super::{Inner, Node, OTHERS, SLICE, State};
use crate::memory::Loan;

/// Shorter answers are received into memory of their own and copied: the two locks of a pin cost as much.
const DIRECT_MIN: usize = 32 << 10;
/// Shorter waits do not lend memory: a fragment that is on its way when they end has to come again.
const DIRECT_WAIT_MIN: Duration = Duration::from_millis(20);
/// So many messages are received into memory of their own after a wait has ended within one: slow networks make progress with short waits, too.
const COPIED_AFTER_LATE: u32 = 64;

/// What the thread that reads a socket knows.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// Messages that are received into memory of their own, before memory is lent again.
    copied: u32,
}

/// What was received.
enum Came {
    Message(Vec<u8>),
    /// The bytes of a get, which are in their place: number of the request.
    Placed(u64),
}

/// Memory that this thread fills, and which bytes it is for.
struct Pin<'a> {
    inner: &'a Inner,
    holder: HolderId,
    id: u64,
    operation: u64,
    slices: Arc<[Slice]>,
    loan: Loan,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        let mut state = self.inner.state.lock();
        state.pinned[self.holder] = None;
        self.inner.changed.notify_all();
    }
}

impl Inner {
    /// Waits until memory is pinned no more, by node and operation. Whoever fills it leaves within 50 ms.
    pub(super) fn unpin(
        &self,
        state: &mut MutexGuard<'_, State>,
        which: impl Fn(HolderId, u64) -> bool,
    ) {
        loop {
            let mut is_pinned = false;
            let all = self.nodes.iter().zip(&state.pinned).enumerate();
            for (holder, (node, pinned)) in all {
                if pinned.is_some_and(|operation| which(holder, operation)) {
                    node.wanted_back.store(true, Ordering::Release);
                    is_pinned = true;
                }
            }
            if !is_pinned {
                return;
            }
            self.changed.wait(state);
        }
    }

    /// Pins the memory of the bytes that come next from a node, where these are long and one after the other in memory.
    fn pin(&self, holder: HolderId, node: &Node) -> Option<Pin<'_>> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let (id, operation, slices) = state.origin.next_data(holder)?;
        if !state.origin.is_open(operation) {
            return None;
        }
        let loan = state.memories.get(&operation)?.loan(&slices)?;
        if loan.len() < DIRECT_MIN {
            return None;
        }
        state.pinned[holder] = Some(operation);
        node.wanted_back.store(false, Ordering::Release);
        Some(Pin {
            inner: self,
            holder,
            id,
            operation,
            slices,
            loan,
        })
    }

    /// A node, and the socket to it, where it was reached.
    fn reached(&self, holder: HolderId) -> Option<(&Node, &MessageSocket)> {
        let node = self.nodes.get(holder)?;
        Some((node, node.socket.as_ref()?))
    }

    /// Reads one message of a node that owes an answer, unless another thread reads it.
    pub(super) fn read(&self, holder: HolderId, id: u64, until: Instant) {
        let Some((node, socket)) = self.reached(holder) else {
            return;
        };
        let Some(mut one) = node.reading.try_lock() else {
            let mut state = self.state.lock();
            if state.origin.is_in_flight(holder, id) {
                self.changed
                    .wait_until(&mut state, until.min(Instant::now() + OTHERS));
            }
            return;
        };
        // It may have been answered before this thread was the one that reads.
        if !self.state.lock().origin.is_in_flight(holder, id) {
            return;
        }
        let now = Instant::now();
        let slice = until.min(now + SLICE);
        let lends = one.copied == 0 && until.saturating_duration_since(now) >= DIRECT_WAIT_MIN;
        let pin = if lends { self.pin(holder, node) } else { None };
        let received = match pin {
            Some(pin) => {
                let received = receive_into(pin, node, socket, slice, until);
                let is_late = matches!(received, Err(MessageError::Deadline));
                if is_late && Instant::now() >= until {
                    one.copied = COPIED_AFTER_LATE;
                }
                received
            }
            None => {
                one.copied = one.copied.saturating_sub(1);
                receive(socket, slice)
            }
        };
        self.heard(holder, socket, received);
        drop(one);
        self.changed.notify_all();
    }

    fn heard(
        &self,
        holder: HolderId,
        socket: &MessageSocket,
        received: Result<Option<Came>, MessageError>,
    ) {
        match received {
            Ok(Some(came)) => {
                let mut state = self.state.lock();
                let taken = match came {
                    Came::Message(message) => take(&mut state, holder, &message),
                    Came::Placed(id) => answer(&mut state, holder, id, &Answered::Data),
                };
                drop(state);
                if let Err(cause) = taken {
                    socket.close();
                    self.lose(holder, &cause);
                }
            }
            Ok(None) => self.lose(holder, "it has closed the connection"),
            Err(MessageError::Deadline) => {
                let is_away = !socket.rails().iter().any(|rail| rail.is_up);
                let mut state = self.state.lock();
                state.away.retain(|other| *other != holder);
                if is_away {
                    state.away.push(holder);
                }
                state.origin.set_away(holder, is_away);
            }
            Err(error) => self.lose(holder, &error.to_string()),
        }
    }

    /// Looks whether a node that was away works again, or is lost.
    pub(super) fn look_after(&self, holder: HolderId) {
        let Some((node, socket)) = self.reached(holder) else {
            return;
        };
        let Some(_one) = node.reading.try_lock() else {
            return;
        };
        self.heard(holder, socket, receive(socket, Instant::now()));
    }
}

/// Takes an answer, or says why the node is not to be used any more.
fn take(state: &mut State, holder: HolderId, message: &[u8]) -> Result<(), String> {
    let frame = Frame::decode(message).map_err(|error| error.to_string())?;
    let (id, answered) = match frame {
        Frame::Data { id, bytes } => {
            place(state, holder, id, bytes)?;
            (id, Answered::Data)
        }
        Frame::Done { id } => (id, Answered::Done),
        Frame::Signal { id, value } => (id, Answered::Signal(value)),
        Frame::Refused { id, status, text } => {
            if status == Status::Storage {
                return Err(text.to_owned());
            }
            (id, Answered::Refused(status, text.to_owned()))
        }
        _ => return Err("it sent what only an origin sends".into()),
    };
    answer(state, holder, id, &answered)
}

/// The machine takes an answer whose bytes are in their place.
fn answer(state: &mut State, holder: HolderId, id: u64, answered: &Answered) -> Result<(), String> {
    let operation = state.origin.operation_of(id);
    if !state.origin.answer(holder, id, answered) {
        return Err("it answered what was not asked".into());
    }
    if let Some(operation) = operation.filter(|one| !state.origin.is_known(*one)) {
        state.memories.remove(&operation);
    }
    Ok(())
}

/// Receives a message into memory of its own.
fn receive(socket: &MessageSocket, until: Instant) -> Result<Option<Came>, MessageError> {
    let message = socket.receive_vec_until(MESSAGE_MAX, until)?;
    Ok(message.map(Came::Message))
}

/// Receives a message whose bytes are most likely those that the memory is pinned for. Waits until `slice` for its beginning.
fn receive_into(
    mut pin: Pin<'_>,
    node: &Node,
    socket: &MessageSocket,
    slice: Instant,
    until: Instant,
) -> Result<Option<Came>, MessageError> {
    let mut head = [0; HEAD_LEN];
    let times = SplitTimes {
        begun: slice,
        whole: until,
        given_up: &node.wanted_back,
    };
    let len = pin.loan.len();
    // SAFETY: it is pinned, so that its operation keeps it and the machine has these slices in flight to this node only: no other thread writes
    // to them.
    let body = unsafe { pin.loan.memory() };
    match socket.receive_split(&mut head, body, &times) {
        Ok(Some(got)) if got == HEAD_LEN + len && is_data_of(&head, pin.id, len) => {
            let mut state = pin.inner.state.lock();
            if let Some(memory) = state.memories.get_mut(&pin.operation) {
                // SAFETY: the message is whole, and has as many bytes as the slices.
                unsafe { memory.repaid(&pin.slices) };
            }
            drop(state);
            Ok(Some(Came::Placed(pin.id)))
        }
        Ok(Some(got)) => {
            let mut message = head[..got.min(HEAD_LEN)].to_vec();
            let rest = &body[..got.saturating_sub(HEAD_LEN)];
            // SAFETY: the message has been received, and its first bytes are in the head.
            message.extend_from_slice(unsafe { rest.assume_init_ref() });
            Ok(Some(Came::Message(message)))
        }
        Ok(None) => Ok(None),
        Err(MessageError::TooLong { .. }) => receive(socket, slice),
        Err(error) => Err(error),
    }
}

/// Puts the bytes of a get in their place.
fn place(state: &mut State, holder: HolderId, id: u64, mut bytes: &[u8]) -> Result<(), String> {
    let Some((operation, slices)) = state.origin.wanted(holder, id) else {
        return Ok(());
    };
    let sum: u64 = slices.iter().map(|slice| slice.range.len()).sum();
    if sum != bytes.len() as u64 {
        return Err(format!(
            "it sent {} bytes where {sum} were asked for",
            bytes.len()
        ));
    }
    if !state.origin.is_open(operation) {
        return Ok(());
    }
    let Some(memory) = state.memories.get_mut(&operation) else {
        return Ok(());
    };
    for slice in slices.iter() {
        let (own, rest) = bytes.split_at(slice.range.len() as usize);
        memory.fill(slice, own);
        bytes = rest;
    }
    Ok(())
}
