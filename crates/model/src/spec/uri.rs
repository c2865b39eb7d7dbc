//! Where bytes lie on a node: a file, a memory pattern, a buffer of a program, or nowhere.

use std::fmt;
use std::str::FromStr;

use crate::units::{Bytes, UnitError};

/// The object of a row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Uri {
    /// `file:///path`, or a plain absolute path.
    File(FilePath),
    /// `mem:SIZE`: a pattern made in memory, or a buffer of that size.
    Memory(Bytes),
    /// `buffer:NAME`: memory of the program that the agent is part of, by a name of which [`is_buffer_name`] is true.
    Buffer(String),
    /// `null:`: bytes are checked and dropped; as a source, zeros without end.
    Null,
}

/// An absolute path on a node, as bytes: names need not be UTF-8.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilePath(Vec<u8>);

/// Why a URI could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UriError {
    /// The path does not begin with `/`.
    #[error("\"{0}\" is not an absolute path; write file:///path or /path")]
    NotAbsolute(String),
    /// `file://host/path`: the host belongs in the Host:Port column.
    #[error(
        "\"{0}\" names a host; the host is in the Host:Port column, so write file:///path with three slashes"
    )]
    Host(String),
    /// A `%` that is not followed by two hexadecimal digits.
    #[error(
        "\"{0}\" has a % that is not followed by two hexadecimal digits; write %25 for the sign itself"
    )]
    Percent(String),
    /// A path with a zero byte, which no file can have.
    #[error("\"{0}\" holds a zero byte; no file can be called that")]
    ZeroByte(String),
    /// The size after `mem:` cannot be read.
    #[error("{0}")]
    Size(#[from] UnitError),
    /// The name after `buffer:` is none.
    #[error(
        "\"{0}\" does not name a buffer; a name has 1 to 255 letters, digits, `.`, `-` and `_`"
    )]
    BufferName(String),
    /// Another kind of URI.
    #[error(
        "\"{0}\" is not a kind of data known here; use file:///path, mem:SIZE, buffer:NAME or null:"
    )]
    UnknownScheme(String),
}

/// Longest name of a buffer: as of a file.
const BUFFER_NAME_MAX: usize = 255;

/// Whether a buffer can have this name.
#[must_use]
pub fn is_buffer_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    (1..=BUFFER_NAME_MAX).contains(&name.len()) && name.bytes().all(is_plain)
}

impl FilePath {
    /// A path from its bytes.
    ///
    /// # Errors
    /// [`UriError::NotAbsolute`] and [`UriError::ZeroByte`].
    pub fn new(path: impl Into<Vec<u8>>) -> Result<Self, UriError> {
        let path = path.into();
        let shown = || String::from_utf8_lossy(&path).into_owned();
        if path.first() != Some(&b'/') {
            return Err(UriError::NotAbsolute(shown()));
        }
        if path.contains(&0) {
            return Err(UriError::ZeroByte(shown().replace('\0', "\\0")));
        }
        Ok(Self(path))
    }

    /// The bytes of the path; the first is `/`.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The path in the form that the standard library takes.
    #[cfg(unix)]
    #[must_use]
    pub fn to_path_buf(&self) -> std::path::PathBuf {
        use std::os::unix::ffi::OsStrExt as _;
        std::path::PathBuf::from(std::ffi::OsStr::from_bytes(&self.0))
    }

    /// The path for people; bytes that are not UTF-8 show as replacement characters.
    #[must_use]
    pub fn to_string_lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

impl fmt::Debug for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string_lossy())
    }
}

impl FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        if text.starts_with('/') {
            return FilePath::new(text).map(Self::File);
        }
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(UriError::NotAbsolute(text.to_owned()));
        };
        match scheme {
            "file" => {
                let path = match rest.strip_prefix("//") {
                    Some(rest) => rest.strip_prefix("localhost").unwrap_or(rest),
                    None => rest,
                };
                if rest.starts_with("//") && !path.starts_with('/') {
                    return Err(UriError::Host(text.to_owned()));
                }
                FilePath::new(percent_decode(path, text)?).map(Self::File)
            }
            "mem" => Ok(Self::Memory(rest.parse()?)),
            "buffer" if is_buffer_name(rest) => Ok(Self::Buffer(rest.to_owned())),
            "buffer" => Err(UriError::BufferName(text.to_owned())),
            "null" if rest.is_empty() => Ok(Self::Null),
            _ => Err(UriError::UnknownScheme(text.to_owned())),
        }
    }
}

fn percent_decode(path: &str, text: &str) -> Result<Vec<u8>, UriError> {
    let bytes = path.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if byte != b'%' {
            decoded.push(byte);
            at += 1;
            continue;
        }
        let digits = bytes.get(at + 1).zip(bytes.get(at + 2));
        let value = digits.and_then(|(high, low)| {
            let digit = |byte: &u8| char::from(*byte).to_digit(16);
            u8::try_from(digit(high)? * 16 + digit(low)?).ok()
        });
        decoded.push(value.ok_or_else(|| UriError::Percent(text.to_owned()))?);
        at += 3;
    }
    Ok(decoded)
}

/// In the form that parses back: paths as `file://` with everything but plain characters percent-encoded.
impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => {
                f.write_str("file://")?;
                for &byte in path.as_bytes() {
                    match byte {
                        b'a'..=b'z'
                        | b'A'..=b'Z'
                        | b'0'..=b'9'
                        | b'/'
                        | b'-'
                        | b'_'
                        | b'.'
                        | b'~' => {
                            write!(f, "{}", char::from(byte))?;
                        }
                        _ => write!(f, "%{byte:02X}")?,
                    }
                }
                Ok(())
            }
            // Bytes, not the rounded form for people.
            Self::Memory(size) => write!(f, "mem:{}", size.0),
            Self::Buffer(name) => write!(f, "buffer:{name}"),
            Self::Null => f.write_str("null:"),
        }
    }
}
