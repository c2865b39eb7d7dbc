//! Where received bytes are written: the store behind the lane's trait.

use std::cell::Cell;
use std::error::Error;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use ropewalk_lane::Landing;
use ropewalk_lane::doing::{Doing, during};
use ropewalk_model::{CHUNK_LEN, Layout, Range, RangeSet};
use ropewalk_proto::control;
use ropewalk_proto::node::Waiting;
use ropewalk_proto::node::fetch::Writer;
use ropewalk_proto::wire::SPACE_DATA;
use ropewalk_store::{Present, Sink, StoreError, Unit, persist};

use crate::hung::{CALL_TIME_MAX, Calls};

/// A sink and its place in the data space.
pub(crate) struct PlacedSink {
    pub ranges: RangeSet,
    pub sink: Arc<dyn Sink>,
    /// Other nodes write the same files.
    pub shared: bool,
    /// The copy's own name, for messages about a copy of one file.
    pub name: String,
}

/// The sinks of one node with the stretches of data space they take.
pub(crate) struct SinkSet {
    sinks: Vec<PlacedSink>,
    // Asked for before each write.
    is_shared: bool,
    layout: Layout,
    unit_len: u64,
    // Nobody reads the bytes again: each stream receives straight into a buffer of its own.
    in_memory: bool,
    calls: Calls,
}

impl SinkSet {
    /// `layout` and `unit_len` say where units begin and end; the layout covers all sinks.
    pub fn new(sinks: Vec<PlacedSink>, layout: Layout, unit_len: u64, in_memory: bool) -> Self {
        Self {
            is_shared: sinks.iter().any(|placed| placed.shared),
            sinks,
            layout,
            unit_len,
            in_memory,
            calls: Calls::new(),
        }
    }

    /// What the disk has not done for too long, in words; `None` as a rule.
    pub fn hung(&self, now: Instant) -> Option<String> {
        let what = self.calls.hung(now, || match self.temporary(1).pop() {
            Some(path) => format!("{path:?}"),
            None => "the destination".to_owned(),
        })?;
        Some(format!(
            "{what} have not finished for {} s: its disk, or the server of its file system, does not answer; the transfer goes on \
             when it does",
            CALL_TIME_MAX.as_secs()
        ))
    }

    /// Whether other nodes write some of the same files.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Whether all bytes of a range have a place here.
    pub fn holds(&self, range: Range) -> bool {
        self.sinks
            .iter()
            .any(|placed| placed.ranges.contains_range(range))
    }

    /// The units of integrity around offsets, mostly of one after another.
    pub fn units(self: Arc<Self>) -> impl Fn(u64) -> Range + use<> {
        let place = Cell::new(0);
        move |offset| self.layout.unit_near(offset, self.unit_len, &place)
    }

    /// Calls `f` for the parts of `[offset, offset + length)` with the sink that takes each.
    fn each(
        &self,
        offset: u64,
        length: u64,
        mut f: impl FnMut(&dyn Sink, Range) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let range = Range {
            start: offset,
            end: offset + length,
        };
        if let [only] = self.sinks.as_slice() {
            return f(only.sink.as_ref(), range);
        }
        for placed in &self.sinks {
            for part in placed.ranges.clipped(range).iter() {
                f(placed.sink.as_ref(), part)?;
            }
        }
        Ok(())
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.each(offset, bytes.len() as u64, |sink, part| {
            let at = (part.start - offset) as usize;
            let part_bytes = &bytes[at..at + part.len() as usize];
            let write = || sink.write_at(part.start, part_bytes);
            self.calls.carry_out("writes to", None, write)
        })
    }

    pub fn read_back(&self, offset: u64, out: &mut [u8]) -> Result<(), StoreError> {
        let length = out.len() as u64;
        self.each(offset, length, |sink, part| {
            let at = (part.start - offset) as usize;
            sink.read_back(part.start, &mut out[at..at + part.len() as usize])
        })
    }

    /// As [`SinkSet::read_back`], for other nodes that want the same bytes.
    pub fn look(&self, offset: u64, out: &mut [u8]) -> Result<(), StoreError> {
        let length = out.len() as u64;
        self.each(offset, length, |sink, part| {
            let at = (part.start - offset) as usize;
            sink.look(part.start, &mut out[at..at + part.len() as usize])
        })
    }

    /// Others read from the sinks also when files have their names.
    pub fn keep_open(&self) {
        self.sinks.iter().for_each(|placed| placed.sink.keep_open());
    }

    /// Bytes of the data space as people know them: bytes of a file.
    pub fn place(&self, range: Range) -> String {
        let named = self.sinks.iter().find_map(|placed| {
            let (name, _) = placed.sink.object_at(range.start)?;
            let piece = self.layout.locate(range.start)?;
            let name = if name.is_empty() {
                placed.name.clone()
            } else {
                name
            };
            Some((name, piece.object_offset))
        });
        let (name, start) = match named {
            Some(found) => found,
            None => ("the data".into(), range.start),
        };
        let last = (start + range.len()).saturating_sub(1).max(start);
        format!("{name} bytes {start}-{last}")
    }

    pub fn sync(&self) -> Result<(), StoreError> {
        let mut sinks = self.sinks.iter();
        let sync = || sinks.try_for_each(|placed| placed.sink.sync());
        self.calls.carry_out("syncs of", None, sync)
    }

    /// Bytes that the destinations have already.
    pub fn present(&self) -> Present {
        let mut all = Present::default();
        for present in self.sinks.iter().map(|placed| placed.sink.present()) {
            all.unchanged = all.unchanged.union(&present.unchanged);
            all.adopted = all.adopted.union(&present.adopted);
            all.units.extend(present.units);
            all.files += present.files;
            all.passed_files += present.passed_files;
            all.passed_bytes += present.passed_bytes;
            all.refused = all.refused.union(&present.refused);
            all.taken_bytes += present.taken_bytes;
            all.wrong.extend(present.wrong);
            all.wrong_more += present.wrong_more;
        }
        all
    }

    /// Takes down that bytes are on stable storage.
    pub fn record(&self, safe: &RangeSet, units: &[Unit]) {
        let sinks = self.sinks.iter();
        let record = || sinks.for_each(|placed| placed.sink.record(safe, units));
        self.calls.carry_out("syncs of", None, record);
    }

    /// Partial files that a later transfer can go on with, and how many of their bytes are safe.
    pub fn kept_partial(&self) -> Vec<(PathBuf, u64)> {
        let sinks = self.sinks.iter();
        sinks
            .flat_map(|placed| placed.sink.kept_partial())
            .collect()
    }

    /// Whether files get their names before the commit.
    pub fn names_early(&self) -> bool {
        self.sinks.iter().any(|placed| placed.sink.names_early())
    }

    /// Gives whole files what they have with their names; see [`Sink::make_ready`].
    pub fn make_ready(&self, safe: &RangeSet) {
        self.sinks
            .iter()
            .for_each(|placed| placed.sink.make_ready(safe));
    }

    /// Gives those files their names; how many.
    pub fn name_ready(&self) -> u64 {
        let sinks = self.sinks.iter();
        sinks.map(|placed| placed.sink.name_ready()).sum()
    }

    pub fn commit(&self) -> Result<(), StoreError> {
        self.sinks
            .iter()
            .try_for_each(|placed| placed.sink.commit())
    }

    /// As [`SinkSet::commit`] where bytes are missing, for the files that lack none. Whether any file has its name.
    pub fn commit_whole_files(&self, missing: &RangeSet) -> Result<bool, StoreError> {
        let mut is_any_named = false;
        for placed in &self.sinks {
            let lacking = placed.ranges.intersection(missing);
            is_any_named |= placed.sink.commit_whole_files(&lacking)?;
        }
        Ok(is_any_named)
    }

    /// What stood where the sinks gave files their names, all together.
    pub fn landed(&self) -> control::Landed {
        let mut all = control::Landed::default();
        for landed in self.sinks.iter().map(|placed| placed.sink.landed()) {
            if let Some(folder) = landed.merged {
                all.merged = folder.into_os_string().into_vec();
            }
            all.added_files += landed.added_files;
            all.replaced_files += landed.replaced_files;
            all.bits_not_kept += landed.bits_not_kept;
            all.owners_not_kept += landed.owners_not_kept;
            all.attributes_not_kept += landed.attributes_not_kept;
            all.links_not_kept += landed.links_not_kept;
            all.specials_not_kept += landed.specials_not_kept;
            all.unchanged_files += landed.unchanged_files;
            all.passed_files += landed.passed_files;
            all.removed_files += landed.removed.files;
            all.removed_folders += landed.removed.folders;
            all.removing += landed.removed.time.as_nanos() as u64;
            let failed = landed.removed.failed.into_iter();
            all.not_removed
                .extend(failed.map(|(path, reason)| control::NotRemoved { path, reason }));
            all.not_removed_more += landed.removed.failed_more;
            let unplaced = landed.unplaced.into_iter();
            all.not_placed
                .extend(unplaced.map(|(path, reason)| control::NotPlaced { path, reason }));
            all.not_placed_more += landed.unplaced_more;
            all.not_listed.extend(landed.not_listed);
            all.not_listed_more += landed.not_listed_more;
        }
        all
    }

    /// While what no source has is removed: how many names are gone, and how many there were, all sinks together.
    pub fn removing(&self) -> Option<(u64, u64)> {
        let sinks = self.sinks.iter();
        let removing = sinks.filter_map(|placed| placed.sink.removing());
        removing.reduce(|a, b| (a.0 + b.0, a.1 + b.1))
    }

    /// Another node began to give the files their names, and is gone.
    pub fn take_over(&self) {
        self.sinks.iter().for_each(|placed| placed.sink.take_over());
    }

    /// The objects that bytes belong to, each with how many of its bytes these are and the first of them; at most `most`,
    /// and how many more there are.
    pub fn objects(&self, ranges: &RangeSet, most: usize) -> (Vec<(String, u64, Range)>, u64) {
        let mut out: Vec<(String, u64, Range)> = Vec::new();
        let (mut more, mut last) = (0, None);
        for placed in &self.sinks {
            for range in ranges.intersection(&placed.ranges).iter() {
                let mut at = range.start;
                while at < range.end {
                    let Some((name, whole)) = placed.sink.object_at(at) else {
                        break;
                    };
                    let part = Range {
                        start: at,
                        end: whole.end.min(range.end),
                    };
                    at = part.end.max(at + 1);
                    // What is missing of a file lies together: its pieces follow each other.
                    let again = last.as_ref() == Some(&name);
                    let has_room = out.len() < most;
                    match out.last_mut().filter(|_| again && more == 0) {
                        Some(same) => same.1 += part.len(),
                        None if has_room => out.push((name.clone(), part.len(), part)),
                        None => more += u64::from(!again),
                    }
                    last = Some(name);
                }
            }
        }
        (out, more)
    }

    /// Further names of the file that has a byte.
    pub fn further_names(&self, at: u64) -> Vec<String> {
        let sinks = self.sinks.iter();
        sinks
            .flat_map(|placed| placed.sink.further_names(at))
            .collect()
    }

    /// Temporary names that there may be something under, at most `most`.
    pub fn temporary(&self, most: usize) -> Vec<PathBuf> {
        let paths = self.sinks.iter();
        let paths = paths.flat_map(|placed| placed.sink.temporary(most));
        paths.take(most).collect()
    }

    /// The transfer has failed: less is worth keeping for a later one.
    pub fn keep_more(&self) {
        self.sinks.iter().for_each(|placed| placed.sink.keep_more());
    }

    /// The sinks are about to end: a transfer that begins now waits for that. Whether such a one can know of each.
    pub fn note_ending(&self) -> bool {
        let sinks = self.sinks.iter();
        let noted = sinks.map(|placed| placed.sink.note_ending());
        noted.fold(true, |all, noted| all & noted)
    }

    /// Bytes that holders refused.
    pub fn give_up(&self, bytes: &RangeSet) {
        self.sinks
            .iter()
            .for_each(|placed| placed.sink.give_up(bytes));
    }

    /// Ends sinks whose files get no names. What is worth it stays for a later transfer, the rest goes as with
    /// [`SinkSet::discard`].
    pub fn set_aside(&self, shared: bool) {
        for placed in &self.sinks {
            if shared || !placed.shared {
                placed.sink.set_aside();
            }
        }
    }

    /// Removes what is temporary. What other nodes write too goes only with `shared`: that is the
    /// master's message, which knows that no node continues.
    pub fn discard(&self, shared: bool) {
        for placed in &self.sinks {
            if shared || !placed.shared {
                placed.sink.discard();
            }
        }
    }
}

/// Knows of all writes to a sink, since two streams may write the same bytes.
pub(crate) trait Gate: Send + Sync {
    /// Waits until this node may change what other nodes write, too; false when it has ended.
    fn await_permit(&self) -> bool;

    /// A stream is about to write; false when it must not.
    fn begin_write(&self, writer: Writer, range: Range) -> bool;

    /// It has written.
    fn end_write(&self, writer: Writer, range: Range);

    /// It found no space. Waits while files get their names, which may free some; false where that is of no use.
    ///
    /// * `waited`: for what it has waited before.
    fn await_space(&self, writer: Writer, range: Range, waited: &mut Option<Waiting>) -> bool;
}

/// The landing of one stream.
pub(crate) struct SinkLanding {
    gate: Arc<dyn Gate>,
    sinks: Arc<SinkSet>,
    writer: Writer,
    // One chunk; empty unless bytes stay in memory.
    buffer: Vec<u8>,
}

impl SinkLanding {
    pub fn new(gate: Arc<dyn Gate>, sinks: Arc<SinkSet>, writer: Writer) -> Self {
        let buffer = if sinks.in_memory {
            vec![0; CHUNK_LEN as usize]
        } else {
            Vec::new()
        };
        Self {
            gate,
            sinks,
            writer,
            buffer,
        }
    }
}

impl Landing for SinkLanding {
    fn buffer(&mut self, _space: u16, offset: u64, length: usize) -> Option<&mut [u8]> {
        let at = (offset % CHUNK_LEN) as usize;
        self.buffer.get_mut(at..at + length)
    }

    fn write(
        &mut self,
        space: u16,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        if space != SPACE_DATA {
            return Err(format!("bytes of space {space} do not belong in a sink").into());
        }
        let range = Range {
            start: offset,
            end: offset + bytes.len() as u64,
        };
        let write = || {
            // It was stopped, or cut off, and others may write its part by now.
            if self.sinks.is_shared() && !self.gate.await_permit() {
                return Err(StoreError::Ended);
            }
            // A late copy of what is safe already: the file may have its final name by now.
            if !self.gate.begin_write(self.writer, range) {
                return Ok(());
            }
            let written = during(Doing::Write, || self.sinks.write(offset, bytes));
            self.gate.end_write(self.writer, range);
            written
        };
        let mut waited = None;
        loop {
            match persist(write) {
                Err(error)
                    if error.is_full_disk()
                        && during(Doing::Space, || {
                            self.gate.await_space(self.writer, range, &mut waited)
                        }) => {}
                written => return written.map_err(Into::into),
            }
        }
    }
}

/// The landing of a manifest: a buffer whose size is known before.
pub(crate) struct BufferLanding {
    pub bytes: Vec<u8>,
}

impl Landing for BufferLanding {
    fn write(
        &mut self,
        _space: u16,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let end = offset as usize + bytes.len();
        let place = self
            .bytes
            .get_mut(offset as usize..end)
            .ok_or("bytes beyond the manifest")?;
        place.copy_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use ropewalk_proto::ledger::LaneId;
    use ropewalk_store::Operation;

    use super::*;

    pub(crate) const LEN: usize = 100;

    /// What a read gives.
    pub(crate) static BYTES: [u8; LEN] = [7; LEN];

    /// A store that so many times finds no open file left, and then works.
    pub(crate) struct Scarce {
        left: AtomicU32,
        error: StoreError,
    }

    impl Scarce {
        pub(crate) fn new(left: u32) -> Arc<Self> {
            let error = StoreError::Io {
                path: "file".into(),
                operation: Operation::Open,
                errno: rustix::io::Errno::MFILE.raw_os_error(),
            };
            Self::failing(left, error)
        }

        pub(crate) fn failing(left: u32, error: StoreError) -> Arc<Self> {
            let left = AtomicU32::new(left);
            Arc::new(Self { left, error })
        }

        pub(crate) fn left(&self) -> u32 {
            self.left.load(Ordering::Relaxed)
        }

        pub(crate) fn call(&self) -> Result<(), StoreError> {
            match self.left() {
                0 => Ok(()),
                left => {
                    self.left.store(left - 1, Ordering::Relaxed);
                    Err(self.error.clone())
                }
            }
        }
    }

    /// Lets all writes pass; those to what others write, too, where it has a permit.
    struct Open {
        is_permitted: bool,
    }

    impl Gate for Open {
        fn await_permit(&self) -> bool {
            self.is_permitted
        }

        fn begin_write(&self, _writer: Writer, _range: Range) -> bool {
            true
        }

        fn end_write(&self, _writer: Writer, _range: Range) {}

        fn await_space(
            &self,
            _writer: Writer,
            _range: Range,
            _waited: &mut Option<Waiting>,
        ) -> bool {
            false
        }
    }

    impl Sink for Scarce {
        fn write_at(&self, _offset: u64, _bytes: &[u8]) -> Result<(), StoreError> {
            self.call()
        }

        fn read_back(&self, _offset: u64, _buf: &mut [u8]) -> Result<(), StoreError> {
            Ok(())
        }

        fn sync(&self) -> Result<(), StoreError> {
            Ok(())
        }

        fn commit(&self) -> Result<(), StoreError> {
            Ok(())
        }

        fn discard(&self) {}
    }

    pub(crate) fn all() -> Range {
        Range {
            start: 0,
            end: LEN as u64,
        }
    }

    /// The landing of a stream into this sink.
    fn landing_of(sink: &Arc<Scarce>, shared: bool, is_permitted: bool) -> SinkLanding {
        let placed = PlacedSink {
            ranges: RangeSet::from(all()),
            sink: sink.clone(),
            shared,
            name: "copy".into(),
        };
        let sinks = SinkSet::new(vec![placed], Layout::single(all()), CHUNK_LEN, false);
        let writer = Writer {
            lane: LaneId(0),
            stream: 0,
        };
        SinkLanding::new(Arc::new(Open { is_permitted }), Arc::new(sinks), writer)
    }

    /// What others write, too, is not written without a permit, and does not count as written; what is this node's own is.
    #[test]
    fn shared_files_need_a_permit() {
        for shared in [true, false] {
            let sink = Scarce::new(1);
            let mut landing = landing_of(&sink, shared, false);
            let written = landing.write(SPACE_DATA, 0, &BYTES);
            assert_eq!((written.is_err(), sink.left()), (shared, u32::from(shared)));
        }
    }

    /// A receiver that is short of open files for a moment writes what came all the same.
    #[test]
    fn writing_outlives_a_shortage() {
        let sink = Scarce::new(2);
        let mut landing = landing_of(&sink, false, true);
        assert!(landing.write(SPACE_DATA, 0, &BYTES).is_ok());
        assert_eq!(sink.left(), 0);
    }

    /// A sink whose disk does not answer before the test lets it: it says that it was asked, and waits.
    struct Hangs {
        asked: std::sync::mpsc::Sender<()>,
        answers: std::sync::Mutex<std::sync::mpsc::Receiver<()>>,
    }

    impl Sink for Hangs {
        fn write_at(&self, _offset: u64, _bytes: &[u8]) -> Result<(), StoreError> {
            self.asked.send(()).unwrap();
            let _ = self.answers.lock().unwrap().recv();
            Ok(())
        }

        fn read_back(&self, _offset: u64, _buf: &mut [u8]) -> Result<(), StoreError> {
            Ok(())
        }

        fn sync(&self) -> Result<(), StoreError> {
            Ok(())
        }

        fn commit(&self) -> Result<(), StoreError> {
            Ok(())
        }

        fn discard(&self) {}

        fn temporary(&self, _most: usize) -> Vec<PathBuf> {
            vec!["/y/.copy.ropewalk-1".into()]
        }
    }

    /// A write that does not return is reported with its place, and no more when it has returned.
    #[test]
    fn a_disk_that_does_not_answer_is_named() {
        let (answer, answers) = std::sync::mpsc::channel();
        let (asked, is_asked) = std::sync::mpsc::channel();
        let hangs = Hangs {
            asked,
            answers: answers.into(),
        };
        let placed = PlacedSink {
            ranges: RangeSet::from(all()),
            sink: Arc::new(hangs),
            shared: false,
            name: "copy".into(),
        };
        let sinks = SinkSet::new(vec![placed], Layout::single(all()), CHUNK_LEN, false);
        let hung = || sinks.hung(Instant::now() + CALL_TIME_MAX);
        assert_eq!(hung(), None);
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| sinks.write(0, &BYTES));
            is_asked.recv().unwrap();
            let words = hung();
            answer.send(()).unwrap();
            writing.join().unwrap().unwrap();
            let place = "writes to \"/y/.copy.ropewalk-1\" have not finished for 60 s";
            assert!(words.is_some_and(|words| words.starts_with(place)));
        });
        assert_eq!(hung(), None);
    }
}
