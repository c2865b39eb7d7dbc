//! Agents as a service of their host: what they say to its manager and journal, their file of options, their metrics, who lists
//! them, and the package that installs them.

mod common;

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{DEADLINE, Place, RunningAgent, bytes, start_agent, wait_for};
use rustix::process::{Pid, Signal, kill_process};

/// The folder of the project.
fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// An agent of this command, with the lines in which it says where it listens, up to one that starts like this.
fn start_saying(mut command: Command, last: &str) -> (RunningAgent, Vec<String>) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        said.push(line.unwrap());
        if said.last().unwrap().starts_with(last) {
            break;
        }
    }
    let port = said[0].rsplit_once(':').unwrap().1.parse().unwrap();
    (RunningAgent { child, port }, said)
}

/// An HTTP request, and the whole answer.
fn ask(at: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let end = "HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n";
    stream
        .write_all(format!("{request} {end}").as_bytes())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The value of one metric.
fn value(at: &str, name: &str) -> u64 {
    let text = ask(at, "GET /metrics");
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    let line = text.lines().find_map(|line| {
        let (found, value) = line.split_once(' ')?;
        (found == name).then(|| value.parse().unwrap())
    });
    line.unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// The service manager hears when the agent listens, and when it ends; nothing is said to nowhere.
#[test]
fn the_service_manager_is_notified() {
    let place = Place::new();
    place.make_token();
    let manager = UnixDatagram::bind(place.path("notify")).unwrap();
    manager.set_read_timeout(Some(DEADLINE)).unwrap();
    let heard = || {
        let mut text = [0; 1024];
        let read = manager.recv(&mut text).unwrap();
        String::from_utf8(text[..read].to_vec()).unwrap()
    };
    let mut command = place.command();
    command.env("NOTIFY_SOCKET", place.path("notify"));
    command.args(["agent", "--listen", "127.0.0.1:0", "--root", "."]);
    let mut agent = start_agent(command);
    let first = heard();
    assert!(first.contains("READY=1"), "{first}");
    let at = format!("STATUS=listening on 127.0.0.1:{}", agent.port);
    assert!(first.contains(&at), "{first}");
    kill_process(Pid::from_child(&agent.child), Signal::TERM).unwrap();
    assert!(heard().contains("STOPPING=1"));
    assert!(agent.child.wait().unwrap().success());

    let mut command = place.command();
    command.env("NOTIFY_SOCKET", place.path("notify"));
    let serving = common::serving::Serving::of({
        command.arg("serve");
        command
    });
    assert!(heard().contains("READY=1"));
    serving.signal(Signal::TERM);
    assert!(heard().contains("STOPPING=1"));
}

/// Lines for the journal have levels and no times; lines for a file have times.
#[test]
fn the_journal_gets_levels() {
    let place = Place::new();
    place.make_token();
    let read = || std::fs::read_to_string(place.path("journal")).unwrap();
    let write = File::create(place.path("journal")).unwrap();
    let found = rustix::fs::fstat(&write).unwrap();
    let mut command = place.command();
    command.env(
        "JOURNAL_STREAM",
        format!("{}:{}", found.st_dev, found.st_ino),
    );
    command.args(["agent", "--listen", "127.0.0.1:0", "--root", "home"]);
    command.stderr(write);
    let mut agent = start_agent(command);
    std::fs::write(place.path("secret"), "x").unwrap();
    place
        .run(&["copy", &agent.at(place.path("secret")), "copy"])
        .assert_status(4);
    drop(TcpStream::connect(("127.0.0.1", agent.port)).unwrap());
    // On a busy machine it would end before it has noticed the connection.
    wait_for("the stranger to be noticed", || {
        read().contains("<5>").then_some(())
    });
    kill_process(Pid::from_child(&agent.child), Signal::TERM).unwrap();
    agent.child.wait().unwrap();
    let text = read();
    let levels: Vec<&str> = text.lines().map(|line| &line[..3]).collect();
    assert!(
        levels.contains(&"<4>") && text.contains(": refused, "),
        "{text}"
    );
    assert!(levels.contains(&"<5>"), "{text}");
    assert!(
        levels.iter().all(|level| level.starts_with('<')) && !text.contains("Z "),
        "{text}"
    );

    let log = File::create(place.path("log")).unwrap();
    let mut command = place.command();
    command.env("JOURNAL_STREAM", "1:1").stderr(log);
    command.args(["agent", "--listen", "127.0.0.1:0", "--root", "home"]);
    let agent = start_agent(command);
    drop(TcpStream::connect(("127.0.0.1", agent.port)).unwrap());
    wait_for("a line with its time", || {
        let text = std::fs::read_to_string(place.path("log")).unwrap();
        text.contains("Z 127.0.0.1:").then_some(())
    });
}

/// A file has the options of a standing agent; the command line counts first; what is wrong is named with its place.
#[test]
fn options_are_read_from_a_file() {
    let place = Place::new();
    let token = place.make_token();
    let (a, b) = (place.text("home"), place.text("runtime"));
    let config = place.text("agent.toml");
    let text = format!("listen = ['127.0.0.1:0']\nroot = ['{a}:rw', '{b}']\n");
    std::fs::write(&config, &text).unwrap();
    let start = |more: &[&str]| {
        let mut command = place.command();
        command.args(["agent", "--config", &config]).args(more);
        start_agent(command)
    };
    let token = token.to_str().unwrap();
    let roots = |agent: &RunningAgent| {
        let at = format!("127.0.0.1:{}", agent.port);
        let ran = place.run(&["agents", "--json", "--token-file", token, &at]);
        let line: serde_json::Value = serde_json::from_str(&ran.assert_status(0).out()).unwrap();
        line[0]["roots"].clone()
    };
    assert_eq!(
        roots(&start(&[])),
        serde_json::json!([format!("{a}:rw"), b])
    );
    assert_eq!(roots(&start(&["--root", &b])), serde_json::json!([b]));

    for (text, part) in [
        ("root = '/data'", "agent.toml: TOML parse error"),
        ("roots = ['/data']", "unknown field `roots`"),
        ("listen = ['[::]:1']", "agent.toml has no root"),
    ] {
        std::fs::write(&config, text).unwrap();
        place
            .run(&["agent", "--config", &config])
            .assert_status(2)
            .assert_says(part);
    }
    place
        .run(&["agent", "--config", "none.toml"])
        .assert_status(2)
        .assert_says("--config none.toml: ");
}

/// Metrics count what a transfer has moved, and what was refused; another path or method is an error of HTTP.
#[test]
fn metrics_count_what_moves() {
    let place = Place::new();
    place.make_token();
    std::fs::write(place.path("home/file"), bytes(300_000, 1)).unwrap();
    std::fs::create_dir(place.path("to")).unwrap();
    let start = |root: &str| {
        let mut command = place.command();
        let listen = ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"];
        command.arg("agent").args(listen).args(["--root", root]);
        let (agent, said) = start_saying(command, "metrics at ");
        let at = said[1].strip_prefix("metrics at http://").unwrap();
        let at = at.strip_suffix("/metrics").unwrap().to_owned();
        (agent, at)
    };
    let (from, sender) = start("home");
    let (to, receiver) = start("to:rw");
    assert_eq!(value(&sender, "ropewalk_transfers_begun_total"), 0);
    let place_of = |agent: &RunningAgent, name: &str| agent.at(place.path(name));
    for run in 1..=2 {
        let copy = format!("to/copy{run}");
        place
            .run(&["copy", &place_of(&from, "home/file"), &place_of(&to, &copy)])
            .assert_status(0);
        // An agent hears of the end after its command has ended.
        wait_for("both agents to end it", || {
            let running = |at: &String| value(at, "ropewalk_transfers");
            (running(&sender) + running(&receiver) == 0).then_some(())
        });
        assert_eq!(value(&sender, "ropewalk_transfers_begun_total"), run);
        // With the headers of frames.
        let sent = value(&sender, "ropewalk_sent_bytes_total");
        assert!((run * 300_000..run * 301_000).contains(&sent), "{sent}");
        let stored = value(&receiver, "ropewalk_stored_bytes_total");
        assert_eq!(stored, run * 300_000);
        assert_eq!(
            value(&receiver, "ropewalk_received_bytes_total"),
            run * 300_000
        );
        assert_eq!(value(&receiver, "ropewalk_sent_bytes_total"), 0);
    }
    assert_eq!(value(&sender, "ropewalk_refused_requests_total"), 0);
    place
        .run(&["copy", &place_of(&from, "to/copy1"), "copy"])
        .assert_status(4);
    assert_eq!(value(&sender, "ropewalk_refused_requests_total"), 1);
    drop(TcpStream::connect(("127.0.0.1", from.port)).unwrap());
    wait_for("the stranger to be counted", || {
        (value(&sender, "ropewalk_unauthenticated_connections_total") == 1).then_some(())
    });

    assert!(ask(&sender, "GET /").starts_with("HTTP/1.1 404 "));
    assert!(ask(&sender, "POST /metrics").starts_with("HTTP/1.1 405 "));
    assert!(ask(&sender, "GET /metrics").ends_with("# EOF\n"));
    place
        .run(&["agent", "--root", "home", "--metrics", &sender])
        .assert_status(1)
        .assert_says("--metrics: cannot listen there");
    place
        .run(&["agent", "--root", "home", "--metrics", "7"])
        .assert_status(2)
        .assert_says("--metrics 7: write ADDR:PORT");
}

/// Each agent has a line in the order asked, whether it answers or not, and the status says whether all do.
#[test]
fn agents_are_listed() {
    let place = Place::new();
    place.make_token();
    std::fs::write(place.path("home/file"), bytes(5000, 1)).unwrap();
    let agent = place.agent(&place.path("home"));
    place
        .run(&["copy", &agent.at(place.path("home/file")), "copy"])
        .assert_status(0);
    let at = format!("127.0.0.1:{}", agent.port);
    let mut gone = place.agent(&place.path("home"));
    gone.kill();
    let dead = format!("127.0.0.1:{}", gone.port);
    wait_for("the transfer's end", || {
        let out = place.run(&["agents", &at]).assert_status(0).out();
        out.contains(" 0 running of 1 transfers,").then_some(())
    });
    let ran = place.run(&["agents", &dead, &at]).assert_status(3);
    let out = ran.out();
    let lines: Vec<&str> = out.lines().collect();
    assert!(
        lines[0].starts_with(&dead) && lines[0].contains("does not answer: "),
        "{out}"
    );
    assert!(
        lines[1].starts_with(&at) && lines[1].contains(" kB, received 0 B"),
        "{out}"
    );
    assert!(lines[1].ends_with("/home:rw"), "{out}");
    let ran = place
        .run(&["agents", "--json", &dead, &at])
        .assert_status(3);
    let all: serde_json::Value = serde_json::from_str(&ran.out()).unwrap();
    assert_eq!(all[0]["agent"], dead);
    assert!(all[0]["error"].is_string() && all[0]["version"].is_null());
    assert!(all[1]["sent_bytes"].as_u64().unwrap() >= 5000);
    assert!(all[1]["error"].is_null());
    place.run(&["agents", &dead]).assert_status(1);
    let other = place.text("other");
    place
        .run(&["agent", "--new-token", &other])
        .assert_status(0);
    place
        .run(&["agents", "--token-file", &other, &at])
        .assert_status(1)
        .assert_says("does not answer: ");
}

/// The package has program, pages, completions and units; the units are right in the eyes of systemd.
#[test]
fn the_debian_package_is_whole() {
    let place = Place::new();
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !has("dpkg-deb") || !has("readelf") {
        eprintln!("SKIPPED: there is no dpkg-deb or readelf here");
        return;
    }
    let made = Command::new(project().join("scripts/debian-package"))
        .args(["--program", env!("CARGO_BIN_EXE_ropewalk"), "--out"])
        .arg(place.path("out"))
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let package = String::from_utf8(made.stdout).unwrap();
    let package = package.trim();
    let root = place.path("root");
    let unpacked = Command::new("dpkg-deb")
        .args(["-x", package])
        .arg(&root)
        .status();
    assert!(unpacked.unwrap().success());
    let program = root.join("usr/bin/ropewalk");
    let ran = Command::new(&program).arg("--version").output().unwrap();
    assert!(ran.stdout.starts_with(b"ropewalk "));
    for file in [
        "etc/ropewalk/agent.toml",
        "usr/share/man/man1/ropewalk.1.gz",
        "usr/share/man/man1/ropewalk-copy.1.gz",
        "usr/share/bash-completion/completions/ropewalk",
        "usr/share/doc/ropewalk/copyright",
    ] {
        assert!(root.join(file).is_file(), "{file}");
    }
    let field = |name: &str| {
        let ran = Command::new("dpkg-deb")
            .args(["-f", package, name])
            .output();
        String::from_utf8(ran.unwrap().stdout).unwrap()
    };
    assert_eq!(field("Package"), "ropewalk\n");
    assert!(
        field("Depends").starts_with("libc6 (>= 2."),
        "{}",
        field("Depends")
    );
    let scripts = Command::new("dpkg-deb")
        .args(["-I", package, "postinst"])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&scripts.stdout).contains("useradd --system"));

    if !has("systemd-analyze") {
        eprintln!("SKIPPED: there is no systemd-analyze here");
        return;
    }
    for unit in ["ropewalk-agent.service", "ropewalk-serve.service"] {
        let text = std::fs::read_to_string(root.join("usr/lib/systemd/system").join(unit)).unwrap();
        // The program is not installed on this host.
        let text = text.replace("/usr/bin/ropewalk", program.to_str().unwrap());
        let text = text.replace("Documentation=man:", "Documentation=https://");
        let path = place.path(unit);
        std::fs::write(&path, text).unwrap();
        let verified = Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(&path)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&verified.stderr).into_owned();
        let own: Vec<&str> = said.lines().filter(|line| line.contains(unit)).collect();
        assert!(verified.status.success() && own.is_empty(), "{said}");
    }
}
