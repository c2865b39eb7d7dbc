//! Tunnels from end to end: connections of programs, with real processes.

mod common;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;

use common::processes::{assert_gone, family, kill_at_once};
use common::{DEADLINE, Moving, Place, Ran, bytes, make_ssh, start_agent, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Sends back what arrives on each connection, and its end; the address.
fn echo_at(address: &str) -> String {
    let listener = TcpListener::bind(address).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for socket in listener.incoming() {
            let socket = socket.unwrap();
            thread::spawn(move || {
                // A connection that is reset ends here.
                let _ = std::io::copy(&mut &socket, &mut &socket);
                let _ = socket.shutdown(Shutdown::Write);
            });
        }
    });
    address
}

fn echo() -> String {
    echo_at("127.0.0.1:0")
}

/// A port at which nothing listens.
fn refusing() -> String {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().to_string()
}

/// Kills a command that says nothing for too long, so that a wait for its events ends; until what is returned is dropped.
fn guard(command: u32) -> Sender<()> {
    let (sender, waiting) = channel();
    thread::spawn(move || {
        if waiting.recv_timeout(2 * DEADLINE) == Err(RecvTimeoutError::Timeout) {
            let _ = kill_process(Pid::from_raw(command as i32).unwrap(), Signal::KILL);
        }
    });
    sender
}

/// Runs a tunnel that ends by itself.
fn run(place: &Place, words: &[&str]) -> Ran {
    let mut command = place.command();
    command.arg("tunnel").args(words);
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = piped.spawn().unwrap();
    let _guard = guard(child.id());
    Ran(child.wait_with_output().unwrap())
}

/// A tunnel that has started, and the first address of each forward.
struct Tunnel {
    // Dropped first: the process is not waited for until then.
    _guard: Sender<()>,
    moving: Moving,
    listen: Vec<String>,
}

impl Tunnel {
    fn start(place: &Place, words: &[&str]) -> Self {
        let words: Vec<&str> = [&["tunnel"], words].concat();
        let mut moving = Moving::start(place, &words);
        let _guard = guard(moving.child.id());
        let started = moving.event("started");
        let forwards = started["forwards"].as_array().unwrap().iter();
        let listen = forwards.map(|forward| forward["listen"][0].as_str().unwrap().to_owned());
        Self {
            listen: listen.collect(),
            moving,
            _guard,
        }
    }

    fn connect(&self, forward: usize) -> TcpStream {
        let socket = TcpStream::connect(&self.listen[forward]).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        socket.set_write_timeout(Some(DEADLINE)).unwrap();
        socket
    }

    fn interrupt(&self) {
        let pid = Pid::from_raw(self.moving.child.id() as i32).unwrap();
        kill_process(pid, Signal::INT).unwrap();
    }
}

/// Sends bytes and their end while it reads; gives what is received until the other end.
fn around(mut socket: &TcpStream, data: &[u8]) -> Vec<u8> {
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut socket = socket;
            socket.write_all(data).unwrap();
            socket.shutdown(Shutdown::Write).unwrap();
        });
        let mut got = Vec::new();
        socket.read_to_end(&mut got).unwrap();
        got
    })
}

#[track_caller]
fn assert_reset(mut socket: &TcpStream) {
    let error = socket.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}

/// Each field of a report is in the documentation.
#[track_caller]
fn assert_documented(value: &Value) {
    let documented = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let text = std::fs::read_to_string(documented).unwrap();
    let (_, section) = text.split_once("## The report of a tunnel").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        if let Value::Object(fields) = value {
            for (name, value) in fields {
                assert!(section.contains(&format!("`{name}`")), "{name}");
                open.push(value);
            }
        }
        open.extend(value.as_array().into_iter().flatten());
    }
}

/// A little back and forth.
#[track_caller]
fn assert_echoes(mut socket: &TcpStream) {
    for text in [&b"one"[..], b"another"] {
        socket.write_all(text).unwrap();
        let mut got = vec![0; text.len()];
        socket.read_exact(&mut got).unwrap();
        assert_eq!(got, text);
    }
}

/// Connections are what TCP connections are: small and large, many at once, each way with an end of its own.
#[test]
fn connections_are_carried() {
    let place = Place::new();
    let forward = format!("0:{}", echo());
    let tunnel = Tunnel::start(&place, &["localhost", &forward]);
    assert_echoes(&tunnel.connect(0));
    let large = bytes(48 << 20, 1);
    let own = tunnel.connect(0);
    assert!(around(&own, &large) == large);
    thread::scope(|scope| {
        for seed in 0..60 {
            let tunnel = &tunnel;
            scope.spawn(move || {
                let data = bytes(20_011 * seed, seed as u64);
                assert!(around(&tunnel.connect(0), &data) == data, "{seed}");
            });
        }
    });
    tunnel.interrupt();
    let (status, report) = tunnel.moving.end();
    assert_eq!(status, 130);
    assert_eq!(report["outcome"], "cancelled");
    assert_eq!(report["connections"], 62);
    assert_eq!(report["reset_connections"], 0, "{report:#}");
    assert_documented(&report);
    let bytes = (48 << 20) + 20_011 * (60 * 59 / 2) + 10;
    let (sent, received) = (&report["sent_bytes"], &report["received_bytes"]);
    assert_eq!((sent, received), (&bytes.into(), &bytes.into()));
}

/// A target that refuses resets the connection, is named, and takes no other connection with it; so does a client that resets its own.
#[test]
fn resets_are_passed_on() {
    let place = Place::new();
    let none = refusing();
    let reset_seen = TcpListener::bind("127.0.0.1:0").unwrap();
    let forwards = [
        format!("0:{}", echo()),
        format!("0:{none}"),
        format!("0:{}", reset_seen.local_addr().unwrap()),
    ];
    let mut tunnel = Tunnel::start(
        &place,
        &["localhost", &forwards[0], &forwards[1], &forwards[2]],
    );
    let steady = tunnel.connect(0);
    assert_echoes(&steady);
    assert_reset(&tunnel.connect(1));
    let note = tunnel.moving.event("note");
    let message = note["message"].as_str().unwrap();
    assert!(
        message.contains(&none) && message.contains("refused"),
        "{message}"
    );
    // One that resets itself.
    let mut client = tunnel.connect(2);
    client.write_all(b"x").unwrap();
    let (server, _) = reset_seen.accept().unwrap();
    server.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut got = [0];
    (&server).read_exact(&mut got).unwrap();
    rustix::net::sockopt::set_socket_linger(&client, Some(std::time::Duration::ZERO)).unwrap();
    drop(client);
    assert_reset(&server);
    // One whose target does: both programs know, and nothing is noted.
    let client = tunnel.connect(2);
    let (server, _) = reset_seen.accept().unwrap();
    rustix::net::sockopt::set_socket_linger(&server, Some(std::time::Duration::ZERO)).unwrap();
    drop(server);
    assert_reset(&client);
    assert_echoes(&steady);
    tunnel.interrupt();
    let (_, report) = tunnel.moving.end();
    assert_eq!(report["notes"].as_array().unwrap().len(), 1, "{report:#}");
}

/// Of a remote forward the node listens and this host connects: all that connections can do, beside a forward the other way; targets that refuse are
/// named, and when the tunnel has ended nothing listens.
#[test]
fn remote_forwards_are_carried() {
    let place = Place::new();
    let (target, none) = (echo(), refusing());
    let remote = [format!("0:{target}"), format!("127.0.0.1:0:{none}")];
    let words = [
        "localhost",
        "-R",
        &remote[0],
        &format!("0:{target}"),
        "-R",
        &remote[1],
    ];
    let mut tunnel = Tunnel::start(&place, &words);
    let all = family(tunnel.moving.child.id() as i32);
    assert_echoes(&tunnel.connect(0));
    assert_echoes(&tunnel.connect(1));
    let large = bytes(16 << 20, 1);
    assert!(around(&tunnel.connect(1), &large) == large);
    thread::scope(|scope| {
        for seed in 0..40 {
            let tunnel = &tunnel;
            scope.spawn(move || {
                let data = bytes(20_011 * seed, seed as u64);
                assert!(around(&tunnel.connect(1), &data) == data, "{seed}");
            });
        }
    });
    assert_reset(&tunnel.connect(2));
    let note = tunnel.moving.event("note");
    let message = note["message"].as_str().unwrap();
    assert!(message.contains(&none), "{message}");
    let open = tunnel.connect(1);
    assert_echoes(&open);
    tunnel.interrupt();
    let listen = tunnel.listen.clone();
    let (status, report) = tunnel.moving.end();
    assert_eq!(status, 130);
    assert_reset(&open);
    assert_documented(&report);
    let remote = report["forwards"].as_array().unwrap().iter();
    let remote: Vec<bool> = remote.map(|one| one["remote"] == true).collect();
    assert_eq!(remote, [false, true, true]);
    assert_eq!(
        (&report["connections"], &report["reset_connections"]),
        (&45.into(), &1.into())
    );
    assert_gone(&all);
    for address in &listen {
        assert!(TcpStream::connect(address).is_err(), "{address}");
    }
}

/// A standing agent listens where its operator allows it, and nowhere else, and no longer than the command is there.
#[test]
fn agents_listen_where_they_are_allowed_to() {
    let place = Place::new();
    let token = place.make_token();
    let target = echo();
    let agent = |words: &[&str]| {
        let mut command = place.command();
        command.args(["agent", "--while-stdin", "--listen", "127.0.0.1:0"]);
        start_agent({
            command.args(words);
            command
        })
    };
    let one = refusing();
    let port = one.rsplit_once(':').unwrap().1;
    let strict = agent(&["--forward", &target]);
    let open = agent(&["--forward-listen", port]);
    let options = place.path("options.toml");
    let text = format!(
        "token-file = '{}'\nforward-listen = ['*']\n",
        token.display()
    );
    std::fs::write(&options, text).unwrap();
    let by_file = agent(&["--config", options.to_str().unwrap()]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().port();
    for (agent, bind, said) in [
        (&strict, "0", "--forward-listen 'localhost:*'"),
        (&open, "0", "does not listen on localhost:0 for tunnels"),
        (&open, &format!("*:{port}"), "--forward-listen '*:"),
        (&by_file, "127.0.0.1:0", "--forward-listen '127.0.0.1:*'"),
        (
            &by_file,
            &taken.to_string(),
            "another program listens there",
        ),
    ] {
        let at = format!("127.0.0.1:{}", agent.port);
        let ran = run(&place, &[&at, "-R", &format!("{bind}:{target}")]);
        ran.assert_status(4).assert_says(said);
    }
    for (agent, bind) in [(&open, port), (&by_file, "0")] {
        let at = format!("127.0.0.1:{}", agent.port);
        let tunnel = Tunnel::start(&place, &[&at, "-R", &format!("{bind}:{target}")]);
        assert_echoes(&tunnel.connect(0));
        // Its agent finds the command gone, and leaves the port to others.
        kill_at_once(&[tunnel.moving.child.id() as i32]);
        wait_for("the port to be free", || {
            TcpStream::connect(&tunnel.listen[0]).err()
        });
    }
}

/// A standing agent connects where its operator allows it, and nowhere else; its file of options may say so.
#[test]
fn agents_forward_where_they_are_allowed_to() {
    let place = Place::new();
    let token = place.make_token();
    let (one, other) = (echo(), echo());
    let agent = |words: &[&str]| {
        let mut command = place.command();
        command.args(["agent", "--while-stdin", "--listen", "127.0.0.1:0"]);
        start_agent({
            command.args(words);
            command
        })
    };
    let strict = agent(&["--root", place.path("").to_str().unwrap()]);
    let open = agent(&["--forward", &one]);
    let options = place.path("options.toml");
    let text = format!(
        "token-file = '{}'\nforward = ['x:1', '127.0.0.1:*']\n",
        token.display()
    );
    std::fs::write(&options, text).unwrap();
    let by_file = agent(&["--config", options.to_str().unwrap()]);
    let forward = |target: &str| format!("0:{target}");
    for (agent, target) in [(&strict, &one), (&open, &other)] {
        let at = format!("127.0.0.1:{}", agent.port);
        let ran = run(&place, &[&at, &forward(target)]);
        ran.assert_status(4)
            .assert_says(&format!("does not forward to {target}"))
            .assert_says(&format!("--forward {target}"));
    }
    for (agent, target) in [(&open, &one), (&by_file, &other)] {
        let at = format!("127.0.0.1:{}", agent.port);
        let tunnel = Tunnel::start(&place, &[&at, &forward(target)]);
        assert_echoes(&tunnel.connect(0));
    }
    std::fs::write(&options, "forward = ['x']\n").unwrap();
    let words = ["agent", "--config", "options.toml"];
    place
        .run(&words)
        .assert_status(2)
        .assert_says("`x` is no HOST:PORT");
}

/// An agent that is killed ends the tunnel, which names it and resets its connections.
#[test]
fn agents_that_are_killed_are_named() {
    let place = Place::new();
    place.make_token();
    let target = echo();
    let mut command = place.command();
    command.args([
        "agent",
        "--while-stdin",
        "--listen",
        "127.0.0.1:0",
        "--forward",
    ]);
    command.arg(&target);
    let mut agent = start_agent(command);
    let at = format!("127.0.0.1:{}", agent.port);
    let tunnel = Tunnel::start(&place, &[&at, &format!("0:{target}")]);
    let socket = tunnel.connect(0);
    assert_echoes(&socket);
    agent.kill();
    let (status, report) = tunnel.moving.end();
    assert_eq!(status, 1);
    let error = report["error"].as_str().unwrap();
    assert!(error.contains(&format!("{at} is lost")), "{error}");
    assert_eq!(report["error_kind"], "lost");
    let notes = report["notes"].to_string();
    assert!(notes.contains("the control connection"), "{notes}");
    assert_reset(&socket);
}

/// Ctrl-C ends a tunnel and all that belongs to it: connections are reset at both ends, no process is left, and the agent of
/// another one stays.
#[test]
fn an_interrupt_leaves_nothing() {
    let place = Place::new();
    place.make_token();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = server.local_addr().unwrap().to_string();
    let mut command = place.command();
    command.args([
        "agent",
        "--while-stdin",
        "--listen",
        "127.0.0.1:0",
        "--forward",
    ]);
    let agent = start_agent({
        command.arg(&target);
        command
    });
    for node in ["localhost".to_owned(), format!("127.0.0.1:{}", agent.port)] {
        let tunnel = Tunnel::start(&place, &[&node, &format!("0:{target}")]);
        let all = family(tunnel.moving.child.id() as i32);
        let mut client = tunnel.connect(0);
        client.write_all(b"x").unwrap();
        let (far, _) = server.accept().unwrap();
        far.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut got = [0];
        (&far).read_exact(&mut got).unwrap();
        tunnel.interrupt();
        let (status, report) = tunnel.moving.end();
        assert_eq!(
            (status, &report["error_kind"]),
            (130, &"interrupted".into())
        );
        assert_reset(&client);
        assert_reset(&far);
        assert_gone(&all);
    }
}

/// Addresses of IPv6, at all ends.
#[test]
fn ipv6_is_carried() {
    if TcpListener::bind("[::1]:0").is_err() {
        return eprintln!("SKIPPED ipv6_is_carried: this host has no IPv6");
    }
    let place = Place::new();
    place.make_token();
    let target = echo_at("[::1]:0");
    let mut command = place.command();
    command.args(["agent", "--while-stdin", "--listen", "[::1]:0", "--forward"]);
    let agent = start_agent({
        command.arg(&target);
        command
    });
    let at = format!("[::1]:{}", agent.port);
    let tunnel = Tunnel::start(&place, &[&at, &format!("[::1]:0:{target}")]);
    assert!(
        tunnel.listen[0].starts_with("[::1]:"),
        "{:?}",
        tunnel.listen
    );
    assert_echoes(&tunnel.connect(0));
}

/// What cannot begin ends with the status that says whose turn it is.
#[test]
fn what_cannot_begin_says_why() {
    let place = Place::new();
    place.make_token();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let none = refusing();
    let cases: [(&[&str], i32, &str); 6] = [
        (&["localhost"], 2, "required"),
        (
            &["localhost", "80:db"],
            2,
            "write [BIND:]PORT:HOST:HOSTPORT",
        ),
        (&["a[1-2]", "0:db:80"], 2, "names 2 hosts"),
        (
            &["localhost", &format!("{port}:db:80")],
            4,
            "another program listens there",
        ),
        (&[&none, "0:db:80"], 4, "start `ropewalk agent` there"),
        (
            &["--rails", "eth99", "localhost", "0:db:80"],
            4,
            "no interface of this host is eth99",
        ),
    ];
    for (words, status, said) in cases {
        run(&place, words).assert_status(status).assert_says(said);
    }
}

/// A tunnel outlives the ssh that started its agent: bytes do not need it. The agent ends with the tunnel.
#[test]
fn tunnels_outlive_their_control_connection() {
    let place = Place::new();
    let target = echo();
    // What an agent reads and writes passes through two processes, which can be ended without it; nothing else has its pipes.
    let relays = "cut) exec 3<&0 4>&1; \
        cat <&3 3<&- 4>&- | setsid sh -c \"$*\" 3<&- 4>&- | cat >&4 3<&- 4>&- & \
        exec 3<&- 4>&- </dev/null >/dev/null; wait; exit ;;";
    let ssh = make_ssh(&place, relays);
    let program = env!("CARGO_BIN_EXE_ropewalk");
    let forward = format!("0:{target}");
    let words = ["--ssh", &ssh, "--remote-path", program, "cut", &forward];
    let mut tunnel = Tunnel::start(&place, &words);
    let socket = tunnel.connect(0);
    assert_echoes(&socket);
    let all = family(tunnel.moving.child.id() as i32);
    let is = |pid: &i32, name: &str| {
        let read = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        read.is_ok_and(|text| text.trim() == name)
    };
    let relays: Vec<i32> = all.iter().copied().filter(|pid| is(pid, "cat")).collect();
    assert_eq!(relays.len(), 2);
    kill_at_once(&relays);
    let lost = |event: &Value| {
        let message = event["message"].as_str().unwrap();
        message.contains("the control connection to cut is lost")
    };
    while !lost(&tunnel.moving.event("note")) {}
    assert_echoes(&socket);
    let data = bytes(4 << 20, 2);
    assert!(around(&tunnel.connect(0), &data) == data);
    tunnel.interrupt();
    let (status, _) = tunnel.moving.end();
    assert_eq!(status, 130);
    assert_gone(&all);
}

/// Without a terminal a tunnel says where it listens, on standard output, and what happens to it; no live line.
#[test]
fn a_tunnel_in_a_pipe_is_quiet() {
    let place = Place::new();
    let mut command = place.command();
    let none = refusing();
    command.args(["tunnel", "localhost", &format!("127.0.0.1:0:{none}")]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let _guard = guard(child.id());
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    let at = line.strip_prefix("listening on ").unwrap();
    let (address, rest) = at.split_once(',').unwrap();
    assert_eq!(rest, format!(" to {none} from localhost\n"));
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    assert_reset(&socket);
    let mut errors = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut note = String::new();
    std::io::BufRead::read_line(&mut errors, &mut note).unwrap();
    assert!(note.starts_with("note: a connection was reset"), "{note}");
    let pid = Pid::from_raw(child.id() as i32).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let ended = wait_for("the end", || child.try_wait().unwrap());
    assert_eq!(ended.code(), Some(130));
    let mut rest = String::new();
    errors.read_to_string(&mut rest).unwrap();
    assert!(
        rest.starts_with("ended after ") && rest.contains("1 connections, 1 of them reset"),
        "{rest}"
    );
    // Nothing else was said.
    assert_eq!(rest.lines().count(), 1, "{rest}");
}

/// A running tunnel is listed with what it has carried, here and at its agent, counted by this, and ends when it is cancelled.
#[test]
fn a_running_tunnel_is_listed_and_cancelled() {
    let place = Place::new();
    place.make_token();
    let target = echo();
    let mut command = place.command();
    let listen = ["--listen", "127.0.0.1:0", "--forward", &target];
    command.arg("agent").args(listen).args(["--root", "home"]);
    let agent = start_agent(command);
    let at = format!("127.0.0.1:{}", agent.port);
    let tunnel = Tunnel::start(&place, &[&at, &format!("0:{target}")]);
    let socket = tunnel.connect(0);
    let data = bytes(300_000, 1);
    assert_eq!(around(&socket, &data), data);
    let open = tunnel.connect(0);
    (&open).write_all(b"x").unwrap();
    (&open).read_exact(&mut [0]).unwrap();
    let read = |words: &[&str]| -> Value {
        let ran = place.run(words).assert_status(0);
        serde_json::from_str(&ran.out()).unwrap()
    };
    let is_counted = |one: &Value| {
        let figure = |name: &str| one[name].as_u64().unwrap();
        let bytes = (figure("sent_bytes"), figure("received_bytes"));
        let connections = (figure("open_connections"), figure("connections"));
        bytes == (300_001, 300_001) && connections == (1, 2)
    };
    wait_for("the command to count them", || {
        let all = read(&["status", "--json"]);
        assert_eq!(all[0]["kind"], "tunnel", "{all:#}");
        (all[0]["carried"].is_object() && is_counted(&all[0]["carried"])).then_some(())
    });
    let text = place.run(&["status"]).assert_status(0).out();
    let words = "  tunnel, 1 connection open, 2 in all, 300 kB out, 300 kB in, for ";
    assert!(text.contains(words), "{text}");
    assert!(text.contains(&format!(" -> {target} from {at}")), "{text}");
    let own = read(&["status", "--json", "--agent", &at]);
    assert!(own[0]["kind"] == "tunnel" && is_counted(&own[0]), "{own:#}");
    let agents = read(&["agents", "--json", &at]);
    assert_eq!(
        [&agents[0]["tunnels"], &agents[0]["tunnel_connections"]],
        [1, 1]
    );
    assert_eq!(agents[0]["received_bytes"], 300_001, "{agents:#}");
    assert_eq!(agents[0]["forwards"], serde_json::json!([target]));
    let process = tunnel.moving.child.id().to_string();
    place
        .run(&["limit", &process, "1Mbit"])
        .assert_status(1)
        .assert_says("it is a tunnel");
    place.run(&["cancel", &process]).assert_status(0);
    let (status, report) = tunnel.moving.end();
    assert_eq!((status, &report["outcome"]), (130, &"cancelled".into()));
    wait_for("the agent to end it", || {
        let agents = read(&["agents", "--json", &at]);
        // What it carried still counts.
        assert_eq!(agents[0]["received_bytes"], 300_001, "{agents:#}");
        (agents[0]["tunnels"] == 0).then_some(())
    });
    assert_eq!(place.run(&["status"]).out(), "no transfers\n");
}

/// An agent ends its part of a tunnel, and with that the tunnel.
#[test]
fn a_tunnel_is_cancelled_at_its_agent() {
    let place = Place::new();
    place.make_token();
    let target = echo();
    let mut command = place.command();
    let listen = ["--listen", "127.0.0.1:0", "--forward", &target];
    command.arg("agent").args(listen).args(["--root", "home"]);
    let agent = start_agent(command);
    let at = format!("127.0.0.1:{}", agent.port);
    let tunnel = Tunnel::start(&place, &[&at, &format!("0:{target}")]);
    place
        .run(&["cancel", "--all", "--agent", &at])
        .assert_status(0)
        .assert_says("cancelled 1 transfer");
    let (status, report) = tunnel.moving.end();
    assert_eq!((status, &report["outcome"]), (1, &"failed".into()));
}
