//! What the end of a run means for its job.

use std::process::ExitStatus;

use super::Ran;
use crate::codes::{EXIT_INTERRUPTED, EXIT_STOPPED, EXIT_USAGE};
use crate::report::{ErrorKind, Outcome, Report};

/// How reasons end that time may change, in lower case; most are errors of the system, as glibc and musl write them. Nodes make them where
/// they scan sources, and where they give names or remove them at destinations.
const PASSING: [&str; 32] = [
    // Something has changed meanwhile.
    "vanished during the scan",
    "was replaced during the scan",
    "something was put into it meanwhile",
    "another node may have ended the copy by now",
    "not a directory",
    "is a directory",
    "too many levels of symbolic links",
    // A disk that fails, or is full.
    "input/output error",
    "i/o error",
    "no space left on device",
    "quota exceeded",
    // Something is in use.
    "it is in use, or another file system is mounted there",
    "resource busy",
    "text file busy",
    "resource temporarily unavailable",
    "too many open files",
    "no locks available",
    "cannot allocate memory",
    "out of memory",
    "interrupted system call",
    // A server of files that is away.
    "transport endpoint is not connected",
    "socket not connected",
    "connection refused",
    "connection reset by peer",
    "timed out",
    "host is down",
    "no route to host",
    "unreachable",
    "file handle",
    "no such device",
    "shutdown",
    "software caused connection abort",
];

impl Ran {
    /// What the end of a run's process means.
    ///
    /// * `report`: its last one, if it has written one.
    /// * `errors`: what it wrote to standard error.
    /// * `is_stopped`: whether its master has stopped it.
    #[must_use]
    pub fn of(
        status: ExitStatus,
        report: Option<&Report>,
        errors: Option<String>,
        is_stopped: bool,
    ) -> Self {
        let code = status.code();
        if code == Some(0) {
            return Self::Done;
        }
        if is_stopped || code == Some(EXIT_STOPPED.into()) {
            return Self::Interrupted;
        }
        if code == Some(EXIT_INTERRUPTED.into()) {
            return Self::Cancelled;
        }
        let said = report.and_then(|report| report.error.clone());
        let said = said.or(errors).filter(|said| !said.is_empty());
        Self::Failed {
            reason: said.unwrap_or_else(|| format!("its process ended: {status}")),
            is_final: match report.and_then(|report| Some((report, report.error_kind?))) {
                Some((report, kind)) => is_final(report, kind),
                None => code == Some(EXIT_USAGE.into()),
            },
            safe_bytes: report.map_or(0, Report::safe_bytes),
        }
    }
}

/// Whether another run would end in the same way.
fn is_final(report: &Report, kind: ErrorKind) -> bool {
    match kind {
        // What the user has to change first.
        ErrorKind::Usage | ErrorKind::Specification | ErrorKind::Refused | ErrorKind::Differing => {
            true
        }
        ErrorKind::Missing | ErrorKind::Node => lacks_for_good(report),
        ErrorKind::Unreachable | ErrorKind::Lost | ErrorKind::Interrupted | ErrorKind::Other => {
            false
        }
    }
}

/// Whether nothing is wrong but that some names could not be read, given or removed, for reasons that time does not change. Names beyond
/// those that are listed are taken to be like these.
fn lacks_for_good(report: &Report) -> bool {
    let landing = &report.landing;
    let unread = report.left_out.iter().map(|one| &one.reason);
    let unplaced = landing.not_placed.iter().map(|one| &one.reason);
    let unremoved = landing.not_removed.iter().map(|one| &one.reason);
    let mut reasons = unread.chain(unplaced).chain(unremoved).peekable();
    report.outcome == Outcome::Partial
        && report.missing.is_empty()
        && report.missing_files.is_empty()
        && reasons.peek().is_some()
        && !reasons.any(|reason| may_pass(reason))
}

fn may_pass(reason: &str) -> bool {
    let reason = reason.to_ascii_lowercase();
    PASSING.iter().any(|end| reason.ends_with(end))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;
    use crate::report::{LeftOutReport, MissingFile, NotPlacedReport, NotRemovedReport};

    fn exit(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    fn report(kind: ErrorKind) -> Report {
        Report {
            error: Some("why".into()),
            error_kind: Some(kind),
            ..Report::ended(Outcome::Failed)
        }
    }

    fn failed(ran: Ran) -> (String, bool, u64) {
        match ran {
            Ran::Failed {
                reason,
                is_final,
                safe_bytes,
            } => (reason, is_final, safe_bytes),
            other => panic!("{other:?}"),
        }
    }

    /// A failed run is tried again where time may help; not where the user has to change something first.
    #[test]
    fn ends_are_read() {
        assert_eq!(Ran::of(exit(0), None, None, true), Ran::Done);
        assert_eq!(Ran::of(exit(130), None, None, true), Ran::Interrupted);
        assert_eq!(Ran::of(exit(130), None, None, false), Ran::Cancelled);
        // A signal of the system, before that of `serve`.
        assert_eq!(Ran::of(exit(75), None, None, false), Ran::Interrupted);
        for (kind, is_final) in [
            (ErrorKind::Unreachable, false),
            (ErrorKind::Lost, false),
            (ErrorKind::Missing, false),
            (ErrorKind::Node, false),
            (ErrorKind::Other, false),
            (ErrorKind::Refused, true),
            (ErrorKind::Specification, true),
            (ErrorKind::Usage, true),
            (ErrorKind::Differing, true),
        ] {
            let ran = Ran::of(exit(4), Some(&report(kind)), None, false);
            assert_eq!(failed(ran), ("why".into(), is_final, 0), "{kind:?}");
        }
        let mut moved = report(ErrorKind::Lost);
        moved.delivered_bytes = 5;
        moved.landing.resumed_bytes = 30;
        moved.landing.unchanged_bytes = 100;
        let ran = Ran::of(exit(1), Some(&moved), None, false);
        assert_eq!(failed(ran).2, 135);
        let ran = Ran::of(exit(2), None, Some("wrong option".into()), false);
        assert_eq!(failed(ran), ("wrong option".into(), true, 0));
        let ran = Ran::of(ExitStatus::from_raw(9), None, Some(String::new()), false);
        let (reason, is_final, _) = failed(ran);
        assert!(reason.contains("signal: 9") && !is_final, "{reason}");
    }

    /// A copy that lacks some names.
    fn partial(kind: ErrorKind, unread: &[&str], unplaced: &[&str], unremoved: &[&str]) -> Report {
        let mut report = Report {
            outcome: Outcome::Partial,
            ..report(kind)
        };
        let (node, file) = (|| "a".to_owned(), || "f".to_owned());
        report.left_out = unread
            .iter()
            .map(|reason| LeftOutReport {
                node: node(),
                file: file(),
                reason: (*reason).into(),
            })
            .collect();
        report.landing.not_placed = unplaced
            .iter()
            .map(|reason| NotPlacedReport {
                node: node(),
                file: file(),
                reason: (*reason).into(),
            })
            .collect();
        report.landing.not_removed = unremoved
            .iter()
            .map(|reason| NotRemovedReport {
                node: node(),
                file: file(),
                reason: (*reason).into(),
            })
            .collect();
        report
    }

    fn ends_for_good(report: &Report) -> bool {
        failed(Ran::of(exit(3), Some(report), None, false)).1
    }

    /// Each reason of nodes, wherever it is made: another try helps against few of them.
    #[test]
    fn reasons_that_time_changes_are_known() {
        for (reason, passes) in [
            // Scans of sources.
            ("permission denied", false),
            ("vanished during the scan", true),
            ("was replaced during the scan", true),
            ("its path is too long", false),
            ("input/output error", true),
            ("I/O error", true),
            ("it was listed in part: input/output error", true),
            ("structure needs cleaning", false),
            ("invalid argument", false),
            ("value too large for defined data type", false),
            ("does not exist", false),
            (
                "is below a symbolic link; name it by the way without the link",
                false,
            ),
            // What a destination cannot hold.
            ("the file system there has no symbolic links", false),
            ("the file system there has no names with :", false),
            (
                "the link, or its name, is too long for the file system there",
                false,
            ),
            (
                "longer than the 512 bytes that its process may write (ulimit -f)",
                false,
            ),
            (
                "longer than the 4294967295 bytes that a file may have in the file system there",
                false,
            ),
            (
                "the name is longer than the 143 bytes that names have in the file system there",
                false,
            ),
            (
                "the file system there takes its name for that of d/X",
                false,
            ),
            ("it is a further name of busy, which is left out", false),
            ("the first node that writes this copy cannot hold it", false),
            // Names that could not be given, and mounts without a server.
            ("files in it are missing", false),
            (
                "it is in use, or another file system is mounted there",
                true,
            ),
            ("something was put into it meanwhile", true),
            ("Text file busy", true),
            ("Not a directory", true),
            ("No space left on device", true),
            ("Disk quota exceeded", true),
            ("Read-only file system", false),
            ("Operation not supported", false),
            ("File too large", false),
            ("Transport endpoint is not connected", true),
            ("Stale file handle", true),
            ("Connection timed out", true),
            ("Host is down", true),
            ("No route to host", true),
            ("No such device", true),
            (
                "/dest/d is a file where a directory is to be written; remove it",
                false,
            ),
            // Removals.
            ("it is too deep; remove it yourself", false),
            ("it is a source of this copy", false),
            ("another node may have ended the copy by now", true),
            ("too many open files", true),
        ] {
            assert_eq!(may_pass(reason), passes, "{reason}");
            for at in 0..3 {
                let mut all = [&[][..]; 3];
                let one = [reason];
                all[at] = &one;
                let report = partial(ErrorKind::Missing, all[0], all[1], all[2]);
                assert_eq!(ends_for_good(&report), !passes, "{reason}");
            }
        }
    }

    /// A copy has failed for good where all reasons say so, also for names that are not listed, and nothing else is missing.
    #[test]
    fn all_reasons_count() {
        let closed = "permission denied";
        let is_final = |report: Report| ends_for_good(&report);
        assert!(!is_final(partial(ErrorKind::Missing, &[], &[], &[])));
        let mut many = partial(ErrorKind::Node, &[closed], &[closed], &[closed]);
        many.left_out_more = 7;
        many.landing.not_placed_more = 8;
        many.landing.not_removed_more = 9;
        assert!(is_final(many.clone()));
        many.landing.not_placed[0].reason = "No space left on device".into();
        assert!(!is_final(many));
        // Sources that were not reached may hold what these cannot read.
        assert!(!is_final(partial(
            ErrorKind::Unreachable,
            &[closed],
            &[],
            &[]
        )));
        let mut changed = partial(ErrorKind::Missing, &[closed], &[], &[]);
        changed.missing_files = vec![MissingFile {
            node: "b".into(),
            file: "g".into(),
            bytes: 1,
            reason: "changed while it was copied".into(),
        }];
        assert!(!is_final(changed));
        let mut failed = partial(ErrorKind::Node, &[closed], &[], &[]);
        failed.outcome = Outcome::Failed;
        assert!(!is_final(failed));
    }
}
