//! What one processor hashes, encrypts and copies, by the code that transfers use.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ropewalk_lane::seal::Records;

/// Long enough for the processor to be at its speed, and short beside the start of a transfer.
const TIME: Duration = Duration::from_millis(60);

/// A unit of integrity.
const UNIT: usize = 1 << 20;

/// More than the caches near a processor hold.
const COPIED: usize = 8 << 20;

/// Bytes per second of something that takes so many bytes each time.
fn rate(bytes: usize, mut work: impl FnMut()) -> u64 {
    work();
    let began = Instant::now();
    let mut rounds = 0_u64;
    while began.elapsed() < TIME {
        work();
        rounds += 1;
    }
    (rounds as f64 * bytes as f64 / began.elapsed().as_secs_f64()) as u64
}

pub(super) fn hash() -> u64 {
    let unit = vec![7; UNIT];
    rate(UNIT, || {
        black_box(blake3::hash(black_box(&unit)));
    })
}

pub(super) fn seal() -> u64 {
    let mut unit = vec![7; UNIT];
    let mut records = Records::new(&[7; 32]);
    rate(UNIT, || {
        black_box(records.seal(&[], black_box(&mut unit)));
    })
}

pub(super) fn copy() -> u64 {
    let from = vec![7; COPIED];
    let mut to = vec![0; COPIED];
    rate(COPIED, || {
        black_box(&mut to).copy_from_slice(black_box(&from));
    })
}
