//! What is sent: messages, fragments, acknowledgements, and by which thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_proto::message::frame::{Entry, Header, Kind};
use ropewalk_proto::message::{Body, Fragment, Spread};

use super::{Locked, Session, State, Way};
use crate::MessageError;
use crate::link::{Link, LinkError, SLICE, Writer};
use crate::memory::Source;

/// Bytes that a caller sends by himself without being asked to wait: what a socket takes at once.
const INLINE_MAX: u64 = 64 << 10;

impl Session {
    /// Begins a message; waits while too many are on their way. The caller sends the best rail's part himself if nothing
    /// long is before it, until the deadline.
    pub(crate) fn start(
        &self,
        way: impl Fn(&mut State) -> Way,
        length: u64,
        source: &Arc<Source>,
        deadline: Option<Instant>,
    ) -> Result<u64, MessageError> {
        self.start_until(way, length, source, deadline, u64::MAX, || deadline)
    }

    /// As [`start`](Self::start); what the kernel does not take at once, or is long, is left to the rail's thread.
    pub(crate) fn start_only(
        &self,
        way: impl Fn(&mut State) -> Way,
        length: u64,
        source: &Arc<Source>,
        deadline: Option<Instant>,
    ) -> Result<u64, MessageError> {
        let now = || Some(Instant::now());
        self.start_until(way, length, source, deadline, INLINE_MAX, now)
    }

    /// Begins a message if that is possible now, and leaves it to the threads of the rails.
    pub(crate) fn try_start(
        &self,
        state: &mut State,
        way: Way,
        length: u64,
        source: &Arc<Source>,
    ) -> Result<Option<u64>, MessageError> {
        if let Some(error) = self.verdict(state) {
            return Err(error);
        }
        if state.sender.is_ended() {
            return Err(MessageError::Closed);
        }
        let Some(message) = state.sender.start(length, way.spread, way.flags) else {
            return Ok(None);
        };
        state.started = message + 1;
        if length > INLINE_MAX {
            state.long_started = message + 1;
        }
        state.sources.insert(message, source.clone());
        Ok(Some(message))
    }

    fn start_until(
        &self,
        way: impl Fn(&mut State) -> Way,
        length: u64,
        source: &Arc<Source>,
        deadline: Option<Instant>,
        inline_max: u64,
        until: impl FnOnce() -> Option<Instant>,
    ) -> Result<u64, MessageError> {
        let mut state = self.state();
        loop {
            let way = way(&mut state);
            let long_before = state.long_started;
            let Some(message) = self.try_start(&mut state, way, length, source)? else {
                state = self.wait(state, deadline)?;
                continue;
            };
            let clear = length <= inline_max && self.is_clear(&state, long_before);
            self.set_off(state, message, way.spread, clear, until());
            return Ok(message);
        }
    }

    /// Whether nothing long is on its way from before.
    fn is_clear(&self, state: &State, long_before: u64) -> bool {
        long_before == 0 || state.sender.is_finished(long_before - 1)
    }

    /// Begins a message that is known to be taken, as [`start_only`](Self::start_only) does.
    pub(crate) fn start_taken(
        &self,
        mut state: Locked<'_>,
        way: Way,
        length: u64,
        source: &Arc<Source>,
    ) -> Result<Option<u64>, MessageError> {
        let long_before = state.long_started;
        let Some(message) = self.try_start(&mut state, way, length, source)? else {
            return Ok(None);
        };
        let clear = length <= INLINE_MAX && self.is_clear(&state, long_before);
        self.set_off(state, message, way.spread, clear, Some(Instant::now()));
        Ok(Some(message))
    }

    /// Has a message sent that was begun: by this thread where the best rail is idle and it is `clear` to go, else by the
    /// threads of the rails.
    fn set_off(
        &self,
        mut state: Locked<'_>,
        message: u64,
        spread: Spread,
        clear: bool,
        until: Option<Instant>,
    ) {
        if matches!(spread, Spread::Equal | Spread::Balanced) {
            self.more_work(&mut state);
        }
        let rail = match spread {
            Spread::On(rail) => Some(rail),
            Spread::Single | Spread::Equal | Spread::Balanced => state.sender.best(),
        };
        let link = rail
            .and_then(|rail| state.links[rail].clone())
            .filter(|_| clear);
        // A rail that is busy finishes what it does, then its own thread goes on with this.
        let writer = link
            .as_ref()
            .and_then(|link| Some((link, link.writer.try_lock()?)));
        match writer {
            Some((link, mut writer)) if writer.is_clear() => {
                drop(state);
                let result = self.send_up_to(link, &mut writer, until, message);
                drop(writer);
                if let Err(error) = result {
                    self.fail(link, &error);
                }
            }
            _ => self.more_work(&mut state),
        }
    }

    /// Sends what acknowledgements have made room for, without a change of threads. Whatever is left
    /// `until` then is for the sending thread.
    pub(crate) fn send_on(
        &self,
        link: &Link,
        until: impl FnOnce() -> Instant,
    ) -> Result<(), LinkError> {
        if !link.take_room() {
            return Ok(());
        }
        match link.writer.try_lock() {
            Some(mut writer) if writer.is_clear() => {
                self.send_ready(link, &mut writer, Some(until()))
            }
            _ => {
                self.wake(&mut self.state(), link.rail);
                Ok(())
            }
        }
    }

    /// Sends what the rail of a link may take, as its writer.
    pub(crate) fn send_ready(
        &self,
        link: &Link,
        writer: &mut Writer,
        until: Option<Instant>,
    ) -> Result<(), LinkError> {
        self.send_up_to(link, writer, until, u64::MAX)
    }

    /// Sends what the rail of a link may take, up to the end of message `last`.
    fn send_up_to(
        &self,
        link: &Link,
        writer: &mut Writer,
        until: Option<Instant>,
        last: u64,
    ) -> Result<(), LinkError> {
        loop {
            let now = self.now();
            let mut state = self.state();
            // A newer link may have taken the rail over: its fragments are not this link's.
            if !Self::is_current(&state, link) {
                return Err(LinkError::Closed);
            }
            // The farewell is next.
            if state.closed {
                return Ok(());
            }
            let Some(fragment) = state.sender.take(link.rail, now) else {
                return Ok(());
            };
            let (done_below, credit) = state.receiver.tell();
            let source = state.sources.get(&fragment.message).cloned();
            state.carried[link.rail] += fragment.range.len();
            drop(state);
            link.mark_sent(now);
            let header = header_of(&fragment, done_below, credit);
            match (fragment.body, source) {
                (Body::Bytes, Some(source)) => {
                    link.send_fragment(writer, &header, &source, until)?
                }
                (Body::Bytes, None) => {
                    // Its caller is gone: the frame keeps its place, the bytes are marked as taken back.
                    let none = Source::owned(Vec::new());
                    none.take_back();
                    link.send_fragment(writer, &header, &none, until)?;
                }
                (Body::Cancelled | Body::End, _) => {
                    link.flush(writer, true)?;
                    link.send_control(writer, &header, &[])?;
                }
            }
            if !writer.is_clear() {
                // The deadline passed in the middle: the sending thread goes on.
                self.wake(&mut self.state(), link.rail);
                return Ok(());
            }
            if link.is_nudged() && link.take_nudge() {
                // Acknowledgements do not wait until there is nothing more to send.
                self.acknowledge_as(link, writer)?;
                if !writer.is_clear() {
                    return Ok(());
                }
            }
            if fragment.message >= last && fragment.range.end == fragment.message_len {
                return Ok(());
            }
        }
    }

    /// Sends what the peer waits for on a link, now if nobody else is sending on it, else through the thread that is.
    pub(crate) fn acknowledge(&self, link: &Link) -> Result<(), LinkError> {
        let Some(mut writer) = link.writer.try_lock() else {
            link.nudge();
            self.wake(&mut self.state(), link.rail);
            return Ok(());
        };
        self.acknowledge_as(link, &mut writer)
    }

    /// Acknowledges; a link that cannot is over.
    pub(super) fn tell(&self, link: &Arc<Link>) {
        if let Err(error) = self.acknowledge(link) {
            self.fail(link, &error);
        }
    }

    /// Tells the peer of credit that came free, when it may be waiting for it.
    pub(crate) fn tell_credit(&self, state: Locked<'_>) {
        if !state.receiver.owes_credit() {
            return;
        }
        let own = state.links.get(state.favourite).cloned().flatten();
        let any = own.or_else(|| state.links.iter().flatten().next().cloned());
        drop(state);
        if let Some(any) = any {
            self.tell(&any);
        }
    }

    /// Sends what the peer waits for on a link, as its writer.
    pub(crate) fn acknowledge_as(&self, link: &Link, writer: &mut Writer) -> Result<(), LinkError> {
        loop {
            link.flush(writer, false)?;
            let now = self.now();
            let mut state = self.state();
            if !writer.is_clear() {
                // The kernel is full: the sending thread waits for it.
                self.wake(&mut state, link.rail);
                return Ok(());
            }
            if !state.receiver.owes(link.rail) {
                return Ok(());
            }
            // What is told on a link that was replaced would never be told again.
            if !Self::is_current(&state, link) {
                return Err(LinkError::Closed);
            }
            let (done_below, credit) = state.receiver.tell();
            let Some(ack) = state.receiver.ack(link.rail, link.number) else {
                return Ok(());
            };
            drop(state);
            let payload: Vec<u8> = ack.entries.iter().flat_map(Entry::encode).collect();
            let header = Header {
                length: payload.len() as u32,
                fragment_len: ack.frames,
                done_below,
                credit,
                ..Header::new(Kind::Ack)
            };
            link.mark_sent(now);
            link.send_control(writer, &header, &payload)?;
        }
    }

    /// Says that the socket is closed on all links that take it now, else on the first that does, behind the frames that are on their way;
    /// until then at the latest. A link that cannot say it does so by its end. Acknowledgements that are due ride along.
    ///
    /// Gives the links that have it.
    pub(super) fn bid_farewell(&self, links: &[Arc<Link>], until: Instant) -> Vec<Arc<Link>> {
        let mut said = Vec::new();
        let mut left: Vec<(&Arc<Link>, bool)> = links.iter().map(|link| (link, false)).collect();
        loop {
            left.retain_mut(|(link, waits)| match self.farewell(link, waits) {
                Ok(true) => {
                    said.push(link.clone());
                    false
                }
                Ok(false) => true,
                Err(_) => false,
            });
            if left.is_empty() || !said.is_empty() || Instant::now() >= until {
                return said;
            }
        }
    }

    /// One attempt of at most [`SLICE`]; whether the kernel has all of it.
    ///
    /// * `waits`: it is among what waits to be sent.
    fn farewell(&self, link: &Link, waits: &mut bool) -> Result<bool, LinkError> {
        let until = Instant::now() + SLICE;
        let Some(mut writer) = link.writer.try_lock_until(until) else {
            return match link.is_dead() {
                true => Err(LinkError::Closed),
                false => Ok(false),
            };
        };
        if !*waits {
            // What cannot be sent must not count as said.
            let mut state = self.state();
            if !Self::is_current(&state, link) {
                return Err(LinkError::Closed);
            }
            if writer.has_room() {
                let (done_below, credit) = state.receiver.tell();
                drop(state);
                let header = Header {
                    done_below,
                    credit,
                    ..Header::new(Kind::Bye)
                };
                *waits = link.send_control(&mut writer, &header, &[])?;
            }
        }
        link.flush_until(&mut writer, Some(until))?;
        Ok(*waits && writer.is_clear())
    }

    /// Sends a frame without payload, unless somebody else is sending on the link for longer than `wait`.
    pub(crate) fn say(&self, link: &Link, header: Header, wait: Duration) -> Result<(), LinkError> {
        let Some(mut writer) = link.writer.try_lock_for(wait) else {
            return Ok(());
        };
        // What cannot be sent must not count as told.
        let mut state = self.state();
        if !writer.has_room() || !Self::is_current(&state, link) {
            return Ok(());
        }
        let (done_below, credit) = state.receiver.tell();
        drop(state);
        link.mark_sent(self.now());
        let header = Header {
            done_below,
            credit,
            ..header
        };
        link.send_control(&mut writer, &header, &[])?;
        Ok(())
    }
}

fn header_of(fragment: &Fragment, done_below: u64, credit: u64) -> Header {
    let kind = match fragment.body {
        Body::Bytes => Kind::Data,
        Body::Cancelled => Kind::Cancel,
        Body::End => Kind::End,
    };
    let data = kind == Kind::Data;
    Header {
        flags: if data { fragment.flags } else { 0 },
        length: fragment.range.len() as u32,
        message: fragment.message,
        message_len: fragment.message_len,
        fragment: fragment.fragment,
        fragment_len: fragment.fragment_len,
        done_below,
        credit,
        ..Header::new(kind)
    }
}
