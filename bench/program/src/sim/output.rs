//! Results as JSON, text, comma-separated values and traces.

use std::fmt::Write as _;

use ropewalk_tcp_sim::Outcome;
use serde_json::{Map, Value, json};

use super::grid::Point;

/// One run, done.
pub(super) struct Done {
    pub point: Point,
    pub payload_bytes: u64,
    pub outcome: Outcome,
    pub wall_seconds: f64,
}

impl Done {
    /// The results; the same for the same parameters and seed.
    pub fn results(&self) -> Map<String, Value> {
        let outcome = &self.outcome;
        let bits = outcome.acknowledged() * self.payload_bytes * 8;
        let results = json!({
            "completed": outcome.is_completed,
            "time_seconds": outcome.seconds,
            "first_done_seconds": outcome.first_done_seconds(),
            "median_done_seconds": outcome.median_done_seconds(),
            "goodput_bits_per_second": bits as f64 / outcome.seconds,
            "sent_packets": outcome.sent(),
            "retransmitted_packets": outcome.retransmitted(),
            "timeouts": outcome.timeouts(),
            "drops_access": outcome.drops.access,
            "drops_trunk": outcome.drops.trunk,
            "drops_egress": outcome.drops.egress,
            "lost_packets": outcome.lost,
            "acknowledged_packets": outcome.acknowledged(),
        });
        match results {
            Value::Object(results) => results,
            _ => Map::new(),
        }
    }
}

/// All runs of a command.
pub(super) struct Printed<'d> {
    done: &'d [Done],
    wall_seconds: f64,
    // Parameters with more than one value.
    varied: Vec<String>,
}

/// Results shown to people, with headings.
const SHOWN: [(&str, &str); 9] = [
    ("time_seconds", "time s"),
    ("median_done_seconds", "median s"),
    ("goodput_bits_per_second", "goodput bit/s"),
    ("sent_packets", "sent"),
    ("retransmitted_packets", "again"),
    ("timeouts", "timeouts"),
    ("drops_access", "drops access"),
    ("drops_trunk", "drops trunk"),
    ("acknowledged_packets", "acked"),
];

impl<'d> Printed<'d> {
    pub fn new(done: &'d [Done], wall_seconds: f64) -> Self {
        let parameters: Vec<Map<String, Value>> =
            done.iter().map(|run| run.point.parameters()).collect();
        let varies = |name: &&String| {
            parameters
                .iter()
                .any(|of| of.get(*name) != parameters[0].get(*name))
        };
        let varied = parameters.first().map_or(Vec::new(), |first| {
            first.keys().filter(varies).cloned().collect()
        });
        Self {
            done,
            wall_seconds,
            varied,
        }
    }

    /// One object for one run, else an object with all of them.
    pub fn json(&self) -> Value {
        let run = |done: &Done| {
            let mut run = done.results();
            run.insert("parameters".into(), Value::Object(done.point.parameters()));
            run.insert(
                "speed".into(),
                json!({
                    "events": done.outcome.events,
                    "wall_seconds": done.wall_seconds,
                    "events_per_second": done.outcome.events as f64 / done.wall_seconds,
                }),
            );
            Value::Object(run)
        };
        match self.done {
            [done] => run(done),
            all => json!({
                "runs": all.iter().map(run).collect::<Vec<_>>(),
                "wall_seconds": self.wall_seconds,
            }),
        }
    }

    /// All parameters and results, a line for each run.
    pub fn csv(&self) -> String {
        let mut text = String::new();
        for (number, done) in self.done.iter().enumerate() {
            let mut all = done.point.parameters();
            all.extend(done.results());
            if number == 0 {
                let names: Vec<&str> = all.keys().map(String::as_str).collect();
                text += &(names.join(",") + "\n");
            }
            let cell = |value: &Value| match value {
                Value::Null => String::new(),
                Value::String(word) if word.contains(',') => format!("\"{word}\""),
                Value::String(word) => word.clone(),
                other => other.to_string(),
            };
            let cells: Vec<String> = all.values().map(cell).collect();
            text += &(cells.join(",") + "\n");
        }
        text
    }

    /// A table: what varies, then the results.
    pub fn text(&self) -> String {
        let mut rows = Vec::new();
        let heading = |name: &String| name.replace('_', " ");
        let headings = self.varied.iter().map(heading);
        rows.push(
            headings
                .chain(SHOWN.iter().map(|(_, words)| (*words).to_owned()))
                .collect(),
        );
        for done in self.done {
            let (parameters, results) = (done.point.parameters(), done.results());
            let varied = self.varied.iter().map(|name| given(&parameters[name]));
            let mut row: Vec<String> = varied
                .chain(SHOWN.iter().map(|(key, _)| short(&results[*key])))
                .collect();
            if !done.outcome.is_completed {
                row.push("(limit)".into());
            }
            rows.push(row);
        }
        let events: u64 = self.done.iter().map(|done| done.outcome.events).sum();
        let mut text = aligned(&rows);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "\n{} packet events in {:.2} s, {:.1} million a second",
            events,
            self.wall_seconds,
            events as f64 / self.wall_seconds / 1e6
        );
        text
    }
}

/// Digits of a result below [`SMALL`].
const RESULT_DIGITS: usize = 4;

/// Digits of what was given: all that people write, and none that binary fractions add.
const GIVEN_DIGITS: usize = 12;

/// Below this four decimals would leave little or nothing of a result.
const SMALL: f64 = 0.001;

/// A result.
fn short(value: &Value) -> String {
    shown(value, |number| match number < SMALL {
        true => digits(number, RESULT_DIGITS),
        false => format!("{number:.4}"),
    })
}

/// A parameter: four decimals, and more where these would hide what tells it from another.
fn given(value: &Value) -> String {
    shown(value, |number| digits(number, GIVEN_DIGITS))
}

fn shown(value: &Value, fraction: impl Fn(f64) -> String) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(word) => word.clone(),
        Value::Number(number) if number.is_f64() => {
            let number = number.as_f64().unwrap_or_default();
            match number {
                n if n >= 1e4 => format!("{n:.0}"),
                n if n.fract() == 0.0 => format!("{n:.0}"),
                n => fraction(n),
            }
        }
        other => other.to_string(),
    }
}

/// A number with so many digits that count, no zeros behind them but those of four decimals.
fn digits(number: f64, count: usize) -> String {
    let exact = format!("{number:.*e}", count - 1);
    let exact: f64 = exact.parse().unwrap_or(number);
    let four = format!("{number:.4}");
    match four.parse::<f64>() {
        Ok(same) if same.to_bits() == exact.to_bits() => four,
        // Zeros that nobody counts.
        _ if exact < 1e-6 => format!("{exact:e}"),
        _ => exact.to_string(),
    }
}

fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths);
        let cells: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:>width$}"))
            .collect();
        cells.join("  ") + "\n"
    };
    rows.iter().map(line).collect()
}

/// Samples of a run, a line for each connection and moment.
pub(super) fn trace(outcome: &Outcome) -> String {
    let mut text = "t_s,flow,cwnd,ssthresh,acked,max_sent,rexmit_pkts,timeouts\n".to_owned();
    for sample in &outcome.trace {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:.3},{},{},{},{},{},{},{}",
            sample.seconds,
            sample.flow,
            printed_window(sample.window),
            sample.ssthresh,
            sample.acknowledged,
            sample.sent_max,
            sample.retransmitted,
            sample.timeouts
        );
    }
    text
}

// Six digits, then three decimals: as reference traces have it, so that files can be compared byte by byte.
fn printed_window(window: f64) -> String {
    let six: f64 = format!("{window:.5e}").parse().unwrap_or(window);
    format!("{six:.3}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    /// Small numbers stay apart; others have four decimals.
    #[test]
    fn small_numbers() {
        for (number, parameter, result) in [
            (0.00001, "0.00001", "0.00001"),
            (0.00002, "0.00002", "0.00002"),
            (0.00114, "0.00114", "0.0011"),
            (0.0002, "0.0002", "0.0002"),
            (0.02, "0.0200", "0.0200"),
            (0.3 / 1e3, "0.0003", "0.0003"),
            (1e-9, "1e-9", "1e-9"),
            (0.123_456_789, "0.123456789", "0.1235"),
            (0.000_123_456_789, "0.000123456789", "0.0001235"),
            (12.5, "12.5000", "12.5000"),
            (0.0, "0", "0"),
            (1e8, "100000000", "100000000"),
            (12_345.6, "12346", "12346"),
        ] {
            assert_eq!(super::given(&json!(number)), parameter, "{number}");
            assert_eq!(super::short(&json!(number)), result, "{number}");
        }
    }

    /// Rounded twice where it matters.
    #[test]
    fn windows() {
        assert_eq!(super::printed_window(13.007_48), "13.008");
        assert_eq!(super::printed_window(64.0), "64.000");
    }
}
