//! When an agent that hangs on its master by a pipe takes it for gone. Pure.
//!
//! What the pipe runs through may notice late that the master's host lost its power or its network: sshd waits for as long as
//! TCP sends again, about a quarter of an hour. The master speaks at least every [`BEAT_TIME`] once it has begun to.

use ropewalk_model::{Instant, Nanos};

/// A master that has nothing to say says so this often.
pub const BEAT_TIME: Nanos = Nanos::from_secs(10);

/// One that is silent for so long is gone. A command that is stopped at its terminal may be continued before.
pub const SILENCE_TIME: Nanos = Nanos::from_secs(60);

/// When a master was heard.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silence {
    heard_at: Option<Instant>,
}

impl Silence {
    /// It said something.
    pub fn handle_heard(&mut self, now: Instant) {
        self.heard_at = Some(now);
    }

    /// When it is taken for gone, unless it is heard before. Never as long as it has not begun: it may wait for a password
    /// of another host.
    #[must_use]
    pub fn over_at(&self) -> Option<Instant> {
        Some(self.heard_at? + SILENCE_TIME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Patience begins with the first word, and anew with each.
    #[test]
    fn patience_begins_with_each_word() {
        let mut silence = Silence::default();
        assert_eq!(silence.over_at(), None);
        for heard_at in [Instant(5), Instant::ZERO + BEAT_TIME] {
            silence.handle_heard(heard_at);
            assert_eq!(silence.over_at(), Some(heard_at + SILENCE_TIME));
        }
        assert!(SILENCE_TIME > BEAT_TIME * 2, "one lost beat is no silence");
    }
}
