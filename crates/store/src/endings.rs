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

/// Longest wait for another transfer to end: it syncs what it has received and gives names, which on a slow disk takes a while.
const ENDING_WAIT: Duration = Duration::from_secs(60);

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
///
/// # Errors
/// [`StoreError::ParentMissing`], or what the system reported when its folder was opened.
pub(crate) fn await_endings(dest: &Path, id: &str) -> Result<(), StoreError> {
    let (parent, _, name) = open_parent(dest)?;
    let name = &*name;
    let began = Instant::now();
    let is_awaited = |folder: &OwnedFd, journal: &[u8]| {
        let most = match is_other_round(journal, name, id) {
            true if journal::is_written(folder, journal) => ROUND_WAIT,
            _ if journal::is_ending(folder, journal) => ENDING_WAIT,
            _ => return false,
        };
        is_ours(folder, journal) == Some(true) && began.elapsed() < most
    };
    let is_any = |folder: &OwnedFd| {
        let mut journals = journals(folder, name).into_iter();
        journals.any(|journal| is_awaited(folder, &journal))
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let dest = || sys::open_beneath(parent.as_fd(), name, flags, Mode::empty());
    while is_any(&parent) || dest().is_ok_and(|dest| is_any(&dest)) {
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
