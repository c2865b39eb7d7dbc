//! The monitor's thread: the paper's performance monitoring process (section 3.2), light and, where permitted, soft real time.
//!
//! It looks at the receiving thread and its socket at a fixed interval, asks the chosen
//! [`Monitor`](ropewalk_proto::rapid::monitor::Monitor), and sends what it says at once: as a datagram, so that neither the receiving thread,
//! which may be off its core just then, nor a lost segment of the stream delays it.

use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ropewalk_model::{ByteRate, Nanos, time};
use ropewalk_proto::rapid::monitor::{Monitor, POLL_TIME, Sample, receive_buffer};
use ropewalk_proto::rapid::{
    DATAGRAM_HEADER_LEN, Datagram, DatagramKind, FEEDBACK_LEN, Feedback, Requests,
};

use super::protect::Sealer;
use super::{Options, sys};

/// Without news the state is told this often: the sender takes silence for trouble.
const TELL_EVERY: Nanos = Nanos::from_millis(50);
/// A request to suspend is told so many times in a row: one lost datagram does not lose it.
const TELL_NEWS: u32 = 3;
/// The least round trip of this time counts: while the receiver is off its core its datagrams, and their echoes, wait.
const TRIP_WINDOW: Nanos = Nanos::from_secs(5);
/// A longer round trip is no echo of ours.
const TRIP_MAX: Nanos = Nanos::from_secs(60);
/// Competitors the buffer is sized for before anybody knows how many there are.
const COMPETITORS: u32 = 3;
/// Rate the buffer is sized for where none is set: 8 Gbit/s.
const RATE_UNKNOWN: ByteRate = ByteRate(1_000_000_000);

/// Receive buffer by the rule, and what comes in a round trip before a word can change anything.
pub(super) fn buffer(options: &Options, rtt: Nanos) -> u64 {
    let rate = options.rate.unwrap_or(RATE_UNKNOWN);
    let by_rule = receive_buffer(rate, COMPETITORS);
    let trip = u128::from(rate.0) * u128::from(rtt.0) / 1_000_000_000 * 157 / 100;
    let both = by_rule.saturating_add(u64::try_from(trip).unwrap_or(u64::MAX));
    both.min(BUFFER_MAX.max(by_rule))
}

/// Most bytes of buffer for the sake of a long round trip.
const BUFFER_MAX: u64 = 64 << 20;

/// What the receiving thread shows. Written by it, read by the monitor.
#[derive(Default)]
pub(super) struct Seen {
    /// Which thread it is; 0 before it began.
    pub thread: AtomicI32,
    /// The paper's flag: a packet has come since it was last looked at.
    received: AtomicBool,
    bytes: AtomicU64,
    next_sequence: AtomicU64,
    datagrams: AtomicU64,
    /// Datagrams should be arriving: set by the first one, cleared when all rounds are out.
    pub blasting: AtomicBool,
    rtt_ns: AtomicU64,
    // The least echo of late; `NO_TRIP` before one came.
    trip_ns: AtomicU64,
    /// Processor time of the monitor, which alone writes it.
    monitor_ns: AtomicU64,
}

/// See [`Seen`].
const NO_TRIP: u64 = u64::MAX;

impl Seen {
    /// The round trip, as far as is known.
    pub fn set_rtt(&self, rtt: Nanos) {
        self.rtt_ns.store(rtt.0, Relaxed);
    }

    fn rtt(&self) -> Nanos {
        Nanos(self.rtt_ns.load(Relaxed))
    }

    /// Datagrams were taken from the socket.
    pub fn took(&self, datagrams: u64, bytes: u64, next_sequence: u64) {
        self.datagrams.fetch_add(datagrams, Relaxed);
        self.next_sequence.store(next_sequence, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        self.received.store(true, Release);
    }

    /// Processor time of the monitor.
    pub fn monitor(&self) -> Duration {
        Duration::from_nanos(self.monitor_ns.load(Relaxed))
    }

    /// Bytes taken so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Whether any unit's round is not out. The first datagram after says that a blast goes on.
    pub fn expect(&self, expected: bool) {
        if !expected {
            self.blasting.store(false, Release);
        }
    }

    /// A stamp returned after so many microseconds.
    pub fn trip(&self, microseconds: u32) {
        let trip = Nanos::from_micros(microseconds.into());
        if trip < TRIP_MAX {
            self.trip_ns.fetch_min(trip.0, AcqRel);
        }
    }
}

/// A running monitor; it ends with its lane.
pub(super) struct Monitoring {
    requests: Arc<Mutex<Requests>>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Monitoring {
    pub fn start(
        monitor: Box<dyn Monitor>,
        socket: UdpSocket,
        lane: u32,
        sealer: Sealer,
        trailer: usize,
        began: Instant,
        seen: Arc<Seen>,
    ) -> io::Result<Self> {
        let requests = Arc::new(Mutex::new(Requests::default()));
        let ended = Arc::new(AtomicBool::new(false));
        seen.trip_ns.store(NO_TRIP, Relaxed);
        let watch = Watch {
            socket,
            lane,
            sealer,
            trailer,
            began,
            seen,
            requests: requests.clone(),
            ended: ended.clone(),
            times: Times::default(),
        };
        let thread = std::thread::Builder::new()
            .name("monitor".into())
            .stack_size(128 << 10)
            .spawn(move || watch.run(monitor))?;
        Ok(Self {
            requests,
            ended,
            thread: Some(thread),
        })
    }

    /// How often it asked the sender to suspend.
    pub fn suspensions(&self) -> u32 {
        lock(&self.requests).suspensions()
    }

    /// The state, for the stream.
    pub fn message(&self, now: time::Instant) -> Feedback {
        lock(&self.requests).message(now)
    }
}

impl Drop for Monitoring {
    fn drop(&mut self) {
        self.ended.store(true, Release);
        if let Some(thread) = self.thread.take() {
            // It ends within a poll; a panic in it has been printed.
            let _ = thread.join();
        }
    }
}

fn lock(requests: &Mutex<Requests>) -> std::sync::MutexGuard<'_, Requests> {
    requests.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Watch {
    socket: UdpSocket,
    lane: u32,
    sealer: Sealer,
    trailer: usize,
    began: Instant,
    seen: Arc<Seen>,
    requests: Arc<Mutex<Requests>>,
    ended: Arc<AtomicBool>,
    times: Times,
}

/// Reads what the kernel counts of a thread of this process.
#[derive(Debug, Default)]
pub struct Times {
    // schedstat of the thread with this number.
    file: Option<(i32, File)>,
}

impl Times {
    /// Time run and time waited for a processor, of this thread; `None` where the kernel does not count.
    pub fn own(&mut self) -> Option<(Nanos, Nanos)> {
        self.of(sys::thread_id())
    }

    fn of(&mut self, thread: i32) -> Option<(Nanos, Nanos)> {
        if thread == 0 {
            return None;
        }
        if self.file.as_ref().is_none_or(|(of, _)| *of != thread) {
            let path = format!("/proc/self/task/{thread}/schedstat");
            self.file = Some((thread, File::open(path).ok()?));
        }
        let mut text = [0; 80];
        let length = self.file.as_ref()?.1.read_at(&mut text, 0).ok()?;
        parse(text.get(..length)?)
    }
}

impl Watch {
    fn run(mut self, mut monitor: Box<dyn Monitor>) {
        // Best effort, both; without them it is a thread like any other.
        sys::wake_on_time();
        sys::soft_real_time();
        let poll = Duration::from(POLL_TIME);
        let mut next = Instant::now();
        let (mut told_at, mut news) = (time::Instant::ZERO, 0);
        let mut trips_since = time::Instant::ZERO;
        while !self.ended.load(Acquire) {
            next = (next + poll).max(Instant::now());
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            let now = time::Instant::after(self.began.elapsed());
            let trip = self.seen.trip_ns.load(Acquire);
            if now.since(trips_since) > TRIP_WINDOW {
                trips_since = now;
                self.seen.trip_ns.store(NO_TRIP, Release);
            }
            if trip != NO_TRIP {
                self.seen.set_rtt(Nanos(trip));
            }
            let Some(sample) = self.sample(now) else {
                continue;
            };
            let advice = monitor.poll(&sample);
            let message = {
                let mut requests = lock(&self.requests);
                if let Some(ceiling) = advice.ceiling {
                    requests.set_ceiling(ceiling);
                    news = news.max(1);
                }
                if let Some(interval) = advice.suspend {
                    requests.suspend(interval, now);
                    news = TELL_NEWS;
                }
                let is_due = news > 0 || now.since(told_at) >= TELL_EVERY;
                is_due.then(|| requests.message(now))
            };
            if let Some(message) = message {
                news = news.saturating_sub(1);
                told_at = now;
                self.send(&message);
            }
            self.seen.monitor_ns.store(sys::thread_time().0, Relaxed);
        }
    }

    fn sample(&mut self, now: time::Instant) -> Option<Sample> {
        let thread = self.seen.thread.load(Acquire);
        let (run, wait) = self.times.of(thread)?;
        let queue = sys::queue(&self.socket).unwrap_or_default();
        Some(Sample {
            now,
            run,
            wait,
            received: self.seen.received.swap(false, AcqRel),
            bytes: self.seen.bytes.load(Relaxed),
            datagrams: self.seen.datagrams.load(Relaxed),
            sent: self.seen.next_sequence.load(Relaxed),
            queued: queue.queued,
            buffer: queue.size,
            drops: queue.drops,
            blasting: self.seen.blasting.load(Acquire),
            rtt: self.seen.rtt(),
        })
    }

    fn send(&mut self, message: &Feedback) {
        let head = Datagram {
            kind: DatagramKind::Feedback,
            round: 0,
            length: FEEDBACK_LEN as u16,
            lane: self.lane,
            sequence: self.sealer.next_sequence(),
            offset: 0,
            grant: 0,
            echo: 0,
        };
        let mut bytes = [0; DATAGRAM_HEADER_LEN + FEEDBACK_LEN + 16];
        let bytes = &mut bytes[..DATAGRAM_HEADER_LEN + FEEDBACK_LEN + self.trailer];
        bytes[..DATAGRAM_HEADER_LEN].copy_from_slice(&head.encode());
        bytes[DATAGRAM_HEADER_LEN..][..FEEDBACK_LEN].copy_from_slice(&message.encode());
        self.sealer.seal(bytes);
        // What is lost is told again.
        let _ = self.socket.send(bytes);
    }
}

/// Two of the three numbers of schedstat.
fn parse(text: &[u8]) -> Option<(Nanos, Nanos)> {
    let mut numbers = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
    let mut next = || Some(Nanos(numbers.next()?.parse().ok()?));
    Some((next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's line, and lines that are none.
    #[test]
    fn schedstat_is_read() {
        assert_eq!(
            parse(b"123456 789 42\n"),
            Some((Nanos(123_456), Nanos(789)))
        );
        assert_eq!(parse(b"123456\n"), None);
        assert_eq!(parse(b""), None);
        let own = std::fs::read(format!("/proc/self/task/{}/schedstat", sys::thread_id()));
        assert!(parse(&own.unwrap()).is_some(), "this kernel has none");
    }
}
