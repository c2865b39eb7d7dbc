//! Compiles the control-plane schema; needs no external compiler.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=schema/control.proto");
    let descriptors = protox::compile(["schema/control.proto"], ["schema"])?;
    prost_build::Config::new().compile_fds(descriptors)?;
    Ok(())
}
