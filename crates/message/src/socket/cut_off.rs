//! The cut-off of a socket: found, remembered, fixed.

use std::time::Duration;

use ropewalk_proto::message::cutoff::Method;

use super::MessageSocket;
use crate::MessageError;
use crate::remember::Remembrance;

/// A cut-off that earlier sockets between the same hosts found over the same rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecalledCutOff {
    /// Bytes from which on messages take all rails; [`NEVER`](crate::NEVER) for none.
    pub bytes: u64,
    /// Time since it was last seen to be so.
    pub age: Duration,
}

impl MessageSocket {
    /// Bytes from which on messages take all rails, as far as it is known by now.
    #[must_use]
    pub fn cut_off(&self) -> u64 {
        self.session.state().cut_off.value()
    }

    /// Fixes the cut-off at this end: it follows neither measurements nor the peer any more.
    pub fn set_cut_off(&self, bytes: u64) {
        self.session.state().cut_off.fix(bytes);
    }

    /// Measures the cut-off again and uses it, at both ends; `None` and no change when fewer than two rails work or 3 s are
    /// not enough. The peer's application sees nothing of it.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn find_cut_off(&self, method: Method) -> Result<Option<u64>, MessageError> {
        let found = crate::tune::find(self, method)?;
        if let (Some(_), Ok(recalled)) = (found, &mut *self.recalled.lock()) {
            *recalled = None;
        }
        Ok(found)
    }

    /// Takes the remembered cut-off into use, at both ends, and follows measurements from then on; `None` and no change when
    /// there is none of the rails that work, or it is older than 7 days. Connecting with a
    /// [measured](crate::CutOff::Measured) cut-off does this.
    ///
    /// # Errors
    /// [`MessageError::Remembered`] when the [file](crate::Options::cut_offs) is damaged or cannot be read.
    pub fn recall_cut_off(&self) -> Result<Option<RecalledCutOff>, MessageError> {
        let Some(remembrance) = self.remembrance.lock().clone() else {
            return Ok(None);
        };
        let rails = self.session.state().cut_off.rails().to_vec();
        let found = remembrance.recall(&rails);
        let mut state = self.session.state();
        // Rails that came or went meanwhile make it the cut-off of others.
        let still = state.cut_off.rails() == rails;
        let found = found.map(|found| found.filter(|_| still));
        let mut announced = None;
        if let Ok(Some(found)) = found {
            let (value, best) = (found.value, found.best);
            state.cut_off.recalled(value, best, found.found_by);
            if let Some(best) = best {
                state.sender.set_best(best);
            }
            announced = best.or(state.sender.best()).map(|best| (best, value));
        }
        drop(state);
        if let Some((best, value)) = announced {
            crate::tune::announce(self, best, value);
        }
        let recalled = found.map(|found| {
            found.map(|found| RecalledCutOff {
                bytes: found.value,
                age: Duration::from_secs(found.age_seconds),
            })
        });
        self.recalled.lock().clone_from(&recalled);
        recalled.map_err(MessageError::Remembered)
    }

    /// The remembered cut-off that this socket took into use last; `None` when it measured, or got it from the peer.
    #[must_use]
    pub fn recalled_cut_off(&self) -> Option<RecalledCutOff> {
        self.recalled.lock().as_ref().ok().copied().flatten()
    }

    /// Writes what this socket has shown to the file of [cut-offs](crate::Options::cut_offs) now: for sockets that live long, and
    /// for callers that check whether that works. Closing does the same. What was only recalled is not written: its
    /// age goes on until messages confirm it.
    ///
    /// # Errors
    /// [`MessageError::Remembered`] with path and cause.
    pub fn remember_cut_off(&self) -> Result<(), MessageError> {
        let remembrance = self.remembrance.lock().clone();
        match remembrance {
            Some(remembrance) => self.write_cut_offs(&remembrance),
            None => Ok(()),
        }
    }

    pub(super) fn write_cut_offs(&self, remembrance: &Remembrance) -> Result<(), MessageError> {
        let shown = self.session.state().cut_off.shown();
        let written = remembrance.record(&shown, self.session.now());
        written.map_err(MessageError::Remembered)
    }
}
