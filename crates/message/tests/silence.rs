//! Rails of the lab that go silent while the bytes of a stream cross them. Skipped, visibly, where namespaces cannot be made.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_lab::{HostSpec, Lab, LabBuilder, NicSpec};
use ropewalk_message::{ByteStream, ByteStreamListener, ByteStreams, Options};

/// Longest time that anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Bytes of a step, more than is on its way at once, and of the whole.
const STEP: usize = 6 << 20;
const ALL: usize = 5 * STEP;

fn options() -> Options {
    Options {
        token: Some([7; 32]),
        deadline: Some(PATIENCE),
        ..Options::default()
    }
}

fn lab() -> Lab {
    let nic = || NicSpec::rate_bits(100_000_000);
    let host = |name| HostSpec::new(name).nic(nic()).nic(nic());
    LabBuilder::new()
        .host(host("a"))
        .host(host("b"))
        .build()
        .unwrap()
}

fn byte_at(at: usize) -> u8 {
    (at * 7 + at / 251) as u8
}

/// Reads to the end; says where it is through `seen`.
fn read_all(stream: &ByteStream, mut seen: impl FnMut(usize)) {
    let (mut at, mut space) = (0, vec![0; 100_000]);
    loop {
        let count = stream.read(&mut space).unwrap();
        if count == 0 {
            break;
        }
        for byte in &space[..count] {
            assert_eq!(*byte, byte_at(at), "at {at}");
            at += 1;
        }
        seen(at);
    }
    assert_eq!(at, ALL);
}

fn write_all(stream: &ByteStream) {
    let bytes: Vec<u8> = (0..ALL).map(byte_at).collect();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let count = stream.write(&rest[..rest.len().min(64 << 10)]).unwrap();
        rest = &rest[count..];
    }
    stream.shutdown().unwrap();
}

/// A rail that carries nothing any more, and says nothing of it, costs its share: the other one carries on, both ways; then the
/// first one alone does.
#[test]
fn bytes_go_on_over_the_other_rail() {
    if ropewalk_lab::skip("bytes_go_on_over_the_other_rail") {
        return;
    }
    let lab = lab();
    let at = |host: &str| -> Vec<SocketAddr> {
        let own = lab.addresses(host).into_iter();
        own.map(|address| SocketAddr::new(address, 0)).collect()
    };
    let listener = lab
        .in_network("b", || ByteStreamListener::bind(&at("b"), &options()))
        .unwrap()
        .unwrap();
    let local = Options {
        local: lab.addresses("a"),
        ..options()
    };
    let streams = lab
        .in_network("a", || {
            ByteStreams::connect(&listener.addresses(), &local).unwrap()
        })
        .unwrap();
    let near = streams.open(b"").unwrap();
    let far = listener.accept().unwrap();
    for stream in [&near, &far] {
        stream.set_read_timeout(Some(PATIENCE));
        stream.set_write_timeout(Some(PATIENCE));
    }
    let all_up = |what: &str| {
        let begun = Instant::now();
        while !streams.rails().iter().all(|rail| rail.is_up) {
            assert!(begun.elapsed() < PATIENCE, "{what}: {:?}", streams.rails());
            thread::yield_now();
        }
    };
    all_up("both rails");
    thread::scope(|scope| {
        scope.spawn(|| write_all(&near));
        scope.spawn(|| write_all(&far));
        scope.spawn(|| read_all(&far, |_| {}));
        let mut steps = 0;
        read_all(&near, |at| {
            if at >= STEP && steps == 0 {
                lab.blackhole("a", 0, true).unwrap();
                steps = 1;
            } else if at >= 3 * STEP && steps == 1 {
                // The other rail alone has brought two steps.
                lab.blackhole("a", 0, false).unwrap();
                all_up("the first rail again");
                lab.blackhole("b", 1, true).unwrap();
                steps = 2;
            }
        });
    });
    assert!(streams.failure().is_none());
    drop((near, far, streams, listener));
    lab.close().unwrap();
}
