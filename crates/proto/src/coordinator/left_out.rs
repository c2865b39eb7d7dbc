//! Files and folders that no holder can read: a copy is without them.

use std::collections::BTreeMap;

use ropewalk_model::{Range, RangeSet};

use super::{Coordinator, Incomplete};
use crate::control::{self, OpenedSource};
use crate::report::LeftOutReport;

/// Files and folders that are named in the report.
const NAMED_MAX: usize = 1000;

/// Of these, those that the note at the start names.
const NOTED_MAX: usize = 8;

/// What a copy is without.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    /// Bytes of the data space.
    pub ranges: RangeSet,
    /// The first files and folders, each with a node that cannot read it, its path below the root, and the reason.
    named: Vec<(u32, Vec<u8>, String)>,
    more: u64,
}

/// The bytes that a source cannot supply.
///
/// * `base`: where its tree begins in the data space.
pub(super) fn lacking(opened: &OpenedSource, base: u64) -> RangeSet {
    let files = opened.left_out.iter().filter(|file| file.length > 0);
    // A source that reports bytes beyond its end lacks these at most.
    let ranges = files.filter_map(|file| {
        let start = base.checked_add(file.start)?;
        Some(control::range(start, file.length))
    });
    RangeSet::from_ranges(ranges)
}

impl LeftOut {
    /// Adds what no holder of a tree can read.
    ///
    /// * `holders`: node, and what it reported.
    pub fn add<'a>(
        &mut self,
        tree: Range,
        holders: impl Iterator<Item = (u32, &'a OpenedSource)> + Clone,
    ) -> RangeSet {
        let lacked = holders
            .clone()
            .map(|(_, opened)| lacking(opened, tree.start));
        let unheld = lacked.reduce(|all, one| all.intersection(&one));
        let unheld = unheld.unwrap_or_default().clipped(tree);
        let mut found: BTreeMap<&[u8], (u32, &str)> = BTreeMap::new();
        let mut more = 0;
        for (node, opened) in holders {
            more = more.max(opened.left_out_more);
            for file in &opened.left_out {
                let range = control::range(tree.start.saturating_add(file.start), file.length);
                if range.is_empty() || unheld.contains_range(range) {
                    let known = found.entry(&file.path);
                    known.or_insert((node, &file.reason));
                }
            }
        }
        self.more = self.more.saturating_add(more);
        for (path, (node, reason)) in found {
            if self.named.len() < NAMED_MAX {
                self.named.push((node, path.to_vec(), reason.to_owned()));
            } else {
                self.more = self.more.saturating_add(1);
            }
        }
        self.ranges = self.ranges.union(&unheld);
        unheld
    }

    pub fn count(&self) -> u64 {
        self.more.saturating_add(self.named.len() as u64)
    }
}

/// `1 file or folder`, `5 files or folders`.
fn files_or_folders(count: u64) -> String {
    match count {
        1 => "1 file or folder".to_owned(),
        count => format!("{count} files or folders"),
    }
}

impl Coordinator {
    /// The files and folders that the copy is without, and how many more there are.
    pub fn left_out(&self) -> (Vec<LeftOutReport>, u64) {
        let left_out = &self.space.left_out;
        let named = left_out
            .named
            .iter()
            .map(|(node, path, reason)| LeftOutReport {
                node: self.name(*node).to_owned(),
                file: self.file_name(&String::from_utf8_lossy(path)),
                reason: reason.clone(),
            });
        (named.collect(), left_out.more)
    }

    /// The note at the start.
    pub(super) fn left_out_note(&self) -> Option<String> {
        let (named, more) = self.left_out();
        if named.is_empty() && more == 0 {
            return None;
        }
        let shown = named.iter().take(NOTED_MAX);
        let shown: Vec<String> = shown
            .map(|one| format!("{} ({})", one.file, one.reason))
            .collect();
        let more = more.saturating_add((named.len() - shown.len()) as u64);
        let more = match more {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let words = LeftOutReport::NOTE;
        Some(format!("{words}{}{more}", shown.join(", ")))
    }

    /// Refuses a copy that is to be whole or not at all; whether it did.
    pub(super) fn refuses_left_out(&mut self) -> bool {
        let is_all_or_nothing = self.setup.incomplete == Incomplete::Removed;
        match self.left_out_error().filter(|_| is_all_or_nothing) {
            Some(error) => {
                self.refuse(format!(
                    "{error}; make all of it readable, or leave out --atomic to copy the rest"
                ));
                true
            }
            None => false,
        }
    }

    /// What a destination lacks for it, in words.
    pub(super) fn left_out_count(&self) -> Option<String> {
        match self.space.left_out.count() {
            0 => None,
            1 => Some("1 file or folder was left out".to_owned()),
            count => Some(format!("{} were left out", files_or_folders(count))),
        }
    }

    /// The error of a copy that lacks nothing else.
    pub(super) fn left_out_error(&self) -> Option<String> {
        let (named, more) = self.left_out();
        let first = named.first()?;
        let rest = match more.saturating_add(named.len() as u64 - 1) {
            0 => String::new(),
            1 => "; nor was 1 more file or folder".to_owned(),
            rest => format!("; nor were {}", files_or_folders(rest)),
        };
        let (node, file, reason) = (&first.node, &first.file, &first.reason);
        let act = match self.setup.options.compares {
            true => "compared",
            false => "copied",
        };
        Some(format!("{node}: {file} was not {act}: {reason}{rest}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(files: &[(&str, u64, u64)], more: u64) -> OpenedSource {
        let file = |&(path, start, length): &(&str, u64, u64)| control::LeftOut {
            path: path.into(),
            reason: "permission denied".into(),
            start,
            length,
        };
        OpenedSource {
            left_out: files.iter().map(file).collect(),
            left_out_more: more,
            ..OpenedSource::default()
        }
    }

    /// A file that one holder can read is in the copy; one that none can read is not, and is named once.
    #[test]
    fn what_no_holder_reads_is_left_out() {
        let holders = [
            holder(&[("a", 0, 4), ("both", 8, 2), ("folder", 0, 0)], 1),
            holder(&[("b", 4, 4), ("both", 8, 2), ("folder", 0, 0)], 2),
        ];
        let mut left_out = LeftOut::default();
        let unheld = left_out.add(Range::new(100, 120), (3..).zip(&holders));
        assert_eq!(unheld, RangeSet::from(Range::new(108, 110)));
        let named: Vec<(u32, &[u8])> = left_out.named.iter().map(|n| (n.0, &*n.1)).collect();
        assert_eq!(named, [(3, &b"both"[..]), (3, b"folder")]);
        assert_eq!((left_out.more, left_out.count()), (2, 4));
        let beyond = holder(&[("x", u64::MAX - 3, 10), ("y", 15, 1 << 60)], 0);
        let unheld = left_out.add(Range::new(100, 120), std::iter::once((0, &beyond)));
        assert_eq!(unheld, RangeSet::from(Range::new(115, 120)));
    }
}
