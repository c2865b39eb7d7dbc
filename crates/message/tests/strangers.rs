//! What recorded, swallowed, slow and silent connections can do to those who know each other.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_message::{CutOff, Listener, MessageError, MessageSocket, Options};

/// Longest time that anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const SECRET: &[u8] = b"nobody in between may read this";

fn options() -> Options {
    Options {
        token: Some([1; 32]),
        cut_off: CutOff::Fixed(16 << 10),
        deadline: Some(PATIENCE),
        ..Options::default()
    }
}

fn listener(own: &Options) -> Listener {
    let addresses = ["127.0.0.1:0", "127.0.0.2:0"].map(|text| text.parse().unwrap());
    Listener::bind(&addresses, own).unwrap()
}

/// Stands between: passes on what the connecting end says and keeps it; passes answers back if told to. Gives its address
/// and what it kept.
fn between(to: SocketAddr, answers: bool) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let own = TcpListener::bind("127.0.0.3:0").unwrap();
    let at = own.local_addr().unwrap();
    let kept = Arc::new(Mutex::new(Vec::new()));
    let heard = kept.clone();
    thread::spawn(move || {
        while let Ok((near, _)) = own.accept() {
            let far = TcpStream::connect(to).unwrap();
            let (mut from, mut into) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let heard = heard.clone();
            thread::spawn(move || {
                let mut room = [0; 4096];
                while let Ok(count @ 1..) = from.read(&mut room) {
                    heard.lock().unwrap().extend_from_slice(&room[..count]);
                    if into.write_all(&room[..count]).is_err() {
                        break;
                    }
                }
                let _ = into.shutdown(Shutdown::Write);
            });
            thread::spawn(move || {
                let (mut far, mut near) = (far, near);
                if answers {
                    let _ = std::io::copy(&mut far, &mut near);
                } else {
                    let _ = far.read(&mut [0; 128]);
                }
                let _ = near.shutdown(Shutdown::Both);
            });
        }
    });
    (at, kept)
}

fn goes_around(near: &MessageSocket, far: &MessageSocket) {
    let message: Vec<u8> = (0..1_000_000_u32).map(|at| (at / 3) as u8).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            near.send(SECRET).unwrap();
            near.send(&message).unwrap();
        });
        assert_eq!(far.receive_vec(100).unwrap().unwrap(), SECRET);
        assert!(far.receive_vec(1 << 20).unwrap().unwrap() == message);
    });
    far.send(b"back").unwrap();
    assert_eq!(near.receive_vec(100).unwrap().unwrap(), b"back");
}

/// With a token nothing crosses in the clear, unless that is asked for by name.
#[test]
fn records_are_sealed_by_default() {
    for plain in [false, true] {
        let own = Options { plain, ..options() };
        let listener = listener(&own);
        let (at, kept) = between(listener.addresses()[0], true);
        let near = MessageSocket::connect(&[at], &own).unwrap();
        let far = listener.accept().unwrap();
        goes_around(&near, &far);
        let kept = kept.lock().unwrap();
        let seen = kept.windows(SECRET.len()).any(|bytes| bytes == SECRET);
        assert_eq!(seen, plain);
    }
}

/// Who listens without `plain` takes no connection in the clear, and says so; who has set it takes both kinds.
#[test]
fn the_listening_end_may_insist() {
    let plain = Options {
        plain: true,
        ..options()
    };
    let strict = listener(&options());
    let error = MessageSocket::connect(&strict.addresses(), &plain).unwrap_err();
    assert!(
        error.to_string().contains("sealed connections only"),
        "{error}"
    );
    let easy = listener(&plain);
    let near = MessageSocket::connect(&easy.addresses(), &options()).unwrap();
    goes_around(&near, &easy.accept().unwrap());
}

/// A recorded beginning begins nothing, neither at another listener with the same token nor at the same one.
#[test]
fn recordings_begin_nothing() {
    let own = Options {
        plain: true,
        ..options()
    };
    let first = listener(&own);
    let (at, kept) = between(first.addresses()[0], true);
    let near = MessageSocket::connect(&[at], &own).unwrap();
    let far = first.accept().unwrap();
    near.send(SECRET).unwrap();
    let recorded = kept.lock().unwrap().clone();
    drop((near, far));
    let brief = Options {
        deadline: Some(Duration::from_millis(300)),
        ..own
    };
    let second = listener(&brief);
    for again in [&first, &second] {
        let mut replay = TcpStream::connect(again.addresses()[0]).unwrap();
        replay.write_all(&recorded).unwrap();
    }
    let error = second.accept().unwrap_err();
    assert!(matches!(error, MessageError::Deadline), "{error}");
}

/// A rail whose answer is lost costs that rail, not the others, and the application gets a socket that works.
#[test]
fn a_lost_answer_costs_one_rail() {
    let listener = listener(&options());
    let [first, second] = listener.addresses()[..] else {
        unreachable!("two addresses were given")
    };
    let (swallows, _) = between(first, false);
    let near = MessageSocket::connect(&[swallows, second], &options()).unwrap();
    let far = listener.accept().unwrap();
    goes_around(&near, &far);
    let rails = near.rails();
    assert!(!rails[0].is_up && rails[1].is_up, "{rails:?}");
}

/// Rails that answer nothing hold nobody beyond his deadline, and do not keep the others waiting for each of them.
#[test]
fn silent_rails_hold_nobody() {
    let silent: Vec<TcpListener> = (0..8)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let mut addresses: Vec<SocketAddr> = silent.iter().map(|l| l.local_addr().unwrap()).collect();
    let brief = Options {
        deadline: Some(Duration::from_millis(300)),
        ..options()
    };
    let error = MessageSocket::connect(&addresses, &brief).unwrap_err();
    assert!(matches!(error, MessageError::Deadline), "{error}");
    // All were tried at once: one after the other each takes longer than the deadline.
    for listener in &silent {
        listener.set_nonblocking(true).unwrap();
        listener.accept().unwrap();
    }

    let listener = listener(&options());
    addresses.push(listener.addresses()[0]);
    let near = MessageSocket::connect(&addresses, &options()).unwrap();
    goes_around(&near, &listener.accept().unwrap());
}

/// An answer that comes byte by byte is given up like one that does not come.
#[test]
fn a_dripping_answer_is_given_up() {
    let own = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = own.local_addr().unwrap();
    let dripping = thread::spawn(move || {
        let (mut stream, _) = own.accept().unwrap();
        let mut dripped = 0;
        // A byte each time that nothing was said for so long, until the other end goes.
        let pause = Duration::from_millis(100);
        stream.set_read_timeout(Some(pause)).unwrap();
        loop {
            match stream.read(&mut [0; 128]) {
                Ok(1..) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if stream.write_all(b"R").is_err() {
                        break dripped;
                    }
                    dripped += 1;
                }
                Ok(0) | Err(_) => break dripped,
            }
        }
    });
    let own = Options {
        deadline: Some(Duration::from_millis(500)),
        ..options()
    };
    assert!(MessageSocket::connect(&[at], &own).is_err());
    let dripped = dripping.join().unwrap();
    assert!(dripped < 128, "the whole answer was waited for");
}

/// Silent connections, however many, keep nobody out.
#[test]
fn silent_strangers_keep_nobody_out() {
    let listener = listener(&options());
    let crowd: Vec<TcpStream> = (0..400)
        .map(|_| TcpStream::connect(listener.addresses()[0]).unwrap())
        .collect();
    let near = MessageSocket::connect(&listener.addresses()[..1], &options()).unwrap();
    goes_around(&near, &listener.accept().unwrap());
    drop(crowd);
}

/// Peers that connect and go before anybody accepts them do not use up the room for others.
#[test]
fn peers_that_went_use_no_room() {
    let listener = listener(&options());
    let at = &listener.addresses()[..1];
    for _ in 0..80 {
        drop(MessageSocket::connect(at, &options()).unwrap());
    }
    let near = MessageSocket::connect(at, &options()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| near.send(b"here").unwrap());
        loop {
            // The last that went may not have been noticed yet.
            match listener.accept().unwrap().receive_vec(10) {
                Err(MessageError::PeerClosed) => {}
                got => break assert_eq!(got.unwrap().unwrap(), b"here"),
            }
        }
    });
}

/// A relay on the way of one rail. Closing its near end leaves its far end open; while `swallows` is set, whatever either
/// end says is taken and goes nowhere. Gives its address, and the news that a far end was closed.
fn relay(to: SocketAddr, swallows: &'static AtomicBool) -> (SocketAddr, Receiver<()>) {
    let own = TcpListener::bind("127.0.0.3:0").unwrap();
    let at = own.local_addr().unwrap();
    let (closed, news) = channel();
    let pass = |mut from: TcpStream, mut into: TcpStream| {
        let mut room = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut room) {
            if !swallows.load(Ordering::Acquire) {
                // Whoever is gone reads nothing more; the other end is read to its end.
                let _ = into.write_all(&room[..count]);
            }
        }
    };
    thread::spawn(move || {
        while let Ok((near, _)) = own.accept() {
            let far = TcpStream::connect(to).unwrap();
            let (from, into) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let closed = closed.clone();
            thread::spawn(move || pass(from, into));
            thread::spawn(move || {
                pass(far, near);
                let _ = closed.send(());
            });
        }
    });
    (at, news)
}

/// A peer that stands still is lost, though its kernel takes everything and answers.
#[test]
fn who_stands_still_is_lost() {
    static SWALLOWS: AtomicBool = AtomicBool::new(false);
    let own = Options {
        peer_timeout: Duration::from_millis(300),
        ..options()
    };
    let listener = listener(&own);
    let (at, _news) = relay(listener.addresses()[0], &SWALLOWS);
    let near = MessageSocket::connect(&[at], &own).unwrap();
    let far = listener.accept().unwrap();
    goes_around(&near, &far);
    SWALLOWS.store(true, Ordering::Release);
    for end in [near, far] {
        let error = end.receive(&mut [0; 10]).unwrap_err();
        assert!(matches!(error, MessageError::PeerLost { .. }), "{error}");
    }
}

/// Who closes its socket and keeps the connections keeps nothing here, though nobody has accepted it.
#[test]
fn connections_of_closed_sockets_end() {
    static SWALLOWS: AtomicBool = AtomicBool::new(false);
    let own = options();
    let until = Instant::now() + PATIENCE;
    let listener = listener(&own);
    let (at, news) = relay(listener.addresses()[0], &SWALLOWS);
    drop(MessageSocket::connect(&[at], &own).unwrap());
    let near = MessageSocket::connect(&listener.addresses(), &own).unwrap();
    near.send_start(vec![2]).unwrap();
    let mut far = None;
    while news.try_recv().is_err() {
        assert!(Instant::now() < until, "its connections stay");
        let soon = Some(Instant::now() + Duration::from_millis(50));
        // The first one is accepted where its farewell is late.
        if let Ok(accepted) = listener.accept_until(soon)
            && let Ok(Some(got)) = accepted.receive_vec(1)
        {
            assert_eq!(got, [2]);
            far = Some(accepted);
        }
    }
    let far = far.unwrap_or_else(|| {
        let far = listener.accept().unwrap();
        assert_eq!(far.receive_vec(1).unwrap(), Some(vec![2]));
        far
    });
    goes_around(&near, &far);
}
