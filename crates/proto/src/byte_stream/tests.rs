use std::collections::VecDeque;

use proptest::prelude::*;

use super::frame::{DATA_MAX, Header, Kind};
use super::*;

/// Both ends of a socket, whose messages arrive in order.
struct Pair {
    ends: [Streams; 2],
    /// On their way to each end, with the length of their payload.
    to: [VecDeque<(Header, u64)>; 2],
    /// Bytes unread at each end, of each stream, and whether it has ended.
    unread: [BTreeMap<u32, u64>; 2],
    ended: [Vec<u32>; 2],
}

impl Pair {
    fn new(window_max: u64) -> Self {
        Self {
            ends: [
                Streams::new(Side::Connecting, window_max),
                Streams::new(Side::Listening, window_max),
            ],
            to: Default::default(),
            unread: Default::default(),
            ended: Default::default(),
        }
    }

    fn tell(&mut self, from: usize, header: Option<Header>, length: u64) {
        self.to[1 - from].extend(header.map(|header| (header, length)));
    }

    fn open(&mut self, from: usize) -> u32 {
        let header = self.ends[from].open().unwrap();
        self.tell(from, Some(header), 0);
        header.stream
    }

    /// Sends as much of `length` as may be sent.
    fn send(&mut self, from: usize, stream: u32, length: u64) -> u64 {
        let Sendable::Bytes(most) = self.ends[from].sendable(stream) else {
            return 0;
        };
        let length = length.min(most).min(DATA_MAX as u64);
        if length > 0 {
            let header = self.ends[from].send(stream, length);
            self.tell(from, Some(header), length);
        }
        length
    }

    fn end(&mut self, from: usize, stream: u32) {
        let header = self.ends[from].end(stream);
        self.tell(from, header, 0);
    }

    fn release(&mut self, from: usize, stream: u32) {
        for header in self.ends[from].release(stream) {
            self.tell(from, header, 0);
        }
    }

    fn read(&mut self, at: usize, stream: u32, most: u64) -> u64 {
        let unread = self.unread[at].entry(stream).or_default();
        let count = most.min(*unread);
        *unread -= count;
        let drained = *unread == 0;
        let credit = self.ends[at].consume(stream, count, drained);
        self.tell(at, credit, 0);
        count
    }

    /// Delivers one message.
    fn step(&mut self, to: usize) -> Option<Event> {
        let (header, length) = self.to[to].pop_front()?;
        let event = self.ends[to].handle(header, length).unwrap();
        match event {
            Event::Data(stream) => *self.unread[to].entry(stream).or_default() += length,
            Event::Ended(stream) => self.ended[to].push(stream),
            Event::Refused(refusal) => self.tell(to, Some(refusal), 0),
            _ => {}
        }
        Some(event)
    }

    fn settle(&mut self) {
        while self.step(0).is_some() || self.step(1).is_some() {}
    }
}

/// Each way ends by itself, and a stream is forgotten when both have and no program holds it.
#[test]
fn each_way_ends_by_itself() {
    let mut pair = Pair::new(1 << 20);
    let stream = pair.open(0);
    assert_eq!(pair.send(0, stream, 100), 100);
    pair.end(0, stream);
    pair.settle();
    assert_eq!(pair.ended[1], [stream]);
    assert_eq!(pair.ends[0].sendable(stream), Sendable::Ended);
    assert_eq!(pair.read(1, stream, 1000), 100);
    assert_eq!(pair.send(1, stream, 50), 50, "the other way goes on");
    pair.end(1, stream);
    pair.settle();
    assert_eq!(pair.ended[0], [stream]);
    assert_eq!(pair.read(0, stream, 1000), 50);
    pair.release(0, stream);
    pair.release(1, stream);
    pair.settle();
    assert_eq!((pair.ends[0].count(), pair.ends[1].count()), (0, 0));
}

/// A stream that nobody reads stops its writer, and its other way goes on.
#[test]
fn a_reader_that_is_gone_stops_the_writer() {
    let mut pair = Pair::new(1 << 20);
    let stream = pair.open(0);
    pair.settle();
    assert_eq!(pair.send(0, stream, 1000), 1000);
    // The acceptor leaves while that is on its way.
    pair.release(1, stream);
    pair.settle();
    assert_eq!(pair.ends[0].sendable(stream), Sendable::Stopped);
    assert_eq!(pair.ended[0], [stream]);
    assert_eq!(pair.ends[1].count(), 0);
    pair.release(0, stream);
    pair.settle();
    assert_eq!(pair.ends[0].count(), 0);
}

/// A reset ends both ways at once, and what is late is nothing.
#[test]
fn resets_end_both_ways() {
    let mut pair = Pair::new(1 << 20);
    let stream = pair.open(0);
    pair.settle();
    assert_eq!(pair.send(0, stream, 10), 10);
    let reset = pair.ends[1].reset(stream, CODE_GIVEN_UP);
    assert_eq!(reset, Some(Header::new(Kind::Reset, stream, CODE_GIVEN_UP)));
    pair.tell(1, reset, 0);
    assert_eq!(pair.step(1), Some(Event::Nothing), "late data");
    assert_eq!(pair.step(0), Some(Event::Reset(stream)));
    assert_eq!(pair.ends[0].sendable(stream), Sendable::Reset);
    assert_eq!((pair.ends[0].count(), pair.ends[1].count()), (0, 0));
    assert_eq!(pair.ends[1].reset(stream, CODE_GIVEN_UP), None);
}

/// A writer waits when its credit is used up, until the reader reads; the window of a reader that is faster than the
/// path grows, that of a slow one never.
#[test]
fn windows_follow_the_reader() {
    let mut pair = Pair::new(1 << 20);
    let stream = pair.open(0);
    assert_eq!(pair.send(0, stream, 1 << 20), WINDOW_FIRST);
    assert_eq!(pair.send(0, stream, 1), 0, "no credit");
    pair.settle();
    // A part of it: nothing is drained.
    pair.read(1, stream, WINDOW_FIRST / 2);
    pair.settle();
    assert_eq!(pair.send(0, stream, 1 << 20), WINDOW_FIRST / 2);
    pair.settle();
    for window in [2, 4, 8, 16, 16].map(|factor| factor * WINDOW_FIRST) {
        pair.read(1, stream, u64::MAX);
        pair.settle();
        let mut sent = 0;
        while let more @ 1.. = pair.send(0, stream, u64::MAX) {
            sent += more;
        }
        assert_eq!(sent, window);
        pair.settle();
    }
}

/// Windows grow out of one budget, which streams that are over give back.
#[test]
fn windows_share_a_budget() {
    let mut pair = Pair::new(WINDOW_BUDGET + WINDOW_FIRST);
    let streams = [pair.open(0), pair.open(0)];
    let grow = |pair: &mut Pair, stream: u32| {
        let mut most = 0;
        for _ in 0..20 {
            let mut sent = 0;
            while let more @ 1.. = pair.send(0, stream, u64::MAX) {
                sent += more;
            }
            pair.settle();
            pair.read(1, stream, u64::MAX);
            pair.settle();
            most = sent.max(most);
        }
        most
    };
    let first = grow(&mut pair, streams[0]);
    let second = grow(&mut pair, streams[1]);
    assert!(first > WINDOW_BUDGET / 2, "{first}");
    assert!(first + second <= WINDOW_BUDGET + 2 * WINDOW_FIRST);
    pair.release(1, streams[0]);
    pair.release(0, streams[0]);
    pair.settle();
    assert!(grow(&mut pair, streams[1]) > second);
}

/// More streams than there may be are refused in the stream's own words, and the others go on.
#[test]
fn too_many_streams_are_refused() {
    let mut far = Streams::new(Side::Listening, 1 << 20);
    for number in 0..STREAMS_MAX as u32 {
        let open = Header::new(Kind::Open, 2 * number, 0);
        assert_eq!(far.handle(open, 0), Ok(Event::Opened(2 * number)));
    }
    let stream = 2 * STREAMS_MAX as u32;
    let refusal = Header::new(Kind::Reset, stream, CODE_TOO_MANY);
    let open = Header::new(Kind::Open, stream, 0);
    assert_eq!(far.handle(open, 0), Ok(Event::Refused(refusal)));
    assert_eq!(far.open(), None);
    let data = Header::new(Kind::Data, stream, 0);
    assert_eq!(far.handle(data, 1), Ok(Event::Nothing), "late data of it");
}

/// A peer that breaks the rules is found out, whichever it breaks.
#[test]
fn broken_peers_are_found_out() {
    let opened = || {
        let mut far = Streams::new(Side::Listening, 1 << 20);
        far.handle(Header::new(Kind::Open, 0, 0), 0).unwrap();
        far
    };
    let data = |offset| Header::new(Kind::Data, 0, offset);
    let end = |length| Header::new(Kind::End, 0, length);
    for stream in [1, 4] {
        let open = Header::new(Kind::Open, stream, 0);
        assert_eq!(opened().handle(open, 0), Err(Broken::Number { stream }));
    }
    let unopened = Header::new(Kind::Data, 2, 0);
    assert_eq!(
        opened().handle(unopened, 1),
        Err(Broken::Unopened { stream: 2 })
    );
    assert!(matches!(
        opened().handle(data(1), 1),
        Err(Broken::Offset { expected: 0, .. })
    ));
    assert_eq!(
        opened().handle(data(0), 0),
        Err(Broken::Empty { stream: 0 })
    );
    assert!(matches!(
        opened().handle(data(0), WINDOW_FIRST + 1),
        Err(Broken::Credit { .. })
    ));
    assert!(matches!(
        opened().handle(end(1), 0),
        Err(Broken::Offset { .. })
    ));
    let mut ended = opened();
    assert_eq!(ended.handle(end(0), 0), Ok(Event::Ended(0)));
    for late in [(data(0), 1), (end(0), 0)] {
        assert_eq!(
            ended.handle(late.0, late.1),
            Err(Broken::AfterEnd { stream: 0 })
        );
    }
}

#[derive(Clone, Debug)]
enum Deed {
    Open(usize),
    Send(usize, usize, u64),
    Read(usize, usize, u64),
    End(usize, usize),
    Release(usize, usize),
    Step(usize),
}

fn deed() -> impl Strategy<Value = Deed> {
    let end = || 0..2_usize;
    let length = || prop_oneof![1..100_u64, 1..600_000_u64];
    prop_oneof![
        1 => end().prop_map(Deed::Open),
        4 => (end(), 0..6_usize, length()).prop_map(|(e, s, l)| Deed::Send(e, s, l)),
        4 => (end(), 0..6_usize, length()).prop_map(|(e, s, l)| Deed::Read(e, s, l)),
        1 => (end(), 0..6_usize).prop_map(|(e, s)| Deed::End(e, s)),
        1 => (end(), 0..6_usize).prop_map(|(e, s)| Deed::Release(e, s)),
        6 => end().prop_map(Deed::Step),
    ]
}

proptest! {
    /// Whatever programs do in whatever order: no end breaks the rules of the other, what is unread stays within the
    /// window, every byte sent to a reader that stays is read, and at the end nothing is left.
    #[test]
    fn any_order_of_deeds_is_sound(deeds in proptest::collection::vec(deed(), 1..200)) {
        const MOST: u64 = 256 << 10;
        let mut pair = Pair::new(MOST);
        let mut streams: Vec<u32> = Vec::new();
        let mut sent = [BTreeMap::<u32, u64>::new(), BTreeMap::new()];
        let mut read = [BTreeMap::<u32, u64>::new(), BTreeMap::new()];
        let mut released = [Vec::<u32>::new(), Vec::new()];
        for deed in deeds {
            let pick = |at: usize| streams.get(at % streams.len().max(1)).copied();
            match deed {
                Deed::Open(end) if streams.len() < 6 => {
                    let stream = pair.open(end);
                    streams.push(stream);
                }
                Deed::Open(_) => {}
                Deed::Send(end, at, length) => if let Some(stream) = pick(at).filter(|s| !released[end].contains(s)) {
                    let count = pair.send(end, stream, length);
                    *sent[end].entry(stream).or_default() += count;
                },
                Deed::Read(end, at, length) => if let Some(stream) = pick(at).filter(|s| !released[end].contains(s)) {
                    let count = pair.read(end, stream, length);
                    *read[end].entry(stream).or_default() += count;
                },
                Deed::End(end, at) => if let Some(stream) = pick(at) {
                    pair.end(end, stream);
                },
                Deed::Release(end, at) => if let Some(stream) = pick(at).filter(|s| !released[end].contains(s)) {
                    // A program holds only what has arrived.
                    let is_own = (stream % 2) as usize == end;
                    if is_own || pair.ends[end].was_opened(stream) {
                        pair.release(end, stream);
                        released[end].push(stream);
                    }
                },
                Deed::Step(end) => drop(pair.step(end)),
            }
            for end in 0..2 {
                for unread in pair.unread[end].values() {
                    prop_assert!(*unread <= MOST);
                }
            }
        }
        pair.settle();
        for end in 0..2 {
            for stream in &streams {
                let kept = !released[1 - end].contains(stream);
                if kept {
                    let count = pair.read(1 - end, *stream, u64::MAX);
                    *read[1 - end].entry(*stream).or_default() += count;
                }
            }
        }
        pair.settle();
        for end in 0..2 {
            for stream in &streams {
                let (out, back) = (sent[end].get(stream), read[1 - end].get(stream));
                if !released[1 - end].contains(stream) {
                    prop_assert_eq!(out.copied().unwrap_or(0), back.copied().unwrap_or(0));
                }
                pair.end(end, *stream);
            }
        }
        pair.settle();
        for end in 0..2 {
            for stream in &streams {
                pair.release(end, *stream);
            }
        }
        pair.settle();
        prop_assert_eq!((pair.ends[0].count(), pair.ends[1].count()), (0, 0));
        prop_assert_eq!((pair.ends[0].budget, pair.ends[1].budget), (WINDOW_BUDGET, WINDOW_BUDGET));
    }
}
