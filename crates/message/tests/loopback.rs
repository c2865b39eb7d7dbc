//! Whole sockets over loopback addresses.

use std::io::{Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_message::{
    CutOff, Listener, MessageError, MessageSocket, Method, Mode, Options, RailReport, SplitTimes,
};

/// Longest time that anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn options() -> Options {
    Options {
        cut_off: CutOff::Fixed(16 << 10),
        deadline: Some(PATIENCE),
        ..Options::default()
    }
}

fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// Two rails; a third over IPv6 where the host has it.
fn rails() -> Vec<SocketAddr> {
    let mut all = addresses(&["127.0.0.1:0", "127.0.0.2:0"]);
    if std::net::TcpListener::bind("[::1]:0").is_ok() {
        all.extend(addresses(&["[::1]:0"]));
    }
    all
}

/// Both ends of a socket over these rails.
fn pair_with(
    rails: &[SocketAddr],
    near: &Options,
    far: &Options,
) -> (MessageSocket, MessageSocket) {
    let listener = Listener::bind(rails, far).unwrap();
    let connected = MessageSocket::connect(&listener.addresses(), near).unwrap();
    (connected, listener.accept().unwrap())
}

fn pair() -> (MessageSocket, MessageSocket) {
    pair_with(&rails(), &options(), &options())
}

/// Bytes that show where they belong.
fn pattern(message: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at * 7 + at / 251 + message * 31) as u8)
        .collect()
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what} takes too long");
        thread::yield_now();
    }
}

const SIZES: [usize; 9] = [0, 1, 3, 1000, 16383, 16384, 100_001, 1 << 20, 16 << 20];

/// A path that lets few bytes pass a second: what connects to it reaches the address.
fn slow_path(to: SocketAddr) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let far = TcpStream::connect(to).unwrap();
            let (mut back_from, mut back_to) =
                (far.try_clone().unwrap(), near.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
            thread::spawn(move || {
                let (mut near, mut far) = (near, far);
                let mut piece = vec![0; 64 << 10];
                while let Ok(count @ 1..) = near.read(&mut piece) {
                    if far.write_all(&piece[..count]).is_err() {
                        break;
                    }
                    thread::sleep(Duration::from_millis(10));
                }
            });
        }
    });
    address
}

/// A caller with little patience, who asks again and again, receives a message that takes much longer than each call.
#[test]
fn short_calls_receive_long_messages() {
    let listener = Listener::bind(&addresses(&["127.0.0.1:0"]), &options()).unwrap();
    let path = slow_path(listener.addresses()[0]);
    let near = MessageSocket::connect(&[path], &options()).unwrap();
    let far = listener.accept().unwrap();
    let sent = pattern(1, 4 << 20);
    thread::scope(|scope| {
        scope.spawn(|| near.send(&sent).unwrap());
        let (begun, mut calls) = (Instant::now(), 0);
        let mut room = vec![0; sent.len()];
        let length = loop {
            let until = Instant::now() + Duration::from_millis(30);
            match far.receive_until(&mut room, until) {
                Err(MessageError::Deadline) => calls += 1,
                received => break received.unwrap().unwrap(),
            }
            assert!(begun.elapsed() < PATIENCE, "after {calls} calls");
        };
        assert!(calls > 3, "{calls}");
        assert!(room[..length] == sent);
    });
}

/// Every size arrives whole in every mode, checked or not, and comes back.
#[test]
fn sizes_go_around_in_every_mode() {
    for (mode, check) in [
        (Mode::Single, true),
        (Mode::Basic, true),
        (Mode::Enhanced, true),
        (Mode::Enhanced, false),
    ] {
        let own = Options {
            mode,
            check,
            ..options()
        };
        let (near, far) = pair_with(&rails(), &own, &own);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut room = vec![0; 16 << 20];
                while let Some(length) = far.receive(&mut room).unwrap() {
                    far.send(&room[..length]).unwrap();
                }
                far.finish_sending().unwrap();
            });
            let mut room = vec![0; 16 << 20];
            for (number, size) in SIZES.into_iter().enumerate() {
                let message = pattern(number, size);
                near.send(&message).unwrap();
                assert_eq!(near.receive(&mut room).unwrap(), Some(size), "{mode:?}");
                assert!(room[..size] == message, "{mode:?} {size}");
            }
            near.finish_sending().unwrap();
            assert_eq!(near.receive(&mut room).unwrap(), None);
        });
    }
}

/// Many messages in flight both ways at once come in order, and all rails carry.
#[test]
fn many_messages_cross_both_ways() {
    let (near, far) = pair();
    let length = |number: usize| SIZES[number % 7] + number;
    thread::scope(|scope| {
        for (own, seed) in [(&near, 1000), (&far, 2000)] {
            scope.spawn(move || {
                let numbers: Vec<u64> = (0..300)
                    .map(|n| own.send_start(pattern(seed + n, length(n))).unwrap())
                    .collect();
                for number in numbers {
                    own.wait_sent(number).unwrap();
                    assert!(own.is_sent(number));
                }
                own.finish_sending().unwrap();
            });
            let other = 3000 - seed;
            scope.spawn(move || {
                for n in 0..300 {
                    let got = own.receive_vec(1 << 20).unwrap().unwrap();
                    assert!(got == pattern(other + n, length(n)), "message {n}");
                }
                assert_eq!(own.receive_vec(0).unwrap(), None);
            });
        }
    });
    let carried: Vec<RailReport> = near.rails();
    assert!(
        carried.iter().all(|rail| rail.is_up && rail.bytes_sent > 0),
        "{carried:?}"
    );
}

/// Messages of several fragments that cross on one rail, and wait for callers to receive them, keep its connection.
#[test]
fn long_messages_cross_on_one_rail() {
    const LENGTH: usize = 100 << 20;
    const WINDOW: u64 = 16 << 20;
    const ROUNDS: u64 = 3;
    let own = Options {
        check: false,
        deadline: None,
        window: WINDOW,
        ..options()
    };
    let (near, far) = pair_with(&addresses(&["127.0.0.1:0"]), &own, &own);
    let message = pattern(1, LENGTH);
    for round in 0..ROUNDS {
        let sent = [&near, &far].map(|own| own.send_start(message.clone()).unwrap());
        // Fragments beyond the window wait for credit.
        let come = round * LENGTH as u64 + WINDOW;
        for own in [&near, &far] {
            wait_for("the window", || own.rails()[0].bytes_received == come);
        }
        thread::scope(|scope| {
            for (own, sent) in [&near, &far].into_iter().zip(sent) {
                let message = &message;
                scope.spawn(move || {
                    let got = own.receive_vec(LENGTH).unwrap().unwrap();
                    assert!(got == *message);
                });
                scope.spawn(move || own.wait_sent(sent).unwrap());
            }
        });
    }
    for own in [&near, &far] {
        // What a connection lost would have been sent again.
        assert_eq!(own.rails()[0].bytes_sent, ROUNDS * LENGTH as u64);
    }
}

/// A rail that breaks again and again loses and doubles nothing, and is taken back.
#[test]
fn broken_rails_come_back() {
    let (near, far) = pair();
    let over = AtomicBool::new(false);
    let is_over = || over.load(Ordering::Acquire);
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..60 {
                near.send(&pattern(n, 1 << 20)).unwrap();
            }
            near.finish_sending().unwrap();
            over.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            let mut rail = 0;
            while !is_over() {
                let before = near.rails()[rail].bytes_sent;
                wait_for("traffic on a rail", || {
                    is_over() || near.rails()[rail].bytes_sent > before + (1 << 20)
                });
                if rail == 0 { &near } else { &far }.break_rail(rail);
                rail = 1 - rail;
            }
        });
        for n in 0..60 {
            let got = far.receive_vec(1 << 20).unwrap().unwrap();
            assert!(got == pattern(n, 1 << 20), "message {n}");
        }
        assert_eq!(far.receive_vec(1).unwrap(), None);
    });
    wait_for("all rails", || near.rails().iter().all(|rail| rail.is_up));
}

/// A receiver that gives up in the middle of a message, or has too little room, loses nothing.
#[test]
fn messages_outlast_their_receivers() {
    let (near, far) = pair();
    let message = pattern(1, 8 << 20);
    far.set_deadline(Some(Duration::from_millis(1)));
    thread::scope(|scope| {
        scope.spawn(|| near.send(&message).unwrap());
        let mut room = vec![0; 8 << 20];
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < PATIENCE);
            match far.receive(&mut room) {
                Ok(length) => {
                    assert_eq!(length, Some(8 << 20));
                    break;
                }
                Err(MessageError::Deadline) => room.fill(0),
                Err(error) => panic!("{error}"),
            }
        }
        assert!(room == message);
    });
    far.set_deadline(Some(PATIENCE));
    near.send(b"four").unwrap();
    let error = far.receive(&mut [0; 3]).unwrap_err();
    assert!(
        matches!(error, MessageError::TooLong { length: 4, room: 3 }),
        "{error}"
    );
    assert_eq!(far.receive_vec(4).unwrap().unwrap(), b"four");
}

/// What is cancelled does not come, what follows does.
#[test]
fn cancelled_messages_are_skipped() {
    let small = Options {
        window: 64 << 10,
        ..options()
    };
    let (near, far) = pair_with(&rails(), &options(), &small);
    let first = near.send_start(pattern(1, 10_000)).unwrap();
    let long = near.send_start(pattern(2, 50 << 20)).unwrap();
    let last = near.send_start(pattern(3, 10_000)).unwrap();
    near.wait_sent(first).unwrap();
    near.cancel(long);
    assert!(matches!(near.wait_sent(long), Err(MessageError::Cancelled)));
    assert_eq!(
        far.receive_vec(64 << 20).unwrap().unwrap(),
        pattern(1, 10_000)
    );
    assert_eq!(
        far.receive_vec(64 << 20).unwrap().unwrap(),
        pattern(3, 10_000)
    );
    near.wait_sent(last).unwrap();
}

/// Nobody waits beyond his deadline, and a message whose sender did not wait is cancelled.
#[test]
fn deadlines_are_kept() {
    let small = Options {
        window: 64 << 10,
        ..options()
    };
    let (near, far) = pair_with(&rails(), &options(), &small);
    let short = Duration::from_millis(50);
    near.set_deadline(Some(short));
    assert!(matches!(
        near.receive(&mut [0; 10]),
        Err(MessageError::Deadline)
    ));
    assert!(matches!(
        near.send(&pattern(1, 4 << 20)),
        Err(MessageError::Deadline)
    ));
    near.set_deadline(Some(PATIENCE));
    thread::scope(|scope| {
        scope.spawn(|| near.send(b"after").unwrap());
        assert_eq!(far.receive_vec(64 << 20).unwrap().unwrap(), b"after");
    });
}

/// A peer that closes, and one that is gone without a word, end every wait in bounded time.
#[test]
fn peers_that_vanish_are_noticed() {
    let (near, far) = pair();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| near.receive(&mut [0; 10]));
        drop(far);
        let error = waiting.join().unwrap().unwrap_err();
        assert!(matches!(error, MessageError::PeerClosed), "{error}");
    });

    // A peer that answers nothing any more: its listener takes connections, and nobody reads them.
    let brief = Options {
        peer_timeout: Duration::from_millis(300),
        ..options()
    };
    let (near, far) = pair_with(&addresses(&["127.0.0.1:0"]), &brief, &brief);
    far.break_rail(0);
    near.break_rail(0);
    near.close();
    assert!(matches!(near.send(b"x"), Err(MessageError::Closed)));
    let error = far.receive(&mut [0; 10]).unwrap_err();
    assert!(
        matches!(
            error,
            MessageError::PeerLost { .. } | MessageError::PeerClosed
        ),
        "{error}"
    );
}

/// A socket that is closed in one thread ends the waits of the others.
#[test]
fn closing_ends_waits() {
    let (near, _far) = pair();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| near.receive(&mut [0; 10]));
        near.close();
        assert!(matches!(waiting.join().unwrap(), Err(MessageError::Closed)));
    });
}

/// Strangers on the port disturb nobody: silence, noise, and a peer with another token.
#[test]
fn strangers_disturb_nobody() {
    let own = Options {
        token: Some([1; 32]),
        ..options()
    };
    let listener = Listener::bind(&rails(), &own).unwrap();
    let at = listener.addresses()[0];
    let silent = TcpStream::connect(at).unwrap();
    let mut noisy = TcpStream::connect(at).unwrap();
    noisy.write_all(&[b'x'; 1000]).unwrap();
    let wrong = Options {
        token: Some([2; 32]),
        ..options()
    };
    let error = MessageSocket::connect(&[at], &wrong).unwrap_err();
    assert!(matches!(error, MessageError::Connect { .. }), "{error}");
    let near = MessageSocket::connect(&listener.addresses(), &own).unwrap();
    let far = listener.accept().unwrap();
    near.send(b"friends").unwrap();
    assert_eq!(far.receive_vec(10).unwrap().unwrap(), b"friends");
    // Noise is answered with the end of the connection, or with a reset.
    let answer = noisy.read(&mut [0; 10]);
    assert!(answer.map_or(true, |count| count == 0));
    drop(silent);
}

/// The cut-off is found by both ways at the start, and the peer's application sees none of the trials.
#[test]
fn the_cut_off_is_measured() {
    for (method, window) in [
        (Method::Fit, 16 << 20),
        (Method::Fit, 64 << 10),
        (Method::Search, 16 << 20),
        (Method::Search, 64 << 10),
    ] {
        let own = Options {
            cut_off: CutOff::Measured(method),
            window,
            ..options()
        };
        let (near, far) = pair_with(&rails(), &own, &own);
        // On a busy machine measuring may take longer than it may.
        wait_for("a measurement", || {
            near.find_cut_off(method).unwrap().is_some()
        });
        near.send(b"first").unwrap();
        assert_eq!(far.receive_vec(10).unwrap().unwrap(), b"first");
    }
}

/// What cannot be meant, or would be unsafe, is refused by name.
#[test]
fn misuse_is_refused() {
    let refused = |result: Result<MessageSocket, MessageError>| result.unwrap_err().to_string();
    assert!(refused(MessageSocket::connect(&[], &options())).contains("no address"));
    let far = addresses(&["192.0.2.1:9"]);
    assert!(refused(MessageSocket::connect(&far, &options())).contains("or `plain`"));
    let mixed = Options {
        local: vec!["::1".parse().unwrap()],
        ..options()
    };
    let near = addresses(&["127.0.0.1:9"]);
    assert!(refused(MessageSocket::connect(&near, &mixed)).contains("IPv6"));
    let narrow = Options {
        window: 1,
        ..options()
    };
    assert!(refused(MessageSocket::connect(&near, &narrow)).contains("window"));
    let error = Listener::bind(&far, &options()).err().unwrap();
    assert!(matches!(error, MessageError::NotSealed { .. }), "{error}");
}

/// A message that is whole before its sender gives it up comes with its own bytes or not at all, in front or behind
/// another.
#[test]
fn a_late_cancel_changes_no_bytes() {
    let (near, far) = pair();
    for round in 0..200 {
        let small = pattern(round, 1000);
        let sent = near.send_start(small.clone()).unwrap();
        if round % 2 == 0 {
            near.wait_sent(sent).unwrap();
        }
        near.cancel(sent);
        let last = pattern(round + 1, 500);
        near.send(&last).unwrap();
        let got = far.receive_vec(1 << 20).unwrap().unwrap();
        if got != last {
            assert!(got == small, "round {round}");
            assert!(far.receive_vec(1 << 20).unwrap().unwrap() == last);
        }
    }
}

/// A number that was never given is a mistake of the caller, and no limit is no reason to fail.
#[test]
fn odd_arguments_are_taken_well() {
    let (near, far) = pair();
    assert!(matches!(near.wait_sent(0), Err(MessageError::Misuse(_))));
    near.set_deadline(Some(Duration::MAX));
    near.send(b"x").unwrap();
    near.wait_sent(0).unwrap();
    assert!(matches!(near.wait_sent(1), Err(MessageError::Misuse(_))));
    assert_eq!(far.receive_vec(1).unwrap().unwrap(), b"x");
}

/// A rail that is down says why.
#[test]
fn rails_that_are_down_say_why() {
    let listener = Listener::bind(&addresses(&["127.0.0.1:0"]), &options()).unwrap();
    let free = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
    let nobody = free.local_addr().unwrap();
    drop(free);
    let near = MessageSocket::connect(&[listener.addresses()[0], nobody], &options()).unwrap();
    let rails = near.rails();
    assert_eq!(rails[0].cause, None);
    wait_for("a cause", || near.rails()[1].cause.is_some());
    let cause = near.rails()[1].cause.clone().unwrap();
    assert!(cause.contains("refused"), "{cause}");
}

/// Messages in memory of their own are waited for until a time; what is too long, or late, stays.
#[test]
fn own_memory_is_waited_for_until_a_time() {
    let (near, far) = pair();
    let until = || Instant::now() + Duration::from_secs(60);
    assert!(matches!(
        far.receive_vec_until(10, Instant::now()),
        Err(MessageError::Deadline)
    ));
    near.send(b"late").unwrap();
    assert!(matches!(
        far.receive_vec_until(3, until()),
        Err(MessageError::TooLong { length: 4, room: 3 })
    ));
    assert_eq!(far.receive_vec_until(4, until()).unwrap().unwrap(), b"late");
    near.close();
    assert!(matches!(
        far.receive_vec_until(10, until()),
        Err(MessageError::PeerClosed)
    ));
    assert!(matches!(
        near.receive_vec_until(10, until()),
        Err(MessageError::Closed)
    ));
}

/// A message's first bytes and the others are received into memory of their own each, which need not be initialised; over several rails, too.
#[test]
fn messages_are_received_in_two_parts() {
    const HEAD: usize = 24;
    let (near, far) = pair();
    let never = AtomicBool::new(false);
    let soon = |most| SplitTimes {
        begun: Instant::now() + most,
        whole: Instant::now() + PATIENCE,
        given_up: &never,
    };
    for (message, length) in [0, 5, HEAD, HEAD + 1, 5000, 300_000]
        .into_iter()
        .enumerate()
    {
        far.send_start(pattern(message, length)).unwrap();
        let (mut head, mut body) = ([0; HEAD], Vec::with_capacity(300_000));
        let space = &mut body.spare_capacity_mut()[..300_000 - HEAD];
        let got = near.receive_split(&mut head, space, &soon(PATIENCE));
        assert_eq!(got.unwrap(), Some(length));
        // SAFETY: so many bytes are written.
        unsafe { body.set_len(length.saturating_sub(HEAD)) };
        let all = [&head[..length.min(HEAD)], &body].concat();
        assert!(all == pattern(message, length), "{length}");
    }
    let mut head = [0; HEAD];
    let late = near.receive_split(&mut head, &mut [], &soon(Duration::ZERO));
    assert!(matches!(late, Err(MessageError::Deadline)), "{late:?}");
    // Another thread wants the memory back.
    let given_up = AtomicBool::new(false);
    thread::scope(|scope| {
        let times = SplitTimes {
            given_up: &given_up,
            ..soon(PATIENCE)
        };
        let near = &near;
        let waiting = scope.spawn(move || near.receive_split(&mut [0; 1], &mut [], &times));
        given_up.store(true, Ordering::Release);
        let ended = waiting.join().unwrap();
        assert!(matches!(ended, Err(MessageError::Deadline)), "{ended:?}");
    });
    // What is too long for both stays.
    far.send_start(pattern(9, HEAD + 2)).unwrap();
    let mut body = [MaybeUninit::uninit()];
    let long = near.receive_split(&mut head, &mut body, &soon(PATIENCE));
    assert!(
        matches!(
            long,
            Err(MessageError::TooLong {
                length: 26,
                room: 25
            })
        ),
        "{long:?}"
    );
    let whole = near.receive_vec(100).unwrap().unwrap();
    assert!(whole == pattern(9, HEAD + 2));
}
