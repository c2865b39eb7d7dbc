//! Streams over Unix sockets with abstract names, for two nodes of one host.
//!
//! Abstract names live in the network namespace: connecting succeeds exactly when both nodes are
//! on one host, which no host name or boot id shows reliably.

use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use socket2::SockRef;

use crate::receive::Receiver;
use crate::send::Sender;
use crate::socket::Socket;
use crate::{LaneError, Protection, ReceiveHalf, SendHalf};

/// Bytes asked for in the socket's buffer; the default of 208 KiB holds less than one fragment.
const BUFFER_LEN: usize = 4 << 20;

/// Name of the abstract socket on which an agent takes streams from its own host.
#[must_use]
pub fn agent_name(instance: &str) -> Vec<u8> {
    format!("ropewalk-{instance}").into_bytes()
}

/// Listens under an abstract name. Not blocking options are left to the caller.
///
/// # Errors
/// As the system says, such as an address in use.
pub fn listen(name: &[u8]) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Connects to an abstract name in this network namespace.
///
/// # Errors
/// As the system says; refused when no process listens on this host.
pub fn connect(name: &[u8]) -> io::Result<UnixStream> {
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)
}

/// The receiving end of a stream over a connected Unix socket.
///
/// # Errors
/// [`LaneError::Socket`] when a socket option is refused.
pub fn receive_half(
    stream: UnixStream,
    protection: Protection,
) -> Result<Box<dyn ReceiveHalf>, LaneError> {
    Ok(Box::new(Receiver::new(prepare(stream)?, protection)?))
}

/// The sending end of a stream over a connected Unix socket.
///
/// # Errors
/// [`LaneError::Socket`] when a socket option is refused.
pub fn send_half(
    stream: UnixStream,
    protection: Protection,
) -> Result<Box<dyn SendHalf>, LaneError> {
    Ok(Box::new(Sender::new(prepare(stream)?, protection)?))
}

pub(crate) fn prepare(stream: UnixStream) -> Result<Socket, LaneError> {
    SockRef::from(&stream)
        .set_send_buffer_size(BUFFER_LEN)
        .map_err(|source| LaneError::Socket {
            doing: "setting Unix socket options",
            source,
        })?;
    Socket::new(OwnedFd::from(stream), true).map_err(|source| LaneError::Socket {
        doing: "taking over the Unix socket",
        source,
    })
}
