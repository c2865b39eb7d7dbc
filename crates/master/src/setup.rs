//! What a transfer begins with: whether its request can be carried out, and what the coordinator is given of it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use ropewalk_model::ByteRate;
use ropewalk_proto::control;
use ropewalk_proto::coordinator::{Earlier, NodeSetup, Setup, SinkSetup, SourceSetup};

use crate::request::{
    Destinations, FilterRule, Incomplete, LaneKind, Mapping, NodeRequest, Object, ObjectRequest,
    Reach, Request, RowRequest, Sources, Striping,
};
use crate::speeds::Hints;

/// What is known before it begins.
#[derive(Debug)]
pub(crate) struct Before {
    pub hints: Hints,
    /// That the plan rests on them, for people; said once there is a plan.
    pub basis: Option<String>,
    pub lessons: Vec<String>,
    /// Nodes that are left out of this one.
    pub absent: Vec<String>,
    /// What earlier rounds knew of nodes.
    pub earlier: Earlier,
}

/// Why a request is refused before any node is reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("two nodes are named {0}; name each once")]
    SameName(String),
    #[error("{0} is a pattern; expand it first")]
    Pattern(Object),
    #[error("no source is named; name at least one")]
    NoSource,
    #[error("no destination is named; name at least one")]
    NoDestination,
    #[error(
        "{0} lies in {1}, and --delete would remove it there; copy to one after the other, without --delete for {1}"
    )]
    Nested(Object, Object),
    #[error(
        "--lane mpi is for nodes that this command starts on this host, and {0} is not one; name its files without a host, or use another lane (ropewalk transfer: --start local)"
    )]
    NoRank(String),
    #[error(transparent)]
    Scheduler(#[from] ropewalk_sched::UnknownScheduler),
}

/// Checks a request whose nodes are sorted by name.
pub(crate) fn check(request: &Request) -> Result<(), RequestError> {
    if let Some(pair) = request.nodes.windows(2).find(|w| w[0].name == w[1].name) {
        return Err(RequestError::SameName(pair[0].name.clone()));
    }
    let objects = request
        .nodes
        .iter()
        .flat_map(|node| node.sources.iter().chain(&node.sinks));
    if let Some(pattern) = objects
        .map(|o| &o.object)
        .find(|o| matches!(o, Object::Pattern(_)))
    {
        return Err(RequestError::Pattern(pattern.clone()));
    }
    if !request.nodes.iter().any(|n| !n.sources.is_empty()) {
        return Err(RequestError::NoSource);
    }
    if !request.nodes.iter().any(|n| !n.sinks.is_empty()) {
        return Err(RequestError::NoDestination);
    }
    if request.options.delete {
        check_apart(&request.nodes)?;
    }
    check_ranks(&request.nodes, request.options.lane)?;
    ropewalk_sched::by_name(&request.options.scheduler)?;
    Ok(())
}

/// With --delete no destination lies in another one of its host, as they are written.
fn check_apart(nodes: &[NodeRequest]) -> Result<(), RequestError> {
    let of_node = |node: &'_ NodeRequest| -> Vec<(Reach, Object)> {
        let objects = node.sinks.iter().map(|sink| sink.object.clone());
        objects.map(|object| (node.reach.clone(), object)).collect()
    };
    let sinks: Vec<(Reach, Object)> = nodes.iter().flat_map(of_node).collect();
    let path = |object: &Object| match object {
        Object::Path(path) => Some(Path::new(OsStr::from_bytes(path)).to_owned()),
        _ => None,
    };
    for (reach, inner) in &sinks {
        let beside = sinks.iter().filter(|(other, _)| other.is_same_host(reach));
        for (_, outer) in beside {
            if let (Some(below), Some(above)) = (path(inner), path(outer))
                && below != above
                && below.starts_with(above)
            {
                return Err(RequestError::Nested(inner.clone(), outer.clone()));
            }
        }
    }
    Ok(())
}

/// Whether all destinations have the last name of a source.
fn has_source_name(nodes: &[NodeRequest]) -> bool {
    let name = |object: &ObjectRequest| match &object.object {
        Object::Path(path) => {
            let path = Path::new(OsStr::from_bytes(path));
            path.file_name().map(OsStr::to_owned)
        }
        _ => None,
    };
    let sources = nodes.iter().flat_map(|node| &node.sources);
    let sources: Vec<_> = sources.filter_map(name).collect();
    let mut sinks = nodes.iter().flat_map(|node| &node.sinks);
    sinks.all(|sink| name(sink).is_none_or(|name| sources.contains(&name)))
}

/// Ranks of MPI are agents that are started here.
pub(crate) fn check_ranks(nodes: &[NodeRequest], lane: LaneKind) -> Result<(), RequestError> {
    let mut others = nodes.iter().filter(|node| node.reach != Reach::Local);
    match others.next() {
        Some(other) if lane == LaneKind::Mpi => Err(RequestError::NoRank(other.name.clone())),
        _ => Ok(()),
    }
}

/// Says that the scheduler plans without regard to declared caps and trunks.
pub(crate) fn links_note(request: &Request) -> Option<String> {
    let scheduler = &request.options.scheduler;
    let heeds = ropewalk_sched::by_name(scheduler).is_ok_and(|scheduler| scheduler.heeds_links());
    (!request.links.is_empty() && !heeds).then(|| {
        format!("--scheduler {scheduler} plans without the caps and trunks of the file; the bound counts them")
    })
}

fn rows(object: &ObjectRequest) -> Vec<control::Row> {
    let to_row = |row: &RowRequest| control::Row {
        object: object.object.to_bytes(),
        object_offset: row.object_offset,
        start: row.range.start,
        length: row.range.len(),
    };
    object.rows.iter().map(to_row).collect()
}

/// The sources on a sink's host, which a copy must not lie in.
fn sources_beside(nodes: &[NodeRequest], at: &Reach) -> Vec<control::Beside> {
    let here = nodes.iter().filter(|other| other.reach.is_same_host(at));
    let mut beside = Vec::new();
    for source in here.flat_map(|node| &node.sources) {
        match &source.object {
            Object::Path(path) => beside.push(control::Beside {
                path: path.clone(),
                name: Vec::new(),
            }),
            Object::Bundle(paths) => beside.extend(paths.iter().map(|path| control::Beside {
                path: path.clone(),
                name: Object::last_name(path).to_vec(),
            })),
            Object::Pattern(_) | Object::Memory(_) | Object::Buffer(_) | Object::Null => {}
        }
    }
    beside
}

/// A node as the coordinator is given it; `nodes` are all of the transfer's.
pub(crate) fn node_setup(node: &NodeRequest, nodes: &[NodeRequest], mapping: Mapping) -> NodeSetup {
    let trees = matches!(mapping, Mapping::Trees { .. });
    let all_shared = matches!(
        mapping,
        Mapping::Trees {
            destinations: Destinations::Shared,
            ..
        }
    );
    let source = |object: &ObjectRequest| {
        let kind = match &object.object {
            Object::Path(path) if trees => Some(control::source::Kind::Tree(path.clone())),
            Object::Memory(size) if trees => Some(control::source::Kind::Memory(*size)),
            Object::Buffer(name) if trees => Some(control::source::Kind::Buffer(name.clone())),
            Object::Bundle(paths) if trees => {
                let paths = paths.clone();
                Some(control::source::Kind::Bundle(control::Bundle { paths }))
            }
            _ => None,
        };
        SourceSetup {
            source: control::Source {
                kind,
                rows: rows(object),
            },
            base: 0,
        }
    };
    let sink = |object: &ObjectRequest| {
        let kind = match &object.object {
            Object::Path(path) if trees => Some(control::sink::Kind::Tree(path.clone())),
            Object::Memory(_) if trees => Some(control::sink::Kind::Memory(true)),
            Object::Buffer(name) if trees => Some(control::sink::Kind::Buffer(name.clone())),
            Object::Null if trees => Some(control::sink::Kind::Null(true)),
            _ => None,
        };
        let shared = all_shared || object.destination.is_some();
        SinkSetup {
            sink: control::Sink {
                rows: rows(object),
                shared,
                make_folder: object.make_folder,
                checksums: Vec::new(),
                sources: match kind {
                    Some(control::sink::Kind::Tree(_)) => sources_beside(nodes, &node.reach),
                    _ => Vec::new(),
                },
                kind,
            },
            destination: object.destination.clone(),
        }
    };
    NodeSetup {
        name: node.name.clone(),
        sources: node.sources.iter().map(source).collect(),
        sinks: node.sinks.iter().map(sink).collect(),
        up: node.up.map(ByteRate),
        down: node.down.map(ByteRate),
        remembered_up: None,
        remembered_down: None,
        interfaces: node.interfaces.clone(),
        is_here: node.reach == Reach::Local,
        reached_at: None,
    }
}

/// The transfer as the coordinator is given it, and how its sources belong together.
pub(crate) fn setup(request: &Request, id: uuid::Uuid, before: &Before) -> (Setup, Sources) {
    let options = &request.options;
    let sources = match request.mapping {
        Mapping::Rows => Sources::Auto,
        Mapping::Trees { sources, .. } => sources,
    };
    let options_message = control::Options {
        streams: options.streams.unwrap_or(0),
        prefetch: options.prefetch,
        plain: options.plain,
        verify: options.verify.into(),
        lane: options.lane.into(),
        no_sync: !options.sync,
        status_milliseconds: 500,
        fixed: !options.replan || options.striping == Striping::Equal,
        rate: options.datagrams.rate.unwrap_or(0),
        mtu: options.datagrams.mtu.unwrap_or(0),
        monitor: options.datagrams.monitor.into(),
        receive_buffer: options.datagrams.receive_buffer.unwrap_or(0),
        equal: options.striping == Striping::Equal,
        existing: options.existing.into(),
        same: options.same.into(),
        archive: options.archive,
        dry_run: options.dry_run,
        lists: options.lists,
        delete: options.delete,
        delete_all: options.delete_all || has_source_name(&request.nodes),
        as_scanned: options.as_scanned,
        all_or_nothing: options.incomplete == Incomplete::Removed,
        hard_links: options.hard_links,
        stays: options.stays.into(),
        delta: options.delta,
        verify_kept: options.verify_kept,
        compares: options.compares,
        ending_wait_seconds: options.wait.ending_seconds(),
    };
    let hint = |known: &[Option<u64>], at: usize| known.get(at).copied().flatten().map(ByteRate);
    let mut nodes: Vec<NodeSetup> = request
        .nodes
        .iter()
        .enumerate()
        .map(|(at, node)| NodeSetup {
            remembered_up: hint(&before.hints.up, at),
            remembered_down: hint(&before.hints.down, at),
            ..node_setup(node, &request.nodes, request.mapping)
        })
        .collect();
    for sink in nodes.iter_mut().flat_map(|node| &mut node.sinks) {
        sink.sink.checksums = options.checksums.clone().unwrap_or_default();
    }
    let setup = Setup {
        transfer: id.as_bytes().to_vec(),
        nodes,
        mapping: request.mapping,
        limit: options.limit.map(ByteRate),
        options: options_message,
        rails: options.rails.clone(),
        tune: options.tuned_by(),
        lessons: before.lessons.clone(),
        incomplete: options.incomplete,
        filter: options.filter.iter().map(filter_rule).collect(),
        files: options.files.as_ref().map(|files| control::FileList {
            names: files.names.clone(),
            recursive: files.is_recursive,
        }),
        links: request.links.clone(),
        source_name: source_name(&request.nodes),
        relay: options.relay,
    };
    (setup, sources)
}

fn filter_rule(rule: &FilterRule) -> control::FilterRule {
    control::FilterRule {
        include: rule.is_include,
        pattern: rule.pattern.clone(),
    }
}

/// The last part of the sources' paths, when all of them have one and the same; rows are named by their whole paths.
fn source_name(nodes: &[NodeRequest]) -> String {
    let mut names = nodes.iter().flat_map(|node| &node.sources).map(|source| {
        match (&source.object, source.rows.is_empty()) {
            (Object::Path(path), true) => path
                .split(|byte| *byte == b'/')
                .rfind(|part| !part.is_empty() && *part != b"."),
            _ => None,
        }
    });
    let first = names.next().flatten().unwrap_or_default();
    match names.all(|name| name == Some(first)) {
        true => String::from_utf8_lossy(first).into_owned(),
        false => String::new(),
    }
}
