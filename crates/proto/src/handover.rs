//! What a command hands over to a standing master on another host: which questions there are, and what a master takes from a network.
//!
//! A job of a standing master is a command line that its host runs. From a network it takes none: a submission is the text of a
//! specification and options of a closed list, each with a bounded value, from which the master puts a command line of its own together.
//! No option of the list names a file, a program or a host to log in to.
//!
//! Left out on purpose: reading specification and values, which is the program's, and which command may ask, which the connection has proved.

use std::fmt::Write as _;

use crate::control::{ServeOption, ToServe, to_serve};
use crate::version::version;

/// Bytes of the key of a submission.
pub const KEY_LEN: usize = 16;

/// Longest specification: some ten thousand rows.
pub const SPECIFICATION_MAX: usize = 1 << 20;

/// Most options: a `--node-rate` for each of some hundred hosts, and each other option once.
pub const OPTIONS_MAX: usize = 256;

/// Longest value: a list of some dozen interfaces.
pub const VALUE_MAX: usize = 256;

/// Highest priority of a job that is handed over: what jobs of the user of the master have unless that user gives them another one. With a
/// higher one the holders of a token could keep those from running.
pub const PRIORITY_MAX: i32 = 0;

/// Longest question: a specification and all options, with names, lengths and the version around them.
pub const QUESTION_MAX: usize = SPECIFICATION_MAX + OPTIONS_MAX * (VALUE_MAX + 64) + 1024;

/// Longest answer: the jobs of a long queue, or the report of a transfer between some thousand nodes.
pub const ANSWER_MAX: usize = 64 << 20;

/// What follows an option of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Nothing.
    Nothing,
    /// A value.
    Value,
    /// A value, and the option may be repeated.
    Values,
}

/// The options of `ropewalk transfer` that can be handed over.
pub const OPTIONS: [(&str, Takes); 23] = [
    ("atomic", Takes::Nothing),
    ("check", Takes::Value),
    ("keep-partial", Takes::Nothing),
    ("lane", Takes::Value),
    ("limit", Takes::Value),
    ("monitor", Takes::Value),
    ("mtu", Takes::Value),
    ("no-sync", Takes::Nothing),
    ("node-rate", Takes::Values),
    ("plain", Takes::Nothing),
    ("prefetch", Takes::Value),
    ("rails", Takes::Value),
    ("rate", Takes::Value),
    ("receive-buffer", Takes::Value),
    ("replan", Takes::Value),
    ("require-all", Takes::Nothing),
    ("scheduler", Takes::Value),
    ("streams", Takes::Value),
    ("streams-policy", Takes::Value),
    ("striping", Takes::Value),
    ("verify", Takes::Value),
    ("wait", Takes::Value),
    // A file only where it is on or off: see `check_option`.
    ("speeds", Takes::Value),
];

/// Values of `--speeds` that name no file.
const SPEEDS: [&str; 2] = ["auto", "off"];

/// Why a question is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandoverError {
    /// Of another version.
    #[error(
        "the command has version {0}, and this `ropewalk serve` {own}; install the same Ropewalk on both hosts",
        own = version()
    )]
    Version(String),
    /// It asks nothing that this version knows.
    #[error("it asks nothing that this `ropewalk serve` knows")]
    Empty,
    /// The key has another length.
    #[error("the key of a job has {KEY_LEN} bytes, not {0}")]
    Key(usize),
    /// The specification is too long.
    #[error(
        "the specification has {0} bytes, and {SPECIFICATION_MAX} are the most that is handed over; divide it, or remove its \
         `master` row"
    )]
    Specification(usize),
    /// Too many options.
    #[error("{0} options, and {OPTIONS_MAX} are the most that are handed over")]
    Options(usize),
    /// An option that is not of the list.
    #[error(
        "--{0} cannot be handed over; leave it out, or remove the `master` row of the specification"
    )]
    Option(String),
    /// An option that may be there once.
    #[error("--{0} is there twice")]
    Twice(&'static str),
    /// An option's value is too long, has control characters, or is one too many.
    #[error("the value of --{0} cannot be handed over")]
    Value(&'static str),
}

/// What a command asks a standing master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Take this job.
    Submit(Submission),
    /// Say how a job gets on until it has ended.
    Follow {
        /// Its number.
        job: u64,
        /// Its key; `None`: whichever has this number.
        key: Option<[u8; KEY_LEN]>,
    },
    /// Which jobs were handed over?
    List,
    /// Take a job out, or stop it.
    Cancel {
        /// Its number.
        job: u64,
    },
}

/// A job that is handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// By chance: what is received twice with one key is one job.
    pub key: [u8; KEY_LEN],
    /// Its text, of bounded length and not read yet.
    pub specification: String,
    /// `--name`, or `--name=value` as one argument, of [`OPTIONS`] alone; values are not read yet.
    pub words: Vec<String>,
    /// Higher ones run first; at most [`PRIORITY_MAX`].
    pub priority: i32,
}

impl Question {
    /// Reads a question of a command.
    ///
    /// # Errors
    /// [`HandoverError`] says why it is refused.
    pub fn read(message: ToServe) -> Result<Self, HandoverError> {
        if message.version != version() {
            return Err(HandoverError::Version(shown(&message.version)));
        }
        match message.body.ok_or(HandoverError::Empty)? {
            to_serve::Body::Submit(submit) => {
                let len = submit.specification.len();
                if len > SPECIFICATION_MAX {
                    return Err(HandoverError::Specification(len));
                }
                Ok(Self::Submit(Submission {
                    key: read_key(&submit.key)?,
                    specification: submit.specification,
                    words: words(&submit.options)?,
                    priority: submit.priority.min(PRIORITY_MAX),
                }))
            }
            to_serve::Body::Follow(follow) => Ok(Self::Follow {
                job: follow.job,
                key: match follow.key.is_empty() {
                    true => None,
                    false => Some(read_key(&follow.key)?),
                },
            }),
            to_serve::Body::List(_) => Ok(Self::List),
            to_serve::Body::Cancel(cancel) => Ok(Self::Cancel { job: cancel.job }),
        }
    }
}

fn read_key(key: &[u8]) -> Result<[u8; KEY_LEN], HandoverError> {
    key.try_into().map_err(|_| HandoverError::Key(key.len()))
}

/// Options as words of a command line.
///
/// # Errors
/// [`HandoverError`] names the first that cannot be handed over.
pub fn words(options: &[ServeOption]) -> Result<Vec<String>, HandoverError> {
    if options.len() > OPTIONS_MAX {
        return Err(HandoverError::Options(options.len()));
    }
    let mut seen: Vec<&str> = Vec::new();
    let mut words = Vec::new();
    for option in options {
        let known = OPTIONS.iter().find(|(name, _)| *name == option.name);
        let &(name, takes) = known.ok_or_else(|| HandoverError::Option(shown(&option.name)))?;
        check_value(name, takes, &option.value)?;
        if takes != Takes::Values {
            if seen.contains(&name) {
                return Err(HandoverError::Twice(name));
            }
            seen.push(name);
        }
        let mut word = format!("--{name}");
        if takes != Takes::Nothing {
            let _ = write!(word, "={}", option.value);
        }
        words.push(word);
    }
    Ok(words)
}

fn check_value(name: &'static str, takes: Takes, value: &str) -> Result<(), HandoverError> {
    let is_wanted = (takes == Takes::Nothing) == value.is_empty();
    let is_plain = value.len() <= VALUE_MAX && !value.chars().any(char::is_control);
    let is_file = name == "speeds" && !SPEEDS.contains(&value);
    match is_wanted && is_plain && !is_file {
        true => Ok(()),
        false => Err(HandoverError::Value(name)),
    }
}

/// What a peer has written, short and without control characters.
fn shown(text: &str) -> String {
    const SHOWN_MAX: usize = 64;
    let letters = text.chars().filter(|letter| !letter.is_control());
    letters.take(SHOWN_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{ServeFollow, ServeSubmit};

    fn option(name: &str, value: &str) -> ServeOption {
        ServeOption {
            name: name.into(),
            value: value.into(),
        }
    }

    fn submit(options: &[ServeOption]) -> ToServe {
        ToServe {
            version: version().into(),
            body: Some(to_serve::Body::Submit(ServeSubmit {
                key: vec![7; KEY_LEN],
                specification: "id x".into(),
                options: options.to_vec(),
                priority: -3,
            })),
        }
    }

    /// What is of the list becomes words of its own, a value never an option.
    #[test]
    fn options_become_words() {
        let options = [
            option("limit", "--ssh=touch /tmp/x"),
            option("plain", ""),
            option("node-rate", "a=1Gbit"),
            option("node-rate", "b=2Gbit"),
            option("speeds", "off"),
        ];
        let Ok(Question::Submit(submission)) = Question::read(submit(&options)) else {
            panic!("it is refused")
        };
        assert_eq!(
            submission.words,
            [
                "--limit=--ssh=touch /tmp/x",
                "--plain",
                "--node-rate=a=1Gbit",
                "--node-rate=b=2Gbit",
                "--speeds=off"
            ]
        );
        assert_eq!((submission.key, submission.priority), ([7; KEY_LEN], -3));
    }

    /// Other hosts can have their jobs run later than those of the master's user, and not earlier.
    #[test]
    fn priorities_are_bounded() {
        for (given, taken) in [
            (i32::MAX, 0),
            (1, 0),
            (0, 0),
            (-1, -1),
            (i32::MIN, i32::MIN),
        ] {
            let mut question = submit(&[]);
            if let Some(to_serve::Body::Submit(submit)) = &mut question.body {
                submit.priority = given;
            }
            let Ok(Question::Submit(submission)) = Question::read(question) else {
                panic!("it is refused")
            };
            assert_eq!(submission.priority, taken);
        }
    }

    /// Programs, files of the master's host, hosts to log in to, and what is no option at all, are refused by name.
    #[test]
    fn other_options_are_refused() {
        for name in [
            "ssh",
            "start",
            "token-file",
            "remote-path",
            "ports",
            "detach",
            "json",
            "--plain",
            "plain=",
            "",
            "help",
        ] {
            let refused = Question::read(submit(&[option(name, "x")])).unwrap_err();
            assert_eq!(refused, HandoverError::Option(name.into()));
        }
        let long = "9".repeat(VALUE_MAX + 1);
        for (name, value) in [
            ("plain", "x"),
            ("limit", ""),
            ("limit", "1\n2"),
            ("limit", "\0"),
            ("limit", &long),
            ("speeds", "/etc/passwd"),
        ] {
            let refused = Question::read(submit(&[option(name, value)])).unwrap_err();
            assert_eq!(refused, HandoverError::Value(name), "{value}");
        }
        let twice = [option("limit", "1"), option("limit", "2")];
        let refused = Question::read(submit(&twice)).unwrap_err();
        assert_eq!(refused, HandoverError::Twice("limit"));
        let many = vec![option("node-rate", "a=1"); OPTIONS_MAX + 1];
        let refused = Question::read(submit(&many)).unwrap_err();
        assert_eq!(refused, HandoverError::Options(OPTIONS_MAX + 1));
    }

    /// Another version is refused in words that name both, whatever else it asks.
    #[test]
    fn other_versions_are_refused() {
        let other = ToServe {
            version: "0.0\u{1b}[2J".into(),
            body: None,
        };
        let refused = Question::read(other).unwrap_err().to_string();
        assert!(refused.contains("version 0.0[2J,"), "{refused}");
        assert!(refused.contains(version()), "{refused}");
        let empty = ToServe {
            version: version().into(),
            body: None,
        };
        assert_eq!(Question::read(empty), Err(HandoverError::Empty));
    }

    /// A job is named by its number, and by its key where one is given.
    #[test]
    fn keys_are_whole_or_absent() {
        let follow = |key: Vec<u8>| ToServe {
            version: version().into(),
            body: Some(to_serve::Body::Follow(ServeFollow { job: 3, key })),
        };
        let read = Question::read(follow(Vec::new())).unwrap();
        assert_eq!(read, Question::Follow { job: 3, key: None });
        let read = Question::read(follow(vec![1; KEY_LEN])).unwrap();
        let key = Some([1; KEY_LEN]);
        assert_eq!(read, Question::Follow { job: 3, key });
        for len in [1, KEY_LEN - 1, KEY_LEN + 1] {
            let refused = Question::read(follow(vec![1; len]));
            assert_eq!(refused, Err(HandoverError::Key(len)));
        }
    }

    /// The bytes of a submission, field by field.
    #[test]
    fn submissions_have_these_bytes() {
        use prost::Message as _;
        let message = ToServe {
            version: "v".into(),
            ..submit(&[option("plain", "")])
        };
        let golden = [
            &[0x0a, 1, b'v', 0x12, 35, 0x0a, 16][..],
            &[7; 16],
            &[0x12, 4, b'i', b'd', b' ', b'x'],
            &[0x1a, 7, 0x0a, 5, b'p', b'l', b'a', b'i', b'n', 0x20, 5],
        ]
        .concat();
        assert_eq!(message.encode_to_vec(), golden);
    }
}
