//! What the rows say together: contradictions that no single row shows.

use std::collections::HashMap;
use std::ops::Range as Span;

use super::parse::{Errors, Fault, RowSpans};
use super::{HostPort, Role, Row, TransferSpec, Uri};
use crate::range::Range;

/// Largest offset a file can have: offsets are signed 64-bit numbers to the operating system.
const FILE_END_MAX: u64 = i64::MAX as u64;

/// Adds every contradiction between the rows to `errors`.
///
/// `complete` is false when some rows could not be read: what seems to be missing may be among them.
pub(super) fn check(
    spec: &TransferSpec,
    spans: &[RowSpans],
    errors: &mut Errors<'_>,
    complete: bool,
) {
    for (row, span) in spec.rows.iter().zip(spans) {
        check_extent(row, span, errors);
    }
    check_nodes(spec, spans, errors);
    check_objects(spec, spans, errors);
    if !complete {
        return;
    }
    for (role, what) in [(Role::Writer, "has"), (Role::Reader, "wants")] {
        if !spec.rows.iter().any(|row| row.role == role) {
            let fault = Fault::new(0..0, format!("no {role} row: nobody {what} any data"));
            let advice = format!("add a row {role} host:port \"file:///path\" OFFSET START-END");
            errors.push(fault.advice(advice));
        }
    }
}

/// The object must be able to hold the row's bytes.
fn check_extent(row: &Row, span: &RowSpans, errors: &mut Errors<'_>) {
    let end = row.file_offset.checked_add(row.range.len());
    let (limit, what) = match row.uri {
        Uri::Memory(size) => (size.0, format!("the {} bytes of {}", size.0, row.uri)),
        Uri::File(_) | Uri::Null => (FILE_END_MAX, "2^63, where files end".to_owned()),
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

/// One object, as seen by everybody who shares it: a shared destination has one file of each name.
type ObjectKey<'s> = (Role, Result<&'s HostPort, &'s str>, &'s Uri);

/// Rows of one object must agree on which byte of the data space lies where in it.
fn check_objects(spec: &TransferSpec, spans: &[RowSpans], errors: &mut Errors<'_>) {
    let mut objects: HashMap<ObjectKey<'_>, Vec<usize>> = HashMap::new();
    let mut order: Vec<ObjectKey<'_>> = Vec::new();
    for (index, row) in spec.rows.iter().enumerate() {
        if matches!(row.uri, Uri::Null) || row.range.is_empty() {
            continue;
        }
        let owner = match &row.hints.destination {
            Some(destination) => Err(destination.as_str()),
            None => Ok(&row.host_port),
        };
        let key = (row.role, owner, &row.uri);
        let rows = objects.entry(key).or_insert_with(|| {
            order.push(key);
            Vec::new()
        });
        rows.push(index);
    }
    for key in order {
        let rows = objects.get(&key).map_or(&[][..], Vec::as_slice);
        // A source must not show one byte of the data space at two places; a sink must not take two
        // bytes of the data space at one place.
        let (extent, message): (fn(&Row) -> Range, _) = match key.0 {
            Role::Writer => (
                |row| row.range,
                "the same bytes of the data space at two places of one source",
            ),
            Role::Reader => (
                |row| {
                    Range::new(
                        row.file_offset,
                        row.file_offset.saturating_add(row.range.len()),
                    )
                },
                "different bytes of the data space at one place of the destination",
            ),
        };
        if let Some((row, other)) = first_conflict(spec, rows, extent) {
            let fault = Fault::new(columns(&spans[row]), message).label("disagrees");
            let fault = fault.related(columns(&spans[other]), "with this row");
            let advice = "offset in file less start of range must be equal where rows overlap; check both columns";
            errors.push(fault.advice(advice));
        }
    }
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
    let shift = |row: usize| {
        let row = &spec.rows[row];
        i128::from(row.file_offset) - i128::from(row.range.start)
    };
    // While no conflict is found, all rows of one overlapping run share a shift, so it is enough to
    // compare with the row that reaches furthest.
    let mut furthest: Option<usize> = None;
    for row in sorted {
        let here = extent(&spec.rows[row]);
        let Some(far) = furthest else {
            furthest = Some(row);
            continue;
        };
        let reach = extent(&spec.rows[far]);
        if here.overlaps(reach) && shift(row) != shift(far) {
            return Some((row.max(far), row.min(far)));
        }
        if here.end > reach.end {
            furthest = Some(row);
        }
    }
    None
}
