//! Two ends of a pipe in one process.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ropewalk_pipe::frame::{self, Kind, STREAMS_MAX, WINDOW};
use ropewalk_pipe::{Pipe, PipeError, Requests, Side, blocking};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

/// Longest time that anything may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

fn ends() -> ((Pipe, Requests), (Pipe, Requests)) {
    let (up_read, up_write) = tokio::io::simplex(64 << 10);
    let (down_read, down_write) = tokio::io::simplex(64 << 10);
    (
        Pipe::start(down_read, up_write, Side::Starter),
        Pipe::start(up_read, down_write, Side::Started),
    )
}

async fn connected(from: &Pipe, to: &mut Requests) -> (UnixStream, UnixStream) {
    let taking = async { to.next().await.unwrap().accept().await.unwrap() };
    let (opened, taken) = tokio::join!(from.open(b"test"), taking);
    (opened.unwrap(), taken)
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at * 31 + at / 251 + seed) as u8)
        .collect()
}

/// Bytes of an exchange, each way: more than a window.
const EXCHANGED: usize = 3 * WINDOW as usize + 17;

/// Sends the bytes of one seed and expects those of another, at once.
async fn exchange(stream: UnixStream, sends: usize, expects: usize) {
    let (mut reader, mut writer) = stream.into_split();
    let (sent, expected) = (bytes(EXCHANGED, sends), bytes(EXCHANGED, expects));
    let sending = async {
        writer.write_all(&sent).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let mut got = Vec::new();
    let (_, read) = tokio::join!(sending, reader.read_to_end(&mut got));
    read.unwrap();
    assert!(got == expected, "{sends} {expects}");
}

/// Both ends open streams, headers arrive, and many streams carry bytes both ways at once, more than their windows.
#[tokio::test(flavor = "multi_thread")]
async fn streams_carry_bytes_both_ways() {
    let ((a, mut to_a), (b, mut to_b)) = ends();
    let mut pairs = Vec::new();
    for _ in 0..4 {
        pairs.push(connected(&a, &mut to_b).await);
        pairs.push(connected(&b, &mut to_a).await);
    }
    let mut tasks = tokio::task::JoinSet::new();
    for (number, (one, other)) in pairs.into_iter().enumerate() {
        for (at, stream) in [one, other].into_iter().enumerate() {
            tasks.spawn(exchange(stream, number * 2 + at, number * 2 + 1 - at));
        }
    }
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap()
        }
    };
    tokio::time::timeout(DEADLINE, all).await.unwrap();
    let (a_read, a_written) = a.carried();
    a.close(DEADLINE).await;
    b.closed().await;
    let each_way = 8 * EXCHANGED as u64;
    assert!(a_read > each_way && a_read < each_way + each_way / 100);
    assert!(a_written > each_way);
}

/// A caller that waits for a stream no longer gives its place back.
#[tokio::test]
async fn places_of_given_up_streams_are_free() {
    let ((a, _to_a), (_b, mut to_b)) = ends();
    let mut unanswered = Vec::new();
    for _ in 0..2 * STREAMS_MAX {
        tokio::select! {
            biased;
            _ = a.open(b"given up") => panic!("nothing takes it"),
            asked = to_b.next() => unanswered.push(asked),
        }
    }
    let (_one, _other) = connected(&a, &mut to_b).await;
}

/// A stream that nobody reads holds up no other, and no more than its window waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn streams_wait_alone() {
    let ((a, _to_a), (_b, mut to_b)) = ends();
    let (mut full, mut unread) = connected(&a, &mut to_b).await;
    let len = 16 << 20;
    let writing = tokio::spawn(async move {
        full.write_all(&bytes(len, 3)).await.unwrap();
    });
    let until_full = async {
        while a.carried().1 < u64::from(WINDOW) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, until_full).await.unwrap();
    let (mut one, mut other) = connected(&a, &mut to_b).await;
    let passed = async {
        for _ in 0..1000 {
            one.write_all(b"through").await.unwrap();
            let mut got = [0; 7];
            other.read_exact(&mut got).await.unwrap();
            assert_eq!(&got, b"through");
        }
    };
    tokio::time::timeout(DEADLINE, passed).await.unwrap();
    // The window, and what the socket at the other end holds.
    assert!(a.carried().1 < 4 << 20, "{:?}", a.carried());
    let mut got = vec![0; len];
    let reading = unread.read_exact(&mut got);
    tokio::time::timeout(DEADLINE, reading)
        .await
        .unwrap()
        .unwrap();
    assert!(got == bytes(len, 3));
    writing.await.unwrap();
}

/// Refusals arrive in words; what is dropped is refused; too many streams are refused at the opener.
#[tokio::test]
async fn streams_are_refused_in_words() {
    let ((a, _to_a), (_b, mut to_b)) = ends();
    let refusing = async {
        let request = to_b.next().await.unwrap();
        assert_eq!(request.header, b"where");
        request.refuse("there is no such node");
    };
    let (refused, ()) = tokio::join!(a.open(b"where"), refusing);
    assert_eq!(
        refused.unwrap_err(),
        PipeError::Refused("there is no such node".into())
    );
    let dropping = async { drop(to_b.next().await.unwrap()) };
    let (refused, ()) = tokio::join!(a.open(b""), dropping);
    assert!(matches!(refused, Err(PipeError::Refused(_))));
    let mut open = Vec::new();
    for _ in 0..STREAMS_MAX {
        open.push(connected(&a, &mut to_b).await);
    }
    let many = a.open(b"").await.unwrap_err().to_string();
    assert!(many.contains("are open already"), "{many}");
    drop(open.pop());
    let again = async {
        loop {
            match a.open(b"").await {
                Ok(stream) => return stream,
                Err(PipeError::Refused(_)) => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
        }
    };
    let taking = async { to_b.next().await.unwrap().accept().await.unwrap() };
    tokio::time::timeout(DEADLINE, async { tokio::join!(again, taking) })
        .await
        .unwrap();
}

/// When an end is closed, or says what makes no sense, all streams end and nothing hangs.
#[tokio::test]
async fn closing_ends_everything() {
    let ((a, _to_a), (b, mut to_b)) = ends();
    let (mut one, mut other) = connected(&a, &mut to_b).await;
    a.close(Duration::ZERO).await;
    b.closed().await;
    assert_eq!(one.read(&mut [0]).await.unwrap(), 0);
    assert_eq!(other.read(&mut [0]).await.unwrap(), 0);
    assert_eq!(a.open(b"").await.unwrap_err(), PipeError::Closed);
    assert!(to_b.next().await.is_none());

    let (mut odd, theirs) = tokio::io::duplex(1 << 10);
    let (reader, writer) = tokio::io::split(theirs);
    let (pipe, _requests) = Pipe::start(reader, writer, Side::Started);
    // The other end's own numbers are odd, and it has granted nothing yet.
    odd.write_all(&frame::encode(Kind::Open, 1, b""))
        .await
        .unwrap();
    odd.write_all(&frame::encode(Kind::Credit, 1, &WINDOW.to_le_bytes()))
        .await
        .unwrap();
    tokio::time::timeout(DEADLINE, pipe.closed()).await.unwrap();
}

/// Last words written before closing arrive.
#[tokio::test]
async fn last_words_arrive() {
    for _ in 0..20 {
        let ((a, _to_a), (_b, mut to_b)) = ends();
        let (mut one, mut other) = connected(&a, &mut to_b).await;
        let reading = tokio::spawn(async move {
            let mut got = Vec::new();
            other.read_to_end(&mut got).await.unwrap();
            got
        });
        one.write_all(b"farewell").await.unwrap();
        drop(one);
        a.close(DEADLINE).await;
        assert_eq!(reading.await.unwrap(), b"farewell");
    }
}

/// Threads use streams as sockets that wait, over real pipes.
#[tokio::test(flavor = "multi_thread")]
async fn threads_use_streams() {
    let pipe = || -> (OwnedFd, OwnedFd) {
        let (reader, writer) = std::io::pipe().unwrap();
        (reader.into(), writer.into())
    };
    let ((up_read, up_write), (down_read, down_write)) = (pipe(), pipe());
    let (a, _to_a) = Pipe::over(down_read, up_write, Side::Starter).unwrap();
    let (_b, mut to_b) = Pipe::over(up_read, down_write, Side::Started).unwrap();
    let (one, other) = connected(&a, &mut to_b).await;
    let (mut one, mut other) = (blocking(one).unwrap(), blocking(other).unwrap());
    let sender = std::thread::spawn(move || {
        one.write_all(&bytes(2 << 20, 1)).unwrap();
    });
    let got = tokio::task::spawn_blocking(move || {
        let mut got = Vec::new();
        other.read_to_end(&mut got).unwrap();
        got
    });
    assert!(got.await.unwrap() == bytes(2 << 20, 1));
    sender.join().unwrap();
}

/// Streams of two pipes are joined: more than their windows goes both ways, each byte is counted once, each end is passed on,
/// and what breaks at one end ends at the other.
#[tokio::test(flavor = "multi_thread")]
async fn streams_of_two_pipes_are_joined() {
    let ((_to_a, mut asked), (a, _none)) = ends();
    let ((to_b, _none), (_b, mut taken)) = ends();
    let tally = Arc::new(AtomicU64::new(0));
    let joining = tally.clone();
    tokio::spawn(async move {
        while let Some(request) = asked.next().await {
            let (to_b, joining) = (to_b.clone(), joining.clone());
            tokio::spawn(async move { request.join(&to_b, b"on", &joining).await });
        }
    });
    let taking = async { taken.next().await.unwrap().accept().await.unwrap() };
    let (near, far) = tokio::join!(a.open(b"to b"), taking);
    let both = async { tokio::join!(exchange(near.unwrap(), 0, 1), exchange(far, 1, 0)) };
    tokio::time::timeout(DEADLINE, both).await.unwrap();
    assert_eq!(tally.load(Ordering::Relaxed), 2 * EXCHANGED as u64);

    // One end is gone.
    let taking = async { taken.next().await.unwrap().accept().await.unwrap() };
    let (near, far) = tokio::join!(a.open(b"to b"), taking);
    let mut near = near.unwrap();
    drop(far);
    let gone = async { while near.write_all(&[0; 1 << 10]).await.is_ok() {} };
    tokio::time::timeout(DEADLINE, gone).await.unwrap();
    // The far end refuses.
    let refusing = async { taken.next().await.unwrap().refuse("full") };
    let (refused, ()) = tokio::join!(a.open(b"to b"), refusing);
    assert_eq!(refused.unwrap_err(), PipeError::Refused("full".into()));
}
