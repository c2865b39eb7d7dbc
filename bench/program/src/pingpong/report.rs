//! What a measurement found, and how it is reported.

use ropewalk_model::{Bytes, format_seconds};
use serde::Serialize;

use super::stream::Seen;
use ropewalk_cli::codes::EXIT_FAILED;
use ropewalk_cli::sys;

/// One measured point.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Point {
    pub bytes: u64,
    /// A mode.
    pub method: String,
    pub rounds: u32,
    /// Median.
    pub round_trip_seconds: f64,
    pub bits_per_second: f64,
    pub efficiency_percent: Option<f64>,
    /// Of all processors of this host.
    pub cpu_percent: f64,
    /// This process alone, of all processors.
    pub own_cpu_percent: f64,
}

/// One stream.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Stream {
    /// Of one message.
    pub bytes: u64,
    /// A mode.
    pub method: String,
    pub messages: u64,
    /// Until the other end's confirmation that it has everything was received.
    pub seconds: f64,
    pub bits_per_second: f64,
    pub cpu_percent: f64,
    pub own_cpu_percent: f64,
    /// Nothing of plain TCP, which is not looked at.
    pub seen: Option<Seen>,
}

/// Where several rails begin to be faster; `None` for never.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct CutOffs {
    pub fit_bytes: Option<u64>,
    pub search_bytes: Option<u64>,
    pub sweep_bytes: Option<u64>,
}

/// The cut-off of enhanced mode in this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct CutOffUsed {
    /// `None` for never.
    pub bytes: Option<u64>,
    pub source: CutOffSource,
    /// Since it was last seen to be so, where it is remembered.
    pub age_seconds: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum CutOffSource {
    Default,
    Measured,
    Remembered,
}

impl CutOffUsed {
    pub const DEFAULT: Self = Self {
        bytes: Some(super::DEFAULT_CUT_OFF),
        source: CutOffSource::Default,
        age_seconds: None,
    };

    pub fn bytes(&self) -> u64 {
        self.bytes.unwrap_or(ropewalk_message::NEVER)
    }
}

pub(super) fn finite(bytes: u64) -> Option<u64> {
    Some(bytes).filter(|&bytes| bytes != ropewalk_message::NEVER)
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub rails: usize,
    pub points: Vec<Point>,
    pub cut_off: Option<CutOffs>,
    /// `None` where there is one rail, or no enhanced mode.
    pub cut_off_used: Option<CutOffUsed>,
    pub streams: Vec<Stream>,
}

impl Report {
    /// What the command ends with, once this is printed.
    pub(super) fn exit_status(&self) -> u8 {
        let mut seen = self.streams.iter().filter_map(|one| one.seen.as_ref());
        match seen.all(Seen::is_faultless) {
            true => 0,
            false => EXIT_FAILED,
        }
    }
}

fn shown(cut_off: Option<u64>) -> String {
    cut_off.map_or_else(|| "never".to_owned(), |bytes| Bytes(bytes).to_string())
}

pub(super) fn print(report: &Report) {
    for stream in &report.streams {
        sys::say(format_args!(
            "{} messages of {}, {}: {:.3} s, {:.1} Mb/s, CPU {:.1} %{}",
            stream.messages,
            Bytes(stream.bytes),
            stream.method,
            stream.seconds,
            stream.bits_per_second / 1e6,
            stream.cpu_percent,
            stream.seen.as_ref().map_or_else(String::new, Seen::words),
        ));
    }
    if let Some(age_seconds) = report.cut_off_used.and_then(|used| used.age_seconds) {
        sys::say(format_args!(
            "cut-off {}, remembered from {} ago; --cut-offs off does without",
            shown(report.cut_off_used.and_then(|used| used.bytes)),
            format_seconds(age_seconds as f64),
        ));
    }
    if report.points.is_empty() {
        return;
    }
    sys::say(format_args!(
        "{:>9}  {:<9} {:>12} {:>12} {:>7} {:>6} {:>7}",
        "size", "method", "round trip", "bandwidth", "effic.", "CPU", "rounds"
    ));
    for point in &report.points {
        let efficiency = point
            .efficiency_percent
            .map_or_else(|| "-".to_owned(), |share| format!("{share:.1} %"));
        sys::say(format_args!(
            "{:>9}  {:<9} {:>9.1} us {:>7.1} Mb/s {:>7} {:>4.1} % {:>7}",
            Bytes(point.bytes).to_string(),
            point.method,
            point.round_trip_seconds * 1e6,
            point.bits_per_second / 1e6,
            efficiency,
            point.cpu_percent,
            point.rounds
        ));
    }
    if let Some(found) = &report.cut_off {
        sys::say(format_args!(
            "cut-off, one rail below, {} from there on: {} by curves, {} by search, {} by sweep over powers of two",
            report.rails,
            shown(found.fit_bytes),
            shown(found.search_bytes),
            shown(found.sweep_bytes)
        ));
    }
}
