//! Which pairs of interfaces are the rails of a tunnel. Nothing is tried: a pair that does not connect costs an attempt every
//! few seconds, and one that connects later is used from then on.

use std::net::{IpAddr, SocketAddr};

/// Addresses of one interface of this host, each with the length of its network's prefix.
pub type Networks = Vec<(IpAddr, u8)>;

/// Pairs of an address here and one of the peer's, in the order of the peer's interfaces.
///
/// Each interface is in one pair at most: with one on the same network where there is one; of those that are left, the first here with
/// the first there, as far as they have a family in common.
///
/// * `here`, `there`: addresses by interface.
/// * `in_network`: whether an address is in the network of another with this prefix length.
#[must_use]
pub fn pairs(
    here: &[Networks],
    there: &[Vec<SocketAddr>],
    in_network: impl Fn(IpAddr, IpAddr, u8) -> bool,
) -> Vec<(IpAddr, SocketAddr)> {
    let is_own = |address: IpAddr| here.iter().flatten().any(|(own, _)| *own == address);
    let near = |own: &Networks, remotes: &[SocketAddr]| {
        let remotes = remotes.iter().filter(|remote| !is_own(remote.ip()));
        let mut both = remotes.flat_map(|remote| own.iter().map(move |own| (*own, *remote)));
        let found = both.find(|((own, length), remote)| in_network(remote.ip(), *own, *length));
        found.map(|((own, _), remote)| (own, remote))
    };
    let far = |own: &Networks, remotes: &[SocketAddr]| {
        let remotes = remotes.iter().filter(|remote| !is_own(remote.ip()));
        let mut both = remotes.flat_map(|remote| own.iter().map(move |own| (own.0, *remote)));
        both.find(|(own, remote)| own.is_ipv4() == remote.is_ipv4())
    };
    let mut found: Vec<Option<(IpAddr, SocketAddr)>> = vec![None; there.len()];
    let mut used = vec![false; here.len()];
    for round in [
        &near as &dyn Fn(&Networks, &[SocketAddr]) -> Option<_>,
        &far,
    ] {
        for (pair, remotes) in found.iter_mut().zip(there) {
            let free = (0..here.len()).filter(|at| !used[*at]);
            let mut made = free.filter_map(|at| Some((at, round(&here[at], remotes)?)));
            if pair.is_none()
                && let Some((at, made)) = made.next()
            {
                *pair = Some(made);
                used[at] = true;
            }
        }
    }
    found.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Networks of 24 bits.
    fn same(address: IpAddr, base: IpAddr, _: u8) -> bool {
        match (address, base) {
            (IpAddr::V4(a), IpAddr::V4(b)) => a.octets()[..3] == b.octets()[..3],
            _ => false,
        }
    }

    fn found(here: &[&[&str]], there: &[&[&str]]) -> Vec<String> {
        let own = |list: &&[&str]| {
            let address = |text: &&str| (text.parse().unwrap(), 24);
            list.iter().map(address).collect()
        };
        let remote = |list: &&[&str]| {
            let address = |text: &&str| SocketAddr::new(text.parse().unwrap(), 7);
            list.iter().map(address).collect()
        };
        let here: Vec<Networks> = here.iter().map(own).collect();
        let there: Vec<Vec<SocketAddr>> = there.iter().map(remote).collect();
        let pairs = pairs(&here, &there, same).into_iter();
        pairs
            .map(|(own, remote)| format!("{own} {}", remote.ip()))
            .collect()
    }

    /// Networks that both have are rails, whatever their order.
    #[test]
    fn networks_in_common_are_rails() {
        let rails = found(
            &[&["10.0.0.1"], &["10.0.1.1"], &["10.5.0.1"]],
            &[&["10.0.1.2"], &["10.0.0.2"]],
        );
        assert_eq!(rails, ["10.0.1.1 10.0.1.2", "10.0.0.1 10.0.0.2"]);
    }

    /// Through routers each interface is used once, and families are not mixed.
    #[test]
    fn routed_interfaces_are_paired_in_order() {
        let rails = found(
            &[&["fd00::1"], &["10.0.0.1"], &["10.0.1.1", "fd01::1"]],
            &[&["10.9.0.1"], &["10.9.1.1"], &["10.9.2.1"]],
        );
        assert_eq!(rails, ["10.0.0.1 10.9.0.1", "10.0.1.1 10.9.1.1"]);
        // What both share comes first; what is left goes together.
        let rails = found(
            &[&["10.0.0.1"], &["10.0.1.1"]],
            &[&["10.9.0.1"], &["10.0.0.2"]],
        );
        assert_eq!(rails, ["10.0.1.1 10.9.0.1", "10.0.0.1 10.0.0.2"]);
    }

    /// Bridges of containers have the same address on many hosts: a host does not connect to itself.
    #[test]
    fn own_addresses_are_no_peers() {
        let rails = found(
            &[&["10.0.0.1"], &["172.17.0.1"]],
            &[&["172.17.0.1"], &["10.0.0.2"]],
        );
        assert_eq!(rails, ["10.0.0.1 10.0.0.2"]);
    }
}
