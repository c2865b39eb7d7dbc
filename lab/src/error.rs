//! What can go wrong in a lab.

use std::io;
use std::path::PathBuf;

/// Why a lab could not be built, changed or taken down.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// This process may not create namespaces, or a program the lab needs is not installed.
    /// Tests take this as "skip, and say so"; see [`available`](crate::available).
    #[error("no network lab here: {reason}")]
    NotPermitted {
        /// The missing right or program, and how to get it.
        reason: String,
    },
    /// The description of the lab contradicts itself or the kernel's limits.
    #[error("lab description: {what}")]
    BadDescription {
        /// Names the host and the value at fault.
        what: String,
    },
    /// No host of that name is in the lab.
    #[error("the lab has no host {name:?}; it has {known}")]
    UnknownHost {
        /// The name asked for.
        name: String,
        /// The names there are, separated by commas.
        known: String,
    },
    /// The host exists but has no interface of that number.
    #[error("host {host} has {count} interfaces; there is no number {nic} (they count from 0)")]
    UnknownNic {
        /// The host.
        host: String,
        /// The interface number asked for.
        nic: usize,
        /// How many there are.
        count: usize,
    },
    /// A step of a host's set-up failed inside its new namespaces.
    #[error("host {host}: cannot {step}: {cause}")]
    Setup {
        /// The host, or `switch`.
        host: String,
        /// What was being done, with its path.
        step: String,
        /// What the kernel said.
        cause: io::Error,
    },
    /// `ip`, `tc` or an ssh program reported a failure.
    #[error("host {host}: {program} failed: {message}")]
    Program {
        /// The host whose namespaces it ran in, or `switch`.
        host: String,
        /// The program and, where short, its arguments.
        program: String,
        /// What it printed, or why it could not be started.
        message: String,
    },
    /// A system call of the lab itself failed.
    #[error("cannot {action}: {cause}")]
    System {
        /// What was being done.
        action: String,
        /// What the kernel said.
        cause: io::Error,
    },
    /// A file inside a host could not be read or written.
    #[error("{path}: {cause}", path = path.display())]
    File {
        /// The path as this process sees it.
        path: PathBuf,
        /// What the kernel said.
        cause: io::Error,
    },
    /// Teardown gave up: processes inside the lab did not die in time.
    #[error("lab teardown left {what}; look for processes in state D")]
    Leftover {
        /// What is still there.
        what: String,
    },
}

impl LabError {
    pub(crate) fn system(action: impl Into<String>) -> impl FnOnce(io::Error) -> LabError {
        let action = action.into();
        move |cause| LabError::System { action, cause }
    }

    pub(crate) fn description(what: impl Into<String>) -> LabError {
        LabError::BadDescription { what: what.into() }
    }
}
