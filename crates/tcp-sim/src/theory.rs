//! Formulas that runs are compared with, and the runs: one stream alone, one that loses packets by chance, equals.

use super::{FlavourName, NO_WINDOW, Profile, RtoRule, Scenario, Stripes, TwoClusters};

pub use ropewalk_tuner::formula::{formula_stripes, mathis, pftk};

/// Jain's index of shares: 1 when all are equal, 1/n when one has everything.
#[must_use]
pub fn fairness(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// Round trip of [`lossy`] without queues, and its least timeout.
pub const LOSSY_SECONDS: (f64, f64) = (0.1, 0.2);

/// Rate of the trunk of [`alone`], and its share that is payload: packets have no headers there.
pub const ALONE_BITS_PER_SECOND: f64 = 1.5e6;

/// One stream that nothing loses and that keeps its trunk busy: queues for more than a window.
#[must_use]
pub fn alone() -> Scenario {
    let net = TwoClusters {
        bits_per_second: ALONE_BITS_PER_SECOND,
        latency_seconds: 0.01,
        queue: 100,
        access_queue: 100,
        ..TwoClusters::default()
    };
    net.scenario(Profile::default())
}

/// One stream of `packets` over a trunk that loses this share of its packets and nothing else, with no limit to its window;
/// a round trip of [`LOSSY_SECONDS`].
#[must_use]
pub fn lossy(flavour: FlavourName, loss: f64, packets: u64, seed: u64) -> Scenario {
    let net = TwoClusters {
        loss,
        queue: 100_000,
        access_queue: 100_000,
        bits_per_second: 1e9,
        access_bits_per_second: 1e9,
        latency_seconds: LOSSY_SECONDS.0 / 2.0 - 0.0002,
        bytes_per_node: packets * 1000,
        stripes: Stripes(vec![(flavour, 1)]),
        ..TwoClusters::default()
    };
    let profile = Profile {
        rto_min_seconds: LOSSY_SECONDS.1,
        tick_seconds: 0.01,
        rto_rule: RtoRule::Rfc2988,
        ..Profile::default()
    };
    Scenario {
        window: NO_WINDOW,
        seed,
        limit_seconds: 1e6,
        ..net.scenario(profile)
    }
}

/// Eight equal streams for 150 s over a trunk of 20 Mbit/s that loses 0.5 % of all packets, begun within a second.
///
/// Where full queues alone lose packets, connections that are equal to the nanosecond lock into phases in which some lose
/// all the time (Floyd and Jacobson 1992, "On Traffic Phase Effects"): that is the model's, and the reference simulator's,
/// doing.
#[must_use]
pub fn equals(flavour: FlavourName) -> Scenario {
    let net = TwoClusters {
        nodes: 8,
        stripes: Stripes(vec![(flavour, 1)]),
        bits_per_second: 20e6,
        loss: 0.005,
        bytes_per_node: 2_000_000_000,
        ..TwoClusters::default()
    };
    Scenario {
        jitter_seconds: 1.0,
        limit_seconds: 150.0,
        ..net.scenario(Profile::named("ns-2.35").unwrap_or_default())
    }
}
