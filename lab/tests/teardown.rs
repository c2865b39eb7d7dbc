//! Nothing of a lab is left, however its owner ends.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use common::{output, skip, wait_until};
use ropewalk_lab::{LabBuilder, Topology};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ropewalk-lab");

/// Namespaces, mounts and links that a process outside the lab can see.
fn machine() -> (String, String) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    (mounts, output(Command::new("ip").args(["-br", "link"])))
}

/// The network namespaces that some process is in.
fn networks() -> BTreeSet<String> {
    let processes = fs::read_dir("/proc")
        .expect("proc")
        .flatten()
        .map(|entry| entry.path());
    processes
        .filter_map(|path| fs::read_link(path.join("ns/net")).ok())
        .map(|link| link.display().to_string())
        .collect()
}

fn alive(pid: i32) -> bool {
    // A zombie waits for its parent only; it holds nothing.
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Starts `ropewalk-lab up` with three hosts and reads their holders' process numbers.
fn up() -> (Child, Vec<i32>) {
    let mut owner = Command::new(PROGRAM)
        .args(["up", "--hosts", "3", "--rate", "100Mbit"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("ropewalk-lab starts");
    let table = BufReader::new(owner.stdout.take().expect("piped"))
        .lines()
        .take(3);
    let pids = table
        .map(|line| {
            line.expect("text")
                .split_whitespace()
                .nth(1)
                .expect("pid")
                .parse()
                .expect("number")
        })
        .collect();
    (owner, pids)
}

/// Starts a process inside a running lab that would outlive everything if it could: own session, deaf to signals.
fn stray(host: &str) -> i32 {
    let script = "trap '' HUP INT TERM; setsid sh -c 'trap \"\" HUP INT TERM; echo $$; while :; do sleep 1000; done'";
    let mut child = Command::new("nsenter")
        .args(["-t", host, "-n", "-m", "-u", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .expect("nsenter starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped"))
        .read_line(&mut line)
        .expect("its pid");
    // Reaped when it dies, so that it is no zombie of this test.
    std::thread::spawn(move || child.wait());
    line.trim().parse().expect("a number")
}

/// After kill -9 of the owner: no process, namespace, mount or interface remains, strays inside hosts included.
#[test]
fn nothing_is_left_after_kill_9() {
    if skip("nothing_is_left_after_kill_9") {
        return;
    }
    let before = machine();
    let (mut owner, holders) = up();
    let strays: Vec<i32> = holders.iter().map(|pid| stray(&pid.to_string())).collect();
    let lab_networks: BTreeSet<String> = holders
        .iter()
        .map(|pid| {
            fs::read_link(format!("/proc/{pid}/ns/net"))
                .expect("alive")
                .display()
                .to_string()
        })
        .collect();
    assert_eq!(lab_networks.len(), 3, "one network per host");
    assert_eq!(
        machine(),
        before,
        "a running lab shows nothing on the machine"
    );

    owner.kill().expect("kill -9");
    owner.wait().expect("reaped");
    wait_until("all processes of the lab are gone", || {
        !holders.iter().chain(&strays).any(|&pid| alive(pid))
    });
    wait_until("all networks of the lab are gone", || {
        networks().is_disjoint(&lab_networks)
    });
    assert_eq!(machine(), before);
}

/// A holder that was killed does not shield what runs in its host.
#[test]
fn strays_of_a_killed_holder_go_too() {
    if skip("strays_of_a_killed_holder_go_too") {
        return;
    }
    let (mut owner, holders) = up();
    let left = stray(&holders[1].to_string());
    output(Command::new("kill").args(["-9", &holders[1].to_string()]));
    wait_until("the holder is gone", || !alive(holders[1]));
    assert!(alive(left));
    owner.kill().expect("kill -9");
    owner.wait().expect("reaped");
    wait_until("the stray is gone", || !alive(left));
}

/// Closing says that all went well, and by then everything is dead, grandchildren included.
#[test]
fn close_waits_for_everything() {
    if skip("close_waits_for_everything") {
        return;
    }
    let lab = LabBuilder::from(Topology::uniform(2, None))
        .build()
        .expect("a lab");
    let mut child = lab
        .command("h1", "sh")
        .args(["-c", "sleep 1000 & echo $!; wait"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped"))
        .read_line(&mut line)
        .expect("a pid");
    let sleeper: i32 = line.trim().parse().expect("a number");
    let holders = ["h1", "h2"].map(|host| lab.pid(host));
    lab.close().expect("a clean end");
    assert!(!alive(sleeper) && !holders.into_iter().any(alive));
    assert!(!child.wait().expect("reaped").success());
}

/// Two labs with the same names and addresses live side by side and end independently.
#[test]
fn labs_do_not_meet() {
    if skip("labs_do_not_meet") {
        return;
    }
    let build = || {
        LabBuilder::from(Topology::uniform(2, None))
            .build()
            .expect("a lab")
    };
    let (first, second) = (build(), build());
    assert_eq!(first.address("h1"), second.address("h1"));
    let holder = second.pid("h1");
    first.close().expect("a clean end");
    assert!(alive(holder));
    output(
        second
            .command("h1", "ip")
            .args(["route", "get", &second.address("h2").to_string()]),
    );
}

/// A lab that fails half way leaves nothing and names the step.
#[test]
fn a_failed_build_is_undone() {
    if skip("a_failed_build_is_undone") {
        return;
    }
    let before = machine();
    let error = LabBuilder::from(Topology::uniform(2, None))
        .sysctl("net.no.such.setting", "1")
        .build()
        .expect_err("refused");
    assert!(
        error.to_string().contains("/proc/sys/net/no/such/setting"),
        "{error}"
    );
    assert_eq!(machine(), before);
}

/// The command builds a lab, runs a program in it and gives back the program's exit status.
#[test]
fn the_command_runs_a_program() {
    if skip("the_command_runs_a_program") {
        return;
    }
    let script = "test $(hostname) = h2 && getent hosts h1 && exit 7";
    let arguments = [
        "run", "--hosts", "2", "--rate", "100Mbit", "--on", "h2", "--", "sh", "-c", script,
    ];
    let result = Command::new(PROGRAM)
        .args(arguments)
        .output()
        .expect("it runs");
    assert_eq!(result.status.code(), Some(7), "{result:?}");
}

/// A wrong command line is refused with status 2 and a hint.
#[test]
fn a_wrong_command_line() {
    for arguments in [
        &["up"][..],
        &["run", "--hosts", "2"],
        &["run", "--hosts", "x", "--", "true"],
        &["fly"],
        &[],
    ] {
        let result = Command::new(PROGRAM)
            .args(arguments)
            .output()
            .expect("it runs");
        assert_eq!(result.status.code(), Some(2), "{arguments:?}");
        assert!(
            String::from_utf8_lossy(&result.stderr).contains("--help"),
            "{arguments:?}"
        );
    }
}
