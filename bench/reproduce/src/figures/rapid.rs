//! The RAPID paper's tables and figures between two hosts, the receiver sharing one processor with a load, in the lab.
//!
//! ```text
//!  grid        table 2, figures 5 to 7        best rates by golden section; every way of moving under every load and round trip
//!  capacity    loopback and between hosts     beside iperf3 -u, TCP; encrypted and plain; processor time
//!  delays      figures 5, 7 as the paper made round trips: feedback held back
//!  loss        1 % random loss at 80 ms       beside TCP with reno, cubic, bbr
//!  cost        of the monitor                 with and without soft real time; jitter of delivery
//!  traces      figures 1 and 2                slices of the load and lossless intervals, on this kernel
//!  simulated   figures 1 and 8, table 2       on the schedulers that the paper saw
//! ```
//!
//! Loads, search and surface are in `load`, `search` and `marching`; `scene` runs one transfer, by agents or, with a sink that works or
//! feedback that is late, by two bare `ends` of a lane.

mod capacity;
mod cost;
mod delays;
mod ends;
mod grid;
mod late;
mod load;
mod loss;
mod marching;
mod scene;
mod search;
mod simulated;
mod traces;

pub(crate) use ends::{EndArgs, run_end};

use anyhow::{Context as _, Result};

use crate::bench::{Bench, Settings};
use crate::sys::Pinned;

/// How much is run.
#[derive(Clone, Copy, Debug)]
struct Scale {
    rounds: usize,
    is_quick: bool,
}

/// Makes all of them.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "rapid")?;
    bench.program_version("iperf3", "--version");
    let scale = Scale {
        rounds: if settings.quick { 1 } else { 3 },
        is_quick: settings.quick,
    };
    for points in [
        grid::points,
        capacity::points,
        loss::points,
        delays::points,
        cost::points,
        traces::points,
    ] {
        bench.expect(points(scale));
    }
    bench.announce();
    let mut tables = capacity::make(&mut bench, scale)?;
    // The lab's relays, which are threads of this program, must not sit on the receiver's processor.
    let pinned = Pinned::to(scene::SENDING)
        .context("two processors are needed, one of them for the receiver and its load alone")?;
    for make in [
        grid::make,
        delays::make,
        loss::make,
        cost::make,
        traces::make,
    ] {
        tables.extend(make(&mut bench, scale)?);
    }
    drop(pinned);
    tables.extend(simulated::make(&bench, scale.is_quick)?);
    bench.finish(&tables)
}
