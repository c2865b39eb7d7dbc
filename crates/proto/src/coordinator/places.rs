//! Do two nodes write to one place without a declaration that they share it? Found out before anything moves.
//!
//! Agents say of each final path which folder is there, by its number, and the rest of the path. Where two say the same
//! they may see one file system, or two that are numbered alike; then both are asked to leave a mark, and a node that
//! finds the other's mark sees the same place. What is wrong there:
//!
//! | destinations | one place is |
//! | --- | --- |
//! | copies | wrong: one would replace the other; `--destinations shared` makes them one |
//! | rows with one `dest=` | what was said |
//! | rows of equal ranges without | harmless: each is whole, the last one stays |
//! | rows of different ranges without | wrong: each would lack the other's part, and the last one stays |
//!
//! A node that joins later is asked whether what the others have begun to write is there.

use std::collections::{BTreeMap, BTreeSet};

use super::life::NodeLife;
use super::{Coordinator, Destinations, Mapping};
use crate::control::{self, Place, Probe, Probed, Row, sink, to_agent};

/// Node, and which of its places.
pub(super) type Spot = (u32, u32);

impl Coordinator {
    /// Why places that proved to be one must not be; `None` when nothing is wrong.
    pub(super) fn marks_clash(&self, found: &[(u32, control::Mark)]) -> Option<String> {
        // Each place by the mark that stands there: who left it, and who found it.
        let mut met: BTreeMap<Spot, Vec<Spot>> = BTreeMap::new();
        for (finder, mark) in found {
            let spots = met.entry((mark.node, mark.of)).or_default();
            if spots.is_empty() {
                spots.push((mark.node, mark.of));
            }
            spots.push((*finder, mark.place));
        }
        let mut pairs = met.values().flat_map(|spots| {
            let pair = move |at: usize| spots[..at].iter().map(move |&other| (other, spots[at]));
            (0..spots.len()).flat_map(pair)
        });
        pairs.find_map(|(one, other)| self.clash(one, other))
    }

    fn place(&self, (node, place): Spot) -> Option<&Place> {
        let node = self.nodes.get(node as usize)?;
        let opened = node.opened.as_deref().or(node.pending.as_deref())?;
        opened.places.get(place as usize)
    }

    /// The places, by node, that may be another's although nobody said so.
    pub(super) fn suspects(&self) -> BTreeMap<u32, Vec<u32>> {
        let mut suspects: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for spots in self.alike().values() {
            let written: Vec<Written> = spots.iter().filter_map(|&s| self.written(s)).collect();
            let Some(first) = written.first() else {
                continue;
            };
            let is_shared = first.destination.is_some()
                && written.iter().all(|w| w.destination == first.destination);
            let is_equal = !first.rows.is_empty() && written.iter().all(|w| w.rows == first.rows);
            let nodes: BTreeSet<u32> = spots.iter().map(|spot| spot.0).collect();
            // Of which only one could clash with another: the marks will tell.
            if (is_shared || is_equal) && nodes.len() == spots.len() {
                continue;
            }
            for &(node, place) in spots {
                suspects.entry(node).or_default().push(place);
            }
        }
        suspects
    }

    /// Places with one number and rest, where there are several.
    fn alike(&self) -> BTreeMap<(u64, &[u8]), Vec<Spot>> {
        let mut alike: BTreeMap<(u64, &[u8]), Vec<Spot>> = BTreeMap::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let opened = node.opened.as_deref().or(node.pending.as_deref());
            let places = opened.map_or(&[][..], |opened| &opened.places);
            for (at, place) in places.iter().enumerate() {
                let spots = alike.entry((place.folder, &place.rest)).or_default();
                spots.push((number as u32, at as u32));
            }
        }
        alike.retain(|_, spots| spots.len() > 1);
        alike
    }

    /// Whether two places must not be one.
    fn would_clash(&self, one: Spot, other: Spot) -> bool {
        let (Some(first), Some(second)) = (self.written(one), self.written(other)) else {
            return false;
        };
        let shared = first.destination.is_some() && first.destination == second.destination;
        // One node writes two files; they cannot be one, whatever they share.
        if one.0 == other.0 {
            return true;
        }
        !shared && (first.rows.is_empty() || first.rows != second.rows)
    }

    /// What two places that have proved to be one must not be, in words.
    fn clash(&self, one: Spot, other: Spot) -> Option<String> {
        if !self.would_clash(one, other) {
            return None;
        }
        // Who came first says nothing.
        let (one, other) = (one.min(other), one.max(other));
        let (first, second) = (self.written(one)?, self.written(other)?);
        let (a, b) = (self.shown(one, &first), self.shown(other, &second));
        let is_here = |spot: Spot| self.nodes[spot.0 as usize].setup.is_here;
        let why = match is_here(one) && is_here(other) {
            true => "",
            false => ", as both nodes see one file system",
        };
        Some(if one.0 == other.0 {
            format!("{a} and {b} are one file under two names; give each row its own")
        } else if first.rows.is_empty() {
            format!(
                "{a} and {b} are one place{why}; say --destinations shared to have them \
                 write one copy together, or give each a path of its own"
            )
        } else {
            format!(
                "{a} and {b} are one file{why}, and get different ranges; say dest=NAME in \
                 the rows of both if it is to be one file, or give each a path of its own"
            )
        })
    }

    fn shown(&self, (node, _): Spot, written: &Written) -> String {
        let path = written.path.escape_ascii();
        match self.nodes.get(node as usize) {
            Some(node) if node.setup.is_here && written.rows.is_empty() => path.to_string(),
            _ => format!("{}:{path}", self.name(node)),
        }
    }

    /// What is to be written to a place.
    fn written(&self, spot: Spot) -> Option<Written> {
        let place = self.place(spot)?;
        let setup = &self.nodes[spot.0 as usize].setup;
        let sink = setup.sinks.get(place.sink as usize)?;
        let all_shared = matches!(
            self.setup.mapping,
            Mapping::Trees {
                destinations: Destinations::Shared,
                ..
            }
        );
        // Whose name is given when it is laid out.
        let destination = match all_shared {
            true => Some(String::new()),
            false => sink.destination.clone(),
        };
        if let Some(sink::Kind::Tree(path)) = &sink.sink.kind {
            return Some(Written {
                path: path.clone(),
                rows: Vec::new(),
                destination,
            });
        }
        let path = sink.sink.rows.get(place.row as usize)?.object.clone();
        let rows = sink.sink.rows.iter().filter(|row| row.object == path);
        let parts = |row: &Row| (row.start, row.length, row.object_offset);
        let mut rows: Vec<(u64, u64, u64)> = rows.map(parts).collect();
        rows.sort_unstable();
        Some(Written {
            path,
            rows,
            destination,
        })
    }

    /// Asks a node that joins whether others write where it wants to; false when there is no reason to.
    pub(super) fn ask_joined(&mut self, node: u32) -> bool {
        let mut places = Vec::new();
        let mut others = BTreeSet::new();
        for spots in self.alike().values() {
            for &own in spots.iter().filter(|spot| spot.0 == node) {
                let present = |spot: &&Spot| spot.0 != node && self.is_able(spot.0);
                let clashing = spots.iter().filter(present);
                let clashing: Vec<u32> = clashing
                    .filter(|&&other| self.would_clash(own, other))
                    .map(|other| other.0)
                    .collect();
                if !clashing.is_empty() {
                    places.push(own.1);
                    others.extend(clashing);
                }
            }
        }
        if places.is_empty() {
            return false;
        }
        let probe = Probe {
            places,
            others: others.into_iter().collect(),
            ..Probe::default()
        };
        self.send(node, to_agent::Body::Probe(probe));
        true
    }

    /// A node that joins has looked whether others write where it wants to.
    pub(super) fn handle_probed_late(&mut self, node: u32, probed: &Probed) {
        if self.nodes[node as usize].life() != NodeLife::Checking {
            return;
        }
        match self.joined_clash(node, probed) {
            Some(text) => self.reject(node, &text),
            None => self.take_in(node),
        }
    }

    /// Why a node that joins cannot write where it wants to, as it found; `None` when it can.
    fn joined_clash(&self, node: u32, probed: &Probed) -> Option<String> {
        let mark = probed.marks.first()?;
        let own = self.written((node, mark.place))?;
        Some(format!(
            "{} writes to {} already, as both see one file system; give it a path of its own{}",
            self.name(mark.node),
            own.path.escape_ascii(),
            match own.rows.is_empty() {
                true => "",
                false => ", or say dest=NAME in the rows of both if it is to be one file",
            }
        ))
    }
}

/// What a node writes to one place.
struct Written {
    path: Vec<u8>,
    // Start, length and offset in the file, sorted; none for a whole tree.
    rows: Vec<(u64, u64, u64)>,
    destination: Option<String>,
}

/// The marks that a node leaves are distinguished by this text: its number and that of its place.
pub fn mark_text(node: u32, place: u32) -> String {
    format!("{node}.{place}")
}

/// Whose mark a text is; `None` for what no node of this transfer writes.
pub fn parse_mark(text: &str, place: u32) -> Option<control::Mark> {
    let (node, of) = text.split_once('.')?;
    Some(control::Mark {
        place,
        node: node.parse().ok()?,
        of: of.parse().ok()?,
    })
}
