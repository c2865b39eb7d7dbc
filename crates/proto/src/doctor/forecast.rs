//! The rule: from measurements to a rate, to what binds, to settings.

use super::{Forecast, HostReport, RunReport, SettingAdvice};
use crate::report::{BottleneckCause, BottleneckReport};

/// A speed for which windows are made large enough where no interface says its own, in bits per second.
const SPEED_UNKNOWN: f64 = 1e9;

/// A buffer is so many times the window: the kernel keeps as much for its headers as for bytes.
const HEADERS: f64 = 2.0;

/// Segments sent again, of all, from which on a congestion control that does not take losses for queues helps.
const LOSS: f64 = 0.003;

/// Fewer open files than this run out with some hundred streams and the files of a tree.
const OPEN_FILES_MIN: u64 = 4096;

/// Transfers that were tried from one host to another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Runs {
    /// Memory to memory over one stream.
    pub one_stream: Option<RunReport>,
    /// The same over as many as a copy takes.
    pub streams: Option<RunReport>,
    /// From folder to folder.
    pub files: Option<RunReport>,
}

/// What a transfer would take.
///
/// The rate is that of the run that is most like it. A run of files has its sync at the end; more bytes take as much more of that. What was
/// just written is read from memory: where the disk is slower than the run, it binds. A cause is that of the largest share; the time before
/// the first byte is none, as it does not grow with the bytes.
#[must_use]
pub fn forecast(sender: &HostReport, receiver: &HostReport, runs: Runs) -> Forecast {
    let like = runs.files.as_ref().or(runs.streams.as_ref());
    let mut bound_by = like.and_then(largest);
    let mut rate = like.map(whole_rate);
    let read = sender
        .disk
        .as_ref()
        .map(|disk| disk.read_bytes_per_second as f64 * 8.0);
    let is_slower = |read: &f64| *read > 0.0 && rate.is_some_and(|rate| *read < rate);
    if let Some(read) = read.filter(is_slower).filter(|_| runs.files.is_some()) {
        rate = Some(read);
        bound_by = Some(BottleneckReport {
            cause: BottleneckCause::SourceDisk,
            node: Some(sender.node.clone()),
            peer: None,
            rail: None,
            share: 1.0,
        });
    }
    let start_seconds = like.map(|run| run.start_seconds + run.ramp_seconds);
    let settings = settings(sender, receiver, &runs);
    Forecast {
        sender: sender.node.clone(),
        receiver: receiver.node.clone(),
        error: None,
        one_stream: runs.one_stream,
        streams: runs.streams,
        files: runs.files,
        bits_per_second: rate,
        start_seconds,
        bound_by,
        settings,
    }
}

/// With the sync of each byte.
fn whole_rate(run: &RunReport) -> f64 {
    let bits = (run.bytes as f64 * 8.0).max(1.0);
    1.0 / (1.0 / run.bits_per_second.max(1e-9) + run.finish_seconds / bits)
}

fn largest(run: &RunReport) -> Option<BottleneckReport> {
    let before = [BottleneckCause::Starting, BottleneckCause::Opening];
    let moving = run.bottlenecks.iter();
    let moving = moving.filter(|one| !before.contains(&one.cause));
    let all: f64 = moving.clone().map(|one| one.share).sum();
    let first = moving.max_by(|a, b| a.share.total_cmp(&b.share))?;
    Some(BottleneckReport {
        share: first.share / all.max(1e-9),
        ..first.clone()
    })
}

fn settings(sender: &HostReport, receiver: &HostReport, runs: &Runs) -> Vec<SettingAdvice> {
    let all = [&runs.one_stream, &runs.streams, &runs.files];
    let all: Vec<&RunReport> = all.into_iter().flatten().collect();
    let mut found = windows(sender, receiver, &all);
    found.extend(losses(sender, &all));
    for host in [sender, receiver] {
        if host.open_files > 0 && host.open_files < OPEN_FILES_MIN {
            found.push(SettingAdvice {
                node: host.node.clone(),
                now: host.open_files.to_string(),
                command: "ulimit -n 65536".into(),
                reason: "each stream and each file in work takes an open file".into(),
            });
        }
    }
    found
}

/// Whether the kernel, or the report, said that a window was the limit.
fn was_windowed(run: &RunReport) -> bool {
    let network = run.network.as_ref();
    let is_cause = |one: &BottleneckReport| one.cause == BottleneckCause::Window;
    network.is_some_and(|network| network.window_bytes > 0)
        || largest(run).is_some_and(|one| is_cause(&one))
}

/// Windows that limit a stream, and what they would have to be.
fn windows(sender: &HostReport, receiver: &HostReport, runs: &[&RunReport]) -> Vec<SettingAdvice> {
    let trips = runs.iter().filter_map(|run| run.network.as_ref());
    let trips = trips.map(|network| network.least_round_trip_seconds);
    let trip = trips.filter(|trip| *trip > 0.0).fold(f64::MAX, f64::min);
    let seen = runs.iter().map(|run| run.bits_per_second);
    let seen = seen.fold(0.0, f64::max);
    // Of what several streams carry, one could not have more than its buffers hold.
    let buffers = [
        (receiver, "net.ipv4.tcp_rmem"),
        (sender, "net.ipv4.tcp_wmem"),
    ];
    let is_short = |&(host, name): &(&HostReport, &str)| {
        let most = host
            .settings
            .get(name)
            .and_then(|sizes| largest_size(sizes));
        most.is_some_and(|most| seen / 8.0 * trip > most as f64 / HEADERS)
    };
    let is_limit = runs.iter().any(|run| was_windowed(run)) || buffers.iter().any(is_short);
    if trip == f64::MAX || !is_limit {
        return Vec::new();
    }
    let speed = speed(sender, receiver).unwrap_or(SPEED_UNKNOWN.max(2.0 * seen));
    let bytes = (HEADERS * speed / 8.0 * trip).ceil() as u64;
    let bytes = bytes.clamp(1 << 16, 1 << 30).next_power_of_two();
    let reason = format!(
        "a stream needs a window of {:.0} KiB for {:.0} Mbit/s over {:.1} ms",
        speed / 8.0 * trip / 1024.0,
        speed / 1e6,
        trip * 1e3
    );
    let mut found = Vec::new();
    for (host, name) in buffers {
        if let Some(now) = host.settings.get(name) {
            let value = enlarged(now, bytes);
            found.extend(value.map(|value| sysctl(host, name, now, &value, &reason)));
        }
    }
    for (host, name) in [
        (receiver, "net.ipv4.tcp_window_scaling"),
        (sender, "net.ipv4.tcp_window_scaling"),
        (receiver, "net.ipv4.tcp_moderate_rcvbuf"),
    ] {
        if let Some(now) = host.settings.get(name).filter(|now| *now == "0") {
            found.push(sysctl(host, name, now, "1", &reason));
        }
    }
    found
}

/// The last one of three sizes.
fn largest_size(sizes: &str) -> Option<u64> {
    sizes.split_whitespace().nth(2)?.parse().ok()
}

/// Three sizes with a larger last one; `None` where that is large enough.
fn enlarged(now: &str, bytes: u64) -> Option<String> {
    let mut sizes = now.split_whitespace();
    let (least, first, most) = (sizes.next()?, sizes.next()?, sizes.next()?);
    let is_small = most.parse::<u64>().is_ok_and(|most| most < bytes);
    is_small.then(|| format!("{least} {first} {bytes}"))
}

fn sysctl(host: &HostReport, name: &str, now: &str, value: &str, reason: &str) -> SettingAdvice {
    SettingAdvice {
        node: host.node.clone(),
        now: now.to_owned(),
        command: format!("sysctl -w {name}='{value}'"),
        reason: reason.to_owned(),
    }
}

/// The slower one of two hosts whose interfaces say how fast they are, in bits per second.
fn speed(sender: &HostReport, receiver: &HostReport) -> Option<f64> {
    let of = |host: &HostReport| {
        let speeds = host.interfaces.iter().map(|one| one.bits_per_second);
        speeds.flatten().reduce(f64::max)
    };
    Some(of(sender)?.min(of(receiver)?))
}

/// A congestion control for a path that loses packets.
fn losses(sender: &HostReport, runs: &[&RunReport]) -> Option<SettingAdvice> {
    let networks = runs.iter().filter_map(|run| run.network.as_ref());
    let (mut segments, mut repeated) = (0, 0);
    for network in networks {
        segments += network.segments;
        repeated += network.repeated_segments;
    }
    let share = repeated as f64 / (segments as f64).max(1.0);
    let is_cause =
        |run: &&RunReport| largest(run).is_some_and(|one| one.cause == BottleneckCause::Loss);
    let name = "net.ipv4.tcp_congestion_control";
    let now = sender.settings.get(name)?;
    if share <= LOSS || !runs.iter().any(is_cause) || now == "bbr" {
        return None;
    }
    let reason = format!(
        "{:.1} % of the packets are lost, which {now} takes for full queues",
        share * 100.0
    );
    let mut advice = sysctl(sender, name, now, "bbr", &reason);
    let known = sender
        .settings
        .get("net.ipv4.tcp_available_congestion_control");
    let is_loaded = known.is_some_and(|known| known.split_whitespace().any(|one| one == "bbr"));
    if !is_loaded {
        advice.command = format!("modprobe tcp_bbr && {}", advice.command);
    }
    Some(advice)
}
