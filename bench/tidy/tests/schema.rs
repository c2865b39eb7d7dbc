//! The Rust code of the control messages is that of their schema. It is kept in the tree, so that building needs no generator.

use std::fs;
use std::path::Path;

/// Set to 1, it writes what it would compare.
const UPDATE: &str = "ROPEWALK_UPDATE_GOLDEN";

#[test]
fn control_messages_are_those_of_the_schema() {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/proto");
    let schema = proto.join("schema");
    let descriptors = protox::compile(["control.proto"], [&schema]).unwrap();
    let out = tempfile::tempdir().unwrap();
    prost_build::Config::new()
        .out_dir(out.path())
        .compile_fds(descriptors)
        .unwrap();
    let made = fs::read_to_string(out.path().join("ropewalk.control.v1.rs")).unwrap();
    let kept = proto.join("src/control/generated.rs");
    if std::env::var_os(UPDATE).is_some_and(|value| value == "1") {
        fs::write(&kept, &made).unwrap();
    }
    let is_same = fs::read_to_string(&kept).unwrap() == made;
    assert!(
        is_same,
        "{} is not what {} makes; run `{UPDATE}=1 cargo test -p ropewalk-tidy --test schema`",
        kept.display(),
        schema.display()
    );
}
