//! Which interface gets which address, route and cap, and the `ip` and `tc` batches that make it so.
//!
//! Pure: it only builds text. A rail is one Ethernet segment. Every interface on it gets its own network's
//! address plus on-link routes to the other networks of the rail, so that hosts with addresses of different
//! networks reach each other without a router. A host with several interfaces also gets one routing table per
//! interface, chosen by source address: without it the kernel ignores `bind(source address)` and sends all by
//! the first interface.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::LabError;
use crate::spec::{Address, Burst, NicSpec, Topology};
use crate::trunk::PlannedTrunk;

/// From this sum of caps on, packets pass in lumps: 8 pairs of 100 Mbit/s. Two cores can space 16 pairs packet by
/// packet (measured: 1.8 cores), but then nothing is left for the programs under test.
const WHOLE_BITS_PER_SECOND_MIN: u64 = 1_600_000_000;
/// Two full Ethernet frames: the smallest bucket that never refuses a packet.
const BURST_BYTES_MIN: u64 = 3_036;
/// Lets a 64 KiB segmentation-offload packet and its headers pass whole.
const BURST_BYTES_WHOLE: u64 = 70_000;
/// Holds a few dozen packets where 50 ms of a slow rate would not.
const QUEUE_BYTES_MIN: u64 = 128 * 1024;
/// First routing table of the source rules; tables and priorities count on from here.
const TABLE_BASE: usize = 100;
/// The kernel's 500 drop silently when a burst comes between two looks of the relay.
const TRUNK_QUEUE_PACKETS: u32 = 10_000;

/// One interface as planned.
#[derive(Clone, Debug)]
pub(crate) struct PlannedNic {
    /// Name inside the host.
    pub name: String,
    /// Name of the other end, in the switch.
    pub port: String,
    pub rail: u8,
    /// IPv4 first, then IPv6 if the kernel has it.
    pub addresses: Vec<Address>,
    pub bits_per_second: Option<u64>,
    pub burst: Burst,
    pub queue_bytes: Option<u32>,
    pub mtu: Option<u32>,
}

/// The whole lab's interfaces: the outer index is the host's.
#[derive(Debug)]
pub(crate) struct Wiring {
    pub hosts: Vec<Vec<PlannedNic>>,
    /// Networks present on each rail.
    networks: BTreeMap<u8, BTreeSet<Address>>,
    /// What [`Burst::Auto`] means in this lab.
    auto_burst: Burst,
    trunks: Vec<PlannedTrunk>,
    /// TCP congestion control that a host's routes have to name; see [`Wiring::control_by_routes`].
    route_controls: Vec<Option<String>>,
}

impl Wiring {
    /// Plans every interface. Addresses left open are `10.RAIL.x.y/16` and `fd52:7770:6c6b:RAIL::n/64`.
    ///
    /// # Errors
    /// [`LabError::BadDescription`] when two interfaces ask for one address.
    pub(crate) fn plan(
        topology: &Topology,
        trunks: Vec<PlannedTrunk>,
        with_ipv6: bool,
    ) -> Result<Wiring, LabError> {
        let mut taken: BTreeMap<IpAddr, &str> = BTreeMap::new();
        let mut hosts: Vec<Vec<PlannedNic>> = Vec::new();
        for (host_number, host) in topology.hosts.iter().enumerate() {
            let mut specs = host.nics.clone();
            if specs.is_empty() {
                specs.push(NicSpec::uncapped());
            }
            if let Ok(ip) = host.name.parse::<IpAddr>()
                && !specs[0]
                    .addresses
                    .iter()
                    .any(|address| address.ip.is_ipv4() == ip.is_ipv4())
            {
                specs[0].addresses.push(ip.into());
            }
            for address in specs.iter().flat_map(|nic| &nic.addresses) {
                if let Some(other) = taken.insert(address.ip, &host.name) {
                    return Err(LabError::description(format!(
                        "{} is given to {other} and to {}",
                        address.ip, host.name
                    )));
                }
            }
            let nics = specs
                .into_iter()
                .enumerate()
                .map(|(number, spec)| PlannedNic {
                    name: format!("eth{number}"),
                    port: format!("p{host_number}-{number}"),
                    rail: spec.rail.unwrap_or(number as u8),
                    addresses: spec.addresses,
                    bits_per_second: spec.bits_per_second,
                    burst: spec.burst,
                    queue_bytes: spec.queue_bytes,
                    mtu: spec.mtu,
                });
            hosts.push(nics.collect());
        }

        let taken: BTreeSet<IpAddr> = taken.into_keys().collect();
        let mut ordinals: BTreeMap<u8, u16> = BTreeMap::new();
        for nic in hosts.iter_mut().flatten() {
            let ordinal = ordinals.entry(nic.rail).or_default();
            nic.complete_addresses(ordinal, &taken, with_ipv6)?;
        }
        let mut networks: BTreeMap<u8, BTreeSet<Address>> = BTreeMap::new();
        for nic in hosts.iter().flatten() {
            networks
                .entry(nic.rail)
                .or_default()
                .extend(nic.addresses.iter().map(|a| a.network()));
        }
        let capped: u64 = hosts
            .iter()
            .flatten()
            .filter_map(|nic| nic.bits_per_second)
            .fold(0, u64::saturating_add);
        let auto_burst = if capped < WHOLE_BITS_PER_SECOND_MIN {
            Burst::Wire
        } else {
            Burst::Whole
        };
        Ok(Wiring {
            hosts,
            networks,
            auto_burst,
            trunks,
            route_controls: Vec::new(),
        })
    }

    /// Lets these hosts' routes name their congestion control, where the kernel refuses it as a network's default.
    pub(crate) fn control_by_routes(&mut self, controls: Vec<Option<String>>) {
        self.route_controls = controls;
    }

    /// The end of an `ip route` line of this host.
    fn control(&self, host: usize) -> String {
        let control = self.route_controls.get(host).and_then(Option::as_ref);
        control
            .map(|name| format!(" congctl {name}"))
            .unwrap_or_default()
    }

    /// `ip` batch for the switch: one bridge per rail, one veth pair per interface whose far end starts life
    /// in the host's network namespace. `pids[h]` is a process in host `h`'s namespaces.
    pub(crate) fn switch_links(&self, pids: &[i32]) -> String {
        let mut batch = String::from("link set lo up\n");
        for rail in self.networks.keys() {
            let _ = writeln!(
                batch,
                "link add rail{rail} type bridge stp_state 0 forward_delay 0 mcast_snooping 0"
            );
            let _ = writeln!(batch, "link set rail{rail} up");
        }
        for (nics, pid) in self.hosts.iter().zip(pids) {
            for PlannedNic {
                name,
                port,
                rail,
                mtu,
                ..
            } in nics
            {
                let mtu = mtu.map(|mtu| format!(" mtu {mtu}")).unwrap_or_default();
                let _ = writeln!(
                    batch,
                    "link add {port}{mtu} type veth peer name {name}{mtu} netns {pid}"
                );
                let _ = writeln!(batch, "link set {port} master rail{rail} up");
            }
        }
        batch
    }

    /// `tc` batch for the switch: the direction towards the hosts.
    pub(crate) fn switch_caps(&self) -> String {
        let nics = self.hosts.iter().flatten();
        nics.filter_map(|nic| Some(self.cap(&nic.port, nic, nic.bits_per_second?, 0)))
            .collect()
    }

    /// `tc` batch for one host: the direction towards the switch.
    pub(crate) fn host_caps(&self, host: usize) -> String {
        let nics = self.hosts[host].iter();
        nics.filter_map(|nic| Some(self.cap(&nic.name, nic, nic.bits_per_second?, 0)))
            .collect()
    }

    /// Bytes that may pass at once through a token bucket of this rate on one of `nic`'s ends.
    pub(crate) fn burst(&self, nic: &PlannedNic, bits_per_second: u64) -> u64 {
        let rate_bytes = bits_per_second / 8;
        let burst = if nic.burst == Burst::Auto {
            self.auto_burst
        } else {
            nic.burst
        };
        let burst = match burst {
            Burst::Wire | Burst::Auto => (rate_bytes / 500).max(BURST_BYTES_MIN),
            // A millisecond of fast rates: on a loaded machine the timer that refills the bucket comes late.
            Burst::Whole => (rate_bytes / 1_000).max(BURST_BYTES_WHOLE),
            Burst::Bytes(bytes) => u64::from(bytes).max(BURST_BYTES_MIN),
        };
        // The kernel counts in 32 bits.
        burst.min(1 << 30)
    }

    /// The burst that an interface is built with; 0 without a cap.
    pub(crate) fn burst_at_start(&self, nic: &PlannedNic) -> u64 {
        nic.bits_per_second.map_or(0, |rate| self.burst(nic, rate))
    }

    /// `tc` line that puts a token bucket of this rate, and at least this burst, on `device`, one of `nic`'s ends.
    pub(crate) fn cap(
        &self,
        device: &str,
        nic: &PlannedNic,
        bits_per_second: u64,
        burst_min: u64,
    ) -> String {
        let rate_bytes = bits_per_second / 8;
        let burst = self.burst(nic, bits_per_second).max(burst_min);
        let queue = nic
            .queue_bytes
            .map_or((rate_bytes / 20).max(QUEUE_BYTES_MIN), u64::from);
        let limit = queue.saturating_add(burst).min(u64::from(u32::MAX));
        format!(
            "qdisc replace dev {device} root tbf rate {bits_per_second}bit burst {burst}b limit {limit}b\n"
        )
    }

    /// `ip` batch that brings one host's loopback, interfaces, addresses, source rules and routes up.
    pub(crate) fn host_links(&self, host: usize) -> String {
        let mut batch = String::from("link set lo up\n");
        for (number, nic) in self.hosts[host].iter().enumerate() {
            let _ = writeln!(batch, "link set {} up", nic.name);
            for &address in &nic.addresses {
                batch += &self.address(host, number, address);
            }
        }
        batch
    }

    /// `ip` lines that give interface `number` an address together with its source rule and routes.
    pub(crate) fn address(&self, host: usize, number: usize, address: Address) -> String {
        let nic = &self.hosts[host][number];
        // Duplicate detection would hold an IPv6 address back for a second or two.
        let at_once = if address.ip.is_ipv6() { " nodad" } else { "" };
        let mut batch = format!("addr replace {address} dev {}{at_once}\n", nic.name);
        if self.hosts[host].len() > 1 {
            let table = TABLE_BASE + number;
            let _ = writeln!(
                batch,
                "{} lookup {table} priority {table}",
                rule("add", address.ip)
            );
        }
        batch + &self.routes(host, number, address)
    }

    /// `ip` lines for the routes of one address; may be repeated, and must be after the link was down.
    pub(crate) fn routes(&self, host: usize, number: usize, address: Address) -> String {
        let nic = &self.hosts[host][number];
        let source_table = self.hosts[host].len() > 1;
        let table = TABLE_BASE + number;
        let mut batch = String::new();
        let control = self.control(host);
        for network in &self.networks[&nic.rail] {
            if network.ip.is_ipv4() != address.ip.is_ipv4() {
                continue;
            }
            let route = format!(
                "route replace {network} dev {} src {}",
                nic.name, address.ip
            );
            if *network != address.network() {
                // Own metric, so that two interfaces on one rail do not replace each other's route.
                let _ = writeln!(batch, "{route} metric {table}{control}");
            } else if !control.is_empty() {
                // In place of the kernel's own route: IPv4's has no metric, IPv6's has 256.
                let first = if address.ip.is_ipv6() {
                    " metric 1"
                } else {
                    ""
                };
                let _ = writeln!(batch, "{route}{first}{control}");
            }
            if source_table {
                let _ = writeln!(batch, "{route} table {table}{control}");
            }
        }
        for route in self.routes_over_trunks(host, number, address) {
            let _ = writeln!(batch, "{route} metric {table}{control}");
            if source_table {
                let _ = writeln!(batch, "{route} table {table}{control}");
            }
        }
        batch
    }

    /// The starts of `ip` lines for the routes over trunks that others than this host carry.
    fn routes_over_trunks(&self, host: usize, number: usize, address: Address) -> Vec<String> {
        let nic = &self.hosts[host][number];
        let mut lines = Vec::new();
        let ends = self.trunks.iter().flat_map(|trunk| {
            let [a, b] = &trunk.ends;
            [(a, b), (b, a)]
        });
        for (near, far) in ends.filter(|(near, _)| near.rail == nic.rail && near.host != host) {
            let gateway = self.hosts[near.host][near.nic].addresses.iter();
            let Some(gateway) = gateway
                .map(|gateway| gateway.ip)
                .find(|ip| ip.is_ipv4() == address.ip.is_ipv4())
            else {
                continue;
            };
            for network in self.networks_like(far.rail, address.ip) {
                // The gateway may be of another network of this rail.
                lines.push(format!(
                    "route replace {network} via {gateway} dev {} onlink src {}",
                    nic.name, address.ip
                ));
            }
        }
        lines
    }

    fn networks_like(&self, rail: u8, ip: IpAddr) -> impl Iterator<Item = &Address> {
        let networks = self.networks.get(&rail).into_iter().flatten();
        networks.filter(move |network| network.ip.is_ipv4() == ip.is_ipv4())
    }

    /// `ip` batch that brings up a trunk's device at one end (0 or 1) and routes the far rail over it.
    pub(crate) fn trunk_links(&self, trunk: usize, end: usize) -> String {
        let PlannedTrunk { device, mtu, ends } = &self.trunks[trunk];
        let (near, far) = (&ends[end], &ends[1 - end]);
        let addresses = &self.hosts[near.host][near.nic].addresses;
        // Without an address of its own it has little to say of itself: the trunk carries what hosts send.
        let quiet = if addresses.iter().any(|address| address.ip.is_ipv6()) {
            " addrgenmode none"
        } else {
            ""
        };
        let mut batch = format!(
            "link set {device} mtu {mtu} txqueuelen {TRUNK_QUEUE_PACKETS}{quiet}\nlink set {device} up\n"
        );
        for address in addresses {
            for network in self.networks_like(far.rail, address.ip) {
                // A router's own address matters to nobody; a host's is the one that its peers know.
                let source = if near.is_router {
                    String::new()
                } else {
                    format!(" src {}", address.ip)
                };
                let control = self.control(near.host);
                let _ = writeln!(
                    batch,
                    "route replace {network} dev {device}{source}{control}"
                );
            }
        }
        batch
    }

    /// The trunks, in the description's order.
    pub(crate) fn trunks(&self) -> &[PlannedTrunk] {
        &self.trunks
    }

    /// The hosts file that every host sees: `NAME` and `NAME-nicN` are IPv4, `NAME-v6` is interface 0's IPv6.
    ///
    /// The plain name has one address, so that every program agrees on the interface it means.
    pub(crate) fn hosts_file(&self, topology: &Topology) -> String {
        let mut text =
            String::from("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n");
        for (host, nics) in topology.hosts.iter().zip(&self.hosts) {
            let name = &host.name;
            for (number, nic) in nics.iter().enumerate() {
                for address in &nic.addresses {
                    let _ = match (address.ip, number) {
                        (ip, 0) if name.parse::<IpAddr>().is_ok() => {
                            writeln!(text, "{ip} {name}-nic0")
                        }
                        (IpAddr::V4(ip), 0) => writeln!(text, "{ip} {name} {name}-nic0"),
                        (IpAddr::V4(ip), _) => writeln!(text, "{ip} {name}-nic{number}"),
                        (IpAddr::V6(ip), 0) => writeln!(text, "{ip} {name}-v6"),
                        (IpAddr::V6(_), _) => Ok(()),
                    };
                }
            }
        }
        text
    }
}

/// The start of an `ip` line about a source rule. `ip rule` does not infer the family as the others do: lines
/// that begin with `-6` are for a run of their own, see `Lab::batch`.
pub(crate) fn rule(verb: &str, source: IpAddr) -> String {
    let family = if source.is_ipv6() { "-6 " } else { "" };
    format!("{family}rule {verb} from {source}")
}

impl PlannedNic {
    /// Adds the families that the description left open, from the rail's own network.
    fn complete_addresses(
        &mut self,
        ordinal: &mut u16,
        taken: &BTreeSet<IpAddr>,
        with_ipv6: bool,
    ) -> Result<(), LabError> {
        let (v4, v6) = loop {
            *ordinal += 1;
            let (high, low) = ((*ordinal - 1) / 254, (*ordinal - 1) % 254 + 1);
            if high > 255 {
                return Err(LabError::description(format!(
                    "rail {} has no address left",
                    self.rail
                )));
            }
            let v4 = IpAddr::V4(Ipv4Addr::new(10, self.rail, high as u8, low as u8));
            let v6 = IpAddr::V6(Ipv6Addr::new(
                0xfd52,
                0x7770,
                0x6c6b,
                self.rail.into(),
                0,
                0,
                0,
                *ordinal,
            ));
            if !taken.contains(&v4) && !taken.contains(&v6) {
                break (v4, v6);
            }
        };
        if !self.addresses.iter().any(|address| address.ip.is_ipv4()) {
            self.addresses.push(Address { ip: v4, prefix: 16 });
        }
        if with_ipv6 && !self.addresses.iter().any(|address| address.ip.is_ipv6()) {
            self.addresses.push(Address { ip: v6, prefix: 64 });
        }
        self.addresses
            .retain(|address| with_ipv6 || address.ip.is_ipv4());
        self.addresses.sort();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::HostSpec;

    fn wiring(hosts: Vec<HostSpec>) -> Wiring {
        Wiring::plan(
            &Topology {
                hosts,
                ..Topology::default()
            },
            Vec::new(),
            true,
        )
        .unwrap()
    }

    /// Automatic addresses are distinct per rail and step around addresses that were asked for.
    #[test]
    fn automatic_addresses() {
        let asked = NicSpec::uncapped().address("10.0.0.2".parse::<Address>().unwrap());
        let plan = wiring(vec![
            HostSpec::new("a"),
            HostSpec::new("b").nic(asked),
            HostSpec::new("c"),
            HostSpec::new("d"),
        ]);
        let ips: BTreeSet<String> = plan
            .hosts
            .iter()
            .map(|nics| nics[0].addresses[0].ip.to_string())
            .collect();
        assert_eq!(
            ips.into_iter().collect::<Vec<_>>(),
            ["10.0.0.1", "10.0.0.2", "10.0.0.4", "10.0.0.5"]
        );
    }

    /// A host named by an address has that address, and its rail-mates get a route to its network.
    #[test]
    fn host_named_by_address() {
        let plan = wiring(vec![HostSpec::new("node1"), HostSpec::new("192.168.3.4")]);
        assert_eq!(plan.hosts[1][0].addresses[0].to_string(), "192.168.3.4/24");
        assert!(
            plan.host_links(0)
                .contains("route replace 192.168.3.0/24 dev eth0 src 10.0.0.1 metric 100")
        );
        assert!(
            plan.host_links(1)
                .contains("route replace 10.0.0.0/16 dev eth0 src 192.168.3.4 metric 100")
        );
    }

    /// Only hosts with several interfaces get source rules, one table per interface.
    #[test]
    fn source_rules() {
        let two = HostSpec::new("a")
            .nic(NicSpec::uncapped())
            .nic(NicSpec::uncapped());
        let plan = wiring(vec![two, HostSpec::new("b")]);
        let links = plan.host_links(0);
        assert!(
            links.contains("rule add from 10.0.0.1 lookup 100"),
            "{links}"
        );
        assert!(
            links.contains("rule add from 10.1.0.1 lookup 101"),
            "{links}"
        );
        assert!(
            links.contains("route replace 10.1.0.0/16 dev eth1 src 10.1.0.1 table 101"),
            "{links}"
        );
        assert!(!plan.host_links(1).contains("rule"));
    }

    /// The automatic bucket spaces packets in small labs and passes offload packets whole in big ones.
    #[test]
    fn automatic_burst() {
        let hosts = |count| {
            (0..count)
                .map(|n| HostSpec::new(format!("h{n}")).nic(NicSpec::rate_bits(100_000_000)))
                .collect()
        };
        assert!(wiring(hosts(15)).host_caps(0).contains("burst 25000b"));
        assert!(wiring(hosts(16)).host_caps(0).contains("burst 70000b"));
    }

    /// One address for two interfaces is refused and both hosts are named.
    #[test]
    fn duplicate_address() {
        let topology = Topology {
            hosts: vec![
                HostSpec::new("10.0.0.9"),
                HostSpec::new("b")
                    .nic(NicSpec::uncapped().address("10.0.0.9".parse::<Address>().unwrap())),
            ],
            ..Topology::default()
        };
        let message = Wiring::plan(&topology, Vec::new(), true)
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("10.0.0.9 is given to 10.0.0.9 and to b"),
            "{message}"
        );
    }
}
