//! `top`: what transfers of this host or of others do now, on a terminal, as text, as JSON or as a page for a browser.
//!
//! What is shown is [`ropewalk_proto::top`]'s; where it is put on a screen is `layout`'s. Both are pure.

use std::ffi::OsString;
use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use ropewalk_proto::codes::{EXIT_FAILED, EXIT_PARTIAL};
use ropewalk_proto::top::TopReport;

use crate::options::ReachArgs;
use crate::runtime::runtime;
use crate::{Usage, sys};

mod gather;
mod guard;
mod layout;
mod live;
mod page;
mod terminal;
mod web;

use gather::Gatherer;
pub(crate) use gather::around;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);

/// Looks, each half a second after the last, until there are two answers of each agent, from which its rates follow.
const LOOKS_MAX: usize = 6;

/// Of text that is no screen, nothing is cut.
const UNBOUNDED: usize = 1 << 16;

/// Arguments of `ropewalk top`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct TopArgs {
    /// Hosts to ask: HOST or USER@HOST (over ssh), HOST:PORT (a standing agent), localhost; lists such as node[1-4] [default: this host]
    #[arg(value_name = "HOST")]
    hosts: Vec<OsString>,

    /// Print what runs and exit, as without a terminal
    #[arg(long, help_heading = "Output")]
    once: bool,

    /// One JSON object a second and line, on standard output; docs/json.md names the fields
    #[arg(long, help_heading = "Output")]
    json: bool,

    /// A page for browsers of this host, at ADDR:PORT; it prints the address with a token that opens the page [default: 127.0.0.1 and a
    /// free port]
    #[arg(
        long,
        value_name = "ADDR:PORT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "127.0.0.1:0",
        conflicts_with_all = ["once", "json"],
        help_heading = "Output"
    )]
    web: Option<String>,

    #[command(flatten)]
    reach: ReachArgs,
}

const EXAMPLES: &str = "\
On a terminal the screen is drawn again once a second; q or Ctrl-C leaves. It shows for each \
transfer, stream, shuffle and tunnel what it does and for how long, bytes, rate, time left, what \
held it back in the last seconds, and its nodes with their rates.

Of this host, and of hosts over ssh, it shows what this user's commands and agents do there, also \
for `serve`, and for commands of other hosts that started agents over ssh; not what other users \
do. A standing agent shows the transfers of all that hold its token. A transfer that several of \
these know of is shown once.

Examples:
  ropewalk top
      this host
  ropewalk top localhost store 'node[1-4]:7420'
      this host, a host over ssh, four standing agents
  ropewalk top --json --once
      one JSON object
  ropewalk top --web
      prints http://127.0.0.1:PORT/?token=... for a browser of this host; the page refreshes itself once a second
  ssh -t -L 8080:127.0.0.1:8080 store ropewalk top --web=127.0.0.1:8080
      the same of store, for a browser of this host

Exit status: 0 ended by q or Ctrl-C, or all hosts answered; with --once, or without a terminal, \
1 none did, 3 some did not; 2 usage.";

/// Shows what transfers do.
pub(crate) fn run(args: &TopArgs) -> Result<ExitCode> {
    let places = gather::places(&args.hosts).map_err(Usage)?;
    let options = args.reach.options(&gather::nodes(&places)).map_err(Usage)?;
    let listener = args.web.as_deref().map(web::listen).transpose()?;
    let runtime = runtime()?;
    let status = runtime.block_on(async {
        let gatherer = Gatherer::start(&places, &options).await;
        match listener {
            Some(listener) => web::serve(listener, gatherer).await,
            None => show(args, gatherer).await,
        }
    });
    // A process that does not answer must not hold the command.
    runtime.shutdown_background();
    status
}

async fn show(args: &TopArgs, mut gatherer: Gatherer) -> Result<ExitCode> {
    let is_screen = std::io::stdout().is_terminal() && !args.once && !args.json;
    if is_screen {
        return live::show(gatherer).await;
    }
    let once = args.once || !args.json;
    let mut report = gatherer.look().await;
    for _ in 0..LOOKS_MAX {
        if !once || !gatherer.needs_more() {
            break;
        }
        tokio::time::sleep(EVERY / 2).await;
        report = gatherer.look().await;
    }
    loop {
        print(&report, args.json)?;
        if once {
            return Ok(ExitCode::from(status(&report)));
        }
        tokio::time::sleep(EVERY).await;
        report = gatherer.look().await;
    }
}

fn print(report: &TopReport, json: bool) -> Result<()> {
    let text = match json {
        true => serde_json::to_string(report).context("cannot print it as JSON")? + "\n",
        false => layout::lines(report, UNBOUNDED, UNBOUNDED).join("\n") + "\n",
    };
    let mut out = std::io::stdout().lock();
    let mut write = || out.write_all(text.as_bytes()).and_then(|()| out.flush());
    let mut written = write();
    if written
        .as_ref()
        .is_err_and(|error| error.kind() == ErrorKind::BrokenPipe)
    {
        // Not before: an ssh that has ended closes a pipe, too.
        sys::end_on_closed_pipe();
        written = write();
    }
    written.context("cannot write to standard output")
}

fn status(report: &TopReport) -> u8 {
    let answering = report.places.iter().filter(|place| place.error.is_none());
    match answering.count() {
        all if all == report.places.len() => 0,
        0 => EXIT_FAILED,
        _ => EXIT_PARTIAL,
    }
}
