//! Receivers behind a trunk, which every byte crosses once at best, and on both sides of it: declared, and found by round trips.

use std::time::Duration;

use anyhow::Result;
use ropewalk_lab::Topology;
use ropewalk_lab::trunk::{ClusterSpec, LinkSpec, QueueLimit, TrunkSpec};

use crate::bench::Bench;
use crate::network::{hint, tcp_rate};
use crate::ropewalk::{Agents, PORT, Place, words};
use crate::scenario::deadline;
use crate::table::{Cell, Table, number};

use super::{COPY, NAME, Rig, SOURCE, Sample, sent_bytes};

/// The trunk, the caps of hosts beside it, and its round trip.
const TRUNK: u64 = 200_000_000;
const ACCESS: u64 = 400_000_000;
const ROUND_TRIP: Duration = Duration::from_millis(20);

/// How the bytes move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Receivers hand on; the trunk is not declared.
    Auto,
    /// The same, where the transfer's file declares the trunk.
    Declared,
    /// Senders send all copies.
    Off,
}

/// Receivers beside the sender and behind the trunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    beside: usize,
    behind: usize,
    way: Way,
}

const fn point(beside: usize, behind: usize, way: Way) -> Point {
    Point {
        beside,
        behind,
        way,
    }
}

pub(super) const POINTS: [Point; 9] = [
    point(0, 1, Way::Auto),
    point(0, 2, Way::Auto),
    point(0, 4, Way::Auto),
    point(0, 8, Way::Auto),
    point(0, 4, Way::Declared),
    point(0, 8, Way::Declared),
    point(3, 4, Way::Declared),
    point(3, 4, Way::Auto),
    point(0, 4, Way::Off),
];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Declared => "auto, declared",
            Self::Off => "off",
        }
    }
}

impl Point {
    pub(super) fn name(self) -> String {
        let (beside, behind) = (self.beside, self.behind);
        format!("{beside} beside and {behind} behind, {}", self.way.name())
    }

    /// Every byte crosses once, or once for each receiver behind; beside the trunk nothing takes as long.
    pub(super) fn least_seconds(self, bytes: u64) -> f64 {
        let crossings = if self.way == Way::Off { self.behind } else { 1 };
        crossings as f64 * bytes as f64 * 8.0 / tcp_rate(TRUNK)
    }

    /// The transfer's file: full copies of the first sender's file.
    fn specification(self, bytes: u64) -> String {
        let readers = self.readers();
        let rows = readers
            .iter()
            .map(|host| format!("reader {host}:{PORT} {COPY} 0 0+{bytes}\n"));
        let trunk = match self.way {
            Way::Declared => {
                let beside: Vec<&str> = readers[..self.beside].iter().map(String::as_str).collect();
                let near = [&["a1"], &beside[..]].concat().join(",");
                let far = readers[self.beside..].join(",");
                format!("trunk wan {} from {near} to {far}\n", hint(TRUNK))
            }
            Way::Auto | Way::Off => String::new(),
        };
        format!(
            "writer a1:{PORT} {SOURCE}/{NAME} 0 0+{bytes}\n{}{trunk}",
            rows.collect::<String>()
        )
    }

    fn readers(self) -> Vec<String> {
        let beside = (3..3 + self.beside).map(|at| format!("a{at}"));
        let behind = (1..=self.behind).map(|at| format!("b{at}"));
        beside.chain(behind).collect()
    }
}

/// The sender is the first host beside the trunk, the master is on the second.
pub(super) fn measure(rig: &Rig<'_>, point: Point) -> Result<Sample> {
    let link = LinkSpec::rate_bits(TRUNK).delay(ROUND_TRIP / 2);
    let clusters = ClusterSpec {
        hosts: [2 + point.beside, point.behind],
        access_bits_per_second: Some(ACCESS),
        trunk: TrunkSpec::symmetric(link.queue(QueueLimit::Packets(400))),
    };
    let lab = rig.lab(Topology::clusters(&clusters), &["a1".to_owned()])?;
    let mut agents = Agents::new(rig.site)?;
    let sender = ["a1".to_owned()];
    for host in sender.iter().chain(&point.readers()) {
        agents.start_in(&lab, host, &["/data:rw".to_owned()])?;
    }
    let relay = match point.way {
        Way::Off => "off",
        Way::Auto | Way::Declared => "auto",
    };
    let spec = agents.spec(&point.specification(rig.bytes))?;
    let arguments = words(&format!("transfer {spec} --relay {relay}"));
    lab.trunk(0).reset_counters()?;
    let moved = agents.run_once(
        Place::Host(&lab, "a2"),
        &arguments,
        deadline(point.least_seconds(rig.bytes)),
    )?;
    let crossed = lab.trunk(0).counters()?.a_to_b.link.delivered;
    Ok(Sample {
        seconds: moved.report.seconds,
        sent_bytes: sent_bytes(&lab, 1)?,
        // IP, TCP and its time stamps.
        trunk_bytes: Some(crossed.bytes.saturating_sub(crossed.packets * 52)),
        read_bytes: None,
        happened: None,
        moved: Some(moved),
    })
}

const COLUMNS: [(&str, &str); 7] = [
    ("beside", "beside"),
    ("behind", "behind"),
    ("relay", "relay"),
    ("seconds", "s"),
    ("bound_seconds", "bound s"),
    ("percent_of_bound", "% of bound"),
    ("trunk_over_size", "over the trunk/size"),
];

pub(super) fn table(bench: &mut Bench, samples: &[(super::Point, Sample)], bytes: u64) -> Table {
    let title = format!(
        "Full copies of one file of {} MB to receivers beside the sender and behind a trunk of 200 Mbit/s and 20 ms",
        bytes / 1_000_000
    );
    let mut table = Table::new(title, &COLUMNS);
    let mut crossed = Vec::new();
    for (point, sample) in samples {
        let super::Point::Trunk(point) = *point else {
            continue;
        };
        let least = point.least_seconds(bytes);
        let over = sample.trunk_bytes.map(|sent| sent as f64 / bytes as f64);
        table.row(vec![
            number(point.beside as f64, 0),
            number(point.behind as f64, 0),
            point.way.name().into(),
            number(sample.seconds, 2),
            number(least, 2),
            number(least / sample.seconds * 100.0, 1),
            over.map_or(Cell::Empty, |over| number(over, 2)),
        ]);
        if let Some(over) = over.filter(|_| point.way != Way::Off) {
            crossed.push(format!("{}: {over:.2}", point.name()));
        }
    }
    table.note("over the trunk: payload of TCP to the receivers, what is sent twice, hashes and control included. bound: every byte crosses once, or once for each receiver where relays are off.");
    if !crossed.is_empty() {
        bench.headline(
            "receivers behind a trunk: bytes over it, over the size of the data",
            crossed.join("; "),
        );
    }
    table
}

#[cfg(test)]
mod tests {
    use ropewalk_model::{ByteRate, TransferSpec};
    use ropewalk_sched::relay_bound;

    use super::*;

    /// The bound of what the file declares is that of the table, for receivers on one side and on both.
    #[test]
    fn what_is_declared_has_the_bound() {
        for point in POINTS.iter().filter(|point| point.way == Way::Declared) {
            let text = point.specification(200_000_000);
            let spec = TransferSpec::parse(&text).unwrap();
            let problem = spec.to_problem(ByteRate((tcp_rate(ACCESS) / 8.0) as u64));
            let trunk = &problem.trunks[0];
            assert_eq!(
                (
                    trunk.senders.len(),
                    trunk.relays.len(),
                    trunk.receivers.len()
                ),
                (1, point.beside, point.behind)
            );
            let bound = relay_bound(&problem).unwrap().seconds;
            let least = point.least_seconds(200_000_000);
            assert!((bound / least - 1.0).abs() < 1e-6, "{bound} s, {least} s");
        }
    }
}
