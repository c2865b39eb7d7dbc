//! Input: where bytes of fragments go, and what frames say.

use std::sync::Arc;

use ropewalk_model::{Range, RangeSet};
use ropewalk_proto::message::frame::{DISCARD, Entry, FRAGMENT_MAX, Header, Kind, PROMPT};
use ropewalk_proto::message::{Arrival, Front, Landing as Where, RailId};

use super::{Locked, Session, State};
use crate::MessageError;
use crate::link::{Frames, Landing, Link, LinkError};
use crate::memory::{Kept, Place, fill};

/// Entries of acknowledgements that may wait on one rail: more frames than a peer has credit for.
const ENTRIES_WAITING_MAX: usize = 1 << 16;
/// Acknowledgements are sent after so many fragments, or when there is nothing more to read.
const ENTRIES_PROMPT: usize = 2;
/// Bytes that are copied under the session's lock at most.
const COPY_MAX: usize = 64 << 10;

impl Session {
    /// Takes what every frame carries.
    fn hear(&self, state: &mut State, header: &Header) -> Result<(), LinkError> {
        let before = state.sender.unfinished();
        if !state.sender.done_below(header.done_below, self.now()) {
            return Err(LinkError::Protocol("it acknowledges what was never sent"));
        }
        let more = state.sender.allow(header.credit);
        self.forget_sources(state);
        let left = state.sender.unfinished();
        if left > 0 && (more || left < before) {
            self.more_work(state);
        }
        if left < before {
            self.news(state);
        }
        Ok(())
    }

    /// Refuses more while acknowledgements pile up.
    fn check_entries(&self, state: &State, link: &Link) -> Result<(), LinkError> {
        if state.receiver.waiting_entries(link.rail) > ENTRIES_WAITING_MAX {
            return Err(LinkError::Protocol("it reads no acknowledgements"));
        }
        Ok(())
    }

    fn forget_sources(&self, state: &mut State) {
        while let Some(first) = state.sources.first_entry()
            && state.sender.is_finished(*first.key())
        {
            first.remove();
        }
    }

    /// The place for a fragment of the message that is next, if a caller waits for it.
    fn place(&self, state: &mut State, message: u64) -> Option<Arc<Place>> {
        if state.left == Some(message) {
            return None;
        }
        if let Some((claimed, place)) = &state.claimed {
            return (*claimed == message).then(|| place.clone());
        }
        let Front::Partial {
            message: next,
            length,
        } = state.receiver.front()
        else {
            return None;
        };
        if next != message {
            return None;
        }
        match state.wanted {
            // It comes where all do that nobody receives yet, but somebody waits for it.
            Some(most) if length <= most => state.receiver.claim(),
            // He has to hear it now: it may be too long to become whole before somebody claims it.
            Some(_) => self.news(state),
            None => {}
        }
        let fits = |place: &Arc<Place>| place.is_open() && place.len() as u64 >= length;
        let place = state.offer.take().filter(fits)?;
        for (offset, bytes) in self.claim(state, message, &place) {
            self.put(state, message, &place, offset, bytes);
        }
        Some(place)
    }

    /// The first message comes into this place from now on. Gives what came before, which is to be put there, too.
    pub(crate) fn claim(
        &self,
        state: &mut State,
        message: u64,
        place: &Arc<Place>,
    ) -> Vec<(u64, Kept)> {
        // The memory is this message's now, and no other's.
        state.offer = None;
        if state.claimed.is_none() {
            state.receiver.claim();
            state.claimed = Some((message, place.clone()));
        }
        let mut pieces = Vec::new();
        while let Some(first) = state.kept.first_entry()
            && first.key().0 <= message
        {
            let ((of, offset), bytes) = first.remove_entry();
            if of == message {
                pieces.push((offset, bytes));
            }
        }
        pieces
    }

    /// The next message, where it is whole and in no caller's memory, or why there is none; `None`: it is awaited, and memory is kept for `most` bytes of it.
    pub(crate) fn take_next(
        &self,
        state: &mut State,
        most: u64,
    ) -> Option<Result<Option<Vec<u8>>, MessageError>> {
        let (length, whole) = match state.receiver.front() {
            Front::End => return Some(Ok(None)),
            Front::Unknown => (None, None),
            Front::Whole { length, message } => (Some(length), Some(message)),
            Front::Partial { length, .. } => (Some(length), None),
        };
        if let Some(length) = length.filter(|&length| length > most) {
            return Some(Err(MessageError::TooLong { length, room: most }));
        }
        // One that is received into the memory of a blocking caller is his, until what he leaves of it is kept.
        let is_free = state.claimed.is_none() && !state.leaving;
        if let Some(message) = whole.filter(|_| is_free) {
            let bytes = Self::take_kept(state, message, length.unwrap_or(0));
            assert_eq!(Some(bytes.len() as u64), length, "a message with a gap");
            state.receiver.deliver();
            // Others that wait may have the next.
            state.wakers.wake();
            return Some(Ok(Some(bytes)));
        }
        state.wanted = Some(most);
        if length.is_some() {
            // The one that waits has room for it.
            state.receiver.claim();
        }
        None
    }

    /// Bytes of a whole message that came into nobody's memory.
    fn take_kept(state: &mut State, message: u64, length: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(first) = state.kept.first_entry()
            && first.key().0 <= message
        {
            let ((of, _), piece) = first.remove_entry();
            if of < message {
                continue;
            }
            // Pieces are in order and leave no gap.
            if bytes.is_empty() {
                bytes = piece.into_bytes();
                bytes.reserve_exact((length as usize).saturating_sub(bytes.len()));
            } else {
                bytes.extend_from_slice(&piece);
            }
        }
        bytes
    }

    /// Puts bytes of the claimed message into its place; they stay with the others when that is closed.
    fn put(&self, state: &mut State, message: u64, place: &Place, offset: u64, bytes: Kept) {
        if !put(place, offset, &bytes) {
            state.kept.insert((message, offset), bytes);
        }
    }

    /// Puts pieces of a claimed message where they belong: without the lock when they are long, while links may
    /// bring others.
    pub(crate) fn put_all<'a>(
        &'a self,
        mut state: Locked<'a>,
        message: u64,
        place: &Place,
        pieces: Vec<(u64, Kept)>,
    ) -> Locked<'a> {
        if pieces.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() <= COPY_MAX {
            for (offset, bytes) in pieces {
                self.put(&mut state, message, place, offset, bytes);
            }
            return state;
        }
        drop(state);
        for (offset, bytes) in &pieces {
            // A place that closed meanwhile was the place of a message that was cancelled.
            let _ = put(place, *offset, bytes);
        }
        self.state()
    }

    /// What has come of a message into a place that closed stays until somebody asks again. Without the lock: while
    /// `leaving` is set nobody else receives, and what comes now goes to `kept` by itself.
    pub(crate) fn keep(&self, message: u64, place: &Place, arrived: &RangeSet) {
        let pieces: Vec<_> = arrived
            .iter()
            .map(|range| {
                // SAFETY: each fragment that has arrived was written to this place, by the link that brought it or when the
                // message was claimed; the caller, who leaves, still lends it.
                let bytes = unsafe { place.copy_closed(range) };
                let bytes = Kept::of(&self.kept_bytes, bytes);
                ((message, range.start), bytes)
            })
            .collect();
        let mut state = self.state();
        // It may have been cancelled.
        if state.receiver.is_front(message) {
            state.kept.extend(pieces);
        }
        state.leaving = false;
        // The message may be whole, and a task may have looked in vain.
        self.news(&mut state);
    }
}

/// Copies bytes into a claimed place, as no link in particular; `false` when it is closed.
#[must_use]
fn put(place: &Place, offset: u64, bytes: &[u8]) -> bool {
    let range = Range::new(offset, offset + bytes.len() as u64);
    // Whole fragments of the message's own length: they fit, and no link is writing what has arrived.
    let done = place.with(u64::MAX, u32::MAX, range, |span| fill(span, bytes));
    done.is_some()
}

impl Frames for Session {
    fn begin(&self, link: &Link, header: &Header) -> Result<Landing, LinkError> {
        let mut state = self.state();
        self.check_entries(&state, link)?;
        let Where::Place { range, taken_over } = state.receiver.begin(link.number, header)? else {
            return Ok(Landing::Nowhere);
        };
        if let Some(place) = self.place(&mut state, header.message) {
            if taken_over {
                place.hand_over(header.fragment, link.number);
            }
            return Ok(Landing::Place(place));
        }
        // Second copies apart, an honest peer stays below; what is refused comes again.
        let most = state
            .receiver
            .room()
            .saturating_add(2 * u64::from(FRAGMENT_MAX));
        drop(state);
        let kept = Kept::new(&self.kept_bytes, range.len(), most);
        Ok(kept.map_or(Landing::Refused, Landing::Kept))
    }

    fn end(
        &self,
        link: &Link,
        header: &Header,
        landing: Landing,
        good: bool,
    ) -> Result<(), LinkError> {
        let mut guard = self.state();
        let state = &mut *guard;
        // Bytes in a place that its caller has left are lost, and the fragment has to come again.
        let good = good
            && match &landing {
                Landing::Place(place) => {
                    let claimed = state.claimed.as_ref();
                    claimed.is_some_and(|(message, own)| {
                        *message == header.message && Arc::ptr_eq(own, place)
                    })
                }
                Landing::Kept(_) | Landing::Nowhere => true,
                Landing::Refused => false,
            };
        let arrival = state.receiver.data(link.rail, link.number, header, good);
        if arrival != Arrival::Nothing {
            state.brought[link.rail] += u64::from(header.length);
            if let Landing::Kept(bytes) = landing {
                let offset = header.range().start;
                let own = state.claimed.as_ref();
                let own = own.filter(|(message, _)| *message == header.message);
                match own.map(|(_, place)| place.clone()) {
                    Some(place) => self.put(state, header.message, &place, offset, bytes),
                    None => drop(state.kept.insert((header.message, offset), bytes)),
                }
            }
        }
        if u64::from(header.fragment_len) >= header.message_len && state.favourite != link.rail {
            self.set_favourite(state, link.rail);
        }
        let heard = self.hear(state, header);
        if arrival == Arrival::Whole {
            self.news(state);
        }
        let prompt = (arrival == Arrival::Whole && header.flags & (PROMPT | DISCARD) != 0)
            || state.receiver.waiting_entries(link.rail) >= ENTRIES_PROMPT;
        drop(guard);
        heard?;
        if prompt {
            self.acknowledge(link)?;
        }
        Ok(())
    }

    fn control(&self, link: &Link, header: &Header, payload: &[u8]) -> Result<(), LinkError> {
        let mut state = self.state();
        self.check_entries(&state, link)?;
        let before = state.sender.unfinished();
        match header.kind {
            Kind::Ack => {
                for entry in Entry::decode_all(payload) {
                    state.sender.arrived(entry);
                }
                let now = self.now();
                if state.links[link.rail]
                    .as_ref()
                    .is_some_and(|own| own.number == link.number)
                {
                    state.sender.processed(link.rail, header.fragment_len, now);
                }
                if state.sender.unfinished() < before {
                    self.news(&mut state);
                }
                if state.sender.unfinished() > 0 {
                    link.found_room();
                    if state.sender.has_declined() {
                        self.more_work(&mut state);
                    }
                }
            }
            Kind::Cancel | Kind::End => {
                let arrival = state.receiver.whole(link.rail, link.number, header)?;
                // A message that was whole before stays, bytes and all.
                if header.kind == Kind::Cancel && arrival == Arrival::Whole {
                    state
                        .kept
                        .retain(|&(message, _), _| message != header.message);
                    let own = |claimed: &mut (u64, Arc<Place>)| claimed.0 == header.message;
                    if let Some((_, place)) = state.claimed.take_if(own) {
                        // Links may still be writing to it; the caller lends his memory anew for the next message.
                        place.close();
                    }
                }
                self.news(&mut state);
            }
            Kind::CutOff => {
                let best = header.fragment as RailId;
                state.cut_off.told(header.message, best);
                state.sender.set_best(best);
            }
            Kind::Bye => {
                state.peer_closed = true;
                self.hear(&mut state, header)?;
                self.finish(&mut state);
                return Ok(());
            }
            Kind::Alive | Kind::Data => {}
        }
        self.hear(&mut state, header)
    }
}
