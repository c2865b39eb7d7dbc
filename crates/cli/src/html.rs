//! What pages for browsers have in common: text that stays text, tables, colours. They ask for nothing from elsewhere.

use std::fmt::Write as _;

use crate::escape;

/// Rows of a table; JSON has all.
pub(crate) const ROWS_MAX: usize = 1000;

/// Distinct to colour-blind eyes; nodes and causes beyond these have dashes, or a lighter shade.
pub(crate) const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f6000", "#555555",
];

pub(crate) fn colour(at: usize) -> &'static str {
    COLOURS[at % COLOURS.len()]
}

/// A colour for this number, as attributes of SVG.
pub(crate) fn fill(number: usize) -> String {
    let opacity = if number < COLOURS.len() { 1.0 } else { 0.5 };
    format!("fill=\"{}\" fill-opacity=\"{opacity}\"", colour(number))
}

/// Text as a page shows it, whatever it holds.
pub(crate) fn text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in escape::line(text).chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            letter => out.push(letter),
        }
    }
    out
}

pub(crate) const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:960px;margin:24px auto;padding:0 16px;color:#1c2430}\
h1{font-size:22px}h2{font-size:17px;margin:28px 0 8px}pre{background:#f3f5f7;padding:10px 12px;white-space:pre-wrap;font-size:13px}\
table{border-collapse:collapse;font-size:13px}td,th{padding:3px 14px 3px 0;text-align:left;border-bottom:1px solid #dde2e7}\
td.n,th.n{text-align:right}svg{width:100%;height:auto;font:12px system-ui,sans-serif}ul.key{list-style:none;padding:0;columns:2;font-size:13px}\
ul.key svg{width:26px;height:12px;vertical-align:middle;margin-right:6px}";

/// A table with its title, if it has one; nothing where it has no rows.
///
/// * `title`, `columns`: text of this program, which is not escaped.
pub(crate) fn table(
    out: &mut String,
    title: &str,
    columns: &[&str],
    rows: Vec<Vec<String>>,
) -> std::fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    // Names first, numbers after them.
    let class = |cell: &str| match cell.starts_with(|first: char| first.is_ascii_digit()) {
        true => " class=\"n\"",
        false => "",
    };
    if !title.is_empty() {
        writeln!(out, "<h2>{title}</h2>")?;
    }
    write!(out, "<table>\n<tr>")?;
    for column in columns {
        write!(out, "<th>{column}</th>")?;
    }
    out.push_str("</tr>\n");
    let more = rows.len().saturating_sub(ROWS_MAX);
    for row in rows.into_iter().take(ROWS_MAX) {
        out.push_str("<tr>");
        for (at, cell) in row.iter().enumerate() {
            let class = if at == 0 { "" } else { class(cell) };
            write!(out, "<td{class}>{}</td>", text(cell))?;
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table>\n");
    if more > 0 {
        writeln!(out, "<p>and {more} more</p>")?;
    }
    Ok(())
}
