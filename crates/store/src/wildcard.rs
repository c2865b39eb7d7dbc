//! Paths with `*`, `?` and `[...]`, expanded on the host that holds the files.
//!
//! As shells do it: a wildcard matches within one component; a leading dot is matched by a dot only; `[a-z]`, `[!a-z]`
//! and `[[:digit:]]` match one letter; `\` takes the special meaning from the next letter; a `[` that is never closed
//! is a letter. A letter is a character of UTF-8, or one byte where a name is none. Unlike in shells, a path that exists
//! as it is written is taken as it is, and a folder that may not be listed is an error.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Operation, StoreError};
use crate::manifest::PATH_LEN_MAX;
use crate::roots::Roots;
use crate::{home, sys};

/// Paths that a pattern may match at most: as many as an agent that is started takes roots.
pub const MATCHES_MAX: usize = 65_536;

/// Bytes that their paths may have together, so that they fit into a control message beside others.
const MATCHES_LEN_MAX: usize = 16 << 20;

/// Whether a path holds a letter that [`expand`] gives a meaning.
#[must_use]
pub fn is_pattern(path: &[u8]) -> bool {
    path.iter().any(|byte| b"*?[".contains(byte))
}

/// The paths that a pattern matches, in order of their bytes; of a pattern that exists as it is written, itself.
///
/// * `pattern`: any bytes; `~user` at its front is the home folder of that user. With a slash at its end it matches
///   folders only.
/// * `roots`: where it may look; everywhere without them. A match may still be a link that leads elsewhere.
///
/// Cost: each folder on the way is listed once.
///
/// # Errors
/// [`StoreError::NoMatch`] when there is none, [`StoreError::TooManyMatches`] above [`MATCHES_MAX`],
/// [`StoreError::NoUser`] for an unknown user, [`StoreError::OutsideRoot`] where a folder to be listed lies in no root,
/// and others for folders that cannot be listed.
pub fn expand(pattern: &[u8], roots: Option<&Roots>) -> Result<Vec<Vec<u8>>, StoreError> {
    if pattern.len() > PATH_LEN_MAX {
        let start = Path::new(OsStr::from_bytes(&pattern[..64]));
        return Err(StoreError::from_errno(
            Operation::Inspect,
            start,
            Errno::NAMETOOLONG,
        ));
    }
    let whole = Path::new(OsStr::from_bytes(pattern));
    // Which users there are, and where they live, is for the roots to show.
    if let Some(roots) = roots.filter(|_| pattern.starts_with(b"~")) {
        match home::split(pattern) {
            Ok((Some(home), _)) if roots.leads_to(Path::new(OsStr::from_bytes(&home))) => {}
            _ => return Err(roots.outside(whole)),
        }
    }
    let (home, rest) = home::split(pattern)?;
    let search = Search {
        roots,
        pattern: whole,
    };
    let start = match (&home, rest.starts_with(b"/")) {
        (Some(home), _) => home.clone(),
        (None, true) => b"/".to_vec(),
        (None, false) => Vec::new(),
    };
    let components = || rest.split(|byte| *byte == b'/').filter(|c| !c.is_empty());
    let literal = components().fold(start.clone(), |path, name| join(&path, name));
    // What is no pattern is for the opening to refuse, and what cannot be looked at for the listing.
    if !is_pattern(rest) || search.exists(&literal).unwrap_or(false) {
        return Ok(vec![plain(literal)]);
    }
    let mut found = vec![start];
    for component in components() {
        let tokens = tokens(component);
        let mut next: Vec<Vec<u8>> = Vec::new();
        let (mut len, mut counted) = (0, 0);
        for path in found {
            match literal_name(&tokens) {
                Some(name) => next.push(join(&path, &name)),
                None => search.list(&path, &tokens, &mut next)?,
            }
            len += next[counted..].iter().map(Vec::len).sum::<usize>();
            counted = next.len();
            if counted > MATCHES_MAX || len > MATCHES_LEN_MAX {
                return Err(StoreError::TooManyMatches {
                    pattern: search.pattern.to_owned(),
                });
            }
        }
        found = next;
    }
    let only_folders = rest.ends_with(b"/");
    let mut matches = Vec::new();
    for path in found {
        let is_folder = |path: &[u8]| {
            let folder = search.folder(path)?;
            Ok::<_, StoreError>(folder.is_some_and(|folder| folder.is_dir()))
        };
        if search.exists(&path)? && (!only_folders || is_folder(&path)?) {
            matches.push(plain(path));
        }
    }
    if matches.is_empty() {
        return Err(StoreError::NoMatch {
            pattern: search.pattern.to_owned(),
        });
    }
    matches.sort_unstable();
    Ok(matches)
}

/// Whether [`expand`] may give this path for a pattern on some host: another one's answer says where files are written to. Where the homes of
/// users are only that host knows.
#[must_use]
pub fn may_match(pattern: &[u8], path: &[u8]) -> bool {
    fn components(path: &[u8]) -> Vec<&[u8]> {
        let all = path.split(|byte| *byte == b'/');
        all.filter(|name| !name.is_empty() && *name != b".")
            .collect()
    }
    let is_below_home = pattern.starts_with(b"~");
    let rest = match pattern.iter().position(|byte| *byte == b'/') {
        Some(at) if is_below_home => &pattern[at..],
        None if is_below_home => b"",
        _ => pattern,
    };
    let (wanted, found) = (components(rest), components(path));
    let Some(above) = found.len().checked_sub(wanted.len()) else {
        return false;
    };
    let starts = match is_below_home {
        true => path.starts_with(b"/"),
        false => above == 0 && path.starts_with(b"/") == pattern.starts_with(b"/"),
    };
    let mut pairs = wanted.iter().zip(&found[above..]);
    let is_match = |wanted: &[u8], found: &[u8]| {
        let tokens = tokens(wanted);
        let is_literal = literal_name(&tokens).is_some_and(|name| name == found);
        // As it is written, if that exists.
        wanted == found || is_literal || found != b".." && matches(&tokens, found)
    };
    starts && pairs.all(|(wanted, found)| is_match(wanted, found))
}

/// A path that nothing gives another meaning: a relative one that begins with a tilde names no user.
fn plain(path: Vec<u8>) -> Vec<u8> {
    match path.starts_with(b"~") {
        true => [b"./", path.as_slice()].concat(),
        false => path,
    }
}

fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = match folder.is_empty() || folder.ends_with(b"/") {
        true => b"",
        false => b"/",
    };
    [folder, slash, name].concat()
}

/// Where it is looked.
struct Search<'a> {
    roots: Option<&'a Roots>,
    // As it was written, for errors.
    pattern: &'a Path,
}

impl Search<'_> {
    /// A folder on the way, resolved; `None` when it is not there.
    fn folder(&self, path: &[u8]) -> Result<Option<PathBuf>, StoreError> {
        let path = match path {
            b"" => Path::new("."),
            path => Path::new(OsStr::from_bytes(path)),
        };
        let resolved = match self.roots {
            Some(roots) => roots.resolve_read(path),
            None => fs::canonicalize(path)
                .map_err(|error| StoreError::from_io(Operation::Open, path, &error)),
        };
        match resolved {
            Ok(resolved) => Ok(Some(resolved)),
            Err(
                StoreError::Vanished { .. }
                | StoreError::NotADirectory { .. }
                | StoreError::SymbolicLink { .. }
                | StoreError::LinkWithoutTarget { .. },
            ) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether something has this path, be it a link to nothing.
    fn exists(&self, path: &[u8]) -> Result<bool, StoreError> {
        let path = Path::new(OsStr::from_bytes(path));
        let at = match (self.roots, path.file_name(), path.parent()) {
            (None, _, _) => path.to_owned(),
            (Some(_), Some(name), Some(above)) => {
                match self.folder(above.as_os_str().as_bytes()) {
                    Ok(Some(folder)) => folder.join(name),
                    Ok(None) => return Ok(false),
                    // It may be a root itself.
                    Err(_) => {
                        let folder = self.folder(path.as_os_str().as_bytes());
                        return folder.map(|folder| folder.is_some());
                    }
                }
            }
            (Some(_), _, _) => match self.folder(path.as_os_str().as_bytes())? {
                Some(folder) => folder,
                None => return Ok(false),
            },
        };
        match fs::symlink_metadata(&at) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::InvalidFilename => Ok(false),
            Err(error) => match StoreError::from_io(Operation::Inspect, path, &error) {
                StoreError::Vanished { .. }
                | StoreError::NotADirectory { .. }
                | StoreError::SymbolicLink { .. } => Ok(false),
                error => Err(error),
            },
        }
    }

    /// Adds the entries of a folder that match a component.
    fn list(
        &self,
        path: &[u8],
        tokens: &[Token],
        out: &mut Vec<Vec<u8>>,
    ) -> Result<(), StoreError> {
        let Some(folder) = self.folder(path)? else {
            return Ok(());
        };
        if !folder.is_dir() {
            return Ok(());
        }
        let failed = |errno| StoreError::from_errno(Operation::List, &folder, errno);
        // A link put on the resolved path since leads nowhere.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = sys::open_resolved_path(&folder, flags, Mode::empty()).map_err(failed)?;
        for entry in Dir::new(opened).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." && matches(tokens, name) {
                out.push(join(path, name));
            }
            if out.len() > MATCHES_MAX {
                return Err(StoreError::TooManyMatches {
                    pattern: self.pattern.to_owned(),
                });
            }
        }
        Ok(())
    }
}

/// A character, or beyond all characters a byte that belongs to none.
type Letter = u32;

const FIRST_BYTE: Letter = char::MAX as u32 + 1;

/// Part of a component of a pattern.
enum Token {
    Letter(Letter),
    /// `?`
    One,
    /// `*`
    Any,
    /// `[...]`
    Set {
        others: bool,
        items: Vec<Item>,
    },
}

enum Item {
    Range(Letter, Letter),
    Class(Class),
}

fn letters(bytes: &[u8]) -> Vec<Letter> {
    let mut letters = Vec::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        letters.extend(chunk.valid().chars().map(u32::from));
        let stray = chunk.invalid().iter();
        letters.extend(stray.map(|byte| FIRST_BYTE + u32::from(*byte)));
    }
    letters
}

fn tokens(component: &[u8]) -> Vec<Token> {
    let letters = letters(component);
    let (mut tokens, mut at) = (Vec::new(), 0);
    while let Some(&letter) = letters.get(at) {
        at += 1;
        let token = match char::from_u32(letter) {
            Some('*') => Token::Any,
            Some('?') => Token::One,
            Some('[') => match set(&letters[at..]) {
                Some((set, len)) => {
                    at += len;
                    set
                }
                None => Token::Letter(letter),
            },
            Some('\\') => match letters.get(at) {
                Some(&hidden) => {
                    at += 1;
                    Token::Letter(hidden)
                }
                None => Token::Letter(letter),
            },
            _ => Token::Letter(letter),
        };
        tokens.push(token);
    }
    tokens
}

/// What follows a `[`, up to its `]`, and how many letters that are; `None` when it is never closed.
fn set(letters: &[Letter]) -> Option<(Token, usize)> {
    let is = |at: usize, wanted: char| letters.get(at) == Some(&u32::from(wanted));
    let others = is(0, '!') || is(0, '^');
    let first = usize::from(others);
    let (mut at, mut items) = (first, Vec::new());
    // One letter, which a backslash may hide, and where the next one is.
    let one = |at: usize| match is(at, '\\') {
        true => letters.get(at + 1).map(|letter| (*letter, at + 2)),
        false => letters.get(at).map(|letter| (*letter, at + 1)),
    };
    while at == first || !is(at, ']') {
        if let Some((class, len)) = class(&letters[at..]) {
            items.push(Item::Class(class));
            at += len;
            continue;
        }
        let (low, next) = one(at)?;
        at = next;
        let mut high = low;
        if is(at, '-') && !is(at + 1, ']') {
            (high, at) = one(at + 1)?;
        }
        items.push(Item::Range(low, high));
    }
    Some((Token::Set { others, items }, at + 1))
}

/// Whether a byte belongs to a class of letters.
type Class = fn(&u8) -> bool;

/// `[:digit:]` at the front, and its length.
fn class(letters: &[Letter]) -> Option<(Class, usize)> {
    const CLASSES: [(&str, Class); 8] = [
        ("[:alnum:]", u8::is_ascii_alphanumeric),
        ("[:alpha:]", u8::is_ascii_alphabetic),
        ("[:digit:]", u8::is_ascii_digit),
        ("[:lower:]", u8::is_ascii_lowercase),
        ("[:punct:]", u8::is_ascii_punctuation),
        ("[:space:]", u8::is_ascii_whitespace),
        ("[:upper:]", u8::is_ascii_uppercase),
        ("[:xdigit:]", u8::is_ascii_hexdigit),
    ];
    let is_at_front = |name: &str| {
        letters.len() >= name.len()
            && name
                .bytes()
                .map(u32::from)
                .eq(letters[..name.len()].iter().copied())
    };
    let found = CLASSES.iter().find(|(name, _)| is_at_front(name));
    found.map(|(name, class)| (*class, name.len()))
}

/// The name that a component without wildcards means.
fn literal_name(tokens: &[Token]) -> Option<Vec<u8>> {
    let mut name = Vec::new();
    for token in tokens {
        match token {
            Token::Letter(letter) => match char::from_u32(*letter) {
                Some(letter) => name.extend(letter.encode_utf8(&mut [0; 4]).bytes()),
                None => name.push((letter - FIRST_BYTE) as u8),
            },
            _ => return None,
        }
    }
    Some(name)
}

/// Whether a name is one that a component means. Cost O(name × component).
fn matches(tokens: &[Token], name: &[u8]) -> bool {
    const DOT: Letter = '.' as Letter;
    if name.starts_with(b".") && !matches!(tokens.first(), Some(Token::Letter(DOT))) {
        return false;
    }
    let letters = letters(name);
    let (mut token, mut at) = (0, 0);
    // After the last `*`, and the letter from which on what follows it is tried next.
    let mut again: Option<(usize, usize)> = None;
    while at < letters.len() {
        match tokens.get(token) {
            Some(Token::Any) => {
                token += 1;
                again = Some((token, at));
                continue;
            }
            Some(wanted) if wanted.takes(letters[at]) => {
                (token, at) = (token + 1, at + 1);
                continue;
            }
            _ => {}
        }
        let Some((after, from)) = again else {
            return false;
        };
        again = Some((after, from + 1));
        (token, at) = (after, from + 1);
    }
    tokens[token..]
        .iter()
        .all(|token| matches!(token, Token::Any))
}

impl Token {
    fn takes(&self, letter: Letter) -> bool {
        match self {
            Self::Letter(wanted) => *wanted == letter,
            Self::One | Self::Any => true,
            Self::Set { others, items } => {
                let holds = items.iter().any(|item| match item {
                    Item::Range(low, high) => (*low..=*high).contains(&letter),
                    Item::Class(class) => u8::try_from(letter).is_ok_and(|byte| class(&byte)),
                });
                holds != *others
            }
        }
    }
}

#[cfg(test)]
mod tests;
