//! Before the first byte: manifests are fetched from holders, sinks are made.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_lane::{Grant, Received};
use ropewalk_model::{Layout, Piece, Range, RangeSet};
use ropewalk_proto::control::{self, Same, Verify};
use ropewalk_proto::node::Failure;
use ropewalk_proto::wire::CHUNK_LEN;
use ropewalk_store::{
    FileSink, Manifest, MemorySink, NullSink, Part, Sink, SinkFile, StoreError, TreeSink,
};

use super::Fetch;
use crate::connect::Via;
use crate::landing::{BufferLanding, PlacedSink, SinkSet, manifest_space};
use crate::open::OpenSink;
use crate::streams::MANIFEST_STREAM;

/// Largest manifest that is fetched (about ten million files); it is held in memory.
const MANIFEST_MAX: u64 = 1 << 30;

/// A holder that sends no part of a manifest for this long is passed over.
const MANIFEST_SILENCE: Duration = Duration::from_secs(15);

/// Room for bytes that are only kept in memory.
const MEMORY_LEN: u64 = 16 << 20;

/// A sink cannot be made: this node's destination has not changed.
fn refused(error: &StoreError) -> Failure {
    Failure::Refused(error.to_string())
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
        &self,
        plan: &control::Plan,
        sinks: Vec<OpenSink>,
    ) -> Result<SinkSet, Failure> {
        let keeps = |sink: &OpenSink| {
            !matches!(
                sink,
                OpenSink::Memory | OpenSink::RowsKeptNowhere { memory: true, .. }
            )
        };
        let in_memory = self.member.options.verify() != Verify::Sink && !sinks.iter().any(keeps);
        let shared: Vec<PathBuf> = sinks
            .iter()
            .flat_map(|sink| sink.shared_paths())
            .cloned()
            .collect();
        let mut made = Vec::new();
        match self.make(plan, sinks, in_memory, &mut made) {
            Ok(layout) => Ok(SinkSet::new(made, layout, plan.unit_len(), in_memory)),
            Err(reason) => {
                // No byte has come yet: these only take space, which is reserved.
                for placed in made.iter().filter(|placed| !placed.shared) {
                    placed.sink.discard();
                }
                *self.unmade.lock() = shared;
                self.remove_made_folders();
                Err(reason)
            }
        }
    }

    /// Makes one sink after the other; the layout of all.
    fn make(
        &self,
        plan: &control::Plan,
        sinks: Vec<OpenSink>,
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
            let name = sink.paths().first().and_then(|path| path.file_name());
            let name = name.unwrap_or_default().to_string_lossy().into_owned();
            let (ranges, sink, layout) = match sink {
                // Each stream has its own buffer then; nothing reaches the sink.
                OpenSink::Null | OpenSink::Memory if in_memory => kept(all.clone(), false, end),
                OpenSink::Null => kept(all.clone(), false, end),
                OpenSink::Memory => kept(all.clone(), true, end),
                OpenSink::RowsKeptNowhere { ranges, memory } => kept(ranges, memory, end),
                OpenSink::Files {
                    paths,
                    layout,
                    shared,
                    keeps_rest,
                } => {
                    let file = |path| SinkFile {
                        path,
                        renames: true,
                        mode,
                        keeps_rest,
                    };
                    let files = paths.into_iter().map(file).collect();
                    let sink = FileSink::create(layout.clone(), files, &id, shared)
                        .map_err(|error| refused(&error))?;
                    (layout.ranges(), Arc::new(sink) as Arc<dyn Sink>, layout)
                }
                tree @ OpenSink::Tree { .. } => self.make_tree(plan, tree, &id)?,
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

    fn make_tree(&self, plan: &control::Plan, sink: OpenSink, id: &str) -> Result<Made, Failure> {
        let OpenSink::Tree {
            path,
            shared,
            make_folder,
            stood,
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
        let mut parts = Vec::new();
        for (at, part) in plan.parts.iter().enumerate() {
            let fetched = self.fetch_manifest(plan, at, part);
            let manifest = Arc::new(fetched.map_err(Failure::Other)?);
            parts.push(Part {
                base: part.base,
                manifest,
                left_out: control::range_set(&part.left_out),
            });
        }
        self.make_folder(&path, make_folder)?;
        // What is the same for one node of a shared copy another one may see differently.
        let sink = match self.member.options.same() == Same::Kept && !shared {
            true => TreeSink::update(&path, &parts, id),
            false => TreeSink::create(&path, &parts, id, shared),
        };
        let sink = sink.map_err(|error| refused(&error))?;
        if let Some(stood) = stood {
            sink.dest_was(stood);
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

    /// Fetches one manifest from the first holder that serves it and checks it against its root.
    fn fetch_manifest(
        &self,
        plan: &control::Plan,
        at: usize,
        part: &control::Part,
    ) -> Result<Manifest, String> {
        if part.manifest_length > MANIFEST_MAX {
            return Err(format!(
                "the manifest has {} bytes, more than {MANIFEST_MAX}; copy subfolders one by one",
                part.manifest_length
            ));
        }
        let mut last = String::from("no holder is known");
        for holder in &part.holders {
            let Some(peer) = plan.peers.iter().find(|p| p.node == *holder) else {
                continue;
            };
            match self.fetch_manifest_from(peer, at, part) {
                Ok(manifest) => return Ok(manifest),
                Err(reason) => last = format!("{}: {reason}", peer.name),
            }
            if self.stopped() {
                break;
            }
        }
        Err(format!("the list of files cannot be fetched: {last}"))
    }

    fn fetch_manifest_from(
        &self,
        peer: &control::Peer,
        at: usize,
        part: &control::Part,
    ) -> Result<Manifest, String> {
        let connected = self.ways.connect(&self.member, peer);
        let connected = connected.map_err(|e| e.to_string())?;
        let (mut half, _) = connected
            .join(&self.member, &Via::Pair, MANIFEST_STREAM)
            .map_err(|e| e.to_string())?;
        let key = self.member.remember(half.stopper());
        let mut landing = BufferLanding {
            bytes: vec![0; part.manifest_length as usize],
        };
        let result = (|| {
            let mut start = 0;
            let mut id = 0;
            while start < part.manifest_length {
                let end = (start + CHUNK_LEN).min(part.manifest_length);
                let grant = Grant {
                    id,
                    space: manifest_space(at),
                    range: Range { start, end },
                    hash: false,
                    digest: false,
                };
                half.grant(&[grant]).map_err(|e| e.to_string())?;
                match half
                    .receive(&mut landing, Instant::now() + MANIFEST_SILENCE)
                    .map_err(|e| e.to_string())?
                {
                    Received::Unit { .. } => start = end,
                    Received::Corrupt { reason, .. } | Received::Missing { reason, .. } => {
                        return Err(reason);
                    }
                    Received::Digest { .. } => {
                        return Err("it sent a hash where the list of files was due".into());
                    }
                    Received::Idle => {
                        return Err(format!("silent for {} s", MANIFEST_SILENCE.as_secs()));
                    }
                }
                id += 1;
            }
            Ok(())
        })();
        self.member.forget(key);
        result?;
        if blake3::hash(&landing.bytes).as_bytes().as_slice() != part.manifest_root {
            return Err("the list of files does not match its hash".into());
        }
        Manifest::decode(&landing.bytes).map_err(|e| e.to_string())
    }
}
