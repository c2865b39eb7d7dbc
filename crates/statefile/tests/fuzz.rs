//! Any contents of a state file are read, or refused in words, and a file of another kind or of a later format is never replaced.

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_statefile::{StateError, StateFile};

#[path = "../../../fuzz/mutate.rs"]
mod mutate;
use mutate::fuzz_some;

const FILE: StateFile = StateFile {
    version: 2,
    key: "nodes",
    len_max: 4096,
    lock_patience: Duration::from_secs(1),
    anew: "rates are measured again",
    instead: "--speeds PATH uses another file",
    lost: "speeds are not remembered",
};

#[derive(Default, serde::Serialize, serde::Deserialize)]
struct Kept {
    version: u32,
    nodes: BTreeMap<String, u64>,
}

/// What was damaged is written again; what is not this program's, or a later one's, stays as it is.
#[test]
fn contents() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("speeds.json");
    let corpus = [
        r#"{ "version": 2, "nodes": { "a": 7, "b": 12500000 } }"#,
        r#"{"version":3,"nodes":[]}"#,
        "\0\0\0\0",
    ];
    let corpus = corpus.map(|text| text.as_bytes().to_vec());
    fuzz_some("state files", &corpus, 300, |input| {
        std::fs::write(&path, input).unwrap();
        let loaded = FILE.load::<Kept>(&path);
        let is_left_alone = match &loaded {
            Ok(kept) => {
                assert!(kept.version <= FILE.version);
                false
            }
            Err(error) => {
                assert!(error.to_string().contains("speeds.json"), "{error}");
                !matches!(error, StateError::Damaged { .. })
            }
        };
        let updated = FILE.update(&path, |kept: &mut Kept| {
            kept.version = FILE.version;
            kept.nodes.insert("c".into(), 1);
        });
        assert_eq!(updated.is_err(), is_left_alone);
        match is_left_alone {
            true => assert_eq!(std::fs::read(&path).unwrap(), input),
            false => assert_eq!(FILE.load::<Kept>(&path).unwrap().nodes["c"], 1),
        }
    });
}

/// A file of the format before is read; one of the format after is named, and left alone.
#[test]
fn formats_before_and_after() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("speeds.json");
    std::fs::write(&path, r#"{"version":1,"nodes":{"a":7}}"#).unwrap();
    assert_eq!(FILE.load::<Kept>(&path).unwrap().nodes["a"], 7);
    std::fs::write(&path, r#"{"version":3,"nodes":{"a":7}}"#).unwrap();
    let error = FILE
        .load::<Kept>(&path)
        .map(|_| ())
        .unwrap_err()
        .to_string();
    let expected = "speeds.json is of format 3, which this version cannot read; it is left alone";
    assert!(error.contains(expected), "{error}");
}
