//! A Slurm of the distribution's packages on hosts of the lab: a controller, and nodes with daemons of their own. They share
//! `/cluster`, and `/data` is each node's own.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ropewalk_lab::{HostSpec, Lab, LabBuilder, NicSpec};
use serde_json::Value;

use crate::common::wait_for;

/// What the nodes are called, in Slurm and in the lab.
pub const NODES: [&str; 4] = ["node1", "node2", "node3", "node4"];

const HEAD: &str = "head";

const PROGRAM: &str = env!("CARGO_BIN_EXE_ropewalk");

/// Rate of each host, bits per second.
const RATE: u64 = 1_000_000_000;

/// Where the daemons of the distribution's packages are.
const SBIN: &str = "/usr/sbin";

/// One at a time: each has six daemons, and processes of all are seen by all.
static TURN: Mutex<()> = Mutex::new(());

/// The running cluster.
pub struct Cluster {
    pub lab: Lab,
    shared: tempfile::TempDir,
    daemons: Vec<Child>,
    _turn: MutexGuard<'static, ()>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

impl Cluster {
    /// Starts it and waits until all nodes are idle. `None`, and a line that says so, where it cannot be.
    pub fn start(test: &str) -> Option<Self> {
        Self::start_with(test, 0)
    }

    /// The same; jobs that are displaced may go on for so many seconds.
    pub fn start_with(test: &str, grace: u64) -> Option<Self> {
        if ropewalk_lab::skip(test) {
            return None;
        }
        let missing = ["slurmctld", "slurmd", "munged"].map(|name| Path::new(SBIN).join(name));
        if let Some(missing) = missing.iter().find(|path| !path.exists()) {
            eprintln!(
                "SKIPPED {test}: there is no {}; run scripts/install-test-tools",
                missing.display()
            );
            return None;
        }
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = tempfile::tempdir().unwrap();
        // munged refuses a folder that others may not pass.
        std::fs::set_permissions(shared.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut builder = LabBuilder::new().shared_dir(shared.path(), "/cluster", &[]);
        for host in [HEAD].iter().chain(&NODES) {
            builder = builder.host(HostSpec::new(*host).nic(NicSpec::rate_bits(RATE)));
        }
        let lab = builder.build().unwrap();
        let mut cluster = Self {
            lab,
            shared,
            daemons: Vec::new(),
            _turn: turn,
        };
        cluster.configure(grace);
        cluster.start_daemons();
        Some(cluster)
    }

    /// A path of `/cluster`, as this process finds it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.shared.path().join(name)
    }

    fn configure(&self, grace: u64) {
        let address = |host: &str| self.lab.address(host).to_string();
        let mut text = format!(
            "ClusterName=lab\nSlurmctldHost={HEAD}({})\nSlurmUser=root\nAuthType=auth/munge\nCredType=cred/munge\n\
             AuthInfo=socket=/cluster/munge.socket,cred_expire=5\nStateSaveLocation=/cluster/state\n\
             SlurmdSpoolDir=/cluster/spool-%n\nSlurmctldPidFile=/cluster/slurmctld.pid\n\
             SlurmdPidFile=/cluster/slurmd-%n.pid\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
             SwitchType=switch/none\nMpiDefault=none\nReturnToService=2\nKillWait=10\nSchedulerType=sched/builtin\n\
             SelectType=select/cons_tres\nJobAcctGatherType=jobacct_gather/none\n\
             AccountingStorageType=accounting_storage/none\nSlurmctldParameters=idle_on_node_suspend\n\
             PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\nSchedulerParameters=sched_interval=2\n",
            address(HEAD)
        );
        for node in NODES {
            text += &format!(
                "NodeName={node} NodeAddr={} CPUs=2 RealMemory=256 State=UNKNOWN\n",
                address(node)
            );
        }
        // Jobs of one displace those of the other, which are started again afterwards.
        text += &format!(
            "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime={grace}\n\
             PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2\n"
        );
        std::fs::write(self.path("slurm.conf"), text).unwrap();
        std::fs::write(self.path("cgroup.conf"), "CgroupPlugin=cgroup/v1\n").unwrap();
        std::fs::create_dir(self.path("state")).unwrap();
        let key = self.path("munge.key");
        std::fs::write(&key, [7; 128]).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o400)).unwrap();
    }

    fn start_daemons(&mut self) {
        let munged = "--foreground --force --socket=/cluster/munge.socket --key-file=/cluster/munge.key \
                      --pid-file=/cluster/munged.pid --log-file=/cluster/munged.log --seed-file=/cluster/munged.seed";
        self.daemon(HEAD, "munged", munged);
        wait_for("munged", || {
            self.path("munge.socket").exists().then_some(())
        });
        self.daemon(HEAD, "slurmctld", "-D -i -f /cluster/slurm.conf");
        for node in NODES {
            let words = format!("-D -N {node} -f /cluster/slurm.conf");
            self.daemon(node, "slurmd", &words);
        }
        let count = NODES.len().to_string();
        wait_for("idle nodes", || {
            let idle = self.run("sinfo", &["--noheader", "--states=idle", "--format=%D"]);
            let idle = String::from_utf8_lossy(&idle.stdout).trim().to_owned();
            if idle == count {
                return Some(());
            }
            None
        });
    }

    fn daemon(&mut self, host: &str, name: &str, words: &str) {
        let log = std::fs::File::create(self.path(&format!("{name}-{host}.log"))).unwrap();
        let mut command = self.lab.command(host, Path::new(SBIN).join(name));
        command
            .args(words.split_whitespace())
            .env("SLURM_CONF", "/cluster/slurm.conf")
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.daemons.push(command.spawn().unwrap());
    }

    /// A program on a host, with the cluster's settings and this program in its search path.
    pub fn command(&self, host: &str, program: &str) -> Command {
        let folder = Path::new(PROGRAM).parent().unwrap();
        let mut command = self.lab.command(host, program);
        command
            .env("SLURM_CONF", "/cluster/slurm.conf")
            .env(
                "PATH",
                format!("{}:/usr/sbin:/usr/bin:/bin", folder.display()),
            )
            .env("HOME", "/data")
            .current_dir("/")
            .stdin(Stdio::null());
        for other in ["XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME"] {
            command.env_remove(other);
        }
        command
    }

    /// A command of Slurm, on the controller's host.
    pub fn run(&self, program: &str, words: &[&str]) -> Output {
        let mut command = self.command(HEAD, program);
        command.args(words).output().unwrap()
    }

    /// Hands in one of the examples; the number of the job.
    pub fn submit(&self, example: &str, words: &[&str]) -> String {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/slurm");
        let script = format!("{script}/{example}.sbatch");
        let output = "--output=/cluster/%j.out";
        let mut all = vec!["--parsable", "--nodes=4", output, "--error=/cluster/%j.err"];
        all.push(&script);
        all.extend(words);
        self.hand_in(&all)
    }

    /// Hands in a job that does nothing, wants all nodes for itself, and displaces others; its number.
    pub fn submit_urgent(&self) -> String {
        let words =
            "--parsable --partition=urgent --nodes=4 --exclusive --output=/dev/null --wrap=true";
        self.hand_in(&words.split(' ').collect::<Vec<_>>())
    }

    fn hand_in(&self, words: &[&str]) -> String {
        let submitted = self.run("sbatch", words);
        let said = String::from_utf8_lossy(&submitted.stderr);
        assert!(submitted.status.success(), "{said}");
        String::from_utf8_lossy(&submitted.stdout).trim().to_owned()
    }

    /// The state of a job, as Slurm calls it.
    pub fn state(&self, job: &str) -> String {
        let shown = self.run("scontrol", &["show", "job", "--oneliner", job]);
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        let words = &mut shown.split_whitespace();
        let state = words.find_map(|word| word.strip_prefix("JobState="));
        state.unwrap_or_default().to_owned()
    }

    /// Waits for the end of a job: its state.
    pub fn end(&self, job: &str) -> String {
        wait_for("the end of the job", || {
            let state = self.state(job);
            let runs = [
                "PENDING",
                "RUNNING",
                "COMPLETING",
                "CONFIGURING",
                "SUSPENDED",
                // A job that is preempted and has grace time.
                "SIGNALING",
            ];
            if runs.contains(&state.as_str()) {
                return None;
            }
            Some(state)
        })
    }

    /// What a job wrote: its events, and its standard error.
    pub fn said(&self, job: &str) -> (Vec<Value>, String) {
        let read = |name: &str| std::fs::read_to_string(self.path(name)).unwrap_or_default();
        let lines = read(&format!("{job}.out"));
        let events = lines
            .lines()
            .map_while(|line| serde_json::from_str(line).ok());
        (events.collect(), read(&format!("{job}.err")))
    }

    /// The report of a job that has ended well.
    pub fn report(&self, job: &str) -> Value {
        let state = self.end(job);
        let (events, said) = self.said(job);
        assert_eq!(state, "COMPLETED", "{said}\n{:#?}", events.last());
        let last = events.last().unwrap_or_else(|| panic!("no event: {said}"));
        assert_eq!(last["event"], "ended", "{last}");
        last["report"].clone()
    }
}
