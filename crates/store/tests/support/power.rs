//! A disk that loses its power: what a program did to a folder, as `strace` saw it, replayed up to any moment.
//!
//! What was not synced by then is kept or lost at random: bytes of files, times, and names. A directory's names are kept by a sync of
//! that directory alone. A rename is kept or lost as a whole, as on all file systems with a journal.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::Command;

use super::*;

/// Calls that change files, and those that say which inode one has.
const CALLS: &str = "openat,openat2,write,pwrite64,fsync,fdatasync,syncfs,renameat,renameat2,rename,mkdirat,mkdir,unlinkat,unlink,\
                     rmdir,fallocate,ftruncate,utimensat,fstat,newfstatat,linkat,link,copy_file_range,sync_file_range";

/// The header of a journal.
const MAGIC: &[u8] = b"ropewalk journal 4\n";
const HEADER_LEN: usize = MAGIC.len() + 17;

type Id = usize;
const ROOT: Id = 0;

#[derive(Clone, Debug)]
enum Op {
    Create(Id, Vec<u8>, Id),
    Unlink(Id, Vec<u8>),
    Rename(Id, Vec<u8>, Id, Vec<u8>, Id),
    Write(Id, u64, Vec<u8>),
    Grow(Id, u64),
    Time(Id, i64, u32),
    /// Of a file or folder: contents or names, and times where they are included.
    Sync(Id, bool),
    SyncAll,
}

impl Op {
    fn is_covered_by(&self, sync: &Op) -> bool {
        match (self, sync) {
            (Op::Sync(..) | Op::SyncAll, _) => false,
            (_, Op::SyncAll) => true,
            (Op::Time(one, ..), Op::Sync(other, true)) => one == other,
            (Op::Write(one, ..) | Op::Grow(one, _), Op::Sync(other, _)) => one == other,
            (Op::Create(one, ..) | Op::Unlink(one, _), Op::Sync(other, _)) => one == other,
            (Op::Rename(_, _, one, ..), Op::Sync(other, _)) => one == other,
            _ => false,
        }
    }

    fn is_of_names(&self) -> bool {
        matches!(self, Op::Create(..) | Op::Unlink(..) | Op::Rename(..))
    }
}

/// What a program did.
pub struct Trace {
    ops: Vec<Op>,
    /// The sync that covers each.
    synced_at: Vec<usize>,
    is_folder: Vec<bool>,
    /// After how many changes each mark was set.
    pub marks: Vec<usize>,
}

/// Where the files and folders are at some moment.
type Names = HashMap<Id, BTreeMap<Vec<u8>, Id>>;

/// Contents and modification time.
type File = (Vec<u8>, Option<(i64, u32)>);

struct Reader {
    trace: Trace,
    root: Vec<u8>,
    names: Names,
    /// Numbers of inodes on the disk on which it was traced.
    inodes: HashMap<u64, Id>,
}

/// One line of a trace.
struct Call<'a> {
    name: &'a str,
    args: &'a str,
    result: &'a str,
    strings: Vec<Vec<u8>>,
    /// Paths of open files.
    paths: Vec<Vec<u8>>,
}

fn unhex(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        match rest.strip_prefix("\\x") {
            Some(digits) => {
                out.push(u8::from_str_radix(&digits[..2], 16).unwrap());
                rest = &digits[2..];
            }
            None => {
                out.push(first as u8);
                rest = &rest[first.len_utf8()..];
            }
        }
    }
    out
}

/// What is between two marks, each time.
fn between(text: &str, open: char, close: char) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(open) {
        let Some(len) = rest[start + 1..].find(close) else {
            break;
        };
        found.push(unhex(&rest[start + 1..start + 1 + len]));
        rest = &rest[start + 2 + len..];
    }
    found
}

impl<'a> Call<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let line = line.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == ' ');
        let (name, rest) = line.split_once('(')?;
        let (args, result) = rest.rsplit_once(" = ")?;
        Some(Self {
            name,
            args,
            result,
            strings: between(args, '"', '"'),
            paths: between(args, '<', '>'),
        })
    }

    fn has_failed(&self) -> bool {
        self.result.starts_with('-') || self.result.starts_with('?')
    }

    /// The number behind this text.
    fn number(&self, key: &str) -> Option<u64> {
        let (_, rest) = self.args.split_once(key)?;
        let end = rest.find(|letter: char| !letter.is_ascii_digit());
        rest[..end.unwrap_or(rest.len())].parse().ok()
    }

    /// The last arguments, as numbers.
    fn last(&self) -> Vec<u64> {
        let args = self.args.trim_end_matches(')').rsplit(", ");
        args.map_while(|word| word.parse().ok()).collect()
    }
}

impl Reader {
    fn find(&self, path: &[u8]) -> Option<Id> {
        let below = path.strip_prefix(&*self.root)?;
        let mut at = ROOT;
        for name in below.split(|byte| *byte == b'/') {
            if !name.is_empty() && name != b"." {
                at = *self.names.get(&at)?.get(name)?;
            }
        }
        Some(at)
    }

    /// The folder and the last name of a path.
    fn split(&self, path: &[u8]) -> Option<(Id, Vec<u8>)> {
        let at = path.iter().rposition(|byte| *byte == b'/')?;
        Some((self.find(&path[..at])?, path[at + 1..].to_vec()))
    }

    fn add_inode(&mut self, is_folder: bool) -> Id {
        self.trace.is_folder.push(is_folder);
        self.trace.is_folder.len() - 1
    }

    fn create(&mut self, (folder, name): (Id, Vec<u8>), is_folder: bool) {
        let id = self.add_inode(is_folder);
        let names = self.names.entry(folder).or_default();
        if names.insert(name.clone(), id).is_none() {
            self.trace.ops.push(Op::Create(folder, name, id));
        }
    }

    /// The path of a name in an open folder, or of an absolute one.
    fn path(folder: Option<&Vec<u8>>, name: &[u8]) -> Vec<u8> {
        match folder.filter(|_| !name.starts_with(b"/")) {
            Some(folder) => [&folder[..], b"/", name].concat(),
            None => name.to_vec(),
        }
    }

    fn take(&mut self, call: &Call<'_>, descriptors: &HashMap<Vec<u8>, Vec<u8>>) -> Option<()> {
        let by_name = |at: usize| {
            let name = call.strings.get(at)?;
            // By a descriptor, as a folder is removed.
            let prefix = b"/proc/self/fd/";
            if let Some(rest) = name.strip_prefix(&prefix[..]) {
                let len = rest.iter().position(|byte| *byte == b'/');
                let len = len.unwrap_or(rest.len());
                let open = descriptors.get(&rest[..len])?;
                return Some([&open[..], &rest[len..]].concat());
            }
            Some(Self::path(call.paths.get(at), name))
        };
        match call.name {
            "openat" | "openat2" if call.args.contains("O_CREAT") => {
                let path = by_name(0)?;
                if self.find(&path).is_none() {
                    let at = self.split(&path)?;
                    self.create(at, false);
                }
            }
            "mkdirat" | "mkdir" => {
                let at = self.split(&by_name(0)?)?;
                self.create(at, true);
            }
            "unlinkat" | "unlink" | "rmdir" => {
                let (folder, name) = self.split(&by_name(0)?)?;
                self.names.get_mut(&folder)?.remove(&name)?;
                self.trace.ops.push(Op::Unlink(folder, name));
            }
            "renameat" | "renameat2" | "rename" => {
                let (from, old) = self.split(&by_name(0)?)?;
                let (to, new) = self.split(&by_name(1)?)?;
                let id = self.names.get_mut(&from)?.remove(&old)?;
                self.names.entry(to).or_default().insert(new.clone(), id);
                self.trace.ops.push(Op::Rename(from, old, to, new, id));
            }
            "write" | "pwrite64" => {
                let id = self.find(call.paths.first()?)?;
                let mut bytes = call.strings.first()?.clone();
                let offset = match call.name {
                    "pwrite64" => *call.last().first()?,
                    _ => self.len_of(id),
                };
                patch(&mut bytes, |inode| {
                    self.inodes.get(&inode).map_or(u64::MAX, |id| *id as u64)
                });
                self.trace.ops.push(Op::Write(id, offset, bytes));
            }
            // Of a journal, whose length stays.
            "fallocate" if call.args.contains("KEEP_SIZE") => {}
            "fallocate" => {
                let id = self.find(call.paths.first()?)?;
                let last = call.last();
                assert_eq!(
                    last.get(2),
                    Some(&0),
                    "only space is reserved: {}",
                    call.args
                );
                self.trace.ops.push(Op::Grow(id, last[0] + last[1]));
            }
            "utimensat" => {
                // Of an open file, or by name.
                let id = match call.args.contains("NULL, [") {
                    true => self.find(call.paths.first()?)?,
                    false => self.find(&by_name(0)?)?,
                };
                let (_, written) = call.args.rsplit_once("{tv_sec=")?;
                let (seconds, rest) = written.split_once(',')?;
                let nanoseconds = rest.split_once("tv_nsec=")?.1;
                let end = nanoseconds.find('}')?;
                let nanoseconds = nanoseconds[..end].parse().ok()?;
                let op = Op::Time(id, seconds.parse().ok()?, nanoseconds);
                self.trace.ops.push(op);
            }
            "fsync" | "fdatasync" => {
                let id = self.find(call.paths.first()?)?;
                let op = Op::Sync(id, call.name == "fsync");
                self.trace.ops.push(op);
            }
            "syncfs" => self.trace.ops.push(Op::SyncAll),
            "fstat" => {
                let id = self.find(call.paths.first()?)?;
                self.inodes.insert(call.number("st_ino=")?, id);
            }
            "newfstatat" => {
                let id = self.find(&by_name(0)?)?;
                self.inodes.insert(call.number("st_ino=")?, id);
            }
            "openat" | "openat2" => {}
            other => panic!("{other} is not replayed"),
        }
        Some(())
    }

    fn len_of(&self, id: Id) -> u64 {
        let ends = self.trace.ops.iter().map(|op| match op {
            Op::Write(of, offset, bytes) if *of == id => offset + bytes.len() as u64,
            _ => 0,
        });
        ends.max().unwrap_or(0)
    }
}

/// Gives inodes in whole records of a journal another number.
fn patch(bytes: &mut [u8], number: impl Fn(u64) -> u64) {
    let mut at = if bytes.starts_with(MAGIC) {
        HEADER_LEN
    } else {
        0
    };
    while let Some(len) = bytes.get(at..at + 4) {
        let len = u32::from_le_bytes(len.try_into().unwrap()) as usize;
        let (start, end) = (at + 4, at + 4 + len);
        if len > 5000 || end + 8 > bytes.len() {
            return;
        }
        let sum = |payload: &[u8]| blake3::hash(payload).as_bytes()[..8].to_vec();
        if sum(&bytes[start..end]) != bytes[end..end + 8] {
            return;
        }
        if bytes[start] == 1 {
            let field = start + 25..start + 33;
            let inode = u64::from_le_bytes(bytes[field.clone()].try_into().unwrap());
            bytes[field].copy_from_slice(&number(inode).to_le_bytes());
            let new = sum(&bytes[start..end]);
            bytes[end..end + 8].copy_from_slice(&new);
        }
        at = end + 8;
    }
}

impl Trace {
    /// Runs a command under `strace`; `None` where that is not there.
    ///
    /// * `disk`: the folder whose changes are of interest.
    pub fn of(command: &[&str], variable: (&str, &Path), disk: &Path) -> Option<Self> {
        let file = disk.with_extension("trace");
        let mut strace = Command::new("strace");
        strace.args(["-f", "-y", "-xx", "-v", "-s", "8000000", "-e"]);
        strace.arg(format!("trace={CALLS}")).arg("-o").arg(&file);
        strace.args(command).env(variable.0, variable.1);
        let ran = strace.output().ok()?;
        assert!(
            ran.status.success(),
            "{}",
            String::from_utf8_lossy(&ran.stdout)
        );
        let text = std::fs::read_to_string(&file).unwrap();
        let mut reader = Reader {
            trace: Self {
                ops: Vec::new(),
                synced_at: Vec::new(),
                is_folder: vec![true],
                marks: Vec::new(),
            },
            root: disk.to_str().unwrap().as_bytes().to_vec(),
            names: Names::new(),
            inodes: HashMap::new(),
        };
        // Of open files by their numbers, as of the last call that opened them.
        let mut descriptors: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        for line in text.lines() {
            assert!(
                !line.contains("unfinished ..."),
                "one thread at a time: {line}"
            );
            let Some(call) = Call::parse(line) else {
                continue;
            };
            if call.strings.iter().any(|name| name.ends_with(b"/mark")) {
                reader.trace.marks.push(reader.trace.ops.len());
            }
            if call.has_failed() {
                continue;
            }
            reader.take(&call, &descriptors);
            if let Some((number, _)) = call.result.split_once('<') {
                let path = between(call.result, '<', '>').remove(0);
                descriptors.insert(number.as_bytes().to_vec(), path);
            }
        }
        let mut trace = reader.trace;
        let first_sync = |at: usize| {
            let later = trace.ops[at..].iter();
            let sync = later
                .clone()
                .position(|sync| trace.ops[at].is_covered_by(sync));
            sync.map_or(usize::MAX, |after| at + after)
        };
        trace.synced_at = (0..trace.ops.len()).map(first_sync).collect();
        Some(trace)
    }

    /// How many changes there are.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Makes what a disk has that lost its power after so many changes.
    ///
    /// * `random`: a number below the one that is given.
    pub fn replay(&self, until: usize, to: &Path, random: &mut dyn FnMut(u64) -> u64) {
        let kept_of_ten = random(11);
        let is_ordered = random(2) == 0;
        let last_name = random(until as u64 + 1) as usize;
        let mut names = Names::new();
        let mut files: HashMap<Id, File> = HashMap::new();
        for (at, op) in self.ops[..until].iter().enumerate() {
            let is_kept = self.synced_at[at] < until
                || match is_ordered && op.is_of_names() {
                    true => at < last_name,
                    false => random(10) < kept_of_ten,
                };
            if !is_kept {
                continue;
            }
            match op {
                Op::Create(folder, name, id) => {
                    names.entry(*folder).or_default().insert(name.clone(), *id);
                }
                Op::Unlink(folder, name) => {
                    names.entry(*folder).or_default().remove(name);
                }
                Op::Rename(from, old, folder, new, id) => {
                    let there = names.entry(*from).or_default();
                    if there.get(old) == Some(id) {
                        there.remove(old);
                    }
                    names.entry(*folder).or_default().insert(new.clone(), *id);
                }
                Op::Write(id, offset, bytes) => {
                    let is_torn = self.synced_at[at] >= until && random(10) == 0;
                    let len = match is_torn {
                        true => random(bytes.len() as u64 + 1) as usize,
                        false => bytes.len(),
                    };
                    let (file, _) = files.entry(*id).or_default();
                    let end = *offset as usize + len;
                    file.resize(file.len().max(end), 0);
                    file[*offset as usize..end].copy_from_slice(&bytes[..len]);
                }
                Op::Grow(id, len) => {
                    let (file, _) = files.entry(*id).or_default();
                    file.resize(file.len().max(*len as usize), 0);
                }
                Op::Time(id, seconds, nanoseconds) => {
                    files.entry(*id).or_default().1 = Some((*seconds, *nanoseconds));
                }
                Op::Sync(..) | Op::SyncAll => {}
            }
        }
        let mut made: HashMap<u64, u64> = HashMap::new();
        let mut journals = Vec::new();
        let mut open = vec![(ROOT, to.to_owned())];
        while let Some((folder, path)) = open.pop() {
            for (file, id) in names.get(&folder).into_iter().flatten() {
                let path = path.join(name(file));
                if self.is_folder[*id] {
                    std::fs::create_dir(&path).unwrap();
                    set_mode(&path, 0o700);
                    open.push((*id, path));
                    continue;
                }
                let (bytes, time) = files.remove(id).unwrap_or_default();
                std::fs::write(&path, bytes).unwrap();
                set_mode(&path, 0o600);
                let inode = std::os::unix::fs::MetadataExt::ino(&path.metadata().unwrap());
                made.insert(*id as u64, inode);
                if let Some((seconds, nanoseconds)) = time {
                    set_times(&path, seconds, nanoseconds);
                }
                if file.ends_with(b".journal") {
                    journals.push(path);
                }
            }
        }
        for journal in journals {
            let mut bytes = std::fs::read(&journal).unwrap();
            patch(&mut bytes, |id| made.get(&id).copied().unwrap_or(u64::MAX));
            std::fs::write(&journal, bytes).unwrap();
        }
    }
}
