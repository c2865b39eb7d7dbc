//! The sources of one copy as one list of entries.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use ropewalk_model::{Layout, Piece, RangeSet};

use crate::error::StoreError;
use crate::manifest::{Entry, EntryKind, Manifest};

/// A manifest and where its bytes begin in the data space.
#[derive(Debug, Clone)]
pub struct Part {
    /// Data-space offset of the first byte.
    pub base: u64,
    /// The entries.
    pub manifest: Arc<Manifest>,
    /// Data-space ranges of files that no holder can read: the copy is without these files.
    pub left_out: RangeSet,
}

impl Part {
    /// All of a manifest.
    #[must_use]
    pub fn whole(base: u64, manifest: Arc<Manifest>) -> Self {
        Self {
            base,
            manifest,
            left_out: RangeSet::new(),
        }
    }
}

/// The entries of a copy: of one part they are that part's own list, which may be long.
#[derive(Debug)]
pub(super) enum Entries {
    Of(Arc<Manifest>),
    Merged(Vec<Entry>),
}

impl Deref for Entries {
    type Target = [Entry];

    fn deref(&self) -> &[Entry] {
        match self {
            Self::Of(manifest) => &manifest.entries,
            Self::Merged(entries) => entries,
        }
    }
}

/// One sorted list of entries, and where the bytes of each lie.
pub(super) fn merge(parts: &[Part]) -> Result<(Entries, Layout), StoreError> {
    let manifests: Vec<&Manifest> = parts.iter().map(|part| &*part.manifest).collect();
    for manifest in &manifests {
        let refused = |reason| StoreError::Manifest {
            path: PathBuf::new(),
            reason,
        };
        manifest.check().map_err(refused)?;
    }
    if let Some((path, first, second)) = Manifest::conflict(&manifests) {
        return Err(StoreError::Conflict {
            path: OsStr::from_bytes(&path).into(),
            first,
            second,
        });
    }
    if let [part] = parts
        && part.left_out.is_empty()
    {
        let layout = part.manifest.layout(part.base)?;
        return Ok((Entries::Of(part.manifest.clone()), layout));
    }
    let mut entries: Vec<Entry> = Vec::new();
    let mut placed = Vec::new();
    for part in parts {
        let layout = part.manifest.layout(part.base)?;
        let is_left_out = |piece: &&Piece| !part.left_out.clipped(piece.range).is_empty();
        let pieces = layout.pieces().iter();
        let left_out: HashSet<u32> = pieces.filter(is_left_out).map(|p| p.object).collect();
        let copied = (0..)
            .zip(&part.manifest.entries)
            .filter(|(object, _)| !left_out.contains(object));
        entries.extend(copied.map(|(_, entry)| entry.clone()));
        placed.push((part, layout, left_out));
    }
    // Stable: of several, the first part's folder stays.
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    entries.dedup_by(|next, kept| next.path == kept.path);
    // A further name of a file that is left out is left out, too.
    let is_there = |entry: &Entry| match &entry.kind {
        EntryKind::HardLink { to } => entries.binary_search_by(|e| e.path.cmp(to)).is_ok(),
        _ => true,
    };
    let lost: HashSet<Vec<u8>> = entries
        .iter()
        .filter(|entry| !is_there(entry))
        .map(|entry| entry.path.clone())
        .collect();
    if !lost.is_empty() {
        entries.retain(|entry| !lost.contains(&entry.path));
    }
    let mut pieces = Vec::new();
    for (part, layout, left_out) in placed {
        for piece in layout.pieces() {
            let path = &part.manifest.entries[piece.object as usize].path;
            if let Ok(at) = entries.binary_search_by(|entry| entry.path.cmp(path))
                && !left_out.contains(&piece.object)
            {
                pieces.push(Piece {
                    object: at as u32,
                    ..*piece
                });
            }
        }
    }
    Ok((Entries::Merged(entries), Layout::new(pieces)?))
}
