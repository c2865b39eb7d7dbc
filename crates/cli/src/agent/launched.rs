//! An agent that `srun` or `mpirun` started together with others: it takes its own lines of the input that all get, says where it
//! listens, and serves until the input closes.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use ropewalk_agent::Agent;
use ropewalk_proto::launched::{Announcement, Said, own_lines};

use super::roots::read_roots;
use super::{Caught, asked, bind_one, read_input, watch_input};
use crate::Unusable;
use crate::ports::Ports;
use crate::visible::Visible;

/// The seat of an agent that goes by the name of its node.
const BY_NODE: &str = "slurm";

/// What Slurm names a task's node by.
const NODE: &str = "SLURMD_NODENAME";

/// Runs such an agent. One that has nothing to serve says so where its master listens, and is no failed task: a launcher might
/// end all others.
pub(super) fn run(seat: &str, ports: Option<Ports>) -> Result<ExitCode> {
    let seat = match seat {
        BY_NODE => {
            std::env::var(NODE).with_context(|| format!("{NODE} is not set; srun starts this"))?
        }
        seat => seat.to_owned(),
    };
    let caught = Caught::signals()?;
    let agent = match prepare(&seat, ports) {
        Ok(agent) => agent,
        Err(error) => {
            say(
                &seat,
                Said::Refused {
                    is_final: error.is::<Unusable>(),
                    reason: format!("{error:#}"),
                },
            )?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let port = agent
        .addresses()
        .first()
        .map_or(0, std::net::SocketAddr::port);
    say(
        &seat,
        Said::Ready {
            port,
            addresses: ropewalk_agent::host_addresses(),
        },
    )?;
    let _visible = Visible::open(agent.meter());
    serve(agent, caught)
}

fn prepare(seat: &str, ports: Option<Ports>) -> Result<Agent> {
    let (secret, lines) = read_input(std::io::stdin())?;
    let Some(lines) = own_lines(&lines, seat) else {
        bail!(
            "{seat} is no seat of this launch; a launcher has put an agent on another node than it was to"
        );
    };
    // Paths that do not begin with / are below the home folder, as over ssh.
    if let Some(home) = std::env::var_os("HOME") {
        let _ = std::env::set_current_dir(home);
    }
    bind_one(false, ports, secret, &read_roots(lines)?)
}

fn say(seat: &str, said: Said) -> Result<()> {
    let announcement = Announcement {
        seat: seat.to_owned(),
        said,
    };
    let mut output = std::io::stdout().lock();
    let written = writeln!(output, "{}", announcement.format()).and_then(|()| output.flush());
    written.context("the launcher has closed standard output")
}

fn serve(agent: Agent, caught: Caught) -> Result<ExitCode> {
    let Caught {
        runtime,
        mut interrupt,
        mut terminate,
    } = caught;
    runtime.block_on(async {
        let input_closed = watch_input()?;
        let closed = async { drop(input_closed.await) };
        let asked = asked(&mut interrupt, &mut terminate);
        let served = agent.serve_launched(closed, asked);
        served.await.context("the agent stopped")
    })?;
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}
