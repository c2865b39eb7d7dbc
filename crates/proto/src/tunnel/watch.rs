//! What a command says of its tunnel's rails and control connection while the tunnel runs: each change once.

/// Notes that are kept; a tunnel may run for months.
pub const NOTES_MAX: usize = 100;

/// What was seen of one rail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// It has a working connection.
    pub is_up: bool,
    /// Why it has none.
    pub cause: Option<String>,
}

/// What was said of one rail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Said {
    /// It has never worked: only the report says so.
    #[default]
    Nothing,
    Up,
    Lost,
}

/// The state of a tunnel as far as it was reported.
#[derive(Clone, Debug)]
pub struct Watch {
    names: Vec<String>,
    said: Vec<Said>,
}

impl Watch {
    /// Of a tunnel over these rails.
    #[must_use]
    pub fn new(names: Vec<String>) -> Self {
        Self {
            said: vec![Said::default(); names.len()],
            names,
        }
    }

    /// Rails as they are now, in order: a note for each that is lost, or works again.
    pub fn handle_rails(&mut self, rails: &[Seen]) -> Vec<String> {
        let mut notes = Vec::new();
        for ((name, said), seen) in self.names.iter().zip(&mut self.said).zip(rails) {
            match (*said, seen.is_up) {
                (Said::Up, false) => {
                    let cause = seen.cause.as_deref().unwrap_or("the connection broke");
                    notes.push(format!("the rail {name} is lost: {cause}"));
                    *said = Said::Lost;
                }
                (Said::Lost, true) => {
                    notes.push(format!("the rail {name} works again"));
                    *said = Said::Up;
                }
                (Said::Nothing, true) => *said = Said::Up,
                _ => {}
            }
        }
        notes
    }

    /// The control connection has ended, for this reason. Data does not depend on it.
    #[must_use]
    pub fn control_lost(node: &str, reason: &str) -> String {
        format!(
            "the control connection to {node} is lost ({reason}); the tunnel goes on as long as a rail works"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(up: [bool; 2]) -> Vec<Seen> {
        let seen = |is_up: bool| Seen {
            is_up,
            cause: (!is_up).then(|| "silent".to_owned()),
        };
        up.map(seen).to_vec()
    }

    /// Each change is said once; a rail that has never worked is none.
    #[test]
    fn changes_are_said_once() {
        let mut watch = Watch::new(vec!["a".into(), "b".into()]);
        assert!(watch.handle_rails(&seen([true, false])).is_empty());
        assert!(watch.handle_rails(&seen([true, true])).is_empty());
        let lost = watch.handle_rails(&seen([false, true]));
        assert_eq!(lost, ["the rail a is lost: silent"]);
        assert!(watch.handle_rails(&seen([false, true])).is_empty());
        let back = watch.handle_rails(&seen([true, false]));
        assert_eq!(
            back,
            ["the rail a works again", "the rail b is lost: silent"]
        );
    }
}
