//! Whether there can be a further round, and which nodes and objects it has.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_proto::coordinator::with_all_files;
use ropewalk_proto::report::SourcesReport;

use crate::drive::After;
use crate::request::{
    LaneKind, Mapping, NodeRequest, Object, ObjectRequest, Reach, Request, Sources,
};

/// Whether a further round finds what an earlier one made safe: trees and files with journals, in which nothing is recorded without
/// syncs.
pub(super) fn is_resumable(request: &Request) -> bool {
    let options = &request.options;
    let is_rows = request.mapping == Mapping::Rows;
    let nodes = request.nodes.iter();
    let has_journals = !is_rows || are_seen_whole(&request.nodes);
    let mut objects = nodes.flat_map(|node| node.sources.iter().chain(&node.sinks));
    let is_file = |object: &Object| matches!(object, Object::Path(_) | Object::Bundle(_));
    has_journals
        && options.same.keeps()
        && options.sync
        && options.lane != LaneKind::Mpi
        && !options.dry_run
        && objects.all(|object| is_file(&object.object))
}

/// Whether of each destination that readers of rows share one can look what is there: else it has no journal.
fn are_seen_whole(nodes: &[NodeRequest]) -> bool {
    let mut destinations: BTreeMap<&str, Vec<BTreeSet<&[u8]>>> = BTreeMap::new();
    for node in nodes {
        let shared = node
            .sinks
            .first()
            .and_then(|sink| sink.destination.as_deref());
        let Some(name) = shared else { continue };
        let files = node.sinks.iter().filter_map(|sink| match &sink.object {
            Object::Path(path) => Some(path.as_slice()),
            _ => None,
        });
        let members = destinations.entry(name).or_default();
        members.push(files.collect());
    }
    let mut members = destinations.values();
    members.all(|members| !with_all_files(members).is_empty())
}

/// Where all sources were found to hold the same, each replaces the others in further rounds, too.
pub(super) fn know_replicas(request: &mut Request, found: SourcesReport) {
    let all: usize = request.nodes.iter().map(|node| node.sources.len()).sum();
    if let Mapping::Trees { sources, .. } = &mut request.mapping
        && *sources == Sources::Auto
        && found.parts == 1
        && found.holders as usize == all
    {
        *sources = Sources::Replicas;
    }
}

/// The nodes of the next round. An agent that joined again is one node with what it was before, under the first of its names; `after` calls
/// it so from now on.
///
/// * `asked`: those of the last one; of these some may have been left out, and may be back.
/// * `after`: what it has left.
pub(super) fn next_nodes(asked: &[NodeRequest], after: &mut After) -> Vec<NodeRequest> {
    let is_here = |node: &&NodeRequest| !after.departed.contains(&node.name);
    let mut nodes: Vec<NodeRequest> = asked.iter().filter(is_here).cloned().collect();
    let mut first_names: BTreeMap<String, String> = BTreeMap::new();
    for node in after.nodes.iter().filter(is_here) {
        if nodes.iter().any(|known| known.name == node.name) {
            continue;
        }
        let is_agent = matches!(node.reach, Reach::Attached { .. });
        let known = nodes.iter_mut();
        let mut known = known.filter(|known| is_agent && known.reach == node.reach);
        match known.next() {
            Some(known) => {
                first_names.insert(node.name.clone(), known.name.clone());
                add_objects(&mut known.sources, &node.sources);
                add_objects(&mut known.sinks, &node.sinks);
            }
            None => nodes.push(node.clone()),
        }
    }
    let first = |name: &String| first_names.get(name).unwrap_or(name).clone();
    // What it was to get under all of its names has to be there.
    let sinks_of = |name: &str| {
        let mut visits = asked.iter().chain(&after.nodes);
        let visit = visits.find(|visit| visit.name == name);
        visit.map_or(&[][..], |visit| &visit.sinks)
    };
    let mut there: BTreeMap<String, Vec<ObjectRequest>> = BTreeMap::new();
    for one in &after.complete {
        let there = there.entry(first(&one.node)).or_default();
        there.extend_from_slice(sinks_of(&one.node));
    }
    after.complete.retain_mut(|one| {
        one.node = first(&one.node);
        let node = nodes.iter().find(|node| node.name == one.node);
        node.is_none_or(|node| {
            node.sinks
                .iter()
                .all(|sink| there[&one.node].contains(sink))
        })
    });
    let mut met = BTreeSet::new();
    after.gone.retain_mut(|gone| {
        gone.node = first(&gone.node);
        met.insert(gone.node.clone())
    });
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    nodes
}

/// Adds what a node has, or wants, when it joins again.
fn add_objects(known: &mut Vec<ObjectRequest>, more: &[ObjectRequest]) {
    for one in more {
        let is_it = |known: &&mut ObjectRequest| {
            known.object == one.object && known.destination == one.destination
        };
        match known.iter_mut().find(is_it) {
            Some(known) => {
                for row in &one.rows {
                    if !known.rows.contains(row) {
                        known.rows.push(*row);
                    }
                }
            }
            None => known.push(one.clone()),
        }
    }
}

/// Leaves out receivers that are complete, as receivers: those of rows, since nothing tells a file of rows that is complete from another
/// one, and it would be sent again; of trees those that were lost after that, which need not be back. How many bytes they have.
pub(super) fn leave_out_complete(request: &mut Request, after: &After) -> u64 {
    let is_of_rows = request.mapping == Mapping::Rows;
    let complete = after.complete.iter();
    let complete: Vec<_> = complete.filter(|one| is_of_rows || one.is_lost).collect();
    let nodes = &mut request.nodes;
    let is_complete = |node: &NodeRequest| complete.iter().any(|one| one.node == node.name);
    for node in nodes.iter_mut().filter(|node| is_complete(node)) {
        node.sinks.clear();
    }
    nodes.retain(|node| !node.sources.is_empty() || !node.sinks.is_empty());
    let bytes = complete.iter().map(|one| one.bytes);
    bytes.fold(0, u64::saturating_add)
}

#[cfg(test)]
pub(super) mod tests {
    use ropewalk_proto::coordinator::{Complete, Gone};

    use super::*;
    use crate::request::{Destinations, ObjectRequest, Options, Same};

    pub(in crate::rounds) fn node(name: &str, port: u16, object: Object) -> NodeRequest {
        NodeRequest {
            name: name.into(),
            reach: Reach::Attached {
                host: name.into(),
                port,
            },
            sources: vec![ObjectRequest {
                object,
                rows: Vec::new(),
                destination: None,
                make_folder: false,
            }],
            sinks: Vec::new(),
            up: None,
            down: None,
            interfaces: Vec::new(),
        }
    }

    pub(in crate::rounds) fn path() -> Object {
        Object::Path(b"/x".to_vec())
    }

    /// Receivers of rows that are complete take no part in further rounds, nor do those of trees that are lost; one that sends, too, does.
    #[test]
    fn complete_receivers_are_left_out() {
        let reader = |name: &str, port| {
            let node = node(name, port, path());
            NodeRequest {
                sinks: node.sources.clone(),
                sources: Vec::new(),
                ..node
            }
        };
        let mut both = reader("both", 3);
        both.sources = node("both", 3, path()).sources;
        let nodes = vec![node("a", 1, path()), reader("b", 2), both, reader("c", 4)];
        let complete = |name: &str, bytes, is_lost| Complete {
            node: name.into(),
            bytes,
            is_lost,
        };
        let after = After {
            complete: vec![complete("b", 100, true), complete("both", 20, false)],
            ..After::default()
        };
        let trees = Mapping::Trees {
            sources: Sources::Auto,
            destinations: Destinations::Copies,
        };
        for (mapping, bytes, sinks) in [(Mapping::Rows, 120, 0), (trees, 100, 1)] {
            let mut request = Request {
                label: None,
                nodes: nodes.clone(),
                mapping,
                links: Vec::new(),
                options: Options::default(),
            };
            assert_eq!(leave_out_complete(&mut request, &after), bytes);
            let left = request.nodes.iter().map(|n| (&*n.name, n.sinks.len()));
            let expected = [("a", 0), ("both", sinks), ("c", 1)];
            assert_eq!(left.collect::<Vec<_>>(), expected);
        }
    }

    /// Only what has journals is tried again after bytes have moved.
    #[test]
    fn what_has_journals_is_resumable() {
        let request = |objects: Vec<Object>, mapping, same, sync| Request {
            label: None,
            nodes: objects
                .into_iter()
                .map(|object| node("a", 1, object))
                .collect(),
            mapping,
            links: Vec::new(),
            options: Options {
                same,
                sync,
                ..Options::default()
            },
        };
        let trees = Mapping::Trees {
            sources: Sources::Auto,
            destinations: Destinations::Copies,
        };
        assert!(is_resumable(&request(
            vec![path(), path()],
            trees,
            Same::Kept,
            true
        )));
        let rows = request(vec![path(), path()], Mapping::Rows, Same::Kept, true);
        assert!(is_resumable(&rows));
        let mut shared = rows.clone();
        shared.nodes[1].sinks = shared.nodes[1].sources.clone();
        assert!(is_resumable(&shared));
        shared.nodes[1].sinks[0].destination = Some("one".into());
        assert!(is_resumable(&shared));
        // No reader has all files of the destination.
        shared.nodes[0].sinks = shared.nodes[1].sinks.clone();
        shared.nodes[0].sinks[0].object = Object::Path(b"/y".to_vec());
        for request in [
            shared,
            request(vec![path(), Object::Null], Mapping::Rows, Same::Kept, true),
            request(vec![path()], trees, Same::Sent, true),
            request(vec![path()], trees, Same::Kept, false),
            request(vec![path(), Object::Memory(5)], trees, Same::Kept, true),
            request(vec![path(), Object::Null], trees, Same::Kept, true),
        ] {
            assert!(!is_resumable(&request), "{request:?}");
        }
    }

    /// Nodes that joined stay, those that left do not, those that were left out may be back, and no agent is there twice.
    #[test]
    fn members_stay_members() {
        let asked = [node("a", 1, path()), node("b", 2, path())];
        let again = NodeRequest {
            name: "b (2)".into(),
            ..node("b", 2, Object::Path(b"/y".to_vec()))
        };
        let after = || After {
            nodes: vec![node("b", 2, path()), node("c", 3, path()), again.clone()],
            gone: vec![Gone {
                node: "b (2)".into(),
                reason: "gone".into(),
            }],
            ..After::default()
        };
        let names = |nodes: &[NodeRequest]| -> Vec<String> {
            nodes.iter().map(|node| node.name.clone()).collect()
        };
        // One that left, and joined again under another name.
        let mut left = After {
            departed: vec!["b".into()],
            ..after()
        };
        let nodes = next_nodes(&asked, &mut left);
        assert_eq!(names(&nodes), ["a", "b (2)", "c"]);
        assert_eq!(left.gone[0].node, "b (2)");
        // One that was lost, and joined again: it is still to have, or get, what it was to before.
        let mut lost = after();
        let nodes = next_nodes(&asked, &mut lost);
        assert_eq!(names(&nodes), ["a", "b", "c"]);
        let objects: Vec<&Object> = nodes[1].sources.iter().map(|one| &one.object).collect();
        assert_eq!(objects, [&path(), &Object::Path(b"/y".to_vec())]);
        assert_eq!(lost.gone[0].node, "b");
        // What it has under one name does not make it complete.
        let reader = |name: &str, path: &[u8]| {
            let node = node("b", 2, Object::Path(path.to_vec()));
            NodeRequest {
                name: name.into(),
                sinks: node.sources.clone(),
                sources: Vec::new(),
                ..node
            }
        };
        for (again, is_complete) in [(&b"/x"[..], true), (b"/y", false)] {
            let complete = Complete {
                node: "b (2)".into(),
                bytes: 9,
                is_lost: false,
            };
            let mut after = After {
                nodes: vec![reader("b (2)", again)],
                complete: vec![complete],
                ..After::default()
            };
            next_nodes(&[reader("b", b"/x")], &mut after);
            let complete: Vec<&str> = after.complete.iter().map(|one| &*one.node).collect();
            assert_eq!(complete, if is_complete { vec!["b"] } else { vec![] });
        }
        // Nothing is there twice where it joined as it was.
        let mut same = After {
            nodes: vec![NodeRequest {
                name: "b (2)".into(),
                ..node("b", 2, path())
            }],
            ..After::default()
        };
        assert_eq!(next_nodes(&asked, &mut same)[1].sources.len(), 1);
    }
}
