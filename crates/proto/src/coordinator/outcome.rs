//! How a transfer ended: which copies are complete, which files are missing, what is left under temporary names, and what
//! kind of error it was.

use core::mem::{Discriminant, discriminant};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::{Coordinator, Incomplete, Mapping, Node, SinkSetup};
use crate::control::{self, Done, sink::Kind};
use crate::report::{DestinationReport, ErrorKind, LeftReport, MissingFile};

/// Missing files told to people and programs, all receivers together.
const FILES_MAX: usize = 1000;

/// Notes beyond which one that may be a repetition is left out.
const NOTES_MAX: usize = 2000;

/// Why a transfer failed.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub kind: ErrorKind,
    pub text: String,
}

impl Coordinator {
    /// Keeps the first failure.
    pub(super) fn fail(&mut self, kind: ErrorKind, text: String) {
        self.ending.failure.get_or_insert(Failure { kind, text });
    }

    /// What kind of error the failure is, when there is one.
    pub fn failure_kind(&self) -> Option<ErrorKind> {
        self.ending.failure.as_ref().map(|failure| failure.kind)
    }

    /// What kind of error a refusal is: what the node that refused gave, where one did.
    pub fn refusal_kind(&self) -> ErrorKind {
        let told = self.ending.refusal.filter(|kind| *kind != ErrorKind::Other);
        let done = self.nodes.iter().filter_map(|node| node.done.as_deref());
        let mut refused = done.filter(|done| done.refused).peekable();
        let may_pass = refused.peek().is_some() && refused.all(|done| done.may_pass);
        told.unwrap_or(match may_pass {
            true => ErrorKind::Node,
            false => ErrorKind::Refused,
        })
    }

    /// Tells the user something that several nodes, or one for many ranges, may say; once.
    pub(super) fn note_once(&mut self, text: String) {
        if self.is_new_note(&text) {
            self.note(text);
        }
    }

    /// The same of what holders refused, and no other one has.
    pub(super) fn note_refusal_once(&mut self, text: String) {
        if self.is_new_note(&text) {
            self.out.note_refusal(text);
        }
    }

    fn is_new_note(&self, text: &str) -> bool {
        let notes = self.out.notes();
        notes.len() < NOTES_MAX && notes.iter().all(|note| note != text)
    }

    /// What receivers report that lack something, of those whose destination is not complete: another node of it may have that.
    fn lacking(&self) -> impl Iterator<Item = (&Node, &Done)> {
        let receivers = self.nodes.iter().filter(|node| node.is_receiver());
        let done = receivers.filter_map(|node| Some((node, node.done.as_deref()?)));
        done.filter(|(node, _)| {
            let group = self.group_of(node);
            group.is_none_or(|name| !self.destination_complete(name))
        })
    }

    /// Files that are missing, and how many more there are than are listed. Receivers that share a destination lack one file together.
    pub fn missing_files(&self) -> (Vec<MissingFile>, u64) {
        let mut files: Vec<MissingFile> = Vec::new();
        let mut more = 0;
        // Of shared destinations: where each file is in the list, if it is; and how many more their nodes have, each perhaps the same.
        let mut known: BTreeMap<(u32, &str), Option<usize>> = BTreeMap::new();
        let mut shared_more: BTreeMap<u32, u64> = BTreeMap::new();
        for (node, done) in self.lacking() {
            match node.group {
                Some(group) => {
                    let most = shared_more.entry(group).or_default();
                    *most = done.files_more.max(*most);
                }
                None => more = u64::saturating_add(more, done.files_more),
            }
            for file in &done.files {
                let place = node.group.map(|group| (group, file.file.as_str()));
                if let Some(at) = place.and_then(|place| known.get(&place)) {
                    if let Some(at) = *at {
                        files[at].bytes = files[at].bytes.saturating_add(file.bytes);
                    }
                    continue;
                }
                let is_listed = files.len() < FILES_MAX;
                if let Some(place) = place {
                    known.insert(place, is_listed.then_some(files.len()));
                }
                match is_listed {
                    true => files.push(MissingFile {
                        node: node.setup.name.clone(),
                        file: self.file_name(&file.file),
                        bytes: file.bytes,
                        reason: file.reason.clone(),
                    }),
                    false => more = more.saturating_add(1),
                }
            }
        }
        // Each node counts what it was to write itself, or took over: of a file no more than all of the destination lacks.
        let missing = self.missing();
        for ((group, _), at) in known {
            let lacked = missing.get(self.groups.name(group));
            if let (Some(at), Some(lacked)) = (at, lacked) {
                files[at].bytes = files[at].bytes.min(lacked.len_bytes());
            }
        }
        let more = shared_more.into_values().fold(more, u64::saturating_add);
        (files, more)
    }

    /// A file below a source's folder, with the folder's name.
    #[must_use]
    pub fn file_name(&self, file: &str) -> String {
        match (self.setup.source_name.as_str(), file) {
            (name, "") if !name.is_empty() => name.to_owned(),
            (_, "") => "the file".to_owned(),
            ("", file) => file.to_owned(),
            (name, file) => format!("{name}/{file}"),
        }
    }

    /// A file below a node's destination, with the path of the destination.
    #[must_use]
    pub fn name_at_destination(&self, node: u32, file: &str) -> String {
        let node = self.nodes.get(node as usize);
        match node.and_then(|node| destination_path(&node.setup.sinks)) {
            Some(path) if file.is_empty() => path,
            Some(path) => format!("{}/{file}", path.trim_end_matches('/')),
            None => self.file_name(file),
        }
    }

    /// The error of a transfer that lacks files, with the first of them.
    pub(super) fn missing_words(&self) -> String {
        let (files, _) = self.missing_files();
        let Some(first) = files.first() else {
            return "some ranges have no holder left; see the missing ranges".into();
        };
        // Several destinations may lack the same files.
        let lacking = || self.lacking().map(|(_, done)| done);
        let named: BTreeSet<&str> = lacking()
            .flat_map(|done| &done.files)
            .map(|file| file.file.as_str())
            .collect();
        let more = lacking().map(|done| done.files_more).max();
        let rest = more
            .unwrap_or(0)
            .saturating_add(named.len() as u64)
            .saturating_sub(1);
        let rest = match rest {
            0 => String::new(),
            1 => "; nor was 1 more file".to_owned(),
            rest => format!("; nor were {rest} more files"),
        };
        format!("{} was not copied: {}{rest}", first.file, first.reason)
    }

    fn group_of(&self, node: &Node) -> Option<&str> {
        Some(self.groups.name(node.group?))
    }

    /// Each copy, or place that rows write to.
    pub fn destinations(&self) -> Vec<DestinationReport> {
        let mut out = Vec::new();
        let left_out = self.left_out_count();
        for (group, _) in self.groups.names().enumerate() {
            let members: Vec<&Node> = self
                .nodes
                .iter()
                .filter(|node| node.group == Some(group as u32))
                .collect();
            let unplaced = members.iter().find_map(|node| unplaced(node.landed()));
            let is_placed = unplaced.is_none();
            let complete = self.is_named(group as u32) && left_out.is_none() && is_placed;
            let named = members.iter().filter(|node| node.has_named());
            let files = match complete {
                // Each names the files that those before it do not write.
                true => {
                    let files = named.map(|node| named_files(node.landed()));
                    files.fold(0, u64::saturating_add)
                }
                false => named_files(members.iter().find_map(|node| node.landed())),
            };
            let errors = members.iter().find_map(|node| node.trouble());
            let errors = errors.or(unplaced).or_else(|| left_out.clone());
            out.push(DestinationReport {
                nodes: members.iter().map(|node| node.setup.name.clone()).collect(),
                complete,
                files,
                error: errors.filter(|_| !complete),
            });
        }
        let own = |node: &&Node| node.is_receiver() && node.group.is_none();
        for node in self.nodes.iter().filter(own) {
            let unplaced = unplaced(node.landed());
            let complete = node.is_complete() && left_out.is_none() && unplaced.is_none();
            let error = node.trouble().or(unplaced).or_else(|| left_out.clone());
            out.push(DestinationReport {
                nodes: vec![node.setup.name.clone()],
                complete,
                files: named_files(node.landed()),
                error: error.filter(|_| !complete),
            });
        }
        out
    }

    /// What stays under temporary names. Cost O(names x log names).
    pub fn left(&self) -> Vec<LeftReport> {
        let mut out: Vec<LeftReport> = Vec::new();
        // Where each name of a place that several nodes write is in the list.
        let mut known: BTreeMap<(u32, String), usize> = BTreeMap::new();
        let kept = self.setup.incomplete == Incomplete::Kept;
        let mut add = |node: &Node, path: &str, bytes, certain, valid_bytes, resumable| {
            let report = LeftReport {
                node: node.setup.name.clone(),
                path: path.to_owned(),
                bytes,
                certain,
                kept,
                resumable,
                valid_bytes,
            };
            // Nodes that write one place together each say what is in it, the last one to end most.
            let place = node.group.map(|group| (group, report.path.clone()));
            match place.map(|place| known.entry(place)) {
                Some(Entry::Occupied(at)) => {
                    let other: &mut LeftReport = &mut out[*at.get()];
                    if other.bytes < report.bytes {
                        *other = report;
                    }
                }
                found => {
                    if let Some(Entry::Vacant(place)) = found {
                        place.insert(out.len());
                    }
                    out.push(report);
                }
            }
        };
        for node in self.nodes.iter().filter(|node| node.is_receiver()) {
            if node.group.is_some_and(|group| self.is_named(group)) {
                continue;
            }
            if let Some(finished) = &node.finished {
                // How they divide among several is not known here.
                let is_one = finished.left.len() == 1;
                let valid = is_one.then(|| self.safe_in_copy(node)).flatten();
                for left in &finished.left {
                    let valid = valid.filter(|_| !left.resumable);
                    add(node, &left.path, left.bytes, true, valid, left.resumable);
                }
            } else if !node.alive() && !node.is_complete() && !self.is_in_good_hands(node) {
                // A killed receiver of an own copy leaves its journal, too.
                let has_journal = match self.setup.mapping {
                    Mapping::Trees { .. } => self.setup.options.same().keeps(),
                    Mapping::Rows => !self.origins_of(node).is_empty(),
                };
                let resumable = has_journal && node.group.is_none();
                for path in &node.temporary {
                    add(node, path, node.checked, false, None, resumable);
                }
            }
        }
        out
    }

    /// Bytes that are safe in what a node writes, of a shared copy those that others wrote there, too; `None` where they are not all in
    /// one object: nodes report how many bytes are safe, not in which of their files, and what `null:` takes counts.
    fn safe_in_copy(&self, node: &Node) -> Option<u64> {
        let is_writer = |other: &&Node| match node.group {
            Some(group) => other.group == Some(group),
            None => std::ptr::eq(*other, node),
        };
        let writers = || self.nodes.iter().filter(is_writer);
        let mut objects = writers().flat_map(|writer| writer.setup.sinks.iter().flat_map(objects));
        let first = objects.next()?;
        objects.all(|object| object == first).then(|| {
            let delivered = writers().map(|writer| writer.delivered);
            delivered.fold(0, u64::saturating_add)
        })
    }

    /// Whether another node that answered last has looked after what this one wrote.
    fn is_in_good_hands(&self, node: &Node) -> bool {
        let same = |other: &&Node| node.group.is_some() && other.group == node.group;
        let mut others = self.nodes.iter().filter(same);
        others.any(|other| other.finished.is_some())
    }
}

/// What a sink writes: the kind of a whole copy, or the objects of rows.
fn objects(sink: &SinkSetup) -> impl Iterator<Item = (Option<Discriminant<Kind>>, &[u8])> {
    let kind = sink.sink.kind.as_ref().map(discriminant);
    let copy = kind.map(|kind| (Some(kind), &[][..]));
    let rows = sink.sink.rows.iter().filter(move |_| kind.is_none());
    copy.into_iter()
        .chain(rows.map(|row| (None, row.object.as_slice())))
}

/// Path of a node's copy; of several objects, as of rows, none is meant.
fn destination_path(sinks: &[SinkSetup]) -> Option<String> {
    match sinks.first()?.sink.kind.as_ref()? {
        Kind::Tree(path) => Some(String::from_utf8_lossy(path).into_owned()),
        Kind::Null(_) | Kind::Memory(_) | Kind::Buffer(_) => None,
    }
}

/// Why a copy that has all bytes is not complete: names that it lacks.
fn unplaced(landed: Option<&control::Landed>) -> Option<String> {
    let landed = landed?;
    let named = landed.not_placed.len() as u64;
    let count = landed.not_placed_more.saturating_add(named);
    match count {
        0 => None,
        1 => Some("1 name could not be put in its place".into()),
        _ => Some(format!("{count} names could not be put in their places")),
    }
}

/// Files and links that got their names.
fn named_files(landed: Option<&control::Landed>) -> u64 {
    landed.map_or(0, |landed| {
        let (added, replaced) = (landed.added_files, landed.replaced_files);
        added.saturating_add(replaced)
    })
}

impl Node {
    /// All it wants is safe and has its name; of a copy of its own.
    pub(super) fn is_complete(&self) -> bool {
        let done = self.done.as_deref();
        done.is_some_and(|done| done.error.is_empty() && done.missing.is_empty())
    }

    /// Why its part did not end well, if it did not.
    fn trouble(&self) -> Option<String> {
        let own = self.done.as_deref().map(|done| done.error.as_str());
        let last = self.finished.as_deref().map(|last| last.error.as_str());
        let said = [own, last].into_iter().flatten().find(|s| !s.is_empty());
        if let Some(said) = said {
            return Some(said.to_owned());
        }
        if let Some(lost) = &self.lost {
            return Some(format!("its agent was lost ({lost})"));
        }
        let missing = control::range_set(&self.done.as_deref()?.missing).len_bytes();
        (missing > 0).then(|| format!("{missing} bytes are missing"))
    }
}
