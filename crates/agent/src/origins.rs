//! Where bytes of rows are from, as control says it.

use ropewalk_proto::control;
use ropewalk_store::{Identity, Origin};

/// Which bytes of which files those of rows are.
pub(crate) fn origins(origins: &[control::Origin]) -> Vec<Origin> {
    let origins = origins.iter().filter_map(|origin| {
        let identity = origin.identity.as_ref()?;
        Some(Origin {
            range: control::range(origin.start, origin.length),
            offset: origin.offset,
            name: origin.name.clone(),
            identity: Identity {
                len: identity.length,
                mtime_seconds: identity.modified_seconds,
                mtime_nanoseconds: identity.modified_nanoseconds,
            },
        })
    });
    origins.collect()
}
