//! Units received twice: a later copy must be equal to the first one, and must not change what that one left in the sink.
//!
//! A stream asks whether a unit is delivered and then writes. Where two streams carry the unit, the second may write after the
//! first was counted. So writes are announced: when a unit is counted while another stream writes it, or has written to it since
//! both carry it, the sink is read again before anything is called complete.

use std::collections::BTreeMap;

use ropewalk_model::{Instant, Range, RangeSet};

use super::replicas::Difference;
use super::{Event, Receiving};
use crate::ledger::LaneId;

/// A stream that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer {
    /// The lane it belongs to.
    pub lane: LaneId,
    /// Its number; two streams of one lane have different ones.
    pub stream: u64,
}

/// The first copy of a unit of which others are under way.
#[derive(Clone, Copy, Debug)]
struct First {
    range: Range,
    digest: [u8; 32],
    node: u32,
    // Copies that have neither come nor ended otherwise.
    open: usize,
}

/// See the module documentation. Bounded by what is in transit.
#[derive(Debug, Default)]
pub(super) struct Copies {
    // By the unit's start.
    firsts: BTreeMap<u64, First>,
    // Writes under way: one a stream at most.
    writing: Vec<(Writer, Range)>,
    // Who has written to a unit since two carry it, by the unit's start.
    wrote: BTreeMap<u64, (Range, Vec<Writer>)>,
    // Units that are to be read again, and how they should be.
    rereads: Vec<(Range, u32, u32)>,
    has_differed: bool,
}

impl Copies {
    /// Whether the sink is as it was counted, as far as is known.
    pub fn is_settled(&self) -> bool {
        self.rereads.is_empty()
    }

    /// A unit is carried a second time from now on.
    pub fn doubled(&mut self, range: Range) {
        self.wrote.entry(range.start).or_insert((range, Vec::new()));
    }

    /// Another stream that writes the range, or has written to it since two carry it.
    fn rival(&self, range: Range, than: Writer) -> Option<Writer> {
        let wrote = self.wrote.get(&range.start);
        let wrote = wrote.into_iter().flat_map(|(_, writers)| writers.iter());
        let writing = self.writing.iter();
        let writing = writing.filter(|(_, part)| part.overlaps(range));
        let mut all = wrote.chain(writing.map(|(writer, _)| writer));
        all.find(|writer| **writer != than).copied()
    }

    /// A unit was counted, copies of which are still under way on so many streams.
    fn counted(&mut self, range: Range, digest: Option<[u8; 32]>, node: u32, open: usize) {
        self.wrote.remove(&range.start);
        if let Some(digest) = digest.filter(|_| open > 0) {
            let first = First {
                range,
                digest,
                node,
                open,
            };
            self.firsts.insert(range.start, first);
        }
    }

    /// A copy has come, or will not; the first one, if its digest is kept.
    fn ended(&mut self, range: Range) -> Option<First> {
        let first = self.firsts.get_mut(&range.start);
        let first = first.filter(|first| first.range == range)?;
        first.open -= 1;
        let found = *first;
        if found.open == 0 {
            self.firsts.remove(&range.start);
        }
        Some(found)
    }
}

impl Receiving {
    /// Bytes that a stream writes, or that are to be read again.
    pub(in crate::node) fn unsettled(&self) -> RangeSet {
        let writing = self.copies.writing.iter().map(|(_, range)| *range);
        let rereads = self.copies.rereads.iter().map(|(range, ..)| *range);
        RangeSet::from_ranges(writing.chain(rereads))
    }

    /// A stream is about to write bytes. False when they are delivered already, and so are not to be written: the file may
    /// have its final name by now. Otherwise [`Receiving::end_write`] follows.
    pub fn begin_write(&mut self, writer: Writer, range: Range) -> bool {
        if self.is_delivered(range) {
            return false;
        }
        self.copies.writing.push((writer, range));
        true
    }

    /// The write that was announced has ended, well or not. True when a lane waits for that.
    pub fn end_write(&mut self, writer: Writer, range: Range) -> bool {
        self.copies
            .writing
            .retain(|write| *write != (writer, range));
        let before = self.copies.wrote.range_mut(..=range.start).next_back();
        if let Some((_, (unit, writers))) = before
            && unit.contains(range.start)
            && !writers.contains(&writer)
        {
            writers.push(writer);
        }
        !self.copies.rereads.is_empty()
    }

    /// Whether another stream is just writing some of these bytes.
    pub fn is_written_by_others(&self, writer: Writer, range: Range) -> bool {
        let mut writes = self.copies.writing.iter();
        writes.any(|(other, part)| *other != writer && part.overlaps(range))
    }

    /// As [`Receiving::handle_unit`], for a sink. Returns whether the unit was the first copy, and whether the sink has to
    /// be read again, which [`Receiving::handle_reread`] answers.
    pub fn handle_written_unit(
        &mut self,
        writer: Writer,
        range: Range,
        digest: Option<[u8; 32]>,
        now: Instant,
    ) -> (bool, bool) {
        let rival = match digest {
            Some(_) if !self.is_delivered(range) => self.copies.rival(range, writer),
            _ => None,
        };
        if let Some(rival) = rival {
            let origin = |lane| self.origin_of(lane, range);
            let nodes = (origin(writer.lane), origin(rival.lane));
            // Before the unit counts: nothing is complete until it was read.
            self.copies.rereads.push((range, nodes.0, nodes.1));
        }
        let is_first = self.handle_unit(writer.lane, range, digest, now);
        if !is_first && rival.is_some() {
            self.copies.rereads.retain(|reread| reread.0 != range);
            self.check_progress();
        }
        (is_first, is_first && rival.is_some())
    }

    /// The sink holds what was counted, or not.
    pub fn handle_reread(&mut self, range: Range, is_right: bool) {
        let at = self.copies.rereads.iter().position(|r| r.0 == range);
        let Some((_, one, other)) = at.map(|at| self.copies.rereads.swap_remove(at)) else {
            return;
        };
        match is_right {
            true => self.check_progress(),
            false => self.differ(Difference::between(self, range, &[one], &[other])),
        }
    }

    /// The first copy of a unit came; `others` carry one, too.
    pub(super) fn first_copy(
        &mut self,
        lane: LaneId,
        range: Range,
        digest: Option<[u8; 32]>,
        others: usize,
    ) {
        let node = self.origin_of(lane, range);
        self.copies.counted(range, digest, node, others);
    }

    /// A later copy of a unit came: it must be equal to the first.
    pub(super) fn later_copy(&mut self, lane: LaneId, range: Range, digest: Option<[u8; 32]>) {
        let Some((first, digest)) = self.copies.ended(range).zip(digest) else {
            return;
        };
        // It may be a copy of the first one; and whose hash it was compared with is forgotten.
        if self.is_relayed(lane) {
            return;
        }
        let node = self.node_of(lane);
        if first.digest != digest {
            let difference = Difference::between(self, range, &[first.node], &[node]);
            self.differ(difference);
        } else if first.node != node {
            self.replicas.count(range);
        }
    }

    /// A copy of a unit will not come.
    pub(super) fn no_copy(&mut self, range: Range) {
        self.copies.ended(range);
    }

    pub(super) fn node_of(&self, lane: LaneId) -> u32 {
        self.pairs[lane].sender
    }

    /// Contents differ: the node's part has failed, also when all had come: what is complete may have no name yet.
    pub(super) fn differ(&mut self, difference: Difference) {
        self.finished = true;
        if !std::mem::replace(&mut self.copies.has_differed, true) {
            self.events.push_back(Event::Differ(difference));
        }
    }
}
