//! What a copy found at its destination and what it leaves out, for the report.

use ropewalk_proto::coordinator::NodeSummary;
use ropewalk_proto::report::{MergedReport, Report};

/// How the note about a folder that was there begins.
pub(crate) fn existed(merged: &MergedReport) -> String {
    format!("{}: {} existed: ", merged.node, merged.path)
}

/// Adds what a node has counted: counts of nodes may be anything.
fn add(sum: &mut u64, count: u64) {
    *sum = sum.saturating_add(count);
}

/// Fills in [`Report::landing`] and says the same in notes.
pub(crate) fn tell(report: &mut Report, nodes: &[NodeSummary<'_>]) {
    let landing = &mut report.landing;
    let (mut unread, mut unset) = (0_u64, 0_u64);
    for node in nodes {
        unread = unread.max(node.attributes_unread);
        add(&mut landing.temporary_names_left_out, node.skipped);
        // Replicas have the same ones.
        landing.special_files_left_out = landing.special_files_left_out.max(node.special);
        let others = node.passed_bytes.saturating_add(node.refused_bytes);
        add(
            &mut landing.unchanged_bytes,
            node.present.saturating_sub(others),
        );
        add(&mut landing.kept_files, node.passed_files);
        add(&mut landing.kept_bytes, node.passed_bytes);
        add(&mut landing.unchanged_files, node.present_files);
        add(
            &mut landing.resumed_bytes,
            node.adopted.saturating_sub(node.taken),
        );
        add(&mut landing.taken_bytes, node.taken);
        let Some(landed) = node.landed else { continue };
        // Some were written after the copy began.
        add(
            &mut landing.kept_files,
            landed.passed_files.saturating_sub(node.passed_files),
        );
        add(&mut landing.replaced_files, landed.replaced_files);
        add(&mut landing.removed_files, landed.removed_files);
        add(&mut landing.removed_folders, landed.removed_folders);
        // Each destination has a copy of the same.
        landing.bits_not_kept = landing.bits_not_kept.max(landed.bits_not_kept);
        landing.owners_not_kept = landing.owners_not_kept.max(landed.owners_not_kept);
        landing.links_not_kept = landing.links_not_kept.max(landed.links_not_kept);
        landing.special_files_not_kept =
            landing.special_files_not_kept.max(landed.specials_not_kept);
        unset = unset.max(landed.attributes_not_kept);
        if !landed.merged.is_empty() {
            landing.merged.push(MergedReport {
                node: node.name.into(),
                path: String::from_utf8_lossy(&landed.merged).into_owned(),
                added_files: landed.added_files,
                replaced_files: landed.replaced_files,
                unchanged_files: landed.unchanged_files,
            });
        }
    }
    landing.attributes_not_kept = unset.saturating_add(unread);
    // Where nothing was put into it, nothing was merged.
    let is_merged = |merged: &&MergedReport| {
        merged.unchanged_files == 0 || merged.added_files.max(merged.replaced_files) > 0
    };
    for merged in landing.merged.iter().filter(is_merged) {
        let unchanged = match merged.unchanged_files {
            0 => String::new(),
            files => format!(", {files} unchanged"),
        };
        report.notes.push(format!(
            "{}merged, {} file{} added, {} replaced{unchanged}",
            existed(merged),
            merged.added_files,
            plural(merged.added_files),
            merged.replaced_files
        ));
    }
    match landing.bits_not_kept {
        0 => {}
        bits => report.notes.push(format!(
            "not kept: {bits} set-id bit{} (the owner or group is not kept either)",
            plural(bits)
        )),
    }
    match landing.owners_not_kept {
        0 => {}
        1 => report
            .notes
            .push("not kept: owner or group of 1 file, folder or link".into()),
        entries => report.notes.push(format!(
            "not kept: owner or group of {entries} files, folders or links"
        )),
    }
    match landing.attributes_not_kept {
        0 => {}
        attributes => report.notes.push(format!(
            "not kept: {attributes} extended attribute{0} or ACL{0}",
            plural(attributes)
        )),
    }
    match landing.links_not_kept {
        0 => {}
        names => report.notes.push(format!(
            "not kept: {names} hard link{} (the file system at the destination refuses them): files of their own",
            plural(names)
        )),
    }
    match landing.special_files_not_kept {
        0 => {}
        files => report.notes.push(format!(
            "not kept: {files} special file{} (pipes, sockets, devices): only root makes devices, and some file systems have none",
            plural(files)
        )),
    }
    match landing.special_files_left_out {
        0 => {}
        files => report.notes.push(format!(
            "left out: {files} special file{} (sockets, pipes, devices) in the sources; -a copies them",
            plural(files)
        )),
    }
    match landing.temporary_names_left_out {
        0 => {}
        names => report.notes.push(format!(
            "left out: {names} temporary name{} of other transfers (.NAME.ropewalk-ID) in the sources",
            plural(names)
        )),
    }
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use ropewalk_proto::control::Landed;
    use ropewalk_proto::report::Outcome;

    use super::*;
    use crate::report::ended_early;
    use crate::request::{Mapping, Options, Request};

    fn node<'a>(name: &'a str, landed: Option<&'a Landed>, skipped: u64) -> NodeSummary<'a> {
        NodeSummary {
            name,
            is_sender: landed.is_none(),
            is_receiver: landed.is_some(),
            wanted: 0,
            received: 0,
            receiving_rate: 0.0,
            sending_rate: 0.0,
            delivered: 0,
            planned: 0,
            sent: 0,
            done: None,
            finished: None,
            tcp: None,
            lost: None,
            landed,
            skipped,
            special: 2 * skipped,
            attributes_unread: 0,
            present: 0,
            adopted: 0,
            taken: 0,
            present_files: 0,
            passed_files: 0,
            passed_bytes: 0,
            refused_bytes: 0,
        }
    }

    /// A folder that stood there is named with what came into it; bits of two copies are those of one.
    #[test]
    fn what_stood_there_is_told() {
        let request = Request {
            label: None,
            nodes: Vec::new(),
            mapping: Mapping::Rows,
            links: Vec::new(),
            options: Options::default(),
        };
        let mut report = ended_early(&request, "id", Outcome::Done, String::new());
        let merged = Landed {
            merged: b"/tmp/b".to_vec(),
            added_files: 1,
            replaced_files: 2,
            bits_not_kept: 3,
            unchanged_files: 0,
            owners_not_kept: 1,
            attributes_not_kept: 2,
            links_not_kept: 1,
            specials_not_kept: 1,
            ..Landed::default()
        };
        let new = Landed {
            bits_not_kept: 3,
            added_files: 3,
            ..Landed::default()
        };
        tell(
            &mut report,
            &[
                node("s", None, 1),
                node("a", Some(&merged), 0),
                node("b", Some(&new), 0),
            ],
        );
        assert_eq!(
            report.notes,
            [
                "a: /tmp/b existed: merged, 1 file added, 2 replaced",
                "not kept: 3 set-id bits (the owner or group is not kept either)",
                "not kept: owner or group of 1 file, folder or link",
                "not kept: 2 extended attributes or ACLs",
                "not kept: 1 hard link (the file system at the destination refuses them): files of their own",
                "not kept: 1 special file (pipes, sockets, devices): only root makes devices, and some file systems have none",
                "left out: 2 special files (sockets, pipes, devices) in the sources; -a copies them",
                "left out: 1 temporary name of other transfers (.NAME.ropewalk-ID) in the sources",
            ]
        );
        assert_eq!(report.landing.merged.len(), 1);
        assert_eq!(report.landing.replaced_files, 2);
    }

    /// Counts of nodes may be anything: their sums are the largest number.
    #[test]
    fn sums_of_counts_do_not_overflow() {
        let request = Request {
            label: None,
            nodes: Vec::new(),
            mapping: Mapping::Rows,
            links: Vec::new(),
            options: Options::default(),
        };
        let mut report = ended_early(&request, "id", Outcome::Done, String::new());
        let most = Landed {
            merged: b"/b".to_vec(),
            added_files: u64::MAX,
            replaced_files: u64::MAX,
            unchanged_files: 1,
            removed_files: u64::MAX,
            removed_folders: u64::MAX,
            attributes_not_kept: u64::MAX,
            ..Landed::default()
        };
        let nodes = ["a", "b"].map(|name| NodeSummary {
            attributes_unread: u64::MAX,
            present: u64::MAX,
            adopted: u64::MAX,
            present_files: u64::MAX,
            passed_files: u64::MAX,
            passed_bytes: u64::MAX,
            ..node(name, Some(&most), u64::MAX / 2)
        });
        tell(&mut report, &nodes);
        let landing = &report.landing;
        for count in [
            landing.kept_files,
            landing.unchanged_files,
            landing.replaced_files,
            landing.removed_files,
            landing.resumed_bytes,
            landing.attributes_not_kept,
        ] {
            assert_eq!(count, u64::MAX);
        }
    }
}
