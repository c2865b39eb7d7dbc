//! The terminal's settings around a program that may ask there.

use std::fs::File;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};

/// Puts the terminal's settings back when dropped: a program that is killed while it asks for a password leaves the terminal
/// without echo.
pub(super) struct Terminal {
    terminal: File,
    settings: Termios,
}

impl Terminal {
    /// As they are now; `None` without a terminal.
    pub fn keep() -> Option<Self> {
        let terminal = File::open("/dev/tty").ok()?;
        let settings = tcgetattr(&terminal).ok()?;
        Some(Self { terminal, settings })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // What another job has made of the terminal is that job's, and changing it would stop this process.
        if tcgetpgrp(&self.terminal) == Ok(rustix::process::getpgrp()) {
            let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.settings);
        }
    }
}
