//! `stream`: blocks through groups of processes on all nodes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use ropewalk_master::request::{NodeRequest, Object, ObjectRequest, Reach};
use ropewalk_master::{Cancel, StageProgram, StreamEvent, StreamRequest};
use ropewalk_model::Bytes;
use ropewalk_proto::codes::EXIT_USAGE;
use ropewalk_proto::control::DealKind;
use ropewalk_proto::report::ErrorKind;
use ropewalk_proto::stage::report::{StageReport, StreamReport};
use ropewalk_proto::stage::{GROUPS_MAX, group_name, group_of};
use tokio::sync::mpsc;

use crate::desk::{Answer, Carried, Desk, Kind, places};
use crate::endpoint::{self, Side};
use crate::escape;
use crate::options::{OutputArgs, ReachArgs};
use crate::run::until_ended;
use crate::runtime::runtime;
use crate::sys;

mod processes;
mod show;

pub(crate) use show::print_refusal;

pub(crate) use self::processes::{ProcessArgs, block};
use self::show::Show;

/// In a path, the number of the node.
const NODE_MARK: &str = "{node}";

/// Arguments of `ropewalk stream`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct StreamArgs {
    /// Hosts, each a node of the stream, named as in `copy`: b, me@b, b[1-4], b:7420 (a running agent), localhost
    ///
    /// localhost needs no ssh and may be named several times
    #[arg(value_name = "HOST", required = true)]
    hosts: Vec<String>,

    /// Groups of processes, 2 to 64: A makes or reads blocks, the last drops or writes them
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=i64::from(GROUPS_MAX)))]
    groups: u32,

    /// Length of a block: 64 bytes to 16 MiB
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = block)]
    block: Bytes,

    /// Bytes that A makes on each node: zeros
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "1GiB",
        conflicts_with = "from"
    )]
    size: Bytes,

    /// File that A reads on each node, in order; {node} in it is the node's number, from 1
    #[arg(long, value_name = "PATH")]
    from: Option<OsString>,

    /// File that the last group writes on each node; {node} as in --from
    #[arg(long, value_name = "PATH")]
    to: Option<OsString>,

    /// How blocks are dealt to the next group
    #[arg(long, value_name = "HOW", default_value = "random")]
    deal: DealArg,

    /// Random deals are the same for the same number
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Blocks from group A to group B stay on their node; repeat for other neighbours
    #[arg(long, value_name = "A-B", value_parser = local)]
    local: Vec<u32>,

    /// Group B gives its blocks to this command, and sends on what that writes; repeat for other groups
    ///
    /// For the shell of each node; A's command only writes, that of the last group only reads. ROPEWALK_NODE is the node's
    /// number, ROPEWALK_STAGE the group. On standard input and output a block is its length (4 bytes, little endian) and its content. A
    /// command has to read all of its input: write B='head -c 99; cat >/dev/null' where it needs a part
    #[arg(long, value_name = "B=COMMAND", value_parser = program)]
    exec: Vec<Program>,

    /// Commands of --exec read and write lines, without lengths; blocks are whole lines, of files, too
    ///
    /// A line longer than --block is an error; a last line gets an end where it has none
    #[arg(long, requires = "exec")]
    lines: bool,

    #[command(flatten)]
    processes: ProcessArgs,

    #[command(flatten)]
    reaching: ReachArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

const EXAMPLES: &str = "\
One process of each group runs on each host. Each process merges what arrives at random and deals it
at random (or by key: the first 16 bytes of a block) to the next group on all hosts. Memory is bounded:
the slowest process slows all before it. Every block is checked where it arrives over a network
and where it is used, and at the end the accounts of all groups have to be equal: else the exit
status is 1.

Examples:
  ropewalk stream localhost localhost --groups 4
      eight processes on this host; zeros
  ropewalk stream 'n[1-8]' --groups 4 --from /data/in --to /data/out
      the files of eight hosts, dealt over all of them; /data/out appears when all is done
  ropewalk stream 'n[1-8]' --local C-D --groups 4 --from /data/in --to /data/out
      the process that writes is fed by its own node
  ropewalk stream n1 n2 --exec 'B=sed /^#/d' --lines --from /logs/all --to /logs/kept
      a program as a stage

Exit status: 0 done, 1 failed, 2 usage, 4 refused before anything moved, 130 interrupted.";

/// How blocks are dealt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DealArg {
    /// At random, each process of the group with the same chance
    Random,
    /// Blocks with the same first 16 bytes to the same process
    Keyed,
}

/// A group and its command.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    group: u32,
    command: String,
}

fn local(text: &str) -> Result<u32, String> {
    let groups = text
        .split_once('-')
        .map(|(one, other)| (group_of(one), group_of(other)));
    match groups {
        Some((Some(one), Some(other))) if one + 1 == other => Ok(one),
        _ => Err("name two neighbouring groups, as A-B".into()),
    }
}

fn program(text: &str) -> Result<Program, String> {
    let parts = text
        .split_once('=')
        .map(|(group, command)| (group_of(group), command));
    match parts {
        Some((Some(group), command)) if !command.trim().is_empty() => Ok(Program {
            group,
            command: command.to_owned(),
        }),
        _ => Err("write the group's letter and a command, as B='sort -u'".into()),
    }
}

/// A file on the node with this number.
fn path_on(path: &OsStr, number: usize) -> Vec<u8> {
    let (number, mark) = (number.to_string(), NODE_MARK.as_bytes());
    let (mut out, mut rest) = (Vec::new(), path.as_bytes());
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix(mark) {
            out.extend_from_slice(number.as_bytes());
            rest = after;
        } else {
            out.push(rest[0]);
            rest = &rest[1..];
        }
    }
    out
}

/// Refuses what nodes of one host would read twice.
pub(crate) fn check_sources(nodes: &[NodeRequest]) -> Result<()> {
    for (at, node) in nodes.iter().enumerate() {
        let mut same = nodes[..at].iter().filter(|other| other.reach == node.reach);
        if !node.sources.is_empty() && same.any(|other| other.sources == node.sources) {
            bail!(
                "two nodes of one host would read what --from names, and each part of it twice; put {{node}} into --from, which is the node's number"
            );
        }
    }
    Ok(())
}

impl StreamArgs {
    /// What the arguments describe.
    fn request(&self) -> Result<StreamRequest> {
        let reaches = reaches(&self.hosts)?;
        let mut nodes = Vec::new();
        for (number, reach) in (1..).zip(&reaches) {
            let file = |path: &Option<OsString>| {
                path.as_ref()
                    .map(|path| object(reach, path, number))
                    .transpose()
            };
            nodes.push(NodeRequest {
                sources: file(&self.from)?.into_iter().collect(),
                sinks: file(&self.to)?.into_iter().collect(),
                ..NodeRequest::without_part(name(&reaches, number - 1), reach.clone())
            });
        }
        self.check(&nodes)?;
        check_sources(&nodes)?;
        let buffers = self.processes.buffers(nodes.len(), self.block)?;
        let options = self.processes.options(&self.reaching, &nodes)?;
        let programs = self.exec.iter().map(|program| StageProgram {
            group: program.group,
            command: program.command.clone().into_bytes(),
            lines: self.lines,
        });
        Ok(StreamRequest {
            programs: programs.collect(),
            nodes,
            options,
            groups: self.groups,
            block: self.block.0,
            length: self.size.0,
            buffers,
            seed: self.seed,
            deal: match self.deal {
                DealArg::Random => DealKind::Random,
                DealArg::Keyed => DealKind::Keyed,
            },
            local: self.local.clone(),
            shuffle: None,
            stall: self.processes.stall(),
        })
    }

    fn check(&self, nodes: &[NodeRequest]) -> Result<()> {
        let last = self.groups - 1;
        check_hosts(nodes)?;
        for &group in &self.local {
            if group >= last {
                bail!(
                    "--local {}-{}: there are {} groups, A to {}",
                    group_name(group),
                    group_name(group + 1),
                    self.groups,
                    group_name(last)
                );
            }
        }
        self.check_programs()
    }

    fn check_programs(&self) -> Result<()> {
        let last = self.groups - 1;
        for (at, program) in self.exec.iter().enumerate() {
            let name = group_name(program.group);
            if program.group > last {
                bail!(
                    "--exec {name}: there are {} groups, A to {}",
                    self.groups,
                    group_name(last)
                );
            }
            let file = match program.group {
                0 => self.from.as_ref().map(|_| "--from"),
                group if group == last => self.to.as_ref().map(|_| "--to"),
                _ => None,
            };
            if let Some(option) = file {
                bail!(
                    "--exec {name} and {option} exclude each other: a group has a program or a file"
                );
            }
            if self.exec[..at]
                .iter()
                .any(|other| other.group == program.group)
            {
                bail!("--exec {name} is given twice; a group has one command");
            }
        }
        Ok(())
    }
}

/// Where the nodes are.
pub(crate) fn reaches(hosts: &[String]) -> Result<Vec<Reach>> {
    let mut reaches = Vec::new();
    for host in hosts {
        if host == "localhost" {
            reaches.push(Reach::Local);
            continue;
        }
        if host.contains('/') {
            bail!("`{host}` is a path; name hosts here, and files with --from and --to");
        }
        // What stands before the path of a copy's destination.
        let text = OsString::from_vec(format!("{host}:null:").into_bytes());
        let ends = endpoint::parse(&text, Side::Destination)
            .map_err(|error| anyhow::anyhow!("{}", error.to_string().replace(":null:", "")))?;
        reaches.extend(ends.into_iter().map(|end| end.reach));
    }
    Ok(reaches)
}

/// Whether each node has an agent and what it writes for itself.
pub(crate) fn check_hosts(nodes: &[NodeRequest]) -> Result<()> {
    for (at, node) in nodes.iter().enumerate() {
        let is_attached = matches!(node.reach, Reach::Attached { .. });
        if is_attached && nodes[..at].iter().any(|other| other.reach == node.reach) {
            bail!("the agent {} is named twice; name it once", node.name);
        }
        let mut same = nodes[..at].iter().filter(|other| other.reach == node.reach);
        if !node.sinks.is_empty() && same.any(|other| other.sinks == node.sinks) {
            bail!(
                "two processes of one host would write to one place; put {NODE_MARK} into --to, which is the node's number"
            );
        }
    }
    Ok(())
}

/// What nodes are called in reports: hosts, and numbers where one is named several times.
pub(crate) fn name(reaches: &[Reach], at: usize) -> String {
    let of = |reach: &Reach| match reach {
        Reach::Local => "localhost".to_owned(),
        Reach::Ssh(_) | Reach::Launched(_) => reach.host().unwrap_or_default().to_owned(),
        Reach::Attached { host, port } => format!("{host}:{port}"),
    };
    let name = of(&reaches[at]);
    let count = reaches[..=at]
        .iter()
        .filter(|reach| of(reach) == name)
        .count();
    let is_alone = reaches.iter().filter(|reach| of(reach) == name).count() == 1;
    if is_alone {
        name
    } else {
        format!("{name} {count}")
    }
}

/// What a node reads or writes.
pub(crate) fn object(reach: &Reach, path: &OsStr, number: usize) -> Result<ObjectRequest> {
    let mut path = path_on(path, number);
    if path.is_empty() {
        bail!("--from and --to are empty; give paths");
    }
    if *reach == Reach::Local {
        let absolute = std::path::absolute(Path::new(OsStr::from_bytes(&path)));
        path = absolute
            .context("the working folder cannot be found")?
            .into_os_string()
            .into_vec();
    }
    Ok(ObjectRequest {
        object: Object::Path(path),
        rows: Vec::new(),
        destination: None,
        make_folder: false,
    })
}

/// Runs a stream, shows it, and prints its report.
pub(crate) fn run(args: &StreamArgs) -> Result<ExitCode> {
    carry(args.request(), args.block, &args.output)
}

/// Carries out what arguments describe, and prints its report.
pub(crate) fn carry(
    request: Result<StreamRequest>,
    block: Bytes,
    output: &OutputArgs,
) -> Result<ExitCode> {
    let request = match request {
        Ok(request) => request,
        Err(error) => {
            let text = crate::with_causes(&error);
            if output.json {
                print_refusal(block.0, ErrorKind::Usage, &text);
            }
            eprintln!("ropewalk: {}", escape::lines(&text));
            return Ok(ExitCode::from(EXIT_USAGE));
        }
    };
    let runtime = runtime()?;
    let status = runtime.block_on(carry_out(request, output));
    runtime.shutdown_background();
    status
}

async fn carry_out(request: StreamRequest, output: &OutputArgs) -> Result<ExitCode> {
    let cancel = Cancel::new();
    let (events, incoming) = mpsc::unbounded_channel();
    let show = Show::new(&request, output);
    let subject = Answer {
        kind: match request.shuffle {
            Some(_) => Kind::Shuffle,
            None => Kind::Stream,
        },
        from: places(&request.nodes, |node| &node.sources),
        to: places(&request.nodes, |node| &node.sinks),
        ..Answer::default()
    };
    let desk = Desk::of_other(subject, cancel.clone(), output.quiet);
    let notice = move |event: &StreamEvent| match (&desk, event) {
        (Some(desk), StreamEvent::Started { stream }) => desk.name(stream),
        (Some(desk), StreamEvent::Progress { stages, .. }) => {
            desk.change(|state| state.carried = Some(carried(stages)));
        }
        _ => {}
    };
    let running = ropewalk_master::stream(request, events, cancel.clone());
    let last = |show: Show, report: StreamReport| show.end(&report);
    until_ended(running, incoming, &cancel, notice, show, last).await
}

/// What `ropewalk status` says of a stream: what went in, and what came out.
fn carried(stages: &[StageReport]) -> Carried {
    let last = stages.last();
    Carried {
        sent_bytes: stages.first().map_or(0, |stage| stage.sent_bytes),
        received_bytes: last.map_or(0, |stage| stage.received_bytes),
        blocks: last.map(|stage| stage.received_blocks),
        ..Carried::default()
    }
}

/// Arguments of `ropewalk rank`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RankArgs {
    /// The stream or transfer
    id: String,

    /// Processes of each node
    each: u32,

    /// The library of MPI
    library: PathBuf,

    /// Agents of all nodes
    #[arg(required = true)]
    agents: Vec<String>,
}

/// The place of a process of a stream, or of a node of a transfer, started by mpirun.
pub(crate) fn rank(args: &RankArgs) -> ExitCode {
    sys::ignore_notice();
    match ropewalk_stage::join(&args.id, args.each, &args.agents, &args.library) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("ropewalk: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// One process of a stream, started by an agent.
pub(crate) fn stage() -> ExitCode {
    match ropewalk_stage::run() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<StreamRequest> {
        let command = StreamArgs::augment_args(clap::Command::new("stream"));
        let matches = command.try_get_matches_from([&["stream"], words].concat())?;
        <StreamArgs as clap::FromArgMatches>::from_arg_matches(&matches)?.request()
    }

    /// Hosts are named as in `copy`; this one may be named twice, and files then differ by the node's number.
    #[test]
    fn hosts_and_files_are_read() {
        let request = parse(&[
            "localhost",
            "localhost",
            "n[1-2]",
            "--from",
            "/in{node}",
            "--to",
            "/out{node}",
        ])
        .unwrap();
        let names: Vec<&str> = request
            .nodes
            .iter()
            .map(|node| node.name.as_str())
            .collect();
        assert_eq!(names, ["localhost 1", "localhost 2", "n1", "n2"]);
        assert_eq!(
            request.nodes[1].sources[0].object,
            Object::Path(b"/in2".to_vec())
        );
        assert_eq!(
            request.nodes[3].sinks[0].object,
            Object::Path(b"/out4".to_vec())
        );
        assert_eq!(
            (request.groups, request.block, request.buffers),
            (3, 64 << 10, 8)
        );
    }

    /// What cannot be meant is refused with what to write instead.
    #[test]
    fn slips_are_named() {
        for (words, text) in [
            (&["localhost", "localhost", "--to", "/x"][..], "{node}"),
            (&["/a"], "name hosts"),
            (&["localhost", "--local", "C-D"], "A to C"),
            (&["localhost", "--local", "A-C"], "neighbouring"),
            (&["localhost", "--exec", "D=cat"], "A to C"),
            (
                &["localhost", "--exec", "C=cat", "--to", "/x"],
                "exclude each other",
            ),
            (&["localhost", "--exec", "cat"], "letter"),
            (
                &["localhost", "--exec", "B=cat", "--exec", "B=cat"],
                "twice",
            ),
            (
                &["localhost", "--block", "4MiB", "--memory", "7MiB"],
                "fewer than two",
            ),
            (&["localhost", "--memory", "5GiB"], "4 GiB or less"),
            (&["n[1-1025]"], "1025 nodes are more than 1024"),
            (&["localhost", "--block", "63"], "64 bytes to 16 MiB"),
            (&["localhost", "--groups", "1"], "2..=64"),
            (&["n1", "localhost", "--lane", "mpi"], "name localhost"),
            (
                &["localhost", "--lane", "mem"],
                "auto, tcp, unix, shm, mpi, rbudp or rapid",
            ),
            (&["localhost", "--lane", "rbudp"], "--rate 1.6Gbit"),
            (
                &["localhost", "--lane", "tcp", "--rate", "1Gbit"],
                "--lane rapid",
            ),
        ] {
            let error = parse(words).unwrap_err().to_string();
            assert!(error.contains(text), "{words:?}: {error}");
        }
    }
}
