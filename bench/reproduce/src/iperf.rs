//! Plain TCP beside ours: iperf3 pairs, alone or many at once.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::process::Process;
use crate::ropewalk::Place;

/// iperf3's own default port; in a lab host it is free.
pub(crate) const PORT: u16 = 5201;

/// One iperf3 pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair<'l> {
    /// Where the sender runs.
    pub from: Place<'l>,
    /// Where the receiver runs.
    pub to: Place<'l>,
    /// The receiver's address as the sender sees it.
    pub address: &'l str,
    /// The receiver's port.
    pub port: u16,
}

/// When a pair stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// Bytes of all its streams together.
    Bytes(u64),
    /// Seconds that count, after seconds that do not.
    Seconds {
        /// Those that do not.
        warm_up: u32,
        /// Those that do.
        measured: u32,
    },
}

/// What each pair moves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// How much, or for how long.
    pub until: Until,
    /// TCP connections.
    pub streams: u32,
    /// iperf3's -Z.
    pub zero_copy: bool,
    /// Bytes of one write, instead of iperf3's own 128 KiB.
    pub block_len: Option<u64>,
    /// The end that is connected to sends (iperf3's -R).
    pub is_back: bool,
}

impl Load {
    /// As iperf3 does it by itself.
    pub fn plain(bytes: u64, streams: u32) -> Self {
        Self {
            until: Until::Bytes(bytes),
            streams,
            zero_copy: false,
            block_len: None,
            is_back: false,
        }
    }

    /// One stream for a time.
    pub fn lasting(seconds: f64) -> Self {
        Self {
            until: Until::Seconds {
                warm_up: 0,
                measured: seconds.round().max(1.0) as u32,
            },
            ..Self::plain(0, 1)
        }
    }
}

/// What iperf3 pairs reached together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Carried {
    /// Bytes that the receivers got.
    pub bytes: u64,
    /// The longest of the pairs' own times.
    pub seconds: f64,
    /// User and system time of all senders and receivers.
    pub processor_seconds: f64,
    /// What each sender printed.
    pub outputs: Vec<Value>,
}

impl Carried {
    /// All bytes over the longest time.
    pub fn megabits(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.seconds / 1e6
    }

    /// What each pair carried in its own time.
    pub fn by_pair_megabits(&self) -> Vec<f64> {
        let rates = self
            .outputs
            .iter()
            .filter_map(|output| received(output).ok());
        rates
            .map(|(bytes, seconds)| bytes as f64 * 8.0 / seconds / 1e6)
            .collect()
    }
}

/// Bytes received and seconds from what a sender printed.
fn received(output: &Value) -> Result<(u64, f64)> {
    if let Some(error) = output["error"].as_str() {
        bail!("iperf3: {error}");
    }
    let sum = &output["end"]["sum_received"];
    match (sum["bytes"].as_u64(), sum["seconds"].as_f64()) {
        (Some(bytes), Some(seconds)) if seconds > 0.0 => Ok((bytes, seconds)),
        _ => bail!("iperf3 printed no sum_received"),
    }
}

/// Moves a load over every pair at once.
pub(crate) fn run(pairs: &[Pair<'_>], load: Load, deadline: Duration) -> Result<Carried> {
    let program = Path::new("iperf3");
    let mut servers = Vec::new();
    for pair in pairs {
        let mut command: Command = pair.to.command(program);
        command.args(["-s", "-1", "--forceflush", "-p", &pair.port.to_string()]);
        let server =
            Process::start(command).context("iperf3 is needed; run scripts/install-test-tools")?;
        // Its banner says that it listens.
        loop {
            match server.line(Duration::from_secs(20))? {
                Some(line) if line.contains("listening") => break,
                Some(_) => {}
                None => bail!("iperf3 -s: {}", server.stop()?.errors.trim()),
            }
        }
        servers.push(server);
    }
    let mut clients = Vec::new();
    for pair in pairs {
        let mut command = pair.from.command(program);
        command.args(["-J", "-c", pair.address, "-p", &pair.port.to_string()]);
        match load.until {
            Until::Bytes(bytes) => command.args(["-n", &bytes.to_string()]),
            Until::Seconds { warm_up, measured } => {
                command.args(["-O", &warm_up.to_string(), "-t", &measured.to_string()])
            }
        };
        command.args(["-P", &load.streams.to_string()]);
        if load.zero_copy {
            command.arg("-Z");
        }
        if load.is_back {
            command.arg("-R");
        }
        if let Some(len) = load.block_len {
            command.args(["-l", &len.to_string()]);
        }
        clients.push(Process::start(command)?);
    }
    let mut carried = Carried {
        bytes: 0,
        seconds: 0.0,
        processor_seconds: 0.0,
        outputs: Vec::new(),
    };
    for client in clients {
        let ended = client.finish(deadline)?;
        let text = ended.output.join("\n");
        let mut output: Value = serde_json::from_str(&text)
            .with_context(|| format!("iperf3 printed no JSON: {text} {}", ended.errors))?;
        let (received, seconds) = received(&output)?;
        // Every second of every stream is more than anybody will read again.
        output["intervals"].take();
        carried.bytes += received;
        carried.seconds = carried.seconds.max(seconds);
        carried.processor_seconds += ended.processor_seconds;
        carried.outputs.push(output);
    }
    for server in servers {
        carried.processor_seconds += server.finish(Duration::from_secs(20))?.processor_seconds;
    }
    Ok(carried)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Receivers' bytes and seconds are taken, and iperf3's own error is passed on.
    #[test]
    fn output_of_iperf() {
        let good = json!({"end": {"sum_received": {"bytes": 1000, "seconds": 2.0}, "sum_sent": {"bytes": 9, "seconds": 1.0}}});
        assert_eq!(received(&good).unwrap(), (1000, 2.0));
        let bad = json!({"end": {}, "error": "unable to connect"});
        assert!(
            received(&bad)
                .unwrap_err()
                .to_string()
                .contains("unable to connect")
        );
        assert!(received(&json!({"end": {}})).is_err());
    }
}
