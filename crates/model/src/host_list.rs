//! Host lists: `node[1-4,7].site` is five hosts.
//!
//! A comma outside brackets separates hosts, too. Numbers keep their padding: `[01-10]` gives `01` to `10`.
//! An address such as `[::1]` is not a list: brackets that hold a colon are left as they are.

/// Most hosts of one list; a slip such as `[0-999999999]` must be an error, not a full memory.
pub const HOSTS_MAX: usize = 65_536;

/// Why a host list could not be expanded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostListError {
    /// A bracket is not closed, or closed without having been opened.
    #[error("\"{0}\": brackets do not match; write for example node[1-4,7]")]
    Brackets(String),
    /// Something between brackets is neither a number nor a run of numbers.
    #[error("\"{list}\": \"{part}\" is not a number or a run like 1-4")]
    Part {
        /// The whole list.
        list: String,
        /// The part that cannot be read.
        part: String,
    },
    /// A run counts down.
    #[error("\"{list}\": the run \"{part}\" counts down; write the smaller number first")]
    Reversed {
        /// The whole list.
        list: String,
        /// The run.
        part: String,
    },
    /// A host has no name.
    #[error("\"{0}\" names an empty host; write its name, and no comma too many")]
    Empty(String),
    /// More hosts than [`HOSTS_MAX`].
    #[error("\"{0}\" expands to more than 65536 hosts; check the ranges")]
    TooMany(String),
}

/// Expands `list` to its hosts, in the order written; later brackets count fastest.
///
/// Cost O(hosts listed). Repeated hosts are kept.
///
/// # Errors
/// [`HostListError`] for lists that cannot be read or have more than [`HOSTS_MAX`] hosts.
pub fn expand(list: &str) -> Result<Vec<String>, HostListError> {
    let mut hosts = Vec::new();
    for item in split_outside_brackets(list)? {
        if item.is_empty() {
            return Err(HostListError::Empty(list.to_owned()));
        }
        let room = HOSTS_MAX - hosts.len();
        hosts.extend(expand_item(list, item, room)?);
    }
    Ok(hosts)
}

/// Cuts at commas that are not between brackets.
fn split_outside_brackets(list: &str) -> Result<Vec<&str>, HostListError> {
    let brackets = || HostListError::Brackets(list.to_owned());
    let mut items = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (at, letter) in list.char_indices() {
        match (letter, inside) {
            ('[', true) | (']', false) => return Err(brackets()),
            ('[', false) => inside = true,
            (']', true) => inside = false,
            (',', false) => {
                items.push(list[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(brackets());
    }
    items.push(list[start..].trim());
    Ok(items)
}

fn expand_item(list: &str, item: &str, room: usize) -> Result<Vec<String>, HostListError> {
    let too_many = || HostListError::TooMany(list.to_owned());
    let mut hosts = vec![String::new()];
    let mut rest = item;
    while let Some(open) = rest.find('[') {
        let Some(close) = rest.find(']') else {
            return Err(HostListError::Brackets(list.to_owned()));
        };
        let (before, inner) = (&rest[..open], &rest[open + 1..close]);
        let choices = if inner.contains(':') {
            vec![format!("[{inner}]")]
        } else {
            numbers(list, inner)?
        };
        let count = hosts
            .len()
            .checked_mul(choices.len())
            .ok_or_else(too_many)?;
        if count > room {
            return Err(too_many());
        }
        let extended = hosts.iter().flat_map(|host| {
            let choices = choices.iter();
            choices.map(move |choice| format!("{host}{before}{choice}"))
        });
        hosts = extended.collect();
        rest = &rest[close + 1..];
    }
    if hosts.len() > room {
        return Err(too_many());
    }
    for host in &mut hosts {
        host.push_str(rest);
    }
    Ok(hosts)
}

fn numbers(list: &str, inner: &str) -> Result<Vec<String>, HostListError> {
    let mut numbers = Vec::new();
    for part in inner.split(',').map(str::trim) {
        let bad = || HostListError::Part {
            list: list.to_owned(),
            part: part.to_owned(),
        };
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (low, high) = (
            number(first).ok_or_else(bad)?,
            number(last).ok_or_else(bad)?,
        );
        if high < low {
            return Err(HostListError::Reversed {
                list: list.to_owned(),
                part: part.to_owned(),
            });
        }
        if high - low >= (HOSTS_MAX - numbers.len()) as u64 {
            return Err(HostListError::TooMany(list.to_owned()));
        }
        // A leading zero on either end asks for padding to that width.
        let padded = |text: &str| text.len() > 1 && text.starts_with('0');
        let width = if padded(first) || padded(last) {
            first.len()
        } else {
            0
        };
        numbers.extend((low..=high).map(|n| format!("{n:0width$}")));
    }
    Ok(numbers)
}

/// Digits of one number; more than any host is called.
const DIGITS_MAX: usize = 18;

fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.len() <= DIGITS_MAX;
    (digits && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every form, in the order written.
    #[test]
    fn lists_expand() {
        for (list, hosts) in [
            ("a", vec!["a"]),
            ("a[1-3,7]b", vec!["a1b", "a2b", "a3b", "a7b"]),
            ("n[08-11]", vec!["n08", "n09", "n10", "n11"]),
            ("r[1-2]n[0-1]", vec!["r1n0", "r1n1", "r2n0", "r2n1"]),
            ("a,b[1-2], c", vec!["a", "b1", "b2", "c"]),
            ("[::1]", vec!["[::1]"]),
            ("[fe80::1-2]:55", vec!["[fe80::1-2]:55"]),
        ] {
            assert_eq!(expand(list).unwrap(), hosts, "{list}");
        }
    }

    /// Slips are named.
    #[test]
    fn slips_are_errors() {
        for (list, part) in [
            ("a[1-4", "brackets"),
            ("a1-4]", "brackets"),
            ("a[[1]]", "brackets"),
            ("a[4-1]", "counts down"),
            ("a[x]", "not a number"),
            ("a[]", "not a number"),
            ("a,,b", "empty host"),
            ("", "empty host"),
            ("n[0-999999999]", "more than 65536"),
            ("n[0-999][0-999]", "more than 65536"),
            ("n[0-65535],m", "more than 65536"),
        ] {
            let message = expand(list).unwrap_err().to_string();
            assert!(message.contains(part), "{list}: {message}");
        }
        assert_eq!(expand("n[0-65535]").unwrap().len(), HOSTS_MAX);
    }

    proptest! {
        /// No text makes it panic, and a list is never longer than the cap.
        #[test]
        fn any_text_is_answered(list in r"[a-b\[\]0-9,: é-]{0,24}") {
            if let Ok(hosts) = expand(&list) {
                prop_assert!(hosts.len() <= HOSTS_MAX);
            }
        }
    }
}
