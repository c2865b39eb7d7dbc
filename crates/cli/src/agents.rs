//! `agents`: which standing agents answer, and what they do.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::Args;
use ropewalk_model::{HostPort, format_bytes, format_seconds, host_list};
use ropewalk_proto::codes::{EXIT_FAILED, EXIT_PARTIAL};
use ropewalk_proto::control::{StatusReply, TransferKind};
use serde::Serialize;
use tokio::sync::Semaphore;

use crate::agent::PORT_DEFAULT;
use crate::runtime::runtime;
use crate::{Usage, escape, sys, token};

/// Agents that are asked at one time: a descriptor and a handshake each.
const ASKED_MAX: usize = 64;

/// Arguments of `ropewalk agents`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct AgentsArgs {
    /// Agents to ask: HOST, HOST:PORT, or lists such as node[1-4] [default: localhost]
    #[arg(value_name = "HOST[:PORT]")]
    agents: Vec<String>,

    /// The agents' token [default: ~/.config/ropewalk/token]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// One JSON array
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ropewalk agents
      the one of this host
  ropewalk agents 'node[01-16]' store:7421
      seventeen of them, port 7420 where none is named

Bytes (of transfers, streams and tunnels) and transfers are counted since the agent began. An agent that is asked must have the token.

Exit status: 0 all answer, 1 none does, 2 usage, 3 some do not.";

/// One agent, as `--json` prints it.
#[derive(Serialize)]
struct Line {
    agent: String,
    /// Why it does not answer; everything else is null then.
    error: Option<String>,
    version: Option<String>,
    seconds: Option<u64>,
    transfers: Option<usize>,
    transfers_begun: Option<u64>,
    streams: Option<u64>,
    tunnels: Option<u64>,
    tunnel_connections: Option<u64>,
    sent_bytes: Option<u64>,
    received_bytes: Option<u64>,
    roots: Option<Vec<String>>,
    forwards: Option<Vec<String>>,
}

/// Asks all of them, and prints a line for each.
pub(crate) fn run(args: &AgentsArgs) -> Result<ExitCode> {
    let local = ["localhost".to_owned()];
    let named = match args.agents.as_slice() {
        [] => &local,
        named => named,
    };
    let mut asked = Vec::new();
    for list in named {
        for text in host_list::expand(list).map_err(|error| Usage(error.into()))? {
            asked.push(address(&text)?);
        }
    }
    let token = token::load(args.token_file.as_deref()).map_err(Usage)?;
    let answers = runtime()?.block_on(ask(asked, token));
    let lines: Vec<Line> = answers.into_iter().map(line).collect();
    let text = match args.json {
        true => serde_json::to_string(&lines).context("cannot print agents as JSON")? + "\n",
        false => text(&lines),
    };
    // Not before: a connection that an agent closes is no pipe.
    sys::end_on_closed_pipe();
    std::io::stdout()
        .lock()
        .write_all(text.as_bytes())
        .context("cannot write to standard output")?;
    let answering = lines.iter().filter(|line| line.error.is_none()).count();
    Ok(match answering {
        0 => ExitCode::from(EXIT_FAILED),
        some if some < lines.len() => ExitCode::from(EXIT_PARTIAL),
        _ => ExitCode::SUCCESS,
    })
}

/// An address with the default port where it has none.
fn address(text: &str) -> Result<HostPort> {
    let has_port = match text.strip_prefix('[') {
        Some(rest) => rest.contains("]:"),
        None => text.contains(':'),
    };
    let parsed = match has_port {
        true => text.parse(),
        false => format!("{text}:{PORT_DEFAULT}").parse(),
    };
    Ok(parsed.map_err(|error: ropewalk_model::AddressError| Usage(error.into()))?)
}

type Answered = (HostPort, Result<StatusReply, String>);

/// Asks them at the same time; the answers have the order of the question.
async fn ask(asked: Vec<HostPort>, token: [u8; token::TOKEN_LEN]) -> Vec<Answered> {
    let places = Arc::new(Semaphore::new(ASKED_MAX));
    let asking: Vec<_> = asked
        .into_iter()
        .map(|at| {
            let places = places.clone();
            tokio::spawn(async move {
                let _place = places.acquire().await;
                let answer = ropewalk_master::query_agent(&at.host, at.port, &token).await;
                (at, answer.map_err(|error| error.to_string()))
            })
        })
        .collect();
    let mut answers = Vec::new();
    for one in asking {
        answers.extend(one.await);
    }
    answers
}

fn line((at, answer): Answered) -> Line {
    let agent = at.to_string();
    let reply = match answer {
        Ok(reply) => reply,
        Err(error) => {
            return Line {
                agent,
                error: Some(error),
                version: None,
                seconds: None,
                transfers: None,
                transfers_begun: None,
                streams: None,
                tunnels: None,
                tunnel_connections: None,
                sent_bytes: None,
                received_bytes: None,
                roots: None,
                forwards: None,
            };
        }
    };
    let about = reply.agent.unwrap_or_default();
    let root = |root: &ropewalk_proto::control::ServedRoot| {
        let path = String::from_utf8_lossy(&root.path);
        format!("{path}{}", if root.writable { ":rw" } else { "" })
    };
    let transfers = reply.transfers.iter();
    let transfers = transfers.filter(|one| one.kind() == TransferKind::Transfer);
    Line {
        agent,
        error: None,
        version: Some(about.version),
        seconds: Some(about.seconds),
        transfers: Some(transfers.count()),
        transfers_begun: Some(about.transfers_begun),
        streams: Some(about.streams),
        tunnels: Some(about.tunnels),
        tunnel_connections: Some(about.tunnel_connections),
        sent_bytes: Some(about.sent),
        received_bytes: Some(about.received),
        roots: Some(about.roots.iter().map(root).collect()),
        forwards: Some(about.forwards),
    }
}

fn text(lines: &[Line]) -> String {
    let width = lines.iter().map(|line| line.agent.len()).max().unwrap_or(0);
    let mut text = String::new();
    for line in lines {
        let said = match &line.error {
            Some(error) => format!("does not answer: {}", escape::line(error)),
            None => format!(
                "{}, for {}, {} running of {} transfers, {} streams, {} tunnels, sent {}, received {}, serves {}{}",
                escape::line(line.version.as_deref().unwrap_or_default()),
                format_seconds(line.seconds.unwrap_or(0) as f64),
                line.transfers.unwrap_or(0),
                line.transfers_begun.unwrap_or(0),
                line.streams.unwrap_or(0),
                line.tunnels.unwrap_or(0),
                format_bytes(line.sent_bytes.unwrap_or(0)),
                format_bytes(line.received_bytes.unwrap_or(0)),
                escape::line(&line.roots.clone().unwrap_or_default().join(", ")),
                match line.forwards.as_deref() {
                    None | Some([]) => String::new(),
                    Some(rules) => escape::line(&format!(", forwards to {}", rules.join(", "))),
                }
            ),
        };
        let _ = writeln!(text, "{:width$}  {said}", line.agent);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where no port is named, it is the default one; IPv6 addresses are in brackets.
    #[test]
    fn ports_are_filled_in() {
        for (text, host, port) in [
            ("node1", "node1", PORT_DEFAULT),
            ("node1:7", "node1", 7),
            ("[::1]", "::1", PORT_DEFAULT),
            ("[::1]:7", "::1", 7),
        ] {
            let at = address(text).unwrap();
            assert_eq!((at.host.as_str(), at.port), (host, port), "{text}");
        }
        assert!(address("node1:0").is_err());
        assert!(address("-x").is_err());
    }
}
