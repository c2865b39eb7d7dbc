//! Token files: 64 hexadecimal digits, readable by their owner alone.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// A token is 256 bits.
pub const TOKEN_LEN: usize = 32;

/// Longest token file that is read: the digits and some white space.
const FILE_LEN_MAX: u64 = 1024;

/// Why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// It could not be read.
    #[error("cannot read the token file {}: {error}", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// It could not be made, or its folder could not.
    #[error("cannot make the token file {}: {error}", path.display())]
    Create {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Others than its owner can read it.
    #[error("the token file {} can be read by others (mode {mode:04o}); run: chmod 600 {}", path.display(), path.display())]
    Public {
        /// Its path.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It holds something else.
    #[error(
        "{} is not a token file: it must hold 64 hexadecimal digits; make one with `ropewalk agent --new-token FILE`",
        .0.display()
    )]
    Content(PathBuf),
}

/// The token in a file.
///
/// # Errors
/// [`TokenError::Read`], [`TokenError::Public`], [`TokenError::Content`].
pub fn read(path: &Path) -> Result<[u8; TOKEN_LEN], TokenError> {
    let failed = |error| TokenError::Read {
        path: path.into(),
        error,
    };
    let file = fs::File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(TokenError::Public {
            path: path.into(),
            mode,
        });
    }
    let mut text = Vec::new();
    file.take(FILE_LEN_MAX)
        .read_to_end(&mut text)
        .map_err(failed)?;
    let text = String::from_utf8_lossy(&text);
    parse(text.trim()).ok_or_else(|| TokenError::Content(path.into()))
}

/// The bytes of hexadecimal digits; `None` unless there are exactly `N` pairs.
#[must_use]
pub fn parse<const N: usize>(text: &str) -> Option<[u8; N]> {
    <[u8; N]>::try_from(from_hex(text)?).ok()
}

/// Bytes from pairs of hexadecimal digits; `None` for anything else.
#[must_use]
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok();
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}

/// Bytes as pairs of hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a fresh token to a file that did not exist, and makes its folder.
///
/// # Errors
/// [`TokenError::Create`].
pub fn create(path: &Path) -> Result<[u8; TOKEN_LEN], TokenError> {
    let failed = |error| TokenError::Create {
        path: path.into(),
        error,
    };
    let token: [u8; TOKEN_LEN] = ropewalk_lane::preface::random_bytes();
    if let Some(parent) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(path).map_err(failed)?;
    file.write_all(format!("{}\n", hex(&token)).as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(failed)?;
    Ok(token)
}
