//! The package as an interpreter has it: `tests/test_ropewalk.py` with the extension that was built.

use std::path::{Path, PathBuf};
use std::process::Command;

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

#[test]
fn the_package_in_an_interpreter() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("ropewalk");
    copy_all(&source.join("python/ropewalk"), &package);
    std::fs::copy(built("lib_ropewalk.so"), package.join("_ropewalk.abi3.so")).unwrap();
    let output = Command::new("python3")
        .args(["-W", "error"])
        .arg(source.join("tests/test_ropewalk.py"))
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
