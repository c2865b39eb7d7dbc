//! Waiting for other transfers to a place that are about to end, before what they leave is taken over.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use crate::claims::{is_ours, journals};
use crate::error::StoreError;
use crate::journal;
use crate::staging::{open_parent, temporary_begin};
use crate::sys;

/// Longest wait for another transfer to end, unless the user says another one: it syncs what it has received and gives names, which on a slow
/// disk takes a while.
pub const ENDING_WAIT: Duration = Duration::from_secs(60);

/// Longest wait for an earlier round of this transfer to end. Its master is gone from it; an agent notices that after 60 s at most, and
/// then ends in order.
const ROUND_WAIT: Duration = Duration::from_secs(90);

/// Digits of an id that all rounds of a transfer have in common, and all that it has.
const ROUND_DIGITS: std::ops::Range<usize> = 28..32;

const ENDING_PAUSE: Duration = Duration::from_millis(20);

/// Waits for transfers to DEST that are about to end, as those whose command was killed are, and for earlier rounds of this one: what
/// they leave, and what they give names, need not be sent.
///
/// * `id`: of the transfer, as in its temporary name.
/// * `most`: longest wait for other transfers. Sinks wait for [`ENDING_WAIT`] when they are made.
/// * `is_over`: the transfer that waits has ended itself.
///
/// # Errors
/// [`StoreError::StillEnding`] when another transfer has not ended in time: it may still write there. [`StoreError::Ended`] when this one
/// is over. [`StoreError::ParentMissing`], or what the system reported when its folder was opened.
pub fn await_endings(
    dest: &Path,
    id: &str,
    most: Duration,
    is_over: &dyn Fn() -> bool,
) -> Result<(), StoreError> {
    let (parent, _, name) = open_parent(dest)?;
    let name = &*name;
    let began = Instant::now();
    let is_awaited = |folder: &OwnedFd, journal: &[u8]| {
        // Before it is opened: that of another user may be under a lease, which an open waits for.
        if is_ours(folder, journal) != Some(true) {
            return false;
        }
        let is_of_round = is_other_round(journal, name, id) && journal::is_written(folder, journal);
        match is_of_round {
            // It writes the same bytes: what it still has is sent again.
            true => began.elapsed() < ROUND_WAIT,
            false => journal::is_ending(folder, journal),
        }
    };
    // Whether it is of another transfer.
    let awaited = |folder: &OwnedFd| {
        let journals = journals(folder, name).into_iter();
        let awaited = journals.filter(|journal| is_awaited(folder, journal));
        let others = awaited.map(|journal| !is_other_round(&journal, name, id));
        others.max()
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let inside = || {
        let opened = sys::open_beneath(parent.as_fd(), name, flags, Mode::empty());
        opened.ok().and_then(|opened| awaited(&opened))
    };
    while let Some(is_other) = awaited(&parent).max(inside()) {
        if is_over() {
            return Err(StoreError::Ended);
        }
        if is_other && began.elapsed() >= most {
            return Err(StoreError::StillEnding {
                path: dest.to_owned(),
                seconds: most.as_secs(),
            });
        }
        std::thread::sleep(ENDING_PAUSE);
    }
    Ok(())
}

/// Whether a journal is that of another round of the transfer with this id.
fn is_other_round(journal: &[u8], name: &[u8], id: &str) -> bool {
    let begin = temporary_begin(name);
    let temporary = journal::temporary_of(journal);
    let other = temporary.and_then(|temporary| temporary.strip_prefix(&*begin));
    let (own, common) = (id.as_bytes(), ..ROUND_DIGITS.start);
    let digits = |id: &[u8]| id.get(..ROUND_DIGITS.end).map(<[u8]>::to_vec);
    match (other.and_then(digits), digits(own)) {
        (Some(other), Some(own)) => other[common] == own[common] && other != own,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Journal;

    /// As for a transfer that goes on.
    fn await_endings(dest: &Path, id: &str) -> Result<(), StoreError> {
        super::await_endings(dest, id, ENDING_WAIT, &|| false)
    }

    /// A transfer that is about to end is waited for, one that is not is not, nor one to another destination.
    #[test]
    fn endings_are_awaited() {
        let folder = tempfile::tempdir().unwrap();
        let parent: OwnedFd = std::fs::File::open(folder.path()).unwrap().into();
        let name = format!(".to.ropewalk-{}-0.journal", "0".repeat(32));
        let mut journal = Journal::create(parent.as_fd(), name.as_bytes()).unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let (to, other) = (folder.join("to"), folder.join("other"));
        let id = format!("{}-0", "1".repeat(32));
        await_endings(&to, &id).unwrap();
        journal.note_ending().unwrap();
        await_endings(&other, &id).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| await_endings(&to, &id));
            std::thread::sleep(ENDING_PAUSE * 3);
            assert!(!waiting.is_finished());
            // One that is over itself does not wait on, nor does one for which it takes too long: that one makes nothing.
            let over = super::await_endings(&to, &id, ENDING_WAIT, &|| true);
            assert_eq!(over, Err(StoreError::Ended));
            let late = super::await_endings(&to, &id, Duration::ZERO, &|| false).unwrap_err();
            assert!(matches!(late, StoreError::StillEnding { .. }));
            assert!(late.may_pass() && late.to_string().contains("ropewalk status"));
            drop(journal);
            waiting.join().unwrap().unwrap();
        });
    }

    /// An earlier round of the same transfer is waited for, whatever its writer says: its agent has not noticed yet that it is over.
    #[test]
    fn earlier_rounds_are_awaited() {
        let folder = tempfile::tempdir().unwrap();
        let parent: OwnedFd = std::fs::File::open(folder.path()).unwrap().into();
        let id = |round: u8| format!("{}{round:04}-0", "a".repeat(28));
        let name = format!(".to.ropewalk-{}.journal", id(1));
        let journal = Journal::create(parent.as_fd(), name.as_bytes()).unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let (to, other) = (folder.join("to"), format!("b{}", &id(2)[1..]));
        await_endings(&to, &id(1)).unwrap();
        await_endings(&to, &other).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| await_endings(&to, &id(2)));
            std::thread::sleep(ENDING_PAUSE * 3);
            assert!(!waiting.is_finished());
            drop(journal);
            waiting.join().unwrap().unwrap();
        });
    }
}
