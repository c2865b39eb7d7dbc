//! `region`: random gets from a region over four nodes, which are processes of this host, beside the message socket between the same processes and
//! beside one-sided communication of the host's MPI.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use ropewalk_cli::sys;
use ropewalk_message::{Listener, MessageError, MessageSocket, Options};
use ropewalk_model::Bytes;
use ropewalk_region::{Exposed, Region, RegionServer, Rule};
use ropewalk_store::Buffer;
use serde::Serialize;

/// Nodes, and bytes that each holds.
const NODES: u64 = 4;
const PART: u64 = 16 << 20;
const SIZE: u64 = NODES * PART;
/// Name of the region.
const NAME: &str = "bench";
/// Longest time for one get; a host that is slower is not worth measuring.
const PATIENCE: Duration = Duration::from_secs(60);
/// Round trips that are kept at most, and at least.
const ROUNDS_MAX: usize = 100_000;
const ROUNDS_MIN: usize = 100;
/// Gets in flight where rates are measured: of a 64-byte size as many as the origin sends to one node.
const IN_FLIGHT: usize = 64;
/// Bytes of a question over the message socket, as those of a get: what is wanted is in its first eight.
const QUESTION_LEN: usize = 36;
/// The C program beside it.
const RMA: &str = include_str!("region/rma.c");

/// Arguments of `ropewalk-bench region`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct RegionArgs {
    /// Bytes of each get
    #[arg(
        long,
        value_name = "SIZES",
        value_delimiter = ',',
        default_value = "64,4KiB,1MiB"
    )]
    sizes: Vec<Bytes>,

    /// Milliseconds of each measurement
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    time: u64,

    /// Also measure one-sided gets of these MPIs: endings of mpicc and mpirun, as in mpicc.openmpi
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    mpi: Vec<String>,

    /// One JSON object
    #[arg(long)]
    json: bool,

    /// Be the node of this number
    #[arg(long, hide = true)]
    node: Option<u64>,
}

const EXAMPLES: &str = "\
Examples:
  ropewalk-bench region
  ropewalk-bench region --mpi openmpi,mpich
      beside MPI_Get and MPI_Win_flush, over shared memory and over TCP

Four processes hold a quarter each; one gets ranges at random. Beside it: message sockets to these processes at random, with a message of
the same size there and back, also with one process alone, and with a question that the size is the answer of. Rates are those of 64 in flight.

Exit status: 0 done, 1 failed, 2 usage.";

/// What one way of reading shows for one size.
#[derive(Debug, Serialize)]
struct Point {
    way: String,
    bytes: u64,
    median_seconds: f64,
    late_seconds: f64,
    /// Reads a second with many in flight.
    per_second: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Report {
    nodes: u64,
    in_flight: usize,
    points: Vec<Point>,
}

/// A process that holds a part.
struct Node {
    child: Child,
    region: Vec<SocketAddr>,
    messages: Vec<SocketAddr>,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn options() -> Options {
    Options {
        deadline: Some(PATIENCE),
        ..Options::default()
    }
}

/// Byte of the region.
fn byte(at: u64) -> u8 {
    (at / PART + 1) as u8
}

/// Measures, or is a node.
pub(crate) fn run(args: &RegionArgs) -> Result<ExitCode> {
    if let Some(node) = args.node {
        return serve(node.min(NODES - 1));
    }
    for size in &args.sizes {
        ensure!(
            (1..=PART).contains(&size.0),
            "a get has 1 byte to {}",
            Bytes(PART)
        );
    }
    let nodes: Vec<Node> = (0..NODES).map(start).collect::<Result<_>>()?;
    let addresses: Vec<_> = nodes.iter().map(|node| node.region.clone()).collect();
    let region = Region::connect(NAME, &addresses, &options())?;
    let sockets = nodes
        .iter()
        .map(|node| MessageSocket::connect(&node.messages, &options()));
    let sockets: Vec<MessageSocket> = sockets.collect::<Result<_, _>>()?;
    let most = Duration::from_millis(args.time);
    let mut points = Vec::new();
    for Bytes(size) in args.sizes.iter().copied() {
        points.push(of_region(&region, size, most)?);
        points.push(of_questions(&sockets, size, most)?);
        points.push(of_ping_pong(&sockets, size, most)?);
        points.push(of_ping_pong(&sockets[..1], size, most)?);
    }
    drop((region, sockets, nodes));
    for name in &args.mpi {
        points.extend(of_mpi(name, &args.sizes, args.time)?);
    }
    let report = Report {
        nodes: NODES,
        in_flight: IN_FLIGHT,
        points,
    };
    if args.json {
        sys::say(format_args!("{}", serde_json::to_string(&report)?));
    } else {
        print(&report);
    }
    Ok(ExitCode::SUCCESS)
}

fn print(report: &Report) {
    sys::say(format_args!(
        "{:<28} {:>8} {:>12} {:>12} {:>12} {:>10}",
        "", "bytes", "median us", "99 % us", "per second", "Gbit/s"
    ));
    for point in &report.points {
        let (rate, bits) = match point.per_second {
            Some(rate) => (
                format!("{rate:.0}"),
                format!("{:.2}", rate * point.bytes as f64 * 8e-9),
            ),
            None => (String::new(), String::new()),
        };
        sys::say(format_args!(
            "{:<28} {:>8} {:>12.1} {:>12.1} {rate:>12} {bits:>10}",
            point.way,
            point.bytes,
            point.median_seconds * 1e6,
            point.late_seconds * 1e6
        ));
    }
}

fn start(number: u64) -> Result<Node> {
    let program = std::env::current_exe().context("this program has no path")?;
    let mut child = Command::new(program)
        .args(["region", "--node", &number.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("a node cannot be started")?;
    let mut lines = BufReader::new(child.stdout.take().context("a node has no output")?).lines();
    let mut address = || -> Result<Vec<SocketAddr>> {
        let line = lines.next().context("a node has ended")??;
        Ok(vec![line.parse()?])
    };
    let (region, messages) = (address()?, address()?);
    Ok(Node {
        child,
        region,
        messages,
    })
}

/// Holds a part until standard input ends.
fn serve(number: u64) -> Result<ExitCode> {
    let any = [SocketAddr::from(([127, 0, 0, 1], 0))];
    let server = RegionServer::bind(&any, &options())?;
    let start = number * PART;
    let memory = Buffer::writable(vec![byte(start); PART as usize]);
    server.serve(NAME, SIZE, Rule::All, vec![Exposed::memory(start, memory)])?;
    let listener = Listener::bind(
        &any,
        &Options {
            deadline: None,
            ..options()
        },
    )?;
    println!("{}\n{}", server.addresses()[0], listener.addresses()[0]);
    std::io::stdout().flush()?;
    std::thread::spawn(move || {
        while let Ok(socket) = listener.accept() {
            // The measuring end ends it.
            let _ = answer(&socket);
        }
    });
    let _ = std::io::stdin().read(&mut [0]);
    Ok(ExitCode::SUCCESS)
}

/// Answers questions with as many bytes as they name, and other messages with themselves.
fn answer(socket: &MessageSocket) -> Result<(), MessageError> {
    socket.set_deadline(None);
    let mut message = vec![0; PART as usize];
    while let Some(len) = socket.receive(&mut message)? {
        match message[..len].first_chunk::<8>() {
            Some(wanted) if len == QUESTION_LEN => {
                let wanted = u64::from_le_bytes(*wanted).min(PART) as usize;
                socket.send_start(vec![7; wanted])?;
            }
            _ => {
                socket.send_start(message[..len].to_vec())?;
            }
        }
    }
    Ok(())
}

/// Chance from a seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 20) % bound
    }

    fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }

    /// A range of this size in one part.
    fn range(&mut self, size: u64) -> std::ops::Range<u64> {
        let start = self.below(NODES) * PART + self.below(PART - size + 1);
        start..start + size
    }
}

/// Times of a round trip, for so long: median and 99th percentile.
fn times(most: Duration, mut round: impl FnMut() -> Result<()>) -> Result<(f64, f64)> {
    let mut times: Vec<f64> = Vec::new();
    let begun = Instant::now();
    while times.len() < ROUNDS_MAX && (times.len() < ROUNDS_MIN || begun.elapsed() < most) {
        let before = Instant::now();
        round()?;
        times.push(before.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok((times[times.len() / 2], times[(times.len() - 1) * 99 / 100]))
}

fn of_region(region: &Region, size: u64, most: Duration) -> Result<Point> {
    let mut chance = Chance(5);
    let mut into = vec![0; size as usize];
    let check = |start: u64, got: &[u8]| -> Result<()> {
        let is_right = [got.first(), got.last()]
            .iter()
            .all(|one| *one == Some(&byte(start)));
        ensure!(
            is_right && got.len() as u64 == size,
            "wrong bytes at {start}"
        );
        Ok(())
    };
    let (median_seconds, late_seconds) = times(most, || {
        let range = chance.range(size);
        region.get_into(range.start, &mut into)?;
        check(range.start, &into)
    })?;
    let mut done = 0_u64;
    let begun = Instant::now();
    let mut under_way = VecDeque::new();
    while begun.elapsed() < most {
        while under_way.len() < IN_FLIGHT {
            let range = chance.range(size);
            under_way.push_back((range.start, region.get_start(&[range])?));
        }
        if let Some((start, get)) = under_way.pop_front() {
            check(start, &get.wait()?)?;
            done += 1;
        }
    }
    let per_second = Some(done as f64 / begun.elapsed().as_secs_f64());
    Ok(Point {
        way: "region".into(),
        bytes: size,
        median_seconds,
        late_seconds,
        per_second,
    })
}

fn of_questions(sockets: &[MessageSocket], size: u64, most: Duration) -> Result<Point> {
    let mut chance = Chance(5);
    let mut question = [0; QUESTION_LEN];
    question[..8].copy_from_slice(&size.to_le_bytes());
    let mut into = vec![0; size as usize];
    let mut ask = || -> Result<&MessageSocket> {
        let socket = chance.one_of(sockets);
        socket.send_start(question.to_vec())?;
        Ok(socket)
    };
    let mut hear = |socket: &MessageSocket| match socket.receive(&mut into)? {
        Some(len) if len as u64 == size => Ok(()),
        _ => bail!("the node answers with another message"),
    };
    let (median_seconds, late_seconds) = times(most, || hear(ask()?))?;
    let mut done = 0_u64;
    let begun = Instant::now();
    let mut under_way = VecDeque::new();
    while begun.elapsed() < most {
        while under_way.len() < IN_FLIGHT {
            under_way.push_back(ask()?);
        }
        if let Some(socket) = under_way.pop_front() {
            hear(socket)?;
            done += 1;
        }
    }
    let per_second = Some(done as f64 / begun.elapsed().as_secs_f64());
    under_way.into_iter().try_for_each(hear)?;
    Ok(Point {
        way: "message, question".into(),
        bytes: size,
        median_seconds,
        late_seconds,
        per_second,
    })
}

fn of_ping_pong(sockets: &[MessageSocket], size: u64, most: Duration) -> Result<Point> {
    let mut chance = Chance(5);
    let size = if size == QUESTION_LEN as u64 {
        size + 1
    } else {
        size
    };
    let mut message = vec![9; size as usize];
    let (median_seconds, late_seconds) = times(most, || {
        let socket = chance.one_of(sockets);
        socket.send(&message)?;
        match socket.receive(&mut message)? {
            Some(len) if len as u64 == size => Ok(()),
            _ => bail!("the node answers with another message"),
        }
    })?;
    let way = match sockets.len() {
        1 => "message, ping-pong, 1 node",
        _ => "message, ping-pong",
    };
    Ok(Point {
        way: way.into(),
        bytes: size,
        median_seconds,
        late_seconds,
        per_second: None,
    })
}

/// Compiles the C program and runs it with one process for each node and one that gets.
fn of_mpi(name: &str, sizes: &[Bytes], time: u64) -> Result<Vec<Point>> {
    let folder = std::env::temp_dir().join(format!("ropewalk-rma-{}-{name}", std::process::id()));
    std::fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let measured = of_mpi_in(&folder, name, sizes, time);
    let _ = std::fs::remove_dir_all(&folder);
    measured
}

fn of_mpi_in(folder: &Path, name: &str, sizes: &[Bytes], time: u64) -> Result<Vec<Point>> {
    let (source, program) = (folder.join("rma.c"), folder.join("rma"));
    std::fs::write(&source, RMA)?;
    let mut compile = Command::new(format!("mpicc.{name}"));
    let compiled = compile
        .args(["-O2", "-o"])
        .arg(&program)
        .arg(&source)
        .output();
    let compiled = compiled.with_context(|| format!("mpicc.{name} does not run"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    ensure!(
        compiled.status.success(),
        "mpicc.{name}: {}",
        text(&compiled.stderr)
    );
    let is_open_mpi = name.contains("openmpi");
    let mut points = Vec::new();
    for over_tcp in [false, true] {
        let mut run = Command::new(format!("mpirun.{name}"));
        if is_open_mpi {
            run.args(["--allow-run-as-root", "--oversubscribe"]);
            if over_tcp {
                run.args([
                    "--mca",
                    "pml",
                    "ob1",
                    "--mca",
                    "osc",
                    "rdma,pt2pt",
                    "--mca",
                    "btl",
                    "self,tcp",
                ]);
            }
        } else if over_tcp {
            run.env("MPIR_CVAR_NOLOCAL", "1");
        }
        run.args(["-n", &(NODES + 1).to_string()]).arg(&program);
        run.args([PART.to_string(), time.to_string(), IN_FLIGHT.to_string()]);
        run.args(sizes.iter().map(|size| size.0.to_string()));
        let ran = run.stdin(Stdio::null()).output();
        let ran = ran.with_context(|| format!("mpirun.{name} does not run"))?;
        let way = format!(
            "{name} over {}",
            if over_tcp { "TCP" } else { "shared memory" }
        );
        if !ran.status.success() {
            eprintln!("ropewalk-bench: {way}: {}", text(&ran.stderr));
            continue;
        }
        for line in text(&ran.stdout).lines() {
            let fields: Vec<f64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
            let [bytes, median_seconds, late_seconds, rate] = fields[..] else {
                bail!("{way}: not a measurement: {line}");
            };
            let (way, per_second) = (way.clone(), Some(rate));
            points.push(Point {
                way,
                bytes: bytes as u64,
                median_seconds,
                late_seconds,
                per_second,
            });
        }
    }
    Ok(points)
}
