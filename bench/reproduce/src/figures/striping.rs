//! Coordinated striping, Figures 1 and 3 to 14, in the packet simulator: the paper's two clusters (Table 1), one to sixteen
//! nodes, five trunks, six latencies, with queues of 50 packets.
//!
//! Readings: latency is one way. Of the paper's figures without caption (10 to 14), 9 and 10 are taken for one node, 11 and 12
//! for four and 13 and 14 for eight, at 100 and 1000 Mbit/s in turn. The paper does not say how long queues are: 50 is the
//! default of the simulator that it used.

mod claims;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context as _, Result};
use ropewalk_plot::{self as plot, Series, Style, Titles};
use ropewalk_tcp_sim::theory::formula_stripes;
use ropewalk_tcp_sim::{FlavourName, NO_WINDOW, Outcome, Profile, Scenario, Stripes, TwoClusters};
use serde::{Deserialize, Serialize};

use crate::bench::{Bench, Settings};
use crate::table::{Cell, Table, number, number_or_more};

const MEGABITS: [f64; 5] = [1.5, 5.0, 10.0, 100.0, 1000.0];
const MILLISECONDS: [f64; 6] = [10.0, 20.0, 40.0, 80.0, 160.0, 320.0];
const NODES: [u32; 4] = [1, 4, 8, 16];

/// Every stripe up to 16, then steps, and both sides of the queue's length.
const STRIPES: [u32; 27] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 20, 24, 28, 32, 40, 48, 50, 51, 52, 56,
    64,
];

const QUICK_MILLISECONDS: [f64; 3] = [20.0, 80.0, 320.0];
const QUICK_NODES: [u32; 2] = [1, 8];
const QUICK_STRIPES: [u32; 9] = [1, 2, 4, 8, 16, 32, 50, 51, 64];

/// Bytes of a window of 64 packets of 1000 bytes (Table 1).
const WINDOW_BYTES: f64 = 64_000.0;

/// Share of all packets sent again at which they are said to rise (Figure 3).
const RISE: f64 = 0.05;

/// When the paper sees them rise.
const RISE_SECONDS: f64 = 3.0;

/// Mbit/s and ms of Figure 3, which the paper does not tell: of these trunks the one whose rise comes nearest to that, in
/// the generation of TCP that the paper used.
const FIGURE3: (f64, f64) = (100.0, 80.0);

/// Stands for the time of a run that did not come to its end.
const LIMIT: &str = "limit";

/// What the tables say below.
const LIMIT_NOTE: &str = "limit: not complete after 100 s.";

/// One run of a curve.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Run {
    stripes: u32,
    seconds: f64,
    is_completed: bool,
    retransmitted: u64,
    timeouts: u64,
}

/// Time over stripes.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Curve {
    runs: Vec<Run>,
    events: u64,
    wall_seconds: f64,
}

impl Curve {
    /// The fastest of the runs that came to their end; `None` where the limit ended all.
    fn best(&self) -> Option<&Run> {
        let completed = self.runs.iter().filter(|run| run.is_completed);
        completed.min_by(|a, b| a.seconds.total_cmp(&b.seconds))
    }

    /// Stripes whose transfers took at most 5 % longer than the best one.
    fn near(&self, best: &Run) -> String {
        let near = self
            .runs
            .iter()
            .filter(|run| run.is_completed && run.seconds <= 1.05 * best.seconds);
        let near: Vec<u32> = near.map(|run| run.stripes).collect();
        match (near.first(), near.last()) {
            (Some(first), Some(last)) if first != last => format!("{first}..{last}"),
            _ => best.stripes.to_string(),
        }
    }

    /// The longest time over the best; at least that where runs were stopped.
    fn spread(&self) -> Option<f64> {
        let longest = self.runs.iter().map(|run| run.seconds).fold(0.0, f64::max);
        self.best().map(|best| longest / best.seconds)
    }

    /// The runs, up to so many stripes, between which the time grows most: more stripes, over the best of fewer.
    fn rise(&self, stripes_max: u32) -> Option<(&Run, &Run)> {
        let (mut best, mut rise): (Option<&Run>, Option<(&Run, &Run)>) = (None, None);
        for run in self.runs.iter().filter(|run| run.stripes <= stripes_max) {
            if let Some(best) = best
                && rise
                    .is_none_or(|(from, to)| run.seconds / best.seconds > to.seconds / from.seconds)
            {
                rise = Some((best, run));
            }
            if run.is_completed && best.is_none_or(|best| run.seconds < best.seconds) {
                best = Some(run);
            }
        }
        rise
    }

    fn at(&self, stripes: f64) -> Option<&Run> {
        let distance = |run: &Run| (f64::from(run.stripes) - stripes).abs();
        self.runs
            .iter()
            .min_by(|a, b| distance(a).total_cmp(&distance(b)))
    }
}

/// A time, or that the limit ended the run.
fn time(seconds: impl Into<Option<f64>>, is_completed: bool, decimals: usize) -> Cell {
    match is_completed {
        true => number(seconds, decimals),
        false => LIMIT.into(),
    }
}

fn net(nodes: u32, stripes: u32, megabits: f64, milliseconds: f64) -> TwoClusters {
    TwoClusters {
        nodes,
        stripes: Stripes(vec![(FlavourName::Reno, stripes)]),
        bits_per_second: megabits * 1e6,
        latency_seconds: milliseconds / 1e3,
        ..TwoClusters::default()
    }
}

/// Runs scenarios on all processors; outcomes in their order.
fn run_all(scenarios: &[Scenario]) -> Result<Vec<Outcome>> {
    let outcomes = ropewalk_parallel::map(scenarios, None, Scenario::run, || ());
    let outcomes: Result<_, _> = outcomes.into_iter().collect();
    outcomes.context("a scenario cannot be run")
}

fn curve(
    nodes: u32,
    megabits: f64,
    milliseconds: f64,
    stripes: &[u32],
    jitter_seconds: f64,
) -> Result<Curve> {
    let began = Instant::now();
    let scenario = |&many: &u32| Scenario {
        jitter_seconds,
        ..net(nodes, many, megabits, milliseconds).scenario(Profile::default())
    };
    let scenarios: Vec<Scenario> = stripes.iter().map(scenario).collect();
    let outcomes = run_all(&scenarios)?;
    let runs = stripes
        .iter()
        .zip(&outcomes)
        .map(|(&stripes, outcome)| Run {
            stripes,
            seconds: outcome.seconds,
            is_completed: outcome.is_completed,
            retransmitted: outcome.retransmitted(),
            timeouts: outcome.timeouts(),
        });
    Ok(Curve {
        runs: runs.collect(),
        events: outcomes.iter().map(|outcome| outcome.events).sum(),
        wall_seconds: began.elapsed().as_secs_f64(),
    })
}

/// A curve and where it is in the grid.
struct Placed {
    nodes: u32,
    megabits: f64,
    milliseconds: f64,
    curve: Curve,
}

/// Makes the figures.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "striping")?;
    let (latencies, nodes, stripes): (&[f64], &[u32], &[u32]) = match settings.quick {
        true => (&QUICK_MILLISECONDS, &QUICK_NODES, &QUICK_STRIPES),
        false => (&MILLISECONDS, &NODES, &STRIPES),
    };
    let mut points = Vec::new();
    for &nodes in nodes {
        for megabits in MEGABITS {
            points.extend(latencies.iter().map(|&ms| (nodes, megabits, ms)));
        }
    }
    let key = |(nodes, megabits, ms): (u32, f64, f64)| {
        format!(
            "{nodes} nodes, {megabits} Mbit/s, {ms} ms, {} stripes",
            stripes.len()
        )
    };
    bench.expect(
        points
            .iter()
            .map(|&point| (key(point), 0.3 * f64::from(point.0))),
    );
    bench.announce();
    let mut all = Vec::new();
    for point in points {
        let (nodes, megabits, milliseconds) = point;
        let measured = bench.point(&key(point), || {
            curve(nodes, megabits, milliseconds, stripes, 0.0)
        });
        all.extend(measured.map(|curve| Placed {
            nodes,
            megabits,
            milliseconds,
            curve,
        }));
    }
    window_plot(&bench)?;
    let rises = rises(&bench)?;
    time_plots(&bench, &all)?;
    let mut optima = optima(&all);
    for line in optimum_plots(&bench, &all)? {
        optima.note(line);
    }
    let tables = [
        optima,
        rises,
        claims::jump()?,
        claims::collapse(&all)?,
        claims::products()?,
        claims::theory()?,
    ];
    bench.finish(&tables)
}

/// Figure 1: a window over time.
fn window_plot(bench: &Bench) -> Result<()> {
    let mut scenario = TwoClusters {
        bytes_per_node: 20_000_000,
        ..net(1, 1, 10.0, 40.0)
    }
    .scenario(Profile::default());
    (scenario.window, scenario.ssthresh) = (NO_WINDOW, 64);
    scenario.trace_seconds = Some(0.05);
    let outcome = run_all(&[scenario])?;
    let line = |name: &str, of: &dyn Fn(&ropewalk_tcp_sim::Sample) -> f64| {
        let points = outcome[0]
            .trace
            .iter()
            .map(|sample| (sample.seconds, of(sample)));
        Series::with(name, Style::Dashed, points.collect())
    };
    let titles = Titles {
        title: "Figure 1: Reno's window, one stripe over 10 Mbit/s and 40 ms",
        x: "seconds",
        y: "packets",
    };
    let lines = [
        line("window", &|sample| sample.window),
        line("threshold", &|sample| sample.ssthresh as f64),
    ];
    plot::lines(&bench.plot_path("figure1"), titles, &[], &lines)
}

/// Packets sent and sent again over time, of all connections.
fn progress(outcome: &Outcome) -> Vec<(f64, u64, u64)> {
    let flows = outcome.flows.len();
    let sum = |samples: &[ropewalk_tcp_sim::Sample]| {
        let sent = samples.iter().map(|sample| sample.sent).sum();
        let again = samples.iter().map(|sample| sample.retransmitted).sum();
        (samples[0].seconds, sent, again)
    };
    outcome.trace.chunks(flows).map(sum).collect()
}

/// Figure 3: when packets begin to be sent again, 52 stripes of one node, under each profile.
fn rises(bench: &Bench) -> Result<Table> {
    let mut table = Table::new(
        "Figure 3: 52 stripes of one node; the paper sees packets sent again rise after about 3 s",
        &[
            ("profile", "profile"),
            ("bits_per_second", "Mbit/s"),
            ("latency_seconds", "one way ms"),
            ("first_resent_seconds", "first s"),
            ("rise_seconds", "5 % sent s"),
            ("most_seconds", "most s"),
            ("seconds", "time s"),
            ("retransmitted_packets", "again"),
        ],
    );
    let mut lines = Vec::new();
    let mut fits = Vec::new();
    for name in Profile::NAMES {
        let mut nearest: Option<(f64, f64, f64)> = None;
        for megabits in [10.0, 100.0] {
            let scenarios: Vec<Scenario> = MILLISECONDS
                .iter()
                .map(|&ms| {
                    let profile = Profile::named(name).unwrap_or_default();
                    let mut scenario = net(1, 52, megabits, ms).scenario(profile);
                    scenario.trace_seconds = Some(0.05);
                    scenario
                })
                .collect();
            for (ms, outcome) in MILLISECONDS.iter().zip(run_all(&scenarios)?) {
                let steps = progress(&outcome);
                let at = |share: f64| {
                    let found = steps.iter().find(|step| step.2 as f64 > share * 8000.0);
                    found.map(|step| step.0)
                };
                let distance = |rise: f64| (rise - RISE_SECONDS).abs();
                if let Some(rise) = at(RISE)
                    && nearest.is_none_or(|other| distance(rise) < distance(other.2))
                {
                    nearest = Some((megabits, *ms, rise));
                }
                let most = steps
                    .windows(20)
                    .max_by_key(|steps| steps[19].2 - steps[0].2);
                table.row(vec![
                    name.into(),
                    number(megabits, 0),
                    number(*ms, 0),
                    number(at(0.0), 2),
                    number(at(RISE), 2),
                    number(most.map(|steps| steps[0].0), 2),
                    time(outcome.seconds, outcome.is_completed, 2),
                    number(outcome.retransmitted() as f64, 0),
                ]);
                if (megabits, *ms) == FIGURE3 {
                    let mut line = |what: &str, of: fn(&(f64, u64, u64)) -> u64| {
                        let points = steps.iter().map(|step| (step.0, of(step) as f64 / 1e3));
                        let name = format!("{what}, {name}");
                        lines.push(Series::with(name, Style::Dashed, points.collect()));
                    };
                    line("sent", |step| step.1);
                    line("again", |step| step.2);
                }
            }
        }
        fits.extend(nearest.map(|(megabits, ms, rise)| {
            format!("{name} {rise:.2} s at {megabits:.0} Mbit/s and {ms:.0} ms")
        }));
    }
    table.note(format!(
        "the paper does not give trunk and latency. Nearest to its 3 s, 5 % are sent again after: {}. Figure 3 is drawn at {:.0} Mbit/s and {:.0} ms.",
        fits.join("; "),
        FIGURE3.0,
        FIGURE3.1
    ));
    table.note("most: beginning of the second in which most packets are sent again.");
    table.note(LIMIT_NOTE);
    let titles = Titles {
        title: &format!(
            "Figure 3: data sent and sent again, 52 stripes, {} Mbit/s, {} ms",
            FIGURE3.0, FIGURE3.1
        ),
        x: "seconds",
        y: "MB",
    };
    plot::lines(&bench.plot_path("figure3"), titles, &[], &lines)?;
    Ok(table)
}

/// Figures 5 to 7 and 9 to 14: time over stripes, a line for each latency.
fn time_plots(bench: &Bench, all: &[Placed]) -> Result<()> {
    let figures = [
        ("figure5", 1, 1.5),
        ("figure6", 1, 10.0),
        ("figure7", 8, 10.0),
        ("figure9", 1, 100.0),
        ("figure10", 1, 1000.0),
        ("figure11", 4, 100.0),
        ("figure12", 4, 1000.0),
        ("figure13", 8, 100.0),
        ("figure14", 8, 1000.0),
        ("figure14-16-nodes", 16, 1000.0),
    ];
    for (name, nodes, megabits) in figures {
        let of_figure = |placed: &&Placed| placed.nodes == nodes && placed.megabits == megabits;
        let lines: Vec<Series> = all
            .iter()
            .filter(of_figure)
            .map(|placed| {
                let points = |is_completed| {
                    let runs = placed.curve.runs.iter();
                    runs.filter(|run| run.is_completed == is_completed)
                        .map(|run| (f64::from(run.stripes), run.seconds))
                        .collect()
                };
                let name = format!("{} ms", placed.milliseconds);
                Series {
                    stopped: points(false),
                    ..Series::with(name, Style::Marks, points(true))
                }
            })
            .collect();
        if lines.is_empty() {
            continue;
        }
        let title = format!("{name}: {nodes} nodes, trunk {megabits} Mbit/s, latency one way");
        let titles = Titles {
            title: &title,
            x: "stripes of each node",
            y: "seconds",
        };
        plot::lines(&bench.plot_path(name), titles, &[], &lines)?;
    }
    Ok(())
}

/// Figures 4 and 8: the best number of stripes over latency. Tells which lines have no point.
fn optimum_plots(bench: &Bench, all: &[Placed]) -> Result<Vec<String>> {
    let mut missing = Vec::new();
    for (name, megabits) in [
        ("figure4", &[1.5, 5.0, 10.0][..]),
        ("figure8", &[100.0, 1000.0][..]),
    ] {
        let mut lines = Vec::new();
        for nodes in [1, 8] {
            for &rate in megabits {
                let of_line = all
                    .iter()
                    .filter(|p| p.nodes == nodes && p.megabits == rate);
                // Where no transfer came to its end there is no fastest one, and no point.
                let points = of_line.filter_map(|placed| {
                    let best = placed.curve.best()?;
                    Some((placed.milliseconds, f64::from(best.stripes)))
                });
                let points: Vec<_> = points.collect();
                let label = format!("{nodes} nodes, {rate} Mbit/s");
                match points.is_empty() {
                    true => missing.push(format!(
                        "{name} has no line for {label}: no transfer ended within 100 s."
                    )),
                    false => lines.push(Series::with(label, Style::Marks, points)),
                }
            }
        }
        let titles = Titles {
            title: &format!("{name}: stripes of the fastest transfer"),
            x: "latency one way, ms",
            y: "stripes of each node",
        };
        plot::lines(&bench.plot_path(name), titles, &[], &lines)?;
    }
    Ok(missing)
}

/// The formula's stripes of each node, at least one. What reaches the trunk is bound by the access links, too.
fn formula(placed: &Placed) -> f64 {
    let bits_per_second = (placed.megabits * 1e6).min(f64::from(placed.nodes) * 1e8);
    let round_trip = 2.0 * placed.milliseconds / 1e3;
    let all = formula_stripes(bits_per_second, round_trip, WINDOW_BYTES);
    (all / f64::from(placed.nodes)).max(1.0)
}

fn optima(all: &[Placed]) -> Table {
    let mut table = Table::new(
        "Best number of stripes and the formula RTT x bandwidth / window (paper, section 5.3)",
        &[
            ("nodes", "nodes"),
            ("bits_per_second", "Mbit/s"),
            ("latency_seconds", "one way ms"),
            ("best_stripes", "best"),
            ("best_seconds", "time s"),
            ("near_stripes", "within 5 %"),
            ("one_stripe_seconds", "1 stripe s"),
            ("last_seconds", "64 stripes s"),
            ("last_retransmitted_packets", "again at 64"),
            ("longest_over_best", "longest/best"),
            ("formula_stripes", "formula/node"),
            ("formula_is", "formula is"),
            ("formula_time_over_best", "its time/best"),
        ],
    );
    let mut sides: BTreeMap<&str, u32> = BTreeMap::new();
    for placed in all {
        let curve = &placed.curve;
        let (Some(first), Some(last)) = (curve.runs.first(), curve.runs.last()) else {
            continue;
        };
        let best = curve.best();
        let formula = formula(placed);
        let side = best.map(
            |best| match formula.round().total_cmp(&f64::from(best.stripes)) {
                Ordering::Less => "under",
                Ordering::Equal => "equal",
                Ordering::Greater => "over",
            },
        );
        *sides.entry(side.unwrap_or(LIMIT)).or_default() += 1;
        let over_best = match (best, curve.at(formula)) {
            (Some(best), Some(run)) => time(run.seconds / best.seconds, run.is_completed, 2),
            _ => LIMIT.into(),
        };
        let end = |run: &Run| time(run.seconds, run.is_completed, 1);
        table.row(vec![
            number(f64::from(placed.nodes), 0),
            number(placed.megabits, 1),
            number(placed.milliseconds, 0),
            best.map_or(LIMIT.into(), |best| number(f64::from(best.stripes), 0)),
            best.map_or(LIMIT.into(), end),
            best.map_or(LIMIT.into(), |best| curve.near(best).into()),
            end(first),
            end(last),
            number(last.retransmitted as f64, 0),
            number_or_more(
                curve.spread(),
                2,
                curve.runs.iter().any(|run| !run.is_completed),
            ),
            number(formula, 1),
            side.unwrap_or(LIMIT).into(),
            over_best,
        ]);
    }
    let events: u64 = all.iter().map(|placed| placed.curve.events).sum();
    let seconds: f64 = all.iter().map(|placed| placed.curve.wall_seconds).sum();
    let runs: usize = all.iter().map(|placed| placed.curve.runs.len()).sum();
    table.note(format!(
        "{runs} runs, {:.0} million packet events in {seconds:.0} s on all processors: {:.1} million a second.",
        events as f64 / 1e6,
        events as f64 / seconds / 1e6
    ));
    table.note(LIMIT_NOTE);
    table.note("the best is that of the transfers that ended. The formula counts min(trunk, nodes x access), and the round trip of the trunk; at least 1.");
    let sides: Vec<String> = sides
        .iter()
        .map(|(side, many)| format!("{side} {many}"))
        .collect();
    table.note(format!(
        "the formula beside the best number, points of the grid: {}. The paper: it underestimates, 6 for 100 Mbit/s and a round trip of 160 ms where 10 were best; but from its Table 1 the formula gives 31, an overestimate of 10.",
        sides.join(", ")
    ));
    if let Some((best, formula)) = best_and_formula(all, 1, 100.0, 80.0) {
        table.note(format!(
            "there {} are best here, so that {formula:.0} is {}.",
            best.stripes,
            if f64::from(best.stripes) > formula {
                "an underestimate"
            } else {
                "an overestimate"
            }
        ));
    }
    let of_figure5 = all.iter().filter(|p| p.nodes == 1 && p.megabits == 1.5);
    let spreads: Vec<f64> = of_figure5.filter_map(|p| p.curve.spread()).collect();
    let (short, long) = spreads.split_at(spreads.len() / 2);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    if !short.is_empty() {
        let shown: Vec<String> = spreads
            .iter()
            .map(|spread| format!("{spread:.2}"))
            .collect();
        let shows = if mean(short) > mean(long) {
            "shows"
        } else {
            "does not show"
        };
        table.note(format!(
            "Figure 5: the paper finds the spread of times over stripes much greater at short latencies. Longest over best of one node at 1.5 Mbit/s, from the shortest latency to the longest: {}. That {shows} here.",
            shown.join(", ")
        ));
    }
    table
}

/// The best run of a point of the grid, and the formula's stripes.
fn best_and_formula(all: &[Placed], nodes: u32, megabits: f64, ms: f64) -> Option<(&Run, f64)> {
    let is_there = |p: &&Placed| (p.nodes, p.megabits, p.milliseconds) == (nodes, megabits, ms);
    let placed = all.iter().find(is_there)?;
    Some((placed.curve.best()?, formula(placed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A curve's best and nearest runs.
    #[test]
    fn best_and_nearest() {
        let curve = curve(1, 100.0, 20.0, &[1, 4, 52], 0.0).unwrap();
        assert_eq!(curve.best().map(|run| run.stripes), Some(4));
        assert_eq!(curve.at(40.0).map(|run| run.stripes), Some(52));
        assert!(curve.events > 100_000);
    }

    /// The greatest rise is over the best of fewer stripes, within the bound; the spread is over all.
    #[test]
    fn rises_and_spreads() {
        let runs = [
            (1, 9.0),
            (2, 4.0),
            (4, 6.0),
            (8, 3.0),
            (16, 5.4),
            (64, 30.0),
        ];
        let runs = runs.map(|(stripes, seconds)| Run {
            stripes,
            seconds,
            is_completed: true,
            retransmitted: 0,
            timeouts: 0,
        });
        let curve = Curve {
            runs: runs.to_vec(),
            events: 1,
            wall_seconds: 1.0,
        };
        let ends = |max| curve.rise(max).map(|(from, to)| (from.stripes, to.stripes));
        assert_eq!(ends(1), None);
        assert_eq!(ends(4), Some((2, 4)));
        assert_eq!(ends(16), Some((8, 16)));
        assert_eq!(ends(64), Some((8, 64)));
        assert_eq!(curve.spread(), Some(10.0));
    }

    /// What the limit ended is nobody's best, however the others did, and says so in the tables.
    #[test]
    fn runs_at_the_limit_are_not_best() {
        let run = |stripes, seconds, is_completed| Run {
            stripes,
            seconds,
            is_completed,
            retransmitted: 0,
            timeouts: 0,
        };
        let curve = |runs: &[Run]| Curve {
            runs: runs.to_vec(),
            events: 1,
            wall_seconds: 1.0,
        };
        let placed = |runs: &[Run]| Placed {
            nodes: 8,
            megabits: 1.5,
            milliseconds: 80.0,
            curve: curve(runs),
        };
        let all = [run(1, 100.0, false), run(4, 100.0, false)];
        assert!(curve(&all).best().is_none());
        let some = [run(1, 99.0, false), run(4, 100.0, true)];
        assert_eq!(curve(&some).best().map(|run| run.stripes), Some(4));
        let text = optima(&[placed(&all)]).text();
        // Best, its time, what is near, the first, the last, the formula's side, and its time beside the best.
        let row = text.lines().find(|line| line.contains("80")).unwrap();
        assert_eq!(row.matches(LIMIT).count(), 7, "{text}");
        assert!(optima(&[placed(&some)]).text().contains("100.0"));
    }
}
