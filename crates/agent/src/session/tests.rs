//! How transfers end, and what fits into a message.

use super::*;

/// Who has nothing left to give a name to does not say that it has none to complain of.
#[test]
fn what_was_ended_gets_no_name() {
    let (transfer, _) = Transfer::alone();
    let word = control::Finish {
        commit: true,
        ..control::Finish::default()
    };
    let finished = transfer.finish(&word);
    assert!(!finished.committed && !finished.error.is_empty());
    let word = control::Finish {
        whole_files: true,
        ..word
    };
    let finished = transfer.finish(&word);
    assert!(!finished.committed && finished.error.is_empty());
}

/// A transfer whose end panics is over all the same.
#[test]
fn a_panic_at_the_end_leaves_nothing_running() {
    let (transfer, _) = Transfer::alone();
    let end = || stopped_on_panic(&transfer, |_| panic!("at the end"));
    assert!(catch_unwind(AssertUnwindSafe(end)).is_err());
    assert!(transfer.member.has_ended());
}

/// The longest list of files that is sent fits into a message, and a longer one is refused with both numbers.
#[test]
fn lists_of_files_fit() {
    let reply = control::ManifestReply {
        manifest: vec![0; MANIFEST_SENT_MAX],
        source: u32::MAX,
    };
    let message = control::encode(&FromAgent {
        body: Some(from_agent::Body::ManifestReply(reply)),
    });
    assert!(message.len() - LENGTH_LEN <= control::MESSAGE_MAX);
    let text = too_long(MANIFEST_SENT_MAX + 1);
    assert!(
        text.contains("takes 64 MiB, more than the 63 MiB"),
        "{text}"
    );
}
