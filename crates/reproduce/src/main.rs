//! Ropewalk.
fn main() {}
