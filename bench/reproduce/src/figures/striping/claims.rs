//! The paper's claims one by one, and the simulator beside theory.

use anyhow::Result;
use ropewalk_tcp_sim::theory::{
    ALONE_BITS_PER_SECOND, LOSSY_SECONDS, alone, equals, fairness, lossy, mathis, pftk,
};
use ropewalk_tcp_sim::{FlavourName, NO_WINDOW, Outcome, Profile, Scenario, TwoClusters};

use super::{Curve, LIMIT_NOTE, Placed, curve, net, run_all, time};
use crate::table::{Table, number, number_or_more};

/// Nodes x stripes that are split in every way, and bytes of all nodes together.
const PRODUCTS: [u32; 3] = [16, 32, 64];
const PRODUCT_BYTES: u64 = 64_000_000;

/// Steps up to the queue's length in which the best number of stripes is looked for.
const STEPS: u32 = 10;

/// Stripes of a node of which no SYN is lost in the node's own queue.
const QUEUE: u32 = 50;

/// A transfer that takes so many times as long with more stripes has collapsed.
const COLLAPSE: f64 = 2.0;

/// Starts that are not all at one moment.
const JITTER_SECONDS: f64 = 0.01;

/// Claim (a), why one node jumps past 50 stripes: its own queue and the burst of SYNs.
pub(super) fn jump() -> Result<Table> {
    let mut table = Table::new(
        "Claim (a), the jump past 'about 50 stripes': one node, 100 Mbit/s; up to L stripes and L + 1 with queues of L packets",
        &[
            ("latency_seconds", "one way ms"),
            ("queue_packets", "queue L"),
            ("best_stripes", "best up to L"),
            ("best_seconds", "time s"),
            ("seconds_at_queue", "L stripes s"),
            ("at_queue_over_best", "L/best"),
            ("seconds_past_queue", "L + 1 s"),
            ("seconds_past_queue_jitter", "L + 1, starts within 1 ms"),
        ],
    );
    let mut rises = Vec::new();
    for ms in [10.0, 80.0, 320.0] {
        for queue in [QUEUE, 100, 200] {
            let scenario = |stripes, jitter_seconds| {
                let net = TwoClusters {
                    queue: queue as usize,
                    access_queue: queue as usize,
                    ..net(1, stripes, 100.0, ms)
                };
                Scenario {
                    jitter_seconds,
                    ..net.scenario(Profile::default())
                }
            };
            let steps: Vec<u32> = (1..=STEPS).map(|step| step * queue / STEPS).collect();
            let mut scenarios: Vec<Scenario> =
                steps.iter().map(|&many| scenario(many, 0.0)).collect();
            scenarios.extend([scenario(queue + 1, 0.0), scenario(queue + 1, 0.001)]);
            let outcomes = run_all(&scenarios)?;
            let (up_to, past) = outcomes.split_at(steps.len());
            let by_time =
                |a: &(_, &Outcome), b: &(_, &Outcome)| a.1.seconds.total_cmp(&b.1.seconds);
            let Some((stripes, best)) = steps.iter().zip(up_to).min_by(by_time) else {
                continue;
            };
            let at_queue = &up_to[up_to.len() - 1];
            let rise = at_queue.seconds / best.seconds;
            if queue == QUEUE {
                rises.push(format!("{rise:.2} (at {ms:.0} ms)"));
            }
            let end = |outcome: &Outcome| time(outcome.seconds, outcome.is_completed, 2);
            table.row(vec![
                number(ms, 0),
                number(f64::from(queue), 0),
                number(f64::from(*stripes), 0),
                end(best),
                end(at_queue),
                number_or_more(rise, 2, !at_queue.is_completed),
                end(&past[0]),
                end(&past[1]),
            ]);
        }
    }
    table.note(format!(
        "up to L stripes no SYN is lost. With a queue of {QUEUE} packets {QUEUE} stripes take {} times as long as the best of fewer: the node's own queue loses data. Past L is the jump: the SYN that finds that queue full waits 6 s for its timer.",
        rises.join(", ")
    ));
    table.note("the queue of 50 packets is an assumption, the default of the simulator that the paper used; the paper does not give the length of queues. The jump is at the queue's length, whatever that is.");
    table.note(LIMIT_NOTE);
    Ok(table)
}

/// Claims (b) and (c): eight nodes collapse, unless their access links are what binds.
pub(super) fn collapse(all: &[Placed]) -> Result<Table> {
    let mut table = Table::new(
        format!(
            "Claims (b) and (c), collapse: how much longer more stripes take than the best of fewer, up to {QUEUE} stripes"
        ),
        &[
            ("bits_per_second", "Mbit/s"),
            ("nodes", "nodes"),
            ("latency_seconds", "one way ms"),
            ("from_stripes", "stripes"),
            ("from_seconds", "time s"),
            ("to_stripes", "more"),
            ("to_seconds", "time s"),
            ("rise", "rise"),
            ("rise_jitter", "starts within 10 ms"),
            ("last_seconds", "64 stripes s"),
        ],
    );
    for (megabits, nodes) in [
        (10.0, 8),
        (100.0, 8),
        (1000.0, 1),
        (1000.0, 8),
        (1000.0, 16),
    ] {
        let of_figure = |placed: &&Placed| placed.megabits == megabits && placed.nodes == nodes;
        // Rises, and whether that is the least they can be.
        let (mut rises, mut jittered) = (Vec::new(), Vec::new());
        for placed in all.iter().filter(of_figure) {
            let stripes: Vec<u32> = placed.curve.runs.iter().map(|run| run.stripes).collect();
            let apart = curve(
                nodes,
                megabits,
                placed.milliseconds,
                &stripes,
                JITTER_SECONDS,
            )?;
            let rises_to = |curve: &Curve| {
                let (from, to) = curve.rise(QUEUE)?;
                Some((to.seconds / from.seconds, !to.is_completed))
            };
            let (Some((from, to)), Some(rise), Some(last)) = (
                placed.curve.rise(QUEUE),
                rises_to(&placed.curve),
                placed.curve.runs.last(),
            ) else {
                continue;
            };
            rises.push(rise);
            let rise_apart = rises_to(&apart);
            jittered.extend(rise_apart);
            let (rise_apart, is_least) = rise_apart.unzip();
            table.row(vec![
                number(megabits, 0),
                number(f64::from(nodes), 0),
                number(placed.milliseconds, 0),
                number(f64::from(from.stripes), 0),
                time(from.seconds, from.is_completed, 2),
                number(f64::from(to.stripes), 0),
                time(to.seconds, to.is_completed, 2),
                number_or_more(rise.0, 2, rise.1),
                number_or_more(rise_apart, 2, is_least == Some(true)),
                time(last.seconds, last.is_completed, 2),
            ]);
        }
        let said = |rises: &[(f64, bool)]| {
            let most = rises.iter().map(|rise| rise.0).fold(0.0, f64::max);
            let is_least = rises.iter().any(|rise| rise.1);
            let word = if is_least { "more than" } else { "at most" };
            let has_collapsed = is_least || most >= COLLAPSE;
            let verdict = if has_collapsed {
                "collapse"
            } else {
                "no collapse"
            };
            format!("{verdict}, {word} {most:.2}")
        };
        if !rises.is_empty() {
            table.note(format!(
                "{megabits:.0} Mbit/s, nodes {nodes}: {}; with starts within 10 ms {}.",
                said(&rises),
                said(&jittered)
            ));
        }
    }
    table.note(format!("collapse: {COLLAPSE:.0} times as long as with fewer stripes, or stopped at the limit. The access links of 8 nodes carry 800 Mbit/s together, those of 16 carry 1600: only these overload a trunk of 1000 Mbit/s. SYNs that all start at one moment overflow its queue then and wait 6 s, those lost again 12 more."));
    table.note(LIMIT_NOTE);
    Ok(table)
}

/// Section 3, question (b): does only the product of nodes and stripes matter?
pub(super) fn products() -> Result<Table> {
    let mut table = Table::new(
        "Equal products nodes x stripes, split differently; 64 MB altogether, 80 ms one way",
        &[
            ("bits_per_second", "Mbit/s"),
            ("product", "product"),
            ("nodes", "nodes"),
            ("stripes", "stripes"),
            ("seconds", "time s"),
            ("median_done_seconds", "median s"),
            ("retransmitted_packets", "again"),
            ("drops_access", "drops access"),
            ("drops_trunk", "drops trunk"),
        ],
    );
    for megabits in [10.0, 100.0, 1000.0] {
        for product in PRODUCTS {
            let splits: Vec<u32> = [1, 2, 4, 8, 16]
                .into_iter()
                .filter(|nodes| product >= *nodes)
                .collect();
            let scenario = |&nodes: &u32| {
                let net = TwoClusters {
                    bytes_per_node: PRODUCT_BYTES / u64::from(nodes),
                    ..net(nodes, product / nodes, megabits, 80.0)
                };
                net.scenario(Profile::default())
            };
            let scenarios: Vec<Scenario> = splits.iter().map(scenario).collect();
            for (nodes, outcome) in splits.iter().zip(run_all(&scenarios)?) {
                table.row(vec![
                    number(megabits, 0),
                    number(f64::from(product), 0),
                    number(f64::from(*nodes), 0),
                    number(f64::from(product / nodes), 0),
                    time(outcome.seconds, outcome.is_completed, 2),
                    time(outcome.median_done_seconds(), outcome.is_completed, 2),
                    number(outcome.retransmitted() as f64, 0),
                    number(outcome.drops.access as f64, 0),
                    number(outcome.drops.trunk as f64, 0),
                ]);
            }
        }
    }
    table.note(LIMIT_NOTE);
    Ok(table)
}

/// The simulator beside what is known of TCP.
pub(super) fn theory() -> Result<Table> {
    let mut table = Table::new(
        "Simulator against theory",
        &[
            ("run", "run"),
            ("quantity", "quantity"),
            ("simulated", "simulated"),
            ("theory", "theory"),
            ("simulated_over_theory", "ratio"),
            ("pftk", "PFTK"),
        ],
    );
    let mut row = |run: String, quantity: &str, simulated: f64, theory: f64, pftk: Option<f64>| {
        let decimals = if theory < 10.0 { 4 } else { 1 };
        table.row(vec![
            run.into(),
            quantity.into(),
            number(simulated, decimals),
            number(theory, decimals),
            number(simulated / theory, 3),
            number(pftk, decimals),
        ]);
    };
    let alone = alone();
    let bits = f64::from(alone.flows[0].packets) * f64::from(alone.packet_bytes) * 8.0;
    row(
        "one stream without loss".into(),
        "Mbit/s, the link's rate",
        bits / run_all(&[alone])?[0].seconds / 1e6,
        ALONE_BITS_PER_SECOND / 1e6,
        None,
    );
    let (round_trip, least_timeout) = LOSSY_SECONDS;
    for (loss, packets) in [(0.0001, 1_000_000), (0.01, 50_000)] {
        let seeds = [1, 2, 3].map(|seed| lossy(FlavourName::NewReno, loss, packets, seed));
        let outcomes = run_all(&seeds)?;
        let rates = outcomes
            .iter()
            .map(|outcome| packets as f64 / outcome.seconds);
        row(
            format!("NewReno, {} % lost, 3 seeds", loss * 100.0),
            "packets/s, Mathis",
            rates.sum::<f64>() / outcomes.len() as f64,
            mathis(loss, round_trip, 1.0),
            Some(pftk(
                loss,
                round_trip,
                least_timeout,
                1.0,
                f64::from(NO_WINDOW),
            )),
        );
    }
    for (flavour, outcome) in FlavourName::ALL
        .iter()
        .zip(run_all(&FlavourName::ALL.map(equals))?)
    {
        let shares: Vec<f64> = outcome
            .flows
            .iter()
            .map(|flow| flow.acknowledged as f64)
            .collect();
        row(
            format!("8 equal streams, {}", flavour.name()),
            "Jain's index",
            fairness(&shares),
            1.0,
            None,
        );
    }
    table.note("Mathis et al. 1997 count no timeouts, PFTK (Padhye et al. 1998) does; round trip 100 ms, least timeout 0.2 s, no window limit. Equal streams share 20 Mbit/s that lose 0.5 % of all packets.");
    Ok(table)
}
