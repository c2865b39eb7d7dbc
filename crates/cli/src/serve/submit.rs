//! Handing a command over to a running `serve`.

use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

use super::door::{self, Answer, Question};
use super::task::Task;
use crate::Usage;
use crate::desk;
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

/// Hands a command of this process over.
///
/// * `from`: sources as people write them; `to`: destinations; both only where `asked` is not known in full.
/// * `input`: the specification, or the list of --files-from.
pub(crate) fn submit(
    asked: &Asked<'_>,
    priority: i32,
    from: Vec<String>,
    to: Vec<String>,
    label: Option<String>,
    input: Option<Vec<u8>>,
    json: bool,
) -> Result<ExitCode> {
    if let Asked::Transfer(request) = asked
        && request.options.dry_run
    {
        bail!(Usage(anyhow::anyhow!(
            "--dry-run answers at once; leave --detach out"
        )));
    }
    let (from, places, label) = match asked {
        Asked::Transfer(request) => (
            desk::places(request, |node| &node.sources),
            desk::places(request, |node| &node.sinks),
            request.label.clone(),
        ),
        Asked::Expand(_) => (from, to, label),
    };
    let is_kept = |name: &str| {
        KEPT.contains(&name)
            || KEPT_BEGINNINGS
                .iter()
                .any(|beginning| name.starts_with(beginning))
    };
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        is_kept(&name).then(|| (name, value.into_vec()))
    });
    let folder = std::env::current_dir().context("the current folder is gone")?;
    let arguments = std::env::args_os().skip(1);
    let task = Task {
        arguments: arguments.map(std::ffi::OsString::into_vec).collect(),
        folder: folder.as_os_str().as_bytes().to_vec(),
        environment: variables.collect(),
        input,
        label,
        from,
        places,
    };
    match door::ask(&Question::Submit { task, priority })? {
        Answer::Submitted { job } if json => say(format_args!("{{\"job\":{job}}}")),
        Answer::Submitted { job } => say(format_args!("job {job}")),
        _ => bail!("`ropewalk serve` gave another answer; is it another version?"),
    }
    Ok(ExitCode::SUCCESS)
}
