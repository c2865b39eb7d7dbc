//! Hosts of the lab with agents, commands on them, and bytes to move.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use ropewalk_lab::trunk::{ClusterSpec, LinkSpec, TrunkSpec};
use ropewalk_lab::{HostSpec, Lab, LabBuilder, NicSpec, Topology};
use serde_json::Value;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_ropewalk");

const TOKEN: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n";

pub fn lab(hosts: &[&str], rate: u64) -> Lab {
    let mut builder = LabBuilder::new();
    for host in hosts {
        builder = builder.host(HostSpec::new(*host).nic(NicSpec::rate_bits(rate)));
    }
    builder.build().unwrap()
}

/// Puts the token where the host's programs find it.
pub fn give_token(lab: &Lab, host: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let path = lab.path_in(host, "/run/token");
    std::fs::write(&path, TOKEN).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// A standing agent; returns once it listens. It ends with the lab.
pub fn agent(lab: &Lab, host: &str, port: u16, roots: &[&str]) -> Child {
    let words = roots.iter().flat_map(|root| ["--root", root]);
    agent_with(lab, host, port, &words.collect::<Vec<_>>())
}

/// The same, that serves what these options say.
pub fn agent_with(lab: &Lab, host: &str, port: u16, words: &[&str]) -> Child {
    give_token(lab, host);
    let mut command = lab.command(host, PROGRAM);
    command.args([
        "agent",
        "--token-file",
        "/run/token",
        "--listen",
        &format!("[::]:{port}"),
    ]);
    command.args(words);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.contains("listening"), "{line:?}");
    child
}

/// The program on a host, which keeps what it remembers there.
pub fn program(lab: &Lab, host: &str) -> Command {
    let mut command = lab.command(host, PROGRAM);
    command
        .env("XDG_RUNTIME_DIR", "/run")
        .env("XDG_STATE_HOME", "/run")
        .stdin(Stdio::null());
    command
}

/// A command that moves bytes, reports them as JSON and has the token.
fn mover(lab: &Lab, host: &str, args: &[&str]) -> Command {
    give_token(lab, host);
    let mut command = program(lab, host);
    command
        .arg(args[0])
        .args(["--json", "--token-file", "/run/token"])
        .args(&args[1..]);
    command
}

/// Moves bytes to the end: exit status and all events, the last one with the report.
pub fn all_events(lab: &Lab, host: &str, args: &[&str]) -> (Option<i32>, Vec<Value>) {
    let output = mover(lab, host, args).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let events: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let last = events
        .last()
        .unwrap_or_else(|| panic!("no report: {}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(last["event"], "ended", "{last}");
    (output.status.code(), events)
}

/// Moves bytes to the end: exit status and report.
pub fn master(lab: &Lab, host: &str, args: &[&str]) -> (Option<i32>, Value) {
    let (status, events) = all_events(lab, host, args);
    (status, events[events.len() - 1]["report"].clone())
}

/// Begins to move bytes: the process, and its events as they come.
pub fn begin(lab: &Lab, host: &str, args: &[&str]) -> (Child, impl Iterator<Item = Value> + use<>) {
    let mut command = mover(lab, host, args);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let events = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap());
    (child, events)
}

/// Whether more than so many bytes have arrived.
pub fn has_moved(event: &Value, bytes: u64) -> bool {
    event["event"] == "progress" && event["delivered_bytes"].as_u64() > Some(bytes)
}

/// Ends the agents, then the lab.
pub fn close(lab: Lab, agents: impl IntoIterator<Item = Child>) {
    for mut agent in agents {
        agent.kill().unwrap();
        agent.wait().unwrap();
    }
    lab.close().unwrap();
}

pub fn bytes(len: usize) -> Vec<u8> {
    let mut state = 5u64;
    (0..len)
        .map(|_| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect()
}

/// Loads rules into a host's packet filter.
pub fn rules(lab: &Lab, host: &str, rules: &str) {
    let mut nft = lab.command(host, "/usr/sbin/nft");
    let mut child = nft.args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(rules.as_bytes())
        .unwrap();
    assert!(child.wait().unwrap().success(), "{rules}");
}

/// Hosts `a1` and `b1`, with 1 Gbit/s each, on two sides of a trunk.
pub fn far_pair(link: LinkSpec) -> Lab {
    let clusters = ClusterSpec {
        hosts: [1, 1],
        access_bits_per_second: Some(1_000_000_000),
        trunk: TrunkSpec::symmetric(link),
    };
    let builder = LabBuilder::from(Topology::clusters(&clusters));
    builder.build().unwrap()
}
