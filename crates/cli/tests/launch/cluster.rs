//! A Slurm of the distribution's packages on hosts of the lab: a controller, and nodes with daemons of their own. They share
//! `/cluster`, and `/data` is each node's own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ropewalk_lab::slurm::{SHARED, Slurm};
use ropewalk_lab::{HostSpec, Lab, LabBuilder, NicSpec};
use serde_json::Value;

use crate::common::wait_for;

/// What the nodes are called, in Slurm and in the lab.
pub const NODES: [&str; 4] = ["node1", "node2", "node3", "node4"];

const HEAD: &str = "head";

const PROGRAM: &str = env!("CARGO_BIN_EXE_ropewalk");

/// Rate of each host, bits per second.
const RATE: u64 = 1_000_000_000;

/// One at a time: each has six daemons, and processes of all are seen by all.
static TURN: Mutex<()> = Mutex::new(());

/// The running cluster.
pub struct Cluster {
    // The daemons end before the lab.
    _slurm: Slurm,
    pub lab: Lab,
    shared: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
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
        if let Some(missing) = Slurm::missing() {
            eprintln!(
                "SKIPPED {test}: there is no {}; run scripts/install-test-tools",
                missing.display()
            );
            return None;
        }
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = tempfile::tempdir().unwrap();
        let mut builder = LabBuilder::new().shared_dir(shared.path(), SHARED, &[]);
        for host in [HEAD].iter().chain(&NODES) {
            builder = builder.host(HostSpec::new(*host).nic(NicSpec::rate_bits(RATE)));
        }
        let lab = builder.build().unwrap();
        let slurm = Slurm::start(&lab, shared.path(), HEAD, &NODES, grace).unwrap();
        Some(Self {
            _slurm: slurm,
            lab,
            shared,
            _turn: turn,
        })
    }

    /// A path of `/cluster`, as this process finds it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.shared.path().join(name)
    }

    /// A program on a host, with the cluster's settings and this program in its search path.
    pub fn command(&self, host: &str, program: &str) -> Command {
        let folder = Path::new(PROGRAM).parent().unwrap();
        let mut command = Slurm::command(&self.lab, host, program);
        command
            .env(
                "PATH",
                format!("{}:/usr/sbin:/usr/bin:/bin", folder.display()),
            )
            .env("HOME", "/data");
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
