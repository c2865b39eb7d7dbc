//! Agents of one process: a node reads what another one of them serves without a socket between them.
//!
//! Both have the same memory, and the pair's handshake was done before: nothing is kept from the other that a socket would keep.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use ropewalk_lane::{Absent, Extent, Provider, ReceiveHalf, local};
use ropewalk_model::Range;

use crate::hung::Calls;
use crate::member::Member;
use crate::sending::Metered;
use crate::shared::Shared;
use crate::streams::{HASH_STREAM, POLL};
use crate::transfer::Transfer;
use crate::waits::Present;

/// What a node does that reads from another one.
const READS: &str = "reads of";

/// All that run. Few: a command has one for each of its local nodes.
static AGENTS: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// An agent of this process begins.
pub(crate) fn enter(shared: &Arc<Shared>) {
    let mut agents = AGENTS.lock();
    agents.retain(|agent| agent.strong_count() > 0);
    agents.push(Arc::downgrade(shared));
}

/// A node's part in a transfer, where its agent is one of this process.
fn part(instance: &str, transfer: &[u8; 16], node: u32) -> Option<Arc<Transfer>> {
    let agents: Vec<_> = AGENTS.lock().iter().filter_map(Weak::upgrade).collect();
    let agent = agents
        .iter()
        .find(|agent| agent.host.instance == instance)?;
    let part = agent.transfers.lock().get(transfer).cloned()?;
    (part.member.node == node).then_some(part)
}

/// A stream of that number from such a node, once it has its plan; `None` where its agent is none of this process, or serves nothing.
pub(crate) fn stream(
    member: &Member,
    (instance, node): (&str, u32),
    index: u32,
) -> Option<Box<dyn ReceiveHalf>> {
    let part = part(instance, &member.id, node)?;
    let settled = loop {
        match part.serving().wait_for(POLL) {
            Some(settled) => break settled?,
            None if member.has_ended() => return None,
            None => {}
        }
    };
    let is_of_data = index < HASH_STREAM;
    let meter = part.serving().meter(settled, is_of_data);
    let observed = part.member.waits.lend().filter(|_| is_of_data);
    let ends = local::Ends::default();
    let lent = Lent {
        meter,
        key: part.member.remember(ends.of_sender()),
        sender: part.member.clone(),
        reads: member.reads.clone(),
        _observed: observed,
    };
    Some(local::receive_half(Arc::new(lent), ends))
}

/// What a node serves, read by the thread of another one.
struct Lent {
    meter: Metered,
    // The sender ends its streams when it ends, this one by its stopper.
    sender: Arc<Member>,
    key: u64,
    // Of the node that reads: its thread waits for the disk of the source.
    reads: Arc<Calls>,
    _observed: Option<Present>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.sender.forget(self.key);
    }
}

impl Provider for Lent {
    fn extent(&self, space: u16, range: Range) -> Result<Extent<'_>, Absent> {
        self.meter.extent(space, range)
    }

    fn in_memory(&self, space: u16, range: Range) -> Result<Option<Extent<'_>>, Absent> {
        self.meter.in_memory(space, range)
    }

    fn read(&self, space: u16, offset: u64, out: &mut [u8]) -> Result<(), Absent> {
        self.reads
            .carry_out(READS, || self.meter.read(space, offset, out))
    }

    fn look(&self, space: u16, offset: u64, out: &mut [u8]) -> Result<(), Absent> {
        self.reads
            .carry_out(READS, || self.meter.look(space, offset, out))
    }
}
