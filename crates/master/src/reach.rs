//! Gets to the agents: attaches to running ones, starts others over ssh, on the nodes of a job or on this host.
//!
//! A started agent reads a one-use secret and its roots from standard input, never from its command
//! line or environment, and lives only as long as that pipe.

mod greet;
mod here;
mod hosts_errors;
mod launch;
mod ranks;
mod ssh;
mod start;
mod terminal;
mod upload;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use ropewalk_model::spec::is_host;
use ropewalk_pipe::{Pipe, Requests};
use ropewalk_proto::report::Event;
use rustix::io::retry_on_intr;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use tokio::process::Child;
use tokio::task::JoinSet;

pub use self::hosts_errors::flush_hosts_errors;
pub(crate) use self::ranks::Ranks;
use self::ranks::Seat;
pub(crate) use self::ssh::Failure;
use self::ssh::Questions;
use crate::connections::leave_all;
use crate::link::Link;
use crate::request::{NodeRequest, Object, Options, Reach};
use crate::tunnels::Way;

/// How long the command waits for a started agent to leave once its input is closed.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(700);

/// Stack of a thread that waits for an agent which needs longer.
const WAITING_STACK: usize = 64 << 10;

/// What is on its way to an agent leaves within this time when everything ends.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// Agents reached at once; more wait, so that a thousand ssh logins do not start together.
const REACH_AT_ONCE: usize = 64;

/// A host's name that was not resolved while ssh logged in is waited for no longer.
const RESOLVE_TIMEOUT: Duration = Duration::from_millis(200);

/// Nodes that have not answered after this time are named, and again when others are awaited.
const AWAITED_EVERY: Duration = Duration::from_secs(1);

/// A node whose agent answers.
pub(crate) struct Reached {
    pub link: Link,
    /// Its address as this process has it, and its port where that is its agent's.
    pub at: Option<(IpAddr, Option<u16>)>,
    pub way: Way,
    /// Where this process started the agent ...
    pub started: Option<Started>,
    /// ... what it asks for.
    pub requests: Option<Requests>,
    /// This program was put on its host: into this file, or `Some(None)`: for this run only.
    pub uploaded: Option<Option<String>>,
}

/// An agent this process started.
pub(crate) enum Started {
    /// A child of its own, or that of ssh.
    Child {
        /// It ends with its input.
        child: Child,
        /// What its input and output carry.
        pipe: Pipe,
    },
    /// In this process.
    Here(here::Running),
    /// One of those that a launcher has started.
    Launched(launch::Hold),
}

impl Started {
    /// Closes the agent's input, which ends it.
    pub async fn leave(self) {
        let (mut child, pipe) = match self {
            Self::Child { child, pipe } => (child, pipe),
            Self::Here(running) => return running.leave().await,
            Self::Launched(hold) => return hold.leave().await,
        };
        pipe.close(LAST_WORDS).await;
        if tokio::time::timeout(LEAVE_TIMEOUT, child.wait())
            .await
            .is_err()
        {
            outlast(child);
        }
    }
}

/// Waits for a child that still removes temporary files and ends by itself: killing it would leave them. On a thread, as the runtime may end
/// first, and so may this process.
fn outlast(child: Child) -> Option<JoinHandle<()>> {
    // Dropping the child would kill it; without a thread it is left as it is.
    let child = ManuallyDrop::new(child);
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.and_then(Pid::from_raw)?;
    let thread = std::thread::Builder::new().name("leave".into());
    let wait = move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        if retry_on_intr(|| waitid(WaitId::Pid(pid), options)).is_ok() {
            // It has ended, and is taken off the list of processes here.
            drop(ManuallyDrop::into_inner(child).try_wait());
        }
    };
    thread.stack_size(WAITING_STACK).spawn(wait).ok()
}

/// What became of each node, in their order.
pub(crate) type Answers = Vec<Result<Reached, Failure>>;

/// Reaches nodes: all at once as far as no question is asked; then, at a terminal, those where ssh has questions, one after
/// the other.
///
/// * `ranks`: of their agents, where these are ranks of MPI. Then either all are reached or none.
/// * `known`: the answers of nodes that were reached before, by their positions.
///
/// `notice` gets an event for each node that is reached or asked for, and about once a second those that are awaited.
pub(crate) async fn reach_each(
    nodes: &[NodeRequest],
    options: &Options,
    loopback: bool,
    ranks: Option<&Ranks>,
    known: BTreeMap<usize, Result<Reached, Failure>>,
    notice: impl Fn(Event),
) -> Answers {
    let mut tasks = JoinSet::new();
    let at_once = match ranks {
        // They wait for each other.
        Some(_) => nodes.len(),
        None => REACH_AT_ONCE,
    };
    let shared = Arc::new(options.clone());
    let unknown = nodes.iter().enumerate();
    let unknown = unknown.filter(|(number, _)| !known.contains_key(number));
    let unknown: Vec<(usize, &NodeRequest)> = unknown.collect();
    let (mut places, unlaunched) = match launch::start(&unknown, options) {
        Ok(places) => (places, None),
        Err(text) => (BTreeMap::new(), Some(text)),
    };
    let mut next = unknown.into_iter();
    let mut round = Round {
        nodes,
        answers: known,
        told: Vec::new(),
        notice,
    };
    let mut tick = tokio::time::interval(AWAITED_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    tick.tick().await;
    loop {
        while tasks.len() < at_once
            && let Some((number, node)) = next.next()
        {
            let (node, options) = (node.clone(), shared.clone());
            let seat = ranks.map(|ranks| ranks.seat(number));
            let is_launched = matches!(node.reach, Reach::Launched(_));
            let (place, unlaunched) = (places.remove(&number), unlaunched.clone());
            tasks.spawn(async move {
                let answer = match (place, seat) {
                    (Some(place), _) => place
                        .reach(&node)
                        .await
                        .map_err(|failure| named(&node.name, failure)),
                    (None, _) if is_launched && unlaunched.is_some() => {
                        let text = unlaunched.unwrap_or_default();
                        Err(named(&node.name, start::failed(text)))
                    }
                    (None, Some(seat)) => reach_rank(&node, &options, loopback, seat).await,
                    (None, None) => reach(&node, &options, loopback, Questions::Never, None).await,
                };
                (number, answer)
            });
        }
        tokio::select! {
            joined = tasks.join_next() => match joined {
                Some(Ok((number, answer))) => round.take(number, answer),
                // A task that failed leaves its node without an answer.
                Some(Err(_)) => {}
                None => break,
            },
            _ = tick.tick() => {
                round.tell_awaited();
                round.greet().await;
            }
        }
    }
    if round.reached() < nodes.len() {
        round.greet().await;
    }
    if options.ask {
        for number in round.questions() {
            (round.notice)(Event::Asking {
                node: nodes[number].name.clone(),
            });
            let questions = Questions::AtTerminal;
            let answer = reach(&nodes[number], options, loopback, questions, None).await;
            round.take(number, answer);
        }
    }
    round.answers()
}

/// Nodes that are being reached.
struct Round<'n, N> {
    nodes: &'n [NodeRequest],
    answers: BTreeMap<usize, Result<Reached, Failure>>,
    // Names of those that were said to be awaited.
    told: Vec<String>,
    notice: N,
}

impl<N: Fn(Event)> Round<'_, N> {
    fn reached(&self) -> usize {
        self.answers
            .values()
            .filter(|answer| answer.is_ok())
            .count()
    }

    fn take(&mut self, number: usize, answer: Result<Reached, Failure>) {
        let mut answer = answer.map_err(|failure| with_port(&self.nodes[number], failure));
        let is_ok = answer.is_ok();
        let uploaded = answer.as_mut().ok().and_then(|one| one.uploaded.take());
        self.answers.insert(number, answer);
        if let Some(place) = uploaded {
            let node = &self.nodes[number].name;
            (self.notice)(Event::Uploaded {
                node: node.clone(),
                message: upload::describe(node, place.as_deref()),
            });
        }
        if is_ok {
            (self.notice)(Event::Reached {
                node: self.nodes[number].name.clone(),
                reached: self.reached(),
                nodes: self.nodes.len(),
            });
        }
    }

    /// Where others are waited for, or are missing, the agents that are reached learn that this master has their token. Else
    /// they learn it with the first message: a packet less.
    async fn greet(&mut self) {
        for reached in self.answers.values_mut().flatten() {
            reached.link.writer.flush().await;
        }
    }

    fn tell_awaited(&mut self) {
        let all = self.nodes.iter().enumerate();
        let awaited = all.filter(|(number, _)| !self.answers.contains_key(number));
        let awaited: Vec<String> = awaited.map(|(_, node)| node.name.clone()).collect();
        if awaited != self.told {
            self.told.clone_from(&awaited);
            (self.notice)(Event::Awaiting {
                awaited,
                reached: self.reached(),
                nodes: self.nodes.len(),
            });
        }
    }

    /// Nodes where ssh would have asked something.
    fn questions(&self) -> Vec<usize> {
        let asked = |(number, answer): (&usize, &Result<Reached, Failure>)| match answer {
            Err(failure) if failure.is_question => Some(*number),
            _ => None,
        };
        self.answers.iter().filter_map(asked).collect()
    }

    fn answers(mut self) -> Answers {
        let lost = |node: &NodeRequest| Failure {
            text: format!("{}: reaching it failed; this is a bug", node.name),
            is_question: false,
            is_final: false,
        };
        let all = self.nodes.iter().enumerate();
        all.map(|(number, node)| self.answers.remove(&number).unwrap_or(Err(lost(node))))
            .collect()
    }
}

/// Reaches all nodes, or none: then says of the first few why not.
pub(crate) async fn reach_all(
    nodes: &[NodeRequest],
    options: &Options,
    loopback: bool,
) -> Result<Vec<Reached>, String> {
    let answers = reach_each(nodes, options, loopback, None, BTreeMap::new(), |_| {}).await;
    if answers.iter().all(Result::is_ok) {
        return Ok(answers.into_iter().flatten().collect());
    }
    let text = describe(answers.iter().filter_map(|answer| answer.as_ref().err()));
    send_away(answers.into_iter().flatten().collect()).await;
    Err(text)
}

/// The first few failures, each from a new line on.
pub(crate) fn describe<'f>(failures: impl Iterator<Item = &'f Failure>) -> String {
    const SHOWN: usize = 5;
    let mut text: Vec<String> = Vec::new();
    for failure in failures {
        // What failed for one is why others did.
        if !text.contains(&failure.text) {
            text.push(failure.text.clone());
        }
    }
    let more = text.len().saturating_sub(SHOWN);
    text.truncate(SHOWN);
    if more > 0 {
        text.push(format!("and {more} more nodes"));
    }
    text.join("\n")
}

/// Reaches a node whose agent is a rank of MPI; fails when another one does.
async fn reach_rank(
    node: &NodeRequest,
    options: &Options,
    loopback: bool,
    seat: Seat,
) -> Result<Reached, Failure> {
    let answer = tokio::select! {
        answer = reach(node, options, loopback, Questions::Never, Some(&seat)) => answer,
        text = seat.failed() => Err(Failure { text, is_question: false, is_final: false }),
    };
    if let Err(failure) = &answer {
        seat.fail(&failure.text);
    }
    answer
}

/// Reaches one node.
async fn reach(
    node: &NodeRequest,
    options: &Options,
    loopback: bool,
    questions: Questions,
    seat: Option<&Seat>,
) -> Result<Reached, Failure> {
    let failed = |text: String| Failure {
        text,
        is_question: false,
        is_final: false,
    };
    match &node.reach {
        Reach::Attached { host, port } => {
            let own = options.tokens.get(&(host.clone(), *port)).copied();
            let Some(token) = own.or(options.token) else {
                return Err(failed(format!(
                    "{} runs an agent, which wants its token: give the file that has it (--token-file, in a program token_file)",
                    node.name
                )));
            };
            let link = Link::connect(&node.name, host, *port, &token).await;
            let link = link.map_err(|error| failed(error.to_string()))?;
            Ok(Reached {
                at: link.peer.map(|ip| (ip, Some(*port))),
                link,
                way: Way::Port(host.clone(), *port),
                started: None,
                requests: None,
                uploaded: None,
            })
        }
        Reach::Launched(_) => {
            let reached = Box::pin(launch::reach_alone(node, options)).await;
            reached.map_err(|failure| named(&node.name, failure))
        }
        Reach::Local if loopback && seat.is_none() && options.agent_here.is_some() => {
            let lines = roots(node, options);
            Box::pin(here::start(options, &lines))
                .await
                .map_err(|failure| named(&node.name, failure))
        }
        Reach::Local => {
            let mut words: Vec<OsString> = vec![options.local_program.clone().into()];
            words.extend(["agent", "--one-shot"].map(OsString::from));
            match loopback {
                true => words.push("--loopback".into()),
                false => words.extend(ssh::ports(options)),
            }
            let (mut lines, own) = (roots(node, options), &options.local_program);
            lines.extend(seat.map(Seat::line));
            // On the heap: most nodes are attached, and need no room for it.
            let started = start::start(&words, true, Questions::Never, (&lines, seat), own);
            Box::pin(started)
                .await
                .map_err(|failure| named(&node.name, failure))
        }
        Reach::Ssh(target) => {
            let name = &node.name;
            if !is_host(target) {
                return Err(failed(format!(
                    "{name}: {target:?} is not a host that ssh could be given"
                )));
            }
            let words = ssh::words(options, target, questions);
            let resolving = tokio::spawn(resolved(target.clone()));
            let (roots, own) = (roots(node, options), &options.local_program);
            let started =
                Box::pin(start::start(&words, false, questions, (&roots, None), own)).await;
            let at = match &started {
                Ok(_) => tokio::time::timeout(RESOLVE_TIMEOUT, resolving).await.ok(),
                Err(_) => None,
            };
            let at = at.and_then(Result::ok).flatten();
            let started = started.map(|reached| Reached {
                at: at.map(|ip| (ip, None)),
                ..reached
            });
            started.map_err(|failure| named(name, failure))
        }
    }
}

/// A failure with the node's name before it.
fn named(name: &str, failure: Failure) -> Failure {
    let text = match failure.text.contains('\n') {
        true => format!("{name}:\n{}", failure.text),
        false => format!("{name}: {}", failure.text),
    };
    Failure { text, ..failure }
}

/// A failure of ssh, with how an agent at a port is named, where a path looks like a port.
fn with_port(node: &NodeRequest, failure: Failure) -> Failure {
    let Reach::Ssh(target) = &node.reach else {
        return failure;
    };
    let port = node
        .sources
        .iter()
        .chain(&node.sinks)
        .find_map(|object| match &object.object {
            Object::Path(path) => std::str::from_utf8(path).ok()?.parse::<u16>().ok(),
            _ => None,
        });
    let Some(port) = port.filter(|_| !failure.is_question) else {
        return failure;
    };
    let host = target.rsplit_once('@').map_or(&**target, |(_, host)| host);
    let text = format!(
        "{}\n{target}:{port} is the path {port} on a host that is reached over ssh; if an agent listens at port {port} there, write \
         {host}:{port}:/PATH",
        failure.text
    );
    Failure { text, ..failure }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// What a host's name, as ssh takes it, stands for here. An alias of ssh's own configuration may stand for nothing.
async fn resolved(target: String) -> Option<IpAddr> {
    let host = target.rsplit('@').next()?;
    let mut found = tokio::net::lookup_host((host, 0)).await.ok()?;
    found.next().map(|address| address.ip())
}

/// The folder above a path.
fn folder_of(path: &Path) -> &Path {
    path.parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new(if path.is_absolute() { "/" } else { "." }))
}

/// Closes connections of nodes that take no part after all.
pub(crate) async fn send_away(reached: Vec<Reached>) {
    leave_all(reached.into_iter().filter_map(|one| one.started)).await;
}

/// What a started agent may touch: exactly the named sources, and the folders that take the copies and lists of checksums.
fn roots(node: &NodeRequest, options: &Options) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(path) = options
        .checksums
        .as_ref()
        .filter(|_| !node.sinks.is_empty())
    {
        let folder = folder_of(Path::new(OsStr::from_bytes(path)));
        lines.push(format!("in {}", hex(folder.as_os_str().as_bytes())));
    }
    for source in &node.sources {
        match &source.object {
            Object::Path(path) => lines.push(format!("ro {}", hex(path))),
            Object::Bundle(paths) => {
                lines.extend(paths.iter().map(|path| format!("ro {}", hex(path))));
            }
            Object::Pattern(pattern) => lines.push(format!("gl {}", hex(pattern))),
            Object::Memory(_) | Object::Buffer(_) | Object::Null => {}
        }
    }
    for sink in &node.sinks {
        if let Object::Path(path) = &sink.object {
            // It may be a folder, or a link to a folder or file elsewhere: the copy goes there then.
            lines.push(format!("in {}", hex(path)));
            let mut folder = folder_of(Path::new(OsStr::from_bytes(path)));
            if sink.make_folder {
                lines.push(format!("in {}", hex(folder.as_os_str().as_bytes())));
                folder = folder_of(folder);
            }
            // What holds the home folder of another user is none of the copy's.
            if !path.starts_with(b"~") || folder != Path::new(".") {
                lines.push(format!("rw {}", hex(folder.as_os_str().as_bytes())));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::process::Stdio;

    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;
    use crate::request::ObjectRequest;

    /// A child that needs longer than it is waited for goes on, also after the runtime, and leaves neither a zombie nor a descriptor.
    #[test]
    fn children_that_need_longer_are_waited_for() {
        let pipe = || pipe_with(PipeFlags::CLOEXEC).unwrap();
        let ((child_input, input), (output, child_output)) = (pipe(), pipe());
        let (mut input, mut output) = (std::fs::File::from(input), std::fs::File::from(output));
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().unwrap();
        let (pid, waiting) = runtime.block_on(async {
            let mut command = tokio::process::Command::new("cat");
            let command = command.stdin(Stdio::from(child_input));
            let command = command.stdout(Stdio::from(child_output));
            let child = command.kill_on_drop(true).spawn().unwrap();
            (child.id().unwrap(), outlast(child))
        });
        drop(runtime);
        input.write_all(b"x").unwrap();
        let mut read = [0];
        output.read_exact(&mut read).unwrap();
        assert_eq!(read, *b"x");
        drop(input);
        waiting.unwrap().join().unwrap();
        let pid = Pid::from_raw(pid as i32).unwrap();
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let seen = waitid(WaitId::Pid(pid), options);
        assert_eq!(seen.err(), Some(rustix::io::Errno::CHILD));
    }

    /// A path that looks like a port, over ssh: the failure says how an agent at a port is named.
    #[test]
    fn what_looks_like_a_port_is_explained() {
        let text = |reach: Reach, path: &str, is_question: bool| {
            let node = NodeRequest {
                name: "n".into(),
                reach,
                sources: Vec::new(),
                sinks: vec![ObjectRequest {
                    object: Object::Path(path.into()),
                    rows: Vec::new(),
                    destination: None,
                    make_folder: false,
                }],
                up: None,
                down: None,
                interfaces: Vec::new(),
            };
            let failure = Failure {
                is_question,
                ..start::failed("refused".into())
            };
            with_port(&node, failure).text
        };
        let ssh = || Reach::Ssh("me@h".into());
        let hint = text(ssh(), "7421", false);
        assert!(
            hint.starts_with("refused\nme@h:7421 is the path 7421"),
            "{hint}"
        );
        assert!(hint.ends_with("write h:7421:/PATH"), "{hint}");
        assert_eq!(text(ssh(), "/7421", false), "refused");
        assert_eq!(text(ssh(), "74210", false), "refused");
        assert_eq!(text(ssh(), "7421", true), "refused");
        assert_eq!(text(Reach::Local, "7421", false), "refused");
    }
}
