//! Senders and receivers as processes, as people run them.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longest time that anything may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

const PROGRAM: &str = env!("CARGO_BIN_EXE_multisocket");

/// A running side; ended when dropped.
struct Side(Child);

/// How a side ended.
#[derive(Debug)]
struct Ended {
    status: i32,
    out: String,
    err: String,
}

impl Side {
    fn spawn(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null());
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    fn start(line: &str) -> Self {
        Self::spawn(Command::new(PROGRAM).args(line.split_whitespace()))
    }

    /// Starts a receiver on a port that the system chooses, and waits until it listens there.
    fn listening(line: &str) -> (Self, u16) {
        let mut side = Self::start(&format!("-r -p 0 {line}"));
        let mut told = String::new();
        BufReader::new(side.0.stderr.as_mut().unwrap())
            .read_line(&mut told)
            .unwrap();
        let port = told.trim().rsplit_once(':').map(|(_, port)| port.parse());
        let port = port.unwrap_or_else(|| panic!("no port in {told:?}"));
        (side, port.unwrap())
    }

    fn signal(&self, name: &str) {
        let id = self.0.id().to_string();
        let status = Command::new("kill").args(["-s", name, &id]).status();
        assert!(status.unwrap().success());
    }

    /// Waits until its threads move bytes.
    fn moves(&self) {
        let tasks = format!("/proc/{}/task", self.0.id());
        wait_for("threads that move bytes", || {
            let tasks = std::fs::read_dir(&tasks).ok()?;
            let mut names = tasks.filter_map(|task| {
                let path = task.ok()?.path().join("comm");
                std::fs::read_to_string(path).ok()
            });
            names.any(|name| name.trim() == "mover").then_some(())
        });
    }

    fn end(mut self) -> Ended {
        let mut ended = Ended {
            status: -1,
            out: String::new(),
            err: String::new(),
        };
        let out = self.0.stdout.take().unwrap();
        BufReader::new(out).read_to_string(&mut ended.out).unwrap();
        let err = self.0.stderr.take().unwrap();
        BufReader::new(err).read_to_string(&mut ended.err).unwrap();
        ended.status = self.0.wait().unwrap().code().unwrap_or(-1);
        ended
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Ended {
    #[track_caller]
    fn assert(&self, status: i32, part: &str) {
        let is_said = self.err.contains(part) || self.out.contains(part);
        assert!(
            self.status == status && is_said,
            "no {part:?} with status {status}: {self:?}"
        );
    }

    #[track_caller]
    fn json(&self) -> Value {
        assert_eq!(self.status, 0, "{self:?}");
        serde_json::from_str(&self.out).unwrap()
    }
}

#[track_caller]
fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < DEADLINE, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

/// A loopback address that no other test uses, so that ports need not be shared.
fn own_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let process = std::process::id();
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("127.{}.{}.{next}", 1 + process % 250, process / 250 % 250)
}

/// Checks the form of a line and that its numbers fit together; gives the bytes.
#[track_caller]
fn bytes_of(line: &str, name: &str) -> u64 {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [
        first,
        "et",
        seconds,
        "bytes",
        bytes,
        "Mbytes/sec",
        rate,
        user,
        system,
        memory,
        swaps,
    ] = words[..]
    else {
        panic!("{line:?}");
    };
    assert_eq!(first, name);
    let number = |text: &str, unit: &str| -> f64 {
        let number = text.strip_suffix(unit).unwrap_or_else(|| panic!("{line}"));
        number.parse().unwrap()
    };
    assert_eq!(seconds.split_once('.').unwrap().1.len(), 6, "{line}");
    assert!(number(user, "u") >= 0.0 && number(system, "s") >= 0.0);
    assert!(number(memory, "im") > 0.0 && number(swaps, "sw") == 0.0);
    let (seconds, bytes, rate) = (number(seconds, ""), number(bytes, ""), number(rate, ""));
    // The line has the time to a microsecond, and this is a short test.
    let (least, most) = (
        bytes / (seconds + 1e-6) / 1e6,
        bytes / (seconds - 1e-6) / 1e6,
    );
    assert!((least - 1e-6..=most + 1e-6).contains(&rate), "{line}");
    bytes as u64
}

/// Runs both sides with the same numbers, the sender first or second, and checks both lines.
#[track_caller]
fn assert_moves(listen: &str, host: &str, numbers: &str, expected: u64) {
    let receiver = Side::start(&format!("-r {numbers} {listen}"));
    let sender = Side::start(&format!("-t {numbers} --wait 60 {host}"));
    let (sent, received) = (sender.end(), receiver.end());
    assert_eq!(
        (sent.status, received.status),
        (0, 0),
        "{sent:?} {received:?}"
    );
    assert_eq!(bytes_of(&sent.out, "Send:"), expected);
    assert_eq!(bytes_of(&received.out, "Receive:"), expected);
    assert_eq!(sent.err + &received.err, "");
}

/// The same bytes cross IPv4, IPv6, both kinds of Unix sockets, and a receiver that listens everywhere.
#[test]
fn every_family() {
    let numbers = "-c 3 -b 5001 -B 70";
    let bytes = 3 * 5001 * 70;
    let address = own_address();
    assert_moves(&format!("--listen {address}"), &address, numbers, bytes);

    for (listen, host) in [("--listen ::1", "[::1]"), ("", "127.0.0.1"), ("", "::1")] {
        if host.contains(':') && TcpListener::bind("[::1]:0").is_err() {
            eprintln!("SKIPPED {host}: no IPv6 here");
            continue;
        }
        let (receiver, port) = Side::listening(&format!("{numbers} {listen}"));
        let sent = Side::start(&format!("-t {numbers} -p {port} {host}")).end();
        sent.assert(0, "Send: et ");
        assert_eq!(bytes_of(&receiver.end().out, "Receive:"), bytes);
    }

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    for place in [
        format!("unix:{}", path.display()),
        format!("unix:@multisocket-{}", std::process::id()),
    ] {
        assert_moves(&format!("--listen {place}"), &place, numbers, bytes);
    }
    assert!(!path.exists(), "the receiver left its file");
}

/// The command lines of the attachment, with a loopback address for the host.
#[test]
fn original_command_lines() {
    let address = own_address();
    let numbers = "-c 32 -b 65536 -B 400 -p 10007";
    assert_moves(
        &format!("--listen {address}"),
        &address,
        numbers,
        838_860_800,
    );
}

/// Connections are spread over ports that follow each other: all of them are listened on, and one that is taken is named.
#[test]
fn several_ports() {
    let address = own_address();
    let numbers = "-c 4 -n 3 -b 100 -B 9";
    assert_moves(&format!("--listen {address}"), &address, numbers, 12 * 900);
    let dir = tempfile::tempdir().unwrap();
    let place = format!("unix:{}", dir.path().join("s").display());
    assert_moves(&format!("--listen {place}"), &place, numbers, 12 * 900);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);

    let _taken = TcpListener::bind(format!("{address}:10002")).unwrap();
    let refused = Side::start(&format!("-r {numbers} --listen {address}")).end();
    refused.assert(1, &format!("cannot listen on {address}:10002"));
}

/// A thousand connections move their bytes, each side with a few megabytes of memory, and say how each fared.
#[test]
fn a_thousand_connections() {
    let numbers = "-c 250 -n 4 -b 4096 -B 20 --json";
    let address = own_address();
    let receiver = Side::start(&format!("-r {numbers} --listen {address}"));
    let sent = Side::start(&format!("-t {numbers} --wait 60 {address}")).end();
    for (side, role) in [(sent, "send"), (receiver.end(), "receive")] {
        let json = side.json();
        assert_eq!(json["role"], role);
        assert_eq!(json["connections"], 1000);
        assert_eq!(json["bytes"], 1000 * 4096 * 20);
        assert_eq!(json["blocks"], 20_000);
        assert!(
            json["resident_kibibytes_max"].as_u64().unwrap() < 32 << 10,
            "{json}"
        );
        let rate = |which: &str| json["connection_bits_per_second"][which].as_f64().unwrap();
        assert!(rate("min") > 0.0 && rate("min") <= rate("median"), "{json}");
        assert!(rate("median") <= rate("max"), "{json}");
        let all = json["bits_per_second"].as_f64().unwrap();
        assert!(rate("min") * 1000.0 >= all * 0.99, "{json}");
    }
}

/// The soft limit of open files is raised as far as needed; a hard limit that is too low is explained.
#[test]
fn open_files() {
    let limited = |limit: &str, line: &str| {
        let script = format!("ulimit {limit} && exec \"$0\" {line}");
        Side::spawn(Command::new("sh").args(["-c", &script, PROGRAM]))
    };
    let address = own_address();
    let numbers = "-c 200 -b 10 -B 10";
    let receiver = limited("-Sn 64", &format!("-r {numbers} --listen {address}"));
    let sent = limited("-Sn 64", &format!("-t {numbers} --wait 60 {address}")).end();
    sent.assert(0, "Send: ");
    receiver.end().assert(0, "Receive: ");
    for line in ["-r -c 200", "-t -c 200 localhost"] {
        limited("-n 100", line).end().assert(1, "`ulimit -n ");
    }
}

/// Sides that were started with different numbers both say which, and nothing moves.
#[test]
fn sides_that_differ() {
    let (receiver, port) = Side::listening("--listen 127.0.0.1 -c 2 -b 4096 -B 3");
    let sent = Side::start(&format!("-t -c 2 -b 8192 -B 3 -p {port} 127.0.0.1")).end();
    let part = "the sender has -b 8192, the receiver -b 4096; give";
    sent.assert(4, part);
    receiver.end().assert(4, part);
    let (receiver, port) = Side::listening("--listen 127.0.0.1 -c 1");
    let line = format!("-t --json -n 2 -c 1 -p {port} 127.0.0.1");
    let sent = Side::start(&line).end();
    sent.assert(4, "\"exit_status\":4");
    receiver
        .end()
        .assert(4, "the sender has -n 2, the receiver -n 1");
}

/// Strangers that talk something else are closed, silent ones stay aside; the test runs as if they were not there.
#[test]
fn strangers() {
    let numbers = "-c 2 -b 100 -B 100";
    let (receiver, port) = Side::listening(&format!("--listen 127.0.0.1 {numbers}"));
    let _silent = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut loud = TcpStream::connect(("127.0.0.1", port)).unwrap();
    loud.set_read_timeout(Some(DEADLINE)).unwrap();
    loud.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    match loud.read_to_end(&mut answer) {
        Ok(_) => assert_eq!(answer, b""),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
    let sent = Side::start(&format!("-t {numbers} -p {port} 127.0.0.1")).end();
    sent.assert(0, "bytes 20000 ");
    receiver.end().assert(0, "bytes 20000 ");
}

/// A side that is killed is missed by the other, whichever it is.
#[test]
fn killed_sides() {
    // More than any machine moves before it is killed.
    let numbers = "-c 4 -b 65536 -B 1000000000";
    for is_sender in [true, false] {
        let (receiver, port) = Side::listening(&format!("--listen 127.0.0.1 {numbers}"));
        let sender = Side::start(&format!("-t {numbers} -p {port} 127.0.0.1"));
        sender.moves();
        receiver.moves();
        let (killed, left) = match is_sender {
            true => (sender, receiver),
            false => (receiver, sender),
        };
        killed.signal("KILL");
        left.end().assert(1, "lost connection ");
    }
}

/// Who is asked to end does so in order: status 130, no file left, and the other side knows.
#[test]
fn signals() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let place = format!("unix:{}", path.display());
    let numbers = "-c 4 -b 65536 -B 1000000000";
    let waiting = Side::start(&format!("-r {numbers} --listen {place}"));
    wait_for("the socket", || path.exists().then_some(()));
    waiting.signal("TERM");
    waiting.end().assert(130, "interrupted");
    assert!(!path.exists(), "the receiver left its file");

    let receiver = Side::start(&format!("-r {numbers} --listen {place}"));
    let sender = Side::start(&format!("-t {numbers} {place}"));
    sender.moves();
    sender.signal("TERM");
    sender.end().assert(130, "interrupted");
    receiver.end().assert(1, "lost connection ");
    assert!(!Path::new(&path).exists());
}

/// A receiver that is not there, or is none, is named in time; a receiver without a sender ends, too.
#[test]
fn nobody_there() {
    let address = own_address();
    for host in [&address, "unix:@nobody-listens-here", "unix:/nonexistent/s"] {
        let sent = Side::start(&format!("-t --wait 1 {host}")).end();
        sent.assert(1, "start the receiver there (multisocket -r)");
        sent.assert(1, "within 1 s");
    }
    // Too long for a name, so that nobody is asked for it.
    let unknown = Side::start(&format!("-t --wait 1 {}", "x".repeat(300))).end();
    unknown.assert(1, "cannot use the address xxx");
    let lonely = Side::start(&format!("-r --wait 1 --listen {address}")).end();
    lonely.assert(1, "no sender connected within 1 s");

    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let sender = Side::start(&format!("-t -p {port} 127.0.0.1"));
    let (mut stream, _) = other.accept().unwrap();
    stream.write_all(b"220 mail.example ESMTP\r\n").unwrap();
    sender
        .end()
        .assert(1, "does not answer as a multisocket receiver");
}

/// The receiver need not be started first: a sender that was turned away tries again until one is there.
#[test]
fn a_sender_waits() {
    let address = own_address();
    // Not the port that other tests listen on everywhere, which would keep the receiver from starting.
    let early = TcpListener::bind(format!("{address}:0")).unwrap();
    let port = early.local_addr().unwrap().port();
    let numbers = format!("-p {port} -c 2 -b 100 -B 1");
    let sender = Side::start(&format!("-t {numbers} --wait 60 {address}"));
    drop(early.accept().unwrap());
    drop(early);
    let receiver = Side::start(&format!("-r {numbers} --listen {address}"));
    sender.end().assert(0, "bytes 200 ");
    receiver.end().assert(0, "bytes 200 ");
}
