//! Two bare ends of a lane, each a process of this program, for what agents do not have: a sink that works on what it is given, and a
//! monitor whose advice is late.

use std::error::Error;
use std::hint::black_box;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use ropewalk_lane::{
    Absent, Check, Extent, Grant, Landing, Observation, Protection, Provider, Received, Served,
    seal, tcp, udp,
};
use ropewalk_model::{Nanos, Range};
use ropewalk_proto::control;
use ropewalk_proto::rapid::Gaps;
use ropewalk_proto::rapid::monitor::{Kind, Monitor};
use ropewalk_proto::report::{BlastReport, GapReport};

use super::late::Late;
use super::scene::{Lane, Run};
use crate::process::Process;
use crate::ropewalk::Place;

/// Port of the sending end, in a host of the lab where nobody else listens.
const PORT: u16 = 9200;
/// Longest silence of the other end.
const WAIT: Duration = Duration::from_secs(30);
/// Bytes of a unit, each with one hash.
const UNIT: u64 = 256 << 10;
/// What may be asked for ahead, as agents do it: all of a blast, and 0.8 s of a monitored lane's rate.
const AHEAD: std::ops::RangeInclusive<u64> = 16 << 20..=256 << 20;
/// Bytes that are sent again and again.
const PATTERN_LEN: usize = 2 << 20;

/// One end of a lane.
#[derive(Args, Clone, Debug)]
pub(crate) struct EndArgs {
    /// Where the sending end listens
    address: SocketAddr,
    /// Receives; else sends
    #[arg(long)]
    receive: bool,
    #[arg(long)]
    bytes: u64,
    #[arg(long)]
    lane: Carrier,
    /// Bytes per second; 0: what the monitor allows
    #[arg(long, default_value_t = 0)]
    rate: u64,
    #[arg(long)]
    mtu: u32,
    #[arg(long, default_value = "native")]
    monitor: Watcher,
    #[arg(long, default_value_t = 0)]
    receive_buffer: u64,
    #[arg(long)]
    plain: bool,
    /// Times that the sink hashes what it is given
    #[arg(long, default_value_t = 0)]
    work: u32,
    /// Milliseconds by which the monitor's advice is late
    #[arg(long, default_value_t = 0)]
    late: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Carrier {
    Rbudp,
    Rapid,
    Tcp,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Watcher {
    Native,
    Linux26,
    Ule,
}

impl EndArgs {
    fn kind(&self) -> Option<Kind> {
        let kind = match self.monitor {
            Watcher::Native => Kind::Native,
            Watcher::Linux26 => Kind::Linux26,
            Watcher::Ule => Kind::Ule,
        };
        (self.lane == Carrier::Rapid).then_some(kind)
    }

    fn datagrams(&self) -> udp::Options {
        udp::Options {
            rate: control::limit(self.rate),
            mtu: Some(self.mtu),
            order: match self.lane {
                Carrier::Rbudp => udp::Order::BlastFirst,
                _ => udp::Order::RepairsFirst,
            },
            monitor: self.kind(),
            receive_buffer: control::given(self.receive_buffer),
        }
    }

    fn protection(&self) -> Protection {
        match self.plain {
            true => Protection::Plain(Check::Fragment),
            // Both ends are of one measurement; there is nothing to hide from anybody.
            false => Protection::Sealed(seal::stream_keys(&seal::PairSecret([1; 32]), [2; 32])),
        }
    }

    fn ahead(&self) -> u64 {
        let bytes = match self.lane {
            Carrier::Rapid if self.rate > 0 => self.rate / 10 * 8,
            Carrier::Rapid | Carrier::Tcp => 64 << 20,
            Carrier::Rbudp => *AHEAD.end(),
        };
        bytes.clamp(*AHEAD.start(), *AHEAD.end())
    }
}

/// Sends or receives everything. The receiving end prints its [`Run`].
pub(crate) fn run_end(args: &EndArgs) -> Result<()> {
    if args.receive {
        let run = receive(args)?;
        println!("{}", serde_json::to_string(&run)?);
        return Ok(());
    }
    let listener = TcpListener::bind(args.address)?;
    println!("listening");
    send(args, &listener)
}

fn send(args: &EndArgs, listener: &TcpListener) -> Result<()> {
    let (stream, _) = listener.accept()?;
    let mut half = match args.lane {
        Carrier::Tcp => tcp::send_half(stream, args.protection())?,
        _ => udp::send_half(stream, args.protection(), args.datagrams())?,
    };
    let pattern = Pattern((0..PATTERN_LEN).map(|at| ((at * 31) >> 3) as u8).collect());
    match half.serve(&pattern, WAIT)? {
        Served::Closed => Ok(()),
        other => bail!("the receiving end went away: {other:?}"),
    }
}

fn receive(args: &EndArgs) -> Result<Run> {
    let began = Instant::now();
    let stream = TcpStream::connect(args.address)?;
    let mut half = match args.lane {
        Carrier::Tcp => tcp::receive_half(stream, args.protection())?,
        _ => {
            let monitor = args.kind().map(|kind| -> Box<dyn Monitor> {
                match args.late {
                    0 => kind.monitor(),
                    late => Box::new(Late::new(kind.monitor(), Nanos::from_millis(late.into()))),
                }
            });
            udp::watched_receive_half(stream, args.protection(), args.datagrams(), monitor)?
        }
    };
    let mut sink = Working { times: args.work };
    let start = Instant::now();
    let start_seconds = (start - began).as_secs_f64();
    let (mut asked, mut pending, mut done) = (0, 0, 0);
    while done < args.bytes {
        let mut grants = Vec::new();
        while asked < args.bytes && pending < args.ahead() {
            let range = Range::new(asked, args.bytes.min(asked + UNIT));
            grants.push(Grant {
                id: (asked / UNIT) as u32,
                space: 0,
                range,
                hash: true,
                digest: false,
            });
            asked = range.end;
            pending += range.len();
        }
        half.grant(&grants)?;
        match half.receive(&mut sink, Instant::now() + WAIT)? {
            Received::Unit { grant, .. } => {
                pending -= grant.range.len();
                done += grant.range.len();
            }
            Received::Corrupt { grant, .. } => half.grant(&[grant])?,
            other => bail!("a unit did not arrive: {other:?}"),
        }
    }
    let seen = half.observe();
    Ok(Run {
        seconds: start.elapsed().as_secs_f64(),
        start_seconds,
        bytes: done,
        datagrams: seen.frames,
        again: seen.again,
        blast: (args.lane != Carrier::Tcp).then(|| blast(&seen)),
        sender_processor_seconds: 0.0,
        receiver_processor_seconds: 0.0,
        invalid: Vec::new(),
    })
}

fn blast(seen: &Observation) -> BlastReport {
    let gaps = |gaps: &Gaps| GapReport {
        median_seconds: gaps.quantile(0.5).as_seconds(),
        p99_seconds: gaps.quantile(0.99).as_seconds(),
        longest_seconds: gaps.longest().as_seconds(),
    };
    BlastReport {
        lost_datagrams: seen.blast.lost,
        dropped_datagrams: seen.blast.dropped,
        stray_datagrams: seen.strays,
        suspensions: seen.blast.suspensions,
        monitor_processor_seconds: seen.blast.monitor.as_secs_f64(),
        arrival_gaps: gaps(&seen.blast.arrivals),
        delivery_gaps: gaps(&seen.blast.deliveries),
    }
}

struct Pattern(Vec<u8>);

impl Pattern {
    fn place(&self, offset: u64) -> &[u8] {
        // In the first half, so that a unit fits behind it.
        &self.0[(offset % (PATTERN_LEN as u64 / 2)) as usize..]
    }
}

impl Provider for Pattern {
    fn extent(&self, _space: u16, range: Range) -> Result<Extent<'_>, Absent> {
        Ok(Extent::Memory(self.place(range.start)))
    }

    fn read(&self, _space: u16, offset: u64, out: &mut [u8]) -> Result<(), Absent> {
        out.copy_from_slice(&self.place(offset)[..out.len()]);
        Ok(())
    }
}

/// An application that works on what it gets: hashes it so many times.
struct Working {
    times: u32,
}

impl Landing for Working {
    fn write(
        &mut self,
        _space: u16,
        _offset: u64,
        bytes: &[u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        for _ in 0..self.times {
            black_box(blake3::hash(bytes));
        }
        Ok(())
    }
}

/// What the two ends are to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct End<'a> {
    /// This program.
    pub program: &'a Path,
    pub lane: Lane,
    pub mtu: u32,
    pub plain: bool,
    pub bytes: u64,
    pub work: u32,
    pub late_ms: u32,
}

impl End<'_> {
    fn words(&self, address: SocketAddr) -> Vec<String> {
        let lane = match self.lane {
            Lane::Rbudp { rate, buffer } => format!(
                "rbudp --rate {} --receive-buffer {}",
                rate / 8,
                buffer.unwrap_or(0)
            ),
            Lane::Rapid { monitor, rate } => {
                format!("rapid --monitor {monitor} --rate {}", rate.unwrap_or(0) / 8)
            }
            Lane::Tcp(_) => "tcp".into(),
        };
        let plain = if self.plain { " --plain" } else { "" };
        crate::ropewalk::words(&format!(
            "reproduce lane-end {address} --bytes {} --mtu {} --work {} --late {}{plain} --lane {lane}",
            self.bytes, self.mtu, self.work, self.late_ms
        ))
    }

    /// Moves the bytes from one place to another.
    pub fn run(
        &self,
        from: Place<'_>,
        to: Place<'_>,
        sender: IpAddr,
        deadline: Duration,
    ) -> Result<Run> {
        let words = self.words(SocketAddr::new(sender, PORT));
        let mut command = from.command(self.program);
        command.args(&words);
        let sending = Process::start(command)?;
        match sending.line(WAIT)? {
            Some(line) if line == "listening" => {}
            _ => bail!("the sending end: {}", sending.stop()?.errors.trim()),
        }
        let mut command = to.command(self.program);
        command.args(&words).arg("--receive");
        let received = Process::start(command)?
            .finish(deadline)?
            .success("the receiving end")?;
        let sent = sending.finish(WAIT)?.success("the sending end")?;
        let line = received
            .output
            .last()
            .context("no report of the receiver")?;
        let mut run: Run =
            serde_json::from_str(line).with_context(|| format!("not a report: {line}"))?;
        run.sender_processor_seconds = sent.processor_seconds;
        run.receiver_processor_seconds = received.processor_seconds;
        Ok(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(lane: Carrier, late: u32, address: SocketAddr) -> EndArgs {
        EndArgs {
            address,
            receive: false,
            bytes: 3 * UNIT + 1,
            lane,
            rate: 50_000_000,
            mtu: 1500,
            monitor: Watcher::Ule,
            receive_buffer: 4 << 20,
            plain: false,
            work: 1,
            late,
        }
    }

    /// Each kind of lane moves everything into a sink that works; a monitor may be late.
    #[test]
    fn ends_move_everything() {
        for (lane, late) in [(Carrier::Tcp, 0), (Carrier::Rbudp, 0), (Carrier::Rapid, 20)] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let args = args(lane, late, listener.local_addr().unwrap());
            let sending = std::thread::spawn({
                let args = args.clone();
                move || send(&args, &listener)
            });
            let run = receive(&args).unwrap();
            sending.join().unwrap().unwrap();
            assert_eq!(run.bytes, args.bytes, "{lane:?}");
            assert_eq!(run.blast.is_some(), lane != Carrier::Tcp);
        }
    }
}
