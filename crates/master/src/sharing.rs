//! Transfers of one user, started on one host, that cross the same path: how many there are.
//!
//! Each master whose streams are tuned keeps a small file in a folder of the user: the networks its bytes leave and reach,
//! and how many streams it has. The file is locked while its master lives, so that no lost master counts as alive.
//! Two transfers share a path when senders of both are in one network and receivers of both in one, too: networks are
//! judged by their addresses (24 bits of IPv4, 48 of IPv6), since nothing shows where a bottleneck is.
//!
//! Left out: masters on other hosts or of other users, transfers with a given number of streams, and paths that meet in
//! the middle only.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ropewalk_proto::coordinator::{Ends, Others};

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Networks of an end that are told; the rest of a larger cluster is in them, or nobody's neighbour.
const NETWORKS_MAX: usize = 64;

/// Longer files are not read: two ends of so many networks.
const BYTES_MAX: u64 = 16 << 10;

/// Of the files.
const EXTENSION: &str = "path";

/// Other transfers that are counted.
const OTHERS_MAX: usize = 64;

/// Files that are looked at to find them: masters that were killed may have left some.
const FILES_MAX: usize = 4096;

/// Another master's look takes microseconds, unless it was stopped in it: a transfer must not wait for that.
const LOCK_TRIES: u32 = 20;

/// Time between two tries.
const LOCK_PAUSE: Duration = Duration::from_millis(1);

/// A file that has just been made is locked and written within this time; one that is empty longer is nobody's.
const MADE_WITHIN: Duration = Duration::from_secs(60);

/// What a master tells of its transfer.
#[derive(Clone, Debug, Default, PartialEq)]
struct Claim {
    senders: BTreeSet<String>,
    receivers: BTreeSet<String>,
    // 0 while nobody knows.
    streams: u32,
}

/// This master's file, and the folder of all.
#[derive(Debug)]
pub(crate) struct Sharing {
    folder: Option<PathBuf>,
    name: String,
    own: Option<File>,
    looked: Option<Instant>,
}

/// The network of an address; none for those that only mean something within a host.
fn network(address: &IpAddr) -> Option<String> {
    match address.to_canonical() {
        address if address.is_loopback() || address.is_unspecified() => None,
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            Some(format!("{a}.{b}.{c}.0/24"))
        }
        IpAddr::V6(v6) => {
            let [a, b, c, ..] = v6.segments();
            Some(format!("{a:x}:{b:x}:{c:x}::/48"))
        }
    }
}

impl Claim {
    fn new(ends: &Ends, streams: u32) -> Self {
        let networks =
            |of: &Vec<IpAddr>| of.iter().filter_map(network).take(NETWORKS_MAX).collect();
        Self {
            senders: networks(&ends[0]),
            receivers: networks(&ends[1]),
            streams,
        }
    }

    fn shares_path(&self, other: &Self) -> bool {
        !self.senders.is_disjoint(&other.senders) && !self.receivers.is_disjoint(&other.receivers)
    }

    /// Three lines: networks of the senders, networks of the receivers, streams; and one that says that it is whole.
    fn format(&self) -> String {
        let line = |of: &BTreeSet<String>| of.iter().cloned().collect::<Vec<_>>().join(" ");
        format!(
            "{}\n{}\n{}\nend\n",
            line(&self.senders),
            line(&self.receivers),
            self.streams
        )
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let mut words = || {
            Some(
                lines
                    .next()?
                    .split_whitespace()
                    .map(str::to_owned)
                    .collect(),
            )
        };
        let (senders, receivers) = (words()?, words()?);
        let streams = lines.next()?.parse().ok()?;
        (lines.next() == Some("end")).then_some(Self {
            senders,
            receivers,
            streams,
        })
    }
}

impl Sharing {
    /// Nothing is reported before the first look.
    pub fn new(folder: Option<&Path>, transfer: &str) -> Self {
        Self {
            folder: folder.map(Path::to_owned),
            name: format!("{transfer}.{EXTENSION}"),
            own: None,
            looked: None,
        }
    }

    /// Whether it is time to look.
    pub fn is_due(&self) -> bool {
        let is_late = |looked: Instant| looked.elapsed() >= LOOK_EVERY;
        self.folder.is_some() && self.looked.is_none_or(is_late)
    }

    /// Records how many streams this transfer has between these ends; returns the other transfers on the path. Whatever is wrong with the
    /// folder only means that there are none.
    pub fn look(&mut self, ends: &Ends, streams: u32) -> Others {
        self.looked = Some(Instant::now());
        let Some(folder) = self.folder.clone() else {
            return Others::default();
        };
        let claim = Claim::new(ends, streams);
        if self.tell(&folder, &claim).is_err() {
            return Others::default();
        }
        let own = folder.join(&self.name);
        let mut all = Others::default();
        let paths = files(&folder).filter(|path| *path != own).take(FILES_MAX);
        let others = paths.filter_map(|path| read(&path));
        let others = others.filter(|other| claim.shares_path(other));
        let mut all_know = true;
        for other in others.take(OTHERS_MAX) {
            all.transfers += 1;
            all.streams = all.streams.saturating_add(other.streams);
            all_know &= other.streams > 0;
        }
        if !all_know {
            all.streams = 0;
        }
        all
    }

    fn tell(&mut self, folder: &Path, claim: &Claim) -> std::io::Result<()> {
        let file = match &mut self.own {
            Some(file) => file,
            none => {
                fs::create_dir_all(folder)?;
                none.insert(make_own(&folder.join(&self.name))?)
            }
        };
        file.rewind()?;
        file.set_len(0)?;
        file.write_all(claim.format().as_bytes())
    }
}

/// Makes this master's file and locks it. Others that look at it hold it for a moment, which is waited for.
fn make_own(path: &Path) -> std::io::Result<File> {
    let file = File::create_new(path)?;
    if let Err(error) = lock(&file, LOCK_TRIES) {
        // The next look makes it anew.
        let _ = fs::remove_file(path);
        return Err(error.into());
    }
    Ok(file)
}

/// Locks a file against all others, at the last of so many tries.
fn lock(file: &File, tries: u32) -> Result<(), TryLockError> {
    for _ in 1..tries {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            locked => return locked,
        }
    }
    file.try_lock()
}

impl Drop for Sharing {
    fn drop(&mut self) {
        if let (Some(folder), Some(_)) = (&self.folder, &self.own) {
            // If it stays, it is not locked any more.
            let _ = fs::remove_file(folder.join(&self.name));
        }
    }
}

fn files(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| {
        path.extension()
            .is_some_and(|extension| extension == EXTENSION)
    })
}

/// Removes what masters left that were killed.
pub fn clear_paths(folder: &Path) {
    files(folder).for_each(|path| {
        read(&path);
    });
}

/// What a living master tells; files of dead ones are removed.
fn read(path: &Path) -> Option<Claim> {
    let mut file = File::open(path).ok()?;
    match file.try_lock_shared() {
        Ok(()) => {
            let seen = file.metadata().ok()?;
            let age = seen.modified().ok().and_then(|made| made.elapsed().ok());
            // One that has just been made is not locked yet.
            let is_new = seen.len() == 0 && age.is_none_or(|age| age < MADE_WITHIN);
            if !is_new {
                let _ = fs::remove_file(path);
            }
            None
        }
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            (&mut file).take(BYTES_MAX).read_to_string(&mut text).ok()?;
            Claim::parse(&text)
        }
        Err(TryLockError::Error(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(from: &str, to: &str) -> Ends {
        [from, to].map(|text| text.split(' ').map(|one| one.parse().unwrap()).collect())
    }

    /// Transfers between the same networks see each other, in that direction only, and no longer than they last.
    #[test]
    fn neighbours() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("paths");
        let mut one = Sharing::new(Some(&folder), "one");
        let mut other = Sharing::new(Some(&folder), "other");
        let mut back = Sharing::new(Some(&folder), "back");
        assert!(one.is_due());
        let there = ends("10.0.0.1 127.0.0.1", "10.0.1.1");
        assert_eq!(one.look(&there, 5), Others::default());
        assert!(!one.is_due());
        let near = ends("10.0.0.7", "10.0.1.9 10.0.2.9");
        let seen = other.look(&near, 7);
        assert_eq!((seen.transfers, seen.streams), (1, 5));
        assert_eq!(back.look(&ends("10.0.1.1", "10.0.0.1"), 1).transfers, 0);
        assert_eq!(one.look(&there, 6).streams, 7);
        assert_eq!(other.look(&near, 7).streams, 6);
        drop(one);
        assert_eq!(other.look(&near, 7).transfers, 0);
        assert!(!folder.join("one.path").exists());
    }

    /// Who looks at a file in the moment in which it is made does not keep its master from having it.
    #[test]
    fn looks_are_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("one.path");
        let own = File::create_new(&path).unwrap();
        let look = File::open(&path).unwrap();
        look.try_lock_shared().unwrap();
        assert!(matches!(lock(&own, 3), Err(TryLockError::WouldBlock)));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(5 * LOCK_PAUSE);
                drop(look);
            });
            // More than it takes on the busiest machine.
            lock(&own, 100_000).unwrap();
        });
        let look = File::open(&path).unwrap();
        assert!(look.try_lock_shared().is_err());
    }

    /// What a killed master left is no neighbour, and is removed; what makes no sense neither.
    #[test]
    fn leftovers() {
        let folder = tempfile::tempdir().unwrap();
        let claim = Claim::new(&ends("10.0.0.1", "2001:db8:7::1"), 3);
        assert_eq!(Claim::parse(&claim.format()), Some(claim.clone()));
        assert_eq!(Claim::parse("a\nb\n7\n"), None, "cut short");
        assert_eq!(Claim::parse("a\nb\n-7\nend\n"), None);
        fs::write(folder.path().join("dead.path"), claim.format()).unwrap();
        fs::write(folder.path().join("other.sock"), claim.format()).unwrap();
        let mut one = Sharing::new(Some(folder.path()), "one");
        let seen = one.look(&ends("10.0.0.1", "2001:db8:7::1"), 1);
        assert_eq!(seen, Others::default());
        assert!(!folder.path().join("dead.path").exists());
        clear_paths(folder.path());
        assert!(folder.path().join("one.path").exists());
        assert!(folder.path().join("other.sock").exists());
        // What was never written hides nobody, and goes when it is old.
        for at in 0..1000 {
            File::create(folder.path().join(format!("{at}.path"))).unwrap();
        }
        let old = File::create(folder.path().join("old.path")).unwrap();
        let then = std::time::SystemTime::now() - 2 * MADE_WITHIN;
        old.set_modified(then).unwrap();
        drop(old);
        let mut other = Sharing::new(Some(folder.path()), "other");
        let seen = other.look(&ends("10.0.0.1", "2001:db8:7::1"), 1);
        assert_eq!(seen.transfers, 1);
        assert!(!folder.path().join("old.path").exists());
        assert!(folder.path().join("7.path").exists());
        let mut lost = Sharing::new(Some(Path::new("/proc/none")), "one");
        assert_eq!(
            lost.look(&ends("10.0.0.1", "10.0.0.2"), 1),
            Others::default()
        );
    }
}
