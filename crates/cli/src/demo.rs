//! `demo`: Figure 2 of the paper on one machine, with a process for each of its seven nodes.
//!
//! Each node has a folder of its own and an agent that serves nothing else, so that every byte of a
//! copy used a lane. The specification is the paper's with other addresses and sizes.

use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use ropewalk_master::Request;
use ropewalk_master::request::{Mapping, Options, Reach};
use ropewalk_master::rows;
use ropewalk_model::Bytes;
use ropewalk_proto::codes::{EXIT_FAILED, EXIT_INTERRUPTED};
use ropewalk_proto::report::Outcome;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use crate::options::{OutputArgs, ProgressArg};
use crate::wildcards::Asked;
use crate::{report, run, sys, token, transfer};

mod content;
mod figure;

use figure::{FIGURE_2, Node, compare, specification, who_sends};

/// Longest time for an agent of this machine to say where it listens.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Time an agent has to leave once its input is closed.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Size of the data file by default: enough to see a rate, little enough for any machine.
const SIZE_DEFAULT: &str = "64MiB";

/// Arguments of `ropewalk demo`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct DemoArgs {
    /// Size of the data file, a multiple of 4 bytes
    #[arg(long, value_name = "SIZE", default_value = SIZE_DEFAULT, value_parser = size)]
    size: Bytes,

    /// Where the demonstration makes its folder [default: the system's folder for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Leave the files there
    #[arg(long)]
    keep: bool,

    /// Progress on standard error: on a terminal, always (plain lines where it is none), or never
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    progress: ProgressArg,
}

const EXAMPLES: &str = "\
The data file lies in quarters on four writers; node5 and node7 fetch a half each, node6 all of it. \
Seven agents run as processes of their own on the loopback interface, encrypted and checked. Each \
reader's range is compared with the sources byte for byte.

Examples:
  ropewalk demo
  ropewalk demo --size 4096
      the paper's own numbers
  ropewalk demo --size 4GiB --dir /data --keep

Exit status: 0 all equal, 1 failed or a difference, 2 usage, 3 partial (some ranges had no holder \
left), 4 refused before anything moved, 130 interrupted.";

fn size(text: &str) -> Result<Bytes, String> {
    let size: Bytes = text.parse().map_err(|error| format!("{error}"))?;
    if size.0 == 0 || !size.0.is_multiple_of(4) {
        return Err(
            "the four writers hold equal parts, so it must be a multiple of 4 bytes above 0"
                .to_owned(),
        );
    }
    Ok(size)
}

/// The folder of the demonstration; removed when dropped, unless kept.
struct Folder {
    path: PathBuf,
    keep: bool,
}

impl Folder {
    fn create(parent: &Path, keep: bool) -> Result<Self> {
        let path = parent.join(format!("ropewalk-demo-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| {
            format!(
                "cannot make {}; choose another place with --dir",
                path.display()
            )
        })?;
        // Absolute, as a specification's URIs are.
        let path = std::fs::canonicalize(&path)
            .with_context(|| format!("cannot find {}", path.display()))?;
        Ok(Self { path, keep })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.keep
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            eprintln!("ropewalk: cannot remove {}: {error}", self.path.display());
        }
    }
}

/// An agent process and where it listens.
struct Running {
    child: Child,
    address: String,
}

/// Runs the demonstration.
pub(crate) fn run(args: &DemoArgs) -> Result<ExitCode> {
    let runtime = crate::runtime::runtime()?;
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = Folder::create(&parent, args.keep)?;
    let result = runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
        let prepared = tokio::select! {
            prepared = prepare(&folder.path, args.size) => prepared?,
            _ = interrupt.recv() => return Ok(ExitCode::from(EXIT_INTERRUPTED)),
        };
        let result = demonstrate(&folder.path, args, &prepared).await;
        for running in prepared.agents {
            leave(running).await;
        }
        result
    });
    runtime.shutdown_background();
    if folder.keep {
        sys::say(format_args!("kept in {}", folder.path.display()));
    }
    result
}

/// What a demonstration needs before it starts.
struct Prepared {
    token: [u8; token::TOKEN_LEN],
    agents: Vec<Running>,
}

async fn prepare(folder: &Path, size: Bytes) -> Result<Prepared> {
    sys::say(format_args!(
        "{} of data in quarters on four writers, below {}",
        size,
        folder.display()
    ));
    let base = folder.to_owned();
    let files = move || -> Result<()> {
        for node in &FIGURE_2 {
            let root = base.join(node.name);
            std::fs::create_dir(&root)
                .with_context(|| format!("cannot make {}", root.display()))?;
            if node.writes {
                content::make_half(&root.join(node.file), node.quarters.0 / 2, size.0 / 2)?;
            }
        }
        Ok(())
    };
    tokio::task::spawn_blocking(files)
        .await
        .context("the thread that makes the files failed")??;
    let token_file = folder.join("token");
    let token = token::create(&token_file)?;
    let mut agents = Vec::new();
    for node in &FIGURE_2 {
        agents.push(start(node, folder, &token_file).await?);
    }
    Ok(Prepared { token, agents })
}

async fn start(node: &Node, folder: &Path, token_file: &Path) -> Result<Running> {
    let program = sys::own_program().context("cannot find this program's own path")?;
    let mut root = folder.join(node.name).into_os_string();
    if !node.writes {
        root.push(":rw");
    }
    let mut command = Command::new(program);
    command
        .args([
            "agent",
            "--while-stdin",
            "--listen",
            "127.0.0.1:0",
            "--token-file",
        ])
        .arg(token_file)
        .arg("--root")
        .arg(root);
    // A Ctrl-C reaches this process alone, which then ends its agents in order.
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start the agent of {}", node.name))?;
    let stdout = child
        .stdout
        .take()
        .context("the agent has no standard output")?;
    let mut lines = BufReader::new(stdout).lines();
    let line = tokio::time::timeout(START_TIMEOUT, lines.next_line()).await;
    let line = line.with_context(|| {
        format!(
            "the agent of {} is silent for {} s",
            node.name,
            START_TIMEOUT.as_secs()
        )
    })?;
    let line = line.ok().flatten();
    match line
        .as_deref()
        .and_then(|line| line.strip_prefix("listening on "))
    {
        Some(address) => Ok(Running {
            child,
            address: address.to_owned(),
        }),
        None => bail!(
            "the agent of {} ended at once; its message is above",
            node.name
        ),
    }
}

async fn leave(mut running: Running) {
    drop(running.child.stdin.take());
    if tokio::time::timeout(LEAVE_TIMEOUT, running.child.wait())
        .await
        .is_err()
    {
        let _ = running.child.kill().await;
    }
}

async fn demonstrate(folder: &Path, args: &DemoArgs, prepared: &Prepared) -> Result<ExitCode> {
    let addresses: Vec<String> = prepared
        .agents
        .iter()
        .map(|running| running.address.clone())
        .collect();
    let text = specification(folder, &addresses, args.size.0);
    let path = folder.join("figure2.spec");
    std::fs::write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    let spec = transfer::parse(&text, &path)?;
    sys::say(format_args!("\nspecification\n{}", indented(&text)));
    sys::say(format_args!(
        "which node sends what to which\n{}",
        indented(&who_sends(&spec, &addresses)?)
    ));
    let mut nodes = rows::nodes(&spec, |at| Reach::Attached {
        host: at.host.clone(),
        port: at.port,
    });
    for node in &mut nodes {
        if let Some(at) = addresses.iter().position(|address| *address == node.name) {
            node.name = FIGURE_2[at].name.to_owned();
        }
    }
    let options = Options {
        token: Some(prepared.token),
        ..Options::default()
    };
    let request = Request {
        label: spec.id,
        nodes,
        mapping: Mapping::Rows,
        links: Vec::new(),
        options,
    };
    let output = OutputArgs {
        json: false,
        quiet: false,
        verbose: true,
        progress: args.progress,
        page: None,
    };
    let asked = Asked::Transfer(Box::new(request));
    let last = |show: run::Transfer, report| {
        show.leave();
        report
    };
    let Some(report) = run::carry_out(asked, &output, last).await? else {
        return Ok(ExitCode::from(EXIT_INTERRUPTED));
    };
    sys::say(format_args!(
        "report\n{}",
        report::text(&report, true, &[]).trim_end()
    ));
    if report.outcome != Outcome::Done {
        return Ok(ExitCode::from(report.outcome.exit_status()));
    }
    sys::say(format_args!("\nreaders' ranges compared with the sources"));
    let (base, size) = (folder.to_owned(), args.size.0);
    let compared = tokio::task::spawn_blocking(move || compare(&base, size)).await;
    let equal = compared.context("the thread that compares failed")??;
    Ok(if equal {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_FAILED)
    })
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes that do not divide are refused.
    #[test]
    fn sizes_are_multiples_of_four() {
        assert_eq!(size(SIZE_DEFAULT), Ok(Bytes(64 << 20)));
        assert!(size("4095").is_err() && size("0").is_err());
    }
}
