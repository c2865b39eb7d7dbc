//! Would a copy take the place of its own source, lie in it or, with `--delete`, remove it, where both are named through different nodes
//! that see one file system?
//!
//! An agent says of its sources, as of its final paths ([`super::places`]), which folders they are in, by number. Where the numbers and names
//! allow that a copy meets a source, the node of the copy leaves its mark, and then the node of the source looks whether the mark is where
//! it would be. A node compares its own paths itself.
//!
//! Paths do not show every meeting: a source may be mounted from below a copy. So a removal also leaves folders that have the number of a source
//! of another node ([`Coordinator::sources_elsewhere`]).

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use ropewalk_model::{Range, RangeSet};

use super::Coordinator;
use super::layout::last_component;
use super::places::Spot;
use super::shared_rows::destination_of;
use crate::control::{self, Elsewhere, Existing, Identity, Own, Place, Root, sink, source};

/// By node that sends: what it has to look for, in the order of the message.
pub(super) type Owns = BTreeMap<u32, Vec<Meeting>>;

/// Places that may meet a source.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Meeting {
    pub own: Own,
    /// Places with the same number and rest: any of them may be the one whose mark is found.
    pub spots: Vec<Spot>,
    /// What the copy would do to the source.
    would: &'static str,
}

/// A root by its node, source and position.
#[derive(Clone, Copy)]
struct At<'r> {
    node: u32,
    source: u32,
    number: u32,
    root: &'r Root,
}

impl Coordinator {
    /// What nodes that send trees have to look for. Cost O(roots + places × folders above them + meetings).
    pub(super) fn own_sources(&self) -> Owns {
        let roots: Vec<At<'_>> = self.roots().collect();
        let names: HashSet<&[u8]> = roots.iter().map(|at| &at.root.name[..]).collect();
        let mut folders: HashMap<u64, Vec<At<'_>>> = HashMap::new();
        // With the steps up.
        let mut above: HashMap<u64, Vec<(At<'_>, usize)>> = HashMap::new();
        for at in &roots {
            if at.root.folder != 0 {
                folders.entry(at.root.folder).or_default().push(*at);
            }
            for (step, one) in at.root.above.iter().enumerate() {
                above.entry(one.folder).or_default().push((*at, step));
            }
        }
        let mut looks = Looks::default();
        for (spot, place) in self.tree_places() {
            let inside = std::iter::once(place.folder).chain(place.above.iter().map(|a| a.folder));
            for (depth, folder) in inside.enumerate() {
                for at in folders.get(&folder).into_iter().flatten() {
                    let is_it = depth == 0 && place.rest.is_empty() && at.root.name.is_empty();
                    let would = match is_it {
                        true => "would take the place of its own source",
                        false => "would lie in its own source",
                    };
                    looks.add(*at, (0, path_down(place, depth)), (spot, place), would);
                }
            }
            for (at, step) in above.get(&place.folder).into_iter().flatten() {
                let way = at.root.above[..=*step].iter().rev();
                let way = join(way.map(|one| &one.name[..]));
                if let Some(would) = self.meets(&way, place, at.root, &names) {
                    looks.add(*at, (*step as u32 + 1, Vec::new()), (spot, place), would);
                }
            }
        }
        looks.owns
    }

    /// What a copy does to a source that is at `way` from the copy's folder.
    fn meets(
        &self,
        way: &[u8],
        place: &Place,
        root: &Root,
        names: &HashSet<&[u8]>,
    ) -> Option<&'static str> {
        // What is missing is no source, and neither is a file one that is a folder.
        if !(place.rest.is_empty() || place.stands && root.folder == 0) {
            return None;
        }
        let copy = join([&place.rest[..], &root.name]);
        if way == copy {
            return Some("would take the place of its own source");
        }
        if !self.setup.options.delete {
            return None;
        }
        if holds(&copy, way) {
            return Some("would, with --delete, hold its own source");
        }
        let first = way.split(|byte| *byte == b'/').next()?;
        let is_beside = first.len() < way.len() && names.contains(first);
        is_beside.then_some("would, with --delete, lie beside a copy that holds its own source")
    }

    /// Folders that other nodes send than this one, each with its last change. Several may have one number.
    pub(super) fn sources_elsewhere(&self, node: u32) -> Vec<Elsewhere> {
        let roots = self.roots();
        let others = roots.filter(|at| at.node != node && at.root.folder != 0);
        let folders: BTreeSet<(u64, i64)> =
            others.map(|at| (at.root.folder, at.root.changed)).collect();
        let folders = folders.into_iter();
        folders
            .map(|(folder, changed)| Elsewhere { folder, changed })
            .collect()
    }

    fn roots(&self) -> impl Iterator<Item = At<'_>> {
        (0u32..).zip(&self.nodes).flat_map(|(node, state)| {
            let opened = state.opened.as_deref();
            let sources = opened.map_or(&[][..], |opened| &opened.sources);
            let sources = (0u32..).zip(std::iter::zip(sources, &state.setup.sources));
            let trees = sources.filter(|(_, (_, setup))| {
                let kind = &setup.source.kind;
                matches!(kind, Some(source::Kind::Tree(_) | source::Kind::Bundle(_)))
            });
            trees.flat_map(move |(source, (opened, _))| {
                (0u32..).zip(&opened.roots).map(move |(number, root)| At {
                    node,
                    source,
                    number,
                    root,
                })
            })
        })
    }

    /// Of rows: a file that is to be replaced by one that lacks some of its bytes, and that is a source itself, in words. A file is known by
    /// its number, length and time, whichever node sees it.
    pub(super) fn own_rows(&self) -> Option<String> {
        if self.setup.options.existing() == Existing::Kept {
            return None;
        }
        let known = |file: &Identity| {
            let time = (file.modified_seconds, file.modified_nanoseconds);
            (file.file != 0).then_some((file.file, file.length, time))
        };
        let mut sources = HashSet::new();
        for node in &self.nodes {
            let of_rows = node.opened.iter().flat_map(|opened| &opened.sources);
            sources.extend(
                of_rows
                    .flat_map(|source| &source.identities)
                    .filter_map(known),
            );
        }
        for node in &self.nodes {
            for place in node.opened.iter().flat_map(|opened| &opened.places) {
                let Some(file) = place.file.as_ref() else {
                    continue;
                };
                if !known(file).is_some_and(|file| sources.contains(&file)) {
                    continue;
                }
                let rows = node.setup.sinks.get(place.sink as usize);
                let rows = rows.map_or(&[][..], |sink| &sink.sink.rows);
                let Some(first) = rows.get(place.row as usize) else {
                    continue;
                };
                // Others of its destination write the rest.
                let shared = destination_of(node);
                let members = self.nodes.iter().filter(|other| {
                    std::ptr::eq(*other, node)
                        || shared.is_some() && destination_of(other) == shared
                });
                let rows = members.flat_map(|other| &other.setup.sinks);
                let rows = rows.flat_map(|sink| &sink.sink.rows);
                let own = rows.filter(|row| row.object == first.object);
                let written = own.map(|row| control::range(row.object_offset, row.length));
                let all = Range::new(0, file.length);
                if !RangeSet::from_ranges(written).contains_range(all) {
                    return Some(format!(
                        "{}:{} is a source, by its number, length and time, and would be replaced by a file without some of its bytes; name \
                         another destination, or remove it if it is another file",
                        node.setup.name,
                        first.object.escape_ascii()
                    ));
                }
            }
        }
        None
    }

    fn tree_places(&self) -> impl Iterator<Item = (Spot, &Place)> {
        (0u32..).zip(&self.nodes).flat_map(|(node, state)| {
            let opened = state.opened.as_deref();
            let places = opened.map_or(&[][..], |opened| &opened.places);
            let places = (0u32..).zip(places).filter(|(_, place)| {
                let sink = state.setup.sinks.get(place.sink as usize);
                sink.is_some_and(|sink| matches!(sink.sink.kind, Some(sink::Kind::Tree(_))))
            });
            places.map(move |(number, place)| ((node, number), place))
        })
    }

    /// Why a place must not be where it was found to be.
    pub(super) fn own_refusal(&self, sender: u32, meeting: &Meeting) -> String {
        let state = &self.nodes[sender as usize];
        let number = meeting.own.source as usize;
        let kind = state.setup.sources.get(number);
        let opened = state.opened.as_deref();
        let roots = opened.and_then(|opened| opened.sources.get(number));
        let root = roots.and_then(|source| source.roots.get(meeting.own.root as usize));
        let named: &[u8] = match kind.and_then(|setup| setup.source.kind.as_ref()) {
            Some(source::Kind::Tree(path)) => path,
            // Filters leave out some of what was named.
            Some(source::Kind::Bundle(bundle)) => {
                let name = root.map_or(&[][..], |root| &root.name);
                let is_it = |path: &&Vec<u8>| last_component(path) == name;
                bundle.paths.iter().find(is_it).map_or(name, |path| path)
            }
            _ => &[],
        };
        let copies = meeting.spots.iter().map(|spot| self.name(spot.0));
        let copies: BTreeSet<&str> = copies.collect();
        let copies = Vec::from_iter(copies).join(" or ");
        format!(
            "the copy on {copies} {} {}:{}, as both see one file system; name another destination",
            meeting.would,
            self.name(sender),
            named.escape_ascii()
        )
    }
}

/// Each folder is looked into once for each mark.
#[derive(Default)]
struct Looks<'r> {
    owns: Owns,
    // Where each is in those of its node.
    seen: HashMap<Look<'r>, usize>,
}

/// A folder of a node, and the mark that may be there.
#[derive(PartialEq, Eq, Hash)]
struct Look<'r> {
    node: u32,
    device: u64,
    folder: u64,
    // From the folder on.
    path: Vec<u8>,
    rest: &'r [u8],
}

impl<'r> Looks<'r> {
    fn add(
        &mut self,
        at: At<'r>,
        (up, path): (u32, Vec<u8>),
        (spot, place): (Spot, &'r Place),
        would: &'static str,
    ) {
        let root = at.root;
        let folder = match up {
            0 => root.folder,
            _ => root.above[up as usize - 1].folder,
        };
        let look = Look {
            node: at.node,
            device: root.device,
            folder,
            path: path.clone(),
            rest: &place.rest,
        };
        if at.node == spot.0 {
            return;
        }
        let meetings = self.owns.entry(at.node).or_default();
        match self.seen.entry(look) {
            Entry::Occupied(known) => {
                let spots = &mut meetings[*known.get()].spots;
                // The places are in order.
                if spots.last() != Some(&spot) {
                    spots.push(spot);
                }
                return;
            }
            Entry::Vacant(new) => new.insert(meetings.len()),
        };
        let own = Own {
            source: at.source,
            root: at.number,
            up,
            path,
            rest: place.rest.clone(),
        };
        let spots = vec![spot];
        meetings.push(Meeting { own, spots, would });
    }
}

/// From a folder so many steps above a place's own down to that one.
fn path_down(place: &Place, depth: usize) -> Vec<u8> {
    join(place.above[..depth].iter().rev().map(|one| &one.name[..]))
}

fn join<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> Vec<u8> {
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(&b'/')
}

/// Whether a path lies below another one; all do below the empty one.
fn holds(folder: &[u8], path: &[u8]) -> bool {
    let rest = path.strip_prefix(folder);
    rest.is_some_and(|rest| folder.is_empty() || rest.starts_with(b"/"))
}
