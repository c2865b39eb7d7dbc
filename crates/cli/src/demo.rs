//! `demo`: Figure 2 of the paper on one machine, with a process for each of its seven nodes.
//!
//! Each node has a folder of its own and an agent that serves nothing else, so that every byte of a
//! copy came over a lane. The specification is the paper's with other addresses and sizes.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use ropewalk::model::{ByteRate, Bytes, PlannedTransfer, TransferSpec};
use ropewalk::request::{Mapping, Options, Reach};
use ropewalk::{Outcome, Request, sched};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use crate::options::{OutputArgs, ProgressArg};
use crate::{run, token, transfer};

mod content;

/// Longest time for an agent of this machine to say where it listens.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Time an agent has to leave once its input is closed.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Size of the data file when nobody says: enough to see a rate, little enough for any machine.
const SIZE_DEFAULT: &str = "64MiB";

/// Exit status when a copy differs.
const FAILED: u8 = 1;

/// Exit status after Ctrl-C.
const INTERRUPTED: u8 = 130;

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
The data file lies in quarters on four writers; node5 and node7 fetch a half each, node6 all of it.
Seven agents run as processes of their own on the loopback interface, encrypted and checked. Each
reader's range is compared with the sources byte for byte.

Examples:
  ropewalk demo
  ropewalk demo --size 4096
      the paper's own numbers
  ropewalk demo --size 4GiB --dir /data --keep

Exit status: 0 all equal, 1 failed or a difference, 130 interrupted.";

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

/// One row of Figure 2, in quarters of the data file.
struct Node {
    name: &'static str,
    writes: bool,
    file: &'static str,
    /// Quarters before the row's bytes in its file.
    file_quarter: u64,
    /// First and last but one quarter of the data.
    quarters: (u64, u64),
}

const fn row(
    name: &'static str,
    writes: bool,
    file: &'static str,
    file_quarter: u64,
    quarters: (u64, u64),
) -> Node {
    Node {
        name,
        writes,
        file,
        file_quarter,
        quarters,
    }
}

/// CEP Figure 2, in its order; node7's part of `copy1` starts in the middle of the file.
const FIGURE_2: [Node; 7] = [
    row("node1", true, "half1", 0, (0, 1)),
    row("node2", true, "half1", 1, (1, 2)),
    row("n3", true, "half2", 0, (2, 3)),
    row("n4", true, "half2", 1, (3, 4)),
    row("node5", false, "copy1", 0, (0, 2)),
    row("node7", false, "copy1", 2, (2, 4)),
    row("node6", false, "copy2", 0, (0, 4)),
];

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
    let runtime = run::runtime()?;
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = Folder::create(&parent, args.keep)?;
    let result = runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
        let prepared = tokio::select! {
            prepared = prepare(&folder.path, args.size) => prepared?,
            _ = interrupt.recv() => return Ok(ExitCode::from(INTERRUPTED)),
        };
        let result = demonstrate(&folder.path, args, &prepared).await;
        for running in prepared.agents {
            leave(running).await;
        }
        result
    });
    runtime.shutdown_background();
    if folder.keep {
        println!("kept in {}", folder.path.display());
    }
    result
}

/// What a demonstration needs before it starts.
struct Prepared {
    token: [u8; token::TOKEN_LEN],
    agents: Vec<Running>,
}

async fn prepare(folder: &Path, size: Bytes) -> Result<Prepared> {
    println!(
        "{} of data in quarters on four writers, below {}",
        size,
        folder.display()
    );
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
    let program = std::env::current_exe().context("cannot find this program's own path")?;
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
            "the agent of {} says nothing for {} s",
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

/// Figure 2 with the agents' addresses and the demonstration's sizes.
fn specification(folder: &Path, addresses: &[String], size: u64) -> String {
    let quarter = size / 4;
    let mut text = String::from(
        "id \"My Data File\"\nmaster localhost:55555  # nobody answers there: this command is the master\n",
    );
    for (node, address) in FIGURE_2.iter().zip(addresses) {
        let kind = if node.writes { "writer" } else { "reader" };
        let uri = format!(
            "\"{}\"",
            ropewalk_uri(&folder.join(node.name).join(node.file))
        );
        let (first, last) = (node.quarters.0 * quarter, node.quarters.1 * quarter - 1);
        let offset = node.file_quarter * quarter;
        text.push_str(&format!(
            "{kind}  {address:<16}  {uri}  {offset:<9}  {first}-{last}  # {}\n",
            node.name
        ));
    }
    text
}

fn ropewalk_uri(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    // Canonical paths are absolute and hold no zero byte; as they stand they would only lack quoting.
    ropewalk::model::spec::FilePath::new(path.as_os_str().as_bytes()).map_or_else(
        |_| path.display().to_string(),
        |path| ropewalk::model::Uri::File(path).to_string(),
    )
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
    println!("\nspecification\n{}", indented(&text));
    println!(
        "who sends what to whom\n{}",
        indented(&who_sends(&spec, &addresses)?)
    );
    let mut nodes = transfer::nodes(&spec, |at| Reach::Attached {
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
        options,
    };
    let output = OutputArgs {
        json: false,
        quiet: false,
        progress: args.progress,
    };
    let report = run::carry_out(request, &output).await?;
    println!("report");
    run::print_report(&report, false);
    if report.outcome != Outcome::Done {
        return Ok(ExitCode::from(report.outcome.exit_status()));
    }
    println!("\nreaders' ranges compared with the sources");
    let (base, size) = (folder.to_owned(), args.size.0);
    let compared = tokio::task::spawn_blocking(move || compare(&base, size)).await;
    let equal = compared.context("the thread that compares failed")??;
    Ok(if equal {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(FAILED)
    })
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

/// The plan with the figure's names. Every byte has one holder there, so this is also what happens.
fn who_sends(spec: &TransferSpec, addresses: &[String]) -> Result<String> {
    // Any equal speed gives the same plan.
    let problem = spec.to_problem(ByteRate(1));
    let plan = sched::plan_output(&problem, sched::by_name("auto")?.as_ref())?;
    let name = |address: &str| {
        addresses
            .iter()
            .position(|a| a == address)
            .map_or("?", |at| FIGURE_2[at].name)
    };
    let line = |run: &PlannedTransfer| {
        let bytes = Bytes(run.end - run.start);
        format!(
            "{:<5} -> {:<5}  {}-{}  {bytes}\n",
            name(&run.writer),
            name(&run.reader),
            run.start,
            run.end.saturating_sub(1)
        )
    };
    Ok(plan.transfers.iter().map(line).collect())
}

/// Compares each reader's own range with the writers' files, byte for byte.
fn compare(folder: &Path, size: u64) -> Result<bool> {
    let quarter = size / 4;
    let mut equal = true;
    let mut out = std::io::stdout().lock();
    for reader in FIGURE_2.iter().filter(|node| !node.writes) {
        let copy = folder.join(reader.name).join(reader.file);
        let mut difference = None;
        for writer in FIGURE_2.iter().filter(|node| node.writes) {
            let (first, end) = (
                writer.quarters.0.max(reader.quarters.0),
                writer.quarters.1.min(reader.quarters.1),
            );
            if first >= end {
                continue;
            }
            let source = folder.join(writer.name).join(writer.file);
            let source_at = (writer.file_quarter + first - writer.quarters.0) * quarter;
            let copy_at = (reader.file_quarter + first - reader.quarters.0) * quarter;
            let found = content::first_difference(
                (&source, source_at),
                (&copy, copy_at),
                (end - first) * quarter,
            )?;
            difference = difference.or(found.map(|at| first * quarter + at));
        }
        let (first, last) = (reader.quarters.0 * quarter, reader.quarters.1 * quarter - 1);
        let verdict = match difference {
            None => "equal".to_owned(),
            Some(at) => format!("DIFFERENT at byte {at}"),
        };
        equal &= difference.is_none();
        let _ = writeln!(
            out,
            "  {}  {}  {first}-{last}  {verdict}",
            reader.name, reader.file
        );
    }
    Ok(equal)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the paper's size, the rows have the paper's offsets and ranges.
    #[test]
    fn the_specification_is_figure_2() {
        let addresses: Vec<String> = (1..=7).map(|port| format!("127.0.0.1:{port}")).collect();
        let text = specification(Path::new("/demo dir"), &addresses, 4096);
        let spec = TransferSpec::parse(&text).unwrap();
        let rows: Vec<(u64, u64, u64)> = spec
            .rows
            .iter()
            .map(|r| (r.file_offset, r.range.start, r.range.end - 1))
            .collect();
        let paper = [
            (0, 0, 1023),
            (1024, 1024, 2047),
            (0, 2048, 3071),
            (1024, 3072, 4095),
            (0, 0, 2047),
            (2048, 2048, 4095),
            (0, 0, 4095),
        ];
        assert_eq!(rows, paper);
        assert!(text.contains("file:///demo%20dir/node7/copy1"), "{text}");
        assert!(
            who_sends(&spec, &addresses)
                .unwrap()
                .contains("n4    -> node7  3072-4095  1 KiB")
        );
    }

    /// A copy that differs in one byte of the reader's range is found, at the right place; bytes
    /// before node7's part do not count.
    #[test]
    fn differences_are_found() {
        let dir = tempfile::tempdir().unwrap();
        for node in &FIGURE_2 {
            std::fs::create_dir(dir.path().join(node.name)).unwrap();
        }
        let mut data = Vec::new();
        for (half, holders) in [["node1", "node2"], ["n3", "n4"]].into_iter().enumerate() {
            for holder in holders {
                let file = dir.path().join(holder).join(format!("half{}", half + 1));
                content::make_half(&file, half as u64, 2048).unwrap();
                if holder.ends_with(['1', '3']) {
                    data.extend(std::fs::read(file).unwrap());
                }
            }
        }
        std::fs::write(dir.path().join("node5/copy1"), &data[..2048]).unwrap();
        std::fs::write(dir.path().join("node6/copy2"), &data).unwrap();
        let mut with_hole = data.clone();
        with_hole[..2048].fill(0);
        std::fs::write(dir.path().join("node7/copy1"), &with_hole).unwrap();
        assert!(compare(dir.path(), 4096).unwrap());
        with_hole[3000] ^= 1;
        std::fs::write(dir.path().join("node7/copy1"), &with_hole).unwrap();
        assert!(!compare(dir.path(), 4096).unwrap());
        std::fs::write(dir.path().join("node7/copy1"), &data[..4000]).unwrap();
        assert!(!compare(dir.path(), 4096).unwrap(), "a short copy passed");
    }

    /// Sizes that do not divide are refused.
    #[test]
    fn sizes_are_multiples_of_four() {
        assert_eq!(size(SIZE_DEFAULT), Ok(Bytes(64 << 20)));
        assert!(size("4095").is_err() && size("0").is_err());
    }
}
