//! Sources whose file system does not answer: a copy that is stopped reports that at once, and ends when no read waits; one whose names
//! are read for long says how many.

mod common;

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use common::{DEADLINE, Moving, Place, wait_for};
use fuser::{
    BackgroundSession, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEntry,
    ReplyOpen, Request,
};
use rustix::process::{Pid, Signal, kill_process};

const FILES: u64 = 200;

const LEN: u64 = 1000;

/// Longer than a file in memory takes.
const LATENCY: Duration = Duration::from_millis(1);

const ROOT: u64 = 1;

/// Reads and lookups of names that are answered come first, others wait.
#[derive(Default)]
struct Reads {
    left: usize,
    waiting: Vec<ReplyData>,
    names_left: usize,
    names_waiting: Vec<(u64, ReplyEntry)>,
    is_let_go: bool,
}

/// A folder of files of which so many are looked up and read, and then none.
struct Far(Arc<Mutex<Reads>>);

fn answer_name(number: u64, reply: ReplyEntry) {
    match attributes(ROOT + 1 + number) {
        Some(found) => reply.entry(&Duration::ZERO, &found, Generation(0)),
        None => reply.error(Errno::ENOENT),
    }
}

/// What an inode is, if it is one.
fn attributes(inode: u64) -> Option<FileAttr> {
    let is_root = inode == ROOT;
    if !is_root && !(ROOT + 1..=ROOT + FILES).contains(&inode) {
        return None;
    }
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    Some(FileAttr {
        ino: INodeNo(inode),
        size: if is_root { 0 } else { LEN },
        blocks: 2,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind: match is_root {
            true => FileType::Directory,
            false => FileType::RegularFile,
        },
        perm: if is_root { 0o755 } else { 0o644 },
        nlink: if is_root { 2 } else { 1 },
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    })
}

impl Filesystem for Far {
    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let number = name.to_str().and_then(|name| name.parse::<u64>().ok());
        let Some(number) = number else {
            return reply.error(Errno::ENOENT);
        };
        let mut reads = self.0.lock().unwrap();
        match reads.names_left.checked_sub(1) {
            None if !reads.is_let_go => return reads.names_waiting.push((number, reply)),
            left => reads.names_left = left.unwrap_or(0),
        }
        drop(reads);
        answer_name(number, reply);
    }

    fn getattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        match attributes(inode.into()) {
            Some(found) => reply.attr(&Duration::ZERO, &found),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut reads = self.0.lock().unwrap();
        if reads.is_let_go {
            return reply.error(Errno::EIO);
        }
        let Some(left) = reads.left.checked_sub(1) else {
            return reads.waiting.push(reply);
        };
        reads.left = left;
        drop(reads);
        std::thread::sleep(LATENCY);
        let len = LEN.saturating_sub(offset).min(size.into());
        reply.data(&vec![7; len as usize]);
    }

    fn readdir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        for number in offset..FILES {
            let inode = INodeNo(ROOT + 1 + number);
            let name = number.to_string();
            if reply.add(inode, number + 1, FileType::RegularFile, name) {
                break;
            }
        }
        reply.ok();
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

/// Reads that wait are refused when this goes: a process that waits for one does not end before.
struct Waiting(Arc<Mutex<Reads>>);

impl Waiting {
    fn let_go(&self) {
        let mut reads = self.0.lock().unwrap();
        reads.is_let_go = true;
        for reply in reads.waiting.drain(..) {
            reply.error(Errno::EIO);
        }
        for (number, reply) in reads.names_waiting.drain(..) {
            answer_name(number, reply);
        }
    }

    fn names_count(&self) -> usize {
        self.0.lock().unwrap().names_waiting.len()
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().waiting.len()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// Mounts it; `None`, and a line that says so, where nothing can be mounted.
///
/// * `names`: that are looked up.
/// * `answered`: reads that are answered.
fn mount(folder: &Path, names: usize, answered: usize) -> Option<(Mounted, Waiting)> {
    let reads = Arc::new(Mutex::new(Reads {
        left: answered,
        names_left: names,
        ..Reads::default()
    }));
    let mut config = fuser::Config::default();
    config.mount_options = vec![MountOption::RO, MountOption::FSName("far".into())];
    match fuser::spawn_mount(Far(reads.clone()), folder, &config) {
        Ok(session) => Some((Mounted(Some(session)), Waiting(reads))),
        Err(error) => {
            eprintln!("SKIPPED: nothing can be mounted with /dev/fuse: {error}");
            None
        }
    }
}

/// A line on standard error of a command that may not end.
fn line_of(copy: &mut Moving, part: &'static str) -> String {
    let error = BufReader::new(copy.child.stderr.take().unwrap());
    let (gives, given) = channel();
    std::thread::spawn(move || {
        let mut lines = error.lines().map_while(Result::ok);
        gives.send(lines.find(|line| line.contains(part)))
    });
    let line = given.recv_timeout(DEADLINE);
    line.unwrap_or_default().expect("it says so")
}

/// A copy from a far folder, by an agent or by the command itself. The fields go in this order, also where a test fails.
struct FarCopy {
    waiting: Waiting,
    copy: Moving,
    _agent: Option<common::RunningAgent>,
    _mounted: Mounted,
    folder: PathBuf,
    place: Place,
}

impl FarCopy {
    /// Begins it; `None` where nothing can be mounted.
    ///
    /// * `names`, `answered`: as of [`mount`].
    fn start(names: usize, answered: usize, has_agent: bool) -> Option<Self> {
        let place = Place::new();
        let folder = place.path("far");
        std::fs::create_dir(&folder).unwrap();
        let (mounted, waiting) = mount(&folder, names, answered)?;
        let agent = has_agent.then(|| {
            place.make_token();
            place.agent(place.dir.path())
        });
        let source = match &agent {
            Some(agent) => agent.at(&folder),
            None => "far".to_owned(),
        };
        let copy = Moving::start(&place, &["copy", "--streams", "1", &source, "copy"]);
        Some(Self {
            waiting,
            copy,
            _agent: agent,
            _mounted: mounted,
            folder,
            place,
        })
    }

    /// Ctrl-C; the report says that it was cancelled, whatever waits.
    fn interrupt(&mut self) {
        let pid = Pid::from_raw(self.copy.child.id() as i32).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        let report = self.copy.event("ended")["report"].clone();
        assert_eq!(report["outcome"], "cancelled", "{report:#}");
    }

    fn await_end(&mut self) {
        let child = &mut self.copy.child;
        let code = wait_for("the command's end", || child.try_wait().unwrap());
        assert_eq!(code.code(), Some(130));
    }
}

/// Stops a copy while reads do not return, and has its report before they do.
///
/// * `answered`: reads that return before.
/// * `at_once`: reads that wait then, at least.
fn stop_a_copy(answered: usize, at_once: usize, has_agent: bool) {
    let Some(mut far) = FarCopy::start(usize::MAX, answered, has_agent) else {
        return;
    };
    wait_for("reads that wait", || {
        (far.waiting.count() >= at_once).then_some(())
    });
    far.interrupt();
    assert!(far.waiting.count() >= at_once);
    if !has_agent {
        // What holds the process then.
        let line = line_of(&mut far.copy, "have not returned");
        let path = far.folder.to_str().unwrap();
        assert!(line.contains(&format!("reads of \"{path}/")), "{line}");
        far.waiting.let_go();
    }
    // With an agent the command has no such read itself.
    far.await_end();
}

/// Ctrl-C ends a copy whose source stops answering while files are read before their turn.
#[test]
fn copies_of_files_that_are_read_ahead_can_be_stopped() {
    stop_a_copy(40, 2, false);
}

/// The same where the file whose turn it is is read.
#[test]
fn copies_of_a_file_that_is_read_can_be_stopped() {
    stop_a_copy(0, 1, false);
}

/// The same of an agent that reads for another host.
#[test]
fn copies_from_agents_can_be_stopped() {
    stop_a_copy(40, 2, true);
}

/// While names are read for longer than a second, events say how many were found; Ctrl-C ends the copy then, though lookups wait.
fn stop_a_scan(has_agent: bool) {
    const NAMES: u64 = 100;
    let Some(mut far) = FarCopy::start(NAMES as usize, 0, has_agent) else {
        return;
    };
    let mut entries = 0;
    while entries == 0 {
        entries = far.copy.event("scanning")["entries"].as_u64().unwrap();
    }
    assert!(entries <= NAMES, "{entries}");
    wait_for("lookups that wait", || {
        (far.waiting.names_count() > 0).then_some(())
    });
    far.interrupt();
    assert!(far.waiting.names_count() > 0);
    if !has_agent {
        // The command itself waits for them.
        far.waiting.let_go();
    }
    far.await_end();
    assert!(!far.place.path("copy").exists());
}

/// Of a local copy.
#[test]
fn scans_can_be_stopped() {
    stop_a_scan(false);
}

/// Of an agent's tree.
#[test]
fn scans_of_agents_can_be_stopped() {
    stop_a_scan(true);
}
