//! Whole messages over rails of given speeds in virtual time: who carries how much, and how near the least time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ropewalk_model::Instant;

use super::super::frame::Entry;
use super::super::{Fragment, Sender, Spread};

const US: u64 = 1000;
/// From the end of a fragment at the peer to its acknowledgement here.
const ACK_NS: u64 = 60 * US;
/// Until the thread of another rail than the caller's runs.
const WAKE_NS: u64 = 80 * US;
/// At this speed a token bucket lets its bytes through.
const LINE_RATE: f64 = 1.25e9;

struct Rail {
    bytes_per_second: f64,
    /// Bytes that go at line rate before the cap is felt, as shapers allow; and those left.
    bucket: f64,
    tokens: f64,
    free_ns: u64,
    frames: u32,
    carried: u64,
}

impl Rail {
    fn new(bytes_per_second: f64, bucket: f64) -> Self {
        Self {
            bytes_per_second,
            bucket,
            tokens: bucket,
            free_ns: 0,
            frames: 0,
            carried: 0,
        }
    }

    /// When a fragment given now is through.
    fn carry(&mut self, bytes: u64, now: u64) -> u64 {
        let begins = now.max(self.free_ns);
        let rested = begins.saturating_sub(self.free_ns) as f64 / 1e9;
        self.tokens = (self.tokens + rested * self.bytes_per_second).min(self.bucket);
        let quick = self.tokens.min(bytes as f64);
        self.tokens -= quick;
        let seconds = quick / LINE_RATE + (bytes as f64 - quick) / self.bytes_per_second;
        self.carried += bytes;
        self.free_ns = begins + (seconds * 1e9) as u64;
        self.free_ns
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Wake(usize),
    Acknowledged(usize, u64, u32, u32),
}

struct Path {
    sender: Sender,
    rails: Vec<Rail>,
    now: u64,
    events: BinaryHeap<Reverse<(u64, Event)>>,
}

impl Path {
    fn new(rails: Vec<Rail>) -> Self {
        let mut sender = Sender::new(rails.len(), u64::MAX);
        (0..rails.len()).for_each(|rail| sender.rail_up(rail));
        Self {
            sender,
            rails,
            now: 0,
            events: BinaryHeap::new(),
        }
    }

    fn send_on(&mut self, rail: usize) {
        while let Some(Fragment {
            message,
            fragment,
            range,
            ..
        }) = self.sender.take(rail, Instant(self.now))
        {
            let r = &mut self.rails[rail];
            let there = r.carry(range.len(), self.now);
            r.frames += 1;
            let event = Event::Acknowledged(rail, message, fragment, r.frames);
            self.events.push(Reverse((there + ACK_NS, event)));
        }
    }

    /// Sends one message and gives the nanoseconds it took.
    fn message(&mut self, length: u64) -> u64 {
        // The answer comes back meanwhile.
        self.now += 500 * US;
        let begun = self.now;
        let message = self.sender.start(length, Spread::Balanced, 0).unwrap();
        let first = self.sender.best().unwrap();
        for rail in 0..self.rails.len() {
            let wake = if rail == first { 0 } else { WAKE_NS };
            self.events
                .push(Reverse((self.now + wake, Event::Wake(rail))));
        }
        while !self.sender.is_finished(message) {
            let Reverse((at, event)) = self.events.pop().expect("nothing is stuck");
            self.now = self.now.max(at);
            match event {
                Event::Wake(rail) => self.send_on(rail),
                Event::Acknowledged(rail, message, fragment, frames) => {
                    self.sender.arrived(Entry {
                        message,
                        first: fragment,
                        count: 1,
                    });
                    self.sender.processed(rail, frames, Instant(self.now));
                    self.send_on(rail);
                    if self.sender.has_declined() {
                        (0..self.rails.len()).for_each(|rail| self.send_on(rail));
                    }
                }
            }
        }
        let took = self.now - begun;
        assert!(self.sender.done_below(message + 1, Instant(self.now)));
        took
    }

    /// Mean time of messages over what it would take with perfect parts, and each rail's part of the bytes.
    fn run(&mut self, length: u64, count: u64) -> (f64, Vec<f64>) {
        let sum: f64 = self.rails.iter().map(|rail| rail.bytes_per_second).sum();
        let before: Vec<u64> = self.rails.iter().map(|rail| rail.carried).collect();
        let took: u64 = (0..count).map(|_| self.message(length)).sum();
        let least = length as f64 / sum * 1e9;
        let moved = self.rails.iter().zip(before);
        let parts = moved.map(|(rail, before)| (rail.carried - before) as f64);
        let parts = parts.map(|bytes| bytes / (length * count) as f64).collect();
        (took as f64 / count as f64 / least, parts)
    }
}

/// Two equal rails share messages of every size, with and without buckets, whatever was sent before.
#[test]
fn equal_rails_share_every_size() {
    for speed in [12.5e6, 125e6, 1.25e9] {
        for bucket in [0.0, speed * 0.001] {
            for first in [0, 512, 64 << 10] {
                for size in [32 << 10, 64 << 10, 128 << 10, 512 << 10, 4 << 20_u64] {
                    let mut path =
                        Path::new(vec![Rail::new(speed, bucket), Rail::new(speed, bucket)]);
                    if first > 0 {
                        path.run(first, 50);
                    }
                    path.run(size, 20);
                    let (over, parts) = path.run(size, 100);
                    let what =
                        format!("{speed:.0} {bucket:.0} {first} {size}: {over:.3} {parts:?}");
                    // What one rail has carried before another thread has begun there is nothing to share of.
                    if size as f64 / speed > 4.0 * WAKE_NS as f64 / 1e9 {
                        assert!(parts.iter().all(|part| (0.4..0.6).contains(part)), "{what}");
                    }
                }
            }
        }
    }
}

/// Unequal rails carry what they can, and none is left out because it once looked slow.
#[test]
fn unequal_rails_carry_what_they_can() {
    for bucket in [0.0, 0.001] {
        for size in [512 << 10, 4 << 20, 16 << 20_u64] {
            let speeds = [125e6, 62.5e6, 12.5e6];
            let rails = speeds.map(|speed| Rail::new(speed, speed * bucket));
            let mut path = Path::new(rails.into());
            path.run(600, 50);
            path.run(size, 10);
            let (over, parts) = path.run(size, 50);
            let most = if size < 1 << 20 { 1.5 } else { 1.15 };
            assert!(over < most, "{bucket} {size}: {over} {parts:?}");
        }
    }
}

/// A rail that slows to a tenth loses work; when it is fast again it gets it back.
#[test]
fn slow_rails_come_back() {
    let mut path = Path::new(vec![Rail::new(125e6, 0.0), Rail::new(125e6, 0.0)]);
    path.run(4 << 20, 20);
    path.rails[1].bytes_per_second = 12.5e6;
    path.run(4 << 20, 20);
    let (over, parts) = path.run(4 << 20, 50);
    assert!(parts[1] < 0.15 && over < 1.15, "{over} {parts:?}");
    path.rails[1].bytes_per_second = 125e6;
    path.run(4 << 20, 50);
    let (over, parts) = path.run(4 << 20, 50);
    assert!(parts[1] > 0.45 && over < 1.1, "{over} {parts:?}");
}
