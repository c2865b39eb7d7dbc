//! Handing a command over to a running `serve`.

use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

use super::door::{self, Answer, Question};
use super::places;
use super::task::Task;
use crate::Usage;
use crate::desk;
use crate::inputs::{Handed, Text};
use crate::sys::say;
use crate::wildcards::Asked;

/// Variables that a job keeps.
const KEPT: [&str; 9] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "TMPDIR",
    "SSH_AUTH_SOCK",
    "KRB5CCNAME",
];

/// The same, by how they begin.
const KEPT_BEGINNINGS: [&str; 3] = ["XDG_", "LC_", "ROPEWALK_"];

/// Sources and destinations that are shown of a job whose sources have to be asked for.
const SHOWN_MAX: usize = 16;

/// The variables of this process that its jobs have.
pub(super) fn kept_variables() -> Vec<(String, Text)> {
    let is_kept = |name: &str| {
        KEPT.contains(&name)
            || KEPT_BEGINNINGS
                .iter()
                .any(|beginning| name.starts_with(beginning))
    };
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        is_kept(&name).then(|| (name, Text(value.into_vec())))
    });
    variables.collect()
}

/// Hands a command of this process over.
pub(crate) fn submit(asked: &Asked<'_>, handed: Handed) -> Result<ExitCode> {
    if let Asked::Transfer(request) = asked {
        let options = &request.options;
        let why = match (options.dry_run, options.lists) {
            (true, _) => Some("--dry-run answers at once"),
            (false, true) => Some("--list prints, and a job has no terminal"),
            (false, false) => None,
        };
        if let Some(why) = why {
            bail!(Usage(anyhow::anyhow!("{why}; leave --detach out")));
        }
    }
    let folder = std::env::current_dir().context("the current folder is gone")?;
    let (from, to, places, label) = match asked {
        Asked::Transfer(request) => (
            desk::places(&request.nodes, |node| &node.sources),
            desk::places(&request.nodes, |node| &node.sinks),
            places::of_request(request, &folder),
            request.label.clone(),
        ),
        Asked::Expand(_) => {
            let to = handed.to.iter().take(SHOWN_MAX);
            (
                handed.from.into_iter().take(SHOWN_MAX).collect(),
                to.map(ToString::to_string).collect(),
                places::of_endpoints(&handed.to, &folder),
                handed.label,
            )
        }
    };
    let arguments = std::env::args_os().skip(1);
    let task = Box::new(Task {
        arguments: arguments.map(|word| Text(word.into_vec())).collect(),
        folder: Text(folder.as_os_str().as_bytes().to_vec()),
        environment: kept_variables(),
        inputs: handed.inputs,
        label,
        from,
        to,
        key: None,
    });
    let question = Question::Submit {
        task,
        places,
        priority: handed.priority,
    };
    match door::ask(&question)? {
        Answer::Submitted { job } if handed.json => say(format_args!("{{\"job\":{job}}}")),
        Answer::Submitted { job } => say(format_args!("job {job}")),
        _ => bail!("`ropewalk serve` gave another answer; is it another version?"),
    }
    Ok(ExitCode::SUCCESS)
}
