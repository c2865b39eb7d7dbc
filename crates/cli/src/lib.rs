//! The `ropewalk` program: its commands, and the parts of it that `ropewalk-bench` uses too.

mod agent;
mod agents;
mod check;
mod checksums;
mod choices;
mod copy;
mod deadline;
mod demo;
mod desk;
mod doctor;
mod endpoint;
pub mod escape;
mod filter;
mod habits;
mod help;
mod html;
mod http;
mod inputs;
mod job;
mod launch;
mod members;
mod metrics;
#[cfg(test)]
#[path = "../../../fuzz/mutate.rs"]
mod mutate;
mod numbers;
mod options;
mod page_file;
mod plan;
mod ports;
mod print;
mod progress;
mod put;
mod remains;
mod report;
mod run;
mod runtime;
mod runtime_folder;
mod screen;
mod serve;
mod service;
mod shuffle;
mod silence;
mod sources;
mod status;
mod stream;
pub mod sys;
pub mod token;
mod top;
mod transfer;
mod tree;
mod tunnel;
mod visible;
mod wildcards;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::{FromArgMatches as _, Parser, Subcommand};
use ropewalk_proto::codes::{EXIT_FAILED, EXIT_REFUSED, EXIT_USAGE};
use ropewalk_proto::report::ErrorKind;
use ropewalk_proto::version::version;

pub use crate::options::remembering_file;
use crate::wildcards::Asked;

/// Moves a data set from N machines to M machines as one flow
#[derive(Parser, Debug)]
#[command(name = "ropewalk", version = version(), after_long_help = EXIT_STATUS, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXIT_STATUS: &str = "\
Start here:
  ropewalk demo
      four writers and three readers on this machine, with real files
  ropewalk copy host:/data/set /tmp/set
      fetch a tree over ssh

Completion: `ropewalk completions bash > ~/.local/share/bash-completion/completions/ropewalk`; \
zsh and fish likewise.

Exit status: 0 done, 1 failed, 2 usage, 3 partial (some ranges had no holder left), 4 refused \
before anything moved, 130 interrupted.";

#[derive(Subcommand, Debug)]
enum Command {
    /// Copy files or trees between hosts
    Copy(Box<copy::CopyArgs>),
    /// Compare files or trees of any hosts by their contents; nothing is copied or changed
    Check(Box<check::CheckArgs>),
    /// Send a file, or part of one, to another host
    Put(Box<put::PutArgs>),
    /// Fetch a file, or part of one, from another host
    Get(Box<put::GetArgs>),
    /// Carry out a specification file
    Transfer(Box<transfer::TransferArgs>),
    /// Pass blocks through groups of processes on several hosts
    Stream(Box<stream::StreamArgs>),
    /// Deal the records of all nodes' files into partitions, by the hash of a key
    Shuffle(Box<shuffle::ShuffleArgs>),
    /// Forward TCP ports to another host's network, over all interfaces, as `ssh -L`
    Tunnel(Box<tunnel::TunnelArgs>),
    /// One process of a stream; for agents
    #[command(hide = true)]
    Stage,
    /// The place of a process of a stream, or of an agent; for mpirun
    #[command(hide = true)]
    Rank(stream::RankArgs),
    /// Show which node would send what to which, and how long it would take; nothing moves
    Plan(plan::PlanArgs),
    /// Serve this host's folders to masters that hold a token
    Agent(agent::AgentArgs),
    /// Measure hosts and the paths between them: what a copy will take, what binds it, what to change
    Doctor(doctor::DoctorArgs),
    /// Show which standing agents answer, and what they do
    Agents(agents::AgentsArgs),
    /// Carry out transfers that are handed over with --detach, from a queue that survives crashes
    Serve(serve::ServeArgs),
    /// Show the queue of `serve`, wait for jobs, or cancel them
    Queue(serve::queue::QueueArgs),
    /// Show running transfers, or what ended ones have left at a destination
    Status(status::StatusArgs),
    /// Watch running transfers, here or on other hosts: rates, and what holds them back
    Top(top::TopArgs),
    /// Stop running transfers
    Cancel(status::CancelArgs),
    /// Remove what ended transfers have left at a destination
    Clean(remains::CleanArgs),
    /// Add nodes to a running transfer
    Join(members::JoinArgs),
    /// Release a node of a running transfer; the others take over
    Leave(members::LeaveArgs),
    /// Change the limit of a running transfer
    Limit(members::LimitArgs),
    /// Run the paper's example on this machine: four writers, three readers, real files
    Demo(demo::DemoArgs),
    /// Print the completion script of a shell
    Completions(help::CompletionsArgs),
    /// Write manual pages
    Man(help::ManArgs),
}

pub use crate::sys::take_name;
pub use ropewalk_proto::codes;

/// Runs the program with the arguments of this process.
#[must_use]
pub fn main() -> ExitCode {
    let status = command();
    ropewalk_master::flush_hosts_errors();
    status
}

fn command() -> ExitCode {
    if let Some(text) = help::asked_for_all(std::env::args_os().skip(1)) {
        sys::say(format_args!("{}", text.trim_end()));
        return ExitCode::SUCCESS;
    }
    sys::survive_file_limit();
    let parsed = help::command().try_get_matches();
    let parsed = parsed.and_then(|matches| Ok((Arguments::from_arg_matches(&matches)?, matches)));
    let (arguments, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return misused(&error),
    };
    match arguments.command {
        Command::Copy(args) => match args.detach.detach && !is_job() {
            true => detach(args.asked(), &args.output, || args.handed()),
            false => start(args.asked(), &args.output.with_page(&args.page)),
        },
        Command::Check(args) => start(args.asked(), &args.output),
        Command::Put(args) => start(
            args.request().map(Box::new).map(Asked::Transfer),
            &args.output(),
        ),
        Command::Get(args) => start(args.asked(), &args.output()),
        Command::Transfer(args) => transfer(&args, &matches),
        Command::Plan(args) => {
            sys::end_on_closed_pipe();
            end(plan::run(&args))
        }
        Command::Stream(args) => end(stream::run(&args)),
        Command::Shuffle(args) => end(shuffle::run(&args)),
        Command::Tunnel(args) => end(tunnel::run(&args)),
        Command::Stage => stream::stage(),
        Command::Rank(args) => stream::rank(&args),
        Command::Agent(args) => end(agent::run(&args, top::around)),
        Command::Doctor(args) => end(doctor::run(&args)),
        Command::Agents(args) => end(agents::run(&args)),
        Command::Serve(args) => end(serve::run(&args)),
        Command::Queue(args) => end(serve::queue::run(&args)),
        Command::Status(args) => end(status::status(&args)),
        Command::Top(args) => end(top::run(&args)),
        Command::Cancel(args) => end(status::cancel(&args)),
        Command::Clean(args) => end(remains::clean(&args)),
        Command::Join(args) => end(members::join(&args)),
        Command::Leave(args) => end(members::leave(&args)),
        Command::Limit(args) => end(members::limit(&args)),
        Command::Demo(args) => end(demo::run(&args)),
        Command::Completions(args) => help::print_completions(&args),
        Command::Man(args) => end(help::write_manual(&args)),
    }
}

/// Prints help that was asked for, or what is wrong on the command line: as JSON, too, where that was asked for.
fn misused(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return help::printed(error.print().and_then(|()| std::io::stdout().flush()));
    }
    let words: Vec<String> = std::env::args_os()
        .skip(1)
        .take_while(|word| word != "--")
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let command = words.first().map_or("", String::as_str);
    if habits::asks_for_version(error) {
        sys::say(format_args!("ropewalk {}", version()));
        return ExitCode::SUCCESS;
    }
    let habit = habits::sentence(command, error);
    if words.iter().any(|word| word == "--json") {
        let rendered = error.to_string();
        // What is missing is on the lines below; an empty one is before the usage.
        let lines: Vec<&str> = rendered.lines().map(str::trim).collect();
        let said = lines.split(|line| line.is_empty()).next();
        let said = said.unwrap_or_default().join(" ");
        let text = habit.as_deref();
        let text = text.unwrap_or(said.trim_start_matches("error: "));
        match command {
            "copy" | "check" | "put" | "get" | "transfer" => {
                print::print_refusal(ErrorKind::Usage, text);
            }
            "stream" | "shuffle" => stream::print_refusal(0, ErrorKind::Usage, text),
            "tunnel" => tunnel::print_refusal("", ErrorKind::Usage, text),
            _ => {}
        }
    }
    match habit {
        Some(habit) => eprintln!("ropewalk: {}", escape::line(&habit)),
        // Where even standard error cannot be written, the status says it.
        None => drop(error.print()),
    }
    ExitCode::from(EXIT_USAGE)
}

/// Runs a request. What keeps it from being made is wrong on the command line, save a bad specification.
fn start(asked: Result<Asked>, output: &options::OutputArgs) -> ExitCode {
    match asked {
        Ok(asked) => match run::run(asked, output) {
            Err(error) if error.is::<Usage>() => misuse(&error, output),
            outcome => end(outcome),
        },
        Err(error) if error.is::<transfer::BadSpec>() => {
            if output.json {
                print::print_refusal(ErrorKind::Specification, &error.to_string());
            }
            end(Err(error))
        }
        Err(error) => misuse(&error, output),
    }
}

/// Carries a specification out: where its `master` row says, or here, or later.
fn transfer(args: &transfer::TransferArgs, matches: &clap::ArgMatches) -> ExitCode {
    let read = args.text().and_then(|text| {
        let spec = args.parse(&text)?;
        let request = args.request(&spec)?;
        Ok((text, spec, request))
    });
    let (text, spec, request) = match read {
        Ok(read) => read,
        Err(error) => return start(Err(error), &args.output),
    };
    if let (Some(at), Some(token)) = (args.standing_master(&spec), request.options.token) {
        let given = matches.subcommand().map(|(_, given)| given);
        match serve::hand_over(args, given, &text, at, &token) {
            Ok(None) => {}
            Ok(Some(status)) => return status,
            Err(error) => {
                if args.output.json {
                    print::print_refusal(ErrorKind::Refused, &with_causes(&error));
                }
                return end(Err(error));
            }
        }
    }
    let asked = Ok(Asked::Transfer(Box::new(request)));
    match args.detach.detach && !is_job() {
        true => detach(asked, &args.output, || args.handed(text)),
        false => start(asked, &args.output.with_page(&args.page)),
    }
}

/// Whether `serve` has started this process: what it was given to hand over is carried out.
fn is_job() -> bool {
    matches!(job::as_job(), Ok(Some(_)) | Err(_))
}

/// Hands a request over to `serve`, once it is known to be one.
///
/// * `handed`: what the job needs, once the command has read its files.
fn detach(
    asked: Result<Asked<'_>>,
    output: &options::OutputArgs,
    handed: impl FnOnce() -> Result<inputs::Handed>,
) -> ExitCode {
    match asked.and_then(|asked| Ok((handed()?, asked))) {
        Ok((handed, asked)) => {
            let submitted = serve::submit(&asked, handed);
            if let (Err(error), true) = (&submitted, output.json) {
                print::print_refusal(ErrorKind::Unreachable, &with_causes(error));
            }
            end(submitted)
        }
        Err(error) => start(Err(error), output),
    }
}

/// Prints what is wrong on the command line.
fn misuse(error: &anyhow::Error, output: &options::OutputArgs) -> ExitCode {
    let text = with_causes(error);
    if output.json {
        let first = text.lines().next().unwrap_or_default();
        print::print_refusal(ErrorKind::Usage, first);
    }
    eprintln!("ropewalk: {}", escape::lines(&text));
    ExitCode::from(EXIT_USAGE)
}

/// An error and its causes, each once: some errors say their cause themselves.
#[must_use]
pub fn with_causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text += &format!(": {cause}");
        }
    }
    text
}

/// What is wrong on the command line itself, found out while it is carried out.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
pub struct Usage(pub anyhow::Error);

/// What is asked of a started agent is not there, or may not be used: the same request fails again.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
pub(crate) struct Unusable(pub anyhow::Error);

fn end(result: Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        if let Some(bad) = error.downcast_ref::<transfer::BadSpec>() {
            eprintln!("{bad}");
            return ExitCode::from(EXIT_REFUSED);
        }
        eprintln!("ropewalk: {}", escape::lines(&with_causes(&error)));
        ExitCode::from(if error.is::<Usage>() {
            EXIT_USAGE
        } else if error.is::<Unusable>() {
            EXIT_REFUSED
        } else {
            EXIT_FAILED
        })
    })
}
