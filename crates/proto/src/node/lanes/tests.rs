//! The table of phases and inputs of a stream, and what becomes of lanes that fail.

use ropewalk_model::{CHUNK_LEN, RangeSet};

use super::*;
use crate::control::{Plan, Revision, Run};
use crate::node::fetch::Receiving;
use crate::node::tests::{held, unit_at};
use crate::node::{Duties, End, Wish};

const START: Instant = Instant::ZERO;
const MS: Nanos = Nanos::from_millis(1);
const SECOND: Nanos = Nanos::from_secs(1);

fn run(first: u64, units: u64, sender: u32) -> Run {
    Run {
        start: first * CHUNK_LEN,
        length: units * CHUNK_LEN,
        sender,
        ..Run::default()
    }
}

const DIRECT: Link = Link {
    way: Way::Direct,
    rail: 0,
    trip: Nanos::ZERO,
    shares_processors: false,
};

const FURTHER: Link = Link { rail: 1, ..DIRECT };

const THROUGH: Link = Link {
    way: Way::Through,
    rail: 2,
    trip: Nanos::ZERO,
    shares_processors: false,
};

/// A node that fetches from one peer, and what its driver knows.
struct Bench {
    node: Node,
    now: Instant,
    started: Vec<StreamId>,
    granted: BTreeMap<StreamId, Vec<(u32, Range)>>,
    received: RangeSet,
    // What the master was asked for.
    needs: usize,
}

impl Bench {
    fn new(units: u64, streams: u32) -> Self {
        Self::wishing(
            units,
            &Wish {
                given: Some(streams),
                ..Wish::default()
            },
        )
    }

    fn wishing(units: u64, wish: &Wish) -> Self {
        let fetch = Receiving::new(4 << 20, 1, START);
        let streams = Streams::new(wish);
        let plan = Plan {
            peers: vec![Peer {
                node: 1,
                name: "a".into(),
                ..Peer::default()
            }],
            runs: vec![run(0, units, 1)],
            commit: true,
            ..Plan::default()
        };
        let mut node = Node::new(fetch, streams, &plan, Duties::default(), START);
        node.handle_prepared(&plan, START, &unit_at);
        let mut bench = Self {
            node,
            now: START,
            started: Vec::new(),
            granted: BTreeMap::new(),
            received: RangeSet::new(),
            needs: 0,
        };
        bench.drain();
        bench
    }

    fn drain(&mut self) {
        while let Some(event) = self.node.poll_event(self.now) {
            match event {
                Event::Start(id) => self.started.push(id),
                Event::Need(..) => self.needs += 1,
                _ => {}
            }
        }
    }

    fn step(&mut self, id: StreamId) -> Step {
        let step = self.node.next_step(id, self.now, &unit_at);
        if let Step::Grant(grants) = &step {
            self.granted.entry(id).or_default().extend(grants);
        }
        self.drain();
        step
    }

    /// Goes on until the stream does not wait.
    fn step_later(&mut self, id: StreamId) -> Step {
        loop {
            match self.step(id) {
                Step::Wait(Some(until)) if until > self.now => self.now = until,
                step => return step,
            }
        }
    }

    fn found(&mut self, id: StreamId, link: Link) -> StreamId {
        assert_eq!(self.step_later(id), Step::Find);
        let found = self.node.handle_found(id, link, self.now, &unit_at);
        self.drain();
        found.expect("the stream goes on")
    }

    fn open(&mut self, id: StreamId) {
        assert_eq!(self.step_later(id), Step::Open);
        self.node.handle_opened(id, self.now);
    }

    /// The first unit that the stream was asked for is received.
    fn receive(&mut self, id: StreamId) -> bool {
        self.step(id);
        let granted = self.granted.entry(id).or_default();
        if granted.is_empty() {
            return false;
        }
        let (grant, range) = granted.remove(0);
        let arrival = self.node.handle_unit(id, grant, None, self.now);
        if arrival.is_first {
            assert!(self.received.clipped(range).is_empty());
            self.received.insert(range);
        }
        self.drain();
        true
    }

    fn close(&mut self, id: StreamId, cause: Break) {
        self.granted.remove(&id);
        self.node.handle_closed(id, cause, self.now);
        self.drain();
    }

    fn lanes(&self) -> usize {
        self.node.fetch().pairs().len()
    }

    fn broken(&mut self, id: StreamId) {
        self.close(id, Break::Broken("reset".into()));
    }

    /// All attempts to open it again fail.
    fn fails(&mut self, id: StreamId) {
        for _ in RETRY {
            assert_eq!(self.step_later(id), Step::Open);
            self.node.handle_not_opened(id, "refused", self.now);
            self.drain();
        }
    }

    fn further_rail(&mut self, link: Link) -> StreamId {
        let rail = self.node.handle_rail(LaneId(0), link, self.now).unwrap();
        self.drain();
        let id = *self.started.last().unwrap();
        assert_eq!(id.lane, rail);
        id
    }
}

const RETRY: std::ops::Range<usize> = 0..crate::node::RETRY_PAUSES.len();

const FIRST: StreamId = StreamId {
    lane: LaneId(0),
    number: 0,
};

/// What can happen to a stream.
#[derive(Clone, Copy, Debug)]
enum Input {
    Asked,
    AskedLater,
    Found,
    NotFound,
    Opened,
    NotOpened,
    Idle,
    Closed,
    Broken,
    RailLost,
    Blocked,
    Answers,
    NoAnswer,
    FewerWanted,
    PeerGone,
    Finished,
}

use Input::*;

const INPUTS: [Input; 16] = [
    Asked,
    AskedLater,
    Found,
    NotFound,
    Opened,
    NotOpened,
    Idle,
    Closed,
    Broken,
    RailLost,
    Blocked,
    Answers,
    NoAnswer,
    FewerWanted,
    PeerGone,
    Finished,
];

/// The shortest way to each phase of the first stream.
fn bench_in(phase: Phase) -> Bench {
    let mut bench = Bench::new(40, 2);
    match phase {
        Phase::Finding => {}
        Phase::FindingLater => {
            bench.step(FIRST);
            bench.node.handle_not_found(FIRST, "refused", START);
        }
        Phase::Opening | Phase::OpeningLater | Phase::Open | Phase::Leaving | Phase::Ended => {
            bench.found(FIRST, DIRECT);
        }
        Phase::Moving | Phase::Down | Phase::Probing => {
            let link = match phase {
                Phase::Moving => THROUGH,
                _ => DIRECT,
            };
            bench.node.set_streams(Some(1), START);
            bench.found(FIRST, link);
            bench.open(FIRST);
            let rail = bench.further_rail(FURTHER);
            bench.open(rail);
        }
    }
    match phase {
        Phase::OpeningLater => {
            bench.step(FIRST);
            bench.node.handle_not_opened(FIRST, "refused", START);
        }
        Phase::Open => {
            bench.open(FIRST);
            bench.step(FIRST);
        }
        Phase::Leaving => {
            bench.open(FIRST);
            bench.open(StreamId {
                lane: LaneId(0),
                number: 1,
            });
            bench.step(FIRST);
            bench.node.set_streams(Some(1), START);
            bench.step(FIRST);
        }
        Phase::Moving => {
            bench.step(FIRST);
            let rail = *bench.started.last().unwrap();
            bench.receive(rail);
            bench.step(FIRST);
        }
        Phase::Down | Phase::Probing => {
            bench.close(FIRST, Break::RailLost("no link".into()));
        }
        Phase::Ended => {
            bench.open(FIRST);
            bench.close(FIRST, Break::Asked);
        }
        _ => {}
    }
    if phase == Phase::Probing {
        bench.step_later(FIRST);
    }
    bench
}

fn apply(bench: &mut Bench, input: Input) -> Phase {
    let (id, now) = (FIRST, bench.now);
    match input {
        Asked => drop(bench.step(id)),
        AskedLater => {
            bench.now += MS * 900;
            bench.step(id);
        }
        Found => drop(bench.node.handle_found(id, DIRECT, now, &unit_at)),
        NotFound => bench.node.handle_not_found(id, "refused", now),
        Opened => bench.node.handle_opened(id, now),
        NotOpened => bench.node.handle_not_opened(id, "refused", now),
        Idle => bench.node.handle_idle(id, 7, now),
        Closed => bench.close(id, Break::Asked),
        Broken => bench.broken(id),
        RailLost => bench.close(id, Break::RailLost("no link".into())),
        Blocked => bench.close(id, Break::Blocked("datagrams".into())),
        Answers => bench.node.handle_probed(id, true, now),
        NoAnswer => bench.node.handle_probed(id, false, now),
        FewerWanted => {
            bench.node.set_streams(Some(1), now);
            bench.step(id);
        }
        PeerGone => {
            bench.node.handle_peer_gone(id.lane, "killed");
            if bench.step(id) == Step::Close {
                bench.close(id, Break::Asked);
            }
        }
        Finished => {
            bench.node.handle_end(End::default());
            bench.step(id);
        }
    }
    bench.node.phase(id)
}

/// Every input in every phase; those that change nothing are left out of the text.
#[test]
fn table_of_phases_and_inputs() {
    let mut table = String::new();
    for phase in Phase::ALL {
        assert_eq!(bench_in(phase).node.phase(FIRST), phase);
        for input in INPUTS {
            let next = apply(&mut bench_in(phase), input);
            if next != phase {
                table += &format!("{phase:?} {input:?} -> {next:?}\n");
            }
        }
    }
    assert_eq!(table, TABLE, "\n{table}");
}

const TABLE: &str = "\
Finding Found -> Opening
Finding NotFound -> FindingLater
Finding PeerGone -> Ended
FindingLater AskedLater -> Finding
Opening Opened -> Open
Opening NotOpened -> OpeningLater
Opening FewerWanted -> Ended
Opening PeerGone -> Ended
OpeningLater AskedLater -> Opening
Open Closed -> Ended
Open Broken -> OpeningLater
Open RailLost -> OpeningLater
Open Blocked -> Ended
Open PeerGone -> Ended
Leaving Closed -> Ended
Leaving Broken -> Ended
Leaving RailLost -> Ended
Leaving Blocked -> Ended
Leaving PeerGone -> Ended
Moving Closed -> Ended
Moving Broken -> Ended
Moving RailLost -> Ended
Moving Blocked -> Ended
Moving PeerGone -> Ended
Down AskedLater -> Probing
Down PeerGone -> Ended
Probing Answers -> Opening
Probing NoAnswer -> Down
";

/// The only way to a peer breaks after it has brought units: it, or another one, is found again, and the rest comes over
/// that. The master is asked for nobody else.
#[test]
fn the_only_way_is_found_again_when_it_has_worked() {
    let mut bench = Bench::new(40, 1);
    let mut id = bench.found(FIRST, DIRECT);
    for _ in 0..3 {
        bench.open(id);
        for _ in 0..10 {
            assert!(bench.receive(id));
        }
        bench.broken(id);
        bench.fails(id);
        assert_eq!(bench.node.phase(id), Phase::Finding);
        id = bench.found(id, THROUGH);
    }
    bench.open(id);
    while bench.receive(id) {}
    assert!(bench.node.fetch().is_finished());
    assert_eq!(
        bench.received,
        RangeSet::from(Range::new(0, 40 * CHUNK_LEN))
    );
    assert_eq!(bench.needs, 0);
    assert_eq!(bench.node.fetch().ledger().duplicate_bytes(), 0);
}

/// Data went through the command's host first, and then directly. When the direct way dies for good, it goes through the
/// command's host again.
#[test]
fn the_tunnel_is_opened_again_when_the_direct_way_dies() {
    let mut bench = Bench::new(40, 1);
    let tunnel = bench.found(FIRST, THROUGH);
    bench.open(tunnel);
    assert!(bench.receive(tunnel));
    let lane = bench
        .node
        .handle_better_way(LaneId(0), DIRECT, START)
        .unwrap();
    assert_eq!(
        bench.node.handle_better_way(LaneId(0), DIRECT, START),
        None,
        "once"
    );
    bench.drain();
    let direct = StreamId { lane, number: 0 };
    bench.open(direct);
    assert!(bench.receive(direct));
    // What the tunnel was asked for comes, then it closes.
    while bench.receive(tunnel) {}
    assert_eq!(bench.step(tunnel), Step::Close);
    bench.close(tunnel, Break::Asked);
    assert_eq!(bench.step(tunnel), Step::End);
    for _ in 0..5 {
        assert!(bench.receive(direct));
    }
    bench.broken(direct);
    bench.fails(direct);
    let again = bench.found(direct, THROUGH);
    bench.open(again);
    while bench.receive(again) {}
    assert!(bench.node.fetch().is_finished());
    assert_eq!(bench.needs, 0);
    // And a better way may be found again.
    assert!(
        bench
            .node
            .handle_better_way(again.lane, DIRECT, START)
            .is_some()
    );
}

/// The direct way fails in the moment in which the tunnel has brought the last of what it was asked for: it goes on.
#[test]
fn a_tunnel_that_was_being_left_goes_on() {
    let mut bench = bench_in(Phase::Moving);
    let direct = *bench.started.last().unwrap();
    while bench.receive(FIRST) {}
    assert_eq!(bench.step(FIRST), Step::Close);
    bench.close(direct, Break::RailLost("no link".into()));
    bench.close(FIRST, Break::Asked);
    assert_eq!(bench.node.phase(FIRST), Phase::Opening);
    bench.open(FIRST);
    while bench.receive(FIRST) {}
    assert!(bench.node.fetch().is_finished());
    assert_eq!(bench.needs, 0);
}

/// A peer to which no way has ever brought anything is given up, and the master asked for others: whether it does not
/// connect, or does not stay.
#[test]
fn a_way_that_never_worked_gives_the_peer_up() {
    let mut bench = Bench::new(4, 1);
    bench.found(FIRST, DIRECT);
    bench.fails(FIRST);
    assert_eq!(bench.step_later(FIRST), Step::Open);
    bench.node.handle_not_opened(FIRST, "refused", bench.now);
    bench.drain();
    assert_eq!((bench.needs, bench.step(FIRST)), (1, Step::End));
    let mut bench = Bench::new(4, 1);
    for _ in 0..4 {
        assert_eq!(bench.step_later(FIRST), Step::Find);
        bench.node.handle_not_found(FIRST, "refused", bench.now);
    }
    bench.drain();
    assert_eq!((bench.needs, bench.step(FIRST)), (1, Step::End));
    // Who has waited for answers does not do so again.
    let mut bench = Bench::new(4, 1);
    assert_eq!(bench.step(FIRST), Step::Find);
    bench
        .node
        .handle_not_found(FIRST, "silent", START + SECOND * 4);
    bench.drain();
    assert_eq!((bench.needs, bench.step(FIRST)), (1, Step::End));
}

/// A peer whose way breaks when all was received is not looked for before the master brings more.
#[test]
fn nothing_is_looked_for_without_need() {
    let mut bench = Bench::new(4, 1);
    bench.found(FIRST, DIRECT);
    bench.open(FIRST);
    while bench.receive(FIRST) {}
    bench.broken(FIRST);
    bench.fails(FIRST);
    assert_eq!(bench.step(FIRST), Step::Wait(None));
    let more = Revision {
        number: 2,
        runs: vec![run(4, 4, 1)],
        ..Revision::default()
    };
    bench.node.handle_revision(&more, bench.now);
    let id = bench.found(FIRST, DIRECT);
    bench.open(id);
    while bench.receive(id) {}
    assert_eq!(bench.received.len_bytes(), 8 * CHUNK_LEN);
    assert_eq!(bench.needs, 0);
}

/// A rail that fails while another one works is tried again after pauses that grow as long as it fails soon; its work is
/// done meanwhile, and then it is a lane again.
#[test]
fn rails_that_fail_are_tried_again() {
    let mut bench = Bench::new(400, 1);
    bench.found(FIRST, DIRECT);
    bench.open(FIRST);
    let other = bench.further_rail(FURTHER);
    bench.open(other);
    let id = FIRST;
    let mut pauses = Vec::new();
    for _ in 0..4 {
        assert!(bench.receive(other) && bench.receive(id));
        bench.close(id, Break::RailLost("no link".into()));
        let failed_at = bench.now;
        assert_eq!(bench.step_later(id), Step::Probe);
        pauses.push(bench.now.since(failed_at));
        bench.node.handle_probed(id, true, bench.now);
        bench.drain();
        bench.open(id);
    }
    assert_eq!(pauses, [100, 200, 400, 800].map(Nanos::from_millis));
    assert_eq!(bench.lanes(), 2, "its own again each time");
    bench.close(id, Break::RailLost("no link".into()));
    assert_eq!(bench.step_later(id), Step::Probe);
    bench.node.handle_probed(id, false, bench.now);
    assert!(matches!(bench.step(id), Step::Wait(Some(_))));
    assert!(bench.node.handle_links_changed(&[], bench.now).is_empty());
    assert_eq!(bench.step(id), Step::Probe, "links have changed");
    assert_eq!(bench.needs, 0);
}

/// For an hour a rail answers whenever it is tried, and what is opened over it fails: it keeps its lane, however it fails, and is
/// not tried again where it connects and does not carry.
#[test]
fn rails_keep_their_lanes() {
    const HOUR: Nanos = Nanos(3600 * SECOND.0);
    let causes = [
        Break::Blocked("no datagram was received".into()),
        Break::RailLost("no link".into()),
        Break::Broken("reset".into()),
    ];
    for (cause, brings) in causes
        .into_iter()
        .flat_map(|cause| [false, true].map(|brings| (cause.clone(), brings)))
    {
        let mut bench = Bench::new(1 << 20, 1);
        bench.found(FIRST, DIRECT);
        bench.open(FIRST);
        bench.step(FIRST);
        bench.further_rail(FURTHER);
        let mut probes = 0;
        while bench.now < START + HOUR {
            bench.now += Nanos::from_millis(100);
            for id in bench.started.clone().into_iter().skip(1) {
                match bench.step(id) {
                    Step::Open => bench.node.handle_opened(id, bench.now),
                    Step::Probe => {
                        probes += 1;
                        bench.node.handle_probed(id, true, bench.now);
                        bench.drain();
                    }
                    Step::Grant(_) => {
                        bench.now += 3 * SECOND;
                        if brings {
                            bench.receive(id);
                        }
                        bench.close(id, cause.clone());
                    }
                    _ => {}
                }
            }
        }
        let what = format!("{cause:?}, {brings}: {probes} probes");
        assert_eq!(bench.lanes(), 2, "{what}");
        assert_eq!(bench.needs, 0, "{what}");
        match (cause, brings) {
            (Break::Blocked(_), false) => assert_eq!(probes, 0, "{what}"),
            // Each stream brings something: it is opened again and again, which needs no probe.
            (Break::Blocked(_) | Break::Broken(_), true) => assert_eq!(probes, 0, "{what}"),
            _ => assert!(probes > 50, "{what}"),
        }
    }
}

/// For hours all ways break, one after the other, when they have brought something: whatever is found again has the lane that
/// it had.
#[test]
fn ways_keep_their_lanes() {
    let mut bench = Bench::new(1 << 20, 1);
    let mut id = bench.found(FIRST, DIRECT);
    for link in [FURTHER, THROUGH, DIRECT].into_iter().cycle().take(3000) {
        bench.open(id);
        assert!(bench.receive(id));
        bench.broken(id);
        bench.fails(id);
        id = bench.found(id, link);
    }
    assert_eq!((bench.lanes(), bench.needs), (3, 0));
}

/// A lane that is given up, by the master's word or the driver's, is closed, stream by stream, before what it carried is open
/// again; then the master is asked for all of it at once.
#[test]
fn lanes_that_are_given_up_are_closed_first() {
    for by_the_master in [false, true] {
        let mut bench = Bench::new(40, 2);
        bench.found(FIRST, DIRECT);
        let ids: Vec<StreamId> = (0..2)
            .map(|number| StreamId {
                lane: LaneId(0),
                number,
            })
            .collect();
        for id in &ids {
            bench.open(*id);
            assert!(matches!(bench.step(*id), Step::Grant(_)));
        }
        match by_the_master {
            true => {
                let revision = Revision {
                    number: 2,
                    lost: vec![1],
                    ..Revision::default()
                };
                bench.node.handle_revision(&revision, START);
            }
            false => bench.node.handle_peer_gone(LaneId(0), "killed"),
        }
        let carried: u64 = ids
            .iter()
            .flat_map(|id| &bench.granted[id])
            .map(|(_, range)| range.len())
            .sum();
        for id in ids {
            let ledger = bench.node.fetch().ledger();
            assert!(ledger.in_transit_bytes(LaneId(0)) > 0);
            let left = ledger.ready_bytes(LaneId(0)) + ledger.in_transit_bytes(LaneId(0));
            assert_eq!(ledger.orphans().len_bytes() + left, 40 * CHUNK_LEN);
            assert_eq!((bench.needs, bench.step(id)), (0, Step::Close));
            bench.close(id, Break::Asked);
            assert_eq!(bench.step(id), Step::End);
        }
        assert!(carried > 0 && carried < 40 * CHUNK_LEN);
        let ledger = bench.node.fetch().ledger();
        assert_eq!(ledger.orphans().len_bytes(), 40 * CHUNK_LEN);
        assert_eq!(bench.needs, 1);
    }
}

/// A rail that owes units and brings nothing is given up while another one moves; silence of all is waited for.
#[test]
fn silence_is_judged_by_the_other_rails() {
    for other_moves in [false, true] {
        let mut bench = Bench::new(40, 1);
        bench.found(FIRST, DIRECT);
        bench.open(FIRST);
        let other = bench.further_rail(FURTHER);
        bench.open(other);
        assert!(matches!(bench.step(FIRST), Step::Grant(_)));
        bench.node.handle_idle(FIRST, 100, bench.now);
        for _ in 0..8 {
            bench.now += MS * 200;
            if other_moves {
                bench.receive(other);
            }
            bench.node.handle_idle(FIRST, 100, bench.now);
        }
        let step = bench.step(FIRST);
        assert_eq!(step == Step::Close, other_moves, "{step:?}");
        if other_moves {
            bench.close(FIRST, Break::Asked);
            assert_eq!(bench.node.phase(FIRST), Phase::Down);
        }
    }
}

/// A rail that this host has no address for any more is dropped while another one is there and open, and kept where all are
/// gone.
#[test]
fn the_last_rails_are_kept() {
    let mut bench = Bench::new(40, 1);
    bench.found(FIRST, DIRECT);
    bench.open(FIRST);
    let other = bench.further_rail(FURTHER);
    let stopped = |bench: &mut Bench, gone: &[LaneId]| bench.node.handle_links_changed(gone, START);
    let none: [LaneId; 0] = [];
    assert_eq!(
        stopped(&mut bench, &[LaneId(0)]),
        none,
        "the other is not open yet"
    );
    bench.open(other);
    assert_eq!(stopped(&mut bench, &[]), none);
    assert_eq!(stopped(&mut bench, &[LaneId(1)]), [LaneId(1)]);
    assert_eq!(stopped(&mut bench, &[LaneId(0)]), [LaneId(0)]);
    assert_eq!(stopped(&mut bench, &[0, 1].map(LaneId)), none);
}

/// Streams are opened and closed as many as are wanted; those that are too many bring what they were asked for.
#[test]
fn streams_follow_what_is_wanted() {
    let mut bench = Bench::new(400, 2);
    bench.found(FIRST, DIRECT);
    let ids: Vec<StreamId> = (0..2)
        .map(|number| StreamId {
            lane: LaneId(0),
            number,
        })
        .collect();
    assert_eq!(bench.started, ids);
    for id in &ids {
        bench.open(*id);
        assert!(matches!(bench.step(*id), Step::Grant(_)));
    }
    bench.node.set_streams(Some(1), START);
    assert!(matches!(bench.step(ids[0]), Step::Receive(_)));
    assert!(matches!(bench.step(ids[1]), Step::Receive(_)));
    let phases = ids.iter().map(|id| bench.node.phase(*id));
    let phases: Vec<Phase> = phases.collect();
    assert_eq!(phases, [Phase::Leaving, Phase::Open]);
    while bench.receive(ids[0]) {}
    assert_eq!(bench.step(ids[0]), Step::Close);
    bench.close(ids[0], Break::Asked);
    assert_eq!(bench.step(ids[0]), Step::End);
    bench.node.set_streams(Some(4), START);
    bench.drain();
    let new: Vec<u32> = bench.started[2..].iter().map(|id| id.number).collect();
    assert_eq!(new, [2, 3, 4], "no number is given twice");
    // One that only tries to connect leaves by itself.
    bench.node.set_streams(Some(1), START);
    assert_eq!(bench.step(bench.started[4]), Step::End);
}

/// One of few streams that is dead holds up nothing: what it owes is asked for over the others once it is late, and fills no window.
#[test]
fn what_a_dead_stream_owes_is_asked_for_over_others() {
    let mut bench = Bench::new(40, 4);
    bench.found(FIRST, DIRECT);
    for id in bench.started.clone() {
        bench.open(id);
        bench.step(id);
    }
    assert!(!bench.granted[&FIRST].is_empty());
    let others = bench.started[1..].to_vec();
    for id in others.iter().cycle().take(600) {
        bench.now += MS * 100;
        bench.receive(*id);
    }
    assert!(bench.node.fetch().is_finished());
    assert_eq!(bench.received.len_bytes(), 40 * CHUNK_LEN);
}

/// A stream that ended while others of its lane went on is opened again, later each time.
#[test]
fn streams_that_end_are_opened_again() {
    let mut bench = Bench::new(4000, 2);
    bench.found(FIRST, DIRECT);
    for id in bench.started.clone() {
        bench.open(id);
        assert!(matches!(bench.step(id), Step::Grant(_)));
    }
    for pause in [5, 10, 20] {
        let last = *bench.started.last().unwrap();
        bench.broken(last);
        bench.fails(last);
        assert_eq!(bench.node.phase(last), Phase::Ended);
        let (before, ended) = (bench.started.len(), bench.now);
        bench.now = ended + Nanos(pause * SECOND.0 - 1);
        bench.step(FIRST);
        assert_eq!(bench.started.len(), before, "{pause} s");
        bench.now = ended + Nanos(pause * SECOND.0);
        bench.step(FIRST);
        assert_eq!(bench.started.len(), before + 1, "{pause} s");
        bench.open(*bench.started.last().unwrap());
    }
}

/// One of two copies of a unit is cancelled when the other one was received; what the peer gives back is over.
#[test]
fn late_copies_are_cancelled() {
    let mut bench = Bench::new(1, 1);
    bench.found(FIRST, DIRECT);
    bench.open(FIRST);
    assert!(matches!(bench.step(FIRST), Step::Grant(_)));
    let other = bench.further_rail(FURTHER);
    bench.open(other);
    bench.now = START + SECOND * 60;
    assert!(matches!(bench.step(other), Step::Grant(_)), "a second copy");
    assert!(bench.receive(other));
    let (grant, _) = bench.granted[&FIRST][0];
    assert_eq!(bench.step(FIRST), Step::Cancel(vec![grant]));
    assert!(matches!(bench.step(FIRST), Step::Receive(_)));
    bench.node.handle_cancelled(FIRST, grant, bench.now);
    assert_eq!(bench.step(FIRST), Step::Wait(None));
    assert!(bench.node.fetch().is_finished());
}

/// Where datagrams are blocked another attempt fails, too; what has worked is tried again.
#[test]
fn what_is_blocked_is_not_tried_again() {
    for works in [false, true] {
        let mut bench = Bench::new(40, 1);
        bench.found(FIRST, DIRECT);
        bench.open(FIRST);
        if works {
            bench.receive(FIRST);
        }
        bench.close(FIRST, Break::Blocked("no datagram was received".into()));
        assert_eq!(bench.needs, usize::from(!works));
        let phase = bench.node.phase(FIRST);
        assert_eq!(phase == Phase::OpeningLater, works, "{phase:?}");
    }
}

/// A number of streams that is not tuned is that of the fetch, too.
#[test]
fn windows_know_the_number_of_streams() {
    let mut bench = Bench::new(400, 6);
    let windows: Vec<u64> = [6, 12]
        .map(|count| {
            bench.node.set_streams(Some(count), START);
            bench.node.fetch().window(LaneId(0))
        })
        .into();
    assert!(windows[0] < windows[1], "{windows:?}");
}

/// A fellow receiver that is to hand these runs on: a lane to it, with an open stream.
fn to_relay(bench: &mut Bench, runs: Vec<Run>) -> StreamId {
    let holder = Peer {
        node: 2,
        name: "b".into(),
        relays: true,
        ..Peer::default()
    };
    let revision = Revision {
        peers: vec![holder],
        runs,
        ..Revision::default()
    };
    bench.node.handle_revision(&revision, START);
    bench.drain();
    let leads_there = |id: &StreamId| bench.node.peer(id.lane).node == 2;
    let id = *bench
        .started
        .iter()
        .find(|id| leads_there(id))
        .expect("a lane to it");
    let id = bench.found(id, DIRECT);
    bench.open(id);
    id
}

/// A peer whose announcements never end is left out, however often its stream is asked; as many as waited for minutes are not too many.
#[test]
fn floods_of_announcements_end() {
    let mut bench = Bench::new(4, 1);
    let relayed = Run {
        relay: Some(2),
        ..run(10, 4, 1)
    };
    let id = to_relay(&mut bench, vec![relayed]);
    let announce = |bench: &mut Bench, times: u64| {
        for at in 0..times {
            let some = Range::new(at, at + 1);
            bench
                .node
                .handle_announced(id, &held(&[some]), bench.now, &unit_at);
        }
        bench.drain();
        bench.node.fetch().listens(id.lane)
    };
    assert!(announce(&mut bench, 600));
    assert!(!announce(&mut bench, 2_000));
}

/// A receiver that has all goes on reading what fellow receivers announce, so that they can send it: it may be given more work. A
/// connection to one of them that breaks then is opened again with that work only.
#[test]
fn one_that_has_all_reads_announcements() {
    let mut bench = Bench::new(4, 1);
    let id = to_relay(&mut bench, Vec::new());
    bench.found(FIRST, DIRECT);
    bench.open(FIRST);
    while bench.receive(FIRST) {}
    assert!(bench.node.fetch().is_finished());
    assert!(matches!(bench.step(id), Step::Receive(_)));
    assert!(
        matches!(bench.step(FIRST), Step::Wait(_)),
        "a sender says nothing by itself"
    );
    let more = Range::new(20 * CHUNK_LEN, 24 * CHUNK_LEN);
    bench
        .node
        .handle_announced(id, &held(&[more]), bench.now, &unit_at);
    assert!(
        bench
            .node
            .fetch()
            .ledger()
            .has(id.lane)
            .contains_range(more)
    );
    bench.close(id, Break::Broken("closed".into()));
    bench.now += SECOND * 60;
    assert_eq!(bench.node.phase(id), Phase::OpeningLater);
    assert!(matches!(bench.step(id), Step::Wait(_)));
    let revision = Revision {
        runs: vec![run(20, 4, 1)],
        ..Revision::default()
    };
    bench.node.handle_revision(&revision, bench.now);
    bench.drain();
    assert!(matches!(bench.step(id), Step::Open));
}

/// Streams are shared with receivers that join once they are connected, and are given back when lanes to these end by themselves.
#[test]
fn streams_are_shared_while_those_that_joined_are_connected() {
    let wish = Wish {
        senders: 1,
        ..Wish::default()
    };
    let mut bench = Bench::wishing(40, &wish);
    bench.found(FIRST, DIRECT);
    bench.open(FIRST);
    let each = |bench: &mut Bench| {
        bench.step(FIRST);
        bench.node.lanes.streams.each()
    };
    assert_eq!(each(&mut bench), 4);
    let joined = |node| Peer {
        node,
        relays: true,
        ..Peer::default()
    };
    let revision = Revision {
        peers: (2..17).map(joined).collect(),
        ..Revision::default()
    };
    bench.node.handle_revision(&revision, START);
    bench.drain();
    assert_eq!(each(&mut bench), 4, "none is connected");
    let leads_there = |id: &StreamId| id.lane != FIRST.lane;
    let ids: Vec<StreamId> = bench.started.iter().copied().filter(leads_there).collect();
    assert_eq!(ids.len(), 15);
    for id in &ids {
        bench.found(*id, DIRECT);
    }
    assert_eq!(each(&mut bench), 1);
    for id in &ids {
        bench.node.handle_peer_gone(id.lane, "killed");
    }
    assert_eq!(each(&mut bench), 4);
}
