//! A running `ropewalk serve`, and what its queue has.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Place, Ran};

/// A running `serve`; ended when dropped.
pub struct Serving(pub Child);

impl Serving {
    /// Starts it and waits until it takes jobs.
    pub fn start(place: &Place, args: &[&str]) -> Self {
        let mut command = place.command();
        command.arg("serve").args(args);
        Self::of(command)
    }

    /// The same of a command that has its arguments.
    pub fn of(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(line.starts_with("ropewalk serve: "), "{line}");
        Self(child)
    }

    /// The same with a port, which is given, too.
    pub fn listening(place: &Place, args: &[&str]) -> (Self, u16) {
        let mut command = place.command();
        command.arg("serve").args(args);
        Self::listening_of(command)
    }

    /// The same of a command that has its arguments.
    pub fn listening_of(mut command: Command) -> (Self, u16) {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        assert!(first.starts_with("ropewalk serve: "), "{first}");
        let second = lines.next().unwrap().unwrap();
        let port = second.strip_prefix("listening on 127.0.0.1:").unwrap();
        (Self(child), port.parse().unwrap())
    }

    pub fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Hands a copy over and gives its number.
#[track_caller]
pub fn hand_over(place: &Place, args: &[&str]) -> u64 {
    let ran = place.run(&[&["copy", "--detach", "--json"], args].concat());
    let ran = ran.assert_status(0);
    serde_json::from_str::<Value>(&ran.out()).unwrap()["job"]
        .as_u64()
        .unwrap()
}

pub fn listed(ran: &Ran) -> Vec<Value> {
    let all: Value = serde_json::from_str(&ran.out()).unwrap();
    all["jobs"].as_array().unwrap().clone()
}

/// All jobs.
pub fn jobs(place: &Place) -> Vec<Value> {
    listed(&place.run(&["queue", "--all", "--json"]).assert_status(0))
}

pub fn job(place: &Place, id: u64) -> Value {
    let id = id.to_string();
    listed(&place.run(&["queue", &id, "--json"]).assert_status(0)).remove(0)
}

pub fn state(job: &Value) -> &str {
    let state = &job["state"];
    let end = state["end"].as_str();
    end.unwrap_or_else(|| state["state"].as_str().unwrap())
}
