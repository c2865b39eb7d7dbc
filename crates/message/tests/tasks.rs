//! The socket for tasks: futures, woken by news, on an executor that is just a thread.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use ropewalk_message::{
    AsyncMessageSocket, CutOff, Listener, MessageError, MessageSocket, Options,
};

/// Longest time that anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls only when woken: a forgotten waker shows.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    let until = Instant::now() + PATIENCE;
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park_timeout(PATIENCE),
        }
        assert!(Instant::now() < until, "nobody woke the task");
    }
}

/// Tells each time it is woken.
struct Notes(Sender<()>);

impl Wake for Notes {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

fn pair(window: u64) -> (AsyncMessageSocket, AsyncMessageSocket) {
    let options = Options {
        cut_off: CutOff::Fixed(16 << 10),
        window,
        ..Options::default()
    };
    let rails = ["127.0.0.1:0", "127.0.0.2:0"].map(|text| text.parse().unwrap());
    let listener = Listener::bind(&rails, &options).unwrap();
    let near = MessageSocket::connect(&listener.addresses(), &options).unwrap();
    (near.into(), listener.accept().unwrap().into())
}

fn pattern(message: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at * 7 + at / 251 + message * 31) as u8)
        .collect()
}

const SIZES: [usize; 7] = [0, 1, 1000, 16384, 100_001, 1 << 20, 5 << 20];

/// Messages of every size, some far longer than the window, go both ways at once and end with the end.
#[test]
fn messages_cross() {
    let (near, far) = pair(64 << 10);
    thread::scope(|scope| {
        for (own, seed) in [(&near, 100), (&far, 200)] {
            scope.spawn(move || {
                block_on(async {
                    for (number, size) in SIZES.into_iter().enumerate() {
                        own.send(pattern(seed + number, size)).await.unwrap();
                    }
                    own.finish_sending().await.unwrap();
                });
            });
            scope.spawn(move || {
                block_on(async {
                    for (number, size) in SIZES.into_iter().enumerate() {
                        let got = own.receive(5 << 20).await.unwrap().unwrap();
                        assert!(got == pattern(300 - seed + number, size), "{size}");
                    }
                    assert_eq!(own.receive(0).await.unwrap(), None);
                });
            });
        }
    });
}

/// Polls once, as a task that is then given up.
fn begin<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// A future that is dropped gives up its message, or leaves it to the next; a blocking receiver may go on.
#[test]
fn dropped_futures_harm_nobody() {
    let (near, far) = pair(64 << 10);
    {
        let mut given_up = pin!(near.send(pattern(1, 20 << 20)));
        assert!(begin(given_up.as_mut()).is_pending());
        let mut nobody = pin!(far.receive(1 << 20));
        assert!(!matches!(begin(nobody.as_mut()), Poll::Ready(Ok(_))));
    }
    thread::scope(|scope| {
        scope.spawn(|| block_on(near.send(pattern(2, 1 << 20))).unwrap());
        // Room for the one that was given up: the news of that may come later.
        let got = block_on(far.receive(20 << 20)).unwrap().unwrap();
        assert!(got == pattern(2, 1 << 20));
        scope.spawn(|| block_on(near.send(pattern(3, 1 << 20))).unwrap());
        let got = far.socket().receive_vec(1 << 20).unwrap().unwrap();
        assert!(got == pattern(3, 1 << 20));
    });
    thread::scope(|scope| {
        scope.spawn(|| block_on(near.send(pattern(4, 1000))).unwrap());
        let error = block_on(far.receive(999)).unwrap_err();
        assert!(
            matches!(
                error,
                MessageError::TooLong {
                    length: 1000,
                    room: 999
                }
            ),
            "{error}"
        );
        assert!(block_on(far.receive(1000)).unwrap().unwrap() == pattern(4, 1000));
    });
}

/// Who waits for a message that is longer than he takes, and than the window, hears that while it comes.
#[test]
fn long_messages_are_told_before_they_are_whole() {
    let (near, far) = pair(64 << 10);
    let rails = || [&near, &far].map(|own| own.socket().rails()).concat();
    let until = Instant::now() + PATIENCE;
    // A rail that connects wakes tasks, too.
    while !rails().iter().all(|rail| rail.is_up) {
        assert!(Instant::now() < until, "rails take too long");
        thread::yield_now();
    }
    let (woken, news) = channel();
    let waker = Waker::from(Arc::new(Notes(woken)));
    let mut receiving = pin!(far.receive(999));
    let mut poll = || receiving.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(poll().is_pending());
    near.socket().send_start(pattern(1, 1 << 20)).unwrap();
    let error = loop {
        let told = news.recv_timeout(PATIENCE);
        told.expect("nobody woke the task");
        if let Poll::Ready(received) = poll() {
            break received.unwrap_err();
        }
    };
    assert!(
        matches!(error, MessageError::TooLong { length, .. } if length == 1 << 20),
        "{error}"
    );
    assert!(block_on(far.receive(1 << 20)).unwrap().unwrap() == pattern(1, 1 << 20));
}

/// A blocking receiver who leaves in the middle of a message leaves all of it to a task that waits beside him.
#[test]
fn tasks_receive_beside_blocking_callers() {
    const LENGTH: usize = 8 << 20;
    const MANY: usize = 20;
    let (near, far) = pair(16 << 20);
    far.socket().set_deadline(Some(Duration::from_millis(1)));
    let got = Mutex::new(Vec::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..MANY {
                near.socket().send(&pattern(number, LENGTH)).unwrap();
            }
            near.socket().finish_sending().unwrap();
        });
        scope.spawn(|| {
            while let Some(bytes) = block_on(far.receive(LENGTH)).unwrap() {
                got.lock().unwrap().push(bytes);
            }
        });
        let mut room = vec![0; LENGTH];
        loop {
            match far.socket().receive(&mut room) {
                Ok(Some(length)) => got.lock().unwrap().push(room[..length].to_vec()),
                Ok(None) => break,
                Err(MessageError::Deadline) => room.fill(0),
                Err(error) => panic!("{error}"),
            }
        }
    });
    let got = got.into_inner().unwrap();
    assert_eq!(got.len(), MANY);
    for number in 0..MANY {
        let sent = pattern(number, LENGTH);
        assert!(got.contains(&sent), "message {number}");
    }
}

/// A socket that closes wakes all tasks.
#[test]
fn closing_wakes_tasks() {
    let (near, far) = pair(64 << 10);
    thread::scope(|scope| {
        let receiving = scope.spawn(|| block_on(near.receive(10)));
        let sending = scope.spawn(|| block_on(near.send(vec![0; 10 << 20])));
        drop(far);
        let error = receiving.join().unwrap().unwrap_err();
        assert!(matches!(error, MessageError::PeerClosed), "{error}");
        let error = sending.join().unwrap().unwrap_err();
        assert!(matches!(error, MessageError::PeerClosed), "{error}");
    });
}

type Boxed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A task as executors have them: it owns its future.
struct Task {
    future: Mutex<Option<Boxed>>,
    /// Given up when it is woken; else it goes with the last waker.
    is_given_up: bool,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if self.is_given_up {
            drop(self.future.lock().unwrap().take());
        }
    }
}

/// Polls a future once, and leaves it to its waker.
fn leave(future: Boxed, is_given_up: bool) {
    let task = Arc::new(Task {
        future: Mutex::new(Some(future)),
        is_given_up,
    });
    let waker = Waker::from(task.clone());
    let mut own = task.future.lock().unwrap();
    let polled = own.as_mut().unwrap().as_mut();
    assert!(polled.poll(&mut Context::from_waker(&waker)).is_pending());
}

/// Tells that what is dropped before it is gone.
struct Tells(Sender<()>);

impl Drop for Tells {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// Waking a task, or dropping its last waker, may drop its future, and the socket with it: news wait for none of that.
#[test]
fn wakers_may_drop_what_they_wake() {
    for (is_given_up, sends, owns_socket) in [
        (true, false, false),
        (true, true, false),
        (false, false, false),
        (false, true, false),
        (true, false, true),
        (false, false, true),
    ] {
        let (done, gone) = channel();
        // In a thread of its own: one that waits for itself would keep the sockets from being dropped, too.
        let body = move || {
            let (near, far) = pair(64 << 10);
            let near = Arc::new(near);
            let (tells, own) = (Tells(done), near.clone());
            let future: Boxed = match sends {
                true => Box::pin(async move {
                    let (_tells, own) = (tells, own);
                    let _ = own.send(vec![7; 100]).await;
                }),
                false => Box::pin(async move {
                    let (_tells, own) = (tells, own);
                    let _ = own.receive(100).await;
                }),
            };
            let near = (!owns_socket).then_some(near);
            leave(future, is_given_up);
            // A socket that is dropped when this comes does not acknowledge it.
            let sent = far.socket().send(b"news");
            assert!(sent.is_ok() || owns_socket, "{sent:?}");
            drop(near);
        };
        let body = thread::spawn(body);
        let case = (is_given_up, sends, owns_socket);
        assert_eq!(gone.recv_timeout(PATIENCE), Ok(()), "{case:?}");
        body.join().unwrap();
    }
}
