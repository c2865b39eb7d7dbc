//! Ready-made topologies over a trunk.

use super::spec::{TrunkEnd, TrunkSpec};
use crate::spec::{Burst, HostSpec, NicSpec, Topology};

/// Holds the bandwidth-delay product of 1 Gbit/s and 200 ms twice; the kernel's default of 4 MB would be the limit
/// long before the trunk.
const TCP_WINDOW_BYTES: u32 = 64 << 20;

/// Two clusters with a trunk between them.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterSpec {
    /// Hosts on side A (`a1`, `a2`, ...) and on side B (`b1`, ...).
    pub hosts: [usize; 2],
    /// Cap of each host's interface, each way.
    pub access_bits_per_second: Option<u64>,
    /// What joins them. Its ends are rails 0 and 1, each with a router.
    pub trunk: TrunkSpec,
}

impl Topology {
    /// Two clusters. TCP windows are large; set congestion control for all or by host.
    #[must_use]
    pub fn clusters(clusters: &ClusterSpec) -> Self {
        let end = |rail| TrunkEnd {
            rail,
            gateway: None,
        };
        let trunk = TrunkSpec {
            ends: [end(0), end(1)],
            ..clusters.trunk.clone()
        };
        let nic = NicSpec {
            bits_per_second: clusters.access_bits_per_second,
            mtu: Some(trunk.mtu),
            // The trunk lets only so much through that it can all be spaced packet by packet.
            burst: match trunk.a_to_b.bits_per_second {
                Some(0..=1_000_000_000) => Burst::Wire,
                _ => Burst::Auto,
            },
            ..NicSpec::default()
        };
        let side = |rail: u8, letter: char, count: usize| {
            let nic = nic.clone().rail(rail);
            (1..=count)
                .map(move |number| HostSpec::new(format!("{letter}{number}")).nic(nic.clone()))
        };
        let hosts = side(0, 'a', clusters.hosts[0]).chain(side(1, 'b', clusters.hosts[1]));
        Topology {
            hosts: hosts.collect(),
            trunks: vec![trunk],
            ..Topology::default()
        }
        .large_windows()
    }

    /// Two hosts, `sender` and `receiver`, each with its end of the trunk as an interface of its own: no routers, so
    /// that the processors have the least to do.
    #[must_use]
    pub fn pair_over(trunk: TrunkSpec) -> Self {
        let names = ["sender", "receiver"];
        let end = |rail: u8| TrunkEnd {
            rail,
            gateway: Some(names[usize::from(rail)].to_owned()),
        };
        let host =
            |rail: u8| HostSpec::new(names[usize::from(rail)]).nic(NicSpec::uncapped().rail(rail));
        Topology {
            hosts: vec![host(0), host(1)],
            trunks: vec![TrunkSpec {
                ends: [end(0), end(1)],
                ..trunk
            }],
            ..Topology::default()
        }
        .large_windows()
    }

    /// Two hosts, `a` and `b`, with an interface for each trunk, which joins it to the other host's of the same number; with routers.
    /// TCP windows are large.
    ///
    /// * `access_bits_per_second`: cap of each interface, each way.
    #[must_use]
    pub fn pair_over_rails(access_bits_per_second: Option<u64>, trunks: Vec<TrunkSpec>) -> Self {
        let host = |name: &str, side: u8| {
            let rails = (0..trunks.len() as u8).map(|number| 2 * number + side);
            let nics = rails.map(|rail| NicSpec {
                bits_per_second: access_bits_per_second,
                burst: Burst::Wire,
                ..NicSpec::default().rail(rail)
            });
            nics.fold(HostSpec::new(name), HostSpec::nic)
        };
        let hosts = vec![host("a", 0), host("b", 1)];
        let end = |rail| TrunkEnd {
            rail,
            gateway: None,
        };
        let trunks = (0_u8..).zip(trunks).map(|(number, trunk)| TrunkSpec {
            ends: [end(2 * number), end(2 * number + 1)],
            ..trunk
        });
        Topology {
            hosts,
            trunks: trunks.collect(),
            ..Topology::default()
        }
        .large_windows()
    }

    fn large_windows(mut self) -> Self {
        for (name, start) in [("rmem", 131_072), ("wmem", 65_536)] {
            let value = format!("4096 {start} {TCP_WINDOW_BYTES}");
            self.sysctls.insert(format!("net.ipv4.tcp_{name}"), value);
        }
        self
    }
}
