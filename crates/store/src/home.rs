//! `~user` at the front of a path: that user's home folder on this host.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::error::StoreError;
use crate::sys;

/// The home folder that `~user` at the front of a path means, if there is one, and what follows it.
///
/// # Errors
/// [`StoreError::NoUser`] for a user that this host does not know.
pub(crate) fn split(path: &[u8]) -> Result<(Option<Vec<u8>>, &[u8]), StoreError> {
    let Some(after) = path.strip_prefix(b"~") else {
        return Ok((None, path));
    };
    let end = after.iter().position(|byte| *byte == b'/');
    let (user, rest) = after.split_at(end.unwrap_or(after.len()));
    match sys::names::home_of(user) {
        Some(home) => Ok((Some(home), rest)),
        None => Err(StoreError::NoUser {
            user: String::from_utf8_lossy(user).into_owned(),
        }),
    }
}

/// A path with `~user` at its front replaced by that user's home folder; others as they are.
///
/// # Errors
/// [`StoreError::NoUser`] for a user that this host does not know.
pub fn from_home(path: &Path) -> Result<Cow<'_, Path>, StoreError> {
    let (home, rest) = split(path.as_os_str().as_bytes())?;
    Ok(match home {
        Some(home) => {
            let whole = [home.as_slice(), rest].concat();
            Cow::Owned(Path::new(OsStr::from_bytes(&whole)).to_owned())
        }
        None => Cow::Borrowed(path),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A known user's home takes the place of the name; other paths stay, and an unknown user is named.
    #[test]
    fn homes_are_found() {
        let root = sys::names::home_of(b"root").unwrap();
        let root = Path::new(OsStr::from_bytes(&root));
        assert_eq!(from_home(Path::new("~root")).unwrap(), root);
        assert_eq!(from_home(Path::new("~root/a/b")).unwrap(), root.join("a/b"));
        for path in ["/a/~root", "./~root", "a~", ""] {
            assert_eq!(from_home(Path::new(path)).unwrap(), Path::new(path));
        }
        for path in ["~no-such-user/x", "~", "~/x", "~a\0b"] {
            let error = from_home(Path::new(path)).unwrap_err();
            assert!(matches!(error, StoreError::NoUser { .. }), "{error}");
        }
    }
}
