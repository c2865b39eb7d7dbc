//! What the rows say together: contradictions that no single row shows.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range as Span;

use super::parse::{Errors, Fault, RowSpans, Scope};
use super::{HostPort, Role, Row, TransferSpec, Uri};
use crate::range::{Range, RangeSet};

/// Largest offset a file can have: offsets are signed 64-bit numbers to the operating system.
const FILE_END_MAX: u64 = i64::MAX as u64;

/// Adds every contradiction between the rows to `errors`.
///
/// `complete` is false when some rows could not be read: what seems to be missing may be among them.
pub(super) fn check(
    spec: &TransferSpec,
    spans: &[RowSpans],
    errors: &mut Errors<'_>,
    scope: Scope,
    complete: bool,
) {
    for (row, span) in spec.rows.iter().zip(spans) {
        check_extent(row, span, errors);
    }
    check_nodes(spec, spans, errors);
    check_objects(spec, spans, errors);
    check_halves(spec, spans, errors);
    if !complete {
        return;
    }
    if scope == Scope::Added {
        if spec.rows.is_empty() {
            let fault = Fault::new(0..0, "no row: no node joins");
            let advice = "add a row writer or reader, as in a specification file";
            errors.push(fault.advice(advice));
        }
        return;
    }
    check_covered(spec, spans, errors);
    for (role, what) in [(Role::Writer, "has"), (Role::Reader, "wants")] {
        if !spec.rows.iter().any(|row| row.role == role) {
            let fault = Fault::new(0..0, format!("no {role} row: no node {what} any data"));
            let advice = format!("add a row {role} host:port \"file:///path\" OFFSET START-END");
            errors.push(fault.advice(advice));
        }
    }
}

/// Each byte that a reader wants must be some writer's.
fn check_covered(spec: &TransferSpec, spans: &[RowSpans], errors: &mut Errors<'_>) {
    const SHOWN: usize = 3;
    let writers = spec.rows.iter().filter(|row| row.role == Role::Writer);
    let held = RangeSet::from_ranges(writers.map(|row| row.range));
    // Without any writer that is what is said.
    if held.is_empty() && !spec.rows.iter().any(|row| row.role == Role::Writer) {
        return;
    }
    let readers = spec
        .rows
        .iter()
        .zip(spans)
        .filter(|(row, _)| row.role == Role::Reader);
    for (row, span) in readers {
        let lacking = RangeSet::from(row.range).difference(&held);
        if lacking.is_empty() {
            continue;
        }
        let runs = lacking.iter().take(SHOWN);
        let mut runs: Vec<String> = runs
            .map(|run| format!("{}-{}", run.start, run.end - 1))
            .collect();
        match lacking.as_slice().len().saturating_sub(SHOWN) {
            0 => {}
            more => runs.push(format!("{more} more ranges")),
        }
        let message = format!("no writer holds bytes {}", runs.join(", "));
        let fault = Fault::new(span.range.clone(), message).label("wanted here");
        errors.push(fault.advice("add a writer row that holds them, or ask for less"));
    }
}

/// The object must be able to hold the row's bytes.
fn check_extent(row: &Row, span: &RowSpans, errors: &mut Errors<'_>) {
    let end = row.file_offset.checked_add(row.range.len());
    let (limit, what) = match row.uri {
        Uri::Memory(size) => (size.0, format!("the {} bytes of {}", size.0, row.uri)),
        // How long a buffer is its agent knows.
        Uri::File(_) | Uri::Buffer(_) | Uri::Null => {
            (FILE_END_MAX, "2^63, where files end".to_owned())
        }
    };
    if end.is_some_and(|end| end <= limit) {
        return;
    }
    let length = row.range.len();
    let message = format!(
        "offset {} and {length} bytes reach beyond {what}",
        row.file_offset
    );
    let fault = Fault::new(span.file_offset.start..span.range.end, message);
    let fault = fault.label("offset in file, range");
    errors.push(fault.advice(
        "the offset is that of the range's first byte in the object; lower it or the range",
    ));
}

/// Rows of one node must agree on what they say about the node.
fn check_nodes(spec: &TransferSpec, spans: &[RowSpans], errors: &mut Errors<'_>) {
    let mut first_rows: HashMap<(Role, &HostPort), usize> = HashMap::new();
    for (index, row) in spec.rows.iter().enumerate() {
        let first = *first_rows
            .entry((row.role, &row.host_port))
            .or_insert(index);
        if first == index {
            continue;
        }
        let other = &spec.rows[first];
        let place = |spans: &RowSpans| match (spans.hints.first(), spans.hints.last()) {
            (Some(from), Some(to)) => from.start..to.end,
            _ => spans.all.clone(),
        };
        let mut report = |message: String, advice: &str| {
            let fault = Fault::new(place(&spans[index]), message).label("here");
            let fault = fault.related(place(&spans[first]), "first row of the node");
            errors.push(fault.advice(advice));
        };
        let speeds = [
            ("up", row.hints.up, other.hints.up),
            ("down", row.hints.down, other.hints.down),
        ];
        for (key, here, there) in speeds {
            if let (Some(here), Some(there)) = (here, there)
                && here != there
            {
                let node = &row.host_port;
                report(
                    format!("{node} has two values of {key}: {there} and {here}"),
                    "rows with one Host:Port are one node with one speed; say it once",
                );
            }
        }
        if row.role == Role::Reader && row.hints.destination != other.hints.destination {
            report(
                format!("rows of {} differ in dest=", row.host_port),
                "a node belongs to one destination; give every row of it the same dest=",
            );
        }
    }
}

/// Who shares a view of objects: a node, or everybody at a shared destination, or all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Owner<'s> {
    Node(&'s HostPort),
    Destination(&'s str),
    Everybody,
}

/// What rows have in common that are compared: who owns the object, and which it is.
type Group<'s> = (Owner<'s>, Option<&'s Uri>);

/// A rule about where rows may put bytes: within a group, rows that overlap must agree on the place.
struct Rule<'s> {
    role: Role,
    /// The rows to compare with each other; `None` leaves a row out.
    group: fn(&'s Row) -> Option<Group<'s>>,
    /// What must overlap for two rows to concern each other.
    extent: fn(&Row) -> Range,
    message: &'static str,
    advice: &'static str,
}

/// Rows must agree on which byte of the data space lies where.
fn check_objects(spec: &TransferSpec, spans: &[RowSpans], errors: &mut Errors<'_>) {
    const SHIFT: &str =
        "offset in file less start of range must be equal where rows overlap; check both columns";
    let rules = [
        // A source must not show one byte of the data space at two places.
        Rule {
            role: Role::Writer,
            group: |row| Some((Owner::Node(&row.host_port), Some(&row.uri))),
            extent: |row| row.range,
            message: "the same bytes of the data space at two places of one source",
            advice: SHIFT,
        },
        // Files of one name on several nodes are taken for replicas: then they agree on the place, too.
        Rule {
            role: Role::Writer,
            group: |row| {
                matches!(row.uri, Uri::File(_)).then_some((Owner::Everybody, Some(&row.uri)))
            },
            extent: |row| row.range,
            message: "replicas of one file disagree on where its bytes lie",
            advice: "where rows of one URI overlap, offset in file less start of range must be equal; \
                     if these are different files, give them different paths",
        },
        // A sink must not take two bytes of the data space at one place.
        Rule {
            role: Role::Reader,
            group: |row| Some((owner(row), Some(&row.uri))),
            extent: file_extent,
            message: "different bytes of the data space at one place of the destination",
            advice: SHIFT,
        },
        // A byte goes to a destination once, so it cannot land in two places of it.
        Rule {
            role: Role::Reader,
            group: |row| Some((owner(row), None)),
            extent: |row| row.range,
            message: "the same bytes of the data space for two places of one destination",
            advice: "a node, or a shared destination, takes each byte once; \
                     for a second copy use another agent, with its own Host:Port and no common dest=",
        },
    ];
    let mut reported: HashSet<(usize, usize)> = HashSet::new();
    for rule in rules {
        for (row, other) in conflicts(spec, &rule) {
            if !reported.insert((row, other)) {
                continue;
            }
            let fault = Fault::new(columns(&spans[row]), rule.message).label("disagrees");
            let fault = fault.related(columns(&spans[other]), "with this row");
            errors.push(fault.advice(rule.advice));
        }
    }
}

/// Readers of one host, whatever their ports, see one file system. Where two name one path, want different ranges and share no
/// destination, each would make a file of its own that lacks the other's part, and the last one would stay. Readers of
/// different hosts are found out by their agents.
fn check_halves(spec: &TransferSpec, spans: &[RowSpans], errors: &mut Errors<'_>) {
    // Per host and path: each node's first row there and all of its ranges.
    type Halves<'s> = HashMap<&'s HostPort, (usize, BTreeSet<(Range, u64)>)>;
    let mut files: HashMap<(&str, &Uri), Halves<'_>> = HashMap::new();
    let mut order: Vec<(&str, &Uri)> = Vec::new();
    let is_file = |row: &&Row| row.role == Role::Reader && matches!(row.uri, Uri::File(_));
    for (index, row) in spec.rows.iter().enumerate().filter(|(_, r)| is_file(r)) {
        let file = (row.host_port.host.as_str(), &row.uri);
        let halves = files.entry(file).or_insert_with(|| {
            order.push(file);
            HashMap::new()
        });
        let (_, ranges) = halves
            .entry(&row.host_port)
            .or_insert_with(|| (index, BTreeSet::new()));
        ranges.insert((row.range, row.file_offset));
    }
    for file in order {
        let mut nodes: Vec<&(usize, BTreeSet<(Range, u64)>)> = files[&file].values().collect();
        nodes.sort_by_key(|(first, _)| *first);
        let mut others = nodes.iter().skip(1);
        let (first, ranges) = nodes[0];
        let differs = |(row, other): &&&(usize, BTreeSet<(Range, u64)>)| {
            let names = [*first, *row].map(|at| &spec.rows[at].hints.destination);
            other != ranges && (names[0].is_none() || names[0] != names[1])
        };
        if let Some((row, _)) = others.find(differs) {
            let fault = Fault::new(
                columns(&spans[*row]),
                "different ranges of one file for readers that do not share it",
            );
            let fault = fault.label("another file of this name, without the other's part");
            let fault = fault.related(
                columns(&spans[*first]),
                "first reader of this path on this host",
            );
            errors.push(fault.advice(
                "say dest=NAME in the rows of both if they are one file, or give different paths",
            ));
        }
    }
}

fn owner(row: &Row) -> Owner<'_> {
    match &row.hints.destination {
        Some(destination) => Owner::Destination(destination),
        None => Owner::Node(&row.host_port),
    }
}

fn file_extent(row: &Row) -> Range {
    Range::new(
        row.file_offset,
        row.file_offset.saturating_add(row.range.len()),
    )
}

/// The first conflict of each group, in the order of the groups' first rows.
fn conflicts<'s>(spec: &'s TransferSpec, rule: &Rule<'s>) -> Vec<(usize, usize)> {
    let mut groups: HashMap<Group<'s>, usize> = HashMap::new();
    let mut members: Vec<Vec<usize>> = Vec::new();
    for (index, row) in spec.rows.iter().enumerate() {
        if row.role != rule.role || row.range.is_empty() {
            continue;
        }
        if let Some(group) = (rule.group)(row) {
            let at = *groups.entry(group).or_insert(members.len());
            if at == members.len() {
                members.push(Vec::new());
            }
            members[at].push(index);
        }
    }
    let conflicts = members.iter();
    conflicts
        .filter_map(|rows| first_conflict(spec, rows, rule.extent))
        .collect()
}

fn columns(spans: &RowSpans) -> Span<usize> {
    spans.uri.start..spans.range.end
}

/// The first two rows that overlap in `extent` and map it differently; the later row first.
fn first_conflict(
    spec: &TransferSpec,
    rows: &[usize],
    extent: fn(&Row) -> Range,
) -> Option<(usize, usize)> {
    let mut sorted = rows.to_vec();
    sorted.sort_by_key(|&row| (extent(&spec.rows[row]), row));
    let place = |row: usize| {
        let row = &spec.rows[row];
        let shift = match row.uri {
            // What goes nowhere is nowhere in particular.
            Uri::Null => 0,
            _ => i128::from(row.file_offset) - i128::from(row.range.start),
        };
        (&row.uri, shift)
    };
    // While no conflict is found, all rows of one overlapping run share a place, so it is enough to
    // compare with the row that reaches furthest.
    let mut furthest: Option<usize> = None;
    for row in sorted {
        let here = extent(&spec.rows[row]);
        let Some(far) = furthest else {
            furthest = Some(row);
            continue;
        };
        let reach = extent(&spec.rows[far]);
        if here.overlaps(reach) && place(row) != place(far) {
            return Some((row.max(far), row.min(far)));
        }
        if here.end > reach.end {
            furthest = Some(row);
        }
    }
    None
}
