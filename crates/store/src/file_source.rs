//! Files and trees as sources of bytes: opening them, reading them, and refusing what is no longer what was scanned.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ropewalk_model::{Layout, Piece, Range};
use rustix::fs::{Advice, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::error::{Operation, StoreError};
use crate::file_systems::FileSystem;
use crate::identity::{Identity, check_kind};
use crate::manifest::{EntryKind, Scan};
use crate::open_files::{ADVISED_MIN, OpenFiles};
use crate::source::{Extent, Growth, SMALL_FILE_MAX, Source, locate};
use crate::version::{Change, Version};
use crate::{holes, sys};

/// Files of the disk as a source. Files are opened when first asked for, at most
/// [`crate::OPEN_FILES_MAX`] at a time.
#[derive(Debug)]
pub struct FileSource {
    layout: Layout,
    objects: Objects,
    open: OpenFiles,
    // Of the first folder.
    file_system: Option<u64>,
    /// Further names of files that have several, by number: found when the first name of one cannot be opened.
    further: OnceLock<HashMap<u32, Vec<u32>>>,
    /// Of [`Growth::LeftOut`]: the files that have grown.
    grown: Option<Mutex<BTreeSet<u32>>>,
}

#[derive(Debug)]
enum Objects {
    /// With what each file was when it was opened first.
    Paths(Vec<PathBuf>, Vec<OnceLock<Known>>),
    One {
        path: PathBuf,
        scan: Scan,
    },
    Tree {
        root: PathBuf,
        dir: OwnedFd,
        scan: Scan,
    },
    Bundle {
        things: Vec<Thing>,
        scan: Scan,
    },
}

/// What is known of a file that was opened.
#[derive(Debug, Clone, Copy)]
struct Known {
    identity: Identity,
    version: Version,
}

/// The number of the file system that an open folder is on.
fn file_system_of(folder: &OwnedFd) -> Option<u64> {
    let stat = rustix::fs::fstat(folder).ok()?;
    // Its type is not the same on all systems.
    #[allow(clippy::useless_conversion)]
    Some(stat.st_dev.into())
}

/// One file or folder of a bundle.
#[derive(Debug)]
struct Thing {
    /// Its name in the bundle.
    name: Vec<u8>,
    path: PathBuf,
    /// The folder, opened; `None` for a file.
    dir: Option<OwnedFd>,
}

/// The thing of a bundle that holds an entry, and the entry's path in it.
fn thing_of<'a>(things: &'a [Thing], path: &'a [u8]) -> Option<(&'a Thing, &'a [u8])> {
    let cut = path.iter().position(|byte| *byte == b'/');
    let (name, rest) = match cut {
        Some(cut) => (&path[..cut], &path[cut + 1..]),
        None => (path, &[][..]),
    };
    let at = things.binary_search_by(|thing| thing.name.as_slice().cmp(name));
    Some((&things[at.ok()?], rest))
}

impl FileSource {
    /// A source of files named one by one: object `n` of the layout is `paths[n]`.
    ///
    /// Paths must be resolved (as [`crate::Roots`] returns them): a link on one is taken for an attack.
    ///
    /// # Errors
    /// [`StoreError::TooShort`] when a file is shorter than its pieces, [`StoreError::NotHeld`] when
    /// the layout names an object without a path, else what opening a file reported.
    pub fn open(layout: Layout, paths: Vec<PathBuf>) -> Result<Self, StoreError> {
        let mut wanted = vec![0; paths.len()];
        for piece in layout.pieces() {
            let end = wanted
                .get_mut(piece.object as usize)
                .ok_or(StoreError::NotHeld { range: piece.range })?;
            *end = (piece.object_offset + piece.range.len()).max(*end);
        }
        let identities = paths.iter().map(|_| OnceLock::new()).collect();
        let source = Self {
            layout,
            objects: Objects::Paths(paths, identities),
            open: OpenFiles::new(),
            further: OnceLock::new(),
            file_system: None,
            grown: None,
        };
        for (object, wanted) in wanted.into_iter().enumerate() {
            let object = object as u32;
            let file = source.file(object)?;
            let stat = rustix::fs::fstat(&file).map_err(|errno| {
                StoreError::from_errno(Operation::Inspect, source.path(object), errno)
            })?;
            let len = stat.st_size as u64;
            if len < wanted {
                return Err(StoreError::TooShort {
                    path: source.path(object),
                    wanted,
                    len,
                });
            }
        }
        Ok(source)
    }

    /// The files of a scanned tree (or the one scanned file), from the data-space offset `base` on.
    ///
    /// * `root`: the path as it was scanned, resolved. It is not resolved again: a link that took its place, or a
    ///   folder's above it, would lead to an unchecked place.
    ///
    /// A file that is no longer the scanned one is refused when it is opened and after each read: replicas that each hold
    /// another version of it would give a mixture that no checksum finds. Not noticed are bytes that a program writes
    /// through a mapping it made before the scan, until the kernel writes them back, and on file systems that change inode
    /// numbers by themselves what keeps size and modification time.
    ///
    /// # Errors
    /// What opening the root reported ([`StoreError::SymbolicLink`] for a link on the way), or a manifest
    /// that does not fit the data space. For one file
    /// also [`StoreError::Shrank`] or [`StoreError::Changed`]; for files of a tree reading gives these.
    pub fn open_tree(root: &Path, scan: &Scan, base: u64) -> Result<Self, StoreError> {
        Self::open_tree_with(root, scan, base, Growth::Refused)
    }

    /// As [`FileSource::open_tree`].
    ///
    /// With [`Growth::LeftOut`] a file that is the scanned one, and longer, is read as far as it was scanned, whatever its time is now:
    /// [`Source::grown`] names it. What a program has written over is then read as it is.
    ///
    /// # Errors
    /// As there.
    pub fn open_tree_with(
        root: &Path,
        scan: &Scan,
        base: u64,
        growth: Growth,
    ) -> Result<Self, StoreError> {
        let grown = (growth == Growth::LeftOut).then(Mutex::default);
        let layout = scan.manifest.layout(base)?;
        let scan = scan.clone();
        let failed = |errno| StoreError::from_errno(Operation::Open, root, errno);
        if scan.manifest.is_single() {
            let is_file = scan.manifest.is_single_file();
            let source = Self {
                layout,
                objects: Objects::One {
                    path: root.to_owned(),
                    scan,
                },
                open: OpenFiles::new(),
                further: OnceLock::new(),
                file_system: None,
                grown,
            };
            // A special file has no bytes, and is never opened.
            if is_file {
                source.file(0)?;
            }
            return Ok(source);
        }
        let dir = sys::open_resolved_path(root, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
            .map_err(failed)?;
        Ok(Self {
            layout,
            file_system: file_system_of(&dir),
            objects: Objects::Tree {
                root: root.to_owned(),
                dir,
                scan,
            },
            open: OpenFiles::new(),
            further: OnceLock::new(),
            grown,
        })
    }

    /// The files of scanned files and folders that lie side by side, from the data-space offset `base` on.
    ///
    /// * `things`: name in the bundle and path of each, as for [`FileSource::open_tree`].
    /// * `scan`: of all, by [`Scan::bundle`].
    ///
    /// # Errors
    /// As [`FileSource::open_tree`].
    pub fn open_bundle(
        things: &[(Vec<u8>, PathBuf)],
        scan: &Scan,
        base: u64,
    ) -> Result<Self, StoreError> {
        Self::open_bundle_with(things, scan, base, Growth::Refused)
    }

    /// As [`FileSource::open_bundle`], and [`FileSource::open_tree_with`].
    ///
    /// # Errors
    /// As there.
    pub fn open_bundle_with(
        things: &[(Vec<u8>, PathBuf)],
        scan: &Scan,
        base: u64,
        growth: Growth,
    ) -> Result<Self, StoreError> {
        let grown = (growth == Growth::LeftOut).then(Mutex::default);
        let layout = scan.manifest.layout(base)?;
        let mut opened = Vec::new();
        for (name, path) in things {
            let folder = scan
                .manifest
                .entry(name)
                .is_some_and(|entry| entry.kind == EntryKind::Directory);
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let dir = match folder {
                true => Some(
                    sys::open_resolved_path(path, flags, Mode::empty())
                        .map_err(|errno| StoreError::from_errno(Operation::Open, path, errno))?,
                ),
                false => None,
            };
            opened.push(Thing {
                name: name.clone(),
                path: path.clone(),
                dir,
            });
        }
        opened.sort_by(|a, b| a.name.cmp(&b.name));
        let mut folders = opened.iter().filter_map(|thing| thing.dir.as_ref());
        Ok(Self {
            layout,
            file_system: folders.next().and_then(file_system_of),
            objects: Objects::Bundle {
                things: opened,
                scan: scan.clone(),
            },
            open: OpenFiles::new(),
            further: OnceLock::new(),
            grown,
        })
    }

    /// Where the bytes lie.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    fn path(&self, object: u32) -> PathBuf {
        match &self.objects {
            Objects::Paths(paths, _) => paths.get(object as usize).cloned().unwrap_or_default(),
            Objects::One { path, .. } => path.clone(),
            Objects::Tree { root, scan, .. } => match scan.manifest.entries.get(object as usize) {
                Some(entry) => root.join(OsStr::from_bytes(&entry.path)),
                None => root.clone(),
            },
            Objects::Bundle { things, scan } => {
                let entry = scan.manifest.entries.get(object as usize);
                let thing = entry.and_then(|entry| thing_of(things, &entry.path));
                match thing {
                    Some((thing, [])) => thing.path.clone(),
                    Some((thing, rest)) => thing.path.join(OsStr::from_bytes(rest)),
                    None => PathBuf::new(),
                }
            }
        }
    }

    fn file(&self, object: u32) -> Result<Arc<File>, StoreError> {
        self.open.get(object, || self.open_object(object))
    }

    fn open_object(&self, object: u32) -> Result<File, StoreError> {
        let file = match self.open_name(object) {
            Ok(file) => self.checked(object, file)?,
            Err(errno) => {
                let error = StoreError::from_errno(Operation::Open, self.path(object), errno);
                // What this process lacks, it lacks for each name.
                let further = match error.is_retryable() {
                    true => None,
                    false => self.open_further(object),
                };
                further.ok_or(error)?
            }
        };
        Ok(file)
    }

    /// Opens a file by the first of its further names that leads to it.
    fn open_further(&self, object: u32) -> Option<File> {
        let further = self.further.get_or_init(|| self.further_names());
        let mut names = further.get(&object)?.iter();
        names.find_map(|name| {
            let file = self.open_name(*name).ok()?;
            self.checked(object, file).ok()
        })
    }

    /// The numbers of the entries that are further names of files, by the file's. Cost O(entries).
    fn further_names(&self) -> HashMap<u32, Vec<u32>> {
        let mut further: HashMap<u32, Vec<u32>> = HashMap::new();
        let entries = match &self.objects {
            Objects::Tree { scan, .. } | Objects::Bundle { scan, .. } => &scan.manifest.entries[..],
            Objects::Paths(..) | Objects::One { .. } => &[],
        };
        for (at, entry) in entries.iter().enumerate() {
            if let EntryKind::HardLink { to } = &entry.kind
                && let Ok(file) = entries.binary_search_by(|entry| entry.path.cmp(to))
            {
                further.entry(file as u32).or_default().push(at as u32);
            }
        }
        further
    }

    /// Opens what has the name of an entry now.
    fn open_name(&self, object: u32) -> Result<OwnedFd, Errno> {
        // A pipe that took the file's place must not block us until its kind is known.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        match &self.objects {
            Objects::Paths(..) | Objects::One { .. } => {
                sys::open_resolved_path(&self.path(object), flags, Mode::empty())
            }
            Objects::Tree { dir, scan, .. } => {
                let path = scan
                    .manifest
                    .entries
                    .get(object as usize)
                    .map_or(&[][..], |entry| &entry.path);
                sys::open_beneath(dir.as_fd(), path, flags, Mode::empty())
            }
            Objects::Bundle { things, scan } => {
                let entry = scan.manifest.entries.get(object as usize);
                match entry.and_then(|entry| thing_of(things, &entry.path)) {
                    Some((Thing { dir: Some(dir), .. }, rest)) => {
                        sys::open_beneath(dir.as_fd(), rest, flags, Mode::empty())
                    }
                    _ => sys::open_resolved_path(&self.path(object), flags, Mode::empty()),
                }
            }
        }
    }

    /// The file that was opened, if it is the one of this number.
    fn checked(&self, object: u32, file: OwnedFd) -> Result<File, StoreError> {
        let failed = |errno| StoreError::from_errno(Operation::Open, self.path(object), errno);
        let stat = rustix::fs::fstat(&file).map_err(failed)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory && self.is_scanned() {
            return Err(StoreError::Changed {
                path: self.path(object),
                how: Change::Contents,
            });
        }
        if kind != FileType::RegularFile {
            check_kind(&self.path(object), &stat)?;
        }
        self.check_known(object, &file, &stat)?;
        if stat.st_size as u64 > ADVISED_MIN {
            // Only advice: a file system that ignores it reads all the same.
            let _ = rustix::fs::fadvise(&file, 0, None, Advice::Sequential);
        }
        Ok(File::from(file))
    }

    /// Refuses a file that was written to since it was scanned or opened first. Called after each
    /// read: what was read before is then all of one version.
    fn check_unchanged(&self, file: &File, object: u32) -> Result<(), StoreError> {
        let stat = rustix::fs::fstat(file).map_err(|errno| {
            StoreError::from_errno(Operation::Inspect, self.path(object), errno)
        })?;
        self.check_known(object, file, &stat)
    }

    /// Refuses a file that is not the version known.
    fn check_known(&self, object: u32, file: impl AsFd, stat: &Stat) -> Result<(), StoreError> {
        let at = object as usize;
        let found = Identity::of(stat);
        let known = match &self.objects {
            Objects::Paths(_, known) => known.get(at).map(|known| {
                *known.get_or_init(|| {
                    let keeps = FileSystem::of(file).is_some_and(FileSystem::keeps_inodes);
                    Known {
                        identity: found,
                        version: if keeps {
                            Version::of(stat)
                        } else {
                            Version::UNKNOWN
                        },
                    }
                })
            }),
            Objects::One { scan, .. }
            | Objects::Tree { scan, .. }
            | Objects::Bundle { scan, .. } => scanned(scan, at),
        };
        let Some(known) = known else {
            return Ok(());
        };
        if found.len < known.identity.len {
            return Err(self.shrank(object));
        }
        if found.len > known.identity.len
            && known.version.is_same_file(&Version::of(stat))
            && let Some(grown) = &self.grown
        {
            lock(grown).insert(object);
            return Ok(());
        }
        let change = if found != known.identity {
            Some(Change::Contents)
        } else {
            // Its type is not the same on all systems.
            #[allow(clippy::useless_conversion)]
            let names = u64::from(stat.st_nlink);
            known.version.change(&Version::of(stat), names)
        };
        match change {
            None => Ok(()),
            Some(how) => {
                self.forget_grown(object);
                Err(StoreError::Changed {
                    path: self.path(object),
                    how,
                })
            }
        }
    }

    /// It is not what it was when it was scanned.
    fn forget_grown(&self, object: u32) {
        if let Some(grown) = &self.grown {
            lock(grown).remove(&object);
        }
    }

    fn shrank(&self, object: u32) -> StoreError {
        self.forget_grown(object);
        StoreError::Shrank {
            path: self.path(object),
        }
    }

    fn check_len(&self, file: &File, object: u32, wanted: u64) -> Result<(), StoreError> {
        let stat = rustix::fs::fstat(file).map_err(|errno| {
            StoreError::from_errno(Operation::Inspect, self.path(object), errno)
        })?;
        let len = stat.st_size as u64;
        if len < wanted {
            return Err(self.shrank(object));
        }
        Ok(())
    }

    /// Whether a scan says that its objects are files; else the user does.
    fn is_scanned(&self) -> bool {
        !matches!(self.objects, Objects::Paths(..))
    }

    /// Whether it is all of a file of a tree.
    fn is_whole(&self, piece: &Piece) -> bool {
        match &self.objects {
            Objects::Tree { scan, .. } | Objects::Bundle { scan, .. } => {
                let entry = scan.manifest.entries.get(piece.object as usize);
                entry.is_some_and(|entry| entry.len() == piece.range.len())
            }
            Objects::Paths(..) | Objects::One { .. } => false,
        }
    }

    /// A small file that is read at once is not kept open: it is not read again soon, and another one would be closed for it.
    fn file_for(&self, piece: &Piece) -> Result<Arc<File>, StoreError> {
        match self.is_whole(piece) && piece.range.len() <= ADVISED_MIN {
            true => self.open_object(piece.object).map(Arc::new),
            false => self.file(piece.object),
        }
    }

    fn read_piece(&self, piece: &Piece, buf: &mut [u8]) -> Result<(), StoreError> {
        let file = self.file_for(piece)?;
        match file.read_exact_at(buf, piece.object_offset) {
            Ok(()) => self.check_unchanged(&file, piece.object),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                let wanted = piece.object_offset + buf.len() as u64;
                self.check_len(&file, piece.object, wanted)?;
                // It grew back between the read and the look: what was read is not to be trusted.
                Err(self.shrank(piece.object))
            }
            Err(error) => Err(StoreError::from_io(
                Operation::Read,
                self.path(piece.object),
                &error,
            )),
        }
    }
}

fn lock(grown: &Mutex<BTreeSet<u32>>) -> std::sync::MutexGuard<'_, BTreeSet<u32>> {
    grown.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a scan says of the file at this place.
fn scanned(scan: &Scan, at: usize) -> Option<Known> {
    let entry = scan.manifest.entries.get(at)?;
    let EntryKind::File { len } = entry.kind else {
        return None;
    };
    Some(Known {
        identity: Identity {
            len,
            mtime_seconds: entry.mtime_seconds,
            mtime_nanoseconds: entry.mtime_nanoseconds,
        },
        version: scan.versions.get(at).copied().unwrap_or(Version::UNKNOWN),
    })
}

impl Source for FileSource {
    fn is_of_files(&self) -> bool {
        true
    }

    fn is_hole(&self, range: Range) -> bool {
        let piece = self.layout.locate(range.start);
        let piece = piece.filter(|piece| piece.range.end >= range.end);
        // Small files are not kept open, and looking would cost more than reading them.
        let is_small = |piece: &Piece| piece.range.len() <= ADVISED_MIN && self.is_whole(piece);
        let Some(piece) = piece.filter(|piece| !is_small(piece)) else {
            return false;
        };
        self.file(piece.object).is_ok_and(|file| {
            holes::is_one(&file, piece.object_offset, range.len())
                && self.check_unchanged(&file, piece.object).is_ok()
        })
    }

    fn is_small_file(&self, range: Range) -> bool {
        let piece = self.layout.locate(range.start);
        range.len() <= SMALL_FILE_MAX
            && piece.is_some_and(|piece| piece.range == range && self.is_whole(&piece))
    }

    fn path_at(&self, offset: u64) -> Option<PathBuf> {
        let piece = self.layout.locate(offset)?;
        Some(self.path(piece.object))
    }

    fn file_system(&self) -> Option<u64> {
        self.file_system
    }

    fn grown(&self, most: usize) -> (Vec<Vec<u8>>, u64) {
        let Some(grown) = &self.grown else {
            return (Vec::new(), 0);
        };
        let entries = match &self.objects {
            Objects::One { scan, .. }
            | Objects::Tree { scan, .. }
            | Objects::Bundle { scan, .. } => &scan.manifest.entries[..],
            Objects::Paths(..) => &[],
        };
        let grown = lock(grown);
        let paths = grown
            .iter()
            .filter_map(|&object| entries.get(object as usize));
        let paths: Vec<_> = paths.take(most).map(|entry| entry.path.clone()).collect();
        let more = grown.len() - paths.len();
        (paths, more as u64)
    }

    fn read_at(&self, mut offset: u64, mut buf: &mut [u8]) -> Result<(), StoreError> {
        while !buf.is_empty() {
            let piece = locate(&self.layout, offset, buf.len() as u64)?;
            let (head, rest) = buf.split_at_mut(piece.range.len() as usize);
            self.read_piece(&piece, head)?;
            offset = piece.range.end;
            buf = rest;
        }
        Ok(())
    }

    fn extent(&self, offset: u64, len: u64) -> Result<Extent<'_>, StoreError> {
        let piece = locate(&self.layout, offset, len)?;
        let file = self.file(piece.object)?;
        self.check_unchanged(&file, piece.object)?;
        Ok(Extent::File {
            file,
            offset: piece.object_offset,
            len: piece.range.len(),
        })
    }
}
