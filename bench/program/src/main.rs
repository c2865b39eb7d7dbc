//! The `ropewalk-bench` program: what measures, simulates and makes figures. What moves data is `ropewalk`.

#![forbid(unsafe_code)]

mod pingpong;
mod region;
mod sim;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use ropewalk_cli::codes::{EXIT_FAILED, EXIT_USAGE};
use ropewalk_cli::{Usage, escape, sys, with_causes};

/// Measures sockets, messages and transfers, and makes the papers' figures
#[derive(Parser, Debug)]
#[command(name = "ropewalk-bench", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Measure what some number of sockets carry together, from one process to another
    Multisocket(ropewalk_multisocket::MultisocketArgs),
    /// Measure round trips against message size: plain TCP and message sockets over several interfaces
    Pingpong(pingpong::PingPongArgs),
    /// Measure one-sided gets from four processes, beside message sockets and MPI
    Region(region::RegionArgs),
    /// Simulate TCP between two clusters, packet by packet: one run, or a sweep over any parameters
    Sim(Box<sim::SimArgs>),
    /// Make the figures of the papers again, with this machine's numbers beside theirs
    Reproduce(ropewalk_reproduce::ReproduceArgs),
    /// Print the page of measurements, BENCHMARKS.md, from the results of `reproduce`
    Page {
        /// The folder that `reproduce --out` wrote
        #[arg(long, value_name = "DIR", default_value = "bench/reproduce/results")]
        results: PathBuf,
    },
}

fn main() -> ExitCode {
    if let Some(status) = uncontrolled() {
        return status;
    }
    match Arguments::parse().command {
        Command::Multisocket(args) => ExitCode::from(ropewalk_multisocket::run(&args)),
        Command::Pingpong(args) => end(pingpong::run(&args)),
        Command::Region(args) => end(region::run(&args)),
        Command::Sim(args) => {
            sys::end_on_closed_pipe();
            end(sim::run(&args))
        }
        Command::Reproduce(args) => ropewalk_reproduce::run(&args),
        Command::Page { results } => end(ropewalk_reproduce::page(&results).map(|page| {
            print!("{page}");
            ExitCode::SUCCESS
        })),
    }
}

/// For `reproduce pressure`: the commands of `ropewalk` that a stream needs, with processes that have no flow control on datagrams.
fn uncontrolled() -> Option<ExitCode> {
    match std::env::args_os().nth(1)?.to_str()? {
        "stream" | "agent" => Some(ropewalk_cli::main()),
        "stage" => Some(match ropewalk_stage::run_with(ropewalk_stage::Flow::None) {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        }),
        _ => None,
    }
}

fn end(result: Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("ropewalk-bench: {}", escape::lines(&with_causes(&error)));
        ExitCode::from(if error.is::<Usage>() {
            EXIT_USAGE
        } else {
            EXIT_FAILED
        })
    })
}
