//! What the threads of an origin share: the machine, the sockets, and which thread reads.
//!
//! A thread that waits for an operation reads the socket of the node that owes its oldest answer, by itself, so that a small get wakes no other
//! thread of this process. While one thread reads a socket, others wait for what it finds there. Lock order: reader of a socket, then state.
//!
//! Memory of an operation is touched under the lock of the state, or by the one thread for which it is pinned there (`answers.rs`). Whatever gives
//! memory back, or asks another node for the same bytes, waits until it is not pinned.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use ropewalk_message::{Maker, MessageSocket, Options};
use ropewalk_model::{Range, RangeSet};
use ropewalk_proto::region::frame::{
    Frame, MESSAGE_MAX, PART_LEN, PARTS_MAX, PIECE_MAX, VERSION, put_without_bytes,
};
use ropewalk_proto::region::{
    Failure, HolderId, Kind, Map, Origin, REQUESTS_MAX, Request, Rule, Slice, View, What,
};

use crate::RegionError;
use crate::memory::Memory;

mod answers;

use answers::Reading;

/// Window of the sockets of both ends: all that may be in flight to one end fits, twice, so that neither waits for the other's program.
pub(crate) const MESSAGE_WINDOW: u64 =
    2 * (REQUESTS_MAX as u64) * (PIECE_MAX + (PARTS_MAX * PART_LEN) as u64 + 1024);
/// Longest time of a call where the options have no deadline.
const DEADLINE: Duration = Duration::from_secs(60);
/// Longest wait in one piece. A node whose connections have all failed is noticed after it.
const SLICE: Duration = Duration::from_millis(50);
/// Longest wait for what another thread reads, before the socket is tried again.
const OTHERS: Duration = Duration::from_millis(5);

/// A node of the region.
struct Node {
    addresses: Vec<SocketAddr>,
    /// `None` where it was not reached.
    socket: Option<MessageSocket>,
    /// Of the thread that reads.
    reading: Mutex<Reading>,
    /// Another thread wants memory back that is pinned.
    wanted_back: AtomicBool,
}

pub(crate) struct State {
    pub(crate) origin: Origin,
    /// By operation, while it is under way.
    pub(crate) memories: BTreeMap<u64, Memory>,
    /// Why each node is lost.
    causes: Vec<Option<String>>,
    /// Nodes without a working connection.
    away: Vec<HolderId>,
    /// By node: the operation whose memory the thread that reads its socket fills, without the lock.
    pinned: Vec<Option<u64>>,
}

impl State {
    /// Drops memory of operations that are over.
    pub(crate) fn sweep(&mut self) {
        let origin = &self.origin;
        self.memories
            .retain(|operation, _| origin.is_known(*operation));
    }

    fn is_pinned(&self, operation: u64) -> bool {
        self.pinned.contains(&Some(operation))
    }
}

pub(crate) struct Inner {
    pub(crate) name: String,
    nodes: Vec<Node>,
    pub(crate) state: Mutex<State>,
    changed: Condvar,
    deadline: Duration,
    /// These stay as they are, and are known without the lock.
    pub(crate) size: u64,
    pub(crate) rule: Rule,
    maker: Maker,
}

/// A deadline that has passed.
#[derive(Debug)]
pub(crate) struct Late;

fn listed(addresses: &[SocketAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    texts.join("+")
}

/// Connects to a node and hears what it holds.
fn reach(
    name: &str,
    addresses: &[SocketAddr],
    options: &Options,
    until: Instant,
) -> Result<(MessageSocket, View), String> {
    let socket = MessageSocket::connect(addresses, options).map_err(|error| error.to_string())?;
    let hello = Frame::Hello {
        version: VERSION,
        name,
    };
    let sent = socket.send_start(hello.encode());
    sent.map_err(|error| error.to_string())?;
    let message = match socket.receive_vec_until(MESSAGE_MAX, until) {
        Ok(Some(message)) => message,
        Ok(None) => return Err("it has closed the connection".into()),
        Err(error) => return Err(error.to_string()),
    };
    match Frame::decode(&message) {
        Ok(Frame::Welcome {
            size,
            rule,
            held,
            owned,
        }) => {
            let (held, owned) = (RangeSet::from_ranges(held), RangeSet::from_ranges(owned));
            Ok((
                socket,
                View {
                    size,
                    rule,
                    held,
                    owned,
                },
            ))
        }
        Ok(Frame::Refused { text, .. }) => Err(text.to_owned()),
        Ok(_) => Err("it serves no regions".into()),
        Err(error) => Err(error.to_string()),
    }
}

impl Inner {
    pub(crate) fn connect(
        name: &str,
        nodes: &[Vec<SocketAddr>],
        options: &Options,
    ) -> Result<Self, RegionError> {
        let deadline = options.deadline.unwrap_or(DEADLINE);
        let options = Options {
            window: options.window.max(MESSAGE_WINDOW),
            deadline: Some(deadline),
            ..options.clone()
        };
        let until = end_of(deadline);
        let reached: Vec<Result<(MessageSocket, View), String>> = std::thread::scope(|scope| {
            let options = &options;
            let started: Vec<_> = nodes
                .iter()
                .map(|node| scope.spawn(move || reach(name, node, options, until)))
                .collect();
            let ended = started.into_iter().map(|one| one.join());
            ended
                .map(|one| one.unwrap_or_else(|_| Err("its thread panicked".into())))
                .collect()
        });
        let (mut own, mut views, mut causes) = (Vec::new(), Vec::new(), Vec::new());
        for (addresses, reached) in nodes.iter().zip(reached) {
            let (socket, view, cause) = match reached {
                Ok((socket, view)) => (Some(socket), Some(view), None),
                Err(cause) => (None, None, Some(cause)),
            };
            own.push(Node {
                addresses: addresses.clone(),
                socket,
                reading: Mutex::default(),
                wanted_back: AtomicBool::new(false),
            });
            views.push(view);
            causes.push(cause);
        }
        let label = |at: HolderId| {
            own.get(at)
                .map_or_else(String::new, |node| listed(&node.addresses))
        };
        if views.iter().all(Option::is_none) {
            let all = causes.iter().flatten().enumerate();
            let all: Vec<String> = all
                .map(|(at, cause)| format!("{}: {cause}", label(at)))
                .collect();
            return Err(RegionError::Unreached {
                name: name.into(),
                causes: all.join("; "),
            });
        }
        let map = Map::new(views).map_err(|error| {
            use ropewalk_proto::region::MapError;
            let text = match &error {
                MapError::Differ {
                    first,
                    second,
                    what,
                } => {
                    format!(
                        "{} and {} differ in its {what}",
                        label(*first),
                        label(*second)
                    )
                }
                MapError::TwoOwners {
                    first,
                    second,
                    range,
                } => {
                    format!("{} and {} both own {range}", label(*first), label(*second))
                }
                other => other.to_string(),
            };
            RegionError::Refused {
                name: name.into(),
                text,
            }
        })?;
        let pinned = vec![None; own.len()];
        Ok(Self {
            name: name.into(),
            size: map.size(),
            rule: map.rule(),
            maker: Maker::this(),
            nodes: own,
            state: Mutex::new(State {
                origin: Origin::new(map),
                memories: BTreeMap::new(),
                causes,
                away: Vec::new(),
                pinned,
            }),
            changed: Condvar::new(),
            deadline,
        })
    }

    /// For calls that lock, send or receive: those of a child of the process would take answers of the parent.
    pub(crate) fn here(&self) -> Result<(), RegionError> {
        Ok(self.maker.check()?)
    }

    pub(crate) fn is_here(&self) -> bool {
        self.maker.is_this()
    }

    pub(crate) fn until(&self) -> Instant {
        end_of(self.deadline)
    }

    /// The addresses of a node.
    fn label(&self, holder: HolderId) -> String {
        self.nodes
            .get(holder)
            .map_or_else(String::new, |node| listed(&node.addresses))
    }

    /// Nodes that are lost, and why.
    pub(crate) fn lost(&self) -> Vec<(Vec<SocketAddr>, String)> {
        if !self.is_here() {
            return Vec::new();
        }
        let state = self.state.lock();
        let both = self.nodes.iter().zip(&state.causes);
        both.filter_map(|(node, cause)| Some((node.addresses.clone(), cause.clone()?)))
            .collect()
    }

    /// Addresses of the nodes that take part, and what each holds.
    pub(crate) fn holders(&self) -> Vec<(Vec<SocketAddr>, Vec<std::ops::Range<u64>>)> {
        if !self.is_here() {
            return Vec::new();
        }
        let state = self.state.lock();
        let map = state.origin.map();
        let here = self
            .nodes
            .iter()
            .enumerate()
            .filter(|(at, _)| !map.is_lost(*at));
        here.map(|(at, node)| {
            let held = map.held(at).into_iter().flat_map(RangeSet::iter);
            (
                node.addresses.clone(),
                held.map(|range| range.start..range.end).collect(),
            )
        })
        .collect()
    }

    /// A failure of the machine as an error that names nodes.
    pub(crate) fn error(&self, failure: Failure) -> RegionError {
        let name = self.name.clone();
        match failure {
            Failure::NoHolder { range, holders } => {
                let state = self.state.lock();
                let one = |at: &HolderId| {
                    let cause = state.causes.get(*at).cloned().flatten().unwrap_or_default();
                    format!("{}: {cause}", self.label(*at))
                };
                let nodes: Vec<String> = holders.iter().map(one).collect();
                RegionError::Lost {
                    name,
                    range,
                    nodes: nodes.join("; "),
                }
            }
            Failure::Refused { holder, text, .. } => {
                let text = format!("{} refused: {text}", self.label(holder));
                RegionError::Refused { name, text }
            }
            Failure::NotHeld { .. } | Failure::NoOwner { .. } => {
                let lost: Vec<String> = self
                    .lost()
                    .iter()
                    .map(|(node, cause)| format!("; not reached: {}: {cause}", listed(node)))
                    .collect();
                RegionError::Misuse(format!("region {name}: {failure}{}", lost.concat()))
            }
            other => RegionError::Misuse(format!("region {name}: {other}")),
        }
    }

    /// The error of a call whose deadline passed.
    pub(crate) fn late(&self) -> RegionError {
        let owing = self.state.lock().origin.owing();
        let owing: Vec<String> = owing.into_iter().map(|at| self.label(at)).collect();
        RegionError::Deadline {
            name: self.name.clone(),
            seconds: self.deadline.as_secs(),
            owing: match owing.is_empty() {
                true => "all nodes have answered".into(),
                false => format!("no answer yet from {}", owing.join(", ")),
            },
        }
    }

    /// Begins an operation, when there is space for another one.
    pub(crate) fn begin(
        &self,
        kind: Kind,
        slices: Vec<Slice>,
        memory: Option<Memory>,
        until: Instant,
    ) -> Result<u64, RegionError> {
        self.here()?;
        let space = |state: &mut State| state.origin.has_space().then_some(());
        let mut state = self.state.lock();
        if !state.origin.has_space() {
            drop(state);
            self.until_done(None, until, space)
                .map_err(|Late| self.late())?;
            state = self.state.lock();
        }
        let begun = state.origin.begin(kind, slices);
        match begun {
            Ok(number) => {
                if let Some(memory) = memory {
                    state.memories.insert(number, memory);
                }
                Ok(number)
            }
            Err(failure) => {
                drop(state);
                Err(self.error(failure))
            }
        }
    }

    /// Waits for an operation and takes its result and its memory.
    pub(crate) fn finish(
        &self,
        number: u64,
        until: Instant,
    ) -> Result<Result<(u64, Option<Memory>), RegionError>, Late> {
        if let Err(error) = self.here() {
            return Ok(Err(error));
        }
        let done = |state: &mut State| {
            if state.is_pinned(number) {
                // One of its nodes has refused, and another is sending.
                return None;
            }
            let result = state.origin.take(number)?;
            Some((result, state.memories.remove(&number)))
        };
        let (result, memory) = self.until_done(Some(number), until, done)?;
        Ok(match result {
            Ok(value) => Ok((value, memory)),
            Err(failure) => Err(self.error(failure)),
        })
    }

    /// Gives an operation and its memory up. Waits, 50 ms at most, for a thread that receives into the memory.
    pub(crate) fn forget(&self, number: u64) {
        if !self.is_here() {
            return;
        }
        let mut state = self.state.lock();
        self.unpin(&mut state, |_, operation| operation == number);
        state.memories.remove(&number);
        state.origin.forget(number);
        drop(state);
        self.send_all();
    }

    /// Makes progress until something is so.
    pub(crate) fn until_done<T>(
        &self,
        number: Option<u64>,
        until: Instant,
        mut done: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, Late> {
        loop {
            self.send_all();
            let mut state = self.state.lock();
            if let Some(result) = done(&mut state) {
                return Ok(result);
            }
            let next = state.origin.waits_for(number);
            let away = state.away.clone();
            if Instant::now() >= until {
                return Err(Late);
            }
            if next.is_none() {
                // Another thread is sending what this one waits for, or all its nodes are away.
                self.changed
                    .wait_until(&mut state, until.min(Instant::now() + OTHERS));
            }
            drop(state);
            if let Some((holder, id)) = next {
                self.read(holder, id, until);
            }
            for holder in away {
                self.look_after(holder);
            }
        }
    }

    /// Sends what can be sent now.
    pub(crate) fn send_all(&self) {
        loop {
            let mut state = self.state.lock();
            let Some(request) = state.origin.poll() else {
                return;
            };
            let message = message_of(&request, &state);
            drop(state);
            let Some(socket) = self
                .nodes
                .get(request.holder)
                .and_then(|node| node.socket.as_ref())
            else {
                continue;
            };
            if let Err(error) = socket.send_start(message) {
                self.lose(request.holder, &error.to_string());
            }
        }
    }

    fn lose(&self, holder: HolderId, cause: &str) {
        let mut state = self.state.lock();
        // What it was sending is asked of another node, into the same memory.
        self.unpin(&mut state, |node, _| node == holder);
        state.away.retain(|other| *other != holder);
        if let Some(own @ None) = state.causes.get_mut(holder) {
            *own = Some(cause.to_owned());
        }
        state.origin.lose(holder);
        state.sweep();
        self.changed.notify_all();
    }

    /// Breaks all connections to a node, as if the network had.
    pub(crate) fn break_node(&self, holder: HolderId) {
        if let Some(socket) = self.nodes.get(holder).and_then(|node| node.socket.as_ref()) {
            (0..socket.rails().len()).for_each(|rail| socket.break_rail(rail));
        }
    }
}

/// The end of a time from now on; one that the clock cannot count to is far away.
pub(crate) fn end_of(most: Duration) -> Instant {
    let now = Instant::now();
    let far = || now + Duration::from_secs(1 << 32);
    now.checked_add(most).unwrap_or_else(far)
}

fn message_of(request: &Request, state: &State) -> Vec<u8> {
    let id = request.id;
    match &request.what {
        What::Get(_) => Frame::Get {
            id,
            parts: request.what.parts(),
        }
        .encode(),
        What::Put(slices) => {
            let mut message = put_without_bytes(id, &request.what.parts());
            // An operation that is given up leaves no request behind.
            if let Some(memory) = state.memories.get(&request.operation) {
                slices
                    .iter()
                    .for_each(|slice| memory.append_to(slice, &mut message));
            }
            message
        }
        What::Notify(range, value) => Frame::Notify {
            id,
            range: *range,
            value: *value,
        }
        .encode(),
        What::Wait(range, at_least) => Frame::Wait {
            id,
            range: *range,
            at_least: *at_least,
        }
        .encode(),
        What::Forget => Frame::Forget { id }.encode(),
    }
}

/// A range of which no bytes are in memory.
pub(crate) fn announced(range: &std::ops::Range<u64>) -> Result<Vec<Slice>, RegionError> {
    if range.is_empty() {
        let text = "an empty range cannot be announced or waited for";
        return Err(RegionError::Misuse(text.into()));
    }
    let range = Range::new(range.start, range.end);
    Ok(vec![Slice { range, local: 0 }])
}

/// Slices of ranges whose bytes are one after the other in memory, and how many bytes these are.
pub(crate) fn slices(ranges: &[std::ops::Range<u64>]) -> Result<(Vec<Slice>, usize), RegionError> {
    let mut local = 0_u64;
    let mut found = Vec::with_capacity(ranges.len());
    for range in ranges {
        if range.end < range.start {
            let text = format!(
                "the range {}..{} ends before it starts",
                range.start, range.end
            );
            return Err(RegionError::Misuse(text));
        }
        let range = Range::new(range.start, range.end);
        found.push(Slice { range, local });
        let sum = local.checked_add(range.len());
        local =
            sum.ok_or_else(|| RegionError::Misuse("the ranges have more than 2^64 bytes".into()))?;
    }
    let len = usize::try_from(local)
        .ok()
        .filter(|len| isize::try_from(*len).is_ok());
    let text = || RegionError::Misuse(format!("{local} bytes do not fit in memory"));
    Ok((found, len.ok_or_else(text)?))
}
