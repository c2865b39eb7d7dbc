//! Streams whose peer is a message socket in the hands of the test.

use std::time::{Duration, Instant};

use ropewalk_proto::byte_stream::frame::{Header, Kind};
use ropewalk_proto::byte_stream::{STREAMS_MAX, WINDOW_FIRST};

use crate::{ByteStreams, Listener, MessageError, MessageSocket, Options};

/// Longest time that anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn pair() -> (ByteStreams, MessageSocket) {
    let options = Options {
        deadline: Some(PATIENCE),
        ..Options::default()
    };
    let listener = Listener::bind(&["127.0.0.1:0".parse().unwrap()], &options).unwrap();
    let near = ByteStreams::connect(&listener.addresses(), &options).unwrap();
    (near, listener.accept().unwrap())
}

/// A peer that breaks the rules ends the socket, whatever it sends, and takes nothing else with it.
#[test]
fn peers_that_break_the_rules_are_left() {
    let open = Header::new(Kind::Open, 1, 0).frame(b"x");
    let mut other_version = open.clone();
    other_version[1] = 2;
    let beyond = |stream| Header::new(Kind::Data, stream, 0).frame(&vec![0; 65 << 10]);
    let cases: [(Vec<Vec<u8>>, &str); 6] = [
        (vec![b"hello".to_vec()], "5 bytes is no frame"),
        (vec![other_version], "version 2"),
        (
            vec![Header::new(Kind::Open, 3, 0).frame(&[])],
            "out of order",
        ),
        (
            vec![Header::new(Kind::Stop, 1, 0).frame(&[])],
            "never opened",
        ),
        (vec![open.clone(), beyond(1)], "beyond its credit"),
        (vec![vec![0; 1 << 20]], "were given"),
    ];
    for (messages, words) in cases {
        let (near, far) = pair();
        let own = near.open(b"").unwrap();
        own.set_read_timeout(Some(PATIENCE));
        for message in messages {
            // The socket may be closed before the last one is acknowledged.
            let _ = far.send(&message);
        }
        let error = own.read(&mut [0; 10]).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
        assert!(near.failure().is_some());
        assert!(near.open(b"").is_err());
    }
}

/// What is not read stays within the window, and what is read is credited in few frames.
#[test]
fn credit_is_given_in_few_frames() {
    let (near, far) = pair();
    far.send(&Header::new(Kind::Open, 1, 0).frame(b"")).unwrap();
    let own = near.accept().unwrap();
    own.set_read_timeout(Some(PATIENCE));
    let window = WINDOW_FIRST as usize;
    let data = Header {
        uses_up: true,
        ..Header::new(Kind::Data, 1, 0)
    };
    far.send(&data.frame(&vec![7; window])).unwrap();
    let mut read = 0;
    while read < window {
        read += own.read(&mut [0; 1000]).unwrap();
    }
    let mut credits = Vec::new();
    while credits.last() != Some(&(2 * WINDOW_FIRST)) && credits.last() != Some(&(3 * WINDOW_FIRST))
    {
        let message = far.receive_vec(1000).unwrap().unwrap();
        let header = Header::decode(&message).unwrap();
        assert_eq!((header.kind, header.stream), (Kind::Credit, 1));
        credits.push(header.value);
    }
    assert!(credits.len() <= 5, "{credits:?}");
    assert!(credits.is_sorted());
}

/// A stream that the peer opens where nobody accepts any more is refused, and the others go on.
#[test]
fn streams_that_nobody_accepts_are_refused() {
    let (near, far) = pair();
    let own = near.open(b"").unwrap();
    own.set_read_timeout(Some(PATIENCE));
    drop(near);
    far.send(&Header::new(Kind::Open, 1, 0).frame(b"")).unwrap();
    let refusal = loop {
        let message = far.receive_vec(1000).unwrap().unwrap();
        let header = Header::decode(&message).unwrap();
        if header.stream == 1 {
            break header;
        }
    };
    assert_eq!(refusal.kind, Kind::Reset);
    far.send(&Header::new(Kind::Data, 0, 0).frame(b"still here"))
        .unwrap();
    let mut space = [0; 100];
    assert_eq!(own.read(&mut space).unwrap(), 10);
}

/// A peer that opens streams and gives them up, again and again, has so many waiting at most, and is refused more.
#[test]
fn streams_that_are_given_up_are_bounded() {
    let (near, far) = pair();
    let over = 100;
    for number in 0..STREAMS_MAX + over {
        let stream = 1 + 2 * number as u32;
        far.send_start(Header::new(Kind::Open, stream, 0).frame(&[7; 1000]))
            .unwrap();
        far.send_start(Header::new(Kind::Reset, stream, 2).frame(&[]))
            .unwrap();
    }
    let mut refused = 0;
    while refused < over {
        let message = far.receive_vec(1000).unwrap().unwrap();
        let header = Header::decode(&message).unwrap();
        refused += usize::from(header.kind == Kind::Reset);
    }
    let now = Some(Instant::now());
    let accepted = std::iter::from_fn(|| near.accept_until(now).ok()).count();
    assert_eq!(accepted, STREAMS_MAX);
    // There is space again.
    let stream = 1 + 2 * (STREAMS_MAX + over) as u32;
    far.send(&Header::new(Kind::Open, stream, 0).frame(b"last"))
        .unwrap();
    assert_eq!(near.accept().unwrap().greeting(), b"last");
}

/// Waiting for streams ends with the deadline, and with the socket.
#[test]
fn accepting_ends() {
    let (near, far) = pair();
    let now = Some(Instant::now());
    assert!(matches!(
        near.accept_until(now),
        Err(MessageError::Deadline)
    ));
    far.close();
    assert!(matches!(near.accept(), Err(MessageError::PeerClosed)));
}
