//! The ports of a tunnel on this host.

use std::io;
use std::net::SocketAddr;

use ropewalk_proto::tunnel::report::TunnelForward;
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

use super::ForwardRequest;

/// Connections that the kernel keeps until they are accepted, as far as the system allows.
const BACKLOG: i32 = 1024;

/// Listeners of all forwards.
pub(super) struct Bound(Vec<(ForwardRequest, Vec<TcpListener>)>);

impl Bound {
    /// The forwards, with the ports that were chosen.
    pub fn named(&self) -> Vec<TunnelForward> {
        let forward = |(asked, listeners): &(ForwardRequest, Vec<TcpListener>)| TunnelForward {
            listen: listeners
                .iter()
                .filter_map(|one| Some(one.local_addr().ok()?.to_string()))
                .collect(),
            target: asked.target.to_string(),
        };
        self.0.iter().map(forward).collect()
    }

    /// Each listener, with the position of its target.
    pub fn into_listeners(self) -> impl Iterator<Item = (TcpListener, u32)> {
        (0..).zip(self.0).flat_map(|(at, (_, listeners))| {
            listeners.into_iter().map(move |listener| (listener, at))
        })
    }
}

/// Listens for all forwards, before any node is reached.
pub(super) fn bind(forwards: &[ForwardRequest]) -> Result<Bound, String> {
    let mut bound = Vec::new();
    for forward in forwards {
        let mut listeners = Vec::new();
        let mut chosen = None;
        for (at, address) in forward.listen.iter().enumerate() {
            let port = chosen.unwrap_or(address.port());
            let address = SocketAddr::new(address.ip(), port);
            match listen(address) {
                Ok(listener) => {
                    chosen = listener.local_addr().ok().map(|own| own.port());
                    listeners.push(listener);
                }
                Err(error) if at > 0 && is_absent(&error) => {}
                Err(error) => {
                    return Err(format!(
                        "cannot listen on {address}: {error}; {}",
                        advice(&error)
                    ));
                }
            }
        }
        bound.push((forward.clone(), listeners));
    }
    Ok(Bound(bound))
}

/// A host without IPv6 has no ::1, and a kernel without it no such socket.
fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || Errno::from_io_error(error) == Some(Errno::AFNOSUPPORT)
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "ports below 1024 are for root; choose a higher one",
        io::ErrorKind::AddrInUse => {
            "another program listens there; choose another port, or 0 for any"
        }
        _ => "choose an address of this host, and a free port",
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() {
        // IPv4 has a listener of its own.
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket.into())
}
