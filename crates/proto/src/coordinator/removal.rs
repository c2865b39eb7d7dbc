//! What complete copies could not do besides: whether they remove what no source has, what of that they could not, and what their
//! lists of checksums lack; and what they found wrong of what was left for them.

use super::Coordinator;
use crate::control::Landed;
use crate::report::{NotPlacedReport, NotRemovedReport, WrongReport};

/// Names told to people and programs, all receivers together.
const NAMED_MAX: usize = 1000;

impl Coordinator {
    /// Whether receivers remove what the sources lack. Not where it is unknown what these have.
    pub(super) fn deletes(&self) -> bool {
        self.setup.options.delete && self.why_not_deleted().is_none()
    }

    fn why_not_deleted(&self) -> Option<&'static str> {
        if self.left_out_count().is_some() {
            return Some("not all of the sources can be read");
        }
        if self.lacks_sources() {
            return Some(
                "not all of the sources were reached (--sources replicas: each holds all)",
            );
        }
        let text = "a source has fewer files than before";
        self.has_shrunk().then_some(text)
    }

    /// Said at the start.
    pub(super) fn delete_note(&self) -> Option<String> {
        let why = self.why_not_deleted();
        let why = why.filter(|_| self.setup.options.delete)?;
        Some(format!(
            "nothing is removed at the destinations, since {why}"
        ))
    }

    /// What was to be removed and is still there, and how many more there are.
    pub fn not_removed(&self) -> (Vec<NotRemovedReport>, u64) {
        let of = |landed: &Landed| {
            let named = landed.not_removed.iter();
            let named = named.map(|one| (one.path.clone(), one.reason.clone()));
            (named.collect(), landed.not_removed_more)
        };
        let (named, more) = self.names_of_landed(of);
        let report = |(node, file, reason)| NotRemovedReport { node, file, reason };
        (named.into_iter().map(report).collect(), more)
    }

    /// What is complete and could not be renamed into its place, and how many more there are.
    pub fn not_placed(&self) -> (Vec<NotPlacedReport>, u64) {
        let of = |landed: &Landed| {
            let named = landed.not_placed.iter();
            let named = named.map(|one| (one.path.clone(), one.reason.clone()));
            (named.collect(), landed.not_placed_more)
        };
        let (named, more) = self.names_of_landed(of);
        let report = |(node, file, reason)| NotPlacedReport { node, file, reason };
        (named.into_iter().map(report).collect(), more)
    }

    /// Names that receivers report, each with its node and reason, and how many more there are.
    fn names_of_landed(
        &self,
        of: impl Fn(&Landed) -> (Vec<(Vec<u8>, String)>, u64),
    ) -> (Vec<(String, String, String)>, u64) {
        let (mut named, mut more) = (Vec::new(), 0_u64);
        for (number, node) in (0..).zip(&self.nodes) {
            let Some(landed) = node.landed() else {
                continue;
            };
            let (own, own_more) = of(landed);
            more = more.saturating_add(own_more);
            for (path, reason) in own {
                let path = self.name_at_destination(number, &String::from_utf8_lossy(&path));
                named.push((node.setup.name.clone(), path, reason));
            }
        }
        more = more.saturating_add(named.len().saturating_sub(NAMED_MAX) as u64);
        named.truncate(NAMED_MAX);
        (named, more)
    }

    /// Files that earlier transfers left and that are not what these recorded, and how many more there are.
    pub fn wrong(&self) -> (Vec<WrongReport>, u64) {
        let (mut named, mut more) = (Vec::new(), 0_u64);
        for node in &self.nodes {
            more = more.saturating_add(node.wrong_more);
            named.extend(node.wrong.iter().map(|one| WrongReport {
                node: node.setup.name.clone(),
                file: self.file_name(&String::from_utf8_lossy(&one.path)),
                bytes: one.bytes,
            }));
        }
        more = more.saturating_add(named.len().saturating_sub(NAMED_MAX) as u64);
        named.truncate(NAMED_MAX);
        (named, more)
    }

    /// The error of copies that are complete and have more than their sources.
    pub(super) fn not_removed_error(&self) -> Option<String> {
        let (named, more) = self.not_removed();
        let first = named.first()?;
        let rest = more_names(more.saturating_add(named.len() as u64 - 1));
        let (node, file, reason) = (&first.node, &first.file, &first.reason);
        Some(format!(
            "the copy is complete, but {node}: {file} was not removed: {reason}{rest}"
        ))
    }

    /// Said at the end: what no source has may be what has no name, under an older one.
    pub(super) fn note_not_placed(&mut self) {
        if self.deletes() && !self.not_placed().0.is_empty() {
            self.note("nothing was removed where names could not be given".to_owned());
        }
    }

    /// The error of copies that have all bytes, and lack names.
    pub(super) fn not_placed_error(&self) -> Option<String> {
        let (named, more) = self.not_placed();
        let first = named.first()?;
        let rest = more_names(more.saturating_add(named.len() as u64 - 1));
        let (node, file, reason) = (&first.node, &first.file, &first.reason);
        Some(format!(
            "{node}: {file} was not put in its place: {reason}{rest}"
        ))
    }

    /// Why lists of checksums lack something, each with its node, and how many more there are.
    fn not_listed(&self) -> (Vec<String>, u64) {
        let (mut named, mut more) = (Vec::new(), 0_u64);
        for node in &self.nodes {
            let Some(landed) = node.landed() else {
                continue;
            };
            let name = &node.setup.name;
            named.extend(
                landed
                    .not_listed
                    .iter()
                    .map(|text| format!("{name}: {text}")),
            );
            more = more.saturating_add(landed.not_listed_more);
        }
        more = more.saturating_add(named.len().saturating_sub(NAMED_MAX) as u64);
        named.truncate(NAMED_MAX);
        (named, more)
    }

    /// Said at the end.
    pub(super) fn note_not_listed(&mut self) {
        let (named, more) = self.not_listed();
        for text in named {
            self.note(text);
        }
        if more > 0 {
            self.note(format!("lists of checksums lack {more} more files"));
        }
    }

    /// The error of copies that are complete, and their lists of checksums are not.
    pub(super) fn not_listed_error(&self) -> Option<String> {
        let (named, more) = self.not_listed();
        let first = named.first()?;
        let rest = match more.saturating_add(named.len() as u64 - 1) {
            0 => String::new(),
            rest => format!(" (and {rest} more, see the notes)"),
        };
        Some(format!("the copy is complete, but {first}{rest}"))
    }
}

/// Names beyond the one that an error has.
fn more_names(rest: u64) -> String {
    match rest {
        0 => String::new(),
        1 => "; nor was 1 more name".to_owned(),
        rest => format!("; nor were {rest} more names"),
    }
}
