//! Which receivers one that joins fetches from.

use super::super::membership_tests::settle;
use super::super::tests::{done, node, opened, sent, started};
use super::*;
use crate::control::to_agent;
use ropewalk_model::{ByteRate, Instant};

const MIB: u64 = 1 << 20;

/// Where rows begin, and their lengths.
type Rows<'a> = &'a [(u64, u64)];

/// One sender and receivers with these uplinks that want the same bytes, of which all hand on.
fn handing(uplinks: &[Option<u64>], wants: Rows<'_>) -> Coordinator {
    let receivers: Vec<_> = uplinks.iter().map(|up| (*up, wants)).collect();
    handing_what(&receivers)
}

/// The same with what each wants.
fn handing_what(receivers: &[(Option<u64>, Rows<'_>)]) -> Coordinator {
    let mut nodes = vec![node("s", &[(0, 64 * MIB)], &[], None)];
    for (at, &(up, wants)) in receivers.iter().enumerate() {
        let mut receiver = node(&format!("r{at}"), &[], wants, None);
        receiver.up = up.map(ByteRate);
        nodes.push(receiver);
    }
    let (mut c, _) = started(nodes);
    c.setup.relay = Relay::Auto;
    c.setup.options.set_verify(Verify::Tree);
    c.relays = (1..=receivers.len() as u32).collect();
    c
}

/// A receiver of these bytes joins: bytes by the relay that is to send them.
fn joined(c: &mut Coordinator, wants: Rows<'_>) -> Vec<(Option<u32>, u64)> {
    let receiver = node(&format!("x{}", c.nodes.len()), &[], wants, None);
    let new = c.handle_join(receiver.clone(), Instant(20)).unwrap();
    c.handle_message(new, opened(&receiver, 7), Instant(21));
    let actions = settle(c);
    let plan = sent(&actions, new).into_iter().find_map(|body| match body {
        to_agent::Body::Plan(plan) => Some(plan),
        _ => None,
    });
    let plan = plan.expect("a plan");
    let relays: BTreeSet<Option<u32>> = plan.runs.iter().map(|run| run.relay).collect();
    let bytes = |relay| {
        let own = plan.runs.iter().filter(|run| run.relay == relay);
        (relay, own.map(|run| run.length).sum())
    };
    relays.into_iter().map(bytes).collect()
}

/// All that it wants comes from the receivers, in proportion to their uplinks.
#[test]
fn a_receiver_that_joins_fetches_from_all() {
    let all = [(0, 64 * MIB)];
    let mut c = handing(&[Some(1_000_000), Some(3_000_000)], &all);
    assert_eq!(
        joined(&mut c, &all),
        [(Some(1), 16 * MIB), (Some(2), 48 * MIB)]
    );
}

/// What none of them wants, the original holder sends, and of a unit that one wants only a part of it none.
#[test]
fn what_none_wants_is_the_holders() {
    let (some, last) = ([(0, 32 * MIB + 5)], [(63 * MIB, MIB)]);
    let mut c = handing_what(&[(None, &some), (None, &some), (None, &last)]);
    let dealt = joined(&mut c, &[(0, 64 * MIB)]);
    let [
        (None, rest),
        (Some(1), one),
        (Some(2), other),
        (Some(3), MIB),
    ] = dealt[..]
    else {
        panic!("{dealt:?}")
    };
    assert_eq!(rest + one + other, 63 * MIB);
    assert!(rest > 31 * MIB - 5 && rest < 32 * MIB, "{rest}");
    assert!(one.abs_diff(other) <= MIB, "{one} and {other}");
}

/// Those that left or are lost are not among them, nor is the one that joins.
#[test]
fn those_that_are_gone_have_no_part() {
    let all = [(0, 64 * MIB)];
    let mut c = handing(&[None; 3], &all);
    assert_eq!(joined(&mut c, &all).len(), 3);
    c.handle_message(3, done(64 * MIB, &[]), Instant(30));
    settle(&mut c);
    c.handle_leave("r2", Instant(31)).unwrap();
    settle(&mut c);
    let relays = |dealt: &[(Option<u32>, u64)]| -> Vec<Option<u32>> {
        dealt.iter().map(|(relay, _)| *relay).collect()
    };
    assert_eq!(relays(&joined(&mut c, &all)), [Some(1), Some(2)]);
    c.handle_lost(2, "gone", Instant(32));
    settle(&mut c);
    assert_eq!(relays(&joined(&mut c, &all)), [Some(1)]);
    c.handle_lost(1, "gone", Instant(33));
    settle(&mut c);
    assert_eq!(relays(&joined(&mut c, &all)), [None]);
}

/// Of very many it fetches from no more than it has lanes to.
#[test]
fn one_that_joins_fetches_from_no_more_than_it_has_lanes_to() {
    let all = [(0, 64 * MIB)];
    let mut c = handing(&[None; SOURCES_MAX + 9], &all);
    let dealt = joined(&mut c, &all);
    assert_eq!(dealt.len(), SOURCES_MAX);
    assert!(dealt.iter().all(|(relay, _)| relay.is_some()), "{dealt:?}");
}
