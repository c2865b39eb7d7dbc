//! `sim`: TCP between two clusters, packet by packet (coordinated striping, section 4), in virtual time.

use std::fs::File;
use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use ropewalk_model::Bytes;
use ropewalk_tcp_sim::{RtoRule, Scenario};

use ropewalk_cli::codes::EXIT_USAGE;
use ropewalk_cli::sys;

mod grid;
mod output;
mod picture;
mod values;

use grid::Point;
use output::{Done, Printed};
use picture::Layout;
use values::{Count, Mix, Rate, Share, Switch, Time, Values};

/// Runs of one sweep; more would not fit a table.
const RUNS_MAX: usize = 100_000;

const BAR: &str = "sim [{wide_bar}] {pos}/{len} runs, {eta} left";

/// Arguments of `ropewalk-bench sim`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct SimArgs {
    /// Nodes of each cluster
    #[arg(long, value_name = "N", default_value = "1", value_parser = values::counts, help_heading = "Network")]
    nodes: Values<Count>,

    /// Connections of each node; they share its bytes in equal parts [default: 1, or what --flavour counts]
    #[arg(long, visible_alias = "streams", value_name = "N", value_parser = values::counts, help_heading = "Network")]
    stripes: Option<Values<Count>>,

    /// Rate of the trunk
    #[arg(long, value_name = "RATE", default_value = "100Mbit", value_parser = values::rates, help_heading = "Network")]
    bandwidth: Values<Rate>,

    /// Latency of the trunk, one way
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = values::times, help_heading = "Network")]
    latency: Values<Time>,

    /// Packets that a queue of the trunk holds, the one in transmission included
    #[arg(long, value_name = "N", default_value = "50", value_parser = values::counts, help_heading = "Network")]
    queue: Values<Count>,

    /// Probability that the trunk loses a packet on its way to the receivers
    #[arg(long, value_name = "P", default_value = "0", value_parser = values::shares, help_heading = "Network")]
    loss: Values<Share>,

    /// Rate between a node and its router
    #[arg(long, value_name = "RATE", default_value = "100Mbit", value_parser = values::rates, help_heading = "Network")]
    access_bandwidth: Values<Rate>,

    /// Latency between a node and its router, one way
    #[arg(long, value_name = "TIME", default_value = "0.1ms", value_parser = values::times, help_heading = "Network")]
    access_latency: Values<Time>,

    /// Packets that a queue of an access link holds, the sending node's own included
    #[arg(long, value_name = "N", default_value = "50", value_parser = values::counts, help_heading = "Network")]
    access_queue: Values<Count>,

    /// Network and connections from a file instead: lines `link A B RATE LATENCY [queue=N] [loss=P]` and
    /// `flow A B bytes=SIZE [streams=N] [flavour=NAME] [start=TIME]`. The way back of a link is as the way there and loses
    /// nothing, but for [back-rate=RATE] [back-latency=TIME] [back-queue=N] [back-loss=P]
    #[arg(long, value_name = "FILE", help_heading = "Network", conflicts_with_all = ["nodes", "stripes", "bandwidth", "latency", "queue", "loss", "access_bandwidth", "access_latency", "access_queue", "flavour", "bytes_per_node"])]
    topology: Option<PathBuf>,

    /// Congestion control: tahoe, reno, newreno, vegas or cubic; reno:4,vegas:4 mixes them on each node. Repeat to sweep
    #[arg(long, value_name = "MIX", default_value = "reno", value_parser = values::mix, help_heading = "TCP")]
    flavour: Vec<Mix>,

    /// Generation of TCP model that sets what is not given below: ns-2.1b8, ns-2.1b8-iw1 or ns-2.35
    #[arg(long, value_name = "NAME", default_value = "ns-2.1b8", value_parser = values::profile, value_delimiter = ',', help_heading = "TCP")]
    profile: Vec<String>,

    /// Greatest window in packets; 0: none
    #[arg(long, value_name = "N", default_value = "64", value_parser = values::counts, help_heading = "TCP")]
    window: Values<Count>,

    /// Slow start threshold at first, in packets [default: the window]
    #[arg(long, value_name = "N", value_parser = values::counts, help_heading = "TCP")]
    ssthresh: Option<Values<Count>>,

    /// Bytes of a data packet
    #[arg(long, value_name = "SIZE", default_value = "1000", value_parser = values::packet_sizes, help_heading = "TCP")]
    packet: Values<Bytes>,

    /// Bytes added to each data packet on the wire
    #[arg(long, value_name = "SIZE", value_parser = values::packet_sizes, help_heading = "TCP")]
    header: Option<Values<Bytes>>,

    /// Bytes of a SYN and of an acknowledgement
    #[arg(long, value_name = "SIZE", default_value = "40", value_parser = values::packet_sizes, help_heading = "TCP")]
    ack: Values<Bytes>,

    /// Packets that may go when the connection is open
    #[arg(long, value_name = "N", value_parser = values::counts, help_heading = "TCP")]
    initial_window: Option<Values<Count>>,

    /// Most that may go then if the SYN was lost
    #[arg(long, value_name = "N", default_value = "1", value_parser = values::counts, help_heading = "TCP")]
    initial_window_after_loss: Values<Count>,

    /// Duplicate acknowledgements that mean a loss
    #[arg(long, value_name = "N", default_value = "3", value_parser = values::counts, help_heading = "TCP")]
    duplicate_acks: Values<Count>,

    /// Whether all that was under way is sent again after a timeout (on) or only what acknowledgements show to be missing,
    /// a packet a round trip (off)
    #[arg(long, value_name = "WHEN", default_value = "on", value_parser = values::switch, help_heading = "TCP")]
    go_back_n: Switch,

    /// Least retransmission timeout
    #[arg(long, value_name = "TIME", value_parser = values::times, help_heading = "TCP")]
    rto_min: Option<Values<Time>>,

    /// Greatest retransmission timeout
    #[arg(long, value_name = "TIME", value_parser = values::times, help_heading = "TCP")]
    rto_max: Option<Values<Time>>,

    /// Retransmission timeout before the first sample, that of the SYN
    #[arg(long, value_name = "TIME", value_parser = values::times, help_heading = "TCP")]
    rto_initial: Option<Values<Time>>,

    /// Whether the least timeout holds after back-off (older) or before it (rfc2988)
    #[arg(long, value_name = "RULE", value_parser = values::rto_rule, help_heading = "TCP")]
    rto_rule: Option<RtoRule>,

    /// Clock tick in which round trips are measured
    #[arg(long, value_name = "TIME", value_parser = values::times, help_heading = "TCP")]
    tick: Option<Values<Time>>,

    /// Whether duplicate acknowledgements too few for a loss let a packet out each: on or off
    #[arg(long, value_name = "WHEN", value_parser = values::switch, help_heading = "TCP")]
    limited_transmit: Option<Switch>,

    /// Whether halving drops fractions of a packet (whole) or keeps them (exact)
    #[arg(long, value_name = "HOW", default_value = "exact", value_parser = values::halving, help_heading = "TCP")]
    halving: Switch,

    /// Longest time an acknowledgement waits for a second packet, without TIME 100ms; off: none waits
    #[arg(long, value_name = "TIME", default_value = "off", num_args = 0..=1, default_missing_value = "100ms", value_parser = values::delayed, help_heading = "TCP")]
    delayed_ack: values::Delay,

    /// Bytes that each node sends
    #[arg(long, value_name = "SIZE", default_value = "8000000", value_parser = values::sizes, help_heading = "Run")]
    bytes_per_node: Values<Bytes>,

    /// Starts are spread evenly over this time
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = values::times, help_heading = "Run")]
    jitter: Values<Time>,

    /// Of everything random; the same seed gives the same run
    #[arg(long, value_name = "N", default_value = "1", value_parser = values::counts, help_heading = "Run")]
    seed: Values<Count>,

    /// End of a run in simulated time
    #[arg(long, value_name = "TIME", default_value = "100s", value_parser = values::times, help_heading = "Run")]
    limit: Values<Time>,

    /// Runs at once [default: processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Run")]
    jobs: Option<u16>,

    /// One JSON object; a sweep has its runs in `runs`
    #[arg(long, help_heading = "Output")]
    json: bool,

    /// Comma-separated values, a line for each run
    #[arg(long, conflicts_with = "json", help_heading = "Output")]
    csv: bool,

    /// Draw the time over the parameter with most values; of one run: bytes sent and sent again over time
    #[arg(long, value_name = "FILE.svg", value_parser = svg, help_heading = "Output")]
    plot: Option<PathBuf>,

    /// Write window, threshold, acknowledged, highest sent, sent again and timeouts of every connection over time (one
    /// run only)
    #[arg(long, value_name = "FILE.csv", help_heading = "Output")]
    trace: Option<PathBuf>,

    /// Time between samples of --trace and --plot
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = values::time, help_heading = "Output")]
    trace_every: Time,
}

const EXAMPLES: &str = "\
Examples:
  ropewalk-bench sim --stripes 52
      the paper's single node at 100 Mbit/s, past the number of stripes that its own queue holds
  ropewalk-bench sim --nodes 8 --stripes 1..16 --bandwidth 10Mbit,100Mbit --latency 80ms --plot collapse.svg
      a sweep: ranges and lists may be given for any number (1..64/4 steps by 4)
  ropewalk-bench sim --flavour reno:4,vegas:4 --bandwidth 10Mbit --json
      flavours mixed on each node
  ropewalk-bench sim --loss 0.0001,0.01 --window 0 --rto-min 0.2s --bytes-per-node 50MB --seed 1..5
      random loss, no window limit, five seeds
  ropewalk-bench sim --stripes 2 --trace two.csv

Latency is one way. Full queues drop arriving packets. Connections begin with a SYN and end with the last
acknowledgement. Times are simulated.

Exit status: 0 done (also where the limit ended a run), 1 failed, 2 usage.";

/// What is to be run, and what tells it apart.
type Simulation = (Point, Scenario);

/// Simulates and prints.
pub(crate) fn run(args: &SimArgs) -> Result<ExitCode> {
    let (scenarios, layout) = match prepare(args) {
        Ok(prepared) => prepared,
        Err(error) => {
            eprintln!("ropewalk-bench: {error:#}");
            return Ok(ExitCode::from(EXIT_USAGE));
        }
    };
    if args.trace.is_some() || args.plot.is_some() {
        sys::survive_closed_pipe();
    }
    let began = Instant::now();
    let jobs = args.jobs.map(usize::from);
    let bar = bar(scenarios.len());
    let work = |(_, scenario): &Simulation| {
        let began = Instant::now();
        let outcome = scenario.run();
        outcome.map(|outcome| (outcome, began.elapsed().as_secs_f64()))
    };
    let outcomes = ropewalk_parallel::map(&scenarios, jobs, work, || bar.inc(1));
    bar.finish_and_clear();
    let mut done = Vec::new();
    for ((point, scenario), outcome) in scenarios.into_iter().zip(outcomes) {
        match outcome {
            Ok((outcome, wall_seconds)) => done.push(Done {
                point,
                payload_bytes: u64::from(scenario.packet_bytes),
                outcome,
                wall_seconds,
            }),
            Err(error) => {
                eprintln!("ropewalk-bench: {error}");
                return Ok(ExitCode::from(EXIT_USAGE));
            }
        }
    }
    let printed = Printed::new(&done, began.elapsed().as_secs_f64());
    let text = if args.json {
        serde_json::to_string_pretty(&printed.json())? + "\n"
    } else if args.csv {
        printed.csv()
    } else {
        printed.text()
    };
    // One that cannot be written costs none of the others.
    let results = [
        print(&text),
        args.trace
            .as_ref()
            .map_or(Ok(()), |path| write_trace(path, &done)),
        args.plot
            .as_ref()
            .zip(layout.as_ref())
            .map_or(Ok(()), |(path, layout)| draw(path, layout, &done)),
    ];
    results.into_iter().collect::<Result<()>>()?;
    Ok(ExitCode::SUCCESS)
}

fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // Whoever closes the pipe has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot print the results"),
    }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

fn write_trace(path: &Path, done: &[Done]) -> Result<()> {
    // `prepare` refuses several runs.
    let text = done.iter().map(|run| output::trace(&run.outcome));
    std::fs::write(path, text.collect::<String>()).with_context(|| cannot_write(path))
}

fn draw(path: &Path, layout: &Layout, done: &[Done]) -> Result<()> {
    picture::draw(path, layout, done).with_context(|| cannot_write(path))
}

/// A plot is SVG, whatever its name says.
fn svg(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let found = path.extension().map(|end| end.to_ascii_lowercase());
    match found {
        Some(end) if end != "svg" => Err(format!(
            "plots are SVG; name it {}",
            path.with_extension("svg").display()
        )),
        _ => Ok(path),
    }
}

/// Everything that can be known to be wrong before hours are spent on it.
fn prepare(args: &SimArgs) -> Result<(Vec<Simulation>, Option<Layout>)> {
    let scenarios = scenarios(args)?;
    for (_, scenario) in &scenarios {
        scenario.verify()?;
    }
    let points: Vec<&Point> = scenarios.iter().map(|(point, _)| point).collect();
    let layout = args.plot.as_ref().map(|_| picture::layout(&points));
    let layout = layout.transpose()?;
    for path in [&args.trace, &args.plot].into_iter().flatten() {
        check_writable(path).with_context(|| cannot_write(path))?;
    }
    Ok((scenarios, layout))
}

/// Whether a file can be made or written: what is there stays as it is, what is not there is not left behind.
fn check_writable(path: &Path) -> std::io::Result<()> {
    match File::options().write(true).create_new(true).open(path) {
        Ok(_) => std::fs::remove_file(path),
        // Opening a pipe would tell its reader that everything has come.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => match path.metadata() {
            Ok(there) if there.is_file() || there.is_dir() => {
                File::options().write(true).open(path).map(drop)
            }
            _ => Ok(()),
        },
        Err(error) => Err(error),
    }
}

/// Tells how many runs are done, on a terminal and where there are several.
fn bar(runs: usize) -> ProgressBar {
    if runs < 2 || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(runs as u64).with_style(style)
}

/// What is to be run, with what tells the runs apart.
fn scenarios(args: &SimArgs) -> Result<Vec<Simulation>> {
    let mut scenarios = Vec::new();
    match &args.topology {
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            for point in grid::points(args, RUNS_MAX)? {
                let (topology, flows) = ropewalk_tcp_sim::parse_topology(&text, point.packet_bytes)
                    .map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
                let scenario = point.with_network(topology, flows);
                scenarios.push((point, scenario));
            }
        }
        None => {
            for point in grid::points(args, RUNS_MAX)? {
                let scenario = point.scenario();
                scenarios.push((point, scenario));
            }
        }
    }
    let is_single = scenarios.len() == 1;
    if args.trace.is_some() && !is_single {
        bail!(
            "--trace is of one run, and these are {}: give each parameter one value",
            scenarios.len()
        );
    }
    if args.trace.is_some() || (args.plot.is_some() && is_single) {
        if args.trace_every.0 <= 0.0 {
            bail!("--trace-every must be more than 0");
        }
        for (_, scenario) in &mut scenarios {
            scenario.trace_seconds = Some(args.trace_every.0);
        }
    }
    Ok(scenarios)
}
