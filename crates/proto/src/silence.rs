//! When an agent that hangs on its master by a pipe takes it for gone. Pure.
//!
//! What the pipe runs through may notice late that the master's host lost its power or its network: sshd waits for as long as
//! TCP sends again, about a quarter of an hour. The master speaks at least every [`BEAT_NS`] once it has begun to.

/// A master that has nothing to say says so this often.
pub const BEAT_NS: u64 = 10_000_000_000;

/// One that is silent for so long is gone. A command that is stopped at its terminal may be continued before.
pub const SILENCE_NS: u64 = 6 * BEAT_NS;

/// When a master was heard.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silence {
    heard_ns: Option<u64>,
}

impl Silence {
    /// It said something.
    pub fn handle_heard(&mut self, now_ns: u64) {
        self.heard_ns = Some(now_ns);
    }

    /// When it is taken for gone, unless it is heard before. Never as long as it has not begun: it may wait for a password
    /// of another host.
    #[must_use]
    pub fn over_ns(&self) -> Option<u64> {
        Some(self.heard_ns? + SILENCE_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Patience begins with the first word, and anew with each.
    #[test]
    fn patience_begins_with_each_word() {
        let mut silence = Silence::default();
        assert_eq!(silence.over_ns(), None);
        silence.handle_heard(5);
        assert_eq!(silence.over_ns(), Some(5 + SILENCE_NS));
        silence.handle_heard(BEAT_NS);
        assert_eq!(silence.over_ns(), Some(BEAT_NS + SILENCE_NS));
    }
}
