//! Several copies of one file: receivers that hand bytes on, and without; beside BitTorrent and multicast.
//!
//! Networks of the lab. **Mixed**: senders of 100, 100, 400 and 400 Mbit/s with the file to four receivers of 500. **Equal**: one
//! sender to 1 to 16 receivers, all of 100 Mbit/s. **Trunk**: one sender to receivers behind a trunk, which every byte crosses once
//! at best. **Uneven**: nodes of unequal speeds, holdings and wants. **Failures**: receivers that die, pause and join in the middle.
//! **Broadcast**: to the nodes of a Slurm job. **Disks**: senders that read slowly.
//! Sources but those on disks are one read-only file in the machine's memory, copies lie in each receiver's.

mod broadcast;
mod disks;
mod failures;
mod multicast;
mod swarm;
mod trunk;
mod uneven;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use ropewalk_lab::{Burst, HostSpec, Lab, LabBuilder, NicSpec, Topology};
use serde::{Deserialize, Serialize};

use crate::bench::{Bench, Settings, Site};
use crate::changed::Happened;
use crate::figures::faults::write_noise;
use crate::machine;
use crate::network::{MASTER, hint, tcp_rate, with_program};
use crate::ropewalk::{Agents, Moved, PORT, Place, words};
use crate::scenario::deadline;
use crate::table::{Table, number};
use ropewalk_plot::{self as plot, Bar, Series, Style, Titles};

/// Caps of the mixed network's senders and receivers.
const SENDERS: [u64; 4] = [100_000_000, 100_000_000, 400_000_000, 400_000_000];
const RECEIVERS: [u64; 4] = [500_000_000; 4];

/// Cap of every host of the equal network, and its receivers.
const EQUAL: u64 = 100_000_000;
const EQUAL_RECEIVERS: [usize; 5] = [1, 2, 4, 8, 16];

/// Programs that print no version end at once with this.
const NO_VERSION: &str = "-V";

/// Where hosts see the file, and where copies go.
const SOURCE: &str = "/data/source";
const NAME: &str = "file";
const COPY: &str = "/data/copy";

/// How long a lab and its programs take to start and end, beside the measured time.
const START_SECONDS: f64 = 3.0;

/// What moves the copies of the mixed network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Ropewalk { hands_on: bool, has_hints: bool },
    BitTorrent,
    Multicast,
}

/// In the order of the table. BitTorrent and multicast do not regard speeds.
const WAYS: [Way; 6] = [
    Way::ropewalk(true, true),
    Way::ropewalk(true, false),
    Way::ropewalk(false, true),
    Way::ropewalk(false, false),
    Way::BitTorrent,
    Way::Multicast,
];

impl Way {
    const fn ropewalk(hands_on: bool, has_hints: bool) -> Self {
        Self::Ropewalk {
            hands_on,
            has_hints,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ropewalk {
                hands_on: true,
                has_hints: true,
            } => "ropewalk, hints",
            Self::Ropewalk {
                hands_on: true,
                has_hints: false,
            } => "ropewalk",
            Self::Ropewalk {
                hands_on: false,
                has_hints: true,
            } => "ropewalk --relay off, hints",
            Self::Ropewalk {
                hands_on: false,
                has_hints: false,
            } => "ropewalk --relay off",
            Self::BitTorrent => "BitTorrent (aria2)",
            Self::Multicast => "multicast (uftp)",
        }
    }

    /// Programs that it needs, with the argument that makes them print their version.
    fn programs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Ropewalk { .. } => &[],
            Self::BitTorrent => &[
                ("aria2c", "--version"),
                ("split", "--version"),
                ("sha1sum", "--version"),
            ],
            Self::Multicast => &[("uftp", NO_VERSION), ("uftpd", NO_VERSION)],
        }
    }

    fn missing(self) -> Vec<&'static str> {
        let is_missing = |need: &&(&'static str, &'static str)| {
            machine::version(Path::new(need.0), need.1).is_none()
        };
        let missing = self.programs().iter().filter(is_missing);
        missing.map(|need| need.0).collect()
    }
}

/// What one run came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Sample {
    /// Until the last copy was complete.
    seconds: f64,
    /// What the senders' interfaces sent, framing and what they sent to one another included.
    sent_bytes: u64,
    /// What crossed the trunk to the receivers, where there is one.
    trunk_bytes: Option<u64>,
    /// What the senders' disks read, where these are slow.
    #[serde(default)]
    read_bytes: Option<u64>,
    /// When something failed or joined, and when it was over.
    happened: Option<Happened>,
    /// Ours only: everything about the run.
    moved: Option<Moved>,
}

/// The file, and what runs it.
struct Rig<'a> {
    site: &'a Site,
    folder: PathBuf,
    bytes: u64,
}

fn names(letter: char, count: usize) -> Vec<String> {
    (1..=count).map(|at| format!("{letter}{at}")).collect()
}

/// `a1:7420:/path`, or `a[1-4]:7420:/path`.
fn place(letter: char, count: usize, path: &str) -> String {
    match count {
        1 => format!("{letter}1:{PORT}:{path}"),
        _ => format!("{letter}[1-{count}]:{PORT}:{path}"),
    }
}

impl Rig<'_> {
    /// A lab in which the senders see the file.
    fn lab(&self, topology: Topology, senders: &[String]) -> Result<Lab> {
        let senders: Vec<&str> = senders.iter().map(String::as_str).collect();
        let builder = with_program(LabBuilder::from(topology), self.site).shared_dir(
            &self.folder,
            SOURCE,
            &senders,
        );
        builder.build().context("cannot build the lab")
    }

    /// The lab without a trunk: senders `a`, receivers `b`.
    fn flat(&self, senders: &[u64], receivers: &[u64], burst: Burst) -> Result<Lab> {
        let side = |letter, caps: &[u64]| -> Vec<HostSpec> {
            let nic = |cap: &u64| NicSpec::rate_bits(*cap).burst(burst);
            let names = names(letter, caps.len()).into_iter();
            let hosts = names.zip(caps);
            hosts
                .map(|(name, cap)| HostSpec::new(name).nic(nic(cap)))
                .collect()
        };
        let hosts = side('a', senders).into_iter().chain(side('b', receivers));
        let topology = Topology {
            hosts: hosts.chain([HostSpec::new(MASTER)]).collect(),
            ..Topology::default()
        };
        self.lab(topology, &names('a', senders.len()))
    }

    /// Agents on senders and receivers.
    fn agents(&self, lab: &Lab, senders: usize, receivers: usize) -> Result<Agents> {
        let mut agents = Agents::new(self.site)?;
        let roots = ["/data:rw".to_owned()];
        for host in names('a', senders).iter().chain(&names('b', receivers)) {
            agents.start_in(lab, host, &roots)?;
        }
        Ok(agents)
    }

    /// Copies the file from all senders to all receivers, with agents on them.
    fn copy(
        &self,
        lab: &Lab,
        (senders, receivers): (usize, usize),
        master: &str,
        options: &str,
        seconds: f64,
    ) -> Result<Sample> {
        let agents = self.agents(lab, senders, receivers)?;
        let from = place('a', senders, &format!("{SOURCE}/{NAME}"));
        let to = place('b', receivers, COPY);
        let arguments = words(&format!("copy {from} {to} {options}"));
        let moved = agents.run_once(Place::Host(lab, master), &arguments, deadline(seconds))?;
        Ok(Sample {
            seconds: moved.report.seconds,
            sent_bytes: sent_bytes(lab, senders)?,
            trunk_bytes: None,
            read_bytes: None,
            happened: None,
            moved: Some(moved),
        })
    }

    fn mixed(&self, way: Way) -> Result<Sample> {
        let lab = self.flat(&SENDERS, &RECEIVERS, Burst::Auto)?;
        let counts = (SENDERS.len(), RECEIVERS.len());
        let (seconds, copy) = match way {
            Way::Ropewalk {
                hands_on,
                has_hints,
            } => {
                let mut options = relay(hands_on).to_owned();
                let caps = names('a', counts.0).into_iter().zip(SENDERS);
                let caps = caps.chain(names('b', counts.1).into_iter().zip(RECEIVERS));
                for (host, cap) in caps.filter(|_| has_hints) {
                    options += &format!(" --node-rate {host}={}", hint(cap));
                }
                let seconds = mixed_seconds(self.bytes, hands_on);
                return self.copy(&lab, counts, MASTER, &options, seconds);
            }
            Way::BitTorrent => (swarm::run(self.site, &lab, self)?, "/data/file"),
            Way::Multicast => (multicast::run(&lab, self)?, "/data/file"),
        };
        for host in names('b', counts.1) {
            let length = fs::metadata(lab.path_in(&host, copy))?.len();
            ensure!(
                length == self.bytes,
                "{host} has {length} of {} bytes",
                self.bytes
            );
        }
        Ok(Sample {
            seconds,
            sent_bytes: sent_bytes(&lab, counts.0)?,
            trunk_bytes: None,
            read_bytes: None,
            happened: None,
            moved: None,
        })
    }

    fn equal(&self, receivers: usize, hands_on: bool) -> Result<Sample> {
        // Receivers that hand on use both directions: from 8 on, packets one by one take both processors.
        let lab = self.flat(&[EQUAL], &vec![EQUAL; receivers], Burst::Whole)?;
        let seconds = equal_seconds(self.bytes, receivers, hands_on);
        self.copy(&lab, (1, receivers), MASTER, relay(hands_on), seconds)
    }
}

fn relay(hands_on: bool) -> &'static str {
    match hands_on {
        true => "--relay auto",
        false => "--relay off",
    }
}

fn sent_bytes(lab: &Lab, senders: usize) -> Result<u64> {
    let mut sent = 0;
    for host in names('a', senders) {
        sent += lab.counters(&host, 0)?.tx_bytes;
    }
    Ok(sent)
}

/// Least time for so many bytes to all receivers of a network; the caps in bits per second.
///
/// Source: Kumar and Ross 2006; Mundinger, Weber and Weiss 2008.
fn least_seconds(bytes: u64, senders: &[u64], receivers: &[u64], hands_on: bool) -> f64 {
    let rate = |caps: &[u64]| caps.iter().map(|cap| tcp_rate(*cap)).sum::<f64>();
    let slowest = receivers.iter().copied().min().unwrap_or(0);
    let (bits, copies) = (bytes as f64 * 8.0, receivers.len() as f64);
    let down = bits / tcp_rate(slowest);
    match hands_on {
        true => {
            let first = bits / rate(senders);
            let all = copies * bits / (rate(senders) + rate(receivers));
            down.max(first).max(all)
        }
        false => down.max(copies * bits / rate(senders)),
    }
}

fn mixed_seconds(bytes: u64, hands_on: bool) -> f64 {
    least_seconds(bytes, &SENDERS, &RECEIVERS, hands_on)
}

fn equal_seconds(bytes: u64, receivers: usize, hands_on: bool) -> f64 {
    least_seconds(bytes, &[EQUAL], &vec![EQUAL; receivers], hands_on)
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    Mixed(Way),
    Equal(usize, bool),
    Trunk(trunk::Point),
    Uneven(uneven::Point),
    Failure(failures::Failure),
    Broadcast(broadcast::Tool),
    Disks(bool),
}

/// Bytes of the file for each network.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    mixed: u64,
    equal: u64,
    trunk: u64,
    uneven: u64,
    windows: u64,
    failures: u64,
    disks: u64,
}

impl Point {
    fn all(quick: bool) -> Vec<Self> {
        let ways = WAYS.into_iter();
        let mut all: Vec<Self> = ways
            // What speeds do is seen with receivers that hand on.
            .filter(|way| !quick || *way != Way::ropewalk(false, true))
            .map(Self::Mixed)
            .collect();
        all.push(Self::Equal(1, false));
        all.extend(EQUAL_RECEIVERS.map(|receivers| Self::Equal(receivers, true)));
        all.push(Self::Equal(4, false));
        all.extend(trunk::POINTS.map(Self::Trunk));
        all.extend(uneven::points().map(Self::Uneven));
        all.extend(failures::ALL.map(Self::Failure));
        all.extend(broadcast::ALL.map(Self::Broadcast));
        all.extend([true, false].map(Self::Disks));
        all
    }

    fn bytes(self, sizes: Sizes) -> u64 {
        match self {
            Self::Mixed(_) => sizes.mixed,
            Self::Equal(..) | Self::Broadcast(_) => sizes.equal,
            Self::Trunk(_) => sizes.trunk,
            Self::Uneven(point) if point.has_windows() => sizes.windows,
            Self::Uneven(_) => sizes.uneven,
            Self::Failure(_) => sizes.failures,
            Self::Disks(_) => sizes.disks,
        }
    }

    fn key(self, sizes: Sizes) -> String {
        let bytes = self.bytes(sizes);
        match self {
            Self::Mixed(way) => format!("mixed, {bytes} bytes, {}", way.name()),
            Self::Equal(receivers, hands_on) => {
                format!(
                    "equal, {bytes} bytes, 1 to {receivers}, {}",
                    relay(hands_on)
                )
            }
            Self::Trunk(point) => format!("trunk, {bytes} bytes, {}", point.name()),
            Self::Uneven(point) => format!("uneven, {bytes} bytes, {}", point.name()),
            Self::Failure(failure) => format!("failures, {bytes} bytes, {}", failure.name()),
            Self::Broadcast(tool) => format!("broadcast, {bytes} bytes, {}", tool.name()),
            Self::Disks(hands_on) => disks::key(bytes, relay(hands_on)),
        }
    }

    fn seconds(self, sizes: Sizes) -> f64 {
        let bytes = self.bytes(sizes);
        let least = match self {
            Self::Mixed(Way::Ropewalk { hands_on, .. }) => mixed_seconds(bytes, hands_on),
            Self::Mixed(_) => 1.5 * mixed_seconds(bytes, true),
            Self::Equal(receivers, hands_on) => equal_seconds(bytes, receivers, hands_on),
            Self::Trunk(point) => point.least_seconds(bytes),
            Self::Uneven(point) => point.least_seconds(bytes).unwrap_or(0.0),
            Self::Failure(_) => 2.0 * equal_seconds(bytes, 4, true),
            Self::Broadcast(tool) => tool.seconds(bytes),
            Self::Disks(_) => disks::least_seconds(bytes),
        };
        least + START_SECONDS
    }

    fn measure(self, rig: &Rig<'_>) -> Result<Sample> {
        match self {
            Self::Mixed(way) => rig.mixed(way),
            Self::Equal(receivers, hands_on) => rig.equal(receivers, hands_on),
            Self::Trunk(point) => trunk::measure(rig, point),
            Self::Uneven(point) => uneven::measure(rig, point),
            Self::Failure(failure) => failures::measure(rig, failure),
            Self::Broadcast(tool) => broadcast::measure(rig, tool),
            Self::Disks(hands_on) => disks::measure(rig, hands_on),
        }
    }
}

/// Makes the figure.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "relays")?;
    let site = bench.site();
    let sizes = match settings.quick {
        true => Sizes {
            mixed: 300_000_000,
            equal: 30_000_000,
            trunk: 30_000_000,
            uneven: 60_000_000,
            windows: 180_000_000,
            failures: 60_000_000,
            disks: 180_000_000,
        },
        false => Sizes {
            mixed: 1_200_000_000,
            // Long enough, 20 s or more, that the start and the end, a second or so, are not what is seen.
            equal: 240_000_000,
            trunk: 480_000_000,
            uneven: 480_000_000,
            windows: 1_440_000_000,
            failures: 120_000_000,
            disks: 480_000_000,
        },
    };
    let programs = WAYS.iter().flat_map(|way| way.programs());
    for (program, argument) in programs.filter(|(_, argument)| *argument != NO_VERSION) {
        bench.program_version(program, argument);
    }
    let is_present = |point: &Point| match point {
        Point::Mixed(way) => way.missing().is_empty(),
        Point::Broadcast(_) => broadcast::Tool::is_present(),
        _ => true,
    };
    let points: Vec<Point> = Point::all(settings.quick)
        .into_iter()
        .filter(is_present)
        .collect();
    bench.expect(
        points
            .iter()
            .map(|point| (point.key(sizes), point.seconds(sizes))),
    );
    bench.announce();

    // In memory: what is compared is the network.
    let shm = Path::new("/dev/shm");
    let scratch = tempfile::Builder::new()
        .prefix("reproduce-")
        .tempdir_in(if shm.is_dir() { shm } else { &site.scratch })?;
    let mut rig = Rig {
        site: &site,
        folder: scratch.path().to_owned(),
        bytes: 0,
    };
    let mut samples: Vec<(Point, Sample)> = Vec::new();
    for point in points {
        let bytes = point.bytes(sizes);
        if rig.bytes != bytes {
            write_noise(&rig.folder.join(NAME), bytes)?;
            rig.bytes = bytes;
        }
        let sample = bench.point(&point.key(sizes), || point.measure(&rig));
        samples.extend(sample.map(|sample| (point, sample)));
    }
    let tables = [
        mixed_table(&mut bench, &samples, sizes.mixed)?,
        equal_table(&mut bench, &samples, sizes.equal)?,
        trunk::table(&mut bench, &samples, sizes.trunk),
        uneven::table(&mut bench, &samples, sizes)?,
        failures::table(&mut bench, &samples, sizes.failures)?,
        broadcast::table(&mut bench, &samples, sizes.equal),
        disks::table(&mut bench, &samples, sizes.disks),
    ];
    bench.finish(&tables)
}

const MIXED_COLUMNS: [(&str, &str); 7] = [
    ("case", "case"),
    ("seconds", "s"),
    ("megabits_per_second", "Mbit/s"),
    ("bound_megabits_per_second", "bound"),
    ("percent_of_bound", "% of bound"),
    ("sent_over_size", "sent/size"),
    ("processor_seconds", "cpu s"),
];

fn mixed_table(bench: &mut Bench, samples: &[(Point, Sample)], bytes: u64) -> Result<Table> {
    let title = format!(
        "Full copies of one file of {} MB, senders of 100 + 100 + 400 + 400 Mbit/s, four receivers of 500",
        bytes / 1_000_000
    );
    let mut table = Table::new(title, &MIXED_COLUMNS);
    let wanted = RECEIVERS.len() as f64 * bytes as f64 * 8.0 / 1e6;
    let bound = wanted / mixed_seconds(bytes, true);
    let mut bars = Vec::new();
    for way in WAYS {
        let found = samples
            .iter()
            .find(|(point, _)| *point == Point::Mixed(way));
        let Some((_, sample)) = found else {
            let missing = way.missing();
            if !missing.is_empty() {
                table.note(format!("{}: missing {}", way.name(), missing.join(", ")));
            }
            continue;
        };
        let rate = wanted / sample.seconds;
        let processor = sample.moved.as_ref().map(Moved::processor_seconds);
        table.row(vec![
            way.name().into(),
            number(sample.seconds, 2),
            number(rate, 0),
            number(bound, 0),
            number(rate / bound * 100.0, 1),
            number(sample.sent_bytes as f64 / bytes as f64, 2),
            number(processor, 1),
        ]);
        bench.headline(
            format!(
                "senders of 100 + 100 + 400 + 400 Mbit/s, full copies to four receivers of 500: {}",
                way.name()
            ),
            format!(
                "{rate:.0} Mbit/s, {:.1} % of the bound",
                rate / bound * 100.0
            ),
        );
        bars.push(Bar {
            label: way.name().into(),
            value: rate,
            range: (rate, rate),
            group: usize::from(matches!(way, Way::Ropewalk { .. })),
        });
    }
    table.note("bound: what TCP can carry where receivers hand on, for all receivers together. sent: by the senders' interfaces, framing included.");
    table.note("ropewalk and BitTorrent check contents, ropewalk encrypts; multicast goes out of one sender of 400 Mbit/s, at 370.");
    let titles = Titles {
        title: "Full copies to four receivers",
        x: "Mbit/s, all receivers together",
        y: "",
    };
    plot::bars(&bench.plot_path("mixed"), titles, &bars)?;
    Ok(table)
}

const EQUAL_COLUMNS: [(&str, &str); 7] = [
    ("receivers", "receivers"),
    ("relay", "relay"),
    ("seconds", "s"),
    ("over_one_receiver", "over 1 to 1"),
    ("bound_seconds", "bound s"),
    ("percent_of_bound", "% of bound"),
    ("sent_over_size", "sent/size"),
];

fn equal_table(bench: &mut Bench, samples: &[(Point, Sample)], bytes: u64) -> Result<Table> {
    let title = format!(
        "Full copies of one file of {} MB, one sender, all hosts of 100 Mbit/s",
        bytes / 1_000_000
    );
    let mut table = Table::new(title, &EQUAL_COLUMNS);
    let one = samples
        .iter()
        .find(|(point, _)| *point == Point::Equal(1, false));
    let one = one.map(|(_, sample)| sample.seconds);
    let mut measured = Series::new("ropewalk", Style::Marks);
    let mut over = Vec::new();
    for (point, sample) in samples {
        let Point::Equal(receivers, hands_on) = *point else {
            continue;
        };
        let least = equal_seconds(bytes, receivers, hands_on);
        let share = one.map(|one| sample.seconds / one);
        table.row(vec![
            number(receivers as f64, 0),
            if hands_on { "auto" } else { "off" }.into(),
            number(sample.seconds, 2),
            number(share, 3),
            number(least, 2),
            number(least / sample.seconds * 100.0, 1),
            number(sample.sent_bytes as f64 / bytes as f64, 2),
        ]);
        if let Some(share) = share.filter(|_| hands_on) {
            measured.points.push((receivers as f64, share));
            over.push(format!("{receivers}: {share:.2}"));
        }
    }
    table.note("over 1 to 1: of the time with one receiver and --relay off. bound: without relays where these are off. Links pass 70 kB at once, so that the network leaves the programs processor time.");
    if !over.is_empty() {
        bench.headline(
            "one sender to N receivers, all of 100 Mbit/s: time over that of 1 to 1",
            over.join(", "),
        );
    }
    let without = EQUAL_RECEIVERS[..3].iter().map(|n| (*n as f64, *n as f64));
    let series = [
        measured,
        Series::with("bound without relays", Style::Dashed, without.collect()),
    ];
    let titles = Titles {
        title: "Time of N copies over that of one",
        x: "receivers",
        y: "time over 1 to 1",
    };
    plot::lines(&bench.plot_path("equal"), titles, &[], &series)?;
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bounds are those of the issue: 923 of 2,000 Mbit/s without relays becomes 1,912 with them, and 16 copies take no longer than one.
    #[test]
    fn bounds() {
        let rate = |hands_on| 4.0 * 8.0 * 1e9 / mixed_seconds(1_000_000_000, hands_on) / 1e6;
        assert!((rate(true) - 1912.8).abs() < 1.0, "{}", rate(true));
        assert!((rate(false) - 956.4).abs() < 1.0, "{}", rate(false));
        let copies = |receivers| equal_seconds(1_000_000_000, receivers, true);
        assert!((copies(16) / copies(1) - 1.0).abs() < 1e-9);
    }

    /// No two points share a key, and sizes are part of it.
    #[test]
    fn keys() {
        let sizes = |mixed| Sizes {
            mixed,
            equal: 1,
            trunk: 2,
            uneven: 3,
            windows: 6,
            failures: 4,
            disks: 5,
        };
        let keys = |mixed| -> std::collections::BTreeSet<String> {
            let all = Point::all(false).into_iter();
            all.map(|point| point.key(sizes(mixed))).collect()
        };
        assert_eq!(keys(3).len(), Point::all(false).len());
        let shared = Point::all(false).len() - WAYS.len();
        assert_eq!(keys(3).intersection(&keys(4)).count(), shared);
    }
}
