//! The rails of a tunnel: interfaces of this host, and what the agent says of its own.

use std::fmt;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use ropewalk_lane::interfaces::{self, Interface, in_network};
use ropewalk_proto::control::ForwardOpened;
use ropewalk_proto::coordinator::Rails;
use ropewalk_proto::message::RAILS_MAX;
use ropewalk_proto::tunnel::pairing;

/// One address here, one there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rail {
    interface: String,
    pub local: IpAddr,
    pub remote: SocketAddr,
}

impl fmt::Display for Rail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (interface, local, remote) = (&self.interface, self.local, self.remote.ip());
        write!(f, "{interface} {local} - {remote}")
    }
}

/// The rails to an agent, that by which it was reached first.
///
/// * `at`: where this process reached it, as far as that is known.
pub(super) fn rails(
    asked: &Rails,
    at: Option<(IpAddr, Option<u16>)>,
    opened: &ForwardOpened,
) -> Result<Vec<Rail>, String> {
    let only = match asked {
        Rails::Only(names) => &names[..],
        Rails::All | Rails::One => &[],
    };
    let here = interfaces::usable(only);
    if here.is_empty() && !only.is_empty() {
        return Err(format!("no interface of this host is {}", only.join(", ")));
    }
    let there = by_interface(opened);
    let first = first(at, opened);
    let is_own = |ip: IpAddr| ip.is_loopback() || is_address(&interfaces::usable(&[]), ip);
    let mut found = Vec::new();
    if let Some(own) = first.filter(|first| is_own(first.ip())) {
        // Within a host there is one way.
        found.extend(rail(&here, own));
        return found
            .is_empty()
            .then(|| none(opened))
            .map_or(Ok(found), Err);
    }
    let networks: Vec<_> = here.iter().map(|one| one.networks.clone()).collect();
    for (local, remote) in pairing::pairs(&networks, &there, in_network) {
        found.push(Rail {
            interface: owner(&here, local),
            local,
            remote,
        });
    }
    if let Some(first) = first {
        let known = there.iter().find(|addresses| addresses.contains(&first));
        let is_known = |rail: &Rail| known.is_some_and(|known| known.contains(&rail.remote));
        if let Some(position) = found.iter().position(is_known) {
            found.swap(0, position);
        }
        // The control connection works as routing has it. The pairs may lack that way: an address that the agent does not know itself,
        // as behind a router that translates it, or networks with one number at different places. Where the interfaces were named, no
        // other is used.
        let routed = rail(&here, first).filter(|_| only.is_empty());
        found.splice(0..0, routed.filter(|routed| !found.contains(routed)));
    }
    found.truncate(match asked {
        Rails::One => 1,
        Rails::All | Rails::Only(_) => RAILS_MAX,
    });
    match found.is_empty() {
        true => Err(none(opened)),
        false => Ok(found),
    }
}

/// What the user should know of interfaces that were named and carry nothing.
pub(super) fn unused(asked: &Rails, found: &[Rail]) -> Vec<String> {
    let Rails::Only(names) = asked else {
        return Vec::new();
    };
    let here = |name: &String| {
        let usable = interfaces::usable(std::slice::from_ref(name));
        (usable, interfaces::exists(name))
    };
    let found: Vec<&str> = found.iter().map(|rail| &*rail.interface).collect();
    notes(names, here, &found)
}

/// * `here`: working interfaces of this host that a name means, and whether it is the name of one that is there, in whatever state.
/// * `found`: interfaces of the rails.
fn notes(
    names: &[String],
    here: impl Fn(&String) -> (Vec<Interface>, bool),
    found: &[&str],
) -> Vec<String> {
    let mut notes = Vec::new();
    for name in names {
        let (usable, exists) = here(name);
        if usable.iter().any(|one| found.contains(&&*one.name)) {
            continue;
        }
        let cause = match (usable.is_empty(), exists) {
            (false, _) => "no interface of its agent goes with it",
            (true, true) => "it is down, or has no address",
            // It may be one of the agent's host.
            (true, false) => continue,
        };
        notes.push(format!(
            "the interface {name} of this host carries nothing: {cause}; start the tunnel again when that has changed"
        ));
    }
    notes
}

fn none(opened: &ForwardOpened) -> String {
    format!(
        "no interface of this host leads to its agent, which names {}",
        opened.addresses.join(", ")
    )
}

/// The agent's addresses, by its interfaces.
fn by_interface(opened: &ForwardOpened) -> Vec<Vec<SocketAddr>> {
    let mut found: Vec<(u32, Vec<SocketAddr>)> = Vec::new();
    for (text, &number) in opened.addresses.iter().zip(&opened.interfaces) {
        let Some(address) = text.parse().ok().filter(|_| number > 0) else {
            continue;
        };
        match found.iter_mut().find(|(known, _)| *known == number) {
            Some((_, addresses)) => addresses.push(address),
            None => found.push((number, vec![address])),
        }
    }
    found.into_iter().map(|(_, addresses)| addresses).collect()
}

/// The address by which the agent was reached, with its port; the agent's first one where none is known.
fn first(at: Option<(IpAddr, Option<u16>)>, opened: &ForwardOpened) -> Option<SocketAddr> {
    let mut candidates = opened.addresses.iter().filter_map(|text| text.parse().ok());
    let candidate: Option<SocketAddr> = candidates.next();
    match at {
        Some((ip, port)) => {
            let port = port.or(candidate.map(|candidate| candidate.port()))?;
            Some(SocketAddr::new(ip.to_canonical(), port))
        }
        None => candidate,
    }
}

fn is_address(interfaces: &[Interface], ip: IpAddr) -> bool {
    let mut networks = interfaces.iter().flat_map(|one| &one.networks);
    networks.any(|(own, _)| *own == ip)
}

fn owner(here: &[Interface], local: IpAddr) -> String {
    let owner = here
        .iter()
        .find(|one| is_address(std::slice::from_ref(one), local));
    owner.map_or_else(|| "lo".to_owned(), |one| one.name.clone())
}

/// A rail to an address as this host's routing has it; nothing is sent.
fn rail(here: &[Interface], remote: SocketAddr) -> Option<Rail> {
    let any: IpAddr = match remote.is_ipv4() {
        true => [0, 0, 0, 0].into(),
        false => [0u16; 8].into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(remote).ok()?;
    let local = socket.local_addr().ok()?.ip();
    Some(Rail {
        interface: owner(here, local),
        local,
        remote,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interfaces that were named and carry nothing are said, those of the other host are not.
    #[test]
    fn named_interfaces_without_a_rail_are_said() {
        let here = |name: &String| {
            let is_usable = matches!(&**name, "e0" | "e2" | "10.0.0.0/24");
            let name = match &**name {
                "10.0.0.0/24" => "e0",
                name => name,
            };
            let usable = Interface {
                name: name.to_owned(),
                networks: Vec::new(),
            };
            let usable = is_usable.then_some(usable);
            (usable.into_iter().collect(), name != "far")
        };
        let names = ["e0", "10.0.0.0/24", "e1", "e2", "far"].map(str::to_owned);
        let notes = notes(&names, here, &["e0"]);
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(
            notes[0].starts_with("the interface e1 of this host carries nothing: it is down"),
            "{notes:?}"
        );
        assert!(
            notes[1].starts_with("the interface e2 of this host carries nothing: no interface")
        );
    }
}
