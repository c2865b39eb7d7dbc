//! Agents of one process: a node reads what another one of them serves without a socket between them.
//!
//! Both have the same memory, and the pair's handshake was done before: nothing is kept from the other that a socket would keep.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use ropewalk_lane::{Absent, Extent, Provider, ReceiveHalf, local};
use ropewalk_model::Range;

use crate::hung::{Calls, READS};
use crate::member::Member;
use crate::sending::{Metered, Serving};
use crate::streams::{HASH_STREAM, POLL};
use crate::waits::Present;

/// What one node serves in one transfer.
struct Part {
    instance: String,
    member: Weak<Member>,
    serving: Weak<Serving>,
}

/// Those of all agents of this process. Few: a command has one for each of its local nodes.
static PARTS: Mutex<Vec<Part>> = Mutex::new(Vec::new());

/// A node of the agent of that name takes part in a transfer.
pub(crate) fn enter(instance: &str, member: &Arc<Member>, serving: &Arc<Serving>) {
    let mut parts = PARTS.lock();
    parts.retain(|part| part.serving.strong_count() > 0);
    parts.push(Part {
        instance: instance.to_owned(),
        member: Arc::downgrade(member),
        serving: Arc::downgrade(serving),
    });
}

/// A node's part in a transfer, where its agent is one of this process.
fn part(instance: &str, transfer: &[u8; 16], node: u32) -> Option<(Arc<Member>, Arc<Serving>)> {
    let parts = PARTS.lock();
    parts
        .iter()
        .filter(|part| part.instance == instance)
        .filter_map(|part| Some((part.member.upgrade()?, part.serving.upgrade()?)))
        .find(|(member, _)| member.id == *transfer && member.node == node)
}

/// A stream of that number from such a node, once it has its plan; `None` where its agent is none of this process, or serves nothing.
pub(crate) fn stream(
    member: &Member,
    (instance, node): (&str, u32),
    index: u32,
) -> Option<Box<dyn ReceiveHalf>> {
    let (sender, serving) = part(instance, &member.id, node)?;
    let settled = loop {
        match serving.wait_for(POLL) {
            Some(settled) => break settled?,
            None if member.has_ended() => return None,
            None => {}
        }
    };
    let is_of_data = index < HASH_STREAM;
    let meter = serving.meter(settled, is_of_data);
    let observed = sender.waits.lend().filter(|_| is_of_data);
    let ends = local::Ends::default();
    let lent = Lent {
        meter,
        key: sender.remember(ends.of_sender()),
        sender,
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

    fn is_hole(&self, space: u16, range: Range) -> bool {
        let look = || self.meter.is_hole(space, range);
        self.reads
            .carry_out(READS, self.meter.place(space, range.start), look)
    }

    fn skipped(&self, space: u16, range: Range) {
        self.meter.skipped(space, range);
    }

    fn read(&self, space: u16, offset: u64, out: &mut [u8]) -> Result<(), Absent> {
        let read = || self.meter.read(space, offset, out);
        self.reads
            .carry_out(READS, self.meter.place(space, offset), read)
    }

    fn look(&self, space: u16, offset: u64, out: &mut [u8]) -> Result<(), Absent> {
        let look = || self.meter.look(space, offset, out);
        self.reads
            .carry_out(READS, self.meter.place(space, offset), look)
    }

    fn granted(&self, units: &mut dyn Iterator<Item = (u16, Range)>) {
        self.meter.granted(units);
    }

    fn is_begun(&self, space: u16, range: Range) -> bool {
        self.meter.is_begun(space, range)
    }

    fn hashed(&self, space: u16, range: Range, digest: &[u8; 32]) {
        self.meter.hashed(space, range, digest);
    }

    fn hash(
        &self,
        space: u16,
        range: Range,
        read: &mut dyn FnMut() -> Result<[u8; 32], Absent>,
    ) -> Result<[u8; 32], Absent> {
        // Another node's thread may read the unit.
        let hash = || self.meter.hash(space, range, read);
        self.reads
            .carry_out(READS, self.meter.place(space, range.start), hash)
    }

    fn is_hashed(&self, space: u16, range: Range) -> bool {
        self.meter.is_hashed(space, range)
    }
}
