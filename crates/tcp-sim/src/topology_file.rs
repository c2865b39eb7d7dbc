//! The text form of a network and its connections.
//!
//! ```text
//! # two senders behind one router
//! link  a  r   100Mbit 0.1ms
//! link  b  r   100Mbit 0.1ms  queue=100
//! link  r  z   10Mbit  20ms   loss=0.001  back-rate=1Mbit
//! flow  a  z   bytes=8MB  streams=4
//! flow  b  z   bytes=8MB  flavour=cubic  start=1s
//! ```
//!
//! Links go both ways. The way back from the second node has the same rate, latency and queue and loses nothing, unless
//! `back-rate`, `back-latency`, `back-queue` and `back-loss` say otherwise. Connections take a way with the fewest links.

use std::collections::BTreeMap;
use std::fmt;

use ropewalk_model::units::UnitError;
use ropewalk_model::{ByteRate, Bytes};

use super::scenario::{CONNECTIONS_MAX, FlowSpec};
use super::tcp::FlavourName;
use super::topology::{Link, Topology};

/// Queue of a link whose line says nothing.
const QUEUE: usize = 50;

/// Streams of one line; more only take time.
const STREAMS_MAX: u64 = 100_000;

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    /// Counted from 1; 0: the file as a whole.
    pub line: usize,
    /// What, and what to write instead.
    pub what: LineError,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => self.what.fmt(f),
            line => write!(f, "line {line}: {}", self.what),
        }
    }
}

impl std::error::Error for FileError {}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// The file has no connections.
    #[error("there is no `flow` line, so nothing to simulate")]
    NoFlow,
    /// Its first word, and how many there are.
    #[error(
        "\"{0}\" with {1} fields is neither `link FROM TO RATE LATENCY [queue=N] [loss=P] [back-rate=RATE]` nor `flow FROM TO bytes=SIZE [streams=N] [flavour=NAME] [start=TIME]`"
    )]
    Kind(String, usize),
    /// More connections than are simulated.
    #[error("with this line they are more than {CONNECTIONS_MAX} connections")]
    Connections,
    /// Both ends are one node.
    #[error("a link from {0} to itself leads nowhere")]
    Loop(String),
    /// A connection with an end that no link has.
    #[error("no link above leads to {0}")]
    Node(String),
    /// A connection without a size.
    #[error("a flow needs bytes=SIZE")]
    NoBytes,
    /// A size or rate.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// A time.
    #[error(transparent)]
    Time(#[from] TimeError),
    /// A queue, as in the file.
    #[error("{0}: write a number of packets")]
    Queue(String),
    /// A loss, as in the file.
    #[error("{0}: write a probability as 0.001")]
    Loss(String),
    /// A number of streams.
    #[error("streams={0}: write 1 to {STREAMS_MAX}")]
    Streams(String),
    /// A flavour.
    #[error("flavour={0}: write one of {names}", names = FlavourName::ALL.map(|flavour| flavour.name()).join(", "))]
    Flavour(String),
    /// An option that a link does not have.
    #[error(
        "\"{0}\": a link has queue=N and loss=P, and of its way back back-rate=RATE, back-latency=TIME, back-queue=N and back-loss=P"
    )]
    LinkOption(String),
    /// An option that a connection does not have.
    #[error("\"{0}\": a flow has bytes=SIZE, streams=N, flavour=NAME and start=TIME")]
    FlowOption(String),
}

/// A text that is no time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no time: write 20ms, 0.1ms, 3s or 50us")]
pub struct TimeError(pub String);

/// A time as people write it: `20ms`, `0.1 ms`, `3s`, `50us`.
///
/// # Errors
/// [`TimeError`] says what was expected.
pub fn seconds(text: &str) -> Result<f64, TimeError> {
    let trimmed = text.trim();
    let split = trimmed
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let parts_per_second = match unit {
        "s" => 1.0,
        "ms" => 1e3,
        "us" => 1e6,
        "ns" => 1e9,
        "" if number == "0" => 1.0,
        _ => return Err(TimeError(text.to_owned())),
    };
    match number.trim().parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value / parts_per_second),
        _ => Err(TimeError(text.to_owned())),
    }
}

/// Reads a network and its connections, with packets of `packet_bytes`.
///
/// # Errors
/// [`FileError`] names the line.
pub fn parse(text: &str, packet_bytes: u32) -> Result<(Topology, Vec<FlowSpec>), FileError> {
    let mut topology = Topology::default();
    let mut nodes = BTreeMap::new();
    let mut flows: Vec<FlowSpec> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        let read = match words.as_slice() {
            [] => Ok(()),
            ["link", from, to, rate, latency, options @ ..] => link(
                &mut topology,
                &mut nodes,
                [from, to, rate, latency],
                options,
            ),
            ["flow", from, to, options @ ..] => flow(&nodes, from, to, options, packet_bytes)
                .and_then(|more| {
                    flows.extend(more);
                    match flows.len() as u64 > CONNECTIONS_MAX {
                        true => Err(LineError::Connections),
                        false => Ok(()),
                    }
                }),
            [first, ..] => Err(LineError::Kind((*first).to_owned(), words.len())),
        };
        read.map_err(|what| FileError { line: number, what })?;
    }
    if flows.is_empty() {
        return Err(FileError {
            line: 0,
            what: LineError::NoFlow,
        });
    }
    Ok((topology, flows))
}

/// Numbers of nodes by their names; looking through all of them for each line would take hours of a large file.
type Nodes = BTreeMap<String, usize>;

fn node(topology: &mut Topology, nodes: &mut Nodes, name: &str) -> usize {
    if let Some(&known) = nodes.get(name) {
        return known;
    }
    let number = topology.add(name.to_owned());
    nodes.insert(name.to_owned(), number);
    number
}

fn link(
    topology: &mut Topology,
    nodes: &mut Nodes,
    words: [&&str; 4],
    options: &[&str],
) -> Result<(), LineError> {
    let [from, to, rate, latency] = words;
    let mut link = Link {
        from: node(topology, nodes, from),
        to: node(topology, nodes, to),
        bits_per_second: bits_per_second(rate)?,
        latency_seconds: seconds(latency)?,
        queue: QUEUE,
        loss: 0.0,
    };
    if link.from == link.to {
        return Err(LineError::Loop((**from).to_owned()));
    }
    // The way back is as the way there is in the end, whatever the order of the options.
    for option in options.iter().filter(|option| !option.starts_with(BACK)) {
        set(&mut link, option, option)?;
    }
    let mut back = link.reversed();
    for option in options {
        if let Some(of_back) = option.strip_prefix(BACK) {
            match of_back.split_once('=') {
                Some(("rate", value)) => back.bits_per_second = bits_per_second(value)?,
                Some(("latency", value)) => back.latency_seconds = seconds(value)?,
                _ => set(&mut back, of_back, option)?,
            }
        }
    }
    topology.links.extend([link, back]);
    Ok(())
}

/// Begins options of the way back.
const BACK: &str = "back-";

fn bits_per_second(text: &str) -> Result<f64, LineError> {
    let rate: ByteRate = text.parse()?;
    Ok(rate.bits_per_second() as f64)
}

// What can be said of both directions; `written` is the option as it stands in the file.
fn set(link: &mut Link, option: &str, written: &str) -> Result<(), LineError> {
    match option.split_once('=') {
        Some(("queue", value)) => {
            link.queue = value
                .parse()
                .map_err(|_| LineError::Queue(written.to_owned()))?;
        }
        Some(("loss", value)) => {
            link.loss = value
                .parse()
                .map_err(|_| LineError::Loss(written.to_owned()))?;
        }
        _ => return Err(LineError::LinkOption(written.to_owned())),
    }
    Ok(())
}

fn flow(
    nodes: &Nodes,
    from: &str,
    to: &str,
    options: &[&str],
    packet_bytes: u32,
) -> Result<Vec<FlowSpec>, LineError> {
    let known = |name: &str| {
        let at = nodes.get(name).copied();
        at.ok_or_else(|| LineError::Node(name.to_owned()))
    };
    let (mut bytes, mut streams, mut flavour, mut start) = (None, 1_u64, FlavourName::Reno, 0.0);
    for option in options {
        match option.split_once('=') {
            Some(("bytes", value)) => {
                let size: Bytes = value.parse()?;
                bytes = Some(size.0);
            }
            Some(("streams", value)) => {
                streams = value
                    .parse()
                    .ok()
                    .filter(|many| (1..=STREAMS_MAX).contains(many))
                    .ok_or_else(|| LineError::Streams(value.to_owned()))?;
            }
            Some(("flavour", value)) => {
                flavour = FlavourName::named(value)
                    .ok_or_else(|| LineError::Flavour(value.to_owned()))?;
            }
            Some(("start", value)) => start = seconds(value)?,
            _ => return Err(LineError::FlowOption((*option).to_owned())),
        }
    }
    let bytes = bytes.ok_or(LineError::NoBytes)?;
    let packets = bytes.div_ceil(u64::from(packet_bytes.max(1)));
    let (from, to) = (known(from)?, known(to)?);
    let part = |stripe: u64| FlowSpec {
        from,
        to,
        packets: u32::try_from(packets / streams + u64::from(stripe < packets % streams))
            .unwrap_or(u32::MAX),
        flavour,
        start_seconds: start,
    };
    Ok((0..streams).map(part).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything a line can say is read; comments and empty lines are not.
    #[test]
    fn reads() {
        let text = "# a net\nlink a r 100Mbit 0.1ms\n\nlink r z 10Mbit 20ms queue=7 loss=0.01 # slow\n\
                    flow a z bytes=10kB streams=3 flavour=vegas start=1.5s\n";
        let (net, flows) = parse(text, 1000).unwrap();
        assert_eq!(net.nodes, ["a", "r", "z"]);
        assert_eq!(net.links.len(), 4);
        assert_eq!((net.links[2].queue, net.links[3].loss), (7, 0.0));
        assert!((net.links[2].loss - 0.01).abs() < 1e-12);
        let packets: Vec<u32> = flows.iter().map(|flow| flow.packets).collect();
        assert_eq!(packets, [4, 3, 3]);
        assert_eq!(flows[0].flavour, FlavourName::Vegas);
        assert!((flows[0].start_seconds - 1.5).abs() < 1e-12);
    }

    /// The way back is as the way there, but for the loss and what is said of it.
    #[test]
    fn ways_back() {
        let text = "link a b 8Mbit 20ms back-rate=1Mbit back-loss=0.25 queue=7 loss=0.5\n\
                    link b c 8Mbit 20ms back-queue=9 back-latency=1ms\nflow a c bytes=1MB\n";
        let (net, _) = parse(text, 1000).unwrap();
        let seen = net.links.iter().map(|link| {
            (
                link.from,
                link.bits_per_second,
                link.latency_seconds,
                link.queue,
                link.loss,
            )
        });
        let expected = [
            (0, 8e6, 0.02, 7, 0.5),
            (1, 1e6, 0.02, 7, 0.25),
            (1, 8e6, 0.02, QUEUE, 0.0),
            (2, 8e6, 0.001, 9, 0.0),
        ];
        assert_eq!(seen.collect::<Vec<_>>(), expected);
    }

    /// Errors name the line and what could be written.
    #[test]
    fn refusals() {
        let flows = "flow a b bytes=1GB streams=100000\n".repeat(11);
        let many = format!("link a b 1Mbit 1ms\n{flows}");
        for (text, line, word) in [
            ("link a b", 1, "link FROM TO"),
            ("\nlink a b 3Foo 1ms", 2, "Foo"),
            ("link a b 1Mbit 1", 1, "no time"),
            ("link a a 1Mbit 1ms", 1, "itself"),
            ("link a b 1Mbit 1ms rate=2Mbit", 1, "back-rate=RATE"),
            ("link a b 1Mbit 1ms back-rate=2", 1, "2"),
            ("link a b 1Mbit 1ms back-queue=x", 1, "back-queue=x"),
            ("link a b 1Mbit 1ms\nflow a c bytes=1MB", 2, "c"),
            ("link a b 1Mbit 1ms\nflow a b", 2, "bytes=SIZE"),
            (
                "link a b 1Mbit 1ms\nflow a b bytes=1MB flavour=bbr",
                2,
                "cubic",
            ),
            ("link a b 1Mbit 1ms", 0, "no `flow`"),
            (many.as_str(), 12, "connections"),
        ] {
            let error = parse(text, 1000).unwrap_err();
            assert_eq!(error.line, line, "{text}");
            let what = error.what.to_string();
            assert!(what.contains(word), "{what}");
        }
    }

    /// Times in the units people use.
    #[test]
    fn times() {
        assert_eq!(seconds("20ms"), Ok(0.02));
        assert_eq!(seconds("0.1ms"), Ok(0.0001));
        assert_eq!(seconds("3s"), Ok(3.0));
        assert_eq!(seconds("0"), Ok(0.0));
        assert!(seconds("20").is_err() && seconds("-1s").is_err() && seconds("ms").is_err());
    }
}
