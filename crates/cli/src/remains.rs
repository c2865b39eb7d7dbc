//! `status PATH` and `clean`: what transfers that ended have left at a destination on this host.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use clap::Args;
use ropewalk_model::{format_bytes, format_seconds};
use ropewalk_proto::codes::EXIT_FAILED;
use ropewalk_store::{Remain, RemainState, remains};
use serde::Serialize;

use crate::escape;
use crate::sys::say;

/// Arguments of `ropewalk clean`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = CLEAN_EXAMPLES)]
pub(crate) struct CleanArgs {
    /// Destination, or the folder that destinations are in
    #[arg(value_name = "PATH")]
    path: PathBuf,

    /// Also what has no journal, or is another host's or user's: only while no transfer to PATH runs
    #[arg(long)]
    all: bool,
}

const CLEAN_EXAMPLES: &str = "\
Examples:
  ropewalk status /data/set
      what is left of earlier transfers to /data/set, and how much of it is safe
  ropewalk clean /data/set
      remove it; the next copy to /data/set sends all files that are not complete
  ssh node1 ropewalk clean /data/set

Files with their final names are never removed.

Exit status: 0 nothing that could be removed is left, 1 failed, 2 usage.";

/// What was left, as `status --json` prints it.
#[derive(Serialize)]
struct Line {
    path: String,
    state: &'static str,
    safe_bytes: u64,
    total_bytes: u64,
    files: u64,
    modified_seconds: u64,
}

/// For `--json`.
fn state_name(state: RemainState) -> &'static str {
    match state {
        RemainState::Resumable => "resumable",
        RemainState::InUse => "in use",
        RemainState::OtherHost => "other host",
        RemainState::NoLocks => "no locks",
        RemainState::OtherUser => "other user",
        RemainState::OtherVersion => "other version",
        RemainState::Unrecorded => "unrecorded",
    }
}

/// Why it is not removed without `--all`.
fn reason(state: RemainState) -> &'static str {
    match state {
        RemainState::Resumable => "resumable",
        RemainState::InUse => "a transfer is writing it",
        RemainState::OtherHost => "a process of another host made it",
        RemainState::NoLocks => "its file system has no locks, so a transfer may be writing it",
        RemainState::OtherUser => "another user made it",
        RemainState::OtherVersion => {
            "another version of ropewalk wrote its journal, and can continue it"
        }
        RemainState::Unrecorded => "it has no journal, so a transfer may be writing it",
    }
}

fn seconds_of(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// What is left at a destination, as text or JSON.
pub(crate) fn status_text(path: &Path, is_json: bool) -> Result<String> {
    let found = remains(path)?;
    if is_json {
        let line = |remain: &Remain| Line {
            path: remain.path.to_string_lossy().into_owned(),
            state: state_name(remain.state),
            safe_bytes: remain.safe,
            total_bytes: remain.total,
            files: remain.files,
            modified_seconds: seconds_of(remain.modified),
        };
        let lines: Vec<Line> = found.iter().map(line).collect();
        let text = serde_json::to_string(&lines).context("cannot print the status as JSON")?;
        return Ok(text + "\n");
    }
    let mut text = String::new();
    for remain in &found {
        text += &line_of(remain, SystemTime::now());
    }
    let shown = escape::line(&path.to_string_lossy());
    if found.is_empty() {
        let _ = writeln!(text, "nothing is left of earlier transfers to {shown}");
    }
    if found
        .iter()
        .any(|r| r.state == RemainState::Resumable && r.safe > 0)
    {
        text += "The next copy of these files to the same destination sends the rest; `ropewalk clean` removes what is left.\n";
    }
    Ok(text)
}

fn line_of(remain: &Remain, now: SystemTime) -> String {
    let path = remain.path.to_string_lossy();
    let age = now.duration_since(remain.modified).unwrap_or_default();
    let age = format_seconds(age.as_secs() as f64);
    let state = match remain.state {
        RemainState::Resumable if remain.safe == 0 => {
            "nothing of it is safe: `ropewalk clean` removes it".to_owned()
        }
        RemainState::Resumable => {
            let files = match remain.files {
                1 => "1 file".to_owned(),
                files => format!("{files} files"),
            };
            let (safe, total) = (format_bytes(remain.safe), format_bytes(remain.total));
            format!("{safe} of {total} safe, {files}")
        }
        other => reason(other).to_owned(),
    };
    format!("{}  {state}, last written {age} ago\n", escape::line(&path))
}

/// Removes what is left at a destination.
pub(crate) fn clean(args: &CleanArgs) -> Result<ExitCode> {
    let mut has_failed = false;
    let found = remains(&args.path)?;
    if found.is_empty() {
        let shown = args.path.to_string_lossy();
        let shown = escape::line(&shown);
        say(format_args!(
            "nothing is left of earlier transfers to {shown}"
        ));
    }
    for remain in found {
        let path = remain.path.to_string_lossy().into_owned();
        let path = escape::line(&path);
        let state = remain.state;
        let is_removed = match state {
            RemainState::Resumable => true,
            RemainState::InUse => false,
            RemainState::OtherHost
            | RemainState::NoLocks
            | RemainState::OtherUser
            | RemainState::OtherVersion
            | RemainState::Unrecorded => args.all,
        };
        if !is_removed {
            let hint = match state {
                RemainState::InUse => "",
                _ => "; --all removes it",
            };
            say(format_args!("left {path}: {}{hint}", reason(state)));
            continue;
        }
        match remain.remove() {
            Ok(()) => say(format_args!("removed {path}")),
            Err(error) => {
                has_failed = true;
                eprintln!("ropewalk: {}", escape::line(&error.to_string()));
            }
        }
    }
    Ok(if has_failed {
        ExitCode::from(EXIT_FAILED)
    } else {
        ExitCode::SUCCESS
    })
}
