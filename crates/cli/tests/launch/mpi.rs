//! `--launch mpi`: agents on several hosts, which `mpirun` reaches over ssh.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ropewalk_lab::{HostSpec, Lab, LabBuilder, NicSpec};

use crate::common::processes::{family, kill_at_once, processes, temporary};
use crate::common::{Moving, Ran, assert_same_tree, bytes, make_tree, wait_for};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ropewalk");

/// One at a time: agents of all are seen by all.
static TURN: Mutex<()> = Mutex::new(());

const HOSTS: [&str; 3] = ["m1", "m2", "m3"];

/// Agents of `mpirun` that still run.
fn agents() -> Vec<i32> {
    let all = processes(&["agent", "--one-shot", "--launched"]);
    let of_slurm = processes(&["--launched slurm"]);
    all.into_iter()
        .filter(|pid| !of_slurm.contains(pid))
        .collect()
}

/// The command with one MPI in its search path as `mpirun`.
fn command(lab: &Lab, name: &str) -> Command {
    let folder = lab.path_in("m1", "/data/bin");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    // Not a link: MPICH looks for its other programs beside this one.
    let script = format!("#!/bin/sh\nexec /usr/bin/mpirun.{name} \"$@\"\n");
    let mpirun = folder.join("mpirun");
    std::fs::write(&mpirun, script).unwrap();
    std::fs::set_permissions(&mpirun, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = lab.command("m1", PROGRAM);
    command
        .env("PATH", "/data/bin:/usr/sbin:/usr/bin:/bin")
        .env("XDG_RUNTIME_DIR", "/run")
        .env("XDG_STATE_HOME", "/run")
        // Else it would look for a job's daemons.
        .env_remove("SLURM_JOB_ID")
        .stdin(std::process::Stdio::null());
    command
}

/// Three hosts that `mpirun` reaches over ssh, and the MPIs there are. `None`, and a line that says so, where there cannot be hosts.
fn hosts(test: &str) -> Option<(Lab, Vec<&'static str>, MutexGuard<'static, ()>)> {
    if ropewalk_lab::skip(test) {
        return None;
    }
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut builder = LabBuilder::new();
    for host in HOSTS {
        builder = builder.host(HostSpec::new(host).nic(NicSpec::rate_bits(1_000_000_000)));
    }
    let lab = builder.build().unwrap();
    for host in HOSTS {
        lab.start_sshd(host).unwrap();
    }
    let there = |name: &&str| {
        let path = Path::new("/usr/bin").join(format!("mpirun.{name}"));
        if !path.exists() {
            eprintln!("SKIPPED {test}: {name} is not installed; run scripts/install-test-tools");
        }
        path.exists()
    };
    let all = ["openmpi", "mpich"].into_iter().filter(there).collect();
    Some((lab, all, turn))
}

/// A copy to three hosts with each MPI; nothing is left.
#[test]
fn hosts_of_mpirun_copy() {
    let Some((lab, all, _turn)) = hosts("hosts_of_mpirun_copy") else {
        return;
    };
    make_tree(&lab.path_in("m1", "/data/set"));
    for name in all {
        let to = format!("m[1-3]:/data/{name}");
        let mut copy = command(&lab, name);
        copy.args(["copy", "--json", "--launch", "mpi", "/data/set", &to]);
        let ran = Ran(copy.output().unwrap()).assert_status(0);
        assert_eq!(ran.report()["nodes"].as_array().unwrap().len(), 4);
        for host in HOSTS {
            let copy = lab.path_in(host, format!("/data/{name}"));
            assert_same_tree(&lab.path_in("m1", "/data/set"), &copy);
        }
        // What an agent refuses is said for its host.
        let mut copy = command(&lab, name);
        copy.args(["copy", "--launch", "mpi", "m2:/data/none", "/data/x"]);
        Ran(copy.output().unwrap())
            .assert_status(4)
            .assert_says("the source /data/none cannot be used");
        wait_for("agents to end", || agents().is_empty().then_some(()));
    }
}

/// A broadcast whose `mpirun` and agents are killed starts others and goes on; then one host's changed set is staged out. Hosts are those of a
/// hostfile, as a resource manager writes it.
#[test]
fn copies_go_on_after_mpirun_was_killed() {
    let Some((lab, all, _turn)) = hosts("copies_go_on_after_mpirun_was_killed") else {
        return;
    };
    let size: u64 = 48 << 20;
    let set = lab.path_in("m1", "/data/set");
    std::fs::create_dir(&set).unwrap();
    for at in 0..6 {
        std::fs::write(set.join(format!("f{at}")), bytes(size as usize / 6, at + 1)).unwrap();
    }
    std::fs::write(lab.path_in("m1", "/data/hosts"), HOSTS.join("\n") + "\n").unwrap();
    let command = |name: &str| {
        let mut command = command(&lab, name);
        command
            .env("OMPI_MCA_orte_default_hostfile", "/data/hosts")
            .env("HYDRA_HOST_FILE", "/data/hosts");
        command
    };
    for name in all {
        let to = format!("m[2-3]:/data/{name}");
        let words = ["copy", "--launch", "mpi", "/data/set", &to];
        let limited = [&words[..], &["--limit", "200Mbit"]].concat();
        let mut moving = Moving::start_as(command(name), &limited);
        // A half of all copies.
        moving.until_delivered(size);
        let starts = |pid: &i32| {
            let read = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            read.is_ok_and(|text| text.starts_with("mpi") || text.starts_with("orterun"))
        };
        let all = family(moving.child.id() as i32);
        let launchers: Vec<i32> = all.into_iter().filter(starts).collect();
        assert!(launchers.len() >= 2, "{launchers:?}");
        // Agents alone would go on: they do not need their launcher.
        kill_at_once(&[launchers, agents()].concat());
        moving.event("returned");
        let (status, report) = moving.end();
        assert_eq!(status, 0, "{report:#}");
        assert_eq!(report["delivered_bytes"], 2 * size);
        for host in ["m2", "m3"] {
            assert_same_tree(&set, &lab.path_in(host, format!("/data/{name}")));
            let left = temporary(&lab.path_in(host, "/data"));
            assert!(left.is_empty(), "{left:?}");
        }
        std::fs::write(lab.path_in("m2", format!("/data/{name}/new")), name).unwrap();
        let from = format!("m2:/data/{name}");
        let back = format!("/data/back-{name}");
        let (status, report) =
            Moving::start_as(command(name), &["copy", "--launch", "mpi", &from, &back]).end();
        assert_eq!(status, 0, "{report:#}");
        let (there, here) = (format!("/data/{name}"), lab.path_in("m1", &back));
        assert_same_tree(&lab.path_in("m2", there), &here);
        wait_for("agents to end", || agents().is_empty().then_some(()));
    }
}
