//! A file system in memory that answers each call after a set time, and any number of calls side by side: a server far away.
//!
//! It is mounted through FUSE and holds one tree of small files, to be read. Names and attributes are remembered by the kernel for a second,
//! as is usual; contents are not, as a file that is opened again may have changed.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyEntry, ReplyOpen, Request,
};

/// How long the kernel may remember names and attributes.
const REMEMBERED: Duration = Duration::from_secs(1);

/// Reads that the kernel sends without waiting for the answer to an earlier one; it has 12 unless set.
const BACKGROUND_MAX: u16 = 256;

/// A tree of files in folders, by number.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    /// Files.
    pub files: u64,
    /// Files of each folder but the last.
    pub folder: u64,
    /// Length of a file.
    pub len: fn(u64) -> u64,
    /// Where contents are from: a file is what follows the byte of its number.
    pub noise: Vec<u8>,
}

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Root,
    Folder(u64),
    File(u64),
}

impl Tree {
    fn folders(&self) -> u64 {
        self.files.div_ceil(self.folder)
    }

    fn inode(&self, node: Node) -> INodeNo {
        INodeNo(match node {
            Node::Root => 1,
            Node::Folder(number) => 2 + number,
            Node::File(number) => 2 + self.folders() + number,
        })
    }

    fn node(&self, inode: INodeNo) -> Option<Node> {
        let number = u64::from(inode);
        if number == 1 {
            return Some(Node::Root);
        }
        let number = number.checked_sub(2)?;
        match number.checked_sub(self.folders()) {
            None => Some(Node::Folder(number)),
            Some(file) => (file < self.files).then_some(Node::File(file)),
        }
    }

    /// What has that name in there.
    fn find(&self, parent: Node, name: &OsStr) -> Option<Node> {
        let number = std::str::from_utf8(name.as_bytes()).ok()?.parse().ok()?;
        let found = match parent {
            Node::Root => Node::Folder(number),
            Node::Folder(_) => Node::File(number),
            Node::File(_) => return None,
        };
        self.children(parent).contains(&number).then_some(found)
    }

    /// Numbers of what is in there.
    fn children(&self, parent: Node) -> std::ops::Range<u64> {
        match parent {
            Node::Root => 0..self.folders(),
            Node::Folder(number) => {
                let first = number * self.folder;
                first..(first + self.folder).min(self.files)
            }
            Node::File(_) => 0..0,
        }
    }

    fn attributes(&self, node: Node) -> FileAttr {
        let size = match node {
            Node::File(number) => (self.len)(number),
            Node::Root | Node::Folder(_) => 0,
        };
        let is_file = matches!(node, Node::File(_));
        let (kind, perm) = match is_file {
            true => (FileType::RegularFile, 0o644),
            false => (FileType::Directory, 0o755),
        };
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        FileAttr {
            ino: self.inode(node),
            size,
            blocks: size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink: if is_file { 1 } else { 2 },
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    fn contents(&self, file: u64, offset: u64, most: u64) -> &[u8] {
        let end = file + (self.len)(file);
        let start = (file + offset).min(end);
        let bytes = start as usize..end.min(start + most) as usize;
        self.noise.get(bytes).unwrap_or_default()
    }
}

type Answer = Box<dyn FnOnce() + Send>;

/// Answers that wait for their time; as all wait as long, they leave in the order of the calls.
struct Answers {
    latency: Duration,
    queue: Sender<(Instant, Answer)>,
}

impl Answers {
    fn new(latency: Duration) -> io::Result<Self> {
        let (queue, queued) = channel::<(Instant, Answer)>();
        let thread = std::thread::Builder::new().name("answers".into());
        thread.spawn(move || {
            for (due, answer) in queued {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                answer();
            }
        })?;
        Ok(Self { latency, queue })
    }

    fn answer(&self, answer: impl FnOnce() + Send + 'static) {
        let due = Instant::now() + self.latency;
        // Without the thread the call is never answered; it ends with the mount.
        let _ = self.queue.send((due, Box::new(answer)));
    }
}

struct Far {
    tree: std::sync::Arc<Tree>,
    answers: Answers,
}

impl Filesystem for Far {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let _ = config.set_max_background(BACKGROUND_MAX);
        // Otherwise the kernel looks up one name of a folder at a time.
        config
            .add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS)
            .map_err(|_| io::Error::other("the kernel looks up one name at a time"))
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let tree = &self.tree;
        let found = tree
            .node(parent)
            .and_then(|parent| tree.find(parent, name))
            .map(|node| tree.attributes(node));
        self.answers.answer(move || match found {
            Some(found) => reply.entry(&REMEMBERED, &found, Generation(0)),
            None => reply.error(Errno::ENOENT),
        });
    }

    fn getattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let found = self.tree.node(inode);
        let found = found.map(|node| self.tree.attributes(node));
        self.answers.answer(move || match found {
            Some(found) => reply.attr(&REMEMBERED, &found),
            None => reply.error(Errno::ENOENT),
        });
    }

    fn open(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.answers
            .answer(move || reply.opened(FileHandle(0), fuser::FopenFlags::empty()));
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
        let tree = self.tree.clone();
        self.answers.answer(move || match tree.node(inode) {
            Some(Node::File(file)) => reply.data(tree.contents(file, offset, size.into())),
            _ => reply.error(Errno::EISDIR),
        });
    }

    fn readdir(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let tree = self.tree.clone();
        self.answers.answer(move || {
            let Some(parent) = tree.node(inode) else {
                return reply.error(Errno::ENOENT);
            };
            let children = tree.children(parent);
            let first = children.start + offset;
            for number in first..children.end {
                let node = match parent {
                    Node::Root => Node::Folder(number),
                    _ => Node::File(number),
                };
                let next = number + 1 - children.start;
                let kind = tree.attributes(node).kind;
                if reply.add(tree.inode(node), next, kind, number.to_string()) {
                    break;
                }
            }
            reply.ok();
        });
    }
}

/// A mounted tree; it goes with this value.
#[derive(Debug)]
pub(crate) struct Mounted(Option<BackgroundSession>);

impl Mounted {
    /// Mounts a tree at a folder.
    ///
    /// # Errors
    /// Without `/dev/fuse`, or the right to mount.
    pub fn new(tree: std::sync::Arc<Tree>, latency: Duration, folder: &Path) -> Result<Self> {
        let answers = Answers::new(latency)?;
        let mut config = Config::default();
        config.mount_options = vec![MountOption::RO, MountOption::FSName("distant".into())];
        let session = fuser::spawn_mount(Far { tree, answers }, folder, &config)
            .context("cannot mount a file system of /dev/fuse")?;
        Ok(Self(Some(session)))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            let _ = session.umount_and_join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        Tree {
            files: 25,
            folder: 10,
            len: |file| 100 + file,
            noise: (0..=255).collect(),
        }
    }

    /// Each inode is one thing, which is found by its name where it lies, and nowhere else.
    #[test]
    fn all_things_are_found() {
        let tree = tree();
        let mut found = vec![Node::Root];
        for folder in tree.children(Node::Root) {
            let folder = tree.find(Node::Root, OsStr::new(&folder.to_string()));
            let folder = folder.unwrap();
            found.push(folder);
            for file in tree.children(folder) {
                let file = tree.find(folder, OsStr::new(&file.to_string()));
                found.push(file.unwrap());
            }
        }
        assert_eq!(found.len(), 1 + 3 + 25);
        for node in &found {
            assert_eq!(tree.node(tree.inode(*node)), Some(*node));
        }
        assert_eq!(tree.node(INodeNo(2 + 3 + 25)), None);
        for (parent, name) in [
            (Node::Root, "3"),
            (Node::Folder(0), "10"),
            (Node::Root, "x"),
        ] {
            assert_eq!(tree.find(parent, OsStr::new(name)), None);
        }
    }

    /// Contents end with the file, wherever they are read from.
    #[test]
    fn contents_end_with_the_file() {
        let tree = tree();
        assert_eq!(tree.contents(7, 0, 1000).len(), 107);
        assert_eq!(tree.contents(7, 100, 4), [107, 108, 109, 110]);
        assert_eq!(tree.contents(7, 105, 4), [112, 113]);
        assert!(tree.contents(7, 500, 4).is_empty());
    }

    /// A mounted tree is read as any other. Skipped where nothing can be mounted.
    #[test]
    fn a_mounted_tree_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let tree = std::sync::Arc::new(tree());
        let Ok(mounted) = Mounted::new(tree.clone(), Duration::ZERO, folder.path()) else {
            return println!("skipped: no /dev/fuse, or no right to mount");
        };
        let names = std::fs::read_dir(folder.path().join("2")).unwrap();
        assert_eq!(names.count(), 5);
        for file in [0, 9, 24] {
            let path = folder.path().join(format!("{}/{file}", file / 10));
            assert_eq!(std::fs::read(path).unwrap(), tree.contents(file, 0, 1000));
        }
        drop(mounted);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
