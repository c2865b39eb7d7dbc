//! `--launch mpi`: agents on several hosts, which `mpirun` reaches over ssh.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use ropewalk_lab::{HostSpec, Lab, LabBuilder, NicSpec};

use crate::common::processes::processes;
use crate::common::{Ran, assert_same_tree, make_tree, wait_for};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ropewalk");

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

/// A copy to three hosts with each MPI; nothing is left.
#[test]
fn hosts_of_mpirun_copy() {
    if ropewalk_lab::skip("hosts_of_mpirun_copy") {
        return;
    }
    let mut builder = LabBuilder::new();
    for host in HOSTS {
        builder = builder.host(HostSpec::new(host).nic(NicSpec::rate_bits(1_000_000_000)));
    }
    let lab = builder.build().unwrap();
    for host in HOSTS {
        lab.start_sshd(host).unwrap();
    }
    make_tree(&lab.path_in("m1", "/data/set"));
    for name in ["openmpi", "mpich"] {
        if !Path::new("/usr/bin")
            .join(format!("mpirun.{name}"))
            .exists()
        {
            eprintln!(
                "SKIPPED hosts_of_mpirun_copy: {name} is not installed; run scripts/install-test-tools"
            );
            continue;
        }
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
