//! Before the first byte: sinks are made.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use parking_lot::Mutex;
use ropewalk_model::{Layout, Piece, Range, RangeSet};
use ropewalk_proto::control::{self, Verify};
use ropewalk_proto::coordinator;
use ropewalk_proto::node::{self, Failure};
use ropewalk_store::{
    BufferSink, FileSink, MemorySink, NullSink, Permit, Present, Sink, SinkFile, StoreError,
    TreeSink, Wish,
};

use super::Fetch;
use crate::hashes::SourceHashes;
use crate::landing::{PlacedSink, SinkSet};
use crate::lists::Lists;
use crate::open::OpenSink;
use crate::origins::origins;
use crate::transfer::Looked;

/// Room for bytes that are only kept in memory.
const MEMORY_LEN: u64 = 16 << 20;

/// A sink cannot be made: this node's destination has not changed.
fn refused(error: &StoreError) -> Failure {
    match error.may_pass() {
        true => Failure::Hindered(error.to_string()),
        false => Failure::Refused(error.to_string()),
    }
}

/// As [`refused`], of a tree.
///
/// * `is_at_once`: it takes the place of an older one, and at the end because the user wants that.
fn refused_tree(error: &StoreError, is_at_once: bool) -> Failure {
    match refused(error) {
        Failure::Hindered(text) if error.is_full_disk() && is_at_once => {
            Failure::Hindered(format!(
                "{text}. --atomic and --keep-partial need space for the older and the new copy together: without them each file takes \
                 the place of the older one as soon as it is safe"
            ))
        }
        refused => refused,
    }
}

/// What another node of a shared destination has made is not here.
fn apart(path: &Path) -> Failure {
    Failure::Differs(format!(
        "{path:?}, which another node of this shared destination has made, is not on this node: the destinations are not one file system \
         (is it mounted on every host, under one path?), or a later run has taken it over. No file was renamed into place; use \
         --destinations copies for separate places"
    ))
}

/// A sink with the bytes that it takes and where its units begin and end.
type Made = (RangeSet, Arc<dyn Sink>, Layout);

/// A sink of no file: what it is given is kept in memory, or nowhere.
fn kept(ranges: RangeSet, memory: bool, end: u64) -> Made {
    let sink: Arc<dyn Sink> = match memory {
        true => Arc::new(MemorySink::new(MEMORY_LEN)),
        false => Arc::new(NullSink),
    };
    (ranges, sink, Layout::single(Range::new(0, end)))
}

impl Fetch {
    /// Makes the sinks, or says why not. Then those that are this node's alone are gone again, and the others
    /// are noted for [`Fetch::remove_unmade`].
    pub(super) fn prepare(
        self: &Arc<Self>,
        plan: &control::Plan,
        sinks: Vec<OpenSink>,
        looked: Looked,
    ) -> Result<SinkSet, Failure> {
        let keeps = |sink: &OpenSink| {
            !matches!(
                sink,
                OpenSink::Memory | OpenSink::RowsKeptNowhere { memory: true, .. }
            )
        };
        let in_memory = self.member.options.verify() != Verify::Sink && !sinks.iter().any(keeps);
        // What the node that looked has made is not this one's to remove: those that write there may keep it.
        let unmade = (0..)
            .zip(&sinks)
            .filter(|(at, _)| !looked.is_made && !looked.made_files.contains(at));
        let unmade: Vec<PathBuf> = unmade
            .flat_map(|(_, sink)| sink.shared_paths())
            .cloned()
            .collect();
        let mut made = Vec::new();
        match self.make(plan, sinks, looked, in_memory, &mut made) {
            Ok(layout) => Ok(SinkSet::new(made, layout, plan.unit_len(), in_memory)),
            Err(reason) => {
                // No byte was received yet: these only take space, which is reserved, or have what an earlier transfer left.
                for placed in made.iter().filter(|placed| !placed.shared) {
                    placed.sink.set_aside();
                }
                *self.unmade.lock() = unmade;
                self.remove_made_folders();
                Err(reason)
            }
        }
    }

    /// Makes one sink after the other; the layout of all.
    fn make(
        self: &Arc<Self>,
        plan: &control::Plan,
        sinks: Vec<OpenSink>,
        mut looked: Looked,
        in_memory: bool,
        made: &mut Vec<PlacedSink>,
    ) -> Result<Layout, Failure> {
        // Not only up to its own runs: the node may inherit others.
        let end = plan.length;
        let all = RangeSet::from(Range { start: 0, end });
        let mut pieces: Vec<Piece> = Vec::new();
        for (at, sink) in sinks.into_iter().enumerate() {
            // One more than the permission bits.
            let mode = plan.sink_modes.get(at).and_then(|mode| mode.checked_sub(1));
            let shared = !sink.shared_paths().is_empty();
            let id = self.temporary_id(shared);
            if !shared {
                // What ends meanwhile makes nothing.
                for path in sink.paths() {
                    let awaited = self.member.await_endings(path, &id);
                    awaited.map_err(|error| refused(&error))?;
                }
            }
            let name = sink.paths().first().and_then(|path| path.file_name());
            let name = name.unwrap_or_default().to_string_lossy().into_owned();
            let (ranges, sink, layout) = match sink {
                // Each stream has its own buffer then; nothing reaches the sink.
                OpenSink::Null | OpenSink::Memory if in_memory => kept(all.clone(), false, end),
                OpenSink::Null => kept(all.clone(), false, end),
                OpenSink::Memory => kept(all.clone(), true, end),
                OpenSink::RowsKeptNowhere { ranges, memory } => kept(ranges, memory, end),
                OpenSink::Buffer {
                    name,
                    buffer,
                    layout,
                } => {
                    let layout = layout.unwrap_or_else(|| Layout::single(Range::new(0, end)));
                    let sink = BufferSink::new(&name, buffer, layout.clone());
                    let sink = sink.map_err(|error| refused(&error.into()))?;
                    (layout.ranges(), Arc::new(sink) as Arc<dyn Sink>, layout)
                }
                files @ OpenSink::Files { .. } => {
                    self.make_files(plan, files, (at as u32, mode), &id, &mut looked)?
                }
                tree @ OpenSink::Tree { .. } => self.make_tree(plan, tree, &id, &mut looked)?,
            };
            pieces.extend_from_slice(layout.pieces());
            made.push(PlacedSink {
                ranges,
                sink,
                shared,
                name,
            });
        }
        // Rows of several sinks may list the same bytes; one is enough to place unit borders.
        Layout::new(pieces).map_err(|error| Failure::Other(error.to_string()))
    }

    /// * `at`, `mode`: of the sink, as in the plan.
    fn make_files(
        &self,
        plan: &control::Plan,
        sink: OpenSink,
        (at, mode): (u32, Option<u32>),
        id: &str,
        looked: &mut Looked,
    ) -> Result<Made, Failure> {
        let OpenSink::Files {
            paths,
            layout,
            shared,
            keeps_rest,
        } = sink
        else {
            return Err(Failure::Other("no file is to be made".into()));
        };
        let file = |path| SinkFile {
            path,
            renames: true,
            mode,
            keeps_rest,
        };
        let files = paths.into_iter().map(file).collect();
        let (own, node) = (layout.clone(), self.member.node);
        let origins = origins(&plan.origins);
        let is_made = looked.made_files.contains(&at);
        let is_over = || self.stopped();
        let sink = match (looked.led_files.remove(&at), shared) {
            (Some(sink), _) => Ok(sink),
            (None, true) if is_made => {
                let sink = FileSink::share(own, files, id, node, &origins);
                // All of them judge alike what is worth keeping: the one that took it over goes on with it.
                if let (Ok(sink), false) = (&sink, looked.there.adopted.is_empty()) {
                    sink.keep_more();
                }
                sink
            }
            (None, true) => FileSink::create_unless(own, files, id, true, &is_over),
            (None, false) => {
                FileSink::update(own, files, id, &origins, self.member.adopt(), &is_over)
            }
        };
        let sink = sink.map_err(|error| match error {
            StoreError::Vanished { path, .. } if is_made => apart(&path),
            error => refused(&error),
        })?;
        Ok((layout.ranges(), Arc::new(sink), layout))
    }

    fn make_tree(
        self: &Arc<Self>,
        plan: &control::Plan,
        sink: OpenSink,
        id: &str,
        looked: &mut Looked,
    ) -> Result<Made, Failure> {
        let OpenSink::Tree {
            path,
            shared,
            make_folder,
            stood,
            checksums,
            sources,
        } = sink
        else {
            return Err(Failure::Other("no tree is to be made".into()));
        };
        // A pattern has no manifest: its copy is one plain file.
        if plan.parts.is_empty() {
            self.make_folder(&path, make_folder)?;
            let all = Range::new(0, plan.length);
            let layout = Layout::single(all);
            let files = vec![SinkFile {
                path,
                renames: true,
                ..SinkFile::default()
            }];
            let sink = FileSink::create(layout.clone(), files, id, shared)
                .map_err(|error| refused(&error))?;
            return Ok((RangeSet::from(all), Arc::new(sink), layout));
        }
        if let Some(folder) = looked.made_folder.take() {
            self.made_folders.lock().push(folder);
        }
        let elsewhere = plan.elsewhere.iter();
        let elsewhere: Vec<_> = elsewhere.map(|one| (one.folder, one.changed)).collect();
        let mut met = None;
        let sink = match looked.led.take() {
            Some(sink) => Ok(sink),
            None => {
                let lists = Lists {
                    member: &self.member,
                    ways: &self.ways,
                    peers: &plan.peers,
                };
                let parts = lists.fetch(&plan.parts).map_err(Failure::Other)?;
                if plan.delete {
                    let all = self.member.options.delete_all;
                    let checked = TreeSink::check_extra(&path, &parts, &self.member.filter, all);
                    checked.map_err(|error| refused(&error))?;
                    // Before what is there is compared, which may take hours.
                    met = Some(TreeSink::folders_met(&path, &parts, &elsewhere));
                }
                self.make_folder(&path, make_folder)?;
                let options = &self.member.options;
                let names_early = node::gives_names_early(
                    plan,
                    coordinator::compare(options.verify()),
                    options.verify() == Verify::Sink,
                );
                let contents = SourceHashes {
                    member: &self.member,
                    ways: &self.ways,
                    peers: &plan.peers,
                    parts: &plan.parts,
                    lines: AtomicUsize::new(0),
                    silent: Mutex::default(),
                };
                let wish = Wish {
                    names_early,
                    ..self.member.wish(&contents)
                };
                let dest = self.member.dest(&path, plan.delete);
                match (options.same().keeps(), shared) {
                    (true, false) => TreeSink::update(dest, &parts, id, wish),
                    (false, false) if names_early => TreeSink::replace(dest, &parts, id),
                    // What is the same for one node another one may see differently: one of them has decided.
                    (true, true) if looked.is_made => {
                        let Present {
                            unchanged,
                            adopted,
                            refused,
                            ..
                        } = &looked.there;
                        let shared = TreeSink::share(
                            dest,
                            &parts,
                            id,
                            self.member.node,
                            (unchanged, refused),
                            self.member.stays(),
                            self.member.check(),
                        );
                        // All of them judge alike what is worth keeping: the one that took it over goes on with it.
                        if let (Ok(sink), false) = (&shared, adopted.is_empty()) {
                            sink.expect(adopted);
                            sink.keep_more();
                        }
                        shared
                    }
                    (true | false, _) => TreeSink::create(dest, &parts, id, shared),
                }
            }
        };
        let sink = sink.map_err(|error| match error {
            StoreError::Vanished { path, .. } if looked.is_made => apart(&path),
            error => {
                let is_at_once = plan.commit && !plan.whole_files && stood.is_some();
                refused_tree(&error, is_at_once)
            }
        })?;
        if let Some(stood) = stood {
            sink.dest_was(stood);
        }
        if let Some(list) = checksums {
            sink.write_checksums(list);
        }
        if plan.delete {
            sink.keep_sources(sources);
            sink.keep_elsewhere(elsewhere, met);
            sink.remove_extra(self.member.filter.clone());
            if shared {
                let fetch = Arc::downgrade(self);
                let holds = move || fetch.upgrade().is_some_and(|fetch| fetch.gets_permit());
                sink.ask_before_removing(Permit::of(holds));
            }
        }
        let layout = sink.layout().clone();
        Ok((layout.ranges(), Arc::new(sink), layout))
    }

    /// Makes the folder that is to hold a copy, where the user named it as one and it is missing.
    fn make_folder(&self, path: &Path, wanted: bool) -> Result<(), Failure> {
        if let Some(folder) = path.parent().filter(|_| wanted)
            && ropewalk_store::make_folder(folder).map_err(|error| refused(&error))?
        {
            self.made_folders.lock().push(folder.to_owned());
        }
        Ok(())
    }

    /// Removes the folders that were made for copies and are empty.
    pub(super) fn remove_made_folders(&self) {
        for folder in std::mem::take(&mut *self.made_folders.lock()) {
            ropewalk_store::remove_empty_folder(&folder);
        }
    }
}
