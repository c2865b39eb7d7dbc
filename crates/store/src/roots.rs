//! The folders that an agent serves, and the check that a path leads nowhere else.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use crate::error::{Operation, StoreError};

/// What may be done below a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading only.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}

/// The folders (or files) that an agent was given.
///
/// A path is resolved, links and `..` included, before it is compared, and stores refuse links on the
/// resolved path when they open it: a link put there in between is found out, not followed.
#[derive(Debug, Clone)]
pub struct Roots {
    // A root that was given twice allows the more of both. Sorted: looked up by each folder above a path, so that a
    // thousand named files cost no million of comparisons.
    roots: BTreeMap<PathBuf, Access>,
}

/// A path as far as it exists, resolved, and what comes after.
struct Resolved {
    path: PathBuf,
    exists: bool,
}

impl Roots {
    /// Resolves the roots themselves, which may be links and must exist.
    ///
    /// # Errors
    /// [`StoreError`] for the first root that does not exist or may not be looked at.
    pub fn new(roots: Vec<(PathBuf, Access)>) -> Result<Self, StoreError> {
        let resolve = |(path, access): (PathBuf, Access)| match std::fs::canonicalize(&path) {
            Ok(resolved) => Ok((resolved, access)),
            Err(error) => Err(StoreError::from_io(Operation::Open, path, &error)),
        };
        let mut allowed = BTreeMap::new();
        for root in roots {
            let (path, access) = resolve(root)?;
            let known = allowed.entry(path).or_insert(access);
            if access == Access::ReadWrite {
                *known = access;
            }
        }
        Ok(Self { roots: allowed })
    }

    /// The roots, resolved, in the order of their paths.
    pub fn iter(&self) -> impl Iterator<Item = (&Path, Access)> {
        self.roots
            .iter()
            .map(|(path, access)| (path.as_path(), *access))
    }

    /// The resolved path of something that exists below a root.
    ///
    /// Relative paths start at the process's working folder.
    ///
    /// # Errors
    /// [`StoreError::OutsideRoot`], also when nothing exists there, so that the caller does not learn what does;
    /// [`StoreError::Vanished`] for a path inside that does not exist.
    pub fn resolve_read(&self, path: &Path) -> Result<PathBuf, StoreError> {
        let resolved = resolve(path).map_err(|error| self.hide(path, error))?;
        if self.access(&resolved.path).is_none() {
            return Err(self.outside(path));
        }
        if !resolved.exists {
            return Err(StoreError::Vanished {
                path: path.to_owned(),
                operation: Operation::Open,
            });
        }
        Ok(resolved.path)
    }

    /// The resolved path of something that exists or could be made below a root given for writing.
    ///
    /// # Errors
    /// [`StoreError::OutsideRoot`], [`StoreError::RootReadOnly`], and [`StoreError::LinkWithoutTarget`] when
    /// the path is, or leads through, a link whose target is missing.
    pub fn resolve_write(&self, path: &Path) -> Result<PathBuf, StoreError> {
        let resolved = resolve(path).map_err(|error| self.hide(path, error))?;
        match self.access(&resolved.path) {
            None => Err(self.outside(path)),
            Some(Access::ReadOnly) => Err(StoreError::RootReadOnly {
                path: path.to_owned(),
                roots: self.paths(),
            }),
            Some(Access::ReadWrite) => Ok(resolved.path),
        }
    }

    /// What the deepest root that holds a resolved path allows; of two equal roots, the more.
    fn access(&self, resolved: &Path) -> Option<Access> {
        let mut above = resolved.ancestors();
        above.find_map(|folder| self.roots.get(folder).copied())
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.roots.keys().cloned().collect()
    }

    /// Whether a folder lies in a root, or holds one.
    pub(crate) fn leads_to(&self, folder: &Path) -> bool {
        let Ok(resolved) = std::fs::canonicalize(folder) else {
            return false;
        };
        let mut roots = self.roots.keys();
        self.access(&resolved).is_some() || roots.any(|root| root.starts_with(&resolved))
    }

    pub(crate) fn outside(&self, path: &Path) -> StoreError {
        StoreError::OutsideRoot {
            path: path.to_owned(),
            roots: self.paths(),
        }
    }

    /// An error on the way to a path that is not plainly inside says no more than that it is outside.
    fn hide(&self, path: &Path, error: StoreError) -> StoreError {
        let plain = |component| matches!(component, Component::RootDir | Component::Normal(_));
        let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let inside =
            whole.components().all(plain) && self.roots.keys().any(|root| whole.starts_with(root));
        // A link on the way may have led out of the roots before this one.
        let is_shown = match &error {
            StoreError::LinkWithoutTarget { path, .. } => {
                let folder = path.parent().map(std::fs::canonicalize);
                matches!(folder, Some(Ok(folder)) if self.access(&folder).is_some())
            }
            _ => true,
        };
        if inside && is_shown {
            error
        } else {
            self.outside(path)
        }
    }
}

/// Resolves the longest part of a path that exists and appends the rest, which may hold no `..` and
/// must not begin with a link.
///
/// # Errors
/// [`StoreError::LinkWithoutTarget`], [`StoreError::Vanished`].
fn resolve(path: &Path) -> Result<Resolved, StoreError> {
    let failed = |error| StoreError::from_io(Operation::Open, path, &error);
    let mut existing = std::path::absolute(path).map_err(failed)?;
    let mut rest: Vec<OsString> = Vec::new();
    loop {
        match std::fs::canonicalize(&existing) {
            Ok(mut resolved) => {
                let exists = rest.is_empty();
                resolved.extend(rest.iter().rev());
                return Ok(Resolved {
                    path: resolved,
                    exists,
                });
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        // A link whose target is missing. In the middle of a path the target could appear later, outside the roots. As
        // the last name, a copy would take the place of the link: of /dev/stdout, say, where that leads to a pipe.
        if let Ok(target) = std::fs::read_link(&existing) {
            return Err(StoreError::LinkWithoutTarget {
                path: existing,
                target,
            });
        }
        // No name: the path ends in `..` here, and what that means depends on what does not exist.
        let name = existing.file_name().map(ToOwned::to_owned);
        let (Some(name), true) = (name, existing.pop()) else {
            return Err(StoreError::Vanished {
                path: path.to_owned(),
                operation: Operation::Open,
            });
        };
        rest.push(name);
    }
}
