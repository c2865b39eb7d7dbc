//! Traffic that takes a part of a rail: datagrams at a steady rate, counted at both ends.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ropewalk_lab::Lab;

use super::hosts;

/// Bytes of a datagram's payload, as large as an Ethernet frame of TCP takes.
const PAYLOAD: usize = 1448;
/// Ethernet, IP and UDP headers.
const HEADERS: usize = 14 + 20 + 8;
/// How often the sender looks at the time: a handful of datagrams at 60 Mbit/s.
const STEP: Duration = Duration::from_millis(1);
/// How often the receiver looks whether it is over.
const LOOK: Duration = Duration::from_millis(100);
const PORT: u16 = 9000;

#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    received: AtomicU64,
    is_over: AtomicBool,
}

/// Running traffic; ends with its value.
#[derive(Debug)]
pub(super) struct Competitor {
    counts: Arc<Counts>,
    threads: Vec<JoinHandle<()>>,
}

/// Datagrams sent and received so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    sent: u64,
    received: u64,
    at: Instant,
}

impl Reading {
    /// Percent lost since an earlier reading, and megabits of frames per second that were sent.
    pub fn since(self, before: Self) -> (f64, f64) {
        let sent = (self.sent - before.sent).max(1) as f64;
        let received = (self.received - before.received) as f64;
        let seconds = (self.at - before.at).as_secs_f64().max(1e-9);
        let megabits = sent * ((PAYLOAD + HEADERS) * 8) as f64 / 1e6 / seconds;
        // What is in the queue at either reading belongs to neither side for sure.
        ((1.0 - received / sent).max(0.0) * 100.0, megabits)
    }
}

impl Competitor {
    /// Sends frames at this rate from host `a` to `b` on one rail.
    pub fn start(lab: &Lab, rail: usize, bits_per_second: u64) -> Result<Self> {
        let socket = |host: &str, port: u16| -> Result<(UdpSocket, SocketAddr)> {
            let address: SocketAddr =
                format!("{}:{port}", hosts::addresses(lab, host)[rail]).parse()?;
            let socket = lab.in_network(host, || UdpSocket::bind(address))?;
            Ok((
                socket.with_context(|| format!("cannot bind {address}"))?,
                address,
            ))
        };
        let (from, _) = socket("a", 0)?;
        let (to, peer) = socket("b", PORT)?;
        from.connect(peer)?;
        to.set_read_timeout(Some(LOOK))?;
        let counts = Arc::new(Counts::default());
        let (ours, theirs) = (counts.clone(), counts.clone());
        let sending = std::thread::spawn(move || send(&from, bits_per_second, &ours));
        let receiving = std::thread::spawn(move || {
            let mut room = [0; PAYLOAD];
            while !theirs.is_over.load(Ordering::Relaxed) {
                if to.recv(&mut room).is_ok() {
                    theirs.received.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Ok(Self {
            counts,
            threads: vec![sending, receiving],
        })
    }

    pub fn read(&self) -> Reading {
        Reading {
            sent: self.counts.sent.load(Ordering::Relaxed),
            received: self.counts.received.load(Ordering::Relaxed),
            at: Instant::now(),
        }
    }
}

fn send(socket: &UdpSocket, bits_per_second: u64, counts: &Counts) {
    let each = Duration::from_secs_f64(((PAYLOAD + HEADERS) * 8) as f64 / bits_per_second as f64);
    let mut due = Instant::now();
    while !counts.is_over.load(Ordering::Relaxed) {
        while due <= Instant::now() {
            // A full queue is a loss like any other on the way.
            let _ = socket.send(&[0x55; PAYLOAD]);
            counts.sent.fetch_add(1, Ordering::Relaxed);
            due += each;
        }
        std::thread::sleep(STEP);
    }
}

impl Drop for Competitor {
    fn drop(&mut self) {
        self.counts.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked shows in what it counted.
            let _ = thread.join();
        }
    }
}
