//! What a measurement ran on: machine, programs and how busy it was.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// The surroundings of a figure, for its JSON and text.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// The command line that made the figure.
    pub command: Vec<String>,
    /// Kernel name, release and machine.
    pub kernel: String,
    /// Processor model.
    pub processor: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// Main memory.
    pub memory_bytes: u64,
    /// TCP congestion control of the machine.
    pub congestion_control: String,
    /// Load averages over 1, 5 and 15 minutes when the figure was made.
    pub load_average: String,
    /// Versions of the programs that took part.
    pub programs: BTreeMap<String, String>,
}

fn first_line(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// The value of a `key : value` line as files below /proc have it.
fn field(path: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The load average over the last minute.
pub(crate) fn load() -> f64 {
    let line = first_line("/proc/loadavg");
    let word = line.split_whitespace().next();
    word.and_then(|word| word.parse().ok()).unwrap_or(f64::NAN)
}

/// A size from a file below /proc that counts in kB: `VmHWM` of `/proc/PID/status`, `MemTotal` of `/proc/meminfo`.
pub(crate) fn kilobytes(path: &str, key: &str) -> Option<u64> {
    let text = field(path, key)?;
    let number: u64 = text.split_whitespace().next()?.parse().ok()?;
    Some(number * 1024)
}

/// Seconds since 1970.
pub(crate) fn now_seconds() -> u64 {
    let passed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    passed.map_or(0, |passed| passed.as_secs())
}

/// The first line that a program prints about its version.
pub(crate) fn version(program: &Path, argument: &str) -> Option<String> {
    let mut command = Command::new(program);
    command.arg(argument).stdin(Stdio::null());
    let output = command.output().ok()?;
    // nginx and others use standard error.
    let texts = [output.stdout, output.stderr];
    let lines = texts
        .iter()
        .map(|text| String::from_utf8_lossy(text).trim().to_owned());
    let text = lines.into_iter().find(|text| !text.is_empty())?;
    text.lines().next().map(str::to_owned)
}

/// The revision of the source folder that this runs in, if it is one; marked where files differ from it.
pub(crate) fn revision() -> Option<String> {
    let mut command = Command::new("git");
    command.args(["describe", "--always", "--dirty=, changed", "--abbrev=12"]);
    let output = command.stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// The arguments of this program, without where it lies and where it writes.
fn own_command() -> Vec<String> {
    let mut words = std::env::args();
    let program = words.next().unwrap_or_default();
    let name = Path::new(&program).file_name();
    let mut command = vec![name.map_or(program.clone(), |name| name.to_string_lossy().into())];
    let mut is_place = false;
    for word in words {
        let names_place = ["--out", "--ropewalk"].contains(&&*word);
        if !is_place
            && !names_place
            && !word.starts_with("--out=")
            && !word.starts_with("--ropewalk=")
        {
            command.push(word);
        }
        is_place = names_place;
    }
    command
}

/// A mark that differs between two builds of a program: size and time of its file.
pub(crate) fn build_mark(program: &Path) -> String {
    let Ok(metadata) = fs::metadata(program) else {
        return "missing".into();
    };
    let modified = metadata.modified().ok();
    let seconds = modified.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    format!(
        "{} bytes of {}",
        metadata.len(),
        seconds.map_or(0, |seconds| seconds.as_secs())
    )
}

impl Machine {
    /// Looks at the machine.
    pub fn look(programs: BTreeMap<String, String>) -> Self {
        let kernel = ["ostype", "osrelease", "version"]
            .map(|name| first_line(&format!("/proc/sys/kernel/{name}")))
            .join(" ");
        Self {
            command: own_command(),
            kernel,
            processor: field("/proc/cpuinfo", "model name").unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: kilobytes("/proc/meminfo", "MemTotal").unwrap_or(0),
            congestion_control: first_line("/proc/sys/net/ipv4/tcp_congestion_control"),
            load_average: first_line("/proc/loadavg"),
            programs,
        }
    }

    /// Some lines for people.
    pub fn text(&self) -> String {
        let programs: Vec<String> = self
            .programs
            .iter()
            .map(|(name, version)| format!("{name}: {version}"))
            .collect();
        format!(
            "command: {}\nmachine: {}, {} cores, {:.1} GiB, {}; TCP {}; load {}\n{}\n",
            self.command.join(" "),
            self.processor,
            self.cores,
            self.memory_bytes as f64 / f64::from(1 << 30),
            self.kernel,
            self.congestion_control,
            self.load_average,
            programs.join("\n")
        )
    }
}
