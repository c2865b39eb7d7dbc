//! What a dry run lists, for people: a line for each name.

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
    };
    let node = match is_one_copy {
        true => String::new(),
        false => format!("{}: ", escape::line(node)),
    };
    Some(format!(
        "{act:<6} {size:>8}  {node}{}{end}",
        escape::line(file)
    ))
}
