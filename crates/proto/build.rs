//! Compiles the control-plane schema; needs no external compiler.
fn main() {}
