//! The phases of a transfer, and what leads from one to the next.
//!
//! ```text
//!  Opening --Differ--> Comparing
//!     |                    |
//!     +--------Odd---------+--> Probing
//!     |                    |       |
//!     +--------Look--------+-------+--> Looking
//!     |                    |       |       |
//!     +------LaidOut-------+-------+-------+--> Planning --Planned--> Moving --Finish--> Finishing
//!
//!  End leads from every phase to Ended.
//! ```

/// Where a transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nodes open what they hold and what they write to.
    Opening,
    /// Sources have different lists of files: the lists are compared.
    Comparing,
    /// Nodes look whether places are one, and whether overlapping rows hold the same bytes.
    Probing,
    /// A receiver of a shared copy looks what of it is there; or receivers list what the copy does.
    Looking,
    /// The first plan is made.
    Planning,
    /// Bytes flow.
    Moving,
    /// Nodes rename or remove what they wrote, and report.
    Finishing,
    /// The outcome is known.
    Ended,
}

/// What leads to another phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The sources have different lists of files.
    Differ,
    /// Something about places or rows has to be asked.
    Odd,
    /// Receivers write the copy of a tree together.
    Look,
    /// Every node's holdings and wants are known.
    LaidOut,
    /// The first plan is there.
    Planned,
    /// No node has anything left to fetch, or the transfer is stopped.
    Finish,
    /// The outcome is known: all have reported, or it was refused.
    End,
}

impl Phase {
    /// The phase that follows; `None` where the step cannot happen.
    pub fn after(self, step: Step) -> Option<Self> {
        Some(match (self, step) {
            (Self::Opening, Step::Differ) => Self::Comparing,
            (Self::Opening | Self::Comparing, Step::Odd) => Self::Probing,
            // What a copy does may be listed before one node decides what of it is there.
            (Self::Opening | Self::Comparing | Self::Probing | Self::Looking, Step::Look) => {
                Self::Looking
            }
            (Self::Opening | Self::Comparing | Self::Probing | Self::Looking, Step::LaidOut) => {
                Self::Planning
            }
            (Self::Planning, Step::Planned) => Self::Moving,
            // A transfer may be cancelled while it finishes.
            (Self::Moving | Self::Finishing, Step::Finish) => Self::Finishing,
            (Self::Ended, _) => return None,
            (_, Step::End) => Self::Ended,
            _ => return None,
        })
    }

    /// Whether nothing has moved yet, so that the transfer can still be refused.
    pub fn is_before_moving(self) -> bool {
        matches!(
            self,
            Self::Opening | Self::Comparing | Self::Probing | Self::Looking | Self::Planning
        )
    }
}

#[cfg(test)]
pub(super) const PHASES: [Phase; 8] = [
    Phase::Opening,
    Phase::Comparing,
    Phase::Probing,
    Phase::Looking,
    Phase::Planning,
    Phase::Moving,
    Phase::Finishing,
    Phase::Ended,
];

#[cfg(test)]
pub(super) const STEPS: [Step; 7] = [
    Step::Differ,
    Step::Odd,
    Step::Look,
    Step::LaidOut,
    Step::Planned,
    Step::Finish,
    Step::End,
];
