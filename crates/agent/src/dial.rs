//! Dials the addresses of a peer. Each attempt is a thread of its own; [`ropewalk_proto::route`] says when.

use std::io::{Error, ErrorKind, Result};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ropewalk_proto::control::Peer;
use ropewalk_proto::route::{Dials, Failure};

use crate::member::Member;
use crate::rails::{self, Rail};
use crate::streams::{POLL, STACK_LEN};

/// One address that does not answer costs at most this; others are dialled beside it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Something to connect to.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Tcp(SocketAddr),
    Rail(Rail),
}

impl Target {
    pub fn address(&self) -> SocketAddr {
        match self {
            Self::Tcp(address) => *address,
            Self::Rail(rail) => rail.remote(),
        }
    }

    pub fn connect(&self) -> Result<TcpStream> {
        let stream = match self {
            Self::Tcp(address) => TcpStream::connect_timeout(address, CONNECT_TIMEOUT)?,
            Self::Rail(rail) => rail.connect()?,
        };
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// What there is to dial: the peer's addresses in its order, over each of the interfaces where the user named some.
pub(crate) fn targets(member: &Member, peer: &Peer) -> Vec<Target> {
    let remotes = peer.addresses.iter().filter_map(|text| text.parse().ok());
    match member.is_restricted {
        true => {
            let rails = remotes.flat_map(|remote| rails::to(&member.interfaces, remote));
            rails.map(Target::Rail).collect()
        }
        false => remotes.map(Target::Tcp).collect(),
    }
}

/// Connects on a thread of its own and checks that the peer is there; `done` gets the connection and how long it took to be made.
pub(crate) fn begin<C, F>(target: Target, check: C, done: F)
where
    C: FnOnce(&mut TcpStream) -> Result<()> + Send + 'static,
    F: FnOnce(Result<(TcpStream, Duration)>) + Clone + Send + 'static,
{
    let failed = done.clone();
    let work = move || {
        let began = Instant::now();
        let connected = target.connect().and_then(|mut stream| {
            let took = began.elapsed();
            check(&mut stream).map(|()| (stream, took))
        });
        done(connected);
    };
    let builder = std::thread::Builder::new().name("dial".into());
    if let Err(error) = builder.stack_size(STACK_LEN).spawn(work) {
        failed(Err(error));
    }
}

/// What a failed connect means.
pub(crate) fn failure(error: &Error) -> Failure {
    match error.kind() {
        ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset => Failure::Refused,
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Failure::NoAnswer,
        ErrorKind::HostUnreachable
        | ErrorKind::NetworkUnreachable
        | ErrorKind::AddrNotAvailable
        | ErrorKind::NetworkDown => Failure::Unreachable,
        _ => Failure::Other(error.to_string()),
    }
}

/// Dials a peer on another host until an address connects and passes the check; in words when none does.
pub(crate) fn any<C>(
    member: &Member,
    peer: &Peer,
    check: C,
) -> std::result::Result<TcpStream, String>
where
    C: FnOnce(&mut TcpStream) -> Result<()> + Clone + Send + 'static,
{
    let targets = targets(member, peer);
    let addresses: Vec<SocketAddr> = targets.iter().map(Target::address).collect();
    let mut dials = Dials::new(&addresses, false);
    let (dialled, results) = mpsc::channel();
    loop {
        if member.has_ended() {
            return Err("the transfer has ended".into());
        }
        let now = member.now();
        while let Some(place) = dials.poll(now) {
            let dialled = dialled.clone();
            begin(targets[place].clone(), check.clone(), move |result| {
                let _ = dialled.send((place, result));
            });
        }
        if dials.is_over() {
            return Err(dials.describe(&member.name, &peer.name));
        }
        let pause = dials
            .next_at()
            .map_or(POLL, |at| Duration::from(at.since(now)).min(POLL));
        match results.recv_timeout(pause) {
            Ok((_, Ok((stream, _)))) => return Ok(stream),
            Ok((place, Err(error))) => dials.handle_failed(place, failure(&error)),
            Err(_) => {}
        }
    }
}
