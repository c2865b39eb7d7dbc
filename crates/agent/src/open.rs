//! Opens what a node holds and checks what it will write, before anything moves.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ropewalk_model::{Layout, Piece, Range, RangeSet};
use ropewalk_proto::control::{self, Existing, OpenedSource, Row, sink, source};
use ropewalk_store::{
    Buffer, BufferSource, FileList, FileSource, Filter, FilterRule, Growth, Keep, LeftOut,
    PatternSource, Roots, Scan, Scanning, Source, Stand, Standing, StoreError,
};

use crate::AgentError;
use crate::host::Host;

/// Something the node holds, opened.
pub(crate) enum OpenSource {
    /// A tree or file; the plan has its place in the data space.
    Tree {
        root: TreeRoot,
        scan: Scan,
        encoded: Arc<Vec<u8>>,
        hash: [u8; 32],
    },
    /// A pattern of so many bytes; placed by the plan.
    Memory(u64),
    /// A buffer of this program; placed by the plan.
    Buffer { name: String, buffer: Buffer },
    /// Explicit rows, placed already.
    Rows {
        ranges: RangeSet,
        source: Arc<dyn Source>,
    },
}

/// Where the entries of a manifest lie, resolved.
pub(crate) enum TreeRoot {
    /// Below this folder, or it is this file.
    One(PathBuf),
    /// Below, or at, the path beside the first component of the entry's own.
    Bundle(Vec<(Vec<u8>, PathBuf)>),
}

/// The master gets to know where so many files and folders of one source are.
const ROOTS_MAX: usize = 1024;

/// What is recorded of entries of sources, and received of others.
pub(crate) fn keep(options: &control::Options) -> Keep {
    Keep {
        owners: options.archive,
        attributes: options.archive,
        links: options.hard_links,
        specials: options.archive,
    }
}

/// For the master.
pub(crate) fn above_of(above: &ropewalk_store::Above) -> control::Above {
    control::Above {
        folder: above.inode,
        name: above.name.clone(),
    }
}

impl TreeRoot {
    /// What is copied: its name in the copy, if it is one of several, and its path.
    pub fn things(&self) -> impl Iterator<Item = (&[u8], &Path)> {
        let (one, several) = match self {
            Self::One(path) => (Some((&[][..], path.as_path())), &[][..]),
            Self::Bundle(things) => (None, things.as_slice()),
        };
        let several = several
            .iter()
            .map(|(name, path)| (name.as_slice(), path.as_path()));
        one.into_iter().chain(several)
    }

    /// Where it is, for the master.
    fn roots(&self) -> Vec<control::Root> {
        let root = |(name, path): (&[u8], &Path)| {
            let stand = Stand::of(path);
            stand.map_or_else(control::Root::default, |stand| control::Root {
                folder: stand.folder.unwrap_or(0),
                name: name.to_vec(),
                device: stand.device,
                changed: stand.changed,
                above: stand.above.iter().map(above_of).collect(),
            })
        };
        self.things().take(ROOTS_MAX).map(root).collect()
    }

    /// The files, from a data-space offset on.
    pub fn open(&self, scan: &Scan, base: u64, growth: Growth) -> Result<FileSource, AgentError> {
        Ok(match self {
            Self::One(root) => FileSource::open_tree_with(root, scan, base, growth)?,
            Self::Bundle(things) => FileSource::open_bundle_with(things, scan, base, growth)?,
        })
    }
}

/// Something the node wants, checked.
pub(crate) enum OpenSink {
    /// Final path of a tree.
    Tree {
        path: PathBuf,
        shared: bool,
        /// The folder that holds it is made where only it is missing.
        make_folder: bool,
        /// Where the checksums of the copy are written.
        checksums: Option<PathBuf>,
        /// Sources of this host, resolved.
        sources: Vec<PathBuf>,
        /// The folder that stands there, before any node of the transfer changes it.
        stood: Option<Standing>,
    },
    /// Dropped after the check.
    Null,
    /// Left in memory after the check.
    Memory,
    /// A buffer of this program: what the layout says, or all that is received, from the beginning on.
    Buffer {
        name: String,
        buffer: Buffer,
        layout: Option<Layout>,
    },
    /// Explicit rows of files.
    Files {
        paths: Vec<PathBuf>,
        layout: Layout,
        shared: bool,
        /// What stands there keeps its other bytes.
        keeps_rest: bool,
    },
    /// Explicit rows that are dropped (`null:`) or left in memory (`mem:`).
    RowsKeptNowhere { ranges: RangeSet, memory: bool },
}

impl OpenSink {
    /// All final paths.
    pub fn paths(&self) -> &[PathBuf] {
        match self {
            Self::Tree { path, .. } => std::slice::from_ref(path),
            Self::Files { paths, .. } => paths,
            _ => &[],
        }
    }

    /// Whether what is received can be read again.
    pub fn is_kept(&self) -> bool {
        matches!(
            self,
            Self::Tree { .. } | Self::Files { .. } | Self::Buffer { .. }
        )
    }

    /// The final paths of what other nodes write, too.
    pub fn shared_paths(&self) -> &[PathBuf] {
        match self {
            Self::Tree {
                path, shared: true, ..
            } => std::slice::from_ref(path),
            Self::Files {
                paths,
                shared: true,
                ..
            } => paths,
            _ => &[],
        }
    }
}

fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// A scanned source, and what the master must know of it.
fn tree(root: TreeRoot, scan: Scan) -> (OpenSource, OpenedSource) {
    let encoded = scan.manifest.encode();
    let hash = *blake3::hash(&encoded).as_bytes();
    let left_out = |(one, range): (&LeftOut, Option<Range>)| control::LeftOut {
        path: one.path.clone(),
        reason: one.reason.clone(),
        start: range.map_or(0, |range| range.start),
        length: range.map_or(0, |range| range.len()),
    };
    let opened = OpenedSource {
        left_out: scan.left_out().into_iter().map(left_out).collect(),
        left_out_more: scan.left_out_more,
        attributes_unread: scan.attributes_unread,
        manifest_root: hash.to_vec(),
        manifest_length: encoded.len() as u64,
        data_length: scan.manifest.data_len(),
        file_count: scan.manifest.file_count(),
        identities: Vec::new(),
        skipped: scan.skipped,
        special: scan.special,
        roots: root.roots(),
    };
    let source = OpenSource::Tree {
        root,
        scan,
        encoded: Arc::new(encoded),
        hash,
    };
    (source, opened)
}

/// The rules of a transfer.
pub(crate) fn filter(rules: &[control::FilterRule]) -> Result<Filter, AgentError> {
    let rules: Vec<FilterRule> = rules
        .iter()
        .map(|rule| FilterRule {
            is_include: rule.include,
            pattern: rule.pattern.clone(),
        })
        .collect();
    Filter::new(&rules).map_err(|error| AgentError::Refused(error.to_string()))
}

/// Refuses a single file that the filter leaves out, as it leaves out one of several: nothing would be copied.
///
/// * `path`: as the user named it.
fn check_included(path: &Path, is_folder: bool, filter: &Filter) -> Result<(), AgentError> {
    // Patterns are of what a folder has in it, not of its own name.
    let excluded = path
        .file_name()
        .filter(|name| !is_folder && filter.excludes(name.as_bytes(), false));
    match excluded {
        None => Ok(()),
        Some(_) => Err(AgentError::Refused(format!(
            "{} is excluded by a pattern, so nothing would be copied; leave out the pattern, or name another file",
            path.display()
        ))),
    }
}

/// Opens one source; also says what the master must know of it.
///
/// * `keep`: what is recorded of a tree beyond contents, modes and times.
/// * `filter`: which entries of a tree are part of the copy.
/// * `files`: names of those that are, where not all are.
/// * `scanning`: counts what is found of trees, and can stop that.
pub(crate) fn source(
    request: &control::Source,
    keep: Keep,
    filter: &Filter,
    files: Option<&control::FileList>,
    host: &Host,
    scanning: &Scanning,
) -> Result<(OpenSource, OpenedSource), AgentError> {
    let roots = &host.roots;
    match &request.kind {
        Some(source::Kind::Tree(path)) => {
            let path = path_of(path);
            let root = roots.resolve_read(path)?;
            let scan = match files {
                None => {
                    check_included(path, root.is_dir(), filter)?;
                    Scan::read_filtered(&root, keep, filter, b"", scanning)?
                }
                Some(files) => {
                    let list = FileList {
                        names: files.names.clone(),
                        is_recursive: files.recursive,
                    };
                    Scan::read_listed(&root, keep, filter, &list, scanning)?
                }
            };
            Ok(tree(TreeRoot::One(root), scan))
        }
        Some(source::Kind::Bundle(_)) if files.is_some() => Err(AgentError::Refused(
            "a list of files is of one source; name one".into(),
        )),
        Some(source::Kind::Bundle(bundle)) => {
            let (mut things, mut scans) = (Vec::new(), Vec::new());
            for path in &bundle.paths {
                let path = path_of(path);
                let name = path.file_name().ok_or_else(|| {
                    AgentError::Refused(format!("{} has no name of its own", path.display()))
                })?;
                let root = roots.resolve_read(path)?;
                let name = name.as_bytes();
                if filter.excludes(name, root.is_dir()) {
                    continue;
                }
                let scan = Scan::read_filtered(&root, keep, filter, name, scanning)?;
                scans.push((name.to_vec(), scan));
                things.push((name.to_vec(), root));
            }
            let scan =
                Scan::bundle(scans).map_err(|error| AgentError::Refused(error.to_string()))?;
            Ok(tree(TreeRoot::Bundle(things), scan))
        }
        Some(source::Kind::Memory(size)) => Ok((
            OpenSource::Memory(*size),
            OpenedSource {
                data_length: *size,
                ..OpenedSource::default()
            },
        )),
        Some(source::Kind::Buffer(name)) => {
            let buffer = host.buffers.get(name).map_err(StoreError::from)?;
            let opened = OpenedSource {
                data_length: buffer.len(),
                ..OpenedSource::default()
            };
            let name = name.clone();
            Ok((OpenSource::Buffer { name, buffer }, opened))
        }
        None => rows(&request.rows, host),
    }
}

enum RowObject<'a> {
    File(&'a [u8]),
    Memory,
    Buffer(&'a str),
    Null,
}

fn row_object(object: &[u8]) -> RowObject<'_> {
    let buffer = object.strip_prefix(b"buffer:");
    if object == b"null:" {
        RowObject::Null
    } else if let Some(name) = buffer.and_then(|name| std::str::from_utf8(name).ok()) {
        RowObject::Buffer(name)
    } else if object.starts_with(b"mem:") {
        RowObject::Memory
    } else {
        RowObject::File(object)
    }
}

fn row_ranges(rows: &[Row]) -> RangeSet {
    RangeSet::from_ranges(rows.iter().map(|row| control::range(row.start, row.length)))
}

/// Objects in order of first mention, and the layout of the rows over them.
pub(crate) fn row_layout(rows: &[Row]) -> Result<(Vec<&[u8]>, Layout), AgentError> {
    let mut objects: Vec<&[u8]> = Vec::new();
    let mut pieces = Vec::new();
    for row in rows {
        let object = objects
            .iter()
            .position(|o| *o == row.object)
            .unwrap_or_else(|| {
                objects.push(&row.object);
                objects.len() - 1
            });
        pieces.push(Piece {
            range: control::range(row.start, row.length),
            object: object as u32,
            object_offset: row.object_offset,
        });
    }
    let layout = Layout::new(pieces).map_err(|error| AgentError::Refused(error.to_string()))?;
    Ok((objects, layout))
}

fn rows(rows: &[Row], host: &Host) -> Result<(OpenSource, OpenedSource), AgentError> {
    let roots = &host.roots;
    let ranges = row_ranges(rows);
    let mut opened = OpenedSource {
        data_length: ranges.len_bytes(),
        ..OpenedSource::default()
    };
    let memory = rows
        .iter()
        .filter(|row| matches!(row_object(&row.object), RowObject::Memory))
        .count();
    if memory == rows.len() {
        opened.identities = rows.iter().map(|_| control::Identity::default()).collect();
        let source = Arc::new(PatternSource::new(ranges.clone())?);
        return Ok((OpenSource::Rows { ranges, source }, opened));
    }
    if memory > 0 {
        return Err(AgentError::Refused(
            "one source cannot mix mem: and files; this is a fault of the master".into(),
        ));
    }
    let (objects, layout) = row_layout(rows)?;
    if let [object] = objects.as_slice()
        && let RowObject::Buffer(name) = row_object(object)
    {
        let buffer = host.buffers.get(name).map_err(StoreError::from)?;
        opened.identities = vec![identity_of(&buffer.identity(), None); rows.len()];
        let source = BufferSource::new(name, buffer, layout).map_err(StoreError::from)?;
        let source = Arc::new(source);
        return Ok((OpenSource::Rows { ranges, source }, opened));
    }
    let mut paths = Vec::new();
    for object in objects {
        match row_object(object) {
            RowObject::File(path) => paths.push(roots.resolve_read(path_of(path))?),
            RowObject::Buffer(_) => return Err(mixed()),
            _ => {
                return Err(AgentError::Refused(
                    "null: holds no bytes and cannot be a writer; use mem:SIZE or a file".into(),
                ));
            }
        }
    }
    for row in rows {
        let path = roots.resolve_read(path_of(&row.object))?;
        let (identity, mode) = ropewalk_store::identity(&path)?;
        let number = ropewalk_store::file_number(&path);
        opened.identities.push(control::Identity {
            file: number.map_or(0, |(number, _)| number),
            ..identity_of(&identity, Some(mode))
        });
    }
    let source = Arc::new(FileSource::open(layout, paths)?);
    Ok((OpenSource::Rows { ranges, source }, opened))
}

fn identity_of(identity: &ropewalk_store::Identity, mode: Option<u32>) -> control::Identity {
    control::Identity {
        length: identity.len,
        modified_seconds: identity.mtime_seconds,
        modified_nanoseconds: identity.mtime_nanoseconds,
        mode,
        file: 0,
    }
}

/// The file that has the path of rows, for the master.
pub(crate) fn file_at(path: &Path) -> Option<control::Identity> {
    let (file, identity) = ropewalk_store::file_number(path)?;
    Some(control::Identity {
        file,
        ..identity_of(&identity, None)
    })
}

fn mixed() -> AgentError {
    AgentError::Refused(
        "one source or sink cannot mix buffers and other objects; this is a fault of the master"
            .into(),
    )
}

/// Refuses a copy that would lie in what it is a copy of, or take its place.
///
/// * `path`: of the tree to be written, resolved.
/// * `deletes`: what the sources lack is removed there.
/// * `sources`: those of this host, as the user named them. What cannot be resolved is for the sending side to refuse.
fn outside_sources(
    path: &Path,
    sources: &[control::Beside],
    deletes: bool,
) -> Result<(), AgentError> {
    let place = |source: &control::Beside| match source.name.is_empty() {
        true => path.to_owned(),
        false => path.join(path_of(&source.name)),
    };
    for source in sources {
        let named = path_of(&source.path);
        let Ok(resolved) = std::fs::canonicalize(named) else {
            continue;
        };
        let copy = place(source);
        // What is removed of another source's copy could be this source.
        let holds = |other: &control::Beside| resolved.starts_with(place(other));
        let what = match copy.starts_with(&resolved) {
            true if copy == resolved => "would take the place of its own source",
            true => "would lie in its own source",
            // What is removed could be the source.
            false if deletes && resolved.starts_with(&copy) => {
                "would, with --delete, hold its own source"
            }
            false if deletes && sources.iter().any(holds) => {
                "would, with --delete, lie beside a copy that holds its own source"
            }
            false => continue,
        };
        return Err(AgentError::Refused(format!(
            "the copy {} {what} {}; name another destination",
            copy.display(),
            named.display()
        )));
    }
    Ok(())
}

/// Checks all sinks; creates nothing.
///
/// * `options`: what becomes of files that stand there.
pub(crate) fn sinks(
    requests: &[control::Sink],
    options: &control::Options,
    host: &Host,
) -> Result<Vec<OpenSink>, AgentError> {
    let sinks = requests.iter().map(|request| sink(request, options, host));
    let sinks = sinks.collect::<Result<Vec<_>, _>>()?;
    check_paths_apart(&sinks)?;
    Ok(sinks)
}

/// Refuses rows that reach one file by two paths: they would write and rename it twice.
fn check_paths_apart(sinks: &[OpenSink]) -> Result<(), AgentError> {
    let mut seen = HashSet::new();
    for sink in sinks {
        let paths = match sink {
            OpenSink::Files { paths, .. } => paths.as_slice(),
            OpenSink::Tree { path, .. } => std::slice::from_ref(path),
            _ => &[],
        };
        for path in paths {
            if !seen.insert(path) {
                return Err(AgentError::Refused(format!(
                    "two paths of this node lead to one file, {path:?}; write its rows with one path"
                )));
            }
        }
    }
    Ok(())
}

/// Where the checksums of a copy are written; refused where that cannot be, or would change a source or the copy.
///
/// * `copy`: the final path of the copy, resolved.
fn checksums(request: &control::Sink, copy: &Path, roots: &Roots) -> Result<PathBuf, AgentError> {
    let path = ropewalk_store::from_home(path_of(&request.checksums))?;
    let path = roots.resolve_write(&path).map_err(|error| match error {
        // Of an agent that serves what is named, as its user may: that is not there.
        StoreError::OutsideRoot { path, roots } => {
            let roots: Vec<String> = roots.iter().map(|root| root.display().to_string()).collect();
            AgentError::Refused(format!(
                "the list of checksums {} lies in no folder that exists, or outside those this agent may use ({}); make the folder, or name \
                 another file with --manifest",
                path.display(),
                roots.join(", ")
            ))
        }
        error => error.into(),
    })?;
    let is_source = |source: &control::Beside| {
        std::fs::canonicalize(path_of(&source.path)).is_ok_and(|source| path.starts_with(source))
    };
    let is_to_come = request.make_folder && path.parent() == copy.parent();
    let problem = if path.starts_with(copy) {
        "would lie in the copy"
    } else if request.sources.iter().any(is_source) {
        "would lie in a source"
    } else if path.exists() && !path.is_file() {
        "is no file"
    } else if !(is_to_come || path.parent().is_some_and(Path::is_dir)) {
        "lies in no folder that exists"
    } else {
        return Ok(path);
    };
    Err(AgentError::Refused(format!(
        "the list of checksums {} {problem}; name another file with --manifest",
        path.display()
    )))
}

/// * `layout`: where its rows are in it; `None` for all that is received.
fn buffer_sink(
    name: &str,
    layout: Option<Layout>,
    is_shared: bool,
    host: &Host,
) -> Result<OpenSink, AgentError> {
    if is_shared {
        return Err(AgentError::Refused(format!(
            "buffer {name} is one program's, and other nodes cannot write it, too; leave out its destination's name"
        )));
    }
    let buffer = host.buffers.get(name).map_err(StoreError::from)?;
    let whole = Layout::default();
    let checked = buffer.check(name, layout.as_ref().unwrap_or(&whole), true);
    checked.map_err(StoreError::from)?;
    Ok(OpenSink::Buffer {
        name: name.into(),
        buffer,
        layout,
    })
}

/// Checks one sink.
fn sink(
    request: &control::Sink,
    options: &control::Options,
    host: &Host,
) -> Result<OpenSink, AgentError> {
    let roots = &host.roots;
    let rule = options.existing();
    match &request.kind {
        Some(sink::Kind::Tree(path)) => {
            let path = ropewalk_store::from_home(path_of(path))?;
            let path = match options.compares {
                // Nothing is made there, and one may hold the other.
                true => roots.resolve_read(&path)?,
                false => {
                    let path = roots.resolve_write(&path)?;
                    outside_sources(&path, &request.sources, options.delete)?;
                    path
                }
            };
            let checksums = match request.checksums.is_empty() {
                true => None,
                false => Some(checksums(request, &path, roots)?),
            };
            let sources = request.sources.iter();
            let sources =
                sources.filter_map(|source| std::fs::canonicalize(path_of(&source.path)).ok());
            Ok(OpenSink::Tree {
                sources: sources.collect(),
                checksums,
                stood: Standing::at(&path),
                path,
                shared: request.shared,
                make_folder: request.make_folder,
            })
        }
        Some(sink::Kind::Null(_)) => Ok(OpenSink::Null),
        Some(sink::Kind::Memory(_)) => Ok(OpenSink::Memory),
        Some(sink::Kind::Buffer(name)) => buffer_sink(name, None, request.shared, host),
        None => {
            let (objects, layout) = row_layout(&request.rows)?;
            if let [object] = objects.as_slice()
                && let RowObject::Buffer(name) = row_object(object)
            {
                return buffer_sink(name, Some(layout), request.shared, host);
            }
            let mut paths = Vec::new();
            for (number, object) in objects.iter().enumerate() {
                if let RowObject::Buffer(_) = row_object(object) {
                    return Err(mixed());
                }
                if let RowObject::File(path) = row_object(object) {
                    let path = roots.resolve_write(path_of(path))?;
                    let pieces = layout.pieces().iter();
                    let ends = pieces
                        .filter(|piece| piece.object as usize == number)
                        .map(|piece| piece.object_offset.saturating_add(piece.range.len()));
                    let longest =
                        (rule == Existing::RefusedIfLonger).then(|| ends.max().unwrap_or(0));
                    ropewalk_store::check_replaceable(&path, longest)?;
                    paths.push(path);
                }
            }
            if paths.is_empty() {
                let memory = objects
                    .iter()
                    .any(|o| matches!(row_object(o), RowObject::Memory));
                return Ok(OpenSink::RowsKeptNowhere {
                    ranges: row_ranges(&request.rows),
                    memory,
                });
            }
            if paths.len() != objects.len() {
                return Err(AgentError::Refused(
                    "one sink cannot mix files with mem: or null:; this is a fault of the master"
                        .into(),
                ));
            }
            if request.shared && rule == Existing::Kept {
                return Err(AgentError::Refused(
                    "ranges written into a file that is there cannot be shared: each node would begin with a copy of \
                     the file; give each node rows of one file of its own, or leave out the ranges' offset"
                        .into(),
                ));
            }
            Ok(OpenSink::Files {
                paths,
                layout,
                shared: request.shared,
                keeps_rest: rule == Existing::Kept,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last name of a single file counts, as it does where several are named; a folder's own name does not.
    #[test]
    fn a_single_file_can_be_excluded() {
        let rule = FilterRule {
            is_include: false,
            pattern: b"*.o".to_vec(),
        };
        let filter = Filter::new([&rule]).unwrap();
        let check = |path: &str, is_folder| check_included(Path::new(path), is_folder, &filter);
        let text = check("s/a.o", false).unwrap_err().to_string();
        assert!(text.contains("s/a.o is excluded"), "{text}");
        for (path, is_folder) in [
            ("s/a.c", false),
            ("a.o/a", false),
            ("s/a.o", true),
            ("/", false),
        ] {
            assert!(check(path, is_folder).is_ok(), "{path}");
        }
    }
}
