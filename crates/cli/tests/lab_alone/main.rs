//! Transfers and measurements in the lab of which the result says what was busy: one at a time, as other tests are load, too.

use std::sync::{Mutex, MutexGuard, PoisonError};

mod bottlenecks;
#[path = "../common/mod.rs"]
mod common;
mod doctor;
#[allow(dead_code, reason = "the other tests of the lab use the rest")]
#[path = "../lab/hosts.rs"]
mod hosts;

/// Held by the test that runs.
fn alone() -> MutexGuard<'static, ()> {
    static RUNS: Mutex<()> = Mutex::new(());
    RUNS.lock().unwrap_or_else(PoisonError::into_inner)
}
