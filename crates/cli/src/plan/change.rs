//! The language of `plan --what-if`: one change, written as a short sentence.
//!
//! Reading only; what a change does to a transfer is in `what_if`. Words are cut as a shell would, so
//! that a quoted name may hold white space.

use std::fmt;

use ropewalk_model::{ByteRate, Bytes, Range, RangeSet};

use crate::options::cut_words;

/// One change, with the text it was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// As it was typed.
    pub text: String,
    /// What it asks for.
    pub action: Action,
}

/// What a change asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// New speeds of one node.
    Speed {
        /// `None` where the keys tell: `up` is a writer's, `down` a reader's.
        side: Option<Side>,
        /// The node.
        name: String,
        /// Its speeds.
        speeds: Speeds,
    },
    /// New speeds of every node.
    SpeedOfAll(Speeds),
    /// A node takes no part.
    Remove {
        /// `None` when the name is enough.
        side: Option<Side>,
        /// The node.
        name: String,
    },
    /// A node more.
    Add {
        /// What it is.
        side: Side,
        /// Its name, which no other node of its side has.
        name: String,
        /// Its speed in bytes per second; `None`: that of the node it is like.
        speed: Option<u64>,
        /// Whose ranges, links and destination it shares.
        like: Option<String>,
        /// What it holds or wants besides.
        ranges: RangeSet,
        /// The shared destination a reader writes to.
        destination: Option<String>,
    },
    /// A limit between two nodes.
    Pair {
        /// Who sends.
        writer: String,
        /// Who receives.
        reader: String,
        /// The limit; `None` takes it away.
        cap: Option<Speed>,
    },
    /// Another limit of a trunk of the file.
    Trunk {
        /// Its name, or its position in the file, from 0.
        trunk: String,
        /// The limit.
        cap: Speed,
    },
    /// A limit that several pairs share.
    AddTrunk {
        /// Who sends over it.
        writers: Vec<String>,
        /// Who receives from it.
        readers: Vec<String>,
        /// Bytes per second.
        cap: u64,
    },
}

/// The two kinds of nodes, in the words of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Has data, sends.
    Writer,
    /// Wants data, receives.
    Reader,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Writer => "writer",
            Self::Reader => "reader",
        })
    }
}

/// Speeds of a change; what is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Speeds {
    /// Of writers.
    pub up: Option<Speed>,
    /// Of readers.
    pub down: Option<Speed>,
}

/// A new speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speed {
    /// Bytes per second.
    Exactly(u64),
    /// The old one times `digits` / 10^`decimals`.
    Times {
        /// Digits of the factor without its point.
        digits: u64,
        /// How many of them stand behind the point.
        decimals: u32,
    },
}

impl Speed {
    /// The new speed in bytes per second, rounded down.
    pub(crate) fn of(self, old: u64) -> u64 {
        match self {
            Self::Exactly(speed) => speed,
            Self::Times { digits, decimals } => {
                let product = u128::from(old) * u128::from(digits) / 10_u128.pow(decimals);
                u64::try_from(product).unwrap_or(u64::MAX)
            }
        }
    }
}

/// Digits that a factor may have: more would be a slip, and fewer keeps its products small.
const FACTOR_DIGITS_MAX: usize = 12;

/// What a change may look like, for every error of this file.
const FORMS: &str = "write for instance 'w0 up=10Gbit', 'all writers up=x2', 'remove w1', 'add writer w9 like w0', \
                     'add reader r5 down=1Gbit 0-999', 'pair w0 r0 cap=100Mbit' or 'trunk 0 cap=x2'";

/// Reads one change.
pub(crate) fn parse(text: &str) -> Result<Change, String> {
    let words = cut_words(text)?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let action = match words.as_slice() {
        ["all", rest @ ..] => all(rest)?,
        ["remove", rest @ ..] => remove(rest)?,
        ["add", "trunk", rest @ ..] => add_trunk(rest)?,
        ["add", rest @ ..] => add(rest)?,
        ["pair", rest @ ..] => pair(rest)?,
        ["trunk", rest @ ..] => trunk(rest)?,
        [word, name, rest @ ..] if side(word).is_some() => one(side(word), name, rest)?,
        [name, rest @ ..] => one(None, name, rest)?,
        [] => return Err(format!("a change is empty; {FORMS}")),
    };
    Ok(Change {
        text: text.trim().to_owned(),
        action,
    })
}

/// The side that a word names; the words of reports are understood too.
fn side(word: &str) -> Option<Side> {
    match word {
        "writer" | "sender" => Some(Side::Writer),
        "reader" | "receiver" => Some(Side::Reader),
        _ => None,
    }
}

fn one(side: Option<Side>, name: &str, rest: &[&str]) -> Result<Action, String> {
    if rest.is_empty() {
        return Err(format!("\"{name}\": what of it? {FORMS}"));
    }
    let speeds = speeds(rest)?;
    match side {
        Some(Side::Writer) if speeds.down.is_some() => Err(wrong_key(Side::Writer, "up")),
        Some(Side::Reader) if speeds.up.is_some() => Err(wrong_key(Side::Reader, "down")),
        _ => Ok(Action::Speed {
            side,
            name: name.to_owned(),
            speeds,
        }),
    }
}

fn wrong_key(side: Side, key: &str) -> String {
    format!("the speed of a {side} is {key}=RATE")
}

fn all(rest: &[&str]) -> Result<Action, String> {
    let named = rest
        .first()
        .and_then(|word| side(word.strip_suffix('s').unwrap_or(word)));
    let rest = if named.is_some() { &rest[1..] } else { rest };
    if rest.is_empty() {
        return Err(format!("\"all\": what of them? {FORMS}"));
    }
    match (named, speeds(rest)?) {
        (Some(Side::Writer), Speeds { down: Some(_), .. }) => Err(wrong_key(Side::Writer, "up")),
        (Some(Side::Reader), Speeds { up: Some(_), .. }) => Err(wrong_key(Side::Reader, "down")),
        (_, speeds) => Ok(Action::SpeedOfAll(speeds)),
    }
}

fn remove(rest: &[&str]) -> Result<Action, String> {
    match *rest {
        [name] => Ok(Action::Remove {
            side: None,
            name: name.to_owned(),
        }),
        [word, name] if side(word).is_some() => Ok(Action::Remove {
            side: side(word),
            name: name.to_owned(),
        }),
        _ => Err("write remove NAME, or remove writer NAME; one node in each change".to_owned()),
    }
}

fn add(rest: &[&str]) -> Result<Action, String> {
    const FORM: &str = "write add writer NAME up=RATE with 'like NODE' or ranges such as 0-999, or add reader NAME \
                        down=RATE with the same, or add trunk WRITER,... READER,... cap=RATE";
    let [word, name, rest @ ..] = rest else {
        return Err(FORM.to_owned());
    };
    let Some(side) = side(word) else {
        return Err(format!("\"{word}\" is neither writer nor reader; {FORM}"));
    };
    let (mut speed, mut like, mut destination) = (None, None, None);
    let mut ranges = RangeSet::new();
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        match (word.split_once('='), side) {
            (Some(("up", text)), Side::Writer) | (Some(("down", text)), Side::Reader) => {
                speed = Some(rate(text)?);
            }
            (Some(("up", _)), Side::Reader) => return Err(wrong_key(side, "down")),
            (Some(("down", _)), Side::Writer) => return Err(wrong_key(side, "up")),
            (Some(("dest", text)), Side::Reader) if !text.is_empty() => {
                destination = Some(text.to_owned());
            }
            (None, _) if *word == "like" => match words.next() {
                Some(node) => like = Some((*node).to_owned()),
                None => return Err(format!("no node after `like`; {FORM}")),
            },
            _ => ranges.insert(range(word).ok_or_else(|| {
                format!("\"{word}\" is neither a speed nor a range of bytes; {FORM}")
            })?),
        }
    }
    if like.is_none() && speed.is_none() {
        return Err(format!("how fast is {name}? {FORM}"));
    }
    if like.is_none() && ranges.is_empty() {
        let verb = match side {
            Side::Writer => "hold",
            Side::Reader => "want",
        };
        return Err(format!("what does {name} {verb}? {FORM}"));
    }
    Ok(Action::Add {
        side,
        name: (*name).to_owned(),
        speed,
        like,
        ranges,
        destination,
    })
}

fn pair(rest: &[&str]) -> Result<Action, String> {
    const FORM: &str =
        "write pair WRITER READER cap=RATE; cap=0 closes the pair, cap=none frees it";
    let [writer, reader, cap] = rest else {
        return Err(FORM.to_owned());
    };
    let cap = cap.strip_prefix("cap=").ok_or(FORM)?;
    Ok(Action::Pair {
        writer: (*writer).to_owned(),
        reader: (*reader).to_owned(),
        cap: match cap {
            "none" => None,
            text => Some(speed(text)?),
        },
    })
}

fn trunk(rest: &[&str]) -> Result<Action, String> {
    const FORM: &str = "write trunk NAME cap=RATE; a trunk without a name is counted from 0";
    let [trunk, cap] = rest else {
        return Err(FORM.to_owned());
    };
    Ok(Action::Trunk {
        trunk: (*trunk).to_owned(),
        cap: speed(cap.strip_prefix("cap=").ok_or(FORM)?)?,
    })
}

fn add_trunk(rest: &[&str]) -> Result<Action, String> {
    const FORM: &str = "write add trunk WRITER,... READER,... cap=RATE";
    let [writers, readers, cap] = rest else {
        return Err(FORM.to_owned());
    };
    let names = |text: &str| text.split(',').map(str::to_owned).collect();
    Ok(Action::AddTrunk {
        writers: names(writers),
        readers: names(readers),
        cap: rate(cap.strip_prefix("cap=").ok_or(FORM)?)?,
    })
}

/// Reads `up=` and `down=`, at least one of them.
fn speeds(words: &[&str]) -> Result<Speeds, String> {
    let mut speeds = Speeds::default();
    for word in words {
        let place = match word.split_once('=') {
            Some(("up", text)) => speeds.up.replace(speed(text)?),
            Some(("down", text)) => speeds.down.replace(speed(text)?),
            _ => return Err(format!("\"{word}\" is not a speed; {FORMS}")),
        };
        if place.is_some() {
            return Err(format!("\"{word}\" says it a second time; say it once"));
        }
    }
    Ok(speeds)
}

fn speed(text: &str) -> Result<Speed, String> {
    match text.strip_prefix('x') {
        Some(factor) => times(factor)
            .ok_or_else(|| format!("\"{text}\" is not a factor; write for instance x2 or x0.5")),
        None => rate(text).map(Speed::Exactly),
    }
}

fn times(factor: &str) -> Option<Speed> {
    let (whole, decimals) = factor.split_once('.').unwrap_or((factor, ""));
    let digits = format!("{whole}{decimals}");
    let plain = !whole.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    if !plain || digits.len() > FACTOR_DIGITS_MAX {
        return None;
    }
    Some(Speed::Times {
        digits: digits.parse().ok()?,
        decimals: u32::try_from(decimals.len()).ok()?,
    })
}

/// Reads a rate; 0 is one, since a node that carries nothing is a question too.
fn rate(text: &str) -> Result<u64, String> {
    match text.parse::<ByteRate>() {
        Ok(rate) => Ok(rate.0),
        Err(error) => Err(error.to_string()),
    }
}

/// Reads a range as people type it: both ends included, or a start and a length.
fn range(word: &str) -> Option<Range> {
    let number = |text: &str| text.parse::<u64>().ok().filter(|_| !text.starts_with('+'));
    if let Some((start, length)) = word.split_once('+') {
        return Range::from_length(number(start)?, length.parse::<Bytes>().ok()?.0);
    }
    let (first, last) = word.split_once('-')?;
    Range::from_inclusive(number(first)?, number(last)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(text: &str) -> Action {
        parse(text).unwrap_or_else(|e| panic!("{text}: {e}")).action
    }

    fn refusal(text: &str) -> String {
        parse(text).expect_err(text)
    }

    /// Every form of the help text is read as it is meant.
    #[test]
    fn every_form_is_read() {
        let ten_gigabit = Speed::Exactly(1_250_000_000);
        assert_eq!(
            action("w0 up=10Gbit"),
            Action::Speed {
                side: None,
                name: "w0".into(),
                speeds: Speeds {
                    up: Some(ten_gigabit),
                    down: None
                },
            }
        );
        let Action::SpeedOfAll(speeds) = action("all readers down=x0.5") else {
            panic!("not for all");
        };
        assert_eq!(speeds.down.map(|speed| speed.of(7)), Some(3));
        assert_eq!(
            action("remove sender \"my host\""),
            Action::Remove {
                side: Some(Side::Writer),
                name: "my host".into()
            }
        );
        assert_eq!(
            action("add reader r5 down=8Mbit 0-999 5000+1KiB dest=d"),
            Action::Add {
                side: Side::Reader,
                name: "r5".into(),
                speed: Some(1_000_000),
                like: None,
                ranges: [Range::new(0, 1000), Range::new(5000, 6024)]
                    .into_iter()
                    .collect(),
                destination: Some("d".into()),
            }
        );
        assert!(matches!(
            action("add writer w9 like w0"),
            Action::Add { speed: None, like: Some(like), .. } if like == "w0"
        ));
        assert!(matches!(
            action("pair w0 r0 cap=0"),
            Action::Pair {
                cap: Some(Speed::Exactly(0)),
                ..
            }
        ));
        assert!(matches!(
            action("pair w0 r0 cap=none"),
            Action::Pair { cap: None, .. }
        ));
        assert!(matches!(
            action("trunk 1 cap=x3"),
            Action::Trunk { ref trunk, .. } if trunk == "1"
        ));
        assert!(matches!(
            action("add trunk a,b c cap=1Gbit"),
            Action::AddTrunk { writers, cap: 125_000_000, .. } if writers == ["a", "b"]
        ));
    }

    /// Factors are exact up to 64 bits and saturate there.
    #[test]
    fn factors_are_exact() {
        let times = |text, old| speed(text).unwrap().of(old);
        assert_eq!(times("x1", u64::MAX), u64::MAX);
        assert_eq!(times("x2", u64::MAX), u64::MAX);
        assert_eq!(times("x1.5", 9_007_199_254_740_993), 13_510_798_882_111_489);
        assert_eq!(times("x0", 5), 0);
        for text in ["x", "x-1", "x1e3", "x.5", "x1.2.3", "x1234567890123"] {
            assert!(speed(text).unwrap_err().contains("not a factor"), "{text}");
        }
    }

    /// Slips say what to write instead.
    #[test]
    fn slips_are_explained() {
        for (text, part) in [
            ("", "a change is empty"),
            ("w0", "what of it?"),
            ("all", "what of them?"),
            ("all writers", "what of them?"),
            ("w0 faster", "\"faster\" is not a speed"),
            ("w0 up=5", "could be bits or bytes"),
            ("w0 up=1Gbit up=2Gbit", "a second time"),
            ("writer w0 down=1Gbit", "the speed of a writer is up=RATE"),
            ("all readers up=x2", "the speed of a reader is down=RATE"),
            ("remove", "write remove NAME"),
            ("remove a b", "one node in each change"),
            ("add node x", "neither writer nor reader"),
            ("add writer x", "how fast is x?"),
            ("add writer x up=1Gbit", "what does x hold?"),
            ("add reader x down=1Gbit", "what does x want?"),
            ("add writer x up=1Gbit 9-5", "neither a speed nor a range"),
            (
                "add writer x up=1Gbit dest=d",
                "neither a speed nor a range",
            ),
            ("add reader x up=1Gbit 0-9", "the speed of a reader is down"),
            ("add writer x like", "no node after `like`"),
            ("pair a b", "cap=0 closes"),
            ("pair a b up=1Gbit", "cap=0 closes"),
            ("trunk one x2", "is counted from 0"),
            ("add trunk a b", "add trunk WRITER"),
            ("w0 'up=1Gbit", "quote is not closed"),
        ] {
            let error = refusal(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
