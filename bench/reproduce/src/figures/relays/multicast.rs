//! Multicast: uftp from one sender of 400 Mbit/s, which is all that it can use.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use ropewalk_lab::Lab;

use super::{NAME, RECEIVERS, Rig, SOURCE, names};
use crate::process::Process;
use crate::ropewalk::Place;
use crate::scenario::deadline;

/// The sender, and its rate in kbit/s: uftp loses packets at the cap itself.
const SENDER: &str = "a3";
const RATE: &str = "370000";

/// Seconds from the sender's start to its end, when all receivers have confirmed.
pub(super) fn run(lab: &Lab, rig: &Rig<'_>) -> Result<f64> {
    let mut receivers = Vec::new();
    for host in names('b', RECEIVERS.len()) {
        let mut command = Place::Host(lab, &host).command(Path::new("uftpd"));
        command.args(["-d", "-D", "/data", "-I", "eth0", "-B", "4000000"]);
        receivers.push(Process::start(command)?);
    }
    // They say nothing when they listen; a sender that is early repeats its announcement.
    let mut command = Place::Host(lab, SENDER).command(Path::new("uftp"));
    command.args(["-q", "-R", RATE, "-I", "eth0", "-B", "4000000"]);
    command.arg(format!("{SOURCE}/{NAME}"));
    let seconds = 2.0 * rig.bytes as f64 * 8.0 / 370e6;
    let ended = Process::start(command)?.finish(deadline(seconds).max(Duration::from_secs(60)))?;
    let ended = ended.success("uftp")?;
    for receiver in receivers {
        receiver.kill()?;
    }
    Ok(ended.seconds)
}
