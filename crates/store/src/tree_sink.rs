//! A tree, or one file with its mode and time, as a sink.
//!
//! Everything is built under one temporary name and gets its final one on commit:
//!
//! ```text
//!  DEST absent:               beside it, .DEST.ropewalk-ID/...   commit: one rename
//!  DEST is a folder already:  in it, DEST/.DEST.ropewalk-ID/...  commit: one rename an entry
//!  one file, or special file: beside it, .DEST.ropewalk-ID       commit: one rename
//! ```
//!
//! Staging inside an existing folder keeps renames on one file system when DEST is a mount point, and
//! asks for no right to its parent. Files are made at their first write, links only on commit, so that
//! no write can ever follow one. Merging replaces files and links, and a directory by something else, or the other way round, only where
//! what no source has is removed, too (`extra::way`); what cannot be replaced is reported before the first byte.
//! Files that take the place of others may have their names before the commit (`early`).
//! A merge that fails half way can be committed again by the same sink. An update ([`TreeSink::update`], [`TreeSink::lead`])
//! leaves files and links that DEST has already where they are, and takes no byte of them.
//!
//! A folder that stood in DEST, and DEST itself, keeps its mode and its time; what is new has those of the source. A new
//! folder below one whose group is inherited (the set-group bit) has that group and that bit, as any program's there.
//!
//! Further names of a file are made on commit, after the file. Where the file system has none, each is a file of its own.
//!
//! Owners, and extended attributes, are set where the manifest has them, as far as possible; the set-user and set-group bits
//! only together with the owner, without which they would give rights to the wrong one.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, OnceLock};

use ropewalk_model::{Layout, RangeSet};
use rustix::fs::{FileType, Mode, OFlags, Uid};
use rustix::io::Errno;

use crate::endings::{ENDING_WAIT, await_endings};
use crate::error::{Operation, StoreError};
use crate::filter::Filter;
use crate::manifest::{Entry, EntryKind, is_special};
use crate::open_files::lock;
use crate::progress::Progress;
use crate::sink::{Landed, Removed, Sink as _};
use crate::staging::{Staging, open_parent, temporary_name};
use crate::sys;

mod across;
mod adopt;
mod as_sink;
mod as_target;
mod checksums;
mod commit;
mod contents;
mod differences;
mod early;
mod extra;
mod kept;
mod limits;
mod links;
mod objects;
mod parts;
mod preview;
mod refused;
mod resume;
mod same;
mod special;
mod standing;
mod take;
mod unchanged;
use adopt::Leftover;
pub use contents::{Contents, Hashes};
pub use differences::Comparing;
pub use extra::Permit;
use objects::Objects;
pub use parts::Part;
use parts::{Entries, merge};
pub use preview::{Act, Preview, Previewed};
pub use ropewalk_model::journal::{Adopt, KEPT_MIN, KEPT_MIN_FAILED};
use same::Compares;
pub use same::{Check, Stays, Wish};
pub use standing::Standing;
use standing::Stood;

/// Where a tree is written: a path, resolved (as [`crate::Roots`] returns it), whose parent exists.
#[derive(Clone, Copy, Debug)]
pub struct Dest<'a> {
    path: &'a Path,
    mirrors: Option<&'a Filter>,
    is_whole: bool,
}

impl<'a> Dest<'a> {
    /// It is to have what the sources have and nothing else: what has the name of an entry and is another kind of thing makes way for it, where
    /// the commit removes what no source has ([`TreeSink::remove_extra`]).
    ///
    /// * `filter`: of the scans of the sources; what it excludes stays.
    #[must_use]
    pub fn mirror(path: &'a Path, filter: &'a Filter) -> Self {
        Self {
            path,
            mirrors: Some(filter),
            is_whole: false,
        }
    }

    /// A file of the copy that it cannot hold is an error.
    #[must_use]
    pub fn whole(self) -> Self {
        Self {
            is_whole: true,
            ..self
        }
    }
}

impl<'a, P: AsRef<Path> + ?Sized> From<&'a P> for Dest<'a> {
    fn from(path: &'a P) -> Self {
        Self {
            path: path.as_ref(),
            mirrors: None,
            is_whole: false,
        }
    }
}

/// A file that an earlier transfer made: its inode is asked for where it is needed.
const INODE_UNKNOWN: u64 = u64::MAX;

/// A sink that builds a tree under a temporary name.
#[derive(Debug)]
pub struct TreeSink {
    staging: Staging<Tree>,
}

#[derive(Debug)]
struct Tree {
    /// Of this process.
    user: Uid,
    /// Of all parts, sorted by path; a folder that several have is there once, as the first has it.
    entries: Entries,
    dest: PathBuf,
    /// The folder that holds DEST, and DEST's name there.
    parent: OwnedFd,
    name: Vec<u8>,
    /// The folder that holds the temporary name: `parent`, or DEST itself.
    stage_parent: OwnedFd,
    stage_parent_path: PathBuf,
    temporary: Vec<u8>,
    /// The temporary folder; `None` for one file.
    root: Option<OwnedFd>,
    /// Folders, by path, with names that no sync has covered.
    new_names: Mutex<BTreeSet<Vec<u8>>>,
    /// A commit has begun to move entries into DEST: what is missing in the stage may be there.
    moving: AtomicBool,
    /// A commit has begun: files that stay may get times, modes and further names.
    gives: AtomicBool,
    /// Files made here, by inode: one that is found to exist already may be another entry's.
    made: Mutex<HashMap<u64, u32>>,
    /// Of each entry, 0 until its file was opened here, or has bytes that an earlier transfer made safe: then it is not made
    /// again. After that the file's inode, or [`INODE_UNKNOWN`].
    begun: Vec<AtomicU64>,
    stood: Mutex<Stood>,
    landed: Mutex<Landed>,
    /// Files that lack bytes: the commit leaves them out.
    omitted: OnceLock<HashSet<u32>>,
    /// Files and links that DEST had at the start and that stay as they are.
    unchanged: Objects,
    /// Those of them that are not the same as in the source, and stay all the same.
    passed: Objects,
    stays: Stays,
    /// How many more stay that another program has written since the copy began.
    passed_late: AtomicU64,
    compares: Compares,
    keeps_change_times: OnceLock<bool>,
    /// Whether this process may change files of other users.
    may_change_others: OnceLock<bool>,
    /// Files of DEST whose contents are those of the source, and what they were then.
    compared: HashMap<u32, contents::Identity>,
    /// Another node has found that these files are the same, and has made the temporary name.
    was_told: bool,
    /// What DEST has and the tree has not is removed at the end, but for what this excludes.
    removes: OnceLock<Filter>,
    permit: OnceLock<Permit>,
    /// What is of another kind than an entry of its name may be in DEST, but for what this excludes: the commit removes it.
    mirrors: Option<Filter>,
    /// What the commit has removed for entries of another kind.
    made_way: Mutex<Removed>,
    across: Mutex<across::Across>,
    removing: extra::Removing,
    /// Sources on this host, of which nothing is removed.
    sources: OnceLock<Vec<PathBuf>>,
    /// Folders that other nodes send, of which nothing is removed.
    elsewhere: OnceLock<extra::Elsewhere>,
    progress: Mutex<Progress>,
    /// Partial files are, or were, put aside, and safe bytes of those that are there.
    aside_begun: AtomicBool,
    aside_bytes: AtomicU64,
    /// How many bytes of files were left by an earlier transfer and are not what it recorded.
    wrong: BTreeMap<u32, u64>,
    /// A commit has ended well.
    named: AtomicBool,
    kept_state: Mutex<kept::KeptState>,
    /// Files with further names, and these.
    names: HashMap<u32, Vec<u32>>,
    refused: refused::Refused,
    links: Mutex<links::Links>,
    /// Of the transfer and the node.
    id: String,
    /// Where the checksums of the copy are written.
    checksums: OnceLock<PathBuf>,
    /// Special files that could not be made, and further names of these.
    unmade: Mutex<HashSet<u32>>,
    early: early::Early,
    /// Files whose space could not be reserved when they were made.
    unreserved: Mutex<HashSet<u32>>,
    /// Whether one sync of the file system is as good as one of each file; asked once.
    syncs_whole: OnceLock<bool>,
    /// Held while a long file is made, until its space is reserved.
    reserving: Mutex<()>,
    /// Whether new entries of the stage get ACLs from a folder above it.
    inherits_acl: OnceLock<bool>,
}

impl TreeSink {
    /// Prepares the temporary name for the parts of one copy; nothing of DEST changes before [`commit`](crate::Sink::commit).
    ///
    /// * `dest`: the final path.
    /// * `parts`: one for a copy of one tree; several when sources are parts of a set. Their ranges of the data space must not overlap.
    /// * `id`: of the transfer (letters, digits, `-`, `_`). Files staged under the same name are kept
    ///   and written over, so it must change when the trees do.
    /// * `shared`: whether other nodes write the same tree; one of them commits.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when parts hold the same path, [`StoreError::Exists`] for the first
    /// entry that cannot replace what is in DEST, [`StoreError::ParentMissing`],
    /// [`StoreError::DiskFull`] with the bytes missing, else what the system reported.
    pub fn create<'d>(
        dest: impl Into<Dest<'d>>,
        parts: &[Part],
        id: &str,
        shared: bool,
    ) -> Result<Self, StoreError> {
        let there = There::Replaced {
            shared,
            names_early: false,
        };
        Self::make(dest.into(), parts, id, None, &there)
    }

    /// As [`TreeSink::create`] for a copy that one node writes; its files get their names as they are safe, see
    /// [`Sink::make_ready`](crate::Sink::make_ready).
    ///
    /// # Errors
    /// As [`TreeSink::create`].
    pub fn replace<'d>(
        dest: impl Into<Dest<'d>>,
        parts: &[Part],
        id: &str,
    ) -> Result<Self, StoreError> {
        let there = There::Replaced {
            shared: false,
            names_early: true,
        };
        Self::make(dest.into(), parts, id, None, &there)
    }

    /// As [`TreeSink::create`] for a copy that one node writes; what DEST has already is left as it is: a file of the same size
    /// and modification time, a link of the same target. [`present`](crate::Sink::present) has the bytes of these files. A commit gives them
    /// the source's mode. Files that an earlier transfer began are taken over.
    ///
    /// * `wish`: what of these, and which files of DEST stay though they are not the same.
    ///
    /// # Errors
    /// As [`TreeSink::create`].
    pub fn update<'d, 'w>(
        dest: impl Into<Dest<'d>>,
        parts: &[Part],
        id: &str,
        wish: impl Into<Wish<'w>>,
    ) -> Result<Self, StoreError> {
        Self::make(dest.into(), parts, id, None, &There::Kept(wish.into()))
    }

    /// As [`TreeSink::update`] for a copy that several nodes write: of the first of them, which finds for all what is there and what
    /// an earlier transfer left, and makes the temporary name.
    ///
    /// * `node`: its number among them.
    ///
    /// # Errors
    /// As [`TreeSink::create`].
    pub fn lead<'d, 'w>(
        dest: impl Into<Dest<'d>>,
        parts: &[Part],
        id: &str,
        node: u32,
        wish: impl Into<Wish<'w>>,
    ) -> Result<Self, StoreError> {
        Self::make(
            dest.into(),
            parts,
            id,
            Some(node),
            &There::Kept(wish.into()),
        )
    }

    /// As [`TreeSink::lead`], of each of the others, when the first has made the temporary name. Files that the first has found to be
    /// there are left as they are, and so are links and empty files that this node finds.
    ///
    /// * `node`: its number among them.
    /// * `unchanged`: bytes of the data space, of whole files; the same for all nodes.
    /// * `refused`: of these, those of files that the first cannot hold.
    /// * `stays`, `check`: as the first was given them.
    ///
    /// # Errors
    /// As [`TreeSink::create`]; [`StoreError::Vanished`] where the temporary name is gone: a later transfer has taken it over.
    pub fn share<'d>(
        dest: impl Into<Dest<'d>>,
        parts: &[Part],
        id: &str,
        node: u32,
        (unchanged, refused): (&RangeSet, &RangeSet),
        stays: Stays,
        check: Check,
    ) -> Result<Self, StoreError> {
        let there = There::Known(unchanged, refused, stays, check);
        Self::make(dest.into(), parts, id, Some(node), &there)
    }

    /// * `node`: where each node that writes has a journal, the number of this one.
    fn make(
        dest: Dest<'_>,
        parts: &[Part],
        id: &str,
        node: Option<u32>,
        there: &There<'_>,
    ) -> Result<Self, StoreError> {
        let wish = match there {
            There::Kept(wish) => Some(wish),
            There::Known(..) | There::Replaced { .. } => None,
        };
        let names_early = match there {
            There::Kept(wish) => wish.names_early,
            There::Replaced { names_early, .. } => *names_early,
            There::Known(..) => false,
        };
        // Of a shared copy the first node has.
        if !matches!(there, There::Known(..)) {
            await_endings(dest.path, id, ENDING_WAIT, &|| false)?;
        }
        let (mut tree, layout, inside) = Tree::open(dest, parts, id)?;
        (tree.stays, tree.compares) = match there {
            There::Kept(wish) => (wish.stays, wish.compares()),
            There::Known(_, _, stays, check) => {
                let delta = false;
                (
                    *stays,
                    Compares {
                        check: *check,
                        delta,
                    },
                )
            }
            There::Replaced { .. } => (Stays::Same, Compares::default()),
        };
        let single = tree.is_single();
        *lock(&tree.progress) = match there {
            There::Replaced { .. } => Progress::off(),
            There::Kept(_) | There::Known(..) => Progress::of(node),
        };
        if inside {
            // Making the stage in it changes its time.
            tree.note_standing(&[], tree.stage_parent.as_fd())?;
        }
        tree.leave_out_impossible()?;
        tree.early.is_wished = names_early && inside && node.is_none();
        let contents = wish.and_then(|wish| wish.contents);
        let surveyed = tree.survey_contents(&layout, contents);
        let mut same = surveyed.inspect_err(|_| tree.restore_dest())?;
        tree.leave_out_closed(&same);
        if let There::Known(_, refused, ..) = there {
            tree.leave_out_as_first(&layout, refused);
        }
        if dest.is_whole {
            tree.check_all_held().inspect_err(|_| tree.restore_dest())?;
        }
        match there {
            There::Replaced { .. } => {}
            There::Kept(_) => tree.keep(&same),
            There::Known(unchanged, ..) => tree.keep_known(&same, &layout, unchanged),
        }
        tree.keep_refused();
        tree.choose_early(&mut same, &layout);
        let shared = node.is_some() || matches!(there, There::Replaced { shared: true, .. });
        if shared && !single {
            tree.note_all_standing()?;
        }
        tree.open_up_dest();
        let leftovers = wish.map_or_else(Vec::new, |wish| tree.find_leftovers(wish, &layout));
        tree.wrong = Tree::found_wrong(&leftovers);
        tree.begin(&layout, &leftovers, shared).inspect_err(|_| {
            tree.remove_unused_journal();
            tree.restore_dest();
        })?;
        let endures_full_disk = tree.is_early();
        let sink = Self {
            staging: Staging::new(layout, tree, endures_full_disk),
        };
        if let Some(contents) = contents.filter(|_| wish.is_some_and(|wish| wish.delta)) {
            sink.take_chunks(&same, contents)
                .inspect_err(|_| sink.set_aside())?;
        }
        // What is written from now on is below the temporary name.
        sink.staging.target.restore_dest();
        Ok(sink)
    }

    /// Gives DEST the mode and time on commit that it had before any node of the transfer put something into it.
    ///
    /// * `was`: from before the first sink of a shared destination was created; each makes a folder in DEST.
    pub fn dest_was(&self, was: Standing) {
        self.staging.target.note_dest(was);
    }

    /// Files with these bytes of the data space are there, begun by an earlier transfer: they are not made again if they vanish.
    pub fn expect(&self, begun: &RangeSet) {
        let pieces = self.staging.layout.pieces().iter();
        let begun = pieces.filter(|piece| !begun.clipped(piece.range).is_empty());
        begun.for_each(|piece| self.staging.target.note_begun(piece.object, INODE_UNKNOWN));
    }

    /// Where the bytes lie; objects are numbered by the entries of all parts together, sorted by path.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.staging.layout
    }
}

/// What becomes of files that DEST has already.
enum There<'a> {
    /// They are replaced; other nodes may write the same copy.
    Replaced { shared: bool, names_early: bool },
    /// Those that this node finds to be the same stay, and what an earlier transfer began is taken over.
    Kept(Wish<'a>),
    /// Those of these bytes stay.
    Known(&'a RangeSet, &'a RangeSet, Stays, Check),
}

impl Tree {
    /// The tree with nothing made yet, where its bytes lie, and whether its temporary name is inside DEST.
    fn open(dest: Dest<'_>, parts: &[Part], id: &str) -> Result<(Self, Layout, bool), StoreError> {
        let (entries, layout) = merge(parts)?;
        let (parent, parent_path, name) = open_parent(dest.path)?;
        let temporary = temporary_name(&name, id)?;
        let single = entries
            .first()
            .is_some_and(|root| root.kind != EntryKind::Directory);
        let failed = |operation, errno| StoreError::from_errno(operation, dest.path, errno);
        let inside = !single
            && Self::existing(&parent, &name, &entries, dest.path)?.is_some()
            && sys::stat_entry(parent.as_fd(), &temporary).is_err();
        let stage_parent = if inside {
            sys::open_beneath(
                parent.as_fd(),
                &name,
                OFlags::RDONLY | OFlags::DIRECTORY,
                Mode::empty(),
            )
        } else {
            parent
                .try_clone()
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        };
        let tree = Self {
            user: rustix::process::geteuid(),
            names: links::names(&entries),
            refused: refused::Refused::default(),
            links: Mutex::default(),
            id: id.to_owned(),
            checksums: OnceLock::new(),
            begun: entries.iter().map(|_| AtomicU64::new(0)).collect(),
            entries,
            dest: dest.path.to_owned(),
            stage_parent: stage_parent.map_err(|errno| failed(Operation::Open, errno))?,
            stage_parent_path: if inside {
                dest.path.to_owned()
            } else {
                parent_path
            },
            parent,
            name,
            temporary,
            root: None,
            new_names: Mutex::default(),
            moving: AtomicBool::new(false),
            gives: AtomicBool::new(false),
            made: Mutex::default(),
            stood: Mutex::default(),
            landed: Mutex::default(),
            omitted: OnceLock::new(),
            unchanged: Objects::default(),
            passed: Objects::default(),
            stays: Stays::default(),
            passed_late: AtomicU64::new(0),
            compares: Compares::default(),
            keeps_change_times: OnceLock::new(),
            may_change_others: OnceLock::new(),
            compared: HashMap::new(),
            was_told: false,
            removes: OnceLock::new(),
            permit: OnceLock::new(),
            mirrors: dest.mirrors.cloned(),
            made_way: Mutex::default(),
            across: Mutex::default(),
            removing: extra::Removing::default(),
            sources: OnceLock::new(),
            elsewhere: OnceLock::new(),
            progress: Mutex::new(Progress::off()),
            aside_begun: AtomicBool::new(false),
            aside_bytes: AtomicU64::new(0),
            wrong: BTreeMap::new(),
            named: AtomicBool::new(false),
            kept_state: Mutex::default(),
            unmade: Mutex::default(),
            early: early::Early::default(),
            unreserved: Mutex::default(),
            syncs_whole: OnceLock::new(),
            reserving: Mutex::default(),
            inherits_acl: OnceLock::new(),
        };
        Ok((tree, layout, inside))
    }

    /// What stands at DEST: `Some` for a folder that a tree is merged into, `None` for nothing, or a
    /// file or link that a file may replace.
    fn existing(
        parent: &OwnedFd,
        name: &[u8],
        entries: &[Entry],
        dest: &Path,
    ) -> Result<Option<FileType>, StoreError> {
        let stat = match sys::stat_entry(parent.as_fd(), name) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(StoreError::from_errno(Operation::Inspect, dest, errno)),
        };
        let found = FileType::from_raw_mode(stat.st_mode);
        let wanted = entries
            .first()
            .map_or(&EntryKind::Directory, |root| &root.kind);
        if replaceable(wanted, found, Self::has_specials(entries)) {
            return Ok((found == FileType::Directory).then_some(found));
        }
        Err(StoreError::Exists {
            path: dest.to_owned(),
            found: sys::kind_in_words(found),
            wanted: wanted.in_words(),
        })
    }

    fn open_dest(&self) -> Result<OwnedFd, StoreError> {
        let opened = sys::open_beneath(
            self.parent.as_fd(),
            &self.name,
            OFlags::RDONLY | OFlags::DIRECTORY,
            Mode::empty(),
        );
        opened.map_err(|errno| StoreError::from_errno(Operation::Open, &self.dest, errno))
    }

    /// Makes what is temporary, and takes over what earlier transfers left. Refused when the data would not fit: what was taken
    /// over stays for a later transfer.
    fn begin(
        &mut self,
        layout: &Layout,
        leftovers: &[Leftover],
        shared: bool,
    ) -> Result<(), StoreError> {
        if self.is_single() {
            // Of an empty file the node that commits knows whether it is there already.
            let is_later = self.was_told && self.entries.iter().all(Entry::is_empty);
            let is_written = self.unchanged.is_empty() && !is_later;
            if is_written {
                lock(&self.progress).begin(&self.stage(), self.reserved())?;
            }
            self.adopt(layout, leftovers);
            return match is_written {
                true => self.open_single(),
                false => Ok(()),
            };
        }
        lock(&self.progress).begin(&self.stage(), self.reserved())?;
        let is_new = self.open_root()?;
        let held = self.adopt(layout, leftovers);
        let there = self.unchanged_bytes(layout).len_bytes() + held;
        let wanted = match self.is_early() {
            true => self.space_needed(layout),
            false => layout.ranges().len_bytes().saturating_sub(there),
        };
        let missing = wanted.saturating_sub(sys::available(&self.stage_parent));
        // No node of a shared copy writes before one has looked: whatever is there, what is wanted has to fit.
        let leads = !self.was_told && lock(&self.progress).node.is_some();
        if missing == 0 || !(is_new || leads) {
            return Ok(());
        }
        if is_new && (!shared || leads) {
            // Something was taken over where it is not empty. The next node that looks, or writes, finds no space either.
            let _ = rustix::fs::unlinkat(
                &self.stage_parent,
                &*self.temporary,
                rustix::fs::AtFlags::REMOVEDIR,
            );
        }
        Err(StoreError::DiskFull {
            path: self.dest.clone(),
            operation: Operation::Allocate,
            missing,
        })
    }

    /// Makes or opens the temporary folder. Whether it is new.
    fn open_root(&mut self) -> Result<bool, StoreError> {
        let path = self.stage_path();
        let failed = |errno| StoreError::from_create(&path, &self.stage_parent, errno);
        let make = || rustix::fs::mkdirat(&self.stage_parent, &*self.temporary, Mode::RWXU);
        // One of several nodes has made it.
        let is_new = match if self.was_told {
            Err(Errno::EXIST)
        } else {
            make()
        } {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(failed(errno)),
        };
        let root = sys::open_beneath(
            self.stage_parent.as_fd(),
            &self.temporary,
            OFlags::RDONLY | OFlags::DIRECTORY,
            Mode::empty(),
        );
        self.root = Some(root.map_err(failed)?);
        Ok(is_new)
    }

    /// Removes the journal of a sink that could not be made, unless it is of something.
    fn remove_unused_journal(&self) {
        let mut progress = lock(&self.progress);
        match sys::stat_entry(self.stage_parent.as_fd(), &self.temporary) {
            Err(Errno::NOENT) if !progress.is_off => progress.remove_own_journal(&self.stage()),
            _ if progress.node.is_some() && self.was_told => {
                progress.remove_own_journal(&self.stage());
            }
            _ => progress.end_journal(),
        }
    }

    /// Makes the temporary file of a copy of one file now: it may be empty, and a full disk is told early.
    fn open_single(&self) -> Result<(), StoreError> {
        // The commit makes it.
        if self.special_of(0).is_some() {
            return Ok(());
        }
        let existed = sys::stat_entry(self.stage_parent.as_fd(), &self.temporary).is_ok();
        let opened = self.open_object(0).map(|_| ());
        if opened.is_err() && !existed {
            let _ = rustix::fs::unlinkat(
                &self.stage_parent,
                &*self.temporary,
                rustix::fs::AtFlags::empty(),
            );
        }
        opened
    }

    fn stage_path(&self) -> PathBuf {
        self.stage_parent_path
            .join(OsStr::from_bytes(&self.temporary))
    }

    /// The path of an entry under its temporary name.
    fn staged_path(&self, entry: &Entry) -> PathBuf {
        join(&self.stage_path(), &entry.path)
    }

    fn final_path(&self, entry: &Entry) -> PathBuf {
        join(&self.dest, &entry.path)
    }

    /// The folder and the path in it of an entry under its temporary name.
    fn place<'a>(&'a self, entry: &'a Entry) -> (BorrowedFd<'a>, &'a [u8]) {
        match &self.root {
            Some(root) => (root.as_fd(), &entry.path),
            None => (self.stage_parent.as_fd(), &self.temporary),
        }
    }
}

fn join(base: &Path, path: &[u8]) -> PathBuf {
    if path.is_empty() {
        base.to_owned()
    } else {
        base.join(OsStr::from_bytes(path))
    }
}

/// Whether an entry may take the place of what stands there.
///
/// * `specials`: whether special files are part of the copy.
fn replaceable(wanted: &EntryKind, found: FileType, specials: bool) -> bool {
    match wanted {
        EntryKind::Directory => found == FileType::Directory,
        EntryKind::File { .. }
        | EntryKind::Symlink { .. }
        | EntryKind::HardLink { .. }
        | EntryKind::Special(_) => {
            matches!(found, FileType::RegularFile | FileType::Symlink)
                || specials && is_special(found)
        }
    }
}
