//! What all transfers and streams of an agent have in common.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use ropewalk_proto::control;
use ropewalk_store::{Buffers, MATCHES_MAX, Roots};

use crate::counts::Counts;
use crate::log::Log;
use crate::tunnel::Tunnel;

/// Held for reading while files are made, given their names or removed: the agent does not exit meanwhile.
pub(crate) type Work = Arc<tokio::sync::RwLock<()>>;

/// The agent, to its transfers and streams.
pub(crate) struct Host {
    pub roots: Roots,
    /// Memory of the program that the agent is part of.
    pub buffers: Buffers,
    /// Patterns that were expanded while the roots were made.
    pub expanded: HashMap<Vec<u8>, Result<Vec<Vec<u8>>, String>>,
    /// Random name of this run.
    pub instance: String,
    pub port: u16,
    pub work: Work,
    /// Through the master that started this agent, if one did.
    pub tunnel: OnceLock<Arc<Tunnel>>,
    pub log: Log,
    pub counts: Counts,
    pub began: Instant,
}

impl Host {
    /// The paths that patterns mean here.
    pub fn expand(&self, patterns: &[Vec<u8>]) -> control::Expanded {
        let mut count = 0;
        let matches = patterns.iter().map(|pattern| {
            let found = match self.expanded.get(pattern) {
                Some(known) => known.clone(),
                None if count > MATCHES_MAX => Err(format!(
                    "the patterns match more than {MATCHES_MAX} paths together; copy with fewer of them"
                )),
                None => ropewalk_store::expand(pattern, Some(&self.roots))
                    .map_err(|error| error.to_string()),
            };
            count += found.as_ref().map_or(0, Vec::len);
            match found {
                Ok(paths) => control::Matches {
                    paths,
                    error: String::new(),
                },
                Err(error) => control::Matches {
                    paths: Vec::new(),
                    error,
                },
            }
        });
        control::Expanded {
            matches: matches.collect(),
        }
    }
}

#[cfg(test)]
impl Host {
    /// Of an agent that accepts no connections and opens no files.
    pub(crate) fn alone() -> Self {
        Self {
            roots: Roots::new(Vec::new()).unwrap(),
            buffers: Buffers::default(),
            expanded: HashMap::new(),
            instance: "alone".into(),
            port: 0,
            work: Work::default(),
            tunnel: OnceLock::new(),
            log: Log::default(),
            counts: Counts::default(),
            began: Instant::now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Patterns are bounded together, too.
    #[test]
    fn patterns_that_match_very_much_are_refused() {
        let many = vec![b"/x".to_vec(); MATCHES_MAX + 1];
        let host = Host {
            expanded: [(b"a*".to_vec(), Ok(many))].into(),
            ..Host::alone()
        };
        let patterns = [b"a*".to_vec(), b"b*".to_vec()];
        let found = host.expand(&patterns).matches;
        assert!(found[0].error.is_empty());
        assert!(found[1].error.contains("together"), "{}", found[1].error);
    }
}
