//! `transfer`: turns a specification file into a request.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use ropewalk_master::Request;
use ropewalk_master::request::{Mapping, NodeRequest, Object, ObjectRequest, Reach, RowRequest};
use ropewalk_model::spec::SpecErrors;
use ropewalk_model::{HostPort, Link, NodeSet, Role, TransferSpec, Uri};
use serde::{Deserialize, Serialize};

use crate::Usage;
use crate::inputs::{Handed, Inputs, Text};
use crate::job;
use crate::options::{DetachArgs, MoveArgs, OutputArgs};

/// Arguments of `ropewalk transfer`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct TransferArgs {
    /// The specification file; - reads standard input
    #[arg(value_name = "SPEC")]
    spec: PathBuf,

    /// Start the agents instead of attaching to running ones; ports then only distinguish nodes
    #[arg(long, value_name = "HOW")]
    start: Option<StartArg>,

    #[command(flatten)]
    pub moving: MoveArgs,

    #[command(flatten)]
    pub output: OutputArgs,

    #[command(flatten)]
    pub detach: DetachArgs,
}

/// How agents are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StartArg {
    /// Over ssh on each row's host
    Ssh,
    /// As processes of this host, whatever hosts the rows name
    Local,
}

const EXAMPLES: &str = "\
The file (ranges include their last byte; A+LENGTH works too; # starts a comment):
  id \"My Data File\"
  # kind  Host:Port    URI                   offset in file  range of the data
  writer  node1:7420   \"file:///data/half1\"  0               0-1023
  writer  node2:7420   \"file:///data/half2\"  0               1024+1KiB
  reader  node3:7420   \"file:///tmp/copy\"    0               0-2047  down=1Gbit

  A writer's row may end in up=RATE, a reader's in down=RATE (the node's speed: gives the bound) and
  dest=NAME (readers with one name share one destination). Rows for what pairs of nodes, and links
  that several pairs share, carry in one direction, which plan and bound follow:
    cap    node1:7420 node3:7420 1Gbit
    trunk  wan 10Gbit from node[1-2] to node3      (a host alone: all nodes on it)
  URIs: file:///path, /path, mem:SIZE, null:.
  The file of a reader is replaced; bytes before and between its rows are zero.
  Readers that write different ranges of one file share it by dest=. Without that, one path on
  hosts with a common file system is refused before anything moves: from the rows where the host is
  the same, else when the agents find that they see one place. Writers' files that should hold
  the same bytes at different offsets are read there at three places, and refused where they differ.
  The file holds no secrets: the agents' token is in --token-file.
  This command is the transfer's master, whatever the file's `master` row says; with --detach
  the `ropewalk serve` of this user on this host is.

Examples:
  ropewalk plan figure2.spec
      what would move, and how long it would take
  ropewalk transfer figure2.spec --token-file ~/.config/ropewalk/token
      agents already listen at every Host:Port
  ropewalk transfer figure2.spec --start ssh
      nothing runs there yet

Exit status: 0 done, 1 failed, 2 usage, 3 partial, 4 refused before the start (a file that cannot
be read as a specification, too), 130 interrupted.";

/// A specification that cannot be used, with a picture of each place.
#[derive(Debug)]
pub(crate) struct BadSpec(pub String);

impl fmt::Display for BadSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadSpec {}

/// Reads a file, or standard input for `-`.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut bytes).map(|_| bytes)
    } else {
        std::fs::read(path)
    };
    let shown = path.display();
    let bytes = match bytes {
        Ok(bytes) => bytes,
        Err(error) => bail!(Usage(anyhow::anyhow!("cannot read {shown}: {error}"))),
    };
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) => {
            let good = error.utf8_error().valid_up_to();
            let before = String::from_utf8_lossy(&error.as_bytes()[..good]);
            let line = before.split('\n').count();
            let column = before
                .rsplit('\n')
                .next()
                .unwrap_or_default()
                .chars()
                .count()
                + 1;
            bail!(BadSpec(format!(
                "{shown}: line {line}, column {column}: byte 0x{:02x} is not UTF-8; write names that are not with %XX \
                 in a file:// URI",
                error.as_bytes()[good]
            )))
        }
    }
}

/// Parses a specification; errors come as pictures.
pub(crate) fn parse(text: &str, path: &Path) -> Result<TransferSpec> {
    TransferSpec::parse(text).map_err(|errors| pictures(&errors, text, path))
}

/// Errors of a file with a picture of each place.
pub(crate) fn pictures(errors: &SpecErrors, text: &str, path: &Path) -> anyhow::Error {
    let color = std::io::stderr().is_terminal();
    BadSpec(errors.render(text, &path.display().to_string(), color)).into()
}

/// How the agent of a row is reached.
fn reach(start: Option<StartArg>, at: &HostPort) -> Reach {
    match start {
        None => Reach::Attached {
            host: at.host.clone(),
            port: at.port,
        },
        Some(StartArg::Ssh) => Reach::Ssh(at.host.clone()),
        Some(StartArg::Local) => Reach::Local,
    }
}

/// The nodes of rows that are added to a transfer.
pub(crate) fn added_nodes(
    text: &str,
    start: Option<StartArg>,
) -> Result<Vec<NodeRequest>, SpecErrors> {
    let spec = TransferSpec::parse_added(text)?;
    Ok(nodes(&spec, |at| reach(start, at)))
}

impl TransferArgs {
    /// The specification. A job has the one that was handed over: the file may have changed since.
    pub(crate) fn text(&self) -> Result<String> {
        match job::as_job()? {
            Some(job) => {
                let kept = job.inputs()?.specification;
                let kept = kept.context("the job has no specification")?;
                String::from_utf8(kept.0).context("the job's specification is not UTF-8")
            }
            None => read_text(&self.spec),
        }
    }

    /// What a job needs of it beside its command line.
    ///
    /// # Errors
    /// A file that only this process has.
    pub(crate) fn handed(&self, text: String) -> Result<Handed> {
        self.moving.check_detached()?;
        Ok(Handed {
            priority: self.detach.priority,
            inputs: Inputs {
                specification: Some(Text(text.into_bytes())),
                ..Inputs::default()
            },
            json: self.output.json,
            ..Handed::default()
        })
    }

    /// The transfer that the specification describes.
    pub(crate) fn request(&self, text: &str) -> Result<Request> {
        let spec = parse(text, &self.spec)?;
        let mut nodes = nodes(&spec, |at| reach(self.start, at));
        self.moving.declare_rates(&mut nodes)?;
        let options = self.moving.options(&nodes)?;
        Ok(Request {
            label: spec.id.clone(),
            nodes,
            mapping: Mapping::Rows,
            links: links(&spec),
            options,
        })
    }
}

/// One node for each Host:Port, named after its host where no other node is there.
pub(crate) fn nodes(spec: &TransferSpec, reach: impl Fn(&HostPort) -> Reach) -> Vec<NodeRequest> {
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
pub(crate) fn links(spec: &TransferSpec) -> Vec<Link> {
    let names = names(spec);
    let set = |set: &NodeSet| {
        // A host alone stays one, so that it counts for nodes that join on it.
        let nodes = names
            .iter()
            .filter(|(at, _)| set.nodes.contains(&at.to_string()));
        NodeSet {
            nodes: nodes.map(|(_, name)| name.clone()).collect(),
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

    /// Rows that are added name their nodes as a whole file does, and never the transfer.
    #[test]
    fn added_rows_become_nodes() {
        let nodes = added_nodes("writer a:1 /x 0 0-9 up=8bit", Some(StartArg::Ssh)).unwrap();
        assert_eq!(nodes.len(), 1);
        assert_eq!(
            (&nodes[0].name[..], &nodes[0].reach, nodes[0].up),
            ("a", &Reach::Ssh("a".into()), Some(1))
        );
        let errors = added_nodes("id x\nwriter a:1 /x 0 0-9", None).unwrap_err();
        assert!(errors.to_string().contains("already has an id"), "{errors}");
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
