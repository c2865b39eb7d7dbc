//! The package as an interpreter has it: the programs of `tests/`, with the extension that was built.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What cargo has built: beside the test's own program, or one above it.
fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let mut places = own.ancestors().skip(1).take(2);
    let found = places.find_map(|place| Some(place.join(name)).filter(|at| at.exists()));
    found.unwrap_or_else(|| panic!("{name} is not built; test the whole workspace"))
}

fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Runs one of the programs in an interpreter.
fn run(python: &str, program: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("ropewalk");
    copy_all(&source.join("python/ropewalk"), &package);
    std::fs::copy(built("lib_ropewalk.so"), package.join("_ropewalk.abi3.so")).unwrap();
    let output = Command::new(python)
        .args(["-W", "error"])
        .arg(source.join("tests").join(program))
        .arg("-v")
        .current_dir(folder.path())
        .env("PYTHONPATH", folder.path())
        .env("ROPEWALK_PROGRAM", built("ropewalk"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("python3 is not installed: run scripts/install-test-tools");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    println!("{said}");
}

/// An interpreter that has a package: the first of the search path, or the system's.
fn interpreter_with(package: &str) -> Option<&'static str> {
    let imports = |python: &&str| {
        let program = format!("import sys, {package}; assert sys.version_info >= (3, 11)");
        let output = Command::new(python).args(["-c", &program]).output();
        output.is_ok_and(|output: Output| output.status.success())
    };
    let found = ["python3", "/usr/bin/python3"].into_iter().find(imports);
    if found.is_none() {
        eprintln!(
            "no python3 has {package}: that part is skipped; scripts/install-test-tools installs it"
        );
    }
    found
}

#[test]
fn the_package_in_an_interpreter() {
    run("python3", "test_ropewalk.py");
}

#[test]
fn byte_streams() {
    run("python3", "test_streams.py");
}

#[test]
fn tensors() {
    run("python3", "test_tensors.py");
}

#[test]
fn peak_memory() {
    run("python3", "test_peak.py");
}

#[test]
fn arrays() {
    if let Some(python) = interpreter_with("numpy") {
        run(python, "test_numpy.py");
    }
}

#[test]
fn bars() {
    if let Some(python) = interpreter_with("tqdm") {
        run(python, "test_tqdm.py");
    }
}
