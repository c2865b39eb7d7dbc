//! A trunk between two rails: what crosses it, what is lost and counted, what is left of it.

mod changes;
#[path = "../common/mod.rs"]
mod common;
mod crossing;
mod ends;
mod nets;
mod validity;

/// The lab's own program.
const PROGRAM: &str = env!("CARGO_BIN_EXE_ropewalk-lab");
