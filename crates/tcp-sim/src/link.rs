//! One direction of a link with its drop-tail queue.

use std::collections::VecDeque;

use super::chance::Stream;
use super::events::{Events, Moment, What};
use super::topology;

/// A packet on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub flow: u32,
    /// Where it is in the table of routes.
    pub hop: u32,
    pub seq: u32,
    pub bytes: u32,
    pub is_ack: bool,
}

/// The state of one direction of a link.
#[derive(Debug)]
pub(super) struct Port {
    bits_per_second: f64,
    latency_seconds: f64,
    /// Packets waiting and in transmission.
    limit: usize,
    waiting: VecDeque<Packet>,
    // In order of arrival; the first one has an event.
    flying: VecDeque<(Moment, Packet)>,
    // When the transmission under way ends; in the past when the link is idle.
    busy_until: Moment,
    loss: Option<(f64, Stream)>,
    pub drops: u64,
    pub lost: u64,
}

impl Port {
    pub fn new(link: &topology::Link, chance: Stream) -> Self {
        Self {
            bits_per_second: link.bits_per_second,
            latency_seconds: link.latency_seconds,
            limit: link.queue,
            waiting: VecDeque::new(),
            flying: VecDeque::new(),
            busy_until: Moment::START,
            loss: (link.loss > 0.0).then_some((link.loss, chance)),
            drops: 0,
            lost: 0,
        }
    }

    /// Takes a packet at `now`: sends it, lets it wait or drops it.
    pub fn take(&mut self, number: u32, packet: Packet, now: Moment, events: &mut Events) {
        if self.busy_until < now && self.waiting.is_empty() {
            self.send(number, packet, now, events);
        } else if self.waiting.len() + 1 >= self.limit {
            self.drops += 1;
        } else {
            if self.waiting.is_empty() {
                events.push(self.busy_until, What::TransmissionEnds(number));
            }
            self.waiting.push_back(packet);
        }
    }

    /// Sends the first packet that waits. It is the event under way.
    pub fn transmission_ends(&mut self, number: u32, now: Moment, events: &mut Events) {
        let Some(packet) = self.waiting.pop_front() else {
            events.drop_next();
            return;
        };
        if self.waiting.is_empty() {
            events.drop_next();
            self.send(number, packet, now, events);
        } else {
            // The event of this transmission's end replaces the one under way, before others are pushed.
            let until = self.schedule(packet, now, events);
            events.put_off(self.busy_until);
            self.fly(number, packet, until, events);
        }
    }

    fn send(&mut self, number: u32, packet: Packet, now: Moment, events: &mut Events) {
        let arrives = self.schedule(packet, now, events);
        self.fly(number, packet, arrives, events);
    }

    // When the packet arrives; the link is busy until it has been sent.
    fn schedule(&mut self, packet: Packet, now: Moment, events: &mut Events) -> Moment {
        let transmission = 8.0 * f64::from(packet.bytes) / self.bits_per_second;
        let arrives = events.moment(now.seconds() + (transmission + self.latency_seconds));
        self.busy_until = events.moment(now.seconds() + transmission);
        arrives
    }

    fn fly(&mut self, number: u32, packet: Packet, arrives: Moment, events: &mut Events) {
        if let Some((probability, chance)) = &mut self.loss
            && chance.next_unit() < *probability
        {
            self.lost += 1;
            return;
        }
        if self.flying.is_empty() {
            events.push(arrives, What::Deliver(number));
        }
        self.flying.push_back((arrives, packet));
    }

    /// The packet that has arrived. Its delivery is the event under way.
    pub fn deliver(&mut self, events: &mut Events) -> Option<Packet> {
        let (_, packet) = self.flying.pop_front()?;
        match self.flying.front() {
            Some((next, _)) => events.put_off(*next),
            None => events.drop_next(),
        }
        Some(packet)
    }
}
