//! Which entries of a tree are part of a copy: rsync's rules of `--include` and `--exclude`.
//!
//! The first rule that matches an entry decides; an entry that none matches is included. What an excluded folder contains is not
//! looked at. A pattern
//!
//! * that begins with `/` is of the whole path below the root of the copy, else of its end, from a component on;
//! * that ends with `/` is of folders only;
//! * has `*` for any bytes but `/`, `**` for any bytes, `?` for one byte but `/`, `[a-z]`, `[!a-z]`, `[[:digit:]]` for one of a set;
//!   `\` takes their meaning away, in patterns with such a character;
//! * that ends with `/***` is of a folder and all below it.

use std::borrow::Cow;
use std::fmt::Write as _;

use regex::bytes::{Regex, RegexBuilder};

/// One rule as the user wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterRule {
    /// Whether what matches is included, not excluded.
    pub is_include: bool,
    /// See [`Filter`]; bytes, as names are.
    pub pattern: Vec<u8>,
}

/// A pattern that has no meaning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pattern `{pattern}` {reason}")]
pub struct BadPattern {
    /// As the user wrote it.
    pub pattern: String,
    /// What is wrong, and what to do.
    pub reason: &'static str,
}

/// Rules in their order.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    is_include: bool,
    /// Only folders match.
    is_of_folders: bool,
    /// Folders are matched with a `/` behind them.
    is_of_contents: bool,
    /// A leading `**/` matches no folder at all, too: paths are matched with a `/` before them.
    is_prefixed: bool,
    regex: Regex,
}

impl Filter {
    /// Compiles rules.
    ///
    /// # Errors
    /// The first pattern that is empty, that leaves a `[` open, or that is too large.
    pub fn new<'a>(rules: impl IntoIterator<Item = &'a FilterRule>) -> Result<Self, BadPattern> {
        let rules = rules.into_iter().map(Rule::new);
        Ok(Self {
            rules: rules.collect::<Result<_, _>>()?,
        })
    }

    /// Whether nothing is left out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether an entry is left out.
    ///
    /// * `path`: below the root of the copy; the root itself, the empty path, is always included.
    #[must_use]
    pub fn excludes(&self, path: &[u8], is_folder: bool) -> bool {
        let decides = |rule: &&Rule| rule.matches(path, is_folder);
        !path.is_empty()
            && self
                .rules
                .iter()
                .find(decides)
                .is_some_and(|rule| !rule.is_include)
    }
}

impl Rule {
    fn new(rule: &FilterRule) -> Result<Self, BadPattern> {
        let bad = |reason| BadPattern {
            pattern: String::from_utf8_lossy(&rule.pattern).into_owned(),
            reason,
        };
        let mut pattern = rule.pattern.as_slice();
        if pattern.is_empty() || pattern == b"/" {
            return Err(bad("matches nothing; write a name"));
        }
        let is_of_folders = pattern.len() > 1 && pattern.ends_with(b"/");
        if is_of_folders {
            pattern = &pattern[..pattern.len() - 1];
        }
        let is_prefixed = pattern.starts_with(b"**");
        let is_of_contents = pattern.ends_with(b"***");
        let (is_anchored, pattern) = match pattern.strip_prefix(b"/") {
            Some(rest) => (true, rest),
            None => (is_prefixed, pattern),
        };
        let mut text = String::from(if is_anchored { "^(?:" } else { "(?:^|/)(?:" });
        translate(pattern, &mut text)
            .ok_or_else(|| bad("has a `[` without its `]`; write `\\[`"))?;
        text += ")$";
        let regex = RegexBuilder::new(&text)
            .unicode(false)
            .dot_matches_new_line(true)
            .build();
        Ok(Self {
            is_include: rule.is_include,
            is_of_folders,
            is_of_contents,
            is_prefixed,
            regex: regex
                .map_err(|_| bad("is not understood; write it with fewer sets and stars"))?,
        })
    }

    fn matches(&self, path: &[u8], is_folder: bool) -> bool {
        if self.is_of_folders && !is_folder {
            return false;
        }
        let is_closed = is_folder && self.is_of_contents;
        let path = match (self.is_prefixed, is_closed) {
            (false, false) => Cow::Borrowed(path),
            (before, after) => {
                let [before, after] = [before, after].map(|is| if is { &b"/"[..] } else { b"" });
                Cow::Owned([before, path, after].concat())
            }
        };
        self.regex.is_match(&path)
    }
}

/// Writes a pattern as a regular expression; `None` where a set is not closed.
fn translate(pattern: &[u8], text: &mut String) -> Option<()> {
    let has_wildcards = pattern.iter().any(|byte| b"*?[".contains(byte));
    let mut rest = pattern;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'*' => {
                let more = rest.iter().take_while(|byte| **byte == b'*').count();
                rest = &rest[more..];
                *text += if more == 0 { "[^/]*" } else { ".*" };
            }
            b'?' => *text += "[^/]",
            b'[' => rest = set(rest, text)?,
            b'\\' if has_wildcards => match rest.split_first() {
                Some((&escaped, after)) => {
                    literal(escaped, text);
                    rest = after;
                }
                None => literal(b'\\', text),
            },
            byte => literal(byte, text),
        }
    }
    Some(())
}

fn literal(byte: u8, text: &mut String) {
    // Writing to a string cannot fail.
    let _ = write!(text, "\\x{byte:02x}");
}

/// Writes a set, which never has `/`; `rest` is what follows its `[`. Returns what follows its `]`.
fn set<'a>(mut rest: &'a [u8], text: &mut String) -> Option<&'a [u8]> {
    let is_negated = matches!(rest.first(), Some(b'!' | b'^'));
    if is_negated {
        rest = &rest[1..];
    }
    let mut members = String::new();
    let mut is_first = true;
    loop {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        match byte {
            b']' if !is_first => break,
            b'[' if rest.first() == Some(&b':') => {
                let end = rest.iter().position(|byte| *byte == b']')?;
                match rest[1..end].strip_suffix(b":") {
                    Some(name) => {
                        let name = std::str::from_utf8(name).ok()?;
                        let _ = write!(members, "[:{name}:]");
                        rest = &rest[end + 1..];
                    }
                    // A set of these bytes, as any other.
                    None => literal(byte, &mut members),
                }
            }
            byte => {
                let first = match (byte, rest.split_first()) {
                    (b'\\', Some((&escaped, after))) => {
                        rest = after;
                        escaped
                    }
                    _ => byte,
                };
                match rest {
                    [b'-', last, after @ ..] if *last != b']' => {
                        let (last, after) = match (*last, after.split_first()) {
                            (b'\\', Some((&escaped, after))) => (escaped, after),
                            (last, _) => (last, after),
                        };
                        rest = after;
                        // A range that ends before it begins has nothing.
                        if first <= last {
                            let _ = write!(members, "\\x{first:02x}-\\x{last:02x}");
                        }
                    }
                    _ => literal(first, &mut members),
                }
            }
        }
        is_first = false;
    }
    // An empty set is written as one that no byte is in.
    let members = if members.is_empty() {
        r"[^\x00-\xff]".to_owned()
    } else {
        members
    };
    let sign = if is_negated { "^" } else { "" };
    let _ = write!(text, "[[{sign}{members}]&&[^/]]");
    Some(rest)
}
