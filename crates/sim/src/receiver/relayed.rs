//! What fellow receivers announce to a receiver, and the hashes that it asks holders for.
//!
//! Bytes of rows are nowhere: the hash of a unit is made of its range, and a lying node's is another one. Of trees it is that of what a
//! holder has.

use std::collections::BTreeSet;

use ropewalk_model::{Instant, Range};
use ropewalk_proto::control::Verify;
use ropewalk_proto::coordinator::Relay;
use ropewalk_proto::node::fetch::Ask;
use ropewalk_proto::node::{StreamId, with_origins};
use ropewalk_proto::wire::HeldRange;

use super::Receiver;
use crate::agent::Around;

/// Hashes that holders were asked for.
#[derive(Debug, Default)]
pub(super) struct Asked {
    // Holders to which a connection is open.
    open: BTreeSet<u32>,
    // Answers under way.
    answers: Vec<(Instant, u32, Range)>,
    // Announcements under way.
    announced: Vec<(Instant, StreamId, Vec<HeldRange>)>,
}

fn hash(range: Range) -> [u8; 32] {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&range.start.to_le_bytes());
    hash[8..16].copy_from_slice(&range.end.to_le_bytes());
    hash
}

impl Asked {
    /// A connection to a holder is to be opened.
    pub fn open(&mut self, node: u32) {
        self.open.insert(node);
    }

    /// When the next answer or announcement arrives.
    pub fn next_at(&self) -> Option<Instant> {
        let announced = self.announced.iter().map(|(at, ..)| *at);
        self.answers
            .iter()
            .map(|(at, ..)| *at)
            .chain(announced)
            .min()
    }

    /// The hash of a unit of rows that a node sent.
    pub fn sent(&self, sender: u32, unit: Range, around: &Around<'_>) -> Option<[u8; 32]> {
        let is_hashed = around.scenario.trees.is_none()
            && around.scenario.relay == Relay::Auto
            && around.scenario.options.verify() >= Verify::Tree;
        let mut hash = hash(unit);
        if around.lying.contains(&sender) {
            hash[31] = 1;
        }
        is_hashed.then_some(hash)
    }
}

impl Receiver {
    /// Hears announcements and answers, and asks for more. Returns when the next announcement is due.
    pub(super) fn listen(&mut self, around: &Around<'_>) -> Option<Instant> {
        let now = around.now;
        self.hear_answers(around);
        let mut next_at = None;
        for (id, lane) in &mut self.streams {
            let Some(announcer) = lane.announcer.as_mut() else {
                continue;
            };
            if around.dead[lane.sender as usize] || !self.machine.phase(*id).is_open() {
                continue;
            }
            if let Some((held, origins)) = around.held.get(&lane.sender) {
                let ranges = with_origins(&announcer.announce(held, now), origins);
                if !ranges.is_empty() {
                    let at = now + around.scenario.announcement_time;
                    self.asked.announced.push((at, *id, ranges));
                }
            }
            let at = announcer.next_at().max(now + around.scenario.step_time);
            next_at = next_at.into_iter().chain([at]).min();
        }
        let (layout, unit_len) = (&self.layout, self.unit_len);
        let unit_at = |offset| layout.unit_at(offset, unit_len);
        let announced = std::mem::take(&mut self.asked.announced);
        for (at, id, ranges) in announced {
            match at <= now {
                true => self.machine.handle_announced(id, &ranges, now, &unit_at),
                false => self.asked.announced.push((at, id, ranges)),
            }
        }
        next_at.filter(|_| !self.machine.fetch().is_finished())
    }

    fn hear_answers(&mut self, around: &Around<'_>) {
        let now = around.now;
        let asked = &mut self.asked;
        for (at, node, _) in &mut asked.answers {
            if let Some(until) = around.paused.get(node) {
                *at = (*at).max(*until);
            }
        }
        let (due, later) = asked.answers.drain(..).partition(|(at, ..)| *at <= now);
        asked.answers = later;
        let due: Vec<(Instant, u32, Range)> = due;
        for (_, node, unit) in due
            .into_iter()
            .filter(|(_, node, _)| !around.dead[*node as usize])
        {
            let digest = match &self.sink {
                Some(sink) => sink.digest(unit, around.sent_mark(sink, node, unit)),
                None => hash(unit),
            };
            let fetch = self.machine.fetch_mut();
            fetch.handle_digest(node, unit, digest, now);
        }
        for node in self.asked.open.clone() {
            let fetch = self.machine.fetch_mut();
            if around.dead[node as usize] {
                self.asked.open.remove(&node);
                fetch.handle_second_down(node, "killed", now);
                continue;
            }
            match fetch.next_digests(node) {
                Ask::Units(units) => {
                    let at = now + around.scenario.connect_time;
                    let answers = units.into_iter().map(|unit| (at, node, unit));
                    self.asked.answers.extend(answers);
                }
                Ask::Wait => {}
                Ask::Closed => drop(self.asked.open.remove(&node)),
            }
        }
    }
}
