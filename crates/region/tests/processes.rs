//! Regions over real processes: what is read is what is there, what is written is read, and nodes may be killed meanwhile.

#![allow(
    clippy::single_range_in_vec_init,
    reason = "one range is a list of ranges here"
)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ropewalk_message::Options;
use ropewalk_proto::region::REQUESTS_MAX;
use ropewalk_region::{Exposed, Region, RegionError, RegionServer, Rule};
use ropewalk_store::Buffer;
use rustix::process::{Pid, Signal, kill_process};

/// Longest wait: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a node of these tests serves: see [`a_node`].
const NODE: &str = "ROPEWALK_TEST_NODE";
const MIB: u64 = 1 << 20;

fn options() -> Options {
    Options {
        token: Some([7; 32]),
        deadline: Some(PATIENCE),
        // Puts wait so long for a node that was killed.
        peer_timeout: Duration::from_secs(2),
        ..Options::default()
    }
}

/// The byte of the region at an offset.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn bytes(range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(byte).collect()
}

/// A process that holds ranges, until it is dropped.
struct Node {
    child: Child,
    addresses: Vec<SocketAddr>,
}

impl Node {
    /// * `what`: address, size, rule, then `start-end`, `start-end:FILE` or either with `!` for the owner.
    fn start(what: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_node", "--nocapture"])
            .env(NODE, what)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = loop {
            let line = lines.next().expect("a node that does not start").unwrap();
            if let Some((_, address)) = line.split_once("listening on ") {
                break address.parse().unwrap();
            }
        };
        Self {
            child,
            addresses: vec![address],
        }
    }

    /// Stops it until what is returned is dropped.
    fn stop(&self) -> Stopped {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        Stopped(pid)
    }

    fn kill(&mut self) {
        // SIGKILL.
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// A process that is stopped.
struct Stopped(Pid);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn addresses(nodes: &[Node]) -> Vec<Vec<SocketAddr>> {
    nodes.iter().map(|node| node.addresses.clone()).collect()
}

/// Not a test of its own: a process that [`Node::start`] starts.
#[test]
fn a_node() {
    let Ok(what) = std::env::var(NODE) else {
        return;
    };
    let mut fields = what.split(' ');
    let address = fields.next().unwrap().parse().unwrap();
    let size = fields.next().unwrap().parse().unwrap();
    let rule = match fields.next().unwrap() {
        "all" => Rule::All,
        "owner" => Rule::Owner,
        _ => Rule::ReadOnly,
    };
    let exposed = fields.map(|field| {
        let (field, is_owned) = field
            .strip_suffix('!')
            .map_or((field, false), |field| (field, true));
        let (range, file) = field
            .split_once(':')
            .map_or((field, None), |(range, file)| (range, Some(file)));
        let (start, end) = range.split_once('-').unwrap();
        let range: std::ops::Range<u64> = start.parse().unwrap()..end.parse().unwrap();
        let exposed = match file {
            Some(file) => Exposed::file(range, file, 100),
            None => Exposed::memory(range.start, Buffer::writable(bytes(range))),
        };
        if is_owned { exposed.owned() } else { exposed }
    });
    let server = RegionServer::bind(&[address], &options()).unwrap();
    server.serve("data", size, rule, exposed.collect()).unwrap();
    println!("listening on {}", server.addresses()[0]);
    std::io::stdout().flush().unwrap();
    // Until the test ends.
    let _ = std::io::stdin().read(&mut [0]);
}

/// Chance from a seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 20) % bound
    }
}

/// Four nodes, over IPv4 and IPv6; each quarter is on two of them.
fn ring(size: u64, rule: &str) -> Vec<Node> {
    let quarter = size / 4;
    (0..4_u64)
        .map(|at| {
            let address = if at % 2 == 0 {
                "127.0.0.1:0"
            } else {
                "[::1]:0"
            };
            let next = (at + 1) % 4;
            Node::start(&format!(
                "{address} {size} {rule} {}-{} {}-{}",
                at * quarter,
                (at + 1) * quarter,
                next * quarter,
                (next + 1) * quarter
            ))
        })
        .collect()
}

/// Random gets of three sizes, blocking, many at once, and vectored, while a holder is killed.
#[test]
fn gets_go_on_when_a_holder_is_killed() {
    let size = 8 * MIB;
    let mut nodes = ring(size, "all");
    let region = Region::connect("data", &addresses(&nodes), &options()).unwrap();
    assert_eq!((region.size(), region.rule()), (size, Rule::All));
    assert_eq!(region.holders().len(), 4);
    let mut chance = Chance(5);
    for round in 0..120 {
        if round == 40 {
            nodes[2].kill();
        }
        let len = [64, 4096, MIB][round % 3];
        let start = chance.below(size - len + 1);
        let mut into = vec![0; len as usize];
        region.get_into(start, &mut into).unwrap();
        assert!(into == bytes(start..start + len), "{len} bytes at {start}");
        if round % 10 == 0 {
            let ranges: Vec<_> = (0..200)
                .map(|_| chance.below(size - 100))
                .map(|start| start..start + 1 + start % 100)
                .collect();
            let all: Vec<u8> = ranges.iter().cloned().flat_map(bytes).collect();
            let started: Vec<_> = (0..20)
                .map(|_| region.get_start(&ranges).unwrap())
                .collect();
            for get in started {
                assert!(get.wait().unwrap() == all);
            }
        }
    }
    let lost = region.lost();
    assert!(
        lost.iter().all(|(node, _)| *node == nodes[2].addresses),
        "{lost:?}"
    );
    // Killed with gets of all the region under way, which need every node.
    let started: Vec<_> = (0..4)
        .map(|_| region.get_start(&[0..size]).unwrap())
        .collect();
    nodes[0].kill();
    for get in started {
        let got = get.wait();
        match got {
            Ok(got) => assert!(got == bytes(0..size)),
            Err(error) => panic!("{error}"),
        }
    }
    // The third quarter is on nodes 1 and 2, the first on 0 and 3.
    nodes[1].kill();
    let error = region.get(4 * MIB..4 * MIB + 10).unwrap_err();
    let text = error.to_string();
    let RegionError::Lost { range, .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!((range.start, range.end), (4 * MIB, 4 * MIB + 10));
    for node in [&nodes[1], &nodes[2]] {
        assert!(text.contains(&node.addresses[0].to_string()), "{text}");
    }
    assert!(region.get(0..10).unwrap() == bytes(0..10), "node 3 has it");
}

/// Long answers go straight to their place, and whatever comes instead does not stay there: notifications between them, refusals, answers to gets that
/// were given up while another thread received them.
#[test]
fn long_gets_land_beside_other_answers() {
    let size = 4 * MIB;
    let nodes = [
        Node::start(&format!("127.0.0.1:0 {size} all 0-{size}")),
        Node::start(&format!("[::1]:0 {size} all 0-{size}")),
    ];
    let region = Region::connect("data", &addresses(&nodes), &options()).unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let ordering = std::sync::atomic::Ordering::Relaxed;
    let region = &region;
    let all = bytes(0..size);
    std::thread::scope(|scope| {
        let is_over = &is_over;
        let notifying = scope.spawn(move || {
            for value in 1.. {
                if is_over.load(ordering) {
                    return;
                }
                region.notify(10..20, value).unwrap();
            }
        });
        let waiting = scope.spawn(move || {
            let mut value = 1;
            while !is_over.load(ordering) {
                let found = region
                    .wait(0..100, value, Duration::from_millis(100))
                    .unwrap();
                value = found.map_or(value, |found| found + 1);
            }
            value
        });
        let dropping = scope.spawn(move || {
            let mut chance = Chance(3);
            while !is_over.load(ordering) {
                let start = chance.below(size - MIB);
                let mut get = region.get_start(&[start..start + MIB]).unwrap();
                // Some are over by then.
                let most = Duration::from_micros(chance.below(2000));
                drop(get.wait_for(most).unwrap());
            }
        });
        let readers: Vec<_> = (0..2)
            .map(|seed| {
                let all = &all;
                scope.spawn(move || {
                    let mut chance = Chance(seed);
                    let mut into = vec![0; 2 * MIB as usize];
                    for _ in 0..60 {
                        let len = 1 + chance.below(2 * MIB);
                        let start = chance.below(size - len);
                        let (here, there) = (start as usize, (start + len) as usize);
                        let into = &mut into[..len as usize];
                        region.get_into(start, into).unwrap();
                        assert!(*into == all[here..there], "{len} bytes at {start}");
                        // Parts of it, one after the other in memory.
                        let middle = start + len / 2;
                        let both = [start..middle, middle..start + len];
                        let got = region.get_start(&both).unwrap().wait().unwrap();
                        assert!(got == all[here..there], "{len} bytes at {start}, in two");
                    }
                })
            })
            .collect();
        let read: Vec<_> = readers.into_iter().map(|one| one.join()).collect();
        is_over.store(true, ordering);
        notifying.join().unwrap();
        dropping.join().unwrap();
        assert!(waiting.join().unwrap() > 1);
        read.into_iter().for_each(|one| one.unwrap());
    });
    assert!(region.lost().is_empty(), "{:?}", region.lost());
}

/// What is put is read after a fence, by every holder; a lost one is named and does not end puts.
#[test]
fn puts_are_read_after_a_fence() {
    let size = 4 * MIB;
    let mut nodes = ring(size, "all");
    let region = Region::connect("data", &addresses(&nodes), &options()).unwrap();
    let mut model = bytes(0..size);
    let mut chance = Chance(9);
    for round in 0..40_u64 {
        let len = 1 + chance.below([100, 5000, MIB][round as usize % 3]);
        let start = chance.below(size - len);
        let fresh: Vec<u8> = (0..len).map(|at| (at * 7 + round) as u8).collect();
        model[start as usize..(start + len) as usize].copy_from_slice(&fresh);
        // Dropped: the flush has its error.
        drop(region.put_start(start, fresh).unwrap());
        region.fence();
        if round % 4 == 0 {
            // Twice, as two nodes take turns.
            for _ in 0..2 {
                let range = start..start + len;
                let got = region.get(range.clone()).unwrap();
                assert!(
                    got == model[range.start as usize..range.end as usize],
                    "{range:?}"
                );
            }
        }
        if round == 20 {
            nodes[3].kill();
        }
    }
    region.flush().unwrap();
    assert!(region.get(0..size).unwrap() == model);
    assert_eq!(region.lost()[0].0, nodes[3].addresses);
    // Another origin sees the same, from the nodes that are left.
    let other = Region::connect("data", &addresses(&nodes), &options()).unwrap();
    assert!(other.get(0..size).unwrap() == model);
    region.put_all(&[(0, b"ab"), (size - 2, b"yz")]).unwrap();
    let mut ends = [0; 4];
    other
        .get_all_into(&[size - 2..size, 0..2], &mut ends)
        .unwrap();
    assert_eq!(ends, *b"yzab");
}

/// A fence holds a get back that another holder could serve at once. The put cannot leave: one of its two holders is stopped and has as many
/// requests as one may have. Without the fence the get goes to the other holder, which has the bytes of before.
#[test]
fn a_fence_holds_gets_back_that_another_holder_could_serve() {
    const ALONE: u64 = 100_000;
    let nodes = [
        Node::start("127.0.0.1:0 200000 all 0-200000"),
        Node::start("127.0.0.1:0 200000 all 0-100000"),
    ];
    // A node that is stopped for long is no lost one.
    let options = Options {
        peer_timeout: PATIENCE,
        ..options()
    };
    let region = Region::connect("data", &addresses(&nodes), &options).unwrap();
    let stopped = nodes[0].stop();
    let busy: Vec<_> = (0..REQUESTS_MAX as u64)
        .map(|at| region.get_start(&[ALONE + at..ALONE + at + 1]).unwrap())
        .collect();
    // The other holder serves it now, too, and answers.
    assert!(region.get(0..1000).unwrap() == bytes(0..1000));
    let fresh: Vec<u8> = bytes(0..1000).iter().map(|byte| !byte).collect();
    let put = region.put_start(0, fresh.clone()).unwrap();
    region.fence();
    let get = region.get_start(&[0..1000]).unwrap();
    drop(stopped);
    assert!(get.wait().unwrap() == fresh, "it was served before the put");
    put.wait().unwrap();
    for (at, get) in busy.into_iter().enumerate() {
        assert_eq!(get.wait().unwrap(), [byte(ALONE + at as u64)]);
    }
}

/// One process announces ranges, another waits for them; under the owner's rule it then sees what was put.
#[test]
fn notifications_order_puts_and_gets() {
    let node = |what: &str| Node::start(&format!("127.0.0.1:0 1000 owner {what}"));
    let nodes = [node("0-1000"), node("0-500!"), node("500-1000!")];
    let connect = || Region::connect("data", &addresses(&nodes), &options()).unwrap();
    let (writer, reader) = (connect(), connect());
    assert_eq!(reader.wait(0..500, 1, Duration::ZERO).unwrap(), None);
    for step in 1..=50_u64 {
        let fresh = [step as u8; 300];
        let waiting = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| reader.wait(600..700, step, PATIENCE));
            drop(writer.put_start(550, fresh.to_vec()).unwrap());
            writer.notify(550..850, step).unwrap();
            waiting.join().unwrap()
        });
        assert_eq!(waiting.unwrap(), Some(step));
        assert_eq!(reader.get(600..700).unwrap(), fresh[..100]);
    }
    assert_eq!(writer.wait(0..500, 0, PATIENCE).unwrap(), Some(0));
    let error = writer.wait(400..600, 1, PATIENCE).unwrap_err();
    assert!(error.to_string().contains("[400, 600)"), "{error}");
}

/// Ranges in files are read and written there.
#[test]
fn files_are_exposed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("held");
    let mut contents = vec![9; 100];
    contents.extend(bytes(0..2 * MIB));
    std::fs::write(&file, &contents).unwrap();
    let what = format!(
        "127.0.0.1:0 {} all 0-{}:{}",
        3 * MIB,
        2 * MIB,
        file.display()
    );
    let nodes = [
        Node::start(&what),
        Node::start(&format!(
            "127.0.0.1:0 {} all {}-{}",
            3 * MIB,
            2 * MIB,
            3 * MIB
        )),
    ];
    let region = Region::connect("data", &addresses(&nodes), &options()).unwrap();
    assert!(region.get(0..3 * MIB).unwrap() == bytes(0..3 * MIB));
    region.put(2 * MIB - 3, b"across").unwrap();
    assert_eq!(
        region.get(2 * MIB - 4..2 * MIB + 3).unwrap()[1..],
        *b"across"
    );
    let there = std::fs::read(&file).unwrap();
    assert_eq!(there.len(), contents.len());
    assert_eq!(there[there.len() - 3..], *b"acr");
    // A file that becomes shorter: the node is given up, with the reason.
    std::fs::File::options()
        .write(true)
        .open(&file)
        .unwrap()
        .set_len(50)
        .unwrap();
    let error = region.get(0..10).unwrap_err().to_string();
    assert!(
        error.contains("[0, 10)") && error.contains("fill whole buffer"),
        "{error}"
    );
}

/// Holes, the end of the region, other names and tokens: each error says what is wrong, and nothing else ends.
#[test]
fn errors_name_what_is_wrong() {
    let node = Node::start("127.0.0.1:0 18446744073709551615 all 0-1000 2000-3000");
    let nodes = [node.addresses.clone()];
    let region = Region::connect("data", &nodes, &options()).unwrap();
    let error = |range| region.get(range).unwrap_err().to_string();
    assert!(
        error(900..2100).contains("[1000, 2100)"),
        "{}",
        error(900..2100)
    );
    assert!(error(u64::MAX - 10..u64::MAX).contains("holds"));
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = error(10..5);
    assert!(reversed.contains("ends before"), "{reversed}");
    let mut into = [0; 20];
    assert!(
        region
            .get_into(u64::MAX - 10, &mut into)
            .unwrap_err()
            .to_string()
            .contains("2^64")
    );
    assert!(
        region
            .put(u64::MAX - 2, b"abc")
            .unwrap_err()
            .to_string()
            .contains("2^64")
    );
    assert!(
        region
            .put(999, b"abc")
            .unwrap_err()
            .to_string()
            .contains("[1000, 1002)")
    );
    assert!(matches!(
        region.get_all_into(&[0..5], &mut into),
        Err(RegionError::Misuse(_))
    ));
    // More than any host has memory for.
    for end in [1 << 46, u64::MAX] {
        assert!(matches!(region.get(0..end), Err(RegionError::Misuse(_))));
    }
    assert!(region.get(5..5).unwrap().is_empty());
    assert_eq!(region.get(2995..3000).unwrap(), bytes(2995..3000));
    let fails = |name, options: &Options| Region::connect(name, &nodes, options).unwrap_err();
    let unknown = fails("other", &options()).to_string();
    assert!(unknown.contains("no region of this name"), "{unknown}");
    let wrong = Options {
        token: Some([8; 32]),
        deadline: Some(Duration::from_secs(5)),
        ..Options::default()
    };
    let wrong = fails("data", &wrong);
    assert!(matches!(wrong, RegionError::Unreached { .. }), "{wrong}");
    assert!(
        wrong.to_string().contains(&node.addresses[0].to_string()),
        "{wrong}"
    );
    // One node that is not there: the others serve, and errors name it.
    let absent: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let partial = Region::connect("data", &[nodes[0].clone(), vec![absent]], &options()).unwrap();
    assert_eq!(partial.get(0..9).unwrap(), bytes(0..9));
    let hole = partial.get(1500..1501).unwrap_err().to_string();
    assert!(hole.contains("127.0.0.1:1: "), "{hole}");
    let differ = Node::start("127.0.0.1:0 1000 all 0-1000");
    let both = [node.addresses.clone(), differ.addresses.clone()];
    let differ = Region::connect("data", &both, &options())
        .unwrap_err()
        .to_string();
    assert!(differ.contains("size"), "{differ}");
}

/// Connections that break are made again: gets go on, and puts are complete.
#[test]
fn broken_connections_are_made_again() {
    let node = Node::start(&format!("127.0.0.1:0 {MIB} all 0-{MIB}"));
    // A connection that breaks again and again is tried again after pauses of up to 5 s.
    let options = Options {
        peer_timeout: PATIENCE,
        ..options()
    };
    let region = Region::connect("data", std::slice::from_ref(&node.addresses), &options).unwrap();
    for round in 0..5_u64 {
        let get = region.get_start(&[0..MIB]).unwrap();
        region.break_node(0);
        region.put(MIB - 1, &[round as u8]).unwrap();
        let got = get.wait().unwrap();
        assert!(got[..(MIB - 1) as usize] == bytes(0..MIB - 1));
        assert_eq!(region.get(MIB - 1..MIB).unwrap(), [round as u8]);
    }
    assert!(region.lost().is_empty(), "{:?}", region.lost());
}

/// Threads of one origin read at once, and each has its own bytes.
#[test]
fn threads_share_a_region() {
    let nodes = ring(4 * MIB, "all");
    let region = Region::connect("data", &addresses(&nodes), &options()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let region = &region;
            scope.spawn(move || {
                let mut chance = Chance(thread);
                for round in 0..150 {
                    let len = [64, 4096, 300_000][round % 3];
                    let start = chance.below(4 * MIB - len);
                    assert!(region.get(start..start + len).unwrap() == bytes(start..start + len));
                }
            });
        }
    });
    // Handles that are dropped leave nothing behind.
    for _ in 0..20 {
        drop(region.get_start(&[0..4 * MIB]).unwrap());
    }
    let mut get = region.get_start(&[5..10]).unwrap();
    let until = Instant::now() + PATIENCE;
    while !get.test() {
        assert!(Instant::now() < until, "a get that never ends");
    }
    assert_eq!(get.wait_for(Duration::ZERO).unwrap(), Some(bytes(5..10)));
    assert!(matches!(
        get.wait_for(Duration::ZERO),
        Err(RegionError::Misuse(_))
    ));
}

/// A peer that knows the token sends what it likes: its connection ends, and others are served.
#[test]
fn hostile_origins_are_given_up() {
    use ropewalk_message::MessageSocket;
    use ropewalk_proto::region::frame::{Frame, Part, VERSION};
    let node = Node::start("127.0.0.1:0 1000 owner 0-1000");
    let hello = Frame::Hello {
        version: VERSION,
        name: "data",
    }
    .encode();
    let part = |offset, len| Part { offset, len };
    let bad: [Vec<u8>; 5] = [
        Vec::new(),
        vec![0xff; 300_000],
        hello.clone(),
        Frame::Done { id: 4 }.encode(),
        Frame::Put {
            id: 4,
            parts: vec![part(0, 9)],
            bytes: &[1],
        }
        .encode(),
    ];
    for message in bad {
        let socket = MessageSocket::connect(&node.addresses, &options()).unwrap();
        socket.send(&hello).unwrap();
        assert!(socket.receive_vec(1000).unwrap().is_some());
        socket.send_start(message).unwrap();
        assert!(!matches!(socket.receive_vec(1000), Ok(Some(_))));
    }
    let refused: [Frame<'_>; 4] = [
        Frame::Get {
            id: 1,
            parts: vec![part(999, 2)],
        },
        Frame::Get {
            id: 2,
            parts: vec![part(u64::MAX - 9, 9)],
        },
        Frame::Put {
            id: 3,
            parts: vec![part(0, 1)],
            bytes: &[1],
        },
        Frame::Wait {
            id: 4,
            range: ropewalk_model::Range::new(5, u64::MAX),
            at_least: 0,
        },
    ];
    let socket = MessageSocket::connect(&node.addresses, &options()).unwrap();
    socket.send(&hello).unwrap();
    assert!(socket.receive_vec(1000).unwrap().is_some());
    for frame in refused {
        socket.send_start(frame.encode()).unwrap();
        let answer = socket.receive_vec(2000).unwrap().unwrap();
        assert!(
            matches!(Frame::decode(&answer), Ok(Frame::Refused { .. })),
            "{frame:?}"
        );
    }
    let region =
        Region::connect("data", std::slice::from_ref(&node.addresses), &options()).unwrap();
    assert_eq!(region.get(0..1000).unwrap(), bytes(0..1000));
}

/// The process that serves a range sees its notifications, and reads what was put.
#[test]
fn the_server_waits_for_notifications() {
    let options = Options::default();
    let server = RegionServer::bind(&["127.0.0.1:0".parse().unwrap()], &options).unwrap();
    let buffer = Buffer::writable(vec![0; 100]);
    let exposed = || vec![Exposed::memory(10, buffer.clone())];
    server.serve("box", 200, Rule::All, exposed()).unwrap();
    assert!(server.serve("box", 200, Rule::All, exposed()).is_err());
    assert!(server.serve("short", 50, Rule::All, exposed()).is_err());
    let twice = vec![
        Exposed::memory(0, buffer.clone()),
        Exposed::memory(50, buffer.clone()),
    ];
    assert!(server.serve("twice", 200, Rule::All, twice).is_err());
    let fixed = vec![Exposed::memory(0, Buffer::readable(vec![1]))];
    assert!(server.serve("fixed", 200, Rule::All, fixed).is_err());
    let absent = vec![Exposed::file(0..5, "/nonexistent/file", 0)];
    let error = server
        .serve("absent", 200, Rule::All, absent)
        .unwrap_err()
        .to_string();
    assert!(error.contains("/nonexistent/file"), "{error}");
    let region = Region::connect("box", &[server.addresses()], &options).unwrap();
    let value = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| server.wait("box", 10..20, 3, PATIENCE));
        region.put(12, b"hello").unwrap();
        region.notify(12..17, 3).unwrap();
        waiting.join().unwrap().unwrap()
    });
    assert_eq!(value, Some(3));
    let mut out = [0; 5];
    buffer.read(2, &mut out).unwrap();
    assert_eq!(out, *b"hello");
    assert_eq!(server.wait("box", 10..20, 4, Duration::ZERO).unwrap(), None);
    assert!(
        server.wait("box", 0..20, 4, Duration::ZERO).is_err(),
        "not held here"
    );
    assert!(server.withdraw("box").unwrap() && !server.withdraw("box").unwrap());
    assert!(matches!(region.get(10..20), Err(RegionError::Lost { .. })));
}
