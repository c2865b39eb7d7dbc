//! How many files and sockets this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit to the most that the system allows this process. Best effort: what is missing is reported when a file is opened.
pub fn raise_limit() {
    let most = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: most,
            maximum: most,
        },
    );
}

/// The limit.
#[must_use]
pub fn limit() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |most| most as usize)
}
