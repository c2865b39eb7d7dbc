//! Rows `cap` and `trunk`: what pairs of nodes, and links that several pairs share, can carry.
//!
//! ```text
//! cap    a[1-4]:7420 b1:7420 1Gbit               each of the four pairs, in this direction
//! trunk  wan 10Gbit from a[1-4] to b[1-4]        all of them together; a host alone is every node on it
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range as Span;

use super::address::AddressError;
use super::lex::Word;
use super::parse::{Errors, Fault};
use super::{HostPort, Role, TransferSpec, is_host};
use crate::host_list;
use crate::link::{Link, NodeSet};
use crate::units::ByteRate;

/// Pairs that caps may name together: more are a slip, and a trunk says it shorter.
const PAIRS_MAX: usize = 1_000_000;

/// Nodes that caps and trunks may name in all, each list written out: some hundred bytes of memory for each.
pub(super) const NODES_MAX: usize = 1_000_000;

pub(super) const CAP_FORM: &str = "write cap FROM TO RATE, as in cap a:7420 b:7420 1Gbit";
pub(super) const TRUNK_FORM: &str =
    "write trunk NAME RATE from NODES to NODES, as in trunk wan 10Gbit from a[1-4] to b[1-4]";

/// Where the parts of a row stand.
pub(super) struct LinkSpans {
    pub all: Span<usize>,
    pub name: Span<usize>,
    pub from: Span<usize>,
    pub to: Span<usize>,
}

/// Name of a trunk, rate, from, to.
type Parts<'w> = (Option<&'w Word>, &'w Word, &'w Word, &'w Word);

/// The words of a row that matter.
pub(super) fn parts<'w>(keyword: &'w Word, rest: &'w [Word]) -> Result<Parts<'w>, Box<Fault>> {
    if keyword.text == "cap" {
        return match rest {
            [from, to, rate] => Ok((None, rate, from, to)),
            [_, _, _, more, ..] => {
                let fault = Fault::new(more.span.clone(), "a cap row ends with its rate");
                Err(Box::new(fault.label("one field too many").advice(CAP_FORM)))
            }
            _ => {
                let missing = ["the node that sends", "the node that receives", "rate"];
                Err(short(keyword, rest, missing[rest.len()], CAP_FORM))
            }
        };
    }
    let columns = [
        "name",
        "rate",
        "from",
        "nodes that send",
        "to",
        "nodes that receive",
    ];
    if let [_, from, ..] = rest
        && from.text == "from"
    {
        return Err(short(keyword, &rest[..1], columns[1], TRUNK_FORM));
    }
    for (at, word) in [(2, "from"), (4, "to")] {
        if let Some(found) = rest.get(at).filter(|found| found.text != word) {
            let message = format!("a trunk row without \"{word}\"");
            let fault = Fault::new(found.span.clone(), message);
            let fault = fault.label(format!("\"{word}\" expected here"));
            return Err(Box::new(fault.advice(TRUNK_FORM)));
        }
    }
    match rest {
        [name, rate, _, from, _, to] => Ok((Some(name), rate, from, to)),
        [_, _, _, _, _, _, more, ..] => {
            let fault = Fault::new(
                more.span.clone(),
                "a trunk row ends with the nodes that receive",
            );
            let fault = fault.label("one field too many");
            Err(Box::new(fault.advice(
                "one field lists all of them, without spaces: b[1-4],c",
            )))
        }
        _ => Err(short(keyword, rest, columns[rest.len()], TRUNK_FORM)),
    }
}

fn short(keyword: &Word, rest: &[Word], missing: &str, form: &str) -> Box<Fault> {
    let last = rest.last().unwrap_or(keyword);
    let fault = Fault::new(
        last.span.clone(),
        format!("{} row without {missing}", keyword.text),
    );
    let fault = fault.label(format!("{missing} expected after this"));
    Box::new(fault.advice(form))
}

/// Nodes and hosts of a list.
pub(super) fn node_set(word: &Word) -> Result<NodeSet, Box<Fault>> {
    let sentence = |text: String| Box::new(Fault::from_sentence(word.span.clone(), &text));
    let mut set = NodeSet::default();
    let listed = host_list::expand(&word.text).map_err(|error| sentence(error.to_string()))?;
    for item in listed {
        match item.parse::<HostPort>() {
            Ok(at) => {
                set.nodes.insert(at.to_string());
            }
            Err(AddressError::NoPort(_)) => {
                let bare = item
                    .strip_prefix('[')
                    .and_then(|rest| rest.strip_suffix(']'));
                let host = bare.unwrap_or(&item);
                if !is_host(host) {
                    return Err(sentence(AddressError::BadHost(item).to_string()));
                }
                set.hosts.insert(host.to_owned());
            }
            Err(error) => return Err(sentence(error.to_string())),
        }
    }
    Ok(set)
}

/// Why a rate is no limit.
pub(super) fn check_rate(rate: ByteRate, word: &Word) -> Option<Fault> {
    (rate.0 == 0).then(|| {
        let fault = Fault::new(word.span.clone(), "a link of rate 0 carries nothing");
        fault.advice("write a rate above 0, or take the row out")
    })
}

/// What the rows say together with those of the nodes.
///
/// `complete` is false when some rows could not be read: nodes that seem to be missing may be among them.
pub(super) fn check(
    spec: &TransferSpec,
    spans: &[LinkSpans],
    errors: &mut Errors<'_>,
    complete: bool,
) {
    check_trunk_names(spec, spans, errors);
    if !complete || spec.links.is_empty() {
        return;
    }
    let names = |role: Role| -> Names {
        let rows = spec.rows.iter().filter(|row| row.role == role);
        rows.map(|row| (row.host_port.to_string(), row.host_port.host.clone()))
            .collect()
    };
    let (writers, readers) = (names(Role::Writer), names(Role::Reader));
    let mut capped: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (at, link) in spec.links.iter().enumerate() {
        let Some((senders, receivers)) = ends(link, &spans[at], &writers, &readers, errors) else {
            continue;
        };
        if link.trunk.is_some() {
            check_trunk_ends(&senders, &receivers, &spans[at], errors);
            continue;
        }
        let more = senders.len().saturating_mul(receivers.len());
        if capped.len().saturating_add(more) > PAIRS_MAX {
            let message = format!("caps of more than {PAIRS_MAX} pairs");
            let fault = Fault::new(spans[at].all.clone(), message);
            errors.push(fault.advice("say what they share in a trunk row"));
            return;
        }
        let pairs = senders
            .iter()
            .flat_map(|s| receivers.iter().map(move |r| (*s, *r)));
        for (sender, receiver) in pairs.filter(|(s, r)| s != r) {
            let first = *capped.entry((sender, receiver)).or_insert(at);
            if first != at {
                let message = format!("a second cap from {sender} to {receiver}");
                let fault = Fault::new(spans[at].all.clone(), message).label("again here");
                let fault = fault.related(spans[first].all.clone(), "first here");
                errors.push(fault.advice("keep one of them"));
                break;
            }
        }
    }
}

/// Hosts of nodes by the nodes' names.
type Names = BTreeMap<String, String>;

fn check_trunk_names(spec: &TransferSpec, spans: &[LinkSpans], errors: &mut Errors<'_>) {
    let mut trunks: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, link) in spec.links.iter().enumerate() {
        let Some(name) = &link.trunk else { continue };
        let first = *trunks.entry(name).or_insert(at);
        if first != at {
            let fault = Fault::new(spans[at].name.clone(), format!("a second trunk \"{name}\""));
            let fault = fault
                .label("again here")
                .related(spans[first].name.clone(), "first here");
            errors.push(fault.advice("give each trunk, and each direction of one, its own name"));
        }
    }
}

/// The writers and the readers that a link joins; `None`, and an error, where it joins none.
fn ends<'n>(
    link: &Link,
    spans: &LinkSpans,
    writers: &'n Names,
    readers: &'n Names,
    errors: &mut Errors<'_>,
) -> Option<(Vec<&'n str>, Vec<&'n str>)> {
    let before = errors.count();
    for (set, span) in [(&link.from, &spans.from), (&link.to, &spans.to)] {
        unknown(set, span, [writers, readers], errors);
    }
    if errors.count() > before {
        return None;
    }
    let senders: Vec<&str> = members(&link.from, writers);
    let receivers: Vec<&str> = members(&link.to, readers);
    let sides = [
        (&senders, &spans.from, "writer", "sends"),
        (&receivers, &spans.to, "reader", "receives"),
    ];
    for (found, span, role, does) in sides {
        if found.is_empty() {
            let message = format!("no node here is a {role}, so that none {does} anything");
            let fault = Fault::new(span.clone(), message);
            errors.push(fault.advice(
                "links go from writers to readers, in this direction only; swap the two, or take the row out",
            ));
        }
    }
    if senders.is_empty() || receivers.is_empty() {
        return None;
    }
    if let ([sender], [receiver]) = (senders.as_slice(), receivers.as_slice())
        && sender == receiver
    {
        let fault = Fault::new(
            spans.from.start..spans.to.end,
            "a link from a node to itself",
        );
        errors.push(fault.advice("a node's bytes to itself cross no link; take the row out"));
        return None;
    }
    Some((senders, receivers))
}

fn check_trunk_ends(
    senders: &[&str],
    receivers: &[&str],
    spans: &LinkSpans,
    errors: &mut Errors<'_>,
) {
    if let Some(both) = senders.iter().find(|name| receivers.contains(name)) {
        let message = format!("{both} is at both ends of the trunk");
        let fault = Fault::new(spans.from.start..spans.to.end, message);
        errors.push(fault.advice(
            "a node's bytes to itself cross no trunk; name at one end only nodes that are not at the other",
        ));
    }
}

fn members<'n>(set: &crate::link::NodeSet, names: &'n BTreeMap<String, String>) -> Vec<&'n str> {
    let here = names
        .iter()
        .filter(|(name, host)| set.nodes.contains(*name) || set.hosts.contains(*host));
    here.map(|(name, _)| name.as_str()).collect()
}

/// Names that stand in no row.
fn unknown(set: &NodeSet, span: &Span<usize>, rows: [&Names; 2], errors: &mut Errors<'_>) {
    let hosts: BTreeSet<&String> = rows.iter().flat_map(|rows| rows.values()).collect();
    let is_node = |name: &&String| !rows.iter().any(|rows| rows.contains_key(*name));
    let nodes = set.nodes.iter().filter(is_node);
    let missing: Vec<&String> = nodes
        .chain(set.hosts.iter().filter(|host| !hosts.contains(host)))
        .collect();
    if let Some(first) = missing.first() {
        let more = match missing.len() {
            1 => String::new(),
            count => format!(", nor {} more", count - 1),
        };
        let fault = Fault::new(span.clone(), format!("no row has a node {first}{more}"));
        errors.push(fault.label("not known").advice(
            "name nodes as writer and reader rows do, host:port, or a host alone for all nodes on it",
        ));
    }
}
