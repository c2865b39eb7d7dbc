//! Makes bytes safe while they arrive, and reports when all have.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_lane::doing::{Doing, during};
use ropewalk_proto::control::{self, from_agent};
use ropewalk_proto::node::{Settled, Task};
use ropewalk_proto::rapid::Gaps;
use ropewalk_store::Unit;

use super::{Datagrams, Fetch, State, Way};
use crate::landing::SinkSet;
use crate::waits::Side;

/// Missing files that the master is told of by name.
const FILES_MAX: usize = 100;

/// Temporary names that the master is told of.
const LEFT_MAX: usize = 4;

/// A reason without the path of the file that it is about: that is told beside it, as the user named it.
fn without_path(reason: &str) -> String {
    let mut letters = reason.char_indices();
    let Some((from, _)) = letters.find(|(_, letter)| *letter == '"') else {
        return reason.to_owned();
    };
    let mut escaped = false;
    for (at, letter) in letters {
        match letter {
            '"' if !escaped => return format!("{}it{}", &reason[..from], &reason[at + 1..]),
            letter => escaped = letter == '\\' && !escaped,
        }
    }
    reason.to_owned()
}

/// Longest wait for something to be done with the sinks; what changes wakes earlier.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Longest sample that shows a shared file (64 KiB).
const SAMPLE_LEN: u64 = 64 << 10;

/// What the lane's streams of datagrams saw, for the master.
fn blast(seen: &Datagrams) -> control::Blast {
    let gaps = |gaps: &Gaps| control::Gaps {
        median: gaps.quantile(0.5).0,
        p99: gaps.quantile(0.99).0,
        longest: gaps.longest().0,
    };
    control::Blast {
        lost: seen.blast.lost,
        dropped: seen.blast.dropped,
        strays: seen.strays,
        suspensions: seen.blast.suspensions,
        monitor: seen.blast.monitor.as_nanos() as u64,
        arrivals: Some(gaps(&seen.blast.arrivals)),
        deliveries: Some(gaps(&seen.blast.deliveries)),
    }
}

/// What is under a temporary name, if anything is.
///
/// * `come`: bytes that were received.
fn leftover(path: &Path, come: u64) -> Option<control::Leftover> {
    let found = std::fs::symlink_metadata(path).ok()?;
    // Of a folder: what came is what is in it.
    let bytes = match found.is_dir() {
        true => come,
        false => found.len(),
    };
    Some(control::Leftover {
        path: path.to_string_lossy().into_owned(),
        bytes,
        resumable: false,
    })
}

/// What a later transfer goes on with; `None` where it was removed meanwhile.
fn resumable((path, bytes): (std::path::PathBuf, u64)) -> Option<control::Leftover> {
    std::fs::symlink_metadata(&path).ok()?;
    Some(control::Leftover {
        path: path.to_string_lossy().into_owned(),
        bytes,
        resumable: true,
    })
}

fn record(sinks: &SinkSet, settled: &Settled) {
    let units = settled.units.iter();
    let units = units.map(|&(range, digest)| Unit { range, digest });
    sinks.record(&settled.bytes, &units.collect::<Vec<_>>());
}

impl Fetch {
    /// Syncs and records what was received, where the transfer ends before all was: the next one need not send it.
    ///
    /// * `settled`: from before the end.
    pub(super) fn record_last(&self, sinks: &SinkSet, settled: Option<Settled>) {
        // Before the sync, which takes a while.
        let _ = sinks.note_ending();
        let settled = settled.filter(|_| !self.member.options.no_sync);
        if let Some(settled) = settled
            && sinks.sync().is_ok()
        {
            record(sinks, &settled);
            self.state.lock().safe = settled.bytes.len_bytes();
        }
    }

    /// Bytes received that are safe where the transfer ended early; 0 else.
    pub fn safe(&self) -> u64 {
        self.state.lock().safe
    }

    /// Does what the node's machine wants done with the sinks, until the transfer ends.
    pub(super) fn keep_safe(self: &Arc<Self>) {
        let now = || self.member.now();
        let _here = self.member.waits.enter(Side::Keeps);
        loop {
            let mut state = self.state.lock();
            if self.stopped() {
                return;
            }
            state.node.handle_timer(now());
            if state.node.has_events() {
                self.drain(state);
                continue;
            }
            match state.node.next_task(now()) {
                Task::Wait(until) => {
                    let pause = until.map_or(LOOK_EVERY, |until| {
                        Duration::from(until.since(now())).min(LOOK_EVERY)
                    });
                    self.changed.wait_for(&mut state, pause);
                }
                Task::Sync(promise) => {
                    let names = state.node.names_whole_files();
                    let settled = state.node.to_record();
                    drop(state);
                    let settle = || self.settle(settled.as_ref(), names);
                    let (synced, named) = during(Doing::Sync, settle);
                    let node = &mut self.state.lock().node;
                    node.handle_named(named);
                    node.handle_synced(promise, synced, now());
                    // Writes that wait for space.
                    self.changed.notify_all();
                }
                Task::ReadBack => {
                    drop(state);
                    let found = during(Doing::Sync, || self.read_back());
                    self.state.lock().node.handle_read_back(found);
                }
                Task::Rename => {
                    drop(state);
                    // The machine is told in it.
                    drop(during(Doing::Name, || self.commit()));
                }
                Task::Report => {
                    drop(state);
                    self.tell_done(self.sample());
                }
                Task::End => return,
            }
        }
    }

    /// Syncs, and then records, what was received; gives whole files their names, where that is due: how many.
    ///
    /// * `settled`: what the sync makes safe.
    fn settle(&self, settled: Option<&Settled>, names: bool) -> (Result<(), String>, u64) {
        let sinks = self.sinks();
        let settled = settled.zip(sinks.as_ref());
        let named = settled.filter(|_| names);
        // Before the sync, which then covers it.
        if let Some((settled, sinks)) = named {
            sinks.make_ready(&settled.bytes);
        }
        let synced = self.sync();
        if synced.is_err() {
            return (synced, 0);
        }
        // Data first, then the record, then the names.
        if let Some((settled, sinks)) = settled.filter(|_| !self.member.options.no_sync) {
            record(sinks, settled);
        }
        (Ok(()), named.map_or(0, |(_, sinks)| sinks.name_ready()))
    }

    fn sync(&self) -> Result<(), String> {
        match self.sinks() {
            Some(sinks) if !self.member.options.no_sync => {
                sinks.sync().map_err(|error| error.to_string())
            }
            _ => Ok(()),
        }
    }

    /// Of a shared destination: some bytes that this node wrote, as they are in its sink.
    fn sample(&self) -> Option<control::Sample> {
        let sinks = self.sinks().filter(|sinks| sinks.is_shared())?;
        let first = {
            let state = self.state.lock();
            state.node.fetch().ledger().delivered_ranges().first()?
        };
        let length = first.len().min(SAMPLE_LEN);
        let mut bytes = vec![0; length as usize];
        sinks.read_back(first.start, &mut bytes).ok()?;
        Some(control::Sample {
            start: first.start,
            length,
            hash: blake3::hash(&bytes).as_bytes().to_vec(),
        })
    }

    /// Whether this node sees what others of its destination wrote. In words when it does not: the
    /// files are then not the same ones, and nothing may be called whole.
    pub fn see_samples(&self, samples: &[control::Sample]) -> Result<(), String> {
        let Some(sinks) = self.sinks() else {
            return Ok(());
        };
        for sample in samples {
            let range = control::range(sample.start, sample.length);
            if range.len() > SAMPLE_LEN || !sinks.holds(range) {
                continue;
            }
            let mut bytes = vec![0; range.len() as usize];
            let read = sinks.read_back(range.start, &mut bytes);
            if read.is_err() || blake3::hash(&bytes).as_bytes().as_slice() != sample.hash {
                return Err(format!(
                    "bytes {}-{} that another node of this shared destination wrote are not in this node's file: \
                     the destinations are not one file system (is it mounted on every host, under one path?). \
                     No file was renamed into place; use --destinations copies for separate places",
                    range.start,
                    range.end - 1
                ));
            }
        }
        Ok(())
    }

    fn read_back(&self) -> Result<(), String> {
        let Some(sinks) = self.sinks() else {
            return Ok(());
        };
        let mut units = {
            let mut state = self.state.lock();
            state.node.fetch_mut().sorted_digests().to_vec()
        };
        // What an earlier transfer wrote has to be there, too.
        let adopted = sinks.present().units.into_iter();
        units.extend(adopted.map(|unit| (unit.range, unit.digest)));
        let mut buffer = Vec::new();
        for (range, digest) in units {
            if self.read_back.lock().contains_range(range) {
                continue;
            }
            buffer.resize(range.len() as usize, 0);
            sinks
                .read_back(range.start, &mut buffer)
                .map_err(|error| error.to_string())?;
            if ropewalk_model::digest(&buffer) != digest {
                return Err(format!(
                    "bytes {}-{} read back from the sink differ from what was written; check this host's disk and memory",
                    range.start,
                    range.end - 1
                ));
            }
            self.read_back.lock().insert(range);
        }
        Ok(())
    }

    /// Sends the report of a node that has failed, or is done, unless it was sent.
    pub fn send_done(&self) {
        self.tell_done(None);
    }

    fn tell_done(&self, sample: Option<control::Sample>) {
        let mut state = self.state.lock();
        let now = self.member.now();
        let Some(done) = state.node.take_done(now) else {
            return;
        };
        let done = self.with_details(&mut state, done, sample);
        drop(state);
        self.ways.tell_all_carried(&self.member);
        self.member.send(from_agent::Body::Done(done));
    }

    /// What is missing, as files, and how many there are beyond those told.
    fn missing_files(&self, state: &State) -> (Vec<control::MissingFile>, u64) {
        let missing = state.node.fetch().missing();
        let Some(sinks) = self.sinks().filter(|_| !missing.is_empty()) else {
            return (Vec::new(), 0);
        };
        let (objects, more) = sinks.objects(&missing, FILES_MAX);
        // Where the node itself failed, that is why, and the error says so: of single files, only those that were refused.
        let fetch = state.node.fetch();
        let has_failed = state.node.failure().is_some();
        let why = |range| match has_failed {
            true => fetch.why_refused(range),
            false => Some(fetch.why_missing(range)),
        };
        let files = objects.into_iter().filter_map(|(file, bytes, range)| {
            let reason = without_path(&why(range)?);
            let named = |file, bytes| control::MissingFile {
                file,
                bytes,
                reason: reason.clone(),
            };
            // A file is missing under each of its names.
            let further = sinks.further_names(range.start).into_iter();
            let further = further.map(|name| named(name, 0));
            Some(
                std::iter::once(named(file, bytes))
                    .chain(further)
                    .collect::<Vec<_>>(),
            )
        });
        let mut files: Vec<control::MissingFile> = files.flatten().collect();
        let more = more.saturating_add(files.len().saturating_sub(FILES_MAX) as u64);
        files.truncate(FILES_MAX);
        (files, if has_failed { 0 } else { more })
    }

    /// What is still under temporary names, for the final report.
    pub fn left(&self) -> Vec<control::Leftover> {
        let (committed, come) = {
            let state = self.state.lock();
            (
                state.node.is_renamed(),
                state.node.fetch().ledger().delivered_bytes(),
            )
        };
        let Some(sinks) = self.sinks() else {
            return self.left_of_making();
        };
        let kept = sinks.kept_partial();
        if committed || !kept.is_empty() {
            return kept.into_iter().filter_map(resumable).collect();
        }
        let left = sinks.temporary(LEFT_MAX).into_iter();
        left.filter_map(|path| leftover(&path, come)).collect()
    }

    /// The same where the sinks are not made: those that are being made still may leave something.
    fn left_of_making(&self) -> Vec<control::Leftover> {
        let making = self.state.lock().making.clone().unwrap_or_default();
        let paths = making.into_iter().flat_map(|(path, is_shared)| {
            ropewalk_store::temporary_paths(&path, &self.temporary_id(is_shared))
        });
        let left = paths.filter_map(|path| leftover(&path, 0));
        left.take(LEFT_MAX).collect()
    }

    /// Where files are made under temporary names; reported once.
    pub fn told_temporary(&self) -> Vec<String> {
        let Some(sinks) = self.sinks() else {
            return Vec::new();
        };
        if std::mem::replace(&mut self.state.lock().temporary_told, true) {
            return Vec::new();
        }
        let paths = sinks.temporary(LEFT_MAX).into_iter();
        paths
            .map(|path| path.to_string_lossy().into_owned())
            .collect()
    }

    /// What the node's machine does not know.
    fn with_details(
        &self,
        state: &mut State,
        done: control::Done,
        sample: Option<control::Sample>,
    ) -> control::Done {
        let (files, files_more) = self.missing_files(state);
        let mut root = blake3::Hasher::new();
        let digests = state.node.fetch_mut().sorted_digests();
        for (range, digest) in digests {
            root.update(&range.start.to_le_bytes());
            root.update(&range.end.to_le_bytes());
            root.update(digest);
        }
        let root = match digests.is_empty() {
            true => Vec::new(),
            false => root.finalize().as_bytes().to_vec(),
        };
        let pairs = done.pairs.into_iter().zip(state.lanes.rows());
        let pairs = pairs.filter(|(pair, _)| pair.streams > 0);
        let of_datagrams = state.node.streams().of_datagrams();
        control::Done {
            sample,
            landed: done.committed.then(|| self.landed()).flatten(),
            files,
            files_more,
            root,
            usage: Some(self.member.usage()),
            awaited_ends: self.member.awaited_ends.total().as_nanos() as u64,
            pairs: pairs
                .map(|(pair, lane)| control::PairDone {
                    lane: lane.kind.into(),
                    rail: lane.way.as_ref().map_or_else(String::new, Way::name),
                    waiting: lane.waited.as_nanos() as u64 / u64::from(pair.streams.max(1)),
                    datagrams: lane.datagrams.needed,
                    datagrams_again: lane.datagrams.again,
                    blast: of_datagrams.then(|| blast(&lane.datagrams)),
                    ..pair
                })
                .collect(),
            ..done
        }
    }
}

#[cfg(test)]
mod tests {
    use super::without_path;

    /// A place that was removed meanwhile is not called safe.
    #[test]
    fn what_is_gone_is_not_left() {
        let folder = tempfile::tempdir().unwrap();
        let left = super::resumable((folder.path().to_owned(), 7)).unwrap();
        assert_eq!((left.bytes, left.resumable), (7, true));
        assert_eq!(super::resumable((folder.path().join("gone"), 7)), None);
    }

    /// The file that a reason is about is told beside it.
    #[test]
    fn reasons_without_paths() {
        for (reason, without) in [
            ("\"/x/f9\" changed", "it changed"),
            ("cannot open \"a\\\"b\": gone", "cannot open it: gone"),
            ("it is away", "it is away"),
            ("half a \"quote", "half a \"quote"),
        ] {
            assert_eq!(without_path(reason), without);
        }
    }
}
