//! Two hosts of several rails, the measuring command between them, and what it prints.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, ensure};
use ropewalk_lab::{Burst, HostSpec, Lab, NicSpec};
use serde::{Deserialize, Serialize};

use crate::bench::Site;
use crate::network::lab;
use crate::process::{self, Process};
use crate::ropewalk::Place;

/// Where the answering end listens; in a lab host it is free.
const PORT: u16 = 7430;

/// A program listens within milliseconds; a loaded machine may take longer.
const START_MAX: Duration = Duration::from_secs(20);

/// One mebibyte.
pub(super) const MIB: u64 = 1 << 20;

/// One point of a round trip, as `ropewalk-bench pingpong --json` has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Point {
    pub bytes: u64,
    pub method: String,
    pub rounds: u32,
    pub round_trip_seconds: f64,
    pub bits_per_second: f64,
    pub efficiency_percent: Option<f64>,
    pub cpu_percent: f64,
    pub own_cpu_percent: f64,
}

/// Cut-offs found in three ways; `None` for never.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct CutOffs {
    pub fit_bytes: Option<u64>,
    pub search_bytes: Option<u64>,
    pub sweep_bytes: Option<u64>,
}

/// What had come at some time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Sample {
    pub at_seconds: f64,
    pub delivered_bytes: u64,
    pub rail_bytes: Vec<u64>,
}

/// A pause between deliveries.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Gap {
    pub at_seconds: f64,
    pub seconds: f64,
}

/// A stream as its receiving end saw it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Seen {
    pub began_unix_seconds: f64,
    pub seconds: f64,
    pub messages: u64,
    pub bytes: u64,
    pub lost: u64,
    pub doubled: u64,
    pub out_of_order: u64,
    pub damaged: u64,
    pub gaps: Vec<Gap>,
    pub samples: Vec<Sample>,
}

impl Seen {
    /// Messages that are not there once, whole and in order.
    pub fn faults(&self) -> u64 {
        self.lost + self.doubled + self.out_of_order + self.damaged
    }

    /// Megabits per second between two times; `None` when the stream was not running for all of that time.
    pub fn megabits(&self, from: f64, to: f64) -> Option<f64> {
        let at = |time: f64| {
            self.samples
                .iter()
                .rfind(|sample| sample.at_seconds <= time)
        };
        let (first, last) = (at(from)?, at(to)?);
        let seconds = last.at_seconds - first.at_seconds;
        let is_whole = to <= self.seconds && seconds > 0.0;
        is_whole.then(|| (last.delivered_bytes - first.delivered_bytes) as f64 * 8e-6 / seconds)
    }
}

/// One stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Stream {
    pub bytes: u64,
    pub method: String,
    pub messages: u64,
    pub seconds: f64,
    pub bits_per_second: f64,
    pub cpu_percent: f64,
    pub own_cpu_percent: f64,
    pub seen: Option<Seen>,
}

/// Everything that one run of the command printed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    pub rails: usize,
    pub points: Vec<Point>,
    pub cut_off: Option<CutOffs>,
    pub streams: Vec<Stream>,
}

impl Measured {
    /// The only stream.
    pub fn stream(self) -> Result<Stream> {
        self.streams
            .into_iter()
            .next()
            .context("no stream was measured")
    }
}

/// Hosts `a` and `b`, a rail for each rate in bits per second.
pub(super) fn two(rails: &[u64], site: &Site) -> Result<Lab> {
    build(rails, NicSpec::rate_bits, site)
}

/// The same for round trips: a cap saves up, while the other direction is busy, what the next message may then send at
/// once, so that short messages would see twice the rate. So slow rails save up as little as keeps the rate.
pub(super) fn two_for_round_trips(rails: &[u64], site: &Site) -> Result<Lab> {
    let nic = |rate: u64| match burst(rate) {
        Some(bytes) => NicSpec::rate_bits(rate).burst(Burst::Bytes(bytes)),
        None => NicSpec::rate_bits(rate),
    };
    build(rails, nic, site)
}

/// The fastest rail whose frames the kernel's timers can space one by one: at 1 Gbit/s, buckets of 100 us let TCP have
/// 590 of its 956 Mbit/s here.
const SPACED_MAX: u64 = 200_000_000;

/// 100 us of a rate, two frames at least; `None` for the lab's own 2 ms.
fn burst(bits_per_second: u64) -> Option<u32> {
    let bytes = u32::try_from(bits_per_second / 80_000).ok()?;
    (bits_per_second <= SPACED_MAX).then_some(bytes.max(2 * 1514))
}

fn build(rails: &[u64], nic: impl Fn(u64) -> NicSpec, site: &Site) -> Result<Lab> {
    let host = |name: &str| {
        let nics = rails.iter().map(|rate| nic(*rate));
        nics.fold(HostSpec::new(name), HostSpec::nic)
    };
    lab([host("a"), host("b")], site)
}

/// Addresses of a host, one for each rail.
pub(super) fn addresses(lab: &Lab, host: &str) -> Vec<String> {
    let nics = lab.nics(host);
    nics.iter().map(|nic| nic.ipv4.to_string()).collect()
}

fn some(all: &[String], rails: &[usize]) -> Vec<String> {
    rails.iter().map(|rail| all[*rail].clone()).collect()
}

/// Starts the answering end in host `b`, on these rails.
pub(super) fn serve(lab: &Lab, site: &Site, rails: &[usize]) -> Result<Process> {
    serve_at(lab, site, &some(&addresses(lab, "b"), rails))
}

fn serve_at(lab: &Lab, site: &Site, own: &[String]) -> Result<Process> {
    let mut command = Place::Host(lab, "b").command(&site.bench);
    command.args(["pingpong", "--plain", "--serve"]);
    command.args(own.iter().map(|own| format!("{own}:{PORT}")));
    let process = Process::start(command)?;
    for _ in own {
        let line = process.line(START_MAX)?;
        let listens = line
            .as_deref()
            .is_some_and(|line| line.starts_with("listening on "));
        ensure!(listens, "the answering end says {line:?}");
    }
    Ok(process)
}

/// Starts the measuring end in host `a`, over these rails in this order.
pub(super) fn begin(
    lab: &Lab,
    site: &Site,
    rails: &[usize],
    arguments: &[&str],
) -> Result<Process> {
    let (own, peer) = (addresses(lab, "a"), addresses(lab, "b"));
    begin_at(
        lab,
        site,
        &some(&own, rails),
        &some(&peer, rails),
        arguments,
    )
}

fn begin_at(
    lab: &Lab,
    site: &Site,
    own: &[String],
    peer: &[String],
    arguments: &[&str],
) -> Result<Process> {
    let mut command = Place::Host(lab, "a").command(&site.bench);
    command.args(["pingpong", "--plain", "--json", "--rails", &own.join(",")]);
    // What is compared here begins with nothing known, and leaves nothing behind.
    command.args(["--cut-offs", "off"]);
    command.args(arguments);
    command.args(peer.iter().map(|peer| format!("{peer}:{PORT}")));
    Process::start(command)
}

/// Waits for the measuring end and reads what it printed.
pub(super) fn finish(process: Process, deadline: Duration) -> Result<Measured> {
    read(&process.finish(deadline)?.success("the measurement")?)
}

fn read(ended: &process::Ended) -> Result<Measured> {
    let line = ended
        .output
        .last()
        .context("the measurement printed nothing")?;
    serde_json::from_str(line).with_context(|| format!("no measurement: {line}"))
}

/// Runs a measurement over these rails from its beginning to its end.
pub(super) fn measure(
    lab: &Lab,
    site: &Site,
    rails: &[usize],
    arguments: &[&str],
    deadline: Duration,
) -> Result<Measured> {
    let serving = serve(lab, site, rails)?;
    let measured = finish(begin(lab, site, rails, arguments)?, deadline);
    let words = serving.stop()?.errors;
    measured.with_context(|| format!("the answering end said: {:?}", words.trim()))
}

/// The same over one address of each host that is no rail's.
pub(super) fn measure_between(
    lab: &Lab,
    site: &Site,
    (own, peer): (&str, &str),
    arguments: &[&str],
    deadline: Duration,
) -> Result<Measured> {
    let (own, peer) = ([own.to_owned()], [peer.to_owned()]);
    let serving = serve_at(lab, site, &peer)?;
    let measured = finish(begin_at(lab, site, &own, &peer, arguments)?, deadline)?;
    serving.stop()?;
    Ok(measured)
}

/// Waits until host `a` has sent so many bytes on an interface.
pub(super) fn wait_sent(lab: &Lab, nic: usize, bytes: u64, most: Duration) -> Result<()> {
    let until = Instant::now() + most;
    while lab.counters("a", nic)?.tx_bytes < bytes {
        ensure!(Instant::now() < until, "nothing was sent within {most:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// The clock that [`Seen::began_unix_seconds`] is of.
pub(super) fn unix_seconds() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

/// `2 x 100`, or `1000 + 500 + 100`.
pub(super) fn name(rails: &[u64]) -> String {
    let megabits: Vec<String> = rails
        .iter()
        .map(|rate| (rate / 1_000_000).to_string())
        .collect();
    match rails {
        [first, rest @ ..] if rest.iter().all(|rate| rate == first) => {
            format!("{} x {}", rails.len(), megabits[0])
        }
        _ => megabits.join(" + "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates are of what came between two times while the stream ran.
    #[test]
    fn rates_between_times() {
        let sample = |at_seconds, delivered_bytes| Sample {
            at_seconds,
            delivered_bytes,
            ..Sample::default()
        };
        let seen = Seen {
            seconds: 3.0,
            samples: vec![
                sample(0.0, 0),
                sample(1.0, 1_000_000),
                sample(2.0, 3_000_000),
            ],
            ..Seen::default()
        };
        assert_eq!(seen.megabits(0.0, 1.5), Some(8.0));
        assert_eq!(seen.megabits(1.0, 2.0), Some(16.0));
        assert_eq!(seen.megabits(1.0, 4.0), None);
        assert_eq!(seen.megabits(1.1, 1.2), None);
        assert_eq!(
            (burst(1_000_000_000), burst(100_000_000)),
            (None, Some(3028))
        );
        assert_eq!(name(&[100_000_000; 2]), "2 x 100");
        assert_eq!(name(&[1_000_000_000, 500_000_000]), "1000 + 500");
    }
}
