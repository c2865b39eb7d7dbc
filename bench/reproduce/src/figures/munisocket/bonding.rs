//! Figure 10: what two rails of 100 Mbit/s gain in enhanced mode beside the kernel's channel bonding (round robin).
//!
//! Where this kernel has no bonding, its place is taken by the paper's figures (a benchmark of a cluster called JAZZ).

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use ropewalk_lab::Lab;

use super::hosts::{self, Measured};
use super::{Scale, roundtrip};
use crate::bench::{Bench, Site};
use crate::process;
use crate::ropewalk::Place;
use crate::stats::summary;
use crate::table::{Cell, Table, number};
use ropewalk_plot::{self as plot, Bar, Titles};

const RATE: u64 = 100_000_000;
const PATIENCE: Duration = Duration::from_secs(120);
/// Message, Mbit/s without and with bonding in the paper.
const PAPER: [(u64, f64, f64); 2] = [(1 << 20, 86.8, 160.4), (4 << 20, 86.88, 162.08)];

/// Addresses of the bonded interfaces; rails have others.
const BOND: [(&str, &str); 2] = [("a", "10.254.254.1"), ("b", "10.254.254.2")];

fn ip(lab: &Lab, host: &str, line: &str) -> Result<()> {
    let mut command = Place::Host(lab, host).command(Path::new("ip"));
    command.args(line.split_whitespace());
    process::run(command, PATIENCE).map(drop)
}

/// Why there is no bonding here.
fn missing(site: &Site) -> Result<Option<String>> {
    let lab = hosts::two(&[RATE], site)?;
    let made = ip(&lab, "a", "link add bond0 type bond mode balance-rr");
    Ok(made.err().map(|error| format!("{error:#}")))
}

fn key(round: usize) -> String {
    format!("channel bonding, 2 x 100 Mbit/s, 1 and 4 MiB, round {round}")
}

/// None: whether there is bonding shows in the lab only.
pub(super) fn points(_: Scale) -> Vec<(String, f64)> {
    Vec::new()
}

/// Both rails of each host become one interface; plain TCP goes over it.
fn run(site: &Site) -> Result<Measured> {
    let lab = hosts::two_for_round_trips(&[RATE; 2], site)?;
    for (host, address) in BOND {
        ip(
            &lab,
            host,
            "link add bond0 type bond mode balance-rr miimon 100",
        )?;
        for nic in lab.nics(host) {
            ip(&lab, host, &format!("link set {} down", nic.name))?;
            ip(&lab, host, &format!("link set {} master bond0", nic.name))?;
        }
        ip(&lab, host, &format!("addr add {address}/24 dev bond0"))?;
        ip(&lab, host, "link set bond0 up")?;
    }
    let addresses = (BOND[0].1, BOND[1].1);
    let arguments = ["--sizes", "1MiB..4MiB", "--mode", "single"];
    hosts::measure_between(&lab, site, addresses, &arguments, PATIENCE)
}

pub(super) fn make(bench: &mut Bench, scale: Scale) -> Result<Vec<Table>> {
    let site = bench.site();
    let ours = roundtrip::recorded(bench, &[RATE; 2], scale);
    let missing = missing(&site)?;
    let mut bonded = Vec::new();
    for round in 1..=scale.rounds {
        if missing.is_none() {
            bonded.extend(bench.point(&key(round), || run(&site)));
        }
    }
    if ours.is_empty() && bonded.is_empty() {
        return Ok(Vec::new());
    }
    let mut table = Table::new(
        "Speed-up by two rails of 100 Mbit/s over one (Figure 10)",
        &[
            ("bytes", "size B"),
            ("enhanced_speed_up", "enhanced"),
            ("basic_speed_up", "basic"),
            ("two_tcp_speed_up", "2 TCP"),
            ("bonding_speed_up", "bonding here"),
            ("paper_bonding_speed_up", "bonding, paper"),
            ("paper_megabits", "paper, Mbit/s"),
        ],
    );
    let mut bars = Vec::new();
    for (bytes, without, with) in PAPER {
        let speed_up = |method: &str| {
            let share = roundtrip::percent_of(&ours, bytes, method, "tcp");
            share.map(|share| share.median / 100.0)
        };
        // Beside plain TCP on one rail, round by round.
        let plain = |runs: &Vec<Measured>| {
            roundtrip::over(runs, bytes, "tcp", |_, point| Some(point.bits_per_second))
        };
        let here = plain(&bonded)
            .zip(plain(&ours))
            .map(|(bond, one)| bond.median / one.median);
        table.row(vec![
            number(bytes as f64, 0),
            number(speed_up("enhanced"), 3),
            number(speed_up("basic"), 3),
            number(speed_up("tcp-split"), 3),
            number(here, 3),
            number(with / without, 3),
            Cell::from(format!("{without} to {with}")),
        ]);
        let both = [
            ("enhanced", speed_up("enhanced")),
            ("bonding here", here),
            ("bonding, paper", Some(with / without)),
        ];
        for (group, (name, value)) in both.into_iter().enumerate() {
            let Some(all) = summary(value) else { continue };
            bars.push(Bar {
                label: format!("{name}, {} MiB", bytes >> 20),
                value: all.median,
                range: (all.min, all.max),
                group,
            });
        }
    }
    table.note("Of bandwidth in round trips, against plain TCP on one rail.");
    if let Some(why) = missing {
        let why = why.lines().next().unwrap_or_default();
        table.note(format!(
            "This kernel has no channel bonding ({why}); the table has the paper's figures instead."
        ));
    }
    let titles = Titles {
        title: "Speed-up by two rails (Figure 10)",
        x: "times one rail",
        y: "",
    };
    plot::bars(&bench.plot_path("speed-up"), titles, &bars)?;
    Ok(vec![table])
}
