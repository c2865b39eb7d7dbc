//! Problems of any size: half of the nodes send, half receive; senders have 1 to 10 Gbit/s, receivers 32 to 80.
//!
//! Families say what senders hold. `windows`: an eighth of them holds each byte; `nested`: from the start to some point; `blocks`:
//! 10 blocks a sender, each with 3 random holders. Receivers want their own part each, or share one destination (`-shared`).

use anyhow::{Result, bail};
use ropewalk_model::problem::{Problem, Receiver, Sender};
use ropewalk_model::range::{Range, RangeSet};

pub(super) const FAMILIES: [&str; 6] = [
    "windows",
    "nested",
    "blocks",
    "windows-shared",
    "nested-shared",
    "blocks-shared",
];

/// * `family`: of [`FAMILIES`], or with `-shared` behind it.
///
/// # Errors
/// For another family.
pub(super) fn problem(family: &str, nodes: usize) -> Result<Problem> {
    let half = (nodes / 2) as u64;
    let mut random = Random(nodes as u64);
    let (holds, space) = match family.trim_end_matches("-shared") {
        "windows" => windows(half, &mut random),
        "nested" => nested(half, &mut random),
        "blocks" => blocks(half, &mut random),
        other => bail!("no family {other}"),
    };
    let speed = |random: &mut Random| (1 + random.below(10)) * 125_000_000;
    let senders = holds.into_iter().enumerate().map(|(i, ranges)| Sender {
        name: format!("w{i}"),
        up: speed(&mut random),
        ranges,
    });
    let senders = senders.collect();
    let shared = family.ends_with("-shared");
    let part = |i: u64| (u128::from(space) * u128::from(i) / u128::from(half)) as u64;
    let receivers = (0..half).map(|i| Receiver {
        name: format!("r{i}"),
        // Fast enough that the senders, whose side is the harder one, set the time.
        down: 8 * speed(&mut random).max(500_000_000),
        // Of a shared destination each takes what is near: sixteen parts around its own.
        ranges: match shared {
            true => Range::new(part(i.saturating_sub(8)), part((i + 8).min(half))).into(),
            false => Range::new(part(i), part(i + 1)).into(),
        },
        destination: shared.then(|| "shared".to_owned()),
        relay_up: None,
    });
    Ok(Problem {
        senders,
        receivers: receivers.collect(),
        ..Problem::default()
    })
}

const PART: u64 = 1 << 30;

fn windows(half: u64, random: &mut Random) -> (Vec<RangeSet>, u64) {
    let space = half * PART;
    let width = (half / 8).max(2) * PART;
    let window = |i: u64| {
        let start = (i * PART).saturating_sub(width / 2 + random.below(PART));
        Range::new(start, (start + width).min(space)).into()
    };
    let mut holds: Vec<RangeSet> = (0..half).map(window).collect();
    // The rounding of the last windows must not leave the end without a holder.
    holds[half as usize - 1] = Range::new(space - width, space).into();
    (holds, space)
}

fn nested(half: u64, random: &mut Random) -> (Vec<RangeSet>, u64) {
    let space = half * PART;
    let holds = (0..half).map(|i| match i {
        0 => Range::new(0, space).into(),
        _ => Range::new(0, 1 + random.below(space)).into(),
    });
    (holds.collect(), space)
}

fn blocks(half: u64, random: &mut Random) -> (Vec<RangeSet>, u64) {
    let mut runs: Vec<Vec<Range>> = vec![Vec::new(); half as usize];
    let mut start = 0;
    for _ in 0..half * 10 {
        let range = Range::new(start, start + PART / 16 + random.below(PART / 8));
        start = range.end;
        for _ in 0..3 {
            runs[random.below(half) as usize].push(range);
        }
    }
    (runs.into_iter().map(RangeSet::from_ranges).collect(), start)
}

/// SplitMix64 (Steele, Lea, Flood 2014): the same problems on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}
