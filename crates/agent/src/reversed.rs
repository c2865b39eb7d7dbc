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
//! The sender keeps one connection ready for each receiver that asked; where the two have several interfaces, one for each rail
//! that it finds, which its preface numbers. Preface and answer are authentic under the transfer's
//! secret, so strangers fill no place here, and hosts that have the receiver's address in another network are passed
//! over; that both are the nodes they say they are shows in the pair's handshake, and for streams in the keys that come
//! from it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use ropewalk_lane::preface::{self, Kind, PREFACE_LEN, Preface};
use ropewalk_proto::control::{self, Peer, from_agent, route};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Handle;

use crate::connect;
use crate::dial::{self, POLL};
use crate::listen::{self, Shared};
use crate::rails::{self, Rail, Search};
use crate::streams::DataSocket;
use crate::transfer::Transfer;

/// Connections of one sender that wait to be taken. It keeps one; a second comes while the first breaks.
pub(crate) const READY_MAX: usize = 2;

/// Further rails that a sender may connect over: as many as a search tries.
const RAILS_MAX: u32 = 16;

/// Connections through the master that wait to be taken: each was asked for by a stream that waits for one.
pub(crate) const CARRIERS_MAX: usize = 64;

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
    fn expect(&self, sender: u32) {
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
    pub fn next_rail(&self, transfer: &Transfer, sender: u32, rail: u32) -> Option<String> {
        let mut senders = self.senders.lock();
        loop {
            let ready = senders.get(&(sender, rail));
            if let Some(stream) = ready.and_then(|ready| ready.streams.front()) {
                return Some(name(stream));
            }
            if transfer.has_ended() {
                return None;
            }
            self.changed.wait_for(&mut senders, POLL);
        }
    }

    /// The next connection of this sender and rail that is still there; in words when none comes.
    pub fn take(&self, transfer: &Transfer, from: (u32, u32)) -> Result<DataSocket, String> {
        let until = Instant::now() + READY_TIMEOUT;
        let mut senders = self.senders.lock();
        loop {
            if transfer.has_ended() {
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
            let ends = connect::ends_of(stream);
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

/// Asks a sender to connect to this node and takes its first connection.
pub(crate) fn ask(transfer: &Transfer, sender: u32) -> Result<DataSocket, String> {
    transfer.pool.expect(sender);
    transfer.send(from_agent::Body::Route(control::Route {
        node: sender,
        step: Some(route::Step::Dial(Peer::default())),
    }));
    transfer.pool.take(transfer, (sender, 0))
}

/// Has the master connect to this node and to a sender, and takes the connection.
pub(crate) fn carry(transfer: &Transfer, sender: u32) -> Result<DataSocket, String> {
    transfer.carriers.expect(sender);
    transfer.send(from_agent::Body::Route(control::Route {
        node: sender,
        step: Some(route::Step::Carry(true)),
    }));
    transfer.carriers.take(transfer, (sender, 0))
}

/// Takes what the master passes on from a peer.
pub(crate) fn handle(shared: &Arc<Shared>, transfer: &Arc<Transfer>, message: control::Route) {
    match message.step {
        Some(route::Step::Dial(peer)) => {
            if transfer.dialled.lock().insert(peer.node) {
                let keeper = Arc::new(Keeper {
                    transfer: transfer.clone(),
                    peer,
                    over: Mutex::new(Over::Any),
                });
                tokio::spawn(keep_ready(shared.clone(), keeper, None));
            }
        }
        Some(route::Step::Failed(why)) => transfer.pool.fail(message.node, why),
        Some(route::Step::Uncarried(why)) => transfer.carriers.fail(message.node, why),
        Some(route::Step::Through(_) | route::Step::Carry(_)) | None => {}
    }
}

/// How a receiver is connected to.
#[derive(Clone)]
enum Over {
    /// At the first address that answers.
    Any,
    /// Over the rail of this number.
    Rail(u32, Rail),
}

/// Connects to a receiver and sees that it is there.
fn dial(transfer: &Arc<Transfer>, peer: &Peer, over: &Over) -> Result<TcpStream, String> {
    let (greeter, node) = (transfer.clone(), peer.node);
    match over {
        Over::Any => dial::any(transfer, peer, move |stream| {
            greet(&greeter, (node, 0), stream)
        }),
        Over::Rail(number, rail) => {
            let connected = dial::Target::Rail(rail.clone()).connect();
            let greeted = connected.and_then(|mut stream| {
                greet(&greeter, (node, *number), &mut stream)?;
                Ok(stream)
            });
            greeted.map_err(|error| error.to_string())
        }
    }
}

/// Finds further rails to a receiver that is connected; the first one, and those that work.
fn rails_to(
    transfer: &Arc<Transfer>,
    peer: &Peer,
    first: &TcpStream,
) -> (Option<Rail>, Vec<(u32, Rail, TcpStream)>) {
    let mut found = Vec::new();
    let Some((local, remote)) = first.local_addr().ok().zip(first.peer_addr().ok()) else {
        return (None, found);
    };
    let (local, remote) = (
        local.ip().to_canonical(),
        SocketAddr::new(remote.ip().to_canonical(), remote.port()),
    );
    let here = transfer.interfaces.clone();
    let mut search = Search::new(here, peer, local, remote);
    while let Some((pair, rail)) = search.next() {
        if transfer.has_ended() || found.len() as u32 == RAILS_MAX {
            break;
        }
        let number = found.len() as u32 + 1;
        let over = Over::Rail(number, rail.clone());
        if let Ok(stream) = dial(transfer, peer, &over) {
            search.works(pair);
            found.push((number, rail, stream));
        }
    }
    let first = search.first().filter(|_| !found.is_empty());
    (first.cloned(), found)
}

/// Keeps connections ready over further rails, too, once the first one works.
fn begin_rails(shared: &Arc<Shared>, ready: &Arc<Keeper>, first: &TcpStream) {
    let transfer = &ready.transfer;
    // Parts that are dealt out once are no work for lanes that are found later.
    if transfer.one_rail || transfer.options.equal {
        return;
    }
    let Ok(first) = first.try_clone() else { return };
    let (shared, ready, handle) = (shared.clone(), ready.clone(), Handle::current());
    tokio::task::spawn_blocking(move || {
        let (own, found) = rails_to(&ready.transfer, &ready.peer, &first);
        if let Some(own) = own {
            // Where there are others it keeps to its own interface, too.
            *ready.over.lock() = Over::Rail(0, own);
        }
        for (number, rail, stream) in found {
            let keeper = Arc::new(Keeper {
                transfer: ready.transfer.clone(),
                peer: ready.peer.clone(),
                over: Mutex::new(Over::Rail(number, rail)),
            });
            handle.spawn(keep_ready(shared.clone(), keeper, Some(stream)));
        }
    });
}

/// For whom connections are kept ready, and how they are made.
struct Keeper {
    transfer: Arc<Transfer>,
    peer: Peer,
    over: Mutex<Over>,
}

/// Keeps a connection ready for a receiver until the transfer ends, or until the first one does not connect. `made`: that one.
async fn keep_ready(shared: Arc<Shared>, keeper: Arc<Keeper>, mut made: Option<TcpStream>) {
    let (transfer, peer) = (keeper.transfer.clone(), &keeper.peer);
    let mut is_known = made.is_some();
    let mut pause = PAUSE_MIN;
    while !transfer.has_ended() {
        let dialler = keeper.clone();
        let dialled = match made.take() {
            Some(stream) => Ok(Ok(stream)),
            None => {
                let work = move || {
                    let over = dialler.over.lock().clone();
                    dial(&dialler.transfer, &dialler.peer, &over)
                };
                tokio::task::spawn_blocking(work).await
            }
        };
        match dialled {
            Ok(Ok(stream)) => {
                if !is_known {
                    begin_rails(&shared, &keeper, &stream);
                }
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
fn preface_of(transfer: &Transfer, rail: u32, nonce: [u8; 32]) -> [u8; PREFACE_LEN] {
    let head = Preface {
        kind: Kind::Reversed,
        flags: 0,
        key_id: [0; 16],
        transfer_id: transfer.id,
        nonce,
        extra: connect::extra(transfer.node, rail, false),
    };
    head.encode(&transfer.preface_key)
}

/// Says what the connection is for, and sees that the receiver is there.
fn greet(
    transfer: &Transfer,
    (receiver, rail): (u32, u32),
    stream: &mut TcpStream,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let nonce = preface::random_bytes();
    stream.write_all(&preface_of(transfer, rail, nonce))?;
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
    let rail = u32::from_le_bytes(std::array::from_fn(|at| head.extra[4 + at]));
    let answer = preface_of(transfer, rail, head.nonce);
    tokio::time::timeout(ANSWER_TIMEOUT, stream.write_all(&answer)).await??;
    let pool = match head.flags {
        preface::CARRIED => &transfer.carriers,
        _ => &transfer.pool,
    };
    let stream = stream.into_data()?;
    if let (DataSocket::Tcp(stream), true) = (&stream, rail > 0) {
        rails::bind_accepted(stream);
    }
    pool.put((listen::node_of(head), rail), head.nonce, stream);
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
        let (transfer, _said) = Transfer::alone();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let pool = &transfer.pool;
        let (near, _far) = pair(&listener);
        pool.put((7, 0), [1; 32], near);
        assert!(
            pool.take(&transfer, (7, 0))
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
        let taken = pool.take(&transfer, (7, 0)).unwrap();
        let taken = match peer_of(&taken) == address {
            true => taken,
            false => pool.take(&transfer, (7, 0)).unwrap(),
        };
        assert_eq!(peer_of(&taken), address);
        pool.fail(7, "no answer".into());
        assert_eq!(pool.take(&transfer, (7, 0)).unwrap_err(), "no answer");
        drop(far);
        pool.expect(7);
        transfer.stop(true, "ended");
        assert!(pool.take(&transfer, (7, 0)).unwrap_err().contains("ended"));
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
            newest.push(peer_of(&near));
            far.push(other);
            transfer.pool.put((1, 0), [number; 32], near);
        }
        let kept: Vec<_> = (0..READY_MAX)
            .map(|_| transfer.pool.take(&transfer, (1, 0)).unwrap())
            .map(|stream| peer_of(&stream))
            .collect();
        assert_eq!(kept, newest[2..]);
    }
}
