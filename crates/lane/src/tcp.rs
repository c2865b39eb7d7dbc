//! Streams over TCP. Congestion control is left as the host has it.
//!
//! Where that is BBR, its pacing timers are the largest cost on loopback (a third of the sender's time
//! with two streams: 0.65 CPU s/GB against 0.31 under cubic or reno). Two nodes of one host are
//! better served by [`unix`](crate::unix) sockets, which have no such timers: 0.19 CPU s/GB.

use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use socket2::SockRef;

use crate::receive::Receiver;
use crate::send::Sender;
use crate::socket::Socket;
use crate::{LaneError, Protection, ReceiveHalf, SendHalf};

/// Bytes the kernel may hold unsent. What is deeper cannot be cancelled any more; what is
/// shallower wakes the sender too often.
const NOTSENT_MAX: u32 = 1 << 20;
/// Time after which the kernel gives up on unacknowledged bytes.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);

/// `TCP_RTO_MAX_MS`, of Linux 6.15 and later.
const RETRANSMIT_PAUSE_MAX: i32 = 44;

/// Limits the pause before the kernel retransmits what is not acknowledged, 1 s at least, on a connection with little data that must not
/// break. Best effort: Linux before 6.15 does not have the limit.
///
/// Without it the pause doubles each time, from 9 s on where the first two packets of the connection were lost: 30 s are then three
/// attempts.
pub fn limit_retransmit_pause(socket: &impl AsFd, most: Duration) {
    let milliseconds = i32::try_from(most.as_millis()).unwrap_or(i32::MAX);
    let tcp = libc::IPPROTO_TCP;
    let _ = ropewalk_sockopt::set(socket, tcp, RETRANSMIT_PAUSE_MAX, milliseconds);
    // Of older kernels, with congestion control that has a slow start threshold: the first six pauses are equal.
    let _ = SockRef::from(socket).set_tcp_thin_linear_timeouts(true);
}

/// The receiving end of a stream over a connected TCP socket.
///
/// # Errors
/// [`LaneError::Socket`] when a socket option is refused.
pub fn receive_half(
    stream: TcpStream,
    protection: Protection,
) -> Result<Box<dyn ReceiveHalf>, LaneError> {
    Ok(Box::new(Receiver::new(prepare(stream)?, protection)?))
}

/// The sending end of a stream over a connected TCP socket.
///
/// # Errors
/// [`LaneError::Socket`] when a socket option is refused.
pub fn send_half(
    stream: TcpStream,
    protection: Protection,
) -> Result<Box<dyn SendHalf>, LaneError> {
    Ok(Box::new(Sender::new(prepare(stream)?, protection)?))
}

pub(crate) fn prepare(stream: TcpStream) -> Result<Socket, LaneError> {
    let set = || {
        let socket = SockRef::from(&stream);
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_notsent_lowat(NOTSENT_MAX)?;
        socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))
    };
    set().map_err(|source| LaneError::Socket {
        doing: "setting TCP options",
        source,
    })?;
    // A host reaches its own addresses from the same address.
    let local = matches!((stream.local_addr(), stream.peer_addr()), (Ok(near), Ok(far)) if near.ip() == far.ip());
    Socket::new(OwnedFd::from(stream), local).map_err(|source| LaneError::Socket {
        doing: "taking over the TCP socket",
        source,
    })
}
