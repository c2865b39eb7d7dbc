//! The page of `top --web`: what it shows of all transfers, and the script that asks for that again.

use std::fmt::Write as _;

use ropewalk_model::{format_bytes, format_seconds};
use ropewalk_proto::report::BottleneckReport;
use ropewalk_proto::top::{NodeRow, TopReport, TransferRow};

use super::layout::{headline, progress, subject, unreached};
use crate::html::{self, fill, table, text};
use crate::progress::rate;
use crate::report::{advice, cause_name};

/// What this page has beyond those of reports: dark where the browser is, and a bar of shares.
const OWN_STYLE: &str = ":root{color-scheme:light dark}h1{margin-bottom:4px}h2{margin-top:36px;overflow-wrap:anywhere}p{margin:4px 0}\
table{margin:10px 0}progress{width:100%;height:14px}svg.bar{display:block;height:14px;margin:8px 0 4px}.old main{opacity:.4}#old{display:none;color:#b00020}\
.old #old{display:block}.error{color:#b00020}td{overflow-wrap:anywhere}h2.more{font-size:15px}\
@media(prefers-color-scheme:dark){body{background:#14181d;color:#dfe5ea}td,th{border-color:#39424b}#old,.error{color:#ff8a80}}\
@media(max-width:520px){ul.key{columns:1}td,th{padding-right:8px}}";

/// Asks for what changes once a second. Where there is no answer what was there stays, and that is said.
pub(super) const SCRIPT: &str = "const main=document.querySelector('main');async function look(){try{const got=await fetch('/view',{cache:'no-store'});\
if(!got.ok)throw new Error(got.status);main.innerHTML=await got.text();document.body.className='new'}catch{document.body.className='old'}\
setTimeout(look,1000)}setTimeout(look,1000);";

/// The style of the page.
pub(super) fn style() -> String {
    format!("{}{OWN_STYLE}", html::STYLE)
}

/// The whole page.
pub(super) fn page(report: &TopReport) -> String {
    let style = style();
    let version = text(ropewalk_proto::version::version());
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width\"/>\n\
         <title>ropewalk top</title>\n<style>{style}</style>\n</head>\n<body>\n<h1>ropewalk top</h1>\n\
         <p id=\"old\">`ropewalk top --web` does not answer; this is what was seen last.</p>\n<main>\n{}</main>\n<p>ropewalk {version}</p>\n\
         <script>{SCRIPT}</script>\n</body>\n</html>\n",
        view(report)
    )
}

/// What changes of it.
pub(super) fn view(report: &TopReport) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut out, report);
    out
}

fn write(out: &mut String, report: &TopReport) -> std::fmt::Result {
    if let Some(headline) = headline(report) {
        writeln!(out, "<p>{}</p>", text(&headline))?;
    }
    for place in report.places.iter().filter(|place| place.error.is_some()) {
        writeln!(out, "<p class=\"error\">{}</p>", text(&unreached(place)))?;
    }
    for row in &report.transfers {
        transfer(out, row)?;
    }
    match report.transfers_more {
        0 => Ok(()),
        more => writeln!(out, "<p>and {more} more</p>"),
    }
}

fn transfer(out: &mut String, row: &TransferRow) -> std::fmt::Result {
    writeln!(
        out,
        "<h2>{}</h2>\n<p>for {}: {}</p>",
        text(&subject(row)),
        format_seconds(row.seconds),
        text(&progress(row))
    )?;
    if let Some(total) = row.total_bytes.filter(|total| *total > 0) {
        writeln!(
            out,
            "<progress max=\"{total}\" value=\"{}\"></progress>",
            row.received_bytes.min(total)
        )?;
    }
    causes(out, &row.bottlenecks)?;
    let nodes = row.nodes.iter().map(node).collect();
    table(out, "", &["Node", "", "Bytes", "Of", "Rate"], nodes)?;
    match row.nodes_more {
        0 => Ok(()),
        more => writeln!(out, "<p>and {more} more nodes</p>"),
    }
}

fn node(node: &NodeRow) -> Vec<String> {
    vec![
        node.node.clone(),
        if node.sends { "sends" } else { "receives" }.into(),
        format_bytes(node.bytes),
        node.total_bytes.map(format_bytes).unwrap_or_default(),
        rate(node.bits_per_second),
    ]
}

/// What held it back: a bar of shares, their names, and what to do about the first.
fn causes(out: &mut String, causes: &[BottleneckReport]) -> std::fmt::Result {
    let Some(first) = causes.first() else {
        return Ok(());
    };
    out.push_str("<p>Held back by:</p>\n<svg class=\"bar\" viewBox=\"0 0 1000 14\" preserveAspectRatio=\"none\">\n");
    let mut x = 0.0;
    for (number, one) in causes.iter().enumerate() {
        let width = 1000.0 * one.share.clamp(0.0, 1.0);
        writeln!(
            out,
            "<rect x=\"{x:.1}\" y=\"0\" width=\"{width:.1}\" height=\"14\" {}/>",
            fill(number)
        )?;
        x += width;
    }
    out.push_str("</svg>\n<ul class=\"key\">\n");
    for (number, one) in causes.iter().enumerate() {
        writeln!(
            out,
            "<li><svg viewBox=\"0 0 26 12\"><rect width=\"26\" height=\"12\" {}/></svg>{}, {:.0} %</li>",
            fill(number),
            text(&cause_name(one)),
            one.share * 100.0
        )?;
    }
    // Whether it is encrypted is not known here.
    let advice = text(advice(first, false));
    writeln!(out, "</ul>\n<p>To do: {advice}</p>")
}

#[cfg(test)]
mod tests {
    use ropewalk_proto::report::BottleneckCause;
    use ropewalk_proto::top::PlaceRow;

    use super::*;

    const EVIL: &str = "<script>alert('&\"')</script>\u{1b}";

    /// All that is known is on the page, as text: no element that a name brought, nothing from elsewhere, no style or script of an element.
    #[test]
    fn what_others_named_stays_text() {
        let evil = || EVIL.to_owned();
        let row = TransferRow {
            transfer: Some(evil()),
            kind: evil(),
            label: Some(evil()),
            from: vec![evil()],
            to: vec![evil()],
            state: Some(evil()),
            total_bytes: Some(10),
            bottlenecks: vec![BottleneckReport {
                cause: BottleneckCause::Path,
                node: Some(evil()),
                peer: Some(evil()),
                rail: None,
                share: 0.5,
            }],
            nodes: vec![NodeRow {
                node: evil(),
                ..NodeRow::default()
            }],
            nodes_more: 2,
            ..TransferRow::default()
        };
        let report = TopReport {
            places: vec![PlaceRow {
                place: evil(),
                error: Some(evil()),
            }],
            transfers: vec![row],
            transfers_more: 3,
            ..TopReport::default()
        };
        let view = view(&report);
        for part in ["<script", "style=", "onclick", "\u{1b}", "http:", "src="] {
            assert!(!view.contains(part), "{part}\n{view}");
        }
        for part in [
            "&lt;script&gt;",
            "and 2 more nodes",
            "and 3 more<",
            "50 %",
            "see what lies between",
        ] {
            assert!(view.contains(part), "{part}\n{view}");
        }
        let page = page(&report);
        assert_eq!(page.matches("<script>").count(), 1);
        assert_eq!(page.matches("</script>").count(), 1);
        for part in ["http:", "https:", "src=", "@import", "url(", "style="] {
            assert!(!page.contains(part), "{part}");
        }
    }
}
