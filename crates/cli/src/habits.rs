//! Options that users of cp, scp and rsync type out of habit: what to do instead, or that it is so already.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Commands that move data.
const MOVING: [&str; 4] = ["copy", "put", "get", "transfer"];

const SENTENCES: [(&[&str], &str); 22] = [
    (
        &["-a", "--archive"],
        "contents, modes and times are always copied; `ropewalk copy -a` also copies owners, extended attributes and ACLs",
    ),
    (
        &[
            "-A", "--acls", "-X", "--xattrs", "-o", "--owner", "-g", "--group",
        ],
        "write -a, which copies owner, group, extended attributes and ACLs",
    ),
    (
        &["-S", "--sparse"],
        "zeros of 64 KiB and more become holes without it; leave it out",
    ),
    (
        &["-H", "--hard-links"],
        "`ropewalk copy -H` keeps hard links; this command moves single files",
    ),
    (
        &["-p", "--preserve"],
        "modes and times are always kept; a port goes into the address, host:7420:/path, or into --ssh 'ssh -p 2222'",
    ),
    (
        &["-f", "--force"],
        "files that exist at the destination are replaced without it; leave it out",
    ),
    (
        &["-n", "--dry-run"],
        "only `ropewalk copy` has a dry run; `ropewalk plan` shows which node would send what for a specification file",
    ),
    (
        &["-z", "--compress"],
        "nothing is compressed in this version; leave it out",
    ),
    (
        &["-P", "--partial"],
        "progress is shown on a terminal without it (--progress always shows it elsewhere); the same command, run again, sends what is missing",
    ),
    (
        &["--delete"],
        "only `ropewalk copy` removes what the sources lack",
    ),
    (
        &["--files-from", "--from0"],
        "only `ropewalk copy` takes a list of files",
    ),
    (
        &[
            "--delete-before",
            "--delete-during",
            "--del",
            "--delete-delay",
            "--delete-excluded",
        ],
        "write --delete, which removes when all has arrived and keeps what is excluded",
    ),
    (
        &["--filter", "--include-from"],
        "write --include PATTERN and --exclude PATTERN, of which the first that matches decides, or --exclude-from FILE, where `+ PATTERN` \
         includes",
    ),
    (
        &["--list", "--itemize-changes", "--out-format"],
        "`ropewalk copy --list` prints what is sent, made and removed",
    ),
    (
        &["-u", "--update", "--ignore-existing"],
        "only `ropewalk copy` leaves files alone that the destination has",
    ),
    (
        &["-c", "--checksum"],
        "write --check hash, which compares files of one size by contents",
    ),
    (
        &["--inplace", "--no-whole-file", "-W", "--whole-file"],
        "whole files are sent; `ropewalk copy --delta` sends the chunks that the destination's file has not",
    ),
    (
        &["-I", "--ignore-times"],
        "write --check none: every file is sent, whatever the destination has",
    ),
    (
        &["--port"],
        "a port goes into the address, host:7420:/path (where an agent listens), or into --ssh 'ssh -p 2222'",
    ),
    (&["-e", "--rsh"], "write --ssh 'ssh -p 2222 -i KEY'"),
    (&["-i"], "write --ssh 'ssh -i KEY'"),
    (
        &["--bwlimit", "-l"],
        "write --limit, for instance --limit 60MB/s",
    ),
];

/// Whether a command moves data.
pub(crate) fn moves(command: &str) -> bool {
    MOVING.contains(&command)
}

/// What to say of an option that a command does not have, if it is one of these.
pub(crate) fn sentence(command: &str, error: &clap::Error) -> Option<String> {
    if !moves(command) {
        return None;
    }
    let option = unknown(error)?;
    let found = SENTENCES
        .iter()
        .find(|(options, _)| options.contains(&option))?;
    Some(format!("{option}: {}", found.1))
}

/// Whether the version was asked for behind a command.
pub(crate) fn asks_for_version(error: &clap::Error) -> bool {
    matches!(unknown(error), Some("--version" | "-V"))
}

/// The option that a command does not have.
fn unknown(error: &clap::Error) -> Option<&str> {
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(option)) if error.kind() == ErrorKind::UnknownArgument => {
            Some(option)
        }
        _ => None,
    }
}
