//! `pingpong`: the measurement of the MuniSocket paper. One host serves, the other sends messages of every size
//! and waits for their return, over plain TCP on the first rail, over plain TCP connections that each carry an
//! equal part, and over message sockets. With `--stream`, messages go one way, back to back.
//!
//! ```text
//!   bandwidth  = (8 size / 10^6) / (round trip / 2)             Mbit/s
//!   efficiency = bandwidth / (bandwidth of TCP x rails) x 100   percent
//! ```

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use ropewalk_message::{CutOff, Listener, MessageError, MessageSocket, Method, Options};
use ropewalk_model::Bytes;

use ropewalk_cli::{Usage, remembering_file, sys, token};

mod cpu;
mod order;
mod plain;
mod report;
mod serve;
mod stream;

use cpu::Clock;
use order::{ORDER_LEN, Order, PlainOrder, WELCOME_MAX};
use plain::Split;
use report::{CutOffSource, CutOffUsed, CutOffs, Point, Report, Stream, finite};

/// Where the measurement listens unless told otherwise.
const PORT: u16 = 7430;
/// Time that each point may take, and rounds it has at least and at most, unless `--rounds` says otherwise.
const POINT: Duration = Duration::from_millis(300);
const ROUNDS_MIN: u32 = 3;
const ROUNDS_MAX: u32 = 2000;
/// Rounds before counting begins: connections and caches get warm.
const WARM_UP: u32 = 2;
/// Longest time for one message; a path that is slower is not worth measuring.
const PATIENCE: Duration = Duration::from_secs(60);
/// The largest message: what both ends hold in memory.
const SIZE_MAX: u64 = 1 << 30;
/// Sizes of the sweep that the cut-off is compared with, as powers of two; of these, only what `--sizes` covers.
const SWEEP: std::ops::RangeInclusive<u32> = 6..=20;

/// How many rounds a point has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rounds {
    /// Exactly so many.
    Exact(u32),
    /// As many as fit [`POINT`], at least [`ROUNDS_MIN`] where that is not above the number here, and at most this number.
    Fit(u32),
}

impl Rounds {
    /// What `--rounds` asks for.
    fn asked(rounds: Option<u32>) -> Self {
        rounds.map_or(Self::Fit(ROUNDS_MAX), Self::Exact)
    }

    /// Rounds of a point that was not asked for itself: bounded by time and by what was asked for.
    fn bounded(rounds: Option<u32>) -> Self {
        Self::Fit(rounds.unwrap_or(ROUNDS_MAX).min(ROUNDS_MAX))
    }

    /// Whether the point ends with round number `done`, `elapsed` after its first.
    fn is_last(self, done: u32, elapsed: Duration) -> bool {
        match self {
            Self::Exact(rounds) => done >= rounds,
            Self::Fit(most) => done >= most || (done >= ROUNDS_MIN && elapsed >= POINT),
        }
    }
}

/// Arguments of `ropewalk-bench pingpong`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct PingPongArgs {
    /// The other host, once for each rail: its address on that network, with :PORT where it is not 7430. With --serve:
    /// the addresses to listen on [default with --serve: 127.0.0.1]
    #[arg(value_name = "HOST", required_unless_present = "serve")]
    hosts: Vec<String>,

    /// Answer measurements until interrupted
    #[arg(long, conflicts_with_all = ["sizes", "rounds", "rails", "mode", "json", "quick", "stream", "cut_offs"])]
    serve: bool,

    /// Message sizes, powers of two
    #[arg(long, value_name = "A..B", default_value = "1..16MiB", value_parser = sizes)]
    sizes: Sizes,

    /// Rounds of each point [default: as many as fit 0.3 s, 3 to 2000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rounds: Option<u32>,

    /// Own addresses, one for each rail; without a source rule for it, an address does not choose its interface
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    rails: Vec<IpAddr>,

    /// Send this many bytes one way, in messages of each size back to back, and report what the other end saw
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["rounds", "quick"])]
    stream: Option<Bytes>,

    /// What is measured; round trips always beside plain TCP; repeat for several [default: all but single]
    #[arg(long, value_name = "MODE")]
    mode: Vec<Mode>,

    /// No search for the cut-off, and no sweep over --sizes: the remembered one is used, else 32 KiB
    #[arg(long)]
    quick: bool,

    /// Cut-offs that earlier measurements between the same hosts and rails found within 7 days, for --quick and --stream;
    /// others measure it again and keep it: auto ($XDG_STATE_HOME/ropewalk/cut-offs.json or
    /// ~/.local/state/ropewalk/cut-offs.json), off (neither used nor kept), or a file
    #[arg(long, value_name = "WHERE", default_value = "auto")]
    cut_offs: OsString,

    /// Data crosses a network in the clear; needed for addresses that are not on this host
    #[arg(long)]
    plain: bool,

    /// A secret that both ends prove: 64 hexadecimal digits in a file of mode 0600
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// One JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ropewalk-bench pingpong --serve 127.0.0.1 127.0.0.2
  ropewalk-bench pingpong 127.0.0.1 127.0.0.2
      on one host
  ropewalk-bench pingpong --plain --serve 10.0.0.5 10.0.1.5
  ropewalk-bench pingpong --plain --rails 10.0.0.4,10.0.1.4 10.0.0.5 10.0.1.5
      two networks between two hosts, each rail bound to its own address
  ropewalk-bench pingpong --plain --stream 1GiB --sizes 16MiB --mode enhanced 10.0.0.5 10.0.1.5
      one way, several messages in flight; --json has the bytes of each rail every 20 ms

Bandwidth is 8 x size / (round trip / 2), of medians; efficiency is that of TCP on the first rail times the number
of rails. CPU is that of this host, all of its processors together, while the point was measured.

Exit status: 0 done, 1 failed, or messages of a stream were lost, doubled, out of order or damaged,
2 usage.";

impl PingPongArgs {
    /// Refuses what would come to nothing in the middle of the measurement.
    fn verify(&self, addresses: &[SocketAddr]) -> Result<()> {
        let rails = rails(addresses, &self.rails);
        if self.mode.contains(&Mode::TcpSplit) && (rails < 2 || rails != addresses.len()) {
            bail!(NO_SPLIT);
        }
        let Some(total) = self.stream else {
            return Ok(());
        };
        for size in self.sizes.all() {
            let many = total.0 / size;
            if size < stream::MESSAGE_MIN || !(1..=stream::MESSAGES_MAX).contains(&many) {
                bail!(
                    "{total} in messages of {} is no stream; give --sizes of at least {} and at most {} messages",
                    Bytes(size),
                    Bytes(stream::MESSAGE_MIN),
                    stream::MESSAGES_MAX
                );
            }
        }
        Ok(())
    }
}

/// As many as there are addresses at the end that has more.
fn rails(peer: &[SocketAddr], local: &[IpAddr]) -> usize {
    peer.len().max(local.len())
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Plain TCP on the first rail
    Tcp,
    /// Plain TCP on every rail, each connection carries an equal part
    TcpSplit,
    /// The message socket on its best rail
    Single,
    /// Equal parts, one for each rail
    Basic,
    /// One rail below the cut-off, above it small fragments that rails pull
    Enhanced,
}

impl Mode {
    /// How the message socket works; `None` for plain TCP.
    fn of_socket(self) -> Option<ropewalk_message::Mode> {
        match self {
            Self::Tcp | Self::TcpSplit => None,
            Self::Single => Some(ropewalk_message::Mode::Single),
            Self::Basic => Some(ropewalk_message::Mode::Basic),
            Self::Enhanced => Some(ropewalk_message::Mode::Enhanced),
        }
    }

    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Powers of two from the first to the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes(u64, u64);

impl Sizes {
    /// Those that the sweep measures, too.
    fn of_sweep(self) -> impl Iterator<Item = u64> {
        SWEEP
            .map(|power| 1 << power)
            .filter(move |size| (self.0..=self.1).contains(size))
    }

    fn all(self) -> impl Iterator<Item = u64> {
        let next = move |size: &u64| Some(size * 2).filter(|next| *next <= self.1);
        std::iter::successors(Some(self.0), next)
    }
}

fn sizes(text: &str) -> Result<Sizes, String> {
    let bad = || "write A..B with powers of two up to 1GiB, for instance 1..16MiB".to_owned();
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let read = |text: &str| match text.parse::<Bytes>() {
        Ok(size) if size.0.is_power_of_two() && size.0 <= SIZE_MAX => Ok(size.0),
        _ => Err(bad()),
    };
    let sizes = Sizes(read(first)?, read(last)?);
    if sizes.0 > sizes.1 {
        return Err(bad());
    }
    Ok(sizes)
}

/// Serves, or measures and prints.
pub(crate) fn run(args: &PingPongArgs) -> Result<ExitCode> {
    let mut options = Options {
        plain: args.plain,
        local: args.rails.clone(),
        deadline: Some(PATIENCE),
        // Found when it is asked for, or by the measurement itself.
        cut_off: CutOff::Fixed(DEFAULT_CUT_OFF),
        cut_offs: remembering_file(&args.cut_offs, "cut-offs.json"),
        ..Options::default()
    };
    if args.token_file.is_some() {
        options.token = Some(token::load(args.token_file.as_deref())?);
    }
    let mut addresses = Vec::new();
    for host in &args.hosts {
        addresses.push(resolve(host)?);
    }
    if args.serve {
        if addresses.is_empty() {
            addresses.push(SocketAddr::from(([127, 0, 0, 1], PORT)));
        }
        let listener = Listener::bind(
            &addresses,
            &Options {
                deadline: None,
                ..options
            },
        )?;
        return serve::run(&listener);
    }
    args.verify(&addresses).map_err(Usage)?;
    let measurement = Measurement::connect(&addresses, &options)?;
    if args.mode.contains(&Mode::TcpSplit) && measurement.split.is_none() {
        bail!(NO_SPLIT);
    }
    let report = match args.stream {
        Some(total) => measurement.run_streams(args, total.0)?,
        None => measurement.run(args)?,
    };
    if args.json {
        sys::say(format_args!("{}", serde_json::to_string(&report)?));
    } else {
        report::print(&report);
    }
    Ok(ExitCode::from(report.exit_status()))
}

/// The cut-off where none is looked for.
const DEFAULT_CUT_OFF: u64 = 32 << 10;

fn resolve(text: &str) -> Result<SocketAddr> {
    // The last group of an IPv6 address is no port.
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, PORT));
    }
    let with_port = || text.to_socket_addrs().ok()?.next();
    let without = || (text, PORT).to_socket_addrs().ok()?.next();
    with_port()
        .or_else(without)
        .with_context(|| format!("{text} is no host, and no HOST:PORT"))
}

/// Every address that was named is one that the peer serves; the others' ports are somewhere else.
fn verify_served(named: &[SocketAddr], ports: &[SocketAddr]) -> Result<()> {
    for address in named {
        if order::port_at(ports, address.ip()).is_some() {
            continue;
        }
        let mut served: Vec<String> = ports.iter().map(|port| port.ip().to_string()).collect();
        served.dedup();
        bail!(
            "the peer serves {}, not {}: name addresses that it was given with --serve",
            served.join(" and "),
            address.ip().to_canonical()
        );
    }
    Ok(())
}

/// The connections of a measurement.
struct Measurement {
    socket: MessageSocket,
    rails: usize,
    /// Plain TCP on the first rail.
    tcp: TcpStream,
    /// Plain TCP on every rail, where every one has an address of its own.
    split: Option<Split>,
    message: Vec<u8>,
}

impl Measurement {
    fn connect(addresses: &[SocketAddr], options: &Options) -> Result<Self> {
        let socket = MessageSocket::connect(addresses, options)?;
        let mut room = [0; WELCOME_MAX];
        let length = match socket.receive(&mut room) {
            Ok(Some(length)) => length,
            Ok(None) | Err(MessageError::PeerClosed) => {
                bail!("the peer serves no measurements, or as many as it can at once")
            }
            Err(error) => return Err(error.into()),
        };
        let (ports, ticket) =
            order::read_welcome(&room[..length]).context("the peer serves no measurements")?;
        verify_served(addresses, &ports)?;
        let rails = rails(addresses, &options.local);
        let mut left = ports;
        // `None` when an address is named more often than the peer serves it.
        let mut connect = |rail: usize| -> Result<Option<TcpStream>> {
            let mut peer = addresses[rail];
            let Some(place) = order::port_at(&left, peer.ip()) else {
                return Ok(None);
            };
            peer.set_port(left.remove(place).port());
            let local = options
                .local
                .get(rail % options.local.len().max(1))
                .copied();
            plain::connect(local, peer, &ticket).map(Some)
        };
        let tcp = connect(0)?.context("the peer has no port for plain TCP")?;
        let each: Option<Vec<TcpStream>> = match rails > 1 && rails == addresses.len() {
            true => (0..rails).map(&mut connect).collect::<Result<_>>()?,
            false => None,
        };
        let split = each.map(Split::new);
        Ok(Self {
            rails,
            socket,
            tcp,
            split: split.transpose()?,
            message: Vec::new(),
        })
    }

    /// What was asked for, or what can be.
    fn modes(&self, args: &PingPongArgs) -> Vec<Mode> {
        if !args.mode.is_empty() {
            return args.mode.clone();
        }
        let split = self.split.as_ref().map(|_| Mode::TcpSplit);
        split
            .into_iter()
            .chain([Mode::Basic, Mode::Enhanced])
            .collect()
    }

    /// The remembered cut-off, or the default; a file that cannot be used is worth a word and nothing more.
    fn recall(&self) -> CutOffUsed {
        match self.socket.recall_cut_off() {
            Ok(Some(recalled)) => CutOffUsed {
                bytes: finite(recalled.bytes),
                source: CutOffSource::Remembered,
                age_seconds: Some(recalled.age.as_secs()),
            },
            Ok(None) => CutOffUsed::DEFAULT,
            Err(error) => {
                eprintln!("ropewalk: {error}");
                CutOffUsed::DEFAULT
            }
        }
    }

    fn run(mut self, args: &PingPongArgs) -> Result<Report> {
        let modes = self.modes(args);
        let several = self.rails > 1 && modes.contains(&Mode::Enhanced);
        let (mut cut_off, mut used) = (None, CutOffUsed::DEFAULT);
        if several && args.quick {
            used = self.recall();
        } else if several {
            let fit = self.socket.find_cut_off(Method::Fit)?;
            let search = self.socket.find_cut_off(Method::Search)?;
            if let Some(search) = search {
                used.bytes = finite(search);
                used.source = CutOffSource::Measured;
            }
            if let Err(error) = self.socket.remember_cut_off() {
                eprintln!("ropewalk: {error}");
            }
            cut_off = Some(CutOffs {
                fit_bytes: fit.and_then(finite),
                search_bytes: search.and_then(finite),
                sweep_bytes: self.sweep(args.sizes, Rounds::bounded(args.rounds))?,
            });
        }
        let mut points = Vec::new();
        let rounds = Rounds::asked(args.rounds);
        for size in args.sizes.all() {
            let tcp = self.measure_tcp(size, rounds)?;
            for mode in modes.iter().filter(|mode| **mode != Mode::Tcp) {
                let mut point = match mode.of_socket() {
                    Some(_) => self.measure(*mode, used.bytes(), size, rounds)?,
                    None => self.measure_split(size, rounds)?,
                };
                let share = point.bits_per_second / (tcp.bits_per_second * self.rails as f64);
                point.efficiency_percent = Some(share * 100.0);
                points.push(point);
            }
            points.push(tcp);
        }
        Ok(Report {
            rails: self.rails,
            points,
            cut_off,
            cut_off_used: several.then_some(used),
            streams: Vec::new(),
        })
    }

    /// The least power of two from which on all rails stay faster than the best one.
    fn sweep(&mut self, sizes: Sizes, rounds: Rounds) -> Result<Option<u64>> {
        let mut found = None;
        for size in sizes.of_sweep() {
            let one = self.measure(Mode::Single, 0, size, rounds)?;
            let all = self.measure(Mode::Enhanced, 0, size, rounds)?;
            if all.round_trip_seconds >= one.round_trip_seconds {
                found = None;
            } else if found.is_none() {
                found = Some(size);
            }
        }
        Ok(found)
    }

    fn measure_tcp(&mut self, size: u64, rounds: Rounds) -> Result<Point> {
        self.message.resize(usize::try_from(size)?, 0x5a);
        let (tcp, message) = (&mut self.tcp, &mut self.message);
        // Both ends know the size beforehand, as with any plain protocol.
        tcp.write_all(&PlainOrder { size, stream: 0 }.encode())?;
        let point = point("tcp", size, rounds, |last| {
            // One byte apart from the message tells whether another round follows.
            message[0] = u8::from(last);
            tcp.write_all(message)?;
            tcp.read_exact(message)?;
            Ok(())
        })?;
        Ok(point)
    }

    fn measure_split(&mut self, size: u64, rounds: Rounds) -> Result<Point> {
        self.message.resize(usize::try_from(size)?, 0x5a);
        let message = &mut self.message;
        let split = self.split.as_mut().context(NO_SPLIT)?;
        split.order(message.len(), 0)?;
        point(&Mode::TcpSplit.name(), size, rounds, |last| {
            split.round(message, last)
        })
    }

    fn measure(&mut self, mode: Mode, cut_off: u64, size: u64, rounds: Rounds) -> Result<Point> {
        self.message.resize(usize::try_from(size)?, 0x5a);
        self.order(mode, cut_off, size, None)?;
        let (socket, message) = (&self.socket, &mut self.message);
        point(&mode.name(), size, rounds, |last| {
            message[0] = u8::from(last);
            socket.send(message)?;
            match socket.receive(message)? {
                Some(length) if length as u64 == size => Ok(()),
                _ => bail!("the peer answers with another message"),
            }
        })
    }

    /// Tells the peer, and this end's socket, how what follows goes.
    fn order(&self, mode: Mode, cut_off: u64, size: u64, stream: Option<u64>) -> Result<()> {
        let mode = mode.of_socket().context("plain TCP takes no orders")?;
        let order = Order {
            mode,
            cut_off,
            size,
            stream,
        };
        self.socket.set_mode(mode);
        self.socket.set_cut_off(cut_off);
        self.socket.send(&order.encode())?;
        Ok(())
    }

    fn run_streams(mut self, args: &PingPongArgs, total: u64) -> Result<Report> {
        let mut modes = self.modes(args);
        if args.mode.is_empty() {
            modes.insert(0, Mode::Tcp);
        }
        let several = self.rails > 1 && modes.contains(&Mode::Enhanced);
        let used = several.then(|| self.recall());
        let cut_off = used.unwrap_or(CutOffUsed::DEFAULT).bytes();
        let mut streams = Vec::new();
        for size in args.sizes.all() {
            for mode in &modes {
                streams.push(self.stream(*mode, cut_off, size, total)?);
            }
        }
        Ok(Report {
            rails: self.rails,
            points: Vec::new(),
            cut_off: None,
            cut_off_used: used,
            streams,
        })
    }

    fn stream(&mut self, mode: Mode, cut_off: u64, size: u64, total: u64) -> Result<Stream> {
        let many = total / size;
        self.message.resize(usize::try_from(size)?, 0x5a);
        let clock = Clock::start();
        let begun = Instant::now();
        let seen = match mode {
            Mode::Tcp => {
                self.tcp
                    .write_all(&PlainOrder { size, stream: many }.encode())?;
                for _ in 0..many {
                    self.tcp.write_all(&self.message)?;
                }
                self.tcp.read_exact(&mut [0])?;
                None
            }
            Mode::TcpSplit => {
                let split = self.split.as_mut().context(NO_SPLIT)?;
                split.order(self.message.len(), many)?;
                split.stream(&self.message, many)?;
                None
            }
            Mode::Single | Mode::Basic | Mode::Enhanced => {
                self.order(mode, cut_off, size, Some(many))?;
                Some(stream::send(&self.socket, size, many)?)
            }
        };
        let seconds = begun.elapsed().as_secs_f64().max(1e-9);
        Ok(Stream {
            bytes: size,
            method: mode.name(),
            messages: many,
            seconds,
            bits_per_second: 8.0 * (size * many) as f64 / seconds,
            cpu_percent: clock.busy_percent(),
            own_cpu_percent: clock.own_percent(),
            seen,
        })
    }
}

const NO_SPLIT: &str = "tcp-split needs two rails or more, each with an address of its own";

/// Runs rounds until there are enough; `round` is told whether it is the last.
fn point(
    method: &str,
    size: u64,
    rounds: Rounds,
    mut round: impl FnMut(bool) -> Result<()>,
) -> Result<Point> {
    let mut took = Vec::new();
    for _ in 0..WARM_UP {
        round(false)?;
    }
    let clock = Clock::start();
    let begun = Instant::now();
    loop {
        let done = took.len() as u32 + 1;
        let last = rounds.is_last(done, begun.elapsed());
        let from = Instant::now();
        round(last)?;
        took.push(from.elapsed());
        if last {
            break;
        }
    }
    took.sort_unstable();
    let median = took[took.len() / 2].as_secs_f64().max(1e-9);
    Ok(Point {
        bytes: size,
        method: method.to_owned(),
        rounds: took.len() as u32,
        round_trip_seconds: median,
        bits_per_second: 8.0 * size as f64 / (median / 2.0),
        efficiency_percent: None,
        cpu_percent: clock.busy_percent(),
        own_cpu_percent: clock.own_percent(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranges of powers of two are read, anything else is explained.
    #[test]
    fn sizes_are_powers_of_two() {
        assert_eq!(sizes("1..16MiB"), Ok(Sizes(1, 16 << 20)));
        assert_eq!(sizes("64KiB"), Ok(Sizes(64 << 10, 64 << 10)));
        for text in ["", "3..8", "8..4", "0..1", "1..2GiB", "1..1MB"] {
            assert!(sizes(text).unwrap_err().contains("powers of two"), "{text}");
        }
    }

    /// An address alone is no host with a port, whichever kind it is of.
    #[test]
    fn addresses_are_no_ports() {
        for (text, address) in [
            ("fd00::5:1", "[fd00::5:1]:7430"),
            ("::1", "[::1]:7430"),
            ("[::1]:9", "[::1]:9"),
            ("127.0.0.1", "127.0.0.1:7430"),
            ("127.0.0.1:9", "127.0.0.1:9"),
        ] {
            assert_eq!(resolve(text).unwrap(), address.parse().unwrap(), "{text}");
        }
    }

    /// The sweep stays within the sizes that were asked for, and its points within the rounds and the time.
    #[test]
    fn the_sweep_is_bounded_by_sizes_and_rounds() {
        let swept = |from, to| Sizes(from, to).of_sweep().collect::<Vec<_>>();
        assert_eq!(swept(1, 256), [64, 128, 256]);
        assert_eq!(swept(1 << 20, 16 << 20), [1 << 20]);
        assert!(swept(1, 32).is_empty());
        let (soon, late) = (Duration::ZERO, POINT);
        assert_eq!(Rounds::bounded(Some(1500)), Rounds::Fit(1500));
        assert_eq!(Rounds::bounded(Some(1_000_000)), Rounds::Fit(ROUNDS_MAX));
        assert!(Rounds::bounded(Some(1)).is_last(1, soon));
        assert!(!Rounds::Fit(1500).is_last(1499, soon) && Rounds::Fit(1500).is_last(1500, soon));
        assert!(Rounds::Fit(1500).is_last(ROUNDS_MIN, late));
        assert!(!Rounds::Exact(1500).is_last(ROUNDS_MIN, late));
    }

    /// The last round is told so, and the median is what counts.
    #[test]
    fn rounds_are_counted() {
        let mut seen = Vec::new();
        let point = point("tcp", 1 << 20, Rounds::Exact(4), |last| {
            seen.push(last);
            Ok(())
        });
        assert_eq!(seen, [false, false, false, false, false, true]);
        assert_eq!(point.unwrap().rounds, 4);
    }
}
