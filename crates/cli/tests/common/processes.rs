//! Processes of this host, and what streams leave in folders.

use std::path::Path;

use super::wait_for;

/// Commands of processes on this host that have all of these words.
pub fn processes(words: &[&str]) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if !line.is_empty() && words.iter().all(|word| line.contains(word)) {
            found.push(pid);
        }
    }
    found
}

/// All processes below one, itself too: children of one parent in the order of their starts.
pub fn family(root: i32) -> Vec<i32> {
    let parent = |pid: i32| -> Option<i32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    let all: Vec<(i32, Option<i32>)> = processes(&[])
        .into_iter()
        .map(|pid| (pid, parent(pid)))
        .collect();
    let pids = std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap();
    let pids: i32 = pids.trim().parse().unwrap();
    let mut found = vec![root];
    let mut at = 0;
    while at < found.len() {
        let above = found[at];
        let of_it = all.iter().filter(|(_, parent)| *parent == Some(above));
        let mut children: Vec<i32> = of_it.map(|(pid, _)| *pid).collect();
        // After the greatest number the system starts again from the least.
        children.sort_by_key(|pid| (pid - above).rem_euclid(pids));
        found.extend(children);
        at += 1;
    }
    found
}

/// Processes of stages below a command, in the order of their groups on the first node.
pub fn stages(command: i32) -> Vec<i32> {
    let stages = processes(&["/proc/self/exe", "stage"]);
    family(command)
        .into_iter()
        .filter(|pid| stages.contains(pid))
        .collect()
}

pub fn kill(pid: i32) {
    let status = std::process::Command::new("kill")
        .args(["-9", &pid.to_string()])
        .status();
    assert!(status.unwrap().success());
}

/// Kills all of these, and none sees another end before.
pub fn kill_at_once(pids: &[i32]) {
    let send = |signal| {
        let pids = pids.iter().map(i32::to_string);
        let mut command = std::process::Command::new("kill");
        command.arg(signal).args(pids).output().unwrap().status
    };
    assert!(send("-STOP").success());
    // The system hangs up on stopped groups without parents, which may come first.
    let _ = send("-KILL");
}

/// Whether a process runs. One whose first thread has ended keeps its files, and their locks, until all of its threads have.
pub fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.map_or(0, |threads| threads.flatten().count());
    !stat.is_empty() && (!stat.contains(") Z ") || threads > 1)
}

pub fn assert_gone(pids: &[i32]) {
    wait_for("all processes to end", || {
        pids.iter().all(|&pid| !is_alive(pid)).then_some(())
    });
}

pub fn temporary(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains(".ropewalk-")).collect()
}
