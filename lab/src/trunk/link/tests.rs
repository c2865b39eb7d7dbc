use std::time::Duration;

use proptest::prelude::*;

use super::super::loss::Loss;
use super::*;

const MS: u64 = 1_000_000;

/// 100 Mbit/s: 1250 bytes take 100 us.
fn hundred(queue: QueueLimit) -> LinkSpec {
    LinkSpec::rate_bits(100_000_000)
        .delay(Duration::from_millis(10))
        .queue(queue)
}

fn all_due<T>(link: &mut Link<T>, now_ns: u64) -> Vec<(T, u64)> {
    std::iter::from_fn(|| link.take(now_ns)).collect()
}

/// Three packets at once leave one after the other; one that comes later finds the link idle.
#[test]
fn departures_by_hand() {
    let mut link = Link::new(hundred(QueueLimit::Packets(10)), 1, 0);
    for name in ["a", "b", "c"] {
        assert_eq!(link.offer(MS, 1250, name), None);
    }
    assert_eq!(link.next_due_ns(), Some(11 * MS + 100_000));
    assert_eq!(link.take(11 * MS + 99_999), None);
    assert_eq!(link.offer(2 * MS, 125, "d"), None);
    let expected = [
        ("a", 11_100_000),
        ("b", 11_200_000),
        ("c", 11_300_000),
        ("d", 12_010_000),
    ];
    assert_eq!(all_due(&mut link, 20 * MS), expected);
    assert_eq!(link.next_due_ns(), None);
}

/// The limit counts the packet in transmission: with 2, the third of three at once is dropped, and there is room
/// again the moment the first has left, not before.
#[test]
fn drop_tail_in_packets() {
    let mut link = Link::new(hundred(QueueLimit::Packets(2)), 1, 0);
    assert_eq!(link.offer(0, 1250, 1), None);
    assert_eq!(link.offer(0, 1250, 2), None);
    assert_eq!(link.offer(0, 1250, 3), Some(3));
    assert_eq!(link.offer(99_999, 1250, 4), Some(4));
    assert_eq!(link.offer(100_000, 1250, 5), None);
    assert_eq!(link.offer(100_000, 1250, 6), Some(6));
    let counters = *link.counters();
    assert_eq!(
        counters.dropped_queue,
        Tally {
            packets: 3,
            bytes: 3750
        }
    );
    assert_eq!(
        (counters.queue_packets_max, counters.queue_bytes_max),
        (2, 2500)
    );
    let delivered: Vec<i32> = all_due(&mut link, MS * 100)
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(delivered, [1, 2, 5]);
}

/// A queue in bytes takes what fits: a small packet after a large one was dropped; overhead counts.
#[test]
fn drop_tail_in_bytes() {
    let mut spec = hundred(QueueLimit::Bytes(3000));
    spec.overhead_bytes = 50;
    let mut link = Link::new(spec, 1, 0);
    assert_eq!(link.offer(0, 1200, 1), None);
    assert_eq!(link.offer(0, 1200, 2), None);
    assert_eq!(link.offer(0, 500, 3), Some(3));
    assert_eq!(link.offer(0, 450, 4), None);
    assert_eq!(link.counters().queue_bytes_max, 3000);
    // 1250, 1250 and 500 bytes on the link; counters have bare packets.
    let due: Vec<u64> = all_due(&mut link, MS * 100)
        .into_iter()
        .map(|(_, due)| due)
        .collect();
    assert_eq!(due, [10_100_000, 10_200_000, 10_240_000]);
    assert_eq!(
        link.counters().delivered,
        Tally {
            packets: 3,
            bytes: 2850
        }
    );
}

/// Rates that do not divide evenly are exact in the long run: 1000 packets of 1500 bytes at 7 Mbit/s.
#[test]
fn remainders_are_carried() {
    let mut link = Link::new(
        LinkSpec::rate_bits(7_000_000).queue(QueueLimit::Packets(2000)),
        1,
        0,
    );
    for _ in 0..1000 {
        link.offer(0, 1500, ());
    }
    let last = all_due(&mut link, u64::MAX).pop().unwrap().1;
    assert_eq!(last, 1000 * 1500 * 8 * 1_000_000_000 / 7_000_000);
}

/// Without a rate nothing queues, and the delay is all there is.
#[test]
fn no_rate() {
    let spec = LinkSpec::unlimited()
        .delay(Duration::from_millis(3))
        .queue(QueueLimit::Packets(1));
    let mut link = Link::new(spec, 1, 0);
    for name in 0..100 {
        assert_eq!(link.offer(5, 9000, name), None);
    }
    assert_eq!(all_due(&mut link, 3 * MS + 5).len(), 100);
}

/// Halving the rate: the packet in transmission keeps what it has sent, those behind it go at the new rate, those
/// on the way are not touched.
#[test]
fn rate_halved() {
    let mut link = Link::new(hundred(QueueLimit::Packets(10)), 1, 0);
    for name in 1..=3 {
        link.offer(0, 1250, name);
    }
    let mut half = link.spec.clone();
    half.bits_per_second = Some(50_000_000);
    // 1 has left at 100 us, 2 is half sent at 150 us, 3 waits.
    link.set(150_000, half);
    link.offer(150_000, 1250, 4);
    let due: Vec<u64> = all_due(&mut link, u64::MAX)
        .into_iter()
        .map(|(_, due)| due)
        .collect();
    assert_eq!(due, [10_100_000, 10_250_000, 10_450_000, 10_650_000]);
}

/// A shorter delay holds for what has not left yet, and never lets a packet overtake.
#[test]
fn delay_cut() {
    let mut link = Link::new(hundred(QueueLimit::Packets(10)), 1, 0);
    link.offer(0, 1250, "on the way");
    link.offer(0, 1250, "in transmission");
    let mut short = link.spec.clone();
    short.delay_microseconds = 1_000;
    link.set(150_000, short);
    link.offer(200_000, 1250, "right behind");
    link.offer(20 * MS, 1250, "later");
    let expected = [
        ("on the way", 10_100_000),
        ("in transmission", 10_100_000),
        ("right behind", 10_100_000),
        ("later", 21_100_000),
    ];
    assert_eq!(all_due(&mut link, u64::MAX), expected);
}

/// Lifting the rate empties the queue at once; setting one again starts from idle.
#[test]
fn rate_lifted_and_set() {
    let mut link = Link::new(hundred(QueueLimit::Packets(10)), 1, 0);
    (0..3).for_each(|name| assert_eq!(link.offer(0, 1250, name), None));
    link.set(50_000, LinkSpec::unlimited());
    assert_eq!(all_due(&mut link, 50_000).len(), 3);
    link.set(60_000, LinkSpec::rate_bits(100_000_000));
    link.offer(70_000, 1250, 9);
    assert_eq!(all_due(&mut link, MS), [(9, 170_000)]);
}

/// A black hole takes what arrives, gives out what was accepted before, and ends.
#[test]
fn blackhole_and_return() {
    let mut link = Link::new(hundred(QueueLimit::Packets(10)), 1, 0);
    link.offer(0, 1250, 1);
    let mut hole = link.spec.clone();
    hole.blackhole = true;
    link.set(0, hole.clone());
    assert_eq!(link.offer(1, 1250, 2), Some(2));
    hole.blackhole = false;
    link.set(2, hole);
    assert_eq!(link.offer(MS, 1250, 3), None);
    let delivered: Vec<i32> = all_due(&mut link, u64::MAX)
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(delivered, [1, 3]);
    assert_eq!(link.counters().dropped_blackhole.packets, 1);
}

/// A packet that will be lost takes its turn like any other: the one behind it is not earlier for it.
#[test]
fn the_lost_take_their_turn() {
    let mut link = Link::new(
        hundred(QueueLimit::Packets(2)).loss(Loss::independent(1.0)),
        1,
        0,
    );
    assert_eq!(link.offer(0, 1250, 1), Some(1));
    let clean = hundred(QueueLimit::Packets(2));
    link.set(0, clean);
    assert_eq!(link.offer(0, 1250, 2), None);
    assert_eq!(
        link.offer(0, 1250, 3),
        Some(3),
        "the lost packet fills the queue, too"
    );
    assert_eq!(all_due(&mut link, u64::MAX), [(2, 10_200_000)]);
    let counters = link.counters();
    assert_eq!(
        (
            counters.dropped_loss.packets,
            counters.dropped_queue.packets
        ),
        (1, 1)
    );
}

/// After a reset, what the link holds is carried over and the sums still match.
#[test]
fn counting_anew() {
    let mut link = Link::new(hundred(QueueLimit::Packets(10)), 1, 0);
    (0..3).for_each(|name| assert_eq!(link.offer(0, 1000, name), None));
    link.take(10_080_000).expect("the first");
    link.reset_counters(10_080_000);
    let counters = *link.counters();
    assert_eq!(
        counters.carried_over,
        Tally {
            packets: 2,
            bytes: 2000
        }
    );
    assert_eq!(
        (counters.offered.packets, counters.queue_packets_max),
        (0, 0)
    );
    all_due(&mut link, u64::MAX);
    assert_eq!(link.counters().delivered.packets, 2);
    assert_eq!(link.counters().held, Tally::default());
}

fn sums(counters: &LinkCounters) -> (Tally, Tally) {
    let add = |tallies: &[Tally]| Tally {
        packets: tallies.iter().map(|tally| tally.packets).sum(),
        bytes: tallies.iter().map(|tally| tally.bytes).sum(),
    };
    let c = counters;
    (
        add(&[c.offered, c.carried_over]),
        add(&[
            c.delivered,
            c.dropped_queue,
            c.dropped_loss,
            c.dropped_blackhole,
            c.held,
        ]),
    )
}

#[derive(Clone, Debug)]
enum Act {
    Offer(u64),
    Take,
    Rate(Option<u64>),
    Delay(u64),
    Loss(f64),
    Hole(bool),
    Reset,
}

fn acts() -> impl Strategy<Value = Vec<(u64, Act)>> {
    let act = prop_oneof![
        12 => (20_u64..9000).prop_map(Act::Offer),
        4 => Just(Act::Take),
        1 => prop_oneof![Just(None), (100_000_u64..1_000_000_000).prop_map(Some)].prop_map(Act::Rate),
        1 => (1_u64..20).prop_map(Act::Delay),
        1 => (0.0..0.5).prop_map(Act::Loss),
        1 => any::<bool>().prop_map(Act::Hole),
        1 => Just(Act::Reset),
    ];
    prop::collection::vec((0_u64..300_000, act), 1..300)
}

proptest! {
    /// Whatever happens: packets and bytes in are packets and bytes out, dropped and held; order is kept; nothing is
    /// delivered before the least delay there was.
    #[test]
    fn nothing_is_made_or_vanishes(acts in acts(), limit in 1_u32..20, seed in any::<u64>()) {
        let mut link = Link::new(hundred(QueueLimit::Packets(limit)), seed, 0);
        let (mut now_ns, mut number, mut last) = (0, 0_u64, None);
        let mut arrivals = Vec::new();
        for (wait_ns, act) in acts {
            now_ns += wait_ns;
            let mut spec = link.spec.clone();
            match act {
                Act::Offer(bytes) => {
                    arrivals.push(now_ns);
                    link.offer(now_ns, bytes, number);
                    number += 1;
                }
                Act::Take => {
                    while let Some((name, due_ns)) = link.take(now_ns) {
                        prop_assert!(last.is_none_or(|last| last < (name, due_ns)));
                        prop_assert!(last.is_none_or(|(_, before_ns)| before_ns <= due_ns));
                        prop_assert!(due_ns <= now_ns && due_ns >= arrivals[name as usize] + MS);
                        last = Some((name, due_ns));
                    }
                }
                Act::Rate(rate) => { spec.bits_per_second = rate; link.set(now_ns, spec); }
                Act::Delay(ms) => { spec.delay_microseconds = ms * 1000; link.set(now_ns, spec); }
                Act::Loss(share) => { spec.loss = Loss::independent(share); link.set(now_ns, spec); }
                Act::Hole(on) => { spec.blackhole = on; link.set(now_ns, spec); }
                Act::Reset => link.reset_counters(now_ns),
            }
            let (into, out) = sums(link.counters());
            prop_assert_eq!(into, out);
        }
        while link.take(u64::MAX).is_some() {}
        prop_assert_eq!(link.counters().held, Tally::default());
        let (into, out) = sums(link.counters());
        prop_assert_eq!(into, out);
    }

    /// Against a plain model that recounts the queue for every packet in exact fractions: the same packets are
    /// dropped, each is due at the same nanosecond, and no stretch of departures exceeds the rate.
    #[test]
    fn as_the_plain_model(
        packets in prop::collection::vec((0_u64..200_000, 20_u64..9000), 1..200),
        rate in 1_000_000_u64..2_000_000_000,
        queue in prop_oneof![(1_u32..30).prop_map(QueueLimit::Packets), (9_000_u64..100_000).prop_map(QueueLimit::Bytes)],
        overhead_bytes in 0_u32..100,
    ) {
        let mut spec = hundred(queue);
        (spec.bits_per_second, spec.overhead_bytes) = (Some(rate), overhead_bytes);
        let mut link = Link::new(spec, 1, 0);
        // Departures in units of 1/rate ns, so that nothing is rounded; sizes beside them.
        let mut plain: Vec<(u128, u64)> = Vec::new();
        let (mut now_ns, mut expected, rate) = (0, Vec::new(), u128::from(rate));
        for (wait_ns, bytes) in packets {
            now_ns += wait_ns;
            let size = bytes + u64::from(overhead_bytes);
            let waiting = plain.iter().filter(|(departure, _)| departure / rate > u128::from(now_ns));
            let (count, sum) = waiting.fold((0, 0), |(count, sum), (_, size)| (count + 1, sum + size));
            let fits = match queue {
                QueueLimit::Packets(limit) => count < limit,
                QueueLimit::Bytes(limit) => sum + size <= limit,
            };
            prop_assert_eq!(link.offer(now_ns, bytes, ()).is_none(), fits);
            if fits {
                // An arrival within the nanosecond in which the link falls idle does not wait for its end.
                let free = plain.last().map_or(0, |(departure, _)| *departure);
                let start = if free / rate < u128::from(now_ns) { u128::from(now_ns) * rate } else { free };
                plain.push((start + u128::from(size) * 8_000_000_000, size));
                expected.push(u64::try_from(plain[plain.len() - 1].0 / rate).unwrap());
            }
        }
        let due: Vec<u64> = all_due(&mut link, u64::MAX).into_iter().map(|(_, due)| due - 10 * MS).collect();
        prop_assert_eq!(&due, &expected);
        for from in 0..due.len() {
            let mut bits = 0;
            for to in from + 1..due.len() {
                bits += u128::from(plain[to].1) * 8;
                // One nanosecond: both ends are rounded down.
                let time = u128::from(due[to] - due[from]) + 1;
                prop_assert!(bits * 1_000_000_000 <= time * rate);
            }
        }
    }
}
