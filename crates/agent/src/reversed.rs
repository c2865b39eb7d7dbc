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
//! secret, so unauthenticated peers fill no place here, and hosts that have the receiver's address in another network are passed
//! over; that both are the nodes they say they are shows in the pair's handshake, and for streams in the keys that are
//! derived from it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ropewalk_lane::preface::{self, Kind, PREFACE_LEN, Preface};
use ropewalk_proto::control::{self, Peer, from_agent, route};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Handle;

use crate::incoming::{self, Incoming};
use crate::member::Member;
use crate::peers::{Held, serve_peer};
use crate::pool::RAILS_MAX;
use crate::rails::{self, Rail, Search};
use crate::shared::Shared;
use crate::streams::DataSocket;
use crate::{connect, dial};

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

/// Takes what the master passes on from a peer.
pub(crate) fn handle(shared: &Arc<Shared>, member: &Arc<Member>, message: control::Route) {
    match message.step {
        Some(route::Step::Dial(peer)) => {
            if member.dialled.lock().insert(peer.node) {
                let keeper = Arc::new(Keeper {
                    member: member.clone(),
                    peer,
                    over: Mutex::new(Over::Any),
                });
                tokio::spawn(keep_ready(shared.clone(), keeper, None));
            }
        }
        Some(route::Step::Failed(why)) => member.pool.fail(message.node, why),
        Some(route::Step::Uncarried(why)) => member.carriers.fail(message.node, why),
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
fn dial(member: &Arc<Member>, peer: &Peer, over: &Over) -> Result<TcpStream, String> {
    let (greeter, node) = (member.clone(), peer.node);
    match over {
        Over::Any => dial::any(member, peer, move |stream| {
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
    member: &Arc<Member>,
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
    let here = member.interfaces.clone();
    let mut search = Search::new(here, peer, local, remote);
    while let Some((pair, rail)) = search.next() {
        if member.has_ended() || found.len() as u32 == RAILS_MAX {
            break;
        }
        let number = found.len() as u32 + 1;
        let over = Over::Rail(number, rail.clone());
        if let Ok(stream) = dial(member, peer, &over) {
            search.works(pair);
            found.push((number, rail, stream));
        }
    }
    let first = search.first().filter(|_| !found.is_empty());
    (first.cloned(), found)
}

/// Keeps connections ready over further rails, too, once the first one works.
fn begin_rails(shared: &Arc<Shared>, ready: &Arc<Keeper>, first: &TcpStream) {
    let member = &ready.member;
    // Parts that are dealt out once are no work for lanes that are found later.
    if member.one_rail || member.options.equal {
        return;
    }
    let Ok(first) = first.try_clone() else { return };
    let (shared, ready, handle) = (shared.clone(), ready.clone(), Handle::current());
    tokio::task::spawn_blocking(move || {
        let (own, found) = rails_to(&ready.member, &ready.peer, &first);
        if let Some(own) = own {
            // Where there are others it keeps to its own interface, too.
            *ready.over.lock() = Over::Rail(0, own);
        }
        for (number, rail, stream) in found {
            let keeper = Arc::new(Keeper {
                member: ready.member.clone(),
                peer: ready.peer.clone(),
                over: Mutex::new(Over::Rail(number, rail)),
            });
            handle.spawn(keep_ready(shared.clone(), keeper, Some(stream)));
        }
    });
}

/// For whom connections are kept ready, and how they are made.
struct Keeper {
    member: Arc<Member>,
    peer: Peer,
    over: Mutex<Over>,
}

/// Keeps a connection ready for a receiver until the transfer ends, or until the first one does not connect. `made`: that one.
async fn keep_ready(shared: Arc<Shared>, keeper: Arc<Keeper>, mut made: Option<TcpStream>) {
    let (member, peer) = (keeper.member.clone(), &keeper.peer);
    let mut is_known = made.is_some();
    let mut pause = PAUSE_MIN;
    while !member.has_ended() {
        let dialler = keeper.clone();
        let dialled = match made.take() {
            Some(stream) => Ok(Ok(stream)),
            None => {
                let work = move || {
                    let over = dialler.over.lock().clone();
                    dial(&dialler.member, &dialler.peer, &over)
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
                if let Some((stream, bytes, head)) = wait(&member, stream).await {
                    pause = PAUSE_MIN;
                    let shared = shared.clone();
                    tokio::spawn(async move {
                        let held = Held {
                            place: None,
                            doors: &shared.local_doors,
                            source: incoming::own_user(),
                        };
                        // What is wrong shows at the other end, too, which tries again.
                        let _ = serve_peer(stream, bytes, head, &shared, held).await;
                    });
                    continue;
                }
            }
            Ok(Err(why)) if !is_known => {
                member.dialled.lock().remove(&peer.node);
                let step = Some(route::Step::Failed(why));
                let node = peer.node;
                return member.send(from_agent::Body::Route(control::Route { node, step }));
            }
            Ok(Err(_)) | Err(_) => {}
        }
        let mut ended = member.ended.subscribe();
        let _ = tokio::time::timeout(pause, ended.wait_for(|ended| *ended)).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// A preface or its answer.
fn preface_of(member: &Member, rail: u32, nonce: [u8; 32]) -> [u8; PREFACE_LEN] {
    let head = Preface {
        kind: Kind::Reversed,
        flags: 0,
        key_id: [0; 16],
        transfer_id: member.id,
        nonce,
        extra: connect::extra(member.node, rail, false),
    };
    head.encode(&member.preface_key)
}

/// Says what the connection is for, and sees that the receiver is there.
fn greet(
    member: &Member,
    (receiver, rail): (u32, u32),
    stream: &mut TcpStream,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let nonce = preface::random_bytes();
    stream.write_all(&preface_of(member, rail, nonce))?;
    let mut bytes = [0; PREFACE_LEN];
    let read = stream.read_exact(&mut bytes);
    stream.set_read_timeout(None)?;
    let is_answer = |head: Preface| {
        let named = (head.kind, head.nonce, incoming::node_of(&head));
        named == (Kind::Reversed, nonce, receiver) && Preface::verify(&bytes, &member.preface_key)
    };
    match read.is_ok() && Preface::parse(&bytes).is_ok_and(is_answer) {
        true => Ok(()),
        false => Err(std::io::Error::other("another program answers there")),
    }
}

/// Answers a sender's preface, which has been verified, and keeps the connection.
pub(crate) async fn keep(
    member: &Member,
    head: &Preface,
    mut stream: impl Incoming,
) -> std::io::Result<()> {
    let rail = u32::from_le_bytes(std::array::from_fn(|at| head.extra[4 + at]));
    let answer = preface_of(member, rail, head.nonce);
    tokio::time::timeout(ANSWER_TIMEOUT, stream.write_all(&answer)).await??;
    let pool = match head.flags {
        preface::CARRIED => &member.carriers,
        _ => &member.pool,
    };
    let stream = stream.into_data()?;
    if let (DataSocket::Tcp(stream), true) = (&stream, rail > 0) {
        rails::bind_accepted(stream, true);
    }
    pool.put((incoming::node_of(head), rail), head.nonce, stream);
    Ok(())
}

/// Waits until the connection is taken, for as long as the transfer lasts.
async fn wait(
    member: &Member,
    stream: TcpStream,
) -> Option<(tokio::net::TcpStream, [u8; PREFACE_LEN], Preface)> {
    let probes = TcpKeepalive::new()
        .with_time(PROBE_EVERY)
        .with_interval(PROBE_EVERY);
    // Best effort: without it a NAT may forget a connection that is not used for minutes; then another one is made.
    let _ = SockRef::from(&stream).set_tcp_keepalive(&probes);
    stream.set_nonblocking(true).ok()?;
    let mut stream = tokio::net::TcpStream::from_std(stream).ok()?;
    let mut ended = member.ended.subscribe();
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
