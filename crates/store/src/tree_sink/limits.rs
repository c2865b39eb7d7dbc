//! What names and lengths the destination's file system has, found by trial: an empty file is made and removed for each odd property that
//! names of the tree have. Local file systems of Linux have all names and all lengths, and are not asked.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::file_systems::FileSystem;
use crate::manifest::{Entry, last_name};
use crate::sys;

/// What a name may have that not every file system allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Odd {
    Byte(u8),
    /// It is not UTF-8.
    Bytes,
    /// It ends in this byte, which some file systems leave away.
    End(u8),
}

/// Bytes that Windows has in no name, and what its file systems refuse with them.
fn is_odd(byte: u8) -> bool {
    byte < b' ' || b"\"*:<>?\\|\x7f".contains(&byte)
}

/// What is odd about a name.
fn odd(name: &[u8]) -> impl Iterator<Item = Odd> {
    let bytes = name.iter().copied().filter(|byte| is_odd(*byte));
    let end = name.last().copied().filter(|byte| b". ".contains(byte));
    let is_text = name.is_ascii() || std::str::from_utf8(name).is_ok();
    let bytes = bytes.map(Odd::Byte).chain(end.map(Odd::End));
    bytes.chain((!is_text).then_some(Odd::Bytes))
}

impl Odd {
    /// The end of a name that is odd in this way alone.
    fn sample(self) -> Vec<u8> {
        match self {
            Self::Byte(byte) => vec![byte, b'x'],
            Self::Bytes => vec![0xff],
            Self::End(byte) => vec![byte],
        }
    }

    /// Why a name that has it is not possible.
    fn reason(self) -> String {
        let what = match self {
            Self::Byte(byte) if byte.is_ascii_graphic() => {
                format!("names with {}", char::from(byte))
            }
            Self::Byte(_) => "names with control characters".into(),
            Self::Bytes => "names that are not UTF-8".into(),
            Self::End(b' ') => "names that end in a space".into(),
            Self::End(_) => "names that end in a dot".into(),
        };
        format!("the file system there has no {what}")
    }
}

/// What a file system does not have.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Limits {
    odd: BTreeSet<Odd>,
    /// Of a name, in bytes.
    name_len: Option<usize>,
    /// Of a file, and whose limit it is.
    file_len: Option<(u64, String)>,
    /// It takes names for one that differ in case only.
    pub ignores_case: bool,
}

/// Names of the tree as far as they are odd.
#[derive(Debug, Default)]
struct Names {
    odd: BTreeSet<Odd>,
    longest: usize,
}

impl Limits {
    /// Those of the file system of a folder, as far as entries meet them. Where nothing can be made in the folder none is found.
    ///
    /// * `begin`: what names of trials begin with; it has letters.
    pub fn of(folder: &OwnedFd, entries: &[Entry], begin: &[u8]) -> Self {
        let mut limits = Self::default();
        limits.limit_files(folder);
        let system = FileSystem::of(folder);
        if system.is_none_or(FileSystem::is_local) {
            return limits;
        }
        let mut names = Names::default();
        for entry in entries {
            let name = last_name(&entry.path);
            names.odd.extend(odd(name));
            names.longest = names.longest.max(name.len());
        }
        let is_refused =
            |name: &[u8]| matches!(attempt(folder, name, || ()), Err(errno) if is_of_name(errno));
        let known = rustix::fs::fstatvfs(folder).map_or(0, |known| known.f_namemax as usize);
        if known > 0 && names.longest > known {
            let long = [begin, &vec![b'x'; names.longest]].concat();
            limits.name_len = is_refused(&long[..names.longest]).then_some(known);
        }
        let is_cut = |odd: Odd, name: &[u8]| match odd {
            // Made under another name.
            Odd::End(_) => finds(folder, name, begin),
            _ => false,
        };
        let all = names
            .odd
            .into_iter()
            .map(|odd| (odd, [begin, &odd.sample()].concat()));
        let refused = all.filter(|(odd, name)| is_refused(name) || is_cut(*odd, name));
        limits.odd = refused.map(|(odd, _)| odd).collect();
        limits.ignores_case = finds(folder, begin, &begin.to_ascii_uppercase());
        limits
    }

    fn limit_files(&mut self, folder: &OwnedFd) {
        let own = getrlimit(Resource::Fsize).current;
        let own = own.map(|most| {
            (
                most,
                format!("longer than the {most} bytes that its process may write (ulimit -f)"),
            )
        });
        let system = FileSystem::of(folder).and_then(FileSystem::file_len_max);
        let system = system.map(|most| {
            (
                most,
                format!(
                    "longer than the {most} bytes that a file may have in the file system there"
                ),
            )
        });
        self.file_len = own.into_iter().chain(system).min();
    }

    /// Whether it has all that the tree has.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Why an entry is not possible, by itself.
    pub fn refuse(&self, entry: &Entry) -> Option<String> {
        let name = last_name(&entry.path);
        if let Some((most, reason)) = &self.file_len
            && entry.len() > *most
        {
            return Some(reason.clone());
        }
        if let Some(most) = self.name_len.filter(|most| name.len() > *most) {
            return Some(format!(
                "the name is longer than the {most} bytes that names have in the file system there"
            ));
        }
        let first = match self.odd.is_empty() {
            true => None,
            false => odd(name).find(|one| self.odd.contains(one)),
        };
        first.map(Odd::reason)
    }
}

/// Whether a system call says that a name is not possible.
fn is_of_name(errno: Errno) -> bool {
    matches!(errno, Errno::INVAL | Errno::ILSEQ | Errno::NAMETOOLONG)
}

/// Makes a file, removes it, and gives what was seen meanwhile.
fn attempt<T>(folder: &OwnedFd, name: &[u8], look: impl FnOnce() -> T) -> Result<T, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR)?;
    let seen = look();
    let _ = rustix::fs::unlinkat(folder, name, AtFlags::empty());
    Ok(seen)
}

/// Whether a file that is made under one name is found under another one.
fn finds(folder: &OwnedFd, made: &[u8], found: &[u8]) -> bool {
    let look = || sys::stat_entry(folder.as_fd(), found).is_ok();
    attempt(folder, made, look).unwrap_or(false)
}

/// Entries whose paths differ from that of an earlier one in case only, with that one, by number.
pub(super) fn alike(entries: &[Entry]) -> Vec<(u32, u32)> {
    let folded = |entry: &Entry| String::from_utf8_lossy(&entry.path).to_lowercase();
    let hasher = RandomState::new();
    // A hash of each is enough: the paths of the others are there.
    let mut known: HashMap<u64, u32> = HashMap::with_capacity(entries.len());
    let mut alike = Vec::new();
    for (object, entry) in (0..).zip(entries) {
        let path = folded(entry);
        let first = *known.entry(hasher.hash_one(&path)).or_insert(object);
        if first != object && folded(&entries[first as usize]) == path {
            alike.push((object, first));
        }
    }
    alike
}

/// A path as a person reads it.
pub(super) fn shown(entry: &Entry) -> String {
    OsStr::from_bytes(&entry.path)
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Odd properties of names are seen, each once in a set, and plain names have none.
    #[test]
    fn odd_names_are_known() {
        let found = |name: &[u8]| odd(name).collect::<BTreeSet<_>>();
        for plain in [
            &b"plain.tar.gz"[..],
            "größe".as_bytes(),
            b" x",
            b".x",
            b"a b",
        ] {
            assert_eq!(found(plain), BTreeSet::new());
        }
        let both = BTreeSet::from([Odd::Byte(b':'), Odd::Byte(b'?')]);
        assert_eq!(found(b"a:b?c:"), both);
        assert_eq!(found(b"end."), BTreeSet::from([Odd::End(b'.')]));
        assert_eq!(
            found(b"\xff\n "),
            BTreeSet::from([Odd::Bytes, Odd::Byte(b'\n'), Odd::End(b' ')])
        );
        // What is tried is odd in no other way.
        for one in [
            Odd::Byte(b'|'),
            Odd::Byte(1),
            Odd::Bytes,
            Odd::End(b'.'),
            Odd::End(b' '),
        ] {
            let name = [&b".probe"[..], &one.sample()].concat();
            assert_eq!(found(&name), BTreeSet::from([one]));
        }
    }
}
