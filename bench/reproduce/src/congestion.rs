//! TCP congestion control of the machine, changed for some measurements.

use std::fs;

use anyhow::{Context as _, Result};

const IN_USE: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

fn read(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.trim().to_owned()
}

/// What the machine had; it has that again when this is dropped.
#[derive(Debug)]
pub(crate) struct Congestion {
    own: String,
}

impl Congestion {
    pub fn of_machine() -> Self {
        Self { own: read(IN_USE) }
    }

    /// Of these, those that the machine has and that may be set; else its own one.
    pub fn usable(&self, wanted: &[&str]) -> Vec<String> {
        let available = read(AVAILABLE);
        let is_there = |name: &&&str| available.split_whitespace().any(|other| other == **name);
        let may_set = fs::write(IN_USE, &self.own).is_ok();
        let usable = wanted.iter().filter(|_| may_set).filter(is_there);
        let usable: Vec<String> = usable.map(|name| (*name).to_owned()).collect();
        match usable.is_empty() {
            true => vec![self.own.clone()],
            false => usable,
        }
    }

    /// Connections that are made from now on have this one.
    pub fn set(&self, name: &str) -> Result<()> {
        if read(IN_USE) == name {
            return Ok(());
        }
        fs::write(IN_USE, name).with_context(|| format!("cannot write {name:?} to {IN_USE}"))
    }
}

impl Drop for Congestion {
    fn drop(&mut self) {
        // The measurement has its result, or its error, already.
        let _ = self.set(&self.own);
    }
}
