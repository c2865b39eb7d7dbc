//! Rows of a specification as a sink: each file is written in place under a temporary name.
//!
//! A node may write a part in the middle of a file; what lies before it is left a hole (CEP Figure 2:
//! node7 writes `copy1` from offset 2048 on). Several nodes that share a file system write one
//! temporary file, because nobody shortens it and its name follows from the transfer's id.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Mutex;

use ropewalk_model::{Layout, Piece, Range};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Operation, StoreError};
use crate::open_files::lock;
use crate::sink::{Sink, SinkExtent};
use crate::staging::{Staging, Target, open_parent, reserve, temporary_name};
use crate::sys;

/// A file to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkFile {
    /// Its final name, resolved (as [`crate::Roots`] returns it). Its folder must exist.
    pub path: PathBuf,
    /// Whether this node gives the final name on commit; exactly one of the nodes that share it does.
    pub renames: bool,
}

/// Files that are written under temporary names and renamed on commit.
#[derive(Debug)]
pub struct FileSink {
    staging: Staging<Rows>,
    /// Other nodes write the same temporary files, so a failed start removes nothing.
    shared: bool,
}

#[derive(Debug)]
struct Rows {
    rows: Vec<Row>,
    /// Rows whose temporary name no sync has covered.
    new_names: Mutex<BTreeSet<u32>>,
}

#[derive(Debug)]
struct Row {
    file: SinkFile,
    parent: OwnedFd,
    parent_path: PathBuf,
    name: Vec<u8>,
    temporary: Vec<u8>,
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
    /// [`StoreError::Exists`] when the final name is a directory, else what the system reported.
    /// Files made by this call are then removed again, unless they are shared.
    pub fn create(
        layout: Layout,
        files: Vec<SinkFile>,
        id: &str,
        shared: bool,
    ) -> Result<Self, StoreError> {
        let rows: Result<Vec<Row>, StoreError> =
            files.into_iter().map(|file| Row::new(file, id)).collect();
        let rows = Rows {
            rows: rows?,
            new_names: Mutex::default(),
        };
        for piece in layout.pieces() {
            if rows.rows.get(piece.object as usize).is_none() {
                return Err(StoreError::NotHeld { range: piece.range });
            }
        }
        let sink = Self {
            staging: Staging::new(layout, rows),
            shared,
        };
        let mut made = Vec::new();
        if let Err(error) = sink.prepare(&mut made) {
            if !sink.shared {
                for object in made {
                    sink.rows()[object].remove();
                }
            }
            return Err(error);
        }
        Ok(sink)
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
    fn prepare(&self, made: &mut Vec<usize>) -> Result<(), StoreError> {
        for (object, row) in self.rows().iter().enumerate() {
            let (file, new) = row.open()?;
            if new {
                made.push(object);
                lock(&self.staging.target.new_names).insert(object as u32);
            }
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

    /// Gives the final names; a path listed twice is renamed once.
    fn rename_all(&self) -> Result<(), StoreError> {
        let mut renamed = BTreeSet::new();
        for row in self.rows().iter().filter(|row| row.file.renames) {
            if renamed.insert(&row.file.path) {
                row.rename()?;
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
        };
        row.check_replaceable()?;
        Ok(row)
    }

    fn temporary_path(&self) -> PathBuf {
        self.parent_path
            .join(std::ffi::OsStr::from_bytes(&self.temporary))
    }

    /// Refuses to end in a rename that cannot work, or that would replace a device.
    fn check_replaceable(&self) -> Result<(), StoreError> {
        let kind = match sys::stat_entry(self.parent.as_fd(), &self.name) {
            Ok(stat) => FileType::from_raw_mode(stat.st_mode),
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => {
                return Err(StoreError::from_errno(
                    Operation::Inspect,
                    &self.file.path,
                    errno,
                ));
            }
        };
        match kind {
            FileType::RegularFile | FileType::Symlink => Ok(()),
            other => Err(StoreError::Exists {
                path: self.file.path.clone(),
                found: sys::kind_in_words(other),
                wanted: "file",
            }),
        }
    }

    /// The temporary file, and whether it was made just now.
    fn open(&self) -> Result<(File, bool), StoreError> {
        let mode = Mode::from_raw_mode(0o666);
        let failed =
            |errno| StoreError::from_errno(Operation::Create, self.temporary_path(), errno);
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

    fn rename(&self) -> Result<(), StoreError> {
        self.check_replaceable()?;
        let result =
            rustix::fs::renameat(&self.parent, &*self.temporary, &self.parent, &*self.name);
        result
            .map_err(|errno| StoreError::from_errno(Operation::Rename, &self.file.path, errno))?;
        self.sync_folder()
    }

    fn sync_folder(&self) -> Result<(), StoreError> {
        rustix::fs::fsync(&self.parent)
            .map_err(|errno| StoreError::from_errno(Operation::Sync, &self.parent_path, errno))
    }

    fn remove(&self) {
        // What cannot be removed is left to the user, under a name that says whose it is.
        let _ = rustix::fs::unlinkat(&self.parent, &*self.temporary, rustix::fs::AtFlags::empty());
    }
}

impl Target for Rows {
    fn open(&self, object: u32) -> Result<File, StoreError> {
        // `create` refused layouts with other objects.
        self.rows[object as usize].open().map(|(file, _)| file)
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

    fn extent(&self, offset: u64, len: u64) -> Result<Option<SinkExtent>, StoreError> {
        self.staging.extent(offset, len)
    }

    fn written(&self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.staging.written(offset, len)
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.staging.sync()
    }

    fn commit(&self) -> Result<(), StoreError> {
        let mut ended = lock(&self.staging.ended);
        if *ended {
            return Ok(());
        }
        self.staging.sync()?;
        self.staging.check()?;
        self.rename_all()?;
        self.staging.close();
        *ended = true;
        Ok(())
    }

    fn discard(&self) {
        let mut ended = lock(&self.staging.ended);
        if !*ended {
            self.staging.close();
            self.rows().iter().for_each(Row::remove);
            *ended = true;
        }
    }
}
