//! Whether a run over a trunk counts: it does not when the relay could not keep up.

use serde::Serialize;

use super::counters::{DirectionCounters, TrunkCounters};

/// How late and how busy a relay may be. A tick is added to every lateness.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ValidityLimits {
    /// 99 % of the packets are at most this late.
    pub p99_microseconds: f64,
    /// 99.9 % of the packets are at most this late: a pause of 100 ms in 30 seconds is noticed.
    pub p999_microseconds: f64,
    /// The part of one processor that a direction's thread uses at most: above it, lateness piles up.
    pub processor_share: f64,
}

impl Default for ValidityLimits {
    fn default() -> Self {
        ValidityLimits {
            p99_microseconds: 1_000.0,
            p999_microseconds: 5_000.0,
            processor_share: 0.9,
        }
    }
}

/// The verdict on a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Validity {
    /// Why the run does not count, in words; none = it does.
    pub reasons: Vec<String>,
}

impl Validity {
    /// Whether the run counts.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.reasons.is_empty()
    }

    /// Judges what a relay with this tick has counted.
    #[must_use]
    pub fn of(counters: &TrunkCounters, limits: &ValidityLimits, tick_microseconds: u64) -> Self {
        let mut reasons = Vec::new();
        for (name, direction) in [("a to b", &counters.a_to_b), ("b to a", &counters.b_to_a)] {
            for reason in look(direction, limits, tick_microseconds as f64) {
                reasons.push(format!("{name}: {reason}"));
            }
        }
        Validity { reasons }
    }
}

fn look(counters: &DirectionCounters, limits: &ValidityLimits, tick: f64) -> Vec<String> {
    let mut reasons = Vec::new();
    if let Some(failure) = &counters.failure {
        reasons.push(format!("the relay has ended: {failure}"));
    }
    let late = counters.lateness;
    for (share, was, limit) in [
        ("99 %", late.p99_microseconds, limits.p99_microseconds),
        ("99.9 %", late.p999_microseconds, limits.p999_microseconds),
    ] {
        let limit = limit + tick;
        if was > limit {
            reasons.push(format!(
                "{share} of the packets were up to {was:.0} us late, at most {limit:.0} is accepted"
            ));
        }
    }
    let share = counters.processor_share();
    if share > limits.processor_share {
        reasons.push(format!(
            "the relay was busy for {:.0} % of the time, at most {:.0} % is accepted",
            share * 100.0,
            limits.processor_share * 100.0
        ));
    }
    for (count, what) in [
        (
            counters.dropped_kernel_packets,
            "packets were dropped by the kernel beside the relay",
        ),
        (
            counters.dropped_buffer.packets,
            "packets found the relay's memory full; raise buffer_bytes",
        ),
        (
            counters.refused_writes,
            "packets were refused at the far end",
        ),
    ] {
        if count > 0 {
            reasons.push(format!("{count} {what}"));
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trunk::{Lateness, Tally};

    fn judge(direction: DirectionCounters, tick: u64) -> Vec<String> {
        let counters = TrunkCounters {
            b_to_a: direction,
            ..TrunkCounters::default()
        };
        Validity::of(&counters, &ValidityLimits::default(), tick).reasons
    }

    /// A relay that kept up passes, and an idle one, too.
    #[test]
    fn good_runs() {
        assert!(judge(DirectionCounters::default(), 0).is_empty());
        let good = DirectionCounters {
            wall_seconds: 10.0,
            processor_seconds: 8.9,
            lateness: Lateness {
                packets: 1000,
                median_microseconds: 10.0,
                p99_microseconds: 900.0,
                p999_microseconds: 4_900.0,
                max_microseconds: 50_000.0,
            },
            ..DirectionCounters::default()
        };
        assert!(judge(good, 0).is_empty());
    }

    /// Each way of not keeping up is a reason of its own and says which direction it was.
    #[test]
    fn each_reason() {
        let packets = Tally {
            packets: 3,
            bytes: 4500,
        };
        let late = |p99, p999| Lateness {
            packets: 1000,
            p99_microseconds: p99,
            p999_microseconds: p999,
            ..Lateness::default()
        };
        let plain = DirectionCounters::default;
        let cases = [
            (
                DirectionCounters {
                    lateness: late(1_001.0, 1_001.0),
                    ..plain()
                },
                "99 %",
            ),
            (
                DirectionCounters {
                    lateness: late(10.0, 5_001.0),
                    ..plain()
                },
                "99.9 %",
            ),
            (
                DirectionCounters {
                    wall_seconds: 10.0,
                    processor_seconds: 9.1,
                    ..plain()
                },
                "busy for 91 %",
            ),
            (
                DirectionCounters {
                    dropped_kernel_packets: 2,
                    ..plain()
                },
                "2 packets were dropped by the kernel",
            ),
            (
                DirectionCounters {
                    dropped_buffer: packets,
                    ..plain()
                },
                "3 packets found",
            ),
            (
                DirectionCounters {
                    refused_writes: 4,
                    ..plain()
                },
                "4 packets were refused",
            ),
            (
                DirectionCounters {
                    failure: Some("gone".into()),
                    ..plain()
                },
                "gone",
            ),
        ];
        for (counters, word) in cases {
            let reasons = judge(counters, 0);
            assert_eq!(reasons.len(), 1, "{reasons:?}");
            assert!(
                reasons[0].starts_with("b to a: ") && reasons[0].contains(word),
                "{reasons:?}"
            );
        }
        let with_tick = DirectionCounters {
            lateness: late(1_100.0, 1_100.0),
            ..plain()
        };
        assert!(judge(with_tick, 200).is_empty());
    }
}
