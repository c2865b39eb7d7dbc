//! What no known peer holds any more, or those that hold it refuse: the master is asked for other holders, and a node that asks
//! later gets the reason.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::{Range, RangeSet};

use super::{Event, Receiving};

/// Refusals of one peer for different reasons, most often one for each file, that are kept apart.
const REFUSALS_MAX: usize = 256;

/// The reason of all further ones.
const FURTHER_REASONS: &str = "refused for further reasons";

/// What a peer said of bytes that it could not serve.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// Node number of the peer.
    pub sender: u32,
    /// Its name.
    pub name: String,
    /// Its words.
    pub reason: String,
    /// The bytes.
    pub ranges: RangeSet,
    told: bool,
}

/// Who refused what, and who is gone.
#[derive(Clone, Debug, Default)]
pub(super) struct Troubles {
    refusals: Vec<Refusal>,
    gone: BTreeMap<u32, String>,
}

impl Troubles {
    /// A peer said that it cannot serve a range.
    pub fn refused(&mut self, sender: u32, name: String, reason: &str, range: Range) {
        let same = |known: &&mut Refusal| known.sender == sender && known.reason == reason;
        if let Some(known) = self.refusals.iter_mut().find(same) {
            known.ranges.insert(range);
        } else if self.refusals.len() < REFUSALS_MAX {
            self.refusals.push(Refusal {
                sender,
                name,
                reason: reason.to_owned(),
                ranges: RangeSet::from(range),
                told: false,
            });
        }
    }

    /// A peer cannot be reached any more.
    pub fn gone(&mut self, sender: u32, text: String) {
        self.gone.insert(sender, text);
    }

    /// It can be reached after all.
    pub fn here(&mut self, sender: u32) {
        self.gone.remove(&sender);
    }
}

impl Receiving {
    /// Asks for holders of what is left to nobody.
    pub(super) fn ask_for_holders(&mut self, open: &RangeSet) {
        // Who could not serve a part of it may well serve the rest.
        let refused = RangeSet::from_ranges(self.refused.values().flat_map(RangeSet::iter));
        let mut parts = vec![(open.difference(&refused), String::new())];
        let mut rest = open.intersection(&refused);
        for refusal in &self.troubles.refusals {
            let part = rest.intersection(&refusal.ranges);
            rest = rest.difference(&part);
            parts.push((part, refusal.reason.clone()));
        }
        parts.push((rest, FURTHER_REASONS.into()));
        for (part, reason) in parts {
            if part.is_empty() {
                continue;
            }
            let concerns = |refused: &RangeSet| !refused.intersection(&part).is_empty();
            let refusers = self.refused.iter().filter(|(_, ranges)| concerns(ranges));
            let lost: BTreeSet<u32> = refusers
                .map(|(&peer, _)| peer)
                .chain(self.lost.iter().copied())
                .collect();
            let lost = lost.into_iter().collect();
            self.events.push_back(Event::Need(part, lost, reason));
        }
    }

    /// Why holders refused a part of a range, in words, where one did.
    #[must_use]
    pub fn why_refused(&self, range: Range) -> Option<String> {
        let range = RangeSet::from(range);
        let concerns = |refusal: &&Refusal| !refusal.ranges.intersection(&range).is_empty();
        if let Some(refusal) = self.troubles.refusals.iter().find(concerns) {
            return Some(refusal.reason.clone());
        }
        let is_refused = |refused: &RangeSet| !refused.intersection(&range).is_empty();
        let is_any = self.refused.values().any(is_refused);
        is_any.then(|| FURTHER_REASONS.into())
    }

    /// Why a range was not received where this node has not failed itself, in words.
    #[must_use]
    pub fn why_missing(&self, range: Range) -> String {
        if let Some(reason) = self.why_refused(range) {
            return reason;
        }
        let gone: Vec<&str> = self.troubles.gone.values().map(String::as_str).collect();
        match gone.as_slice() {
            [] => "no node that holds it is left".into(),
            gone => format!("no node that holds it is left: {}", gone.join(", ")),
        }
    }

    /// Refusals of bytes that others delivered nevertheless, each once, in words for the report. Those of bytes that are
    /// missing are reported with these.
    pub fn overcome_refusals(&mut self) -> Vec<String> {
        let missing = self.missing();
        let is_new = |refusal: &&mut Refusal| {
            !refusal.told && refusal.ranges.intersection(&missing).is_empty()
        };
        let new = self.troubles.refusals.iter_mut().filter(is_new);
        new.map(|refusal| {
            refusal.told = true;
            let Refusal {
                name,
                reason,
                ranges,
                ..
            } = refusal;
            format!(
                "{name} refused {} bytes, which another node sent: {reason}",
                ranges.len_bytes()
            )
        })
        .collect()
    }
}
