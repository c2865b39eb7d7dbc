//! What the values of options mean, and what is wrong with those that mean nothing.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use ropewalk_master::request::{LaneKind, PolicyName, Rails};
use ropewalk_model::{ByteRate, Bytes};

/// Streams a pair may have; more only cost memory.
const STREAMS_MAX: u32 = 64;

/// Least prefetch that still holds a fragment (64 KiB).
const PREFETCH_MIN: u64 = 64 << 10;

/// Least packet length: what IPv6 guarantees.
const MTU_MIN: u32 = 1280;

/// A size that prints exactly, for the help text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size(pub(super) Bytes);

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.to_string().replace(' ', ""))
    }
}

/// A command line cut into words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Words(pub(super) Vec<OsString>);

pub(super) fn prefetch(text: &str) -> Result<Size, String> {
    let size: Bytes = text.parse().map_err(|error| format!("{error}"))?;
    if size.0 < PREFETCH_MIN {
        return Err(format!(
            "at least {} is needed to hold a fragment",
            Bytes(PREFETCH_MIN)
        ));
    }
    Ok(Size(size))
}

/// Reads a rate above 0.
pub(crate) fn rate(text: &str) -> Result<ByteRate, String> {
    match text.parse::<ByteRate>() {
        Ok(ByteRate(0)) => Err("a rate of 0 would never finish".to_owned()),
        Ok(rate) => Ok(rate),
        Err(error) => Err(error.to_string()),
    }
}

pub(super) fn lane_rate(text: &str) -> Result<ByteRate, String> {
    match text.split_once('=') {
        Some(_) => Err(format!(
            "--rate is the rate of each rbudp or rapid lane; write --node-rate {text} to declare how fast a host is"
        )),
        None => rate(text),
    }
}

/// Packet length; `None` has it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mtu(pub(super) Option<u32>);

/// Longest packet that can be set.
const MTU_MAX: u32 = 65_000;

pub(super) fn mtu(text: &str) -> Result<Mtu, String> {
    match text.parse::<u32>() {
        _ if text == "auto" => Ok(Mtu(None)),
        Ok(bytes) if (MTU_MIN..=MTU_MAX).contains(&bytes) => Ok(Mtu(Some(bytes))),
        _ => Err(format!(
            "give auto or a number of bytes from {MTU_MIN} to {MTU_MAX}"
        )),
    }
}

/// Receive buffer; `None` by the lane's rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceiveBuffer(pub(super) Option<u64>);

/// Least and most that makes sense: a few datagrams, and what a kernel can count.
const RECEIVE_BUFFER: std::ops::RangeInclusive<u64> = 16 << 10..=1 << 30;

pub(super) fn receive_buffer(text: &str) -> Result<ReceiveBuffer, String> {
    if text == "auto" {
        return Ok(ReceiveBuffer(None));
    }
    let size: Bytes = text.parse().map_err(|error| format!("{error}"))?;
    if !RECEIVE_BUFFER.contains(&size.0) {
        return Err(format!(
            "give auto or a size from {} to {}",
            Bytes(*RECEIVE_BUFFER.start()),
            Bytes(*RECEIVE_BUFFER.end())
        ));
    }
    Ok(ReceiveBuffer(Some(size.0)))
}

pub(super) fn host_rate(text: &str) -> Result<(String, ByteRate), String> {
    match text.rsplit_once('=') {
        Some((host, speed)) if !host.is_empty() => Ok((host.to_owned(), rate(speed)?)),
        _ => Err("write HOST=RATE, for instance a1=1Gbit".to_owned()),
    }
}

pub(crate) fn rails(text: &str) -> Result<Rails, String> {
    match text {
        "auto" => Ok(Rails::All),
        "one" => Ok(Rails::One),
        _ if text.split(',').all(|name| !name.trim().is_empty()) => {
            let names = text.split(',').map(|name| name.trim().to_owned());
            Ok(Rails::Only(names.collect()))
        }
        _ => {
            Err("write auto, one, or names, addresses or networks with commas between them".into())
        }
    }
}

pub(super) fn lane(text: &str) -> Result<LaneKind, String> {
    let mut kinds = LaneKind::ALL.into_iter();
    if let Some(kind) = kinds.find(|kind| kind.name() == text) {
        return Ok(kind);
    }
    let names = LaneKind::ALL.map(LaneKind::name).join(", ");
    Err(format!("there is no such lane; use one of {names}"))
}

/// Streams per pair; `None` for what fits the number of pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Streams(pub(super) Option<u32>);

pub(super) fn streams(text: &str) -> Result<Streams, String> {
    match text.parse::<u32>() {
        _ if text == "auto" => Ok(Streams(None)),
        Ok(count) if (1..=STREAMS_MAX).contains(&count) => Ok(Streams(Some(count))),
        _ => Err(format!("give auto or a number from 1 to {STREAMS_MAX}")),
    }
}

/// Who chooses the number of streams; `None`: no policy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy(pub(super) Option<PolicyName>);

pub(super) fn streams_policy(text: &str) -> Result<Policy, String> {
    match PolicyName::named(text) {
        None if text == "off" => Ok(Policy(None)),
        None => {
            let names = PolicyName::ALL.map(PolicyName::name);
            Err(format!(
                "there is no such policy; use {} or off",
                names.join(", ")
            ))
        }
        policy => Ok(Policy(policy)),
    }
}

/// A longest time; `None`: there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Longest(pub(super) Option<Duration>);

pub(super) fn waiting(text: &str) -> Result<Longest, String> {
    if text == "forever" {
        return Ok(Longest(None));
    }
    let end = text.find(|letter: char| !letter.is_ascii_digit());
    let (digits, unit) = text.split_at(end.unwrap_or(text.len()));
    let unit_seconds = match unit.trim() {
        "s" => Some(1),
        "min" => Some(60),
        "h" => Some(3600),
        "" if digits == "0" => Some(1),
        _ => None,
    };
    let number: Option<u64> = digits.parse().ok();
    let seconds = number
        .zip(unit_seconds)
        .and_then(|(number, unit)| number.checked_mul(unit));
    match seconds {
        Some(seconds) => Ok(Longest(Some(Duration::from_secs(seconds)))),
        None => Err("give a time as 90s, 5min or 2h, or 0, or forever".to_owned()),
    }
}

/// Takes the names that the schedulers know.
pub(crate) fn scheduler(text: &str) -> Result<String, String> {
    ropewalk_sched::by_name(text)
        .map(|_| text.to_owned())
        .map_err(|error| error.to_string())
}

/// Cuts at white space; single and double quotes keep it, a backslash keeps the next character.
pub(crate) fn cut_words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            (letter, Some(open)) if letter == open => quote = None,
            ('\'' | '"', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            ('\\', None | Some('"')) => match letters.next() {
                Some(next) => word.get_or_insert_default().push(next),
                None => return Err("a backslash at the end escapes nothing".to_owned()),
            },
            (letter, None) if letter.is_whitespace() => words.extend(word.take()),
            (letter, _) => word.get_or_insert_default().push(letter),
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed".to_owned());
    }
    words.extend(word);
    Ok(words)
}

/// Reads a command with its own options.
pub(super) fn words(text: &str) -> Result<Words, String> {
    let words = cut_words(text)?;
    if words.is_empty() {
        return Err("name a command, for instance ssh".to_owned());
    }
    Ok(Words(words.into_iter().map(OsString::from).collect()))
}

/// A file in which something is remembered, `name` in the user's folder unless given; `None` for off, or when there
/// is no home to keep it in.
#[must_use]
pub fn remembering_file(text: &OsStr, name: &str) -> Option<PathBuf> {
    if text == "off" {
        return None;
    }
    if text != "auto" {
        return Some(PathBuf::from(text));
    }
    // Relative folders are to be ignored, says the XDG base directory specification.
    let set = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|folder| folder.is_absolute())
    };
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(state.join("ropewalk").join(name))
}

/// The file of remembered speeds.
pub(crate) fn speeds_file(text: &OsStr) -> Option<PathBuf> {
    remembering_file(text, "speeds.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commands with their own options are cut as a shell would.
    #[test]
    fn words_are_cut_as_in_a_shell() {
        let cut = |text| {
            words(text).map(|words| {
                words
                    .0
                    .into_iter()
                    .map(|w| w.into_string().unwrap())
                    .collect::<Vec<_>>()
            })
        };
        assert_eq!(cut("ssh -F my.conf").unwrap(), ["ssh", "-F", "my.conf"]);
        assert_eq!(
            cut(r#" ssh  -o "A B" 'c"d' e\ f "" "#).unwrap(),
            ["ssh", "-o", "A B", "c\"d", "e f", ""]
        );
        for text in ["", "  ", "ssh 'x", "ssh \\"] {
            assert!(cut(text).is_err(), "{text}");
        }
    }

    /// Choices that are none are refused by name.
    #[test]
    fn wrong_choices_are_named() {
        assert!(lane("carrier-pigeon").unwrap_err().contains("no such lane"));
        assert!(scheduler("best").unwrap_err().contains("no scheduler"));
    }

    /// Times need a unit, but for none at all.
    #[test]
    fn times_are_read() {
        for (text, seconds) in [
            ("0", Some(0)),
            ("90s", Some(90)),
            ("5 min", Some(300)),
            ("2h", Some(7200)),
            ("forever", None),
        ] {
            assert_eq!(waiting(text), Ok(Longest(seconds.map(Duration::from_secs))));
        }
        for text in [
            "",
            "5",
            "s",
            "-1s",
            "1.5h",
            "never",
            "99999999999999999999h",
        ] {
            assert!(waiting(text).unwrap_err().contains("90s"), "{text}");
        }
    }

    /// Rates need a unit and a value; a host may contain an equals sign.
    #[test]
    fn rates_are_read() {
        assert_eq!(
            host_rate("a=b=1Gbit"),
            Ok(("a=b".to_owned(), ByteRate(125_000_000)))
        );
        for text in ["a", "=1Gbit", "a=0", "a=5"] {
            assert!(host_rate(text).is_err(), "{text}");
        }
        assert_eq!(lane_rate("1.6Gbit"), Ok(ByteRate(200_000_000)));
        let error = lane_rate("a=1Gbit").unwrap_err();
        assert!(error.contains("--node-rate a=1Gbit"), "{error}");
        assert_eq!(mtu("9000"), Ok(Mtu(Some(9000))));
        assert!(mtu("576").unwrap_err().contains("1280"));
        assert_eq!(receive_buffer("4MiB"), Ok(ReceiveBuffer(Some(4 << 20))));
        assert!(receive_buffer("1kB").is_err());
        assert_eq!(prefetch("4MiB").unwrap().to_string(), "4MiB");
        assert!(prefetch("1kB").unwrap_err().contains("64 KiB"));
    }
}
