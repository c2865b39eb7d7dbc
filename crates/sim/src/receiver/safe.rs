//! What a receiver does with its disk, as its machine wants it: sync, record, name what is whole, read back, name the rest.

use std::collections::BTreeSet;

use ropewalk_model::{CHUNK_LEN, Instant, RangeSet};
use ropewalk_proto::node::{Life, Promise, Settled, Task};

use super::Receiver;
use crate::agent::Around;
use crate::disk::Disk;
use crate::scenario::Scenario;

/// A sync, and then the record of what it made safe.
pub(super) struct Syncing {
    promise: Promise,
    until: Instant,
    // Writes up to this one are covered.
    writes: u64,
    settled: Option<Settled>,
    // Files that lack no byte of these get their names after it.
    names: Option<RangeSet>,
    is_recorded: bool,
}

impl Receiver {
    /// Does what the machine wants done with the disk. Returns when to ask again, and whether it has to report.
    pub fn keep_safe(&mut self, around: &mut Around<'_>) -> (Option<Instant>, bool) {
        let now = around.now;
        loop {
            if let Some(syncing) = &mut self.syncing {
                if syncing.until > now {
                    return (Some(syncing.until), false);
                }
                if let Some(sink) = self.sink.as_mut() {
                    let disk = around.disks.entry(around.disk_of).or_default();
                    if let Some(settled) = syncing.settled.take() {
                        disk.end_sync(self.node, syncing.writes);
                        sink.record(disk, &settled);
                        // A power cut may be between these two.
                        (syncing.is_recorded, syncing.until) =
                            (true, now + around.scenario.step_time);
                        continue;
                    }
                    match syncing.is_recorded {
                        true => sink.sync_record(disk),
                        false => disk.end_sync(self.node, syncing.writes),
                    }
                }
                let promise = syncing.promise;
                let names = syncing.names.take();
                self.syncing = None;
                if let (Some(safe), Some(sink)) = (names, self.sink.as_mut()) {
                    let named = sink.name_whole(around.disk(), &safe);
                    self.machine.handle_named(named);
                }
                self.machine.handle_synced(promise, Ok(()), now);
                self.check_safe(around);
            }
            match self.machine.next_task(now) {
                Task::Sync(promise) => {
                    let is_timed = self.sink.is_some() || self.machine.life() == Life::Settling;
                    if !is_timed {
                        self.machine.handle_synced(promise, Ok(()), now);
                        continue;
                    }
                    let gives_names = self.machine.names_whole_files();
                    let settled = self.sink.as_ref().and_then(|_| self.machine.to_record());
                    let names = settled.as_ref().filter(|_| gives_names);
                    let names = names.map(|settled| settled.bytes.clone());
                    let writes = around
                        .disks
                        .get(&around.disk_of)
                        .map_or(0, Disk::begin_sync);
                    self.syncing = Some(Syncing {
                        promise,
                        until: now + around.scenario.sync_time,
                        writes,
                        settled,
                        names,
                        is_recorded: false,
                    });
                }
                Task::ReadBack => {
                    let found = self.read_back(around);
                    self.machine.handle_read_back(found);
                }
                Task::Rename => {
                    if let Some(sink) = self.sink.as_mut() {
                        sink.commit(around.disk(), &BTreeSet::new());
                    }
                    self.machine.handle_renamed(Ok(()));
                }
                Task::Report => return (None, true),
                Task::Wait(until) => return (until.filter(|_| self.sink.is_some()), false),
                Task::End => return (None, false),
            }
        }
    }

    fn read_back(&mut self, around: &mut Around<'_>) -> Result<(), String> {
        let digests = self.machine.fetch_mut().sorted_digests().to_vec();
        let sink = self.sink.as_ref();
        sink.map_or(Ok(()), |sink| sink.reads_back(around.disk(), &digests))
    }

    /// Asserts that what it calls safe is on stable storage, and right.
    fn check_safe(&self, around: &mut Around<'_>) {
        if let Some(sink) = &self.sink {
            let durable = sink.durable(around.disk());
            let own = durable.intersection(&self.delivered).len_bytes();
            let safe = self.machine.safe_bytes();
            assert!(
                own >= safe,
                "node {} calls {safe} bytes safe, {own} are",
                self.node
            );
        }
    }

    /// Bytes that its lanes have asked for and that are not there.
    pub fn check_in_transit(&self, scenario: &Scenario) {
        for lane in self.streams.values() {
            let asked: u64 = lane.queue.iter().map(|(_, unit)| unit.len()).sum();
            let most = scenario.options.prefetch + CHUNK_LEN;
            assert!(
                asked <= most,
                "node {}: {asked} bytes in transit on a stream",
                self.node
            );
        }
    }
}
