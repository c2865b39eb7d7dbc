//! Which rails between two nodes work.

use std::collections::BTreeMap;

use ropewalk_model::Instant;

/// A rail by the numbers of its receiver, its sender, and its own.
pub(crate) type Rail = (u32, u32, u32);

/// What the script did to rails and to attempts to connect.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    rails: u32,
    has_tunnel: bool,
    // Until when.
    failed: BTreeMap<Rail, Instant>,
    // By receiver and sender.
    refused: BTreeMap<(u32, u32), Instant>,
}

impl Ways {
    /// So many rails between any two nodes, and a way through the command's host besides, whose number is the next one.
    pub fn new(rails: u32, has_tunnel: bool) -> Self {
        Self {
            rails: rails.max(1),
            has_tunnel,
            ..Self::default()
        }
    }

    /// The rail does not work until then.
    pub fn fail(&mut self, rail: Rail, until: Instant) {
        let old = self.failed.entry(rail).or_insert(until);
        *old = until.max(*old);
    }

    /// The sender refuses connections of the receiver until then.
    pub fn refuse(&mut self, receiver: u32, sender: u32, until: Instant) {
        let old = self.refused.entry((receiver, sender)).or_insert(until);
        *old = until.max(*old);
    }

    /// Until when the rail carries nothing.
    pub fn failed_until(&self, rail: Rail, now: Instant) -> Option<Instant> {
        let until = self.failed.get(&rail).copied();
        until.filter(|until| *until > now)
    }

    /// Whether a connection over the rail can be made.
    pub fn connects(&self, rail: Rail, now: Instant) -> bool {
        let until = self.refused.get(&(rail.0, rail.1));
        let is_refused = until.is_some_and(|until| *until > now);
        !is_refused && self.failed_until(rail, now).is_none()
    }

    /// Numbers of the rails between two nodes, without the way through the command's host.
    pub fn direct(&self) -> std::ops::Range<u32> {
        0..self.rails
    }

    /// The number of the way through the command's host, if there is one.
    pub fn tunnel(&self) -> Option<u32> {
        self.has_tunnel.then_some(self.rails)
    }
}
