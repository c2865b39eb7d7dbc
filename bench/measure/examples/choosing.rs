//! What it costs a receiver to choose the next unit while a fellow receiver lags behind.
//!
//! `cargo run --release -p ropewalk-measure --example choosing -- [FILES]`
//!
//! FILES files (20,000) of 16 KiB, each a unit, of which every fourth run of two files is fetched from one of three holders and all
//! others are what a fellow receiver is to hand on. It announces a sixteenth of what comes, every 20 ms, scattered over its part: the
//! holders send the rest, chosen one unit at a time. The last number is that of the order in which units were taken: a change of how they
//! are found must not change it. Times are of one thread.

use std::time::Instant as Clock;

use ropewalk_model::{Instant, Range};
use ropewalk_proto::ledger::{LaneId, Ledger, ReadyRun};

const FILE: u64 = 16 << 10;

/// Files of a run.
const RUN: u64 = 2;

const HOLDERS: u32 = 3;

const RELAY: LaneId = LaneId(HOLDERS);

/// A file on a lane takes so long.
const FILE_NS: u64 = 200_000;

/// Announcements are so far apart.
const ANNOUNCED_NS: u64 = 20_000_000;

fn unit_at(offset: u64) -> Range {
    let start = offset / FILE * FILE;
    Range::new(start, start + FILE)
}

fn ledger(files: u64) -> Ledger {
    let mut ledger = Ledger::new(HOLDERS as usize + 1);
    ledger.set_number(0);
    ledger.set_relay(RELAY, 1, Instant(0));
    for at in 0..files / RUN {
        let mut holders: Vec<LaneId> = (0..HOLDERS).map(LaneId).collect();
        holders.rotate_left(at as usize % HOLDERS as usize);
        let is_own = at % 4 == 0;
        if !is_own {
            holders.insert(0, RELAY);
        }
        ledger.want(ReadyRun {
            range: Range::new(at * RUN * FILE, (at + 1) * RUN * FILE),
            holders,
            choices: u32::from(!is_own),
        });
    }
    ledger
}

/// A number that changes with each number that is added.
fn fold(sum: u64, number: u64) -> u64 {
    (sum ^ number)
        .wrapping_mul(0x0100_0000_01b3)
        .rotate_left(17)
}

fn main() {
    let files = std::env::args().nth(1).and_then(|n| n.parse().ok());
    let files: u64 = files.unwrap_or(20_000);
    let mut ledger = ledger(files);
    let (mut now, mut calls, mut taken, mut relayed, mut order) = (0, 0_u64, 0_u64, 0_u64, 0);
    let (mut announced, mut said_of) = (0, 0);
    let start = Clock::now();
    while !ledger.is_complete() && now < 1_000_000_000_000 {
        now += FILE_NS;
        for lane in (0..HOLDERS).map(LaneId) {
            calls += 1;
            let Some(unit) = ledger.take(lane, true, Instant(now), &unit_at) else {
                continue;
            };
            (taken, order) = (taken + 1, fold(order, unit.range.start));
            ledger.delivered(lane, unit.range, Instant(now + FILE_NS));
        }
        if now / ANNOUNCED_NS == announced {
            continue;
        }
        announced = now / ANNOUNCED_NS;
        let mut said = Vec::new();
        while said_of < (taken / 16).min(files) {
            // Scattered: a step that has no factor in common with the number of files is through all of them once.
            said.push(unit_at(said_of * 7_919 % files * FILE));
            said_of += 1;
        }
        for unit in ledger.announced(RELAY, &said, Instant(now)).iter() {
            ledger.open_to(RELAY, unit);
        }
        while let Some(unit) = ledger.take(RELAY, true, Instant(now), &unit_at) {
            (relayed, order) = (relayed + 1, fold(order, unit.range.start));
            ledger.delivered(RELAY, unit.range, Instant(now + FILE_NS));
        }
    }
    let nanoseconds = start.elapsed().as_nanos() as f64;
    println!(
        "{files} files: {taken} from holders in {calls} calls, {relayed} from the fellow receiver; {:.0} ns each call; order {order:016x}",
        nanoseconds / (calls as f64)
    );
}
