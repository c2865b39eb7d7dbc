//! What the master says to a node whose plan it has.

use ropewalk_model::{Instant, Range};

use super::{Node, Permit};
use crate::control::{self, from_agent, to_agent};

impl Node {
    /// Takes a message and returns the answer, where there is one. Messages that are not about what the node receives, or
    /// that need its disks, are the driver's.
    ///
    /// * `unit_at`: the unit of the sinks' layout around an offset.
    pub fn handle_message(
        &mut self,
        message: &to_agent::Body,
        now: Instant,
        unit_at: &dyn Fn(u64) -> Range,
    ) -> Option<from_agent::Body> {
        match message {
            to_agent::Body::Revision(revision) => self.handle_revision(revision, now),
            to_agent::Body::Limit(limit) => self.fetch.set_limit(control::limit(limit.rate), now),
            to_agent::Body::Streams(streams) => {
                self.set_streams(control::given(streams.count), now);
            }
            to_agent::Body::Permit(said) => match &mut self.permit {
                Some(permit) => permit.extend(said, now),
                none => *none = Some(Permit::new(said, now)),
            },
            to_agent::Body::Release(release) => {
                let released = self.fetch.release(release.bytes, unit_at);
                let ranges = control::stretches(&released);
                let released = control::Released { ranges };
                return Some(from_agent::Body::Released(released));
            }
            _ => {}
        }
        None
    }
}
