//! What a trunk has carried, dropped and held up.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::histogram::Histogram;
use super::link::{LinkCounters, Tally};

/// What a relay thread tells about itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct RelayCounters {
    pub link: LinkCounters,
    pub lateness: Histogram,
    pub buffer_full: Tally,
    pub refused_writes: u64,
    pub wall: Duration,
    pub processor: Duration,
    pub is_real_time: bool,
    /// Why the thread has ended, if it has.
    pub failure: Option<String>,
}

/// How long after its due time packets were written to the far end, and at most so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lateness {
    /// Packets delivered.
    pub packets: u64,
    /// Half of them were not later than this; like the others right to 12 %, upwards.
    pub median_microseconds: f64,
    /// 99 % of them were not later.
    pub p99_microseconds: f64,
    /// 99.9 % of them were not later.
    pub p999_microseconds: f64,
    /// The latest of them, exactly.
    pub max_microseconds: f64,
}

/// One direction of a trunk since it was started, or since its counters were reset.
///
/// What the kernel or the relay dropped is not part of what was offered to the link, and makes the run invalid.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectionCounters {
    /// What the link did; its fields are beside the others in JSON.
    #[serde(flatten)]
    pub link: LinkCounters,
    /// How late packets were delivered.
    pub lateness: Lateness,
    /// What found no memory in the relay.
    pub dropped_buffer: Tally,
    /// Packets that the kernel did not take at the far end.
    pub refused_writes: u64,
    /// Packets that the kernel dropped before the relay could read them, or after it had written them.
    pub dropped_kernel_packets: u64,
    /// Time since the start or reset.
    pub wall_seconds: f64,
    /// Processor time of the direction's thread in it.
    pub processor_seconds: f64,
    /// Whether that thread takes precedence over ordinary ones.
    pub is_real_time: bool,
    /// Why the thread has ended, if it has.
    pub failure: Option<String>,
}

impl DirectionCounters {
    pub(crate) fn new(relay: &RelayCounters, dropped_kernel_packets: u64) -> Self {
        let late = |share| microseconds(relay.lateness.quantile(share));
        DirectionCounters {
            link: relay.link,
            lateness: Lateness {
                packets: relay.lateness.count(),
                median_microseconds: late(0.5),
                p99_microseconds: late(0.99),
                p999_microseconds: late(0.999),
                max_microseconds: microseconds(relay.lateness.max()),
            },
            dropped_buffer: relay.buffer_full,
            refused_writes: relay.refused_writes,
            dropped_kernel_packets,
            wall_seconds: relay.wall.as_secs_f64(),
            processor_seconds: relay.processor.as_secs_f64(),
            is_real_time: relay.is_real_time,
            failure: relay.failure.clone(),
        }
    }

    /// Share of one processor that the direction's thread used.
    #[must_use]
    pub fn processor_share(&self) -> f64 {
        if self.wall_seconds > 0.0 {
            self.processor_seconds / self.wall_seconds
        } else {
            0.0
        }
    }
}

fn microseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e3
}

/// Both directions of a trunk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrunkCounters {
    /// From side A to side B.
    pub a_to_b: DirectionCounters,
    /// From side B to side A.
    pub b_to_a: DirectionCounters,
}
