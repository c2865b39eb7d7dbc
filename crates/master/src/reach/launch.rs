//! Agents on the nodes of a job: one `srun` starts all of them, or an `mpirun` each of them.
//!
//! ```text
//!  command ── secret, what each may touch ──▶ srun ── the same input ──▶ agents    take their own lines, and listen
//!  command ◀── seat and port, a line each ─── srun ◀────────────────────── agents
//!  command ── TLS, proof of the secret ──────────────────────────────────▶ agents    as to standing agents
//! ```
//!
//! The secret goes by standard input alone. Launchers pass text in lines and join the output of all agents, so nothing but these
//! lines goes through them. The end of the input ends the agents, and they end the launcher.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_lane::{mpi, preface};
use ropewalk_proto::launched::{self, Announcement, Said};
use ropewalk_proto::version::version;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::start::{self, failed};
use super::{Failure, Reached, Started, hex, roots, ssh};
use crate::link::Link;
use crate::request::{Launcher, NodeRequest, Options, Reach, RemoteProgram};
use crate::tunnels::Way;

mod words;

/// Longest time for all agents to listen: a launcher may wait for daemons of many nodes first.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a launcher has to end by itself after its agents, and then once it is asked to.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const TERM_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest line of a launcher's output that is read.
const LINE_MAX: u64 = 16 << 10;

/// After a launcher has closed its output: time for it to end.
const LAST_WORDS: Duration = Duration::from_secs(2);

type Answer = Result<(u16, Vec<IpAddr>), Failure>;

/// Where the agent of one node is waited for.
pub(super) struct Place {
    secret: [u8; 32],
    answer: oneshot::Receiver<Answer>,
    hold: Hold,
}

/// Keeps a launcher and its agents; they end when the last one of a launch is dropped.
#[derive(Clone)]
pub(crate) struct Hold {
    held: Arc<oneshot::Sender<Infallible>>,
    over: watch::Receiver<bool>,
}

impl Hold {
    /// Gives it up; where it was the last one, waits for the end of the launcher.
    pub async fn leave(self) {
        let Self { held, mut over } = self;
        let is_last = Arc::into_inner(held).is_some();
        if is_last {
            let _ = over.wait_for(|over| *over).await;
        }
    }
}

/// Has Slurm start agents on all of these nodes that are launched, and gives their places by the nodes' numbers. In words where it
/// cannot be started.
pub(super) fn start(
    nodes: &[(usize, &NodeRequest)],
    options: &Options,
) -> Result<BTreeMap<usize, Place>, String> {
    let launched = nodes.iter().filter_map(|(number, node)| match &node.reach {
        Reach::Launched(host) => Some((*number, *node, host.as_str())),
        _ => None,
    });
    let launched: Vec<(usize, &NodeRequest, &str)> = launched.collect();
    if options.launcher != Some(Launcher::Slurm) || launched.is_empty() {
        return Ok(BTreeMap::new());
    }
    let hosts: Vec<&str> = launched.iter().map(|(_, _, host)| *host).collect();
    let words = words::srun(program(options), &hosts, &ssh::ports(options));
    let seats = launched.iter().map(|(_, node, host)| {
        let seat = (*host).to_owned();
        (seat, roots(node, options))
    });
    let places = begin(&words, &seats.collect::<Vec<_>>(), options)?;
    let numbers = launched.iter().map(|(number, ..)| *number);
    Ok(numbers.zip(places).collect())
}

/// Has an `mpirun` of its own start the agent of one node: both MPIs pass their input to the first process only.
pub(super) async fn reach_alone(node: &NodeRequest, options: &Options) -> Result<Reached, Failure> {
    const SEAT: &str = "0";
    let place = async {
        let host = node.reach.host().unwrap_or_default();
        if options.launcher != Some(Launcher::Mpi) {
            return Err("no launcher was named for it".to_owned());
        }
        let found = tokio::task::spawn_blocking(mpi::found).await;
        let found = found.map_err(|_| "looking for MPI failed; this is a bug".to_owned())?;
        let (mpi, _) = found.map_err(|error| format!("--launch mpi: {error}"))?;
        let words = words::mpirun(mpi, program(options), host, SEAT, &ssh::ports(options));
        let seats = [(SEAT.to_owned(), roots(node, options))];
        let mut places = begin(&words, &seats, options)?;
        places
            .pop()
            .ok_or_else(|| "no place for it; this is a bug".into())
    };
    let place = place.await.map_err(failed)?;
    place.reach(node).await
}

/// The program on all nodes.
fn program(options: &Options) -> &OsStr {
    match &options.remote_program {
        RemoteProgram::At(path) => path,
        RemoteProgram::Uploaded => options.local_program.as_os_str(),
    }
}

/// Starts a launcher; the places of its agents, in the order of the seats.
fn begin(
    words: &[OsString],
    seats: &[(String, Vec<String>)],
    options: &Options,
) -> Result<Vec<Place>, String> {
    let launcher = words[0].to_string_lossy().into_owned();
    let mut child = spawn(words).map_err(|error| format!("{launcher}: {error}"))?;
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("the launcher's input and output are closed".into());
    };
    let secret: [u8; 32] = preface::random_bytes();
    let (held, released) = oneshot::channel();
    let (over, is_over) = watch::channel(false);
    let hold = Hold {
        held: Arc::new(held),
        over: is_over,
    };
    let mut waiting = BTreeMap::new();
    let mut places = Vec::new();
    for (seat, _) in seats {
        let (answers, answer) = oneshot::channel();
        waiting.insert(seat.clone(), answers);
        places.push(Place {
            secret,
            answer,
            hold: hold.clone(),
        });
    }
    let (said, errors) = start::Said::listen_along(child.stderr.take());
    let launch = Launch {
        launcher,
        program: program(options).to_owned(),
        said: Some(said),
        child,
        waiting,
    };
    let greeting = greeting(&secret, seats);
    let heard = Heard {
        output: BufReader::new(output),
        errors,
    };
    tokio::spawn(launch.run(input, heard, greeting, released, over));
    Ok(places)
}

fn greeting(secret: &[u8; 32], seats: &[(String, Vec<String>)]) -> String {
    let lines = launched::format_lines(seats);
    let mut greeting = format!("{}\n{}\n", hex(secret), lines.len());
    for line in lines {
        greeting.push_str(&line);
        greeting.push('\n');
    }
    greeting
}

fn spawn(words: &[OsString]) -> std::io::Result<Child> {
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A Ctrl-C at the terminal goes to the master alone, which then ends its agents in order.
        .process_group(0)
        // Started by root, Open MPI asks twice whether that is meant; so does who runs this program as root.
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        // What this process was reached by is no address that its agents should tell.
        .env_remove("SSH_CONNECTION");
    command.spawn()
}

/// A launcher that runs.
struct Launch {
    launcher: String,
    program: OsString,
    child: Child,
    // `None` once it is shown as it comes.
    said: Option<start::Said>,
    // Agents that have said nothing yet.
    waiting: BTreeMap<String, oneshot::Sender<Answer>>,
}

/// What a launcher says.
struct Heard {
    output: BufReader<ChildStdout>,
    errors: mpsc::Receiver<String>,
}

impl Launch {
    async fn run(
        mut self,
        mut input: ChildStdin,
        heard: Heard,
        greeting: String,
        mut released: oneshot::Receiver<Infallible>,
        over: watch::Sender<bool>,
    ) {
        let until = Instant::now() + START_TIMEOUT;
        let Heard {
            mut output,
            mut errors,
        } = heard;
        let mut line = Vec::new();
        let mut is_written = false;
        let mut written = 0;
        loop {
            tokio::select! {
                _ = &mut released => break,
                // What was written is counted, so that another branch may be first.
                wrote = input.write(&greeting.as_bytes()[written..]), if !is_written => {
                    written += wrote.unwrap_or(greeting.len() - written);
                    is_written = written == greeting.len();
                }
                () = tokio::time::sleep_until(until), if !self.waiting.is_empty() => self.give_up(),
                Some(line) = errors.recv() => self.hear_error(&line),
                read = read_line(&mut output, &mut line) => {
                    if !matches!(read, Ok(1..)) {
                        // It may have said much, which is kept without a listener.
                        drop(errors);
                        return self.ended(over).await;
                    }
                    self.hear(&String::from_utf8_lossy(&line));
                    line.clear();
                }
            }
        }
        // The end of the input ends the agents. A launcher says so of each, and must not wait for a listener.
        drop((input, errors));
        if tokio::time::timeout(END_TIMEOUT, self.child.wait())
            .await
            .is_err()
        {
            let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok());
            if let Some(pid) = pid.and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::TERM);
            }
            // It has processes on other hosts to end, and goes by itself after that.
            let _ = tokio::time::timeout(TERM_TIMEOUT, self.child.wait()).await;
        }
        over.send_replace(true);
    }

    /// Takes in a line of the launcher's output.
    fn hear(&mut self, line: &str) {
        let Some(Announcement { seat, said }) = Announcement::parse(line) else {
            return;
        };
        let Some(answer) = self.waiting.remove(&seat) else {
            return;
        };
        let _ = answer.send(match said {
            Said::Ready { port, addresses } => Ok((port, addresses)),
            Said::Refused { is_final, reason } => Err(Failure {
                is_final,
                ..failed(reason)
            }),
            Said::OtherVersion(theirs) => Err(failed(format!(
                "the program there has version {theirs}, and this one is {}; name one of this version with --remote-path",
                version()
            ))),
        });
        if self.waiting.is_empty()
            && let Some(said) = self.said.take()
        {
            said.pass_on();
        }
    }

    /// Takes in a line of the launcher's standard error: of nodes on which no agent runs nothing more is waited for.
    fn hear_error(&mut self, line: &str) {
        let Some((nodes, reason)) = words::ended(line) else {
            return;
        };
        for node in nodes {
            let Some(answer) = self.waiting.remove(&node) else {
                continue;
            };
            let said = self.said.as_ref().map(start::Said::so_far);
            let said = said.unwrap_or_default();
            let text = words::explain_node(&reason, &self.program, &said);
            let _ = answer.send(Err(failed(text)));
        }
    }

    fn fail(&mut self, text: &str) {
        for (_, answer) in std::mem::take(&mut self.waiting) {
            let _ = answer.send(Err(failed(text.to_owned())));
        }
    }

    /// Agents that do not listen by now are given up.
    fn give_up(&mut self) {
        let said = self.said.as_ref().map(start::Said::so_far);
        let said = match said.as_deref().map(str::trim) {
            None | Some("") => String::new(),
            Some(said) => {
                let said = words::explain(&self.launcher, &self.program, None, said);
                format!("; it said: {said}")
            }
        };
        let text = format!(
            "no agent within {} s of starting `{}`{said}",
            START_TIMEOUT.as_secs(),
            self.launcher
        );
        self.fail(&text);
    }

    /// The launcher has closed its output.
    async fn ended(mut self, over: watch::Sender<bool>) {
        let ended = tokio::time::timeout(LAST_WORDS, self.child.wait()).await;
        let status = ended.ok().and_then(Result::ok);
        let status = status.and_then(|status| status.code());
        if let Some(said) = self.said.take() {
            let said = said.all().await;
            let text = words::explain(&self.launcher, &self.program, status, &said);
            self.fail(&text);
        }
        over.send_replace(true);
    }
}

/// Reads a line, or what is left of one whose reading was interrupted.
async fn read_line(
    output: &mut BufReader<ChildStdout>,
    line: &mut Vec<u8>,
) -> std::io::Result<usize> {
    output.take(LINE_MAX).read_until(b'\n', line).await
}

impl Place {
    /// Waits until the agent listens, and connects to it.
    pub async fn reach(self, node: &NodeRequest) -> Result<Reached, Failure> {
        let Self {
            secret,
            answer,
            hold,
        } = self;
        let answer = answer.await;
        let (port, addresses) =
            answer.unwrap_or_else(|_| Err(failed("starting it failed; this is a bug".into())))?;
        let name = node.reach.host().unwrap_or_default();
        let (link, host) = connect(&node.name, name, port, &addresses, &secret).await?;
        Ok(Reached {
            at: link.peer.map(|ip| (ip, Some(port))),
            link,
            way: Way::Port(host, port),
            started: Some(Started::Launched(hold)),
            requests: None,
            uploaded: None,
        })
    }
}

/// Connects by the name of the node, else by the addresses that its agent named. The failure is the first one.
async fn connect(
    node: &str,
    host: &str,
    port: u16,
    addresses: &[IpAddr],
    secret: &[u8; 32],
) -> Result<(Link, String), Failure> {
    let mut first = None;
    let addresses = addresses.iter().map(IpAddr::to_string);
    for host in std::iter::once(host.to_owned()).chain(addresses) {
        match Link::connect(node, &host, port, secret).await {
            Ok(link) => return Ok((link, host)),
            Err(error) => first.get_or_insert(error),
        };
    }
    let first = first.map_or(String::new(), |error| error.to_string());
    Err(failed(format!(
        "its agent was started and is not reached: {first}; between the nodes of a job TCP must pass, at ports that --ports names"
    )))
}
