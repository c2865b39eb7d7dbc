//! The memory of a caller that receives.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::Arc;

use ropewalk_proto::message::Front;

use crate::MessageError;
use crate::memory::{Parts, Place};
use crate::session::{Locked, Session, State};

/// Memory on loan for the next message.
pub(crate) struct Guest<'a> {
    session: &'a Session,
    parts: Parts,
    place: Arc<Place>,
    _room: PhantomData<&'a mut [u8]>,
}

impl<'a> Guest<'a> {
    /// The first bytes of a message go to `head`, all others to `body`.
    pub(crate) fn new(
        session: &'a Session,
        head: &'a mut [u8],
        body: &'a mut [MaybeUninit<u8>],
    ) -> Self {
        let parts = [
            (head.as_mut_ptr(), head.len()),
            (body.as_mut_ptr().cast(), body.len()),
        ];
        // SAFETY: closed when the guest leaves; the memory is borrowed until then.
        let place = Arc::new(unsafe { Place::lent(parts) });
        Self {
            session,
            parts,
            place,
            _room: PhantomData,
        }
    }

    /// Whether a part of a message is in the memory.
    pub(crate) fn has_begun(&self, state: &State) -> bool {
        let claimed = state.claimed.as_ref();
        claimed.is_some_and(|(_, place)| Arc::ptr_eq(place, &self.place))
    }

    /// Takes the next message if it is whole; else lends the memory to it. `None`: there is something to wait for.
    pub(crate) fn look(
        &mut self,
        mut state: Locked<'a>,
    ) -> (Locked<'a>, Option<Result<Option<usize>, MessageError>>) {
        loop {
            if !self.place.is_open() {
                self.lend_again();
            }
            let front = state.receiver.front();
            let (message, length) = match front {
                Front::End => return (state, Some(Ok(None))),
                Front::Unknown => {
                    state.offer = Some(self.place.clone());
                    return (state, None);
                }
                Front::Whole { message, length } | Front::Partial { message, length } => {
                    (message, length)
                }
            };
            let room = (self.parts[0].1 + self.parts[1].1) as u64;
            if length > room {
                return (state, Some(Err(MessageError::TooLong { length, room })));
            }
            if state.left == Some(message) && matches!(front, Front::Partial { .. }) {
                // It is copied once, when it is whole.
                state.receiver.claim();
                return (state, None);
            }
            let pieces = self.session.claim(&mut state, message, &self.place);
            if !pieces.is_empty() {
                let session = self.session;
                state = session.put_all(state, message, &self.place, pieces);
                continue;
            }
            if !matches!(front, Front::Whole { .. }) {
                return (state, None);
            }
            state.claimed = None;
            state.receiver.deliver();
            // Tasks that wait leave what is claimed alone, and may have the next.
            state.wakers.wake();
            return (state, Some(Ok(Some(length as usize))));
        }
    }

    /// After a message was cancelled: what is still on its way to the old place must not disturb the next.
    fn lend_again(&mut self) {
        // SAFETY: as in `new`; the place before is closed.
        self.place = Arc::new(unsafe { Place::lent(self.parts) });
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        let mut state = self.session.state();
        state.offer = None;
        self.place.close();
        let own = |(_, place): &(u64, Arc<Place>)| Arc::ptr_eq(place, &self.place);
        let Some((message, place)) = state.claimed.take_if(|claimed| own(claimed)) else {
            return;
        };
        // What comes from now on does not go to the place any more.
        let arrived = state.receiver.front_bytes();
        state.leaving = true;
        state.left = Some(message);
        drop(state);
        self.session.keep(message, &place, &arrived);
    }
}
