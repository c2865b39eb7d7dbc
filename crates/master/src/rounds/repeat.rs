//! Whether sources are read again, once: where files changed while they were copied. Pure.
//!
//! What is written now may be whole a moment later. What a program appends to all the time is not: the second time a file that has grown is
//! copied as it was when it was scanned, and named.

use std::collections::BTreeSet;
use std::time::Duration;

use ropewalk_proto::coordinator::Incomplete;
use ropewalk_proto::report::{Outcome, Report};

use super::next::is_resumable;
use crate::drive::After;
use crate::request::Request;

/// How long after a round sources that changed are read again.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// Whether a round is followed by another one without a wait for nodes, as none is gone and holders refused what is missing: another look at
/// their sources may find it. Where files keep changing one more is as far from the end, so there is one at most.
///
/// * `has_repeated`: there was one.
pub(super) fn is_due(
    request: &Request,
    report: &Report,
    after: &After,
    has_repeated: bool,
) -> bool {
    !has_repeated
        && report.outcome == Outcome::Partial
        && after.has_moved
        && after.has_refused
        && after.gone.is_empty()
        && !report.missing_files.is_empty()
        && is_resumable(request)
}

/// Whether files that grow are copied as they were when they were scanned, the second time. Not where a copy is to be whole or not at all.
pub(super) fn takes_as_scanned(request: &Request) -> bool {
    request.options.incomplete != Incomplete::Removed
}

/// How many files are missing, those counted once that several receivers lack.
pub(super) fn files(report: &Report) -> u64 {
    let files: BTreeSet<&str> = report.missing_files.iter().map(|one| &*one.file).collect();
    report.missing_files_more.saturating_add(files.len() as u64)
}

#[cfg(test)]
mod tests {
    use ropewalk_proto::coordinator::Gone;
    use ropewalk_proto::report::MissingFile;

    use super::*;
    use crate::request::{Destinations, LaneKind, Mapping, Object, Options, Same, Sources};
    use crate::rounds::next::tests::{node, path};

    fn request() -> Request {
        Request {
            label: None,
            nodes: vec![node("a", 1, path()), node("b", 2, path())],
            mapping: Mapping::Trees {
                sources: Sources::Auto,
                destinations: Destinations::Copies,
            },
            links: Vec::new(),
            options: Options::default(),
        }
    }

    fn missing(file: &str) -> MissingFile {
        MissingFile {
            node: "b".into(),
            file: file.into(),
            bytes: 1,
            reason: "it changed since it was scanned".into(),
        }
    }

    /// Sources that changed are read again, once, where a further round finds what the first one wrote.
    #[test]
    fn sources_that_changed_are_read_again_once() {
        let request = request();
        let report = Report {
            missing_files: vec![missing("f")],
            ..Report::ended(Outcome::Partial)
        };
        let after = || After {
            has_moved: true,
            has_refused: true,
            ..After::default()
        };
        assert!(is_due(&request, &report, &after(), false));
        assert!(!is_due(&request, &report, &after(), true));
        // Nothing has moved, all refusals were overcome or left out at the start, or a node is gone.
        let unmoved = After {
            has_moved: false,
            ..after()
        };
        let unrefused = After {
            has_refused: false,
            ..after()
        };
        let gone = After {
            gone: vec![Gone {
                node: "a".into(),
                reason: "gone".into(),
            }],
            ..after()
        };
        for after in [unmoved, unrefused, gone] {
            assert!(!is_due(&request, &report, &after, false), "{after:?}");
        }
        for outcome in [
            Outcome::Done,
            Outcome::Failed,
            Outcome::Refused,
            Outcome::Cancelled,
        ] {
            let report = Report {
                outcome,
                ..report.clone()
            };
            assert!(!is_due(&request, &report, &after(), false));
        }
        let none = Report::ended(Outcome::Partial);
        assert!(!is_due(&request, &none, &after(), false));
        // What has no journal, or is not written, would be sent again.
        let changes: [fn(&mut Request); 5] = [
            |request| request.options.same = Same::Sent,
            |request| request.options.sync = false,
            |request| request.options.dry_run = true,
            |request| request.options.lane = LaneKind::Mpi,
            |request| request.nodes[1].sources[0].object = Object::Null,
        ];
        for change in changes {
            let mut other = request.clone();
            change(&mut other);
            assert!(!is_due(&other, &report, &after(), false), "{other:?}");
        }
    }

    /// Each file is counted once, whatever number of receivers lack it.
    #[test]
    fn files_that_are_read_again_are_counted_once() {
        let mut report = Report {
            missing_files: vec![missing("f"), missing("f")],
            ..Report::ended(Outcome::Partial)
        };
        assert_eq!(files(&report), 1);
        report.missing_files.push(missing("g"));
        report.missing_files_more = 3;
        assert_eq!(files(&report), 5);
    }

    /// Files that grow are no part of what is to be whole or not at all.
    #[test]
    fn copies_that_are_to_be_whole_have_no_older_files() {
        let mut request = request();
        assert!(takes_as_scanned(&request));
        request.options.incomplete = Incomplete::Removed;
        assert!(!takes_as_scanned(&request));
    }
}
