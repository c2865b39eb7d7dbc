//! Which node holds which range of a region, and which one serves a get.

use ropewalk_model::{Range, RangeSet};

use super::failure::Failure;
use super::rule::{HolderId, Rule};

/// Requests in flight to one node: 16 MiB of pieces fill a path of 10 Gbit/s and 13 ms, and answers to all of them fit the window
/// that the driver gives its sockets.
pub const REQUESTS_MAX: usize = 64;

/// Runs of bytes whose gets go to the owner; more become one that has them all.
const WRITTEN_MAX: usize = 4096;

/// What one node has said about the region; `None` of one that was not reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Bytes of the region.
    pub size: u64,
    /// Which nodes puts are sent to.
    pub rule: Rule,
    /// Ranges held.
    pub held: RangeSet,
    /// Ranges owned.
    pub owned: RangeSet,
}

/// Why what nodes say does not go together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// No node was reached.
    #[error("no node of the region was reached")]
    NoNode,
    /// Two nodes have different sizes or rules of the region.
    #[error("node {first} and node {second} differ in the {what} of the region")]
    Differ {
        /// One of the nodes.
        first: HolderId,
        /// The other one.
        second: HolderId,
        /// In what.
        what: &'static str,
    },
    /// Two nodes own the same bytes.
    #[error("node {first} and node {second} both own {range}")]
    TwoOwners {
        /// One of the nodes.
        first: HolderId,
        /// The other one.
        second: HolderId,
        /// The bytes.
        range: Range,
    },
}

/// Whether a node takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Here,
    /// No connection to it works at the moment.
    Away,
    Lost,
}

#[derive(Clone, Debug)]
struct Holder {
    held: RangeSet,
    owned: RangeSet,
    presence: Presence,
    /// In flight.
    requests: usize,
    bytes: u64,
    /// Bytes of all requests so far: among equals the one that had less is next.
    served: u64,
}

/// The nodes of a region as an origin sees them.
#[derive(Clone, Debug)]
pub struct Map {
    size: u64,
    rule: Rule,
    holders: Vec<Holder>,
    /// Under [`Rule::Owner`]: bytes that changed as far as this origin knows. Only the owner has them.
    written: RangeSet,
}

/// Where the next bytes of an operation go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    /// One for a get, all that are written for a put.
    pub targets: Vec<HolderId>,
    /// The part from the beginning on that goes there.
    pub range: Range,
}

/// The run that has a byte.
fn run_at(set: &RangeSet, offset: u64) -> Option<Range> {
    let runs = set.as_slice();
    let at = runs.partition_point(|run| run.end <= offset);
    runs.get(at).copied().filter(|run| run.contains(offset))
}

/// Where the first run after a byte begins.
fn next_start(set: &RangeSet, offset: u64) -> u64 {
    let runs = set.as_slice();
    let at = runs.partition_point(|run| run.start <= offset);
    runs.get(at).map_or(u64::MAX, |run| run.start)
}

impl Map {
    /// * `views`: one for each node in the list, `None` for one that was not reached.
    ///
    /// # Errors
    /// [`MapError`], with the two nodes that do not agree.
    pub fn new(views: Vec<Option<View>>) -> Result<Self, MapError> {
        let seen = || {
            views
                .iter()
                .enumerate()
                .filter_map(|(at, view)| Some((at, view.as_ref()?)))
        };
        let Some((first, pattern)) = seen().next() else {
            return Err(MapError::NoNode);
        };
        let (size, rule) = (pattern.size, pattern.rule);
        let mut owned = RangeSet::new();
        for (second, view) in seen() {
            let what = match () {
                () if view.size != size => Some("size"),
                () if view.rule != rule => Some("rule"),
                () => None,
            };
            if let Some(what) = what {
                return Err(MapError::Differ {
                    first,
                    second,
                    what,
                });
            }
            if let Some(range) = owned.intersection(&view.owned).first() {
                let other = seen().find(|(_, view)| !view.owned.clipped(range).is_empty());
                let first = other.map_or(first, |(at, _)| at);
                return Err(MapError::TwoOwners {
                    first,
                    second,
                    range,
                });
            }
            owned = owned.union(&view.owned);
        }
        let holders = views.into_iter().map(|view| {
            let presence = match view {
                Some(_) => Presence::Here,
                None => Presence::Lost,
            };
            let (held, owned) = view.map(|view| (view.held, view.owned)).unwrap_or_default();
            Holder {
                held,
                owned,
                presence,
                requests: 0,
                bytes: 0,
                served: 0,
            }
        });
        Ok(Self {
            size,
            rule,
            holders: holders.collect(),
            written: RangeSet::new(),
        })
    }

    /// Bytes of the region.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Which nodes puts are sent to.
    #[must_use]
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// What a node holds.
    #[must_use]
    pub fn held(&self, holder: HolderId) -> Option<&RangeSet> {
        Some(&self.holders.get(holder)?.held)
    }

    /// Whether a node takes part.
    #[must_use]
    pub fn is_lost(&self, holder: HolderId) -> bool {
        self.holders
            .get(holder)
            .is_none_or(|holder| holder.presence == Presence::Lost)
    }

    /// Nodes that hold a byte, lost ones, too.
    #[must_use]
    pub fn holders_of(&self, offset: u64) -> Vec<HolderId> {
        let holders = self.holders.iter().enumerate();
        let found = holders.filter(|(_, holder)| holder.held.contains(offset));
        found.map(|(at, _)| at).collect()
    }

    /// Refuses what lies beyond the end, or where no node ever held, or owned, a byte.
    pub(super) fn check(&self, range: Range, is_put: bool) -> Result<(), Failure> {
        if range.end > self.size {
            return Err(Failure::OutOfRange {
                range,
                size: self.size,
            });
        }
        let by_owner = is_put && self.rule == Rule::Owner;
        let mut at = range.start;
        while at < range.end {
            let set = |holder: &Holder| {
                let set = if by_owner {
                    &holder.owned
                } else {
                    &holder.held
                };
                run_at(set, at).map(|run| run.end)
            };
            let Some(end) = self.holders.iter().filter_map(set).max() else {
                let range = Range::new(at, range.end);
                return Err(match by_owner {
                    true => Failure::NoOwner { range },
                    false => Failure::NotHeld { range },
                });
            };
            at = end;
        }
        Ok(())
    }

    fn no_holder(&self, range: Range) -> Failure {
        Failure::NoHolder {
            range,
            holders: self.holders_of(range.start),
        }
    }

    /// Whether only the owner has a byte, and how far that is the same.
    fn source_of(&self, range: Range) -> (bool, u64) {
        let start = range.start;
        match run_at(&self.written, start) {
            // A run may have bytes that none owns: see `WRITTEN_MAX`.
            Some(run)
                if self
                    .holders
                    .iter()
                    .any(|holder| holder.owned.contains(start)) =>
            {
                (true, range.end.min(run.end))
            }
            Some(_) => {
                let owned = self
                    .holders
                    .iter()
                    .map(|holder| next_start(&holder.owned, start));
                (false, range.end.min(owned.min().unwrap_or(u64::MAX)))
            }
            None => (false, range.end.min(next_start(&self.written, start))),
        }
    }

    /// The node that serves the next bytes of a get: of those that hold them the one with the least bytes outstanding.
    /// `Ok(None)`: later, as all are busy or away.
    pub(super) fn for_get(&self, range: Range) -> Result<Option<Stretch>, Failure> {
        let start = range.start;
        let (from_owner, end) = self.source_of(range);
        let mut is_held = false;
        let mut best: Option<((u64, u64, HolderId), u64)> = None;
        for (at, holder) in self.holders.iter().enumerate() {
            let set = if from_owner {
                &holder.owned
            } else {
                &holder.held
            };
            let Some(run) = run_at(set, start).filter(|_| holder.presence != Presence::Lost) else {
                continue;
            };
            is_held = true;
            if holder.presence == Presence::Away || holder.requests >= REQUESTS_MAX {
                continue;
            }
            let rank = (holder.bytes, holder.served, at);
            if best.is_none_or(|(other, _)| rank < other) {
                best = Some((rank, run.end));
            }
        }
        if !is_held {
            return Err(self.no_holder(Range::new(start, end)));
        }
        Ok(best.map(|((_, _, at), run_end)| Stretch {
            targets: vec![at],
            range: Range::new(start, end.min(run_end)),
        }))
    }

    /// What of a range, from its beginning on, a get can have from this node, too.
    pub(super) fn get_from(&self, holder: HolderId, range: Range) -> Option<Range> {
        let (from_owner, end) = self.source_of(range);
        let holder = &self.holders[holder];
        let set = if from_owner {
            &holder.owned
        } else {
            &holder.held
        };
        let run = run_at(set, range.start)?;
        Some(Range::new(range.start, end.min(run.end)))
    }

    /// All nodes that the next bytes of a put are written to, and as far as these are the same.
    /// `Ok(None)`: later, as one is busy.
    pub(super) fn for_put(&self, range: Range) -> Result<Option<Stretch>, Failure> {
        let start = range.start;
        let mut end = range.end;
        let mut targets = Vec::new();
        let mut is_busy = false;
        for (at, holder) in self.holders.iter().enumerate() {
            if holder.presence == Presence::Lost {
                continue;
            }
            let set = match self.rule {
                Rule::Owner => &holder.owned,
                Rule::All | Rule::ReadOnly => &holder.held,
            };
            match run_at(set, start) {
                Some(run) => {
                    end = end.min(run.end);
                    is_busy |= holder.requests >= REQUESTS_MAX || holder.presence == Presence::Away;
                    targets.push(at);
                }
                None => end = end.min(next_start(set, start)),
            }
        }
        let range = Range::new(start, end);
        match targets.is_empty() {
            true => Err(self.no_holder(range)),
            false => Ok((!is_busy).then_some(Stretch { targets, range })),
        }
    }

    /// A node that has all of a range that is waited for. `Ok(None)`: later.
    pub(super) fn for_wait(&self, range: Range) -> Result<Option<HolderId>, Failure> {
        let holders = self.holders.iter().enumerate();
        let mut whole = holders.filter(|(_, holder)| self.signals_of(holder).contains_range(range));
        let here = whole
            .clone()
            .find(|(_, holder)| holder.presence == Presence::Here);
        if let Some((at, _)) = here {
            return Ok(Some(at));
        }
        let all: Vec<HolderId> = whole.clone().map(|(at, _)| at).collect();
        if all.is_empty() {
            return Err(Failure::Split { range });
        }
        match whole.any(|(_, holder)| holder.presence == Presence::Away) {
            true => Ok(None),
            false => Err(Failure::NoHolder {
                range,
                holders: all,
            }),
        }
    }

    fn signals_of<'a>(&self, holder: &'a Holder) -> &'a RangeSet {
        match self.rule {
            Rule::Owner => &holder.owned,
            Rule::All | Rule::ReadOnly => &holder.held,
        }
    }

    /// Whether another node serves a get of these bytes now.
    pub(super) fn is_served_without(&self, holder: HolderId, range: Range) -> bool {
        let others = self
            .holders
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != holder);
        let mut here = others.filter(|(_, other)| other.presence == Presence::Here);
        here.any(|(_, other)| other.held.contains_range(range))
            && self.written.clipped(range).is_empty()
    }

    /// Gets of these bytes go to the owner from now on.
    pub(super) fn wrote(&mut self, range: Range) {
        if self.rule != Rule::Owner {
            return;
        }
        self.written.insert(range);
        if self.written.as_slice().len() > WRITTEN_MAX
            && let (Some(first), Some(last)) = (self.written.first(), self.written.last())
        {
            self.written.insert(Range::new(first.start, last.end));
        }
    }

    pub(super) fn sent(&mut self, holder: HolderId, bytes: u64) {
        let holder = &mut self.holders[holder];
        holder.requests += 1;
        holder.bytes += bytes;
        holder.served = holder.served.saturating_add(bytes);
    }

    pub(super) fn answered(&mut self, holder: HolderId, bytes: u64) {
        let holder = &mut self.holders[holder];
        holder.requests = holder.requests.saturating_sub(1);
        holder.bytes = holder.bytes.saturating_sub(bytes);
    }

    /// Whether that is news.
    pub(super) fn lose(&mut self, holder: HolderId) -> bool {
        let Some(holder) = self.holders.get_mut(holder) else {
            return false;
        };
        std::mem::replace(&mut holder.presence, Presence::Lost) != Presence::Lost
    }

    /// Whether that is news.
    pub(super) fn set_away(&mut self, holder: HolderId, is_away: bool) -> bool {
        let to = if is_away {
            Presence::Away
        } else {
            Presence::Here
        };
        match self.holders.get_mut(holder) {
            Some(holder) if holder.presence != Presence::Lost => {
                std::mem::replace(&mut holder.presence, to) != to
            }
            _ => false,
        }
    }
}
