//! Byte streams over loopback addresses: as TCP connections, whatever becomes of rails.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_message::{
    AsyncByteStream, ByteStream, ByteStreamListener, ByteStreams, MessageError, Options, Passed,
    PolledByteStream,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longest time that anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn options() -> Options {
    Options {
        token: Some([7; 32]),
        deadline: Some(PATIENCE),
        ..Options::default()
    }
}

fn rails() -> Vec<SocketAddr> {
    let texts = ["127.0.0.1:0", "127.0.0.2:0"];
    texts.map(|text| text.parse().unwrap()).to_vec()
}

fn patient(stream: ByteStream) -> ByteStream {
    stream.set_read_timeout(Some(PATIENCE));
    stream.set_write_timeout(Some(PATIENCE));
    stream
}

fn several() -> (ByteStreams, ByteStreamListener) {
    let listener = ByteStreamListener::bind(&rails(), &options()).unwrap();
    let near = ByteStreams::connect(&listener.addresses(), &options()).unwrap();
    (near, listener)
}

fn pair() -> (ByteStream, ByteStream, ByteStreams, ByteStreamListener) {
    let (streams, listener) = several();
    let near = patient(streams.open(b"").unwrap());
    let far = patient(listener.accept().unwrap());
    (near, far, streams, listener)
}

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at * 7 + at / 251 + seed * 31) as u8)
        .collect()
}

/// Sends a pattern to the end and gives what came back, with writes and reads of odd lengths.
fn echo(stream: &ByteStream, seed: usize, length: usize) -> Vec<u8> {
    let sent = pattern(seed, length);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut rest = &sent[..];
            let mut step = 1;
            while !rest.is_empty() {
                let count = stream.write(&rest[..step.min(rest.len())]).unwrap();
                rest = &rest[count..];
                step = (step * 3 + 1) % 700_001;
            }
            stream.shutdown().unwrap();
        });
        let mut got = Vec::new();
        { stream }.read_to_end(&mut got).unwrap();
        assert!(got == sent, "{seed}: {} of {length}", got.len());
        got
    })
}

fn serve_echo(stream: ByteStream) {
    let mut space = vec![0; 100_000];
    loop {
        match stream.read(&mut space).unwrap() {
            0 => break,
            count => { &stream }.write_all(&space[..count]).unwrap(),
        }
    }
    stream.close().unwrap();
}

/// Counts a thread that is over, also one that panics.
struct Over<'a>(&'a AtomicU64);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Either end opens streams: the listening one over the socket of a stream that it has accepted, and at the other end they are accepted; each
/// way carries bytes, and a descriptor says that one is there.
#[test]
fn both_ends_open_streams() {
    let (_near, far, streams, listener) = pair();
    let readable = |most: &Timespec| {
        let mut ready = [PollFd::new(&streams, PollFlags::IN)];
        poll(&mut ready, Some(most)).unwrap() == 1
    };
    let at_once = Some(Instant::now());
    assert!(matches!(
        streams.accept_until(at_once),
        Err(MessageError::Deadline)
    ));
    assert!(!readable(&Timespec::default()));
    let most = Timespec {
        tv_sec: PATIENCE.as_secs() as i64,
        tv_nsec: 0,
    };
    for seed in 1..4 {
        let opened = patient(far.open_beside(b"from the listening end").unwrap());
        assert!(readable(&most));
        let arrived = patient(streams.accept().unwrap());
        assert_eq!(arrived.greeting(), b"from the listening end");
        let serving = thread::spawn(move || serve_echo(arrived));
        echo(&opened, seed, 200_003 * seed);
        serving.join().unwrap();
    }
    // The same from the connecting end, and from a stream that was opened so.
    let opened = far.open_beside(b"").unwrap();
    let arrived = streams.accept().unwrap();
    let next = patient(arrived.open_beside(b"back").unwrap());
    let accepted = patient(listener.accept().unwrap());
    assert_eq!(accepted.greeting(), b"back");
    accepted.write(b"x").unwrap();
    assert_eq!(next.read(&mut [0; 9]).unwrap(), 1);
    let too_long = opened.open_beside(&[0; 1025]).unwrap_err();
    assert!(too_long.to_string().contains("1025"), "{too_long}");
    // Where nothing is accepted any more it is reset.
    drop(streams);
    let refused = patient(far.open_beside(b"").unwrap());
    let error = refused.read(&mut [0; 9]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}

/// Many streams over one socket, all at once and both ways, keep their bytes apart and in order, while a rail breaks again and again.
#[test]
fn many_streams_survive_rails_that_break() {
    let (near, listener) = several();
    const STREAMS: usize = 12;
    let done = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::scope(|serving| {
                for _ in 0..STREAMS {
                    let stream = patient(listener.accept().unwrap());
                    serving.spawn(move || serve_echo(stream));
                }
            });
        });
        let (near, done) = (&near, &done);
        for seed in 0..STREAMS {
            scope.spawn(move || {
                let _over = Over(done);
                let stream = patient(near.open(b"echo").unwrap());
                echo(&stream, seed, 1_000_000 * seed + seed);
            });
        }
        let mut broken = 0;
        while done.load(Ordering::Relaxed) < STREAMS as u64 {
            near.break_rail(broken % 2);
            broken += 1;
            // Until it is back: the other one works meanwhile.
            let begun = Instant::now();
            while near.rails().iter().any(|rail| !rail.is_up)
                && begun.elapsed() < PATIENCE
                && done.load(Ordering::Relaxed) < STREAMS as u64
            {
                thread::yield_now();
            }
        }
    });
    assert!(near.failure().is_none());
}

/// Large writes use all rails.
#[test]
fn all_rails_carry() {
    let (near, far, streams, _listener) = pair();
    let echoing = thread::spawn(move || serve_echo(far));
    echo(&near, 3, 20 << 20);
    echoing.join().unwrap();
    for rail in streams.rails() {
        // The faster one takes more; how much depends on the threads of this host.
        assert!(rail.bytes_sent > 64 << 10, "{rail:?}");
    }
}

/// One way ends, the other goes on; writing after the end fails, and reading gives the end again and again.
#[test]
fn half_close_works() {
    let (near, far, ..) = pair();
    assert_eq!(near.write(b"question").unwrap(), 8);
    near.shutdown().unwrap();
    near.shutdown().unwrap();
    assert_eq!(
        near.write(b"x").unwrap_err().kind(),
        ErrorKind::NotConnected
    );
    let mut text = String::new();
    { &far }.read_to_string(&mut text).unwrap();
    assert_eq!(text, "question");
    assert_eq!(far.read(&mut [0; 9]).unwrap(), 0);
    for _ in 0..100 {
        assert_eq!(far.write(b"answer").unwrap(), 6);
    }
    far.close().unwrap();
    let mut answer = Vec::new();
    { &near }.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"answer".repeat(100));
}

/// A writer waits for a reader that reads nothing, and others do not wait for either.
#[test]
fn slow_readers_slow_their_own_writer() {
    let (near, listener) = several();
    let stuck = near.open(b"stuck").unwrap();
    stuck.set_write_timeout(Some(Duration::from_millis(50)));
    let slow = patient(listener.accept().unwrap());
    let mut written = 0;
    let error = loop {
        match stuck.write(&[1; 100_000]) {
            Ok(count) => written += count,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(written, 64 << 10, "the first window");
    let other = patient(near.open(b"other").unwrap());
    let far = patient(listener.accept().unwrap());
    assert_eq!(far.greeting(), b"other");
    let echoing = thread::spawn(move || serve_echo(far));
    echo(&other, 1, 1 << 20);
    echoing.join().unwrap();
    // And once it reads, all goes on.
    stuck.set_write_timeout(Some(PATIENCE));
    let reading = thread::spawn(move || {
        let mut all = Vec::new();
        { &slow }.read_to_end(&mut all).unwrap();
        all.len()
    });
    { &stuck }.write_all(&[2; 300_000]).unwrap();
    stuck.shutdown().unwrap();
    assert_eq!(reading.join().unwrap(), written + 300_000);
}

/// A peer that drops its end stops the writer; one that resets says why.
#[test]
fn ends_that_leave_are_noticed() {
    let (near, listener) = several();
    let own = patient(near.open(b"").unwrap());
    drop(listener.accept().unwrap());
    let error = loop {
        match own.write(&[0; 1000]) {
            Ok(_) => thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    assert_eq!(own.read(&mut [0; 9]).unwrap(), 0, "its end");
    // To end is no error, as with TCP.
    own.shutdown().unwrap();
    own.finish_until(Instant::now().checked_add(PATIENCE))
        .unwrap();
    own.close().unwrap();

    let own = patient(near.open(b"").unwrap());
    own.write(b"lost with it").unwrap();
    patient(listener.accept().unwrap()).reset(5, "no such port");
    let error = own.read(&mut [0; 9]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let inner = error.into_inner().unwrap();
    match inner.downcast_ref() {
        Some(MessageError::Reset { code: 261, text }) => assert_eq!(text, "no such port"),
        other => panic!("{other:?}"),
    }
    let error = own.write(b"x").unwrap_err();
    assert!(error.to_string().contains("no such port"), "{error}");
    let error = own.close().unwrap_err();
    assert!(error.to_string().contains("no such port"), "{error}");
    assert!(near.failure().is_none(), "others go on");
}

/// An answer that is whole is read to its end though the peer has refused what was sent after it, also by a program behind a TCP connection.
#[test]
fn answers_outlive_what_is_refused() {
    let (near, far, ..) = pair();
    far.write(b"answer").unwrap();
    far.shutdown().unwrap();
    far.reset(5, "no more");
    let error = loop {
        match near.write(b"x") {
            Ok(_) => thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("no more"), "{error}");
    let mut answer = String::new();
    { &near }.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer");

    let (near, far, ..) = pair();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let (socket, _) = listener.accept().unwrap();
    // More than the client's kernel takes unread, and less than this end's does.
    let sent = pattern(3, 256 << 10);
    let got = thread::scope(|scope| {
        let joined = scope.spawn(|| near.join(socket, 7, &Passed::default()));
        (&far).write_all(&sent).unwrap();
        far.shutdown().unwrap();
        far.reset(5, "no more");
        for _ in 0..1000 {
            if client.write_all(b"x").is_err() || joined.is_finished() {
                break;
            }
            thread::yield_now();
        }
        let mut got = Vec::new();
        let read = client.read_to_end(&mut got);
        drop(client);
        read.map(|_| got)
    });
    assert!(got.unwrap() == sent);
}

/// What was written before a stream, and the last of its socket, was dropped arrives.
#[test]
fn dropped_streams_deliver() {
    let listener = ByteStreamListener::bind(&rails(), &options()).unwrap();
    for length in [1, 60_000] {
        let near = ByteStream::connect(&listener.addresses(), &options()).unwrap();
        let far = patient(listener.accept().unwrap());
        assert_eq!(near.write(&pattern(1, length)).unwrap(), length);
        drop(near);
        let mut got = Vec::new();
        { &far }.read_to_end(&mut got).unwrap();
        assert!(got == pattern(1, length));
    }
}

/// A peer whose socket is closed is noticed after what it sent before was read.
#[test]
fn closed_sockets_are_noticed_late_enough() {
    let (near, far, streams, _listener) = pair();
    near.write(b"last").unwrap();
    let mut space = [0; 100];
    assert_eq!(far.read(&mut space[..1]).unwrap(), 1);
    streams.close();
    assert_eq!(far.read(&mut space).unwrap(), 3);
    let error = far.read(&mut space).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(near.read(&mut space).is_err());
}

/// An end that has ended its way and whose bytes were delivered closes without an error, though the peer's socket is closed by then; one that has
/// not learns of it.
#[test]
fn ended_streams_close_after_their_peer() {
    let (near, far, _streams, listener) = pair();
    near.write(b"question").unwrap();
    near.shutdown().unwrap();
    let mut text = String::new();
    { &far }.read_to_string(&mut text).unwrap();
    listener.close();
    let reset = near.read(&mut [0; 9]).unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
    near.shutdown().unwrap();
    near.close().unwrap();
    assert!(far.close().is_err());
}

/// Calls with a deadline of their own lose nothing when it passes.
#[test]
fn calls_have_deadlines_of_their_own() {
    let (near, far, ..) = pair();
    let mut space = [0; 100];
    let now = Some(Instant::now());
    assert!(matches!(
        far.read_until(&mut space, now),
        Err(MessageError::Deadline)
    ));
    let long = vec![1; 100_000];
    let mut written = near.write_until(&long, now).unwrap();
    let late = loop {
        match near.write_until(&long, now) {
            Ok(count) => written += count,
            Err(error) => break error,
        }
    };
    assert!(matches!(late, MessageError::Deadline));
    let later = Instant::now().checked_add(PATIENCE);
    near.finish_until(later).unwrap();
    let mut read = 0;
    while let count @ 1.. = far.read_until(&mut space, later).unwrap() {
        read += count;
    }
    assert_eq!(read, written);
}

/// As many streams as there may be, and one more.
#[test]
fn streams_are_bounded() {
    let (near, _listener) = several();
    let all: Vec<ByteStream> = (0..1024).map(|_| near.open(b"").unwrap()).collect();
    assert!(matches!(
        near.open(b""),
        Err(MessageError::TooManyStreams(1024))
    ));
    drop(all);
    assert!(near.open(&[0; 1025]).is_err());
}

fn wait(stream: &PolledByteStream, events: PollFlags) {
    let mut one = [PollFd::new(stream, events)];
    let most = Timespec::try_from(PATIENCE).unwrap();
    assert_eq!(poll(&mut one, Some(&most)).unwrap(), 1, "{events:?}");
}

/// An event loop with one descriptor a stream writes until it would wait, and reads until it would wait.
#[test]
fn descriptors_serve_event_loops() {
    let (near, far, ..) = pair();
    let (near, far) = (
        PolledByteStream::new(near).unwrap(),
        PolledByteStream::new(far).unwrap(),
    );
    let sent = pattern(9, 3 << 20);
    let writing = {
        let sent = sent.clone();
        thread::spawn(move || {
            let mut rest = &sent[..];
            while !rest.is_empty() {
                match near.write(rest) {
                    Ok(count) => rest = &rest[count..],
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        wait(&near, PollFlags::OUT);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            near.stream().shutdown().unwrap();
            near
        })
    };
    let (mut got, mut space) = (Vec::new(), vec![0; 50_000]);
    loop {
        match far.read(&mut space) {
            Ok(0) => break,
            Ok(count) => got.extend_from_slice(&space[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(&far, PollFlags::IN),
            Err(error) => panic!("{error}"),
        }
    }
    assert!(got == sent);
    drop(writing.join().unwrap());
}

/// Tasks read and write as threads do.
#[test]
fn tasks_read_and_write() {
    struct Unpark(thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    fn block_on<F: Future>(future: F) -> F::Output {
        let waker = Arc::new(Unpark(thread::current())).into();
        let mut future = std::pin::pin!(future);
        loop {
            let mut context = std::task::Context::from_waker(&waker);
            match future.as_mut().poll(&mut context) {
                std::task::Poll::Ready(output) => return output,
                std::task::Poll::Pending => thread::park_timeout(PATIENCE),
            }
        }
    }
    let (near, far, ..) = pair();
    let (near, far) = (AsyncByteStream::from(near), AsyncByteStream::from(far));
    let sent = pattern(4, 2 << 20);
    let writing = {
        let sent = sent.clone();
        thread::spawn(move || {
            block_on(async {
                let mut rest = &sent[..];
                while !rest.is_empty() {
                    let count = near.write(rest).await.unwrap();
                    rest = &rest[count..];
                }
                near.shutdown().unwrap();
            });
            near
        })
    };
    let got = block_on(async {
        let (mut got, mut space) = (Vec::new(), vec![0; 70_000]);
        while let count @ 1.. = far.read(&mut space).await.unwrap() {
            got.extend_from_slice(&space[..count]);
        }
        got
    });
    assert!(got == sent);
    drop(writing.join().unwrap());
}
