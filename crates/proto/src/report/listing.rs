//! What a dry run or a comparison of copies found.

use serde::{Deserialize, Serialize};

/// What a copy does to a name of its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A file or link is written.
    Send,
    /// A folder is made.
    Make,
    /// A file or link that no source has is removed.
    Remove,
    /// The same of a folder.
    RemoveFolder,
    /// Only the first one of a comparison has it.
    Missing,
    /// Only this one has it.
    Extra,
    /// It is a file, a folder or a link in one, and something else in the other.
    Kind,
    /// Files of different lengths.
    Size,
    /// Files of different contents, links of different targets.
    Contents,
    /// The contents are the same, and the time, the mode, the owner or other attributes are not.
    Metadata,
    /// It cannot be read.
    Unreadable,
}

/// What a comparison found, all copies together: names that differ from the first one's, by how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// Names that a copy lacks.
    pub missing: u64,
    /// Names that only a copy has.
    pub extra: u64,
    /// Names of a file, a folder or a link that are something else.
    pub kind: u64,
    /// Files of another length.
    pub size: u64,
    /// Files of other contents, and links of other targets.
    pub contents: u64,
    /// Names of other metadata and the same contents.
    pub metadata: u64,
    /// Names that cannot be read.
    pub unreadable: u64,
}

impl CheckReport {
    /// How many names differ.
    #[must_use]
    pub fn differing(&self) -> u64 {
        let all = [
            self.missing,
            self.extra,
            self.kind,
            self.size,
            self.contents,
            self.metadata,
            self.unreadable,
        ];
        all.into_iter().fold(0, u64::saturating_add)
    }
}

/// What a dry run found, all destinations together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DryRunReport {
    /// Files and links that a copy would write.
    pub send_files: u64,
    /// Lengths of these files.
    pub send_bytes: u64,
    /// Folders that it would make.
    pub make_folders: u64,
    /// Files and links that no source has, which it would remove.
    #[serde(default)]
    pub remove_files: u64,
    /// Lengths of these files.
    #[serde(default)]
    pub remove_bytes: u64,
    /// Folders that it would remove.
    #[serde(default)]
    pub remove_folders: u64,
    /// Files, links and folders that stay and that it would give another mode, time, owner or other attributes.
    #[serde(default)]
    pub set_metadata: u64,
}
