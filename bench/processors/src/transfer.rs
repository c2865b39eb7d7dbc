//! A transfer to a receiver on a shared processor.

use std::collections::VecDeque;

use ropewalk_model::{ByteRate, Instant, Nanos};
use ropewalk_proto::control;
use ropewalk_proto::rapid::monitor::{Monitor, POLL_TIME, Sample};
use ropewalk_proto::rapid::{Feedback, Follow, Requests, first_rate};

use super::{Processor, Task};
use crate::SECOND;

/// Length of a step.
const STEP_NS: u64 = 100_000;

/// As lanes begin where nobody set a rate.
const FIRST_RATE: ByteRate = ByteRate(125_000_000);

/// Bytes that count as a datagram where they are counted.
const DATAGRAM: u64 = 1448;

/// A transfer that takes longer does not end.
const GIVE_UP_NS: u64 = 1000 * SECOND;

/// Figures of a transfer. Rates are bytes per second.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Bytes to move.
    pub bytes: u64,
    /// The sender's rate at most; 0: what the monitor says, and 1 Gbit/s before it does.
    pub rate: u64,
    /// What the path carries.
    pub path: u64,
    /// Bytes that may wait before the path; what arrives beyond is lost.
    pub path_queue: u64,
    /// Round trip.
    pub rtt_ns: u64,
    /// What the receiver takes with a whole processor.
    pub capacity: u64,
    /// Receive buffer.
    pub buffer: u64,
}

/// What happened.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// From the first byte sent to the last one taken.
    pub ns: u64,
    /// Bytes that did not fit the buffer.
    pub dropped: u64,
    /// Bytes that the path did not carry.
    pub lost: u64,
    /// How long loops had the processor at a time.
    pub loop_slices_ns: Vec<u64>,
    /// Times between losses, while bytes were arriving: the paper's lossless intervals.
    pub lossless_ns: Vec<u64>,
    /// The scheduler's rating of the receiver, every 10 ms.
    pub levels: Vec<(u64, f64)>,
    /// Suspensions asked for.
    pub suspensions: u32,
    /// Longest time in which the receiver took nothing, once it had begun: jitter of delivery.
    pub longest_gap_ns: u64,
}

impl Outcome {
    /// Bytes per second.
    #[must_use]
    pub fn goodput(&self, bytes: u64) -> f64 {
        bytes as f64 * SECOND as f64 / self.ns.max(1) as f64
    }
}

/// Bytes in a row, and how many had been sent when the last of them was.
#[derive(Clone, Copy)]
struct Lump {
    bytes: f64,
    sent: f64,
}

/// Bytes that wait somewhere, oldest first.
#[derive(Default)]
struct Queue {
    lumps: VecDeque<Lump>,
    bytes: f64,
}

impl Queue {
    fn push(&mut self, lump: Lump) {
        self.bytes += lump.bytes;
        self.lumps.push_back(lump);
    }

    /// Takes so many bytes, or all; what they were sent as.
    fn take(&mut self, bytes: f64) -> Option<Lump> {
        let mut taken: Option<Lump> = None;
        let mut left = bytes;
        while left > 0.0
            && let Some(front) = self.lumps.front_mut()
        {
            let part = front.bytes.min(left);
            front.bytes -= part;
            left -= part;
            let sent = front.sent - front.bytes;
            let so_far = taken.map_or(0.0, |taken| taken.bytes);
            taken = Some(Lump {
                bytes: so_far + part,
                sent,
            });
            if front.bytes <= 0.0 {
                self.lumps.pop_front();
            }
        }
        self.bytes = match self.lumps.is_empty() {
            true => 0.0,
            false => self.bytes - taken.map_or(0.0, |taken| taken.bytes),
        };
        taken
    }
}

impl Transfer {
    /// Runs it; without a monitor at the fixed rate.
    ///
    /// # Panics
    /// When it does not end, which a monitor that suspends for ever would cause.
    #[must_use]
    pub fn run(
        &self,
        processor: &mut dyn Processor,
        mut monitor: Option<&mut dyn Monitor>,
    ) -> Outcome {
        let step = STEP_NS as f64 / SECOND as f64;
        let mut outcome = Outcome::default();
        let rtt = Nanos(self.rtt_ns);
        let first_rate = first_rate(FIRST_RATE, rtt);
        let rate = control::limit(self.rate);
        let mut follow = Follow::new(rate, first_rate, monitor.is_some(), Instant::ZERO);
        let mut requests = Requests::default();
        let mut messages: VecDeque<(u64, Feedback)> = VecDeque::new();
        let (mut entry, mut socket) = (Queue::default(), Queue::default());
        let mut way: VecDeque<(u64, Lump)> = VecDeque::new();
        let (mut unsent, mut again, mut taken, mut sent) = (self.bytes as f64, 0.0, 0.0, 0.0);
        // The sender knows of what is lacking a round trip after its round is out.
        let mut next_round_at: Option<u64> = None;
        let mut sample = Sample {
            buffer: self.buffer,
            rtt,
            ..Sample::default()
        };
        let (mut in_slice, mut slice_ns) = (false, 0);
        let (mut since_loss, mut coming) = (0, false);
        let mut gap = 0;
        let mut now = 0;
        while taken + 0.5 < self.bytes as f64 {
            now += STEP_NS;
            assert!(now < GIVE_UP_NS, "it does not end: {outcome:?}");
            while let Some((_, message)) = messages.pop_front_if(|(at, _)| *at <= now) {
                follow.handle(&message, Instant(now));
            }
            // The sender.
            if unsent < 0.5
                && next_round_at.is_none()
                && again > 0.0
                && way.is_empty()
                && entry.bytes <= 0.0
            {
                next_round_at = Some(now + self.rtt_ns);
            }
            if next_round_at.is_some_and(|at| at <= now) {
                (unsent, again, next_round_at) = (unsent + again, 0.0, None);
            }
            if unsent > 0.0 && follow.suspended_until(Instant(now)).is_none() {
                let out = (follow.rate(rtt, Instant(now)).0 as f64 * step).min(unsent);
                let room = self.path_queue as f64 + self.path as f64 * step - entry.bytes;
                let carried = out.min(room);
                unsent -= out;
                sent += out;
                again += out - carried;
                outcome.lost += (out - carried) as u64;
                entry.push(Lump {
                    bytes: carried,
                    sent,
                });
            }
            if let Some(lump) = entry.take(self.path as f64 * step) {
                way.push_back((now + self.rtt_ns / 2, lump));
            }
            // The socket.
            let mut come = 0.0;
            let mut dropped = 0.0;
            while let Some((_, lump)) = way.pop_front_if(|(at, _)| *at <= now) {
                come += lump.bytes;
                let fits = lump.bytes.min(self.buffer as f64 - socket.bytes).max(0.0);
                dropped += lump.bytes - fits;
                socket.push(Lump {
                    bytes: fits,
                    ..lump
                });
            }
            if dropped > 0.0 {
                again += dropped;
                outcome.dropped += dropped as u64;
                sample.drops += 1;
                if since_loss > 0 {
                    outcome.lossless_ns.push(since_loss);
                }
                since_loss = 0;
            } else if come > 0.0 {
                since_loss += STEP_NS;
            }
            coming |= come > 0.0;
            // The processor.
            let ready = socket.bytes > 0.0;
            let wants_ns = (socket.bytes / self.capacity as f64 * SECOND as f64).ceil() as u64;
            let runs = processor.step(wants_ns, STEP_NS);
            let mut took = 0.0;
            if runs == Some(Task::Receiver) {
                let lump = socket.take(self.capacity as f64 * step);
                took = lump.map_or(0.0, |lump| lump.bytes);
                taken += took;
                // As the last sequence number shows.
                sample.sent = lump.map_or(sample.sent, |lump| lump.sent as u64 / DATAGRAM);
                // It sleeps for the rest of the step when there was little to do.
                let ran = took / (self.capacity as f64 * step) * STEP_NS as f64;
                sample.run += Nanos(ran as u64);
                sample.received = true;
                sample.bytes = taken as u64;
                sample.datagrams = taken as u64 / DATAGRAM;
            } else if ready {
                sample.wait += Nanos(STEP_NS);
            }
            gap = if took > 0.0 || taken == 0.0 {
                0
            } else {
                gap + STEP_NS
            };
            outcome.longest_gap_ns = outcome.longest_gap_ns.max(gap);
            let loops = matches!(runs, Some(Task::Loop(_)));
            if coming && loops {
                slice_ns += STEP_NS;
            } else if in_slice && slice_ns > 0 {
                outcome.loop_slices_ns.push(slice_ns);
                slice_ns = 0;
            }
            in_slice = loops;
            if now % (10 * crate::MS) == 0 {
                outcome.levels.push((now, processor.level()));
            }
            // The monitor.
            if let Some(monitor) = monitor.as_deref_mut()
                && now.is_multiple_of(POLL_TIME.0)
            {
                sample.now = Instant(now);
                sample.queued = socket.bytes as u64;
                sample.blasting = coming && (unsent > 0.5 || !way.is_empty() || socket.bytes > 0.0);
                let advice = monitor.poll(&sample);
                sample.received = false;
                if let Some(ceiling) = advice.ceiling {
                    requests.set_ceiling(ceiling);
                }
                if let Some(interval) = advice.suspend {
                    requests.suspend(interval, Instant(now));
                }
                messages.push_back((now + self.rtt_ns / 2, requests.message(Instant(now))));
            }
        }
        if since_loss > 0 {
            outcome.lossless_ns.push(since_loss);
        }
        outcome.ns = now;
        outcome.suspensions = requests.suspensions();
        outcome
    }
}
