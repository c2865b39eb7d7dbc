//! The life of one node, as its master sees it.
//!
//! ```text
//!             at the start
//!  Opening ------------------> Ready --Plan--> Working <--Work-- Done      Working and Done: it may
//!     |                          ^               |  ^  --Done--->  |       - have been asked for ranges (recalled)
//!     | while bytes move         |               |                 |       - leave: nothing new is given to it
//!     +--> Checking --Admit------+               +----Finish-------+
//!              |                                         v
//!              +--Admit, nothing to wait for-->      Closing --Finished--> Closed
//!
//!  Finish leads from each state before it to Closing, Lose from each one but Closed to Lost.
//! ```
//!
//! What a node reported (what it opened, how its part ended, its final report) is data of `Node`; what may happen
//! next is decided here.

/// Where a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeLife {
    /// It was asked to open what it has.
    Opening,
    /// It joins: it has opened, and whether it may take part is being found out.
    Checking,
    /// It has opened and waits for its plan.
    Ready,
    /// It has a plan.
    Working(Duty),
    /// Its part has ended, well or not; more work may follow.
    Done(Duty),
    /// It was sent its end.
    Closing(Order),
    /// Its final report is here.
    Closed(Order),
    /// Its connection is gone, it was silent for too long, or it could not join.
    Lost,
}

/// What is open with a node that has a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Duty {
    /// It was asked to give up ranges and has not answered.
    pub recalled: bool,
    /// It is to do nothing new.
    pub leaving: bool,
}

/// What a node is to do at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Order {
    /// Rename files into place: all of its shared destination, or those of its own copy that lack no byte.
    pub commit: bool,
    /// Remove what it has written, which may take long.
    pub discard: bool,
}

/// What happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// It opened what it was asked for at the start.
    Opened,
    /// It opened the same while bytes move.
    OpenedLate,
    /// It may take part.
    Admit {
        /// Its plan comes with its first runs.
        waits: bool,
    },
    /// It is sent its first plan.
    Plan,
    /// Its part has ended.
    Done,
    /// It is given work.
    Work,
    /// It is asked to give up ranges.
    Recall,
    /// It has answered that.
    Released,
    /// It shall leave.
    Leave,
    /// It is sent its end.
    Finish(Order),
    /// Its final report was received.
    Finished,
    /// It is gone.
    Lose,
}

impl NodeLife {
    /// The state that follows; `None` where the event cannot happen or does not count.
    pub fn after(self, event: Event) -> Option<Self> {
        let idle = Duty::default();
        Some(match (self, event) {
            (Self::Opening, Event::Opened) => Self::Ready,
            (Self::Opening, Event::OpenedLate) => Self::Checking,
            (Self::Checking, Event::Admit { waits: true }) => Self::Ready,
            (Self::Checking, Event::Admit { waits: false }) | (Self::Ready, Event::Plan) => {
                Self::Working(idle)
            }
            // One that waits for its plan may fail, and one that was done may fail afterwards.
            (Self::Ready, Event::Done) => Self::Done(idle),
            (Self::Working(duty) | Self::Done(duty), Event::Done) => Self::Done(duty),
            (Self::Working(duty) | Self::Done(duty), Event::Work) => Self::Working(duty),
            (Self::Working(duty), Event::Recall) if !duty.recalled => {
                Self::Working(duty.with_recalled(true))
            }
            (Self::Working(duty), Event::Released) if duty.recalled => {
                Self::Working(duty.with_recalled(false))
            }
            (Self::Done(duty), Event::Released) if duty.recalled => {
                Self::Done(duty.with_recalled(false))
            }
            (Self::Working(duty), Event::Leave) if !duty.leaving => Self::Working(duty.leave()),
            (Self::Done(duty), Event::Leave) if !duty.leaving => Self::Done(duty.leave()),
            (
                Self::Opening | Self::Checking | Self::Ready | Self::Working(_) | Self::Done(_),
                Event::Finish(order),
            ) => Self::Closing(order),
            (Self::Closing(order), Event::Finished) => Self::Closed(order),
            (Self::Closed(_) | Self::Lost, _) => return None,
            (_, Event::Lose) => Self::Lost,
            _ => return None,
        })
    }

    /// Its agent is there.
    pub fn is_alive(self) -> bool {
        self != Self::Lost
    }

    /// It has not opened what it was asked for, or is not admitted yet.
    pub fn is_opening(self) -> bool {
        matches!(self, Self::Opening | Self::Checking)
    }

    /// It was not sent a plan.
    pub fn is_before_plan(self) -> bool {
        self.is_opening() || self == Self::Ready
    }

    /// It takes part: it has opened and was not sent its end.
    pub fn takes_part(self) -> bool {
        matches!(self, Self::Ready | Self::Working(_) | Self::Done(_))
    }

    /// Its part has not ended, as far as is known.
    pub fn is_unfinished(self) -> bool {
        self.is_opening() || matches!(self, Self::Ready | Self::Working(_))
    }

    /// It was sent its end.
    pub fn is_closing(self) -> bool {
        self.order().is_some()
    }

    /// What it is to do at its end, once it was sent that.
    pub fn order(self) -> Option<Order> {
        match self {
            Self::Closing(order) | Self::Closed(order) => Some(order),
            _ => None,
        }
    }

    /// It was sent its end, with files to rename into place.
    pub fn commits(self) -> bool {
        self.order().is_some_and(|order| order.commit)
    }

    /// It renames or removes files and has not reported.
    pub fn is_landing(self) -> bool {
        matches!(self, Self::Closing(order) if order.commit || order.discard)
    }

    /// It was asked to give up ranges and has not answered.
    pub fn is_recalled(self) -> bool {
        self.duty().recalled
    }

    /// Nothing new is given to it.
    pub fn is_leaving(self) -> bool {
        self.duty().leaving
    }

    fn duty(self) -> Duty {
        match self {
            Self::Working(duty) | Self::Done(duty) => duty,
            _ => Duty::default(),
        }
    }
}

impl Duty {
    fn with_recalled(self, recalled: bool) -> Self {
        Self { recalled, ..self }
    }

    fn leave(self) -> Self {
        Self {
            leaving: true,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::phase::{PHASES, STEPS};
    use super::*;
    use std::fmt::Write;

    const ORDERS: [Order; 4] = [
        Order {
            commit: false,
            discard: false,
        },
        Order {
            commit: true,
            discard: false,
        },
        Order {
            commit: false,
            discard: true,
        },
        Order {
            commit: true,
            discard: true,
        },
    ];

    fn states() -> Vec<NodeLife> {
        let duties = [(false, false), (true, false), (false, true), (true, true)];
        let duties = duties.map(|(recalled, leaving)| Duty { recalled, leaving });
        let mut all = vec![NodeLife::Opening, NodeLife::Checking, NodeLife::Ready];
        all.extend(duties.map(NodeLife::Working));
        all.extend(duties.map(NodeLife::Done));
        all.extend(ORDERS.map(NodeLife::Closing));
        all.extend(ORDERS.map(NodeLife::Closed));
        all.push(NodeLife::Lost);
        all
    }

    fn events() -> Vec<Event> {
        let mut all = vec![
            Event::Opened,
            Event::OpenedLate,
            Event::Admit { waits: true },
            Event::Admit { waits: false },
            Event::Plan,
            Event::Done,
            Event::Work,
            Event::Recall,
            Event::Released,
            Event::Leave,
        ];
        all.extend(ORDERS.map(Event::Finish));
        all.extend([Event::Finished, Event::Lose]);
        all
    }

    fn duty(name: &str, duty: Duty) -> String {
        let recalled = if duty.recalled { "+recalled" } else { "" };
        let leaving = if duty.leaving { "+leaving" } else { "" };
        format!("{name}{recalled}{leaving}")
    }

    fn order(name: &str, order: Order) -> String {
        let commit = if order.commit { "+commit" } else { "" };
        let discard = if order.discard { "+discard" } else { "" };
        format!("{name}{commit}{discard}")
    }

    fn state_name(life: NodeLife) -> String {
        match life {
            NodeLife::Working(own) => duty("Working", own),
            NodeLife::Done(own) => duty("Done", own),
            NodeLife::Closing(own) => order("Closing", own),
            NodeLife::Closed(own) => order("Closed", own),
            other => format!("{other:?}"),
        }
    }

    fn event_name(event: Event) -> String {
        match event {
            Event::Admit { waits: true } => "Admit+waits".into(),
            Event::Admit { waits: false } => "Admit".into(),
            Event::Finish(own) => order("Finish", own),
            other => format!("{other:?}"),
        }
    }

    fn table() -> String {
        let mut out = String::from("Phase x step\n\n");
        for phase in PHASES {
            for step in STEPS {
                let next = phase.after(step).map(|next| format!("{next:?}"));
                let next = next.unwrap_or_else(|| "-".into());
                writeln!(
                    out,
                    "{:<10} {:<8} {next}",
                    format!("{phase:?}"),
                    format!("{step:?}")
                )
                .unwrap();
            }
        }
        out += "\nNodeLife x event\n\n";
        for life in states() {
            for event in events() {
                let next = life.after(event).map_or_else(|| "-".into(), state_name);
                writeln!(
                    out,
                    "{:<25} {:<14} {next}",
                    state_name(life),
                    event_name(event)
                )
                .unwrap();
            }
        }
        out
    }

    /// Every state and every event, refusals included, as in the golden table.
    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "the golden file is the test's own"
    )]
    fn transitions_are_those_of_the_golden_table() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/golden/coordinator-states.txt"
        );
        let table = table();
        if std::env::var_os("ROPEWALK_UPDATE_GOLDEN").is_some() {
            std::fs::write(path, &table).unwrap();
        }
        let golden = std::fs::read_to_string(path).unwrap();
        assert_eq!(table, golden, "ROPEWALK_UPDATE_GOLDEN=1 writes the file");
    }

    /// Every state can be reached, and from each one a node can be closed or is gone.
    #[test]
    fn every_state_is_reached_and_left() {
        let mut reached = vec![NodeLife::Opening];
        let mut at = 0;
        while at < reached.len() {
            let life = reached[at];
            for next in events().into_iter().filter_map(|event| life.after(event)) {
                if !reached.contains(&next) {
                    reached.push(next);
                }
            }
            at += 1;
        }
        for life in states() {
            assert!(reached.contains(&life), "{life:?}");
            let ends = matches!(life, NodeLife::Closed(_) | NodeLife::Lost);
            assert_eq!(ends, life.after(Event::Lose).is_none(), "{life:?}");
        }
    }
}
