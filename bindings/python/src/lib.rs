//! The package `ropewalk` for Python: what of it is in Rust. The rest, and what users call, is in `python/ropewalk`.
//!
//! Everything that waits does so without the interpreter's lock.

// Macros of pyo3 make functions without documents.
#![allow(missing_docs)]

mod agent;
mod error;
mod memory;
mod message;
mod open;
mod own;
mod region;
mod stream;
mod transfer;
mod waiting;

use pyo3::prelude::*;

/// Plans a specification; JSON.
#[pyfunction]
fn plan(py: Python<'_>, specification: &str, rate: &str) -> PyResult<String> {
    let rate = transfer::rate(rate)?;
    let planned = py.detach(|| ropewalk::plan(specification, rate));
    let planned = planned.map_err(error::raise)?;
    Ok(serde_json::to_string(&planned).unwrap_or_default())
}

/// A fresh secret for agents.
#[pyfunction]
fn new_token() -> [u8; 32] {
    ropewalk::new_token()
}

/// The secret in a file.
#[pyfunction]
fn read_token(file: std::path::PathBuf) -> PyResult<[u8; 32]> {
    ropewalk::read_token(file).map_err(error::raise)
}

#[pymodule]
fn _ropewalk(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Failed", module.py().get_type::<error::Failed>())?;
    module.add_function(wrap_pyfunction!(plan, module)?)?;
    module.add_function(wrap_pyfunction!(new_token, module)?)?;
    module.add_function(wrap_pyfunction!(read_token, module)?)?;
    module.add_class::<agent::Agent>()?;
    module.add_class::<agent::Lent>()?;
    module.add_class::<message::MessageListener>()?;
    module.add_class::<message::MessageSocket>()?;
    module.add_class::<region::Get>()?;
    module.add_class::<region::Region>()?;
    module.add_class::<region::RegionServer>()?;
    module.add_class::<stream::ByteStream>()?;
    module.add_class::<stream::ByteStreamListener>()?;
    module.add_class::<stream::ByteStreams>()?;
    module.add_class::<transfer::Place>()?;
    module.add_class::<transfer::Copy>()?;
    module.add_class::<transfer::Rows>()?;
    module.add_class::<transfer::Running>()?;
    Ok(())
}
