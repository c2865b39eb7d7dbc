//! Callers that wait: the first of them reads the link on which small messages arrive.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Locked, Session};
use crate::MessageError;
use crate::link::{Link, LinkError, Reader, SLICE, Step};

/// How long a caller waits for another thread that is reading before he tries to read himself.
const TAKE_OVER: Duration = Duration::from_millis(5);
/// How long a caller looks again and again before he sleeps: about what sleeping and waking cost twice.
const LOOK: Duration = Duration::from_micros(50);
/// After so many looks in vain callers sleep at once ...
const LOOKS_IN_VAIN: u32 = 8;
/// ... but for one wait in so many.
const LOOK_AGAIN: u32 = 64;

/// How long a caller who waits for something else sends at most: what he waits for may come meanwhile.
fn sending_until(deadline: Option<Instant>) -> Instant {
    let slice = Instant::now() + SLICE;
    deadline.map_or(slice, |deadline| deadline.min(slice))
}

impl Session {
    /// Reads as soon as something comes, for a short time and only while that is likely to come within it; others on the
    /// processor go first. Says whether a frame came.
    fn look(&self, link: &Link, reader: &mut Reader, most: Duration) -> Result<bool, LinkError> {
        let vain = self.looks_in_vain.load(Ordering::Relaxed);
        if vain >= LOOKS_IN_VAIN && !vain.is_multiple_of(LOOK_AGAIN) {
            self.looks_in_vain
                .store(vain.wrapping_add(1).max(LOOKS_IN_VAIN), Ordering::Relaxed);
            return Ok(false);
        }
        let begun = Instant::now();
        while begun.elapsed() < most {
            if link.read(reader, self)? == Step::Frame {
                self.looks_in_vain.store(0, Ordering::Relaxed);
                return Ok(true);
            }
            rustix::thread::sched_yield();
        }
        self.looks_in_vain
            .store(vain.wrapping_add(1), Ordering::Relaxed);
        Ok(false)
    }

    /// Waits a little for news, reading the link that small messages come on when nobody else does. The caller looks
    /// at the state again afterwards.
    pub(crate) fn wait<'a>(
        &'a self,
        mut state: Locked<'a>,
        deadline: Option<Instant>,
    ) -> Result<Locked<'a>, MessageError> {
        let left = |most: Duration| match deadline {
            Some(deadline) => most.min(deadline.saturating_duration_since(Instant::now())),
            None => most,
        };
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(MessageError::Deadline);
        }
        let favourite = state.favourite;
        let link = state.links.get(favourite).cloned().flatten();
        let held = link
            .as_ref()
            .and_then(|link| link.reader.try_lock().map(|held| (link, held)));
        let Some((link, mut reader)) = held else {
            let any = link
                .clone()
                .or_else(|| state.links.iter().flatten().next().cloned());
            if let Some(any) = any.filter(|any| state.receiver.owes(any.rail)) {
                // Whoever reads may be waiting for what the peer sends only when it hears this.
                drop(state);
                self.tell(&any);
                return Ok(self.state());
            }
            // The link's own thread makes room after the frame it is at.
            self.left_ns.store(self.now().0, Ordering::Relaxed);
            state.waiting += 1;
            state.wait_for(&self.changed, left(TAKE_OVER));
            state.waiting -= 1;
            return Ok(state);
        };
        self.inside.fetch_add(1, Ordering::AcqRel);
        if state.polling == 0 && std::mem::take(&mut state.rung) {
            // It rang for callers who have all left.
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
        state.polling += 1;
        let owes = state.receiver.owes(favourite);
        drop(state);
        let result = (|| {
            let mut came = false;
            if reader.is_drained() {
                if owes {
                    self.acknowledge(link)?;
                }
                came = self.look(link, &mut reader, left(LOOK))?;
                if !came {
                    link.wait_readable(Some(self.bell.as_fd()), left(SLICE))?;
                }
            }
            if !came {
                link.read(&mut reader, self)?;
            }
            Ok(())
        })();
        // Sending waits for the peer, who may be sending, too: then others have to read.
        drop(reader);
        self.left_ns.store(self.now().0, Ordering::Relaxed);
        self.inside.fetch_sub(1, Ordering::AcqRel);
        let result = result.and_then(|()| self.send_on(link, || sending_until(deadline)));
        if let Err(error) = result {
            self.fail(link, &error);
        }
        let mut state = self.state();
        state.polling -= 1;
        if state.waiting > 0 {
            self.changed.notify_all();
        }
        Ok(state)
    }
}
