//! Runs the built program with a home of its own.

#![allow(dead_code, reason = "each test program uses a part")]

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

/// A temporary folder, and programs that know no other home.
pub struct Place {
    pub dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("home")).unwrap();
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The path as text, for arguments that are put together.
    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ropewalk-bench"));
        command
            .current_dir(self.dir.path())
            .env("HOME", self.path("home"))
            .env("XDG_STATE_HOME", self.path("state"));
        command.env_remove("XDG_CONFIG_HOME").stdin(Stdio::null());
        command
    }

    /// Runs to the end.
    pub fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Ran {
        Ran(self.command().args(args).output().unwrap())
    }
}

/// A program that is killed when dropped.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a program printed and how it ended.
pub struct Ran(pub Output);

impl Ran {
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }

    #[track_caller]
    pub fn assert_status(self, status: i32) -> Self {
        let (out, err) = (self.out(), self.err());
        assert_eq!(
            self.0.status.code(),
            Some(status),
            "out:\n{out}\nerr:\n{err}"
        );
        self
    }

    #[track_caller]
    pub fn assert_says(self, part: &str) -> Self {
        let (out, err) = (self.out(), self.err());
        assert!(
            err.contains(part) || out.contains(part),
            "{part:?} is not in\n{out}\n{err}"
        );
        self
    }
}
