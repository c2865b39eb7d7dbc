//! Contents of replicas that are not the same: which bytes, at which holders, and what that means for the user.

use ropewalk_model::Range;

use super::super::Receiving;

/// Holders that gave different contents for the same bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The bytes, in the data space.
    pub range: Range,
    /// Names of holders; those of one list gave the same contents.
    pub groups: Vec<Vec<String>>,
}

impl Difference {
    pub(in super::super) fn between(
        receiving: &Receiving,
        range: Range,
        one: &[u32],
        other: &[u32],
    ) -> Self {
        let names = |nodes: &[u32]| nodes.iter().map(|node| receiving.name_of(*node)).collect();
        Self {
            range,
            groups: vec![names(one), names(other)],
        }
    }

    /// In words. `place` says which bytes: a file and a range of it, where that is known.
    #[must_use]
    pub fn describe(&self, place: &str) -> String {
        let mut firsts = self.groups.iter().filter_map(|names| names.first());
        if let Some(one) = firsts.next()
            && firsts.any(|other| other == one)
        {
            return format!(
                "{one} gave different contents of {place} at two times; check that nothing writes to that file, and that host's disk \
                 and memory"
            );
        }
        let most = self.groups.iter().map(Vec::len).max().unwrap_or(0);
        let mut large = self.groups.iter().filter(|names| names.len() == most);
        let opinion = match (large.next(), large.next()) {
            (Some(same), None) if most > 1 => {
                format!(" ({} hold the same)", same.join(" and "))
            }
            _ => String::new(),
        };
        format!(
            "replicas differ: {place}: {} hold different contents though size and time are equal{opinion}; find out which one is right, \
             then copy from that host alone, or repair the other one and run the command again",
            self.groups
                .iter()
                .map(|names| names.first().map_or("?", String::as_str))
                .collect::<Vec<_>>()
                .join(" and ")
        )
    }
}
