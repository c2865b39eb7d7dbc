//! What an agent that a master started may touch: roots, as they are read and checked.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use ropewalk_agent::{Expanded, Seat};

use crate::{Unusable, token};

/// What a started agent serves.
pub(super) struct Served {
    pub roots: Vec<(PathBuf, bool)>,
    pub expanded: Vec<Expanded>,
    // Where its rank of MPI gives it its place, for transfers over MPI.
    pub seat: Option<Seat>,
}

/// Reads what the agent may touch: a line for each root.
pub(super) fn read_roots(lines: Vec<String>) -> Result<Served> {
    let mut roots = Vec::new();
    let mut expanded: Vec<Expanded> = Vec::new();
    let mut seat = None;
    for line in lines {
        if let Some(text) = line.strip_prefix("rank ") {
            seat = Some(Seat::listen(text)?);
            continue;
        }
        if let Some(pattern) = line.strip_prefix("gl ").and_then(token::from_hex) {
            let paths = expand(&pattern);
            let matches = paths.iter().flatten();
            roots.extend(matches.map(|path| (path_of(path), false)));
            expanded.push((pattern, paths.map_err(|error| format!("{error:#}"))));
            continue;
        }
        let root = match line.split_once(' ') {
            Some(("ro", path)) => token::from_hex(path).map(|path| (path, false)),
            Some(("rw", path)) => token::from_hex(path).map(|path| (path, true)),
            Some(("in", path)) => token::from_hex(path).map(|path| (path, true)),
            _ => None,
        };
        let Some((path, writable)) = root else {
            bail!("`{line}` on standard input is no root")
        };
        let mut path = ropewalk_store::from_home(&path_of(&path))?.into_owned();
        if line.starts_with("in ") {
            match written_below(&path) {
                Some(folder) => path = folder,
                None => continue,
            }
        }
        check(&path, writable)?;
        roots.push((path, writable));
    }
    Ok(Served {
        roots,
        expanded,
        seat,
    })
}

pub(super) fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// The paths that a pattern means here, each of which can be a root.
fn expand(pattern: &[u8]) -> Result<Vec<Vec<u8>>> {
    let paths = ropewalk_store::expand(pattern, None)?;
    for path in &paths {
        check(&path_of(path), false)?;
    }
    Ok(paths)
}

/// The folder that a copy to a path goes into, where that is not the one that holds the path: the folder at the path, or
/// the one with the file that a link at the path leads to.
fn written_below(path: &Path) -> Option<PathBuf> {
    if path.is_dir() {
        return Some(path.to_owned());
    }
    let is_link = path
        .symlink_metadata()
        .is_ok_and(|found| found.is_symlink());
    let target = std::fs::canonicalize(path).ok().filter(|_| is_link)?;
    target.parent().map(Path::to_owned)
}

/// Says in the words of `copy` what is wrong with a path before the agent says it in its own.
///
/// # Errors
/// [`Unusable`], but for what the file system may answer otherwise another time.
fn check(path: &Path, writable: bool) -> Result<()> {
    let found = std::fs::metadata(path);
    let may_pass = found.as_ref().is_err_and(|error| {
        !matches!(
            error.kind(),
            ErrorKind::NotFound
                | ErrorKind::PermissionDenied
                | ErrorKind::NotADirectory
                | ErrorKind::InvalidFilename
                | ErrorKind::InvalidInput
        )
    });
    let checked = check_found(path, writable, found);
    checked.map_err(|error| match may_pass {
        true => error,
        false => Unusable(error).into(),
    })
}

fn check_found(
    path: &Path,
    writable: bool,
    found: std::io::Result<std::fs::Metadata>,
) -> Result<()> {
    let shown = path.display();
    match found {
        Ok(found) if writable && !found.is_dir() => {
            bail!("{shown} is no folder, so no copy can be put there; name another destination")
        }
        Ok(_) => Ok(()),
        Err(error) if writable => bail!(
            "no copy can be put into the folder {shown}: {error}; make it first, or name another destination"
        ),
        Err(error)
            if error.kind() == ErrorKind::NotFound
                && ropewalk_store::is_pattern(path.as_os_str().as_bytes()) =>
        {
            bail!(
                "no file matches {shown}, and none has this name; patterns of paths on this host are for the shell to \
                 expand, which it does where they are not quoted"
            )
        }
        Err(error) => match std::fs::read_link(path) {
            Ok(target) if error.kind() == ErrorKind::NotFound => bail!(
                "the source {shown} is a symbolic link to {}, which does not exist; leave it out, or copy the folder \
                 that holds it, in which links are copied as links",
                target.display()
            ),
            _ => bail!("the source {shown} cannot be used: {error}"),
        },
    }
}
