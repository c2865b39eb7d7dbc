//! What the coordinator alone costs with many nodes: processor time of each part of a transfer, and bytes of state.
//!
//! `cargo run --release -p ropewalk-measure --example master -- NODES [LAYOUT]`
//!
//! Its nodes only answer; nothing moves. LAYOUT is as in the example `large`.
#![allow(clippy::disallowed_methods, reason = "an example measures itself")]

use std::collections::BTreeMap;

use layouts::{memory, processor_seconds, scenario};
use ropewalk_model::{Instant, receiver_runs};
use ropewalk_proto::control::{
    Done, Finished, FromAgent, Identity, Opened, OpenedSource, PairDone, PairStatus, Released, Run,
    Status, ToAgent, from_agent, to_agent,
};
use ropewalk_proto::coordinator::{
    Action, Coordinator, Incomplete, Mapping, Planned, PlannedRun, Rails, Relay, Setup,
};
use ropewalk_sim::{SECOND, Scenario};

mod layouts;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let nodes = arguments
        .next()
        .map_or(1000, |text| text.parse().expect("a whole number"));
    let layout = arguments.next().unwrap_or("blocks".into());
    let scenario = scenario(nodes, &layout, 64, 20.0).declared();
    println!("{nodes} nodes, {layout}: processor seconds of the coordinator alone");
    let (master, after_first) = (run(&scenario, true), memory("VmRSS:"));
    // What the first one needed for a time is there again for the others: they add what they keep.
    let more = [run(&scenario, false), run(&scenario, false)];
    let added = memory("VmRSS:").saturating_sub(after_first);
    println!(
        "  state {} bytes a node (by memory of the process)",
        added * 1024 / nodes / more.len() as u64
    );
    finish(master, &scenario);
}

fn timed<T>(say: bool, what: &str, act: impl FnOnce() -> T) -> T {
    let began = processor_seconds();
    let out = act();
    if say {
        println!("  {what:40} {:8.3}", processor_seconds() - began);
    }
    out
}

/// Opens, plans, and takes two statuses of each node.
fn run(scenario: &Scenario, say: bool) -> (Coordinator, Vec<Vec<Run>>) {
    let count = scenario.nodes.len() as u32;
    let setup = Setup {
        transfer: vec![1; 16],
        nodes: scenario.nodes.clone(),
        mapping: Mapping::Rows,
        limit: None,
        options: scenario.options,
        rails: Rails::default(),
        tune: None,
        lessons: Vec::new(),
        incomplete: Incomplete::Removed,
        filter: Vec::new(),
        files: None,
        links: Vec::new(),
        source_name: String::new(),
        relay: Relay::Off,
    };
    let mut master = Coordinator::new(setup, Instant(0));
    timed(say, "open, all", || {
        master.start(Instant(0));
        while master.poll_action().is_some() {}
    });
    let mut planning = None;
    timed(say, "opened, all", || {
        for node in 0..count {
            let sources = &scenario.nodes[node as usize].sources;
            master.handle_message(
                node,
                from(from_agent::Body::Opened(opened(node, sources))),
                Instant(1),
            );
        }
    });
    while let Some(action) = master.poll_action() {
        if let Action::Plan(purpose, problem) = action {
            planning = Some((purpose, problem));
        }
    }
    let (purpose, problem) = planning.expect("all have opened");
    let scheduler = ropewalk_sched::by_name("auto").expect("auto is built");
    let schedule = timed(say, "schedule", || {
        scheduler.plan(&problem).expect("all is held")
    });
    timed(say, "verify", || {
        ropewalk_model::verify(&problem, &schedule).expect("it is right")
    });
    timed(say, "bound", || {
        ropewalk_sched::bound(&problem).expect("all is held")
    });
    let runs = timed(say, "runs and spares", || {
        receiver_runs(&problem, &schedule, 2)
    });
    let planned = Planned {
        runs: runs
            .into_iter()
            .map(|runs| runs.into_iter().map(PlannedRun::from).collect())
            .collect(),
        predicted_seconds: schedule.predicted_seconds(&problem),
        ..Planned::default()
    };
    drop((schedule, problem));
    let mut runs = vec![Vec::new(); count as usize];
    timed(say, "plan messages, all", || {
        master.handle_planned(&purpose, Ok(planned), Instant(1));
        while let Some(action) = master.poll_action() {
            if let Action::Send(
                node,
                ToAgent {
                    body: Some(to_agent::Body::Plan(plan)),
                },
            ) = action
            {
                runs[node as usize] = plan.runs;
            }
        }
    });
    drop(purpose);
    for round in 1..=2 {
        timed(say, "status, all (each half second)", || {
            for node in 0..count {
                let body = from(from_agent::Body::Status(status(
                    &runs[node as usize],
                    round,
                )));
                master.handle_message(node, body, Instant::ZERO + SECOND * round / 2);
            }
            while master.poll_action().is_some() {}
        });
    }
    timed(say, "timer, once (each 0.1 s)", || {
        master.handle_timer(Instant::ZERO + SECOND * 2)
    });
    while master.poll_action().is_some() {}
    (master, runs)
}

/// Everybody is done and says the last word.
fn finish((mut master, runs): (Coordinator, Vec<Vec<Run>>), scenario: &Scenario) {
    let count = scenario.nodes.len() as u32;
    let mut planned = 0;
    // Who was told to end, and whether with names to give.
    let mut finished = BTreeMap::new();
    timed(true, "done, all", || {
        for node in 0..count {
            if scenario.nodes[node as usize].sinks.is_empty() {
                continue;
            }
            let body = from(from_agent::Body::Done(done(&runs[node as usize])));
            master.handle_message(node, body, Instant::ZERO + SECOND * 3);
            while let Some(action) = master.poll_action() {
                match action {
                    Action::Plan(..) => planned += 1,
                    Action::Send(to, ToAgent { body: Some(body) }) => match body {
                        to_agent::Body::Finish(word) => {
                            finished.insert(to, word.commit);
                        }
                        // The others seem to have work left, as they are heard one after the other.
                        to_agent::Body::Release(_) => {
                            let nothing = from_agent::Body::Released(Released::default());
                            master.handle_message(to, from(nothing), Instant::ZERO + SECOND * 3);
                        }
                        _ => {}
                    },
                    _ => {}
                }
            }
        }
    });
    timed(true, "finished, all", || {
        for node in 0..count {
            let body = from(from_agent::Body::Finished(Finished {
                committed: finished.get(&node).copied().unwrap_or(false),
                ..Finished::default()
            }));
            master.handle_message(node, body, Instant::ZERO + SECOND * 4);
        }
    });
    let mut end = None;
    while let Some(action) = master.poll_action() {
        if let Action::End(outcome, _) = action {
            end = Some(outcome);
        }
    }
    println!(
        "  {} nodes were told to finish, {planned} re-plans, end {end:?}",
        finished.len()
    );
}

fn from(body: from_agent::Body) -> FromAgent {
    FromAgent { body: Some(body) }
}

fn opened(node: u32, sources: &[ropewalk_proto::coordinator::SourceSetup]) -> Opened {
    let identity = Identity {
        length: 1 << 40,
        ..Identity::default()
    };
    let source = |source: &ropewalk_proto::coordinator::SourceSetup| OpenedSource {
        identities: vec![identity; source.source.rows.len()],
        ..OpenedSource::default()
    };
    Opened {
        instance: format!("{node:016x}"),
        addresses: vec![format!("10.0.{}.{}:7420", node / 256 % 256, node % 256)],
        sources: sources.iter().map(source).collect(),
        ..Opened::default()
    }
}

fn status(runs: &[Run], round: u64) -> Status {
    let bytes = |run: &Run| run.length / 10 * round;
    Status {
        delivered: runs.iter().map(bytes).sum(),
        checked: runs.iter().map(bytes).sum(),
        pairs: runs
            .iter()
            .map(|run| PairStatus {
                busy: 1,
                sender: run.sender,
                delivered: bytes(run),
                come: bytes(run),
                left: run.length - bytes(run),
            })
            .collect(),
        ..Status::default()
    }
}

fn done(runs: &[Run]) -> Done {
    Done {
        delivered: runs.iter().map(|run| run.length).sum(),
        pairs: runs
            .iter()
            .map(|run| PairDone {
                sender: run.sender,
                delivered: run.length,
                streams: 1,
                lane: "tcp".into(),
                ..PairDone::default()
            })
            .collect(),
        ..Done::default()
    }
}
