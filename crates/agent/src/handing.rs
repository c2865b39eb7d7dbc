//! What a receiver hands on to fellow receivers: bytes that lie in its sinks and are checked.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use ropewalk_model::{Range, time};
use ropewalk_proto::node::{Announcer, Held};
use ropewalk_proto::wire::HeldRange;
use ropewalk_store::{Extent, Source, StoreError};

/// A node that has more and more of the data.
pub(crate) trait Holder: Send + Sync {
    /// All that others may have now, and the time of the transfer.
    fn held(&self) -> (Held, time::Instant);

    /// Reads some of that.
    ///
    /// # Errors
    /// [`StoreError::NotHeld`] for other bytes, else what reading reported.
    fn read_held(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError>;

    /// Ranges of that as they are announced: with the holders that they are from.
    fn with_origins(&self, ranges: &[Range]) -> Vec<HeldRange>;

    /// A unit of that was read to be sent, and has this hash.
    fn check_read(&self, range: Range, digest: &[u8; 32]);
}

/// What a node hands on, as a source.
#[derive(Clone)]
pub(crate) struct Handing(Weak<dyn Holder>);

impl Handing {
    /// Of this node, as long as it receives.
    pub fn of(holder: &Arc<dyn Holder>) -> Self {
        Self(Arc::downgrade(holder))
    }
}

impl Source for Handing {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        let holder = self.0.upgrade().ok_or(StoreError::Ended)?;
        holder.read_held(offset, buf)
    }

    fn extent(&self, _offset: u64, _len: u64) -> Result<Extent<'_>, StoreError> {
        // It is to be read: what it is may not be known a moment later.
        Ok(Extent::Memory(&[]))
    }

    fn is_of_files(&self) -> bool {
        true
    }
}

/// What one stream was told of it.
pub(crate) struct Announcing {
    handing: Handing,
    announcer: Mutex<Announcer>,
}

impl Announcing {
    /// Nothing was announced on the stream. `None` where the node does not receive any more.
    pub fn new(handing: Handing) -> Option<Self> {
        let (_, now) = handing.0.upgrade()?.held();
        Some(Self {
            handing,
            announcer: Mutex::new(Announcer::new(now)),
        })
    }

    /// A unit was read to be sent, and has this hash.
    pub fn check_read(&self, range: Range, digest: &[u8; 32]) {
        if let Some(holder) = self.handing.0.upgrade() {
            holder.check_read(range, digest);
        }
    }

    /// What to say now, and when to ask again.
    pub fn news(&self) -> Option<(Vec<HeldRange>, Duration)> {
        let holder = self.handing.0.upgrade()?;
        let (held, now) = holder.held();
        let mut announcer = self.announcer.lock();
        let ranges = announcer.announce(&held, now);
        let pause = announcer.next_at().since(now);
        drop(announcer);
        Some((holder.with_origins(&ranges), pause.into()))
    }
}
