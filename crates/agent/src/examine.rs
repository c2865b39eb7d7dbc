//! What `doctor` asks of a host: its processors, interfaces, kernel settings, and the disk of a folder. All of it takes a few seconds at
//! most, and stops when the connection ends; files that were made are removed then.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_lane::{interfaces, open_files};
use ropewalk_proto::control::{Examine, Examined, Examinee, Setting};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::host::Host;

mod disk;
mod processor;

/// Settings of the kernel that decide how fast a transfer may be.
const SETTINGS: [&str; 10] = [
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.core.default_qdisc",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_moderate_rcvbuf",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_available_congestion_control",
    "net.ipv4.tcp_slow_start_after_idle",
];

/// What is measured notices the end after a step of its own; a disk that hangs is not waited for.
const END_WAIT: Duration = Duration::from_secs(5);

/// How names of files begin that may be made, and are removed when the connection ends.
const NAME_BEGINS: &str = "ropewalk-doctor-";

/// What is examined over one connection.
#[derive(Debug, Default)]
pub(crate) struct Examining {
    is_used: AtomicBool,
    is_at_work: AtomicBool,
    // The connection has ended.
    is_over: AtomicBool,
    // Files that go with it.
    left: Mutex<Vec<(Folder, String)>>,
}

/// A folder that may be written to, whatever its path leads to later.
#[derive(Debug)]
struct Folder {
    opened: OwnedFd,
    path: PathBuf,
}

impl Folder {
    /// * `path`: resolved.
    fn open(path: PathBuf) -> Result<Self, String> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // A link that was put on the path since leads nowhere.
        let resolve = ResolveFlags::NO_SYMLINKS;
        let opened = match rustix::fs::openat2(CWD, &path, flags, Mode::empty(), resolve) {
            Err(Errno::NOSYS) => rustix::fs::open(&path, flags | OFlags::NOFOLLOW, Mode::empty()),
            opened => opened,
        };
        let opened = opened.map_err(|errno| format!("cannot open {}: {errno}", path.display()))?;
        Ok(Self { opened, path })
    }

    /// For calls that need a path.
    fn by_descriptor(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.opened.as_raw_fd()).into()
    }

    /// A text with the path as it was found.
    fn shown(&self, text: &str) -> String {
        let own = self.by_descriptor();
        text.replace(&*own.to_string_lossy(), &self.path.to_string_lossy())
    }
}

impl Examining {
    /// Whether something was examined, or is.
    pub fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Whether nothing else is being examined over the connection; then this is, until [`answer`](Self::answer) returns.
    pub fn begin(&self) -> bool {
        self.is_used.store(true, Ordering::Relaxed);
        !self.is_at_work.swap(true, Ordering::SeqCst)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Examines what is asked for.
    pub fn answer(&self, asked: &Examine, host: &Host) -> Examined {
        let answer = match asked.file.is_empty() {
            true => self.measure(&asked.folder, host),
            false => Examined {
                error: self.keep(asked, host).err().unwrap_or_default(),
                ..Examined::default()
            },
        };
        self.is_at_work.store(false, Ordering::SeqCst);
        // It took longer than the end of the connection waits.
        if self.is_over() {
            self.remove();
        }
        answer
    }

    fn measure(&self, folder: &[u8], host: &Host) -> Examined {
        let mut examined = Examined {
            processors: std::thread::available_parallelism().map_or(1, |count| count.get() as u32),
            hash: processor::hash(),
            seal: processor::seal(),
            copy: processor::copy(),
            interfaces: interfaces::usable(&[]).iter().map(examinee).collect(),
            settings: SETTINGS.iter().filter_map(|name| setting(name)).collect(),
            open_files: open_files::limit() as u64,
            ..Examined::default()
        };
        if !folder.is_empty() {
            let measured = writable(folder, host).and_then(|folder| {
                let measured = disk::measure(&folder.by_descriptor(), &|| self.is_over());
                measured.map_err(|error| folder.shown(&error))
            });
            match measured {
                Ok(disk) => examined.disk = Some(disk),
                Err(error) => examined.error = error,
            }
        }
        examined
    }

    /// Has a file removed when the connection ends, and makes it first where it is to have bytes.
    fn keep(&self, asked: &Examine, host: &Host) -> Result<(), String> {
        let name = std::str::from_utf8(&asked.file).unwrap_or_default();
        let is_plain = |name: &str| !name.contains('/') && name.len() < 100;
        if !name.starts_with(NAME_BEGINS) || !is_plain(name) {
            return Err(format!("{name:?} is no name of a file that is examined"));
        }
        let folder = writable(&asked.folder, host)?;
        let path = folder.by_descriptor().join(name);
        // What is there is not this connection's.
        if path.symlink_metadata().is_ok() {
            return Err(format!(
                "{} exists already",
                folder.path.join(name).display()
            ));
        }
        let made = match asked.file_bytes {
            0 => Ok(()),
            bytes => disk::make(&path, bytes, &|| self.is_over()),
        };
        let made = made.map_err(|error| folder.shown(&error));
        self.left.lock().push((folder, name.to_owned()));
        made
    }

    /// The connection ends: what is being measured stops, and its files are removed.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        let began = Instant::now();
        while self.is_at_work.load(Ordering::SeqCst) && began.elapsed() < END_WAIT {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.remove();
    }

    fn remove(&self) {
        for (folder, name) in std::mem::take(&mut *self.left.lock()) {
            // The copy of a file may never have got its name.
            let _ = rustix::fs::unlinkat(&folder.opened, name, AtFlags::empty());
        }
    }
}

/// The folder, resolved, where it may be written.
fn writable(folder: &[u8], host: &Host) -> Result<Folder, String> {
    let folder = Path::new(OsStr::from_bytes(folder));
    let resolved = host.roots.resolve_write(folder);
    let resolved = resolved.map_err(|error| error.to_string())?;
    match resolved.is_dir() {
        true => Folder::open(resolved),
        false => Err(format!(
            "{} is not a folder; name one that exists",
            folder.display()
        )),
    }
}

fn examinee(interface: &interfaces::Interface) -> Examinee {
    let mtu = Path::new("/sys/class/net")
        .join(&interface.name)
        .join("mtu");
    let mtu = std::fs::read_to_string(mtu).unwrap_or_default();
    let addresses = interface.networks.iter();
    Examinee {
        name: interface.name.clone(),
        addresses: addresses.map(|(address, _)| address.to_string()).collect(),
        mtu: mtu.trim().parse().unwrap_or(0),
        rate: interfaces::rate(std::slice::from_ref(interface)),
    }
}

/// A setting as the kernel has it; `None` where it has none.
fn setting(name: &str) -> Option<Setting> {
    let path = Path::new("/proc/sys").join(name.replace('.', "/"));
    let text = std::fs::read_to_string(path).ok()?;
    let words: Vec<&str> = text.split_whitespace().collect();
    Some(Setting {
        name: name.to_owned(),
        value: words.join(" "),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use ropewalk_store::{Access, Roots};

    use super::*;

    fn host(folder: &Path) -> Host {
        Host {
            roots: Roots::new(vec![(folder.to_owned(), Access::ReadWrite)]).unwrap(),
            ..Host::alone()
        }
    }

    fn names(folder: &Path) -> usize {
        std::fs::read_dir(folder).unwrap().count()
    }

    /// All that is asked for has a number, and no file stays.
    #[test]
    fn hosts_are_examined() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().as_os_str().as_bytes().to_vec();
        let asked = Examine {
            folder,
            ..Examine::default()
        };
        let examining = Examining::default();
        assert!(examining.begin() && !examining.begin());
        let found = examining.answer(&asked, &host(place.path()));
        assert!(examining.begin());
        assert_eq!(found.error, "");
        let disk = found.disk.unwrap();
        let numbers = [
            found.hash, found.seal, found.copy, disk.write, disk.read, disk.files,
        ];
        assert!(numbers.iter().all(|number| *number > 0), "{numbers:?}");
        assert!(found.processors > 0 && found.open_files > 0);
        let rmem = found
            .settings
            .iter()
            .find(|one| one.name == "net.ipv4.tcp_rmem");
        assert_eq!(rmem.unwrap().value.split(' ').count(), 3);
        assert_eq!(names(place.path()), 0);
    }

    /// A folder is the one that was named, whatever has its path later.
    #[test]
    fn files_are_removed_where_they_were_made() {
        let place = tempfile::tempdir().unwrap();
        let host = host(place.path());
        let [named, moved, outside] =
            ["named", "moved", "outside"].map(|name| place.path().join(name));
        std::fs::create_dir(&named).unwrap();
        std::fs::create_dir(&outside).unwrap();
        let asked = Examine {
            folder: named.as_os_str().as_bytes().to_vec(),
            file: b"ropewalk-doctor-1".to_vec(),
            file_bytes: 10,
        };
        let examining = Examining::default();
        assert_eq!(examining.answer(&asked, &host).error, "");
        std::fs::write(outside.join("ropewalk-doctor-1"), "stays").unwrap();
        std::fs::rename(&named, &moved).unwrap();
        std::os::unix::fs::symlink(&outside, &named).unwrap();
        examining.end();
        assert_eq!((names(&outside), names(&moved)), (1, 0));
    }

    /// Files go with the connection; other names, places and files that are there are refused, and stay.
    #[test]
    fn files_are_removed_at_the_end() {
        let place = tempfile::tempdir().unwrap();
        let host = host(place.path());
        let folder = place.path().as_os_str().as_bytes().to_vec();
        let keep = |examining: &Examining, file: &str, file_bytes: u64| {
            let asked = Examine {
                folder: folder.clone(),
                file: file.into(),
                file_bytes,
            };
            examining.answer(&asked, &host).error
        };
        let examining = Examining::default();
        assert_eq!(keep(&examining, "ropewalk-doctor-1", 3_000_000), "");
        let made = place.path().join("ropewalk-doctor-1");
        assert_eq!(made.metadata().unwrap().len(), 3_000_000);
        assert_eq!(keep(&examining, "ropewalk-doctor-2", 0), "");
        std::fs::write(place.path().join("ropewalk-doctor-2"), "x").unwrap();
        std::fs::write(place.path().join("ropewalk-doctor-3"), "x").unwrap();
        std::fs::write(place.path().join("own"), "x").unwrap();
        for name in ["ropewalk-doctor-3", "own", "ropewalk-doctor-/../own"] {
            assert_ne!(keep(&examining, name, 0), "", "{name}");
        }
        let outside = Examine {
            folder: b"/".to_vec(),
            file: b"ropewalk-doctor-4".to_vec(),
            file_bytes: 1,
        };
        assert_ne!(examining.answer(&outside, &host).error, "");
        examining.end();
        assert_eq!(names(place.path()), 2);
        // What is asked for after the end makes nothing that stays.
        assert_ne!(keep(&examining, "ropewalk-doctor-5", 3_000_000), "");
        assert_eq!(names(place.path()), 2);
    }
}
