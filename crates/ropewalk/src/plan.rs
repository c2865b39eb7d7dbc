//! Plans without moving.

use ropewalk_model::{ByteRate, PlanOutput, TransferSpec};

use crate::Error;

/// Plans the transfer of a specification file: which host sends which bytes to which, how long that takes, and the least
/// time that any plan could take. Nothing is reached and nothing moves.
///
/// * `specification`: the text of the file, with rows `writer`, `reader`, `cap` and `trunk`.
/// * `rate`: speed of each host for which no row gives one, in each direction.
///
/// # Errors
/// [`Error::Input`] names the lines that cannot be read, or the bytes that no writer holds.
pub fn plan(specification: &str, rate: ByteRate) -> Result<PlanOutput, Error> {
    let problem = TransferSpec::parse(specification)?.to_problem(rate);
    Ok(ropewalk_sched::plan_output(
        &problem,
        &ropewalk_sched::Auto,
    )?)
}
