//! Rails that are not different ways: the host's routing decides by which interface packets leave, whatever their source
//! address, unless a rule says otherwise.

use std::net::IpAddr;

use ropewalk_lane::{interfaces, routes};

/// How a rail leaves this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    rail: usize,
    local: IpAddr,
    peer: IpAddr,
    /// Interface that routing chooses.
    leaves_by: String,
    /// Interface that has the address.
    owner: Option<String>,
}

/// What the user should know about rails that leave by one interface; `ends` are the addresses of each rail that works.
pub(crate) fn warnings(ends: &[(usize, IpAddr, IpAddr)]) -> Vec<String> {
    let far = ends.iter().filter(|(_, _, peer)| !peer.is_loopback());
    let own = interfaces::usable(&[]);
    let exits: Vec<Exit> = far
        .filter_map(|&(rail, local, peer)| {
            let has = |one: &&interfaces::Interface| one.networks.iter().any(|(a, _)| *a == local);
            let owner = own.iter().find(has).map(|one| one.name.clone());
            // Where the kernel does not say, nothing is known.
            let leaves_by = routes::interface_toward(local, peer).ok()?;
            Some(Exit {
                rail,
                local,
                peer,
                leaves_by,
                owner,
            })
        })
        .collect();
    shared(&exits)
}

fn shared(exits: &[Exit]) -> Vec<String> {
    let mut out = Vec::new();
    for (at, exit) in exits.iter().enumerate() {
        let by = &exit.leaves_by;
        let Some(first) = exits[..at].iter().find(|other| other.leaves_by == *by) else {
            continue;
        };
        let mut text = format!(
            "rails {} and {} both leave by {by}: they will not add up",
            first.rail, exit.rail
        );
        // The one whose address is another interface's is led astray.
        let astray = |exit: &&Exit| {
            exit.owner
                .as_ref()
                .is_some_and(|owner| *owner != exit.leaves_by)
        };
        if let Some(Exit {
            local,
            peer,
            owner: Some(owner),
            ..
        }) = [exit, first].into_iter().find(astray)
        {
            text.push_str(&format!(
                "; {local} is an address of {owner}, but `ip route get {peer} from {local}` names {by}: `ip rule add from \
                 {local} table 100` and `ip route add default dev {owner} table 100` keep them apart"
            ));
        } else {
            text.push_str("; give each rail an address of an interface of its own");
        }
        out.push(text);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(rail: usize, local: &str, leaves_by: &str, owner: &str) -> Exit {
        Exit {
            rail,
            local: local.parse().unwrap(),
            peer: "10.9.9.9".parse().unwrap(),
            leaves_by: leaves_by.to_owned(),
            owner: Some(owner.to_owned()),
        }
    }

    /// Rails that share an interface are named, with the way out where routing is to blame.
    #[test]
    fn shared_interfaces_are_named() {
        let apart = [exit(0, "10.0.0.1", "a", "a"), exit(1, "10.0.1.1", "b", "b")];
        assert_eq!(shared(&apart), Vec::<String>::new());
        let astray = [exit(0, "10.0.0.1", "a", "a"), exit(1, "10.0.1.1", "a", "b")];
        let [text] = &shared(&astray)[..] else {
            panic!("one warning")
        };
        assert!(text.starts_with("rails 0 and 1 both leave by a"), "{text}");
        assert!(
            text.contains("`ip rule add from 10.0.1.1 table 100`"),
            "{text}"
        );
        assert!(text.contains("dev b table 100"), "{text}");
        let one = [exit(0, "10.0.0.1", "a", "a"), exit(1, "10.0.0.2", "a", "a")];
        assert!(shared(&one)[0].contains("an interface of its own"));
    }

    /// This host's own loopback rails are no cause for worry.
    #[test]
    fn loopback_is_left_alone() {
        let own = "127.0.0.1".parse().unwrap();
        assert_eq!(
            warnings(&[(0, own, own), (1, own, own)]),
            Vec::<String>::new()
        );
    }
}
