//! What `--archive` keeps of an entry beyond its contents, mode and time: owner and group, extended attributes, ACLs.
//!
//! Owners and groups have a number and, if the host of the source knows one, a name: the receiver prefers its own number of the
//! name. ACLs are the attributes `system.posix_acl_access` and `system.posix_acl_default`; they name users by number.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::Stat;
use rustix::io::Errno;

use crate::sys::names;

/// Longest name of an attribute, of a user and of a group, in bytes: of attributes the kernel's limit.
pub(super) const NAME_LEN_MAX: usize = 255;
/// Longest value of an attribute: the kernel's limit.
pub(super) const VALUE_LEN_MAX: usize = 1 << 16;
/// Most attributes of an entry: the kernel's list of names holds 64 KiB.
pub(super) const ATTRIBUTES_MAX: usize = 1 << 14;

/// What is recorded of each entry of a tree beyond contents, mode and time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keep {
    /// Owner and group; the copy then has set-id bits, too.
    pub owners: bool,
    /// Extended attributes and ACLs.
    pub attributes: bool,
    /// Which names are of one file.
    pub links: bool,
    /// Pipes, sockets and devices; with owners only.
    pub specials: bool,
}

/// What an entry has of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// `None`: not recorded.
    pub owner: Option<Arc<Owner>>,
    /// Sorted by name, each once.
    pub attributes: Vec<Attribute>,
}

/// Owner and group of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Number of the user at the source.
    pub uid: u32,
    /// Number of the group at the source.
    pub gid: u32,
    /// Name of the user there; empty if there is none.
    pub user: Vec<u8>,
    /// Name of the group there; empty if there is none.
    pub group: Vec<u8>,
}

/// An extended attribute.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attribute {
    /// With its namespace: `user.`, `trusted.`, `security.capability`, or an ACL.
    pub name: Vec<u8>,
    /// Any bytes.
    pub value: Vec<u8>,
}

/// Whether an attribute is part of a copy. Others belong to the host: labels of security modules, properties of file systems.
pub(crate) fn is_copied(name: &[u8]) -> bool {
    let user = name
        .strip_prefix(b"user.")
        .is_some_and(|rest| !rest.is_empty());
    let trusted = name
        .strip_prefix(b"trusted.")
        .is_some_and(|rest| !rest.is_empty());
    let acl = [&b"system.posix_acl_access"[..], b"system.posix_acl_default"];
    user || trusted || name == b"security.capability" || acl.contains(&name)
}

impl Kept {
    /// Whether a peer may have sent it.
    pub(super) fn is_valid(&self) -> bool {
        let names_fit = |owner: &Arc<Owner>| {
            [&owner.user, &owner.group]
                .iter()
                .all(|name| name.len() <= NAME_LEN_MAX && !name.contains(&0))
        };
        let fits = |attribute: &Attribute| {
            attribute.name.len() <= NAME_LEN_MAX
                && attribute.value.len() <= VALUE_LEN_MAX
                && !attribute.name.contains(&0)
                && is_copied(&attribute.name)
        };
        self.owner.as_ref().is_none_or(names_fit)
            && self.attributes.len() <= ATTRIBUTES_MAX
            && self.attributes.iter().all(fits)
            && self.attributes.is_sorted_by(|a, b| a.name < b.name)
    }
}

/// Reads it from disk.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    keep: Keep,
    owners: HashMap<(u32, u32), Arc<Owner>>,
    /// Attributes that could not be read.
    pub unread: u64,
}

impl Reader {
    pub(crate) fn new(keep: Keep) -> Self {
        Self {
            keep,
            ..Self::default()
        }
    }

    /// What it reads.
    pub fn keep(&self) -> Keep {
        self.keep
    }

    /// Of an entry of an open folder, and not of what it may link to.
    pub fn read(&mut self, folder: BorrowedFd<'_>, name: &[u8], stat: &Stat) -> Kept {
        let mut kept = Kept {
            owner: self.keep.owners.then(|| self.owner(stat)),
            attributes: Vec::new(),
        };
        if self.keep.attributes {
            let mut path = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
            path.push(OsStr::from_bytes(name));
            kept.attributes = self.values(
                list_of(|buffer| rustix::fs::llistxattr(&path, buffer)),
                |name, buffer| rustix::fs::lgetxattr(&path, name, buffer),
            );
        }
        kept
    }

    /// Of an open file or folder.
    pub fn read_opened(&mut self, opened: BorrowedFd<'_>, stat: &Stat) -> Kept {
        let path = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
        Kept {
            owner: self.keep.owners.then(|| self.owner(stat)),
            attributes: match self.keep.attributes {
                true => self.values(
                    list_of(|buffer| rustix::fs::listxattr(&path, buffer)),
                    |name, buffer| rustix::fs::getxattr(&path, name, buffer),
                ),
                false => Vec::new(),
            },
        }
    }

    fn owner(&mut self, stat: &Stat) -> Arc<Owner> {
        let (uid, gid) = (stat.st_uid, stat.st_gid);
        let known = self.owners.entry((uid, gid)).or_insert_with(|| {
            let fits = |name: &Vec<u8>| name.len() <= NAME_LEN_MAX;
            Arc::new(Owner {
                uid,
                gid,
                user: names::user_name(uid).filter(fits).unwrap_or_default(),
                group: names::group_name(gid).filter(fits).unwrap_or_default(),
            })
        });
        Arc::clone(known)
    }

    fn values(
        &mut self,
        list: Result<Vec<u8>, Errno>,
        get: impl Fn(&[u8], &mut [u8]) -> Result<usize, Errno>,
    ) -> Vec<Attribute> {
        let list = match list {
            Ok(list) => list,
            // The file system has none.
            Err(Errno::NOTSUP | Errno::NOENT) => return Vec::new(),
            Err(_) => {
                self.unread += 1;
                return Vec::new();
            }
        };
        let mut found = Vec::new();
        let names = list.split(|byte| *byte == 0);
        for name in names.filter(|name| is_copied(name)) {
            match list_of(|buffer| get(name, buffer)) {
                Ok(value) => found.push(Attribute {
                    name: name.to_vec(),
                    value,
                }),
                // Removed meanwhile.
                Err(Errno::NODATA) => {}
                Err(_) => self.unread += 1,
            }
        }
        found.sort();
        found
    }
}

/// Calls with a larger buffer until what is asked for fits.
fn list_of(call: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; 256];
    loop {
        match call(&mut buffer) {
            Ok(len) => {
                buffer.truncate(len);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < VALUE_LEN_MAX => buffer = vec![0; VALUE_LEN_MAX],
            Err(errno) => return Err(errno),
        }
    }
}
