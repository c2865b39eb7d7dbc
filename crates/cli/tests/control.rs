//! Asking about and ending transfers while they run; losing nodes is in `faults`.

mod common;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command};

use common::{DEADLINE, Moving, Place, bytes, make_ssh, wait_for};
use serde_json::Value;

fn signal(child: &Child, name: &str) {
    assert!(
        Command::new("kill")
            .args(["-s", name, &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
}

const SLOW: [&str; 5] = ["copy", "mem:1GiB", "null:", "--limit", "4MB/s"];

/// Whether a transfer ended before all of its bytes had moved.
fn is_cut_short(report: &Value) -> bool {
    let bytes = |name: &str| report[name].as_u64().unwrap();
    bytes("delivered_bytes") < bytes("wanted_bytes")
}

/// `status` shows a running transfer, `cancel` ends it long before its bytes have moved, and the socket goes.
#[test]
fn a_transfer_is_seen_and_cancelled() {
    let place = Place::new();
    place
        .run(&["status"])
        .assert_status(0)
        .assert_says("no transfers");
    let mut moving = Moving::start(&place, &SLOW);
    let id = moving.event("planned")["transfer"]
        .as_str()
        .unwrap()
        .to_owned();
    moving.until_delivered(1);
    wait_for("the desk to show progress", || {
        place
            .run(&["status"])
            .out()
            .contains(" of 1.07 GB")
            .then_some(())
    });
    let shown: Value = serde_json::from_str(&place.run(&["status", "--json"]).out()).unwrap();
    assert_eq!(
        (&shown[0]["transfer"], shown[0]["process"].as_u64()),
        (&Value::from(id.clone()), Some(moving.child.id().into()))
    );
    place
        .run(&["cancel", "zzz"])
        .assert_status(1)
        .assert_says("no transfer is called zzz");
    place
        .run(&["cancel", &id[..13]])
        .assert_status(0)
        .assert_says("cancelled 1 transfer");
    let (status, report) = moving.end();
    assert_eq!((status, &report["outcome"]), (130, &"cancelled".into()));
    assert!(is_cut_short(&report), "{report:#}");
    place
        .run(&["status"])
        .assert_status(0)
        .assert_says("no transfers");
    place
        .run(&["cancel", "--all"])
        .assert_status(1)
        .assert_says("cancelled 0");
}

/// A command that is stopped is shown with what to do, cannot be cancelled, and goes on as if nothing had been.
#[test]
fn a_stopped_command_is_named() {
    let place = Place::new();
    let mut moving = Moving::start(&place, &SLOW);
    moving.until_delivered(1);
    let process = moving.child.id().to_string();
    signal(&moving.child, "STOP");
    let stopped = format!("process {process}, stopped, does not answer");
    wait_for("the process to stop", || {
        place
            .run(&["status"])
            .assert_status(0)
            .out()
            .contains(&stopped)
            .then_some(())
    });
    let shown: Value = serde_json::from_str(&place.run(&["status", "--json"]).out()).unwrap();
    assert_eq!(
        (&shown[0]["silence"], shown[0]["process"].to_string()),
        (&"stopped".into(), process.clone())
    );
    let id = shown[0]["transfer"].as_str().unwrap();
    let continues = format!("`kill -CONT {process}` continues it");
    place
        .run(&["top", "--once"])
        .assert_status(0)
        .assert_says("stopped, does not answer")
        .assert_says(&continues);
    for arguments in [
        &["cancel", &process][..],
        &["cancel", id],
        &["cancel", "--all"],
        &["limit", id, "1MB/s"],
    ] {
        place
            .run(arguments)
            .assert_status(1)
            .assert_says(&format!("process {process} is stopped"))
            .assert_says(&continues);
    }
    // The others are cancelled, and the status says that one is left.
    let mut other = Moving::start(&place, &SLOW);
    other.until_delivered(1);
    place
        .run(&["cancel", "--all"])
        .assert_status(1)
        .assert_says("cancelled 1 transfer")
        .assert_says(&format!("process {process} is stopped"));
    assert_eq!(other.end().0, 130);
    signal(&moving.child, "CONT");
    place
        .run(&["cancel", &process])
        .assert_status(0)
        .assert_says("cancelled 1 transfer");
    assert_eq!(moving.end().0, 130);
}

/// The rate of a receiver that hangs falls to nothing, and the time left is not known, until it goes on.
#[test]
fn a_receiver_that_hangs_has_no_rate() {
    let place = Place::new();
    place.make_token();
    let agent = place.agent(&place.path(""));
    let mut args = SLOW;
    let to = agent.at("null:");
    args[2] = &to;
    let mut moving = Moving::start(&place, &args);
    moving.until_delivered(1);
    let mut until = |is_moving: bool| loop {
        let progress = moving.event("progress");
        let rate = progress["bits_per_second"].as_f64().unwrap();
        assert_eq!(progress["eta_seconds"].is_null(), rate == 0.0);
        if (rate > 0.0) == is_moving {
            break;
        }
    };
    until(true);
    signal(&agent.child, "STOP");
    until(false);
    signal(&agent.child, "CONT");
    until(true);
}

/// Ctrl-C and SIGTERM end a copy before its bytes have moved: nothing temporary stays, no agent lives on.
#[test]
fn signals_end_a_copy_cleanly() {
    let place = Place::new();
    std::fs::write(place.path("big"), bytes(32 << 20, 3)).unwrap();
    std::fs::create_dir(place.path("to")).unwrap();
    for name in ["INT", "TERM"] {
        let mut moving = Moving::start(&place, &["copy", "big", "to/copy", "--limit", "4MB/s"]);
        moving.until_delivered(1);
        signal(&moving.child, name);
        let (status, report) = moving.end();
        assert_eq!((status, &report["outcome"]), (130, &"cancelled".into()));
        assert!(is_cut_short(&report), "{name}: {report:#}");
        assert!(
            !place.path("to/copy").exists(),
            "half a copy has the copy's name"
        );
    }
}

/// Counts the files in the folders of a copy, each of which is whole.
fn whole_files(copy: &Path) -> usize {
    let names = |folder: &Path| {
        let entries = std::fs::read_dir(folder).unwrap();
        entries
            .map(|entry| entry.unwrap().path())
            .collect::<Vec<_>>()
    };
    let folders = names(copy);
    let files: Vec<_> = folders.iter().flat_map(|folder| names(folder)).collect();
    for file in &files {
        assert_eq!(
            std::fs::read(file).unwrap(),
            [b'x'; 200],
            "{}",
            file.display()
        );
    }
    files.len()
}

/// When an interrupted command has ended, the files of an incomplete copy that are whole have their names; all of it is
/// removed, or kept and named, where that was asked for.
#[test]
fn what_an_interrupted_copy_says_is_so() {
    let place = Place::new();
    for file in 0..10_000 {
        let folder = place.path("set").join((file % 10).to_string());
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(file.to_string()), [b'x'; 200]).unwrap();
    }
    // Sent last, so slowly that the copy is never complete when the signal arrives, on a busy machine, too.
    std::fs::create_dir(place.path("set/z")).unwrap();
    let last = std::fs::File::create(place.path("set/z/last")).unwrap();
    last.set_len(32 << 20).unwrap();
    std::fs::create_dir(place.path("to")).unwrap();
    for option in [Some("--atomic"), Some("--keep-partial"), None] {
        let mut args = vec!["copy", "set", "to/copy", "--limit", "300kB/s"];
        args.extend(option);
        let mut moving = Moving::start(&place, &args);
        moving.until_delivered(600_000);
        signal(&moving.child, "INT");
        let (status, report) = moving.end();
        assert_eq!((status, &report["outcome"]), (130, &"cancelled".into()));
        let entries = std::fs::read_dir(place.path("to")).unwrap();
        let names = entries.map(|entry| entry.unwrap().path());
        let is_journal = |path: &std::path::PathBuf| path.extension() == Some("journal".as_ref());
        let (journals, names): (Vec<_>, Vec<_>) = names.partition(is_journal);
        let left = report["left"].as_array().unwrap();
        let left: Vec<_> = left
            .iter()
            .map(|one| std::path::PathBuf::from(one["path"].as_str().unwrap()))
            .collect();
        let copy = place.path("to/copy");
        if option.is_some() {
            let keeps = option == Some("--keep-partial");
            assert_eq!(names.len(), usize::from(keeps), "{report:#}");
            assert_eq!(left, names, "{report:#}");
            assert_eq!(journals.len(), names.len());
            for journal in journals {
                std::fs::remove_file(journal).unwrap();
            }
            for kept in names {
                std::fs::remove_dir_all(kept).unwrap();
            }
            continue;
        }
        assert!(journals.is_empty(), "{journals:?}");
        assert_eq!((names, left), (vec![copy.clone()], vec![]), "{report:#}");
        let files = whole_files(&copy);
        assert_eq!(report["destinations"][0]["files"], files, "{report:#}");
        assert!((3000..=10_000).contains(&files), "{files}");
    }
}

/// Of a copy that is kept where it is incomplete the report says how much is valid, and the next copy takes that over.
#[test]
fn what_is_kept_is_counted() {
    const RECEIVED: u64 = 6_000_000;
    let place = Place::new();
    let bytes: Vec<u8> = (0..40_000_000_u32).map(|at| (at / 7) as u8).collect();
    std::fs::write(place.path("set"), &bytes).unwrap();
    let copy = ["copy", "set", "to", "--keep-partial"];
    let args = [&copy[..], &["--limit", "4MB/s"]].concat();
    let mut moving = Moving::start(&place, &args);
    let received = |event: &serde_json::Value| event["received_bytes"].as_u64().unwrap_or(0);
    while received(&moving.event("progress")) < RECEIVED {}
    signal(&moving.child, "INT");
    let (status, report) = moving.end();
    assert_eq!((status, &report["outcome"]), (130, &"cancelled".into()));
    let valid = report["left"][0]["valid_bytes"].as_u64().unwrap();
    assert_eq!(report["delivered_bytes"], valid, "{report:#}");
    // Not only what was synced before.
    assert!((RECEIVED..40_000_000).contains(&valid), "{report:#}");
    let args = [&copy[..], &["--json"]].concat();
    let report = place.run(&args).assert_status(0).report();
    assert_eq!(report["landing"]["resumed_bytes"], valid, "{report:#}");
    assert!(std::fs::read(place.path("to")).unwrap() == bytes);
}

/// The processes that another one started.
fn children(parent: &Child) -> Vec<String> {
    let found = Command::new("pgrep")
        .args(["-P", &parent.id().to_string()])
        .output()
        .unwrap();
    let text = String::from_utf8(found.stdout).unwrap();
    text.split_whitespace().map(str::to_owned).collect()
}

/// With these a host is reached by that stand-in for ssh, so that the command starts agents as processes.
fn over_ssh(ssh: &str) -> [&str; 4] {
    let program = env!("CARGO_BIN_EXE_ropewalk");
    ["--ssh", ssh, "--remote-path", program]
}

/// Waits until processes have ended, whoever collects them.
fn wait_for_end(processes: &[String]) {
    let gone = |process: &String| {
        // A zombie that nobody has collected yet is gone, too.
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    };
    wait_for("the agents to end", || {
        processes.iter().all(gone).then_some(())
    });
}

/// However many files there are to name and to remove, agents end after that: when the command that has them in its process is interrupted,
/// and when one that has started them is killed.
#[test]
fn agents_remove_all_before_they_end() {
    let place = Place::new();
    for folder in 0..20 {
        let folder = place.path("set").join(folder.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        for file in 0..1000 {
            std::fs::write(folder.join(file.to_string()), [b'x'; 200]).unwrap();
        }
    }
    std::fs::create_dir(place.path("to")).unwrap();
    // Slow enough that it is at work for long after the signal, on a busy machine, too; after a kill for longer than agents go on.
    let ssh = make_ssh(&place, "");
    let far = format!("host:{}", place.text("set"));
    for (name, from, limit, started) in [("INT", "set", "300kB/s", 0), ("KILL", &far, "90kB/s", 2)]
    {
        let copy = ["copy", from, "to/copy", "--limit", limit];
        let mut moving = Moving::start(&place, &[&copy[..], &over_ssh(&ssh)].concat());
        moving.until_delivered(600_000);
        let agents = children(&moving.child);
        assert_eq!(agents.len(), started);
        signal(&moving.child, name);
        moving.child.wait().unwrap();
        wait_for_end(&agents);
        let left = std::fs::read_dir(place.path("to")).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["copy"], "{name} leaves temporary files");
        let files = whole_files(&place.path("to/copy"));
        assert!((3000..20_000).contains(&files), "{name}: {files}");
        std::fs::remove_dir_all(place.path("to/copy")).unwrap();
    }
}

/// The socket of an agent that was killed goes with the next `status`.
#[test]
fn status_removes_sockets_of_killed_agents() {
    let place = Place::new();
    let folder = place.path("runtime/ropewalk");
    std::fs::create_dir_all(&folder).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&folder, mode).unwrap();
    // No process has such a number.
    let socket = folder.join("4294967295.agent");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    place.run(&["status"]).assert_status(0);
    assert!(!socket.exists());
}

/// A killed command takes the agents it started with it, after the time in which they finish what they can, and `status` clears its socket away.
#[test]
fn agents_do_not_outlive_their_command() {
    let place = Place::new();
    std::fs::write(place.path("data"), vec![7; 256 << 20]).unwrap();
    let (ssh, from) = (make_ssh(&place, ""), format!("host:{}", place.text("data")));
    let words = ["copy", &from, "null:", "--limit", "4MB/s"];
    let mut moving = Moving::start(&place, &[&words[..], &over_ssh(&ssh)].concat());
    moving.until_delivered(1);
    let agents = children(&moving.child);
    assert_eq!(agents.len(), 2);
    moving.child.kill().unwrap();
    moving.child.wait().unwrap();
    wait_for_end(&agents);
    place
        .run(&["status"])
        .assert_status(0)
        .assert_says("no transfers");
    assert_eq!(
        std::fs::read_dir(place.path("runtime/ropewalk"))
            .unwrap()
            .count(),
        0
    );
}

/// An agent is asked and told from outside, with its token and not without.
#[test]
fn an_agent_is_asked_and_told() {
    let place = Place::new();
    place.make_token();
    let agent = place.agent(place.dir.path());
    let at = format!("127.0.0.1:{}", agent.port);
    place
        .run(&["status", "--agent", &at])
        .assert_status(0)
        .assert_says("no transfers");
    let mut moving = Moving::start(
        &place,
        &["copy", &agent.at("mem:1GiB"), "null:", "--limit", "4MB/s"],
    );
    let id = moving.event("planned")["transfer"]
        .as_str()
        .unwrap()
        .to_owned();
    moving.until_delivered(1);
    place
        .run(&["status", "--agent", &at])
        .assert_status(0)
        .assert_says(&id[28..]);
    let other = place.text("other");
    place
        .run(&["agent", "--new-token", &other])
        .assert_status(0);
    place
        .run(&["status", "--agent", &at, "--token-file", &other])
        .assert_status(1)
        .assert_says("token");
    place
        .run(&["cancel", &id, "--agent", &at])
        .assert_status(0)
        .assert_says("cancelled 1");
    let (status, report) = moving.end();
    assert!(status != 0 && report["outcome"] != "done", "{report:#}");
}

/// Whoever is asked and closes at once is no agent, and that is said.
#[test]
fn status_of_what_is_no_agent() {
    let place = Place::new();
    place.make_token();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        listener.incoming().for_each(drop);
    });
    place
        .run(&["status", "--agent", &at])
        .assert_status(1)
        .assert_says(&at);
}

/// An agent ends with status 0 on SIGTERM, and a stranger is closed after the preface.
#[test]
fn an_agent_ends_when_asked_and_ignores_strangers() {
    let place = Place::new();
    place.make_token();
    let mut agent = place.agent(place.dir.path());
    let mut stranger = TcpStream::connect(("127.0.0.1", agent.port)).unwrap();
    stranger.set_read_timeout(Some(DEADLINE)).unwrap();
    stranger.write_all(&[b'x'; 4096]).unwrap();
    let mut answer = Vec::new();
    // Closed, or reset because of the bytes nobody read.
    let _ = stranger.read_to_end(&mut answer);
    assert!(answer.is_empty());
    signal(&agent.child, "TERM");
    let status = wait_for("the agent to end", || agent.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
}
