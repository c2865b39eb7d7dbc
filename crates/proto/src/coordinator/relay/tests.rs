//! Which receivers one that joins fetches from.

use super::super::Action;
use super::super::membership_tests::settle;
use super::super::tests::{
    actions, begun, done, done_after, from, node, opened, pass, sent, started,
};
use super::*;
use crate::control::{Plan, Present, Probe, Probed, from_agent, stretches};
use ropewalk_model::problem::Site;
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

/// A receiver of these bytes joins, which may hand on or not: its number, its plan, and what was sent.
fn join(c: &mut Coordinator, wants: Rows<'_>, hands_on: bool) -> (u32, Plan, Vec<Action>) {
    let address = format!("10.0.0.{}:7420", c.nodes.len());
    join_at(c, &address, wants, hands_on)
}

/// The same at this address.
fn join_at(
    c: &mut Coordinator,
    address: &str,
    wants: Rows<'_>,
    hands_on: bool,
) -> (u32, Plan, Vec<Action>) {
    let receiver = node(&format!("x{}", c.nodes.len()), &[], wants, None);
    let new = c.handle_join(receiver.clone(), Instant(20)).unwrap();
    let mut message = opened(&receiver, 7);
    if let Some(from_agent::Body::Opened(opened)) = &mut message.body {
        opened.hands_on = hands_on;
        opened.addresses = vec![address.to_owned()];
    }
    c.handle_message(new, message, Instant(21));
    let actions = settle(c);
    let plan = sent(&actions, new).into_iter().find_map(|body| match body {
        to_agent::Body::Plan(plan) => Some(plan.clone()),
        _ => None,
    });
    (new, plan.expect("a plan"), actions)
}

/// A receiver has had the first so many bytes of its copy from the start: those that an earlier transfer wrote, or of a file that stays.
fn had(c: &mut Coordinator, node: u32, bytes: u64, is_adopted: bool) {
    let mut present = Present {
        last: true,
        ..Present::default()
    };
    let ranges = match is_adopted {
        true => &mut present.adopted,
        false => &mut present.ranges,
    };
    *ranges = stretches(&RangeSet::from(Range::new(0, bytes)));
    c.handle_message(node, from(from_agent::Body::Present(present)), Instant(11));
    settle(c);
}

/// Of its plan: bytes by the relay that is to send them.
fn joined(c: &mut Coordinator, wants: Rows<'_>) -> Vec<(Option<u32>, u64)> {
    let (_, plan, _) = join(c, wants, true);
    let relays: BTreeSet<Option<u32>> = plan.runs.iter().map(|run| run.relay).collect();
    let bytes = |relay| {
        let own = plan.runs.iter().filter(|run| run.relay == relay);
        (relay, own.map(|run| run.length).sum())
    };
    relays.into_iter().map(bytes).collect()
}

/// Relays that a node was told of by revisions.
fn told(actions: &[Action], node: u32) -> Vec<u32> {
    let revisions = sent(actions, node)
        .into_iter()
        .filter_map(|body| match body {
            to_agent::Body::Revision(revision) => Some(revision),
            _ => None,
        });
    let peers = revisions.flat_map(|revision| &revision.peers);
    peers
        .filter(|peer| peer.relays)
        .map(|peer| peer.node)
        .collect()
}

/// One that joins hands on what it has: those that lack some of it get to know it, and the next one that joins, but no work is planned
/// for it.
#[test]
fn one_that_joins_hands_on() {
    let all = [(0, 64 * MIB)];
    let mut c = handing(&[None; 3], &all);
    c.handle_message(1, done(64 * MIB, &[]), Instant(10));
    settle(&mut c);
    let (first, plan, actions) = join(&mut c, &all, true);
    assert!(plan.hands_on);
    let told_to = |actions: &[Action], nodes: &[u32]| -> Vec<Vec<u32>> {
        nodes.iter().map(|node| told(actions, *node)).collect()
    };
    assert_eq!(
        told_to(&actions, &[1, 2, 3]),
        [vec![], vec![first], vec![first]]
    );
    let (second, plan, actions) = join(&mut c, &all, true);
    let relays = plan.peers.iter().filter(|peer| peer.relays);
    let relays: Vec<u32> = relays.map(|peer| peer.node).collect();
    assert_eq!(relays, [1, 2, 3, first]);
    assert!(plan.runs.iter().all(|run| run.relay != Some(first)));
    assert_eq!(told(&actions, first), [second]);
    // One that keeps nothing that others could have does not.
    let (_, plan, actions) = join(&mut c, &all, false);
    assert!(!plan.hands_on);
    let all_told = told_to(&actions, &[2, 3, first, second]).concat();
    assert!(all_told.is_empty(), "{all_told:?}");
    // All know when it is gone.
    c.handle_lost(first, "gone", Instant(30));
    let lost = |body: &&to_agent::Body| matches!(body, to_agent::Body::Revision(revision) if revision.lost == [first]);
    let actions = settle(&mut c);
    assert!(sent(&actions, second).iter().any(lost));
}

/// Of very many, no more fetch from one that joins than it would fetch from; and where as many hand on already, it does not.
#[test]
fn very_many_do_not_fetch_from_one_that_joins() {
    let all = [(0, 64 * MIB)];
    let mut c = handing(&[None; SOURCES_MAX + 9], &all);
    let (_, plan, _) = join(&mut c, &all, true);
    assert!(!plan.hands_on);
    c.relays = BTreeSet::from([1, 2]);
    let (first, plan, actions) = join(&mut c, &all, true);
    assert!(plan.hands_on);
    let fetch = (0..first).filter(|node| told(&actions, *node) == [first]);
    assert_eq!(fetch.count(), SOURCES_MAX);
}

/// A host that died or left may return, as another node, and hands on again: it shares its uplink with nodes only that take part.
#[test]
fn one_that_returns_hands_on() {
    let all = [(0, 64 * MIB)];
    let mut c = handing(&[None; 2], &all);
    let join = |c: &mut Coordinator| join_at(c, "10.0.0.9:7420", &all, true);
    let (first, plan, _) = join(&mut c);
    assert!(plan.hands_on);
    let (_, plan, _) = join(&mut c);
    assert!(!plan.hands_on, "two nodes on one host");
    c.handle_lost(first, "gone", Instant(30));
    c.handle_lost(first + 1, "gone", Instant(30));
    settle(&mut c);
    let (last, plan, actions) = join(&mut c);
    assert!(plan.hands_on);
    assert_eq!(told(&actions, 1), [last]);
    c.handle_message(last, done_after(1, 64 * MIB, &[]), Instant(31));
    settle(&mut c);
    let name = c.name(last).to_owned();
    c.handle_leave(&name, Instant(32)).unwrap();
    settle(&mut c);
    assert!(join(&mut c).1.hands_on);
}

/// Those that are gone leave their places among those that hand on to others.
#[test]
fn those_that_are_gone_leave_their_places() {
    let all = [(0, 64 * MIB)];
    let mut c = handing(&[None; SOURCES_MAX], &all);
    assert!(!join(&mut c, &all, true).1.hands_on);
    c.handle_lost(1, "gone", Instant(30));
    settle(&mut c);
    let (_, plan, actions) = join(&mut c, &all, true);
    assert!(plan.hands_on);
    let relays = plan.peers.iter().filter(|peer| peer.relays);
    assert_eq!(relays.count(), SOURCES_MAX - 1, "it fetches from the rest");
    assert!(told(&actions, 1).is_empty());
    assert!(!join(&mut c, &all, true).1.hands_on, "the place is taken");
}

/// Of more than a plan is made for, those that are gone do not count.
#[test]
fn those_that_are_gone_are_none_of_too_many() {
    let all = [(0, 64 * MIB)];
    let mut c = handing(&[None; RECEIVERS_MAX], &all);
    c.relays = BTreeSet::from([1, 2]);
    assert!(!join(&mut c, &all, true).1.hands_on);
    for node in 3..9 {
        c.handle_lost(node, "gone", Instant(30));
    }
    settle(&mut c);
    assert!(join(&mut c, &all, true).1.hands_on);
}

/// What receivers had from an earlier transfer they hand on, too; what lies elsewhere, in a file that stays, they do not.
#[test]
fn what_a_receiver_had_before_is_handed_on() {
    let all = [(0, 64 * MIB)];
    let first = [(0, 16 * MIB)];
    for (is_adopted, relay) in [(true, Some(1)), (false, None)] {
        let mut c = handing(&[None; 1], &all);
        had(&mut c, 1, 32 * MIB, is_adopted);
        assert_eq!(joined(&mut c, &first), [(relay, 16 * MIB)]);
        // One that joins may have had some of it, too.
        let (second, _, _) = join(&mut c, &all, true);
        had(&mut c, second, 64 * MIB, is_adopted);
        let mut done = done_after(1, 0, &[]);
        if let Some(from_agent::Body::Done(done)) = &mut done.body {
            done.pairs.clear();
        }
        c.handle_message(second, done, Instant(22));
        settle(&mut c);
        c.handle_lost(1, "gone", Instant(23));
        settle(&mut c);
        let relay = relay.map(|_| second);
        assert_eq!(joined(&mut c, &first), [(relay, 16 * MIB)]);
    }
}

/// What a receiver wants that hands on is sent with it, also where it had all from an earlier transfer.
#[test]
fn one_that_wants_nothing_is_known() {
    let mut c = handing(&[None; 2], &[(MIB, 63 * MIB)]);
    let wants = |c: &Coordinator, node| {
        let peer = c.peer(node);
        (peer.wants_start, peer.wants_end)
    };
    assert_eq!(wants(&c, 1), (MIB, Some(64 * MIB)));
    had(&mut c, 1, 64 * MIB, true);
    assert_eq!(wants(&c, 1), (0, Some(0)));
    assert_eq!(wants(&c, 2), (MIB, Some(64 * MIB)));
    // A sender hands nothing on.
    assert_eq!(wants(&c, 0), (0, None));
}

/// However many pieces receivers lack, few of them are dealt: each may cut the work of one that joins.
#[test]
fn few_pieces_are_dealt() {
    let all = [(0, 64 * MIB)];
    let mut c = handing(&[None; 2], &all);
    let length = 64 * MIB / (2 * PIECES_MAX as u64);
    let present =
        (0..PIECES_MAX as u64).map(|at| Range::new(2 * at * length, (2 * at + 1) * length));
    // One piece is longer.
    let present = RangeSet::from_ranges(present.filter(|range| range.start != 8 * length));
    for node in 1..=2 {
        let present = Present {
            ranges: stretches(&present),
            last: true,
            ..Present::default()
        };
        c.handle_message(node, from(from_agent::Body::Present(present)), Instant(11));
        settle(&mut c);
    }
    let (new, _, _) = join(&mut c, &all, true);
    let sources = c.sources_of(new);
    assert_eq!(sources.len(), 2);
    for source in sources {
        assert_eq!(source.wants.as_slice().len(), PIECES_MAX / 2);
        assert!(
            source
                .wants
                .contains_range(Range::new(7 * length, 10 * length))
        );
    }
}

/// Before the first plan all that may send measure how far the others are; the plan gets to know which are near each other. Not where
/// only one could hand on.
#[test]
fn round_trips_are_measured_before_the_plan() {
    let all = [(0, 64 * MIB)];
    let open = |handing: u32| {
        let receivers = (0..4).map(|at| node(&format!("r{at}"), &[], &all, None));
        let nodes: Vec<_> = [node("s", &all, &[], None)]
            .into_iter()
            .chain(receivers)
            .collect();
        let mut c = begun(nodes.clone(), None);
        c.setup.relay = Relay::Auto;
        c.setup.options.set_verify(Verify::Tree);
        for (number, node) in (0u32..).zip(&nodes) {
            let mut message = opened(node, 7);
            if let Some(from_agent::Body::Opened(opened)) = &mut message.body {
                opened.hands_on = (1..=handing).contains(&number);
                opened.addresses = vec![format!("10.0.0.{number}:7420")];
            }
            c.handle_message(number, message, Instant(1));
        }
        let first = actions(&mut c);
        (c, first)
    };
    let plan = |actions: &[Action]| {
        actions.iter().find_map(|action| match action {
            Action::Plan(purpose, _) => Some(purpose.sites.clone()),
            _ => None,
        })
    };
    let (mut c, first) = open(4);
    assert_eq!(plan(&first), None);
    let probes = |actions: &[Action], node| -> Vec<Probe> {
        let probe = |body: &to_agent::Body| match body {
            to_agent::Body::Probe(probe) => Some(probe.clone()),
            _ => None,
        };
        sent(actions, node).into_iter().filter_map(probe).collect()
    };
    for number in 0..5 {
        let probes = probes(&first, number);
        let landmarks = probes[0].landmarks.iter().map(|peer| peer.node);
        assert_eq!(landmarks.collect::<Vec<u32>>(), [0, 1, 2, 3, 4]);
        assert_eq!(probes[0].landmarks[2].addresses, ["10.0.0.2:7420"]);
        let is_far = |node| node == 2 || node == 4;
        let trips = (0..5).map(|to| match is_far(number) == is_far(to) {
            true => 100,
            false => 20_000,
        });
        let probed = Probed {
            trips: trips.collect(),
            ..Probed::default()
        };
        c.handle_message(number, from(from_agent::Body::Probed(probed)), Instant(2));
    }
    let rest = actions(&mut c);
    let site = |senders: &[usize], receivers: &[usize]| Site {
        senders: senders.to_vec(),
        receivers: receivers.to_vec(),
    };
    assert_eq!(
        plan(&rest),
        Some(vec![site(&[0], &[0, 2]), site(&[], &[1, 3])])
    );
    assert_eq!(probes(&rest, 3), [Probe::default()]);
    let far = |to| {
        (0..5)
            .map(|node| c.peer_of(to, node).far)
            .collect::<Vec<_>>()
    };
    assert_eq!(far(1), [false, false, true, false, true]);
    assert_eq!(far(2), [true, true, false, true, false]);
    // One that only measures is not waited for.
    let (mut c, _) = open(4);
    for number in 0..4 {
        let probed = from(from_agent::Body::Probed(Probed::default()));
        c.handle_message(number, probed, Instant(2));
    }
    pass(&mut c, 2, 4_000_000_000);
    assert_eq!(plan(&actions(&mut c)), None);
    pass(&mut c, 4_000_000_000, 6_000_000_000);
    assert_eq!(plan(&actions(&mut c)), Some(Vec::new()));
    let (_, first) = open(1);
    assert_eq!(plan(&first), Some(Vec::new()));
}

/// Of equal pieces not all nodes keep the first ones.
#[test]
fn equal_pieces_are_kept_by_some() {
    let all = RangeSet::from_ranges((0..100).map(|at| Range::new(2 * at, 2 * at + 1)));
    let kept = |node| {
        let mut kept = all.clone();
        keep_longest(&mut kept, 10, node);
        kept
    };
    let kept: Vec<RangeSet> = (0..20).map(kept).collect();
    assert!(kept.iter().all(|kept| kept.len_bytes() == 10));
    let union = kept
        .iter()
        .fold(RangeSet::new(), |all, kept| all.union(kept));
    assert!(union.len_bytes() > 50, "{union:?}");
}

/// Of those that joined, the ones that are done have a part in what a further one wants.
#[test]
fn one_that_joined_and_is_done_is_fetched_from() {
    let all = [(0, 64 * MIB)];
    let mut c = handing(&[None; 1], &all);
    let (first, _, _) = join(&mut c, &all, true);
    assert_eq!(joined(&mut c, &all), [(Some(1), 64 * MIB)]);
    c.handle_message(first, done_after(1, 64 * MIB, &[]), Instant(22));
    settle(&mut c);
    assert_eq!(
        joined(&mut c, &all),
        [(Some(1), 32 * MIB), (Some(first), 32 * MIB)]
    );
    // One that lacks some of it has no part.
    let mut c = handing(&[None; 1], &all);
    let (first, _, _) = join(&mut c, &all, true);
    c.handle_message(first, done_after(1, 63 * MIB, &[(0, MIB)]), Instant(22));
    settle(&mut c);
    assert_eq!(joined(&mut c, &all), [(Some(1), 64 * MIB)]);
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
