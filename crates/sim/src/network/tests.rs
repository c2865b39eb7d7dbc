use std::collections::BTreeMap;

use super::*;
use crate::Chance;

/// The naive rule: settle the scarcest link or cap, again and again.
fn naive(speeds: &[Speed], lanes: &[(u32, u32, f64)]) -> Vec<f64> {
    let mut left: Vec<f64> = speeds.iter().flat_map(|s| [s.up, s.down]).collect();
    let mut rates = vec![None; lanes.len()];
    while rates.contains(&None) {
        let mut open = vec![0.0; left.len()];
        let links = |lane: &(u32, u32, f64)| [2 * lane.0 as usize, 2 * lane.1 as usize + 1];
        let unsettled: Vec<usize> = (0..lanes.len()).filter(|&at| rates[at].is_none()).collect();
        for &at in &unsettled {
            for link in links(&lanes[at]) {
                open[link] += 1.0;
            }
        }
        let most = |at: usize| {
            let shares = links(&lanes[at]).map(|link| left[link].max(0.0) / open[link]);
            shares[0].min(shares[1]).min(lanes[at].2)
        };
        let least = unsettled
            .iter()
            .map(|&at| most(at))
            .fold(f64::MAX, f64::min);
        let settled: Vec<usize> = unsettled
            .into_iter()
            .filter(|&at| most(at) <= least)
            .collect();
        for at in settled {
            rates[at] = Some(least);
            for link in links(&lanes[at]) {
                left[link] -= least;
            }
        }
    }
    rates.into_iter().flatten().collect()
}

/// Lanes that come and go, speeds that change, caps: after every settling the rates are those of the naive rule,
/// though only what changed is computed anew.
#[test]
fn rates_follow_the_naive_rule() {
    for seed in 0..300 {
        let mut chance = Chance::new(seed);
        let count = 2 + chance.below(7) as u32;
        let mut draw = move || chance.below(1 << 20);
        let mut speeds: Vec<Speed> = (0..count)
            .map(|_| Speed {
                up: (draw() % 9) as f64,
                down: (draw() % 9) as f64,
            })
            .collect();
        let mut network = Network::new(&speeds);
        let mut lanes: BTreeMap<Flow, (u32, u32, f64)> = BTreeMap::new();
        let mut rates: BTreeMap<(u32, u32), f64> = BTreeMap::new();
        let mut number = 0;
        let mut owners: BTreeMap<Flow, (u32, u32)> = BTreeMap::new();
        for _ in 0..30 {
            for _ in 0..=draw() % 3 {
                match draw() % 5 {
                    0 => {
                        let node = (draw() % u64::from(count)) as u32;
                        let speed = Speed::both((draw() % 5) as f64);
                        speeds[node as usize] = speed;
                        network.set_speed(node, speed);
                    }
                    1 if !lanes.is_empty() => {
                        let at = draw() as usize % lanes.len();
                        let flow = *lanes.keys().nth(at).unwrap();
                        lanes.remove(&flow);
                        rates.remove(&owners.remove(&flow).unwrap());
                        network.stop(flow);
                    }
                    _ => {
                        let (from, to) = (draw() as u32 % count, draw() as u32 % count);
                        let cap = if draw() % 3 == 0 {
                            (draw() % 4) as f64
                        } else {
                            f64::INFINITY
                        };
                        let owner = (to, number);
                        number += 1;
                        let flow = network.start(from, to, cap, owner);
                        assert!(lanes.insert(flow, (from, to, cap)).is_none());
                        owners.insert(flow, owner);
                        rates.insert(owner, 0.0);
                    }
                }
            }
            for (owner, rate) in network.settle() {
                *rates.get_mut(&owner).expect("a lane that is busy") = rate;
            }
            let busy: Vec<(u32, u32, f64)> = lanes.values().copied().collect();
            for ((flow, _), rate) in lanes.iter().zip(naive(&speeds, &busy)) {
                let found = rates[&owners[flow]];
                assert!(
                    (found - rate).abs() < 1e-9,
                    "seed {seed}: {found} and not {rate}"
                );
            }
        }
    }
}

/// Nothing changed: nothing is computed, and nobody is told.
#[test]
fn settling_twice_changes_nothing() {
    let mut network = Network::new(&[Speed::both(3.0); 3]);
    network.start(0, 2, f64::INFINITY, (2, 0));
    network.start(1, 2, 1.0, (2, 1));
    assert_eq!(network.settle(), [((2, 1), 1.0), ((2, 0), 2.0)]);
    assert_eq!(network.settle(), []);
}

/// Lanes of other weights get other parts of a link, of which nothing is left; each second others; no more than their caps.
#[test]
fn unequal_lanes_share_all_there_is() {
    let mut network = Network::new(&[Speed::both(12.0); 3]).unequal(3.0, Chance::new(5));
    for (receiver, cap) in [(1, f64::INFINITY), (1, f64::INFINITY), (2, 0.5)] {
        network.start(0, receiver, cap, (receiver, 0));
    }
    let rates = |network: &mut Network| {
        let mut rates: Vec<f64> = network.settle().into_iter().map(|(_, rate)| rate).collect();
        rates.sort_by(f64::total_cmp);
        rates
    };
    let first = rates(&mut network);
    assert_eq!(first[0], 0.5);
    assert!((first.iter().sum::<f64>() - 12.0).abs() < 1e-9, "{first:?}");
    assert!(
        first[2] > first[1] * 1.01 && first[2] <= first[1] * 9.0,
        "{first:?}"
    );
    network.vary();
    let next = rates(&mut network);
    assert!(next.iter().all(|rate| !first.contains(rate)), "{next:?}");
    assert!((next.iter().sum::<f64>() - 11.5).abs() < 1e-9, "{next:?}");
}

/// What crosses a trunk shares it; what does not, does not.
#[test]
fn lanes_share_a_trunk() {
    let mut network = Network::new(&[Speed::both(12.0); 4]).trunk(2, 4.0);
    for (from, to) in [(0, 2), (0, 3), (2, 3), (3, 0)] {
        network.start(from, to, f64::INFINITY, (to, from));
    }
    let mut rates = network.settle();
    rates.sort_by_key(|(owner, _)| *owner);
    assert_eq!(
        rates,
        [((0, 3), 4.0), ((2, 0), 2.0), ((3, 0), 2.0), ((3, 2), 10.0)]
    );
}
