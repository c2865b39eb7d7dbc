//! Two processes with one edge or two between them, over each kind of lane: every block arrives once, whatever becomes of datagrams.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ropewalk_lane::faulty::{self, Fate};
use ropewalk_lane::packets::{Packet, Packets};
use ropewalk_lane::seal::{Records, StreamKeys};
use ropewalk_lane::udp::shared::{Carrier, Shared};
use ropewalk_lane::{Check, Protection};
use ropewalk_model::ByteRate;
use ropewalk_proto::control::LaneKind;
use ropewalk_proto::control::{self, FromStage, LENGTH_LEN, StageStatus, from_stage};
use ropewalk_proto::stage::datagrams::Flow;
use ropewalk_proto::stage::deal::Deal;
use ropewalk_proto::stage::process::{Process, Role, Settings};

use crate::datagrams::{self, Datagrams, Edge};
use crate::drive::{Drive, Edges};
use crate::ends::{Appending, Sink, Source};
use crate::error::StageError;
use crate::inbound::{Inbound, Sealed};
use crate::link::Link;
use crate::outbound::Outbound;
use crate::setup::{Agent, Ends};

/// A pass over all of a test's bytes takes less by far.
const LONG: Duration = Duration::from_secs(60);

const BUFFERS: usize = 8;

/// What connects the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Unix,
    Shm,
    Tcp,
    Rbudp,
    Rapid,
}

const LANES: [Lane; 5] = [Lane::Unix, Lane::Shm, Lane::Tcp, Lane::Rbudp, Lane::Rapid];

#[derive(Clone, Copy, Debug)]
struct Case {
    lane: Lane,
    is_sealed: bool,
    block: usize,
    mtu: u32,
    flow: Flow,
    buffers: usize,
    // Of each sender over Rbudp.
    rate: ByteRate,
}

impl Case {
    fn new(lane: Lane, is_sealed: bool, block: usize) -> Self {
        Self {
            lane,
            is_sealed,
            block,
            mtu: 1500,
            flow: Flow::Credit,
            buffers: BUFFERS,
            rate: ByteRate(200_000_000),
        }
    }

    fn kind(&self) -> LaneKind {
        match self.lane {
            Lane::Unix => LaneKind::Unix,
            Lane::Shm => LaneKind::Shm,
            Lane::Tcp => LaneKind::Tcp,
            Lane::Rbudp => LaneKind::Rbudp,
            Lane::Rapid => LaneKind::Rapid,
        }
    }

    fn sockets(&self) -> (OwnedFd, OwnedFd) {
        match self.lane {
            Lane::Unix | Lane::Shm => {
                let (one, other) = UnixStream::pair().unwrap();
                (one.into(), other.into())
            }
            Lane::Tcp | Lane::Rbudp | Lane::Rapid => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let other = listener.accept().unwrap().0;
                one.set_nodelay(true).unwrap();
                other.set_nodelay(true).unwrap();
                (one.into(), other.into())
            }
        }
    }

    fn keys(&self, edge: u8) -> Option<StreamKeys> {
        self.is_sealed.then(|| StreamKeys {
            toward_receiver: [2 * edge; 32],
            toward_sender: [2 * edge + 1; 32],
        })
    }

    /// What an edge's datagrams need at one end.
    fn edge(&self, edge: u8) -> Option<Edge> {
        let protection = match self.keys(edge) {
            Some(keys) => Protection::Sealed(keys),
            None => Protection::Plain(Check::Fragment),
        };
        matches!(self.lane, Lane::Rbudp | Lane::Rapid).then(|| Edge {
            protection,
            peer: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            longest: self.mtu - 28,
            packet: 28,
        })
    }

    fn datagrams(
        &self,
        outs: Vec<Option<Edge>>,
        ins: Vec<Option<Edge>>,
        fate: Option<Fate>,
    ) -> Option<Datagrams> {
        if !matches!(self.lane, Lane::Rbudp | Lane::Rapid) {
            return None;
        }
        let mut carrier: Box<dyn Carrier> = Box::new(Shared::open(None).unwrap());
        if let Some(fate) = fate {
            carrier = faulty::carrier(carrier, fate);
        }
        let settings = datagrams::Settings {
            is_watched: self.lane == Lane::Rapid,
            rate: (self.lane == Lane::Rbudp).then_some(self.rate),
            flow: self.flow,
            block: self.block as u32,
        };
        let (outs, ins) = (outs.into_iter().flatten(), ins.into_iter().flatten());
        Some(Datagrams::new(
            carrier,
            settings,
            outs.collect(),
            ins.collect(),
        ))
    }

    fn machine(&self, role: Role, node: u32, inputs: usize, outputs: usize) -> Process<Box<[u8]>> {
        Process::new(Settings {
            role,
            node,
            group: u32::from(role == Role::Sink),
            inputs,
            outputs,
            block: self.block,
            buffers: self.buffers,
            deal: Deal::Random,
            seed: 1,
        })
    }
}

/// The end of a process: its last state, or why it ended early.
type Ended = Result<StageStatus, String>;

/// A process in a thread.
struct Running {
    packets: Packets,
    thread: std::thread::JoinHandle<StageError>,
}

impl Running {
    fn start(make: impl FnOnce() -> Parts + Send + 'static) -> Self {
        let (packets, theirs) = Packets::pair().unwrap();
        let thread = std::thread::spawn(move || {
            let agent = Agent {
                packets: theirs,
                group: 0,
            };
            let Parts {
                machine,
                edges,
                ends,
                block,
            } = make();
            let drive = Drive::new(&agent, machine, edges, ends, block, [9; 32]);
            drive.run().unwrap_err()
        });
        Self { packets, thread }
    }

    /// Its newest state, if it has sent one since.
    fn state(&self) -> Option<StageStatus> {
        let mut newest = None;
        while let Packet::Bytes(bytes, _) = self.packets.receive().unwrap() {
            let message = control::decode::<FromStage>(&bytes[LENGTH_LEN..]).unwrap();
            if let Some(from_stage::Body::Status(status)) = message.body {
                newest = Some(status);
            }
        }
        newest
    }

    /// Waits until it has done all, or has failed.
    fn wait(self) -> Ended {
        let until = Instant::now() + LONG;
        while !self.thread.is_finished() {
            match self.state() {
                Some(status) if status.ended => {
                    drop(self.packets);
                    assert!(matches!(self.thread.join().unwrap(), StageError::Ended));
                    return Ok(status);
                }
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
            assert!(Instant::now() < until, "nothing moves");
        }
        Err(self.thread.join().unwrap().to_string())
    }
}

struct Parts {
    machine: Process<Box<[u8]>>,
    edges: Edges,
    ends: Ends,
    block: usize,
}

/// Bytes that are not the same anywhere.
fn contents(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Processes that read files, each with an edge to one that writes a file; gives the states and what was written.
fn run<const N: usize>(
    case: Case,
    files: [Vec<u8>; N],
    fates: [Option<Fate>; N],
) -> (Vec<Ended>, Vec<u8>) {
    let mut running = Vec::new();
    let mut receiving = Vec::new();
    for (number, (content, fate)) in (1..).zip(files.into_iter().zip(fates)) {
        let (near, far) = case.sockets();
        receiving.push((number, far));
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&content).unwrap();
        file.rewind().unwrap();
        running.push(Running::start(move || {
            let sealed = case.keys(number).map(|keys| Sealed {
                incoming: Records::new(&keys.toward_sender),
                outgoing: Records::new(&keys.toward_receiver),
            });
            let link = Link::sending(near, case.kind()).unwrap();
            Parts {
                machine: case.machine(Role::Source, number.into(), 0, 1),
                edges: Edges {
                    inputs: Vec::new(),
                    outputs: vec![Outbound::new(link, "B on x".into(), sealed)],
                    datagrams: case.datagrams(vec![case.edge(number)], Vec::new(), fate),
                },
                ends: Ends::Source(Source::file(file, content.len() as u64).unwrap()),
                block: case.block,
            }
        }));
    }
    let mut written = tempfile::tempfile().unwrap();
    let file: File = written.try_clone().unwrap();
    let last = Running::start(move || {
        let (mut inputs, mut edges) = (Vec::new(), Vec::new());
        for (number, far) in receiving {
            let sealed = case.keys(number).map(|keys| Sealed {
                incoming: Records::new(&keys.toward_receiver),
                outgoing: Records::new(&keys.toward_sender),
            });
            let link = Link::receiving(far, case.kind(), case.block).unwrap();
            let input = Inbound::new(link, format!("A on {number}"), sealed, case.block);
            inputs.push(Some(input));
            edges.push(case.edge(number));
        }
        Parts {
            machine: case.machine(Role::Sink, 0, inputs.len(), 0),
            edges: Edges {
                inputs,
                outputs: Vec::new(),
                datagrams: case.datagrams(Vec::new(), edges, None),
            },
            ends: Ends::Sink(Sink::File(Appending::new(file))),
            block: case.block,
        }
    });
    let mut ended: Vec<Ended> = running.into_iter().map(Running::wait).collect();
    ended.push(last.wait());
    let mut out = Vec::new();
    written.rewind().unwrap();
    written.read_to_end(&mut out).unwrap();
    (ended, out)
}

/// Checks that every block was written once; gives the bytes that were sent again.
fn passes<const N: usize>(case: Case, lens: [usize; N], fates: [Option<Fate>; N]) -> u64 {
    let files: [Vec<u8>; N] = std::array::from_fn(|at| contents(lens[at], at as u64 + 1));
    let mut expected: Vec<Vec<u8>> = files
        .iter()
        .flat_map(|file| file.chunks(case.block).map(<[u8]>::to_vec))
        .collect();
    let (ended, out) = run(case, files, fates);
    let states: Vec<StageStatus> = ended.into_iter().map(Result::unwrap).collect();
    let mut blocks: Vec<Vec<u8>> = out.chunks(case.block).map(<[u8]>::to_vec).collect();
    blocks.sort();
    expected.sort();
    assert!(blocks == expected, "{case:?}: blocks differ");
    let received = states[N].received.as_ref().unwrap();
    assert_eq!(received.blocks, expected.len() as u64, "{case:?}");
    states.iter().map(|state| state.retransmitted).sum()
}

/// Every lane carries blocks of all lengths, sealed and plain, from two processes at once.
#[test]
fn every_lane_carries_blocks() {
    for lane in LANES {
        for is_sealed in [false, true] {
            for (block, count) in [(100, 3000), (4 << 10, 500), (64 << 10, 60), (1 << 20, 12)] {
                let case = Case::new(lane, is_sealed, block);
                passes(case, [block * count, block * (count / 3)], [None, None]);
            }
        }
    }
}

/// Edges without any block end, too.
#[test]
fn empty_edges_end() {
    for lane in LANES {
        passes(Case::new(lane, true, 1000), [0, 0], [None, None]);
        passes(Case::new(lane, false, 1000), [0, 5000], [None, None]);
    }
}

/// An edge that has ended waits for nothing while others go on for longer than a path may be silent.
#[test]
fn an_edge_that_has_ended_is_not_probed() {
    let case = Case {
        rate: ByteRate(100_000),
        ..Case::new(Lane::Rbudp, true, 64 << 10)
    };
    passes(case, [1_200_000, 0], [None, None]);
}

/// With fewer buffers than edges a request for the next buffer may overtake the block before it.
#[test]
fn scarce_buffers_carry_blocks() {
    for lane in LANES {
        let case = Case {
            buffers: 2,
            ..Case::new(lane, false, 64 << 10)
        };
        let lens = [40 << 16, 20 << 16, 3 << 16, 0];
        passes(case, lens, [const { None }; 4]);
    }
}

/// Long datagrams are used where the interface takes them.
#[test]
fn long_datagrams_carry_blocks() {
    for lane in [Lane::Rbudp, Lane::Rapid] {
        let case = Case {
            mtu: 9000,
            ..Case::new(lane, true, 64 << 10)
        };
        passes(case, [4 << 20, 4 << 20], [None, None]);
    }
}

/// What becomes of datagrams: a name, and how to make it.
type Trouble = (&'static str, fn() -> Fate);

/// Every datagram that `is_late` goes behind the next few.
fn reorder(is_late: fn(u64) -> bool, behind: u64) -> Fate {
    let mut held: Vec<(u64, Vec<u8>)> = Vec::new();
    Box::new(move |number, datagram| {
        if is_late(number) {
            held.push((number, datagram));
            return Vec::new();
        }
        let mut out = vec![datagram];
        while held.first().is_some_and(|(at, _)| *at + behind <= number) {
            out.push(held.remove(0).1);
        }
        out
    })
}

const TROUBLES: [Trouble; 6] = [
    ("a tenth is lost", || {
        let mut state = 1_u64;
        Box::new(move |_, datagram| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            match (state >> 33).is_multiple_of(10) {
                true => Vec::new(),
                false => vec![datagram],
            }
        })
    }),
    ("long bursts are lost", || {
        Box::new(|number, datagram| match number % 1000 < 300 {
            true => Vec::new(),
            false => vec![datagram],
        })
    }),
    ("the first thousand is lost", || {
        Box::new(|number, datagram| match number < 1000 {
            true => Vec::new(),
            false => vec![datagram],
        })
    }),
    ("each is duplicated", || {
        Box::new(|_, datagram| vec![datagram.clone(), datagram])
    }),
    ("many are late", || {
        reorder(|number| number.is_multiple_of(3), 40)
    }),
    ("a bit of some is flipped", || {
        Box::new(|number, mut datagram| {
            if number.is_multiple_of(17) {
                let at = (number as usize * 31) % datagram.len();
                datagram[at] ^= 1;
            }
            vec![datagram]
        })
    }),
];

/// Whatever is lost, repeated, late or damaged: every block arrives once, over both kinds, sealed and plain.
#[test]
fn troubles_are_repaired() {
    for (name, fate) in TROUBLES {
        for lane in [Lane::Rbudp, Lane::Rapid] {
            for is_sealed in [false, true] {
                let case = Case::new(lane, is_sealed, 64 << 10);
                let again = passes(case, [3 << 20, 2 << 20], [Some(fate()), Some(fate())]);
                // Copies do not have to be sent again, others do.
                assert!(
                    again > 0 || name == "each is duplicated",
                    "{name}: {case:?}"
                );
            }
        }
    }
}

/// Nothing comes through any more: that is an error with the peer's name, not a wait without end.
#[test]
fn closed_paths_are_errors() {
    for lane in [Lane::Rbudp, Lane::Rapid] {
        let case = Case::new(lane, true, 64 << 10);
        let files = [contents(4 << 20, 1), contents(64 << 10, 2)];
        let fate: Fate = Box::new(|number, datagram| match number < 100 {
            true => vec![datagram],
            false => Vec::new(),
        });
        let (ended, _) = run(case, files, [Some(fate), None]);
        let error = ended[2].as_ref().unwrap_err();
        let expected = "no datagram passes between here and A on 1";
        assert!(error.starts_with(expected), "{error}");
        // Its sender sees the connection go.
        let error = ended[0].as_ref().unwrap_err();
        assert!(error.contains("B on x broke"), "{error}");
    }
}

/// Without flow control, too, every block arrives once: what finds no buffer is sent again.
#[test]
fn blocks_without_flow_control_arrive() {
    let case = Case {
        flow: Flow::None,
        ..Case::new(Lane::Rbudp, false, 64 << 10)
    };
    passes(case, [2 << 20, 2 << 20], [None, None]);
}
