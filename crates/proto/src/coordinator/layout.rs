//! Lays sources out in the data space and determines what each node holds and wants.

use std::collections::BTreeMap;

use ropewalk_model::{Range, RangeSet};

use super::left_out::{LeftOut, lacking};
use super::{Coordinator, Destinations, Mapping, Node, Sources, setup};
use crate::absence;
use crate::control::{self, OpenedSource, sink, source};

/// Nodes that were not reached and are named in an error; of more the first one is.
const UNSEEN_NAMED_MAX: usize = 4;

/// Why the data space could not be laid out.
pub(super) enum LayoutProblem {
    /// In words for the user.
    Refused(String),
    /// The sources differ: fetch these manifests (node, source) and compare them first.
    Compare(Vec<(u32, u32)>),
}

/// How the sources of a copy were found to relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Stretches with contents of their own.
    pub parts: u32,
    /// The parts are separate items, each under its own name in the destination.
    pub separate: bool,
    /// Holders of them, each counted once a stretch: more than parts where some are replicas.
    pub holders: u32,
}

/// Range, object offset minus data-space offset, size and time of the object, its name for people, and the object.
type SeenRow = (Range, i128, u64, (i64, u32), String, Vec<u8>);

/// Who holds one content: node, its source, and what the agent said of it.
type Stretch = Vec<(u32, u32, OpenedSource)>;

/// Sources with the same content share one stretch of the data space.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Content {
    Tree(Vec<u8>),
    Memory(u64),
    // There is one at most.
    Buffer,
}

/// The data space and what fills it.
#[derive(Debug, Default)]
pub(super) struct Space {
    /// Bytes, and files where the sources are trees.
    pub length: u64,
    pub files: u64,
    /// Trees in it.
    pub parts: Vec<control::Part>,
    /// Of sources with different lists of files: which are one thing, once that is known.
    pub things: Option<BTreeMap<(u32, u32), u32>>,
    /// What no holder can read.
    pub left_out: LeftOut,
    // How sources were found to relate.
    found: Option<Found>,
    // Nodes that were not reached, and left out.
    absent: Vec<String>,
    // Which bytes come from rows of files with these permissions.
    row_modes: BTreeMap<u32, RangeSet>,
    /// Which bytes of which files the bytes of rows are.
    pub origins: Vec<control::Origin>,
}

impl Space {
    /// The whole data space without what no holder can read.
    pub fn readable(&self) -> RangeSet {
        let all = Range {
            start: 0,
            end: self.length,
        };
        RangeSet::from(all).difference(&self.left_out.ranges)
    }
}

impl Node {
    /// Notes that it holds a tree, except what it cannot read of it.
    pub(super) fn hold(&mut self, tree: Range, opened: &OpenedSource) {
        let held = RangeSet::from(tree).difference(&lacking(opened, tree.start));
        self.holds = self.holds.union(&held);
    }

    /// What its rows say it holds and wants.
    pub(super) fn lay_out_rows(&mut self) {
        let sources = self.setup.sources.iter();
        self.holds = RangeSet::from_ranges(sources.flat_map(|s| setup::row_ranges(&s.source.rows)));
        let sinks = self.setup.sinks.iter();
        self.wants = RangeSet::from_ranges(sinks.flat_map(|s| setup::row_ranges(&s.sink.rows)));
    }

    /// The names that a bundle was asked for under; none of another source.
    fn bundled_names(&self, source: u32) -> Vec<Vec<u8>> {
        let kind = self.setup.sources.get(source as usize);
        match kind.and_then(|setup| setup.source.kind.as_ref()) {
            Some(source::Kind::Bundle(bundle)) => {
                let names = bundle
                    .paths
                    .iter()
                    .map(|path| last_component(path).to_vec());
                names.collect()
            }
            _ => Vec::new(),
        }
    }
}

/// The last name of a path.
pub(super) fn last_component(path: &[u8]) -> &[u8] {
    let names = path.split(|byte| *byte == b'/');
    let mut names = names.filter(|name| !name.is_empty() && *name != b".");
    names.next_back().unwrap_or_default()
}

/// Why contents that differ cannot be laid out yet, or at all.
fn differing(groups: &BTreeMap<Content, Stretch>) -> LayoutProblem {
    let is_tree = |content: &Content| matches!(content, Content::Tree(_));
    if !groups.keys().all(is_tree) {
        return LayoutProblem::Refused(
            "sources differ: a generated pattern can only be copied together with patterns of the same size".into(),
        );
    }
    // One holder of each content is enough to find the first difference.
    let firsts = groups.values().filter_map(|group| group.first());
    LayoutProblem::Compare(firsts.map(|(node, source, _)| (*node, *source)).collect())
}

impl Coordinator {
    pub(super) fn lay_out(&mut self) -> Result<(), LayoutProblem> {
        match self.setup.mapping {
            Mapping::Rows => self.lay_out_rows(),
            Mapping::Trees {
                sources,
                destinations,
            } => self.lay_out_trees(sources, destinations),
        }
    }

    fn lay_out_rows(&mut self) -> Result<(), LayoutProblem> {
        self.nodes.iter_mut().for_each(Node::lay_out_rows);
        self.space.length = self
            .nodes
            .iter()
            .filter_map(|n| n.wants.last())
            .map(|r| r.end)
            .max()
            .unwrap_or(0);
        self.note_row_modes();
        self.note_origins();
        self.check_replicas()
    }

    /// Remembers which bytes come from files with which permissions.
    fn note_row_modes(&mut self) {
        for node in &self.nodes {
            let opened = node.opened.iter().flat_map(|opened| &opened.sources);
            for (source, opened) in node.setup.sources.iter().zip(opened) {
                for (row, identity) in source.source.rows.iter().zip(&opened.identities) {
                    if let Some(mode) = identity.mode {
                        let ranges = self.space.row_modes.entry(mode).or_default();
                        ranges.insert(control::range(row.start, row.length));
                    }
                }
            }
        }
    }

    /// Of each sink of a node: the permissions that all sources of its bytes give, plus one; 0 when no source is a file.
    pub(super) fn sink_modes(&self, node: &Node) -> Vec<u32> {
        if self.space.row_modes.is_empty() {
            return Vec::new();
        }
        let sinks = node.setup.sinks.iter();
        let mode = |sink: &setup::SinkSetup| {
            let wanted = RangeSet::from_ranges(setup::row_ranges(&sink.sink.rows));
            let modes = self.space.row_modes.iter();
            let given = modes.filter(|(_, held)| !held.intersection(&wanted).is_empty());
            given.map(|(mode, _)| *mode).reduce(|all, mode| all & mode)
        };
        sinks
            .map(|sink| mode(sink).map_or(0, |mode| mode + 1))
            .collect()
    }

    /// Rows of different nodes that map the same bytes at the same place of an object are replicas:
    /// their objects must agree in size and time.
    pub(super) fn check_replicas(&self) -> Result<(), LayoutProblem> {
        if let Some(text) = self.own_rows() {
            return Err(LayoutProblem::Refused(text));
        }
        let mut seen: Vec<SeenRow> = Vec::new();
        for node in &self.nodes {
            let Some(opened) = &node.opened else { continue };
            for (source, opened) in node.setup.sources.iter().zip(&opened.sources) {
                for (row, identity) in source.source.rows.iter().zip(&opened.identities) {
                    // Buffers of programs are alike in nothing but what they contain, which is compared by samples.
                    if row.object.starts_with(b"buffer:") {
                        continue;
                    }
                    let range = control::range(row.start, row.length);
                    let shift = i128::from(row.object_offset) - i128::from(row.start);
                    let what = format!(
                        "{} on {}",
                        String::from_utf8_lossy(&row.object).escape_debug(),
                        node.setup.name
                    );
                    let time = (identity.modified_seconds, identity.modified_nanoseconds);
                    let object = row.object.clone();
                    seen.push((range, shift, identity.length, time, what, object));
                }
            }
        }
        seen.sort_by_key(|s| (s.0.start, s.0.end));
        for (at, first) in seen.iter().enumerate() {
            for second in seen[at + 1..]
                .iter()
                .take_while(|s| s.0.start < first.0.end)
            {
                if first.1 != second.1 {
                    // Of a node that joins nobody has looked at all rows together.
                    if first.5 == second.5 {
                        return Err(LayoutProblem::Refused(format!(
                            "{} and {} overlap in the data, and their offsets differ from it by different amounts; offset in \
                             file less start of range must be equal, or give different files different paths",
                            first.4, second.4
                        )));
                    }
                    continue;
                }
                if first.2 != second.2 {
                    return Err(LayoutProblem::Refused(format!(
                        "replicas differ in size: {} has {} bytes, {} has {}; make them equal or give each its own range",
                        first.4, first.2, second.4, second.2
                    )));
                }
                if first.3 != second.3 {
                    return Err(LayoutProblem::Refused(format!(
                        "replicas differ in modification time: {} and {}; copy one over the other with its time kept (cp -p), or give each its own range",
                        first.4, second.4
                    )));
                }
            }
        }
        Ok(())
    }

    fn lay_out_trees(
        &mut self,
        sources: Sources,
        destinations: Destinations,
    ) -> Result<(), LayoutProblem> {
        self.check_buffers()?;
        let groups = self.contents();
        if sources == Sources::Parts {
            self.refuse_equal_parts(groups.values())?;
        }
        if groups.len() > 1 && self.space.things.is_none() {
            return Err(differing(&groups));
        }
        // Lay the stretches out in the order of the lowest node that holds each, so that the result
        // does not depend on hash values; holders are in node order by construction.
        let mut stretches: Vec<Stretch> = groups.into_values().collect();
        stretches.sort_by_key(|g| g.iter().map(|(node, at, _)| (*node, *at)).min());
        stretches = self.join_replicas(stretches);
        self.space.found = Some(Found {
            parts: stretches.len() as u32,
            separate: stretches.len() > 1 && self.has_bundles(),
            holders: stretches.iter().map(|group| group.len() as u32).sum(),
        });
        // What is not there is no replica of things that differ.
        if sources == Sources::Auto && stretches.len() > 1 && !self.space.absent.is_empty() {
            return Err(LayoutProblem::Refused(absence::parts_remain(
                &self.space.absent,
            )));
        }
        self.place_stretches(stretches)?;
        if self.space.files > 1 && self.has_buffer_sinks() {
            return Err(LayoutProblem::Refused(format!(
                "a buffer takes the bytes of one file, and the sources have {} files; name one of them",
                self.space.files
            )));
        }
        self.want_all(destinations);
        Ok(())
    }

    /// Nothing but rows says how buffers of several programs relate.
    fn check_buffers(&self) -> Result<(), LayoutProblem> {
        let mut sources = self.nodes.iter().flat_map(|node| &node.setup.sources);
        let is_buffer = |source: &setup::SourceSetup| {
            matches!(source.source.kind, Some(source::Kind::Buffer(_)))
        };
        if sources.clone().count() > 1 && sources.any(is_buffer) {
            return Err(LayoutProblem::Refused(
                "a buffer is the one source of a copy; describe a transfer from several sources with rows".into(),
            ));
        }
        Ok(())
    }

    fn has_buffer_sinks(&self) -> bool {
        let mut sinks = self.nodes.iter().flat_map(|node| &node.setup.sinks);
        sinks.any(|sink| matches!(sink.sink.kind, Some(sink::Kind::Buffer(_))))
    }

    /// The sources that hold each content, by node and position.
    fn contents(&self) -> BTreeMap<Content, Stretch> {
        let mut groups: BTreeMap<Content, Stretch> = BTreeMap::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let Some(opened) = &node.opened else { continue };
            for (at, (source, opened)) in node.setup.sources.iter().zip(&opened.sources).enumerate()
            {
                let content = match source.source.kind {
                    Some(source::Kind::Memory(size)) => Content::Memory(size),
                    Some(source::Kind::Buffer(_)) => Content::Buffer,
                    _ => Content::Tree(opened.manifest_root.clone()),
                };
                groups
                    .entry(content)
                    .or_default()
                    .push((number as u32, at as u32, opened.clone()));
            }
        }
        groups
    }

    /// Places the stretches one after the other in the data space.
    fn place_stretches(&mut self, stretches: Vec<Stretch>) -> Result<(), LayoutProblem> {
        let mut base = 0u64;
        self.space.files = 0;
        self.space.parts.clear();
        self.space.left_out = LeftOut::default();
        for group in stretches {
            let opened = group[0].2.clone();
            let Some(end) = base.checked_add(opened.data_length) else {
                return Err(LayoutProblem::Refused(
                    "the sources together are larger than 2^64 bytes".into(),
                ));
            };
            let tree = Range { start: base, end };
            for (node, at, opened) in &group {
                let state = &mut self.nodes[*node as usize];
                state.setup.sources[*at as usize].base = base;
                state.hold(tree, opened);
            }
            let holders = group.iter().map(|(node, _, opened)| (*node, opened));
            let unheld = self.space.left_out.add(tree, holders);
            let files = opened.left_out.iter().filter(|file| {
                let range = control::range(base.saturating_add(file.start), file.length);
                !range.is_empty() && unheld.contains_range(range)
            });
            let files = opened.file_count.saturating_sub(files.count() as u64);
            self.space.files = self.space.files.saturating_add(files);
            if !opened.manifest_root.is_empty() {
                self.space.parts.push(control::Part {
                    base,
                    length: opened.data_length,
                    manifest_root: opened.manifest_root.clone(),
                    manifest_length: opened.manifest_length,
                    file_count: opened.file_count,
                    names: self.nodes[group[0].0 as usize].bundled_names(group[0].1),
                    // Replicas may differ in what their manifests say of folders: one version is enough.
                    holders: group
                        .iter()
                        .filter(|(_, _, o)| o.manifest_root == opened.manifest_root)
                        .map(|(node, _, _)| *node)
                        .collect(),
                    left_out: control::stretches(&unheld),
                });
            }
            base = end;
        }
        self.space.length = base;
        Ok(())
    }

    /// The parts, for a node.
    ///
    /// * `fetches`: it fetches lists of files, and checks them.
    pub(super) fn parts_for(&self, fetches: bool) -> Vec<control::Part> {
        let mut parts = self.space.parts.clone();
        if !fetches {
            parts.iter_mut().for_each(|part| part.names.clear());
        }
        parts
    }

    /// Every receiver wants all that any node can read; of a shared destination they write it together.
    fn want_all(&mut self, destinations: Destinations) {
        let all = self.space.readable();
        for node in &mut self.nodes {
            if node.setup.sinks.is_empty() {
                continue;
            }
            node.wants = all.clone();
            if destinations == Destinations::Shared {
                for sink in &mut node.setup.sinks {
                    sink.destination.get_or_insert_with(|| "shared".into());
                }
            }
        }
    }

    /// Contents that were found to be the same but for times and modes of folders are one stretch.
    fn join_replicas(&self, stretches: Vec<Stretch>) -> Vec<Stretch> {
        let Some(things) = &self.space.things else {
            return stretches;
        };
        let mut joined: Vec<(Option<u32>, Stretch)> = Vec::new();
        for mut group in stretches {
            let thing = group
                .iter()
                .find_map(|(node, at, _)| things.get(&(*node, *at)).copied());
            match joined
                .iter_mut()
                .find(|(known, _)| known.is_some() && *known == thing)
            {
                Some((_, holders)) => holders.append(&mut group),
                None => joined.push((thing, group)),
            }
        }
        joined.into_iter().map(|(_, holders)| holders).collect()
    }

    /// Sources that are said to be parts must not hold the same.
    fn refuse_equal_parts<'a>(
        &self,
        mut groups: impl Iterator<Item = &'a Stretch>,
    ) -> Result<(), LayoutProblem> {
        let Some(same) = groups.find(|group| group.len() > 1) else {
            return Ok(());
        };
        let mut same: Vec<&str> = same.iter().map(|(node, _, _)| self.name(*node)).collect();
        same.dedup();
        Err(LayoutProblem::Refused(match same.as_slice() {
            [one] => format!("two sources of {one} hold the same files; name one of them"),
            _ => format!(
                "{} hold the same files, so they are replicas and not parts; leave out --sources parts",
                same.join(" and ")
            ),
        }))
    }

    /// Names the nodes that were left out because they were not reached: sources that turn out to be parts are refused.
    pub fn leave_out(&mut self, absent: Vec<String>) {
        self.space.absent = absent;
    }

    /// Whether nodes are left out that may hold something no other one has: those that are there may be replicas, and those a part.
    pub(super) fn lacks_sources(&self) -> bool {
        let Mapping::Trees { sources, .. } = self.setup.mapping else {
            return false;
        };
        sources != Sources::Replicas && !self.space.absent.is_empty()
    }

    /// The error of copies that have all that the nodes that were reached hold, where others were not.
    pub(super) fn unseen_error(&self) -> Option<String> {
        let unseen = self.space.absent.as_slice();
        let first = unseen.first().filter(|_| self.lacks_sources())?;
        let names = match unseen.len() {
            0..=UNSEEN_NAMED_MAX => unseen.join(", "),
            all => format!("{first} and {} more", all - 1),
        };
        let was = if unseen.len() == 1 { "was" } else { "were" };
        Some(format!(
            "what the sources that were reached hold is copied, but {names} {was} not reached and may hold more; repeat the command later, or add --sources replicas if each source holds all"
        ))
    }

    /// Every source is a set of named items.
    fn has_bundles(&self) -> bool {
        let mut sources = self.nodes.iter().flat_map(|node| &node.setup.sources);
        sources.all(|source| matches!(source.source.kind, Some(source::Kind::Bundle(_))))
    }

    /// How the sources of a copy relate; `None` for rows, and before they were laid out.
    pub fn found(&self) -> Option<Found> {
        self.space.found
    }

    /// Ranges that are missing, per receiver or per shared destination.
    pub fn missing(&self) -> BTreeMap<String, RangeSet> {
        let mut out: BTreeMap<String, RangeSet> = BTreeMap::new();
        for node in self.nodes.iter().filter(|n| n.is_receiver()) {
            let shared = node
                .setup
                .sinks
                .first()
                .and_then(|s| s.destination.as_ref());
            let (name, missing) = match (shared, &node.done) {
                (Some(name), _) => (
                    name,
                    self.destination_wants(name).difference(&self.covered(name)),
                ),
                (None, Some(done)) => (&node.setup.name, control::range_set(&done.missing)),
                // Nothing is known of what a lost receiver stored.
                (None, None) => (&node.setup.name, node.assigned()),
            };
            if !missing.is_empty() {
                out.insert(name.clone(), missing);
            }
        }
        out
    }
}
