//! What each side says at the end.
//!
//! The line has the original's form. Its fields `u`, `s`, `im` and `sw` are from getrusage, of the process as a whole.
//! The attachment does not explain `im` and `sw`. Both of its processes show nearly the same `im` (162 and 160), so
//! it is no count of messages, which would be far apart between a sender and a receiver, but memory; and their `sw` is 0
//! after 40 s of waiting for sockets, so it counts swaps, not switches. Here `im` is the most memory that was resident at
//! once in KiB (`ru_maxrss`; Linux does not keep the integrals of older systems) and `sw` is `ru_nswap`, which Linux
//! always leaves at 0. Linux counts into `ru_maxrss` what the process held before it became this program, so that a large
//! parent can show through.

use std::time::Duration;

use serde_json::{Value, json};

use crate::options::{Role, Test};
use crate::sys;

/// What a process used, from getrusage.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Processor time in the program.
    pub user_seconds: f64,
    /// Processor time in the system.
    pub system_seconds: f64,
    /// Most memory that was resident at once.
    pub resident_kibibytes_max: u64,
    /// Times the process was swapped out; 0 on Linux.
    pub swaps: u64,
    /// Times it waited.
    pub voluntary_context_switches: u64,
    /// Times it had to give way.
    pub involuntary_context_switches: u64,
}

/// Rates of connections, in bits per second; each from the start of the clock to the connection's own end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Of the slowest.
    pub min: f64,
    /// Of the middle one; the mean of the middle two when their number is even.
    pub median: f64,
    /// Of the fastest.
    pub max: f64,
}

impl Rates {
    /// The rates of connections that each carried `bytes` in one of `seconds`.
    pub fn new(bytes: u64, seconds: impl IntoIterator<Item = f64>) -> Self {
        let rate = |seconds: f64| bytes as f64 * 8.0 / seconds.max(f64::MIN_POSITIVE);
        let mut rates: Vec<f64> = seconds.into_iter().map(rate).collect();
        rates.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (rates.first(), rates.last()) else {
            return Self::default();
        };
        let count = rates.len();
        let median = (rates[(count - 1) / 2] + rates[count / 2]) / 2.0;
        Self { min, median, max }
    }
}

/// What one side did.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its part in the test.
    pub test: Test,
    /// Where the receiver listened, or the sender connected to: the first port.
    pub place: String,
    /// Sender: from the receiver's Go to its last confirmation. Receiver: from Go to the last byte's confirmation.
    pub seconds: f64,
    /// Bytes that the receiver has, all connections together.
    pub bytes: u64,
    /// Of the connections.
    pub rates: Rates,
    /// Of the process.
    pub usage: Usage,
}

impl Report {
    /// What `test` came to, with the seconds that each connection took.
    pub(crate) fn new(
        test: &Test,
        place: String,
        took: Duration,
        seconds: impl IntoIterator<Item = f64>,
    ) -> Self {
        let shape = test.shape;
        Self {
            test: test.clone(),
            place,
            seconds: took.as_secs_f64(),
            bytes: shape.bytes(),
            rates: Rates::new(shape.connection_bytes(), seconds),
            usage: sys::usage(),
        }
    }

    fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// The line of the original.
    pub fn line(&self) -> String {
        let name = match self.test.role {
            Role::Send { .. } => "Send",
            Role::Receive { .. } => "Receive",
        };
        let usage = self.usage;
        format!(
            "{name}: et {:.6} bytes {} Mbytes/sec {:.6} {:.1}u {:.1}s {}im {}sw",
            self.seconds,
            self.bytes,
            self.bytes_per_second() / 1e6,
            usage.user_seconds,
            usage.system_seconds,
            usage.resident_kibibytes_max,
            usage.swaps,
        )
    }

    /// The same and more, as an object.
    pub fn json(&self) -> Value {
        let shape = self.test.shape;
        json!({
            "role": match self.test.role {
                Role::Send { .. } => "send",
                Role::Receive { .. } => "receive",
            },
            "place": self.place,
            "seconds": self.seconds,
            "bytes": self.bytes,
            "megabytes_per_second": self.bytes_per_second() / 1e6,
            "bits_per_second": self.bytes_per_second() * 8.0,
            "user_seconds": self.usage.user_seconds,
            "system_seconds": self.usage.system_seconds,
            "resident_kibibytes_max": self.usage.resident_kibibytes_max,
            "swaps": self.usage.swaps,
            "voluntary_context_switches": self.usage.voluntary_context_switches,
            "involuntary_context_switches": self.usage.involuntary_context_switches,
            "connections": shape.connections(),
            "ports": shape.ports,
            "block_bytes": shape.block_len,
            "blocks_per_connection": shape.blocks,
            "blocks": shape.blocks * u64::from(shape.connections()),
            "threads": self.test.thread_count(),
            "connection_bits_per_second": {
                "min": self.rates.min,
                "median": self.rates.median,
                "max": self.rates.max,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;
    use std::time::Duration;

    fn report(role: Role, seconds: f64, usage: Usage) -> Report {
        let shape = Shape {
            connections_per_port: 32,
            ports: 1,
            block_len: 65536,
            blocks: 400,
        };
        let test = Test {
            role,
            shape,
            port: 10007,
            wait: Duration::ZERO,
            threads: Some(2),
        };
        Report {
            test,
            place: "host:10007".into(),
            seconds,
            bytes: shape.bytes(),
            rates: Rates::new(shape.connection_bytes(), [40.0, 20.0, 30.0, 40.0]),
            usage,
        }
    }

    /// The lines of the attachment come out letter by letter.
    #[test]
    fn lines_of_the_original() {
        let usage = |system_seconds, resident_kibibytes_max| Usage {
            system_seconds,
            resident_kibibytes_max,
            ..Usage::default()
        };
        let host = "rreceiver".parse().unwrap();
        let sent = report(Role::Send { host }, 40.151204, usage(31.0, 162));
        assert_eq!(
            sent.line(),
            "Send: et 40.151204 bytes 838860800 Mbytes/sec 20.892544 0.0u 31.0s 162im 0sw"
        );
        let received = report(Role::Receive { listen: None }, 40.163916, usage(36.0, 160));
        assert_eq!(
            received.line(),
            "Receive: et 40.163916 bytes 838860800 Mbytes/sec 20.885932 0.0u 36.0s 160im 0sw"
        );
    }

    /// JSON has the line's numbers unrounded, and rates of connections that differ as their times do.
    #[test]
    fn json_says_more() {
        let json = report(Role::Receive { listen: None }, 40.0, Usage::default()).json();
        assert_eq!(json["role"], "receive");
        assert_eq!(json["bytes"], 838_860_800);
        assert_eq!(json["blocks"], 12_800);
        assert_eq!(json["bits_per_second"], 838_860_800.0 * 8.0 / 40.0);
        let rates = &json["connection_bits_per_second"];
        let each = 65536.0 * 400.0 * 8.0;
        assert_eq!(rates["min"], each / 40.0);
        assert_eq!(rates["max"], each / 20.0);
        assert_eq!(rates["median"], (each / 40.0 + each / 30.0) / 2.0);
    }
}
