//! Which host, or router of its own, carries each end of each trunk.

use super::spec::TrunkSpec;
use crate::LabError;
use crate::spec::{HostSpec, NicSpec, Topology};

/// More trunks than processors can serve make no sense on one machine.
const TRUNKS_MAX: usize = 16;
const SIDES: [&str; 2] = ["a", "b"];

/// One end of a trunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedEnd {
    pub rail: u8,
    /// Index of the host, or of the router among them.
    pub host: usize,
    /// Its interface on the rail.
    pub nic: usize,
    pub is_router: bool,
}

/// A trunk with its devices' name, which is the same at both ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedTrunk {
    pub device: String,
    pub mtu: u32,
    pub ends: [PlannedEnd; 2],
}

/// The rail that an interface is plugged into.
fn rail(host: &HostSpec, nic: usize) -> u8 {
    let spec = host.nics.get(nic);
    spec.and_then(|spec| spec.rail).unwrap_or(nic as u8)
}

fn nic_on(host: &HostSpec, wanted: u8) -> Option<usize> {
    (0..host.nics.len().max(1)).find(|&nic| rail(host, nic) == wanted)
}

/// The topology with the routers as further hosts at its end, and the trunks.
///
/// # Errors
/// [`LabError::BadDescription`] names the trunk and what contradicts what.
pub(crate) fn expand(topology: &Topology) -> Result<(Topology, Vec<PlannedTrunk>), LabError> {
    let mut all = topology.clone();
    if topology.trunks.len() > TRUNKS_MAX {
        let count = topology.trunks.len();
        return Err(LabError::description(format!(
            "{count} trunks; at most {TRUNKS_MAX}"
        )));
    }
    let mut planned = Vec::new();
    for (number, spec) in topology.trunks.iter().enumerate() {
        let device = format!("trunk{number}");
        let bad = |what: String| LabError::description(format!("{device}: {what}"));
        if let Some(problem) = spec.problem() {
            return Err(bad(problem));
        }
        let rails = [spec.ends[0].rail, spec.ends[1].rail];
        // Its packets would leave by the trunk or not, as the kernel likes.
        if let Some(host) = topology
            .hosts
            .iter()
            .find(|host| rails.iter().all(|&rail| nic_on(host, rail).is_some()))
        {
            let name = &host.name;
            return Err(bad(format!(
                "host {name} is on both rails, {} and {}; it would not need the trunk",
                rails[0], rails[1]
            )));
        }
        let mut end = |side: usize| plan_end(spec, side, &device, &mut all).map_err(bad);
        let ends = [end(0)?, end(1)?];
        planned.push(PlannedTrunk {
            device: device.clone(),
            mtu: spec.mtu,
            ends,
        });
    }
    for (number, trunk) in planned.iter().enumerate() {
        let rails = |trunk: &PlannedTrunk| {
            let [a, b] = [trunk.ends[0].rail, trunk.ends[1].rail];
            (a.min(b), a.max(b))
        };
        if planned[..number]
            .iter()
            .any(|other| rails(other) == rails(trunk))
        {
            let (a, b) = rails(trunk);
            return Err(LabError::description(format!(
                "two trunks join rails {a} and {b}"
            )));
        }
    }
    Ok((all, planned))
}

fn plan_end(
    spec: &TrunkSpec,
    side: usize,
    device: &str,
    all: &mut Topology,
) -> Result<PlannedEnd, String> {
    let end = &spec.ends[side];
    let Some(name) = &end.gateway else {
        let mut nic = NicSpec::uncapped().rail(end.rail);
        nic.mtu = Some(spec.mtu.max(largest_mtu(all, end.rail)));
        let router = HostSpec::new(format!("{device}-{}", SIDES[side]))
            .nic(nic)
            .sysctl("net.ipv4.ip_forward", "1");
        all.hosts.push(router);
        return Ok(PlannedEnd {
            rail: end.rail,
            host: all.hosts.len() - 1,
            nic: 0,
            is_router: true,
        });
    };
    let found = all.hosts.iter().position(|host| host.name == *name);
    let host = found.ok_or_else(|| format!("there is no host {name:?} to be its gateway"))?;
    let nic = nic_on(&all.hosts[host], end.rail)
        .ok_or_else(|| format!("its gateway {name} has no interface on rail {}", end.rail))?;
    Ok(PlannedEnd {
        rail: end.rail,
        host,
        nic,
        is_router: false,
    })
}

/// A router takes whatever the hosts of its rail send.
fn largest_mtu(topology: &Topology, wanted: u8) -> u32 {
    let hosts = topology.hosts.iter();
    let mtus = hosts.flat_map(|host| {
        let nics = host.nics.iter().enumerate();
        nics.filter(move |(number, _)| rail(host, *number) == wanted)
            .filter_map(|(_, nic)| nic.mtu)
    });
    mtus.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trunk::{LinkSpec, TrunkEnd};

    fn topology(hosts: Vec<HostSpec>, trunk: TrunkSpec) -> Topology {
        Topology {
            hosts,
            trunks: vec![trunk],
            ..Topology::default()
        }
    }

    fn on(name: &str, rail: u8) -> HostSpec {
        HostSpec::new(name).nic(NicSpec::uncapped().rail(rail))
    }

    fn gateways(a: &str, b: &str) -> TrunkSpec {
        let end = |rail, name: &str| TrunkEnd {
            rail,
            gateway: Some(name.into()),
        };
        TrunkSpec {
            ends: [end(0, a), end(1, b)],
            ..TrunkSpec::default()
        }
    }

    /// Without gateways each side gets a router at the end of the list; with them, none.
    #[test]
    fn routers() {
        let hosts = vec![on("a1", 0), on("b1", 1)];
        let (all, trunks) = expand(&topology(hosts.clone(), TrunkSpec::default())).unwrap();
        let names: Vec<&str> = all.hosts.iter().map(|host| host.name.as_str()).collect();
        assert_eq!(names, ["a1", "b1", "trunk0-a", "trunk0-b"]);
        assert_eq!(
            (trunks[0].ends[1].host, trunks[0].ends[1].is_router),
            (3, true)
        );
        let (all, trunks) = expand(&topology(hosts, gateways("a1", "b1"))).unwrap();
        assert_eq!(all.hosts.len(), 2);
        assert_eq!(
            (trunks[0].ends[1].host, trunks[0].ends[1].is_router),
            (1, false)
        );
    }

    /// Each contradiction is refused and says what contradicts what.
    #[test]
    fn contradictions() {
        let hosts = || vec![on("a1", 0), on("b1", 1)];
        let both = HostSpec::new("x")
            .nic(NicSpec::uncapped())
            .nic(NicSpec::uncapped());
        let mut twice = topology(hosts(), TrunkSpec::default());
        twice.trunks.push(TrunkSpec::default());
        let slow = TrunkSpec::symmetric(LinkSpec::rate_bits(1));
        for (topology, word) in [
            (topology(hosts(), gateways("a1", "c1")), "\"c1\""),
            (
                topology(hosts(), gateways("b1", "a1")),
                "b1 has no interface on rail 0",
            ),
            (
                topology(vec![both], TrunkSpec::default()),
                "x is on both rails",
            ),
            (topology(hosts(), slow), "a_to_b"),
            (twice, "two trunks join rails 0 and 1"),
        ] {
            let error = expand(&topology).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
