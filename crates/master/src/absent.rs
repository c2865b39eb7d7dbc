//! Nodes that were not reached: leaves out what the transfer can do without.

use ropewalk_model::RangeSet;
use ropewalk_proto::absence::{self, Node};
use ropewalk_proto::report::ErrorKind;

use crate::reach::{self, Answers, Reached};
use crate::request::{Mapping, NodeRequest, Object, ObjectRequest, Reach, Request, Sources};

/// Nodes that take part, and others.
pub(crate) struct Present {
    pub reached: Vec<Reached>,
    /// Names of those that are left out.
    pub absent: Vec<String>,
    /// Why, for each of them.
    pub notes: Vec<String>,
}

/// The nodes that were reached, and a note for each other one, which then is no part of the request.
///
/// # Errors
/// Why not, in words for the user, and of which kind it is; everything that was reached is sent away.
pub(crate) async fn leave_out(
    request: &mut Request,
    answers: Answers,
) -> Result<Present, (ErrorKind, String)> {
    let nodes: Vec<Node> = request
        .nodes
        .iter()
        .zip(&answers)
        .map(|(node, answer)| describe(node, answer.is_ok()))
        .collect();
    let sources = match request.mapping {
        Mapping::Rows => absence::Sources::Rows,
        Mapping::Trees { sources, .. } => match sources {
            Sources::Auto => absence::Sources::Unknown,
            Sources::Replicas => absence::Sources::Replicas,
            Sources::Parts => absence::Sources::Parts,
        },
    };
    if let Err(advice) = absence::may_be_left_out(&nodes, sources, request.options.require_all) {
        let mut text = reach::describe(answers.iter().filter_map(|a| a.as_ref().err()));
        if let Some(advice) = advice {
            text = format!("{text}\n{advice}");
        }
        let kind = kind_of(&request.nodes, &answers);
        reach::send_away(answers.into_iter().flatten().collect()).await;
        return Err((kind, text));
    }
    let (mut reached, mut absent) = (Vec::new(), Vec::new());
    let mut notes = Vec::new();
    let mut is_present = Vec::new();
    for (node, answer) in request.nodes.iter().zip(answers) {
        is_present.push(answer.is_ok());
        match answer {
            Ok(one) => reached.push(one),
            Err(failure) => {
                notes.push(note(&node.name, &failure.text));
                absent.push(node.name.clone());
            }
        }
    }
    let mut is_present = is_present.into_iter();
    request.nodes.retain(|_| is_present.next().unwrap_or(true));
    Ok(Present {
        reached,
        absent,
        notes,
    })
}

/// What is said of a node that is left out, in one line.
fn note(name: &str, why: &str) -> String {
    let own = why
        .strip_prefix(name)
        .and_then(|rest| rest.strip_prefix(':'));
    let lines = own.unwrap_or(why).lines().map(str::trim);
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    let why = lines.join("; ");
    format!("{name} was not reached and is left out; the transfer goes on with the others: {why}")
}

/// An agent of this host is always reached. It does not start where a source is missing, or where the host has no process, port or
/// file left for it, which may pass.
fn kind_of(nodes: &[NodeRequest], answers: &Answers) -> ErrorKind {
    let failed = nodes.iter().zip(answers);
    let failed = failed.filter_map(|(node, answer)| Some((node, answer.as_ref().err()?)));
    let failed: Vec<_> = failed.collect();
    if failed.iter().any(|(node, _)| node.reach != Reach::Local) {
        return ErrorKind::Unreachable;
    }
    match failed.iter().all(|(_, failure)| failure.is_final) {
        true => ErrorKind::Refused,
        false => ErrorKind::Node,
    }
}

fn describe(node: &NodeRequest, is_reached: bool) -> Node {
    let ranges = |objects: &[ObjectRequest]| {
        let rows = objects.iter().flat_map(|object| &object.rows);
        RangeSet::from_ranges(rows.map(|row| row.range))
    };
    Node {
        name: node.name.clone(),
        is_reached,
        sends: node
            .sources
            .iter()
            .map(|source| name_of(&source.object))
            .collect(),
        receives: !node.sinks.is_empty(),
        holds: ranges(&node.sources),
        wants: ranges(&node.sinks),
    }
}

/// What replicas have in common: the last component, or the size of a pattern.
fn name_of(object: &Object) -> Vec<u8> {
    match object {
        Object::Path(path) | Object::Pattern(path) => Object::last_name(path).to_vec(),
        Object::Bundle(paths) => paths.join(&b'/'),
        Object::Memory(_) | Object::Buffer(_) => object.to_bytes(),
        Object::Null => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What passes by itself is no refusal, also where another agent of this host was refused.
    #[test]
    fn shortages_are_no_refusals() {
        let local = |name: &str| NodeRequest {
            name: name.into(),
            reach: Reach::Local,
            sources: Vec::new(),
            sinks: Vec::new(),
            up: None,
            down: None,
            interfaces: Vec::new(),
        };
        let failure = |is_final| {
            let text = "why".into();
            let is_question = false;
            Err(reach::Failure {
                text,
                is_question,
                is_final,
            })
        };
        let nodes = [local("a"), local("b")];
        let kind = |first, second| kind_of(&nodes, &vec![failure(first), failure(second)]);
        assert_eq!(kind(false, false), ErrorKind::Node);
        assert_eq!(kind(true, false), ErrorKind::Node);
        assert_eq!(kind(true, true), ErrorKind::Refused);
    }

    /// The name stands once, and lines are joined where they end.
    #[test]
    fn a_note_is_one_line() {
        let rest = "was not reached and is left out; the transfer goes on with the others";
        for (why, text) in [
            (
                "a3:\nssh: no such host\nCheck the name",
                "ssh: no such host; Check the name",
            ),
            ("a3: ssh: refused", "ssh: refused"),
            ("no route", "no route"),
        ] {
            assert_eq!(note("a3", why), format!("a3 {rest}: {text}"));
        }
    }
}
