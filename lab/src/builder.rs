//! Describing a lab in code, and finding out whether one is possible.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::spec::{HostSpec, SharedDir, Topology};
use crate::trunk::TrunkSpec;
use crate::{Lab, LabError, sys};

/// Says whether this process can build a lab; otherwise why not, in words for the skipping test to print.
///
/// Tries the real thing: starts `ip` in fresh namespaces. Costs a few milliseconds.
pub fn available() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("not root; run as root".into());
    }
    for program in ["ip", "tc"] {
        let mut command = Command::new(program);
        command
            .arg("-V")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let found = command.status();
        sys::unshare_before_exec(&mut command);
        match (found, command.status()) {
            (Err(error), _) => {
                return Err(format!(
                    "cannot run `{program}` ({error}); run scripts/install-test-tools"
                ));
            }
            (_, Err(error)) => {
                return Err(format!(
                    "namespaces are refused ({error}); needs CAP_SYS_ADMIN and CAP_NET_ADMIN"
                ));
            }
            (Ok(_), Ok(_)) => {}
        }
    }
    Ok(())
}

/// For tests: true where no lab is possible, after saying so on standard error, past the test harness's capture.
///
/// ```no_run
/// # fn name_of_the_test() {
/// if ropewalk_lab::skip("name_of_the_test") {
///     return;
/// }
/// # }
/// ```
pub fn skip(test: &str) -> bool {
    let Err(reason) = available() else {
        return false;
    };
    // The harness hides what `eprintln!` says in a test that passes.
    let _ = writeln!(io::stderr(), "SKIPPED {test}: {reason}");
    true
}

/// Collects the description of a lab; [`build`](Self::build) makes it real.
#[derive(Clone, Debug, Default)]
pub struct LabBuilder {
    topology: Topology,
}

impl From<Topology> for LabBuilder {
    fn from(topology: Topology) -> Self {
        LabBuilder { topology }
    }
}

impl LabBuilder {
    /// A lab without hosts.
    #[must_use]
    pub fn new() -> Self {
        LabBuilder::default()
    }

    /// Adds a host.
    #[must_use]
    pub fn host(mut self, host: HostSpec) -> Self {
        self.topology.hosts.push(host);
        self
    }

    /// Adds several hosts.
    #[must_use]
    pub fn hosts(mut self, hosts: impl IntoIterator<Item = HostSpec>) -> Self {
        self.topology.hosts.extend(hosts);
        self
    }

    /// Shows the machine's directory `machine_path` at `host_path` in these hosts (none named = all).
    #[must_use]
    pub fn shared_dir(
        mut self,
        machine_path: impl Into<PathBuf>,
        host_path: impl Into<PathBuf>,
        hosts: &[&str],
    ) -> Self {
        let hosts = hosts.iter().map(|&name| name.to_owned()).collect();
        self.topology.shared_dirs.push(SharedDir {
            machine_path: machine_path.into(),
            host_path: host_path.into(),
            hosts,
        });
        self
    }

    /// Limits the private directory `tmp`, `data`, `run` or `shm` of every host to `bytes`.
    #[must_use]
    pub fn tmpfs_size(mut self, directory: &str, bytes: u64) -> Self {
        self.topology
            .tmpfs_bytes
            .insert(directory.to_owned(), bytes);
        self
    }

    /// Sets every host's TCP congestion control, such as `cubic` or `reno`; default: the machine's. It holds for
    /// connections to other hosts.
    #[must_use]
    pub fn congestion_control(mut self, name: impl Into<String>) -> Self {
        self.topology.congestion_control = Some(name.into());
        self
    }

    /// Sets a `net.*` setting in every host.
    #[must_use]
    pub fn sysctl(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.topology.sysctls.insert(name.into(), value.into());
        self
    }

    /// Keeps a machine path visible in every host although it lies below a private directory. The directory
    /// of the running program is always visible.
    #[must_use]
    pub fn expose(mut self, path: impl Into<PathBuf>) -> Self {
        self.topology.exposed.push(path.into());
        self
    }

    /// Joins two rails by a trunk; [`Lab::trunk`] counts them in this order.
    #[must_use]
    pub fn trunk(mut self, trunk: TrunkSpec) -> Self {
        self.topology.trunks.push(trunk);
        self
    }

    /// Creates the namespaces, interfaces, caps and addresses, and returns when all hosts reach each other.
    ///
    /// Costs about 7 ms a host.
    ///
    /// # Errors
    /// [`LabError::NotPermitted`] where labs are not possible, [`LabError::BadDescription`] before anything is
    /// created, else the first step that failed; nothing is left behind then.
    pub fn build(self) -> Result<Lab, LabError> {
        Lab::build(self.topology)
    }
}
