//! Trees on a file system whose every answer takes a while, to memory.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::{FOLDER, Rig, SIZES, Took, files_in, len_of, ratios};
use crate::bench::Bench;
use crate::distant::{Mounted, Tree};
use crate::figures::faults::write_noise;
use crate::ropewalk::{Agents, Place};
use crate::stats::{spread, summary};
use crate::table::{Table, number};

/// Each name that is looked up, file that is opened and read takes that long: a server in the next city.
const LATENCY: Duration = Duration::from_millis(2);

const COLUMNS: [(&str, &str); 7] = [
    ("case", "case"),
    ("seconds_median", "s"),
    ("seconds_min", "min"),
    ("seconds_max", "max"),
    ("files_per_second_median", "files/s"),
    ("cp_over_seconds_median", "of cp"),
    ("runs", "runs"),
];

/// How it is copied; options of ours.
#[derive(Clone, Copy, Debug)]
enum Way {
    Cp,
    Local,
    Agents(&'static str),
}

const CASES: [(&str, Way); 4] = [
    ("cp -r", Way::Cp),
    ("ropewalk on one host", Way::Local),
    (
        "two agents, unchecked, plain",
        Way::Agents("--plain --verify none"),
    ),
    ("two agents", Way::Agents("")),
];

fn tree(rig: &Rig<'_>, files: u64) -> Result<Tree> {
    let noise = rig.root.join("distant.noise");
    write_noise(&noise, SIZES.1 + files)?;
    let bytes = std::fs::read(&noise)?;
    std::fs::remove_file(&noise)?;
    Ok(Tree {
        files,
        folder: FOLDER,
        len: len_of,
        noise: bytes,
    })
}

fn copy(rig: &Rig<'_>, tree: &Arc<Tree>, way: Way) -> Result<Took> {
    let to = rig.clear()?.join("copy");
    let folder = rig.root.join("distant");
    std::fs::create_dir_all(&folder)?;
    // Mounted for this copy: the kernel remembers nothing of it.
    let _mounted = Mounted::new(tree.clone(), LATENCY, &folder)?;
    let took = match way {
        Way::Cp => {
            let mut cp = Command::new("cp");
            cp.arg("-r").arg(&folder).arg(&to);
            rig.command(cp)?
        }
        Way::Local => rig.command(rig.own(Place::Machine, &["copy", path(&folder), path(&to)]))?,
        Way::Agents(options) => {
            let mut agents = Agents::new(rig.site)?;
            let root = [format!("{}:rw", rig.root.display())];
            agents.start_local("s", &root)?;
            agents.start_local("r", &root)?;
            let (sender, receiver) = (agents.address("s"), agents.address("r"));
            let arguments = format!(
                "copy --lane tcp {options} {sender}:{} {receiver}:{}",
                folder.display(),
                to.display()
            );
            rig.moved(agents, Place::Machine, &arguments)?
        }
    };
    let there = files_in(&to)?;
    ensure!(there == tree.files, "{there} of {} files", tree.files);
    Ok(took)
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

/// Makes the table.
pub(super) fn table(bench: &mut Bench, rig: &Rig<'_>, quick: bool) -> Result<Table> {
    let (rounds, files) = if quick { (1, 1000) } else { (3, 4000) };
    let key = |round: usize, case: &str| format!("distant, round {round}, {files} files, {case}");
    for round in 1..=rounds {
        bench.expect(CASES.map(|(case, way)| {
            let per_file = match way {
                Way::Cp => 0.01,
                Way::Local | Way::Agents(_) => 0.002,
            };
            (key(round, case), 1.5 + files as f64 * per_file)
        }));
    }
    bench.announce();
    let mut made = None;
    let mut all: Vec<Vec<Option<Took>>> = vec![Vec::new(); CASES.len()];
    for round in 1..=rounds {
        for ((case, way), all) in CASES.iter().zip(&mut all) {
            all.push(bench.point(&key(round, case), || {
                let tree = match &made {
                    Some(tree) => tree,
                    None => made.insert(Arc::new(tree(rig, files)?)),
                };
                copy(rig, tree, *way)
            }));
        }
    }
    let name = format!(
        "{files} files from a file system that answers after {} ms",
        LATENCY.as_millis()
    );
    let mut table = Table::new(name.clone(), &COLUMNS);
    for ((case, way), took) in CASES.iter().zip(&all) {
        let seconds = summary(took.iter().flatten().map(|took| took.seconds));
        let of_cp = ratios(took, &all[0]);
        let rates = took.iter().flatten();
        let rates = summary(rates.map(|took| files as f64 / took.seconds));
        table.row(vec![
            (*case).into(),
            number(seconds.map(|all| all.median), 2),
            number(seconds.map(|all| all.min), 2),
            number(seconds.map(|all| all.max), 2),
            number(rates.map(|all| all.median), 0),
            number(summary(of_cp.iter().copied()).map(|all| all.median), 1),
            number(seconds.map(|all| all.count as f64), 0),
        ]);
        if !matches!(way, Way::Cp) {
            let all = spread(of_cp, 1);
            bench.headline(format!("{name}: {case}"), format!("{all} x cp"));
        }
    }
    table.note("A call waits for its answer, others are answered meanwhile. of cp: time of cp in the same round over this time.");
    Ok(table)
}
