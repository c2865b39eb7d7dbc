//! Owner, group, extended attributes and ACLs of the entries of a copy, as far as the file system and permissions allow; the
//! others are counted.
//!
//! ```text
//!  attributes, time -> owner, group -> ACLs -> mode -> set-id bits -> security.capability
//! ```
//!
//! Attributes of users need the right to write, which the mode may take away. Until it has its owner and group no other user gets rights:
//! those of the mode are meant for that group. A new owner takes set-id bits and capabilities away.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Gid, Stat, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::Tree;
use super::standing::{MODE_MASK, SET_BITS, mode_of};
use crate::manifest::{Attribute, Entry, EntryKind, Keep, Owner, Reader};
use crate::open_files::lock;
use crate::sys::{self, names};

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
/// Of a mode: a process that runs the file has its group's rights.
const SET_GROUP_BIT: u32 = 0o2000;

const CAPABILITY: &[u8] = b"security.capability";

/// Of a mode: the rights of a group.
const GROUP: u32 = 0o070;

/// What the access ACL of an entry gives to the owning group, as digits of a mode; `None` without such an ACL. Its layout is that of
/// Linux, `posix_acl_xattr.h`: a version, then tag, rights and number of each.
fn group_rights(entry: &Entry) -> Option<u32> {
    const VERSION_LEN: usize = 4;
    const LEN: usize = 8;
    const OWNING_GROUP: [u8; 2] = 0x04_u16.to_le_bytes();
    let mut attributes = entry.kept.attributes.iter();
    let acl = attributes.find(|attribute| attribute.name == ACCESS_ACL)?;
    let mut entries = acl.value.get(VERSION_LEN..)?.chunks_exact(LEN);
    let group = entries.find(|one| one.starts_with(&OWNING_GROUP))?;
    Some(u32::from(group[2] & 7) << 3)
}

/// What became of owners and attributes, and numbers of users that were looked up.
#[derive(Debug, Default)]
pub(super) struct KeptState {
    /// Entries with another owner or group than at the source.
    strange: HashSet<u32>,
    /// How many attributes entries lack.
    lacking: HashMap<u32, u64>,
    /// Entries that have the set-id bits of the source.
    with_bits: HashSet<u32>,
    users: HashMap<Vec<u8>, Option<u32>>,
    groups: HashMap<Vec<u8>, Option<u32>>,
}

impl KeptState {
    /// The numbers that this host gives to an owner.
    fn ids(&mut self, owner: &Owner) -> (u32, u32) {
        let number = |known: &mut HashMap<_, _>, name: &Vec<u8>, find: fn(&[u8]) -> Option<u32>| {
            let known = known.entry(name.clone());
            *known.or_insert_with(|| find(name))
        };
        let user = number(&mut self.users, &owner.user, names::user_id);
        let group = number(&mut self.groups, &owner.group, names::group_id);
        (user.unwrap_or(owner.uid), group.unwrap_or(owner.gid))
    }
}

fn has_capability(entry: &Entry) -> bool {
    let mut attributes = entry.kept.attributes.iter();
    attributes.any(|attribute| attribute.name == CAPABILITY)
}

/// Whether who runs it gets rights: of its owner or group, or others.
fn gives_rights(entry: &Entry) -> bool {
    let has_bits = entry.kept.owner.is_some() && entry.mode & SET_BITS != 0;
    entry.kind != EntryKind::Directory && (has_bits || has_capability(entry))
}

impl Tree {
    /// Mode, time and all that is kept of a file or folder; the mode that it has then.
    ///
    /// * `opened`: an `O_PATH` descriptor.
    /// * `inherited`: bits that a folder has from the one above it.
    pub(super) fn set_all(
        &self,
        opened: BorrowedFd<'_>,
        object: u32,
        entry: &Entry,
        inherited: u32,
        times: &Timestamps,
    ) -> Result<u32, Errno> {
        let plain = entry.mode & MODE_MASK | inherited;
        let Some(owner) = &entry.kept.owner else {
            self.set_attributes(opened, object, entry, |_| true);
            sys::set_metadata(opened, plain, times)?;
            return Ok(plain);
        };
        let is_special = |name: &[u8]| [ACCESS_ACL, DEFAULT_ACL, CAPABILITY].contains(&name);
        // Before it has another owner.
        let stat = rustix::fs::fstat(opened)?;
        let is_trusted = self.is_trusted(&stat, object);
        self.set_attributes(opened, object, entry, |name| !is_special(name));
        self.remove_inherited(opened, entry);
        sys::set_times(opened, times)?;
        let mut mode = entry.mode & MODE_MASK;
        let path = descriptor(opened);
        let give = |user, group| {
            rustix::fs::chownat(rustix::fs::CWD, &path, user, group, AtFlags::empty())
        };
        let was = (stat.st_uid, stat.st_gid);
        let mut is_owned = lock(&self.kept_state).ids(owner) == was;
        if is_owned {
            lock(&self.kept_state).strange.remove(&object);
        } else {
            // Rights that it has now and is to have in the end: others are meant for its new group, or its old one.
            let between = stat.st_mode & mode;
            if between != stat.st_mode & 0o7777 {
                sys::set_mode(opened, between)?;
            }
            is_owned = self.set_owner(object, owner, give);
            // Asked once.
            let may_change = || sys::set_mode(opened, between) != Err(Errno::PERM);
            if is_owned && !*self.may_change_others.get_or_init(may_change) {
                // This process may give it away, and then change nothing of it.
                let (user, group) = (Uid::from_raw(was.0), Gid::from_raw(was.1));
                give(Some(user), Some(group))?;
                mode = self.set_rights(opened, object, entry)?;
                // Notes what it could not give.
                self.set_owner(object, owner, give);
                self.note_lacking(object, usize::from(has_capability(entry)));
                return Ok(mode);
            }
        }
        mode = self.set_rights(opened, object, entry)?;
        let bits = entry.mode & SET_BITS;
        if is_owned && is_trusted && bits != 0 && sys::set_mode(opened, mode | bits).is_ok() {
            mode |= bits;
            lock(&self.kept_state).with_bits.insert(object);
        } else if !is_owned && inherited != 0 && sys::set_mode(opened, mode | inherited).is_ok() {
            mode |= inherited;
        }
        if is_trusted {
            self.set_attributes(opened, object, entry, |name| name == CAPABILITY);
        } else {
            self.note_lacking(object, usize::from(has_capability(entry)));
        }
        Ok(mode)
    }

    /// ACLs and mode; the mode that it has then.
    fn set_rights(&self, opened: BorrowedFd<'_>, object: u32, entry: &Entry) -> Result<u32, Errno> {
        let mut mode = entry.mode & MODE_MASK;
        self.set_attributes(opened, object, entry, |name| name == DEFAULT_ACL);
        // The digits of the group are the ACL's mask: without the ACL they would give the group more.
        if self.set_attributes(opened, object, entry, |name| name == ACCESS_ACL) > 0 {
            mode &= !GROUP | group_rights(entry).unwrap_or(GROUP);
        }
        sys::set_mode(opened, mode)?;
        Ok(mode)
    }

    /// Whether a file may get all that the entry has. One that somebody else has put there does not get rights that its contents would use: one
    /// that stands under a name is replaced.
    pub(super) fn is_trusted(&self, stat: &Stat, object: u32) -> bool {
        let entry = self.file_of(object);
        match &entry.kept.owner {
            Some(owner) if gives_rights(entry) => {
                // An owner may have its own rights, and no more.
                let is_own = !has_capability(entry) && entry.mode & SET_GROUP_BIT == 0;
                let is_owner = || stat.st_uid == lock(&self.kept_state).ids(owner).0;
                stat.st_uid == self.user.as_raw() || is_own && is_owner()
            }
            _ => true,
        }
    }

    /// What is kept of a symbolic link.
    pub(super) fn set_link(&self, folder: BorrowedFd<'_>, name: &[u8], object: u32, entry: &Entry) {
        if let Some(owner) = &entry.kept.owner {
            self.set_owner(object, owner, |user, group| {
                rustix::fs::chownat(folder, name, user, group, AtFlags::SYMLINK_NOFOLLOW)
            });
        }
        let path = descriptor(folder).join(std::ffi::OsStr::from_bytes(name));
        let attributes = entry.kept.attributes.iter();
        let failed = attributes.filter(|one| {
            rustix::fs::lsetxattr(&path, &*one.name, &one.value, XattrFlags::empty()).is_err()
        });
        self.note_lacking(object, failed.count());
    }

    /// Whether owner and group are now those of the source.
    fn set_owner(
        &self,
        object: u32,
        owner: &Owner,
        change: impl Fn(Option<Uid>, Option<Gid>) -> Result<(), Errno>,
    ) -> bool {
        let mut state = lock(&self.kept_state);
        let (user, group) = state.ids(owner);
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        let is_set = change(Some(user), Some(group)).is_ok();
        // A user may give a file to any group of its own.
        if !is_set && change(None, Some(group)).is_ok() && user == rustix::process::geteuid() {
            state.strange.remove(&object);
            return true;
        }
        match is_set {
            true => state.strange.remove(&object),
            false => state.strange.insert(object),
        };
        is_set
    }

    /// Sets those attributes whose name is asked for; how many could not be set.
    fn set_attributes(
        &self,
        opened: BorrowedFd<'_>,
        object: u32,
        entry: &Entry,
        is_asked: impl Fn(&[u8]) -> bool,
    ) -> usize {
        let path = descriptor(opened);
        let asked = entry.kept.attributes.iter();
        let asked = asked.filter(|attribute| is_asked(&attribute.name));
        let failed = asked.filter(|attribute| set(&path, attribute).is_err());
        let failed = failed.count();
        self.note_lacking(object, failed);
        failed
    }

    /// An entry has another owner, or what only its owner can set.
    pub(super) fn note_strange(&self, object: u32) {
        lock(&self.kept_state).strange.insert(object);
    }

    fn note_lacking(&self, object: u32, count: usize) {
        if count > 0 {
            *lock(&self.kept_state).lacking.entry(object).or_default() += count as u64;
        }
    }

    /// Removes the ACLs that a folder with a default ACL gives to all new entries.
    fn remove_inherited(&self, opened: BorrowedFd<'_>, entry: &Entry) {
        if !self.inherits_acl() {
            return;
        }
        let path = descriptor(opened);
        let has = |name: &[u8]| entry.kept.attributes.iter().any(|one| one.name == name);
        for name in [ACCESS_ACL, DEFAULT_ACL] {
            if !has(name) {
                // Most have none.
                let _ = rustix::fs::removexattr(&path, name);
            }
        }
    }

    /// Removes from a file that was there the ACLs, attributes of users and capabilities that the source's file has not: they would let
    /// others do what they may not any more. Those that cannot be removed are counted.
    pub(super) fn remove_others(&self, opened: BorrowedFd<'_>, object: u32, entry: &Entry) {
        let path = descriptor(opened);
        let has = |name: &[u8]| entry.kept.attributes.iter().any(|one| one.name == name);
        // Attributes of the superuser are not seen by all sources.
        let is_other = |name: &&[u8]| {
            !has(name)
                && (name.starts_with(b"user.")
                    || [ACCESS_ACL, DEFAULT_ACL, CAPABILITY].contains(name))
        };
        let names = names_of(&path).unwrap_or_default();
        let others = names.split(|byte| *byte == 0).filter(is_other);
        let failed = others.filter(|name| rustix::fs::removexattr(&path, *name).is_err());
        self.note_lacking(object, failed.count());
    }

    /// Removes the attributes that copies get, but for an ACL that new files have from a folder.
    pub(super) fn remove_attributes(&self, path: &Path) -> Result<(), Errno> {
        let names = names_of(path)?;
        let is_given = |name: &&[u8]| {
            let is_inherited = *name == ACCESS_ACL && self.inherits_acl();
            let prefixes: [&[u8]; 3] = [b"user.", b"trusted.", ACCESS_ACL];
            !is_inherited
                && (*name == CAPABILITY || prefixes.iter().any(|prefix| name.starts_with(prefix)))
        };
        let names = names.split(|byte| *byte == 0);
        for name in names.filter(is_given) {
            rustix::fs::removexattr(path, name)?;
        }
        Ok(())
    }

    /// Whether the folder of the temporary name has a default ACL.
    fn inherits_acl(&self) -> bool {
        let path = descriptor(rustix::fd::AsFd::as_fd(&self.stage_parent));
        let get = || rustix::fs::getxattr(&path, DEFAULT_ACL, &mut [0_u8; 1]);
        *self
            .inherits_acl
            .get_or_init(|| matches!(get(), Ok(_) | Err(Errno::RANGE)))
    }

    /// Whether an entry has its own owner and group, which no folder replaces.
    pub(super) fn has_own_group(&self, object: u32, entry: &Entry) -> bool {
        entry.kept.owner.is_some() && !lock(&self.kept_state).strange.contains(&object)
    }

    /// Whether an entry has the set-id bits of the source.
    pub(super) fn has_set_id(&self, object: u32) -> bool {
        lock(&self.kept_state).with_bits.contains(&object)
    }

    /// Whether a file under its final name has mode, owner and attributes of its entry.
    pub(super) fn is_kept(
        &self,
        stat: &Stat,
        object: u32,
        folder: BorrowedFd<'_>,
        name: &[u8],
    ) -> bool {
        let entry = &self.entries[object as usize];
        let keep = Keep {
            owners: false,
            attributes: true,
            links: false,
            specials: false,
        };
        let mode = stat.st_mode & 0o7777;
        let Some(owner) = &entry.kept.owner else {
            return entry.kept.attributes.is_empty() && mode == mode_of(entry);
        };
        let is_owned = lock(&self.kept_state).ids(owner) == (stat.st_uid, stat.st_gid);
        let is_same = is_owned
            && mode == entry.mode & 0o7777
            && Reader::new(keep).read(folder, name, stat).attributes == entry.kept.attributes;
        if is_same && mode & SET_BITS != 0 {
            lock(&self.kept_state).with_bits.insert(object);
        }
        is_same
    }

    /// Entries with another owner or group, and attributes that were not set.
    pub(super) fn not_kept(&self) -> (u64, u64) {
        let state = lock(&self.kept_state);
        (state.strange.len() as u64, state.lacking.values().sum())
    }

    /// Forgets which attributes were not set: a second commit sets them again, but for files that have their names already.
    pub(super) fn forget_lacking(&self) {
        let named = self.named_early();
        lock(&self.kept_state)
            .lacking
            .retain(|object, _| named.contains(object));
    }
}

/// The names of attributes that a file has, each with a zero behind it.
fn names_of(path: &Path) -> Result<Vec<u8>, Errno> {
    let mut names = vec![0; 1 << 16];
    let len = match rustix::fs::listxattr(path, &mut names) {
        Ok(len) => len,
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => 0,
        Err(errno) => return Err(errno),
    };
    names.truncate(len);
    Ok(names)
}

fn set(path: &Path, attribute: &Attribute) -> Result<(), Errno> {
    let (name, value) = (&*attribute.name, &*attribute.value);
    rustix::fs::setxattr(path, name, value, XattrFlags::empty())
}

/// The path of an open file or folder.
fn descriptor(opened: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Kept;

    /// What the group may do is not the mask of the ACL, and damaged ACLs say nothing.
    #[test]
    fn groups_have_their_own_rights() {
        let mut acl = 2_u32.to_le_bytes().to_vec();
        for (tag, rights) in [
            (0x01_u16, 6_u16),
            (0x02, 6),
            (0x04, 0),
            (0x10, 6),
            (0x20, 0),
        ] {
            acl.extend(tag.to_le_bytes());
            acl.extend(rights.to_le_bytes());
            acl.extend(u32::MAX.to_le_bytes());
        }
        let of = |value: &[u8]| {
            let attribute = Attribute {
                name: ACCESS_ACL.to_vec(),
                value: value.to_vec(),
            };
            let entry = Entry {
                path: Vec::new(),
                kind: EntryKind::File { len: 0 },
                mode: 0o660,
                mtime_seconds: 0,
                mtime_nanoseconds: 0,
                kept: Kept {
                    attributes: vec![attribute],
                    ..Kept::default()
                },
            };
            group_rights(&entry)
        };
        assert_eq!(of(&acl), Some(0));
        acl[4 + 2 * 8 + 2] = 5;
        assert_eq!(of(&acl), Some(0o050));
        for len in 0..4 + 2 * 8 {
            assert_eq!(of(&acl[..len]), None);
        }
    }
}
