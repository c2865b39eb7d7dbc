//! The page of measurements, made from the results of figures: no number of it is typed.
//!
//! Each figure's folder has what [`crate::bench`] wrote: `table.json`, or `quick.json`, made from the runs in `runs.jsonl` beside it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::bench::Headline;
use crate::machine::Machine;
use crate::stats::Summary;

/// Figures in the page's order: folder and heading.
const FIGURES: [(&str, &str); 26] = [
    (
        "peers",
        "One pair on loopback beside iperf3 and other movers",
    ),
    ("cep-4-5", "Composition of equal pairs"),
    ("cep-6", "Slow and fast pairs"),
    ("cep-7", "Windows of access"),
    ("traps", "Holdings that mislead proportional shares"),
    ("events", "Nodes that change, join and die"),
    ("faults", "Senders killed at half way"),
    ("rails", "Several interfaces between two hosts"),
    ("relays", "Copies that feed one another"),
    ("causes", "What held a transfer back"),
    ("tunnel", "TCP connections through a tunnel"),
    ("own-parts", "Own parts from four senders to four receivers"),
    ("small-files", "Trees of small files, and one small file"),
    ("trees", "A tree and a large file over ssh"),
    ("control", "Control traffic"),
    ("scale", "Many nodes, in one process"),
    ("memory", "Memory of an agent"),
    ("multisocket", "Sockets between two processes"),
    ("munisocket", "Messages over several interfaces"),
    ("streaming", "Streams through stages"),
    ("pressure", "Back-pressure of streams"),
    ("rapid", "Datagrams at the receiver's rate"),
    ("wan", "Streams over a long path"),
    (
        "striping",
        "Simulated TCP: streams and hosts over a long path",
    ),
    ("trunk", "The lab's wide-area trunk"),
    ("figure2", "The paper's specification file"),
];

/// Rows of a table that are shown at once; longer ones are folded.
const ROWS_SHOWN: usize = 16;

const INTRODUCTION: &str = "# Measurements

This page is made by `ropewalk-bench page` from the runs in [bench/reproduce/results](bench/reproduce/results); a test compares the two. A figure's
`runs.jsonl` has each run: what was run, when, beside which load, and the whole report. To measure on another machine:

```sh
cargo build --release -p ropewalk-cli -p ropewalk-bench
target/release/ropewalk-bench reproduce --out bench/reproduce/results peers   # or: cep --figure 4, rails ...; `reproduce --help` names all
target/release/ropewalk-bench page > BENCHMARKS.md
```

What needs several hosts makes them as network namespaces and needs root. Medians with least and greatest where runs were repeated.
Rows that Ropewalk loses stay. `--quick` in a command: small sizes, few rounds and few of the set-ups. [docs/control-traffic.md](docs/control-traffic.md)
has the bytes of control traffic one by one.
";

/// What a figure's `table.json` says.
#[derive(Debug, Deserialize)]
struct Results {
    machine: Machine,
    load: Option<Summary>,
    runs: usize,
    last_run_seconds_since_1970: Option<u64>,
    headlines: Vec<Headline>,
    tables: Vec<Printed>,
    failures: Vec<String>,
    runs_of_another_build: usize,
}

#[derive(Debug, Deserialize)]
struct Printed {
    title: String,
    headings: Vec<String>,
    printed: Vec<Vec<String>>,
    notes: Vec<String>,
}

/// The page, as Markdown.
///
/// # Errors
///
/// Where a figure's results cannot be read.
pub fn page(results: &Path) -> Result<String> {
    let mut found = Vec::new();
    for (folder, heading) in FIGURES {
        // A figure that has short runs only is on the page with these.
        let paths = ["table.json", "quick.json"].map(|name| results.join(folder).join(name));
        let Some(path) = paths.into_iter().find(|path| path.exists()) else {
            continue;
        };
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let results: Results = serde_json::from_str(&text)
            .with_context(|| format!("{} is not what `reproduce` writes", path.display()))?;
        found.push((folder, heading, results));
    }
    let mut page = INTRODUCTION.to_owned();
    page += "\n## In short\n\n| figure | what | measured |\n| --- | --- | --- |\n";
    for (_, heading, results) in &found {
        for headline in &results.headlines {
            let (what, measured) = (cell(&headline.what), cell(&headline.measured));
            // Writing to a string cannot fail.
            let _ = writeln!(
                page,
                "| [{heading}](#{}) | {what} | {measured} |",
                anchor(heading)
            );
        }
    }
    for (folder, heading, results) in &found {
        section(&mut page, folder, heading, results);
    }
    Ok(page)
}

fn section(page: &mut String, folder: &str, heading: &str, results: &Results) {
    let machine = &results.machine;
    let day = results.last_run_seconds_since_1970.map_or("-".into(), day);
    let load = results.load.map_or("-".into(), |load| {
        format!("{:.1} (at most {:.1})", load.median, load.max)
    });
    let programs: Vec<String> = machine
        .programs
        .iter()
        .map(|(name, version)| format!("{name}: {version}"))
        .collect();
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "\n## {heading}\n\n`{}`, {day}; {} runs: [bench/reproduce/results/{folder}](bench/reproduce/results/{folder})\n\n{}, {} cores, {:.0} GiB, {}; \
         TCP {}; load before the runs {load}. {}\n",
        machine.command.join(" "),
        results.runs,
        machine.processor,
        machine.cores,
        machine.memory_bytes as f64 / f64::from(1 << 30),
        machine.kernel,
        machine.congestion_control,
        programs.join("; "),
    );
    for failure in &results.failures {
        let _ = writeln!(page, "\nFailed: {failure}");
    }
    if results.runs_of_another_build > 0 {
        let _ = writeln!(
            page,
            "\n{} of the runs are of an earlier build.",
            results.runs_of_another_build
        );
    }
    for table in &results.tables {
        let is_folded = table.printed.len() > ROWS_SHOWN;
        if is_folded {
            let _ = write!(
                page,
                "\n<details><summary>{}: {} rows</summary>\n",
                cell(&table.title),
                table.printed.len()
            );
        } else {
            let _ = writeln!(page, "\n**{}**", table.title);
        }
        let line = |cells: &[String]| {
            format!(
                "| {} |\n",
                cells
                    .iter()
                    .map(|text| cell(text))
                    .collect::<Vec<_>>()
                    .join(" | ")
            )
        };
        page.push('\n');
        *page += &line(&table.headings);
        *page += &line(&vec!["---".to_owned(); table.headings.len()]);
        table.printed.iter().for_each(|row| *page += &line(row));
        for (index, note) in table.notes.iter().enumerate() {
            let _ = writeln!(page, "{}* {note}", if index == 0 { "\n" } else { "" });
        }
        if is_folded {
            *page += "\n</details>\n";
        }
    }
}

/// Text that cannot end its cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// The name that a heading has in links.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    kept.chars()
        .filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-')
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// The day of a time since 1970, in UTC: `2026-11-23`.
fn day(seconds: u64) -> String {
    // Days are counted in eras of 400 years that begin in March, so that a leap day ends a year.
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, year) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    format!("{}-{month:02}-{day:02}", era * 400 + year_of_era + year)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Days around leap days, as calendars have them.
    #[test]
    fn days() {
        for (seconds, expected) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_709_251_199, "2024-02-29"),
            (1_767_225_599, "2025-12-31"),
            (1_795_392_000, "2026-11-23"),
        ] {
            assert_eq!(day(seconds), expected);
        }
    }

    /// The page in the repository is what the committed runs make. `ROPEWALK_UPDATE_GOLDEN=1` writes it.
    #[test]
    fn the_page_is_made_from_the_runs() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let made = page(&root.join("bench/reproduce/results")).unwrap();
        let path = root.join("BENCHMARKS.md");
        if std::env::var_os("ROPEWALK_UPDATE_GOLDEN").is_some() {
            fs::write(&path, &made).unwrap();
        }
        let kept = fs::read_to_string(&path).unwrap();
        assert!(
            kept == made,
            "BENCHMARKS.md differs from what `ropewalk-bench page` prints"
        );
    }

    #[test]
    fn anchors() {
        assert_eq!(
            anchor("Datagrams at the receiver's rate"),
            "datagrams-at-the-receivers-rate"
        );
    }
}
