//! Files that grew while they were copied: the copies have of each what it was when it was scanned.

use std::collections::BTreeSet;

use super::Coordinator;
use crate::report::GrownReport;

/// Files that are named in the report.
const NAMED_MAX: usize = 1000;

/// Of these, those that the note names.
const NOTED_MAX: usize = 8;

impl Coordinator {
    /// Files that have grown while they were copied, each once, and how many more there are.
    #[must_use]
    pub fn grown(&self) -> (Vec<GrownReport>, u64) {
        let mut seen = BTreeSet::new();
        let (mut named, mut more) = (Vec::new(), 0_u64);
        for node in &self.nodes {
            let Some(finished) = &node.finished else {
                continue;
            };
            more = more.saturating_add(finished.grown_more);
            let new = finished.grown.iter().filter(|path| seen.insert(*path));
            named.extend(new.map(|path| GrownReport {
                node: node.setup.name.clone(),
                file: self.file_name(&String::from_utf8_lossy(path)),
            }));
        }
        more = more.saturating_add(named.len().saturating_sub(NAMED_MAX) as u64);
        named.truncate(NAMED_MAX);
        (named, more)
    }

    /// Said at the end.
    pub(super) fn note_grown(&mut self) {
        let (named, more) = self.grown();
        let files: Vec<&str> = named.iter().map(|one| &*one.file).take(NOTED_MAX).collect();
        if files.is_empty() {
            return;
        }
        let rest = more.saturating_add((named.len() - files.len()) as u64);
        let rest = match rest {
            0 => String::new(),
            rest => format!(" and {rest} more"),
        };
        let files = files.join(", ");
        self.note(format!(
            "grew while it was copied, and is copied as it was when it was scanned: {files}{rest}"
        ));
    }
}
