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
    #[error(
        "{} ended {missing} bytes early; it must not change while it is read",
        shown(file)
    )]
    Shortened {
        /// Its path; empty where it is not known.
        file: String,
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
    /// A file is not what it was when it was opened.
    #[error("{} has changed; it must not change while it is read", shown(file))]
    Changed {
        /// Its path, or its name in the folder; empty where it is not known.
        file: String,
    },
    /// The file that this process writes has other bytes, too.
    #[error(
        "{} has {length} bytes, and {written} were written; something else has written to it",
        shown(file)
    )]
    NotAlone {
        /// Its path; empty where it is not known.
        file: String,
        /// What it has.
        length: u64,
        /// What it should have.
        written: u64,
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
    pub(crate) fn of_file(mut self, path: &[u8]) -> Self {
        if let Self::File { file, .. }
        | Self::Shortened { file, .. }
        | Self::Changed { file }
        | Self::NotAlone { file, .. } = &mut self
            && file.is_empty()
        {
            *file = String::from_utf8_lossy(path).into_owned();
        }
        self
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
        let changed = |file: &str| StageError::Changed { file: file.into() };
        let named = changed("").of_file(b"/x/in").to_string();
        assert!(named.starts_with("/x/in has changed"), "{named}");
        let named = changed("part").of_file(b"/x").to_string();
        assert!(named.starts_with("part has changed"), "{named}");
        assert_eq!(
            StageError::Ended.of_file(b"/x").to_string(),
            StageError::Ended.to_string()
        );
    }
}
