//! Goodput over a long path that loses packets at random, beside TCP.

use std::time::Duration;

use anyhow::Result;
use ropewalk_plot::{self as plot, Bar, Titles};
use serde::{Deserialize, Serialize};

use super::Scale;
use super::load::Load;
use super::scene::{Lane, RECEIVING, SENDING, Scene, Way};
use crate::bench::{Bench, Site};
use crate::iperf::{self, Pair};
use crate::ropewalk::{Place, Seat};
use crate::stats::summary;
use crate::table::{Table, number};

const RATE: u64 = 100_000_000;
const LOSS: f64 = 0.01;
const ROUND_TRIP_MS: u64 = 80;

/// Datagrams of a rate that just fits: header and framing of packets of 1500 bytes are the trunk's.
const FITTING: u64 = 95_000_000;

#[derive(Clone, Copy)]
enum Mover {
    Ours(&'static str, Lane),
    /// iperf3 over one stream.
    Tcp(&'static str),
}

const MOVERS: [Mover; 6] = [
    Mover::Ours(
        "rapid native, no rate given",
        Lane::Rapid {
            monitor: "native",
            rate: None,
        },
    ),
    Mover::Ours(
        "rapid native, at most 95 Mbit/s",
        Lane::Rapid {
            monitor: "native",
            rate: Some(FITTING),
        },
    ),
    Mover::Ours(
        "rbudp, 95 Mbit/s",
        Lane::Rbudp {
            rate: FITTING,
            buffer: None,
        },
    ),
    Mover::Tcp("reno"),
    Mover::Tcp("cubic"),
    Mover::Tcp("bbr"),
];

impl Mover {
    fn name(self) -> String {
        match self {
            Self::Ours(name, _) => name.into(),
            Self::Tcp(control) => format!("iperf3, TCP {control}"),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Carried {
    megabits: f64,
    again: Option<u64>,
    lost: Option<u64>,
    datagrams: Option<u64>,
    invalid: Vec<String>,
}

fn seconds(scale: Scale) -> f64 {
    if scale.is_quick { 6.0 } else { 20.0 }
}

fn scene(scale: Scale) -> Scene {
    let bytes = (seconds(scale) * RATE as f64 / 8.0) as u64 >> 20 << 20;
    Scene {
        way: Way::Trunk {
            bits_per_second: RATE,
            round_trip_ms: ROUND_TRIP_MS,
            loss: LOSS,
        },
        ..Scene::new(1500, Load::Loops(0), bytes)
    }
}

fn key(scale: Scale, mover: Mover, round: usize) -> String {
    format!("{}, {}, round {round}", scene(scale).name(), mover.name())
}

pub(super) fn points(scale: Scale) -> Vec<(String, f64)> {
    let rounds = 1..=scale.rounds;
    let all = rounds
        .flat_map(|round| MOVERS.map(|mover| (key(scale, mover, round), seconds(scale) + 2.0)));
    all.collect()
}

fn run(site: &Site, scale: Scale, mover: Mover) -> Result<Carried> {
    let scene = scene(scale);
    let control = match mover {
        Mover::Ours(_, lane) => {
            let run = scene.run(site, lane)?;
            return Ok(Carried {
                megabits: run.megabits(),
                again: Some(run.again),
                lost: run.blast.as_ref().map(|blast| blast.lost_datagrams),
                datagrams: Some(run.datagrams),
                invalid: run.invalid,
            });
        }
        Mover::Tcp(control) => control,
    };
    let lab = scene.lab(site, control)?;
    let seat = |core| Seat {
        core,
        may_precede: true,
    };
    let address = lab.address("receiver").to_string();
    let pair = Pair {
        from: Place::Seated(&lab, "sender", seat(SENDING)),
        to: Place::Seated(&lab, "receiver", seat(RECEIVING)),
        address: &address,
        port: iperf::PORT,
    };
    let load = iperf::Load::lasting(seconds(scale));
    let carried = iperf::run(&[pair], load, Duration::from_secs(120))?;
    Ok(Carried {
        megabits: carried.megabits(),
        again: carried.outputs[0]["end"]["sum_sent"]["retransmits"].as_u64(),
        lost: None,
        datagrams: None,
        invalid: lab.trunk(0).validity()?.reasons,
    })
}

pub(super) fn make(bench: &mut Bench, scale: Scale) -> Result<Vec<Table>> {
    let site = bench.site();
    let mut runs: [Vec<Carried>; MOVERS.len()] = Default::default();
    for round in 1..=scale.rounds {
        for (mover, runs) in MOVERS.iter().zip(&mut runs) {
            runs.extend(bench.point(&key(scale, *mover, round), || run(&site, scale, *mover)));
        }
    }
    let mut table = Table::new(
        "1 % of packets lost at random, 100 Mbit/s, RTT 80 ms, MTU 1500",
        &[
            ("mover", "mover"),
            ("megabits_per_second", "goodput Mbit/s"),
            ("least_to_most", "min-max"),
            ("datagrams", "datagrams"),
            ("lost", "lost"),
            ("again", "sent again"),
            ("valid", "valid runs"),
        ],
    );
    let mut bars = Vec::new();
    for (mover, own) in MOVERS.iter().zip(&runs) {
        let Some(all) = summary(own.iter().map(|run| run.megabits)) else {
            continue;
        };
        let middle = |of: fn(&Carried) -> Option<u64>| {
            summary(own.iter().filter_map(of).map(|value| value as f64)).map(|all| all.median)
        };
        let valid = own.iter().filter(|run| run.invalid.is_empty()).count();
        bench.headline(
            format!(
                "1 % of packets lost at random, 100 Mbit/s, RTT 80 ms: {}",
                mover.name()
            ),
            format!(
                "{:.1} Mbit/s ({:.1} to {:.1})",
                all.median, all.min, all.max
            ),
        );
        table.row(vec![
            mover.name().into(),
            number(all.median, 1),
            format!("{:.1}-{:.1}", all.min, all.max).into(),
            number(middle(|run| run.datagrams), 0),
            number(middle(|run| run.lost), 0),
            number(middle(|run| run.again), 0),
            format!("{valid} of {}", own.len()).into(),
        ]);
        bars.push(Bar {
            label: mover.name(),
            value: all.median,
            range: (all.min, all.max),
            group: usize::from(matches!(mover, Mover::Tcp(_))),
        });
    }
    if bars.is_empty() {
        return Ok(Vec::new());
    }
    table.note(format!(
        "Ours move {} MiB from the first request to the last byte checked; iperf3 runs for {} s from its first byte.",
        scene(scale).bytes >> 20,
        seconds(scale)
    ));
    let titles = Titles {
        title: "Goodput with 1 % random loss, RTT 80 ms, 100 Mbit/s",
        x: "Mbit/s",
        y: "",
    };
    plot::bars(&bench.plot_path("random-loss"), titles, &bars)?;
    Ok(vec![table])
}
