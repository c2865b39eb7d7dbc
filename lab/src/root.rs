//! What a host sees as its file system, as steps for its holder.
//!
//! The root is a small tmpfs that shows the machine's top-level directories, except for those a host has for
//! itself: `/tmp`, `/data`, `/run`, `/dev/shm`, `/root/.ssh`, and its own `/sys`, `/etc/hosts`,
//! `/etc/resolv.conf`. Building a new root instead of mounting over the old one needs no mount points on the
//! machine: nothing is created there, so nothing can be left behind.
//!
//! Not separated, on purpose: programs, the working copy, `/proc`, processes. A named Unix socket in a
//! directory that two hosts see does cross between them; abstract ones do not.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::LabError;
use crate::spec::{HostSpec, PRIVATE_DIRS, Topology};
use crate::step::Step;

/// Any directory that every Linux system has; covered only until the root is swapped.
const STAGE: &str = "/tmp";
/// Where the machine's root is while the host's own is built.
const OLD: &str = "/.machine";
/// Machine paths that are private to each host, with the name used in `tmpfs_bytes`.
const PRIVATE_PATHS: [(&str, &str, u32); 4] = [
    ("/tmp", "tmp", 0o1777),
    ("/data", "data", 0o755),
    ("/run", "run", 0o755),
    ("/dev/shm", "shm", 0o1777),
];

/// What the machine looks like; read once, before anything is forked.
#[derive(Debug)]
pub(crate) struct Machine {
    top: Vec<Entry>,
    root_home: Vec<Entry>,
    has_shm: bool,
    has_cgroup: bool,
    pub has_ipv6: bool,
    /// The kernel can have rules for packets look at frames that a bridge passes on, and does.
    has_bridge_rules: bool,
    /// TCP congestion controls that the kernel has, but does not let a network make its default.
    restricted_controls: Vec<String>,
    /// Set when root's account is locked, which sshd takes for a refusal: the same file with it unlocked.
    shadow: Option<Vec<u8>>,
    resolv_conf: Option<PathBuf>,
}

#[derive(Debug)]
struct Entry {
    path: PathBuf,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Dir,
    File,
    Link(PathBuf),
}

impl Machine {
    /// Lists what the hosts will share.
    pub(crate) fn look() -> Result<Machine, LabError> {
        let shadow = fs::read("/etc/shadow")
            .ok()
            .filter(|text| text.starts_with(b"root:!") || contains(text, b"\nroot:!"));
        let controls = |which: &str| -> Vec<String> {
            let path = format!("/proc/sys/net/ipv4/tcp_{which}_congestion_control");
            let text = fs::read_to_string(path).unwrap_or_default();
            text.split_whitespace().map(str::to_owned).collect()
        };
        let allowed = controls("allowed");
        let mut restricted_controls = controls("available");
        restricted_controls.retain(|name| !allowed.contains(name));
        Ok(Machine {
            restricted_controls,
            top: entries("/")?,
            root_home: if Path::new("/root").is_dir() {
                entries("/root")?
            } else {
                Vec::new()
            },
            has_shm: Path::new("/dev/shm").is_dir(),
            has_cgroup: Path::new("/sys/fs/cgroup").is_dir(),
            has_ipv6: Path::new("/proc/sys/net/ipv6/conf/all").is_dir(),
            has_bridge_rules: Path::new("/proc/sys/net/bridge").is_dir(),
            shadow: shadow.map(|text| unlock_root(&text)),
            resolv_conf: fs::canonicalize("/etc/resolv.conf").ok(),
        })
    }
}

fn entries(directory: &str) -> Result<Vec<Entry>, LabError> {
    let failed = |cause| LabError::File {
        path: directory.into(),
        cause,
    };
    let mut list = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        let kind = match entry.file_type() {
            Ok(kind) if kind.is_dir() => Kind::Dir,
            Ok(kind) if kind.is_file() => Kind::File,
            Ok(kind) if kind.is_symlink() => match fs::read_link(&path) {
                Ok(target) => Kind::Link(target),
                Err(_) => continue,
            },
            // Sockets and devices at the top mean nothing to a host; files may vanish while they are listed.
            _ => continue,
        };
        list.push(Entry { path, kind });
    }
    list.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(list)
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Replaces root's locked password by `*`: still no password, but not "locked".
fn unlock_root(shadow: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(shadow.len());
    for line in shadow.split_inclusive(|&byte| byte == b'\n') {
        match line.strip_prefix(b"root:") {
            Some(rest) => {
                let after = rest
                    .iter()
                    .position(|&byte| byte == b':')
                    .unwrap_or(rest.len());
                text.extend_from_slice(b"root:*");
                text.extend_from_slice(&rest[after..]);
            }
            None => text.extend_from_slice(line),
        }
    }
    text
}

/// The steps that turn a fresh set of namespaces into `host`.
pub(crate) fn host_steps(
    machine: &Machine,
    topology: &Topology,
    host: &HostSpec,
    hosts_file: &str,
) -> Result<Vec<Step>, LabError> {
    let mut plan = Plan {
        steps: network_settings(machine, topology, host)?,
    };
    plan.steps
        .push(Step::HostName(c_string(host.name.as_bytes())?));
    plan.steps.push(Step::DetachPropagation);
    plan.mount("tmpfs", STAGE, "size=16m,mode=755")?;
    plan.make_dir(&format!("{STAGE}{OLD}"), 0o700)?;
    plan.steps.push(Step::Pivot {
        new_root: c_string(STAGE.as_bytes())?,
        old_root: c_string(format!("{STAGE}{OLD}").as_bytes())?,
    });

    plan.mirror(&machine.top, &["/tmp", "/data", "/run", "/root", "/sys"])?;
    plan.make_dir("/root", 0o700)?;
    plan.mirror(&machine.root_home, &["/root/.ssh"])?;
    plan.make_dir("/root/.ssh", 0o700)?;
    // A network namespace shows its interfaces only in a sysfs of its own.
    plan.make_dir("/sys", 0o555)?;
    plan.mount("sysfs", "/sys", "")?;
    if machine.has_cgroup {
        plan.bind(
            Path::new("/sys/fs/cgroup"),
            Path::new("/sys/fs/cgroup"),
            true,
        )?;
    }
    let sizes: BTreeMap<&str, u64> = topology
        .tmpfs_bytes
        .iter()
        .chain(&host.tmpfs_bytes)
        .map(|(name, &bytes)| (name.as_str(), bytes))
        .collect();
    for (path, name, mode) in PRIVATE_PATHS {
        if name == "shm" && !machine.has_shm {
            continue;
        }
        if name != "shm" {
            plan.make_dir(path, mode)?;
        }
        let size = sizes
            .get(name)
            .map(|bytes| format!(",size={bytes}"))
            .unwrap_or_default();
        plan.mount("tmpfs", path, &format!("mode={mode:o}{size}"))?;
    }
    debug_assert_eq!(PRIVATE_PATHS.map(|(_, name, _)| name), PRIVATE_DIRS);

    for directory in ["/run/sshd", "/run/lock", "/run/ropewalk-lab"] {
        plan.make_dir(directory, 0o755)?;
    }
    plan.write_file(
        Path::new("/run/ropewalk-lab/host"),
        format!("{}\n", host.name).as_bytes(),
        0o644,
    )?;
    plan.cover(Path::new("/etc/hosts"), hosts_file.as_bytes(), 0o644)?;
    // A host asks nobody for names: lookups of unknown hosts must fail at once.
    let quiet = b"# the lab has no name servers\noptions timeout:1 attempts:1\n";
    match &machine.resolv_conf {
        Some(path) if path.starts_with("/run") => {
            plan.make_parents(path)?;
            plan.write_file(path, quiet, 0o644)?;
        }
        Some(path) => plan.cover(path, quiet, 0o644)?,
        None => {}
    }
    if let Some(shadow) = &machine.shadow {
        plan.cover(Path::new("/etc/shadow"), shadow, 0o600)?;
    }
    for path in exposed_paths(&topology.exposed) {
        plan.make_parents(&path)?;
        plan.make_dir_path(&path, 0o755)?;
        plan.bind(&path, &path, false)?;
    }
    for shared in &topology.shared_dirs {
        if shared.hosts.is_empty() || shared.hosts.contains(&host.name) {
            refuse_new_machine_path(machine, &shared.host_path)?;
            plan.make_parents(&shared.host_path)?;
            plan.make_dir_path(&shared.host_path, 0o755)?;
            plan.bind(&shared.machine_path, &shared.host_path, false)?;
        }
    }
    plan.steps.push(Step::Unmount {
        path: c_string(OLD.as_bytes())?,
    });
    Ok(plan.steps)
}

/// The steps of the switch: a network that adds no traffic of its own.
pub(crate) fn switch_steps(machine: &Machine) -> Result<Vec<Step>, LabError> {
    let mut plan = Plan {
        steps: vec![Step::DetachPropagation],
    };
    // The build watches the ports here.
    plan.mount("sysfs", "/sys", "")?;
    let mut steps = plan.steps;
    if machine.has_ipv6 {
        steps.push(setting("net.ipv6.conf.default.disable_ipv6", "1")?);
        steps.push(setting("net.ipv6.conf.all.disable_ipv6", "1")?);
    }
    // There are none here: looking for them took an eighth of the processors' time of a network that is full in both directions.
    if machine.has_bridge_rules {
        for protocol in ["iptables", "ip6tables", "arptables"] {
            steps.push(setting(
                &format!("net.bridge.bridge-nf-call-{protocol}"),
                "0",
            )?);
        }
    }
    Ok(steps)
}

fn network_settings(
    machine: &Machine,
    topology: &Topology,
    host: &HostSpec,
) -> Result<Vec<Step>, LabError> {
    let mut settings = vec![
        // Else the slow-start threshold of one run leaks into the next.
        ("net.ipv4.tcp_no_metrics_save", "1"),
        // Two interfaces of one host may share a rail: each answers for its own address only.
        ("net.ipv4.conf.all.arp_ignore", "1"),
        ("net.ipv4.conf.all.arp_announce", "2"),
        ("net.ipv4.conf.all.rp_filter", "0"),
        ("net.ipv4.conf.default.rp_filter", "0"),
        // Agents of ordinary users may use every port.
        ("net.ipv4.ip_unprivileged_port_start", "0"),
    ];
    if machine.has_ipv6 {
        settings.extend([
            ("net.ipv6.conf.default.accept_dad", "0"),
            ("net.ipv6.conf.default.accept_ra", "0"),
            ("net.ipv6.conf.default.router_solicitations", "0"),
            ("net.ipv6.conf.all.keep_addr_on_down", "1"),
        ]);
    }
    if route_control(machine, topology, host).is_none()
        && let Some(name) = control(topology, host)
    {
        settings.push(("net.ipv4.tcp_congestion_control", name));
    }
    settings.extend(
        topology
            .sysctls
            .iter()
            .chain(&host.sysctls)
            .map(|(name, value)| (name.as_str(), value.as_str())),
    );
    // A router's; there is no such setting where there is no IPv6.
    if machine.has_ipv6 && host.sysctls.contains_key("net.ipv4.ip_forward") {
        settings.push(("net.ipv6.conf.all.forwarding", "1"));
    }
    settings
        .into_iter()
        .map(|(name, value)| setting(name, value))
        .collect()
}

/// The congestion control that a host was given.
fn control<'t>(topology: &'t Topology, host: &'t HostSpec) -> Option<&'t String> {
    let own = host.congestion_control.as_ref();
    own.or(topology.congestion_control.as_ref())
}

/// The same when only the host's routes can say so: the kernel keeps some from being a network's default, unless the
/// machine's administrator allows them.
pub(crate) fn route_control<'t>(
    machine: &Machine,
    topology: &'t Topology,
    host: &'t HostSpec,
) -> Option<&'t String> {
    control(topology, host).filter(|name| machine.restricted_controls.contains(name))
}

fn setting(name: &str, value: &str) -> Result<Step, LabError> {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    Ok(Step::SetFile {
        path: c_string(path.as_bytes())?,
        contents: format!("{value}\n").into_bytes(),
    })
}

/// What must stay visible: what the caller asked for, and the directory of this very program if it lies below a
/// private one, as in a working copy under `/tmp`: a host could not start it, or its siblings, otherwise.
fn exposed_paths(asked: &[PathBuf]) -> Vec<PathBuf> {
    let mut paths = asked.to_vec();
    if let Ok(program) = std::env::current_exe()
        && let Some(directory) = program.parent()
    {
        // Test programs lie one level below the programs they test.
        let directory = if directory.ends_with("deps") {
            directory.parent().unwrap_or(directory)
        } else {
            directory
        };
        paths.push(directory.to_owned());
    }
    let private = |path: &Path| {
        path.starts_with("/root/.ssh")
            || PRIVATE_PATHS
                .iter()
                .any(|(private, ..)| path.starts_with(private) && path != Path::new(private))
    };
    paths.retain(|path| private(path));
    paths
}

/// A mount point inside a directory that is the machine's own would have to be created on the machine.
fn refuse_new_machine_path(machine: &Machine, path: &Path) -> Result<(), LabError> {
    let private = PRIVATE_PATHS
        .iter()
        .any(|(private, ..)| path.starts_with(private));
    let on_machine = machine
        .top
        .iter()
        .any(|entry| path.starts_with(&entry.path));
    if on_machine && !private && !path.is_dir() {
        let path = path.display();
        return Err(LabError::description(format!(
            "shared directory {path}: choose a new top-level name or one below /data"
        )));
    }
    Ok(())
}

struct Plan {
    steps: Vec<Step>,
}

impl Plan {
    fn make_dir(&mut self, path: &str, mode: u32) -> Result<(), LabError> {
        self.make_dir_path(Path::new(path), mode)
    }

    fn make_dir_path(&mut self, path: &Path, mode: u32) -> Result<(), LabError> {
        self.steps.push(Step::MakeDir {
            path: c_path(path)?,
            mode,
        });
        Ok(())
    }

    fn make_parents(&mut self, path: &Path) -> Result<(), LabError> {
        let mut at = PathBuf::from("/");
        for part in path.parent().into_iter().flat_map(Path::components) {
            if let Component::Normal(name) = part {
                at.push(name);
                self.make_dir_path(&at, 0o755)?;
            }
        }
        Ok(())
    }

    fn mount(&mut self, kind: &str, path: &str, options: &str) -> Result<(), LabError> {
        let (kind, path, options) = (
            c_string(kind.as_bytes())?,
            c_string(path.as_bytes())?,
            c_string(options.as_bytes())?,
        );
        self.steps.push(Step::Mount {
            kind,
            path,
            options,
        });
        Ok(())
    }

    fn write_file(&mut self, path: &Path, contents: &[u8], mode: u32) -> Result<(), LabError> {
        self.steps.push(Step::WriteFile {
            path: c_path(path)?,
            contents: contents.to_vec(),
            mode,
        });
        Ok(())
    }

    /// Shows the machine's `from` as the host's `to`, which must exist.
    fn bind(&mut self, from: &Path, to: &Path, if_there: bool) -> Result<(), LabError> {
        let mut old = OLD.as_bytes().to_vec();
        old.extend_from_slice(from.as_os_str().as_bytes());
        self.steps.push(Step::Bind {
            from: c_string(&old)?,
            to: c_path(to)?,
            if_there,
        });
        Ok(())
    }

    /// Replaces a file of the machine by one of the host's own, leaving the machine's alone.
    fn cover(&mut self, path: &Path, contents: &[u8], mode: u32) -> Result<(), LabError> {
        let own = PathBuf::from(format!(
            "/run/ropewalk-lab/{}",
            path.file_name().unwrap_or_default().to_string_lossy()
        ));
        self.write_file(&own, contents, mode)?;
        self.steps.push(Step::Bind {
            from: c_path(&own)?,
            to: c_path(path)?,
            if_there: false,
        });
        Ok(())
    }

    /// Repeats the machine's entries in the host's root, except those in `not`.
    fn mirror(&mut self, entries: &[Entry], not: &[&str]) -> Result<(), LabError> {
        for Entry { path, kind } in entries
            .iter()
            .filter(|entry| !not.iter().any(|not| entry.path == Path::new(not)))
        {
            match kind {
                Kind::Dir => {
                    self.make_dir_path(path, 0o755)?;
                    self.bind(path, path, true)?;
                }
                Kind::File => {
                    self.write_file(path, b"", 0o644)?;
                    self.bind(path, path, true)?;
                }
                Kind::Link(target) => {
                    self.steps.push(Step::Symlink {
                        target: c_path(target)?,
                        path: c_path(path)?,
                    });
                }
            }
        }
        Ok(())
    }
}

fn c_path(path: &Path) -> Result<CString, LabError> {
    c_string(path.as_os_str().as_bytes())
}

fn c_string(bytes: &[u8]) -> Result<CString, LabError> {
    let zero = |_| {
        LabError::description(format!(
            "{:?} contains a zero byte",
            String::from_utf8_lossy(bytes)
        ))
    };
    CString::new(bytes).map_err(zero)
}

/// Reads a file as this process sees it, with its path in the error.
pub(crate) fn read(path: &Path) -> Result<String, LabError> {
    fs::read_to_string(path).map_err(|cause: io::Error| LabError::File {
        path: path.into(),
        cause,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A locked root account becomes one without password; everybody else's line stays.
    #[test]
    fn root_is_unlocked() {
        let shadow = b"daemon:*:1::\nroot:!:20228:0:99999:7:::\nlp:!:1::\n";
        assert_eq!(
            unlock_root(shadow),
            b"daemon:*:1::\nroot:*:20228:0:99999:7:::\nlp:!:1::\n"
        );
    }

    /// Only paths that a private directory would hide need to be exposed.
    #[test]
    fn exposed() {
        let paths = exposed_paths(&[
            "/tmp/x".into(),
            "/usr/bin".into(),
            "/tmp".into(),
            "/data/y".into(),
        ]);
        assert!(paths.contains(&"/tmp/x".into()) && paths.contains(&"/data/y".into()));
        assert!(!paths.contains(&"/usr/bin".into()) && !paths.contains(&"/tmp".into()));
    }
}
