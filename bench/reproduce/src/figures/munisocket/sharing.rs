//! Two transfers and a stream of messages at once over the same two rails: none starves.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use ropewalk_lab::Lab;
use ropewalk_proto::report::Event;
use serde::{Deserialize, Serialize};

use super::Scale;
use super::hosts::{self, MIB, unix_seconds};
use crate::bench::{Bench, Site};
use crate::network::{MASTER, tcp_rate};
use crate::ropewalk::{Agents, PORT, Place, words};
use crate::stats::summary;
use crate::table::{Table, number};
use ropewalk_plot::{self as plot, Bar, Titles};

const RATE: u64 = 100_000_000;
const NAMES: [&str; 3] = ["transfer 1", "transfer 2", "message stream"];
/// Starts differ by the time that programs take to find each other.
const LEAD: f64 = 0.5;

/// Bytes that one of the three had delivered, by seconds since 1970.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Track {
    points: Vec<(f64, u64)>,
    faults: u64,
}

impl Track {
    /// Keeps the moments when something new was noted: transfers tell of safe bytes once a second, and between two
    /// such moments bytes came steadily.
    fn new(points: impl IntoIterator<Item = (f64, u64)>, faults: u64) -> Self {
        let mut points: Vec<(f64, u64)> = points.into_iter().collect();
        points.dedup_by_key(|point| point.1);
        Self { points, faults }
    }

    fn at(&self, time: f64) -> Option<f64> {
        let after = self.points.partition_point(|point| point.0 < time);
        let (before, after) = (
            self.points.get(after.checked_sub(1)?)?,
            self.points.get(after)?,
        );
        let part = (time - before.0) / (after.0 - before.0).max(1e-9);
        Some(before.1 as f64 + part * (after.1 - before.1) as f64)
    }

    fn ends(&self) -> Option<(f64, f64)> {
        // Begun is who has delivered something.
        let first = self.points.iter().find(|point| point.1 > 0)?;
        Some((first.0, self.points.last()?.0))
    }
}

fn seconds(scale: Scale) -> f64 {
    if scale.is_quick { 6.0 } else { 10.0 }
}

fn key(scale: Scale, round: usize) -> String {
    format!(
        "sharing, 2 x 100 Mbit/s, {} s, round {round}",
        seconds(scale)
    )
}

pub(super) fn points(scale: Scale) -> Vec<(String, f64)> {
    (1..=scale.rounds)
        .map(|round| (key(scale, round), 1.5 * seconds(scale) + 4.0))
        .collect()
}

fn transfer(site: &Site, lab: &Lab, number: u16, bytes: u64, deadline: Duration) -> Result<Track> {
    // Its own folder: specification files of two transfers have one name.
    let own = Site {
        scratch: site.scratch.join(format!("transfer-{number}")),
        ..site.clone()
    };
    std::fs::create_dir_all(&own.scratch)?;
    let port = PORT + number;
    let mut agents = Agents::new(&own)?;
    for host in ["a", "b"] {
        agents.start(
            Place::Host(lab, host),
            host,
            &format!("0.0.0.0:{port}"),
            &[],
        )?;
    }
    let spec = agents.spec(&format!(
        "writer a:{port} \"mem:{bytes}\" 0 0+{bytes}\nreader b:{port} \"null:\" 0 0+{bytes}\n"
    ))?;
    let mut points = Vec::new();
    let arguments = words(&format!("transfer {spec}"));
    let moved = agents.run(
        Place::Host(lab, MASTER),
        &arguments,
        deadline,
        |_, event| {
            if let Event::Progress {
                delivered_bytes, ..
            } = event
            {
                points.push((unix_seconds(), *delivered_bytes));
            }
            Ok(())
        },
    )?;
    agents.stop()?;
    moved.complete()?;
    Ok(Track::new(points, 0))
}

fn stream(site: &Site, lab: &Lab, bytes: u64, deadline: Duration) -> Result<Track> {
    let total = bytes.to_string();
    let arguments = ["--stream", &total, "--sizes", "1MiB", "--mode", "enhanced"];
    let stream = hosts::measure(lab, site, &[0, 1], &arguments, deadline)?.stream()?;
    let seen = stream.seen.context("no account of the stream")?;
    let faults = seen.faults();
    let points = seen.samples.iter();
    let points = points.map(|sample| {
        (
            seen.began_unix_seconds + sample.at_seconds,
            sample.delivered_bytes,
        )
    });
    Ok(Track::new(points, faults))
}

fn run(site: &Site, seconds: f64) -> Result<Vec<Track>> {
    let lab = hosts::two(&[RATE; 2], site)?;
    let deadline = Duration::from_secs_f64(60.0 + 10.0 * seconds);
    // Half of both rails for the whole time and some more each, so that all three overlap even where one is faster.
    let bytes = (tcp_rate(RATE) / 8.0 * (seconds + 2.0 * LEAD)) as u64 / MIB * MIB;
    std::thread::scope(|scope| {
        let first = scope.spawn(|| transfer(site, &lab, 1, bytes, deadline));
        let second = scope.spawn(|| transfer(site, &lab, 2, bytes, deadline));
        let third = stream(site, &lab, bytes, deadline);
        let mut tracks = Vec::new();
        for thread in [first, second] {
            match thread.join() {
                Ok(track) => tracks.push(track?),
                Err(_) => bail!("a transfer's thread failed"),
            }
        }
        tracks.push(third?);
        Ok(tracks)
    })
}

/// Megabits per second of each while all three run, and how long that was.
fn shares(tracks: &[Track]) -> Result<(Vec<f64>, f64)> {
    let ends: Vec<(f64, f64)> = tracks.iter().filter_map(Track::ends).collect();
    ensure!(ends.len() == tracks.len(), "one of them never began");
    let from = ends.iter().map(|ends| ends.0).fold(0.0, f64::max) + LEAD;
    let to = ends.iter().map(|ends| ends.1).fold(f64::INFINITY, f64::min);
    ensure!(to > from + LEAD, "they did not run at the same time");
    let rate = |track: &Track| Some((track.at(to)? - track.at(from)?) * 8e-6 / (to - from));
    let rates: Option<Vec<f64>> = tracks.iter().map(rate).collect();
    Ok((rates.context("a track has holes")?, to - from))
}

pub(super) fn make(bench: &mut Bench, scale: Scale) -> Result<Vec<Table>> {
    let site = bench.site();
    let mut rates: [Vec<f64>; 3] = Default::default();
    let (mut times, mut least, mut faults) = (Vec::new(), Vec::new(), 0);
    for round in 1..=scale.rounds {
        let tracks = bench.point(&key(scale, round), || {
            let tracks = run(&site, seconds(scale))?;
            shares(&tracks)?;
            Ok(tracks)
        });
        let Some(tracks) = tracks else { continue };
        let (each, together) = shares(&tracks)?;
        faults += tracks.iter().map(|track| track.faults).sum::<u64>();
        let sum: f64 = each.iter().sum();
        least.push(each.iter().copied().fold(f64::INFINITY, f64::min) / sum * 300.0);
        times.push(together);
        for (rates, rate) in rates.iter_mut().zip(each) {
            rates.push(rate);
        }
    }
    let Some((times, least)) = summary(times).zip(summary(least)) else {
        return Ok(Vec::new());
    };
    let mut table = Table::new(
        "Two transfers and a stream of 1 MiB messages at once over 2 x 100 Mbit/s",
        &[
            ("flow", "flow"),
            ("megabits_per_second", "Mbit/s"),
            ("least_to_most", "min-max"),
            ("percent_of_all", "% of all"),
            ("percent_of_rails", "% of the rails"),
        ],
    );
    let all: Vec<_> = rates
        .iter()
        .filter_map(|rates| summary(rates.iter().copied()))
        .collect();
    let sum: f64 = all.iter().map(|all| all.median).sum();
    let rails = 2.0 * tcp_rate(RATE) / 1e6;
    let mut bars = Vec::new();
    for (group, (name, all)) in NAMES.iter().zip(&all).enumerate() {
        table.row(vec![
            (*name).into(),
            number(all.median, 1),
            format!("{:.1}-{:.1}", all.min, all.max).into(),
            number(all.median / sum * 100.0, 1),
            number(all.median / rails * 100.0, 1),
        ]);
        bars.push(Bar {
            label: (*name).into(),
            value: all.median,
            range: (all.min, all.max),
            group,
        });
    }
    bench.headline(
        "two transfers and a stream of messages at once over 2 x 100 Mbit/s: all together, of the rails; the least flow, of a third",
        format!("{:.1} %; {:.0} % ({:.0} to {:.0})", sum / rails * 100.0, least.median, least.min, least.max),
    );
    table.note(format!(
        "While all three ran, {:.1} s; together {sum:.1} of {rails:.1} Mbit/s. The least had {:.0} % of a third (worst round {:.0} %). Messages lost, doubled, out of order or damaged: {faults}.",
        times.median, least.median, least.min
    ));
    let titles = Titles {
        title: "Two transfers and a message stream over the same rails",
        x: "Mbit/s",
        y: "",
    };
    plot::bars(&bench.plot_path("sharing"), titles, &bars)?;
    Ok(vec![table])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shares are of the time when all ran, between whatever moments were noted.
    #[test]
    fn shares_of_common_time() {
        let track = |start: f64, end: f64, rate: f64| Track {
            points: (0..=20)
                .map(|step| {
                    let time = start + (end - start) * f64::from(step) / 20.0;
                    (time, ((time - start) * rate) as u64)
                })
                .collect(),
            faults: 0,
        };
        let tracks = [
            track(0.0, 10.0, 1e6),
            track(1.0, 8.0, 2e6),
            track(0.0, 20.0, 4e6),
        ];
        let (rates, together) = shares(&tracks).unwrap();
        for (rate, wanted) in rates.iter().zip([8.0, 16.0, 32.0]) {
            assert!((rate - wanted).abs() < 0.01, "{rate} {wanted}");
        }
        assert!(together > 6.0 && together < 6.6, "{together}");
        assert!(shares(&[track(0.0, 1.0, 1e6), track(2.0, 3.0, 1e6)]).is_err());
    }
}
