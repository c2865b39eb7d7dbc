//! Fuzzing of decoders as ordinary tests: valid encodings are changed at random, and what is decoded is checked.
//!
//! Included by the tests of each crate with `#[path]`. The same name and corpus give the same inputs everywhere. `ROPEWALK_FUZZ=n` runs
//! each test with so many inputs; a failure prints the input, which belongs into the corpus of its test.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Inputs of a test, unless `ROPEWALK_FUZZ` says otherwise: about a second of the slowest.
const INPUTS: u64 = 20_000;

/// Changes of one input at most.
const CHANGES_MAX: u64 = 6;

/// Longest input: what is longer is cut.
const LEN_MAX: usize = 64 << 10;

/// Numbers at which decoders go wrong.
const NUMBERS: [u64; 12] = [
    0,
    1,
    127,
    255,
    256,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    i64::MAX as u64,
    u64::MAX - 1,
    u64::MAX,
];

/// Chance from a seed (splitmix64).
pub struct Chance(u64);

impl Chance {
    /// A number from 0 to `bound` - 1; 0 where `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }

    fn place(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    fn stretch(&mut self, len: usize) -> std::ops::Range<usize> {
        let from = self.place(len + 1);
        from..from + self.place((len - from).min(64) + 1)
    }
}

fn change(input: &mut Vec<u8>, corpus: &[Vec<u8>], chance: &mut Chance) {
    let len = input.len();
    match chance.below(10) {
        0 => input.truncate(chance.place(len + 1)),
        1 => {
            let more = 0..chance.below(40);
            input.extend(more.map(|_| chance.below(256) as u8).collect::<Vec<_>>());
        }
        2 => drop(input.drain(chance.stretch(len))),
        3 => {
            let twice = input[chance.stretch(len)].to_vec();
            let at = chance.place(len + 1);
            input.splice(at..at, twice);
        }
        4 => {
            let other = &corpus[chance.place(corpus.len())];
            let part = other[chance.stretch(other.len())].to_vec();
            let at = chance.stretch(len);
            input.splice(at, part);
        }
        _ if len == 0 => {}
        5 | 6 => {
            let at = chance.place(len);
            input[at] ^= 1 << chance.below(8);
        }
        7 => {
            let at = chance.place(len);
            input[at] = chance.below(256) as u8;
        }
        _ => {
            let number = NUMBERS[chance.place(NUMBERS.len())].to_le_bytes();
            let width = 1 << chance.below(4);
            let at = chance.place(len);
            let end = (at + width).min(len);
            input[at..end].copy_from_slice(&number[..end - at]);
        }
    }
    input.truncate(LEN_MAX);
}

/// Checks each entry of the corpus, and inputs made from them.
///
/// * `check`: panics where a decoder did something wrong.
pub fn fuzz(name: &str, corpus: &[Vec<u8>], check: impl Fn(&[u8])) {
    fuzz_some(name, corpus, INPUTS, check);
}

/// As [`fuzz`], with another number of inputs for decoders that are slow.
#[allow(
    clippy::disallowed_methods,
    reason = "how many inputs a test has is no part of what it checks"
)]
pub fn fuzz_some(name: &str, corpus: &[Vec<u8>], inputs: u64, check: impl Fn(&[u8])) {
    assert!(!corpus.is_empty(), "{name}: no corpus");
    let given = std::env::var("ROPEWALK_FUZZ").ok();
    let inputs = given.and_then(|n| n.parse().ok()).unwrap_or(inputs);
    let seed = name
        .bytes()
        .fold(0, |sum, byte| sum * 31 % 0xffff_ffff + u64::from(byte));
    let mut chance = Chance(seed);
    let one = |input: &[u8]| {
        let checked = catch_unwind(AssertUnwindSafe(|| check(input)));
        if let Err(panic) = checked {
            let shown = input.escape_ascii();
            eprintln!("{name}: this input fails, put it into the corpus: b\"{shown}\"");
            resume_unwind(panic);
        }
    };
    corpus.iter().for_each(|input| one(input));
    for _ in 0..inputs {
        let mut input = corpus[chance.place(corpus.len())].clone();
        for _ in 0..=chance.below(CHANGES_MAX) {
            change(&mut input, corpus, &mut chance);
        }
        one(&input);
    }
}

/// As [`fuzz`], of a decoder of a fixed number of bytes: others are cut or filled with zeros.
#[allow(dead_code, reason = "not every crate has such a decoder")]
pub fn fuzz_fixed<const LEN: usize>(name: &str, corpus: &[[u8; LEN]], check: impl Fn(&[u8; LEN])) {
    let corpus: Vec<Vec<u8>> = corpus.iter().map(|entry| entry.to_vec()).collect();
    fuzz(name, &corpus, |input| {
        let mut fixed = [0; LEN];
        let len = input.len().min(LEN);
        fixed[..len].copy_from_slice(&input[..len]);
        check(&fixed);
    });
}
