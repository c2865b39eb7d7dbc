//! Round trips of small datagrams over an idle trunk.

use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ropewalk_lab::Lab;
use serde::{Deserialize, Serialize};

use crate::stats::{Summary, summary};

/// One after the other.
pub(super) const COUNT: usize = 100;

/// Datagrams that come before, so that both ends know each other.
const WARM_UP: usize = 3;

/// Longer than any path here by far.
const PATIENCE: Duration = Duration::from_secs(10);

/// What round trips took.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Echoes {
    /// Of all of them.
    pub milliseconds: Summary,
    /// Their mean.
    pub mean_milliseconds: f64,
    /// Their standard deviation.
    pub deviation_milliseconds: f64,
    /// How late the relay was, one direction: half of the packets were not later.
    pub late_median_microseconds: f64,
    /// The latest.
    pub late_max_microseconds: f64,
}

fn socket(lab: &Lab, host: &str) -> Result<UdpSocket> {
    let bind = || UdpSocket::bind((IpAddr::from([0, 0, 0, 0]), 0));
    let socket = lab.in_network(host, bind)?.context("cannot bind")?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// Sends a datagram there, which comes back at once, [`COUNT`] times.
pub(super) fn measure(lab: &Lab) -> Result<Echoes> {
    let (near, far) = (socket(lab, "sender")?, socket(lab, "receiver")?);
    let target = (lab.address("receiver"), far.local_addr()?.port());
    let mut took = Vec::with_capacity(COUNT);
    std::thread::scope(|scope| -> Result<()> {
        let echo = scope.spawn(|| -> Result<()> {
            let mut buffer = [0; 64];
            for _ in 0..WARM_UP + COUNT {
                let (len, from) = far.recv_from(&mut buffer)?;
                far.send_to(&buffer[..len], from)?;
            }
            Ok(())
        });
        let mut buffer = [0; 64];
        for number in 0..WARM_UP + COUNT {
            let began = Instant::now();
            near.send_to(&(number as u64).to_le_bytes(), target)?;
            let (len, _) = near.recv_from(&mut buffer).context("an echo was lost")?;
            let elapsed = began.elapsed();
            ensure!(
                buffer[..len] == (number as u64).to_le_bytes(),
                "not its echo"
            );
            if number >= WARM_UP {
                took.push(elapsed.as_secs_f64() * 1e3);
            }
        }
        echo.join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    let mean = took.iter().sum::<f64>() / COUNT as f64;
    let variance = took.iter().map(|ms| (ms - mean).powi(2)).sum::<f64>() / COUNT as f64;
    let counters = lab.trunk(0).counters()?;
    let late = [counters.a_to_b.lateness, counters.b_to_a.lateness];
    let max = |of: [f64; 2]| of[0].max(of[1]);
    Ok(Echoes {
        milliseconds: summary(took).context("no echoes")?,
        mean_milliseconds: mean,
        deviation_milliseconds: variance.sqrt(),
        late_median_microseconds: max(late.map(|late| late.median_microseconds)),
        late_max_microseconds: max(late.map(|late| late.max_microseconds)),
    })
}
