//! One figure in the making: keeps every raw run, resumes, says how long it still takes, writes the results.
//!
//! Runs are lines of `runs.jsonl` in the figure's folder: `{"key", "seconds_since_1970", "load", "build", "data"}`. A
//! point whose key is there already is not run again; keys hold everything that changes the result (sizes, too).

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::machine::{self, Machine};
use crate::table::Table;

/// What the user asked of all figures.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Folder of the figures' folders.
    pub out: PathBuf,
    /// The program under test.
    pub ropewalk: PathBuf,
    /// Small sizes and few rounds.
    pub quick: bool,
    /// Runs every point again.
    pub fresh: bool,
    /// Runs the points whose key contains this, again, and no others.
    pub only: Option<String>,
}

/// What measuring needs to know: where to write and what to run.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    /// The figure's private folder; goes with its [`Bench`].
    pub scratch: PathBuf,
    /// The program under test.
    pub ropewalk: PathBuf,
    /// This program, which has the tests of sockets and messages.
    pub bench: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    key: String,
    seconds_since_1970: u64,
    load: f64,
    build: String,
    data: Value,
}

/// One figure.
#[derive(Debug)]
pub(crate) struct Bench {
    settings: Settings,
    folder: PathBuf,
    scratch: tempfile::TempDir,
    build: String,
    // This program.
    own: PathBuf,
    done: BTreeMap<String, Record>,
    // Points not run yet, with the seconds each is expected to take.
    ahead: BTreeMap<String, f64>,
    // Seconds taken over seconds expected, of the points run in this sitting.
    taken: f64,
    expected: f64,
    failures: Vec<String>,
    programs: BTreeMap<String, String>,
    headlines: Vec<Headline>,
}

/// One line that sums a figure up, computed from its runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Headline {
    /// What was measured, and against what.
    pub what: String,
    /// The figures.
    pub measured: String,
}

impl Bench {
    /// Opens the figure's folder and reads what was run before.
    pub fn open(settings: &Settings, figure: &str) -> Result<Self> {
        let folder = settings.out.join(figure);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let folder = folder.canonicalize()?;
        let scratch = tempfile::Builder::new()
            .prefix("scratch-")
            .tempdir_in(&folder)
            .with_context(|| format!("cannot make a folder in {}", folder.display()))?;
        let own = std::env::current_exe().context("this program's own path is not known")?;
        let mut bench = Self {
            settings: settings.clone(),
            scratch,
            build: [&settings.ropewalk, &own]
                .map(|program| machine::build_mark(program))
                .join(", "),
            own,
            done: BTreeMap::new(),
            ahead: BTreeMap::new(),
            taken: 0.0,
            expected: 0.0,
            failures: Vec::new(),
            programs: BTreeMap::new(),
            headlines: Vec::new(),
            folder,
        };
        let path = bench.runs_path();
        if settings.fresh && path.exists() {
            let old = bench
                .folder
                .join(format!("runs.before-{}.jsonl", machine::now_seconds()));
            fs::rename(&path, &old)
                .with_context(|| format!("cannot put {} aside", path.display()))?;
        }
        bench.read_runs(&fs::read_to_string(&path).unwrap_or_default());
        let ropewalk = machine::version(&settings.ropewalk, "--version").unwrap_or_default();
        bench.program("ropewalk", ropewalk);
        if let Some(revision) = machine::revision() {
            bench.program("revision", revision);
        }
        println!("== {figure} ==");
        Ok(bench)
    }

    fn runs_path(&self) -> PathBuf {
        self.folder.join("runs.jsonl")
    }

    fn read_runs(&mut self, text: &str) {
        // A line cut short by an interruption is a point that was not finished.
        let records = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Record>(line).ok());
        let only = self.settings.only.clone();
        let is_kept = |record: &Record| only.as_ref().is_none_or(|text| !record.key.contains(text));
        // Of points run more than once, the last counts.
        for record in records.filter(is_kept) {
            self.done.insert(record.key.clone(), record);
        }
    }

    /// What the figure's measurements need.
    pub fn site(&self) -> Site {
        Site {
            scratch: self.scratch.path().to_owned(),
            ropewalk: self.settings.ropewalk.clone(),
            bench: self.own.clone(),
        }
    }

    /// Notes the version that a program prints of itself; nothing when it is not installed.
    pub fn program_version(&mut self, name: &str, argument: &str) {
        if let Some(version) = machine::version(Path::new(name), argument) {
            self.program(name, version);
        }
    }

    /// Notes the version of a program that takes part.
    pub fn program(&mut self, name: &str, version: impl Into<String>) {
        self.programs.insert(name.into(), version.into());
    }

    /// Adds a line that sums the figure up: what was measured, and the figures.
    pub fn headline(&mut self, what: impl Into<String>, measured: impl Into<String>) {
        self.headlines.push(Headline {
            what: what.into(),
            measured: measured.into(),
        });
    }

    /// Announces points and the seconds each is expected to take, for the remaining time.
    pub fn expect(&mut self, points: impl IntoIterator<Item = (String, f64)>) {
        for (key, seconds) in points {
            if !self.done.contains_key(&key) && self.is_asked_for(&key) {
                self.ahead.insert(key, seconds);
            }
        }
    }

    /// Says how many of the announced points are to be run, and how long that takes.
    pub fn announce(&self) {
        let left = people_time(self.remaining());
        println!("  {} points to run, about {left}", self.ahead.len());
    }

    fn is_asked_for(&self, key: &str) -> bool {
        let only = self.settings.only.as_ref();
        only.is_none_or(|text| key.contains(text))
    }

    /// Whether a point has been run.
    #[cfg(test)]
    fn has(&self, key: &str) -> bool {
        self.done.contains_key(key)
    }

    /// The point's data: from an earlier run, or by running it now. `None` when it fails; that is reported and remembered, and
    /// tried again the next time.
    pub fn point<T: Serialize + DeserializeOwned>(
        &mut self,
        key: &str,
        measure: impl FnOnce() -> Result<T>,
    ) -> Option<T> {
        if let Some(data) = self.recorded(key) {
            return Some(data);
        }
        if !self.is_asked_for(key) {
            return None;
        }
        let seconds = self.ahead.remove(key).unwrap_or(0.0);
        let began = Instant::now();
        let load = machine::load();
        let result = measure().and_then(|data| {
            self.record(key, load, &data)?;
            Ok(data)
        });
        let took = began.elapsed().as_secs_f64();
        self.taken += took;
        self.expected += seconds;
        let left = self.remaining();
        let left = format!(
            "{} points left, about {}",
            self.ahead.len(),
            people_time(left)
        );
        match result {
            Ok(data) => {
                println!("  {key}: {took:.1} s (load {load:.1}); {left}");
                Some(data)
            }
            Err(error) => {
                println!("  {key}: FAILED: {error:#}; {left}");
                self.failures.push(format!("{key}: {error:#}"));
                None
            }
        }
    }

    /// A point's data when it has been run and can be read.
    pub fn recorded<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        // Data of an older form is run again.
        serde_json::from_value(self.done.get(key)?.data.clone()).ok()
    }

    fn remaining(&self) -> f64 {
        let ahead: f64 = self.ahead.values().fold(0.0, |sum, seconds| sum + seconds);
        let factor = if self.expected > 0.0 {
            self.taken / self.expected
        } else {
            1.0
        };
        ahead * factor
    }

    fn record<T: Serialize>(&mut self, key: &str, load: f64, data: &T) -> Result<()> {
        let record = Record {
            key: key.to_owned(),
            seconds_since_1970: machine::now_seconds(),
            load,
            build: self.build.clone(),
            data: self.without_places(serde_json::to_value(data)?),
        };
        let path = self.runs_path();
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        // An interruption may have left half a line: this one must not become part of it.
        let line = format!("\n{}\n", serde_json::to_string(&record)?);
        file.write_all(line.as_bytes())?;
        self.done.insert(record.key.clone(), record);
        Ok(())
    }

    /// The data without paths that mean something on this machine only.
    fn without_places(&self, data: Value) -> Value {
        match data {
            Value::String(text) => {
                let places = [
                    (self.scratch.path(), "SCRATCH"),
                    (&*self.settings.ropewalk, "ropewalk"),
                    (&*self.own, "ropewalk-bench"),
                ];
                let replace = |text: String, (path, name): (&Path, &str)| {
                    text.replace(&path.display().to_string(), name)
                };
                Value::String(places.into_iter().fold(text, replace))
            }
            Value::Array(all) => all.into_iter().map(|v| self.without_places(v)).collect(),
            Value::Object(all) => {
                let cleaned = all.into_iter().map(|(k, v)| (k, self.without_places(v)));
                Value::Object(cleaned.collect())
            }
            other => other,
        }
    }

    /// Where a plot of this figure goes.
    pub fn plot_path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.svg"))
    }

    /// Writes and prints the tables; says whether every point succeeded.
    pub fn finish(self, tables: &[Table]) -> Result<bool> {
        let machine = Machine::look(self.programs.clone());
        let loads = crate::stats::summary(self.done.values().map(|record| record.load));
        let others = self
            .done
            .values()
            .filter(|record| record.build != self.build)
            .count();
        let mut text = String::new();
        for headline in &self.headlines {
            text += &format!("{}: {}\n", headline.what, headline.measured);
        }
        if !text.is_empty() {
            text.push('\n');
        }
        for table in tables {
            text += &table.text();
            text.push('\n');
        }
        for failure in &self.failures {
            text += &format!("FAILED {failure}\n");
        }
        text += &machine.text();
        if let Some(loads) = loads {
            text += &format!(
                "load before the points: median {:.1}, from {:.1} to {:.1}\n",
                loads.median, loads.min, loads.max
            );
        }
        if others > 0 {
            text += &format!(
                "{others} of {} runs are kept from another build of ropewalk; --fresh repeats them\n",
                self.done.len()
            );
        }
        let tables: Vec<Value> = tables.iter().map(Table::json).collect();
        let json = json!({
            "machine": machine,
            "load": loads,
            "runs": self.done.len(),
            "last_run_seconds_since_1970": self.done.values().map(|record| record.seconds_since_1970).max(),
            "headlines": self.headlines,
            "tables": tables,
            "failures": self.failures,
            "runs_of_another_build": others,
        });
        let name = if self.settings.quick {
            "quick"
        } else {
            "table"
        };
        fs::write(self.folder.join(format!("{name}.txt")), &text)?;
        fs::write(
            self.folder.join(format!("{name}.json")),
            serde_json::to_string_pretty(&json)? + "\n",
        )?;
        println!("\n{text}");
        println!("in {}\n", self.folder.display());
        Ok(self.failures.is_empty())
    }
}

fn people_time(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s => format!("{:.0} min", s / 60.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    fn settings(out: &Path, fresh: bool) -> Settings {
        Settings {
            out: out.to_owned(),
            ropewalk: "/nonexistent".into(),
            quick: true,
            fresh,
            only: None,
        }
    }

    /// A finished point is not run again, a failed or half-written one is; `--fresh` repeats all, `--only` some.
    #[test]
    fn resuming() {
        let dir = tempfile::tempdir().unwrap();
        let mut bench = Bench::open(&settings(dir.path(), false), "f").unwrap();
        assert_eq!(bench.point("a", || Ok(1)), Some(1));
        assert_eq!(bench.point::<i32>("b", || bail!("no")), None);
        assert!(
            !bench.finish(&[]).unwrap(),
            "a failed point makes a failed figure"
        );
        let runs = dir.path().join("f/runs.jsonl");
        let whole = fs::read_to_string(&runs).unwrap();
        fs::write(&runs, format!("{whole}{{\"key\": \"c\", \"da")).unwrap();

        let mut bench = Bench::open(&settings(dir.path(), false), "f").unwrap();
        bench.expect([("a".into(), 5.0), ("b".into(), 5.0)]);
        assert_eq!(bench.point("a", || bail!("run again")), Some(1));
        assert!(!bench.has("b") && !bench.has("c"));
        assert_eq!(bench.remaining(), 5.0);
        assert_eq!(bench.point("b", || Ok(2)), Some(2));
        assert!(bench.finish(&[]).unwrap());

        let only = Settings {
            only: Some("a".into()),
            ..settings(dir.path(), false)
        };
        let mut bench = Bench::open(&only, "f").unwrap();
        assert!(!bench.has("a") && bench.has("b"));
        assert_eq!(bench.point("c", || Ok(3)), None);
        assert_eq!(bench.point("a", || Ok(4)), Some(4));

        let bench = Bench::open(&settings(dir.path(), true), "f").unwrap();
        assert!(!bench.has("a") && !bench.has("b"));
    }
}
