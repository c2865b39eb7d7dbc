//! The tables about the trunk.

use super::echo::Echoes;
use super::{CONTROLS, Cell, LOSSES, MTU, QUEUES, Queue, RATE, ROUND_TRIPS, Sample, Setting};
use crate::stats::summary;
use crate::table::{self, Table, number};

/// TCP payload of a packet of 1500 bytes, with time stamps.
const SEGMENT_BYTES: f64 = 1448.0;

fn median(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> Option<f64> {
    summary(samples.iter().map(of)).map(|all| all.median)
}

fn spread(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> [table::Cell; 3] {
    let all = summary(samples.iter().map(of));
    [
        number(all.map(|all| all.median), 1),
        number(all.map(|all| all.min), 1),
        number(all.map(|all| all.max), 1),
    ]
}

/// Processors that the relay's two threads used together.
fn processors(sample: &Sample) -> f64 {
    sample.counters.a_to_b.processor_share() + sample.counters.b_to_a.processor_share()
}

fn kilopackets(sample: &Sample) -> f64 {
    let data = &sample.counters.a_to_b;
    data.link.delivered.packets as f64 / data.wall_seconds / 1e3
}

fn valid(samples: &[Sample]) -> table::Cell {
    let valid = samples.iter().filter(|sample| sample.invalid.is_empty());
    format!("{} of {}", valid.count(), samples.len()).into()
}

/// What the relay carries when nothing limits it.
pub(super) fn unlimited(by_mtu: &[(u32, Vec<Sample>)]) -> Table {
    let mut table = Table::new(
        "One cubic flow over a trunk without a rate limit",
        &[
            ("mtu_bytes", "MTU"),
            ("megabits_per_second_median", "Mbit/s"),
            ("megabits_per_second_min", "min"),
            ("megabits_per_second_max", "max"),
            ("kilopackets_per_second_median", "kpps"),
            ("relay_processors_median", "relay cores"),
        ],
    );
    for (mtu, samples) in by_mtu {
        let [middle, min, max] = spread(samples, |sample| sample.megabits_per_second);
        table.row(vec![
            number(f64::from(*mtu), 0),
            middle,
            min,
            max,
            number(median(samples, kilopackets), 1),
            number(median(samples, processors), 2),
        ]);
    }
    table.note(
        "Payload. The relay has no precedence here, and shares the processors with both ends.",
    );
    table
}

/// Mathis, Semke, Mahdavi and Ott (1997) in Mbit/s; `None` where the link, not the loss, is the limit.
fn mathis(round_trip_ms: f64, loss: f64) -> Option<f64> {
    let bits = 1.5_f64.sqrt() * SEGMENT_BYTES * 8.0 / (round_trip_ms / 1e3 * loss.sqrt());
    let limit = RATE as f64 * SEGMENT_BYTES / f64::from(MTU);
    (bits < 0.9 * limit).then_some(bits / 1e6)
}

/// TCP over 100 Mbit/s.
pub(super) fn tcp(cells: &[Cell], samples: &[Option<Sample>]) -> Table {
    let mut table = Table::new(
        "Payload of one TCP flow over a trunk of 100 Mbit/s, MTU 1500, in Mbit/s",
        &[
            ("round_trip_milliseconds", "RTT ms"),
            ("queue_packets", "queue"),
            ("loss_fraction", "loss"),
            ("reno_megabits_per_second", "reno"),
            ("cubic_megabits_per_second", "cubic"),
            ("bbr_megabits_per_second", "bbr"),
            ("mathis_megabits_per_second", "Mathis"),
            ("mathis_at_measured_round_trip", "at reno's RTT"),
            ("reno_round_trip_milliseconds", "RTT reno"),
            ("cubic_round_trip_milliseconds", "cubic"),
            ("bbr_round_trip_milliseconds", "bbr"),
            ("late_p99_microseconds_max", "99 % late us"),
            ("valid", "valid"),
        ],
    );
    let at = |ms, queue, loss, control| {
        let found = cells.iter().position(|cell| {
            *cell
                == Cell {
                    round_trip_ms: ms,
                    queue,
                    loss,
                    control,
                }
        });
        samples.get(found?)?.clone()
    };
    for ms in ROUND_TRIPS {
        for queue in QUEUES {
            for loss in LOSSES {
                let row = CONTROLS.map(|control| at(ms, queue, loss, control));
                let present: Vec<Sample> = row.iter().flatten().cloned().collect();
                if present.is_empty() {
                    continue;
                }
                let late = present
                    .iter()
                    .map(|sample| sample.counters.a_to_b.lateness.p99_microseconds);
                let [reno, cubic, bbr] = &row;
                let rate = |sample: &Option<Sample>| {
                    number(sample.as_ref().map(|s| s.megabits_per_second), 2)
                };
                let rtt = |sample: &Option<Sample>| {
                    number(sample.as_ref().map(|s| s.round_trip_milliseconds), 1)
                };
                let measured = reno.as_ref().map(|s| s.round_trip_milliseconds);
                let theory =
                    |ms: Option<f64>| ms.filter(|_| loss > 0.0).and_then(|ms| mathis(ms, loss));
                table.row(vec![
                    number(ms as f64, 0),
                    number(f64::from(queue_packets(ms, queue)), 0),
                    format!("{} %", loss * 100.0).into(),
                    rate(reno),
                    rate(cubic),
                    rate(bbr),
                    number(theory(Some(ms as f64)), 2),
                    number(theory(measured), 2),
                    rtt(reno),
                    rtt(cubic),
                    rtt(bbr),
                    number(summary(late).map(|late| late.max), 0),
                    valid(&present),
                ]);
            }
        }
    }
    table.note("The queue counts packets, the one in transmission among them. Theory: 96.53 Mbit/s when full.");
    table.note("Mathis: sqrt(3/2) MSS / (RTT sqrt(p)), for reno, where it is below 0.9 of that; at the set RTT and at the measured one.");
    table
}

fn queue_packets(round_trip_ms: u64, queue: Queue) -> u32 {
    queue.packets(RATE, MTU, round_trip_ms)
}

/// How true the delay is.
pub(super) fn idle(idle: &[(u64, u64, Option<Echoes>)]) -> Table {
    let mut table = Table::new(
        "Round trips of small datagrams over an idle trunk, in ms",
        &[
            ("set_milliseconds", "set"),
            ("spin_microseconds", "spin us"),
            ("milliseconds_min", "min"),
            ("milliseconds_median", "median"),
            ("milliseconds_mean", "mean"),
            ("milliseconds_max", "max"),
            ("milliseconds_deviation", "sigma"),
            ("late_median_microseconds", "late us"),
            ("late_max_microseconds", "max"),
        ],
    );
    for (ms, spin, echoes) in idle {
        let of = |value: fn(&Echoes) -> f64| echoes.as_ref().map(value);
        table.row(vec![
            number(*ms as f64, 0),
            number(*spin as f64, 0),
            number(of(|e| e.milliseconds.min), 3),
            number(of(|e| e.milliseconds.median), 3),
            number(of(|e| e.mean_milliseconds), 3),
            number(of(|e| e.milliseconds.max), 3),
            number(of(|e| e.deviation_milliseconds), 3),
            number(of(|e| e.late_median_microseconds), 0),
            number(of(|e| e.late_max_microseconds), 0),
        ]);
    }
    table.note("late: from a packet's due time to when the relay had written it, one direction, the worse of the two.");
    table
}

/// What lateness and processor time the settings of the relay come to.
pub(super) fn loads(by_load: &[(Setting, Vec<Sample>)]) -> Table {
    let mut table = Table::new(
        "Four cubic flows together, RTT 20 ms, queue of one bandwidth-delay product",
        &[
            ("bits_per_second", "Mbit/s"),
            ("mtu_bytes", "MTU"),
            ("tick_microseconds", "tick us"),
            ("spin_microseconds", "spin us"),
            ("megabits_per_second_median", "payload"),
            ("megabits_per_second_min", "min"),
            ("megabits_per_second_max", "max"),
            ("megabits_per_second_theory", "theory"),
            ("late_median_microseconds", "late us"),
            ("late_p99_microseconds", "99 %"),
            ("late_p999_microseconds", "99.9 %"),
            ("late_max_microseconds", "max"),
            ("relay_processors_median", "relay cores"),
            ("valid", "valid"),
        ],
    );
    for ((rate, mtu, tick, spin), samples) in by_load {
        let late = |of: fn(&Sample) -> f64| number(median(samples, of), 0);
        let payload = f64::from(*mtu) - (f64::from(MTU) - SEGMENT_BYTES);
        let [middle, min, max] = spread(samples, |sample| sample.megabits_per_second);
        table.row(vec![
            number(*rate as f64 / 1e6, 0),
            number(f64::from(*mtu), 0),
            number(*tick as f64, 0),
            number(*spin as f64, 0),
            middle,
            min,
            max,
            number(*rate as f64 / 1e6 * payload / f64::from(*mtu), 1),
            late(|s| s.counters.a_to_b.lateness.median_microseconds),
            late(|s| s.counters.a_to_b.lateness.p99_microseconds),
            late(|s| s.counters.a_to_b.lateness.p999_microseconds),
            late(|s| s.counters.a_to_b.lateness.max_microseconds),
            number(median(samples, processors), 2),
            valid(samples),
        ]);
    }
    table.note("late: of data packets; medians over the rounds. relay cores: both directions' threads together.");
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published formula's values, and none where the link is the limit.
    #[test]
    fn theory() {
        let close = |value: Option<f64>, expected: f64| (value.unwrap() - expected).abs() < 0.1;
        assert!(close(mathis(20.0, 0.0001), 70.9));
        assert!(close(mathis(160.0, 0.01), 0.9));
        assert_eq!(mathis(1.0, 0.0001), None);
    }
}
