//! What `doctor` found, for people.

use std::fmt::Write as _;

use ropewalk_model::{format_bytes, format_seconds};
use ropewalk_proto::doctor::{DoctorReport, Forecast, HostReport, RunReport};

use crate::escape;
use crate::numbers::thousands;
use crate::progress::rate;
use crate::report::{advice, cause_name};

/// Settings that are shown; the rest is in the JSON.
const SHOWN: [&str; 4] = [
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_congestion_control",
    "net.core.default_qdisc",
];

/// A copy of so many bytes has its time predicted.
const EXAMPLE: u64 = 10_000_000_000;

/// Each host, then each path.
pub(super) fn text(report: &DoctorReport) -> String {
    let mut out = String::new();
    for one in &report.hosts {
        host(&mut out, one);
    }
    for pair in &report.pairs {
        path(&mut out, pair);
    }
    if let Some(error) = &report.error {
        let _ = writeln!(out, "{}", escape::line(error));
    }
    out
}

fn row(out: &mut String, name: &str, text: &str) {
    let _ = writeln!(out, "  {name:12} {}", escape::line(text));
}

fn speed(bytes: u64) -> String {
    format!("{}/s", format_bytes(bytes))
}

fn host(out: &mut String, host: &HostReport) {
    let _ = writeln!(out, "{}", escape::line(&host.node));
    if let Some(error) = &host.error {
        return row(out, "not examined", &error.replace('\n', "; "));
    }
    let processors = match host.processors {
        1 => "1".to_owned(),
        count => format!("{count}; of each"),
    };
    let [hash, seal, copy] = [
        host.hash_bytes_per_second,
        host.seal_bytes_per_second,
        host.copy_bytes_per_second,
    ]
    .map(speed);
    let text = format!("{processors}: hashes {hash}, encrypts {seal}, copies {copy}");
    row(out, "processors", &text);
    for one in &host.interfaces {
        let mtu = one.mtu_bytes.map(|mtu| format!(", MTU {mtu}"));
        let claimed = one.bits_per_second.map(|bits| format!(", {}", rate(bits)));
        let text = format!(
            "{} {}{}{}",
            one.name,
            one.addresses.join(" "),
            mtu.unwrap_or_default(),
            claimed.unwrap_or_default()
        );
        row(out, "interface", &text);
    }
    if let Some(disk) = &host.disk {
        let text = format!(
            "writes {} (sync included), reads {}, a sync takes {}, {} small files/s, {} free",
            speed(disk.write_bytes_per_second),
            speed(disk.read_bytes_per_second),
            format_seconds(disk.sync_seconds),
            thousands(disk.files_per_second),
            format_bytes(disk.free_bytes)
        );
        row(out, "disk", &text);
    }
    if let Some(error) = &host.disk_error {
        row(out, "disk", error);
    }
    let mut limits = vec![format!("{} open files", thousands(host.open_files))];
    for name in SHOWN {
        if let Some(value) = host.settings.get(name) {
            let name = name.rsplit('.').next().unwrap_or(name);
            limits.push(format!("{name} {value}"));
        }
    }
    row(out, "kernel", &limits.join(", "));
}

fn path(out: &mut String, pair: &Forecast) {
    let (from, to) = (escape::line(&pair.sender), escape::line(&pair.receiver));
    let _ = writeln!(out, "{from} to {to}");
    if let Some(error) = &pair.error {
        return row(out, "not measured", error);
    }
    for (name, run) in [("one stream", &pair.one_stream), ("streams", &pair.streams)] {
        if let Some(run) = run {
            row(out, name, &of_memory(run));
        }
    }
    if let Some(run) = &pair.files {
        let finish = format_seconds(run.finish_seconds);
        let bytes = format_bytes(run.bytes);
        let rate = rate(run.bits_per_second);
        row(
            out,
            "file",
            &format!("{rate} of {bytes}, then {finish} to sync"),
        );
    }
    if let Some(bits) = pair.bits_per_second {
        let start = pair.start_seconds.unwrap_or(0.0);
        let seconds = start + EXAMPLE as f64 * 8.0 / bits.max(1e-9);
        let text = format!(
            "{}; {} take {}",
            rate(bits),
            format_bytes(EXAMPLE),
            format_seconds(seconds)
        );
        row(out, "predicted", &text);
    }
    if let Some(one) = &pair.bound_by {
        row(out, "bound by", &cause_name(one));
        row(out, "to do", advice(one, true));
    }
    for setting in &pair.settings {
        let text = format!(
            "{} (now {}: {})",
            setting.command, setting.now, setting.reason
        );
        row(out, &format!("set on {}", setting.node), &text);
    }
}

fn of_memory(run: &RunReport) -> String {
    let mut text = rate(run.bits_per_second);
    if let Some(network) = &run.network {
        let share = network.repeated_segments as f64 / (network.segments as f64).max(1.0);
        let _ = write!(
            text,
            " over {}, round trip {} (least {}), {:.2} % of packets sent again, segments of {} bytes",
            network.streams,
            format_seconds(network.round_trip_seconds),
            format_seconds(network.least_round_trip_seconds),
            share * 100.0,
            network.segment_bytes
        );
        if network.window_bytes > 0 {
            let window = format_bytes(network.window_bytes.into());
            let _ = write!(text, ", windows of {window} are the limit");
        }
    }
    text
}
