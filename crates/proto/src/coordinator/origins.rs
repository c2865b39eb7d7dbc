//! Which bytes of which files the bytes of a specification's rows are, as receivers record them: what they have received of a file can be
//! of use to a later transfer only where that takes the same bytes of the same version of it.
//!
//! Replicas are one file, whatever their hosts. Where the rows of different files claim the same bytes, nothing says which of them a
//! receiver gets: these have no origin.

use std::collections::BTreeSet;

use ropewalk_model::{Range, RangeSet};

use super::{Coordinator, Node, setup};
use crate::control::{self, Identity, Origin, Same};

/// A row of a file that is held.
struct Held {
    range: Range,
    /// Offset in the file less offset in the data space.
    shift: i128,
    name: Vec<u8>,
    /// `None` where it is neither a file nor a buffer.
    identity: Option<Identity>,
}

/// The last component of a path.
fn last_name(path: &[u8]) -> &[u8] {
    let mut parts = path.split(|byte| *byte == b'/');
    parts.rfind(|part| !part.is_empty()).unwrap_or_default()
}

/// Whether an object of a row is a file.
pub(super) fn is_file(object: &[u8]) -> bool {
    has_identity(object) && !object.starts_with(b"buffer:")
}

/// Whether what identifies an object says which bytes it has: a file, or a buffer of a program.
fn has_identity(object: &[u8]) -> bool {
    !object.starts_with(b"mem:") && object != b"null:"
}

impl Coordinator {
    /// Finds out where the bytes of rows come from. Cost O(rows × (log rows + rows that overlap)).
    pub(super) fn note_origins(&mut self) {
        let mut held: Vec<Held> = Vec::new();
        for node in &self.nodes {
            let opened = node.opened.iter().flat_map(|opened| &opened.sources);
            for (source, opened) in node.setup.sources.iter().zip(opened) {
                for (row, identity) in source.source.rows.iter().zip(&opened.identities) {
                    held.push(Held {
                        range: control::range(row.start, row.length),
                        shift: i128::from(row.object_offset) - i128::from(row.start),
                        name: last_name(&row.object).to_vec(),
                        identity: has_identity(&row.object).then_some(Identity {
                            mode: None,
                            ..*identity
                        }),
                    });
                }
            }
        }
        held.sort_by_key(|held| held.range.start);
        self.space.origins = origins(&held);
    }

    /// Origins of what a node's files of rows take: its own ones, and those of a destination in which it was looked what is there.
    pub(super) fn origins_of(&self, node: &Node) -> Vec<Origin> {
        let sinks = node.setup.sinks.iter();
        let own = sinks.filter(|sink| {
            let rows = &sink.sink.rows;
            let destination = sink.destination.as_deref();
            let is_recorded = destination.is_none_or(|name| self.looking.is_made(name));
            is_recorded && rows.iter().all(|row| is_file(&row.object))
        });
        let taken = RangeSet::from_ranges(own.flat_map(|sink| setup::row_ranges(&sink.sink.rows)));
        self.origins_in(&taken)
    }

    /// Origins of bytes of the data space; none where nothing is recorded.
    pub(super) fn origins_in(&self, taken: &RangeSet) -> Vec<Origin> {
        if self.setup.options.same() != Same::Kept {
            return Vec::new();
        }
        let origins = self.space.origins.iter();
        let is_taken = |origin: &&Origin| {
            let range = control::range(origin.start, origin.length);
            !taken.clipped(range).is_empty()
        };
        origins.filter(is_taken).cloned().collect()
    }
}

/// * `held`: in the order of their first bytes.
fn origins(held: &[Held]) -> Vec<Origin> {
    let ends = held
        .iter()
        .flat_map(|held| [held.range.start, held.range.end]);
    let borders: BTreeSet<u64> = ends.collect();
    let mut found: Vec<Origin> = Vec::new();
    let (mut next, mut active): (usize, Vec<&Held>) = (0, Vec::new());
    let ends = borders.iter().skip(1);
    for (&start, &end) in borders.iter().zip(ends) {
        while let Some(held) = held.get(next).filter(|held| held.range.start <= start) {
            active.push(held);
            next += 1;
        }
        active.retain(|held| held.range.end > start);
        let Some(origin) = origin(Range::new(start, end), &active) else {
            continue;
        };
        match found.last_mut() {
            Some(last) if continues(last, &origin) => last.length += origin.length,
            _ => found.push(origin),
        }
    }
    found
}

/// The origin of bytes that all of these rows hold.
fn origin(range: Range, held: &[&Held]) -> Option<Origin> {
    let first = held.first()?;
    let is_same = |other: &&Held| (other.shift, &other.identity) == (first.shift, &first.identity);
    let identity = first.identity.filter(|_| held.iter().all(is_same))?;
    let name = held.iter().map(|held| &held.name).min()?;
    Some(Origin {
        start: range.start,
        length: range.len(),
        offset: u64::try_from(i128::from(range.start) + first.shift).ok()?,
        name: name.clone(),
        identity: Some(identity),
    })
}

fn continues(last: &Origin, next: &Origin) -> bool {
    let is_next = last.start + last.length == next.start;
    let is_next_in_file = last.offset + last.length == next.offset;
    is_next && is_next_in_file && (&last.name, &last.identity) == (&next.name, &next.identity)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(range: Range, shift: i128, name: &str, seconds: i64) -> Held {
        Held {
            range,
            shift,
            name: name.into(),
            identity: Some(Identity {
                length: 500,
                modified_seconds: seconds,
                ..Identity::default()
            }),
        }
    }

    /// Start, length, offset, name and time of each.
    fn found(held: &mut [Held]) -> Vec<(u64, u64, u64, String, i64)> {
        held.sort_by_key(|held| held.range.start);
        let text = |name: Vec<u8>| String::from_utf8(name).unwrap();
        let origins = origins(held).into_iter();
        origins
            .map(|o| {
                let seconds = o.identity.unwrap().modified_seconds;
                (o.start, o.length, o.offset, text(o.name), seconds)
            })
            .collect()
    }

    /// Replicas are one file, of the name that sorts first; rows that follow each other in one file are one stretch of it.
    #[test]
    fn replicas_have_one_origin() {
        let range = Range::new;
        let mut rows = [
            held(range(0, 100), 0, "half", 1),
            held(range(100, 200), 0, "half", 1),
            held(range(50, 120), 0, "half.old", 1),
            held(range(200, 300), -200, "half2", 2),
        ];
        let half = |start, length, offset, name: &str, seconds| {
            (start, length, offset, name.to_owned(), seconds)
        };
        assert_eq!(
            found(&mut rows),
            [half(0, 200, 0, "half", 1), half(200, 100, 0, "half2", 2)]
        );
    }

    /// What rows of different files claim, of another place or time, has no origin; nor has what is no file.
    #[test]
    fn contested_bytes_have_no_origin() {
        let range = Range::new;
        let whole = || held(range(0, 100), 0, "a", 1);
        for other in [
            held(range(40, 60), 5, "a", 1),
            held(range(40, 60), 0, "a", 2),
            Held {
                identity: None,
                ..held(range(40, 60), 0, "mem:100", 0)
            },
        ] {
            let found = found(&mut [whole(), other]);
            let places: Vec<_> = found.iter().map(|one| (one.0, one.1, one.2)).collect();
            assert_eq!(places, [(0, 40, 0), (60, 40, 60)]);
        }
    }

    /// Names are last components, as of paths that end in a slash.
    #[test]
    fn names_of_paths() {
        for (path, name) in [
            ("/a/half", "half"),
            ("half", "half"),
            ("/a//", "a"),
            ("/", ""),
        ] {
            assert_eq!(last_name(path.as_bytes()), name.as_bytes());
        }
    }
}
