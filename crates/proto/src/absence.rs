//! Whether a transfer can do without nodes that were not reached.
//!
//! Decided before anything is opened, so only from what was asked for: sources that are replicas replace each other;
//! destinations and parts that no other host has. What sources are is found by comparing them, where it is not stated: two that are left
//! show whether they are replicas, one does not.

use ropewalk_model::RangeSet;

/// How the sources of a transfer relate, as far as the user says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sources {
    /// Found out by comparing.
    Unknown,
    /// Each holds all.
    Replicas,
    /// Each holds other files.
    Parts,
    /// Rows say which ranges each node holds.
    Rows,
}

/// A node that was to take part.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// In messages.
    pub name: String,
    /// Its agent answers.
    pub is_reached: bool,
    /// What its sources are called, in their order; those of one name may be replicas.
    pub sends: Vec<Vec<u8>>,
    /// It is a destination.
    pub receives: bool,
    /// Ranges of the data space it holds, of rows.
    pub holds: RangeSet,
    /// Ranges it wants, of rows.
    pub wants: RangeSet,
}

/// Whether the nodes that were not reached can be left out.
///
/// # Errors
/// What to add to the reasons why they were not reached: why the transfer cannot do without, and how to go on.
pub fn may_be_left_out(
    nodes: &[Node],
    sources: Sources,
    require_all: bool,
) -> Result<(), Option<String>> {
    let absent: Vec<&Node> = nodes.iter().filter(|node| !node.is_reached).collect();
    let present = || nodes.iter().filter(|node| node.is_reached);
    if absent.is_empty() {
        return Ok(());
    }
    if require_all {
        return Err(None);
    }
    let names = |of: &dyn Fn(&Node) -> bool| {
        let names = absent.iter().filter(|node| of(node));
        names
            .map(|node| node.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    if absent.iter().any(|node| node.receives) {
        let names = names(&|node| node.receives);
        let others = present().any(|node| node.receives);
        return Err(others.then(|| {
            format!("To serve the other destinations only, leave {names} out of the command")
        }));
    }
    let all = names(&|_| true);
    match sources {
        Sources::Parts => Err(Some(format!(
            "What {all} holds is a part of its own, which no other host has"
        ))),
        Sources::Rows => {
            let mut lacking = RangeSet::default();
            for node in nodes {
                lacking = lacking.union(&node.wants);
            }
            for node in present() {
                lacking = lacking.difference(&node.holds);
            }
            match lacking.iter().next() {
                None => Ok(()),
                Some(range) => Err(Some(format!(
                    "No other node holds {}-{}",
                    range.start,
                    range.end - 1
                ))),
            }
        }
        Sources::Unknown | Sources::Replicas => {
            for node in &absent {
                let same = present().filter(|other| other.sends == node.sends).count();
                match (same, sources) {
                    (0, _) => return Err(None),
                    (1, Sources::Unknown) => {
                        return Err(Some(
                            "One source is left, which does not show whether they are replicas or parts: if each holds all, add --sources replicas to go on without"
                                .into(),
                        ));
                    }
                    _ => {}
                }
            }
            Ok(())
        }
    }
}

/// Why sources that were found to be parts are refused when others are not there.
pub(crate) fn parts_remain(absent: &[String]) -> String {
    let names = absent.join(", ");
    format!(
        "{names} cannot be reached, and the other sources hold different files: {names} may hold some that no other host has; leave it out of the command to go on without"
    )
}

#[cfg(test)]
mod tests {
    use ropewalk_model::Range;

    use super::*;

    fn sender(name: &str, source: &str, is_reached: bool) -> Node {
        Node {
            name: name.into(),
            is_reached,
            sends: vec![source.into()],
            ..Node::default()
        }
    }

    fn receiver(name: &str, is_reached: bool) -> Node {
        Node {
            name: name.into(),
            is_reached,
            receives: true,
            ..Node::default()
        }
    }

    fn reason(nodes: &[Node], sources: Sources) -> String {
        let refused = may_be_left_out(nodes, sources, false).unwrap_err();
        refused.unwrap_or_default()
    }

    /// Replicas stand in for each other: two that are left, or one where the user says so.
    #[test]
    fn replicas_stand_in() {
        let one = [
            sender("a", "set", true),
            sender("b", "set", false),
            receiver("c", true),
        ];
        let mut two = one.to_vec();
        two.push(sender("d", "set", true));
        assert_eq!(may_be_left_out(&two, Sources::Unknown, false), Ok(()));
        assert_eq!(may_be_left_out(&two, Sources::Unknown, true), Err(None));
        assert_eq!(may_be_left_out(&one, Sources::Replicas, false), Ok(()));
        assert!(reason(&one, Sources::Unknown).contains("--sources replicas"));
        assert!(reason(&two, Sources::Parts).contains("What b holds is a part"));
    }

    /// Things of another name stand in for nothing.
    #[test]
    fn other_things_do_not() {
        let nodes = [
            sender("a", "set", true),
            sender("b", "other", false),
            sender("d", "set", true),
            receiver("c", true),
        ];
        for sources in [Sources::Unknown, Sources::Replicas] {
            assert_eq!(may_be_left_out(&nodes, sources, false), Err(None));
        }
    }

    /// Destinations are not left out silently; the user learns how to go on.
    #[test]
    fn destinations_are_not_left_out() {
        let lone = [sender("a", "x", true), receiver("b", false)];
        assert_eq!(may_be_left_out(&lone, Sources::Unknown, false), Err(None));
        let more = [
            sender("a", "x", true),
            receiver("b", false),
            receiver("c", true),
        ];
        assert!(reason(&more, Sources::Unknown).contains("leave b out of the command"));
    }

    /// Rows: what is wanted must be held by those that are left.
    #[test]
    fn rows_have_to_be_held() {
        let range = |start, end| RangeSet::from(Range { start, end });
        let holder = |name: &str, is_reached, holds| Node {
            holds,
            ..sender(name, "f", is_reached)
        };
        let reader = Node {
            wants: range(0, 100),
            ..receiver("r", true)
        };
        let mut nodes = vec![
            holder("a", true, range(0, 60)),
            holder("b", false, range(50, 100)),
            reader,
        ];
        assert!(reason(&nodes, Sources::Rows).contains("No other node holds 60-99"));
        nodes.push(holder("c", true, range(60, 200)));
        assert_eq!(may_be_left_out(&nodes, Sources::Rows, false), Ok(()));
    }
}
