//! Operations of one origin: which requests they become, when they are complete, and what the loss of a node changes.
//!
//! * A **get** is complete when all its bytes have arrived. What a lost node has not answered goes to another holder.
//! * A **put**, or a notification, is complete when each node that it is written to has acknowledged it, or is lost; if none has
//!   acknowledged some bytes and all are lost, it has failed.
//! * A **fence** separates operations: those begun after it leave only when the puts and notifications before it are complete.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ropewalk_model::Range;

use super::failure::Failure;
use super::frame::{PARTS_MAX, PIECE_MAX, Part, Status};
use super::map::Map;
use super::rule::{HolderId, Rule};

/// Operations of one origin that are not yet taken; a driver waits before it begins more.
pub const OPERATIONS_MAX: usize = 4096;

/// Operations that are looked at when those before them have to wait for busy nodes.
const LOOK_AHEAD: usize = 64;

/// Some bytes of an operation: where in the region, and where in the memory that it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// In the region.
    pub range: Range,
    /// First byte in memory.
    pub local: u64,
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes are read.
    Get,
    /// Bytes are written.
    Put,
    /// A range gets a value.
    Notify(u64),
    /// A range is waited for until it has this value.
    Wait(u64),
}

impl Kind {
    fn is_write(self) -> bool {
        matches!(self, Self::Put | Self::Notify(_))
    }
}

/// What is sent to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// To which node.
    pub holder: HolderId,
    /// Its number.
    pub id: u64,
    /// Operation that it belongs to.
    pub operation: u64,
    /// What it asks for.
    pub what: What,
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// These bytes.
    Get(Arc<[Slice]>),
    /// That these bytes are written.
    Put(Arc<[Slice]>),
    /// That the range is announced.
    Notify(Range, u64),
    /// The announcement of a range.
    Wait(Range, u64),
    /// Nothing any more.
    Forget,
}

/// Slices as parts of a message.
impl What {
    /// The parts of a get or a put; none of others.
    #[must_use]
    pub fn parts(&self) -> Vec<Part> {
        let (Self::Get(slices) | Self::Put(slices)) = self else {
            return Vec::new();
        };
        let parts = slices.iter().map(|slice| Part {
            offset: slice.range.start,
            len: slice.range.len() as u32,
        });
        parts.collect()
    }
}

/// What a node answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered {
    /// The bytes of a get, which are in their place.
    Data,
    /// A put or a notification is done.
    Done,
    /// The value that was waited for.
    Signal(u64),
    /// It is refused.
    Refused(Status, String),
}

struct Operation {
    kind: Kind,
    epoch: u64,
    /// Not in a request.
    rest: VecDeque<Slice>,
    /// Requests in flight.
    sent: BTreeSet<u64>,
    result: Option<Result<u64, Failure>>,
    /// Its result is wanted by a flush only.
    is_detached: bool,
}

struct Sent {
    holder: HolderId,
    operation: u64,
    what: What,
    bytes: u64,
    /// Of a put or a notification: the piece, which is the number of its first request.
    piece: u64,
}

/// A piece of a put on its way to several nodes.
struct Piece {
    left: usize,
    acknowledged: usize,
}

/// One origin of a region.
pub struct Origin {
    map: Map,
    operations: BTreeMap<u64, Operation>,
    /// Those with a rest.
    unsent: BTreeSet<u64>,
    /// Puts and notifications that are not complete.
    writes: BTreeSet<u64>,
    requests: BTreeMap<u64, Sent>,
    pieces: BTreeMap<u64, Piece>,
    outbox: VecDeque<Request>,
    next_operation: u64,
    next_request: u64,
    epoch: u64,
    /// Of a write whose result no caller takes, until the next flush.
    failed: Option<Failure>,
}

impl Origin {
    /// An origin that has done nothing.
    #[must_use]
    pub fn new(map: Map) -> Self {
        Self {
            map,
            operations: BTreeMap::new(),
            unsent: BTreeSet::new(),
            writes: BTreeSet::new(),
            requests: BTreeMap::new(),
            pieces: BTreeMap::new(),
            outbox: VecDeque::new(),
            next_operation: 0,
            next_request: 1,
            epoch: 0,
            failed: None,
        }
    }

    /// The nodes.
    #[must_use]
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// Whether another operation may begin.
    #[must_use]
    pub fn has_space(&self) -> bool {
        self.operations.len() < OPERATIONS_MAX
    }

    /// Begins an operation and gives its number. A notification begins with a fence.
    ///
    /// * `slices`: of a get, their memory does not overlap; of a put, where ranges overlap any of the bytes given may stay. One of a notification or a
    ///   wait. Empty ones are left out.
    ///
    /// # Errors
    /// [`Failure`] of what can never be done; nothing has begun then.
    pub fn begin(&mut self, kind: Kind, mut slices: Vec<Slice>) -> Result<u64, Failure> {
        if kind == Kind::Put && self.map.rule() == Rule::ReadOnly {
            return Err(Failure::ReadOnly);
        }
        slices.retain(|slice| !slice.range.is_empty());
        for slice in &slices {
            self.map.check(slice.range, kind.is_write())?;
        }
        slices.sort_by_key(|slice| slice.range.start);
        if matches!(kind, Kind::Notify(_)) {
            self.fence();
        }
        if kind == Kind::Put {
            slices.iter().for_each(|slice| self.map.wrote(slice.range));
        }
        let number = self.next_operation;
        self.next_operation += 1;
        let is_empty = slices.is_empty();
        self.operations.insert(
            number,
            Operation {
                kind,
                epoch: self.epoch,
                rest: slices.into(),
                sent: BTreeSet::new(),
                result: is_empty.then_some(Ok(0)),
                is_detached: false,
            },
        );
        if !is_empty {
            self.unsent.insert(number);
            if kind.is_write() {
                self.writes.insert(number);
            }
        }
        Ok(number)
    }

    /// What is begun after this leaves when all puts and notifications before it are complete.
    pub fn fence(&mut self) {
        if !self.writes.is_empty() {
            self.epoch += 1;
        }
    }

    /// The number of the next operation: a flush waits for those below it.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.next_operation
    }

    /// Whether all puts and notifications below a mark are complete.
    #[must_use]
    pub fn is_flushed(&self, mark: u64) -> bool {
        self.writes.first().is_none_or(|first| *first >= mark)
    }

    /// Why a write failed whose result no caller took, once.
    pub fn take_failed(&mut self) -> Option<Failure> {
        self.failed.take()
    }

    fn is_released(&self, epoch: u64) -> bool {
        let first = self
            .writes
            .first()
            .and_then(|first| self.operations.get(first));
        first.is_none_or(|first| first.epoch >= epoch)
    }

    /// The next request to be sent.
    pub fn poll(&mut self) -> Option<Request> {
        loop {
            if let Some(request) = self.outbox.pop_front() {
                return Some(request);
            }
            if !self.cut_next() {
                return None;
            }
        }
    }

    /// Makes the next requests; `false` when none can be made now.
    fn cut_next(&mut self) -> bool {
        let mut from = 0;
        for _ in 0..LOOK_AHEAD {
            let Some(&number) = self.unsent.range(from..).next() else {
                return false;
            };
            from = number + 1;
            let Some(operation) = self.operations.get(&number) else {
                self.unsent.remove(&number);
                continue;
            };
            let kind = operation.kind;
            // Later operations have no earlier epoch.
            if !self.is_released(operation.epoch) {
                return false;
            }
            let cut = match kind {
                Kind::Get => self.cut_get(number),
                Kind::Put | Kind::Notify(_) => self.cut_write(number, kind),
                Kind::Wait(at_least) => self.cut_wait(number, at_least),
            };
            match cut {
                Ok(true) => return true,
                Ok(false) => {}
                Err(failure) => self.finish(number, Err(failure)),
            }
        }
        false
    }

    /// The next slice of an operation, no longer than `most`.
    fn front(&self, number: u64, most: u64) -> Option<Slice> {
        let slice = *self.operations.get(&number)?.rest.front()?;
        let end = slice.range.end.min(slice.range.start.saturating_add(most));
        Some(Slice {
            range: Range::new(slice.range.start, end),
            ..slice
        })
    }

    /// Takes so many bytes of the first slice.
    fn advance(&mut self, number: u64, bytes: u64) {
        let Some(operation) = self.operations.get_mut(&number) else {
            return;
        };
        if let Some(first) = operation.rest.front_mut() {
            first.range.start += bytes;
            first.local += bytes;
            if first.range.is_empty() {
                operation.rest.pop_front();
            }
        }
        if operation.rest.is_empty() {
            self.unsent.remove(&number);
        }
    }

    fn cut_get(&mut self, number: u64) -> Result<bool, Failure> {
        let mut slices: Vec<Slice> = Vec::new();
        let (mut bytes, mut target) = (0, None);
        while slices.len() < PARTS_MAX
            && bytes < PIECE_MAX
            && let Some(slice) = self.front(number, PIECE_MAX - bytes)
        {
            let range = match target {
                None => {
                    let Some(stretch) = self.map.for_get(slice.range)? else {
                        return Ok(false);
                    };
                    target = stretch.targets.first().copied();
                    stretch.range
                }
                Some(holder) => match self.map.get_from(holder, slice.range) {
                    Some(range) => range,
                    None => break,
                },
            };
            bytes += range.len();
            slices.push(Slice { range, ..slice });
            self.advance(number, range.len());
        }
        let Some(holder) = target else {
            return Ok(false);
        };
        self.emit(number, &[holder], &What::Get(slices.into()), bytes);
        Ok(true)
    }

    fn cut_write(&mut self, number: u64, kind: Kind) -> Result<bool, Failure> {
        if let Kind::Notify(value) = kind {
            let Some(slice) = self.front(number, u64::MAX) else {
                return Ok(false);
            };
            let Some(stretch) = self.map.for_put(slice.range)? else {
                return Ok(false);
            };
            self.advance(number, stretch.range.len());
            self.emit(
                number,
                &stretch.targets,
                &What::Notify(stretch.range, value),
                0,
            );
            return Ok(true);
        }
        let mut slices: Vec<Slice> = Vec::new();
        let mut bytes = 0;
        let mut targets = Vec::new();
        while slices.len() < PARTS_MAX
            && bytes < PIECE_MAX
            && let Some(slice) = self.front(number, PIECE_MAX - bytes)
        {
            let stretch = match self.map.for_put(slice.range) {
                Ok(Some(stretch)) if targets.is_empty() || targets == stretch.targets => stretch,
                // Its turn is next.
                _ if !slices.is_empty() => break,
                Ok(_) => return Ok(false),
                Err(failure) => return Err(failure),
            };
            targets = stretch.targets;
            bytes += stretch.range.len();
            slices.push(Slice {
                range: stretch.range,
                ..slice
            });
            self.advance(number, stretch.range.len());
        }
        self.emit(number, &targets, &What::Put(slices.into()), bytes);
        Ok(true)
    }

    fn cut_wait(&mut self, number: u64, at_least: u64) -> Result<bool, Failure> {
        let Some(slice) = self.front(number, u64::MAX) else {
            return Ok(false);
        };
        let Some(holder) = self.map.for_wait(slice.range)? else {
            return Ok(false);
        };
        self.advance(number, slice.range.len());
        self.emit(number, &[holder], &What::Wait(slice.range, at_least), 0);
        Ok(true)
    }

    fn emit(&mut self, number: u64, targets: &[HolderId], what: &What, bytes: u64) {
        let piece = self.next_request;
        let is_write = matches!(what, What::Put(_) | What::Notify(..));
        if is_write {
            let left = targets.len();
            self.pieces.insert(
                piece,
                Piece {
                    left,
                    acknowledged: 0,
                },
            );
        }
        for &holder in targets {
            let id = self.next_request;
            self.next_request += 1;
            if !matches!(what, What::Wait(..)) {
                self.map.sent(holder, bytes);
            }
            let what = what.clone();
            if let Some(operation) = self.operations.get_mut(&number) {
                operation.sent.insert(id);
            }
            self.requests.insert(
                id,
                Sent {
                    holder,
                    operation: number,
                    what: what.clone(),
                    bytes,
                    piece,
                },
            );
            self.outbox.push_back(Request {
                holder,
                id,
                operation: number,
                what,
            });
        }
    }

    fn take_request(&mut self, id: u64) -> Option<Sent> {
        let sent = self.requests.remove(&id)?;
        if !matches!(sent.what, What::Wait(..)) {
            self.map.answered(sent.holder, sent.bytes);
        }
        if let Some(operation) = self.operations.get_mut(&sent.operation) {
            operation.sent.remove(&id);
        }
        Some(sent)
    }

    /// The operation and the slices of a get in flight; the operation may be over, or forgotten. `None` where the node owes no data
    /// of this number.
    #[must_use]
    pub fn wanted(&self, holder: HolderId, id: u64) -> Option<(u64, Arc<[Slice]>)> {
        let sent = self
            .requests
            .get(&id)
            .filter(|sent| sent.holder == holder)?;
        match &sent.what {
            What::Get(slices) => Some((sent.operation, slices.clone())),
            _ => None,
        }
    }

    /// The next bytes that a node owes, as it answers requests in their order, waits apart: number of the request, operation and slices. `None` where
    /// another answer is due before.
    #[must_use]
    pub fn next_data(&self, holder: HolderId) -> Option<(u64, u64, Arc<[Slice]>)> {
        let owed = |(_, sent): &(&u64, &Sent)| {
            sent.holder == holder && !matches!(sent.what, What::Wait(..))
        };
        let (id, sent) = self.requests.iter().find(owed)?;
        match &sent.what {
            What::Get(slices) => Some((*id, sent.operation, slices.clone())),
            _ => None,
        }
    }

    /// The operation of a request in flight.
    #[must_use]
    pub fn operation_of(&self, id: u64) -> Option<u64> {
        Some(self.requests.get(&id)?.operation)
    }

    /// Whether an operation is under way, or its result was not taken.
    #[must_use]
    pub fn is_known(&self, operation: u64) -> bool {
        self.operations.contains_key(&operation)
    }

    /// Whether the operation still wants what its requests get.
    #[must_use]
    pub fn is_open(&self, operation: u64) -> bool {
        self.operations
            .get(&operation)
            .is_some_and(|operation| operation.result.is_none())
    }

    /// Takes an answer. `false`: the node answered what was not asked, which breaks the protocol. Answers to requests that went to
    /// another node meanwhile, or were withdrawn, are ignored.
    pub fn answer(&mut self, holder: HolderId, id: u64, answered: &Answered) -> bool {
        let Some(sent) = self.requests.get(&id) else {
            return id < self.next_request;
        };
        let fits = sent.holder == holder
            && match (answered, &sent.what) {
                (Answered::Data, What::Get(_))
                | (Answered::Done, What::Put(_) | What::Notify(..))
                | (Answered::Refused(..), _) => true,
                (Answered::Signal(value), What::Wait(_, at_least)) => value >= at_least,
                _ => false,
            };
        if !fits {
            return false;
        }
        let Some(sent) = self.take_request(id) else {
            return false;
        };
        match answered {
            Answered::Refused(status, text) => {
                self.pieces.remove(&sent.piece);
                let (status, text) = (*status, text.clone());
                self.finish(
                    sent.operation,
                    Err(Failure::Refused {
                        holder,
                        status,
                        text,
                    }),
                );
            }
            Answered::Signal(value) => {
                if let What::Wait(range, _) = sent.what {
                    self.map.wrote(range);
                }
                self.finish(sent.operation, Ok(*value));
            }
            Answered::Done => {
                self.settle(sent.piece, true);
                self.finish_if_complete(sent.operation);
            }
            Answered::Data => self.finish_if_complete(sent.operation),
        }
        true
    }

    /// One node has acknowledged a piece, or is lost. `false`: no node has it.
    fn settle(&mut self, piece: u64, is_acknowledged: bool) -> bool {
        let Some(one) = self.pieces.get_mut(&piece) else {
            return true;
        };
        one.left = one.left.saturating_sub(1);
        one.acknowledged += usize::from(is_acknowledged);
        if one.left > 0 {
            return true;
        }
        let is_kept = one.acknowledged > 0;
        self.pieces.remove(&piece);
        is_kept
    }

    fn finish_if_complete(&mut self, number: u64) {
        let complete =
            |operation: &Operation| operation.rest.is_empty() && operation.sent.is_empty();
        if self.operations.get(&number).is_some_and(complete) {
            self.finish(number, Ok(0));
        }
    }

    fn finish(&mut self, number: u64, result: Result<u64, Failure>) {
        self.unsent.remove(&number);
        self.writes.remove(&number);
        if result.is_err() {
            self.hold_back(number);
        }
        let Some(operation) = self.operations.get_mut(&number) else {
            return;
        };
        if operation.result.is_some() {
            return;
        }
        operation.rest.clear();
        if operation.is_detached {
            if let Err(failure) = result {
                self.failed.get_or_insert(failure);
            }
            self.operations.remove(&number);
            return;
        }
        operation.result = Some(result);
    }

    /// Takes the result of an operation, once: of a wait the value. `None` while it is under way.
    pub fn take(&mut self, number: u64) -> Option<Result<u64, Failure>> {
        self.operations.get(&number)?.result.as_ref()?;
        self.operations.remove(&number)?.result
    }

    /// A write goes on, and a flush reports its failure.
    pub fn detach(&mut self, number: u64) {
        match self.take(number) {
            Some(Err(failure)) => drop(self.failed.get_or_insert(failure)),
            Some(Ok(_)) => {}
            None => {
                if let Some(operation) = self.operations.get_mut(&number) {
                    operation.is_detached = true;
                }
            }
        }
    }

    /// Gives an operation up: what is in flight is ignored when it arrives, and what has not left does not.
    pub fn forget(&mut self, number: u64) {
        self.unsent.remove(&number);
        self.writes.remove(&number);
        self.hold_back(number);
        let Some(operation) = self.operations.remove(&number) else {
            return;
        };
        for id in operation.sent {
            // Others are counted until they are answered: the node works on them.
            if matches!(self.requests.get(&id), Some(sent) if matches!(sent.what, What::Wait(..)))
                && let Some(sent) = self.take_request(id)
            {
                let (holder, what) = (sent.holder, What::Forget);
                self.outbox.push_back(Request {
                    holder,
                    id,
                    operation: number,
                    what,
                });
            }
        }
    }

    /// Requests of an operation that have not left do not leave any more.
    fn hold_back(&mut self, number: u64) {
        let mut ids = Vec::new();
        self.outbox.retain(|request| {
            let is_own = request.operation == number && request.what != What::Forget;
            ids.extend(is_own.then_some(request.id));
            !is_own
        });
        for id in ids {
            if let Some(sent) = self.take_request(id) {
                self.settle(sent.piece, false);
            }
        }
    }

    /// The node whose answer an operation waits for: of its oldest request, else of the oldest of all. `None`: no answer is due.
    #[must_use]
    pub fn waits_for(&self, number: Option<u64>) -> Option<(HolderId, u64)> {
        let own = number.and_then(|number| self.operations.get(&number)?.sent.first());
        let (id, sent) = match own {
            Some(id) => self.requests.get_key_value(id)?,
            None => self.requests.first_key_value()?,
        };
        Some((sent.holder, *id))
    }

    /// Whether a request is in flight to a node.
    #[must_use]
    pub fn is_in_flight(&self, holder: HolderId, id: u64) -> bool {
        self.requests
            .get(&id)
            .is_some_and(|sent| sent.holder == holder)
    }

    /// Nodes that owe answers.
    #[must_use]
    pub fn owing(&self) -> BTreeSet<HolderId> {
        self.requests.values().map(|sent| sent.holder).collect()
    }

    /// A node's connection works, or does not for now. Gets that another holder can serve go there.
    pub fn set_away(&mut self, holder: HolderId, is_away: bool) {
        if self.map.set_away(holder, is_away) && is_away {
            self.give_back(holder, false);
        }
    }

    /// A node is lost for good: its gets go to other holders, its puts count as done where another node has them. Says whether that is news.
    pub fn lose(&mut self, holder: HolderId) -> bool {
        let is_news = self.map.lose(holder);
        if is_news {
            self.outbox.retain(|request| request.holder != holder);
            self.give_back(holder, true);
        }
        is_news
    }

    /// Takes requests back from a node: all of them, or gets and waits that another serves.
    fn give_back(&mut self, holder: HolderId, all: bool) {
        let own = self
            .requests
            .iter()
            .filter(|(_, sent)| sent.holder == holder);
        let without = |range| self.map.is_served_without(holder, range);
        let goes = |sent: &Sent| match &sent.what {
            _ if all => true,
            What::Get(slices) => slices.iter().all(|slice| without(slice.range)),
            What::Wait(range, _) => without(*range) && self.map.rule() != Rule::Owner,
            _ => false,
        };
        let ids: Vec<u64> = own
            .filter(|(_, sent)| goes(sent))
            .map(|(id, _)| *id)
            .collect();
        if !all {
            let is_kept = |request: &Request| !ids.contains(&request.id);
            self.outbox.retain(is_kept);
        }
        for id in ids {
            let Some(sent) = self.take_request(id) else {
                continue;
            };
            match sent.what {
                What::Get(slices) => self.again(sent.operation, slices.iter().copied()),
                What::Wait(range, _) => {
                    self.again(sent.operation, [Slice { range, local: 0 }].into_iter());
                }
                What::Put(_) | What::Notify(..) | What::Forget => {
                    if self.settle(sent.piece, false) {
                        self.finish_if_complete(sent.operation);
                    } else {
                        let failure = self.nowhere(&sent.what);
                        self.finish(sent.operation, Err(failure));
                    }
                }
            }
        }
    }

    fn nowhere(&self, what: &What) -> Failure {
        let range = match what {
            What::Put(slices) => slices.first().map(|slice| slice.range),
            What::Notify(range, _) => Some(*range),
            _ => None,
        };
        let range = range.unwrap_or_default();
        Failure::NoHolder {
            range,
            holders: self.map.holders_of(range.start),
        }
    }

    fn again(&mut self, number: u64, slices: impl DoubleEndedIterator<Item = Slice>) {
        let Some(operation) = self.operations.get_mut(&number) else {
            return;
        };
        if operation.result.is_some() {
            return;
        }
        for slice in slices.rev() {
            operation.rest.push_front(slice);
        }
        self.unsent.insert(number);
    }
}
