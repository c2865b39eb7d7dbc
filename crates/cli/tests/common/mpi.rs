//! MPI as it is installed on this host, for commands whose processes are ranks.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Place;
use super::processes::{assert_gone, processes, temporary};

/// A place with one MPI of this host as the one in PATH.
pub struct Mpi {
    pub place: Place,
    pub name: &'static str,
}

/// All that are installed; the others are named.
pub fn installed() -> Vec<Mpi> {
    let mut found = Vec::new();
    for name in ["openmpi", "mpich"] {
        let there = |program: &str| Path::new("/usr/bin").join(format!("{program}.{name}"));
        if !there("mpirun").exists() || !there("mpicc").exists() {
            eprintln!("{name} is not installed; scripts/install-test-tools installs it");
            continue;
        }
        let place = Place::new();
        write_program(
            &place,
            "mpirun",
            &format!("exec {} \"$@\"", there("mpirun").display()),
        );
        found.push(Mpi { place, name });
    }
    found
}

/// Puts a program into the place's folder of programs.
pub fn write_program(place: &Place, name: &str, script: &str) {
    let folder = place.path("bin");
    let _ = std::fs::create_dir(&folder);
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

impl Mpi {
    pub fn command(&self) -> Command {
        let mut command = self.place.command();
        command.env("PATH", format!("{}:/usr/bin:/bin", self.place.text("bin")));
        command
    }

    /// After a run that failed: no process, no file, and nothing of MPI.
    pub fn assert_clean(&self, all: &[i32], folder: &Path) {
        self.assert_ended(all, folder);
        assert_eq!(temporary(self.place.dir.path()), Vec::<String>::new());
    }

    /// The same, but for what the next run goes on with: files with a journal.
    pub fn assert_ended(&self, all: &[i32], folder: &Path) {
        assert_gone(all);
        assert!(!folder.exists(), "{}: {}", self.name, folder.display());
        let left = temporary(self.place.dir.path());
        let has_journal = |name: &String| {
            let file = name.strip_suffix(".journal").unwrap_or(name);
            left.contains(&format!("{file}.journal"))
        };
        assert!(left.iter().all(has_journal), "{}: {left:?}", self.name);
    }
}

/// Where MPI keeps files of what runs.
pub fn folder_of(family: &[i32]) -> PathBuf {
    let words = |pid: &i32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let lines = family.iter().map(words);
    let words: Vec<String> = lines
        .map(|line| String::from_utf8_lossy(&line).into_owned())
        .flat_map(|line| line.split('\0').map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let folder = words.iter().find(|word| word.contains("/ropewalk-mpi-"));
    folder.expect("a folder for files of MPI").into()
}

/// The process of `mpirun`, which has started so many ranks.
pub fn mpirun_of(family: &[i32], ranks: u32) -> i32 {
    let all = processes(&["rank", &format!("-n {ranks}")]);
    let is_launcher = |pid: &&i32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        all.contains(pid) && name.starts_with("mpi")
    };
    *family
        .iter()
        .find(is_launcher)
        .expect("a process of mpirun")
}
