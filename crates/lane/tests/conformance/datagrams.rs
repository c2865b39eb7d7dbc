//! What lanes of datagrams do when datagrams are lost, repeated, reordered, cut, forged or stopped, and when feedback is.
//!
//! A relay stands between the two ends: it passes the TCP connection on as it is, learns both sockets of datagrams from the
//! kernel's table, and takes each one's place for the other. Every test has addresses of its own in 127.0.0.0/8.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ropewalk_lane::udp::{Options, Order};
use ropewalk_lane::*;
use ropewalk_model::{ByteRate, Range};
use ropewalk_proto::rapid::monitor::{Advice, Kind, Monitor, Sample};

use super::ends::{
    Generated, LONG, Memory, Mode, Protect, contents, grant, protections, receive, tcp_pair,
};

/// What happens to the datagrams that go one way, by their number.
type Fate = Box<dyn FnMut(u64, Vec<u8>) -> Vec<Vec<u8>> + Send>;

struct Relay {
    stopped: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// Data datagrams seen.
    seen: Arc<AtomicU64>,
    /// Feedback datagrams are dropped until then.
    deaf_until: Arc<OnceLock<Instant>>,
    /// Feedback datagrams dropped.
    unheard: Arc<AtomicU64>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn address(net: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 77, net, host)
}

/// The port of the socket of datagrams that is bound to an address.
fn port_of(ip: Ipv4Addr) -> Option<u16> {
    let wanted = format!("{:08X}", u32::from_le_bytes(ip.octets()));
    let table = std::fs::read_to_string("/proc/net/udp").unwrap();
    table.lines().skip(1).find_map(|line| {
        let (ip, port) = line.split_whitespace().nth(1)?.split_once(':')?;
        (ip == wanted).then(|| u16::from_str_radix(port, 16).ok())?
    })
}

/// Copies a connection one way; tells of everything that passes.
fn copy(mut from: TcpStream, mut to: TcpStream, passed: &Sender<()>) {
    let mut bytes = [0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        // Nobody listens once the sockets are found.
        let _ = passed.send(());
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

fn options(monitor: Option<Kind>) -> Options {
    Options {
        rate: Some(ByteRate(30_000_000)),
        mtu: Some(1500),
        order: Order::RepairsFirst,
        monitor,
        receive_buffer: Some(4 << 20),
    }
}

/// Both ends with a relay between them. Addresses: receiver .11, relay .12 and .13, sender .14.
fn relayed(
    protect: &Protect,
    options: Options,
    fate: Fate,
) -> (Box<dyn ReceiveHalf>, Box<dyn SendHalf>, Relay) {
    static NET: AtomicU8 = AtomicU8::new(1);
    let net = NET.fetch_add(1, Ordering::SeqCst);
    let at = |host| SocketAddr::from((address(net, host), 0));
    let bound = |from: SocketAddr, to: SocketAddr| {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&from.into()).unwrap();
        socket.connect(&to.into()).unwrap();
        TcpStream::from(socket)
    };
    let front = TcpListener::bind(at(12)).unwrap();
    let back = TcpListener::bind(at(14)).unwrap();
    let near = bound(at(11), front.local_addr().unwrap());
    let inner = front.accept().unwrap().0;
    let outer = bound(at(13), back.local_addr().unwrap());
    let far = back.accept().unwrap().0;
    let stopped = Arc::new(AtomicBool::new(false));
    let seen = Arc::new(AtomicU64::new(0));
    let deaf_until = Arc::new(OnceLock::new());
    let unheard = Arc::new(AtomicU64::new(0));
    let (from, to) = (inner.try_clone().unwrap(), outer.try_clone().unwrap());
    let (forth, passed) = channel();
    let back = forth.clone();
    let mut threads = vec![
        thread::spawn(move || copy(from, to, &forth)),
        thread::spawn(move || copy(outer, inner, &back)),
    ];
    let shuttle = Shuttle {
        net,
        stopped: stopped.clone(),
        seen: seen.clone(),
        deaf_until: deaf_until.clone(),
        unheard: unheard.clone(),
    };
    threads.push(thread::spawn(move || shuttle.run(passed, fate)));
    (
        udp::receive_half(near, protect(), options).unwrap(),
        udp::send_half(far, protect(), options).unwrap(),
        Relay {
            stopped,
            threads,
            seen,
            deaf_until,
            unheard,
        },
    )
}

/// The relay's thread for datagrams, and what it shares with the test.
struct Shuttle {
    net: u8,
    stopped: Arc<AtomicBool>,
    seen: Arc<AtomicU64>,
    deaf_until: Arc<OnceLock<Instant>>,
    unheard: Arc<AtomicU64>,
}

impl Shuttle {
    /// Passes datagrams on until it is stopped.
    fn run(self, passed: Receiver<()>, mut fate: Fate) {
        let Self { net, .. } = self;
        // The ends tell each other their ports over the stream: once both have, both sockets are there.
        let found = passed
            .iter()
            .take_while(|()| !self.stopped.load(Ordering::SeqCst))
            .find_map(|()| Some((port_of(address(net, 11))?, port_of(address(net, 14))?)));
        let Some(ports) = found else {
            return;
        };
        drop(passed);
        let toward_receiver = UdpSocket::bind((address(net, 12), ports.1)).unwrap();
        let toward_sender = UdpSocket::bind((address(net, 13), ports.0)).unwrap();
        toward_receiver
            .connect((address(net, 11), ports.0))
            .unwrap();
        toward_sender.connect((address(net, 14), ports.1)).unwrap();
        toward_receiver.set_nonblocking(true).unwrap();
        toward_sender
            .set_read_timeout(Some(Duration::from_millis(1)))
            .unwrap();
        let mut bytes = vec![0; 1 << 16];
        while !self.stopped.load(Ordering::SeqCst) {
            while let Ok(count) = toward_receiver.recv(&mut bytes) {
                if bytes[0] == 4 && self.is_deaf() {
                    self.unheard.fetch_add(1, Ordering::SeqCst);
                } else {
                    let _ = toward_sender.send(&bytes[..count]);
                }
            }
            if let Ok(count) = toward_sender.recv(&mut bytes) {
                // Probes pass; data meets its fate.
                let out = match bytes[0] {
                    1 => {
                        let number = self.seen.fetch_add(1, Ordering::SeqCst);
                        fate(number, bytes[..count].to_vec())
                    }
                    _ => vec![bytes[..count].to_vec()],
                };
                for datagram in out {
                    let _ = toward_receiver.send(&datagram);
                }
            }
        }
    }

    fn is_deaf(&self) -> bool {
        let until = self.deaf_until.get();
        until.is_some_and(|until| Instant::now() < *until)
    }
}

/// Moves `units` of 300,000 bytes and checks all of them; what the receiving end has seen.
fn moves(
    name: &str,
    mut receiver: Box<dyn ReceiveHalf>,
    mut sender: Box<dyn SendHalf>,
    units: u32,
) -> (Observation, Observation) {
    let serving = thread::spawn(move || {
        let end = sender.serve(&Generated::new(Mode::Memory), LONG);
        (end, sender.observe())
    });
    let mut landing = Memory::new(false);
    let grants: Vec<_> = (0..units)
        .map(|id| {
            grant(
                id,
                u64::from(id) * 300_000,
                u64::from(id + 1) * 300_000,
                true,
            )
        })
        .collect();
    receiver.grant(&grants).unwrap();
    let mut done = BTreeMap::new();
    while done.len() < units as usize {
        match receive(&mut *receiver, &mut landing) {
            Received::Unit { grant, .. } => {
                assert!(
                    landing.read(grant.range) == contents(grant.range),
                    "{name}: wrong bytes"
                );
                assert!(done.insert(grant.id, ()).is_none(), "{name}: twice");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    let seen = receiver.observe();
    drop(receiver);
    let (end, sent) = serving.join().unwrap();
    assert_eq!(end.unwrap(), Served::Closed, "{name}");
    (seen, sent)
}

/// Of the sealed and the plain lane: every tenth datagram lost, in every round.
#[test]
fn what_is_lost_is_sent_again() {
    for (name, protect) in protections() {
        for monitor in [
            None,
            Some(Kind::Native),
            Some(Kind::Linux26),
            Some(Kind::Ule),
        ] {
            let fate = Box::new(|number, bytes| {
                if number % 10 == 3 {
                    vec![]
                } else {
                    vec![bytes]
                }
            });
            let (receiver, sender, relay) = relayed(&protect, options(monitor), fate);
            let (seen, sent) = moves(name, receiver, sender, 10);
            assert!(seen.again >= 200, "{name}: {seen:?}");
            assert_eq!(sent.again, seen.again);
            assert_eq!(seen.payload, 3_000_000, "each byte counts once");
            assert!(relay.seen.load(Ordering::SeqCst) > 2200);
        }
    }
}

/// Datagrams that come twice, and all of them again in another order, change nothing.
#[test]
fn copies_and_disorder_change_nothing() {
    for (name, protect) in protections() {
        let mut held: Vec<Vec<u8>> = Vec::new();
        let mut all: Vec<Vec<u8>> = Vec::new();
        let fate = Box::new(move |number: u64, bytes: Vec<u8>| {
            if all.len() < 500 {
                all.push(bytes.clone());
            }
            held.push(bytes);
            if held.len() < 7 {
                return vec![];
            }
            // Backwards, each third one twice, and something from long ago.
            let mut out: Vec<_> = held.drain(..).rev().collect();
            out.push(out[(number % 3) as usize].clone());
            out.push(all[(number * 31 % all.len() as u64) as usize].clone());
            out
        });
        let (receiver, sender, _relay) = relayed(&protect, options(None), fate);
        let (seen, _) = moves(name, receiver, sender, 10);
        assert!(seen.strays > 100, "{name}: {seen:?}");
        assert_eq!(seen.payload, 3_000_000);
    }
}

/// Datagrams that were cut, changed, or made by somebody else are dropped and repaired; no unit comes out wrong.
#[test]
fn cut_and_forged_datagrams_are_dropped() {
    for (name, protect) in protections() {
        let fate = Box::new(|number: u64, mut bytes: Vec<u8>| match number % 20 {
            4 => vec![bytes[..bytes.len() - 9].to_vec(), vec![], vec![1; 20]],
            9 => {
                let at = number as usize % bytes.len();
                bytes[at] ^= 0x10;
                vec![bytes]
            }
            // A stranger who knows the header of one that is on its way.
            14 => {
                let mut forged = bytes.clone();
                forged[100..200].fill(0xAA);
                vec![forged, bytes]
            }
            _ => vec![bytes],
        });
        let (receiver, sender, _relay) = relayed(&protect, options(None), fate);
        let (seen, _) = moves(name, receiver, sender, 10);
        assert!(seen.strays >= 200, "{name}: {seen:?}");
        assert_eq!(
            seen.corrupt, 0,
            "{name}: found by the datagram, not only by the unit"
        );
    }
}

/// Two seconds without feedback slow the sender down and do not stop it; the stream says the same later.
#[test]
fn lost_feedback_does_not_stop_the_sender() {
    let (name, protect) = protections().remove(2);
    let (receiver, sender, relay) = relayed(
        &protect,
        options(Some(Kind::Native)),
        Box::new(|_, bytes| vec![bytes]),
    );
    let until = Instant::now() + Duration::from_secs(2);
    relay.deaf_until.set(until).unwrap();
    moves(name, receiver, sender, 200);
    assert!(relay.unheard.load(Ordering::SeqCst) > 0);
}

/// Where no datagram passes, both ends say so with addresses and ports, and neither hangs.
#[test]
fn a_path_without_datagrams_is_named() {
    let (_, protect) = protections().remove(2);
    let options = options(None);
    // A relay that passes nothing: the stream only.
    let (mut receiver, mut sender, relay) = relayed(&protect, options, Box::new(|_, _| vec![]));
    relay.stopped.store(true, Ordering::SeqCst);
    let serving = thread::spawn(move || sender.serve(&Generated::new(Mode::Memory), LONG));
    receiver.grant(&[grant(0, 0, 1000, false)]).unwrap();
    let error = receiver
        .receive(&mut Memory::new(false), Instant::now() + LONG)
        .unwrap_err();
    assert!(matches!(error, LaneError::Blocked { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("UDP") && text.contains("127.77.") && text.contains("--lane tcp"),
        "{text}"
    );
    assert!(!error.is_retryable());
    assert_eq!(receiver.outstanding().len(), 1);
    drop(receiver);
    let error = serving.join().unwrap().unwrap_err();
    assert!(
        matches!(error, LaneError::Blocked { .. } | LaneError::Closed { .. }),
        "{error}"
    );
}

/// A path that closes in the middle is an error of the lane, with what was owed.
#[test]
fn a_path_that_closes_is_noticed() {
    let (_, protect) = protections().remove(2);
    let fate = Box::new(|number, bytes| if number < 300 { vec![bytes] } else { vec![] });
    let (mut receiver, mut sender, _relay) = relayed(&protect, options(None), fate);
    let serving = thread::spawn(move || sender.serve(&Generated::new(Mode::Memory), LONG));
    let grants: Vec<_> = (0..4)
        .map(|id| grant(id, u64::from(id) << 20, u64::from(id + 1) << 20, false))
        .collect();
    receiver.grant(&grants).unwrap();
    let error = loop {
        match receiver.receive(&mut Memory::new(false), Instant::now() + LONG) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LaneError::Blocked { .. }), "{error}");
    assert!(!receiver.outstanding().is_empty());
    drop(receiver);
    serving.join().unwrap().unwrap_err();
}

/// A packet length that the path does not carry is refused by name.
#[test]
fn a_length_that_does_not_pass_is_named() {
    let (_, protect) = protections().remove(0);
    let options = Options {
        mtu: Some(65_000 + 28),
        ..options(None)
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    let mut receiver = udp::receive_half(near, protect(), options).unwrap();
    let mut sender = udp::send_half(
        far,
        protect(),
        Options {
            mtu: Some(60_000),
            ..options
        },
    )
    .unwrap();
    let serving = thread::spawn(move || sender.serve(&Generated::new(Mode::Memory), LONG));
    receiver.grant(&[grant(0, 0, 1000, false)]).unwrap();
    let error = receiver
        .receive(&mut Memory::new(false), Instant::now() + LONG)
        .unwrap_err();
    assert!(
        matches!(error, LaneError::TooLong { mtu: 65_028, .. }),
        "{error}"
    );
    drop(receiver);
    let _ = serving.join().unwrap();
}

/// A sender that listens for IPv6 too reckons with the headers of IPv4 where the packets have them: a length that is set
/// passes.
#[test]
fn a_length_that_is_set_passes_to_a_listener_of_both_kinds() {
    let (_, protect) = protections().remove(0);
    let options = Options {
        mtu: Some(1500),
        ..options(None)
    };
    let listener = TcpListener::bind("[::]:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let near = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let far = listener.accept().unwrap().0;
    let mut receiver = udp::receive_half(near, protect(), options).unwrap();
    let mut sender = udp::send_half(far, protect(), options).unwrap();
    let serving = thread::spawn(move || sender.serve(&Generated::new(Mode::Memory), LONG));
    receiver.grant(&[grant(0, 0, 1000, false)]).unwrap();
    let mut memory = Memory::new(false);
    let unit = loop {
        match receiver
            .receive(&mut memory, Instant::now() + LONG)
            .unwrap()
        {
            Received::Idle => {}
            other => break other,
        }
    };
    assert!(matches!(unit, Received::Unit { .. }), "{unit:?}");
    drop(receiver);
    let _ = serving.join().unwrap();
}

/// Between units the lane is idle, and serves again; an end that goes is seen at once by the other.
#[test]
fn idle_lanes_go_on_and_ends_that_go_are_seen() {
    for monitor in [None, Some(Kind::Native)] {
        let (_, protect) = protections().remove(2);
        let (mut receiver, mut sender, relay) =
            relayed(&protect, options(monitor), Box::new(|_, bytes| vec![bytes]));
        let idle = Arc::new(AtomicU64::new(0));
        let count = idle.clone();
        let serving = thread::spawn(move || {
            loop {
                match sender.serve(&Generated::new(Mode::Memory), Duration::from_millis(20)) {
                    Ok(Served::Idle) => count.fetch_add(1, Ordering::SeqCst),
                    other => break other,
                };
            }
        });
        let mut landing = Memory::new(false);
        for id in 0..3 {
            receiver.grant(&[grant(id, 7, 50_007, true)]).unwrap();
            assert!(matches!(
                receive(&mut *receiver, &mut landing),
                Received::Unit { .. }
            ));
            assert!(landing.read(Range::new(7, 50_007)) == contents(Range::new(7, 50_007)));
            let before = idle.load(Ordering::SeqCst);
            while idle.load(Ordering::SeqCst) < before + 2 {
                let soon = Instant::now() + Duration::from_millis(5);
                assert_eq!(
                    receiver.receive(&mut landing, soon).unwrap(),
                    Received::Idle
                );
            }
        }
        drop(receiver);
        assert_eq!(serving.join().unwrap().unwrap(), Served::Closed);
        drop(relay);
    }
}

/// A monitor of the caller's is polled in the place of the shipped one, and refused where the options name none.
#[test]
fn a_monitor_can_be_replaced() {
    struct Counting(Arc<AtomicU64>);

    impl Monitor for Counting {
        fn poll(&mut self, _sample: &Sample) -> Advice {
            self.0.fetch_add(1, Ordering::SeqCst);
            Advice::default()
        }

        fn level(&self) -> f64 {
            0.0
        }
    }

    let (_, protect) = protections().remove(2);
    let polls = Arc::new(AtomicU64::new(0));
    let watched = |near, options| {
        let monitor = Box::new(Counting(polls.clone()));
        udp::watched_receive_half(near, protect(), options, Some(monitor))
    };
    let (near, _far) = tcp_pair("127.0.0.1:0");
    let refused = watched(near, options(None)).err();
    assert!(matches!(refused, Some(LaneError::Misuse(_))), "{refused:?}");

    let (near, far) = tcp_pair("127.0.0.1:0");
    let options = options(Some(Kind::Native));
    let mut receiver = watched(near, options).unwrap();
    let mut sender = udp::send_half(far, protect(), options).unwrap();
    let serving = thread::spawn(move || sender.serve(&Generated::new(Mode::Memory), LONG));
    let mut landing = Memory::new(false);
    while polls.load(Ordering::SeqCst) == 0 {
        receiver.grant(&[grant(0, 0, 100_000, true)]).unwrap();
        let unit = receive(&mut *receiver, &mut landing);
        assert!(matches!(unit, Received::Unit { .. }), "{unit:?}");
    }
    drop(receiver);
    assert_eq!(serving.join().unwrap().unwrap(), Served::Closed);
}

/// The number of a unit that is whole may be that of another one: its own bytes and hash are sent.
#[test]
fn numbers_of_grants_are_used_again() {
    for (_, protect) in protections() {
        let (near, far) = tcp_pair("127.0.0.1:0");
        let mut receiver = udp::receive_half(near, protect(), options(None)).unwrap();
        let mut sender = udp::send_half(far, protect(), options(None)).unwrap();
        let serving = thread::spawn(move || sender.serve(&Generated::new(Mode::Memory), LONG));
        let mut landing = Memory::new(false);
        for start in [0, 100_001, 100_001] {
            let wanted = grant(0, start, start + 100_000, true);
            receiver.grant(&[wanted]).unwrap();
            let unit = receive(&mut *receiver, &mut landing);
            assert!(matches!(unit, Received::Unit { .. }), "{unit:?}");
            let expected = Generated::new(Mode::Memory);
            let mut bytes = vec![0; 100_000];
            expected.read(2, start, &mut bytes).unwrap();
            assert!(landing.read(wanted.range) == bytes, "unit at {start}");
        }
        drop(receiver);
        assert_eq!(serving.join().unwrap().unwrap(), Served::Closed);
    }
}
