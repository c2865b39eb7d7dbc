//! How far each policy of the tuner is from the best fixed setting, from a cold start, on the packet simulator:
//! `cargo run --release -p ropewalk-measure --example tuner [FLAVOUR [NODES,... [MBIT,...]]]`. Makes
//! `crates/tcp-sim/tests/golden/tuner.txt`.

use ropewalk_tcp_sim::tune::Bed;
use ropewalk_tcp_sim::{FlavourName, TwoClusters};
use ropewalk_tuner::{PolicyName, Setting};

const PACKET_BYTES: u32 = 1448;
const WINDOW: u32 = 2048;
const STREAMS_MAX: u32 = 64;

/// At the rate of the bottleneck.
const SECONDS: f64 = 20.0;

#[derive(Clone)]
struct Cell {
    name: String,
    bed: Bed,
}

fn cell(
    flavour: FlavourName,
    nodes: u32,
    megabits: f64,
    rtt: f64,
    is_bdp: bool,
    loss: f64,
) -> Cell {
    let bits = megabits * 1e6;
    let wire = f64::from(PACKET_BYTES + 40) * 8.0;
    let bdp = (bits * rtt / wire) as usize;
    // Above most trunks, so that their queue is the bottleneck's; 1000 Mbit/s are shared out by it.
    let access = 200e6;
    let net = TwoClusters {
        nodes,
        bits_per_second: bits,
        latency_seconds: rtt / 2.0 - 0.0002,
        queue: if is_bdp { bdp.max(4) } else { 50 },
        loss,
        access_bits_per_second: access,
        access_queue: 1000,
        ..TwoClusters::default()
    };
    let queue = if is_bdp { "BDP" } else { "50" };
    Cell {
        name: format!(
            "{nodes:5} {megabits:6.0} {:5.0} {queue:>5} {:5.1}",
            rtt * 1e3,
            loss * 1e2
        ),
        bed: Bed {
            packets: (bits.min(access * f64::from(nodes)) * SECONDS / wire) as u64,
            net,
            flavour,
            packet_bytes: PACKET_BYTES,
            window: WINDOW,
        },
    }
}

/// A line, and times over the best.
type Row = (String, Vec<f64>);

/// Best setting and its time; then times by policy and of 4, 1 and 32 streams a node, over the best.
fn row(cell: &Cell) -> Row {
    let mut best = (
        SECONDS * 40.0,
        Setting {
            nodes: 1,
            streams: 1,
        },
    );
    let fixed = |setting, limit| cell.bed.fixed(setting, limit).expect("a network").seconds;
    for nodes in [16, 8, 4, 2, 1]
        .into_iter()
        .filter(|n| *n <= cell.bed.net.nodes)
    {
        let net = &cell.bed.net;
        let access = net.access_bits_per_second * f64::from(nodes);
        // Too few to be as fast as the best so far.
        let least = SECONDS
            * net
                .bits_per_second
                .min(net.access_bits_per_second * f64::from(net.nodes))
            / access;
        if least > best.0 {
            continue;
        }
        for streams in [32, 16, 4, 1] {
            let setting = Setting { nodes, streams };
            let seconds = fixed(setting, best.0);
            if seconds < best.0 {
                best = (seconds, setting);
            }
        }
    }
    let limit = best.0 * 6.0;
    let nodes = cell.bed.net.nodes;
    let mut times = Vec::new();
    let mut ends = String::new();
    for name in PolicyName::ALL {
        let went = cell
            .bed
            .tuned(name.make(), STREAMS_MAX, limit)
            .expect("a network");
        times.push(went.seconds / best.0);
        let end = went.steps.last().expect("a first").1;
        ends += &format!(" {:>5}", format!("{}x{}", end.nodes, end.streams));
        if std::env::args().any(|arg| arg == "-v") {
            println!("{} {}: {:?}", cell.name, name.name(), went.steps);
        }
    }
    times.extend([4, 1, 32].map(|streams| fixed(Setting { nodes, streams }, limit) / best.0));
    let ratios: String = times.iter().map(|time| format!(" {time:8.2}")).collect();
    let chosen = format!("{}x{}", best.1.nodes, best.1.streams);
    (
        format!("{} {:6.1} {chosen:>6}{ratios}  {ends}", cell.name, best.0),
        times,
    )
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "-v");
    let flavour = args.next().unwrap_or_else(|| "cubic".into());
    let flavour = FlavourName::named(&flavour).expect("a flavour");
    let numbers = |text: Option<String>, all: &str| -> Vec<f64> {
        let text = text.unwrap_or_else(|| all.to_owned());
        text.split(',')
            .map(|word| word.parse().expect("a number"))
            .collect()
    };
    let nodes = numbers(args.next(), "1,4,16");
    let rates = numbers(args.next(), "10,100,1000");
    let mut cells = Vec::new();
    for &nodes in &nodes {
        for &megabits in &rates {
            for rtt in [0.02, 0.08, 0.16] {
                for is_bdp in [false, true] {
                    for loss in [0.0, 0.001] {
                        cells.push(cell(flavour, nodes as u32, megabits, rtt, is_bdp, loss));
                    }
                }
            }
        }
    }
    let made = |cell: &Cell| {
        let row = row(cell);
        eprintln!("{}", row.0);
        row
    };
    let rows = ropewalk_parallel::map(&cells, None, made, || ());
    println!(
        "{} streams, {SECONDS} s of data, access 200 Mbit/s; times over the best fixed setting's",
        flavour.name()
    );
    println!(
        "nodes Mbit/s RTT ms queue loss%   best setting    model simulate database        4        1       32   last settings"
    );
    for (line, _) in &rows {
        println!("{line}");
    }
    for (word, of) in [("median", 0.5), ("90 %", 0.9), ("worst", 1.0)] {
        let at = |column: usize| {
            let mut all: Vec<f64> = rows.iter().map(|row| row.1[column]).collect();
            all.sort_by(f64::total_cmp);
            all[((all.len() - 1) as f64 * of).round() as usize]
        };
        let values: String = (0..6)
            .map(|column| format!(" {:8.2}", at(column)))
            .collect();
        println!("{word:>43}{values}");
    }
}
