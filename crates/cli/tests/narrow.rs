//! Destinations whose file system has not all names, takes names for one that differ in case, and has no links, no modes and one time of a
//! change: what it cannot hold is left out and named, and all else is copied, once.

mod common;

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use common::{Moving, Place, Ran, bytes};
use fuser::{
    BackgroundSession, BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const ROOT: u64 = 1;

/// Longest name, in bytes.
const NAME_MAX: usize = 143;

/// A file or folder; a folder has names, by the name in lower case.
struct Node {
    is_folder: bool,
    names: BTreeMap<Vec<u8>, (Vec<u8>, u64)>,
    data: Vec<u8>,
    modified: SystemTime,
}

impl Node {
    fn new(is_folder: bool) -> Self {
        Self {
            is_folder,
            names: BTreeMap::new(),
            data: Vec::new(),
            modified: SystemTime::now(),
        }
    }
}

/// As exFAT, in memory.
struct Nodes {
    all: HashMap<u64, Node>,
    next: u64,
}

/// Dots and spaces at the end are left away.
fn cut(name: &OsStr) -> &[u8] {
    let name = name.as_bytes();
    let end = name.iter().rposition(|byte| !b". ".contains(byte));
    &name[..end.map_or(0, |end| end + 1)]
}

fn folded(name: &OsStr) -> Vec<u8> {
    cut(name).to_ascii_lowercase()
}

fn check_name(name: &OsStr) -> Result<(), Errno> {
    let name = name.as_bytes();
    let is_bad = |byte: &u8| *byte < b' ' || b"\"*:<>?\\|".contains(byte);
    match name {
        _ if name.len() > NAME_MAX => Err(Errno::ENAMETOOLONG),
        _ if name.iter().any(is_bad) || std::str::from_utf8(name).is_err() => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

impl Nodes {
    fn node(&mut self, inode: INodeNo) -> Result<&mut Node, Errno> {
        self.all.get_mut(&inode.into()).ok_or(Errno::ENOENT)
    }

    fn attributes(&mut self, inode: u64) -> Result<FileAttr, Errno> {
        let node = self.node(INodeNo(inode))?;
        Ok(FileAttr {
            ino: INodeNo(inode),
            size: node.data.len() as u64,
            blocks: node.data.len().div_ceil(512) as u64,
            atime: node.modified,
            mtime: node.modified,
            ctime: node.modified,
            crtime: node.modified,
            kind: match node.is_folder {
                true => FileType::Directory,
                false => FileType::RegularFile,
            },
            perm: 0o755,
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn find(&mut self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let found = self.node(parent)?.names.get(&folded(name));
        let inode = found.map(|(_, inode)| *inode).ok_or(Errno::ENOENT)?;
        self.attributes(inode)
    }

    fn make(&mut self, parent: INodeNo, name: &OsStr, node: Node) -> Result<FileAttr, Errno> {
        check_name(name)?;
        if self.find(parent, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        self.next += 1;
        let inode = self.next;
        self.all.insert(inode, node);
        let named = (cut(name).to_vec(), inode);
        self.node(parent)?.names.insert(folded(name), named);
        self.attributes(inode)
    }

    /// Takes a name away.
    fn take(&mut self, parent: INodeNo, name: &OsStr) -> Result<u64, Errno> {
        let taken = self.node(parent)?.names.remove(&folded(name));
        taken.map(|(_, inode)| inode).ok_or(Errno::ENOENT)
    }
}

struct Narrow(Mutex<Nodes>);

impl Narrow {
    fn new() -> Self {
        Self(Mutex::new(Nodes {
            all: HashMap::from([(ROOT, Node::new(true))]),
            next: ROOT,
        }))
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.0.lock().unwrap()
    }
}

fn answer(found: Result<FileAttr, Errno>, reply: ReplyEntry) {
    match found {
        Ok(found) => reply.entry(&Duration::ZERO, &found, Generation(0)),
        Err(errno) => reply.error(errno),
    }
}

fn answer_attributes(found: Result<FileAttr, Errno>, reply: ReplyAttr) {
    match found {
        Ok(found) => reply.attr(&Duration::ZERO, &found),
        Err(errno) => reply.error(errno),
    }
}

fn answer_empty(done: Result<(), Errno>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

impl Filesystem for Narrow {
    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        answer(self.nodes().find(parent, name), reply);
    }

    fn getattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        answer_attributes(self.nodes().attributes(inode.into()), reply);
    }

    fn setattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        _mode: Option<u32>,
        _user: Option<u32>,
        _group: Option<u32>,
        size: Option<u64>,
        _accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _flag_changed: Option<SystemTime>,
        _saved: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut nodes = self.nodes();
        if let Ok(node) = nodes.node(inode) {
            if let Some(size) = size {
                node.data.resize(size as usize, 0);
            }
            match modified {
                Some(TimeOrNow::SpecificTime(time)) => node.modified = time,
                Some(TimeOrNow::Now) => node.modified = SystemTime::now(),
                None => {}
            }
        }
        answer_attributes(nodes.attributes(inode.into()), reply);
    }

    fn mkdir(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let made = self.nodes().make(parent, name, Node::new(true));
        answer(made, reply);
    }

    fn create(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        match self.nodes().make(parent, name, Node::new(false)) {
            Ok(made) => reply.created(
                &Duration::ZERO,
                &made,
                Generation(0),
                FileHandle(0),
                FopenFlags::empty(),
            ),
            Err(errno) => reply.error(errno),
        }
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        // What has it open goes on.
        answer_empty(self.nodes().take(parent, name).map(|_| ()), reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut nodes = self.nodes();
        let found = nodes.find(parent, name);
        let is_empty = found.and_then(|found| Ok(nodes.node(found.ino)?.names.is_empty()));
        let removed = match is_empty {
            Ok(true) => nodes.take(parent, name).map(|_| ()),
            Ok(false) => Err(Errno::ENOTEMPTY),
            Err(errno) => Err(errno),
        };
        answer_empty(removed, reply);
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mut nodes = self.nodes();
        let renamed = check_name(new_name).and_then(|()| {
            if flags.contains(RenameFlags::RENAME_NOREPLACE)
                && nodes.find(new_parent, new_name).is_ok()
            {
                return Err(Errno::EEXIST);
            }
            let inode = nodes.take(parent, name)?;
            let named = (cut(new_name).to_vec(), inode);
            nodes
                .node(new_parent)?
                .names
                .insert(folded(new_name), named);
            Ok(())
        });
        answer_empty(renamed, reply);
    }

    fn read(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut nodes = self.nodes();
        match nodes.node(inode) {
            Ok(node) => {
                let start = node.data.len().min(offset as usize);
                let end = node.data.len().min(start + size as usize);
                reply.data(&node.data[start..end]);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut nodes = self.nodes();
        match nodes.node(inode) {
            Ok(node) => {
                let end = offset as usize + data.len();
                let len = node.data.len().max(end);
                node.data.resize(len, 0);
                node.data[offset as usize..end].copy_from_slice(data);
                node.modified = SystemTime::now();
                reply.written(data.len() as u32);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let mut nodes = self.nodes();
        let Ok(folder) = nodes.node(inode) else {
            return reply.error(Errno::ENOENT);
        };
        let names: Vec<(Vec<u8>, u64)> = folder.names.values().cloned().collect();
        for (at, (name, inode)) in names.iter().enumerate().skip(offset as usize) {
            let is_folder = nodes.node(INodeNo(*inode)).is_ok_and(|node| node.is_folder);
            let kind = match is_folder {
                true => FileType::Directory,
                false => FileType::RegularFile,
            };
            if reply.add(
                INodeNo(*inode),
                at as u64 + 1,
                kind,
                OsStr::from_bytes(name),
            ) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        reply.statfs(1 << 20, 1 << 20, 1 << 20, 0, 0, 4096, NAME_MAX as u32, 4096);
    }
}

/// It goes with this value.
struct Mounted(Option<BackgroundSession>);

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            let _ = session.umount_and_join();
        }
    }
}

/// Mounts it; `None`, and a line that says so, where nothing can be mounted.
fn mount(folder: &Path) -> Option<Mounted> {
    std::fs::create_dir(folder).unwrap();
    let mut config = fuser::Config::default();
    config.mount_options = vec![MountOption::FSName("narrow".into())];
    match fuser::spawn_mount(Narrow::new(), folder, &config) {
        Ok(session) => Some(Mounted(Some(session))),
        Err(error) => {
            eprintln!("SKIPPED: nothing can be mounted with /dev/fuse: {error}");
            None
        }
    }
}

/// What it cannot hold, and why.
fn left_out() -> Vec<(String, &'static str)> {
    let long = "n".repeat(NAME_MAX + 1);
    let names = [
        ("a:b", "the file system there has no names with :"),
        ("empty?", "the file system there has no names with ?"),
        (
            "end.",
            "the file system there has no names that end in a dot",
        ),
        ("folder|", "the file system there has no names with |"),
        ("link", "the file system there has no symbolic links"),
        (
            "makefile",
            "the file system there takes its name for that of Makefile",
        ),
        (
            &long,
            "the name is longer than the 143 bytes that names have in the file system there",
        ),
        (
            "sub/other",
            "it is a further name of a:b, which is left out",
        ),
    ];
    let names = names.map(|(name, reason)| (name.to_owned(), reason));
    names
        .into_iter()
        .filter(|(_, reason)| !reason.is_empty())
        .collect()
}

fn make_source(folder: &Path) {
    std::fs::create_dir_all(folder.join("sub/deep")).unwrap();
    std::fs::create_dir_all(folder.join("folder|/below")).unwrap();
    for (name, contents) in [
        ("Makefile", "the first"),
        ("a:b", "more bytes than the others have"),
        ("empty?", ""),
        ("end.", "a dot"),
        ("folder|/below/file", "in it"),
        ("makefile", "the second, which is longer"),
        ("plain", "plain"),
        ("sub/deep/file", "deep"),
        ("sub/none", ""),
    ] {
        std::fs::write(folder.join(name), contents).unwrap();
    }
    std::fs::write(folder.join("n".repeat(NAME_MAX + 1)), "long").unwrap();
    std::fs::hard_link(folder.join("a:b"), folder.join("sub/other")).unwrap();
    std::os::unix::fs::symlink("plain", folder.join("link")).unwrap();
}

fn report(ran: &Ran) -> Value {
    assert_eq!(ran.status(), 3, "{}", ran.err());
    ran.report()
}

/// All else is there; what is not is named with its reason.
fn check(folder: &Path, report: &Value) {
    let unplaced = report["landing"]["not_placed"].as_array().unwrap();
    let field = |one: &Value, name: &str| one[name].as_str().unwrap().to_owned();
    let named: Vec<(String, String)> = unplaced
        .iter()
        .map(|one| {
            let file = field(one, "file");
            let below = Path::new(&file).strip_prefix(folder).unwrap();
            (below.to_str().unwrap().to_owned(), field(one, "reason"))
        })
        .collect();
    let expected: Vec<(String, String)> = left_out()
        .into_iter()
        .map(|(name, reason)| (name, reason.to_owned()))
        .collect();
    assert_eq!(named, expected);
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    assert_eq!(read("Makefile"), "the first");
    assert_eq!(read("plain"), "plain");
    assert_eq!(read("sub/deep/file"), "deep");
    assert_eq!(read("sub/none"), "");
    let names = |folder: &Path| {
        let names = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = names.map(|name| name.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(folder), ["Makefile", "plain", "sub"]);
    assert_eq!(names(&folder.join("sub")), ["deep", "none"]);
}

/// A tree is copied but for what the file system cannot hold, into nothing, again where all is there, and into a folder that has something
/// else. Nothing of what is left out is sent, and nothing is left of the trials.
#[test]
fn what_cannot_be_held_is_left_out() {
    let place = Place::new();
    let (source, narrow) = (place.path("source"), place.path("narrow"));
    make_source(&source);
    let Some(_mounted) = mount(&narrow) else {
        return;
    };
    let copy = |to: &str, more: &[&str]| {
        let to = format!("narrow/{to}");
        let given = [&["copy", "--json", "-H", "source/.", &to], more].concat();
        report(&place.run(&given))
    };
    let bytes = (9 + 5 + 4) as u64;
    let first = copy("copy/", &[]);
    check(&narrow.join("copy"), &first);
    assert_eq!(first["delivered_bytes"], bytes, "{first:#}");
    assert_eq!(first["landing"]["unchanged_bytes"], 0);
    let again = copy("copy/", &[]);
    check(&narrow.join("copy"), &again);
    assert_eq!(again["delivered_bytes"], 0);
    assert_eq!(again["landing"]["unchanged_bytes"], bytes);
    std::fs::create_dir_all(narrow.join("whole/sub")).unwrap();
    let whole = copy("whole/", &["--check", "none"]);
    check(&narrow.join("whole"), &whole);
    let names: Vec<_> = std::fs::read_dir(&narrow).unwrap().collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

/// A mirror removes nothing where something was left out: what no source has may be what cannot be held, under an older name.
#[test]
fn mirrors_remove_nothing_then() {
    let place = Place::new();
    let (source, narrow) = (place.path("source"), place.path("narrow"));
    std::fs::create_dir(&source).unwrap();
    for name in ["kept", "new:name"] {
        std::fs::write(source.join(name), name).unwrap();
    }
    let Some(_mounted) = mount(&narrow) else {
        return;
    };
    std::fs::create_dir(narrow.join("copy")).unwrap();
    for name in ["kept", "old name"] {
        std::fs::write(narrow.join("copy").join(name), name).unwrap();
    }
    let ran = place.run(&["copy", "--json", "--delete", "source/.", "narrow/copy/"]);
    let report = report(&ran);
    assert_eq!(report["landing"]["removed_files"], 0);
    assert!(narrow.join("copy/old name").exists());
    std::fs::remove_file(source.join("new:name")).unwrap();
    let ran = place.run(&["copy", "--delete", "source/.", "narrow/copy/"]);
    assert_eq!(ran.status(), 0, "{}", ran.err());
    assert!(!narrow.join("copy/old name").exists());
}

/// Nodes that write one copy leave out the same, and what one of them finds the others do not look for.
#[test]
fn shared_copies_leave_out_the_same() {
    let place = Place::new();
    let (source, narrow) = (place.path("source"), place.path("narrow"));
    make_source(&source);
    let Some(_mounted) = mount(&narrow) else {
        return;
    };
    place.make_token();
    let agents = [place.agent(place.dir.path()), place.agent(place.dir.path())];
    let to = agents
        .each_ref()
        .map(|agent| format!("{}/copy/", agent.at(&narrow)));
    for check_option in ["time", "none"] {
        let given = [
            "copy",
            "--json",
            "-H",
            "--destinations",
            "shared",
            "--check",
            check_option,
        ];
        let given = [&given[..], &["source/.", &to[0], "--also-to", &to[1]]].concat();
        std::fs::create_dir_all(narrow.join("copy")).unwrap();
        let report = report(&place.run(&given));
        check(&narrow.join("copy"), &report);
    }
}

/// What was safe when a copy of a tree ended is not sent again, though modes of the temporary folder cannot say whose it is.
#[test]
fn an_interrupted_copy_goes_on() {
    const LEN: usize = 160 << 20;
    let place = Place::new();
    let (source, narrow) = (place.path("source"), place.path("narrow"));
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("large"), bytes(LEN, 2)).unwrap();
    let Some(_mounted) = mount(&narrow) else {
        return;
    };
    let mut moving = Moving::start(
        &place,
        &["copy", "--limit", "400Mbit", "source", "narrow/copy"],
    );
    moving.until_delivered(72 << 20);
    let pid = Pid::from_raw(moving.child.id() as i32).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let (status, ended) = moving.end();
    assert_eq!(status, 130);
    let safe = ended["left"][0]["bytes"].as_u64().unwrap();
    assert!(safe >= 64 << 20, "{ended:#}");
    let ran = place.run(&["copy", "--json", "source", "narrow/copy"]);
    let again = ran.assert_status(0).report();
    let resumed = again["landing"]["resumed_bytes"].as_u64().unwrap();
    assert!(resumed >= safe, "{resumed} of {safe}");
    assert!(std::fs::read(narrow.join("copy/large")).unwrap() == bytes(LEN, 2));
}

/// A copy that is to be whole or not at all is refused before it begins, and nothing is made.
#[test]
fn an_atomic_copy_is_whole() {
    let place = Place::new();
    let (source, narrow) = (place.path("source"), place.path("narrow"));
    make_source(&source);
    let Some(_mounted) = mount(&narrow) else {
        return;
    };
    let ran = place.run(&["copy", "--json", "--atomic", "source/.", "narrow/copy/"]);
    let error = ran.assert_status(4).error();
    let reason = "a:b\" cannot be copied: the file system there has no names with :";
    assert!(
        error.contains(reason) && error.contains("--atomic"),
        "{error}"
    );
    assert_eq!(std::fs::read_dir(&narrow).unwrap().count(), 0);
}
