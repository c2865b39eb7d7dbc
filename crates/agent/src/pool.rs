//! Connections to this node that wait to be taken: a sender, or the master for it, has made them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::streams::{DataSocket, POLL, ends_of};

/// Connections of one sender that wait to be taken. It keeps one; a second comes while the first breaks.
pub(crate) const READY_MAX: usize = 2;

/// Further rails that a sender may connect over: as many as a search tries.
pub(crate) const RAILS_MAX: u32 = 16;

/// Connections through the master that wait to be taken: each was asked for by a stream that waits for one.
pub(crate) const CARRIERS_MAX: usize = 64;

/// Connections that one sender may make over the life of a transfer; bounds the memory of used nonces (32 bytes each).
const NONCES_MAX: usize = 1 << 16;

/// The sender gets through within this time, or the next way is tried: it dials all addresses side by side, 5 s each.
const READY_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Ready {
    streams: VecDeque<DataSocket>,
    nonces: HashSet<[u8; 32]>,
    failed: Option<String>,
}

/// What senders, or the master for them, have made ready for this node.
pub(crate) struct Pool {
    ready_max: usize,
    // Only of those that were asked; by sender and rail.
    senders: Mutex<HashMap<(u32, u32), Ready>>,
    changed: Condvar,
}

impl Pool {
    /// Keeps so many for each sender.
    pub fn of(ready_max: usize) -> Self {
        Self {
            ready_max,
            senders: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// From now on connections of this sender are kept.
    pub fn expect(&self, sender: u32) {
        self.senders.lock().entry((sender, 0)).or_default().failed = None;
    }

    /// A connection that its preface says to be this sender's, over this rail. The oldest gives way.
    pub fn put(&self, (sender, rail): (u32, u32), nonce: [u8; 32], stream: DataSocket) {
        let mut senders = self.senders.lock();
        if rail > RAILS_MAX || !senders.contains_key(&(sender, 0)) {
            return;
        }
        let ready = senders.entry((sender, rail)).or_default();
        if ready.nonces.len() >= NONCES_MAX || !ready.nonces.insert(nonce) {
            return;
        }
        ready.streams.push_back(stream);
        if ready.streams.len() > self.ready_max {
            ready.streams.pop_front();
        }
        drop(senders);
        self.changed.notify_all();
    }

    /// A connection that was taken and not used.
    pub fn give_back(&self, from: (u32, u32), stream: DataSocket) {
        if let Some(ready) = self.senders.lock().get_mut(&from) {
            ready.streams.push_front(stream);
        }
        self.changed.notify_all();
    }

    /// The sender does not get through.
    pub fn fail(&self, sender: u32, why: String) {
        if let Some(ready) = self.senders.lock().get_mut(&(sender, 0)) {
            ready.failed = Some(why);
        }
        self.changed.notify_all();
    }

    /// Waits until a sender connects over the rail of this number: its name. `None` once it is not needed any more.
    pub fn next_rail(&self, has_ended: &AtomicBool, sender: u32, rail: u32) -> Option<String> {
        let mut senders = self.senders.lock();
        loop {
            let ready = senders.get(&(sender, rail));
            if let Some(stream) = ready.and_then(|ready| ready.streams.front()) {
                return Some(name(stream));
            }
            if has_ended.load(Ordering::Acquire) {
                return None;
            }
            self.changed.wait_for(&mut senders, POLL);
        }
    }

    /// The next connection of this sender and rail that is still there; in words when there is none.
    pub fn take(&self, has_ended: &AtomicBool, from: (u32, u32)) -> Result<DataSocket, String> {
        let until = Instant::now() + READY_TIMEOUT;
        let mut senders = self.senders.lock();
        loop {
            if has_ended.load(Ordering::Acquire) {
                return Err("the transfer has ended".into());
            }
            let Some(ready) = senders.get_mut(&from) else {
                return Err("it was not asked to connect".into());
            };
            while let Some(stream) = ready.streams.pop_front() {
                if is_open(&stream) {
                    return Ok(stream);
                }
            }
            if let Some(why) = &ready.failed {
                return Err(why.clone());
            }
            if Instant::now() >= until {
                let seconds = READY_TIMEOUT.as_secs();
                return Err(format!("it does not connect within {seconds} s"));
            }
            self.changed.wait_for(&mut senders, POLL);
        }
    }
}

/// What reports call the rail of a connection.
fn name(stream: &DataSocket) -> String {
    match stream {
        DataSocket::Tcp(stream) => {
            let ends = ends_of(stream);
            ends.map_or_else(String::new, |(near, far)| format!("{near} - {far}"))
        }
        DataSocket::Unix(_) => String::new(),
    }
}

/// The peer sends nothing before the connection is taken: what can be read is its end.
fn is_open(stream: &DataSocket) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let seen = match stream {
        DataSocket::Tcp(stream) => recv(stream, &mut [0], flags),
        DataSocket::Unix(stream) => recv(stream, &mut [0], flags),
    };
    seen.is_err_and(|error| error == Errno::AGAIN)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pair(listener: &TcpListener) -> (DataSocket, TcpStream) {
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (DataSocket::Tcp(listener.accept().unwrap().0), far)
    }

    fn peer_of(socket: &DataSocket) -> std::net::SocketAddr {
        match socket {
            DataSocket::Tcp(stream) => stream.peer_addr().unwrap(),
            DataSocket::Unix(_) => panic!("it was made over TCP"),
        }
    }

    /// Connections are taken in order as long as they are there; of senders that were not asked none is kept, and a
    /// nonce is good once.
    #[test]
    fn ready_connections_are_taken_once() {
        let has_ended = AtomicBool::new(false);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let pool = Pool::of(READY_MAX);
        let (near, _far) = pair(&listener);
        pool.put((7, 0), [1; 32], near);
        assert!(
            pool.take(&has_ended, (7, 0))
                .unwrap_err()
                .contains("not asked")
        );
        pool.expect(7);
        let (near, gone) = pair(&listener);
        pool.put((7, 0), [2; 32], near);
        drop(gone);
        let (near, far) = pair(&listener);
        let address = peer_of(&near);
        pool.put((7, 0), [3; 32], near);
        let (again, _other) = pair(&listener);
        pool.put((7, 0), [3; 32], again);
        // The end of the one that is gone may take a moment to arrive; it is the first in any case.
        let taken = pool.take(&has_ended, (7, 0)).unwrap();
        let taken = match peer_of(&taken) == address {
            true => taken,
            false => pool.take(&has_ended, (7, 0)).unwrap(),
        };
        assert_eq!(peer_of(&taken), address);
        pool.fail(7, "no answer".into());
        assert_eq!(pool.take(&has_ended, (7, 0)).unwrap_err(), "no answer");
        drop(far);
        pool.expect(7);
        has_ended.store(true, Ordering::Release);
        assert!(pool.take(&has_ended, (7, 0)).unwrap_err().contains("ended"));
    }

    /// No more than a few wait: the newest ones.
    #[test]
    fn few_connections_wait() {
        let has_ended = AtomicBool::new(false);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let pool = Pool::of(READY_MAX);
        pool.expect(1);
        let mut far = Vec::new();
        let mut newest = Vec::new();
        for number in 0..READY_MAX as u8 + 2 {
            let (near, other) = pair(&listener);
            newest.push(peer_of(&near));
            far.push(other);
            pool.put((1, 0), [number; 32], near);
        }
        let kept: Vec<_> = (0..READY_MAX)
            .map(|_| pool.take(&has_ended, (1, 0)).unwrap())
            .map(|stream| peer_of(&stream))
            .collect();
        assert_eq!(kept, newest[2..]);
    }
}
