//! `join`, `leave` and `limit`: nodes join a running transfer of this user, or leave it; its limit changes.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use ropewalk_model::ByteRate;
use ropewalk_proto::codes::{EXIT_REFUSED, EXIT_USAGE};
use serde::Serialize;

use crate::desk::{self, Question, Verdict};
use crate::escape;
use crate::options::rate;
use crate::progress::rate as shown_rate;
use crate::runtime_folder;
use crate::status::{find_running, short};
use crate::sys::say;
use crate::token;
use crate::transfer::{self, StartArg};

/// Longest file of rows: some ten thousand, and far below what a desk reads.
const FILE_LEN_MAX: usize = 1 << 20;

/// Arguments of `ropewalk join`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = JOIN_EXAMPLES)]
pub(crate) struct JoinArgs {
    /// Id of the transfer, a unique prefix or suffix of it, its label, or the process ID of its command
    #[arg(value_name = "TRANSFER")]
    transfer: String,

    /// Rows writer and reader as in a specification file, without id and master; - reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Start the agents instead of attaching to running ones
    #[arg(long, value_name = "HOW")]
    start: Option<StartArg>,

    /// Token of agents that already run [default: the one the transfer was started with]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// One JSON object
    #[arg(long)]
    json: bool,
}

const JOIN_EXAMPLES: &str = "\
A writer that joins must hold bytes that the transfer moves: same size and time as the other \
holders' file. A reader joins a shared destination (dest=NAME as in the transfer's own rows) and \
takes work from the others, or wants a copy of its own. up=RATE and down=RATE declare speeds. \
A transfer that `ropewalk copy` started has no rows, and no node can join it. \
Agents are reached by the running command: it logs in for --start ssh, with its own --ssh and \
--remote-path. Nodes join while bytes move only. All of FILE's nodes are reached, or none joins.

Examples:
  ropewalk join 5f3a21c9 more.spec
      agents already listen at every Host:Port of more.spec
  ropewalk join 'My Data File' more.spec --start ssh
      nothing runs there yet
  echo 'writer node9:7420 /data/half1 0 0-1023 up=1Gbit' | ropewalk join 5f3a21c9 -

The command ends when each node takes part or was rejected; the others continue either way.

Exit status: 0 joined, 1 failed (no such transfer, or it ended), 2 usage, 4 refused (a node cannot \
be reached, or does not match).";

/// Arguments of `ropewalk leave`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = LEAVE_EXAMPLES)]
pub(crate) struct LeaveArgs {
    /// Id of the transfer, a unique prefix or suffix of it, its label, or the process ID of its command
    #[arg(value_name = "TRANSFER")]
    transfer: String,

    /// Name of the node, as progress and reports show it, or its Host:Port
    #[arg(value_name = "NODE")]
    node: String,

    /// One JSON object
    #[arg(long)]
    json: bool,
}

const LEAVE_EXAMPLES: &str = "\
Other nodes take over its ranges; its bytes of a shared destination stay. \
A node that the transfer still needs is not released: the only holder of bytes that are still \
wanted, or the only reader that makes its copy.

Examples:
  ropewalk leave 5f3a21c9 node2
  ropewalk leave 'My Data File' node2:7420

Exit status: 0 the node leaves, 1 failed (no such transfer, or it ended), 2 usage, 4 refused.";

/// Arguments of `ropewalk limit`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = LIMIT_EXAMPLES)]
pub(crate) struct LimitArgs {
    /// Id of the transfer, a unique prefix or suffix of it, its label, or the process ID of its command
    #[arg(value_name = "TRANSFER")]
    transfer: String,

    /// For all hosts together: 500Mbit or 60MB/s; none removes the limit
    #[arg(value_name = "RATE", value_parser = limit_rate)]
    rate: Limit,
}

const LIMIT_EXAMPLES: &str = "\
Examples:
  ropewalk limit 5f3a21c9 200Mbit
  ropewalk limit nightly none

It holds from the next second on, as --limit does from the start.

Exit status: 0 changed, 1 failed (no such transfer, or it ended), 2 usage.";

/// A limit, or that there is none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit(pub Option<ByteRate>);

pub(crate) fn limit_rate(text: &str) -> Result<Limit, String> {
    match text {
        "none" => Ok(Limit(None)),
        text => rate(text).map(|rate| Limit(Some(rate))),
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Said<'a> {
    transfer: &'a str,
    #[serde(flatten)]
    verdict: &'a Verdict,
}

/// Takes nodes into a running transfer.
pub(crate) fn join(args: &JoinArgs) -> Result<ExitCode> {
    let read = transfer::read_text(&args.file).and_then(|rows| {
        let token = args.token_file.as_deref();
        let token = token.map(|file| token::load(Some(file))).transpose()?;
        Ok((rows, token))
    });
    let (rows, token) = match read {
        Ok(read) => read,
        Err(error) if error.is::<transfer::BadSpec>() => return Err(error),
        Err(error) => return Ok(usage(&format!("{error:#}"))),
    };
    if rows.len() > FILE_LEN_MAX {
        let shown = args.file.display();
        return Ok(usage(&format!(
            "{shown} is longer than {FILE_LEN_MAX} bytes; join in several steps"
        )));
    }
    // The transfer reads the rows again; here they get pictures of their errors.
    transfer::added_nodes(&rows, args.start)
        .map_err(|errors| transfer::pictures(&errors, &rows, &args.file))?;
    let question = Question::Join {
        rows,
        start: args.start,
        token: token.map(|token| token::hex(&token)),
    };
    ask(&args.transfer, &question, args.json, "joined", "join")
}

/// Lets a node of a running transfer go.
pub(crate) fn leave(args: &LeaveArgs) -> Result<ExitCode> {
    let node = args.node.clone();
    ask(
        &args.transfer,
        &Question::Leave { node },
        args.json,
        "leaves",
        "leave",
    )
}

/// Changes the limit of a running transfer.
pub(crate) fn limit(args: &LimitArgs) -> Result<ExitCode> {
    let running = desk::ask_all(&runtime_folder::folder()?, &Question::Status)?;
    let (path, answer) = &running[find_running(&running, &args.transfer)?];
    let Limit(rate) = args.rate;
    let rate = rate.map(|rate| rate.0);
    let verdict = desk::ask_members(path, &Question::Limit { rate })?;
    if let Some(error) = verdict.error {
        bail!("{}", escape::line(&error));
    }
    let name = match &answer.transfer {
        Some(id) => short(id).to_owned(),
        None => format!("process {}", answer.process),
    };
    say(format_args!(
        "{name}: {}",
        match rate {
            Some(rate) => format!("at most {}", shown_rate(rate as f64 * 8.0)),
            None => "no limit".to_owned(),
        }
    ));
    Ok(ExitCode::SUCCESS)
}

fn usage(text: &str) -> ExitCode {
    eprintln!("ropewalk: {}", escape::lines(text));
    ExitCode::from(EXIT_USAGE)
}

/// * `done`: what a node did, when all is well; `asked`: what it could not do otherwise.
fn ask(wanted: &str, question: &Question, json: bool, done: &str, asked: &str) -> Result<ExitCode> {
    let running = desk::ask_all(&runtime_folder::folder()?, &Question::Status)?;
    let (path, answer) = &running[find_running(&running, wanted)?];
    let verdict = desk::ask_members(path, question)?;
    if json {
        let transfer = answer.transfer.as_deref().unwrap_or_default();
        let verdict = &verdict;
        let line = serde_json::to_string(&Said { transfer, verdict })?;
        writeln!(std::io::stdout(), "{line}").context("cannot write to standard output")?;
    }
    let mut is_refused = false;
    if let Some(error) = &verdict.error {
        is_refused = true;
        eprintln!("ropewalk: refused: {}", escape::line(error));
    }
    for node in &verdict.nodes {
        let name = escape::line(&node.node);
        match &node.error {
            Some(error) => {
                is_refused = true;
                let error = escape::line(error);
                eprintln!("ropewalk: refused: {name} cannot {asked}: {error}");
            }
            None if json => {}
            None => writeln!(std::io::stdout(), "{name} {done}")
                .context("cannot write to standard output")?,
        }
    }
    Ok(match is_refused {
        true => ExitCode::from(EXIT_REFUSED),
        false => ExitCode::SUCCESS,
    })
}
