//! A program on a terminal.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::{DEADLINE, Place};

/// A terminal with a program in its foreground, and what it has shown.
pub struct Terminal {
    pub keys: File,
    pub child: Child,
    shown: String,
}

impl Terminal {
    pub fn run(place: &Place, args: &[&str]) -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let open = || -> OwnedFd {
            use rustix::fs::{Mode, OFlags, open};
            open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap()
        };
        let mut command = Command::new("setsid");
        let like = place.command();
        for (name, value) in like.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.current_dir(place.dir.path());
        command
            .args(["--ctty", "--wait"])
            .arg(like.get_program())
            .args(args);
        command.stdin(open()).stdout(open()).stderr(open());
        let child = command.spawn().unwrap();
        drop(command);
        Self {
            keys: File::from(controller),
            child,
            shown: String::new(),
        }
    }

    /// Waits until `words` have been shown once more.
    pub fn until(&mut self, words: &str) {
        let begin = Instant::now();
        loop {
            assert!(
                begin.elapsed() < DEADLINE,
                "{words:?} was not shown; shown: {}",
                self.shown
            );
            if let Some(at) = self.shown.find(words) {
                self.shown.drain(..at + words.len());
                return;
            }
            assert!(
                self.read(),
                "{words:?} did not arrive; shown: {}",
                self.shown
            );
        }
    }

    /// Gives the terminal a size, which its program learns by a signal.
    pub fn resize(&self, columns: u16, lines: u16) {
        let size = Winsize {
            ws_row: lines,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.keys, size).unwrap();
    }

    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// The exit status, and the rest of what was shown.
    pub fn end(mut self) -> (i32, String) {
        let begin = Instant::now();
        while self.read() {
            assert!(
                begin.elapsed() < DEADLINE,
                "it does not end; shown: {}",
                self.shown
            );
        }
        let status = self.child.wait().unwrap();
        (status.code().unwrap_or(-1), std::mem::take(&mut self.shown))
    }

    /// Waits for something to be shown; false at the end, which is an error of a terminal.
    fn read(&mut self) -> bool {
        let deadline = Timespec::try_from(DEADLINE).unwrap();
        let polled = poll(
            &mut [PollFd::new(&self.keys, PollFlags::IN)],
            Some(&deadline),
        );
        assert_ne!(
            polled,
            Ok(0),
            "nothing more was shown; shown: {}",
            self.shown
        );
        let mut bytes = [0; 1024];
        let read = self.keys.read(&mut bytes).unwrap_or(0);
        self.shown
            .push_str(&String::from_utf8_lossy(&bytes[..read]));
        read > 0
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // `setsid`, with which the terminal goes.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
