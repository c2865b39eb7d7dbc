//! A transfer whose master is gone without an order to end: it goes on for a time of grace, which [`ropewalk_proto::node::Grace`] and the
//! node's machine decide.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ropewalk_model::Instant;
use ropewalk_proto::control::LaneKind;
use ropewalk_proto::node::Grace;
use tokio::sync::watch;

use super::Transfer;

/// Time between two looks whether it is over: a next command that waits for it does not notice so much.
const LOOK_EVERY: Duration = Duration::from_millis(200);

impl Transfer {
    /// Goes on until it has what it was granted and no peer wants more of it, the grace is over, another transfer to its destination
    /// waits, or the agent is asked to end.
    pub async fn outlast_master(&self, mut shutdown: watch::Receiver<bool>) {
        // Ranks of MPI end together.
        let is_alone = self.member.options.lane() != LaneKind::Mpi;
        if !is_alone || !self.has_plan.load(Ordering::Acquire) {
            return;
        }
        let fetch = self.fetch.lock().clone();
        if let Some(fetch) = fetch {
            fetch.handle_master_gone();
        }
        let mut grace = Grace::new(self.member.now());
        let mut sent = self.serving.sent();
        while !*shutdown.borrow() && !self.is_over(&mut grace, &mut sent) {
            tokio::select! {
                changed = shutdown.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }

    /// * `sent`: at the last look.
    fn is_over(&self, grace: &mut Grace, sent: &mut u64) -> bool {
        let now = self.member.now();
        let sent_now = self.serving.sent();
        if std::mem::replace(sent, sent_now) != sent_now {
            grace.handle_moved(now);
        }
        let fetch = self.fetch.lock().clone();
        let receiving_over_at = fetch.and_then(|fetch| {
            // What is observed of lanes is what they go by.
            drop(fetch.status());
            fetch.grace_over_at()
        });
        let sends = !self.sources.lock().is_empty() || self.serving.hands_on();
        let is_asked = self.is_awaited.load(Ordering::Acquire);
        is_asked || self.member.has_ended() || over_at(receiving_over_at, sends, grace) <= now
    }

    /// Whether another transfer writes to one of its destinations, or above or below it.
    pub fn meets(&self, other: &Self) -> bool {
        let others = || other.paths.iter();
        self.paths
            .iter()
            .any(|path| others().any(|other| are_one_place(path, other)))
    }

    /// Where its master is gone, another transfer to its destination waits for its end.
    pub fn end_grace(&self) {
        self.is_awaited.store(true, Ordering::Release);
    }
}

/// When a node's part is over: of what it receives, and of what it sends or hands on.
fn over_at(receiving: Option<Instant>, sends: bool, grace: &Grace) -> Instant {
    let sending = sends.then(|| grace.over_at());
    receiving.max(sending).unwrap_or_default()
}

/// Whether what is written to one path may be at the other one, too: a tree has all that is below it.
fn are_one_place(path: &Path, other: &Path) -> bool {
    path.starts_with(other) || other.starts_with(path)
}

#[cfg(test)]
mod tests {
    use ropewalk_proto::node::STILL_TIME;

    use super::*;

    /// A receiver that has all, and hands on, goes on as a sender does: others may fetch from it.
    #[test]
    fn who_hands_on_goes_on() {
        let (gone, moved) = (Instant(1_000_000_000), Instant(3_000_000_000));
        let mut grace = Grace::new(gone);
        grace.handle_moved(moved);
        assert_eq!(over_at(Some(gone), false, &grace), gone);
        assert_eq!(over_at(Some(gone), true, &grace), moved + STILL_TIME);
        assert_eq!(over_at(None, true, &grace), moved + STILL_TIME);
        assert_eq!(
            over_at(Some(Instant(99_000_000_000)), true, &grace),
            Instant(99_000_000_000)
        );
    }

    /// A file of a tree is in the tree's place; names that only begin alike are not.
    #[test]
    fn places_that_meet() {
        for (path, other, meet) in [
            ("/to", "/to", true),
            ("/to", "/to/sub/file", true),
            ("/to/sub", "/to", true),
            ("/to", "/too", false),
            ("/to/a", "/to/b", false),
        ] {
            let found = are_one_place(Path::new(path), Path::new(other));
            assert_eq!(found, meet, "{path} {other}");
        }
    }
}
