//! What one node's part in a stream opens: bounds, files, and the claim of a place.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use ropewalk_proto::control::{DealKind, LaneKind, StreamOpen};
use ropewalk_proto::stage::shuffle::Shuffle;
use ropewalk_proto::stage::{
    BLOCK_MAX, BLOCK_MIN, BUFFERS_MIN, GROUPS_MAX, MEMORY_MAX, NODES_MAX, group_name,
};
use ropewalk_store::{AppendedFile, NewFolder, Place, Roots, StoreError};

use crate::AgentError;

pub(super) fn refused(text: impl Into<String>) -> AgentError {
    AgentError::Refused(text.into())
}

fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Whether the stream's numbers are within bounds.
pub(super) fn is_sane(open: &StreamOpen) -> bool {
    (2..=GROUPS_MAX).contains(&open.groups)
        && (1..=NODES_MAX).contains(&open.nodes)
        && open.node < open.nodes
        && (BLOCK_MIN..=BLOCK_MAX).contains(&open.block)
        && (BUFFERS_MIN..=MEMORY_MAX / open.block).contains(&open.buffers)
}

pub(super) fn check(open: &StreamOpen, runs_programs: bool) -> Result<(), AgentError> {
    if !is_sane(open) {
        return Err(refused(
            "the stream's numbers are out of bounds; install the same Ropewalk on all hosts",
        ));
    }
    if open.lane() == LaneKind::Rbudp && open.rate == 0 {
        return Err(refused(
            "--lane rbudp sends at a fixed rate, which must be given: --rate 1.6Gbit",
        ));
    }
    if !open.programs.is_empty() && !runs_programs {
        return Err(refused(
            "this agent runs no programs of masters; start it with --run-programs, or reach the host over ssh",
        ));
    }
    let is_numbered = open.deal() == DealKind::Numbered;
    if let Some(shuffle) = &open.shuffle {
        let is_whole = open.groups == 2
            && is_numbered
            && open.local.is_empty()
            && open.programs.is_empty()
            && !open.from.is_empty()
            && !open.to.is_empty();
        if !is_whole {
            return Err(refused(
                "a shuffle has two groups, two folders and no programs; install the same Ropewalk on all hosts",
            ));
        }
        let checked = Shuffle::from(shuffle).check(open.block);
        checked.map_err(|error| refused(error.to_string()))?;
    } else if is_numbered {
        return Err(refused("only shuffles deal by number"));
    }
    for program in &open.programs {
        let has_file = program.group == 0 && !open.from.is_empty()
            || program.group + 1 == open.groups && !open.to.is_empty();
        if program.group >= open.groups || has_file {
            let name = group_name(program.group);
            return Err(refused(format!(
                "there is no group {name}, or it has a file: a group has a program or a file"
            )));
        }
    }
    Ok(())
}

/// The files of one node's part.
pub(super) struct Files {
    /// What the first process reads.
    pub source: Option<File>,
    /// By what other nodes know that, empty where nothing is read.
    pub known_as: Vec<u8>,
    /// Bytes that it deals.
    pub length: u64,
    /// What the last process writes.
    pub sink: Option<File>,
    /// The same, to be given its name.
    pub output: Option<Output>,
    pub claim: Option<Claim>,
}

/// What the last process writes.
pub(super) enum Output {
    File(AppendedFile),
    Folder(NewFolder),
}

impl Output {
    /// Whether it could get its name now.
    pub fn check(&self) -> Result<(), StoreError> {
        match self {
            Self::File(file) => file.check(),
            Self::Folder(folder) => folder.check(),
        }
    }

    /// Gives it its name.
    pub fn commit(self) -> Result<(), StoreError> {
        match self {
            Self::File(file) => file.commit(),
            Self::Folder(folder) => folder.commit(),
        }
    }
}

impl Files {
    pub fn open(open: &StreamOpen, roots: &Roots) -> Result<Self, AgentError> {
        let mut files = Self {
            source: None,
            known_as: Vec::new(),
            length: open.length,
            sink: None,
            output: None,
            claim: None,
        };
        let is_shuffle = open.shuffle.is_some();
        if is_shuffle {
            let path = roots.resolve_read(path_of(&open.from))?;
            files.source = Some(ropewalk_store::open_folder(&path).map_err(no_folder)?);
        } else if !open.from.is_empty() {
            let path = roots.resolve_read(path_of(&open.from))?;
            let (file, length) = ropewalk_store::open_whole(&path).map_err(no_file)?;
            // More is read ahead; best effort.
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Sequential);
            let is_lines = open.programs.iter().any(|program| program.lines);
            let is_cut = is_lines && length > 0 && !ends_with_line(&file, length)?;
            (files.source, files.length) = (Some(file), length + u64::from(is_cut));
        }
        files.known_as = files
            .source
            .as_ref()
            .map(ropewalk_store::known_as)
            .unwrap_or_default();
        if !open.to.is_empty() {
            let path = roots.resolve_write(path_of(&open.to))?;
            let id: String = open
                .stream
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            let own = format!("{id}-{}", open.node);
            let (output, sink) = if is_shuffle {
                let (folder, sink) = NewFolder::create(&path, &own)?;
                (Output::Folder(folder), sink)
            } else {
                let (file, sink) = AppendedFile::create(&path, &own)?;
                (Output::File(file), sink)
            };
            (files.output, files.sink) = (Some(output), Some(sink));
            files.claim = Claim::lay(&path, id, open.node)?;
        }
        Ok(files)
    }
}

/// What to do where the first process cannot read what is named.
fn no_file(error: StoreError) -> AgentError {
    match error {
        StoreError::SpecialFile { path, kind } | StoreError::NoFile { path, kind } => {
            refused(format!(
                "{} is a {kind}, and --from names a file; read anything else with a command, as --exec A=COMMAND",
                path.display()
            ))
        }
        other => other.into(),
    }
}

fn no_folder(error: StoreError) -> AgentError {
    match error {
        StoreError::NotADirectory { path, .. } if path.is_file() => refused(format!(
            "{} is a file, and --from names a folder of files; name the folder that holds it",
            path.display()
        )),
        other => other.into(),
    }
}

/// Whether a file's last byte ends a line.
fn ends_with_line(file: &File, length: u64) -> Result<bool, AgentError> {
    let mut last = [0];
    let read = file.read_exact_at(&mut last, length - 1);
    read.map_err(|error| refused(format!("the last byte of the file cannot be read: {error}")))?;
    Ok(last == [b'\n'])
}

/// That a node of a stream writes to a place: a mark there, which other nodes of the stream find. Removed when dropped.
pub(super) struct Claim {
    place: Place,
    id: String,
    text: String,
}

impl Claim {
    /// Claims the place of a resolved path; `None` where no mark can be left.
    ///
    /// * `id`: of the stream.
    fn lay(path: &Path, id: String, node: u32) -> Result<Option<Self>, AgentError> {
        let Some(place) = Place::of(path, false) else {
            return Ok(None);
        };
        let text = (node + 1).to_string();
        match place.mark(&id, &text)? {
            None => Ok(Some(Self { place, id, text })),
            Some(other) => Err(refused(format!(
                "{} is written by node {other} of this stream, too; put {{node}} into --to, which is the node's number",
                path.display()
            ))),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.place.unmark(&self.id, &self.text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file where a folder of files is read is named as that.
    #[test]
    fn a_file_is_no_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("f");
        std::fs::write(&path, "a\n").unwrap();
        let error = no_folder(ropewalk_store::open_folder(&path).unwrap_err());
        let text = error.to_string();
        assert!(
            text.contains("/f is a file, and --from names a folder"),
            "{text}"
        );
    }
}
