//! What is found out before anything moves: places that are one, files that are not what their rows say.

use super::tests::{SECOND, actions, answer, begun, from, node, pass, sent};
use super::*;
use crate::control::{Mark, Opened, Place, Probe, Probed, Row, Sink, Source, sink, source};
use ropewalk_model::Range;

/// The answer of a node whose files stand in folder `folder`, each under its own path.
fn opened(setup: &NodeSetup, folder: u64) -> FromAgent {
    let mut opened = Opened::default();
    for source in &setup.sources {
        let identity = control::Identity {
            length: 1000,
            ..control::Identity::default()
        };
        opened.sources.push(OpenedSource {
            identities: vec![identity; source.source.rows.len()],
            manifest_root: match source.source.kind {
                Some(_) => vec![1; 32],
                None => Vec::new(),
            },
            data_length: 100,
            file_count: 1,
            ..OpenedSource::default()
        });
    }
    for (at, sink) in setup.sinks.iter().enumerate() {
        let path = match &sink.sink.kind {
            Some(sink::Kind::Tree(path)) => path,
            _ => &sink.sink.rows[0].object,
        };
        opened.places.push(Place {
            folder,
            rest: path.clone(),
            sink: at as u32,
            row: 0,
            ..Place::default()
        });
    }
    from(from_agent::Body::Opened(opened))
}

fn probes(actions: &[Action]) -> Vec<(u32, Probe)> {
    let probe = |action: &Action| match action {
        Action::Send(node, message) => match &message.body {
            Some(to_agent::Body::Probe(probe)) => Some((*node, probe.clone())),
            _ => None,
        },
        _ => None,
    };
    actions.iter().filter_map(probe).collect()
}

fn refusal(actions: &[Action]) -> String {
    let end = |action: &Action| match action {
        Action::End(Outcome::Refused, text) => text.clone(),
        _ => None,
    };
    actions.iter().find_map(end).expect("it is refused")
}

fn is_planned(actions: &[Action]) -> bool {
    actions.iter().any(|a| matches!(a, Action::Plan(..)))
}

/// All nodes have opened what they have, with the same folder number; what comes next.
fn all_opened(coordinator: &mut Coordinator, nodes: &[NodeSetup]) -> Vec<Action> {
    for (number, setup) in nodes.iter().enumerate() {
        coordinator.handle_message(number as u32, opened(setup, 7), Instant(SECOND));
    }
    actions(coordinator)
}

fn probed(marks: Vec<Mark>) -> FromAgent {
    from(from_agent::Body::Probed(Probed {
        marks,
        ..Probed::default()
    }))
}

fn mark(place: u32, node: u32, of: u32) -> Mark {
    Mark { place, node, of }
}

fn halves() -> Vec<NodeSetup> {
    vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 50)], None),
        node("c", &[], &[(50, 50)], None),
    ]
}

/// Two halves of one file without a common destination are refused where the marks meet, and only there.
#[test]
fn halves_of_one_file_are_refused() {
    for meet in [true, false] {
        let nodes = halves();
        let mut coordinator = begun(nodes.clone(), None);
        let asked = probes(&all_opened(&mut coordinator, &nodes));
        let to: Vec<u32> = asked.iter().map(|(node, _)| *node).collect();
        assert_eq!(to, [1, 2]);
        assert!(asked.iter().all(|(_, probe)| probe.places == [0]));
        coordinator.handle_message(1, probed(vec![]), Instant(SECOND));
        assert!(actions(&mut coordinator).is_empty(), "the other is awaited");
        let marks = if meet { vec![mark(0, 1, 0)] } else { vec![] };
        coordinator.handle_message(2, probed(marks), Instant(SECOND));
        let next = actions(&mut coordinator);
        if meet {
            let text = refusal(&next);
            assert!(text.contains("b:/f and c:/f are one file"), "{text}");
            assert!(text.contains("say dest=NAME"), "{text}");
        } else {
            assert!(is_planned(&next));
            let cleared = probes(&next);
            assert_eq!(cleared, [(1, Probe::default()), (2, Probe::default())]);
        }
    }
}

/// Equal ranges, and a destination that is said to be shared, are nobody's question.
#[test]
fn what_cannot_clash_is_not_asked() {
    for nodes in [
        vec![
            node("a", &[(0, 100)], &[], None),
            node("b", &[], &[(0, 100)], None),
            node("c", &[], &[(0, 100)], None),
        ],
        vec![
            node("a", &[(0, 100)], &[], None),
            node("b", &[], &[(0, 50)], Some("d")),
            node("c", &[], &[(50, 50)], Some("d")),
        ],
    ] {
        let mut coordinator = begun(nodes.clone(), None);
        let next = all_opened(&mut coordinator, &nodes);
        assert!(probes(&next).is_empty() && is_planned(&next));
    }
}

/// Two of three that met are named, and no deadline is missed silently.
#[test]
fn a_node_that_does_not_look_is_named() {
    let nodes = halves();
    let mut coordinator = begun(nodes.clone(), None);
    all_opened(&mut coordinator, &nodes);
    coordinator.handle_message(1, probed(vec![]), Instant(SECOND));
    pass(&mut coordinator, SECOND, SECOND + OPEN_TIME_MAX.0);
    assert!(actions(&mut coordinator).is_empty());
    coordinator.handle_timer(Instant(2 * SECOND + OPEN_TIME_MAX.0));
    let text = refusal(&actions(&mut coordinator));
    assert!(text.contains("from c"), "{text}");
}

fn tree(name: &str, holds: bool, wants: Option<&str>) -> NodeSetup {
    let source = SourceSetup {
        source: Source {
            kind: Some(source::Kind::Tree(b"/set".to_vec())),
            rows: Vec::new(),
        },
        base: 0,
    };
    let sink = |path: &str| SinkSetup {
        sink: Sink {
            kind: Some(sink::Kind::Tree(path.into())),
            ..Sink::default()
        },
        destination: None,
    };
    NodeSetup {
        sources: if holds { vec![source] } else { vec![] },
        sinks: wants.map(sink).into_iter().collect(),
        ..node(name, &[], &[], None)
    }
}

/// Whether a node is asked to look what of a shared copy is there: nothing odd is left.
fn looks(actions: &[Action]) -> bool {
    let bodies = (0..3).flat_map(|node| sent(actions, node));
    bodies
        .into_iter()
        .any(|body| matches!(body, to_agent::Body::Look(look) if look.decides))
}

/// Copies in one place are refused with the option that makes them one; shared ones are not asked about.
#[test]
fn copies_in_one_place_are_refused() {
    for destinations in [Destinations::Copies, Destinations::Shared] {
        let nodes = vec![
            tree("a", true, None),
            tree("b", false, Some("/big")),
            tree("c", false, Some("/big")),
        ];
        let mut coordinator = begun(nodes.clone(), None);
        coordinator.setup.mapping = Mapping::Trees {
            sources: Sources::Auto,
            destinations,
        };
        let next = all_opened(&mut coordinator, &nodes);
        if destinations == Destinations::Shared {
            assert!(is_planned(&next) || looks(&next));
            continue;
        }
        assert_eq!(probes(&next).len(), 2);
        coordinator.handle_message(2, probed(vec![]), Instant(SECOND));
        coordinator.handle_message(1, probed(vec![mark(0, 2, 0)]), Instant(SECOND));
        let text = refusal(&actions(&mut coordinator));
        assert!(
            text.contains("b:/big and c:/big are one place, as both nodes see"),
            "{text}"
        );
        assert!(text.contains("--destinations shared"), "{text}");
    }
}

/// A source in folder 9, `set` in folder 7, which is `s` in folder 2.
fn opened_in_folders(setup: &NodeSetup) -> FromAgent {
    let mut message = opened(setup, 0);
    if let Some(from_agent::Body::Opened(opened)) = &mut message.body {
        let above = [above(7, "set"), above(2, "s")];
        opened.sources[0].roots = vec![control::Root {
            folder: 9,
            above: above.to_vec(),
            ..control::Root::default()
        }];
    }
    message
}

fn above(folder: u64, name: &str) -> control::Above {
    control::Above {
        folder,
        name: name.into(),
    }
}

/// Where numbers and names allow that a copy meets its source, the mark of the copy's node is looked for there.
#[test]
fn copies_that_may_meet_their_sources_are_looked_at() {
    let (whole, inside) = (
        Some("would take the place of its own source"),
        Some("would lie in its own source"),
    );
    let removed = Some("would, with --delete, hold its own source");
    let below = [above(31, "c"), above(9, "b"), above(9, "d")];
    for (folder, rest, above, delete, (up, path), would) in [
        (9, "", &[][..], false, (0, ""), whole),
        (9, "new/x", &[], false, (0, ""), inside),
        (30, "", &below[..2], false, (0, "b/c"), inside),
        // What is missing is no source.
        (7, "set", &[], true, (1, ""), None),
        (7, "se", &[], true, (1, ""), None),
        (7, "", &[], false, (1, ""), None),
        (7, "", &[], true, (1, ""), removed),
        (2, "s/set", &[], true, (2, ""), None),
        (2, "", &[], true, (2, ""), removed),
        (5, "", &[], true, (0, ""), None),
    ] {
        for is_there in [true, false] {
            let nodes = vec![tree("a", true, None), tree("b", false, Some("/x"))];
            let mut coordinator = begun(nodes.clone(), None);
            coordinator.setup.options.delete = delete;
            coordinator.handle_message(0, opened_in_folders(&nodes[0]), Instant(SECOND));
            let place = Place {
                folder,
                rest: rest.into(),
                above: above.to_vec(),
                ..Place::default()
            };
            let places = Opened {
                places: vec![place],
                ..Opened::default()
            };
            coordinator.handle_message(1, from(from_agent::Body::Opened(places)), Instant(SECOND));
            let next = actions(&mut coordinator);
            let Some(would) = would else {
                assert!(probes(&next).is_empty(), "{folder} {rest}");
                continue;
            };
            let asked = probes(&next);
            assert_eq!(
                (asked.len(), asked[0].0, &asked[0].1.places[..]),
                (1, 1, &[0][..])
            );
            coordinator.handle_message(1, probed(vec![]), Instant(SECOND));
            let asked = probes(&actions(&mut coordinator));
            let own = control::Own {
                up,
                path: path.into(),
                rest: rest.into(),
                ..control::Own::default()
            };
            assert_eq!(asked.len(), 1);
            assert_eq!((asked[0].0, &asked[0].1.owns[..]), (0, &[own][..]));
            let answer = Probed {
                found: if is_there { vec![0] } else { vec![] },
                ..Probed::default()
            };
            coordinator.handle_message(0, from(from_agent::Body::Probed(answer)), Instant(SECOND));
            let next = actions(&mut coordinator);
            if is_there {
                let text = refusal(&next);
                assert!(text.contains(would) && text.contains("a:/set"), "{text}");
            } else {
                assert!(is_planned(&next) || looks(&next));
                let cleared = probes(&next).into_iter().map(|(node, _)| node);
                assert!(cleared.eq([0, 1]));
            }
        }
    }
}

/// A file that takes the place of a source is there; where nothing is there the copy is an ordinary one, and nothing is asked.
#[test]
fn files_that_are_missing_are_no_sources() {
    for (stands, folder, is_asked) in [(true, 0, true), (false, 0, false), (true, 9, false)] {
        let nodes = vec![tree("a", true, None), tree("b", false, Some("/x"))];
        let mut coordinator = begun(nodes.clone(), None);
        let mut message = opened_in_folders(&nodes[0]);
        if let Some(from_agent::Body::Opened(opened)) = &mut message.body {
            opened.sources[0].roots[0].folder = folder;
        }
        coordinator.handle_message(0, message, Instant(SECOND));
        let mut message = opened(&nodes[1], 7);
        if let Some(from_agent::Body::Opened(opened)) = &mut message.body {
            opened.places[0].rest = "set".into();
            opened.places[0].stands = stands;
        }
        coordinator.handle_message(1, message, Instant(SECOND));
        let asked = probes(&actions(&mut coordinator));
        assert_eq!(asked.len(), usize::from(is_asked), "{stands} {folder}");
    }
}

/// Of several copies with one number and rest any may be the one that meets the source: all leave marks, and the source's node looks once.
#[test]
fn all_that_may_meet_a_source_leave_marks() {
    let nodes = vec![
        tree("a", true, None),
        tree("b", false, Some("/x")),
        tree("c", false, Some("/x")),
    ];
    let mut coordinator = begun(nodes.clone(), None);
    coordinator.handle_message(0, opened_in_folders(&nodes[0]), Instant(SECOND));
    for (node, folder) in [(1, 9), (2, 9)] {
        let mut message = opened(&nodes[node as usize], folder);
        if let Some(from_agent::Body::Opened(opened)) = &mut message.body {
            opened.places[0].rest = Vec::new();
        }
        coordinator.handle_message(node, message, Instant(SECOND));
    }
    let asked = probes(&actions(&mut coordinator));
    assert_eq!(
        asked.iter().map(|(node, _)| *node).collect::<Vec<_>>(),
        [1, 2]
    );
    assert!(asked.iter().all(|(_, probe)| probe.places == [0]));
    coordinator.handle_message(1, probed(vec![]), Instant(SECOND));
    coordinator.handle_message(2, probed(vec![]), Instant(SECOND));
    let asked = probes(&actions(&mut coordinator));
    assert_eq!((asked.len(), asked[0].0, asked[0].1.owns.len()), (1, 0, 1));
    let answer = Probed {
        found: vec![0],
        ..Probed::default()
    };
    coordinator.handle_message(0, from(from_agent::Body::Probed(answer)), Instant(SECOND));
    let text = refusal(&actions(&mut coordinator));
    assert!(text.contains("the copy on b or c would take"), "{text}");
}

/// Filters leave some of the sources out: the refusal names the one that is met.
#[test]
fn the_source_that_is_met_is_named() {
    let nodes = vec![tree("a", true, None), tree("b", false, Some("/x"))];
    let mut coordinator = begun(nodes.clone(), None);
    let paths = [b"/p/left-out".to_vec(), b"/p/set".to_vec()];
    coordinator.nodes[0].setup.sources[0].source.kind =
        Some(source::Kind::Bundle(control::Bundle {
            paths: paths.to_vec(),
        }));
    let mut message = opened_in_folders(&nodes[0]);
    if let Some(from_agent::Body::Opened(opened)) = &mut message.body {
        opened.sources[0].roots[0].name = "set".into();
    }
    coordinator.handle_message(0, message, Instant(SECOND));
    let mut message = opened(&nodes[1], 7);
    if let Some(from_agent::Body::Opened(opened)) = &mut message.body {
        opened.places[0].rest = Vec::new();
    }
    coordinator.handle_message(1, message, Instant(SECOND));
    coordinator.handle_message(1, probed(vec![]), Instant(SECOND));
    let answer = Probed {
        found: vec![0],
        ..Probed::default()
    };
    coordinator.handle_message(0, from(from_agent::Body::Probed(answer)), Instant(SECOND));
    let text = refusal(&actions(&mut coordinator));
    assert!(text.contains("a:/p/set"), "{text}");
}

/// A removal gets the folders that other nodes send, with their numbers; a plan that removes nothing gets none.
#[test]
fn folders_of_other_nodes_are_in_the_plan_of_a_removal() {
    let nodes = vec![tree("a", true, None), tree("b", false, Some("/x"))];
    let mut coordinator = begun(nodes.clone(), None);
    let mut message = opened_in_folders(&nodes[0]);
    if let Some(from_agent::Body::Opened(opened)) = &mut message.body {
        // Two file systems have folders of one number: each counts with its own time.
        let roots = &mut opened.sources[0].roots;
        let (mut older, mut same) = (roots[0].clone(), roots[0].clone());
        (roots[0].changed, older.changed, same.changed) = (900, 30, 900);
        roots.extend([older, same]);
    }
    coordinator.handle_message(0, message, Instant(SECOND));
    let elsewhere = |node| {
        let folders = coordinator.sources_elsewhere(node);
        let pairs = folders.iter().map(|one| (one.folder, one.changed));
        pairs.collect::<Vec<_>>()
    };
    assert_eq!(elsewhere(1), [(9, 30), (9, 900)]);
    assert_eq!(elsewhere(0), []);
}

/// A copy of several sources beside each other removes what is below the name of one: there may be the source of another one.
#[test]
fn copies_that_remove_below_another_name_are_looked_at() {
    for delete in [true, false] {
        let nodes = vec![tree("a", true, None), tree("b", false, Some("/x"))];
        let mut coordinator = begun(nodes.clone(), None);
        coordinator.setup.options.delete = delete;
        let root = |name: &str, above: &[control::Above]| control::Root {
            name: name.into(),
            above: above.to_vec(),
            ..control::Root::default()
        };
        let mut message = opened(&nodes[0], 0);
        if let Some(from_agent::Body::Opened(opened)) = &mut message.body {
            // /x/big/set and, of another folder, big.
            let set = root("set", &[above(8, "set"), above(7, "big")]);
            opened.sources[0].roots = vec![set, root("big", &[above(20, "big")])];
        }
        coordinator.handle_message(0, message, Instant(SECOND));
        let mut message = opened(&nodes[1], 7);
        if let Some(from_agent::Body::Opened(opened)) = &mut message.body {
            opened.places[0].rest = Vec::new();
        }
        coordinator.handle_message(1, message, Instant(SECOND));
        let asked = probes(&actions(&mut coordinator));
        assert_eq!(asked.len(), usize::from(delete));
    }
}

/// Writers of 200,000 and 250,000 bytes in files of their own, the second from the middle of the first on.
fn windows() -> Vec<NodeSetup> {
    let mut nodes = vec![
        node("a", &[(0, 200_000)], &[], None),
        node("b", &[(100_000, 250_000)], &[], None),
        node("c", &[], &[(0, 350_000)], None),
    ];
    nodes[1].sources[0].source.rows[0] = Row {
        object: b"/g".to_vec(),
        object_offset: 0,
        start: 100_000,
        length: 250_000,
    };
    nodes
}

/// Files whose rows overlap at different offsets are read at both ends: refused where they differ, with both rows.
#[test]
fn overlapping_rows_at_other_offsets_are_compared() {
    for differ in [true, false] {
        let nodes = windows();
        let mut coordinator = begun(nodes.clone(), None);
        let asked = probes(&all_opened(&mut coordinator, &nodes));
        assert_eq!(asked.len(), 2);
        let sampled: Vec<_> = asked.iter().map(|(_, probe)| &probe.samples).collect();
        assert_eq!(sampled[0], sampled[1]);
        let both = control::range_set(sampled[0]);
        assert_eq!(both.first(), Some(Range::new(100_000, 200_000)));
        for node in [0, 1] {
            let hash = if differ { node as u8 } else { 9 };
            let hashes = Probed {
                hashes: vec![vec![hash; 32]],
                ..Probed::default()
            };
            coordinator.handle_message(
                node,
                from(from_agent::Body::Probed(hashes)),
                Instant(SECOND),
            );
        }
        let next = actions(&mut coordinator);
        assert_eq!(is_planned(&next), !differ);
        if differ {
            let text = refusal(&next);
            for part in [
                "`writer a /f 0 0-199999`",
                "`writer b /g 0 100000-349999`",
                "bytes 100000-199999",
            ] {
                assert!(text.contains(part), "{part} is not in {text}");
            }
        }
    }
}

/// However many windows there are, few are read, and of each three short samples.
#[test]
fn samples_are_bounded() {
    let mut nodes = vec![node("r", &[], &[(0, 1 << 40)], None)];
    for at in 0..2000u64 {
        let mut writer = node(&format!("w{at}"), &[(0, 1)], &[], None);
        writer.sources[0].source.rows[0] = Row {
            object: format!("/part{at}").into_bytes(),
            object_offset: 0,
            start: at << 20,
            length: 1 << 30,
        };
        nodes.push(writer);
    }
    let overlaps = begun(nodes, None).overlaps();
    assert!((32..=64).contains(&overlaps.len()), "{}", overlaps.len());
    for overlap in overlaps {
        let bytes: u64 = overlap.samples.iter().map(|range| range.len()).sum();
        assert_eq!((overlap.samples.len(), bytes), (3, 3 << 16));
    }
}

/// A node that joins is asked whether others write where it wants to, and is turned away where they do.
#[test]
fn who_joins_does_not_replace_what_others_write() {
    for staged in [true, false] {
        let nodes = vec![
            node("a", &[(0, 100)], &[], None),
            node("b", &[], &[(0, 100)], None),
        ];
        let mut coordinator = begun(nodes.clone(), None);
        let next = all_opened(&mut coordinator, &nodes);
        answer(&mut coordinator, next);
        let late = node("c", &[], &[(50, 50)], None);
        let number = coordinator
            .handle_join(late.clone(), Instant(2 * SECOND))
            .unwrap();
        coordinator.handle_message(number, opened(&late, 7), Instant(2 * SECOND));
        let asked = probes(&actions(&mut coordinator));
        assert_eq!(asked.len(), 1);
        assert_eq!((asked[0].0, &asked[0].1.others[..]), (number, &[1][..]));
        assert_eq!(coordinator.join_outcome(number), None);
        let marks = if staged { vec![mark(0, 1, 0)] } else { vec![] };
        coordinator.handle_message(number, probed(marks), Instant(3 * SECOND));
        match coordinator.join_outcome(number) {
            Some(Err(reason)) => {
                let text = reason.to_string();
                assert!(staged && text.contains("b writes to /f already"), "{text}");
            }
            outcome => assert_eq!((outcome, staged), (Some(Ok(())), false)),
        }
    }
}

/// A writer that joins with another offset of a path that others hold bytes of is turned away, with both.
#[test]
fn who_joins_agrees_on_offsets() {
    let nodes = vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], None),
    ];
    let mut coordinator = begun(nodes.clone(), None);
    let next = all_opened(&mut coordinator, &nodes);
    answer(&mut coordinator, next);
    let mut late = node("c", &[(50, 50)], &[], None);
    late.sources[0].source.rows[0].object_offset = 0;
    let number = coordinator
        .handle_join(late.clone(), Instant(2 * SECOND))
        .unwrap();
    coordinator.handle_message(number, opened(&late, 7), Instant(2 * SECOND));
    let outcome = coordinator.join_outcome(number);
    let Some(Err(reason)) = outcome else {
        panic!("{outcome:?}")
    };
    let text = reason.to_string();
    assert!(text.contains("/f on a and /f on c overlap"), "{text}");
}
