//! The description of a lab: hosts, interfaces, rates. Plain data, also the JSON topology file.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::LabError;
use crate::trunk::TrunkSpec;

/// An address and the length of its network prefix, `192.168.3.4/24`.
///
/// Parsed without a length, IPv4 takes 24 and IPv6 takes 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    /// The address itself.
    pub ip: IpAddr,
    /// Leading bits that name the network; at most 32 for IPv4, 128 for IPv6.
    pub prefix: u8,
}

impl Address {
    /// The network this address is in: host bits cleared.
    pub(crate) fn network(self) -> Address {
        let ip = match self.ip {
            IpAddr::V4(ip) => {
                let mask = u32::MAX
                    .checked_shl(32 - u32::from(self.prefix))
                    .unwrap_or(0);
                IpAddr::V4((u32::from(ip) & mask).into())
            }
            IpAddr::V6(ip) => {
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(self.prefix))
                    .unwrap_or(0);
                IpAddr::V6((u128::from(ip) & mask).into())
            }
        };
        Address { ip, ..self }
    }
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        let prefix = if ip.is_ipv4() { 24 } else { 64 };
        Address { ip, prefix }
    }
}

impl FromStr for Address {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        let wrong =
            || LabError::description(format!("{text:?} is not an address like 192.168.3.4/24"));
        let (ip, prefix) = match text.split_once('/') {
            Some((ip, prefix)) => (ip, Some(prefix)),
            None => (text, None),
        };
        let mut address = Address::from(ip.parse::<IpAddr>().map_err(|_| wrong())?);
        if let Some(prefix) = prefix {
            address.prefix = prefix.parse().map_err(|_| wrong())?;
            if address.prefix > if address.ip.is_ipv4() { 32 } else { 128 } {
                return Err(wrong());
            }
        }
        Ok(address)
    }
}

impl TryFrom<String> for Address {
    type Error = LabError;

    fn try_from(text: String) -> Result<Self, LabError> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> String {
        address.to_string()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

/// How many bytes a capped interface may send at once before the cap spaces them out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Burst {
    /// `Wire` while the lab's caps sum to less than 1.6 Gbit/s (16 hosts of 100 Mbit/s), else `Whole`: spacing
    /// more than that packet by packet leaves two cores no time for the programs under test.
    #[default]
    Auto,
    /// Two milliseconds of the rate, at least two packets: packets spaced as on a wire (the kernel then
    /// cuts large segments in software, which costs processor time).
    Wire,
    /// 70 kB, so that a whole segmentation-offload packet passes: cheap, but lumps of 5.6 ms at 100 Mbit/s.
    Whole,
    /// Exactly this many bytes.
    Bytes(u32),
}

/// One interface of a host: a veth pair into a rail's bridge, capped on both ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NicSpec {
    /// Cap of each direction, decimal bits per second of Ethernet frames; `None` = not capped.
    /// TCP payload gets 1448/1514 of it.
    pub bits_per_second: Option<u64>,
    /// The bridge it is plugged into; `None` = the interface's own number. Rails do not reach each other.
    pub rail: Option<u8>,
    /// At most one IPv4 and one IPv6 address; a family not named gets one from the rail's own network.
    pub addresses: Vec<Address>,
    /// Token bucket depth.
    pub burst: Burst,
    /// Bytes that may queue at each end; `None` = 50 ms of the rate, at least 128 KiB.
    pub queue_bytes: Option<u32>,
    /// Largest IP packet; `None` = 1500. Hosts that share a rail should agree.
    pub mtu: Option<u32>,
}

impl NicSpec {
    /// An interface without a cap.
    #[must_use]
    pub fn uncapped() -> Self {
        NicSpec::default()
    }

    /// An interface that carries at most `bits_per_second` each way.
    #[must_use]
    pub fn rate_bits(bits_per_second: u64) -> Self {
        NicSpec {
            bits_per_second: Some(bits_per_second),
            ..NicSpec::default()
        }
    }

    /// Plugs it into this rail instead of the one of its own number.
    #[must_use]
    pub fn rail(mut self, rail: u8) -> Self {
        self.rail = Some(rail);
        self
    }

    /// Gives it this address (see [`Address`] for the prefix length) instead of an automatic one.
    #[must_use]
    pub fn address(mut self, address: impl Into<Address>) -> Self {
        self.addresses.push(address.into());
        self
    }

    /// Sets the token bucket depth.
    #[must_use]
    pub fn burst(mut self, burst: Burst) -> Self {
        self.burst = burst;
        self
    }

    /// Sets how many bytes may queue at each end.
    #[must_use]
    pub fn queue_bytes(mut self, bytes: u32) -> Self {
        self.queue_bytes = Some(bytes);
        self
    }
}

/// One host: its name, interfaces and the sizes of its private directories.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSpec {
    /// Letters, digits, `.` and `-`. A name that is an address becomes interface 0's address.
    pub name: String,
    /// Interfaces in order, `eth0` first; none listed = one without a cap.
    #[serde(default)]
    pub nics: Vec<NicSpec>,
    /// Byte limits of `tmp`, `data`, `run` or `shm` on this host; overrides the lab's.
    #[serde(default)]
    pub tmpfs_bytes: BTreeMap<String, u64>,
    /// TCP congestion control of this host; `None` = the lab's.
    #[serde(default)]
    pub congestion_control: Option<String>,
    /// `net.*` settings of this host; they override the lab's.
    #[serde(default)]
    pub sysctls: BTreeMap<String, String>,
}

impl HostSpec {
    /// A host with this name and, until [`nic`](Self::nic) is called, one interface without a cap.
    pub fn new(name: impl Into<String>) -> Self {
        HostSpec {
            name: name.into(),
            ..HostSpec::default()
        }
    }

    /// Adds an interface.
    #[must_use]
    pub fn nic(mut self, nic: NicSpec) -> Self {
        self.nics.push(nic);
        self
    }

    /// Sets this host's TCP congestion control, such as `cubic` or `reno`.
    #[must_use]
    pub fn congestion_control(mut self, name: impl Into<String>) -> Self {
        self.congestion_control = Some(name.into());
        self
    }

    /// Sets a `net.*` setting on this host.
    #[must_use]
    pub fn sysctl(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.sysctls.insert(name.into(), value.into());
        self
    }

    /// Limits the private directory `tmp`, `data`, `run` or `shm` of this host to `bytes`.
    #[must_use]
    pub fn tmpfs_size(mut self, directory: &str, bytes: u64) -> Self {
        self.tmpfs_bytes.insert(directory.to_owned(), bytes);
        self
    }
}

/// A directory of the machine seen by several hosts at one path: the lab's shared file system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedDir {
    /// The directory on the machine; must exist.
    pub machine_path: PathBuf,
    /// Absolute path inside the hosts, outside the machine's own top-level directories or below a private one.
    pub host_path: PathBuf,
    /// The hosts that mount it; empty = all.
    #[serde(default)]
    pub hosts: Vec<String>,
}

/// Everything a lab is made of; the JSON file that `ropewalk-lab up` reads has these keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Topology {
    /// The hosts, in the order [`Lab::hosts`](crate::Lab::hosts) gives them.
    pub hosts: Vec<HostSpec>,
    /// Directories seen by several hosts.
    pub shared_dirs: Vec<SharedDir>,
    /// Byte limits of `tmp`, `data`, `run`, `shm` on every host; none = half the memory, as tmpfs does.
    pub tmpfs_bytes: BTreeMap<String, u64>,
    /// TCP congestion control of every host; `None` = the machine's.
    pub congestion_control: Option<String>,
    /// Further `net.*` settings for every host, dotted name to value, such as `net.ipv4.tcp_wmem`.
    pub sysctls: BTreeMap<String, String>,
    /// Machine paths that stay visible in every host although they lie below a private directory.
    pub exposed: Vec<PathBuf>,
    /// Wide-area links between rails.
    pub trunks: Vec<TrunkSpec>,
}

/// The directories each host has for itself, as `tmpfs_bytes` names them.
pub(crate) const PRIVATE_DIRS: [&str; 4] = ["tmp", "data", "run", "shm"];

impl Topology {
    /// `count` hosts `h1`, `h2`, ... with one interface each, capped at `bits_per_second` if given.
    #[must_use]
    pub fn uniform(count: usize, bits_per_second: Option<u64>) -> Self {
        let nic = NicSpec {
            bits_per_second,
            ..NicSpec::default()
        };
        let hosts = (1..=count)
            .map(|number| HostSpec::new(format!("h{number}")).nic(nic.clone()))
            .collect();
        Topology {
            hosts,
            ..Topology::default()
        }
    }

    /// Refuses what the kernel would refuse later with a less telling message.
    pub(crate) fn check(&self) -> Result<(), LabError> {
        let bad = |what: String| Err(LabError::description(what));
        if self.hosts.is_empty() {
            return bad("there are no hosts; add at least one".into());
        }
        let mut names = std::collections::BTreeSet::new();
        for host in &self.hosts {
            let name = &host.name;
            let legal = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
            // 63 is the kernel's limit for a host name less one.
            if name.is_empty() || name.len() > 63 || !name.chars().all(legal) || name == "localhost"
            {
                return bad(format!(
                    "host name {name:?}: use 1 to 63 letters, digits, '.' or '-', not localhost"
                ));
            }
            if !names.insert(name) {
                return bad(format!("two hosts are named {name:?}"));
            }
            if host.nics.len() > 64 {
                return bad(format!(
                    "host {name}: {} interfaces; at most 64",
                    host.nics.len()
                ));
            }
            for (number, nic) in host.nics.iter().enumerate() {
                if nic.bits_per_second.is_some_and(|rate| rate < 8_000) {
                    return bad(format!(
                        "host {name} interface {number}: the rate is in bits per second, at least 8000"
                    ));
                }
                // IPv6 needs 1280; a veth takes 65535.
                if nic.mtu.is_some_and(|mtu| !(1280..=65_535).contains(&mtu)) {
                    return bad(format!(
                        "host {name} interface {number}: an MTU is 1280 to 65535 bytes"
                    ));
                }
                for v4 in [true, false] {
                    if nic
                        .addresses
                        .iter()
                        .filter(|a| a.ip.is_ipv4() == v4)
                        .count()
                        > 1
                    {
                        return bad(format!(
                            "host {name} interface {number}: two addresses of one family"
                        ));
                    }
                }
            }
        }
        for directory in self
            .hosts
            .iter()
            .flat_map(|host| host.tmpfs_bytes.keys())
            .chain(self.tmpfs_bytes.keys())
        {
            if !PRIVATE_DIRS.contains(&directory.as_str()) {
                return bad(format!(
                    "no private directory {directory:?}; they are {}",
                    PRIVATE_DIRS.join(", ")
                ));
            }
        }
        for shared in &self.shared_dirs {
            if !shared.machine_path.is_dir() {
                return bad(format!(
                    "shared directory {} does not exist on the machine",
                    shared.machine_path.display()
                ));
            }
            for path in [&shared.machine_path, &shared.host_path] {
                if !path.is_absolute() || path.components().any(|part| part.as_os_str() == "..") {
                    return bad(format!(
                        "shared directory {}: the path must be absolute, without '..'",
                        path.display()
                    ));
                }
            }
            if let Some(name) = shared.hosts.iter().find(|name| !names.contains(name)) {
                return bad(format!(
                    "shared directory {}: no host {name:?}",
                    shared.host_path.display()
                ));
            }
        }
        let sysctls = self.hosts.iter().flat_map(|host| host.sysctls.keys());
        if let Some(name) = sysctls
            .chain(self.sysctls.keys())
            .find(|name| !name.starts_with("net.") || name.contains('/'))
        {
            return bad(format!(
                "setting {name:?}: only net.* settings belong to a host"
            ));
        }
        Ok(())
    }
}

/// Reads a rate as people write it: `100Mbit`, `1.5Gbit`, `250kbit`, or bare bits per second.
///
/// # Errors
/// [`LabError::BadDescription`] shows the text and the accepted forms.
pub fn parse_rate(text: &str) -> Result<u64, LabError> {
    let wrong = || {
        LabError::description(format!(
            "{text:?} is not a rate; write 100Mbit, 1.5Gbit, 250kbit or bits per second"
        ))
    };
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit.to_ascii_lowercase().as_str() {
        "" | "bit" => 1.0,
        "kbit" => 1e3,
        "mbit" => 1e6,
        "gbit" => 1e9,
        _ => return Err(wrong()),
    };
    let bits = number.parse::<f64>().map_err(|_| wrong())? * scale;
    if !(8_000.0..=1e15).contains(&bits) {
        return Err(wrong());
    }
    Ok(bits.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Networks come out with host bits cleared at every prefix length, the extremes included.
    #[test]
    fn network_of_an_address() {
        for (text, network) in [
            ("10.1.2.3/16", "10.1.0.0/16"),
            ("192.168.3.4", "192.168.3.0/24"),
            ("10.1.2.3/0", "0.0.0.0/0"),
            ("10.1.2.3/32", "10.1.2.3/32"),
            ("fd00:1::7", "fd00:1::/64"),
        ] {
            assert_eq!(
                text.parse::<Address>().unwrap().network().to_string(),
                network
            );
        }
        assert!("10.1.2.3/33".parse::<Address>().is_err());
        assert!("node1".parse::<Address>().is_err());
    }

    /// Rates carry decimal units, and anything else is refused with the accepted forms.
    #[test]
    fn rates() {
        assert_eq!(parse_rate("100Mbit").unwrap(), 100_000_000);
        assert_eq!(parse_rate("1.5gbit").unwrap(), 1_500_000_000);
        assert_eq!(parse_rate("20000000").unwrap(), 20_000_000);
        for text in ["", "fast", "100MB", "-1Mbit", "1bit", "1e99"] {
            assert!(
                parse_rate(text)
                    .unwrap_err()
                    .to_string()
                    .contains("100Mbit"),
                "{text}"
            );
        }
    }

    /// A topology file with a misspelt key is refused rather than half understood.
    #[test]
    fn topology_file() {
        let text = r#"{"hosts": [{"name": "a1", "nics": [{"bits_per_second": 100000000, "addresses": ["10.9.0.1/16"]}]}]}"#;
        let topology: Topology = serde_json::from_str(text).unwrap();
        assert_eq!(
            topology.hosts[0].nics[0].addresses[0].to_string(),
            "10.9.0.1/16"
        );
        topology.check().unwrap();
        let error =
            serde_json::from_str::<Topology>(&text.replace("bits_per", "bytes_per")).unwrap_err();
        assert!(error.to_string().contains("bytes_per_second"), "{error}");
    }

    /// Each contradiction is refused before anything is created, and the message names the host.
    #[test]
    fn contradictions() {
        let message = |hosts: Vec<HostSpec>| {
            Topology {
                hosts,
                ..Topology::default()
            }
            .check()
            .unwrap_err()
            .to_string()
        };
        assert!(message(vec![]).contains("no hosts"));
        assert!(message(vec![HostSpec::new("a"), HostSpec::new("a")]).contains("\"a\""));
        assert!(message(vec![HostSpec::new("a b")]).contains("\"a b\""));
        assert!(
            message(vec![HostSpec::new("a").nic(NicSpec::rate_bits(100))])
                .contains("host a interface 0")
        );
        assert!(message(vec![HostSpec::new("a").tmpfs_size("etc", 1)]).contains("\"etc\""));
    }
}
