//! Rounds end to end: a sender's `Blast` and a receiver's `Collect` over a path that loses, repeats and reorders.

use proptest::prelude::*;
use ropewalk_model::{Instant, Range};

use super::*;

/// A datagram on its way.
fn head(piece: &Piece, index: u32, payload: u32, sequence: u64) -> Datagram {
    let at = u64::from(index) * u64::from(payload);
    let length = (piece.unit.range.len() - at).min(payload.into());
    Datagram {
        kind: DatagramKind::Data,
        round: piece.round as u8,
        length: length as u16,
        lane: 1,
        sequence,
        offset: piece.unit.range.start + at,
        grant: piece.unit.id,
        echo: 0,
    }
}

/// What a datagram meets: the numbers choose.
fn fates(chance: u8) -> (bool, bool, bool) {
    (
        chance < 60,
        chance.is_multiple_of(7),
        chance.is_multiple_of(5),
    )
}

proptest! {
    /// Whatever is lost (a quarter), repeated or late, every unit ends whole, each byte counted once, and the sender
    /// forgets all of them.
    #[test]
    fn rounds_until_whole(lengths in proptest::collection::vec(0u64..5000, 1..12), payload in 100u32..900, first: bool, seed in proptest::collection::vec(any::<u8>(), 64)) {
        let order = if first { Order::BlastFirst } else { Order::RepairsFirst };
        let mut blast = Blast::new(payload, order);
        let mut collect = Collect::new(payload);
        let mut at = 77;
        for (id, length) in lengths.iter().enumerate() {
            let range = Range::new(at, at + length);
            at += length;
            let wanted = Wanted { id: id as u32, space: 0, range, hash: true };
            prop_assert!(blast.grant(wanted));
            prop_assert!(!blast.grant(wanted), "a number in use");
            collect.expect(wanted.id, range);
        }
        let (mut sequence, mut bytes, mut now, mut whole) = (0u64, 0u64, 0u64, 0);
        let mut late: Vec<Datagram> = Vec::new();
        let take = |collect: &mut Collect, head: &Datagram| -> u64 {
            collect.seen(head.sequence);
            match collect.place(head) {
                Ok(place) => { collect.placed(&place); place.length as u64 }
                Err(_) => 0,
            }
        };
        for _ in 0..100_000 {
            now += 1_000_000;
            if let Some(piece) = blast.next(3) {
                for index in piece.first..piece.first + piece.count {
                    let head = head(&piece, index, payload, sequence);
                    let (lost, twice, delayed) = fates(seed[(sequence % 64) as usize].wrapping_add((sequence / 64 * 31) as u8));
                    sequence += 1;
                    if lost { continue; }
                    if delayed { late.push(head); continue; }
                    bytes += take(&mut collect, &head);
                    if twice { bytes += take(&mut collect, &head); }
                }
                if piece.ends_round { collect.round_ended(piece.unit.id, piece.round, sequence, Instant(now)); }
                continue;
            }
            for head in late.drain(..) { bytes += take(&mut collect, &head); }
            now += 5_000_000;
            while let Some(report) = collect.report(Some(Instant(now))) {
                whole += u32::from(report.missing == 0);
                prop_assert!(blast.lacking(report.id, report.round, &report.lacking).is_ok());
                // Said twice, it counts once.
                prop_assert!(blast.lacking(report.id, report.round, &report.lacking).is_ok());
            }
            if blast.outstanding() == 0 { break; }
        }
        prop_assert_eq!(blast.outstanding(), 0);
        prop_assert_eq!(whole as usize, lengths.len());
        prop_assert_eq!(bytes, lengths.iter().sum::<u64>());
        prop_assert!(!blast.has_work());
    }

    /// A datagram that does not lie on the cuts of a unit that is asked for has no place, whatever its header says.
    #[test]
    fn only_proper_places(offset in 0u64..4000, length: u16, grant in 0u32..3) {
        let mut collect = Collect::new(300);
        collect.expect(1, Range::new(1000, 2000));
        let head = Datagram { kind: DatagramKind::Data, round: 0, length, lane: 1, sequence: 0, offset, grant, echo: 0 };
        match collect.place(&head) {
            Ok(place) => {
                prop_assert_eq!(grant, 1);
                prop_assert_eq!(place.at % 300, 0);
                prop_assert!(place.at + place.length <= 1000);
                prop_assert_eq!(place.length, usize::from(length));
            }
            Err(stray) => prop_assert!(stray != Stray::Late || grant != 1),
        }
    }
}

fn unit(id: u32, start: u64, end: u64) -> Wanted {
    Wanted {
        id,
        space: 0,
        range: Range::new(start, end),
        hash: false,
    }
}

/// As published, repairs wait for the end of the blast; the other order sends them first.
#[test]
fn the_two_orders() {
    for (order, expected) in [
        (Order::BlastFirst, [(1, 0), (0, 1)]),
        (Order::RepairsFirst, [(0, 1), (1, 0)]),
    ] {
        let mut blast = Blast::new(500, order);
        blast.grant(unit(0, 0, 1000));
        assert_eq!(blast.next(9).map(|piece| piece.count), Some(2));
        blast.grant(unit(1, 1000, 2000));
        blast.lacking(0, 0, &[0b10]).unwrap();
        let next: Vec<_> = std::iter::from_fn(|| blast.next(9))
            .map(|piece| (piece.unit.id, piece.round))
            .collect();
        assert_eq!(next, expected);
        assert_eq!(blast.repeated(), 1);
    }
}

/// A word on a round that is not over, or long over, changes nothing; a bitmap of another length is refused.
#[test]
fn words_on_other_rounds_are_ignored() {
    let mut blast = Blast::new(500, Order::BlastFirst);
    blast.grant(unit(4, 0, 1500));
    blast.lacking(4, 0, &[7]).unwrap();
    assert_eq!(blast.repeated(), 0, "the round is not out yet");
    blast.next(9);
    assert!(blast.lacking(4, 0, &[7, 0]).is_err());
    assert!(blast.lacking(4, 0, &[0b1000]).is_err(), "a fourth datagram");
    blast.lacking(4, 1, &[7]).unwrap();
    assert_eq!(blast.repeated(), 0);
    assert!(blast.forget(4) && !blast.forget(4));
    blast.lacking(4, 0, &[7]).unwrap();
    assert!(blast.next(9).is_none());
}

/// Nothing is called lacking while it may still be on its way: not before a later datagram came, or the socket was empty a moment after
/// the word.
#[test]
fn the_stream_may_overtake_datagrams() {
    let mut collect = Collect::new(100);
    collect.expect(0, Range::new(0, 200));
    let first = Datagram {
        kind: DatagramKind::Data,
        round: 0,
        length: 100,
        lane: 1,
        sequence: 0,
        offset: 0,
        grant: 0,
        echo: 0,
    };
    let place = collect.place(&first).unwrap();
    collect.seen(0);
    collect.placed(&place);
    assert_eq!(collect.place(&first), Err(Stray::Duplicate));
    collect.round_ended(0, 0, 2, Instant(5_000_000));
    assert_eq!(collect.report(None), None);
    assert_eq!(
        collect.report(Some(Instant(4_000_000))),
        None,
        "empty before the word"
    );
    assert_eq!(collect.report(Some(Instant(5_500_000))), None);
    assert_eq!(collect.due_at(), Some(Instant(6_000_000)));
    let report = collect.report(Some(Instant(6_000_000))).unwrap();
    assert_eq!(
        (report.missing, report.lacking.as_slice()),
        (1, [2].as_slice())
    );
    assert_eq!(collect.report(Some(Instant(9_000_000))), None, "said once");
    // The next round, and it is whole: at once.
    collect.round_ended(0, 1, 3, Instant(9_000_000));
    let second = Datagram {
        sequence: 2,
        offset: 100,
        ..first
    };
    let place = collect.place(&second).unwrap();
    collect.seen(2);
    collect.placed(&place);
    assert_eq!(collect.report(None).map(|report| report.missing), Some(0));
    assert_eq!(collect.place(&second), Err(Stray::Late));
}
