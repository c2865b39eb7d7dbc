//! The JSON form of a problem, as `cases/schedule` has it.
//!
//! The format keeps the paper's words writer and reader. All sizes, offsets and speeds are read as 64-bit
//! integers; a number with a fraction or an exponent is refused rather than rounded. Keys that are not
//! known are skipped, so that a case may carry notes.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use super::{PairCap, Problem, Receiver, Sender, Trunk};
use crate::range::RangeSet;

/// A named problem with what is known about its best schedule.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Case {
    /// Short name.
    pub name: String,
    /// What the case is about, for people.
    pub about: String,
    /// The transfer itself.
    pub problem: Problem,
    /// What a planner must find; empty when the file does not say.
    pub expected: Expected,
}

/// What is known about a case. Times are seconds; fractions are `"numerator/denominator"`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[allow(non_snake_case, reason = "the keys of the file format")]
pub struct Expected {
    /// Bytes that cross, each destination's wanted bytes added up.
    pub bytes: Option<u128>,
    /// Least possible time without relay.
    pub optimal_T: Option<f64>,
    /// The same as a fraction; only without pair caps and trunks.
    pub optimal_T_exact: Option<String>,
    /// Least time if only sending speeds counted.
    pub writer_bound_T: Option<f64>,
    /// Least time if only receiving speeds counted.
    pub reader_bound_T: Option<f64>,
    /// Time of the proportional rule.
    pub greedy_T: Option<f64>,
    /// Time of equal shares.
    pub uniform_T: Option<f64>,
    /// Least time when receivers may pass data on.
    pub relay_T: Option<f64>,
    /// The same as a fraction.
    pub relay_T_exact: Option<String>,
    /// Why the case must be refused.
    pub error: Option<String>,
    /// For each destination, what no sender can get to it.
    #[serde(default)]
    pub missing: BTreeMap<String, RangeSet>,
}

/// Why a case could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaseError {
    /// Not JSON, or a value of the wrong kind; the message has line and column.
    #[error(
        "not a scheduling case: {0}; sizes and speeds are whole numbers of at most 64 bits, ranges are [start, end]"
    )]
    Json(#[from] serde_json::Error),
    /// Two nodes of one side share a name.
    #[error("two {side} are called \"{name}\"; give each its own name, or one all the ranges")]
    DuplicateName {
        /// `writers` or `readers`.
        side: &'static str,
        /// The name.
        name: String,
    },
    /// A cap or trunk names a node that is not there.
    #[error("{place} names \"{name}\", which is not one of the {side}; check the spelling")]
    UnknownName {
        /// `pair_caps` or `trunks`.
        place: &'static str,
        /// `writers` or `readers`.
        side: &'static str,
        /// The name.
        name: String,
    },
}

impl Case {
    /// Reads a case from JSON text.
    ///
    /// # Errors
    /// [`CaseError`], for text that is not such JSON, names used twice and names not known.
    pub fn parse(text: &str) -> Result<Self, CaseError> {
        let file: CaseFile = serde_json::from_str(text)?;
        let writers = index_names("writers", file.writers.iter().map(|w| &w.name))?;
        let readers = index_names("readers", file.readers.iter().map(|r| &r.name))?;
        let writer = |place, name: &String| find(&writers, place, "writers", name);
        let reader = |place, name: &String| find(&readers, place, "readers", name);
        let pair_caps = file.pair_caps.iter().map(|cap| {
            Ok(PairCap {
                sender: writer("pair_caps", &cap.writer)?,
                receiver: reader("pair_caps", &cap.reader)?,
                cap: cap.cap,
            })
        });
        let pair_caps = pair_caps.collect::<Result<_, CaseError>>()?;
        let trunks = file.trunks.iter().map(|trunk| {
            let senders = trunk.writers.iter().map(|name| writer("trunks", name));
            let relays = trunk.relays.iter().map(|name| reader("trunks", name));
            let receivers = trunk.readers.iter().map(|name| reader("trunks", name));
            Ok(Trunk {
                name: trunk.name.clone(),
                senders: senders.collect::<Result<_, CaseError>>()?,
                relays: relays.collect::<Result<_, CaseError>>()?,
                receivers: receivers.collect::<Result<_, CaseError>>()?,
                cap: trunk.cap,
            })
        });
        let trunks = trunks.collect::<Result<_, CaseError>>()?;
        let senders = file.writers.into_iter().map(|w| Sender {
            name: w.name,
            up: w.up,
            ranges: w.ranges,
        });
        let receivers = file.readers.into_iter().map(|r| Receiver {
            name: r.name,
            down: r.down,
            ranges: r.ranges,
            destination: r.dest,
            relay_up: r.up,
        });
        Ok(Self {
            name: file.name,
            about: file.about,
            problem: Problem {
                senders: senders.collect(),
                receivers: receivers.collect(),
                pair_caps,
                trunks,
            },
            expected: file.expected,
        })
    }
}

fn index_names<'a>(
    side: &'static str,
    names: impl Iterator<Item = &'a String>,
) -> Result<HashMap<String, usize>, CaseError> {
    let mut index = HashMap::new();
    for (position, name) in names.enumerate() {
        if index.insert(name.clone(), position).is_some() {
            return Err(CaseError::DuplicateName {
                side,
                name: name.clone(),
            });
        }
    }
    Ok(index)
}

fn find(
    index: &HashMap<String, usize>,
    place: &'static str,
    side: &'static str,
    name: &str,
) -> Result<usize, CaseError> {
    index
        .get(name)
        .copied()
        .ok_or_else(|| CaseError::UnknownName {
            place,
            side,
            name: name.to_owned(),
        })
}

#[derive(Deserialize)]
struct CaseFile {
    #[serde(default)]
    name: String,
    #[serde(default)]
    about: String,
    writers: Vec<CaseWriter>,
    readers: Vec<CaseReader>,
    #[serde(default)]
    pair_caps: Vec<CasePairCap>,
    #[serde(default)]
    trunks: Vec<CaseTrunk>,
    #[serde(default)]
    expected: Expected,
}

#[derive(Deserialize)]
struct CaseWriter {
    name: String,
    up: u64,
    ranges: RangeSet,
}

#[derive(Deserialize)]
struct CaseReader {
    name: String,
    down: u64,
    ranges: RangeSet,
    dest: Option<String>,
    up: Option<u64>,
}

#[derive(Deserialize)]
struct CasePairCap {
    writer: String,
    reader: String,
    cap: u64,
}

#[derive(Deserialize)]
struct CaseTrunk {
    #[serde(default)]
    name: String,
    writers: Vec<String>,
    #[serde(default)]
    relays: Vec<String>,
    readers: Vec<String>,
    cap: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range::Range;

    fn case(writer: &str, more: &str) -> Result<Case, CaseError> {
        let reader = r#"{"name": "r", "down": 1, "ranges": []}"#;
        Case::parse(&format!(
            r#"{{"writers": [{writer}], "readers": [{reader}]{more}}}"#
        ))
    }

    /// Numbers beyond the digits of a float keep their last digit, and fractions are refused.
    #[test]
    fn numbers_are_exact() {
        let writer = r#"{"name": "w", "up": 9223372036854775807, "ranges": [[9007199254740993, 18446744073709551615]]}"#;
        let sender = case(writer, "").unwrap().problem.senders.remove(0);
        assert_eq!(sender.up, i64::MAX as u64);
        let range = Range::new(9_007_199_254_740_993, u64::MAX);
        assert_eq!(sender.ranges, RangeSet::from(range));
        for number in ["1e9", "1.0", "-1", "18446744073709551616"] {
            let writer = format!(r#"{{"name": "w", "up": {number}, "ranges": []}}"#);
            assert!(case(&writer, "").is_err(), "{number} was taken");
        }
    }

    /// Names that are not there, or there twice, are named in the message.
    #[test]
    fn names_are_checked() {
        let writer = r#"{"name": "w", "up": 1, "ranges": []}"#;
        let twice = case(&format!("{writer}, {writer}"), "").unwrap_err();
        assert!(
            twice.to_string().contains("two writers are called \"w\""),
            "{twice}"
        );
        let cap = r#", "pair_caps": [{"writer": "w", "reader": "x", "cap": 1}]"#;
        let unknown = case(writer, cap).unwrap_err().to_string();
        assert!(unknown.contains("pair_caps names \"x\""), "{unknown}");
        let trunk = r#", "trunks": [{"writers": ["y"], "readers": ["r"], "cap": 1}]"#;
        let unknown = case(writer, trunk).unwrap_err().to_string();
        assert!(unknown.contains("trunks names \"y\""), "{unknown}");
    }
}
