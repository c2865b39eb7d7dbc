//! What became of names at the destinations.

use serde::{Deserialize, Serialize};

/// What stood where copies got their names, and what they leave out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LandingReport {
    /// Folders that stood there and that trees were merged into.
    pub merged: Vec<MergedReport>,
    /// Files and links of all destinations that took the place of others.
    pub replaced_files: u64,
    /// Files and links of all destinations that were there before, the same, and were not sent.
    #[serde(default)]
    pub unchanged_files: u64,
    /// Their bytes, which `wanted_bytes` does not count.
    #[serde(default)]
    pub unchanged_bytes: u64,
    /// Files and links of all destinations that were there before, not the same, and stay: newer ones, or all.
    #[serde(default)]
    pub kept_files: u64,
    /// Their bytes in the sources, which `wanted_bytes` does not count.
    #[serde(default)]
    pub kept_bytes: u64,
    /// Bytes of files that an earlier transfer had begun to write, which were not sent and `wanted_bytes` does not count either.
    #[serde(default)]
    pub resumed_bytes: u64,
    /// Files that an earlier transfer had begun to write, and that were not what it recorded when they were read again.
    #[serde(default)]
    pub wrong: Vec<WrongReport>,
    /// Further ones, beyond those listed.
    #[serde(default)]
    pub wrong_more: u64,
    /// Bytes of chunks that replaced files had at the same place, which were not sent and `wanted_bytes` does not count either.
    #[serde(default)]
    pub taken_bytes: u64,
    /// Files and links of all destinations that no source has, and that were removed.
    #[serde(default)]
    pub removed_files: u64,
    /// The same of folders.
    #[serde(default)]
    pub removed_folders: u64,
    /// Names that were to be removed and are still there.
    #[serde(default)]
    pub not_removed: Vec<NotRemovedReport>,
    /// Further ones, beyond those listed.
    #[serde(default)]
    pub not_removed_more: u64,
    /// Names that are complete and could not be renamed into their places, as permissions do not allow it; of a folder all in it lacks its place, too.
    #[serde(default)]
    pub not_placed: Vec<NotPlacedReport>,
    /// Further ones, beyond those listed.
    #[serde(default)]
    pub not_placed_more: u64,
    /// Set-user and set-group bits of a copy that it does not have, since it does not have the owner either.
    pub bits_not_kept: u64,
    /// Files, folders and links that were to have owner and group of the source, and have others.
    #[serde(default)]
    pub owners_not_kept: u64,
    /// Extended attributes, ACLs among them, that were to be kept, and could not be read or set.
    #[serde(default)]
    pub attributes_not_kept: u64,
    /// Names of files that were to be hard links, and are files of their own: the destination's file system cannot link.
    #[serde(default)]
    pub links_not_kept: u64,
    /// Pipes, sockets and devices that were to be kept, and could not be made.
    #[serde(default)]
    pub special_files_not_kept: u64,
    /// Temporary names of other transfers in source trees, left out.
    pub temporary_names_left_out: u64,
    /// Sockets, pipes and devices in a source tree, left out.
    pub special_files_left_out: u64,
}

/// A file that an earlier transfer left, and that is not what it recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrongReport {
    /// Name of the node.
    pub node: String,
    /// With the name of the source's folder.
    pub file: String,
    /// How many bytes were not taken over for that: `wanted_bytes` counts them.
    pub bytes: u64,
}

/// Something that no source has and could not be removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotRemovedReport {
    /// Name of the node.
    pub node: String,
    /// With the name of the source's folder.
    pub file: String,
    /// Why, in words.
    pub reason: String,
}

/// Something that is complete and could not be renamed into its place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotPlacedReport {
    /// Name of the node.
    pub node: String,
    /// Its path at the destination.
    pub file: String,
    /// Why, in words.
    pub reason: String,
}

/// A folder that stood at a destination.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergedReport {
    /// Name of the node.
    pub node: String,
    /// The folder.
    pub path: String,
    /// Files and links that are new there.
    pub added_files: u64,
    /// Files and links that took the place of others.
    pub replaced_files: u64,
    /// Files and links that were there, the same, and stay.
    #[serde(default)]
    pub unchanged_files: u64,
}
