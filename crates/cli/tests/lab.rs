//! Whole transfers between hosts of the lab: namespaces with interfaces of their own. Skipped, visibly,
//! where namespaces cannot be made.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ropewalk_lab::trunk::{ClusterSpec, LinkSpec, QueueLimit, TrunkSpec};
use ropewalk_lab::{HostSpec, Lab, LabBuilder, NicSpec, Topology};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ropewalk");

/// The paper's sample, byte for byte.
const FIGURE_2: &str = include_str!("../../reproduce/data/figure2.cep");

const TOKEN: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n";

fn lab(hosts: &[&str], rate: u64) -> Lab {
    let mut builder = LabBuilder::new();
    for host in hosts {
        builder = builder.host(HostSpec::new(*host).nic(NicSpec::rate_bits(rate)));
    }
    builder.build().unwrap()
}

/// Puts the token where the host's programs find it.
fn give_token(lab: &Lab, host: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let path = lab.path_in(host, "/run/token");
    std::fs::write(&path, TOKEN).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// A standing agent; returns once it listens. It ends with the lab.
fn agent(lab: &Lab, host: &str, port: u16, roots: &[&str]) -> Child {
    give_token(lab, host);
    let mut command = lab.command(host, PROGRAM);
    command.args([
        "agent",
        "--token-file",
        "/run/token",
        "--listen",
        &format!("[::]:{port}"),
    ]);
    for root in roots {
        command.args(["--root", root]);
    }
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.contains("listening"), "{line:?}");
    child
}

fn master(lab: &Lab, host: &str, args: &[&str]) -> (Option<i32>, Value) {
    give_token(lab, host);
    let mut command = lab.command(host, PROGRAM);
    command
        .arg(args[0])
        .args(["--json", "--token-file", "/run/token"])
        .args(&args[1..]);
    command
        .env("XDG_RUNTIME_DIR", "/run")
        .env("XDG_STATE_HOME", "/run");
    ended(command)
}

/// Runs to the end: exit status and report.
fn ended(mut command: Command) -> (Option<i32>, Value) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let last = text
        .lines()
        .last()
        .unwrap_or_else(|| panic!("no report: {}", String::from_utf8_lossy(&output.stderr)));
    let event: Value = serde_json::from_str(last).unwrap();
    assert_eq!(event["event"], "ended", "{last}");
    (output.status.code(), event["report"].clone())
}

fn bytes(len: usize) -> Vec<u8> {
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

/// Figure 2's file as printed in the paper, between hosts of those names and addresses.
#[test]
fn figure_2_as_printed() {
    if ropewalk_lab::skip("figure_2_as_printed") {
        return;
    }
    let hosts = [
        "node1",
        "node2",
        "192.168.3.4",
        "192.168.3.5",
        "node5",
        "node7",
        "node6",
    ];
    let lab = lab(&hosts, 100_000_000);
    let data = bytes(4096);
    for (host, name, half) in [
        ("node1", "half1", 0),
        ("node2", "half1", 0),
        ("192.168.3.4", "half2", 1),
        ("192.168.3.5", "half2", 1),
    ] {
        std::fs::write(
            lab.path_in(host, format!("/data/{name}")),
            &data[half * 2048..][..2048],
        )
        .unwrap();
    }
    let ports = [55553, 55554, 55555, 55555, 55557, 55559, 55558];
    let agents: Vec<Child> = hosts
        .iter()
        .zip(ports)
        .map(|(host, port)| agent(&lab, host, port, &["/data", "/tmp:rw"]))
        .collect();
    std::fs::write(lab.path_in("node1", "/run/figure2.cep"), FIGURE_2).unwrap();
    let (status, report) = master(&lab, "node1", &["transfer", "/run/figure2.cep"]);
    assert_eq!(status, Some(0), "{report:#}");
    assert_eq!(report["delivered_bytes"], 8192);
    assert_eq!(report["label"], "My Data File");
    assert_eq!(
        std::fs::read(lab.path_in("node5", "/tmp/copy1")).unwrap(),
        &data[..2048]
    );
    // A file with a hole before its part: only the reader's own range counts.
    assert_eq!(
        &std::fs::read(lab.path_in("node7", "/tmp/copy1")).unwrap()[2048..],
        &data[2048..]
    );
    assert_eq!(
        std::fs::read(lab.path_in("node6", "/tmp/copy2")).unwrap(),
        data
    );
    for mut agent in agents {
        agent.kill().unwrap();
        agent.wait().unwrap();
    }
    lab.close().unwrap();
}

fn make_tree(root: &Path) {
    std::fs::create_dir_all(root.join("sub/empty")).unwrap();
    for at in 0..50usize {
        std::fs::write(root.join(format!("sub/file {at}")), bytes(at * at * 100)).unwrap();
    }
    std::os::unix::fs::symlink("sub/nothing", root.join("link")).unwrap();
}

/// Started over ssh with nothing installed but the program: two replicas to two hosts, no agent left.
#[test]
fn copies_over_ssh() {
    if ropewalk_lab::skip("copies_over_ssh") {
        return;
    }
    if !Path::new("/usr/sbin/sshd").exists() {
        return eprintln!("SKIPPED copies_over_ssh: no sshd; run scripts/install-test-tools");
    }
    let lab = lab(&["a1", "a2", "b1", "b2"], 500_000_000);
    for host in ["a1", "a2", "b1", "b2"] {
        lab.start_sshd(host).unwrap();
    }
    make_tree(&lab.path_in("a1", "/data/set"));
    let copied = Command::new("cp")
        .arg("-a")
        .arg(lab.path_in("a1", "/data/set"))
        .arg(lab.path_in("a2", "/data/set"))
        .status();
    assert!(copied.unwrap().success());
    let (status, report) = master(
        &lab,
        "a1",
        &[
            "copy",
            "--remote-path",
            PROGRAM,
            "a[1-2]:/data/set",
            "b[1-2]:/data/copy",
        ],
    );
    assert_eq!(status, Some(0), "{report:#}");
    for host in ["b1", "b2"] {
        let (first, second) = (
            lab.path_in("a1", "/data/set"),
            lab.path_in(host, "/data/copy"),
        );
        let same = Command::new("diff")
            .args(["-r", "--no-dereference"])
            .arg(&first)
            .arg(&second)
            .output()
            .unwrap();
        assert!(
            same.status.success(),
            "{}",
            String::from_utf8_lossy(&same.stdout)
        );
        let list = |root: &Path| {
            let script = "find . -printf '%p %y %m %T@ %l\\n' | sort";
            Command::new("sh")
                .args(["-c", script])
                .current_dir(root)
                .output()
                .unwrap()
                .stdout
        };
        assert_eq!(
            list(&first),
            list(&second),
            "names, kinds, modes, times and link targets"
        );
    }
    lab.close().unwrap();
}

/// A sender whose interface goes silent (no error anywhere) is replaced by its replica.
#[test]
fn a_silent_sender_is_replaced() {
    if ropewalk_lab::skip("a_silent_sender_is_replaced") {
        return;
    }
    let lab = lab(&["a", "b", "c", "m"], 100_000_000);
    let data = bytes(30 << 20);
    for host in ["a", "b"] {
        let path = lab.path_in(host, "/data/set");
        std::fs::write(&path, &data).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        std::fs::File::open(&path)
            .unwrap()
            .set_modified(time)
            .unwrap();
    }
    let agents: Vec<Child> = ["a", "b", "c"]
        .iter()
        .map(|host| agent(&lab, host, 7420, &["/data:rw"]))
        .collect();
    give_token(&lab, "m");
    let mut command = lab.command("m", PROGRAM);
    command.args([
        "copy",
        "--json",
        "--token-file",
        "/run/token",
        "a:7420:/data/set",
        "b:7420:/data/set",
        "c:7420:/data/copy",
    ]);
    let mut child = command
        .env("XDG_RUNTIME_DIR", "/run")
        .env("XDG_STATE_HOME", "/run")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut events = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(|l| serde_json::from_str::<Value>(&l.unwrap()).unwrap());
    let moving =
        |e: &Value| e["event"] == "progress" && e["delivered_bytes"].as_u64() > Some(5 << 20);
    assert!(
        events.by_ref().any(|e| moving(&e)),
        "it moves before the failure"
    );
    lab.blackhole("a", 0, true).unwrap();
    let report = events.last().unwrap()["report"].clone();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{report:#}");
    assert!(std::fs::read(lab.path_in("c", "/data/copy")).unwrap() == data);
    for mut agent in agents {
        agent.kill().unwrap();
        agent.wait().unwrap();
    }
    lab.close().unwrap();
}

/// A disk that is too small is refused with path and missing bytes; nothing is left on it.
#[test]
fn a_full_disk_is_named() {
    if ropewalk_lab::skip("a_full_disk_is_named") {
        return;
    }
    let small = HostSpec::new("b")
        .nic(NicSpec::uncapped())
        .tmpfs_size("data", 1 << 20);
    let lab = LabBuilder::new()
        .host(HostSpec::new("a").nic(NicSpec::uncapped()))
        .host(small)
        .build()
        .unwrap();
    std::fs::write(lab.path_in("a", "/data/big"), bytes(8 << 20)).unwrap();
    let mut agents = [
        agent(&lab, "a", 7420, &["/data"]),
        agent(&lab, "b", 7420, &["/data:rw"]),
    ];
    let (status, report) = master(
        &lab,
        "a",
        &["copy", "a:7420:/data/big", "b:7420:/data/copy"],
    );
    assert_eq!(status, Some(1), "{report:#}");
    let error = report["error"].as_str().unwrap();
    assert!(
        error.contains("/data/copy") || error.contains("/data/.copy"),
        "{error}"
    );
    assert_eq!(
        std::fs::read_dir(lab.path_in("b", "/data"))
            .unwrap()
            .count(),
        0
    );
    for agent in &mut agents {
        agent.kill().unwrap();
        agent.wait().unwrap();
    }
    lab.close().unwrap();
}

/// Nobody says a speed: the first transfer finds out that one replica's link is a fifth of the other's, and
/// the second is planned so from the start.
#[test]
fn a_second_transfer_is_planned_by_the_first() {
    if ropewalk_lab::skip("a_second_transfer_is_planned_by_the_first") {
        return;
    }
    let host = |name: &str, rate| HostSpec::new(name).nic(NicSpec::rate_bits(rate));
    let lab = LabBuilder::new()
        .host(host("slow", 20_000_000))
        .host(host("fast", 100_000_000))
        .host(host("r", 1_000_000_000))
        .build()
        .unwrap();
    let agents = ["slow", "fast", "r"].map(|host| agent(&lab, host, 7420, &["/data"]));
    give_token(&lab, "r");
    let copy = |size: &str| -> Vec<Value> {
        let mut command = lab.command("r", PROGRAM);
        command
            .args(["copy", "--json", "--token-file", "/run/token"])
            .args(["slow", "fast"].map(|host| format!("{host}:7420:mem:{size}")))
            .arg("r:7420:null:")
            .env("XDG_RUNTIME_DIR", "/run")
            .env("XDG_STATE_HOME", "/run");
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{text}");
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    // Bytes that the slow and the fast one were planned to send, at the first look.
    let planned = |events: &[Value]| -> [f64; 2] {
        let first = events.iter().find(|event| event["event"] == "progress");
        let senders = first.unwrap()["senders"].as_array().unwrap();
        ["slow", "fast"].map(|name| {
            let sender = senders.iter().find(|sender| sender["node"] == name);
            sender.unwrap()["total_bytes"].as_f64().unwrap()
        })
    };
    let first = copy("72MiB");
    let [slow, fast] = planned(&first);
    assert!((0.9..1.1).contains(&(fast / slow)), "{slow} {fast}");
    let text = std::fs::read_to_string(lab.path_in("r", "/run/ropewalk/speeds.json")).unwrap();
    let kept: Value = serde_json::from_str(&text).unwrap();
    for (name, bits) in [("slow", 20e6), ("fast", 100e6)] {
        let speed = &kept["nodes"][format!("{name}:7420")]["sending"]["bytes_per_second"];
        let share = speed.as_f64().unwrap() * 8.0 / bits;
        // The best second counts whole units, and the cap lets a burst through.
        assert!(
            (0.75..1.15).contains(&share),
            "{name}: {share} of its link\n{text}"
        );
    }
    let second = copy("16MiB");
    let [slow, fast] = planned(&second);
    assert!((4.0..6.0).contains(&(fast / slow)), "{slow} {fast}");
    let report = &second.last().unwrap()["report"];
    let notes = report["notes"].to_string();
    assert!(
        notes.contains("planned by speeds remembered from "),
        "{notes}"
    );
    assert_eq!(report["bound"]["basis"], "observed");
    for mut agent in agents {
        agent.kill().unwrap();
        agent.wait().unwrap();
    }
    lab.close().unwrap();
}

/// A sender and a reader of the shared destination that join get work: with each, twice as much fits through.
#[test]
fn nodes_that_join_have_work() {
    if ropewalk_lab::skip("nodes_that_join_have_work") {
        return;
    }
    const LEN: u64 = 48 << 20;
    let hosts = ["w1", "w2", "r1", "r2"];
    let lab = lab(&hosts, 40_000_000);
    let agents: Vec<Child> = hosts
        .iter()
        .map(|host| agent(&lab, host, 7420, &["/tmp:rw"]))
        .collect();
    let rows = |sender: &str, reader: &str| {
        format!(
            "writer {sender}:7420 mem:{LEN} 0 0+{LEN}\nreader {reader}:7420 null: 0 0+{LEN} dest=one\n"
        )
    };
    give_token(&lab, "w1");
    std::fs::write(lab.path_in("w1", "/run/first"), rows("w1", "r1")).unwrap();
    std::fs::write(lab.path_in("w1", "/run/more"), rows("w2", "r2")).unwrap();
    let command = |args: &[&str]| {
        let mut command = lab.command("w1", PROGRAM);
        command.args(args).stdin(Stdio::null());
        command
            .env("XDG_RUNTIME_DIR", "/run")
            .env("XDG_STATE_HOME", "/run");
        command
    };
    let mut moving = command(&[
        "transfer",
        "/run/first",
        "--json",
        "--token-file",
        "/run/token",
    ]);
    let mut moving = moving.stdout(Stdio::piped()).spawn().unwrap();
    let mut joined = false;
    let mut report = Value::Null;
    for line in BufReader::new(moving.stdout.take().unwrap()).lines() {
        let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
        if event["event"] == "planned" && !joined {
            joined = true;
            let id = event["transfer"].as_str().unwrap();
            let output = command(&["join", id, "/run/more"]).output().unwrap();
            let (said, errors) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{errors}");
            assert_eq!(String::from_utf8_lossy(said), "w2 joined\nr2 joined\n");
        }
        report = event["report"].clone();
    }
    assert!(moving.wait().unwrap().success(), "{report:#}");
    let bytes = |name: &str, key: &str| {
        let rows = report["nodes"].as_array().unwrap();
        rows.iter().find(|row| row["node"] == name).unwrap()[key]
            .as_u64()
            .unwrap()
    };
    // Half each, if they had been there from the start and nothing had to be found out.
    assert!(bytes("w2", "sent_bytes") > LEN / 8, "{report:#}");
    assert!(bytes("r2", "received_bytes") > LEN / 8, "{report:#}");
    assert_eq!(
        bytes("r1", "received_bytes") + bytes("r2", "received_bytes"),
        LEN
    );
    for mut agent in agents {
        agent.kill().unwrap();
        agent.wait().unwrap();
    }
    lab.close().unwrap();
}

/// A sender `a`, a receiver `b` with as many interfaces, each on a network of its own, and the master `m`.
fn railed_lab(rates: &[u64]) -> (Lab, Vec<Child>) {
    let railed = |name| {
        let host = HostSpec::new(name);
        let nics = rates.iter().map(|rate| NicSpec::rate_bits(*rate));
        nics.fold(host, HostSpec::nic)
    };
    let master = HostSpec::new("m").nic(NicSpec::rate_bits(100_000_000));
    let builder = LabBuilder::new().host(railed("a")).host(railed("b"));
    let lab = builder.host(master).build().unwrap();
    let agents = ["a", "b"].map(|host| agent(&lab, host, 7420, &["/data:rw"]));
    (lab, agents.into())
}

/// Rails of the only pair by name, and the bytes they carried.
fn rails(report: &Value) -> Vec<(String, u64)> {
    let rail = |pair: &Value| {
        let name = pair["rail"].as_str().unwrap_or_default();
        (name.to_owned(), pair["bytes"].as_u64().unwrap())
    };
    report["pairs"]
        .as_array()
        .unwrap()
        .iter()
        .map(rail)
        .collect()
}

/// Two interfaces carry what they can, a slow one less, and `--rails` says which.
#[test]
fn interfaces_work_side_by_side() {
    if ropewalk_lab::skip("interfaces_work_side_by_side") {
        return;
    }
    let (lab, agents) = railed_lab(&[100_000_000, 50_000_000]);
    let data = bytes(24 << 20);
    std::fs::write(lab.path_in("a", "/data/set"), &data).unwrap();
    let copy = |rails: &str, name: &str| {
        let to = format!("b:7420:/data/{name}");
        master(
            &lab,
            "m",
            &["copy", "--rails", rails, "a:7420:/data/set", &to],
        )
    };
    let (status, report) = copy("auto", "both");
    assert_eq!(status, Some(0), "{report:#}");
    assert!(std::fs::read(lab.path_in("b", "/data/both")).unwrap() == data);
    let both = rails(&report);
    assert_eq!(both.len(), 2, "{both:?}");
    assert_ne!(both[0].0, both[1].0);
    let (fast, slow) = (both[0].1.max(both[1].1), both[0].1.min(both[1].1));
    assert!(slow > 4 << 20 && fast > slow, "{both:?}");
    // The second interface alone, by its name; and one of them.
    let nic = &lab.nics("b")[1];
    let other = format!("{},{}", nic.name, lab.nics("a")[1].name);
    let (status, report) = copy(&other, "second");
    assert_eq!(status, Some(0), "{report:#}");
    let second = rails(&report);
    let address = lab.addresses("b")[1].to_string();
    assert!(
        second.len() == 1 && second[0].0.contains(&nic.name),
        "{second:?} {address}"
    );
    let (status, report) = copy("one", "one");
    assert_eq!((status, rails(&report).len()), (Some(0), 1), "{report:#}");
    // A list that no interface is in is refused by name, before anything is made.
    let (status, report) = copy("10.99.0.0/16", "none");
    assert_eq!(status, Some(4), "{report:#}");
    let error = report["error"].as_str().unwrap();
    assert!(
        error.contains("10.99.0.0/16") && error.contains(&lab.nics("a")[0].name),
        "{error}"
    );
    assert!(!lab.path_in("b", "/data/none").exists());
    for mut agent in agents {
        agent.kill().unwrap();
        agent.wait().unwrap();
    }
    lab.close().unwrap();
}

/// Puts a rail of `host` out of work while bytes flow and in again; returns the report of a copy that must be whole.
fn with_a_break(
    host: &str,
    fails: impl Fn(&Lab, &str, bool) -> Result<(), ropewalk_lab::LabError>,
) -> Value {
    let (lab, agents) = railed_lab(&[50_000_000, 50_000_000]);
    let data = bytes(48 << 20);
    std::fs::write(lab.path_in("a", "/data/set"), &data).unwrap();
    give_token(&lab, "m");
    let mut command = lab.command("m", PROGRAM);
    command.args(["copy", "--json", "--token-file", "/run/token"]);
    command.args(["a:7420:/data/set", "b:7420:/data/copy"]);
    command
        .env("XDG_RUNTIME_DIR", "/run")
        .env("XDG_STATE_HOME", "/run");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut events = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let has = |event: &Value, bytes: u64| {
        event["event"] == "progress" && event["delivered_bytes"].as_u64() > Some(bytes)
    };
    assert!(events.by_ref().any(|event| has(&event, 6 << 20)));
    fails(&lab, host, true).unwrap();
    // The other rail alone brings this after the failure has been noticed.
    assert!(events.by_ref().any(|event| has(&event, 22 << 20)));
    fails(&lab, host, false).unwrap();
    let report = events.last().unwrap()["report"].clone();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{report:#}");
    assert!(std::fs::read(lab.path_in("b", "/data/copy")).unwrap() == data);
    for mut agent in agents {
        agent.kill().unwrap();
        agent.wait().unwrap();
    }
    lab.close().unwrap();
    report
}

/// Rails that fail in all ways, at either end, cost their capacity and nothing else, and work again once they can.
#[test]
fn rails_that_fail_are_given_up_and_taken_back() {
    if ropewalk_lab::skip("rails_that_fail_are_given_up_and_taken_back") {
        return;
    }
    type Fails = fn(&Lab, &str, bool) -> Result<(), ropewalk_lab::LabError>;
    let failures: [(&str, Fails); 5] = [
        ("silence", |lab, host, on| lab.blackhole(host, 1, on)),
        ("silence of the first", |lab, host, on| {
            lab.blackhole(host, 0, on)
        }),
        ("carrier", |lab, host, on| lab.plug(host, 1, !on)),
        ("link", |lab, host, on| match on {
            true => lab.link_down(host, 1),
            false => lab.link_up(host, 1),
        }),
        ("address", |lab, host, on| {
            let own = IpAddr::from([10, 1, 0, if host == "a" { 1 } else { 2 }]);
            match on {
                true => lab.delete_address(host, 1, own),
                false => lab.add_address(host, 1, own),
            }
        }),
    ];
    for (name, fails) in failures {
        for host in ["a", "b"] {
            // The master talks to b over its first interface, and would hear of no progress.
            if (name, host) == ("silence of the first", "b") {
                continue;
            }
            let report = with_a_break(host, fails);
            let mut carried: BTreeMap<String, usize> = BTreeMap::new();
            for (rail, bytes) in rails(&report) {
                *carried.entry(rail).or_default() += usize::from(bytes > 0);
            }
            let before_and_after = carried.values().any(|times| *times >= 2);
            assert!(before_and_after, "{name} at {host}: {carried:?}");
            assert_eq!(carried.len(), 2, "{name} at {host}: {carried:?}");
            let notes = report["notes"].to_string();
            // What happens at the receiver's own end the kernel tells; everything else shows by silence.
            let reason = match (name, host) {
                ("carrier" | "link" | "address", "b") => "lost its link or its address",
                _ => "silent while another rail",
            };
            assert!(
                notes.contains("one rail to a") && notes.contains(reason),
                "{name} at {host}: {notes}"
            );
        }
    }
}

/// Datagrams between hosts whose interfaces carry 100 Mbit/s: at a set rate, and at one that the lane finds by itself.
#[test]
fn datagrams_move_between_hosts() {
    if ropewalk_lab::skip("datagrams_move_between_hosts") {
        return;
    }
    let lab = lab(&["a", "b"], 100_000_000);
    let agents = [
        agent(&lab, "a", 7420, &["/data"]),
        agent(&lab, "b", 7420, &["/data:rw"]),
    ];
    let data = bytes(20 << 20);
    std::fs::write(lab.path_in("a", "/data/set"), &data).unwrap();
    let from = format!("{}:7420:/data/set", lab.address("a"));
    for (at, way) in [
        &["--lane", "rbudp", "--rate", "80Mbit"][..],
        &["--lane", "rapid"],
        &[
            "--lane",
            "rapid",
            "--rate",
            "80Mbit",
            "--monitor",
            "linux26",
        ],
    ]
    .iter()
    .enumerate()
    {
        let copy = format!("/data/copy{at}");
        let to = format!("{}:7420:{copy}", lab.address("b"));
        let args = [&["copy"][..], way, &[&from, &to]].concat();
        let (status, report) = master(&lab, "a", &args);
        assert_eq!(status, Some(0), "{report:#}");
        assert!(std::fs::read(lab.path_in("b", &copy)).unwrap() == data);
        assert_eq!(report["pairs"][0]["lane"], way[1], "{report:#}");
    }
    for mut agent in agents {
        agent.kill().unwrap();
        agent.wait().unwrap();
    }
    lab.close().unwrap();
}

/// Over a long path streams are opened and closed while bytes flow, and every byte is what and where it was.
#[test]
fn streams_are_tuned_over_a_trunk() {
    if ropewalk_lab::skip("streams_are_tuned_over_a_trunk") {
        return;
    }
    // 100 Mbit/s, 80 ms there and back, a queue of one bandwidth-delay product.
    let link = LinkSpec::rate_bits(100_000_000).delay(std::time::Duration::from_millis(40));
    let trunk = TrunkSpec {
        a_to_b: link.clone().queue(QueueLimit::Packets(666)),
        b_to_a: link.queue(QueueLimit::Packets(100_000)),
        ..TrunkSpec::default()
    };
    let clusters = ClusterSpec {
        hosts: [1, 1],
        access_bits_per_second: Some(1_000_000_000),
        trunk,
    };
    let lab = LabBuilder::from(Topology::clusters(&clusters))
        .congestion_control("cubic")
        .build()
        .unwrap();
    let data = bytes(60_000_000);
    std::fs::write(lab.path_in("a1", "/data/file"), &data).unwrap();
    let _agents = [
        agent(&lab, "a1", 7100, &["/data"]),
        agent(&lab, "b1", 7100, &["/tmp:rw"]),
    ];
    for (policy, streams) in [
        ("model", "auto"),
        ("simulate", "auto"),
        ("database", "auto"),
        ("off", "auto"),
        ("model", "2"),
    ] {
        let to = format!("/tmp/{policy}{streams}");
        let (status, report) = master(
            &lab,
            "b1",
            &[
                "copy",
                "--stripes",
                streams,
                "--streams-policy",
                policy,
                "a1:7100:/data/file",
                &format!("b1:7100:{to}"),
            ],
        );
        assert_eq!(status, Some(0), "{report:#}");
        assert!(
            std::fs::read(lab.path_in("b1", &to)).unwrap() == data,
            "{policy}: other bytes"
        );
        let most = report["pairs"][0]["streams"].as_u64().unwrap();
        println!(
            "{policy} {streams}: {most} streams at most, {} s",
            report["seconds"]
        );
        match (policy, streams) {
            ("off", _) => assert_eq!(most, 4, "{report:#}"),
            (_, "auto") => assert!(most > 4, "{policy}: only {most} streams\n{report:#}"),
            _ => assert_eq!(most, 2, "{report:#}"),
        }
    }
}

/// The queue before a slow link makes round trips as long as an ocean does; it is no long path.
#[test]
fn slow_links_keep_their_streams() {
    if ropewalk_lab::skip("slow_links_keep_their_streams") {
        return;
    }
    let lab = lab(&["a", "b"], 20_000_000);
    std::fs::write(lab.path_in("a", "/data/file"), bytes(5_000_000)).unwrap();
    let _agents = [
        agent(&lab, "a", 7100, &["/data"]),
        agent(&lab, "b", 7100, &["/tmp:rw"]),
    ];
    let copy = ["copy", "a:7100:/data/file", "b:7100:/tmp/file"];
    let (status, report) = master(&lab, "b", &copy);
    assert_eq!(status, Some(0), "{report:#}");
    assert_eq!(report["pairs"][0]["streams"], 4, "{report:#}");
}

/// Two masters of one user on one host, two transfers over one trunk: each says that the path is shared.
#[test]
fn transfers_share_a_trunk() {
    if ropewalk_lab::skip("transfers_share_a_trunk") {
        return;
    }
    let link = LinkSpec::rate_bits(50_000_000).delay(std::time::Duration::from_millis(20));
    let trunk = TrunkSpec::symmetric(link.queue(QueueLimit::Packets(200)));
    let clusters = ClusterSpec {
        hosts: [1, 1],
        access_bits_per_second: Some(1_000_000_000),
        trunk,
    };
    let builder = LabBuilder::from(Topology::clusters(&clusters));
    let lab = builder.congestion_control("cubic").build().unwrap();
    std::fs::write(lab.path_in("a1", "/data/file"), bytes(20_000_000)).unwrap();
    let _agents = [
        agent(&lab, "a1", 7100, &["/data"]),
        agent(&lab, "b1", 7100, &["/tmp:rw"]),
    ];
    give_token(&lab, "b1");
    let start = |name: &str| {
        let mut command = lab.command("b1", PROGRAM);
        command
            .args(["copy", "--json", "--speeds", "off"])
            .args(["--token-file", "/run/token", "a1:7100:/data/file"])
            .arg(format!("b1:7100:/tmp/{name}"))
            .env("XDG_RUNTIME_DIR", "/run")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let both = [start("one"), start("other")];
    let texts = both.map(|child| {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        text
    });
    // Who saw the other one when it planned has fewer streams from the start, and nothing to say.
    let is_told = texts
        .iter()
        .any(|text| text.contains("shared by 2 transfers"));
    assert!(is_told, "{texts:#?}");
    // Nothing is left of them.
    let left = std::fs::read_dir(lab.path_in("b1", "/run/ropewalk")).unwrap();
    assert_eq!(left.count(), 0);
}
