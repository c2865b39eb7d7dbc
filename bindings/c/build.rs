//! Names the shared library as programs that are linked with it look for it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libropewalk_c.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
