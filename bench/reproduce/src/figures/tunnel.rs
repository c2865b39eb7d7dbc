//! TCP connections of programs through a tunnel over two interfaces, beside plain TCP over each of the two at once; and how long their bytes
//! pause when one interface goes silent.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ropewalk_lab::{HostSpec, Lab, NicSpec};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bench::{Bench, Settings, Site};
use crate::iperf::{self, Load, Pair};
use crate::network::{lab, tcp_rate};
use crate::process::Process;
use crate::ropewalk::{Agents, PORT, Place, words};
use crate::stats::{spread, summary};
use crate::table::{Table, number};

/// Each interface of both hosts, bits per second.
const RATE: u64 = 100_000_000;

/// Where connections to the target go on at their own host.
const TARGET: u16 = 5203;

/// The tunnel works, with both rails, within this time.
const START_MAX: Duration = Duration::from_secs(30);

/// Before and after an interface goes silent: a rail is left within 1.5 s.
const BEFORE: Duration = Duration::from_secs(2);
const AFTER: Duration = Duration::from_secs(6);

const COLUMNS: [(&str, &str); 5] = [
    ("way", "bytes go"),
    ("variant", "variant"),
    ("megabits_per_second", "Mbit/s"),
    ("least_to_most", "min-max"),
    ("percent_of_iperf3", "% of iperf3"),
];

const PAUSES: [(&str, &str); 3] = [
    ("silent", "interface that goes silent"),
    ("seconds", "longest pause, s"),
    ("least_to_most", "min-max"),
];

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Rate {
    megabits: f64,
    processor_seconds: f64,
}

/// One interface went silent.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Pause {
    seconds: f64,
    bytes_after: u64,
}

fn hosts(site: &Site) -> Result<Lab> {
    let nic = || NicSpec::rate_bits(RATE);
    let host = |name: &str| HostSpec::new(name).nic(nic()).nic(nic());
    lab([host("a"), host("b")], site)
}

/// A tunnel from `a` to the target's port at `b`: its agent, and the command.
fn tunnel(lab: &Lab, site: &Site) -> Result<(Agents, Process)> {
    let target = format!("localhost:{TARGET}");
    let mut agents = Agents::new(site)?.forwarding(&target);
    agents.start_in(lab, "b", &[])?;
    let command = words(&format!("tunnel b:{PORT} 127.0.0.1:{TARGET}:{target}"));
    let (_, process) = agents.start_command(Place::Host(lab, "a"), &command)?;
    let until = Instant::now() + START_MAX;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let Some(line) = process.line(left).context("the tunnel is stuck")? else {
            bail!("the tunnel ended: {}", process.stop()?.errors.trim());
        };
        let event: Value = serde_json::from_str(&line)?;
        let rails = event["rails"].as_array();
        let are_up = rails.is_some_and(|rails| rails.iter().all(|rail| rail["up"] == true));
        if event["event"] == "progress" && are_up {
            return Ok((agents, process));
        }
    }
}

/// One connection through the tunnel.
fn ours(site: &Site, load: Load, deadline: Duration) -> Result<Rate> {
    let lab = hosts(site)?;
    let (agents, process) = tunnel(&lab, site)?;
    let pair = Pair {
        from: Place::Host(&lab, "a"),
        to: Place::Host(&lab, "b"),
        address: "127.0.0.1",
        port: TARGET,
    };
    let carried = iperf::run(&[pair], load, deadline)?;
    let own = process.stop()?.processor_seconds;
    let agents = agents.stop()?;
    let agents: f64 = agents.iter().map(|agent| agent.processor_seconds).sum();
    Ok(Rate {
        megabits: carried.megabits(),
        processor_seconds: carried.processor_seconds + own + agents,
    })
}

/// One connection over each interface at once.
fn plain(site: &Site, load: Load, deadline: Duration) -> Result<Rate> {
    let lab = hosts(site)?;
    let addresses = lab.addresses("b");
    let addresses = addresses.iter().filter(|address| address.is_ipv4());
    let addresses: Vec<String> = addresses.map(ToString::to_string).collect();
    let pairs: Vec<Pair> = (iperf::PORT..)
        .zip(&addresses)
        .map(|(port, address)| Pair {
            from: Place::Host(&lab, "a"),
            to: Place::Host(&lab, "b"),
            address,
            port,
        })
        .collect();
    let carried = iperf::run(&pairs, load, deadline)?;
    Ok(Rate {
        megabits: carried.by_pair_megabits().iter().sum(),
        processor_seconds: carried.processor_seconds,
    })
}

/// Reads what a program at `b` sends without end, while an interface of `a` goes silent; the longest time without bytes from then on.
fn pause(site: &Site, silent: usize) -> Result<Pause> {
    let lab = hosts(site)?;
    let (_agents, _process) = tunnel(&lab, site)?;
    let listener = lab.in_network("b", || TcpListener::bind(("127.0.0.1", TARGET)))??;
    std::thread::spawn(move || -> std::io::Result<()> {
        let (mut socket, _) = listener.accept()?;
        // Until the tunnel ends.
        loop {
            socket.write_all(&[7; 64 << 10])?;
        }
    });
    let mut socket = lab.in_network("a", || TcpStream::connect(("127.0.0.1", TARGET)))??;
    socket.set_read_timeout(Some(START_MAX))?;
    let mut space = vec![0; 64 << 10];
    let mut read_for = |most: Duration| -> Result<Pause> {
        let began = Instant::now();
        let mut last = began;
        let mut pause = Pause {
            seconds: 0.0,
            bytes_after: 0,
        };
        while began.elapsed() < most {
            let count = socket.read(&mut space)?;
            ensure!(count > 0, "the connection ended");
            pause.seconds = pause.seconds.max(last.elapsed().as_secs_f64());
            pause.bytes_after += count as u64;
            last = Instant::now();
        }
        Ok(pause)
    };
    read_for(BEFORE)?;
    lab.blackhole("a", silent, true)?;
    read_for(AFTER)
}

fn load(seconds: f64, is_back: bool) -> Load {
    Load {
        is_back,
        ..Load::lasting(seconds)
    }
}

/// Makes the tables of tunnels.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "tunnel")?;
    let site = bench.site();
    bench.program_version("iperf3", "--version");
    let (rounds, seconds) = if settings.quick { (1, 3.0) } else { (5, 8.0) };
    let ways = ["to the target", "from the target"];
    let variants = ["iperf3", "tunnel"];
    let key = |way: &str, variant: &str, round: usize| {
        format!("{way}, {variant}, {seconds} s, round {round}")
    };
    let silent = |nic: usize, round: usize| format!("interface {nic} silent, round {round}");
    let lasting = (BEFORE + AFTER).as_secs_f64();
    for round in 1..=rounds {
        for way in ways {
            bench.expect(variants.map(|variant| (key(way, variant, round), seconds + 2.0)));
        }
        bench.expect([0, 1].map(|nic| (silent(nic, round), lasting + 2.0)));
    }
    bench.announce();
    let deadline = Duration::from_secs_f64(60.0 + 10.0 * seconds);
    let mut rates: [[Vec<Rate>; 2]; 2] = Default::default();
    let mut pauses: [Vec<Pause>; 2] = Default::default();
    for round in 1..=rounds {
        for (is_back, (way, rates)) in [false, true].into_iter().zip(ways.iter().zip(&mut rates)) {
            for (variant, rates) in variants.iter().zip(rates) {
                let load = load(seconds, is_back);
                rates.extend(bench.point(&key(way, variant, round), || match *variant {
                    "iperf3" => plain(&site, load, deadline),
                    _ => ours(&site, load, deadline),
                }));
            }
        }
        for (nic, pauses) in pauses.iter_mut().enumerate() {
            pauses.extend(bench.point(&silent(nic, round), || pause(&site, nic)));
        }
    }
    let mut table = Table::new(
        "Connections through a tunnel over two interfaces of 100 Mbit/s",
        &COLUMNS,
    );
    for (way, rates) in ways.iter().zip(&rates) {
        let megabits = |rates: &[Rate]| summary(rates.iter().map(|rate| rate.megabits));
        let beside = megabits(&rates[0]).map(|iperf| iperf.median);
        for (variant, rates) in variants.iter().zip(rates) {
            let Some(rate) = megabits(rates) else {
                continue;
            };
            if *variant == "tunnel" {
                let caps = 2.0 * tcp_rate(RATE) / 1e6;
                let share = rates.iter().map(|rate| rate.megabits / caps * 100.0);
                bench.headline(
                    format!("one connection through `ropewalk tunnel` over two interfaces of 100 Mbit/s, {way}, of what TCP can carry over both"),
                    format!("{} %", spread(share, 1)),
                );
            }
            table.row(vec![
                (*way).into(),
                (*variant).into(),
                number(rate.median, 1),
                format!("{:.1}-{:.1}", rate.min, rate.max).into(),
                number(beside.map(|plain| rate.median / plain * 100.0), 1),
            ]);
        }
    }
    table.note("iperf3: one connection over each interface, both at once, summed. tunnel: one connection of iperf3.");
    let mut quiet = Table::new(
        "An interface of two goes silent: how long bytes pause",
        &PAUSES,
    );
    let names = [
        "the interface of the control connection",
        "the other interface",
    ];
    for (name, pauses) in names.iter().zip(&pauses) {
        let seconds = || pauses.iter().map(|pause| pause.seconds);
        let Some(all) = summary(seconds()) else {
            continue;
        };
        bench.headline(
            format!(
                "longest pause of a connection through `ropewalk tunnel` when {name} goes silent"
            ),
            format!("{} s", spread(seconds(), 2)),
        );
        quiet.row(vec![
            (*name).into(),
            number(all.median, 2),
            format!("{:.2}-{:.2}", all.min, all.max).into(),
        ]);
    }
    quiet.note("A program reads what another one sends without end. The switch drops all frames of the interface, and no end gets a notice.");
    bench.finish(&[table, quiet])
}
