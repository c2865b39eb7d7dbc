//! The figures and tables of the MuniSocket paper between two hosts of several interfaces, in the lab.
//!
//! ```text
//!  roundtrip   figures 3 to 7, table 1, cut-offs     sizes, beside plain TCP on one rail and on each
//!  unequal     rails of different speed              a stream of messages beside TCP on each rail
//!  noise       figure 9                              UDP takes 60 % of one rail (competitor, multipath)
//!  failures    a rail dies in four ways, at either end, and returns
//!  bonding     figure 10                             beside the kernel's channel bonding, or the paper's
//!  files       table 2                               put, get, and part of a file
//!  sharing     two transfers and a message stream over the same rails
//! ```
//!
//! A lab runs both hosts on this machine: its processors carry both ends, and the switch between them.

mod bonding;
mod competitor;
mod failures;
mod files;
mod hosts;
mod multipath;
mod noise;
mod roundtrip;
mod sharing;
mod unequal;

use anyhow::Result;

use crate::bench::{Bench, Settings};

/// How much is run.
#[derive(Clone, Copy, Debug)]
struct Scale {
    rounds: usize,
    is_quick: bool,
}

/// Makes all of them.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "munisocket")?;
    bench.program_version("iperf3", "--version");
    let scale = Scale {
        rounds: if settings.quick { 1 } else { 5 },
        is_quick: settings.quick,
    };
    for points in [
        roundtrip::points,
        unequal::points,
        noise::points,
        failures::points,
        bonding::points,
        files::points,
        sharing::points,
    ] {
        bench.expect(points(scale));
    }
    bench.announce();
    let mut tables = Vec::new();
    for make in [
        roundtrip::make,
        unequal::make,
        noise::make,
        failures::make,
        bonding::make,
        files::make,
        sharing::make,
    ] {
        tables.extend(make(&mut bench, scale)?);
    }
    bench.finish(&tables)
}
