//! A receiving node of one transfer, from its plan to its report: what it has, what of that is safe, what it has vouched for.
//!
//! ```text
//!  Preparing --> Fetching --> Settling --> Checking --> Renaming --> Concluded --> Done
//!      |            ^  all received |  synced   |  read back |   renamed  |  reported |
//!      |            |               |           |            |            |           |
//!      |            +---------------+-----------+------------+------------+-----------+
//!      |                    a revision has more work
//!      +--> reported with an error, also from every state to the right but Done --> Failed
//!                                      the master ends the transfer, from every state --> Ended
//! ```
//!
//! A state machine without I/O. The driver has sockets, threads and disks: it does what the machine asks for and hands in
//! what happened. One thread of it asks [`Node::next_task`] what is to be done with the sinks; one for each stream asks
//! [`Node::next_step`] what is to be done with that stream; [`Node::poll_event`] says what else there is to do, new streams
//! among it. What is asked of which node is decided by [`fetch::Receiving`], which is inside.

use ropewalk_model::{Instant, Nanos, Range, RangeSet};

use crate::control::{self, Done, Peer, Plan, Revision, Status};
use crate::ledger::LaneId;
use fetch::{Difference, Receiving};

mod announce;
mod close;
mod durable;
mod early;
pub mod fetch;
mod grace;
mod lanes;
mod life;
mod messages;
mod permit;
mod rail_health;
mod relay;
mod stream;
mod streams;
#[cfg(test)]
mod tests;

pub use announce::{Announcer, Held, with_origins};
pub use close::{Close, Unfinished};
pub use durable::{Promise, Syncs};
pub use early::{Waiting, gives_names_early};
pub use grace::{GRACE_TIME, Grace, STILL_TIME};
pub use lanes::{Arrival, Link, UNITS_OUTSTANDING_DATAGRAMS, UNITS_OUTSTANDING_MAX};
pub use life::Life;
pub use permit::{PERMIT_EVERY, PERMIT_TIME, Permit};
pub use rail_health::{RailHealth, Seen, Silence};
pub use stream::{Break, Phase, RETRY_PAUSES, Step, StreamId};
pub use streams::{STREAMS_PER_LANE_MAX, Streams, Wish};

use durable::Durable;
use early::Space;
use lanes::Lanes;

/// Why a node's part of the transfer failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Its sinks could not be made: its destination has not changed.
    Refused(String),
    /// The same, for a reason that may pass: a full disk.
    Hindered(String),
    /// Holders gave different contents for the same bytes.
    Differs(String),
    /// Its sink is not as it was written, or its files could not be renamed.
    Sink(String),
    /// Its disk, its memory, or a peer that sends damaged bytes.
    Other(String),
}

impl Failure {
    /// The reason, in words.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Refused(text)
            | Self::Hindered(text)
            | Self::Differs(text)
            | Self::Sink(text)
            | Self::Other(text) => text,
        }
    }
}

/// What this node is to do besides fetching.
#[derive(Clone, Copy, Debug, Default)]
pub struct Duties {
    /// It renames its files into place when it has all of them.
    pub renames: bool,
    /// Files of its own copy that lack no byte get their names as they are safe; see [`Node::names_whole_files`].
    pub names_early: bool,
    /// It reads the sink back before that.
    pub reads_back: bool,
    /// When received bytes are synced.
    pub syncs: Syncs,
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Drive this stream, as [`Node::next_step`] says.
    Start(StreamId),
    /// The first lane goes the same way as the second.
    SameWay(LaneId, LaneId),
    /// Ask the master for holders of these ranges. The peers that are lost or refused them, and what one of those said
    /// that refused, empty when none did.
    Need(RangeSet, Vec<u32>, String),
    /// Open a stream to this peer over which it is asked for hashes; see [`Receiving::next_digests`].
    Compare(LaneId, Peer),
    /// A stream that asks for hashes has something to ask for.
    Wake,
    /// Holders gave different contents for the same bytes; then [`Node::handle_difference`].
    Differ(Difference),
}

/// Answer to [`Node::next_task`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Nothing before this time, unless something is handed in; `None`: not at any time.
    Wait(Option<Instant>),
    /// Write all that was received to stable storage, and give names where [`Node::names_whole_files`] says so; then
    /// [`Node::handle_named`] and [`Node::handle_synced`].
    Sync(Promise),
    /// Read all that was received back from the sink and compare; then [`Node::handle_read_back`].
    ReadBack,
    /// Rename the files into place; then [`Node::handle_renamed`].
    Rename,
    /// Send [`Node::take_done`] to the master.
    Report,
    /// Nothing more, for good.
    End,
}

/// What a sync makes safe, for a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// All bytes that were received, and that no stream is writing again.
    pub bytes: RangeSet,
    /// Units among them with their hashes, each once.
    pub units: Vec<(Range, [u8; 32])>,
}

/// How a transfer ended, as the master said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// What is temporary is removed ...
    pub discards: bool,
    /// ... and what other nodes write, too.
    pub discards_shared: bool,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Node {
    life: Life,
    fetch: Receiving,
    lanes: Lanes,
    duties: Duties,
    durable: Durable,
    // What is safe, and what will be when the present sync has ended.
    safe: RangeSet,
    promised: RangeSet,
    space: Space,
    // Revisions received while sinks were being made; `None` once the plan is taken.
    early: Option<Vec<Revision>>,
    // Number of the newest plan or revision; the report names it.
    revision: u32,
    failure: Option<Failure>,
    // Contents are known to be wrong, whatever failed first.
    is_wrong: bool,
    // Units that were received and are not settled.
    unrecorded: Vec<(Range, [u8; 32])>,
    // When the last byte was there; `None` while some are missing.
    complete_at: Option<Instant>,
    is_renamed: bool,
    notes: Vec<String>,
    end: Option<End>,
    // Its master is gone; and another transfer to its destination would not see that it goes on.
    grace: Option<Grace>,
    is_unseen: bool,
    // Until speeds are known the master wants statuses this often.
    beat: Option<Nanos>,
    // Where others write what it writes.
    permit: Option<Permit>,
}

impl Node {
    /// A node that was sent this plan and makes its sinks. It reads back what it wrote, and syncs, as said.
    #[must_use]
    pub fn new(
        mut fetch: Receiving,
        streams: Streams,
        plan: &Plan,
        duties: Duties,
        now: Instant,
    ) -> Self {
        fetch.set_streams(streams.each());
        // Before the sinks are made, so that any limit that is received from now on is a later one.
        fetch.set_limit(control::limit(plan.limit), now);
        let beat = Nanos::from_millis(plan.beat_milliseconds.into());
        Self {
            permit: plan.permit.map(|said| Permit::new(&said, now)),
            life: Life::Preparing,
            fetch,
            lanes: Lanes::new(streams),
            duties,
            durable: Durable::new(duties.syncs, now),
            safe: RangeSet::new(),
            promised: RangeSet::new(),
            space: Space::default(),
            early: Some(Vec::new()),
            revision: plan.revision,
            failure: None,
            is_wrong: false,
            unrecorded: Vec::new(),
            complete_at: None,
            is_renamed: false,
            notes: Vec::new(),
            end: None,
            grace: None,
            is_unseen: false,
            beat: Some(beat).filter(|beat| *beat > Nanos::ZERO),
        }
    }

    /// Time between its statuses, where it is another one than all nodes have.
    #[must_use]
    pub fn beat(&self) -> Option<Nanos> {
        self.beat
    }

    /// Where it is in its life.
    #[must_use]
    pub fn life(&self) -> Life {
        self.life
    }

    /// What it fetches from which node.
    #[must_use]
    pub fn fetch(&self) -> &Receiving {
        &self.fetch
    }

    /// As [`Node::fetch`], for grants and what becomes of them. Events are polled by [`Node::poll_event`].
    pub fn fetch_mut(&mut self) -> &mut Receiving {
        &mut self.fetch
    }

    /// Bytes on stable storage (or checked, where there is no storage).
    #[must_use]
    pub fn safe_bytes(&self) -> u64 {
        self.durable.safe_bytes()
    }

    /// Why its part failed.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Whether its files have their final names.
    #[must_use]
    pub fn is_renamed(&self) -> bool {
        self.is_renamed
    }

    /// How the master ended the transfer, once it did.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.end
    }

    fn enter(&mut self, life: Life) {
        debug_assert!(self.life.may_become(life), "{:?} to {life:?}", self.life);
        self.life = life;
    }

    /// The sinks are made: takes the plan, and the revisions received since.
    ///
    /// * `unit_at`: the unit of the sinks' layout around an offset.
    pub fn handle_prepared(&mut self, plan: &Plan, now: Instant, unit_at: &dyn Fn(u64) -> Range) {
        if self.life != Life::Preparing {
            return;
        }
        self.enter(Life::Fetching);
        self.fetch.handle_plan(plan, now, unit_at);
        for revision in self.early.take().unwrap_or_default() {
            self.revise(&revision, now);
        }
    }

    /// Takes a changed plan.
    pub fn handle_revision(&mut self, revision: &Revision, now: Instant) {
        match &mut self.early {
            Some(early) => early.push(revision.clone()),
            None => self.revise(revision, now),
        }
    }

    fn revise(&mut self, revision: &Revision, now: Instant) {
        self.revision = self.revision.max(revision.number);
        if revision.settle {
            self.beat = None;
        }
        let is_over = matches!(self.life, Life::Failed | Life::Ended);
        if !revision.runs.is_empty() && !is_over {
            self.enter(Life::Fetching);
            self.complete_at = None;
        }
        self.fetch.handle_revision(revision, now);
        self.check();
    }

    /// Its part has failed, for a reason of its own; the first reason stays.
    pub fn handle_failed(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// The master ends the transfer.
    pub fn handle_end(&mut self, end: End) {
        self.enter(Life::Ended);
        self.end = Some(end);
    }

    /// Time has passed.
    pub fn handle_timer(&mut self, now: Instant) {
        self.fetch.handle_timer(now);
    }

    /// Whether there is something in [`Node::poll_event`].
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.lanes.events.is_empty() || self.fetch.has_events()
    }

    /// What the driver has to do. What concerns the node's own life, and streams that are there, is dealt with here.
    pub fn poll_event(&mut self, now: Instant) -> Option<Event> {
        use fetch::Event as Fetched;
        loop {
            if let Some(event) = self.lanes.events.pop_front() {
                return Some(event);
            }
            match self.fetch.poll_event()? {
                Fetched::Connect(lane, _) => self.lanes.connect(lane, now),
                Fetched::Cancel(lane, range) => self.lanes.cancel(lane, range),
                Fetched::Note(text) => self.notes.push(text),
                Fetched::Complete => self.complete_at = Some(now),
                Fetched::Failed(text) => self.handle_failed(Failure::Other(text)),
                Fetched::Need(ranges, lost, reason) => {
                    return Some(Event::Need(ranges, lost, reason));
                }
                Fetched::Compare(lane, peer) => return Some(Event::Compare(lane, peer)),
                Fetched::Wake => return Some(Event::Wake),
                Fetched::Differ(difference) => return Some(Event::Differ(difference)),
            }
        }
    }

    /// Holders gave different contents for the same bytes.
    ///
    /// * `place`: the bytes as users know them, of a file.
    pub fn handle_difference(&mut self, difference: &Difference, place: &str) {
        self.is_wrong = true;
        self.handle_failed(Failure::Differs(difference.describe(place)));
    }

    /// What is missing, or may be overwritten, where the transfer ends and files that lack no byte may be renamed. `None` where none
    /// may: contents that differ, or were to be compared or read back and were not, or a sink that is not as it should be.
    #[must_use]
    pub fn missing_of_rename(&self) -> Option<RangeSet> {
        let is_trusted = match &self.failure {
            Some(
                Failure::Refused(_) | Failure::Hindered(_) | Failure::Differs(_) | Failure::Sink(_),
            ) => false,
            Some(Failure::Other(_)) | None => self.early.is_none(),
        };
        let is_read_back =
            !self.duties.reads_back || matches!(self.life, Life::Concluded | Life::Done);
        let is_sound = is_trusted && is_read_back && self.fetch.is_compared();
        is_sound.then(|| self.fetch.missing().union(&self.fetch.unsettled()))
    }

    /// Why its part has failed after it was reported to be complete.
    #[must_use]
    pub fn late_failure(&self) -> Option<&Failure> {
        self.failure.as_ref().filter(|_| self.life == Life::Done)
    }

    /// Something for the report.
    pub fn add_note(&mut self, text: String) {
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// What is to be done with the sinks now. Asked by one thread, which does it before it asks again.
    pub fn next_task(&mut self, now: Instant) -> Task {
        match self.life {
            Life::Ended => return Task::End,
            Life::Done | Life::Failed => return Task::Wait(None),
            _ if self.failure.is_some() => return Task::Report,
            _ => {}
        }
        if self.life == Life::Fetching && self.fetch.is_finished() {
            self.enter(Life::Settling);
        }
        let received = self.fetch.ledger().delivered_bytes();
        match self.life {
            Life::Fetching => {
                let dues = [self.durable.due_at(received), self.space.due_at()];
                match dues.into_iter().flatten().min() {
                    Some(due) if due <= now => self.begin_sync(received),
                    due => Task::Wait(due),
                }
            }
            Life::Settling => self.begin_sync(received),
            Life::Checking => Task::ReadBack,
            Life::Renaming => Task::Rename,
            Life::Concluded => Task::Report,
            Life::Preparing | Life::Done | Life::Failed | Life::Ended => Task::Wait(None),
        }
    }

    fn begin_sync(&mut self, received: u64) -> Task {
        self.space.begin();
        self.promised = self.fetch.ledger().delivered_ranges().clone();
        Task::Sync(self.durable.promise(received))
    }

    /// What a sync that begins now makes safe; `None` where this node's own names follow it, and where contents are wrong.
    ///
    /// Bytes that a stream writes a second time are not among it: it may write others, which is found out later.
    pub fn to_record(&mut self) -> Option<Settled> {
        let is_due = match self.life {
            Life::Fetching => true,
            // Others of a shared copy may not be done.
            Life::Settling => !self.duties.renames || !self.fetch.missing().is_empty(),
            _ => false,
        };
        if !is_due || self.is_wrong {
            return None;
        }
        let unsettled = self.fetch.unsettled();
        let bytes = self
            .fetch
            .ledger()
            .delivered_ranges()
            .difference(&unsettled);
        self.unrecorded.extend(self.fetch.fresh_digests());
        let is_settled = |(range, _): &mut (Range, [u8; 32])| bytes.contains_range(*range);
        let units = self.unrecorded.extract_if(.., is_settled).collect();
        Some(Settled { bytes, units })
    }

    /// Whether contents are known to be wrong: holders that differ, or a sink that does not keep what was written. Nothing that was
    /// received is of use then.
    #[must_use]
    pub fn is_wrong(&self) -> bool {
        self.is_wrong
    }

    /// A sync has ended: what it promised is safe, or why it is not.
    pub fn handle_synced(&mut self, promise: Promise, synced: Result<(), String>, now: Instant) {
        if let Err(text) = synced {
            return self.handle_failed(Failure::Other(text));
        }
        self.durable.keep(promise, now);
        let promised = std::mem::take(&mut self.promised);
        self.safe = self.safe.union(&promised);
        self.space.end(now);
        // Not where a revision has brought more work meanwhile.
        if self.life == Life::Settling {
            match self.duties.reads_back {
                true => self.enter(Life::Checking),
                false => self.checked(),
            }
        }
    }

    fn checked(&mut self) {
        let is_whole = self.fetch.missing().is_empty();
        match self.duties.renames && is_whole && !self.is_renamed {
            true => self.enter(Life::Renaming),
            false => self.enter(Life::Concluded),
        }
    }

    /// The sink was read back, and is as it should be, or not.
    pub fn handle_read_back(&mut self, found: Result<(), String>) {
        match found {
            Err(text) => {
                self.is_wrong = true;
                self.handle_failed(Failure::Sink(text));
            }
            Ok(()) if self.life == Life::Checking => self.checked(),
            Ok(()) => {}
        }
    }

    /// The files were renamed into place, as its own task or because the master said so; or why not.
    pub fn handle_renamed(&mut self, renamed: Result<(), Failure>) {
        match renamed {
            Err(failure) => self.handle_failed(failure),
            Ok(()) => {
                self.is_renamed = true;
                if self.life == Life::Renaming {
                    self.enter(Life::Concluded);
                }
            }
        }
    }

    /// The report, once its part is concluded or has failed; `None` before, and where that was reported.
    ///
    /// The driver adds what it alone knows: sample, what stood at the destination, names of files, processor time, and how
    /// the lanes of pairs are made. Pairs are in the order of lanes.
    pub fn take_done(&mut self, now: Instant) -> Option<Done> {
        match (self.life, &self.failure) {
            (Life::Done | Life::Failed | Life::Ended, _) => return None,
            (_, Some(_)) => self.enter(Life::Failed),
            (Life::Concluded, None) => self.enter(Life::Done),
            (_, None) => return None,
        }
        Some(self.done(now))
    }

    fn done(&mut self, now: Instant) -> Done {
        let overcome = self.fetch.overcome_refusals();
        self.notes.extend(overcome);
        let watch = *self.fetch.watch();
        // Nothing was received after the last arrival: part of the stalls.
        let trailing = self.complete_at.unwrap_or(now).since(watch.last_at());
        let compared = self.fetch.compared();
        let ledger = self.fetch.ledger();
        let pairs = self.fetch.pairs().iter();
        Done {
            delivered: self.durable.safe_bytes(),
            duplicate: ledger.duplicate_bytes(),
            corrupt: self.fetch.corrupt(),
            pairs: pairs
                .map(|(lane, pair)| {
                    let (streams, way) = self.lanes.seen(lane);
                    control::PairDone {
                        sender: pair.sender,
                        delivered: pair.delivered,
                        corrupt: pair.corrupt,
                        streams,
                        way: way.number(),
                        ..control::PairDone::default()
                    }
                })
                .collect(),
            missing: control::stretches(&self.lacking()),
            moving: now.since(watch.start_at()).0,
            best_second: watch.best_second(),
            committed: self.is_renamed,
            error: self
                .failure
                .as_ref()
                .map_or_else(String::new, |failure| failure.text().to_owned()),
            syncing: self.complete_at.map_or(0, |at| now.since(at).0),
            notes: std::mem::take(&mut self.notes),
            longest_stall: watch.longest_stall().max(trailing).0,
            revision: self.revision,
            differs: matches!(self.failure, Some(Failure::Differs(_))),
            refused: matches!(
                self.failure,
                Some(Failure::Refused(_) | Failure::Hindered(_))
            ),
            may_pass: matches!(self.failure, Some(Failure::Hindered(_))),
            units: self.fetch.hashed_units(),
            compared_units: compared.units,
            compared_bytes: compared.bytes,
            zeros: self.fetch.zeros(),
            ..Done::default()
        }
    }

    /// What is missing; of a node that has failed also what it received and that is not safe.
    fn lacking(&self) -> RangeSet {
        let missing = self.fetch.missing();
        if self.failure.is_none() || self.is_renamed {
            return missing;
        }
        let received = self.fetch.ledger().delivered_ranges();
        missing.union(&received.difference(&self.safe))
    }

    /// Whether it may change now what other nodes write, too; see [`Permit`].
    #[must_use]
    pub fn may_change_shared(&self, now: Instant) -> bool {
        self.permit.is_none_or(|permit| permit.holds(now))
    }

    /// Progress for the master.
    pub fn status(&mut self, now: Instant) -> Status {
        Status {
            delivered: self.durable.safe_bytes(),
            checked: self.fetch.ledger().delivered_bytes(),
            pairs: self.fetch.pair_statuses(now),
            ..Status::default()
        }
    }
}
