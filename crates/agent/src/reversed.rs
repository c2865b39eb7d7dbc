//! Connections that a sender makes to a receiver which cannot connect to it.
//!
//! ```text
//!  receiver ── "dial me" ──▶ master ──▶ sender
//!  receiver ◀── TCP, preface of kind Reversed ── sender
//!  receiver ── answer of kind Reversed ────────▶ sender        ready: the sender waits
//!  receiver ── preface of kind Pair or Join ───▶ sender        taken: all goes on as if the receiver had connected,
//!  receiver ◀── TCP, preface of kind Reversed ── sender        and the next one is made ready
//! ```
//!
//! The sender keeps one connection ready for each receiver that asked. Preface and answer are authentic under the transfer's
//! secret, so strangers fill no place here, and hosts that have the receiver's address in another network are passed
//! over; that both are the nodes they say they are shows in the pair's handshake, and for streams in the keys that come
//! from it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use ropewalk_lane::preface::{self, Kind, PREFACE_LEN, Preface};
use ropewalk_proto::control::{self, Peer, from_agent, route};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::connect;
use crate::dial::{self, POLL};
use crate::listen::{self, Shared};
use crate::streams::DataSocket;
use crate::transfer::Transfer;

/// Connections of one sender that wait to be taken. It keeps one; a second comes while the first breaks.
const READY_MAX: usize = 2;

/// Connections that one sender may make over the life of a transfer; bounds the memory of used nonces (32 bytes each).
const NONCES_MAX: usize = 1 << 16;

/// The sender gets through within this time, or the next way is tried: it dials all addresses side by side, 5 s each.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(10);

/// The receiver answers a preface within this time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Once the first byte of a preface is there, the rest is.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection that broke before it was taken is made again after this pause, twice as long each time ...
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// ... up to this.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// A ready connection is probed this often, so that a NAT between the two remembers it.
const PROBE_EVERY: Duration = Duration::from_secs(15);

#[derive(Default)]
struct Ready {
    streams: VecDeque<TcpStream>,
    nonces: HashSet<[u8; 32]>,
    failed: Option<String>,
}

/// What senders have made ready for this node.
#[derive(Default)]
pub(crate) struct Pool {
    // Only of those that were asked.
    senders: Mutex<HashMap<u32, Ready>>,
    changed: Condvar,
}

impl Pool {
    /// From now on connections of this sender are kept.
    fn expect(&self, sender: u32) {
        self.senders.lock().entry(sender).or_default().failed = None;
    }

    /// A connection that its preface says to be this sender's. The oldest gives way.
    pub fn put(&self, sender: u32, nonce: [u8; 32], stream: TcpStream) {
        let mut senders = self.senders.lock();
        let Some(ready) = senders.get_mut(&sender) else {
            return;
        };
        if ready.nonces.len() >= NONCES_MAX || !ready.nonces.insert(nonce) {
            return;
        }
        ready.streams.push_back(stream);
        if ready.streams.len() > READY_MAX {
            ready.streams.pop_front();
        }
        drop(senders);
        self.changed.notify_all();
    }

    /// A connection that was taken and not used.
    pub fn give_back(&self, sender: u32, stream: TcpStream) {
        if let Some(ready) = self.senders.lock().get_mut(&sender) {
            ready.streams.push_front(stream);
        }
        self.changed.notify_all();
    }

    /// The sender does not get through.
    pub fn fail(&self, sender: u32, why: String) {
        if let Some(ready) = self.senders.lock().get_mut(&sender) {
            ready.failed = Some(why);
        }
        self.changed.notify_all();
    }

    /// The next connection of this sender that is still there; in words when none comes.
    pub fn take(&self, transfer: &Transfer, sender: u32) -> Result<TcpStream, String> {
        let until = Instant::now() + READY_TIMEOUT;
        let mut senders = self.senders.lock();
        loop {
            if transfer.has_ended() {
                return Err("the transfer has ended".into());
            }
            let Some(ready) = senders.get_mut(&sender) else {
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

/// The peer sends nothing before the connection is taken: what can be read is its end.
fn is_open(stream: &TcpStream) -> bool {
    if stream.set_nonblocking(true).is_err() {
        return false;
    }
    let seen = stream.peek(&mut [0]);
    let is_quiet = matches!(seen, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
    is_quiet && stream.set_nonblocking(false).is_ok()
}

/// Asks a sender to connect to this node and takes its first connection.
pub(crate) fn ask(transfer: &Transfer, sender: u32) -> Result<TcpStream, String> {
    transfer.pool.expect(sender);
    transfer.send(from_agent::Body::Route(control::Route {
        node: sender,
        step: Some(route::Step::Dial(Peer::default())),
    }));
    transfer.pool.take(transfer, sender)
}

/// Takes what the master passes on from a peer.
pub(crate) fn handle(shared: &Arc<Shared>, transfer: &Arc<Transfer>, message: control::Route) {
    match message.step {
        Some(route::Step::Dial(peer)) => {
            if transfer.dialled.lock().insert(peer.node) {
                tokio::spawn(keep_ready(shared.clone(), transfer.clone(), peer));
            }
        }
        Some(route::Step::Failed(why)) => transfer.pool.fail(message.node, why),
        Some(route::Step::Through(_)) | None => {}
    }
}

/// Keeps a connection ready for a receiver until the transfer ends, or until the first one does not connect.
async fn keep_ready(shared: Arc<Shared>, transfer: Arc<Transfer>, peer: Peer) {
    let mut is_known = false;
    let mut pause = PAUSE_MIN;
    while !transfer.has_ended() {
        let (dialler, to) = (transfer.clone(), peer.clone());
        let dialled = tokio::task::spawn_blocking(move || {
            let (greeter, node) = (dialler.clone(), to.node);
            dial::any(&dialler, &to, move |stream| greet(&greeter, node, stream))
        });
        let dialled = dialled.await;
        match dialled {
            Ok(Ok(stream)) => {
                is_known = true;
                if let Some((stream, bytes, head)) = wait(&transfer, stream).await {
                    pause = PAUSE_MIN;
                    let shared = shared.clone();
                    tokio::spawn(async move {
                        let held = listen::Held {
                            place: None,
                            doors: &shared.local_doors,
                            source: listen::own_user(),
                        };
                        // What is wrong shows at the other end, too, which tries again.
                        let _ = listen::serve_peer(stream, bytes, head, &shared, held).await;
                    });
                    continue;
                }
            }
            Ok(Err(why)) if !is_known => {
                transfer.dialled.lock().remove(&peer.node);
                let step = Some(route::Step::Failed(why));
                let node = peer.node;
                return transfer.send(from_agent::Body::Route(control::Route { node, step }));
            }
            Ok(Err(_)) | Err(_) => {}
        }
        let mut ended = transfer.ended.subscribe();
        let _ = tokio::time::timeout(pause, ended.wait_for(|ended| *ended)).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// A preface or its answer.
fn preface_of(transfer: &Transfer, nonce: [u8; 32]) -> [u8; PREFACE_LEN] {
    let head = Preface {
        kind: Kind::Reversed,
        flags: 0,
        key_id: [0; 16],
        transfer_id: transfer.id,
        nonce,
        extra: connect::extra(transfer.node, 0, false),
    };
    head.encode(&transfer.preface_key)
}

/// Says what the connection is for, and sees that the receiver is there.
fn greet(transfer: &Transfer, receiver: u32, stream: &mut TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let nonce = preface::random_bytes();
    stream.write_all(&preface_of(transfer, nonce))?;
    let mut bytes = [0; PREFACE_LEN];
    let read = stream.read_exact(&mut bytes);
    stream.set_read_timeout(None)?;
    let is_answer = |head: Preface| {
        let named = (head.kind, head.nonce, listen::node_of(&head));
        named == (Kind::Reversed, nonce, receiver) && Preface::verify(&bytes, &transfer.preface_key)
    };
    match read.is_ok() && Preface::parse(&bytes).is_ok_and(is_answer) {
        true => Ok(()),
        false => Err(std::io::Error::other("another program answers there")),
    }
}

/// Answers a sender's preface, which has been verified, and keeps the connection.
pub(crate) async fn keep(
    transfer: &Transfer,
    head: &Preface,
    mut stream: impl listen::Incoming,
) -> std::io::Result<()> {
    let answer = preface_of(transfer, head.nonce);
    tokio::time::timeout(ANSWER_TIMEOUT, stream.write_all(&answer)).await??;
    if let DataSocket::Tcp(stream) = stream.into_data()? {
        transfer.pool.put(listen::node_of(head), head.nonce, stream);
    }
    Ok(())
}

/// Waits until the connection is taken, for as long as the transfer lasts.
async fn wait(
    transfer: &Transfer,
    stream: TcpStream,
) -> Option<(tokio::net::TcpStream, [u8; PREFACE_LEN], Preface)> {
    let probes = TcpKeepalive::new()
        .with_time(PROBE_EVERY)
        .with_interval(PROBE_EVERY);
    // Best effort: without it a NAT may forget a connection that is not used for minutes; then another one is made.
    let _ = SockRef::from(&stream).set_tcp_keepalive(&probes);
    stream.set_nonblocking(true).ok()?;
    let mut stream = tokio::net::TcpStream::from_std(stream).ok()?;
    let mut ended = transfer.ended.subscribe();
    tokio::select! {
        readable = stream.readable() => readable.ok()?,
        _ = ended.wait_for(|ended| *ended) => return None,
    }
    let mut bytes = [0; PREFACE_LEN];
    let reading = tokio::time::timeout(PREFACE_TIMEOUT, stream.read_exact(&mut bytes));
    reading.await.ok()?.ok()?;
    let head = Preface::parse(&bytes).ok()?;
    Some((stream, bytes, head))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0, far)
    }

    /// Connections are taken in order as long as they are there; of senders that were not asked none is kept, and a
    /// nonce is good once.
    #[test]
    fn ready_connections_are_taken_once() {
        let (transfer, _said) = Transfer::alone();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let pool = &transfer.pool;
        let (near, _far) = pair(&listener);
        pool.put(7, [1; 32], near);
        assert!(pool.take(&transfer, 7).unwrap_err().contains("not asked"));
        pool.expect(7);
        let (near, gone) = pair(&listener);
        pool.put(7, [2; 32], near);
        drop(gone);
        let (near, far) = pair(&listener);
        let address = near.peer_addr().unwrap();
        pool.put(7, [3; 32], near);
        let (again, _other) = pair(&listener);
        pool.put(7, [3; 32], again);
        // The end of the one that is gone may take a moment to arrive; it is the first in any case.
        let taken = pool.take(&transfer, 7).unwrap();
        let taken = match taken.peer_addr().unwrap() == address {
            true => taken,
            false => pool.take(&transfer, 7).unwrap(),
        };
        assert_eq!(taken.peer_addr().unwrap(), address);
        pool.fail(7, "no answer".into());
        assert_eq!(pool.take(&transfer, 7).unwrap_err(), "no answer");
        drop(far);
        pool.expect(7);
        transfer.stop(true, "ended");
        assert!(pool.take(&transfer, 7).unwrap_err().contains("ended"));
    }

    /// No more than a few wait: the newest ones.
    #[test]
    fn few_connections_wait() {
        let (transfer, _said) = Transfer::alone();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        transfer.pool.expect(1);
        let mut far = Vec::new();
        let mut newest = Vec::new();
        for number in 0..READY_MAX as u8 + 2 {
            let (near, other) = pair(&listener);
            newest.push(near.peer_addr().unwrap());
            far.push(other);
            transfer.pool.put(1, [number; 32], near);
        }
        let kept: Vec<_> = (0..READY_MAX)
            .map(|_| transfer.pool.take(&transfer, 1).unwrap())
            .map(|stream| stream.peer_addr().unwrap())
            .collect();
        assert_eq!(kept, newest[2..]);
    }
}
