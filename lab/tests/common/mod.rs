//! What the lab's tests share.

// Each test program uses its own part of this.
#![allow(dead_code)]

use std::process::Command;
use std::time::{Duration, Instant};

/// Long enough for a loaded machine; waiting ends as soon as the condition holds.
const DEADLINE: Duration = Duration::from_secs(30);

pub use ropewalk_lab::skip;

/// Waits until `condition` holds; panics, saying what it waited for, when it never does.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "still waiting until {what}");
        std::thread::yield_now();
    }
}

/// Standard output of a command that must succeed.
pub fn output(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}
