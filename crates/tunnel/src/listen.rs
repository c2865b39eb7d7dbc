//! The ports of a tunnel on the host where programs connect.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};

use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

/// Connections that the kernel keeps until they are accepted, as far as the system allows.
const BACKLOG: i32 = 1024;

/// Listeners of one forward.
#[derive(Debug)]
pub struct Bound(Vec<TcpListener>);

impl Bound {
    /// Their addresses, with the port that was chosen.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let own = |one: &TcpListener| Some(one.local_addr().ok()?.to_string());
        self.0.iter().filter_map(own).collect()
    }

    /// The listeners.
    #[must_use]
    pub fn into_listeners(self) -> Vec<TcpListener> {
        self.0
    }
}

/// Where to listen on this host: a name or address of it, `localhost` for both kinds of loopback, `*` for all addresses.
///
/// # Errors
/// For people, where the host has no such name or address.
pub fn addresses(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let both = |v4: Ipv4Addr, v6: Ipv6Addr| -> Vec<SocketAddr> {
        [IpAddr::V4(v4), IpAddr::V6(v6)]
            .map(|ip| SocketAddr::new(ip, port))
            .into()
    };
    match host {
        "localhost" => Ok(both(Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST)),
        "*" => Ok(both(Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED)),
        name => match (name, port).to_socket_addrs() {
            Ok(found) => Ok(found.collect()),
            Err(error) => Err(format!(
                "`{name}` is no name or address of this host: {error}"
            )),
        },
    }
}

/// Listens on these addresses; with port 0 the system chooses one for all of them. The first must be there, others may be missing. Needs a runtime.
///
/// # Errors
/// For people: which address, and what to do.
pub fn bind(addresses: &[SocketAddr]) -> Result<Bound, String> {
    let mut listeners = Vec::new();
    let mut chosen = None;
    for (at, address) in addresses.iter().enumerate() {
        let port = chosen.unwrap_or(address.port());
        let address = SocketAddr::new(address.ip(), port);
        match listen(address) {
            Ok(listener) => {
                chosen = listener.local_addr().ok().map(|own| own.port());
                listeners.push(listener);
            }
            Err(error) if at > 0 && is_absent(&error) => {}
            Err(error) => {
                let advice = advice(&error);
                return Err(format!("cannot listen on {address}: {error}; {advice}"));
            }
        }
    }
    Ok(Bound(listeners))
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
