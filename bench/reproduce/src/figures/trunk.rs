//! The lab's trunk itself: what it carries, how TCP fares over it, and how true its delay and rate are.
//!
//! Flows between two hosts that have the trunk as an interface of their own. Bytes of the first seconds do not count,
//! and the trunk resets its counters when they are over. A run in which the relay did not keep up is shown, marked, with the
//! reason in `runs.jsonl`.

mod echo;
mod tables;

use std::time::Duration;

use anyhow::{Context as _, Result};
use ropewalk_lab::trunk::{LinkSpec, Loss, QueueLimit, TrunkCounters, TrunkSpec};
use ropewalk_lab::{Lab, LabBuilder, Topology};
use serde::{Deserialize, Serialize};

use crate::bench::{Bench, Settings};
use crate::iperf::{self, Load, PORT, Pair, Until};
use crate::ropewalk::Place;

/// What a packet on the trunk may weigh: Ethernet, jumbo frames, and the largest that IP knows, less some room.
const MTUS: [u32; 3] = [1500, 9000, 65_000];
/// The cells of the table of TCP over the trunk.
const ROUND_TRIPS: [u64; 3] = [20, 80, 160];
const QUEUES: [Queue; 2] = [Queue::Fifty, Queue::Product];
const CONTROLS: [&str; 3] = ["reno", "cubic", "bbr"];
const LOSSES: [f64; 3] = [0.0, 0.0001, 0.01];
/// The trunk of that table.
const RATE: u64 = 100_000_000;
const MTU: u32 = 1500;
/// Idle paths: round trip in milliseconds, spinning in microseconds.
const IDLE: [(u64, u64); 8] = [
    (0, 0),
    (20, 0),
    (20, 200),
    (50, 0),
    (80, 0),
    (80, 200),
    (120, 0),
    (200, 0),
];
/// Rate, MTU, tick and spinning in microseconds.
type Setting = (u64, u32, u64, u64);

/// What processor time and lateness are measured at.
const LOADS: [Setting; 10] = [
    (100_000_000, 1500, 0, 0),
    (100_000_000, 1500, 0, 20),
    (100_000_000, 1500, 50, 0),
    (100_000_000, 1500, 200, 0),
    (1_000_000_000, 1500, 0, 0),
    (1_000_000_000, 1500, 0, 20),
    (1_000_000_000, 1500, 50, 0),
    (1_000_000_000, 1500, 100, 0),
    (1_000_000_000, 1500, 200, 0),
    (1_000_000_000, 9000, 0, 0),
];

/// How long a lab, and the ends of iperf3, take beside the measured time.
const START_SECONDS: f64 = 1.5;

/// The drop-tail queue of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// 50 packets.
    Fifty,
    /// One bandwidth-delay product, in packets.
    Product,
}

impl Queue {
    pub fn packets(self, rate: u64, mtu: u32, round_trip_ms: u64) -> u32 {
        let product = rate * round_trip_ms / 1000 / 8 / u64::from(mtu);
        match self {
            Self::Fifty => 50,
            // Never less than what lets a flow run at all.
            Self::Product => u32::try_from(product).unwrap_or(u32::MAX).max(50),
        }
    }
}

/// TCP over the trunk.
#[derive(Clone, Debug)]
struct Flow {
    trunk: TrunkSpec,
    control: &'static str,
    until: Until,
    streams: u32,
    zero_copy: bool,
}

/// What a flow came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Sample {
    /// Payload.
    megabits_per_second: f64,
    /// As the sender's kernel saw it on the first connection, queue included.
    round_trip_milliseconds: f64,
    retransmits: u64,
    /// Of the measured time.
    counters: TrunkCounters,
    /// Why the run does not count; none = it does.
    invalid: Vec<String>,
}

fn lab(trunk: TrunkSpec, control: &str) -> Result<Lab> {
    let builder = LabBuilder::from(Topology::pair_over(trunk));
    builder
        .congestion_control(control)
        .build()
        .context("cannot build the lab")
}

/// A trunk of one rate and half the round trip each way, with a queue in the direction of the data; what comes back
/// has room.
pub(super) fn trunk(
    rate: Option<u64>,
    mtu: u32,
    round_trip_ms: u64,
    queue_packets: u32,
) -> TrunkSpec {
    let link = LinkSpec {
        bits_per_second: rate,
        ..LinkSpec::unlimited().delay(Duration::from_micros(round_trip_ms * 500))
    };
    TrunkSpec {
        a_to_b: link.clone().queue(QueueLimit::Packets(queue_packets)),
        b_to_a: link.queue(QueueLimit::Packets(100_000)),
        ..TrunkSpec::default()
    }
    .mtu(mtu)
}

impl Flow {
    fn seconds(&self) -> (u32, u32) {
        match self.until {
            Until::Seconds { warm_up, measured } => (warm_up, measured),
            Until::Bytes(_) => (0, 0),
        }
    }

    fn expected_seconds(&self) -> f64 {
        let (warm_up, measured) = self.seconds();
        f64::from(warm_up + measured) + START_SECONDS
    }

    fn run(&self) -> Result<Sample> {
        let lab = lab(self.trunk.clone(), self.control)?;
        let address = lab.address("receiver").to_string();
        let pair = Pair {
            from: Place::Host(&lab, "sender"),
            to: Place::Host(&lab, "receiver"),
            address: &address,
            port: PORT,
        };
        let load = Load {
            until: self.until,
            zero_copy: self.zero_copy,
            ..Load::plain(0, self.streams)
        };
        let (warm_up, measured) = self.seconds();
        let (carried, counted) = std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                std::thread::sleep(Duration::from_secs(warm_up.into()));
                lab.trunk(0).reset_counters()?;
                std::thread::sleep(Duration::from_secs(measured.into()));
                Ok((lab.trunk(0).counters()?, lab.trunk(0).validity()?))
            });
            let deadline = Duration::from_secs(60 + u64::from(warm_up + measured) * 2);
            let carried = iperf::run(&[pair], load, deadline);
            let counted: Result<_> = watch
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (carried, counted)
        });
        let (carried, (counters, validity)) = (carried?, counted?);
        let sender = &carried.outputs[0]["end"]["streams"][0]["sender"];
        Ok(Sample {
            megabits_per_second: carried.megabits(),
            round_trip_milliseconds: sender["mean_rtt"].as_f64().unwrap_or(f64::NAN) / 1e3,
            retransmits: carried.outputs[0]["end"]["sum_sent"]["retransmits"]
                .as_u64()
                .unwrap_or(0),
            counters,
            invalid: validity.reasons,
        })
    }
}

/// A cell of the table of TCP over the trunk.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    round_trip_ms: u64,
    queue: Queue,
    loss: f64,
    control: &'static str,
}

impl Cell {
    fn all(is_quick: bool) -> Vec<Self> {
        let mut cells = Vec::new();
        for round_trip_ms in ROUND_TRIPS {
            for queue in QUEUES {
                for loss in LOSSES {
                    for control in CONTROLS {
                        let cell = Self {
                            round_trip_ms,
                            queue,
                            loss,
                            control,
                        };
                        cells.push(cell);
                    }
                }
            }
        }
        if is_quick {
            // Where a few seconds are enough to tell.
            cells.retain(|cell| {
                cell.queue == Queue::Product && cell.loss != 0.0001 && cell.round_trip_ms <= 80
            });
        }
        cells
    }

    fn queue_packets(self) -> u32 {
        self.queue.packets(RATE, MTU, self.round_trip_ms)
    }

    fn flow(self, is_quick: bool) -> Flow {
        let mut trunk = trunk(Some(RATE), MTU, self.round_trip_ms, self.queue_packets());
        trunk.a_to_b = trunk.a_to_b.loss(Loss::independent(self.loss));
        let until = match (is_quick, self.control, self.loss) {
            (true, ..) => Until::Seconds {
                warm_up: 4,
                measured: 8,
            },
            // One packet a round trip is slow, and losses are rare.
            (false, "reno", loss) if loss > 0.0 && loss < 0.001 => Until::Seconds {
                warm_up: 26,
                measured: 90,
            },
            (false, ..) => Until::Seconds {
                warm_up: 10 + u32::try_from(self.round_trip_ms / 10).unwrap_or(0),
                measured: 25,
            },
        };
        Flow {
            trunk,
            control: self.control,
            until,
            streams: 1,
            zero_copy: false,
        }
    }

    fn key(self, flow: &Flow) -> String {
        let (warm_up, measured) = flow.seconds();
        format!(
            "tcp {}, {} ms, queue {}, loss {}, {warm_up}+{measured} s",
            self.control,
            self.round_trip_ms,
            self.queue_packets(),
            self.loss
        )
    }
}

fn unlimited(mtu: u32, seconds: u32) -> Flow {
    Flow {
        trunk: TrunkSpec {
            // A relay that takes whole processors before all others would leave the ends nothing.
            real_time: false,
            ..trunk(None, mtu, 0, 1)
        },
        control: "cubic",
        until: Until::Seconds {
            warm_up: 1,
            measured: seconds,
        },
        streams: 1,
        zero_copy: true,
    }
}

fn loaded((rate, mtu, tick, spin): Setting, seconds: u32) -> Flow {
    let queue = Queue::Product.packets(rate, mtu, 20);
    Flow {
        trunk: TrunkSpec {
            tick_microseconds: tick,
            spin_microseconds: spin,
            ..trunk(Some(rate), mtu, 20, queue)
        },
        control: "cubic",
        until: Until::Seconds {
            warm_up: 4,
            measured: seconds,
        },
        // One alone may leave slow start early, upon a delay that only the busy machine made, and then takes a minute.
        streams: 4,
        zero_copy: true,
    }
}

/// Makes the tables.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "trunk")?;
    bench.program_version("iperf3", "--version");
    let is_quick = settings.quick;
    let (rounds, seconds) = if is_quick { (1, 4) } else { (3, 10) };

    let mut flows: Vec<(String, Flow)> = Vec::new();
    for round in 1..=rounds {
        for mtu in MTUS {
            let key = format!("unlimited, MTU {mtu}, {seconds} s, round {round}");
            flows.push((key, unlimited(mtu, seconds)));
        }
        for load in LOADS {
            let (rate, mtu, tick, spin) = load;
            let key = format!(
                "load {rate} by 4 flows, MTU {mtu}, tick {tick}, spin {spin}, {seconds} s, round {round}"
            );
            flows.push((key, loaded(load, seconds)));
        }
    }
    let cells = Cell::all(is_quick);
    for cell in &cells {
        let flow = cell.flow(is_quick);
        flows.push((cell.key(&flow), flow));
    }
    let echoes = IDLE.map(|(ms, spin)| {
        let key = format!("idle {ms} ms, spin {spin}, {} echoes", echo::COUNT);
        (key, ms, spin)
    });
    let expected = |(key, flow): &(String, Flow)| (key.clone(), flow.expected_seconds());
    bench.expect(flows.iter().map(expected));
    bench.expect(echoes.iter().map(|(key, ms, _)| {
        let seconds = START_SECONDS + echo::COUNT as f64 * (*ms as f64 + 1.0) / 1e3;
        (key.clone(), seconds)
    }));
    bench.announce();

    let mut idle = Vec::new();
    for (key, ms, spin) in &echoes {
        let trunk = TrunkSpec {
            spin_microseconds: *spin,
            ..trunk(None, MTU, *ms, 1)
        };
        let measure = || echo::measure(&lab(trunk, "cubic")?);
        idle.push((*ms, *spin, bench.point(key, measure)));
    }
    let mut samples = Vec::new();
    for (key, flow) in &flows {
        samples.push(bench.point(key, || flow.run()));
    }
    // As the flows were listed: rounds first, cells last.
    let (of_rounds, of_cells) = samples.split_at(samples.len() - cells.len());
    let nth = |at: usize| -> Vec<Sample> {
        let rounds = of_rounds.chunks(MTUS.len() + LOADS.len());
        rounds.filter_map(|round| round[at].clone()).collect()
    };
    let by_mtu: Vec<_> = (0..MTUS.len()).map(|at| (MTUS[at], nth(at))).collect();
    let by_load: Vec<_> = (0..LOADS.len())
        .map(|at| (LOADS[at], nth(MTUS.len() + at)))
        .collect();
    bench.finish(&[
        tables::unlimited(&by_mtu),
        tables::tcp(&cells, of_cells),
        tables::idle(&idle),
        tables::loads(&by_load),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Queues of one bandwidth-delay product are those of the hand calculation, and never below 50 packets.
    #[test]
    fn queues() {
        let product = |ms| Queue::Product.packets(RATE, MTU, ms);
        assert_eq!([product(20), product(80), product(160)], [166, 666, 1333]);
        assert_eq!(product(1), 50);
        assert_eq!(Queue::Fifty.packets(RATE, MTU, 160), 50);
    }

    /// The quick table is a part of the full one, and no two cells of the full one share a key.
    #[test]
    fn cells() {
        let all = Cell::all(false);
        assert_eq!(all.len(), 54);
        let keys: std::collections::BTreeSet<String> =
            all.iter().map(|cell| cell.key(&cell.flow(false))).collect();
        assert_eq!(keys.len(), 54);
        let quick = Cell::all(true);
        assert_eq!(quick.len(), 12);
        assert!(quick.iter().all(|cell| all.contains(cell)));
    }

    /// Half of the round trip goes each way, and loss hits the data only.
    #[test]
    fn directions() {
        let cell = Cell {
            round_trip_ms: 80,
            queue: Queue::Product,
            loss: 0.01,
            control: "reno",
        };
        let trunk = cell.flow(true).trunk;
        assert_eq!(trunk.a_to_b.delay_microseconds, 40_000);
        assert_eq!(trunk.b_to_a.delay_microseconds, 40_000);
        assert_eq!(trunk.a_to_b.loss, Loss::independent(0.01));
        assert_eq!(trunk.b_to_a.loss, Loss::default());
    }
}
