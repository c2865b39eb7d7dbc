//! Which nodes a put is sent to, and how nodes are numbered.

/// Position of a node in the list that the origin was given.
pub type HolderId = usize;

/// Which nodes a put is sent to. It is stated when the region is made, by all nodes alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Rule {
    /// None: puts are refused.
    #[default]
    ReadOnly = 0,
    /// All nodes that hold the range.
    All = 1,
    /// The one node that owns it. Other holders have the bytes from before.
    Owner = 2,
}

impl Rule {
    pub(super) fn from_u8(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::ReadOnly,
            1 => Self::All,
            2 => Self::Owner,
            _ => return None,
        })
    }
}
