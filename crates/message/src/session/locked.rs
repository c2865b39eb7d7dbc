//! The lock of a session's state, and when tasks are woken.

use std::ops::{Deref, DerefMut};
use std::task::Waker;
use std::time::Duration;

use parking_lot::{Condvar, MutexGuard};

use super::State;

/// The state, locked. Tasks that news concern are woken when it is unlocked: waking one may run it, or drop it, and its
/// futures lock the state themselves.
pub(crate) struct Locked<'a>(pub(super) MutexGuard<'a, State>);

impl Locked<'_> {
    /// Unlocks the state until there is news, at most for so long. Tasks to be woken are news: whoever waits looks again.
    pub(crate) fn wait_for(&mut self, changed: &Condvar, most: Duration) {
        if self.wakers.is_due() {
            self.wake_due();
        } else {
            changed.wait_for(&mut self.0, most);
        }
    }

    /// Unlocks the state while the tasks are woken, and their wakers dropped.
    fn wake_due(&mut self) {
        let due = self.wakers.take_due();
        MutexGuard::unlocked(&mut self.0, || due.into_iter().for_each(Waker::wake));
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.wakers.is_due() {
            self.wake_due();
        }
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.0
    }
}
