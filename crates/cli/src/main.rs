//! The `ropewalk` command.

mod agent;
mod copy;
mod demo;
mod desk;
mod endpoint;
mod options;
mod plan;
mod progress;
mod run;
mod status;
mod summary;
mod sys;
mod token;
mod transfer;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Moves a data set from N machines to M machines as one flow
#[derive(Parser, Debug)]
#[command(name = "ropewalk", version, after_long_help = EXIT_STATUS, max_term_width = 100)]
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

Exit status: 0 done, 1 failed, 2 usage, 3 partial (some ranges had no holder left), 4 refused
before anything moved, 130 interrupted.";

#[derive(Subcommand, Debug)]
enum Command {
    /// Copy files or trees between hosts
    Copy(Box<copy::CopyArgs>),
    /// Carry out a specification file
    Transfer(Box<transfer::TransferArgs>),
    /// Say who would send what to whom, and how long it would take; nothing moves
    Plan(plan::PlanArgs),
    /// Serve this host's folders to masters that know a token
    Agent(agent::AgentArgs),
    /// Show running transfers
    Status(status::StatusArgs),
    /// Stop running transfers
    Cancel(status::CancelArgs),
    /// Run the paper's example on this machine: four writers, three readers, real files
    Demo(demo::DemoArgs),
}

/// Exit status of a specification that cannot be read: nothing was started.
const REFUSED: u8 = 4;

/// Exit status of arguments that cannot be meant.
const USAGE: u8 = 2;

/// Exit status of everything else that went wrong.
const FAILED: u8 = 1;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.command {
        Command::Copy(args) => args.request().map_err(Usage::wrap).and_then(|request| run::run(request, &args.output)),
        Command::Transfer(args) => args.request().map_err(Usage::wrap).and_then(|request| run::run(request, &args.output)),
        Command::Plan(args) => {
            sys::end_on_closed_pipe();
            plan::run(&args)
        }
        Command::Agent(args) => agent::run(&args),
        Command::Status(args) => {
            sys::end_on_closed_pipe();
            status::status(&args)
        }
        Command::Cancel(args) => status::cancel(&args),
        Command::Demo(args) => demo::run(&args),
    };
    result.unwrap_or_else(|error| {
        if let Some(bad) = error.downcast_ref::<transfer::BadSpec>() {
            eprintln!("{bad}");
            return ExitCode::from(REFUSED);
        }
        eprintln!("ropewalk: {error:#}");
        ExitCode::from(if error.is::<Usage>() { USAGE } else { FAILED })
    })
}

/// Marks errors of the command line itself.
#[derive(Debug)]
struct Usage;

impl Usage {
    /// Everything that keeps a request from being made is wrong on the command line, save a bad specification.
    fn wrap(error: anyhow::Error) -> anyhow::Error {
        if error.is::<transfer::BadSpec>() { error } else { error.context(Self) }
    }
}

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cannot start")
    }
}
