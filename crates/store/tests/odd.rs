//! Trees of file systems that are dead or damaged, or that have names and files no other has: one odd entry does not keep the rest
//! from being copied.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;

use ropewalk_store::{
    COMPONENT_LEN_MAX, Filter, FilterRule, Keep, PATH_LEN_MAX, Scan, Scanning, StoreError,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

mod support;
use support::*;

/// What a made-up file system has under a number.
#[derive(Clone)]
enum Node {
    /// Names and numbers in it, and how the listing ends after these.
    Folder(Vec<(Vec<u8>, u64)>, Option<Errno>),
    /// Its size, and what it gives when it is read.
    File(u64, &'static [u8]),
    Link(&'static [u8]),
    /// Each look at it fails.
    Broken(Errno),
    /// It is a folder until it is opened.
    Replaced(Errno),
}

/// Numbers from 1 on, which is the root.
type Nodes = Vec<Node>;

/// Runs `body` with a folder where a file system of these nodes is mounted, or prints a line where that is not permitted.
fn on_made_up(nodes: &[Node], body: impl FnOnce(&Path) + Send) {
    let (_keep, place) = folder();
    sys::alone(|| {
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let Ok(device) = device else {
            eprintln!("SKIPPED: no /dev/fuse here");
            return;
        };
        let fd = std::os::fd::AsRawFd::as_raw_fd(&device);
        let options = format!("fd={fd},rootmode=40000,user_id=0,group_id=0");
        let options = std::ffi::CString::new(options).unwrap();
        let mounted = mount(
            "odd",
            &place,
            "fuse",
            MountFlags::empty(),
            options.as_c_str(),
        );
        if let Err(error) = mounted {
            eprintln!("SKIPPED: no file system of a program here ({error})");
            return;
        }
        let nodes = nodes.to_vec();
        let server = std::thread::spawn(move || serve(&device, &nodes));
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&place)));
        unmount(&place, UnmountFlags::DETACH).unwrap();
        server.join().unwrap();
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Answers the kernel until the file system is unmounted.
fn serve(mut device: &File, nodes: &Nodes) {
    let mut request = vec![0; 1 << 18];
    while let Ok(len) = device.read(&mut request) {
        let number = |at: usize| u64::from_le_bytes(request[at..at + 8].try_into().unwrap());
        let (opcode, unique, node) = (number(0) >> 32, number(8), number(16));
        let answer = match opcode {
            // FORGET, INTERRUPT, BATCH_FORGET
            2 | 36 | 42 => continue,
            _ => answer(nodes, opcode, node, &request[40..len]),
        };
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(errno) => (-errno.raw_os_error(), Vec::new()),
        };
        let mut out = ((16 + body.len()) as u32).to_le_bytes().to_vec();
        out.extend_from_slice(&error.to_le_bytes());
        out.extend_from_slice(&unique.to_le_bytes());
        out.extend_from_slice(&body);
        // A request that was given up has no answer.
        let _ = device.write(&out);
    }
}

fn answer(nodes: &Nodes, opcode: u64, number: u64, body: &[u8]) -> Result<Vec<u8>, Errno> {
    let node = |number: u64| &nodes[number as usize - 1];
    let offset = || u64::from_le_bytes(body[8..16].try_into().unwrap()) as usize;
    match (opcode, node(number.max(1))) {
        // LOOKUP
        (1, Node::Folder(names, _)) => {
            let name = &body[..body.len() - 1];
            let found = names.iter().find(|(known, _)| known == name);
            let (_, number) = found.ok_or(Errno::NOENT)?;
            let attributes = attributes(*number, node(*number))?;
            let mut out = number.to_le_bytes().to_vec();
            out.extend_from_slice(&[0; 32]);
            out.extend_from_slice(&attributes);
            Ok(out)
        }
        // GETATTR
        (3, node) => Ok([&[0; 16][..], &attributes(number, node)?].concat()),
        // READLINK
        (5, Node::Link(target)) => Ok(target.to_vec()),
        (27, Node::Replaced(errno)) => Err(*errno),
        // OPEN and OPENDIR; what is read is not kept.
        (14 | 27, _) => Ok([&[0; 8][..], &[1, 0, 0, 0, 0, 0, 0, 0]].concat()),
        // READ
        (15, Node::File(_, bytes)) => {
            let size = u32::from_le_bytes(body[16..20].try_into().unwrap());
            let rest = bytes.iter().skip(offset()).take(size as usize);
            Ok(rest.copied().collect())
        }
        // READDIR
        (28, Node::Folder(names, end)) => match end {
            Some(errno) if offset() >= names.len() => Err(*errno),
            _ => Ok(listing(names, offset())),
        },
        // INIT
        (26, _) => {
            let mut out = vec![0; 64];
            (out[0], out[4], out[21]) = (7, 31, 16);
            Ok(out)
        }
        // RELEASE and RELEASEDIR
        (18 | 29, _) => Ok(Vec::new()),
        _ => Err(Errno::NOSYS),
    }
}

fn attributes(number: u64, node: &Node) -> Result<Vec<u8>, Errno> {
    let (mode, len) = match node {
        Node::Folder(..) | Node::Replaced(_) => (0o40755, 0),
        Node::File(len, _) => (0o100_644, *len),
        Node::Link(target) => (0o120_777, target.len() as u64),
        Node::Broken(errno) => return Err(*errno),
    };
    let mut out = Vec::new();
    for value in [number, len, 1, 1_000_000, 1_000_000, 1_000_000] {
        out.extend_from_slice(&value.to_le_bytes());
    }
    for value in [0u32, 0, 0, mode, 1, 0, 0, 0, 4096, 0] {
        out.extend_from_slice(&value.to_le_bytes());
    }
    Ok(out)
}

fn listing(names: &[(Vec<u8>, u64)], from: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for (at, (name, number)) in names.iter().enumerate().skip(from) {
        out.extend_from_slice(&number.to_le_bytes());
        out.extend_from_slice(&(at as u64 + 1).to_le_bytes());
        out.extend_from_slice(&(name.len() as u32).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(name);
        out.resize(out.len().next_multiple_of(8), 0);
    }
    out
}

fn names(names: &[(&str, u64)]) -> Vec<(Vec<u8>, u64)> {
    let owned = |(name, number): &(&str, u64)| (name.as_bytes().to_vec(), *number);
    names.iter().map(owned).collect()
}

fn paths(scan: &Scan) -> Vec<String> {
    let paths = scan.manifest.entries.iter().skip(1);
    let paths = paths.map(|entry| String::from_utf8_lossy(&entry.path).into_owned());
    paths.collect()
}

fn left_out(scan: &Scan) -> Vec<(String, &str)> {
    let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    let left_out = scan.left_out.iter();
    left_out
        .map(|one| (text(&one.path), &*one.reason))
        .collect()
}

fn without(root: &Path, pattern: &str) -> Scan {
    let rule = FilterRule {
        is_include: false,
        pattern: pattern.as_bytes().to_vec(),
    };
    let filter = Filter::new([&rule]).unwrap();
    Scan::read_filtered(root, Keep::default(), &filter, b"", &Scanning::default()).unwrap()
}

/// A dead mount, a damaged folder, and one that is replaced before it is listed are left out with their reasons; a folder that was listed
/// in part stays. A filter leaves out what is dead, too.
#[test]
fn dead_and_damaged_folders_are_left_out() {
    let root = [
        ("a", 2),
        ("bad", 3),
        ("dead", 4),
        ("link", 5),
        ("now a file", 6),
        ("part", 7),
    ];
    let nodes = [
        Node::Folder(names(&root), None),
        Node::File(0, b""),
        Node::Broken(Errno::UCLEAN),
        Node::Broken(Errno::NODEV),
        Node::Replaced(Errno::LOOP),
        Node::Replaced(Errno::NOTDIR),
        Node::Folder(names(&[("x", 2)]), Some(Errno::IO)),
    ];
    on_made_up(&nodes, |root| {
        let scan = Scan::read(root).unwrap();
        assert_eq!(paths(&scan), ["a", "part", "part/x"]);
        let found = left_out(&scan);
        let expected = [
            ("bad", "structure needs cleaning"),
            ("dead", "no such device"),
            ("link", "was replaced during the scan"),
            ("now a file", "was replaced during the scan"),
            ("part", "it was listed in part: input/output error"),
        ];
        assert_eq!(found, expected.map(|(path, why)| (path.to_owned(), why)));
        let rest = left_out(&without(root, "dead/")).len();
        assert_eq!(rest, expected.len() - 1);
        for refused in ["bad", "part"] {
            let error = Scan::read(&root.join(refused)).unwrap_err();
            assert!(matches!(error, StoreError::Io { .. }), "{error}");
        }
    });
}

/// Names that are given twice count once, with all below them; names and links that no manifest can have, and files that grow from
/// nothing when they are read, are left out.
#[test]
fn odd_entries_are_left_out() {
    let long = |letter: &str| letter.repeat(COMPONENT_LEN_MAX + 1);
    let (long_file, long_folder, longest) = (long("f"), long("d"), "l".repeat(COMPONENT_LEN_MAX));
    let root = [
        ("a", 2),
        ("d", 3),
        ("a", 2),
        ("empty", 4),
        (&long_file, 2),
        (&long_folder, 3),
        (&longest, 2),
        ("made", 5),
        ("d", 3),
        ("bad", 6),
        ("bad", 6),
        ("link", 7),
    ];
    let nodes = [
        Node::Folder(names(&root), None),
        Node::File(0, b""),
        Node::Folder(names(&[("x", 2), ("x", 2)]), None),
        Node::Link(b""),
        Node::File(0, b"made"),
        Node::Broken(Errno::IO),
        Node::Link(b"to"),
    ];
    on_made_up(&nodes, |root| {
        let scan = Scan::read(root).unwrap();
        assert_eq!(paths(&scan), ["a", "d", "d/x", "link", &longest]);
        assert_eq!(scan.versions.len(), 6);
        let found = left_out(&scan);
        let no_size = "it has no size before it is read: the system makes its contents";
        let expected = [
            ("bad", "input/output error"),
            (&long_folder, "its name is too long"),
            ("empty", "its target is empty"),
            (&long_file, "its name is too long"),
            ("made", no_size),
        ];
        assert_eq!(found, expected.map(|(path, why)| (path.to_owned(), why)));
        let error = Scan::read(&root.join("made")).unwrap_err();
        assert!(matches!(error, StoreError::NoSize { .. }), "{error}");
    });
}

/// A path that is too long below the name that its root has in a bundle is left out.
#[test]
fn paths_of_a_bundle_are_left_out() {
    let (_keep, folder) = folder();
    let part = "n".repeat(COMPONENT_LEN_MAX - 5);
    let mut path = Vec::new();
    let mut open = rustix::fs::open(&folder, OFlags::RDONLY, Mode::empty()).unwrap();
    while path.len() + 1 + part.len() <= PATH_LEN_MAX {
        rustix::fs::mkdirat(&open, &*part, Mode::RWXU).unwrap();
        open = rustix::fs::openat(&open, &*part, OFlags::RDONLY, Mode::empty()).unwrap();
        let slash = if path.is_empty() { "" } else { "/" };
        path = [&path[..], slash.as_bytes(), part.as_bytes()].concat();
    }
    let scanned = |name: &[u8]| {
        let (keep, filter) = (Keep::default(), Filter::default());
        let scan = Scan::read_filtered(&folder, keep, &filter, name, &Scanning::default());
        Scan::bundle(vec![(name.to_vec(), scan.unwrap())]).unwrap()
    };
    let name = |len| vec![b'b'; len];
    assert!(
        scanned(&name(PATH_LEN_MAX - path.len() - 1))
            .left_out
            .is_empty()
    );
    let scan = scanned(&name(PATH_LEN_MAX - path.len()));
    let reasons: Vec<&str> = scan.left_out.iter().map(|one| &*one.reason).collect();
    assert_eq!(reasons, ["its path is too long"]);
}
