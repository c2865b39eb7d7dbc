//! Whether this node may go on.

use std::sync::Arc;

/// Whether something may still be changed: another node may do it by now.
#[derive(Clone)]
pub struct Permit(Arc<dyn Fn() -> bool + Send + Sync>);

impl Permit {
    /// As a function says.
    pub fn of(holds: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(holds))
    }

    pub(super) fn holds(&self) -> bool {
        (self.0)()
    }
}

impl std::fmt::Debug for Permit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Permit")
    }
}
