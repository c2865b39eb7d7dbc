//! Sender and receiver against each other over rails that lose, fail, reorder and repeat.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;
use ropewalk_model::Instant;

use super::frame::{DISCARD, Header, Kind, WHOLE};
use super::*;

mod timed;

const MS: u64 = 1_000_000;
const WINDOW: u64 = 60_000;

/// One rail: frames in both directions, in order, and the fragment that is landing.
#[derive(Default)]
struct Link {
    number: u64,
    up: bool,
    forward: VecDeque<Header>,
    back: VecDeque<(u64, u64, Ack)>,
    landing: Option<(Header, Landing)>,
}

struct World {
    sender: Sender,
    receiver: Receiver,
    links: Vec<Link>,
    links_made: u64,
    now: u64,
    /// Length of each message started, by number; discarded ones apart.
    started: BTreeMap<u64, u64>,
    cancelled: BTreeSet<u64>,
    /// Bytes written of each message, in pieces that must not repeat.
    written: BTreeMap<u64, Vec<ropewalk_model::Range>>,
    handed_out: Vec<(u64, u64)>,
}

impl World {
    fn new(rails: usize) -> Self {
        let mut world = Self {
            sender: Sender::new(rails, WINDOW),
            receiver: Receiver::new(rails, WINDOW),
            links: (0..rails).map(|_| Link::default()).collect(),
            links_made: 0,
            now: 0,
            started: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            written: BTreeMap::new(),
            handed_out: Vec::new(),
        };
        for rail in 0..rails {
            world.connect(rail);
        }
        world
    }

    fn connect(&mut self, rail: RailId) {
        if self.links[rail].up {
            return;
        }
        self.links_made += 1;
        self.links[rail] = Link {
            number: self.links_made,
            up: true,
            ..Link::default()
        };
        self.sender.rail_up(rail);
        self.receiver.link_up(rail, self.links_made);
    }

    fn fail(&mut self, rail: RailId) {
        let link = &mut self.links[rail];
        if !std::mem::take(&mut link.up) {
            return;
        }
        link.forward.clear();
        link.back.clear();
        link.landing = None;
        self.sender.rail_failed(rail);
        let heir = self.links.iter().position(|link| link.up);
        self.receiver.link_failed(rail, heir);
    }

    fn start(&mut self, length: u64, spread: Spread, flags: u8) {
        if let Some(message) = self.sender.start(length, spread, flags)
            && flags != DISCARD
        {
            self.started.insert(message, length);
        }
    }

    fn cancel(&mut self, message: u64) {
        if self.started.contains_key(&message) && !self.sender.is_finished(message) {
            self.sender.cancel(message);
            self.cancelled.insert(message);
        }
    }

    fn send(&mut self, rail: RailId) -> bool {
        let Some(fragment) = self.sender.take(rail, Instant(self.now)) else {
            return false;
        };
        assert!(self.links[rail].up, "a dead rail was given work");
        let kind = match fragment.body {
            Body::Bytes => Kind::Data,
            Body::Cancelled => Kind::Cancel,
            Body::End => Kind::End,
        };
        assert_eq!(fragment.fragment == WHOLE, kind != Kind::Data);
        let header = Header {
            flags: fragment.flags,
            length: fragment.range.len() as u32,
            message: fragment.message,
            message_len: fragment.message_len,
            fragment: fragment.fragment,
            fragment_len: fragment.fragment_len,
            ..Header::new(kind)
        };
        if kind == Kind::Data {
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
        self.links[rail].forward.push_back(header);
        true
    }

    /// Moves the next frame of a rail one step; `bad` says that its bytes were taken back.
    fn receive(&mut self, rail: RailId, bad: bool) -> bool {
        let number = self.links[rail].number;
        if let Some((header, landing)) = self.links[rail].landing.take() {
            let arrival = self.receiver.data(rail, number, &header, !bad);
            if let Landing::Place { range, .. } = landing
                && arrival != Arrival::Nothing
            {
                self.written.entry(header.message).or_default().push(range);
            }
            return true;
        }
        let Some(header) = self.links[rail].forward.pop_front() else {
            return false;
        };
        if header.kind == Kind::Data {
            let landing = self.receiver.begin(number, &header).unwrap();
            self.links[rail].landing = Some((header, landing));
        } else {
            self.receiver.whole(rail, number, &header).unwrap();
        }
        true
    }

    fn acknowledge(&mut self, rail: RailId) -> bool {
        if !self.links[rail].up || !self.receiver.owes(rail) {
            return false;
        }
        let (done_below, credit) = self.receiver.tell();
        let number = self.links[rail].number;
        let ack = self.receiver.ack(rail, number).unwrap();
        self.links[rail].back.push_back((done_below, credit, ack));
        true
    }

    fn hear(&mut self, rail: RailId) -> bool {
        let Some((done_below, credit, ack)) = self.links[rail].back.pop_front() else {
            return false;
        };
        assert!(self.sender.done_below(done_below, Instant(self.now)));
        self.sender.allow(credit);
        for entry in ack.entries {
            self.sender.arrived(entry);
        }
        self.sender.processed(rail, ack.frames, Instant(self.now));
        true
    }

    fn hand_out(&mut self) -> bool {
        match self.receiver.front() {
            Front::Whole { message, length } => {
                self.handed_out.push((message, length));
                self.receiver.deliver();
                true
            }
            Front::Partial { .. } => {
                self.receiver.claim();
                false
            }
            Front::Unknown | Front::End => false,
        }
    }

    fn act(&mut self, op: (u8, u8, u16)) {
        let (what, rail, value) = op;
        let rail = usize::from(rail) % self.links.len();
        self.now += MS;
        match what % 16 {
            0 => self.start(u64::from(value), Spread::Single, 0),
            1 => self.start(u64::from(value), Spread::Balanced, 0),
            2 => self.start(
                u64::from(value),
                Spread::Equal,
                if value % 4 == 0 { DISCARD } else { 0 },
            ),
            3 => self.start(u64::from(value) * 4, Spread::Balanced, 0),
            4 => self.start(u64::from(value) / 8, Spread::On(rail), DISCARD),
            5 => self.fail(rail),
            6 => self.connect(rail),
            7 => self.cancel(u64::from(value % 32)),
            8 | 9 => drop(self.send(rail)),
            10..=12 => drop(self.receive(rail, value % 16 == 0)),
            13 => drop(self.acknowledge(rail)),
            14 => drop(self.hear(rail)),
            _ => drop(self.hand_out()),
        }
    }

    /// Lets everything come to rest over rails that live.
    fn settle(&mut self) {
        for rail in 0..self.links.len() {
            self.connect(rail);
        }
        self.sender.end();
        for _ in 0..200_000 {
            self.now += MS;
            let mut moved = self.hand_out();
            for rail in 0..self.links.len() {
                moved |= self.send(rail);
                moved |= self.receive(rail, false);
                moved |= self.acknowledge(rail);
                moved |= self.hear(rail);
            }
            if self.sender.unfinished() == 0 && self.receiver.front() == Front::End {
                return;
            }
            assert!(moved, "stuck: {:?} {:?}", self.sender, self.receiver);
        }
        panic!("does not come to rest");
    }

    fn check(&self) {
        let mut expected: BTreeMap<u64, u64> = self.started.clone();
        for message in &self.cancelled {
            // A message that was cancelled may have come whole before the news.
            if !self.handed_out.iter().any(|(number, _)| number == message) {
                expected.remove(message);
            }
        }
        let expected: Vec<(u64, u64)> = expected.into_iter().collect();
        assert_eq!(self.handed_out, expected, "each once, whole, in order");
        for (message, length) in &self.handed_out {
            let mut pieces = self.written.get(message).cloned().unwrap_or_default();
            pieces.sort_unstable();
            let mut at = 0;
            for piece in pieces {
                assert_eq!(piece.start, at, "message {message}: gap or second writing");
                at = piece.end;
            }
            assert_eq!(at, *length);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever rails do, every message comes once, whole and in order.
    #[test]
    fn nothing_is_lost_or_doubled(rails in 1usize..5, ops in prop::collection::vec(any::<(u8, u8, u16)>(), 0..400)) {
        let mut world = World::new(rails);
        for op in ops {
            world.act(op);
        }
        world.settle();
        world.check();
    }
}

/// Moves frames of rails whose speeds are bytes per millisecond; gives milliseconds until all has arrived.
fn run_timed(
    speeds: &[u64],
    length: u64,
    spread: Spread,
    stall: Option<(usize, u64)>,
) -> (u64, Vec<u64>) {
    let mut world = World::new(speeds.len());
    world.receiver = Receiver::new(speeds.len(), 1 << 30);
    world.sender = Sender::new(speeds.len(), 1 << 30);
    for rail in 0..speeds.len() {
        world.sender.rail_up(rail);
        world.receiver.link_up(rail, world.links[rail].number);
    }
    let mut carried = vec![0; speeds.len()];
    // A first message tells the speeds.
    for lengths in [speeds.iter().sum::<u64>() * 100, length] {
        let message = world.sender.start(lengths, spread, 0).unwrap();
        let begun = world.now;
        let mut budget = vec![0_u64; speeds.len()];
        carried.fill(0);
        for _ in 0..1_000_000 {
            world.now += MS;
            for rail in 0..speeds.len() {
                let stalled = lengths == length
                    && stall
                        .is_some_and(|(who, from)| who == rail && world.now - begun > from * MS);
                budget[rail] += if stalled { 0 } else { speeds[rail] };
                while world.links[rail].forward.len() < 2 && world.send(rail) {}
                while let Some(next) = world.links[rail].forward.front()
                    && u64::from(next.length) <= budget[rail]
                {
                    budget[rail] -= u64::from(next.length);
                    carried[rail] += u64::from(next.length);
                    world.receive(rail, false);
                    world.receive(rail, false);
                    world.acknowledge(rail);
                    world.hear(rail);
                    world.send(rail);
                }
                if world.links[rail].forward.is_empty() {
                    budget[rail] = 0;
                }
            }
            if world.sender.is_finished(message) {
                break;
            }
        }
        assert!(world.sender.is_finished(message));
        world.hand_out();
        if lengths == length {
            return ((world.now - begun) / MS, carried);
        }
    }
    unreachable!("the second message returns")
}

/// Rails take fragments as they have room: 1 G + 500 M + 100 M carry 97 % of their sum, equal parts wait for the slowest.
#[test]
fn faster_rails_take_more() {
    let speeds = [125_000, 62_500, 12_500];
    let length = 200_000 * 1000;
    let (balanced, carried) = run_timed(&speeds, length, Spread::Balanced, None);
    assert!(balanced <= 1030, "{balanced} ms, {carried:?}");
    assert!(
        carried[0] > carried[1] && carried[1] > carried[2],
        "{carried:?}"
    );
    let (equal, _) = run_timed(&speeds, length, Spread::Equal, None);
    assert!(equal > 5000, "{equal} ms");
}

/// Messages over slow rails are cut into fragments that the receiver takes, whatever their length is.
#[test]
fn slow_rails_carry_long_messages() {
    for length in (262_000..302_000).step_by(997) {
        let (_, carried) = run_timed(&[1000, 1100], length, Spread::Balanced, None);
        assert!(carried.iter().sum::<u64>() >= length);
    }
}

/// What is in transit on a rail that stalls near the end is sent again on the other.
#[test]
fn a_stalled_rail_does_not_hold_the_end() {
    let (time, _) = run_timed(
        &[100_000, 100_000],
        20_000_000,
        Spread::Balanced,
        Some((1, 80)),
    );
    assert!(time < 200, "{time} ms");
}

/// Nothing below the cut-off leaves the best rail while that one lives.
#[test]
fn small_messages_stay_on_the_best_rail() {
    let mut sender = Sender::new(2, 1 << 20);
    sender.rail_up(0);
    sender.rail_up(1);
    sender.set_best(1);
    sender.start(100, Spread::Single, 0).unwrap();
    assert_eq!(sender.take(0, Instant::ZERO), None);
    sender.rail_failed(1);
    assert_eq!(sender.take(0, Instant::ZERO).unwrap().range.len(), 100);
}

/// A long message over one rail is cut, so that acknowledgements, and the news that it was given up, are sent before its end.
#[test]
fn long_messages_of_one_rail_leave_gaps() {
    let length = 64 << 20;
    let mut sender = Sender::new(1, u64::MAX);
    sender.rail_up(0);
    for spread in [Spread::Single, Spread::On(0)] {
        let message = sender.start(length, spread, 0).unwrap();
        let first = sender.take(0, Instant::ZERO).unwrap();
        assert!(first.range.len() <= 1 << 20, "{first:?}");
        sender.cancel(message);
        assert_eq!(sender.take(0, Instant::ZERO).unwrap().body, Body::Cancelled);
    }
    // What is short is whole, as who receives it takes it for the rail of small messages.
    sender.start(1 << 20, Spread::Single, 0).unwrap();
    assert_eq!(sender.take(0, Instant::ZERO).unwrap().range.len(), 1 << 20);
}

/// Without credit nothing moves, an end included; with it the order is kept.
#[test]
fn credit_bounds_what_is_sent() {
    let mut sender = Sender::new(1, MESSAGE_COST);
    sender.rail_up(0);
    sender.start(10, Spread::Single, 0).unwrap();
    sender.start(0, Spread::Single, 0).unwrap();
    sender.end();
    assert_eq!(
        sender.start(1, Spread::Single, 0),
        None,
        "the end was announced"
    );
    assert_eq!(sender.take(0, Instant::ZERO).unwrap().message, 0);
    assert_eq!(sender.take(0, Instant::ZERO), None);
    sender.allow(10 + 3 * MESSAGE_COST);
    assert_eq!(sender.take(0, Instant::ZERO).unwrap().message, 1);
    assert_eq!(sender.take(0, Instant::ZERO).unwrap().body, Body::End);
    assert!(!sender.done_below(4, Instant::ZERO), "three were started");
    assert!(sender.done_below(3, Instant::ZERO));
    assert_eq!(sender.unfinished(), 0);
}

/// A peer that goes beyond its credit, or contradicts itself, is found out.
#[test]
fn lies_are_found_out() {
    let mut receiver = Receiver::new(1, 4 * MESSAGE_COST);
    let header = |message, message_len, fragment| Header {
        message,
        message_len,
        fragment,
        fragment_len: 1000,
        ..Header::new(Kind::Data)
    };
    assert!(matches!(
        receiver.begin(1, &header(9, 10, 0)),
        Err(Broken::Credit { .. })
    ));
    assert!(matches!(
        receiver.begin(1, &header(0, 1 << 60, 0)),
        Err(Broken::TooLong { .. })
    ));
    assert!(matches!(
        receiver.begin(1, &header(0, 5000, 4)),
        Err(Broken::Credit { .. })
    ));
    receiver.begin(1, &header(0, 5000, 0)).unwrap();
    assert_eq!(
        receiver.begin(1, &header(0, 5001, 1)),
        Err(Broken::Disagree(0))
    );
    receiver.claim();
    assert!(
        receiver.begin(1, &header(0, 5000, 4)).is_ok(),
        "claimed memory needs no window"
    );
}

/// A copy that lost its fragment to another link is told, too: the other may break before it is whole, and then
/// nothing else would make the sender send again.
#[test]
fn copies_in_vain_are_told() {
    let mut world = World::new(2);
    world.start(100, Spread::Single, 0);
    assert!(world.send(0));
    let header = world.links[0].forward[0];
    world.links[1].forward.push_back(header);
    assert!(
        world.receive(0, false) && world.receive(1, false),
        "both land"
    );
    assert!(world.receive(0, false), "the first ends, in vain");
    world.fail(1);
    assert!(world.acknowledge(0) && world.hear(0));
    assert!(world.send(0), "sent again");
    world.settle();
    world.check();
}

/// A message that measures becomes whole though it is longer than the window. What is kept needs no more room for it,
/// whatever length it claims.
#[test]
fn measuring_needs_no_window() {
    let mut world = World::new(2);
    world.start(10 * WINDOW, Spread::Equal, DISCARD);
    world.start(1000, Spread::Single, 0);
    world.settle();
    world.check();

    let mut receiver = Receiver::new(1, WINDOW);
    let header = Header {
        flags: DISCARD,
        length: 4096,
        message_len: 1 << 40,
        fragment_len: 4096,
        ..Header::new(Kind::Data)
    };
    receiver.begin(1, &header).unwrap();
    assert_eq!(receiver.room(), WINDOW);
    assert_eq!(receiver.credit(), WINDOW + (1 << 20));
}

/// Numbers that no sender reaches are beyond the credit, whatever frame names them.
#[test]
fn numbers_beyond_all_are_refused() {
    let header = |kind, message| Header {
        length: 1,
        message,
        message_len: 1,
        fragment_len: 1,
        ..Header::new(kind)
    };
    for message in [u64::MAX, u64::MAX - 1, 1 << 55] {
        let mut receiver = Receiver::new(1, WINDOW);
        let credit = receiver.credit();
        let beyond = Broken::Credit { message, credit };
        assert_eq!(receiver.begin(1, &header(Kind::Data, message)), Err(beyond));
        for kind in [Kind::Cancel, Kind::End] {
            assert_eq!(receiver.whole(0, 1, &header(kind, message)), Err(beyond));
        }
    }
}

/// Messages that come in the wrong order hold no more than the window and a fragment, though the lengths of those before
/// them are not known.
#[test]
fn the_window_bounds_what_is_held() {
    let mut receiver = Receiver::new(1, WINDOW);
    receiver.link_up(0, 1);
    let last = WINDOW / MESSAGE_COST - 1;
    let mut held = 0;
    let refused = (0..=last).rev().find_map(|message| {
        let header = Header {
            length: 1 << 20,
            message,
            message_len: 1 << 20,
            fragment_len: 1 << 20,
            ..Header::new(Kind::Data)
        };
        let begun = receiver.begin(1, &header);
        if begun.is_ok() {
            held += header.range().len();
            receiver.data(0, 1, &header, true);
        }
        begun.err()
    });
    assert!(
        matches!(refused, Some(Broken::Window { .. })),
        "{refused:?}"
    );
    assert!(held <= WINDOW + u64::from(frame::FRAGMENT_MAX), "{held}");
}

/// Room that a message held is free again when it is cancelled, handed out, or its frame came to nothing.
#[test]
fn room_comes_back() {
    let mut receiver = Receiver::new(1, u64::from(frame::FRAGMENT_MAX));
    receiver.link_up(0, 1);
    let length = u64::from(frame::FRAGMENT_MAX);
    for message in 0..9 {
        let header = |kind| Header {
            length: length as u32,
            message,
            message_len: length,
            fragment_len: length as u32,
            ..Header::new(kind)
        };
        let data = header(Kind::Data);
        for _ in 0..3 {
            receiver.begin(1, &data).unwrap();
            assert_eq!(receiver.data(0, 1, &data, false), Arrival::Nothing);
        }
        receiver.begin(1, &data).unwrap();
        if message % 2 == 0 {
            assert_eq!(receiver.data(0, 1, &data, true), Arrival::Whole);
            receiver.deliver();
        } else {
            let cancel = header(Kind::Cancel);
            assert_eq!(receiver.whole(0, 1, &cancel), Ok(Arrival::Whole));
        }
    }
}

/// A long message cut into crumbs is refused; one part for each rail may be short.
#[test]
fn crumbs_are_refused() {
    let mut receiver = Receiver::new(1, 1 << 30);
    let header = |message_len| Header {
        length: 1,
        message_len,
        fragment_len: 1,
        ..Header::new(Kind::Data)
    };
    assert!(matches!(
        receiver.begin(1, &header(RAILS_MAX as u64 + 1)),
        Err(Broken::TooFine { .. })
    ));
    assert!(receiver.begin(1, &header(RAILS_MAX as u64)).is_ok());
}

/// The same news over and over is acknowledged once.
#[test]
fn repeated_cancels_take_no_memory() {
    let mut receiver = Receiver::new(1, WINDOW);
    receiver.link_up(0, 1);
    let cancel = Header {
        message: 1,
        ..Header::new(Kind::Cancel)
    };
    for _ in 0..100 {
        receiver.whole(0, 1, &cancel).unwrap();
    }
    assert_eq!(receiver.waiting_entries(0), 1);
}

/// The news that a message is cancelled comes too late when it is whole.
#[test]
fn whole_messages_are_not_cancelled() {
    let mut receiver = Receiver::new(1, WINDOW);
    let header = |kind| Header {
        length: 4,
        message_len: 4,
        fragment_len: 4,
        ..Header::new(kind)
    };
    receiver.begin(1, &header(Kind::Data)).unwrap();
    assert_eq!(
        receiver.data(0, 1, &header(Kind::Data), true),
        Arrival::Whole
    );
    assert_eq!(
        receiver.whole(0, 1, &header(Kind::Cancel)),
        Ok(Arrival::Nothing)
    );
    assert!(matches!(receiver.front(), Front::Whole { length: 4, .. }));
}
