//! Why a process of a stream ends early.

use ropewalk_proto::control::StageCause;
use ropewalk_proto::stage::frame::{FrameError, Identity};
use ropewalk_proto::stage::process::Violation;

/// Why a process of a stream ends early. Peers are named as `B on node`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StageError {
    /// The agent is gone, or ends the stream.
    #[error("the agent ended the stream")]
    Ended,
    /// The agent sent what this version does not know.
    #[error("the agent's message cannot be read: {0}")]
    Agent(String),
    /// No connection to a process of the next group.
    #[error("cannot connect to {peer}: {reason}")]
    Connect {
        /// Which process.
        peer: String,
        /// What was tried and what the system said.
        reason: String,
    },
    /// This process did not become a rank.
    #[error(transparent)]
    Mpi(#[from] ropewalk_lane::mpi::MpiError),
    /// A connection ended before all blocks had passed.
    #[error("the connection to {peer} broke: {reason}")]
    Lost {
        /// Which process.
        peer: String,
        /// What the system said.
        reason: String,
    },
    /// Datagrams do not pass.
    #[error(
        "no datagram passes between here and {peer}, UDP port {} of {}; permit UDP between the hosts, or use --lane tcp", address.port(), address.ip()
    )]
    Blocked {
        /// Which process.
        peer: String,
        /// Its socket.
        address: std::net::SocketAddr,
    },
    /// A peer broke the rules of credit or counts.
    #[error("{peer} {violation}")]
    Violation {
        /// Which process.
        peer: String,
        /// What it did.
        violation: Violation,
    },
    /// A frame of an unknown kind.
    #[error("{peer} sent {source}")]
    Frame {
        /// Which process.
        peer: String,
        /// What it was.
        source: FrameError,
    },
    /// A block longer than all blocks of the stream.
    #[error("{peer} sent a block of {length} bytes, longer than {longest}")]
    TooLong {
        /// Which process.
        peer: String,
        /// Its length.
        length: u32,
        /// Longest allowed.
        longest: usize,
    },
    /// A block that is not what was sent.
    #[error("block {} of group {} of node {} was damaged on the way from {peer}", identity.number, identity.group, identity.node)]
    Damaged {
        /// Which process sent it last.
        peer: String,
        /// Which block.
        identity: Identity,
    },
    /// A sealed frame that was changed.
    #[error("a sealed frame from {peer} was changed on the way")]
    Forged {
        /// Which process.
        peer: String,
    },
    /// The local file failed.
    #[error("{doing} {}: {source}", shown(file))]
    File {
        /// What was tried.
        doing: &'static str,
        /// Its path; empty where it is not known.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file has less than when the stream was opened.
    #[error("the file ended {missing} bytes early; it must not change while it is read")]
    Shortened {
        /// What is missing.
        missing: u64,
    },
    /// A line that fits no block.
    #[error(
        "the line at byte {offset} of the file is longer than a block of {longest} bytes; give --block a larger size"
    )]
    LongLine {
        /// Where it begins.
        offset: u64,
        /// Longest that fits, with its end.
        longest: usize,
    },
    /// A file of a folder failed.
    #[error("{doing} {name}: {source}")]
    Named {
        /// What was tried.
        doing: &'static str,
        /// Its name in the folder.
        name: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Something else than a file in the folder that is read.
    #[error(
        "{name} is no regular file; --from names a folder of files, of which those that begin with a dot are left out"
    )]
    NoRegularFile {
        /// Its name in the folder.
        name: String,
    },
    /// A file has another length than at its begin.
    #[error("{name} has changed; it must not change while it is read")]
    Changed {
        /// Its name in the folder.
        name: String,
    },
    /// A record that fits no block.
    #[error(
        "{name} has a record at byte {offset} that is longer than {longest} bytes, which a block holds; give --block a larger size"
    )]
    LongRecord {
        /// Its file.
        name: String,
        /// Where it begins.
        offset: u64,
        /// Longest that fits, with its end.
        longest: usize,
    },
    /// A last record without all of its bytes.
    #[error(
        "{name} ends within the record at byte {offset}, which should have {length} bytes; see --record"
    )]
    ShortRecord {
        /// Its file.
        name: String,
        /// Where it begins.
        offset: u64,
        /// What it should have.
        length: u32,
    },
    /// A block of a shuffle that is not for this process.
    #[error("a block has no partition of this node; this is a bug")]
    WrongPartition,
    /// The program of the stage.
    #[error("its program `{command}` {what}")]
    Program {
        /// The command.
        command: String,
        /// What it did.
        what: String,
    },
    /// The system refused something else.
    #[error("{doing}: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
}

fn shown(file: &str) -> &str {
    match file {
        "" => "the file",
        file => file,
    }
}

impl StageError {
    /// The same of the file with this path.
    pub(crate) fn of_file(self, path: &[u8]) -> Self {
        match self {
            Self::File { doing, source, .. } => Self::File {
                doing,
                file: String::from_utf8_lossy(path).into_owned(),
                source,
            },
            other => other,
        }
    }

    /// How the master weighs it against errors of other processes.
    #[must_use]
    pub fn cause(&self) -> StageCause {
        match self {
            Self::Lost { .. } | Self::Ended => StageCause::Peer,
            Self::Violation { .. }
            | Self::Frame { .. }
            | Self::TooLong { .. }
            | Self::Damaged { .. }
            | Self::Forged { .. } => StageCause::Violation,
            _ => StageCause::Process,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that fails is named.
    #[test]
    fn files_are_named() {
        let error = |file: &str| StageError::File {
            doing: "writing",
            file: file.into(),
            source: std::io::ErrorKind::StorageFull.into(),
        };
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        let named = error("").of_file(b"/x/out").to_string();
        assert_eq!(named, format!("writing /x/out: {full}"));
        assert_eq!(error("").to_string(), format!("writing the file: {full}"));
        assert_eq!(
            StageError::Ended.of_file(b"/x").to_string(),
            StageError::Ended.to_string()
        );
    }
}
