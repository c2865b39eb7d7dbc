//! Making the links of a connecting end.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ropewalk_lane::preface::PREFACE_LEN;
use socket2::{Domain, Protocol, Socket, Type};

use crate::handshake::{Introduction, Proof, Unproven};
use crate::link::Link;

/// A connection that is not made and answered in this time has failed; the rail is tried again later.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why a link could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("the peer has closed its socket")]
    Gone,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Makes the links of a connecting end.
pub(crate) struct Dialer {
    pub session: [u8; 16],
    /// Local and peer address of each rail.
    pub rails: Vec<(Option<IpAddr>, SocketAddr)>,
    pub proof: Proof,
    pub check: bool,
    pub sealed: bool,
    pub window: u64,
    pub dialled: AtomicU32,
}

impl Dialer {
    /// Connects a rail, until then at the latest; gives the link and the peer's window. With `hello` it may begin the
    /// session.
    pub(crate) fn dial(
        &self,
        rail: usize,
        hello: bool,
        until: Option<Instant>,
    ) -> Result<(Link, u64), DialError> {
        let patience = Instant::now() + PATIENCE;
        let until = until.map_or(patience, |until| until.min(patience));
        let (local, peer) = self.rails[rail];
        let socket = Socket::new(Domain::for_address(peer), Type::STREAM, Some(Protocol::TCP))?;
        if let Some(local) = local {
            socket.bind(&SocketAddr::new(local, 0).into())?;
        }
        socket.connect_timeout(&peer.into(), left(until)?)?;
        let mut stream = TcpStream::from(socket);
        let own = stream.local_addr()?;
        if own == peer {
            // A free port of this host may be given to the connecting end itself.
            return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into());
        }
        stream.set_nodelay(true)?;
        let said = Introduction {
            session: self.session,
            hello,
            check: self.check,
            sealed: self.sealed,
            rail,
            rails: self.rails.len(),
            number: self.dialled.fetch_add(1, Ordering::Relaxed) + 1,
            window: self.window,
        };
        let asked = said.ask(&self.proof);
        // The buffer of a fresh connection takes this and the proof whole.
        stream.write_all(&asked.bytes)?;
        let answer = hear(&mut stream, until)?;
        let refused = |why: &str| io::Error::new(io::ErrorKind::PermissionDenied, why);
        let welcomed = asked
            .hear(&answer, &self.proof)
            .map_err(|unproven| match unproven {
                Unproven::Gone => DialError::Gone,
                Unproven::Token => {
                    refused("the peer did not prove that it knows the token").into()
                }
                Unproven::MustSeal => refused(
                    "the peer takes sealed connections only; leave `plain` out, or set it there, too",
                )
                .into(),
            })?;
        stream.write_all(&welcomed.proof)?;
        let number = u64::from(said.number);
        let link = Link::new(stream, rail, number, self.check, welcomed.keys)?;
        Ok((link, welcomed.window))
    }
}

/// Time that is left, above zero.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(left)
}

/// Reads the peer's answer, which has to be there in time however slowly it comes.
fn hear(stream: &mut TcpStream, until: Instant) -> io::Result<[u8; PREFACE_LEN]> {
    let mut answer = [0; PREFACE_LEN];
    let mut have = 0;
    while have < PREFACE_LEN {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut answer[have..]) {
            Ok(0) => {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "the peer closed the connection without an answer: it has just ended, or is no message socket with this token",
                ));
            }
            Ok(count) => have += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(answer)
}
