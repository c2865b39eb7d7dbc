//! Runs the built program with a home and runtime folder of its own.

#![allow(dead_code, reason = "each test program uses a part")]

pub mod mpi;
pub mod processes;
pub mod serving;
pub mod terminal;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longest time that anything may take on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The same of an event of a command, which may have much to move before it.
const EVENT_DEADLINE: Duration = Duration::from_secs(300);

/// A temporary folder and programs that know no other home.
pub struct Place {
    pub dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("home")).unwrap();
        let runtime = dir.path().join("runtime");
        std::fs::create_dir(&runtime).unwrap();
        std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o700)).unwrap();
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The path as text, for arguments that are put together.
    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub fn command(&self) -> Command {
        self.command_of(env!("CARGO_BIN_EXE_ropewalk"))
    }

    /// The same of another program.
    pub fn command_of(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.dir.path())
            .env("HOME", self.path("home"))
            .env("XDG_RUNTIME_DIR", self.path("runtime"))
            .env("XDG_STATE_HOME", self.path("state"));
        for other in ["XDG_CONFIG_HOME", "XDG_CACHE_HOME"] {
            command.env_remove(other);
        }
        command.stdin(Stdio::null());
        command
    }

    /// The program without root's right to read all files. `None`, and a line that says so, where root cannot give it up.
    pub fn command_without_rights(&self) -> Option<Command> {
        self.command_without("-dac_override,-dac_read_search")
    }

    /// The program without some of root's rights, as `setpriv` names these.
    pub fn command_without(&self, rights: &str) -> Option<Command> {
        let own = self.command();
        if !rustix::process::geteuid().is_root() {
            return Some(own);
        }
        if Command::new("setpriv").arg("--version").output().is_err() {
            eprintln!("SKIPPED: there is no setpriv here to give up root's rights");
            return None;
        }
        let mut command = Command::new("setpriv");
        command
            .arg(format!("--bounding-set={rights}"))
            .arg(own.get_program())
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        for (name, value) in own.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Some(command)
    }

    /// Runs to the end.
    pub fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Ran {
        Ran(self.command().args(args).output().unwrap())
    }

    /// Makes a token in the default place.
    pub fn make_token(&self) -> PathBuf {
        let path = self.path("home/.config/ropewalk/token");
        let ran = self.run(&[
            OsStr::new("agent"),
            OsStr::new("--new-token"),
            path.as_os_str(),
        ]);
        assert_eq!(ran.status(), 0, "{}", ran.err());
        path
    }

    /// Starts an agent that serves `root` for reading and writing with the default token.
    pub fn agent(&self, root: &Path) -> RunningAgent {
        self.agent_as(self.command(), root)
    }

    /// As [`Place::agent`], with a command of this place.
    pub fn agent_as(&self, command: Command, root: &Path) -> RunningAgent {
        start_agent(agent_command(command, root, 0))
    }

    /// As [`Place::agent`], at a port that another one has had.
    pub fn agent_at(&self, root: &Path, port: u16) -> RunningAgent {
        start_agent(agent_command(self.command(), root, port))
    }
}

fn agent_command(mut command: Command, root: &Path, port: u16) -> Command {
    let mut root = root.as_os_str().to_owned();
    root.push(":rw");
    command
        .args(["agent", "--while-stdin", "--listen"])
        .arg(format!("127.0.0.1:{port}"))
        .arg("--root")
        .arg(root);
    command
}

/// Makes a stand-in for ssh: reads options and host as the real one, does `case $host in` the given cases, and then what
/// sshd does: gives the rest to a shell.
pub fn make_ssh(place: &Place, cases: &str) -> String {
    let script = format!(
        "#!/bin/sh\n\
         batch=no\n\
         while [ $# -gt 0 ]; do\n\
           case \"$1\" in\n\
             -o) [ \"$2\" = BatchMode=yes ] && batch=yes; shift 2 ;;\n\
             -F|-p) shift 2 ;;\n\
             -*) shift ;;\n\
             *) break ;;\n\
           esac\n\
         done\n\
         host=$1; shift\n\
         case $host in\n{cases}\n*) ;;\nesac\n\
         # What is started there has no terminal.\n\
         exec setsid --wait sh -c \"$*\"\n"
    );
    let path = place.path("ssh");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    place.text("ssh")
}

/// Starts an agent and waits until it listens.
pub fn start_agent(mut command: Command) -> RunningAgent {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let port = line.trim().rsplit_once(':').unwrap().1.parse().unwrap();
    RunningAgent { child, port }
}

/// An agent process; ended when dropped.
pub struct RunningAgent {
    pub child: Child,
    pub port: u16,
}

impl RunningAgent {
    pub fn at(&self, object: impl AsRef<Path>) -> String {
        format!("127.0.0.1:{}:{}", self.port, object.as_ref().display())
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for RunningAgent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a program said and how it ended.
pub struct Ran(pub Output);

impl Ran {
    pub fn status(&self) -> i32 {
        self.0.status.code().unwrap_or(-1)
    }

    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }

    /// Standard output as one JSON value a line.
    pub fn events(&self) -> Vec<Value> {
        self.out()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The error in the report at the end of `--json`.
    pub fn error(&self) -> String {
        self.report()["error"].as_str().unwrap().to_owned()
    }

    /// The report at the end of `--json`.
    pub fn report(&self) -> Value {
        let last = self
            .events()
            .pop()
            .unwrap_or_else(|| panic!("no events; said: {}", self.err()));
        assert_eq!(last["event"], "ended");
        last["report"].clone()
    }

    #[track_caller]
    pub fn assert_status(self, status: i32) -> Self {
        assert_eq!(
            self.status(),
            status,
            "out:\n{}\nerr:\n{}",
            self.out(),
            self.err()
        );
        self
    }

    #[track_caller]
    pub fn assert_says(self, part: &str) -> Self {
        assert!(
            self.err().contains(part) || self.out().contains(part),
            "{part:?} is not in\n{}\n{}",
            self.out(),
            self.err()
        );
        self
    }
}

/// A command that moves slowly, and its events.
pub struct Moving {
    pub child: Child,
    lines: Mutex<Receiver<String>>,
}

impl Moving {
    pub fn start(place: &Place, args: &[&str]) -> Self {
        Self::start_as(place.command(), args)
    }

    /// The same of a command that has further settings.
    pub fn start_as(mut command: Command, args: &[&str]) -> Self {
        let mut child = command
            .args(args)
            .arg("--json")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (read, lines) = std::sync::mpsc::channel();
        // Ends with the command.
        std::thread::spawn(move || {
            let mut lines = stdout.lines().map_while(Result::ok);
            lines.try_for_each(|line| read.send(line))
        });
        let lines = Mutex::new(lines);
        Self { child, lines }
    }

    /// Until processes of this group of a stream have received blocks.
    pub fn until_received(&mut self, group: usize) {
        while self.event("progress")["stages"][group]["received_bytes"]
            .as_u64()
            .unwrap()
            == 0
        {}
    }

    /// The next event of this name.
    pub fn event(&mut self, name: &str) -> Value {
        let until = Instant::now() + EVENT_DEADLINE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = self.lines.get_mut().unwrap().recv_timeout(left);
            let line = line.unwrap_or_else(|error| match error {
                RecvTimeoutError::Timeout => panic!("the command waits without an event {name}"),
                _ => panic!("the command ended without an event {name}"),
            });
            let event: Value = serde_json::from_str(&line).unwrap();
            if event["event"] == name {
                return event;
            }
            assert_ne!(event["event"], "ended", "{event:#}");
        }
    }

    /// A progress event of which `delivered` bytes are part.
    pub fn until_delivered(&mut self, delivered: u64) {
        while self.event("progress")["delivered_bytes"].as_u64().unwrap() < delivered {}
    }

    pub fn end(mut self) -> (i32, Value) {
        let report = self.event("ended")["report"].clone();
        (self.child.wait().unwrap().code().unwrap_or(-1), report)
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `condition` gives something.
#[track_caller]
pub fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < DEADLINE, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

/// Bytes that look random and depend on `seed`.
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A small tree with everything a tree can hold.
pub fn make_tree(root: &Path) {
    std::fs::create_dir_all(root.join("sub/empty")).unwrap();
    std::fs::write(root.join("big"), bytes(3 << 20, 1)).unwrap();
    std::fs::write(root.join("none"), b"").unwrap();
    for at in 0..50 {
        std::fs::write(
            root.join(format!("sub/f{at}")),
            bytes(at * 37, at as u64 + 2),
        )
        .unwrap();
    }
    std::fs::set_permissions(root.join("sub/f1"), std::fs::Permissions::from_mode(0o751)).unwrap();
    std::os::unix::fs::symlink("big", root.join("link")).unwrap();
}

/// Makes a copy with times kept.
pub fn clone_tree(from: &Path, to: &Path) {
    let status = Command::new("cp")
        .arg("-a")
        .arg(from)
        .arg(to)
        .status()
        .unwrap();
    assert!(status.success());
}

#[track_caller]
pub fn assert_same_tree(a: &Path, b: &Path) {
    let output = Command::new("diff")
        .args(["-r", "--no-dereference"])
        .args([a, b])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let list = |root: &Path| {
        let found = Command::new("find")
            .arg(root)
            .args(["-printf", "%P %m %y %T@\\n"])
            .output()
            .unwrap();
        let mut lines: Vec<String> = String::from_utf8_lossy(&found.stdout)
            .lines()
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines
    };
    assert_eq!(list(a), list(b), "names, modes, kinds and times");
}

/// Set to rewrite the golden files after a deliberate change.
const UPDATE: &str = "ROPEWALK_UPDATE_GOLDEN";

/// Compares with a recorded text.
#[track_caller]
pub fn assert_golden(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        text, expected,
        "{name} changed; if it is meant, run the tests with {UPDATE}=1"
    );
}

/// The blocks of files, each with how often it is there.
pub fn blocks(paths: &[PathBuf], len: usize) -> BTreeMap<Vec<u8>, u32> {
    let mut all = BTreeMap::new();
    for path in paths {
        for block in std::fs::read(path).unwrap().chunks(len) {
            *all.entry(block.to_vec()).or_default() += 1;
        }
    }
    all
}
