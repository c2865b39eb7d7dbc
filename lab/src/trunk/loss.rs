//! Random loss: independent, or in bursts.
//!
//! The two-state model of Gilbert (1960): in the good state every packet arrives, in the bad state none does, and
//! before each packet the state may change. Independent loss is the case in which the next packet's fate does
//! not depend on the last one's.

use serde::{Deserialize, Serialize};

/// Which share of the packets a link loses, and how many in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Loss {
    /// Share of the packets lost in the long run, 0 to 1.
    pub fraction: f64,
    /// Mean number of packets lost in a row; `None` = each packet by itself, which is `1 / (1 - fraction)`.
    pub burst_packets: Option<f64>,
}

impl Loss {
    /// Independent loss of this share of the packets.
    #[must_use]
    pub fn independent(fraction: f64) -> Self {
        Loss {
            fraction,
            burst_packets: None,
        }
    }

    /// Loss of this share of the packets, `burst_packets` in a row on average.
    #[must_use]
    pub fn bursts(fraction: f64, burst_packets: f64) -> Self {
        Loss {
            fraction,
            burst_packets: Some(burst_packets),
        }
    }

    /// What is wrong with it, if anything.
    pub(crate) fn problem(&self) -> Option<String> {
        let Loss {
            fraction,
            burst_packets,
        } = *self;
        if !(0.0..=1.0).contains(&fraction) {
            return Some(format!(
                "loss of {fraction}: the share lies between 0 and 1"
            ));
        }
        let burst = burst_packets?;
        if !(1.0..1e9).contains(&burst) {
            return Some(format!("bursts of {burst} packets: at least 1"));
        }
        let shortest = fraction / (1.0 - fraction);
        (fraction < 1.0 && burst < shortest).then(|| {
            format!("loss of {fraction} in bursts of {burst} packets: such a share needs bursts of at least {shortest:.3}")
        })
    }

    /// Probabilities of the change to the bad state and back.
    fn changes(&self) -> (f64, f64) {
        let Loss {
            fraction,
            burst_packets,
        } = *self;
        if fraction >= 1.0 {
            return (1.0, 0.0);
        }
        let to_good = burst_packets.map_or(1.0 - fraction, f64::recip);
        // In balance as many packets enter the bad state as leave it.
        (fraction * to_good / (1.0 - fraction), to_good)
    }
}

/// A running loss model.
#[derive(Clone, Debug)]
pub(crate) struct LossProcess {
    to_bad: u64,
    to_good: u64,
    is_bad: bool,
    chance: Chance,
}

impl LossProcess {
    pub(crate) fn new(loss: &Loss, seed: u64) -> Self {
        let mut process = LossProcess {
            to_bad: 0,
            to_good: 0,
            is_bad: false,
            chance: Chance(seed),
        };
        process.set(loss);
        process
    }

    /// Other probabilities from now on; the chance goes on where it was.
    pub(crate) fn set(&mut self, loss: &Loss) {
        let (to_bad, to_good) = loss.changes();
        (self.to_bad, self.to_good) = (threshold(to_bad), threshold(to_good));
        self.is_bad &= loss.fraction > 0.0;
    }

    /// Whether the next packet is lost.
    pub(crate) fn takes_next(&mut self) -> bool {
        if self.to_bad == 0 && !self.is_bad {
            return false;
        }
        let change = if self.is_bad {
            self.to_good
        } else {
            self.to_bad
        };
        if self.chance.next() < change {
            self.is_bad = !self.is_bad;
        }
        self.is_bad
    }
}

/// The number that a uniform 64-bit number is below with this probability.
fn threshold(probability: f64) -> u64 {
    // The cast saturates: at 1 one number of 2^64 is missing.
    (probability * 2_f64.powi(64)) as u64
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, seeded by any number, the same on every machine.
#[derive(Clone, Debug)]
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fates of `count` packets, and the mean length of their bursts.
    fn run(loss: Loss, count: usize) -> (f64, f64) {
        let mut process = LossProcess::new(&loss, 7);
        let fates: Vec<bool> = (0..count).map(|_| process.takes_next()).collect();
        let lost = fates.iter().filter(|&&lost| lost).count() as f64;
        let mut before = false;
        let mut bursts = 0;
        for &lost in &fates {
            bursts += u32::from(lost && !before);
            before = lost;
        }
        (lost / count as f64, lost / f64::from(bursts.max(1)))
    }

    /// The share lost and the mean burst are those asked for, within five standard errors of a million packets.
    #[test]
    fn share_and_bursts() {
        for fraction in [0.0001, 0.01, 0.3] {
            let (share, burst) = run(Loss::independent(fraction), 1_000_000);
            let error = (fraction * (1.0 - fraction) / 1e6).sqrt();
            assert!(
                (share - fraction).abs() < 5.0 * error,
                "{fraction}: {share}"
            );
            let expected = 1.0 / (1.0 - fraction);
            let bursts = 1e6 * fraction * (1.0 - fraction);
            let error = (fraction / bursts).sqrt() / (1.0 - fraction);
            assert!(
                (burst - expected).abs() < 5.0 * error,
                "{fraction}: {burst}"
            );
        }
        let (share, burst) = run(Loss::bursts(0.01, 8.0), 1_000_000);
        // Burst lengths are geometric, about 1250 of them: sigma 7.5 each; cycles vary as much.
        assert!((burst - 8.0).abs() < 5.0 * 7.5 / 1250_f64.sqrt(), "{burst}");
        assert!(
            (share - 0.01).abs() < 5.0 * 0.01 * (2.0 / 1250_f64).sqrt(),
            "{share}"
        );
    }

    /// No loss and total loss are exact, and the same seed loses the same packets.
    #[test]
    fn extremes() {
        assert_eq!(run(Loss::default(), 10_000).0, 0.0);
        assert_eq!(run(Loss::independent(1.0), 10_000).0, 1.0);
        let fates = |seed| {
            let mut process = LossProcess::new(&Loss::independent(0.5), seed);
            (0..64).map(|_| process.takes_next()).collect::<Vec<_>>()
        };
        assert_eq!(fates(1), fates(1));
        assert_ne!(fates(1), fates(2));
    }

    /// Loss that is switched off in the middle of a burst ends the burst.
    #[test]
    fn switched_off() {
        let mut process = LossProcess::new(&Loss::bursts(0.9, 1000.0), 1);
        while !process.takes_next() {}
        process.set(&Loss::default());
        assert!((0..1000).all(|_| !process.takes_next()));
    }

    /// Impossible shares and bursts are refused in words.
    #[test]
    fn impossible() {
        for (loss, word) in [
            (Loss::independent(-0.1), "-0.1"),
            (Loss::independent(f64::NAN), "NaN"),
            (Loss::bursts(0.1, 0.5), "0.5"),
            (Loss::bursts(0.9, 2.0), "9.000"),
        ] {
            assert!(loss.problem().unwrap().contains(word), "{loss:?}");
        }
        assert_eq!(Loss::bursts(0.01, 8.0).problem(), None);
        assert_eq!(Loss::independent(1.0).problem(), None);
    }
}
