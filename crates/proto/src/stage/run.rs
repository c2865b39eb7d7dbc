//! The master's view of a stream: its phases, which failure is the cause of the others, and whether every block arrived once.
//!
//! ```text
//!  Opening ──all nodes opened──▶ Moving ──all processes done──▶ Finishing{commit} ──all nodes finished──▶ Over
//!     └────────────┬───────────────┘  a failure, and 500 ms for its cause                                  ▲
//!                  └──────────────▶ Finishing{discard} ──all nodes finished, or 2 s ───────────────────────┘
//! ```
//!
//! A phase in which nothing happens for the stall time is a failure: no node opens, no block moves and no file is synced, or no node
//! confirms. Once all blocks have arrived and files get their names, only what nodes report of that counts: an interruption is then
//! too late, and processes may end.

use ropewalk_model::{Instant, Nanos};

use super::account::Account;
use super::group_name;

/// Processes that lost a peer report this as soon as the node of that peer reports why. Its report is waited for so long.
const CAUSE_TIMEOUT: Nanos = Nanos::from_millis(500);

/// Nodes remove what an incomplete stream has left within this time, or the report does not wait for them.
const DISCARD_TIMEOUT: Nanos = Nanos::from_secs(2);

/// A node opens its part, and gives its file its name, within this time or the stall time, whichever is longer.
const ANSWER_TIMEOUT: Nanos = Nanos::from_secs(30);

/// A process that syncs for so long while no block moves is worth a note. It is no failure: disks have long queues.
const SYNC_NOTE: Nanos = Nanos::from_secs(60);

/// Why a stream fails. The later ones explain the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// A process lost the connection to another.
    Peer,
    /// A process got from another what it must not send.
    Violation,
    /// The connection to a node's agent ended.
    Node,
    /// A process, its program or its file failed.
    Process,
    /// A node refused its part.
    Refused,
    /// The accounts of two groups differ.
    Account,
    /// The user ended the stream.
    Interrupted,
}

/// A failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What kind.
    pub cause: Cause,
    /// Where, if it is of one node.
    pub node: Option<u32>,
    /// Of a process: its group.
    pub group: Option<u32>,
    /// In words, without the place.
    pub message: String,
}

/// What one process has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Blocks received.
    pub received: Account,
    /// Blocks dealt; of the last group none.
    pub dealt: Account,
    /// From its first block to now, or to its end.
    pub elapsed: Nanos,
    /// Of it: without a block to work on.
    pub waited_input: Nanos,
    /// Of it: without credit, or with full sockets.
    pub waited_output: Nanos,
    /// Processor time.
    pub processor: Nanos,
    /// Most memory, in bytes.
    pub resident_max: u64,
    /// Its file is being synced.
    pub is_syncing: bool,
    /// Edges to the next group that are sealed.
    pub sealed: u32,
    /// Bytes of blocks that it sent again as datagrams.
    pub retransmitted: u64,
    /// Of a shuffle: records that the first process read, or that the last one wrote.
    pub records: Account,
    /// Of them: least and most in one partition of the last process.
    pub records_of_one: (u64, u64),
    /// Everything is done.
    pub has_ended: bool,
}

impl Progress {
    /// How long it has waited for no other group.
    #[must_use]
    pub fn working(&self) -> Nanos {
        let waited = self.waited_input.0 + self.waited_output.0;
        Nanos(self.elapsed.0.saturating_sub(waited))
    }
}

/// What the master does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send all nodes the addresses of all: blocks may move.
    Start,
    /// Have all nodes end: what was written gets its name, or is removed.
    Finish {
        /// Which of the two.
        commit: bool,
    },
    /// Say that no block has moved for a minute while this process syncs, or sorts, what it wrote.
    Note {
        /// Its group.
        group: u32,
        /// Its node.
        node: u32,
    },
    /// All is over.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Opening,
    Moving,
    Finishing { commit: bool },
    Over,
}

#[derive(Clone, Debug)]
struct Node {
    is_open: bool,
    // It will not answer any more.
    is_gone: bool,
    has_finished: bool,
    // It has, with an error.
    has_failed: bool,
    // Bytes that its first process has to deal.
    length: u64,
}

/// A stream, as its master sees it.
#[derive(Clone, Debug)]
pub struct Run {
    nodes: Vec<Node>,
    groups: u32,
    // Groups that may change blocks.
    programs: Vec<u32>,
    // By group, then node.
    progress: Vec<Progress>,
    phase: Phase,
    // Nodes were asked to give files their names.
    commits: bool,
    failure: Option<Failure>,
    // A failure's cause is waited for until then; or nodes that remove what they wrote.
    deadline: Option<Instant>,
    is_announced: bool,
    stall: Nanos,
    // Bytes of all processes, and when something last happened.
    moved: u64,
    moved_at: Instant,
    // When a block last moved or a process ended, and whether it was said that none has since.
    flowed_at: Instant,
    is_noted: bool,
    // How long each process had worked then, and when it last said something new.
    worked: Vec<Nanos>,
    heard_at: Vec<Instant>,
}

impl Run {
    /// A stream over so many nodes and groups, whose nodes are asked to open their parts now.
    ///
    /// * `programs`: groups whose blocks are new ones.
    /// * `stall`: a phase in which nothing happens for so long fails.
    #[must_use]
    pub fn new(nodes: u32, groups: u32, programs: Vec<u32>, stall: Nanos, now: Instant) -> Self {
        let node = Node {
            is_open: false,
            is_gone: false,
            has_finished: false,
            has_failed: false,
            length: 0,
        };
        Self {
            nodes: vec![node; nodes as usize],
            groups,
            programs,
            progress: vec![Progress::default(); (nodes * groups) as usize],
            phase: Phase::Opening,
            commits: false,
            failure: None,
            deadline: None,
            is_announced: false,
            stall,
            moved: 0,
            moved_at: now,
            flowed_at: now,
            is_noted: false,
            worked: vec![Nanos(0); (nodes * groups) as usize],
            heard_at: vec![now; (nodes * groups) as usize],
        }
    }

    /// A node is ready, and its first process has so many bytes.
    pub fn handle_opened(&mut self, now: Instant, node: u32, length: u64) {
        self.moved_at = now;
        let node = &mut self.nodes[node as usize];
        (node.is_open, node.length) = (true, length);
        if self.phase == Phase::Opening && self.nodes.iter().all(|node| node.is_open) {
            self.phase = Phase::Moving;
            self.is_announced = false;
        }
    }

    /// What a process has done so far, or at its end.
    pub fn handle_progress(&mut self, now: Instant, node: u32, group: u32, progress: Progress) {
        let (nodes, groups) = (self.nodes.len() as u32, self.groups);
        if node >= nodes || group >= groups {
            return;
        }
        let at = (group * nodes + node) as usize;
        let known = &mut self.progress[at];
        // Agents repeat the last state of a process that reports no more.
        let ends = progress.has_ended && !known.has_ended;
        let syncs = progress.is_syncing && progress != *known;
        if progress.elapsed > known.elapsed {
            self.heard_at[at] = now;
        }
        // Accounts that were checked stay.
        if !known.has_ended {
            *known = progress;
        }
        let bytes = |one: &Progress| one.received.bytes + one.dealt.bytes;
        let moved = self.progress.iter().map(bytes).sum();
        if moved > self.moved || ends {
            (self.flowed_at, self.is_noted) = (now, false);
        }
        if moved > self.moved || syncs || ends {
            (self.moved, self.moved_at) = (moved, now);
            self.worked = self.progress.iter().map(Progress::working).collect();
        }
        if self.phase == Phase::Moving && self.progress.iter().all(|one| one.has_ended) {
            match self.verify() {
                Ok(()) if self.failure.is_none() => self.finish(true),
                Ok(()) => self.discard(now),
                Err(message) => {
                    self.failure = Some(Failure {
                        cause: Cause::Account,
                        node: None,
                        group: None,
                        message,
                    });
                    self.discard(now);
                }
            }
        }
    }

    /// Something failed. Of several failures the one that explains the others is kept.
    pub fn handle_failure(&mut self, now: Instant, mut failure: Failure) {
        if failure.cause == Cause::Node
            && let Some(node) = failure.node
        {
            let node = &mut self.nodes[node as usize];
            node.is_gone = true;
            if node.has_finished || self.phase == Phase::Over {
                return;
            }
        }
        match self.phase {
            Phase::Over => return,
            // Agents close their connections after that, and a committed stream stays.
            Phase::Finishing { commit: false } => return,
            // All blocks have arrived: only a name can fail.
            Phase::Finishing { commit: true } => {
                if failure.cause == Cause::Node {
                    failure.message += "; its file may have its name or not";
                    self.failure.get_or_insert(failure);
                }
                return;
            }
            Phase::Opening | Phase::Moving => {}
        }
        let is_cause = failure.cause > Cause::Peer;
        if self
            .failure
            .as_ref()
            .is_none_or(|known| known.cause < failure.cause)
        {
            self.failure = Some(failure);
        }
        match is_cause {
            true => self.discard(now),
            false => {
                self.deadline.get_or_insert(now + CAUSE_TIMEOUT);
            }
        }
    }

    /// A node has ended; with what it could not do.
    pub fn handle_finished(&mut self, now: Instant, node: u32, error: Option<String>) {
        self.moved_at = now;
        let ended = &mut self.nodes[node as usize];
        (ended.has_finished, ended.has_failed) = (true, error.is_some());
        if let Some(message) = error
            && self.failure.is_none()
        {
            self.failure = Some(Failure {
                cause: Cause::Process,
                node: Some(node),
                group: None,
                message,
            });
        }
    }

    /// Of a stream that failed while nodes gave files their names: nodes whose files have theirs.
    #[must_use]
    pub fn committed(&self) -> Vec<u32> {
        if self.failure.is_none() || !self.commits {
            return Vec::new();
        }
        let nodes = (0u32..).zip(&self.nodes);
        let done = nodes.filter(|(_, node)| node.has_finished && !node.has_failed);
        done.map(|(number, _)| number).collect()
    }

    fn finish(&mut self, commit: bool) {
        self.commits = commit;
        self.phase = Phase::Finishing { commit };
        self.is_announced = false;
        self.deadline = None;
    }

    fn discard(&mut self, now: Instant) {
        self.finish(false);
        self.deadline = Some(now + DISCARD_TIMEOUT);
    }

    /// When [`Run::poll`] is due although nothing happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Over => None,
            Phase::Finishing { commit: false } => self.deadline,
            _ => Some(
                self.stalls_at()
                    .min(self.deadline.unwrap_or(Instant(u64::MAX))),
            ),
        }
    }

    /// How long nothing may happen.
    fn patience(&self) -> Nanos {
        match self.phase {
            Phase::Moving => self.stall,
            _ => self.stall.max(ANSWER_TIMEOUT),
        }
    }

    fn stalls_at(&self) -> Instant {
        self.moved_at + self.patience()
    }

    /// How long a process has worked since a block moved, in nanoseconds. What it did before that explains no stall. One that says
    /// nothing new is stopped, or in a call to a disk that does not return: it waits for no other.
    fn worked_since(&self, group: u32, node: u32, now: Instant) -> u64 {
        let at = group as usize * self.nodes.len() + node as usize;
        let process = &self.progress[at];
        let worked = process.working().0.saturating_sub(self.worked[at].0);
        // Before its first block there is nothing that it could say.
        let is_silent = !process.has_ended && process.elapsed.0 > 0;
        let heard_at = self.heard_at[at].max(self.moved_at);
        worked + if is_silent { now.since(heard_at).0 } else { 0 }
    }

    /// The process that the others wait for: of the group that worked most, the one that did. Group and node.
    fn slowest(&self, now: Instant) -> Option<(u32, u32)> {
        let nodes = || 0..self.nodes.len() as u32;
        let worked = |group: u32, node| self.worked_since(group, node, now);
        let of_group = |group: &u32| -> u64 { nodes().map(|node| worked(*group, node)).sum() };
        let group = (0..self.groups).max_by_key(of_group)?;
        let of_node = |node: &u32| {
            let has_ended = self.group(group)[*node as usize].has_ended;
            (!has_ended, worked(group, *node))
        };
        Some((group, nodes().max_by_key(of_node)?))
    }

    /// What it means that nothing happens.
    fn stalled(&self, now: Instant) -> Failure {
        let seconds = self.patience().as_seconds();
        let node = |is_done: fn(&Node) -> bool| {
            let waits = self.nodes.iter().position(|node| !is_done(node));
            waits.map(|node| node as u32)
        };
        let (cause, node, group, message) = match self.phase {
            Phase::Opening => (
                Cause::Node,
                node(|node| node.is_open),
                None,
                format!("has not opened its part for {seconds} s; see the log of its agent"),
            ),
            Phase::Finishing { .. } => (
                Cause::Node,
                node(|node| node.has_finished || node.is_gone),
                None,
                format!("has not confirmed its file for {seconds} s; it may have its name or not"),
            ),
            Phase::Moving | Phase::Over => {
                let (group, node) = self.slowest(now).unzip();
                let text = "the others wait for this process (--stall sets the time)";
                let message = format!("no block has moved for {seconds} s; {text}");
                (Cause::Process, node, group, message)
            }
        };
        Failure {
            cause,
            node,
            group,
            message,
        }
    }

    /// A process that has synced for long while nothing else happened; each time once.
    fn note(&mut self, now: Instant) -> Option<Action> {
        if self.is_noted || now < self.flowed_at + SYNC_NOTE {
            return None;
        }
        let at = self.progress.iter().position(|one| one.is_syncing)? as u32;
        self.is_noted = true;
        let nodes = self.nodes.len() as u32;
        let (group, node) = (at / nodes, at % nodes);
        Some(Action::Note { group, node })
    }

    /// What to do now; each action once.
    pub fn poll(&mut self, now: Instant) -> Option<Action> {
        let is_late = self.deadline.is_some_and(|deadline| now >= deadline);
        let is_stalled = now >= self.stalls_at();
        match self.phase {
            Phase::Moving if !self.is_announced && self.failure.is_none() => {
                self.is_announced = true;
                return Some(Action::Start);
            }
            Phase::Opening | Phase::Moving if is_late => self.discard(now),
            Phase::Opening | Phase::Moving if is_stalled => {
                let failure = self.stalled(now);
                self.failure.get_or_insert(failure);
                self.discard(now);
            }
            Phase::Finishing { commit } if self.is_announced => {
                let is_over = self
                    .nodes
                    .iter()
                    .all(|node| node.has_finished || node.is_gone);
                let is_given_up = is_late || commit && is_stalled;
                if !is_over && commit && is_given_up {
                    let failure = self.stalled(now);
                    self.failure.get_or_insert(failure);
                }
                if is_over || is_given_up {
                    self.phase = Phase::Over;
                    self.deadline = None;
                    return Some(Action::End);
                }
            }
            _ => {}
        }
        match self.phase {
            Phase::Moving => self.note(now),
            Phase::Finishing { commit } if !self.is_announced => {
                self.is_announced = true;
                Some(Action::Finish { commit })
            }
            _ => None,
        }
    }

    /// What went wrong.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// What the processes of a group have done, by node.
    #[must_use]
    pub fn group(&self, group: u32) -> &[Progress] {
        let nodes = self.nodes.len();
        &self.progress[group as usize * nodes..][..nodes]
    }

    fn sum(&self, group: u32, of: impl Fn(&Progress) -> Account) -> Account {
        let mut sum = Account::default();
        for progress in self.group(group) {
            sum += of(progress);
        }
        sum
    }

    /// Of a shuffle: what was written, and the least and most records of a partition.
    #[must_use]
    pub fn records(&self, partitions: u32) -> (Account, u64, u64) {
        let last = self.group(self.groups - 1);
        // Where there are fewer partitions than nodes the others have none.
        let with = &last[..last.len().min(partitions as usize)];
        let least = with.iter().map(|one| one.records_of_one.0).min();
        let most = with.iter().map(|one| one.records_of_one.1).max();
        let written = self.sum(self.groups - 1, |progress| progress.records);
        (written, least.unwrap_or(0), most.unwrap_or(0))
    }

    /// Every block once, from each group to the next and through each process that does not change them.
    fn verify(&self) -> Result<(), String> {
        let differ_in = |things: &str, what: String, one: Account, other: Account| {
            Err(format!(
                "{what}: {} {things} of {} bytes and {} {things} of {} bytes{}; this is a bug",
                one.blocks,
                one.bytes,
                other.blocks,
                other.bytes,
                if (one.blocks, one.bytes) == (other.blocks, other.bytes) {
                    " that are not the same"
                } else {
                    ""
                }
            ))
        };
        let differ = |what, one, other| differ_in("blocks", what, one, other);
        let (read, written) = (
            self.sum(0, |progress| progress.records),
            self.sum(self.groups - 1, |progress| progress.records),
        );
        if read != written {
            let what = "what A read and the last group wrote differ".to_owned();
            return differ_in("records", what, read, written);
        }
        for (number, (first, node)) in self.group(0).iter().zip(&self.nodes).enumerate() {
            // How much a program makes, it alone knows.
            let is_known = !self.programs.contains(&0);
            if is_known && first.dealt.bytes != node.length {
                let (dealt, length) = (first.dealt.bytes, node.length);
                return Err(format!(
                    "A of node {number} dealt {dealt} of {length} bytes; this is a bug"
                ));
            }
        }
        for group in 0..self.groups {
            let name = group_name(group);
            let dealt = self.sum(group, |progress| progress.dealt);
            if group + 1 < self.groups {
                let received = self.sum(group + 1, |progress| progress.received);
                if dealt != received {
                    let next = group_name(group + 1);
                    return differ(
                        format!("what {name} sent and what {next} received differ"),
                        dealt,
                        received,
                    );
                }
            }
            let is_relay = group > 0 && group + 1 < self.groups && !self.programs.contains(&group);
            for progress in self.group(group).iter().filter(|_| is_relay) {
                if progress.received != progress.dealt {
                    return differ(
                        format!("what {name} received and sent differ"),
                        progress.received,
                        progress.dealt,
                    );
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
