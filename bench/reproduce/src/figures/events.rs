//! What a transfer makes of changes on the way: a sender slows, a receiver stops, nodes join, nodes die.
//!
//! Four senders and four receivers of mixed speeds share one destination; all hold all and may take all. The change
//! is made when half of the bytes are delivered. The time is compared with the least time of the network as it changed
//! (see `changed`), the change at its measured moment. Links have no more to give; a stopped agent's kernel still fills
//! its buffers, which can make a share of a second.

use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ropewalk_lab::Lab;
use ropewalk_proto::report::Event;
use serde::{Deserialize, Serialize};

use crate::bench::{Bench, Settings, Site};
use crate::changed::{Happened, least_seconds};
use crate::network::MASTER;
use crate::process;
use crate::ropewalk::{Agents, Moved, Place, words};
use crate::scenario::{Change, HINTS, NO_HINTS, Node, Run, Scenario, What, all, deadline};
use crate::simulated::simulated_seconds;
use crate::table::{Table, number};

const MEGA: u64 = 1_000_000;

/// Caps of senders, and of receivers that share a destination.
const MIXED: [u64; 4] = [50 * MEGA, 100 * MEGA, 150 * MEGA, 200 * MEGA];

/// Cap of each receiver that wants a copy of its own: together as fast as the senders.
const EVEN: u64 = 125 * MEGA;

/// Cap of the nodes that join.
const JOINING: u64 = 100 * MEGA;

/// Sizes are multiples of this.
const STEP: u64 = 16 << 20;

/// Changes come at half way.
const AT_SHARE: f64 = 0.5;

/// A joining node is answered in less; it may have to be reached first.
const JOIN_MAX: Duration = Duration::from_secs(30);

const RUNS: [Run; 2] = [HINTS, NO_HINTS];

/// What happens, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Nothing,
    Slows,
    Pauses,
    Join,
    Die,
}

/// Copies of its own for each receiver, or one for all; what happens.
type Case = (bool, Kind);

const CASES: [Case; 8] = [
    (true, Kind::Nothing),
    (true, Kind::Slows),
    (true, Kind::Pauses),
    (true, Kind::Join),
    (true, Kind::Die),
    (false, Kind::Nothing),
    (false, Kind::Slows),
    (false, Kind::Pauses),
];

const COLUMNS: [(&str, &str); 13] = [
    ("destination", "destination"),
    ("event", "event"),
    ("variant", "variant"),
    ("event_seconds", "at s"),
    ("seconds", "s"),
    ("bound_seconds", "bound s"),
    ("over_bound", "over bound"),
    ("simulated_seconds", "simulated s"),
    ("duplicate_percent", "twice %"),
    ("longest_stall_seconds", "longest stall s"),
    ("plan_messages_per_node", "plan msg/node"),
    ("notes", "notes"),
    ("processor_seconds", "cpu s"),
];

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Ran {
    moved: Moved,
    happened: Vec<Happened>,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "none",
            Self::Slows => "sender slows to 10 %",
            Self::Pauses => "receiver pauses",
            Self::Join => "sender and receiver join",
            Self::Die => "sender and receiver die",
        }
    }

    fn what(self, bytes: u64, pause_seconds: f64) -> Option<What> {
        let fastest = |side: char| format!("{side}3");
        let joining = |name: &str| {
            vec![Node {
                name: name.into(),
                bits_per_second: JOINING,
                ranges: all(bytes),
            }]
        };
        match self {
            Self::Nothing => None,
            Self::Slows => Some(What::Rate {
                node: fastest('s'),
                bits_per_second: MIXED[3] / 10,
            }),
            Self::Pauses => Some(What::Pause {
                node: fastest('r'),
                seconds: pause_seconds,
            }),
            Self::Join => Some(What::Join {
                senders: joining("s4"),
                receivers: joining("r4"),
            }),
            Self::Die => Some(What::Die {
                nodes: vec!["s2".into(), "r2".into()],
            }),
        }
    }
}

/// Four senders, four receivers and one change.
fn scenario((is_shared, kind): Case, bytes: u64, pause_seconds: f64) -> Scenario {
    let side = |letter: char, caps: [u64; 4]| -> Vec<Node> {
        let node = |(index, cap): (usize, u64)| Node {
            name: format!("{letter}{index}"),
            bits_per_second: cap,
            ranges: all(bytes),
        };
        caps.into_iter().enumerate().map(node).collect()
    };
    let change = kind.what(bytes, pause_seconds).map(|what| Change {
        at_share: AT_SHARE,
        what,
    });
    Scenario {
        bytes,
        senders: side('s', MIXED),
        receivers: side('r', if is_shared { MIXED } else { [EVEN; 4] }),
        is_shared,
        changes: change.into_iter().collect(),
    }
}

/// Whether the program can add nodes to a running transfer.
fn can_join(site: &Site) -> bool {
    let help = Command::new(&site.ropewalk).args(["help", "join"]).output();
    help.is_ok_and(|output| output.status.success())
}

/// What is known of a running transfer.
#[derive(Debug, Default)]
struct Running {
    id: String,
    planned: Option<Instant>,
}

/// Moves the bytes and makes the changes come about.
fn measure(site: &Site, scenario: &Scenario, run: &Run, seconds: f64) -> Result<Ran> {
    let (lab, mut agents) = scenario.start(site)?;
    let spec = agents.spec(&scenario.specification(run.has_hints))?;
    let arguments = words(&format!("transfer {spec} --scheduler {}", run.scheduler));
    let mut running = Running::default();
    let mut changes = scenario.changes.iter();
    let mut next = changes.next();
    let mut happened: Vec<Happened> = Vec::new();
    let until: Mutex<Option<Instant>> = Mutex::new(None);
    // Threads that end a pause are waited for before anything else goes on, whatever happens.
    let moved = std::thread::scope(|scope| {
        let watch = |agents: &mut Agents, event: &Event| -> Result<()> {
            match event {
                Event::Planned { transfer, .. } => {
                    running.id.clone_from(transfer);
                    running.planned.get_or_insert_with(Instant::now);
                }
                Event::Progress {
                    delivered_bytes,
                    total_bytes,
                    receivers,
                    ..
                } => {
                    let share = *delivered_bytes as f64 / (*total_bytes).max(1) as f64;
                    let Some(change) = next.filter(|change| share >= change.at_share) else {
                        return Ok(());
                    };
                    next = changes.next();
                    let now = Instant::now();
                    let mut lost_bytes = std::collections::BTreeMap::new();
                    match &change.what {
                        What::Rate {
                            node,
                            bits_per_second,
                        } => lab.set_rate(node, 0, *bits_per_second)?,
                        What::Pause { node, seconds } => {
                            let agent = agents.pause(node)?;
                            let (until, pause) = (&until, Duration::from_secs_f64(*seconds));
                            scope.spawn(move || {
                                std::thread::sleep(pause);
                                agent.go_on();
                                *until.lock().unwrap_or_else(|e| e.into_inner()) =
                                    Some(Instant::now());
                            });
                        }
                        What::Die { nodes } => {
                            for node in nodes {
                                agents.kill(node)?;
                                let written = receivers.iter().find(|r| r.node == *node);
                                lost_bytes.extend(written.map(|r| (node.clone(), r.bytes)));
                            }
                        }
                        What::Join { senders, receivers } => {
                            let rows = scenario.rows(senders, receivers, run.has_hints);
                            join(site, &lab, &running.id, &rows)?;
                        }
                    }
                    happened.push(Happened {
                        seconds: now
                            .duration_since(running.planned.unwrap_or(now))
                            .as_secs_f64(),
                        until_seconds: None,
                        lost_bytes,
                    });
                }
                _ => {}
            }
            Ok(())
        };
        agents.run(
            Place::Host(&lab, MASTER),
            &arguments,
            deadline(seconds),
            watch,
        )
    })?;
    let used = agents.stop()?;
    let moved = Moved {
        agents: used,
        ..moved
    }
    .complete()?;
    anyhow::ensure!(
        happened.len() == scenario.changes.len(),
        "the transfer ended before half of it was seen"
    );
    // From the clock that starts with the first grant to the one that the report's time is of.
    let until = until.into_inner().unwrap_or_else(|e| e.into_inner());
    let until = until.zip(running.planned);
    for happened in &mut happened {
        happened.seconds += moved.report.start_seconds;
        happened.until_seconds =
            until.map(|(at, planned)| (at - planned).as_secs_f64() + moved.report.start_seconds);
    }
    Ok(Ran { moved, happened })
}

/// Adds rows to the transfer of this id, from the host where its master runs.
fn join(site: &Site, lab: &Lab, id: &str, rows: &str) -> Result<()> {
    let file = site.scratch.join("join.cep");
    std::fs::write(&file, rows).with_context(|| format!("cannot write {}", file.display()))?;
    let mut command = Place::Host(lab, MASTER).command(&site.ropewalk);
    command.args(["join", id]).arg(&file);
    process::run(command, JOIN_MAX)
        .map(drop)
        .context("nodes cannot join")
}

/// Makes the table of changes.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "events")?;
    let site = bench.site();
    let (seconds, pause_seconds) = if settings.quick {
        (6.0, 2.0)
    } else {
        (20.0, 5.0)
    };
    let can_join = can_join(&site);
    let destination = |is_shared| if is_shared { "shared" } else { "own copies" };
    let size =
        |case, run: &Run| run.size(seconds, STEP, |bytes| scenario(case, bytes, pause_seconds));
    let key = |case: Case, run: &Run, bytes: u64| {
        let (is_shared, kind) = case;
        let name = kind.name();
        format!(
            "{}, {name}, {}, {bytes} bytes",
            destination(is_shared),
            run.name
        )
    };
    let has_runs = |case: Case, run: &Run| {
        let is_asked = !settings.quick || case.0;
        is_asked && (case.1 != Kind::Join || can_join) && (case.0 || run.has_hints)
    };
    for case in CASES {
        for run in RUNS.iter().filter(|run| has_runs(case, run)) {
            bench.expect([(key(case, run, size(case, run)?), 1.3 * seconds + 1.0)]);
        }
    }
    bench.announce();

    let mut table = Table::new(
        "Changes at half way: four senders, four receivers of mixed speeds, all hold all",
        &COLUMNS,
    );
    for case in CASES {
        for run in RUNS.iter().filter(|run| has_runs(case, run)) {
            let bytes = size(case, run)?;
            let scenario = scenario(case, bytes, pause_seconds);
            let Some(ran) = bench.point(&key(case, run, bytes), || {
                measure(&site, &scenario, run, seconds)
            }) else {
                continue;
            };
            let bound = least_seconds(&scenario, &ran.happened)?;
            let simulated = simulated_seconds(&scenario, run, &ran.happened);
            let report = &ran.moved.report;
            let per_node = report.control.plan_messages as f64 / report.control.nodes.max(1) as f64;
            let at = ran.happened.first().map(|happened| happened.seconds);
            bench.headline(
                format!(
                    "{}, {}, {}: time over the bound of the network as it changed",
                    case.1.name(),
                    destination(case.0),
                    run.name
                ),
                format!("{:.3}", report.seconds / bound),
            );
            table.row(vec![
                destination(case.0).into(),
                case.1.name().into(),
                run.name.into(),
                number(at, 2),
                number(report.seconds, 2),
                number(bound, 2),
                number(report.seconds / bound, 3),
                number(simulated, 2),
                number(
                    report.duplicate_bytes as f64 / scenario.wanted_bytes() * 100.0,
                    2,
                ),
                number(report.longest_stall_seconds, 2),
                number(per_node, 1),
                number(report.notes.len() as f64, 0),
                number(ran.moved.processor_seconds(), 2),
            ]);
            let about = format!("{}, {}", case.1.name(), run.name);
            for note in &report.notes {
                table.note(format!("{about}: {note}"));
            }
        }
    }
    if !can_join {
        let line = format!(
            "{}: skipped, this ropewalk has no command `join`",
            Kind::Join.name()
        );
        println!("  {line}");
        table.note(line);
    }
    for note in [
        "senders, and receivers of the shared destination: 50, 100, 150, 200 Mbit/s; with copies of their own 125 each; those that join 100.",
        "s3 slows to a tenth, r3's agent is stopped for a while (at s: when it began), s2 and r2 die by kill -9.",
        "bound s: the least time of the network as it changed: capacities x 0.956 added up from the start, each change at its measured moment.",
        "a receiver that dies takes what it wrote with it: these bytes, as last reported before (rather few), count as moved again.",
        "simulated s: the same nodes, speeds and moments in the simulator, on the shipping state machines.",
        "over bound: the whole time, start and end included.",
    ] {
        table.note(note);
    }
    bench.finish(&[table])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The change hurts, or helps, as the caps say: computed by hand for 1 s of 500 Mbit/s and a change at 0.5 s.
    #[test]
    fn bounds() {
        let bytes = 62_500_000;
        let seconds = |case: Case, lost: u64| {
            let happened = Happened {
                seconds: 0.5 / crate::network::TCP_SHARE,
                until_seconds: None,
                lost_bytes: [("r2".to_owned(), lost)].into(),
            };
            let least = least_seconds(&scenario(case, bytes, 0.1), &[happened]).unwrap();
            (least * crate::network::TCP_SHARE * 1000.0).round() / 1000.0
        };
        assert_eq!(seconds((true, Kind::Nothing), 0), 1.0);
        // 250 Mbit left at 500 - 180.
        assert_eq!(seconds((true, Kind::Slows), 0), 1.281);
        // 200 of 500 Mbit/s are missing for 0.1 s, which is here 0.0956 in units of a full cap.
        assert_eq!(seconds((true, Kind::Pauses), 0), 1.038);
        // 250 Mbit left at 600.
        assert_eq!(seconds((true, Kind::Join), 0), 0.917);
        // 250 Mbit and the 75 that r2 had, at 350.
        assert_eq!(seconds((true, Kind::Die), 75_000_000 / 8), 1.429);
        // Four copies of 500 Mbit over 500 Mbit/s; r3 alone is late by the pause.
        assert_eq!(seconds((false, Kind::Nothing), 0), 4.0);
        assert_eq!(seconds((false, Kind::Pauses), 0), 4.096);
    }
}
