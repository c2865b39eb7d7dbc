//! The manifest as bytes, and the checks on bytes from a peer.
//!
//! ```text
//!  "RWMF" | version u16 | reserved u16 = 0 | entries u32
//!  per entry:
//!    kind u8 | mode u16 | mtime_seconds i64 | mtime_nanoseconds u32 | path length u16 | path
//!    kind 0, file:      length u64
//!    kind 1, directory: nothing
//!    kind 2, symlink:   target length u16 | target
//!    kind 3, hard link: length u16 | path of the file, an earlier entry of kind 0 or 4 to 7
//!    kind 4, pipe; kind 5, socket: nothing
//!    kind 6, character device; kind 7, block device: major u32 | minor u32
//!    kind + 16:         then uid u32 | gid u32 | user length u16 | user | group length u16 | group
//!    kind + 32:         then count u16 >= 1 | per attribute: name length u16 | name | value length u32 | value
//! ```
//!
//! Little endian. The root of a bundle is a directory of mode 0x8000 and time 0. There is exactly one encoding of a tree, so the hash of these bytes names it.

use std::sync::Arc;

use super::{Attribute, Device, Entry, EntryKind, Kept, Manifest, Owner, Special, parent_of};

/// Longest path below the root: what one system call takes on Linux, less the closing NUL.
pub const PATH_LEN_MAX: usize = ropewalk_model::journal::PATH_LEN_MAX;
/// Longest name of one file or directory.
pub const COMPONENT_LEN_MAX: usize = 255;

const MAGIC: [u8; 4] = *b"RWMF";
const VERSION: u16 = 4;
/// Bytes of the shortest entry, the root directory: bounds what a count can make us allocate.
const ENTRY_LEN_MIN: usize = 1 + 2 + 8 + 4 + 2;
const KIND_FILE: u8 = 0;
const KIND_DIRECTORY: u8 = 1;
const KIND_SYMLINK: u8 = 2;
const KIND_HARD_LINK: u8 = 3;
const KIND_PIPE: u8 = 4;
const KIND_SOCKET: u8 = 5;
const KIND_CHARACTER: u8 = 6;
const KIND_BLOCK: u8 = 7;
const HAS_OWNER: u8 = 16;
const HAS_ATTRIBUTES: u8 = 32;

/// Why a tree or the bytes of a manifest were refused. Paths are shown escaped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// The bytes end in the middle of something, or go on after the end.
    #[error("manifest of {len} bytes is cut off or goes on at byte {at}; fetch it again")]
    Length {
        /// Bytes given.
        len: usize,
        /// Where reading stopped.
        at: usize,
    },
    /// Not a manifest, or of a version this program does not know.
    #[error("not a manifest of version {VERSION}; use the same version of Ropewalk on every host")]
    Version,
    /// More entries than a manifest can number, or none.
    #[error("a manifest of {0} entries is refused; split the tree")]
    Count(u64),
    /// A path that is absolute, too long, or has a component that is empty, `.`, `..` or too long.
    #[error(
        "path \"{0}\" is refused: it must be relative, without NUL, empty, . or .. components, with names of at most {COMPONENT_LEN_MAX} and paths of at most {PATH_LEN_MAX} bytes"
    )]
    Path(String),
    /// An entry that is out of order or there twice.
    #[error("entry \"{0}\" is out of order or there twice; the manifest is damaged")]
    Order(String),
    /// An entry without a directory to lie in, or a root that is a symbolic link.
    #[error("entry \"{0}\" lies in no directory of the manifest; the manifest is damaged")]
    Orphan(String),
    /// A kind, mode, time or link target that no file has.
    #[error("entry \"{0}\" has an impossible kind, mode, time or target; the manifest is damaged")]
    Value(String),
    /// The files together are longer than the data space can be.
    #[error("the files up to \"{0}\" are longer than 64 bits can address; split the tree")]
    TooLong(String),
}

impl Manifest {
    /// The canonical bytes. Cost O(bytes).
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let names: usize = self.entries.iter().map(|entry| entry.path.len() + 32).sum();
        let mut out = Vec::with_capacity(names + 12);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&(self.entries.len() as u32).to_le_bytes());
        for entry in &self.entries {
            let kind = match entry.kind {
                EntryKind::File { .. } => KIND_FILE,
                EntryKind::Directory => KIND_DIRECTORY,
                EntryKind::Symlink { .. } => KIND_SYMLINK,
                EntryKind::HardLink { .. } => KIND_HARD_LINK,
                EntryKind::Special(special) => match special {
                    Special::Pipe => KIND_PIPE,
                    Special::Socket => KIND_SOCKET,
                    Special::Character(_) => KIND_CHARACTER,
                    Special::Block(_) => KIND_BLOCK,
                },
            };
            out.push(kind | flags(&entry.kept));
            out.extend_from_slice(&(entry.mode as u16).to_le_bytes());
            out.extend_from_slice(&entry.mtime_seconds.to_le_bytes());
            out.extend_from_slice(&entry.mtime_nanoseconds.to_le_bytes());
            encode_name(&mut out, &entry.path);
            match &entry.kind {
                EntryKind::File { len } => out.extend_from_slice(&len.to_le_bytes()),
                EntryKind::Directory => {}
                EntryKind::Symlink { target: name } | EntryKind::HardLink { to: name } => {
                    encode_name(&mut out, name);
                }
                EntryKind::Special(Special::Pipe | Special::Socket) => {}
                EntryKind::Special(Special::Character(device) | Special::Block(device)) => {
                    out.extend_from_slice(&device.major.to_le_bytes());
                    out.extend_from_slice(&device.minor.to_le_bytes());
                }
            }
            encode_kept(&mut out, &entry.kept);
        }
        out
    }

    /// Reads and checks canonical bytes, trusting nothing in them.
    ///
    /// Memory is bounded by a small multiple of `bytes`. Cost O(bytes × log entries).
    ///
    /// # Errors
    /// [`ManifestError`] says which entry breaks which rule.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        let mut input = Input { bytes, at: 0 };
        if input.array::<4>()? != MAGIC
            || u16::from_le_bytes(input.array()?) != VERSION
            || input.array::<2>()? != [0; 2]
        {
            return Err(ManifestError::Version);
        }
        let count = u32::from_le_bytes(input.array()?);
        if count == 0 {
            return Err(ManifestError::Count(0));
        }
        let possible = (bytes.len() - input.at) / ENTRY_LEN_MIN;
        let mut entries = Vec::with_capacity(possible.min(count as usize));
        for _ in 0..count {
            entries.push(decode_entry(&mut input)?);
        }
        if input.at != bytes.len() {
            return Err(ManifestError::Length {
                len: bytes.len(),
                at: input.at,
            });
        }
        let manifest = Self { entries };
        manifest.check()?;
        Ok(manifest)
    }

    /// Checks the invariant of [`Manifest`].
    ///
    /// # Errors
    /// [`ManifestError`] for the first entry that breaks it.
    pub fn check(&self) -> Result<(), ManifestError> {
        let count = self.entries.len() as u64;
        if count == 0 || count > u64::from(u32::MAX) {
            return Err(ManifestError::Count(count));
        }
        let mut total: u64 = 0;
        // The folder of the entry before, which is mostly that of the next one.
        let mut known: Option<&[u8]> = None;
        for (index, entry) in self.entries.iter().enumerate() {
            let before = &self.entries[..index];
            let shown = || entry.path.escape_ascii().to_string();
            check_path(&entry.path)
                .then_some(())
                .ok_or_else(|| ManifestError::Path(shown()))?;
            (check_values(entry) && check_link(before, entry))
                .then_some(())
                .ok_or_else(|| ManifestError::Value(shown()))?;
            if before.last().is_some_and(|last| last.path >= entry.path) {
                return Err(ManifestError::Order(shown()));
            }
            let placed = match parent_of(&entry.path) {
                None => !matches!(
                    entry.kind,
                    EntryKind::Symlink { .. } | EntryKind::HardLink { .. }
                ),
                Some(parent) => known == Some(parent) || is_directory(before, parent),
            };
            placed
                .then_some(())
                .ok_or_else(|| ManifestError::Orphan(shown()))?;
            known = parent_of(&entry.path);
            total = total
                .checked_add(entry.len())
                .ok_or_else(|| ManifestError::TooLong(shown()))?;
        }
        Ok(())
    }
}

fn encode_name(out: &mut Vec<u8>, name: &[u8]) {
    // Names are bounded by PATH_LEN_MAX, which `check` holds scanned and decoded manifests to.
    out.extend_from_slice(&(name.len() as u16).to_le_bytes());
    out.extend_from_slice(name);
}

fn decode_entry(input: &mut Input<'_>) -> Result<Entry, ManifestError> {
    let [tag] = input.array()?;
    let mode = u32::from(u16::from_le_bytes(input.array()?));
    let mtime_seconds = i64::from_le_bytes(input.array()?);
    let mtime_nanoseconds = u32::from_le_bytes(input.array()?);
    let path = input.name()?;
    let kind = match tag & !(HAS_OWNER | HAS_ATTRIBUTES) {
        KIND_FILE => EntryKind::File {
            len: u64::from_le_bytes(input.array()?),
        },
        KIND_DIRECTORY => EntryKind::Directory,
        KIND_SYMLINK => EntryKind::Symlink {
            target: input.name()?,
        },
        KIND_HARD_LINK => EntryKind::HardLink { to: input.name()? },
        KIND_PIPE => EntryKind::Special(Special::Pipe),
        KIND_SOCKET => EntryKind::Special(Special::Socket),
        KIND_CHARACTER => EntryKind::Special(Special::Character(decode_device(input)?)),
        KIND_BLOCK => EntryKind::Special(Special::Block(decode_device(input)?)),
        _ => return Err(ManifestError::Value(path.escape_ascii().to_string())),
    };
    Ok(Entry {
        kept: decode_kept(input, tag, &path)?,
        path,
        kind,
        mode,
        mtime_seconds,
        mtime_nanoseconds,
    })
}

fn decode_device(input: &mut Input<'_>) -> Result<Device, ManifestError> {
    Ok(Device {
        major: u32::from_le_bytes(input.array()?),
        minor: u32::from_le_bytes(input.array()?),
    })
}

fn flags(kept: &Kept) -> u8 {
    let owner = kept.owner.as_ref().map_or(0, |_| HAS_OWNER);
    match kept.attributes.is_empty() {
        true => owner,
        false => owner | HAS_ATTRIBUTES,
    }
}

fn encode_kept(out: &mut Vec<u8>, kept: &Kept) {
    if let Some(owner) = &kept.owner {
        out.extend_from_slice(&owner.uid.to_le_bytes());
        out.extend_from_slice(&owner.gid.to_le_bytes());
        encode_name(out, &owner.user);
        encode_name(out, &owner.group);
    }
    if !kept.attributes.is_empty() {
        out.extend_from_slice(&(kept.attributes.len() as u16).to_le_bytes());
    }
    for attribute in &kept.attributes {
        encode_name(out, &attribute.name);
        out.extend_from_slice(&(attribute.value.len() as u32).to_le_bytes());
        out.extend_from_slice(&attribute.value);
    }
}

fn decode_kept(input: &mut Input<'_>, tag: u8, path: &[u8]) -> Result<Kept, ManifestError> {
    let mut kept = Kept::default();
    if tag & HAS_OWNER != 0 {
        kept.owner = Some(Arc::new(Owner {
            uid: u32::from_le_bytes(input.array()?),
            gid: u32::from_le_bytes(input.array()?),
            user: input.name()?,
            group: input.name()?,
        }));
    }
    if tag & HAS_ATTRIBUTES != 0 {
        let count = u16::from_le_bytes(input.array()?);
        if count == 0 {
            return Err(ManifestError::Value(path.escape_ascii().to_string()));
        }
        for _ in 0..count {
            let name = input.name()?;
            let len = u32::from_le_bytes(input.array()?);
            let value = input.take(len as usize)?.to_vec();
            kept.attributes.push(Attribute { name, value });
        }
    }
    Ok(kept)
}

/// Why a scanned entry can be in no manifest, in words. Its folder is in one, and its path is not too long.
///
/// * `name`: its name in the folder.
pub(super) fn oddity(entry: &Entry, name: &[u8]) -> Option<&'static str> {
    if name.len() > COMPONENT_LEN_MAX {
        return Some("its name is too long");
    }
    // The kernel gives no name with a slash.
    if !is_name(name) {
        return Some("its name is impossible");
    }
    if check_values(entry) {
        return None;
    }
    Some(match &entry.kind {
        EntryKind::Symlink { target } if target.is_empty() => "its target is empty",
        _ => "its time, target or attributes are impossible",
    })
}

fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.len() <= COMPONENT_LEN_MAX && name != b"." && name != b".."
}

fn check_path(path: &[u8]) -> bool {
    path.is_empty()
        || (path.len() <= PATH_LEN_MAX
            && !path.contains(&0)
            && path.split(|byte| *byte == b'/').all(is_name))
}

fn check_values(entry: &Entry) -> bool {
    let target_fits = match &entry.kind {
        EntryKind::Symlink { target } => {
            !target.is_empty() && target.len() <= PATH_LEN_MAX && !target.contains(&0)
        }
        EntryKind::HardLink { .. } => entry.kept == Kept::default(),
        EntryKind::File { .. } | EntryKind::Directory => true,
        // They are recorded with owners: the receiver knows by these that special files are part of the copy.
        EntryKind::Special(_) => entry.kept.owner.is_some(),
    };
    let made_up = entry.is_of_none()
        && entry.path.is_empty()
        && entry.kind == EntryKind::Directory
        && (entry.mtime_seconds, entry.mtime_nanoseconds) == (0, 0)
        && entry.kept == Kept::default();
    target_fits
        && entry.kept.is_valid()
        && (entry.mode <= 0o7777 || made_up)
        && entry.mtime_nanoseconds < 1_000_000_000
}

/// Whether a further name is one of a file before it, with mode and time of that.
fn check_link(before: &[Entry], entry: &Entry) -> bool {
    let EntryKind::HardLink { to } = &entry.kind else {
        return true;
    };
    let found = before.binary_search_by(|known| known.path.cmp(to));
    found.is_ok_and(|at| {
        let file = &before[at];
        let times = |entry: &Entry| (entry.mtime_seconds, entry.mtime_nanoseconds);
        matches!(file.kind, EntryKind::File { .. } | EntryKind::Special(_))
            && (file.mode, times(file)) == (entry.mode, times(entry))
    })
}

fn is_directory(sorted: &[Entry], path: &[u8]) -> bool {
    let found = sorted.binary_search_by(|entry| entry.path.as_slice().cmp(path));
    found.is_ok_and(|at| sorted[at].kind == EntryKind::Directory)
}

struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Input<'_> {
    fn take(&mut self, len: usize) -> Result<&[u8], ManifestError> {
        let cut_off = ManifestError::Length {
            len: self.bytes.len(),
            at: self.at,
        };
        let end = self.at.checked_add(len).ok_or(cut_off.clone())?;
        let taken = self.bytes.get(self.at..end).ok_or(cut_off)?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ManifestError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn name(&mut self) -> Result<Vec<u8>, ManifestError> {
        let len = u16::from_le_bytes(self.array()?);
        self.take(usize::from(len)).map(<[u8]>::to_vec)
    }
}
