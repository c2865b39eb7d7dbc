//! How transfers are reached and ended by those who use the library.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use ropewalk::{
    Agent, AgentOptions, ByteRate, Error, ErrorKind, Event, Outcome, Place, Transfer, new_token,
};

/// The switch ends a transfer whose bytes move, and nothing gets its name.
#[test]
fn a_switch_ends_a_transfer() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    fs::write(folder.join("set"), vec![7; 3_000_000]).unwrap();
    let token = new_token();
    let start = |is_writable| {
        let options = AgentOptions {
            listen: vec![([127, 0, 0, 1], 0).into()],
            token,
            roots: vec![(folder.clone(), is_writable)],
        };
        Agent::start(options).unwrap()
    };
    let (sender, receiver) = (start(false), start(true));
    let at = |agent: &Agent, name: &str| {
        Place::at_agent("127.0.0.1", agent.addresses()[0].port(), folder.join(name))
    };
    // It would take hours.
    let transfer = Transfer::new()
        .from(at(&sender, "set"))
        .to(at(&receiver, "copy"))
        .limit(ByteRate(300))
        .token(token);
    let switch = transfer.cancel_switch();
    assert!(!switch.is_cancelled());
    let thrown = switch.clone();
    let transfer = transfer.on_event(move |event| {
        if let Event::Planned { .. } = event {
            thrown.cancel();
        }
    });
    let error = transfer.run().unwrap_err();
    assert!(switch.is_cancelled());
    let Error::Input(fault) = &error else {
        panic!("{error:?}");
    };
    let report = fault.report.as_ref().unwrap();
    assert_eq!(report.outcome, Outcome::Cancelled, "{error}");
    assert!(!folder.join("copy").exists());
    sender.stop().unwrap();
    receiver.stop().unwrap();
}

/// Where the child finds what it is to copy.
const FOLDER: &str = "ROPEWALK_TEST_FOLDER";

/// A host is reached by ssh under the name that was given, and the command there is `ropewalk`.
#[test]
fn hosts_are_reached_over_ssh() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return copies_from_a_host(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let ssh = folder.path().join("ssh");
    let script = format!(
        "#!/bin/sh\necho \"$@\" >> {}/asked\necho no route to host >&2\nexit 255\n",
        folder.path().display()
    );
    fs::write(&ssh, script).unwrap();
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
    // A program is looked for in the path of the whole process: this one again, with another path.
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hosts_are_reached_over_ssh", "--nocapture"])
        .env("PATH", path)
        .env(FOLDER, folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{said}");
    let asked = fs::read_to_string(folder.path().join("asked")).unwrap();
    assert!(
        asked.contains("operator@far") && asked.contains("ropewalk"),
        "{asked}"
    );
}

fn copies_from_a_host(folder: &Path) {
    let transfer = Transfer::new()
        .from(Place::over_ssh("operator@far", "/data/set"))
        .to(Place::over_ssh("operator@farther", folder.join("copy")));
    let error = transfer.run().unwrap_err();
    let Error::Network(fault) = &error else {
        panic!("{error:?}");
    };
    assert_eq!(fault.kind, Some(ErrorKind::Unreachable));
    assert!(fault.message.contains("operator@far"), "{error}");
}
