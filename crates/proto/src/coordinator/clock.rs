//! What happens because time passes.

use ropewalk_model::{Instant, Nanos};

use super::phase::Phase;
use super::{Busy, Coordinator, Node};
use crate::control::{self, to_agent};
use crate::node::{PERMIT_EVERY, PERMIT_TIME};

/// A node that is silent for this long is lost (agents send a status at least each second).
pub const SILENCE_TIME_MAX: Nanos = Nanos(15_000_000_000);

/// One that is silent for this long is named: until it is lost or answers, what waits for it stands still.
const SILENCE_NOTED_TIME: Nanos = Nanos(5_000_000_000);

// A node stops writing before others do in its place.
const _: () = assert!(PERMIT_TIME.0 + PERMIT_EVERY.0 < SILENCE_TIME_MAX.0);

/// A driver that calls so long after its last call was stopped, or its host was: no node is silent for that.
const ABSENCE_TIME_MIN: Nanos = Nanos(2_000_000_000);

/// Longest time for a node to open what it holds, and to find a further entry of the trees among that.
pub const OPEN_TIME_MAX: Nanos = Nanos(300_000_000_000);

/// A scan that finds nothing for this long is reported.
const SCAN_HUNG_TIME: Nanos = Nanos(60_000_000_000);

/// Longest time for the nodes that rename files into place to do so and report.
/// A tree of a million files takes minutes; a dead node shows by its connection.
pub const FINISH_TIME_MAX: Nanos = Nanos(600_000_000_000);

/// The same for each file: a busy network file system answers the calls that one takes within this time.
const FINISH_TIME_FILE: Nanos = Nanos(10_000_000);

/// Bytes a second that a node reads at least where it lists checksums.
const LISTING_RATE_MIN: u64 = 32 << 20;

/// Longest wait for a further final report after the rename; it carries statistics only.
pub const FAREWELL_TIME_MAX: Nanos = Nanos(2_000_000_000);

/// When things happened.
#[derive(Debug)]
pub(super) struct Clock {
    pub start_at: Instant,
    /// When bytes started to flow, and when the last receiver was done.
    pub moving_at: Option<Instant>,
    pub last_done_at: Option<Instant>,
    /// Which one that was, and when the last byte of any was received.
    pub last_done: Option<u32>,
    pub received_at: Option<Instant>,
    /// When the driver last called, and when it last called as time passed.
    pub now: Instant,
    timer_at: Instant,
    /// When the driver last had a timer, or a plan that it had waited for.
    ran_at: Instant,
    /// When nodes with shared destinations were last sent a permit.
    permitted_at: Instant,
}

impl Clock {
    pub fn new(now: Instant) -> Self {
        Self {
            start_at: now,
            moving_at: None,
            last_done_at: None,
            last_done: None,
            received_at: None,
            now,
            timer_at: now,
            ran_at: now,
            permitted_at: now,
        }
    }
}

impl Clock {
    /// A receiver has ended, and spent so long on syncs and names after its last byte.
    pub fn note_done(&mut self, node: u32, syncing: Nanos, now: Instant) {
        let received_at = Instant(now.0.saturating_sub(syncing.0));
        let began = self.moving_at.unwrap_or(now);
        self.received_at = self.received_at.max(Some(received_at.max(began)));
        (self.last_done_at, self.last_done) = (Some(now), Some(node));
    }
}

impl Coordinator {
    /// What nodes sent while the driver was stopped lies in its connections: their silence begins after that.
    fn excuse_absence(&mut self, now: Instant) {
        let absence = now.since(self.clock.timer_at);
        self.clock.timer_at = now;
        self.deal_absence(now);
        self.note_running(now);
        if absence >= ABSENCE_TIME_MIN {
            for node in &mut self.nodes {
                node.heard_at = (node.heard_at + absence).min(now);
                node.scanned_at = (node.scanned_at + absence).min(now);
            }
            // Nor are answers late that lie there.
            let later = |at: &mut Instant| *at = (*at + absence).min(now);
            self.looking.began_at().for_each(later);
            later(self.comparing.began_at());
            later(self.probing.began_at());
            let ending = &mut self.ending;
            let since = [&mut ending.since, &mut ending.farewell_since];
            since.into_iter().flatten().for_each(later);
        }
    }

    /// The driver runs: it has a timer, or a plan that it has waited for.
    pub(super) fn note_running(&mut self, now: Instant) {
        self.clock.ran_at = self.clock.ran_at.max(now);
    }

    /// How long the driver did not run, from which on that is an absence; zero for less.
    pub(super) fn absence(&self, now: Instant) -> Nanos {
        let absence = now.since(self.clock.ran_at);
        match absence >= ABSENCE_TIME_MIN {
            true => absence,
            false => Nanos::ZERO,
        }
    }

    /// So long a node with a shared destination may write what others write, too: not at all where it was not heard of for long.
    pub(super) fn permit_of(&self, node: u32) -> Option<control::Permit> {
        let state = &self.nodes[node as usize];
        state.group?;
        let now = self.clock.now;
        let silence = now.since(state.heard_at);
        let left = PERMIT_TIME.0.saturating_sub(silence.0);
        Some(control::Permit { at: now.0, left })
    }

    fn extend_permits(&mut self, now: Instant) {
        if now.since(self.clock.permitted_at) < PERMIT_EVERY {
            return;
        }
        self.clock.permitted_at = now;
        for node in 0..self.nodes.len() as u32 {
            let permit = self.permit_of(node);
            let is_alive = self.nodes[node as usize].alive();
            if let Some(permit) = permit.filter(|permit| is_alive && permit.left > 0) {
                self.send(node, to_agent::Body::Permit(permit));
            }
        }
    }

    /// Time passes. Call at least once a second; work moves between nodes at these calls.
    pub fn handle_timer(&mut self, now: Instant) {
        self.clock.now = now;
        self.excuse_absence(now);
        if self.phase == Phase::Moving {
            self.note_second(now, false);
        }
        if matches!(self.phase, Phase::Moving | Phase::Finishing) {
            self.extend_permits(now);
        }
        match self.phase {
            Phase::Opening => {
                self.note_hung_scans(now);
                let late = (0..).zip(&self.nodes).filter(|(_, node)| {
                    node.opened.is_none() && now.since(node.scanned_at) > OPEN_TIME_MAX
                });
                let late: Vec<u32> = late.map(|(at, _)| at).collect();
                self.refuse_late("answer", late);
            }
            Phase::Comparing => {
                let late = self.comparing.late(now);
                self.refuse_late("list of files", late);
            }
            Phase::Probing if self.probing.is_late(now) => {
                let late: Vec<u32> = self.probing.awaited().collect();
                self.refuse_late("look at its files", late);
            }
            Phase::Looking => {
                self.lose_silent(now);
                let late = self.looking.late(now);
                self.refuse_late("look at the destination", late);
            }
            Phase::Moving => {
                self.deal_silence(now);
                self.lose_silent(now);
                self.deal_limit(now);
                self.tune(now);
                self.rebalance(now);
                self.ask_leaving(now);
            }
            Phase::Finishing => {
                self.watch_landing(now);
                self.lose_late(now);
            }
            Phase::Probing => self.end_measuring(),
            Phase::Planning | Phase::Ended => {}
        }
        self.check();
    }

    fn refuse_late(&mut self, what: &str, late: impl IntoIterator<Item = u32>) {
        let late: Vec<&str> = late.into_iter().map(|node| self.name(node)).collect();
        if late.is_empty() {
            return;
        }
        let seconds = OPEN_TIME_MAX.whole_seconds();
        let nodes = late.join(", ");
        self.refuse(format!("no {what} within {seconds} s from {nodes}"));
    }

    /// Says where the scan of a tree finds nothing more.
    fn note_hung_scans(&mut self, now: Instant) {
        for node in 0..self.nodes.len() as u32 {
            let state = &self.nodes[node as usize];
            let is_scanning = matches!(state.busy, Some(Busy::Scanning { .. }));
            if is_scanning && now.since(state.scanned_at) >= SCAN_HUNG_TIME {
                let (name, seconds) = (self.name(node), SCAN_HUNG_TIME.whole_seconds());
                let text = format!(
                    "{name}: no further file of its sources was found for {seconds} s: their disk or file server does not answer, or sorting \
                     very many names takes that long"
                );
                self.note_once(text);
            }
        }
    }

    /// Nodes that were silent for too long are lost.
    fn lose_silent(&mut self, now: Instant) {
        for node in 0..self.nodes.len() as u32 {
            let state = &self.nodes[node as usize];
            let (most, since, what) = match state.opened {
                Some(_) => (SILENCE_TIME_MAX, state.heard_at, "silent for"),
                None => {
                    let what = "it did not open what it has within";
                    (OPEN_TIME_MAX, state.scanned_at, what)
                }
            };
            if !state.alive() {
                continue;
            }
            let silence = now.since(since);
            if silence > most {
                let reason = format!("{what} {} s", most.whole_seconds());
                self.handle_lost(node, &reason, now);
            } else if state.opened.is_some() && silence > SILENCE_NOTED_TIME {
                self.note_silence(node);
            }
        }
    }

    /// Names nodes that are silent while files get their names. Where the transfer was cancelled they are lost after a while, as before:
    /// its user waits.
    fn watch_landing(&mut self, now: Instant) {
        for node in 0..self.nodes.len() as u32 {
            let state = &self.nodes[node as usize];
            let silence = now.since(state.heard_at);
            if !state.alive() || !state.life().is_landing() || silence <= SILENCE_NOTED_TIME {
                continue;
            }
            if silence > SILENCE_TIME_MAX && self.ending.is_cancelled {
                let seconds = SILENCE_TIME_MAX.whole_seconds();
                self.handle_lost(node, &format!("silent for {seconds} s"), now);
            } else {
                self.note_silence(node);
            }
        }
    }

    fn note_silence(&mut self, node: u32) {
        let (name, noted) = (self.name(node), SILENCE_NOTED_TIME.whole_seconds());
        let text = format!(
            "{name} has not answered for {noted} s: its host, agent or network does not respond"
        );
        self.note_once(text);
    }

    /// How long a node that gives files their names may take: it looks at each of them, and reads all where it lists checksums. A user
    /// that stops the transfer does not wait for that.
    fn finish_time_max(&self) -> Nanos {
        if self.ending.is_cancelled {
            return FINISH_TIME_MAX;
        }
        let mut sinks = self.nodes.iter().flat_map(|node| &node.setup.sinks);
        let seconds = match sinks.any(|sink| !sink.sink.checksums.is_empty()) {
            true => self.space.length / LISTING_RATE_MIN,
            false => 0,
        };
        FINISH_TIME_MAX + FINISH_TIME_FILE * self.space.files + Nanos::from_secs(seconds)
    }

    /// Nodes whose final report does not come in time are lost. Losing one that was to rename the files of a shared
    /// destination asks the next one of it, which has the whole time again.
    fn lose_late(&mut self, now: Instant) {
        let most = self.finish_time_max();
        let ending = &mut self.ending;
        let since = *ending.since.get_or_insert(now);
        let is_landing = |node: &Node| node.life().is_landing();
        let (is_over, are_heirs_waiting) = if self.nodes.iter().any(is_landing) {
            ending.farewell_since = None;
            (now.since(since) > most, true)
        } else {
            let since = *ending.farewell_since.get_or_insert(now);
            (now.since(since) > FAREWELL_TIME_MAX, false)
        };
        if !is_over {
            return;
        }
        // Those that were not sent their end yet wait for the one that renames: they are not late.
        let is_late = |node: &Node| {
            let is_asked = node.life().is_closing() || !are_heirs_waiting;
            is_asked && node.alive() && node.finished.is_none()
        };
        let late = (0..).zip(&self.nodes).filter(|(_, node)| is_late(node));
        let late: Vec<u32> = late.map(|(number, _)| number).collect();
        for node in late {
            self.handle_lost(node, "did not finish in time", now);
        }
    }
}
