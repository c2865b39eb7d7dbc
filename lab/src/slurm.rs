//! A Slurm of the distribution's packages on hosts of a lab: a controller, and nodes with daemons of their own.
//!
//! The lab has a folder that all hosts see as [`SHARED`]; what the daemons write is there.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::LabError;
use crate::lab::Lab;

/// The folder that all hosts share.
pub const SHARED: &str = "/cluster";

/// Where the daemons of the distribution's packages are.
const SBIN: &str = "/usr/sbin";

/// Longest start of the daemons: nodes report to the controller every few seconds.
const START_MAX: Duration = Duration::from_secs(120);

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The running daemons; they end with it.
#[derive(Debug)]
pub struct Slurm {
    daemons: Vec<Child>,
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

impl Slurm {
    /// A daemon that is not installed.
    #[must_use]
    pub fn missing() -> Option<PathBuf> {
        let daemons = ["slurmctld", "slurmd", "munged"];
        let mut paths = daemons.iter().map(|name| Path::new(SBIN).join(name));
        paths.find(|path| !path.exists())
    }

    /// Starts the daemons and waits until all nodes are idle.
    ///
    /// * `folder`: that all hosts see as [`SHARED`], as this process finds it.
    /// * `grace`: seconds for which jobs that are displaced may go on.
    ///
    /// # Errors
    /// [`LabError::File`], [`LabError::Program`] where a daemon does not start in two minutes, [`LabError::UnknownHost`].
    pub fn start(
        lab: &Lab,
        folder: &Path,
        head: &str,
        nodes: &[&str],
        grace: u64,
    ) -> Result<Self, LabError> {
        configure(lab, folder, head, nodes, grace)?;
        let mut slurm = Self {
            daemons: Vec::new(),
        };
        slurm.start_daemons(lab, folder, head, nodes)?;
        Ok(slurm)
    }

    fn start_daemons(
        &mut self,
        lab: &Lab,
        folder: &Path,
        head: &str,
        nodes: &[&str],
    ) -> Result<(), LabError> {
        let munged = format!(
            "--foreground --force --socket={SHARED}/munge.socket --key-file={SHARED}/munge.key \
             --pid-file={SHARED}/munged.pid --log-file={SHARED}/munged.log --seed-file={SHARED}/munged.seed"
        );
        self.daemon(lab, folder, head, "munged", &munged)?;
        await_start(head, "munged", || folder.join("munge.socket").exists())?;
        let settings = format!("-f {SHARED}/slurm.conf");
        self.daemon(lab, folder, head, "slurmctld", &format!("-D -i {settings}"))?;
        for node in nodes {
            let words = format!("-D -N {node} {settings}");
            self.daemon(lab, folder, node, "slurmd", &words)?;
        }
        await_start(head, "slurmctld", || {
            let mut command = Self::command(lab, head, "sinfo");
            let words = ["--noheader", "--states=idle", "--format=%D"];
            let idle = command.args(words).output();
            idle.is_ok_and(|idle| {
                let count = String::from_utf8_lossy(&idle.stdout);
                count.trim() == nodes.len().to_string()
            })
        })
    }

    fn daemon(
        &mut self,
        lab: &Lab,
        folder: &Path,
        host: &str,
        name: &str,
        words: &str,
    ) -> Result<(), LabError> {
        let path = folder.join(format!("{name}-{host}.log"));
        let in_file = |cause| LabError::File {
            path: path.clone(),
            cause,
        };
        let log = fs::File::create(&path).map_err(in_file)?;
        let mut command = Self::command(lab, host, Path::new(SBIN).join(name));
        command
            .args(words.split_whitespace())
            .stdout(log.try_clone().map_err(in_file)?)
            .stderr(log);
        let daemon = command.spawn().map_err(|cause| failed(host, name, cause))?;
        self.daemons.push(daemon);
        Ok(())
    }

    /// A program on a host, with the cluster's settings.
    pub fn command(lab: &Lab, host: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = lab.command(host, program);
        command
            .env("SLURM_CONF", format!("{SHARED}/slurm.conf"))
            .current_dir("/")
            .stdin(Stdio::null());
        command
    }
}

fn configure(
    lab: &Lab,
    folder: &Path,
    head: &str,
    nodes: &[&str],
    grace: u64,
) -> Result<(), LabError> {
    let mut text = format!(
        "ClusterName=lab\nSlurmctldHost={head}({})\nSlurmUser=root\nAuthType=auth/munge\nCredType=cred/munge\n\
         AuthInfo=socket={SHARED}/munge.socket,cred_expire=5\nStateSaveLocation={SHARED}/state\n\
         SlurmdSpoolDir={SHARED}/spool-%n\nSlurmctldPidFile={SHARED}/slurmctld.pid\n\
         SlurmdPidFile={SHARED}/slurmd-%n.pid\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
         SwitchType=switch/none\nMpiDefault=none\nReturnToService=2\nKillWait=10\nSchedulerType=sched/builtin\n\
         SelectType=select/cons_tres\nJobAcctGatherType=jobacct_gather/none\n\
         AccountingStorageType=accounting_storage/none\nSlurmctldParameters=idle_on_node_suspend\n\
         PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\nSchedulerParameters=sched_interval=2\n",
        lab.address(head)
    );
    for node in nodes {
        text += &format!(
            "NodeName={node} NodeAddr={} CPUs=2 RealMemory=256 State=UNKNOWN\n",
            lab.address(node)
        );
    }
    // Jobs of one displace those of the other, which are started again afterwards.
    text += &format!(
        "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime={grace}\n\
         PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2\n"
    );
    let write = |name: &str, bytes: &[u8], mode: u32| {
        let path = folder.join(name);
        let written = fs::write(&path, bytes);
        let written =
            written.and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)));
        written.map_err(|cause| LabError::File { path, cause })
    };
    write("slurm.conf", text.as_bytes(), 0o644)?;
    write("cgroup.conf", b"CgroupPlugin=cgroup/v1\n", 0o644)?;
    write("munge.key", &[7; 128], 0o400)?;
    // munged refuses a folder that others may not pass.
    let opened = fs::set_permissions(folder, fs::Permissions::from_mode(0o755));
    let made = opened.and_then(|()| fs::create_dir(folder.join("state")));
    made.map_err(|cause| LabError::File {
        path: folder.to_owned(),
        cause,
    })
}

fn await_start(host: &str, name: &str, mut is_there: impl FnMut() -> bool) -> Result<(), LabError> {
    let until = Instant::now() + START_MAX;
    while !is_there() {
        if Instant::now() > until {
            let text = format!("it is not ready after {START_MAX:?}; its log is in {SHARED}");
            return Err(failed(host, name, io::Error::other(text)));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

fn failed(host: &str, program: &str, cause: io::Error) -> LabError {
    LabError::Program {
        host: host.to_owned(),
        program: program.to_owned(),
        message: cause.to_string(),
    }
}
