//! One direction of a trunk in virtual time: transmitter, drop-tail queue, random loss, delay.
//!
//! ```text
//! offer ──▶ queue full? ──▶ [ queue | in transmission ] ──▶ lost? ──▶ ( on the way for `delay` ) ──▶ take
//!             dropped            departs at `rate`           gone                              due
//! ```
//!
//! Pure: it takes the time and packets, and says which packet is due when. When a packet departs follows from when
//! the one before it departed, never from when the relay looked, so that rate and queue are exact however
//! late the relay is. Packets keep their order, also across a change of delay. A packet that is going to be lost
//! takes up queue and transmitter like any other: it is lost on the way, as by a bad fibre.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::loss::LossProcess;
use super::spec::{LinkSpec, QueueLimit};

const NS_PER_SECOND: u64 = 1_000_000_000;

/// What a link has done since it was made, or since its counters were reset.
///
/// In packets and in bytes, `offered + carried_over = delivered + dropped_queue + dropped_loss + dropped_blackhole +
/// held`. Bytes are those of the packets, without the link's overhead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCounters {
    /// What entered the link.
    pub offered: Tally,
    /// What it held when the counters were reset.
    pub carried_over: Tally,
    /// What left it at the other end.
    pub delivered: Tally,
    /// What found the queue full.
    pub dropped_queue: Tally,
    /// What was lost on the way at random.
    pub dropped_loss: Tally,
    /// What arrived at a black hole.
    pub dropped_blackhole: Tally,
    /// What is in the queue, in transmission or on the way, and going to be delivered.
    pub held: Tally,
    /// Most packets that were in queue and transmission at once.
    pub queue_packets_max: u64,
    /// Most bytes, overhead included, that were.
    pub queue_bytes_max: u64,
}

/// Packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Packets.
    pub packets: u64,
    /// Their bytes, as the interface sees them (IP header and payload).
    pub bytes: u64,
}

impl Tally {
    fn add(&mut self, bytes: u64) {
        self.packets += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: u64) {
        self.packets -= 1;
        self.bytes -= bytes;
    }
}

#[derive(Debug)]
struct Entry<T> {
    /// `None`: lost, and only takes up its place.
    payload: Option<T>,
    bytes: u64,
    departure_ns: u64,
    due_ns: u64,
}

/// One direction of a trunk. `T` stands for a packet's contents, which the model never looks at.
#[derive(Debug)]
pub(crate) struct Link<T> {
    spec: LinkSpec,
    /// In order of arrival, which is the order of departure and of delivery. The first `departed` have left the
    /// transmitter; of the rest, the first is in transmission.
    entries: VecDeque<Entry<T>>,
    departed: usize,
    /// Bytes with overhead of the entries that have not departed.
    queued_bytes: u64,
    /// When the transmitter has sent all it has.
    free_at_ns: u64,
    /// What integer division left over of the last departure, in bits x 10^9: long-term rates are exact.
    carry: u64,
    loss: LossProcess,
    counters: LinkCounters,
}

impl<T> Link<T> {
    /// A link without packets, with room for that many. `seed` decides which are lost.
    pub(crate) fn new(spec: LinkSpec, seed: u64, packets: usize) -> Self {
        Link {
            loss: LossProcess::new(&spec.loss, seed),
            spec,
            entries: VecDeque::with_capacity(packets),
            departed: 0,
            queued_bytes: 0,
            free_at_ns: 0,
            carry: 0,
            counters: LinkCounters::default(),
        }
    }

    pub(crate) fn counters(&self) -> &LinkCounters {
        &self.counters
    }

    /// Starts counting anew; what the link holds is carried over.
    pub(crate) fn reset_counters(&mut self, now_ns: u64) {
        self.advance(now_ns);
        let held = self.counters.held;
        self.counters = LinkCounters {
            held,
            carried_over: held,
            queue_packets_max: self.queued_packets(),
            queue_bytes_max: self.queued_bytes,
            ..LinkCounters::default()
        };
    }

    fn queued_packets(&self) -> u64 {
        (self.entries.len() - self.departed) as u64
    }

    /// Moves what has left the transmitter by now out of the queue.
    fn advance(&mut self, now_ns: u64) {
        while let Some(entry) = self.entries.get(self.departed)
            && entry.departure_ns <= now_ns
        {
            self.queued_bytes -= entry.bytes + u64::from(self.spec.overhead_bytes);
            self.departed += 1;
        }
    }

    /// When the transmitter is done with a packet that it begins with at `start_ns`.
    fn departure(&mut self, start_ns: u64, bytes: u64) -> u64 {
        let Some(rate) = self.spec.bits_per_second else {
            return start_ns;
        };
        // 64 KiB x 8 x 10^9 plus a carry below the rate: far from 2^64.
        let work = (bytes + u64::from(self.spec.overhead_bytes)) * 8 * NS_PER_SECOND + self.carry;
        self.carry = work % rate;
        start_ns + work / rate
    }

    /// Hands the link a packet of `bytes` bytes that arrives now. Returns its contents when they will not come out.
    ///
    /// Times must not decrease from call to call.
    pub(crate) fn offer(&mut self, now_ns: u64, bytes: u64, payload: T) -> Option<T> {
        self.counters.offered.add(bytes);
        if self.spec.blackhole {
            self.counters.dropped_blackhole.add(bytes);
            return Some(payload);
        }
        self.advance(now_ns);
        let size = bytes + u64::from(self.spec.overhead_bytes);
        let has_room = match self.spec.queue {
            QueueLimit::Packets(limit) => self.queued_packets() < u64::from(limit),
            QueueLimit::Bytes(limit) => self.queued_bytes + size <= limit,
        };
        if !has_room {
            self.counters.dropped_queue.add(bytes);
            return Some(payload);
        }
        if self.free_at_ns < now_ns {
            (self.free_at_ns, self.carry) = (now_ns, 0);
        }
        self.free_at_ns = self.departure(self.free_at_ns, bytes);
        let is_lost = self.loss.takes_next();
        let (kept, gone) = if is_lost {
            self.counters.dropped_loss.add(bytes);
            (None, Some(payload))
        } else {
            self.counters.held.add(bytes);
            (Some(payload), None)
        };
        let before = self.entries.back().map_or(0, |entry| entry.due_ns);
        self.entries.push_back(Entry {
            payload: kept,
            bytes,
            departure_ns: self.free_at_ns,
            due_ns: before.max(self.free_at_ns + self.spec.delay_ns()),
        });
        self.queued_bytes += size;
        let counters = &mut self.counters;
        counters.queue_packets_max = counters
            .queue_packets_max
            .max((self.entries.len() - self.departed) as u64);
        counters.queue_bytes_max = counters.queue_bytes_max.max(self.queued_bytes);
        gone
    }

    /// When the next packet is due at the far end.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.entries.front().map(|entry| entry.due_ns)
    }

    /// The next packet that is due by now, and when it was due.
    pub(crate) fn take(&mut self, now_ns: u64) -> Option<(T, u64)> {
        while let Some(entry) = self.entries.front()
            && entry.due_ns <= now_ns
        {
            if self.departed == 0 {
                self.advance(now_ns);
            }
            self.departed -= 1;
            let entry = self.entries.pop_front()?;
            if let Some(payload) = entry.payload {
                self.counters.held.remove(entry.bytes);
                self.counters.delivered.add(entry.bytes);
                return Some((payload, entry.due_ns));
            }
        }
        None
    }

    /// Changes the link from now on. What is on the way arrives when it would have; what still queues goes at the
    /// new rate and delay, the packet in transmission with the part of it that is left.
    pub(crate) fn set(&mut self, now_ns: u64, spec: LinkSpec) {
        self.advance(now_ns);
        let rate_before = self.spec.bits_per_second;
        self.spec = spec;
        self.loss.set(&self.spec.loss);
        self.carry = 0;
        let mut before_ns = match self.departed {
            0 => 0,
            some => self.entries[some - 1].due_ns,
        };
        let mut free_at_ns = now_ns;
        self.queued_bytes = 0;
        for index in self.departed..self.entries.len() {
            let (bytes, departure_ns) =
                (self.entries[index].bytes, self.entries[index].departure_ns);
            free_at_ns = match (self.spec.bits_per_second, rate_before) {
                (Some(rate), Some(rate_before)) if index == self.departed => {
                    let left = u128::from(departure_ns - now_ns) * u128::from(rate_before);
                    now_ns + u64::try_from(left / u128::from(rate)).unwrap_or(u64::MAX / 4)
                }
                _ => self.departure(free_at_ns, bytes),
            };
            let entry = &mut self.entries[index];
            entry.departure_ns = free_at_ns;
            entry.due_ns = before_ns.max(free_at_ns + self.spec.delay_ns());
            before_ns = entry.due_ns;
            self.queued_bytes += bytes + u64::from(self.spec.overhead_bytes);
        }
        self.free_at_ns = free_at_ns;
    }
}

#[cfg(test)]
mod tests;
