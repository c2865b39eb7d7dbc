//! What a dry run or a comparison lists, for people: a line for each name.

use ropewalk_model::format_bytes;
use ropewalk_proto::report::{Change, Event};

use crate::escape;

/// The line of an event of a dry run, without a newline; `None` for other events.
///
/// * `is_one_copy`: no destination needs a name.
pub(crate) fn listed_line(event: &Event, is_one_copy: bool) -> Option<String> {
    let Event::Listed {
        node,
        change,
        file,
        bytes,
    } = event
    else {
        return None;
    };
    let (act, size, end) = match change {
        Change::Send => ("send", format_bytes(*bytes), ""),
        Change::Make => ("make", String::new(), "/"),
        Change::Remove => ("remove", format_bytes(*bytes), ""),
        Change::RemoveFolder => ("remove", String::new(), "/"),
        Change::Missing => ("missing", String::new(), ""),
        Change::Extra => ("extra", String::new(), ""),
        Change::Kind => ("kind", String::new(), ""),
        Change::Size => ("size", String::new(), ""),
        Change::Contents => ("contents", String::new(), ""),
        Change::Metadata => ("metadata", String::new(), ""),
        Change::Unreadable => ("unreadable", String::new(), ""),
    };
    let node = match is_one_copy {
        true => String::new(),
        false => format!("{}: ", escape::line(node)),
    };
    let file = escape::name(file);
    Some(match change {
        Change::Send | Change::Make | Change::Remove | Change::RemoveFolder => {
            format!("{act:<6} {size:>8}  {node}{file}{end}")
        }
        _ => format!("{act:<10}  {node}{file}"),
    })
}
