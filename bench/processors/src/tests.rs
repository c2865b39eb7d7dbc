//! What the paper saw, on the schedulers that it saw it on.

use ropewalk_model::{ByteRate, Nanos};
use ropewalk_proto::rapid::monitor::{Linux26, Monitor, Native, Score, Ule, receive_buffer};

use super::*;
use crate::MS;

/// The paper's first machine: a receiver that takes 1.6 Gbit/s at best, and next to no buffer.
fn paper() -> Transfer {
    Transfer {
        bytes: 500_000_000,
        rate: 200_000_000,
        path: 1_250_000_000,
        path_queue: 0,
        rtt_ns: 0,
        capacity: 200_000_000,
        buffer: 64 << 10,
    }
}

fn part(values: &[u64], from: u64, to: u64) -> f64 {
    let within = values.iter().filter(|value| (from..=to).contains(*value));
    within.count() as f64 / values.len() as f64
}

/// Figure 1: the loop gets 10 ms at a time; the first lossless interval is 125 ms, the others 10 ms.
#[test]
fn figure_1() {
    let outcome = paper().run(&mut Linux26Arrays::new(1), None);
    assert!(part(&outcome.loop_slices_ns, 9 * MS, 11 * MS) > 0.9);
    let first = outcome.lossless_ns[0];
    assert!((120 * MS..=140 * MS).contains(&first), "{first}");
    assert!(part(&outcome.lossless_ns[1..], 9 * MS, 11 * MS) > 0.9);
}

/// Table 2: alone the fastest rate is the receiver's own, 1.6 Gbit/s; with one to three loops the least rate that is as fast is
/// 800, 560 and 400 Mbit/s (paper: 800, 650, 550) and loses nothing, where the full rate loses most. (Here what is lost costs the receiver nothing, so higher rates are no slower.)
#[test]
fn table_2() {
    for loops in 0..=3 {
        let run = |rate| Transfer { rate, ..paper() }.run(&mut Linux26Arrays::new(loops), None);
        let full = run(200_000_000);
        let enough = (2..=20)
            .map(|step| (step * 10_000_000, run(step * 10_000_000)))
            .find(|(_, outcome)| outcome.ns as f64 <= full.ns as f64 * 1.05)
            .unwrap();
        println!(
            "{loops} loops: {} MB/s, {:.2} s, {} dropped of {} at 200 MB/s",
            enough.0 / 1_000_000,
            enough.1.ns as f64 / 1e9,
            enough.1.dropped,
            full.dropped
        );
        if loops == 0 {
            assert_eq!(enough.0, 200_000_000);
        } else {
            assert!(enough.0 <= 150_000_000, "{}", enough.0);
            assert!(enough.1.dropped * 2 < full.dropped);
        }
    }
}

/// Figure 8: with RBUDP the bonus falls to the worst and stays there; with RAPID it does not fall below a level, less is lost, and the
/// transfer is no slower.
#[test]
fn figure_8() {
    let rbudp = paper().run(&mut Linux26Arrays::new(1), None);
    let mut monitor = Linux26::starting_at(Nanos::from_millis(825));
    let rapid = paper().run(&mut Linux26Arrays::new(1), Some(&mut monitor));
    let lowest = |outcome: &Outcome| {
        outcome
            .levels
            .iter()
            .skip(30)
            .map(|(_, level)| *level)
            .fold(9.0, f64::min)
    };
    assert_eq!(lowest(&rbudp), -5.0);
    assert!(lowest(&rapid) >= 0.0, "{}", lowest(&rapid));
    assert!(
        rapid.dropped * 4 < rbudp.dropped,
        "{} of {}",
        rapid.dropped,
        rbudp.dropped
    );
    assert!(rapid.ns <= rbudp.ns, "{} and {}", rapid.ns, rbudp.ns);
    assert!(rapid.suspensions > 3);
}

/// Section 3.4: the lead holds up to round trips beyond a step's 100 ms.
#[test]
fn long_round_trips() {
    for rtt_ms in [0, 50, 80, 120, 200] {
        let transfer = Transfer {
            rtt_ns: rtt_ms * MS,
            ..paper()
        };
        let rbudp = transfer.run(&mut Linux26Arrays::new(1), None);
        let mut monitor = Linux26::starting_at(Nanos::from_millis(825));
        let rapid = transfer.run(&mut Linux26Arrays::new(1), Some(&mut monitor));
        assert!(
            rapid.dropped * 2 < rbudp.dropped,
            "{rtt_ms} ms: {} of {}",
            rapid.dropped,
            rbudp.dropped
        );
    }
}

/// ULE: with RBUDP the receiver loses its interactive status; its monitor keeps it, and losses small.
#[test]
fn ule_stays_interactive() {
    let rbudp = paper().run(&mut UleQueues::new(1), None);
    let mut monitor = Ule::new(Score::Monotone);
    let rapid = paper().run(&mut UleQueues::new(1), Some(&mut monitor));
    let highest = |outcome: &Outcome| {
        outcome
            .levels
            .iter()
            .map(|(_, level)| *level)
            .fold(0.0, f64::max)
    };
    assert!(highest(&rbudp) > 50.0);
    assert!(highest(&rapid) < 35.0, "{}", highest(&rapid));
    assert!(
        rapid.dropped * 4 < rbudp.dropped,
        "{} of {}",
        rapid.dropped,
        rbudp.dropped
    );
}

/// The best fixed rate for a load, by sweep, and its outcome.
fn swept(transfer: Transfer, loops: usize) -> Outcome {
    let run = |rate| Transfer { rate, ..transfer }.run(&mut Fair::new(loops), None);
    let rates = (4..=40).map(|step| transfer.rate / 40 * step);
    rates.map(run).min_by_key(|outcome| outcome.ns).unwrap()
}

/// 256 MiB over a path of this rate to a receiver that takes a little more while it has its processor to itself.
fn over_a_path(rate: u64, rtt_ms: u64, buffer: u64) -> Transfer {
    Transfer {
        bytes: 256 << 20,
        rate,
        path: rate,
        path_queue: 0,
        rtt_ns: rtt_ms * MS,
        capacity: 60_000_000,
        buffer,
    }
}

/// On fair shares: the native monitor is as fast as the best fixed rate of that very load, at every round trip, and loses nearly nothing.
#[test]
fn native_needs_no_tuning() {
    for rtt_ms in [0, 50, 120, 200] {
        for loops in 0..=3 {
            let rate = 50_000_000;
            let transfer = over_a_path(rate, rtt_ms, receive_buffer(ByteRate(rate), 3));
            let best = swept(transfer, loops);
            let mut monitor = Native::new();
            let rapid = transfer.run(
                &mut Fair::new(loops),
                Some(&mut monitor as &mut dyn Monitor),
            );
            let fixed = transfer.run(&mut Fair::new(loops), None);
            println!(
                "{rtt_ms} ms, {loops} loops: fixed {:.2} s, {} dropped; best {:.2} s; rapid {:.2} s, {} dropped, {} suspensions",
                fixed.ns as f64 / 1e9,
                fixed.dropped,
                best.ns as f64 / 1e9,
                rapid.ns as f64 / 1e9,
                rapid.dropped,
                rapid.suspensions
            );
            assert!(
                rapid.ns as f64 <= best.ns as f64 * 1.05,
                "{rtt_ms} ms, {loops} loops"
            );
            assert!(
                rapid.dropped * 20 < 256 << 20,
                "{rtt_ms} ms, {loops} loops: {}",
                rapid.dropped
            );
        }
    }
}

/// Nobody tells a rate, and the path carries less than the first rate: its own is found, so that with and without loops the native monitor
/// is nearly as fast as the best fixed rate of that very load, told to the sender in advance.
#[test]
fn native_finds_the_path() {
    let mut worst: f64 = 0.0;
    for rtt_ms in [1, 50, 120, 200] {
        for (capacity, loops) in [
            (400_000_000, 0),
            (400_000_000, 2),
            (90_000_000, 0),
            (90_000_000, 2),
            (90_000_000, 3),
        ] {
            let path = 50_000_000;
            let transfer = Transfer {
                bytes: 256 << 20,
                rate: path,
                path,
                path_queue: 5_000_000,
                rtt_ns: rtt_ms * MS,
                capacity,
                buffer: receive_buffer(ByteRate(1_000_000_000), 3),
            };
            let best = swept(transfer, loops);
            let untold = Transfer {
                rate: 0,
                ..transfer
            };
            let mut monitor = Native::new();
            let rapid = untold.run(
                &mut Fair::new(loops),
                Some(&mut monitor as &mut dyn Monitor),
            );
            let over = rapid.ns as f64 / best.ns as f64;
            worst = worst.max(over);
            println!(
                "{rtt_ms} ms, {loops} loops of {capacity}: best {:.2} s, rapid {:.2} s ({over:.3}), {} lost, {} dropped",
                best.ns as f64 / 1e9,
                rapid.ns as f64 / 1e9,
                rapid.lost,
                rapid.dropped,
            );
        }
    }
    assert!(worst <= 1.08, "{worst}");
}

/// Loops that come and go every second; whoever wants the processor gets it in turns of 4 ms.
struct Changing {
    now_ns: u64,
}

impl Processor for Changing {
    fn step(&mut self, wants_ns: u64, step_ns: u64) -> Option<Task> {
        const LOOPS: [u64; 8] = [0, 3, 1, 2, 0, 2, 3, 1];
        let loops = LOOPS[(self.now_ns / crate::SECOND) as usize % LOOPS.len()];
        let turn = self.now_ns / (4 * MS) % (loops + 1);
        self.now_ns += step_ns;
        match (turn, wants_ns > 0, loops) {
            (0, true, _) => Some(Task::Receiver),
            (_, _, 0) => None,
            (turn, ..) => Some(Task::Loop(turn as usize)),
        }
    }

    fn level(&self) -> f64 {
        0.0
    }
}

/// With a load that changes every second the monitor is faster than any fixed rate, or nearly so where the word takes long, and loses a
/// fraction.
#[test]
fn native_follows_a_load_that_changes() {
    for rtt_ms in [0, 50, 120, 200] {
        let rate = 50_000_000;
        let transfer = over_a_path(rate, rtt_ms, 40_000_000);
        let fixed = |rate| Transfer { rate, ..transfer }.run(&mut Changing { now_ns: 0 }, None);
        let rates = (4..=40).map(|step| rate / 40 * step);
        let best = rates.map(fixed).min_by_key(|outcome| outcome.ns).unwrap();
        let mut monitor = Native::new();
        let rapid = transfer.run(
            &mut Changing { now_ns: 0 },
            Some(&mut monitor as &mut dyn Monitor),
        );
        let over = rapid.ns as f64 / best.ns as f64;
        println!(
            "{rtt_ms} ms, changing: best {:.2} s, {} dropped; rapid {:.2} s ({over:.3}), {} dropped",
            best.ns as f64 / 1e9,
            best.dropped,
            rapid.ns as f64 / 1e9,
            rapid.dropped
        );
        assert!(over <= 1.05, "{rtt_ms} ms: {over}");
    }
}
