//! One direction's thread: reads packets from one TUN device, passes them through the link model, writes them to the
//! other when they are due.
//!
//! ```text
//!  round: requests? ─▶ write what is due ─▶ read what is there ─▶ nothing left to do: sleep until due or readable
//!                                          └─ due at once: written while it is in the cache
//! ```
//!
//! One thread does both ends, so a packet's path has no lock, no allocation and no hand-over. Reads are one packet a
//! call; that is all a TUN device offers.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::counters::RelayCounters;
use super::link::Link;
use super::mailbox::{Mailbox, Request};
use super::slots::{Slot, Slots};
use super::spec::{LinkSpec, TrunkSpec};
use super::tun;

/// Packets written, then read, before the other is looked at again.
const BATCH: usize = 64;

/// What one direction's thread works on.
pub(crate) struct Relay {
    input: Arc<OwnedFd>,
    output: Arc<OwnedFd>,
    mailbox: Arc<Mailbox>,
    link: Link<Slot>,
    slots: Slots,
    /// The empty slot that the next packet is read into; `None` while memory is full.
    spare: Option<Slot>,
    /// Where packets go that find no memory, to be counted.
    sink: Vec<u8>,
    header_bytes: usize,
    tick_ns: u64,
    spin_ns: u64,
    wants_precedence: bool,
    /// Everything but the link's own.
    counters: RelayCounters,
    since_ns: u64,
    processor_since: Duration,
}

/// Whether the thread goes on.
enum Next {
    Round,
    End,
}

fn now_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn timespec(ns: u64) -> Timespec {
    Timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    }
}

fn processor_time() -> Duration {
    Duration::from_nanos(nanoseconds(clock_gettime(ClockId::ThreadCPUTime)))
}

/// Whether a packet is what the kernel at the trunk's end says to its neighbour by itself: IPv6 to a multicast group of
/// this link only, such as the reports of groups when the device comes up. Hosts' packets never are, and what the
/// trunk is offered shall be theirs alone.
fn is_own_talk(packet: &[u8]) -> bool {
    matches!(packet.first(), Some(first) if first >> 4 == 6)
        && matches!(packet.get(24..26), Some([0xff, scope]) if scope & 0x0f <= 2)
}

impl Relay {
    pub(crate) fn new(
        spec: &TrunkSpec,
        link: &LinkSpec,
        seed: u64,
        [input, output]: [Arc<OwnedFd>; 2],
        mailbox: Arc<Mailbox>,
    ) -> Self {
        let header_bytes = spec.offload.header_bytes();
        // A device may hand over a packet larger than its MTU after the MTU was lowered, and whole segments.
        let packet_bytes = if header_bytes > 0 {
            65_535
        } else {
            spec.mtu as usize
        };
        let mut slots = Slots::new(packet_bytes + header_bytes, spec.buffer_bytes);
        Relay {
            input,
            output,
            mailbox,
            // Growing on the way would hold packets up.
            link: Link::new(link.clone(), seed, slots.count()),
            spare: slots.take(),
            slots,
            sink: vec![0; 65_535 + header_bytes],
            header_bytes,
            tick_ns: spec.tick_microseconds * 1_000,
            spin_ns: spec.spin_microseconds * 1_000,
            wants_precedence: spec.real_time,
            counters: RelayCounters::default(),
            since_ns: 0,
            processor_since: Duration::ZERO,
        }
    }

    /// The thread's whole life. After a failure it goes on answering requests, so that the failure is heard of.
    pub(crate) fn run(mut self) {
        self.counters.is_real_time = self.wants_precedence && tun::take_precedence().is_ok();
        tun::wake_on_time();
        (self.since_ns, self.processor_since) = (now_ns(), processor_time());
        if let Err((action, errno)) = self.rounds() {
            self.counters.failure = Some(format!("cannot {action}: {errno}"));
            loop {
                let mut bell = [PollFd::from_borrowed_fd(self.mailbox.bell(), PollFlags::IN)];
                let _ = poll(&mut bell, None);
                if let Next::End = self.answer() {
                    return;
                }
            }
        }
    }

    fn rounds(&mut self) -> Result<(), (&'static str, Errno)> {
        let mut may_read = true;
        loop {
            if let Next::End = self.answer() {
                return Ok(());
            }
            self.write_due(now_ns());
            let read = match may_read {
                true => self
                    .read_some()
                    .map_err(|errno| ("read from its device", errno))?,
                false => 0,
            };
            // More than a batch is there: no time to sleep.
            let is_due = |due_ns| due_ns <= now_ns();
            let has_more = read == BATCH || self.link.next_due_ns().is_some_and(is_due);
            may_read = if has_more {
                true
            } else if self.tick_ns > 0 {
                self.await_tick(read)?
            } else {
                self.await_work()?
            };
        }
    }

    fn answer(&mut self) -> Next {
        for request in self.mailbox.collect() {
            let answer = match request {
                Request::Stop => return Next::End,
                Request::Counters(answer) => answer,
                Request::Set(spec, answer) => {
                    self.link.set(now_ns(), *spec);
                    answer
                }
                Request::Reset(answer) => {
                    self.link.reset_counters(now_ns());
                    self.counters.lateness.clear();
                    self.counters.buffer_full = super::Tally::default();
                    self.counters.refused_writes = 0;
                    (self.since_ns, self.processor_since) = (now_ns(), processor_time());
                    answer
                }
            };
            let counters = RelayCounters {
                link: *self.link.counters(),
                wall: Duration::from_nanos(now_ns() - self.since_ns),
                processor: processor_time().saturating_sub(self.processor_since),
                ..self.counters.clone()
            };
            // Whoever asked may have stopped waiting.
            let _ = answer.send(counters);
        }
        Next::Round
    }

    fn write_due(&mut self, mut now: u64) {
        for _ in 0..BATCH {
            let Some((slot, due_ns)) = self.link.take(now) else {
                return;
            };
            if rustix::io::write(&*self.output, self.slots.filled(slot)).is_err() {
                self.counters.refused_writes += 1;
            }
            self.slots.give_back(slot);
            now = now_ns();
            self.counters.lateness.record(now.saturating_sub(due_ns));
        }
    }

    /// Reads until nothing is there, or a batch; returns how many packets it read.
    fn read_some(&mut self) -> Result<usize, Errno> {
        for count in 0..BATCH {
            if self.spare.is_none() {
                self.spare = self.slots.take();
            }
            let room = match self.spare {
                Some(slot) => self.slots.room(slot),
                None => &mut self.sink,
            };
            let len = match rustix::io::read(&*self.input, &mut *room) {
                Ok(len) => len,
                Err(Errno::AGAIN) => return Ok(count),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            };
            let bytes = len.saturating_sub(self.header_bytes) as u64;
            if is_own_talk(room.get(self.header_bytes..len).unwrap_or_default()) {
                continue;
            }
            match self.spare.take() {
                Some(slot) => {
                    let packet = slot.filled_to(len);
                    let now = now_ns();
                    self.spare = self.link.offer(now, bytes, packet);
                    if self.link.next_due_ns().is_some_and(|due_ns| due_ns <= now) {
                        self.write_due(now);
                    }
                }
                None => {
                    self.counters.buffer_full.packets += 1;
                    self.counters.buffer_full.bytes += bytes;
                }
            }
        }
        Ok(BATCH)
    }

    /// Sleeps until a packet is due or can be read, or somebody asks something. Returns whether one may be read.
    fn await_work(&self) -> Result<bool, (&'static str, Errno)> {
        let timeout = match self.link.next_due_ns() {
            None => None,
            Some(due_ns) => {
                let left = due_ns.saturating_sub(now_ns());
                if left <= self.spin_ns {
                    return Ok(true);
                }
                Some(timespec(left - self.spin_ns))
            }
        };
        self.poll(timeout.as_ref())
    }

    /// Sleeps until the next tick while packets come or are held; else until something happens.
    fn await_tick(&self, read: usize) -> Result<bool, (&'static str, Errno)> {
        if read == 0 && self.link.next_due_ns().is_none() {
            self.poll(None)?;
        }
        let next = (now_ns() / self.tick_ns + 1) * self.tick_ns;
        // Woken early by a signal: the round is early, too, which does no harm.
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &timespec(next));
        Ok(true)
    }

    fn poll(&self, timeout: Option<&Timespec>) -> Result<bool, (&'static str, Errno)> {
        let mut events = [
            PollFd::from_borrowed_fd(self.input.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.mailbox.bell(), PollFlags::IN),
        ];
        match poll(&mut events, timeout) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(("wait for packets", errno)),
        }
        // The device is gone: asking again would only burn a processor that nobody can take away.
        let gone = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
        if events[0].revents().intersects(gone) && !events[0].revents().contains(PollFlags::IN) {
            return Err(("wait for packets", Errno::NODEV));
        }
        Ok(!events[0].revents().is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only IPv6 to groups of the link itself is own talk: not IPv4, not larger scopes, not scraps.
    #[test]
    fn own_talk() {
        let packet = |version: u8, scope: u8| {
            let mut packet = [0; 40];
            packet[0] = version << 4;
            packet[24..26].copy_from_slice(&[0xff, scope]);
            packet
        };
        assert!(is_own_talk(&packet(6, 0x02)) && is_own_talk(&packet(6, 0x12)));
        assert!(!is_own_talk(&packet(6, 0x05)) && !is_own_talk(&packet(4, 0x02)));
        let mut unicast = packet(6, 0x02);
        unicast[24] = 0xfd;
        assert!(!is_own_talk(&unicast));
        assert!(!is_own_talk(&packet(6, 2)[..20]) && !is_own_talk(&[]));
    }
}
