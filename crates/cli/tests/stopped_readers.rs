//! Readers that stop reading: a full pipe stops no transfer and no Ctrl-C, and what matters is there when it is read again.

mod common;

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};

use common::processes::{assert_gone, family};
use common::{DEADLINE, Place, bytes, wait_for};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Bytes that a pipe of these tests holds: the fewest that there are.
const PIPE_LEN: usize = 4096;

/// A pipe that holds little, and what is in it already: empty lines.
fn pipe(filled: usize) -> (File, OwnedFd) {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    assert_eq!(fcntl_setpipe_size(&write, PIPE_LEN).unwrap(), PIPE_LEN);
    let mut write = File::from(write);
    write.write_all(&vec![b'\n'; filled]).unwrap();
    (File::from(read), write.into())
}

/// The reading end of a pipe. A test that reads it fails, and does not hang, where nothing comes.
struct Patient(File);

impl Read for Patient {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        let most = Timespec {
            tv_sec: DEADLINE.as_secs() as i64,
            tv_nsec: 0,
        };
        let mut ready = [PollFd::new(&self.0, PollFlags::IN)];
        let count = poll(&mut ready, Some(&most))?;
        assert!(count > 0, "waited in vain for bytes");
        self.0.read(space)
    }
}

/// A command whose standard output is read only when the test does.
struct Unread {
    child: Child,
    output: BufReader<Patient>,
    // Of the lines that were read.
    longest: usize,
}

impl Drop for Unread {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Unread {
    fn start(place: &Place, filled: usize, words: &[&str]) -> Self {
        let (read, write) = pipe(filled);
        let mut command = place.command();
        command.args(words).stdout(write).stderr(Stdio::null());
        Self {
            child: command.spawn().unwrap(),
            output: BufReader::new(Patient(read)),
            longest: 0,
        }
    }

    /// Reads the next event; `None` at the end.
    fn next(&mut self) -> Option<Value> {
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            self.longest = self.longest.max(line.len());
            if line != "\n" {
                return Some(serde_json::from_str(&line).unwrap());
            }
        }
    }

    fn event(&mut self, name: &str) -> Value {
        loop {
            let event = self.next();
            let event = event.unwrap_or_else(|| panic!("it ended without an event {name}"));
            if event["event"] == name {
                return event;
            }
        }
    }

    /// Reads nothing until the pipe has no space for another line. Lines get longer with the numbers in them.
    fn stop_reading(&self) {
        let line = self.longest + self.longest / 4;
        wait_for("a full pipe", || {
            let waiting = ioctl_fionread(&self.output.get_ref().0).unwrap() as usize;
            (waiting + line > PIPE_LEN).then_some(())
        });
    }

    fn interrupt(&self) {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        kill_process(pid, Signal::INT).unwrap();
    }

    /// Its exit status, without reading.
    fn end(&mut self) -> Option<i32> {
        let status = wait_for("the command's end", || self.child.try_wait().unwrap());
        status.code()
    }

    /// Reads all that is left.
    fn rest(&mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.next()).collect()
    }
}

/// A copy is complete though its events are not read; then the newest progress and the report are read.
#[test]
fn copies_end_while_nothing_reads_them() {
    let place = Place::new();
    std::fs::write(place.path("f"), bytes(12 << 20, 1)).unwrap();
    let words = ["copy", "--json", "--limit", "6MB/s", "f", "g"];
    let mut unread = Unread::start(&place, PIPE_LEN, &words);
    wait_for("the copy", || place.path("g").exists().then_some(()));
    let events = unread.rest();
    assert_eq!(unread.end(), Some(0));
    let last = events.last().unwrap();
    assert_eq!(last["report"]["outcome"], "done", "{last:#}");
    let of = |name: &str| events.iter().filter(|event| event["event"] == name).count();
    assert_eq!((of("planned"), of("omitted")), (1, 0));
    // One that was being written, and the newest.
    assert!(of("progress") <= 2, "{}", of("progress"));
    // Nothing but the command waits for a reader of its end, and Ctrl-C ends that.
    let mut unread = Unread::start(&place, PIPE_LEN, &["copy", "--json", "f", "h"]);
    wait_for("the copy", || place.path("h").exists().then_some(()));
    unread.interrupt();
    assert_eq!(unread.end(), Some(130));
}

/// The same where progress on standard error is not read.
#[test]
fn copies_end_while_their_terminal_is_stopped() {
    let place = Place::new();
    std::fs::write(place.path("f"), bytes(12 << 20, 1)).unwrap();
    let (read, write) = pipe(PIPE_LEN);
    let mut read = Patient(read);
    let mut command = place.command();
    command.args(["copy", "--progress", "always", "--limit", "6MB/s", "f", "g"]);
    let mut child = command.stderr(write).spawn().unwrap();
    drop(command);
    wait_for("the copy", || place.path("g").exists().then_some(()));
    let mut text = String::new();
    read.read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(text.contains("done:"), "{text}");
}

/// Ctrl-C ends what moves though nothing is read: no process is left.
#[test]
fn commands_that_are_not_read_can_be_stopped() {
    let place = Place::new();
    std::fs::write(place.path("f"), bytes(2 << 20, 1)).unwrap();
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let forward = format!("0:{}", target.local_addr().unwrap());
    let endless = [
        "stream",
        "--json",
        "localhost",
        "localhost",
        "--size",
        "1TiB",
    ];
    for (words, begun) in [
        (
            &["copy", "--json", "--limit", "100kB/s", "f", "g"][..],
            "planned",
        ),
        (&endless, "started"),
        (&["tunnel", "--json", "localhost", &forward], "started"),
    ] {
        let mut unread = Unread::start(&place, 0, words);
        unread.event(begun);
        unread.event("progress");
        unread.stop_reading();
        let family = family(unread.child.id() as i32);
        unread.interrupt();
        assert_eq!(unread.end(), Some(130), "{words:?}");
        assert_gone(&family);
    }
}

/// What a dry run lists is whole, however late it is read; while it is not read, Ctrl-C ends it.
#[test]
fn lists_wait_for_their_readers() {
    const FILES: usize = 5000;
    let place = Place::new();
    std::fs::create_dir(place.path("set")).unwrap();
    for at in 0..FILES {
        std::fs::write(place.path(&format!("set/{at}")), b"").unwrap();
    }
    let words = ["copy", "-n", "--json", "set", "copy"];
    let mut unread = Unread::start(&place, 0, &words);
    unread.event("listed");
    unread.stop_reading();
    let events = unread.rest();
    assert_eq!(unread.end(), Some(0));
    let listed = events.iter().filter(|event| event["event"] == "listed");
    // The folder or a file was read before.
    assert_eq!(listed.count(), FILES);
    let last = events.last().unwrap();
    assert_eq!(last["report"]["dry_run"]["send_files"], FILES);

    let mut unread = Unread::start(&place, 0, &words);
    unread.event("listed");
    unread.stop_reading();
    unread.interrupt();
    assert_eq!(unread.end(), Some(130));
}
