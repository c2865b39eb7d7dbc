//! Rows of a specification as a sink: each file is written in place under a temporary name.
//!
//! A node may write a part in the middle of a file; what lies before it is left a hole (CEP Figure 2:
//! node7 writes `copy1` from offset 2048 on). Several nodes that share a file system write one
//! temporary file, because nothing shortens it and its name follows from the transfer's id.
//!
//! Where it is known which bytes of which files the rows take, what is safe is recorded in a journal beside the temporary name, and the
//! next transfer to that file goes on there ([`resume`]). Of a file that several nodes write one of them takes over what was left, for
//! all, before the others open it; each has a journal of its own.
//!
//! A temporary file is its owner's alone. With its name it gets the mode of the file it replaces, else that of the
//! source, else what the system gives new files. Where a range is written into a file ([`SinkFile::keeps_rest`]), the
//! temporary one begins as a copy of it, so that the range appears as a whole or not at all.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use ropewalk_model::journal::Adopt;
use ropewalk_model::{Layout, Piece, Range, RangeSet};
use rustix::fs::{FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use crate::endings::{ENDING_WAIT, await_endings};
use crate::error::{Operation, StoreError};
use crate::open_files::lock;
use crate::progress::Progress;
use crate::sink::{Landed, Present, Sink, SinkExtent, Unit};
use crate::staging::{Staging, Target, open_parent, reserve, temporary_name};
use crate::sys;
use crate::version::Version;

mod copy;
mod resume;
use copy::CopyError;
pub use resume::Origin;
use resume::Sources;

/// A file to be written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SinkFile {
    /// Its final name, resolved (as [`crate::Roots`] returns it). Its folder must exist.
    pub path: PathBuf,
    /// Whether this node gives the final name on commit; exactly one of the nodes that share it does.
    pub renames: bool,
    /// Permission bits of the source, where it has any.
    pub mode: Option<u32>,
    /// The file under the final name keeps its other bytes.
    pub keeps_rest: bool,
}

/// Files that are written under temporary names and renamed on commit.
#[derive(Debug)]
pub struct FileSink {
    staging: Staging<Rows>,
}

/// Which nodes write the files, and what is recorded of them.
#[derive(Clone, Copy, Debug)]
enum Role<'a> {
    /// Nothing is recorded; with `shared` other nodes write the same files.
    Unrecorded { shared: bool },
    /// This node alone.
    Alone { origins: &'a [Origin], adopt: Adopt },
    /// This node, which makes the files for others, too.
    Leads {
        node: u32,
        origins: &'a [Origin],
        adopt: Adopt,
    },
    /// Another node has made them.
    Follows { node: u32, origins: &'a [Origin] },
}

impl<'a> Role<'a> {
    fn origins(self) -> &'a [Origin] {
        match self {
            Self::Unrecorded { .. } => &[],
            Self::Alone { origins, .. }
            | Self::Leads { origins, .. }
            | Self::Follows { origins, .. } => origins,
        }
    }

    /// * `has_sources`: it is known where some bytes of the file come from.
    fn progress(self, has_sources: bool) -> Progress {
        match self {
            Self::Unrecorded { .. } => Progress::off(),
            Self::Alone { .. } if has_sources => Progress::of(None),
            Self::Alone { .. } => Progress::off(),
            // Also without a record: a later transfer sees by the journal that this node may write.
            Self::Leads { node, .. } | Self::Follows { node, .. } => Progress::of(Some(node)),
        }
    }
}

#[derive(Debug)]
struct Rows {
    rows: Vec<Row>,
    /// Rows whose temporary name no sync has covered.
    new_names: Mutex<BTreeSet<u32>>,
    landed: Mutex<Landed>,
    /// Another node began to give the final names: what has no temporary one may have its final one.
    taken_over: AtomicBool,
}

#[derive(Debug)]
struct Row {
    file: SinkFile,
    parent: OwnedFd,
    parent_path: PathBuf,
    name: Vec<u8>,
    temporary: Vec<u8>,
    /// The file whose other bytes are kept, as it was when they were copied.
    rest: Mutex<Option<Version>>,
    /// Where its bytes come from, as far as that is known.
    sources: Sources,
    progress: Mutex<Progress>,
    /// Of the temporary file, as the journal has it.
    inode: OnceLock<u64>,
}

impl FileSink {
    /// Opens or makes the temporary files and reserves their space: object `n` is `files[n]`.
    ///
    /// * `id`: of the transfer (letters, digits, `-`, `_`), the same on every node and on resuming.
    /// * `shared`: whether other nodes write the same files.
    ///
    /// Temporary files of an earlier attempt are kept and written over. A file system that cannot
    /// reserve space is used without.
    ///
    /// # Errors
    /// [`StoreError::DiskFull`] with the bytes missing, [`StoreError::ParentMissing`],
    /// [`StoreError::Exists`] when the final name is a directory, [`StoreError::SameFile`] when the file system takes two
    /// of the names for one, else what the system reported.
    /// Files made by this call are then removed again, unless they are shared.
    pub fn create(
        layout: Layout,
        files: Vec<SinkFile>,
        id: &str,
        shared: bool,
    ) -> Result<Self, StoreError> {
        Self::create_unless(layout, files, id, shared, &|| false)
    }

    /// As [`FileSink::create`].
    ///
    /// * `is_over`: the transfer has ended, and what is being made is no longer wanted. Asked while other bytes of the files are copied.
    ///
    /// # Errors
    /// As [`FileSink::create`]; [`StoreError::Ended`] when the transfer is over.
    pub fn create_unless(
        layout: Layout,
        files: Vec<SinkFile>,
        id: &str,
        shared: bool,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Self, StoreError> {
        Self::make(layout, files, id, Role::Unrecorded { shared }, is_over)
    }

    /// As [`FileSink::create`] of files that only this node writes: what is safe is recorded while they are written, and what an earlier
    /// transfer to them has made safe is taken over ([`present`](crate::Sink::present)). Waits for one that is about to end.
    ///
    /// * `origins`: which bytes of which files those of the layout are. Others are neither recorded nor taken over.
    /// * `adopt`: what of an earlier transfer's bytes is taken over.
    /// * `is_over`: as for [`FileSink::create_unless`].
    ///
    /// # Errors
    /// As [`FileSink::create_unless`]; what was taken over stays for a later transfer then.
    pub fn update(
        layout: Layout,
        files: Vec<SinkFile>,
        id: &str,
        origins: &[Origin],
        adopt: Adopt,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Self, StoreError> {
        Self::make(layout, files, id, Role::Alone { origins, adopt }, is_over)
    }

    /// As [`FileSink::update`] of files that several nodes write: of the one that takes over for all what was left, and makes the
    /// temporary names.
    ///
    /// * `layout`, `origins`: of what all of them write.
    /// * `node`: its number among them.
    ///
    /// # Errors
    /// As [`FileSink::update`].
    pub fn lead(
        layout: Layout,
        files: Vec<SinkFile>,
        id: &str,
        node: u32,
        origins: &[Origin],
        adopt: Adopt,
    ) -> Result<Self, StoreError> {
        let role = Role::Leads {
            node,
            origins,
            adopt,
        };
        Self::make(layout, files, id, role, &|| false)
    }

    /// As [`FileSink::lead`], of each of the others, when the first has made the temporary names.
    ///
    /// * `layout`, `origins`: of what this node writes.
    /// * `node`: its number among them.
    ///
    /// # Errors
    /// As [`FileSink::create`]; [`StoreError::Vanished`] where a temporary name is gone: a later transfer has taken it over.
    pub fn share(
        layout: Layout,
        files: Vec<SinkFile>,
        id: &str,
        node: u32,
        origins: &[Origin],
    ) -> Result<Self, StoreError> {
        Self::make(layout, files, id, Role::Follows { node, origins }, &|| {
            false
        })
    }

    fn make(
        layout: Layout,
        files: Vec<SinkFile>,
        id: &str,
        role: Role<'_>,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Self, StoreError> {
        let mut rows = Vec::with_capacity(files.len());
        for (object, file) in (0..).zip(files) {
            let mut row = Row::new(file, id)?;
            row.sources = Sources::of(&layout, object, role.origins());
            // The node that leads has waited for all.
            if !matches!(role, Role::Follows { .. }) {
                await_endings(&row.file.path, id, ENDING_WAIT, is_over)?;
            }
            row.progress = Mutex::new(role.progress(!row.sources.is_empty()));
            rows.push(row);
        }
        let rows = Rows {
            rows,
            new_names: Mutex::default(),
            landed: Mutex::default(),
            taken_over: AtomicBool::new(false),
        };
        for piece in layout.pieces() {
            if rows.rows.get(piece.object as usize).is_none() {
                return Err(StoreError::NotHeld { range: piece.range });
            }
        }
        let sink = Self {
            staging: Staging::new(layout, rows, false),
        };
        let mut made = Vec::new();
        let begun = sink.begin(role);
        if let Err(error) = begun.and_then(|()| sink.prepare(role, &mut made, is_over)) {
            sink.leave(role, &made);
            return Err(error);
        }
        Ok(sink)
    }

    /// Makes the journals, and takes over what earlier transfers left: before the temporary files are made.
    fn begin(&self, role: Role<'_>) -> Result<(), StoreError> {
        for row in self.rows() {
            match role {
                Role::Unrecorded { .. } => {}
                Role::Alone { adopt, .. } | Role::Leads { adopt, .. } => row.take_over(adopt)?,
                Role::Follows { .. } => row.begin()?,
            }
        }
        Ok(())
    }

    /// Ends where the sink could not be made: what was taken over stays, and what other nodes may write.
    ///
    /// * `made`: temporary files that were made just now.
    fn leave(&self, role: Role<'_>, made: &[usize]) {
        for (object, row) in self.rows().iter().enumerate() {
            match role {
                Role::Unrecorded { shared: true } => {}
                Role::Follows { .. } => row.remove_own_journal(),
                Role::Unrecorded { shared: false } | Role::Alone { .. } | Role::Leads { .. } => {
                    row.leave(made.contains(&object));
                }
            }
        }
    }

    /// Where the bytes lie.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.staging.layout
    }

    fn rows(&self) -> &[Row] {
        &self.staging.target.rows
    }

    /// Opens each file and reserves each piece; `made` tells which files were not there before.
    fn prepare(
        &self,
        role: Role<'_>,
        made: &mut Vec<usize>,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), StoreError> {
        let mut seen: HashMap<(u64, u64), &Row> = HashMap::new();
        for (object, row) in self.rows().iter().enumerate() {
            let (file, new) = match role {
                Role::Follows { .. } => (row.open_made()?, false),
                _ => row.open()?,
            };
            if new {
                made.push(object);
                lock(&self.staging.target.new_names).insert(object as u32);
            }
            let stat = rustix::fs::fstat(&file).map_err(|errno| {
                StoreError::from_errno(Operation::Inspect, row.temporary_path(), errno)
            })?;
            if let Some(other) = seen.insert((stat.st_dev, stat.st_ino), row)
                && other.file.path != row.file.path
            {
                return Err(StoreError::SameFile {
                    path: row.file.path.clone(),
                    other: other.file.path.clone(),
                });
            }
            let is_resumed = !lock(&row.progress).adopted.is_empty();
            if is_resumed && new {
                // What was taken over is gone.
                return Err(row.vanished());
            }
            if is_resumed || new && row.file.keeps_rest {
                let layout = is_resumed.then_some((&self.staging.layout, object as u32));
                row.copy_rest(&file, layout, is_over)?;
            }
            row.describe(stat.st_ino);
            let pieces = self.staging.layout.pieces().iter();
            for Piece {
                range,
                object_offset,
                ..
            } in pieces.filter(|piece| piece.object as usize == object)
            {
                reserve(&file, &row.temporary_path(), *object_offset, range.len())?;
            }
        }
        Ok(())
    }

    /// Where the last byte of an object ends in its file.
    fn end_of(&self, object: u32) -> u64 {
        let pieces = self.staging.layout.pieces().iter();
        let own = pieces.filter(|piece| piece.object == object);
        let ends = own.map(|piece| piece.object_offset + piece.range.len());
        ends.max().unwrap_or(0)
    }

    /// Gives the final names; a path listed twice is renamed once.
    fn rename_all(&self) -> Result<(), StoreError> {
        let mut renamed = BTreeSet::new();
        let taken_over = self.staging.target.taken_over.load(Ordering::Acquire);
        for (object, row) in self.rows().iter().enumerate() {
            if !row.file.renames || !renamed.insert(&row.file.path) {
                continue;
            }
            match row.rename() {
                Ok(replaced) => {
                    let mut landed = lock(&self.staging.target.landed);
                    landed.replaced_files += u64::from(replaced);
                    landed.added_files += u64::from(!replaced);
                }
                Err(StoreError::Vanished { .. })
                    if taken_over && row.is_named(self.end_of(object as u32)) =>
                {
                    row.sync_folder()?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Row {
    fn new(file: SinkFile, id: &str) -> Result<Self, StoreError> {
        let (parent, parent_path, name) = open_parent(&file.path)?;
        let temporary = temporary_name(&name, id)?;
        let row = Self {
            file,
            parent,
            parent_path,
            name,
            temporary,
            rest: Mutex::default(),
            sources: Sources::default(),
            progress: Mutex::new(Progress::off()),
            inode: OnceLock::new(),
        };
        row.standing()?;
        Ok(row)
    }

    fn temporary_path(&self) -> PathBuf {
        self.parent_path
            .join(std::ffi::OsStr::from_bytes(&self.temporary))
    }

    /// The file or link under the final name, if there is one.
    ///
    /// Refuses to end in a rename that cannot work, or that would replace a device.
    fn standing(&self) -> Result<Option<Stat>, StoreError> {
        standing(&self.parent, &self.name, &self.file.path)
    }

    /// Fills the temporary file with what stands under the final name, where its other bytes are kept.
    ///
    /// * `taken_over`: an earlier transfer's file, of which the bytes of this object stay.
    fn copy_rest(
        &self,
        file: &File,
        taken_over: Option<(&Layout, u32)>,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), StoreError> {
        let standing = self.standing()?.filter(is_file);
        let standing = standing.filter(|_| self.file.keeps_rest);
        let old = standing.map(|stat| self.open_standing(&stat)).transpose()?;
        let old = old.as_ref().map(|(old, version, len)| {
            *lock(&self.rest) = Some(*version);
            (old, *len)
        });
        let copied = match (taken_over, old) {
            (Some((layout, object)), old) => self.restore_rest(file, layout, object, old, is_over),
            (None, Some((old, len))) => {
                reserve(file, &self.temporary_path(), 0, len)?;
                // One that became shorter meanwhile is found out before the rename.
                copy::in_pieces(old, file, Range::new(0, len), is_over).map(|_| ())
            }
            (None, None) => Ok(()),
        };
        copied.map_err(|error| match error {
            CopyError::Over => StoreError::Ended,
            CopyError::Io(error) => {
                StoreError::from_io(Operation::Write, self.temporary_path(), &error)
            }
        })
    }

    /// The file of the final name, which of its versions that is, and its length.
    fn open_standing(&self, standing: &Stat) -> Result<(File, Version, u64), StoreError> {
        let failed = |operation, errno| StoreError::from_errno(operation, &self.file.path, errno);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let old = sys::open_beneath(self.parent.as_fd(), &self.name, flags, Mode::empty())
            .map_err(|errno| failed(Operation::Open, errno))?;
        let stat = rustix::fs::fstat(&old).map_err(|errno| failed(Operation::Inspect, errno))?;
        if Version::of(&stat) != Version::of(standing) {
            return Err(self.overtaken());
        }
        Ok((File::from(old), Version::of(&stat), stat.st_size as u64))
    }

    fn overtaken(&self) -> StoreError {
        StoreError::Overtaken {
            path: self.file.path.clone(),
        }
    }

    /// The temporary file, and whether it was made just now.
    fn open(&self) -> Result<(File, bool), StoreError> {
        let mode = Mode::RUSR | Mode::WUSR;
        let failed = |errno| StoreError::from_create(self.temporary_path(), &self.parent, errno);
        let open = |flags| {
            sys::open_beneath(
                self.parent.as_fd(),
                &self.temporary,
                OFlags::RDWR | OFlags::NONBLOCK | flags,
                mode,
            )
        };
        match open(OFlags::CREATE | OFlags::EXCL) {
            Ok(file) => Ok((file.into(), true)),
            Err(Errno::EXIST) => Ok((open(OFlags::empty()).map_err(failed)?.into(), false)),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// The temporary file that was made before: one that is gone is not made again, as it would lack what was written.
    fn open_made(&self) -> Result<File, StoreError> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK;
        let opened = sys::open_beneath(self.parent.as_fd(), &self.temporary, flags, Mode::empty());
        opened.map(File::from).map_err(|errno| match errno {
            Errno::NOENT => self.vanished(),
            errno => StoreError::from_errno(Operation::Open, self.temporary_path(), errno),
        })
    }

    fn vanished(&self) -> StoreError {
        StoreError::from_errno(Operation::Open, self.temporary_path(), Errno::NOENT)
    }

    /// Gives the final mode and name; whether something had that name.
    fn rename(&self) -> Result<bool, StoreError> {
        self.set_metadata(self.standing()?.filter(is_file).as_ref())?;
        let standing = self.standing()?;
        let file = standing.filter(is_file);
        // Another one would lose the bytes that it has beside these. Looked at last, as what is before this may take long.
        if self.file.keeps_rest && file.map(|stat| Version::of(&stat)) != *lock(&self.rest) {
            return Err(self.overtaken());
        }
        let (folder, from, to) = (self.parent.as_fd(), &*self.temporary, &*self.name);
        let is_new = self.file.keeps_rest && standing.is_none();
        let renamed = match is_new {
            true => sys::rename_new((folder, from), (folder, to)),
            false => rustix::fs::renameat(folder, from, folder, to),
        };
        renamed.map_err(|errno| match errno {
            Errno::EXIST if is_new => self.overtaken(),
            errno => StoreError::from_errno(Operation::Rename, &self.file.path, errno),
        })?;
        self.sync_folder()?;
        Ok(standing.is_some())
    }

    /// Gives the temporary file owner, group, attributes and permissions of what it replaces, as far as this process may, else the permissions
    /// of the source, else those of a new file. Not the set-user and set-group bits.
    fn set_metadata(&self, replaced: Option<&Stat>) -> Result<(), StoreError> {
        let mode = replaced
            .map(|stat| stat.st_mode)
            .or(self.file.mode)
            .unwrap_or_else(|| 0o666 & !sys::umask());
        // Never made here: an earlier commit that was interrupted may have given it its name.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let set = sys::open_beneath(self.parent.as_fd(), &self.temporary, flags, Mode::empty())
            .and_then(|file| {
                let set_mode = || rustix::fs::fchmod(&file, Mode::from_raw_mode(mode & 0o777));
                let own = rustix::fs::fstat(&file)?;
                if let Some(replaced) = replaced {
                    self.take_owner(&file, &own, replaced);
                }
                // A process may have the right to give it away, and then none to change it.
                set_mode().or_else(|errno| match (errno, replaced) {
                    (Errno::PERM, Some(replaced)) => {
                        give(&file, &own)?;
                        set_mode()?;
                        give(&file, replaced)
                    }
                    (errno, _) => Err(errno),
                })?;
                rustix::fs::fsync(&file)
            });
        set.map_err(|errno| {
            StoreError::from_errno(Operation::SetMetadata, self.temporary_path(), errno)
        })
    }

    /// Gives the temporary file owner, group and attributes of the one that it replaces. What is not permitted is left: no file loses its name
    /// for that.
    fn take_owner(&self, file: &OwnedFd, own: &Stat, replaced: &Stat) {
        let group = Gid::from_raw(replaced.st_gid);
        let has_owner = (own.st_uid, own.st_gid) == (replaced.st_uid, replaced.st_gid);
        if !has_owner && give(file, replaced).is_err() {
            let _ = rustix::fs::fchown(file, None, Some(group));
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let old = sys::open_beneath(self.parent.as_fd(), &self.name, flags, Mode::empty());
        if let Ok(old) = old {
            sys::copy_attributes(&old, file);
        }
    }

    /// Whether a file of at least this length has the final name.
    fn is_named(&self, len: u64) -> bool {
        sys::stat_entry(self.parent.as_fd(), &self.name).is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                && stat.st_size as u64 >= len
        })
    }

    /// As [`Row::open`] after another node began to give the final names: in whichever place it is.
    fn open_taken_over(&self) -> Result<File, StoreError> {
        let open = |name: &[u8], flags| {
            sys::open_beneath(
                self.parent.as_fd(),
                name,
                OFlags::NONBLOCK | flags,
                Mode::empty(),
            )
        };
        let opened = match open(&self.temporary, OFlags::RDWR) {
            Err(Errno::NOENT) => open(&self.name, OFlags::RDONLY),
            other => other,
        };
        opened
            .map(File::from)
            .map_err(|errno| StoreError::from_errno(Operation::Open, &self.file.path, errno))
    }

    fn sync_folder(&self) -> Result<(), StoreError> {
        sys::sync_folder(&self.parent)
            .map_err(|errno| StoreError::from_errno(Operation::Sync, &self.parent_path, errno))
    }

    /// Ends where the sink could not be made: what was taken over stays.
    ///
    /// * `is_made`: the temporary file was made just now.
    fn leave(&self, is_made: bool) {
        let mut progress = lock(&self.progress);
        if !progress.adopted.is_empty() {
            return progress.end_journal();
        }
        drop(progress);
        if is_made {
            self.remove();
        }
        self.remove_own_journal();
    }

    fn remove_own_journal(&self) {
        let mut progress = lock(&self.progress);
        if !progress.is_off {
            progress.remove_own_journal(&self.stage());
        }
    }

    /// Removes what is temporary.
    fn discard(&self) {
        self.remove();
        let mut progress = lock(&self.progress);
        if !progress.is_off {
            progress.remove_journals(&self.stage());
        }
    }

    fn remove(&self) {
        // What cannot be removed is left to the user, under a name that says whose it is.
        let _ = rustix::fs::unlinkat(&self.parent, &*self.temporary, rustix::fs::AtFlags::empty());
    }
}

/// Checks whether a file of rows may replace what is at a path, as far as that is known before anything is made.
///
/// * `path`: the final name, resolved (as [`crate::Roots`] returns it).
/// * `longest`: the most bytes that what is there may have; `None`: any number.
///
/// # Errors
/// [`StoreError::Exists`] for what is no file, [`StoreError::Longer`] for one that is too long, [`StoreError::ParentMissing`].
pub fn check_replaceable(path: &Path, longest: Option<u64>) -> Result<(), StoreError> {
    let (parent, _, name) = open_parent(path)?;
    let standing = standing(&parent, &name, path)?.filter(is_file);
    match (standing, longest) {
        (Some(stat), Some(longest)) if stat.st_size as u64 > longest => Err(StoreError::Longer {
            path: path.to_owned(),
            len: stat.st_size as u64,
            wanted: longest,
        }),
        _ => Ok(()),
    }
}

/// Gives a file the owner and group of another one.
fn give(file: &OwnedFd, other: &Stat) -> Result<(), Errno> {
    let (user, group) = (Uid::from_raw(other.st_uid), Gid::from_raw(other.st_gid));
    rustix::fs::fchown(file, Some(user), Some(group))
}

/// The file or link of a name, if there is one; anything else that no file replaces is refused.
pub(crate) fn standing(
    parent: &OwnedFd,
    name: &[u8],
    path: &Path,
) -> Result<Option<Stat>, StoreError> {
    let stat = match sys::stat_entry(parent.as_fd(), name) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(StoreError::from_errno(Operation::Inspect, path, errno)),
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile | FileType::Symlink => Ok(Some(stat)),
        other => Err(StoreError::Exists {
            path: path.to_owned(),
            found: sys::kind_in_words(other),
            wanted: "file",
        }),
    }
}

pub(crate) fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

impl Target for Rows {
    fn open(&self, object: u32) -> Result<File, StoreError> {
        // `create` refused layouts with other objects.
        let row = &self.rows[object as usize];
        if self.taken_over.load(Ordering::Acquire) {
            return row.open_taken_over();
        }
        row.open_made()
    }

    fn open_made(&self, object: u32) -> Result<File, StoreError> {
        self.open(object)
    }

    fn path(&self, object: u32) -> PathBuf {
        self.rows[object as usize].temporary_path()
    }

    fn sync_names(&self) -> Result<(), StoreError> {
        let new = std::mem::take(&mut *lock(&self.new_names));
        new.into_iter()
            .try_for_each(|object| self.rows[object as usize].sync_folder())
    }

    fn filesystem(&self) -> Option<&OwnedFd> {
        None
    }
}

impl Sink for FileSink {
    fn object_at(&self, offset: u64) -> Option<(String, Range)> {
        let piece = self.staging.layout.locate(offset)?;
        let row = self.staging.target.rows.get(piece.object as usize)?;
        Some((row.file.path.display().to_string(), piece.range))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.staging.write_at(offset, bytes)
    }

    fn read_back(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        self.staging.read_back(offset, buf)
    }

    fn look(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        self.staging.look(offset, buf)
    }

    fn keep_open(&self) {
        self.staging.keep_open();
    }

    fn extent(&self, offset: u64, len: u64) -> Result<Option<SinkExtent>, StoreError> {
        self.staging.extent(offset, len)
    }

    fn written(&self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.staging.written(offset, len)
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.staging.sync()
    }

    fn present(&self) -> Present {
        let mut present = Present::default();
        for row in self.rows() {
            let progress = lock(&row.progress);
            present.adopted = present.adopted.union(&progress.adopted);
            present.units.extend(&progress.units);
        }
        present
    }

    fn record(&self, safe: &RangeSet, units: &[Unit]) {
        self.rows().iter().for_each(|row| row.record(safe, units));
    }

    fn kept_partial(&self) -> Vec<(PathBuf, u64)> {
        resume::kept(self.rows()).into_iter().collect()
    }

    fn commit(&self) -> Result<(), StoreError> {
        let mut ended = lock(&self.staging.ended);
        if *ended {
            return Ok(());
        }
        self.note_ending();
        self.staging.sync()?;
        self.staging.check()?;
        self.rename_all()?;
        for row in self.rows() {
            let mut progress = lock(&row.progress);
            if !progress.is_off {
                progress.remove_journals(&row.stage());
            }
        }
        self.staging.close_named();
        *ended = true;
        Ok(())
    }

    fn commit_whole_files(&self, missing: &RangeSet) -> Result<bool, StoreError> {
        if missing.is_empty() {
            return self.commit().map(|()| true);
        }
        self.set_aside();
        Ok(false)
    }

    fn landed(&self) -> Landed {
        lock(&self.staging.target.landed).clone()
    }

    fn discard(&self) {
        let mut ended = lock(&self.staging.ended);
        if !*ended {
            self.note_ending();
            self.staging.close();
            self.rows().iter().for_each(Row::discard);
            *ended = true;
        }
    }

    fn keep_more(&self) {
        let rows = self.rows().iter();
        rows.for_each(|row| lock(&row.progress).keep_more());
    }

    fn give_up(&self, bytes: &RangeSet) {
        self.rows().iter().for_each(|row| row.give_up(bytes));
    }

    fn note_ending(&self) -> bool {
        let rows = self.rows().iter();
        let noted = rows.map(|row| lock(&row.progress).note_ending());
        noted.fold(true, |all, noted| all & noted)
    }

    fn set_aside(&self) {
        let mut ended = lock(&self.staging.ended);
        if !*ended {
            self.staging.close();
            for row in self.rows() {
                if !lock(&row.progress).keep_all(&row.stage()) {
                    row.discard();
                }
            }
            *ended = true;
        }
    }

    fn take_over(&self) {
        let taken_over = &self.staging.target.taken_over;
        taken_over.store(true, Ordering::Release);
        self.staging.forget_files();
    }

    fn temporary(&self, most: usize) -> Vec<PathBuf> {
        let paths: BTreeSet<PathBuf> = self.rows().iter().map(Row::temporary_path).collect();
        paths.into_iter().take(most).collect()
    }
}
