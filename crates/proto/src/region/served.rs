//! What a target answers to ranges that it does not hold, or that are not to be written.

use ropewalk_model::{Range, RangeSet};

use super::frame::{Part, Status};
use super::rule::Rule;

/// What a target serves of one region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Bytes of the region.
    pub size: u64,
    /// Which nodes puts are sent to.
    pub rule: Rule,
    /// Ranges held.
    pub held: RangeSet,
    /// Ranges owned; puts under [`Rule::Owner`] go nowhere else.
    pub owned: RangeSet,
}

impl Served {
    /// Whether all parts of a get are held.
    ///
    /// # Errors
    /// What is answered.
    pub fn check_get(&self, parts: &[Part]) -> Result<(), (Status, String)> {
        parts
            .iter()
            .try_for_each(|part| self.check(&self.held, part.range(), "held"))
    }

    /// Whether all parts of a put may be written here.
    ///
    /// # Errors
    /// What is answered.
    pub fn check_put(&self, parts: &[Part]) -> Result<(), (Status, String)> {
        let (set, name) = match self.rule {
            Rule::ReadOnly => {
                return Err((Status::ReadOnly, "the region is read-only".into()));
            }
            Rule::All => (&self.held, "held"),
            Rule::Owner => (&self.owned, "owned"),
        };
        parts
            .iter()
            .try_for_each(|part| self.check(set, part.range(), name))
    }

    /// Whether a range that is announced or waited for is here.
    ///
    /// # Errors
    /// What is answered.
    pub fn check_signal(&self, range: Range) -> Result<(), (Status, String)> {
        self.check(&self.held, range, "held")
    }

    fn check(&self, set: &RangeSet, range: Range, name: &str) -> Result<(), (Status, String)> {
        if range.end > self.size {
            let text = format!("the region ends at {}, before {range} does", self.size);
            return Err((Status::Range, text));
        }
        if !set.contains_range(range) {
            return Err((Status::Range, format!("{range} is not {name} here")));
        }
        Ok(())
    }
}
