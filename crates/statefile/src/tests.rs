//! Files that are there, missing, damaged, of another time, and written by several at once.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use super::*;

const KIND: StateFile = StateFile {
    version: 3,
    key: "counts",
    len_max: 4096,
    lock_patience: Duration::from_secs(60),
    anew: "it starts again",
    instead: "name another",
    lost: "it is forgotten",
};

#[derive(Clone, Debug, PartialEq, Serialize, serde::Deserialize)]
struct Kept {
    version: u32,
    #[serde(default)]
    counts: BTreeMap<String, u64>,
}

impl Default for Kept {
    fn default() -> Self {
        Self {
            version: KIND.version,
            counts: BTreeMap::new(),
        }
    }
}

fn count(path: &Path, key: &str) -> Result<(), StateError> {
    KIND.update(path, |kept: &mut Kept| {
        *kept.counts.entry(key.to_owned()).or_default() += 1;
    })
}

fn load(path: &Path) -> Result<Kept, StateError> {
    KIND.load(path)
}

/// What is written reads back; folder and file are the user's alone; no temporary file stays.
#[test]
fn files_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/er/kept.json");
    assert_eq!(load(&path).unwrap(), Kept::default());
    count(&path, "a").unwrap();
    count(&path, "a").unwrap();
    assert_eq!(load(&path).unwrap().counts["a"], 2);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&path) & 0o777, 0o600);
    assert_eq!(mode(path.parent().unwrap()) & 0o777, 0o700);
    let left = fs::read_dir(path.parent().unwrap()).unwrap();
    let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["kept.json", "kept.json.lock"]);
}

/// Damage costs what was kept and nothing else; a later format is left alone, and so is what is not one of these files.
#[test]
fn damaged_files_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kept.json");
    let long = format!("{{\"version\": 3}}{}", " ".repeat(4096));
    for text in [
        "",
        "{\"counts\": {}}",
        "{\"version\": 3, \"counts\": {\"a",
        "{\"version\": 3, \"counts\": 7}",
        "\u{0}\u{0}",
    ] {
        fs::write(&path, text).unwrap();
        let error = load(&path).unwrap_err().to_string();
        assert!(
            error.contains("kept.json is damaged") && error.contains("it starts again"),
            "{text:?}: {error}"
        );
        count(&path, "a").unwrap();
        assert_eq!(load(&path).unwrap().counts["a"], 1, "{text:?}");
    }
    for text in [
        "my notes",
        "{",
        "[]",
        "{\"name\": \"package\", \"version\": 3}",
        "counts: 3",
        &long,
    ] {
        fs::write(&path, text).unwrap();
        let error = load(&path).unwrap_err().to_string();
        assert!(
            error.contains("is left alone (name another)"),
            "{text:?}: {error}"
        );
        assert!(count(&path, "a").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), *text);
    }
    let newer = "{\"version\": 4, \"all\": \"else\"}";
    fs::write(&path, newer).unwrap();
    assert!(load(&path).unwrap_err().to_string().contains("left alone"));
    assert!(count(&path, "a").is_err());
    assert_eq!(fs::read_to_string(&path).unwrap(), newer);
}

/// What cannot be read or written is an error with its path, never a wait.
#[test]
fn places_that_cannot_be_used_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = load(dir.path()).unwrap_err().to_string();
    assert!(error.contains("not a file"), "{error}");
    fs::write(dir.path().join("file"), "").unwrap();
    let error = count(&dir.path().join("file/kept.json"), "a").unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("cannot write") && error.contains("file/kept.json"),
        "{error}"
    );
}

/// A process that holds the lock for ever costs the others their news, and nobody what is written.
#[test]
fn a_lock_that_is_never_given_back_is_not_broken() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kept.json");
    count(&path, "a").unwrap();
    let holder = File::open(beside(&path, ".lock")).unwrap();
    holder.lock().unwrap();
    let hasty = StateFile {
        lock_patience: Duration::from_millis(30),
        ..KIND
    };
    let error = hasty.update(&path, |kept: &mut Kept| kept.counts.clear());
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("holds") && error.contains("kept.json.lock") && error.contains("forgotten"),
        "{error}"
    );
    assert_eq!(load(&path).unwrap().counts["a"], 1);
    drop(holder);
    hasty
        .update(&path, |kept: &mut Kept| kept.counts.clear())
        .unwrap();
    assert!(load(&path).unwrap().counts.is_empty());
}

/// Names the file to the processes that the test below starts.
const FILE: &str = "ROPEWALK_TEST_STATE_FILE";

/// Processes that write at the same moment, each from several threads, lose nothing of each other.
#[test]
fn writers_take_turns() {
    if let Some(path) = std::env::var_os(FILE) {
        let path = PathBuf::from(path);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..5 {
                        count(path, "all").unwrap();
                        count(path, &format!("{}-{thread}", std::process::id())).unwrap();
                        load(path).unwrap();
                    }
                });
            }
        });
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kept.json");
    let start = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::writers_take_turns"])
            .env(FILE, &path)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut writers: Vec<_> = (0..4).map(|_| start()).collect();
    for writer in &mut writers {
        assert!(writer.wait().unwrap().success());
    }
    let counts = load(&path).unwrap().counts;
    assert_eq!(counts["all"], 4 * 3 * 5);
    assert_eq!(counts.len(), 1 + 4 * 3);
    assert!(counts.iter().all(|(key, n)| key == "all" || *n == 5));
}
