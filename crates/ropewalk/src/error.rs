//! The one error of this crate.

use std::fmt;

use ropewalk_agent::AgentError;
use ropewalk_message::MessageError;
use ropewalk_model::SpecErrors;
use ropewalk_proto::codes::Actor;
use ropewalk_proto::report::{ErrorKind, Report};
use ropewalk_region::RegionError;
use ropewalk_sched::PlanError;
use ropewalk_store::BufferError;

/// Why an operation failed, sorted by the party that must act.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The caller: what was asked for is wrong, is refused, or was cancelled.
    Input(Fault),
    /// The operator of this host: an address, a folder, a limit of the system.
    Host(Fault),
    /// The operator of another host: its disk, its files, its agent, a socket that it closed.
    Peer(Fault),
    /// The operator of the network: the same call may succeed later.
    Network(Fault),
    /// The authors of Ropewalk: please report it with the message.
    Bug(Fault),
}

/// What is known of a failure.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Fault {
    /// What failed, where, and what to do: a sentence in lower case.
    pub message: String,
    /// Of a transfer: which kind of error, with codes for exit status, wire and JSON in [`codes`](crate::codes).
    pub kind: Option<ErrorKind>,
    /// Of a transfer that was begun: what it did until then.
    pub report: Option<Box<Report>>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Fault {
    pub(crate) fn of(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self {
            message: error.to_string(),
            source: Some(Box::new(error)),
            ..Self::default()
        }
    }

    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            ..Self::default()
        }
    }
}

impl Error {
    /// What is known of it.
    #[must_use]
    pub fn fault(&self) -> &Fault {
        match self {
            Self::Input(fault)
            | Self::Host(fault)
            | Self::Peer(fault)
            | Self::Network(fault)
            | Self::Bug(fault) => fault,
        }
    }

    /// Whether the same call may succeed later without a change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Network(_))
    }

    /// The report of a transfer that did not end as it should.
    pub(crate) fn of_report(report: Report) -> Self {
        let kind = report.error_kind.unwrap_or(ErrorKind::Other);
        let fault = Fault {
            message: report.error.clone().unwrap_or_default(),
            kind: Some(kind),
            report: Some(Box::new(report)),
            source: None,
        };
        match kind.actor() {
            Actor::Caller => Self::Input(fault),
            Actor::Peer => Self::Peer(fault),
            Actor::Network => Self::Network(fault),
            Actor::Bug => Self::Bug(fault),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fault().message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The message is the cause's: what follows is the cause of that.
        self.fault().source.as_deref()?.source()
    }
}

impl From<MessageError> for Error {
    fn from(error: MessageError) -> Self {
        let sort = match &error {
            MessageError::PeerClosed
            | MessageError::Reset { .. }
            | MessageError::Stopped
            | MessageError::NotByteStreams(_) => Self::Peer,
            MessageError::Deadline
            | MessageError::PeerLost { .. }
            | MessageError::Connect { .. } => Self::Network,
            MessageError::Listen { .. }
            | MessageError::System { .. }
            | MessageError::Remembered(_) => Self::Host,
            _ => Self::Input,
        };
        sort(Fault::of(error))
    }
}

impl From<RegionError> for Error {
    fn from(error: RegionError) -> Self {
        let sort = match error {
            RegionError::Message(error) => return error.into(),
            RegionError::Buffer(error) => return error.into(),
            RegionError::Refused { .. } => Self::Peer,
            RegionError::Unreached { .. }
            | RegionError::Lost { .. }
            | RegionError::Deadline { .. } => Self::Network,
            RegionError::File { .. } | RegionError::System { .. } => Self::Host,
            _ => Self::Input,
        };
        sort(Fault::of(error))
    }
}

impl From<AgentError> for Error {
    fn from(error: AgentError) -> Self {
        let sort = match &error {
            AgentError::Peer { .. } | AgentError::Refused(_) => Self::Peer,
            AgentError::NoMaster { .. }
            | AgentError::SilentMaster { .. }
            | AgentError::Unconnected(_) => Self::Network,
            _ => Self::Host,
        };
        sort(Fault::of(error))
    }
}

impl From<SpecErrors> for Error {
    fn from(error: SpecErrors) -> Self {
        Self::Input(Fault {
            kind: Some(ErrorKind::Specification),
            ..Fault::of(error)
        })
    }
}

impl From<BufferError> for Error {
    fn from(error: BufferError) -> Self {
        Self::Input(Fault::of(error))
    }
}

impl From<PlanError> for Error {
    fn from(error: PlanError) -> Self {
        Self::Input(Fault::of(error))
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_proto::report::Outcome;

    use super::*;

    /// Errors of transfers are sorted by the table of codes, those of sockets and agents by what failed.
    #[test]
    fn errors_are_sorted_by_who_must_act() {
        let transfer = |kind| {
            let mut report = Report::ended(Outcome::Failed);
            (report.error, report.error_kind) = (Some("b: disk full".into()), Some(kind));
            Error::of_report(report)
        };
        assert!(matches!(transfer(ErrorKind::Usage), Error::Input(_)));
        assert!(matches!(transfer(ErrorKind::Other), Error::Bug(_)));
        assert!(transfer(ErrorKind::Lost).is_retryable());
        let node = transfer(ErrorKind::Node);
        assert!(matches!(&node, Error::Peer(fault) if fault.report.is_some()));
        assert_eq!(node.to_string(), "b: disk full");
        assert!(matches!(
            Error::from(MessageError::PeerClosed),
            Error::Peer(_)
        ));
        assert!(Error::from(MessageError::Deadline).is_retryable());
        assert!(matches!(Error::from(MessageError::Closed), Error::Input(_)));
        let silent = AgentError::SilentMaster { seconds: 30 };
        assert!(matches!(Error::from(silent), Error::Network(_)));
        let refused = AgentError::Refused("no such transfer".into());
        assert!(matches!(Error::from(refused), Error::Peer(_)));
    }
}
