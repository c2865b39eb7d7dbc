//! Errors of the library as one exception; `python/ropewalk/errors.py` makes those that users see of it.

use std::time::Duration;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use ropewalk::Error;

pyo3::create_exception!(_ropewalk, Failed, PyException);

/// Raises an error: its party, message, kind, whether the same call may succeed later, and the report, as JSON.
pub(crate) fn raise(error: Error) -> PyErr {
    let party = match &error {
        Error::Input(_) => "input",
        Error::Host(_) => "host",
        Error::Peer(_) => "peer",
        Error::Network(_) => "network",
        // The list of parties may grow; what is not known here is a bug of this package.
        _ => "bug",
    };
    let fault = error.fault();
    let json = |value: Result<String, serde_json::Error>| value.ok();
    let kind = fault
        .kind
        .as_ref()
        .map(serde_json::to_string)
        .and_then(json);
    let report = fault
        .report
        .as_ref()
        .map(serde_json::to_string)
        .and_then(json);
    Failed::new_err((
        party,
        fault.message.clone(),
        kind,
        error.is_retryable(),
        report,
    ))
}

/// An error of the caller.
pub(crate) fn misuse(message: impl Into<String>) -> PyErr {
    let none: Option<String> = None;
    Failed::new_err(("input", message.into(), none.clone(), false, none))
}

/// The longest time of a call is over.
pub(crate) fn late(most: Duration) -> PyErr {
    let text = format!("the deadline of {} s passed", most.as_secs_f64());
    let none: Option<String> = None;
    Failed::new_err(("network", text, none.clone(), true, none))
}
