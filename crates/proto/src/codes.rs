//! Every code by which a program learns how a transfer ended or why it could not go on: one table for the exit status of
//! commands, the control protocol and JSON.
//!
//! Codes of the wire are in groups of ten by the party that must act, and are only ever added.
//!
//! | JSON `outcome` | exit status |
//! |---|---|
//! | `done` | 0 |
//! | `failed` | 1 |
//! | (the command line is wrong; no report) | 2 |
//! | `partial` | 3 |
//! | `refused` | 4 |
//! | `cancelled` | 130 |
//!
//! | JSON `error_kind` | wire | party that must act |
//! |---|---|---|
//! | `usage` | 10 | caller |
//! | `specification` | 11 | caller |
//! | `refused` | 12 | caller |
//! | `interrupted` | 19 | caller |
//! | `node` | 30 | peer |
//! | `missing` | 31 | peer |
//! | `differing` | 32 | peer |
//! | `unreachable` | 40 | network |
//! | `lost` | 41 | network |
//! | `other` | 90 | bug |

use crate::report::{ErrorKind, Outcome};

/// Exit status of everything that went wrong and has none of its own.
pub const EXIT_FAILED: u8 = 1;

/// Exit status of a command whose command line is wrong: nothing was tried.
pub const EXIT_USAGE: u8 = 2;

/// Exit status of what was done in part: the rest is named.
pub const EXIT_PARTIAL: u8 = 3;

/// Exit status of what was refused before anything was changed.
pub const EXIT_REFUSED: u8 = 4;

/// Exit status of a job's run of `serve` that a signal or the end of its master has stopped: the job runs again. One whose transfer was
/// cancelled by name ends as commands do.
pub const EXIT_STOPPED: u8 = 75;

/// Exit status after Ctrl-C or SIGTERM.
pub const EXIT_INTERRUPTED: u8 = 130;

/// The party that must act on an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// The caller: the request cannot be carried out as it is.
    Caller,
    /// The operator of another node: its disk, its files, its agent.
    Peer,
    /// The operator of the network between nodes; the same request may succeed later.
    Network,
    /// The authors of Ropewalk.
    Bug,
}

/// Outcomes: as JSON names them, and the exit status of a command.
pub const OUTCOMES: [(Outcome, &str, u8); 5] = [
    (Outcome::Done, "done", 0),
    (Outcome::Failed, "failed", EXIT_FAILED),
    (Outcome::Partial, "partial", EXIT_PARTIAL),
    (Outcome::Refused, "refused", EXIT_REFUSED),
    (Outcome::Cancelled, "cancelled", EXIT_INTERRUPTED),
];

/// Kinds of errors: as JSON names them, their code on the wire, and the party that must act.
pub const ERRORS: [(ErrorKind, &str, u32, Actor); 10] = [
    (ErrorKind::Usage, "usage", 10, Actor::Caller),
    (ErrorKind::Specification, "specification", 11, Actor::Caller),
    (ErrorKind::Refused, "refused", 12, Actor::Caller),
    (ErrorKind::Interrupted, "interrupted", 19, Actor::Caller),
    (ErrorKind::Node, "node", 30, Actor::Peer),
    (ErrorKind::Missing, "missing", 31, Actor::Peer),
    (ErrorKind::Differing, "differing", 32, Actor::Peer),
    (ErrorKind::Unreachable, "unreachable", 40, Actor::Network),
    (ErrorKind::Lost, "lost", 41, Actor::Network),
    (ErrorKind::Other, "other", 90, Actor::Bug),
];

impl Outcome {
    /// Exit status of a command.
    #[must_use]
    pub fn exit_status(self) -> u8 {
        let row = OUTCOMES.iter().find(|(outcome, ..)| *outcome == self);
        row.map_or(EXIT_FAILED, |(.., status)| *status)
    }
}

impl ErrorKind {
    /// Its number in messages.
    #[must_use]
    pub fn wire(self) -> u32 {
        let row = ERRORS.iter().find(|(kind, ..)| *kind == self);
        row.map_or(90, |(_, _, wire, _)| *wire)
    }

    /// The kind with this number; a number that is not known is `Other`.
    #[must_use]
    pub fn from_wire(code: u32) -> Self {
        let row = ERRORS.iter().find(|(_, _, wire, _)| *wire == code);
        row.map_or(Self::Other, |(kind, ..)| *kind)
    }

    /// The party that must act.
    #[must_use]
    pub fn actor(self) -> Actor {
        let row = ERRORS.iter().find(|(kind, ..)| *kind == self);
        row.map_or(Actor::Bug, |(.., actor)| *actor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names are those of JSON, numbers are unique and come back, and the table above is the code's.
    #[test]
    fn the_table_is_the_codes() {
        let text = include_str!("codes.rs");
        for (outcome, name, status) in OUTCOMES {
            let json = serde_json::to_string(&outcome).unwrap();
            assert_eq!(json, format!("\"{name}\""));
            assert_eq!(outcome.exit_status(), status);
            assert!(
                text.contains(&format!("//! | `{name}` | {status} |")),
                "{name}"
            );
        }
        for (kind, name, wire, actor) in ERRORS {
            let json = serde_json::to_string(&kind).unwrap();
            assert_eq!(json, format!("\"{name}\""));
            assert_eq!(kind.wire(), wire);
            assert_eq!(ErrorKind::from_wire(wire), kind);
            assert_eq!(kind.actor(), actor);
            let who = format!("{actor:?}").to_lowercase();
            let row = format!("//! | `{name}` | {wire} | {who} |");
            assert!(text.contains(&row), "{row}");
        }
        assert_eq!(ErrorKind::from_wire(0), ErrorKind::Other);
        let mut codes = ERRORS.map(|(_, _, wire, _)| wire);
        codes.sort_unstable();
        assert!(codes.is_sorted_by(|a, b| a < b), "a number stands twice");
        assert!(OUTCOMES.iter().all(|(.., status)| *status != EXIT_USAGE));
    }
}
