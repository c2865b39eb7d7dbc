//! What the master asks before anything moves, because it takes two nodes to know: do both see one place, do their files
//! hold the same bytes, how far are they from each other?

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use ropewalk_model::Range;
use ropewalk_proto::control::{self, Mark, Probe, Probed};
use ropewalk_proto::coordinator::{mark_text, parse_mark};
use ropewalk_store::Place;

use super::Transfer;
use crate::open::{self, OpenSink, OpenSource, above_of};
use crate::trips;

/// Longest sample that is read (1 MiB); the master asks for less.
const SAMPLE_MAX: u64 = 1 << 20;

/// Where the final paths of sinks will stand: to look at, and for the master.
pub(super) fn places(
    asked: &[control::Sink],
    sinks: &[OpenSink],
) -> (Vec<Place>, Vec<control::Place>) {
    let (mut places, mut told) = (Vec::new(), Vec::new());
    for (number, (asked, sink)) in asked.iter().zip(sinks).enumerate() {
        let is_tree = matches!(sink, OpenSink::Tree { .. });
        for (at, path) in sink.paths().iter().enumerate() {
            let Some(place) = Place::of(path, is_tree) else {
                continue;
            };
            // Paths are in the order in which rows mention their objects first.
            let mut objects: Vec<&[u8]> = Vec::new();
            let first = asked.rows.iter().position(|row| {
                if !objects.contains(&row.object.as_slice()) {
                    objects.push(&row.object);
                }
                objects.len() > at
            });
            told.push(control::Place {
                above: place.above.iter().map(above_of).collect(),
                folder: place.inode,
                keeps: place.keeps_inode,
                rest: place.rest.clone(),
                stands: place.stands,
                file: match sink {
                    OpenSink::Files { .. } => open::file_at(path),
                    _ => None,
                },
                sink: number as u32,
                row: first.unwrap_or(0) as u32,
            });
            places.push(place);
        }
    }
    (places, told)
}

impl Transfer {
    pub(super) fn id_text(&self) -> String {
        self.member
            .id
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    /// Leaves marks or looks for what others write, reads samples; with nothing to do, removes the marks.
    pub fn probe(&self, probe: &Probe) -> Probed {
        let id = self.id_text();
        if *probe == Probe::default() {
            self.remove_marks();
            return Probed::default();
        }
        let trips = trips::measure(&self.member, &probe.landmarks);
        let mut marks = Vec::new();
        for &number in &probe.places {
            let Some(place) = self.places.get(number as usize) else {
                continue;
            };
            match probe.others.is_empty() {
                true => {
                    self.marked.lock().push(number);
                    let text = mark_text(self.member.node, number);
                    let found = place.mark(&id, &text);
                    if self.member.has_ended() {
                        // The end may have looked for it before it was there.
                        place.unmark(&id, &text);
                    }
                    let found = found.ok().flatten();
                    marks.extend(found.and_then(|text| parse_mark(&text, number)));
                }
                false => {
                    let staged = |node: &&u32| {
                        place.is_staged(&id) || place.is_staged(&format!("{id}-{node}"))
                    };
                    let node = probe.others.iter().find(staged);
                    marks.extend(node.map(|&node| Mark {
                        place: number,
                        node,
                        of: 0,
                    }));
                }
            }
        }
        let samples = probe.samples.iter().zip(&probe.sources);
        let hash = |(sample, source): (&control::Stretch, &u32)| {
            let range = control::range(sample.start, sample.length);
            self.hash_sample(*source, range).unwrap_or_default()
        };
        Probed {
            marks,
            hashes: samples.map(hash).collect(),
            trips,
            found: self.marked_owns(&probe.owns),
        }
    }

    /// Positions of those folders, in this node's sources or above them, where the mark is.
    fn marked_owns(&self, owns: &[control::Own]) -> Vec<u32> {
        let id = self.id_text();
        let is_marked = |own: &control::Own| {
            let folder = self.folder_of_own(own);
            folder.is_some_and(|folder| Place::is_marked(&folder, &own.rest, &id))
        };
        let owns = (0..).zip(owns);
        owns.filter(|(_, own)| is_marked(own))
            .map(|(at, _)| at)
            .collect()
    }

    /// `None` where there is no such source, and for paths that leave it.
    fn folder_of_own(&self, own: &control::Own) -> Option<PathBuf> {
        let sources = self.sources.lock();
        let OpenSource::Tree { root, .. } = sources.get(own.source as usize)? else {
            return None;
        };
        let (_, path) = root.things().nth(own.root as usize)?;
        let up = path.ancestors().nth(own.up as usize)?;
        let below = Path::new(OsStr::from_bytes(&own.path));
        let mut parts = below.components();
        let is_below = parts.all(|part| matches!(part, Component::Normal(_)));
        is_below.then(|| up.components().chain(below.components()).collect())
    }

    fn hash_sample(&self, source: u32, range: Range) -> Option<Vec<u8>> {
        let source = match self.sources.lock().get(source as usize)? {
            OpenSource::Rows { source, .. } if range.len() <= SAMPLE_MAX => source.clone(),
            _ => return None,
        };
        let mut bytes = vec![0; range.len() as usize];
        source.read_at(range.start, &mut bytes).ok()?;
        Some(blake3::hash(&bytes).as_bytes().to_vec())
    }

    /// Removes the marks that this node has left.
    pub(super) fn remove_marks(&self) {
        let marked = std::mem::take(&mut *self.marked.lock());
        let id = self.id_text();
        for number in marked {
            if let Some(place) = self.places.get(number as usize) {
                place.unmark(&id, &mark_text(self.member.node, number));
            }
        }
    }
}
