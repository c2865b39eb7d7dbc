//! A lab kills its own processes and no others.

mod common;

use std::process::Command;

use common::skip;
use ropewalk_lab::Topology;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ropewalk-lab");

/// Enough hosts that the last ones are still in the machine's network when the first one fails.
const HOSTS: usize = 60;
/// One attempt caught the mistake every time it was tried; a few more cost little.
const ATTEMPTS: usize = 5;

/// A build that fails while some holders have not yet left the machine's network must not take the processes of
/// that network for the lab's.
///
/// It runs in a process namespace of its own: if this ever fails, only the bystander in there dies, not whatever
/// else the machine is doing.
#[test]
fn a_failed_build_kills_no_bystander() {
    if skip("a_failed_build_kills_no_bystander") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("refused.json");
    let mut topology = Topology::uniform(HOSTS, None);
    topology
        .sysctls
        .insert("net.no.such.setting".into(), "1".into());
    std::fs::write(&file, serde_json::to_vec(&topology).expect("JSON")).expect("written");

    let script = format!(
        "sleep 1000 & bystander=$!
         for attempt in $(seq {ATTEMPTS}); do
             \"$0\" up \"$1\" </dev/null && exit 3
             # A killed one stays as a zombie of this shell, which kill -0 would take for alive.
             grep -q '^State:.[SR]' /proc/$bystander/status || exit 4
         done"
    );
    let result = Command::new("unshare")
        .args([
            "--net",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
            "sh",
            "-c",
            &script,
            PROGRAM,
        ])
        .arg(&file)
        .output()
        .expect("unshare of util-linux starts");
    let errors = String::from_utf8_lossy(&result.stderr);
    assert_eq!(
        result.status.code(),
        Some(0),
        "3: it did not fail; 4: the bystander is dead: {errors}"
    );
    assert_eq!(
        errors.matches("net/no/such/setting").count(),
        ATTEMPTS,
        "another failure than the planned one: {errors}"
    );
}
