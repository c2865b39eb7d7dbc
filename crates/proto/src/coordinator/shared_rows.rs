//! Files that several receivers write together by rows (`dest=NAME`): which of these nodes can look for all what an earlier transfer
//! left of them.
//!
//! The one that looks takes over whole files, and has to know every row of them: it makes zeros what no row writes. So it has a row in
//! each file of the destination. Where no node has one in all of them, they may be files of different places, or one file under two
//! paths, which nothing here shows: then none looks, and all is sent.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::RangeSet;

use super::{Coordinator, Node, SinkSetup, origins, setup};
use crate::control::{Row, SharedFile};

/// Which nodes of a shared destination have a row in each of its files.
///
/// * `members`: of each node of the destination the files that it writes.
#[must_use]
pub fn with_all_files<File: Ord>(members: &[BTreeSet<File>]) -> Vec<usize> {
    let all: BTreeSet<&File> = members.iter().flatten().collect();
    let has_all = |at: &usize| members[*at].len() == all.len();
    (0..members.len()).filter(has_all).collect()
}

/// The file that a sink of rows writes; `None` for any other sink.
fn file_of(sink: &SinkSetup) -> Option<&[u8]> {
    let first = sink
        .sink
        .rows
        .first()
        .filter(|_| sink.sink.kind.is_none())?;
    let is_one = |row: &Row| row.object == first.object && origins::is_file(&row.object);
    sink.sink.rows.iter().all(is_one).then_some(&first.object)
}

/// The files of rows that a node writes.
pub(super) fn files_of(node: &Node) -> impl Iterator<Item = &[u8]> {
    node.setup.sinks.iter().filter_map(file_of)
}

/// The destination that a node shares with others.
pub(super) fn destination_of(node: &Node) -> Option<&str> {
    node.setup.sinks.first()?.destination.as_deref()
}

impl Coordinator {
    fn members(&self, name: &str) -> impl Iterator<Item = (u32, &Node)> {
        let nodes = (0..).zip(&self.nodes);
        nodes.filter(move |(_, node)| destination_of(node) == Some(name))
    }

    /// Shared destinations of rows of which an earlier transfer may have left something, each with the nodes that can look.
    pub(super) fn shared_rows(&self) -> Vec<(String, Vec<u32>)> {
        let names: BTreeSet<&str> = self.nodes.iter().filter_map(destination_of).collect();
        let mut found = Vec::new();
        for name in names {
            let members: Vec<(u32, &Node)> = self.members(name).collect();
            let sinks = || members.iter().flat_map(|(_, node)| &node.setup.sinks);
            let is_of_files = sinks().all(|sink| file_of(sink).is_some());
            if !is_of_files || self.origins_in(&self.destination_wants(name)).is_empty() {
                continue;
            }
            let files = members.iter().map(|(_, node)| files_of(node).collect());
            let files: Vec<BTreeSet<&[u8]>> = files.collect();
            let able = with_all_files(&files).into_iter().map(|at| members[at].0);
            found.push((name.to_owned(), able.collect()));
        }
        found
    }

    /// Positions of a node's sinks whose files another one has made for all.
    pub(super) fn sinks_made_by(&self, maker: u32, node: u32) -> Vec<u32> {
        let files = |node: u32| {
            let sinks = self.nodes[node as usize].setup.sinks.iter();
            sinks.map(file_of)
        };
        let made: BTreeSet<&[u8]> = files(maker).flatten().collect();
        let own = (0..).zip(files(node));
        let own = own.filter(|(_, file)| file.is_some_and(|file| made.contains(file)));
        own.map(|(sink, _)| sink).collect()
    }

    /// The files of a shared destination as a node that looks is given them, with the rows of all.
    pub(super) fn shared_files(&self, name: &str, node: u32) -> Vec<SharedFile> {
        // By file and shift: what is written where.
        let mut written: BTreeMap<(&[u8], i128), RangeSet> = BTreeMap::new();
        let members = self.members(name).flat_map(|(_, node)| &node.setup.sinks);
        for row in members.flat_map(|sink| &sink.sink.rows) {
            let shift = i128::from(row.object_offset) - i128::from(row.start);
            let ranges = written.entry((&row.object, shift)).or_default();
            setup::row_ranges(std::slice::from_ref(row)).for_each(|range| ranges.insert(range));
        }
        let state = &self.nodes[node as usize];
        let modes = self.sink_modes(state);
        let sinks = (0..).zip(&state.setup.sinks);
        let file = |(sink, own): (u32, &SinkSetup)| {
            let file = file_of(own)?;
            let rows = written.iter().filter(|((object, _), _)| *object == file);
            let rows = rows.flat_map(|((_, shift), ranges)| {
                ranges.iter().map(move |range| Row {
                    object: file.to_vec(),
                    // Each is the offset of a row that was given, or lies behind it in the same one.
                    object_offset: u64::try_from(i128::from(range.start) + shift).unwrap_or(0),
                    start: range.start,
                    length: range.len(),
                })
            });
            Some(SharedFile {
                sink,
                rows: rows.collect(),
                mode: modes.get(sink as usize).copied().unwrap_or(0),
            })
        };
        sinks.filter_map(file).collect()
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_model::Instant;

    use super::super::tests::{SECOND, actions, answer, begun, from, node, opened, sent};
    use super::super::{Action, Outcome};
    use super::*;
    use crate::control::{
        Look, Options, Plan, Present, Stretch, There, from_agent, range, to_agent,
    };

    fn stretch(start: u64, length: u64) -> Stretch {
        Stretch { start, length }
    }

    fn row(start: u64, length: u64) -> Row {
        Row {
            object: b"/f".to_vec(),
            object_offset: start,
            start,
            length,
        }
    }

    /// `s` holds 100 bytes; `a` and `b` write them as one destination, `c` and `d` its second half as another one, and `e` has its own.
    fn sharing() -> Coordinator {
        let nodes = vec![
            node("s", &[(0, 100)], &[], None),
            node("a", &[], &[(0, 60)], Some("one")),
            node("b", &[], &[(40, 60)], Some("one")),
            node("c", &[], &[(50, 50)], Some("two")),
            node("d", &[], &[(50, 50)], Some("two")),
            node("e", &[], &[(0, 100)], None),
        ];
        let mut c = begun(nodes.clone(), None);
        c.setup.options = Options::default();
        actions(&mut c);
        for (at, setup) in (0..).zip(&nodes) {
            c.handle_message(at, opened(setup, 7), Instant(1));
        }
        c
    }

    /// What the nodes are asked to look at, by node.
    fn asked(told: &[Action]) -> Vec<(u32, Look)> {
        let looks = |node: u32| {
            let bodies = sent(told, node).into_iter();
            let looks = bodies.filter_map(|body| match body {
                to_agent::Body::Look(look) => Some(look.clone()),
                _ => None,
            });
            looks.map(move |look| (node, look)).collect::<Vec<_>>()
        };
        (0..6).flat_map(looks).collect()
    }

    fn present(c: &mut Coordinator, node: u32, present: Present) -> Vec<Action> {
        let present = Present {
            last: true,
            ..present
        };
        let said = from(from_agent::Body::Present(present));
        c.handle_message(node, said, Instant(SECOND));
        actions(c)
    }

    fn adopted(start: u64, length: u64) -> Present {
        Present {
            adopted: vec![stretch(start, length)],
            ..Present::default()
        }
    }

    fn there(told: &[Action], node: u32) -> Vec<There> {
        let bodies = sent(told, node).into_iter();
        let there = bodies.filter_map(|body| match body {
            to_agent::Body::There(there) => Some(there.clone()),
            _ => None,
        });
        there.collect()
    }

    fn plan(told: &[Action], node: u32) -> Plan {
        let mut bodies = sent(told, node).into_iter();
        let plan = bodies.find_map(|body| match body {
            to_agent::Body::Plan(plan) => Some(plan.clone()),
            _ => None,
        });
        plan.unwrap()
    }

    /// One node of each destination looks, and is given the rows of all of it and where their bytes come from. What it finds is no
    /// part of the plan of those that write there, and of all others'. Each of them records from where its bytes come.
    #[test]
    fn each_destination_is_looked_at() {
        let mut c = sharing();
        let told = actions(&mut c);
        let looks = asked(&told);
        let nodes: Vec<u32> = looks.iter().map(|(node, _)| *node).collect();
        assert_eq!(nodes, [1, 3], "no sender has a list of files to serve");
        let (_, look) = &looks[0];
        assert!(look.decides && look.parts.is_empty());
        assert_eq!(look.origins.len(), 1);
        let file = SharedFile {
            sink: 0,
            rows: vec![row(0, 100)],
            mode: 0,
        };
        assert_eq!(look.files, [file]);
        assert_eq!(looks[1].1.files[0].rows, [row(50, 50)]);

        let told = present(&mut c, 1, adopted(30, 40));
        for node in [1, 2] {
            let expected = There {
                adopted: vec![stretch(30, 40)],
                sinks: vec![0],
                ..There::default()
            };
            assert_eq!(there(&told, node), [expected]);
        }
        assert!((3..6).all(|node| sent(&told, node).is_empty()));
        assert!(!told.iter().any(|one| matches!(one, Action::Plan(..))));
        let told = present(&mut c, 3, adopted(0, 60));
        assert_eq!(there(&told, 4)[0].adopted, [stretch(50, 10)]);
        let told = answer(&mut c, told);
        let runs = |nodes: &[u32]| {
            let runs = nodes.iter().flat_map(|node| plan(&told, *node).runs);
            RangeSet::from_ranges(runs.map(|run| range(run.start, run.length)))
        };
        let rest = RangeSet::from_ranges([range(0, 30), range(70, 30)]);
        assert_eq!(runs(&[1, 2]), rest);
        assert_eq!(runs(&[3, 4]), RangeSet::from(range(60, 40)));
        assert_eq!(runs(&[5]), RangeSet::from(range(0, 100)));
        assert!((1..6).all(|node| plan(&told, node).origins.len() == 1));
        assert_eq!(c.wanted_bytes(), 60 + 40 + 100);
        let counted: Vec<u64> = c.summary().iter().map(|node| node.adopted).collect();
        assert_eq!(counted, [0, 40, 0, 10, 0, 0]);
    }

    /// Where a node cannot look the next one does; where none can, all of the destination is sent and nothing of it recorded. A node
    /// that is lost before there is a plan ends the transfer: its rows may be no other one's.
    #[test]
    fn who_cannot_look_is_passed_over() {
        let failed = || Present {
            failed: "no such folder".into(),
            ..Present::default()
        };
        let mut c = sharing();
        actions(&mut c);
        let looks = asked(&present(&mut c, 1, failed()));
        assert_eq!((looks.len(), looks[0].0), (1, 2));
        assert_eq!(looks[0].1.files[0].rows, [row(0, 100)]);
        assert!(present(&mut c, 2, failed()).is_empty());
        let told = present(&mut c, 3, Present::default());
        let told = answer(&mut c, told);
        assert!((1..3).all(|node| plan(&told, node).origins.is_empty()));
        assert!(there(&told, 1).is_empty() && plan(&told, 1).runs.len() == 1);

        let mut c = sharing();
        actions(&mut c);
        c.handle_lost(4, "killed", Instant(SECOND));
        let told = actions(&mut c);
        let refused = |one: &Action| matches!(one, Action::End(Outcome::Refused, _));
        assert!(told.iter().any(refused), "{told:?}");
    }

    /// One that lacks a file of the destination cannot look for all.
    #[test]
    fn nodes_with_all_files_can_look() {
        let able = |members: &[&[&str]]| {
            let members = members.iter().map(|files| files.iter().copied().collect());
            with_all_files(&members.collect::<Vec<BTreeSet<&str>>>())
        };
        assert_eq!(able(&[&["x"], &["x"]]), [0, 1]);
        assert_eq!(able(&[&["x"], &["x", "y"], &["y", "x"]]), [1, 2]);
        assert_eq!(able(&[&["x"], &["y"]]), [0; 0]);
        assert_eq!(able(&[]), [0; 0]);
    }
}
