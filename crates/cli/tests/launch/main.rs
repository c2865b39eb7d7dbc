//! Agents that launchers of jobs start: a real Slurm with four nodes, and `mpirun` of Open MPI and MPICH, on hosts of the lab.
//! Skipped, visibly, where namespaces cannot be made or the programs are missing.

mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod mpi;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use cluster::{Cluster, NODES};
use common::processes::{assert_gone, processes};
use common::*;
use serde_json::Value;

/// Agents of a job that still run.
fn agents() -> Vec<i32> {
    processes(&["agent", "--one-shot", "--launched", "slurm"])
}

fn delivered(event: &Value) -> u64 {
    match event["event"] == "progress" {
        true => event["delivered_bytes"].as_u64().unwrap_or(0),
        false => 0,
    }
}

/// The usual jobs, one after the other: in to the shared file system, to the own disk of each node, changed there, and out again.
#[test]
fn jobs_stage_in_broadcast_and_stage_out() {
    let Some(cluster) = Cluster::start("jobs_stage_in_broadcast_and_stage_out") else {
        return;
    };
    make_tree(&cluster.path("archive/set"));
    let job = cluster.submit(
        "stage-in",
        &["/cluster/archive/set", "/cluster/scratch", "--json"],
    );
    let report = cluster.report(&job);
    assert_same_tree(&cluster.path("archive/set"), &cluster.path("scratch"));
    // Each node of the job took part, once.
    let names: Vec<&str> = report["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["node"].as_str().unwrap())
        .collect();
    assert_eq!(names, NODES);

    let job = cluster.submit("broadcast", &["/cluster/scratch", "/data/set", "--json"]);
    let report = cluster.report(&job);
    assert_eq!(report["nodes"].as_array().unwrap().len(), 5, "{report:#}");
    for node in NODES {
        let copy = cluster.lab.path_in(node, "/data/set");
        assert_same_tree(&cluster.path("archive/set"), &copy);
        let own = cluster.lab.path_in(node, "/data/out/sub");
        std::fs::create_dir_all(&own).unwrap();
        std::fs::write(own.join(node), bytes(300_000, node.len() as u64)).unwrap();
    }

    let job = cluster.submit("stage-out", &["/data/out", "/cluster/results", "--json"]);
    cluster.report(&job);
    for node in NODES {
        let own = cluster.lab.path_in(node, format!("/data/out/sub/{node}"));
        let copy = cluster.path(&format!("results/sub/{node}"));
        assert_eq!(std::fs::read(own).unwrap(), std::fs::read(copy).unwrap());
    }
    let left = temporary(&cluster.path(""));
    assert!(left.is_empty(), "{left:?}");
    assert_gone(&agents());
}

fn temporary(folder: &Path) -> Vec<String> {
    common::processes::temporary(folder)
}

/// A job that is cancelled in the middle leaves nothing behind but what the next one goes on with.
#[test]
fn a_cancelled_job_is_resumed_by_the_next() {
    let Some(cluster) = Cluster::start("a_cancelled_job_is_resumed_by_the_next") else {
        return;
    };
    let size: u64 = 48 << 20;
    std::fs::create_dir(cluster.path("set")).unwrap();
    for at in 0..6 {
        let part = bytes(size as usize / 6, at + 1);
        std::fs::write(cluster.path(&format!("set/f{at}")), part).unwrap();
    }
    let words = ["/cluster/set", "/data/set", "--json"];
    let limited = [&words[..], &["--limit", "200Mbit"]].concat();
    let job = cluster.submit("broadcast", &limited);
    // A fourth of all copies is safe.
    wait_for("bytes that are safe", || {
        let (events, said) = cluster.said(&job);
        assert_ne!(cluster.state(&job), "FAILED", "{said}");
        events
            .iter()
            .any(|event| delivered(event) > size)
            .then_some(())
    });
    let cancelled = cluster.run("scancel", &[&job]);
    assert!(cancelled.status.success());
    assert_eq!(cluster.end(&job), "CANCELLED");
    wait_for("agents to end", || agents().is_empty().then_some(()));
    let (_, said) = cluster.said(&job);

    let next = cluster.submit("broadcast", &words);
    let report = cluster.report(&next);
    assert_gone_on(&cluster, &report, size, &said);
    assert_gone(&agents());
}

/// A broadcast that was interrupted has gone on: what was safe was not sent again, and each node has the whole set and nothing else.
///
/// * `said`: what the job said.
fn assert_gone_on(cluster: &Cluster, report: &Value, size: u64, said: &str) {
    let count = |field: &Value| field.as_u64().unwrap();
    let (moved, all) = (count(&report["delivered_bytes"]), 4 * size);
    let landing = &report["landing"];
    let earlier = count(&landing["resumed_bytes"]) + count(&landing["unchanged_bytes"]);
    assert!(
        moved <= all - size / 2 && moved + earlier == all,
        "{moved} of {all} were sent again, {earlier} taken over; the job said: {said}"
    );
    for node in NODES {
        let copy = cluster.lab.path_in(node, "/data/set");
        assert_same_tree(&cluster.path("set"), &copy);
        let left = temporary(&cluster.lab.path_in(node, "/data"));
        assert!(left.is_empty(), "{left:?}");
    }
}

/// What is wrong with a job is said before anything starts, or by the agent on its node.
#[test]
fn what_a_job_cannot_do_is_said() {
    let place = Place::new();
    let mut outside = place.command();
    outside
        .env_remove("SLURM_JOB_ID")
        .args(["copy", "--launch", "slurm", "a", "node1:/x"]);
    Ran(outside.output().unwrap())
        .assert_status(2)
        .assert_says("SLURM_JOB_ID is not set");
    let mut other = place.command();
    other
        .env("SLURM_JOB_ID", "7")
        .env("SLURM_JOB_NODELIST", "node[1-4]");
    other.args(["copy", "--launch", "slurm", "a", "node[3-5]:/x"]);
    Ran(other.output().unwrap())
        .assert_status(2)
        .assert_says("node5 is no node of job 7, which has node[1-4]");
    let Some(cluster) = Cluster::start("what_a_job_cannot_do_is_said") else {
        return;
    };
    let job = cluster.submit("stage-out", &["/data/none", "/cluster/results"]);
    assert_eq!(cluster.end(&job), "FAILED");
    let (_, said) = cluster.said(&job);
    assert!(
        said.contains("the source /data/none cannot be used"),
        "{said}"
    );
    // A program that the nodes do not have.
    std::fs::create_dir(cluster.path("set")).unwrap();
    let job = cluster.submit(
        "broadcast",
        &["/cluster/set", "/data/set", "--remote-path", "/no/ropewalk"],
    );
    assert_eq!(cluster.end(&job), "FAILED");
    let (_, said) = cluster.said(&job);
    assert!(
        said.contains("All nodes need the program /no/ropewalk"),
        "{said}"
    );
    // One that only one of them lacks: at once, though the others' agents run.
    for node in ["node1", "node2", "node4"] {
        let own = cluster.lab.path_in(node, "/data/ropewalk");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_ropewalk"), own).unwrap();
    }
    let job = cluster.submit(
        "broadcast",
        &[
            "/cluster/set",
            "/data/set",
            "--remote-path",
            "/data/ropewalk",
        ],
    );
    assert_eq!(cluster.end(&job), "FAILED");
    let (_, said) = cluster.said(&job);
    assert!(
        said.contains("node3:\nits agent has ended: Exited with exit code 2"),
        "{said}"
    );
    assert!(
        said.contains("All nodes need the program /data/ropewalk"),
        "{said}"
    );
    assert!(!cluster.path("results").exists());
    assert_gone(&agents());
}

/// A stand-in for `srun` says that the program is missing on one node, while the other one's agent runs.
#[test]
fn a_node_without_the_program_is_named_at_once() {
    let place = Place::new();
    std::fs::write(place.path("set"), b"x").unwrap();
    let script = "#!/bin/sh\n\
        while [ \"$1\" != agent ]; do program=$1; shift; done\n\
        echo 'slurmstepd: error: execve(): /x/ropewalk: No such file or directory' >&2\n\
        echo 'srun: error: node2: task 1: Exited with exit code 2' >&2\n\
        export SLURMD_NODENAME=127.0.0.1\n\
        exec \"$program\" \"$@\"\n";
    std::fs::create_dir(place.path("bin")).unwrap();
    std::fs::write(place.path("bin/srun"), script).unwrap();
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(place.path("bin/srun"), executable).unwrap();
    let mut command = place.command();
    command
        .env("PATH", format!("{}:/usr/bin:/bin", place.text("bin")))
        .env("SLURM_JOB_ID", "7")
        .env("SLURM_JOB_NODELIST", "127.0.0.1,node2");
    command.args(["copy", "--launch", "slurm", "--json", "set"]);
    command.arg("127.0.0.1,node2:copy");
    let ran = Ran(command.output().unwrap()).assert_status(4);
    let error = ran.error();
    assert!(
        error.starts_with(
            "node2:\nits agent has ended: Exited with exit code 2\nslurmstepd: error: execve()"
        ),
        "{error}"
    );
    assert!(error.contains("All nodes need the program"), "{error}");
    assert_gone(&agents());
}

/// A job that is preempted and has time left (GraceTime): Slurm ends the agents at once and leaves the job its time, in which the command starts others
/// and goes on.
#[test]
fn a_preempted_job_uses_its_grace_time() {
    // More than the rest takes on a busy machine.
    let Some(cluster) = Cluster::start_with("a_preempted_job_uses_its_grace_time", 600) else {
        return;
    };
    let size: u64 = 48 << 20;
    std::fs::create_dir(cluster.path("set")).unwrap();
    for at in 0..6 {
        let part = bytes(size as usize / 6, at + 1);
        std::fs::write(cluster.path(&format!("set/f{at}")), part).unwrap();
    }
    let words = ["/cluster/set", "/data/set", "--json", "--limit", "200Mbit"];
    let job = cluster.submit("broadcast", &words);
    wait_for("bytes that are safe", || {
        let (events, said) = cluster.said(&job);
        assert_ne!(cluster.state(&job), "FAILED", "{said}");
        events
            .iter()
            .any(|event| delivered(event) > size)
            .then_some(())
    });
    let urgent = cluster.submit_urgent();
    let report = cluster.report(&job);
    let (events, said) = cluster.said(&job);
    let count = |name: &str| events.iter().filter(|event| event["event"] == name).count();
    assert!(count("returned") > 0, "{said}");
    // One run: what was safe before is in its sum.
    assert_eq!(count("ended"), 1, "{said}");
    assert_eq!(report["delivered_bytes"], 4 * size);
    for node in NODES {
        let copy = cluster.lab.path_in(node, "/data/set");
        assert_same_tree(&cluster.path("set"), &copy);
    }
    assert_eq!(cluster.end(&urgent), "COMPLETED");
    assert_gone(&agents());
}

/// A job that another one displaces ends in order. Slurm starts it again afterwards, and it goes on with what was safe.
#[test]
fn a_preempted_job_goes_on() {
    let Some(cluster) = Cluster::start("a_preempted_job_goes_on") else {
        return;
    };
    let size: u64 = 48 << 20;
    std::fs::create_dir(cluster.path("set")).unwrap();
    for at in 0..6 {
        let part = bytes(size as usize / 6, at + 1);
        std::fs::write(cluster.path(&format!("set/f{at}")), part).unwrap();
    }
    let words = ["/cluster/set", "/data/set", "--json", "--limit", "200Mbit"];
    let job = cluster.submit("broadcast", &words);
    wait_for("bytes that are safe", || {
        let (events, said) = cluster.said(&job);
        assert_ne!(cluster.state(&job), "FAILED", "{said}");
        events
            .iter()
            .any(|event| delivered(event) > size)
            .then_some(())
    });
    let urgent = cluster.submit_urgent();
    assert_eq!(cluster.end(&urgent), "COMPLETED");
    let report = cluster.report(&job);
    let (events, said) = cluster.said(&job);
    // It ran twice.
    let planned = events.iter().filter(|event| event["event"] == "planned");
    assert_eq!(planned.count(), 2, "{said}");
    assert_gone_on(&cluster, &report, size, &said);
    assert_gone(&agents());
}
