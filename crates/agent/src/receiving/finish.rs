//! Makes bytes safe while they come, and reports when all have.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::MutexGuard;
use ropewalk_proto::control::{self, from_agent};
use ropewalk_proto::rapid::Gaps;

use super::{Datagrams, Fetch, SYNC_BYTES, SYNC_EVERY, State};
use crate::streams::verify;

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

/// Longest sample that shows a shared file (64 KiB).
const SAMPLE_LEN: u64 = 64 << 10;

/// What the lane's streams of datagrams saw, for the master.
fn blast(seen: &Datagrams) -> control::Blast {
    let gaps = |gaps: &Gaps| control::Gaps {
        median: gaps.quantile_ns(0.5),
        p99: gaps.quantile_ns(0.99),
        longest: gaps.longest_ns(),
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

impl Fetch {
    /// Syncs about once a second until the node's part is complete, failed or stopped; then reports.
    /// Runs again when a revision brings more after that.
    pub(super) fn keep_safe(self: &Arc<Self>) {
        let mut synced_at = Instant::now();
        loop {
            let (checked, complete, error, revision) = {
                let mut state = self.state.lock();
                loop {
                    let checked = state.receiving.ledger().delivered_bytes();
                    let unsynced = checked - self.safe.load(Ordering::Acquire).min(checked);
                    let due = unsynced > 0
                        && (unsynced >= SYNC_BYTES || synced_at.elapsed() >= SYNC_EVERY);
                    let complete = state.receiving.is_finished() && !state.done_sent;
                    if due
                        || complete
                        || (state.error.is_some() && !state.done_sent)
                        || self.stopped()
                    {
                        break;
                    }
                    self.changed.wait_for(&mut state, SYNC_EVERY);
                    let now = self.transfer.now_ns();
                    state.receiving.handle_timer(now);
                    if state.receiving.has_events() {
                        self.drain(state);
                        state = self.state.lock();
                    }
                }
                (
                    state.receiving.ledger().delivered_bytes(),
                    state.receiving.is_finished(),
                    state.error.is_some(),
                    state.revision,
                )
            };
            if self.stopped() {
                return;
            }
            if !error {
                if let Err(reason) = self.sync() {
                    self.state.lock().error.get_or_insert(reason);
                    continue;
                }
                self.safe.store(checked, Ordering::Release);
                synced_at = Instant::now();
                if !complete {
                    continue;
                }
                if let Err(reason) = self.conclude() {
                    self.state.lock().error.get_or_insert(reason);
                }
            }
            let sample = self.sample();
            {
                // More may have been asked meanwhile: only what was just made safe is vouched for.
                let state = self.state.lock();
                if state.error.is_none() && state.revision != revision {
                    continue;
                }
                self.tell_done(state, sample);
            }
            if error {
                return;
            }
        }
    }

    fn sync(&self) -> Result<(), String> {
        match self.sinks() {
            Some(sinks) if !self.transfer.options.no_sync => {
                sinks.sync().map_err(|error| error.to_string())
            }
            _ => Ok(()),
        }
    }

    /// Reads back if asked, then gives files their final names if that is this node's to do.
    fn conclude(&self) -> Result<(), String> {
        if self.transfer.options.verify == verify::SINK {
            self.read_back()?;
        }
        let whole = {
            let state = self.state.lock();
            // A later copy may have shown meanwhile that contents differ.
            if let Some(error) = &state.error {
                return Err(error.clone());
            }
            Self::missing(&state).is_empty()
        };
        if self.commits && whole {
            self.commit()
        } else {
            Ok(())
        }
    }

    /// Of a shared destination: some bytes that this node wrote, as they are in its sink.
    fn sample(&self) -> Option<control::Sample> {
        let sinks = self.sinks().filter(|sinks| sinks.is_shared())?;
        let first = {
            let state = self.state.lock();
            state.receiving.ledger().delivered_ranges().first()?
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
                     Nothing was given its name; use --destinations copies for separate places",
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
        let units = self.state.lock().receiving.sorted_digests().to_vec();
        let mut buffer = Vec::new();
        for (range, digest) in units {
            if self.read_back.lock().contains_range(range) {
                continue;
            }
            buffer.resize(range.len() as usize, 0);
            sinks
                .read_back(range.start, &mut buffer)
                .map_err(|error| error.to_string())?;
            if blake3::hash(&buffer).as_bytes() != &digest {
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

    /// Tells the master that this node's part has ended, once.
    pub fn send_done(&self) {
        self.tell_done(self.state.lock(), None);
    }

    fn tell_done(&self, mut state: MutexGuard<'_, State>, sample: Option<control::Sample>) {
        if std::mem::replace(&mut state.done_sent, true) {
            return;
        }
        let done = self.done(&mut state, sample);
        drop(state);
        self.transfer.tell_all_carried();
        self.transfer.send(from_agent::Body::Done(done));
    }

    /// What is missing, as files, and how many there are beyond those told.
    fn missing_files(&self, state: &State) -> (Vec<control::MissingFile>, u64) {
        let missing = Self::missing(state);
        let Some(sinks) = self.sinks().filter(|_| !missing.is_empty()) else {
            return (Vec::new(), 0);
        };
        let (objects, more) = sinks.objects(&missing, FILES_MAX);
        let files = objects.into_iter().map(|(file, bytes, range)| {
            let reason = state.receiving.why_missing(range);
            control::MissingFile {
                file,
                bytes,
                reason: without_path(&reason),
            }
        });
        (files.collect(), more)
    }

    /// What is still under temporary names, for the last word.
    pub fn left(&self) -> Vec<control::Leftover> {
        let (committed, come) = {
            let state = self.state.lock();
            (state.committed, state.receiving.ledger().delivered_bytes())
        };
        let Some(sinks) = self.sinks().filter(|_| !committed) else {
            return Vec::new();
        };
        let left = sinks.temporary(LEFT_MAX).into_iter().filter_map(|path| {
            let found = std::fs::symlink_metadata(&path).ok()?;
            // Of a folder: what came is what is in it.
            let bytes = match found.is_dir() {
                true => come,
                false => found.len(),
            };
            Some(control::Leftover {
                path: path.to_string_lossy().into_owned(),
                bytes,
            })
        });
        left.collect()
    }

    /// Where files are made under temporary names; told once.
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

    fn done(&self, state: &mut State, sample: Option<control::Sample>) -> control::Done {
        let (files, files_more) = self.missing_files(state);
        let overcome = state.receiving.overcome_refusals();
        state.notes.extend(overcome);
        let now = self.transfer.now_ns();
        let mut root = blake3::Hasher::new();
        for (range, digest) in state.receiving.sorted_digests() {
            root.update(&range.start.to_le_bytes());
            root.update(&range.end.to_le_bytes());
            root.update(digest);
        }
        let hashed = !state.receiving.sorted_digests().is_empty();
        let watch = *state.receiving.watch();
        // Nothing came any more after the last arrival: part of the stalls.
        let trailing = state
            .complete_ns
            .unwrap_or(now)
            .saturating_sub(watch.last_ns());
        let pairs = state.receiving.pairs();
        let compared = state.receiving.compared();
        control::Done {
            sample,
            landed: state.committed.then(|| self.landed()).flatten(),
            differs: state.differs,
            units: state.receiving.hashed_units(),
            compared_units: compared.units,
            compared_bytes: compared.bytes,
            files,
            files_more,
            refused: state.refused,
            delivered: self.safe.load(Ordering::Acquire),
            duplicate: state.receiving.ledger().duplicate_bytes(),
            corrupt: state.receiving.corrupt(),
            pairs: pairs
                .iter()
                .zip(&state.lanes)
                .filter(|(_, lane)| lane.streams > 0)
                .map(|(pair, lane)| control::PairDone {
                    sender: pair.sender,
                    delivered: pair.delivered,
                    corrupt: pair.corrupt,
                    streams: lane.streams,
                    lane: lane.kind.into(),
                    rail: lane.rail.clone(),
                    waiting: lane.waited.as_nanos() as u64 / u64::from(lane.streams.max(1)),
                    datagrams: lane.datagrams.needed,
                    datagrams_again: lane.datagrams.again,
                    blast: self.of_datagrams.then(|| blast(&lane.datagrams)),
                    way: lane.connected.number(),
                })
                .collect(),
            missing: control::stretches(&Self::missing(state)),
            root: if hashed {
                root.finalize().as_bytes().to_vec()
            } else {
                Vec::new()
            },
            moving: now.saturating_sub(watch.start_ns()),
            best_second: watch.best_second(),
            committed: state.committed,
            error: state.error.clone().unwrap_or_default(),
            syncing: state.complete_ns.map_or(0, |at| now.saturating_sub(at)),
            revision: state.revision,
            usage: Some(self.transfer.usage()),
            notes: std::mem::take(&mut state.notes),
            longest_stall: watch.longest_stall_ns().max(trailing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::without_path;

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
