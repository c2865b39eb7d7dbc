//! Interfaces of this host: their addresses, and the speed they claim.

use std::net::{IpAddr, SocketAddr};

/// An interface with the addresses under which other hosts may reach it, and the lengths of their network prefixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// Its addresses, and how many bits of each are the network's.
    pub networks: Vec<(IpAddr, u8)>,
}

impl Interface {
    /// Whether one of the interface's networks has the address.
    #[must_use]
    pub fn reaches(&self, other: IpAddr) -> bool {
        let shared = |&(own, length): &(IpAddr, u8)| in_network(other, own, length);
        self.networks.iter().any(shared)
    }

    fn is_named(&self, by: &str) -> bool {
        let network = by
            .split_once('/')
            .and_then(|(base, length)| Some((base.parse().ok()?, length.parse().ok()?)));
        let has = |&(address, _): &(IpAddr, u8)| match network {
            Some((base, length)) => in_network(address, base, length),
            None => by.parse() == Ok(address),
        };
        self.name == by || self.networks.iter().any(has)
    }
}

/// Whether an address is in the network of another with this prefix length.
#[must_use]
pub fn in_network(address: IpAddr, base: IpAddr, length: u8) -> bool {
    let (bits, difference) = match (address, base) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (32, u128::from(a.to_bits() ^ b.to_bits())),
        (IpAddr::V6(a), IpAddr::V6(b)) => (128, a.to_bits() ^ b.to_bits()),
        _ => return false,
    };
    let rest = bits - u32::from(length).min(bits);
    difference.checked_shr(rest).unwrap_or(0) == 0
}

/// Interfaces that may carry data between hosts; with `only`, those it names by name, address or network.
#[must_use]
pub fn usable(only: &[String]) -> Vec<Interface> {
    try_usable(only).unwrap_or_default()
}

/// Whether this host has an interface of that name, in whatever state.
#[must_use]
pub fn exists(name: &str) -> bool {
    let all = rustix::net::socket(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::DGRAM,
        None,
    );
    all.is_ok_and(|any| rustix::net::netdevice::name_to_index(&any, name).is_ok())
}

/// As [`usable`], for callers that distinguish no interface from no answer.
///
/// # Errors
/// The kernel does not say, as when descriptors are used up.
pub fn try_usable(only: &[String]) -> std::io::Result<Vec<Interface>> {
    let mut out: Vec<Interface> = Vec::new();
    for found in if_addrs::get_if_addrs()? {
        let address = found.ip();
        // Link-local IPv6 addresses mean nothing on another host without its interface index.
        let local6 = matches!(address, IpAddr::V6(a) if a.segments()[0] & 0xffc0 == 0xfe80);
        if found.is_loopback() || local6 || !found.is_oper_up() {
            continue;
        }
        let length = match &found.addr {
            if_addrs::IfAddr::V4(v4) => v4.prefixlen,
            if_addrs::IfAddr::V6(v6) => v6.prefixlen,
        };
        match out.iter_mut().find(|known| known.name == found.name) {
            Some(known) => known.networks.push((address, length)),
            None => out.push(Interface {
                name: found.name,
                networks: vec![(address, length)],
            }),
        }
    }
    out.retain(|interface| only.is_empty() || only.iter().any(|by| interface.is_named(by)));
    Ok(out)
}

/// Addresses under which peers may reach `port`, those most likely to work first, each with the position of its
/// interface from 1: the one the master used, then the others; loopback (0) last, since it only helps peers on the same
/// host, and not at all where the interfaces to use were named.
#[must_use]
pub fn candidates(
    interfaces: &[Interface],
    is_restricted: bool,
    reached_as: Option<IpAddr>,
    port: u16,
) -> Vec<(SocketAddr, u32)> {
    let mut out: Vec<(IpAddr, u32)> = Vec::new();
    for (number, interface) in (1..).zip(interfaces) {
        out.extend(interface.networks.iter().map(|(own, _)| (*own, number)));
    }
    if !is_restricted {
        let loopback = if_addrs::get_if_addrs().unwrap_or_default().into_iter();
        let loopback = loopback.filter(if_addrs::Interface::is_loopback);
        out.extend(loopback.map(|found| (found.ip(), 0)));
        if let Some(address) = reached_as.filter(|own| out.iter().all(|(known, _)| known != own)) {
            out.push((address, 0));
        }
    }
    out.sort_by_key(|(address, _)| (address.is_loopback(), Some(*address) != reached_as));
    out.into_iter()
        .map(|(address, number)| (SocketAddr::new(address, port), number))
        .collect()
}

/// Sum of the speeds of these interfaces as far as they are real, bytes per second; 0 when any is unknown.
/// Virtual ones report a made-up speed or none and are left out.
#[must_use]
pub fn rate(interfaces: &[Interface]) -> u64 {
    let mut sum = 0u64;
    for interface in interfaces {
        let folder = std::path::Path::new("/sys/class/net").join(&interface.name);
        if !folder.join("device").exists() {
            continue;
        }
        let speed = std::fs::read_to_string(folder.join("speed")).unwrap_or_default();
        match speed.trim().parse::<i64>() {
            Ok(megabits) if megabits > 0 => sum += megabits as u64 * 125_000,
            _ => return 0,
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, networks: &[(&str, u8)]) -> Interface {
        let network = |(address, length): &(&str, u8)| (address.parse().unwrap(), *length);
        Interface {
            name: name.into(),
            networks: networks.iter().map(network).collect(),
        }
    }

    /// By name, by an address of either family, by a network it is in.
    #[test]
    fn interfaces_are_named() {
        let one = interface("ib0", &[("10.1.2.3", 24), ("fd00::3", 64)]);
        for by in [
            "ib0",
            "10.1.2.3",
            "fd00::3",
            "10.1.0.0/16",
            "fd00::/16",
            "0.0.0.0/0",
        ] {
            assert!(one.is_named(by), "{by}");
        }
        for by in [
            "ib",
            "10.1.2.4",
            "10.2.0.0/16",
            "fd01::/16",
            "10.1.2.3/x",
            "",
        ] {
            assert!(!one.is_named(by), "{by}");
        }
    }

    #[test]
    fn networks_are_told_apart() {
        let one = interface("a", &[("192.168.5.1", 30), ("fd00:1::1", 127)]);
        for (other, reaches) in [
            ("192.168.5.2", true),
            ("192.168.5.4", false),
            ("fd00:1::", true),
            ("fd00:1::2", false),
            ("::ffff:192.168.5.2", false),
        ] {
            assert_eq!(one.reaches(other.parse().unwrap()), reaches, "{other}");
        }
    }

    /// The address the master used comes first; loopback, which has no number, last, and only where nothing was named.
    #[test]
    fn candidates_are_ordered_and_numbered() {
        let own = [
            interface("a", &[("10.0.0.1", 24)]),
            interface("b", &[("10.0.1.1", 24)]),
        ];
        let reached = Some("10.0.1.1".parse().unwrap());
        let named = candidates(&own, true, reached, 7);
        let text: Vec<(String, u32)> = named.iter().map(|(a, n)| (a.to_string(), *n)).collect();
        let expected = [("10.0.1.1:7", 2), ("10.0.0.1:7", 1)];
        assert_eq!(text, expected.map(|(a, n)| (a.to_owned(), n)));
        let all = candidates(&own, false, reached, 7);
        assert_eq!(all[..2], named[..]);
        assert!(
            all[2..]
                .iter()
                .all(|(a, number)| a.ip().is_loopback() && *number == 0)
        );
    }
}
