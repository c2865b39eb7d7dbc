//! Gets to the agents: attaches to running ones, starts others over ssh or on this host.
//!
//! A started agent reads a one-use secret and its roots from standard input, never from its command
//! line or environment, and lives only as long as that pipe.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_lane::preface;
use ropewalk_model::spec::is_host;
use ropewalk_pipe::{Pipe, Requests, Side};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use crate::MasterError;
use crate::link::Link;
use crate::request::{NodeRequest, Object, Options, Reach};
use crate::tunnels::Way;

/// Longest time for an agent to come up, ssh login included.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the command waits for a started agent to leave once its input is closed.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(700);

/// What is on its way to an agent leaves within this time when everything ends.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// Agents reached at once; more wait, so that a thousand ssh logins do not start together.
const REACH_AT_ONCE: usize = 64;

/// First word of the line a started agent prints; the next is the version of this exchange. The pipe follows.
const READY: &str = "ROPEWALK-AGENT";
const VERSION: &str = "2";

/// A node whose agent answers.
pub(crate) struct Reached {
    pub link: Link,
    pub way: Way,
    /// Where this process started the agent ...
    pub started: Option<Started>,
    /// ... what it asks for.
    pub requests: Option<Requests>,
}

/// An agent this process started.
pub(crate) struct Started {
    child: Child,
    pipe: Pipe,
}

impl Started {
    /// Closes the agent's input, which ends it.
    pub async fn leave(mut self) {
        self.pipe.close(LAST_WORDS).await;
        if tokio::time::timeout(LEAVE_TIMEOUT, self.child.wait())
            .await
            .is_err()
        {
            // It is still removing temporary files and goes by itself; killing it would leave them.
            std::mem::forget(self.child);
        }
    }
}

/// Reaches all nodes, or none: then says of the first few why not.
///
/// `notice` is called for each node that was reached, with its name and how many were.
pub(crate) async fn reach_all(
    nodes: &[NodeRequest],
    options: &Options,
    loopback: bool,
    notice: impl Fn(&str, usize),
) -> Result<Vec<Reached>, String> {
    let gate = Arc::new(tokio::sync::Semaphore::new(REACH_AT_ONCE));
    let mut tasks = JoinSet::new();
    for (number, node) in nodes.iter().enumerate() {
        let (node, options, gate) = (node.clone(), options.clone(), gate.clone());
        tasks.spawn(async move {
            let _permit = gate.acquire_owned().await;
            (number, reach(&node, &options, loopback).await)
        });
    }
    let mut links = BTreeMap::new();
    let mut errors = BTreeMap::new();
    while let Some(joined) = tasks.join_next().await {
        match joined {
            Ok((number, Ok(link))) => {
                links.insert(number, link);
                notice(&nodes[number].name, links.len());
            }
            Ok((number, Err(error))) => {
                errors.insert(number, error.to_string());
            }
            Err(error) => {
                errors.insert(usize::MAX, error.to_string());
            }
        }
    }
    if errors.is_empty() {
        return Ok(links.into_values().collect());
    }
    for reached in links.into_values() {
        drop(reached.link);
        if let Some(started) = reached.started {
            started.leave().await;
        }
    }
    const SHOWN: usize = 5;
    let more = errors.len().saturating_sub(SHOWN);
    let mut text: Vec<String> = errors.into_values().take(SHOWN).collect();
    if more > 0 {
        text.push(format!("and {more} more nodes"));
    }
    Err(text.join("\n"))
}

/// Reaches one node.
async fn reach(
    node: &NodeRequest,
    options: &Options,
    loopback: bool,
) -> Result<Reached, MasterError> {
    match &node.reach {
        Reach::Attached { host, port } => {
            let token = options.token.ok_or_else(|| {
                MasterError::Request(format!(
                    "{} runs an agent, which wants its token: give --token-file",
                    node.name
                ))
            })?;
            Ok(Reached {
                link: Link::connect(&node.name, host, *port, &token).await?,
                way: Way::Port(host.clone(), *port),
                started: None,
                requests: None,
            })
        }
        Reach::Local => {
            let mut command = Command::new(&options.local_program);
            command.args(["agent", "--one-shot"]);
            if loopback {
                command.arg("--loopback");
            }
            // A Ctrl-C at the terminal goes to the master alone, which then ends its agents in order.
            command.process_group(0);
            // What this process was reached by is no address that its agents should tell.
            command.env_remove("SSH_CONNECTION");
            start(node, command).await
        }
        Reach::Ssh(target) => {
            if !is_host(target) {
                let name = &node.name;
                return Err(MasterError::Request(format!(
                    "{name}: {target:?} is not a host that ssh could be given"
                )));
            }
            let mut words = options.ssh_command.iter();
            let program = words.next().cloned().unwrap_or_else(|| "ssh".into());
            let rest: Vec<OsString> = words.cloned().collect();
            let mut command = Command::new(&program);
            // No terminal, no questions that nobody could answer.
            command
                .args(&rest)
                .args(["-T", "-o", "BatchMode=yes"])
                .arg(target);
            command
                .arg(&options.remote_path)
                .args(["agent", "--one-shot"]);
            command.process_group(0);
            start(node, command).await
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The folder above a path.
fn folder_of(path: &Path) -> &Path {
    path.parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new(if path.is_absolute() { "/" } else { "." }))
}

/// What a started agent may touch: exactly the named sources, and the folders that take the copies.
fn roots(node: &NodeRequest) -> Vec<String> {
    let mut lines = Vec::new();
    for source in &node.sources {
        match &source.object {
            Object::Path(path) => lines.push(format!("ro {}", hex(path))),
            Object::Bundle(paths) => {
                lines.extend(paths.iter().map(|path| format!("ro {}", hex(path))));
            }
            Object::Memory(_) | Object::Null => {}
        }
    }
    for sink in &node.sinks {
        if let Object::Path(path) = &sink.object {
            // It may lead elsewhere by a link; a copy that goes into it needs that place.
            lines.push(format!("in {}", hex(path)));
            let mut folder = folder_of(Path::new(OsStr::from_bytes(path)));
            if sink.make_folder {
                lines.push(format!("in {}", hex(folder.as_os_str().as_bytes())));
                folder = folder_of(folder);
            }
            lines.push(format!("rw {}", hex(folder.as_os_str().as_bytes())));
        }
    }
    lines
}

async fn start(node: &NodeRequest, mut command: Command) -> Result<Reached, MasterError> {
    let failed = |reason: String| MasterError::Start {
        node: node.name.clone(),
        reason,
    };
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let program = command
        .as_std()
        .get_program()
        .to_string_lossy()
        .into_owned();
    let mut child = command
        .spawn()
        .map_err(|e| failed(format!("{program}: {e}")))?;
    let secret: [u8; 32] = preface::random_bytes();
    let roots = roots(node);
    let mut input = format!("{}\n{}\n", hex(&secret), roots.len());
    for root in roots {
        input.push_str(&root);
        input.push('\n');
    }
    let ready = tokio::time::timeout(START_TIMEOUT, async {
        if let Some(stdin) = child.stdin.as_mut() {
            // An agent that ended already says why on standard error.
            let _ = stdin.write_all(input.as_bytes()).await;
            let _ = stdin.flush().await;
        }
        let mut lines = BufReader::new(child.stdout.take()?).lines();
        // Login scripts may print first.
        while let Ok(Some(line)) = lines.next_line().await {
            let mut words = line.split_whitespace();
            if words.next() == Some(READY) {
                let output = lines.into_inner();
                return Some((words.next() == Some(VERSION), output));
            }
        }
        None
    })
    .await;
    match ready {
        Ok(Some((true, output))) => {
            drain_errors(&mut child);
            let Some(input) = child.stdin.take() else {
                return Err(failed("its input is gone".into()));
            };
            let (pipe, requests) = Pipe::start(output, input, Side::Starter);
            let link = Link::over(&pipe)
                .await
                .map_err(|error| failed(error.to_string()))?;
            Ok(Reached {
                link,
                way: Way::Pipe(pipe.clone()),
                started: Some(Started { child, pipe }),
                requests: Some(requests),
            })
        }
        Ok(Some(_)) => Err(failed(
            "the program there is another version; install the same Ropewalk on all hosts".into(),
        )),
        Ok(None) => {
            let mut said = String::new();
            if let Some(stderr) = child.stderr.as_mut() {
                let _ = tokio::time::timeout(
                    Duration::from_secs(2),
                    stderr.take(4096).read_to_string(&mut said),
                )
                .await;
            }
            let said = said.trim();
            let reason = if said.is_empty() {
                format!(
                    "`{program}` ended without a word; is the program installed there? (--remote-path)"
                )
            } else if let Some(own) = said.strip_prefix("ropewalk: ") {
                // The agent itself knows what is wrong.
                own.to_owned()
            } else {
                format!("{said} (is the program installed there? --remote-path says where)")
            };
            Err(failed(reason))
        }
        Err(_) => Err(failed(format!(
            "nothing within {} s; does `{program}` log in without a question?",
            START_TIMEOUT.as_secs()
        ))),
    }
}

/// Passes what an agent says on standard error through, so that nobody blocks on a full pipe.
fn drain_errors(child: &mut Child) {
    if let Some(stderr) = child.stderr.take() {
        tokio::spawn(async move {
            let mut lines = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                eprintln!("{line}");
            }
        });
    }
}
