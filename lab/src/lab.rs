//! A running lab: wiring it up, running things in it, taking it down.

use std::ffi::{CString, OsStr};
use std::fs;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::spec::{Address, Topology};
use crate::ssh::Ssh;
use crate::sys::{self, Blueprint, Holder, Keeper, StartError};
use crate::trunk::{self, Device, Trunk};
use crate::wiring::Wiring;
use crate::{LabError, root};

/// More hosts than one bridge has ports make no sense on one machine.
const HOSTS_MAX: usize = 1_000;

/// Ports come up within milliseconds; the kernel may hold the news back for a second.
const PORTS_WAIT_MAX: Duration = Duration::from_secs(15);
const PORTS_RETRY: Duration = Duration::from_millis(1);

/// One interface of a running host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Its name inside the host: `eth0`, `eth1`, ...
    pub name: String,
    /// The bridge it is plugged into.
    pub rail: u8,
    /// The address it was built with.
    pub ipv4: Ipv4Addr,
    /// The address it was built with; `None` where the kernel has no IPv6.
    pub ipv6: Option<Ipv6Addr>,
    /// The cap it was built with, bits per second each way.
    pub bits_per_second: Option<u64>,
}

/// Bytes and packets an interface has carried since the lab was built, as the host's kernel counts them.
///
/// Frames, so TCP payload is about 4 % less. What the host's own cap dropped is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes the host received.
    pub rx_bytes: u64,
    /// Packets the host received; offload packets count once.
    pub rx_packets: u64,
    /// Bytes the host sent.
    pub tx_bytes: u64,
    /// Packets the host sent; offload packets count once.
    pub tx_packets: u64,
}

/// A running lab. Dropping it kills every process in it and removes it; that takes well below a second.
#[derive(Debug)]
pub struct Lab {
    /// First, so that it goes first: its devices would keep their networks alive.
    trunks: Vec<Trunk>,
    /// As it was described.
    topology: Topology,
    /// With the routers of trunks after the hosts; holders and wiring are in its order.
    all: Topology,
    wiring: Wiring,
    /// The switch, then one per host.
    pub(crate) switch: Holder,
    pub(crate) holders: Vec<Holder>,
    /// Present addresses per host and interface: faults delete and add them.
    pub(crate) addresses: Mutex<Vec<Vec<Vec<Address>>>>,
    /// Largest burst that each host's interface has had.
    pub(crate) bursts: Mutex<Vec<Vec<u64>>>,
    pub(crate) ssh: Mutex<Ssh>,
    keeper: Keeper,
}

impl Lab {
    pub(crate) fn build(topology: Topology) -> Result<Lab, LabError> {
        topology.check()?;
        if topology.hosts.len() > HOSTS_MAX {
            return Err(LabError::description(format!(
                "{} hosts; at most {HOSTS_MAX}",
                topology.hosts.len()
            )));
        }
        let (all, trunks) = trunk::expand(&topology)?;
        all.check()?;
        let machine = root::Machine::look()?;
        let mut wiring = Wiring::plan(&all, trunks, machine.has_ipv6)?;
        let control = |host| root::route_control(&machine, &all, host).cloned();
        wiring.control_by_routes(all.hosts.iter().map(control).collect());
        let hosts_file = wiring.hosts_file(&all);
        let mut blueprints = vec![Blueprint {
            process_name: CString::from(c"lab:switch"),
            steps: root::switch_steps(&machine)?,
        }];
        for host in &all.hosts {
            blueprints.push(Blueprint {
                process_name: CString::new(format!("lab:{}", host.name)).unwrap_or_default(),
                steps: root::host_steps(&machine, &all, host, &hosts_file)?,
            });
        }
        crate::available().map_err(|reason| LabError::NotPermitted { reason })?;
        let (keeper, mut holders) =
            sys::start(&blueprints).map_err(|error| start_error(error, &all, &blueprints))?;
        let switch = holders.remove(0);
        let addresses = wiring
            .hosts
            .iter()
            .map(|nics| nics.iter().map(|nic| nic.addresses.clone()).collect())
            .collect();
        let bursts = wiring.hosts.iter().map(|nics| {
            let burst = |nic| wiring.burst_at_start(nic);
            nics.iter().map(burst).collect()
        });
        let bursts = Mutex::new(bursts.collect());
        let (addresses, ssh) = (Mutex::new(addresses), Mutex::new(Ssh::default()));
        let mut lab = Lab {
            trunks: Vec::new(),
            topology,
            all,
            wiring,
            switch,
            holders,
            addresses,
            bursts,
            ssh,
            keeper,
        };
        // Devices before links: a host's routes may lead over them.
        let devices = lab.trunk_devices()?;
        lab.wire()?;
        for (spec, devices) in lab.topology.trunks.clone().into_iter().zip(devices) {
            lab.trunks.push(Trunk::start(spec, devices)?);
        }
        Ok(lab)
    }

    /// Creates the devices of all trunks, in the networks of the hosts and routers that carry them.
    fn trunk_devices(&self) -> Result<Vec<[Device; 2]>, LabError> {
        let planned = self.wiring.trunks().iter().zip(&self.topology.trunks);
        let both = planned.map(|(planned, spec)| {
            let device = |end: usize| -> Result<Device, LabError> {
                let index = planned.ends[end].host;
                let host = &self.all.hosts[index].name;
                let name = &planned.device;
                let made = self.in_network(host, || trunk::create(name, spec.offload))?;
                let action = format!("create a TUN device in {host}; needs /dev/net/tun");
                Ok(Device {
                    fd: made.map_err(LabError::system(action))?,
                    name: name.clone(),
                    counts: format!("/proc/{}/net/dev", self.holders[index].pid).into(),
                })
            };
            Ok([device(0)?, device(1)?])
        });
        both.collect()
    }

    fn wire(&self) -> Result<(), LabError> {
        let pids: Vec<i32> = self.holders.iter().map(|holder| holder.pid).collect();
        self.batch(None, "ip", &self.wiring.switch_links(&pids))?;
        self.batch(None, "tc", &self.wiring.switch_caps())?;
        for host in 0..self.holders.len() {
            // Caps first: no packet ever leaves uncapped.
            self.batch(Some(host), "tc", &self.wiring.host_caps(host))?;
            self.batch(Some(host), "ip", &self.wiring.host_links(host))?;
        }
        for (number, trunk) in self.wiring.trunks().iter().enumerate() {
            for (end, planned) in trunk.ends.iter().enumerate() {
                let links = self.wiring.trunk_links(number, end);
                self.batch(Some(planned.host), "ip", &links)?;
            }
        }
        self.await_ports()
    }

    /// Waits until the switch forwards on every port. The kernel tells a bridge about carrier some time after
    /// the link came up; until then packets are lost, and a port disabled on purpose would be enabled again.
    fn await_ports(&self) -> Result<(), LabError> {
        let ports = format!("/proc/{}/root/sys/class/net", self.switch.pid);
        let deadline = Instant::now() + PORTS_WAIT_MAX;
        for nic in self.wiring.hosts.iter().flatten() {
            let port = Path::new(&ports).join(&nic.port);
            let is = |file: &str, value: &str| {
                fs::read_to_string(port.join(file)).is_ok_and(|text| text.trim() == value)
            };
            while !(is("operstate", "up") && is("brport/state", "3")) {
                if Instant::now() > deadline {
                    let message = format!("port {} does not open", nic.port);
                    return Err(LabError::Program {
                        host: "switch".into(),
                        program: "bridge".into(),
                        message,
                    });
                }
                std::thread::sleep(PORTS_RETRY);
            }
        }
        Ok(())
    }

    /// Runs a batch of `ip` or `tc` lines in a host's network, or the switch's; lines that begin with `-6` last.
    pub(crate) fn batch(
        &self,
        host: Option<usize>,
        program: &str,
        lines: &str,
    ) -> Result<(), LabError> {
        let (of_v6, rest): (Vec<&str>, Vec<&str>) =
            lines.lines().partition(|line| line.starts_with("-6 "));
        self.run_batch(host, program, &[], &rest)?;
        let of_v6: Vec<&str> = of_v6.iter().map(|line| &line[3..]).collect();
        self.run_batch(host, program, &["-6"], &of_v6)
    }

    fn run_batch(
        &self,
        host: Option<usize>,
        program: &str,
        options: &[&str],
        lines: &[&str],
    ) -> Result<(), LabError> {
        if lines.is_empty() {
            return Ok(());
        }
        let holder = host.map_or(&self.switch, |host| &self.holders[host]);
        let name = || {
            host.map_or("switch", |host| &self.all.hosts[host].name)
                .to_owned()
        };
        let failed = |message: String| LabError::Program {
            host: name(),
            program: format!("{program} -batch"),
            message,
        };
        let mut command = Command::new(program);
        command
            .args(options)
            .args(["-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        holder.adopt(&mut command, false);
        let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
        let written = child.stdin.take().map_or(Ok(()), |mut pipe| {
            pipe.write_all(lines.join("\n").as_bytes())
        });
        let output = child
            .wait_with_output()
            .map_err(|error| failed(error.to_string()))?;
        if output.status.success() {
            return written.map_err(|error| failed(error.to_string()));
        }
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        // "Command failed -:9": show the line, too.
        let number = message
            .rsplit(':')
            .next()
            .and_then(|end| end.trim().parse::<usize>().ok());
        let line = number.and_then(|number| lines.get(number.wrapping_sub(1)));
        Err(failed(line.map_or_else(
            || message.clone(),
            |line| format!("{message} ({line})"),
        )))
    }

    /// A command that will run inside the host: its network, file system and host name. It inherits the
    /// environment; its directory is the caller's where the host has one of that path, else `/`.
    ///
    /// `program` is looked up in the host, which sees the machine's programs; those below the machine's `/tmp`
    /// only if [exposed](crate::LabBuilder::expose).
    /// Whatever is started this way is killed when the lab goes.
    ///
    /// # Panics
    /// When the lab has no such host.
    pub fn command(&self, host: &str, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        self.holders[self.known(host)].adopt(&mut command, true);
        command
    }

    /// Runs `work` on a thread that is in the host's network (not its file system), and returns its result.
    ///
    /// Sockets that `work` opens stay in that network wherever they are used later.
    ///
    /// # Errors
    /// [`LabError::UnknownHost`], or [`LabError::System`] when the thread cannot start or enter.
    ///
    /// # Panics
    /// When `work` does.
    pub fn in_network<T: Send>(
        &self,
        host: &str,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, LabError> {
        let holder = &self.holders[self.host_index(host)?];
        let enter = || {
            holder
                .enter_network()
                .map_err(LabError::system(format!("enter the network of {host}")))?;
            Ok(work())
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name(format!("in {host}"))
                .spawn_scoped(scope, enter);
            let thread = thread.map_err(LabError::system("start a thread"))?;
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Host names in the order they were described. Routers of trunks are not among them: `trunk0-a` and `trunk0-b`
    /// may be used as names of hosts all the same.
    pub fn hosts(&self) -> impl ExactSizeIterator<Item = &str> {
        self.topology.hosts.iter().map(|host| host.name.as_str())
    }

    /// A trunk, counted from 0 in the description's order.
    ///
    /// # Panics
    /// When the lab has no such trunk.
    #[must_use]
    pub fn trunk(&self, number: usize) -> &Trunk {
        let count = self.trunks.len();
        self.trunks.get(number).unwrap_or_else(|| {
            panic!("the lab has {count} trunks; there is no number {number} (they count from 0)")
        })
    }

    /// The description this lab was built from.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The IPv4 address that the host's name resolves to inside the lab: interface 0's.
    ///
    /// # Panics
    /// When the lab has no such host.
    #[must_use]
    pub fn address(&self, host: &str) -> IpAddr {
        IpAddr::V4(self.nics(host)[0].ipv4)
    }

    /// The addresses the host was built with: interface by interface, IPv4 before IPv6.
    ///
    /// # Panics
    /// When the lab has no such host.
    #[must_use]
    pub fn addresses(&self, host: &str) -> Vec<IpAddr> {
        let nics = &self.wiring.hosts[self.known(host)];
        nics.iter()
            .flat_map(|nic| &nic.addresses)
            .map(|address| address.ip)
            .collect()
    }

    /// The host's interfaces, in order.
    ///
    /// # Panics
    /// When the lab has no such host.
    #[must_use]
    pub fn nics(&self, host: &str) -> Vec<Nic> {
        let nics = &self.wiring.hosts[self.known(host)];
        nics.iter()
            .map(|nic| {
                let (mut ipv4, mut ipv6) = (Ipv4Addr::UNSPECIFIED, None);
                for address in &nic.addresses {
                    match address.ip {
                        IpAddr::V4(ip) => ipv4 = ip,
                        IpAddr::V6(ip) => ipv6 = Some(ip),
                    }
                }
                Nic {
                    name: nic.name.clone(),
                    rail: nic.rail,
                    ipv4,
                    ipv6,
                    bits_per_second: nic.bits_per_second,
                }
            })
            .collect()
    }

    /// The process that holds the host's namespaces; `nsenter -t PID -n -m -u` enters them.
    ///
    /// # Panics
    /// When the lab has no such host.
    #[must_use]
    pub fn pid(&self, host: &str) -> i32 {
        self.holders[self.known(host)].pid
    }

    /// Where this process finds the host's absolute path `path`.
    ///
    /// Absolute symbolic links inside the host are resolved against the machine's root, not the host's.
    ///
    /// # Panics
    /// When the lab has no such host.
    pub fn path_in(&self, host: &str, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        let inside = path.strip_prefix("/").unwrap_or(path);
        Path::new("/proc")
            .join(self.pid(host).to_string())
            .join("root")
            .join(inside)
    }

    /// What interface `nic` of the host has carried.
    ///
    /// # Errors
    /// [`LabError::UnknownHost`], [`LabError::UnknownNic`], [`LabError::File`].
    pub fn counters(&self, host: &str, nic: usize) -> Result<Counters, LabError> {
        let (index, nic) = self.nic_index(host, nic)?;
        let path = PathBuf::from(format!("/proc/{}/net/dev", self.holders[index].pid));
        let name = format!("{}:", self.wiring.hosts[index][nic].name);
        let text = root::read(&path)?;
        let line = text
            .lines()
            .find_map(|line| line.trim_start().strip_prefix(name.as_str()));
        let fields: Vec<u64> = line
            .unwrap_or_default()
            .split_whitespace()
            .filter_map(|field| field.parse().ok())
            .collect();
        // Eight columns of received, then eight of sent: bytes, packets, ...
        let [rx_bytes, rx_packets, ..] = fields[..] else {
            return Err(LabError::File {
                path,
                cause: io::Error::other(format!("no line for {name}")),
            });
        };
        let [tx_bytes, tx_packets] =
            [8, 9].map(|column| fields.get(column).copied().unwrap_or_default());
        Ok(Counters {
            rx_bytes,
            rx_packets,
            tx_bytes,
            tx_packets,
        })
    }

    /// Takes the lab down as dropping it does, and says whether that worked.
    ///
    /// # Errors
    /// [`LabError::Leftover`] when a process did not die within five seconds.
    pub fn close(mut self) -> Result<(), LabError> {
        self.trunks.clear();
        self.keeper.close().map_err(|error| LabError::Leftover {
            what: format!("processes behind ({error})"),
        })
    }

    pub(crate) fn wiring(&self) -> &Wiring {
        &self.wiring
    }

    /// For calls that every test makes: a misspelt host is the caller's mistake.
    fn known(&self, host: &str) -> usize {
        self.host_index(host)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn host_index(&self, host: &str) -> Result<usize, LabError> {
        self.all
            .hosts
            .iter()
            .position(|spec| spec.name == host)
            .ok_or_else(|| LabError::UnknownHost {
                name: host.to_owned(),
                known: self.hosts().collect::<Vec<_>>().join(", "),
            })
    }

    pub(crate) fn nic_index(&self, host: &str, nic: usize) -> Result<(usize, usize), LabError> {
        let index = self.host_index(host)?;
        let count = self.wiring.hosts[index].len();
        if nic < count {
            Ok((index, nic))
        } else {
            Err(LabError::UnknownNic {
                host: host.to_owned(),
                nic,
                count,
            })
        }
    }
}

fn start_error(error: StartError, topology: &Topology, blueprints: &[Blueprint]) -> LabError {
    match error {
        StartError::Owner(action, cause) => LabError::System {
            action: action.to_owned(),
            cause,
        },
        StartError::Died => LabError::system("start the lab's keeper")(io::Error::other(
            "it ended early; is /dev/null there?",
        )),
        StartError::Step { index, step, cause } => {
            let host = if index == 0 {
                "switch".to_owned()
            } else {
                topology.hosts[index - 1].name.clone()
            };
            match usize::try_from(step) {
                Ok(step) => LabError::Setup {
                    host,
                    step: blueprints[index].steps[step].describe(),
                    cause,
                },
                Err(_) if step == sys::UNSHARE => LabError::Setup {
                    host,
                    step: "get new namespaces".into(),
                    cause,
                },
                Err(_) => LabError::Setup {
                    host,
                    step: "start".into(),
                    cause,
                },
            }
        }
    }
}
