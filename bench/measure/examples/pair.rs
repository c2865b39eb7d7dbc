//! Speed of one pair of processes on loopback, beside `iperf3`, with the processor time of both sides.
//!
//! ```text
//! cargo run --release -p ropewalk-measure --example pair -- iperf:1 iperfz:1 mem:fragment:1 file:sealed+hash:2
//! ```
//!
//! A case is `what:guard:streams`. `what` is `mem` (2 MiB of sealed memory to one buffer per
//! stream), `small` (the same in units of 4 to 64 KiB) or `file` (2 GiB between two files under
//! `--dir`); `unix` and `unixfile` use Unix sockets. `guard` is `none`, `fragment` or `sealed`,
//! with `+hash`. Ratios are to `iperf:streams` of the same round; the median over the rounds is printed last.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::{BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_lane::*;
use ropewalk_model::Range;

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

const UNIT: u64 = 1 << 20;
const PATTERN_LEN: usize = 2 << 20;
const WAIT: Duration = Duration::from_secs(30);

/// What one run moves, and how.
#[derive(Clone, Debug)]
struct Case {
    what: String,
    guard: String,
    streams: usize,
}

impl Case {
    fn parse(text: &str) -> Fallible<Self> {
        let mut parts = text.split(':');
        let what = parts.next().unwrap_or_default().to_owned();
        let middle = parts.next().unwrap_or("1");
        let (guard, streams) = match parts.next() {
            Some(streams) => (middle, streams),
            None => ("", middle),
        };
        Ok(Self {
            what,
            guard: guard.into(),
            streams: streams.parse()?,
        })
    }

    fn text(&self) -> String {
        format!("{}:{}:{}", self.what, self.guard, self.streams)
    }

    fn protection(&self) -> Protection {
        match self.guard.trim_end_matches("+hash") {
            "none" => Protection::Plain(Check::None),
            "fragment" => Protection::Plain(Check::Fragment),
            _ => Protection::Sealed(seal::stream_keys(&seal::PairSecret([1; 32]), [2; 32])),
        }
    }

    fn hash(&self) -> bool {
        self.guard.ends_with("+hash")
    }

    fn is_file(&self) -> bool {
        self.what.ends_with("file")
    }

    fn is_unix(&self) -> bool {
        self.what.starts_with("unix")
    }

    /// The unit's range.
    fn unit(&self, index: u64) -> Range {
        if self.what == "small" {
            let start = index * (64 << 10);
            return Range::new(start, start + (4 << 10) + (index * 7919 % 61) * 1000);
        }
        Range::new(index * UNIT, (index + 1) * UNIT)
    }
}

/// Sealed memory as a file and as bytes.
struct Pattern {
    file: Arc<File>,
    bytes: Vec<u8>,
}

impl Pattern {
    fn new() -> Fallible<Self> {
        let bytes: Vec<u8> = (0..PATTERN_LEN as u64)
            .map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
            .collect();
        let mut file = File::from(rustix::fs::memfd_create(
            "pair",
            rustix::fs::MemfdFlags::CLOEXEC,
        )?);
        file.write_all(&bytes)?;
        Ok(Self {
            file: Arc::new(file),
            bytes,
        })
    }

    /// Anywhere in the first half, so that a unit always fits behind it.
    fn place(offset: u64) -> usize {
        (offset % UNIT) as usize
    }
}

impl Provider for Pattern {
    fn extent(&self, _space: u16, range: Range) -> Result<Extent<'_>, Absent> {
        let at = Self::place(range.start);
        let length = range.len().min((PATTERN_LEN - at) as u64);
        Ok(Extent::File {
            file: self.file.clone(),
            offset: at as u64,
            length,
            mapped: Some(&self.bytes[at..]),
        })
    }

    fn read(&self, _space: u16, offset: u64, out: &mut [u8]) -> Result<(), Absent> {
        out.copy_from_slice(&self.bytes[Self::place(offset)..][..out.len()]);
        Ok(())
    }
}

struct Files(Arc<File>);

impl Provider for Files {
    fn extent(&self, _space: u16, range: Range) -> Result<Extent<'_>, Absent> {
        Ok(Extent::File {
            file: self.0.clone(),
            offset: range.start,
            length: range.len(),
            mapped: None,
        })
    }

    fn read(&self, _space: u16, offset: u64, out: &mut [u8]) -> Result<(), Absent> {
        let absent = |error: std::io::Error| Absent {
            code: missing::UNREADABLE,
            reason: error.to_string(),
        };
        self.0.read_exact_at(out, offset).map_err(absent)
    }
}

struct Buffer(Vec<u8>);

impl Landing for Buffer {
    fn buffer(&mut self, _space: u16, _offset: u64, length: usize) -> Option<&mut [u8]> {
        self.0.get_mut(..length)
    }

    fn write(
        &mut self,
        _space: u16,
        _offset: u64,
        _bytes: &[u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }
}

struct FileLanding(Arc<File>);

impl Landing for FileLanding {
    fn write(
        &mut self,
        _space: u16,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(self.0.write_all_at(bytes, offset)?)
    }
}

/// Seconds of processor time of this process.
fn cpu_seconds() -> Fallible<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    Ok((fields[11].parse::<f64>()? + fields[12].parse::<f64>()?) / 100.0)
}

/// The sending process: says where it listens, serves the streams, says what it used.
fn send(case: &Case, source: &Path) -> Fallible<()> {
    let provider: Arc<dyn Provider + Send + Sync> = if case.is_file() {
        Arc::new(Files(Arc::new(File::open(source)?)))
    } else {
        Arc::new(Pattern::new()?)
    };
    let mut halves = Vec::new();
    if case.is_unix() {
        let name = format!("ropewalk-pair-{}", std::process::id());
        let listener = unix::listen(name.as_bytes())?;
        println!("{name}");
        for _ in 0..case.streams {
            halves.push(unix::send_half(listener.accept()?.0, case.protection())?);
        }
    } else {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        println!("{}", listener.local_addr()?);
        for _ in 0..case.streams {
            halves.push(tcp::send_half(listener.accept()?.0, case.protection())?);
        }
    }
    let before = cpu_seconds()?;
    let threads: Vec<_> = halves
        .into_iter()
        .map(|mut half| {
            let provider = provider.clone();
            thread::spawn(move || {
                let served = half.serve(&*provider, WAIT);
                (served, half.observe())
            })
        })
        .collect();
    let mut waited = Duration::ZERO;
    for thread in threads {
        let (served, seen) = thread.join().map_err(|_| "a sending thread panicked")?;
        served?;
        waited += seen.waited;
    }
    println!("{} {}", cpu_seconds()? - before, waited.as_secs_f64());
    Ok(())
}

/// The receiving process: pulls everything, says what it used.
fn receive(
    case: &Case,
    address: &str,
    units: u64,
    window: u64,
    sink: &Path,
    prepare: &str,
) -> Fallible<()> {
    let mut halves = Vec::new();
    for _ in 0..case.streams {
        halves.push(if case.is_unix() {
            unix::receive_half(unix::connect(address.as_bytes())?, case.protection())?
        } else {
            tcp::receive_half(TcpStream::connect(address)?, case.protection())?
        });
    }
    let file = if case.is_file() {
        let file = File::options()
            .write(true)
            .create_new(true)
            .read(true)
            .open(sink)?;
        match prepare {
            "fallocate" => {
                rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, units * UNIT)?
            }
            _ => file.set_len(units * UNIT)?,
        }
        Some(Arc::new(file))
    } else {
        None
    };
    let next = Arc::new(AtomicU64::new(0));
    let window = (window / case.streams as u64).max(2 * UNIT);
    let before = cpu_seconds()?;
    let begun = Instant::now();
    let threads: Vec<_> = halves
        .into_iter()
        .map(|mut half| {
            let (case, next, file) = (case.clone(), next.clone(), file.clone());
            thread::spawn(move || -> Fallible<(Observation, u64)> {
                let mut landing: Box<dyn Landing> = match file {
                    Some(file) => Box::new(FileLanding(file)),
                    None => Box::new(Buffer(vec![0; UNIT as usize])),
                };
                let mut outstanding = 0;
                let mut bytes = 0;
                let mut grants = Vec::new();
                loop {
                    // Ask again when half the window is empty, so that grants travel together.
                    if outstanding <= window / 2 {
                        grants.clear();
                        while outstanding < window {
                            let index = next.fetch_add(1, Ordering::Relaxed);
                            if index >= units {
                                break;
                            }
                            let range = case.unit(index);
                            outstanding += range.len();
                            grants.push(Grant {
                                id: index as u32,
                                space: 0,
                                range,
                                hash: case.hash(),
                                digest: false,
                            });
                        }
                        half.grant(&grants)?;
                    }
                    if outstanding == 0 {
                        return Ok((half.observe(), bytes));
                    }
                    match half.receive(&mut *landing, Instant::now() + WAIT)? {
                        Received::Unit { grant, .. } => {
                            outstanding -= grant.range.len();
                            bytes += grant.range.len();
                        }
                        other => return Err(format!("{other:?}").into()),
                    }
                }
            })
        })
        .collect();
    let mut waited = Duration::ZERO;
    let mut bytes = 0;
    for thread in threads {
        let (seen, got) = thread.join().map_err(|_| "a receiving thread panicked")??;
        waited += seen.waited;
        bytes += got;
    }
    let elapsed = begun.elapsed().as_secs_f64();
    println!(
        "{elapsed} {} {} {bytes}",
        cpu_seconds()? - before,
        waited.as_secs_f64()
    );
    Ok(())
}

/// What one run gave.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    gigabits: f64,
    send_cpu: f64,
    receive_cpu: f64,
}

struct Options {
    rounds: usize,
    units: u64,
    window: u64,
    folder: PathBuf,
    prepare: String,
    pin: bool,
}

/// Keeps a command on one processor, so that load of others does not push both ends onto the same.
fn pinned(program: &std::ffi::OsStr, cpu: &str, pin: bool) -> Command {
    if !pin {
        return Command::new(program);
    }
    let mut command = Command::new("taskset");
    command.args(["-c", cpu]).arg(program);
    command
}

fn line(reader: &mut impl std::io::BufRead) -> Fallible<String> {
    let mut text = String::new();
    reader.read_line(&mut text)?;
    Ok(text.trim().to_owned())
}

fn reap(mut child: Child) -> Fallible<()> {
    if child.wait()?.success() {
        Ok(())
    } else {
        Err("a child failed; its message is above".into())
    }
}

fn run(case: &Case, options: &Options) -> Fallible<Outcome> {
    let program = std::env::current_exe()?;
    let (source, sink) = (
        options.folder.join("pair-source"),
        options.folder.join("pair-sink"),
    );
    if case.is_file() {
        make_source(&source, options.units)?;
    }
    let mut sender = pinned(program.as_os_str(), "0", options.pin)
        .arg("send")
        .arg(case.text())
        .arg(&source)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = BufReader::new(sender.stdout.take().ok_or("no output")?);
    let address = line(&mut said)?;
    let small = if case.what == "small" { 30 } else { 1 };
    let mut receiver = pinned(program.as_os_str(), "1", options.pin)
        .args([
            "receive",
            &case.text(),
            &address,
            &(options.units * small).to_string(),
            &options.window.to_string(),
        ])
        .arg(&sink)
        .arg(&options.prepare)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut text = String::new();
    receiver
        .stdout
        .take()
        .ok_or("no output")?
        .read_to_string(&mut text)?;
    reap(receiver)?;
    let numbers: Vec<f64> = text
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let sent: Vec<f64> = line(&mut said)?
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    reap(sender)?;
    drop(std::fs::remove_file(&sink));
    let gigabytes = numbers[3] / 1e9;
    eprintln!(
        "    {:24} {:6.2} s, cpu send {:.2} receive {:.2}, waited send {:.2} receive {:.2}",
        case.text(),
        numbers[0],
        sent[0],
        numbers[1],
        sent[1],
        numbers[2]
    );
    Ok(Outcome {
        gigabits: gigabytes * 8.0 / numbers[0],
        send_cpu: sent[0] / gigabytes,
        receive_cpu: numbers[1] / gigabytes,
    })
}

fn iperf(case: &Case, pin: bool) -> Fallible<Outcome> {
    let port = TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port()
        .to_string();
    let mut server = pinned("iperf3".as_ref(), "1", pin)
        .args(["-s", "-1", "-p", &port, "--forceflush"])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = BufReader::new(server.stdout.take().ok_or("no output")?);
    while !line(&mut said)?.contains("listening") {}
    let streams = case.streams.to_string();
    let mut client = pinned("iperf3".as_ref(), "0", pin);
    client.args([
        "-c",
        "127.0.0.1",
        "-p",
        &port,
        "-t",
        "2",
        "-J",
        "-P",
        &streams,
    ]);
    if case.what == "iperfz" {
        client.arg("-Z");
    }
    let text = String::from_utf8(client.output()?.stdout)?;
    drop(said);
    drop(server.wait());
    let after = |from: &str, key: &str| -> Option<f64> {
        let text = &text[text.find(from)?..];
        let text = &text[text.find(key)? + key.len() + 2..];
        text[..text.find([',', '\n', '}'])?].trim().parse().ok()
    };
    let rate = after("\"sum_received\"", "bits_per_second\"")
        .or_else(|| after("\"end\"", "bits_per_second\""))
        .ok_or("no rate from iperf3")?;
    let local = after("\"cpu_utilization_percent\"", "host_total\"").unwrap_or(0.0) / 100.0;
    let remote = after("\"cpu_utilization_percent\"", "remote_total\"").unwrap_or(0.0) / 100.0;
    let per_second = rate / 8e9;
    Ok(Outcome {
        gigabits: rate / 1e9,
        send_cpu: local / per_second,
        receive_cpu: remote / per_second,
    })
}

/// The same file copied on this host by `cp`: what one thread needs to fill the folder's pages.
fn copy(options: &Options) -> Fallible<Outcome> {
    let (source, sink) = (
        options.folder.join("pair-source"),
        options.folder.join("pair-sink"),
    );
    make_source(&source, options.units)?;
    let begun = Instant::now();
    let child = Command::new("cp")
        .arg("--reflink=never")
        .arg(&source)
        .arg(&sink)
        .spawn()?;
    reap(child)?;
    let elapsed = begun.elapsed().as_secs_f64();
    std::fs::remove_file(&sink)?;
    let gigabytes = (options.units * UNIT) as f64 / 1e9;
    Ok(Outcome {
        gigabits: gigabytes * 8.0 / elapsed,
        send_cpu: 0.0,
        receive_cpu: elapsed / gigabytes,
    })
}

fn make_source(source: &Path, units: u64) -> Fallible<()> {
    if !source.exists() {
        let mut file = File::create(source)?;
        let pattern = Pattern::new()?;
        for _ in 0..units {
            file.write_all(&pattern.bytes[..UNIT as usize])?;
        }
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn compare(options: &Options, cases: &[Case]) -> Fallible<()> {
    let mut rounds: BTreeMap<String, Vec<Outcome>> = BTreeMap::new();
    for _ in 0..options.rounds {
        for case in cases {
            let outcome = match case.what.as_str() {
                "iperf" | "iperfz" => iperf(case, options.pin)?,
                "cp" => copy(options)?,
                _ => run(case, options)?,
            };
            rounds.entry(case.text()).or_default().push(outcome);
        }
    }
    println!(
        "{:24} {:>8} {:>7} {:>12} {:>12} {:>12} {:>12}",
        "case", "Gbit/s", "ratio", "CPU s/GB", "sender", "receiver", "least CPU"
    );
    for case in cases {
        let outcomes = &rounds[&case.text()];
        let basis = rounds
            .get(&format!("iperf::{}", case.streams))
            .or_else(|| rounds.get("iperf::1"));
        let ratio = basis.map_or(f64::NAN, |basis| {
            median(
                outcomes
                    .iter()
                    .zip(basis)
                    .map(|(ours, theirs)| ours.gigabits / theirs.gigabits)
                    .collect(),
            )
        });
        let of = |value: fn(&Outcome) -> f64| median(outcomes.iter().map(value).collect());
        println!(
            "{:24} {:8.2} {:7.2} {:12.3} {:12.3} {:12.3} {:12.3}",
            case.text(),
            of(|outcome| outcome.gigabits),
            ratio,
            of(|outcome| outcome.send_cpu + outcome.receive_cpu),
            of(|outcome| outcome.send_cpu),
            of(|outcome| outcome.receive_cpu),
            outcomes
                .iter()
                .map(|outcome| outcome.send_cpu + outcome.receive_cpu)
                .fold(f64::INFINITY, f64::min),
        );
    }
    Ok(())
}

fn main() -> Fallible<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("send") => return send(&Case::parse(&arguments[1])?, Path::new(&arguments[2])),
        Some("receive") => {
            let case = Case::parse(&arguments[1])?;
            let sink = Path::new(&arguments[5]);
            return receive(
                &case,
                &arguments[2],
                arguments[3].parse()?,
                arguments[4].parse()?,
                sink,
                &arguments[6],
            );
        }
        _ => {}
    }
    let mut options = Options {
        rounds: 3,
        units: 2048,
        window: 4 << 20,
        folder: "/dev/shm".into(),
        prepare: "none".into(),
        pin: false,
    };
    let mut cases = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} wants a value"));
        match word.as_str() {
            "--rounds" => options.rounds = value()?.parse()?,
            "--mebibytes" => options.units = value()?.parse()?,
            "--window" => options.window = value()?.parse()?,
            "--dir" => options.folder = value()?.into(),
            "--pin" => options.pin = true,
            "--prepare" => options.prepare = value()?.clone(),
            case => cases.push(Case::parse(case)?),
        }
    }
    let result = compare(&options, &cases);
    drop(std::fs::remove_file(options.folder.join("pair-source")));
    result
}
