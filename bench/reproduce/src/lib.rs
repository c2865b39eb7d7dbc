//! Makes the figures: tables as text and JSON, plots as SVG, with the papers' values, ours and the bounds.
//!
//! ```text
//!  figures/*  what is run and what the table says        one file each
//!      │
//!  scenario   a transfer as data: nodes, access, changes  changed  the least time of a network that changes
//!  simulated  the same in virtual time
//!  bench      keeps runs, resumes, remaining time        runs/<figure>/runs.jsonl, table.txt, table.json, *.svg
//!  ropewalk   standing agents, master command, report    iperf  plain TCP beside it
//!  page       BENCHMARKS.md from results
//!  process    children: deadline, output, processor time
//! ```
//!
//! Not part of what users install. It measures and never asserts a time; contents are compared where a figure
//! is about them.

mod bench;
mod changed;
mod congestion;
mod device;
mod distant;
mod figures;
mod iperf;
mod machine;
mod movers;
mod network;
mod page;
mod process;
mod ropewalk;
mod scenario;
mod simulated;
mod stats;
mod sys;
mod table;

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};

pub use crate::page::page;

use crate::bench::Settings;
use crate::figures::{
    access, causes, composition, control, events, faults, figure2, heterogeneity, memory,
    multisocket, munisocket, own_parts, peers, pressure, rails, rapid, relays, scale, small_files,
    streaming, striping, traps, trees, trunk, tunnel, wan,
};

/// Longer than all figures take.
const WAIT_ALONE_MAX: Duration = Duration::from_secs(3 * 3600);

/// Arguments of `ropewalk-bench reproduce`.
#[derive(Args, Clone, Debug)]
pub struct ReproduceArgs {
    #[command(subcommand)]
    command: Figure,

    #[command(flatten)]
    options: Options,
}

#[derive(Args, Clone, Debug)]
struct Options {
    /// Folder for runs, tables and plots
    #[arg(long, value_name = "DIR", default_value = "runs", global = true)]
    out: PathBuf,

    /// The program under test [default: the one beside this program, else target/release/ropewalk]
    #[arg(long, value_name = "PATH", global = true)]
    ropewalk: Option<PathBuf>,

    /// Small sizes and few rounds
    #[arg(long, global = true)]
    quick: bool,

    /// Run again what has been run; old runs are put aside
    #[arg(long, global = true)]
    fresh: bool,

    /// Run, again, the points whose name contains this text, and no others
    #[arg(long, value_name = "TEXT", global = true, conflicts_with = "fresh")]
    only: Option<String>,

    /// Precedence over other sessions of a shared machine, from -20 (most) to 19; needs root and the kernel's autogroups
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i8).range(-20..=19), global = true)]
    session_nice: Option<i8>,
}

#[derive(Subcommand, Clone, Debug)]
enum Figure {
    /// The Composite Endpoint Protocol's own figures, in the lab
    Cep {
        /// 4 and 5: composition of equal pairs (rate, efficiency); 6: slow and fast nodes; 7: windows of access
        #[arg(long, value_parser = clap::value_parser!(u8).range(4..=7))]
        figure: u8,
    },
    /// One pair on loopback beside iperf3 and other movers
    Peers,
    /// The multisocket test on loopback, 1 to 1000 connections, beside iperf3
    Multisocket,
    /// Streams through groups of processes: blocks, nodes, processes a node, beside bare chains; several nodes in the lab
    Streaming,
    /// Streams whose last process on one node is slow: rates and memory of all processes
    Pressure,
    /// Messages over several interfaces, put and get, failing rails, competing traffic, in the lab
    Munisocket,
    /// Peak resident memory by lanes, prefetch and nodes
    Memory,
    /// Control messages and bytes per node
    Control,
    /// Senders killed at half way, in the lab
    Faults,
    /// Several interfaces between two hosts, in the lab
    Rails,
    /// Transfers that one thing limits, and what the report, its page and `doctor` name, in the lab
    Causes,
    /// Trees of small files and one small file, beside cp, rsync and scp, partly in the lab
    SmallFiles,
    /// Four senders to four receivers that want a quarter each, beside sixteen iperf3 at once, in the lab
    OwnParts,
    /// Copies of one file to 1 to 16 receivers that hand bytes on, beside BitTorrent and multicast; over a trunk, between
    /// nodes that differ, and with receivers that fail, in the lab
    Relays,
    /// TCP connections through a tunnel over two interfaces, and pauses when one goes silent, in the lab
    Tunnel,
    /// Rate-based UDP that watches the receiver: the RAPID paper's Tables 1 and 2, Figures 1, 2 and 5 to 8, in the lab
    Rapid,
    /// The coordinated striping paper's Figures 1 and 3 to 14, in the packet simulator
    Striping,
    /// Holdings that mislead proportional shares, in the lab
    Traps,
    /// A sender slows, a receiver pauses, nodes join and die at half way, in the lab
    Events,
    /// The specification file of the paper's Figure 2, in the lab
    Figure2,
    /// A real tree and a large file over ssh, from three hosts to two, in the lab
    Trees,
    /// The lab's wide-area trunk itself: throughput, TCP over it, delay, lateness, processor time
    Trunk,
    /// Streams over the wide-area trunk: tuned, beside every fixed number and the packet simulator, in the lab
    Wan,
    /// Plans for up to 100,000 nodes, transfers between as many in virtual time, packet events a second
    Scale,
    /// Everything
    All,
    /// One run of `scale`
    #[command(hide = true)]
    ScalePoint(scale::PointArgs),
    /// One end of a lane, for `rapid`
    #[command(hide = true)]
    LaneEnd(rapid::EndArgs),
    /// One process of a bare chain, for `streaming`
    #[command(hide = true)]
    ChainLink(streaming::LinkArgs),
    /// A program that reads slowly, for `pressure`
    #[command(hide = true)]
    SlowReader(pressure::ReaderArgs),
}

/// Makes a figure, or all of them; exit status 1 where a point is missing.
#[must_use]
pub fn run(arguments: &ReproduceArgs) -> ExitCode {
    match make_figures(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("reproduce: {error:#}");
            ExitCode::from(1)
        }
    }
}

fn make_figures(arguments: &ReproduceArgs) -> Result<bool> {
    if let Figure::LaneEnd(end) = &arguments.command {
        return rapid::run_end(end).map(|()| true);
    }
    if let Figure::ChainLink(link) = &arguments.command {
        return streaming::run_link(link).map(|()| true);
    }
    if let Figure::SlowReader(reader) = &arguments.command {
        return pressure::run_reader(reader).map(|()| true);
    }
    if let Figure::ScalePoint(point) = &arguments.command {
        return scale::run_point(point).map(|()| true);
    }
    let options = &arguments.options;
    if let Some(nice) = options.session_nice {
        // With autogroups, niceness of a process acts within its session only.
        std::fs::write("/proc/self/autogroup", nice.to_string())
            .context("cannot set the session's niceness")?;
    }
    let settings = Settings {
        out: options.out.clone(),
        ropewalk: find_ropewalk(options.ropewalk.as_deref())?,
        quick: options.quick,
        fresh: options.fresh,
        only: options.only.clone(),
    };
    let _alone = wait_alone()?;
    if !matches!(arguments.command, Figure::All) {
        return make(&arguments.command, &settings);
    }
    let began = Instant::now();
    let mut is_complete = true;
    let all = [
        Figure::Figure2,
        Figure::Cep { figure: 4 },
        Figure::Cep { figure: 6 },
        Figure::Cep { figure: 7 },
        Figure::Traps,
        Figure::Events,
        Figure::Memory,
        Figure::Control,
        Figure::Scale,
        Figure::Faults,
        Figure::Rails,
        Figure::Relays,
        Figure::Causes,
        Figure::SmallFiles,
        Figure::OwnParts,
        Figure::Tunnel,
        Figure::Rapid,
        Figure::Striping,
        Figure::Munisocket,
        Figure::Trees,
        Figure::Peers,
        Figure::Multisocket,
        Figure::Streaming,
        Figure::Pressure,
        Figure::Trunk,
        Figure::Wan,
    ];
    for figure in &all {
        // One figure that cannot be made here (no root, no ssh) does not keep the others from being made.
        is_complete &= make(figure, &settings).unwrap_or_else(|error| {
            eprintln!("reproduce: {figure:?}: {error:#}");
            false
        });
    }
    println!("all figures: {:.0} s", began.elapsed().as_secs_f64());
    Ok(is_complete)
}

fn make(figure: &Figure, settings: &Settings) -> Result<bool> {
    match figure {
        Figure::Cep { figure: 4 | 5 } => composition::run(settings),
        Figure::Cep { figure: 7 } => access::run(settings),
        Figure::Cep { .. } => heterogeneity::run(settings),
        Figure::Peers => peers::run(settings),
        Figure::Multisocket => multisocket::run(settings),
        Figure::Streaming => streaming::run(settings),
        Figure::Pressure => pressure::run(settings),
        Figure::Munisocket => munisocket::run(settings),
        Figure::Memory => memory::run(settings),
        Figure::Control => control::run(settings),
        Figure::Faults => faults::run(settings),
        Figure::Rails => rails::run(settings),
        Figure::Relays => relays::run(settings),
        Figure::Causes => causes::run(settings),
        Figure::SmallFiles => small_files::run(settings),
        Figure::OwnParts => own_parts::run(settings),
        Figure::Tunnel => tunnel::run(settings),
        Figure::Rapid => rapid::run(settings),
        Figure::Striping => striping::run(settings),
        Figure::Traps => traps::run(settings),
        Figure::Events => events::run(settings),
        Figure::Figure2 => figure2::run(settings),
        Figure::Trees => trees::run(settings),
        Figure::Trunk => trunk::run(settings),
        Figure::Wan => wan::run(settings),
        Figure::Scale => scale::run(settings),
        Figure::All
        | Figure::LaneEnd(_)
        | Figure::ChainLink(_)
        | Figure::SlowReader(_)
        | Figure::ScalePoint(_) => bail!("not a figure by itself"),
    }
}

/// Waits until no other `reproduce` measures on this machine: two at once would measure each other.
fn wait_alone() -> Result<UnixListener> {
    // An abstract name: it goes with its process, and needs no folder that both can write.
    let name =
        SocketAddr::from_abstract_name(b"ropewalk-reproduce").context("no name for the lock")?;
    let until = Instant::now() + WAIT_ALONE_MAX;
    for attempt in 0_u32.. {
        match UnixListener::bind_addr(&name) {
            Ok(lock) => return Ok(lock),
            Err(error) if error.kind() != ErrorKind::AddrInUse => {
                return Err(error).context("cannot lock");
            }
            Err(_) if Instant::now() > until => break,
            Err(_) if attempt == 0 => eprintln!("reproduce: waiting for another one to end"),
            Err(_) => {}
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    bail!(
        "another `reproduce` has been measuring for {} minutes; end it first",
        WAIT_ALONE_MAX.as_secs() / 60
    )
}

/// The program under test; hosts of a lab need its absolute path.
fn find_ropewalk(given: Option<&std::path::Path>) -> Result<PathBuf> {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.join("ropewalk")));
    let candidates: Vec<PathBuf> = match given {
        Some(path) => vec![path.to_owned()],
        None => beside
            .into_iter()
            .chain([PathBuf::from("target/release/ropewalk")])
            .collect(),
    };
    let found = candidates.iter().find(|path| path.is_file());
    let Some(found) = found else {
        let tried: Vec<String> = candidates
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        bail!(
            "no ropewalk program at {}; run `cargo build --release -p ropewalk-cli`, or give --ropewalk PATH",
            tried.join(" or ")
        );
    };
    found
        .canonicalize()
        .with_context(|| format!("cannot use {}", found.display()))
}
