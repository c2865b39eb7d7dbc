//! How much a lane of datagrams carries without loss, and altogether, beside `iperf3 -u` and TCP: on loopback and between hosts, encrypted
//! and plain, with the processor time of both ends. No load; every process where the system puts it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ropewalk_model::ByteRate;
use ropewalk_plot::{self as plot, Bar, Titles};
use ropewalk_proto::rapid::monitor::receive_buffer;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Scale;
use super::load::Load;
use super::scene::Scene;
use crate::bench::{Bench, Site};
use crate::iperf::{self, Load as TcpLoad, Pair};
use crate::machine::Machine;
use crate::process::Process;
use crate::ropewalk::{Agents, PORT, Place, words};
use crate::stats::summary;
use crate::table::{Table, number};

const GIB: f64 = 1_073_741_824.0;
/// Lost datagrams that still count as none: 0.1 %.
const NO_LOSS: f64 = 0.001;
/// Rates between which the highest without loss is looked for, bits per second.
const RATES: (f64, f64) = (200e6, 12e9);
/// Headers of IPv4 and UDP.
const HEADERS: u32 = 28;

/// Where both ends are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ends {
    Loopback,
    Hosts(u32),
}

impl Ends {
    fn name(self) -> String {
        match self {
            Self::Loopback => "loopback".into(),
            Self::Hosts(mtu) => format!("hosts, MTU {mtu}"),
        }
    }

    /// Length of packets: on loopback as between hosts with jumbo frames.
    fn mtu(self) -> u32 {
        match self {
            Self::Loopback => 9000,
            Self::Hosts(mtu) => mtu,
        }
    }
}

/// What moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mover {
    /// A fixed rate with the buffer of the native monitor's rule; the highest rate without loss is looked for.
    Rbudp,
    /// As fast as the native monitor finds right.
    Native,
    /// The mover's own TCP lane, one stream.
    Tcp,
    /// `iperf3 -u`; the highest rate without loss is looked for.
    IperfDatagrams,
    /// `iperf3`.
    Iperf,
}

const ROWS: [(Mover, bool, &str); 8] = [
    (Mover::Rbudp, false, "rbudp lane, encrypted"),
    (Mover::Rbudp, true, "rbudp lane, plain"),
    (Mover::Native, false, "rapid lane, encrypted"),
    (Mover::Native, true, "rapid lane, plain"),
    (Mover::Tcp, false, "TCP lane, encrypted"),
    (Mover::Tcp, true, "TCP lane, plain"),
    (Mover::IperfDatagrams, true, "iperf3 -u"),
    (Mover::Iperf, true, "iperf3, TCP"),
];
/// The row of plain TCP.
const PLAIN_TCP: usize = 7;

/// One measurement.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Carried {
    megabits: f64,
    /// Of what was sent.
    lost: f64,
    processor_seconds_per_gib: f64,
    /// The rate set, where it is.
    rate: Option<f64>,
}

fn ends(scale: Scale) -> Vec<Ends> {
    match scale.is_quick {
        true => vec![Ends::Hosts(1500)],
        false => vec![Ends::Loopback, Ends::Hosts(1500), Ends::Hosts(9000)],
    }
}

fn bytes(scale: Scale) -> u64 {
    if scale.is_quick { 256 << 20 } else { 1 << 30 }
}

fn seconds(scale: Scale) -> f64 {
    if scale.is_quick { 1.0 } else { 3.0 }
}

fn is_run(scale: Scale, row: usize) -> bool {
    let (mover, is_plain, _) = ROWS[row];
    !scale.is_quick || mover != Mover::Tcp || !is_plain
}

fn key(scale: Scale, ends: Ends, row: usize, round: usize) -> String {
    let mib = bytes(scale) >> 20;
    format!(
        "capacity, {}, {}, {mib} MiB, round {round}",
        ends.name(),
        ROWS[row].2
    )
}

/// Halvings of the search: the highest rate without loss to within 6 %, or 13 % when quick.
fn steps(scale: Scale) -> u32 {
    if scale.is_quick { 5 } else { 6 }
}

pub(super) fn points(scale: Scale) -> Vec<(String, f64)> {
    let mut points = Vec::new();
    for round in 1..=scale.rounds {
        for ends in ends(scale) {
            for (row, (mover, ..)) in ROWS.iter().enumerate() {
                if is_run(scale, row) {
                    let runs = match mover {
                        Mover::Rbudp | Mover::IperfDatagrams => f64::from(steps(scale)),
                        _ => 1.0,
                    };
                    let each = 1.2 + bytes(scale) as f64 * 8.0 / 4e9;
                    points.push((key(scale, ends, row, round), runs * each));
                }
            }
        }
    }
    points
}

fn ours(site: &Site, scale: Scale, ends: Ends, options: &str) -> Result<Carried> {
    let scene = Scene::new(ends.mtu(), Load::Loops(0), bytes(scale));
    let bytes = scene.bytes;
    let lab = match ends {
        Ends::Loopback => None,
        Ends::Hosts(_) => Some(scene.lab(site, "cubic")?),
    };
    let mut agents = Agents::new(site)?;
    let (place, sender, receiver) = match &lab {
        None => {
            agents.start_local("sender", &[])?;
            agents.start_local("receiver", &[])?;
            let address = |name: &str| agents.address(name).to_owned();
            (Place::Machine, address("sender"), address("receiver"))
        }
        Some(lab) => {
            agents.start_in(lab, "sender", &[])?;
            agents.start_in(lab, "receiver", &[])?;
            let place = Place::Host(lab, "sender");
            (place, format!("sender:{PORT}"), format!("receiver:{PORT}"))
        }
    };
    let spec = agents.spec(&format!(
        "writer {sender} \"mem:{bytes}\" 0 0+{bytes}\nreader {receiver} \"null:\" 0 0+{bytes}\n"
    ))?;
    let arguments = words(&format!("transfer {spec} {options}"));
    let moved = agents.run_once(place, &arguments, Duration::from_secs(120))?;
    let report = &moved.report;
    let processor: f64 = report.nodes.iter().map(|node| node.processor_seconds).sum();
    let pair = report.pairs.first().context("no pair moved bytes")?;
    let lost = pair.blast.as_ref().map_or(0, |blast| blast.lost_datagrams) as f64;
    Ok(Carried {
        megabits: bytes as f64 * 8e-6 / (report.seconds - report.start_seconds),
        lost: lost / (pair.datagrams as f64 + lost).max(1.0),
        processor_seconds_per_gib: processor * GIB / bytes as f64,
        rate: None,
    })
}

/// What `iperf3 -u -J` printed of a run at a rate.
fn of_iperf(output: &Value, processor: f64, rate: f64) -> Result<Carried> {
    let sum = &output["end"]["sum"];
    let number = |key: &str| {
        sum[key]
            .as_f64()
            .with_context(|| format!("iperf3 printed no {key}"))
    };
    let (lost, packets) = (number("lost_packets")?, number("packets")?);
    let (sent, seconds) = (number("bytes")?, number("seconds")?);
    let came = sent * (1.0 - lost / packets.max(1.0));
    Ok(Carried {
        megabits: came * 8e-6 / seconds,
        lost: lost / packets.max(1.0),
        processor_seconds_per_gib: processor * GIB / came.max(1.0),
        rate: Some(rate),
    })
}

fn iperf_datagrams(site: &Site, scale: Scale, ends: Ends, rate: f64) -> Result<Carried> {
    let scene = Scene::new(ends.mtu(), Load::Loops(0), bytes(scale));
    let lab = match ends {
        Ends::Loopback => None,
        Ends::Hosts(_) => Some(scene.lab(site, "cubic")?),
    };
    let (from, to, address) = match &lab {
        None => (Place::Machine, Place::Machine, "127.0.0.1".to_owned()),
        Some(lab) => (
            Place::Host(lab, "sender"),
            Place::Host(lab, "receiver"),
            lab.address("receiver").to_string(),
        ),
    };
    let program = std::path::Path::new("iperf3");
    // Another port than that of TCP's rows, which may linger.
    let port = (iperf::PORT + 1).to_string();
    let mut command = to.command(program);
    command.args(["-s", "-1", "--forceflush", "-p", &port]);
    let server = Process::start(command)?;
    while let Some(line) = server.line(Duration::from_secs(20))? {
        if line.contains("listening") {
            break;
        }
    }
    let mut command = from.command(program);
    command.args(["-u", "-J", "-c", &address, "-p", &port]);
    command.args([
        "-b",
        &format!("{rate:.0}"),
        "-t",
        &seconds(scale).to_string(),
    ]);
    command.args(["-l", &(ends.mtu() - HEADERS).to_string(), "-w", "4M"]);
    let client = Process::start(command)?.finish(Duration::from_secs(60))?;
    let served = server.finish(Duration::from_secs(20))?;
    let text = client.output.join("\n");
    let output: Value = serde_json::from_str(&text)
        .with_context(|| format!("iperf3 printed no JSON: {text} {}", client.errors))?;
    let processor = client.processor_seconds + served.processor_seconds;
    of_iperf(&output, processor, rate)
}

/// The run at the highest rate that loses nothing, to speak of, by halving the interval of rates; the one at the lowest when all lose.
fn highest_without_loss(
    steps: u32,
    mut run: impl FnMut(f64) -> Result<Carried>,
) -> Result<Carried> {
    let (mut low, mut high) = (RATES.0.ln(), RATES.1.ln());
    let mut best = None;
    for _ in 0..steps {
        let rate = f64::midpoint(low, high).exp();
        let carried = Carried {
            rate: Some(rate),
            ..run(rate)?
        };
        // A sender that does not reach its rate has none to spare.
        let is_reached = carried.megabits * 1e6 > rate * 0.85;
        if carried.lost < NO_LOSS && is_reached {
            best = Some(carried);
            low = rate.ln();
        } else {
            high = rate.ln();
        }
    }
    match best {
        Some(best) => Ok(best),
        None => run(RATES.0),
    }
}

fn measure(site: &Site, scale: Scale, ends: Ends, row: usize) -> Result<Carried> {
    let (mover, is_plain, _) = ROWS[row];
    let plain = if is_plain { " --plain" } else { "" };
    let mtu = ends.mtu();
    match mover {
        Mover::Rbudp => highest_without_loss(steps(scale), |rate| {
            let bytes = (rate / 8.0) as u64;
            let buffer = receive_buffer(ByteRate(bytes), 3);
            let options = format!(
                "--lane rbudp --rate {bytes}B/s --mtu {mtu} --receive-buffer {buffer}B{plain}"
            );
            ours(site, scale, ends, &options)
        }),
        Mover::Native => ours(
            site,
            scale,
            ends,
            &format!("--lane rapid --mtu {mtu}{plain}"),
        ),
        Mover::Tcp => ours(site, scale, ends, &format!("--lane tcp --streams 1{plain}")),
        Mover::IperfDatagrams => highest_without_loss(steps(scale), |rate| {
            iperf_datagrams(site, scale, ends, rate)
        }),
        Mover::Iperf => {
            let scene = Scene::new(mtu, Load::Loops(0), bytes(scale));
            let lab = match ends {
                Ends::Loopback => None,
                Ends::Hosts(_) => Some(scene.lab(site, "cubic")?),
            };
            let address = lab.as_ref().map_or("127.0.0.1".into(), |lab| {
                lab.address("receiver").to_string()
            });
            let place = |host| match &lab {
                None => Place::Machine,
                Some(lab) => Place::Host(lab, host),
            };
            let pair = Pair {
                from: place("sender"),
                to: place("receiver"),
                address: &address,
                port: iperf::PORT,
            };
            let load = TcpLoad::lasting(seconds(scale));
            let carried = iperf::run(&[pair], load, Duration::from_secs(60))?;
            Ok(Carried {
                megabits: carried.megabits(),
                lost: 0.0,
                processor_seconds_per_gib: carried.processor_seconds * GIB / carried.bytes as f64,
                rate: None,
            })
        }
    }
}

pub(super) fn make(bench: &mut Bench, scale: Scale) -> Result<Vec<Table>> {
    let site = bench.site();
    let mut table = Table::new(
        "Capacity without loss and goodput, no load, both processors free (one stream, one lane)",
        &[
            ("ends", "ends"),
            ("mover", "mover"),
            ("megabits_per_second", "goodput Mbit/s"),
            ("least_to_most", "min-max"),
            ("loss_free_megabits_per_second", "loss-free rate"),
            ("lost_percent", "lost %"),
            ("processor_seconds_per_gibibyte", "cpu s/GiB"),
        ],
    );
    let mut bars = Vec::new();
    for ends in ends(scale) {
        let mut runs: [Vec<Carried>; ROWS.len()] = Default::default();
        for round in 1..=scale.rounds {
            for (row, runs) in runs.iter_mut().enumerate() {
                if is_run(scale, row) {
                    let key = key(scale, ends, row, round);
                    runs.extend(bench.point(&key, || measure(&site, scale, ends, row)));
                }
            }
        }
        for (row, own) in runs.iter().enumerate() {
            let Some(all) = summary(own.iter().map(|run| run.megabits)) else {
                continue;
            };
            let middle = |of: fn(&Carried) -> Option<f64>| {
                summary(own.iter().filter_map(of)).map(|all| all.median)
            };
            let name = ROWS[row].2;
            bench.headline(
                format!("{}, no load: {name}", ends.name()),
                format!(
                    "{:.0} Mbit/s ({:.0} to {:.0})",
                    all.median, all.min, all.max
                ),
            );
            table.row(vec![
                ends.name().into(),
                name.into(),
                number(all.median, 0),
                format!("{:.0}-{:.0}", all.min, all.max).into(),
                number(middle(|run| run.rate).map(|rate| rate / 1e6), 0),
                number(middle(|run| Some(run.lost * 100.0)), 3),
                number(middle(|run| Some(run.processor_seconds_per_gib)), 2),
            ]);
            bars.push(Bar {
                label: format!("{}: {name}", ends.name()),
                value: all.median,
                range: (all.min, all.max),
                group: row,
            });
        }
    }
    if bars.is_empty() {
        return Ok(Vec::new());
    }
    let tcp = |wanted: Ends| -> Option<f64> {
        let runs = (1..=scale.rounds)
            .filter_map(|round| bench.recorded::<Carried>(&key(scale, wanted, PLAIN_TCP, round)));
        summary(runs.map(|run| run.megabits)).map(|all| all.median)
    };
    let configuration = configuration(tcp(Ends::Hosts(1500)), tcp(Ends::Hosts(9000)));
    table.note("Loss-free: the highest rate with less than 0.1 % lost, by halving; rates count headers of the lane, iperf3's its payload. Our rows hash every unit end to end, iperf3 checks nothing.");
    let titles = Titles {
        title: "Goodput of one lane without load",
        x: "Mbit/s",
        y: "",
    };
    plot::bars(&bench.plot_path("capacity"), titles, &bars)?;
    Ok(vec![configuration, table])
}

/// Table 1: what the paper ran on, and what this is.
fn configuration(tcp: Option<f64>, tcp_jumbo: Option<f64>) -> Table {
    let mut table = Table::new(
        "Configuration (Table 1)",
        &[
            ("what", "what"),
            ("configuration_1", "paper, I"),
            ("configuration_2", "paper, II"),
            ("here", "here"),
        ],
    );
    let machine = Machine::look(BTreeMap::new());
    let gigabits = |megabits: Option<f64>| {
        megabits.map_or("-".to_owned(), |megabits| {
            format!("{:.2} Gbit/s", megabits / 1e3)
        })
    };
    let memory = format!("{:.1} GiB", machine.memory_bytes as f64 / GIB);
    for (what, one, two, here) in [
        (
            "processor",
            "Pentium 4, 2.8 GHz",
            "Opteron, 2.2 GHz",
            machine.processor.clone(),
        ),
        (
            "processors for both hosts",
            "1 each",
            "1 each",
            machine.cores.to_string(),
        ),
        ("memory", "2 GB", "1 GB", memory),
        (
            "system",
            "Linux 2.6.12",
            "Linux 2.6.12",
            machine.kernel.clone(),
        ),
        (
            "TCP by iperf, MTU 1500",
            "1.92 Gbit/s",
            "3.65 Gbit/s",
            gigabits(tcp),
        ),
        ("TCP by iperf, MTU 9000", "-", "-", gigabits(tcp_jumbo)),
    ] {
        table.row(vec![what.into(), one.into(), two.into(), here.into()]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn carried(rate: f64, lost: f64) -> Carried {
        Carried {
            megabits: rate / 1e6,
            lost,
            processor_seconds_per_gib: 1.0,
            rate: None,
        }
    }

    /// The search comes as near to the limit as its steps allow, from below; where all rates lose it shows the lowest.
    #[test]
    fn the_limit_is_found() {
        let limit = 3.3e9;
        let lost = |rate: f64| if rate > limit { 0.05 } else { 0.0 };
        let found = highest_without_loss(8, |rate| Ok(carried(rate, lost(rate)))).unwrap();
        let rate = found.rate.unwrap();
        assert!(rate <= limit && rate > limit * 0.98, "{rate}");
        // A sender that does not keep up has found its limit, too.
        let slow = |rate: f64| Ok(carried(rate.min(limit), 0.0));
        let rate = highest_without_loss(8, slow).unwrap().rate.unwrap();
        assert!(rate > limit * 0.98 && rate < limit * 1.2, "{rate}");
        let all_lose = highest_without_loss(4, |rate| Ok(carried(rate, 0.5))).unwrap();
        assert_eq!(all_lose.lost, 0.5);
    }

    /// What came is what was sent without what was lost.
    #[test]
    fn output_of_iperf() {
        let output = json!({"end": {"sum": {"bytes": 1000.0, "seconds": 2.0, "packets": 10, "lost_packets": 2}}});
        let carried = of_iperf(&output, 1.0, 5.0).unwrap();
        assert_eq!((carried.megabits, carried.lost), (800.0 * 8e-6 / 2.0, 0.2));
        assert!(of_iperf(&json!({}), 1.0, 5.0).is_err());
    }
}
