//! Rails: an interface here and one of the peer's, over which lanes run side by side (MuniSocket section 2).
//!
//! A pair of nodes is first connected as the host's routing has it. Then other pairs of interfaces are tried, until each
//! usable interface on either side has a rail: one with the same network on both sides before one through a router, and
//! one between two that have none yet before one that shares an end. What does not connect is no rail. Speeds need
//! not be known: rails pull their work, so two that share an uplink just carry half as much each.
//!
//! A rail's sockets are bound to its interface's address here, and to the interface itself where the kernel lets
//! programs do so without privilege (Linux 5.7 on). The peer does the same at its end.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use ropewalk_lane::routes;
use ropewalk_proto::control::Peer;
use socket2::{Domain, Protocol, Socket, Type};

use crate::interfaces::{Interface, in_network};

/// Pairs of interfaces that are tried for one peer.
const TRIES_MAX: usize = 16;

/// A rail that takes longer to answer is not worth waiting for: others do its work.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// One interface here, one address there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rail {
    interface: String,
    local: IpAddr,
    remote: SocketAddr,
}

impl fmt::Display for Rail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} - {}",
            self.interface,
            self.local,
            self.remote.ip()
        )
    }
}

impl Rail {
    /// Whether the interface still has the rail's address.
    pub fn is_there(&self, here: &[Interface]) -> bool {
        let has = |interface: &Interface| {
            let mut own = interface.networks.iter();
            interface.name == self.interface && own.any(|(own, _)| *own == self.local)
        };
        here.iter().any(has)
    }

    /// The peer's end.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// A connection over the rail.
    pub fn connect(&self) -> io::Result<TcpStream> {
        let socket = Socket::new(
            Domain::for_address(self.remote),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        // Best effort: without it the source address decides, as far as the host's rules follow it.
        let _ = socket.bind_device(Some(self.interface.as_bytes()));
        socket.bind(&SocketAddr::new(self.local, 0).into())?;
        socket.connect_timeout(&self.remote.into(), CONNECT_TIMEOUT)?;
        Ok(socket.into())
    }
}

impl Rail {
    /// What the user should know where the kernel does not let the program bind to the interface.
    pub fn warning(&self) -> Option<String> {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)).ok()?;
        let error = socket.bind_device(Some(self.interface.as_bytes())).err()?;
        let (nic, local, remote) = (&self.interface, self.local, self.remote.ip());
        Some(format!(
            "cannot bind to {nic} ({error}): if `ip route get {remote} from {local}` names another interface, that one \
             carries both rails; `ip rule add from {local} table 100` and `ip route add default dev {nic} table 100` \
             keep them apart"
        ))
    }
}

/// Ways to an address over these interfaces, those on its network first.
pub(crate) fn to(here: &[Interface], remote: SocketAddr) -> Vec<Rail> {
    let rail = |interface: &Interface| {
        let same = |(local, _): &&(IpAddr, u8)| local.is_ipv4() == remote.is_ipv4();
        let near = |(local, length): &&(IpAddr, u8)| in_network(remote.ip(), *local, *length);
        let mut own = interface.networks.iter();
        let (local, _) = own.clone().find(near).or_else(|| own.find(same))?;
        let rail = Rail {
            interface: interface.name.clone(),
            local: *local,
            remote,
        };
        Some((!interface.reaches(remote.ip()), rail))
    };
    let mut rails: Vec<(bool, Rail)> = here.iter().filter_map(rail).collect();
    rails.sort_by_key(|(is_far, _)| *is_far);
    rails.into_iter().map(|(_, rail)| rail).collect()
}

/// What the rail between two addresses is called, as [`Rail`] is.
pub(crate) fn name(here: &[Interface], local: IpAddr, remote: IpAddr) -> String {
    let owns = |interface: &&Interface| interface.networks.iter().any(|(own, _)| *own == local);
    match here.iter().find(owns) {
        Some(interface) => format!("{} {local} - {remote}", interface.name),
        None => format!("{local} - {remote}"),
    }
}

/// Keeps what a peer sent for on a rail on the interface that has the rail's address, where a route leads to the peer by it: packets for an
/// address may come by another interface, as those for a service address on `lo` do.
///
/// * `is_one_of_several`: the peer has other connections that work where this one does not. The only one goes as routing has it.
pub(crate) fn bind_accepted(stream: &TcpStream, is_one_of_several: bool) {
    let (Ok(local), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) else {
        return;
    };
    // A listener of both families gives IPv4 addresses as IPv6 ones.
    let (local, peer) = (local.ip().to_canonical(), peer.ip().to_canonical());
    let owns = |interface: &Interface| interface.networks.iter().any(|(own, _)| *own == local);
    if let Some(interface) = crate::interfaces::usable(&[]).into_iter().find(owns)
        && leads(&interface.name, local, peer, is_one_of_several)
    {
        let _ = socket2::SockRef::from(stream).bind_device(Some(interface.name.as_bytes()));
    }
}

/// Whether packets from an address of an interface to a peer may be bound to it.
fn leads(interface: &str, local: IpAddr, peer: IpAddr, is_one_of_several: bool) -> bool {
    let is_chosen = || routes::interface_toward(local, peer).is_ok_and(|by| by == interface);
    let is_possible = || routes::leads_by(interface, local, peer).is_ok_and(|leads| leads);
    is_chosen() || is_one_of_several && is_possible()
}

/// The search for further rails to one peer.
#[derive(Debug)]
pub(crate) struct Search {
    // The connection there is, as a rail.
    first: Option<Rail>,
    here: Vec<Interface>,
    // Addresses of each of the peer's interfaces.
    there: Vec<Vec<SocketAddr>>,
    used_here: BTreeSet<usize>,
    used_there: BTreeSet<usize>,
    tried: BTreeSet<(usize, usize)>,
}

impl Search {
    /// For a peer that is connected from `local` to `remote` already.
    pub fn new(here: Vec<Interface>, peer: &Peer, local: IpAddr, remote: SocketAddr) -> Self {
        let most = peer.interfaces.iter().copied().max().unwrap_or(0) as usize;
        let mut there = vec![Vec::new(); most.min(peer.addresses.len())];
        for (text, &number) in peer.addresses.iter().zip(&peer.interfaces) {
            let at = (number as usize).checked_sub(1);
            let addresses = at.and_then(|at| there.get_mut(at));
            if let (Some(addresses), Ok(address)) = (addresses, text.parse()) {
                addresses.push(address);
            }
        }
        let owns = |interface: &Interface| interface.networks.iter().any(|(own, _)| *own == local);
        let owner = here.iter().find(|interface| owns(interface));
        Self {
            first: owner.map(|interface| Rail {
                interface: interface.name.clone(),
                local,
                remote,
            }),
            used_here: here.iter().position(owns).into_iter().collect(),
            used_there: there
                .iter()
                .position(|own| own.contains(&remote))
                .into_iter()
                .collect(),
            here,
            there,
            tried: BTreeSet::new(),
        }
    }

    /// The next rail to try, and the pair to report to [`Search::works`].
    pub fn next(&mut self) -> Option<((usize, usize), Rail)> {
        if self.tried.len() >= TRIES_MAX {
            return None;
        }
        let free = |here: usize, there: usize| {
            usize::from(!self.used_here.contains(&here))
                + usize::from(!self.used_there.contains(&there))
        };
        let pairs = (0..self.here.len()).flat_map(|h| (0..self.there.len()).map(move |t| (h, t)));
        let open = pairs.filter(|&(h, t)| free(h, t) > 0 && !self.tried.contains(&(h, t)));
        let rails = open.filter_map(|(h, t)| Some(((h, t), self.rail(h, t)?)));
        let worst = |((h, t), (_, is_near)): &((usize, usize), (Rail, bool))| {
            (2 - free(*h, *t), !is_near, *h, *t)
        };
        let (pair, (rail, _)) = rails.min_by_key(worst)?;
        self.tried.insert(pair);
        Some((pair, rail))
    }

    /// The connection that there is, as a rail; `None` when no interface that may be used has its address.
    pub fn first(&self) -> Option<&Rail> {
        self.first.as_ref()
    }

    /// The rail connects.
    pub fn works(&mut self, (here, there): (usize, usize)) {
        self.used_here.insert(here);
        self.used_there.insert(there);
    }

    /// How the two interfaces would be connected, and whether they are on one network.
    fn rail(&self, here: usize, there: usize) -> Option<(Rail, bool)> {
        let own = &self.here[here];
        let remotes = &self.there[there];
        let near = remotes.iter().find(|remote| own.reaches(remote.ip()));
        let family = |remote: &&SocketAddr| {
            let same = |(local, _): &(IpAddr, u8)| local.is_ipv4() == remote.is_ipv4();
            own.networks.iter().any(same)
        };
        let remote = *near.or_else(|| remotes.iter().find(family))?;
        let same = |(local, length): &&(IpAddr, u8)| match near.is_some() {
            true => in_network(remote.ip(), *local, *length),
            false => local.is_ipv4() == remote.is_ipv4(),
        };
        let (local, _) = *own.networks.iter().find(same)?;
        let rail = Rail {
            interface: own.name.clone(),
            local,
            remote,
        };
        Some((rail, near.is_some()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(list: &[(&str, &str)]) -> Vec<Interface> {
        let interface = |(name, address): &(&str, &str)| Interface {
            name: (*name).into(),
            networks: vec![(address.parse().unwrap(), 24)],
        };
        list.iter().map(interface).collect()
    }

    fn peer(addresses: &[(&str, u32)]) -> Peer {
        Peer {
            addresses: addresses.iter().map(|(a, _)| (*a).to_owned()).collect(),
            interfaces: addresses.iter().map(|(_, number)| *number).collect(),
            ..Peer::default()
        }
    }

    /// All rails of a peer that can be reached on all of them; `works` says which connect.
    fn found(
        here: Vec<Interface>,
        peer: &Peer,
        first: (&str, &str),
        works: impl Fn(&str) -> bool,
    ) -> (Vec<String>, usize) {
        let (local, remote) = (first.0.parse().unwrap(), first.1.parse().unwrap());
        let mut search = Search::new(here, peer, local, remote);
        let (mut out, mut tries) = (Vec::new(), 0);
        while let Some((pair, rail)) = search.next() {
            tries += 1;
            let text = rail.to_string();
            if works(&text) {
                search.works(pair);
                out.push(text);
            }
        }
        (out, tries)
    }

    /// Two networks make two rails, whichever is connected first, and nothing crosses between them.
    #[test]
    fn each_network_is_a_rail() {
        let own = here(&[("eth0", "10.0.0.1"), ("eth1", "10.0.1.1")]);
        let other = peer(&[("10.0.1.2:7", 2), ("10.0.0.2:7", 1), ("127.0.0.1:7", 0)]);
        let all = |_: &str| true;
        let rails = found(own.clone(), &other, ("10.0.0.1", "10.0.0.2:7"), all);
        assert_eq!(rails, (vec!["eth1 10.0.1.1 - 10.0.1.2".to_owned()], 1));
        let rails = found(own, &other, ("10.0.1.1", "10.0.1.2:7"), all);
        assert_eq!(rails, (vec!["eth0 10.0.0.1 - 10.0.0.2".to_owned()], 1));
    }

    /// One interface here reaches both of a peer's, and the other way round.
    #[test]
    fn an_end_may_be_shared() {
        let other = peer(&[("10.0.0.2:7", 1), ("10.0.0.3:7", 2)]);
        let (rails, _) = found(
            here(&[("a", "10.0.0.1")]),
            &other,
            ("10.0.0.1", "10.0.0.2:7"),
            |_| true,
        );
        assert_eq!(rails, ["a 10.0.0.1 - 10.0.0.3"]);
        let own = here(&[("a", "10.0.0.1"), ("b", "10.0.0.9")]);
        let (rails, _) = found(
            own,
            &peer(&[("10.0.0.2:7", 1)]),
            ("10.0.0.1", "10.0.0.2:7"),
            |_| true,
        );
        assert_eq!(rails, ["b 10.0.0.9 - 10.0.0.2"]);
    }

    /// Where nothing but routers connects the networks, what answers is found, and families are not mixed.
    #[test]
    fn routed_networks_are_tried() {
        let own = here(&[("a", "10.0.0.1"), ("b", "10.0.1.1"), ("c", "fd00::1")]);
        let other = peer(&[("10.9.0.1:7", 1), ("10.9.1.1:7", 2)]);
        let (rails, tries) = found(own, &other, ("10.0.0.1", "10.9.0.1:7"), |rail| {
            rail.starts_with("b 10.0.1.1 - 10.9.0.1")
        });
        assert_eq!(rails, ["b 10.0.1.1 - 10.9.0.1"]);
        assert!(tries <= 4, "{tries}");
    }

    /// A host with one interface to one peer with one has no further rail, nor has one that told nothing.
    #[test]
    fn single_interfaces_are_left_alone() {
        let own = here(&[("a", "10.0.0.1")]);
        for other in [peer(&[("10.0.0.2:7", 1), ("127.0.0.1:7", 0)]), peer(&[])] {
            let rails = found(own.clone(), &other, ("10.0.0.1", "10.0.0.2:7"), |_| true);
            assert_eq!(rails, (vec![], 0));
        }
    }

    /// Interface numbers that a peer makes up are ignored.
    #[test]
    fn numbers_are_not_trusted() {
        let other = peer(&[("10.0.0.2:7", u32::MAX), ("nonsense", 1)]);
        let (rails, _) = found(
            here(&[("a", "10.0.0.1")]),
            &other,
            ("10.0.0.1", "10.0.0.2:7"),
            |_| true,
        );
        assert!(rails.is_empty());
    }
}
