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
