//! `status` and `cancel`: questions to running transfers of this user, or to an agent; `status PATH` is in `remains`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use ropewalk_model::{HostPort, format_bytes, format_seconds};
use ropewalk_proto::codes::EXIT_FAILED;
use ropewalk_proto::control::{TransferKind, TransferStatus};
use ropewalk_proto::report::Event;
use serde::Serialize;

use crate::desk::{self, Answer, Carried, Kind, Question};
use crate::escape;
use crate::numbers::{count, thousands};
use crate::progress::{busy_words, rate, waiting_words};
use crate::remains;
use crate::report::listed;
use crate::runtime::runtime;
use crate::runtime_folder;
use crate::silence::Silence;
use crate::sys::{self, say};
use crate::token;
use crate::visible;

/// Digits of an id that are shown: 32 random bits.
const SHORT_LEN: usize = 8;

/// Arguments of `ropewalk status`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = STATUS_EXAMPLES)]
pub(crate) struct StatusArgs {
    /// Show what ended transfers have left at this destination, or in this folder
    #[arg(value_name = "PATH", conflicts_with = "agent")]
    path: Option<PathBuf>,

    /// Ask a running agent instead of this user's own transfers
    #[arg(long, value_name = "HOST:PORT")]
    agent: Option<HostPort>,

    /// The agent's token [default: ~/.config/ropewalk/token]
    #[arg(long, value_name = "FILE", requires = "agent")]
    token_file: Option<PathBuf>,

    /// One JSON array
    #[arg(long)]
    json: bool,
}

const STATUS_EXAMPLES: &str = "\
Examples:
  ropewalk status
      transfers, streams, shuffles and tunnels that this user's commands carry out on this host
  ropewalk status --agent node1:7420 --token-file ~/.config/ropewalk/token
      transfers, streams and tunnels that this agent takes part in, of all users
  ropewalk status /data/set
      what is left of transfers to /data/set that ended, and how much of it is safe";

/// Arguments of `ropewalk cancel`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = CANCEL_EXAMPLES)]
pub(crate) struct CancelArgs {
    /// Id of the transfer, a unique prefix or suffix of it, its label, or the process ID of its command
    #[arg(value_name = "TRANSFER", required_unless_present = "all")]
    transfer: Option<String>,

    /// All of this user on this host, those of other sessions too
    #[arg(long, conflicts_with = "transfer")]
    all: bool,

    /// Ask a running agent to leave the transfer
    #[arg(long, value_name = "HOST:PORT")]
    agent: Option<HostPort>,

    /// The agent's token [default: ~/.config/ropewalk/token]
    #[arg(long, value_name = "FILE", requires = "agent")]
    token_file: Option<PathBuf>,
}

const CANCEL_EXAMPLES: &str = "\
Examples:
  ropewalk cancel 5f3a21c9
  ropewalk cancel --all
  ropewalk cancel --all --agent node1:7420

A stream, shuffle or tunnel is cancelled as a transfer is. The command ends within a second, with exit status 130.

Exit status: 0 cancelled, 1 nothing to cancel or failed (with --all: also if one of several does not answer), 2 usage.";

/// A transfer, stream or tunnel that an agent takes part in, as `--json` prints it.
#[derive(Serialize)]
struct AgentLine {
    kind: Kind,
    transfer: String,
    phase: String,
    wanted_bytes: u64,
    received_bytes: u64,
    delivered_bytes: u64,
    sent_bytes: u64,
    seconds: f64,
    cancelled: bool,
    /// Of a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<u64>,
    /// Of a tunnel, and the next two.
    #[serde(skip_serializing_if = "Option::is_none")]
    connections: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    open_connections: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    targets: Option<String>,
}

fn line_of(status: &TransferStatus) -> AgentLine {
    let kind = match status.kind() {
        TransferKind::Transfer => Kind::Transfer,
        TransferKind::Stream => Kind::Stream,
        TransferKind::Tunnel => Kind::Tunnel,
    };
    let is_tunnel = kind == Kind::Tunnel;
    AgentLine {
        kind,
        blocks: (kind == Kind::Stream).then_some(status.blocks),
        connections: is_tunnel.then_some(status.connections),
        open_connections: is_tunnel.then_some(status.open_connections),
        targets: is_tunnel.then(|| status.targets.clone()),
        transfer: format_id(&status.transfer),
        phase: status.phase.clone(),
        wanted_bytes: status.wanted,
        received_bytes: status.checked,
        delivered_bytes: status.delivered,
        sent_bytes: status.sent,
        seconds: status.age as f64 / 1e9,
        cancelled: status.cancelled,
    }
}

/// An id in the usual form of 8-4-4-4-12 digits.
pub(crate) fn format_id(id: &[u8]) -> String {
    let mut text = String::new();
    for (at, byte) in id.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Prints what is running.
pub(crate) fn status(args: &StatusArgs) -> Result<ExitCode> {
    let text = match (&args.path, &args.agent) {
        (Some(path), _) => remains::status_text(path, args.json)?,
        (None, Some(at)) => {
            let lines: Vec<AgentLine> = ask_agent(at, args.token_file.as_deref())?
                .iter()
                .map(line_of)
                .collect();
            if args.json {
                to_json(&lines)?
            } else {
                agent_text(&lines)
            }
        }
        (None, None) => {
            let folder = runtime_folder::folder()?;
            visible::remove_dead(&folder);
            let answers: Vec<Answer> = desk::ask_all(&folder, &Question::Status)?
                .into_iter()
                .map(|a| a.1)
                .collect();
            if args.json {
                to_json(&answers)?
            } else {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                desk_text(&answers, now.map_or(0, |now| now.as_secs()))
            }
        }
    };
    // Not before: a connection that the agent closes is no pipe.
    sys::end_on_closed_pipe();
    std::io::stdout()
        .lock()
        .write_all(text.as_bytes())
        .context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn to_json<T: Serialize>(value: &T) -> Result<String> {
    Ok(serde_json::to_string(value).context("cannot print the status as JSON")? + "\n")
}

fn ask_agent(at: &HostPort, token_file: Option<&std::path::Path>) -> Result<Vec<TransferStatus>> {
    let token = token::load(token_file)?;
    Ok(runtime()?.block_on(ropewalk_master::query_status(&at.host, at.port, &token))?)
}

pub(crate) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64 * 100.0
    }
}

fn agent_text(lines: &[AgentLine]) -> String {
    if lines.is_empty() {
        return "no transfers\n".to_owned();
    }
    let line = |line: &AgentLine| {
        let time = format_seconds(line.seconds);
        let (sent, received) = (
            format_bytes(line.sent_bytes),
            format_bytes(line.received_bytes),
        );
        if let Some(blocks) = line.blocks {
            let blocks = count(blocks, "block");
            let id = short(&line.transfer);
            return format!(
                "{id}  stream, received {received} in {blocks}, sent {sent}, for {time}\n"
            );
        }
        if let (Some(open), Some(all)) = (line.open_connections, line.connections) {
            let (open, id) = (connections(open, all), short(&line.transfer));
            let targets = escape::line(line.targets.as_deref().unwrap_or_default());
            return format!(
                "{id}  tunnel to {targets}, {open}, received {received}, sent {sent}, for {time}\n"
            );
        }
        let received = if line.wanted_bytes > 0 {
            format!(
                "received {} of {} ({:.0} %), {} safe, ",
                format_bytes(line.received_bytes),
                format_bytes(line.wanted_bytes),
                percent(line.received_bytes, line.wanted_bytes),
                format_bytes(line.delivered_bytes)
            )
        } else {
            String::new()
        };
        let phase = if line.cancelled {
            "cancelled"
        } else {
            &line.phase
        };
        format!(
            "{}  {phase}, {received}sent {}, for {}\n",
            short(&line.transfer),
            format_bytes(line.sent_bytes),
            format_seconds(line.seconds)
        )
    };
    lines.iter().map(line).collect()
}

/// `2 connections open, 5 in all`.
fn connections(open: u64, all: u64) -> String {
    format!(
        "{} open, {} in all",
        count(open, "connection"),
        thousands(all)
    )
}

/// What a stream or a tunnel has carried.
fn carried_words(kind: Kind, carried: &Carried) -> String {
    let (sent, received) = (
        format_bytes(carried.sent_bytes),
        format_bytes(carried.received_bytes),
    );
    let kind = kind.name();
    match (carried.open_connections, carried.connections) {
        (Some(open), Some(all)) => {
            let connections = connections(open, all);
            format!("{kind}, {connections}, {sent} out, {received} in")
        }
        _ => {
            let blocks = count(carried.blocks.unwrap_or(0), "block");
            format!("{kind}, {sent} into it, {received} in {blocks} out of it")
        }
    }
}

/// What a process does that does not answer, and what can be done about it.
fn silent_words(answer: &Answer) -> String {
    let silence = answer.silence.unwrap_or(Silence::Late);
    let process = match answer.transfer {
        Some(_) => format!("process {}, ", answer.process),
        None => String::new(),
    };
    let remedy = silence.remedy(answer.process);
    format!("{process}{} ({remedy})", silence.state())
}

/// The last digits of an id: the first ones are its time, which transfers of some hours share.
pub(crate) fn short(id: &str) -> &str {
    let plain = id.len().saturating_sub(SHORT_LEN);
    id.get(plain..).unwrap_or(id)
}

/// * `now`: seconds since 1970.
fn desk_text(answers: &[Answer], now: u64) -> String {
    if answers.is_empty() {
        return "no transfers\n".to_owned();
    }
    let line = |answer: &Answer| {
        let id = match &answer.transfer {
            Some(id) => short(id).to_owned(),
            None => format!("process {}", answer.process),
        };
        let state = match &answer.progress {
            _ if answer.silence.is_some() => silent_words(answer),
            _ if answer.carried.is_some() => {
                let carried = answer.carried.unwrap_or_default();
                carried_words(answer.kind, &carried)
            }
            Some(Event::Progress {
                delivered_bytes,
                received_bytes,
                total_bytes,
                bits_per_second,
                eta_seconds,
                ..
            }) => {
                let eta = eta_seconds
                    .map_or_else(String::new, |eta| format!(", {} left", format_seconds(eta)));
                format!(
                    "{} of {} ({:.0} %), {} safe, {}{eta}",
                    format_bytes(*received_bytes),
                    format_bytes(*total_bytes),
                    percent(*received_bytes, *total_bytes),
                    format_bytes(*delivered_bytes),
                    rate(*bits_per_second)
                )
            }
            Some(event @ Event::Waiting { .. }) => waiting_words(event),
            Some(
                event @ (Event::Scanning { .. }
                | Event::AwaitingEnd { .. }
                | Event::Removing { .. }),
            ) => busy_words(event),
            _ if answer.transfer.is_some() => "starts to move".to_owned(),
            _ => match answer.kind {
                Kind::Transfer => "reaching the nodes".to_owned(),
                kind => format!("{}, reaching the nodes", kind.name()),
            },
        };
        let state = if answer.cancelled {
            format!("stopping, {state}")
        } else {
            state
        };
        let label = answer
            .label
            .as_ref()
            .map_or_else(String::new, |label| format!("  ({})", escape::line(label)));
        let ends = match (answer.from.is_empty(), answer.to.is_empty()) {
            (false, false) => format!("  {} -> {}", listed(&answer.from), listed(&answer.to)),
            _ => String::new(),
        };
        let since = match now.saturating_sub(answer.started_seconds) {
            _ if answer.started_seconds == 0 => String::new(),
            seconds => format!(", for {}", format_seconds(seconds as f64)),
        };
        format!("{id}  {state}{since}{ends}{label}\n")
    };
    answers.iter().map(line).collect()
}

/// Cancels what is named.
pub(crate) fn cancel(args: &CancelArgs) -> Result<ExitCode> {
    let (count, left) = match &args.agent {
        Some(at) => (cancel_at_agent(at, args)?, 0),
        None => cancel_here(args)?,
    };
    say(format_args!(
        "cancelled {count} transfer{}",
        if count == 1 { "" } else { "s" }
    ));
    Ok(if count > 0 && left == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_FAILED)
    })
}

/// Position of the one item whose id `wanted` is, or begins or ends; `id` gives an item's, once it has one.
fn find<T>(items: &[T], wanted: &str, id: impl Fn(&T) -> Option<String>) -> Result<usize> {
    let plain = |text: &str| text.replace('-', "").to_ascii_lowercase();
    let matches = |item: &T| {
        id(item).is_some_and(|id| {
            let (id, wanted) = (plain(&id), plain(wanted));
            id.starts_with(&wanted) || id.ends_with(&wanted)
        })
    };
    let is_exact = |item: &T| id(item).is_some_and(|id| plain(&id) == plain(wanted));
    if let Some(exact) = items.iter().position(is_exact) {
        return Ok(exact);
    }
    let found: Vec<usize> = (0..items.len())
        .filter(|&at| !plain(wanted).is_empty() && matches(&items[at]))
        .collect();
    match found.as_slice() {
        [one] => Ok(*one),
        [] => bail!("no transfer is called {wanted}; `ropewalk status` lists them"),
        several => bail!(
            "{} transfers begin or end with {wanted}; write more of the id",
            several.len()
        ),
    }
}

/// Position of the one running transfer that `wanted` names, as [`position_of`].
///
/// # Errors
/// Also when its process does not answer.
pub(crate) fn find_running(running: &[(PathBuf, Answer)], wanted: &str) -> Result<usize> {
    let at = position_of(running, wanted)?;
    if let Some(silent) = silent_text(&running[at].1) {
        bail!("{silent}");
    }
    Ok(at)
}

/// That a process does not answer; `None` where it does.
fn silent_text(answer: &Answer) -> Option<String> {
    let (process, silence) = (answer.process, answer.silence?);
    Some(match silence {
        Silence::Stopped => format!(
            "process {process} is stopped and does not answer: `kill -CONT {process}` continues it, and then it can be asked; `kill -KILL {process}` ends it as it is"
        ),
        Silence::Late => {
            format!(
                "process {process} does not answer: {}",
                silence.remedy(process)
            )
        }
    })
}

/// By its whole label, its id or the beginning of that, or its process.
fn position_of(running: &[(PathBuf, Answer)], wanted: &str) -> Result<usize> {
    let is_labelled = |at: &usize| running[*at].1.label.as_deref() == Some(wanted);
    let labelled: Vec<usize> = (0..running.len()).filter(is_labelled).collect();
    match labelled.as_slice() {
        [one] => return Ok(*one),
        [] => {}
        several => bail!(
            "{} transfers have the label {wanted}; name one by its id, which `ropewalk status` shows",
            several.len()
        ),
    }
    // A process is named by all of its number: the beginning of one that has ended may be another's.
    let is_process =
        |(_, answer): &(PathBuf, Answer)| wanted.parse().is_ok_and(|n: u32| n == answer.process);
    if let Some(at) = running.iter().position(is_process) {
        return Ok(at);
    }
    find(running, wanted, |(_, answer)| answer.transfer.clone())
}

/// How many were cancelled, and how many could not be.
fn cancel_here(args: &CancelArgs) -> Result<(usize, usize)> {
    let running = desk::ask_all(&runtime_folder::folder()?, &Question::Status)?;
    let silent = running.iter().filter_map(|(_, answer)| silent_text(answer));
    let silent: Vec<String> = silent.filter(|_| args.transfer.is_none()).collect();
    for silent in &silent {
        eprintln!("ropewalk: not cancelled: {silent}");
    }
    let chosen = match &args.transfer {
        None => running.iter().collect(),
        Some(wanted) => vec![&running[find_running(&running, wanted)?]],
    };
    // One that ended in between needs no cancelling.
    let chosen = chosen
        .into_iter()
        .filter(|(_, answer)| answer.silence.is_none());
    let cancelled = chosen.filter(|(path, _)| desk::ask(path, &Question::Cancel).is_ok());
    Ok((cancelled.count(), silent.len()))
}

fn cancel_at_agent(at: &HostPort, args: &CancelArgs) -> Result<usize> {
    let token = token::load(args.token_file.as_deref())?;
    let runtime = runtime()?;
    let chosen = match &args.transfer {
        None => None,
        Some(wanted) => {
            let running =
                runtime.block_on(ropewalk_master::query_status(&at.host, at.port, &token))?;
            let found =
                &running[find(&running, wanted, |status| Some(format_id(&status.transfer)))?];
            let id = <[u8; 16]>::try_from(found.transfer.as_slice());
            Some(id.map_err(|_| {
                anyhow::anyhow!("the agent gave an id that is not 16 bytes; is it another version?")
            })?)
        }
    };
    Ok(runtime.block_on(ropewalk_master::query_cancel(
        &at.host, at.port, &token, chosen,
    ))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transfer is found by its id, by a beginning that only it has, and not otherwise.
    #[test]
    fn transfers_are_found_by_their_beginning() {
        let ids = ["0199-aa", "0199-ab", "7"];
        let find = |wanted| find(&ids, wanted, |id| Some((*id).to_owned()));
        assert_eq!(find("0199-aa").unwrap(), 0);
        assert_eq!(find("0199AB").unwrap(), 1);
        assert_eq!(find("7").unwrap(), 2);
        assert_eq!(find("ab").unwrap(), 1);
        assert!(
            find("0199")
                .unwrap_err()
                .to_string()
                .contains("2 transfers")
        );
        assert!(find("5").unwrap_err().to_string().contains("no transfer"));
        assert!(find("").is_err());
    }

    /// A process is named by its whole number.
    #[test]
    fn transfers_are_found_by_their_process() {
        let answer = Answer {
            transfer: Some("0199-aa".into()),
            process: 18049,
            ..Answer::default()
        };
        let all = [(PathBuf::new(), answer)];
        assert_eq!(find_running(&all, "18049").unwrap(), 0);
        assert!(find_running(&all, "18").is_err());
        assert!(find_running(&all, "180490").is_err());
    }

    /// A whole label names a transfer when only one has it; the id of another is still found.
    #[test]
    fn transfers_are_found_by_their_label() {
        let running = |id: &str, label: Option<&str>| {
            let answer = Answer {
                transfer: Some(id.into()),
                label: label.map(Into::into),
                ..Answer::default()
            };
            (PathBuf::new(), answer)
        };
        let all = [
            running("01-a", Some("one")),
            running("02-b", Some("two")),
            running("03-c", Some("two")),
            running("04-d", None),
        ];
        assert_eq!(find_running(&all, "one").unwrap(), 0);
        assert_eq!(find_running(&all, "04").unwrap(), 3);
        let error = find_running(&all, "two").unwrap_err().to_string();
        assert!(error.contains("2 transfers have the label"), "{error}");
        assert!(find_running(&all, "on").is_err());
    }

    /// Ids print in the form that `status` and reports share.
    #[test]
    fn ids_print_as_uuids() {
        let id: Vec<u8> = (0..16).collect();
        assert_eq!(format_id(&id), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }

    /// A line has the end of a transfer's id, what it moves from where to where, and since when.
    #[test]
    fn a_line_says_what_moves() {
        let answer = Answer {
            transfer: Some("01a20489-4af2-7405-8d3c-9b1e5f3a21c9".into()),
            label: Some("nightly".into()),
            from: vec!["h1:/data/set".into(), "h2:/data/set".into()],
            to: vec!["/tmp/s\u{1b}et".into()],
            started_seconds: 1000,
            ..Answer::default()
        };
        let waiting = Answer {
            progress: Some(Event::Waiting {
                awaited: vec!["h1".into()],
                reason: "no route".into(),
                seconds: 5.0,
                most_seconds: None,
            }),
            ..answer.clone()
        };
        let text = desk_text(&[waiting], 1012);
        assert!(
            text.contains("  waiting for h1, 5 s (no route), for 12 s"),
            "{text}"
        );
        assert_eq!(
            desk_text(&[answer], 1012),
            "5f3a21c9  starts to move, for 12 s  h1:/data/set, h2:/data/set -> /tmp/s\\u{1b}et  (nightly)\n"
        );
    }
}
