//! A specification (CEP Figure 2) as the nodes of a request.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::{HostPort, Link, NodeSet, Role, TransferSpec, Uri};

use crate::request::{NodeRequest, Object, ObjectRequest, Reach, RowRequest};

/// One node for each Host:Port, named after its host where no other node is there.
///
/// * `reach`: how the agent of an address is reached.
pub fn nodes(spec: &TransferSpec, reach: impl Fn(&HostPort) -> Reach) -> Vec<NodeRequest> {
    let mut nodes: Vec<(HostPort, NodeRequest)> = Vec::new();
    for role in [Role::Writer, Role::Reader] {
        for node in spec.nodes(role) {
            let objects = objects(spec, &node.rows, node.hints.destination.as_ref());
            let at = nodes
                .iter()
                .position(|(at, _)| *at == node.host_port)
                .unwrap_or_else(|| {
                    let request = NodeRequest {
                        name: String::new(),
                        reach: reach(&node.host_port),
                        sources: Vec::new(),
                        sinks: Vec::new(),
                        up: None,
                        down: None,
                        interfaces: Vec::new(),
                    };
                    nodes.push((node.host_port.clone(), request));
                    nodes.len() - 1
                });
            let request = &mut nodes[at].1;
            match role {
                Role::Writer => request.sources = objects,
                Role::Reader => request.sinks = objects,
            }
            request.up = request.up.or(node.hints.up.map(|rate| rate.0));
            request.down = request.down.or(node.hints.down.map(|rate| rate.0));
            for interface in &node.hints.interfaces {
                if !request.interfaces.contains(interface) {
                    request.interfaces.push(interface.clone());
                }
            }
        }
    }
    let names = names(spec);
    let name = |(at, mut node): (HostPort, NodeRequest)| {
        node.name = names.get(&at).cloned().unwrap_or_default();
        node
    };
    nodes.into_iter().map(name).collect()
}

/// What each node is called: as its host where no other node is there.
fn names(spec: &TransferSpec) -> BTreeMap<HostPort, String> {
    let all: BTreeSet<&HostPort> = spec.rows.iter().map(|row| &row.host_port).collect();
    let mut on_host: BTreeMap<&str, usize> = BTreeMap::new();
    for at in &all {
        *on_host.entry(&at.host).or_default() += 1;
    }
    let name = |at: &&HostPort| match on_host.get(at.host.as_str()) {
        Some(1) => at.host.clone(),
        _ => at.to_string(),
    };
    all.iter().map(|at| ((*at).clone(), name(at))).collect()
}

/// Caps and trunks with the nodes' names in the transfer.
pub fn links(spec: &TransferSpec) -> Vec<Link> {
    let names = names(spec);
    let names = names.iter().map(|(at, name)| (at.to_string(), name));
    let names: BTreeMap<String, &String> = names.collect();
    let set = |set: &NodeSet| {
        // A host alone stays one, so that it counts for nodes that join on it.
        let nodes = set.nodes.iter().filter_map(|at| names.get(at));
        NodeSet {
            nodes: nodes.map(|name| (*name).clone()).collect(),
            hosts: set.hosts.clone(),
        }
    };
    let links = spec.links.iter().map(|link| Link {
        from: set(&link.from),
        to: set(&link.to),
        ..link.clone()
    });
    links.collect()
}

fn objects(
    spec: &TransferSpec,
    rows: &[usize],
    destination: Option<&String>,
) -> Vec<ObjectRequest> {
    let mut objects: Vec<(&Uri, ObjectRequest)> = Vec::new();
    for row in rows.iter().filter_map(|&row| spec.rows.get(row)) {
        let at = objects
            .iter()
            .position(|(uri, _)| **uri == row.uri)
            .unwrap_or_else(|| {
                let object = match &row.uri {
                    Uri::File(path) => Object::Path(path.as_bytes().to_vec()),
                    Uri::Memory(size) => Object::Memory(size.0),
                    Uri::Buffer(name) => Object::Buffer(name.clone()),
                    Uri::Null => Object::Null,
                };
                objects.push((
                    &row.uri,
                    ObjectRequest {
                        object,
                        rows: Vec::new(),
                        destination: destination.cloned(),
                        make_folder: false,
                    },
                ));
                objects.len() - 1
            });
        objects[at].1.rows.push(RowRequest {
            object_offset: row.file_offset,
            range: row.range,
        });
    }
    objects.into_iter().map(|(_, object)| object).collect()
}

#[cfg(test)]
mod tests {
    use ropewalk_model::Range;

    use super::*;

    fn attached(at: &HostPort) -> Reach {
        Reach::Attached {
            host: at.host.clone(),
            port: at.port,
        }
    }

    /// Rows of one address are one node, rows of one URI one object; hints are carried over.
    #[test]
    fn rows_become_nodes_and_objects() {
        let text = "writer a:1 /x 0 0-9 up=8bit\nwriter a:1 /x 20 10-19\nwriter a:1 /y 0 20-29\n\
                    reader b:2 /z 0 0-29 dest=d down=16bit\nreader b:3 /z 0 0-29 dest=d";
        let nodes = nodes(&TransferSpec::parse(text).unwrap(), attached);
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["a", "b:2", "b:3"]);
        assert_eq!(
            (nodes[0].up, nodes[0].down, nodes[1].down),
            (Some(1), None, Some(2))
        );
        assert_eq!(
            nodes[0].reach,
            Reach::Attached {
                host: "a".into(),
                port: 1
            }
        );
        let objects: Vec<&Object> = nodes[0].sources.iter().map(|o| &o.object).collect();
        assert_eq!(
            objects,
            [&Object::Path(b"/x".to_vec()), &Object::Path(b"/y".to_vec())]
        );
        let second = RowRequest {
            object_offset: 20,
            range: Range::new(10, 20),
        };
        assert_eq!(nodes[0].sources[0].rows[1], second);
        assert_eq!(nodes[1].sinks[0].destination.as_deref(), Some("d"));
    }

    /// A host that has some bytes and wants others is one node when one agent serves both.
    #[test]
    fn both_roles_of_an_address_are_one_node() {
        let text = "writer a:1 /x 0 0-9\nwriter b:1 /y 0 10-19\nreader a:1 /z 0 0-19";
        let nodes = nodes(&TransferSpec::parse(text).unwrap(), attached);
        assert_eq!(nodes.len(), 2);
        assert_eq!((nodes[0].sources.len(), nodes[0].sinks.len()), (1, 1));
    }
}
